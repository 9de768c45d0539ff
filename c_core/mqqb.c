/* SPDX-License-Identifier: MIT */
/* mqqb.c: see mqqb.h for the contract.
 *
 * One table describes the bytes of every part; one loop reads and one loop writes by it. A small function for each
 * part checks the ranges in the wire bytes, so that a bad part leaves the caller's structure untouched.
 *
 * MQQB_CHECKS_ONLY is for host/native, which includes this file for the range checks: they exist once. */
#include "mqqb.h"

/* ---- ranges within one part (B-168 to B-173, B-213, B-429 to B-433) ---------------------------- */

static inline uint32_t le16(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8;
}

static inline uint32_t le32(const uint8_t *in)
{
    return le16(in) | le16(in + 2) << 16;
}

static inline mqqb_status check_base_header(const uint8_t *in)
{
    const uint32_t least =
        (in[MQQB_BASE_FLAGS_AT] & MQQB_BASE_IN) != 0 ? MQQB_PACKET_SIZE_MIN_INTERNAL : MQQB_PACKET_SIZE_MIN_MESSAGE;
    const uint32_t packet_size = le32(in + MQQB_BASE_PACKET_SIZE_AT);

    if (in[MQQB_BASE_VERSION_NUMBER_AT] != MQQB_VERSION_NUMBER) {
        return MQQB_BAD_VERSION_NUMBER;
    }
    if (le32(in + MQQB_BASE_SIGNATURE_AT) != MQQB_SIGNATURE) {
        return MQQB_BAD_SIGNATURE;
    }
    if (packet_size < least || packet_size > MQQB_PACKET_SIZE_MAX) {
        return MQQB_BAD_PACKET_SIZE;
    }
    return MQQB_OK;
}

static inline mqqb_status check_internal_header(const uint8_t *in)
{
    const uint32_t flags = in[MQQB_INTERNAL_FLAGS_AT - MQQB_BASE_END];
    const uint32_t packet_type = flags & MQQB_INTERNAL_PT;

    if (packet_type < MQQB_PT_SESSION_ACK || packet_type > MQQB_PT_CONNECTION_PARAMETERS) {
        return MQQB_BAD_PACKET_TYPE;
    }
    if (packet_type == MQQB_PT_SESSION_ACK && (flags & MQQB_INTERNAL_CS) != 0) {
        return MQQB_BAD_REFUSED_FLAG;
    }
    return MQQB_OK;
}

static inline mqqb_status check_session_header(const uint8_t *in)
{
    return le16(in + MQQB_ACKS_WINDOW_SIZE_IN_PART) == 0 ? MQQB_BAD_WINDOW_SIZE : MQQB_OK;
}

static inline mqqb_status check_transaction_header(const uint8_t *in)
{
    if (le32(in + MQQB_TX_NUMBER_IN_PART) == 0) {
        return MQQB_BAD_TX_SEQUENCE_NUMBER;
    }
    if (le32(in + MQQB_TX_PREVIOUS_IN_PART) == 0xFFFFFFFFu) {
        return MQQB_BAD_PREVIOUS_NUMBER;
    }
    return MQQB_OK;
}

static inline mqqb_status check_connection_parameters(const uint8_t *in)
{
    const uint32_t recoverable_ack_timeout = le32(in + MQQB_PARAMETERS_RECOVERABLE_ACK_TIMEOUT_AT - MQQB_INTERNAL_END);
    const uint32_t ack_timeout = le32(in + MQQB_PARAMETERS_ACK_TIMEOUT_AT - MQQB_INTERNAL_END);

    if (recoverable_ack_timeout < 500 || recoverable_ack_timeout > 120000) {
        return MQQB_BAD_RECOVERABLE_ACK_TIMEOUT;
    }
    if (ack_timeout < 20000 || ack_timeout > 120000) {
        return MQQB_BAD_ACK_TIMEOUT;
    }
    return MQQB_OK;
}

/* OrderAck and FinalAck begin alike. */
static inline mqqb_status check_ack_body(const uint8_t *in)
{
    return le32(in + MQQB_ACK_NUMBER_IN_PART) == 0 ? MQQB_BAD_ACK_NUMBER : MQQB_OK;
}

static inline mqqb_status check_user_header(const uint8_t *in)
{
    const uint32_t flags = le32(in + MQQB_USER_FLAGS_AT - MQQB_BASE_END);

    if ((flags & MQQB_USER_RC) > MQQB_HOP_COUNT_MAX) {
        return MQQB_BAD_HOP_COUNT;
    }
    if ((flags & MQQB_USER_DM) > 0x20) {
        return MQQB_BAD_DELIVERY_MODE;
    }
    /* A set of allowed selectors, as bits: 0, 3, 5, 7, then 0, 2, 3, 5, 6, 7. */
    if ((0xA9u >> (flags >> 10 & 7) & 1) == 0) {
        return MQQB_BAD_DESTINATION_TYPE;
    }
    if ((0xEDu >> (flags >> 13 & 7) & 1) == 0) {
        return MQQB_BAD_ADMIN_TYPE;
    }
    if ((flags & (MQQB_USER_TH | MQQB_USER_DM)) == MQQB_USER_TH) {
        return MQQB_BAD_TRANSACTION_MODE;
    }
    if ((flags & MQQB_USER_MP) == 0) {
        return MQQB_BAD_PROPERTIES_FLAG;
    }
    if ((flags & MQQB_USER_AH) != 0) {
        return MQQB_BAD_HTTP_FLAG;
    }
    return MQQB_OK;
}

static inline mqqb_status check_message_properties_header(const uint8_t *in)
{
    if (in[MQQB_PROPERTIES_LABEL_LENGTH_IN_PART] > 0xFA) {
        return MQQB_BAD_LABEL_LENGTH;
    }
    if (le32(in + MQQB_PROPERTIES_MESSAGE_SIZE_IN_PART) > le32(in + MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART)) {
        return MQQB_BAD_BODY_SIZE;
    }
    return MQQB_OK;
}

static inline mqqb_status check_security_header(const uint8_t *in)
{
    const uint32_t sender_cert_size = le32(in + MQQB_SECURITY_SENDER_CERT_SIZE_IN_PART);
    const uint32_t others = le16(in + MQQB_SECURITY_SENDER_ID_SIZE_IN_PART) |
                            le32(in + MQQB_SECURITY_ENCRYPTION_KEY_SIZE_IN_PART) |
                            le32(in + MQQB_SECURITY_PROVIDER_INFO_SIZE_IN_PART);

    if ((in[MQQB_SECURITY_FLAGS_IN_PART] & 0x0F) > 2) {
        return MQQB_BAD_SENDER_ID_TYPE;
    }
    if (sender_cert_size > 0xFFFF || (others | sender_cert_size) == 0) {
        return MQQB_BAD_SECURITY_SIZE;
    }
    return MQQB_OK;
}

static inline mqqb_status check_debug_header(const uint8_t *in)
{
    return (in[MQQB_DEBUG_FLAGS_IN_PART] & 2) != 0 ? MQQB_BAD_QUEUE_TYPE : MQQB_OK;
}

static inline mqqb_status check_establish_connection(const uint8_t *in)
{
    return in[MQQB_ESTABLISH_OPERATING_SYSTEM_AT - MQQB_INTERNAL_END] != 0x10 ? MQQB_BAD_OPERATING_SYSTEM : MQQB_OK;
}

static inline mqqb_status check_ping(const uint8_t *in)
{
    return le16(in + MQQB_PING_SIGNATURE_WORD_IN_PART) != MQQB_PING_SIGNATURE ? MQQB_BAD_PING_SIGNATURE : MQQB_OK;
}

#ifndef MQQB_CHECKS_ONLY

#include <string.h>

#ifndef MQQB_ASSERT
#ifdef NDEBUG
#define MQQB_ASSERT(condition) ((void)0)
#else
#include <assert.h>
#define MQQB_ASSERT(condition) assert(condition)
#endif
#endif

/* Nested comparisons: one switch would become a jump table, which needs a compiler helper function on Cortex-M0. */
static mqqb_status check(mqqb_part part, const uint8_t *in)
{
    if (part >= MQQB_DEBUG_HEADER) {
        switch (part) {
        case MQQB_DEBUG_HEADER:
            return check_debug_header(in);
        case MQQB_ESTABLISH_CONNECTION:
            return check_establish_connection(in);
        case MQQB_PING:
            return check_ping(in);
        default:
            return check_ack_body(in);
        }
    }
    if (part >= MQQB_USER_HEADER) {
        switch (part) {
        case MQQB_USER_HEADER:
            return check_user_header(in);
        case MQQB_MESSAGE_PROPERTIES_HEADER:
            return check_message_properties_header(in);
        default:
            return check_security_header(in);
        }
    }
    if (part < MQQB_SESSION_HEADER) {
        return part == MQQB_BASE_HEADER ? check_base_header(in) : check_internal_header(in);
    }
    switch (part) {
    case MQQB_SESSION_HEADER:
        return check_session_header(in);
    case MQQB_TRANSACTION_HEADER:
        return check_transaction_header(in);
    default:
        return check_connection_parameters(in);
    }
}

/* ---- pack and unpack --------------------------------------------------------------------------- */

/* clang-format off */
/* Field widths in wire order. 1, 2, 4: a little-endian integer, one word of the structure. More: raw bytes.
 * Made by c_core/layout.py: */
static const uint8_t widths[] = {
    1, 1, 2, 4, 4, 4, /* 0: base_header */
    2, 2, /* 6: internal_header */
    2, 2, 4, 2, 2, 2, 2, /* 8: session_header */
    4, 4, 4, 4, 4, /* 15: transaction_header */
    4, 4, 2, 2, /* 20: connection_parameters */
    16, 16, 4, 4, 4, 4, /* 24: user_header */
    1, 1, 2, 20, 4, 4, 4, 4, 4, 4, 4, 4, /* 30: message_properties_header */
    2, 2, 2, 2, 4, 4, /* 42: security_header */
    2, 2, /* 48: debug_header */
    16, 16, 4, 2, 2, /* 50: establish_connection */
    4, 4, 4, 4, 20, /* 55: order_ack */
    4, 4, 4, 4, 16, 4, /* 60: final_ack */
    2, 2, 4, 16, /* 66: ping */
};

static const struct {
    uint8_t first, size, words;
} layouts[] = {
    {0, MQQB_BASE_HEADER_SIZE, sizeof(mqqb_base_header) / 4},
    {6, MQQB_INTERNAL_HEADER_SIZE, sizeof(mqqb_internal_header) / 4},
    {8, MQQB_SESSION_HEADER_SIZE, sizeof(mqqb_session_header) / 4},
    {15, MQQB_TRANSACTION_HEADER_SIZE, sizeof(mqqb_transaction_header) / 4},
    {20, MQQB_CONNECTION_PARAMETERS_SIZE, sizeof(mqqb_connection_parameters) / 4},
    {24, MQQB_USER_HEADER_SIZE, sizeof(mqqb_user_header) / 4},
    {30, MQQB_MESSAGE_PROPERTIES_HEADER_SIZE, sizeof(mqqb_message_properties_header) / 4},
    {42, MQQB_SECURITY_HEADER_SIZE, sizeof(mqqb_security_header) / 4},
    {48, MQQB_DEBUG_HEADER_SIZE, sizeof(mqqb_debug_header) / 4},
    {50, MQQB_ESTABLISH_CONNECTION_SIZE, sizeof(mqqb_establish_connection) / 4},
    {55, MQQB_ORDER_ACK_SIZE, sizeof(mqqb_order_ack) / 4},
    {60, MQQB_FINAL_ACK_SIZE, sizeof(mqqb_final_ack) / 4},
    {66, MQQB_PING_SIZE, sizeof(mqqb_ping) / 4},
};

/* end of what was made */
/* clang-format on */

size_t mqqb_part_size(mqqb_part part)
{
    MQQB_ASSERT((size_t)part < sizeof layouts / sizeof layouts[0]);
    return layouts[part].size;
}

size_t mqqb_part_words(mqqb_part part)
{
    MQQB_ASSERT((size_t)part < sizeof layouts / sizeof layouts[0]);
    return layouts[part].words;
}

mqqb_status mqqb_unpack(mqqb_part part, void *out, const uint8_t *in, size_t in_size)
{
    const size_t size = mqqb_part_size(part);
    const uint8_t *width = widths + layouts[part].first;
    uint32_t *word = out;
    mqqb_status status = MQQB_NEED_MORE;
    const uint8_t *end;

    if (in_size >= size) {
        status = check(part, in);
    }
    if (status != MQQB_OK) {
        return status;
    }
    for (end = in + size; in < end; in += *width++) {
        if (*width > 4) {
            memcpy(word, in, *width);
            word += *width / 4;
        } else {
            uint32_t value = 0;
            unsigned i = *width;
            while (i-- > 0) {
                value = value << 8 | in[i];
            }
            *word++ = value;
        }
    }
    return MQQB_OK;
}

void mqqb_pack(mqqb_part part, const void *in, uint8_t *out, size_t out_size)
{
    const size_t size = mqqb_part_size(part);
    const uint8_t *width = widths + layouts[part].first;
    const uint32_t *word = in;
    const uint8_t *end;

    (void)out_size;
    MQQB_ASSERT(out_size >= size);
    for (end = out + size; out < end; width++) {
        if (*width > 4) {
            memcpy(out, word, *width);
            out += *width;
            word += *width / 4;
        } else {
            uint32_t value = *word++;
            unsigned i = *width;
            while (i-- > 0) {
                *out++ = (uint8_t)value;
                value >>= 8;
            }
            MQQB_ASSERT(*width == 4 || value == 0);
        }
    }
    MQQB_ASSERT(check(part, end - size) == MQQB_OK);
}

uint32_t mqqb_packet_total(uint32_t flags, uint32_t packet_size)
{
    return (flags & (MQQB_BASE_IN | MQQB_BASE_SH)) == MQQB_BASE_SH ? packet_size + MQQB_SESSION_HEADER_SIZE
                                                                   : packet_size;
}

mqqb_status mqqb_frame(const uint8_t *in, size_t in_size, uint32_t *total)
{
    uint32_t size = MQQB_BASE_HEADER_SIZE;

    if (in_size >= size) {
        const mqqb_status status = check_base_header(in);
        if (status != MQQB_OK) {
            return status;
        }
        size = mqqb_packet_total(le16(in + MQQB_BASE_FLAGS_AT), le32(in + MQQB_BASE_PACKET_SIZE_AT));
    }
    *total = size;
    return in_size < size ? MQQB_NEED_MORE : MQQB_OK;
}

/* ---- one connection ---------------------------------------------------------------------------- */

static uint32_t mod16(uint32_t value)
{
    return value & 0xFFFFu;
}

int mqqb_serial_after(uint32_t a, uint32_t b)
{
    return mod16(a - b - 1) < 0x7FFF;
}

int mqqb_is_acked(uint32_t base, uint32_t flags, uint32_t seq)
{
    const uint32_t k = mod16(seq - base);

    if (flags == 0) {
        return 0;
    }
    if (k < MQQB_ACK_BITS && k > 0) {
        return (int)(flags >> k & 1);
    }
    return !mqqb_serial_after(seq, base);
}

void mqqb_session_init(mqqb_session *s, uint32_t window_size)
{
    MQQB_ASSERT(window_size >= 1 && window_size <= 0xFFFF);
    memset(s, 0, sizeof *s);
    s->window_size = window_size;
    s->received_window_size = window_size;
}

uint32_t mqqb_session_unacked_received(const mqqb_session *s)
{
    return mod16(s->message_received_count - s->acked_message_count);
}

uint32_t mqqb_session_unacked_sent(const mqqb_session *s)
{
    return mod16(s->message_sent_count - s->peer_acked_message_count);
}

int mqqb_session_can_send(const mqqb_session *s)
{
    const uint32_t unacked = mqqb_session_unacked_sent(s);

    /* With more than 0x7FFF in flight, serial arithmetic could not tell old numbers from new ones. */
    return unacked < s->window_size && unacked < s->received_window_size && unacked < 0x7FFF;
}

void mqqb_session_sent(mqqb_session *s, int recoverable)
{
    MQQB_ASSERT(recoverable == 0 || recoverable == 1);
    s->message_sent_count = mod16(s->message_sent_count + 1);
    s->recoverable_message_sent_count = mod16(s->recoverable_message_sent_count + (uint32_t)recoverable);
}

void mqqb_session_received(mqqb_session *s, int recoverable)
{
    MQQB_ASSERT(recoverable == 0 || recoverable == 1);
    s->message_received_count = mod16(s->message_received_count + 1);
    s->recoverable_message_received_count = mod16(s->recoverable_message_received_count + (uint32_t)recoverable);
}

mqqb_status mqqb_session_stored(mqqb_session *s, int recoverable)
{
    const uint32_t k = mod16(s->recoverable_message_stored_count - s->last_acked_recoverable_msg_seq_number);

    MQQB_ASSERT(recoverable == 0 || recoverable == 1);
    MQQB_ASSERT(s->message_stored_count != s->message_received_count);
    if (recoverable) {
        MQQB_ASSERT(s->recoverable_message_stored_count != s->recoverable_message_received_count);
        if (k >= MQQB_ACK_BITS) {
            return MQQB_ACK_FIRST;
        }
        s->recoverable_msg_ack_flags |= (uint32_t)1 << k;
        s->recoverable_message_stored_count = mod16(s->recoverable_message_stored_count + 1);
    }
    s->message_stored_count = mod16(s->message_stored_count + 1);
    return MQQB_OK;
}

void mqqb_session_fill(mqqb_session *s, mqqb_session_header *h)
{
    const uint32_t flags = s->recoverable_msg_ack_flags;

    h->ack_sequence_number = s->message_stored_count;
    h->recoverable_msg_ack_seq_number = flags != 0 ? mod16(s->last_acked_recoverable_msg_seq_number + 1) : 0;
    h->recoverable_msg_ack_flags = flags;
    h->user_msg_sequence_number = s->message_sent_count;
    h->recoverable_msg_sequence_number = s->recoverable_message_sent_count;
    h->window_size = s->window_size;
    h->reserved = 0;
    s->recoverable_msg_ack_flags = 0;
    s->acked_message_count = s->message_stored_count;
    s->last_acked_recoverable_msg_seq_number = s->recoverable_message_stored_count;
}

mqqb_status mqqb_session_check(mqqb_session *s, const mqqb_session_header *h, int carried)
{
    const uint32_t base = h->recoverable_msg_ack_seq_number;
    const uint32_t flags = h->recoverable_msg_ack_flags;
    const uint32_t sent = s->recoverable_message_sent_count;
    const uint32_t room = mod16(sent - base); /* highest bit for a number already sent */
    const uint32_t left_out = mod16(s->message_received_count - h->user_msg_sequence_number);
    const uint32_t recoverable_left_out =
        mod16(s->recoverable_message_received_count - h->recoverable_msg_sequence_number);

    MQQB_ASSERT(carried == 0 || carried == 1);
    if (mqqb_serial_after(h->ack_sequence_number, s->message_sent_count)) {
        return MQQB_BAD_ACK_COUNT;
    }
    if (flags != 0 && (mqqb_serial_after(base, sent) || (room < MQQB_ACK_BITS - 1 && flags >> room > 1))) {
        return MQQB_BAD_ACK_COUNT;
    }
    if (mqqb_serial_after(h->ack_sequence_number, s->peer_acked_message_count)) {
        s->peer_acked_message_count = h->ack_sequence_number;
    }
    s->received_window_size = h->window_size;
    if (left_out > (uint32_t)carried || recoverable_left_out > left_out) {
        return MQQB_BAD_MESSAGE_COUNT;
    }
    return MQQB_OK;
}

/* ---- transactional order ------------------------------------------------------------------------ */

int mqqb_tx_compare(uint32_t ordinal_a, uint32_t time_stamp_a, uint32_t ordinal_b, uint32_t time_stamp_b)
{
    if (time_stamp_a == time_stamp_b) {
        time_stamp_a = ordinal_a;
        time_stamp_b = ordinal_b;
    }
    return (time_stamp_a > time_stamp_b) - (time_stamp_a < time_stamp_b);
}

int mqqb_accept(mqqb_incoming *in, const mqqb_transaction_header *h)
{
    const int order = mqqb_tx_compare(h->tx_sequence_ordinal, h->tx_sequence_time_stamp, in->tx_sequence_ordinal,
                                      in->tx_sequence_time_stamp);
    /* A newer sequence is empty: no message may be missing before this one. */
    const uint32_t last = order == 0 ? in->tx_sequence_number : 0;

    if (order < 0 || h->previous_tx_sequence_number > last || (order == 0 && h->tx_sequence_number <= last)) {
        in->reject_count++;
        return 0;
    }
    in->tx_sequence_ordinal = h->tx_sequence_ordinal;
    in->tx_sequence_time_stamp = h->tx_sequence_time_stamp;
    in->tx_sequence_number = h->tx_sequence_number;
    in->reject_count = 0;
    return 1;
}

mqqb_status mqqb_stamp(mqqb_outgoing *out, uint32_t previous, mqqb_transaction_header *h)
{
    MQQB_ASSERT(out->tx_sequence_number != 0);
    MQQB_ASSERT(previous < out->tx_sequence_number);
    if (out->tx_sequence_number == 0xFFFFFFFFu) {
        return MQQB_STREAM_FULL;
    }
    h->tx_sequence_ordinal = out->tx_sequence_ordinal;
    h->tx_sequence_time_stamp = out->tx_sequence_time_stamp;
    h->tx_sequence_number = out->tx_sequence_number++;
    h->previous_tx_sequence_number = previous;
    return MQQB_OK;
}

mqqb_status mqqb_order_ack_received(mqqb_outgoing *out, const mqqb_order_ack *ack)
{
    if (mqqb_tx_compare(ack->tx_sequence_ordinal, ack->tx_sequence_time_stamp, out->tx_sequence_ordinal,
                        out->tx_sequence_time_stamp) != 0 ||
        ack->tx_sequence_number >= out->tx_sequence_number || ack->tx_sequence_number <= out->last_ack) {
        return MQQB_IGNORED;
    }
    out->last_ack = ack->tx_sequence_number;
    return MQQB_OK;
}

void mqqb_roll(mqqb_outgoing *out)
{
    if (out->tx_sequence_number == 1) {
        return;
    }
    out->tx_sequence_ordinal++;
    if (out->tx_sequence_ordinal == 0) {
        out->tx_sequence_time_stamp++;
    }
    out->tx_sequence_number = 1;
    out->last_ack = 0;
}

#endif
