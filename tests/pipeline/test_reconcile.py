"""`ordack table reconcile`: what is planted in captures, segments and table is found and named, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import signal
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from mqqb import guids
from ordack import cli
from ordack.client import Client
from ordack.pipeline.folders import Folders
from ordack.pipeline.ingest import Job
from ordack.pipeline.prune import serials
from ordack.pipeline.segments import SCHEMA
from ordack.reconcile import compare as compare_module
from ordack.reconcile.compare import Compared, collect, compare, read_rows
from ordack.reconcile.result import KINDS, Result
from pyspark.sql import SparkSession

from tests.pipeline.lake import load
from tests.support import capture_bytes as bytes_of
from tests.support.capture_files import pcap
from tests.support.command import ENVIRONMENT, Serve, as_json, guid_of, ordack, outgoing_of
from tests.support.conversation import OPENING, back, there
from tests.support.segment_files import make_folder, row, write_rows
from tests.support.watched import until

BOARD, MANAGER, STRANGER = (uuid.UUID(int=number).bytes_le for number in (1, 2, 3))
BEGIN = datetime.fromtimestamp(1_700_000_000.25, UTC)  # of a capture; a frame each second
QUEUE = "TCP:10.0.0.2\\PRIVATE$\\line1"
COUNT = 10
FIRST = 4  # frames before the first message


class Wire:
    """A capture of one connection: a board sends messages with MessageIDs from 101, and hears of them."""

    def __init__(self) -> None:
        self.frames = list(OPENING)
        self._at = [0, 0]
        self.put(0, bytes_of.establish_connection(BOARD, bytes_of.NULL, 1))
        self.put(1, bytes_of.establish_connection(BOARD, MANAGER, 1))

    def put(self, direction: int, data: bytes, hole: int = 0) -> None:
        self._at[direction] += hole
        frame = (there, back)[direction]
        self.frames.append(frame(self._at[direction], data))
        self._at[direction] += len(data)

    def message(self, number: int, queue: str = QUEUE, body: bytes = b"") -> None:
        transaction = struct.pack("<IIIII", 0xC, 1, 1, number, number - 1)
        self.put(0, bytes_of.user_message(BOARD, bytes_of.NULL, 100 + number, 7, bytes_of.direct_name(queue),
                                          flags=bytes_of.DM, transaction=transaction, body=body))  # fmt: skip

    def order_ack(self, number: int) -> None:
        body = struct.pack("<IIII", 1, 1, number, number - 1) + bytes(20)
        self.acknowledge(bytes_of.ORDER_ACK, body)

    def final_ack(self, number: int, message_class: int) -> None:
        body = struct.pack("<IIII16sI", 1, 1, number, number - 1, BOARD, 100 + number)
        self.acknowledge(message_class, body)

    def acknowledge(self, message_class: int, body: bytes) -> None:
        name = bytes_of.direct_name("TCP:10.0.0.1\\PRIVATE$\\order_queue$")
        self.put(1, bytes_of.acknowledgement(MANAGER, bytes_of.NULL, 7, name, 1, message_class, body))


def stored(number: int, source: bytes = BOARD, **properties: Any) -> dict[str, Any]:
    """The row of a message that was stored when it was seen."""
    text = guids.guid_text(source)
    given = {
        "source_queue_manager": text, "message_id": 100 + number, "message_key": f"{text}\\{(1 << 32) + 1}/{number}",
        "arrived": BEGIN + timedelta(seconds=FIRST + number),
        "sent_time": BEGIN + timedelta(seconds=FIRST + number - 1),
        "destination_queue": f"DIRECT={QUEUE}",
    }  # fmt: skip
    return row(number, **{**given, **properties})


class World:
    """A capture, a folder of segments and a table, which are whole until somebody breaks them."""

    def __init__(self, folder: Path) -> None:
        self.capture, self.segments, self.table = (folder / name for name in ("plant.pcap", "segments", "table"))
        self.wire = Wire()
        for number in range(1, COUNT + 1):
            self.wire.message(number)
        self.wire.order_ack(COUNT)
        make_folder(self.segments, queue_manager=guids.guid_text(MANAGER))
        self.rows = [stored(number) for number in range(1, COUNT + 1)]

    def write(self, ingest: bool = True) -> None:
        self.capture.write_bytes(pcap(self.wire.frames))
        for serial, rows in enumerate((self.rows[:5], self.rows[5:]), 1):
            write_rows(self.segments, serial, rows)
        if ingest:
            self.ingest()

    def ingest(self) -> None:
        load(Job([str(self.segments)], str(self.table), segments_max=1)).run(False)

    def add_to_table(self, row: dict[str, Any], manager: bytes = MANAGER) -> None:
        row = {**row, "queue_manager": guids.guid_text(manager)}
        write_deltalake(self.table, pa.Table.from_pylist([row], SCHEMA), mode="append")

    def compared(self, spark: SparkSession) -> Compared:
        return compare(spark, str(self.capture), Folders([str(self.segments)]), str(self.table))


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path)
    spark.catalog.clearCache()


def found(result: Result) -> dict[str, list[int]]:
    """MessageIDs by kind."""
    kinds = {kind: [one.message_id for one in result.findings if one.kind == kind] for kind in KINDS}
    assert {kind: len(ids) for kind, ids in kinds.items()} == result.found
    return {kind: sorted(ids) for kind, ids in kinds.items() if ids}


def lose_everywhere(world: World) -> None:
    del world.rows[3]
    world.write()


def plant_many(world: World) -> None:
    """Faults that do not touch each other, beside what only looks like one. Bodies: 1 differs in segment and table, 2
    in its segment, 10 in the table, 899 between segment and table; 9 is sent again."""
    wire, rows, within = world.wire, world.rows, BEGIN + timedelta(seconds=9)
    for number in (11, 12, 13, 14):  # the last one is not acknowledged, so nobody has promised anything
        wire.message(number, QUEUE if number != 12 else "TCP:10.0.0.2\\private$\\other")
    wire.message(9)
    wire.order_ack(12)
    wire.final_ack(13, bytes_of.ACK_RECEIVE)  # which does without an OrderAck
    wire.final_ack(5, bytes_of.NACK_Q_PURGED)  # its sender knows that nobody has it
    rows[0]["body"] = rows[1]["body"] = b"x"
    del rows[3:5]
    rows += [rows[2], other(890, arrived=within), stored(6, STRANGER)]
    # of before and after the captures, over HTTP, and of this machine
    rows += [other(899, arrived=BEGIN - timedelta(seconds=9)), other(898, arrived=BEGIN)]
    rows += [other(897, arrived=BEGIN + timedelta(seconds=90)), other(896, arrived=within, over_http=True)]
    rows += [stored(6, MANAGER)]
    world.write()
    write_rows(world.segments, 3, [stored(11)])  # the ingest was stopped
    DeltaTable(world.table).delete("message_id = 107")
    DeltaTable(world.table).update({"body": "X''"}, predicate="message_id = 102")
    DeltaTable(world.table).update({"body": "X'78'"}, predicate="message_id in (110, 999)")
    world.add_to_table(stored(8))
    world.add_to_table(other(891, arrived=within))
    world.add_to_table(other(892, arrived=BEGIN - timedelta(seconds=9)), STRANGER)


def other(number: int, **properties: Any) -> dict[str, Any]:
    """The row of a message that does not tell how far its sequence was exported."""
    return stored(number, tx_sequence_number=0, **properties)


def stop_the_export_before_an_acknowledgement(world: World) -> None:
    """It came behind the last arrival; but messages behind the lost one are in the segments. Another queue is not
    exported at all, and nobody asks for it."""
    world.wire.message(11, "TCP:10.0.0.2\\private$\\other")
    world.wire.order_ack(11)
    del world.rows[3]
    world.rows = [{**row, "arrived": row["arrived"] - timedelta(seconds=1)} for row in world.rows]
    del world.rows[7:]
    world.write()


def lose_behind_a_hole_and_prune(world: World) -> None:
    """What was pruned is not missing, and what was sent in the hole is not known. The table's owner wants no bodies, so
    whether they are as they were sent is not known."""
    DeltaTable.create(world.table, pa.schema([field for field in SCHEMA if field.name != "body"]))
    world.wire.put(0, b"", hole=10)
    world.wire.message(11)
    world.rows.insert(7, stored(899, arrived=BEGIN + timedelta(seconds=9)))
    lose_everywhere(world)
    next(world.segments.glob("*-0000000001-*")).unlink()


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (
            plant_many,
            {
                "missing": [104, 113],
                "missing_in_table": [107],
                "twice_in_segments": [103],
                "twice_in_table": [103, 108],
                "never_sent": [990, 991],
                "in_no_segment": [991, 992],
                "not_ingested_yet": [111],
                "queue_not_exported": [112],
                "source_not_captured": [106],
                "other_body_in_segments": [101, 102],
                "other_body_in_table": [101, 110, 999],
            },
        ),
        (
            lose_behind_a_hole_and_prune,
            {
                "missing": [104],
                "perhaps_not_captured": [999],
                "body_not_compared": [*range(101, 104), *range(105, 111), 999],
            },
        ),
    ],
)
def test_reconcile_finds_and_names_planted_faults(
    spark: SparkSession, world: World, plant: Callable[[World], None], kinds: dict[str, list[int]]
) -> None:
    plant(world)
    compared = world.compared(spark)
    result = collect(compared, {})
    assert found(result) == kinds
    assert result.verdict == "violations"
    for one in result.findings:
        if one.kind in ("missing", "missing_in_table", "not_exported_yet"):
            frame = one.message_id - 100 + FIRST + (one.message_id > 110)  # behind an OrderAck
            assert one.sent == (str(world.capture), frame, round((BEGIN.timestamp() + frame - 1) * 1e6))
            assert one.acknowledged is not None
            assert one.acknowledged.frame > frame


def test_tables_of_iceberg_are_read(spark: SparkSession, world: World) -> None:
    """And Delta Lake's by all other tests here."""
    world.write(ingest=False)
    what = Job([str(world.segments)], str(world.table), "iceberg")
    load(what).run(False)
    assert sum(serials(str(world.table)).values()) == 2
    rows = read_rows(spark, str(world.table)).orderBy("message_id").collect()
    assert [(row.message_id, row.queue) for row in rows] == [(100 + number, "line1") for number in range(1, 11)]


@pytest.fixture
def signals() -> Iterator[None]:
    kept = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, kept)


@pytest.mark.usefixtures("signals", "spark")
def test_reconcile_command_names_each_finding(
    world: World, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_the_export_before_an_acknowledgement(world)
    results: list[Result] = []
    words = [str(world.capture), str(world.segments), str(world.table), "--queue", "LINE1"]
    monkeypatch.setattr(compare_module, "collect", lambda *given: results.append(collect(*given)) or results[0])
    status, said, _ = command(capfd, monkeypatch, *words)
    assert found(results[0]) == {"missing": [104], "not_exported_yet": [109, 110]}
    assert (status, "missing (1): acknowledged, and in no segment and no row of the table" in said) == (1, True), said
    board = guids.guid_text(BOARD)
    assert f"  {board}\\104 to DIRECT={QUEUE}, sent in {world.capture}:8 at 2023-11-14T22:13:27.250000Z" in said
    monkeypatch.setattr(compare_module, "compare", lambda *_, **__: None)
    monkeypatch.setattr(compare_module, "collect", lambda *_: results[0])  # reports of what has been found
    names = world.table.with_name("ordack.toml")
    names.write_text(f"[names]\n'{board}' = 'press-3'\n")
    status, said, _ = command(capfd, monkeypatch, *words, "--json", "--names", str(names))
    told = json.loads(said)
    assert (status, told["verdict"], len(told["findings"]), sum(told["found"].values())) == (1, "violations", 3, 3)
    assert {one["source_name"] for one in told["findings"]} == {"press-3"}
    nothing = dict.fromkeys(KINDS, 0)
    totals = results[0].totals
    assert totals["stored_meanwhile"] == 7
    for changes, status, text in (
        ({"found": nothing}, 0, "reconciled: 10 acknowledged messages of 10 in the captures"),
        ({"found": nothing | {"not_exported_yet": 2}}, 3, "not exported yet (2): acknowledged, and perhaps still in "),
        ({"found": nothing, "totals": totals | {"acknowledged": 0}}, 3, "the captures show no acknowledgement"),
        ({"found": nothing, "totals": totals | {"stored_meanwhile": 0}}, 3, "do the clocks of the captures and of"),
        ({"totals": totals | {"captured": 0}}, 2, f"there is no message to the queue LINE1 of {world.segments} in"),
    ):
        results[0] = dataclasses.replace(results[0], findings=[], **changes)  # type: ignore[arg-type]
        done = command(capfd, monkeypatch, *words)
        assert (done[0], text in done[1] + done[2]) == (status, True), done


@pytest.mark.usefixtures("signals")
def test_reconcile_reports_unusable_inputs(
    spark: SparkSession,
    world: World,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.write()
    capture, segments, table = (str(path) for path in (world.capture, world.segments, world.table))
    others = make_folder(tmp_path / "others", queue_manager=guids.guid_text(STRANGER))
    write_rows(others, 1, [stored(1)])
    assert compare(spark, capture, Folders([str(others)]), table).messages.where("ours").isEmpty()
    for words, text in (
        ((f"{tmp_path}/none.pcap", segments, table), "No such file"),
        ((segments, segments, table), "there are no pcap or pcapng files"),
        ((capture, table, table), "is no folder of segments"),
        ((capture, segments, f"{tmp_path}/none"), "there is no table"),
        ((capture, segments), "TABLE"),
    ):
        status, output, errors = command(capfd, monkeypatch, *words)
        assert (status, output) == (2, ""), (words, errors)
        assert text in " ".join(errors.replace("│", " ").split())  # typer puts lines into a box


def command(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["ordack", "table", "reconcile", *words])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return (int(ended.value.code or 0), *capfd.readouterr())


def test_reconcile_matches_serve_capture_export_and_ingest(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing here is made for the test: the names of queues and queue managers are those of the wire."""
    near, far, capture, segments = (tmp_path / name for name in ("near", "far", "far.pcapng", "segments"))
    ordack("init", "--store", far)
    ordack("queue", "create", "--store", far, "line1", "--transactional")
    guid = guid_of(far)
    number = next(one["id"] for one in as_json("queue", "list", "--store", far) if one["name"] == "line1")
    with Client(near, create=True) as client:
        for turn in range(20):
            name = f"PRIVATE={guid[1:-1]}\\{number:08X}" if turn % 2 else "DIRECT=OS:plant\\private$\\line1"
            client.send(name, b"%d" % turn, delivery="transactional", journal=turn % 3 == 0)
    receiver = Serve(far, "--capture", str(capture))
    hops = [f"{name}=127.0.0.1:{receiver.port}" for name in ("plant", guid)]
    sender = Serve(near, "--next-hop", hops[0], "--next-hop", hops[1])
    words = [
        sys.executable,
        "-m",
        "ordack",
        *f"table export line1 --store {far} --to {segments} --follow --json".split(),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as follow:
        assert follow.stdout
        count = 0
        while count < 20:
            count += json.loads(follow.stdout.readline())["messages"]
        until(lambda: not any(one["messages"] for one in outgoing_of(near)), "acknowledged")
        follow.terminate()
    assert (follow.returncode, sender.stop()[0], receiver.stop()[0]) == (0, 0, 0)
    table = tmp_path / "table"
    load(Job([str(segments)], str(table))).run(False)
    result = collect(compare(spark, str(capture), Folders([str(segments)]), str(table)), {})
    assert (found(result), result.verdict) == ({}, "reconciled")
    assert result.totals.pop("stored_meanwhile") > 0
    assert result.totals == {"captured": 20, "acknowledged": 20, "in_segments": 20, "in_table": 20}
