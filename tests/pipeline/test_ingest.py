"""`ordack table ingest`: what it puts into a table, what it refuses, and how others read the table.

Kills are in test_chain.py and lake_kills.py.
"""

from __future__ import annotations

import datetime
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from ordack import cli
from ordack.pipeline import iceberg
from ordack.pipeline.bodies import SchemaError
from ordack.pipeline.ingest import Job, Latency, Progress, ingest
from ordack.pipeline.lake import MALFORMED
from ordack.pipeline.segments import TIME, OptionError
from pyspark.sql import SparkSession

from hil.pipeline import QUICK_START
from tests.support.command import ENVIRONMENT
from tests.support.segment_files import row, write, write_rows
from tests.support.watched import until


def job(folder: Path, table: Path, table_format: str | None = None, **others: Any) -> Job:
    return Job([str(folder)], str(table), table_format, **others)


def rows(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["lookup_id"].to_pylist())


def test_latency_figures_are_quantiles() -> None:
    def times(*milliseconds: int) -> pa.ChunkedArray:
        return pa.chunked_array([pa.array([1000 * one for one in milliseconds]).cast(TIME)])

    def of(latency: Latency) -> list[float]:
        return [*(latency.figures() or {}).values()]

    latency = Latency()
    assert latency.figures() is None
    latency.add(times(*[1000] * 98, 3000), 4500)
    latency.add(times(10_000), 19_999)
    assert of(latency) == [3.5, 3.5, 3.5, 10.0], "to three digits, rounded up"
    latency.add(times(*[2000] * 900), 4500)
    assert of(latency) == [2.5, 2.5, 3.5, 10.0]
    ahead = Latency()
    ahead.add(times(5000), 4500)  # of a clock that is ahead
    assert of(ahead) == [-0.5, -0.5, -0.5, -0.5]


def test_each_ingest_run_adds_only_new_rows(spark: SparkSession, folder: Path, table: Path) -> None:
    """Of Delta Lake, too, in the tests below."""
    now = time.time_ns() // 1_000_000_000 * 1_000_000_000
    arrived, sent = np.datetime64(now - 5_000_000_000, "ns").item(), np.datetime64(now - 9_000_000_000, "ns").item()
    times = {"arrived": arrived // 1000, "sent_time": sent // 1000}
    body = b'{"t": 1.5, "at": "2026-11-21T18:30:00.123456Z"}'
    write_rows(folder, 1, [row(number, body=body, **times) for number in (1, 2)])
    write_rows(folder, 2, [row(3, body=b"{}", **times), row(4, body=b'{"t": "x"}', **times)])
    what = job(folder, table, "iceberg", schema="t DOUBLE, at TIMESTAMP", segments_max=1)
    batches: list[Progress] = []
    done = ingest(spark, what, tell=batches.append)
    assert (done.batches, done.rows, done.malformed, done.segments) == (2, 4, 1, 2)
    assert [(one.number, one.rows, one.malformed, one.segments, one.behind) for one in batches] == [
        (0, 2, 0, 1, 1), (1, 2, 1, 1, 0)]  # fmt: skip
    read = spark.read.parquet(*files(table)).orderBy("lookup_id").select("t", "_malformed").collect()
    assert [tuple(one) for one in read] == [
        (1.5, None), (1.5, None), (None, None), (None, 't: "x" is a string, the column is DOUBLE')]  # fmt: skip
    waited = time.time() - now / 1e9
    for latency, before in ((done.arrived_to_table, 5), (done.sent_to_table, 9)):
        figures = latency.figures()
        assert figures is not None
        assert before <= figures["p50"] <= figures["max"] <= before + waited
        assert sum(latency.milliseconds.values()) == 4
    assert "4 rows of 2 segments, in 2 batches; 1 with a body that does not fit the schema, the" in str(done)
    write(folder, 3, 5, 6)
    again = ingest(spark, what)
    assert (again.batches, again.rows, again.malformed) == (1, 2, 2)
    assert ingest(spark, what).rows == 0
    assert spark.read.parquet(*files(table)).select("lookup_id").distinct().count() == 6


def files(table: Path) -> list[str]:
    """What Spark reads of a table of Iceberg, whose packages for Java are not here."""
    return [one.file.file_path for one in iceberg.read_table(str(table)).scan().plan_files()]


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
        with pytest.raises(SystemExit, match=r"/nothing"):
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


def test_ingest_rejects_invalid_options_before_writing(spark: SparkSession, folder: Path, table: Path) -> None:
    write(folder, 1, 1, 1)
    with pytest.raises(SchemaError, match=r"does not take the schema 't DOBLE': .*Unsupported data type"):
        ingest(spark, job(folder, table, schema="t DOBLE"))
    assert not table.exists()
    with pytest.raises(OptionError, match="no table has the format 'csv'; there are delta, iceberg"):
        job(folder, table, table_format="csv")


@pytest.fixture
def signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ordack", "table", "ingest", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return (ended.value.code or 0, *capfd.readouterr())  # type: ignore[return-value]


@pytest.mark.usefixtures("signals", "spark")
def test_the_command_reports_for_people_and_for_machines(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 3)
    status, output, errors = run(capfd, monkeypatch, str(folder), "--to", str(table))
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
def test_a_segment_with_another_name_is_passed_over_and_told(
    folder: Path, table: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 1, 1, 1)
    write(folder, 2, 2, 2).rename(folder / "renamed.parquet")
    (folder / ".hidden").touch()
    status, _, errors = run(capfd, monkeypatch, str(folder), "--to", str(table))
    assert status == 0
    assert f"ordack: passed over in {folder}: renamed.parquet (no name that `ordack table export` gives)\n" in errors
    assert rows(table) == [1]


@pytest.mark.usefixtures("signals", "spark")
def test_ingest_command_reports_usage_errors_without_traceback(
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
    said = f"ordack: there is no folder {folder}/x, which `ordack table export` makes: No such file or directory\n"
    assert fails(str(folder / "x"), *to) == (2, said)
    assert fails(str(folder), *to, "--schema", "t INT NOT NULL")[0] == 2
    assert fails(str(folder), *to, "--bodies", "xml") == (
        2, "ordack: option --bodies is 'xml'; bodies are json or cbor\n")  # fmt: skip
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


def values(table: Path, *names: str) -> list[tuple[Any, ...]]:
    """These columns of the rows in a table, in the order of arrival."""
    found = DeltaTable(table).to_pyarrow_table() if (table / "_delta_log").exists() else (
        iceberg.read_table(str(table)).scan().to_arrow())  # fmt: skip
    found = found.sort_by("lookup_id")
    return [*zip(*(found[name].to_pylist() for name in names))]


@pytest.mark.usefixtures("signals", "spark")
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_an_ingest_decodes_bodies_as_the_table_was_begun(
    folder: Path, table: Path, table_format: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ingested(*more: str, status: int = 0) -> str:
        done, output, errors = run(capfd, monkeypatch, str(folder), "--to", str(table), *more)
        assert (done, "Traceback" in errors) == (status, False), errors
        return output + errors

    for serial, value in enumerate((1.5, 2.5, 3.5), 1):
        write(folder, serial, serial, serial, body=cbor2.dumps({"t": value, "u": serial}))
        ingested(*(["--schema", "t DOUBLE", "--format", table_format, "--bodies", "cbor"] if serial == 1 else []))
    assert values(table, "t", MALFORMED) == [(1.5, None), (2.5, None), (3.5, None)]
    write(folder, 4, 4, 4, body=b'{"t": 4.5, "u": 4}')
    for words, said in (
        (["--schema", "t STRING"], "t"),
        (["--schema", "t DOUBLE, u INT"], "u"),
        (["--prefix", "x"], "--prefix"),
        (["--schema", "t DOUBLE, T DOUBLE"], "T"),
    ):
        assert said in ingested(*words, status=2)
    ingested("--schema", "t DOUBLE", "--bodies", "json")
    write(folder, 5, 5, 5, body=cbor2.dumps({"t": 5.5, "u": 5}))
    ingested()
    assert values(table, "t")[2:] == [(3.5,), (4.5,), (5.5,)]


@pytest.mark.timeout(300)
def test_idle_ingest_waits_for_folder_and_detects_spark_exit(folder: Path, table: Path, tmp_path: Path) -> None:
    write(folder, 1, 1, 1)
    words = ["table", "ingest", folder, "--to", table, "--continuous", "--interval", "0.1", "--json"]
    log = tmp_path / "log"
    log.mkdir()
    given = (*QUICK_START, "spark.eventLog.enabled=true", f"spark.eventLog.dir={log}")
    settings = [word for setting in given for word in ("--conf", setting)]
    errors = tmp_path / "errors"
    with errors.open("w") as told, subprocess.Popen(
        [sys.executable, "-m", "ordack", *map(str, words), "--master", "local[1]", *settings],
        stdout=subprocess.PIPE, stderr=told, text=True, env=ENVIRONMENT,
    ) as running:  # fmt: skip
        guard = threading.Timer(200, running.kill)
        guard.start()
        assert running.stdout
        assert json.loads(running.stdout.readline())["rows"] == 1
        away = folder.rename(folder.with_name("away"))
        until(lambda: "Until it is there again" in errors.read_text(), "it is told")
        write(away, 2, 2, 3)
        away.rename(folder)
        assert json.loads(running.stdout.readline())["rows"] == 2
        [java] = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(java), signal.SIGKILL)
        running.wait()
        guard.cancel()
    assert running.returncode == 1, errors.read_text()
    assert "Spark's JVM has ended; what is in the table is whole" in errors.read_text()
    assert rows(table) == [1, 2, 3]
    assert [*log.iterdir()]  # Spark has taken the settings
