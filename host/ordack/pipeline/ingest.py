"""`ordack pipeline ingest`: from segments to a table, each message exactly once.

Tables of Delta Lake and Iceberg keep themselves which segments are in them (lake.py). Here the driver looks which
others there are, has tasks of Spark write them to Parquet files (writing.py), and makes files and serials part of the
table in one commit. What was killed before that is done again, and is nowhere; what was killed behind it is done.

All paths are those of the tasks and of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ordack.config.paths import NotLocal, local_path, scheme_of
from ordack.pipeline import folders, writing
from ordack.pipeline.bodies import SchemaError
from ordack.pipeline.doubles import NEEDED, Doubles, apart
from ordack.pipeline.lake import CATALOG, DECODING, Decoding, Lake, check_empty
from ordack.pipeline.options import OptionError
from ordack.pipeline.progress import Batch, IngestError, IngestMissing, IngestUnusable, Latency, Summary, ended
from ordack.pipeline.segment_source import MALFORMED, Rows, Settings
from ordack.pipeline.segments import SCHEMA, FolderBusy, FolderMissing
from ordack.pipeline.spark import words
from ordack.text import counted

DELTA, ICEBERG = "delta", "iceberg"
FORMATS = (DELTA, ICEBERG)
DIVISIONS = (writing.DAY, "queue_manager", "queue")  # what --partition-by takes
# In a micro-batch: what is done again after a kill, and how old progress can be. A batch more costs as much as 100,000
# rows.
SEGMENTS_MAX, BYTES_MAX = 1024, 64 << 20
INTERVAL_S = 1.0
POLL_S = 0.2
GOES_ON = "what is in the table is whole, and the next ingest goes on"


@dataclass
class Job:
    """What is to be ingested, checked as far as it can be without Spark.

    options: of the data source (segment_source.py). table: a folder or URL, or with the format iceberg the name of a
    table. table_format: None: that of the table, and of a new one Delta Lake. by: what divides a new table; None: as it
    is. add_columns: those that the table does not have. Raises FolderError, OptionError, IngestUnusable.
    """

    options: Mapping[str, str]
    table: str
    table_format: str | None = None
    by: tuple[str, ...] | None = None
    add_columns: bool = False

    def __post_init__(self) -> None:
        self._decoding: Decoding | None = None
        self.settings = Settings.of({"maxSegmentsPerTrigger": str(SEGMENTS_MAX), **self.options})
        if self.table_format not in (None, *FORMATS):
            raise OptionError(f"no table has the format {self.table_format!r}; there are {', '.join(FORMATS)}")
        for name in self.by or ():
            if name not in DIVISIONS:
                raise OptionError(f"a table is not divided by {name!r} (--partition-by): say {', '.join(DIVISIONS)}")
        if self.table_format == ICEBERG:
            from ordack.pipeline.iceberg import is_name

            if is_name(self.table):
                return
        self.table = _absolute(self.table)
        local = _local(self.table)
        if local is not None and local.is_file():
            raise IngestUnusable(f"{self.table} is no folder: name a new one")
        there = format_of(self.table)
        if there is not None and self.table_format not in (None, there):
            raise IngestUnusable(
                f"{self.table} is a table of the format {there}, and goes on as that: leave --format out, or name a "
                f"new folder for {self.table_format}"
            )
        self.table_format = self.table_format or there or DELTA
        if local is not None and there is None:
            check_empty(self.table)

    def given(self) -> list[StructField]:
        """The columns of --schema. Raises SchemaError."""
        if not self.settings.schema:
            return []
        try:
            decoded = StructType.fromDDL(self.settings.schema)
        except PySparkException as error:
            raise SchemaError(f"Spark does not take the schema {self.settings.schema!r}: {words(error)}") from None
        assert isinstance(decoded, StructType)
        return decoded.fields

    def rows(self) -> Rows:
        """What tasks make of segments: with the columns that the table decodes from bodies, or is to. Raises
        IngestError, IngestUnusable, OptionError, SchemaError."""
        given, settings = self.given(), self.settings
        kept = self._properties().get(DECODING)
        if kept is not None:
            self._decoding = Decoding.of(kept, self.table).checked(self.table, given, self.options.get("prefix"))
        elif given:
            self._decoding = Decoding(given, settings.body_format, settings.prefix)
        columns = from_arrow_schema(SCHEMA).fields
        if self._decoding is not None:
            decoded = self._decoding.fields
            settings = replace(
                settings,
                schema=StructType(decoded).simpleString(),
                body_format=self.options.get("format", self._decoding.body_format),
                prefix=self._decoding.prefix,
            )
            columns = [*decoded, StructField(MALFORMED, StringType()), *columns]
        return Rows(settings, StructType(columns))

    def _properties(self) -> Mapping[str, str]:
        """Of the table, if there is one. Raises IngestError, IngestUnusable."""
        if self.table_format == ICEBERG:
            from ordack.pipeline import iceberg

            return iceberg.properties_of(self.table)
        from ordack.pipeline import delta

        return delta.properties_of(self.table)

    @property
    def decodes(self) -> bool:
        """Whether bodies are decoded."""
        return self._decoding is not None

    def open(self, rows: Rows) -> Lake:
        """The table of Delta Lake or Iceberg. Raises IngestError, IngestUnusable."""
        if writing.DAY in (self.by or ()) and writing.DAY in map(str.lower, rows.arrow.names):
            raise OptionError(f"--partition-by {writing.DAY} makes a column of that name, and the schema has one, too")
        decoding = None if self._decoding is None else str(self._decoding)
        if self.table_format == ICEBERG:
            from ordack.pipeline.iceberg import Iceberg

            return Iceberg(self.table, rows.arrow, self.by, self.add_columns, decoding)
        from ordack.pipeline.delta import Delta

        return Delta(self.table, rows.arrow, self.by, self.add_columns, decoding)


def format_of(table: str) -> str | None:
    """The format of a table that is there, as far as this machine can tell; None: there is none in the folder, or it is
    a URL. Raises OptionError."""
    folder = _local(table)
    if folder is None:
        return None
    if (folder / "_delta_log").exists():
        return DELTA
    if (folder / CATALOG).exists():
        return ICEBERG
    return None


def _absolute(path: str) -> str:
    """A URL as it is. Raises OptionError."""
    local = _local(path)
    return path if local is None else str(local.absolute())


def _local(path: str) -> Path | None:
    """A path of this machine; None: it is a URL of another file system. Raises OptionError."""
    try:
        return Path(local_path(path)) if scheme_of(path) in ("", "file") else None
    except NotLocal as error:
        raise OptionError(str(error)) from None


def ingest(
    spark: SparkSession,
    job: Job,
    *,
    continuous: bool = False,
    interval: float = INTERVAL_S,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[Batch], None] | None = None,
    warn: Callable[[str], None] = lambda _: None,
    looked: Callable[[], None] = lambda: None,
) -> Summary:
    """Put what is in the segments, and not in the table yet, into the table; with `continuous` also what comes, looking
    every `interval` seconds, until `stop()`. `tell` hears of each batch that is in the table, `warn` of queues whose
    first segments are gone when the table begins with them, and of folders that are waited for, `looked` of each look.

    Raises IngestError, FolderError, OptionError, SchemaError.
    """
    rows = job.rows()
    table = job.open(rows)
    writer = writing.Writer(rows, table.data, table.names, table.by, table.by_in_files)
    load = Load(
        job, table, lambda parts: _written(spark, writer, parts), tell, warn, looked, lambda: _check_alive(spark)
    )
    return load.run(continuous, interval, stop)


def _written(spark: SparkSession, writer: writing.Writer, parts: list[folders.Part]) -> list[writing.Written]:
    spark.sparkContext.setJobDescription(f"ordack ingest {writer.table}")  # on Spark's page
    try:
        return writing.run(spark, writer, parts)
    except PySparkException as error:
        raise ended(error) from None
    except (Py4JError, OSError):
        raise IngestError(f"Spark's JVM has ended; {GOES_ON}") from None


def _check_alive(spark: SparkSession) -> None:
    """An ingest that waits for segments asks nothing else of Spark. Raises IngestError."""
    try:
        if spark.sparkContext._jsc.sc().isStopped():  # noqa: SLF001 - pyspark itself does not ask
            raise IngestError(f"Spark has stopped; {GOES_ON}")
    except (Py4JError, OSError):
        raise IngestError(f"Spark's JVM has ended; {GOES_ON}") from None


@dataclass
class Load:
    """Batch after batch into a table that keeps which segments are in it. write: has parts written to files. looked:
    hears of each look of a continuous run. check: raises IngestError if that cannot go on."""

    job: Job
    table: Lake
    write: Callable[[list[folders.Part]], list[writing.Written]]
    tell: Callable[[Batch], None] | None = None
    warn: Callable[[str], None] = lambda _: None
    looked: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.summary = self._summary()
        self._missing = ""
        self._doubles = Doubles(self.table.find)

    def _summary(self) -> Summary:
        return Summary(self.job.table, malformed=0 if self.job.decodes else None)

    def run(self, continuous: bool, interval: float = INTERVAL_S, stop: Callable[[], bool] = bool) -> Summary:
        """Until everything that was there is in the table, or `stop()`. Raises IngestError, FolderError."""
        begun = time.monotonic()
        self.summary = self._summary()
        until = None if continuous else self.job.settings.folders.last()
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
        """As `batch`. What is not there may come back: a file system that is not mounted, or a server."""
        try:
            behind = self.batch(None)
        except (FolderMissing, FolderBusy, IngestMissing) as error:
            if str(error) != self._missing:
                self._missing = str(error)
                self.warn(f"{error}. Until it is there again, nothing is loaded")
            return 0
        if self._missing:
            self._missing = ""
            self.warn("it is there again: the ingest goes on")
        self.looked()
        return behind

    def batch(self, until: folders.Serials | None) -> int:
        """Put some segments into the table; how many are left to be looked at."""
        begun = time.monotonic()
        source, table = self.job.settings.folders, self.table
        table.check_there()
        there = source.now()
        new = {marker.folder for marker in there.values()} - table.known
        beginning = source.beginning(table.known) if new else {}
        waiting = source.waiting({**table.serials, **beginning}, until)
        taken = apart(folders.in_turn(waiting, self.job.settings.segments_max or SEGMENTS_MAX, BYTES_MAX))
        if not taken:
            return 0
        reached = {place: serial for place, serial in beginning.items() if serial}
        reached |= {one.place: one.serial for one in taken}
        before = table.serials
        table.catch_up()  # for what ingests of other folders have loaded
        if new & table.known or any(table.serials.get(place) != before.get(place) for place in reached):
            return len(waiting)
        for text in source.begun_late(beginning):
            self.warn(text)
        doubles = self._doubles.among(taken, table.serials, there) if {*NEEDED} <= {*table.names} else {}
        written = self.write(folders.parts(taken, doubles))
        behind = len(waiting) - len(taken)
        table.check_there()
        if not table.commit([file for one in written for file in one.files], reached, new):
            return behind + len(taken)  # another ingest was faster with some
        for path, known in doubles.items():
            self.warn(
                f"{counted(len(known), 'message')} of {path} left out: the table has them from another folder. The "
                "store was restored from a backup, and exported them again"
            )
        now = round(time.time() * 1000)
        arrived, sent = Latency(), Latency()
        for one in written:
            arrived.add(*one.arrived, now)
            sent.add(*one.sent, now)
        batch = Batch(
            self.summary.batches,
            sum(one.rows for one in written),
            sum(one.malformed for one in written) if self.job.decodes else None,
            len(taken),
            behind,
            time.monotonic() - begun,
            arrived.figures(),
            sent.figures(),
        )
        self.summary.add(batch, arrived, sent)
        if self.tell is not None:
            self.tell(batch)
        return behind
