"""Messages that wait to be sent: in memory the first ones of each queue, the others on the flash until their turn.

Messages are transactional. They are numbered once, when they are accepted, and keep their numbers over cuts of the link
and of the power until the destination has acknowledged them (B-317, A-08, B-098).
"""

import gc

from mqqb import confirm, const, streams
from ordack.node import log
from ordack.node.message import OutboxMessage

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence
    from typing import Any

    from ordack.node.commits import Commits
    from ordack.node.log import Buffer, Restored
    from ordack.node.notices import Notices
    from ordack.node.outcomes import Deadlines, Outcomes
    from ordack.node.queue import DestinationQueue

_RESERVE_PIECES = const(16)  # so much memory a session has left when messages are taken from the flash, for what it
_RESERVE_BYTES = const(128)  # takes are small pieces


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
