// main.c: MicroPython from its start to each soft reset, with the heap size of QEMU's command line.
#include "py/compile.h"
#include "py/gc.h"
#include "py/mphal.h"
#include "py/runtime.h"
#include "py/stackctrl.h"
#include "extmod/modnetwork.h"
#include "lwip/init.h"
#include "shared/readline/readline.h"
#include "shared/runtime/gchelper.h"
#include "shared/runtime/pyexec.h"

#include "board.h"

#define HEAP_KIB 64 // without heap=
#define HEAP_KIB_MIN 16
// A board's stack for Python code, in two parts: the C stack (mps2.ld adds more, for C code and interrupts), and the
// variables of calls.
#define STACK_BYTES (12 << 10)
#define PYTHON_STACK_BYTES (4 << 10)

extern uint8_t _heap_start[], _heap_limit[]; // from mps2.ld

void machine_uart_deinit_all(void);

static uint8_t *heap_end(void)
{
    uint32_t size = setting_number("heap", HEAP_KIB);
    uint32_t room = _heap_limit - _heap_start;

    size = size < HEAP_KIB_MIN ? HEAP_KIB_MIN << 10 : size > room >> 10 ? room : size << 10;
    return _heap_start + size;
}

// Run boot.py and main.py of the flash, then the terminal, until the soft reset.
static void run(void)
{
    pyexec_frozen_module("_boot.py", false);
    int result = pyexec_file_if_exists("boot.py");
    if (result & PYEXEC_FORCED_EXIT) {
        return;
    }
    if (pyexec_mode_kind == PYEXEC_MODE_FRIENDLY_REPL) {
        result = pyexec_file_if_exists("main.py");
        if (result & PYEXEC_FORCED_EXIT) {
            return;
        }
    }
    do {
        result = pyexec_mode_kind == PYEXEC_MODE_RAW_REPL ? pyexec_raw_repl() : pyexec_friendly_repl();
    } while (result == 0);
}

int main(void)
{
    static mp_obj_t python_stack[PYTHON_STACK_BYTES / sizeof(mp_obj_t)];

    mp_stack_ctrl_init();
    mp_stack_set_limit(STACK_BYTES);
    lwip_init();
    for (;;) {
        gc_init(_heap_start, heap_end());
        mp_pystack_init(python_stack, &python_stack[MP_ARRAY_SIZE(python_stack)]);
        mp_init();
        mod_network_init();
        readline_init0();
        run();
        mp_printf(&mp_plat_print, "MPY: soft reboot\n");
        machine_uart_deinit_all();
        gc_sweep_all(); // closes files and sockets
        ethernet_down();
        mod_network_deinit();
        mp_deinit();
        reset_cause = RESET_SOFT;
    }
}

void gc_collect(void)
{
    gc_collect_start();
    gc_helper_collect_regs_and_stack();
    gc_collect_end();
}

void nlr_jump_fail(void *value)
{
    board_panic("exception outside of any handler");
}
