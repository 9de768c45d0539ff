"""An outbox with what was received, and in files that do not grow; and the wear of the flash."""

from __future__ import annotations

import binascii
import errno
import re
import struct
from pathlib import Path
from typing import Any

import power
import pytest
from mqqb import confirm, core
from ordack.node.storage import log, outbox

from tests import run_mp
from tests.node.outboxes import PEER, arrived, change, come, failing

FLAGS = log.TRANSACTIONAL | log.RECOVERABLE


# ---- what was received ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["append", "sync"])
def test_arrival_with_failed_write_is_not_counted(step: str) -> None:
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


def test_replaced_source_restores_no_arrivals() -> None:
    """The next file begins with the new source, before it says that the old one's message is gone."""
    disk = power.Disk()
    box = outbox.Outbox(disk, power.GUID)
    one_taken(box).replace(power.GUID, "settings")
    box.begin()
    again = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert (arrived(again), again.arrivals) == ([], 0)
    assert [(one.guid, one.name, list(one.record)) for one in again.sources] == [(power.GUID, "settings", [0, 0, 0, 0])]


def test_arrivals_are_limited_by_count_and_capacity() -> None:
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


def test_fixed_size_files_continue_at_last_record(tmp_path: Path) -> None:
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


def test_torn_end_of_fixed_size_file_is_not_overwritten(tmp_path: Path) -> None:
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
def test_fixed_size_files_respect_capacity_and_file_limit(tmp_path: Path, files_max: int) -> None:
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
def test_fixed_size_files_never_change_size(tmp_path: Path, seed: int) -> None:
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


def test_first_start_on_full_flash_says_to_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_benchmarks_page_states_measured_flash_wear() -> None:
    readme = (run_mp.ROOT / "host" / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    output = run_mp.micropython("unix-c", "-X", "heapsize=16M", "tests/mp/wear.py", "1000").stdout
    row = r"^\| (LittleFS|FAT|Raw flash) \| (\d+) \|([\d. |]+)\|$"
    stated, measured = (re.findall(row, text, re.M) for text in (readme, output))
    assert len(measured) == 9 + 4, output
    assert [line[:2] for line in stated] == [line[:2] for line in measured]
    for said, found in zip(stated, measured):
        figures = [[float(figure) for figure in re.findall(r"[\d.]+", line[2])] for line in (said, found)]
        assert len(figures[1]) == 2
        assert figures[0] == pytest.approx(figures[1], rel=0.1), said
