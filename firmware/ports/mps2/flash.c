// flash.c: mps2.Flash and mps2.Card, two block devices in the 16 MiB PSRAM.
//
//     Flash   2 MiB at its start, as NOR flash is: erased in blocks of 4 KiB to 0xFF, programmed at any place; programming
//             only clears bits. LittleFS lives on it. Without an offset (FAT) a block is erased and then programmed.
//             `erase_ms=` on the command line: an erase takes so long, and UARTs are deaf meanwhile.
//     Card    8 MiB from its middle, as an SD card is: sectors of 512 bytes, written over. FAT lives on it.
//
// Behind the Flash the file has what was written to it, over all starts: wear_t, for the host.
//
// With the PSRAM in a shared file, killing QEMU is a power cut between two stores of the processor: a block may be half
// erased, half programmed, and what was written before is there.
#include <string.h>

#include "py/mperrno.h"
#include "py/runtime.h"
#include "extmod/vfs.h"

#include "board.h"
#include "flash.h"
#include "uart.h"

#define FLASH_BLOCK_BYTES 4096u
#define FLASH_BLOCKS 512u
#define CARD_OFFSET (PSRAM_SIZE / 2)
#define CARD_SECTOR_BYTES 512u
#define CARD_SECTORS 16384u
#define ERASED 0xFF

typedef struct {
    mp_obj_base_t base;
    uint8_t *memory;
    uint32_t block_bytes;
    uint32_t blocks;
    bool erases;         // NOR flash
    uint32_t erased;     // blocks, since the start
    uint32_t programmed; // bytes
} device_t;

typedef struct {
    uint64_t programmed; // bytes
    uint32_t erases[FLASH_BLOCKS];
} wear_t;

static volatile wear_t *const flash_wear = (wear_t *)(PSRAM_BASE + FLASH_BLOCKS * FLASH_BLOCK_BYTES);

static device_t flash = {
    .base = {&mps2_flash_type},
    .memory = (uint8_t *)PSRAM_BASE,
    .block_bytes = FLASH_BLOCK_BYTES,
    .blocks = FLASH_BLOCKS,
    .erases = true,
};
static device_t card = {
    .base = {&mps2_card_type},
    .memory = (uint8_t *)PSRAM_BASE + CARD_OFFSET,
    .block_bytes = CARD_SECTOR_BYTES,
    .blocks = CARD_SECTORS,
};

static mp_obj_t device_make_new(const mp_obj_type_t *type, size_t n_args, size_t n_kw, const mp_obj_t *args)
{
    mp_arg_check_num(n_args, n_kw, 0, 0, false);
    return MP_OBJ_FROM_PTR(type == &mps2_flash_type ? &flash : &card);
}

// The place of args: (self, block, buffer[, offset]); EIO if it is not all inside.
static uint8_t *place(const device_t *self, size_t n_args, const mp_obj_t *args, size_t size)
{
    mp_uint_t block = mp_obj_get_int(args[1]);
    mp_uint_t offset = n_args == 4 ? mp_obj_get_int(args[3]) : 0;
    mp_uint_t all = self->blocks * self->block_bytes;

    if (block >= self->blocks || offset > all || size > all || block * self->block_bytes + offset > all - size) {
        mp_raise_OSError(MP_EIO);
    }
    return self->memory + block * self->block_bytes + offset;
}

static void erase(device_t *self, uint8_t *at)
{
    uint32_t ms = setting_number("erase_ms", 0);

    memset(at, ERASED, self->block_bytes);
    self->erased++;
    flash_wear->erases[(uint32_t)(at - self->memory) / self->block_bytes]++;
    if (ms != 0) {
        uarts_deaf(ms);
    }
}

// readblocks(block, buffer[, offset])
static mp_obj_t device_readblocks(size_t n_args, const mp_obj_t *args)
{
    const device_t *self = MP_OBJ_TO_PTR(args[0]);
    mp_buffer_info_t buffer;

    mp_get_buffer_raise(args[2], &buffer, MP_BUFFER_WRITE);
    memcpy(buffer.buf, place(self, n_args, args, buffer.len), buffer.len);
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(device_readblocks_obj, 3, 4, device_readblocks);

// writeblocks(block, buffer[, offset]): with an offset the blocks must have been erased
static mp_obj_t device_writeblocks(size_t n_args, const mp_obj_t *args)
{
    device_t *self = MP_OBJ_TO_PTR(args[0]);
    mp_buffer_info_t buffer;

    mp_get_buffer_raise(args[2], &buffer, MP_BUFFER_READ);
    uint8_t *to = place(self, n_args, args, buffer.len);
    const uint8_t *from = buffer.buf;
    self->programmed += buffer.len;
    if (!self->erases) {
        memcpy(to, from, buffer.len);
        return mp_const_none;
    }
    flash_wear->programmed += buffer.len;
    for (size_t i = 0; i < buffer.len; i++) {
        if (n_args == 3 && i % self->block_bytes == 0) {
            erase(self, to + i);
        }
        to[i] &= from[i];
    }
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(device_writeblocks_obj, 3, 4, device_writeblocks);

static mp_obj_t device_ioctl(mp_obj_t self_in, mp_obj_t operation, mp_obj_t argument)
{
    device_t *self = MP_OBJ_TO_PTR(self_in);

    switch (mp_obj_get_int(operation)) {
    case MP_BLOCKDEV_IOCTL_INIT:
    case MP_BLOCKDEV_IOCTL_DEINIT:
    case MP_BLOCKDEV_IOCTL_SYNC: // what was written is there
        return MP_OBJ_NEW_SMALL_INT(0);
    case MP_BLOCKDEV_IOCTL_BLOCK_COUNT:
        return MP_OBJ_NEW_SMALL_INT(self->blocks);
    case MP_BLOCKDEV_IOCTL_BLOCK_SIZE:
        return MP_OBJ_NEW_SMALL_INT(self->block_bytes);
    case MP_BLOCKDEV_IOCTL_BLOCK_ERASE:
        if (self->erases) {
            mp_obj_t block[2] = {self_in, argument};
            erase(self, place(self, 2, block, self->block_bytes));
        }
        return MP_OBJ_NEW_SMALL_INT(0);
    default:
        return mp_const_none;
    }
}
static MP_DEFINE_CONST_FUN_OBJ_3(device_ioctl_obj, device_ioctl);

// wear(): bytes programmed and blocks erased since the start
static mp_obj_t device_wear(mp_obj_t self_in)
{
    const device_t *self = MP_OBJ_TO_PTR(self_in);
    mp_obj_t pair[2] = {mp_obj_new_int_from_uint(self->programmed), mp_obj_new_int_from_uint(self->erased)};

    return mp_obj_new_tuple(2, pair);
}
static MP_DEFINE_CONST_FUN_OBJ_1(device_wear_obj, device_wear);

static const mp_rom_map_elem_t device_locals_table[] = {
    {MP_ROM_QSTR(MP_QSTR_readblocks), MP_ROM_PTR(&device_readblocks_obj)},
    {MP_ROM_QSTR(MP_QSTR_writeblocks), MP_ROM_PTR(&device_writeblocks_obj)},
    {MP_ROM_QSTR(MP_QSTR_ioctl), MP_ROM_PTR(&device_ioctl_obj)},
    {MP_ROM_QSTR(MP_QSTR_wear), MP_ROM_PTR(&device_wear_obj)},
};
static MP_DEFINE_CONST_DICT(device_locals, device_locals_table);

MP_DEFINE_CONST_OBJ_TYPE(mps2_flash_type, MP_QSTR_Flash, MP_TYPE_FLAG_NONE, make_new, device_make_new, locals_dict,
                         &device_locals);
MP_DEFINE_CONST_OBJ_TYPE(mps2_card_type, MP_QSTR_Card, MP_TYPE_FLAG_NONE, make_new, device_make_new, locals_dict,
                         &device_locals);
