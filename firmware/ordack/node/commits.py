"""When what is written becomes durable: messages, changes of state and arrivals share one sync of the file system.

Nothing leaves the board before that, and nothing that came is acknowledged (B-098).
"""

from mqqb import const
from ordack.node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from mqqb import streams
    from ordack.node.clock import Clock
    from ordack.node.message import Packets
    from ordack.node.outbox import Outbox


class Stats:
    """Counts since the start: messages accepted; stored at their destinations; received there, as far as that was asked
    for; failed, that is dead-lettered or discarded; positive FinalAcks that came too `late` (C-34). OrderAcks that were
    `ahead`, of numbers that this outbox never gave: it is an old copy, or has a twin with the same GUID (B-426).
    Packets sent, resends included; sessions opened (`connects`); messages from others that were dropped.
    """

    __slots__ = ("accepted", "ahead", "connects", "dropped", "failed", "late", "received", "sent", "stored")

    def __init__(self) -> None:
        self.accepted = 0
        self.stored = 0
        self.received = 0
        self.failed = 0
        self.late = 0
        self.ahead = 0
        self.sent = 0
        self.connects = 0
        self.dropped = 0


class Commits:
    """What stands in the log of an outbox, and is it durable?

    `uncommitted`: messages that are numbered and not durable. `marked_at`: ms at which the oldest change of state was
    made that is not durable; None: there is none. `must_commit`: there is something on which others will rely.
    `waiting`: messages in memory in the states Q and S. `error`: what ended delivery; `closed`: close() did.
    touch: called when there is something to send.
    """

    def __init__(self, outbox: "Outbox", clock: "Clock", packets: "Packets", touch: "Callable[[], None]") -> None:
        self.outbox = outbox
        self.guid: bytes = outbox.log.guid  # type: ignore[assignment]  # of this queue manager, 16 bytes
        self.clock = clock
        self.packets = packets
        self.touch = touch
        self.stats = Stats()
        self.error: "Exception | None" = None
        self.closed: "Exception | None" = None
        self.waiting = 0
        self.uncommitted: "list[streams.Entry]" = []
        self.must_commit = False
        self.marked_at: "int | None" = None
        self.is_busy = False  # the node is at work, or what it writes is half written
        self._count = 0  # of syncs that were asked for

    def enter(self) -> None:
        """Begin what nothing may come between; `is_busy` is to be False at its end. Raises RuntimeError, `error`,
        `closed`.
        """
        self.check_open()
        if self.is_busy:
            raise RuntimeError("the node is at work: no interrupt or thread may call it; after Ctrl-C make a new one")
        self.is_busy = True

    def check_open(self) -> None:
        """Raises `error`, `closed`."""
        error = self.error or self.closed
        if error is not None:
            raise error

    def log(self, messages: "list[Any]", with_time: bool = False) -> None:
        """Note changes of these messages, or arrivals; they are made durable within LAZY_SYNC_MS, or by commit_now."""
        if messages:
            self.outbox.change(messages, with_time)
            if self.marked_at is None:
                self.marked_at = self.clock.now()

    async def commit(self) -> None:
        """Make durable what was accepted by now, together with what other tasks are about to send."""
        import asyncio  # not before a program uses it

        count = self._count
        try:
            await asyncio.sleep(0)
        finally:
            if self._count == count:
                self.commit_now()

    def commit_now(self) -> bool:
        """Make durable what was accepted, at once. False: the file system refused, some of it was or nothing."""
        self._count += 1
        if not self.uncommitted and self.marked_at is None and not self.must_commit:
            return True
        is_busy = self.is_busy
        self.is_busy = True
        try:
            durable = self.outbox.sync()
        except log.OutboxWriteFailed as error:
            self.roll_back(error)
            durable = False
        finally:
            self.is_busy = is_busy
        self.must_commit = False
        if durable:
            self.marked_at = None
        if self.uncommitted:
            self.stats.accepted += len(self.uncommitted)
            self.uncommitted.clear()
            self.touch()
        return durable

    def roll_back(self, error: Exception) -> None:
        """Take back the numbers of the messages that the outbox had to abandon, newest first."""
        for entry in reversed(self.uncommitted):
            message: "Any" = entry.key
            if message.segment is None:
                self.packets.let_go(message)
                queue = message.elsewhere
                if queue is not None:
                    queue.followed.pop(message.message_id, None)
                    message.elsewhere = None
                    queue.stream.rolls = not queue.logged.deferred
                else:
                    self.waiting -= 1
                stream: "Any" = entry.stream or queue.stream
                stream.withdraw(entry)
                message.error = error
        self.uncommitted = [entry for entry in self.uncommitted if entry.key.segment is not None]  # type: ignore[attr-defined]

    def check_durable(self) -> None:
        """Raises OutboxError: some change of state is not durable."""
        if self.marked_at is not None:
            raise log.OutboxError("the file system refuses: it is not durable yet")
