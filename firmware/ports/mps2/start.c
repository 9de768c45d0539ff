// start.c: the order in which the parts of a board start, and its last words.
#include <string.h>

#include "board.h"
#include "uart.h"

int main(void);

#define FAULT_STATUS 3 // QEMU's exit status after a fault

void board_start(void)
{
    reset_init();
    uarts_init();
    settings_init();
    random_init();
    clock_init();
    semihost_exit(main());
}

void board_show(const char *name, uint32_t value)
{
    char text[] = " 00000000";

    for (int i = 8; i > 0; i--, value >>= 4) {
        text[i] = "0123456789abcdef"[value & 15];
    }
    uart_write_slowly(&uarts[0], name, strlen(name));
    uart_write_slowly(&uarts[0], text, 9);
}

void board_panic(const char *why)
{
    uart_write_slowly(&uarts[0], "\r\nPANIC ", 8);
    uart_write_slowly(&uarts[0], why, strlen(why));
    uart_write_slowly(&uarts[0], "\r\n", 2);
    semihost_exit(FAULT_STATUS);
}
