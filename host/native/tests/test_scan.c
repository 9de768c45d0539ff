/* test_scan.c: mqqb_scan against packets built byte by byte, and against mqqb_unpack on damaged ones. */
#include "check.h"
#include "mqqb_scan.h"
#include "packets.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define ROWS 80
#define C(column) MQQB_SCAN_##column

static uint32_t table[MQQB_SCAN_COLUMNS][ROWS];
static mqqb_scan_columns all;
static size_t consumed;
static int32_t status;

#define AT(column, r) table[C(column)][r]

/* Scan into the table. */
static size_t scan_quickly(const uint8_t *data, size_t size, size_t capacity)
{
    size_t rows, i;

    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        all.column[i] = table[i];
    }
    consumed = 0xEEEE;
    status = 0xEEEE;
    rows = mqqb_scan(data, size, &all, capacity, &consumed, &status);
    CHECK(rows <= capacity);
    CHECK(consumed <= size);
    return rows;
}

/* The same, with the table full of other values before; what is past the rows must keep them. */
static size_t scan(const uint8_t *data, size_t size, size_t capacity)
{
    static uint32_t untouched[ROWS];
    size_t rows, i;

    memset(untouched, 0xEE, sizeof untouched);
    memset(table, 0xEE, sizeof table);
    rows = scan_quickly(data, size, capacity);
    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        CHECK_BYTES(&table[i][rows], untouched, (ROWS - rows) * sizeof untouched[0]);
    }
    return rows;
}

/* Scan one packet at an exactly sized allocation, so that a sanitizer sees every read outside it. */
static void scan_one(const uint8_t *packet, size_t size)
{
    uint8_t *exact = malloc(size == 0 ? 1 : size);

    memcpy(exact, packet, size);
    (void)scan(exact, size, ROWS);
    free(exact);
}

/* It is one packet, malformed for this reason; only what the BaseHeader says is in its row; the scan goes on after it. */
static void expect_malformed(const uint8_t *packet, size_t size, int32_t reason, const char *what)
{
    size_t i;

    scan_one(packet, size);
    if ((int32_t)AT(STATUS, 0) != reason) {
        printf("%s: status %d, not %d\n", what, (int)(int32_t)AT(STATUS, 0), (int)reason);
    }
    CHECK_EQ((int32_t)AT(STATUS, 0), reason);
    CHECK_EQ(AT(KIND, 0), MQQB_KIND_MALFORMED);
    CHECK_EQ(AT(OFFSET, 0), 0);
    CHECK_EQ(AT(TOTAL_SIZE, 0), size);
    CHECK_EQ(AT(BASE_FLAGS, 0), get(packet + 2, 2));
    CHECK_EQ(AT(TIME_TO_REACH_QUEUE, 0), get(packet + 12, 4));
    for (i = C(TIME_TO_REACH_QUEUE) + 1; i < MQQB_SCAN_COLUMNS; i++) {
        CHECK_EQ(table[i][0], 0);
    }
    CHECK_EQ(status, MQQB_OK);
    CHECK_EQ(consumed, size);
}

static void expect_kind(const uint8_t *packet, size_t size, uint32_t kind)
{
    scan_one(packet, size);
    CHECK_EQ((int32_t)AT(STATUS, 0), MQQB_OK);
    CHECK_EQ(AT(KIND, 0), kind);
    CHECK_EQ(AT(TOTAL_SIZE, 0), size);
    CHECK_EQ(consumed, size);
    CHECK_EQ(status, MQQB_OK);
}

static uint8_t packet[8192];

static size_t put(const message *m, layout *l)
{
    memset(packet, 0, sizeof packet);
    return put_message(packet, m, l);
}

static const message plain = {.base_flags = 3,
                              .user_flags = DQ_DIRECT,
                              .message_id = 2286,
                              .name = "OS:a04bm02\\q",
                              .label = "mqsender label",
                              .body_size = 20};

static const message full = {.base_flags = 0x13 | 0x20,
                             .user_flags =
                                 DQ_DIRECT | 6u << 13 | 7u << 16 | TH | SECURITY | CQ | MQ | HH | DM_RECOVERABLE,
                             .message_id = 7,
                             .queue_id = 4,
                             .name = "TCP:10.0.0.5\\private$\\line1",
                             .tx_flags = 0x0000123D,
                             .tx_ordinal = 11,
                             .tx_time_stamp = 12,
                             .tx_number = 13,
                             .tx_previous = 12,
                             .security_sizes = {28, 3, 5, 6, 7},
                             .message_class = 0x8003,
                             .label = "all headers",
                             .extension_size = 5,
                             .body_size = 33,
                             .debug_type = 1,
                             .soap_header = 3,
                             .soap_body = 4,
                             .list_bytes = 18,
                             .trailing = 8};

static const message ack = {
    .user_flags = DQ_PRIVATE, .queue_id = 4, .message_class = 0x00FF, .label = "QM Ordering Ack", .body_size = 36};

/* ---- what is in the row -------------------------------------------------------------------------- */

/* Every selector of the three names, with and without the headers around them. */
static void test_every_queue_name(void)
{
    static const unsigned dqs[] = {0, 3, 5, 7}, aqs[] = {0, 2, 3, 5, 6, 7};
    size_t d, a;
    unsigned r, more;

    for (d = 0; d < LENGTH(dqs); d++) {
        for (a = 0; a < LENGTH(aqs); a++) {
            for (r = 0; r < 8; r++) {
                for (more = 0; more < 4; more++) {
                    message m = plain;
                    layout l;
                    size_t size;
                    m.user_flags =
                        dqs[d] << 10 | aqs[a] << 13 | r << 16 | (more & 1 ? CQ : 0) | (more & 2 ? TH | 0x20 : 0);
                    m.tx_number = 1;
                    size = put(&m, &l);
                    expect_kind(packet, size, MQQB_KIND_USER_MESSAGE);
                    CHECK_EQ(AT(DESTINATION_SIZE, 0), l.admin - 64);
                    CHECK_EQ(AT(PROPERTIES_OFFSET, 0), l.properties);
                    CHECK_EQ(AT(BODY_OFFSET, 0), l.body);
                    CHECK_EQ(AT(TX_SEQUENCE_NUMBER, 0), more & 2 ? 1 : 0);
                }
            }
        }
    }
}

/* Names and labels of every length: the padding, and the search for the NUL in its steps of four. */
static void test_text_of_every_length(void)
{
    char text[125];
    unsigned length, early;

    for (length = 1; length <= 124; length++) {
        message m = plain;
        layout l;
        size_t size;
        memset(text, 'n', length);
        text[length] = 0;
        m.name = text;
        m.label = text;
        size = put(&m, &l);
        expect_kind(packet, size, MQQB_KIND_USER_MESSAGE);
        CHECK_EQ(AT(DESTINATION_SIZE, 0), up4(2 + 2 * (size_t)(length + 1)));
        CHECK_EQ(AT(LABEL_LENGTH, 0), length + 1);
        le(packet + l.destination + 2 + 2 * (size_t)length, 'x', 2);
        expect_malformed(packet, size, MQQB_SCAN_BAD_NAME, "name without NUL");
        le(packet + l.destination + 2 + 2 * (size_t)length, 0, 2);
        le(packet + l.label + 2 * (size_t)length, 0x100, 2);
        expect_malformed(packet, size, MQQB_SCAN_BAD_LABEL, "label without NUL");
        le(packet + l.label + 2 * (size_t)length, 0, 2);
        for (early = 0; early < length; early++) {
            le(packet + l.destination + 2 + 2 * (size_t)early, 0, 2);
            expect_malformed(packet, size, MQQB_SCAN_BAD_NAME, "name with an early NUL");
            le(packet + l.destination + 2 + 2 * (size_t)early, 0xFF00, 2); /* half a NUL is none */
            le(packet + l.label + 2 * (size_t)early, 0, 2);
            expect_malformed(packet, size, MQQB_SCAN_BAD_LABEL, "label with an early NUL");
            le(packet + l.label + 2 * (size_t)early, 0x0100, 2);
        }
        expect_kind(packet, size, MQQB_KIND_USER_MESSAGE);
    }
}

/* A name of nothing but its NUL is too short; a label is not. */
static void test_empty_text(void)
{
    message m = plain;
    layout l;

    m.label = "";
    expect_kind(packet, put(&m, &l), MQQB_KIND_USER_MESSAGE);
    CHECK_EQ(AT(LABEL_LENGTH, 0), 1);
    m.name = "";
    expect_malformed(packet, put(&m, &l), MQQB_SCAN_BAD_NAME, "empty name");
}

/* ---- OrderAck, FinalAck ------------------------------------------------------------------------------ */

static void fill_ack_body(uint8_t *body)
{
    le(body, 21, 4);
    le(body + 4, 22, 4);
    le(body + 8, 23, 4);
    le(body + 12, 20, 4);
    memset(body + 16, 0xD4, 16);
    le(body + 32, 99, 4);
}

static size_t put_ack(const message *m, layout *l)
{
    const size_t size = put(m, l);

    fill_ack_body(packet + l->body);
    return size;
}

static void test_order_queue_by_direct_name(void)
{
    static const struct {
        const char *name;
        uint32_t kind;
    } cases[] = {
        {"TCP:10.0.0.5\\PRIVATE$\\order_queue$", MQQB_KIND_ORDER_ACK},
        {"tcp:10.0.0.5\\private$\\ORDER_QUEUE$", MQQB_KIND_ORDER_ACK},
        {"Tcp:[fe80::1]\\Private$\\Order_Queue$", MQQB_KIND_ORDER_ACK},
        {"TCP:1\\PRIVATE$\\order_queue$", MQQB_KIND_ORDER_ACK},
        {"SPX:00000001.000000000001\\PRIVATE$\\order_queue$", MQQB_KIND_ORDER_ACK},
        {"HTTP:a\\PRIVATE$\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:\\PRIVATE$\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"OS:10.0.0.5\\PRIVATE$\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP;10.0.0.5\\PRIVATE$\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\PRIVATE$\\order_queue", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\PRIVATE$\\order_queue$x", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\PRIVATE$\\xorder_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\PRIVATE\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:a\\b\\PRIVATE$\\order_queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\PRIVATE$\\order@queue$", MQQB_KIND_USER_MESSAGE},
        {"TCP:10.0.0.5\\PRIVATE$\\order?queue$", MQQB_KIND_USER_MESSAGE}, /* 32 below, as A is below a */
        {"TCP\x1A"
         "10.0.0.5\\PRIVATE$\\order_queue$",
         MQQB_KIND_USER_MESSAGE},
        {"T", MQQB_KIND_USER_MESSAGE},
    };
    message m = ack;
    layout l;
    size_t i;

    m.user_flags = DQ_DIRECT;
    for (i = 0; i < LENGTH(cases); i++) {
        m.name = cases[i].name;
        expect_kind(packet, put_ack(&m, &l), cases[i].kind);
        CHECK_EQ(AT(ACK_TX_SEQUENCE_NUMBER, 0), cases[i].kind == MQQB_KIND_ORDER_ACK ? 23 : 0);
    }
    m.name = cases[0].name;
    (void)put_ack(&m, &l);
    packet[l.destination + 2 + 2 * 20 + 1] = 1; /* not ASCII */
    expect_kind(packet, l.size, MQQB_KIND_USER_MESSAGE);
}

static void test_bad_ack_bodies(void)
{
    static const unsigned classes[] = {0x00FF, 0x4000, 0xC002};
    static const uint32_t sizes[] = {0, 1, 32, 35, 37, 40, 72};
    size_t i, j;

    for (i = 0; i < LENGTH(classes); i++) {
        message m = ack;
        layout l;
        size_t size;
        m.message_class = classes[i];
        for (j = 0; j < LENGTH(sizes); j++) {
            m.body_size = sizes[j];
            m.trailing = 40;
            size = put(&m, &l);
            expect_malformed(packet, size, MQQB_BAD_BODY_SIZE, "ack body size");
        }
        m.body_size = 36;
        size = put_ack(&m, &l);
        le(packet + l.body + 8, 0, 4);
        expect_malformed(packet, size, MQQB_BAD_ACK_NUMBER, "ack number 0");
    }
}

/* ---- what is malformed --------------------------------------------------------------------------------- */

static void test_bad_parts_of_a_message(void)
{
    layout l;
    const size_t size = put(&full, &l);
    const struct {
        size_t offset;
        unsigned width;
        uint32_t value;
        int32_t reason;
    } cases[] = {
        {60, 4, full.user_flags | MP | 30, MQQB_BAD_HOP_COUNT},
        {60, 4, full.user_flags | MP | 0x40, MQQB_BAD_DELIVERY_MODE},
        {60, 4, (full.user_flags | MP) ^ 1u << 10, MQQB_BAD_DESTINATION_TYPE},
        {60, 4, ((full.user_flags | MP) & ~0xE000u) | 1u << 13, MQQB_BAD_ADMIN_TYPE},
        {60, 4, (full.user_flags | MP) ^ 0x20, MQQB_BAD_TRANSACTION_MODE},
        {60, 4, full.user_flags, MQQB_BAD_PROPERTIES_FLAG},
        {60, 4, full.user_flags | MP | 0x02000000, MQQB_BAD_HTTP_FLAG},
        {l.destination, 2, 0, MQQB_SCAN_BAD_NAME},
        {l.destination, 2, 2, MQQB_SCAN_BAD_NAME},
        {l.destination, 2, 3, MQQB_SCAN_BAD_NAME},
        {l.destination, 2, 55, MQQB_SCAN_BAD_NAME},
        {l.destination, 2, 0xFFFE, MQQB_SCAN_BAD_CHAIN},
        {l.destination, 2, 0xFFFF, MQQB_SCAN_BAD_NAME},
        {l.response, 2, 1, MQQB_SCAN_BAD_NAME},
        {l.response, 2, 0xFFFE, MQQB_SCAN_BAD_CHAIN},
        {l.transaction + 12, 4, 0, MQQB_BAD_TX_SEQUENCE_NUMBER},
        {l.transaction + 16, 4, 0xFFFFFFFF, MQQB_BAD_PREVIOUS_NUMBER},
        {l.security, 2, 3, MQQB_BAD_SENDER_ID_TYPE},
        {l.security + 2, 2, 0xFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.security + 4, 2, 0xFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.security + 6, 2, 0xFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.security + 8, 4, 0xFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.security + 8, 4, 0x10000, MQQB_BAD_SECURITY_SIZE},
        {l.security + 12, 4, 0xFFFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.security + 12, 4, 0xFFFFFFD0, MQQB_SCAN_BAD_CHAIN}, /* the sum of all five would wrap at 32 bits */
        {l.security + 12, 4, 0x7FFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.properties + 1, 1, 0xFB, MQQB_BAD_LABEL_LENGTH},
        {l.properties + 1, 1, 11, MQQB_SCAN_BAD_LABEL},
        {l.properties + 32, 4, 34, MQQB_BAD_BODY_SIZE},
        {l.properties + 36, 4, 32, MQQB_BAD_BODY_SIZE},
        {l.properties + 36, 4, 0xFFFFFFFF, MQQB_BAD_BODY_SIZE},
        {l.properties + 52, 4, 0xFFFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.properties + 52, 4, 0x80000000, MQQB_SCAN_BAD_CHAIN},
        {l.debug, 1, 2, MQQB_BAD_QUEUE_TYPE},
        {l.debug, 1, 3, MQQB_BAD_QUEUE_TYPE},
        {l.soap, 2, 0x0321, MQQB_SCAN_BAD_SOAP},
        {l.soap + 4, 4, 0, MQQB_SCAN_BAD_SOAP},
        {l.soap + 4, 4, 2, MQQB_SCAN_BAD_SOAP},
        {l.soap + 4, 4, 0x80000003, MQQB_SCAN_BAD_CHAIN}, /* doubled, 6 in 32 bits: QueueJumper's shape */
        {l.soap + 4, 4, 0xFFFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.soap + 4, 4, 0x7FFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.soap_body, 2, 0x0385, MQQB_SCAN_BAD_SOAP},
        {l.soap_body + 4, 4, 0, MQQB_SCAN_BAD_SOAP},
        {l.soap_body + 4, 4, 0x80000004, MQQB_SCAN_BAD_CHAIN},
        {l.lists, 4, 11, MQQB_SCAN_BAD_LIST},
        {l.lists, 4, 0, MQQB_SCAN_BAD_LIST},
        {l.lists, 4, 0xFFFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.lists, 4, 0xFFFFFFFD, MQQB_SCAN_BAD_CHAIN},
        {l.lists + 4, 2, 0x65, MQQB_SCAN_BAD_LIST},
        {l.lists + 8, 4, 5, MQQB_SCAN_BAD_LIST},
        {l.lists + 8, 4, 0x40000001, MQQB_SCAN_BAD_LIST},
        {l.lists + 8, 4, 0xFFFFFFFF, MQQB_SCAN_BAD_LIST},
        {l.lists + 32 + 4, 2, 0x64, MQQB_SCAN_BAD_LIST},
        {l.lists + 64 + 4, 2, 0xC8, MQQB_SCAN_BAD_LIST},
        {l.signature, 2, 0x12C, MQQB_SCAN_BAD_LIST},
        {l.signature + 4, 4, 0xFFFFFFFF, MQQB_SCAN_BAD_CHAIN},
        {l.signature + 4, 4, 13, MQQB_SCAN_BAD_CHAIN},
        {l.session + 12, 2, 0, MQQB_BAD_WINDOW_SIZE},
    };
    size_t i;

    CHECK_EQ(l.signature - l.lists, 96);
    for (i = 0; i < LENGTH(cases); i++) {
        char what[40];
        (void)put(&full, NULL);
        le(packet + cases[i].offset, cases[i].value, cases[i].width);
        snprintf(what, sizeof what, "case %u", (unsigned)i);
        expect_malformed(packet, size, cases[i].reason, what);
    }
}

/* The same for messages with one of the headers only, so that each is the last. */
static void test_each_header_cut_everywhere(void)
{
    static const struct {
        unsigned base_flags, user_flags;
    } cases[] = {{0, 0},  {0, DQ_PRIVATE}, {0, DQ_PUBLIC}, {0, 6u << 13}, {0, 4u << 16},
                 {0, CQ}, {0, TH | 0x20},  {0, SECURITY},  {0x20, 0},     {0, HH},
                 {0, MQ}, {0x20, HH},      {0, HH | MQ}};
    size_t i, cut;

    for (i = 0; i < LENGTH(cases); i++) {
        message m = full;
        layout l;
        size_t size;
        m.base_flags = cases[i].base_flags;
        m.user_flags = cases[i].user_flags;
        m.label = NULL;
        m.trailing = 0;
        m.extension_size = 0;
        m.body_size = 0;
        size = put(&m, &l);
        expect_kind(packet, size, MQQB_KIND_USER_MESSAGE);
        for (cut = 120; cut < size; cut++) {
            le(packet + 8, cut, 4);
            expect_malformed(packet, cut, MQQB_SCAN_BAD_CHAIN, "cut");
        }
    }
}

/* ---- runs of packets ------------------------------------------------------------------------------------- */

enum { RUN_BYTES = 400 * ROWS };

/* Mixed packets one after another; offsets[i] is where the i-th begins. */
static size_t put_run(uint8_t *out, unsigned packets, size_t *offsets)
{
    size_t size = 0;
    unsigned i;

    memset(out, 0, RUN_BYTES);
    for (i = 0; i < packets; i++) {
        message m = i % 5 == 3 ? ack : plain;
        offsets[i] = size;
        m.message_id = 1000 + i;
        m.base_flags |= i % 2 ? 0x10 : 0;
        if (i % 5 == 4) {
            size += put_internal(out + size, i % 2 ? 1 : 3);
        } else {
            layout l;
            const size_t at = size;
            size += put_message(out + size, &m, &l);
            if (i % 5 == 3) {
                fill_ack_body(out + at + l.body);
            }
        }
    }
    offsets[packets] = size;
    return size;
}

static uint32_t kind_in_run(unsigned i)
{
    return i % 5 == 3   ? MQQB_KIND_ORDER_ACK
           : i % 5 != 4 ? MQQB_KIND_USER_MESSAGE
           : i % 2      ? MQQB_KIND_SESSION_ACK
                        : MQQB_KIND_CONNECTION_PARAMETERS;
}

static uint8_t run_bytes[RUN_BYTES];
static size_t offsets[ROWS + 1];

static void check_rows(size_t rows)
{
    unsigned i;

    for (i = 0; i < rows; i++) {
        CHECK_EQ(AT(KIND, i), kind_in_run(i));
        CHECK_EQ(AT(STATUS, i), 0);
        CHECK_EQ(AT(OFFSET, i), offsets[i]);
        CHECK_EQ(AT(TOTAL_SIZE, i), offsets[i + 1] - offsets[i]);
        CHECK_EQ(AT(MESSAGE_ID, i), i % 5 == 4 ? 0 : 1000 + i);
        CHECK_EQ(AT(SOURCE_OFFSET, i), i % 5 == 4 ? 0 : offsets[i] + 16);
        CHECK_EQ(AT(WINDOW_SIZE, i), i % 2 ? 64 : 0);
        CHECK_EQ(AT(SESSION_OFFSET, i), i % 2 ? offsets[i + 1] - 16 : 0);
        CHECK_EQ(AT(ACK_TX_SEQUENCE_NUMBER, i), i % 5 == 3 ? 23 : 0);
        CHECK_EQ(AT(LABEL_LENGTH, i), i % 5 == 3 ? 16 : i % 5 == 4 ? 0 : 15);
    }
}

static void test_capacity(void)
{
    const size_t size = put_run(run_bytes, ROWS, offsets);
    size_t capacity;

    for (capacity = 0; capacity < ROWS; capacity++) {
        CHECK_EQ(scan(run_bytes, size, capacity), capacity);
        CHECK_EQ(consumed, offsets[capacity]);
        CHECK_EQ(status, MQQB_SCAN_FULL);
        check_rows(capacity);
    }
    CHECK_EQ(scan(run_bytes, size, ROWS), ROWS);
    CHECK_EQ(status, MQQB_OK);
    CHECK_EQ(scan(run_bytes, 0, 0), 0); /* nothing to do is not too little room */
    CHECK_EQ(status, MQQB_OK);
    CHECK_EQ(consumed, 0);
}

/* A column that is not wanted is skipped; the others do not notice. */
static void test_null_columns(void)
{
    const size_t size = put_run(run_bytes, 37, offsets);
    size_t left_out, i, j;
    static uint32_t reference[MQQB_SCAN_COLUMNS][ROWS];

    CHECK_EQ(scan(run_bytes, size, ROWS), 37);
    memcpy(reference, table, sizeof table);
    for (left_out = 0; left_out < MQQB_SCAN_COLUMNS; left_out++) {
        memset(table, 0xEE, sizeof table);
        all.column[left_out] = NULL;
        CHECK_EQ(mqqb_scan(run_bytes, size, &all, ROWS, &consumed, &status), 37);
        all.column[left_out] = table[left_out];
        for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
            for (j = 0; j < ROWS; j++) {
                CHECK(table[i][j] == (i == left_out ? 0xEEEEEEEE : reference[i][j]));
            }
        }
    }
    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        all.column[i] = NULL;
    }
    CHECK_EQ(mqqb_scan(run_bytes, size, &all, ROWS, &consumed, &status), 37);
    CHECK_EQ(consumed, size);
}

/* More than 4 GiB: offsets are 32 bits wide, so a call never looks further. Only the BaseHeader that stops it is there. */
static void test_size_above_32_bits(void)
{
    if (sizeof(size_t) > 4) {
        const uint8_t nothing[16] = {0};
        CHECK_EQ(scan(nothing, (size_t)((uint64_t)1 << 32) + 16, ROWS), 1);
        CHECK_EQ(status, MQQB_BAD_VERSION_NUMBER);
    }
}

/* ---- against the core ------------------------------------------------------------------------------------- */

/* Every byte of a full message set to many values: always one of the outcomes, one row, no read outside, and whatever a
 * row says is what mqqb_unpack says of the bytes at its offsets. */
static void check_against_core(const uint8_t *data, size_t size, size_t rows)
{
    size_t i;

    for (i = 0; i < rows; i++) {
        mqqb_base_header base;
        mqqb_user_header user;
        mqqb_transaction_header tx;
        mqqb_message_properties_header properties;
        mqqb_session_header session;
        mqqb_final_ack final;
        const uint8_t *const at = data + AT(OFFSET, i);
        const int message_kind = AT(KIND, i) >= MQQB_KIND_USER_MESSAGE;
        uint32_t total = 0;
        CHECK(AT(KIND, i) <= MQQB_KIND_FINAL_ACK);
        CHECK((AT(KIND, i) == MQQB_KIND_MALFORMED) == ((int32_t)AT(STATUS, i) < 0));
        CHECK_EQ(mqqb_unpack(MQQB_BASE_HEADER, &base, at, size - AT(OFFSET, i)) == MQQB_OK, AT(TOTAL_SIZE, i) != 0);
        if (AT(TOTAL_SIZE, i) != 0) {
            CHECK_EQ(mqqb_frame(at, size - AT(OFFSET, i), &total), MQQB_OK);
            CHECK_EQ(total, AT(TOTAL_SIZE, i));
        }
        if (AT(KIND, i) == MQQB_KIND_MALFORMED) {
            continue;
        }
        CHECK_EQ(base.flags, AT(BASE_FLAGS, i));
        CHECK_EQ(base.time_to_reach_queue, AT(TIME_TO_REACH_QUEUE, i));
        CHECK_EQ((base.flags & MQQB_BASE_IN) == 0, message_kind);
        if (AT(SESSION_OFFSET, i) != 0) {
            CHECK_EQ(AT(SESSION_OFFSET, i) + 16, AT(OFFSET, i) + AT(TOTAL_SIZE, i));
            CHECK_EQ(mqqb_unpack(MQQB_SESSION_HEADER, &session, data + AT(SESSION_OFFSET, i), 16), MQQB_OK);
            CHECK_EQ(session.ack_sequence_number, AT(ACK_SEQUENCE_NUMBER, i));
            CHECK_EQ(session.recoverable_msg_ack_seq_number, AT(RECOVERABLE_MSG_ACK_SEQ_NUMBER, i));
            CHECK_EQ(session.recoverable_msg_ack_flags, AT(RECOVERABLE_MSG_ACK_FLAGS, i));
            CHECK_EQ(session.user_msg_sequence_number, AT(USER_MSG_SEQUENCE_NUMBER, i));
            CHECK_EQ(session.recoverable_msg_sequence_number, AT(RECOVERABLE_MSG_SEQUENCE_NUMBER, i));
            CHECK_EQ(session.window_size, AT(WINDOW_SIZE, i));
        }
        if (!message_kind) {
            continue;
        }
        CHECK_EQ(mqqb_unpack(MQQB_USER_HEADER, &user, at + 16, 48), MQQB_OK);
        CHECK_EQ(user.message_id, AT(MESSAGE_ID, i));
        CHECK_EQ(user.flags, AT(USER_FLAGS, i));
        CHECK_EQ(user.sent_time, AT(SENT_TIME, i));
        CHECK_EQ(user.time_to_be_received, AT(TIME_TO_BE_RECEIVED, i));
        CHECK_BYTES(user.source_queue_manager, data + AT(SOURCE_OFFSET, i), 16);
        CHECK_EQ((user.flags & MQQB_USER_TH) != 0, AT(TX_SEQUENCE_NUMBER, i) != 0);
        if ((user.flags & MQQB_USER_TH) != 0 && (user.flags & (MQQB_USER_SH | MQQB_USER_TH)) == MQQB_USER_TH) {
            const uint32_t bytes = AT(TX_FLAGS, i) & MQQB_TX_CG ? 36 : 20; /* it ends where the properties begin */
            CHECK_EQ(mqqb_unpack(MQQB_TRANSACTION_HEADER, &tx, data + AT(PROPERTIES_OFFSET, i) - bytes, 20), MQQB_OK);
            CHECK_EQ(tx.flags, AT(TX_FLAGS, i));
            CHECK_EQ(tx.tx_sequence_ordinal, AT(TX_SEQUENCE_ORDINAL, i));
            CHECK_EQ(tx.tx_sequence_time_stamp, AT(TX_SEQUENCE_TIME_STAMP, i));
            CHECK_EQ(tx.tx_sequence_number, AT(TX_SEQUENCE_NUMBER, i));
            CHECK_EQ(tx.previous_tx_sequence_number, AT(PREVIOUS_TX_SEQUENCE_NUMBER, i));
        }
        CHECK_EQ(mqqb_unpack(MQQB_MESSAGE_PROPERTIES_HEADER, &properties, data + AT(PROPERTIES_OFFSET, i), 56),
                 MQQB_OK);
        CHECK_EQ(properties.flags, AT(PROPERTIES_FLAGS, i));
        CHECK_EQ(properties.message_class, AT(MESSAGE_CLASS, i));
        CHECK_EQ(properties.label_length, AT(LABEL_LENGTH, i));
        CHECK_EQ(properties.message_size, AT(BODY_SIZE, i));
        CHECK_EQ(AT(PROPERTIES_OFFSET, i) + 56 + 2 * properties.label_length + properties.extension_size,
                 AT(BODY_OFFSET, i));
        CHECK((uint64_t)AT(BODY_OFFSET, i) + AT(BODY_SIZE, i) <= AT(OFFSET, i) + base.packet_size);
        if (AT(KIND, i) == MQQB_KIND_FINAL_ACK) {
            CHECK_EQ(mqqb_unpack(MQQB_FINAL_ACK, &final, data + AT(BODY_OFFSET, i), AT(BODY_SIZE, i)), MQQB_OK);
            CHECK_EQ(final.tx_sequence_ordinal, AT(ACK_TX_SEQUENCE_ORDINAL, i));
            CHECK_EQ(final.tx_sequence_time_stamp, AT(ACK_TX_SEQUENCE_TIME_STAMP, i));
            CHECK_EQ(final.tx_sequence_number, AT(ACK_TX_SEQUENCE_NUMBER, i));
            CHECK_EQ(final.previous_tx_sequence_number, AT(ACK_PREVIOUS_TX_SEQUENCE_NUMBER, i));
            CHECK_EQ(final.message_id, AT(ACK_MESSAGE_ID, i));
            CHECK_BYTES(final.source_guid, data + AT(ACK_SOURCE_OFFSET, i), 16);
        }
    }
}

static size_t put_any(unsigned which, uint8_t *out)
{
    message m = which % 3 == 0 ? full : which % 3 == 1 ? plain : ack;
    layout l;
    size_t size;

    if (which >= 6) {
        return put_internal(out, which - 5);
    }
    if (which >= 3) {
        m.base_flags ^= 0x10;
        m.message_class ^= 0x8000;
        m.user_flags = (m.user_flags & ~(SECURITY | 0x60u)) | TH | DM_RECOVERABLE;
        m.tx_number = 77;
    }
    memset(out, 0, 2048);
    size = put_message(out, &m, &l);
    if (which % 3 == 2) {
        fill_ack_body(out + l.body);
    }
    return size;
}

static void test_every_byte_damaged(void)
{
    static const uint8_t flips[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, 0x7F, 0x55};
    unsigned which;
    size_t at, i;

    for (which = 0; which < 9; which++) {
        const size_t size = put_any(which, packet);
        for (at = 0; at < size; at++) {
            if (which >= 6 && at >= 64) {
                break; /* padding */
            }
            for (i = 0; i < LENGTH(flips); i++) {
                uint8_t *exact = malloc(size);
                size_t rows;
                memcpy(exact, packet, size);
                exact[at] ^= flips[i];
                rows = scan_quickly(exact, size, ROWS);
                check_against_core(exact, size, rows);
                free(exact);
            }
        }
    }
}

/* PacketSize cuts the chain at every byte: whatever is announced is then missing, and nothing outside is read. */
static void test_chain_cut_everywhere(void)
{
    message m = full;
    layout l;
    size_t size, cut;

    m.base_flags &= ~0x10u;
    m.trailing = 0;
    size = put(&m, &l);
    for (cut = 120; cut < size; cut++) {
        le(packet + 8, cut, 4);
        scan_one(packet, cut);
        CHECK_EQ(AT(KIND, 0), MQQB_KIND_MALFORMED);
        /* The label's or a text's sizes are all right; what is missing is bytes. A body that runs past is a bad size. */
        CHECK(AT(STATUS, 0) == (uint32_t)MQQB_SCAN_BAD_CHAIN);
    }
    le(packet + 8, size, 4);
    expect_kind(packet, size, MQQB_KIND_USER_MESSAGE);
}

/* The smallest message: no names, no label, no body. */
static void test_smallest_message(void)
{
    const message m = {.message_id = 1};
    const size_t size = put(&m, NULL);

    CHECK_EQ(size, 120);
    expect_kind(packet, size, MQQB_KIND_USER_MESSAGE);
    CHECK_EQ(AT(DESTINATION_OFFSET, 0), 0);
    CHECK_EQ(AT(DESTINATION_SIZE, 0), 0);
    CHECK_EQ(AT(LABEL_OFFSET, 0), 0);
    CHECK_EQ(AT(LABEL_LENGTH, 0), 0);
    CHECK_EQ(AT(BODY_OFFSET, 0), 120);
    CHECK_EQ(AT(BODY_SIZE, 0), 0);
    CHECK_EQ(AT(SESSION_OFFSET, 0), 0);
}

static void test_what_is_no_ack(void)
{
    static const struct {
        unsigned user_flags, queue_id, message_class;
        const char *label;
    } cases[] = {
        {DQ_PRIVATE, 5, 0x00FF, "QM Ordering Ack"}, {DQ_PRIVATE, 0x10004, 0x00FF, "QM Ordering Ack"},
        {DQ_PUBLIC, 4, 0x00FF, "QM Ordering Ack"},  {0, 4, 0x00FF, "QM Ordering Ack"},
        {DQ_PRIVATE, 4, 0x00FF, "QM Ordering ack"}, {DQ_PRIVATE, 4, 0x00FF, "QM Ordering Ack "},
        {DQ_PRIVATE, 4, 0x00FF, "QM Ordering Ac"},  {DQ_PRIVATE, 4, 0x00FF, NULL},
        {DQ_PRIVATE, 4, 0x0000, "QM Ordering Ack"}, {DQ_PRIVATE, 4, 0x00FE, "QM Ordering Ack"},
        {DQ_PRIVATE, 4, 0x0100, "QM Ordering Ack"}, {DQ_PRIVATE, 4, 0x3FFF, "QM Ordering Ack"},
        {DQ_PRIVATE, 4, 0x0002, "QM Ordering Ack"}, {DQ_PRIVATE, 4, 0x8000, "another"},
    };
    size_t i;

    for (i = 0; i < LENGTH(cases); i++) {
        message m = ack;
        layout l;
        m.user_flags = cases[i].user_flags;
        m.queue_id = cases[i].queue_id;
        m.message_class = cases[i].message_class;
        m.label = cases[i].label;
        expect_kind(packet, put_ack(&m, &l), MQQB_KIND_USER_MESSAGE);
        CHECK_EQ(AT(ACK_TX_SEQUENCE_NUMBER, 0), 0);
    }
}

int main(int argc, char **argv)
{
    seed_random(argc, argv, 1801);
    RUN("B-175 B-176 B-177", test_what_is_no_ack);
    RUN("B-177 B-429", test_smallest_message);
    RUN("B-430", test_chain_cut_everywhere);
    RUN("B-171 B-430", test_every_queue_name);
    RUN("B-431", test_text_of_every_length);
    RUN("B-431", test_empty_text);
    RUN("B-175 B-176", test_order_queue_by_direct_name);
    RUN("B-179", test_bad_ack_bodies);
    RUN("B-169 B-171 B-173 B-430 B-431 B-432", test_bad_parts_of_a_message);
    RUN("B-430", test_each_header_cut_everywhere);
    RUN("wire.md 4.2", test_capacity);
    RUN("mqqb_scan.h", test_null_columns);
    RUN("mqqb_scan.h", test_size_above_32_bits);
    RUN("B-169 B-430 B-436", test_every_byte_damaged);
    return summary("test_scan");
}
