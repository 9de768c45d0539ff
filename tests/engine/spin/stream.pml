/* One transactional stream from a sender to a receiver, as behaviour.md has it, for spin.
 *
 * Two connections join them. The first carries messages, and session acknowledgements back. The second carries
 * OrderAcks and FinalAcks, and session acknowledgements of the FinalAcks back; so an OrderAck may come at any time, also
 * long after the stream has gone on (B-011). A cut loses all that is in flight on a connection, both ways. A crash cuts
 * both, and what is not durable is lost. What is durable changes in one step (`atomic`), and that step sends nothing:
 * another one does, later, so that a crash can come between.
 *
 * Bounds: MSGS messages, WINDOW in flight, FAILS cuts and crashes, EXPIRE messages that the sender gives up, REJECT that
 * the receiver rejects, EARLY resend time-outs that come too soon. One that comes when nothing else happens any more is
 * always possible. Messages are named 1 to MSGS in the order in which the application sends them.
 *
 * Each of the names in `#ifdef` below breaks one rule: a proof that the properties can fail. check.py lists them.
 */

#ifndef MSGS
#define MSGS 3
#endif
#ifndef WINDOW
#define WINDOW 3
#endif
#ifndef FAILS
#define FAILS 2
#endif
#ifndef EXPIRE
#define EXPIRE 1
#endif
#ifndef REJECT
#define REJECT 1
#endif
#ifndef EARLY
#define EARLY 1
#endif

#define ROUND 8 /* session sequence numbers are counted modulo this, and compared as B-090 says; more than 2 * WINDOW */
#define PLACES 6 /* indices 1 to MSGS, at most 5, of the arrays */

mtype = { ABSENT, WAITING, SETTLED, EXPIRED, REJECTED }; /* a message at the sender; the last three are its end */
mtype = { STORE, REFUSE };
mtype = { ORDER_ACK, FINAL_ACK };

/* durable at the sender */
mtype at[PLACES] = ABSENT;
byte number[PLACES]; /* TxSequenceNumber, 0 until it is first sent */
byte out_id = 1;
byte out_number = 1;
byte accepted;

/* of the sender, for one connection */
bool in_flight[PLACES];
bool session_acked[PLACES];
bool order_acked[PLACES];
byte place[PLACES]; /* session sequence number */
byte sent;
byte acked;

/* durable at the receiver */
bool stored[PLACES];
byte last_stored;
byte in_id;
byte in_number;
byte final_ack[PLACES]; /* 0 none, 1 to be sent, 2 in flight, 3 acknowledged; after a cut 2 is 1 again */

/* of the receiver: the message that it has decided about and not yet stored, and counters for one connection */
byte pending;
mtype outcome = STORE;
byte pending_id;
byte pending_number;
bool of_this_connection;
byte received;
byte told; /* what the last session acknowledgement said */
bool owed; /* an OrderAck */

byte fails = FAILS;
byte expire = EXPIRE;
byte reject = REJECT;
byte early = EARLY;

byte durable; /* how many of `received` have a durable outcome; only the properties look at it */
#ifdef NUMBER_LATE
byte saved_number = 1; /* out_number on the disk */
#endif
#ifdef TORN
bool half_done;
#if TORN == 1
#define FIRST_HALF store_message
#define SECOND_HALF store_place
#else
#define FIRST_HALF store_place
#define SECOND_HALF store_message
#endif
#endif

chan messages = [WINDOW] of { byte, byte, byte, byte }; /* message, TxSequenceID, number, previous number */
chan session_acks = [2] of { byte };
chan acks = [2] of { mtype, byte, byte }; /* ORDER_ACK, id, number; or FINAL_ACK, message, 0 */
chan final_acks_acked = [MSGS] of { byte };

#define UNSENT(m) (at[m] == WAITING && !in_flight[m] && !session_acked[m])
#ifdef BACKWARDS
#define NEXT (UNSENT(3) -> 3 : (UNSENT(2) -> 2 : (UNSENT(1) -> 1 : 0)))
#else
#define NEXT (UNSENT(1) -> 1 : (UNSENT(2) -> 2 : (UNSENT(3) -> 3 : (UNSENT(4) -> 4 : (UNSENT(5) -> 5 : 0)))))
#endif
#define NUMBERED(m) (at[m] == WAITING && number[m] != 0)
#define ANY_NUMBERED (NUMBERED(1) || NUMBERED(2) || NUMBERED(3) || NUMBERED(4) || NUMBERED(5))
#define FINAL_ACK_TO_SEND \
    (final_ack[1] == 1 || final_ack[2] == 1 || final_ack[3] == 1 || final_ack[4] == 1 || final_ack[5] == 1)
#ifdef OVERTAKE
#define MAY_SEND_ORDER_ACK true
#else
#define MAY_SEND_ORDER_ACK !FINAL_ACK_TO_SEND
#endif
#ifdef NO_WINDOW
#define WINDOW_OPEN true
#else
#define WINDOW_OPEN IN_FLIGHT < WINDOW
#endif
#define IN_FLIGHT ((sent + ROUND - acked) % ROUND)
#define FINISHED (accepted == MSGS && at[1] != WAITING && at[2] != WAITING && at[3] != WAITING && at[4] != WAITING \
                  && at[5] != WAITING)
#define QUIET (NEXT == 0 && accepted == MSGS && empty(messages) && empty(session_acks) && empty(acks) \
               && empty(final_acks_acked) && pending == 0 && received == told && !owed && !FINAL_ACK_TO_SEND)

/* Every message that the sender has accepted ends as stored, expired or rejected, once failures have stopped. */
ltl ends { <> FINISHED }

inline roll_if_drained() /* B-096 */
{
    if
    :: !ANY_NUMBERED && out_number > 1 ->
        out_id++;
        out_number = 1;
#ifdef NUMBER_LATE
        saved_number = 1;
#endif
    :: else
    fi
}

inline settle(which)
{
    assert(stored[which]); /* settled_is_stored: an OrderAck settles only what the receiver has stored */
    at[which] = SETTLED;
    in_flight[which] = false
}

inline new_first_connection() /* B-157 to B-160, B-086 */
{
    do
    :: messages ? _, _, _, _
    :: session_acks ? _
    :: empty(messages) && empty(session_acks) -> break
    od;
    for (k : 1 .. MSGS) {
        in_flight[k] = false;
        session_acked[k] = false;
        order_acked[k] = false;
        place[k] = 0;
#ifdef A08
        number[k] = 0;
#endif
    }
    sent = 0;
    acked = 0;
    received = 0;
    told = 0;
    durable = 0;
    of_this_connection = false
}

inline new_second_connection()
{
    do
    :: acks ? _, _, _
    :: final_acks_acked ? _
    :: empty(acks) && empty(final_acks_acked) -> break
    od;
    for (k : 1 .. MSGS) {
        if
        :: final_ack[k] == 2 -> final_ack[k] = 1
        :: else
        fi
    }
}

inline send_all_again()
{
    for (k : 1 .. MSGS) {
        if
        :: NUMBERED(k) -> in_flight[k] = false; session_acked[k] = false
        :: else
        fi
    }
    k = 0
}

/* What the receiver makes durable: the message, or the FinalAck of one that it rejects, and its place in the sequence. */
inline store_message()
{
    if
    :: outcome == STORE ->
        assert(!stored[pending]); /* once */
        assert(pending > last_stored); /* in_order */
        stored[pending] = true;
        last_stored = pending
    :: outcome == REFUSE && final_ack[pending] == 0 -> final_ack[pending] = 1
    :: else
    fi
}

inline store_place()
{
    in_id = pending_id;
    in_number = pending_number
}

inline now_durable()
{
    if
    :: of_this_connection ->
#ifndef ACK_EARLY
        received = (received + 1) % ROUND;
#endif
        durable = (durable + 1) % ROUND
    :: else
    fi;
    owed = true;
    forget_pending()
}

inline forget_pending()
{
    pending = 0;
    outcome = STORE;
    pending_id = 0;
    pending_number = 0;
    of_this_connection = false
}

active proctype application()
{
end:
    do
    :: atomic { accepted < MSGS -> accepted++; at[accepted] = WAITING }
    od
}

active proctype sends()
{
    byte m, k, previous;
    do
    /* a number for life, durable before the packet leaves (B-317, B-098) */
    :: atomic {
        WINDOW_OPEN && NEXT != 0 && number[NEXT] == 0 ->
        m = NEXT;
        number[m] = out_number;
        out_number++;
        m = 0
    }
#ifdef NUMBER_LATE
    :: atomic { saved_number != out_number -> saved_number = out_number }
#endif
    /* B-307, B-318 to B-320 */
    :: atomic {
        WINDOW_OPEN && nfull(messages) && NEXT != 0 && number[NEXT] != 0 ->
        m = NEXT;
        previous = 0;
        for (k : 1 .. m - 1) {
            if
            :: NUMBERED(k) -> previous = number[k]
            :: else
            fi
        }
#ifdef NO_BRIDGE
        previous = number[m] - 1;
#endif
        sent = (sent + 1) % ROUND;
        place[m] = sent;
        in_flight[m] = true;
        assert(IN_FLIGHT <= WINDOW); /* window */
        messages ! m, out_id, number[m], previous;
        m = 0; k = 0; previous = 0
    }
    /* B-151: too soon, or because nothing else happens */
    :: atomic { early > 0 && NEXT == 0 && ANY_NUMBERED -> early--; send_all_again() }
    :: atomic { QUIET && ANY_NUMBERED -> send_all_again() }
    :: FINISHED -> break
    od
}

active proctype hears()
{
    byte m, id, n;
end:
    do
    /* B-219, B-224 */
    :: atomic {
        session_acks ? n ->
        acked = n;
        for (m : 1 .. MSGS) {
            if
#ifdef A09
            :: at[m] == WAITING && !session_acked[m] && ((n + ROUND - place[m]) % ROUND < ROUND / 2 || place[m] == 0) ->
#else
            :: at[m] == WAITING && in_flight[m] && (n + ROUND - place[m]) % ROUND < ROUND / 2 ->
#endif
                in_flight[m] = false;
                session_acked[m] = true;
                if
                :: order_acked[m] -> settle(m)
                :: else
                fi
            :: else
            fi
        }
        roll_if_drained();
        m = 0; n = 0
    }
    /* B-230, B-235, B-236 */
    :: atomic {
        acks ? ORDER_ACK, id, n ->
        if
#ifdef A04
        :: true ->
#else
        :: id == out_id ->
#endif
            for (m : 1 .. MSGS) {
                if
#ifdef ZERO
                :: at[m] == WAITING && number[m] <= n ->
#else
                :: NUMBERED(m) && number[m] <= n ->
#endif
                    order_acked[m] = true;
                    if
#ifdef ALONE
                    :: true -> settle(m)
#endif
                    :: session_acked[m] -> settle(m)
                    :: else
                    fi
                :: else
                fi
            }
        :: else
        fi;
        roll_if_drained();
        m = 0; id = 0; n = 0
    }
    /* B-241, B-244 */
    :: atomic {
        acks ? FINAL_ACK, m, _ ->
        if
        :: at[m] == WAITING ->
            at[m] = REJECTED;
            in_flight[m] = false
        :: else
        fi;
        roll_if_drained();
        final_acks_acked ! m;
        m = 0
    }
    od
}

active proctype receives()
{
    byte m, id, n, previous;
end:
    do
    /* B-269 to B-273 */
    :: atomic {
        pending == 0 && nempty(messages) ->
        messages ? m, id, n, previous;
        if
#ifdef A15
        :: reject > 0 -> /* whatever its number is, and that is not looked at */
            reject--;
            pending = m;
            outcome = REFUSE;
            pending_id = in_id;
            pending_number = in_number;
            of_this_connection = true
        :: true
        fi;
        if
        :: pending != 0
#endif
        :: (id == in_id && n > in_number && previous <= in_number) || (id > in_id && previous == 0) ->
            pending = m;
            pending_id = id;
            pending_number = n;
            of_this_connection = true;
            if
            :: outcome = STORE
#ifndef A15
            :: reject > 0 -> reject--; outcome = REFUSE
#endif
            fi;
#ifdef ACK_EARLY
            received = (received + 1) % ROUND;
            owed = true
#endif
        :: else ->
#ifdef A01
            in_id = id;
            in_number = n;
#endif
            received = (received + 1) % ROUND;
            durable = (durable + 1) % ROUND;
#ifndef NO_ACK_OF_DUPLICATES
            owed = true
#endif
        fi;
        m = 0; id = 0; n = 0; previous = 0
    }
    /* B-098: in one step */
#ifdef TORN
    :: atomic { pending != 0 && !half_done -> half_done = true; FIRST_HALF() }
    :: atomic { pending != 0 && half_done -> half_done = false; SECOND_HALF(); now_durable() }
#else
    :: atomic { pending != 0 -> store_message(); store_place(); now_durable() }
#endif
    od
}

active proctype acknowledges()
{
    byte m, id, n;
end:
    do
    /* B-101, B-150 */
    :: atomic {
        received != told && nfull(session_acks) ->
        assert(received == durable); /* durable_first */
        session_acks ! received;
        told = received
    }
    /* an OrderAck does not overtake a FinalAck: it would settle what was rejected */
    :: atomic {
        owed && nfull(acks) && MAY_SEND_ORDER_ACK ->
        if
#ifdef ACK_EARLY
        :: pending != 0 -> id = pending_id; n = pending_number
#endif
        :: id = in_id; n = in_number /* B-358 */
        fi;
        for (m : 1 .. MSGS) {
            /* order_ack_durable: what it names is stored, or its FinalAck is */
            assert(!NUMBERED(m) || id != out_id || number[m] > n || stored[m] || final_ack[m] != 0)
        }
        if
        :: n > 0 -> acks ! ORDER_ACK, id, n
        :: else /* B-359 */
        fi;
        owed = false;
        m = 0; id = 0; n = 0
    }
    :: atomic {
        FINAL_ACK_TO_SEND && nfull(acks) ->
        for (m : 1 .. MSGS) {
            if
            :: final_ack[m] == 1 -> final_ack[m] = 2; acks ! FINAL_ACK, m, 0; break
            :: else
            fi
        }
        m = 0
    }
    :: atomic { final_acks_acked ? m -> final_ack[m] = 3; m = 0 }
    od
}

active proctype nature()
{
    byte k;
end:
    do
    :: atomic {
        fails > 0 ->
        fails--;
        if
        :: true /* one failure less */
        :: new_first_connection(); /* A-30: an OrderAck that is owed may wait for the next session, or not */
            if
            :: owed = false
            :: true
            fi
        :: new_second_connection()
        :: new_first_connection(); /* the sender crashes */
            new_second_connection();
#ifdef NUMBER_LATE
            for (k : 1 .. MSGS) {
                if
                :: number[k] >= saved_number -> number[k] = 0
                :: else
                fi
            }
            out_number = saved_number
#endif
        :: new_first_connection(); /* the receiver crashes */
            new_second_connection();
            owed = false;
#ifdef TORN
            half_done = false;
#endif
            forget_pending()
        fi;
        k = 0
    }
    /* B-314, B-316: any message that has no OrderAck yet, sent or not */
    :: atomic {
        expire > 0 ->
        expire--;
        if
        :: true
        :: at[1] == WAITING && !order_acked[1] -> at[1] = EXPIRED; in_flight[1] = false
        :: at[2] == WAITING && !order_acked[2] -> at[2] = EXPIRED; in_flight[2] = false
        :: at[3] == WAITING && !order_acked[3] -> at[3] = EXPIRED; in_flight[3] = false
        :: at[4] == WAITING && !order_acked[4] -> at[4] = EXPIRED; in_flight[4] = false
        :: at[5] == WAITING && !order_acked[5] -> at[5] = EXPIRED; in_flight[5] = false
        fi;
        roll_if_drained()
    }
    od
}
