"""The log's files on LittleFS: the end of a segment in small files. Power cuts of a real one are in tests/mp."""

from __future__ import annotations

import builtins
import errno
import os
import random
import shutil
from pathlib import Path
from typing import Any

import power
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordack.boards import outbox as looked_at
from ordack.boards import rescue
from ordack.node import littlefs, log, outbox

LINE = power.NAMES[0]


def written(folder: Path, free: int = 0) -> littlefs.LittleFiles:
    """As a board has them that has so many bytes of heap."""
    return littlefs.LittleFiles(str(folder), False, True, free)


def opened(folder: Path, free: int = 0, **options: Any) -> outbox.Outbox:
    return outbox.Outbox(written(folder, free), power.GUID, **options)


def leave(box: outbox.Outbox) -> None:
    """End as with a cut of the power: `close` moves entries into the file."""
    log.Files.close(box.log.files)


def kept(folder: Path) -> list[bytes]:
    """The packets that a start finds."""
    box = opened(folder)
    found = power.bodies(box)
    leave(box)
    return found


def held(files: log.Files, name: str) -> bytes:
    """As `content`, of files that nobody needs afterwards."""
    try:
        return content(files, name)
    finally:
        log.Files.close(files)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here."""
    monkeypatch.setattr(log, "_sync", lambda file: None)


def send(box: outbox.Outbox, body: bytes) -> None:
    power.put(box, bytes(120) + body)


def bodies(box: outbox.Outbox) -> list[bytes]:
    return [body[120:] for body in power.bodies(box)]


def content(files: log.Files, name: str) -> bytes:
    data = bytearray(files.size(name))
    assert files.read_into(name, 0, memoryview(data)) == len(data)
    return bytes(data)


def tails(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tail"))


@pytest.mark.parametrize("block", [1024, 4096])
def test_where_blocks_end(block: int) -> None:
    """LittleFS puts into block n as many pointers of four bytes as n has factors of two, and one, but none into 0."""
    ends = [0]
    for number in range(300):
        ends.append(ends[-1] + block - (4 * ((number & -number).bit_length()) if number else 0))
    for end in [*range(0, 9 * block, 7), *ends, *(one - 1 for one in ends[1:-1])]:
        assert littlefs.block_end(end, block) == max(one for one in ends if one <= end)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_what_was_synced_is_there_whatever_looks_at_it(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """At any time, for who opens the folder anew, and for who opens a copy of it that is not on LittleFS."""
    dice = random.Random(seed)
    folder = tmp_path_factory.mktemp("box")
    files = written(folder)
    told: dict[str, bytearray] = {}
    number = 0
    alike = dice.randbytes(400)
    for _ in range(dice.randrange(20, 150)):
        if not number or dice.random() < 0.02:
            number += 1
            name = log.file_name(number)
            files.begin(name, 0)
            told[name] = bytearray(dice.randbytes(dice.randrange(60, 600)))
            files.append(told[name], len(told[name]))
            files.sync()
        for _ in range(dice.choice((1, 1, 1, 1, 2, 3))):
            data = bytearray(alike[: dice.choice((22, 106, 107, 250, 380, 400))] or b"")
            for _ in range(dice.choice((0, 3, 30, 300))):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if dice.random() < 0.1:
                data = bytearray(dice.randbytes(dice.choice((1, 531, 3000))))
            files.append(bytes(data) + b"behind", len(data))
            told[name] += data
        files.sync()
        place = dice.randrange(len(told[name]))
        part = bytearray(dice.randrange(1, 700))
        count = files.read_into(name, place, memoryview(part))
        assert part[:count] == told[name][place : place + len(part)]
        if dice.random() < 0.2:
            for one, data in told.items():
                assert held(written(folder), one) == data, "a start"
        if dice.random() < 0.1:
            copy = folder / "copy"
            shutil.copytree(folder, copy)
            there = outbox.files_of(str(copy))
            assert content(there, name) == told[name]
            there.resume(name, there.size(name))
            there.close()
            assert (copy / name).read_bytes() == told[name]
            shutil.rmtree(copy)
        if dice.random() < 0.1:
            files.close()
            files = written(folder)
            files.resume(name, files.size(name))
    for one, data in told.items():
        assert content(files, one) == data
        assert one == name or (folder / one).read_bytes() == data, "files that are complete need nothing else"
    files.close()


def test_messages_that_are_alike_take_little_and_the_file_grows_by_whole_blocks(tmp_path: Path) -> None:
    box = opened(tmp_path)
    block = os.statvfs(tmp_path).f_bsize
    sizes = set()
    for number in range(100):
        before = {file.name: file.stat().st_mtime_ns for file in tails(tmp_path)}
        send(box, b"%3d" % number)
        send(box, b"%3d" % number)
        sizes.add((tmp_path / "00000001.log").stat().st_size)
        assert number < 3 or len(before) < 30
    header = min(sizes)
    assert all(size == littlefs.block_end(size, block) for size in sizes - {header})
    assert len(sizes) == 1 + box.log.size // block
    assert max(file.stat().st_size for file in tails(tmp_path)) <= 128, "LittleFS keeps no more in a folder's block"
    leave(box)
    again = opened(tmp_path)
    assert bodies(again) == [b"%3d" % (number // 2) for number in range(200)]
    leave(again)


def test_what_does_not_fit_into_so_many_files_is_given_to_the_segment_earlier(tmp_path: Path) -> None:
    dice = random.Random(1)
    box = opened(tmp_path)
    for _ in range(60):
        power.put(box, dice.randbytes(60))
    assert len(tails(tmp_path)) <= 48
    assert (tmp_path / "00000001.log").stat().st_size > 2000
    dice = random.Random(1)
    assert kept(tmp_path) == [dice.randbytes(60) for _ in range(60)]
    leave(box)


def test_a_host_sees_the_end_of_a_copied_folder(tmp_path: Path) -> None:
    box = opened(tmp_path)
    from ordack.node import Node

    node = Node(files=box.log.files, name="press 3")
    for number in range(5):
        node.queue(LINE).put(b"%d" % number)
    node.outbox.sync()
    assert tails(tmp_path)
    found = list(rescue.listing(tmp_path))
    assert [one["body"] for one in found[:-1]] == ["0", "1", "2", "3", "4"]
    assert found[-1]["damage"] == []
    checks = {check.name: check for check in looked_at.read_outbox(str(tmp_path), "outbox", 0)}
    assert checks["outbox"].values["messages"] == 5
    node.close_now()


def test_a_folder_without_tails_gets_them_and_a_copy_that_lacks_them_is_refused(tmp_path: Path) -> None:
    """A copy without tails lacks accepted messages, and would give their numbers again."""
    folder = tmp_path / "box"
    old = outbox.Outbox(log.Files(str(folder)), power.GUID)
    power.put(old, b"without tails")
    old.close()
    box = opened(folder)
    power.put(box, b"with tails")
    leave(box)
    assert [file.read_bytes()[42] & log.TAILS for file in sorted(folder.glob("*.log"))] == [0, log.TAILS]
    sent = [b"without tails", b"with tails"]
    assert kept(folder) == sent
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.glob("*.log"):
        shutil.copy(file, copy)
    alone = littlefs.LittleFiles(str(copy), None, writes=False)
    for files in (outbox.files_of(str(copy)), alone, log.Files(str(folder))):
        with pytest.raises(log.OutboxError, match=r"00000002.log .*copy these files"):
            outbox.Outbox(files, power.GUID)
    plain = outbox.Outbox(outbox.files_of(str(folder)), power.GUID)  # moved away from LittleFS
    power.put(plain, b"and on a disk")
    plain.close()
    assert kept(folder) == [*sent, b"and on a disk"]


def test_the_file_has_all_of_a_copy_before_anything_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder was copied to, nothing is appended to tails."""
    box = opened(tmp_path)
    send(box, b"body")
    leave(box)
    before = [file.read_bytes() for file in tails(tmp_path)]
    done = []
    monkeypatch.setattr(log, "_sync", lambda file: done.append((Path(file.name).name, file.seek(0, 2))))
    plain = outbox.Outbox(outbox.files_of(str(tmp_path)), power.GUID)
    size = (tmp_path / "00000001.log").stat().st_size
    assert done == [("00000001.log", size)] * 2
    assert plain.log.size == size
    send(plain, b"more")
    plain.close()
    assert [file.read_bytes() for file in tails(tmp_path)] == before
    assert [body[120:] for body in kept(tmp_path)] == [b"body", b"more"]


@pytest.mark.parametrize("keeps_guid", [True, False])
def test_the_tails_of_a_log_that_was_erased_count_for_no_other(tmp_path: Path, keeps_guid: bool) -> None:
    box = opened(tmp_path)
    for number in range(6):
        send(box, b"old %d" % number)
    leave(box)
    for file in tmp_path.glob("*.log"):
        file.unlink()
    again = opened(tmp_path) if keeps_guid else outbox.Outbox(written(tmp_path), bytes(16))
    assert bodies(again) == []
    send(again, b"new 0")
    leave(again)
    last = outbox.Outbox(written(tmp_path), power.GUID if keeps_guid else bytes(16))
    assert (bodies(last), last.damage) == ([b"new 0"], [])
    assert [file.name for file in tmp_path.glob("*.log")] == ["00000001.log"], "nothing seemed torn"
    last.close()


def test_a_part_that_is_cut_short_costs_its_message_and_is_told(tmp_path: Path) -> None:
    """In a copy of the folder, for LittleFS has all of a file or none."""
    source = tmp_path / "box"
    box = opened(source)
    dice = random.Random(3)
    sent = [dice.randbytes(200) for _ in range(4)]
    sent += [sent[3][:60] + bytes([number]) * 2 + sent[3][60:] for number in range(3)]  # these are packed
    for packet in sent:
        power.put(box, packet)
    leave(box)
    for file in tails(source):
        for size in (0, 3, 20, 25, file.stat().st_size - 1):
            copy = shutil.copytree(source, tmp_path / "copy")
            os.truncate(copy / file.name, size)
            again = outbox.Outbox(outbox.files_of(str(copy)), power.GUID)
            found = power.bodies(again)
            assert found == [packet for packet in sent if packet in found]
            assert len(found) < len(sent)
            assert again.damage or found == sent[: len(found)], "only those at the end may go silently"
            assert again.next_message_id > len(found)
            leave(again)
            shutil.rmtree(copy)


def test_a_byte_of_a_tail_that_changes_costs_one_message_at_most(tmp_path: Path) -> None:
    """LittleFS would find it, and take the block for one that was not written; a copy of the folder does not."""
    source = tmp_path / "box"
    box = opened(source)
    for number in range(6):
        send(box, b"body %d" % number)
    leave(box)
    tried = 0
    for file in tails(source)[3:]:  # those before are the model of the others
        for place in range(0, file.stat().st_size, 5):
            copy = tmp_path / "copy"
            shutil.copytree(source, copy)
            data = bytearray(file.read_bytes())
            data[place] ^= 1 << random.Random(place).randrange(8)
            (copy / file.name).write_bytes(data)
            again = outbox.Outbox(outbox.files_of(str(copy)), power.GUID)
            found = bodies(again)
            assert found == [one for one in [b"body %d" % number for number in range(6)] if one in found]
            assert len(found) >= 5
            assert len(found) == 6 or again.damage or file == tails(source)[-1]
            leave(again)
            shutil.rmtree(copy)
            tried += 1
    assert tried > 20


def test_a_bit_that_flips_behind_what_is_packed_loses_nothing(tmp_path: Path) -> None:
    """The model is in the segment's file already, what is told by its differences is not."""
    source = tmp_path / "box"
    box = opened(source)
    sent = [bytes(120) + b"body 0", random.Random(4).randbytes(1000), *(bytes(120) + b"body %d" % k for k in (2, 3, 4))]
    for packet in sent:
        power.put(box, packet)
    files: Any = box.log.files
    assert files._model_start < files._moved
    assert all(slot & 0x80 for slot in files._slots)
    leave(box)
    (segment,) = source.glob("*.log")
    data = segment.read_bytes()
    for place in range(0, len(data), 7):
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        flipped = bytearray(data)
        flipped[place] ^= 1 << random.Random(place).randrange(8)
        (copy / segment.name).write_bytes(flipped)
        for start in range(2):  # the second one reads what the first has moved into the file
            again = opened(copy)
            assert power.bodies(again) == sent + [b"more"] * start, place
            assert any("a byte was changed" in line for line in again.damage), place
            power.put(again, b"more")
            leave(again)
        shutil.rmtree(copy)


@pytest.mark.parametrize("count", [1, 6])
def test_a_bit_of_the_header_that_flips_loses_nothing(tmp_path: Path, count: int) -> None:
    source = tmp_path / "box"
    box = opened(source)
    for number in range(count):
        send(box, b"body %d" % number)
    leave(box)
    (segment,) = source.glob("*.log")
    data = segment.read_bytes()
    assert len(data) < 200, "there is little but the header in it"
    for place in range(len(data)):
        copy = tmp_path / "copy"
        shutil.copytree(source, copy)
        flipped = bytearray(data)
        flipped[place] ^= 1 << random.Random(place).randrange(8)
        (copy / segment.name).write_bytes(flipped)
        for start in range(3):
            again = opened(copy)
            assert bodies(again) == [b"body %d" % number for number in range(count + start)], place
            assert any("a byte was changed" in line for line in again.damage), place
            send(again, b"body %d" % (count + start))
            leave(again)
        shutil.rmtree(copy)


def test_a_flash_that_is_full_when_the_file_must_grow_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = opened(tmp_path)
    number = 0
    plain = log.Files.sync
    full = False

    def sync(files: Any) -> None:
        if full and files._tail_name.endswith(".log"):
            raise OSError(errno.ENOSPC, "full")
        plain(files)

    monkeypatch.setattr(log.Files, "sync", sync)
    for _ in range(3):
        full = True
        refusal = 0
        while not refusal:
            try:
                send(box, b"%4d" % number)
                number += 1
            except log.OutboxWriteFailed as error:
                refusal = error.errno
        assert refusal == errno.ENOSPC
        assert len(kept(tmp_path)) == number
        full = False
        send(box, b"%4d" % number)
        number += 1
    leave(box)
    assert [body[120:] for body in kept(tmp_path)] == [b"%4d" % one for one in range(number)]


def test_a_start_with_less_memory_finds_a_folder_that_has_no_entry_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first segment that may have tails and the first entry the power may go at any operation."""
    before = outbox.Outbox(log.Files(str(tmp_path / "box")), power.GUID)
    power.put(before, b"without tails")
    before.close()
    states = []
    plain = log.Files._open

    def noted(files: Any, name: str, mode: str) -> None:
        for step in (
            lambda: None,
            lambda: plain(files, name, mode),
        ):  # the file before is durable; this one's name, too
            step()
            states.append(shutil.copytree(tmp_path / "box", tmp_path / f"state-{len(states)}"))

    monkeypatch.setattr(log.Files, "_open", noted)
    box = opened(tmp_path / "box")
    send(box, b"with tails")
    leave(box)
    monkeypatch.undo()
    states.append(tmp_path / "box")
    flags = set()
    for state in states:
        flags |= {sum(file.read_bytes()[42:43]) & log.TAILS for file in state.glob("*.log")}
        less = outbox.Outbox(outbox.files_of(str(state)), power.GUID)  # as on a board with less memory
        assert [body[-13:] for body in power.bodies(less)][:1] == [b"without tails"]
        send(less, b"behind")
        leave(less)
        assert kept(state)[-1].endswith(b"behind")
    assert flags == {0, log.TAILS}


def test_a_start_with_less_memory_reads_what_one_with_more_has_written(tmp_path: Path) -> None:
    dice = random.Random(5)
    box = opened(tmp_path, 200000)
    alike = dice.randbytes(700)
    sent = [alike + dice.randbytes(300) for _ in range(3)]
    for packet in sent:
        power.put(box, packet)
    files = box.log.files
    assert {head[-1] for head in files._heads().values()} >= {3, 10}, "of ten parts, and packed in three"
    leave(box)
    for _ in range(2):
        again = opened(tmp_path)
        assert power.bodies(again) == sent
        power.put(again, alike)
        sent.append(alike)
        leave(again)
    assert kept(tmp_path) == sent


def test_what_was_closed_is_in_the_file_and_a_start_opens_no_part_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LittleFS takes long to find a file, and a board that wakes for a reading has to be quick."""
    box = opened(tmp_path)
    for number in range(12):
        send(box, b"body %d" % number)
    leave(box)
    found = []
    plain = builtins.open

    def noted(path: Any, *arguments: Any) -> Any:
        found.append(Path(path).name)
        return plain(path, *arguments)

    monkeypatch.setattr(builtins, "open", noted)
    again = opened(tmp_path)
    assert len(again.restored) == 12
    read = [name for name in found if name.endswith(".tail") and (tmp_path / name).exists()]
    assert sorted(read) == [file.name for file in tails(tmp_path)]
    again.close()
    monkeypatch.undo()
    for file in tails(tmp_path):
        file.unlink()
    (tmp_path / "00.tail").touch()
    assert [body[120:] for body in kept(tmp_path)] == [b"body %d" % number for number in range(12)]
