// modmps2.c: the module mps2, specific to this machine. mps2.Flash is a block device at the start of the 16 MiB PSRAM:
// 2 MiB of NOR flash, erased in blocks of 4 KiB to 0xFF, programmed at any place; programming only clears bits.
// Without an offset (FAT) a block is erased first. `erase_ms=` on the command line: ms of an erase, with a deaf UART.
//
// Behind the flash the file counts all writes, over all starts: wear_t, for the host.
//
// With the PSRAM in a shared file, killing QEMU is a power cut between two stores: a block may be half erased or half
// programmed, and earlier writes are kept.
#include <string.h>

#include "py/mperrno.h"
#include "py/runtime.h"
#include "extmod/vfs.h"

#include "board.h"
#include "uart.h"

extern const mp_obj_type_t mps2_flash_type;

#define FLASH_BLOCK_BYTES 4096u
#define FLASH_BLOCKS 512u
#define ERASED 0xFF

typedef struct {
    uint64_t programmed; // bytes
    uint32_t erases[FLASH_BLOCKS];
} wear_t;

static volatile wear_t *const all_wear = (wear_t *)(PSRAM_BASE + FLASH_BLOCKS * FLASH_BLOCK_BYTES);

static uint8_t *const memory = (uint8_t *)PSRAM_BASE;
static const mp_obj_base_t flash = {&mps2_flash_type};

static mp_obj_t flash_make_new(const mp_obj_type_t *type, size_t n_args, size_t n_kw, const mp_obj_t *args)
{
    mp_arg_check_num(n_args, n_kw, 0, 0, false);
    return MP_OBJ_FROM_PTR(&flash);
}

// The address for args (self, block, buffer[, offset]); EIO unless all of it is inside.
static uint8_t *place(size_t n_args, const mp_obj_t *args, size_t size)
{
    const mp_uint_t all = FLASH_BLOCKS * FLASH_BLOCK_BYTES;
    mp_uint_t block = mp_obj_get_int(args[1]);
    mp_uint_t offset = n_args == 4 ? mp_obj_get_int(args[3]) : 0;

    if (block >= FLASH_BLOCKS || offset > all || size > all || block * FLASH_BLOCK_BYTES + offset > all - size) {
        mp_raise_OSError(MP_EIO);
    }
    return memory + block * FLASH_BLOCK_BYTES + offset;
}

static void erase(uint8_t *at)
{
    uint32_t ms = setting_number("erase_ms", 0);

    memset(at, ERASED, FLASH_BLOCK_BYTES);
    all_wear->erases[(uint32_t)(at - memory) / FLASH_BLOCK_BYTES]++;
    if (ms != 0) {
        uart_deaf(&uarts[1], ms);
    }
}

// readblocks(block, buffer[, offset])
static mp_obj_t flash_readblocks(size_t n_args, const mp_obj_t *args)
{
    mp_buffer_info_t buffer;

    mp_get_buffer_raise(args[2], &buffer, MP_BUFFER_WRITE);
    memcpy(buffer.buf, place(n_args, args, buffer.len), buffer.len);
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(flash_readblocks_obj, 3, 4, flash_readblocks);

// writeblocks(block, buffer[, offset]): with an offset the blocks must be erased
static mp_obj_t flash_writeblocks(size_t n_args, const mp_obj_t *args)
{
    mp_buffer_info_t buffer;

    mp_get_buffer_raise(args[2], &buffer, MP_BUFFER_READ);
    uint8_t *to = place(n_args, args, buffer.len);
    const uint8_t *from = buffer.buf;
    all_wear->programmed += buffer.len;
    for (size_t i = 0; i < buffer.len; i++) {
        if (n_args == 3 && i % FLASH_BLOCK_BYTES == 0) {
            erase(to + i);
        }
        to[i] &= from[i];
    }
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(flash_writeblocks_obj, 3, 4, flash_writeblocks);

static mp_obj_t flash_ioctl(mp_obj_t self_in, mp_obj_t operation, mp_obj_t argument)
{
    switch (mp_obj_get_int(operation)) {
    case MP_BLOCKDEV_IOCTL_INIT:
    case MP_BLOCKDEV_IOCTL_DEINIT:
    case MP_BLOCKDEV_IOCTL_SYNC: // writes are immediate
        return MP_OBJ_NEW_SMALL_INT(0);
    case MP_BLOCKDEV_IOCTL_BLOCK_COUNT:
        return MP_OBJ_NEW_SMALL_INT(FLASH_BLOCKS);
    case MP_BLOCKDEV_IOCTL_BLOCK_SIZE:
        return MP_OBJ_NEW_SMALL_INT(FLASH_BLOCK_BYTES);
    case MP_BLOCKDEV_IOCTL_BLOCK_ERASE: {
        mp_obj_t block[2] = {self_in, argument};
        erase(place(2, block, FLASH_BLOCK_BYTES));
        return MP_OBJ_NEW_SMALL_INT(0);
    }
    default:
        return mp_const_none;
    }
}
static MP_DEFINE_CONST_FUN_OBJ_3(flash_ioctl_obj, flash_ioctl);

static const mp_rom_map_elem_t flash_locals_table[] = {
    {MP_ROM_QSTR(MP_QSTR_readblocks), MP_ROM_PTR(&flash_readblocks_obj)},
    {MP_ROM_QSTR(MP_QSTR_writeblocks), MP_ROM_PTR(&flash_writeblocks_obj)},
    {MP_ROM_QSTR(MP_QSTR_ioctl), MP_ROM_PTR(&flash_ioctl_obj)},
};
static MP_DEFINE_CONST_DICT(flash_locals, flash_locals_table);

MP_DEFINE_CONST_OBJ_TYPE(mps2_flash_type, MP_QSTR_Flash, MP_TYPE_FLAG_NONE, make_new, flash_make_new, locals_dict,
                         &flash_locals);

// ---- the module

// setting(name): the value of a word NAME=VALUE on QEMU's command line, or None
static mp_obj_t mps2_setting(mp_obj_t name_in)
{
    size_t name_length, length;
    const char *name = mp_obj_str_get_data(name_in, &name_length);
    const char *value = setting(name, name_length, &length);

    return value == NULL ? mp_const_none : mp_obj_new_str(value, length);
}
static MP_DEFINE_CONST_FUN_OBJ_1(mps2_setting_obj, mps2_setting);

// power_off([status]): ends QEMU
static mp_obj_t mps2_power_off(size_t n_args, const mp_obj_t *args)
{
    semihost_exit(n_args == 0 ? 0 : mp_obj_get_int(args[0]));
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(mps2_power_off_obj, 0, 1, mps2_power_off);

static const mp_rom_map_elem_t mps2_globals_table[] = {
    {MP_ROM_QSTR(MP_QSTR___name__), MP_ROM_QSTR(MP_QSTR_mps2)},
    {MP_ROM_QSTR(MP_QSTR_Flash), MP_ROM_PTR(&mps2_flash_type)},
    {MP_ROM_QSTR(MP_QSTR_setting), MP_ROM_PTR(&mps2_setting_obj)},
    {MP_ROM_QSTR(MP_QSTR_power_off), MP_ROM_PTR(&mps2_power_off_obj)},
};
static MP_DEFINE_CONST_DICT(mps2_globals, mps2_globals_table);

const mp_obj_module_t mps2_module = {
    .base = {&mp_type_module},
    .globals = (mp_obj_dict_t *)&mps2_globals,
};
MP_REGISTER_MODULE(MP_QSTR_mps2, mps2_module);
