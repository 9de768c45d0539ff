// reset.c: resets, why the last one was, and the watchdog.
#include "board.h"

#define MAGIC 0x5265436Fu

// Written before a reset, read after it.
__attribute__((section(".noinit"))) static struct {
    uint32_t magic;
    uint32_t cause;
} left;

reset_cause_t reset_cause;
static volatile uint32_t watchdog_ms; // left until the watchdog bites; 0: it sleeps

void reset_init(void)
{
    reset_cause = left.magic == MAGIC ? left.cause : RESET_POWER_ON;
    // A reset from outside (QEMU's monitor) says nothing: it finds this.
    left.magic = MAGIC;
    left.cause = RESET_HARD;
}

void board_reset(reset_cause_t cause)
{
    left.cause = cause;
    cpu_reset();
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
