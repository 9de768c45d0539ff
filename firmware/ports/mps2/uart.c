// uart.c: ARM's CMSDK UARTs: the terminal, 0, and the one for programs, 1. The hardware holds one byte each way; rings
// hold more.
#include "uart.h"

#include "py/mphal.h"
#include "py/runtime.h"
#include "py/stream.h"
#include "shared/runtime/interrupt_char.h"

#define BITS_PER_BYTE 10
#define FIFO_BYTES 32  // as an RP2040's hardware holds
#define DIVISOR_MIN 16 // the hardware's

enum {
    STATE_OUTGOING_FULL = 1 << 0,
    STATE_RECEIVED_FULL = 1 << 1,
    CONTROL_SEND = 1 << 0,
    CONTROL_RECEIVE = 1 << 1,
    CONTROL_SEND_INTERRUPT = 1 << 2,
    CONTROL_RECEIVE_INTERRUPT = 1 << 3,
    INTERRUPT_SENT = 1 << 0,
    INTERRUPT_RECEIVED = 1 << 1,
};

typedef struct {
    volatile uint32_t data, state, control, interrupt, divisor;
} registers_t;

static uint8_t terminal_received[1024], terminal_outgoing[256];

uart_t uarts[UART_COUNT] = {
    [0] =
        {
            .received = {terminal_received, sizeof(terminal_received)},
            .outgoing = {terminal_outgoing, sizeof(terminal_outgoing)},
            .flow_control = true, // so that a pasted program arrives whole
        },
};

static registers_t *registers(const uart_t *uart)
{
    return (registers_t *)(UART_BASE + (uart - uarts) * UART_STRIDE);
}

// Turns its receive interrupt on or off.
static void listen(uart_t *uart, bool on)
{
    cpu_interrupt(UART0_RX_IRQn + 2 * (uart - uarts), on);
}

static bool has_byte(const uart_t *uart)
{
    return registers(uart)->state & STATE_RECEIVED_FULL;
}

static bool takes_byte(const uart_t *uart)
{
    return !(registers(uart)->state & STATE_OUTGOING_FULL);
}

void uart_start(uart_t *uart, uint32_t baud_rate)
{
    uint32_t divisor = CLOCK_HZ / baud_rate;

    uart->held = false;
    uart->baud_rate = baud_rate;
    registers(uart)->divisor = divisor < DIVISOR_MIN ? DIVISOR_MIN : divisor;
    (void)registers(uart)
        ->data; // held, because the earlier ring was full: its interrupt has passed, and no other one comes
    registers(uart)->control = CONTROL_SEND | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT;
    listen(uart, true);
    cpu_interrupt(UART0_TX_IRQn + 2 * (uart - uarts), true);
}

void uart_stop(uart_t *uart)
{
    registers(uart)->control = 0;
    listen(uart, false);
    cpu_interrupt(UART0_TX_IRQn + 2 * (uart - uarts), false);
}

// ---- input: interrupts masked

static void on_received(uart_t *uart)
{
    while (has_byte(uart)) {
        if (uart->flow_control && ringbuf_free(&uart->received) == 0) {
            uart->held = true; // the byte stays in the hardware, and QEMU holds the following ones
            listen(uart, false);
            break;
        }
        uint8_t byte = registers(uart)->data;
        if (uart == &uarts[0] && byte == mp_interrupt_char) {
            mp_sched_keyboard_interrupt();
        } else if (ringbuf_put(&uart->received, byte) != 0) {
            uart->overruns++;
        }
    }
    board_wake();
}

void uart_deaf(uart_t *uart, uint32_t ms)
{
    uint32_t begin = mp_hal_ticks_us();
    uint32_t could = 0, came = 0; // bytes
    uint32_t us;

    listen(uart, false);
    while ((us = mp_hal_ticks_us() - begin) < 1000 * ms) {
        if (uart->received.buf == NULL || (uint64_t)us * uart->baud_rate / (BITS_PER_BYTE * 1000000u) <= could) {
            continue;
        }
        could++;
        if (has_byte(uart)) {
            uint8_t byte = registers(uart)->data;
            if (++came > FIFO_BYTES || ringbuf_put(&uart->received, byte) != 0) {
                uart->overruns++;
            }
        }
    }
    if (uart->received.buf != NULL) {
        listen(uart, true);
    }
}

size_t uart_read(uart_t *uart, void *data, size_t size)
{
    // Masked, because an interrupt between the check of `held` and the ring's advance would find it full and hold a
    // byte. The ring would then be empty, without another interrupt, and its reader would wait for ever.
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
    size_t available = ringbuf_avail(&uart->received);

    if (size > available) {
        size = available;
    }
    ringbuf_memcpy_get_internal(&uart->received, data, size);
    if (uart->held) {
        uart->held = false;
        listen(uart, true);
        on_received(uart);
    }
    MICROPY_END_ATOMIC_SECTION(state);
    return size;
}

// ---- output

// Interrupts masked. The interrupt sends bytes that the hardware does not take now.
static void send(uart_t *uart)
{
    // before the check of its state: it may become free right after it
    registers(uart)->control |= CONTROL_SEND_INTERRUPT;
    while (takes_byte(uart)) {
        int byte = ringbuf_get(&uart->outgoing);
        if (byte < 0) {
            registers(uart)->control &= ~CONTROL_SEND_INTERRUPT;
            break;
        }
        registers(uart)->data = byte;
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
        while (!takes_byte(uart)) {
        }
        registers(uart)->data = *data++;
    }
}

bool uart_is_empty(uart_t *uart)
{
    return ringbuf_avail(&uart->outgoing) == 0 && takes_byte(uart);
}

// ---- interrupts

static void received(uart_t *uart)
{
    registers(uart)->interrupt = INTERRUPT_RECEIVED;
    on_received(uart);
}

static void sent(uart_t *uart)
{
    registers(uart)->interrupt = INTERRUPT_SENT;
    send(uart);
    board_wake();
}

void UART0_RX_Handler(void)
{
    received(&uarts[0]);
}

void UART0_TX_Handler(void)
{
    sent(&uarts[0]);
}

void UART1_RX_Handler(void)
{
    received(&uarts[1]);
}

void UART1_TX_Handler(void)
{
    sent(&uarts[1]);
}

// ---- UART 0 as standard input and output

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
            board_wait(); // another sender holds the line: no printed byte is lost
        }
        sent += some;
    }
    return size;
}
