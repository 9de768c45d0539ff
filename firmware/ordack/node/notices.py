"""What the application is told: its callbacks are called one after the other, in order, and never in the middle of
something else. They may send, take and delete messages.

A message that has failed stays in the log until `on_failed` has returned: whatever happens before, it is told again.
"""

from mqqb import confirm, const
from ordack.node import message

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ordack.node.commits import Commits
    from ordack.node.message import OutboxMessage


class Notices:
    """Callbacks, each of them or None.

    on_failed(message): it was dead-lettered or discarded. on_stored(message): its destination has it, in order.
    on_connection(peer, reason): a session with that peer has begun (""), or has ended or cannot begin, for that reason.

    `due`: what is to be told. `is_telling`: a callback is running. `error`: what one has raised; nothing more is told
    until somebody takes it.
    """

    def __init__(
        self,
        commits: "Commits",
        on_failed: "Callable[[OutboxMessage], Any] | None",
        on_stored: "Callable[[OutboxMessage], Any] | None",
        on_connection: "Callable[[Any, str], Any] | None",
    ) -> None:
        self.is_telling = False
        self.error: "Exception | None" = None
        self._commits = commits
        self._on_failed = on_failed
        self._on_stored = on_stored
        self._on_connection = on_connection
        self.due: "list[tuple[Any, tuple[Any, ...], OutboxMessage | None]]" = []

    def failed(self, one: "OutboxMessage") -> None:
        """A message has failed, what becomes of it stands in its record: which is logged after this."""
        if self._on_failed is not None:
            record = one.record
            goes = record[confirm.STATE] == confirm.GONE
            record[confirm.STATE] = confirm.X
            record[confirm.MARKS] = record[confirm.MARKS] & message.MARKS | (message.GOES if goes else message.UNTOLD)
            self.due.append((self._on_failed, (one,), one))

    def restored(self, one: "OutboxMessage") -> None:
        """The start has found a message in the log that has failed; was that told?"""
        if one.record[confirm.MARKS] & message.UNTOLD:
            if self._on_failed is None:
                self._told(one)
            else:
                self.due.append((self._on_failed, (one,), one))

    def stored(self, one: "OutboxMessage") -> None:
        """A message is stored at its destination."""
        if self._on_stored is not None:
            self.due.append((self._on_stored, (one,), None))

    def connection(self, peer: "Any", reason: str) -> None:
        """The session with a peer has begun (""), or there is none for that reason."""
        if self._on_connection is not None:
            self.due.append((self._on_connection, (peer, reason), None))

    def deliver(self) -> bool:
        """Call back, unless this is called from a callback. Was anything told?"""
        if self.is_telling or not self.due or self.error is not None:
            return False
        self.is_telling = True
        try:
            while self.due and self.error is None:
                callback, arguments, one = self.due.pop(0)
                try:
                    result = callback(*arguments)
                    if hasattr(result, "send"):
                        result.close()
                        raise ValueError("a callback is an asyncio function: let it create a task")
                except Exception as error:  # noqa: BLE001 - the application's, for whom the owner takes it
                    self.error = error
                self._told(one)
        finally:
            self.is_telling = False
        return True

    def report(self) -> None:
        """Give what a callback has raised to the exception handler of the event loop."""
        if self.error is not None:
            import asyncio  # not before a program uses it

            context = {"message": "a callback failed", "exception": self.error, "future": asyncio.current_task()}
            self.error = None
            asyncio.get_event_loop().call_exception_handler(context)

    def _told(self, one: "OutboxMessage | None") -> None:
        """Nothing keeps a message any more that stayed only to be told."""
        if one is None or one.segment is None:  # the application has taken it
            return
        record = one.record
        marks = record[confirm.MARKS]
        record[confirm.MARKS] = marks & message.MARKS
        if marks & message.GOES == message.GOES:
            record[confirm.STATE] = confirm.GONE
        self._commits.log([one])
