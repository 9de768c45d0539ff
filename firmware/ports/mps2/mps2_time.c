// mps2_time.c: a part of extmod/modtime.c: time.time() and time.localtime().
#include "shared/timeutils/timeutils.h"

#include "board.h"

static mp_obj_t mp_time_time_get(void)
{
    return mp_obj_new_int_from_uint(clock_seconds());
}

static mp_obj_t mp_time_localtime_get(void)
{
    timeutils_struct_time_t now;

    timeutils_seconds_since_epoch_to_struct_time(clock_seconds(), &now);
    mp_obj_t fields[8] = {
        mp_obj_new_int(now.tm_year), mp_obj_new_int(now.tm_mon),  mp_obj_new_int(now.tm_mday),
        mp_obj_new_int(now.tm_hour), mp_obj_new_int(now.tm_min),  mp_obj_new_int(now.tm_sec),
        mp_obj_new_int(now.tm_wday), mp_obj_new_int(now.tm_yday),
    };
    return mp_obj_new_tuple(8, fields);
}
