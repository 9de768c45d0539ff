"""The ways to receive from one queue: a message in a `with`, messages in a `for`, and what a cursor stands on.

    with queue.receive(timeout=5) as message:      one; Empty if none comes in time
        ...
    for message in queue.receive(timeout=5):       one after another, until none comes in time
        ...

A message is in this program's hands until it is removed or put back. Other programs do not see it meanwhile; if this
one dies, it is back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

from mqqb import confirm

from ordack.broker.message import Message
from ordack.store.messages import FIRST, Stored


class Empty(Exception):
    """No message came in time."""


class Reject(Exception):
    """Raised inside a receive: the messages are removed as rejected (B-342), and nothing else is raised."""

    def __str__(self) -> str:
        return super().__str__() or (
            "Reject was raised where nothing is received, and has rejected nothing: raise it in the `with` block of a "
            "receive, in a loop over messages in `with message:`"
        )


class Source(Protocol):
    """A queue, as far as receiving from it needs one. `client.Queue` is one; its methods raise StoreError."""

    name: str
    transactional: bool

    def look(self, place: tuple[int, int], limit: int = 1, timeout: float | None = 0.0) -> list[Stored]:
        """Messages behind a place, which stay in the queue."""

    def begin_receive(
        self,
        limit: int,
        timeout: float | None,
        counted: bool = False,
        lookup_id: int | None = None,
        correlation_id: bytes | None = None,
    ) -> list[Stored]:
        """Take messages, until `end_receive` or `put_back`."""

    def end_receive(self, keys: Sequence[int], message_class: int) -> None:
        """Remove them, for the reason that the class says; they are put back if that fails."""

    def put_back(self, keys: Sequence[int]) -> None:
        """Put them back in their old places."""


def patience(timeout: float | None) -> float:
    """Seconds to wait. None: for ever."""
    return math.inf if timeout is None else timeout


def cannot_reject(name: str) -> ValueError:
    """The error of who rejects what no sender hears of."""
    return ValueError(f"{name} is not transactional: its messages cannot be rejected")


def already_over(message: Message) -> ValueError:
    """The error of who wants to end a message once more."""
    return ValueError(f"the message {message.message_key} is removed or back in its queue already")


def nowhere() -> Empty:
    """The error of who wants to receive what a new cursor stands on."""
    return Empty("the cursor stands on no message yet: peek_next goes to one")


class Taken:
    """A message that is in this program's hands, until `end`. is_open: it still is."""

    def __init__(self, source: Source, key: int) -> None:
        self.is_open = True
        self._source = source
        self._keys = (key,)

    def end(self, error: BaseException | None) -> bool:
        """Remove it for good; if there is an error, put it back, or remove it as rejected if that is Reject. True: the
        error was for this only, and is not to be raised on. What has ended stays so. Raises StoreError, ValueError if
        it cannot be rejected; then it is put back."""
        if not self.is_open:
            return False
        put_back = self.let_go()
        if error is None:
            self._source.end_receive(self._keys, confirm.ACK_RECEIVE)
        elif not isinstance(error, Reject):
            put_back()
        elif not self._source.transactional:
            put_back()
            raise cannot_reject(self._source.name) from None
        else:
            self._source.end_receive(self._keys, confirm.NACK_RECEIVE_REJECTED)
        return isinstance(error, Reject)

    def let_go(self) -> Callable[[], None]:
        """What puts it back. From now on it counts as ended."""
        self.is_open = False
        return lambda: self._source.put_back(self._keys)


class Received(Message):
    """A message that a `Receiving` has received. `with message:` ends it with that block, as `with queue.receive()`
    does: removed, put back if the block raises, removed as rejected if it raises Reject."""

    def __init__(self, stored: Stored, source: Source) -> None:
        super().__init__(stored)
        self._taken = Taken(source, stored.lookup_id)

    def __enter__(self) -> Received:
        if not self._taken.is_open:
            raise already_over(self)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return self.end(error)

    def end(self, error: BaseException | None) -> bool:
        """As Taken.end."""
        return self._taken.end(error)


class Receiving:
    """What `Queue.receive` gives, to use in a `with` or a `for`. timeout: seconds to wait for each message; None: for
    ever. lookup_id, correlation_id: as `Queue.receive`.

    In a `for`, a message is removed for good when the loop asks for the next one; so the last one is removed when it
    turns out that no other comes in time. Whatever leaves the loop before that puts the message back that it has just
    now: an exception, `return` and also `break`, for nothing says that the message was dealt with. It is back at once,
    as CPython drops a loop that is left; a loop whose iterator somebody keeps has its message until that is dropped.
    `with message:` in the loop says more: its end removes the message at once, also by `break`, and Reject in it
    rejects that message and the loop goes on.
    """

    def __init__(
        self, source: Source, timeout: float | None, lookup_id: int | None = None, correlation_id: bytes | None = None
    ) -> None:
        self._source = source
        self._timeout = timeout
        self._lookup_id = lookup_id
        self._correlation_id = correlation_id
        self._entered: list[Received] = []

    def __repr__(self) -> str:
        return f"<Receiving from {self._source.name!r}: use it in a `with` or a `for`>"

    def __enter__(self) -> Received:
        message = self._take()
        if message is None:
            raise Empty(f"no message in {self._source.name}")
        self._entered.append(message)
        return message

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return self._entered.pop().end(error)

    def __iter__(self) -> Iterator[Received]:
        while (message := self._take()) is not None:
            try:
                yield message
            except BaseException as error:  # the loop was left
                message.end(error)
                raise
            message.end(None)
            if self._lookup_id is not None:
                return

    def _take(self) -> Received | None:
        found = self._source.begin_receive(1, self._timeout, True, self._lookup_id, self._correlation_id)
        return Received(found[0], self._source) if found else None


class Cursor:
    """A place in a queue, to look at its messages one after another and receive those that are wanted: MSMQ's cursors,
    with PeekCurrent, PeekNext and ReceiveCurrent.

    The place stays, whatever others receive, and what comes in front of it, as of a higher priority, is not seen by it.
    A new cursor stands in front of the first message. place: rank and lookup id.
    """

    def __init__(self, source: Source, place: tuple[int, int] = FIRST) -> None:
        self._source = source
        self.place = place

    def __repr__(self) -> str:
        where = "in front of the first message" if self.place == FIRST else f"at lookup_id {self.place[1]}"
        return f"<Cursor in {self._source.name!r}, {where}>"

    def peek_current(self, timeout: float | None = 0.0) -> Message:
        """The message that the cursor stands on, which stays in the queue; of a new cursor, the first one. Raises Empty
        if the message is not there any more, or in somebody's hands; or, of a new cursor, if none came within `timeout`
        seconds."""
        if self.place == FIRST:
            return self.peek_next(timeout)
        rank, lookup_id = self.place
        found = self._source.look((rank, lookup_id - 1))
        if not found or found[0].lookup_id != lookup_id:
            raise Empty(
                f"the message that the cursor stands on, lookup_id {lookup_id}, is not in {self._source.name}: it was "
                "received or has expired; peek_next goes on behind it"
            )
        return Message(found[0])

    def peek_next(self, timeout: float | None = 0.0) -> Message:
        """Go to the next message, which stays in the queue. Raises Empty if none came within `timeout` seconds, None
        for ever; then the cursor stays where it is."""
        found = self._source.look(self.place, 1, timeout)
        if not found:
            raise Empty(f"no message behind the cursor in {self._source.name}")
        self.place = (found[0].rank, found[0].lookup_id)
        return Message(found[0])

    def receive_current(self) -> Receiving:
        """Receive the message that the cursor stands on, as `Queue.receive` does: `with cursor.receive_current() as
        message:`. The block raises Empty if it is not there any more. The cursor keeps its place. Raises Empty for one
        that stands on no message yet."""
        if self.place == FIRST:
            raise nowhere()
        return Receiving(self._source, 0.0, self.place[1])

    def __iter__(self) -> Iterator[Message]:
        """The messages behind the place, until there is none; the cursor goes along."""
        while True:
            try:
                message = self.peek_next()
            except Empty:
                return
            yield message
