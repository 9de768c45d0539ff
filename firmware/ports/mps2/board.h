// board.h: declarations shared by the files of this port.
#ifndef MPS2_BOARD_H
#define MPS2_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLOCK_HZ 25000000u    // of the processor and of SysTick
#define UART_BASE 0x40004000u // UART0; the others follow at UART_STRIDE
#define UART_STRIDE 0x1000u
#define ETHERNET_BASE 0x40200000u
#define PSRAM_BASE 0x21000000 // outlives QEMU if QEMU keeps it in a file of the host
#define INTERRUPTS 32

typedef enum {
    SysTick_IRQn = -1,
    UART0_RX_IRQn = 0,
    UART0_TX_IRQn = 1,
    UART1_RX_IRQn = 2,
    UART1_TX_IRQn = 3,
    ETHERNET_IRQn = 13,
} IRQn_Type;

#define __NVIC_PRIO_BITS 3
#define __Vendor_SysTickConfig 0
#include "core_cm3.h"

// ---- arm.c

// Prints the reason and ends QEMU.
__attribute__((noreturn)) void board_panic(const char *why);
void cpu_interrupt(int number, bool on);

// Values of machine.reset_cause().
typedef enum {
    RESET_POWER_ON = 1,
    RESET_HARD = 2,
    RESET_WATCHDOG = 3,
    RESET_DEEP_SLEEP = 4,
    RESET_SOFT = 5,
} reset_cause_t;

extern reset_cause_t reset_cause;
__attribute__((noreturn)) void board_reset(reset_cause_t cause);
// The watchdog resets the board unless it is fed within timeout_ms; it cannot be stopped.
void watchdog_feed(uint32_t timeout_ms);
void watchdog_tick(void); // every millisecond

// ---- clock.c

void clock_init(void);
void clock_tick(void);
// Sleep until an interrupt, at most a millisecond; returns at once after a board_wake() since the last call.
void board_wait(void);
void board_wake(void);
// Milliseconds since the start; does not wrap.
uint64_t clock_ms(void);
// Seconds since 2000-01-01, for time.time().
uint32_t clock_seconds(void);

// ---- semihost.c

void settings_init(void);
// The value of a setting and its length; NULL if it is missing.
const char *setting(const char *name, size_t name_length, size_t *length);
uint32_t setting_number(const char *name, uint32_t otherwise);
// Seconds since 1970 by the host's clock, 0 without -semihosting.
uint32_t semihost_time(void);
// Ends QEMU with this exit status; without -semihosting the processor sleeps for ever.
__attribute__((noreturn)) void semihost_exit(int status);
// For os.urandom() and lwIP's port numbers.
void random_init(void);
uint32_t random_word(void);

// ---- network_lan.c

// Passes received frames to lwIP and runs its timers; called when MicroPython waits, and regularly by its VM.
void ethernet_poll(void);
void ethernet_down(void);

#endif
