// flash.h: the block devices in the PSRAM, which QEMU can keep in a file of the host's.
#ifndef MPS2_FLASH_H
#define MPS2_FLASH_H

#include "py/obj.h"

extern const mp_obj_type_t mps2_flash_type;
extern const mp_obj_type_t mps2_card_type;

#endif
