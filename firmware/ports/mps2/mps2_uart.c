// mps2_uart.c: a part of extmod/machine_uart.c: machine.UART for all UARTs except 0, the terminal.
// As on other boards, a full receive buffer loses further bytes.
#include "py/mperrno.h"
#include "py/mphal.h"

#include "uart.h"

#define BUFFER_BYTES 256 // as on an RP2040
#define BUFFER_BYTES_MIN 32
#define BUFFER_BYTES_MAX 32766

struct _machine_uart_obj_t {
    mp_obj_base_t base;
    uint8_t number;
    uint32_t baud_rate;
    uint32_t timeout_ms;      // for the first byte
    uint32_t timeout_char_ms; // for each following byte
};

static machine_uart_obj_t objects[UART_COUNT];

// Roots for the garbage collector.
MP_REGISTER_ROOT_POINTER(void *mps2_uart_received[UART_COUNT]);
MP_REGISTER_ROOT_POINTER(void *mps2_uart_outgoing[UART_COUNT]);

#define MICROPY_PY_MACHINE_UART_CLASS_CONSTANTS

static uart_t *uart_of(const machine_uart_obj_t *self)
{
    uart_t *uart = &uarts[self->number];

    if (uart->received.buf == NULL) {
        mp_raise_OSError(MP_ENODEV); // after deinit()
    }
    return uart;
}

static void mp_machine_uart_print(const mp_print_t *print, mp_obj_t self_in, mp_print_kind_t kind)
{
    const machine_uart_obj_t *self = MP_OBJ_TO_PTR(self_in);
    const uart_t *uart = &uarts[self->number];

    mp_printf(print, "UART(%u, baudrate=%u, timeout=%u, timeout_char=%u, rxbuf=%u, txbuf=%u, overruns=%u)",
              self->number, (unsigned)self->baud_rate, (unsigned)self->timeout_ms, (unsigned)self->timeout_char_ms,
              uart->received.size, uart->outgoing.size, (unsigned)uart->overruns);
}

static void new_ring(ringbuf_t *ring, void **root, mp_int_t size)
{
    if (size < BUFFER_BYTES_MIN || size > BUFFER_BYTES_MAX) {
        mp_raise_ValueError(MP_ERROR_TEXT("buffer size"));
    }
    *root = m_new(uint8_t, size + 1); // a ring holds one byte less than its size
    *ring = (ringbuf_t){.buf = *root, .size = size + 1};
}

static void mp_machine_uart_deinit(machine_uart_obj_t *self)
{
    uart_t *uart = &uarts[self->number];

    uart_stop(uart);
    uart->received = uart->outgoing = (ringbuf_t){.size = 1};
    MP_STATE_PORT(mps2_uart_received)[self->number] = NULL;
    MP_STATE_PORT(mps2_uart_outgoing)[self->number] = NULL;
}

// Call it before the heap goes: it holds the UARTs' buffers.
void machine_uart_deinit_all(void)
{
    for (int number = 1; number < UART_COUNT; number++) {
        objects[number].number = number;
        mp_machine_uart_deinit(&objects[number]);
    }
}

// All values of bits, parity and stop are accepted: QEMU's line ignores them.
static void mp_machine_uart_init_helper(machine_uart_obj_t *self, size_t n_args, const mp_obj_t *pos_args,
                                        mp_map_t *kw_args)
{
    enum { ARG_baudrate, ARG_bits, ARG_parity, ARG_stop, ARG_timeout, ARG_timeout_char, ARG_rxbuf, ARG_txbuf };
    static const mp_arg_t allowed[] = {
        {MP_QSTR_baudrate, MP_ARG_INT, {.u_int = 115200}},
        {MP_QSTR_bits, MP_ARG_INT, {.u_int = 8}},
        {MP_QSTR_parity, MP_ARG_OBJ, {.u_rom_obj = MP_ROM_NONE}},
        {MP_QSTR_stop, MP_ARG_INT, {.u_int = 1}},
        {MP_QSTR_timeout, MP_ARG_KW_ONLY | MP_ARG_INT, {.u_int = 0}},
        {MP_QSTR_timeout_char, MP_ARG_KW_ONLY | MP_ARG_INT, {.u_int = 0}},
        {MP_QSTR_rxbuf, MP_ARG_KW_ONLY | MP_ARG_INT, {.u_int = BUFFER_BYTES}},
        {MP_QSTR_txbuf, MP_ARG_KW_ONLY | MP_ARG_INT, {.u_int = BUFFER_BYTES}},
    };
    mp_arg_val_t args[MP_ARRAY_SIZE(allowed)];
    uart_t *uart = &uarts[self->number];

    mp_arg_parse_all(n_args, pos_args, kw_args, MP_ARRAY_SIZE(allowed), allowed, args);
    if (args[ARG_baudrate].u_int <= 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("baudrate"));
    }
    mp_machine_uart_deinit(self);
    self->baud_rate = args[ARG_baudrate].u_int;
    self->timeout_ms = args[ARG_timeout].u_int;
    self->timeout_char_ms = args[ARG_timeout_char].u_int;
    new_ring(&uart->received, &MP_STATE_PORT(mps2_uart_received)[self->number], args[ARG_rxbuf].u_int);
    new_ring(&uart->outgoing, &MP_STATE_PORT(mps2_uart_outgoing)[self->number], args[ARG_txbuf].u_int);
    uart->overruns = 0;
    uart_start(uart, self->baud_rate);
}

static mp_obj_t mp_machine_uart_make_new(const mp_obj_type_t *type, size_t n_args, size_t n_kw, const mp_obj_t *args)
{
    mp_arg_check_num(n_args, n_kw, 1, MP_OBJ_FUN_ARGS_MAX, true);
    mp_int_t number = mp_obj_get_int(args[0]);
    if (number < 1 || number >= UART_COUNT) {
        mp_raise_ValueError(MP_ERROR_TEXT("no such UART for programs"));
    }
    machine_uart_obj_t *self = &objects[number];
    self->base.type = &machine_uart_type;
    self->number = number;
    mp_map_t keywords;
    mp_map_init_fixed_table(&keywords, n_kw, args + n_args);
    mp_machine_uart_init_helper(self, n_args - 1, args + 1, &keywords);
    return MP_OBJ_FROM_PTR(self);
}

static mp_int_t mp_machine_uart_any(machine_uart_obj_t *self)
{
    return ringbuf_avail(&uart_of(self)->received);
}

static bool mp_machine_uart_txdone(machine_uart_obj_t *self)
{
    return uart_is_empty(uart_of(self));
}

// ---- the stream

static mp_uint_t mp_machine_uart_read(mp_obj_t self_in, void *data, mp_uint_t size, int *errcode)
{
    machine_uart_obj_t *self = MP_OBJ_TO_PTR(self_in);
    uart_t *uart = uart_of(self);
    uint8_t *bytes = data;
    mp_uint_t count = 0;
    uint64_t end = clock_ms() + self->timeout_ms;

    for (;;) {
        size_t some = uart_read(uart, bytes + count, size - count);
        count += some;
        if (some != 0) {
            end = clock_ms() + self->timeout_char_ms;
        }
        if (count == size) {
            return count;
        }
        if (ringbuf_avail(&uart->received) != 0) {
            continue; // the ring's end, or held bytes
        }
        if (clock_ms() >= end) {
            break;
        }
        mp_event_wait_ms(1);
    }
    if (count == 0) {
        *errcode = MP_EAGAIN;
        return MP_STREAM_ERROR;
    }
    return count;
}

static mp_uint_t mp_machine_uart_write(mp_obj_t self_in, const void *data, mp_uint_t size, int *errcode)
{
    machine_uart_obj_t *self = MP_OBJ_TO_PTR(self_in);
    uart_t *uart = uart_of(self);
    const uint8_t *bytes = data;
    mp_uint_t count = 0;
    uint64_t end = clock_ms() + self->timeout_ms;

    for (;;) {
        size_t some = uart_write(uart, bytes + count, size - count);
        count += some;
        if (some != 0) {
            end = clock_ms() + self->timeout_char_ms;
        }
        if (count == size || clock_ms() >= end) {
            break;
        }
        mp_event_wait_ms(1);
    }
    if (count == 0 && size != 0) {
        *errcode = MP_EAGAIN;
        return MP_STREAM_ERROR;
    }
    return count;
}

static mp_uint_t mp_machine_uart_ioctl(mp_obj_t self_in, mp_uint_t request, uintptr_t argument, int *errcode)
{
    machine_uart_obj_t *self = MP_OBJ_TO_PTR(self_in);
    uart_t *uart = uart_of(self);

    if (request == MP_STREAM_POLL) {
        mp_uint_t ready = 0;
        if ((argument & MP_STREAM_POLL_RD) && ringbuf_avail(&uart->received) != 0) {
            ready |= MP_STREAM_POLL_RD;
        }
        if ((argument & MP_STREAM_POLL_WR) && ringbuf_free(&uart->outgoing) != 0) {
            ready |= MP_STREAM_POLL_WR;
        }
        return ready;
    }
    if (request == MP_STREAM_FLUSH) {
        while (!uart_is_empty(uart)) {
            mp_event_wait_ms(1);
        }
        return 0;
    }
    *errcode = MP_EINVAL;
    return MP_STREAM_ERROR;
}
