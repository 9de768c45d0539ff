/* mqqb_run.h: header prediction. A sender's transactional messages for one queue differ in their numbers, ids, sizes, times and
 * bodies only: the headers of one message tell how the next ones look, and a run of those is compared, counted and accepted here,
 * hundreds of packets a call. What differs in anything else ends the run, and takes the full path.
 * What an application sends is numbered here in the same way.
 * For hosts; firmware leaves this file out. The read/write rule and the statuses are mqqb.h's.
 *
 * COST. About 25 ns a packet to find it, and 20 to accept it, on a desktop core while the packets stay in its caches. Nothing is
 * allocated. */
#ifndef MQQB_RUN_H
#define MQQB_RUN_H

#include "mqqb.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the packets of a run look. head: its first head_size bytes are all headers of a message up to its body; the caller keeps
 * them while he uses the template. The others: where the TransactionHeader and the MessagePropertiesHeader begin. */
typedef struct {
    const uint8_t *head;
    uint32_t head_size, transaction_at, properties_at;
} mqqb_run_template;

/* A packet of a run: where it is in the bytes that mqqb_run_find was given, and what may differ. Words only, as in mqqb.h. */
typedef struct {
    uint32_t offset, size, sent_time, message_id, tx_sequence_number, previous_tx_sequence_number;
} mqqb_run_packet;

/* Make a template of packet[0..size): one UserMessage that a whole parser has taken, alone. 1: *t is filled, and points into packet.
 * 0: it is none, *t is untouched: not transactional, asks to be told that it has reached its queue, is traced or signed, has a
 * SecurityHeader, SessionHeader or any header behind the body, more allocated than the body has, or bytes that no header explains. */
int mqqb_run_learn(mqqb_run_template *t, const uint8_t *packet, size_t size);

/* The packets from in[0] on that look like the template, at most capacity of them, and that are there whole. Returns how many;
 * in[offset + size] of the last is where the rest begins.
 * Each is a message that a whole parser takes, and reads as it read the template's, but for the fields of mqqb_run_packet, the body,
 * and what the destination does not look at: BaseHeader.Reserved, and all of TransactionHeader.Flags but CG and FA. Nothing behind
 * the first 4 GiB of in is looked at. */
size_t mqqb_run_find(const mqqb_run_template *t, const uint8_t *in, size_t in_size, mqqb_run_packet *out,
                     size_t capacity);

/* Accept the first ones of a run that are next in a stream, as mqqb_accept does for each. Returns how many; the stream has advanced
 * by these alone. The one behind them, and the first of another sequence than the stream's, is for mqqb_accept. */
size_t mqqb_run_accept(mqqb_incoming *in, const mqqb_run_template *t, const mqqb_run_packet *packets, size_t count);

/* Count the messages of a run as they come in, as mqqb_session_received does for each: they are recoverable (B-173). */
void mqqb_run_received(mqqb_session *s, size_t count);

/* The oldest received messages that are not stored yet, count of a run, are now durable: as mqqb_session_stored for each, up to
 * the first at which the session has to do something. That is one that does not fit into the bit field (B-123), is the first in
 * it (B-122), or completes what the peer should hear of: half of the window, in messages (B-124). Returns how many were
 * counted; those are asserted as mqqb_session_stored says. */
size_t mqqb_run_stored(mqqb_session *s, size_t count, uint32_t half);

/* Number packets that are sent for the first time, as mqqb_stamp does for each: count of them, size bytes each, one behind the
 * other, alike but for their bodies, with the TransactionHeader at transaction_at. Their MessageIDs become message_id and so on.
 * *previous: the number before the first, as mqqb_stamp takes it, and then that of the last. Returns how many were numbered: the one
 * behind them is the first for which mqqb_stamp has no number. */
size_t mqqb_run_number(mqqb_outgoing *out, uint32_t *previous, uint8_t *packets, size_t size, size_t transaction_at,
                       size_t count, uint32_t message_id);

#ifdef __cplusplus
}
#endif

#endif
