"""One user at a time for a board of this machine, and boards that somebody keeps for longer than a process lives."""

import fcntl
import getpass
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from hil.boards import BoardMissing

FOLDER: Final = Path(tempfile.gettempdir())
"""Where locks are, so that all users of this machine see them."""


class Lock:
    """The use of a board, `identity` as its port has it. The file says who has it; the system lets go when the process
    ends, however that happens. Raises BoardMissing if somebody has it, or keeps it and is another user.
    """

    def __init__(self, identity: str, reason: str) -> None:
        self._file = _opened(_path(identity, "lock"))
        try:
            keeper = kept(identity)
            if keeper and not keeper.startswith(_mine()):
                raise BoardMissing(f"board {identity} is held by {keeper}")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            if not isinstance(error, BlockingIOError):
                raise
            raise BoardMissing(f"board {identity} is in use: {holder or 'nobody says by whom'}") from None
        self._file.truncate(0)
        self._file.write(f"{reason}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def _opened(path: Path) -> IO[str]:
    """A file that every user of this machine may write to, whoever has made it. One of another user cannot be opened so
    that it might be made, in a folder that all can write to.
    """
    while True:
        with suppress(FileNotFoundError):
            return path.open("r+")
        with suppress(FileExistsError), path.open("x"):
            path.chmod(0o666)


def _path(identity: str, kind: str) -> Path:
    return FOLDER / f"ordack-board-{re.sub('[^A-Za-z0-9._-]+', '-', identity).strip('-')}.{kind}"


def kept(identity: str) -> str:
    """Who keeps a board, since when and why; empty if nobody does."""
    try:
        return _path(identity, "held").read_text().strip()
    except FileNotFoundError:
        return ""


def _mine() -> str:
    """What begins with that is kept by this user, whose name may have spaces in it."""
    return f"{getpass.getuser()} since "


def keep(identity: str, reason: str) -> None:
    """Keep a board for this user until `give_back`. Raises BoardMissing if it is kept or in use."""
    lock = Lock(identity, "somebody who wants to hold it")
    try:
        if keeper := kept(identity):
            raise BoardMissing(f"board {identity} is held by {keeper}")
        said = f"{time.strftime('%Y-%m-%d %H:%M')}{': ' * bool(reason)}{reason}"
        _path(identity, "held").write_text(f"{_mine()}{said}\n")
    finally:
        lock.release()


def give_back(identity: str) -> None:
    """Raises BoardMissing if nobody keeps it, or another user does."""
    keeper = kept(identity)
    if not keeper.startswith(_mine()):
        raise BoardMissing(f"board {identity} is held by {keeper or 'nobody'}")
    _path(identity, "held").unlink()
