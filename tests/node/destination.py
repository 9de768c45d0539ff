"""A destination for nodes: the engine's other end, with a memory that outlives connections; and nodes that reach it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mqqb import acks, compose, core, guids, headers, session, streams
from mqqb.connection import Acknowledged, MessageReceived, Opened
from mqqb.destination import IncomingStream
from mqqb.session import Settings
from ordack.node import Node

GUID = bytes(range(100, 116))
LINE = "DIRECT=TCP:127.0.0.1\\private$\\line1"
ALARMS = "DIRECT=OS:plant\\private$\\alarms"
DEADLINE_S = 240  # of a test, on a machine that has other work


class Arrived:
    """A message in the queue."""

    def __init__(self, message: headers.UserMessage) -> None:
        assert message.transaction is not None
        self.source = message.user.source_queue_manager
        self.message_id = message.user.message_id
        assert message.user.destination_queue is not None
        self.queue = guids.format_name(message.user.destination_queue)
        self.label = message.properties.label
        self.body = bytes(message.properties.body)
        self.confirms = bool(message.user.flags & (core.USER_JN | core.USER_JP))
        self.sequence = message.transaction.tx_sequence_id, message.transaction.tx_sequence_number


class Destination:
    """Accepts by the rules of order, acknowledges after order_ack_timeout ms; what has arrived is in `queue`, in order.

    refuse: gives the class of a FinalAck for messages that are not wanted, 0 for the others. seen: called with every
    UserMessage that comes, before anything is done with it. `cut_in`: bytes (of both directions) until the connection
    is aborted, None for never; `next_cut` gives the next one for each new connection. receives: an application takes
    each message at once; its FinalAck is `owed` until the source has acknowledged it, on whatever connection.
    """

    def __init__(
        self,
        order_ack_timeout: int = 10,
        refuse: Callable[[Arrived], int] = lambda _: 0,
        seen: Callable[[headers.UserMessage], None] = lambda _: None,
        next_cut: Callable[[], int | None] = lambda: None,
        receives: bool = False,
    ) -> None:
        self.queue: list[Arrived] = []
        self.numbers: dict[tuple[int, int], tuple[int, bytes]] = {}  # (id, number) -> what came under it
        self.duplicates = 0
        self.cuts = 0
        self.settings = Settings()
        self.order_ack_timeout = order_ack_timeout
        self.refuse = refuse
        self.seen = seen
        self.next_cut = next_cut
        self.receives = receives
        self.owed: list[Arrived] = []
        self.incoming: dict[tuple[bytes, str], IncomingStream] = {}
        self.connections: list[Connection] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> Destination:
        self._server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        # A connection accepted in this turn is made in the next ones: asyncio loses it if the server is closed by then.
        for listener in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(5):
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break all connections, now."""
        for connection in list(self.connections):
            connection.abort()

    def final_ack(self, arrived: Arrived, message_class: int) -> None:
        """Send a FinalAck for what has arrived, on the connection there is."""
        self.connections[0].final_ack(arrived, message_class)

    @property
    def bodies(self) -> list[bytes]:
        return [arrived.body for arrived in self.queue]

    def take(self, message: headers.UserMessage, now: int) -> tuple[IncomingStream | None, int, Arrived | None]:
        """Store a message if it is next; (its stream, class of refusal, what it is)."""
        self.seen(message)
        if message.transaction is None:
            return None, 0, None
        arrived = Arrived(message)
        known = self.numbers.setdefault(arrived.sequence, (arrived.message_id, arrived.body))
        assert known == (arrived.message_id, arrived.body), "a number was used for two messages"
        key = arrived.source, arrived.queue
        stream = self.incoming.get(key)
        if stream is None:
            stream = self.incoming[key] = IncomingStream(None, now, self.order_ack_timeout)
        refusal = self.refuse(arrived)
        stream.schedule_order_ack(now)
        if not stream.accept(message.transaction):
            self.duplicates += 1
        elif not refusal:
            self.queue.append(arrived)
        return stream, refusal, arrived


class Connection(asyncio.Protocol):
    """One TCP connection to a Destination."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self.session = session.Session(False, GUID, _now(), settings=destination.settings)
        self.streams: list[IncomingStream] = []
        self.replies: list[tuple[streams.Entry | None, bytearray, bool]] = []
        self.transport: asyncio.Transport | None = None
        self.left = destination.next_cut()
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.session.connected(_now())
        self.destination.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.transport_closed()
        if self in self.destination.connections:
            self.destination.connections.remove(self)
        if self.timer is not None:
            self.timer.cancel()

    def abort(self) -> None:
        self.destination.cuts += 1
        assert self.transport is not None
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.left is not None:
            data = data[: max(self.left, 0)]
            self.left -= len(data)
        now = _now()
        for event in self.session.receive_data(data, now):
            if isinstance(event, Opened):
                for arrived in self.destination.owed:
                    if arrived.source == self.session.remote_guid:
                        self._confirm(arrived)
            elif isinstance(event, Acknowledged):
                for entry in event.entries:
                    if entry.key in self.destination.owed:
                        self.destination.owed.remove(entry.key)  # type: ignore[arg-type]
            elif isinstance(event, MessageReceived):
                if isinstance(event.packet, headers.UserMessage):
                    self._take(event.packet, now)
                self.session.stored(event.recoverable, now)
        self._flush()

    def send(self, packet: bytearray, recoverable: bool) -> None:
        """Send a packet of this side's own, as soon as the window allows."""
        self.replies.append((None, packet, recoverable))
        self._flush()

    def final_ack(self, arrived: Arrived, message_class: int) -> None:
        self.send(_final_ack(arrived, message_class), True)

    def _confirm(self, arrived: Arrived) -> None:
        entry = streams.Entry(arrived, 1)
        self.replies.append((entry, _final_ack(arrived, compose.CLASS_FINAL_ACK), True))

    def _take(self, message: headers.UserMessage, now: int) -> None:
        stream, refusal, arrived = self.destination.take(message, now)
        if stream is None or arrived is None:
            return
        if stream not in self.streams:
            self.streams.append(stream)
        if refusal:
            self.replies.append((None, _final_ack(arrived, refusal), True))
        elif self.destination.receives and arrived.confirms and arrived is self.destination.queue[-1]:
            self.destination.owed.append(arrived)
            self._confirm(arrived)

    def _flush(self) -> None:
        now = _now()
        assert self.transport is not None
        self.session.handle_timeout(now)
        while self.replies and self.session.can_send():
            self.session.send(*self.replies.pop(0), now)
        due = None
        for stream in self.streams:
            at = stream.next_timeout()
            if at is not None and at <= now and self.session.can_send():
                self._order_ack(stream, now)
            elif at is not None:
                due = at if due is None else min(due, at)
        data = self.session.data_to_send()
        if self.left is not None:
            data = data[: max(self.left, 0)]
            self.left -= len(data)
        if data:
            self.transport.write(data)
        if self.session.closed is not None:
            self.transport.close()
        elif self.left is not None and self.left <= 0:
            self.abort()
        if self.timer is not None:
            self.timer.cancel()
        session_due = self.session.next_timeout()
        due = session_due if due is None or (session_due is not None and session_due < due) else due
        if due is not None and not self.transport.is_closing():
            delay = max(due - now, 1) / 1000
            self.timer = asyncio.get_running_loop().call_later(delay, self._flush)

    def _order_ack(self, stream: IncomingStream, now: int) -> None:
        if stream.tx_sequence_number:
            packet = acks.order_ack(
                acks.order_queue("127.0.0.1"),
                GUID,
                1,
                0,
                stream.record[core.INCOMING_ORDINAL],
                stream.record[core.INCOMING_TIME_STAMP],
                stream.tx_sequence_number,
            )
            self.session.send(None, packet, False, now)
        stream.order_ack_sent(now)


def _final_ack(arrived: Arrived, message_class: int) -> bytearray:
    time_stamp, ordinal = divmod(arrived.sequence[0], 1 << 32)
    number = arrived.sequence[1]
    return acks.final_ack(
        acks.order_queue("127.0.0.1"),
        GUID,
        1,
        0,
        ordinal,
        time_stamp,
        number,
        number - 1,
        arrived.source,
        arrived.message_id,
        message_class,
    )


def _now() -> int:
    return time.monotonic_ns() // 1000000


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine, with a deadline."""

    async def bounded() -> None:
        await asyncio.wait_for(main(), DEADLINE_S)

    asyncio.run(bounded())


def make(destination: Destination, folder: Path | str = "", **options: Any) -> Node:
    """A node that reaches the destination, whatever a queue's address is; it hardly ever waits before a new attempt."""
    node = Node(str(folder), connect=("127.0.0.1", destination.port), random=lambda: 0.99, **options)
    node.start()
    return node


async def turns(count: int = 100) -> None:
    """All tasks that can run have run so often: what sleeps stays asleep, however long that takes."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


@contextmanager
def elsewhere(**options: Any) -> Iterator[Destination]:
    """A destination in another thread: the program under test waits by itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    destination = asyncio.run_coroutine_threadsafe(Destination(**options).start(), loop).result()
    try:
        yield destination
    finally:
        asyncio.run_coroutine_threadsafe(_stop(destination), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop(destination: Destination) -> None:
    await destination.stop()
    await until(lambda: not destination.connections)
