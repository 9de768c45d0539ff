// uart_cmsdk.c: ARM's CMSDK UARTs of the MPS2 boards. The hardware holds one byte each way.
#include "uart.h"

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

static registers_t *registers(int number)
{
    return (registers_t *)(UART_BASE + number * UART_STRIDE);
}

bool line_start(int number, uint32_t baud_rate)
{
    uint32_t divisor = CLOCK_HZ / baud_rate;

    registers(number)->divisor = divisor < DIVISOR_MIN ? DIVISOR_MIN : divisor;
    (void)line_byte(number); // held, since the ring of before was full: it has had its interrupt, and no other comes
    registers(number)->control = CONTROL_SEND | CONTROL_RECEIVE | CONTROL_RECEIVE_INTERRUPT;
    line_listen(number, true);
    cpu_interrupt(UART0_TX_IRQn + 2 * number, true);
    return true;
}

void line_stop(int number)
{
    registers(number)->control = 0;
    line_listen(number, false);
    cpu_interrupt(UART0_TX_IRQn + 2 * number, false);
}

void line_listen(int number, bool on)
{
    cpu_interrupt(UART0_RX_IRQn + 2 * number, on);
}

bool line_has_byte(int number)
{
    return registers(number)->state & STATE_RECEIVED_FULL;
}

uint8_t line_byte(int number)
{
    return registers(number)->data;
}

void line_report_sent(int number, bool on)
{
    if (on) {
        registers(number)->control |= CONTROL_SEND_INTERRUPT;
    } else {
        registers(number)->control &= ~CONTROL_SEND_INTERRUPT;
    }
}

bool line_takes_byte(int number)
{
    return !(registers(number)->state & STATE_OUTGOING_FULL);
}

void line_put(int number, uint8_t byte)
{
    registers(number)->data = byte;
}

static void received(int number)
{
    registers(number)->interrupt = INTERRUPT_RECEIVED;
    uart_on_received(&uarts[number]);
}

static void sent(int number)
{
    registers(number)->interrupt = INTERRUPT_SENT;
    uart_on_sent(&uarts[number]);
}

void UART0_RX_Handler(void)
{
    received(0);
}

void UART0_TX_Handler(void)
{
    sent(0);
}

void UART1_RX_Handler(void)
{
    received(1);
}

void UART1_TX_Handler(void)
{
    sent(1);
}
