"""The node: a board's own small queue manager, which sends.

    node = Node("outbox")
    queue = node.queue("DIRECT=TCP:10.0.0.5\\\\private$\\\\line1")
    node.start()
    message = await queue.send(b"21.5")  # returns when it is on flash
    await message.stored()               # and this when it is on the destination's disk, once and in order

Messages are transactional. They are numbered once, when they are accepted, and keep their numbers over cuts of the link
and of the power until the destination has acknowledged them (B-317, A-08, B-098). One session carries all queues of an
address. What others send to this node is not kept: it has no queues of its own, and gives no OrderAck.
"""

import asyncio
import gc
import random as _random
import time
from array import array

from mqqb import packets, session, streams

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

ORDER_ACK = 0x00FF  # MQMSG_CLASS_ORDER_ACK (B-368)
REFUSAL = 0x8000  # this bit is set in every negative class

WAITING = "waiting"
STORED = "stored"
REJECTED = "rejected"

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
    """Counts since the start: messages accepted, stored, rejected; packets sent, resends included; sessions opened
    (`connects`); messages from others that were dropped.
    """

    __slots__ = ("accepted", "connects", "dropped", "rejected", "sent", "stored")

    def __init__(self) -> None:
        self.accepted = 0
        self.stored = 0
        self.rejected = 0
        self.sent = 0
        self.connects = 0
        self.dropped = 0


class Message(outbox.Stored):
    """A message on its way. `state`: "waiting", "stored" (durable at the destination), "rejected" (it never will be).

    `message_class` says why: 0x00FF is the OrderAck, 0x8000 and above are the refusals (B-261, B-370 to B-375).
    `error`: what kept it from being accepted. `failure`: what ended delivery while it waited.
    """

    # Of the class, until a message differs: one that waits takes less memory so.
    state = WAITING
    message_class = 0
    error: "Exception | None" = None
    event: "asyncio.Event | None" = None
    failure: "Exception | None" = None

    async def stored(self) -> bool:
        """Wait for the destination's answer. True: it has the message, once and in order. False: it refused it.

        Raises what ended delivery (Node.error): the message is still in the outbox, and goes out after a restart.
        """
        if self.state == WAITING and self.failure is None:
            if self.event is None:
                self.event = asyncio.Event()
            await self.event.wait()
        if self.state == WAITING and self.failure is not None:
            raise self.failure
        return self.state == STORED


class Queue:
    """A destination queue and the stream of messages to it. Made by Node.queue, for the application to send to."""

    def __init__(self, node: "Node", logged: outbox.LoggedQueue, destination: packets.QueueName, peer: "Peer") -> None:
        self.name = logged.name
        self.node = node
        self.logged = logged
        self.destination = destination
        self.peer = peer
        self.stream = streams.OutgoingStream(array("I", logged.record))

    async def send(
        self,
        body: "bytes | bytearray | memoryview",
        label: str = "",
        ttrq: int = packets.FOREVER,
        ttbr: int = packets.FOREVER,
        priority: int = 3,
    ) -> Message:
        """Accept a message: returns when it is durable here. Concurrent calls share one sync of the file system.

        body: at most about 4 MiB. ttrq, ttbr: TimeToReachQueue and TimeToBeReceived in s, for the destination, which
        needs this board's clock to be right. priority: without effect, transactional messages have none (B-287).
        Raises OutboxFull, OutboxWriteFailed: it was not accepted. ValueError: it cannot be a message.
        """
        node = self.node
        message = node.accept(
            self,
            packets.user_message(
                node.guid,
                node.next_message_id,
                self.destination,
                body,
                label=label,
                priority=priority,
                delivery="transactional",
                ttrq=ttrq,
                ttbr=ttbr,
                sent_time=_unix_time() & 0xFFFFFFFF,
            ),
        )
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
        """Keep a session while there is something to send (B-189, B-190, B-217), for ever."""
        while True:
            while not any(queue.stream.table for queue in self.queues):
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
            node.lazy_sync(now)
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
            packet = node.outbox.load(entry.key)  # type: ignore[arg-type]
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
    None: the one in the outbox, a random one at first. capacity, waiting_max, segment_size: see outbox.Outbox. random:
    gives floats from 0 up to 1, for the back-off. on_rejected: called with each message that its destination refused,
    also with one of an earlier life. files: in place of folder, what the outbox writes to.
    Raises what outbox.Outbox raises; ValueError for a queue in the outbox that cannot be reached.
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
        on_rejected: "Callable[[Message], None] | None" = None,
        files: "outbox.Files | None" = None,
    ) -> None:
        _collect_often()
        self.outbox = outbox.Outbox(files or outbox.Files(folder), guid, segment_size, capacity, waiting_max, Message)
        self.settings = settings
        self.stats = Stats()
        self.error: "Exception | None" = None  # what ended run()
        self._clock = _Clock()
        self._connect = connect
        self._random = random
        self._on_rejected = on_rejected
        self._queues: "list[Queue]" = []
        self._peers: "dict[tuple[str, int], Peer]" = {}
        self._tasks: "list[Any]" = []
        self._started = False
        self._ended = asyncio.Event()
        self.uncommitted: "list[tuple[Queue, streams.Entry, Message]]" = []  # numbered, but not durable
        self._committing: "asyncio.Event | None" = None
        self._marked_at: "int | None" = None  # when the oldest mark of settlement was made that is not durable yet
        for logged in self.outbox.queues:
            self._add(logged)
        for restored in self.outbox.restored:
            self._queues[restored.queue.index].stream.append(
                streams.Entry(
                    restored.handle,
                    restored.handle.message_id,
                    bool(restored.flags & outbox.RECOVERABLE),
                    bool(restored.flags & outbox.JOURNAL),
                    restored.tx_sequence_id,
                    restored.tx_sequence_number,
                )
            )
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

    @property
    def waiting(self) -> int:
        """How many accepted messages have no answer from their destination yet."""
        return self.outbox.live

    def queue(self, name: str) -> Queue:
        """The queue of a direct format name, DIRECT=TCP:10.0.0.5\\private$\\line1. Raises ValueError for others.

        Names differ by more than upper and lower case: one name is one stream (B-099).
        """
        for queue in self._queues:
            if queue.name.lower() == name.lower():
                return queue
        packets.parse_format_name(name)
        self._address(name)
        now = _unix_time()
        return self._add(self.outbox.queue(name, now if now > CLOCK_SET else 0))

    def start(self) -> None:
        """Begin to deliver, in tasks of the running event loop."""
        self._started = True
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

    def accept(self, queue: Queue, packet: bytearray) -> Message:
        """Number a message and log it (B-317); commit makes it durable. Raises OutboxFull, OutboxWriteFailed."""
        if self.error is not None:
            raise self.error
        stream = queue.stream
        message = Message(self.outbox.next_message_id)
        entry = stream.number(packet, packets.transaction_offset(packet), message, message.message_id)
        if entry is None:
            raise outbox.OutboxFull("not accepted, the sequence has no more numbers: wait until all is stored")
        flags = outbox.TRANSACTIONAL | outbox.RECOVERABLE
        try:
            self.outbox.append(message, queue.logged, flags, stream.record, packet)
        except Exception as error:
            queue.stream.withdraw(entry)
            self._roll_back(error)
            raise
        self.uncommitted.append((queue, entry, message))
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
        """Make marks of settlement durable when no message has done it for a while: after a cut they save a resend."""
        if self._marked_at is not None and now - self._marked_at >= LAZY_SYNC_MS:
            self._marked_at = now
            self.commit_now()

    def received(self, packet: "packets.UserMessage | packets.OrderAck | packets.FinalAck") -> bool:
        """Take what a peer sent. False: it could not be made durable."""
        now = self.now()
        if isinstance(packet, packets.OrderAck):
            for queue in self._queues:  # ids are unique among all of them (B-230)
                self._settle(queue, queue.stream.order_ack(packet.body, now), ORDER_ACK)
        elif isinstance(packet, packets.FinalAck):
            if packet.body.source_guid == self.guid:
                for queue in self._queues:
                    entry = queue.stream.final_ack(packet.body.message_id, now)
                    if entry is not None:
                        self._settle(queue, [entry], packet.message.properties.message_class)
                return self.commit_now()
        else:
            self.stats.dropped += 1
        return True

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

    def _run(self, peer: Peer) -> None:
        self._tasks.append(asyncio.create_task(self._watch(peer)))

    async def _watch(self, peer: Peer) -> None:
        try:
            await peer.run()
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - raised again by run() and accept()
            self.error = error
            self._ended.set()
            for queue in self._queues:
                for entry in queue.stream.table:
                    message: "Any" = entry.key
                    message.failure = error
                    if message.event is not None:
                        message.event.set()

    def _roll_back(self, error: Exception) -> None:
        """Take back the numbers of the messages that the outbox had to abandon, newest first."""
        for queue, entry, message in reversed(self.uncommitted):
            if message.segment is None:
                queue.stream.withdraw(entry)
                message.error = error
        self.uncommitted = [accepted for accepted in self.uncommitted if accepted[2].segment is not None]

    def _settle(self, queue: Queue, entries: "list[streams.Entry]", message_class: int) -> None:
        if not entries:
            return
        messages: "list[Any]" = [entry.key for entry in entries]
        self.outbox.settle(messages, queue.logged, message_class)
        if self._marked_at is None:
            self._marked_at = self.now()
        state = REJECTED if message_class & REFUSAL else STORED
        if state == STORED:
            self.stats.stored += len(messages)
        else:
            self.stats.rejected += len(messages)
        for message in messages:
            message.state = state
            message.message_class = message_class
            if message.event is not None:
                message.event.set()
            if state == REJECTED and self._on_rejected is not None:
                self._on_rejected(message)


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
