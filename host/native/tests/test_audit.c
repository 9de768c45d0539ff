/* test_audit.c: mqqb_audit on rows made by hand: tables, numbers, acknowledgements, and what is missing. Generated captures of all
 * kinds are in tests/audit/test_audit_generated.py. */
#include "audit.h"

/* ---- counts -------------------------------------------------------------------------------------- */

static void test_a_clean_stream(void)
{
    const mqqb_audit_flow *f;

    start();
    for (uint32_t number = 1; number <= 10; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)session_ack(1, USUAL);
    now += 500 * MS;
    (void)order_ack(8, USUAL);
    (void)message(0, 0, WITH(.express = 1));
    (void)plain(END, 0, 0);
    (void)plain(END, 0, 1);
    CHECK_FOUND("");
    f = &a.flows[0];
    CHECK_EQ(a.flows_used, 1);
    CHECK_EQ(a.packets, 17);
    CHECK_EQ(counts_of(0).messages, 10);
    CHECK_EQ(counts_of(0).order_acked, 8);
    CHECK_EQ(counts_of(0).unsettled, 2);
    CHECK_EQ(f->connections, 1);
    CHECK(a.connections[0].established != 0);
    CHECK_EQ(a.connections[0].direction[0].owner, SENDER);
    CHECK_EQ(a.connections[0].direction[0].messages, 11);
    CHECK_EQ(a.connections[0].direction[0].recoverable, 10);
}

static void test_final_acks_by_class(void)
{
    start();
    for (uint32_t number = 1; number <= 6; number++) {
        (void)message(number, number - 1, WITH(.flags = number < 6 ? JN : 0, .tx_flags = number == 6 ? MQQB_TX_FA : 0));
    }
    (void)order_ack(6, USUAL);
    (void)final_ack(1, USUAL);
    (void)final_ack(2, WITH(.class = 0xC002));
    (void)final_ack(3, WITH(.class = 0x8003));
    (void)final_ack(4, WITH(.class = 0xC002));
    CHECK_FOUND("");
    CHECK_EQ(finals_of(0, 0x4000), 1);
    CHECK_EQ(finals_of(0, 0xC002), 2);
    CHECK_EQ(finals_of(0, 0x8003), 1);
    CHECK_EQ(counts_of(0).final_acked, 4);
    CHECK_EQ(counts_of(0).unsettled, 1);
}

static void test_the_receivers_rule(void)
{
    static const struct {
        uint32_t ordinal, number, previous, reason;
    } cases[] = {
        {2, 6, 5, MQQB_AUDIT_REJECTS},       {2, 5, 4, MQQB_AUDIT_DUPLICATE},    {2, 7, 6, MQQB_AUDIT_GAP},
        {2, 8, 5, MQQB_AUDIT_REJECTS},       {3, 1, 0, MQQB_AUDIT_REJECTS},      {3, 4, 0, MQQB_AUDIT_REJECTS},
        {3, 2, 1, MQQB_AUDIT_START_MISSING}, {1, 9, 0, MQQB_AUDIT_OLD_SEQUENCE},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        mqqb_audit_counts counts;
        start();
        for (uint32_t number = 1; number <= 5; number++) {
            (void)message(number, number - 1, WITH(.ordinal = 2));
        }
        (void)message(cases[k].number, cases[k].previous, WITH(.ordinal = cases[k].ordinal));
        CHECK_FOUND(cases[k].ordinal == 1 ? "I" : "");
        counts = counts_of(0);
        CHECK_EQ(counts.resends, cases[k].reason == MQQB_AUDIT_DUPLICATE);
        for (uint32_t reason = 0; reason < MQQB_AUDIT_REJECTS; reason++) {
            CHECK_EQ(counts.rejects[reason], reason == cases[k].reason);
        }
    }
}

/* ---- tables -------------------------------------------------------------------------------------- */

static void test_tables_grow(void)
{
    mqqb_audit_counts sum = {0};

    setup();
    for (uint32_t c = 0; c < 300; c++) {
        pair_of[c] = 2 * (c % 50);
        opened(c, 0, 0);
        for (uint32_t queue = 1; queue < 3; queue++) {
            for (uint32_t number = 1; number <= 2; number++) {
                (void)message(number, number - 1,
                              WITH(.connection = c, .source = 4 + c % 30, .queue = queue, .ordinal = 1 + c,
                                   .id = 10 * (c + 1) + 4 * queue + number));
            }
        }
        (void)plain(END, c, 1);
        (void)plain(END, c, 0);
        (void)plain(END, c, 0);
    }
    CHECK_FOUND("");
    CHECK_EQ(grown & ~(1u << MQQB_AUDIT_FINDINGS_FULL), 0x3E);
    CHECK_EQ(a.flows_used, 60);
    for (uint32_t flow = 0; flow < 60; flow++) {
        sum.messages += counts_of(flow).messages;
        CHECK_EQ(a.flows[flow].sequences, 10);
        CHECK_EQ(a.flows[flow].connections, 10);
    }
    CHECK_EQ(sum.messages, 1200);
    CHECK(a.flows_size < 128);
    for (uint32_t flow = 0; flow < 60; flow++) { /* all are found again under their key */
        for (uint32_t other = 0; other < flow; other++) {
            CHECK(memcmp(&a.flows[flow].key, &a.flows[other].key, sizeof a.flows[flow].key) != 0);
        }
    }
}

/* What leaves the index leaves no gap before others that belong at its place. An index that grows is made anew: the others are
 * asked for between. */
static void test_what_is_folded_hides_no_others(void)
{
    start();
    for (uint32_t k = 1; k <= 1500; k++) {
        (void)message(1, 0, WITH(.ordinal = k));
        (void)message(1, 0, WITH(.source = 10 + k, .ordinal = 1, .id = k));
        if (k > 30) {
            (void)order_ack(1, WITH(.host = 10 + k - 30, .ordinal = 1));
        }
    }
    CHECK_FOUND("");
    CHECK_EQ(stray_count, 0);
    CHECK(a.flows[0].kept < 80);
    for (uint32_t flow = 1; flow <= 1470; flow++) {
        CHECK_EQ(counts_of_one(flow), 1);
    }
}

static void test_slots_go_down_and_jump(void)
{
    start();
    (void)message(5000, 0, WITH(.old = 1));
    (void)message(4900, 0, WITH(.old = 1)); /* a block below */
    (void)message(3000, 0, WITH(.old = 1)); /* too far below */
    (void)message(3000, 0, WITH(.old = 1));
    (void)message(900000, 0, WITH(.old = 1)); /* so far above that nothing else is left */
    (void)message(5000, 0, WITH(.old = 1));
    (void)order_ack(900000, USUAL);
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).messages, 3);
    CHECK_EQ(counts_of(0).resends, 3);
    CHECK_EQ(counts_of(0).order_acked, 1);
}

static void test_what_is_asked_for_keeps_its_slot(void)
{
    start();
    for (uint32_t number = 1; number <= 500; number++) {
        (void)message(number, number - 1,
                      WITH(.tx_flags = number == 3 ? MQQB_TX_FA : 0, .flags = number == 200 ? JN : 0));
        (void)session_ack(1, USUAL);
        (void)order_ack(number, USUAL);
    }
    (void)final_ack(3, WITH(.id = 77)); /* is compared: it has its slot */
    (void)final_ack(200, USUAL);
    CHECK_FOUND("A");
    CHECK_EQ(counts_of(0).unsettled, 0);
}

static void test_numbers_far_from_those_with_slots(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1 + MQQB_AUDIT_BLOCK * MQQB_AUDIT_BLOCKS, USUAL);
    CHECK_FOUND("A");

    start();
    (void)message(1 + MQQB_AUDIT_BLOCK * MQQB_AUDIT_BLOCKS, 0, WITH(.old = 1));
    (void)final_ack(1, USUAL);
    CHECK_FOUND("");
}

static void test_a_new_index_without_what_is_folded(void)
{
    start();
    for (uint32_t ordinal = 1; ordinal <= 40; ordinal++) {
        (void)message(1, 0, WITH(.ordinal = ordinal));
    }
    for (uint32_t ordinal = 1; ordinal <= 40; ordinal++) {
        (void)order_ack(1, WITH(.ordinal = ordinal));
    }
    (void)message(1, 0, WITH(.ordinal = 41));
    for (uint32_t k = 0; k < 8; k++) {
        (void)message(1, 0, WITH(.queue = 10 + k, .ordinal = 50 + k));
    }
    (void)order_ack(1, WITH(.ordinal = 41));
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).order_acked, 41);
    CHECK_EQ(stray_count, 0);
    CHECK(a.flows[0].kept < 20);
}

static void test_connections_that_are_passed_over(void)
{
    setup();
    pair_of[1] = 0xFFFFFFFF;
    opened(0, 0, SENDER);
    opened(1, 0, OTHER);
    (void)message(1, 0, WITH(.connection = 1, .source = OTHER));
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 1);
    CHECK_EQ(a.packets, 5);

    start(); /* another protocol, whatever comes then */
    (void)plain(FOREIGN, 0, 0);
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");
    (void)plain(FOREIGN, 0, 1);
    (void)plain(END, 0, 0);
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 0);
    CHECK_EQ(a.foreign, 1);
    CHECK_EQ(a.connections[0].direction[0].ended, 1);
}

/* ---- numbers and MessageIDs ---------------------------------------------------------------------- */

static void test_renumbered(void)
{
    uint32_t shown, again;

    start();
    shown = message(1, 0, WITH(.id = 500));
    again = message(1, 0, WITH(.id = 501));
    (void)message(1, 0, WITH(.id = 502)); /* said once */
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);
    CHECK_EQ(found[0].a, 500);
    CHECK_EQ(found[0].b, 501);
    CHECK_EQ(a.flows[0].violations[MQQB_AUDIT_RENUMBERED], 1);

    start();
    shown = message(1, 0, WITH(.id = 500));
    (void)message(2, 1, WITH(.id = 501));
    again = message(3, 2, WITH(.id = 500));
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);

    start();
    shown = message(1, 0, WITH(.id = 500));
    (void)message(1, 0, WITH(.ordinal = 2, .id = 510));
    again = message(2, 1, WITH(.ordinal = 2, .id = 500)); /* under a new sequence */
    (void)message(3, 2, WITH(.ordinal = 2, .id = 499));   /* lower, but no other's */
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);

    start();
    shown = message(1, 0, WITH(.id = 500));
    again = message(1, 0, WITH(.ordinal = 2, .id = 500)); /* under the same number of another one */
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);

    start();
    (void)message(1, 0, WITH(.id = 500));
    (void)message(1, 0,
                  WITH(.queue = SECOND_QUEUE, .ordinal = 2, .id = 500)); /* of another stream nothing is compared */
    CHECK_FOUND("");
}

static void test_a_renumbered_message_has_no_other_verdicts(void)
{
    start();
    (void)message(1, 0, WITH(.id = 500));
    (void)message(1, 0, WITH(.id = 501));
    (void)final_ack(1, WITH(.id = 501));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, WITH(.id = 501)); /* which of the two was settled? */
    CHECK_FOUND("R");
}

static void test_id_went_back(void)
{
    uint32_t shown, wrong;

    start_two();
    shown = message(1, 0, WITH(.ordinal = 2));
    wrong = message(1, 0, WITH(.ordinal = 1));
    (void)message(2, 1, WITH(.ordinal = 1));                  /* once for a connection */
    (void)message(2, 1, WITH(.ordinal = 1, .connection = 1)); /* as old as the one that had the higher sequence */
    opened(2, 0, SENDER);
    (void)message(3, 2, WITH(.ordinal = 1, .connection = 2));
    opened(3, 0, SENDER);
    (void)message(2, 1, WITH(.ordinal = 2, .connection = 1));
    (void)message(4, 3, WITH(.ordinal = 1, .connection = 1)); /* carried the higher one last */
    CHECK_FOUND("III");
    CHECK_SHOWN(0, shown, wrong);
    CHECK_EQ(found[0].a, 2);
    CHECK_EQ(found[0].b, FIRST);

    start();
    (void)message(1, 0, WITH(.ordinal = 2));
    (void)plain(OLDER, 1, 0);
    (void)plain(OLDER, 1, 1);
    (void)message(1, 0, WITH(.ordinal = 1, .connection = 1)); /* of a connection whose begin is not known */
    CHECK_FOUND("");

    start();
    (void)message(1, 0, USUAL);
    (void)message(2, 1, WITH(.ordinal = 2)); /* its start is missing, so the receiver has not gone on to it */
    (void)message(2, 1, USUAL);
    CHECK_FOUND("I");
    CHECK_EQ(counts_of(0).rejects[MQQB_AUDIT_OLD_SEQUENCE], 0);

    start();
    (void)message(1, 0, WITH(.ordinal = 2));
    (void)plain(BEGIN, 1, 0);
    (void)message(2, 1, WITH(.ordinal = 2, .connection = 1));
    (void)message(1, 0, USUAL); /* the connection that had the higher one first */
    CHECK_FOUND("I");

    start();
    (void)message(1, 0, WITH(.ordinal = 5));
    (void)message(1, 0, WITH(.ordinal = 4, .stamp = FIRST + 1)); /* a later time stamp counts more */
    (void)message(1, 0, WITH(.ordinal = 9));
    CHECK_FOUND("I");
}

/* Connection 0 is as old as connection 1, which has the higher sequence. */
static void test_a_lower_sequence_on_an_older_connection(void)
{
    enum { PROVEN, NOT_ACKED, ACKED_ELSEWHERE, SHOWN_ELSEWHERE, NOT_SHOWN, SHOWN_BEFORE, FORWARDED, CASES };
    const char *const expected[CASES] = {[PROVEN] = "I"};

    for (uint32_t k = 0; k < CASES; k++) {
        const uint32_t hops = k == FORWARDED, elsewhere = k == ACKED_ELSEWHERE;
        uint32_t answer = 0, shown = 0, wrong;
        start_two();
        (void)message(1, 0, WITH(.flags = hops));
        (void)message(1, 0, WITH(.ordinal = 2, .connection = 1, .flags = hops));
        if (k == SHOWN_BEFORE) {
            (void)session_ack(0, USUAL);
        }
        if (k != NOT_ACKED) {
            answer = order_ack(1, WITH(.ordinal = 2, .connection = elsewhere));
        }
        if (elsewhere || k == SHOWN_ELSEWHERE) {
            (void)session_ack(0, WITH(.connection = 1));
        }
        if (!elsewhere && k != SHOWN_ELSEWHERE && k != NOT_SHOWN && k != SHOWN_BEFORE) {
            shown = session_ack(0, USUAL);
        }
        wrong = message(2, 1, WITH(.flags = hops));
        (void)message(3, 2, WITH(.flags = hops)); /* once for a connection */
        CHECK_FOUND(expected[k] == NULL ? "" : expected[k]);
        if (k == PROVEN) {
            CHECK_SHOWN(0, answer, shown, wrong);
            CHECK_EQ(found[0].ordinal, 1);
            CHECK_EQ(found[0].number, 2);
            CHECK_EQ(found[0].a, 2);
        }
    }

    start_two(); /* not the highest one */
    (void)message(1, 0, USUAL);
    (void)message(1, 0, WITH(.ordinal = 2, .connection = 1));
    (void)order_ack(1, WITH(.ordinal = 2));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, WITH(.ordinal = 3, .connection = 1));
    (void)message(2, 1, USUAL);
    CHECK_FOUND("I");
    CHECK_EQ(found[0].a, 2);

    start(); /* what waits where it is forwarded */
    (void)message(1, 0, WITH(.ordinal = 2, .flags = 1));
    (void)message(1, 0, WITH(.ordinal = 1, .flags = 1));
    opened(1, 0, SENDER);
    (void)message(2, 1, WITH(.ordinal = 1, .flags = 1, .connection = 1));
    CHECK_FOUND("");
}

/* ---- acknowledgements of messages ---------------------------------------------------------------- */

static void test_ack_beyond_receipt(void)
{
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t shown, wrong;
        start();
        shown = message(1, 0, USUAL);
        wrong = k == 0 ? order_ack(2, USUAL) : final_ack(2, USUAL);
        (void)order_ack(2, USUAL);  /* said once */
        (void)message(2, 1, USUAL); /* only now: that justifies nothing */
        CHECK_FOUND("A");
        CHECK_SHOWN(0, shown, wrong);
        CHECK_EQ(found[0].number, 2);
        CHECK_EQ(found[0].a, 1);

        start();
        (void)message(1, 0, WITH(.old = 1)); /* greater ones may be older than the capture */
        (void)(k == 0 ? order_ack(2, USUAL) : final_ack(2, USUAL));
        CHECK_FOUND("a");
        CHECK_EQ(a.flows[0].unknowns[MQQB_AUDIT_ACK_BEYOND_RECEIPT], 1);

        start();
        (void)message(5, 4, USUAL);
        (void)(k == 0 ? order_ack(4, USUAL) : final_ack(4, USUAL)); /* was before */
        CHECK_FOUND("");
    }
}

/* A sequence that began within the capture. */
static uint32_t begin_second(void)
{
    start();
    (void)message(1, 0, USUAL);
    return message(1, 0, WITH(.ordinal = 2));
}

static uint32_t ack(uint32_t final, what w)
{
    return final ? final_ack(1, w) : order_ack(1, w);
}

static void test_an_ack_of_a_sequence_that_was_not_sent(void)
{
    for (uint32_t final = 0; final < 2; final++) {
        uint32_t shown = begin_second(), wrong;
        (void)message(1, 0, WITH(.ordinal = 3)); /* began later, and so tells less */
        wrong = ack(final, WITH(.ordinal = 4, .own_id = 70));
        (void)ack(final, WITH(.ordinal = 4, .own_id = 70)); /* said once */
        (void)ack(final, WITH(.ordinal = 9));
        (void)message(1, 0, WITH(.ordinal = 4)); /* only now: that justifies nothing */
        CHECK_FOUND("AA");
        CHECK_SHOWN(0, shown, wrong);
        CHECK_EQ(found[0].detail, final ? MQQB_AUDIT_FINAL_ACK_STRAY : MQQB_AUDIT_ORDER_ACK_STRAY);
        CHECK_EQ(found[0].flow, 1);
        CHECK_EQ(found[0].ordinal, 4);
        CHECK_EQ(found[0].time_stamp, FIRST);
        CHECK_EQ(found[0].number, 1);
        CHECK_EQ(found[0].a, 2);
        CHECK_EQ(found[0].b, FIRST);
        CHECK_EQ(a.flows[0].violations[MQQB_AUDIT_ACK_BEYOND_RECEIPT], 2);

        (void)begin_second(); /* another stream: its sequences count too */
        (void)message(1, 0, WITH(.ordinal = 4, .queue = SECOND_QUEUE));
        (void)ack(final, WITH(.ordinal = 3));
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("A");
    }
}

static void test_an_ack_of_a_sequence_that_may_have_been_sent(void)
{
    for (uint32_t final = 0; final < 2; final++) {
        start();
        (void)message(1, 0, USUAL);
        (void)ack(final, WITH(.ordinal = 4)); /* may be of another queue, from before the capture */
        CHECK_FOUND("");

        start();
        (void)message(1, 0, WITH(.ordinal = 3));
        (void)message(1, 0, WITH(.ordinal = 5));
        (void)ack(final, WITH(.ordinal = 4)); /* as above */
        (void)ack(final, WITH(.ordinal = 2));
        (void)ack(final, WITH(.ordinal = 9, .stamp = FIRST - 1));
        CHECK_FOUND("");

        (void)begin_second();
        (void)ack(final, WITH(.ordinal = 4, .stamp = FIRST + 1)); /* a queue's that counts by itself */
        (void)ack(final, WITH(.ordinal = 4, .stamp = FIRST + 1));
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("aA");

        start(); /* the first one may have been sent before the capture, and came late; so may those that followed */
        (void)message(1, 0, WITH(.old = 1));
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("");

        start(); /* what followed on one that began within the capture, did so too */
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)plain(HOLE, 0, 0);
        (void)message(2, 1, WITH(.ordinal = 2, .old = 1));
        (void)message(1, 0, WITH(.ordinal = 3, .old = 1));
        (void)ack(final, WITH(.ordinal = 4)); /* in the hole? */
        CHECK_FOUND("a");

        (void)begin_second();
        (void)plain(HOLE, 0, 0);
        (void)message(2, 1, WITH(.ordinal = 2, .sent_time = START + 1));
        (void)message(1, 0, WITH(.ordinal = 3));
        (void)ack(final, WITH(.ordinal = 4)); /* not in the hole: began later */
        CHECK_FOUND("A");
        CHECK_EQ(found[0].a, 3);

        setup(); /* the same on another way, which it takes then */
        pair_of[1] = 2;
        opened(0, 0, SENDER);
        opened(1, 0, SENDER);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)message(2, 1, WITH(.ordinal = 2, .old = 1, .connection = 1));
        (void)ack(final, WITH(.ordinal = 4, .connection = 1)); /* there none has begun yet */
        (void)message(1, 0, WITH(.ordinal = 3, .old = 1, .connection = 1));
        (void)ack(final, WITH(.ordinal = 5, .connection = 1));
        CHECK_FOUND("A");
        CHECK_EQ(found[0].a, 3);

        (void)begin_second();
        (void)plain(BEGIN, 1, 0);
        (void)plain(HOLE, 1, 0); /* of an unknown sender of the same host */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("a");

        start();
        (void)message(1, 0, WITH(.flags = 1));
        (void)message(1, 0, WITH(.flags = 1, .ordinal = 2)); /* forwarded: other streams may take other ways */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("");

        (void)begin_second();
        (void)message(2, 1, WITH(.ordinal = 2, .sent_time = START + 100)); /* its clock is ahead */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("");

        (void)begin_second();
        (void)ack(final, WITH(.ordinal = 4, .source = OTHER, .host = OTHER));
        CHECK_FOUND("");

        (void)begin_second();
        (void)message(1, 0, WITH(.source = OTHER)); /* the sender forwards for it: an OrderAck may be for either */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND(final ? "A" : "");
    }
}

/* The sender has begun another connection, and the one before went silent: what was sent there last may be missing. */
static void test_a_connection_whose_end_was_not_seen(void)
{
    for (unsigned seen = 0; seen < 2; seen++) {
        for (unsigned kind = 0; kind < 3; kind++) {
            start();
            (void)message(1, 0, USUAL);
            if (kind > 0) {
                (void)message(kind == 1 ? 4 : 1, kind == 1 ? 3 : 0, WITH(.ordinal = kind));
            }
            if (seen) {
                (void)plain(END, 0, 0);
            }
            opened(1, 0, SENDER);
            (void)order_ack(kind == 2 ? 1 : 4, WITH(.connection = 1, .ordinal = kind == 2 ? 3 : 1));
            CHECK_FOUND(kind == 1 ? seen ? "S" : "s" : seen ? "A" : "a");
        }
    }
    start(); /* the other one has its ports, which is all that tells of its end */
    (void)message(1, 0, USUAL);
    row(END, 0, 0);
    S(STATUS) = MQQB_END_REPLACED;
    rows++;
    now -= MS;
    opened(1, 0, SENDER);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("a");
    /* From another address: 0: to the same peer, 1: to another, 2: by another, 3: to the same, and then one to another. 4: from the same
     * address, and the answer is not there. */
    for (uint32_t k = 0; k < 5; k++) {
        start();
        pair_of[1] = k == 4 ? 0 : 2;
        pair_of[2] = 4;
        (void)message(1, 0, USUAL);
        opened(1, 0, k == 2 ? OTHER : SENDER);
        column[MQQB_CAPTURE_SERVER_GUID][rows - 3] = k == 1 ? OTHER : k == 4 ? 0 : RECEIVER;
        if (k == 3) {
            opened(2, 0, SENDER);
            column[MQQB_CAPTURE_SERVER_GUID][rows - 3] = OTHER;
        }
        (void)order_ack(4, USUAL);
        CHECK_FOUND(k == 0 || k >= 3 ? "a" : "A");
    }
    start(); /* all of it has the same time */
    now -= 5 * MS;
    (void)message(1, 0, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("A");
    start_two(); /* it goes on */
    (void)message(1, 0, USUAL);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("A");
    setup(); /* the receiver had opened it */
    opened(0, 1, SENDER);
    (void)message(1, 0, WITH(.direction = 1, .source = SENDER));
    opened(1, 0, SENDER);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("A");
    opened(2, 1, SENDER);
    (void)order_ack(5, WITH(.connection = 1));
    CHECK_FOUND("Aa");
}

static void test_an_ack_of_a_sequence_that_is_not_kept(void)
{
    start();
    for (uint32_t ordinal = 101; ordinal <= 140; ordinal++) {
        (void)message(1, 0, WITH(.ordinal = ordinal));
        (void)order_ack(1, WITH(.ordinal = ordinal));
        (void)message(1, 0, WITH(.ordinal = ordinal - 100, .queue = SECOND_QUEUE));
        (void)order_ack(1, WITH(.ordinal = ordinal - 100));
    }
    (void)final_ack(1, WITH(.ordinal = 105)); /* was seen, and is forgotten */
    (void)final_ack(1, WITH(.ordinal = 200));
    CHECK_FOUND("A");
    CHECK_EQ(found[0].ordinal, 200);
    CHECK_EQ(stray_count, 2);
}

static void test_a_number_that_was_left_out(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)message(3, 1, USUAL);
    (void)order_ack(2, USUAL);
    CHECK_FOUND("A");

    start();
    (void)message(1, 0, WITH(.old = 1));
    (void)message(3, 1, WITH(.old = 1));
    (void)order_ack(2, USUAL);
    (void)message(2, 1, WITH(.old = 1));
    CHECK_FOUND("a");
    CHECK_EQ(counts_of(0).order_acked, 2);

    start();
    for (uint32_t number = 1; number <= 3000; number++) {
        (void)message(number, number - 1, WITH(.old = 1));
    }
    (void)order_ack(7, USUAL); /* has no slot any more */
    CHECK_FOUND("");
}

static void test_a_final_ack_for_another_message(void)
{
    uint32_t shown, wrong, again;

    start();
    shown = message(1, 0, USUAL);
    wrong = final_ack(1, WITH(.id = 77));
    (void)final_ack(1, WITH(.id = 78));
    again = message(1, 0, WITH(.id = 77));
    CHECK_FOUND("AR");
    CHECK_SHOWN(0, shown, wrong);
    CHECK_EQ(found[0].detail, MQQB_AUDIT_FINAL_ACK_OTHER);
    CHECK_SHOWN(1, shown, again);

    start();
    (void)message(1, 0, WITH(.old = 1));
    (void)final_ack(1, WITH(.id = 77));
    (void)message(5, 4, USUAL); /* now it is certain, but only from here on */
    (void)message(2, 1, WITH(.old = 1));
    (void)final_ack(2, WITH(.id = 77));
    CHECK_FOUND("aa");
}

static void test_skipped(void)
{
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t shown, wrong;
        start();
        (void)message(1, 0, USUAL);
        shown = message(3, 2, USUAL);
        wrong = k == 0 ? order_ack(3, USUAL) : final_ack(3, USUAL);
        (void)message(4, 3, USUAL);
        (void)order_ack(4, USUAL);
        CHECK_FOUND("S");
        CHECK_SHOWN(0, shown, wrong);
        CHECK_EQ(found[0].a, 1);
        CHECK_EQ(found[0].b, 2);

        start();
        (void)message(1, 0, USUAL);
        (void)message(3, 2, USUAL);
        (void)final_ack(3, WITH(.class = 0x8003)); /* rejected: says nothing of the order */
        CHECK_FOUND("");
    }

    start(); /* said once: what follows on it is accepted */
    (void)message(1, 0, USUAL);
    (void)message(3, 2, USUAL);
    (void)message(4, 3, USUAL);
    (void)order_ack(3, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("S");
}

static void test_out_of_order(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)message(3, 2, USUAL);
    (void)message(2, 1, USUAL);
    (void)message(4, 3, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("S");

    start();
    (void)message(1, 0, USUAL);
    (void)message(3, 2, USUAL);
    (void)message(2, 1, USUAL);
    (void)message(3, 2, USUAL); /* sent again */
    (void)order_ack(3, USUAL);
    CHECK_FOUND("");

    start_two();
    (void)message(1, 0, USUAL);
    (void)message(3, 2, WITH(.connection = 1)); /* which of two connections was faster is not known */
    (void)message(2, 1, USUAL);
    (void)order_ack(3, USUAL);
    CHECK_FOUND("");

    start_two();
    (void)message(1, 0, USUAL);
    (void)message(4, 3, WITH(.connection = 1));
    (void)message(2, 1, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("S");
}

static void test_sure_again_after_a_hole(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 0);
    (void)message(5, 4, USUAL);
    (void)final_ack(3, USUAL);
    CHECK_FOUND("a");

    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 0);
    now += SECOND;
    (void)message(6, 5, USUAL); /* handed over since: all from it on is seen */
    (void)order_ack(6, USUAL);
    (void)order_ack(7, USUAL);
    CHECK_FOUND("A");

    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 0);
    now += SECOND;
    (void)message(9, 8, USUAL);
    (void)message(6, 1, USUAL);
    for (uint32_t number = 7; number < 9; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(9, USUAL);
    CHECK_FOUND("");
}

static void test_a_clock_that_is_ahead(void)
{
    start();
    (void)message(5, 0, WITH(.sent_time = START + 100));
    now += 3 * SECOND;
    (void)message(2, 0, WITH(.sent_time = START + 2));
    (void)order_ack(4, USUAL);
    CHECK_FOUND("a");
}

static void test_a_new_sequence_is_seen_from_its_beginning(void)
{
    start();
    (void)message(8, 7, WITH(.old = 1));
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
    (void)order_ack(2, WITH(.ordinal = 2));
    CHECK_FOUND("A");

    for (uint32_t k = 0; k < 2; k++) { /* who forwards may send a message again, whose source has gone on long ago */
        start();
        (void)message(8, 7, WITH(.old = k, .flags = 1));
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .flags = 1));
        (void)order_ack(2, WITH(.ordinal = 2));
        CHECK_FOUND(k == 0 ? "A" : "a");
    }

    start();
    (void)message(8, 7, WITH(.old = 1));
    (void)plain(HOLE, 0, 0);
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
    (void)order_ack(2, WITH(.ordinal = 2));
    CHECK_FOUND("a");

    setup();
    pair_of[1] = 2; /* to another host of the same queue manager */
    opened(0, 0, SENDER);
    opened(1, 0, SENDER);
    (void)message(8, 7, WITH(.old = 1));
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .connection = 1));
    (void)order_ack(2, WITH(.ordinal = 2));
    CHECK_FOUND("a");

    for (uint32_t k = 0; k < 2; k++) { /* what an older connection brings may be late, behind a new sequence */
        setup();
        (void)plain(OLDER, 0, 0);
        now += SECOND;
        (void)message(8, 7, WITH(.old = k));
        (void)message(2, 1, WITH(.ordinal = 2));
        (void)order_ack(2, WITH(.ordinal = 2));
        CHECK_FOUND(k == 0 ? "S" : "");
    }
}

/* ---- what may have been missed ------------------------------------------------------------------- */

static void test_an_older_connection_does_not_say_who_opened_it(void)
{
    setup();
    (void)plain(OLDER, 0, 0);
    row(EST, 0, 0);
    K(CLIENT_GUID) = SENDER;
    rows++;
    finish();
    CHECK_EQ(a.connections[0].direction[0].owner, 0);
    CHECK_EQ(a.connections[0].begun, 0);
}

static void test_another_establish_connection_begins_other_counts(void)
{
    for (uint32_t k = 0; k < 2; k++) {
        start();
        (void)message(1, 0, USUAL);
        (void)plain(HOLE, 0, 0);
        if (k == 1) { /* its SYNs were not captured */
            (void)plain(EST, 0, 0);
        }
        (void)session_ack(0, WITH(.ack = 5));
        CHECK_FOUND(k == 0 ? "Ac" : "ac");
    }
}

static void test_a_hole_makes_unsure(void)
{
    static const uint32_t kinds[] = {HOLE, OLDER, MALFORMED};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        start();
        (void)message(1, 0, USUAL);
        (void)plain(kinds[k], 0, 0);
        (void)plain(kinds[k], 0, 0);
        (void)order_ack(2, USUAL);
        CHECK_FOUND("a");
        CHECK_EQ(a.holes, k == 0 ? 2 : 0);
        CHECK_EQ(a.malformed, k == 2 ? 2 : 0);
        CHECK_EQ(a.connections[0].direction[0].holes, k == 0 ? 2 : 0);
        CHECK(k != 0 || a.connections[0].direction[0].first_hole < a.connections[0].direction[0].last_hole);
    }
    for (uint32_t k = 0; k < 2; k++) { /* of the sender; of its host, nobody knows whose */
        start();
        (void)plain(BEGIN, 1, 0);
        (void)message(1, 0, USUAL);
        now += 5 * SECOND;
        (void)plain(HOLE, k, 0);
        (void)message(2, 1, WITH(.sent_time = START + 2)); /* handed over before the hole */
        (void)order_ack(3, USUAL);
        CHECK_FOUND("a");
    }
    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 1); /* of the other direction */
    (void)order_ack(2, USUAL);
    CHECK_FOUND("A");
}

static void test_another_pair_of_hosts(void)
{
    setup();
    pair_of[1] = pair_of[2] = 2;
    opened(0, 0, SENDER);
    opened(1, 0, SENDER);
    (void)plain(BEGIN, 2, 0);
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 2, 0); /* of the other pair, of nobody in particular */
    (void)order_ack(2, USUAL);
    (void)message(3, 2, WITH(.connection = 1, .old = 1)); /* now it concerns the sequence too */
    (void)order_ack(5, WITH(.connection = 1));
    CHECK_FOUND("Aa");
    CHECK_EQ(a.flows[0].connections, 2);

    setup();
    pair_of[1] = 2;
    opened(0, 0, SENDER);
    opened(1, 0, SENDER);
    (void)message(1, 0, USUAL);
    (void)message(2, 1, WITH(.connection = 1));
    (void)order_ack(5, WITH(.connection = 1));
    CHECK_FOUND("A");

    for (uint32_t k = 0; k < 3; k++) { /* a hole of the same sender's, to other hosts */
        start();
        pair_of[1] = 2;
        opened(1, 0, SENDER);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2));
        (void)plain(HOLE, 1, 0);
        if (k == 1) {
            (void)message(2, 1, WITH(.ordinal = 2, .sent_time = START)); /* handed over before it */
        }
        (void)order_ack(5, WITH(.ordinal = k == 2 ? 7 : 2));
        CHECK_FOUND("a");
    }
}

#define FORWARDED(...) WITH(.source = OTHER, .flags = 1, __VA_ARGS__)

static void test_a_hole_of_a_forwarder(void)
{
    enum { SECOND_FORWARDER = 4 };

    for (uint32_t k = 0; k < 3; k++) {
        start();
        pair_of[1] = 2; /* it has a second address */
        opened(1, 0, SENDER);
        (void)message(1, 0, FORWARDED(0));
        (void)plain(k < 2 ? HOLE : BEGIN, 1, 0);
        if (k == 1) {
            (void)message(2, 1, FORWARDED(.sent_time = START)); /* handed over before it */
        }
        (void)final_ack(5, WITH(.source = OTHER));
        CHECK_FOUND(k < 2 ? "a" : "A");
    }

    for (uint32_t k = 0; k < 2; k++) { /* another one has the next message */
        start();
        pair_of[1] = 2;
        opened(1, 0, SECOND_FORWARDER);
        (void)message(1, 0, FORWARDED(0));
        (void)message(1, 0, FORWARDED(.queue = SECOND_QUEUE, .connection = 1));
        (void)plain(HOLE, 1, 0);
        if (k == 1) {
            (void)message(2, 1, FORWARDED(.sent_time = START));
        }
        (void)final_ack(5, WITH(.source = OTHER));
        CHECK_FOUND("aa");
    }

    for (uint32_t k = 0; k < 2; k++) { /* another one takes its place */
        start();
        pair_of[2] = 2;
        opened(1, 0, SECOND_FORWARDER);
        opened(2, 0, SECOND_FORWARDER);
        (void)plain(HOLE, 0, 0); /* before its first message */
        now += SECOND;
        (void)message(1, 0, FORWARDED(0));
        (void)plain(k == 0 ? HOLE : BEGIN, 2, 0);
        (void)message(2, 1, FORWARDED(.connection = 1, .old = 1));
        (void)final_ack(5, WITH(.source = OTHER));
        CHECK_FOUND(k == 0 ? "a" : "A");
    }

    start_two();
    opened(2, 0, SECOND_FORWARDER);
    (void)message(8, 7, FORWARDED(0));
    (void)message(1, 0, FORWARDED(.ordinal = 2, .old = 1, .connection = 2)); /* may not be the first there */
    (void)final_ack(2, WITH(.ordinal = 2, .source = OTHER));
    CHECK_FOUND("a");
}

static void start_with_a_gap(uint32_t kind)
{
    start();
    pair_of[2] = 4;
    (void)plain(kind, 2, 0); /* between other hosts */
    now += SECOND;
}

/* Its last packets may have been messages, also if the sender has gone on in the next connection. */
static void test_a_connection_without_an_end_and_the_next(void)
{
    enum { NO_END, OTHER_ADDRESS, ENDED, STILL_USED, OTHER_PEER, NO_GAP, HANDED_OVER_LATER, CASES };

    for (uint32_t k = 0; k < CASES; k++) {
        start_with_a_gap(k == NO_GAP ? BEGIN : HOLE);
        (void)message(1, 0, USUAL);
        (void)plain(k == ENDED ? END : CP, 0, 0);
        pair_of[1] = k == OTHER_ADDRESS || k == OTHER_PEER ? 2 : 0;
        (void)plain(BEGIN, 1, 0);
        (void)plain(k == STILL_USED ? CP : BEGIN, k != STILL_USED, 0);
        opened(1, 0, SENDER);
        column[MQQB_CAPTURE_SERVER_GUID][rows - 3] = k == OTHER_PEER ? OTHER : RECEIVER;
        (void)message(1, 0, WITH(.connection = 1, .old = k != HANDED_OVER_LATER));
        (void)final_ack(2, WITH(.connection = 1)); /* of a last message of the first connection? */
        CHECK_FOUND(k <= OTHER_ADDRESS ? "a" : "A");
    }

    for (uint32_t k = 0; k < 2; k++) {
        start_with_a_gap(HOLE);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)plain(k == 0 ? CP : END, 0, 0);
        opened(1, 0, SENDER);
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .connection = 1));
        (void)final_ack(1, WITH(.ordinal = 3, .connection = 1)); /* a sequence that began there? */
        CHECK_FOUND(k == 0 ? "a" : "A");
    }

    for (uint32_t k = 0; k < 2; k++) { /* that began there, and whose first messages are acknowledged? */
        start_with_a_gap(HOLE);
        (void)message(1, 0, USUAL);
        (void)plain(k == 0 ? CP : END, 0, 0);
        opened(1, 0, SENDER);
        (void)message(3, 0, WITH(.ordinal = 2, .old = 1, .connection = 1));
        (void)final_ack(4, WITH(.ordinal = 2, .connection = 1));
        CHECK_FOUND(k == 0 ? "a" : "A");
    }

    start_with_a_gap(HOLE); /* used again after the next has begun, then left for a third */
    (void)message(1, 0, USUAL);
    opened(1, 0, SENDER);
    (void)message(2, 1, USUAL);
    opened(3, 0, SENDER);
    (void)final_ack(3, WITH(.connection = 3));
    CHECK_FOUND("a");

    for (uint32_t k = 0; k < 3;
         k++) { /* handed over before the next one began: of the sequence, of a new one, of neither */
        start_with_a_gap(HOLE);
        (void)message(1, 0, USUAL);
        now += 5 * SECOND;
        opened(1, 0, SENDER);
        (void)message(2, 1, WITH(.connection = 1, .sent_time = START + 3));
        if (k > 0) {
            (void)message(1, 0, WITH(.ordinal = 2, .connection = 1, .sent_time = START + 3, .old = k == 2));
        }
        (void)final_ack(3, WITH(.ordinal = k > 0 ? 2 : 1, .connection = 1));
        CHECK_FOUND("a");
    }

    start_with_a_gap(HOLE); /* a new sequence in place of the one before, of which nothing comes again */
    (void)message(1, 0, USUAL);
    opened(1, 0, SENDER);
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .connection = 1));
    (void)final_ack(1, WITH(.ordinal = 3, .connection = 1));
    CHECK_FOUND("");

    start_with_a_gap(HOLE); /* all of it is after the connection without an end */
    (void)message(1, 0, USUAL);
    opened(1, 0, SENDER);
    (void)message(2, 1, WITH(.connection = 1));
    (void)plain(END, 1, 0);
    opened(3, 0, SENDER);
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .connection = 3));
    (void)final_ack(2, WITH(.ordinal = 2, .connection = 3));
    CHECK_FOUND("A");

    start_with_a_gap(HOLE); /* it skips a number: the message may have been there */
    (void)message(1, 0, USUAL);
    opened(1, 0, SENDER);
    (void)message(3, 2, WITH(.old = 1, .connection = 1));
    (void)order_ack(3, WITH(.connection = 1));
    CHECK_FOUND("s");

    for (uint32_t k = 0; k < 2; k++) { /* too many connections ago? */
        start();
        (void)message(1, 0, USUAL);
        for (uint32_t c = 1; c < MQQB_AUDIT_EARLIER + k; c++) {
            opened(c, 0, SENDER);
            (void)plain(END, c, 0);
        }
        (void)final_ack(2, WITH(.connection = 1));
        CHECK_FOUND(k == 0 ? "a" : "A");
    }

    start_two(); /* its successor makes unsure only once */
    (void)plain(HOLE, 0, 0);
    (void)message(1, 0, USUAL);
    opened(2, 0, SENDER);
    (void)message(1, 0, WITH(.connection = 2));
    (void)plain(END, 2, 0);
    opened(3, 0, SENDER);
    (void)message(1, 0, WITH(.connection = 3, .old = 1));
    (void)final_ack(2, WITH(.connection = 3));
    CHECK_FOUND("A");
}

static void test_an_interrupted_capture(void)
{
    start();
    (void)message(1, 0, USUAL);
    give();
    mqqb_audit_interrupted(&a, now + SECOND);
    (void)order_ack(2, USUAL);
    CHECK_FOUND("a");

    setup();
    mqqb_audit_interrupted(&a, now + 5 * SECOND); /* before its source was known */
    now += 6 * SECOND;
    opened(0, 0, SENDER);
    (void)message(1, 0, WITH(.sent_time = START + 2));
    (void)order_ack(2, USUAL);
    CHECK_FOUND("a");

    start(); /* what it sent in the meantime may be acknowledged */
    (void)message(1, 0, USUAL);
    give();
    mqqb_audit_interrupted(&a, now + SECOND);
    (void)message(2, 1, WITH(.old = 1));
    (void)session_ack(1, WITH(.ack = 5));
    CHECK_FOUND("ac");

    start();
    (void)plain(BEGIN, 2, 0);
    give();
    mqqb_audit_interrupted(&a, now);
    (void)plain(BEGIN, 1, 0); /* only now */
    (void)session_ack(1, WITH(.ack = 5, .connection = 1));
    CHECK_FOUND("A");
}

/* ---- what comes late ----------------------------------------------------------------------------- */

/* What comes late makes unsure what was found since the rows before: of the connection's sources, and of its hosts. */
static void test_what_comes_late_withdraws(void)
{
    for (uint32_t k = 0; k < 3; k++) {
        int64_t since;
        start_two();
        (void)message(1, 0, USUAL);
        since = now;
        (void)order_ack(2, WITH(.connection = 1));
        if (k == 1) {
            (void)message(2, 1, USUAL); /* so nothing of the direction was on its way when the OrderAck came */
        }
        now += 2 * SECOND;
        (void)plain(k == 2 ? MALFORMED : HOLE, 0, 0);
        CHECK_FOUND(k == 1 ? "A" : "A!");
        if (k != 1) {
            CHECK_EQ(found[1].detail, MQQB_AUDIT_LATE);
            CHECK_EQ(found[1].a, SENDER);
            CHECK_EQ(found[1].packet[0].time, since);
        }
    }

    start();
    (void)message(1, 0, WITH(.source = OTHER, .flags = 1));
    (void)session_ack(1, WITH(.ack = 3));
    now += 2 * SECOND;
    (void)plain(HOLE, 0, 0);
    CHECK_FOUND("A!!"); /* of the one that opened it, and of the one that it forwards for */
    CHECK_EQ(found[2].a, OTHER);

    start();
    (void)message(1, 0, USUAL);
    (void)order_ack(3, USUAL);
    (void)message(2, 1, USUAL); /* may have overtaken the missing one, which was sent before the OrderAck then */
    (void)plain(HOLE, 0, 0);
    CHECK_FOUND("A!");

    start_two();
    (void)message(1, 0, USUAL);
    (void)order_ack(2, WITH(.connection = 1));
    (void)message(2, 1, USUAL); /* waited for what is missing in the other direction */
    (void)plain(HOLE, 0, 1);
    CHECK_FOUND("A!");
}

static void all(void)
{
    RUN("B-007 B-008 B-230", test_a_clean_stream);
    RUN("B-116 C-40", test_final_acks_by_class);
    RUN("B-270", test_the_receivers_rule);
    RUN("mqqb_audit.h", test_tables_grow);
    RUN("mqqb_audit.h", test_what_is_folded_hides_no_others);
    RUN("B-116", test_what_is_asked_for_keeps_its_slot);
    RUN("mqqb_audit.h", test_numbers_far_from_those_with_slots);
    RUN("mqqb_audit.h", test_a_new_index_without_what_is_folded);
    RUN("mqqb_audit.h", test_slots_go_down_and_jump);
    RUN("mqqb_audit.h", test_connections_that_are_passed_over);
    RUN("A-08 B-309 B-317 B-318", test_renumbered);
    RUN("A-08", test_a_renumbered_message_has_no_other_verdicts);
    RUN("B-078 B-093", test_id_went_back);
    RUN("B-012 B-093 B-236", test_a_lower_sequence_on_an_older_connection);
    RUN("B-110 B-230", test_ack_beyond_receipt);
    RUN("B-079 B-110 B-241", test_an_ack_of_a_sequence_that_was_not_sent);
    RUN("B-079 B-361", test_an_ack_of_a_sequence_that_may_have_been_sent);
    RUN("B-110 B-270", test_a_connection_whose_end_was_not_seen);
    RUN("mqqb_audit.h", test_an_ack_of_a_sequence_that_is_not_kept);
    RUN("B-110", test_a_number_that_was_left_out);
    RUN("B-241", test_a_final_ack_for_another_message);
    RUN("B-110 B-270 B-337", test_skipped);
    RUN("B-270", test_out_of_order);
    RUN("B-110", test_sure_again_after_a_hole);
    RUN("B-110", test_a_clock_that_is_ahead);
    RUN("B-096", test_a_new_sequence_is_seen_from_its_beginning);
    RUN("B-229", test_another_establish_connection_begins_other_counts);
    RUN("B-204 B-208", test_an_older_connection_does_not_say_who_opened_it);
    RUN("B-110", test_a_hole_makes_unsure);
    RUN("B-110", test_another_pair_of_hosts);
    RUN("B-110", test_a_hole_of_a_forwarder);
    RUN("B-110", test_a_connection_without_an_end_and_the_next);
    RUN("mqqb_audit.h", test_an_interrupted_capture);
    RUN("mqqb_audit.h", test_what_comes_late_withdraws);
}

int main(int argc, char **argv)
{
    seed_random(argc, argv, 20261121);
    all();
    setup();
    return summary("test_audit");
}
