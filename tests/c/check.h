/* check.h: the smallest test frame that names what it tests. A test is a function; RUN gives it the rules it shows. */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *rules, *name;
    unsigned long checks;
    int passed, failed, faults;
} run;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        run.checks++;                                                                                                  \
        if (!(condition) && run.faults++ < 5) {                                                                        \
            printf("%s:%d: %s [%s]: %s\n", __FILE__, __LINE__, run.name, run.rules, #condition);                       \
        }                                                                                                              \
    } while (0)

#define CHECK_EQ(actual, expected)                                                                                     \
    do {                                                                                                               \
        const long long actual_ = (long long)(actual), expected_ = (long long)(expected);                              \
        run.checks++;                                                                                                  \
        if (actual_ != expected_ && run.faults++ < 5) {                                                                \
            printf("%s:%d: %s [%s]: %s is %lld (0x%llx), not %lld (0x%llx)\n", __FILE__, __LINE__, run.name,           \
                   run.rules, #actual, actual_, (unsigned long long)actual_, expected_,                                \
                   (unsigned long long)expected_);                                                                     \
        }                                                                                                              \
    } while (0)

#define CHECK_BYTES(actual, expected, size) CHECK(memcmp(actual, expected, size) == 0)

#define RUN(rules_, test)                                                                                              \
    do {                                                                                                               \
        run.rules = rules_;                                                                                            \
        run.name = #test;                                                                                              \
        run.faults = 0;                                                                                                \
        test();                                                                                                        \
        if (run.faults == 0) {                                                                                         \
            run.passed++;                                                                                              \
        } else {                                                                                                       \
            run.failed++;                                                                                              \
        }                                                                                                              \
    } while (0)

static inline int summary(const char *program)
{
    printf("%s: %d passed, %d failed (%lu checks)\n", program, run.passed, run.failed, run.checks);
    return run.failed != 0;
}

/* A caller's mistake must end in MQQB_ASSERT, which assert_hook.h turns into a jump to here. */
extern jmp_buf assert_jump;
extern int assert_armed;

#define CHECK_ASSERTS(statement)                                                                                       \
    do {                                                                                                               \
        run.checks++;                                                                                                  \
        assert_armed = 1;                                                                                              \
        if (setjmp(assert_jump) == 0) {                                                                                \
            statement;                                                                                                 \
            if (run.faults++ < 5) {                                                                                    \
                printf("%s:%d: %s [%s]: no assertion: %s\n", __FILE__, __LINE__, run.name, run.rules, #statement);     \
            }                                                                                                          \
        }                                                                                                              \
        assert_armed = 0;                                                                                              \
    } while (0)

/* xorshift64*: the same numbers from the same seed everywhere. */
static uint64_t random_state = 1;

static inline uint32_t random32(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)(random_state * 0x2545F4914F6CDD1Du >> 32);
}

static inline uint32_t below(uint32_t n)
{
    return random32() % n;
}

/* Seed from the command line or fixed, and printed. */
static inline void seed_random(int argc, char **argv, uint64_t fallback)
{
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : fallback;

    printf("%s: seed %" PRIu64 "\n", argv[0], seed);
    random_state = seed * 2 + 1;
    (void)random32();
}

#endif
