/* fuzz.h: what fuzz targets have in common. With libFuzzer (FUZZER defined) one is a fuzz target; else a plain test on packets of its
 * own making, damaged: fuzz [seed [runs]], seed printed. */
#ifndef FUZZ_H
#define FUZZ_H

#include "check.h"
#include "packets.h"

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input behind its first byte, in memory of just that size: a sanitizer then sees the first byte past the end. Odd inputs get a
 * right BaseHeader put over them, so that what lies behind it is reached. */
static inline uint8_t *exact_input(const uint8_t *data, size_t size, size_t *rest, int with_header)
{
    uint8_t *exact;

    *rest = size > 0 ? size - 1 : 0;
    exact = malloc(*rest + 1);
    if (*rest > 0) {
        memcpy(exact, data + 1, *rest);
    }
    if (with_header && *rest >= 120 && (data[0] & 1) != 0) {
        exact[0] = 0x10;
        memcpy(exact + 4, "LIOR", 4);
        le(exact + 8, *rest - ((exact[2] & 0x18) == 0x10 ? 16 : 0), 4);
        if (*rest < 136) {
            exact[2] |= 0x08;
        }
    }
    return exact;
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
    const unsigned long runs = argc > 2 ? strtoul(argv[2], NULL, 0) : 15000;
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

#endif
