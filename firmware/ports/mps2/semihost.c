// semihost.c: semihosting, the calls that QEMU answers for the program that it runs.
#include <string.h>

#include "board.h"

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

void semihost_command_line(char *line, size_t size)
{
    struct {
        char *line;
        uint32_t size;
    } argument = {line, size};

    if (semihost_call(SYS_GET_CMDLINE, &argument) == FAILED) {
        line[0] = 0;
    }
}

uint32_t semihost_time(void)
{
    int32_t seconds = semihost_call(SYS_TIME, NULL);

    return seconds == FAILED ? 0 : seconds;
}

bool semihost_random(void *data, size_t size)
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

    if (read.file == FAILED) {
        return false;
    }
    bool all = semihost_call(SYS_READ, &read) == 0; // the bytes that are missing
    semihost_call(SYS_CLOSE, &read.file);
    return all;
}

void semihost_exit(int status)
{
    uint32_t argument[2] = {APPLICATION_EXIT, status};

    semihost_call(SYS_EXIT_EXTENDED, argument);
    for (;;) {
        cpu_wait();
    }
}
