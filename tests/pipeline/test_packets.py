"""Captures: their files, and rows of the packets that show messages and their receipt."""

import struct
import zlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import packet_samples as samples  # type: ignore[import-not-found]
import pyarrow.parquet as pq
import pytest
from mqqb import build, guids
from ordack.pipeline import packets
from ordack.pipeline.packets import SCHEMA, find_files, packet_rows, plan
from ordack.pipeline.segments import OptionError

from tests.support import capture_generator
from tests.support.capture_files import FRAMES, pcap
from tests.support.command import ordack
from tests.support.conversation import ACK, FULL, ONE, OPENING, SERVER, SYN, TWO, End, back, ip, put, there


def load(path: Path | str, parts: int = 1) -> list[dict[str, Any]]:
    paths, _ = plan(find_files(str(path)))
    return [row for part in range(parts) for batch in packet_rows(paths, part, parts) for row in batch.to_pylist()]


def fleet(hosts: int) -> list[bytes]:
    """A message of each host."""
    frames = []
    for number in range(hosts):
        sender = End(bytes([10, 0, number >> 8, number & 0xFF]), 50000)
        raw = bytes(build.user_message(struct.pack("<IIQ", number, 0, 0), number, samples.DIRECT, b"", label="x"))
        frames += [ip(sender, SERVER, 999, 0, SYN), ip(sender, SERVER, 1000, 0, ACK, raw)]
    return frames


def test_rows_hold_the_fields_that_show_a_message(tmp_path: Path) -> None:
    broken = bytearray(FULL)
    broken[60] = 0x1F
    frames = [*OPENING, there(0, FULL + bytes(broken)), back(0, FRAMES[5], acked=2 * len(FULL) + 10)]
    (path,) = put(tmp_path, [pcap(frames)])
    found = load(path)
    rows = {row["packet"]: row for row in found}
    assert [row["packet"] for row in found] == ["UserMessage", "malformed", "hole"]
    wanted: dict[str, Any] = {
        "file": path, "frame": 3, "time": datetime.fromtimestamp(1_700_000_002.25, UTC),
        "direction": 0, "receiver": "10.0.0.2:1801", "size": len(FULL),
        "source_queue_manager": guids.guid_text(samples.SENDER), "message_id": 77,
        "body_crc": zlib.crc32(b"reading 12.5"),
        "destination_queue": "DIRECT=TCP:10.0.0.5\\private$\\line1",
        "tx_sequence_ordinal": 3, "tx_sequence_time_stamp": 1_700_000_000, "tx_sequence_number": 5,
        "client_guid": None, "ack_source": None, "ack_message_id": None, "ack_tx_sequence_number": None,
    }  # fmt: skip
    assert {name: rows["UserMessage"][name] for name in wanted} == wanted
    assert (rows["malformed"]["size"], rows["malformed"]["message_id"]) == (len(FULL), None)
    assert rows["hole"]["size"] == 10
    assert [*found[0]] == SCHEMA.names


def test_tasks_read_everything_once(tmp_path: Path) -> None:
    put(tmp_path, [pcap(fleet(300))])
    one, five = load(tmp_path), load(tmp_path, 5)
    assert len({row["connection"] for row in five}) == len({row["connection"] for row in one}) == 300

    def bag(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(value for name, value in row.items() if name != "connection") for row in rows)

    assert bag(five) == bag(one)
    assert Counter(row["packet"] for row in one)["UserMessage"] == 300


def test_there_are_as_many_tasks_as_the_captures_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = put(tmp_path, [pcap(fleet(300))])
    whole = Path(path).stat().st_size
    for size, count in ((2 * whole, 1), (whole // 5, 5), (1, packets.PARTS_MAX)):
        monkeypatch.setattr(packets, "PART_BYTES", size)
        assert plan([path]) == ([path], count)


def test_files_of_a_folder_and_of_a_pattern_are_one_capture(tmp_path: Path) -> None:
    later = bytearray(pcap([there(len(ONE), TWO[:20])]))
    later[24:28] = struct.pack("<I", 1_800_000_000)
    last = bytearray(pcap([there(len(ONE) + 20, TWO[20:] + FULL)]))
    last[24:28] = struct.pack("<I", 1_900_000_000)
    first = pcap([*OPENING, there(0, ONE)])
    for name, data in (("c.pcap", first), ("b.pcap", later), ("a.pcapng", last[:-1]), ("notes.txt", b"no capture")):
        (tmp_path / name).write_bytes(data)
    (damage,) = load(tmp_path)
    assert (damage["packet"], damage["file"]) == ("damage", str(tmp_path / "a.pcapng"))
    (tmp_path / "a.pcapng").write_bytes(last)
    (row,) = load(tmp_path / "*.pcap*")
    assert (row["packet"], Path(row["file"]).name, row["time"].year) == ("UserMessage", "a.pcapng", 2030)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.pcap", "No such file"),
        ("*.nothing", "there are no pcap or pcapng files at"),
        ("text", "is neither a pcap nor a pcapng file"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "text").write_bytes(b"no capture")
    with pytest.raises(OptionError, match=message):
        find_files(str(tmp_path / path))


def test_damaged_file_is_reported_once_across_tasks(tmp_path: Path) -> None:
    whole = capture_generator.generate(10, tmp_path / "whole", violations=False, faults=[], length=1500).paths[0]
    path = tmp_path / "cut.pcap"
    path.write_bytes(Path(whole).read_bytes()[:3000])
    (tmp_path / "wireless.pcap").write_bytes(pcap([b"frame"] * 3, link=147))
    rows = [row for row in load(tmp_path, 16) if row["packet"] in ("damage", "unreadable")]
    assert [(row["packet"], row["file"], row["size"]) for row in rows] == [
        ("damage", str(path), None),
        ("unreadable", None, 3),
    ]


def test_queue_name_with_lone_surrogate_is_escaped_in_output(tmp_path: Path) -> None:
    raw = FULL.replace("line1".encode("utf-16-le"), "lin\ud8001".encode("utf-16-le", "surrogatepass"))
    (path,) = put(tmp_path, [pcap([*OPENING, there(0, raw)])])
    assert ordack("capture", "audit", path, "--out", tmp_path / "out", "--html", tmp_path / "page.html").returncode == 1
    shown = {row["destination_queue"] for row in load(path)} - {None}
    written = {*pq.read_table(tmp_path / "out" / "streams.parquet")["destination_queue"].to_pylist()}
    assert written == shown == {"DIRECT=TCP:10.0.0.5\\private$\\lin\\ud8001"}
