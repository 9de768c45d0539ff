"""Writes messages to standard output, and tells how far its reader has read. `ordack receive` removes each message from
its queue after writing its line."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ordack.config.names import counted, legible
from ordack.store.messages import NotTaken

if TYPE_CHECKING:
    from ordack.broker.message import Message
    from ordack.client import Queue

FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
BATCH = 256  # messages per commit, if standard output is a file
_REFUSED = "cannot write to standard output"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class OutputError(Exception):
    """Standard output failed; the text gives the reason."""


def write(text: str) -> None:
    """Write all of the text to standard output. Raises OutputError, or BrokenPipeError if the reader has gone.
    sys.stdout does not serve: with PYTHONUNBUFFERED set, it silently drops bytes that a full pipe refuses."""
    descriptor = _descriptor()
    left = memoryview(legible(text).encode())
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # the pipe is non-blocking, set by the parent process
            select.select((), (descriptor,), ())
        except BrokenPipeError:  # the reader has closed the pipe
            raise
        except OSError as error:
            raise OutputError(f"{_REFUSED}: {error.strerror}") from None


def is_file() -> bool:
    """Is standard output a regular file, which keeps the text?"""
    return stat.S_ISREG(os.fstat(_descriptor()).st_mode)


def settle() -> None:
    """Wait until the output is on disk, for a file, or read, for a pipe. Raises BrokenPipeError if the reader has gone
    without reading all of it, OutputError."""
    descriptor = _descriptor()
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise OutputError(f"{_REFUSED}: {error.strerror}") from None
    elif stat.S_ISFIFO(mode):
        _wait_for_reader(descriptor)


def _wait_for_reader(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, 0)
    unread = array.array("i", [0])
    interval = FIRST_WAIT_S
    while True:
        gone = bool(poll.poll(0))  # first, because the reader may read everything and close in between
        fcntl.ioctl(descriptor, termios.FIONREAD, unread)
        if not unread[0]:
            return
        if gone:
            raise BrokenPipeError
        time.sleep(interval)
        interval = min(2 * interval, LAST_WAIT_S)


def _descriptor() -> int:
    if sys.stdout is None:  # closed at start; descriptor 1 may belong to the store by now
        raise OutputError(f"{_REFUSED}: it is closed")
    return sys.stdout.fileno()


# ---- draining a queue


class Interrupted(Exception):
    """A signal with this number has interrupted the work."""

    def __init__(self, number: int) -> None:
        self.number = number


class Drain:
    """Takes messages from a queue and shows them. show: writes one message to standard output, or raises. named: adds
    people's names to a text.

    str() says which messages were removed so far, and is correct even after `run` has raised.
    """

    def __init__(
        self,
        queue: Queue,
        show: Callable[[Message], None],
        named: Callable[[str], str],
        complain: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._show = show
        self._named = named
        self._complain = complain
        self.removed = 0
        self.last: Message | None = None

    def __str__(self) -> str:
        if self.last is None:
            return f"nothing was removed from {self._queue.name}"
        last = self._named(f"{self.last.source}\\{self.last.message_id}")
        return (
            f"{counted(self.removed, 'message')} {'was' if self.removed == 1 else 'were'} removed from "
            f"{self._queue.name}, the last {last}"
        )

    def run(self, left: int, timeout: float) -> None:
        """Show and remove up to `left` messages, until none arrives within `timeout` seconds.

        A message is removed after it is written and settled (`settle`): in a batch per commit for a file, else alone.
        Without a timeout, a stop of `serve` in between only has the messages written again.
        Raises the errors of `show`, and Interrupted at SIGINT, SIGTERM or SIGHUP. Before raising, it removes the
        written messages and puts the rest back.
        """
        limit = BATCH if is_file() else 1
        with interruptible():
            while left:
                try:
                    found = self._round(min(left, limit), timeout)
                except NotTaken as error:
                    if timeout < float("inf"):
                        raise
                    self._complain(str(error))
                    continue
                if not found:
                    return
                left -= found

    def _round(self, limit: int, timeout: float) -> int:
        from ordack.broker.message import Message

        stored = self._queue.begin_receive(limit, timeout)
        keys = [message.lookup_id for message in stored]
        written: list[Message] = []
        try:
            for found in stored:
                message = Message(found)
                self._show(message)
                written.append(message)
        finally:
            self._end(written, keys)
        return len(keys)

    def _end(self, written: list[Message], keys: list[int]) -> None:
        from mqqb import confirm

        count = 0
        try:
            if written:
                settle()
                count = len(written)
        finally:
            with uninterrupted():
                self._queue.put_back(keys[count:])
                if count:
                    self._queue.end_receive(keys[:count], confirm.ACK_RECEIVE)
                    self.removed += count
                    self.last = written[-1]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make terminating signals raise Interrupted, except signals that the parent process has set to be ignored."""

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heeded = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block signals, so that removing messages and counting them stay together."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
