// uart.c: what all boards do with their UARTs. The hardware holds a few bytes each way; the rings hold the rest.
#include "uart.h"

#include "py/mphal.h"
#include "py/runtime.h"
#include "shared/runtime/interrupt_char.h"

#define BITS_PER_BYTE 10
#define FIFO_BYTES 32 // what an RP2040's hardware holds while nobody comes for it

static uint8_t terminal_received[1024], terminal_outgoing[256];

uart_t uarts[UART_COUNT] = {
    [0] =
        {
            .received = {terminal_received, sizeof(terminal_received)},
            .outgoing = {terminal_outgoing, sizeof(terminal_outgoing)},
            .flow_control = true, // a pasted program arrives whole
        },
};

bool uart_start(uart_t *uart, uint32_t baud_rate)
{
    uart->held = false;
    uart->baud_rate = baud_rate;
    return line_start(uart - uarts, baud_rate);
}

void uart_stop(uart_t *uart)
{
    line_stop(uart - uarts);
}

void uarts_init(void)
{
    uart_start(&uarts[0], 115200);
}

// ---- in: interrupts masked

void uart_on_received(uart_t *uart)
{
    int number = uart - uarts;

    while (line_has_byte(number)) {
        if (uart->flow_control && ringbuf_free(&uart->received) == 0) {
            uart->held = true; // the byte stays in the hardware, and QEMU holds what would follow it
            line_listen(number, false);
            break;
        }
        uint8_t byte = line_byte(number);
        if (number == 0 && byte == mp_interrupt_char) {
            mp_sched_keyboard_interrupt();
        } else if (ringbuf_put(&uart->received, byte) != 0) {
            uart->overruns++;
        }
    }
    board_wake();
}

void uarts_deaf(uint32_t ms)
{
    uint32_t begin = mp_hal_ticks_us();
    uint32_t heard[UART_COUNT] = {0}; // bytes that could have come
    uint32_t came[UART_COUNT] = {0};
    uint32_t us;

    for (int number = 1; number < UART_COUNT; number++) {
        line_listen(number, false);
    }
    while ((us = mp_hal_ticks_us() - begin) < 1000 * ms) {
        for (int number = 1; number < UART_COUNT; number++) {
            uart_t *uart = &uarts[number];
            if (uart->received.buf == NULL || uart->flow_control ||
                (uint64_t)us * uart->baud_rate / (BITS_PER_BYTE * 1000000u) <= heard[number]) {
                continue;
            }
            heard[number]++;
            if (line_has_byte(number)) {
                uint8_t byte = line_byte(number);
                if (++came[number] > FIFO_BYTES || ringbuf_put(&uart->received, byte) != 0) {
                    uart->overruns++;
                }
            }
        }
    }
    for (int number = 1; number < UART_COUNT; number++) {
        if (uarts[number].received.buf != NULL) {
            line_listen(number, true);
        }
    }
}

size_t uart_read(uart_t *uart, void *data, size_t size)
{
    // Masked, or an interrupt between the look at `held` and the new place in the ring finds it full, and holds a byte
    // that nobody comes for: the ring is empty then, and whoever polls it waits for ever.
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
    size_t available = ringbuf_avail(&uart->received);

    if (size > available) {
        size = available;
    }
    ringbuf_memcpy_get_internal(&uart->received, data, size);
    if (uart->held) {
        uart->held = false;
        line_listen(uart - uarts, true);
        uart_on_received(uart);
    }
    MICROPY_END_ATOMIC_SECTION(state);
    return size;
}

// ---- out

// Interrupts masked. What the hardware does not take now, its interrupt will come for.
static void send(uart_t *uart)
{
    int number = uart - uarts;

    line_report_sent(number, true); // before the look at its state: it may get free right after it
    while (line_takes_byte(number)) {
        int byte = ringbuf_get(&uart->outgoing);
        if (byte < 0) {
            line_report_sent(number, false);
            break;
        }
        line_put(number, byte);
    }
}

size_t uart_write(uart_t *uart, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    size_t taken = 0;

    while (taken < size && ringbuf_free(&uart->outgoing) != 0) {
        size_t room = ringbuf_free(&uart->outgoing);
        size_t some = size - taken < room ? size - taken : room;
        ringbuf_memcpy_put_internal(&uart->outgoing, bytes + taken, some);
        taken += some;
        uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
        send(uart);
        MICROPY_END_ATOMIC_SECTION(state);
    }
    return taken;
}

void uart_write_slowly(uart_t *uart, const char *data, size_t size)
{
    while (size-- != 0) {
        while (!line_takes_byte(uart - uarts)) {
        }
        line_put(uart - uarts, *data++);
    }
}

bool uart_is_empty(uart_t *uart)
{
    return ringbuf_avail(&uart->outgoing) == 0 && line_takes_byte(uart - uarts);
}

void uart_on_sent(uart_t *uart)
{
    send(uart);
    board_wake();
}
