// mphalport.h: the macros of MicroPython's hardware layer.
#include <stddef.h>

#include "shared/runtime/interrupt_char.h"

#define mp_hal_quiet_timing_enter() MICROPY_BEGIN_ATOMIC_SECTION()
#define mp_hal_quiet_timing_exit(state) MICROPY_END_ATOMIC_SECTION(state)
