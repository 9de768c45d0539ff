// semihost.c: QEMU's services for the program: settings, the host's time and randomness, and the exit.
//
// Settings are words NAME=VALUE on QEMU's command line, so that two boards with the same firmware can differ.
#include <stdlib.h>
#include <string.h>

#include "board.h"

#include "py/runtime.h"

enum {
    SYS_OPEN = 0x01,
    SYS_CLOSE = 0x02,
    SYS_READ = 0x06,
    SYS_TIME = 0x11,
    SYS_GET_CMDLINE = 0x15,
    SYS_EXIT_EXTENDED = 0x20,
};

#define APPLICATION_EXIT 0x20026u
#define MODE_READ_BINARY 1
#define FAILED (-1)

static char line[1024];
static uint64_t random_state;

// -1 without -semihosting, by fault().
static int32_t semihost_call(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm("r0") = operation;
    register const void *r1 __asm("r1") = argument;

    __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void settings_init(void)
{
    struct {
        char *line;
        uint32_t size;
    } argument = {line, sizeof(line)};

    if (semihost_call(SYS_GET_CMDLINE, &argument) == FAILED) {
        line[0] = 0;
    }
}

const char *setting(const char *name, size_t name_length, size_t *length)
{
    // The first word is the name of the firmware's file.
    for (const char *word = strchr(line, ' '); word != NULL; word = strchr(word, ' ')) {
        word++;
        if (strncmp(word, name, name_length) == 0 && word[name_length] == '=') {
            const char *value = word + name_length + 1;
            const char *end = strchr(value, ' ');
            *length = end == NULL ? strlen(value) : (size_t)(end - value);
            return value;
        }
    }
    return NULL;
}

uint32_t setting_number(const char *name, uint32_t otherwise)
{
    size_t length;
    const char *digit = setting(name, strlen(name), &length);
    uint32_t number = 0;

    if (digit == NULL) {
        return otherwise;
    }
    for (; length != 0 && *digit >= '0' && *digit <= '9'; length--) {
        number = number * 10 + (*digit++ - '0');
    }
    return number;
}

uint32_t semihost_time(void)
{
    int32_t seconds = semihost_call(SYS_TIME, NULL);

    return seconds == FAILED ? 0 : seconds;
}

// Fills data with the host's randomness, if available.
static void semihost_random(void *data, size_t size)
{
    static const char path[] = "/dev/urandom";
    struct {
        const char *path;
        uint32_t mode, length;
    } open = {path, MODE_READ_BINARY, sizeof(path) - 1};
    struct {
        int32_t file;
        void *data;
        uint32_t size;
    } read = {semihost_call(SYS_OPEN, &open), data, size};

    if (read.file != FAILED) {
        semihost_call(SYS_READ, &read);
        semihost_call(SYS_CLOSE, &read.file);
    }
}

void semihost_exit(int status)
{
    uint32_t argument[2] = {APPLICATION_EXIT, status};

    semihost_call(SYS_EXIT_EXTENDED, argument);
    for (;;) {
        __WFI();
    }
}

void random_init(void)
{
    semihost_random(&random_state, sizeof(random_state)); // without it the numbers repeat at each start
    random_state = random_state * 2 + 1;                  // never 0, which would stay 0
}

// xorshift64*
uint32_t random_word(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (random_state * 0x2545F4914F6CDD1Dull) >> 32;
}
