// riscv.c: the RISC-V board from reset to main(), its interrupts, ticks, and what is shown of a fault.
#include "riscv.h"

#include <string.h>

#include "board.h"

// From mps2.ld.
extern uint8_t _data_image[], _data_start[], _data_end[], _bss_start[], _bss_end[];

#define CYCLES_PER_MS (CLOCK_HZ / 1000)

#define MTIME_LOW (*(volatile uint32_t *)0x0200BFF8)
#define MTIMECMP_LOW (*(volatile uint32_t *)0x02004000)
#define MTIMECMP_HIGH (*(volatile uint32_t *)0x02004004)
#define MTIME_HIGH (*(volatile uint32_t *)0x0200BFFC)
#define PLIC_PRIORITY ((volatile uint32_t *)0x0C000000)
#define PLIC_ENABLE ((volatile uint32_t *)0x0C002000)
#define PLIC_THRESHOLD (*(volatile uint32_t *)0x0C200000)
#define PLIC_CLAIM (*(volatile uint32_t *)0x0C200004)
#define TEST_DEVICE (*(volatile uint32_t *)0x00100000)
#define TEST_RESET 0x7777

enum {
    CAUSE_BREAKPOINT = 3,
    CAUSE_TIMER = 0x80000007,
    CAUSE_EXTERNAL = 0x8000000B,
    STATUS_INTERRUPTS = 1 << 3,
    ENABLE_TIMER = 1 << 7,
    ENABLE_EXTERNAL = 1 << 11,
};

#define CSR(name)                                                                                                      \
    ({                                                                                                                 \
        uint32_t value_;                                                                                               \
        __asm volatile("csrr %0, " #name : "=r"(value_));                                                              \
        value_;                                                                                                        \
    })

static void (*handlers[INTERRUPTS])(void);
static uint64_t tick_at; // when the next one is due
static volatile bool no_semihosting;

// ---- interrupts

static uint64_t mtime(void)
{
    uint32_t high, low;

    do {
        high = MTIME_HIGH;
        low = MTIME_LOW;
    } while (high != MTIME_HIGH);
    return (uint64_t)high << 32 | low;
}

static void next_tick(void)
{
    tick_at += CYCLES_PER_MS;
    MTIMECMP_HIGH = UINT32_MAX; // no interrupt between the two halves
    MTIMECMP_LOW = tick_at;
    MTIMECMP_HIGH = tick_at >> 32;
}

void cpu_start_ticks(void)
{
    tick_at = mtime();
    next_tick();
    PLIC_THRESHOLD = 0;
    __asm volatile("csrs mie, %0\n csrs mstatus, %1" : : "r"(ENABLE_TIMER | ENABLE_EXTERNAL), "r"(STATUS_INTERRUPTS));
}

uint32_t cpu_since_tick(void)
{
    return mtime() - (tick_at - CYCLES_PER_MS);
}

void cpu_on_interrupt(int number, void (*handler)(void))
{
    handlers[number] = handler;
}

void cpu_interrupt(int number, bool on)
{
    uint32_t bit = 1u << number % 32;

    PLIC_PRIORITY[number] = 1;
    if (on) {
        PLIC_ENABLE[number / 32] |= bit;
    } else {
        PLIC_ENABLE[number / 32] &= ~bit;
    }
}

void cpu_wait(void)
{
    __asm volatile("wfi" : : : "memory");
}

void cpu_reset(void)
{
    TEST_DEVICE = TEST_RESET;
    for (;;) {
    }
}

static void fault(uint32_t cause)
{
    board_show("\r\nFAULT pc", CSR(mepc));
    board_show(" mcause", cause);
    board_show(" mtval", CSR(mtval));
    board_panic("fault");
}

__attribute__((interrupt("machine"), aligned(4))) static void trap(void)
{
    uint32_t cause = CSR(mcause);

    if (cause == CAUSE_TIMER) {
        next_tick();
        clock_tick();
    } else if (cause == CAUSE_EXTERNAL) {
        for (uint32_t number; (number = PLIC_CLAIM) != 0;) {
            if (number < INTERRUPTS && handlers[number] != NULL) {
                handlers[number]();
            }
            PLIC_CLAIM = number;
        }
    } else if (cause == CAUSE_BREAKPOINT && !no_semihosting) {
        no_semihosting = true; // nobody has taken the call that semihost_call() makes first
        __asm volatile("csrw mepc, %0" : : "r"(CSR(mepc) + 4));
    } else {
        fault(cause);
    }
}

int32_t semihost_call(uint32_t operation, const void *argument)
{
    register uint32_t a0 __asm("a0") = operation;
    register const void *a1 __asm("a1") = argument;

    if (no_semihosting) {
        return -1;
    }
    __asm volatile(".option push\n .option norvc\n .balign 16\n"
                   "slli zero, zero, 0x1f\n ebreak\n srai zero, zero, 7\n"
                   ".option pop"
                   : "+r"(a0)
                   : "r"(a1)
                   : "memory");
    return no_semihosting ? -1 : (int32_t)a0;
}

// ---- from the reset

__attribute__((used, noreturn)) static void start(void)
{
    memcpy(_data_start, _data_image, _data_end - _data_start);
    memset(_bss_start, 0, _bss_end - _bss_start);
    __asm volatile("csrw mtvec, %0" : : "r"(trap));
    pci_start();
    board_start();
}

__attribute__((section(".vectors"), used, naked)) static void begin(void)
{
    __asm volatile("la sp, _stack_top\n j start");
}
