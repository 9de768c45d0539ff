/* mqqb_fast.h: the fast path of a host. Takes the common packets of open sessions: SessionAcks, and messages that match
 * a template of their connection and are next in their stream. Every other packet stays for the full path, which
 * makes the same decisions. The read/write rule is mqqb.h's.
 *
 * No sockets, no clock. The counts of sessions and streams are the caller's words, so both paths share them.
 *
 *     connection opens      mqqb_fast_open; after each message that the full path accepted: mqqb_fast_learn
 *     bytes arrive          mqqb_fast_take; the rest goes to the full path, then mqqb_fast_continue
 *     in a transaction      mqqb_fast_rows for each queue, mqqb_fast_moved
 *     after the commit      mqqb_fast_commit, mqqb_fast_next_ack until 0, mqqb_fast_report
 *     if it failed          mqqb_fast_undo: the full path decides about the messages, or they are lost with their sessions
 *
 * A slot is an open session. A stream is a template of a slot: stream / MQQB_FAST_STREAMS is its slot.
 *
 * COST. About 0.2 us a message. Memory: 250 bytes a slot, and for each stream its headers and its OrderAck. */
#ifndef MQQB_FAST_H
#define MQQB_FAST_H

#include "mqqb.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MQQB_FAST_STREAMS 4u          /* templates of a slot */
#define MQQB_FAST_HEAD_MAX 1024u      /* bytes of a template */
#define MQQB_FAST_ACK_MAX 512u        /* bytes of an OrderAck */
#define MQQB_FAST_OUT_MIN 4096u       /* room for the acknowledgements of a slot */
#define MQQB_FAST_FOREVER 0xFFFFFFFFu /* a lifetime */
/* mqqb_fast_news.flags */
#define MQQB_FAST_HEARD 1u /* a SessionHeader was applied */
#define MQQB_FAST_ACKED 2u /* a SessionAck was made */
#define MQQB_FAST_CAME 8u  /* messages were taken */
#define MQQB_FAST_OWED 4u  /* an OrderAck was not made: the window is full, or the stream was forgotten */

typedef struct mqqb_fast mqqb_fast;

/* Taken messages of a queue: count packets in a row, without SessionHeaders, in order of arrival; the size and the
 * stream of each. Valid until the next call that takes, commits or undoes. */
typedef struct {
    int64_t queue;
    const uint8_t *packets;
    const uint32_t *sizes;
    const int32_t *streams;
    uint32_t size, count;
} mqqb_fast_run;

/* Activity of a slot since the last report: bytes taken, messages committed, OrderAcks and bytes made. */
typedef struct {
    uint32_t slot, bytes, messages, order_acks, sent, flags;
} mqqb_fast_news;

/* session_ack: a SessionAck, 36 bytes; only its SessionHeader changes. NULL: no memory. */
mqqb_fast *mqqb_fast_new(const uint8_t *session_ack);
void mqqb_fast_free(mqqb_fast *f);

/* Add a slot for an open session with these counts, which stay valid until mqqb_fast_close and the next commit.
 * owner: a small number of the caller, in use once, by which mqqb_fast_slot finds the slot; -1: none. The slot
 * begins blocked: mqqb_fast_continue. -1: no memory. */
int32_t mqqb_fast_open(mqqb_fast *f, int32_t owner, mqqb_session *session);
void mqqb_fast_close(mqqb_fast *f, int32_t slot);

/* This owner has ended; its slot has none any more. */
void mqqb_fast_disown(mqqb_fast *f, int32_t owner);

/* The slot of this owner; -1: none. */
int32_t mqqb_fast_slot(const mqqb_fast *f, int32_t owner);

/* Learn the stream of packet[0..size), a message without SessionHeader that the full path has accepted for this queue.
 * record: the stream's words, valid until the stream is forgotten and the next commit. lifetime: seconds after
 * SentTime; older messages stay for the full path. order_ack: an OrderAck of the stream. It replaces the oldest stream
 * of a full slot; a stream that predicts this message already stays. Returns the stream; -1: such messages need the full path, the slot has uncommitted messages in all
 * streams, or no memory. */
int32_t mqqb_fast_learn(mqqb_fast *f, int32_t slot, const uint8_t *packet, size_t size, mqqb_incoming *record,
                        int64_t queue_id, uint32_t lifetime, const uint8_t *order_ack, size_t order_ack_size);

/* Forget a stream, or all for -1. Its taken messages stay; it gets no OrderAck. */
void mqqb_fast_forget(mqqb_fast *f, int32_t stream);

/* SessionHeaders stay for the full path until the next mqqb_fast_continue: messages of this side are in flight. */
void mqqb_fast_hold(mqqb_fast *f, int32_t slot);

/* The full path has handled all bytes of the slot, and holds no incomplete packet. */
void mqqb_fast_continue(mqqb_fast *f, int32_t slot, int is_held);

/* Take the common packets at the beginning of data; returns their bytes. If some are left, the slot is blocked: the
 * rest and all later bytes go to the full path, until mqqb_fast_continue. wall: s since 1970. */
uint32_t mqqb_fast_take(mqqb_fast *f, int32_t slot, const uint8_t *data, uint32_t size, int64_t wall);

/* Number of taken messages that are not committed. */
uint32_t mqqb_fast_pending(const mqqb_fast *f);

/* Fill *run with the queue at this index; 0: there is none. A queue without messages has count 0. */
int mqqb_fast_rows(const mqqb_fast *f, uint32_t index, mqqb_fast_run *run);

/* The streams with uncommitted messages, at most capacity, in the order of their first one. Returns their number. */
size_t mqqb_fast_moved(const mqqb_fast *f, int32_t *streams, size_t capacity);

/* Drop all uncommitted messages, and set the streams back to before them. The sessions have still received them. */
void mqqb_fast_undo(mqqb_fast *f);

/* The taken messages are durable. time, message_id: of the OrderAcks, SentTime and the first MessageID. They need at
 * most one MessageID for each stream that has moved. */
void mqqb_fast_commit(mqqb_fast *f, uint32_t time, uint32_t message_id);

/* Leave the acknowledgements of this slot to mqqb_fast_next_ack with is_owned 0. */
void mqqb_fast_defer(mqqb_fast *f, int32_t slot);

/* Write the acknowledgements of the next slot after a commit: a SessionAck, then an OrderAck for each stream.
 * is_owned: 1 for slots with owner, *id is the owner; 0 for other and deferred slots, *id is the slot. capacity: at
 * least MQQB_FAST_OUT_MIN. Returns the bytes written; 0: no slot is left. */
size_t mqqb_fast_next_ack(mqqb_fast *f, int is_owned, int32_t *id, uint8_t *out, size_t capacity);

/* Report the slots with activity, at most capacity, and begin anew. Returns their number. */
size_t mqqb_fast_report(mqqb_fast *f, mqqb_fast_news *news, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
