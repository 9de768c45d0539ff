// terminal.c: UART0 as standard input and output.
#include "py/mphal.h"
#include "py/runtime.h"
#include "py/stream.h"

#include "uart.h"

uintptr_t mp_hal_stdio_poll(uintptr_t asked)
{
    uintptr_t ready = asked & MP_STREAM_POLL_WR;

    if ((asked & MP_STREAM_POLL_RD) && ringbuf_avail(&uarts[0].received) != 0) {
        ready |= MP_STREAM_POLL_RD;
    }
    return ready;
}

int mp_hal_stdin_rx_chr(void)
{
    uint8_t byte;

    while (uart_read(&uarts[0], &byte, 1) == 0) {
        mp_event_wait_ms(1);
    }
    return byte;
}

mp_uint_t mp_hal_stdout_tx_strn(const char *text, size_t size)
{
    for (size_t sent = 0; sent < size;) {
        size_t some = uart_write(&uarts[0], text + sent, size - sent);
        if (some == 0) {
            board_wait(); // somebody holds the line: nothing printed is lost
        }
        sent += some;
    }
    return size;
}
