"""Starts that skip what they need not read: how much they read, and what becomes of damage that they do not see."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator
from typing import Any

import power
import pytest
from mqqb import confirm
from node_board import Board
from ordack.node import deferred, log, outbox, replay

LINE, ALARMS = power.NAMES
SEGMENT = 16384
HEADER = 250
"""Bytes that a start reads of a segment that it skips, at most: its header, by pieces."""
FLAGS = log.TRANSACTIONAL | log.RECOVERABLE


class Counting(power.Disk):
    """`read`: bytes that were read."""

    read = 0

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        count: int = super().read_into(name, offset, buffer)
        self.read += count
        return count


def put(box: Any, body: bytes, name: str = LINE, defer: bool = True) -> None:
    """Accept a message; not durable yet. It stays on the flash only."""
    queue = box.queue(name)
    counters = array("I", queue.record)
    counters[2] += 1
    handle = log.Stored(box.next_message_id, confirm.new(1, power.CONFIRMATION))
    box.append(handle, queue, FLAGS, counters, body, defer or queue.deferred > 0)


def started(disk: Any, hold: int, segment_size: int = SEGMENT) -> Any:
    return outbox.Outbox(disk, power.GUID, segment_size, 1 << 24, hold)


def least(box: Any, disk: Counting, hold: int) -> int:
    """So many bytes a start may read: headers, a segment, what was taken since its begin, what is in memory twice."""
    size = max((handle.size for handle in box.handles()), default=0) + 500
    in_memory = len(box.handles()) + box.arrivals + 4 * hold
    return HEADER * len(disk.files) + 2 * SEGMENT + size * (deferred.TAKEN_MIN + 2 * in_memory)


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "LOG_SHARE", 4)
    monkeypatch.setattr(deferred, "SEGMENT_SHARE", 1)


def test_a_start_reads_no_more_because_more_messages_wait() -> None:
    found = {}
    for count in (500, 4000):
        disk = Counting()
        box = started(disk, 20)
        for k in range(count):
            put(box, b"reading %d" % k + bytes(200), defer=k >= 20)
            if k % 50 == 49:
                box.sync()
        box.close()
        disk.read = 0
        again = started(disk, 20)
        assert (again.live, again.queue(LINE).deferred) == (count, count - 20)
        assert disk.read < least(again, disk, 20)
        found[count] = disk.read - HEADER * len(disk.files)
    print(found)
    assert found[4000] < 3 * SEGMENT


def test_a_start_reads_little_while_messages_come_and_go_slowly() -> None:
    """Two queues, each with what it sends in memory; some dead letters, and arrivals that stay."""
    dice = random.Random(1)
    disk = Counting()
    hold = 10
    box = started(disk, hold)
    kept: dict[str, list[Any]] = {LINE: [], ALARMS: []}
    dead: list[Any] = []
    most = 0
    for step in range(3000):
        name = dice.choice((LINE, LINE, LINE, ALARMS))
        queue = box.queue(name)
        while queue.deferred and len(kept[name]) < hold:
            box.sync()
            kept[name].append(box.more(queue).handle)
        for _ in range(dice.choice((0, 1, 1, 2)) if step < 1500 else 1):
            put(box, bytes(dice.randrange(100, 300)), name, len(kept[name]) >= hold)
            if not queue.deferred:
                kept[name].append(box.log.segments[-1].handles[-1])
        if kept[name] and dice.random() < (0.5 if step < 1500 else 0.9):
            box.sync()
            handle = kept[name].pop(0)
            is_dead = dice.random() < 0.01 and len(dead) < 10
            handle.record[confirm.STATE] = confirm.X if is_dead else confirm.GONE
            dead += [handle] * is_dead
            box.change([handle])
        if step % 60 == 59:
            box.sync()
            everything = replay.recover(log.Log(disk, 0, 0, 1024, None))  # type: ignore[arg-type]
            waiting = {n: box.queue(n).deferred for n in (LINE, ALARMS)}
            disk.read = 0
            box = started(disk, hold)
            most = max(most, disk.read)
            assert disk.read < least(box, disk, hold), step
            assert box.live == len(everything.restored)
            assert all(box.queue(n).deferred >= waiting[n] for n in waiting)
            ours = [restored.handle for restored in box.restored]
            dead = [handle for handle in ours if handle.record[confirm.STATE] == confirm.X]
            for n in kept:
                kept[n] = [handle for handle in ours if handle.queue.name == n and handle not in dead]
    print(len(disk.files), "files,", most, "bytes at most of", sum(len(file.data) for file in disk.files.values()))


@pytest.mark.usefixtures("skipping")
def test_what_an_earlier_start_may_have_sent_is_known_also_where_nobody_reads_that_it_did() -> None:
    disk = power.Disk()
    box = started(disk, 1, 700)
    for _ in range(20):
        put(box, bytes(40))
        box.sync()
    box.will_send()
    for _ in range(2):  # the second one begins with the snapshot of the first, which has sent nothing
        box = started(disk, 1, 700)
        assert box.may_have_been_sent(5)
        for _ in range(20):
            put(box, bytes(40))
        box.sync()
        box.begin()


# ---- damage -----------------------------------------------------------------------------------------


def filled() -> Any:
    """A disk with several segments: two queues, of each a message in memory and others on the flash only."""
    disk = power.Disk()
    box = started(disk, 1, 700)
    for k in range(24):
        put(box, b"%d:" % k + bytes(40), (LINE, ALARMS)[k % 3 == 2], k > 2)
        box.sync()
    queue = box.queue(LINE)
    box.change([gone(box.find(queue, 10))])
    put(box, b"24:" + bytes(40))
    box.sync()
    box.begin()
    assert len(disk.files) > 5
    return disk


def gone(restored: Any) -> Any:
    """The handle of a message that nobody needs any more."""
    handle = getattr(restored, "handle", restored)
    handle.record[confirm.STATE] = confirm.GONE
    return handle


def all_of(box: Any) -> dict[int, bytes]:
    """All messages of an outbox in the order of each queue, taken from the flash when their turn comes."""
    found = [restored.handle for restored in box.restored]
    for queue in box.queues:
        while queue.deferred:
            restored = box.more(queue)
            if restored is not None:
                found.append(restored.handle)
    for name in (LINE, ALARMS):
        ids = [handle.message_id for handle in found if handle.queue.name == name]
        assert ids == sorted(ids), "out of order"
    assert box.live == len(found)
    return {handle.message_id: bytes(box.log.load(handle)) for handle in found}


def segments_of(disk: Any) -> Iterator[tuple[str, int, list[tuple[int, int, int]]]]:
    """Of each file its name, bytes of its header, and its records: type, begin, end."""
    for name, file in sorted(disk.files.items()):
        data = bytes(file.data)
        base = at = struct.unpack_from("<I", data, 8)[0]
        records = []
        while at < len(data):
            word = struct.unpack_from("<I", data, at + 4)[0]
            records.append((word & 0xFF & ~log.AFTER_SYNC, at, at + 8 + (word >> 8)))
            at = records[-1][2]
        yield name, base, records


@pytest.mark.usefixtures("skipping")
def test_a_changed_byte_anywhere_in_what_a_start_skips_is_read_as_it_was_when_its_turn_comes() -> None:
    disk = filled()
    expected = all_of(started(disk.after_cut(power.KEEP_ALL, power.Dice(1)), 1, 700))
    assert len(expected) == 24
    told = 0
    for name, _, records in segments_of(disk):
        for place in range(0, len(disk.files[name].data), 7):
            state = disk.after_cut(power.KEEP_ALL, power.Dice(1))
            state.files[name].data[place] ^= 1 << place % 8 if place % 3 else 0xA5
            box = started(state, 1, 700)
            before = len(box.damage)
            assert all_of(box) == expected, (name, place)
            told += len(box.damage) > before
            of = [kind for kind, begin, end in records if begin <= place < end]
            if of in ([], [log.MESSAGE]):
                assert [line for line in box.damage if line.startswith(name)], (name, place)
    print(told, "told at their turn")
    assert told > 60


@pytest.mark.usefixtures("skipping")
def test_what_is_broken_worse_in_what_a_start_skips_costs_the_record_that_was_hit() -> None:
    disk = filled()
    clean = started(disk.after_cut(power.KEEP_ALL, power.Dice(1)), 1, 700)
    next_id = clean.next_message_id
    expected = all_of(clean)
    lost = 0
    for name, base, records in segments_of(disk):
        for place in range(base, len(disk.files[name].data), 7):
            state = disk.after_cut(power.KEEP_ALL, power.Dice(1))
            data = state.files[name].data
            hit, stop = next(((kind, begin), end) for kind, begin, end in records if begin <= place < end)
            data[place] ^= 0xA5
            data[place + 1 if place + 1 < stop else place - 1] ^= 0xA5
            box = started(state, 1, 700)
            assert box.next_message_id >= next_id, "a number would be used again"
            found = all_of(box)
            missing = sorted(set(expected) - set(found))
            if hit[0] == log.MESSAGE:
                (number,) = struct.unpack_from("<I", disk.files[name].data, hit[1] + 12)
                assert missing in ([], [number]), (name, place)
                if missing:
                    lost += 1
                    assert any(f"message {number} " in line for line in box.damage), box.damage
            else:
                assert missing == [], (name, place, hit)
            extra = set(found) - set(expected)  # of which the end cannot be read
            assert extra <= ({10} if hit[0] == log.OUT_OF_TURN else set()), (name, place, hit)
            assert all(found[number] == expected[number] for number in set(found) & set(expected)), "a changed one"
            put(box, b"new")
            box.sync()
            assert all_of(started(state, 1, 700)) == {**found, box.next_message_id - 1: b"new"}
    print(lost, "lost")
    assert lost > 60


@pytest.mark.usefixtures("skipping")
def test_who_asks_for_a_message_that_cannot_be_read_at_its_turn_is_told_and_the_others_go_on() -> None:
    board = Board(hold=2, segment_size=900, capacity=100000)
    messages = [board.queue.put(b"%d" % k) for k in range(12)]
    board.node.commit_now()
    name = sorted(board.disk.files)[2]
    records = next(records for one, _, records in segments_of(board.disk) if one == name)
    begin = next(begin for kind, begin, _ in records if kind == log.MESSAGE)
    board.disk.files[name].data[begin + 60 : begin + 70] = b"0123456789"
    (number,) = struct.unpack_from("<I", board.disk.files[name].data, begin + 12)
    hit = next(message for message in messages if message.message_id == number)
    assert not hit.is_settled()
    assert board.node.waiting == 12
    while board.node.waiting:
        board.node.backlog.refill()
        board.store()
    assert [message.is_stored() for message in messages if message is not hit] == [True] * 11
    assert "cannot be read" in str(hit.failure)
    assert f"message {number} cannot be read" in board.node.damage[-1]


@pytest.mark.usefixtures("skipping")
@pytest.mark.parametrize("taken", [1, 8])
def test_what_cannot_be_read_is_not_counted_by_the_starts_that_follow(taken: int) -> None:
    """taken: so many messages before the next segment begins; the damage is found with the eighth, in two files."""
    disk = power.Disk()
    box = started(disk, 1, 700)
    for k in range(40):
        put(box, b"%d:" % k + bytes(40), defer=k > 0)
        box.sync()
    box.begin()
    for name, _, records in list(segments_of(disk))[1:4:2]:
        begin = [begin for kind, begin, _ in records if kind == log.MESSAGE][2]
        disk.files[name].data[begin + 20 : begin + 30] = b"0123456789"
    box = started(disk, 1, 700)
    for _ in range(taken):
        box.change([gone(box.more(box.queue(LINE)))])
    for body in (b"new", b"newer"):
        put(box, body, defer=True)
        box.begin()
    everything = replay.recover(log.Log(disk, 0, 0, 1024, None)).restored  # type: ignore[arg-type]
    again = started(disk, 1, 700)
    found = [handle.message_id for handle in again.handles()]
    again.change([gone(handle) for handle in again.handles()])
    while again.queue(LINE).deferred:
        restored = again.more(again.queue(LINE))
        if restored is not None:
            found.append(restored.handle.message_id)
            again.change([gone(restored)])  # so that files go
    assert found == [restored.handle.message_id for restored in everything]
    assert len(found) == 42 - taken - 2


# ---- which snapshot is used -------------------------------------------------------------------------


@pytest.mark.usefixtures("skipping")
def test_a_start_with_much_less_memory_than_the_one_before_reads_everything() -> None:
    disk = Counting()
    box = started(disk, 50, 2000)
    for k in range(200):
        put(box, b"%d:" % k + bytes(40), defer=k >= 50)
        box.sync()
    box.begin()
    box.close()
    whole = sum(len(file.data) for file in disk.files.values())
    for hold, reads_all in ((50, False), (5, True), (20, False)):
        disk.read = 0
        again = started(disk, hold, 2000)
        assert again.live == 200
        assert (disk.read > whole) == reads_all, hold
        assert again.queue(LINE).deferred == (195 if reads_all else 150)
