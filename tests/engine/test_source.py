"""The source's role: what OrderAcks tell of a life of the source that nobody here remembers."""

from __future__ import annotations

import pytest
from mqqb import acks, build, lives, parse, reader, streams
from mqqb.source import order_ack
from mqqb.streams import Entry, OutgoingStream


class Queue:
    """A queue for one destination, with one message in its stream."""

    def __init__(self, time_stamp: int) -> None:
        self.stream = OutgoingStream(OutgoingStream.new(time_stamp))
        packet = build.user_message(bytes(16), 1, acks.order_queue("h"), b"", delivery="transactional")
        entry = self.stream.number(packet, parse.transaction_offset(packet), 1, 1)
        assert entry
        self.entry = entry


class Storage:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.answers: list[tuple[Queue, list[Entry], int]] = []
        self.outrun_by: list[int] = []
        self.strangers: dict[int, int] = {}

    def answer(self, queue: Queue, entries: list[Entry], message_class: int) -> None:
        self.answers += [(queue, list(entries), message_class)] if entries else []

    def outrun(self, time_stamp: int, _queue: Queue | None) -> None:
        self.outrun_by.append(time_stamp)

    def came_late(self, message_id: int, message_class: int) -> None:
        raise AssertionError


class World:
    """One source; `hear`: an OrderAck comes, from the peer of all queues."""

    def __init__(self, *queues: Queue) -> None:
        self.queues = queues
        self.storage = Storage()

    def hear(self, tx_sequence_id: int, number: int, now: int) -> list[tuple[Queue, list[Entry], int]]:
        body = reader.OrderAckBody()
        body.tx_sequence_ordinal = tx_sequence_id & 0xFFFFFFFF
        body.tx_sequence_time_stamp = tx_sequence_id >> 32
        body.tx_sequence_number = number
        self.storage.answers.clear()
        order_ack(self.storage, body, self.queues, self.queues, now)
        return self.storage.answers


@pytest.mark.rule("B-230", "A-04")
def test_an_order_ack_of_a_sequence_that_nobody_began_here_proves_nothing_until_it_comes_again_after_a_resend() -> None:
    queue = Queue(9)
    stream = queue.stream
    world = World(queue)
    assert world.hear(20 << 32 | 1, 1, 0) == [], "nothing was sent yet"
    stream.sent(queue.entry, 100)
    assert world.hear(10 << 32 | 1, 1, 200) == [], "it may be late"
    assert world.hear(10 << 32 | 1, 1, 29_000) == [], "and be late twice"
    stream.handle_timeout(30_100)
    stream.sent(queue.entry, 30_100)
    assert world.hear(11 << 32 | 1, 1, 30_200) == [], "another one is late"
    assert world.hear(8 << 32 | 1, 1, 300) == []
    assert world.hear(8 << 32 | 1, 1, 30_300) == [], "what is older refuses nothing"
    stream.time_of_last_ack = 30_250
    assert world.hear(10 << 32 | 1, 1, 30_400) == [], "it has heard of its own since"
    stream.time_of_last_ack = 0
    assert world.hear(10 << 32 | 1, 1, 30_500) == [(queue, [queue.entry], 0x8002)]
    assert stream.table == []
    assert stream.next_timeout() is None
    assert set(world.storage.outrun_by) == {8, 10, 11, 20}


@pytest.mark.rule("B-411", "B-230")
def test_of_order_acks_that_anybody_can_send_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_each_of_300_destinations_tells_of_a_life_that_is_lost() -> None:
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


@pytest.mark.rule("B-230", "B-093", "B-426")
def test_one_of_the_current_sequence_says_that_an_older_one_which_waits_is_over() -> None:
    """Nothing of the current one was sent here (B-093): another life has sent it, and drained the older one before."""
    queue = Queue(9)
    stream = queue.stream
    older = queue.entry
    stream.renew(10)
    packet = build.user_message(bytes(16), 2, acks.order_queue("h"), b"", delivery="transactional")
    newer = stream.number(packet, parse.transaction_offset(packet), 2, 2)
    world = World(queue)
    stream.sent(older, 100)
    assert world.hear(10 << 32 | 1, 1, 200) == [(queue, [older], 0x8002), (queue, [newer], 0)]
    assert world.storage.outrun_by == []


@pytest.mark.rule("B-230", "B-012")
def test_one_of_the_sequence_zero_covers_no_message_without_a_number() -> None:
    """Anybody can send it (B-411)."""
    queue = Queue(0)
    queue.stream.remove([queue.entry])
    express = Entry(2, 2)
    queue.stream.append(express)
    assert World(queue).hear(0, 5, 100) == []
    assert queue.stream.table == [express]


@pytest.mark.rule("B-230", "B-079")
def test_an_older_sequence_on_its_way_is_found_by_its_time_stamp() -> None:
    queue, other = Queue(9), Queue(30)
    queue.stream.sent(queue.entry, 100)
    queue.stream.renew(20)
    for time_stamp, expected in ((8, []), (10, []), (9, [(queue, [queue.entry], 0)])):
        assert World(other, queue).hear(time_stamp << 32 | 1, 1, 200) == expected
    assert streams.position(other.entry) == (30 << 32 | 1, 1)
