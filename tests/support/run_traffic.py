"""Random traffic of runs for two queue managers that must decide alike: streams, queues, links, faults."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Any, NamedTuple

import pytest
from mqqb import build, compose, core, names, parse
from ordack.broker.links import PeerLink
from ordack.broker.manager import Manager
from ordack.config.config import Access, Config
from ordack.store import Store, StoreFull
from ordack.store.disk import Room

from tests.support.host_peer import direct
from tests.support.host_world import START, WALL, wall_at

LINKS = 3
DESTINATIONS = (  # by stream
    direct("line1"),
    names.DirectQueueFormatName("OS:plant\\private$\\LINE1"),  # another name of it, so another stream
    direct("small"),
    direct("plain"),
    direct("nowhere"),
    names.DirectQueueFormatName("TCP:10.1.1.1\\private$\\there"),  # of another queue manager, if messages are forwarded
)
ADMIN = direct("plain")
TABLES = {
    "messages": "lookup_id, queue, rank, expires, wants, peer, address, own, purged, in_doubt, packet",
    "queues": "*",
    "incoming": "*",
    "outgoing": "*",
    "outgoing_messages": "*",
    "outcomes": "*",
    "history": "*",
}
SEND, DELIVER, TICK, CUT, TAKE, ROOM, FAIL, POLL = range(8)
ALL = (DELIVER, 1 << 30, 1 << 30, 1 << 30)
# What is done to one message of a run, or to all from there on.
CHANGES = (
    "none", "gap", "again", "previous", "bit", "byte", "label", "class", "wants", "journal", "late", "expiring",
    "session", "internal", "express", "flags", "reserved", "sequence", "trailing", "extension", "numbers", "allocated",
    "expiring again",
)  # fmt: skip
Action = tuple[int, ...]


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All stores get the same identity and the same numbers."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xab" * size)
    monkeypatch.setattr(secrets, "randbelow", lambda below: 77 % below)


class Twin:
    """One of the two queue managers."""

    def __init__(self, folder: Path, config: Config, fast: bool) -> None:
        self.now = START
        self.log: list[str] = []
        self.links: list[PeerLink | None] = [None] * LINKS
        self.store = Store(folder, create=True, clock=lambda: wall_at(self.now))
        self.store._database.connection.execute("PRAGMA synchronous = OFF")
        self.store.lock_manager()
        self.store.queues.create("line1", transactional=True)
        self.store.queues.create("small", transactional=True)
        self.store.queues.set_quota("small", 9000)
        self.store.queues.create("plain", transactional=False)
        self.store.queues.create("there", transactional=True)
        self.manager = Manager(self.store, START, config, self.log.append)
        self.manager.fast.is_on &= fast
        self.manager.poll(START, WALL)


class Stream(NamedTuple):
    """Numbers that a source gives to its messages for one queue."""

    number: int = 0
    ordinal: int = 3


class Play:
    """Actions, done to both; only the first has the fast path."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        config = Config(
            early_order_ack=20,
            own_names=frozenset({"127.0.0.1"}) if number & 2 else frozenset(),
            route=bool(number & 2),
            access={"small": Access(sources=frozenset({self._source(0)}))} if number & 4 else {},
            refusals_told=3,
            report_messages=True,
        )
        self.now = START
        self.twins = [Twin(folder / "fast", config, True), Twin(folder / "full", config, False)]
        self.waiting = [bytearray() for _ in range(LINKS)]
        self.streams = {
            (self._source(number), place): Stream() for number in range(LINKS) for place in range(len(DESTINATIONS))
        }
        self.sent = [[0, 0] for _ in range(LINKS)]  # on this connection, and recoverable ones
        self.message_id = 1

    def close(self) -> None:
        for twin in self.twins:
            twin.store.close()

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def act(self, action: Action) -> None:
        kind, *arguments = action
        (self._send, self._deliver, self._tick, self._cut, self._take, self._room, self._fail, self._poll)[kind](
            *arguments
        )
        if kind != SEND:
            self.compare()

    def compare(self) -> None:
        """All that both have to have in common; called after each batch."""
        raise NotImplementedError

    def _forget(self, number: int) -> None:
        self.waiting[number].clear()
        for twin in self.twins:
            twin.links[number] = None

    # ---- what is done

    def _connect(self, number: int) -> None:
        if self.twins[0].links[number] is None:
            for twin in self.twins:
                link = twin.manager.accept("10.0.0.9", self.now)
                assert link is not None
                twin.links[number] = link
            self.sent[number] = [0, 0]
            self.waiting[number][:] = compose.establish_connection(self._source(number), names.NULL_GUID, 0)
            self.waiting[number] += compose.connection_parameters(500, 20000, 64)

    @staticmethod
    def _source(number: int) -> bytes:
        """Two of the connections are of one queue manager."""
        return bytes([number // 2 + 1]) * 16

    def _hear(self, number: int, place: int) -> None:
        """If nothing of it is on its way, a source knows what of its stream was accepted, and goes on behind that."""
        source = self._source(number)
        if any(waiting for other, waiting in enumerate(self.waiting) if self._source(other) == source):
            return
        key = "direct=" + DESTINATIONS[place].direct_format_name.lower()
        state = self.twins[0].manager.incoming.find(source, key)
        if state is None or not state.stream.tx_sequence_number:
            self.streams[source, place] = Stream()
        elif state.stream.tx_sequence_number > 0xFFFF0000:
            self.streams[source, place] = Stream(0, state.stream.record[core.INCOMING_ORDINAL] + 1)
        else:
            accepted = state.stream.record
            self.streams[source, place] = Stream(accepted[core.INCOMING_NUMBER], accepted[core.INCOMING_ORDINAL])

    def _send(self, number: int, place: int, count: int, change: int, at: int, value: int) -> None:
        """A run of messages of one stream; one of them is different, or all from that on."""
        self._connect(number)
        self._hear(number, place)
        how = CHANGES[change]
        for index in range(count):
            self._message(number, place, how if index == at else "none", how if index >= at else "none", index, value)

    def _message(self, number: int, place: int, how: str, since: str, index: int, value: int) -> None:
        """how: this message is different; since: this one is, and those before it."""
        stream = self.streams[self._source(number), place]
        if how == "gap":
            stream = stream._replace(number=stream.number + 1 + value % 5)
        elif how == "again":
            stream = stream._replace(number=max(stream.number - 1 - value % 40, 0))
        elif how == "expiring again":
            stream = stream._replace(number=max(stream.number - 4, 0))
        elif how == "sequence":
            stream = Stream(0, max(stream.ordinal + value % 3 - 1, 1))
        stream = stream._replace(number=stream.number + 1)
        packet = self._packet(number, place, stream, how, since, index, value)
        self.streams[self._source(number), place] = stream
        waiting = self.waiting[number]
        self.sent[number][0] += 1
        self.sent[number][1] += 1
        if how == "session":
            packet[2] |= core.BASE_SH
            fields = core.words(core.SESSION_HEADER)
            fields[core.ACKS_SENT], fields[core.ACKS_RECOVERABLE_SENT] = (count & 0xFFFF for count in self.sent[number])
            fields[core.ACKS_WINDOW_SIZE] = 1 + value % 64
            packet += bytes(16)
            core.pack(core.SESSION_HEADER, fields, packet, len(packet) - 16)
        elif how in ("bit", "byte"):
            where = value % len(packet) if value & 1 else (value >> 1) % min(len(packet), 240)
            packet[where] = packet[where] ^ 1 << (value >> 9 & 7) if how == "bit" else value >> 8 & 0xFF
        elif how == "internal":
            fields = core.words(core.SESSION_HEADER)
            fields[core.ACKS_SENT], fields[core.ACKS_RECOVERABLE_SENT] = (
                self.sent[number][0] - 1,
                self.sent[number][1] - 1,
            )
            fields[core.ACKS_WINDOW_SIZE] = 64
            waiting += compose.session_ack(fields)
        waiting += packet
        if how == "express":
            self.sent[number][0] += 1
            waiting += build.user_message(self._source(number), self._next_id(), ADMIN, b"x", priority=value % 8)

    def _next_id(self) -> int:
        self.message_id += 1
        return self.message_id

    def _packet(
        self, number: int, place: int, stream: Stream, how: str, since: str, index: int, value: int
    ) -> bytearray:
        life = 5 + value % 40
        wall = wall_at(self.now)
        packet = build.user_message(
            self._source(number),
            self._next_id(),
            DESTINATIONS[place],
            b"%d " % stream.number * (index * value % 50),
            label="other" if since == "label" else "reading",
            delivery="transactional",
            ttrq=life if since == "late" else compose.FOREVER,
            ttbr=life if since.startswith("expiring") else compose.FOREVER,
            sent_time=wall - index * value % 60 if since in ("late", "expiring", "expiring again") else wall - index,
            journal=(core.USER_JN, core.USER_JP)[value & 1] if since == "journal" else 0,
            acknowledge=value & 0xF if since == "wants" else 0,
            admin=ADMIN if since == "wants" else None,
            message_class=value & 0x1FF if how == "class" else 0,
            extension=bytes(value % 1200) if since == "extension" else b"",
        )
        at = parse.transaction_offset(packet)
        flags = (value * (index + 1) & 0xFFFFFE) if since == "flags" else 0xC
        previous = value % 70 if how == "previous" else stream.number - 1
        pack_into("<IIIII", packet, at, flags, stream.ordinal, 1000, stream.number, previous)
        if how == "numbers":
            pack_into("<I", packet, at + (12, 16)[value & 1], (0, 0xFFFFFFFF, 0xFFFFFFFE)[value % 3])
        if since == "reserved":
            packet[1] = value * index & 0xFF
        if how == "trailing":
            packet += bytes(4 * (1 + value % 3))
            pack_into("<I", packet, core.BASE_PACKET_SIZE_AT, len(packet))
        if how == "allocated":
            size_at = at + core.TRANSACTION_HEADER_SIZE + core.PROPERTIES_MESSAGE_SIZE_IN_PART
            pack_into("<I", packet, size_at + 4, unpack_from("<I", packet, size_at)[0] + value % 6)
        return packet

    def _deliver(self, *sizes: int) -> None:
        """So many bytes of each connection arrive, as one batch."""
        pieces = []
        for number, size in enumerate(sizes):
            if self.twins[0].links[number] is not None and self.waiting[number]:
                pieces.append((number, bytes(self.waiting[number][:size])))
                del self.waiting[number][:size]
        for twin in self.twins:
            arrivals = [(link, data) for number, data in pieces if (link := twin.links[number]) is not None and data]
            twin.manager.receive(arrivals, self.now, wall_at(self.now))

    def _tick(self, milliseconds: int) -> None:
        self.now += milliseconds
        for twin in self.twins:
            twin.now = self.now
            twin.manager.acknowledge(self.now, wall_at(self.now))

    def _poll(self) -> None:
        for twin in self.twins:
            twin.manager.poll(self.now, wall_at(self.now))

    def _cut(self, number: int) -> None:
        for twin in self.twins:
            link = twin.links[number]
            if link is not None:
                twin.manager.lost(link)
        self._forget(number)

    def _take(self, place: int, count: int) -> None:
        """An application takes messages of a queue, by their places alone."""
        for twin in self.twins:
            queue = twin.store.queues.named(("line1", "small", "plain", "there")[place])
            with twin.store.transaction():
                twin.store.messages.delete(
                    [message.lookup_id for message in twin.store.messages.peek(queue.identifier, count)]
                )

    def _room(self, size: int) -> None:
        """A disk with so many bytes left for each batch; 0: enough."""
        for twin in self.twins:
            twin.store.room = lambda _quota: Room(size or 1 << 30, "the disk is full")  # type: ignore[method-assign]

    def _fail(self) -> None:
        """The next batch with messages for a queue here cannot be written."""
        for twin in self.twins:
            add, add_run = twin.store.messages.add, twin.store.messages.add_run

            def fail(*_messages: Any, twin: Twin = twin, add: Any = add, add_run: Any = add_run) -> None:
                twin.store.messages.add, twin.store.messages.add_run = add, add_run  # type: ignore[method-assign]
                raise StoreFull("the disk is full")

            twin.store.messages.add = twin.store.messages.add_run = fail  # type: ignore[method-assign,assignment]


def random_actions(draw: random.Random) -> Iterator[Action]:
    """A day of such traffic."""
    while True:
        kind = draw.choices((SEND, DELIVER, TICK, CUT, TAKE, ROOM, FAIL, POLL), (40, 60, 8, 2, 4, 6, 1, 2))[0]
        if kind == SEND:
            change = draw.randrange(len(CHANGES)) if draw.random() < 0.5 else 0
            count = draw.choice((1, 5, 30, 64, 90))
            place = draw.choices(range(len(DESTINATIONS)), (8, 4, 3, 1, 1, 1))[0]
            yield kind, draw.randrange(LINKS), place, count, change, draw.randrange(count), draw.randrange(1 << 16)
        elif kind == DELIVER:
            yield (
                ALL
                if draw.random() < 0.5
                else (kind, *(draw.choice((0, 1, 100, 1000, 5000, 20_000, 1 << 20)) for _ in range(LINKS)))
            )
        elif kind == TICK:
            yield kind, draw.choice((1, 10, 20, 500, 600, 11_000))
        elif kind in (CUT, TAKE):
            yield (kind, draw.randrange(LINKS)) if kind == CUT else (kind, draw.randrange(3), draw.randrange(1, 200))
        elif kind == ROOM:
            yield kind, draw.choice((0, 0, 0, 0, 600, 9000, 20_000))
        else:
            yield (kind,)
