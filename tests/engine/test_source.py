"""The source's role: what OrderAcks tell of a life of the source that nobody here remembers."""

from __future__ import annotations

import pytest
from mqqb import acks, build, confirm, core, headers, lives, parse, streams
from mqqb.confirm import HOLD, final_ack, order_ack, too_late
from mqqb.streams import Entry, OutgoingStream


class Queue:
    """A queue for one destination, with one message in its stream."""

    def __init__(self, time_stamp: int, ordinal: int = 1, rolls: bool = True) -> None:
        self.stream = OutgoingStream(OutgoingStream.new(time_stamp, ordinal), rolls=rolls)
        packet = build.user_message(bytes(16), 1, acks.order_queue("h"), b"", delivery="transactional")
        entry = self.stream.number(packet, parse.transaction_offset(packet), 1, 1)
        assert entry
        self.entry = entry


class Storage:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.answers: list[tuple[Queue, list[Entry], int]] = []
        self.outrun_by: list[tuple[int, Queue | None]] = []
        self.strangers: dict[int, int] = {}
        self.late: list[tuple[int, int]] = []

    def answer(self, queue: Queue, entries: list[Entry], message_class: int) -> None:
        self.answers += [(queue, list(entries), message_class)] if entries else []

    def outrun(self, time_stamp: int, queue: Queue | None) -> None:
        self.outrun_by.append((time_stamp, queue))

    def came_late(self, message_id: int, message_class: int) -> None:
        self.late.append((message_id, message_class))


class World:
    """One source; `hear`: an OrderAck comes, from the peer of all queues."""

    def __init__(self, *queues: Queue) -> None:
        self.queues = queues
        self.storage = Storage()

    def hear(self, tx_sequence_id: int, number: int, now: int) -> list[tuple[Queue, list[Entry], int]]:
        body = streams.OrderAckBody()
        body.tx_sequence_ordinal = tx_sequence_id & 0xFFFFFFFF
        body.tx_sequence_time_stamp = tx_sequence_id >> 32
        body.tx_sequence_number = number
        self.storage.answers.clear()
        is_progress = any(queue.stream.is_progress(body) for queue in self.queues)
        assert order_ack(self.storage, body, self.queues, now) == is_progress
        if not is_progress:
            lives.explain(self.storage, body, self.queues, self.queues, now)
        return self.storage.answers


@pytest.mark.rule("B-411", "B-230")
def test_remembered_foreign_order_acks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "REMEMBERED", 100)
    queue = Queue(9)
    world = World(queue)
    queue.stream.sent(queue.entry, 100)
    world.hear(10 << 32 | 1, 1, 200)
    queue.stream.handle_timeout(30_100)
    queue.stream.sent(queue.entry, 30_100)
    for time_stamp in range(12, 112):
        assert world.hear(time_stamp << 32, 1, 30_500) == []
    assert world.hear(10 << 32 | 1, 1, 30_600) == [], "forgotten"


@pytest.mark.rule("B-426", "B-230", "B-275")
def test_each_of_300_destinations_detects_restored_store() -> None:
    """A store with as many outgoing queues was put back: each destination has gone on to a sequence of its own."""
    queues = [Queue(1000 + place) for place in range(300)]
    worlds = [World(queue) for queue in queues]
    for world in worlds:
        world.storage.strangers = worlds[0].storage.strangers
    for time, expected in ((100, []), (30_200, [0x8002])):
        for place, (queue, world) in enumerate(zip(queues, worlds, strict=True)):
            queue.stream.handle_timeout(time)
            queue.stream.sent(queue.entry, time)
            answers = world.hear(2000 + place << 32 | 1, 1, time + 50)
            assert [answer[2] for answer in answers] == expected


@pytest.mark.rule("B-230", "B-079")
def test_an_older_sequence_on_its_way_is_found_by_its_time_stamp() -> None:
    queue, other = Queue(9), Queue(30)
    queue.stream.sent(queue.entry, 100)
    queue.stream.renew(20)
    for time_stamp, expected in ((8, []), (10, []), (9, [(queue, [queue.entry], 0)])):
        assert World(other, queue).hear(time_stamp << 32 | 1, 1, 200) == expected
    assert streams.position(other.entry) == (30 << 32 | 1, 1)


@pytest.mark.rule("B-230", "B-235")
def test_order_ack_progress_counts_without_remaining_messages() -> None:
    queue, other = Queue(9), Queue(10)
    world = World(other, queue)
    queue.stream.sent(queue.entry, 100)
    assert world.hear(9 << 32 | 1, 1, 200) == [(queue, [queue.entry], 0)]
    assert queue.stream.table == []
    assert queue.stream.time_of_last_ack == 200
    expired = Queue(11, rolls=False)
    expired.stream.remove([expired.entry])
    assert World(expired).hear(11 << 32 | 1, 1, 200) == []
    assert expired.stream.record[core.OUTGOING_LAST_ACK] == 1


@pytest.mark.rule("B-426", "B-230")
def test_order_ack_ordinal_selects_refused_stream() -> None:
    """Ordinals begin anywhere: one that is far below was not drained here, one that is above was not given."""
    for ordinal in (1 << 31, 1 << 29):
        queue, other = Queue(9, ordinal=1 << 30), Queue(8)
        world = World(queue, other)
        other.stream.sent(other.entry, 100)
        queue.stream.sent(queue.entry, 100)
        assert world.hear(9 << 32 | ordinal, 1, 200) == []
        for one in (queue, other):
            one.stream.handle_timeout(30_100)
            one.stream.sent(one.entry, 30_100)
            one.stream.time_of_last_ack = 0
        expected = [queue] if ordinal > 1 << 30 else [other]
        assert [answer[0] for answer in world.hear(9 << 32 | ordinal, 1, 30_200)] == expected


@pytest.mark.rule("B-241", "B-245", "B-020")
def test_final_ack_settles_only_message_from_own_source() -> None:
    queue, other = Queue(9), Queue(10)
    storage = Storage()
    guid = bytes(range(16))

    def hear(time_stamp: int, message_id: int, source_guid: bytes = guid) -> list[tuple[Queue, list[Entry], int]]:
        packet = acks.final_ack(
            acks.order_queue("h"), bytes(16), 7, 0, 1, time_stamp, 1, 0, source_guid, message_id, 0x8003
        )
        found = parse.parse(bytes(packet))
        assert isinstance(found, headers.FinalAck)
        storage.answers.clear()
        final_ack(storage, found, guid, (other, queue), 100)
        return storage.answers

    assert hear(9, 1, bytes(16)) == []
    assert hear(9, 2) == []
    assert storage.late == [(2, 0x8003)], "the one for another queue manager is no late one"
    queue.stream.sent(queue.entry, 50)
    assert hear(9, 1) == [(queue, [queue.entry], 0x8003)]
    assert queue.stream.table == []
    assert other.stream.table == [other.entry]


@pytest.mark.rule("C-18", "C-20", "C-22", "B-311")
@pytest.mark.parametrize(
    ("ttrq", "ttbr", "until", "time", "expected"),
    [
        (50, 100, 50, 49, 0),
        (50, 100, 50, 50, confirm.STORE | confirm.DEAD_LETTER),  # its deadline acts in that second
        (200, 100, 100, 100, 0),
        (200, 100, 100, 101, HOLD),
        (200, 100, 100, 199, HOLD),
        (200, 100, 100, 200, confirm.STORE | confirm.DEAD_LETTER),
        (confirm.UNSET, 100, 60, 61, confirm.STORE | confirm.DEAD_LETTER),  # its packet has a default that was smaller
        (confirm.UNSET, 100, 60, 60, 0),
    ],
)
def test_late_message_expires_or_waits_for_its_final_ack(
    ttrq: int, ttbr: int, until: int, time: int, expected: int
) -> None:
    settings = confirm.Settings()
    process = confirm.Confirmation(confirm.new(0, settings, core.USER_JN, ttrq, ttbr), settings)
    process.sent()
    assert too_late(process, time, until) == expected


@pytest.mark.rule("B-426", "B-230")
@pytest.mark.parametrize(
    ("first", "own", "refused"), [(100, 0, False), (101, 0, True), (200, 200, True), (200, 201, False)]
)
def test_foreign_order_ack_needs_resend_and_no_own_ack_since(first: int, own: int, refused: bool) -> None:
    """first: when it comes first; sent at 100. own: when the stream has last heard of its own."""
    queue = Queue(9)
    world = World(queue)
    queue.stream.sent(queue.entry, 100)
    assert world.hear(20 << 32 | 1, 1, first) == []
    if first > 100:
        queue.stream.handle_timeout(30_100)
        queue.stream.sent(queue.entry, 30_100)
    queue.stream.time_of_last_ack = own
    assert bool(world.hear(20 << 32 | 1, 1, 30_200)) == refused


@pytest.mark.rule("B-411", "B-230")
def test_as_many_are_remembered_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "REMEMBERED", 1)
    queue = Queue(9)
    world = World(queue)
    queue.stream.sent(queue.entry, 100)
    world.hear(20 << 32 | 1, 1, 200)
    queue.stream.handle_timeout(30_100)
    queue.stream.sent(queue.entry, 30_100)
    assert world.hear(20 << 32 | 1, 1, 30_200) == [(queue, [queue.entry], 0x8002)]


@pytest.mark.rule("B-413", "B-426", "B-230")
def test_order_ack_for_unused_number_puts_lower_ones_in_doubt() -> None:
    """A virtual machine was put back while it ran: the other life has given this number, and perhaps ours too."""
    queue = Queue(9)
    world = World(queue)
    assert world.hear(9 << 32 | 1, 2, 200) == [(queue, [queue.entry], 0x8002)]
    assert world.storage.outrun_by == [(9, queue)]


def seen_before(acked: int, *queues: Queue) -> World:
    """A world in which this OrderAck came before the last resend of all queues."""
    world = World(*queues)
    world.storage.strangers[acked] = 0
    for queue in queues:
        queue.stream.sent(queue.entry, 100)
    return world


@pytest.mark.rule("B-230", "B-096", "A-04")
@pytest.mark.parametrize(("behind", "tells"), [(0, False), (1, False), ((1 << 20) - 1, False), (1 << 20, True)])
def test_late_order_ack_for_drained_stream_ignores_other_streams(behind: int, tells: bool) -> None:
    """behind: how far its ordinal is below that of the stream, which rises by one when it has drained (B-096)."""
    drained, other = Queue(9, ordinal=1 << 30), Queue(8)
    drained.stream.remove([drained.entry])
    acked = drained.stream.tx_sequence_id - behind
    world = seen_before(acked, drained, other)
    assert world.hear(acked, 1, 200) == ([(other, [other.entry], 0x8002)] if tells else [])


@pytest.mark.rule("B-230", "B-235", "B-426")
def test_order_ack_settling_own_stream_refuses_no_other() -> None:
    for number, expected in ((1, 0), (0, None)):
        queue, other = Queue(9), Queue(8)
        queue.stream.renew(30)
        acked = 9 << 32 | 1
        world = seen_before(acked, queue, other)
        answers = world.hear(acked, number, 200)
        assert answers == (
            [(queue, [queue.entry], expected)] if expected is not None else [(other, [other.entry], 0x8002)]
        )
    queue, other = Queue(9), Queue(8)
    queue.stream.renew(10)
    queue.stream.renew(11)
    acked = 10 << 32 | 1  # another life has sent that sequence, which is older than the current one
    queue.stream.append(Entry(2, 2, True, False, 10 << 32 | 1, 5))
    world = seen_before(acked, queue, other)
    assert world.hear(acked, 1, 200) == [(queue, [queue.entry], 0x8002)]


@pytest.mark.rule("B-230", "B-426")
def test_refusal_skips_stream_without_pending_messages() -> None:
    for express in (False, True):
        empty, other = Queue(9), Queue(8)
        empty.stream.remove([empty.entry])
        if express:
            empty.stream.append(Entry(2, 2))
        acked = 9 << 32 | 1 << 31
        world = seen_before(acked, empty, other)
        assert world.hear(acked, 1, 200) == [(other, [other.entry], 0x8002)]
        assert world.storage.outrun_by == [(9, empty), (9, other)]


def test_hold_is_distinct_from_confirmation_actions() -> None:
    actions = confirm.STORE | confirm.JOURNAL | confirm.DEAD_LETTER | confirm.DELETE | confirm.NACK | confirm.LOG
    assert HOLD & ~actions & 0xFF == HOLD
    assert HOLD != 0
