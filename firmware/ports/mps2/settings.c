// settings.c: words NAME=VALUE on QEMU's command line, so that two boards with the same firmware can differ.
#include <stdlib.h>
#include <string.h>

#include "board.h"

static char line[1024];

void settings_init(void)
{
    semihost_command_line(line, sizeof(line));
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
