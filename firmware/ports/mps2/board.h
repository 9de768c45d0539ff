// board.h: what the files of this port share.
#ifndef MPS2_BOARD_H
#define MPS2_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLOCK_HZ 25000000u    // of the processor and of SysTick
#define UART_BASE 0x40004000u // UART0; the others follow at UART_STRIDE
#define UART_STRIDE 0x1000u
#define ETHERNET_BASE 0x40200000u
#define PSRAM_BASE 0x21000000 // in a file of the host's, if QEMU is told so: then it outlives QEMU
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

// Prints why and ends QEMU.
__attribute__((noreturn)) void board_panic(const char *why);
void cpu_interrupt(int number, bool on);

// What machine.reset_cause() answers.
typedef enum {
    RESET_POWER_ON = 1,
    RESET_HARD = 2,
    RESET_WATCHDOG = 3,
    RESET_DEEP_SLEEP = 4,
    RESET_SOFT = 5,
} reset_cause_t;

extern reset_cause_t reset_cause;
__attribute__((noreturn)) void board_reset(reset_cause_t cause);
// The watchdog resets the board unless it is fed again within timeout_ms; it cannot be stopped.
void watchdog_feed(uint32_t timeout_ms);
void watchdog_tick(void); // every millisecond

// ---- clock.c

void clock_init(void);
void clock_tick(void);
// Sleep until an interrupt, at most a millisecond; returns at once if board_wake() was called since the last time.
void board_wait(void);
void board_wake(void);
// Milliseconds since the start; does not wrap.
uint64_t clock_ms(void);
// Seconds since 2000-01-01 that time.time() answers.
uint32_t clock_seconds(void);

// ---- semihost.c

void settings_init(void);
// The value of a setting and its length; NULL if it was not given.
const char *setting(const char *name, size_t name_length, size_t *length);
uint32_t setting_number(const char *name, uint32_t otherwise);
// Seconds since 1970 by the host's clock, 0 without -semihosting.
uint32_t semihost_time(void);
// Ends QEMU with this exit status; without -semihosting the processor sleeps for ever.
__attribute__((noreturn)) void semihost_exit(int status);
// Of os.urandom() and lwIP's port numbers.
void random_init(void);
uint32_t random_word(void);

// ---- network_lan.c

// Passes received frames to lwIP and lets its timers run; called whenever MicroPython waits, and now and then by its VM.
void ethernet_poll(void);
void ethernet_down(void);

#endif
