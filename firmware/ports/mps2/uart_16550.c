// uart_16550.c: the UARTs of QEMU's `virt`: 16550s, the second one behind PCI.
#include "riscv.h"
#include "uart.h"

typedef struct {
    volatile uint8_t data, enable, identity, format, modem, state;
} registers_t;

enum {
    ENABLE_RECEIVED = 1 << 0,
    ENABLE_SENT = 1 << 1,
    IDENTITY_NOTHING = 1 << 0, // no interrupt is there
    FIFO_ON_AND_EMPTY = 7,     // written to `identity`
    FORMAT_8N1 = 3,
    MODEM_ON = 0xB, // ready, and interrupts
    STATE_RECEIVED = 1 << 0,
    STATE_OUTGOING_EMPTY = 1 << 5,
};

static registers_t *registers(int number)
{
    return (registers_t *)(number == 0 ? UART_BASE : pci_uart_base);
}

static int interrupt_of(int number)
{
    return number == 0 ? UART0_IRQn : pci_uart_irq;
}

static void on_interrupt(int number)
{
    // Until it has nothing to tell: QEMU's PLIC (7.2) sees an interrupt only when its line rises, and a byte that comes
    // while another cause holds the line up would never be told, nor anything after it.
    while (!(registers(number)->identity & IDENTITY_NOTHING)) { // reading it acknowledges what was sent
        if (line_has_byte(number)) {
            uart_on_received(&uarts[number]);
        }
        if ((registers(number)->enable & ENABLE_SENT) && line_takes_byte(number)) {
            uart_on_sent(&uarts[number]);
        }
    }
}

static void on_interrupt_0(void)
{
    on_interrupt(0);
}

static void on_interrupt_1(void)
{
    on_interrupt(1);
}

// QEMU has no baud rate.
bool line_start(int number, uint32_t baud_rate)
{
    if (registers(number) == NULL) {
        return false;
    }
    registers(number)->format = FORMAT_8N1;
    registers(number)->identity = FIFO_ON_AND_EMPTY;
    registers(number)->modem = MODEM_ON;
    cpu_on_interrupt(interrupt_of(number), number == 0 ? on_interrupt_0 : on_interrupt_1);
    cpu_interrupt(interrupt_of(number), true);
    registers(number)->enable = ENABLE_RECEIVED; // last: QEMU's PLIC (7.2) tells nothing that came before it listened
    return true;
}

void line_stop(int number)
{
    if (registers(number) != NULL) {
        registers(number)->enable = 0;
        cpu_interrupt(interrupt_of(number), false);
    }
}

static void enable(int number, uint8_t what, bool on)
{
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
    uint8_t before = registers(number)->enable;

    registers(number)->enable = on ? before | what : before & ~what;
    MICROPY_END_ATOMIC_SECTION(state);
}

void line_listen(int number, bool on)
{
    if (registers(number) != NULL) {
        enable(number, ENABLE_RECEIVED, on);
    }
}

bool line_has_byte(int number)
{
    return registers(number)->state & STATE_RECEIVED;
}

uint8_t line_byte(int number)
{
    return registers(number)->data;
}

void line_report_sent(int number, bool on)
{
    enable(number, ENABLE_SENT, on);
}

bool line_takes_byte(int number)
{
    return registers(number)->state & STATE_OUTGOING_EMPTY;
}

void line_put(int number, uint8_t byte)
{
    registers(number)->data = byte;
}
