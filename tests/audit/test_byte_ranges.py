"""Captures read in ranges: what comes of them is what comes of the whole file, and each byte is read once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the pipeline is not installed")

from ordack.audit import stages, tasks
from ordack.capture import byte_ranges

from tests.support import capture_generator
from tests.support.capture_files import enhanced, interface, pcap, section, segment, syn

SEED = 4


def read(path: Path, size: int) -> tuple[list[tuple[int, int, int]], list[object], int]:
    """(key, 0, bytes) of all connections, what the parts say, and how many ranges were read from a wrong place."""
    ranges = byte_ranges.ranges_of([str(path)], 1, size)
    todo = dict(enumerate(ranges))
    reports: dict[int, byte_ranges.Report] = {}
    pieces: dict[int, dict[int, int]] = {}
    wrong = -len(ranges)
    while todo:
        wrong += len(todo)
        for number, task in todo.items():
            pieces[number] = {}
            for item in byte_ranges.route(task):
                if isinstance(item, byte_ranges.Report):
                    reports[number] = item
                else:
                    for key, size in item.connections.tolist():
                        pieces[number][key] = pieces[number].get(key, 0) + size
        todo, held = byte_ranges.again(ranges, reports)
    parts = byte_ranges.parts_of(ranges, reports, held)
    sums: dict[int, int] = {}
    for number in held:
        for key, taken in pieces[number].items():
            sums[key] = sums.get(key, 0) + taken
    last = parts[-1]
    frames = last.frames_before + last.frames
    found = sorted((key, 0, taken) for key, taken in sums.items())
    return found, [frames, sum(part.unread for part in parts), last.span, last.damage], wrong


def misleading(dice: random.Random) -> list[bytes]:
    """Frames of a connection, some of which carry capture files themselves."""
    inner = pcap([segment(7, b"x" * dice.randrange(40)) for _ in range(60)])[24:]
    blocks = section() + interface(101) + b"".join(enhanced(segment(9, b"y" * 30)) for _ in range(40))
    return [
        syn(0),
        *(segment(1 + 5000 * at, dice.choice([b"", b"z" * 99, inner, blocks])) for at in range(24)),
    ]


def test_ranges_are_put_right_where_a_capture_carries_captures(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    frames = misleading(dice)
    half = len(frames) // 2
    for order in "<>":
        ng = (
            section(order) + interface(101, order=order) + b"".join(enhanced(one, order=order) for one in frames[:half])
        )
        late = interface(147, order=order) + b"".join(enhanced(one, dice.randrange(2), order=order) for one in frames)
        files = {
            "one.pcap": pcap(frames, order=order),
            "nano.pcap": pcap(frames, order=order, nano=True),
            "late.pcapng": ng + late,
            "sections.pcapng": ng + section("<") + interface(101) + b"".join(map(enhanced, frames)),
        }
        wrong = 0
        for name, data in files.items():
            spoiled = bytearray(data)
            at = len(data) * 2 // 3
            spoiled[at : at + 400] = b"\xff" * 400
            for kind, content in (("whole", data), ("cut", data[:-5]), ("spoiled", bytes(spoiled))):
                path = tmp_path / f"{kind}-{name}"
                path.write_bytes(content)
                expected = read(path, len(content) + 1)
                assert expected[2] == 0
                for size in (2003,) if order == "<" else (20_011,):
                    found = read(path, size)
                    wrong += found[2]
                    assert found[:2] == expected[:2], f"{path.name} in ranges of {size} bytes"
        assert wrong  # else no guess was put right


def test_a_fleet_behind_one_address_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.pcap"
    capture_generator.write_fleet([own], 60_000, 1600, seed=SEED)
    path = tmp_path / "one.pcap"
    assert capture_generator.behind_one_address(own, path) > 400
    whole = tasks.run([path])

    def again(_: object, pairs: set[int]) -> None:
        raise AssertionError(f"the frames between {len(pairs)} pairs of hosts were replayed again")

    monkeypatch.setattr(stages.Stages, "again", again)
    monkeypatch.setattr(byte_ranges, "_PIECE", 5000)  # so that a chunk has many pieces
    for parts in (2, 32):
        found = tasks.run([path], parts=parts, range_bytes=path.stat().st_size // 32)
        assert found.summary == whole.summary
        assert found.streams == whole.streams
        assert found.bytes_read <= 1.2 * path.stat().st_size
