"""Locks that give a board to one user at a time, `ordack board` or the rig, even while its port is missing.

Each name of a port has a lock file that tells its holder. The system releases a lock when its process ends.
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
    """The names of a port by its path or URL: the network address; or the path, and the USB location of a USB port. A
    pseudo-terminal has only the given path: another board may soon get its number."""
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
    """The claim on a board, by all of its names, until `release` or the end of the process."""

    def __init__(self, reason: str, *names: str) -> None:
        self._reason = reason
        self._files: dict[str, IO[str]] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Claim further names. If another user holds one, releases all claims and raises NoBoard."""
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
                raise NoBoard(f"board {name} is in use: {holder or 'by an unknown program'}") from None
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
    """A lock file that every user of this machine may write to. Opening and creating alternate: in a world-writable
    folder, Linux refuses O_CREAT on another user's file."""
    while True:
        with suppress(FileNotFoundError):
            return path.open("r+")
        with suppress(FileExistsError), path.open("x"):
            path.chmod(0o666)
