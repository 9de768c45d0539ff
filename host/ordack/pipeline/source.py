"""The data source "ordack": the messages in a folder of segments, as `ordack export` makes them.

    spark.read.format("ordack").load("/data/plant")
    spark.readStream.format("ordack").option("schema", "temperature DOUBLE, at TIMESTAMP").load("/data/plant")

`session.register(spark)` makes it known to a session. The columns are those of segments.SCHEMA, in its order; then,
with `schema`, the columns decoded from the bodies, and `_malformed`.

| option | meaning |
|---|---|
| `queue` | only this queue, as applications name it |
| `schema` | columns to decode from the bodies, as DDL: `temperature DOUBLE, at TIMESTAMP`; bodies.py has the types |
| `format` | of the bodies, `json` (the default) or `cbor` |
| `prefix` | what the columns of `schema` have in front of their names in the body: `label`, say, is a column already |
| `maxSegmentsPerTrigger` | of a stream: at most so many segments in a micro-batch |

`_malformed` is null, or says why the body does not fit the schema; then all columns decoded from it are null. `body`
has it as it came.

A stream's offset names the folder, and for each queue the serial of the last segment read: one that goes on with
another folder, or whose next segment was deleted unread, fails with the reason. A queue begins with the oldest segment
that is there. Trigger.AvailableNow ends with what was there when it began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import datasource as filters
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ordack.names import BadName, local_queue
from ordack.paths import NotLocal, local_path
from ordack.pipeline import segments
from ordack.pipeline.bodies import FORMATS, JSON, Bodies, SchemaError
from ordack.pipeline.options import OptionError, noted, options_of, recalled
from ordack.pipeline.segments import KEYLESS, SCHEMA, FolderError, OtherFolder, Segment, with_key

MALFORMED = "_malformed"
OPTIONS = ("path", "queue", "schema", "format", "prefix", "maxSegmentsPerTrigger")

BATCH_BYTES = 4 << 20  # of a batch of Arrow rows, about
BATCH_ROWS_MAX = 1 << 16
# What one task reads: a segment more costs it little, a task more 150 ms of processors, most of it for one more file of
# the table. But all processors want some.
TASKS = 16
TASK_BYTES_MIN, TASK_BYTES_MAX = 2 << 20, 32 << 20
TASK_SEGMENTS = 64

_COMPARED = {
    filters.EqualTo: pc.Expression.__eq__,
    filters.GreaterThan: pc.Expression.__gt__,
    filters.GreaterThanOrEqual: pc.Expression.__ge__,
    filters.LessThan: pc.Expression.__lt__,
    filters.LessThanOrEqual: pc.Expression.__le__,
}


@dataclass
class Part(InputPartition):  # type: ignore[misc, unused-ignore]
    """What one task reads: some segments of a queue, one after another."""

    paths: list[str]

    def __init__(self, paths: list[str]) -> None:
        super().__init__(None)
        self.paths = paths


@dataclass
class Settings:
    """The options of one read, checked. `marker`: whose folder it is."""

    folder: Path
    marker: segments.Marker
    queues: list[str] | None
    schema: str
    body_format: str
    prefix: str
    segments_max: int | None

    @staticmethod
    def of(options: Mapping[str, str]) -> Settings:
        """Raises OptionError, FolderError."""
        options = options_of(options, OPTIONS)
        path = options.get("path")
        if not path:
            raise OptionError("say which folder of segments to read: .load(\"/data/plant\"), or LOCATION '/data/plant'")
        try:
            folder = Path(local_path(path)).absolute()  # workers may have another current folder
        except NotLocal as error:
            raise OptionError(str(error)) from None
        if not folder.is_dir():
            raise FolderError(f"there is no folder {folder}: `ordack export` makes it")
        marker = segments.read_marker(folder)
        if marker is None:
            raise FolderError(
                f"{folder} is no folder of segments: it has no {segments.MARKER}, which `ordack export` writes"
            )
        body_format = options.get("format", JSON)
        if body_format not in FORMATS:
            raise OptionError(f"option format (--bodies) is {body_format!r}; bodies are {' or '.join(FORMATS)}")
        at_most = options.get("maxSegmentsPerTrigger")
        if at_most is not None and (not at_most.isdecimal() or int(at_most) < 1):
            raise OptionError(f"option maxSegmentsPerTrigger is {at_most!r}; it is a number from 1")
        try:
            queue = local_queue(options["queue"]) if "queue" in options else None
        except BadName as error:
            raise OptionError(f"option queue (--queue): {error}") from None
        return Settings(
            folder,
            marker,
            None if queue is None else [queue],
            options.get("schema", "").strip(),
            body_format,
            options.get("prefix", ""),
            None if at_most is None else int(at_most),
        )


def _quoted(text: str) -> str:
    """As a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class SegmentSource(DataSource):
    """See the head of this file."""

    @classmethod
    def name(cls) -> str:
        return "ordack"

    def schema(self) -> StructType | str:
        settings = Settings.of(self.options)
        own = from_arrow_schema(SCHEMA)
        note = noted(self.options, options_of(self.options, OPTIONS))
        if note:
            own.fields[0].metadata = {"comment": note}
        if not settings.schema:
            return own
        # Only Spark's JVM parses DDL.
        said = f" COMMENT {_quoted(note)}" if note else ""
        head = ", ".join(
            f"`{column.name}` {column.dataType.simpleString()}{'' if column.nullable else ' NOT NULL'}"
            f"{said if column is own.fields[0] else ''}"
            for column in own
        )
        return f"{head}, {settings.schema}, `{MALFORMED}` STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentReader(Settings.of(recalled(self.options, schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return SegmentStreamReader(Settings.of(recalled(self.options, schema)), schema)


@dataclass
class Rows:
    """How a task turns segments into batches of Spark's rows. Raises OptionError, SchemaError."""

    settings: Settings
    schema: StructType
    condition: pc.Expression | None = None

    def __post_init__(self) -> None:
        own = [column.name for column in from_arrow_schema(SCHEMA)]
        decoded = self.schema.fields[len(own) :]
        if self.schema.names[: len(own)] != own or bool(self.settings.schema) != bool(decoded):
            raise OptionError("the columns of messages are given; those of the bodies belong in the option schema")
        if decoded:
            decoded.pop()
        taken = {name.lower() for name in (*own, MALFORMED)}
        for column in decoded:
            if column.name.lower() in taken:
                raise SchemaError(
                    f"column {column.name} of the schema is there already: write it with a prefix, as "
                    f"in `body_{column.name}`, and give the option prefix (--prefix), here `body_`"
                )
        self.decoded = decoded
        self._decoder()
        self.arrow = to_arrow_schema(self.schema, timezone="UTC")

    def _decoder(self) -> Bodies | None:
        """It is made where it is used: what parses JSON does not travel."""
        return Bodies(self.decoded, self.settings.body_format, self.settings.prefix) if self.decoded else None

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(part, Part)
        decoder = self._decoder()
        for path in part.paths:
            yield from self._read_segment(path, decoder)

    def _read_segment(self, path: str, decoder: Bodies | None) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches(path):
                if batch.num_rows:
                    columns = batch.columns
                    if decoder is not None:
                        decoded, malformed = decoder.decode(batch.column("body").to_pylist())
                        columns = [*columns, *decoded, malformed]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.arrow)
        except FileNotFoundError:
            file = Path(path)
            queue, serial, _, _ = segments.parse_name(file.name) or ("", 0, 0, 0)
            raise _missing(file.parent, queue, serial, file.name) from None
        except pa.ArrowInvalid as error:
            raise FolderError(f"the segment {path} is damaged: {error}") from None

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path) as file:
            groups = range(file.metadata.num_row_groups)
            size = sum(file.metadata.row_group(group).total_byte_size for group in groups)
            rows = max(1, min(BATCH_BYTES * file.metadata.num_rows // max(size, 1), BATCH_ROWS_MAX))
            if file.schema_arrow.equals(KEYLESS):  # Spark applies conditions itself, too
                yield from map(with_key, file.iter_batches(rows, use_threads=False))
                return
            if self.condition is None and file.schema_arrow.equals(SCHEMA):
                yield from file.iter_batches(rows, use_threads=False)
                return
        import pyarrow.dataset  # with all of pandas, which costs each process of Spark's more than to read a segment
        from pyarrow.fs import LocalFileSystem

        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(path, LocalFileSystem())
        yield from fragment.to_batches(
            SCHEMA, columns=SCHEMA.names, filter=self.condition, use_threads=False, batch_size=rows, batch_readahead=1
        )


def parts(found: Sequence[Segment]) -> list[InputPartition]:
    """What each task reads: neighbours of a queue together, in about TASKS tasks, if these are neither too small nor
    too large. Raises FolderError."""
    sizes = []
    for segment in found:
        try:
            sizes.append(segment.path.stat().st_size)
        except OSError as error:
            raise FolderError(f"cannot read the segment {segment.path}: {error.strerror}") from None
    most = min(max(sum(sizes) // TASKS, TASK_BYTES_MIN), TASK_BYTES_MAX)
    tasks: list[InputPartition] = []
    paths: list[str] = []
    taken, queue = 0, ""
    for segment, size in zip(found, sizes, strict=True):
        if not paths or queue != segment.queue or taken + size > most or len(paths) == TASK_SEGMENTS:
            paths = []
            tasks.append(Part(paths))
            taken, queue = 0, segment.queue
        paths.append(str(segment.path))
        taken += size
    return tasks


def condition(pushed: Sequence[Filter]) -> pc.Expression | None:
    """What rows must satisfy so that all these filters of Spark can be true; those that say nothing here are left
    out."""
    whole: pc.Expression | None = None
    for one in pushed:
        said = _condition(one)
        if said is not None:
            whole = said if whole is None else whole & said
    return whole


def _condition(one: Filter) -> pc.Expression | None:
    path: list[str] = list(getattr(one, "attribute", ()))
    if len(path) != 1 or path[0] not in SCHEMA.names:
        return None
    kind = SCHEMA.field(path[0]).type
    column = pc.field(path[0])
    try:
        if isinstance(one, filters.In):
            return column.isin(pa.array([value for value in one.value if value is not None], kind))
        compare = _COMPARED.get(type(one))
        if compare is None or one.value is None:  # type: ignore[attr-defined]
            return None
        return compare(column, pa.scalar(one.value, kind))  # type: ignore[attr-defined]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None


class SegmentReader(DataSourceReader):
    """Reads what is in the folder when the query is planned."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._rows = Rows(settings, schema)
        self._queues: list[set[str]] = []

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Filters on columns of messages are applied where segments are read, those on the queue by not reading its
        segments. Spark applies them once more, and the others."""
        self._rows.condition = condition(filters)
        self._queues = [named for one in filters if (named := _queues_of(one)) is not None]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._settings
        found = _readable(settings, _beginning(settings))
        return parts([segment for segment in found if all(segment.queue in named for named in self._queues)]) or [
            Part([])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


def _queues_of(one: Filter) -> set[str] | None:
    if getattr(one, "attribute", ()) != ("queue",):
        return None
    if isinstance(one, filters.EqualTo):
        return {one.value}
    return set(one.value) if isinstance(one, filters.In) else None


def last_serials(settings: Settings) -> dict[str, int]:
    """The newest segment of each queue."""
    return {segment.queue: segment.serial for segment in segments.segments(settings.folder, settings.queues)}


def _beginning(settings: Settings) -> dict[str, int]:
    """The serial before the oldest segment of each queue that is there."""
    found = segments.segments(settings.folder, settings.queues)
    if any(segment.serial > 1 for segment in found):  # the listing may have missed one that has just become visible
        found = segments.segments(settings.folder, settings.queues)
    return {segment.queue: segment.serial - 1 for segment in reversed(found)}


def _readable(settings: Settings, read: Mapping[str, int], until: Mapping[str, int] | None = None) -> list[Segment]:
    """The segments behind `read`, or behind nothing, up to `until` if that is given, in the order of their queues and
    serials. Raises FolderError if one is missing.

    Segments become visible in the order of their serials, so what a listing has missed, although it shows a later one,
    the next listing shows; if not, it was deleted."""
    for last_try in (False, True):
        waiting = [
            segment
            for segment in segments.segments(settings.folder, settings.queues)
            if segment.serial > read.get(segment.queue, 0)
            and (until is None or segment.serial <= until.get(segment.queue, 0))
        ]
        expected = dict(read)
        for segment in waiting:
            expected[segment.queue] = serial = expected.get(segment.queue, 0) + 1
            if segment.serial != serial and last_try:
                raise _missing(settings.folder, segment.queue, serial)
            if segment.serial != serial:
                break
        else:
            break
    return waiting


def _missing(folder: Path, queue: str, serial: int, name: str = "") -> FolderError:
    """What to say of a segment that is not there, although later ones were read or are there. name: its file's, where
    that is known; else the segments beside it tell roughly which messages are in it."""
    known = segments.parse_name(name)
    if known:
        ids = f", with the lookup ids {known[2]} to {known[3]}"
    else:
        name = f"{segments.encode(queue)}-{serial:010d}-*{segments.SUFFIX}"
        there = segments.segments(folder, [queue])
        before = [f"above {one.last_lookup_id}" for one in there if one.serial == serial - 1]
        after = [f"below {one.first_lookup_id}" for one in there if one.serial > serial][:1]
        ids = f", with lookup ids {' and '.join(before + after)}" if before or after else ""
    return FolderError(
        f"segment {serial} of the queue {queue} is missing in {folder}: the file {name} was deleted or "
        f"moved before it was read. Its messages{ids}, are in no queue any more. Put the file back; if "
        "it is lost for good, move the older segments of this queue elsewhere, and begin a new table "
        "with those behind it"
    )


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads segment after segment. An offset: {"folder": identifier, "queues": {queue: serial}}."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._rows = Rows(settings, schema)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(_beginning(self._settings))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        at_most = self._settings.segments_max
        return ReadAllAvailable() if at_most is None else ReadMaxFiles(at_most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = last_serials(self._settings)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        read = self._queues(start)
        waiting = _readable(self._settings, read, self._target)
        if isinstance(limit, ReadMaxFiles):
            waiting = _in_turn(waiting)[: limit.max_files]
        return self._offset(read | {segment.queue: segment.serial for segment in waiting})

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(last_serials(self._settings))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._queues(start), self._queues(end)
        found = _readable(self._settings, first, last)
        reached = first | {segment.queue: segment.serial for segment in found}
        for queue, serial in last.items():
            if reached.get(queue, 0) < serial:
                raise _missing(self._settings.folder, queue, reached.get(queue, 0) + 1)
        return parts(found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _offset(self, queues: dict[str, int]) -> dict[str, Any]:
        return {"folder": self._settings.marker.folder, "queues": queues}

    def _queues(self, offset: dict[str, Any]) -> dict[str, int]:
        marker = self._settings.marker
        if offset["folder"] != marker.folder:
            raise OtherFolder(
                f"{self._settings.folder} is not the folder that this stream has read before: its marker "
                f"says {marker.folder}, the checkpoint {offset['folder']}; read that one, or take a new "
                "checkpoint and a new table"
            )
        queues: dict[str, int] = offset["queues"]
        return queues


def _in_turn(waiting: Sequence[Segment]) -> list[Segment]:
    """One of each queue, then the next of each: no queue waits for another."""
    turns: dict[str, int] = {}
    order = []
    for segment in waiting:
        turns[segment.queue] = turn = turns.get(segment.queue, 0) + 1
        order.append((turn, segment))
    return [segment for _, segment in sorted(order, key=lambda one: one[0])]
