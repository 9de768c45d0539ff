# Frozen into the firmware of boards: asyncio, the engine and the node. twin: the firmware lacks the C core.
# tls: MicroPython has the module tls. raw_flash: the log without a file system, which takes no heap before its import.
# uart: links over a UART. send_only: nothing that receives messages, or looks into dead letters and the journal.
import runpy

options.defaults(twin=False, tls=True, raw_flash=True, uart=True, send_only=False)  # noqa: F821
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821

_modules = runpy.run_path("modules.py")
_chosen = {name: getattr(options, name) for name in ("twin", "tls", "raw_flash", "uart", "send_only")}  # noqa: F821
_names = _modules["of_boards"](**_chosen)
_board = _modules["BOARD"].with_name("board-send-only") if _chosen["send_only"] else _modules["BOARD"]
_folder = str(_modules["write"](_board, (), _chosen["send_only"]))
for _name in _modules["FOLDERS"]:
    # opt=3: no assertions and no line numbers, which are a tenth of the size.
    package(  # noqa: F821
        _name, [path[len(_name) + 1 :] for path in _names if path.startswith(_name)], base_path=_folder, opt=3
    )
