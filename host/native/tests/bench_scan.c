/* bench_scan.c: nanoseconds that mqqb_scan takes for a packet, all columns wanted, the packets in one call. Prints one
 * line for each mix. */
#define _POSIX_C_SOURCE 199309L
#include "mqqb_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 25

static void le(uint8_t *out, uint64_t value, unsigned width)
{
    while (width-- > 0) {
        *out++ = (uint8_t)value;
        value >>= 8;
    }
}

static size_t text(uint8_t *out, const char *ascii)
{
    size_t n = 0;
    do {
        le(out + 2 * n, (uint8_t)ascii[n], 2);
    } while (ascii[n++] != 0);
    return 2 * n;
}

static size_t aligned(size_t n)
{
    return (n + 3) & ~(size_t)3;
}

/* A transactional message to a direct name, as a sensor sends it. */
static size_t message(uint8_t *out, uint32_t number, size_t body)
{
    size_t n = 64, props;

    memset(out, 0, 512 + body);
    le(out, 0x10, 1);
    le(out + 4, MQQB_SIGNATURE, 4);
    le(out + 12, 345600, 4);
    le(out + 56, number, 4);
    le(out + 60, MQQB_USER_TH | MQQB_USER_MP | 7u << 10 | 0x20, 4);
    le(out + n, text(out + n + 2, "TCP:10.0.0.5\\private$\\line1"), 2);
    n += aligned(2 + (size_t)(out[n] | out[n + 1] << 8));
    le(out + n + 4, 7, 4);
    le(out + n + 12, number, 4);
    le(out + n + 16, number - 1, 4);
    n += 20;
    props = n;
    n += 56;
    n += text(out + n, "reading");
    out[props + 1] = (uint8_t)((n - props - 56) / 2);
    le(out + props + 32, body, 4);
    le(out + props + 36, body, 4);
    n = aligned(n + body);
    le(out + 8, n, 4);
    return n;
}

static size_t session_ack(uint8_t *out)
{
    memset(out, 0, 36);
    le(out, 0x10, 1);
    le(out + 2, 0x1B, 2);
    le(out + 4, MQQB_SIGNATURE, 4);
    le(out + 8, 36, 4);
    le(out + 18, 1, 2);
    le(out + 32, 64, 2);
    return 36;
}

static void run(const char *name, uint32_t packets, unsigned messages_of_four, size_t body)
{
    uint8_t *data = malloc(packets * (1024 + body));
    mqqb_scan_columns columns;
    size_t size = 0, consumed;
    double best = 1e9;
    int32_t status;
    uint32_t i;

    if (data == NULL) {
        exit(1);
    }
    for (i = 0; i < packets; i++) {
        size += i % 4 < messages_of_four ? message(data + size, i + 1, body) : session_ack(data + size);
    }
    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        columns.column[i] = malloc(packets * sizeof(uint32_t));
        if (columns.column[i] == NULL) {
            exit(1);
        }
    }
    for (i = 0; i < ROUNDS; i++) {
        struct timespec from, to;
        double ns;
        clock_gettime(CLOCK_MONOTONIC, &from);
        if (mqqb_scan(data, size, &columns, packets, &consumed, &status) != packets || status != MQQB_OK) {
            exit(1);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        ns = ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / packets;
        best = ns < best ? ns : best;
    }
    printf("scan, %-42s %6.1f ns a packet\n", name, best);
    for (i = 0; i < MQQB_SCAN_COLUMNS; i++) {
        free(columns.column[i]);
    }
    free(data);
}

int main(void)
{
    run("2,000 messages, 16 B bodies:", 2000, 4, 16); /* these and their columns stay in a second-level cache */
    run("20,000 messages, 16 B bodies:", 20000, 4, 16);
    run("20,000 messages, 1 KiB bodies:", 20000, 4, 1024);
    run("200,000 messages, 16 B bodies:", 200000, 4, 16); /* 100 MB with their columns: memory decides */
    run("20,000, three messages to one SessionAck:", 20000, 3, 100);
    run("20,000 SessionAck packets:", 20000, 0, 0);
    return 0;
}
