/* mqqb_capture.c: see mqqb_capture.h.
 *
 * A byte's way: mqqb_capture_read finds the next frame, read_frame its IP datagram, read_tcp its connection. Bytes
 * in order, with none waiting, are cut into packets in place (consume). Others become references in the direction's
 * list (wait), and drain takes continuous ones from the lists. A writer of rows may find no room: drain then
 * continues at the same byte in the next call. Such a connection is `active`. */
#include "mqqb_capture.h"
#include "mqqb_line.h"

#include <string.h>

#define MQQB_ROWS_ONLY
#include "mqqb_scan.c" /* NOLINT(bugprone-suspicious-include): the rows, which exist once */

#define NONE 0xFFFFFFFFu
#define TCP_PORT 1801u
#define TLS_HANDSHAKE 0x16u /* first byte of a record */
#define TLS_VERSION 3u      /* second byte */
#define VXLAN_PORT 4789u
#define RECORD_MAX (16u << 20) /* bytes of one frame or block; more means a corrupt length */
#define PENDING_MAX (4u << 20) /* bytes kept out of order for one direction: more than a TCP window */
#define AHEAD_MAX (16u << 20)  /* an acknowledgement this far beyond the seen bytes is ignored */
#define FETCH_AHEAD 8192u      /* prefetched bytes of the file: some tens of frames */

/* Values of direction.flags */
#define IS_OPEN 1u      /* sequence is known */
#define IS_TOLD 2u      /* MQQB_KIND_BEGIN or MQQB_KIND_OLDER was reported */
#define IS_SEARCHING 4u /* for a BaseHeader */
#define IS_DEAD 8u      /* no BaseHeader where one is due */
#define HAS_FIN 16u
#define IS_ENDED 32u    /* MQQB_KIND_END was reported */
#define HAS_BEGUN 128u  /* its SYN, or the answering SYN, was seen: initial is known */
#define IS_FOREIGN 256u /* MQQB_KIND_FOREIGN was reported */

/* Values of connection.flags */
#define HAS_SYN 1u
#define IS_CLOSED 2u /* another connection uses its addresses and ports now */

/* Answers of read_frame besides mqqb_capture's statuses. */
#define FRAME_DONE 0
#define FRAME_AGAIN 8 /* after drain */

#define FIN 1u
#define SYN 2u
#define RST 4u
#define ACK 16u

/* Prefetch: the processor cannot predict the steps from record to record. */
static inline void fetch(const uint8_t *from, uint64_t size)
{
    for (const uint8_t *const end = from + size; from < end; from += 64) {
        PREFETCH(from);
    }
}

typedef mqqb_capture_segment piece;

static inline uint32_t be16(const uint8_t *in)
{
    return (uint32_t)in[0] << 8 | in[1];
}

static inline uint32_t be32(const uint8_t *in)
{
    return be16(in) << 16 | be16(in + 2);
}

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* a - b modulo 2^32, as a signed number. */
static inline int32_t ahead_of(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b);
}

static inline uint64_t mixed(uint64_t x)
{
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

/* ---- dictionaries ----------------------------------------------------------------------------- */

static uint64_t hash_of(const uint8_t *bytes, uint64_t size)
{
    uint64_t hash = size, word = 0;

    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, bytes, size);
    return mixed(hash ^ word);
}

static inline int is_entry(const mqqb_capture_dictionary *dictionary, uint32_t code, uint32_t head,
                           const uint8_t *bytes, uint64_t size)
{
    const uint64_t begin = dictionary->end[code - 1];
    const uint8_t *const entry = dictionary->bytes + begin;

    return dictionary->end[code] - begin == size + 1 && entry[0] == head && memcmp(entry + 1, bytes, size) == 0;
}

/* The code of an entry: a byte, and bytes. The dictionary has room. */
static uint32_t code_of(mqqb_capture_dictionary *dictionary, uint32_t *last, uint32_t head, const uint8_t *bytes,
                        uint64_t size)
{
    uint64_t at;
    uint32_t code;

    if (*last != 0 && is_entry(dictionary, *last, head, bytes, size)) {
        return *last;
    }
    for (at = hash_of(bytes, size);; at++) {
        at &= dictionary->index_size - 1;
        code = dictionary->index[at];
        if (code == 0) {
            break;
        }
        if (is_entry(dictionary, code, head, bytes, size)) {
            *last = code;
            return code;
        }
    }
    code = ++dictionary->count;
    dictionary->end[code] = dictionary->end[code - 1] + 1 + size;
    dictionary->bytes[dictionary->end[code - 1]] = (uint8_t)head;
    memcpy(dictionary->bytes + dictionary->end[code - 1] + 1, bytes, size);
    dictionary->index[at] = code;
    *last = code;
    return code;
}

static inline int has_room(const mqqb_capture_dictionary *dictionary)
{
    return dictionary->capacity - dictionary->count >= 8 &&
           dictionary->size - dictionary->end[dictionary->count] >= MQQB_CAPTURE_NAMES;
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* Is there room for a packet of any size? */
static inline int has_bytes(const mqqb_capture *c)
{
    return c->columns.packets == NULL || c->columns.packets_size - c->packets_used >= MQQB_CAPTURE_SCRATCH;
}

/* Is there room for a row and its dictionary entries? */
static inline int32_t ready(const mqqb_capture *c)
{
    if (c->rows == c->capacity ||
        (c->columns.label_text != NULL && c->columns.label_size - c->label_used < MQQB_CAPTURE_LABEL) ||
        !has_bytes(c)) {
        return MQQB_CAPTURE_ROWS;
    }
    return has_room(&c->dictionary[0]) && has_room(&c->dictionary[1]) ? MQQB_CAPTURE_END_OF_FILE
                                                                      : MQQB_CAPTURE_GROW_DICTIONARY;
}

static void flush(mqqb_capture *c)
{
    const uint32_t count = c->details != 0 ? MQQB_CAPTURE_COLUMNS : MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS;
    const size_t rows = c->rows - c->flushed;
    const size_t ahead = smaller(c->capacity - c->flushed, 2 * BLOCK); /* rows up to the lines written next */

    for (unsigned column = 0; column < count; column++) {
        uint32_t *const to = c->columns.column[column];
        if (to != NULL && rows == BLOCK) {
            PREFETCH_TO_WRITE(to + c->flushed + ahead);
            memcpy(to + c->flushed, c->block + column * BLOCK, BLOCK * sizeof(row)); /* a size known to the compiler */
        } else if (to != NULL) {
            memcpy(to + c->flushed, c->block + column * BLOCK, rows * sizeof(row));
        }
    }
    memset(c->block, 0, count * BLOCK * sizeof(row));
    c->flushed = c->rows;
}

static inline row *new_row(mqqb_capture *c)
{
    return c->block + (c->rows - c->flushed);
}

/* Complete a row with its place in the capture. */
static inline void end_row(mqqb_capture *c, uint32_t connection, uint32_t side, uint32_t file, uint32_t frame,
                           int64_t time)
{
    row *const r = new_row(c);

    put(r, MQQB_CAPTURE_FILE, file);
    put(r, MQQB_CAPTURE_FRAME, frame);
    put(r, MQQB_CAPTURE_CONNECTION, connection);
    put(r, MQQB_CAPTURE_DIRECTION, side);
    if (c->columns.time != NULL) {
        c->columns.time[c->rows] = time;
    }
    if (c->columns.label_end != NULL) {
        c->columns.label_end[c->rows] = (int32_t)c->label_used;
    }
    if (c->columns.packet_end != NULL) {
        c->columns.packet_end[c->rows] = (int64_t)c->packets_used;
    }
    c->rows++;
    if (c->rows - c->flushed == BLOCK) {
        flush(c);
    }
}

/* Append the packet of the current row. There is room. */
static inline void put_packet(mqqb_capture *c, const uint8_t *packet, uint64_t size)
{
    if (c->columns.packets != NULL) {
        memcpy(c->columns.packets + c->packets_used, packet, size);
        c->packets_used += size;
    }
}

static void tell(mqqb_capture *c, uint32_t connection, uint32_t side, uint32_t kind, uint32_t status, uint32_t size)
{
    const mqqb_capture_direction *const d = &c->connections[connection].direction[side];
    const int is_begun = c->columns.packets != NULL && d->carry != NONE;
    const mqqb_capture_segment now = {.time = c->told_time, .file = c->told_file, .frame = c->told_frame};
    const mqqb_capture_segment *const at = is_begun ? &c->segments[d->carry] : &now;
    row *const r = new_row(c);

    put(r, MQQB_SCAN_KIND, kind);
    put(r, MQQB_SCAN_STATUS, status);
    put(r, MQQB_SCAN_TOTAL_SIZE, size);
    put(r, MQQB_SCAN_OFFSET, (uint32_t)d->offset);
    if (c->columns.correlation_id != NULL) {
        memset(c->columns.correlation_id + (size_t)20 * c->rows, 0, 20);
    }
    end_row(c, connection, side, at->file, at->frame, at->time);
}

static inline uint8_t *put_utf8(uint8_t *out, uint32_t x)
{
    if (x < 0x80) {
        *out++ = (uint8_t)x;
        return out;
    }
    if (x < 0x800) {
        *out++ = (uint8_t)(0xC0 | x >> 6);
    } else {
        if (x < 0x10000) {
            *out++ = (uint8_t)(0xE0 | x >> 12);
        } else {
            *out++ = (uint8_t)(0xF0 | x >> 18);
            *out++ = (uint8_t)(0x80 | (x >> 12 & 0x3F));
        }
        *out++ = (uint8_t)(0x80 | (x >> 6 & 0x3F));
    }
    *out++ = (uint8_t)(0x80 | (x & 0x3F));
    return out;
}

/* A label, without its NUL. */
static void put_label(mqqb_capture *c, const uint8_t *text, uint32_t length)
{
    uint8_t *const begin = c->columns.label_text + c->label_used;
    uint8_t *out = begin;

    while (length-- > 0) {
        uint32_t x = le16(text);
        text += 2;
        if ((x & 0xF800) == 0xD800) {
            if ((x & 0x0400) == 0 && length > 0 && (le16(text) & 0xFC00) == 0xDC00) {
                x = 0x10000 + ((x & 0x3FF) << 10 | (le16(text) & 0x3FF));
                text += 2;
                length--;
            } else {
                x = 0xFFFD;
            }
        }
        out = put_utf8(out, x);
    }
    c->label_used += (uint64_t)(out - begin);
}

/* AQ or RQ, at w. */
static void put_name(mqqb_capture *c, row *r, unsigned column, walk *w, uint32_t selector)
{
    const uint8_t *const name = here(w);
    uint32_t last = 0;
    uint64_t size;

    (void)pass_name(w, selector);
    size = (uint64_t)(here(w) - name);
    if (selector == 7) {
        put(r, column, code_of(&c->dictionary[1], &last, selector, name + 2, le16(name)));
    } else if (selector != 0) {
        put(r, column, code_of(&c->dictionary[1], &last, selector, name, size));
    }
}

static void put_guid(mqqb_capture *c, row *r, unsigned column, uint32_t *last, const uint8_t *guid)
{
    put(r, column, code_of(&c->dictionary[0], last, 0, guid, 16));
}

/* Fill the columns that mqqb_scan leaves out. The packet is well formed. */
static void put_details(mqqb_capture *c, mqqb_capture_direction *d, const uint8_t *packet, row *r)
{
    const uint32_t kind = r[MQQB_SCAN_KIND * BLOCK];
    const uint32_t user_flags = r[MQQB_SCAN_USER_FLAGS * BLOCK];
    const uint8_t *const in = packet + r[MQQB_SCAN_PROPERTIES_OFFSET * BLOCK];
    walk w = {packet, MQQB_USER_END + (uint64_t)r[MQQB_SCAN_DESTINATION_SIZE * BLOCK], r[MQQB_SCAN_TOTAL_SIZE * BLOCK]};
    uint32_t last = 0;

    if (kind == MQQB_KIND_SESSION_ACK) {
        return;
    }
    if (kind == MQQB_KIND_ESTABLISH_CONNECTION) {
        put_guid(c, r, MQQB_CAPTURE_CLIENT_GUID, &last, packet + MQQB_ESTABLISH_CLIENT_GUID_AT);
        put_guid(c, r, MQQB_CAPTURE_SERVER_GUID, &last, packet + MQQB_ESTABLISH_SERVER_GUID_AT);
        put(r, MQQB_CAPTURE_TIME_STAMP, le32(packet + MQQB_ESTABLISH_TIME_STAMP_AT));
        put(r, MQQB_CAPTURE_OPERATING_SYSTEM, le16(packet + MQQB_ESTABLISH_OPERATING_SYSTEM_AT));
        return;
    }
    if (kind == MQQB_KIND_CONNECTION_PARAMETERS) {
        put(r, MQQB_CAPTURE_RECOVERABLE_ACK_TIMEOUT, le32(packet + MQQB_PARAMETERS_RECOVERABLE_ACK_TIMEOUT_AT));
        put(r, MQQB_CAPTURE_ACK_TIMEOUT, le32(packet + MQQB_PARAMETERS_ACK_TIMEOUT_AT));
        put(r, MQQB_CAPTURE_PARAMETERS_WINDOW_SIZE, le16(packet + MQQB_PARAMETERS_WINDOW_SIZE_AT));
        return;
    }
    put_guid(c, r, MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS, &d->code[3], packet + MQQB_USER_QUEUE_MANAGER_ADDRESS_AT);
    put_name(c, r, MQQB_CAPTURE_ADMINISTRATION_QUEUE, &w, user_flags >> 13 & 7);
    put_name(c, r, MQQB_CAPTURE_RESPONSE_QUEUE, &w, user_flags >> 16 & 7);
    w.cursor += (user_flags & MQQB_USER_CQ) != 0 ? 16 : 0;
    if ((user_flags & MQQB_USER_TH) != 0) {
        if ((here(&w)[MQQB_TX_FLAGS_IN_PART] & MQQB_TX_CG) != 0) {
            put_guid(c, r, MQQB_CAPTURE_CONNECTOR_QUEUE_MANAGER, &last, here(&w) + MQQB_TRANSACTION_HEADER_SIZE);
            w.cursor += 16;
        }
        w.cursor += MQQB_TRANSACTION_HEADER_SIZE;
    }
    if ((user_flags & MQQB_USER_SH) != 0) {
        const uint8_t *const security = here(&w);
        put(r, MQQB_CAPTURE_SECURITY_FLAGS, le16(security + MQQB_SECURITY_FLAGS_IN_PART));
        put(r, MQQB_CAPTURE_SENDER_ID_SIZE, le16(security + MQQB_SECURITY_SENDER_ID_SIZE_IN_PART));
        put(r, MQQB_CAPTURE_ENCRYPTION_KEY_SIZE, le16(security + MQQB_SECURITY_ENCRYPTION_KEY_SIZE_IN_PART));
        put(r, MQQB_CAPTURE_SIGNATURE_SIZE, le16(security + MQQB_SECURITY_SIGNATURE_SIZE_IN_PART));
        put(r, MQQB_CAPTURE_SENDER_CERT_SIZE, le32(security + MQQB_SECURITY_SENDER_CERT_SIZE_IN_PART));
        put(r, MQQB_CAPTURE_PROVIDER_INFO_SIZE, le32(security + MQQB_SECURITY_PROVIDER_INFO_SIZE_IN_PART));
    }
    put(r, MQQB_CAPTURE_BODY_TYPE, le32(in + MQQB_PROPERTIES_BODY_TYPE_IN_PART));
    put(r, MQQB_CAPTURE_APPLICATION_TAG, le32(in + MQQB_PROPERTIES_APPLICATION_TAG_IN_PART));
    put(r, MQQB_CAPTURE_ALLOCATION_BODY_SIZE, le32(in + MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART));
    put(r, MQQB_CAPTURE_PRIVACY_LEVEL, le32(in + MQQB_PROPERTIES_PRIVACY_LEVEL_IN_PART));
    put(r, MQQB_CAPTURE_HASH_ALGORITHM, le32(in + MQQB_PROPERTIES_HASH_ALGORITHM_IN_PART));
    put(r, MQQB_CAPTURE_ENCRYPTION_ALGORITHM, le32(in + MQQB_PROPERTIES_ENCRYPTION_ALGORITHM_IN_PART));
    put(r, MQQB_CAPTURE_EXTENSION_SIZE, le32(in + MQQB_PROPERTIES_EXTENSION_SIZE_IN_PART));
    if (c->columns.column[MQQB_CAPTURE_BODY_CRC] != NULL) {
        put(r, MQQB_CAPTURE_BODY_CRC,
            mqqb_crc32(0, packet + r[MQQB_SCAN_BODY_OFFSET * BLOCK], r[MQQB_SCAN_BODY_SIZE * BLOCK]));
    }
}

/* Are the first bytes, which are no packet, of another protocol? Not if they may be ours in TLS. */
static int is_foreign(const mqqb_capture_direction *other, const uint8_t *in)
{
    return (in[0] != TLS_HANDSHAKE || in[1] != TLS_VERSION) && (other->offset == 0 || (other->flags & IS_FOREIGN) != 0);
}

/* Make a row for the packet at packet[0..room), at least 16 bytes, unless it is longer. s: its beginning. Returns
 * its size, 0 if unknown. */
static uint32_t add_packet(mqqb_capture *c, uint32_t connection, uint32_t side, const uint8_t *packet, uint32_t room,
                           const piece *s, uint64_t offset)
{
    mqqb_capture_direction *const d = &c->connections[connection].direction[side];
    row *const r = new_row(c);
    uint32_t total;
    const int32_t status = scan_packet(packet, room, r, 0, &total);

    if (status == MQQB_NEED_MORE) {
        return total;
    }
    put(r, MQQB_SCAN_OFFSET, (uint32_t)offset);
    if (total == 0 && offset == 0 && is_foreign(&c->connections[connection].direction[1 - side], packet)) {
        put(r, MQQB_SCAN_KIND, MQQB_KIND_FOREIGN);
        d->flags |= IS_FOREIGN;
    }
    if (status == MQQB_OK && r[MQQB_SCAN_SOURCE_OFFSET * BLOCK] != 0) {
        const uint32_t selector = r[MQQB_SCAN_USER_FLAGS * BLOCK] >> 10 & 7;
        const uint32_t name_size = r[MQQB_SCAN_DESTINATION_SIZE * BLOCK];

        if (c->columns.column[MQQB_CAPTURE_SOURCE_QUEUE_MANAGER] != NULL) {
            put_guid(c, r, MQQB_CAPTURE_SOURCE_QUEUE_MANAGER, &d->code[0], packet + MQQB_USER_SOURCE_QUEUE_MANAGER_AT);
        }
        if (c->columns.column[MQQB_CAPTURE_DESTINATION_QUEUE] != NULL) {
            if (selector == 7) {
                put(r, MQQB_CAPTURE_DESTINATION_QUEUE,
                    code_of(&c->dictionary[1], &d->code[1], 7, packet + MQQB_USER_END + 2,
                            le16(packet + MQQB_USER_END)));
            } else if (selector != 0) {
                put(r, MQQB_CAPTURE_DESTINATION_QUEUE,
                    code_of(&c->dictionary[1], &d->code[1], selector, packet + MQQB_USER_END, name_size));
            }
        }
        if (r[MQQB_SCAN_ACK_SOURCE_OFFSET * BLOCK] != 0) {
            put_guid(c, r, MQQB_CAPTURE_ACK_SOURCE, &d->code[2], packet + r[MQQB_SCAN_ACK_SOURCE_OFFSET * BLOCK]);
        }
        if (c->columns.label_text != NULL && r[MQQB_SCAN_LABEL_LENGTH * BLOCK] != 0) {
            put_label(c, packet + r[MQQB_SCAN_LABEL_OFFSET * BLOCK], r[MQQB_SCAN_LABEL_LENGTH * BLOCK] - 1);
        }
    }
    if (c->columns.correlation_id != NULL) {
        uint8_t *const out = c->columns.correlation_id + (size_t)20 * c->rows;
        if (r[MQQB_SCAN_PROPERTIES_OFFSET * BLOCK] != 0) {
            memcpy(out, packet + r[MQQB_SCAN_PROPERTIES_OFFSET * BLOCK] + MQQB_PROPERTIES_CORRELATION_ID_IN_PART, 20);
        } else {
            memset(out, 0, 20);
        }
    }
    if (c->details != 0 && status == MQQB_OK) {
        put_details(c, d, packet, r);
    }
    put_packet(c, packet, total != 0 ? total : 16);
    end_row(c, connection, side, s->file, s->frame, s->time);
    return total;
}

/* ---- segments --------------------------------------------------------------------------------- */

/* Are there two free ones? A frame takes one at most, which leaves one for drain. */
static inline int has_segments(const mqqb_capture *c)
{
    return c->segments_size - c->segments_used + c->segments_spare >= 2;
}

/* There is a free one. segments_free is a number and 1, or 0. */
static uint32_t new_segment(mqqb_capture *c, const piece *s)
{
    uint32_t number = c->segments_free;

    if (number != 0) {
        number--;
        c->segments_free = c->segments[number].next;
        c->segments_spare--;
    } else {
        number = c->segments_used++;
    }
    c->segments[number] = *s;
    c->segments[number].next = NONE;
    return number;
}

/* Returns the next one. */
static uint32_t free_segment(mqqb_capture *c, uint32_t number)
{
    const uint32_t next = c->segments[number].next;

    c->segments[number].file = NONE;
    c->segments[number].next = c->segments_free;
    c->segments_free = number + 1;
    c->segments_spare++;
    return next;
}

static inline const uint8_t *bytes_of(const mqqb_capture *c, const piece *s)
{
    return c->files[s->file] + s->place;
}

uint64_t mqqb_capture_keep(mqqb_capture *c, uint8_t *out, uint8_t *files)
{
    uint64_t used = 0;

    for (uint32_t number = 0; number < c->segments_used; number++) {
        piece *const s = &c->segments[number];
        if (s->file == NONE) {
            continue;
        }
        files[s->file] = 1;
        if (s->file == c->file) {
            if (out != NULL) {
                memcpy(out + used, bytes_of(c, s), s->size);
                s->place = used;
            }
            used += s->size;
        }
    }
    return used;
}

static inline void skip(mqqb_capture_direction *d, piece *s, uint32_t size)
{
    s->place += size;
    s->size -= size;
    s->sequence += size;
    d->sequence += size;
    d->offset += size;
}

/* Append the rest of a piece to an incomplete packet. */
static void carry(mqqb_capture *c, mqqb_capture_direction *d, piece *s)
{
    const uint32_t number = new_segment(c, s);

    if (d->carry == NONE) {
        d->carry = number;
        d->carry_size = 0;
    } else {
        c->segments[d->carry_last].next = number;
    }
    d->carry_last = number;
    d->carry_size += s->size;
    skip(d, s, s->size);
}

static void drop_carry(mqqb_capture *c, mqqb_capture_direction *d)
{
    while (d->carry != NONE) {
        d->carry = free_segment(c, d->carry);
    }
    d->carry_size = 0;
}

/* Copy the carried bytes, and as much of s as fits. Returns the number of bytes. */
static uint32_t gather(const mqqb_capture *c, const mqqb_capture_direction *d, const piece *s, uint8_t *out,
                       uint32_t room)
{
    const uint32_t rest = smaller(room - d->carry_size, s->size);

    for (uint32_t number = d->carry; number != NONE; number = c->segments[number].next) {
        memcpy(out, bytes_of(c, &c->segments[number]), c->segments[number].size);
        out += c->segments[number].size;
    }
    memcpy(out, bytes_of(c, s), rest);
    return d->carry_size + rest;
}

/* Does a packet begin here? 1, 0, or 2: too few bytes to tell. */
static int is_credible(const uint8_t *in, uint64_t size)
{
    static const uint8_t signature[4] = {0x4C, 0x49, 0x4F, 0x52};

    if (size < MQQB_BASE_HEADER_SIZE) {
        return size <= MQQB_BASE_SIGNATURE_AT || memcmp(in + MQQB_BASE_SIGNATURE_AT, signature,
                                                        smaller(4, (uint32_t)size - MQQB_BASE_SIGNATURE_AT)) == 0
                   ? 2
                   : 0;
    }
    return check_base_header(in) == MQQB_OK;
}

/* Skip to the next credible BaseHeader. At most 15 bytes are carried. */
static void search(mqqb_capture *c, mqqb_capture_direction *d, piece *s)
{
    uint32_t at;
    int found = 0;

    if (d->carry != NONE) {
        uint8_t joint[32];
        const uint32_t carried = d->carry_size, known = gather(c, d, s, joint, sizeof joint);
        for (at = 0; at < carried && found == 0; at++) {
            found = is_credible(joint + at, known - at);
        }
        at = found == 0 ? carried : at - 1;
        d->carry_size -= at;
        while (at > 0) {
            piece *const head = &c->segments[d->carry];
            const uint32_t part = smaller(at, head->size);
            head->place += part;
            head->size -= part;
            at -= part;
            if (head->size == 0) {
                d->carry = free_segment(c, d->carry);
            }
        }
    }
    if (found == 0) {
        const uint8_t *const in = bytes_of(c, s);
        for (at = 0; at < s->size && found == 0; at++) {
            found = is_credible(in + at, s->size - at);
        }
        skip(d, s, at - 1); /* the last bytes are undecided */
    }
    if (found == 1) {
        d->flags &= ~IS_SEARCHING;
        d->need = MQQB_BASE_HEADER_SIZE;
    } else {
        carry(c, d, s);
    }
}

/* The carried bytes and the beginning of s are a header, or a packet: make a row, or find how many bytes are
 * needed. */
static void consume_carried(mqqb_capture *c, uint32_t connection, uint32_t side, piece *s)
{
    mqqb_capture_direction *const d = &c->connections[connection].direction[side];
    const uint32_t carried = d->carry_size;
    const uint32_t size = gather(c, d, s, c->scratch, d->need);

    if (d->need == MQQB_BASE_HEADER_SIZE && check_base_header(c->scratch) == MQQB_OK) {
        d->need = mqqb_packet_total(le16(c->scratch + MQQB_BASE_FLAGS_AT), le32(c->scratch + MQQB_BASE_PACKET_SIZE_AT));
        return;
    }
    if (add_packet(c, connection, side, c->scratch, size, &c->segments[d->carry], d->offset - carried) == 0) {
        d->flags |= IS_DEAD;
    }
    drop_carry(c, d);
    skip(d, s, size - carried);
}

/* Consume the next bytes of a direction. On a status other than 0, s is their rest. There is a free segment. */
static int32_t consume(mqqb_capture *c, uint32_t connection, uint32_t side, piece *s)
{
    mqqb_capture_direction *const d = &c->connections[connection].direction[side];

    while (s->size > 0) {
        int32_t status;
        if ((d->flags & (IS_DEAD | IS_SEARCHING)) != 0) {
            if ((d->flags & IS_DEAD) != 0) {
                skip(d, s, s->size);
            } else {
                search(c, d, s);
            }
            continue;
        }
        status = ready(c);
        if (status != 0) {
            return status;
        }
        if (d->carry != NONE) {
            if (d->carry_size + s->size < d->need) {
                carry(c, d, s);
            } else {
                consume_carried(c, connection, side, s);
            }
            continue;
        }
        {
            const uint32_t size =
                s->size < 16 ? 16 : add_packet(c, connection, side, bytes_of(c, s), s->size, s, d->offset);
            if (size > s->size) {
                d->need = size;
                carry(c, d, s);
            } else if (size == 0) {
                d->flags |= IS_DEAD;
            } else {
                skip(d, s, size);
            }
        }
    }
    return 0;
}

/* Report `size` missing bytes. There is room for a row. */
static void hole(mqqb_capture *c, uint32_t connection, uint32_t side, uint32_t size)
{
    mqqb_capture_direction *const d = &c->connections[connection].direction[side];

    tell(c, connection, side, MQQB_KIND_HOLE, 0, size);
    drop_carry(c, d);
    d->flags = (d->flags | IS_SEARCHING) & ~IS_DEAD;
    d->offset += size;
    d->sequence += size;
}

/* Deliver bytes that begin at the next one, or earlier. As consume. */
static int32_t deliver(mqqb_capture *c, uint32_t connection, uint32_t side, piece *s)
{
    const mqqb_capture_direction *const d = &c->connections[connection].direction[side];
    const uint32_t known = smaller(d->sequence - s->sequence, s->size);

    s->sequence += known;
    s->place += known;
    s->size -= known;
    return consume(c, connection, side, s);
}

/* Insert a segment into the waiting list, by TCP number; equal ones stay in order of arrival. Bytes before the next
 * one do not count. */
static void wait_in(mqqb_capture *c, mqqb_capture_direction *d, uint32_t number)
{
    const uint32_t sequence =
        ahead_of(c->segments[number].sequence, d->sequence) > 0 ? c->segments[number].sequence : d->sequence;
    uint32_t *link = &d->pending;

    while (*link != NONE && ahead_of(sequence, c->segments[*link].sequence) >= 0) {
        link = &c->segments[*link].next;
    }
    c->segments[number].next = *link;
    *link = number;
    d->pending_size += c->segments[number].size;
}

/* Bytes of a direction that the other end has acknowledged, but the capture lacks: they will not arrive. A FIN
 * counts as one byte, and is not missing. It does not come within a packet. */
static inline uint32_t unseen(const mqqb_capture_direction *d)
{
    const uint32_t ahead = d->acked - d->sequence;
    const int is_fin = ahead == 1 && d->pending == NONE && d->carry == NONE;

    return ahead > AHEAD_MAX || (d->flags & IS_OPEN) == 0 || is_fin ? 0 : ahead;
}

/* Deliver the waiting segments of a direction that can continue; all of them, if the connection ends. */
static int32_t drain_direction(mqqb_capture *c, uint32_t connection, uint32_t side)
{
    mqqb_capture_connection *const k = &c->connections[connection];
    mqqb_capture_direction *const d = &k->direction[side];
    int32_t status = 0;

    for (;;) {
        piece *const s = d->pending != NONE ? &c->segments[d->pending] : NULL;
        const int32_t gap = s != NULL ? ahead_of(s->sequence, d->sequence) : INT32_MAX;
        uint32_t missing = unseen(d);

        if (gap > 0) {
            if (s != NULL && (missing > (uint32_t)gap || k->ending != 0 || d->pending_size > PENDING_MAX)) {
                missing = (uint32_t)gap;
            }
            if (missing == 0) {
                break;
            }
        }
        status = ready(c); /* a segment is free: a delivered one returns it */
        if (status != 0) {
            return status;
        }
        if (gap > 0) {
            hole(c, connection, side, missing);
            continue;
        }
        d->pending_size -= s->size;
        status = deliver(c, connection, side, s);
        if (status != 0) {
            d->pending_size += s->size;
            return status;
        }
        d->pending = free_segment(c, d->pending);
    }
    if ((d->flags & (HAS_FIN | IS_ENDED)) == HAS_FIN && ahead_of(d->sequence, d->fin) >= 0) {
        status = ready(c);
        if (status == 0) {
            d->flags |= IS_ENDED;
            tell(c, connection, side, MQQB_KIND_END, MQQB_END_FIN, d->carry_size);
        }
    }
    return status;
}

/* Deliver a connection's waiting segments as far as possible; all of them, and the end, if it ends. */
static int32_t drain(mqqb_capture *c, uint32_t connection)
{
    mqqb_capture_connection *const k = &c->connections[connection];

    for (uint32_t i = 0; i < 2; i++) {
        const int32_t status = drain_direction(c, connection, c->drain_first ^ i);
        if (status != 0) {
            return status;
        }
    }
    if (k->ending == 0) {
        return 0;
    }
    if (c->capacity - c->rows < 4) {
        return MQQB_CAPTURE_ROWS;
    }
    for (uint32_t side = 0; side < 2; side++) {
        mqqb_capture_direction *const d = &k->direction[side];
        if ((d->flags & (IS_OPEN | IS_ENDED)) == IS_OPEN) {
            d->flags |= IS_ENDED;
            if ((d->flags & HAS_FIN) != 0) {
                hole(c, connection, side, d->fin - d->sequence);
                tell(c, connection, side, MQQB_KIND_END, MQQB_END_FIN, 0);
            } else {
                tell(c, connection, side, MQQB_KIND_END, k->ending - 1, d->carry_size);
            }
        }
    }
    if (k->ending == MQQB_END_REPLACED + 1) {
        k->flags |= IS_CLOSED;
    }
    k->ending = 0;
    return 0;
}

/* ---- connections ------------------------------------------------------------------------------ */

static inline uint64_t end_hash(const mqqb_capture_end *end)
{
    uint64_t hash = ((uint64_t)end->word[0] << 32 | end->word[1]) * 0x9E3779B97F4A7C15u;

    hash ^= (((uint64_t)end->word[2] << 32 | end->word[3]) + end->word[4]) * 0xC2B2AE3D27D4EB4Fu;
    return mixed(hash); /* otherwise ends with the same sum of addresses would collide */
}

static inline uint64_t connection_hash(const mqqb_capture_end end[2])
{
    return mixed(end_hash(&end[0]) + end_hash(&end[1]));
}

static inline int is_ours(const mqqb_capture *c, const mqqb_capture_end end[2])
{
    if (c->parts <= 1) {
        return 1;
    }
    return (connection_hash(end) >> 16 & 0xFFFFFFFFu) % c->parts == c->part;
}

/* Its place in the index, which is 0 without an entry. *side: the side of end[0]. */
static uint32_t *find(const mqqb_capture *c, const mqqb_capture_end end[2], uint32_t *side)
{
    uint64_t at = connection_hash(end);

    *side = 0;
    for (;; at++) {
        at &= c->index_size - 1;
        if (c->index[at] == 0) {
            break;
        }
        {
            const mqqb_capture_connection *const k = &c->connections[c->index[at] - 1];
            PREFETCH(k); /* all its lines at once */
            PREFETCH((const uint8_t *)k + 64);
            PREFETCH((const uint8_t *)k + 128);
            for (*side = 0; *side < 2; ++*side) {
                if (memcmp(&k->end[*side], &end[0], sizeof end[0]) == 0 &&
                    memcmp(&k->end[1 - *side], &end[1], sizeof end[1]) == 0) {
                    return &c->index[at];
                }
            }
        }
    }
    return &c->index[at];
}

void mqqb_capture_rehash(mqqb_capture *c)
{
    for (uint32_t number = 0; number < c->connections_used; number++) {
        if ((c->connections[number].flags & IS_CLOSED) == 0) {
            uint32_t side;
            *find(c, c->connections[number].end, &side) = number + 1;
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        mqqb_capture_dictionary *const dictionary = &c->dictionary[i];
        for (uint32_t code = 1; code <= dictionary->count; code++) {
            const uint64_t begin = dictionary->end[code - 1];
            uint64_t at = hash_of(dictionary->bytes + begin + 1, dictionary->end[code] - begin - 1);
            while (dictionary->index[at & (dictionary->index_size - 1)] != 0) {
                at++;
            }
            dictionary->index[at & (dictionary->index_size - 1)] = code;
        }
    }
}

/* Is end a lower than end b? Addresses by their bytes, then ports. */
static int is_lower(const mqqb_capture_end *a, const mqqb_capture_end *b)
{
    const int order = memcmp(a->word, b->word, 16);

    return order != 0 ? order < 0 : a->word[4] < b->word[4];
}

/* A new connection, seen first by a segment from end[0]. Returns its side. */
static uint32_t connect(mqqb_capture *c, uint32_t *place, const mqqb_capture_end end[2], uint32_t flags)
{
    const uint32_t number = c->connections_used++;
    mqqb_capture_connection *const k = &c->connections[number];
    const uint32_t side = (flags & SYN) != 0 ? (flags & ACK) != 0 : (uint32_t)is_lower(&end[1], &end[0]);

    memset(k, 0, sizeof *k);
    k->end[side] = end[0];
    k->end[1 - side] = end[1];
    for (unsigned i = 0; i < 2; i++) {
        k->direction[i].carry = k->direction[i].pending = NONE;
    }
    *place = number + 1;
    return side;
}

/* Does this SYN begin a new connection? */
static int is_new(const mqqb_capture_direction *d, uint32_t flags, uint32_t sequence)
{
    return (d->flags & (IS_OPEN | HAS_BEGUN)) != 0 ? sequence != d->initial : (flags & ACK) == 0;
}

/* Are these bytes of a new connection, whose SYN was not captured? No resend is so far behind. */
static int is_far_behind(const mqqb_capture_direction *d, uint32_t sequence)
{
    return (d->flags & IS_OPEN) != 0 && ahead_of(sequence, d->sequence) < -(int32_t)AHEAD_MAX;
}

/* All bytes before this number were sent. */
static void reach(mqqb_capture_direction *d, uint32_t sequence)
{
    if (ahead_of(sequence, d->acked) > 0 && ahead_of(sequence, d->sequence) <= (int32_t)AHEAD_MAX) {
        d->acked = sequence;
    }
}

/* Read a TCP segment. end: its sender and receiver. s: its captured bytes, with its number in s->sequence. length:
 * its full size. There is room for 4 rows, 2 segments and a connection. */
static int32_t read_tcp(mqqb_capture *c, const mqqb_capture_end end[2], uint32_t flags, uint32_t ack, piece *s,
                        uint32_t length)
{
    uint32_t side, number;
    uint32_t *const place = find(c, end, &side);
    mqqb_capture_connection *k;
    mqqb_capture_direction *d, *other;

    s->sequence += (flags & SYN) != 0;
    number = *place - 1;
    if (*place != 0) {
        k = &c->connections[number];
        d = &k->direction[side];
        if ((k->flags & IS_CLOSED) == 0 &&
            ((flags & SYN) != 0 ? is_new(d, flags, s->sequence) : length > 0 && is_far_behind(d, s->sequence))) {
            k->ending = MQQB_END_REPLACED + 1;
            c->active = number;
            return FRAME_AGAIN;
        }
    }
    if (*place == 0 || (c->connections[number].flags & IS_CLOSED) != 0) {
        if ((flags & SYN) == 0 && length == 0) {
            return FRAME_DONE;
        }
        side = connect(c, place, end, flags);
        number = *place - 1;
    }
    k = &c->connections[number];
    d = &k->direction[side];
    other = &k->direction[1 - side];

    if ((flags & SYN) != 0) {
        if ((d->flags & IS_OPEN) == 0) {
            d->initial = s->sequence;
        }
        d->flags |= IS_TOLD | HAS_BEGUN;
        if ((flags & ACK) != 0) {
            other->initial = ack;
            other->flags |= HAS_BEGUN;
        }
        if ((k->flags & HAS_SYN) == 0) {
            k->flags |= HAS_SYN;
            tell(c, number, side, MQQB_KIND_BEGIN, 0, 0);
        }
    }
    if ((d->flags & IS_OPEN) == 0 && ((flags & SYN) != 0 || length > 0)) {
        if ((d->flags & HAS_BEGUN) == 0) {
            d->initial = s->sequence;
            d->flags |= IS_SEARCHING;
        }
        d->flags |= IS_OPEN;
        d->sequence = d->acked = d->initial;
    }
    if ((d->flags & (IS_TOLD | HAS_BEGUN)) == 0 && length > 0) {
        d->flags |= IS_TOLD;
        tell(c, number, side, MQQB_KIND_OLDER, 0, 0);
    }
    if ((flags & ACK) != 0 && length > 0 && ((other->flags & (IS_OPEN | IS_TOLD)) == 0)) {
        other->flags |= IS_TOLD; /* its SYN was sent, but not captured */
        tell(c, number, 1 - side, MQQB_KIND_OLDER, 0, 0);
    }
    if ((flags & ACK) != 0) {
        reach(other, ack);
    }
    if ((flags & SYN) == 0 && length == 0) {
        reach(d, s->sequence); /* it has sent these bytes */
    }
    c->drain_first = 1 - side;
    if (unseen(other) > 0 || unseen(d) > 0) {
        c->active = number;
    }
    if ((flags & FIN) != 0 && (d->flags & HAS_FIN) == 0) {
        d->flags |= HAS_FIN;
        d->fin = s->sequence + length;
        c->active = number;
    }
    if ((flags & RST) != 0) {
        k->ending = MQQB_END_RST + 1;
        c->active = number;
    }
    if (s->size > 0) {
        const int32_t ahead = ahead_of(s->sequence, d->sequence);
        if (ahead <= 0 && ahead_of(s->sequence + s->size, d->sequence) <= 0) {
            return FRAME_DONE; /* already known */
        }
        if (ahead > 0 || d->pending != NONE || unseen(other) > 0 || deliver(c, number, side, s) != 0) {
            wait_in(c, d, new_segment(c, s));
            c->active = number;
        }
    }
    return FRAME_DONE;
}

/* ---- frames for other tasks ------------------------------------------------------------------- */

static const uint8_t no_guid[16] = {0};

static inline uint64_t manager_of(const uint8_t *guid)
{
    return memcmp(guid, no_guid, 16) == 0 ? 0 : hash_of(guid, 16) | 1;
}

/* Route a TCP segment. */
static void route(mqqb_capture *c, const mqqb_capture_end end[2], const uint8_t *in, uint64_t size)
{
    c->key = connection_hash(end) | 1;
    c->managers[0] = c->managers[1] = 0;
    if (size >= MQQB_ESTABLISH_TIME_STAMP_AT && check_base_header(in) == MQQB_OK) {
        const uint32_t at = (le16(in + MQQB_BASE_FLAGS_AT) & MQQB_BASE_IN) != 0 ? MQQB_ESTABLISH_CLIENT_GUID_AT
                                                                                : MQQB_USER_SOURCE_QUEUE_MANAGER_AT;
        if (at == MQQB_USER_SOURCE_QUEUE_MANAGER_AT ||
            (le16(in + MQQB_INTERNAL_FLAGS_AT) & MQQB_INTERNAL_PT) == MQQB_PT_ESTABLISH_CONNECTION) {
            c->managers[0] = manager_of(in + at);
            c->managers[1] = manager_of(in + at + 16);
        }
    }
}

/* Complete the routing of the last frame. */
static void end_route(mqqb_capture *c, uint64_t place, uint32_t link, uint64_t size, uint64_t wire)
{
    if (c->routed != NULL && c->key != 0) {
        mqqb_capture_routed *const r = &c->routed[c->routed_used++];
        r->key = c->key;
        r->managers[0] = c->managers[0];
        r->managers[1] = c->managers[1];
        r->place = place;
        r->time = c->time;
        r->moment = c->moment;
        r->file = c->file;
        r->frame = c->frame;
        r->link = link;
        r->size = (uint32_t)size;
        r->wire = (uint32_t)wire;
        c->key = 0;
    }
}

void mqqb_capture_gather(const uint8_t *file, const mqqb_capture_routed *routed, const uint32_t *which, uint64_t count,
                         uint8_t *out)
{
    for (uint64_t i = 0; i < count; i++) {
        const mqqb_capture_routed *const r = &routed[which[i]];
        const mqqb_capture_frame head = {r->time, r->moment, r->frame, r->link, r->size, r->wire};
        memcpy(out, &head, sizeof head);
        memcpy(out + sizeof head, file + r->place, r->size);
        out += sizeof head + r->size;
    }
}

uint64_t mqqb_capture_list(const uint8_t *gathered, uint64_t size, uint32_t file, mqqb_capture_routed *out)
{
    uint64_t count = 0;

    for (uint64_t at = 0; at < size; count++) {
        mqqb_capture_routed *const r = &out[count];
        mqqb_capture_frame head;
        memcpy(&head, gathered + at, sizeof head);
        memset(r, 0, sizeof *r);
        r->place = at + sizeof head;
        r->time = head.time;
        r->moment = head.moment;
        r->file = file;
        r->frame = head.frame;
        r->link = head.link;
        r->size = head.size;
        r->wire = head.wire;
        at += sizeof head + head.size;
    }
    return count;
}

#include "mqqb_capture_frames.c" /* NOLINT(bugprone-suspicious-include): a part of this file */

/* ---- calls ------------------------------------------------------------------------------------ */

/* Read the next routed frame. */
static void read_routed(mqqb_capture *c, view *v)
{
    const mqqb_capture_routed *const r = &c->order[c->cursor];

    c->file = r->file;
    c->time = r->time;
    c->frame = r->frame - 1;
    c->next = c->cursor + 1;
    v->in = c->files[r->file] + r->place;
    v->size = r->size;
    v->wire = r->wire;
    v->link = r->link;
}

/* Flush the block of rows before any return. */
static int32_t answer(mqqb_capture *c, int32_t status)
{
    flush(c);
    if (status == MQQB_CAPTURE_ROWS) {
        c->flushed = 0;
        c->label_used = c->packets_used = 0;
    }
    return status;
}

static void begin_call(mqqb_capture *c)
{
    if (c->rows == 0) {
        c->flushed = 0;
        c->label_used = c->packets_used = 0;
    }
    c->details = c->columns.column[MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS] != NULL;
    for (unsigned i = MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS; i < MQQB_CAPTURE_COLUMNS; i++) {
        c->details |= c->columns.column[i] != NULL;
    }
}

static void set_told(mqqb_capture *c, uint32_t file, uint32_t frame, int64_t time)
{
    c->told_file = file;
    c->told_frame = frame;
    c->told_time = time;
}

/* Work that is due before the next frame. */
static int32_t work(mqqb_capture *c)
{
    int32_t status = 0;

    if (c->active != NONE) {
        status = drain(c, c->active);
        c->active = status == 0 ? NONE : c->active;
    }
    return status;
}

void mqqb_capture_start(mqqb_capture *c)
{
    c->active = NONE;
}

/* Set the frame's moment. After the clock was set back, frames stay in file order until it reaches the same time. */
static void set_moment(mqqb_capture *c)
{
    if (c->time >= c->latest) {
        c->latest = c->time;
        c->set_back = 0;
    } else if (c->time < c->latest - MQQB_CAPTURE_WINDOW) {
        c->set_back = 1;
    }
    c->moment = c->set_back != 0 ? c->latest : c->time;
}

/* Read the next record of a file. */
static int32_t read_record(mqqb_capture *c, view *v)
{
    const uint64_t room = c->size - c->cursor;
    const uint8_t *const in = c->files[c->file] + c->cursor;
    int32_t status;

    if (c->started == 0) {
        return begin_file(c, in, room);
    }
    status = c->format == IS_PCAPNG ? read_pcapng(c, in, room, v) : read_pcap(c, in, room, v);
    if (status == 0) {
        set_moment(c);
        if (c->size - c->next > FETCH_AHEAD) {
            fetch(in + FETCH_AHEAD, c->next - c->cursor);
        }
    }
    return status;
}

/* The status that prevents reading a frame now; 0: none. */
static int32_t room_for_frame(const mqqb_capture *c)
{
    if (c->capacity - c->rows < 4 || !has_bytes(c)) {
        return MQQB_CAPTURE_ROWS;
    }
    if (c->connections_used == c->connections_size) {
        return MQQB_CAPTURE_GROW_CONNECTIONS;
    }
    if (!has_segments(c)) {
        return MQQB_CAPTURE_GROW_SEGMENTS;
    }
    return c->routed != NULL && c->routed_used == c->routed_size ? MQQB_CAPTURE_ROWS : 0;
}

int32_t mqqb_capture_read(mqqb_capture *c)
{
    begin_call(c);
    for (;;) {
        const int at_end = c->cursor == c->size && (c->started != 0 || c->order != NULL);
        view v = {0};
        int32_t status = work(c);

        status = status != 0 ? status : room_for_frame(c);
        if (status != 0 || at_end) {
            return answer(c, status);
        }
        if (c->order != NULL) {
            read_routed(c, &v);
        } else if (c->cursor >= c->pause) {
            return answer(c, MQQB_CAPTURE_PAUSE);
        } else {
            status = read_record(c, &v);
            if (status == NO_FRAME) {
                continue;
            }
            if (status != 0) {
                return answer(c, status);
            }
        }
        c->frame++;
        set_told(c, c->file, c->frame, c->time);
        if (v.wire < v.size) {
            v.wire = v.size;
        }
        {
            const uint64_t place = (uint64_t)(v.in - c->files[c->file]), size = v.size, wire = v.wire;
            const uint32_t link = v.link;
            status = read_frame(c, &v);
            end_route(c, place, link, size, wire);
        }
        if (status == FRAME_AGAIN) {
            c->frame--;
        } else {
            c->frames++;
            c->cursor = c->next;
        }
    }
}

int32_t mqqb_capture_finish(mqqb_capture *c)
{
    begin_call(c);
    for (;;) {
        const int32_t status = work(c);

        if (status != 0 || c->finished == c->connections_used) {
            return answer(c, status);
        }
        c->active = c->finished++;
        set_told(c, c->file, c->frame, c->time);
        c->connections[c->active].ending = MQQB_END_CAPTURE + 1;
    }
}
