"""One user at a time for a board, also while its power is off and its port is not there: `ordack board` and the rig.

Each name of a port has a file with a lock, which says who has it. The system releases a lock when its process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from serial.tools.list_ports_linux import SysFS

from ordack.boards.repl import NoBoard

FOLDER = Path(tempfile.gettempdir())
"""Where the locks are: all users of this machine see them."""


def names_of(port: str) -> list[str]:
    """The names of a port by its path or URL: the address in a network; the path, and of a USB port where it is plugged
    in. A pseudo-terminal has only the path that was given: its number is soon another board's.
    """
    if address := re.fullmatch(r"\w+://([^?/]*)/?(?:\?.*)?", port):
        return [address[1]] if address[1] else []
    real = os.path.realpath(port)
    usb = SysFS(real).location
    return [
        str(Path(port).absolute()),
        *([] if real.startswith("/dev/pts/") else [real]),
        *([f"usb {usb}"] if usb else []),
    ]


class Claim:
    """The use of a board, by all of its names, until `release` or the end of the process."""

    def __init__(self, reason: str, *names: str) -> None:
        self._reason = reason
        self._files: dict[str, IO[str]] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Claim further names. Raises NoBoard, and has claimed nothing any more, if somebody else has one."""
        for name in names:
            if name in self._files:
                continue
            file = _opened(FOLDER / f"ordack-board-{re.sub('[^A-Za-z0-9._-]+', '-', name).strip('-')}.lock")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = file.read().strip()
                file.close()
                self.release()
                raise NoBoard(f"board {name} is in use: {holder or 'nobody says by whom'}") from None
            self._files[name] = file
            file.truncate(0)
            file.write(f"{self._reason}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n")
            file.flush()

    def release(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _opened(path: Path) -> IO[str]:
    """A file that every user of this machine may write to, whoever has made it. One of another user cannot be opened so
    that it might be made, in a folder that all can write to.
    """
    while True:
        with suppress(FileNotFoundError):
            return path.open("r+")
        with suppress(FileExistsError), path.open("x"):
            path.chmod(0o666)
