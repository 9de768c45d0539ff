"""The data source "ordack": the messages in folders of segments, as `ordack export` makes them.

    spark.read.format("ordack").load("/data/plant")
    spark.read.format("ordack").load("/data/plant-*")
    spark.readStream.format("ordack").option("schema", "temperature DOUBLE, at TIMESTAMP").load("/data/plant")

`session.register(spark)` makes it known to a session. The columns are, with `schema`, those decoded from the bodies and
`_malformed`; then those of segments.SCHEMA, in its order.

| option | meaning |
|---|---|
| `path` | a folder, or a pattern that folders match, also those that appear while a stream runs |
| `paths` | instead of it, several of them: a list in JSON |
| `queue` | only this queue, as applications name it |
| `schema` | columns to decode from the bodies, as DDL: `temperature DOUBLE, at TIMESTAMP`; bodies.py has the types |
| `format` | of the bodies, `json` (the default) or `cbor` |
| `prefix` | what the columns of `schema` have in front of their names in the body: `label`, say, is a column already |
| `maxSegmentsPerTrigger` | of a stream: at most so many segments in a micro-batch |

`_malformed` is null, or says why the body does not fit the schema; then all columns decoded from it are null. `body`
has it as it came.

A stream's offset names the folders, and for each queue in them the serial of the last segment read: one that goes on
with none of them, or whose next segment was deleted unread, fails with the reason. A folder begins with the oldest
segment of each queue that is there. Trigger.AvailableNow ends with what was there when it began.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ordack.config.paths import RemoteError, open_path, path_of
from ordack.pipeline import folders, segments
from ordack.pipeline.bodies import FORMATS, JSON, Bodies, SchemaError
from ordack.pipeline.folders import Folders, Part, Place
from ordack.pipeline.options import OptionError, options_of
from ordack.pipeline.segments import SCHEMA, FolderError, FolderMissing, OtherFolder

MALFORMED = "_malformed"
OPTIONS = ("path", "paths", "queue", "schema", "format", "prefix", "maxSegmentsPerTrigger")

BATCH_BYTES = 4 << 20  # of a batch of Arrow rows, about
BATCH_ROWS_MAX = 1 << 16


@dataclass
class Settings:
    """The options of one read, checked."""

    folders: Folders
    schema: str
    body_format: str
    prefix: str
    segments_max: int | None

    @staticmethod
    def of(options: Mapping[str, str]) -> Settings:
        """Raises OptionError, FolderError."""
        options = options_of(options, OPTIONS)
        named = _named(options)
        if not named:
            raise OptionError('say which folder of segments to read: .load("/data/plant")')
        found = Folders(named, options.get("queue"))
        body_format = options.get("format", JSON)
        if body_format not in FORMATS:
            raise OptionError(f"option format (--bodies) is {body_format!r}; bodies are {' or '.join(FORMATS)}")
        at_most = options.get("maxSegmentsPerTrigger")
        if at_most is not None and (not at_most.isdecimal() or int(at_most) < 1):
            raise OptionError(f"option maxSegmentsPerTrigger is {at_most!r}; it is a number from 1")
        return Settings(
            found,
            options.get("schema", "").strip(),
            body_format,
            options.get("prefix", ""),
            None if at_most is None else int(at_most),
        )


def _named(options: Mapping[str, str]) -> list[str]:
    if "paths" not in options:
        return [options["path"]] if options.get("path") else []
    try:
        named = json.loads(options["paths"])
        if isinstance(named, list) and all(isinstance(name, str) for name in named):
            return named
    except ValueError:
        pass
    raise OptionError(f"option paths is {options['paths']!r}; it is a list of texts in JSON")


class SegmentSource(DataSource):
    """See the head of this file."""

    @classmethod
    def name(cls) -> str:
        return "ordack"

    def schema(self) -> StructType | str:
        settings = Settings.of(self.options)
        own = from_arrow_schema(SCHEMA)
        if not settings.schema:
            return own
        # Only Spark's JVM parses DDL.
        head = ", ".join(
            f"`{column.name}` {column.dataType.simpleString()}{'' if column.nullable else ' NOT NULL'}"
            for column in own
        )
        return f"{settings.schema}, `{MALFORMED}` STRING, {head}"

    def reader(self, schema: StructType) -> DataSourceReader:
        return SegmentReader(Settings.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return SegmentStreamReader(Settings.of(self.options), schema)


@dataclass
class Rows:
    """How a task turns segments into batches of Spark's rows. Raises OptionError, SchemaError."""

    settings: Settings
    schema: StructType

    def __post_init__(self) -> None:
        own = [column.name for column in from_arrow_schema(SCHEMA)]
        decoded = self.schema.fields[: -len(own)]
        if self.schema.names[-len(own) :] != own or bool(self.settings.schema) != bool(decoded):
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
        for batch in _together(self._read_segments(part)):
            columns = batch.columns
            if decoder is not None:
                decoded, malformed = decoder.decode(batch.column("body").to_pylist())
                columns = [*decoded, malformed, *columns]
            yield pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def _read_segments(self, part: Part) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Batches, and about how many such rows have BATCH_BYTES."""
        for path in part.segments:
            try:
                for batch, enough in self._read_segment(path):
                    if path in part.without:
                        known = pa.array(part.without[path], pa.int64())
                        batch = batch.filter(pc.invert(pc.is_in(batch["lookup_id"], known)))
                    yield batch, enough
            except FileNotFoundError:
                file = path_of(path)
                if not file.parent.is_dir():
                    raise FolderMissing(
                        f"there is no folder {file.parent} where this task runs: it is to be there"
                    ) from None
                queue, serial, _, _ = segments.parse_name(file.name) or ("", 0, 0, 0)
                raise folders.missing(file.parent, queue, serial, file.name) from None
            except RemoteError as error:
                raise segments.refused(error) from None
            except OSError as error:
                if error.errno:
                    raise FolderError(f"cannot read the segment {path}: {error.strerror}") from None
                raise _damaged(path, error) from None
            except (pa.ArrowException, ValueError) as error:  # of pyarrow, where it reads what is no Parquet
                raise _damaged(path, error) from None

    def _read_segment(self, path: str) -> Iterator[tuple[pa.RecordBatch, int]]:
        with _opened(path) as file:
            if not file.schema_arrow.equals(SCHEMA):
                raise _damaged(path, "its columns are not those of a segment")
            told = file.metadata
            groups = [told.row_group(group) for group in range(told.num_row_groups)]
            size, left = sum(group.total_byte_size for group in groups), sum(group.num_rows for group in groups)
            rows = max(1, min(BATCH_BYTES * left // max(size, 1), BATCH_ROWS_MAX))
            for batch in file.iter_batches(rows, use_threads=False):
                left -= batch.num_rows
                yield batch, rows
            if left or told.num_rows != sum(group.num_rows for group in groups):
                raise _damaged(path, "it has not as many rows as it says")


def _damaged(path: str, why: object) -> FolderError:
    return FolderError(f"the segment {path} is damaged: {str(why).partition(chr(10))[0]}")


def _opened(path: str) -> pq.ParquetFile:
    """A small file is read at once: each column of each segment is a system call else."""
    with path_of(path).open("rb") as file:
        content = file.read(BATCH_BYTES + 1)
    if len(content) <= BATCH_BYTES:
        return pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    system, inside = open_path(path)
    return pq.ParquetFile(inside, filesystem=system, page_checksum_verification=True)


def _together(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """Batches of several segments as one, for each costs as much as some thousand rows. With each comes how many such
    rows are enough."""
    held: list[pa.RecordBatch] = []
    taken = 0.0
    for batch, enough in batches:
        if held and taken + batch.num_rows / enough > 1:
            yield pa.concat_batches(held)
            held, taken = [], 0.0
        if batch.num_rows:
            held.append(batch)
            taken += batch.num_rows / enough
    if held:
        yield pa.concat_batches(held)


class SegmentReader(DataSourceReader):
    """Reads what is in the folders when the query is planned.

    No filter of Spark's is taken: Spark plans a data frame's partitions once, and a data frame that was filtered first
    would give the same few rows to each later query without a filter.
    """

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._folders = settings.folders
        self._rows = Rows(settings, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return folders.parts(self._folders.waiting(self._folders.beginning(()))) or [Part([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class SegmentStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads segment after segment. An offset: {"folders": {identifier: {queue: serial}}}."""

    def __init__(self, settings: Settings, schema: StructType) -> None:
        self._settings = settings
        self._folders = settings.folders
        self._rows = Rows(settings, schema)
        self._target: dict[Place, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(self._folders.beginning(()), ())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        at_most = self._settings.segments_max
        return ReadAllAvailable() if at_most is None else ReadMaxFiles(at_most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self._folders.last()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        read, known = self._read_until(start)
        if any(marker.folder not in known for marker in self._folders.now().values()):
            # It is written down where a new folder begins, before anything of it is read.
            return self._offset({**read, **self._folders.beginning(known)}, known)
        waiting = self._folders.waiting(read, self._target)
        taken = folders.in_turn(waiting, limit.max_files if isinstance(limit, ReadMaxFiles) else len(waiting))
        return self._offset({**read, **{one.place: one.serial for one in taken}}, known)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._offset(self._folders.last_listed() or self._folders.last(), ())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, known = self._read_until(start)
        last = {place: serial for place, serial in self._read_until(end)[0].items() if place.folder in known}
        return folders.parts(self._folders.between(first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def _offset(self, serials: Mapping[Place, int], known: Collection[str]) -> dict[str, Any]:
        told: dict[str, dict[str, int]] = {
            folder: {} for folder in sorted({*known, *(marker.folder for marker in self._folders.now().values())})
        }
        for place in sorted(serials):
            told.setdefault(place.folder, {})[place.queue] = serials[place]
        return {"folders": told}

    def _read_until(self, offset: dict[str, Any]) -> tuple[dict[Place, int], set[str]]:
        """What an offset says, and the identifiers of the folders that it knows."""
        told: dict[str, dict[str, int]] = offset["folders"]
        there = {marker.folder for marker in self._folders.now().values()}
        if told and there.isdisjoint(told):
            raise OtherFolder(
                f"{self._folders} is not the folder that this stream has read before: its marker says "
                f"{', '.join(sorted(there))}, the checkpoint {', '.join(told)}; read that one, or take a new "
                "checkpoint and a new table"
            )
        return {Place(folder, queue): serial for folder, queues in told.items() for queue, serial in queues.items()}, {
            *told
        }
