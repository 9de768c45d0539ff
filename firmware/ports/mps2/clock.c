// clock.c: a tick every millisecond: time, sleep, and periodic work.
#include "py/mphal.h"
#include "py/runtime.h"
#include "shared/timeutils/timeutils.h"
#include "lib/oofatfs/ff.h"

#include "board.h"

#define CYCLES_PER_MS (CLOCK_HZ / 1000)
#define CYCLES_PER_US (CLOCK_HZ / 1000000)
#define SECONDS_1970_TO_2000 946684800u

extern const mp_obj_type_t machine_rtc_type;
static const mp_obj_base_t rtc = {&machine_rtc_type};

static volatile uint64_t milliseconds;
static volatile bool awake;
static uint32_t seconds_at_start; // since 2000-01-01; 0: unknown

void clock_init(void)
{
    // A board without a clock begins at 0; `rtc=1` gives it one with the host's time.
    if (setting_number("rtc", 0) != 0) {
        seconds_at_start = semihost_time() - SECONDS_1970_TO_2000;
    }
    SysTick_Config(CYCLES_PER_MS);
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
    // Interrupts are masked, so none comes between the check of `awake` and the sleep; a pending one ends the sleep.
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();

    if (!awake) {
        __WFI();
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

// Cycles since the last tick handled by clock_tick(); interrupts must be masked.
static uint32_t since_tick(void)
{
    uint32_t left = SysTick->VAL; // counts down
    uint32_t ticks = 0;

    if (SCB->ICSR & SCB_ICSR_PENDSTSET_Msk) { // it has wrapped, and the handler is pending
        left = SysTick->VAL;
        ticks = CYCLES_PER_MS;
    }
    return ticks + CYCLES_PER_MS - 1 - left;
}

// Processor cycles since the start.
static uint64_t cycles(void)
{
    uint32_t state = MICROPY_BEGIN_ATOMIC_SECTION();
    uint64_t now = milliseconds * CYCLES_PER_MS + since_tick();

    MICROPY_END_ATOMIC_SECTION(state);
    return now;
}

uint32_t clock_seconds(void)
{
    return seconds_at_start + clock_ms() / 1000;
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

// The time of files on FAT.
DWORD get_fattime(void)
{
    timeutils_struct_time_t now;

    timeutils_seconds_since_epoch_to_struct_time(clock_seconds(), &now);
    return (now.tm_year - 1980) << 25 | now.tm_mon << 21 | now.tm_mday << 16 | now.tm_hour << 11 | now.tm_min << 5 |
           now.tm_sec / 2;
}

// ---- machine.RTC: sets the clock

static mp_obj_t rtc_make_new(const mp_obj_type_t *type, size_t n_args, size_t n_kw, const mp_obj_t *args)
{
    mp_arg_check_num(n_args, n_kw, 0, 1, false);
    return MP_OBJ_FROM_PTR(&rtc);
}

// datetime([(year, month, day, weekday, hour, minute, second, subsecond)])
static mp_obj_t rtc_datetime(size_t n_args, const mp_obj_t *args)
{
    timeutils_struct_time_t time;

    if (n_args == 1) {
        timeutils_seconds_since_epoch_to_struct_time(clock_seconds(), &time);
        mp_obj_t fields[8] = {
            mp_obj_new_int(time.tm_year), mp_obj_new_int(time.tm_mon),
            mp_obj_new_int(time.tm_mday), mp_obj_new_int(time.tm_wday),
            mp_obj_new_int(time.tm_hour), mp_obj_new_int(time.tm_min),
            mp_obj_new_int(time.tm_sec),  mp_obj_new_int(0),
        };
        return mp_obj_new_tuple(8, fields);
    }
    mp_obj_t *fields;
    mp_obj_get_array_fixed_n(args[1], 8, &fields);
    uint32_t seconds =
        timeutils_seconds_since_epoch(mp_obj_get_int(fields[0]), mp_obj_get_int(fields[1]), mp_obj_get_int(fields[2]),
                                      mp_obj_get_int(fields[4]), mp_obj_get_int(fields[5]), mp_obj_get_int(fields[6]));
    seconds_at_start = seconds - clock_ms() / 1000;
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(rtc_datetime_obj, 1, 2, rtc_datetime);

static const mp_rom_map_elem_t rtc_locals_table[] = {
    {MP_ROM_QSTR(MP_QSTR_datetime), MP_ROM_PTR(&rtc_datetime_obj)},
};
static MP_DEFINE_CONST_DICT(rtc_locals, rtc_locals_table);

MP_DEFINE_CONST_OBJ_TYPE(machine_rtc_type, MP_QSTR_RTC, MP_TYPE_FLAG_NONE, make_new, rtc_make_new, locals_dict,
                         &rtc_locals);
