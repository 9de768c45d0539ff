"""What tables of Delta Lake and of Iceberg have in common for `ordack pipeline ingest`.

Such a table keeps itself how far each queue in each folder of segments is in it, and a commit changes rows and that at
once. So there is no checkpoint beside it that could be lost or belong to another table; several ingests may write to
one table; and a kill at any moment leaves a batch in the table and counted, or neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField

from ordack.config.paths import S3, path_of, scheme_of
from ordack.pipeline.folders import Place
from ordack.pipeline.progress import IngestError, IngestMissing, IngestUnusable
from ordack.pipeline.segment_source import MALFORMED
from ordack.pipeline.segments import SCHEMA
from ordack.pipeline.writing import DAY, File

PROPERTY = "ordack.ingest"  # of a table to whose rows an ingest may add
DECODING = "ordack.decoding"  # of a table with columns that are decoded from the bodies
CATALOG = "catalog.sqlite"  # of Iceberg, in the folder of a table that is named by that
ATTEMPTS = 10  # to commit, when others do at the same time
SMALL = 64 << 20  # bytes of a file that is put together with others, and at least those of the new one
NAME_SHOWN = 60

OneFile = TypeVar("OneFile")


class Decoding(NamedTuple):
    """Which columns are decoded from the bodies, and how. As text, a table keeps it in its property DECODING."""

    fields: list[StructField]
    body_format: str
    prefix: str

    def __str__(self) -> str:
        return json.dumps(self._asdict() | {"fields": [field.jsonValue() for field in self.fields]})

    @staticmethod
    def of(text: str, table: str) -> Decoding:
        """Raises IngestUnusable."""
        try:
            told = json.loads(text)
            fields = [StructField.fromJson(field) for field in told["fields"]]
            return Decoding(fields, str(told["body_format"]), str(told["prefix"]))
        except (ValueError, KeyError, TypeError, PySparkException):
            raise IngestUnusable(
                f"the property {DECODING} of the table {table} does not say how bodies are decoded: set it to what it "
                "was, or begin a new table"
            ) from None

    def checked(self, table: str, given: Sequence[StructField], prefix: str | None) -> Decoding:
        """With the columns that are given, if there are some. Raises IngestUnusable if they lack one of the table's."""
        if prefix not in (None, self.prefix):
            raise IngestUnusable(
                f"the table {table} has columns with the prefix {self.prefix!r}, not {prefix!r}: leave --prefix out, "
                "or begin a new table"
            )
        ours = {field.name: field.dataType.simpleString() for field in given}
        there = {field.name: field.dataType.simpleString() for field in self.fields}
        unfit = [f"{name} {kind}, which is {there[name]} there" for name, kind in ours.items()
                 if there.get(name, kind) != kind]  # fmt: skip
        unfit += [f"it lacks {name} {kind}" for name, kind in there.items() if name not in ours]
        if given and unfit:
            raise IngestUnusable(
                f"the table {table} has other columns than --schema: {'; '.join(unfit)}. Leave --schema out to decode "
                "those of the table, or begin a new table"
            )
        return self._replace(fields=list(given)) if given else self


class Lake(Protocol):
    """An open table.

    serials: the last segment of each queue that is in it. known: identifiers of the folders. data: the folder of its
    files. names: the columns that they hold. by: those by which it is divided, with by_in_files in the files, too.
    """

    serials: dict[Place, int]
    known: set[str]
    data: str
    names: list[str]
    by: tuple[str, ...]
    by_in_files: bool

    def catch_up(self) -> None:
        """Have `serials` and `known` as others have committed them. Raises IngestError, IngestUnusable."""

    def check_there(self) -> None:
        """Raises IngestMissing if its folder is not there any more: a commit would make another table in its place."""

    def find(self, where: str, columns: list[str]) -> Iterable[pa.RecordBatch]:
        """As doubles.Find has it. Raises IngestError."""

    def commit(self, files: Sequence[File], reached: Mapping[Place, int], new: set[str]) -> bool:
        """Make files and serials part of the table, with the folders that it does not know yet; False: another ingest
        was faster with one of them, and `serials` are as they are now. Raises IngestError."""


def said(kind: object) -> str:
    """A column's type, for people."""
    text = str(getattr(kind, "type", kind))
    return text if len(text) <= NAME_SHOWN else f"{text[: NAME_SHOWN - 3]}..."


def first_line(error: Exception) -> str:
    """Of what is said, with the reasons that delta-rs gives line by line, each behind an arrow in red."""
    return (re.sub(r"\s*(\x1b\[\d+m)?↳(\x1b\[0m)?\s*", ": ", str(error)) or type(error).__name__).partition("\n")[0]


def foreign(table: str, how: str) -> str:
    """What to say of a table with rows that no ingest of this version has written."""
    return (
        f"the table {table} holds rows, and does not say which segments they are from: others wrote them, or an ingest "
        "through Spark's own packages. Begin a new table. If none of its rows came from these segments, and an ingest "
        f"may add to it, say so: {how}"
    )


def check_empty(table: str) -> None:
    """Raises IngestUnusable if the folder, here or in a bucket of S3, holds files: none but hidden ones may be in the
    place of a new table, for `optimize` deletes what belongs to none. Raises RemoteError."""
    if scheme_of(table) not in ("", *S3):
        return
    folder = path_of(table)
    there = [folder] if folder.is_file() else folder.iterdir() if folder.exists() else ()
    if any(path.name[0] not in "._" and not path.name.startswith(CATALOG) for path in there):
        raise IngestUnusable(f"{table} holds files that no ingest has written: name a new folder")


def check_same(table: str, before: str | None, now: str | None) -> None:
    """Raises IngestError if a table does not decode bodies as it did: the rows of an ingest would lack columns."""
    if before != now:
        raise IngestError(
            f"another ingest has added columns to the table {table}: what is in it is whole, and the next ingest fills "
            "them"
        )


def check_there(folder: str, part: str) -> None:
    """Raises IngestMissing if a folder of this machine does not have this part of a table."""
    if not scheme_of(folder) and not Path(folder, part).exists():
        raise IngestMissing(f"the table is not in {folder} any more: there is no {part}")


def check_division(table: str, by: Sequence[str], wanted: Sequence[str] | None, columns: Sequence[str]) -> None:
    """Raises IngestUnusable if a table is to be divided by other columns than it is, or has DAY twice."""
    if DAY in by and DAY in map(str.lower, columns):
        raise IngestUnusable(f"the table {table} is divided by {DAY}, that of arrival, and --schema has one, too")
    if wanted is not None and list(wanted) != list(by):
        raise IngestUnusable(
            f"the table {table} is divided by {', '.join(by) or 'nothing'}, not by {', '.join(wanted)}: leave "
            "--partition-by out, or begin a new table"
        )


def new_columns(table: str, there: Sequence[str], ours: Sequence[str], unfit: list[str], add: bool) -> list[str]:
    """Those of ours that are to be added to a table. What of a message a table does not have is left out, for it may be
    of an older version, or its owner does not want it. Raises IngestUnusable for what does not fit, and for columns
    of bodies that are not there, unless they may be added."""
    lacking = [name for name in ours if name not in there]
    folded = {name.lower(): name for name in there}
    unfit += [f"{name}, which is {folded[name.lower()]} there" for name in lacking if name.lower() in folded]
    if MALFORMED in there and MALFORMED not in ours:
        unfit.append(f"it decodes bodies, and has no property {DECODING} that says how")
    if not unfit and set(ours) == set(lacking):
        unfit.append("none of its own is among them")
    if unfit:
        raise IngestUnusable(
            f"the table {table} has other columns than this ingest: {'; '.join(unfit)}. A table keeps its columns: say "
            "the --schema that it has, or begin a new table"
        )
    new = [name for name in lacking if name not in SCHEMA.names]
    if new and not add:
        raise IngestUnusable(
            f"the table {table} has no column {', '.join(new)}: a table keeps its columns. Say --add-columns to add "
            "what is new, or begin a new table"
        )
    return new


def in_groups(
    files: Iterable[OneFile], size: Callable[[OneFile], int], must: Callable[[OneFile], bool] = lambda _: False
) -> Iterator[list[OneFile]]:
    """Small files of one partition, of which each group is to become one file. must: also if it is large, or alone."""
    group: list[OneFile] = []
    taken, due = 0, False
    for file in files:
        if size(file) >= SMALL and not must(file):
            continue
        group.append(file)
        taken, due = taken + size(file), due or must(file)
        if taken >= SMALL:
            yield group
            group, taken, due = [], 0, False
    if len(group) > 1 or due:
        yield group
