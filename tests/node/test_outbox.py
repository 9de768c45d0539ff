"""The outbox: thousands of power cuts, failing disks, damage that is told from a torn tail, the format on the disk."""

from __future__ import annotations

import binascii
import errno
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

from tests.node.outboxes import PEER, arrived, change, come, failing, record_of

LINE, ALARMS = power.NAMES
FLAGS = log.TRANSACTIONAL | log.RECOVERABLE


@pytest.mark.parametrize("test", boards.TESTS, ids=lambda test: str(test.__name__))
def test_as_on_boards(test: Callable[[], None]) -> None:
    test()


@pytest.mark.rule("B-054", "B-056", "B-057", "B-072", "B-079", "B-093", "B-096", "B-098", "B-158", "B-301", "A-08")
@pytest.mark.parametrize(
    ("seed", "actions", "stride", "hold", "least"),
    [(1, 46, 29, 100, 900), (2, 14, 3, 100, 600), (4, 20, 61, 2, 250), (5, 26, 97, 1, 150)],
)
def test_power_cut_at_every_byte_loses_nothing_repeats_no_number(
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


@pytest.mark.parametrize("step", ["append", "sync"])
def test_rolled_back_numbers_are_reused_also_after_restart(step: str) -> None:
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


def test_a_deferred_message_that_a_failed_sync_took_back_waits_nowhere() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk)
    queue = box.queue(LINE)
    handle = log.Stored(box.next_message_id, record_of())
    counters = array("I", queue.record)
    counters[2] += 1
    box.append(handle, queue, FLAGS, counters, b"later", True)
    assert (queue.deferred, box.live) == (1, 1)
    disk.before = failing("sync")
    with pytest.raises(log.OutboxWriteFailed):
        box.sync()
    assert (queue.deferred, box.live, handle.segment) == (0, 0, None)


def test_failed_write_discards_earlier_undurable_messages() -> None:
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


def test_outbox_capacity_bounds_bytes_written() -> None:
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


def test_outbox_of_other_board_or_format_is_refused_unchanged() -> None:
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
def test_each_stream_gets_unique_time_stamp() -> None:
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
def test_start_counter_raises_time_stamps_without_a_clock() -> None:
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


@pytest.mark.rule("C-09", "C-33")
@pytest.mark.parametrize("state", "QSOJX")
@pytest.mark.parametrize("size", [0, 2000])
def test_retained_message_does_not_block_freeing_old_segments(state: str, size: int) -> None:
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
def test_only_possibly_sent_messages_restore_as_sent() -> None:
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
