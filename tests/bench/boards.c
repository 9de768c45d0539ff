/* A fleet of boards in one process: the load of the bench. All connections go to 127.0.0.1.
 *
 *   boards KIND PORT BOARDS RATE SECONDS WARM_UP_S BYTES CUT RETRY
 *
 * KIND: ordack, redis (XADD to a stream of each board), mqtt (QoS 2), nats (JetStream). RATE: messages a second of all
 * boards together, in turn, on a schedule that does not wait for answers. A board keeps at most WINDOW messages
 * unacknowledged on its connection; later ones wait. The latency of a message begins when it is due and ends when it is
 * acknowledged as stored. CUT: so many boards lose their connections after the warm-up. They reconnect within 1 s with
 * one message each; only the others go on sending.
 * RETRY: 1 if boards reconnect whenever their connection ends; 0 if such an end is an error.
 *
 * Lines on standard output: {"opened"}, then it waits for a byte on standard input; {"measuring"} after the warm-up;
 * {"sent"} after the last message; at the end the figures. A second byte ends the sending early. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "mqqb.h"

enum kind { ORDACK, REDIS, MQTT, NATS, KINDS };
enum {
    WINDOW = 64,           /* packets */
    TABLE = 256,           /* messages that a board keeps until they are acknowledged */
    OPENING_MAX = 100,     /* connections that begin at the same time */
    LEFTOVER_BYTES = 4096, /* of an incomplete packet or line */
    PACKET_BYTES = 4096
};
#define ACK_SEND_S 10.0 /* half of AckTimeout (B-121) */
#define RETRY_S 0.02
#define DRAIN_S 10.0

typedef struct {
    int socket; /* -1: none */
    bool connected, open, cut;
    uint32_t made, sent, acked; /* number of the last message */
    uint32_t measured;          /* messages acknowledged while measuring */
    mqqb_session session;
    double ack_due, connect_at;
    double due[TABLE]; /* by number */
    uint8_t leftover[LEFTOVER_BYTES];
    size_t left;
} board;

typedef struct {
    float *seconds;
    size_t count, room;
} latencies;

static enum kind kind;
static uint32_t boards_count, cut_count, body_bytes, open_count, opening_count;
static uint16_t port;
static bool retry, measuring;
static double measure_from, last_stored;
static uint32_t life;     /* TxSequenceTimeStamp of all streams */
static board *fleet;      /* boards_count */
static latencies took[2]; /* of boards that stayed connected, of boards that were cut */
static uint64_t acked_while_measuring, skipped, reconnects,
    storing; /* storing: cut boards that wait for a stored message */
static int events;
static uint8_t output[WINDOW * PACKET_BYTES];
static size_t output_bytes;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static uint32_t index_of(const board *b)
{
    return (uint32_t)(b - fleet);
}

static void put_u16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void put_u32(uint8_t *at, uint32_t value)
{
    put_u16(at, value);
    put_u16(at + 2, value >> 16);
}

static uint32_t get_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- connections ------------------------------------------------------------------------------ */

static void lose(board *b, double reconnect_at)
{
    close(b->socket);
    open_count -= b->open;
    opening_count -= !b->open;
    b->socket = -1;
    b->connected = b->open = false;
    b->left = 0;
    b->ack_due = 0;
    b->sent = b->acked;
    b->connect_at = reconnect_at;
    reconnects++;
}

static void broken(board *b, const char *why)
{
    if (!retry) {
        fail("board %u lost its connection: %s", index_of(b), why);
    }
    lose(b, now_s() + RETRY_S);
}

static void begin(board *b)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct linger reset = {1, 0}; /* no TIME_WAIT: a fleet would use up the ports */
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    b->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (b->socket < 0) {
        fail("no socket: %s", strerror(errno));
    }
    setsockopt(b->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(b->socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    struct epoll_event event = {EPOLLIN | EPOLLOUT, {.ptr = b}};
    epoll_ctl(events, EPOLL_CTL_ADD, b->socket, &event);
    opening_count++;
    if (connect(b->socket, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
        broken(b, strerror(errno));
    }
}

static void opened(board *b)
{
    b->open = true;
    opening_count--;
    open_count++;
}

static uint8_t *room(size_t bytes)
{
    uint8_t *at = output + output_bytes;
    output_bytes += bytes;
    return at;
}

static void add(const void *bytes, size_t count)
{
    memcpy(room(count), bytes, count);
}

__attribute__((format(printf, 1, 2))) static void add_text(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    output_bytes += (size_t)vsnprintf((char *)output + output_bytes, PACKET_BYTES, format, arguments);
    va_end(arguments);
}

static void flush(board *b)
{
    size_t done = 0;
    while (done < output_bytes) {
        ssize_t wrote = write(b->socket, output + done, output_bytes - done);
        if (wrote >= 0) {
            done += (size_t)wrote;
        } else if (errno == EAGAIN) {
            struct pollfd ready = {b->socket, POLLOUT, 0};
            poll(&ready, 1, 1000);
        } else {
            break; /* the next read reports it */
        }
    }
    output_bytes = 0;
}

/* ---- ordack ----------------------------------------------------------------------------------- */

static uint8_t *base(uint32_t flags, uint32_t size)
{
    mqqb_base_header header = {MQQB_VERSION_NUMBER, 0, flags, MQQB_SIGNATURE, size, UINT32_MAX};
    uint8_t *packet = memset(room(size), 0, size);
    mqqb_pack(MQQB_BASE_HEADER, &header, packet, size);
    return packet;
}

static void session_header(board *b)
{
    mqqb_session_header header;
    mqqb_session_fill(&b->session, &header);
    mqqb_pack(MQQB_SESSION_HEADER, &header, room(MQQB_SESSION_HEADER_SIZE), MQQB_SESSION_HEADER_SIZE);
    b->ack_due = 0;
}

static void session_ack(board *b)
{
    uint8_t *packet = base(MQQB_BASE_IN | MQQB_BASE_SH, MQQB_PACKET_SIZE_SESSION_ACK);
    put_u16(packet + MQQB_INTERNAL_FLAGS_AT, MQQB_PT_SESSION_ACK);
    output_bytes -= MQQB_SESSION_HEADER_SIZE;
    session_header(b);
}

static void establish(board *b)
{
    uint8_t *packet = base(MQQB_BASE_IN, MQQB_PACKET_SIZE_ESTABLISH_CONNECTION);
    put_u16(packet + MQQB_INTERNAL_FLAGS_AT, MQQB_PT_ESTABLISH_CONNECTION);
    put_u32(packet + MQQB_ESTABLISH_CLIENT_GUID_AT, index_of(b) + 1);
    put_u16(packet + MQQB_ESTABLISH_OPERATING_SYSTEM_AT, 0x310);
    memset(packet + MQQB_ESTABLISH_END, 0x5A, MQQB_PACKET_SIZE_ESTABLISH_CONNECTION - MQQB_ESTABLISH_END);
    mqqb_session_init(&b->session, WINDOW);
}

static void parameters(void)
{
    uint8_t *packet = base(MQQB_BASE_IN, MQQB_PACKET_SIZE_CONNECTION_PARAMETERS);
    put_u16(packet + MQQB_INTERNAL_FLAGS_AT, MQQB_PT_CONNECTION_PARAMETERS);
    put_u32(packet + MQQB_PARAMETERS_RECOVERABLE_ACK_TIMEOUT_AT, 500);
    put_u32(packet + MQQB_PARAMETERS_ACK_TIMEOUT_AT, 20000);
    put_u16(packet + MQQB_PARAMETERS_WINDOW_SIZE_AT, WINDOW);
}

static void user_message(board *b, double now)
{
    static const char name[] = "TCP:127.0.0.1\\private$\\line1"; /* with its NUL, in UTF-16 */
    const uint32_t transaction_at = MQQB_USER_END + ((2 + 2 * (uint32_t)sizeof name + 3) & ~3u);
    const uint32_t properties_at = transaction_at + MQQB_TRANSACTION_HEADER_SIZE;
    const uint32_t body_at = properties_at + MQQB_MESSAGE_PROPERTIES_HEADER_SIZE;
    const uint32_t number = b->sent;
    uint8_t *packet = base(0, (body_at + body_bytes + 3) & ~3u);
    put_u32(packet + MQQB_USER_SOURCE_QUEUE_MANAGER_AT, index_of(b) + 1);
    put_u32(packet + MQQB_USER_TIME_TO_BE_RECEIVED_AT, UINT32_MAX);
    put_u32(packet + MQQB_USER_SENT_TIME_AT, (uint32_t)time(NULL));
    put_u32(packet + MQQB_USER_MESSAGE_ID_AT, life % 2000 * 2000000 + number);
    put_u32(packet + MQQB_USER_FLAGS_AT, 1u << 5 | 7u << 10 | MQQB_USER_TH | MQQB_USER_MP); /* recoverable, direct */
    put_u16(packet + MQQB_USER_END, 2 * (uint32_t)sizeof name);
    for (uint32_t i = 0; i < sizeof name; i++) {
        put_u16(packet + MQQB_USER_END + 2 + 2 * i, (uint8_t)name[i]);
    }
    mqqb_transaction_header header = {MQQB_TX_FM | MQQB_TX_LM | (number & 0xFFFFF) << 4, 1, life, number, 0};
    header.previous_tx_sequence_number = number - 1 > b->acked ? number - 1 : 0;
    mqqb_pack(MQQB_TRANSACTION_HEADER, &header, packet + transaction_at, MQQB_TRANSACTION_HEADER_SIZE);
    put_u32(packet + properties_at + MQQB_PROPERTIES_MESSAGE_SIZE_IN_PART, body_bytes);
    put_u32(packet + properties_at + MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART, body_bytes);
    put_u32(packet + properties_at + MQQB_PROPERTIES_HASH_ALGORITHM_IN_PART, 0x8004);
    put_u32(packet + properties_at + MQQB_PROPERTIES_ENCRYPTION_ALGORITHM_IN_PART, 0x6801);
    put_u32(packet + body_at, index_of(b));
    put_u32(packet + body_at + 4, number);
    mqqb_session_sent(&b->session, 1);
    if (b->ack_due > 0 && 4 * (b->ack_due - now) < ACK_SEND_S) { /* B-125 */
        packet[MQQB_BASE_FLAGS_AT] |= MQQB_BASE_SH;
        session_header(b);
    }
}

static void stored_up_to(board *b, uint32_t number);

/* Handle one packet; its size, 0 if it is incomplete. */
static size_t ordack_packet(board *b, const uint8_t *packet, size_t size)
{
    uint32_t total;
    mqqb_session_header header;
    mqqb_order_ack ack;
    mqqb_status status = mqqb_frame(packet, size, &total);
    if (status == MQQB_NEED_MORE) {
        return 0;
    }
    uint32_t end = get_u32(packet + MQQB_BASE_PACKET_SIZE_AT), type = packet[MQQB_INTERNAL_FLAGS_AT] & MQQB_INTERNAL_PT;
    if (status || (packet[MQQB_BASE_FLAGS_AT] & MQQB_BASE_IN && packet[MQQB_INTERNAL_FLAGS_AT] & MQQB_INTERNAL_CS)) {
        fail("board %u: refused, or %s", index_of(b), mqqb_status_name(status));
    } else if (packet[MQQB_BASE_FLAGS_AT] & MQQB_BASE_IN && type == MQQB_PT_ESTABLISH_CONNECTION) {
        parameters();
    } else if (packet[MQQB_BASE_FLAGS_AT] & MQQB_BASE_IN && type == MQQB_PT_CONNECTION_PARAMETERS) {
        opened(b);
    } else if (packet[MQQB_BASE_FLAGS_AT] & MQQB_BASE_IN) {
        status = mqqb_unpack(MQQB_SESSION_HEADER, &header, packet + MQQB_INTERNAL_END, MQQB_SESSION_HEADER_SIZE);
        status = status ? status : mqqb_session_check(&b->session, &header, 0);
    } else {
        int recoverable = (packet[MQQB_USER_FLAGS_AT] >> 5 & 3) == 1;
        mqqb_session_received(&b->session, recoverable);
        if (packet[MQQB_BASE_FLAGS_AT] & MQQB_BASE_SH) {
            status = mqqb_unpack(MQQB_SESSION_HEADER, &header, packet + end, MQQB_SESSION_HEADER_SIZE);
            status = status ? status : mqqb_session_check(&b->session, &header, 1);
        }
        if (mqqb_unpack(MQQB_ORDER_ACK, &ack, packet + end - MQQB_ORDER_ACK_SIZE, MQQB_ORDER_ACK_SIZE) ||
            ack.tx_sequence_time_stamp != life || ack.tx_previous_sequence_number + 1 != ack.tx_sequence_number) {
            fail("board %u: a message that is no OrderAck of its stream", index_of(b));
        }
        stored_up_to(b, ack.tx_sequence_number);
        if (mqqb_session_stored(&b->session, recoverable) == MQQB_ACK_FIRST) {
            session_ack(b);
            mqqb_session_stored(&b->session, recoverable);
        }
        b->ack_due = b->ack_due > 0 ? b->ack_due : now_s() + ACK_SEND_S;
        if (mqqb_session_unacked_received(&b->session) >= WINDOW / 2) { /* B-124 */
            session_ack(b);
        }
    }
    if (status) {
        fail("board %u: %s", index_of(b), mqqb_status_name(status));
    }
    return total;
}

/* ---- the peers -------------------------------------------------------------------------------- */

/* A line at text; its size with CR LF, 0 if it is incomplete. */
static size_t line_size(const uint8_t *text, size_t size)
{
    const uint8_t *end = memmem(text, size, "\r\n", 2);
    return end ? (size_t)(end - text) + 2 : 0;
}

static size_t redis_reply(board *b, const uint8_t *text, size_t size)
{
    size_t head = line_size(text, size);
    if (!head) {
        return 0;
    }
    if (text[0] != '$') { /* the key of the new entry */
        fail("Redis: %.*s", (int)head, (const char *)text);
    }
    size_t total = head + strtoul((const char *)text + 1, NULL, 10) + 2;
    if (total > size) {
        return 0;
    }
    stored_up_to(b, b->acked + 1);
    return total;
}

static size_t nats_line(board *b, const uint8_t *text, size_t size)
{
    size_t total = line_size(text, size);
    if (!total) {
        return 0;
    }
    if (!memcmp(text, "INFO", 4)) {
        add_text("CONNECT {\"verbose\":false,\"pedantic\":false,\"protocol\":1}\r\nSUB a.%u 1\r\nPING\r\n",
                 index_of(b));
    } else if (!memcmp(text, "PONG", 4)) {
        opened(b);
    } else if (!memcmp(text, "PING", 4)) {
        add("PONG\r\n", 6);
    } else if (!memcmp(text, "MSG ", 4)) {
        const char *space = memrchr(text, ' ', total);
        const uint8_t *payload = text + total;
        size_t bytes = strtoul(space, NULL, 10);
        if (total + bytes + 2 > size) {
            return 0;
        }
        if (memmem(payload, bytes, "\"error\"", 7)) {
            fail("NATS: %.*s", (int)bytes, (const char *)payload);
        }
        total += bytes + 2;
        stored_up_to(b, b->acked + 1);
    } else {
        fail("NATS: %.*s", (int)total, (const char *)text);
    }
    return total;
}

/* All packets that a publisher receives have at most 127 bytes. */
static size_t mqtt_packet(board *b, const uint8_t *packet, size_t size)
{
    if (size < 2 || size < 2u + packet[1]) {
        return 0;
    }
    if (packet[0] == 0x20) { /* CONNACK */
        opened(b);
    } else if (packet[0] == 0x50) { /* PUBREC: PUBREL */
        const uint8_t release[] = {0x62, 2, packet[2], packet[3]};
        add(release, sizeof release);
    } else if (packet[0] == 0x70) { /* PUBCOMP */
        stored_up_to(b, b->acked + 1);
    } else {
        fail("MQTT: packet %02x", packet[0]);
    }
    return 2u + packet[1];
}

static void mqtt_connect(const board *b)
{
    const uint8_t head[] = {0x10, 18, 0, 4, 'M', 'Q', 'T', 'T', 4, 2 /* clean session */, 0, 0, 0, 6};
    add(head, sizeof head);
    add_text("%06u", index_of(b));
}

static void body(const board *b)
{
    uint8_t *at = memset(room(body_bytes), 'x', body_bytes);
    put_u32(at, index_of(b));
    put_u32(at + 4, b->sent);
}

static void publish(board *b)
{
    uint32_t left = 2 + 8 + 2 + body_bytes, id = b->sent % 65535 + 1;
    if (kind == REDIS) {
        add_text("*5\r\n$4\r\nXADD\r\n$7\r\nb%06u\r\n$1\r\n*\r\n$4\r\nbody\r\n$%u\r\n", index_of(b), body_bytes);
        body(b);
        add("\r\n", 2);
    } else if (kind == NATS) {
        add_text("PUB b.%u a.%u %u\r\n", index_of(b), index_of(b), body_bytes);
        body(b);
        add("\r\n", 2);
    } else {
        *room(1) = 0x34; /* PUBLISH, QoS 2 */
        for (; left > 127; left >>= 7) {
            *room(1) = (uint8_t)(left | 128);
        }
        *room(1) = (uint8_t)left;
        add("\0\10", 2);
        add_text("b/%06u", index_of(b));
        *room(1) = (uint8_t)(id >> 8);
        *room(1) = (uint8_t)id;
        body(b);
    }
}

/* ---- boards ----------------------------------------------------------------------------------- */

static void stored_up_to(board *b, uint32_t number)
{
    double now = now_s();
    if (number > b->sent) {
        fail("board %u: message %u is acknowledged, and was never sent", index_of(b), number);
    }
    if (number > b->acked && b->cut) {
        b->cut = false;
        storing--;
        last_stored = now;
    }
    while (b->acked < number) {
        double due = b->due[++b->acked % TABLE];
        latencies *of = &took[index_of(b) < cut_count];
        if (measuring) {
            b->measured++;
            acked_while_measuring++;
        }
        if (measure_from > 0 && due >= measure_from) {
            if (of->count == of->room) {
                of->room = of->room ? 2 * of->room : 1 << 16;
                of->seconds = realloc(of->seconds, of->room * sizeof *of->seconds);
            }
            of->seconds[of->count++] = (float)(now - due);
        }
    }
}

static bool may_send(const board *b)
{
    return b->open && b->sent < b->made &&
           (kind == ORDACK ? mqqb_session_can_send(&b->session) : b->sent - b->acked < WINDOW);
}

static void pump(board *b, double now)
{
    while (may_send(b)) {
        b->sent++;
        if (kind == ORDACK) {
            user_message(b, now);
        } else {
            publish(b);
        }
    }
    flush(b);
}

static void greet(board *b)
{
    b->connected = true;
    struct epoll_event event = {EPOLLIN, {.ptr = b}};
    epoll_ctl(events, EPOLL_CTL_MOD, b->socket, &event);
    if (kind == ORDACK) {
        establish(b);
    } else if (kind == MQTT) {
        mqtt_connect(b);
    } else if (kind == REDIS) {
        opened(b);
    }
    pump(b, now_s());
}

static void take(board *b)
{
    static size_t (*const packet[KINDS])(board *, const uint8_t *, size_t) = {ordack_packet, redis_reply, mqtt_packet,
                                                                              nats_line};
    static uint8_t input[1 << 16];
    memcpy(input, b->leftover, b->left);
    ssize_t got = read(b->socket, input + b->left, sizeof input - b->left);
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN) {
            broken(b, got ? strerror(errno) : "closed");
        }
        return;
    }
    size_t size = b->left + (size_t)got, at = 0, used;
    while (at < size && (used = packet[kind](b, input + at, size - at)) > 0) {
        at += used;
    }
    b->left = size - at;
    if (b->left > LEFTOVER_BYTES) {
        fail("board %u: a packet of more than %u bytes", index_of(b), LEFTOVER_BYTES);
    }
    memcpy(b->leftover, input + at, b->left);
    pump(b, now_s());
}

/* Begin connections that are due, send SessionAcks that are due. */
static void timers(double now)
{
    for (uint32_t i = 0; i < boards_count; i++) {
        board *b = fleet + i;
        if (b->socket < 0 && now >= b->connect_at && (measure_from > 0 || opening_count < OPENING_MAX)) {
            begin(b);
        } else if (b->ack_due > 0 && now >= b->ack_due) {
            session_ack(b);
            flush(b);
        }
    }
}

/* Handle what comes until a time; false if the order to stop came. */
static bool wait_until(double until)
{
    static struct epoll_event ready[512];
    static double timers_due;
    bool goes_on = true;
    double left = until - now_s();
    do {
        left = left < 0 ? 0 : left > 0.01 ? 0.01 : left;
        struct timespec timeout = {0, (long)(left * 1e9)};
        int count = epoll_pwait2(events, ready, 512, &timeout, NULL);
        for (int i = 0; i < count; i++) {
            board *b = ready[i].data.ptr;
            if (!b) {
                goes_on = false;
                epoll_ctl(events, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
            } else if (b->socket >= 0 && b->connected) {
                take(b);
            } else if (b->socket >= 0 && ready[i].events & (EPOLLERR | EPOLLHUP)) {
                broken(b, "refused");
            } else if (b->socket >= 0) {
                greet(b);
            }
        }
        double now = now_s();
        if (now >= timers_due) {
            timers(now);
            timers_due = now + 0.01;
        }
    } while (goes_on && (left = until - now_s()) > 0);
    return goes_on;
}

static void make(board *b, double due)
{
    if (b->made - b->acked >= TABLE) {
        skipped++;
        return;
    }
    b->due[++b->made % TABLE] = due;
    pump(b, due);
}

static void cut(double now)
{
    for (uint32_t i = 0; i < cut_count; i++) {
        fleet[i].cut = true;
        storing++;
        lose(fleet + i, now + (double)i / cut_count);
        make(fleet + i, now);
    }
}

/* Send on the schedule; returns the seconds while it measured. */
static double run(double rate, double warm_up_s, double seconds)
{
    const double begin_at = now_s(), measure_at = begin_at + warm_up_s, end = measure_at + seconds;
    double due = begin_at;
    for (uint64_t sent = 0; due < end && !(measuring && cut_count && !storing && due > measure_at + 2);
         due = begin_at + (double)++sent / rate) {
        if (measure_from == 0 && due >= measure_at) {
            measure_from = now_s();
            measuring = true;
            puts("{\"measuring\": true}");
            cut(measure_from);
        }
        if ((due > now_s() || sent % 64 == 0) && !wait_until(due)) {
            break;
        }
        make(fleet + (measuring ? cut_count + sent % (boards_count - cut_count) : sent % boards_count), due);
    }
    measuring = false;
    puts("{\"sent\": true}");
    return now_s() - measure_from;
}

/* ---- figures ---------------------------------------------------------------------------------- */

static int by_seconds(const void *a, const void *b)
{
    const float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

static int by_measured(const void *a, const void *b)
{
    return (int)((const board *)a)->measured - (int)((const board *)b)->measured;
}

static void print_latencies(const char *prefix, latencies *of)
{
    static const struct {
        const char *name;
        double share;
    } ranks[] = {{"p50", 0.5}, {"p99", 0.99}, {"max", 1}};
    qsort(of->seconds, of->count, sizeof *of->seconds, by_seconds);
    for (size_t i = 0; of->count && i < 3; i++) {
        float seconds = of->seconds[(size_t)((double)(of->count - 1) * ranks[i].share)];
        printf(", \"%s%s_ms\": %.2f", prefix, ranks[i].name, 1e3 * (double)seconds);
    }
}

static void print_figures(double measured_s, double cpu_s)
{
    uint64_t made = 0, acked = 0;
    uint32_t stayed = boards_count - cut_count;
    for (uint32_t i = 0; i < boards_count; i++) {
        made += fleet[i].made;
        acked += fleet[i].acked;
    }
    printf("{\"boards\": %u, \"made\": %lu, \"acked\": %lu, \"messages\": %lu, \"rate\": %.1f", boards_count, made,
           acked, acked_while_measuring, (double)acked_while_measuring / measured_s);
    print_latencies(cut_count ? "cut_" : "none_", &took[1]);
    print_latencies("", &took[0]);
    qsort(fleet + cut_count, stayed, sizeof *fleet, by_measured);
    printf(", \"least\": %u, \"median\": %u, \"skipped\": %lu, \"reconnects\": %lu, \"cut_stored_s\": %.3f, ",
           stayed ? fleet[cut_count].measured : 0, stayed ? fleet[cut_count + stayed / 2].measured : 0, skipped,
           reconnects, cut_count ? last_stored - measure_from : 0);
    printf("\"cut_waiting\": %lu, \"boards_cpu_s\": %.3f}\n", storing, cpu_s);
}

int main(int count, char **arguments)
{
    static const char *const kinds[KINDS] = {"ordack", "redis", "mqtt", "nats"};
    if (count != 10) {
        fail("usage: boards KIND PORT BOARDS RATE SECONDS WARM_UP_S BYTES CUT RETRY");
    }
    while (kind < KINDS && strcmp(kinds[kind], arguments[1])) {
        kind++;
    }
    port = (uint16_t)atoi(arguments[2]);
    boards_count = (uint32_t)atoi(arguments[3]);
    body_bytes = (uint32_t)atoi(arguments[7]);
    cut_count = (uint32_t)atoi(arguments[8]);
    retry = atoi(arguments[9]);
    if (kind == KINDS || !boards_count || cut_count >= boards_count || body_bytes < 8 ||
        body_bytes > PACKET_BYTES - 256) {
        fail("unknown KIND, or a number outside its range");
    }
    struct rlimit files = {boards_count + 100, boards_count + 100};
    struct epoll_event order = {EPOLLIN, {.ptr = NULL}};
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    life = (uint32_t)time(NULL);
    events = epoll_create1(0);
    fleet = calloc(boards_count, sizeof *fleet);
    for (uint32_t i = 0; i < boards_count; i++) {
        fleet[i].socket = -1;
    }
    const double began = now_s();
    while (open_count < boards_count) {
        wait_until(now_s() + 0.002);
    }
    printf("{\"opened\": %u, \"open_s\": %.2f}\n", boards_count, now_s() - began);
    getchar();
    epoll_ctl(events, EPOLL_CTL_ADD, STDIN_FILENO, &order);
    const double measured_s = run(atof(arguments[4]), atof(arguments[6]), atof(arguments[5]));
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    const double give_up = now_s() + DRAIN_S;
    for (bool waits = true; waits && now_s() < give_up;) {
        wait_until(now_s() + 0.01);
        waits = false;
        for (uint32_t i = 0; i < boards_count; i++) {
            waits |= fleet[i].acked < fleet[i].made;
        }
    }
    print_figures(measured_s, (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                                  1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
    return 0;
}
