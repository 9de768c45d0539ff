"""The Python API of applications: the parts shared by the synchronous and the asyncio form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypedDict

from mqqb import confirm

if TYPE_CHECKING:

    class ReceivingQueue(Protocol):
        """A queue to receive messages from."""

        name: str
        transactional: bool

        def end_receive(self, keys: Sequence[int], message_class: int) -> None: ...

        def put_back(self, keys: Sequence[int]) -> None: ...


class Empty(Exception):
    """No message arrived in time."""


class Reject(Exception):
    """Raised inside a receive to remove the messages as rejected (B-342). The receive does not propagate it."""

    def __str__(self) -> str:
        return super().__str__() or (
            "Reject was raised where nothing is received, and has rejected nothing: raise it in the `with` block of a "
            "receive, in a loop over messages in `with message:`"
        )


class Which(TypedDict, total=False):
    """Selects the messages to receive. lookup_id: the message with this lookup id, as peek shows it. correlation_id:
    messages with this correlation identifier; an answer carries the identifier of its message."""

    lookup_id: int | None
    correlation_id: bytes | None


def patience(timeout: float | None) -> float:
    """The seconds to wait; None: forever."""
    return math.inf if timeout is None else timeout


def cannot_reject(name: str) -> ValueError:
    """The error for a Reject in a non-transactional queue, whose senders learn of no rejection."""
    return ValueError(f"{name} is not transactional: its messages cannot be rejected")


class Taken:
    """Messages received by this program, until `end`. keys: their lookup ids. is_open: `end` was not called yet."""

    def __init__(self, source: ReceivingQueue, keys: Sequence[int]) -> None:
        self.is_open = True
        self._source = source
        self._keys = keys

    def check(self) -> None:
        """Raises ValueError if the messages were ended already."""
        if not self.is_open:
            raise ValueError("what was received is removed or back in its queue already")

    def end(self, error: BaseException | None) -> bool:
        """Remove the messages for good; on an error put them back, on Reject remove them as rejected. True: the caller
        must not propagate the error. A second call does nothing. Raises StoreError, and ValueError if the messages
        cannot be rejected; they are put back then."""
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

    def ended(self) -> Sequence[int]:
        """The messages that the caller removes for good; none if they were ended already. They count as ended from now
        on."""
        keys = self._keys if self.is_open else ()
        self.is_open = False
        return keys

    def let_go(self) -> Callable[[], None]:
        """A function that puts the messages back. They count as ended from now on."""
        self.is_open = False
        return lambda: self._source.put_back(self._keys)
