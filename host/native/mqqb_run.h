/* mqqb_run.h: runs of messages. A sender's transactional messages for one queue differ only in numbers, ids, sizes,
 * times and bodies. Such runs are compared, counted and accepted here, hundreds of packets a call. Any other
 * difference ends the run, and the packet takes the full path. Messages of applications are numbered in the same way.
 * For hosts; firmware leaves this file out. The read/write rule and the statuses are mqqb.h's.
 *
 * COST. About 25 ns a packet to find it, and 20 to accept it, on a desktop core from its caches. Nothing is allocated. */
#ifndef MQQB_RUN_H
#define MQQB_RUN_H

#include "mqqb.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The template of a run. head: its first head_size bytes are a message's headers up to its body; the caller keeps
 * them. The other fields: offsets of the TransactionHeader and the MessagePropertiesHeader. */
typedef struct {
    const uint8_t *head;
    uint32_t head_size, transaction_at, properties_at;
} mqqb_run_template;

/* A packet of a run: its offset in the input of mqqb_run_find, and the varying fields. Words only, as in mqqb.h. */
typedef struct {
    uint32_t offset, size, sent_time, message_id, tx_sequence_number, previous_tx_sequence_number;
} mqqb_run_packet;

/* Make a template of packet[0..size): one UserMessage that a whole parser has accepted. 1: *t is filled, and points
 * into packet. 0: *t is untouched. Unsuitable: not transactional, asking for an arrival acknowledgement, traced or
 * signed; with SecurityHeader, SessionHeader, header behind the body, surplus or unexplained bytes. */
int mqqb_run_learn(mqqb_run_template *t, const uint8_t *packet, size_t size);

/* Find the complete packets from in[0] on that match the template, at most capacity. Returns their number;
 * in[offset + size] of the last is where the rest begins.
 * A whole parser accepts each packet, and reads it as the template except for the fields of mqqb_run_packet, the
 * body, and fields that the destination ignores: BaseHeader.Reserved, and TransactionHeader.Flags except CG and FA.
 * Only the first 4 GiB of in are read. */
size_t mqqb_run_find(const mqqb_run_template *t, const uint8_t *in, size_t in_size, mqqb_run_packet *out,
                     size_t capacity);

/* Accept the first packets of a run that are next in a stream, as mqqb_accept does for each. Returns their number;
 * the stream has advanced by them. Leave the packet after them to mqqb_accept. */
size_t mqqb_run_accept(mqqb_incoming *in, const mqqb_run_template *t, const mqqb_run_packet *packets, size_t count);

/* Count up to `count` sent messages, as mqqb_session_sent does for each while mqqb_session_can_send allows it: they are
 * recoverable. Returns the number counted. */
size_t mqqb_run_sent(mqqb_session *s, size_t count);

/* Write `count` packets of `size` bytes in a row: copies of `packet`, each with its own body of body_size bytes at
 * body_at. */
void mqqb_run_make(uint8_t *packets, const uint8_t *packet, size_t size, size_t body_at, const uint8_t *bodies,
                   size_t body_size, size_t count);

/* Number new packets, as mqqb_stamp does for each: `count` packets of `size` bytes in a row, equal except for their
 * bodies, with the TransactionHeader at transaction_at. MessageIDs count up from message_id. *previous: the number
 * before the first, as in mqqb_stamp, and then the last number. Returns how many were numbered; mqqb_stamp has no
 * number for the next one. */
size_t mqqb_run_number(mqqb_outgoing *out, uint32_t *previous, uint8_t *packets, size_t size, size_t transaction_at,
                       size_t count, uint32_t message_id);

#ifdef __cplusplus
}
#endif

#endif
