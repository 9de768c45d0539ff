/* test_capture.c: mqqb_capture on captures built byte by byte. What it finds in generated captures of all kinds is compared with
 * another implementation in tests/audit/test_captures.py. */
#include "check.h"
#include "frames.h"
#include "mqqb_line.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define S(name) r->column[MQQB_SCAN_##name]
#define K(name) r->column[MQQB_CAPTURE_##name]
#define NOTHING ((const uint8_t *)"")

enum {
    EST = MQQB_KIND_ESTABLISH_CONNECTION,
    CP = MQQB_KIND_CONNECTION_PARAMETERS,
    SACK = MQQB_KIND_SESSION_ACK,
    MSG = MQQB_KIND_USER_MESSAGE
};
enum { HOLE = MQQB_KIND_HOLE, BEGIN = MQQB_KIND_BEGIN, OLDER = MQQB_KIND_OLDER, END = MQQB_KIND_END };

static reading *r;
static file f;
static uint8_t stream[1 << 20];

/* ---- making a conversation; sequence numbers are counted from 0 behind the SYN ------------------- */

static uint8_t frame[70000];
static int six;

static size_t tcp(int side, uint32_t at, uint32_t ack, uint32_t flags, const uint8_t *data, size_t size)
{
    return put_tcp(frame, six, side, 50000, (side == 0 ? 1001 : 5001) + at, (side == 0 ? 5001 : 1001) + ack, flags,
                   data, size);
}

static void say(int side, uint32_t at, uint32_t ack, uint32_t flags, const uint8_t *data, size_t size)
{
    const size_t n = tcp(side, at, ack, flags, data, size);
    record(&f, frame, n, n);
}

static void opening(void)
{
    pcap(&f, 101, 0, 0);
    say(0, (uint32_t)-1, 0, SYN, NOTHING, 0);
    say(1, (uint32_t)-1, 0, SYN | ACK, NOTHING, 0);
}

static size_t make_message(uint8_t *out, size_t body)
{
    const message m = {.user_flags = DQ_DIRECT | DM_RECOVERABLE | TH,
                       .message_id = 7,
                       .name = "TCP:10.0.0.5\\private$\\line1",
                       .tx_number = 3,
                       .label = "reading",
                       .body_size = (uint32_t)body};

    memset(out, 0, 512 + body);
    return put_message(out, &m, NULL);
}

/* ---- frames that were routed --------------------------------------------------------------------- */

#define ROUTED_MAX 60000

static reading *again;
static mqqb_capture_routed routed[ROUTED_MAX], listed[ROUTED_MAX];

/* The frames of f that are routed, three at a time. Returns how many. */
static uint32_t route_all(void)
{
    static mqqb_capture c;
    static mqqb_capture_routed table[3];
    const uint8_t *const in[1] = {f.data};
    uint32_t count = 0;
    int32_t status;

    memset(&c, 0, sizeof c);
    c.files = in;
    c.size = f.size;
    c.pause = (uint64_t)-1;
    c.capacity = 16;
    c.connections_size = 1;
    c.segments_size = 2;
    c.routed = table;
    c.routed_size = LENGTH(table);
    mqqb_capture_start(&c);
    do {
        status = mqqb_capture_read(&c);
        CHECK(count + c.routed_used <= ROUTED_MAX);
        memcpy(routed + count, table, c.routed_used * sizeof *table);
        count += c.routed_used;
        c.routed_used = 0;
    } while (status == MQQB_CAPTURE_ROWS);
    CHECK_EQ(c.rows + c.connections_used + c.segments_used, 0);
    return count;
}

static void check_order(file *g)
{
    static const unsigned columns[] = {
        MQQB_SCAN_KIND,          MQQB_SCAN_OFFSET,       MQQB_SCAN_TOTAL_SIZE,
        MQQB_SCAN_STATUS,        MQQB_SCAN_MESSAGE_ID,   MQQB_SCAN_BODY_SIZE,
        MQQB_CAPTURE_CONNECTION, MQQB_CAPTURE_DIRECTION, MQQB_CAPTURE_SOURCE_QUEUE_MANAGER};

    read_files(again, g, 1, 0, 1, 0);
    CHECK_EQ(again->rows, r->rows);
    for (unsigned i = 0; i < LENGTH(columns); i++) {
        CHECK(memcmp(again->column[columns[i]], r->column[columns[i]], r->rows * sizeof(uint32_t)) == 0);
    }
    for (uint32_t i = 0; i < r->rows; i++) {
        CHECK(S(KIND)[i] >= HOLE || again->column[MQQB_CAPTURE_FRAME][i] == K(FRAME)[i]);
    }
}

/* What is read of the frames that are routed is what is read of the file, but for where a hole is found: in the file, and gathered. */
static void check_routed(void)
{
    static uint32_t which[ROUTED_MAX];
    const uint32_t count = route_all();
    file in_file = {.data = f.data, .order = routed, .count = count, .end = r->c.latest},
         gathered = {.order = listed, .count = count, .end = r->c.latest};
    uint64_t size = 0;

    for (uint32_t i = 0; i < count; i++) {
        which[i] = i;
        size += sizeof(mqqb_capture_frame) + routed[i].size;
    }
    gathered.data = malloc(size + 1);
    mqqb_capture_gather(f.data, routed, which, count, gathered.data);
    CHECK_EQ(mqqb_capture_list(gathered.data, size, 0, listed), count);
    check_order(&in_file);
    check_order(&gathered);
    free(gathered.data);
}

static void finish(void)
{
    read_files(r, &f, 1, 0, 1, 0);
    check_routed();
}

/* The rows' kinds, as digits, A for an end, B for another protocol; directions as they are. */
static const char *kinds(int direction)
{
    static char text[ROWS_MAX + 1];
    size_t n = 0;

    for (uint32_t i = 0; i < r->rows; i++) {
        if (direction < 0 || K(DIRECTION)[i] == (uint32_t)direction) {
            text[n++] = "0123456789AB"[S(KIND)[i]];
        }
    }
    text[n] = 0;
    return text;
}

#define CHECK_KINDS(direction, expected)                                                                               \
    do {                                                                                                               \
        const char *const kinds_ = kinds(direction);                                                                   \
        run.checks++;                                                                                                  \
        if (strcmp(kinds_, expected) != 0 && run.faults++ < 5) {                                                       \
            printf("%s:%d: %s [%s]: %s, not %s\n", __FILE__, __LINE__, run.name, run.rules, kinds_, expected);         \
        }                                                                                                              \
    } while (0)

static uint32_t row_of(uint32_t kind)
{
    uint32_t i = 0;

    while (i < r->rows && S(KIND)[i] != kind) {
        i++;
    }
    CHECK(i < r->rows);
    return i < r->rows ? i : 0;
}

/* ---- streams ------------------------------------------------------------------------------------- */

static void test_a_conversation(void)
{
    const size_t est = put_internal(stream, 2), cp = put_internal(stream + est, 3);
    const size_t msg = make_message(stream + est + cp, 5), all = est + cp + msg;
    uint8_t ack[36];
    uint32_t i;

    for (six = 0; six < 2; six++) {
        opening();
        say(0, 0, 0, ACK, stream, est + cp);
        say(0, (uint32_t)(est + cp), 0, ACK, stream + est + cp, msg);
        say(1, 0, (uint32_t)all, ACK, ack, put_internal(ack, 1));
        say(0, (uint32_t)all, 36, ACK | FIN, NOTHING, 0);
        say(1, 36, (uint32_t)all + 1, ACK | FIN, NOTHING, 0);
        finish();
        CHECK_KINDS(-1, "81243AA");
        CHECK_KINDS(1, "3A");
        i = row_of(MSG);
        CHECK_EQ(S(OFFSET)[i], est + cp);
        CHECK_EQ(S(TOTAL_SIZE)[i], msg);
        CHECK_EQ(S(TX_SEQUENCE_NUMBER)[i], 3);
        CHECK_EQ(K(FRAME)[i], 4);
        CHECK_EQ(K(SOURCE_QUEUE_MANAGER)[i], 1);
        CHECK_EQ(K(DESTINATION_QUEUE)[i], 1);
        CHECK_EQ(S(STATUS)[row_of(END)], MQQB_END_FIN);
        CHECK_EQ(r->c.connections_used, 1);
        CHECK_EQ(r->c.frames, 7);
    }
    six = 0;
}

static void test_segments_of_every_size(void)
{
    size_t size = put_internal(stream, 3);

    size += make_message(stream + size, 300);
    {
        const message m = {
            .base_flags = 0x10, .user_flags = DQ_DIRECT | DM_RECOVERABLE, .name = "TCP:a", .body_size = 4};
        memset(stream + size, 0, 512);
        size += put_message(stream + size, &m, NULL); /* with a SessionHeader, whose bytes its size leaves out */
    }
    size += put_internal(stream + size, 1);
    for (size_t step = 1; step < size; step += step < 40 ? 1 : 37) {
        opening();
        for (size_t at = 0; at < size; at += step) {
            say(0, (uint32_t)at, 0, ACK, stream + at, at + step > size ? size - at : step);
        }
        finish();
        CHECK_KINDS(-1, "82443AA");
        CHECK_EQ(K(FRAME)[row_of(MSG)], 3 + 32 / step);
        CHECK_EQ(S(TOTAL_SIZE)[4], 36);
    }
}

static void test_segments_in_any_order_and_twice(void)
{
    size_t size = 0, at, n;

    while (size < 1000) {
        size += make_message(stream + size, below(50));
    }
    n = size / 100;
    opening();
    for (at = n; at-- > 0;) {
        say(0, (uint32_t)at * 100, 0, ACK, stream + at * 100, 100);
        say(0, (uint32_t)at * 100, 0, ACK, stream + at * 100, 100);
    }
    say(0, (uint32_t)n * 100 - 50, 0, ACK, stream + n * 100 - 50, size - n * 100 + 50);
    say(0, 0, 0, ACK, stream, 100);
    finish();
    CHECK_EQ(strspn(kinds(0) + 1, "4"), strlen(kinds(0)) - 2);
    CHECK_EQ(S(OFFSET)[r->rows - 2], size);
    size = make_message(stream, 5); /* a packet's frame is the first that had its bytes */
    opening();
    say(0, (uint32_t)size, 0, ACK, stream, size);
    say(0, (uint32_t)size, 0, ACK, stream, size);
    say(0, 0, 0, ACK, stream, size);
    finish();
    CHECK_KINDS(0, "844A");
    CHECK_EQ(K(FRAME)[2], 3);
}

static void test_a_packet_that_cannot_be(void)
{
    size_t size = make_message(stream, 5), second = make_message(stream + size, 5);

    stream[60] = 0x1F;
    stream[size + 4] = 'X';
    opening();
    say(0, 0, 0, ACK, stream, size + second);
    say(0, (uint32_t)(size + second), 0, ACK, stream, size);
    finish();
    CHECK_KINDS(0, "800A");
    CHECK_EQ((int32_t)S(STATUS)[1], MQQB_BAD_HOP_COUNT);
    CHECK_EQ(S(TOTAL_SIZE)[1], size);
    CHECK_EQ((int32_t)S(STATUS)[2], MQQB_BAD_SIGNATURE);
    CHECK_EQ(S(TOTAL_SIZE)[2], 0);
    opening(); /* the same, its header in two segments; dead until a hole */
    say(0, 0, 0, ACK, stream + size, 10);
    say(0, 10, 0, ACK, stream + size + 10, second - 10);
    stream[60] = 0x20;
    say(0, (uint32_t)(second + 1), 0, ACK, stream, size);
    finish();
    CHECK_KINDS(0, "8B74A");
}

static void test_another_protocol(void)
{
    static const uint8_t request[] = "GET / HTTP/1.1\r\nHost: plant\r\n\r\n",
                         answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    static const uint8_t hello[] = {0x16, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const uint32_t asked = sizeof request - 1, answered = sizeof answer - 1;
    const size_t size = make_message(stream, 5);
    uint8_t other[sizeof hello];

    opening();
    say(0, 0, 0, ACK, request, asked);
    say(1, 0, asked, ACK, answer, answered);
    say(0, asked, answered, ACK, request, asked);
    say(1, answered, 2 * asked, ACK | FIN, NOTHING, 0);
    finish();
    CHECK_KINDS(-1, "8BBAA");
    CHECK_EQ((int32_t)S(STATUS)[1], MQQB_BAD_VERSION_NUMBER);
    opening(); /* it may carry ours */
    say(0, 0, 0, ACK, hello, sizeof hello);
    finish();
    CHECK_KINDS(0, "80A");
    for (uint32_t k = 0; k < 2; k++) {
        memcpy(other, hello, sizeof hello);
        other[k]++;
        opening();
        say(0, 0, 0, ACK, other, sizeof other);
        finish();
        CHECK_KINDS(0, "8BA");
    }
    opening(); /* the answer to a packet of ours */
    say(0, 0, 0, ACK, stream, size);
    say(1, 0, (uint32_t)size, ACK, answer, answered);
    finish();
    CHECK_KINDS(1, "0A");
    opening(); /* not at the beginning */
    say(0, 0, 0, ACK, stream, size);
    say(0, (uint32_t)size, 0, ACK, request, asked);
    finish();
    CHECK_KINDS(0, "840A");
    pcap(&f, 101, 0, 0); /* where it begins is not known */
    say(0, 0, 0, ACK, request, asked);
    finish();
    CHECK_KINDS(0, "9A");
}

static void test_older_connections(void)
{
    const size_t size = make_message(stream, 300), next = put_internal(stream + size, 3);

    for (size_t at = 1; at < size; at++) {
        for (size_t cut = 1; cut < 40; cut += cut < 24 ? 1 : 7) {
            if (at % 29 != 0 && at + 20 < size) {
                continue; /* where the header begins in its segment is what matters */
            }
            pcap(&f, 101, 0, 0);
            for (size_t from = at; from < size + next; from += cut) {
                say(0, (uint32_t)from, 0, 0, stream + from, from + cut > size + next ? size + next - from : cut);
            }
            finish();
            CHECK_KINDS(-1, "92A");
            CHECK_EQ(S(OFFSET)[1], size - at);
            CHECK_EQ(K(FRAME)[1], 1 + (size - at) / cut);
        }
    }
    pcap(&f, 101, 0, 0);
    say(0, 0, 0, ACK, NOTHING, 0); /* says nothing */
    say(1, 0, 0, ACK, stream, size);
    say(0, 0, (uint32_t)size, ACK, NOTHING, 0); /* nor does this */
    say(0, 0, (uint32_t)size, ACK, stream, size);
    finish();
    CHECK_KINDS(-1, "9944AA");
    CHECK_EQ(K(DIRECTION)[0], 1); /* 10.0.0.1 is lower */
    pcap(&f, 101, 0, 0);
    say(1, 0, 0, 0, stream, size);
    say(0, 0, (uint32_t)size, ACK, NOTHING, 0);
    finish();
    CHECK_KINDS(-1, "94A");
    pcap(&f, 101, 0, 0); /* equal addresses: the lower port */
    for (int side = 0; side < 2; side++) {
        const size_t n = put_tcp(frame, 0, side, 50000, 1, 1, 0, stream, size);
        memcpy(frame + 12, frame + 16, 4);
        record(&f, frame, n, n);
    }
    finish();
    CHECK_EQ(K(DIRECTION)[0], 1);
}

enum { M = 224, STEPS = 8, OPENED = 1, ALL = 2 }; /* M: bytes of the message */

/* Segments of a connection: the message, as much as there is room for; or its rest, where the numbers fit. */
typedef struct {
    uint8_t side, flags;
    uint32_t at, ack, size;
} segment;

static void test_conversations(void)
{
    static const struct {
        const char *what, *kinds; /* of direction 0, or, with ALL, of both */
        unsigned how;             /* OPENED: behind two SYNs */
        segment steps[STEPS];
        uint32_t kind, value, connections; /* of the first row of this kind: the size, or the status of an END */
    } cases[] = {
        {"a hole that an acknowledgement tells", "847A", 1, {{0, ACK, 0, 0, M}, {1, ACK, 0, 400, M}}, HOLE, 400 - M, 1},
        {"in two parts, of which others are behind the second",
         "84774A",
         1,
         {{0, ACK, 0, 0, M}, {0, ACK, 500, 0, M}, {1, ACK, 0, 450, M}, {1, ACK, M, 700, 0}},
         HOLE,
         450 - M,
         1},
        {"a FIN behind it", "847A", 1, {{0, ACK, 0, 0, M}, {0, ACK | FIN, 400, 0, 0}}, END, MQQB_END_FIN, 1},
        {"a FIN twice",
         "847A",
         1,
         {{0, ACK, 0, 0, M}, {0, ACK | FIN, 400, 0, 0}, {0, ACK | FIN, 400, 0, 0}},
         HOLE,
         400 - M,
         1},
        {"the rest of a packet",
         "874A",
         1,
         {{0, ACK, 0, 0, 100}, {0, ACK, 120, 0, M - 120}, {0, ACK, M, 0, M}},
         HOLE,
         20,
         1},
        {"one byte", "8474A", 1, {{0, ACK, 0, 0, M}, {0, ACK, M + 1, 0, M}, {1, ACK, 0, M + 1, M}}, HOLE, 1, 1},
        {"the last byte of a packet", "87A", 1, {{0, ACK, 0, 0, M - 1}, {1, ACK, 0, M, M}}, HOLE, 1, 1},
        {"acknowledged nonsense, and a FIN that is not there",
         "844AA",
         3,
         {{0, ACK, 0, 0, M}, {1, ACK, 0, 1u << 28, M}, {1, ACK, M, M + 1, 0}, {0, ACK, M + 1, M, 0}},
         BEGIN,
         0,
         1},
        {"the hole comes before what acknowledged its bytes",
         "8744AA",
         3,
         {{1, ACK, 0, 100, M}, {0, ACK, 100, M, M}},
         HOLE,
         100,
         1},
        {"what comes late is known already", "87A", 1, {{1, ACK, 0, M, M}, {0, ACK, 0, 0, M}}, HOLE, M, 1},
        {"the sender has sent more: an acknowledgement",
         "847A",
         1,
         {{0, ACK, 0, 0, M}, {0, ACK, M + 20, 0, 0}},
         HOLE,
         20,
         1},
        {"a reset", "847A", 1, {{0, ACK, 0, 0, M}, {0, RST, M + 20, 0, 0}}, HOLE, 20, 1},
        {"one that waits and one that is carried",
         "877A",
         1,
         {{0, ACK, 500, 0, 20}, {1, ACK, 0, 100, 100}},
         HOLE,
         100,
         1},
        {"not so much more", "8A", 1, {{0, ACK, (16u << 20) + 1, 0, 0}}, BEGIN, 0, 1},
        {"a reset",
         "84AA",
         3,
         {{0, ACK, 0, 0, M}, {0, ACK, M, 0, 20}, {0, RST, M + 20, 0, 0}, {0, RST, M + 20, 0, 0}},
         END,
         MQQB_END_RST,
         1},
        {"a reset in an empty one", "8AA", 3, {{1, RST, 0, 0, 0}}, END, MQQB_END_RST, 1},
        {"another one takes its place",
         "8474AA894A",
         3,
         {{0, ACK, 0, 0, M},
          {0, ACK, 500, 0, M},
          {0, SYN, 1 << 20, 0, 0},
          {0, SYN, 1 << 20, 0, 0},
          {0, ACK, (1 << 20) + 1, 0, M}},
         END,
         MQQB_END_REPLACED,
         2},
        {"the end of the capture", "84AA", 3, {{0, ACK, 0, 0, M}}, END, MQQB_END_CAPTURE, 1},
        {"the answer to a SYN was captured first",
         "8AA",
         2,
         {{1, SYN | ACK, -1u, 0, 0}, {0, SYN, -1u, 0, 0}},
         BEGIN,
         0,
         1},
        {"the SYN is not there",
         "844AA",
         2,
         {{1, SYN | ACK, -1u, 0, 0}, {0, ACK, M, 0, M}, {0, ACK, 0, 0, M}},
         BEGIN,
         0,
         1},
        {"a SYN with the number of the one before, and another answer",
         "84AA84AA",
         3,
         {{0, ACK, 0, 0, M}, {0, SYN, -1u, 0, 0}, {1, SYN | ACK, 1 << 20, 0, 0}, {0, ACK, 0, (1 << 20) + 1, M}},
         BEGIN,
         0,
         2},
        {"bytes that are sent again",
         "84AA",
         3,
         {{0, ACK, 0, 0, M}, {0, ACK, M - (17u << 20), 0, 0}, {0, ACK, M - (16u << 20), 0, M}},
         BEGIN,
         0,
         1},
        {"bytes of another connection without SYNs",
         "84AA994A",
         3,
         {{0, ACK, 0, 0, M}, {0, ACK, M - (16u << 20) - 1, 0, M}},
         BEGIN,
         0,
         2},
        {"a SYN behind bytes of the other end", "94A8A", 2, {{1, 0, 0, 0, M}, {0, SYN, -1u, 0, 0}}, BEGIN, 0, 2},
        {"a SYN behind bytes without one", "94A8A", 2, {{0, 0, 100, 0, M}, {0, SYN, -1u, 0, 0}}, BEGIN, 0, 2},
    };

    CHECK_EQ(make_message(stream, 5), M);
    for (unsigned i = 0; i < LENGTH(cases); i++) {
        uint32_t row;
        pcap(&f, 101, 0, 0);
        if ((cases[i].how & OPENED) != 0) {
            opening();
        }
        for (const segment *s = cases[i].steps; s < cases[i].steps + STEPS && (s->flags | s->size) != 0; s++) {
            say(s->side, s->at, s->ack, s->flags, stream + (s->at + s->size == M ? s->at : 0), s->size);
        }
        finish();
        run.name = cases[i].what;
        CHECK_KINDS((cases[i].how & ALL) != 0 ? -1 : 0, cases[i].kinds);
        row = row_of(cases[i].kind);
        CHECK_EQ(cases[i].kind == END ? S(STATUS)[row] : S(TOTAL_SIZE)[row], cases[i].value);
        CHECK_EQ(r->c.connections_used, cases[i].connections);
    }
    opening(); /* the last bytes were cut off */
    (void)tcp(0, 0, 0, ACK | FIN, stream, M);
    record(&f, frame, M + 30, M + 40);
    finish();
    CHECK_KINDS(0, "87A");
    for (uint32_t answer = 0; answer < 2;
         answer++) { /* direction 0 is of the end that opened it, here the higher one */
        pcap(&f, 101, 0, 0);
        say(answer ? 0 : 1, (uint32_t)-1, 0, answer ? SYN | ACK : SYN, NOTHING, 0);
        finish();
        CHECK_KINDS(-1, "8A");
        CHECK_EQ(K(DIRECTION)[0], answer);
    }
    for (unsigned before = 0; before < 40; before++) { /* whatever row is the last of a batch */
        opening();
        for (unsigned i = 0; i < before; i++) {
            say(0, i * M, 0, ACK, stream, M);
        }
        say(0, before * M, 0, ACK | FIN, NOTHING, 0);
        finish();
        CHECK_EQ(r->rows, before + 3);
        CHECK_EQ(S(KIND)[before + 1], END);
    }
}

static void test_a_gap_larger_than_a_window(void)
{
    const size_t size = make_message(stream, 60000 - 200);

    opening();
    for (uint32_t i = 0; i < 75; i++) {
        say(0, 100 + i * (uint32_t)size, 0, ACK, stream, size);
    }
    say(1, 0, 0, ACK, stream, make_message(stream, 0));
    finish();
    CHECK_EQ(S(KIND)[1], HOLE);
    CHECK_EQ(strlen(kinds(0)), 75 + 3);
    CHECK_EQ(K(DIRECTION)[r->rows - 3], 1);
    opening(); /* out of order all the time, but never far */
    (void)make_message(stream, 60000 - 200);
    for (uint32_t i = 0; i < 150; i++) {
        say(0, (i ^ 1) * (uint32_t)size, 0, ACK, stream, size);
    }
    finish();
    CHECK_EQ(strlen(kinds(0)), 150 + 2);
    CHECK_EQ(strspn(kinds(0) + 1, "4"), 150);
}

static void test_all_columns(void)
{
    message m = {.base_flags = 0x10,
                 .user_flags = DQ_PRIVATE | DM_RECOVERABLE | TH | SECURITY | CQ | 6u << 13 | 7u << 16,
                 .queue_id = 4,
                 .name = "OS:a\\q",
                 .tx_flags = 1,
                 .tx_number = 5,
                 .security_sizes = {28, 1, 2, 3, 8},
                 .message_class = 0x4000,
                 .label = "QM Ordering Ack",
                 .extension_size = 3,
                 .body_size = 36};
    uint8_t body[36] = {0};
    layout at;
    size_t size;

    clock_ms = 0;
    uint32_t i;

    le(body + 8, 6, 4);
    memset(body + 16, 0xB2, 16);
    m.body = body;
    memset(stream, 0, 2048);
    size = put_message(stream, &m, &at);
    memset(stream + at.connector + 16 + 20, 0xD4, 16);
    memset(stream + at.properties + 4, 0x77, 20);
    le(stream + at.properties + 24, 8, 4);
    le(stream + at.properties + 28, 99, 4);
    size += put_internal(stream + size, 1);
    size += put_internal(stream + size, 2);
    size += put_internal(stream + size, 3);
    m.user_flags = DM_RECOVERABLE | 2u << 13;
    m.base_flags = 0;
    m.label = NULL;
    memset(stream + size, 0, 2048);
    size += put_message(stream + size, &m, NULL);
    m.user_flags = DQ_PUBLIC | TH;
    m.user_flags |= DM_RECOVERABLE;
    m.tx_flags = 0;
    memset(stream + size, 0, 2048);
    size += put_message(stream + size, &m, NULL);
    opening();
    say(0, 0, 0, ACK, stream, size);
    stream[4] = 0;
    say(0, (uint32_t)size, 0, ACK, stream, 100);
    read_files(r, &f, 1, 0, 1, 1);
    CHECK_KINDS(0, "86312440A");
    i = 1;
    CHECK_EQ(K(SOURCE_QUEUE_MANAGER)[i], 1);
    CHECK_EQ(K(ACK_SOURCE)[i], 2);
    CHECK_EQ(K(QUEUE_MANAGER_ADDRESS)[i], 2);
    CHECK_EQ(K(CONNECTOR_QUEUE_MANAGER)[i], 3);
    CHECK_EQ(K(DESTINATION_QUEUE)[i], 1);
    CHECK_EQ(K(ADMINISTRATION_QUEUE)[i], 2);
    CHECK_EQ(K(RESPONSE_QUEUE)[i], 3);
    CHECK_EQ(K(SENDER_ID_SIZE)[i], 28);
    CHECK_EQ(K(PROVIDER_INFO_SIZE)[i], 8);
    CHECK_EQ(K(BODY_TYPE)[i], 8);
    CHECK_EQ(K(APPLICATION_TAG)[i], 99);
    CHECK_EQ(K(EXTENSION_SIZE)[i], 3);
    CHECK_EQ(K(BODY_CRC)[i], mqqb_crc32(0, body, sizeof body));
    CHECK_EQ(K(BODY_CRC)[0], 0);
    CHECK_EQ(r->correlation_id[i][19], 0x77);
    CHECK_EQ(r->correlation_id[0][19], 0);
    CHECK_EQ(r->label_end[0], 0);
    CHECK_EQ(r->label_end[i], 15);
    CHECK_BYTES(r->label_text, "QM Ordering Ack", 15);
    CHECK_EQ(K(CLIENT_GUID)[3], 1);
    CHECK(K(SERVER_GUID)[3] > 0);
    CHECK_EQ(K(OPERATING_SYSTEM)[3], 0x0310);
    CHECK_EQ(K(ACK_TIMEOUT)[4], 120000);
    CHECK_EQ(K(DESTINATION_QUEUE)[5], 0);
    CHECK_EQ(K(ADMINISTRATION_QUEUE)[5], 4); /* the same bytes as the destination of the first, but another selector */
    CHECK_EQ(K(DESTINATION_QUEUE)[6], 5);
    CHECK_EQ(r->time[1], 1700000000000005000);
    read_files(r, &f, 1, 0, 1, 0);
    CHECK_EQ(K(ACK_SOURCE)[i], 2);
    CHECK_EQ(K(BODY_TYPE)[i], 0);
    read_files(r, &f, 1, 0, 1, 2); /* the source is not wanted, nor has it a code */
    CHECK_EQ(K(SOURCE_QUEUE_MANAGER)[i], 0);
    CHECK_EQ(K(DESTINATION_QUEUE)[i], 1);
    CHECK(K(QUEUE_MANAGER_ADDRESS)[i] > 0);
    read_files(r, &f, 1, 0, 1, 3); /* the destination is not */
    CHECK_EQ(K(DESTINATION_QUEUE)[i], 0);
    CHECK_EQ(K(ADMINISTRATION_QUEUE)[i], 1);
    CHECK_EQ(K(SOURCE_QUEUE_MANAGER)[i], 1);
}

static void test_labels(void)
{
    static const struct {
        uint16_t in[4];
        const char *out;
    } cases[] = {
        {{'a', 0x7F, 0x80, 0x7FF}, "a\x7F\xC2\x80\xDF\xBF"},
        {{0x800, 0xFFFF, 'b', 'c'},
         "\xE0\xA0\x80\xEF\xBF\xBF"
         "bc"},
        {{0xD83D, 0xDE00, 'b', 'c'},
         "\xF0\x9F\x98\x80"
         "bc"},
        {{0xD83D, 'b', 0xDE00, 'c'},
         "\xEF\xBF\xBD"
         "b\xEF\xBF\xBD"
         "c"},
        {{'a', 'b', 'c', 0xD83D}, "abc\xEF\xBF\xBD"},
        {{0xDE00, 0xDE01, 'b', 'c'},
         "\xEF\xBF\xBD\xEF\xBF\xBD"
         "bc"},
    };
    const message m = {.user_flags = DM_RECOVERABLE, .label = "....", .body_size = 4};

    for (unsigned i = 0; i < LENGTH(cases); i++) {
        layout at;
        size_t size;
        memset(stream, 0, 2048);
        size = put_message(stream, &m, &at);
        for (unsigned j = 0; j < 4; j++) {
            le(stream + at.label + 2 * j, cases[i].in[j], 2);
        }
        opening();
        say(0, 0, 0, ACK, stream, size);
        read_files(r, &f, 1, 0, 1, 1);
        CHECK_EQ(r->label_end[1], strlen(cases[i].out));
        CHECK_BYTES(r->label_text, cases[i].out, strlen(cases[i].out));
    }

    { /* no room for the label of the second in the same frame */
        const message long_one = {.user_flags = DM_RECOVERABLE, .label = "what the third press says", .body_size = 4};
        size_t size;
        memset(stream, 0, 2048);
        size = put_message(stream, &long_one, NULL);
        size += put_message(stream + size, &long_one, NULL);
        opening();
        say(0, 0, 0, ACK, stream, size);
        read_files(r, &f, 1, 0, 1, 1);
        CHECK_KINDS(0, "844A");
        CHECK_BYTES(r->label_text, long_one.label, strlen(long_one.label));
    }
}

/* More of everything than the tables have; each row once, whatever is full when. */
static void test_tables_that_are_full(void)
{
    message m = {.user_flags = DQ_DIRECT | DM_RECOVERABLE, .label = "label", .body_size = 4};
    static char name[1000];
    size_t size = 0;

    memset(stream, 0, sizeof stream);
    for (unsigned i = 0; i < 150; i++) {
        memset(name, 'x', 900);
        snprintf(name, sizeof name, "OS:%u", i * 7 % 50);
        name[strlen(name)] = i % 3 == 0 ? 'y' : 0;
        name[900] = 0;
        m.name = name;
        stream[size + 16] = 0;
        {
            const size_t n = put_message(stream + size, &m, NULL);
            le(stream + size + 16, i * 11 % 60, 4);
            size += n;
        }
    }
    opening();
    for (size_t at = 50000; at + 50000 < size + 50000 && at < size; at += 50000) {
        say(0, (uint32_t)at, 0, ACK, stream + at, size - at < 50000 ? size - at : 50000);
    }
    say(0, 0, 0, ACK, stream, size < 50000 ? size : 50000);
    for (uint32_t port = 1; port < 40; port++) {
        const size_t n = put_tcp(frame, 0, 0, port, 1, 1, 0, stream, 300);
        record(&f, frame, n, n);
    }
    read_files(r, &f, 1, 0, 1, 2);
    CHECK_EQ(r->rows, 1 + 150 + 2 + 39 * 2);
    for (int all = 0; all < 2; all++) {
        read_files(r, &f, 1, 0, 1, all);
        CHECK_EQ(r->rows, 1 + 150 + 2 + 39 * 2);
        CHECK_EQ(r->c.connections_used, 40);
        for (int i = 1; i <= 5; i++) {
            CHECK(r->grown[i] > 0);
        }
        CHECK_EQ(r->c.dictionary[0].count, all ? 61 : 60);
    }
}

static void test_parts(void)
{
    const size_t size = make_message(stream, 5);
    uint32_t rows = 0;

    pcap(&f, 101, 0, 0);
    for (uint32_t port = 1000; port < 1030; port++) {
        const size_t n = put_tcp(frame, port & 1, 0, port, 1, 1, 0, stream, size);
        record(&f, frame, n, n);
    }
    for (uint32_t part = 0; part < 3; part++) {
        read_files(r, &f, 1, part, 3, 0);
        CHECK(r->rows < 90);
        rows += r->rows;
    }
    CHECK_EQ(rows, 90);
}

/* Whose frames they are: the same for both directions; the queue managers that a packet at the frame's beginning names. */
static void test_routed(void)
{
    const size_t msg = make_message(stream + 600, 5);

    memset(stream, 0, 600);
    pcap(&f, 101, 0, 0);
    say(0, 0, 0, ACK, stream, put_internal(stream, 2));
    say(1, 0, 0, ACK, stream, put_internal(stream, 1));
    say(0, 572, 0, ACK, stream + 600, msg);
    record(&f, NOTHING, 0, 0);
    record(&f, frame, put_tcp(frame, 0, 0, 50001, 1, 1, ACK, stream + 600, msg), 4000);
    memset(stream + 616, 0, 16);
    say(0, 572, 0, ACK, stream + 600, msg);
    stream[604] = 0;
    say(0, 572, 0, ACK, stream + 600, msg);
    say(0, 572, 0, ACK, stream + 600, 51);
    CHECK_EQ(route_all(), 7);
    for (unsigned i = 0; i < 7; i++) {
        CHECK((routed[i].key == routed[0].key) == (i != 3));
    }
    CHECK_EQ(routed[3].frame, 5);
    CHECK_EQ(routed[3].wire, 4000);
    CHECK(routed[2].managers[0] != 0 && routed[2].managers[0] == routed[3].managers[0]);
    CHECK_EQ(routed[4].managers[0], 0);
    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(routed[1].managers[i] + routed[5].managers[i] + routed[6].managers[i], 0);
    }
}

static uint32_t ms_of(int64_t time)
{
    return (uint32_t)((time - 5000) / 1000000 - (int64_t)1700000000 * 1000);
}

/* The clock was set back where a frame is too far behind one before it, whosever that was. */
static void test_moments(void)
{
    static const uint32_t times[] = {5000, 4000, 3999, 4100, 6000, 5500, 4999, 7000};
    static const uint32_t moments[] = {5000, 4000, 5000, 5000, 6000, 5500, 6500, 7000};
    const uint32_t before = clock_ms;

    pcap(&f, 101, 0, 0);
    for (unsigned i = 0; i < LENGTH(times); i++) {
        if (i == 6) {
            clock_ms = 6500;
            record(&f, NOTHING, 0, 0);
        }
        clock_ms = times[i];
        say(0, 0, 0, ACK, NOTHING, 0);
    }
    clock_ms = before;
    CHECK_EQ(route_all(), LENGTH(times));
    for (unsigned i = 0; i < LENGTH(times); i++) {
        CHECK_EQ(ms_of(routed[i].time), times[i]);
        CHECK_EQ(ms_of(routed[i].moment), moments[i]);
    }
}

/* ---- links and IP -------------------------------------------------------------------------------- */

static void enhanced(uint32_t interface, uint64_t moment, size_t n, size_t size)
{
    static uint8_t body[4096];
    file b = {.data = NULL};

    b.swapped = f.swapped;
    number(&b, interface, 4);
    number(&b, moment >> 32, 4);
    number(&b, moment & 0xFFFFFFFF, 4);
    number(&b, size, 4);
    number(&b, n, 4);
    memcpy(body, b.data, 20);
    free(b.data);
    memcpy(body + 20, frame, n);
    block(&f, 6, body, 20 + n);
}

static void interface_block(uint32_t link, uint32_t snap, const uint8_t *options, size_t size)
{
    file b = {.data = NULL};

    b.swapped = f.swapped;
    number(&b, link, 4);
    number(&b, snap, 4);
    if (f.swapped) {
        be(b.data, link, 2);
    }
    add(&b, options, size);
    block(&f, 1, b.data, b.size);
    free(b.data);
}

static void link_frame(uint32_t link, const uint8_t *head, size_t head_size, size_t cut)
{
    static uint8_t out[4096];
    size_t n = head_size;

    memcpy(out, head, head_size);
    memcpy(out + n, frame, sizeof out - n);
    n += six ? 60 : 40;
    n += 32;
    pcap(&f, link, 0, 0);
    record(&f, out, n < cut ? n : cut, n);
    finish();
}

static void test_links(void)
{
    static const struct {
        uint32_t link;
        int six;
        size_t size;
        uint8_t head[24];
    } links[] = {
        {1, 0, 14, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0}},
        {1, 1, 14, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x86, 0xDD}},
        {1, 0, 22, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xA8, 0, 5, 0x81, 0, 0, 7, 8, 0}},
        {1, 0, 22, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0, 0, 5, 0x92, 0, 0, 7, 8, 0}},
        {113, 0, 16, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0}},
        {276, 1, 20, {0x86, 0xDD}},
        {0, 0, 4, {2}},
        {108, 1, 4, {0, 0, 0, 30}},
        {12, 0, 0, {0}},
        {14, 0, 0, {0}},
        {101, 1, 0, {0}},
        {228, 0, 0, {0}},
        {229, 1, 0, {0}},
    };

    (void)put_internal(stream, 3);
    for (unsigned i = 0; i < LENGTH(links); i++) {
        six = links[i].six;
        (void)tcp(0, 0, 0, 0, stream, 32);
        link_frame(links[i].link, links[i].head, links[i].size, 4096);
        CHECK_KINDS(-1, "92A");
        for (size_t cut = 0; cut < links[i].size + (six ? 60 : 40); cut++) {
            link_frame(links[i].link, links[i].head, links[i].size, cut);
            CHECK_EQ(r->rows, 0);
            CHECK_EQ(r->c.unread, 1);
            CHECK_EQ(r->c.unread_link, MQQB_CAPTURE_CUT);
        }
        link_frame(links[i].link, links[i].head, links[i].size, links[i].size + (six ? 80 : 60));
        CHECK_KINDS(-1, "9A");
    }
    six = 0;
    (void)tcp(0, 0, 0, 0, stream, 32);
    link_frame(1, (const uint8_t *)"\0\0\0\0\0\0\0\0\0\0\0\0\x08\x06", 14, 4096);
    CHECK_EQ(r->rows, 0);
    frame[0] = 0x70;
    link_frame(1, (const uint8_t *)"\0\0\0\0\0\0\0\0\0\0\0\0\x86\xDD", 14, 4096);
    CHECK_EQ(r->rows, 0);
    link_frame(147, NOTHING, 0, 4096);
    CHECK_EQ(r->c.unread, 1);
    CHECK_EQ(r->c.unread_link, 147);
    f.size = 0;
    section(&f, 0);
    interface_block(148, 0, NOTHING, 0);
    interface_block(149, 0, NOTHING, 0);
    enhanced(0, 0, 60, 60);
    enhanced(1, 0, 60, 60);
    read_files(r, &f, 1, 0, 1, 0);
    CHECK_EQ(r->c.unread, 2);
    CHECK_EQ(r->c.unread_link, 148);
}

/* A frame with bytes changed: whether something is found in it. */
static uint32_t found_with(size_t at, unsigned width, uint32_t value)
{
    const size_t n = tcp(0, 0, 0, 0, stream, 32);

    be(frame + at, value, width);
    pcap(&f, 101, 0, 0);
    record(&f, frame, n, n);
    finish();
    return r->rows;
}

static void test_what_is_wrapped(void)
{
    static const struct {
        uint32_t protocol, place, counted;
        const uint8_t head[8];
    } datagrams[] = {
        {47, 0, 1, {0, 0, 8, 0}},                         /* GRE */
        {17, 0, 1, {0, 1, 4789 >> 8, 4789 & 255, 0, 40}}, /* VXLAN */
        {17, 0, 0, {4789 >> 8, 4789 & 255, 0, 1, 0, 40}}, /* what answers it comes from another port */
        {17, 0, 0, {0, 1, 4789 >> 8, 4789 & 255, 0, 7}},
        {17, 0x2000, 0, {0, 1, 4789 >> 8, 4789 & 255, 0, 40}},
        {6, 0x2000, 1, {0, 1, 1801 >> 8, 1801 & 255}}, /* a first fragment, and a later one */
        {6, 0x2000, 1, {1801 >> 8, 1801 & 255, 0, 1}},
        {6, 0x2000, 0, {0, 80, 0, 81}},
        {6, 5, 1, {0, 80, 0, 81}},
        {6, 0x2005, 1, {0, 80, 0, 81}},
        {1, 5, 0, {0}},
    };

    for (unsigned i = 0; i < LENGTH(datagrams); i++) {
        pcap(&f, 101, 0, 0);
        memset(frame, 0, 60);
        frame[0] = 0x45;
        be(frame + 2, 60, 2);
        be(frame + 6, datagrams[i].place, 2);
        frame[9] = (uint8_t)datagrams[i].protocol;
        memcpy(frame + 20, datagrams[i].head, 8);
        record(&f, frame, 60, 60);
        finish();
        CHECK_EQ(r->c.unread, datagrams[i].counted);
        CHECK(r->c.unread == 0 || r->c.unread_link == MQQB_CAPTURE_WRAPPED);
        CHECK_EQ(r->rows, 0);
    }
    frame[9] = 17;
    frame[6] = frame[7] = 0;
    pcap(&f, 101, 0, 0);
    record(&f, frame, 27, 60);
    finish();
    CHECK_EQ(r->c.unread_link, MQQB_CAPTURE_CUT);
}

static void test_bytes_of_packets(void)
{
    const size_t size = make_message(stream, 100000);
    size_t two;

    opening();
    for (unsigned i = 0; i < 5; i++) {
        for (size_t at = 0; at < size; at += 50000) {
            say(0, (uint32_t)(i * size + at), 0, ACK, stream + at, at + 50000 < size ? 50000 : size - at);
        }
    }
    say(0, (uint32_t)(5 * size), 0, ACK, stream, 100);
    say(1, 0, 0, ACK, (const uint8_t *)"no packet, as one sees", 22);
    read_files(r, &f, 1, 0, 1, 1);
    CHECK_KINDS(0, "844444A");
    CHECK_KINDS(1, "0A");
    CHECK(r->grown[MQQB_CAPTURE_ROWS] >= 2); /* the second did not fit behind the first */
    CHECK(memcmp(r->packets, "no packet, as on", 16) == 0);
    CHECK_EQ(r->kept[0], 100);
    CHECK_EQ(r->packet_end[6], 16);
    CHECK_EQ(S(KIND)[7], END);
    CHECK_EQ(S(TOTAL_SIZE)[7], 100);
    CHECK_EQ(K(FRAME)[7], 18); /* where the packet begins of which the end is missing, not the last frame */

    two = make_message(stream, 1000);
    two += make_message(stream + two, 1000);
    opening();
    say(0, 0, 0, ACK, stream, two);
    read_files(r, &f, 1, 0, 1, 1);
    CHECK_KINDS(0, "844A");
    CHECK_EQ(r->grown[MQQB_CAPTURE_ROWS], 2);
}

static void test_what_is_no_tcp_of_ours(void)
{
    (void)put_internal(stream, 3);
    CHECK_EQ(found_with(0, 1, 0x45), 3);
    CHECK_EQ(found_with(0, 1, 0x55), 0);
    CHECK_EQ(found_with(0, 1, 0x44), 0);
    CHECK_EQ(found_with(0, 1, 0x4F), 0);
    CHECK_EQ(found_with(9, 1, 17), 0);
    CHECK_EQ(found_with(2, 2, 0), 3); /* larger than 64 KiB when it was captured */
    CHECK_EQ(found_with(2, 2, 19), 0);
    CHECK_EQ(found_with(2, 2, 4000), 3); /* cut off */
    CHECK_EQ(found_with(32, 1, 0x40), 0);
    CHECK_EQ(found_with(32, 1, 0xF0), 0);
    CHECK_EQ(found_with(22, 2, 80), 0);
    six = 1;
    CHECK_EQ(found_with(0, 1, 0x60), 3);
    CHECK_EQ(found_with(0, 1, 0x70), 0);
    CHECK_EQ(found_with(4, 2, 0), 3);
    CHECK_EQ(found_with(6, 1, 17), 0);
    six = 0;
}

static void test_headers_of_ipv6(void)
{
    static const struct {
        uint8_t first, size, bytes[40];
        uint32_t rows;
    } cases[] = {
        {0, 8, {6}, 3},
        {43, 16, {6, 1}, 3},
        {60, 8, {6}, 3},
        {51, 24, {6, 4}, 3},
        {0, 16, {60, 0, 0, 0, 0, 0, 0, 0, 6}, 3},
        {44, 8, {6, 0, 0, 0, 0, 0, 0, 9}, 3},
        {44, 8, {17, 0, 0, 8, 0, 0, 0, 9}, 0},
        {43, 8, {6, 200}, 0},
        {50, 8, {6}, 0},
    };

    six = 1;
    for (unsigned i = 0; i < LENGTH(cases); i++) {
        uint8_t out[200];
        const size_t n = tcp(0, 0, 0, 0, stream, put_internal(stream, 3));
        memcpy(out, frame, 40);
        out[6] = cases[i].first;
        be(out + 4, n - 40 + cases[i].size, 2);
        memcpy(out + 40, cases[i].bytes, cases[i].size);
        memcpy(out + 40 + cases[i].size, frame + 40, n - 40);
        pcap(&f, 101, 0, 0);
        record(&f, out, n + cases[i].size, n + cases[i].size);
        finish();
        CHECK_EQ(r->rows, cases[i].rows);
        pcap(&f, 101, 0, 0);
        record(&f, out, 44, n + cases[i].size);
        finish();
        CHECK_EQ(r->rows, 0);
    }
    six = 0;
}

/* ---- files --------------------------------------------------------------------------------------- */

static void test_pcap_in_all_its_forms(void)
{
    clock_ms = 0;
    for (int swapped = 0; swapped < 2; swapped++) {
        for (int nano = 0; nano < 2; nano++) {
            size_t n;
            pcap(&f, 101, swapped, nano);
            n = tcp(0, 0, 0, 0, stream, put_internal(stream, 3));
            record(&f, frame, n, 20); /* a size on the wire that cannot be */
            read_files(r, &f, 1, 0, 1, 1);
            CHECK_KINDS(-1, "92A");
            CHECK_EQ(r->time[1], 1700000000000000000 + (nano ? 5 : 5000));
            for (size_t size = 0; size < f.size; size++) {
                const file part = {.data = f.data, .size = size};
                read_files(r, &part, 1, 0, 1, 0);
                CHECK_EQ(r->error[0], size == 24 ? 0 : MQQB_CAPTURE_BAD_END);
                CHECK_EQ(r->rows, 0);
            }
            if (swapped) {
                be(f.data + 24 + 8, (16 << 20) + 1, 4);
            } else {
                le(f.data + 24 + 8, (16 << 20) + 1, 4);
            }
            finish();
            CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_SIZE);
        }
    }
    f.data[0]++;
    finish();
    CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_MAGIC);
}

static void test_pcapng(void)
{
    static const struct {
        uint8_t options[16], size;
        uint64_t moment;
        int64_t time;
    } cases[] = {
        {{0}, 0, 1700000000000005, 1700000000000005000},
        {{0}, 4, 5, 5000},
        {{9, 0, 1, 0, 9}, 8, 1700000000000000005, 1700000000000000005},
        {{9, 0, 1, 0, 0}, 8, 17, 17000000000},
        {{9, 0, 1, 0, 10}, 8, 50, -1},
        {{9, 0, 1, 0, 0x8A}, 8, 2048 + 512, -1},
        {{14, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0}, 12, 1000000, -1},
        {{9, 0, 0, 0}, 4, 1000000, 1000000000},
        {{9, 0, 1, 0}, 4, 1000000, 1000000000},
        {{9, 0, 1, 0, 9}, 5, 1, 1},
        {{1, 0, 3, 0, 'a', 'b', 'c', 0, 9, 0, 1, 0, 9}, 16, 1, 1},
    };

    for (int swapped = 0; swapped < 2; swapped++) {
        for (unsigned i = 0; i < LENGTH(cases); i++) {
            uint8_t options[16];
            memcpy(options, cases[i].options, 16);
            for (unsigned at = 0; swapped && at + 4 <= cases[i].size; at += 4 + (options[at + 3] + 3) / 4 * 4) {
                options[at + 1] = cases[i].options[at];
                options[at] = 0;
                options[at + 3] = cases[i].options[at + 2];
                options[at + 2] = 0;
            }
            f.size = 0;
            section(&f, !swapped);
            section(&f, swapped);
            interface_block(101, 0, options, cases[i].size);
            (void)tcp(0, 0, 0, 0, stream, put_internal(stream, 3));
            enhanced(0, cases[i].moment, 72, 72);
            read_files(r, &f, 1, 0, 1, 1);
            CHECK_EQ(r->error[0], cases[i].time < 0 ? MQQB_CAPTURE_BAD_BLOCK : 0);
            CHECK_KINDS(-1, cases[i].time < 0 ? "" : "92A");
            CHECK_EQ(r->time[1], cases[i].time < 0 ? r->time[1] : cases[i].time);
        }
        for (size_t size = 28; size < f.size; size++) {
            const file part = {.data = f.data, .size = size};
            read_files(r, &part, 1, 0, 1, 0);
            CHECK_EQ(r->error[0], size == 28 || size == 56 || size == f.size - 104 ? 0 : MQQB_CAPTURE_BAD_END);
        }
        for (unsigned byte = 0; byte < 4; byte++) { /* of the size at the end of a block */
            const size_t ends[] = {28, 56, f.size - 104, f.size};
            for (unsigned i = 0; i < LENGTH(ends); i++) {
                f.data[ends[i] - 4 + byte] ^= 4;
                read_files(r, &f, 1, 0, 1, 0);
                CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_BLOCK);
                f.data[ends[i] - 4 + byte] ^= 4;
            }
        }
    }
    f.size = 0; /* cut off, and padded */
    section(&f, 0);
    interface_block(101, 0, NOTHING, 0);
    (void)tcp(0, 0, 0, 0, stream, put_internal(stream, 3));
    enhanced(0, 0, 72, 70);
    read_files(r, &f, 1, 0, 1, 0);
    CHECK_KINDS(-1, "9A");
    CHECK_EQ(S(TOTAL_SIZE)[1], 30);
}

static void test_blocks_that_cannot_be(void)
{
    static const struct {
        uint8_t kind, size;
        int32_t error;
    } cases[] = {
        {1, 4, MQQB_CAPTURE_BAD_BLOCK},  {3, 40, MQQB_CAPTURE_BAD_BLOCK}, {6, 16, MQQB_CAPTURE_BAD_BLOCK},
        {6, 24, MQQB_CAPTURE_BAD_BLOCK}, {2, 40, MQQB_CAPTURE_BAD_BLOCK}, {7, 0, 0},
    };
    const uint8_t body[40] = {0};

    for (unsigned i = 0; i < LENGTH(cases); i++) {
        f.size = 0;
        section(&f, 0);
        block(&f, cases[i].kind, body, cases[i].size);
        finish();
        CHECK_EQ(r->error[0], cases[i].error);
    }
    for (uint32_t size = 0; size < 16; size++) {
        f.size = 0;
        section(&f, 0);
        number(&f, 7, 4);
        number(&f, size, 4);
        number(&f, size, 4);
        number(&f, 0, 4);
        finish();
        CHECK_EQ(r->error[0], size == 12 ? MQQB_CAPTURE_BAD_END : MQQB_CAPTURE_BAD_SIZE);
        f.size = 0;
        section(&f, 0);
        le(f.data + 4, size, 4);
        finish();
        CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_SIZE);
    }
    f.size = 0;
    section(&f, 0);
    number(&f, 7, 4);
    number(&f, (16 << 20) + 4, 4);
    finish();
    CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_SIZE);
    f.data[8] = 0;
    finish();
    CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_BLOCK);
    f.size = 0;
    section(&f, 0);
    for (unsigned i = 0; i <= MQQB_CAPTURE_INTERFACES; i++) {
        interface_block(101, 0, NOTHING, 0);
    }
    finish();
    CHECK_EQ(r->error[0], MQQB_CAPTURE_BAD_BLOCK);
}

static file next_file(void)
{
    const file before = f;

    f.data = NULL;
    f.room = 0;
    pcap(&f, 101, 0, 0);
    return before;
}

/* A packet's first bytes outlive the file after theirs. */
static void test_packet_in_two_files_with_one_in_between(void)
{
    const size_t size = make_message(stream, 5);
    file files[3];

    opening();
    say(0, 0, 0, ACK, stream, 100);
    files[0] = next_file();
    say(1, 0, 100, ACK, stream, size);
    files[1] = next_file();
    say(0, 100, (uint32_t)size, ACK, stream + 100, size - 100);
    files[2] = f;
    read_files(r, files, 3, 0, 1, 0);
    CHECK_KINDS(-1, "844AA");
    CHECK_EQ(r->kept[0], 100);
    free(files[0].data);
    free(files[1].data);
}

/* Connections that differ in one end only. */
static void test_many_connections_of_one_port(void)
{
    const size_t size = make_message(stream, 5);

    pcap(&f, 101, 0, 0);
    for (int twice = 0; twice < 2; twice++) {
        for (uint8_t host = 0; host < 100; host++) {
            const size_t n = tcp(0, (uint32_t)twice * (uint32_t)size, 0, 0, stream, size);
            frame[18] = host;
            record(&f, frame, n, n);
        }
    }
    finish();
    CHECK_EQ(r->c.connections_used, 100);
    CHECK_EQ(r->rows, 400);
}

/* Two ends whose addresses add up to the same as two others are not the same connection. */
static void test_sums_of_addresses(void)
{
    size_t n;

    pcap(&f, 101, 0, 0);
    for (uint8_t i = 0; i < 2; i++) {
        n = put_tcp(frame, 0, 0, 50000, 1, 1, ACK, NOTHING, 0);
        frame[15] = (uint8_t)(10 + i);
        frame[19] = (uint8_t)(20 - i);
        record(&f, frame, n, n);
    }
    CHECK_EQ(route_all(), 2);
    CHECK(routed[0].key != routed[1].key);
}

int main(int argc, char **argv)
{
    seed_random(argc, argv, 20261121);
    r = calloc(1, sizeof *r);
    again = calloc(1, sizeof *again);
    if (r == NULL || again == NULL) {
        return 1;
    }
    RUN("mqqb_capture.h", test_sums_of_addresses);
    RUN("mqqb_capture.h", test_packet_in_two_files_with_one_in_between);
    RUN("mqqb_capture.h", test_many_connections_of_one_port);
    RUN("B-429", test_a_conversation);
    RUN("wire.md 4.2", test_segments_of_every_size);
    RUN("wire.md 4.2", test_segments_in_any_order_and_twice);
    RUN("B-168 B-169", test_a_packet_that_cannot_be);
    RUN("mqqb_capture.h", test_another_protocol);
    RUN("mqqb_capture.h", test_what_is_wrapped);
    RUN("B-168 B-429", test_older_connections);
    RUN("mqqb_capture.h", test_conversations);
    RUN("mqqb_capture.h", test_a_gap_larger_than_a_window);
    RUN("wire.md 2.2 2.4 2.5 5", test_all_columns);
    RUN("B-431", test_labels);
    RUN("mqqb_capture.h", test_tables_that_are_full);
    RUN("mqqb_capture.h", test_parts);
    RUN("mqqb_capture.h", test_routed);
    RUN("mqqb_capture.h", test_moments);
    RUN("mqqb_capture.h", test_links);
    RUN("mqqb_capture.h", test_bytes_of_packets);
    RUN("mqqb_capture.h", test_what_is_no_tcp_of_ours);
    RUN("mqqb_capture.h", test_headers_of_ipv6);
    RUN("mqqb_capture.h", test_pcap_in_all_its_forms);
    RUN("mqqb_capture.h", test_pcapng);
    RUN("mqqb_capture.h", test_blocks_that_cannot_be);
    free(f.data);
    free(r);
    free(again);
    return summary("test_capture");
}
