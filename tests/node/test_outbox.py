"""The outbox: thousands of power cuts, failing disks, damage that is told from a torn tail, the format on the disk."""

from __future__ import annotations

import binascii
import errno
import re
import struct
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import power
import pytest
import test_outbox as boards
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqqb import confirm, core
from ordack.node.storage import log, outbox, sources

from tests import run_mp

LINE, ALARMS = power.NAMES
FLAGS = log.TRANSACTIONAL | log.RECOVERABLE


def record_of(journal: int = 0) -> array[int]:
    return confirm.new(1, power.CONFIRMATION, journal)


@pytest.mark.parametrize("test", boards.TESTS, ids=lambda test: str(test.__name__))
def test_as_on_boards(test: Callable[[], None]) -> None:
    test()


@pytest.mark.rule("B-054", "B-056", "B-057", "B-072", "B-079", "B-093", "B-096", "B-098", "B-158", "B-301", "A-08")
@pytest.mark.parametrize(
    ("seed", "actions", "stride", "hold", "least"),
    [(1, 46, 29, 100, 900), (2, 14, 3, 100, 600), (4, 20, 61, 2, 250), (5, 26, 97, 1, 150)],
)
def test_a_cut_at_every_byte_of_a_workload_loses_nothing_and_repeats_no_number(
    seed: int, actions: int, stride: int, hold: int, least: int
) -> None:
    start = time.perf_counter()
    cuts = power.every_cut(seed, actions, stride=stride, hold=hold)
    print(cuts, "cuts,", round(cuts / (time.perf_counter() - start)), "a second")
    assert cuts > least


@pytest.mark.rule("B-072", "B-098", "B-158", "A-08")
@given(
    seed=st.integers(1, 2**32 - 1),
    small=st.booleans(),
    segment_size=st.integers(150, 2000),
    hold=st.sampled_from((1, 2, 5, 100)),
)
@example(seed=1491429946, small=True, segment_size=1563, hold=100)  # a file that could not be removed filled the outbox
@example(seed=8131, small=True, segment_size=284, hold=100)  # half a record behind one that is whole only as mended
@settings(max_examples=40)
def test_lives_of_cuts_and_errors(seed: int, small: bool, segment_size: int, hold: int) -> None:
    power.many_lives(seed, 12, capacity=3000 if small else 100000, segment_size=segment_size, hold=hold)


def test_large_messages_are_cut_too() -> None:
    assert power.every_cut(3, 12, stride=53, sizes=(0, 700, 3000), segment_size=4000) > 200


# ---- errors of the file system ---------------------------------------------------------------------


def failing(step: str, part: int = 0) -> Callable[[Any, str, bytes], None]:
    """A hook that makes one kind of change fail, an append after `part` of its bytes."""

    def before(disk: Any, what: str, data: bytes) -> None:
        if what == step:
            if step == "append":
                disk.tail.data += data[:part]
            raise OSError(errno.ENOSPC, "no space")

    return before


@pytest.mark.parametrize("step", ["append", "sync"])
def test_numbers_that_an_error_took_back_are_used_by_the_next_message_also_after_a_restart(step: str) -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    power.put(box, b"first")
    disk.before = failing(step, 40)
    with pytest.raises(log.OutboxWriteFailed, match="then send again") as caught:
        power.put(box, b"second")
    assert caught.value.errno == errno.ENOSPC
    assert box.next_message_id == 2
    assert box.queue(LINE).record[2] == 2
    disk.before = None
    box.sync()
    power.put(box, b"instead")
    for how in (power.KEEP_ALL, power.KEEP_SYNCED):
        again = outbox.Outbox(disk.after_cut(how, power.Dice(1)))
        assert power.bodies(again) == [b"first", b"instead"]
        assert again.next_message_id == 3
        assert list(again.queue(LINE).record) == [1, 256, 3, 0]


class Scarce:
    """Memory that fails once, at the k-th attempt to take some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        for place, name in (
            (log, "crc32"),
            (log.core, "copy"),
            (log.core, "copy_words"),
            (log.core, "put_crc"),
            (log.core, "put_words"),
            (log, "following"),
            (log, "file_name"),
            (log.struct, "pack_into"),
            (log.struct, "unpack_from"),
            (log.Log, "_grow"),
            (power.Disk, "append"),
            (power.Disk, "begin"),
            (power.Disk, "read_into"),
            (power.Disk, "sync"),
        ):
            monkeypatch.setattr(place, name, self._failing(getattr(place, name)))

    def take(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise MemoryError

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def attempt(*arguments: Any) -> Any:
            self.take()
            return call(*arguments)

        return attempt


class ScarceList(list[Any]):
    """A list that grows by memory that may fail."""

    memory: Scarce

    def append(self, one: Any) -> None:
        self.memory.take()
        super().append(one)


def counts(box: Any, source: Any) -> tuple[Any, ...]:
    """What want of memory must leave as it was."""
    numbers = (box.next_message_id, box.next_arrival)
    return *numbers, list(source.record), list(source.noted), box.live, box.arrivals


@pytest.mark.parametrize("arriving", [False, True])
@pytest.mark.parametrize("size", [10, 1500])
@pytest.mark.parametrize("case", ["more", "first", "compact"])
def test_want_of_memory_loses_nothing_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, arriving: bool, size: int, case: str
) -> None:
    """Wherever append or arrive runs out of memory: all of it has happened or nothing."""
    memory = Scarce(monkeypatch)
    ScarceList.memory = memory
    failed = 0
    for k in range(1, 1000):
        memory.left = 0
        disk = power.Disk()
        small = case == "compact"
        box = outbox.Outbox(disk, power.GUID, segment_size=1000, capacity=8000 if small else 100000)
        sent: list[bytes] = []
        come_in: list[tuple[str, bytes]] = []
        if case != "first":
            power.put(box, b"put")
            sent.append(b"put")
            come(box, b"came")
            come_in.append(("commands", b"came"))
            box.sync()
        while small and box.log.size + box.log.segment_size + size + 100 < box.log.capacity:
            power.end(box, [power.put(box, bytes(200))])
        queue = box.queue(LINE)
        source = box.source(PEER, "commands")
        earlier = log.Stored(box.next_message_id, record_of())
        counters = array("I", queue.record)
        counters[2] += 1
        box.append(earlier, queue, FLAGS, counters, b"earlier")  # of the same batch
        before = counts(box, source)
        box._unsynced = ScarceList(box._unsynced)
        for register in (box._queues, box._sources):
            register._touched = ScarceList(register._touched)
        box.log.segments = ScarceList(box.log.segments)
        for segment in box.log.segments:
            segment.handles = ScarceList(segment.handles)
        handle: Any = log.Stored(box.next_message_id, record_of())
        if arriving:
            record = record_of()
            record[confirm.STATE] = log.RECEIVED
            handle = sources.Arrival(box.next_arrival, record, source)
            source.record[0] = 1
            source.record[2] += 1
        else:
            counters[2] += 1
        body = b"now" + bytes(size)
        memory.left = k
        try:
            if arriving:
                box.arrive(handle, source, body)
            else:
                box.append(handle, queue, FLAGS, counters, body)
        except MemoryError:
            failed = k
            assert handle.segment is None
            assert before == counts(box, source)
        done = memory.left > 0
        memory.left = 0
        try:
            box.sync()
        except log.OutboxWriteFailed:
            assert not done
        if earlier.segment is not None:
            sent.append(b"earlier")
        if done:
            assert handle.segment is not None
            if arriving:
                come_in.append(("commands", body))
            else:
                sent.append(body)
        power.put(box, b"after")
        sent.append(b"after")
        come(box, b"after")
        come_in.append(("commands", b"after"))
        assert box.sync() is True
        assert (box.live, box.arrivals) == (len(sent), len(come_in))
        for how in (power.KEEP_ALL, power.KEEP_SYNCED):
            again = outbox.Outbox(disk.after_cut(how, power.Dice(1)))
            assert power.bodies(again) == sent
            assert arrived(again) == come_in
            assert [restored.handle.message_id for restored in again.restored][-1] + 1 == again.next_message_id
            assert (again.queue(LINE).record[2], again.source(PEER, "commands").record[2]) == (
                box.queue(LINE).record[2],
                box.source(PEER, "commands").record[2],
            )
            places = [restored.tx_sequence_number for restored in again.restored]
            assert len(places) == len(set(places))
        if done:
            break
    assert done
    assert failed >= 9


def test_a_write_that_fails_takes_with_it_what_was_not_durable_before() -> None:
    """A sync of a file of LittleFS in which a write has failed does nothing, and says that all is well."""
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, write_bytes=520)

    def fails(disk: Any, what: str, data: bytes) -> None:
        if what == "append" and len(data) > 1000:
            disk.tail.unreliable = True
            raise OSError(errno.ENOSPC, "full")

    disk.before = fails
    queue = box.queue(LINE)
    counters = array("I", queue.record)
    counters[2] += 1
    before = log.Stored(1, record_of())
    box.append(before, queue, FLAGS, counters, b"of the same batch")
    counters[2] += 1
    with pytest.raises(log.OutboxWriteFailed):
        box.append(log.Stored(2, record_of()), queue, FLAGS, counters, bytes(2000))
    box.sync()
    accepted = [b"of the same batch"] if before.segment is not None else []
    assert power.bodies(outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))) == accepted
    assert (accepted, box.next_message_id) == ([], 1), "it is refused, too"
    power.put(box, b"after")
    assert power.bodies(outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))) == [b"after"]


def test_an_interrupted_write_is_not_built_upon() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    power.put(box, b"first")

    def interrupt(disk: Any, what: str, data: bytes) -> None:
        if what == "append":
            disk.tail.data += data[:5]
            raise KeyboardInterrupt

    disk.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        power.put(box, b"second")
    disk.before = None
    with pytest.raises(log.OutboxWriteFailed):  # nobody knows what became of the second
        power.put(box, b"third")
    assert box.next_message_id == 2
    power.put(box, b"third")
    assert power.bodies(outbox.Outbox(disk)) == [b"first", b"third"]


def test_a_file_that_cannot_be_removed_does_no_harm() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=300)
    handles = [power.put(box, bytes(100)) for _ in range(8)]
    disk.before = failing("remove")
    power.end(box, handles)
    box.sync()
    assert len(disk.files) > 1
    power.put(box, bytes(250))
    again = outbox.Outbox(disk, segment_size=300)
    assert [restored.handle.message_id for restored in again.restored] == [9]
    disk.before = None
    power.end(again, [restored.handle for restored in again.restored])
    power.put(again, b"")
    assert len(disk.files) <= 2


def test_the_capacity_bounds_what_is_written() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=1000, capacity=5000)
    handles = []
    with pytest.raises(log.OutboxFull, match="of 5000 bytes are in use"):
        handles.extend([power.put(box, bytes(200)) for _ in range(100)])
    assert 4700 < box.log.size <= 5000
    written = box.log.bytes_written
    for _ in range(10):
        with pytest.raises(log.OutboxFull):
            power.put(box, bytes(200))
    assert box.log.bytes_written == written, "refusing does not wear the flash"
    live = outbox.Outbox(disk, capacity=5000)
    power.end(live, [restored.handle for restored in live.restored])
    power.put(live, bytes(4000))
    assert live.log.size <= 5000


def test_a_capacity_of_no_more_than_a_segment_goes_round() -> None:
    box = outbox.Outbox(power.Disk(), power.GUID, segment_size=65536, capacity=65536)
    handles = [power.put(box, bytes(1000)) for _ in range(3)]
    for _ in range(300):
        power.end(box, handles[:1])
        handles = [*handles[1:], power.put(box, bytes(1000))]


# ---- what is on the disk ----------------------------------------------------------------------------


def test_the_format_is_the_documented_one() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    first = power.put(box, b"reading")
    box.will_send()
    first.record[confirm.STATE] = ord("X")
    first.record[confirm.CLASS] = 0x8003
    first.record[confirm.SENT_TIME] = 1700000000
    box.change([first], with_time=True)
    box.sync()
    name = LINE.encode()
    header = struct.pack("<4sHHIIIIIIIIHH16s", b"ORDK", 1, 0, 64, 1, 1, 0, 1, 1, 0, 1, 0, 0, power.GUID)
    seed = binascii.crc32(header)

    def record(kind: int, payload: bytes) -> bytes:
        word = struct.pack("<I", kind | len(payload) << 8)
        return struct.pack("<I", binascii.crc32(word + payload, seed)) + word + payload

    confirmation = struct.pack("<BBHIII", ord("Q"), 0, 0, 1, 0xFFFFFFFF, 0xFFFFFFFF)
    assert bytes(disk.files["00000001.log"].data) == (
        header
        + struct.pack("<I", seed)
        + record(0xBB, struct.pack("<HIIIII", 0, 1, 256, 1, 0, 0) + name[7:])
        + record(0xB1, struct.pack("<HHIIIII", 0, 3, 1, 1, 256, 2, 0) + confirmation + b"reading")
        + record(0xBC, struct.pack("<II", 1, 1))
        + record(0xBA, struct.pack("<BBHIHI", ord("X"), 0, 0x8003, 1700000000, 0, 1))
    )


def test_a_folder_of_another_board_or_another_format_is_refused_and_left_alone() -> None:
    disk = power.Disk()
    outbox.Outbox(disk, power.GUID)
    with pytest.raises(log.OutboxError, match="another board"):
        outbox.Outbox(disk, bytes(16))
    newer = bytearray(disk.files["00000001.log"].data)
    newer[4] = 2
    smaller = struct.pack("<4sHHIIIIII16s", b"ORDK", 0, 0, 52, 1, 1, 0, 1, 0, power.GUID)
    for header, version in ((newer[:-4], 2), (smaller, 0)):
        data = bytearray(header + struct.pack("<I", binascii.crc32(header)))
        disk.files["00000001.log"].data = bytearray(data)
        with pytest.raises(log.OutboxError, match=f"version {version}, .*empty the folder"):
            outbox.Outbox(disk)
        assert disk.files["00000001.log"].data == data


def test_a_missing_or_shortened_file_is_reported() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=300)
    for _ in range(10):
        power.put(box, bytes(100))
    names = sorted(disk.files)
    assert len(names) > 3
    for name in names[1:-1]:
        whole = disk.files[name].data
        disk.files[name].data = whole[:-1]
        with pytest.raises(log.OutboxDamaged, match="cut short") as caught:
            outbox.Outbox(disk)
        assert caught.value.name == name
        disk.files[name].data = bytearray(10)
        with pytest.raises(log.OutboxDamaged, match="header is broken"):
            outbox.Outbox(disk)
        file = disk.files.pop(name)
        with pytest.raises(log.OutboxDamaged, match="missing"):
            outbox.Outbox(disk)
        file.data = whole
        disk.files[name] = file
    assert len(outbox.Outbox(disk).restored) == 10


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("mine")
    (tmp_path / "readme-x.log").write_text("mine, too")
    box = outbox.Outbox(log.Files(str(tmp_path)))
    power.put(box, b"reading")
    box.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001.log", "lock", "notes.log", "readme-x.log"]


# ---- counters ---------------------------------------------------------------------------------------


@pytest.mark.rule("B-020", "A-46")
def test_message_ids_roll_over_and_leave_out_0() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    box.next_message_id = 0xFFFFFFFE
    ids = [power.put(box, b"").message_id for _ in range(3)]
    assert ids == [0xFFFFFFFE, 0xFFFFFFFF, 1]
    again = outbox.Outbox(disk)
    assert again.next_message_id == 2
    assert [restored.handle.message_id for restored in again.restored] == ids, "in the order of the log"


@pytest.mark.rule("B-056", "B-079", "A-21", "A-22")
def test_every_stream_has_a_time_stamp_of_its_own_that_never_comes_again() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    power.put(box, b"", LINE)
    assert box.queue(LINE).record[1] == 256
    power.put(box, b"", ALARMS)
    assert box.queue(ALARMS).record[1] == 257
    again = outbox.Outbox(disk)
    assert [list(again.queue(name).record) for name in (LINE, ALARMS)] == [[1, 256, 2, 0], [1, 257, 2, 0]]
    assert again.queue("DIRECT=OS:third\\q").record[1] == 512
    assert again.queue("DIRECT=OS:fourth\\q", 1800000000).record[1] == 1800000000
    assert again.queue("DIRECT=OS:fifth\\q", 5).record[1] == 1800000001
    assert again.queue("DIRECT=OS:sixth\\q").record[1] == 1800000002
    with pytest.raises(ValueError, match="at most 486 bytes"):
        again.queue("DIRECT=OS:" + "x" * 480)


@pytest.mark.rule("A-22", "B-079", "B-426")
def test_starts_are_counted_and_lift_the_time_stamps_of_a_board_without_a_clock() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    assert box.starts == 1
    power.put(box, b"")
    copy = disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
    stamps = []
    for start in (2, 3, 4):
        box = outbox.Outbox(disk)
        assert box.starts == start
        stamps += [box.time_stamp(), box.time_stamp()]
        power.put(box, b"")
    assert stamps == sorted(set(stamps))
    assert outbox.Outbox(copy).time_stamp() in stamps, "a restored copy cannot know by itself"


# ---- the confirmation ---------------------------------------------------------------------------------


def change(box: Any, handle: Any, state: str) -> None:
    handle.record[confirm.STATE] = ord(state)
    box.change([handle])


@pytest.mark.rule("C-09", "C-33")
@pytest.mark.parametrize("state", "QSOJX")
@pytest.mark.parametrize("size", [0, 2000])
def test_what_is_kept_does_not_hold_back_the_files_of_what_is_gone(state: str, size: int) -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=1000, capacity=6000)
    held = power.put(box, b"held" + bytes(size), journal=core.USER_JN)
    box.will_send()
    change(box, held, state)
    left = []
    for k in range(200):
        handle = power.put(box, b"%d" % k + bytes(200))
        if k % 30:
            power.end(box, [handle])
        else:
            left.append(handle)
        assert box.log.size <= 6000
        if k == 100:
            power.end(box, left[:-1])
            del left[:-1]
    box.sync()
    again = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    bodies = power.bodies(again)
    first = power.take_back(again, again.queues[0], 1) if state == "O" else again.restored[0]
    assert (first.handle.message_id, first.tx_sequence_number) == (1, 1)
    assert chr(first.handle.record[confirm.STATE]) == state
    assert again.log.load(first.handle) == b"held" + bytes(size)
    assert bodies[-len(left) :] == [bytes(box.log.load(handle)) for handle in left]
    assert again.live == len(left) + 1
    assert box.log.bytes_written < 4 * 200 * 300


@pytest.mark.rule("C-32", "C-33", "C-83")
def test_only_what_may_have_been_transmitted_comes_back_as_such() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    power.put(box, b"1")
    box.will_send()
    power.put(box, b"2")
    for body, sends in ((b"3", False), (b"4", True), (b"5", False)):
        disk = disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
        box = outbox.Outbox(disk)
        power.put(box, body)
        if sends:
            box.will_send()
            written = box.log.bytes_written
            box.will_send()
            assert box.log.bytes_written == written, "once in a start"
    again = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert [restored.sent for restored in again.restored] == [True, True, True, True, False]


# ---- what was received ----------------------------------------------------------------------------------

PEER = bytes(range(16, 32))


def come(box: Any, body: bytes, name: str = "commands", guid: bytes = PEER) -> Any:
    """A message arrives; not durable yet."""
    source = box.source(guid, name)
    record = record_of()
    record[confirm.STATE] = log.RECEIVED
    handle = sources.Arrival(box.next_arrival, record, source)
    for i, word in enumerate((1, 77, source.record[2] + 1, 0)):
        source.record[i] = word
    box.arrive(handle, source, body)
    return handle


def arrived(box: Any) -> list[tuple[str, bytes]]:
    return [(handle.source.name, bytes(box.log.load(handle))) for handle in box.restored_arrivals]


@pytest.mark.parametrize("step", ["append", "sync"])
def test_what_could_not_be_stored_on_arrival_does_not_count(step: str) -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    come(box, b"on")
    box.sync()
    disk.before = failing(step, 30)
    handles = [come(box, b"off"), come(box, b"5", "settings")]
    with pytest.raises(log.OutboxWriteFailed):
        box.sync()
    assert [handle.segment for handle in handles] == [None, None]
    assert [list(source.record) for source in box.sources] == [[1, 77, 1, 0], [0, 0, 0, 0]]
    assert (box.next_arrival, box.arrivals) == (2, 1)
    disk.before = None
    come(box, b"off")
    box.sync()
    for how in (power.KEEP_ALL, power.KEEP_SYNCED):
        again = outbox.Outbox(disk.after_cut(how, power.Dice(1)))
        assert arrived(again) == [("commands", b"on"), ("commands", b"off")]
        assert [list(source.record) for source in again.sources][:1] == [[1, 77, 2, 0]]


def one_taken(box: Any) -> Any:
    """The source of a message that was taken; that is not durable yet."""
    handle = come(box, b"on")
    box.sync()
    handle.record[confirm.STATE] = confirm.GONE
    box.change([handle])
    return box.sources[0]


def test_nothing_comes_back_for_a_source_that_took_the_place_of_its_own() -> None:
    """The next file begins with the new source, before it says that the old one's message is gone."""
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    one_taken(box).replace(power.GUID, "settings")
    box.begin()
    again = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert (arrived(again), again.arrivals) == ([], 0)
    assert [(one.guid, one.name, list(one.record)) for one in again.sources] == [(power.GUID, "settings", [0, 0, 0, 0])]


def test_arrivals_are_bounded_by_their_number_and_by_the_capacity_and_refused_whole() -> None:
    box = outbox.Outbox(power.Disk(), power.GUID, arrivals_max=2, capacity=2000)
    come(box, b"on")
    come(box, b"off")
    with pytest.raises(log.OutboxFull, match="2 messages received wait"):
        come(box, b"on")
    assert (box.sources[0].record[2], box.next_arrival) == (2, 3)
    power.end(box, [handle for segment in box.log.segments for handle in segment.handles])
    with pytest.raises(log.OutboxFull, match="too large"):
        come(box, bytes(2000))
    assert (box.sources[0].record[2], box.next_arrival, box.arrivals) == (2, 3, 0)
    come(box, b"on")


def test_many_sources_and_queues_fit_into_the_head_of_a_segment() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=600)
    names = ["q" + "x" * (k * 37 % 470) for k in range(1, 30)]
    for name in names:
        come(box, b"", name)
        power.put(box, b"", "DIRECT=OS:" + name[:460])
    with pytest.raises(ValueError, match="at most 470 bytes"):
        box.source(PEER, "x" * 471)
    again = outbox.Outbox(disk)
    assert [source.name for source in again.sources] == names
    assert len(again.queues) == len(box.queues)
    assert [list(queue.record) for queue in again.queues] == [list(queue.record) for queue in box.queues]


def test_numbers_of_arrivals_roll_over_in_order() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    box.next_arrival = 0xFFFFFFFE
    for body in (b"1", b"2", b"3"):
        come(box, body)
    box.sync()
    again = outbox.Outbox(disk)
    assert again.next_arrival == 2
    assert [body for _, body in arrived(again)] == [b"1", b"2", b"3"]


def test_the_records_of_arrivals_are_the_documented_ones() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    first = come(box, b"on")
    box.sync()
    power.end(box, [first])
    box.sync()
    seed = binascii.crc32(bytes(disk.files["00000001.log"].data[:60]))

    def record(kind: int, payload: bytes) -> bytes:
        word = struct.pack("<I", kind | len(payload) << 8)
        return struct.pack("<I", binascii.crc32(word + payload, seed)) + word + payload

    confirmation = struct.pack("<BBHIII", ord("R"), 0, 0, 1, 0xFFFFFFFF, 0xFFFFFFFF)
    assert bytes(disk.files["00000001.log"].data[64:]) == (
        record(0xCB, struct.pack("<HIIII16s", 0, 0, 0, 0, 0, PEER) + b"commands")
        + record(0xC1, struct.pack("<HHIIIII", 0, 0, 1, 1, 77, 1, 0) + confirmation + b"on")
        + record(0xCA, struct.pack("<BBHIHI", ord("-"), 0, 0, 0, 0, 1))
    )


# ---- files that do not grow -----------------------------------------------------------------------------


def fixed_files(folder: Path, files_max: int = 0) -> log.Files:
    files = log.Files(str(folder), fixed=True)
    files.files_max = files_max
    return files


def left_in(files: log.Files) -> list[bytes]:
    """What the next start finds."""
    box = outbox.Outbox(files, segment_size=4096, capacity=65536)
    bodies: list[bytes] = power.bodies(box)
    box.close()
    return bodies


def test_files_that_do_not_grow_are_written_over_from_where_they_ended(tmp_path: Path) -> None:
    box = outbox.Outbox(fixed_files(tmp_path), power.GUID, segment_size=4096, capacity=65536)
    power.put(box, b"first")
    box.close()
    for k in range(3):
        box = outbox.Outbox(fixed_files(tmp_path), segment_size=4096, capacity=65536)
        power.put(box, b"%d" % k)
        assert box.log.size == 4096
        box.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {"00000001.log": 4096, "lock": 0}
    assert left_in(fixed_files(tmp_path)) == [b"first", b"0", b"1", b"2"]
    grown = outbox.Outbox(log.Files(str(tmp_path)), capacity=65536)  # as after a move to another file system
    assert power.bodies(grown) == [b"first", b"0", b"1", b"2"]
    power.put(grown, b"grown")
    assert len(list(tmp_path.iterdir())) == 3
    grown.close()
    assert left_in(fixed_files(tmp_path))[-1] == b"grown"


def test_a_torn_end_of_a_file_that_does_not_grow_is_not_written_over(tmp_path: Path) -> None:
    box = outbox.Outbox(fixed_files(tmp_path), power.GUID, segment_size=4096, capacity=65536)
    power.put(box, b"first")
    box.close()
    path = tmp_path / "00000001.log"
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for place in (end, end + 40, 4095):
        path.write_bytes(whole[:place] + b"\x01" + whole[place + 1 :])
        box = outbox.Outbox(fixed_files(tmp_path), segment_size=4096, capacity=65536)
        assert power.bodies(box) == [b"first"]
        power.put(box, b"second")
        assert sorted(file.name for file in tmp_path.iterdir()) == ["00000001.log", "00000002.log", "lock"]
        box.close()
        assert left_in(fixed_files(tmp_path)) == [b"first", b"second"]
        (tmp_path / "00000002.log").unlink()


def test_the_begin_of_a_file_that_does_not_grow_may_be_torn(tmp_path: Path) -> None:
    box = outbox.Outbox(fixed_files(tmp_path), power.GUID, segment_size=4096, capacity=65536)
    power.put(box, b"first")
    box.close()
    for begin in (b"", b"ORDK", b"\xff" * 90):
        (tmp_path / "00000002.log").write_bytes(begin + bytes(4096 - len(begin)))
        box = outbox.Outbox(fixed_files(tmp_path), segment_size=4096, capacity=65536)
        assert power.bodies(box) == [b"first"]
        box.close()
        assert not (tmp_path / "00000002.log").exists()
    (tmp_path / "00000002.log").write_bytes(b"ORDK" + bytes(4000) + b"a record" + bytes(84))
    with pytest.raises(log.OutboxDamaged, match="header is broken"):
        outbox.Outbox(fixed_files(tmp_path))
    assert (tmp_path / "00000002.log").exists()


@pytest.mark.parametrize("files_max", [0, 14])
def test_files_that_do_not_grow_keep_to_the_capacity_and_to_a_folder_of_one_cluster(
    tmp_path: Path, files_max: int
) -> None:
    box = outbox.Outbox(fixed_files(tmp_path, files_max), power.GUID, segment_size=1024, capacity=40000)
    held = power.put(box, b"held" + bytes(300))
    waiting = []
    refused = most = 0
    for k in range(250):
        try:
            waiting.append(power.put(box, b"%d" % k + bytes(k * 7 % 500)))
        except log.OutboxFull:
            refused += 1
            power.end(box, waiting)
            waiting = []
        sizes = [path.stat().st_size for path in tmp_path.glob("*.log")]
        assert sum(sizes) == box.log.size <= 40000
        most = max(most, len(sizes))
    assert refused > 0
    assert most > 8
    assert most <= (files_max or 40)
    power.end(box, waiting)
    with pytest.raises(log.OutboxFull, match=r"too large|in use"):
        power.put(box, bytes(41000))
    assert bytes(box.log.load(held)) == b"held" + bytes(300)
    power.put(box, bytes(9000))
    box.close()
    again = outbox.Outbox(fixed_files(tmp_path), segment_size=1024, capacity=40000)
    assert power.bodies(again) == [b"held" + bytes(300), bytes(9000)]
    again.close()


@pytest.mark.parametrize("seed", range(1, 5))
def test_files_that_do_not_grow_keep_their_size_whatever_is_logged(tmp_path: Path, seed: int) -> None:
    dice = power.Dice(seed)
    box = outbox.Outbox(fixed_files(tmp_path), power.GUID, segment_size=4096, capacity=24576)
    kept: list[Any] = []
    received: list[Any] = []
    stored: list[tuple[str, int]] = []  # and nobody knows more
    files = set()
    for _ in range(500):
        what = dice.below(14)
        try:
            if what < 2:
                name = f"DIRECT=OS:plant\\private$\\line{dice.below(9)}"
                kept.append(power.put(box, bytes(dice.below(400)), name, core.USER_JN))
            elif what < 4:
                received.append(come(box, bytes(dice.below(400)), f"commands{dice.below(9)}"))
                box.sync()
            elif what < 10 and kept:
                handle = kept[dice.below(len(kept))]
                change(box, handle, "OSX"[dice.below(3)])
                if handle.segment is None:
                    kept.remove(handle)
                    stored.append((handle.queue.name, handle.message_id))
                box.sync()
            elif what == 10:
                while stored and dice.below(4):
                    name, message_id = stored.pop(dice.below(len(stored)))
                    kept.append(power.take_back(box, box.queue(name), message_id).handle)
                ended = [handle for handles in (kept, received) for handle in handles if dice.below(4) == 0]
                power.end(box, ended)
                kept = [handle for handle in kept if handle not in ended]
                received = [handle for handle in received if handle not in ended]
            elif what == 11:
                box.will_send()
            elif what == 12 and dice.below(4) == 0:
                box.close()
                box = outbox.Outbox(fixed_files(tmp_path), segment_size=4096, capacity=24576)
                kept = [restored.handle for restored in box.restored]
                received = list(box.restored_arrivals)
                # A full log has not noted all changes.
                stored = [one for one in stored if box.flash_only.find(box.queue(one[0]), one[1])]
        except log.OutboxFull:
            pass
        assert all(segment.size <= segment.space for segment in box.log.segments)
        spaces = {segment.name: segment.space for segment in box.log.segments}
        assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == spaces | {"lock": 0}
        assert box.log.size <= 24576 + 4096, "changes may take one file more"
        files.add(box.log.segments[-1].name)
    box.close()
    assert len(files) > 4


def test_a_first_start_on_a_full_flash_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("os.mkdir", full)
    said = r"^the file system failed \(.*no room\): make room or repair it, then send again"
    with pytest.raises(log.OutboxWriteFailed, match=said) as raised:
        log.Files(str(tmp_path / "box"))
    assert raised.value.errno == errno.ENOSPC


# ---- the wear of the flash ------------------------------------------------------------------------------

MICROPYTHON = run_mp.ROOT / "build" / "micropython" / "unix-c" / "micropython"


@pytest.mark.skipif(not MICROPYTHON.exists(), reason="there is no MicroPython here")
def test_the_wear_that_the_page_states_is_what_is_measured() -> None:
    readme = (run_mp.ROOT / "firmware" / "docs" / "storage.md").read_text(encoding="utf-8")
    output = run_mp.micropython("unix-c", "-X", "heapsize=16M", "tests/mp/wear.py", "1000").stdout
    row = r"^\| (LittleFS|FAT|Raw)([^|]*\| \d+ \| \d+(?: KB)?) \|([\d., |]+)\|$"
    stated, measured = (re.findall(row, text, re.M) for text in (readme, output))
    assert len(measured) == 15 + 12, output
    assert [line[:2] for line in stated] == [line[:2] for line in measured]
    for said, found in zip(stated, measured):
        figures = [[float(figure) for figure in re.findall(r"[\d.]+", line[2])] for line in (said, found)]
        assert len(figures[1]) in (2, 5)
        assert figures[0] == pytest.approx(figures[1], rel=0.1), said
