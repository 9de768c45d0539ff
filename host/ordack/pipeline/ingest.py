"""`ordack pipeline ingest`: from segments to a table, each message exactly once.

A stream reads the segments (source.py) in micro-batches. Spark writes down which segments a batch takes before it reads
them, and again when the batch is in the table; a batch that was interrupted is done again with the same segments, which
never change, and the sink makes a batch part of the table all at once, and once: the file sink by its log, Delta and
Iceberg because they keep the stream's identifier and the number of its last batch with the table. So the table and its
checkpoint belong together: by default the checkpoint is in the table's folder, and a table is not gone on with by
another checkpoint.

Through a Spark Connect server the stream runs there, and outlives a command that is killed: the next one with the same
checkpoint ends it and goes on. All paths are the server's; the folder of segments is to be at the same path here.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own manual has it
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from ordack.paths import NotLocal, local_path, scheme_of
from ordack.pipeline import segments
from ordack.pipeline.bodies import SchemaError
from ordack.pipeline.options import OptionError
from ordack.pipeline.session import is_remote, words
from ordack.pipeline.source import MALFORMED, Rows, Settings, last_serials
from ordack.pipeline.table import METADATA
from ordack.store.database import counted

PARQUET, ICEBERG = "parquet", "iceberg"
FILES = (PARQUET, "orc")  # of those that Spark's file sink writes, the ones that hold all columns in their types
FORMATS = (*FILES, "delta", ICEBERG)
CHECKPOINT = "_ordack_checkpoint"  # Spark passes over names with _ in front
LOCK = "ordack.lock"
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
SEGMENTS_MAX = 256  # in a micro-batch: it bounds what is done again after a kill, and how old progress can be
INTERVAL_S = 1.0
POLL_S = 0.2
LOCK_PATIENCE_S = 60.0  # the JVM of a killed driver lives on for some seconds
OBSERVED = "ordack"
GOES_ON = "what is in the table is whole, and the next ingest goes on"
# What gives Spark a format that it does not have: the package in Maven's central repository, and its settings.
PACKAGES = {
    "delta": "io.delta:delta-spark_2.13, with spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ICEBERG: "org.apache.iceberg:iceberg-spark-runtime of your Spark, with spark.sql.extensions="
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions and a catalog, "
    "spark.sql.catalog.NAME=org.apache.iceberg.spark.SparkCatalog",
}
REACH = "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION"


class IngestError(Exception):
    """The ingest cannot begin, or has ended early; the text says why and what to do."""


class IngestUnusable(IngestError):
    """The table, the checkpoint and the segments do not belong together; nothing was written."""


class Figures(NamedTuple):
    """Seconds from an event until a row is in the table, of a number of rows: quantiles."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass
class Latency:
    """How long messages took. Of sending only the second is known, as the protocol has it: up to 1 s too long."""

    milliseconds: Counter[int] = field(default_factory=Counter)

    def add(self, times: np.ndarray[Any, Any], until: int) -> None:
        """times: microseconds since 1970; until: milliseconds."""
        values, counts = np.unique(times, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist()):
            self.milliseconds[until - value // 1000] += count

    def figures(self) -> Figures | None:
        """None: of nothing."""
        if not self.milliseconds:
            return None
        values = np.array(sorted(self.milliseconds))
        reached = np.cumsum([self.milliseconds[value] for value in values.tolist()])
        at = np.searchsorted(reached, np.ceil(np.array([0.5, 0.9, 0.99, 1.0]) * reached[-1]))
        return Figures(*(float(value) / 1000 for value in values[at]))


@dataclass
class Batch:
    """One micro-batch that is in the table. `malformed`: None without a schema. `behind`: segments that were there and
    not read yet when it was looked."""

    number: int
    rows: int
    malformed: int | None
    segments: int
    behind: int
    seconds: float
    arrived_to_table: Figures | None
    sent_to_table: Figures | None

    def as_json(self) -> dict[str, Any]:
        """The object that `ordack pipeline ingest --json` prints."""
        return {
            "batch": self.number,
            "rows": self.rows,
            "malformed": self.malformed,
            "segments": self.segments,
            "behind": self.behind,
            "seconds": round(self.seconds, 3),
            "latency_s": {
                "arrived_to_table": _rounded(self.arrived_to_table),
                "sent_to_table": _rounded(self.sent_to_table),
            },
        }


def _rounded(figures: Figures | None) -> dict[str, float] | None:
    return None if figures is None else {name: round(value, 3) for name, value in figures._asdict().items()}


@dataclass
class Summary:
    """What one run has put into the table."""

    table: str
    batches: int = 0
    rows: int = 0
    malformed: int | None = None
    segments: int = 0
    seconds: float = 0.0
    arrived_to_table: Latency = field(default_factory=Latency)
    sent_to_table: Latency = field(default_factory=Latency)

    def __str__(self) -> str:
        """The report that `ordack pipeline ingest` prints."""
        text = f"{self.table}: {counted(self.rows, 'row')}"
        if self.batches:
            text += f" of {counted(self.segments, 'segment')}, in {counted(self.batches, 'batch')}"
        if self.malformed:
            text += f"; {self.malformed} with a body that does not fit the schema, the column {MALFORMED} says why"
        for name, latency in (("arrival in the queue", self.arrived_to_table), ("sending", self.sent_to_table)):
            if figures := latency.figures():
                text += f"\nfrom {name} to the table: " + ", ".join(
                    f"{label} {value:.2f} s" for label, value in figures._asdict().items()
                )
        return text + ("\n(of sending only the second is known: up to 1 s too long)" if self.rows else "")

    def as_json(self) -> dict[str, Any]:
        """The last object that `ordack pipeline ingest --json` prints."""
        return {
            "table": self.table,
            "batches": self.batches,
            "rows": self.rows,
            "malformed": self.malformed,
            "segments": self.segments,
            "seconds": round(self.seconds, 3),
            "latency_s": {
                "arrived_to_table": _rounded(self.arrived_to_table.figures()),
                "sent_to_table": _rounded(self.sent_to_table.figures()),
                "resolution": {"arrived_to_table": 0.001, "sent_to_table": 1},
            },
        }


@dataclass
class Job:
    """What is to be ingested, checked as far as it can be without Spark.

    options: of the data source (source.py). table: a folder or URL, or with the format iceberg the name of a table.
    checkpoint: by default CHECKPOINT in the table's folder. Raises FolderError, OptionError, IngestUnusable.
    """

    options: Mapping[str, str]
    table: str
    table_format: str = PARQUET
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        self.settings = Settings.of({"maxSegmentsPerTrigger": str(SEGMENTS_MAX), **self.options})
        if self.table_format not in FORMATS:
            raise OptionError(f"no table has the format {self.table_format!r}; there are {', '.join(FORMATS)}")
        if self.table_format != ICEBERG:
            self.table = _absolute(self.table)
        elif self.checkpoint is None:
            raise OptionError("a table of Iceberg has no folder of its own for the checkpoint: say --checkpoint")
        self.place = _absolute(self.checkpoint or f"{self.table}/{CHECKPOINT}")
        if self.table_format in FILES:
            self._check_local()

    def _check_local(self) -> None:
        """What `check` refuses and can be told without Spark: a folder of this machine that holds other files."""
        table, offsets = (_local(path) for path in (self.table, f"{self.place}/offsets"))
        if table is None or offsets is None:
            return
        if table.exists() and not table.is_dir():
            raise IngestUnusable(f"{table} is no folder: name a new one")
        if not (table / METADATA).exists() and not _for_readers(_names(offsets)) and _for_readers(_names(table)):
            raise IngestUnusable(_foreign(self.table))

    def source(self, spark: SparkSession) -> DataFrame:
        """The stream of the messages. Raises OptionError, SchemaError."""
        options = {"maxSegmentsPerTrigger": str(SEGMENTS_MAX), **self.options, "path": str(self.settings.folder)}
        try:
            if self.settings.schema:
                StructType.fromDDL(self.settings.schema)
        except PySparkException as error:
            raise SchemaError(f"Spark does not take the schema {self.settings.schema!r}: {words(error)}") from None
        try:
            frame = spark.readStream.format("ordack").options(**options).load()
            schema = frame.schema
        except PySparkException as error:
            where = ", as the server sees it: it needs the folder at the same path" if is_remote(spark) else ""
            raise IngestUnusable(f"{words(error)}{where}") from None
        Rows(self.settings, schema)
        return frame.observe(OBSERVED, F.count(MALFORMED).alias("malformed")) if self.settings.schema else frame

    def fitted(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The stream, without MESSAGE_KEY if the table was begun before there was such a column: a table keeps its
        columns."""
        columns = self._columns(spark)
        return frame.drop(segments.MESSAGE_KEY) if columns and segments.MESSAGE_KEY not in columns else frame

    def _columns(self, spark: SparkSession) -> list[str]:
        """Those of a table that is there; none if it cannot be read, which `check` looks into."""
        if self.table_format in FILES and not _holds_files(spark, f"{self.table}/{METADATA}"):
            return []
        try:
            return self._read(spark).columns
        except (PySparkException, Py4JJavaError):
            return []

    def _read(self, spark: SparkSession) -> DataFrame:
        return (
            spark.table(self.table)
            if self.table_format == ICEBERG
            else (spark.read.format(self.table_format).load(self.table))
        )

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Refuse a table that this checkpoint has not written. Raises IngestUnusable, IngestError."""
        begun, committed = (_holds_files(spark, f"{self.place}/{part}") for part in ("offsets", "commits"))
        files = self.table_format in FILES
        there: bool | None = (
            (_holds_files(spark, f"{self.table}/{METADATA}") or None) if files else (self._holds_rows(spark))
        )
        if there and not begun:
            what = "leave out rows" if files else "put rows into it again"
            raise IngestUnusable(
                f"the table {self.table} has been written with another checkpoint than {self.place}; "
                f"with a new one Spark would {what}: name the table's own, or begin a new table"
            )
        if begun and committed and there is None:
            raise IngestUnusable(
                f"the checkpoint {self.place} belongs to a table that is not in {self.table} any "
                "more: take a new checkpoint and a new table, or put it back"
            )
        if not files:
            return
        if there:
            before = _comparable(self._read(spark).schema)
            now = _comparable(schema)
            if before != now:
                gone, new = (
                    ", ".join(one for one in these if one not in others) or "nothing"
                    for these, others in ((before, now), (now, before))
                )
                how = (
                    f"other columns (only in the table: {gone}; only in this ingest: {new})"
                    if set(before) != set(now)
                    else f"its columns in another order ({', '.join(before)})"
                )
                raise IngestUnusable(
                    f"the table {self.table} has {how}: a table keeps its schema; say the "
                    "same --schema, or begin a new table"
                )
        elif not begun and _holds_files(spark, self.table):
            raise IngestUnusable(_foreign(self.table))

    def _holds_rows(self, spark: SparkSession) -> bool | None:
        """Whether rows are in a table of Delta or Iceberg; None: there is no such table. Raises IngestError."""
        try:
            return bool(self._read(spark).take(1))
        except (PySparkException, Py4JJavaError) as error:
            self.check_format(error)
            return None

    def check_format(self, error: PySparkException | Py4JJavaError) -> None:
        """Raises IngestError if the error is that Spark does not have the table's format."""
        no_catalog = self.table_format == ICEBERG and "REQUIRES_SINGLE_PART_NAMESPACE" in str(error)
        if no_catalog or "DATA_SOURCE_NOT_FOUND" in str(error):
            what = f"catalog {self.table.partition('.')[0]}" if no_catalog else f"format {self.table_format}"
            raise IngestError(
                f"this Spark has no {what}: give it {PACKAGES[self.table_format]} (the package with "
                "--conf spark.jars.packages=PACKAGE:VERSION, each setting with --conf, too; all of it to a Spark "
                f"Connect server when it is started), or write {PARQUET}"
            ) from None


def _absolute(path: str) -> str:
    """A URL as it is. Raises OptionError."""
    local = _local(path)
    return path if local is None or scheme_of(path) else str(local.absolute())


def _local(path: str) -> Path | None:
    """A path of this machine; None: it is a URL of another file system. Raises OptionError."""
    try:
        return Path(local_path(path)) if scheme_of(path) in ("", "file") else None
    except NotLocal as error:
        raise OptionError(str(error)) from None


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*")]


def _for_readers(names: Iterable[str]) -> bool:
    """Whether some of these files are not passed over by Spark."""
    return any(name[0] not in "._" for name in names)


def _foreign(table: str) -> str:
    return f"{table} holds files that no ingest has written: name a new folder"


def _comparable(schema: StructType) -> list[str]:
    return [f"{column.name} {column.dataType.simpleString()}" for column in schema]


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001 - pyspark has no other way to Java's and Hadoop's classes


def _holds_files(spark: SparkSession, folder: str) -> bool:
    """Whether there are files in the folder that are for readers. Raises IngestError, IngestUnusable."""
    if not is_remote(spark):
        jvm = _jvm(spark)
        try:
            named = jvm.org.apache.hadoop.fs.Path(folder)
            system = named.getFileSystem(jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration())
            return system.exists(named) and _for_readers(
                status.getPath().getName() for status in system.listStatus(named)
            )
        except (PySparkException, Py4JJavaError) as error:
            raise IngestUnusable(
                f"this Spark cannot look into {folder}: {words(error)}. Give it what reaches that ({REACH} for s3a, "
                "and the like), or name a folder of this machine"
            ) from None
    pattern = re.sub(r"([\\*?{}\[\]])", r"\\\1", folder) + "/[!._]*"
    try:  # the server looks, and reads nothing
        spark.read.format("binaryFile").load(pattern).schema  # noqa: B018
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise IngestError(f"cannot look into {folder}: {words(error)}") from None
    return True


@contextlib.contextmanager
def _locked(spark: SparkSession, job: Job) -> Iterator[None]:
    """Keep others away from the checkpoint, with a lock that the JVM holds: it may outlive a driver that is killed, and
    would go on with its batch beside the next driver's. Only where the checkpoint is on a file system of this machine;
    Spark itself notices two drivers later, at the end of a batch, and a server ends the stream that was there before.
    Raises IngestError."""
    place = _local(job.place)
    if is_remote(spark) or place is None:
        yield
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / LOCK).touch()
    except OSError as error:
        raise IngestError(f"cannot write to the checkpoint {place}: {error.strerror}") from None
    file = _jvm(spark).java.io.RandomAccessFile(str(place / LOCK), "rw")

    def taken() -> bool:
        try:
            return file.getChannel().tryLock() is not None
        except Py4JJavaError:  # by this very JVM
            return False

    try:
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while not taken():
            if time.monotonic() > deadline:
                raise IngestError(f"another ingest is at work with the checkpoint {place}: let it end, or stop it")
            time.sleep(POLL_S)
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # the JVM may be gone, and the lock with it
            file.close()


def ingest(
    spark: SparkSession,
    job: Job,
    *,
    continuous: bool = False,
    interval: float = INTERVAL_S,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Batch], None] | None = None,
) -> Summary:
    """Put what is in the segments, and not in the table yet, into the table; with `continuous` also what comes, looking
    every `interval` seconds, until `stop()`. `tell` hears of each batch that is in the table.

    Raises IngestError, FolderError, OptionError, SchemaError.
    """
    frame = job.fitted(spark, job.source(spark))
    job.check(spark, frame.schema)
    with _locked(spark, job):
        begun = time.monotonic()
        summary = Summary(job.table, malformed=0 if job.settings.schema else None)
        due = {} if continuous else last_serials(job.settings)
        with _timestamps_in_microseconds(spark):
            query = _start(job, frame, continuous, interval)
        watch = Watch(job, summary, tell)
        stopped = False
        try:
            while not stopped and not _ended(query):
                watch.look(query)
                stopped = stop()
        finally:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                query.stop()
        watch.look(query)
        if not stopped and is_remote(spark) and (continuous or not _in_table(spark, job, due)):
            raise IngestError(
                "the stream was stopped on the server, by another ingest with the checkpoint "
                f"{job.place} or by hand, before this one was at its end; the next ingest goes on"
            )
        summary.seconds = time.monotonic() - begun
    return summary


def _in_table(spark: SparkSession, job: Job, due: Mapping[str, int]) -> bool:
    """Whether the segments up to these serials are in the table, by the checkpoint: a stream that a server was told to
    stop ends like one that has read everything."""
    try:
        commits = spark.read.format("binaryFile").load(f"{job.place}/commits").select("path").collect()
        number = max(int(row["path"].rpartition("/")[2]) for row in commits)
        content = spark.read.text(f"{job.place}/offsets/{number}", wholetext=True).collect()
    except PySparkException:
        return not due  # no batch was committed
    reached = _serials(content[0]["value"].splitlines()[-1])
    return all(serial <= reached.get(queue, 0) for queue, serial in due.items())


@contextlib.contextmanager
def _timestamps_in_microseconds(spark: SparkSession) -> Iterator[None]:
    """Parquet files have TIMESTAMP columns then, not INT96 that was given up years ago. It is a setting of the session,
    which a stream takes along when it is started; the session may be another's, so it gets its own back."""
    before = spark.conf.get(TIMESTAMPS)
    spark.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(TIMESTAMPS, before)


def _start(job: Job, frame: DataFrame, continuous: bool, interval: float) -> StreamingQuery:
    writer = frame.writeStream.format(job.table_format).option("checkpointLocation", job.place).outputMode("append")
    if job.table_format in FILES:
        writer = writer.option("compression", "zstd")
    writer = (
        writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
        if continuous
        else (writer.trigger(availableNow=True))
    )
    try:
        return writer.toTable(job.table) if job.table_format == ICEBERG else writer.start(job.table)
    except (PySparkException, Py4JJavaError) as error:
        job.check_format(error)
        raise IngestError(f"cannot write {job.table_format} to {job.table}: {words(error)}") from None


def _ended(query: StreamingQuery) -> bool:
    """Wait a little. Raises IngestError if the stream has failed."""
    with _failures_in_words():
        return bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]


@contextlib.contextmanager
def _failures_in_words() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        if segments.OtherFolder.__name__ in str(error):
            raise IngestUnusable(words(error)) from None
        raise IngestError(words(error)) from None
    except (Py4JError, OSError):
        raise IngestError(f"Spark's JVM has ended; {GOES_ON}") from None


@dataclass
class Watch:
    """Tells each batch that a query has finished, and adds it up."""

    job: Job
    summary: Summary
    tell: Callable[[Batch], None] | None
    last: int = -1
    seen: str = ""

    def look(self, query: StreamingQuery) -> None:
        with _failures_in_words():
            newest = query.lastProgress
            if newest is None or newest["timestamp"] == self.seen:
                return  # all of them cost much more to ask for
            recent = query.recentProgress
        self.seen = recent[-1]["timestamp"]
        for progress in recent:
            number = int(progress["batchId"])
            if number > self.last and "addBatch" in progress["durationMs"]:
                self.last = number
                self._take(progress)

    def _take(self, progress: Any) -> None:
        summary = self.summary
        source = progress["sources"][0]
        begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
        taken = int(progress["durationMs"]["triggerExecution"])
        first, last = _serials(source["startOffset"]), _serials(source["endOffset"])
        there = segments.segments(self.job.settings.folder, self.job.settings.queues)
        read = [
            segment for segment in there if first.get(segment.queue, 0) < segment.serial <= last.get(segment.queue, 0)
        ]
        arrived, sent = Latency(), Latency()
        for segment in read:
            with contextlib.suppress(OSError):  # it may be deleted by now, or not be on this machine
                times = pq.read_table(segment.path, columns=["arrived", "sent_time"], use_threads=False)
                for latency, column in ((arrived, "arrived"), (sent, "sent_time")):
                    latency.add(times[column].cast("int64").to_numpy(), round(begun * 1000) + taken)
        malformed = _malformed((progress["observedMetrics"] or {}).get(OBSERVED))
        batch = Batch(
            int(progress["batchId"]),
            int(progress.numInputRows),
            malformed,
            len(read),
            sum(segment.serial > last.get(segment.queue, 0) for segment in there),
            taken / 1000,
            arrived.figures(),
            sent.figures(),
        )
        summary.batches += 1
        summary.rows += batch.rows
        summary.segments += batch.segments
        if summary.malformed is not None and malformed is not None:
            summary.malformed += malformed
        summary.arrived_to_table.milliseconds += arrived.milliseconds
        summary.sent_to_table.milliseconds += sent.milliseconds
        if self.tell is not None:
            self.tell(batch)


def _malformed(observed: Row | None) -> int | None:
    if observed is None:
        return None
    values = observed.asDict()  # through a server: {"values": [...], "schema": ...}, which pyspark takes for a row
    return int(values["malformed"] if "malformed" in values else values["values"][0])


def _serials(offset: str | None) -> dict[str, int]:
    queues: dict[str, int] = (json.loads(offset or "null") or {"queues": {}})["queues"]
    return queues
