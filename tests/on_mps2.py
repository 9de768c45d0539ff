"""Runs a MicroPython script of this checkout on a board in QEMU: python -m tests.on_mps2 SCRIPT [HEAP_KIB]

The board's flash gets the modules of firmware/ and tests/mp as they are now, in the board's form and compiled, so that
no firmware has to be built for a change in them; the script itself is compiled on the board. It runs in the checkout's
place: paths such as tests/vectors.json are valid. Nothing but the interpreter and the C core is the firmware's.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from firmware.ports import modules
from hil.emulated import M3, MPS2_PSRAM_SIZE, MPY_CROSS, mps2_flash

ROOT = Path(__file__).resolve().parent.parent
HEAP_KIB = 3800
"""All that the machine has: the tests need more than a board would."""

# Folders on the flash, in the form that boards run.
MODULES = (*modules.FOLDERS, "tests/mp")
DATA = ("tests/vectors.json",)
MAIN = """\
import mps2
import sys

try:
    with open("script.py") as script:
        exec(script.read(), {"__name__": "__main__"})
    status = 0
except SystemExit as end:
    status = int(end.args[0] or 0) if end.args else 0
except BaseException as error:
    sys.print_exception(error)
    status = 1
mps2.power_off(status)
"""


def board() -> Path:
    """The modules of firmware/ and tests/mp as boards run them, from the sources as they are now."""
    return modules.write(others=("tests/mp/*.py", "tests/vectors.json"))


@functools.cache
def compiled() -> "dict[str, bytes]":
    """The modules of a board, as they were when this process first asked."""
    content = {}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "module.mpy"
        for place in MODULES:
            for module in sorted((board() / place).rglob("*.py")):
                subprocess.run([MPY_CROSS, "-s", module.name, "-o", output, module], check=True, timeout=30)
                content[str(module.relative_to(board()).with_suffix(".mpy"))] = output.read_bytes()
    return content


def files(script: str) -> "dict[str, bytes]":
    """What is on the flash of a board that runs `script` when it is switched on."""
    data = {name: (ROOT / name).read_bytes() for name in DATA}
    script = modules.inlined(script, modules.stated(), "script")
    return {**compiled(), **data, "script.py": script.encode(), "main.py": MAIN.encode()}


def run(
    script: str, timeout: float, heap: int = HEAP_KIB, *, firmware: "Path | None" = None
) -> "subprocess.CompletedProcess[str]":
    """Runs the source text `script`; its output and exit status (1 after an exception).

    heap in KiB; firmware, if it is not the usual one. Raises subprocess.TimeoutExpired after `timeout` s.
    """
    with tempfile.TemporaryDirectory() as folder:
        psram = Path(folder) / "psram"
        mps2_flash(psram).create(files(script), MPS2_PSRAM_SIZE)
        command = M3.command(psram, f"heap={heap}", firmware)
        command += ["-serial", "stdio"]
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )


def main() -> int:
    """Runs the script that the command line names."""
    heap = int(sys.argv[2]) if len(sys.argv) > 2 else HEAP_KIB
    result = run(Path(sys.argv[1]).read_text(encoding="utf-8"), 600, heap)
    print(result.stdout, end="")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
