// mps2_machine.c: a part of extmod/modmachine.c: identity, resets, sleep.
#include "board.h"

#define ID_BYTES_MAX 16

extern const mp_obj_type_t machine_rtc_type;

#define MICROPY_PY_MACHINE_EXTRA_GLOBALS                                                                               \
    {MP_ROM_QSTR(MP_QSTR_RTC), MP_ROM_PTR(&machine_rtc_type)},                                                         \
        {MP_ROM_QSTR(MP_QSTR_PWRON_RESET), MP_ROM_INT(RESET_POWER_ON)},                                                \
        {MP_ROM_QSTR(MP_QSTR_HARD_RESET), MP_ROM_INT(RESET_HARD)},                                                     \
        {MP_ROM_QSTR(MP_QSTR_WDT_RESET), MP_ROM_INT(RESET_WATCHDOG)},                                                  \
        {MP_ROM_QSTR(MP_QSTR_DEEPSLEEP_RESET), MP_ROM_INT(RESET_DEEP_SLEEP)},                                          \
        {MP_ROM_QSTR(MP_QSTR_SOFT_RESET), MP_ROM_INT(RESET_SOFT)},

static void mp_machine_idle(void)
{
    mp_event_wait_ms(1);
}

static void mp_machine_reset(void)
{
    board_reset(RESET_HARD);
}

static mp_int_t mp_machine_reset_cause(void)
{
    return reset_cause;
}

// `id=` in hexadecimal digits, or a common default.
static mp_obj_t mp_machine_unique_id(void)
{
    static const char otherwise[] = "6d70733200000001";
    size_t digits;
    const char *digit = setting("id", 2, &digits);
    uint8_t id[ID_BYTES_MAX];

    if (digit == NULL) {
        digit = otherwise;
        digits = sizeof(otherwise) - 1;
    }
    if (digits > 2 * ID_BYTES_MAX) {
        digits = 2 * ID_BYTES_MAX;
    }
    for (size_t i = 0; i + 1 < digits; i += 2) {
        id[i / 2] = unichar_xdigit_value(digit[i]) << 4 | unichar_xdigit_value(digit[i + 1]);
    }
    return mp_obj_new_bytes(id, digits / 2);
}

static mp_obj_t mp_machine_get_freq(void)
{
    return MP_OBJ_NEW_SMALL_INT(CLOCK_HZ);
}

static void mp_machine_set_freq(size_t n_args, const mp_obj_t *args)
{
    mp_raise_NotImplementedError(MP_ERROR_TEXT("the clock is fixed"));
}

static void mp_machine_lightsleep(size_t n_args, const mp_obj_t *args)
{
    if (n_args == 0) {
        board_wait();
    } else {
        mp_hal_delay_ms(mp_obj_get_int(args[0]));
    }
}

// RAM is lost and the program restarts; without a time only an external reset ends the sleep.
static void mp_machine_deepsleep(size_t n_args, const mp_obj_t *args)
{
    uint64_t end = n_args == 0 ? UINT64_MAX : clock_ms() + mp_obj_get_int(args[0]);

    while (clock_ms() < end) {
        board_wait();
    }
    board_reset(RESET_DEEP_SLEEP);
}
