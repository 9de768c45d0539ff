"""Boards that need no hardware: those of emulated.yaml, or `exec:COMMAND`, any interpreter that takes a script and its
argument, such as `exec:/opt/micropython -X heapsize=64k`. A microcontroller with `@KIB` behind its name, such as
`mps2-eth@140`, has so large a heap.
"""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from hil.boards import ROOT, SENSOR, Board, BoardMissing, ProcessBoard, built
from hil.emulated import CHIPS, MPS2_HEAP_KIB, Mps2Board

EMULATED: dict[str, dict[str, Any]] = {
    name: target["resources"]["EmulatedMachine"]
    for name, target in yaml.safe_load(Path(__file__).with_name("emulated.yaml").read_text())["targets"].items()
}
"""What emulated.yaml says of each board: its `machine`, and whether it has a `network`."""
MICROPYTHON = {
    "unix": ROOT / "build" / "micropython" / "unix-c" / "micropython",
    "unix-twin": ROOT / "build" / "micropython" / "unix-twin" / "micropython",
}
TWIN = {"unix": "unix-twin", "unix-twin": "unix"}  # the same board with the other core
CHIP = {chip.name: chip for chip in CHIPS}
MACHINES = (*MICROPYTHON, "cpython", *CHIP)
WITHOUT_INBOX = tuple(name for name, described in EMULATED.items() if described["machine"] in CHIP)
"""Beside readings, 64 KiB of heap have no room for commands."""


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
        raise BoardMissing(f"no board {target!r}: give one of {', '.join(EMULATED)} or exec:COMMAND")
    return [str(built(MICROPYTHON[target], target))]


def open_emulated(target: str, folder: Path, application: Path = SENSOR) -> Board:
    """The board that `target` names, switched off, its flash the not yet existing `folder`. Raises BoardMissing."""
    name, _, heap = target.partition("@")
    described = EMULATED.get(name)
    if described is None or (heap and not (heap.isdecimal() and described["machine"] in CHIP)):
        return ProcessBoard(target, interpreter(target), folder, application)
    network = described.get("network", True)
    return open_machine(target, described["machine"], network, folder, application, int(heap or MPS2_HEAP_KIB))


def open_machine(
    target: str, machine: str, network: bool, folder: Path, application: Path, heap: int = MPS2_HEAP_KIB
) -> Board:
    """A board on one of `MACHINES`; heap: of a microcontroller, in KiB. Raises BoardMissing."""
    if machine in CHIP:
        return Mps2Board(target, folder, CHIP[machine], network, application, heap)
    other = interpreter(TWIN[machine]) if machine in TWIN else ()
    return ProcessBoard(target, interpreter(machine), folder, application, other=other)
