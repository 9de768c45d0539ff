"""The fast path: a queue manager with it stores, refuses, remembers and closes what one without it does.

Both may acknowledge at different times, so acknowledgements are compared by what they
say: no number that is not stored, and in the end the same numbers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from struct import unpack_from
from typing import Any

import pytest
from mqqb import compose, core, parse
from mqqb.connection import OPEN, OrderAck
from mqqb.session import Session
from ordack.broker.acceptance import Batch
from ordack.broker.incoming import MESSAGE_ID_BLOCK
from ordack.broker.message import Letter

from hil.dice import new_seed
from tests.support.host_peer import Peer, direct
from tests.support.host_world import START, Host, wall_at
from tests.support.run_traffic import (
    ALL,
    CHANGES,
    DELIVER,
    DESTINATIONS,
    LINKS,
    POLL,
    ROOM,
    SEND,
    TABLES,
    TAKE,
    TICK,
    Action,
    Play,
    Twin,
    random_actions,
    same_numbers,  # noqa: F401 - a fixture
)

DAYS = 6
SMALL = 2


def _meaning(twin: Twin) -> object:
    """What both have to have in common after each batch."""
    place = {link: number for number, link in enumerate(twin.links) if link}
    sessions = [
        link
        and (
            link.session.state,
            list(link.session.window.counts[core.SESSION_RECEIVED : core.SESSION_RECEIVED + 4]),
            link.session.direct_format_session,
            link.session.reader.end - link.session.reader.begin,
            link.session.closed and (link.session.closed.rule, link.session.closed.reason),
        )
        for link in twin.links
    ]
    streams = {
        (state.source, state.key): (
            state.target,
            list(state.stream.record),
            state.stream.limit,
            state.last_access,
            state.complained,
            state.link and place.get(state.link),
            state in twin.manager.incoming._strays,
        )
        for state in twin.manager.incoming
    }
    execute = twin.store._database.connection.execute
    tables: dict[Any, list[Any]] = defaultdict(list)
    for queue, packets, *columns in execute(
        "SELECT queue, packet, rank, expires, wants, peer, address, own, purged, in_doubt FROM messages "
        "ORDER BY lookup_id"
    ):
        while packets:  # of one row
            (size,) = unpack_from("<I", packets, core.BASE_PACKET_SIZE_AT)
            packet, packets = packets[:size], packets[size:]
            tables[queue, packet[16:32], packet[64:100]].append((packet, columns))
    for name in TABLES.keys() - {"messages"}:
        tables[name] = sorted(execute(f"SELECT {TABLES[name]} FROM {name}"), key=repr)
    counters = twin.manager.links.counters
    counts = [(name, one.sessions, one.received, one.received_bytes, one.refused) for name, one in counters.peers]
    counts += [(guid, one.received) for guid, one in twin.manager.links.histories.copy().items()]
    told = counters.batches.counts, counters.batches.total, counters.ends, counters.store_failures
    return sessions, streams, tables, counts, told, sorted(twin.log)


class FastPlay(Play):
    """fast: how many messages it has taken."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        super().__init__(folder, number)
        self.fast = 0
        self.is_limited = False
        self.before: list[list[list[int]]] = [[], []]  # records of streams; an action may begin another sequence
        self.named: list[dict[tuple[bytes, int, int], int]] = [{}, {}]  # highest numbers of OrderAcks, for each
        for twin in self.twins:
            self._number_order_acks_apart(twin)
        put = self.twins[0].manager.fast.put

        def count(batch: Batch, now: int, wall: int) -> list[Any]:
            events = put(batch, now, wall)
            self.fast += batch.fast
            return events

        self.twins[0].manager.fast.put = count  # type: ignore[method-assign]

    @staticmethod
    def _number_order_acks_apart(twin: Twin) -> None:
        """So that the MessageIDs of stored messages are the same in both."""
        reserve = twin.store.numbers.reserve_message_ids
        twin.store.numbers.reserve_message_ids = (  # type: ignore[method-assign]
            lambda count=1: 1 << 30 if count >= MESSAGE_ID_BLOCK else reserve(count)
        )

    def compare(self) -> None:
        for number, twin in enumerate(self.twins):
            for link, data, shut in twin.manager.output():
                self._read(number, data)
                if shut and link in twin.links:
                    self.waiting[twin.links.index(link)].clear()
        for twin in self.twins:
            twin.manager.fast.tell(self.now)
        first, second = (_meaning(twin) for twin in self.twins)
        assert first == second
        self.before = [[list(state.stream.record) for state in twin.manager.incoming] for twin in self.twins]
        for number in range(LINKS):
            link = self.twins[0].links[number]
            if link is not None and link.session.closed is not None:
                self._forget(number)

    def _read(self, which: int, data: bytes) -> None:
        """Every OrderAck names an accepted number."""
        total = core.words(core.BASE_HEADER)[:1]
        while data:
            assert core.frame(data, 0, len(data), total) == core.OK
            packet = parse.parse(data[: total[0]])
            data = data[total[0] :]
            if isinstance(packet, OrderAck):
                fields = packet.body.fields
                key = fields[core.ACK_ORDINAL], fields[core.ACK_TIME_STAMP]
                number = fields[core.ACK_NUMBER]
                records = self.before[which] + [
                    list(state.stream.record) for state in self.twins[which].manager.incoming
                ]
                assert any(tuple(record[:2]) == key and record[core.INCOMING_NUMBER] >= number for record in records)
                source = bytes(packet.message.user.queue_manager_address)
                named = self.named[which]
                named[source, *key] = max(number, named.get((source, *key), 0))  # streams may share a sequence

    def _deliver(self, *sizes: int) -> None:
        """In one batch, only connections for which the order between them does not matter: the first two share streams,
        and where room is limited, it decides who gets it."""
        for together in ((0,), (1,), (2,)) if self.is_limited else ((0, 2), (1,)):
            super()._deliver(*(size if place in together else 0 for place, size in enumerate(sizes)))

    def _send(self, number: int, place: int, count: int, change: int, at: int, value: int) -> None:
        """Where room is limited, a batch is of one stream."""
        if self.is_limited:
            self.act(ALL)
            change = 0 if CHANGES[change] == "express" else change
        super()._send(number, place if number == 0 or place != SMALL else 0, count, change, at, value)

    def _take(self, place: int, count: int) -> None:
        super()._take(place, 1 << 20)

    def _room(self, size: int) -> None:
        self.act(ALL)
        self.is_limited = size > 0
        super()._room(size)

    def _poll(self) -> None:
        """The peers acknowledge what they have heard."""
        super()._poll()
        for twin in self.twins:
            for link in twin.links:
                if link and link.session.state == OPEN and link.session.reader.begin == link.session.reader.end:
                    counts = link.session.window.counts
                    header = core.words(core.SESSION_HEADER)
                    header[core.ACKS_SEQUENCE_NUMBER] = counts[core.SESSION_SENT]
                    header[core.ACKS_SENT] = counts[core.SESSION_RECEIVED]
                    header[core.ACKS_RECOVERABLE_SENT] = counts[core.SESSION_RECOVERABLE_RECEIVED]
                    header[core.ACKS_WINDOW_SIZE] = 64
                    data = bytes(compose.session_ack(header))
                    twin.manager.receive([(link, data)], self.now, wall_at(self.now))

    def acknowledgeable(self) -> set[tuple[bytes, int, int]]:
        """Sequences whose streams all have a connection: a cut one may have acknowledged before or not."""
        streams = [((state.source, *state.stream.record[:2]), state.link) for state in self.twins[0].manager.incoming]
        return {key for key, _ in streams} - {key for key, link in streams if link is None}


def _play(folder: Path, number: int, actions: list[Action]) -> int:
    """How many messages took the fast path."""
    with FastPlay(folder, number) as play:
        begun = [(SEND, 0, 0, 5, 0, 0, 0), ALL, (SEND, 0, 0, 30, 0, 0, 0), ALL, (POLL,)]
        for action in (*begun, *actions, ALL, (POLL,), (TICK, 20_000), (POLL,), (TICK, 20_000)):
            play.act(action)
        first, second = ({key: named.get(key) for key in play.acknowledgeable()} for named in play.named)
        assert first == second
        return play.fast


@pytest.mark.rule("B-098", "B-250", "B-262", "B-265", "B-270", "B-272", "B-282", "B-284", "B-288")
@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES)
def test_each_change_is_decided_alike(tmp_path: Path, how: str) -> None:
    change = CHANGES.index(how)
    fast = 0
    for number in (0, 6):
        actions: list[Action] = []
        for place in range(len(DESTINATIONS)):
            actions += [(SEND, 0, place, 5, 0, 0, 0), ALL, (SEND, 0, place, 20, change, 7, 113), ALL, (POLL,)]
            actions += [(SEND, 0, place, 20, 0, 0, 0), ALL, (TICK, 20), (SEND, 1, place, 3, 0, 0, 0)]
            actions += [(SEND, 2, place, 5, change, 1, 30), ALL, (TAKE, 0, 1), (TAKE, 1, 1), (TAKE, 2, 1), (TAKE, 3, 1)]
        fast += _play(tmp_path / str(number), number, actions)
    print(f"{fast} messages on the fast path")
    assert fast > 40


@pytest.mark.rule("B-098", "B-250", "B-262", "B-270", "B-272", "B-282", "B-284", "B-285")
@pytest.mark.slow
def test_long_days_are_decided_alike(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed)
    fast = 0
    for day in range(DAYS):
        draw = random.Random(f"{seed}/{day}")
        actions = [action for action, _ in zip(random_actions(draw), range(100), strict=False)]
        fast += _play(tmp_path / str(day), (seed + day) % 8, actions)
    print(f"{fast} messages on the fast path")
    assert fast >= 30 * DAYS


def _spoil(play: FastPlay, number: int) -> Callable[[], None]:
    """Accidents while taken messages wait for their transaction."""
    twin = play.twins[0]
    return (
        lambda: twin.manager._refresh(),  # an order of an application may have changed any queue
        lambda: twin.manager._load(play.now),  # another transaction met a defect
    )[number]


@pytest.mark.rule("B-098", "B-285")
@pytest.mark.parametrize("accident", [0, 1])
def test_taken_messages_are_stored_once_after_an_accident(tmp_path: Path, accident: int) -> None:
    with FastPlay(tmp_path) as play:
        for action in ((SEND, 0, 0, 5, 0, 0, 0), ALL):
            play.act(action)
        play.act((SEND, 0, 0, 20, 0, 0, 0))
        (link, other), data = (twin.links[0] for twin in play.twins), bytes(play.waiting[0])
        assert link is not None
        assert other is not None
        assert play.twins[0].manager.fast.take(link, data, play.now, wall_at(play.now)) == b""
        assert play.twins[0].manager.fast.pending == 20
        _spoil(play, accident)()
        play.twins[0].manager.receive([], play.now, wall_at(play.now))
        play.twins[1].manager.receive([(other, data)], play.now, wall_at(play.now))
        play.waiting[0].clear()
        play.compare()
        play.act((ROOM, 0))
        play.act((SEND, 0, 0, 20, 0, 0, 0))
        play.act(ALL)
        play.act((SEND, 0, 0, 20, 0, 0, 0))
        play.act(ALL)
        assert play.fast >= 20


@pytest.mark.rule("B-098", "B-435")
def test_packets_that_come_in_pieces_stay_on_the_fast_path(tmp_path: Path) -> None:
    """Most batches end within a packet. Only a packet that does not get on closes the link."""
    with FastPlay(tmp_path) as play:
        for twin in play.twins:
            twin.manager.config.packet_timeout = 5_000
            twin.manager.config.max_half_received = 1_000
        for action in ((SEND, 0, 0, 5, 0, 0, 0), ALL):
            play.act(action)
        link = play.twins[0].links[0]
        assert link is not None
        for turn in range(12):
            play.act((SEND, 0, 0, 8, 0, 0, 0))
            play.act((DELIVER, len(play.waiting[0]) - (50 if turn % 3 < 2 else 0)))
            for action in ((TICK, 3_000), (POLL,), (TICK, 3_000 * (turn % 3 == 2)), (POLL,)):
                play.act(action)
            assert link.session.state == OPEN, turn
        assert play.fast >= 80
        for action in ((SEND, 0, 0, 1, 0, 0, 0), (DELIVER, 50), (TICK, 9_000), (POLL,)):
            play.act(action)
        assert link.session.closed is not None


@pytest.mark.rule("B-219", "B-229", "B-263")
def test_session_headers_settle_a_run_in_flight(tmp_path: Path) -> None:
    """The fast path may not count an acknowledgement that the session has to hear."""
    host, peer, now = Host(tmp_path), Peer(b"\x01" * 16, direct("line1")), START
    link, peer.session = host.manager.connect(("10.0.0.9", 1801), "10.0.0.9", now), Session(False, peer.guid, now)
    peer.session.connected(now)
    for turn in range(20):
        if turn == 10:
            assert link.slot >= 0
            with host.client() as client:
                client.send_many(Letter("DIRECT=TCP:10.0.0.9\\private$\\there", b"x") for _ in range(10))
        peer.send(b"reading")
        host.manager.poll(now, wall_at(now))
        for _, data, _ in host.manager.output():
            peer.receive(data, now)
        now += 1000 if turn >= 10 else 0  # until the peer acknowledges
        host.manager.receive(
            [(link, host.manager.fast.take(link, peer.output(now), now, wall_at(now)))], now, wall_at(now)
        )
    [queue] = host.manager.outgoing
    assert [entry.awaiting_ack for entry in queue.stream.table] == [False] * 10
    host.store.close()
