/* exhaustive.c: the meaning of an acknowledgement bit for all 2^32 (base, seq) pairs and three flag words, one by chance (B-103, B-107, B-222,
 * B-223). The other definition is a picture, not a formula: a circle of 65536 numbers on which the acknowledged ones are
 * marked by walking from the base, backwards half the circle and forwards over the bits; the numbers are then just counted up.
 * mqqb.c is included so that the compiler can put is_acked into the loop. Two processes share the work. */
#define _POSIX_C_SOURCE 200112L
#include "../../c_core/mqqb.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CIRCLE 65536u
#define PROCESSES 2

/* Twice around, so that a window of the circle is one piece wherever it begins. */
static uint32_t marks[2 * CIRCLE];

static void draw(uint32_t flags)
{
    uint32_t back, bit;

    memset(marks, 0, sizeof marks);
    if (flags == 0) {
        return;
    }
    marks[0] = 1;
    for (back = 1; back <= CIRCLE / 2; back++) {
        marks[CIRCLE - back] = 1;
    }
    for (bit = 1; bit < 32; bit++) {
        if (flags >> bit & 1) {
            marks[bit] = 1;
        }
    }
    memcpy(marks + CIRCLE, marks, CIRCLE * sizeof marks[0]);
}

static unsigned long check_bases(uint32_t flags, uint32_t first, uint32_t step)
{
    unsigned long wrong = 0;
    uint32_t base, seq;

    for (base = first; base < CIRCLE; base += step) {
        const uint32_t *const expected = marks + (CIRCLE - base);
        uint32_t different = 0;
        for (seq = 0; seq < CIRCLE; seq++) {
            different += (uint32_t)mqqb_is_acked(base, flags, seq) ^ expected[seq];
        }
        wrong += different;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    static const uint32_t fixed[] = {0, 0x80000001};
    const unsigned long seed = argc > 1 ? strtoul(argv[1], NULL, 0) : 1801;
    uint32_t words[3], random = (uint32_t)seed;
    pid_t children[PROCESSES];
    int failed = 0, i;
    size_t n;

    memcpy(words, fixed, sizeof fixed);
    for (n = sizeof fixed / sizeof fixed[0]; n < sizeof words / sizeof words[0]; n++) {
        random = random * 1664525u + 1013904223u;
        words[n] = random;
    }
    printf("exhaustive: seed %lu, 2^32 (base, seq) pairs for flags", seed);
    for (n = 0; n < sizeof words / sizeof words[0]; n++) {
        printf(" %08lX", (unsigned long)words[n]);
    }
    printf("\n");
    fflush(stdout);
    for (i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            for (n = 0; n < sizeof words / sizeof words[0]; n++) {
                unsigned long wrong;
                draw(words[n]);
                wrong = check_bases(words[n], (uint32_t)i, PROCESSES);
                if (wrong != 0) {
                    printf("flags %08lX: %lu pairs are wrong\n", (unsigned long)words[n], wrong);
                    failed = 1;
                }
            }
            fflush(stdout);
            _exit(failed);
        }
    }
    for (i = 0; i < PROCESSES; i++) {
        int status = 1;
        if (children[i] < 0 || waitpid(children[i], &status, 0) < 0 || status != 0) {
            failed = 1;
        }
    }
    printf("exhaustive: %d passed, %d failed\n", !failed, failed);
    return failed;
}
