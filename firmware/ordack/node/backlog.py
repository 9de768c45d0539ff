"""Messages waiting to be sent: their durability, their expiry, and which of them are in memory.

The first messages of each queue are in memory; the others stay on flash until their turn. Messages are transactional. A
message is numbered once, at acceptance, and keeps its number over lost links and power until the destination has
acknowledged it (B-317, A-08, B-098).
"""

import gc

from mqqb import compose, confirm, const, streams
from ordack.node.queue import OutboxMessage
from ordack.node.storage import flash_only, log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence
    from typing import Any

    from ordack.node.clock import Clock
    from ordack.node.outcomes import Notices, Outcomes
    from ordack.node.queue import DestinationQueue, Packets
    from ordack.node.storage.flash_only import Restored
    from ordack.node.storage.log import Buffer
    from ordack.node.storage.outbox import Outbox

_RESERVE_PIECES = const(16)  # pieces of memory left for the session when messages are read from flash; sessions take
_RESERVE_BYTES = const(128)  # small pieces
# Messages on flash that expire at once, unless as many failures in memory still have to be reported.
_EXPIRED_MAX = const(16)


class Stats:
    """Counts since the start. accepted: messages; stored: at their destinations; received: as far as requested; failed:
    dead-lettered or discarded; late: positive FinalAcks after the end (C-34). ahead: OrderAcks with numbers that this
    outbox never gave: it is an old copy, or has a twin with the same GUID (B-426). sent: packets, resends included;
    connects: opened sessions; dropped: messages from others.
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
    """The changes of an outbox that are not durable yet.

    uncommitted: numbered messages. marked_at: ms of the oldest change of state; None: none. must_commit: others will
    rely on a change. waiting: messages in memory in the states Q and S. error: the failure that ended delivery; closed:
    set by close(). touch: called when there is something to send.
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
        self.is_busy = False  # the node is at work, or a write is unfinished
        self._count = 0  # requested syncs

    def enter(self) -> None:
        """Begin an exclusive operation; the caller resets `is_busy`. Raises RuntimeError, `error`, `closed`."""
        self.check_open()
        if self.is_busy:
            raise RuntimeError("the node is at work: no interrupt or thread may call it; after Ctrl-C make a new one")
        self.is_busy = True

    def check_open(self) -> None:
        """Raise `error` or `closed`, if any."""
        error = self.error or self.closed
        if error is not None:
            raise error

    def log(self, messages: "list[Any]", with_time: bool = False) -> None:
        """Note changes of messages or arrivals; they are durable within LAZY_SYNC_MS, or by commit_now."""
        if messages:
            self.outbox.change(messages, with_time)
            if self.marked_at is None:
                self.marked_at = self.clock.now()

    async def commit(self) -> None:
        """Make accepted messages durable, together with messages that other tasks are about to send."""
        import asyncio  # not before a program uses it

        count = self._count
        try:
            await asyncio.sleep(0)
        finally:
            if self._count == count:
                self.commit_now()

    def commit_now(self) -> bool:
        """Make accepted messages durable now. False: the file system refused, and some messages may not be accepted."""
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
        """Take back the numbers of the messages that the outbox abandoned, newest first."""
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
        """Raise OutboxError if a change of state is not durable."""
        if self.marked_at is not None:
            raise log.OutboxError("the file system refuses: it is not durable yet")


class Deadlines:
    """Deadlines of the messages in these queues.

    due: s since 1970, the earliest deadline; 0: some T0 is unknown; None: no deadline.
    """

    def __init__(self, commits: "Commits", outcomes: "Outcomes", queues: "Sequence[DestinationQueue]") -> None:
        self.due: "int | None" = None
        self._commits = commits
        self._outcomes = outcomes
        self._queues = queues

    def expect(self, message: "Any") -> None:
        """Account for the deadline of a message with a known T0."""
        record = message.record
        if not record[confirm.SENT_TIME]:
            self.due = 0
            return
        if (
            self._outcomes.settings.long_live_time == log.ENDLESS
            and record[confirm.TTRQ] == compose.FOREVER
            and record[confirm.TTBR] == compose.FOREVER
        ):
            return
        due = self._outcomes.of(message).next_deadline()
        if due is not None:
            self._at(due)

    def expect_open(self) -> None:
        """Account for the deadlines of stored messages that are open."""
        for queue in self._queues:
            for number in queue.logged.flash_only:
                due = flash_only.due(queue.logged, number)
                if due != flash_only.NEVER:
                    self._at(due)

    def _at(self, due: int) -> None:
        if self.due is None or due < self.due:
            self.due = due

    def check(self) -> bool:
        """Act on due deadlines, if the clock is set; return whether a message has ended."""
        if self.due is None:
            return False
        now = self._commits.clock.time()
        return now != 0 and now >= self.due and self._expire(now)

    def is_over(self, queue: "DestinationQueue", entry: "streams.Entry") -> bool:
        """Is it too late to send a message (C-18, C-22)? Then it leaves the stream."""
        confirmation = self._outcomes.of(entry.key)
        record = confirmation.record
        now = self._commits.clock.time()
        if self.due is None or not now or not record[confirm.SENT_TIME] or confirmation.may_send(now):
            return False
        before = record[confirm.STATE]
        action = confirm.too_late(confirmation, now, now - 1)
        queue.sending = 0
        if action == confirm.HOLD:
            record[confirm.MARKS] |= log.HELD
            queue.stream.hold([entry])
            self._commits.log([entry.key])
        else:
            queue.stream.remove([entry])
            self._outcomes.count(entry.key, before, action)
            self._outcomes.tell([entry.key])
        return True

    def _expire(self, now: int) -> bool:
        """Act on the deadlines of messages in memory; return whether a message has ended."""
        message: "Any"
        has_ended = False
        commits = self._commits
        outcomes = self._outcomes
        commits.commit_now()  # changes need durable messages; after a failure the others are gone
        if not self.due:  # the clock was set just now: that is T0 of messages without one
            undated = [message for message in commits.outbox.handles() if not message.record[confirm.SENT_TIME]]
            for message in undated:
                message.record[confirm.SENT_TIME] = now
            commits.log(undated, True)
        self.due = None
        for queue in self._queues:
            ended = []
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                message = entry.key
                confirmation = outcomes.of(message)
                before = confirmation.record[confirm.STATE]
                action = confirmation.handle_deadline(now)
                if action:
                    ended.append(entry)
                    outcomes.count(message, before, action)
                else:
                    self.expect(message)
            if ended:
                queue.sending = 0
                has_ended = True
            queue.stream.remove(ended)
            outcomes.tell([entry.key for entry in ended])
            for number in sorted(queue.logged.flash_only):
                has_ended = self._expire_open(queue, number, now) or has_ended
        self.expect_open()
        return has_ended

    def _expire_open(self, queue: "DestinationQueue", number: int, now: int) -> bool:
        """Act on deadlines of a segment's open messages, unless failures wait for notices. Has one ended?"""
        logged = queue.logged
        outcomes = self._outcomes
        if flash_only.due(logged, number) > now or len(outcomes.notices.due) >= _EXPIRED_MAX:
            return False
        some = self._commits.outbox.flash_only
        due = flash_only.NEVER
        ended: "list[Restored]" = []
        for found in some.walk(logged, number):
            restored = some.restored(logged, found)
            if not restored.is_open:
                continue
            time = outcomes.of(restored.handle).next_deadline()
            if time is not None and time <= now:
                ended.append(restored)
                if len(ended) == _EXPIRED_MAX:
                    due = now
                    break
            elif time is not None:
                due = min(due, time)
        flash_only.set_due(logged, number, due)
        for restored in ended:
            message = outcomes.take(queue, restored)
            outcomes.count(message, confirm.O, outcomes.of(message).handle_deadline(now))
            outcomes.tell([message])
        return len(ended) > 0


class Backlog:
    """The messages in these queues from acceptance to transmission.

    hold: messages in memory, half of them in flight; fewer while memory is short.
    """

    def __init__(
        self,
        commits: "Commits",
        outcomes: "Outcomes",
        deadlines: "Deadlines",
        notices: "Notices",
        queues: "Sequence[DestinationQueue]",
        hold: int,
    ) -> None:
        self.commits = commits
        self.outcomes = outcomes
        self.deadlines = deadlines
        self._notices = notices
        self._queues = queues
        self._hold = self._hold_max = hold  # the first: limit while memory suffices
        self._coming: "Restored | None" = None  # read from flash, not yet in its stream

    def waiting(self) -> int:
        """Return the number of messages in the states Q and S, in memory or not."""
        coming = self._coming is not None
        return self.commits.waiting + coming + sum([queue.logged.deferred for queue in self._queues])

    def accept(
        self,
        queue: "DestinationQueue",
        packet: bytearray,
        record: "array[int]",
        may_expire: bool = True,
        body: "Buffer" = b"",
    ) -> OutboxMessage:
        """Number a message and log it (B-317); commit makes it durable. Raises OutboxFull, OutboxWriteFailed.

        record: its confirmation, in state Q. may_expire: False if T0 is known, and TTRQ and TTBR are not set. body: the
        rest of the packet, if any, padded to whole words.
        """
        commits = self.commits
        outbox = commits.outbox
        stream = queue.stream
        message = OutboxMessage(outbox.next_message_id, record)
        offset = queue.draft.transaction_at
        spare = self.outcomes.spare()
        entry = None
        if queue.renewed:
            entry = stream.number(packet, offset, message, message.message_id, False, spare)
        if entry is None:  # first since the start: the log may be an old copy (A-22, B-426); or A-24
            queue.renew()
            entry = stream.number(packet, offset, message, message.message_id, False, spare)
            assert entry is not None
        flags = log.TRANSACTIONAL | log.RECOVERABLE
        logged = queue.logged
        coming = self._coming is not None and self._coming.queue is logged
        defer = logged.deferred > 0 or coming or queue.held() > self._share()
        if defer:
            self.outcomes.remember()
        try:
            outbox.append(message, logged, flags, stream.record, packet, defer, body)
        except Exception as error:
            queue.stream.withdraw(entry)
            commits.roll_back(error)
            raise
        commits.uncommitted.append(entry)
        if defer:
            stream.rolls = False
            stream.leave_out(entry)
            message.elsewhere = queue
            commits.packets.keep(message, packet, 0)
            return message
        commits.waiting += 1
        if may_expire or self.outcomes.settings.long_live_time != log.ENDLESS:
            self.deadlines.expect(message)
        commits.packets.keep(message, packet, 0 if body else queue.peer.room)
        return message

    def transmit(self, queue: "DestinationQueue", entry: streams.Entry, part: memoryview) -> bool:
        """Fill part with the packet of an entry about to be sent, or with its beginning up to the TransactionHeader or
        beyond. False: too late to send (C-18, C-22).

        Raises OutboxDamaged; OSError, also if the transmission cannot be noted.
        """
        if self.deadlines.is_over(queue, entry):
            return False
        try:
            self.commits.outbox.will_send()
        except log.OutboxWriteFailed as error:
            raise OSError(error.errno)  # noqa: B904 - MicroPython has no `from`
        packets = self.commits.packets
        packets.load(entry.key, part)
        packets.let_go(entry.key)
        self.outcomes.of(entry.key).sent()
        return True

    def expire_more(self) -> bool:
        """Read messages from flash and act on their deadlines to make room; return whether there may be some."""
        # an on_failed that sends would end one message after the other before hearing of them
        if self._notices.is_telling or not self.commits.clock.time():
            return False
        self.refill()
        has_ended = self.deadlines.check()
        return self._notices.deliver() or has_ended  # a failed message keeps its room until reported

    def take_restored(self) -> None:
        """Take the messages that the outbox restored from its log."""
        commits = self.commits
        for queue in self._queues:
            queue.stream.rolls = not queue.logged.deferred
        for restored in commits.outbox.restored:
            self._take(restored)
        commits.outbox.restored = []
        self.deadlines.expect_open()

    def refill(self) -> bool:
        """Read messages from flash for queues with few in memory. False: memory is short.

        It stops before the session runs short of memory. Then fewer messages are in memory, and more again once there
        is room. If not even one fits, `reason` of the peers says so.
        """
        is_due = self._coming is not None
        for queue in self._queues:
            is_due = is_due or self.is_low(queue)
        if not is_due:
            return True
        reserve = []
        try:
            for _ in range(_RESERVE_PIECES):
                reserve.append(bytearray(_RESERVE_BYTES))  # noqa: PERF401 - MemoryError must keep the list
            self._refill()
            self._hold = min(self._hold + 2, self._hold_max)
            return True
        except MemoryError:
            reserve.clear()
            self.outcomes.forget_spares()
            self._hold = self.commits.waiting
            if not self._hold:
                for queue in self._queues:
                    queue.peer.reason = log.NO_MEMORY
            gc.collect()
            return False

    def _refill(self) -> None:
        if self._coming is not None:
            self._take_coming(self._coming)
        for queue in self._queues:
            logged = queue.logged
            if not (self.is_low(queue) and self.commits.commit_now()):
                continue
            share = self._share()
            while logged.deferred and queue.held() < share:
                self._coming = self.commits.outbox.flash_only.next(logged)
                if self._coming is not None:
                    self._take_coming(self._coming)
                if self.commits.outbox.log.gaps:
                    queue.miss()

    def is_low(self, queue: "DestinationQueue") -> bool:
        """Has the queue few messages in memory, and others on flash?"""
        if not queue.logged.deferred:
            return False
        share = self._share()
        return 2 * len(queue.stream.table) <= share and queue.held() < share

    def _share(self) -> int:
        """Return how many messages of a queue may be in memory and in flight."""
        return max(self._hold // (2 * max(len(self._queues), 1)), 1)

    def _take(self, restored: "Restored") -> None:
        """Take a message read from the log."""
        message: "Any" = restored.handle
        record = message.record
        if self.outcomes.restored(message):
            return
        stream = self._queues[restored.queue.index].stream
        entry = self.outcomes.spare() or streams.Entry(message, 0)
        streams.Entry.__init__(
            entry,
            message,
            message.message_id,
            bool(restored.flags & log.RECOVERABLE),
            False,  # stored messages leave the stream, so none awaits its FinalAck there (flash_only.py)
            restored.tx_sequence_id,
            restored.tx_sequence_number,
        )
        if restored.sent:
            self.outcomes.of(message).sent()
        self.deadlines.expect(message)
        if record[confirm.MARKS] & log.HELD:
            stream.awaiting_final_ack.append(entry)
        else:
            stream.append(entry)
        self.commits.waiting += 1

    def _take_coming(self, restored: "Restored") -> None:
        queue = self._queues[restored.queue.index]
        restored.sent = self.commits.outbox.may_have_been_sent(restored.handle.message_id)
        queue.hand_over(restored)
        self._take(restored)
        self._coming = None
        queue.stream.rolls = not queue.logged.deferred
