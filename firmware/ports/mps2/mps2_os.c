// mps2_os.c: a part of extmod/modos.c: os.urandom().
#include "board.h"

static mp_obj_t mp_os_urandom(mp_obj_t size)
{
    vstr_t bytes;

    vstr_init_len(&bytes, mp_obj_get_int(size));
    for (size_t i = 0; i < bytes.len; i++) {
        bytes.buf[i] = random_word();
    }
    return mp_obj_new_bytes_from_vstr(&bytes);
}
static MP_DEFINE_CONST_FUN_OBJ_1(mp_os_urandom_obj, mp_os_urandom);
