/* audit.h: rows made by hand, the audit that takes them with tables as small as they may be, and the letters of its findings. */
#ifndef AUDIT_H
#define AUDIT_H

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

static inline void *larger(void *table, size_t item, uint32_t before, uint32_t after)
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

static inline void reindex(void)
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

static inline void take(void)
{
    CHECK(found_count + a.findings_used <= FOUND_MAX);
    for (uint32_t k = 0; k < a.findings_used && found_count < FOUND_MAX; k++) {
        found[found_count++] = a.findings[k];
    }
    stray_count += a.strays_used;
    a.findings_used = 0;
    a.strays_used = 0;
}

static inline void grow_connections(uint32_t by)
{
    const uint32_t before = a.connections_size;

    LARGER(connections, by);
    for (uint32_t k = before; k < a.connections_size; k++) {
        a.connections[k].pair = pair_of[k];
    }
}

static inline void give(void)
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

static inline void setup(void)
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
}

static inline void finish(void)
{
    give();
    mqqb_audit_finish(&a);
    take();
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static inline void row(uint32_t kind, uint32_t connection, uint32_t direction)
{
    if (rows == ROWS) {
        give();
    }
    for (uint32_t k = 0; k < MQQB_CAPTURE_COLUMNS; k++) {
        column[k][rows] = 0;
    }
    now += MS;
    times[rows] = now;
    S(KIND) = kind;
    K(CONNECTION) = connection;
    K(DIRECTION) = direction;
    K(FRAME) = ++frame;
}

/* A row that says no more than this; the frame. */
static inline uint32_t plain(uint32_t kind, uint32_t connection, uint32_t direction)
{
    row(kind, connection, direction);
    rows++;
    return frame;
}

/* client: who opened it, as its EstablishConnection says; 0: that was not captured. */
static inline void opened(uint32_t connection, uint32_t direction, uint32_t client)
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

static inline void put_header(const what *w, uint32_t carried)
{
    const uint32_t c = w->connection, side = w->direction;

    S(SESSION_OFFSET) = 20;
    S(ACK_SEQUENCE_NUMBER) = (sent[c][1 - side].messages + w->ack) & 0xFFFF;
    S(RECOVERABLE_MSG_ACK_SEQ_NUMBER) = w->base;
    S(RECOVERABLE_MSG_ACK_FLAGS) = w->bits;
    S(USER_MSG_SEQUENCE_NUMBER) = (sent[c][side].messages + carried + w->user) & 0xFFFF;
    S(RECOVERABLE_MSG_SEQUENCE_NUMBER) = (sent[c][side].recoverable + carried + w->recoverable) & 0xFFFF;
}

static inline uint32_t message(uint32_t number, uint32_t previous, what w)
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

static inline uint32_t acknowledge(uint32_t kind, uint32_t number, const what *w)
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

static inline uint32_t order_ack(uint32_t number, what w)
{
    return acknowledge(ORDER, number, &w);
}

static inline uint32_t final_ack(uint32_t number, what w)
{
    return acknowledge(FINAL, number, &w);
}

static inline uint32_t session_ack(uint32_t direction, what w)
{
    w.direction = direction;
    row(SACK, w.connection, direction);
    put_header(&w, 0);
    rows++;
    return frame;
}

/* One connection of the sender's to the receiver. */
static inline void start(void)
{
    setup();
    opened(0, 0, SENDER);
}

/* A second one, of the same two hosts. */
static inline void start_two(void)
{
    start();
    opened(1, 0, SENDER);
}

/* ---- verdicts ------------------------------------------------------------------------------------ */

/* A letter for each finding: in the order of mqqb_audit_kind, small if it is not known; ! for what is withdrawn. */
static inline const char *letters(void)
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

/* How many FinalAcks of a class ended messages of a flow. */
static inline uint32_t finals_of(uint32_t flow, uint32_t message_class)
{
    for (uint32_t k = 0; k < MQQB_AUDIT_CLASSES; k++) {
        if (a.flows[flow].classes[k] == message_class) {
            return a.flows[flow].class_counts[k];
        }
    }
    return 0;
}

/* Sums over what is kept of a flow and what is not. */
static inline mqqb_audit_counts counts_of(uint32_t flow)
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
static inline uint32_t counts_of_one(uint32_t flow)
{
    const uint32_t newest = a.flows[flow].newest - 1;

    return a.flows[flow].sequences == 1 ? a.sequences[newest].counts.order_acked : 0;
}

#endif
