// arm.c: the Cortex-M boards from reset to main(), their interrupt vectors, ticks, and what is shown of a fault.
#include <string.h>

#include "board.h"

// From mps2.ld.
extern uint8_t _stack_top[], _data_image[], _data_start[], _data_end[], _bss_start[], _bss_end[];

void UART0_RX_Handler(void);
void UART0_TX_Handler(void);
void UART1_RX_Handler(void);
void UART1_TX_Handler(void);
void ETHERNET_Handler(void);

#define SEMIHOSTING_BKPT 0xBEAB
#define FPU_ON (0xFu << 20) // coprocessors 10 and 11, for all code
#define CYCLES_PER_MS (CLOCK_HZ / 1000)

// The registers that the processor saves when it enters a handler.
typedef struct {
    uint32_t r0, r1, r2, r3, r12, lr, pc, xpsr;
} saved_t;

__attribute__((used)) void fault(saved_t *saved)
{
    // Without -semihosting QEMU faults at a semihosting call: answer "not possible" and go on.
    if (!(saved->pc & 1) && *(uint16_t *)saved->pc == SEMIHOSTING_BKPT) {
        saved->r0 = -1;
        saved->pc += 2;
        return;
    }
    board_show("\r\nFAULT pc", saved->pc);
    board_show(" lr", saved->lr);
    board_show(" xpsr", saved->xpsr);
    board_show(" sp", (uint32_t)saved);
    board_show("\r\n r0", saved->r0);
    board_show(" r1", saved->r1);
    board_show(" r2", saved->r2);
    board_show(" r3", saved->r3);
    board_show(" r12", saved->r12);
    board_show("\r\n cfsr", SCB->CFSR);
    board_show(" hfsr", SCB->HFSR);
    board_show(" bfar", SCB->BFAR);
    board_panic("fault");
}

__attribute__((naked)) static void Fault_Handler(void)
{
    __asm volatile("mrs r0, msp\n b fault");
}

// -1 when QEMU was started without -semihosting: fault() sees to that.
int32_t semihost_call(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm("r0") = operation;
    register const void *r1 __asm("r1") = argument;

    __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

__attribute__((noreturn)) static void Reset_Handler(void)
{
#if __FPU_PRESENT
    SCB->CPACR |= FPU_ON;
    __DSB();
    __ISB();
#endif
    memcpy(_data_start, _data_image, _data_end - _data_start);
    memset(_bss_start, 0, _bss_end - _bss_start);
    board_start();
}

void cpu_interrupt(int number, bool on)
{
    if (on) {
        NVIC_EnableIRQ(number);
    } else {
        NVIC_DisableIRQ(number);
    }
}

void cpu_wait(void)
{
    __WFI();
}

void cpu_reset(void)
{
    NVIC_SystemReset();
}

void cpu_start_ticks(void)
{
    SysTick_Config(CYCLES_PER_MS);
}

uint32_t cpu_since_tick(void)
{
    uint32_t left = SysTick->VAL; // counts down
    uint32_t ticks = 0;

    if (SCB->ICSR & SCB_ICSR_PENDSTSET_Msk) { // it has wrapped, and the handler waits for us
        left = SysTick->VAL;
        ticks = CYCLES_PER_MS;
    }
    return ticks + CYCLES_PER_MS - 1 - left;
}

typedef void (*handler_t)(void);

__attribute__((section(".vectors"), used)) static const handler_t vectors[16 + INTERRUPTS] = {
    (handler_t)_stack_top,
    Reset_Handler,
    [2 ... 14] = Fault_Handler, // exceptions that nothing here uses
    [15] = clock_tick,
    [16 ... 16 + INTERRUPTS - 1] = Fault_Handler,
    [16 + UART0_RX_IRQn] = UART0_RX_Handler,
    [16 + UART0_TX_IRQn] = UART0_TX_Handler,
    [16 + UART1_RX_IRQn] = UART1_RX_Handler,
    [16 + UART1_TX_IRQn] = UART1_TX_Handler,
    [16 + ETHERNET_IRQn] = ETHERNET_Handler,
};
