/* mqqb_sockets.c: see mqqb_sockets.h. */
#include "mqqb_sockets.h"

#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFER_SIZE (4u << 20)
#define READ_SIZE (256u << 10) /* from one connection in a turn: a window of messages of 4 KiB */
#define LARGE_SIZE (32 << 10)  /* more may come at once: a segment on the loopback has 64 KiB */
#define EVENTS 1024
#define ITEMS (2 * EVENTS)
#define OUT_SIZE (64u << 10)
#define MAPPED_SIZE (2 << 20) /* of a block that malloc returns to the kernel at once: asyncio reads into 256 KiB */
#define SPARE_SIZE (8 << 20)  /* that malloc keeps: each page that the kernel gives again costs a fault */

typedef struct {
    int descriptor; /* -1: free */
    int32_t next_free;
    uint8_t *kept;
    uint32_t kept_size;
    uint32_t heard; /* low word of the second of the last bytes */
    int is_muted;
} connection;

struct mqqb_sockets {
    int epoll;
    mqqb_fast *fast;
    uint32_t unwritten_max;
    connection *connections;
    int32_t capacity, first_free;
    uint32_t second, busy, busy_before;
    uint32_t item_count, buffer_used;
    struct epoll_event events[EVENTS];
    mqqb_sockets_item items[ITEMS];
    uint8_t out[OUT_SIZE];
    uint8_t *buffer;
};

mqqb_sockets *mqqb_sockets_new(mqqb_fast *fast, uint32_t unwritten_max)
{
    mqqb_sockets *const s = calloc(1, sizeof *s);

    if (s == NULL) {
        return NULL;
    }
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED_SIZE);
    (void)mallopt(M_TRIM_THRESHOLD, SPARE_SIZE);
#endif
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->buffer = malloc(BUFFER_SIZE);
    s->fast = fast;
    s->unwritten_max = unwritten_max;
    s->first_free = -1;
    if (s->epoll < 0 || s->buffer == NULL) {
        mqqb_sockets_free(s);
        return NULL;
    }
    return s;
}

void mqqb_sockets_free(mqqb_sockets *s)
{
    int32_t socket;

    for (socket = 0; socket < s->capacity; socket++) {
        if (s->connections[socket].descriptor >= 0) {
            mqqb_sockets_remove(s, socket);
        }
    }
    if (s->epoll >= 0) {
        (void)close(s->epoll);
    }
    free(s->connections);
    free(s->buffer);
    free(s);
}

int mqqb_sockets_descriptor(const mqqb_sockets *s)
{
    return s->epoll;
}

/* Watch a connection for these events. */
static int watch(const mqqb_sockets *s, int operation, int32_t socket, uint32_t events)
{
    struct epoll_event event;

    memset(&event, 0, sizeof event);
    event.events = events;
    event.data.u32 = (uint32_t)socket;
    return epoll_ctl(s->epoll, operation, s->connections[socket].descriptor, &event);
}

static void watch_again(const mqqb_sockets *s, int32_t socket)
{
    const connection *const c = s->connections + socket;
    const uint32_t in = c->is_muted ? 0u : (uint32_t)EPOLLIN;
    const uint32_t out = c->kept_size > 0 ? (uint32_t)EPOLLOUT : 0u;

    (void)watch(s, EPOLL_CTL_MOD, socket, in | out);
}

/* Make room for more connections. 0: no memory. */
static int grow(mqqb_sockets *s)
{
    const int32_t capacity = s->capacity > 0 ? 2 * s->capacity : 64;
    connection *const connections = realloc(s->connections, (size_t)capacity * sizeof *connections);
    int32_t socket;

    if (connections == NULL) {
        return 0;
    }
    s->connections = connections;
    for (socket = capacity - 1; socket >= s->capacity; socket--) { /* the lowest number comes first */
        connections[socket].descriptor = -1;
        connections[socket].next_free = s->first_free;
        s->first_free = socket;
    }
    s->capacity = capacity;
    return 1;
}

int32_t mqqb_sockets_add(mqqb_sockets *s, int descriptor)
{
    const int one = 1;
    const int32_t socket = s->first_free >= 0 || grow(s) ? s->first_free : -1;
    connection *c;

    if (socket < 0) {
        return -1;
    }
    c = s->connections + socket;
    s->first_free = c->next_free;
    memset(c, 0, sizeof *c);
    c->descriptor = descriptor;
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (watch(s, EPOLL_CTL_ADD, socket, EPOLLIN) != 0) {
        c->descriptor = -1;
        c->next_free = s->first_free;
        s->first_free = socket;
        return -1;
    }
    return socket;
}

void mqqb_sockets_remove(mqqb_sockets *s, int32_t socket)
{
    connection *const c = s->connections + socket;

    (void)close(c->descriptor); /* epoll forgets it */
    if (s->fast != NULL) {
        mqqb_fast_disown(s->fast, socket);
    }
    free(c->kept);
    c->kept = NULL;
    c->descriptor = -1;
    c->next_free = s->first_free;
    s->first_free = socket;
}

void mqqb_sockets_mute(mqqb_sockets *s, int32_t socket)
{
    s->connections[socket].is_muted = 1;
    watch_again(s, socket);
}

int mqqb_sockets_file(const mqqb_sockets *s, int32_t socket)
{
    return s->connections[socket].descriptor;
}

static void add_item(mqqb_sockets *s, int32_t socket, uint32_t kind, uint32_t offset, uint32_t size)
{
    mqqb_sockets_item *const item = s->items + s->item_count++;

    item->socket = socket;
    item->kind = kind;
    item->offset = offset;
    item->size = size;
}

static void count_busy(mqqb_sockets *s, connection *c, uint32_t second)
{
    if (second != s->second) {
        s->busy_before = second == s->second + 1 ? s->busy : 0;
        s->busy = 0;
        s->second = second;
    }
    if (c->heard != second) {
        c->heard = second;
        s->busy++;
    }
}

/* Send; returns the bytes that the kernel took. A broken connection takes all. */
static uint32_t push(const connection *c, const uint8_t *data, uint32_t size)
{
    const ssize_t sent = send(c->descriptor, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (sent >= 0) {
        return (uint32_t)sent;
    }
    return errno == EAGAIN || errno == EINTR ? 0 : size;
}

static void write_kept(mqqb_sockets *s, int32_t socket)
{
    connection *const c = s->connections + socket;
    const uint32_t sent = push(c, c->kept, c->kept_size);

    memmove(c->kept, c->kept + sent, c->kept_size - sent);
    c->kept_size -= sent;
    if (c->kept_size == 0) {
        free(c->kept);
        c->kept = NULL;
        watch_again(s, socket);
        add_item(s, socket, MQQB_SOCKETS_WRITTEN, 0, 0);
    }
}

static void read_from(mqqb_sockets *s, int32_t socket, int64_t wall)
{
    connection *const c = s->connections + socket;
    uint8_t *const data = s->buffer + s->buffer_used;
    ssize_t come = recv(c->descriptor, data, READ_SIZE, MSG_DONTWAIT), more;
    uint32_t taken = 0;
    int32_t slot;

    if (come >= LARGE_SIZE && (more = recv(c->descriptor, data + come, READ_SIZE - (size_t)come, MSG_DONTWAIT)) > 0) {
        come += more;
    }
    if (come < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (come <= 0) {
        add_item(s, socket, MQQB_SOCKETS_ENDED, 0, come < 0 ? (uint32_t)errno : 0);
        (void)watch(s, EPOLL_CTL_DEL, socket, 0);
        return;
    }
    count_busy(s, c, (uint32_t)wall);
    slot = s->fast != NULL ? mqqb_fast_slot(s->fast, socket) : -1;
    if (slot >= 0) {
        taken = mqqb_fast_take(s->fast, slot, data, (uint32_t)come, wall);
    }
    if (taken < (uint32_t)come) {
        add_item(s, socket, MQQB_SOCKETS_BYTES, s->buffer_used + taken, (uint32_t)come - taken);
        s->buffer_used += (uint32_t)come;
    }
}

uint32_t mqqb_sockets_turn(mqqb_sockets *s, int64_t wall)
{
    int count, place;

    s->item_count = 0;
    s->buffer_used = 0;
    count = epoll_wait(s->epoll, s->events, EVENTS, 0);
    for (place = 0; place < count && BUFFER_SIZE - s->buffer_used >= READ_SIZE; place++) {
        const int32_t socket = (int32_t)s->events[place].data.u32;
        const uint32_t events = s->events[place].events;

        if ((events & EPOLLOUT) != 0 && s->connections[socket].kept_size > 0) {
            write_kept(s, socket);
        }
        if ((events & ~(uint32_t)EPOLLOUT) != 0) {
            read_from(s, socket, wall);
        }
    }
    return s->item_count;
}

const mqqb_sockets_item *mqqb_sockets_items(const mqqb_sockets *s)
{
    return s->items;
}

const uint8_t *mqqb_sockets_bytes(const mqqb_sockets *s)
{
    return s->buffer;
}

uint32_t mqqb_sockets_busy(const mqqb_sockets *s)
{
    return s->busy > s->busy_before ? s->busy : s->busy_before;
}

int64_t mqqb_sockets_write(mqqb_sockets *s, int32_t socket, const uint8_t *data, uint32_t size)
{
    connection *const c = s->connections + socket;
    const uint32_t before = c->kept_size;
    const uint32_t sent = before == 0 ? push(c, data, size) : 0;
    uint8_t *kept;

    if (sent == size) {
        return before;
    }
    kept = size - sent > UINT32_MAX - before ? NULL : realloc(c->kept, (size_t)before + size - sent);
    if (kept == NULL) {
        return -1;
    }
    memcpy(kept + before, data + sent, size - sent);
    c->kept = kept;
    c->kept_size = before + size - sent;
    if (before == 0) {
        watch_again(s, socket);
    }
    return c->kept_size;
}

uint32_t mqqb_sockets_kept(const mqqb_sockets *s, int32_t socket)
{
    return s->connections[socket].kept_size;
}

uint32_t mqqb_sockets_acknowledge(mqqb_sockets *s)
{
    int32_t socket;
    uint32_t count = 0;
    size_t size;

    while ((size = mqqb_fast_next_ack(s->fast, 1, &socket, s->out, OUT_SIZE)) > 0) {
        const int64_t kept = mqqb_sockets_write(s, socket, s->out, (uint32_t)size);

        if (kept < 0 || kept > s->unwritten_max) {
            (void)shutdown(s->connections[socket].descriptor, SHUT_RDWR); /* the next turn reports its end (B-435) */
        }
        count++;
    }
    return count;
}
