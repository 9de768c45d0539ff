"""The outcomes of messages: acknowledgements, kept copies, and notices to the application.

mqqb.confirm decides. Dead-lettered and journaled messages stay in the outbox until the application takes them.

Each queue manager measures TTRQ and TTBR from SentTime by its own clock, so this board's clock must be right. While it
is not set (below CLOCK_SET), nothing expires here, and messages accepted then are sent without limits. Their T0 is the
moment when the clock is set: such a message may live longer than requested, never shorter.
"""

from array import array

from mqqb import confirm, connection, const, core, streams
from ordack.node import clock
from ordack.node.storage import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mqqb.headers import FinalAck, FinalAckBody, UserMessage
    from ordack.node.backlog import Commits
    from ordack.node.queue import DestinationQueue, OutboxMessage
    from ordack.node.storage.flash_only import Restored

OUTCOMES_MAX = 64
_SPARES_MAX = const(64)


class Notices:
    """The application's callbacks, each optional. They run in order, one at a time, never inside other work, and may
    send, take and delete messages. A failed message stays in the log until `on_failed` has returned: after a power cut
    it is reported again.

    on_failed(message): dead-lettered or discarded. on_stored(message): stored at its destination, in order.
    on_connection(peer, reason): a session has begun (""), or has ended or cannot begin, with the reason.

    due: pending notices. is_telling: a callback is running. error: an exception of a callback; no more notices until it
    is taken.
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
        """Report a failed message; its record has the outcome and is logged afterwards."""
        if self._on_failed is not None:
            record = one.record
            goes = record[confirm.STATE] == confirm.GONE
            record[confirm.STATE] = confirm.X
            record[confirm.MARKS] = record[confirm.MARKS] & log.MARKS | (log.GOES if goes else log.UNTOLD)
            self.due.append((self._on_failed, (one,), one))

    def restored(self, one: "OutboxMessage") -> None:
        """Report a failed message found at the start, if it was not reported."""
        if one.record[confirm.MARKS] & log.UNTOLD:
            if self._on_failed is None:
                self._told(one)
            else:
                self.due.append((self._on_failed, (one,), one))

    def stored(self, one: "OutboxMessage") -> None:
        """Report a message stored at its destination."""
        if self._on_stored is not None:
            self.due.append((self._on_stored, (one,), None))

    def connection(self, peer: "Any", reason: str) -> None:
        """Report the begin of a session (""), or why there is none."""
        if self._on_connection is not None:
            self.due.append((self._on_connection, (peer, reason), None))

    def deliver(self) -> bool:
        """Run callbacks, unless called from a callback; return whether any ran."""
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
                except Exception as error:  # noqa: BLE001 - the application's error, raised to the owner
                    self.error = error
                self._told(one)
        finally:
            self.is_telling = False
        return True

    def report(self) -> None:
        """Pass a callback's exception to the exception handler of the event loop."""
        if self.error is not None:
            import asyncio  # not before a program uses it

            context = {"message": "a callback failed", "exception": self.error, "future": asyncio.current_task()}
            self.error = None
            asyncio.get_event_loop().call_exception_handler(context)

    def _told(self, one: "OutboxMessage | None") -> None:
        """Release a message that stayed only to be reported."""
        if one is None or one.segment is None:  # taken by the application
            return
        record = one.record
        marks = record[confirm.MARKS]
        record[confirm.MARKS] = marks & log.MARKS
        if marks & log.GOES == log.GOES:
            record[confirm.STATE] = confirm.GONE
        self._commits.log([one])


class Outcomes:
    """The outcomes of these queues' messages (mqqb.confirm.Storage).

    settings: of the confirmation process. quota: (bytes, messages) of the dead-letter queue and of the journal, each;
    further copies are discarded (C-37). peers: get the reason of failures. notices: reports to the application.
    """

    def __init__(
        self,
        commits: "Commits",
        notices: "Notices",
        queues: "Sequence[DestinationQueue]",
        peers: "Sequence[Any]",
        settings: confirm.Settings,
        quota: "tuple[int, int]",
    ) -> None:
        self.settings = settings
        self.strangers: "dict[int, int]" = {}  # see mqqb.lives
        self._commits = commits
        self.notices = notices
        self._queues = queues
        self._peers = peers
        self._quota = quota
        self._process = confirm.Confirmation(array("I", bytes(4 * confirm.RECORD_WORDS)), settings)
        self._kept = {confirm.X: [0, 0], confirm.J: [0, 0]}  # bytes, messages
        # An acknowledgement not yet noted: after a MemoryError it is tried again.
        self._answered: "list[streams.Entry] | None" = None
        self._answer = 0  # the class
        # Classes of the last messages that ended with one, once any message is on flash only.
        self._classes: "dict[int, int] | None" = None
        self._forgotten = False  # some classes
        self._spare: "streams.Entry | None" = None  # an unused entry; its key is the next one
        self._spares = 0

    # ---- known outcomes -------------------------------------------------------------------------

    def of(self, message: "Any") -> confirm.Confirmation:
        """Return the confirmation process of a message, valid until the next call."""
        self._process.record = message.record
        return self._process

    def in_memory(self, message_id: int) -> "OutboxMessage | None":
        """Return the message with this MessageID if it is in memory."""
        for handle in self._commits.outbox.handles():
            if handle.message_id == message_id:
                message: "OutboxMessage" = handle  # type: ignore[assignment]
                return message
        return None

    def remember(self) -> None:
        """Remember the last classes from now on, because a message is on flash only."""
        if self._classes is None:
            self._classes = {}

    def remembered(self, message_id: int) -> int:
        """Return the class with which an unfollowed message has ended; 0: stored at its destination.

        Raises OutboxError if the class is forgotten.
        """
        classes = self._classes or {}
        missing = self._commits.outbox.log.missing
        if message_id not in classes and (self._forgotten or message_id in missing or 0 in missing):
            raise log.OutboxError("message {} has ended: ask while it waits, or use on_failed".format(message_id))
        return classes.get(message_id, 0)

    def restored(self, message: "Any") -> bool:
        """Account for a message found in the log; return whether it is a kept copy."""
        kept = self._kept.get(message.record[confirm.STATE])
        if kept is None:
            return False
        self.notices.restored(message)
        if message.is_kept():
            kept[0] += message.size
            kept[1] += 1
        return True

    def spare(self) -> "streams.Entry | None":
        """Return an unused entry, if any."""
        spare = self._spare
        if spare is not None:
            self._spare = spare.key  # type: ignore[assignment]
            self._spares -= 1
        return spare

    def forget_spares(self) -> None:
        """Free the unused entries, because memory has run out."""
        self._spare = None
        self._spares = 0

    # ---- packets of a peer ----------------------------------------------------------------------

    def received(
        self, packet: "UserMessage | connection.OrderAck | FinalAck", of_peer: "Sequence[confirm.SourceQueue]" = ()
    ) -> None:
        """Apply a packet of a peer. Effects that must be durable before the acknowledgement set must_commit (B-098).

        of_peer: the queues whose messages go to that peer.
        """
        commits = self._commits
        now = commits.clock.now()
        if isinstance(packet, connection.OrderAck):
            self.settle()  # else newer answers of the streams would replace it
            if not confirm.order_ack(self, packet.body, self._queues, now):
                from mqqb import lives  # rarely needed

                lives.explain(self, packet.body, self._queues, of_peer, now)
            return
        from mqqb.headers import FinalAck  # not before a packet other than an OrderAck comes

        if isinstance(packet, FinalAck):
            if packet.body.source_guid == commits.guid:
                self._recall(packet.body)
            confirm.final_ack(self, packet, commits.guid, self._queues, now)
        else:
            commits.stats.dropped += 1

    def _recall(self, body: "FinalAckBody") -> None:
        """Load a message that a FinalAck names and that may be on flash only into its stream. After a power cut it may
        have been sent and wait to be resent.
        """
        message_id = body.fields[core.ACK_MESSAGE_ID]
        where = body.tx_sequence_id, body.fields[core.ACK_NUMBER]
        for queue in self._queues:
            logged = queue.logged
            if not logged.flash_only:
                continue
            entry = streams.Entry(None, message_id, True, False, *where)
            awaiting = queue.stream.awaiting_final_ack
            awaiting.append(entry)
            try:
                entry.key = self._found(queue, message_id, where)
            finally:
                if entry.key is None:
                    awaiting.remove(entry)
            if entry.key is not None:
                return
            if self._commits.outbox.log.gaps:
                queue.miss()

    def _found(
        self, queue: "DestinationQueue", message_id: int, where: "tuple[int, int] | None" = None
    ) -> "OutboxMessage | None":
        """Load a message that is about to end from flash. None: not there."""
        restored = self._commits.outbox.flash_only.find(queue.logged, message_id, where)
        if restored is None:
            return None
        message: "OutboxMessage" = self.take(queue, restored)
        return message

    def take(self, queue: "DestinationQueue", restored: "Restored") -> "Any":
        """Take a message found on flash into memory, because it is about to end."""
        outbox = self._commits.outbox
        outbox.flash_only.attach(restored)
        queue.hand_over(restored)
        message = restored.handle
        if not restored.is_open:
            queue.stream.rolls = not queue.logged.deferred
            if outbox.may_have_been_sent(message.message_id):
                self.of(message).sent()
            self._commits.waiting += 1
        return message

    def answer(self, queue: "DestinationQueue", entries: "list[streams.Entry]", message_class: int) -> None:
        """Implement mqqb.confirm.Storage."""
        self._answered = entries
        self._answer = message_class
        if message_class:
            queue.sending = 0
            self._commits.must_commit = True
        self.settle()
        if entries and entries[-1].tx_sequence_id < queue.stream.tx_sequence_id:
            if len(self.strangers) > 8:
                self.strangers.clear()
            # Begun here: a late OrderAck for it is no sign of another life, so it never counts as heard before.
            self.strangers[entries[-1].tx_sequence_id] = 1 << 62
        table = queue.stream.table
        if (
            table
            and entries
            and not message_class
            and entries[-1].tx_sequence_id < table[0].tx_sequence_id < table[-1].tx_sequence_id
        ):
            from ordack.node.storage.renumber import renumber  # not before it is needed

            try:
                renumber(self._commits, queue)
            except (MemoryError, log.OutboxError):
                pass  # each sequence waits for its OrderAck

    def outrun(self, time_stamp: int, queue: "DestinationQueue | None") -> None:
        """Implement mqqb.confirm.Storage; peers get the reason."""
        queues = self._queues if queue is None else [queue]
        if time_stamp >= clock.CLOCK_END:
            return
        for one in queues:
            if time_stamp < one.stream.record[core.OUTGOING_TIME_STAMP]:
                return
        self._commits.stats.ahead += 1
        self._commits.outbox.is_ahead(time_stamp)
        for one in queues:
            one.renew()
        for peer in self._peers:
            peer.reason = log.AHEAD

    def came_late(self, message_id: int, message_class: int) -> None:
        """Implement mqqb.confirm.Storage."""
        self._commits.must_commit = True  # its end may not be durable yet
        message = self.in_memory(message_id)
        if message is not None and message.record[confirm.STATE] == confirm.X:
            self._commits.stats.late += message_class == confirm.ACK_RECEIVE  # C-34

    def settle(self) -> None:
        """Note the rest of an acknowledgement; a MemoryError may have interrupted it."""
        answered = self._answered
        if answered is None:
            return
        message: "Any"
        messages = []
        message_class = self._answer
        for entry in answered:
            message = entry.key
            if message.segment is None:
                continue  # done before the MemoryError
            confirmation = self.of(message)
            before = confirmation.record[confirm.STATE]
            if message_class:
                action = confirmation.final_ack(message_class)
                if action:
                    self.count(message, before, action)
                self.tell([message])
                continue
            messages.append(message)
            if before == confirm.Q or before == confirm.S:
                self.count(message, before, confirmation.order_ack())
        self._commits.log(messages)
        if not message_class:
            for entry in answered:
                message = entry.key
                if message.record[confirm.STATE] == confirm.O:
                    self._leave(message)
        self._answered = None
        if not message_class:
            for entry in answered:
                message = entry.key
                message.tell()
                if self._spares < _SPARES_MAX:
                    entry.key = self._spare
                    self._spare = entry
                    self._spares += 1

    def _leave(self, message: "OutboxMessage") -> None:
        """Leave a message on flash only. Tasks that wait for it keep its handle."""
        queue = self._queues[message.queue.index]  # type: ignore[union-attr]
        self.remember()
        if message.event is not None:
            queue.followed[message.message_id] = message
        message.elsewhere = queue

    # ---- ended messages -------------------------------------------------------------------------

    def count(self, message: "Any", before: int, action: int) -> None:
        """Count an event that removed a message from its stream: state before, confirm's action; then `tell`."""
        record = message.record
        message_class = record[confirm.CLASS]
        commits = self._commits
        stats = commits.stats
        if before == confirm.Q or before == confirm.S:
            commits.waiting -= 1
            if not message_class & confirm.CLASS_NEGATIVE:
                stats.stored += 1
                self.notices.stored(message)
        if message_class:
            is_received = message_class == confirm.ACK_RECEIVE
            stats.received += is_received
            stats.failed += not is_received
        commits.packets.let_go(message)
        if action & (confirm.DEAD_LETTER | confirm.JOURNAL):
            kept = self._kept[record[confirm.STATE]]
            quota = self._quota
            if kept[0] + message.size > quota[0] or kept[1] >= quota[1]:
                record[confirm.STATE] = confirm.GONE  # C-37
            else:
                kept[0] += message.size
                kept[1] += 1

    def tell(self, messages: "list[Any]") -> None:
        """Log the outcomes of messages, and notify the application."""
        for message in messages:  # all, before a callback asks for another one
            message_class = message.record[confirm.CLASS]
            if message_class not in (0, confirm.ACK_RECEIVE):
                self.notices.failed(message)
            if message_class and self._classes is not None:
                if len(self._classes) >= OUTCOMES_MAX:
                    del self._classes[next(iter(self._classes))]
                    self._forgotten = True
                self._classes[message.message_id] = message_class
        self._commits.log(messages)
        for message in messages:
            message.tell()

    def let_go(self, message: "OutboxMessage") -> None:
        """Release a kept message. Raises ValueError if it is not kept; as Commits.check_open."""
        self._commits.check_open()
        message = message.known()
        record = message.record
        state = record[confirm.STATE]
        if not message.is_kept():
            raise ValueError("it is neither a dead letter nor in the journal")
        kept = self._kept[state]
        kept[0] -= message.size
        kept[1] -= 1
        record[confirm.STATE] = confirm.GONE
        self._commits.log([message])
        record[confirm.STATE] = state  # its conclusion stays

    def give_up(self, message: "OutboxMessage") -> None:
        """Give up an unsettled message (C-29). Raises ValueError if it is settled; as Commits.check_open."""
        self._commits.check_open()
        self._commits.commit_now()
        message = message.known()
        for queue in self._queues:
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                if entry.key is message:
                    before = message.record[confirm.STATE]
                    action = self.of(entry.key).failed(confirm.NACK_DELETED)
                    queue.sending = 0
                    queue.stream.remove([entry])
                    self.count(message, before, action)
                    self.tell([message])
                    return
        self._give_up_deferred(message)

    def _give_up_deferred(self, message: "OutboxMessage") -> None:
        queue: "Any" = message.elsewhere
        found = None if queue is None else self._found(queue, message.message_id)
        if found is None:
            raise ValueError("the message is not on its way")
        before = found.record[confirm.STATE]
        self.count(found, before, self.of(found).failed(confirm.NACK_DELETED))
        self.tell([found])
