// arm.c: the Cortex-M3 from reset to main(): interrupt vectors, causes of resets, and fault messages.
#include <string.h>

#include "board.h"
#include "uart.h"

// from mps2.ld
extern uint8_t _stack_top[], _data_image[], _data_start[], _data_end[], _bss_start[], _bss_end[];

int main(void);
void UART0_RX_Handler(void);
void UART0_TX_Handler(void);
void UART1_RX_Handler(void);
void UART1_TX_Handler(void);
void ETHERNET_Handler(void);

#define SEMIHOSTING_BKPT 0xBEAB
#define FAULT_STATUS 3 // QEMU's exit status after a fault
#define MAGIC 0x5265436Fu

// The registers that the processor saves when it enters a handler.
typedef struct {
    uint32_t r0, r1, r2, r3, r12, lr, pc, xpsr;
} saved_t;

static void show(const char *name, uint32_t value)
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

__attribute__((used)) void fault(saved_t *saved)
{
    // Without -semihosting QEMU faults at a semihosting call: answer "not possible" and continue.
    if (!(saved->pc & 1) && *(uint16_t *)saved->pc == SEMIHOSTING_BKPT) {
        saved->r0 = -1;
        saved->pc += 2;
        return;
    }
    show("\r\nFAULT pc", saved->pc);
    show(" lr", saved->lr);
    show(" xpsr", saved->xpsr);
    show(" sp", (uint32_t)saved);
    show("\r\n r0", saved->r0);
    show(" r1", saved->r1);
    show(" r2", saved->r2);
    show(" r3", saved->r3);
    show(" r12", saved->r12);
    show("\r\n cfsr", SCB->CFSR);
    show(" hfsr", SCB->HFSR);
    show(" bfar", SCB->BFAR);
    board_panic("fault");
}

__attribute__((naked)) static void Fault_Handler(void)
{
    __asm volatile("mrs r0, msp\n b fault");
}

// ---- resets and the watchdog

// Written before a reset, read after it.
__attribute__((section(".noinit"))) static struct {
    uint32_t magic;
    uint32_t cause;
} left;

reset_cause_t reset_cause;
static volatile uint32_t watchdog_ms; // until the watchdog resets the board; 0: it is off

static void reset_init(void)
{
    reset_cause = left.magic == MAGIC ? left.cause : RESET_POWER_ON;
    // An external reset (QEMU's monitor) leaves this value.
    left.magic = MAGIC;
    left.cause = RESET_HARD;
}

void board_reset(reset_cause_t cause)
{
    left.cause = cause;
    NVIC_SystemReset();
}

void watchdog_feed(uint32_t timeout_ms)
{
    watchdog_ms = timeout_ms;
}

void watchdog_tick(void)
{
    if (watchdog_ms != 0 && --watchdog_ms == 0) {
        board_reset(RESET_WATCHDOG);
    }
}

__attribute__((noreturn)) static void Reset_Handler(void)
{
    memcpy(_data_start, _data_image, _data_end - _data_start);
    memset(_bss_start, 0, _bss_end - _bss_start);
    reset_init();
    uart_start(&uarts[0], 115200);
    settings_init();
    random_init();
    clock_init();
    semihost_exit(main());
}

void cpu_interrupt(int number, bool on)
{
    if (on) {
        NVIC_EnableIRQ(number);
    } else {
        NVIC_DisableIRQ(number);
    }
}

typedef void (*handler_t)(void);

__attribute__((section(".vectors"), used)) static const handler_t vectors[16 + INTERRUPTS] = {
    (handler_t)_stack_top,
    Reset_Handler,
    [2 ... 14] = Fault_Handler, // unused exceptions
    [15] = clock_tick,
    [16 ... 16 + INTERRUPTS - 1] = Fault_Handler,
    [16 + UART0_RX_IRQn] = UART0_RX_Handler,
    [16 + UART0_TX_IRQn] = UART0_TX_Handler,
    [16 + UART1_RX_IRQn] = UART1_RX_Handler,
    [16 + UART1_TX_IRQn] = UART1_TX_Handler,
    [16 + ETHERNET_IRQn] = ETHERNET_Handler,
};
