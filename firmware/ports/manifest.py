# Frozen into the firmware of boards: asyncio, the engine and the node. twin: the firmware lacks the C core.
# tls: MicroPython has the module tls. raw_flash: the log without a file system, which takes no heap before its import.
# uart: links over a UART.
import runpy

options.defaults(twin=False, tls=True, raw_flash=True, uart=True)  # noqa: F821
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821

_modules = runpy.run_path("modules.py")
_chosen = {name: getattr(options, name) for name in ("twin", "tls", "raw_flash", "uart")}  # noqa: F821
_names = _modules["of_boards"](**_chosen)
_folder = str(_modules["write"]())
for _name in _modules["FOLDERS"]:
    # opt=3: no assertions and no line numbers, which are a tenth of the size.
    package(  # noqa: F821
        _name, [path[len(_name) + 1 :] for path in _names if path.startswith(_name)], base_path=_folder, opt=3
    )
