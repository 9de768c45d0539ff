"""Tables of Parquet or ORC: a stream of Spark's from segments to its file sink.

Spark writes down in a checkpoint which segments a batch takes before it reads them, and again when the batch is in the
table; a batch that was interrupted is done again with the same segments, which never change, and the file sink makes a
batch part of the table all at once, and once, by its log. So the table and its checkpoint belong together: by default
the checkpoint is in the table's folder, and a table is not gone on with by another checkpoint.

Through a Spark Connect server the stream runs there, and outlives a command that is killed: the next one with the same
checkpoint ends it and goes on.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from ordack.paths import scheme_of
from ordack.pipeline import segments
from ordack.pipeline.folders import Folders, Place
from ordack.pipeline.progress import Batch, IngestError, IngestUnusable, Latency, Summary, ended
from ordack.pipeline.segment_source import folders_of
from ordack.pipeline.spark import is_remote, words
from ordack.pipeline.table import METADATA, TableError, settle
from ordack.slow_starts import STARTS, is_slow_start

LOCK = "ordack.lock"
STREAM = "_ordack_stream"  # in a table's folder: the identifier that Spark has given the stream of its checkpoint
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
POLL_S = 0.2
LOCK_PATIENCE_S = 60.0  # the JVM of a killed driver lives on for some seconds
OBSERVED = "ordack"
GOES_ON = "what is in the table is whole, and the next ingest goes on"
REACH = "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION"


class _SlowStart(IngestError):
    """The stream has ended for nothing but that a process of it started slowly."""


@dataclass
class Source:
    """The stream of messages, the folders that it reads, and whether it decodes bodies."""

    frame: DataFrame
    folders: Folders
    decodes: bool


@dataclass
class FileTable:
    """A table of Parquet or ORC, by its folder or URL, and its checkpoint, which is `local_place` on this machine."""

    table: str
    table_format: str
    place: str
    local_place: Path | None

    def check_local(self, table: Path) -> None:
        """What `check` refuses and can be told without Spark of a folder of this machine. Raises IngestUnusable."""
        place = self.local_place
        if place is None:
            return
        if (
            not (table / METADATA).exists()
            and not _for_readers(_names(place / "offsets"))
            and _for_readers(_names(table))
        ):
            raise IngestUnusable(_foreign(self.table))

    def settle(self) -> None:
        """What was moved or copied is at home in its new place. Raises IngestError, IngestUnusable."""
        if scheme_of(self.table) or not Path(self.table, METADATA).exists():
            return
        try:
            settle(Path(self.table))
        except TableError as error:
            raise IngestUnusable(str(error)) from None
        except OSError as error:
            raise IngestError(f"cannot write to {error.filename or self.table}: {error.strerror}") from None

    def fitted(self, spark: SparkSession, frame: DataFrame) -> DataFrame:
        """The stream, in the order of the table's columns, and without those of messages that were not there yet when
        the table was begun: a table keeps its columns, and readers other than Spark put files together by their
        order."""
        if not holds_files(spark, f"{self.table}/{METADATA}"):
            return frame
        columns = self._read(spark).columns
        frame = frame.drop(*(name for name in segments.ADDED if name not in columns))
        if sorted(columns) != sorted(frame.columns):
            return frame  # and `check` says why not
        return frame.select(*("`" + name.replace("`", "``") + "`" for name in columns))

    def _read(self, spark: SparkSession) -> DataFrame:
        try:
            frame = spark.read.format(self.table_format).load(self.table)
            frame.schema  # noqa: B018 - a server is asked for it now
            return frame
        except PySparkException as error:
            raise IngestUnusable(f"Spark cannot read the table {self.table}: {words(error)}") from None

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Refuse a table that this checkpoint has not written. Raises IngestUnusable, IngestError."""
        begun, committed = (holds_files(spark, f"{self.place}/{part}") for part in ("offsets", "commits"))
        there = holds_files(spark, f"{self.table}/{METADATA}")
        if there and not begun:
            raise IngestUnusable(
                f"the table {self.table} has been written with another checkpoint than {self.place}; "
                f"with a new one Spark would leave out rows: name the table's own, or begin a new table"
            )
        if begun and committed and not there:
            raise IngestUnusable(
                f"the checkpoint {self.place} belongs to a table that is not in {self.table} any "
                "more: take a new checkpoint and a new table, or put it back"
            )
        if there:
            self.bind()
            before = _comparable(self._read(spark).schema)
            now = _comparable(schema)
            if before != now:
                gone, new = (
                    ", ".join(one for one in these if one not in others) or "nothing"
                    for these, others in ((before, now), (now, before))
                )
                raise IngestUnusable(
                    f"the table {self.table} has other columns (only in the table: {gone}; only in this ingest: "
                    f"{new}): a table keeps its schema; say the same --schema, or begin a new table"
                )
        elif not begun and holds_files(spark, self.table):
            raise IngestUnusable(_foreign(self.table))

    def bind(self) -> None:
        """Table and checkpoint belong together from now on, where both are on this machine. Of the checkpoint of
        another table Spark would leave out the batches whose numbers this one has. Raises IngestUnusable."""
        if self.local_place is None or scheme_of(self.table):
            return
        mark = Path(self.table, STREAM)
        try:
            stream = json.loads((self.local_place / "metadata").read_text())["id"]
            if not mark.exists():
                mark.write_text(stream)
            elif mark.read_text() != stream:
                raise IngestUnusable(
                    f"the checkpoint {self.place} is that of another table than {self.table}: with it Spark would "
                    "leave out rows. Name the table's own"
                )
            if _last_batch(self.local_place / "commits") > _last_batch(Path(self.table, METADATA)):
                raise IngestUnusable(
                    f"the checkpoint {self.place} has batches that are not in {self.table}: an ingest into a copy of "
                    "the table has gone on with it. Begin a new table: it gets all messages whose segments are there"
                )
        except OSError:  # the stream has not begun, or runs on another machine
            pass


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*")]


def _last_batch(log: Path) -> int:
    numbers = [name.removesuffix(".compact") for name in _names(log)]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _for_readers(names: Iterable[str]) -> bool:
    """Whether some of these files are not passed over by Spark."""
    return any(name[0] not in "._" for name in names)


def _foreign(table: str) -> str:
    return f"{table} holds files that no ingest has written: name a new folder"


def _comparable(schema: StructType) -> list[str]:
    return [f"{column.name} {column.dataType.simpleString()}" for column in schema]


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001 - pyspark has no other way to Java's and Hadoop's classes


def holds_files(spark: SparkSession, folder: str) -> bool:
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
def _locked(spark: SparkSession, place: Path | None) -> Iterator[None]:
    """Keep others away from the checkpoint, with a lock that the JVM holds: it may outlive a driver that is killed, and
    would go on with its batch beside the next driver's. Only where the checkpoint is on a file system of this machine;
    Spark itself notices two drivers later, at the end of a batch, and a server ends the stream that was there before.
    Raises IngestError."""
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


def run(
    spark: SparkSession,
    to: FileTable,
    source: Source,
    *,
    continuous: bool,
    interval: float,
    stop: Callable[[], bool],
    tell: Callable[[Batch], None] | None,
    warn: Callable[[str], None],
) -> Summary:
    """Put what is in the segments, and not in the table yet, into the table. Raises IngestError, FolderError."""
    to.settle()
    frame = to.fitted(spark, source.frame)
    to.check(spark, frame.schema)
    if not holds_files(spark, f"{to.place}/offsets"):
        for text in source.folders.begun_late(source.folders.beginning(())):
            warn(text)
    with _locked(spark, to.local_place):
        begun = time.monotonic()
        summary = Summary(to.table, malformed=0 if source.decodes else None)
        due = {} if continuous else source.folders.last()
        watch = Watch(source.folders, summary, tell)
        for start in range(1, STARTS + 1):
            with _timestamps_in_microseconds(spark):
                query = _start(to, frame, continuous, interval)
            try:
                stopped = _watched(query, watch, stop)
                break
            except _SlowStart:
                if start == STARTS:
                    raise
        to.bind()
        if not stopped and is_remote(spark) and (continuous or not _in_table(spark, to, due)):
            raise IngestError(
                "the stream was stopped on the server, by another ingest with the checkpoint "
                f"{to.place} or by hand, before this one was at its end; the next ingest goes on"
            )
        summary.seconds = time.monotonic() - begun
    return summary


def _watched(query: StreamingQuery, watch: Watch, stop: Callable[[], bool]) -> bool:
    """Tell its batches until it has ended or is to be stopped; was it that? Raises IngestError."""
    stopped = False
    try:
        while not stopped and not _ended(query):
            watch.look(query)
            stopped = stop()
    finally:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            query.stop()
    watch.look(query)
    return stopped


def _in_table(spark: SparkSession, to: FileTable, due: Mapping[Place, int]) -> bool:
    """Whether the segments up to these serials are in the table, by the checkpoint: a stream that a server was told to
    stop ends like one that has read everything."""
    try:
        commits = spark.read.format("binaryFile").load(f"{to.place}/commits").select("path").collect()
        number = max(int(row["path"].rpartition("/")[2]) for row in commits)
        content = spark.read.text(f"{to.place}/offsets/{number}", wholetext=True).collect()
    except PySparkException:
        return not due  # no batch was committed
    reached = serials_of(content[0]["value"].splitlines()[-1])
    return all(serial <= reached.get(place, 0) for place, serial in due.items())


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


def _start(to: FileTable, frame: DataFrame, continuous: bool, interval: float) -> StreamingQuery:
    writer = frame.writeStream.queryName(f"ordack ingest {to.table}").format(to.table_format).outputMode("append")
    writer = writer.options(checkpointLocation=to.place, compression="zstd")
    writer = (
        writer.trigger(processingTime=f"{round(interval * 1000)} milliseconds")
        if continuous
        else writer.trigger(availableNow=True)
    )
    try:
        return writer.start(to.table)
    except (PySparkException, Py4JJavaError) as error:
        raise IngestError(f"cannot write {to.table_format} to {to.table}: {words(error)}") from None


def _ended(query: StreamingQuery) -> bool:
    """Wait a little. Raises IngestError if the stream has failed."""
    with _failures_in_words():
        return bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]


@contextlib.contextmanager
def _failures_in_words() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        if is_slow_start(error):
            raise _SlowStart(
                f"Spark gives up what takes 10 s to start: this machine has too much other work; {GOES_ON}"
            ) from None
        raise ended(error) from None
    except (Py4JError, OSError):
        raise IngestError(f"Spark's JVM has ended; {GOES_ON}") from None


@dataclass
class Watch:
    """Tells each batch that a query has finished, and adds it up."""

    folders: Folders
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
        source = progress["sources"][0]
        begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
        taken = int(progress["durationMs"]["triggerExecution"])
        first, last = serials_of(source["startOffset"]), serials_of(source["endOffset"])
        self.folders.look()
        read = self.folders.listed(first, last)
        arrived, sent = Latency(), Latency()
        for one in read:
            with contextlib.suppress(OSError):  # it may be deleted by now, or not be on this machine
                times = pq.read_table(one.segment.path, columns=["arrived", "sent_time"], use_threads=False)
                for latency, column in ((arrived, "arrived"), (sent, "sent_time")):
                    seen, counts = np.unique(times[column].cast("int64").to_numpy() // 1000, return_counts=True)
                    latency.add(seen.tolist(), counts.tolist(), round(begun * 1000) + taken)
        malformed = _malformed((progress["observedMetrics"] or {}).get(OBSERVED))
        batch = Batch(
            int(progress["batchId"]),
            int(progress.numInputRows),
            malformed,
            len(read),
            len(self.folders.listed(last)),
            taken / 1000,
            arrived.figures(),
            sent.figures(),
        )
        self.summary.add(batch, arrived, sent)
        if self.tell is not None:
            self.tell(batch)


def _malformed(observed: Row | None) -> int | None:
    if observed is None:
        return None
    values = observed.asDict()  # through a server: {"values": [...], "schema": ...}, which pyspark takes for a row
    return int(values["malformed"] if "malformed" in values else values["values"][0])


def serials_of(offset: str | None) -> dict[Place, int]:
    """The last segment of each queue, by an offset of the stream in a checkpoint."""
    told = folders_of(json.loads(offset or "null") or {"folders": {}})
    return {Place(folder, queue): serial for folder, queues in told.items() for queue, serial in queues.items()}
