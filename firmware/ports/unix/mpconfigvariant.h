// mpconfigvariant.h: MicroPython's unix port as boards that run Linux have it.
#include "ports/unix/variants/standard/mpconfigvariant.h"

// Calls take their memory from a stack, not from the heap: looking for room there was most of the time of a message. The
// port's own stack of 8 KiB is exchanged for one that is as deep as the C stack allows.
#define MICROPY_ENABLE_PYSTACK (1)
#define MICROPY_PORT_INIT_FUNC                                                                                         \
    do {                                                                                                               \
        static mp_obj_t python_stack[32768];                                                                           \
        mp_pystack_init(python_stack, &python_stack[MP_ARRAY_SIZE(python_stack)]);                                     \
    } while (0)
