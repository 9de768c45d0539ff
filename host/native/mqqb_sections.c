/* mqqb_sections.c: part of mqqb_scan.c and mqqb_run.c: the walk over the sections of a message, up to its body. */
#include "mqqb_scan.h"

#include <string.h>

#define MQQB_CHECKS_ONLY
#include "mqqb.c" /* NOLINT(bugprone-suspicious-include): the range checks, which exist once */

#define GUID_SIZE 16u

static inline uint64_t align4(uint64_t n)
{
    return (n + 3) & ~(uint64_t)3;
}

/* The walk of a header chain (B-430): 64-bit, never past limit. */
typedef struct {
    const uint8_t *packet;
    uint64_t cursor, limit;
} walk;

static inline int has(const walk *w, uint64_t bytes)
{
    return bytes <= w->limit - w->cursor;
}

static inline const uint8_t *here(const walk *w)
{
    return w->packet + w->cursor;
}

#define TOP_BITS 0x8000800080008000u

/* For four WCHARs: no top bit is set if each is from 1 to 0x8000. */
static inline uint64_t less_one(const uint8_t *text)
{
    uint64_t x;

    memcpy(&x, text, 8);
    return x - 0x0001000100010001u;
}

/* Is the last of `length` WCHARs their only NUL? At least 32 bytes of the packet precede the text. */
static inline int terminated(const uint8_t *text, uint64_t length)
{
    const uint8_t *const last = text + 2 * length - 2;

    if (length > 8) { /* the quick usual check; reads some WCHARs twice */
        uint64_t found = less_one(last - 16) | less_one(last - 8);
        const uint8_t *at = text;
        for (; at < last - 32; at += 32) {
            found |= less_one(at) | less_one(at + 8) | less_one(at + 16) | less_one(at + 24);
        }
        if (at < last - 16) {
            found |= less_one(at) | less_one(at + 8);
        }
        if ((found & TOP_BITS) == 0) {
            return le16(last) == 0;
        }
    }
    while (text < last && le16(text) != 0) {
        text += 2;
    }
    return text == last && le16(last) == 0;
}

/* Step over a queue name (wire.md 1.5). selector: DQ, AQ or RQ, checked; kind 1 takes no bytes. */
static inline int32_t pass_name(walk *w, uint32_t selector)
{
    static const uint8_t sizes[7] = {0, 0, 4, 4, 4, 16, 20};
    uint64_t need;

    if (selector < 7) {
        need = sizes[selector];
        if (!has(w, need)) {
            return MQQB_SCAN_BAD_CHAIN;
        }
    } else {
        uint32_t count;
        if (!has(w, 4)) {
            return MQQB_SCAN_BAD_CHAIN;
        }
        count = le16(here(w));
        need = align4(2 + (uint64_t)count);
        if (count < 4 || count % 2 != 0) {
            return MQQB_SCAN_BAD_NAME;
        }
        if (!has(w, need)) {
            return MQQB_SCAN_BAD_CHAIN;
        }
        if (!terminated(here(w) + 2, count / 2)) {
            return MQQB_SCAN_BAD_NAME;
        }
    }
    w->cursor += need;
    return MQQB_OK;
}

/* The sections of a message up to its body. 0: the message has no such section. */
typedef struct {
    uint32_t destination_end, transaction_at, properties_at, label_at, body_at, body_size, allocated_size;
} sections;

static inline int32_t pass_bytes(walk *w, uint64_t count)
{
    if (!has(w, count)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    w->cursor += count;
    return MQQB_OK;
}

static inline int32_t pass_user(walk *w, sections *s)
{
    const uint32_t flags = le32(w->packet + MQQB_USER_FLAGS_AT);
    int32_t status = check_user_header(w->packet + MQQB_BASE_END);

    if (status == MQQB_OK) {
        status = pass_name(w, flags >> 10 & 7);
    }
    s->destination_end = (uint32_t)w->cursor;
    if (status == MQQB_OK && (flags & (MQQB_USER_AQ | MQQB_USER_RQ)) != 0) { /* usually none */
        status = pass_name(w, flags >> 13 & 7);
        if (status == MQQB_OK) {
            status = pass_name(w, flags >> 16 & 7);
        }
    }
    return status != MQQB_OK ? status : pass_bytes(w, (flags & MQQB_USER_CQ) != 0 ? GUID_SIZE : 0);
}

static inline int32_t pass_transaction(walk *w, sections *s)
{
    const uint8_t *const in = here(w);
    int32_t status;

    if (!has(w, MQQB_TRANSACTION_HEADER_SIZE)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    status = check_transaction_header(in);
    if (status != MQQB_OK) {
        return status;
    }
    s->transaction_at = (uint32_t)w->cursor;
    return pass_bytes(w,
                      MQQB_TRANSACTION_HEADER_SIZE + ((in[MQQB_TX_FLAGS_IN_PART] & MQQB_TX_CG) != 0 ? GUID_SIZE : 0));
}

static inline int32_t pass_security(walk *w)
{
    const uint8_t *const in = here(w);
    int32_t status;

    if (!has(w, MQQB_SECURITY_HEADER_SIZE)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    status = check_security_header(in);
    if (status != MQQB_OK) {
        return status;
    }
    return pass_bytes(w, MQQB_SECURITY_HEADER_SIZE + align4(le16(in + MQQB_SECURITY_SENDER_ID_SIZE_IN_PART)) +
                             align4(le16(in + MQQB_SECURITY_ENCRYPTION_KEY_SIZE_IN_PART)) +
                             align4(le16(in + MQQB_SECURITY_SIGNATURE_SIZE_IN_PART)) +
                             align4(le32(in + MQQB_SECURITY_SENDER_CERT_SIZE_IN_PART)) +
                             align4(le32(in + MQQB_SECURITY_PROVIDER_INFO_SIZE_IN_PART)));
}

static inline int32_t pass_properties(walk *w, sections *s)
{
    const uint8_t *const in = here(w);
    uint32_t label_length;
    int32_t status;

    if (!has(w, MQQB_MESSAGE_PROPERTIES_HEADER_SIZE)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    status = check_message_properties_header(in);
    if (status != MQQB_OK) {
        return status;
    }
    s->properties_at = (uint32_t)w->cursor;
    w->cursor += MQQB_MESSAGE_PROPERTIES_HEADER_SIZE;
    s->label_at = (uint32_t)w->cursor;
    label_length = in[MQQB_PROPERTIES_LABEL_LENGTH_IN_PART];
    status = pass_bytes(w, 2 * (uint64_t)label_length);
    if (status != MQQB_OK) {
        return status;
    }
    if (label_length != 0 && !terminated(w->packet + s->label_at, label_length)) {
        return MQQB_SCAN_BAD_LABEL;
    }
    status = pass_bytes(w, le32(in + MQQB_PROPERTIES_EXTENSION_SIZE_IN_PART));
    s->body_at = (uint32_t)w->cursor;
    s->body_size = le32(in + MQQB_PROPERTIES_MESSAGE_SIZE_IN_PART);
    s->allocated_size = le32(in + MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART);
    if (status == MQQB_OK && !has(w, s->allocated_size)) {
        status = has(w, s->body_size) ? (int32_t)MQQB_BAD_BODY_SIZE : (int32_t)MQQB_SCAN_BAD_CHAIN;
    }
    return status;
}

/* Find the sections of a message (wire.md section 3), packet_size bytes with a checked BaseHeader, and check the
 * fixed parts, names and label (B-430 to B-432). */
static inline int32_t find_sections(const uint8_t *packet, uint32_t packet_size, sections *s)
{
    const uint32_t flags = le32(packet + MQQB_USER_FLAGS_AT);
    walk w = {packet, MQQB_USER_END, packet_size};
    int32_t status = pass_user(&w, s);

    s->transaction_at = 0;
    if (status == MQQB_OK && (flags & MQQB_USER_TH) != 0) {
        status = pass_transaction(&w, s);
    }
    if (status == MQQB_OK && (flags & MQQB_USER_SH) != 0) {
        status = pass_security(&w);
    }
    return status != MQQB_OK ? status : pass_properties(&w, s);
}
