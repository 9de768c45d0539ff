// mps2_wdt.c: a part of extmod/machine_wdt.c: machine.WDT.
#include "board.h"

struct _machine_wdt_obj_t {
    mp_obj_base_t base;
    uint32_t timeout_ms;
};

static machine_wdt_obj_t watchdog = {{&machine_wdt_type}, 0};

static machine_wdt_obj_t *mp_machine_wdt_make_new_instance(mp_int_t id, mp_int_t timeout_ms)
{
    if (id != 0 || timeout_ms <= 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("WDT(0, timeout) with a timeout above 0"));
    }
    watchdog.timeout_ms = timeout_ms;
    watchdog_feed(timeout_ms);
    return &watchdog;
}

static void mp_machine_wdt_feed(machine_wdt_obj_t *self)
{
    watchdog_feed(self->timeout_ms);
}
