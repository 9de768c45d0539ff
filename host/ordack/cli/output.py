"""Standard output as the destination of messages: what was written, and what its reader has taken."""

from __future__ import annotations

import array
import fcntl
import os
import select
import stat
import sys
import termios
import time
from pathlib import Path

from ordack.config.paths import sync
from ordack.text import legible

FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
_REFUSED = "cannot write to standard output"


class OutputError(Exception):
    """What is written is not taken; the text says why."""


def write(text: str) -> None:
    """Write all of it to standard output, or raise OutputError, or BrokenPipeError if its reader has gone. With
    PYTHONUNBUFFERED set, sys.stdout would drop what a pipe does not take at once, without a word."""
    write_bytes(legible(text).encode())


def write_bytes(data: bytes | memoryview) -> None:
    """The same for bytes as they are."""
    descriptor = _descriptor()
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # whoever gave us this pipe has set it so
            select.select((), (descriptor,), ())
        except BrokenPipeError:  # the reader has seen enough
            raise
        except OSError as error:
            raise OutputError(f"{_REFUSED}: {error.strerror}") from None


def is_file() -> bool:
    """Is standard output a regular file, which keeps what is written to it?"""
    return stat.S_ISREG(os.fstat(_descriptor()).st_mode)


def settle() -> None:
    """Wait until what was written is out of this process's hands: on the disk, if standard output is a file; with the
    reader, if it is a pipe. Raises BrokenPipeError if the reader has gone and left some of it, OutputError."""
    descriptor = _descriptor()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise OutputError(f"{_REFUSED}: {error.strerror}") from None
    elif stat.S_ISFIFO(mode):
        _wait_for_reader(descriptor)


def save(path: Path, data: bytes) -> None:
    """Write a new file, which is on the disk when this returns, or not there if this raises OutputError; or write to
    what is no file, such as a pipe that has a name."""
    is_new = not path.exists() or path.is_file()
    try:
        with path.open("xb" if is_new else "wb") as file:
            try:
                file.write(data)
                file.flush()
                if is_new:
                    os.fsync(file.fileno())
                    sync(path.absolute().parent)
            except BaseException:
                if is_new:
                    path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        raise OutputError(f"{path} is there already, and would be lost: name a new file") from None
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from None


def _wait_for_reader(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)
    unread = array.array("i", [0])
    interval = FIRST_WAIT_S
    while True:
        gone = bool(poll.poll(0))  # asked first: it may take all and go in between
        fcntl.ioctl(descriptor, termios.FIONREAD, unread)
        if not unread[0]:
            return
        if gone:
            raise BrokenPipeError
        time.sleep(interval)
        interval = min(2 * interval, LAST_WAIT_S)


def _descriptor() -> int:
    if sys.stdout is None:  # closed from the start; descriptor 1 may be the store's by now
        raise OutputError(f"{_REFUSED}: it is closed")
    return sys.stdout.fileno()
