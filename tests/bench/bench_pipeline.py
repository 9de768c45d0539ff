"""`make bench`: how fast the pipeline is, one JSON object a line; the ingest against a peer in the same run.

    python -m tests.bench.bench_pipeline [audit] [ingest] [--size PACKETS] [--rounds N] [--keep DIR]

Figures are medians over the rounds; `ratio` is more than 1 where we are faster. Nothing is asserted: machines differ.
Captures come from tests/support/capture_fleet.py: so many packets
over up to 10,000 streams, with planted violations.
That a cluster of two workers that loses an executor in each stage gives the same answer is no figure:
`python -m tests.pipeline.test_cluster`, in `make pipeline`, shows it.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.support import capture_fleet

Result = TypeVar("Result")

CORES = 2
PER_STREAM = 1000  # packets
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
        self._made: dict[tuple[int, int], tuple[list[Path], capture_fleet.FleetTruth]] = {}

    def capture(self, size: int, streams: int = 0) -> tuple[list[Path], capture_fleet.FleetTruth]:
        """Files and what is in them. streams: 0: one for PER_STREAM packets, up to 10,000."""
        streams = streams or min(10_000, max(400, size // PER_STREAM))
        if (size, streams) not in self._made:
            name = f"fleet-{size}-{streams}"
            paths = [self.folder / f"{name}-{part}.pcap" for part in range(max(1, size // 10_000_000))]
            note = self.folder / f"{name}-{self.seed}.json"
            if note.exists():
                truth = capture_fleet.FleetTruth(**json.loads(note.read_text()))
            else:
                started = time.perf_counter()
                truth = capture_fleet.write_fleet(paths, size, streams, self.seed)
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


def middle(costs: list[Cost], count: int) -> dict[str, object]:
    """What a report says of rounds over so many packets."""
    took = statistics.median(cost.seconds for cost in costs)
    return {
        "seconds": took,
        "cpu_seconds": statistics.median(cost.cpu_seconds for cost in costs),
        "packets_per_second": count / took,
        "rounds": [round(cost.seconds, 3) for cost in costs],
    }


def memory_of(root: int) -> int:
    """Bytes of a process and all below it; what is shared counts once."""
    total = 0
    for process in processes_of(root):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def spark_session() -> Any:
    """Spark on the cores that all benches use."""
    from ordack.pipeline.spark import spark_session

    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each query of a source would compile this package again
    return spark_session(f"local[{CORES}]", settings={"spark.ui.enabled": "false"})


# ---- ingest: segments to a table, against Spark's own source of Parquet files

SEGMENT_ROWS = 10_000  # as `ordack table export` makes them
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
    """`ordack table ingest` of as many messages, against Spark's own stream of the same files to the same sink; then
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
        done = ingest(spark, Job([str(folder)], str(table), schema=schema or None))
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


# ---- audit


def bench_audit(fleet: Fleet, size: int, rounds: int) -> None:
    """Audit of capture files in Spark's tasks: its speed, the memory of all its processes, and what it finds."""
    from ordack.audit import tasks

    paths, truth = fleet.capture(size)
    warm, _ = fleet.capture(100_000)
    spark = spark_session()
    tasks.run(warm, spark=spark)
    taken: dict[str, list[Cost]] = {}
    peak = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            peak[0] = max(peak[0], memory_of(os.getpid()))

    watching = threading.Thread(target=watch)
    watching.start()
    for _ in range(rounds):
        result = measured(taken, "ours", lambda: tasks.run(paths, spark=spark))
    ended.set()
    watching.join()
    spark.stop()
    expected = Counter(one["kind"] for one in truth.planted)
    report(
        bench="audit",
        packets=truth.packets,
        streams=truth.streams,
        bytes=truth.bytes,
        peak_gib=peak[0] / 2**30,
        planted_found=found_in(result) == expected,
        **middle(taken["ours"], truth.packets),
    )


def found_in(result: Any) -> Counter[str]:
    """Violations by kind."""
    return Counter({kind: count for kind, count in result.summary["violations"].items() if count})


# Name -> bench of a size of capture, with so many rounds.
BENCHES: dict[str, Callable[[Fleet, int, int], None]] = {"audit": bench_audit, "ingest": bench_ingest}


def main() -> None:
    """Runs the benches that are named, or all."""
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
