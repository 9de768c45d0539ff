/* A fleet of boards in one process: the load of the bench (tests/bench/fleet.py, which writes TEMPLATES).
 *
 *   boards KIND PORT BOARDS RATE SECONDS WARM_UP_S CUT RETRY TEMPLATES LATENCIES
 *
 * KIND: ordack, redis, nats or mqtt. RATE: messages a second of all boards together, in turn, on a schedule that does not
 * wait for answers. The latency of a message begins when it is due and ends when it is acknowledged as stored; the file
 * LATENCIES gets them, as floats: the board's index, seconds. A board has at most WINDOW messages unacknowledged on its connection. CUT: so
 * many boards lose their connections after the warm-up. They reconnect within 1 s with one message each; only the others go
 * on sending, until all are stored. RETRY: 1 if boards reconnect when their connection ends, 0 if that is an error.
 *
 * It prints a JSON line when all boards are connected, waits for a byte on standard input, and prints another line after
 * the warm-up, after the last message, and, with its figures, at the end. A second byte ends the sending early. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <error.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "mqqb.h"

enum { WINDOW = 64 /* packets */, TABLE = 256 /* messages, sent or not */, LEFTOVER_BYTES = 4096, PATCHES = 16 };
enum { HELLO, ANSWER, MESSAGE, SESSION_ACK, TEMPLATES };
enum { BOARD, NUMBER, PLACE, PREVIOUS, ORDINAL, TIME, VALUES }; /* PLACE: of a message in its sequence */
enum { LITTLE, BIG, DIGITS };
#define ACK_SEND_S 10.0 /* half of AckTimeout (B-121) */
#define CONNECTS_A_SECOND 3000.0
#define RETRY_S 0.02
#define DRAIN_S 10.0

typedef struct {
    uint32_t size, patches;
    struct {
        uint32_t offset, bytes, value, form, plus;
    } patch[PATCHES];
    uint8_t bytes[4096];
} template;

typedef struct {
    int socket; /* -1: none */
    bool connected, open, cut;
    uint32_t made, sent, acked; /* number of the last message */
    uint32_t begun, before, ordinal; /* the last message that was ever sent, the last one before its sequence, which */
    mqqb_session session;
    double ack_due, connect_at, due[TABLE]; /* due: by number */
    uint8_t leftover[LEFTOVER_BYTES];
    size_t left;
} board;

static template packet[TEMPLATES];
static board *fleet;
static uint32_t boards, cut_count, open_count, storing, skipped,
    lost; /* storing: cut boards with nothing stored since */
static uint16_t port;
static bool is_ordack, retry, measuring;
static double measure_from, last_stored;
static uint64_t made, acked, acked_while_measuring;
static FILE *latencies;
static int events;
static uint8_t output[1 << 20];
static size_t output_bytes;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void watch(int operation, int socket, uint32_t what, board *b)
{
    struct epoll_event event = {what, {.ptr = b}};
    epoll_ctl(events, operation, socket, &event);
}

/* ---- sending ---------------------------------------------------------------------------------- */

static uint8_t *add(const board *b, int which)
{
    const template *t = packet + which;
    const uint32_t previous = b->sent > b->acked + 1 ? b->sent - b->before - 1 : 0;
    const uint32_t values[VALUES] = {(uint32_t)(b - fleet), b->sent,    b->sent - b->before,
                                     previous,              b->ordinal, (uint32_t)time(NULL)};
    uint8_t *at = memcpy(output + output_bytes, t->bytes, t->size);
    for (uint32_t i = 0; i < t->patches; i++) {
        uint32_t value = values[t->patch[i].value] + t->patch[i].plus;
        uint32_t bytes = t->patch[i].bytes, form = t->patch[i].form;
        for (uint32_t k = 0; k < bytes; k++, value = form == DIGITS ? value / 10 : value >> 8) {
            uint32_t place = t->patch[i].offset + (form == LITTLE ? k : bytes - 1 - k);
            at[place] = (uint8_t)(form == DIGITS ? '0' + value % 10 : value);
        }
    }
    output_bytes += t->size;
    return at;
}

static void add_session_header(board *b)
{
    mqqb_session_header header;
    mqqb_session_fill(&b->session, &header);
    mqqb_pack(MQQB_SESSION_HEADER, &header, output + output_bytes, MQQB_SESSION_HEADER_SIZE);
    output_bytes += MQQB_SESSION_HEADER_SIZE;
    b->ack_due = 0;
}

static void add_session_ack(board *b)
{
    add(b, SESSION_ACK); /* as far as the SessionHeader */
    add_session_header(b);
}

static void flush(const board *b)
{
    ssize_t wrote = 1;
    for (size_t done = 0; done < output_bytes && wrote > 0; done += (size_t)wrote) {
        wrote = send(b->socket, output + done, output_bytes - done, MSG_NOSIGNAL); /* the next read reports an error */
    }
    output_bytes = 0;
}

static void pump(board *b)
{
    while (b->open && b->sent < b->made &&
           (is_ordack ? mqqb_session_can_send(&b->session) : b->sent - b->acked < WINDOW)) {
        b->sent++;
        if (b->sent > b->begun && b->sent == b->acked + 1) { /* B-096 */
            b->before = b->acked;
            b->ordinal++;
        }
        b->begun = b->sent > b->begun ? b->sent : b->begun;
        uint8_t *message = add(b, MESSAGE);
        if (is_ordack) {
            mqqb_session_sent(&b->session, 1);
            if (b->ack_due > 0 && 4 * (b->ack_due - now_s()) < ACK_SEND_S) { /* B-125 */
                message[MQQB_BASE_FLAGS_AT] |= MQQB_BASE_SH;
                add_session_header(b);
            }
        }
    }
    flush(b);
}

static void make(board *b, double due)
{
    if (b->made - b->acked >= TABLE) {
        skipped++;
    } else {
        made++;
        b->due[++b->made % TABLE] = due;
        pump(b);
    }
}

/* ---- connections ------------------------------------------------------------------------------ */

static void connect_board(board *b)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct linger reset = {1, 0}; /* no TIME_WAIT: a fleet would use up the ports */
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    b->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(b->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(b->socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    watch(EPOLL_CTL_ADD, b->socket, EPOLLIN | EPOLLOUT, b);
    connect(b->socket, (struct sockaddr *)&address, sizeof address);
}

static void opened(board *b)
{
    b->open = true;
    open_count++;
}

static void greet(board *b)
{
    b->connected = true;
    fcntl(b->socket, F_SETFL, 0); /* writes block, reads do not: MSG_DONTWAIT */
    watch(EPOLL_CTL_MOD, b->socket, EPOLLIN, b);
    mqqb_session_init(&b->session, WINDOW);
    add(b, HELLO);
    if (!packet[ANSWER].size) {
        opened(b);
    }
    pump(b);
}

static void lose(board *b, double connect_at)
{
    close(b->socket);
    open_count -= b->open;
    b->socket = -1;
    b->connected = b->open = false;
    b->left = 0;
    b->ack_due = 0;
    b->sent = b->acked;
    b->connect_at = connect_at;
    lost++;
}

static void broken(board *b, const char *why)
{
    if (!retry) {
        error(1, 0, "board %td: %s", b - fleet, why);
    }
    lose(b, now_s() + RETRY_S);
}

/* ---- receiving: each returns the size of one packet that it has handled, 0 if it is incomplete -- */

static void stored_up_to(board *b, uint32_t number)
{
    double now = now_s();
    if (number > b->sent) {
        error(1, 0, "board %td: an acknowledgement of message %u, which was never sent", b - fleet, number);
    }
    if (number > b->acked && b->cut) {
        b->cut = false;
        storing--;
        last_stored = now;
    }
    for (; b->acked < number; acked++, acked_while_measuring += measuring) {
        double due = b->due[++b->acked % TABLE];
        const float record[] = {(float)(b - fleet), (float)(now - due)};
        if (measure_from > 0 && due >= measure_from) {
            fwrite(record, sizeof record, 1, latencies);
        }
    }
}

static mqqb_status ordack_message(board *b, const uint8_t *at, const uint8_t *end)
{
    int recoverable = (at[MQQB_USER_FLAGS_AT] & MQQB_USER_DM) != 0;
    mqqb_order_ack ack;
    mqqb_status status = mqqb_unpack(MQQB_ORDER_ACK, &ack, end - MQQB_ORDER_ACK_SIZE, MQQB_ORDER_ACK_SIZE);
    if (status || ack.tx_previous_sequence_number + 1 != ack.tx_sequence_number) {
        error(1, 0, "board %td: a message that is no OrderAck", b - fleet);
    }
    if (ack.tx_sequence_ordinal == b->ordinal) {
        stored_up_to(b, b->before + ack.tx_sequence_number);
    }
    mqqb_session_received(&b->session, recoverable);
    if (mqqb_session_stored(&b->session, recoverable) == MQQB_ACK_FIRST) {
        add_session_ack(b);
        mqqb_session_stored(&b->session, recoverable);
    }
    if (mqqb_session_unacked_received(&b->session) >= WINDOW / 2) { /* B-124 */
        add_session_ack(b);
    } else if (b->ack_due <= 0) {
        b->ack_due = now_s() + ACK_SEND_S;
    }
    return MQQB_OK;
}

static size_t ordack_packet(board *b, const uint8_t *at, size_t size)
{
    uint32_t total;
    mqqb_base_header base;
    mqqb_session_header header;
    mqqb_status status = mqqb_frame(at, size, &total);
    if (status == MQQB_NEED_MORE) {
        return 0;
    }
    if (!status && !(status = mqqb_unpack(MQQB_BASE_HEADER, &base, at, size))) {
        uint32_t flags = base.flags & MQQB_BASE_IN ? at[MQQB_INTERNAL_FLAGS_AT] : 0;
        if (flags == MQQB_PT_ESTABLISH_CONNECTION) {
            add(b, ANSWER);
        } else if (flags == MQQB_PT_CONNECTION_PARAMETERS) {
            opened(b);
        } else if (flags & MQQB_INTERNAL_CS) {
            error(1, 0, "board %td: the connection is refused", b - fleet);
        } else if (!flags) {
            status = ordack_message(b, at, at + base.packet_size);
        }
        if (!status && base.flags & MQQB_BASE_SH) { /* of a SessionAck, or after a message */
            status = mqqb_unpack(MQQB_SESSION_HEADER, &header, at + total - MQQB_SESSION_HEADER_SIZE,
                                 MQQB_SESSION_HEADER_SIZE);
            status = status ? status : mqqb_session_check(&b->session, &header, !flags);
        }
    }
    if (status) {
        error(1, 0, "board %td: %s", b - fleet, mqqb_status_name(status));
    }
    return total;
}

/* Lines of Redis and NATS; the number of bytes after a line is its last word. */
static size_t text_packet(board *b, const uint8_t *at, size_t size)
{
    const uint8_t *end = memmem(at, size, "\r\n", 2);
    size_t head = end ? (size_t)(end - at) + 2 : 0, more = 0;
    if (head && (*at == '$' || *at == 'M')) { /* the key of an entry; MSG */
        const char *word = *at == '$' ? (const char *)at : memrchr(at, ' ', head);
        more = strtoul(word + 1, NULL, 10) + 2;
        if (head + more > size) {
            return 0;
        }
        if (memmem(at + head, more, "\"error\"", 7)) {
            error(1, 0, "%.*s", (int)more, (const char *)at + head);
        }
        stored_up_to(b, b->acked + 1);
    } else if (head && *at == 'I') { /* INFO */
        add(b, ANSWER);
    } else if (head && !memcmp(at, "PONG", 4)) {
        opened(b);
    } else if (head && *at == 'P') { /* PING */
        output_bytes += (size_t)sprintf((char *)output + output_bytes, "PONG\r\n");
    } else if (head) {
        error(1, 0, "%.*s", (int)head, (const char *)at);
    }
    return head + more;
}

static size_t mqtt_packet(board *b, const uint8_t *at, size_t size)
{
    if (size < 2 || size < 2u + at[1]) {
        return 0;
    }
    if (*at == 0x20) { /* CONNACK */
        opened(b);
    } else if (*at == 0x50) { /* PUBREC; the answer is PUBREL */
        memcpy(output + output_bytes, (uint8_t[]){0x62, 2, at[2], at[3]}, 4);
        output_bytes += 4;
    } else if (*at == 0x70) { /* PUBCOMP */
        stored_up_to(b, b->acked + 1);
    }
    return 2u + at[1];
}

static size_t (*take_packet)(board *, const uint8_t *, size_t);

static void take(board *b)
{
    static uint8_t input[1 << 16];
    memcpy(input, b->leftover, b->left);
    ssize_t got = recv(b->socket, input + b->left, sizeof input - b->left, MSG_DONTWAIT);
    if (got > 0) {
        size_t size = b->left + (size_t)got, at = 0, used = 1;
        for (; used && at < size; at += used) {
            used = take_packet(b, input + at, size - at);
        }
        b->left = size - at;
        if (b->left > LEFTOVER_BYTES) {
            error(1, 0, "board %td: a packet is too long", b - fleet);
        }
        memcpy(b->leftover, input + at, b->left);
        pump(b);
    } else if (got == 0 || errno != EAGAIN) {
        broken(b, got ? strerror(errno) : "the server has closed the connection");
    }
}

/* ---- time ------------------------------------------------------------------------------------- */

static void run_timers(double now)
{
    static double due;
    for (board *b = fleet; now >= due && b < fleet + boards; b++) {
        if (b->socket < 0 && now >= b->connect_at) {
            connect_board(b);
        } else if (b->ack_due > 0 && now >= b->ack_due) {
            add_session_ack(b);
            flush(b);
        }
    }
    due = now >= due ? now + 0.005 : due;
}

/* Handle what comes until a time; false if the order to stop came. */
static bool wait_until(double until)
{
    struct epoll_event ready[256];
    bool goes_on = true;
    double left = 0;
    do {
        struct timespec timeout = {0, (long)(1e9 * (left < 0.005 ? left : 0.005))};
        int count = epoll_pwait2(events, ready, 256, &timeout, NULL);
        for (int i = 0; i < count; i++) {
            board *b = ready[i].data.ptr;
            if (!b) {
                goes_on = false;
                epoll_ctl(events, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
            } else if (b->connected) {
                take(b);
            } else if (ready[i].events & (EPOLLERR | EPOLLHUP)) {
                broken(b, "no connection");
            } else {
                greet(b);
            }
        }
        run_timers(now_s());
    } while (goes_on && (left = until - now_s()) > 0);
    return goes_on;
}

static void begin_to_measure(void)
{
    puts("{\"measuring\": true}");
    measure_from = now_s();
    measuring = true;
    for (storing = 0; storing < cut_count; storing++) {
        fleet[storing].cut = true;
        lose(fleet + storing, measure_from + (double)storing / cut_count);
        make(fleet + storing, measure_from);
    }
}

static void run(double rate, double warm_up_s, double seconds)
{
    const double begin = now_s(), end = begin + warm_up_s + seconds;
    double due = begin;
    for (uint64_t n = 0; due < end && !(measuring && cut_count && !storing); due = begin + (double)++n / rate) {
        if (!measuring && due >= begin + warm_up_s) {
            begin_to_measure();
        }
        if ((n % 64 == 0 || due > now_s()) && !wait_until(due)) {
            break;
        }
        make(fleet + (measuring ? cut_count + n % (boards - cut_count) : n % boards), due);
    }
    measuring = false;
}

int main(int count, char **words)
{
    if (count != 11) {
        error(2, 0, "usage: at the top of boards.c");
    }
    is_ordack = words[1][0] == 'o';
    take_packet = is_ordack ? ordack_packet : words[1][0] == 'm' ? mqtt_packet : text_packet;
    port = (uint16_t)atoi(words[2]);
    boards = (uint32_t)atoi(words[3]);
    cut_count = (uint32_t)atoi(words[7]);
    retry = atoi(words[8]);
    FILE *templates = fopen(words[9], "rb");
    latencies = fopen(words[10], "wb");
    fleet = calloc(boards, sizeof *fleet);
    if (!fleet || !latencies || !templates || fread(packet, sizeof packet, 1, templates) != 1) {
        error(1, errno, "no memory, or no files");
    }
    events = epoll_create1(0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint32_t i = 0; i < boards; i++) {
        fleet[i].socket = -1;
        fleet[i].connect_at = now_s() + i / CONNECTS_A_SECOND;
    }
    while (open_count < boards) {
        wait_until(now_s() + 0.005);
    }
    puts("{\"opened\": true}");
    getchar();
    watch(EPOLL_CTL_ADD, STDIN_FILENO, EPOLLIN, NULL);
    run(atof(words[4]), atof(words[6]), atof(words[5]));
    const double measured_s = now_s() - measure_from;
    puts("{\"sent\": true}");
    for (double give_up = now_s() + DRAIN_S; acked < made && now_s() < give_up;) {
        wait_until(now_s() + 0.01);
    }
    fclose(latencies);
    printf("{\"settled\": %s, \"messages\": %lu, \"rate\": %f, ", acked == made ? "true" : "false",
           acked_while_measuring, (double)acked_while_measuring / measured_s);
    printf("\"skipped\": %u, \"lost\": %u, \"cut_waiting\": %u, \"cut_stored_s\": %f, ", skipped, lost, storing,
           cut_count ? last_stored - measure_from : 0);
    for (uint32_t i = 0; i < boards; i++) {
        printf("%s%u", i ? ", " : "\"made\": [", fleet[i].made);
    }
    puts("]}");
    return 0;
}
