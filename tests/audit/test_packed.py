"""Captures that were compressed with gzip or zstd: every command reads them as what they were made of."""

from __future__ import annotations

import gzip
import json
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the pipeline is not installed")

import zstandard
from ordack.audit import tasks
from ordack.capture import columnar, reading

from tests.support import shares
from tests.support.command import ordack

Pack = Callable[[bytes], bytes]


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)  # as the command zstd does


def _twice(pack: Pack) -> Pack:
    """As two members or frames, one behind the other."""
    return lambda data: pack(data[: len(data) // 2]) + pack(data[len(data) // 2 :])


PACKS = {"gz": gzip.compress, "zst": _zstd}
WAYS = {
    **PACKS,
    "gz twice": _twice(gzip.compress),
    "zst twice": _twice(_zstd),
    "gz filled up": lambda data: gzip.compress(data) + bytes(512),
}


@pytest.mark.parametrize("way", WAYS)
def test_compressed_capture_gives_same_result_as_plain_one(plain: Path, tmp_path: Path, way: str) -> None:
    path = tmp_path / f"plant.pcap.{way.split()[0]}"
    path.write_bytes(WAYS[way](plain.read_bytes()))
    assert columnar.first_time(str(path)) == columnar.first_time(str(plain))
    assert tasks.run([path]).summary == tasks.run([plain]).summary
    assert shares.run([path], 3).summary == tasks.run([plain]).summary


@pytest.mark.parametrize("way", PACKS)
def test_commands_read_packed_captures(plain: Path, tmp_path: Path, way: str) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    (folder / f"a.pcap.{way}").write_bytes(WAYS[way](plain.read_bytes()))
    (folder / "notes.txt").write_text("not a capture")
    (folder / "deeper").mkdir()
    whole = ordack("capture", "audit", plain, "--json")
    done = ordack("capture", "audit", folder, "--json")
    assert (done.returncode, done.stdout) == (whole.returncode, whole.stdout)
    assert f"passed over in {folder}: deeper, notes.txt" in done.stderr
    shown = ordack("capture", "decode", "--json", folder / f"a.pcap.{way}")
    expected = ordack("capture", "decode", "--json", plain)
    assert (shown.returncode, shown.stdout) == (expected.returncode, expected.stdout)
    piped = ordack("capture", "decode", "--json", "-", stdin=(folder / f"a.pcap.{way}").read_bytes())
    assert piped.stdout == shown.stdout


@pytest.mark.parametrize("way", PACKS)
def test_truncated_or_corrupt_compressed_capture_is_reported(plain: Path, tmp_path: Path, way: str) -> None:
    data = WAYS[way](plain.read_bytes())
    chance = random.Random(1)
    for number in range(12):
        path = tmp_path / f"{number}.pcap.{way}"
        at = chance.randrange(len(data) // 8, len(data) - 1)
        path.write_bytes(data[:at] if number % 2 else data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        try:
            result = tasks.run([path])
        except tasks.CaptureUnusable as problem:
            assert "what was packed" in str(problem)  # noqa: PT017 - either is right
            continue
        assert ["what was packed" in text for _, text in result.damages] == [True]
        assert result.summary["verdict"] != "no violations"
    assert "what was packed" in ordack("capture", "decode", path).stderr


def test_capture_in_packed_and_plain_form_is_read_once(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(plain.read_bytes())
    (tmp_path / "a.pcap.gz").write_bytes(gzip.compress(plain.read_bytes()))
    expected = json.dumps(tasks.run([plain]).summary)
    done = ordack("capture", "audit", tmp_path, "--json")
    assert json.loads(done.stdout) == json.loads(expected)
    assert "passed over" in done.stderr
    assert "a.pcap.gz" in done.stderr


@pytest.mark.parametrize("way", PACKS)
def test_unpacking_compressed_capture_needs_little_memory(plain: Path, tmp_path: Path, way: str) -> None:
    head = plain.read_bytes()
    path = tmp_path / f"large.{way}"
    frame = b"\0\0\0\0\0\0\0\0\0\0\1\0\0\0\1\0" + bytes(0x10000)
    pack = PACKS[way]
    with path.open("wb") as file:
        file.write(pack(head + frame * 4000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with path.open("rb") as file:
        unpacked, damage = reading.unpack(file, file.read(4))
    with unpacked:
        assert (unpacked.seek(0, 2), damage) == (len(head) + 4000 * len(frame), "")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 140 << 10  # KiB


def test_oversized_packed_capture_is_truncated_with_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(10_000_000)))
    with path.open("rb") as file:
        unpacked, damage = reading.unpack(file, file.read(4), 1_000_000)
    with unpacked:
        assert unpacked.seek(0, 2) < 6_000_000
    assert "there is more in it than" in damage
