/* frames.h: makes captures byte by byte, and reads them with tables that are as small as they may be. */
#ifndef FRAMES_H
#define FRAMES_H

#include "mqqb_capture.h"
#include "packets.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS_MAX 4096
#define FILES_MAX 4

enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

/* ---- writing ---------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size, room;
    int swapped;                      /* big-endian */
    const mqqb_capture_routed *order; /* data is frames that were gathered, `count` of them */
    uint64_t count;
    int64_t end; /* the last moment of the capture that they are of */
} file;

static inline void be(uint8_t *out, uint64_t value, unsigned width)
{
    while (width-- > 0) {
        out[width] = (uint8_t)value;
        value >>= 8;
    }
}

static inline void add(file *f, const void *data, size_t size)
{
    if (f->size + size > f->room) {
        f->room = 2 * (f->size + size);
        f->data = realloc(f->data, f->room);
        if (f->data == NULL) {
            abort();
        }
    }
    if (size > 0) {
        memcpy(f->data + f->size, data, size);
    }
    f->size += size;
}

static inline void number(file *f, uint64_t value, unsigned width)
{
    uint8_t bytes[8];

    if (f->swapped) {
        be(bytes, value, width);
    } else {
        le(bytes, value, width);
    }
    add(f, bytes, width);
}

static inline void pcap(file *f, uint32_t link, int swapped, int nano)
{
    f->size = 0;
    f->swapped = swapped;
    number(f, nano ? 0xA1B23C4D : 0xA1B2C3D4, 4);
    number(f, 0x00040002, 4);
    number(f, 0, 8);
    number(f, 262144, 4);
    number(f, link, 4);
}

static uint32_t clock_ms; /* when frames are captured */

static inline void record(file *f, const uint8_t *data, size_t size, size_t wire)
{
    number(f, 1700000000 + clock_ms / 1000, 4);
    number(f, clock_ms % 1000 * 1000 + 5, 4);
    number(f, size, 4);
    number(f, wire, 4);
    add(f, data, size);
}

static inline void block(file *f, uint32_t kind, const uint8_t *body, size_t size)
{
    static const uint8_t zeros[4] = {0};

    number(f, kind, 4);
    number(f, 12 + up4(size), 4);
    add(f, body, size);
    add(f, zeros, up4(size) - size);
    number(f, 12 + up4(size), 4);
}

static inline void section(file *f, int swapped)
{
    uint8_t body[16] = {0};

    f->swapped = swapped;
    if (swapped) {
        be(body, 0x1A2B3C4D, 4);
    } else {
        le(body, 0x1A2B3C4D, 4);
    }
    block(f, 0x0A0D0D0A, body, sizeof body);
}

/* A frame of IP and TCP. six: IPv6. side: 0 from 10.0.0.1 port `port`, 1 back from 10.0.0.2 port 1801. Returns its bytes. */
static inline size_t put_tcp(uint8_t *out, int six, int side, uint32_t port, uint32_t sequence, uint32_t ack,
                             uint32_t flags, const uint8_t *data, size_t size)
{
    const size_t head = six ? 40 : 20;
    uint8_t *const tcp = out + head;

    memset(out, 0, head + 20);
    if (six) {
        out[0] = 0x60;
        be(out + 4, 20 + size, 2);
        out[6] = 6;
        out[23] = side == 0 ? 1 : 2;
        out[39] = side == 0 ? 2 : 1;
    } else {
        out[0] = 0x45;
        be(out + 2, 40 + size, 2);
        out[9] = 6;
        le(out + 12, side == 0 ? 0x0100000A : 0x0200000A, 4);
        le(out + 16, side == 0 ? 0x0200000A : 0x0100000A, 4);
    }
    be(tcp, side == 0 ? port : 1801, 2);
    be(tcp + 2, side == 0 ? 1801 : port, 2);
    be(tcp + 4, sequence, 4);
    be(tcp + 8, ack, 4);
    tcp[12] = 0x50;
    tcp[13] = (uint8_t)flags;
    if (size > 0) {
        memcpy(tcp + 20, data, size);
    }
    return head + 20 + size;
}

/* ---- reading ---------------------------------------------------------------------------------- */

typedef struct {
    uint32_t column[MQQB_CAPTURE_COLUMNS][ROWS_MAX + 16];
    int64_t time[ROWS_MAX + 16];
    uint8_t correlation_id[ROWS_MAX + 16][20];
    int32_t label_end[ROWS_MAX + 16];
    uint8_t label_text[MQQB_CAPTURE_LABEL + 20];
    int64_t packet_end[ROWS_MAX + 16];
    uint8_t packets[MQQB_CAPTURE_SCRATCH + 800]; /* of the last rows */
    uint32_t rows;
    int32_t error[FILES_MAX];      /* of each file */
    uint64_t kept[FILES_MAX];      /* bytes of it that wait when it has been read */
    unsigned grown[8];             /* how often each status came */
    mqqb_capture c;                /* as it was left */
    uint32_t written;              /* the most rows that the columns had at any time */
    mqqb_capture_connection first; /* as it was at the end */
} reading;

static inline void *larger(void *table, size_t before, size_t now)
{
    uint8_t *const grown = calloc(1, now);

    if (grown == NULL) {
        abort();
    }
    if (before > 0) {
        memcpy(grown, table, before);
    }
    free(table);
    return grown;
}

static inline void grow_connections(mqqb_capture *c, uint32_t size)
{
    c->connections =
        larger(c->connections, c->connections_size * sizeof *c->connections, size * sizeof *c->connections);
    c->connections_size = size;
    free(c->index);
    c->index = larger(NULL, 0, 2 * (size_t)size * sizeof *c->index);
    c->index_size = 2 * size;
}

static inline void grow_dictionary(mqqb_capture_dictionary *d, uint32_t capacity)
{
    d->end = larger(d->end, d->end == NULL ? 0 : (d->capacity + 1) * sizeof *d->end, (capacity + 1) * sizeof *d->end);
    d->bytes = larger(d->bytes, (size_t)d->end[d->count], (size_t)(d->end[d->count] + MQQB_CAPTURE_NAMES));
    d->size = d->end[d->count] + MQQB_CAPTURE_NAMES;
    d->capacity = capacity;
    free(d->index);
    d->index = larger(NULL, 0, 2 * (size_t)capacity * sizeof *d->index);
    d->index_size = 2 * capacity;
}

/* Are there more names than one packet has, 8 at most, since there was room for those of one packet? */
static inline int is_overfull(const mqqb_capture_dictionary *d)
{
    return d->end[d->count] > d->size || (d->count > 8 && d->end[d->count - 9] >= d->size - MQQB_CAPTURE_NAMES);
}

/* Nothing is read yet. What the columns had is cleared, not all that they have room for, which is 5 MB. */
static inline void clear(reading *r)
{
    const size_t rows = r->written + 16;

    for (unsigned i = 0; i < MQQB_CAPTURE_COLUMNS; i++) {
        memset(r->column[i], 0, rows * sizeof *r->column[i]);
    }
    memset(r->time, 0, rows * sizeof *r->time);
    memset(r->correlation_id, 0, rows * sizeof *r->correlation_id);
    memset(r->label_end, 0, rows * sizeof *r->label_end);
    memset(r->packet_end, 0, rows * sizeof *r->packet_end);
    memset(&r->rows, 0, sizeof *r - offsetof(reading, rows));
}

static inline void read_rows(reading *r, mqqb_capture_columns *columns)
{
    mqqb_capture *const c = &r->c;

    for (unsigned i = 0; i < MQQB_CAPTURE_COLUMNS; i++) {
        c->columns.column[i] = columns->column[i] == NULL ? NULL : r->column[i] + r->rows;
    }
    c->columns.time = columns->time == NULL ? NULL : r->time + r->rows;
    c->columns.correlation_id = columns->correlation_id == NULL ? NULL : r->correlation_id[r->rows];
    c->columns.label_end = columns->label_end == NULL ? NULL : r->label_end + r->rows;
    c->columns.label_text = columns->label_text;
    c->columns.label_size = sizeof r->label_text;
    c->columns.packet_end = columns->packet_end == NULL ? NULL : r->packet_end + r->rows;
    c->columns.packets = columns->packets;
    c->columns.packets_size = sizeof r->packets;
}

/* What waits in the file that was read: nothing looks into that any more. */
static inline uint8_t *keep(mqqb_capture *c, uint64_t *bytes)
{
    uint8_t there[FILES_MAX] = {0};
    const uint64_t size = mqqb_capture_keep(c, NULL, there);
    uint8_t *const kept = malloc(size + 1);

    *bytes = size;
    if (kept == NULL || mqqb_capture_keep(c, kept, there) != size || (size > 0 && there[c->file] == 0)) {
        abort();
    }
    return kept;
}

/* Everything in these files, 16 rows at a time. Whatever has no room gets a little more of it, again and again.
 * all_columns: 0, without the details; 1, all; 2, every other one; 3, the others. */
static inline void read_files(reading *r, const file *files, unsigned count, uint32_t part, uint32_t parts,
                              int all_columns)
{
    static uint8_t scratch[MQQB_CAPTURE_SCRATCH];
    const uint8_t *in[FILES_MAX];
    uint8_t *kept[FILES_MAX] = {NULL};
    mqqb_capture *const c = &r->c;
    mqqb_capture_columns columns = {0};
    unsigned at = 0;

    clear(r);
    for (unsigned i = 0; i < MQQB_CAPTURE_COLUMNS; i++) {
        const int wanted = all_columns >= 2 ? (int)i % 2 == all_columns - 2
                                            : all_columns == 1 || i < MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS;
        columns.column[i] = wanted ? r->column[i] : NULL;
    }
    if (all_columns == 1) {
        columns.time = r->time;
        columns.correlation_id = r->correlation_id[0];
        columns.label_end = r->label_end;
        columns.label_text = r->label_text;
        columns.packet_end = r->packet_end;
        columns.packets = r->packets;
    }
    for (unsigned i = 0; i < count; i++) {
        in[i] = files[i].data;
    }
    c->files = in;
    c->part = part;
    c->parts = parts;
    c->capacity = 16;
    c->scratch = scratch;
    grow_connections(c, 1);
    grow_dictionary(&c->dictionary[0], 8);
    grow_dictionary(&c->dictionary[1], 8);
    mqqb_capture_start(c);
    read_rows(r, &columns);
    for (;;) {
        int32_t status;
        if (at < count) {
            c->file = at;
            c->size = files[at].order != NULL ? files[at].count : files[at].size;
            c->order = files[at].order;
            status = mqqb_capture_read(c);
        } else {
            status = mqqb_capture_finish(c);
        }
        if (status > 0) {
            r->grown[status]++;
        }
        if (c->segments_used > c->segments_size || is_overfull(&c->dictionary[0]) || is_overfull(&c->dictionary[1])) {
            fprintf(stderr, "frames.h: a table holds more than it has room for\n");
            abort();
        }
        if (status == MQQB_CAPTURE_ROWS) {
            r->written = r->written > r->rows + c->rows ? r->written : r->rows + c->rows;
            r->rows = r->rows + c->rows < ROWS_MAX ? r->rows + c->rows : 0; /* more than any test looks at */
            c->rows = 0;
            read_rows(r, &columns);
        } else if (status == MQQB_CAPTURE_PAUSE) {
            c->pause = c->cursor + 1;
        } else if (status == MQQB_CAPTURE_GROW_SEGMENTS) {
            c->segments = larger(c->segments, c->segments_size * sizeof *c->segments,
                                 (c->segments_size + 2) * sizeof *c->segments);
            c->segments_size += 2;
        } else if (status > 0) {
            grow_connections(c,
                             status == MQQB_CAPTURE_GROW_CONNECTIONS ? 2 * c->connections_size : c->connections_size);
            for (unsigned i = 0; i < 2; i++) {
                mqqb_capture_dictionary *const d = &c->dictionary[i];
                grow_dictionary(d, d->capacity - d->count < 8 ? 2 * d->capacity : d->capacity);
            }
            mqqb_capture_rehash(c);
        } else {
            if (at == count) {
                break;
            }
            kept[at] = keep(c, &r->kept[at]);
            in[at] = kept[at];
            r->error[at++] = status;
            c->cursor = 0;
            c->started = 0;
            c->pause = 0;
        }
    }
    r->rows += c->rows;
    r->written = r->written > r->rows ? r->written : r->rows;
    for (unsigned i = 0; i < count; i++) {
        free(kept[i]);
    }
    r->first = c->connections[0];
    free(c->connections);
    free(c->index);
    free(c->segments);
    for (unsigned i = 0; i < 2; i++) {
        free(c->dictionary[i].end);
        free(c->dictionary[i].bytes);
        free(c->dictionary[i].index);
    }
}

#endif
