/* modmqqb.c: the C core as the MicroPython module _mqqb. mqqb.core describes and exports the functions.
 *
 * A part of the firmware (user C module), or a file for stock firmware (native module, ports/natmod). Nothing is
 * allocated; results are small integers and booleans. Conditions that the core asserts are checked here and raise
 * ValueError, with any build flags; so this file includes the core, without assertions. */
#define MQQB_ASSERT(condition) ((void)0)

#if MICROPY_ENABLE_DYNRUNTIME
#include "py/dynruntime.h"
#include <string.h>

#ifdef __XTENSA__
/* mpy_ld.py knows only the table's address, so an element's address may not be a literal. */
static inline const uint16_t *qstr_table(void)
{
    const uint16_t *table = mp_native_qstr_table;

    __asm__("" : "+r"(table));
    return table;
}
#define mp_native_qstr_table qstr_table()
#endif

/* A native module has no C library; the interpreter provides these. */
void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    return mp_fun_table.memmove_(to, from, size);
}

void *memset(void *to, int byte, size_t size)
{
    return mp_fun_table.memset_(to, byte, size);
}

void *memmove(void *to, const void *from, size_t size)
{
    return mp_fun_table.memmove_(to, from, size);
}

int memcmp(const void *a, const void *b, size_t size)
{
    const uint8_t *left = a;
    const uint8_t *right = b;

    while (size != 0 && *left == *right) {
        left++;
        right++;
        size--;
    }
    return size == 0 ? 0 : *left - *right;
}
#else
#include "py/objint.h"
#include "py/runtime.h"
#endif
#include "py/objlist.h"

#if !MICROPY_ENABLE_DYNRUNTIME && defined(__linux__)
#define OTHER_PROCESSES 1 /* they may use the same folder */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#else
#define OTHER_PROCESSES 0
#endif

#include "mqqb.c"
#include "mqqb_line.c"

#if MICROPY_ENABLE_DYNRUNTIME
mp_obj_t greatest_word; /* 0xFFFFFFFF, no small int on 32-bit ports; the linker takes no static variables */

/* The value of an int object, if it is one and fits 32 bits. */
static bool large(mp_obj_t object, mp_uint_t *value)
{
    *value = mp_obj_get_int_truncated(object);
    return mp_binary_op(MP_BINARY_OP_MORE_EQUAL, object, MP_OBJ_NEW_SMALL_INT(0)) == mp_const_true &&
           mp_binary_op(MP_BINARY_OP_LESS_EQUAL, object, greatest_word) == mp_const_true;
}
#else
/* The value of an int object, if it is one and fits a machine word. */
static bool large(mp_obj_t object, mp_uint_t *value)
{
    mp_int_t small;

    if (mp_obj_is_exact_type(object, &mp_type_int)) {
#if MICROPY_LONGINT_IMPL == MICROPY_LONGINT_IMPL_MPZ
        return mp_obj_int_sign(object) >= 0 &&
               mpz_as_uint_checked(&((mp_obj_int_t *)MP_OBJ_TO_PTR(object))->mpz, value);
#else
        *value = mp_obj_int_get_uint_checked(object);
        return true;
#endif
    }
    small = mp_obj_get_int(object);
    *value = (mp_uint_t)small;
    return small >= 0;
}
#endif

/* A number within bounds. On 32-bit ports numbers from 2^30 on are int objects. */
static mp_uint_t number(mp_obj_t object, mp_uint_t least, mp_uint_t greatest)
{
    mp_uint_t value = 0;
    bool fits;

    if (mp_obj_is_small_int(object)) {
        const mp_int_t small = MP_OBJ_SMALL_INT_VALUE(object);
        fits = small >= 0;
        value = (mp_uint_t)small;
    } else {
        fits = large(object, &value);
    }
    if (!fits || value < least || value > greatest) {
        mp_raise_ValueError(MP_ERROR_TEXT("number out of range"));
    }
    return value;
}

static mqqb_part part_of(mp_obj_t object)
{
    return (mqqb_part)number(object, 0, MQQB_PARTS - 1);
}

/* An array('I') of at least `words` words, as a C structure. */
static void *structure(mp_obj_t object, size_t words, mp_uint_t access)
{
    mp_buffer_info_t buffer;

    mp_get_buffer_raise(object, &buffer, access);
    if (buffer.typecode != 'I' || buffer.len < 4 * words) {
        mp_raise_ValueError(MP_ERROR_TEXT("array too short or not of words"));
    }
    return buffer.buf;
}

#define READ(type, object) ((const type *)structure(object, sizeof(type) / 4, MP_BUFFER_READ))
#define WRITE(type, object) ((type *)structure(object, sizeof(type) / 4, MP_BUFFER_RW))

/* data[offset:end] */
static const uint8_t *range(const mp_obj_t *data_offset_end, size_t *size)
{
    mp_buffer_info_t buffer;
    mp_uint_t offset, end;

    mp_get_buffer_raise(data_offset_end[0], &buffer, MP_BUFFER_READ);
    end = number(data_offset_end[2], 0, buffer.len);
    offset = number(data_offset_end[1], 0, end);
    *size = end - offset;
    return (const uint8_t *)buffer.buf + offset;
}

static mp_obj_t part_size(mp_obj_t part)
{
    return MP_OBJ_NEW_SMALL_INT(mqqb_part_size(part_of(part)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(part_size_obj, part_size);

static mp_obj_t part_words(mp_obj_t part)
{
    return MP_OBJ_NEW_SMALL_INT(mqqb_part_words(part_of(part)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(part_words_obj, part_words);

static mp_obj_t unpack(size_t count, const mp_obj_t *arguments)
{
    const mqqb_part part = part_of(arguments[0]);
    void *fields = structure(arguments[1], mqqb_part_words(part), MP_BUFFER_RW);
    size_t size;
    const uint8_t *in = range(arguments + 2, &size);

    (void)count;
    return MP_OBJ_NEW_SMALL_INT(mqqb_unpack(part, fields, in, size));
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(unpack_obj, 5, 5, unpack);

static mp_obj_t pack(size_t count, const mp_obj_t *arguments)
{
    const mqqb_part part = part_of(arguments[0]);
    const size_t size = mqqb_part_size(part);
    const void *fields = structure(arguments[1], mqqb_part_words(part), MP_BUFFER_READ);
    mp_buffer_info_t data;
    mp_uint_t offset;
    mqqb_message_properties_header words; /* the largest part */
    uint8_t packed[sizeof words];

    (void)count;
    mp_get_buffer_raise(arguments[2], &data, MP_BUFFER_RW);
    offset = number(arguments[3], 0, data.len);
    if (data.len - offset < size) {
        mp_raise_ValueError(MP_ERROR_TEXT("range outside the buffer"));
    }
    /* A value that does not read back is out of range. */
    mqqb_pack(part, fields, packed, sizeof packed);
    if (mqqb_unpack(part, &words, packed, size) != MQQB_OK || memcmp(&words, fields, 4 * mqqb_part_words(part)) != 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("field out of range"));
    }
    memcpy((uint8_t *)data.buf + offset, packed, size);
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(pack_obj, 4, 4, pack);

static mp_obj_t packet_total(mp_obj_t flags_object, mp_obj_t packet_size)
{
    const uint32_t flags = (uint32_t)number(flags_object, 0, 0xFFFF);

    return MP_OBJ_NEW_SMALL_INT(mqqb_packet_total(flags, (uint32_t)number(packet_size, 0, MQQB_PACKET_SIZE_MAX)));
}
static MP_DEFINE_CONST_FUN_OBJ_2(packet_total_obj, packet_total);

static mp_obj_t frame(size_t count, const mp_obj_t *arguments)
{
    uint32_t *total = structure(arguments[3], 1, MP_BUFFER_RW);
    size_t size;
    const uint8_t *in = range(arguments, &size);

    (void)count;
    return MP_OBJ_NEW_SMALL_INT(mqqb_frame(in, size, total));
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(frame_obj, 4, 4, frame);

static mp_obj_t serial_after(mp_obj_t a_object, mp_obj_t b_object)
{
    const uint32_t a = (uint32_t)number(a_object, 0, 0xFFFF);

    return mp_obj_new_bool(mqqb_serial_after(a, (uint32_t)number(b_object, 0, 0xFFFF)));
}
static MP_DEFINE_CONST_FUN_OBJ_2(serial_after_obj, serial_after);

static mp_obj_t is_acked(mp_obj_t base_object, mp_obj_t flags_object, mp_obj_t seq)
{
    const uint32_t base = (uint32_t)number(base_object, 0, 0xFFFF);
    const uint32_t flags = (uint32_t)number(flags_object, 0, 0xFFFFFFFF);

    return mp_obj_new_bool(mqqb_is_acked(base, flags, (uint32_t)number(seq, 0, 0xFFFF)));
}
static MP_DEFINE_CONST_FUN_OBJ_3(is_acked_obj, is_acked);

static mp_obj_t session_init(mp_obj_t s, mp_obj_t window_size)
{
    mqqb_session *session = WRITE(mqqb_session, s);

    mqqb_session_init(session, (uint32_t)number(window_size, 1, 0xFFFF));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(session_init_obj, session_init);

static mp_obj_t session_can_send(mp_obj_t s)
{
    return mp_obj_new_bool(mqqb_session_can_send(READ(mqqb_session, s)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(session_can_send_obj, session_can_send);

static mp_obj_t session_sent(mp_obj_t s, mp_obj_t recoverable)
{
    mqqb_session_sent(WRITE(mqqb_session, s), mp_obj_is_true(recoverable));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(session_sent_obj, session_sent);

static mp_obj_t session_received(mp_obj_t s, mp_obj_t recoverable)
{
    mqqb_session_received(WRITE(mqqb_session, s), mp_obj_is_true(recoverable));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(session_received_obj, session_received);

static mp_obj_t session_stored(mp_obj_t s, mp_obj_t recoverable_object)
{
    mqqb_session *session = WRITE(mqqb_session, s);
    const int recoverable = mp_obj_is_true(recoverable_object);

    if (session->message_stored_count == session->message_received_count ||
        (recoverable && session->recoverable_message_stored_count == session->recoverable_message_received_count)) {
        mp_raise_ValueError(MP_ERROR_TEXT("nothing left to store"));
    }
    return MP_OBJ_NEW_SMALL_INT(mqqb_session_stored(session, recoverable));
}
static MP_DEFINE_CONST_FUN_OBJ_2(session_stored_obj, session_stored);

static mp_obj_t session_unacked_received(mp_obj_t s)
{
    return MP_OBJ_NEW_SMALL_INT(mqqb_session_unacked_received(READ(mqqb_session, s)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(session_unacked_received_obj, session_unacked_received);

static mp_obj_t session_unacked_sent(mp_obj_t s)
{
    return MP_OBJ_NEW_SMALL_INT(mqqb_session_unacked_sent(READ(mqqb_session, s)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(session_unacked_sent_obj, session_unacked_sent);

static mp_obj_t session_fill(mp_obj_t s, mp_obj_t h)
{
    mqqb_session *session = WRITE(mqqb_session, s);

    mqqb_session_fill(session, WRITE(mqqb_session_header, h));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(session_fill_obj, session_fill);

static mp_obj_t session_check(mp_obj_t s, mp_obj_t h, mp_obj_t carried)
{
    mqqb_session *session = WRITE(mqqb_session, s);
    const mqqb_session_header *header = READ(mqqb_session_header, h);

    return MP_OBJ_NEW_SMALL_INT(mqqb_session_check(session, header, mp_obj_is_true(carried)));
}
static MP_DEFINE_CONST_FUN_OBJ_3(session_check_obj, session_check);

static mp_obj_t tx_compare(size_t count, const mp_obj_t *arguments)
{
    uint32_t halves[4];

    for (size_t i = 0; i < count; i++) {
        halves[i] = (uint32_t)number(arguments[i], 0, 0xFFFFFFFF);
    }
    return MP_OBJ_NEW_SMALL_INT(mqqb_tx_compare(halves[0], halves[1], halves[2], halves[3]));
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(tx_compare_obj, 4, 4, tx_compare);

static mp_obj_t accept(mp_obj_t incoming, mp_obj_t h)
{
    mqqb_incoming *stream = WRITE(mqqb_incoming, incoming);

    return mp_obj_new_bool(mqqb_accept(stream, READ(mqqb_transaction_header, h)));
}
static MP_DEFINE_CONST_FUN_OBJ_2(accept_obj, accept);

static mp_obj_t stamp(mp_obj_t outgoing, mp_obj_t previous, mp_obj_t h)
{
    mqqb_outgoing *stream = WRITE(mqqb_outgoing, outgoing);
    mqqb_transaction_header *header = WRITE(mqqb_transaction_header, h);

    if (stream->tx_sequence_number == 0) {
        mp_raise_ValueError(MP_ERROR_TEXT("number out of range"));
    }
    return MP_OBJ_NEW_SMALL_INT(
        mqqb_stamp(stream, (uint32_t)number(previous, 0, stream->tx_sequence_number - 1), header));
}
static MP_DEFINE_CONST_FUN_OBJ_3(stamp_obj, stamp);

static mp_obj_t order_ack_received(mp_obj_t outgoing, mp_obj_t ack)
{
    mqqb_outgoing *stream = WRITE(mqqb_outgoing, outgoing);

    return MP_OBJ_NEW_SMALL_INT(mqqb_order_ack_received(stream, READ(mqqb_order_ack, ack)));
}
static MP_DEFINE_CONST_FUN_OBJ_2(order_ack_received_obj, order_ack_received);

static mp_obj_t roll(mp_obj_t outgoing)
{
    mqqb_roll(WRITE(mqqb_outgoing, outgoing));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(roll_obj, roll);

/* buffer[offset:], for size bytes to write */
static uint8_t *place(mp_obj_t object, mp_obj_t offset, size_t size)
{
    mp_buffer_info_t buffer;
    mp_uint_t at;

    mp_get_buffer_raise(object, &buffer, MP_BUFFER_RW);
    at = number(offset, 0, buffer.len);
    if (buffer.len - at < size) {
        mp_raise_ValueError(MP_ERROR_TEXT("range outside the buffer"));
    }
    return (uint8_t *)buffer.buf + at;
}

/* copy(to, at, data, begin, end): to[at:] = data[begin:end] of bytes, without slice objects */
static mp_obj_t copy(size_t count, const mp_obj_t *arguments)
{
    size_t size;
    const uint8_t *from = range(arguments + 2, &size);

    (void)count;
    memmove(place(arguments[0], arguments[1], size), from, size);
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(copy_obj, 5, 5, copy);

static uint8_t *put_u32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        *to++ = (uint8_t)value;
        value >>= 8;
    }
    return to;
}

/* put_words(to, at, words, begin, end): words[begin:end], little-endian, without int objects above 2^30 */
static mp_obj_t put_words(size_t count, const mp_obj_t *arguments)
{
    const mp_uint_t end = number(arguments[4], 0, 0xFFFFFF);
    const mp_uint_t begin = number(arguments[3], 0, end);
    const uint32_t *words = structure(arguments[2], end, MP_BUFFER_READ);
    uint8_t *to = place(arguments[0], arguments[1], 4 * (end - begin));

    (void)count;
    for (mp_uint_t i = begin; i < end; i++) {
        to = put_u32(to, words[i]);
    }
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(put_words_obj, 5, 5, put_words);

/* copy_words(to, words): copy an array to the beginning of another */
static mp_obj_t copy_words(mp_obj_t to, mp_obj_t from)
{
    mp_buffer_info_t words;

    mp_get_buffer_raise(from, &words, MP_BUFFER_READ);
    memmove(structure(to, words.len / 4, MP_BUFFER_RW), structure(from, 0, MP_BUFFER_READ), words.len);
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(copy_words_obj, copy_words);

/* drop(list, count): remove the first items, without a slice; the list keeps its memory */
static mp_obj_t drop(mp_obj_t list, mp_obj_t items)
{
    mp_obj_list_t *from = MP_OBJ_TO_PTR(list);
    size_t count;

    if (mp_obj_get_type(list) != &mp_type_list) {
        mp_raise_ValueError(MP_ERROR_TEXT("not a list"));
    }
    count = number(items, 0, from->len);
    from->len -= count;
    memmove(from->items, from->items + count, from->len * sizeof *from->items);
    memset(from->items + from->len, 0, count * sizeof *from->items); /* so that dropped items are collected */
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(drop_obj, drop);

/* put_crc(data, at, begin, end, value): CRC-32 of data[begin:end], continued from value, to data[at:] */
static mp_obj_t put_crc(size_t count, const mp_obj_t *arguments)
{
    const mp_obj_t data_begin_end[3] = {arguments[0], arguments[2], arguments[3]};
    size_t size;
    const uint8_t *from = range(data_begin_end, &size);
    uint8_t *to = place(arguments[0], arguments[1], 4);

    (void)count;
    put_u32(to, mqqb_crc32((uint32_t)number(arguments[4], 0, 0xFFFFFFFF), from, size));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(put_crc_obj, 5, 5, put_crc);

/* seal(buffer, view of it, start, end): see mqqb.line; the twin needs the view */
static mp_obj_t seal(size_t count, const mp_obj_t *arguments)
{
    mp_buffer_info_t buffer;
    mp_uint_t start, end;

    (void)count;
    mp_get_buffer_raise(arguments[0], &buffer, MP_BUFFER_RW);
    end = number(arguments[3], 1, buffer.len);
    start = number(arguments[2], 0, end - 1);
    if (buffer.len - end < MQQB_FRAME_OVERHEAD - 1 || end - start > MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD + 1) {
        mp_raise_ValueError(MP_ERROR_TEXT("range outside the buffer"));
    }
    mqqb_seal((uint8_t *)buffer.buf + start, end - start - 1);
    return MP_OBJ_NEW_SMALL_INT(end + MQQB_FRAME_OVERHEAD - 1);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(seal_obj, 4, 4, seal);

static mp_obj_t unseal(size_t count, const mp_obj_t *arguments)
{
    mp_buffer_info_t buffer;
    mp_uint_t start, end;

    (void)count;
    mp_get_buffer_raise(arguments[0], &buffer, MP_BUFFER_RW);
    end = number(arguments[3], 0, buffer.len);
    start = number(arguments[2], 0, end);
    return mp_obj_new_bool(mqqb_unseal((uint8_t *)buffer.buf + start, end - start));
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(unseal_obj, 4, 4, unseal);

/* frames(out, view of it, at, head, data, start, count, most) */
static mp_obj_t frames(size_t arguments_count, const mp_obj_t *arguments)
{
    mp_buffer_info_t out, head, data;
    mp_uint_t at, bytes, start, count, most, left;

    (void)arguments_count;
    mp_get_buffer_raise(arguments[0], &out, MP_BUFFER_RW);
    mp_get_buffer_raise(arguments[3], &head, MP_BUFFER_RW);
    mp_get_buffer_raise(arguments[4], &data, MP_BUFFER_READ);
    bytes = at = number(arguments[2], 0, out.len);
    start = number(arguments[5], 0, data.len);
    count = number(arguments[6], 0, data.len - start);
    most = number(arguments[7], 1, MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD - MQQB_FRAME_HEAD);
    for (left = count; left > most; left -= most) { /* no division: a Cortex-M0 has none */
        bytes += MQQB_FRAME_OVERHEAD + MQQB_FRAME_HEAD + most;
    }
    if (head.len < MQQB_FRAME_HEAD || out.len < bytes + MQQB_FRAME_OVERHEAD + MQQB_FRAME_HEAD + left) {
        mp_raise_ValueError(MP_ERROR_TEXT("range outside the buffer"));
    }
    return MP_OBJ_NEW_SMALL_INT(
        at + mqqb_frames((uint8_t *)out.buf + at, head.buf, (const uint8_t *)data.buf + start, count, most));
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(frames_obj, 8, 8, frames);

#if !MICROPY_ENABLE_DYNRUNTIME && MICROPY_ENABLE_GC && !MICROPY_GC_SPLIT_HEAP
#include "py/gc.h"
#define HEAP_FREE {MP_ROM_QSTR(MP_QSTR_heap_free), MP_ROM_PTR(&heap_free_obj)},

/* heap_free(): as gc.mem_free(), which takes ten times as long */
static mp_obj_t heap_free(void)
{
    const uint8_t *state = MP_STATE_MEM(area).gc_alloc_table_start; /* two bits for each block; 0: free */
    size_t blocks = 0;

    for (size_t left = MP_STATE_MEM(area).gc_alloc_table_byte_len; left > 0; left--, state++) {
        blocks += !(*state & 3) + !(*state & 12) + !(*state & 48) + !(*state & 192);
    }
    return MP_OBJ_NEW_SMALL_INT(blocks * MICROPY_BYTES_PER_GC_BLOCK);
}
static MP_DEFINE_CONST_FUN_OBJ_0(heap_free_obj, heap_free);
#else
#define HEAP_FREE
#endif

#ifdef ORDACK_ROM_CLASSES
MP_REGISTER_ROOT_POINTER(void *rom_contexts[4 * 24]); /* of frozen modules: ports/rom_classes.py */
#endif

/* The functions, each with its name written out: the collector of names reads this file as text. */
/* lock(file): lock it until the process ends, because closing any descriptor would end the lock. OSError if another
 * process holds it. A file that cannot be opened is in MicroPython's own file system, invisible to others. */
static mp_obj_t lock(mp_obj_t name)
{
#if OTHER_PROCESSES
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int file = open(mp_obj_str_get_str(name), O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (file >= 0 && fcntl(file, F_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
        close(file);
        mp_raise_msg_varg(&mp_type_OSError, MP_ERROR_TEXT("another program holds %s: end it, or use another folder"),
                          mp_obj_str_get_str(name));
    }
#else
    (void)name;
#endif
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(lock_obj, lock);

#define FUNCTIONS(FUNCTION)                                                                                            \
    FUNCTION(MP_QSTR_part_size, part_size_obj)                                                                         \
    FUNCTION(MP_QSTR_part_words, part_words_obj)                                                                       \
    FUNCTION(MP_QSTR_unpack, unpack_obj)                                                                               \
    FUNCTION(MP_QSTR_pack, pack_obj)                                                                                   \
    FUNCTION(MP_QSTR_packet_total, packet_total_obj)                                                                   \
    FUNCTION(MP_QSTR_frame, frame_obj)                                                                                 \
    FUNCTION(MP_QSTR_serial_after, serial_after_obj)                                                                   \
    FUNCTION(MP_QSTR_is_acked, is_acked_obj)                                                                           \
    FUNCTION(MP_QSTR_session_init, session_init_obj)                                                                   \
    FUNCTION(MP_QSTR_session_can_send, session_can_send_obj)                                                           \
    FUNCTION(MP_QSTR_session_sent, session_sent_obj)                                                                   \
    FUNCTION(MP_QSTR_session_received, session_received_obj)                                                           \
    FUNCTION(MP_QSTR_session_stored, session_stored_obj)                                                               \
    FUNCTION(MP_QSTR_session_unacked_received, session_unacked_received_obj)                                           \
    FUNCTION(MP_QSTR_session_unacked_sent, session_unacked_sent_obj)                                                   \
    FUNCTION(MP_QSTR_session_fill, session_fill_obj)                                                                   \
    FUNCTION(MP_QSTR_session_check, session_check_obj)                                                                 \
    FUNCTION(MP_QSTR_tx_compare, tx_compare_obj)                                                                       \
    FUNCTION(MP_QSTR_accept, accept_obj)                                                                               \
    FUNCTION(MP_QSTR_stamp, stamp_obj)                                                                                 \
    FUNCTION(MP_QSTR_order_ack_received, order_ack_received_obj)                                                       \
    FUNCTION(MP_QSTR_roll, roll_obj)                                                                                   \
    FUNCTION(MP_QSTR_copy, copy_obj)                                                                                   \
    FUNCTION(MP_QSTR_copy_words, copy_words_obj)                                                                       \
    FUNCTION(MP_QSTR_put_words, put_words_obj)                                                                         \
    FUNCTION(MP_QSTR_drop, drop_obj)                                                                                   \
    FUNCTION(MP_QSTR_put_crc, put_crc_obj)                                                                             \
    FUNCTION(MP_QSTR_lock, lock_obj)                                                                                   \
    FUNCTION(MP_QSTR_seal, seal_obj)                                                                                   \
    FUNCTION(MP_QSTR_unseal, unseal_obj)                                                                               \
    FUNCTION(MP_QSTR_frames, frames_obj)

#if MICROPY_ENABLE_DYNRUNTIME
#define STORE(name, object) mp_store_global(name, MP_OBJ_FROM_PTR(&object));

mp_obj_t mpy_init(mp_obj_fun_bc_t *self, size_t count, size_t keywords, mp_obj_t *arguments)
{
    MP_DYNRUNTIME_INIT_ENTRY(void) count;
    (void)keywords;
    (void)arguments;
    greatest_word = mp_obj_new_int_from_uint(0xFFFFFFFF);
    FUNCTIONS(STORE)
    MP_DYNRUNTIME_INIT_EXIT
}
#else
#define ENTRY(name, object) {MP_ROM_QSTR(name), MP_ROM_PTR(&object)},

static const mp_rom_map_elem_t globals_table[] = {{MP_ROM_QSTR(MP_QSTR___name__), MP_ROM_QSTR(MP_QSTR__mqqb)},
                                                  HEAP_FREE FUNCTIONS(ENTRY)};
static MP_DEFINE_CONST_DICT(globals, globals_table);

const mp_obj_module_t mqqb_module = {
    .base = {&mp_type_module},
    .globals = (mp_obj_dict_t *)&globals,
};
MP_REGISTER_MODULE(MP_QSTR__mqqb, mqqb_module);
#endif
