"""Messages from a queue to standard output, each removed after its own line was written (`ordack receive`)."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from mqqb import confirm

from ordack.broker.message import Message
from ordack.cli import output
from ordack.client import Queue
from ordack.text import counted

BATCH = 256  # messages that one commit removes, if standard output is a file

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal, of this number, has ended it."""

    def __init__(self, number: int) -> None:
        self.number = number


class Drain:
    """Takes messages from a queue and shows them. `show` writes one to standard output, or raises. named: adds to a
    text what people call those who are in it.

    As text it says what was removed so far; the number is also right when `run` has raised.
    """

    def __init__(self, queue: Queue, show: Callable[[Message], None], named: Callable[[str], str]) -> None:
        self._queue = queue
        self._show = show
        self._named = named
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
        """Show and remove up to `left` messages, until none comes in `timeout` seconds.

        A message is removed when it was written and settled (output.settle): with others in one commit if standard
        output is a file, else alone. Whatever `show` raises comes out, and Interrupted at SIGINT, SIGTERM or SIGHUP,
        when what was written before is removed and the rest is back in the queue.
        """
        limit = BATCH if output.is_file() else 1
        with interruptible():
            while left:
                found = self._round(min(left, limit), timeout)
                if not found:
                    return
                left -= found

    def _round(self, limit: int, timeout: float) -> int:
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
        count = 0
        try:
            if written:
                output.settle()
                count = len(written)
        finally:
            with _uninterrupted():
                self._queue.put_back(keys[count:])
                if count:
                    self._queue.end_receive(keys[:count], confirm.ACK_RECEIVE)
                    self.removed += count
                    self.last = written[-1]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Signals that end a program raise Interrupted, unless whoever started it has told it to ignore them."""

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
def _uninterrupted() -> Iterator[None]:
    """What is removed and what is told of it belong together: a signal waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
