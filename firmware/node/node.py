"""The node: a board's own small queue manager, which sends.

    node = Node("outbox")
    queue = node.queue("DIRECT=TCP:10.0.0.5\\\\private$\\\\line1")
    node.start()
    message = await queue.send(b"21.5", dead_letter=True)  # returns when it is on flash
    await message.stored()    # and this when it is on the destination's disk, once and in order
    await message.received()  # and this when an application there has taken it

Messages are transactional. They are numbered once, when they are accepted, and keep their numbers over cuts of the link
and of the power until the destination has acknowledged them (B-317, A-08, B-098). What becomes of each is decided by
mqqb.confirm; dead-lettered and journaled ones stay in the outbox until the application takes them. One session carries
all queues of an address. What others send to this node is not kept: it has no queues of its own, and gives no OrderAck.

Deadlines. Each queue manager measures TTRQ and TTBR from SentTime by its own clock, so this board's must be right.
While it is not set (below CLOCK_SET) nothing expires here, and what was accepted then goes out without limits. T0 of
such a message is the moment in which the clock becomes known: it may live longer than it was told, never shorter.
"""

import asyncio
import gc
import random as _random
import struct
import time
from array import array

from mqqb import confirm, core, packets, session, streams

from node import outbox
from node.link import Backoff, TcpLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PORT = 1801  # B-001
WRITE_BYTES = 8192  # about so much is put together for one write
TICK_MS = 100  # timers are at most so late
LAZY_SYNC_MS = 1000  # marks of settlement are durable after that, if no message came
CLOCK_SET = 1700000000  # an earlier time, s since 1970: this board's clock has not been set


_NEGATIVE = 0x8000  # this bit is set in every negative class, and
_RECEIVING = 0x4000  # this one in those about receiving: the message has arrived
_JOURNAL = (core.USER_JN | core.USER_JP) // core.USER_JN  # of a record's MARKS
_HELD = 0x80  # of a record's MARKS, ours: TTBR is over, it is not transmitted any more (C-22)
_Q = ord(confirm.Q)
_S = ord(confirm.S)
_O = ord(confirm.O)
_J = ord(confirm.J)
_X = ord(confirm.X)
_GONE = ord(confirm.GONE)
_SETTINGS = confirm.Settings()
# Where a packet has its times (wire.md 2.1 and 2.4).
_TTRQ_OFFSET = 12
_TTBR_OFFSET = 48
_SENT_TIME_OFFSET = 52

_UNIX_EPOCH = 946684800 if time.gmtime(0)[0] == 2000 else 0  # boards count from 2000


class _Clock:
    """Monotonic milliseconds that do not wrap; asked at least once in six days."""

    def __init__(self) -> None:
        self._last = _ticks_ms()
        self._now = 0

    def now(self) -> int:
        ticks = _ticks_ms()
        self._now += _ticks_diff(ticks, self._last)
        self._last = ticks
        return self._now


if hasattr(time, "ticks_ms") and hasattr(time, "ticks_diff"):  # MicroPython
    _ticks_ms = time.ticks_ms
    _ticks_diff = time.ticks_diff  # type: ignore[attr-defined,unused-ignore]
else:

    def _ticks_ms() -> int:
        return time.monotonic_ns() // 1000000

    def _ticks_diff(later: int, earlier: int) -> int:
        return later - earlier


def _unix_time() -> int:
    """s since 1970, as far as the board knows."""
    return int(time.time()) + _UNIX_EPOCH


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


class Message(outbox.Stored):
    """A message on its way, or kept in the dead-letter queue or the journal.

    `error`: what kept it from being accepted. `failure`: what ended delivery while it was on its way.
    """

    # Of the class, until a message differs: one that waits takes less memory so.
    error: "Exception | None" = None
    event: "asyncio.Event | None" = None
    failure: "Exception | None" = None

    def conclusion(self) -> confirm.Conclusion:
        """What may be said of it now: answer, message_class, in_doubt (C-80 to C-87)."""
        return confirm.Confirmation(self.record, _SETTINGS).conclusion()

    async def stored(self) -> bool:
        """Wait until the destination has it, once and in order (OrderAck): True. False: it failed before.

        Raises what ended delivery (Node.error): the message is still in the outbox, and goes out after a restart.
        """
        while self.record[confirm.STATE] in (_Q, _S):
            await self._change()
        message_class = self.record[confirm.CLASS]
        if message_class & _NEGATIVE:
            return bool(message_class & _RECEIVING) and message_class != confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER
        return True

    async def received(self) -> bool:
        """Wait until an application there has received it (positive FinalAck): True. False: it failed, or may have;
        `conclusion` says how. Raises as `stored`; ValueError without JN and JP, for nobody will say (C-05).
        """
        if not self.record[confirm.MARKS] & _JOURNAL:
            raise ValueError("nobody will say whether it is received: send it with dead_letter or journal")
        return await self.dead_lettered() == 0

    async def dead_lettered(self) -> int:
        """Wait for its end: the class with which it is dead-lettered, or discarded if nothing keeps it (no JN, or the
        quota is used up); 0: it has ended well. Raises as `stored`.
        """
        while self.record[confirm.STATE] in (_Q, _S, _O):
            await self._change()
        message_class = self.record[confirm.CLASS]
        return message_class if message_class & _NEGATIVE else 0

    def tell(self) -> None:
        """Wake whoever waits for a change of this message."""
        if self.event is not None:
            self.event.set()
            self.event = None

    async def _change(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.event is None:
            self.event = asyncio.Event()
        await self.event.wait()


class Queue:
    """A destination queue and the stream of messages to it. Made by Node.queue, for the application to send to."""

    def __init__(self, node: "Node", logged: outbox.LoggedQueue, destination: packets.QueueName, peer: "Peer") -> None:
        self.name = logged.name
        self.node = node
        self.logged = logged
        self.destination = destination
        self.peer = peer
        self.stream = streams.OutgoingStream(array("I", logged.record))
        self.renewed = False  # its sequence has been begun since the start
        self.sending = 0  # the TxSequenceID of what was sent last

    async def send(
        self,
        body: "bytes | bytearray | memoryview",
        label: str = "",
        ttrq: int = packets.FOREVER,
        ttbr: int = packets.FOREVER,
        priority: int = 3,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> Message:
        """Accept a message: returns when it is durable here. Concurrent calls share one sync of the file system.

        body: at most about 4 MiB. ttrq, ttbr: TimeToReachQueue and TimeToBeReceived in s. dead_letter (JN): keep it
        until it is known to be received, and if it is not, or that remains unknown, in the dead-letter queue.
        journal (JP): keep it until it is known to be received, and then in the journal (B-389). priority: without
        effect, transactional messages have none (B-287).
        Raises OutboxFull, OutboxWriteFailed: it was not accepted. ValueError: it cannot be a message.
        """
        node = self.node
        flags = core.USER_JN * dead_letter | core.USER_JP * journal
        sent_time = node.time()
        packet = packets.user_message(
            node.guid,
            node.next_message_id,
            self.destination,
            body,
            label=label,
            priority=priority,
            delivery="transactional",
            ttrq=ttrq,
            ttbr=ttbr,
            sent_time=sent_time,
            journal=confirm.journal_of(flags, node.confirmation),
        )
        message = node.accept(self, packet, confirm.new(sent_time, node.confirmation, flags, ttrq, ttbr))
        await node.commit()
        if message.error is not None:
            raise message.error
        return message


class Peer:
    """One address: the link to it, the session over the link, the queues whose messages go there."""

    def __init__(self, node: "Node", link: TcpLink, backoff: Backoff) -> None:
        self.node = node
        self.queues: "list[Queue]" = []
        self.remote_guid = packets.NULL_GUID  # of the queue manager that answered last
        self.reason = ""  # why the last session or attempt ended
        self._link = link
        self._backoff = backoff
        self._work = asyncio.Event()  # something may be sent, or has to be
        self._over = asyncio.Event()  # this connection has ended
        self._session: "session.Session | None" = None
        self._turn = 0  # the queue that is asked first for the next message

    def wake(self) -> None:
        """Something has changed in a queue."""
        self._work.set()

    async def run(self) -> None:
        """Keep a session while there is something to send (B-189, B-190, B-217), for ever.

        And while a FinalAck is awaited: nobody can connect to this node to bring it.
        """
        while True:
            while not any(queue.stream.table or queue.stream.awaiting_final_ack for queue in self.queues):
                self._work.clear()
                await self._work.wait()
            try:
                await self._link.open()
                await self._converse()
            except OSError as error:
                self.reason = str(error)
            except MemoryError as error:  # this attempt needs more than there is now: nothing is lost by another one
                self.reason = str(error)
                gc.collect()
            finally:
                await self._link.close()
            await asyncio.sleep(self._backoff.next())

    async def _converse(self) -> None:
        """One connection, from the handshake to its end."""
        now = self.node.now()
        conversation = self._session = session.Session(True, self.node.guid, now, settings=self.node.settings)
        for queue in self.queues:
            queue.stream.restart()
        conversation.connected(now)
        self._over.clear()
        self._work.set()
        errors: "list[Exception]" = []
        tasks = [
            asyncio.create_task(self._guard(part, errors))
            for part in (self._read(conversation), self._write(conversation), self._tick(conversation))
        ]
        try:
            await self._over.wait()
        finally:
            self._session = None
            conversation.transport_closed()
            await _cancel(tasks)
        if conversation.closed is not None:
            self.reason = conversation.closed.rule + ": " + conversation.closed.reason
        if errors:
            raise errors[0]

    async def _guard(self, part: "Any", errors: "list[Exception]") -> None:
        """Run a part of the conversation; whatever ends it ends all of it."""
        try:
            await part
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again by _converse
            errors.append(error)
        self._over.set()

    async def _read(self, conversation: session.Session) -> None:
        while conversation.closed is None:
            data = await self._link.read()
            if not data:
                return
            self._take(conversation, conversation.receive_data(data, self.node.now()))
            self._work.set()

    async def _write(self, conversation: session.Session) -> None:
        while conversation.closed is None:
            self._fill(conversation)
            data = conversation.data_to_send()
            if data:
                await self._link.write(data)
            else:
                self._work.clear()
                await self._work.wait()

    async def _tick(self, conversation: session.Session) -> None:
        """Run the timers of the session and of the streams."""
        node = self.node
        while conversation.closed is None:
            now = node.now()
            due = conversation.next_timeout()
            if due is not None and due <= now:
                self._take(conversation, conversation.handle_timeout(now))
                self._work.set()
            for queue in self.queues:
                due = queue.stream.next_timeout()
                if due is not None and due <= now:
                    queue.stream.handle_timeout(now)
                    self._work.set()
            await asyncio.sleep(TICK_MS / 1000)

    def _fill(self, conversation: session.Session) -> None:
        """Give the session messages until there is enough for one write."""
        node = self.node
        if not conversation.can_send():
            return
        if node.uncommitted:
            node.commit_now()  # nothing leaves before it is durable (B-098)
        now = node.now()
        size = 0
        while size < WRITE_BYTES and conversation.can_send():
            entry = None
            for _ in self.queues:
                queue = self.queues[self._turn]
                self._turn = (self._turn + 1) % len(self.queues)
                entry = queue.stream.next_to_send()
                if entry is not None:
                    break
            if entry is None:
                return
            if entry.tx_sequence_id != queue.sending:
                # If an older sequence came back after a cut, the destination would refuse it for ever (B-275).
                node.settle_now()
                queue.sending = entry.tx_sequence_id
            packet = node.transmit(queue, entry)
            if packet is None:
                continue
            queue.stream.prepare(entry, packet, packets.transaction_offset(packet))
            conversation.send(entry, packet, entry.recoverable, now)
            node.stats.sent += 1
            size += len(packet)

    def _take(self, conversation: session.Session, events: "list[object]") -> None:
        node = self.node
        for event in events:
            if isinstance(event, session.Opened):
                node.stats.connects += 1
                self.remote_guid = conversation.remote_guid
                self._backoff.reset()
            elif isinstance(event, session.MessageReceived):
                if node.received(event.packet):
                    conversation.stored(event.recoverable, node.now())
                else:
                    self._take(conversation, conversation.close("B-098", "an outcome could not be made durable"))
            elif isinstance(event, session.Closed):
                self._over.set()


class Node:
    """A board's queue manager. folder: of the outbox, made if it is missing.

    connect: (host, port) through which everything goes; None: each queue's own address, port 1801. guid: 16 bytes;
    None: the one in the outbox, a random one at first. capacity, waiting_max, segment_size: see outbox.Outbox. quota:
    bytes of the dead-letter queue and of the journal, each; None: a quarter of capacity. Neither takes more than a
    quarter of waiting_max either; then copies are discarded (C-37). starts: how often the board has started, where
    something outside of the folder counts that. confirmation: the machine's values of the confirmation process; None:
    the defaults, but without LongLiveTime, so that a message without ttrq waits for ever. clock: gives s since 1970.
    random: gives floats from 0 up to 1, for the back-off. on_failed: called with each message that was dead-lettered
    or discarded, also with one of an earlier life; if the power fails then, once more. files: in place of folder, what
    the outbox writes to. Raises what outbox.Outbox raises; ValueError for a queue in the outbox that cannot be reached.
    """

    def __init__(
        self,
        folder: str,
        connect: "tuple[str, int] | None" = None,
        guid: "bytes | None" = None,
        capacity: int = 4194304,
        waiting_max: int = 500,
        segment_size: int = 65536,
        settings: "session.Settings | None" = None,
        random: "Callable[[], float]" = _random.random,
        on_failed: "Callable[[Message], None] | None" = None,
        files: "outbox.Files | None" = None,
        quota: "int | None" = None,
        starts: int = 0,
        confirmation: "confirm.Settings | None" = None,
        clock: "Callable[[], int]" = _unix_time,
    ) -> None:
        _collect_often()
        self.outbox = outbox.Outbox(
            files or outbox.Files(folder), guid, segment_size, capacity, waiting_max, Message, starts
        )
        self.settings = settings
        self.confirmation = confirmation or confirm.Settings(long_live_time=confirm.UNSET - 1)
        self.stats = Stats()
        self.error: "Exception | None" = None  # what ended run()
        self.waiting = 0  # messages in the states Q and S
        self._clock = _Clock()
        self._unix_time = clock
        self._connect = connect
        self._random = random
        self._on_failed = on_failed
        self._quota = (capacity // 4 if quota is None else quota, max(waiting_max // 4, 1))
        self._kept = {_X: [0, 0], _J: [0, 0]}  # bytes, messages in the dead-letter queue and in the journal
        self._queues: "list[Queue]" = []
        self._peers: "dict[tuple[str, int], Peer]" = {}
        self._tasks: "list[Any]" = []
        self._started = False
        self._ended = asyncio.Event()
        self.uncommitted: "list[tuple[Queue, streams.Entry, Message]]" = []  # numbered, but not durable
        self._committing: "asyncio.Event | None" = None
        self._marked_at: "int | None" = None  # when the oldest change of state was made that is not durable yet
        self._due: "int | None" = None  # no deadline is earlier
        self._undated = False  # some T0 is not known
        for logged in self.outbox.queues:
            self._add(logged)
        for restored in self.outbox.restored:
            self._restore(restored)
        self.outbox.restored = []

    # ---- for the application --------------------------------------------------------------------

    @property
    def guid(self) -> bytes:
        """The GUID of this queue manager, 16 bytes."""
        guid = self.outbox.guid
        assert guid is not None
        return guid

    @property
    def next_message_id(self) -> int:
        """The MessageID that the next accepted message gets.

        After a restart it tells an application whether the send() that the power cut interrupted has counted.
        """
        return self.outbox.next_message_id

    def queue(self, name: str) -> Queue:
        """The queue of a direct format name, DIRECT=TCP:10.0.0.5\\private$\\line1. Raises ValueError for others.

        Names differ by more than upper and lower case: one name is one stream (B-099).
        """
        for queue in self._queues:
            if queue.name.lower() == name.lower():
                return queue
        packets.parse_format_name(name)
        self._address(name)
        queue = self._add(self.outbox.queue(name, self.time()))
        queue.renewed = True
        return queue

    def find(self, message_id: int) -> "Message | None":
        """The message of that MessageID, also of an earlier life. None: it is not here any more, or never was."""
        found = [message for message in self._messages() if message.message_id == message_id]
        return found[0] if found else None

    def dead_letters(self) -> "list[Message]":
        """The transactional dead-letter queue: what failed, or may have; `conclusion` says which (B-391)."""
        return [message for message in self._messages() if message.record[confirm.STATE] == _X]

    def journal(self) -> "list[Message]":
        """The journal: messages sent with JP that are known to be received (B-393)."""
        return [message for message in self._messages() if message.record[confirm.STATE] == _J]

    def read(self, message: Message) -> packets.UserMessage:
        """All of a message that is still in the outbox. A dead letter has the class of its failure (B-394).

        Raises OutboxDamaged, OSError.
        """
        packet = packets.parse(bytes(self._load(message)))
        assert isinstance(packet, packets.UserMessage)
        if message.record[confirm.STATE] == _X:
            packet.properties.message_class = message.record[confirm.CLASS]
        return packet

    async def take(self, message: Message) -> None:
        """Take a message out of the dead-letter queue or the journal: returns when that is durable.

        Raises ValueError if it is in neither; OutboxError: the file system refused, after a cut it may be there again.
        """
        record = message.record
        state = record[confirm.STATE]
        if state not in (_X, _J) or message.segment is None:
            raise ValueError("the message is neither in the dead-letter queue nor in the journal")
        kept = self._kept[state]
        kept[0] -= message.size
        kept[1] -= 1
        record[confirm.STATE] = _GONE
        self._log([message])
        record[confirm.STATE] = state  # what may be concluded of it stays
        await self._sync()

    async def delete(self, message: Message) -> None:
        """Give up a message that is on its way: dead-lettered with JN, discarded without, class 0x8001 (C-29).

        Returns when that is durable. Raises ValueError if it has ended already; OutboxError as `take`.
        """
        self.commit_now()
        for queue in self._queues:
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                if entry.key is message:
                    before = message.record[confirm.STATE]
                    action = self._confirmation(entry).failed(confirm.NACK_DELETED)
                    queue.stream.remove([entry])
                    self._happened([(entry, before, action)])
                    await self._sync()
                    return
        raise ValueError("the message is not on its way")

    def start(self) -> None:
        """Act on overdue deadlines (C-33), then begin to deliver, in tasks of the running event loop."""
        if self._started:
            return
        self._started = True
        self.check_deadlines()
        self._tasks.append(asyncio.create_task(self._watch(self._keep_time)))
        for peer in self._peers.values():
            self._run(peer)

    async def run(self) -> None:
        """Deliver until close(). Raises what makes going on impossible: OutboxDamaged, or a mistake in here."""
        self.start()
        await self._ended.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """End all connections and let go of the files. What waits stays in the outbox."""
        tasks = self._tasks
        self._tasks = []
        await _cancel(tasks)
        self.commit_now()
        self.outbox.close()
        self._ended.set()

    # ---- for queues and peers -------------------------------------------------------------------

    def now(self) -> int:
        """Monotonic ms."""
        return self._clock.now()

    def time(self) -> int:
        """s since 1970, or 0: this board's clock is not set."""
        now = self._unix_time()
        return now if now >= CLOCK_SET else 0

    def accept(self, queue: Queue, packet: bytearray, record: "array[int]") -> Message:
        """Number a message and log it (B-317); commit makes it durable. Raises OutboxFull, OutboxWriteFailed.

        record: its confirmation, in state Q.
        """
        if self.error is not None:
            raise self.error
        self.check_deadlines()  # what expires now makes room
        stream = queue.stream
        message = Message(self.outbox.next_message_id, record)
        offset = packets.transaction_offset(packet)
        journal = record[confirm.MARKS] & _JOURNAL != 0
        entry = None
        if queue.renewed:
            entry = stream.number(packet, offset, message, message.message_id, journal)
        if entry is None:  # the first one since the start: what came back may be an old copy (A-22, B-426); or A-24
            self._renew(queue)
            entry = stream.number(packet, offset, message, message.message_id, journal)
            assert entry is not None
        flags = outbox.TRANSACTIONAL | outbox.RECOVERABLE
        try:
            self.outbox.append(message, queue.logged, flags, stream.record, packet)
        except Exception as error:
            queue.stream.withdraw(entry)
            self._roll_back(error)
            raise
        self.uncommitted.append((queue, entry, message))
        self.waiting += 1
        self._expect(message)
        return message

    async def commit(self) -> None:
        """Make durable what was accepted by now, together with what other tasks are about to send."""
        if self._committing is not None:
            await self._committing.wait()
            return
        done = self._committing = asyncio.Event()
        try:
            await asyncio.sleep(0)
        finally:
            self._committing = None
            done.set()  # the others go on only after this step
            self.commit_now()

    def commit_now(self) -> bool:
        """Make durable what was accepted, at once. False: the file system refused, some of it was or nothing."""
        if not self.uncommitted and self._marked_at is None:
            return True
        try:
            durable = self.outbox.sync()
        except outbox.OutboxWriteFailed as error:
            self._roll_back(error)
            durable = False
        if durable:
            self._marked_at = None
        self.stats.accepted += len(self.uncommitted)
        for queue, _, _ in self.uncommitted:
            queue.peer.wake()
        self.uncommitted = []
        return durable

    def lazy_sync(self, now: int) -> None:
        """Make changes of state durable when no message has done it for a while: after a cut they save a resend."""
        if self._marked_at is not None and now - self._marked_at >= LAZY_SYNC_MS:
            self._marked_at = now
            self.commit_now()

    def settle_now(self) -> None:
        """Make all changes of state durable. Raises OSError if the file system refuses."""
        if not self.commit_now():
            raise OSError("the outbox cannot be written")

    def transmit(self, queue: Queue, entry: streams.Entry) -> "bytearray | None":
        """The packet of an entry that is about to be transmitted; None: it is too late for that (C-18, C-22).

        Raises OutboxDamaged; OSError: also if it cannot be noted that something was transmitted.
        """
        confirmation = self._confirmation(entry)
        record = confirmation.record
        now = self.time()
        if now and record[confirm.SENT_TIME] and not confirmation.may_send(now):
            before = record[confirm.STATE]
            action = confirmation.handle_deadline(now)
            if action:
                queue.stream.remove([entry])
                self._happened([(entry, before, action)])
            else:
                record[confirm.MARKS] |= _HELD
                queue.stream.hold([entry])
                self._log([entry.key])
            return None
        try:
            self.outbox.will_send()
        except outbox.OutboxWriteFailed as error:
            raise OSError(error.errno)  # noqa: B904 - MicroPython has no `from`
        packet = self._load(entry.key)
        confirmation.sent()
        return packet

    def received(self, packet: "packets.UserMessage | packets.OrderAck | packets.FinalAck") -> bool:
        """Take what a peer sent. False: it could not be made durable."""
        now = self.now()
        if isinstance(packet, packets.OrderAck):
            self._compare(packet.body)
            for queue in self._queues:  # ids are unique among all of them (B-230)
                changes = []
                for entry in queue.stream.order_ack(packet.body, now):
                    confirmation = self._confirmation(entry)
                    changes.append((entry, confirmation.record[confirm.STATE], confirmation.order_ack()))
                self._happened(changes)
        elif isinstance(packet, packets.FinalAck):
            if packet.body.source_guid == self.guid:
                self._final_ack(packet.body.message_id, packet.message.properties.message_class, now)
                return self.commit_now()
        else:
            self.stats.dropped += 1
        return True

    def check_deadlines(self) -> None:
        """Act on all deadlines that are due, if the clock is set."""
        now = self.time()
        if not now:
            return
        if self._undated:
            self._date(now)
        if self._due is None or now < self._due:
            return
        self.commit_now()  # what is not durable cannot change yet; if that fails it is gone
        self._due = None
        for queue in self._queues:
            changes = []
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                confirmation = self._confirmation(entry)
                before = confirmation.record[confirm.STATE]
                action = confirmation.handle_deadline(now)
                if action:
                    changes.append((entry, before, action))
                else:
                    self._expect(entry.key)
            queue.stream.remove([change[0] for change in changes])
            self._happened(changes)

    # ---- inside ---------------------------------------------------------------------------------

    def _address(self, name: str) -> "tuple[str, int]":
        if not name.upper().startswith(("DIRECT=TCP:", "DIRECT=OS:")):
            raise ValueError("only direct format names are supported, DIRECT=TCP:... or DIRECT=OS:...")
        return self._connect or (name[name.index(":") + 1 : name.index("\\")], PORT)

    def _add(self, logged: outbox.LoggedQueue) -> Queue:
        address = self._address(logged.name)
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = Peer(self, TcpLink(address[0], address[1]), Backoff(self._random))
            if self._started:
                self._run(peer)
        queue = Queue(self, logged, packets.parse_format_name(logged.name), peer)
        peer.queues.append(queue)
        self._queues.append(queue)
        return queue

    def _restore(self, restored: outbox.Restored) -> None:
        """Take a message that the outbox held at the start."""
        message: "Any" = restored.handle
        record = message.record
        state = record[confirm.STATE]
        if state in (_X, _J):
            kept = self._kept[state]
            kept[0] += message.size
            kept[1] += 1
            return
        stream = self._queues[restored.queue.index].stream
        entry = streams.Entry(
            message,
            message.message_id,
            bool(restored.flags & outbox.RECOVERABLE),
            record[confirm.MARKS] & _JOURNAL != 0,
            restored.tx_sequence_id,
            restored.tx_sequence_number,
        )
        if restored.sent:
            self._confirmation(entry).sent()
        if state in (_Q, _S):
            self.waiting += 1
        if state not in (_Q, _S) or record[confirm.MARKS] & _HELD:
            stream.awaiting_final_ack.append(entry)
        else:
            stream.append(entry)
        self._expect(message)

    def _renew(self, queue: Queue) -> None:
        """Begin a sequence that nobody can have seen (A-22)."""
        queue.stream.renew(self.outbox.time_stamp(self.time()))
        queue.renewed = True

    def _compare(self, body: packets.OrderAckBody) -> None:
        """Was this number ever given here? If not, the outbox is an old copy, or has a twin: say so (A-04, B-426)."""
        acked = body.tx_sequence_id, body.tx_sequence_number
        newest = 0, 0
        for queue in self._queues:
            record = queue.stream.record
            following = queue.stream.tx_sequence_id, record[core.OUTGOING_NUMBER]
            newest = max(newest, following)
            if body.tx_sequence_time_stamp == record[core.OUTGOING_TIME_STAMP] and acked >= following:
                self._renew(queue)  # what is numbered stood there before the copy was made: the OrderAck covers it
                self.stats.ahead += 1
                return
        self.stats.ahead += acked >= newest

    def _run(self, peer: Peer) -> None:
        self._tasks.append(asyncio.create_task(self._watch(peer.run)))

    async def _keep_time(self) -> None:
        """What has to be done at a time, connected or not."""
        while True:
            self.check_deadlines()
            self.lazy_sync(self.now())
            await asyncio.sleep(TICK_MS / 1000)

    async def _watch(self, work: "Callable[[], Any]") -> None:
        try:
            await work()
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again by run() and accept()
            self.error = error
            self._ended.set()
            for message in self._messages():
                message.failure = error
                message.tell()

    def _roll_back(self, error: Exception) -> None:
        """Take back the numbers of the messages that the outbox had to abandon, newest first."""
        for queue, entry, message in reversed(self.uncommitted):
            if message.segment is None:
                queue.stream.withdraw(entry)
                self.waiting -= 1
                message.error = error
        self.uncommitted = [accepted for accepted in self.uncommitted if accepted[2].segment is not None]

    def _messages(self) -> "list[Message]":
        return self.outbox.handles()  # type: ignore[return-value]

    def _confirmation(self, entry: streams.Entry) -> confirm.Confirmation:
        message: "Any" = entry.key
        return confirm.Confirmation(message.record, self.confirmation)

    def _expect(self, message: "Any") -> None:
        """Take a deadline into account, once its T0 is known."""
        if not message.record[confirm.SENT_TIME]:
            self._undated = True
            return
        due = confirm.Confirmation(message.record, self.confirmation).next_deadline()
        if due is not None and (self._due is None or due < self._due):
            self._due = due

    def _date(self, now: int) -> None:
        """The clock has become known: that is T0 of all messages that have none."""
        self.commit_now()
        undated = [message for message in self._messages() if not message.record[confirm.SENT_TIME]]
        self._undated = False
        for message in undated:
            message.record[confirm.SENT_TIME] = now
            self._expect(message)
        self._log(undated, True)

    def _load(self, message: "Any") -> bytearray:
        """The packet of a message, its times as they are known now."""
        packet = self.outbox.load(message)
        sent_time = message.record[confirm.SENT_TIME]
        if sent_time:
            struct.pack_into("<I", packet, _SENT_TIME_OFFSET, sent_time)
        else:
            struct.pack_into("<I", packet, _TTRQ_OFFSET, packets.FOREVER)
            struct.pack_into("<I", packet, _TTBR_OFFSET, packets.FOREVER)
        return packet

    def _final_ack(self, message_id: int, message_class: int, now: int) -> None:
        for queue in self._queues:
            entry = queue.stream.final_ack(message_id, now)
            if entry is not None:
                confirmation = self._confirmation(entry)
                before = confirmation.record[confirm.STATE]
                self._happened([(entry, before, confirmation.final_ack(message_class))])
                return
        message = self.find(message_id)
        if message is not None:
            action = confirm.Confirmation(message.record, self.confirmation).final_ack(message_class)
            self.stats.late += action == confirm.LOG

    def _happened(self, changes: "list[tuple[streams.Entry, int, int]]") -> None:
        """Do what confirm asks for: (entry, state before, action) of each. The entries have left their stream."""
        messages: "list[Any]" = [change[0].key for change in changes]
        stats = self.stats
        for message, (_, before, action) in zip(messages, changes):
            record = message.record
            message_class = record[confirm.CLASS]
            if before in (_Q, _S):
                self.waiting -= 1
                stats.stored += not message_class & _NEGATIVE
            stats.received += message_class == confirm.ACK_RECEIVE
            stats.failed += message_class & _NEGATIVE != 0
            if action & (confirm.DEAD_LETTER | confirm.JOURNAL):
                kept = self._kept[record[confirm.STATE]]
                if kept[0] + message.size > self._quota[0] or kept[1] >= self._quota[1]:
                    record[confirm.STATE] = _GONE  # C-37
                else:
                    kept[0] += message.size
                    kept[1] += 1
        self._log(messages)
        for message in messages:
            message.tell()
            if message.record[confirm.CLASS] & _NEGATIVE and self._on_failed is not None:
                self._on_failed(message)

    def _log(self, messages: "list[Any]", with_time: bool = False) -> None:
        if messages:
            self.outbox.change(messages, with_time)
            if self._marked_at is None:
                self._marked_at = self.now()

    async def _sync(self) -> None:
        await self.commit()
        if self._marked_at is not None:
            raise outbox.OutboxError("the file system refuses: it is not durable yet")


def _collect_often() -> None:
    """MicroPython's heap is never compacted: collect before what stays is spread thinly over all of it.

    Else a list that grows finds no room although most of the heap is free. An application's own threshold is kept.
    """
    heap: "Any" = gc
    if hasattr(heap, "mem_free") and heap.threshold() == -1:
        heap.threshold((heap.mem_free() + heap.mem_alloc()) // 16)


async def _cancel(tasks: "list[Any]") -> None:
    """End tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        try:
            await task
        except asyncio.CancelledError:
            pass
