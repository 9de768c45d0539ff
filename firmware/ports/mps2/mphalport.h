// mphalport.h: what MicroPython asks of a port's hardware layer, where it is not a function.
#include <stddef.h>

#include "shared/runtime/interrupt_char.h"

#define mp_hal_quiet_timing_enter() MICROPY_BEGIN_ATOMIC_SECTION()
#define mp_hal_quiet_timing_exit(state) MICROPY_END_ATOMIC_SECTION(state)
