"""Boards that need no hardware, by name: one grammar for every kind of machine.

* `unix`: MicroPython's unix port with the C core as a user C module
* `unix-twin`: the same port with the Python twin of the core only
* `cpython`: the interpreter that runs the rig
* `exec:COMMAND`: any interpreter that takes a script and its argument, such as `exec:/opt/micropython -X heapsize=64k`
* `pi`: the firmware of a 64-bit Raspberry Pi, each instruction emulated by qemu-aarch64
* `pi-machine`: the same in a whole emulated machine with Linux, a disk and a network of its own
* `raspi3b`: the same in QEMU's model of a Raspberry Pi 3B
* `mps2-eth`, `mps2-uart`: the firmware of a Cortex-M3 in a whole emulated machine, over Ethernet or a serial line
* `m4-eth`, `m4-uart`, `m33-eth`, `m33-uart`: the same for a Cortex-M4, and for a Cortex-M33, the core of an RP2350
* `rv32-eth`, `rv32-uart`: the same for a RISC-V processor of 32 bits, as ESP32-C3 and RP2350 have
* any of these with `@KIB` behind it, such as `mps2-eth@140`: with so large a heap
"""

import shlex
import shutil
import sys
from pathlib import Path

from hil.boards import ROOT, SENSOR, Board, BoardMissing, ProcessBoard, built, program
from hil.emulated import M3, M4, M33, MPS2_HEAP_KIB, RV32, Mps2Board, PiBoard, Raspi3bBoard

MICROPYTHON = {
    "unix": ROOT / "build" / "micropython" / "unix-c" / "micropython",
    "unix-twin": ROOT / "build" / "micropython" / "unix-twin" / "micropython",
    "pi": ROOT / "build" / "firmware" / "pi" / "micropython",
}
TWIN = {"unix": "unix-twin", "unix-twin": "unix"}  # the same board with the other core
EMULATOR = {"pi": "qemu-aarch64"}
MPS2 = {  # the chip, and whether it has a network
    f"{name}-{link}": (chip, link == "eth")
    for name, chip in (("mps2", M3), ("m4", M4), ("m33", M33), ("rv32", RV32))
    for link in ("eth", "uart")
}
WITHOUT_INBOX = tuple(MPS2)
"""Beside readings, 64 KiB of heap have no room for commands."""
PI_MACHINES = {"pi-machine": PiBoard, "raspi3b": Raspi3bBoard}
KINDS = (*MICROPYTHON, *PI_MACHINES, *MPS2, "cpython")
ALIKE = ("pi", "m4-uart", "m33-uart")
"""A firmware, or a processor and a link, that others have, too: `make hil` plays them, `make test` does not."""


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
    path = built(MICROPYTHON[target], target)
    return [*([program(EMULATOR[target], target)] if target in EMULATOR else []), str(path)]


def open_kind(target: str, folder: Path, application: Path = SENSOR) -> Board:
    """The board that `target` names, switched off, its flash the not yet existing `folder`. Raises BoardMissing."""
    name, _, heap = target.partition("@")
    if name in MPS2 and (not heap or heap.isdecimal()):
        return Mps2Board(target, folder, *MPS2[name], application, int(heap or MPS2_HEAP_KIB))
    if target in PI_MACHINES:
        return PI_MACHINES[target](target, folder, application)
    other = interpreter(TWIN[target]) if target in TWIN else ()
    return ProcessBoard(target, interpreter(target), folder, application, other=other)
