/* mqqb_fast.c: see mqqb_fast.h. */
#include "mqqb_fast.h"
#include "mqqb_run.h"

#include <stdlib.h>
#include <string.h>

#define FIND 64u              /* packets found in one call */
#define ARENA_MAX (32u << 20) /* bytes of uncommitted messages */
#define SESSION_HEADER_AT (MQQB_PACKET_SIZE_SESSION_ACK - MQQB_SESSION_HEADER_SIZE)

typedef struct {
    mqqb_run_template t;
    uint8_t *kept; /* the head, then the OrderAck */
    mqqb_incoming *record, before;
    uint32_t ack_size, lifetime, queue;
    uint32_t moved; /* messages since the last commit, or not acknowledged since */
    int is_active;
} stream;

typedef struct {
    mqqb_session *session;
    int32_t owner, next; /* next: in the list of free slots */
    uint32_t stored;     /* committed messages to acknowledge */
    uint32_t oldest;     /* stream to replace next */
    mqqb_fast_news news;
    uint8_t is_open, is_blocked, is_held, is_reported, is_deferred;
    stream streams[MQQB_FAST_STREAMS];
} slot;

typedef struct {
    int64_t id;
    uint8_t *packets;
    uint32_t *sizes;
    int32_t *streams;
    uint32_t size, room, count, places;
} queue;

typedef struct {
    int32_t *of;
    size_t count, room;
} list;

struct mqqb_fast {
    uint8_t session_ack[MQQB_PACKET_SIZE_SESSION_ACK];
    slot *slots;
    queue *queues;
    uint32_t slot_count, slot_room, queue_count, size, pending, time, message_id;
    int32_t free;
    list owners;     /* slot + 1 by owner; 0: none */
    list moved;      /* streams */
    list active;     /* slots with news */
    size_t acked[2]; /* places in `moved` up to which slots are acknowledged, by is_owned */
    int is_committed;
};

/* Make room for `count` items; 0: no memory. */
static int grow(void **items, size_t item, size_t *room, size_t count)
{
    size_t more = *room == 0 ? 64 : *room;
    void *grown;

    if (count <= *room) {
        return 1;
    }
    while (more < count) {
        more *= 2;
    }
    grown = realloc(*items, more * item);
    if (grown == NULL) {
        return 0;
    }
    *items = grown;
    *room = more;
    return 1;
}

static int grow32(void **items, size_t item, uint32_t *room, size_t count)
{
    size_t now = *room;
    const int is_grown = grow(items, item, &now, count);

    *room = (uint32_t)now;
    return is_grown;
}

static int add(list *l, int32_t number)
{
    void *of = l->of;

    if (!grow(&of, sizeof *l->of, &l->room, l->count + 1)) {
        return 0;
    }
    l->of = of;
    l->of[l->count++] = number;
    return 1;
}

static stream *stream_of(mqqb_fast *f, int32_t number)
{
    return &f->slots[(uint32_t)number / MQQB_FAST_STREAMS].streams[(uint32_t)number % MQQB_FAST_STREAMS];
}

mqqb_fast *mqqb_fast_new(const uint8_t *session_ack)
{
    mqqb_fast *const f = calloc(1, sizeof *f);

    if (f != NULL) {
        memcpy(f->session_ack, session_ack, sizeof f->session_ack);
        f->free = -1;
    }
    return f;
}

void mqqb_fast_free(mqqb_fast *f)
{
    uint32_t i, k;

    for (i = 0; i < f->slot_count; i++) {
        for (k = 0; k < MQQB_FAST_STREAMS; k++) {
            free(f->slots[i].streams[k].kept);
        }
    }
    for (i = 0; i < f->queue_count; i++) {
        free(f->queues[i].packets);
        free(f->queues[i].sizes);
        free(f->queues[i].streams);
    }
    free(f->slots);
    free(f->queues);
    free(f->owners.of);
    free(f->moved.of);
    free(f->active.of);
    free(f);
}

/* ---- slots and streams ------------------------------------------------------------------------------- */

static int has_moved(const slot *s)
{
    uint32_t k;

    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        if (s->streams[k].moved != 0) {
            return 1;
        }
    }
    return 0;
}

/* Put a slot into the list of those with news. */
static void report(mqqb_fast *f, uint32_t number)
{
    if (!f->slots[number].is_reported) {
        f->slots[number].is_reported = 1;
        f->active.of[f->active.count++] = (int32_t)number;
    }
}

/* Put a closed slot into the list of free ones once nothing refers to it. */
static void release(mqqb_fast *f, uint32_t number)
{
    slot *const s = &f->slots[number];
    uint32_t k;

    if (s->is_open || s->session == NULL || s->is_reported || has_moved(s)) {
        return;
    }
    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        free(s->streams[k].kept);
    }
    memset(s, 0, sizeof *s);
    s->next = f->free;
    f->free = (int32_t)number;
}

static int own(mqqb_fast *f, int32_t owner, int32_t number)
{
    const size_t place = (size_t)owner;

    while (f->owners.count <= place) {
        if (!add(&f->owners, 0)) {
            return 0;
        }
    }
    f->owners.of[place] = number + 1;
    return 1;
}

int32_t mqqb_fast_open(mqqb_fast *f, int32_t owner, mqqb_session *session)
{
    void *slots = f->slots, *active = f->active.of;
    int32_t number = f->free;

    if (number < 0) {
        const size_t count = (size_t)f->slot_count + 1;
        if (!grow(&active, sizeof *f->active.of, &f->active.room, count)) { /* room for each slot */
            return -1;
        }
        f->active.of = active;
        if (!grow32(&slots, sizeof *f->slots, &f->slot_room, count)) {
            return -1;
        }
        f->slots = slots;
        number = (int32_t)f->slot_count;
        f->slots[number].next = -1;
    }
    if (owner >= 0 && !own(f, owner, number)) {
        return -1;
    }
    if (number == (int32_t)f->slot_count) {
        f->slot_count++;
    } else {
        f->free = f->slots[number].next;
    }
    memset(&f->slots[number], 0, sizeof *f->slots);
    f->slots[number].session = session;
    f->slots[number].owner = owner;
    f->slots[number].is_open = 1;
    f->slots[number].is_blocked = 1;
    return number;
}

void mqqb_fast_disown(mqqb_fast *f, int32_t owner)
{
    const int32_t number = mqqb_fast_slot(f, owner);

    if (number >= 0) {
        f->owners.of[owner] = 0;
        f->slots[number].owner = -1;
    }
}

void mqqb_fast_close(mqqb_fast *f, int32_t number)
{
    slot *const s = &f->slots[number];
    uint32_t k;

    mqqb_fast_disown(f, s->owner);
    s->is_open = 0;
    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        s->streams[k].is_active = 0;
    }
    release(f, (uint32_t)number);
}

int32_t mqqb_fast_slot(const mqqb_fast *f, int32_t owner)
{
    return owner >= 0 && (size_t)owner < f->owners.count ? f->owners.of[owner] - 1 : -1;
}

/* The index of a queue; -1: no memory. */
static int32_t queue_at(mqqb_fast *f, int64_t id)
{
    queue *grown;
    uint32_t i;

    for (i = 0; i < f->queue_count; i++) {
        if (f->queues[i].id == id) {
            return (int32_t)i;
        }
    }
    grown = realloc(f->queues, (f->queue_count + 1) * sizeof *grown);
    if (grown == NULL) {
        return -1;
    }
    f->queues = grown;
    memset(&f->queues[f->queue_count], 0, sizeof *f->queues);
    f->queues[f->queue_count].id = id;
    return (int32_t)f->queue_count++;
}

/* The place of a new stream; MQQB_FAST_STREAMS: all have uncommitted messages. */
static uint32_t place_in(slot *s)
{
    uint32_t k;

    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        if (!s->streams[k].is_active && s->streams[k].moved == 0) {
            return k;
        }
    }
    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        const uint32_t place = (s->oldest + k) % MQQB_FAST_STREAMS;
        if (s->streams[place].moved == 0) {
            s->oldest = place + 1;
            return place;
        }
    }
    return MQQB_FAST_STREAMS;
}

/* Let the template have the sequence of a packet that is not shorter: a board whose messages have all been acknowledged
 * begins another one with each message (B-096). */
static void follow(stream *st, const uint8_t *packet)
{
    const uint32_t at = st->t.transaction_at + MQQB_TX_ORDINAL_IN_PART;

    memcpy(st->kept + at, packet + at, MQQB_TX_NUMBER_IN_PART - MQQB_TX_ORDINAL_IN_PART);
}

int32_t mqqb_fast_learn(mqqb_fast *f, int32_t number, const uint8_t *packet, size_t size, mqqb_incoming *record,
                        int64_t queue_id, uint32_t lifetime, const uint8_t *order_ack, size_t order_ack_size)
{
    slot *const s = &f->slots[number];
    const uint32_t place = place_in(s);
    mqqb_run_template t;
    mqqb_run_packet found;
    uint32_t k;
    int32_t at;
    stream *st;
    uint8_t *kept;

    if (!s->is_open || place == MQQB_FAST_STREAMS || !mqqb_run_learn(&t, packet, size) ||
        t.head_size > MQQB_FAST_HEAD_MAX || order_ack_size < MQQB_PACKET_SIZE_MIN_MESSAGE + MQQB_ORDER_ACK_SIZE ||
        order_ack_size > MQQB_FAST_ACK_MAX) {
        return -1;
    }
    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        st = &s->streams[k];
        if (!st->is_active || st->record != record || size < st->t.head_size) {
            continue;
        }
        follow(st, packet);
        if (mqqb_run_find(&st->t, packet, size, &found, 1) == 1) {
            return number * (int32_t)MQQB_FAST_STREAMS + (int32_t)k;
        }
    }
    at = queue_at(f, queue_id);
    kept = malloc(t.head_size + order_ack_size);
    if (kept == NULL || at < 0) {
        free(kept);
        return -1;
    }
    st = &s->streams[place];
    free(st->kept);
    memcpy(kept, packet, t.head_size);
    memcpy(kept + t.head_size, order_ack, order_ack_size);
    t.head = kept;
    st->t = t;
    st->kept = kept;
    st->record = record;
    st->ack_size = (uint32_t)order_ack_size;
    st->lifetime = lifetime;
    st->queue = (uint32_t)at;
    st->is_active = 1;
    return number * (int32_t)MQQB_FAST_STREAMS + (int32_t)place;
}

void mqqb_fast_forget(mqqb_fast *f, int32_t number)
{
    uint32_t i, k;

    if (number >= 0) {
        stream_of(f, number)->is_active = 0;
        return;
    }
    for (i = 0; i < f->slot_count; i++) {
        for (k = 0; k < MQQB_FAST_STREAMS; k++) {
            f->slots[i].streams[k].is_active = 0;
        }
    }
}

void mqqb_fast_hold(mqqb_fast *f, int32_t number)
{
    f->slots[number].is_held = 1;
}

void mqqb_fast_continue(mqqb_fast *f, int32_t number, int is_held)
{
    f->slots[number].is_blocked = 0;
    f->slots[number].is_held = is_held != 0;
}

/* ---- taking ------------------------------------------------------------------------------------------ */

/* Apply a SessionHeader, behind a message or in a SessionAck. 0: nothing was applied, the full path decides. */
static int hear(slot *s, const uint8_t *in, int carried)
{
    mqqb_session after = *s->session;
    mqqb_session_header h;

    if (s->is_held || !mqqb_session_can_send(&after) || mqqb_unpack(MQQB_SESSION_HEADER, &h, in, 16) != MQQB_OK ||
        h.window_size != after.received_window_size) {
        return 0;
    }
    if (carried) {
        mqqb_session_received(&after, 1);
    }
    if (mqqb_session_check(&after, &h, carried) != MQQB_OK) {
        return 0;
    }
    *s->session = after;
    s->news.flags |= MQQB_FAST_HEARD;
    return 1;
}

static int is_session_ack(const uint8_t *data, uint32_t total)
{
    mqqb_internal_header h;

    return total == MQQB_PACKET_SIZE_SESSION_ACK && (data[MQQB_BASE_FLAGS_AT] & MQQB_BASE_SH) != 0 &&
           mqqb_unpack(MQQB_INTERNAL_HEADER, &h, data + MQQB_BASE_END, MQQB_INTERNAL_HEADER_SIZE) == MQQB_OK &&
           (h.flags & MQQB_INTERNAL_PT) == MQQB_PT_SESSION_ACK;
}

/* Make room for a run in its queue and in the list of moved streams; NULL: there is none. */
static queue *room_for(mqqb_fast *f, const stream *st, uint32_t bytes, uint32_t count)
{
    queue *const q = &f->queues[st->queue];
    void *packets = q->packets, *sizes = q->sizes, *streams = q->streams, *moved = f->moved.of;
    uint32_t places = q->places;
    int is_room = bytes <= ARENA_MAX - f->size && grow32(&packets, 1, &q->room, (size_t)q->size + bytes);

    q->packets = packets;
    is_room = is_room && grow32(&sizes, sizeof *q->sizes, &places, (size_t)q->count + count);
    q->sizes = sizes;
    places = q->places;
    is_room = is_room && grow32(&streams, sizeof *q->streams, &places, (size_t)q->count + count);
    q->streams = streams;
    is_room = is_room && grow(&moved, sizeof *f->moved.of, &f->moved.room, f->moved.count + 1);
    f->moved.of = moved;
    if (is_room) {
        q->places = places;
    }
    return is_room ? q : NULL;
}

static void keep(mqqb_fast *f, queue *q, int32_t number, const uint8_t *data, const mqqb_run_packet *packets,
                 uint32_t count)
{
    stream *const st = stream_of(f, number);
    const uint32_t bytes = packets[count - 1].offset + packets[count - 1].size;
    uint32_t i;

    memcpy(q->packets + q->size, data, bytes);
    for (i = 0; i < count; i++) {
        q->sizes[q->count] = packets[i].size;
        q->streams[q->count++] = number;
    }
    q->size += bytes;
    f->size += bytes;
    f->pending += count;
    if (st->moved == 0) {
        f->moved.of[f->moved.count++] = number;
    }
    st->moved += count;
}

/* How many of the packets are not too late (B-265). */
static uint32_t in_time(const stream *st, const mqqb_run_packet *packets, uint32_t count, int64_t wall)
{
    uint32_t i;

    for (i = 0; st->lifetime != MQQB_FAST_FOREVER && i < count; i++) {
        if (wall - (int64_t)packets[i].sent_time > (int64_t)st->lifetime) {
            return i;
        }
    }
    return count;
}

/* Take messages of this stream; returns their bytes. total: bytes of the first packet. */
static uint32_t take_run(mqqb_fast *f, int32_t number, const uint8_t *data, uint32_t size, uint32_t total, int64_t wall)
{
    slot *const s = &f->slots[(uint32_t)number / MQQB_FAST_STREAMS];
    stream *const st = stream_of(f, number);
    const int carries = (data[MQQB_BASE_FLAGS_AT] & MQQB_BASE_SH) != 0;
    mqqb_run_packet packets[FIND];
    mqqb_incoming after = *st->record;
    uint32_t count, bytes;
    queue *q;

    total -= carries ? MQQB_SESSION_HEADER_SIZE : 0;
    if (total < st->t.head_size) {
        return 0;
    }
    follow(st, data);
    if (carries) { /* alone, and compared without its SessionHeader */
        uint8_t head[MQQB_FAST_HEAD_MAX];
        memcpy(head, data, st->t.head_size);
        head[MQQB_BASE_FLAGS_AT] &= (uint8_t)~MQQB_BASE_SH;
        count = (uint32_t)mqqb_run_find(&st->t, head, total, packets, 1);
    } else {
        count = (uint32_t)mqqb_run_find(&st->t, data, size, packets, FIND);
    }
    count = in_time(st, packets, count, wall);
    if (count == 0 || after.reject_count != 0) { /* the full path watches streams that refuse messages */
        return 0;
    }
    count = (uint32_t)mqqb_run_accept(&after, &st->t, packets, count);
    if (count == 0) {
        return 0;
    }
    bytes = packets[count - 1].offset + packets[count - 1].size;
    q = room_for(f, st, bytes, count);
    if (q == NULL || (carries && !hear(s, data + total, 1))) {
        return 0;
    }
    if (st->moved == 0) {
        st->before = *st->record;
    }
    *st->record = after;
    keep(f, q, number, data, packets, count);
    s->news.flags |= MQQB_FAST_CAME;
    if (!carries) {
        while (count-- > 0) {
            mqqb_session_received(s->session, 1);
        }
        return bytes;
    }
    q->packets[q->size - bytes + MQQB_BASE_FLAGS_AT] &= (uint8_t)~MQQB_BASE_SH;
    return bytes + MQQB_SESSION_HEADER_SIZE;
}

/* Take the next packet, or the messages of a run; returns the bytes. */
static uint32_t take_next(mqqb_fast *f, uint32_t number, const uint8_t *data, uint32_t size, int64_t wall)
{
    slot *const s = &f->slots[number];
    uint32_t total, taken = 0, k;

    if (mqqb_frame(data, size, &total) != MQQB_OK) {
        return 0;
    }
    if ((data[MQQB_BASE_FLAGS_AT] & MQQB_BASE_IN) != 0) {
        return is_session_ack(data, total) && hear(s, data + SESSION_HEADER_AT, 0) ? total : 0;
    }
    for (k = 0; k < MQQB_FAST_STREAMS && taken == 0; k++) {
        if (s->streams[k].is_active) {
            taken = take_run(f, (int32_t)(number * MQQB_FAST_STREAMS + k), data, size, total, wall);
        }
    }
    return taken;
}

uint32_t mqqb_fast_take(mqqb_fast *f, int32_t number, const uint8_t *data, uint32_t size, int64_t wall)
{
    slot *const s = &f->slots[number];
    uint32_t at = 0, taken = 1;

    if (s->is_blocked || f->is_committed) {
        s->is_blocked = 1;
        return 0;
    }
    report(f, (uint32_t)number);
    while (at < size && taken != 0) {
        taken = take_next(f, (uint32_t)number, data + at, size - at, wall);
        at += taken;
    }
    s->news.bytes += at;
    s->is_blocked = at < size;
    return at;
}

/* ---- transactions ------------------------------------------------------------------------------------ */

uint32_t mqqb_fast_pending(const mqqb_fast *f)
{
    return f->pending;
}

int mqqb_fast_rows(const mqqb_fast *f, uint32_t index, mqqb_fast_run *run)
{
    const queue *q;

    if (index >= f->queue_count) {
        return 0;
    }
    q = &f->queues[index];
    run->queue = q->id;
    run->packets = q->packets;
    run->sizes = q->sizes;
    run->streams = q->streams;
    run->size = q->size;
    run->count = q->count;
    return 1;
}

size_t mqqb_fast_moved(const mqqb_fast *f, int32_t *streams, size_t capacity)
{
    const size_t count = f->moved.count < capacity ? f->moved.count : capacity;

    if (count > 0) {
        memcpy(streams, f->moved.of, count * sizeof *streams);
    }
    return count;
}

static void clear_arena(mqqb_fast *f)
{
    uint32_t i;

    for (i = 0; i < f->queue_count; i++) {
        f->queues[i].size = 0;
        f->queues[i].count = 0;
    }
    f->size = 0;
    f->pending = 0;
}

/* No stream has moved any more. */
static void clear_moved(mqqb_fast *f)
{
    size_t i;

    for (i = 0; i < f->moved.count; i++) {
        stream_of(f, f->moved.of[i])->moved = 0;
    }
    for (i = 0; i < f->moved.count; i++) {
        release(f, (uint32_t)f->moved.of[i] / MQQB_FAST_STREAMS);
    }
    f->moved.count = 0;
    f->is_committed = 0;
}

void mqqb_fast_undo(mqqb_fast *f)
{
    size_t i = f->moved.count;

    while (i-- > 0 && !f->is_committed) { /* backwards: two streams may share a record */
        stream *const st = stream_of(f, f->moved.of[i]);
        *st->record = st->before;
    }
    clear_arena(f);
    clear_moved(f);
}

void mqqb_fast_commit(mqqb_fast *f, uint32_t time, uint32_t message_id)
{
    size_t i;

    for (i = 0; i < f->moved.count; i++) {
        slot *const s = &f->slots[(uint32_t)f->moved.of[i] / MQQB_FAST_STREAMS];
        s->news.messages += stream_of(f, f->moved.of[i])->moved;
        report(f, (uint32_t)f->moved.of[i] / MQQB_FAST_STREAMS);
        if (s->is_open) {
            s->stored += stream_of(f, f->moved.of[i])->moved;
        }
    }
    clear_arena(f);
    f->acked[0] = f->acked[1] = 0;
    f->is_committed = 1;
    f->time = time;
    f->message_id = message_id;
}

void mqqb_fast_defer(mqqb_fast *f, int32_t number)
{
    f->slots[number].is_deferred = 1;
}

/* ---- acknowledgements -------------------------------------------------------------------------------- */

static void write_le32(uint8_t *to, uint32_t value)
{
    unsigned byte;

    for (byte = 0; byte < 4; byte++) {
        to[byte] = (uint8_t)(value >> 8 * byte);
    }
}

static size_t put_session_ack(const mqqb_fast *f, slot *s, uint8_t *out)
{
    mqqb_session_header h;

    mqqb_session_fill(s->session, &h);
    memcpy(out, f->session_ack, sizeof f->session_ack);
    mqqb_pack(MQQB_SESSION_HEADER, &h, out + SESSION_HEADER_AT, MQQB_SESSION_HEADER_SIZE);
    s->news.flags |= MQQB_FAST_ACKED;
    return sizeof f->session_ack;
}

static size_t put_order_ack(mqqb_fast *f, const stream *st, uint8_t *out)
{
    const mqqb_incoming *const in = st->record;
    mqqb_order_ack body = {0};

    body.tx_sequence_ordinal = in->tx_sequence_ordinal;
    body.tx_sequence_time_stamp = in->tx_sequence_time_stamp;
    body.tx_sequence_number = in->tx_sequence_number;
    body.tx_previous_sequence_number = in->tx_sequence_number - 1;
    memcpy(out, st->kept + st->t.head_size, st->ack_size);
    write_le32(out + MQQB_USER_SENT_TIME_AT, f->time);
    write_le32(out + MQQB_USER_MESSAGE_ID_AT, f->message_id++);
    mqqb_pack(MQQB_ORDER_ACK, &body, out + st->ack_size - MQQB_ORDER_ACK_SIZE, MQQB_ORDER_ACK_SIZE);
    return st->ack_size;
}

/* Has an earlier stream of the slot the same record, and acknowledges it? */
static int is_again(const slot *s, uint32_t place)
{
    uint32_t k;

    for (k = 0; k < place; k++) {
        if (s->streams[k].moved != 0 && s->streams[k].is_active && s->streams[k].record == s->streams[place].record) {
            return 1;
        }
    }
    return 0;
}

static size_t acknowledge(mqqb_fast *f, slot *s, uint8_t *out)
{
    size_t size = 0;
    uint32_t k;

    while (s->stored > 0) {
        if (mqqb_session_stored(s->session, 1) == MQQB_OK) {
            s->stored--;
        } else { /* B-123; the last one acknowledges what the others do, too, and leaves alone (B-107) */
            (void)put_session_ack(f, s, out);
        }
    }
    size += put_session_ack(f, s, out + size);
    for (k = 0; k < MQQB_FAST_STREAMS; k++) {
        const stream *const st = &s->streams[k];
        if (st->moved == 0 || (st->is_active && is_again(s, k))) {
            continue;
        }
        if (!st->is_active || !mqqb_session_can_send(s->session)) {
            s->news.flags |= MQQB_FAST_OWED;
            continue;
        }
        mqqb_session_sent(s->session, 0);
        size += put_order_ack(f, st, out + size);
        s->news.order_acks++;
    }
    s->news.sent += (uint32_t)size;
    return size;
}

size_t mqqb_fast_next_ack(mqqb_fast *f, int is_owned, int32_t *id, uint8_t *out, size_t capacity)
{
    size_t *const at = &f->acked[is_owned != 0];

    if (!f->is_committed || capacity < MQQB_FAST_OUT_MIN) {
        return 0;
    }
    while (*at < f->moved.count) {
        const int32_t number = f->moved.of[(*at)++] / (int32_t)MQQB_FAST_STREAMS;
        slot *const s = &f->slots[number];
        if (s->is_open && s->stored > 0 && (s->owner >= 0 && !s->is_deferred) == (is_owned != 0)) {
            *id = is_owned ? s->owner : number;
            return acknowledge(f, s, out);
        }
    }
    if (f->acked[0] == f->moved.count && f->acked[1] == f->moved.count) {
        size_t i;
        for (i = 0; i < f->moved.count; i++) {
            f->slots[(uint32_t)f->moved.of[i] / MQQB_FAST_STREAMS].is_deferred = 0;
        }
        clear_moved(f);
    }
    return 0;
}

size_t mqqb_fast_report(mqqb_fast *f, mqqb_fast_news *news, size_t capacity)
{
    size_t count = 0;

    while (count < capacity && f->active.count > 0) {
        const uint32_t number = (uint32_t)f->active.of[--f->active.count];
        slot *const s = &f->slots[number];
        s->news.slot = number;
        news[count++] = s->news;
        memset(&s->news, 0, sizeof s->news);
        s->is_reported = 0;
        release(f, number);
    }
    return count;
}
