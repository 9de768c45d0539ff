/* mqqb_scan.c: see mqqb_scan.h. A small block collects rows, and goes to the columns 16 rows at a time. Writing
 * some forty distant arrays for each packet would evict their lines from the first-level cache. MQQB_ROWS_ONLY is
 * for mqqb_capture.c, which includes this file for the rows and has its own columns. */
#include "mqqb_scan.h"

#include <string.h>

#include "mqqb_sections.c" /* NOLINT(bugprone-suspicious-include): the walk over a message, which exists once */

#define BLOCK ((size_t)16)
#define PACKETS_AHEAD 16u /* prefetched packets */
#define FETCHED 256u      /* bytes of each, usually all before the body */

#ifdef __GNUC__
#define PREFETCH(address) __builtin_prefetch(address)
#define PREFETCH_TO_WRITE(address) __builtin_prefetch(address, 1)
#else
#define PREFETCH(address) ((void)(address))
#define PREFETCH_TO_WRITE(address) ((void)(address))
#endif

/* A row is every BLOCK-th word from here. */
typedef uint32_t row;

static inline void put(row *r, unsigned column, uint32_t value)
{
    r[column * BLOCK] = value;
}

/* One of the two halves of a SoapHeader (wire.md 2.7). */
static int32_t pass_soap_section(walk *w, uint32_t id)
{
    uint64_t length;

    if (!has(w, 8)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    length = le32(here(w) + 4);
    if (le16(here(w)) != id || length == 0) {
        return MQQB_SCAN_BAD_SOAP;
    }
    w->cursor += 8;
    if (!has(w, 2 * length)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    if (!terminated(here(w), length)) {
        return MQQB_SCAN_BAD_SOAP;
    }
    w->cursor += 2 * length;
    return MQQB_OK;
}

static int32_t pass_soap(walk *w)
{
    int32_t status = pass_soap_section(w, 0x0320);

    if (status != MQQB_OK) {
        return status;
    }
    /* The alignment of the second half is unspecified (OP-8): its id decides. The padding would be two bytes. */
    if (has(w, 2) && le16(here(w)) != 0x0384) {
        w->cursor = align4(w->cursor);
    }
    status = pass_soap_section(w, 0x0384);
    if (status == MQQB_OK && !has(w, align4(w->cursor) - w->cursor)) {
        status = MQQB_SCAN_BAD_CHAIN;
    }
    w->cursor = align4(w->cursor);
    return status;
}

/* MultiQueueFormatHeader (wire.md 2.8): three lists and a signature. Sizes may or may not count padding (OP-10). */
static int32_t pass_lists(walk *w)
{
    static const uint16_t ids[3] = {0x0064, 0x00C8, 0x012C};
    unsigned i;

    for (i = 0; i < 3; i++) {
        uint64_t size;
        if (!has(w, 12)) {
            return MQQB_SCAN_BAD_CHAIN;
        }
        size = le32(here(w));
        if (le16(here(w) + 4) != ids[i] || size < 12 || (uint64_t)4 * le32(here(w) + 8) > size - 12) {
            return MQQB_SCAN_BAD_LIST;
        }
        if (!has(w, align4(size))) {
            return MQQB_SCAN_BAD_CHAIN;
        }
        w->cursor += align4(size);
    }
    if (!has(w, 8)) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    if (le16(here(w)) != 0x015E) {
        return MQQB_SCAN_BAD_LIST;
    }
    return has(w, 8 + (uint64_t)le32(here(w) + 4)) ? (int32_t)MQQB_OK : (int32_t)MQQB_SCAN_BAD_CHAIN;
}

/* Headers behind the body, which ends at packet + body_end. Trailing bytes are ignored (OP-2). */
static inline int32_t pass_rest(const uint8_t *packet, uint64_t body_end, uint64_t limit, uint32_t base_flags,
                                uint32_t user_flags)
{
    walk w = {packet, align4(body_end), limit};
    int32_t status = MQQB_OK;

    if (w.cursor > limit) {
        return MQQB_SCAN_BAD_CHAIN;
    }
    if ((base_flags & MQQB_BASE_DH) != 0) {
        uint64_t need = MQQB_DEBUG_HEADER_SIZE;
        if (has(&w, need)) {
            status = check_debug_header(here(&w));
            need += (here(&w)[MQQB_DEBUG_FLAGS_IN_PART] & 1) != 0 ? 16 : 0;
        }
        if (status != MQQB_OK) {
            return status;
        }
        if (!has(&w, need)) {
            return MQQB_SCAN_BAD_CHAIN;
        }
        w.cursor += need;
    }
    if ((user_flags & MQQB_USER_HH) != 0) {
        status = pass_soap(&w);
    }
    if (status == MQQB_OK && (user_flags & MQQB_USER_MQ) != 0) {
        status = pass_lists(&w);
    }
    return status;
}

static int32_t scan_session_header(const uint8_t *in, row *r, uint32_t offset)
{
    put(r, MQQB_SCAN_SESSION_OFFSET, offset);
    put(r, MQQB_SCAN_ACK_SEQUENCE_NUMBER, le16(in + MQQB_ACKS_SEQUENCE_NUMBER_IN_PART));
    put(r, MQQB_SCAN_RECOVERABLE_MSG_ACK_SEQ_NUMBER, le16(in + MQQB_ACKS_BASE_IN_PART));
    put(r, MQQB_SCAN_RECOVERABLE_MSG_ACK_FLAGS, le32(in + MQQB_ACKS_FLAGS_IN_PART));
    put(r, MQQB_SCAN_USER_MSG_SEQUENCE_NUMBER, le16(in + MQQB_ACKS_SENT_IN_PART));
    put(r, MQQB_SCAN_RECOVERABLE_MSG_SEQUENCE_NUMBER, le16(in + MQQB_ACKS_RECOVERABLE_SENT_IN_PART));
    put(r, MQQB_SCAN_WINDOW_SIZE, le16(in + MQQB_ACKS_WINDOW_SIZE_IN_PART));
    return check_session_header(in);
}

/* IN = 1 (wire.md section 5; the sizes are fixed, B-433). */
static int32_t scan_internal(const uint8_t *packet, uint32_t packet_size, row *r, uint32_t offset, uint32_t base_flags)
{
    static const uint16_t sizes[4] = {0, MQQB_PACKET_SIZE_SESSION_ACK, MQQB_PACKET_SIZE_ESTABLISH_CONNECTION,
                                      MQQB_PACKET_SIZE_CONNECTION_PARAMETERS};
    const int32_t status = check_internal_header(packet + MQQB_BASE_END);
    const uint32_t flags = le16(packet + MQQB_INTERNAL_FLAGS_AT);

    if (status != MQQB_OK) {
        return status;
    }
    if ((flags & MQQB_INTERNAL_PT) == MQQB_PT_SESSION_ACK && (base_flags & MQQB_BASE_SH) == 0) {
        return MQQB_SCAN_BAD_KIND;
    }
    if (packet_size != sizes[flags & MQQB_INTERNAL_PT]) {
        return MQQB_BAD_PACKET_SIZE;
    }
    put(r, MQQB_SCAN_INTERNAL_FLAGS, flags);
    if ((flags & MQQB_INTERNAL_PT) == MQQB_PT_ESTABLISH_CONNECTION) {
        put(r, MQQB_SCAN_KIND, MQQB_KIND_ESTABLISH_CONNECTION);
        return check_establish_connection(packet + MQQB_INTERNAL_END);
    }
    if ((flags & MQQB_INTERNAL_PT) == MQQB_PT_CONNECTION_PARAMETERS) {
        put(r, MQQB_SCAN_KIND, MQQB_KIND_CONNECTION_PARAMETERS);
        return check_connection_parameters(packet + MQQB_INTERNAL_END);
    }
    put(r, MQQB_SCAN_KIND, MQQB_KIND_SESSION_ACK);
    return scan_session_header(packet + MQQB_INTERNAL_END, r, offset + MQQB_INTERNAL_END);
}

/* WCHARs against lower-case ASCII, in either case. */
static int is_text(const uint8_t *wide, const char *text)
{
    for (; *text != 0; text++, wide += 2) {
        const uint32_t c = le16(wide);
        if (c != (uint8_t)*text && (c < 'A' || c > 'Z' || c + 32 != (uint8_t)*text)) {
            return 0;
        }
    }
    return 1;
}

/* Is it order_queue$ of this queue manager (B-175), private queue 4 by DQ 3, or TCP: or SPX: by DQ 7? */
static int is_order_queue(const uint8_t *name, uint32_t user_flags)
{
    uint32_t length, i = 4;

    if ((user_flags & MQQB_USER_DQ) == 3u << 10) {
        return le32(name) == 4;
    }
    if ((user_flags & MQQB_USER_DQ) != 7u << 10) {
        return 0;
    }
    length = le16(name) / 2 - 1;
    name += 2;
    if (length < 4 + 1 + 22 || (!is_text(name, "tcp:") && !is_text(name, "spx:")) ||
        !is_text(name + 2 * (size_t)(length - 22), "\\private$\\order_queue$")) {
        return 0;
    }
    while (le16(name + 2 * (size_t)i) != '\\') {
        i++;
    }
    return i == length - 22;
}

static int is_ordering_label(const uint8_t *label, uint32_t length)
{
    static const uint8_t text[32] = "Q\0M\0 \0O\0r\0d\0e\0r\0i\0n\0g\0 \0A\0c\0k\0\0";

    return length == 16 && memcmp(label, text, sizeof text) == 0;
}

/* The body of an OrderAck or FinalAck (wire.md section 6). */
static int32_t scan_ack(const uint8_t *body, uint32_t body_size, row *r, uint32_t offset, uint32_t message_class)
{
    if (body_size != MQQB_FINAL_ACK_SIZE) {
        return MQQB_BAD_BODY_SIZE;
    }
    put(r, MQQB_SCAN_ACK_TX_SEQUENCE_ORDINAL, le32(body + MQQB_ACK_ORDINAL_IN_PART));
    put(r, MQQB_SCAN_ACK_TX_SEQUENCE_TIME_STAMP, le32(body + MQQB_ACK_TIME_STAMP_IN_PART));
    put(r, MQQB_SCAN_ACK_TX_SEQUENCE_NUMBER, le32(body + MQQB_ACK_NUMBER_IN_PART));
    put(r, MQQB_SCAN_ACK_PREVIOUS_TX_SEQUENCE_NUMBER, le32(body + MQQB_ACK_PREVIOUS_IN_PART));
    if (message_class == 0x00FF) {
        put(r, MQQB_SCAN_KIND, MQQB_KIND_ORDER_ACK);
    } else {
        put(r, MQQB_SCAN_KIND, MQQB_KIND_FINAL_ACK);
        put(r, MQQB_SCAN_ACK_SOURCE_OFFSET, offset + MQQB_ACK_SOURCE_GUID_IN_PART);
        put(r, MQQB_SCAN_ACK_MESSAGE_ID, le32(body + MQQB_ACK_MESSAGE_ID_IN_PART));
    }
    return check_ack_body(body);
}

/* IN = 0 (wire.md section 3). packet_size is at least 120. */
static int32_t scan_message(const uint8_t *packet, uint32_t packet_size, row *r, uint32_t offset, uint32_t base_flags)
{
    const uint32_t user_flags = le32(packet + MQQB_USER_FLAGS_AT);
    const uint8_t *in;
    uint32_t message_class, label_length;
    sections s;
    int32_t status = find_sections(packet, packet_size, &s);

    if (status != MQQB_OK) {
        return status;
    }
    status = pass_rest(packet, s.body_at + s.body_size, packet_size, base_flags, user_flags);
    /* B-432. The surplus of AllocationBodySize may or may not take bytes (OP-4): the readable alternative counts. */
    if (status != MQQB_OK &&
        (s.body_size == s.allocated_size ||
         pass_rest(packet, s.body_at + s.allocated_size, packet_size, base_flags, user_flags) != MQQB_OK)) {
        return status;
    }
    put(r, MQQB_SCAN_SOURCE_OFFSET, offset + MQQB_USER_SOURCE_QUEUE_MANAGER_AT);
    put(r, MQQB_SCAN_MESSAGE_ID, le32(packet + MQQB_USER_MESSAGE_ID_AT));
    put(r, MQQB_SCAN_USER_FLAGS, user_flags);
    put(r, MQQB_SCAN_SENT_TIME, le32(packet + MQQB_USER_SENT_TIME_AT));
    put(r, MQQB_SCAN_TIME_TO_BE_RECEIVED, le32(packet + MQQB_USER_TIME_TO_BE_RECEIVED_AT));
    if (s.destination_end > MQQB_USER_END) {
        put(r, MQQB_SCAN_DESTINATION_OFFSET, offset + MQQB_USER_END);
        put(r, MQQB_SCAN_DESTINATION_SIZE, s.destination_end - MQQB_USER_END);
    }
    if (s.transaction_at != 0) {
        in = packet + s.transaction_at;
        put(r, MQQB_SCAN_TX_FLAGS, le32(in + MQQB_TX_FLAGS_IN_PART));
        put(r, MQQB_SCAN_TX_SEQUENCE_ORDINAL, le32(in + MQQB_TX_ORDINAL_IN_PART));
        put(r, MQQB_SCAN_TX_SEQUENCE_TIME_STAMP, le32(in + MQQB_TX_TIME_STAMP_IN_PART));
        put(r, MQQB_SCAN_TX_SEQUENCE_NUMBER, le32(in + MQQB_TX_NUMBER_IN_PART));
        put(r, MQQB_SCAN_PREVIOUS_TX_SEQUENCE_NUMBER, le32(in + MQQB_TX_PREVIOUS_IN_PART));
    }
    in = packet + s.properties_at;
    label_length = in[MQQB_PROPERTIES_LABEL_LENGTH_IN_PART];
    message_class = le16(in + MQQB_PROPERTIES_MESSAGE_CLASS_IN_PART);
    put(r, MQQB_SCAN_PROPERTIES_OFFSET, offset + s.properties_at);
    put(r, MQQB_SCAN_PROPERTIES_FLAGS, in[MQQB_PROPERTIES_FLAGS_IN_PART]);
    put(r, MQQB_SCAN_MESSAGE_CLASS, message_class);
    if (label_length != 0) {
        put(r, MQQB_SCAN_LABEL_OFFSET, offset + s.label_at);
        put(r, MQQB_SCAN_LABEL_LENGTH, label_length);
    }
    put(r, MQQB_SCAN_BODY_OFFSET, offset + s.body_at);
    put(r, MQQB_SCAN_BODY_SIZE, s.body_size);

    put(r, MQQB_SCAN_KIND, MQQB_KIND_USER_MESSAGE);
    if ((message_class == 0x00FF || message_class >= 0x4000) && is_ordering_label(packet + s.label_at, label_length) &&
        is_order_queue(packet + MQQB_USER_END, user_flags)) {
        status = scan_ack(packet + s.body_at, s.body_size, r, offset + s.body_at, message_class);
        if (status != MQQB_OK) {
            return status;
        }
    }
    return (base_flags & MQQB_BASE_SH) != 0 ? scan_session_header(packet + packet_size, r, offset + packet_size)
                                            : MQQB_OK;
}

/* Scan one packet from data[0..room) to a row of zeros; `offset` bytes precede it. MQQB_NEED_MORE: it is
 * incomplete, and nothing was written. *total: MQQB_SCAN_TOTAL_SIZE. */
static inline int32_t scan_packet(const uint8_t *packet, uint32_t room, row *r, uint32_t offset, uint32_t *total)
{
    uint32_t base_flags, packet_size;
    int32_t found;

    *total = 0;
    if (room < MQQB_BASE_HEADER_SIZE) {
        return MQQB_NEED_MORE;
    }
    base_flags = le16(packet + MQQB_BASE_FLAGS_AT);
    packet_size = le32(packet + MQQB_BASE_PACKET_SIZE_AT);
    found = check_base_header(packet);
    if (found == MQQB_OK) {
        *total = mqqb_packet_total(base_flags, packet_size);
        if (room < *total) {
            return MQQB_NEED_MORE;
        }
        found = (base_flags & MQQB_BASE_IN) != 0 ? scan_internal(packet, packet_size, r, offset, base_flags)
                                                 : scan_message(packet, packet_size, r, offset, base_flags);
    }
    if (found != MQQB_OK) {
        for (unsigned column = 0; column < MQQB_SCAN_COLUMNS; column++) {
            put(r, column, 0);
        }
    }
    put(r, MQQB_SCAN_OFFSET, offset);
    put(r, MQQB_SCAN_TOTAL_SIZE, *total);
    put(r, MQQB_SCAN_STATUS, (uint32_t)found);
    put(r, MQQB_SCAN_BASE_FLAGS, base_flags);
    put(r, MQQB_SCAN_TIME_TO_REACH_QUEUE, le32(packet + MQQB_BASE_TIME_TO_REACH_QUEUE_AT));
    return found;
}

#ifndef MQQB_ROWS_ONLY
/* Copy to the columns, from row at on, and prefetch the lines `ahead` rows behind them. */
static inline void flush(const mqqb_scan_columns *columns, row *block, size_t at, size_t rows, size_t ahead)
{
    for (unsigned column = 0; column < MQQB_SCAN_COLUMNS; column++) {
        if (columns->column[column] != NULL) {
            uint32_t *const to = columns->column[column] + at;
            PREFETCH_TO_WRITE(to + ahead);
            memcpy(to, block + column * BLOCK, rows * sizeof(row));
        }
        memset(block + column * BLOCK, 0, BLOCK * sizeof(row));
    }
}

/* Packets of a stream are often alike: predict the place of a later packet from this one's length. The processor
 * itself prefetches neither across bodies nor across pages. */
static inline void fetch_ahead(const uint8_t *packet, uint32_t room, uint32_t total)
{
    const uint64_t at = (uint64_t)PACKETS_AHEAD * total;

    if (at + FETCHED < room) {
        for (unsigned line = 0; line < FETCHED; line += 64) {
            PREFETCH(packet + at + line);
        }
    }
}

size_t mqqb_scan(const uint8_t *data, size_t size, const mqqb_scan_columns *columns, size_t capacity, size_t *consumed,
                 int32_t *status)
{
    row block[MQQB_SCAN_COLUMNS * BLOCK] = {0};
    const uint32_t end = size > UINT32_MAX ? UINT32_MAX : (uint32_t)size;
    uint32_t cursor = 0;
    size_t rows = 0, flushed = 0;
    int32_t outcome = MQQB_OK;

    while (outcome >= MQQB_OK && cursor < size) {
        uint32_t total;
        int32_t found;

        if (rows == capacity) {
            outcome = MQQB_SCAN_FULL;
            break;
        }
        found = scan_packet(data + cursor, end - cursor, block + rows % BLOCK, cursor, &total);
        if (found == MQQB_NEED_MORE) {
            outcome = found;
            break;
        }
        fetch_ahead(data + cursor, end - cursor, total);
        if (total == 0) {
            outcome = found;
        }
        cursor += total;
        rows++;
        if (rows % BLOCK == 0) {
            flush(columns, block, flushed, BLOCK, capacity - flushed >= 3 * BLOCK ? 2 * BLOCK : 0);
            flushed = rows;
        }
    }
    flush(columns, block, flushed, rows - flushed, 0);
    *consumed = cursor;
    *status = outcome;
    return rows;
}
#endif
