"""Describes the extension module `_mqqb` (c_core/mqqb, and host/native) to cffi.

As a script: builds host/_mqqb.abi3.so.

The declarations are those of the C headers: they are written once.
"""

import re
import shutil
from pathlib import Path

from cffi import FFI  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "c_core"
NATIVE = ROOT / "host" / "native"
MODULES = (
    CORE / "mqqb",
    NATIVE / "mqqb_scan",
    NATIVE / "mqqb_capture",
    NATIVE / "mqqb_audit",
    NATIVE / "mqqb_run",
    NATIVE / "mqqb_fast",
    NATIVE / "mqqb_sockets",
)

# mqqb_pack asserts what it is given, which would end the process. A binding must refuse it: what was packed and does
# not read back the same was out of range.
GLUE_DECLARATION = "int mqqb_pack_checked(int part, const void *in, uint8_t *out);"
GLUE = """
#include <string.h>
#include "mqqb.h"
#include "mqqb_capture.h"
#include "mqqb_audit.h"
#include "mqqb_fast.h"
#include "mqqb_run.h"
#include "mqqb_sockets.h"

static int mqqb_pack_checked(int part, const void *in, uint8_t *out)
{
    const size_t size = mqqb_part_size((mqqb_part)part);
    mqqb_message_properties_header words; /* the largest part */
    uint8_t packed[sizeof words];

    mqqb_pack((mqqb_part)part, in, packed, sizeof packed);
    if (mqqb_unpack((mqqb_part)part, &words, packed, size) != MQQB_OK ||
        memcmp(&words, in, 4 * mqqb_part_words((mqqb_part)part)) != 0) {
        return 0;
    }
    memcpy(out, packed, size);
    return 1;
}
"""


def declarations(header: str) -> str:
    """What cffi can read of a C header: no comments, no preprocessor but constants, no C++, no bodies of functions."""
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    header = re.sub(r"#ifdef __cplusplus.*?#endif", "", header, flags=re.DOTALL)
    header = re.sub(r"^static inline.*?^}$", "", header, flags=re.DOTALL | re.MULTILINE)
    header = re.sub(r"(#define MQQB_\w+) 0?[xX]?[0-9A-Fa-f]+u", r"\1 ...", header)
    return re.sub(r"^#(?!define \w+ \.\.\.).*$", "", header, flags=re.MULTILINE)


ffibuilder = FFI()
for module in MODULES:
    ffibuilder.cdef(declarations(module.with_suffix(".h").read_text()))
ffibuilder.cdef(GLUE_DECLARATION)
ffibuilder.set_source(
    "_mqqb",
    GLUE,
    sources=[str(module.with_suffix(".c")) for module in (*MODULES, CORE / "mqqb_line")],  # it has the CRC
    include_dirs=[str(CORE), str(NATIVE)],
    define_macros=[("NDEBUG", None)],  # the bindings refuse a caller's mistake instead
    py_limited_api=True,
)

if __name__ == "__main__":
    built = ffibuilder.compile(tmpdir=str(ROOT / "build" / "cffi"))
    shutil.move(built, ROOT / "host" / Path(built).name)
