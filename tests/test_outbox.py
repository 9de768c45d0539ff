"""The outbox: thousands of power cuts, failing disks, damage that is told from a torn tail, the format on the disk."""

from __future__ import annotations

import binascii
import errno
import importlib.util
import struct
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent / "mp"))

import power
from node import outbox

LINE, ALARMS = power.NAMES
WAYS = (power.KEEP_ALL, power.KEEP_SYNCED, power.TEAR, power.KILL)
FLAGS = outbox.TRANSACTIONAL | outbox.RECOVERABLE


def _on_boards() -> Any:
    """tests/mp/test_outbox.py, whose name pytest takes for this file's."""
    specification = importlib.util.spec_from_file_location("on_boards", Path(__file__).parent / "mp" / "test_outbox.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


boards = _on_boards()


@pytest.mark.parametrize("test", boards.TESTS, ids=lambda test: str(test.__name__))
def test_as_on_boards(test: Callable[[], None]) -> None:
    test()


@pytest.mark.rule("B-054", "B-056", "B-057", "B-072", "B-079", "B-093", "B-096", "B-098", "B-158", "B-301", "A-08")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_cut_at_every_byte_of_a_workload_loses_nothing_and_repeats_no_number(seed: int) -> None:
    start = time.perf_counter()
    cuts = power.every_cut(seed, 45, WAYS)
    print(cuts, "cuts,", round(cuts / (time.perf_counter() - start)), "a second")
    assert cuts > 10000


@pytest.mark.rule("B-072", "B-098", "B-158", "A-08")
@given(seed=st.integers(1, 2**32 - 1), small=st.booleans(), segment_size=st.integers(150, 2000))
@example(seed=1491429946, small=True, segment_size=1563)  # a file that could not be removed filled the outbox for ever
@settings(max_examples=60)
def test_lives_of_cuts_and_errors(seed: int, small: bool, segment_size: int) -> None:
    power.many_lives(seed, 12, capacity=3000 if small else 100000, segment_size=segment_size)


def test_large_messages_are_cut_too() -> None:
    assert power.every_cut(3, 12, (power.TEAR,), stride=37, sizes=(0, 700, 3000), segment_size=4000) > 300


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
    boards.put(box, b"first")
    disk.before = failing(step, 40)
    with pytest.raises(outbox.OutboxWriteFailed, match="then send again") as caught:
        boards.put(box, b"second")
    assert caught.value.errno == errno.ENOSPC
    assert box.next_message_id == 2
    assert box.queue(LINE).record[2] == 2
    disk.before = None
    box.sync()
    boards.put(box, b"instead")
    for how in (power.KEEP_ALL, power.KEEP_SYNCED):
        again = outbox.Outbox(disk.after_cut(how, power.Dice(1)))
        assert boards.bodies(again) == [b"first", b"instead"]
        assert again.next_message_id == 3
        assert list(again.queue(LINE).record) == [1, 1, 3, 0]


def test_an_interrupted_write_is_not_built_upon() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    boards.put(box, b"first")

    def interrupt(disk: Any, what: str, data: bytes) -> None:
        if what == "append":
            disk.tail.data += data[:5]
            raise KeyboardInterrupt

    disk.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        boards.put(box, b"second")
    disk.before = None
    boards.put(box, b"third")
    assert boards.bodies(outbox.Outbox(disk)) == [b"first", b"third"]


def test_a_queue_whose_record_was_given_up_does_not_make_a_torn_header_look_damaged() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    disk.before = failing("sync")
    with pytest.raises(outbox.OutboxWriteFailed):
        boards.put(box, b"first of its queue")
    torn = []

    def cut(disk: Any, what: str, data: bytes) -> None:
        if what == "append" and not torn:
            torn.extend([disk.after_cut(power.KEEP_ALL, power.Dice(1), data[:size]) for size in range(len(data))])

    disk.before = cut
    boards.put(box, b"again")
    for left in torn:
        left.files["00000001.log"].data = left.files["00000001.log"].data[:52]  # what the failed sync lost
        assert outbox.Outbox(left).restored == []


def test_settled_segments_are_given_back_even_while_nothing_can_be_written() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=300)
    handles = [boards.put(box, bytes(100)) for _ in range(8)]
    disk.before = failing("append")
    box.settle(handles[:6], box.queue(LINE), 0x00FF)
    assert box.size < 900
    assert box.sync() is False, "the marks are not durable"
    disk.before = None
    assert box.sync() is True
    again = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert [restored.handle.message_id for restored in again.restored] == [7, 8]


def test_a_file_that_cannot_be_removed_does_no_harm() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=300)
    handles = [boards.put(box, bytes(100)) for _ in range(8)]
    disk.before = failing("remove")
    box.settle(handles, box.queue(LINE), 0x00FF)
    box.sync()
    assert len(disk.files) > 1
    boards.put(box, bytes(250))
    again = outbox.Outbox(disk, segment_size=300)
    assert [restored.handle.message_id for restored in again.restored] == [9]
    disk.before = None
    again.settle([restored.handle for restored in again.restored], again.queue(LINE), 0x00FF)
    boards.put(again, b"")
    assert len(disk.files) <= 2


def test_the_capacity_bounds_what_is_written() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=1000, capacity=5000)
    handles = []
    with pytest.raises(outbox.OutboxFull, match="of 5000 bytes are in use"):
        handles.extend([boards.put(box, bytes(200)) for _ in range(100)])
    assert 4700 < box.size <= 5000
    written = box.bytes_written
    for _ in range(10):
        with pytest.raises(outbox.OutboxFull):
            boards.put(box, bytes(200))
    assert box.bytes_written == written, "refusing does not wear the flash"
    live = outbox.Outbox(disk, capacity=5000)
    live.settle([restored.handle for restored in live.restored], live.queue(LINE), 0x00FF)
    boards.put(live, bytes(4000))
    assert live.size <= 5000


def test_the_number_of_waiting_messages_is_bounded_because_each_takes_memory() -> None:
    box = outbox.Outbox(power.Disk(), power.GUID, waiting_max=3)
    handles = [boards.put(box, b"") for _ in range(3)]
    with pytest.raises(outbox.OutboxFull, match="3 messages wait"):
        boards.put(box, b"")
    assert box.next_message_id == 4
    box.settle(handles[:1], box.queue(LINE), 0x00FF)
    assert boards.put(box, b"").message_id == 4


# ---- what is on the disk ----------------------------------------------------------------------------


def test_the_format_is_the_documented_one() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    first = boards.put(box, b"reading")
    box.settle([first], box.queue(LINE), 0x8003)
    box.sync()
    name = LINE.encode()
    header = struct.pack("<4sHHIIIIII16s", b"ORDK", 1, 0, 52, 1, 1, 0, 1, 0, power.GUID)
    seed = binascii.crc32(header)

    def record(kind: int, payload: bytes) -> bytes:
        word = struct.pack("<I", kind | len(payload) << 8)
        return word + struct.pack("<I", binascii.crc32(word + payload, seed)) + payload

    assert bytes(disk.files["00000001.log"].data) == (
        header
        + struct.pack("<I", seed)
        + record(0xBB, struct.pack("<HIIII", 0, 1, 1, 1, 0) + name)
        + record(0xB1, struct.pack("<HHIIIII", 0, 3, 1, 1, 1, 2, 0) + b"reading")
        + record(0xBA, struct.pack("<HHI", 0, 0x8003, 1))
    )


def test_a_folder_of_another_board_or_of_a_newer_program_is_refused() -> None:
    disk = power.Disk()
    outbox.Outbox(disk, power.GUID)
    with pytest.raises(outbox.OutboxError, match="another board"):
        outbox.Outbox(disk, bytes(16))
    header = bytearray(disk.files["00000001.log"].data)
    header[4] = 2
    header[-4:] = struct.pack("<I", binascii.crc32(header[:-4]))
    disk.files["00000001.log"].data = header
    with pytest.raises(outbox.OutboxError, match="version 2"):
        outbox.Outbox(disk)


def test_a_missing_or_shortened_file_is_reported() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID, segment_size=300)
    for _ in range(10):
        boards.put(box, bytes(100))
    names = sorted(disk.files)
    assert len(names) > 3
    for name in names[1:-1]:
        whole = disk.files[name].data
        disk.files[name].data = whole[:-1]
        with pytest.raises(outbox.OutboxDamaged, match="cut short") as caught:
            outbox.Outbox(disk)
        assert caught.value.name == name
        disk.files[name].data = bytearray(10)
        with pytest.raises(outbox.OutboxDamaged, match="header is broken"):
            outbox.Outbox(disk)
        file = disk.files.pop(name)
        with pytest.raises(outbox.OutboxDamaged, match="missing"):
            outbox.Outbox(disk)
        file.data = whole
        disk.files[name] = file
    assert len(outbox.Outbox(disk).restored) == 10


def test_a_hole_in_what_was_never_durable_is_a_torn_tail() -> None:
    """A disk may write the second of two records and lose the first, as long as neither was synced."""
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    boards.put(box, b"durable")
    queue = box.queue(LINE)
    record = array("I", queue.record)
    offsets = []
    for body in (b"lost on the way", b"not lost"):
        handle = outbox.Stored(box.next_message_id)
        record[2] += 1
        box.append(handle, queue, FLAGS, record, body)
        offsets.append(handle.offset)
    disk.tail.data[offsets[0] + 20] ^= 1
    assert boards.bodies(outbox.Outbox(disk)) == [b"durable"]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("mine")
    (tmp_path / "readme-x.log").write_text("mine, too")
    box = outbox.Outbox(outbox.Files(str(tmp_path)))
    boards.put(box, b"reading")
    box.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001.log", "notes.log", "readme-x.log"]


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        outbox.Files(str(tmp_path / "no" / "such" / "place"))


def test_writes_that_come_out_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = outbox.Files(str(tmp_path))
    files.begin("00000001.log")
    tail = files._tail

    class Short:
        def write(self, data: Any) -> int:
            assert tail is not None
            return tail.write(memoryview(data)[:3])

    files._tail = Short()  # type: ignore[assignment]
    files.append(b"0123456789")
    files._tail = tail
    files.close()
    assert (tmp_path / "00000001.log").read_bytes() == b"0123456789"


# ---- counters ---------------------------------------------------------------------------------------


@pytest.mark.rule("B-020", "A-46")
def test_message_ids_roll_over_and_leave_out_0() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    box.next_message_id = 0xFFFFFFFE
    ids = [boards.put(box, b"").message_id for _ in range(3)]
    assert ids == [0xFFFFFFFE, 0xFFFFFFFF, 1]
    again = outbox.Outbox(disk)
    assert again.next_message_id == 2
    assert [restored.handle.message_id for restored in again.restored] == ids, "in the order of the log"


@pytest.mark.rule("B-056", "B-079", "A-21", "A-22")
def test_every_stream_has_a_time_stamp_of_its_own_that_never_comes_again() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    boards.put(box, b"", LINE)
    assert box.queue(LINE).record[1] == 1
    boards.put(box, b"", ALARMS)
    assert box.queue(ALARMS).record[1] == 2
    again = outbox.Outbox(disk)
    assert [list(again.queue(name).record) for name in (LINE, ALARMS)] == [[1, 1, 2, 0], [1, 2, 2, 0]]
    assert again.queue("DIRECT=OS:third\\q", time_stamp=1800000000).record[1] == 1800000000
    assert again.queue("DIRECT=OS:fourth\\q", time_stamp=5).record[1] == 1800000001
    with pytest.raises(ValueError, match="at most 486 bytes"):
        again.queue("DIRECT=OS:" + "x" * 480)


@pytest.mark.rule("B-096", "B-275")
def test_a_newer_sequence_is_durable_only_with_the_marks_of_the_older() -> None:
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    old = boards.put(box, b"older")
    queue = box.queue(LINE)
    box.settle([old], queue, 0x00FF)
    kept = disk.after_cut(power.KEEP_SYNCED, power.Dice(1))
    assert boards.bodies(outbox.Outbox(kept)) == [b"older"], "the mark alone is lazy"
    record = array("I", (queue.record[0] + 1, queue.record[1], 2, 0))
    box.append(outbox.Stored(2), queue, FLAGS, record, b"newer")
    box.sync()
    again = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert boards.bodies(again) == [b"newer"]
    assert again.restored[0].tx_sequence_id == 1 << 32 | 2
    assert again.restored[0].tx_sequence_number == 1
