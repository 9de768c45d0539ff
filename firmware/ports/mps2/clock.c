// clock.c: every millisecond a tick: time, sleep, and what else has to happen by the clock.
#include "py/mphal.h"
#include "py/runtime.h"
#include "shared/timeutils/timeutils.h"
#include "lib/oofatfs/ff.h"

#include "board.h"

#define CYCLES_PER_MS (CLOCK_HZ / 1000)
#define CYCLES_PER_US (CLOCK_HZ / 1000000)
#define SECONDS_1970_TO_2000 946684800u

static volatile uint64_t milliseconds;
static volatile bool awake;
static uint32_t seconds_at_start; // since 2000-01-01; 0: nobody has told us the time

void clock_init(void)
{
    // A board without a clock begins at 0; `rtc=1` gives it one, set to the host's time.
    if (setting_number("rtc", 0) != 0) {
        seconds_at_start = semihost_time() - SECONDS_1970_TO_2000;
    }
    cpu_start_ticks();
}

void clock_tick(void)
{
    milliseconds++;
    watchdog_tick();
}

void board_wake(void)
{
    awake = true;
}

void board_wait(void)
{
    // With interrupts masked nothing can come between the look at `awake` and the sleep; a pending one ends the sleep.
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();

    if (!awake) {
        cpu_wait();
    }
    awake = false;
    MICROPY_END_ATOMIC_SECTION(state);
}

uint64_t clock_ms(void)
{
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
    uint64_t now = milliseconds;

    MICROPY_END_ATOMIC_SECTION(state);
    return now;
}

// Processor cycles since the start.
static uint64_t cycles(void)
{
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
    uint64_t now = milliseconds * CYCLES_PER_MS + cpu_since_tick();

    MICROPY_END_ATOMIC_SECTION(state);
    return now;
}

uint32_t clock_seconds(void)
{
    return seconds_at_start + clock_ms() / 1000;
}

void clock_set_seconds(uint32_t seconds)
{
    seconds_at_start = seconds - clock_ms() / 1000;
}

mp_uint_t mp_hal_ticks_ms(void)
{
    return clock_ms();
}

mp_uint_t mp_hal_ticks_us(void)
{
    return cycles() / CYCLES_PER_US;
}

mp_uint_t mp_hal_ticks_cpu(void)
{
    return cycles();
}

uint64_t mp_hal_time_ns(void)
{
    return (uint64_t)seconds_at_start * 1000000000 + cycles() * (1000000000 / CLOCK_HZ);
}

void mp_hal_delay_ms(mp_uint_t ms)
{
    uint64_t end = clock_ms() + ms;

    do {
        mp_event_wait_ms(1);
    } while (clock_ms() < end);
}

void mp_hal_delay_us(mp_uint_t us)
{
    uint64_t end = cycles() + (uint64_t)us * CYCLES_PER_US;

    while (cycles() < end) {
    }
}

// The time that FAT notes with a file.
DWORD get_fattime(void)
{
    timeutils_struct_time_t now;

    timeutils_seconds_since_epoch_to_struct_time(clock_seconds(), &now);
    return (now.tm_year - 1980) << 25 | now.tm_mon << 21 | now.tm_mday << 16 | now.tm_hour << 11 | now.tm_min << 5 |
           now.tm_sec / 2;
}
