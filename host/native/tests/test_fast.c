/* test_fast.c: the fast path takes the common packets, and leaves every other one and its state untouched. */
#include "check.h"
#include "mqqb_fast.h"
#include "packets.h"

#define PACKET 512
#define WALL 1600000000
#define QUEUE 77
#define ORDER_ACK 156 /* bytes, the shortest that is accepted */

static uint8_t session_ack[36], order_ack[ORDER_ACK], out[MQQB_FAST_OUT_MIN], data[80 * PACKET];
static mqqb_fast *fast;
static mqqb_session session;
static mqqb_incoming record;
static int32_t slot, stream;

static message numbered(uint32_t n, const char *name)
{
    message m = {0};

    m.user_flags = DQ_DIRECT | DM_RECOVERABLE | TH;
    m.name = name;
    m.message_id = 700 + n;
    m.tx_ordinal = 3;
    m.tx_time_stamp = 9;
    m.tx_number = n;
    m.tx_previous = n - 1;
    m.body = (const uint8_t *)"0123456789";
    m.body_size = n % 10;
    return m;
}

static size_t put(uint8_t *to, uint32_t n, unsigned flags)
{
    message m = numbered(n, "TCP:10.0.0.1\\private$\\readings");

    m.base_flags = flags;
    memset(to, 0, PACKET);
    return put_message(to, &m, NULL);
}

static size_t put_many(uint32_t first, uint32_t count)
{
    size_t size = 0;

    while (count-- > 0) {
        size += put(data + size, first++, 0);
    }
    return size;
}

/* Write a SessionHeader: what the peer has heard and sent. */
static void put_header(uint8_t *to, uint32_t acked, uint32_t sent, uint32_t window)
{
    memset(to, 0, 16);
    le(to, acked, 2);
    le(to + 8, sent, 2);
    le(to + 10, sent, 2);
    le(to + 12, window, 2);
}

static size_t put_ack(uint8_t *to, uint32_t acked, uint32_t sent)
{
    const size_t size = put_internal(to, 1);

    put_header(to + 20, acked, sent, 64);
    return size;
}

static int32_t learn(uint32_t lifetime, mqqb_incoming *in, int64_t queue)
{
    const size_t size = put(data, 1, 0);

    return mqqb_fast_learn(fast, slot, data, size, in, queue, lifetime, order_ack, sizeof order_ack);
}

static void begin(void)
{
    const mqqb_incoming first = {3, 9, 1, 0};

    put_internal(session_ack, 1);
    memset(order_ack, 0x0A, sizeof order_ack);
    mqqb_session_init(&session, 64);
    record = first;
    fast = mqqb_fast_new(session_ack);
    slot = mqqb_fast_open(fast, 5, &session);
    stream = learn(MQQB_FAST_FOREVER, &record, QUEUE);
    CHECK_EQ(stream / (int)MQQB_FAST_STREAMS, slot);
    mqqb_fast_continue(fast, slot, 0);
}

static uint32_t take(size_t size)
{
    return mqqb_fast_take(fast, slot, data, (uint32_t)size, WALL);
}

static void go_on(void)
{
    mqqb_fast_continue(fast, slot, 0);
}

/* The full path is to decide: nothing is taken, and nothing has changed. */
static void check_left(size_t size)
{
    const mqqb_session before = session;
    const mqqb_incoming in = record;
    const uint32_t pending = mqqb_fast_pending(fast);

    go_on();
    CHECK_EQ(take(size), 0);
    CHECK_BYTES(&before, &session, sizeof session);
    CHECK_BYTES(&in, &record, sizeof record);
    CHECK_EQ(mqqb_fast_pending(fast), pending);
    go_on();
}

static void test_takes_a_run_and_acknowledges_it(void)
{
    mqqb_fast_run rows;
    mqqb_fast_news news;
    int32_t moved[4], id = -1;
    size_t size, i, at = 0;

    begin();
    size = put_many(2, 40);
    CHECK_EQ(take(size), size);
    CHECK_EQ(record.tx_sequence_number, 41);
    CHECK_EQ(session.message_received_count, 40);
    CHECK_EQ(mqqb_fast_pending(fast), 40);
    CHECK(mqqb_fast_rows(fast, 0, &rows));
    CHECK(!mqqb_fast_rows(fast, 1, &rows));
    CHECK_EQ(rows.queue, QUEUE);
    CHECK_EQ(rows.size, size);
    CHECK_EQ(rows.count, 40);
    CHECK_BYTES(rows.packets, data, size);
    for (i = 0; i < 40; i++) {
        CHECK_EQ(rows.sizes[i], get(data + at + 8, 4));
        CHECK_EQ(rows.streams[i], stream);
        at += rows.sizes[i];
    }
    CHECK_EQ(mqqb_fast_moved(fast, moved, 4), 1);
    CHECK_EQ(moved[0], stream);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 0);
    mqqb_fast_commit(fast, WALL, 1000);
    CHECK_EQ(mqqb_fast_pending(fast), 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 0, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out - 1), 0);
    size = mqqb_fast_next_ack(fast, 1, &id, out, sizeof out);
    CHECK_EQ(id, 5);
    CHECK_EQ(size, 36 + ORDER_ACK); /* the bits are full after 32 (B-123); their SessionAck need not leave (B-107) */
    CHECK_EQ(get(out + 20, 2), 40);
    CHECK_EQ(get(out + 22, 2), 33);
    CHECK_EQ(get(out + 24, 4), 0xFF);
    CHECK_EQ(get(out + 28, 2), 0); /* the OrderAck, which follows, is not counted yet */
    CHECK_EQ(get(out + 36 + 52, 4), WALL);
    CHECK_EQ(get(out + 36 + 56, 4), 1000);
    CHECK_EQ(get(out + 36 + ORDER_ACK - 36, 4), 3);
    CHECK_EQ(get(out + 36 + ORDER_ACK - 32, 4), 9);
    CHECK_EQ(get(out + 36 + ORDER_ACK - 28, 4), 41);
    CHECK_EQ(get(out + 36 + ORDER_ACK - 24, 4), 40);
    CHECK_EQ(out[36], 0x0A);
    CHECK_EQ(session.message_sent_count, 1);
    CHECK_EQ(session.recoverable_message_sent_count, 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 0, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 1);
    CHECK_EQ(news.slot, slot);
    CHECK_EQ(news.bytes, at);
    CHECK_EQ(news.messages, 40);
    CHECK_EQ(news.order_acks, 1);
    CHECK_EQ(news.sent, 36 + ORDER_ACK);
    CHECK_EQ(news.flags, MQQB_FAST_CAME | MQQB_FAST_ACKED);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 0);
    size = put_many(42, 1);
    CHECK_EQ(take(size), size);
    CHECK_EQ(mqqb_fast_moved(fast, moved, 4), 1);
    mqqb_fast_free(fast);
}

static void test_leaves_what_is_not_next(void)
{
    size_t size, first;

    begin();
    check_left(put_many(1, 1)); /* again */
    check_left(put_many(4, 1)); /* a gap */
    size = put_many(2, 1);
    record.reject_count = 1;
    check_left(size);
    record.reject_count = 0;
    data[1] = 7; /* BaseHeader.Reserved may be anything */
    data[6] ^= 1;
    check_left(size);
    data[6] ^= 1;
    check_left(size - 1);
    first = put_many(2, 1);
    size = first + put(data + first, 4, 0);
    CHECK_EQ(take(size), first);
    put_many(3, 1);
    CHECK_EQ(take(put_many(3, 1)), 0); /* blocked: the order is kept */
    CHECK_EQ(record.tx_sequence_number, 2);
    go_on();
    CHECK_EQ(take(put_many(3, 1)), put_many(3, 1));
    mqqb_fast_forget(fast, stream);
    check_left(put_many(4, 1));
    mqqb_fast_free(fast);
}

static void test_late_messages_are_left(void)
{
    size_t size;

    begin();
    mqqb_fast_forget(fast, -1);
    check_left(put_many(2, 1));
    stream = learn(10, &record, QUEUE);
    size = put_many(2, 2);
    le(data + 52, WALL - 10, 4);
    le(data + get(data + 8, 4) + 52, WALL - 11, 4);
    CHECK_EQ(take(size), get(data + 8, 4));
    size = put_many(3, 1);
    le(data + 52, WALL + 10, 4); /* a clock ahead of ours */
    go_on();
    CHECK_EQ(take(size), size);
    mqqb_fast_free(fast);
}

static void test_session_headers(void)
{
    mqqb_fast_news news;
    mqqb_fast_run rows;
    size_t size;

    begin();
    mqqb_session_sent(&session, 0);
    size = put_ack(data, 1, 0);
    CHECK_EQ(take(size), 36);
    CHECK_EQ(session.peer_acked_message_count, 1);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 1);
    CHECK_EQ(news.flags, MQQB_FAST_HEARD);
    put_ack(data, 2, 0);
    check_left(36); /* acknowledges too much */
    put_ack(data, 1, 1);
    check_left(36); /* counts too much */
    put_ack(data, 1, 0);
    le(data + 32, 63, 2);
    check_left(36); /* another window */
    put_ack(data, 1, 0);
    data[2] &= 0xEF;
    check_left(36);
    put_ack(data, 1, 0);
    data[18] = 3;
    check_left(36);
    put_internal(data, 3);
    check_left(32);
    memset(data, 0, 40);
    put_ack(data, 1, 0);
    data[8] = 40;
    check_left(40);
    put_ack(data, 1, 0);
    mqqb_fast_hold(fast, slot);
    CHECK_EQ(take(36), 0);
    mqqb_fast_continue(fast, slot, 1);
    CHECK_EQ(take(36), 0);
    session.window_size = 1;
    mqqb_session_sent(&session, 0);
    check_left(36); /* the full path may have something to send now */
    session.window_size = 64;
    size = put(data, 2, 0x10);
    put_header(data + size - 16, 2, 3, 64);
    check_left(size);
    put_header(data + size - 16, 2, 1, 64);
    CHECK_EQ(take(size), size);
    CHECK_EQ(session.message_received_count, 1);
    CHECK_EQ(session.recoverable_message_received_count, 1);
    CHECK_EQ(session.peer_acked_message_count, 2);
    CHECK(mqqb_fast_rows(fast, 0, &rows));
    CHECK_EQ(rows.size, size - 16);
    CHECK_EQ(rows.packets[2], 0);
    CHECK_BYTES(rows.packets + 3, data + 3, size - 19);
    size = put(data, 4, 0x10);
    put_header(data + size - 16, 2, 2, 64);
    check_left(size);
    mqqb_fast_free(fast);
}

static void test_undo_sets_the_streams_back(void)
{
    mqqb_fast_run rows;
    message other;
    int32_t id;
    size_t size;

    begin();
    other = numbered(1, "TCP:10.0.0.1\\private$\\readings");
    other.label = "two templates, one record";
    memset(data, 0, PACKET);
    size = put_message(data, &other, NULL);
    CHECK(mqqb_fast_learn(fast, slot, data, size, &record, QUEUE, MQQB_FAST_FOREVER, order_ack, ORDER_ACK) >= 0);
    CHECK(take(put_many(2, 1)) > 0);
    other.tx_number = 3;
    other.tx_previous = 2;
    memset(data, 0, PACKET);
    CHECK(take(put_message(data, &other, NULL)) > 0);
    CHECK_EQ(record.tx_sequence_number, 3);
    CHECK(mqqb_fast_rows(fast, 0, &rows));
    CHECK_EQ(rows.streams[0], stream);
    CHECK_EQ(rows.streams[1], stream + 1);
    mqqb_fast_undo(fast);
    CHECK_EQ(record.tx_sequence_number, 1);
    CHECK_EQ(mqqb_fast_pending(fast), 0);
    CHECK(mqqb_fast_rows(fast, 0, &rows));
    CHECK_EQ(rows.count, 0);
    CHECK_EQ(rows.size, 0);
    CHECK_EQ(mqqb_fast_moved(fast, &id, 1), 0);
    mqqb_session_stored(&session, 1); /* the full path has decided about these two */
    mqqb_session_stored(&session, 1);
    CHECK(take(put_many(2, 1)) > 0);
    memset(data, 0, PACKET);
    CHECK(take(put_message(data, &other, NULL)) > 0);
    mqqb_fast_commit(fast, WALL, 1);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 36 + ORDER_ACK); /* one OrderAck for both */
    mqqb_fast_free(fast);
}

static void test_a_stream_is_followed_into_its_next_sequence(void)
{
    message first = numbered(1, "TCP:10.0.0.1\\private$\\readings");
    int32_t id;
    size_t size;

    begin();
    CHECK(take(put_many(2, 1)) > 0);
    first.tx_ordinal = 4;
    memset(data, 0, PACKET);
    size = put_message(data, &first, NULL);
    CHECK_EQ(take(size), size);
    CHECK_EQ(record.tx_sequence_ordinal, 4);
    CHECK_EQ(record.tx_sequence_number, 1);
    CHECK_EQ(mqqb_fast_learn(fast, slot, data, size, &record, QUEUE, MQQB_FAST_FOREVER, order_ack, ORDER_ACK), stream);
    check_left(put_many(3, 1)); /* of the sequence before */
    first.tx_ordinal = 5;
    first.tx_number = 2;
    first.tx_previous = 1;
    check_left(put_message(data, &first, NULL)); /* not the first of its sequence */
    mqqb_fast_commit(fast, WALL, 1);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 36 + ORDER_ACK);
    CHECK_EQ(get(out + 36 + ORDER_ACK - 36, 4), 4);
    CHECK_EQ(get(out + 36 + ORDER_ACK - 28, 4), 1);
    mqqb_fast_free(fast);
}

static void test_an_order_ack_that_cannot_be_sent_is_owed(void)
{
    mqqb_fast_news news;
    int32_t id;

    begin();
    CHECK(take(put_many(2, 1)) > 0);
    session.received_window_size = 1;
    mqqb_session_sent(&session, 0);
    mqqb_fast_commit(fast, WALL, 1);
    CHECK_EQ(take(put_many(3, 1)), 0); /* not before the acknowledgements */
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 36);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 0, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 1);
    CHECK_EQ(news.flags, MQQB_FAST_CAME | MQQB_FAST_ACKED | MQQB_FAST_OWED);
    session.received_window_size = 64;
    go_on();
    CHECK(take(put_many(3, 1)) > 0);
    mqqb_fast_forget(fast, stream);
    mqqb_fast_defer(fast, slot);
    mqqb_fast_commit(fast, WALL, 1);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 0, &id, out, sizeof out), 36);
    CHECK_EQ(id, slot);
    CHECK_EQ(mqqb_fast_next_ack(fast, 0, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 1);
    CHECK_EQ(news.flags, MQQB_FAST_CAME | MQQB_FAST_ACKED | MQQB_FAST_OWED);
    mqqb_fast_free(fast);
}

static void test_slots_come_and_go(void)
{
    mqqb_fast_news news;
    mqqb_session another;
    int32_t id, second;
    size_t i;

    begin();
    CHECK_EQ(mqqb_fast_slot(fast, 5), slot);
    CHECK_EQ(mqqb_fast_slot(fast, 4), -1);
    CHECK_EQ(mqqb_fast_slot(fast, 6), -1);
    CHECK_EQ(mqqb_fast_slot(fast, -1), -1);
    CHECK(take(put_many(2, 1)) > 0);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 1);
    mqqb_fast_disown(fast, 5);
    mqqb_fast_disown(fast, 5);
    CHECK_EQ(mqqb_fast_slot(fast, 5), -1);
    second = mqqb_fast_open(fast, 5, &another); /* before the first one is closed */
    CHECK_EQ(mqqb_fast_slot(fast, 5), second);
    mqqb_fast_close(fast, slot);
    CHECK_EQ(mqqb_fast_slot(fast, 5), second);
    mqqb_fast_close(fast, second);
    CHECK_EQ(mqqb_fast_slot(fast, 5), -1);
    second = mqqb_fast_open(fast, -1, &another);
    CHECK(second >= 0 && second != slot); /* its messages still wait for a commit */
    CHECK(mqqb_fast_open(fast, -1, &another) != slot);
    CHECK_EQ(mqqb_fast_pending(fast), 1);
    mqqb_fast_commit(fast, WALL, 1);
    CHECK_EQ(mqqb_fast_next_ack(fast, 1, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_next_ack(fast, 0, &id, out, sizeof out), 0);
    CHECK_EQ(mqqb_fast_report(fast, &news, 1), 1);
    CHECK_EQ(mqqb_fast_open(fast, 5, &another), slot);
    mqqb_session_init(&another, 64);
    CHECK_EQ(take(put_ack(data, 0, 0)), 0); /* a new slot is blocked */
    go_on();
    CHECK_EQ(take(put_ack(data, 0, 0)), 36);
    for (i = 0; i < 100; i++) {
        CHECK(mqqb_fast_open(fast, (int32_t)(100 + i), &another) >= 0);
    }
    CHECK_EQ(mqqb_fast_slot(fast, 5), slot);
    mqqb_fast_free(fast);
}

static void test_streams_of_a_slot(void)
{
    mqqb_incoming ins[6];
    message m;
    size_t size, i;
    int32_t id;

    begin();
    for (i = 0; i < 6; i++) {
        ins[i] = record;
        CHECK_EQ(learn(MQQB_FAST_FOREVER, &ins[i], (int64_t)i) - stream, (int32_t)((i + 1) % MQQB_FAST_STREAMS));
    }
    CHECK(take(put_many(2, 1)) > 0);
    CHECK_EQ(ins[3].tx_sequence_number, 2); /* the first of the four that match */
    id = learn(MQQB_FAST_FOREVER, &record, QUEUE);
    CHECK(id - stream > 0);
    CHECK_EQ(learn(MQQB_FAST_FOREVER, &record, QUEUE), id); /* known already */
    mqqb_fast_forget(fast, stream);                         /* its message still waits for a commit */
    CHECK(learn(1, &ins[0], 1) != stream);
    m = numbered(1, "TCP:10.0.0.1\\private$\\readings");
    m.label = "x";
    m.extension_size = MQQB_FAST_HEAD_MAX;
    memset(data, 0, 8 * PACKET);
    size = put_message(data, &m, NULL);
    CHECK_EQ(mqqb_fast_learn(fast, slot, data, size, &record, 1, 1, order_ack, ORDER_ACK), -1);
    size = put_many(1, 1);
    CHECK_EQ(mqqb_fast_learn(fast, slot, data, size, &record, 1, 1, order_ack, ORDER_ACK - 1), -1);
    CHECK_EQ(mqqb_fast_learn(fast, slot, data, size, &record, 1, 1, data, MQQB_FAST_ACK_MAX + 1), -1);
    CHECK_EQ(mqqb_fast_learn(fast, slot, data, size - 1, &record, 1, 1, order_ack, ORDER_ACK), -1);
    mqqb_fast_free(fast);
}

int main(void)
{
    RUN("B-098 B-123 B-270 B-271", test_takes_a_run_and_acknowledges_it);
    RUN("B-270 B-272", test_leaves_what_is_not_next);
    RUN("B-265 A-42", test_late_messages_are_left);
    RUN("B-219 B-227 B-229 B-263", test_session_headers);
    RUN("B-096 B-271", test_a_stream_is_followed_into_its_next_sequence);
    RUN("B-285", test_undo_sets_the_streams_back);
    RUN("B-118 B-235", test_an_order_ack_that_cannot_be_sent_is_owed);
    RUN("mqqb_fast.h", test_slots_come_and_go);
    RUN("mqqb_fast.h", test_streams_of_a_slot);
    return summary("test_fast");
}
