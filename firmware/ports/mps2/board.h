// board.h: what the files of this port share.
#ifndef MPS2_BOARD_H
#define MPS2_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine.h" // from boards/

#define PSRAM_SIZE (16u << 20)

// ---- start.c

// From the processor's own start, with memory as C has it: everything to main().
__attribute__((noreturn)) void board_start(void);
// Prints a register of a fault.
void board_show(const char *name, uint32_t value);
// Prints why and ends QEMU.
__attribute__((noreturn)) void board_panic(const char *why);

// ---- arm.c or riscv.c: the processor

void cpu_interrupt(int number, bool on);
// Sleeps until an interrupt, also until one that is masked.
void cpu_wait(void);
__attribute__((noreturn)) void cpu_reset(void);
// From now on clock_tick() comes every millisecond.
void cpu_start_ticks(void);
// Cycles since the last tick that clock_tick() was called for; interrupts must be masked.
uint32_t cpu_since_tick(void);
// A call of semihosting; -1 when QEMU was started without it.
int32_t semihost_call(uint32_t operation, const void *argument);

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
void clock_set_seconds(uint32_t seconds);

// ---- reset.c

// What machine.reset_cause() answers.
typedef enum {
    RESET_POWER_ON = 1,
    RESET_HARD = 2,
    RESET_WATCHDOG = 3,
    RESET_DEEP_SLEEP = 4,
    RESET_SOFT = 5,
} reset_cause_t;

extern reset_cause_t reset_cause;
void reset_init(void);
__attribute__((noreturn)) void board_reset(reset_cause_t cause);
// The watchdog resets the board unless it is fed again within timeout_ms; it cannot be stopped.
void watchdog_feed(uint32_t timeout_ms);
void watchdog_tick(void); // every millisecond

// ---- settings.c: words NAME=VALUE on QEMU's command line (-append "heap=96 id=0102")

void settings_init(void);
// The value of a setting and its length; NULL if it was not given.
const char *setting(const char *name, size_t name_length, size_t *length);
uint32_t setting_number(const char *name, uint32_t otherwise);

// ---- semihost.c: what QEMU does for the program that it runs

// The command line, 0-terminated; empty if QEMU was started without -semihosting.
void semihost_command_line(char *line, size_t size);
// Seconds since 1970 by the host's clock, 0 without -semihosting.
uint32_t semihost_time(void);
// Fills data with the host's randomness; false if there is none.
bool semihost_random(void *data, size_t size);
// Ends QEMU with this exit status; without -semihosting the processor sleeps for ever.
__attribute__((noreturn)) void semihost_exit(int status);

// ---- random.c

void random_init(void);
uint32_t random_word(void);

// ---- network_lan.c

// Passes received frames to lwIP and lets its timers run; called whenever MicroPython waits, and now and then by its VM.
void ethernet_poll(void);
void ethernet_down(void);

#endif
