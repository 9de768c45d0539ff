// machine_rtc.c: machine.RTC: how a program that has learned the time sets the clock.
#include "py/runtime.h"
#include "shared/timeutils/timeutils.h"

#include "board.h"

extern const mp_obj_type_t machine_rtc_type;
static const mp_obj_base_t rtc = {&machine_rtc_type};

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
    clock_set_seconds(timeutils_seconds_since_epoch(mp_obj_get_int(fields[0]), mp_obj_get_int(fields[1]),
                                                    mp_obj_get_int(fields[2]), mp_obj_get_int(fields[4]),
                                                    mp_obj_get_int(fields[5]), mp_obj_get_int(fields[6])));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(rtc_datetime_obj, 1, 2, rtc_datetime);

static const mp_rom_map_elem_t rtc_locals_table[] = {
    {MP_ROM_QSTR(MP_QSTR_datetime), MP_ROM_PTR(&rtc_datetime_obj)},
};
static MP_DEFINE_CONST_DICT(rtc_locals, rtc_locals_table);

MP_DEFINE_CONST_OBJ_TYPE(machine_rtc_type, MP_QSTR_RTC, MP_TYPE_FLAG_NONE, make_new, rtc_make_new, locals_dict,
                         &rtc_locals);
