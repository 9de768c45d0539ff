"""The meaning of a board's name: a board of the file of boards, or one that needs no hardware."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from hil.boards import ROOT, SENSOR, Board, BoardMissing, ProcessBoard, built
from hil.emulated import Mps2Board

MICROPYTHON = {
    "unix": ROOT / "build" / "micropython" / "unix-c" / "micropython",
    "unix-twin": ROOT / "build" / "micropython" / "unix-twin" / "micropython",
}
MICROCONTROLLERS = {"mps2-eth": True, "mps2-uart": False}
"""Whether it has a network; else it has a UART."""
EMULATED = (*MICROPYTHON, *MICROCONTROLLERS, "cpython")
"""The boards that need no hardware, beside `exec:COMMAND`: any interpreter that takes a script and its argument."""
RIG = ROOT / "rig.yaml"


def rig_file() -> Path | None:
    """The file of boards: LG_ENV, else rig.yaml in the checkout; None if it is missing or empty."""
    found = os.environ.get("LG_ENV") or (str(RIG) if RIG.exists() and RIG.stat().st_size else "")
    return Path(found) if found else None


def interpreter(target: str) -> list[str]:
    """The command that runs a script for `target`. Raises BoardMissing without one."""
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
        return [str(Path(found).absolute()), *words[1:]]  # boards run in their own folders
    if target not in MICROPYTHON:
        raise BoardMissing(f"no board {target!r}: give one of {', '.join(EMULATED)} or exec:COMMAND")
    return [str(built(MICROPYTHON[target], target))]


def open_board(target: str, folder: Path, application: Path = SENSOR) -> Board:
    """The board called `target`, from the file of boards or without hardware, switched off. A board without hardware
    has its flash in `folder`, which must not exist. Raises BoardMissing."""
    path = rig_file()
    if path is not None:
        try:
            from hil import drivers  # labgrid is needed for such a file only
        except ModuleNotFoundError as error:
            raise BoardMissing(f"{path} needs {error.name}: `make setup-test` installs it") from None
        environment = drivers.load(path)
        if target in environment.config.get_targets():
            return drivers.open_board(environment, target, application)
    if target in MICROCONTROLLERS:
        return Mps2Board(target, folder, MICROCONTROLLERS[target], application)
    return ProcessBoard(target, interpreter(target), folder, application)
