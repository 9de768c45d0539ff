/* mqqb_run.c: see mqqb_run.h. Uncertain packets are left to the full path, which decides. */
#include "mqqb_run.h"

#include <string.h>

#include "mqqb_sections.c" /* NOLINT(bugprone-suspicious-include): the walk over a message, which exists once */

#define WANT_PA 0x01u /* MessagePropertiesHeader.Flags: acknowledge arrival in the queue */

int mqqb_run_learn(mqqb_run_template *t, const uint8_t *packet, size_t size)
{
    sections s;
    uint32_t total;

    if (mqqb_frame(packet, size, &total) != MQQB_OK || total != size ||
        (le16(packet + MQQB_BASE_FLAGS_AT) & ~MQQB_BASE_PR) != 0 ||
        (le32(packet + MQQB_USER_FLAGS_AT) & (MQQB_USER_TH | MQQB_USER_SH | MQQB_USER_MQ | MQQB_USER_HH)) !=
            MQQB_USER_TH ||
        find_sections(packet, total, &s) != MQQB_OK) {
        return 0;
    }
    if ((packet[s.properties_at + MQQB_PROPERTIES_FLAGS_IN_PART] & WANT_PA) != 0 || s.allocated_size != s.body_size ||
        align4((uint64_t)s.body_at + s.body_size) != total) {
        return 0;
    }
    t->head = packet;
    t->head_size = s.body_at;
    t->transaction_at = s.transaction_at;
    t->properties_at = s.properties_at;
    return 1;
}

static int is_same(const mqqb_run_template *t, const uint8_t *packet, uint32_t from, uint32_t to)
{
    return memcmp(packet + from, t->head + from, to - from) == 0;
}

/* Does a packet, at least as long as the template, begin like it? */
static int is_alike(const mqqb_run_template *t, const uint8_t *packet)
{
    const uint32_t transaction_at = t->transaction_at, properties_at = t->properties_at;

    return is_same(t, packet, MQQB_BASE_FLAGS_AT, MQQB_BASE_PACKET_SIZE_AT) &&
           is_same(t, packet, MQQB_BASE_TIME_TO_REACH_QUEUE_AT, MQQB_USER_SENT_TIME_AT) &&
           is_same(t, packet, MQQB_USER_FLAGS_AT, transaction_at) &&
           ((packet[transaction_at] ^ t->head[transaction_at]) & (MQQB_TX_CG | MQQB_TX_FA)) == 0 &&
           is_same(t, packet, transaction_at + MQQB_TX_ORDINAL_IN_PART, transaction_at + MQQB_TX_NUMBER_IN_PART) &&
           is_same(t, packet, transaction_at + MQQB_TRANSACTION_HEADER_SIZE,
                   properties_at + MQQB_PROPERTIES_MESSAGE_SIZE_IN_PART) &&
           is_same(t, packet, properties_at + MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART + 4, t->head_size);
}

size_t mqqb_run_find(const mqqb_run_template *t, const uint8_t *in, size_t in_size, mqqb_run_packet *out,
                     size_t capacity)
{
    const uint32_t end = in_size > UINT32_MAX ? UINT32_MAX : (uint32_t)in_size;
    uint32_t at = 0;
    size_t count = 0;

    while (count < capacity && end - at >= t->head_size && is_alike(t, in + at)) {
        const uint8_t *const packet = in + at;
        const uint8_t *const transaction = packet + t->transaction_at;
        const uint8_t *const properties = packet + t->properties_at;
        const uint32_t body_size = le32(properties + MQQB_PROPERTIES_MESSAGE_SIZE_IN_PART);
        uint32_t total;

        if (mqqb_frame(packet, end - at, &total) != MQQB_OK || align4((uint64_t)t->head_size + body_size) != total ||
            le32(properties + MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART) != body_size ||
            check_transaction_header(transaction) != MQQB_OK) {
            break;
        }
        out[count].offset = at;
        out[count].size = total;
        out[count].sent_time = le32(packet + MQQB_USER_SENT_TIME_AT);
        out[count].message_id = le32(packet + MQQB_USER_MESSAGE_ID_AT);
        out[count].tx_sequence_number = le32(transaction + MQQB_TX_NUMBER_IN_PART);
        out[count].previous_tx_sequence_number = le32(transaction + MQQB_TX_PREVIOUS_IN_PART);
        count++;
        at += total;
    }
    return count;
}

size_t mqqb_run_accept(mqqb_incoming *in, const mqqb_run_template *t, const mqqb_run_packet *packets, size_t count)
{
    const uint8_t *const transaction = t->head + t->transaction_at;
    mqqb_transaction_header h;
    size_t done;

    h.flags = le32(transaction);
    h.tx_sequence_ordinal = le32(transaction + MQQB_TX_ORDINAL_IN_PART);
    h.tx_sequence_time_stamp = le32(transaction + MQQB_TX_TIME_STAMP_IN_PART);
    for (done = 0; done < count; done++) {
        mqqb_incoming after = *in;

        h.tx_sequence_number = packets[done].tx_sequence_number;
        h.previous_tx_sequence_number = packets[done].previous_tx_sequence_number;
        if (!mqqb_accept(&after, &h)) {
            break;
        }
        *in = after;
    }
    return done;
}

size_t mqqb_run_sent(mqqb_session *s, size_t count)
{
    size_t done;

    for (done = 0; done < count && mqqb_session_can_send(s); done++) {
        mqqb_session_sent(s, 1);
    }
    return done;
}

static void write_le32(uint8_t *to, uint32_t value)
{
    unsigned byte;

    for (byte = 0; byte < 4; byte++) {
        to[byte] = (uint8_t)(value >> 8 * byte);
    }
}

void mqqb_run_make(uint8_t *packets, const uint8_t *packet, size_t size, size_t body_at, const uint8_t *bodies,
                   size_t body_size, size_t count)
{
    const size_t tail_at = body_at + body_size;
    size_t done;

    for (done = 0; done < count; done++) {
        uint8_t *const to = packets + done * size;

        memcpy(to, packet, body_at);
        memcpy(to + body_at, bodies + done * body_size, body_size);
        memcpy(to + tail_at, packet + tail_at, size - tail_at);
    }
}

size_t mqqb_run_number(mqqb_outgoing *out, uint32_t *previous, uint8_t *packets, size_t size, size_t transaction_at,
                       size_t count, uint32_t message_id)
{
    size_t done;

    for (done = 0; done < count; done++) {
        uint8_t *const packet = packets + done * size;
        mqqb_transaction_header h;

        h.flags = le32(packet + transaction_at);
        if (mqqb_stamp(out, *previous, &h) != MQQB_OK) {
            break;
        }
        write_le32(packet + MQQB_USER_MESSAGE_ID_AT, message_id + (uint32_t)done);
        mqqb_pack(MQQB_TRANSACTION_HEADER, &h, packet + transaction_at, MQQB_TRANSACTION_HEADER_SIZE);
        *previous = h.tx_sequence_number;
    }
    return done;
}
