"""Messages that wait to be sent: when they become durable, when they expire, which of them are in memory.

In memory are the first ones of each queue, the others stay on the flash until their turn. Messages are transactional.
They are numbered once, when they are accepted, and keep their numbers over cuts of the link and of the power until the
destination has acknowledged them (B-317, A-08, B-098).
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

_RESERVE_PIECES = const(16)  # so much memory a session has left when messages are taken from the flash, for what it
_RESERVE_BYTES = const(128)  # takes are small pieces
# So many messages that were on the flash only end at once, unless as many wait to be told, which are in memory.
_EXPIRED_MAX = const(16)


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


class Deadlines:
    """When those messages of these queues are over that are in memory.

    `due`: s since 1970, no deadline is earlier; 0: some T0 is not known; None: there is no deadline.
    """

    def __init__(self, commits: "Commits", outcomes: "Outcomes", queues: "Sequence[DestinationQueue]") -> None:
        self.due: "int | None" = None
        self._commits = commits
        self._outcomes = outcomes
        self._queues = queues

    def expect(self, message: "Any") -> None:
        """Take a deadline into account, once its T0 is known."""
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
        """Take the deadlines into account of what is stored while its fate is open."""
        for queue in self._queues:
            for number in queue.logged.flash_only:
                due = flash_only.due(queue.logged, number)
                if due != flash_only.NEVER:
                    self._at(due)

    def _at(self, due: int) -> None:
        if self.due is None or due < self.due:
            self.due = due

    def check(self) -> bool:
        """Act on all deadlines that are due, if the clock is set. Has any message ended?"""
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
        """Act on the deadlines of what is in memory. Has any message ended?"""
        message: "Any"
        has_ended = False
        commits = self._commits
        outcomes = self._outcomes
        commits.commit_now()  # what is not durable cannot change yet; if that fails it is gone
        if not self.due:  # the clock has become known: that is T0 of all messages that have none
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
        """Act on the deadlines of the open ones in a segment, unless others have to be told first. Has any ended?"""
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
    """What waits in these queues, from its acceptance until it is transmitted.

    hold: about so many messages may be in memory, the half of them under way; fewer while there is no memory for them.
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
        self._hold = self._hold_max = hold  # the first: while there is memory for as many
        self._coming: "Restored | None" = None  # taken from the flash, and not in its stream yet

    def waiting(self) -> int:
        """Messages in the states Q and S, in memory or not."""
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

        record: its confirmation, in state Q. may_expire: False: T0 is known, neither TTRQ nor TTBR is set. body: what
        comes behind packet, if that is not all, to a whole number of words.
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
        if entry is None:  # the first one since the start: what came back may be an old copy (A-22, B-426); or A-24
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
        """Fill part with the packet of an entry that is about to be transmitted, or with its beginning, which goes as
        far as to the end of its TransactionHeader. False: it is too late for that (C-18, C-22).

        Raises OutboxDamaged; OSError: also if it cannot be noted that something was transmitted.
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
        """Take messages from the flash and act on their deadlines, for there is no room. May there be some?"""
        # an on_failed that sends again would end one message after the other before it is told of them
        if self._notices.is_telling or not self.commits.clock.time():
            return False
        self.refill()
        has_ended = self.deadlines.check()
        return self._notices.deliver() or has_ended  # what has failed stays until that is told

    def take_restored(self) -> None:
        """Take the messages that the outbox holds since it has read its log."""
        commits = self.commits
        for queue in self._queues:
            queue.stream.rolls = not queue.logged.deferred
        for restored in commits.outbox.restored:
            self._take(restored)
        commits.outbox.restored = []
        self.deadlines.expect_open()

    def refill(self) -> bool:
        """Take messages from the flash, where few of a queue are left in memory. False: there is no memory for more.

        Want of it ends this before a session has too little to go on with. Then fewer are in memory, and more again
        when there is room. If there is none for a single one, `reason` of the peers says so.
        """
        is_due = self._coming is not None
        for queue in self._queues:
            is_due = is_due or self.is_low(queue)
        if not is_due:
            return True
        reserve = []
        try:
            for _ in range(_RESERVE_PIECES):
                reserve.append(bytearray(_RESERVE_BYTES))  # noqa: PERF401 - what there is of it is let go
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
        """Are few of its messages left in memory, and others on the flash?"""
        if not queue.logged.deferred:
            return False
        share = self._share()
        return 2 * len(queue.stream.table) <= share and queue.held() < share

    def _share(self) -> int:
        """So many messages of a queue may be in memory and under way."""
        return max(self._hold // (2 * max(len(self._queues), 1)), 1)

    def _take(self, restored: "Restored") -> None:
        """Take a message that the outbox has read from its log."""
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
            False,  # nothing waits in the stream for its FinalAck: what is stored leaves it (flash_only.py)
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
