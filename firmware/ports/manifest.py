# Frozen into the firmware of boards: asyncio, the engine and the node. twin: the C core is not in, so its twin must be.
import os

options.defaults(twin=False)  # noqa: F821
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821


def _modules(folder, *left_out):
    return tuple(name for name in sorted(os.listdir(folder)) if name.endswith(".py") and name not in left_out)


_TWINS = ("core_py.py", "line_py.py")
# core_cffi and cpython are CPython's; only hosts need constants, extras and transfer; interfaces is for type checkers.
# opt=3: no assertions and no line numbers, which are a tenth of the size.
package(  # noqa: F821
    "mqqb",
    _modules("../mqqb", "constants.py", "core_cffi.py", "extras.py", "transfer.py", *(() if options.twin else _TWINS)),  # noqa: F821
    base_path="..",
    opt=3,
)
package("node", _modules("../node", "cpython.py", "interfaces.py"), base_path="..", opt=3)  # noqa: F821
