// mpconfigport.h: MicroPython's configuration for this port: the features of a small board's stock firmware.
#include <alloca.h>
#include <stdint.h>

#define MICROPY_CONFIG_ROM_LEVEL (MICROPY_CONFIG_ROM_LEVEL_EXTRA_FEATURES)

// The processor.
#define MICROPY_EMIT_THUMB (1)
#define MICROPY_EMIT_INLINE_THUMB (1)
#define MICROPY_MAKE_POINTER_CALLABLE(p) ((void *)((mp_uint_t)(p) | 1))
#define MICROPY_PERSISTENT_CODE_LOAD (1)
#define MICROPY_OPT_COMPUTED_GOTO (1)

// The interpreter.
#define MICROPY_ENABLE_GC (1)
#define MICROPY_ENABLE_PYSTACK (1) // calls take no heap
#define MICROPY_GC_ALLOC_THRESHOLD (1)
#define MICROPY_ENABLE_EMERGENCY_EXCEPTION_BUF (1)
#define MICROPY_LONGINT_IMPL (MICROPY_LONGINT_IMPL_MPZ)
#define MICROPY_FLOAT_IMPL (MICROPY_FLOAT_IMPL_FLOAT)
#define MICROPY_KBD_EXCEPTION (1)
#define MICROPY_SCHEDULER_DEPTH (8)
#define MICROPY_STACK_CHECK_MARGIN (1024)
#define MICROPY_USE_INTERNAL_ERRNO (1)
#define MICROPY_PY_SYS_PLATFORM "mps2"

// time: a board's epoch, 2000-01-01.
#define MICROPY_PY_TIME_GMTIME_LOCALTIME_MKTIME (1)
#define MICROPY_PY_TIME_TIME_TIME_NS (1)
#define MICROPY_PY_TIME_INCLUDEFILE "mps2_time.c"

#define MICROPY_PY_OS_URANDOM (1)
#define MICROPY_PY_OS_UNAME (1)
#define MICROPY_PY_OS_SYNC (1)
#define MICROPY_PY_OS_INCLUDEFILE "mps2_os.c"
#define MICROPY_PY_RANDOM_SEED_INIT_FUNC (random_word())
uint32_t random_word(void);
#define MICROPY_PY_CRYPTOLIB (0)
#define MICROPY_PY_FRAMEBUF (0)

// machine: UARTs, resets, watchdog, clock.
#define MICROPY_PY_MACHINE (1)
#define MICROPY_PY_MACHINE_INCLUDEFILE "mps2_machine.c"
#define MICROPY_PY_MACHINE_RESET (1)
#define MICROPY_PY_MACHINE_BARE_METAL_FUNCS (1)
#define MICROPY_PY_MACHINE_DISABLE_IRQ_ENABLE_IRQ (1)
#define MICROPY_PY_MACHINE_UART (1)
#define MICROPY_PY_MACHINE_UART_INCLUDEFILE "mps2_uart.c"
#define MICROPY_PY_MACHINE_WDT (1)
#define MICROPY_PY_MACHINE_WDT_INCLUDEFILE "mps2_wdt.c"
#define MICROPY_PY_MACHINE_PIN_BASE (0)
#define MICROPY_PY_MACHINE_PULSE (0)
#define MICROPY_PY_MACHINE_SIGNAL (0)
#define MICROPY_PY_MACHINE_I2C (0)
#define MICROPY_PY_MACHINE_SPI (0)
#define MICROPY_PY_MACHINE_SOFTI2C (0)
#define MICROPY_PY_MACHINE_SOFTSPI (0)

// File systems: LittleFS on the flash, FAT on the card (the Makefile has the switches).
#define MICROPY_VFS (1)
#define MICROPY_READER_VFS (1)
#define MICROPY_FATFS_ENABLE_LFN (1)
#define MICROPY_FATFS_LFN_CODE_PAGE 437
#define MICROPY_FATFS_RPATH (2)
#define MICROPY_FATFS_MAX_SS (4096) // for FAT on the flash

// network.LAN
#define MICROPY_PY_NETWORK (1)
#define MICROPY_PY_NETWORK_HOSTNAME_DEFAULT "mps2"
#define MICROPY_PORT_NETWORK_INTERFACES {MP_ROM_QSTR(MP_QSTR_LAN), MP_ROM_PTR(&network_lan_type)},
extern const struct _mp_obj_type_t network_lan_type;

// Events: interrupts note them and wake the processor; all other work happens here.
void ethernet_poll(void);
void board_wait(void);
#define MICROPY_INTERNAL_EVENT_HOOK ethernet_poll()
#define MICROPY_INTERNAL_WFE(timeout_ms) board_wait() // wakes every millisecond, so that waiters check the clock
#define MICROPY_VM_HOOK_COUNT (64)
#define MICROPY_VM_HOOK_INIT static unsigned int vm_hook_divisor = MICROPY_VM_HOOK_COUNT;
#define MICROPY_VM_HOOK_POLL                                                                                           \
    if (--vm_hook_divisor == 0) {                                                                                      \
        vm_hook_divisor = MICROPY_VM_HOOK_COUNT;                                                                       \
        ethernet_poll();                                                                                               \
    }
#define MICROPY_VM_HOOK_LOOP MICROPY_VM_HOOK_POLL
#define MICROPY_VM_HOOK_RETURN MICROPY_VM_HOOK_POLL

static inline uint32_t interrupts_mask(void)
{
    uint32_t state;

    __asm volatile("mrs %0, primask\n cpsid i" : "=r"(state) : : "memory");
    return state;
}

static inline void interrupts_restore(uint32_t state)
{
    __asm volatile("msr primask, %0" : : "r"(state) : "memory");
}

#define MICROPY_BEGIN_ATOMIC_SECTION() interrupts_mask()
#define MICROPY_END_ATOMIC_SECTION(state) interrupts_restore(state)

#define MP_NEED_LOG2 (1) // the C library has no log2f
#define MP_SSIZE_MAX (0x7fffffff)
#define UINT_FMT "%lu"
#define INT_FMT "%ld"
#define HEX_FMT "%lx"
typedef int32_t mp_int_t;
typedef uint32_t mp_uint_t;
typedef long mp_off_t;

#define MP_STATE_PORT MP_STATE_VM
