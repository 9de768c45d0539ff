"""`make bench`: the pipeline against its peers, measured in the same run, one JSON object a line.

    python -m tests.bench.bench_pipeline [audit] [memory] ... [--size PACKETS] [--rounds N] [--keep DIR]

Figures are medians over the rounds; `ratio` is more than 1 where we are faster. Nothing is asserted: machines differ.
Captures come from tests/support/capture_generator.py: so many packets
over up to 10,000 streams, with planted violations.
That a cluster of two workers that loses an executor in each stage gives the same answer is no figure:
`python -m tests.pipeline.test_cluster`, in `make pipeline`, shows it.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.support import capture_generator

Result = TypeVar("Result")

CORES = 2
PER_STREAM = 1000  # packets
STREAMS, FEW_PACKETS = 1_000_000, 10  # of one bench: as many, of so many packets
FILES, DESCRIPTORS = 5000, 256  # of another
SAMPLE_S = 0.1  # between two looks at the memory


def report(**values: object) -> None:
    """Prints one result; four digits are enough."""
    rounded = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}
    print(json.dumps(rounded), flush=True)


# ---- what all benches share


class Fleet:
    """The generated capture of a size, made when it is first needed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self._made: dict[tuple[int, int], tuple[list[Path], capture_generator.FleetTruth]] = {}

    def capture(self, size: int, streams: int = 0) -> tuple[list[Path], capture_generator.FleetTruth]:
        """Files and what is in them. streams: 0: one for PER_STREAM packets, up to 10,000."""
        streams = streams or min(10_000, max(400, size // PER_STREAM))
        if (size, streams) not in self._made:
            name = f"fleet-{size}-{streams}"
            paths = [self.folder / f"{name}-{part}.pcap" for part in range(max(1, size // 10_000_000))]
            note = self.folder / f"{name}-{self.seed}.json"
            if note.exists():
                truth = capture_generator.FleetTruth(**json.loads(note.read_text()))
            else:
                started = time.perf_counter()
                truth = capture_generator.write_fleet(paths, size, streams, self.seed)
                report(bench="generator", packets=truth.packets, seconds=time.perf_counter() - started)
                note.write_text(json.dumps(truth._asdict()))
            self._made[size, streams] = (paths, truth)
        return self._made[size, streams]


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def processes_of(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(above, []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


class Cost(NamedTuple):
    """Of one call: seconds on the clock, and of processors, of this process and all below it."""

    seconds: float
    cpu_seconds: float


def cpu_seconds() -> float:
    """What this process and all below it have taken of processors; other load does not change it much."""
    ticks = 0
    for process in processes_of(os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(taken: dict[str, list[Cost]], name: str, call: Callable[[], Result]) -> Result:
    """Calls, and notes what that cost."""
    started, cpu = time.perf_counter(), cpu_seconds()
    result = call()
    taken.setdefault(name, []).append(Cost(time.perf_counter() - started, cpu_seconds() - cpu))
    return result


def planted(truth: capture_generator.FleetTruth) -> Counter[str]:
    """Violations by kind."""
    return Counter(one["kind"] for one in truth.planted)


# ---- audit: ours from the capture files against DuckDB on decoded rows


def decoded_rows(paths: list[Path], target: Path) -> None:
    """The packets of a capture as Parquet with the columns that the SQL needs, numbered in the capture's order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from ordack.capture import columnar

    from tests.bench import duckdb_audit

    wanted = [name for name in duckdb_audit.COLUMNS if name not in ("row", "time")]
    writer: pq.ParquetWriter | None = None
    done = 0
    for batch in columnar.batches([*paths], rows=1 << 20):
        packets = batch["kind"] < 7
        arrays: dict[str, Any] = {name: batch[name][packets] for name in wanted}
        arrays["direction"], arrays["kind"] = arrays["direction"].astype(np.uint8), arrays["kind"].astype(np.uint8)
        arrays["time"] = batch.time[packets]
        count = len(arrays["time"])
        arrays["row"] = np.arange(done, done + count)
        done += count
        table = pa.table(arrays)
        writer = writer or pq.ParquetWriter(target, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


def spark_session() -> Any:
    """Spark on as many cores as DuckDB has threads."""
    from ordack.pipeline.spark import spark_session

    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each query of a source would compile this package again
    return spark_session(f"local[{CORES}]", settings={"spark.ui.enabled": "false"})


def decode_in_tasks(spark: Any, paths: list[Path]) -> int:
    """The packets of a capture decoded by tasks into the columns of an audit; only their number comes back."""
    from ordack.audit import replay
    from ordack.capture import columnar

    files = columnar.in_order(paths)
    by_ports = columnar.divides_by_ports(files, CORES)

    def count(part: int) -> int:
        rows = columnar.batches(files, part, CORES, replay.BATCH_ROWS, replay.COLUMNS, by_ports=by_ports)
        return sum(batch.rows for batch in rows)

    return int(spark.sparkContext.parallelize(range(CORES), CORES).map(count).sum())


def decode_to_rows(spark: Any, paths: list[Path]) -> None:
    """The packets of a capture as rows of Spark with all columns, which go nowhere."""
    rows = spark.read.format("mqqb").load(str(paths[0].parent / f"{paths[0].name.rpartition('-')[0]}-*.pcap"))
    rows.write.format("noop").mode("overwrite").save()


def bench_audit(fleet: Fleet, size: int, rounds: int) -> None:
    """Audit of capture files in Spark's tasks against DuckDB's SQL on rows that are decoded already."""
    import duckdb
    from ordack.audit import tasks

    from tests.bench import duckdb_audit

    paths, truth = fleet.capture(size)
    warm, _ = fleet.capture(100_000)
    rows = fleet.folder / f"rows-{size}-{fleet.seed}.parquet"
    if not rows.exists():
        decoded_rows(paths, rows)
    spark = spark_session()
    tasks.run(warm, spark=spark)
    decode_in_tasks(spark, warm)
    decode_to_rows(spark, warm)
    with duckdb.connect(config={"threads": CORES}) as database:
        database.execute(f"CREATE TABLE loaded AS SELECT * FROM read_parquet('{rows}')")
        tables = {"memory": "loaded", "parquet": f"read_parquet('{rows}')"}
        taken: dict[str, list[Cost]] = {}
        for _ in range(rounds):
            for name, table in tables.items():
                answer = measured(taken, name, lambda: duckdb_audit.audit(database, table))  # noqa: B023
            result = measured(taken, "ours", lambda: tasks.run(paths, spark=spark))
            measured(taken, "tasks", lambda: decode_in_tasks(spark, paths))
            measured(taken, "rows", lambda: decode_to_rows(spark, paths))
    spark.stop()
    took = {name: statistics.median(cost.seconds for cost in costs) for name, costs in taken.items()}
    cpu = {name: statistics.median(cost.cpu_seconds for cost in costs) for name, costs in taken.items()}
    expected = planted(truth)
    found = Counter({kind: count for kind, count in result.summary["violations"].items() if count})
    also = Counter({kind: len(rows_found) for kind, rows_found in answer.violations.items() if rows_found})
    peer, peer_cpu = min(took["memory"], took["parquet"]), min(cpu["memory"], cpu["parquet"])
    report(
        bench="audit",
        packets=truth.packets,
        streams=truth.streams,
        bytes=truth.bytes,
        peer="DuckDB, 2 threads, SQL on decoded rows",
        peer_memory_seconds=took["memory"],
        peer_parquet_seconds=took["parquet"],
        seconds=took["ours"],
        packets_per_second=truth.packets / took["ours"],
        ratio=peer / took["ours"],
        wanted_ratio=3,
        cpu_seconds=cpu["ours"],
        peer_cpu_seconds=peer_cpu,
        cpu_ratio=peer_cpu / cpu["ours"],
        rounds={name: [round(cost.seconds, 3) for cost in costs] for name, costs in taken.items()},
    )
    report(
        bench="audit over decode",
        decode_to_rows_seconds=took["rows"],
        decode_in_tasks_seconds=took["tasks"],
        audit_seconds=took["ours"],
        audit_by_decode_to_rows=took["ours"] / took["rows"],
        audit_by_decode_in_tasks=took["ours"] / took["tasks"],
        wanted_below=1.5,
        cpu_seconds={name: cpu[name] for name in ("rows", "tasks", "ours")},
    )
    report(
        bench="audit finds",
        planted=dict(expected),
        # the planted ones that are renumbered are accepted under both numbers
        ours_equal=found == expected + Counter({"delivered_twice": expected["renumbered"]}),
        duckdb_equal=also == expected,
        ours=dict(found),
        duckdb=dict(also),
        unknown=len(result.unknowns),
        messages_equal=result.summary["messages"] == truth.messages == answer.messages,
        resends_equal=result.summary["resends"] == truth.resends == answer.resends,
    )


def bench_audit_stages(fleet: Fleet, size: int, rounds: int) -> None:
    """What more tasks cost: bytes that they read, and processor time, of 32 against 2 and against one that does all."""
    from ordack.audit import tasks

    paths, truth = fleet.capture(size)
    warm, _ = fleet.capture(100_000)
    spark = spark_session()
    total = sum(path.stat().st_size for path in paths)
    for parts in (1, 32):
        tasks.run(warm, spark=spark, parts=parts)
    taken: dict[str, list[Cost]] = {}
    read: dict[int, float] = {}
    summaries = []
    for _ in range(rounds):
        for parts in (1, 2, 32):
            result = measured(taken, str(parts), lambda: tasks.run(paths, spark=spark, parts=parts))  # noqa: B023
            read[parts] = result.bytes_read / total
            summaries.append(result.summary)
    spark.stop()
    cpu = {name: statistics.median(cost.cpu_seconds for cost in costs) for name, costs in taken.items()}
    report(
        bench="audit stages",
        packets=truth.packets,
        bytes=total,
        bytes_read_by_input=read[32],
        wanted_bytes_below=1.2,
        cpu_seconds=cpu,
        seconds={name: statistics.median(cost.seconds for cost in costs) for name, costs in taken.items()},
        cpu_32_by_2=cpu["32"] / cpu["2"],
        wanted_cpu_below=1.5,
        same=all(summary == summaries[0] for summary in summaries),
    )


def bench_address(fleet: Fleet, size: int, rounds: int) -> None:
    """A fleet behind one address, each board with a connection after the other: packets that are replayed again because
    shares know parts of a stream."""
    from ordack.audit import stages, tasks

    paths, truth = fleet.capture(400_000, 10_000)
    path = fleet.folder / "one-address.pcap"
    senders, connections = 10_000 // capture_generator.QUEUES, capture_generator.behind_one_address(paths[0], path)
    again: list[int] = []
    replay = stages.Stages.again

    def counted(self: stages.Stages, *pairs: Any) -> Any:
        found = replay(self, *pairs)
        again.append(found.packets)
        return found

    stages.Stages.again = counted  # type: ignore[method-assign]
    try:
        whole, shared = tasks.run([path]), tasks.run([path], parts=32, range_bytes=path.stat().st_size // 32)
    finally:
        stages.Stages.again = replay  # type: ignore[method-assign]
    report(
        bench="audit, one address",
        packets=truth.packets,
        senders=senders,
        reconnects=connections - senders,
        packets_replayed_again=sum(again),
        wanted_again=0,
        bytes_read_by_input=shared.bytes_read / path.stat().st_size,
        same=shared.summary == whole.summary,
    )


def bench_files(fleet: Fleet, size: int, rounds: int) -> None:
    """An audit of many files by a process that may open few."""
    paths, truth = fleet.capture(100_000)
    folder = fleet.folder / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    data, records, at = paths[0].read_bytes(), [], 24
    while at < len(data):
        records.append(data[at : at + 16 + struct.unpack_from("<I", data, at + 8)[0]])
        at += len(records[-1])
    for number in range(FILES):
        own = records[len(records) * number // FILES : len(records) * (number + 1) // FILES]
        (folder / f"{number:05}.pcap").write_bytes(data[:24] + b"".join(own))
    command = [
        "prlimit",
        f"--nofile={DESCRIPTORS}",
        "--",
        sys.executable,
        "-m",
        "ordack",
        "audit",
        "--no-spark",
        "--json",
    ]
    taken: dict[str, list[Cost]] = {}
    said = []
    for name, captures in (("one file", paths[0]), ("files", folder)):
        done = measured(taken, name, lambda: subprocess.run([*command, captures], stdout=subprocess.PIPE, check=False))  # noqa: B023
        said.append(json.loads(done.stdout))
    report(
        bench="audit, many files",
        files=FILES,
        descriptors=DESCRIPTORS,
        packets=truth.packets,
        seconds={name: round(cost.seconds, 2) for name, (cost,) in taken.items()},
        cpu_seconds={name: cost.cpu_seconds for name, (cost,) in taken.items()},
        same=said[0] == said[1],
    )


# ---- memory of an audit


def memory_of(root: int) -> tuple[int, int]:
    """(all, not backed by files) of a process and all below it, in bytes; what is shared counts once."""
    total = anonymous = 0
    for process in processes_of(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name in ("Pss", "Pss_Anon"):
                value = int(rest.split()[0]) << 10
                total += value if name == "Pss" else 0
                anonymous += value if name == "Pss_Anon" else 0
    return total, anonymous


def bench_memory(fleet: Fleet, size: int, rounds: int) -> None:
    """Peak memory of driver, JVM and workers during an audit."""
    watched("audit memory", *fleet.capture(size))


def bench_streams(fleet: Fleet, size: int, rounds: int) -> None:
    """The same of a million streams, and of DuckDB's SQL on its decoded rows."""
    paths, truth = fleet.capture(STREAMS * FEW_PACKETS, STREAMS)
    watched("audit streams", paths, truth)
    rows = fleet.folder / f"rows-streams-{fleet.seed}.parquet"
    if not rows.exists():
        decoded_rows(paths, rows)
    watched("audit streams, DuckDB", [rows], truth)


def watched(bench: str, paths: list[Path], truth: capture_generator.FleetTruth) -> None:
    """Reports memory and time of an audit in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.bench_pipeline", "_audit", *map(str, paths)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        peak, anonymous, samples = 0, 0, 0
        while child.poll() is None:
            now = memory_of(child.pid)
            peak, anonymous, samples = max(peak, now[0]), max(anonymous, now[1]), samples + 1
            time.sleep(SAMPLE_S)
        assert child.stdout is not None
        said = json.loads(child.stdout.read() or "{}")
    report(
        bench=bench,
        packets=truth.packets,
        streams=truth.streams,
        peak_gib=peak / 2**30,
        peak_anonymous_gib=anonymous / 2**30,
        wanted_below_gib=4,
        wanted_below_seconds=60,
        samples=samples,
        seconds=said.get("seconds"),
        planted_found=said.get("violations") == dict(planted(truth)),
    )


def audit_alone(paths: list[str]) -> None:
    """What bench_memory watches."""
    from ordack.audit import tasks

    if paths[0].endswith(".parquet"):
        import duckdb

        from tests.bench import duckdb_audit

        with duckdb.connect(config={"threads": CORES}) as database:
            started = time.perf_counter()
            answer = duckdb_audit.audit(database, f"read_parquet('{paths[0]}')")
            took = time.perf_counter() - started
        violations = {kind: len(rows) for kind, rows in answer.violations.items() if rows}
    else:
        spark = spark_session()
        started = time.perf_counter()
        result = tasks.run(paths, spark=spark)
        took = time.perf_counter() - started
        violations = {kind: count for kind, count in result.summary["violations"].items() if count}
        spark.stop()
    print(json.dumps({"seconds": took, "violations": violations}))


# ---- ingest: segments to a table, against Spark's own source of Parquet files

SEGMENT_ROWS = 10_000  # as `ordack export` makes them
BODY_SCHEMA = "temperature DOUBLE, pressure INT, device STRING, at TIMESTAMP"


def write_segments(folder: Path, messages: int, seed: int, queues: int = 1, rows: int = SEGMENT_ROWS) -> int:
    """A folder of segments of so many rows and queues, with JSON bodies of about 100 bytes; their bytes."""
    import numpy as np
    import pyarrow as pa
    from ordack.pipeline import segments
    from ordack.pipeline.columns import parquet

    dice = np.random.default_rng(seed)
    folder.mkdir()
    marker = segments.Marker("11111111-1111-1111-1111-111111111111", f"bench-{seed}")
    (folder / segments.MARKER).write_bytes(segments.marker_content(marker))
    absent = {pa.string(): "", pa.binary(): b"", pa.bool_(): False}
    written = 0
    for number, first in enumerate(range(1, messages + 1, rows)):
        numbers = np.arange(first, min(first + rows, messages + 1))
        size = len(numbers)
        queue, serial = f"line{number % queues + 1}", number // queues + 1
        arrived = pa.array(numbers // 1000 + 1_767_225_600, pa.int64()).cast(pa.timestamp("s", "UTC"))
        temperatures, pressures = dice.normal(20, 5, size).round(3), dice.integers(900, 1100, size)
        columns = {
            "queue": [queue] * size,
            "lookup_id": numbers,
            "message_id": numbers,
            "tx_sequence_number": numbers,
            "previous_tx_sequence_number": numbers - 1,
            "arrived": arrived,
            "sent_time": arrived,
            "label": [f"reading {number}" for number in numbers],
            "body": [
                b'{"temperature": %.3f, "pressure": %d, "device": "line1-%03d", "at": "2026-01-01T00:00:00.%06dZ"}'
                % (temperature, pressure, number % 1000, number % 1_000_000)
                for temperature, pressure, number in zip(temperatures, pressures, numbers)
            ],
        }
        arrays = [
            pa.nulls(size, field.type)
            if field.name not in columns and field.nullable
            else pa.array(columns.get(field.name, [absent.get(field.type, 0)] * size)).cast(field.type)
            for field in segments.SCHEMA
        ]
        path = folder / segments.file_name(queue, serial, int(numbers[0]), int(numbers[-1]))
        path.write_bytes(parquet(pa.Table.from_arrays(arrays, schema=segments.SCHEMA)))
        written += path.stat().st_size
    return written


def bench_ingest(fleet: Fleet, size: int, rounds: int) -> None:
    """`ordack pipeline ingest` of as many messages, against Spark's own stream of the same files to the same sink; then
    with bodies decoded, against Spark's from_json, which takes a value that does not fit for null without a word."""
    from ordack.pipeline.ingest import Job, ingest
    from pyspark.sql import functions

    folder = fleet.folder / f"segments-{size}-{fleet.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    written = write_segments(folder, size, fleet.seed)
    spark = spark_session()
    made = spark.read.parquet(str(folder)).schema
    table = fleet.folder / "table"

    def ours(schema: str) -> None:
        done = ingest(spark, Job({"path": str(folder), **({"schema": schema} if schema else {})}, str(table)))
        assert (done.rows, done.malformed or 0) == (size, 0), done

    def peer(schema: str) -> None:
        frame = spark.readStream.schema(made).option("maxFilesPerTrigger", 256).parquet(str(folder))
        if schema:
            frame = frame.withColumn("decoded", functions.from_json(frame.body.cast("string"), schema))
            frame = frame.select("*", "decoded.*").drop("decoded")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(table / "_checkpoint"))
        query = writer.trigger(availableNow=True).start(str(table))
        query.awaitTermination()
        assert sum(int(progress["numInputRows"]) for progress in query.recentProgress) == size

    times: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name, call, schema in (("peer", peer, ""), ("ours", ours, ""), ("peer decoding", peer, BODY_SCHEMA),
                                   ("ours decoding", ours, BODY_SCHEMA)):  # fmt: skip
            shutil.rmtree(table, ignore_errors=True)
            took = seconds(lambda call=call, schema=schema: call(schema))  # type: ignore[misc]
            if turn:  # the first warms up
                times.setdefault(name, []).append(took)
    spark.stop()
    shutil.rmtree(table)
    for name in ("", " decoding"):
        theirs, own = statistics.median(times[f"peer{name}"]), statistics.median(times[f"ours{name}"])
        report(
            bench=f"ingest{name}",
            messages=size,
            bytes=written,
            peer="Spark's own stream of Parquet files" + (" with from_json" if name else ""),
            peer_rows_per_second=size / theirs,
            rows_per_second=size / own,
            ratio=theirs / own,
            rounds={which: [round(value, 3) for value in times[which]] for which in (f"peer{name}", f"ours{name}")},
        )


QUEUES, QUEUES_ROWS = 300, 1000


def bench_queues(fleet: Fleet, size: int, rounds: int) -> None:
    """`ordack pipeline ingest` of the same rows from one queue and from 300: from as many segments, and against the
    larger ones that one queue has."""
    from ordack.pipeline.ingest import Job, ingest

    messages = QUEUES * QUEUES_ROWS
    folders = {}
    for name, queues, rows in (("one queue", 1, SEGMENT_ROWS), ("one queue, small segments", 1, QUEUES_ROWS),
                               ("300 queues", QUEUES, QUEUES_ROWS)):  # fmt: skip
        folders[name] = fleet.folder / f"queues-{queues}-{rows}-{fleet.seed}"
        shutil.rmtree(folders[name], ignore_errors=True)
        write_segments(folders[name], messages, fleet.seed, queues, rows)
    spark = spark_session()
    table = fleet.folder / "table"
    taken: dict[str, list[Cost]] = {}
    for turn in range(rounds + 1):
        for name, folder in folders.items():
            shutil.rmtree(table, ignore_errors=True)
            job = Job({"path": str(folder)}, str(table))
            done = measured(taken if turn else {}, name, lambda job=job: ingest(spark, job))  # type: ignore[misc]
            assert done.rows == messages, done
    spark.stop()
    shutil.rmtree(table)
    cpu = {name: statistics.median(cost.cpu_seconds for cost in costs) for name, costs in taken.items()}
    report(
        bench="queues",
        messages=messages,
        cpu_seconds=cpu,
        seconds={name: round(statistics.median(cost.seconds for cost in costs), 3) for name, costs in taken.items()},
        ratio_cpu=cpu["300 queues"] / cpu["one queue"],
        ratio_cpu_same_segments=cpu["300 queues"] / cpu["one queue, small segments"],
        wanted_ratio_cpu=1.5,
    )


# ---- streaming audit: a folder of files, ours against Spark's own state


def bench_follow(fleet: Fleet, size: int, rounds: int) -> None:
    """The streaming audit of a folder, in Spark and without, state and results on disk; against Spark's
    transformWithState, which only counts messages, resends and the highest number of each stream."""
    from ordack.audit import follow

    folder, checkpoint = fleet.folder / f"follow-{size}-{fleet.seed}", fleet.folder / "checkpoint"
    note = folder / "truth.json"
    if not note.exists():
        folder.mkdir(exist_ok=True)
        paths = [folder / f"fleet-{part:02}.pcap" for part in range(20)]
        made = capture_generator.write_fleet(paths, size, min(10_000, max(400, size // PER_STREAM)), fleet.seed)
        note.write_text(json.dumps(made._asdict()))
    truth = capture_generator.FleetTruth(**json.loads(note.read_text()))
    spark = spark_session()
    warm = fleet.folder / "warm"
    warm.mkdir(exist_ok=True)
    if not (warm / "0.pcap").exists():
        capture_generator.write_fleet([warm / "0.pcap"], 50_000, 400, fleet.seed)
    found: dict[str, dict[str, int]] = {}

    def ours(name: str, source: Path) -> None:
        follower = follow.Follower(source, checkpoint)
        result = [result for _, result in follower.reports(True, spark if name == "spark" else None)][-1]
        found[name] = {kind: count for kind, count in result.summary["violations"].items() if count}

    times: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name in ("spark", "process", "peer"):
            source = folder if turn else warm
            shutil.rmtree(checkpoint, ignore_errors=True)
            if name == "peer":
                took = seconds(lambda source=source: spark_counts(spark, source, checkpoint))  # type: ignore[misc]
            else:
                took = seconds(lambda name=name, source=source: ours(name, source))  # type: ignore[misc]
            print(f"follow: {name} {took:.1f} s", file=sys.stderr)
            if turn:
                times.setdefault(name, []).append(took)
    spark.stop()
    shutil.rmtree(checkpoint)
    took = {name: statistics.median(values) for name, values in times.items()}
    report(
        bench="follow",
        packets=truth.packets,
        streams=truth.streams,
        bytes=truth.bytes,
        peer="partial counts in tasks, then Spark's transformWithState",
        peer_packets_per_second=truth.packets / took["peer"],
        packets_per_second=truth.packets / took["spark"],
        packets_per_second_without_spark=truth.packets / took["process"],
        ratio=took["peer"] / took["spark"],
        wanted_packets_per_second=500_000,
        planted_found={name: kinds == dict(planted(truth)) for name, kinds in found.items()},
        rounds={name: [round(value, 3) for value in values] for name, values in times.items()},
    )


def spark_counts(spark: Any, folder: Path, checkpoint: Path) -> None:
    """What Spark offers for it: tasks decode a file each into partial results, state by stream puts them together."""
    import pandas as pd
    import pyarrow as pa
    from ordack.audit import replay
    from ordack.capture import columnar
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    names = ("messages", "resends", "highest")

    def partial(batches: Any) -> Any:
        import numpy as np

        for paths in batches:
            for path in paths.column(0).to_pylist():
                key, number = [], []
                for batch in columnar.batches([path.removeprefix("file:")], rows=8192, columns=replay.COLUMNS):
                    sent = batch["tx_sequence_number"] != 0
                    source = batch["source_queue_manager"][sent].astype(np.int64)
                    key.append(source << 32 | batch["tx_sequence_ordinal"][sent])
                    number.append(batch["tx_sequence_number"][sent].astype(np.int64))
                    decoder = batch.decoder
                keys, numbers = np.concatenate(key), np.concatenate(number)
                order = np.lexsort((numbers, keys))
                keys, numbers = keys[order], numbers[order]
                begin = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
                again = np.append(False, (keys[1:] == keys[:-1]) & (numbers[1:] == numbers[:-1]))
                yield pa.record_batch(
                    {
                        "stream": [
                            f"{decoder.queue_manager(own >> 32).hex()} {own & 0xFFFFFFFF}"
                            for own in keys[begin].tolist()
                        ],
                        "messages": np.add.reduceat((~again).astype(np.int64), begin),
                        "resends": np.add.reduceat(again.astype(np.int64), begin),
                        "highest": np.maximum.reduceat(numbers, begin),
                    }
                )

    class Count(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.state = handle.getValueState("counts", "messages long, resends long, highest long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802 - Spark's name
            messages, resends, highest = self.state.get() or (0, 0, 0)
            for frame in rows:
                messages, resends = messages + int(frame.messages.sum()), resends + int(frame.resends.sum())
                highest = max(highest, int(frame.highest.max()))
            self.state.update((messages, resends, highest))
            yield pd.DataFrame({"stream": [key[0]], "messages": [messages], "resends": [resends], "highest": [highest]})

        def close(self) -> None:
            pass

    kept = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", str(CORES))
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    stream = "stream string, " + ", ".join(f"{name} long" for name in names)
    files = (
        spark.readStream.format("binaryFile")
        .options(maxFilesPerTrigger=4, pathGlobFilter="*.pcap")
        .schema("path string, modificationTime timestamp, length long, content binary")
        .load(str(folder))
    )
    parts = files.select("path").mapInArrow(partial, stream)
    counted = parts.groupBy("stream").transformWithStateInPandas(Count(), stream, "Update", "None")
    counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()
    spark.conf.set("spark.sql.shuffle.partitions", kept)


# ---- decode: captures to rows against a bare Arrow data source and against a UDF that takes a packet at a time

NUMBERS = (
    "frame", "time", "connection", "direction", "offset", "size", "base_flags", "message_id", "tx_sequence_ordinal",
    "tx_sequence_time_stamp", "tx_sequence_number", "previous_tx_sequence_number", "message_class",
    "ack_sequence_number", "body_size",
)  # fmt: skip
NARROW = (
    "frame", "time", "packet", "connection", "direction", "source_queue_manager", "destination_queue", "message_id",
    "tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number", "previous_tx_sequence_number",
    "message_class", "ack_sequence_number", "body_size",
)  # fmt: skip
UDF_PACKETS = 1_000_000
SCAN_PACKETS = 20_000
BARE_RECORDS = 4_000_000  # in the file; more are the same again


class Field(NamedTuple):
    """A column of the bare source: its type in Spark and in Arrow, bytes a value, and whether all are null."""

    kind: Any
    arrow: Any
    width: int
    null: bool


def like(batch: Any, schema: Any) -> list[Field]:
    """What a bare source needs for columns of the same types, sizes and mostly nulls as these."""
    import pyarrow as pa

    fields = []
    for column, field in zip(batch.columns, schema.fields, strict=True):
        texts = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        width = column.nbytes // batch.num_rows - 4 if texts else column.type.bit_width // 8
        fields.append(Field(field.dataType, column.type, max(width, 1), 2 * column.null_count > batch.num_rows))
    return fields


def write_records(path: Path, fields: list[Field], records: int) -> None:
    """What a bare source reads; the values do not matter."""
    with path.open("wb") as file:
        for at in range(0, records, 1 << 16):
            file.write(b"1" * (min(records - at, 1 << 16) * sum(field.width for field in fields)))


def bare_source(title: str, fields: list[Field], records: int) -> type:
    """A data source that copies the fields of fixed-size records from a file into columns, and does nothing else."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructField, StructType

    names = [f"c{number}" for number in range(len(fields))]
    stored = min(records, BARE_RECORDS)

    def column(values: Any, field: Field) -> Any:
        import numpy as np

        count = len(values)
        buffers = [pa.py_buffer(np.ascontiguousarray(values))]
        if pa.types.is_string(field.arrow) or pa.types.is_binary(field.arrow):
            ends = np.zeros(count + 1, np.int32) if field.null else np.arange(count + 1, dtype=np.int32) * field.width
            buffers.insert(0, pa.py_buffer(ends))
        bits = pa.py_buffer(bytes(count // 8 + 1)) if field.null else None
        return pa.Array.from_buffers(field.arrow, count, [bits, *buffers], count if field.null else 0)

    class Reader(DataSourceReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(CORES)]

        def read(self, partition: InputPartition) -> Any:
            import numpy as np

            table = np.memmap(self.path, [(name, f"V{field.width}") for name, field in zip(names, fields)], "r")
            schema = pa.schema(zip(names, (field.arrow for field in fields)))
            first, last = (records * (partition.value + step) // CORES for step in (0, 1))
            while first < last:
                at = first % stored
                count = min(16384, last - first, stored - at)
                rows = table[at : at + count]
                arrays = [column(rows[name], field) for name, field in zip(names, fields)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                first += count

    class Bare(DataSource):
        @classmethod
        def name(cls) -> str:
            return title

        def schema(self) -> StructType:
            return StructType([StructField(name, field.kind) for name, field in zip(names, fields)])

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(self.options["path"])

    return Bare


def packets_of(paths: list[Path], count: int) -> list[bytes]:
    """The first packets of a capture, by the reader that is not measured."""
    from ordack.capture import one_by_one

    with paths[0].open("rb") as file:
        good = (found.data for found in one_by_one.packets(file) if not found.problem)
        return list(itertools.islice(good, count))


def decode_numbers(raw: bytes) -> tuple[int, ...]:
    """The fixed fields of one packet with struct: the decoder of a row-at-a-time UDF."""
    _, _, flags, _, size, _ = struct.unpack_from("<BBHIII", raw)
    if flags & 8:
        return flags, size, struct.unpack_from("<H", raw, 20)[0], 0, 0, 0, 0, 0, 0, 0
    message_id, user_flags = struct.unpack_from("<II", raw, 56)
    at = 64
    for shift in (10, 13, 16):
        kind = user_flags >> shift & 7
        at += (2 + struct.unpack_from("<H", raw, at)[0] + 3 & ~3) if kind == 7 else (0, 0, 4, 4, 4, 16, 20)[kind]
    sequence = (0, 0, 0, 0)
    if user_flags & 0x100000:
        sequence = struct.unpack_from("<4I", raw, at + 4)
        at += 36 if raw[at] & 1 else 20
    (message_class,) = struct.unpack_from("<H", raw, at + 2)
    (body_size,) = struct.unpack_from("<I", raw, at + 32)
    return flags, size, 0, message_id, *sequence, message_class, body_size


def decode_texts(raw: bytes) -> tuple[Any, ...]:
    """The same, with names as text."""
    numbers = decode_numbers(raw)
    if numbers[0] & 8:
        return "internal", None, None, *numbers[2:]
    source = str(uuid.UUID(bytes_le=raw[16:32]))
    size = struct.unpack_from("<H", raw, 64)[0] if raw[61] >> 2 & 7 == 7 else 0
    return "UserMessage", source, raw[66 : 64 + size].decode("utf-16-le"), *numbers[2:]


def scan_alone(packets: list[bytes], rounds: int) -> float:
    """ns a packet of one call of mqqb_scan."""
    from _mqqb import ffi, lib

    data = b"".join(packets)
    columns = ffi.new("mqqb_scan_columns *")
    held = [ffi.new("uint32_t[]", len(packets)) for _ in range(lib.MQQB_SCAN_COLUMNS)]
    for number, column in enumerate(held):
        columns.column[number] = column
    consumed, status = ffi.new("size_t *"), ffi.new("int32_t *")
    times = []
    for _ in range(5 * rounds):
        started = time.process_time_ns()
        rows = lib.mqqb_scan(data, len(data), columns, len(packets), consumed, status)
        times.append((time.process_time_ns() - started) / rows)
        assert rows == len(packets)
    return min(times)


def bench_decode(fleet: Fleet, size: int, rounds: int) -> None:
    """The C scan, the way from a capture to columns, and both with Spark's rows behind."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from ordack.capture import columnar
    from ordack.pipeline.packets import PacketSource
    from pyspark import cloudpickle
    from pyspark.sql.functions import udf
    from pyspark.sql.types import LongType

    paths, truth = fleet.capture(size)
    pattern = str(paths[0].parent / f"{paths[0].name.rpartition('-')[0]}-*.pcap")
    report(bench="scan", ns_per_packet=scan_alone(packets_of(paths, SCAN_PACKETS), rounds), wanted_ns=20)
    for name, columns in (("kind alone", ("kind",)), ("all of the scan", None), ("all", columnar.COLUMNS)):
        times = []
        for _ in range(rounds):
            started = time.process_time_ns()
            rows = sum(batch.rows for batch in columnar.batches([*paths], rows=16384, columns=columns))
            times.append((time.process_time_ns() - started) / rows)
        report(bench="capture to columns", columns=name, rows=rows, ns_per_packet=statistics.median(times))

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = spark_session()
    raw = packets_of(paths, UDF_PACKETS // 5) * 5
    plain = fleet.folder / "packets"
    plain.mkdir(exist_ok=True)
    for part in range(CORES):
        pq.write_table(pa.table({"packet": raw[part::CORES]}), plain / f"{part}.parquet", compression="none")
    udfs = {
        "numbers": udf(decode_numbers, ", ".join(f"f{number} BIGINT" for number in range(10))),
        "narrow": udf(decode_texts, "kind STRING, source STRING, queue STRING, "
                                    + ", ".join(f"f{number} BIGINT" for number in range(8))),
    }  # fmt: skip
    for name, columns in (("numbers", NUMBERS), ("narrow", NARROW), ("all", None)):
        options = {} if columns is None else {"columns": ",".join(columns)}
        source = PacketSource({"path": pattern, **options})
        schema = source.schema()
        reader = source.reader(schema)
        batch = next(itertools.islice(reader.read(reader.partitions()[0]), 3, None))  # not the beginnings
        fields = {
            "bare": like(batch, schema),
            "longs": [Field(LongType(), pa.int64(), 8, False)] * len(schema.fields),
        }
        calls: dict[str, Callable[[], object]] = {
            "mqqb": lambda options=options: sink(spark.read.format("mqqb").options(**options).load(pattern)),
        }  # fmt: skip
        for peer, made in fields.items():
            records = fleet.folder / f"records-{peer}.bin"
            write_records(records, made, min(truth.packets, BARE_RECORDS))
            bare: Any = bare_source(f"{peer}_{name}", made, truth.packets)
            spark.dataSource.register(bare)
            calls[peer] = lambda bare=bare, at=records: sink(spark.read.format(bare.name()).load(str(at)))
        if name in udfs:
            one = udfs[name]
            calls["udf"] = lambda one=one: sink(
                spark.read.parquet(str(plain)).select(one("packet").alias("f")).select("f.*")
            )
        taken: dict[str, list[Cost]] = {}
        for turn in range(rounds + 1):
            for which, call in calls.items():
                measured(taken if turn else {}, which, call)
        counts = {which: len(raw) if which == "udf" else truth.packets for which in taken}
        rates = {which: [counts[which] / cost.seconds for cost in costs] for which, costs in taken.items()}
        cpu = {which: statistics.median(cost.cpu_seconds for cost in costs) / counts[which] * 1e9
               for which, costs in taken.items()}  # fmt: skip

        def ratio(peer: str, rates: dict[str, list[float]] = rates) -> float:
            return statistics.median(ours / theirs for ours, theirs in zip(rates["mqqb"], rates[peer], strict=True))

        compared = {
            "bare": "copies fixed-size records into columns of our types, sizes and mostly nulls",
            "longs": "copies fixed-size records into as many columns of 8 bytes",
            "udf": "decodes a packet that is cut out already, in one row-at-a-time UDF, into 10 or 11 columns",
        }
        peers = [peer for peer in calls if peer != "mqqb"]
        report(bench="decode in Spark", columns=f"{name}: {len(schema.fields)}", packets=truth.packets,
               bytes_per_row=batch.nbytes / batch.num_rows, compared={peer: compared[peer] for peer in peers},
               rows_per_s={which: float(f"{statistics.median(found):.4g}") for which, found in rates.items()},
               ratio={peer: float(f"{ratio(peer):.3g}") for peer in peers},
               wanted_ratio={"bare": 0.9, "udf": 10},
               cpu_ns_per_row={which: round(found) for which, found in cpu.items()},
               ratio_cpu={peer: float(f"{cpu[peer] / cpu['mqqb']:.3g}") for peer in peers},
               rounds={which: [round(cost.seconds, 2) for cost in costs]
                       for which, costs in taken.items()})  # fmt: skip
    spark.stop()


def sink(rows: Any) -> None:
    """All rows are made, and go nowhere."""
    rows.write.format("noop").mode("overwrite").save()


# Name -> bench of a size of capture, with so many rounds.
BENCHES: dict[str, Callable[[Fleet, int, int], None]] = {
    "decode": bench_decode,
    "audit": bench_audit,
    "audit-stages": bench_audit_stages,
    "audit-address": bench_address,
    "audit-files": bench_files,
    "memory": bench_memory,
    "streams": bench_streams,
    "follow": bench_follow,
    "ingest": bench_ingest,
    "queues": bench_queues,
}


def main() -> None:
    """Runs the benches that are named, or all."""
    if sys.argv[1:2] == ["_audit"]:
        audit_alone(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description="The pipeline against its peers, as JSON lines.")
    parser.add_argument("names", nargs="*", metavar="|".join(BENCHES), choices=[*BENCHES, []])
    parser.add_argument("--size", type=int, default=1_000_000, help="packets in the capture")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for captures, which stay there")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fleet = Fleet(folder, arguments.seed)
        for name in arguments.names or BENCHES:
            BENCHES[name](fleet, arguments.size, arguments.rounds)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
