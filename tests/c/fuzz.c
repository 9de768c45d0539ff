/* fuzz.c: one input through every unpack, the framing, a session, the scan and, now and then, a capture; whatever is not one of the three outcomes ends
 * the run. With libFuzzer (FUZZER defined) it is a fuzz target; else a plain test: fuzz [seed [runs]], seed printed. */
#include "check.h"
#include "frames.h"

#define ROWS 64

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Accepted bytes come back the same from pack; refused ones leave the structure alone. */
static void one_part(mqqb_part part, const uint8_t *data, size_t size)
{
    uint32_t words[32], before[32];
    uint8_t back[64];
    mqqb_status status;

    memset(words, 0xEE, sizeof words);
    memcpy(before, words, sizeof words);
    status = mqqb_unpack(part, words, data, size);
    REQUIRE((status == MQQB_NEED_MORE) == (size < mqqb_part_size(part)));
    REQUIRE(status <= MQQB_NEED_MORE && status >= MQQB_BAD_MESSAGE_COUNT);
    if (status == MQQB_OK) {
        mqqb_pack(part, words, back, sizeof back);
        REQUIRE(memcmp(back, data, mqqb_part_size(part)) == 0);
        REQUIRE(memcmp(words + mqqb_part_words(part), before + mqqb_part_words(part),
                       sizeof words - 4 * mqqb_part_words(part)) == 0);
    } else {
        REQUIRE(memcmp(words, before, sizeof words) == 0);
    }
}

/* Headers of any content into a session of any age: the counts stay counts, and nothing unsent gets acknowledged. */
static void one_session(const uint8_t *data, size_t size)
{
    mqqb_session s;
    mqqb_session_header h;

    mqqb_session_init(&s, size > 0 && data[0] != 0 ? data[0] : 1);
    while (size >= 16) {
        const mqqb_session before = s;
        if (mqqb_unpack(MQQB_SESSION_HEADER, &h, data, size) == MQQB_OK) {
            const mqqb_status status = mqqb_session_check(&s, &h, data[14] & 1);
            REQUIRE(status == MQQB_OK || status == MQQB_BAD_ACK_COUNT || status == MQQB_BAD_MESSAGE_COUNT);
            REQUIRE(status != MQQB_BAD_ACK_COUNT || memcmp(&s, &before, sizeof s) == 0);
            REQUIRE(mqqb_session_unacked_sent(&s) <= mqqb_session_unacked_sent(&before));
            if (status != MQQB_BAD_ACK_COUNT &&
                mqqb_serial_after((s.recoverable_message_sent_count + 1) & 0xFFFF, h.recoverable_msg_ack_seq_number)) {
                REQUIRE(!mqqb_is_acked(h.recoverable_msg_ack_seq_number, h.recoverable_msg_ack_flags,
                                       (s.recoverable_message_sent_count + 1) & 0xFFFF));
            }
        }
        if (mqqb_session_can_send(&s)) {
            mqqb_session_sent(&s, data[15] & 1);
        }
        mqqb_session_received(&s, data[15] >> 1 & 1);
        if (mqqb_session_stored(&s, data[15] >> 1 & 1) == MQQB_ACK_FIRST || (data[15] & 4) != 0) {
            mqqb_session_fill(&s, &h);
            if (s.message_stored_count != s.message_received_count) {
                REQUIRE(mqqb_session_stored(&s, data[15] >> 1 & 1) == MQQB_OK);
            }
        }
        data += 16;
        size -= 16;
    }
}

/* Rows in order and inside the data, and a scan in two calls gives the rows of one. */
static void one_scan(const uint8_t *data, size_t size)
{
    static uint32_t table[MQQB_SCAN_COLUMNS][ROWS], again[MQQB_SCAN_COLUMNS][ROWS];
    mqqb_scan_columns columns;
    size_t consumed, rows, i, end = 0;
    int32_t status;

    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        columns.column[i] = table[i];
    }
    rows = mqqb_scan(data, size, &columns, ROWS, &consumed, &status);
    REQUIRE(rows <= ROWS && consumed <= size);
    REQUIRE(status != MQQB_OK || consumed == size);
    REQUIRE(status != MQQB_SCAN_FULL || rows == ROWS);
    for (i = 0; i < rows; i++) {
        const int32_t found = (int32_t)table[MQQB_SCAN_STATUS][i];
        uint32_t total = 0;
        REQUIRE(table[MQQB_SCAN_OFFSET][i] == end);
        end += table[MQQB_SCAN_TOTAL_SIZE][i];
        REQUIRE(end <= size);
        REQUIRE((found < 0) == (table[MQQB_SCAN_KIND][i] == MQQB_KIND_MALFORMED));
        if (table[MQQB_SCAN_TOTAL_SIZE][i] != 0) {
            REQUIRE(mqqb_frame(data + table[MQQB_SCAN_OFFSET][i], size - table[MQQB_SCAN_OFFSET][i], &total) ==
                    MQQB_OK);
            REQUIRE(total == table[MQQB_SCAN_TOTAL_SIZE][i]);
        } else {
            REQUIRE(i == rows - 1 && status == found && found < 0);
        }
        if (found == MQQB_OK) {
            REQUIRE((uint64_t)table[MQQB_SCAN_BODY_OFFSET][i] + table[MQQB_SCAN_BODY_SIZE][i] <= end);
            REQUIRE((uint64_t)table[MQQB_SCAN_LABEL_OFFSET][i] + 2 * (uint64_t)table[MQQB_SCAN_LABEL_LENGTH][i] <= end);
            REQUIRE(table[MQQB_SCAN_SESSION_OFFSET][i] == 0 || table[MQQB_SCAN_SESSION_OFFSET][i] + 16 == end);
        }
    }
    REQUIRE(end == consumed);
    if (rows > 1) {
        size_t first, rest, at;
        for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
            columns.column[i] = again[i];
        }
        first = mqqb_scan(data, size, &columns, rows / 2, &at, &status);
        REQUIRE(first == rows / 2 && status == MQQB_SCAN_FULL);
        for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
            columns.column[i] = again[i] + first;
        }
        rest = mqqb_scan(data + at, size - at, &columns, rows - first, &at, &status);
        REQUIRE(rest == rows - first);
        for (i = 0; i < rows; i++) {
            REQUIRE(again[MQQB_SCAN_KIND][i] == table[MQQB_SCAN_KIND][i]);
            REQUIRE(again[MQQB_SCAN_STATUS][i] == table[MQQB_SCAN_STATUS][i]);
            REQUIRE(again[MQQB_SCAN_BODY_SIZE][i] == table[MQQB_SCAN_BODY_SIZE][i]);
        }
    }
}

/* A file of the input's bytes, and one of TCP segments with places, sizes and flags by the input. Rows are what they may be. */
static void one_capture(const uint8_t *data, size_t size)
{
    static reading r;
    static uint8_t frame[1024];
    file files[2] = {{.data = NULL}, {.data = NULL}};

    add(&files[0], data, size);
    files[0].data = realloc(files[0].data, size); /* a sanitizer then sees the first byte past the end */
    pcap(&files[1], 101, 0, 0);
    for (size_t at = 0; at + 8 < size && at < 800; at += 8) {
        const uint8_t *const in = data + at;
        const size_t rest = size - at, wanted = in[1] * (size_t)2, part = wanted < rest ? wanted : rest;
        const size_t n = put_tcp(frame, in[0] & 1, in[0] >> 1 & 1, 50000 + (in[0] >> 2 & 1), get(in + 2, 2) & 0x7FF,
                                 get(in + 4, 2) & 0x7FF, in[6] & 0x17, data + at, part);
        if ((in[6] & 0x20) != 0 && (in[0] & 1) == 0) {
            be(frame + 6, (get(in + 2, 2) & 0x2007), 2); /* a fragment */
        }
        record(&files[1], frame, (in[6] & 0x40) != 0 ? n / 2 : n, n);
    }
    read_files(&r, files, 2, 0, 1, 0, 1);
    for (size_t i = 0; i < r.rows; i++) {
        const uint32_t kind = r.column[MQQB_SCAN_KIND][i];
        REQUIRE(kind <= MQQB_KIND_END);
        REQUIRE(((int32_t)r.column[MQQB_SCAN_STATUS][i] < 0) == (kind == MQQB_KIND_MALFORMED));
        REQUIRE(r.column[MQQB_CAPTURE_CONNECTION][i] < r.c.connections_used);
        REQUIRE(r.column[MQQB_CAPTURE_DIRECTION][i] < 2);
        REQUIRE(r.column[MQQB_CAPTURE_SOURCE_QUEUE_MANAGER][i] <= r.c.dictionary[0].count);
        REQUIRE(r.column[MQQB_CAPTURE_DESTINATION_QUEUE][i] <= r.c.dictionary[1].count);
    }
    free(files[0].data);
    free(files[1].data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t rest = size > 0 ? size - 1 : 0;
    uint8_t *const exact = malloc(rest + 1); /* a sanitizer then sees the first byte past the end */
    uint32_t total = 0;
    int part;

    if (rest > 0) {
        memcpy(exact, data + 1, rest);
    }
    for (part = 0; part < MQQB_PARTS; part++) {
        one_part((mqqb_part)part, exact, rest);
    }
    one_session(exact, rest);
    /* Odd inputs get a right BaseHeader put over them, so that what lies behind it is reached. */
    if (rest >= 120 && (data[0] & 1) != 0) {
        exact[0] = 0x10;
        memcpy(exact + 4, "LIOR", 4);
        le(exact + 8, rest - ((exact[2] & 0x18) == 0x10 ? 16 : 0), 4);
        if (rest < 136) {
            exact[2] |= 0x08;
        }
    }
    if (mqqb_frame(exact, rest, &total) == MQQB_OK) {
        REQUIRE(total <= rest && total >= 20);
    }
    one_scan(exact, rest);
    if (rest > 0 && data[0] % 16 == 0) {
        one_capture(exact, rest);
    }
    free(exact);
    return 0;
}

#ifndef FUZZER

/* A message with headers, sizes and texts by chance, or an internal packet. */
static size_t random_packet(uint8_t *out)
{
    static const char *const names[] = {"OS:a\\q", "TCP:10.0.0.5\\private$\\line1", "TCP:1\\PRIVATE$\\order_queue$",
                                        "x"};
    static const char *const labels[] = {NULL, "QM Ordering Ack", "reading", ""};
    static const unsigned classes[] = {0, 0xFF, 0x4000, 0x8003};
    message m = {0};

    if (below(5) == 0) {
        return put_internal(out, 1 + below(3));
    }
    m.base_flags = random32() & 0x37;
    m.user_flags = (random32() & 0x10D90000u) | 0x20 | (unsigned[]){0, 3, 5, 7}[below(4)] << 10 |
                   (unsigned[]){0, 2, 3, 5, 6, 7}[below(6)] << 13;
    m.queue_id = below(8);
    m.name = names[below(4)];
    m.tx_flags = below(16);
    m.tx_number = 1 + below(5);
    m.security_sizes[0] = 1 + below(40);
    m.security_sizes[3] = below(9);
    m.message_class = classes[below(4)];
    m.label = labels[below(4)];
    m.extension_size = below(2) ? below(9) : 0;
    m.body_size = below(2) ? 36 : below(80);
    m.debug_type = below(2);
    m.soap_header = 1 + below(5);
    m.soap_body = 1 + below(5);
    m.list_bytes = below(3) * 18;
    m.trailing = below(3) * 4;
    memset(out, 0, 2048);
    return put_message(out, &m, NULL);
}

int main(int argc, char **argv)
{
    static uint8_t input[1 + 8 * 2048 + 64];
    const unsigned long runs = argc > 2 ? strtoul(argv[2], NULL, 0) : 50000;
    unsigned long i;

    seed_random(argc, argv, 20261120);
    for (i = 0; i < runs; i++) {
        size_t size = 1;
        uint32_t damages = below(6);
        if (below(8) == 0) {
            size += below(200);
            for (size_t at = 0; at < size; at++) {
                input[at] = (uint8_t)random32();
            }
        } else {
            uint32_t packets = 1 + below(6);
            while (packets-- > 0) {
                size += random_packet(input + size);
            }
            input[0] = below(4) == 0 ? 1 : below(16) == 0 ? 0 : 2;
            if (below(6) == 0) {
                size -= below((uint32_t)size);
            }
        }
        while (damages-- > 0) {
            static const uint32_t nasty[] = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFC, 0xFFFF, 0x10000};
            const size_t at = below((uint32_t)size);
            if (below(2) == 0) {
                input[at] ^= (uint8_t)(1u << below(8));
            } else if (at + 4 <= size) {
                le(input + at, nasty[below(8)], 4);
            }
        }
        LLVMFuzzerTestOneInput(input, size);
    }
    printf("fuzz: %lu passed, 0 failed\n", runs);
    return 0;
}

#endif
