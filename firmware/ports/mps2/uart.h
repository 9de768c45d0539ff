// uart.h: the UARTs, each with a ring of received and one of outgoing bytes.
#ifndef MPS2_UART_H
#define MPS2_UART_H

#include "board.h"
#include "py/ringbuf.h"

typedef struct {
    ringbuf_t received, outgoing;
    uint32_t baud_rate;
    volatile uint32_t overruns; // bytes lost because `received` was full
    volatile bool flow_control; // a full ring holds the sender, as an RTS line would, instead of losing bytes
    volatile bool held;
} uart_t;

extern uart_t uarts[UART_COUNT];

// UART0, with rings of its own; the others stay silent until uart_start().
void uarts_init(void);
// `received` and `outgoing` must be there. False if the machine was started without this UART.
bool uart_start(uart_t *uart, uint32_t baud_rate);
void uart_stop(uart_t *uart);
// For so long nobody comes for what UART 1 receives, and it is lost: so it is on boards that run from the flash which
// is erased meanwhile. QEMU has no baud rate, so only as much as could have come is; a line with RTS holds it.
void uarts_deaf(uint32_t ms);
// Bytes read; 0 if there are none now.
size_t uart_read(uart_t *uart, void *data, size_t size);
// Bytes taken; 0 if there is no room now.
size_t uart_write(uart_t *uart, const void *data, size_t size);
// Waits with interrupts as they are: for a fault's last words.
void uart_write_slowly(uart_t *uart, const char *data, size_t size);
// True when the last byte has left.
bool uart_is_empty(uart_t *uart);

// For the hardware's interrupts: bytes have come; it takes bytes.
void uart_on_received(uart_t *uart);
void uart_on_sent(uart_t *uart);

// ---- uart_cmsdk.c or uart_16550.c: the hardware of a UART

bool line_start(int number, uint32_t baud_rate);
void line_stop(int number);
// Whether its interrupt comes for what is received.
void line_listen(int number, bool on);
bool line_has_byte(int number);
uint8_t line_byte(int number);
// Whether its interrupt comes when it takes bytes.
void line_report_sent(int number, bool on);
bool line_takes_byte(int number);
void line_put(int number, uint8_t byte);

#endif
