"""`ordack table ingest`: loads segments into a table, each message exactly once.

A Delta Lake or Iceberg table records its segments (lake.py). The driver lists the other segments, Spark tasks read them
and decode their bodies, and one commit adds rows and serials. A batch killed before its commit leaves nothing in the
table; the next ingest loads it.

The tasks and this process need the same paths.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from ordack.config.names import counted
from ordack.config.paths import path_of
from ordack.pipeline import lake, segments
from ordack.pipeline.bodies import JSON, SchemaError
from ordack.pipeline.folders import Folders, FoundSegment, Place, Serials, in_turn, missing
from ordack.pipeline.segments import MESSAGE_KEY, QUEUE_MANAGER, FolderError, FolderMissing, OptionError, read_segment
from ordack.pipeline.spark import task_count, words

FORMATS = (lake.DELTA, lake.ICEBERG)
# A micro-batch bounds the work repeated after a kill, the age of progress reports and the driver's memory.
SEGMENTS_MAX, BYTES_MAX = 256, 32 << 20
INTERVAL_S = 1.0
POLL_S = 0.2
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
LATENCY_DIGITS = 3  # significant digits: a latency is rounded up by at most 1 %
GOES_ON = "what is in the table is whole, and the next ingest goes on"
ID = "lookup_id"
NEEDED = (QUEUE_MANAGER, "queue", ID, MESSAGE_KEY)  # table columns needed to find messages

Read = Callable[[lake.Decoding, Sequence[str]], pa.Table]  # reads the rows of segments, in order


# ---- reports


@dataclass
class Latency:
    """A histogram of latencies in milliseconds, of bounded size. The protocol gives sending times in whole seconds, so
    latencies from sending are up to 1 s too long."""

    milliseconds: Counter[int] = field(default_factory=Counter)

    def add(self, times: pa.ChunkedArray, until: int) -> None:
        """Add latencies. times: of an event. until: commit of the rows, in milliseconds since 1970."""
        taken = until - times.cast(pa.int64()).to_numpy() // 1000
        step = 10 ** np.maximum(0, np.log10(np.maximum(np.abs(taken), 1)).astype(np.int64) + 1 - LATENCY_DIGITS)
        values, counts = np.unique(-(-taken // step) * step, return_counts=True)
        self.milliseconds.update(dict(zip(values.tolist(), counts.tolist())))

    def figures(self) -> dict[str, float] | None:
        """Return quantiles in seconds; None without messages."""
        if not self.milliseconds:
            return None
        values = sorted(self.milliseconds)
        reached = np.cumsum([self.milliseconds[value] for value in values])
        at = np.searchsorted(reached, np.ceil(np.array([*QUANTILES.values()]) * reached[-1]))
        return {name: values[place] / 1000 for name, place in zip(QUANTILES, at.tolist())}


@dataclass
class Progress:
    """A micro-batch of segments in the table. malformed: None without a schema. number: from 0 in a run. behind: unread
    segments that waited."""

    segments: int = 0
    rows: int = 0
    malformed: int | None = None
    seconds: float = 0.0
    arrived_to_table: Latency = field(default_factory=Latency)
    sent_to_table: Latency = field(default_factory=Latency)
    number: int = 0
    behind: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `ordack table ingest --json` prints."""
        return {"batch": self.number, "behind": self.behind, **self.sums()}

    def sums(self) -> dict[str, Any]:
        """Return the fields common to a micro-batch and a run."""
        return {
            "segments": self.segments,
            "rows": self.rows,
            "malformed": self.malformed,
            "seconds": round(self.seconds, 3),
            "latency_s": {name: getattr(self, name).figures() for name in ("arrived_to_table", "sent_to_table")},
        }


@dataclass
class Summary(Progress):
    """The sums of one run."""

    table: str = ""
    batches: int = 0

    def add(self, batch: Progress) -> None:
        """Add a committed batch."""
        self.batches += 1
        self.rows += batch.rows
        self.segments += batch.segments
        if batch.malformed is not None:
            self.malformed = (self.malformed or 0) + batch.malformed
        self.arrived_to_table.milliseconds += batch.arrived_to_table.milliseconds
        self.sent_to_table.milliseconds += batch.sent_to_table.milliseconds

    def as_json(self) -> dict[str, Any]:
        return {"table": self.table, "batches": self.batches, **self.sums()}

    def __str__(self) -> str:
        """Format the report of `ordack table ingest`."""
        text = f"{self.table}: {counted(self.rows, 'row')}"
        if self.batches:
            text += f" of {counted(self.segments, 'segment')}, in {counted(self.batches, 'batch')}"
        if self.malformed:
            text += f"; {self.malformed} with a body that does not fit the schema, the column {lake.MALFORMED} says why"
        for name, latency in (("arrival in the queue", self.arrived_to_table), ("sending", self.sent_to_table)):
            if figures := latency.figures():
                text += f"\nfrom {name} to the table: " + ", ".join(
                    f"{label} {value:.2f} s" for label, value in figures.items()
                )
        return text + ("\n(of sending only the second is known: up to 1 s too long)" if self.rows else "")


# ---- the job


@dataclass
class Job:
    """The options of an ingest, checked as far as possible without Spark.

    named: folders of segments, and patterns. table: a folder or URL, or the name of an Iceberg table. table_format:
    None keeps the table's format, and makes a new table Delta Lake. queue: only this queue. schema, bodies, prefix:
    decoding of bodies; None keeps the table's.

    Raises FolderError, OptionError, IngestUnusable.
    """

    named: Sequence[str]
    table: str
    table_format: str | None = None
    queue: str | None = None
    schema: str | None = None
    bodies: str | None = None
    prefix: str | None = None
    segments_max: int = SEGMENTS_MAX

    def __post_init__(self) -> None:
        lake.check_format(self.bodies)
        self.folders = Folders(self.named, self.queue)
        if self.table_format not in (None, *FORMATS):
            raise OptionError(f"no table has the format {self.table_format!r}; there are {', '.join(FORMATS)}")
        if self.table_format == lake.ICEBERG:
            from ordack.pipeline.iceberg import is_name

            if is_name(self.table):
                return
        local = lake.local_table(self.table)
        if local is not None:
            self.table = str(local.absolute())
            if local.is_file():
                raise lake.IngestUnusable(f"{self.table} is no folder: name a new one")
        there = lake.format_of(self.table)
        if there is not None and self.table_format not in (None, there):
            raise lake.IngestUnusable(
                f"{self.table} is a table of the format {there}, and goes on as that: leave --format out, or name a "
                f"new folder for {self.table_format}"
            )
        self.table_format = self.table_format or there or lake.DELTA
        if local is not None and there is None:
            lake.check_empty(self.table)

    def given(self) -> list[StructField]:
        """Return the columns of --schema. Raises SchemaError."""
        if not self.schema:
            return []
        try:
            decoded = StructType.fromDDL(self.schema)
        except PySparkException as error:
            raise SchemaError(f"Spark does not take the schema {self.schema!r}: {words(error)}") from None
        assert isinstance(decoded, StructType)
        return decoded.fields

    def open(self) -> tuple[lake.Lake, lake.Decoding]:
        """Open the table and its decoding. Raises IngestError, IngestUnusable, OptionError, SchemaError."""
        if self.table_format == lake.ICEBERG:
            from ordack.pipeline import iceberg

            properties, kind = iceberg.properties_of(self.table), iceberg.Iceberg
        else:
            from ordack.pipeline import delta

            properties, kind = delta.properties_of(self.table), delta.Delta  # type: ignore[assignment]
        given, kept = self.given(), properties.get(lake.DECODING)
        if kept is None:
            decoding = lake.Decoding(given, self.bodies or JSON, self.prefix or "")
        else:
            decoding = lake.Decoding.of(kept, self.table).checked(self.table, given, self.prefix)
        table = kind(self.table, decoding.schema, decoding if decoding.fields else None)
        return table, decoding._replace(body_format=self.bodies or decoding.body_format)


# ---- loading


def rows_of(decoding: lake.Decoding, paths: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of each segment. Raises FolderError."""
    bodies = decoding.bodies()
    for path in map(path_of, paths):
        try:
            yield decoding.rows(read_segment(path), bodies)
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise FolderMissing(f"there is no folder {path.parent} where this task runs") from None
            queue, serial, _, _ = segments.parse_name(path.name) or ("", 0, 0, 0)
            raise missing(path.parent, queue, serial, path.name) from None


def ingest(
    spark: SparkSession,
    job: Job,
    *,
    continuous: bool = False,
    interval: float = INTERVAL_S,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Progress], None] | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Load new segments into the table. continuous: also load later ones, looking every `interval` seconds until
    `stop()`. tell: receives each committed batch. warn: receives messages about queues whose first segments are
    deleted, and about missing folders.

    Raises IngestError, FolderError, OptionError, SchemaError.
    """
    spark.sparkContext.setJobDescription(f"ordack ingest {job.table}")  # shown on Spark's page
    load = Load(job, lambda decoding, paths: _read_in_tasks(spark, decoding, paths), tell, warn,
                lambda: _check_alive(spark))  # fmt: skip
    return load.run(continuous, interval, stop)


def _read_in_tasks(spark: SparkSession, decoding: lake.Decoding, paths: Sequence[str]) -> pa.Table:
    """Read rows in Spark tasks, in Arrow's format because Spark's types differ. Raises IngestError."""
    count = task_count(spark, len(paths))
    shares = [paths[len(paths) * at // count : len(paths) * (at + 1) // count] for at in range(count)]

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in rows_of(decoding, shares[number]):
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as to:
                        to.write_table(rows)
                    yield pa.RecordBatch.from_pydict({"rows": [sink.getvalue().to_pybytes()]})

    try:
        found = spark.range(0, count, 1, count).mapInArrow(task, "rows binary").collect()
    except PySparkException as error:
        names = {kind.__name__ for kind in (FolderMissing, FolderError) if f"{kind.__name__}: " in str(error)}
        kind = (
            lake.IngestMissing
            if FolderMissing.__name__ in names
            else lake.IngestUnusable
            if names
            else lake.IngestError
        )
        raise kind(words(error)) from None
    except (Py4JError, OSError):
        raise lake.IngestError(f"Spark's JVM has ended; {GOES_ON}") from None
    return pa.concat_tables(pa.ipc.open_stream(bytes(row[0])).read_all() for row in found)


def _check_alive(spark: SparkSession) -> None:
    """Raise IngestError if Spark has ended: a waiting ingest has no other contact with it."""
    try:
        if spark.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - pyspark itself does not ask
            raise lake.IngestError(f"Spark has stopped; {GOES_ON}")
    except (Py4JError, OSError):
        raise lake.IngestError(f"Spark's JVM has ended; {GOES_ON}") from None


class Load:
    """Loads batches into a table that records its segments. read: reads segments. check: raises IngestError if a
    continuous run cannot continue."""

    def __init__(
        self,
        job: Job,
        read: Read,
        tell: Callable[[Progress], None] | None = None,
        warn: Callable[[str], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.job, self.read, self.tell, self.warn, self.check = job, read, tell, warn, check
        self.table, self.decoding = job.open()
        self.summary = Summary(table=job.table)
        self._highest: dict[tuple[str, str], int] = {}
        self._missing = ""

    def run(self, continuous: bool, interval: float = INTERVAL_S, stop: Callable[[], bool] = bool) -> Summary:
        """Load the segments present at the beginning, or until `stop()`. Raises IngestError, FolderError."""
        begun = time.monotonic()
        self.summary = Summary(table=self.job.table, malformed=0 if self.decoding.fields else None)
        self.table.catch_up()  # the table may have been restored since it was opened
        until = None if continuous else self.job.folders.last()
        while True:
            looked = time.monotonic()
            self.check()
            behind = self._batch_or_wait() if continuous else self.batch(until)
            if not behind and not continuous:
                break
            while not stop() and not behind and time.monotonic() < looked + interval:
                time.sleep(max(0.0, min(POLL_S, looked + interval - time.monotonic())))
            if stop():
                break
        self.summary.seconds = time.monotonic() - begun
        return self.summary

    def _batch_or_wait(self) -> int:
        """Call `batch`, but wait for a missing folder: its file system or server may return."""
        try:
            behind = self.batch(None)
        except (FolderMissing, lake.IngestMissing) as error:
            if str(error) != self._missing:
                self._missing = str(error)
                self.warn(f"{error}. Until it is there again, nothing is loaded")
            return 0
        if self._missing:
            self._missing = ""
            self.warn("it is there again: the ingest goes on")
        return behind

    def batch(self, until: Serials | None) -> int:
        """Load some segments, and return the number of segments that still wait."""
        begun = time.monotonic()
        source, table = self.job.folders, self.table
        table.check_there()
        new = {marker.folder for marker in source.now().values()} - table.known
        beginning = source.beginning(table.known) if new else {}
        waiting = source.waiting({**table.serials, **beginning}, until)
        taken = _apart(in_turn(waiting, self.job.segments_max, BYTES_MAX))
        if not taken:
            return 0
        reached = {place: serial for place, serial in beginning.items() if serial}
        reached |= {one.place: one.serial for one in taken}
        before = table.serials
        table.catch_up()  # other ingests may have loaded other folders
        if table.serials != before:
            self._highest.clear()
        if new & table.known or any(table.serials.get(place) != before.get(place) for place in reached):
            return len(waiting)
        for text in source.begun_late(beginning):
            self.warn(text)
        rows = self.read(self.decoding, [str(one.segment.path) for one in taken])
        rows, doubles = self._without_doubles(taken, rows)
        behind = len(waiting) - len(taken)
        table.check_there()
        if not table.commit(rows, reached, new):
            self._highest.clear()
            return behind + len(taken)  # another ingest loaded some of them
        if doubles:
            self.warn(
                f"{counted(doubles, 'message')} left out: the table has them from another folder. The store was "
                "restored from a backup, and exported them again"
            )
        self._tell(taken, rows, behind, begun)
        return behind

    def _tell(self, taken: Sequence[FoundSegment], rows: pa.Table, behind: int, begun: float) -> None:
        malformed = len(rows) - rows[lake.MALFORMED].null_count if self.decoding.fields else None
        batch = Progress(len(taken), len(rows), malformed, time.monotonic() - begun, number=self.summary.batches,
                         behind=behind)  # fmt: skip
        now = round(time.time() * 1000)
        batch.arrived_to_table.add(rows["arrived"], now)
        batch.sent_to_table.add(rows["sent_time"], now)
        self.summary.add(batch)
        if self.tell is not None:
            self.tell(batch)

    def _without_doubles(self, taken: Sequence[FoundSegment], rows: pa.Table) -> tuple[pa.Table, int]:
        """Return the rows without messages that the table already has, and the number removed. A store restored from a
        backup exports a message again, to another folder, with the same lookup id and message key. New messages
        normally have higher lookup ids than the table, so usually only the table's highest is read, once."""
        known: set[tuple[Any, ...]] = set()
        if {*NEEDED} <= {*self.table.names}:
            for one in taken:
                whose, segment = _whose(one), one.segment
                where = "{} = '{}' AND queue = '{}'".format(QUEUE_MANAGER, whose[0], whose[1].replace("'", "''"))
                if whose not in self._highest:
                    ids = (pc.max(batch[ID]).as_py() for batch in self.table.find(where, [ID]) if batch.num_rows)
                    self._highest[whose] = max(ids, default=-1)
                if segment.first_lookup_id <= self._highest[whose]:
                    between = f"{where} AND {ID} >= {segment.first_lookup_id} AND {ID} <= {segment.last_lookup_id}"
                    for batch in self.table.find(between, [ID, MESSAGE_KEY]):
                        pairs = zip(batch[ID].to_pylist(), batch[MESSAGE_KEY].to_pylist())
                        known |= {(*whose, *pair) for pair in pairs}
            for one in taken:
                self._highest[_whose(one)] = max(self._highest[_whose(one)], one.segment.last_lookup_id)
        if not known:
            return rows, 0
        keys = zip(*(rows[name].to_pylist() for name in NEEDED))
        kept = rows.filter(pa.array([key not in known for key in keys]))
        return kept, len(rows) - len(kept)


def _whose(one: FoundSegment) -> tuple[str, str]:
    return one.marker.queue_manager, one.segment.queue


def _apart(found: Sequence[FoundSegment]) -> list[FoundSegment]:
    """Drop segments that must wait for the next batch: a second folder with the same queue of a queue manager."""
    first: dict[tuple[str, str], Place] = {}
    return [one for one in found if first.setdefault(_whose(one), one.place) == one.place]
