"""`ordack pipeline ingest`: what it puts into a table, what it refuses, and how others read the table.

Kills are in test_chain.py and lake_kills.py, of which one is here.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import runpy
import shutil
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from ordack import cli
from ordack.pipeline import iceberg, segments
from ordack.pipeline import stream as stream_module
from ordack.pipeline.bodies import SchemaError
from ordack.pipeline.folders import Place
from ordack.pipeline.gauges import Gauges
from ordack.pipeline.ingest import CHECKPOINT, Job, ingest
from ordack.pipeline.options import OptionError
from ordack.pipeline.progress import Batch, IngestError, IngestUnusable, Latency, Summary
from ordack.pipeline.segment_source import MALFORMED
from ordack.pipeline.segments import ADDED, SCHEMA
from ordack.pipeline.stream import LOCK, FileTable
from ordack.pipeline.table import METADATA, TableError, committed_files
from pyarrow import orc
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own manual has it
from pyspark.sql.types import StructType

from hil.dice import new_seed
from tests.pipeline import lake_kills
from tests.support.segment_files import key, make_folder, row, write, write_rows

COMPACTED = "spark.sql.streaming.fileSink.log.compactInterval"  # batches until metadata is drawn together


def job(folder: Path, table: Path, table_format: str | None = None, **others: Any) -> Job:
    options = {name: others.pop(name) for name in ("schema", "queue", "maxSegmentsPerTrigger") if name in others}
    return Job({"path": str(folder), **options}, str(table), table_format, **others)


def parquet(folder: Path, table: Path, **others: Any) -> Job:
    """A table with a checkpoint, which a stream of Spark's writes."""
    return job(folder, table, "parquet", **others)


def rows(table: Path) -> list[int]:
    if (table / "_delta_log").exists():
        return sorted(DeltaTable(table).to_pyarrow_table()["lookup_id"].to_pylist())
    return sorted(number for file in committed_files(table)
                  for number in pq.read_table(file)["lookup_id"].to_pylist())  # fmt: skip


def test_figures_are_quantiles_of_what_was_added() -> None:
    latency = Latency()
    assert latency.figures() is None
    latency.add([1000, 3000], [98, 1], 4500)  # milliseconds
    latency.add([10_000], [1], 19_999)
    assert latency.figures() == (3.5, 3.5, 3.5, 9.999)
    latency.add([2000], [900], 4500)
    assert latency.figures() == (2.5, 2.5, 3.5, 9.999)


@pytest.mark.parametrize("table_format", ["iceberg", "parquet"])
def test_each_run_adds_what_is_new_and_nothing_else(
    spark: SparkSession, folder: Path, table: Path, table_format: str
) -> None:
    """Of Delta Lake, too, in the tests below."""
    now = time.time_ns() // 1_000_000_000 * 1_000_000_000
    arrived, sent = np.datetime64(now - 5_000_000_000, "ns").item(), np.datetime64(now - 9_000_000_000, "ns").item()
    times = {"arrived": arrived // 1000, "sent_time": sent // 1000}
    body = b'{"t": 1.5, "at": "2026-11-21T18:30:00.123456Z"}'
    write_rows(folder, 1, [row(number, body=body, **times) for number in (1, 2)])
    write_rows(folder, 2, [row(3, body=b"{}", **times), row(4, body=b'{"t": "x"}', **times)])
    what = job(folder, table, table_format, schema="t DOUBLE, at TIMESTAMP", maxSegmentsPerTrigger="1")
    batches: list[Batch] = []
    before = spark.conf.get(stream_module.TIMESTAMPS)
    done = ingest(spark, what, tell=batches.append)
    assert spark.conf.get(stream_module.TIMESTAMPS) == before, "the session is as it was"
    assert (done.batches, done.rows, done.malformed, done.segments) == (2, 4, 1, 2)
    assert [(one.number, one.rows, one.malformed, one.segments, one.behind) for one in batches] == [
        (0, 2, 0, 1, 1), (1, 2, 1, 1, 0)]  # fmt: skip
    read = spark.read.parquet(*files(table, table_format)).orderBy("lookup_id").select("t", "_malformed").collect()
    assert [tuple(one) for one in read] == [
        (1.5, None), (1.5, None), (None, None), (None, 't: "x" is a string, the column is DOUBLE')]  # fmt: skip
    waited = time.time() - now / 1e9
    for latency, before in ((done.arrived_to_table, 5), (done.sent_to_table, 9)):
        figures = latency.figures()
        assert figures is not None
        assert before <= figures.p50 <= figures.max <= before + waited
        assert sum(latency.milliseconds.values()) == 4
    assert "4 rows of 2 segments, in 2 batches; 1 with a body that does not fit the schema, the" in str(done)
    write(folder, 3, 5, 6)
    again = ingest(spark, what)
    assert (again.batches, again.rows, again.malformed) == (1, 2, 2)
    if table_format == "parquet":
        check_files(table)
    else:  # another stream would take its time to find nothing
        assert ingest(spark, what).rows == 0
    assert spark.read.parquet(*files(table, table_format)).select("lookup_id").distinct().count() == 6


def check_files(table: Path) -> None:
    """Timestamps are in microseconds, and all is packed with ZSTD."""
    times = {"arrived", "sent_time", "at"}
    for file in map(pq.ParquetFile, committed_files(table)):
        kinds = {column.name: column.physical_type for column in map(file.schema.column, range(len(file.schema)))}
        assert {name: kinds[name] for name in times} == dict.fromkeys(times, "INT64")
        assert {str(file.schema_arrow.field(name).type) for name in times} == {"timestamp[us, tz=UTC]"}
        group = file.metadata.row_group(0)
        assert {group.column(number).compression for number in range(group.num_columns)} == {"ZSTD"}


def files(table: Path, table_format: str) -> list[str]:
    """What Spark reads of a table; of Iceberg it does not have the packages here."""
    if table_format == "iceberg":
        catalog, name = iceberg._catalog(str(table))
        return [one.file.file_path for one in catalog.load_table(name).scan().plan_files()]
    return [str(table)]


def test_the_examples_read_segments_and_the_table(
    spark: SparkSession, folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrived = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
    write_rows(folder, 1, [row(1), row(2, arrived=arrived)])
    ingest(spark, job(folder, table))
    examples = Path(__file__).resolve().parents[2] / "host" / "examples"
    for name, of in (("spark_source.py", folder), ("read_table.py", table)):
        monkeypatch.setattr(sys, "argv", [name, str(of)])
        runpy.run_path(str(examples / name))
        monkeypatch.setattr(sys, "argv", [name, str(of / "nothing")])
        with pytest.raises(SystemExit, match=r"^there is no (folder|table of Delta Lake in) /.*/nothing"):
            runpy.run_path(str(examples / name))
    counted, kind, read = capsys.readouterr().out.splitlines()
    assert (counted, kind) == ("1 messages since then", "a stream")
    assert read.startswith("2 messages, columns queue_manager, queue, ")


def test_the_notebook_shows_windows_and_gaps(
    spark: SparkSession, folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [b'{"temperature": %d}' % number for number in (10, 20, 40)]
    write_rows(folder, 1, [row(number, body=body) for number, body in zip((1, 2, 5), bodies, strict=True)])
    ingest(spark, job(folder, table))
    monkeypatch.setenv("SEGMENTS", str(folder))
    monkeypatch.setenv("TABLE", str(table))
    notebook = json.loads((Path(__file__).resolve().parents[2] / "host/examples/readings.ipynb").read_text())
    known: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "it is kept as nobody has run it"
            exec("".join(cell["source"]), known)
    (minute,) = known["minutes"].collect()
    assert (minute.readings, round(minute["mean"], 3), minute.highest) == (3, 23.333, 40.0)
    (gap,) = known["gaps"].collect()
    assert (gap.queue, gap.lacking) == ("line1", 2)
    assert capsys.readouterr().out.endswith("3 rows in the table\n")


def test_a_continuous_run_takes_what_comes_until_it_is_told_to_stop(
    spark: SparkSession, folder: Path, table: Path
) -> None:
    write(folder, 1, 1, 3)
    got: list[Batch] = []

    def tell(batch: Batch) -> None:
        got.append(batch)
        if batch.number < 2:
            write(folder, batch.number + 2, 10 * (batch.number + 1), 10 * (batch.number + 1))
            write(folder, batch.number + 1, batch.number + 1, batch.number + 1, "other")

    done = ingest(spark, job(folder, table, queue="line1"), continuous=True, interval=0.05, tell=tell,
                  stop=lambda: len(got) == 3)  # fmt: skip
    assert [batch.rows for batch in got] == [3, 1, 1]
    assert done.rows == 5
    assert rows(table) == [1, 2, 3, 10, 20]


def test_other_readers_are_told_which_files_belong_to_the_table(spark: SparkSession, folder: Path, table: Path) -> None:
    with pytest.raises(TableError, match="is no table that a stream of Spark has written"):
        committed_files(table)
    for serial in range(1, 6):
        write(folder, serial, serial, serial)
    spark.conf.set(COMPACTED, "3")
    try:
        ingest(spark, parquet(folder, table, maxSegmentsPerTrigger="1"))
    finally:
        spark.conf.unset(COMPACTED)
    found = committed_files(table)
    (table / "part-00000-of-a-batch-that-was-killed.snappy.parquet").write_bytes(found[0].read_bytes())
    assert committed_files(table) == found
    assert [pq.read_table(file)["lookup_id"].to_pylist() for file in found] == [[number] for number in range(1, 6)]
    assert list((table / METADATA).glob("*.compact")), "it was not drawn together"
    spark.catalog.refreshByPath(str(table))
    frame = spark.read.parquet(str(table))
    assert {name.rpartition("/")[2] for name in frame.inputFiles()} == {file.name for file in found}
    moved = table.rename(table.with_name("moved"))
    assert rows(moved) == list(range(1, 6))
    newest = max(int(file.name) for file in (moved / METADATA).glob("[0-9]*") if file.name.isdecimal())
    (moved / METADATA / str(newest - 1)).unlink()
    with pytest.raises(TableError, match="has holes"):
        committed_files(moved)


def test_a_table_that_was_moved_or_copied_goes_on_and_all_readers_see_each_row_once(
    spark: SparkSession, folder: Path, table: Path
) -> None:
    spark.conf.set(COMPACTED, "2")
    try:
        for serial in range(1, 4):
            write(folder, serial, serial, serial)
            ingest(spark, parquet(folder, table))
        copy = Path(shutil.copytree(table, table.with_name("W\u00e4rme, 20 %25")))
        moved = table.rename(table.with_name("moved"))
        write(folder, 4, 4, 4)
        for place in (copy, moved):
            ingest(spark, job(folder, place))
            write(folder, 5, 5, 5)
            ingest(spark, job(folder, place / ".." / place.name))
    finally:
        spark.conf.unset(COMPACTED)
    for place in (copy, moved):
        files = list(map(str, committed_files(place)))
        read = {
            "pyarrow": pq.read_table(files)["lookup_id"].to_pylist(),
            "polars": polars.read_parquet(files)["lookup_id"].to_list(),
            "duckdb": [one for (one,) in duckdb.sql(f"SELECT lookup_id FROM read_parquet({files})").fetchall()],
            "spark": [one.lookup_id for one in spark.read.parquet(str(place)).select("lookup_id").collect()],
        }
        assert {tuple(sorted(found)) for found in read.values()} == {(1, 2, 3, 4, 5)}, read
    link = table.with_name("link")
    link.symlink_to(moved)
    with pytest.raises(IngestUnusable, match=f"link is {moved} by another name"):
        ingest(spark, job(folder, link))
    shutil.copytree(moved, table)
    gone = committed_files(table)[1]
    gone.unlink()
    with pytest.raises(IngestUnusable, match=f"was moved or copied without its file {gone.name}"):
        ingest(spark, job(folder, table))


def test_segments_and_tables_of_older_versions_are_gone_on_with(
    spark: SparkSession, folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had fewer columns, and tables those of the bodies behind. Readers that put files together by the order get
    what they had. With a checkpoint at another place, and in ORC."""
    more: dict[str, Any] = {"schema": "t DOUBLE, `u.v` STRING", "checkpoint": str(folder.with_name("checkpoint"))}
    kept = pa.schema([field for field in SCHEMA if field.name not in ADDED])
    with monkeypatch.context() as older:
        older.setattr(segments, "SCHEMA", kept)
        write(folder, 1, 1, 1, body=b'{"t": 1.5, "u.v": "a"}')
        order = [*kept.names, "t", "`u.v`", MALFORMED]
        older.setattr(FileTable, "fitted", lambda _self, _spark, frame: frame.select(*order))
        ingest(spark, job(folder, table, "orc", **more))
    write(folder, 2, 2, 2, body=b'{"t": 2.5, "u.v": "b"}')
    ingest(spark, job(folder, table, **more))  # the format is found
    found = spark.read.orc(str(table)).orderBy("lookup_id")
    assert [tuple(one) for one in found.select("t", "`u.v`", "lookup_id", "_malformed").collect()] == [
        (1.5, "a", 1, None), (2.5, "b", 2, None)]  # fmt: skip
    names = [*kept.names, "t", "u.v", MALFORMED]
    assert [orc.ORCFile(file).schema.names for file in committed_files(table)] == [names, names]
    frame = spark.read.format("ordack").load(str(folder))
    assert frame.where(F.col("message_key") == key(1)).select("lookup_id").collect() == [Row(lookup_id=1)]


def test_the_format_of_a_table_that_is_there_is_found(folder: Path, table: Path) -> None:
    assert job(folder, table).table_format == "delta"
    (table / CHECKPOINT / "offsets").mkdir(parents=True)
    assert job(folder, table).table_format == "parquet", "killed before its first batch was in it"
    (table / METADATA).mkdir()
    log = ["v1", json.dumps({"path": f"file://{table}/part-1.snappy.orc", "action": "add"})]
    (table / METADATA / "0").write_text("\n".join(log))
    assert job(folder, table).table_format == "orc"


def test_a_stream_that_starts_too_slowly_is_begun_again(
    spark: SparkSession, folder: Path, table: Path, slow_start: Path
) -> None:
    write(folder, 1, 1, 3)
    summary = ingest(spark, parquet(folder, table))
    assert slow_start.exists()
    assert (summary.rows, spark.read.parquet(str(table)).count()) == (3, 3)


def test_two_ingests_do_not_share_a_checkpoint(
    spark: SparkSession, folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    monkeypatch.setattr(stream_module, "LOCK_PATIENCE_S", 0.1)
    monkeypatch.setattr(stream_module, "POLL_S", 0.05)
    (table / CHECKPOINT).mkdir(parents=True)
    (table / METADATA).mkdir()  # as a kill before the first batch leaves it
    with (table / CHECKPOINT / LOCK).open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)  # as a JVM holds it
        with pytest.raises(IngestError, match="another ingest is at work with the checkpoint"):
            ingest(spark, parquet(folder, table))

    def tell(batch: Batch) -> None:
        with pytest.raises(IngestError, match="another ingest is at work with the checkpoint"):
            ingest(spark, parquet(folder, table))

    assert ingest(spark, parquet(folder, table), tell=tell).rows == 1


def test_what_cannot_be_is_told_before_anything_is_written(spark: SparkSession, folder: Path, table: Path) -> None:
    write(folder, 1, 1, 1)
    with pytest.raises(SchemaError, match=r"does not take the schema 't DOBLE': .*Unsupported data type"):
        ingest(spark, job(folder, table, schema="t DOBLE"))
    assert not table.exists()
    with pytest.raises(OptionError, match="no table has the format 'csv'; there are delta, iceberg, parquet, orc"):
        job(folder, table, table_format="csv")
    with pytest.raises(OptionError, match="--partition-by and --add-columns are for delta and iceberg, not parquet"):
        parquet(folder, table, add_columns=True)
    with pytest.raises(OptionError, match="--partition-by day makes a column of that name, and the schema has one"):
        ingest(spark, job(folder, table, schema="Day INT", by=("day",)))


def test_a_server_is_asked_what_is_in_a_folder_and_what_is_in_the_table(
    spark: SparkSession, folder: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a session here in the place of the server's: both are asked by reading."""
    monkeypatch.setattr(stream_module, "is_remote", lambda spark: True)
    asked = table.with_name("a [b]{c,d}*?")
    assert not stream_module.holds_files(spark, str(asked))
    asked.mkdir()
    (asked / "_hidden").touch()
    (asked / ".hidden").touch()
    assert not stream_module.holds_files(spark, str(asked))
    (asked / "0").touch()
    assert stream_module.holds_files(spark, str(asked))
    what = parquet(folder, table)
    assert stream_module._in_table(spark, what.files(), {})
    assert not stream_module._in_table(spark, what.files(), {Place("folder-1", "line1"): 1})
    write(folder, 1, 1, 1)
    write(folder, 2, 2, 2)
    in_table, answers = stream_module._in_table, list[bool]()
    with monkeypatch.context() as stopped:
        stopped.setattr(stream_module, "_in_table", lambda *asked: bool(answers.append(in_table(*asked))))
        with pytest.raises(IngestError, match="the stream was stopped on the server, by another ingest with the check"):
            ingest(spark, what)
    assert answers == [True], "it was not, and would have been found at its end"
    assert not stream_module._in_table(spark, what.files(), {Place("folder-1", "line1"): 3})
    assert not stream_module._in_table(
        spark, what.files(), {Place("folder-1", "line1"): 2, Place("folder-1", "other"): 1}
    )


def test_the_summary_of_nothing_is_no_figure() -> None:
    assert str(Summary("t")) == "t: 0 rows"
    assert Summary("t").as_json()["latency_s"] == {
        "arrived_to_table": None, "sent_to_table": None,
        "resolution": {"arrived_to_table": 0.001, "sent_to_table": 1}}  # fmt: skip


@pytest.fixture
def signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ordack", "pipeline", "ingest", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return (ended.value.code or 0, *capfd.readouterr())  # type: ignore[return-value]


@pytest.mark.usefixtures("signals", "spark")
def test_the_command_reports_for_people_and_for_machines(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 3)
    status, output, errors = run(capfd, monkeypatch, str(folder), "--to", str(table), "--partition-by", "queue")
    assert (status, errors) == (0, "")
    assert output.startswith(f"{table}: 3 rows of 1 segment, in 1 batch\nfrom arrival in the queue to the table: ")
    assert output.endswith("(of sending only the second is known: up to 1 s too long)\n")
    write(folder, 2, 4, 5)
    status, output, errors = run(capfd, monkeypatch, str(folder), "--to", str(table), "--json")
    batch, summary = map(json.loads, output.splitlines())
    assert (status, errors) == (0, "")
    assert (batch["batch"], batch["rows"], batch["malformed"], batch["behind"]) == (0, 2, None, 0)
    assert summary["rows"] == 2
    assert summary["latency_s"]["arrived_to_table"].keys() == {"p50", "p90", "p99", "max"}


@pytest.mark.usefixtures("signals", "spark")
def test_an_ingest_is_watched_by_prometheus(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for serial in range(1, 4):
        write(folder, serial, serial, serial, body=b"{" if serial == 2 else b'{"t": 1}')
    seen: list[str] = []
    told = Gauges.tell
    places: list[int] = []
    served = Gauges.served

    @contextlib.contextmanager
    def serve(self: Gauges, address: tuple[str, int]) -> Iterator[int]:
        with served(self, address) as port:
            places.append(port)
            yield port

    def tell(self: Gauges, batch: Batch) -> None:
        told(self, batch)
        with urllib.request.urlopen(f"http://127.0.0.1:{places[0]}/metrics") as answer:
            seen.append(answer.read().decode())

    monkeypatch.setattr(Gauges, "served", serve)
    monkeypatch.setattr(Gauges, "tell", tell)
    words = [str(folder), "--to", str(table), "--schema", "t DOUBLE"]
    status, _, errors = run(capfd, monkeypatch, *words, "--metrics", "0", "--segments-max", "2")
    assert (status, len(seen)) == (0, 2), errors
    samples = dict(line.rsplit(" ", 1) for line in seen[1].splitlines() if line[0] != "#")
    wanted = {"batches_total": 2, "rows_total": 3, "segments_total": 3, "malformed_total": 1, "segments_behind": 0}
    assert {name: float(samples[f"ordack_ingest_{name}"]) for name in wanted} == wanted
    assert float(samples['ordack_ingest_arrival_to_table_seconds{quantile="0.99"}']) > 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{places[0]}/metrics")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        status, _, errors = run(capfd, monkeypatch, *words, "--metrics", place)
        assert (status, f"cannot listen on {place} (--metrics)" in errors) == (2, True)
    assert run(capfd, monkeypatch, *words, "--metrics", "port")[0] == 2


def test_a_table_keeps_to_the_checkpoint_that_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's file sink leaves out a batch whose number the table has, whoever's it was."""
    places = [tmp_path / name for name in ("one", "other")]
    for place in places:
        (place / CHECKPOINT).mkdir(parents=True)
        FileTable(str(place), "parquet", str(place / CHECKPOINT), place / CHECKPOINT).bind()  # the stream has not begun
        (place / CHECKPOINT / "metadata").write_text(json.dumps({"id": place.name}))
        FileTable(str(place), "parquet", str(place / CHECKPOINT), place / CHECKPOINT).bind()
    places[0].rename(tmp_path / "moved")
    for table, checkpoint in (("moved", "moved"), ("other", "other")):
        place = tmp_path / checkpoint / CHECKPOINT
        FileTable(str(tmp_path / table), "parquet", str(place), place).bind()
    monkeypatch.setattr(stream_module, "holds_files", lambda *_: True)
    without_spark: Any = None
    with pytest.raises(IngestUnusable, match="is that of another table than"):
        FileTable(str(tmp_path / "moved"), "parquet", str(place), place).check(without_spark, StructType())


def test_a_checkpoint_that_a_copy_of_the_table_has_gone_on_with_is_refused(tmp_path: Path) -> None:
    """What it has put into the copy would be missing here."""
    place = tmp_path / "checkpoint"
    tables = [FileTable(str(tmp_path / name), "parquet", str(place), place) for name in ("one", "copy")]
    (place / "commits").mkdir(parents=True)
    (place / "metadata").write_text(json.dumps({"id": "stream"}))
    for table in tables:
        log = Path(table.table, METADATA)
        log.mkdir(parents=True)
        for name in ("9.compact", "10", ".10.crc"):
            (log / name).touch()
        (place / "commits" / "10").touch()
        table.bind()
    for name in ("11", "12"):  # a kill before a batch is told to the checkpoint leaves it behind
        (tmp_path / "copy" / METADATA / name).touch()
        tables[1].bind()
    (place / "commits" / "11").touch()
    tables[1].bind()
    with pytest.raises(IngestUnusable, match="has batches that are not in"):
        tables[0].bind()


@pytest.mark.usefixtures("signals", "spark")
def test_what_does_not_belong_together_is_unusable_input(
    folder: Path, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    assert run(capfd, monkeypatch, str(folder), "--to", str(table), "--format", "parquet")[0] == 0
    other = make_folder(tmp_path / "new", "folder-2")
    write(other, 1, 1, 1)
    for words, text in (
        ([folder, "--to", table, "--checkpoint", tmp_path / "checkpoint"], "with another checkpoint"),
        ([folder, "--to", table, "--format", "delta"], "is a table of the format parquet, and goes on as that"),
        ([folder, "--to", tmp_path / "table-2", "--checkpoint", table / CHECKPOINT], "keeps itself what is in it"),
        (
            [folder, "--to", tmp_path / "table-2", "--format", "parquet", "--checkpoint", table / CHECKPOINT],
            "belongs to a table that is not",
        ),
        (
            [folder, "--to", table, "--schema", "t DOUBLE"],
            "has other columns (only in the table: nothing; only in this ingest: t double, _malformed string)",
        ),
        ([folder, "--to", folder], "holds files that no ingest has written"),
        ([other, "--to", table], "is not the folder that this stream has read before"),
    ):
        status, output, errors = run(capfd, monkeypatch, *map(str, words))
        assert (status, output) == (2, "")
        assert text in errors
    assert rows(table) == [1]
    assert not (folder / CHECKPOINT).exists()
    (folder / "line1-0000000001-1-1.parquet").unlink()
    write(folder, 3, 3, 3)
    status, _, errors = run(capfd, monkeypatch, str(folder), "--to", str(table))
    assert (status, "segment 2 of the queue line1 is missing" in errors) == (2, True)
    damaged = write(folder, 2, 2, 2)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for to in (table, tmp_path / "table-3"):  # of Parquet, and of Delta Lake
        status, _, errors = run(capfd, monkeypatch, str(folder), "--to", str(to))
        assert (status, f"the segment {damaged} is damaged" in errors) == (2, True)
    write(folder, 2, 2, 2)
    assert run(capfd, monkeypatch, str(folder), "--to", str(table))[0] == 0
    assert rows(table) == [1, 2, 3]


@pytest.mark.usefixtures("signals", "spark")
def test_a_segment_with_another_name_is_passed_over_and_told(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    write(folder, 2, 2, 2).rename(folder / "renamed.parquet")
    (folder / ".hidden").touch()
    status, _, errors = run(capfd, monkeypatch, str(folder), "--to", str(table))
    assert status == 0
    assert f"ordack: passed over in {folder}: renamed.parquet (no name that `ordack export` gives)\n" in errors
    assert rows(table) == [1]


@pytest.mark.usefixtures("signals", "spark")
def test_the_command_says_what_is_wrong_in_words(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: str) -> tuple[int, str]:
        status, output, errors = run(capfd, monkeypatch, *words)
        assert output == ""
        assert "Traceback" not in errors
        return status, errors

    to = ("--to", str(table))
    (folder.parent / "file").write_bytes(b"x")
    assert fails(str(folder.parent / "file"), *to) == (
        2,
        f"ordack: {folder.parent}/file is a file: name the folder of segments\n",
    )
    assert fails(str(folder / "x"), *to) == (2, f"ordack: there is no folder {folder}/x: `ordack export` makes it\n")
    assert fails(str(folder), *to, "--schema", "t INT NOT NULL")[0] == 2
    assert fails(str(folder), *to, "--bodies", "xml") == (
        2, "ordack: option format (--bodies) is 'xml'; bodies are json or cbor\n")  # fmt: skip
    assert "(--prefix)" in fails(str(folder), *to, "--schema", "label STRING")[1]
    status, errors = fails(str(folder), *to, "--conf", "spark.x")
    assert (status, "--conf spark.x is not of the form KEY=VALUE" in errors) == (2, True)
    table.mkdir()
    (table / "readme.txt").touch()
    said = f"ordack: {table} holds files that no ingest has written: name a new folder\n"
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert fails(str(folder), *to) == (2, said), "told before Spark is looked for"
    (table / "readme.txt").unlink()
    status, errors = fails(str(folder), *to)
    assert (status, "Spark needs a Java runtime, 17 or newer" in errors) == (2, True)


@pytest.mark.timeout(600)
def test_a_stream_of_sparks_that_is_killed_at_a_step_puts_each_row_into_the_table_once(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed)
    assert sum(lake_kills.run(tmp_path, "parquet", 1, seed).values()) == 1
