// uart.c: the CMSDK UARTs. The hardware holds one byte each way; the rings hold the rest.
#include "uart.h"

#include "py/mphal.h"
#include "py/runtime.h"
#include "shared/runtime/interrupt_char.h"

typedef struct {
    volatile uint32_t data, state, control, interrupt, divisor;
} registers_t;

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

#define DIVISOR_MIN 16 // the hardware's
#define IDLE_AFTER_MS 2
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

static registers_t *registers(const uart_t *uart)
{
    return (registers_t *)(UART_BASE + (uart - uarts) * UART_STRIDE);
}

void uart_start(uart_t *uart, uint32_t baud_rate)
{
    uint32_t divisor = CLOCK_HZ / baud_rate;
    int number = uart - uarts;

    uart->held = false;
    uart->idle_in = 0;
    registers(uart)->divisor = divisor < DIVISOR_MIN ? DIVISOR_MIN : divisor;
    registers(uart)->control = CONTROL_SEND | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT;
    NVIC_EnableIRQ(UART0_RX_IRQn + 2 * number);
    NVIC_EnableIRQ(UART0_TX_IRQn + 2 * number);
}

void uart_stop(uart_t *uart)
{
    registers(uart)->control = 0;
    NVIC_DisableIRQ(UART0_RX_IRQn + 2 * (uart - uarts));
    NVIC_DisableIRQ(UART0_TX_IRQn + 2 * (uart - uarts));
    uart->on_received = uart->on_idle = NULL;
    uart->idle_in = 0;
}

void uarts_init(void)
{
    uart_start(&uarts[0], 115200);
}

// ---- in: interrupts masked

static void receive(uart_t *uart)
{
    registers_t *hardware = registers(uart);

    hardware->interrupt = INTERRUPT_RECEIVED;
    while (hardware->state & STATE_RECEIVED_FULL) {
        if (uart->flow_control && ringbuf_free(&uart->received) == 0) {
            uart->held = true; // the byte stays in the hardware, and QEMU holds what would follow it
            break;
        }
        uint8_t byte = hardware->data;
        if (uart == &uarts[0] && byte == mp_interrupt_char) {
            mp_sched_keyboard_interrupt();
        } else if (ringbuf_put(&uart->received, byte) != 0) {
            uart->overruns++;
        }
    }
    uart->idle_in = IDLE_AFTER_MS;
    board_wake();
    if (uart->on_received != NULL) {
        uart->on_received(uart - uarts);
    }
}

void uarts_tick(void)
{
    for (int number = 0; number < UART_COUNT; number++) {
        uart_t *uart = &uarts[number];
        if (uart->idle_in != 0 && --uart->idle_in == 0 && uart->on_idle != NULL) {
            uart->on_idle(number);
        }
    }
}

void uarts_deaf(uint32_t ms)
{
    uint32_t begin = mp_hal_ticks_us();
    uint32_t heard[UART_COUNT] = {0}; // bytes that could have come
    uint32_t came[UART_COUNT] = {0};
    uint32_t us;

    for (int number = 1; number < UART_COUNT; number++) {
        NVIC_DisableIRQ(UART0_RX_IRQn + 2 * number);
    }
    while ((us = mp_hal_ticks_us() - begin) < 1000 * ms) {
        for (int number = 1; number < UART_COUNT; number++) {
            uart_t *uart = &uarts[number];
            registers_t *hardware = registers(uart);
            if (uart->received.buf == NULL || uart->flow_control ||
                us * (CLOCK_HZ / 1000000) / BITS_PER_BYTE / hardware->divisor <= heard[number]) {
                continue;
            }
            heard[number]++;
            if (hardware->state & STATE_RECEIVED_FULL) {
                uint8_t byte = hardware->data;
                if (++came[number] > FIFO_BYTES || ringbuf_put(&uart->received, byte) != 0) {
                    uart->overruns++;
                }
            }
        }
    }
    for (int number = 1; number < UART_COUNT; number++) {
        if (uarts[number].received.buf != NULL) {
            NVIC_EnableIRQ(UART0_RX_IRQn + 2 * number);
        }
    }
}

size_t uart_read(uart_t *uart, void *data, size_t size)
{
    size_t available = ringbuf_avail(&uart->received);

    if (size > available) {
        size = available;
    }
    ringbuf_memcpy_get_internal(&uart->received, data, size);
    if (uart->held) {
        uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
        uart->held = false;
        receive(uart);
        MICROPY_END_ATOMIC_SECTION(state);
    }
    return size;
}

// ---- out

// Interrupts masked. What the hardware does not take now, its interrupt will come for.
static void send(uart_t *uart)
{
    registers_t *hardware = registers(uart);

    hardware->interrupt = INTERRUPT_SENT;
    hardware->control |= CONTROL_SEND_INTERRUPT; // before the look at its state: it may get free right after it
    while (!(hardware->state & STATE_OUTGOING_FULL)) {
        int byte = ringbuf_get(&uart->outgoing);
        if (byte < 0) {
            hardware->control &= ~CONTROL_SEND_INTERRUPT;
            break;
        }
        hardware->data = byte;
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
        while (registers(uart)->state & STATE_OUTGOING_FULL) {
        }
        registers(uart)->data = *data++;
    }
}

bool uart_is_empty(uart_t *uart)
{
    return ringbuf_avail(&uart->outgoing) == 0 && !(registers(uart)->state & STATE_OUTGOING_FULL);
}

static void sent(uart_t *uart)
{
    send(uart);
    board_wake();
}

void UART0_RX_Handler(void)
{
    receive(&uarts[0]);
}

void UART0_TX_Handler(void)
{
    sent(&uarts[0]);
}

void UART1_RX_Handler(void)
{
    receive(&uarts[1]);
}

void UART1_TX_Handler(void)
{
    sent(&uarts[1]);
}

void UART2_RX_Handler(void)
{
    receive(&uarts[2]);
}

void UART2_TX_Handler(void)
{
    sent(&uarts[2]);
}
