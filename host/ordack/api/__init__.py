"""The Python API of applications: what the forms with and without asyncio share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypedDict

from mqqb import confirm

if TYPE_CHECKING:
    from ordack.broker.message import Message

    class ReceivingQueue(Protocol):
        """A queue that messages are received from."""

        name: str
        transactional: bool

        def end_receive(self, keys: Sequence[int], message_class: int) -> None: ...

        def put_back(self, keys: Sequence[int]) -> None: ...


class Empty(Exception):
    """No message came in time."""


class Reject(Exception):
    """Raised inside a receive: the messages are removed as rejected (B-342), and nothing else is raised."""

    def __str__(self) -> str:
        return super().__str__() or (
            "Reject was raised where nothing is received, and has rejected nothing: raise it in the `with` block of a "
            "receive, in a loop over messages in `with message:`"
        )


class Which(TypedDict, total=False):
    """Which messages to receive. lookup_id: the message with this lookup id, as peek shows it. correlation_id: messages
    with this correlation identifier; an answer has the identifier of its message."""

    lookup_id: int | None
    correlation_id: bytes | None


def patience(timeout: float | None) -> float:
    """Seconds to wait. None: for ever."""
    return math.inf if timeout is None else timeout


def cannot_reject(name: str) -> ValueError:
    """The error of a Reject in a queue whose senders hear of no rejection."""
    return ValueError(f"{name} is not transactional: its messages cannot be rejected")


class Taken:
    """A message that this program has received, until `end`. is_open: `end` was not called yet."""

    def __init__(self, source: ReceivingQueue, key: int) -> None:
        self.is_open = True
        self._source = source
        self._keys = (key,)

    def check(self, message: Message) -> None:
        """Raises ValueError if the message was ended already."""
        if not self.is_open:
            raise ValueError(f"the message {message.message_key} is removed or back in its queue already")

    def end(self, error: BaseException | None) -> bool:
        """Remove the message for good; on an error put it back, on Reject remove it as rejected. True: the error was
        for this message only, and is not to be raised on. A second call does nothing. Raises StoreError, and ValueError
        if the message cannot be rejected; it is put back then."""
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
        """What puts the message back. From now on the message counts as ended."""
        self.is_open = False
        return lambda: self._source.put_back(self._keys)
