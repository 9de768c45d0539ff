/* test_run.c: mqqb_run against packets built byte by byte, and against the core's functions for single messages. */
#include "check.h"
#include "mqqb_run.h"
#include "packets.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define MESSAGES 40
#define PACKET 2048

enum {
    DM = DM_RECOVERABLE,
    AQ_DIRECT = 7u << 13,
    AQ_PRIVATE = 6u << 13,
    RQ_PUBLIC = 5u << 16,
    TX_CG = 1,
    TX_FA = 2,
    PR = 0x03,
    RESERVED_AT = 1,
    PACKET_SIZE_AT = 8,
    SENT_TIME_AT = 52,
    MESSAGE_ID_AT = 56,
    NUMBER = 12, /* of the TransactionHeader */
    PREVIOUS = 16,
    MESSAGE_SIZE = 32, /* of the MessagePropertiesHeader */
    ALLOCATION_BODY_SIZE = 36,
    EXTENSION_SIZE = 52
};

static uint8_t stream[MESSAGES * PACKET];
static mqqb_run_packet found[MESSAGES + 1];

/* What a board sends, number n of its stream. */
static message board_message(uint32_t n)
{
    message m = {0};

    m.base_flags = 0;
    m.user_flags = DQ_DIRECT | DM | TH;
    m.name = "TCP:10.0.0.1\\private$\\readings";
    m.message_id = 700 + n;
    m.tx_flags = 0xC;
    m.tx_ordinal = 3;
    m.tx_time_stamp = 1700000000;
    m.tx_number = n;
    m.tx_previous = n - 1;
    m.label = "reading";
    m.body_size = n * 7 % 23;
    return m;
}

/* Write n of a board's messages behind each other; returns the bytes. ends[i]: where number i ends. l: of the last. */
static size_t put_stream(uint8_t *out, uint32_t count, size_t *ends, layout *l)
{
    size_t size = 0;
    uint32_t n;

    memset(out, 0, count * (size_t)PACKET);
    for (n = 1; n <= count; n++) {
        const message m = board_message(n);

        size_t i, body;
        const size_t packet = put_message(out + size, &m, l);
        le(out + size + SENT_TIME_AT, 1600000000 + n * 3, 4);
        out[size + RESERVED_AT] = (uint8_t)(n * 77); /* real peers write what there was */
        body = size + l->body;
        for (i = 0; i < m.body_size; i++) {
            out[body + i] = (uint8_t)(n + i);
        }
        size += packet;
        ends[n - 1] = size;
    }
    return size;
}

/* Find in memory of just that size, so that a sanitizer sees every read outside it; the table behind the rows stays as it is. */
static size_t find(const mqqb_run_template *t, const uint8_t *in, size_t size, size_t capacity)
{
    uint8_t *const exact = malloc(size == 0 ? 1 : size);
    size_t count, i, end = 0;

    memcpy(exact, in, size);
    memset(found, 0xEE, sizeof found);
    count = mqqb_run_find(t, exact, size, found, capacity);
    CHECK(count <= capacity);
    for (i = 0; i < count; i++) {
        CHECK_EQ(found[i].offset, end);
        end += found[i].size;
    }
    CHECK(end <= size);
    CHECK_EQ(found[count].offset, 0xEEEEEEEE);
    free(exact);
    return count;
}

/* Learn from memory of just that size. */
static int learns(const uint8_t *packet, size_t size)
{
    uint8_t *const exact = malloc(size == 0 ? 1 : size);
    mqqb_run_template t;
    int is_template;

    memcpy(exact, packet, size);
    memset(&t, 0xEE, sizeof t);
    is_template = mqqb_run_learn(&t, exact, size);
    CHECK(is_template ? t.head == exact : t.head_size == 0xEEEEEEEE);
    free(exact);
    return is_template;
}

static size_t first_of(uint8_t *out, const message *m, layout *l)
{
    memset(out, 0, PACKET);
    return put_message(out, m, l);
}

/* ---- templates --------------------------------------------------------------------------------------- */

/* Every layout of names in front of the TransactionHeader, with and without what lies behind it. */
static void test_templates_of_every_layout(void)
{
    static const unsigned destinations[] = {DQ_PRIVATE, DQ_PUBLIC, DQ_DIRECT, 0};
    static const unsigned admins[] = {0, 2u << 13, 3u << 13, 5u << 13, AQ_PRIVATE, AQ_DIRECT};
    static const unsigned responses[] = {0, 1u << 16, 2u << 16, 3u << 16, 4u << 16, RQ_PUBLIC, 6u << 16, 7u << 16};
    static const char *const names[] = {"x", "xy", "TCP:10.0.0.1\\private$\\a"};
    size_t d, a, r, variant;

    for (d = 0; d < LENGTH(destinations); d++) {
        for (a = 0; a < LENGTH(admins); a++) {
            for (r = 0; r < LENGTH(responses); r++) {
                for (variant = 0; variant < 8; variant++) {
                    message m = board_message(5);
                    mqqb_run_template t;
                    layout l;
                    size_t size;

                    m.base_flags = PR & variant;
                    m.user_flags = destinations[d] | admins[a] | responses[r] | DM | TH | (variant & 1 ? CQ : 0);
                    m.name = names[variant % 3];
                    m.queue_id = 7;
                    m.tx_flags = variant & 2 ? TX_CG | TX_FA : 0;
                    m.label = variant & 4 ? "a label" : NULL;
                    m.extension_size = variant & 2 ? 5 : 0;
                    size = first_of(stream, &m, &l);
                    CHECK_EQ(mqqb_run_learn(&t, stream, size), 1);
                    CHECK(t.head == stream);
                    CHECK_EQ(t.transaction_at, l.transaction);
                    CHECK_EQ(t.properties_at, l.properties);
                    CHECK_EQ(t.head_size, l.body);
                    CHECK_EQ(find(&t, stream, size, 1), 1);
                }
            }
        }
    }
}

static void expect_no_template(const message *m)
{
    layout l;
    const size_t size = first_of(stream, m, &l);

    CHECK(!learns(stream, size));
}

/* Whatever is decided for each message by itself is left to the full path. */
static void test_what_is_no_template(void)
{
    const message plain = board_message(5);
    message m = plain;
    layout l;
    size_t size = first_of(stream, &plain, &l);
    unsigned bit;

    CHECK(learns(stream, size));
    CHECK(!learns(stream, size + 4)); /* bytes behind the packet */
    m.user_flags = DQ_DIRECT | DM;
    expect_no_template(&m);
    m = plain, m.user_flags |= SECURITY, m.security_sizes[0] = 28;
    expect_no_template(&m);
    m = plain, m.user_flags |= MQ, m.list_bytes = 18;
    expect_no_template(&m);
    m = plain, m.user_flags |= HH, m.soap_header = m.soap_body = 3, m.soap_aligned = 1;
    expect_no_template(&m);
    m = plain, m.allocation = 4;
    expect_no_template(&m);
    m = plain, m.trailing = 4;
    expect_no_template(&m);
    m = plain, m.trailing = 1;
    expect_no_template(&m);
    for (bit = 0; bit < 3; bit++) { /* whatever bytes are there to be taken for these headers */
        const uint32_t flags[] = {SECURITY, MQ, HH};

        size = first_of(stream, &plain, &l);
        le(stream + 60, get(stream + 60, 4) | flags[bit], 4);
        CHECK(!learns(stream, size));
    }
    m = plain, m.body_size = 9; /* what is allocated beyond the body may be the padding, too */
    size = first_of(stream, &m, &l);
    CHECK(learns(stream, size));
    le(stream + l.properties + ALLOCATION_BODY_SIZE, 12, 4);
    CHECK(!learns(stream, size));
    for (bit = 3; bit < 16; bit++) { /* IN, SH, DH, TR, and what nobody knows */
        m = plain, m.base_flags = 1u << bit;
        expect_no_template(&m);
    }
    size = first_of(stream, &plain, &l);
    stream[l.properties] = 0x01; /* to be told that it has reached its queue */
    CHECK(!learns(stream, size));
    stream[l.properties] = 0x0E; /* to be told of anything else: that is told later */
    CHECK(learns(stream, size));
    stream[60] |= 0x1F; /* a hop count that cannot be */
    CHECK(!learns(stream, size));
    stream[60] = (uint8_t)plain.user_flags;
    CHECK(learns(stream, size));
    le(stream + PACKET_SIZE_AT, size - 4, 4); /* more bytes than the packet */
    CHECK(!learns(stream, size));
    le(stream + PACKET_SIZE_AT, size, 4);
    stream[0] = 0x11;
    CHECK(!learns(stream, size));
}

/* ---- runs -------------------------------------------------------------------------------------------- */

static void test_a_run_says_what_differs(void)
{
    size_t ends[MESSAGES], i;
    mqqb_run_template t;
    layout l;
    const size_t size = put_stream(stream, MESSAGES, ends, &l);

    CHECK_EQ(mqqb_run_learn(&t, stream, ends[0]), 1);
    CHECK_EQ(find(&t, stream, size, MESSAGES), MESSAGES);
    for (i = 0; i < MESSAGES; i++) {
        CHECK_EQ(found[i].size, ends[i] - (i == 0 ? 0 : ends[i - 1]));
        CHECK_EQ(found[i].sent_time, 1600000003 + 3 * i);
        CHECK_EQ(found[i].message_id, 701 + i);
        CHECK_EQ(found[i].tx_sequence_number, i + 1);
        CHECK_EQ(found[i].previous_tx_sequence_number, i);
    }
    for (i = 0; i <= MESSAGES; i++) {
        CHECK_EQ(find(&t, stream, size, i), i);
    }
}

/* A run ends with the last packet that is there whole. */
static void test_a_run_cut_everywhere(void)
{
    size_t ends[4], cut, whole;
    mqqb_run_template t;
    layout l;
    const size_t size = put_stream(stream, 4, ends, &l);

    CHECK_EQ(mqqb_run_learn(&t, stream, ends[0]), 1);
    for (cut = 0; cut <= size; cut++) {
        for (whole = 0; whole < 4 && ends[whole] <= cut; whole++) {
        }
        CHECK_EQ(find(&t, stream, cut, MESSAGES), whole);
    }
}

/* A packet may end with its headers. */
static void test_a_run_without_bodies(void)
{
    mqqb_run_template t;
    layout l;
    message m = board_message(5);
    size_t size, i;

    m.body_size = 0;
    m.label = "reading"; /* its headers end at a multiple of 4 */
    size = first_of(stream, &m, &l);
    CHECK_EQ(l.body, size);
    CHECK_EQ(mqqb_run_learn(&t, stream, size), 1);
    for (i = 1; i < 4; i++) {
        memcpy(stream + i * size, stream, size);
        CHECK_EQ(find(&t, stream, (i + 1) * size, MESSAGES), i + 1);
    }
}

/* May this bit of a packet differ from the template's without ending the run, if it is all that differs? */
static int may_differ(const layout *l, size_t at, unsigned bit)
{
    const size_t number = l->transaction + NUMBER;

    return at == RESERVED_AT || (at >= SENT_TIME_AT && at < MESSAGE_ID_AT + 4) ||
           (at >= number && at < number + 8) ||  /* of these the values decide: tested below */
           (at == l->transaction && bit >= 2) || /* FM, LM, transaction identifier */
           (at > l->transaction && at < l->transaction + 4) || at >= l->body;
}

/* Each bit of the second packet's, flipped: the run goes on over it, or ends before it. */
static void test_every_bit_that_differs(void)
{
    size_t ends[3], at, variant;
    unsigned bit;

    for (variant = 0; variant < 4; variant++) {
        mqqb_run_template t;
        layout l;
        size_t size = 0, i;

        memset(stream, 0, 3 * (size_t)PACKET);
        for (i = 0; i < 3; i++) {
            message m = board_message(5); /* a number with several bits, so that no flipped one makes it 0 */

            m.body_size = 9;
            m.user_flags |= variant & 1 ? CQ | AQ_DIRECT : 0;
            m.tx_flags = variant & 2 ? TX_CG | TX_FA : 0;
            m.extension_size = variant & 1 ? 7 : 0;
            size += put_message(stream + size, &m, &l);
            ends[i] = size;
        }
        CHECK_EQ(mqqb_run_learn(&t, stream, ends[0]), 1);
        for (at = 0; at < ends[0]; at++) {
            for (bit = 0; bit < 8; bit++) {
                stream[ends[0] + at] ^= (uint8_t)(1u << bit);
                CHECK_EQ(find(&t, stream, size, MESSAGES), may_differ(&l, at, bit) ? 3 : 1);
                if (run.faults != 0) {
                    printf("byte %d, bit %u\n", (int)at, bit);
                    return;
                }
                stream[ends[0] + at] ^= (uint8_t)(1u << bit);
            }
        }
    }
}

/* Fields that may differ, with values that they may not have; sizes that do not agree; a body that is not padded. */
static void test_values_that_end_a_run(void)
{
    static const struct {
        int header; /* 0: packet, 1: TransactionHeader, 2: MessagePropertiesHeader */
        size_t offset;
        uint32_t value;
        int goes_on;
    } cases[] = {
        {1, NUMBER, 0, 0},
        {1, NUMBER, 1, 1},
        {1, NUMBER, 0xFFFFFFFF, 1},
        {1, PREVIOUS, 0xFFFFFFFF, 0},
        {1, PREVIOUS, 0xFFFFFFFE, 1},
        {1, PREVIOUS, 0, 1},
        {0, MESSAGE_ID_AT, 0, 1},
        {0, SENT_TIME_AT, 0, 1},
        {0, PACKET_SIZE_AT, 0, 0},
        {0, PACKET_SIZE_AT, 119, 0},
        {0, PACKET_SIZE_AT, 0x00400001, 0},
        {0, PACKET_SIZE_AT, 0xFFFFFFFF, 0},
        {2, MESSAGE_SIZE, 13, 0},         /* more than is allocated */
        {2, MESSAGE_SIZE, 8, 0},          /* less: the full path knows what the rest is */
        {2, ALLOCATION_BODY_SIZE, 16, 0}, /* the same */
    };
    size_t ends[3], i;
    mqqb_run_template t;
    layout l = {0};
    size_t size = 0;

    memset(stream, 0, 3 * (size_t)PACKET);
    for (i = 0; i < 3; i++) {
        message m = board_message(5);

        m.body_size = 12;
        size += put_message(stream + size, &m, &l);
        ends[i] = size;
    }
    CHECK_EQ(mqqb_run_learn(&t, stream, ends[0]), 1);
    for (i = 0; i < LENGTH(cases); i++) {
        const size_t headers[] = {0, l.transaction, l.properties};
        uint8_t *const place = stream + ends[0] + headers[cases[i].header] + cases[i].offset;
        const uint32_t before = get(place, 4);

        le(place, cases[i].value, 4);
        CHECK_EQ(find(&t, stream, size, MESSAGES), cases[i].goes_on ? 3 : 1);
        le(place, before, 4);
    }
    for (i = 1; i < 12; i++) { /* both sizes of the body say the same, and PacketSize does not */
        const uint8_t *const second = stream + ends[0];

        le(stream + ends[0] + l.properties + MESSAGE_SIZE, 12 - i, 4);
        le(stream + ends[0] + l.properties + ALLOCATION_BODY_SIZE, 12 - i, 4);
        CHECK_EQ(find(&t, second, ends[1] - ends[0], MESSAGES), i < 4);
    }
    for (i = 0; i < 9; i++) { /* a body so long that its end is where the packet's is, modulo 2^32 */
        le(stream + ends[0] + l.properties + MESSAGE_SIZE, 0xFFFFFFFF - i, 4);
        le(stream + ends[0] + l.properties + ALLOCATION_BODY_SIZE, 0xFFFFFFFF - i, 4);
        le(stream + ends[0] + PACKET_SIZE_AT, up4((uint32_t)(t.head_size + (0xFFFFFFFF - i))) & 0xFFFFFFFF, 4);
        CHECK_EQ(find(&t, stream, size, MESSAGES), 1);
    }
}

/* ---- what a run does to streams and sessions ----------------------------------------------------------- */

static mqqb_transaction_header header_of(const mqqb_run_packet *packet)
{
    mqqb_transaction_header h = {0xC, 3, 1700000000, 0, 0};

    h.tx_sequence_number = packet->tx_sequence_number;
    h.previous_tx_sequence_number = packet->previous_tx_sequence_number;
    return h;
}

/* Numbers by chance, mostly the next one: what is accepted is what mqqb_accept accepts up to the first that it does not. */
static void test_accepts_as_the_core_does(void)
{
    const message m = board_message(5);
    mqqb_run_template t;
    layout l;
    int trial;

    CHECK_EQ(mqqb_run_learn(&t, stream, first_of(stream, &m, &l)), 1);
    for (trial = 0; trial < 20000; trial++) {
        mqqb_run_packet packets[8];
        mqqb_incoming one = {3, 1700000000, below(4), below(3)}, all;
        const size_t count = below(9);
        size_t i, expected;
        uint32_t next = one.tx_sequence_number + 1;

        one.tx_sequence_ordinal -= below(16) == 0;
        one.tx_sequence_time_stamp += below(16) == 0;
        all = one;
        for (i = 0; i < count; i++, next++) {
            packets[i].tx_sequence_number = below(8) == 0 ? 1 + below(9) : next;
            packets[i].previous_tx_sequence_number = below(8) == 0 ? below(9) : next - 1;
        }
        expected = 0;
        while (expected < count) {
            const mqqb_transaction_header h = header_of(&packets[expected]);
            mqqb_incoming after = one;
            if (!mqqb_accept(&after, &h)) {
                break;
            }
            one = after;
            expected++;
        }
        CHECK_EQ(mqqb_run_accept(&all, &t, packets, count), expected);
        CHECK(memcmp(&all, &one, sizeof all) == 0);
    }
}

/* Whatever is in flight, as many as the window has room for. */
static void test_sends_as_the_window_allows(void)
{
    uint32_t in_flight, count;

    for (in_flight = 0; in_flight <= 8; in_flight++) {
        for (count = 0; count < 12; count++) {
            mqqb_session one, all;
            size_t expected;
            uint32_t i;

            mqqb_session_init(&one, 8);
            one.received_window_size = 8;
            one.message_sent_count = one.peer_acked_message_count = 0xFFFC;
            for (i = 0; i < in_flight; i++) {
                mqqb_session_sent(&one, (int)(i & 1));
            }
            all = one;
            for (expected = 0; expected < count && mqqb_session_can_send(&one); expected++) {
                mqqb_session_sent(&one, 1);
            }
            CHECK_EQ(mqqb_run_sent(&all, count), expected);
            CHECK(count <= 8 - in_flight ? expected == count : expected == 8 - in_flight);
            CHECK(memcmp(&all, &one, sizeof all) == 0);
        }
    }
}

/* Of each number of packets, whatever is left of the sequence. */
static void test_numbers_as_the_core_does(void)
{
    enum { COUNT = 8, TRANSACTION = 20 };
    static uint8_t packets[COUNT * PACKET], expected[COUNT * PACKET];
    uint32_t first, i;

    for (first = 1; first != 0; first = first == 1 ? 0xFFFFFFFF - COUNT / 2 : 0) {
        mqqb_outgoing out = {7, 1700000000, first, 0}, alone = out;
        uint32_t previous = first == 1 ? 0 : first - 3, last = previous, message_id = 0xFFFFFFFD;
        size_t size = 0, count = 0, done;
        layout l;

        memset(packets, 0, sizeof packets);
        for (i = 0; i < COUNT; i++) {
            message m = board_message(1);

            m.body_size = 5;
            size = put_message(packets + i * size, &m, &l);
        }
        memcpy(expected, packets, sizeof packets);
        for (i = 0; i < COUNT; i++) {
            mqqb_transaction_header h;

            CHECK_EQ(mqqb_unpack(MQQB_TRANSACTION_HEADER, &h, expected + i * size + l.transaction, TRANSACTION),
                     MQQB_OK);
            if (mqqb_stamp(&alone, last, &h) != MQQB_OK) {
                break;
            }
            mqqb_pack(MQQB_TRANSACTION_HEADER, &h, expected + i * size + l.transaction, TRANSACTION);
            le(expected + i * size + MESSAGE_ID_AT, (uint32_t)(message_id + i), 4);
            last = h.tx_sequence_number;
            count++;
        }
        done = mqqb_run_number(&out, &previous, packets, size, l.transaction, COUNT, message_id);
        CHECK_EQ(done, count);
        CHECK_EQ(done == COUNT, first == 1);
        CHECK_EQ(previous, last);
        CHECK(memcmp(&out, &alone, sizeof out) == 0);
        CHECK(memcmp(packets, expected, sizeof packets) == 0);
    }
}

static void test_made_packets_differ_in_their_bodies(void)
{
    static const uint8_t packet[10] = "head..tail", bodies[6] = "aabbcc";
    uint8_t packets[30];

    mqqb_run_make(packets, packet, 10, 4, bodies, 2, 3);
    CHECK(memcmp(packets, "headaatailheadbbtailheadcctail", 30) == 0);
}

/* Offsets are 32 bits wide, so a call never looks further. Only the packet that ends the run is there. */
static void test_size_above_32_bits(void)
{
    const message m = board_message(5);
    uint8_t nothing[PACKET] = {0};
    mqqb_run_template t;
    layout l;

    CHECK_EQ(mqqb_run_learn(&t, stream, first_of(stream, &m, &l)), 1);
    if (sizeof(size_t) > 4) {
        CHECK_EQ(mqqb_run_find(&t, nothing, (size_t)((uint64_t)1 << 32) + 16, found, MESSAGES), 0);
    }
}

/* Names that end where the packet does: the walk needs two bytes of the next name, and the headers behind. */
static void test_names_at_the_end(void)
{
    message m = board_message(5);
    layout l;
    size_t size, count;

    m.user_flags |= AQ_DIRECT;
    size = first_of(stream, &m, &l);
    for (count = size - l.destination - 96; count < size - l.destination + 8; count++) {
        le(stream + l.destination, count, 2);
        CHECK(!learns(stream, size));
    }
    m.user_flags = DQ_DIRECT | DM | TH | CQ;
    m.tx_flags = TX_CG;
    size = first_of(stream, &m, &l);
    for (count = 2; count < size - l.destination; count++) {
        memset(stream + l.admin, 0xFF, size - l.admin); /* CG is set wherever the header is taken to be */
        le(stream + l.destination, count, 2);
        CHECK(!learns(stream, size));
    }
}

/* Sizes that lie, and packets that end anywhere: never a template, never a read outside. */
static void test_templates_that_lie(void)
{
    static const uint32_t sizes[] = {0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF, 0x10000, 1, 0xFFFFFF00};
    message m = board_message(5);
    layout l;
    size_t size, cut, i;

    for (i = 0; i < 4; i++) {
        m.name = i & 1 ? "x" : "TCP:10.0.0.1\\private$\\a long name of a queue";
        m.user_flags = DQ_DIRECT | DM | TH | (i & 1 ? AQ_DIRECT | 7u << 16 : 0) | (i & 2 ? CQ : 0);
        m.tx_flags = i & 2 ? TX_CG : 0;
        size = first_of(stream, &m, &l);
        CHECK(learns(stream, size));
        for (cut = 0; cut < size; cut++) {
            le(stream + PACKET_SIZE_AT, cut, 4);
            CHECK(!learns(stream, cut));
        }
        le(stream + PACKET_SIZE_AT, size, 4);
        for (cut = 0; cut <= 0xFFFF; cut += 1 + cut / 64) { /* the length of the name */
            le(stream + l.destination, cut, 2);
            (void)learns(stream, size);
        }
    }
    m = board_message(5);
    size = first_of(stream, &m, &l);
    for (i = 0; i < LENGTH(sizes); i++) {
        le(stream + l.properties + EXTENSION_SIZE, sizes[i], 4);
        CHECK(!learns(stream, size));
        le(stream + l.properties + EXTENSION_SIZE, 0, 4);
        le(stream + l.properties + MESSAGE_SIZE, sizes[i], 4);
        le(stream + l.properties + ALLOCATION_BODY_SIZE, sizes[i], 4);
        CHECK(!learns(stream, size));
        le(stream + l.properties + MESSAGE_SIZE, m.body_size, 4);
        le(stream + l.properties + ALLOCATION_BODY_SIZE, m.body_size, 4);
    }
}

int main(int argc, char **argv)
{
    seed_random(argc, argv, 1802);
    RUN("B-430 B-432", test_templates_that_lie);
    RUN("B-430", test_names_at_the_end);
    RUN("mqqb_run.h", test_size_above_32_bits);
    RUN("B-430", test_templates_of_every_layout);
    RUN("mqqb_run.h B-291 B-294", test_what_is_no_template);
    RUN("mqqb_run.h", test_a_run_says_what_differs);
    RUN("B-429", test_a_run_cut_everywhere);
    RUN("B-429", test_a_run_without_bodies);
    RUN("mqqb_run.h", test_every_bit_that_differs);
    RUN("B-429 B-432", test_values_that_end_a_run);
    RUN("B-270 B-271", test_accepts_as_the_core_does);
    RUN("B-118 B-320", test_sends_as_the_window_allows);
    RUN("B-317 A-24", test_numbers_as_the_core_does);
    RUN("mqqb_run.h", test_made_packets_differ_in_their_bodies);
    return summary("test_run");
}
