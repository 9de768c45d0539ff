"""What a task of `ordack pipeline ingest` does for a table of Delta or Iceberg: segments to Parquet files.

The files lie in the table's folder under names that nobody else takes, and belong to the table when the driver's commit
names them. Those of a task that was killed, or whose commit was not made, stay behind unnamed; no reader sees them.
"""

from __future__ import annotations

import contextlib
import gc
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import SparkSession

from ordack.config.paths import S3, open_path, scheme_of, sync
from ordack.pipeline.folders import Part
from ordack.pipeline.segment_source import MALFORMED, Rows
from ordack.pipeline.statistics import Statistics, with_statistics

DAY = "day"
GROUP_BYTES = 64 << 20  # of a row group, before it is packed; and what a task holds in memory of each file
_NULL = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[Any, ...]  # of the columns by which a table is divided


class WriteError(Exception):
    """A task cannot write to the table; the text says why."""


class File(NamedTuple):
    """A Parquet file, by its path in the table's folder. `values`: of the columns by which the table is divided, as
    text. `stats`: what a commit of Delta Lake says of it."""

    name: str
    size: int
    rows: int
    values: list[str | None]
    stats: str


@dataclass
class Written:
    """What a task has done. Times: milliseconds since 1970, and how many rows have each."""

    files: list[File] = field(default_factory=list)
    rows: int = 0
    malformed: int = 0
    arrived: tuple[list[int], list[int]] = ([], [])
    sent: tuple[list[int], list[int]] = ([], [])

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def of_json(text: str) -> Written:
        made = Written(**json.loads(text))
        made.files = [File(*one) for one in made.files]
        return made


def open_folder(table: str) -> tuple[fs.FileSystem, str]:
    """The file system of a folder or URL, and the folder's path there. Raises ValueError, OSError."""
    if scheme_of(table) in ("", *S3):
        return open_path(table)
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(table)
    return found


@dataclass
class Writer:
    """Writes rows to files of a table. columns: those of the table that its files hold. by: columns by which the table
    is divided; DAY is that of arrival. They are in the files with `by_in_files`. prefix: of the files' names."""

    rows: Rows
    table: str
    columns: list[str]
    by: tuple[str, ...] = ()
    by_in_files: bool = False
    prefix: str = ""

    def write(self, part: Part) -> Written:
        """The files are on disk when this returns. Raises FolderError, WriteError."""
        try:
            return self._write(part)
        except (OSError, pa.ArrowException) as error:
            raise WriteError(f"cannot write to the table {self.table}: {error}") from None

    def _write(self, part: Part) -> Written:
        done = Written()
        times: dict[str, list[pa.Array]] = {"arrived": [], "sent_time": []}
        files: dict[Values, Growing] = {}
        system, folder = open_folder(self.table)
        for batch in self.rows.read(part):
            for name, seen in times.items():
                seen.append(pc.divide(batch.column(name).cast(pa.int64()), 1000))
            if MALFORMED in batch.schema.names:
                done.malformed += batch.num_rows - batch.column(MALFORMED).null_count
            for values, rows in self._divided(batch):
                if values not in files:
                    name = f"{self._place(values)}{self.prefix}{uuid.uuid4()}.parquet"
                    files[values] = Growing(system, folder, name, values)
                files[values].add(rows)
        done.files = [growing.finish() for growing in files.values()]
        done.rows = sum(file.rows for file in done.files)
        done.arrived, done.sent = (_counted(times[name]) for name in ("arrived", "sent_time"))
        if isinstance(system, fs.LocalFileSystem):
            for place in {path for file in done.files for path in PurePath(file.name).parents}:
                sync(f"{folder}/{place}")
        return done

    def _place(self, values: Values) -> str:
        """Where files with these values are, as Hive has it: polars takes the values from there, not from the log."""
        if self.by_in_files:
            return ""
        return "".join(f"{name}={quote(_NULL if value is None else str(value), '')}/"
                       for name, value in zip(self.by, values))  # fmt: skip

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Values, pa.RecordBatch]]:
        """The rows of each file, without the columns that its place tells."""
        table = pa.Table.from_batches([batch])
        if not self.by:
            yield (), table.select(self.columns)
            return
        if DAY in self.by:
            table = table.append_column(DAY, table["arrived"].cast(pa.date32()))
        kept = [name for name in self.columns if self.by_in_files or name not in self.by]
        for group in table.select(self.by).group_by(list(self.by)).aggregate([]).to_pylist():
            mask = None
            for name, value in group.items():
                same = pc.is_null(table[name]) if value is None else pc.equal(table[name], value)
                mask = same if mask is None else pc.and_(mask, same)
            yield tuple(group[name] for name in self.by), table.filter(mask).select(kept)


class Growing:
    """A file to which rows are added."""

    def __init__(self, system: fs.FileSystem, folder: str, name: str, values: Values) -> None:
        self._name = name
        self._path = f"{folder}/{name}"
        self._system = system
        self._values = values
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._stats = Statistics()

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        whole = pa.concat_tables(self._held)
        self._held, self._bytes = [], 0
        self._stats.add(whole)
        if self._writer is None:
            if isinstance(self._system, fs.LocalFileSystem):
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._path, whole.schema, filesystem=self._system, compression="zstd", write_page_checksum=True,
                write_statistics=with_statistics(whole.schema),
            )  # fmt: skip
        self._writer.write_table(whole, row_group_size=max(whole.num_rows, 1))

    def finish(self) -> File:
        if self._held:
            self._flush()
        assert self._writer is not None, "a file was begun for nothing"
        self._writer.close()
        if isinstance(self._system, fs.LocalFileSystem):
            sync(self._path)
        size = self._system.get_file_info(self._path).size
        values = [None if value is None else str(value) for value in self._values]
        return File(self._name, size, self._stats.rows, values, str(self._stats))


def _counted(times: list[pa.Array]) -> tuple[list[int], list[int]]:
    values, counts = np.unique(pa.chunked_array(times, pa.int64()).to_numpy(), return_counts=True)
    return values.tolist(), counts.tolist()


@contextlib.contextmanager
def attempt(writer: Writer) -> Iterator[Writer]:
    """A writer for the files of one batch, which are deleted if that fails."""
    writer = replace(writer, prefix=f"part-{uuid.uuid4()}-")
    try:
        yield writer
    except Exception:
        with contextlib.suppress(OSError, ValueError):  # else they stay: no reader sees them
            system, folder = open_folder(writer.table)
            for file in system.get_file_info(fs.FileSelector(folder, recursive=True)):
                if file.base_name.startswith(writer.prefix):
                    system.delete_file(file.path)
        raise


def run(spark: SparkSession, writer: Writer, parts: Sequence[Part]) -> list[Written]:
    """Write each part in a task of its own. Raises PySparkException."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # what is imported: pyspark collects garbage after each task, which took a third of the task's time
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"written": [writer.write(parts[number]).to_json()]})

    numbers = spark.range(0, len(parts), 1, len(parts))
    with attempt(writer) as writer:
        return [Written.of_json(row[0]) for row in numbers.mapInArrow(task, "written string").collect()]
