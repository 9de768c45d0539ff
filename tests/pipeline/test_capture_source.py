"""The data source "mqqb": captures as rows of Spark."""

import struct
import zlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import packet_samples as samples  # type: ignore[import-not-found]
import pyarrow.parquet as pq
import pytest
from mqqb import build, guids, headers, parse
from ordack.pipeline import packets
from ordack.pipeline.packets import COLUMNS, KINDS
from ordack.pipeline.segments import OptionError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support import capture_generator
from tests.support.capture_files import FRAMES, pcap
from tests.support.command import ordack
from tests.support.conversation import ACK, FULL, ONE, OPENING, SERVER, SYN, TWO, End, back, ip, put, there


def load(spark: SparkSession, path: Path | str, **options: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.read.format("mqqb").options(**options).load(str(path)).collect()]


def fleet(hosts: int) -> list[bytes]:
    """A message of each host."""
    frames = []
    for number in range(hosts):
        sender = End(bytes([10, 0, number >> 8, number & 0xFF]), 50000)
        raw = bytes(build.user_message(struct.pack("<IIQ", number, 0, 0), number, samples.DIRECT, b"", label="x"))
        frames += [ip(sender, SERVER, 999, 0, SYN), ip(sender, SERVER, 1000, 0, ACK, raw)]
    return frames


def test_capture_row_holds_all_packet_fields(spark: SparkSession, tmp_path: Path) -> None:
    broken = bytearray(FULL)
    broken[60] = 0x1F
    frames = [*OPENING, there(0, FULL + bytes(broken)), back(0, FRAMES[5], acked=2 * len(FULL) + 10)]
    (path,) = put(tmp_path, [pcap(frames)])
    rows = {row["packet"]: row for row in load(spark, path)}
    assert [*rows] == ["begin", "UserMessage", "malformed", "hole", "ConnectionParameters", "end"]
    message = parse.parse(FULL)
    assert isinstance(message, headers.UserMessage)
    assert message.transaction is not None
    assert message.security is not None
    properties, row = message.properties, rows["UserMessage"]
    wanted: dict[str, Any] = {
        "file": path, "frame": 3, "time": datetime.fromtimestamp(1_700_000_002.25, UTC).replace(tzinfo=None),
        "direction": 0, "sender": "10.0.0.1:50000", "receiver": "10.0.0.2:1801", "offset": 0, "size": len(FULL),
        "reason": None, "base_flags": message.base.flags, "time_to_reach_queue": message.base.time_to_reach_queue,
        "source_queue_manager": guids.guid_text(samples.SENDER), "message_id": 77,
        "body_crc": zlib.crc32(b"reading 12.5"),
        "destination_queue": "DIRECT=TCP:10.0.0.5\\private$\\line1",
        "administration_queue": f"PRIVATE={guids.guid_text(bytes(16))[1:-1]}\\00000003",
        "response_queue": f"PRIVATE={guids.guid_text(samples.RECEIVER)[1:-1]}\\00000005",
        "tx_sequence_ordinal": 3, "tx_sequence_time_stamp": 1_700_000_000, "tx_sequence_number": 5,
        "previous_tx_sequence_number": 4, "connector_queue_manager": guids.guid_text(samples.SENDER),
        "security_flags": 1, "signature_size": 9, "label": "Tank 3", "body_size": 12,
        "body_offset": FULL.index(b"reading 12.5"), "body_type": properties.body_type,
        "correlation_id": bytes(properties.correlation_id), "extension_size": 3, "ack_sequence_number": None,
        "client_guid": None, "ack_timeout": None, "internal_flags": None, "ack_source": None, "ack_message_id": None,
    }  # fmt: skip
    if message.session is not None:
        wanted["ack_sequence_number"] = message.session.ack_sequence_number
    assert {name: row[name] for name in wanted} == wanted
    sent = datetime.fromtimestamp(message.user.sent_time, UTC).replace(tzinfo=None)
    assert row["sent_time"] == sent
    assert rows["malformed"]["reason"] == "wire.md 2.2, UserHeader.Flags: RC is above 0x1D"
    assert rows["malformed"]["size"] == len(FULL)
    assert rows["malformed"]["message_id"] is None
    assert rows["hole"]["size"] == 10
    parameters = rows["ConnectionParameters"]
    assert (parameters["sender"], parameters["ack_timeout"] is None) == ("10.0.0.2:1801", False)
    assert rows["end"]["reason"] == "end of the capture"
    assert [*row] == [column.name for column in COLUMNS]


def test_tasks_read_everything_once(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, [pcap(fleet(300))])
    one = load(spark, tmp_path, partitions="1")
    five = load(spark, tmp_path, partitions="5")
    assert spark.read.format("mqqb").option("partitions", 5).load(str(tmp_path)).rdd.getNumPartitions() == 5
    assert spark.read.format("mqqb").load(str(tmp_path)).rdd.getNumPartitions() == 1
    assert len({row["connection"] for row in five}) == len({row["connection"] for row in one}) == 300
    assert len({row["source_queue_manager"] for row in five}) == 301

    def bag(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(value for name, value in row.items() if name != "connection") for row in rows)

    assert bag(five) == bag(one)
    assert Counter(row["packet"] for row in one)["UserMessage"] == 300
    assert {row["packet"] for row in one} <= set(KINDS)


def test_there_are_as_many_tasks_as_the_captures_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, [pcap(fleet(300))])
    source = packets.PacketSource({"path": str(tmp_path)})
    whole = (tmp_path / "0.pcap").stat().st_size
    for size, count in ((2 * whole, 1), (whole // 5, 5), (1, packets.PARTS_MAX)):
        monkeypatch.setattr(packets, "PART_BYTES", size)
        assert len(source.reader(source.schema()).partitions()) == count


def test_only_some_columns_and_only_some_rows(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, [pcap(fleet(40))])
    frame = spark.read.format("mqqb").option("columns", "message_id, label,packet").load(str(tmp_path))
    assert frame.columns == ["message_id", "label", "packet"]
    rows = frame.where("message_id > 37").orderBy("message_id").collect()
    assert [tuple(row) for row in rows] == [(38, "x", "UserMessage"), (39, "x", "UserMessage")]


def test_files_of_a_folder_and_of_a_pattern_are_one_capture(spark: SparkSession, tmp_path: Path) -> None:
    later = bytearray(pcap([there(32, TWO[:20])]))
    later[24:28] = struct.pack("<I", 1_800_000_000)
    last = bytearray(pcap([there(52, TWO[20:])]))
    last[24:28] = struct.pack("<I", 1_900_000_000)
    first = pcap([*OPENING, there(0, ONE)])
    for name, data in (("c.pcap", first), ("b.pcap", later), ("a.pcapng", last[:-1]), ("notes.txt", b"no capture")):
        (tmp_path / name).write_bytes(data)
    rows = load(spark, tmp_path)
    assert [row["packet"] for row in rows if row["packet"] != "damage"] == [
        "begin",
        "ConnectionParameters",
        "end",
        "end",
    ]
    (damage,) = (row for row in rows if row["packet"] == "damage")
    assert damage["file"] == str(tmp_path / "a.pcapng")
    assert "the file ends inside the record" in damage["reason"]
    (tmp_path / "a.pcapng").write_bytes(last)
    rows = load(spark, tmp_path / "*.pcap*")
    found = [(row["packet"], Path(row["file"]).name, row["time"].year) for row in rows if row["size"]]
    assert found == [("ConnectionParameters", "c.pcap", 2023), ("SessionAck", "b.pcap", 2027)]


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("none.pcap", {}, "No such file"),
        ("*.nothing", {}, "there are no pcap or pcapng files at"),
        ("text", {}, "is neither a pcap nor a pcapng file"),
        ("good", {"columns": "frame,colour"}, "there is no column 'colour'"),
        ("good", {"columns": "frame,frame"}, "each column can be there once"),
        ("good", {"partitions": "0"}, "it is a number from 1"),
        ("good", {"speed": "high"}, "there is no option 'speed'"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, path: str, options: dict[str, str], message: str) -> None:
    (tmp_path / "text").write_bytes(b"no capture")
    (tmp_path / "good").write_bytes(pcap([]))
    source = packets.PacketSource({"path": str(tmp_path / path), **options})
    with pytest.raises(OptionError, match=message):
        source.reader(source.schema())


def test_spark_tells_of_a_mistake(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="No such file"):
        load(spark, tmp_path / "none.pcap")


def test_damaged_file_is_reported_once_across_tasks(spark: SparkSession, tmp_path: Path) -> None:
    data = Path(
        capture_generator.generate(10, tmp_path / "whole", violations=False, faults=[], length=1500).paths[0]
    ).read_bytes()
    path = tmp_path / "cut.pcap"
    path.write_bytes(data[:3000])
    (tmp_path / "wireless.pcap").write_bytes(pcap([b"frame"] * 3, link=147))
    rows = spark.read.format("mqqb").option("partitions", 16).load(str(tmp_path)).where(
        "packet IN ('damage', 'unreadable')")  # fmt: skip
    row, unreadable = rows.select("file", "reason", "packet", "size").orderBy("packet").collect()
    assert (row["file"], "the file ends inside the record" in row["reason"]) == (str(path), True)
    assert (unreadable["packet"], unreadable["size"]) == ("unreadable", 3)


def test_queue_name_with_lone_surrogate_is_escaped_in_output(spark: SparkSession, tmp_path: Path) -> None:
    raw = FULL.replace("line1".encode("utf-16-le"), "lin\ud8001".encode("utf-16-le", "surrogatepass"))
    (path,) = put(tmp_path, [pcap([*OPENING, there(0, raw)])])
    assert ordack("capture", "audit", path, "--out", tmp_path / "out", "--html", tmp_path / "page.html").returncode == 1
    packets = {row["destination_queue"] for row in load(spark, path)} - {None}
    written = {*pq.read_table(tmp_path / "out" / "streams.parquet")["destination_queue"].to_pylist()}
    assert written == packets == {"DIRECT=TCP:10.0.0.5\\private$\\lin\\ud8001"}
