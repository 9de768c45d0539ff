// uart.h: the UARTs, each with a ring of received and one of outgoing bytes.
#ifndef MPS2_UART_H
#define MPS2_UART_H

#include "board.h"
#include "py/ringbuf.h"

#define UART_COUNT 2 // 0 is the terminal

typedef struct {
    ringbuf_t received, outgoing; // those of UART 1 must exist before uart_start()
    uint32_t baud_rate;
    volatile uint32_t overruns; // bytes lost because `received` was full
    bool flow_control;          // a full ring holds the sender instead of losing bytes
    volatile bool held;
} uart_t;

extern uart_t uarts[UART_COUNT];

void uart_start(uart_t *uart, uint32_t baud_rate);
void uart_stop(uart_t *uart);
// Loses the bytes received in the next ms, as on boards that run from a flash during its erase. QEMU has no baud rate,
// so the loss is limited to the line's capacity.
void uart_deaf(uart_t *uart, uint32_t ms);
// Bytes read; 0 if there are none now.
size_t uart_read(uart_t *uart, void *data, size_t size);
// Bytes accepted; 0 if there is no room now.
size_t uart_write(uart_t *uart, const void *data, size_t size);
// Waits, with interrupts as they are: for fault messages.
void uart_write_slowly(uart_t *uart, const char *data, size_t size);
// True when the last byte has left.
bool uart_is_empty(uart_t *uart);

#endif
