"""The Python API of applications: the parts shared by the synchronous and the asyncio form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypedDict

from mqqb import confirm

if TYPE_CHECKING:
    from ordack.broker.message import Message

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
    """A message received by this program, until `end`. is_open: `end` was not called yet."""

    def __init__(self, source: ReceivingQueue, key: int) -> None:
        self.is_open = True
        self._source = source
        self._keys = (key,)

    def check(self, message: Message) -> None:
        """Raises ValueError if the message was ended already."""
        if not self.is_open:
            raise ValueError(f"the message {message.message_key} is removed or back in its queue already")

    def end(self, error: BaseException | None) -> bool:
        """Remove the message for good; on an error put it back, on Reject remove it as rejected. True: the caller must
        not propagate the error. A second call does nothing. Raises StoreError, and ValueError if the message cannot be
        rejected; the message is put back then."""
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
        """The message that the caller removes for good; none if it was ended already. It counts as ended from now
        on."""
        keys = self._keys if self.is_open else ()
        self.is_open = False
        return keys

    def let_go(self) -> Callable[[], None]:
        """A function that puts the message back. The message counts as ended from now on."""
        self.is_open = False
        return lambda: self._source.put_back(self._keys)
