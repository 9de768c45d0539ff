// startup.c: from reset to main(), the interrupt vectors, and what is shown of a fault.
#include <string.h>

#include "board.h"
#include "uart.h"

// From mps2.ld.
extern uint8_t _stack_top[], _data_image[], _data_start[], _data_end[], _bss_start[], _bss_end[];

int main(void);
void SysTick_Handler(void);
void ETHERNET_Handler(void);

#define FAULT_STATUS 3 // QEMU's exit status after a fault
#define SEMIHOSTING_BKPT 0xBEAB

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

__attribute__((used)) void fault(saved_t *saved)
{
    // Without -semihosting QEMU faults at a semihosting call: answer "not possible" and go on.
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
    uart_write_slowly(&uarts[0], "\r\n", 2);
    semihost_exit(FAULT_STATUS);
}

void board_panic(const char *why)
{
    uart_write_slowly(&uarts[0], "\r\nPANIC ", 8);
    uart_write_slowly(&uarts[0], why, strlen(why));
    uart_write_slowly(&uarts[0], "\r\n", 2);
    semihost_exit(FAULT_STATUS);
}

__attribute__((naked)) static void Fault_Handler(void)
{
    __asm volatile("mrs r0, msp\n b fault");
}

__attribute__((noreturn)) static void Reset_Handler(void)
{
    memcpy(_data_start, _data_image, _data_end - _data_start);
    memset(_bss_start, 0, _bss_end - _bss_start);
    reset_init();
    uarts_init();
    settings_init();
    random_init();
    clock_init();
    semihost_exit(main());
}

typedef void (*handler_t)(void);

__attribute__((section(".vectors"), used)) static const handler_t vectors[16 + 32] = {
    (handler_t)_stack_top,
    Reset_Handler,
    [2 ... 14] = Fault_Handler, // exceptions that nothing here uses
    [15] = SysTick_Handler,
    [16 ... 16 + 31] = Fault_Handler,
    [16 + UART0_RX_IRQn] = UART0_RX_Handler,
    [16 + UART0_TX_IRQn] = UART0_TX_Handler,
    [16 + UART1_RX_IRQn] = UART1_RX_Handler,
    [16 + UART1_TX_IRQn] = UART1_TX_Handler,
    [16 + UART2_RX_IRQn] = UART2_RX_Handler,
    [16 + UART2_TX_IRQn] = UART2_TX_Handler,
    [16 + ETHERNET_IRQn] = ETHERNET_Handler,
};
