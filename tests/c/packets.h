/* packets.h: makes packets byte by byte from wire.md, with no help of the code under test. */
#ifndef PACKETS_H
#define PACKETS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void le(uint8_t *out, uint64_t value, unsigned width)
{
    while (width-- > 0) {
        *out++ = (uint8_t)value;
        value >>= 8;
    }
}

static inline uint32_t get(const uint8_t *in, unsigned width)
{
    uint32_t value = 0;

    while (width-- > 0) {
        value = value << 8 | in[width];
    }
    return value;
}

static inline size_t up4(size_t n)
{
    return (n + 3) & ~(size_t)3;
}

/* ASCII as UTF-16 with its NUL; returns the bytes. */
static inline size_t wide(uint8_t *out, const char *ascii)
{
    size_t n = 0;

    do {
        le(out + 2 * n, (uint8_t)ascii[n], 2);
    } while (ascii[n++] != 0);
    return 2 * n;
}

/* What a message consists of. 0 and NULL mean none. */
typedef struct {
    unsigned base_flags, user_flags; /* DQ, AQ, RQ and the header bits belong into user_flags by the caller */
    uint32_t message_id, queue_id;   /* queue_id: of every name by number */
    const char *name;                /* of every direct name */
    uint32_t tx_flags, tx_ordinal, tx_time_stamp, tx_number, tx_previous;
    uint32_t security_sizes[5];
    unsigned message_class;
    const char *label;
    uint32_t extension_size, body_size, allocation; /* allocation: on top of body_size, occupies bytes */
    const uint8_t *body;                            /* NULL: zeros */
    unsigned debug_type;
    uint32_t soap_header, soap_body; /* WCHARs with NUL, for HH */
    int soap_aligned;
    uint32_t list_bytes; /* of each of the three lists, for MQ */
    uint32_t trailing;   /* unknown bytes at the end */
} message;

enum {
    AT_USER = 16,
    DQ_PRIVATE = 3u << 10,
    DQ_PUBLIC = 5u << 10,
    DQ_DIRECT = 7u << 10,
    DM_RECOVERABLE = 0x20,
    MP = 0x00200000,
    TH = 0x00100000,
    SECURITY = 0x00080000,
    CQ = 0x00400000,
    MQ = 0x00800000,
    HH = 0x10000000
};

/* Where things have come to lie, for tests that damage or compare them. */
typedef struct {
    size_t destination, admin, response, connector, transaction, security, properties, label, extension, body, debug,
        soap, soap_body, lists, signature, session, size;
} layout;

static inline size_t put_name(uint8_t *out, unsigned selector, const message *m)
{
    size_t bytes;

    switch (selector) {
    case 2:
    case 3:
    case 4:
        le(out, m->queue_id, 4);
        return 4;
    case 5:
        memset(out, 0x55, 16);
        return 16;
    case 6:
        memset(out, 0x66, 16);
        le(out + 16, m->queue_id, 4);
        return 20;
    case 7:
        bytes = wide(out + 2, m->name);
        le(out, bytes, 2);
        return up4(2 + bytes);
    default:
        return 0;
    }
}

static inline size_t put_soap(uint8_t *out, unsigned id, uint32_t length)
{
    le(out, id, 2);
    le(out + 4, length, 4);
    memset(out + 8, 'x', 2 * (size_t)length);
    le(out + 8 + 2 * (size_t)(length - 1), 0, 2);
    return 8 + 2 * (size_t)length;
}

/* Write a message to out, which is large enough and zeroed; l may be NULL. Returns its bytes with the SessionHeader. */
static inline size_t put_message(uint8_t *out, const message *m, layout *l)
{
    static const unsigned list_ids[3] = {0x64, 0xC8, 0x12C};
    layout at = {0};
    size_t n = 64;
    unsigned i;

    out[0] = 0x10;
    le(out + 2, m->base_flags, 2);
    memcpy(out + 4, "LIOR", 4);
    le(out + 12, 0x54600, 4);
    memset(out + 16, 0xA1, 16);
    memset(out + 32, 0xB2, 16);
    le(out + 48, 0xFFFFFFFF, 4);
    le(out + 52, 1600000000, 4);
    le(out + 56, m->message_id, 4);
    le(out + 60, m->user_flags | MP, 4);
    at.destination = n;
    n += put_name(out + n, m->user_flags >> 10 & 7, m);
    at.admin = n;
    n += put_name(out + n, m->user_flags >> 13 & 7, m);
    at.response = n;
    n += put_name(out + n, m->user_flags >> 16 & 7, m);
    at.connector = n;
    if (m->user_flags & CQ) {
        memset(out + n, 0xC3, 16);
        n += 16;
    }
    at.transaction = n;
    if (m->user_flags & TH) {
        le(out + n, m->tx_flags, 4);
        le(out + n + 4, m->tx_ordinal, 4);
        le(out + n + 8, m->tx_time_stamp, 4);
        le(out + n + 12, m->tx_number, 4);
        le(out + n + 16, m->tx_previous, 4);
        n += m->tx_flags & 1 ? 36 : 20;
    }
    at.security = n;
    if (m->user_flags & SECURITY) {
        le(out + n, 1, 2);
        le(out + n + 2, m->security_sizes[0], 2);
        le(out + n + 4, m->security_sizes[1], 2);
        le(out + n + 6, m->security_sizes[2], 2);
        le(out + n + 8, m->security_sizes[3], 4);
        le(out + n + 12, m->security_sizes[4], 4);
        n += 16;
        for (i = 0; i < 5; i++) {
            n += up4(m->security_sizes[i]);
        }
    }
    at.properties = n;
    le(out + n + 2, m->message_class, 2);
    le(out + n + 32, m->body_size, 4);
    le(out + n + 36, m->body_size + m->allocation, 4);
    le(out + n + 44, 0x8004, 4);
    le(out + n + 48, 0x6801, 4);
    le(out + n + 52, m->extension_size, 4);
    n += 56;
    at.label = n;
    if (m->label != NULL) {
        const size_t bytes = wide(out + n, m->label);
        out[at.properties + 1] = (uint8_t)(bytes / 2);
        n += bytes;
    }
    at.extension = n;
    memset(out + n, 0xE5, m->extension_size);
    n += m->extension_size;
    at.body = n;
    if (m->body != NULL) {
        memcpy(out + n, m->body, m->body_size);
    }
    n = up4(n + m->body_size + m->allocation);
    at.debug = n;
    if (m->base_flags & 0x20) {
        le(out + n, m->debug_type, 2);
        n += m->debug_type & 1 ? 20 : 4;
    }
    at.soap = n;
    if (m->user_flags & HH) {
        n += put_soap(out + n, 0x0320, m->soap_header);
        n = m->soap_aligned ? up4(n) : n;
        at.soap_body = n;
        n = up4(n + put_soap(out + n, 0x0384, m->soap_body));
    }
    at.lists = n;
    if (m->user_flags & MQ) {
        for (i = 0; i < 3; i++) {
            le(out + n, 12 + m->list_bytes, 4);
            le(out + n + 4, list_ids[i], 2);
            le(out + n + 8, m->list_bytes / 18, 4);
            n += up4(12 + m->list_bytes);
        }
        at.signature = n;
        le(out + n, 0x15E, 2);
        le(out + n + 4, 4, 4);
        n += 12;
    }
    n += m->trailing;
    le(out + 8, n, 4);
    at.session = n;
    if (m->base_flags & 0x10) {
        le(out + n, 11, 2);
        le(out + n + 2, 5, 2);
        le(out + n + 4, 0x80000003, 4);
        le(out + n + 8, 21, 2);
        le(out + n + 10, 9, 2);
        le(out + n + 12, 64, 2);
        n += 16;
    }
    at.size = n;
    if (l != NULL) {
        *l = at;
    }
    return n;
}

/* The internal packets: type 1 SessionAck, 2 EstablishConnection, 3 ConnectionParameters. */
static inline size_t put_internal(uint8_t *out, unsigned type)
{
    static const unsigned sizes[4] = {0, 36, 572, 32};

    memset(out, 0, sizes[type]);
    out[0] = 0x10;
    le(out + 2, type == 1 ? 0x1B : 0x0B, 2);
    memcpy(out + 4, "LIOR", 4);
    le(out + 8, sizes[type], 4);
    le(out + 12, 0xFFFFFFFF, 4);
    le(out + 18, type, 2);
    if (type == 1) {
        le(out + 20, 14, 2);
        le(out + 22, 6, 2);
        le(out + 24, 7, 4);
        le(out + 28, 3, 2);
        le(out + 30, 2, 2);
        le(out + 32, 64, 2);
    } else if (type == 2) {
        memset(out + 20, 0xA1, 16);
        le(out + 56, 0x0310, 2);
        memset(out + 60, 0x5A, 512);
    } else {
        le(out + 20, 1496, 4);
        le(out + 24, 120000, 4);
        le(out + 30, 64, 2);
    }
    return sizes[type];
}

#endif
