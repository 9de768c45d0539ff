// mpconfigvariant.h: MicroPython's unix port for boards that run Linux.
#include "ports/unix/variants/standard/mpconfigvariant.h"

// Calls take memory from a stack: looking for heap was most of a message's time. The port's own stack of 8 KiB is
// replaced by one as deep as the C stack allows.
#define MICROPY_ENABLE_PYSTACK (1)
#define MICROPY_PORT_INIT_FUNC                                                                                         \
    do {                                                                                                               \
        static mp_obj_t python_stack[32768];                                                                           \
        mp_pystack_init(python_stack, &python_stack[MP_ARRAY_SIZE(python_stack)]);                                     \
    } while (0)
