"""Puts the methods of frozen classes into flash. MicroPython would make each of them in the heap at every start.

    rom_classes.py MAKEMANIFEST ARGUMENTS    runs MicroPython's makemanifest.py, and extends its frozen_content.c

A class statement then takes a constant dictionary of constant functions, and its code is not executed. A function has
the address of its module's context, so modules have fixed contexts, among the collector's roots (modmqqb.c). The linker
has to wrap what RUNTIME defines (mps2/Makefile). A class with members other than constants and plain methods stays in
the heap. Programs cannot change a class in flash.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BOARD = Path(__file__).resolve().parents[2] / "build" / "board"
SENDER = ("ordack/node/__init__.py", "ordack/node/wait.py")  # modules that stay loaded, and what they import
RUNTIME = """
#include <string.h>
#include "py/frozenmod.h"
#include "py/objfun.h"
#include "py/runtime.h"
#define ROM_CONTEXT(i) ((mp_module_context_t *)&MP_STATE_VM(rom_contexts)[4 * (i)])
#define ROM_FUNCTION(name, kind, module, children, count, ...) static const struct { \\
    mp_obj_base_t base; const mp_module_context_t *context; const void *inner; const byte *code; \\
    mp_rom_obj_t defaults[count]; \\
} rom_function_##name = {{&mp_type_##kind}, ROM_CONTEXT(module), children, fun_data_##name, {__VA_ARGS__}}
#define ROM_PROPERTY(name) static const struct {mp_obj_base_t base; mp_rom_obj_t proxy[3];} rom_property_##name = { \\
    {&mp_type_property}, {MP_ROM_PTR(&rom_function_##name), MP_ROM_NONE, MP_ROM_NONE}}
#define ROM_STATICMETHOD(name) static const mp_rom_obj_static_class_method_t rom_staticmethod_##name = { \\
    {&mp_type_staticmethod}, MP_ROM_PTR(&rom_function_##name)}
#define ROM_CLASS(name, count, size) \\
    {fun_data_##name, {{&mp_type_dict}, {1, 1, 0, count, size, (mp_map_elem_t *)rom_members_##name}}}

static const struct {const char *path; size_t size; const mp_frozen_module_t *code;} rom_modules[] = {
%(modules)s
};
_Static_assert(MP_ARRAY_SIZE(rom_modules) * 4 <= MP_ARRAY_SIZE(MP_STATE_VM(rom_contexts)), "");
_Static_assert(sizeof(mp_module_context_t) == 4 * sizeof(void *) && MICROPY_QSTR_BYTES_IN_HASH == 2, "");
%(objects)s
static const struct {const byte *body; mp_obj_dict_t members;} rom_classes[] = {
%(classes)s
};

// Is this the path of a module of ours, which has `left` more characters?
static bool rom_is_path(size_t i, const char *path, size_t size, size_t left)
{
    bool same = rom_modules[i].size == size + left;
    for (size_t k = size; same && k-- > 0;) {
        same = rom_modules[i].path[k] == (path[k] == '.' && left ? '/' : path[k]);
    }
    return same;
}

mp_obj_t __real_mp_obj_new_module(qstr name);
mp_obj_t __wrap_mp_obj_new_module(qstr name)
{
    mp_module_context_t *module = MP_OBJ_TO_PTR(__real_mp_obj_new_module(name));
    for (size_t i = 0; i < MP_ARRAY_SIZE(rom_modules); i++) {
        if (module != ROM_CONTEXT(i) && rom_is_path(i, qstr_str(name), qstr_len(name), 3)) {
            *ROM_CONTEXT(i) = *module;
            m_del_obj(mp_module_context_t, module);
            module = ROM_CONTEXT(i);
            mp_obj_dict_store(MP_OBJ_FROM_PTR(&MP_STATE_VM(mp_loaded_modules_dict)), MP_OBJ_NEW_QSTR(name),
                              MP_OBJ_FROM_PTR(module));
        }
    }
    return MP_OBJ_FROM_PTR(module);
}

// MicroPython compares the names of all frozen modules three times for each import.
mp_import_stat_t __real_mp_find_frozen_module(const char *path, int *kind, void **data);
mp_import_stat_t __wrap_mp_find_frozen_module(const char *path, int *kind, void **data)
{
    const size_t size = strlen(path);
    for (size_t i = 0; i < MP_ARRAY_SIZE(rom_modules); i++) {
        if (rom_is_path(i, path, size, 0)) {
            if (kind != NULL) {
                *kind = MP_FROZEN_MPY;
                *data = (void *)rom_modules[i].code;
            }
            return MP_IMPORT_STAT_FILE;
        }
        if (rom_is_path(i, path, size, 3)) {
            return MP_IMPORT_STAT_NO_EXIST; // it is no folder
        }
    }
    return __real_mp_find_frozen_module(path, kind, data);
}

// `from package.module import name`, once more: MicroPython would look up each part of the module's name.
mp_obj_t __real_mp_builtin___import___default(size_t count, const mp_obj_t *arguments);
mp_obj_t __wrap_mp_builtin___import___default(size_t count, const mp_obj_t *arguments)
{
    mp_map_elem_t *known = NULL;
    if (count == 5 && arguments[3] != mp_const_none && arguments[4] == MP_OBJ_NEW_SMALL_INT(0)) {
        known = mp_map_lookup(&MP_STATE_VM(mp_loaded_modules_dict).map, arguments[0], MP_MAP_LOOKUP);
    }
    return known ? known->value : __real_mp_builtin___import___default(count, arguments);
}

MP_DECLARE_CONST_FUN_OBJ_VAR(mp_builtin___build_class___obj);
static mp_obj_t rom_build_class(size_t count, const mp_obj_t *arguments)
{
    const mp_obj_fun_bc_t *body = MP_OBJ_TO_PTR(arguments[0]);
    for (size_t i = 0; mp_obj_is_type(arguments[0], &mp_type_fun_bc) && i < MP_ARRAY_SIZE(rom_classes); i++) {
        if (rom_classes[i].body == body->bytecode) {
            return mp_obj_new_type(mp_obj_str_get_qstr(arguments[1]), mp_obj_new_tuple(count - 2, arguments + 2),
                                   MP_OBJ_FROM_PTR(&rom_classes[i].members));
        }
    }
    return mp_call_function_n_kw(MP_OBJ_FROM_PTR(&mp_builtin___build_class___obj), count, 0, arguments);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR(rom_build_class_obj, 2, rom_build_class);

mp_obj_t __wrap_mp_load_build_class(void)
{
    return MP_OBJ_FROM_PTR(&rom_build_class_obj);
}
"""


class DynamicError(Exception):
    """A member of a class is no constant."""


def _hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = value * 33 ^ byte
    return value & 0xFFFF or 1


class Classes:
    """The constant objects for classes in this frozen_content.c, and the content without the code they replace."""

    def __init__(self, content: str) -> None:
        self.content = content
        self.objects: list[str] = []
        self.classes: list[str] = []
        self.left: list[str] = []  # in the heap

    def add(self, module: str, number: int, tree: ast.Module) -> None:
        """Add the classes of a module. module: its name in identifiers of C. number: of its context."""
        for kind in tree.body:
            if isinstance(kind, ast.ClassDef):
                before = len(self.objects)
                name = f"{module}_{kind.name}"
                try:
                    self._class(name, [self._member(name, number, one) for one in _members(kind.body)])
                except DynamicError as error:
                    del self.objects[before:]
                    self.left.append(f"{name} ({error})")

    def _class(self, name: str, members: list[tuple[str, str]]) -> None:
        table = [""] * max(len(members) + (len(members) > 4), 1)  # an empty place ends searches
        for key, value in members:
            place = _hash(key) % len(table)
            while table[place]:
                place = (place + 1) % len(table)
            table[place] = f"{{MP_ROM_QSTR(MP_QSTR_{key}), {value}}}"
        rows = ", ".join(row or "{MP_ROM_PTR(NULL), MP_ROM_PTR(NULL)}" for row in table)
        self.objects.append(f"static const mp_rom_map_elem_t rom_members_{name}[] = {{{rows}}};")
        self.classes.append(f"    ROM_CLASS({name}, {len(members)}, {len(table)}),")
        patterns = [  # of the statement's code only the address is needed
            ("const byte fun_data_{}\\[", "static const byte fun_data_{}[] = {{1, 1}};"),
            ("const mp_raw_code_truncated_t proto_fun_{} =", "#define proto_fun_{0} fun_data_{0}[0]"),
            ("const mp_raw_code_t \\*const children_{}\\[", ""),
        ]
        for pattern, instead in patterns if f"children_{name}[" in self.content else patterns[:1]:
            text = re.compile(rf"^static {pattern.format(name)}.*?\n}};", re.DOTALL | re.MULTILINE)
            self.content = text.sub(instead.format(name), self.content)

    def _member(self, name: str, number: int, part: ast.stmt) -> tuple[str, str]:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            return part.name, self._function(f"{name}_{part.name}", number, part)
        target = part.targets[0] if isinstance(part, ast.Assign) else getattr(part, "target", None)
        if not isinstance(target, ast.Name):
            raise DynamicError(ast.unparse(part))
        return target.id, self._value(part.value)  # type: ignore[attr-defined]

    def _function(self, name: str, number: int, part: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        nodes = list(ast.walk(part))
        is_closure = any(isinstance(node, ast.Name) and node.id == "super" for node in nodes)
        decorator = "".join(map(ast.unparse, part.decorator_list))
        is_plain = decorator in ("", "property", "staticmethod") and not any(part.args.kw_defaults)
        if is_closure or not is_plain or self.content.count(f"static const byte fun_data_{name}[") != 1:
            raise DynamicError(part.name)
        makes = isinstance(part, ast.AsyncFunctionDef) or any(isinstance(n, ast.Yield | ast.YieldFrom) for n in nodes)
        kind = "gen_wrap" if makes else "fun_bc"
        children = f"children_{name}" if f"children_{name}[]" in self.content else "NULL"
        defaults = [self._value(value) for value in part.args.defaults]
        values = ", ".join([name, kind, str(number), children, str(len(defaults)), *defaults])
        self.objects.append(f"ROM_FUNCTION({values});")
        if decorator:
            self.objects.append(f"ROM_{decorator.upper()}({name});")
        return f"MP_ROM_PTR(&rom_{decorator or 'function'}_{name})"

    def _value(self, node: ast.expr) -> str:
        """A constant in C."""
        try:
            value = ast.literal_eval(node)
        except ValueError:
            raise DynamicError(ast.unparse(node)) from None
        if value is None or isinstance(value, bool):
            return f"MP_ROM_{str(value).upper()}"
        if isinstance(value, int) and -(1 << 30) <= value < 1 << 30:
            return f"MP_ROM_INT({value})"
        if value in ((), ""):
            return "MP_ROM_QSTR(MP_QSTR_)" if value == "" else "MP_ROM_PTR(&mp_const_empty_tuple_obj)"
        name = f"rom_value_{len(self.objects)}"
        if isinstance(value, int) and 0 < value < 1 << 32:
            digits = f"(uint16_t *)(const uint16_t[]){{{value & 0xFFFF}, {value >> 16}}}"
            text = f"mp_obj_int_t {name} = {{{{&mp_type_int}}, {{0, 1, 2, 2, {digits}}}}}"
        elif isinstance(value, str | bytes):
            raw = value.encode() if isinstance(value, str) else value
            octets = "".join(f"\\{byte:03o}" for byte in raw)
            kind = type(value).__name__
            text = f'mp_obj_str_t {name} = {{{{&mp_type_{kind}}}, 0, {len(raw)}, (const byte *)"{octets}"}}'
        else:
            raise DynamicError(repr(value))
        self.objects.append(f"static const {text};")
        return f"MP_ROM_PTR(&{name})"


def _members(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that make members, as mpy-cross compiles them."""
    for part in body:
        if isinstance(part, ast.If) and isinstance(part.test, ast.Constant):
            yield from _members(part.body if part.test.value else part.orelse)
        elif not isinstance(part, ast.Expr | ast.Pass) and not (isinstance(part, ast.AnnAssign) and part.value is None):
            yield part


def _loaded(names: list[str]) -> list[str]:
    """These modules, and all that they import when they are executed."""
    found: list[str] = []
    while names:
        name = names.pop()
        if name not in found and (BOARD / name).exists():
            found.append(name)
            for part in ast.parse((BOARD / name).read_text(encoding="utf-8")).body:
                if isinstance(part, ast.ImportFrom):
                    path = (part.module or "").replace(".", "/")
                    names += [f"{path}.py", *(f"{path}/{alias.name}.py" for alias in part.names)]
    return sorted(found)


def extended(content: str) -> str:
    """The content, with constant objects for the classes of the modules that each sender loads."""
    classes = Classes(content)
    modules: list[str] = []
    for path in _loaded(list(SENDER)):
        name = path.removesuffix(".py")
        if f"fun_data_{name.replace('/', '_')}__lt_module_gt_[" in content and "__init__" not in name:
            classes.add(name.replace("/", "_"), len(modules), ast.parse((BOARD / path).read_text(encoding="utf-8")))
            modules.append(f'    {{"{path}", {len(path)}, &frozen_module_{name.replace("/", "_")}}},')
    print("classes in the heap:", *classes.left)
    values = {
        "modules": "\n".join(modules),
        "objects": "\n".join(classes.objects),
        "classes": "\n".join(classes.classes),
    }
    unused = '#pragma GCC diagnostic ignored "-Wunused-const-variable"\n'  # records of methods' code
    return unused + classes.content + RUNTIME % values


if __name__ == "__main__":
    subprocess.run([sys.executable, *sys.argv[1:]], check=True)
    output = Path(sys.argv[sys.argv.index("-o") + 1])
    text = output.read_text(encoding="utf-8")
    if "rom_build_class" not in text:
        output.write_text(extended(text), encoding="utf-8")
