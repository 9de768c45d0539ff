// modmps2.c: the module mps2: what only this machine has.
#include "py/runtime.h"

#include "board.h"

extern const mp_obj_type_t mps2_flash_type;

// setting(name): the value of a word NAME=VALUE on QEMU's command line, None without it
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
