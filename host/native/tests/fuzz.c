/* fuzz.c: one input through the scan, as a run of messages and, now and then, a capture; whatever is not one of the three
 * outcomes ends the run. */
#include "frames.h"
#include "fuzz.h"
#include "mqqb_run.h"

#define ROWS 64

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
        if ((in[7] & 0x80) != 0 && (in[0] & 1) == 0) {
            frame[9] = (in[7] & 0x40) != 0 ? 47 : 17;
        }
        record(&files[1], frame, (in[6] & 0x40) != 0 ? n / 2 : n, n);
    }
    read_files(&r, files, 2, 0, 1, 1);
    for (size_t i = 0; i < r.rows; i++) {
        const uint32_t kind = r.column[MQQB_SCAN_KIND][i];
        REQUIRE(kind <= MQQB_KIND_FOREIGN);
        REQUIRE(((int32_t)r.column[MQQB_SCAN_STATUS][i] < 0) ==
                (kind == MQQB_KIND_MALFORMED || kind == MQQB_KIND_FOREIGN));
        REQUIRE(r.column[MQQB_CAPTURE_CONNECTION][i] < r.c.connections_used);
        REQUIRE(r.column[MQQB_CAPTURE_DIRECTION][i] < 2);
        REQUIRE(r.column[MQQB_CAPTURE_SOURCE_QUEUE_MANAGER][i] <= r.c.dictionary[0].count);
        REQUIRE(r.column[MQQB_CAPTURE_DESTINATION_QUEUE][i] <= r.c.dictionary[1].count);
    }
    free(files[0].data);
    free(files[1].data);
}

/* A template of the first packet finds only what the scan reads with the same headers. */
static void one_run(const uint8_t *data, size_t size)
{
    static const unsigned same[] = {MQQB_SCAN_KIND,
                                    MQQB_SCAN_STATUS,
                                    MQQB_SCAN_BASE_FLAGS,
                                    MQQB_SCAN_TIME_TO_REACH_QUEUE,
                                    MQQB_SCAN_USER_FLAGS,
                                    MQQB_SCAN_TIME_TO_BE_RECEIVED,
                                    MQQB_SCAN_TX_SEQUENCE_ORDINAL,
                                    MQQB_SCAN_TX_SEQUENCE_TIME_STAMP,
                                    MQQB_SCAN_MESSAGE_CLASS,
                                    MQQB_SCAN_LABEL_LENGTH};
    static uint32_t table[MQQB_SCAN_COLUMNS][ROWS];
    static mqqb_run_packet packets[ROWS];
    mqqb_scan_columns columns;
    mqqb_run_template t;
    size_t consumed, rows, count, i, j;
    int32_t status;
    uint32_t total;

    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        columns.column[i] = table[i];
    }
    rows = mqqb_scan(data, size, &columns, ROWS, &consumed, &status);
    if (rows == 0 || table[MQQB_SCAN_KIND][0] != MQQB_KIND_USER_MESSAGE || mqqb_frame(data, size, &total) != MQQB_OK ||
        !mqqb_run_learn(&t, data, total)) {
        return;
    }
    count = mqqb_run_find(&t, data, size, packets, ROWS);
    REQUIRE(count >= 1 && count <= rows);
    for (i = 0; i < count; i++) {
        for (j = 0; j < sizeof same / sizeof same[0]; j++) {
            REQUIRE(table[same[j]][i] == table[same[j]][0]);
        }
        REQUIRE(packets[i].offset == table[MQQB_SCAN_OFFSET][i] && packets[i].size == table[MQQB_SCAN_TOTAL_SIZE][i]);
        REQUIRE(packets[i].message_id == table[MQQB_SCAN_MESSAGE_ID][i]);
        REQUIRE(packets[i].sent_time == table[MQQB_SCAN_SENT_TIME][i]);
        REQUIRE(packets[i].tx_sequence_number == table[MQQB_SCAN_TX_SEQUENCE_NUMBER][i]);
        REQUIRE(packets[i].previous_tx_sequence_number == table[MQQB_SCAN_PREVIOUS_TX_SEQUENCE_NUMBER][i]);
        REQUIRE(table[MQQB_SCAN_PROPERTIES_OFFSET][i] - packets[i].offset == t.properties_at);
        REQUIRE(table[MQQB_SCAN_BODY_OFFSET][i] - packets[i].offset == t.head_size);
    }
}

/* The input's first packet, and behind it itself with a few bytes changed: where, and to what, its last bytes say. */
static void one_pair(const uint8_t *data, size_t size)
{
    uint32_t total;

    if (mqqb_frame(data, size, &total) == MQQB_OK && total <= 2048) {
        uint8_t *const pair = malloc(2 * (size_t)total);
        size_t i;

        memcpy(pair, data, total);
        memcpy(pair + total, data, total);
        for (i = 1; i <= data[size - 1] % 4; i++) {
            pair[total + get(data + size - 4 * i, 2) % total] = data[size - 4 * i + 2];
        }
        one_run(pair, 2 * (size_t)total);
        free(pair);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t rest;
    uint8_t *const exact = exact_input(data, size, &rest, 1);

    one_scan(exact, rest);
    one_run(exact, rest);
    one_pair(exact, rest);
    if (rest > 0 && data[0] % 16 == 0) {
        one_capture(exact, rest);
    }
    free(exact);
    return 0;
}
