"""Boards that need no hardware, by name: one grammar for every kind of machine.

* `unix`: MicroPython's unix port with the C core as a user C module
* `unix-twin`: the same port with the Python twin of the core only
* `cpython`: the interpreter that runs the rig
* `exec:COMMAND`: any interpreter that takes a script and its argument, such as `exec:/opt/micropython -X heapsize=64k`
* `pi-machine`: a 64-bit Raspberry Pi as a whole emulated machine with Linux, a disk and a network of its own
* `raspi3b`: the same in QEMU's model of a Raspberry Pi 3B
* `mps2-eth`, `mps2-uart`: the firmware of a Cortex-M3 in a whole emulated machine, over Ethernet or a serial line
* `m33-eth`: the same for a Cortex-M33, the core of an RP2350
* `rv32-eth`, `rv32-uart`: the same for a RISC-V processor of 32 bits, as ESP32-C3 and RP2350 have
* any of these with `@KIB` behind it, such as `mps2-eth@140`: with so large a heap
"""

import shlex
import shutil
import sys
from pathlib import Path

from hil.boards import ROOT, SENSOR, Board, BoardMissing, ProcessBoard, built
from hil.emulated import M3, M33, MPS2_HEAP_KIB, RV32, Mps2Board, PiBoard, Raspi3bBoard

MICROPYTHON = {
    "unix": ROOT / "build" / "micropython" / "unix-c" / "micropython",
    "unix-twin": ROOT / "build" / "micropython" / "unix-twin" / "micropython",
}
TWIN = {"unix": "unix-twin", "unix-twin": "unix"}  # the same board with the other core
MPS2 = {  # the chip, and whether it has a network
    "mps2-eth": (M3, True),
    "mps2-uart": (M3, False),
    "m33-eth": (M33, True),
    "rv32-eth": (RV32, True),
    "rv32-uart": (RV32, False),
}
WITHOUT_INBOX = tuple(MPS2)
"""Beside readings, 64 KiB of heap have no room for commands."""
PI_MACHINES = {"pi-machine": PiBoard, "raspi3b": Raspi3bBoard}
KINDS = (*MICROPYTHON, *PI_MACHINES, *MPS2, "cpython")


def interpreter(target: str) -> list[str]:
    """The command that runs a script for `target`. Raises BoardMissing if there is none here."""
    if target == "cpython":
        return [sys.executable]
    if target.startswith("exec:"):
        try:
            words = shlex.split(target.removeprefix("exec:"))
        except ValueError as error:
            raise BoardMissing(f"{target}: {error}") from None
        found = shutil.which(words[0]) if words else None
        if found is None:
            raise BoardMissing(f"{target}: no such program; give a path to one, or one that PATH finds")
        return [str(Path(found).absolute()), *words[1:]]  # boards run in folders of their own
    if target not in MICROPYTHON:
        raise BoardMissing(f"no board {target!r}: give one of {', '.join(KINDS)} or exec:COMMAND")
    return [str(built(MICROPYTHON[target], target))]


def open_kind(target: str, folder: Path, application: Path = SENSOR) -> Board:
    """The board that `target` names, switched off, its flash the not yet existing `folder`. Raises BoardMissing."""
    name, _, heap = target.partition("@")
    if name in MPS2 and (not heap or heap.isdecimal()):
        return Mps2Board(target, folder, *MPS2[name], application, int(heap or MPS2_HEAP_KIB))
    if target in PI_MACHINES:
        return PI_MACHINES[target](target, folder, application)
    other = interpreter(TWIN[target]) if target in TWIN else ()
    return ProcessBoard(target, interpreter(target), folder, application, other=other)
