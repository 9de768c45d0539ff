/* test_audit.c: mqqb_audit on rows made by hand, with tables that begin as small as they may be. What it finds in generated captures
 * of all kinds is compared with what was planted there in tests/audit/test_audit_generated.py. */
#include "check.h"

#include "mqqb_audit.h"

#include <stdlib.h>

#define S(name) column[MQQB_SCAN_##name][rows]
#define K(name) column[MQQB_CAPTURE_##name][rows]
#define MS 1000000
#define SECOND ((int64_t)1000 * MS)

enum { ROWS = 512, FOUND_MAX = 512, CONNECTIONS = 300 };
enum { EST = MQQB_KIND_ESTABLISH_CONNECTION, CP = MQQB_KIND_CONNECTION_PARAMETERS, SACK = MQQB_KIND_SESSION_ACK };
enum {
    MSG = MQQB_KIND_USER_MESSAGE,
    ORDER = MQQB_KIND_ORDER_ACK,
    FINAL = MQQB_KIND_FINAL_ACK,
    MALFORMED = MQQB_KIND_MALFORMED
};
enum {
    HOLE = MQQB_KIND_HOLE,
    FOREIGN = MQQB_KIND_FOREIGN,
    BEGIN = MQQB_KIND_BEGIN,
    OLDER = MQQB_KIND_OLDER,
    END = MQQB_KIND_END
};
enum { RECEIVER = 1, SENDER = 2, OTHER = 3 };          /* codes of queue managers */
enum { QUEUE = 1, SECOND_QUEUE = 2, ORDER_QUEUE = 3 }; /* codes of queues */
enum { JN = MQQB_USER_JN, FIRST = 7, START = 1800000000 };

/* ---- the audit under test, and its tables -------------------------------------------------------- */

static mqqb_audit a;
static mqqb_capture_columns columns;
static uint32_t *column[MQQB_CAPTURE_COLUMNS];
static int64_t times[ROWS];
static uint32_t rows, frame;
static int64_t now;
static struct {
    uint32_t messages, recoverable;
} sent[CONNECTIONS][2];
static mqqb_audit_finding found[FOUND_MAX];
static uint32_t found_count, stray_count, grown;
static uint32_t pair_of[CONNECTIONS];
static uint32_t spread,
    spreading; /* 1: every second connection is one of no use, until those are forgotten; in each test */

static void *larger(void *table, size_t item, uint32_t before, uint32_t after)
{
    uint8_t *const bigger = calloc(after, item);

    if (table != NULL) {
        memcpy(bigger, table, item * before);
        free(table);
    }
    return bigger;
}

/* By one at first; later tests would take too long. */
#define MORE(table) (a.table##_size < 8 ? 1 : a.table##_size)
#define LARGER(table, by)                                                                                              \
    do {                                                                                                               \
        const uint32_t by_ = by;                                                                                       \
        a.table = larger(a.table, sizeof *a.table, a.table##_size, a.table##_size + by_);                              \
        a.table##_size += by_;                                                                                         \
    } while (0)

static void reindex(void)
{
    free(a.flow_index);
    free(a.sequence_index);
    a.flow_index_size = 1;
    a.sequence_index_size = 1;
    while (a.flow_index_size < 2 * a.flows_size) {
        a.flow_index_size *= 2;
    }
    while (a.sequence_index_size < 2 * a.sequences_size) {
        a.sequence_index_size *= 2;
    }
    a.flow_index = calloc(a.flow_index_size, sizeof *a.flow_index);
    a.sequence_index = calloc(a.sequence_index_size, sizeof *a.sequence_index);
    mqqb_audit_rehash(&a);
}

static void take(void)
{
    CHECK(found_count + a.findings_used <= FOUND_MAX);
    for (uint32_t k = 0; k < a.findings_used && found_count < FOUND_MAX; k++) {
        found[found_count++] = a.findings[k];
    }
    stray_count += a.strays_used;
    a.findings_used = 0;
    a.strays_used = 0;
}

static void grow_connections(uint32_t by)
{
    const uint32_t before = a.connections_size;

    LARGER(connections, by);
    for (uint32_t k = before; k < a.connections_size; k++) {
        a.connections[k].pair = spread != 0 && k % 2 == 1 ? UINT32_MAX : pair_of[k >> spread];
    }
}

static void give(void)
{
    uint32_t done = 0;
    int32_t status;

    while ((status = mqqb_audit_rows(&a, &columns, rows, &done)) != MQQB_AUDIT_DONE) {
        grown |= 1u << status;
        switch (status) {
        case MQQB_AUDIT_GROW_CONNECTIONS:
            grow_connections(1);
            break;
        case MQQB_AUDIT_GROW_SOURCES:
            LARGER(sources, MORE(sources));
            break;
        case MQQB_AUDIT_GROW_FLOWS:
            LARGER(flows, MORE(flows));
            reindex();
            break;
        case MQQB_AUDIT_GROW_SEQUENCES:
            LARGER(sequences, MORE(sequences));
            reindex();
            break;
        case MQQB_AUDIT_GROW_SLOTS:
            LARGER(slots, MQQB_AUDIT_PIECE + a.slots_size / 2);
            break;
        default:
            CHECK_EQ(status, MQQB_AUDIT_FINDINGS_FULL);
            take();
            break;
        }
    }
    CHECK_EQ(done, rows);
    rows = 0;
}

/* Forget the connections of no use, to which nothing can refer: all others have new numbers. */
static void gather(void)
{
    uint32_t numbers[2 * CONNECTIONS], count, left;

    give();
    take();
    count = a.connections_size;
    left = (count + 1) / 2;
    for (uint32_t k = 0; k < count; k++) {
        numbers[k] = MQQB_CAPTURE_FORGET;
    }
    mqqb_audit_referred(&a, count, numbers);
    for (uint32_t k = 0; k < count; k++) {
        CHECK(k % 2 == 0 || numbers[k] == MQQB_CAPTURE_FORGET);
        numbers[k] = k % 2 == 0 ? k / 2 : UINT32_MAX;
    }
    mqqb_audit_renumber(&a, count, numbers);
    spread = 0;
    for (uint32_t k = left; k < count; k++) {
        a.connections[k].pair = pair_of[k];
    }
    for (uint32_t k = 0; k < found_count; k++) {
        found[k].connection /= 2;
    }
}

static void setup(void)
{
    free(a.sources);
    free(a.pairs);
    free(a.connections);
    free(a.flows);
    free(a.sequences);
    free(a.flow_index);
    free(a.sequence_index);
    free(a.slots);
    free(a.findings);
    free(a.strays);
    memset(&a, 0, sizeof a);
    memset(sent, 0, sizeof sent);
    memset(pair_of, 0, sizeof pair_of);
    for (uint32_t k = 0; k < MQQB_CAPTURE_COLUMNS; k++) {
        column[k] = column[k] == NULL ? malloc(ROWS * sizeof(uint32_t)) : column[k];
        columns.column[k] = column[k];
    }
    columns.time = times;
    a.start = START * SECOND;
    a.pairs = calloc(2 * (size_t)CONNECTIONS, sizeof *a.pairs);
    a.flow_index = calloc(1, sizeof *a.flow_index);
    a.sequence_index = calloc(1, sizeof *a.sequence_index);
    a.flow_index_size = 1;
    a.sequence_index_size = 1;
    a.findings = calloc(MQQB_AUDIT_FINDINGS, sizeof *a.findings);
    a.strays = calloc(1, sizeof *a.strays);
    a.strays_size = 1;
    a.findings_size = MQQB_AUDIT_FINDINGS;
    rows = 0;
    frame = 0;
    found_count = 0;
    stray_count = 0;
    grown = 0;
    now = START * SECOND;
    spread = spreading != 0;
}

static void finish(void)
{
    if (spread != 0) {
        gather();
    }
    give();
    mqqb_audit_finish(&a, now);
    take();
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static void row(uint32_t kind, uint32_t connection, uint32_t direction)
{
    if (spread != 0 && frame == spreading) {
        gather();
    }
    if (rows == ROWS) {
        give();
    }
    for (uint32_t k = 0; k < MQQB_CAPTURE_COLUMNS; k++) {
        column[k][rows] = 0;
    }
    now += MS;
    times[rows] = now;
    S(KIND) = kind;
    K(CONNECTION) = connection << spread;
    K(DIRECTION) = direction;
    K(FRAME) = ++frame;
}

/* A row that says no more than this; the frame. */
static uint32_t plain(uint32_t kind, uint32_t connection, uint32_t direction)
{
    row(kind, connection, direction);
    rows++;
    return frame;
}

/* client: who opened it, as its EstablishConnection says; 0: that was not captured. */
static void opened(uint32_t connection, uint32_t direction, uint32_t client)
{
    (void)plain(BEGIN, connection, direction);
    if (client != 0) {
        for (uint32_t side = 0; side < 2; side++) {
            row(EST, connection, side);
            K(CLIENT_GUID) = direction == 0 ? client : RECEIVER;
            K(SERVER_GUID) = direction == 0 ? RECEIVER : client;
            rows++;
        }
        (void)plain(CP, connection, direction);
        (void)plain(CP, connection, 1 - direction);
    }
}

/* What a packet has that is not usual. header: a SessionHeader with right counts, but for what ack and user are more than that. */
typedef struct {
    uint32_t connection, direction, source, queue, ordinal, stamp, id, own_id, flags, tx_flags, host, class;
    uint32_t ttrq, ttbr, sent_time, header, base, bits;
    uint32_t ack, user, recoverable;
    int old, express;
} what;

#define WITH(...) ((what){__VA_ARGS__})
#define USUAL ((what){0})

static void put_header(const what *w, uint32_t carried)
{
    const uint32_t c = w->connection, side = w->direction;

    S(SESSION_OFFSET) = 20;
    S(ACK_SEQUENCE_NUMBER) = (sent[c][1 - side].messages + w->ack) & 0xFFFF;
    S(RECOVERABLE_MSG_ACK_SEQ_NUMBER) = w->base;
    S(RECOVERABLE_MSG_ACK_FLAGS) = w->bits;
    S(USER_MSG_SEQUENCE_NUMBER) = (sent[c][side].messages + carried + w->user) & 0xFFFF;
    S(RECOVERABLE_MSG_SEQUENCE_NUMBER) = (sent[c][side].recoverable + carried + w->recoverable) & 0xFFFF;
}

static uint32_t message(uint32_t number, uint32_t previous, what w)
{
    const uint32_t ordinal = w.ordinal != 0 ? w.ordinal : 1;

    row(MSG, w.connection, w.direction);
    K(SOURCE_QUEUE_MANAGER) = w.source != 0 ? w.source : w.direction == 0 ? SENDER : RECEIVER;
    K(DESTINATION_QUEUE) = w.queue != 0 ? w.queue : QUEUE;
    K(QUEUE_MANAGER_ADDRESS) = w.host;
    S(USER_FLAGS) = (w.express ? 0 : 1u << 5) | MQQB_USER_TH | (w.host != 0 ? 3u : 7u) << 10 | w.flags;
    S(TX_FLAGS) = w.tx_flags;
    S(TX_SEQUENCE_ORDINAL) = number != 0 ? ordinal : 0;
    S(TX_SEQUENCE_TIME_STAMP) = number != 0 ? w.stamp != 0 ? w.stamp : FIRST : 0;
    S(TX_SEQUENCE_NUMBER) = number;
    S(PREVIOUS_TX_SEQUENCE_NUMBER) = previous;
    S(MESSAGE_ID) = w.id != 0 ? w.id : 10000 * ordinal + number;
    S(SENT_TIME) = w.sent_time != 0 ? w.sent_time : w.old ? START - 10 : (uint32_t)((now + SECOND - 1) / SECOND);
    S(TIME_TO_REACH_QUEUE) = w.ttrq != 0 ? w.ttrq : 0xFFFFFFFF;
    S(TIME_TO_BE_RECEIVED) = w.ttbr != 0 ? w.ttbr : 0xFFFFFFFF;
    if (w.header != 0) {
        put_header(&w, 1);
    }
    rows++;
    sent[w.connection][w.direction].messages++;
    sent[w.connection][w.direction].recoverable += !w.express;
    return frame;
}

static uint32_t last_own_id;

static uint32_t acknowledge(uint32_t kind, uint32_t number, const what *w)
{
    const uint32_t ordinal = w->ordinal != 0 ? w->ordinal : 1, side = 1 - w->direction; /* the usual one is 1 */

    row(kind, w->connection, side);
    K(SOURCE_QUEUE_MANAGER) = RECEIVER;
    K(DESTINATION_QUEUE) = ORDER_QUEUE;
    K(QUEUE_MANAGER_ADDRESS) = w->host;
    S(USER_FLAGS) = (kind == FINAL ? 1u << 5 : 0) | (w->host != 0 ? 3u : 7u) << 10;
    S(ACK_TX_SEQUENCE_ORDINAL) = ordinal;
    S(ACK_TX_SEQUENCE_TIME_STAMP) = w->stamp != 0 ? w->stamp : FIRST;
    S(ACK_TX_SEQUENCE_NUMBER) = number;
    S(MESSAGE_ID) = w->own_id != 0 ? w->own_id : ++last_own_id;
    S(MESSAGE_CLASS) = kind == ORDER ? 0xFF : w->class != 0 ? w->class : 0x4000;
    if (kind == FINAL) {
        K(ACK_SOURCE) = w->source != 0 ? w->source : SENDER;
        S(ACK_MESSAGE_ID) = w->id != 0 ? w->id : 10000 * ordinal + number;
    }
    rows++;
    sent[w->connection][side].messages++;
    sent[w->connection][side].recoverable += kind == FINAL;
    return frame;
}

static uint32_t order_ack(uint32_t number, what w)
{
    return acknowledge(ORDER, number, &w);
}

static uint32_t final_ack(uint32_t number, what w)
{
    return acknowledge(FINAL, number, &w);
}

static uint32_t session_ack(uint32_t direction, what w)
{
    w.direction = direction;
    row(SACK, w.connection, direction);
    put_header(&w, 0);
    rows++;
    return frame;
}

/* One connection of the sender's to the receiver. */
static void start(void)
{
    setup();
    opened(0, 0, SENDER);
}

/* A second one, of the same two hosts. */
static void start_two(void)
{
    start();
    opened(1, 0, SENDER);
}

/* ---- verdicts ------------------------------------------------------------------------------------ */

/* A letter for each finding: in the order of mqqb_audit_kind, small if it is not known; ! for what is withdrawn. */
static const char *letters(void)
{
    static char text[FOUND_MAX + 1];
    uint32_t k;

    for (k = 0; k < found_count; k++) {
        text[k] = found[k].detail >= MQQB_AUDIT_LATE ? '!' : (found[k].unknown ? "raisctd" : "RAISCTD")[found[k].kind];
    }
    text[k] = 0;
    return text;
}

#define CHECK_FOUND(expected)                                                                                          \
    do {                                                                                                               \
        finish();                                                                                                      \
        run.checks++;                                                                                                  \
        if (strcmp(letters(), expected) != 0 && run.faults++ < 5) {                                                    \
            printf("%s:%d: %s [%s]: %s, not %s\n", __FILE__, __LINE__, run.name, run.rules, letters(), expected);      \
        }                                                                                                              \
    } while (0)

/* The frames that show a finding. */
#define CHECK_SHOWN(number, ...)                                                                                       \
    do {                                                                                                               \
        const uint32_t shown_[] = {__VA_ARGS__};                                                                       \
        CHECK_EQ(found[number].packets, sizeof shown_ / sizeof *shown_);                                               \
        for (uint32_t k_ = 0; k_ < sizeof shown_ / sizeof *shown_; k_++) {                                             \
            CHECK_EQ(found[number].packet[k_].frame, shown_[k_]);                                                      \
        }                                                                                                              \
    } while (0)

#define CHECK_OUTCOMES(f, ...)                                                                                         \
    do {                                                                                                               \
        const uint32_t outcomes_[MQQB_AUDIT_OUTCOMES] = {__VA_ARGS__};                                                 \
        for (uint32_t k_ = 0; k_ < MQQB_AUDIT_OUTCOMES; k_++) {                                                        \
            CHECK_EQ((f)->outcomes[k_], outcomes_[k_]);                                                                \
        }                                                                                                              \
    } while (0)

/* Sums over what is kept of a flow and what is not. */
static mqqb_audit_counts counts_of(uint32_t flow)
{
    mqqb_audit_counts sum = a.flows[flow].folded;
    uint32_t *const to = (uint32_t *)&sum;

    for (uint32_t k = 0; k < a.sequences_used; k++) {
        if (a.sequences[k].flow == flow + 1) {
            const uint32_t *const from = (const uint32_t *)&a.sequences[k].counts;
            for (uint32_t n = 0; n < sizeof sum / sizeof *to; n++) {
                to[n] += from[n];
            }
        }
    }
    return sum;
}

/* Messages of the only sequence that is kept of a flow, or 0, that have an OrderAck. */
static uint32_t counts_of_one(uint32_t flow)
{
    const uint32_t newest = a.flows[flow].newest - 1;

    return a.flows[flow].sequences == 1 ? a.sequences[newest].counts.order_acked : 0;
}

/* ---- counts, outcomes ---------------------------------------------------------------------------- */

static void test_a_clean_stream(void)
{
    const mqqb_audit_flow *f;

    start();
    for (uint32_t number = 1; number <= 10; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)session_ack(1, USUAL);
    now += 500 * MS;
    (void)order_ack(8, USUAL);
    (void)message(0, 0, WITH(.express = 1));
    (void)plain(END, 0, 0);
    (void)plain(END, 0, 1);
    CHECK_FOUND("");
    f = &a.flows[0];
    CHECK_EQ(a.flows_used, 1);
    CHECK_EQ(a.packets, 17);
    CHECK_EQ(counts_of(0).messages, 10);
    CHECK_EQ(counts_of(0).order_acked, 8);
    CHECK_EQ(counts_of(0).unsettled, 2);
    CHECK_EQ(f->connections, 1);
    CHECK_OUTCOMES(f, 0, 8, 0, 2, 0);
    CHECK(a.connections[0].established != 0);
    CHECK_EQ(a.connections[0].direction[0].owner, SENDER);
    CHECK_EQ(a.connections[0].direction[0].messages, 11);
    CHECK_EQ(a.connections[0].direction[0].recoverable, 10);
}

static void test_outcomes(void)
{
    start();
    for (uint32_t number = 1; number <= 6; number++) {
        (void)message(number, number - 1, WITH(.flags = number < 6 ? JN : 0, .tx_flags = number == 6 ? MQQB_TX_FA : 0));
    }
    (void)order_ack(6, USUAL);
    (void)final_ack(1, USUAL);
    (void)final_ack(2, WITH(.class = 0xC002));
    (void)final_ack(3, WITH(.class = 0x8003));
    (void)final_ack(4, WITH(.class = 0xC002));
    CHECK_FOUND("");
    CHECK_OUTCOMES(&a.flows[0], 1, 1, 1, 0, 0);
    CHECK_EQ(a.flows[0].classes[0], 0xC002);
    CHECK_EQ(a.flows[0].class_counts[0], 2);
    CHECK_EQ(a.flows[0].class_counts[1], 1);
    CHECK_EQ(counts_of(0).final_acked, 4);
    CHECK_EQ(counts_of(0).unsettled, 1);
}

static void test_deadlines(void)
{
    start();
    (void)message(1, 0, WITH(.flags = JN, .ttbr = 15));             /* until 30 s */
    (void)message(2, 1, WITH(.flags = JN, .ttbr = 500, .ttrq = 5)); /* 5 s before the OrderAck, then 505 s */
    (void)message(3, 2, WITH(.ttrq = 5));
    (void)message(4, 3, WITH(.ttrq = 60));
    (void)message(5, 4, WITH(.ttbr = 5));                                               /* not held: 5 s */
    (void)message(6, 5, WITH(.flags = JN, .ttbr = 7, .ttrq = 600));                     /* not ordered, held: 14 s */
    (void)message(7, 6, WITH(.ttbr = 0xFFFFFFFE, .ttrq = 5, .sent_time = START - 100)); /* late already: no clock */
    (void)order_ack(2, USUAL);
    now += 20 * SECOND;
    CHECK_FOUND("");
    CHECK_OUTCOMES(&a.flows[0], 0, 0, 2, 2, 3);
}

static void test_the_receivers_rule(void)
{
    static const struct {
        uint32_t ordinal, number, previous, reason;
    } cases[] = {
        {2, 6, 5, MQQB_AUDIT_REJECTS},       {2, 5, 4, MQQB_AUDIT_DUPLICATE},    {2, 7, 6, MQQB_AUDIT_GAP},
        {2, 8, 5, MQQB_AUDIT_REJECTS},       {3, 1, 0, MQQB_AUDIT_REJECTS},      {3, 4, 0, MQQB_AUDIT_REJECTS},
        {3, 2, 1, MQQB_AUDIT_START_MISSING}, {1, 9, 0, MQQB_AUDIT_OLD_SEQUENCE},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        mqqb_audit_counts counts;
        start();
        for (uint32_t number = 1; number <= 5; number++) {
            (void)message(number, number - 1, WITH(.ordinal = 2));
        }
        (void)message(cases[k].number, cases[k].previous, WITH(.ordinal = cases[k].ordinal));
        CHECK_FOUND(cases[k].ordinal == 1 ? "I" : "");
        counts = counts_of(0);
        CHECK_EQ(counts.resends, cases[k].reason == MQQB_AUDIT_DUPLICATE);
        for (uint32_t reason = 0; reason < MQQB_AUDIT_REJECTS; reason++) {
            CHECK_EQ(counts.rejects[reason], reason == cases[k].reason);
        }
    }
}

/* ---- tables -------------------------------------------------------------------------------------- */

static void test_tables_grow(void)
{
    mqqb_audit_counts sum = {0};

    setup();
    for (uint32_t c = 0; c < 300; c++) {
        pair_of[c] = 2 * (c % 50);
        opened(c, 0, 0);
        for (uint32_t queue = 1; queue < 3; queue++) {
            for (uint32_t number = 1; number <= 2; number++) {
                (void)message(number, number - 1,
                              WITH(.connection = c, .source = 4 + c % 30, .queue = queue, .ordinal = 1 + c,
                                   .id = 10 * (c + 1) + 4 * queue + number));
            }
        }
        (void)plain(END, c, 1);
        (void)plain(END, c, 0);
        (void)plain(END, c, 0);
    }
    CHECK_FOUND("");
    CHECK_EQ(grown & ~(1u << MQQB_AUDIT_FINDINGS_FULL), 0x3E);
    CHECK_EQ(a.flows_used, 60);
    for (uint32_t flow = 0; flow < 60; flow++) {
        sum.messages += counts_of(flow).messages;
        CHECK_EQ(a.flows[flow].sequences, 10);
        CHECK_EQ(a.flows[flow].connections, 10);
    }
    CHECK_EQ(sum.messages, 1200);
    CHECK(a.flows_size < 128);
    for (uint32_t flow = 0; flow < 60; flow++) { /* all are found again under their key */
        for (uint32_t other = 0; other < flow; other++) {
            CHECK(memcmp(&a.flows[flow].key, &a.flows[other].key, sizeof a.flows[flow].key) != 0);
        }
    }
}

/* What leaves the index leaves no gap before others that belong at its place. An index that grows is made anew: the others are
 * asked for between. */
static void test_what_is_folded_hides_no_others(void)
{
    start();
    for (uint32_t k = 1; k <= 1500; k++) {
        (void)message(1, 0, WITH(.ordinal = k));
        (void)message(1, 0, WITH(.source = 10 + k, .ordinal = 1, .id = k));
        if (k > 30) {
            (void)order_ack(1, WITH(.host = 10 + k - 30, .ordinal = 1));
        }
    }
    CHECK_FOUND("");
    CHECK_EQ(stray_count, 0);
    CHECK(a.flows[0].kept < 80);
    for (uint32_t flow = 1; flow <= 1470; flow++) {
        CHECK_EQ(counts_of_one(flow), 1);
    }
}

static void test_slots_go_down_and_jump(void)
{
    start();
    (void)message(5000, 0, WITH(.old = 1));
    (void)message(4900, 0, WITH(.old = 1)); /* a block below */
    (void)message(3000, 0, WITH(.old = 1)); /* too far below */
    (void)message(3000, 0, WITH(.old = 1));
    (void)message(900000, 0, WITH(.old = 1)); /* so far above that nothing else is left */
    (void)message(5000, 0, WITH(.old = 1));
    (void)order_ack(900000, USUAL);
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).messages, 3);
    CHECK_EQ(counts_of(0).resends, 3);
    CHECK_EQ(counts_of(0).order_acked, 1);
}

static void test_what_is_asked_for_keeps_its_slot(void)
{
    start();
    for (uint32_t number = 1; number <= 500; number++) {
        (void)message(number, number - 1,
                      WITH(.tx_flags = number == 3 ? MQQB_TX_FA : 0, .flags = number == 200 ? JN : 0));
        (void)session_ack(1, USUAL);
        (void)order_ack(number, USUAL);
    }
    (void)final_ack(3, WITH(.id = 77)); /* is compared: it has its slot */
    (void)final_ack(200, USUAL);
    CHECK_FOUND("A");
    CHECK_OUTCOMES(&a.flows[0], 1, 499, 0, 0, 0);
}

static void test_numbers_far_from_those_with_slots(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1 + MQQB_AUDIT_BLOCK * MQQB_AUDIT_BLOCKS, USUAL);
    CHECK_FOUND("A");

    start();
    (void)message(1 + MQQB_AUDIT_BLOCK * MQQB_AUDIT_BLOCKS, 0, WITH(.old = 1));
    (void)final_ack(1, USUAL);
    CHECK_FOUND("");
}

static void test_a_new_index_without_what_is_folded(void)
{
    start();
    for (uint32_t ordinal = 1; ordinal <= 40; ordinal++) {
        (void)message(1, 0, WITH(.ordinal = ordinal));
    }
    for (uint32_t ordinal = 1; ordinal <= 40; ordinal++) {
        (void)order_ack(1, WITH(.ordinal = ordinal));
    }
    (void)message(1, 0, WITH(.ordinal = 41));
    for (uint32_t k = 0; k < 8; k++) {
        (void)message(1, 0, WITH(.queue = 10 + k, .ordinal = 50 + k));
    }
    (void)order_ack(1, WITH(.ordinal = 41));
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).order_acked, 41);
    CHECK_EQ(stray_count, 0);
    CHECK(a.flows[0].kept < 20);
}

static void test_connections_that_are_passed_over(void)
{
    setup();
    pair_of[1] = 0xFFFFFFFF;
    opened(0, 0, SENDER);
    opened(1, 0, OTHER);
    (void)message(1, 0, WITH(.connection = 1, .source = OTHER));
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 1);
    CHECK_EQ(a.packets, 5);

    start(); /* another protocol, whatever comes then */
    (void)plain(FOREIGN, 0, 0);
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");
    (void)plain(FOREIGN, 0, 1);
    (void)plain(END, 0, 0);
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 0);
    CHECK_EQ(a.foreign, 1);
    CHECK_EQ(a.connections[0].direction[0].ended, 1);
}

/* ---- numbers and MessageIDs ---------------------------------------------------------------------- */

static void test_renumbered(void)
{
    uint32_t shown, again;

    start();
    shown = message(1, 0, WITH(.id = 500));
    again = message(1, 0, WITH(.id = 501));
    (void)message(1, 0, WITH(.id = 502)); /* said once */
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);
    CHECK_EQ(found[0].a, 500);
    CHECK_EQ(found[0].b, 501);
    CHECK_EQ(a.flows[0].violations[MQQB_AUDIT_RENUMBERED], 1);

    start();
    shown = message(1, 0, WITH(.id = 500));
    (void)message(2, 1, WITH(.id = 501));
    again = message(3, 2, WITH(.id = 500));
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);

    start();
    shown = message(1, 0, WITH(.id = 500));
    (void)message(1, 0, WITH(.ordinal = 2, .id = 510));
    again = message(2, 1, WITH(.ordinal = 2, .id = 500)); /* under a new sequence */
    (void)message(3, 2, WITH(.ordinal = 2, .id = 499));   /* lower, but no other's */
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);

    start();
    shown = message(1, 0, WITH(.id = 500));
    again = message(1, 0, WITH(.ordinal = 2, .id = 500)); /* under the same number of another one */
    CHECK_FOUND("R");
    CHECK_SHOWN(0, shown, again);

    start();
    (void)message(1, 0, WITH(.id = 500));
    (void)message(1, 0,
                  WITH(.queue = SECOND_QUEUE, .ordinal = 2, .id = 500)); /* of another stream nothing is compared */
    CHECK_FOUND("");
}

static void test_a_renumbered_message_has_no_other_verdicts(void)
{
    start();
    (void)message(1, 0, WITH(.id = 500));
    (void)message(1, 0, WITH(.id = 501));
    (void)final_ack(1, WITH(.id = 501));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, WITH(.id = 501)); /* which of the two was settled? */
    CHECK_FOUND("R");
}

static void test_id_went_back(void)
{
    uint32_t shown, wrong;

    start_two();
    shown = message(1, 0, WITH(.ordinal = 2));
    wrong = message(1, 0, WITH(.ordinal = 1));
    (void)message(2, 1, WITH(.ordinal = 1));                  /* once for a connection */
    (void)message(2, 1, WITH(.ordinal = 1, .connection = 1)); /* as old as the one that had the higher sequence */
    opened(2, 0, SENDER);
    (void)message(3, 2, WITH(.ordinal = 1, .connection = 2));
    opened(3, 0, SENDER);
    (void)message(2, 1, WITH(.ordinal = 2, .connection = 1));
    (void)message(4, 3, WITH(.ordinal = 1, .connection = 1)); /* carried the higher one last */
    CHECK_FOUND("III");
    CHECK_SHOWN(0, shown, wrong);
    CHECK_EQ(found[0].a, 2);
    CHECK_EQ(found[0].b, FIRST);

    start();
    (void)message(1, 0, WITH(.ordinal = 2));
    (void)plain(OLDER, 1, 0);
    (void)plain(OLDER, 1, 1);
    (void)message(1, 0, WITH(.ordinal = 1, .connection = 1)); /* of a connection whose begin is not known */
    CHECK_FOUND("");

    start();
    (void)message(1, 0, USUAL);
    (void)message(2, 1, WITH(.ordinal = 2)); /* its start is missing, so the receiver has not gone on to it */
    (void)message(2, 1, USUAL);
    CHECK_FOUND("I");
    CHECK_EQ(counts_of(0).rejects[MQQB_AUDIT_OLD_SEQUENCE], 0);

    start();
    (void)message(1, 0, WITH(.ordinal = 2));
    (void)plain(BEGIN, 1, 0);
    (void)message(2, 1, WITH(.ordinal = 2, .connection = 1));
    (void)message(1, 0, USUAL); /* the connection that had the higher one first */
    CHECK_FOUND("I");

    start();
    (void)message(1, 0, WITH(.ordinal = 5));
    (void)message(1, 0, WITH(.ordinal = 4, .stamp = FIRST + 1)); /* a later time stamp counts more */
    (void)message(1, 0, WITH(.ordinal = 9));
    CHECK_FOUND("I");
}

/* Connection 0 is as old as connection 1, which has the higher sequence. */
static void test_a_lower_sequence_on_an_older_connection(void)
{
    enum { PROVEN, NOT_ACKED, ACKED_ELSEWHERE, SHOWN_ELSEWHERE, NOT_SHOWN, SHOWN_BEFORE, FORWARDED, CASES };
    const char *const expected[CASES] = {[PROVEN] = "I"};

    for (uint32_t k = 0; k < CASES; k++) {
        const uint32_t hops = k == FORWARDED, elsewhere = k == ACKED_ELSEWHERE;
        uint32_t answer = 0, shown = 0, wrong;
        start_two();
        (void)message(1, 0, WITH(.flags = hops));
        (void)message(1, 0, WITH(.ordinal = 2, .connection = 1, .flags = hops));
        if (k == SHOWN_BEFORE) {
            (void)session_ack(0, USUAL);
        }
        if (k != NOT_ACKED) {
            answer = order_ack(1, WITH(.ordinal = 2, .connection = elsewhere));
        }
        if (elsewhere || k == SHOWN_ELSEWHERE) {
            (void)session_ack(0, WITH(.connection = 1));
        }
        if (!elsewhere && k != SHOWN_ELSEWHERE && k != NOT_SHOWN && k != SHOWN_BEFORE) {
            shown = session_ack(0, USUAL);
        }
        wrong = message(2, 1, WITH(.flags = hops));
        (void)message(3, 2, WITH(.flags = hops)); /* once for a connection */
        CHECK_FOUND(expected[k] == NULL ? "" : expected[k]);
        if (k == PROVEN) {
            CHECK_SHOWN(0, answer, shown, wrong);
            CHECK_EQ(found[0].ordinal, 1);
            CHECK_EQ(found[0].number, 2);
            CHECK_EQ(found[0].a, 2);
        }
    }

    start_two(); /* not the highest one */
    (void)message(1, 0, USUAL);
    (void)message(1, 0, WITH(.ordinal = 2, .connection = 1));
    (void)order_ack(1, WITH(.ordinal = 2));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, WITH(.ordinal = 3, .connection = 1));
    (void)message(2, 1, USUAL);
    CHECK_FOUND("I");
    CHECK_EQ(found[0].a, 2);

    start(); /* what waits where it is forwarded */
    (void)message(1, 0, WITH(.ordinal = 2, .flags = 1));
    (void)message(1, 0, WITH(.ordinal = 1, .flags = 1));
    opened(1, 0, SENDER);
    (void)message(2, 1, WITH(.ordinal = 1, .flags = 1, .connection = 1));
    CHECK_FOUND("");
}

/* ---- acknowledgements of messages ---------------------------------------------------------------- */

static void test_ack_beyond_receipt(void)
{
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t shown, wrong;
        start();
        shown = message(1, 0, USUAL);
        wrong = k == 0 ? order_ack(2, USUAL) : final_ack(2, USUAL);
        (void)order_ack(2, USUAL);  /* said once */
        (void)message(2, 1, USUAL); /* only now: that justifies nothing */
        CHECK_FOUND("A");
        CHECK_SHOWN(0, shown, wrong);
        CHECK_EQ(found[0].number, 2);
        CHECK_EQ(found[0].a, 1);

        start();
        (void)message(1, 0, WITH(.old = 1)); /* greater ones may be older than the capture */
        (void)(k == 0 ? order_ack(2, USUAL) : final_ack(2, USUAL));
        CHECK_FOUND("a");
        CHECK_EQ(a.flows[0].unknowns[MQQB_AUDIT_ACK_BEYOND_RECEIPT], 1);

        start();
        (void)message(5, 4, USUAL);
        (void)(k == 0 ? order_ack(4, USUAL) : final_ack(4, USUAL)); /* was before */
        CHECK_FOUND("");
    }
}

/* A sequence that began within the capture. */
static uint32_t begin_second(void)
{
    start();
    (void)message(1, 0, USUAL);
    return message(1, 0, WITH(.ordinal = 2));
}

static uint32_t ack(uint32_t final, what w)
{
    return final ? final_ack(1, w) : order_ack(1, w);
}

static void test_an_ack_of_a_sequence_that_was_not_sent(void)
{
    for (uint32_t final = 0; final < 2; final++) {
        uint32_t shown = begin_second(), wrong;
        (void)message(1, 0, WITH(.ordinal = 3)); /* began later, and so tells less */
        wrong = ack(final, WITH(.ordinal = 4, .own_id = 70));
        (void)ack(final, WITH(.ordinal = 4, .own_id = 70)); /* said once */
        (void)ack(final, WITH(.ordinal = 9));
        (void)message(1, 0, WITH(.ordinal = 4)); /* only now: that justifies nothing */
        CHECK_FOUND("AA");
        CHECK_SHOWN(0, shown, wrong);
        CHECK_EQ(found[0].detail, final ? MQQB_AUDIT_FINAL_ACK_STRAY : MQQB_AUDIT_ORDER_ACK_STRAY);
        CHECK_EQ(found[0].flow, 1);
        CHECK_EQ(found[0].ordinal, 4);
        CHECK_EQ(found[0].time_stamp, FIRST);
        CHECK_EQ(found[0].number, 1);
        CHECK_EQ(found[0].a, 2);
        CHECK_EQ(found[0].b, FIRST);
        CHECK_EQ(a.flows[0].violations[MQQB_AUDIT_ACK_BEYOND_RECEIPT], 2);

        (void)begin_second(); /* another stream: its sequences count too */
        (void)message(1, 0, WITH(.ordinal = 4, .queue = SECOND_QUEUE));
        (void)ack(final, WITH(.ordinal = 3));
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("A");
    }
}

static void test_an_ack_of_a_sequence_that_may_have_been_sent(void)
{
    for (uint32_t final = 0; final < 2; final++) {
        start();
        (void)message(1, 0, USUAL);
        (void)ack(final, WITH(.ordinal = 4)); /* may be of another queue, from before the capture */
        CHECK_FOUND("");

        start();
        (void)message(1, 0, WITH(.ordinal = 3));
        (void)message(1, 0, WITH(.ordinal = 5));
        (void)ack(final, WITH(.ordinal = 4)); /* as above */
        (void)ack(final, WITH(.ordinal = 2));
        (void)ack(final, WITH(.ordinal = 9, .stamp = FIRST - 1));
        CHECK_FOUND("");

        (void)begin_second();
        (void)ack(final, WITH(.ordinal = 4, .stamp = FIRST + 1)); /* a queue's that counts by itself */
        (void)ack(final, WITH(.ordinal = 4, .stamp = FIRST + 1));
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("aA");

        start(); /* the first one may have been sent before the capture, and came late; so may those that followed */
        (void)message(1, 0, WITH(.old = 1));
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("");

        start(); /* what followed on one that began within the capture, did so too */
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)plain(HOLE, 0, 0);
        (void)message(2, 1, WITH(.ordinal = 2, .old = 1));
        (void)message(1, 0, WITH(.ordinal = 3, .old = 1));
        (void)ack(final, WITH(.ordinal = 4)); /* in the hole? */
        CHECK_FOUND("a");

        (void)begin_second();
        (void)plain(HOLE, 0, 0);
        (void)message(2, 1, WITH(.ordinal = 2, .sent_time = START + 1));
        (void)message(1, 0, WITH(.ordinal = 3));
        (void)ack(final, WITH(.ordinal = 4)); /* not in the hole: began later */
        CHECK_FOUND("A");
        CHECK_EQ(found[0].a, 3);

        setup(); /* the same on another way, which it takes then */
        pair_of[1] = 2;
        opened(0, 0, SENDER);
        opened(1, 0, SENDER);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
        (void)message(2, 1, WITH(.ordinal = 2, .old = 1, .connection = 1));
        (void)ack(final, WITH(.ordinal = 4, .connection = 1)); /* there none has begun yet */
        (void)message(1, 0, WITH(.ordinal = 3, .old = 1, .connection = 1));
        (void)ack(final, WITH(.ordinal = 5, .connection = 1));
        CHECK_FOUND("A");
        CHECK_EQ(found[0].a, 3);

        (void)begin_second();
        (void)plain(BEGIN, 1, 0);
        (void)plain(HOLE, 1, 0); /* of an unknown sender of the same host */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("a");

        start();
        (void)message(1, 0, WITH(.flags = 1));
        (void)message(1, 0, WITH(.flags = 1, .ordinal = 2)); /* forwarded: other streams may take other ways */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("");

        (void)begin_second();
        (void)message(2, 1, WITH(.ordinal = 2, .sent_time = START + 100)); /* its clock is ahead */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND("");

        (void)begin_second();
        (void)ack(final, WITH(.ordinal = 4, .source = OTHER, .host = OTHER));
        CHECK_FOUND("");

        (void)begin_second();
        (void)message(1, 0, WITH(.source = OTHER)); /* the sender forwards for it: an OrderAck may be for either */
        (void)ack(final, WITH(.ordinal = 4));
        CHECK_FOUND(final ? "A" : "");
    }
}

/* The sender has begun another connection, and the one before went silent: what was sent there last may be missing. */
static void test_a_connection_whose_end_was_not_seen(void)
{
    for (unsigned seen = 0; seen < 2; seen++) {
        for (unsigned kind = 0; kind < 3; kind++) {
            start();
            (void)message(1, 0, USUAL);
            if (kind > 0) {
                (void)message(kind == 1 ? 4 : 1, kind == 1 ? 3 : 0, WITH(.ordinal = kind));
            }
            if (seen) {
                (void)plain(END, 0, 0);
            }
            opened(1, 0, SENDER);
            (void)order_ack(kind == 2 ? 1 : 4, WITH(.connection = 1, .ordinal = kind == 2 ? 3 : 1));
            CHECK_FOUND(kind == 1 ? seen ? "S" : "s" : seen ? "A" : "a");
        }
    }
    start(); /* the other one has its ports, which is all that tells of its end */
    (void)message(1, 0, USUAL);
    row(END, 0, 0);
    S(STATUS) = MQQB_END_REPLACED;
    rows++;
    now -= MS;
    opened(1, 0, SENDER);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("a");
    /* From another address: 0: to the same peer, 1: to another, 2: by another, 3: to the same, and then one to another. 4: from the same
     * address, and the answer is not there. */
    for (uint32_t k = 0; k < 5; k++) {
        start();
        pair_of[1] = k == 4 ? 0 : 2;
        pair_of[2] = 4;
        (void)message(1, 0, USUAL);
        opened(1, 0, k == 2 ? OTHER : SENDER);
        give();
        a.connections[1 << spread].direction[1].owner = k == 1 ? OTHER : k == 4 ? 0 : RECEIVER;
        if (k == 3) {
            opened(2, 0, SENDER);
            give();
            a.connections[2 << spread].direction[1].owner = OTHER;
        }
        (void)order_ack(4, USUAL);
        CHECK_FOUND(k == 0 || k >= 3 ? "a" : "A");
    }
    start(); /* all of it has the same time */
    now -= 5 * MS;
    (void)message(1, 0, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("A");
    start_two(); /* it goes on */
    (void)message(1, 0, USUAL);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("A");
    setup(); /* the receiver had opened it */
    opened(0, 1, SENDER);
    (void)message(1, 0, WITH(.direction = 1, .source = SENDER));
    opened(1, 0, SENDER);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("A");
    opened(2, 1, SENDER);
    (void)order_ack(5, WITH(.connection = 1));
    CHECK_FOUND("Aa");
}

static void test_an_ack_of_a_sequence_that_is_not_kept(void)
{
    start();
    for (uint32_t ordinal = 101; ordinal <= 140; ordinal++) {
        (void)message(1, 0, WITH(.ordinal = ordinal));
        (void)order_ack(1, WITH(.ordinal = ordinal));
        (void)message(1, 0, WITH(.ordinal = ordinal - 100, .queue = SECOND_QUEUE));
        (void)order_ack(1, WITH(.ordinal = ordinal - 100));
    }
    (void)final_ack(1, WITH(.ordinal = 105)); /* was seen, and is forgotten */
    (void)final_ack(1, WITH(.ordinal = 200));
    CHECK_FOUND("A");
    CHECK_EQ(found[0].ordinal, 200);
    CHECK_EQ(stray_count, 2);
}

static void test_a_number_that_was_left_out(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)message(3, 1, USUAL);
    (void)order_ack(2, USUAL);
    CHECK_FOUND("A");

    start();
    (void)message(1, 0, WITH(.old = 1));
    (void)message(3, 1, WITH(.old = 1));
    (void)order_ack(2, USUAL);
    (void)message(2, 1, WITH(.old = 1));
    CHECK_FOUND("a");
    CHECK_EQ(counts_of(0).order_acked, 2);

    start();
    for (uint32_t number = 1; number <= 3000; number++) {
        (void)message(number, number - 1, WITH(.old = 1));
    }
    (void)order_ack(7, USUAL); /* has no slot any more */
    CHECK_FOUND("");
}

static void test_a_final_ack_for_another_message(void)
{
    uint32_t shown, wrong;

    start();
    shown = message(1, 0, USUAL);
    wrong = final_ack(1, WITH(.id = 77));
    (void)final_ack(1, WITH(.id = 78));
    CHECK_FOUND("A");
    CHECK_SHOWN(0, shown, wrong);
    CHECK_EQ(found[0].detail, MQQB_AUDIT_FINAL_ACK_OTHER);

    start();
    (void)message(1, 0, WITH(.old = 1));
    (void)final_ack(1, WITH(.id = 77));
    (void)message(5, 4, USUAL); /* now it is certain, but only from here on */
    (void)message(2, 1, WITH(.old = 1));
    (void)final_ack(2, WITH(.id = 77));
    CHECK_FOUND("aa");
}

static void test_skipped(void)
{
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t shown, wrong;
        start();
        (void)message(1, 0, USUAL);
        shown = message(3, 2, USUAL);
        wrong = k == 0 ? order_ack(3, USUAL) : final_ack(3, USUAL);
        (void)message(4, 3, USUAL);
        (void)order_ack(4, USUAL);
        CHECK_FOUND("S");
        CHECK_SHOWN(0, shown, wrong);
        CHECK_EQ(found[0].a, 1);
        CHECK_EQ(found[0].b, 2);

        start();
        (void)message(1, 0, USUAL);
        (void)message(3, 2, USUAL);
        (void)final_ack(3, WITH(.class = 0x8003)); /* rejected: says nothing of the order */
        CHECK_FOUND("");
    }

    start(); /* said once: what follows on it is accepted */
    (void)message(1, 0, USUAL);
    (void)message(3, 2, USUAL);
    (void)message(4, 3, USUAL);
    (void)order_ack(3, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("S");
}

static void test_out_of_order(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)message(3, 2, USUAL);
    (void)message(2, 1, USUAL);
    (void)message(4, 3, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("S");

    start();
    (void)message(1, 0, USUAL);
    (void)message(3, 2, USUAL);
    (void)message(2, 1, USUAL);
    (void)message(3, 2, USUAL); /* sent again */
    (void)order_ack(3, USUAL);
    CHECK_FOUND("");

    start_two();
    (void)message(1, 0, USUAL);
    (void)message(3, 2, WITH(.connection = 1)); /* which of two connections was faster is not known */
    (void)message(2, 1, USUAL);
    (void)order_ack(3, USUAL);
    CHECK_FOUND("");

    start_two();
    (void)message(1, 0, USUAL);
    (void)message(4, 3, WITH(.connection = 1));
    (void)message(2, 1, USUAL);
    (void)order_ack(4, USUAL);
    CHECK_FOUND("S");
}

static void test_sure_again_after_a_hole(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 0);
    (void)message(5, 4, USUAL);
    (void)final_ack(3, USUAL);
    CHECK_FOUND("a");

    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 0);
    now += SECOND;
    (void)message(6, 5, USUAL); /* handed over since: all from it on is seen */
    (void)order_ack(6, USUAL);
    (void)order_ack(7, USUAL);
    CHECK_FOUND("A");

    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 0);
    now += SECOND;
    (void)message(9, 8, USUAL);
    (void)message(6, 1, USUAL);
    for (uint32_t number = 7; number < 9; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(9, USUAL);
    CHECK_FOUND("");
}

static void test_a_clock_that_is_ahead(void)
{
    start();
    (void)message(5, 0, WITH(.sent_time = START + 100));
    now += 3 * SECOND;
    (void)message(2, 0, WITH(.sent_time = START + 2));
    (void)order_ack(4, USUAL);
    CHECK_FOUND("a");
}

static void test_a_new_sequence_is_seen_from_its_beginning(void)
{
    start();
    (void)message(8, 7, WITH(.old = 1));
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
    (void)order_ack(2, WITH(.ordinal = 2));
    CHECK_FOUND("A");

    for (uint32_t k = 0; k < 2; k++) { /* who forwards may send a message again, whose source has gone on long ago */
        start();
        (void)message(8, 7, WITH(.old = k, .flags = 1));
        (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .flags = 1));
        (void)order_ack(2, WITH(.ordinal = 2));
        CHECK_FOUND(k == 0 ? "A" : "a");
    }

    start();
    (void)message(8, 7, WITH(.old = 1));
    (void)plain(HOLE, 0, 0);
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1));
    (void)order_ack(2, WITH(.ordinal = 2));
    CHECK_FOUND("a");

    setup();
    pair_of[1] = 2; /* to another host of the same queue manager */
    opened(0, 0, SENDER);
    opened(1, 0, SENDER);
    (void)message(8, 7, WITH(.old = 1));
    (void)message(1, 0, WITH(.ordinal = 2, .old = 1, .connection = 1));
    (void)order_ack(2, WITH(.ordinal = 2));
    CHECK_FOUND("a");

    for (uint32_t k = 0; k < 2; k++) { /* what an older connection brings may be late, behind a new sequence */
        setup();
        (void)plain(OLDER, 0, 0);
        now += SECOND;
        (void)message(8, 7, WITH(.old = k));
        (void)message(2, 1, WITH(.ordinal = 2));
        (void)order_ack(2, WITH(.ordinal = 2));
        CHECK_FOUND(k == 0 ? "S" : "");
    }
}

/* ---- what may have been missed ------------------------------------------------------------------- */

static void test_an_older_connection_does_not_say_who_opened_it(void)
{
    setup();
    (void)plain(OLDER, 0, 0);
    row(EST, 0, 0);
    K(CLIENT_GUID) = SENDER;
    rows++;
    finish();
    CHECK_EQ(a.connections[0].direction[0].owner, 0);
    CHECK_EQ(a.connections[0].begun, 0);
}

static void test_another_establish_connection_begins_other_counts(void)
{
    for (uint32_t k = 0; k < 2; k++) {
        start();
        (void)message(1, 0, USUAL);
        (void)plain(HOLE, 0, 0);
        if (k == 1) { /* its SYNs were not captured */
            (void)plain(EST, 0, 0);
        }
        (void)session_ack(0, WITH(.ack = 5));
        CHECK_FOUND(k == 0 ? "Ac" : "ac");
    }
}

static void test_a_hole_makes_unsure(void)
{
    static const uint32_t kinds[] = {HOLE, OLDER, MALFORMED};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        start();
        (void)message(1, 0, USUAL);
        (void)plain(kinds[k], 0, 0);
        (void)plain(kinds[k], 0, 0);
        (void)order_ack(2, USUAL);
        CHECK_FOUND("a");
        CHECK_EQ(a.holes, k == 0 ? 2 : 0);
        CHECK_EQ(a.malformed, k == 2 ? 2 : 0);
        CHECK_EQ(a.connections[0].direction[0].holes, k == 0 ? 2 : 0);
        CHECK(k != 0 || a.connections[0].direction[0].first_hole < a.connections[0].direction[0].last_hole);
    }
    for (uint32_t k = 0; k < 2; k++) { /* of the sender; of its host, nobody knows whose */
        start();
        (void)plain(BEGIN, 1, 0);
        (void)message(1, 0, USUAL);
        now += 5 * SECOND;
        (void)plain(HOLE, k, 0);
        (void)message(2, 1, WITH(.sent_time = START + 2)); /* handed over before the hole */
        (void)order_ack(3, USUAL);
        CHECK_FOUND("a");
    }
    start();
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 0, 1); /* of the other direction */
    (void)order_ack(2, USUAL);
    CHECK_FOUND("A");
}

static void test_another_pair_of_hosts(void)
{
    setup();
    pair_of[1] = pair_of[2] = 2;
    opened(0, 0, SENDER);
    opened(1, 0, SENDER);
    (void)plain(BEGIN, 2, 0);
    (void)message(1, 0, USUAL);
    (void)plain(HOLE, 2, 0); /* of the other pair, of nobody in particular */
    (void)order_ack(2, USUAL);
    (void)message(3, 2, WITH(.connection = 1, .old = 1)); /* now it concerns the sequence too */
    (void)order_ack(5, WITH(.connection = 1));
    CHECK_FOUND("Aa");
    CHECK_EQ(a.flows[0].connections, 2);

    setup();
    pair_of[1] = 2;
    opened(0, 0, SENDER);
    opened(1, 0, SENDER);
    (void)message(1, 0, USUAL);
    (void)message(2, 1, WITH(.connection = 1));
    (void)order_ack(5, WITH(.connection = 1));
    CHECK_FOUND("A");

    for (uint32_t k = 0; k < 3; k++) { /* a hole of the same sender's, to other hosts */
        start();
        pair_of[1] = 2;
        opened(1, 0, SENDER);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.ordinal = 2));
        (void)plain(HOLE, 1, 0);
        if (k == 1) {
            (void)message(2, 1, WITH(.ordinal = 2, .sent_time = START)); /* handed over before it */
        }
        (void)order_ack(5, WITH(.ordinal = k == 2 ? 7 : 2));
        CHECK_FOUND("a");
    }
}

static void test_an_interrupted_capture(void)
{
    start();
    (void)message(1, 0, USUAL);
    give();
    mqqb_audit_interrupted(&a, now + SECOND);
    (void)order_ack(2, USUAL);
    CHECK_FOUND("a");

    setup();
    mqqb_audit_interrupted(&a, now + 5 * SECOND); /* before its source was known */
    now += 6 * SECOND;
    opened(0, 0, SENDER);
    (void)message(1, 0, WITH(.sent_time = START + 2));
    (void)order_ack(2, USUAL);
    CHECK_FOUND("a");

    start(); /* what it sent in the meantime may be acknowledged */
    (void)message(1, 0, USUAL);
    give();
    mqqb_audit_interrupted(&a, now + SECOND);
    (void)message(2, 1, WITH(.old = 1));
    (void)session_ack(1, WITH(.ack = 5));
    CHECK_FOUND("ac");

    start();
    (void)plain(BEGIN, 2, 0);
    give();
    mqqb_audit_interrupted(&a, now);
    (void)plain(BEGIN, 1, 0); /* only now */
    (void)session_ack(1, WITH(.ack = 5, .connection = 1));
    CHECK_FOUND("A");
}

/* ---- what comes late ----------------------------------------------------------------------------- */

/* What comes late makes unsure what was found since the rows before: of the connection's sources, and of its hosts. */
static void test_what_comes_late_withdraws(void)
{
    for (uint32_t k = 0; k < 3; k++) {
        int64_t since;
        start_two();
        (void)message(1, 0, USUAL);
        since = now;
        (void)order_ack(2, WITH(.connection = 1));
        if (k == 1) {
            (void)message(2, 1, USUAL); /* so nothing of the direction was on its way when the OrderAck came */
        }
        now += 2 * SECOND;
        (void)plain(k == 2 ? MALFORMED : HOLE, 0, 0);
        CHECK_FOUND(k == 1 ? "A" : "A!");
        if (k != 1) {
            CHECK_EQ(found[1].detail, MQQB_AUDIT_LATE);
            CHECK_EQ(found[1].a, SENDER);
            CHECK_EQ(found[1].packet[0].time, since);
        }
    }

    start();
    (void)message(1, 0, WITH(.source = OTHER, .flags = 1));
    (void)session_ack(1, WITH(.ack = 3));
    now += 2 * SECOND;
    (void)plain(HOLE, 0, 0);
    CHECK_FOUND("A!!"); /* of the one that opened it, and of the one that it forwards for */
    CHECK_EQ(found[2].a, OTHER);

    start();
    (void)message(1, 0, USUAL);
    (void)order_ack(3, USUAL);
    (void)message(2, 1, USUAL); /* may have overtaken the missing one, which was sent before the OrderAck then */
    (void)plain(HOLE, 0, 0);
    CHECK_FOUND("A!");

    start_two();
    (void)message(1, 0, USUAL);
    (void)order_ack(2, WITH(.connection = 1));
    (void)message(2, 1, USUAL); /* waited for what is missing in the other direction */
    (void)plain(HOLE, 0, 1);
    CHECK_FOUND("A!");
}

/* ---- sessions ------------------------------------------------------------------------------------ */

static void test_count_mismatch(void)
{
    static const struct {
        uint32_t user, recoverable;
        const char *found;
    } cases[] = {
        {0, 0, ""}, {0xFFFF, 0xFFFF, "C"}, {1, 0, "C"}, {0, 7, "C"}, {7, 7, "C"},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint32_t wrong;
        start();
        (void)message(1, 0, USUAL);
        wrong = session_ack(0, WITH(.user = cases[k].user, .recoverable = cases[k].recoverable));
        (void)session_ack(0, WITH(.user = cases[k].user, .recoverable = cases[k].recoverable)); /* said once */
        CHECK_FOUND(cases[k].found);
        if (found_count != 0) {
            CHECK_SHOWN(0, wrong);
            CHECK_EQ(found[0].flow, 0);
            CHECK_EQ(a.violations[MQQB_AUDIT_COUNT_MISMATCH], 1);
        }
    }
    start();
    (void)session_ack(0, WITH(.user = 5));
    (void)session_ack(0, WITH(.user = 4)); /* may leave out a message or not: the same one */
    (void)session_ack(0, WITH(.user = 5));
    (void)session_ack(0, WITH(.user = 9));
    (void)session_ack(0, USUAL);
    (void)session_ack(0, WITH(.user = 9));
    (void)session_ack(0, WITH(.recoverable = 9));
    (void)session_ack(0, WITH(.recoverable = 5));
    CHECK_FOUND("CCCCC");
}

static void test_a_header_in_a_message(void)
{
    for (uint32_t left_out = 0; left_out < 3; left_out++) {
        start();
        (void)message(1, 0, USUAL);
        (void)message(2, 1, WITH(.header = 1, .user = 0u - left_out, .recoverable = 0u - left_out));
        CHECK_FOUND(left_out < 2 ? "" : "C");
    }
    start();
    (void)message(1, 0, WITH(.header = 1, .recoverable = 0xFFFF)); /* counts itself in one place only */
    CHECK_FOUND("C");
}

static void test_session_acks_beyond_receipt(void)
{
    static const struct {
        what header;
        const char *found;
    } cases[] = {
        {{.ack = 1}, "A"},
        {{.ack = 40000}, "A"},
        {{.ack = 0xFFFF}, ""},
        {{.base = 3, .bits = 1}, "A"},
        {{.base = 2, .bits = 1}, ""},
        {{.base = 1, .bits = 3}, ""},
        {{.base = 2, .bits = 3}, "A"},
        {{.base = 40000, .bits = 1}, "A"},
        {{.base = 9}, ""},
        {{.base = 1, .bits = 0x80000000u}, "A"},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint32_t wrong;
        start();
        (void)message(1, 0, USUAL);
        (void)message(2, 1, USUAL);
        wrong = session_ack(1, cases[k].header);
        (void)session_ack(1, cases[k].header);
        CHECK_FOUND(cases[k].found);
        if (found_count != 0) {
            CHECK_SHOWN(0, wrong);
            CHECK_EQ(found[0].detail, cases[k].header.ack != 0 ? MQQB_AUDIT_SESSION_ACK : MQQB_AUDIT_RECOVERABLE_ACK);
        }
    }
}

/* ---- resends ------------------------------------------------------------------------------------- */

static void test_resent_after_the_order_ack(void)
{
    uint32_t shown, order, proof, again;

    start();
    shown = message(1, 0, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    order = order_ack(1, USUAL);
    proof = session_ack(0, USUAL);
    again = message(1, 0, USUAL);
    CHECK_FOUND("T");
    CHECK_SHOWN(0, shown, order, proof, again);
    CHECK_EQ(found[0].detail, MQQB_AUDIT_RESENT_ORDERED);

    for (uint32_t k = 0; k < 2; k++) { /* on a later connection: a sender that lost its power has lost its marks too */
        start();
        (void)message(1, 0, USUAL);
        (void)session_ack(1, WITH(.base = 1, .bits = 1));
        (void)(k == 0 ? order_ack(1, USUAL) : final_ack(1, USUAL));
        (void)session_ack(0, USUAL);
        opened(1, 0, SENDER);
        (void)message(1, 0, WITH(.connection = 1));
        (void)message(1, 0, WITH(.connection = 1));
        (void)session_ack(1, WITH(.connection = 1, .base = 1, .bits = 3));
        order = order_ack(1, WITH(.connection = 1));
        proof = session_ack(0, WITH(.connection = 1));
        again = message(1, 0, WITH(.connection = 1)); /* acknowledged on this one as well */
        CHECK_FOUND("T");
        CHECK_SHOWN(0, 6, order, proof, again);
    }
}

static void test_proofs_on_several_connections(void)
{
    start_two(); /* the higher OrderAck was shown first */
    (void)message(1, 0, USUAL);
    (void)message(2, 1, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 3));
    (void)order_ack(1, WITH(.connection = 1));
    (void)order_ack(2, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(1, 0, USUAL);
    (void)session_ack(0, WITH(.connection = 1));
    (void)message(2, 1, USUAL);
    CHECK_FOUND("TT");

    start_two(); /* a FinalAck that was shown on another connection, at no time that could be compared */
    (void)message(1, 0, USUAL);
    (void)final_ack(1, WITH(.connection = 1));
    (void)session_ack(0, WITH(.connection = 1));
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");

    start_two(); /* and the same of an OrderAck */
    (void)message(1, 0, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    (void)order_ack(1, WITH(.connection = 1));
    (void)message(0, 0, WITH(.direction = 1));
    (void)session_ack(0, WITH(.connection = 1));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");

    start_two(); /* and of a SessionHeader */
    (void)message(1, 0, WITH(.connection = 1));
    (void)session_ack(1, WITH(.connection = 1, .base = 1, .bits = 1));
    (void)message(0, 0, WITH(.connection = 1, .direction = 1));
    (void)order_ack(1, USUAL);
    (void)session_ack(0, WITH(.connection = 1));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");

    for (uint32_t k = 0; k < 2; k++) { /* a SessionHeader without bits, and an OrderAck that came no one knows when */
        start_two();
        (void)message(1, 0, USUAL);
        (void)session_ack(1, k == 0 ? USUAL : WITH(.base = 1, .bits = 1));
        (void)message(0, 0, WITH(.direction = 1));
        (void)order_ack(1, WITH(.connection = 1));
        (void)session_ack(0, USUAL);
        (void)session_ack(0, WITH(.connection = 1));
        opened(2, 0, SENDER);
        (void)message(1, 0, WITH(.connection = 2));
        CHECK_FOUND("");
    }
}

static void test_resends_that_are_legal(void)
{
    start_two(); /* sent last on another connection */
    (void)message(1, 0, USUAL);
    (void)message(2, 1, WITH(.connection = 1));
    (void)session_ack(1, WITH(.connection = 1, .base = 1, .bits = 1));
    (void)order_ack(2, WITH(.connection = 1));
    (void)session_ack(0, WITH(.connection = 1));
    (void)message(1, 0, WITH(.connection = 1));
    CHECK_FOUND("");

    start(); /* how many SessionHeaders cannot be counted after a hole is said once */
    (void)plain(HOLE, 0, 0);
    (void)session_ack(0, USUAL);
    (void)session_ack(0, USUAL);
    CHECK_FOUND("c");

    for (uint32_t k = 0; k < 8; k++) {
        start_two();
        (void)message(1, 0, USUAL);
        if (k != 0) {
            (void)session_ack(1, k == 6 ? USUAL : WITH(.base = 1, .bits = 1));
        }
        if (k != 1 && k != 6) {
            (void)order_ack(1, USUAL);
        }
        if (k == 2) {
            (void)session_ack(0, WITH(.ack = 0xFFFF)); /* does not cover the OrderAck */
        } else if (k != 3) {
            (void)session_ack(0, USUAL);
        }
        if (k == 5) {
            (void)plain(OLDER, 2, 0);
        }
        if (k == 6) { /* the session acknowledgement does not prove that it was the sender's before the OrderAck */
            (void)order_ack(1, WITH(.connection = 1));
            (void)session_ack(0, WITH(.connection = 1));
        }
        if (k == 7) {
            opened(2, 0, SENDER);
            (void)message(1, 0, WITH(.connection = 2, .flags = 1)); /* one hop on: another queue manager's */
        } else {
            (void)message(1, 0, WITH(.connection = k == 4 ? 1 : k == 5 ? 2 : 0)); /* 4: a connection from before */
        }
        CHECK_FOUND("");
    }
}

static void test_a_forwarder_resends(void)
{
    start();
    (void)message(1, 0, WITH(.flags = 1));
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    (void)order_ack(1, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(1, 0, WITH(.flags = 1)); /* what it has, the source may not have */
    CHECK_FOUND("");

    start();
    (void)message(1, 0, USUAL);
    (void)message(2, 1, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 3));
    (void)order_ack(1, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(2, 1, USUAL); /* the OrderAck was for the one before */
    CHECK_FOUND("");
}

static void test_a_session_ack_without_bits(void)
{
    for (uint32_t k = 0; k < 3; k++) {
        start();
        (void)message(1, 0, USUAL);
        if (k != 1) {
            (void)order_ack(1, USUAL);
        }
        (void)session_ack(1, k == 0 ? WITH(.base = 1, .bits = 1) : USUAL);
        if (k == 1) {
            (void)order_ack(1, USUAL);
        }
        (void)message(0, 0, WITH(.direction = 1));
        (void)session_ack(0, USUAL);
        (void)message(1, 0, USUAL);
        CHECK_FOUND(k < 2 ? "T" : "");
    }
}

/* ---- delivered twice ----------------------------------------------------------------------------- */

static void test_two_final_acks(void)
{
    uint32_t shown, first, second;

    start();
    shown = message(1, 0, USUAL);
    first = final_ack(1, WITH(.own_id = 900));
    (void)final_ack(1, WITH(.own_id = 900)); /* sent again */
    second = final_ack(1, WITH(.own_id = 901));
    (void)final_ack(1, WITH(.own_id = 902)); /* said once */
    (void)final_ack(1, WITH(.own_id = 903, .class = 0x8003));
    CHECK_FOUND("D");
    CHECK_SHOWN(0, shown, first, second);
    CHECK_EQ(counts_of(0).final_acked, 1);

    start(); /* purged, and expired in the queue */
    (void)message(1, 0, USUAL);
    (void)final_ack(1, WITH(.class = 0xC001));
    (void)final_ack(1, WITH(.class = 0xC002));
    CHECK_FOUND("D");

    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1, USUAL);
    (void)final_ack(1, WITH(.class = 0x8003)); /* another copy */
    CHECK_FOUND("");

    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1, WITH(.class = 0x8003)); /* another copy */
    (void)message(1, 0, USUAL);
    (void)final_ack(1, USUAL);
    CHECK_FOUND("");
}

static void test_two_final_acks_without_a_slot(void)
{
    start();
    (void)message(1, 0, WITH(.flags = JN));
    (void)final_ack(1, WITH(.own_id = 900));
    for (uint32_t number = 2; number <= 300; number++) {
        (void)message(number, number - 1, USUAL);
        (void)session_ack(1, USUAL);
        (void)order_ack(number, USUAL);
    }
    (void)final_ack(1, WITH(.own_id = 900));
    (void)final_ack(1, WITH(.own_id = 901));
    CHECK_FOUND("D");
    CHECK_EQ(found[0].packets, 2);
    CHECK_EQ(counts_of(0).final_acked, 1);
}

static void test_order_acks_that_went_back(void)
{
    uint32_t first, back, again, last;

    start();
    for (uint32_t number = 1; number <= 3; number++) {
        (void)message(number, number - 1, USUAL);
    }
    first = order_ack(3, USUAL);
    back = order_ack(1, USUAL);
    again = message(2, 1, USUAL);
    last = order_ack(2, USUAL);
    CHECK_FOUND("D");
    CHECK_SHOWN(0, first, back, again, last);
    CHECK_EQ(found[0].number, 2);
    CHECK_EQ(found[0].a, 3);

    start();
    for (uint32_t number = 1; number <= 4; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(3, USUAL);
    (void)order_ack(1, USUAL);
    (void)order_ack(1, USUAL);
    (void)message(1, 0, USUAL); /* had it still */
    (void)message(3, 2, USUAL); /* number 2 is missing */
    (void)message(4, 0, USUAL); /* was not acknowledged before */
    (void)order_ack(4, USUAL);
    CHECK_FOUND("");

    start();
    for (uint32_t number = 1; number <= 4; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(4, USUAL);
    (void)order_ack(1, USUAL);
    (void)message(3, 1, USUAL); /* number 2 has expired */
    (void)order_ack(2, USUAL);  /* that is not yet it */
    CHECK_FOUND("");

    start();
    for (uint32_t number = 1; number <= 3; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(1, WITH(.own_id = 900));
    (void)order_ack(3, WITH(.own_id = 901));
    (void)order_ack(1, WITH(.own_id = 900)); /* sent again */
    (void)message(2, 1, USUAL);
    (void)order_ack(3, WITH(.own_id = 901));
    CHECK_FOUND("");
}

/* ---- whose acknowledgement it is ----------------------------------------------------------------- */

static void test_who_is_meant_is_not_certain(void)
{
    for (uint32_t k = 0; k < 4; k++) {
        setup();
        if (k == 3) {
            free(a.strays);
            a.strays = NULL;
        }
        (void)plain(BEGIN, 0, 0);
        (void)plain(BEGIN, 1, 0);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.source = k == 0 ? OTHER : SENDER, .ordinal = k == 0 ? 1 : 2, .queue = 2));
        if (k == 3) {
            for (uint32_t source = 10; source < 15; source++) {
                (void)message(1, 0, WITH(.source = source, .ordinal = source));
            }
        }
        /* 0: two may be meant; 1: one is; 2, 3: another connection of these hosts, which does not name its sender. */
        (void)order_ack(1, WITH(.connection = k >= 2));
        (void)order_ack(1, WITH(.ordinal = 77));
        CHECK_FOUND("");
        CHECK_EQ(counts_of(0).order_acked, k == 1 || k == 2);
        CHECK_EQ(stray_count, k == 3 ? 0 : k == 0 ? 2 : 1);
    }
}

static void test_private_queues_of_two_hosts(void)
{
    start();
    (void)message(1, 0, WITH(.host = RECEIVER));
    (void)message(1, 0, WITH(.host = OTHER, .ordinal = 2));
    (void)order_ack(1, WITH(.host = SENDER));
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 2);
    CHECK_EQ(a.flows[0].key.address, RECEIVER);
    CHECK_EQ(counts_of(0).order_acked, 1);
}

static void test_an_id_that_several_queues_share(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)message(1, 0, WITH(.queue = SECOND_QUEUE));
    (void)message(2, 1, WITH(.flags = 1));
    (void)order_ack(1, USUAL);
    finish();
    CHECK_EQ(a.flows_used, 3);
    CHECK_EQ(counts_of(0).order_acked, 1);
    CHECK_EQ(counts_of(1).order_acked, 1);

    start();
    for (uint32_t queue = 1; queue <= 9; queue++) {
        (void)message(1, 0, WITH(.queue = queue));
    }
    (void)order_ack(1, USUAL);
    finish();
    for (uint32_t flow = 0; flow < 9; flow++) {
        CHECK_EQ(counts_of(flow).order_acked, flow < 8); /* so many at most: more is no traffic of queue managers */
    }
}

/* ---- connections that are forgotten -------------------------------------------------------------- */

/* Is a connection referred to? */
static int refers(uint32_t connection)
{
    uint32_t wishes[CONNECTIONS];
    int answer;

    give();
    for (uint32_t k = 0; k < CONNECTIONS; k++) {
        wishes[k] = MQQB_CAPTURE_FORGET;
    }
    mqqb_audit_referred(&a, a.connections_size, wishes);
    answer = wishes[connection] == MQQB_CAPTURE_KEEP;
    for (uint32_t k = a.connections_size; k < CONNECTIONS; k++) {
        CHECK_EQ(wishes[k], MQQB_CAPTURE_FORGET);
    }
    return answer;
}

/* Each connection is that of one reference alone. */
static void test_which_connections_are_referred_to(void)
{
    uint32_t numbers[10];

    spreading = 0;
    start();
    for (uint32_t k = 1; k < 10; k++) {
        (void)plain(BEGIN, k, 0);
    }
    (void)message(1, 0, WITH(.connection = 1));
    (void)message(2, 1, WITH(.connection = 2));
    (void)message(2, 1, WITH(.connection = 3));
    CHECK(!refers(4));
    (void)order_ack(1, WITH(.connection = 4)); /* one that waits, the last one, and one that was shown */
    CHECK(refers(4));
    (void)order_ack(2, WITH(.connection = 5));
    (void)session_ack(0, WITH(.connection = 4));
    (void)final_ack(1, WITH(.connection = 6));
    CHECK(refers(1)); /* where it was seen first, last, and whose messages have a slot */
    CHECK(!refers(2));
    for (uint32_t k = 3; k < 7; k++) {
        CHECK(refers(k));
    }
    CHECK(!refers(7) && !refers(8));
    opened(8, 0, SENDER);
    CHECK(!refers(7) && !refers(8) && !refers(9));
    a.sequences[0].shown.where = 2 * 7 + 1;
    a.sequences[0].reported_where = 2 * 7; /* where something was reported already */
    a.sequences[0].first_where = 2 * 9;
    CHECK(refers(7) && refers(9));
    for (uint32_t k = 0; k < 10; k++) {
        numbers[k] = k == 2 ? UINT32_MAX : k - (k > 2);
    }
    mqqb_audit_renumber(&a, 10, numbers);
    CHECK_EQ(a.sequences[0].reported_where, 2 * 6);
    CHECK_EQ(a.sequences[0].first_where, 2 * 8);
    CHECK_EQ(a.sequences[0].where, 2 * 2);
    CHECK_EQ(a.sequences[0].ack_where, 2 * 4 + 1);
    CHECK_EQ(a.sequences[0].shown.where, 2 * 6 + 1);
    CHECK_EQ(a.sources[SENDER].newest[0], 7 + 1);
    CHECK_EQ(a.sources[RECEIVER].newest[0], 0);
    CHECK_EQ(a.flows[0].last_connection, 2);
}

/* One that shows that the sender has left the connection of a sequence is kept; others of the same sender are passed over. */
static void test_a_connection_that_was_left_and_others_forgotten(void)
{
    uint32_t numbers[7];

    spreading = 0;
    start();
    (void)message(1, 0, USUAL);
    for (uint32_t k = 1; k < 6; k++) {
        pair_of[k] = k == 5 ? 2 : 0; /* the last one is to another host */
        opened(k, 0, SENDER);
    }
    row(EST, 5, 1);
    K(SERVER_GUID) = OTHER;
    rows++;
    give();
    a.connections[5].direction[1].owner = OTHER;
    CHECK(refers(0) && refers(4));
    CHECK(!refers(1) && !refers(2) && !refers(3) && !refers(5));
    for (uint32_t k = 0; k < 6; k++) {
        numbers[k] = k == 0 ? 0 : k == 4 ? 1 : UINT32_MAX;
    }
    mqqb_audit_renumber(&a, 6, numbers);
    CHECK_EQ(a.sources[SENDER].newest[0], 1 + 1);
    CHECK_EQ(a.connections[1].before[0], 0 + 1);
    CHECK_EQ(a.connections[0].before[0], 0);
    (void)order_ack(4, WITH(.connection = 1));
    CHECK_FOUND("a");
}

/* So many that the index must tell apart ids of which one part or another is the same. */
static void test_ids_that_share_a_part(void)
{
    start();
    for (uint32_t k = 1; k <= 1500; k++) {
        (void)message(1, 0, WITH(.source = 10 + k, .ordinal = 1, .stamp = FIRST, .id = k));
        (void)message(1, 0, WITH(.source = 9, .ordinal = 1, .stamp = FIRST + k, .id = k));
        (void)message(1, 0, WITH(.source = 8, .ordinal = k, .stamp = FIRST, .id = k));
    }
    for (uint32_t k = 1; k <= 1500; k++) {
        (void)order_ack(1, WITH(.host = 10 + k, .ordinal = 1, .stamp = FIRST));
    }
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 1502);
    CHECK_EQ(stray_count, 0);
    for (uint32_t flow = 0; flow < a.flows_used; flow++) {
        CHECK_EQ(counts_of_one(flow), a.flows[flow].key.source > 10);
    }
}

static void test_more_classes_than_have_a_place(void)
{
    start();
    for (uint32_t number = 1; number <= MQQB_AUDIT_CLASSES + 2; number++) {
        (void)message(number, number - 1, USUAL);
        (void)final_ack(number, WITH(.class = 0x8000 + number));
    }
    CHECK_FOUND("");
    CHECK_EQ(a.flows[0].class_rest, 2);
    CHECK_EQ(a.flows[0].class_counts[MQQB_AUDIT_CLASSES - 1], 1);
}

static void test_many_order_acks_wait(void)
{
    start();
    for (uint32_t number = 1; number <= 20; number++) {
        (void)message(number, number - 1, USUAL);
        (void)session_ack(1, WITH(.base = number, .bits = 1));
        (void)order_ack(number, USUAL);
        if (number == 12) {
            (void)session_ack(0, USUAL);
        }
    }
    (void)message(8, 7, USUAL);
    (void)session_ack(0, USUAL);
    CHECK_FOUND("T");

    start(); /* those that wait for ever take no place from those of the next connection */
    for (uint32_t number = 1; number <= 6; number++) {
        (void)message(number, number - 1, USUAL);
        (void)order_ack(number, USUAL);
    }
    opened(1, 0, SENDER);
    for (uint32_t number = 7; number <= 10; number++) {
        (void)message(number, number - 1, WITH(.connection = 1));
        (void)session_ack(1, WITH(.connection = 1, .base = number - 6, .bits = 1));
        (void)order_ack(number, WITH(.connection = 1));
    }
    (void)session_ack(0, WITH(.connection = 1, .ack = 0xFFFD)); /* for the first of these four */
    (void)message(7, 6, WITH(.connection = 1));
    CHECK_FOUND("T");
}

static void test_late_final_acks_of_two_sequences(void)
{
    uint32_t waiting;

    start();
    for (uint32_t ordinal = 1; ordinal <= 90; ordinal++) { /* those that wait keep their slots for long */
        (void)message(1, 0, WITH(.ordinal = ordinal, .flags = ordinal <= 80 ? JN : 0));
        (void)order_ack(1, WITH(.ordinal = ordinal));
    }
    give();
    waiting = a.flows[0].outcomes[MQQB_AUDIT_WAITING];
    CHECK(waiting > 0);
    (void)final_ack(1, WITH(.ordinal = 85)); /* has lost its slot, and was only stored */
    (void)final_ack(1, WITH(.ordinal = 89));
    give();
    CHECK_EQ(a.flows[0].outcomes[MQQB_AUDIT_RECEIVED], 2);
    CHECK_EQ(a.flows[0].outcomes[MQQB_AUDIT_WAITING], waiting);
    CHECK_FOUND("");
    CHECK_OUTCOMES(&a.flows[0], 2, 8, 80, 0, 0);
}

static void test_final_acks_without_a_slot_or_a_place(void)
{
    start();
    for (uint32_t number = 1; number <= 2000; number++) {
        (void)message(number, number - 1, USUAL);
        (void)session_ack(1, USUAL);
    }
    (void)final_ack(3, USUAL); /* no OrderAck yet: neither stored nor waiting */
    (void)final_ack(3, WITH(.class = 0x8003));
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).final_acked, 2);
    CHECK_EQ(a.flows[0].outcomes[MQQB_AUDIT_RECEIVED], 0);
}

static void test_an_answer_after_the_deadline(void)
{
    start();
    for (uint32_t number = 1; number <= 4; number++) {
        (void)message(number, number - 1, WITH(.flags = number < 4 ? JN : 0, .ttbr = number == 3 ? 0 : 5));
    }
    (void)order_ack(4, USUAL);
    now += 20 * SECOND;
    for (uint32_t number = 1; number <= 4; number++) {
        (void)final_ack(number, WITH(.class = number == 2 ? 0xC002 : 0x4000));
    }
    CHECK_FOUND("");
    CHECK_OUTCOMES(&a.flows[0], 2, 0, 0, 0, 2);
    CHECK_EQ(counts_of(0).unsettled, 0);
}

static void test_a_sequence_without_slots(void)
{
    start_two();
    (void)message(1, 0, USUAL);
    (void)message(4, 3, WITH(.connection = 1));
    (void)plain(HOLE, 0, 0);
    (void)message(8, 7, WITH(.old = 1));   /* relies on what may have been in the hole */
    (void)message(12, 11, WITH(.old = 1)); /* and this on what was not there */
    for (uint32_t number = 4; number <= 12; number += 4) {
        (void)final_ack(number, WITH(.class = 0x8003));
    }
    (void)final_ack(1, WITH(.class = 0x8003));
    for (uint32_t ordinal = 2; ordinal <= 8; ordinal++) {
        (void)message(1, 0, WITH(.ordinal = ordinal, .old = 1));
    }
    (void)order_ack(8, USUAL);
    (void)order_ack(12, USUAL);
    CHECK_FOUND("s");
    CHECK_EQ(found[0].number, 12);
    CHECK_EQ(found[0].packets, 1);
}

static void test_resent_after_the_final_ack(void)
{
    uint32_t shown, final, proof, again;

    start();
    shown = message(1, 0, USUAL);
    final = final_ack(1, WITH(.class = 0xC001));
    proof = session_ack(0, USUAL);
    again = message(1, 0, USUAL);
    CHECK_FOUND("T");
    CHECK_SHOWN(0, shown, final, proof, again);
    CHECK_EQ(found[0].a, 0xC001);
    CHECK_EQ(found[0].packet[1].time - found[0].packet[0].time, MS);

    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1, USUAL);
    (void)message(1, 0, USUAL); /* crossed */
    CHECK_FOUND("");
}

static void test_messages_without_a_slot(void)
{
    start();
    for (uint32_t number = 1; number <= 3000; number++) {
        (void)message(number, number - 1, WITH(.flags = number % 2 != 0 ? JN : 0));
        if (number % 30 == 0) {
            (void)order_ack(number, USUAL);
            (void)session_ack(1, USUAL);
        }
    }
    (void)message(5, 4, USUAL); /* has lost its slot: that is still a resend */
    (void)final_ack(7, WITH(.class = 0xC001));
    for (uint32_t number = 9; number < 3000; number += 2) {
        (void)final_ack(number, USUAL);
    }
    (void)final_ack(10, USUAL);
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).messages, 3000);
    CHECK_EQ(counts_of(0).resends, 1);
    CHECK_EQ(counts_of(0).order_acked, 3000);
    CHECK_EQ(counts_of(0).final_acked, 1 + 1496 + 1);
    CHECK_EQ(a.flows[0].outcomes[MQQB_AUDIT_RECEIVED], 1496 + 1);
    CHECK_EQ(a.flows[0].class_counts[0], 1);
}

/* Resends of which the proof cannot be counted, and those that a later SessionHeader covers. */
static void test_resends_and_holes(void)
{
    for (uint32_t side = 0; side < 2; side++) {
        start();
        (void)plain(HOLE, 0, side);
        (void)message(1, 0, USUAL);
        (void)session_ack(1, WITH(.base = 1, .bits = 1));
        (void)order_ack(1, USUAL);
        if (side == 1) {
            (void)final_ack(1, USUAL);
        }
        (void)session_ack(0, USUAL);
        (void)message(1, 0, USUAL);
        CHECK_FOUND("c");
    }

    start();
    (void)message(1, 0, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    (void)message(2, 1, USUAL);
    (void)order_ack(2, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(2, 1, USUAL); /* no SessionHeader covers it */
    (void)session_ack(1, WITH(.base = 2, .bits = 3));
    (void)message(2, 1, USUAL); /* nothing shows that its sender has that one */
    (void)session_ack(1, WITH(.base = 2, .bits = 7));
    (void)order_ack(2, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(2, 1, USUAL);
    CHECK_FOUND("T");
}

/* A direction has more sources than are remembered: a hole is one of these hosts. */
static void test_many_sources(void)
{
    start();
    for (uint32_t source = SENDER; source < SENDER + 6; source++) {
        (void)message(1, 0, WITH(.source = source, .flags = 1));
    }
    (void)order_ack(2, WITH(.host = SENDER + 5));
    now += 2 * SECOND;
    (void)plain(HOLE, 0, 0);
    (void)order_ack(3, WITH(.host = SENDER + 5));
    CHECK_FOUND("A!!!!a");
}

static void all(void)
{
    RUN("mqqb_audit.h", test_messages_without_a_slot);
    RUN("B-244", test_resent_after_the_final_ack);
    RUN("B-270", test_a_sequence_without_slots);
    RUN("C-23 C-34 C-35", test_an_answer_after_the_deadline);
    RUN("mqqb_audit.h", test_final_acks_without_a_slot_or_a_place);
    RUN("C-25", test_late_final_acks_of_two_sequences);
    RUN("B-236", test_many_order_acks_wait);
    RUN("C-26", test_more_classes_than_have_a_place);
    RUN("mqqb_audit.h", test_ids_that_share_a_part);
    RUN("B-007 B-008 B-230", test_a_clean_stream);
    RUN("C-25 C-26 C-27 C-40", test_outcomes);
    RUN("C-11 C-12 C-13 C-14 C-20 C-22 C-23", test_deadlines);
    RUN("B-270", test_the_receivers_rule);
    RUN("mqqb_audit.h", test_tables_grow);
    RUN("mqqb_audit.h", test_what_is_folded_hides_no_others);
    RUN("B-116", test_what_is_asked_for_keeps_its_slot);
    RUN("mqqb_audit.h", test_numbers_far_from_those_with_slots);
    RUN("mqqb_audit.h", test_a_new_index_without_what_is_folded);
    RUN("mqqb_audit.h", test_slots_go_down_and_jump);
    RUN("mqqb_audit.h", test_connections_that_are_passed_over);
    RUN("A-08 B-309 B-317 B-318", test_renumbered);
    RUN("A-08", test_a_renumbered_message_has_no_other_verdicts);
    RUN("B-078 B-093", test_id_went_back);
    RUN("B-012 B-093 B-236", test_a_lower_sequence_on_an_older_connection);
    RUN("B-110 B-230", test_ack_beyond_receipt);
    RUN("B-079 B-110 B-241", test_an_ack_of_a_sequence_that_was_not_sent);
    RUN("B-079 B-361", test_an_ack_of_a_sequence_that_may_have_been_sent);
    RUN("B-110 B-270", test_a_connection_whose_end_was_not_seen);
    RUN("mqqb_audit.h", test_an_ack_of_a_sequence_that_is_not_kept);
    RUN("B-110", test_a_number_that_was_left_out);
    RUN("B-241", test_a_final_ack_for_another_message);
    RUN("B-110 B-270 B-337", test_skipped);
    RUN("B-270", test_out_of_order);
    RUN("B-110", test_sure_again_after_a_hole);
    RUN("B-110", test_a_clock_that_is_ahead);
    RUN("B-096", test_a_new_sequence_is_seen_from_its_beginning);
    RUN("B-229", test_another_establish_connection_begins_other_counts);
    RUN("B-204 B-208", test_an_older_connection_does_not_say_who_opened_it);
    RUN("B-110", test_a_hole_makes_unsure);
    RUN("B-110", test_another_pair_of_hosts);
    RUN("mqqb_audit.h", test_an_interrupted_capture);
    RUN("B-236 B-244", test_resends_and_holes);
    RUN("mqqb_audit.h", test_many_sources);
    RUN("mqqb_audit.h", test_what_comes_late_withdraws);
    RUN("B-104 B-105 B-227", test_count_mismatch);
    RUN("OP-14", test_a_header_in_a_message);
    RUN("B-101 B-102 B-103 B-229", test_session_acks_beyond_receipt);
    RUN("B-235 B-236", test_resent_after_the_order_ack);
    RUN("B-236 B-244", test_proofs_on_several_connections);
    RUN("B-236", test_resends_that_are_legal);
    RUN("B-012", test_a_forwarder_resends);
    RUN("B-224 B-236", test_a_session_ack_without_bits);
    RUN("B-116", test_two_final_acks);
    RUN("B-116", test_two_final_acks_without_a_slot);
    RUN("A-01 B-271", test_order_acks_that_went_back);
    RUN("B-079 A-21", test_who_is_meant_is_not_certain);
    RUN("wire.md 1.5", test_private_queues_of_two_hosts);
    RUN("B-079", test_an_id_that_several_queues_share);
}

int main(int argc, char **argv)
{
    seed_random(argc, argv, 20261121);
    for (spreading = 0; spreading < 25; spreading++) {
        all();
    }
    RUN("mqqb_audit.h", test_which_connections_are_referred_to);
    RUN("mqqb_audit.h", test_a_connection_that_was_left_and_others_forgotten);
    setup();
    return summary("test_audit");
}
