"""What tables of Delta Lake and of Iceberg have in common for `ordack pipeline ingest`.

The table itself keeps the serial of the last segment of each queue in each folder, and a commit changes rows and
serials at once. So no checkpoint beside the table can be lost or belong to another table, several ingests may write to
one table, and a kill at any moment leaves a batch in the table and counted, or neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from ordack.config.paths import S3, NotLocal, local_path, path_of, scheme_of
from ordack.pipeline.bodies import FORMATS, JSON, Bodies, SchemaError
from ordack.pipeline.folders import Place
from ordack.pipeline.segments import SCHEMA, OptionError

PROPERTY = "ordack.ingest"  # of a table to whose rows an ingest may add
DECODING = "ordack.decoding"  # of a table with columns that are decoded from the bodies
MALFORMED = "_malformed"
DELTA, ICEBERG = "delta", "iceberg"
CATALOG = "catalog.sqlite"  # of Iceberg, in the folder of a table that is named by that
ATTEMPTS = 10  # to commit, when others do at the same time
NAME_SHOWN = 60


class IngestError(Exception):
    """The ingest cannot begin, or has ended early; the text says why and what to do."""


class IngestUnusable(IngestError):
    """Somebody has to look: table and segments do not belong together, or a segment cannot be read."""


class IngestMissing(IngestUnusable):
    """A folder is not there: its file system may not be mounted, and come back."""


class Decoding(NamedTuple):
    """Which columns are decoded from the bodies, and how. As text, a table keeps it in its property DECODING."""

    fields: list[StructField]
    body_format: str = JSON
    prefix: str = ""

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
        """Raises IngestUnusable if the columns or the prefix that are given are not those of the table."""
        if prefix not in (None, self.prefix):
            raise IngestUnusable(
                f"the table {table} has columns with the prefix {self.prefix!r}, not {prefix!r}: leave --prefix out, "
                "or begin a new table"
            )
        ours, there = ({one.name: one.dataType.simpleString() for one in some} for some in (given, self.fields))
        unfit = [f"{name} {kind}, which is {there.get(name, 'not')} there"
                 for name, kind in ours.items() if there.get(name) != kind]  # fmt: skip
        unfit += [f"it lacks {name} {kind}" for name, kind in there.items() if name not in ours]
        if given and unfit:
            raise IngestUnusable(
                f"the table {table} has other columns than --schema: {'; '.join(unfit)}. Leave --schema out to decode "
                "those of the table, or begin a new table"
            )
        return self

    @property
    def schema(self) -> pa.Schema:
        """The columns of an ingest. Raises SchemaError."""
        if not self.fields:
            return SCHEMA
        taken = {name.lower() for name in (*SCHEMA.names, MALFORMED)}
        for field in self.fields:
            if field.name.lower() in taken:
                raise SchemaError(
                    f"column {field.name} of the schema is there already: write it with a prefix, as in "
                    f"`body_{field.name}`, and give the prefix (--prefix), here `body_`"
                )
        self.bodies()
        decoded = StructType([*self.fields, StructField(MALFORMED, StringType())])
        return pa.schema([*to_arrow_schema(decoded, timezone="UTC"), *SCHEMA])

    def bodies(self) -> Bodies:
        """What decodes bodies. Raises SchemaError."""
        return Bodies(self.fields, self.body_format, self.prefix)

    def rows(self, segment: pa.Table, bodies: Bodies) -> pa.Table:
        """The rows of an ingest for those of a segment."""
        if not self.fields:
            return segment
        columns, malformed = bodies.decode(segment["body"].to_pylist())
        return pa.table([*columns, malformed, *segment.columns], self.schema)


class Lake(Protocol):
    """An open table. serials: the last segment of each queue that is in it. known: identifiers of the folders."""

    serials: dict[Place, int]
    known: set[str]

    @property
    def names(self) -> list[str]:
        """The columns of an ingest that it has."""

    def catch_up(self) -> None:
        """Have `serials` and `known` as others have committed them. Raises IngestError, IngestUnusable."""

    def check_there(self) -> None:
        """Raises IngestMissing if its folder is not there any more: a commit would make another table in its place."""

    def find(self, where: str, columns: list[str]) -> Iterable[pa.RecordBatch]:
        """These columns of the rows where this holds. Raises IngestError."""

    def commit(self, rows: pa.Table, reached: Mapping[Place, int], new: set[str]) -> bool:
        """Make rows and serials part of the table, with the folders that it does not know yet; False: another ingest
        was faster with one of them, and `serials` are as they are now. Raises IngestError."""


def local_table(path: str) -> Path | None:
    """A path of this machine; None: it is a URL of another file system. Raises OptionError."""
    try:
        return Path(local_path(path)) if scheme_of(path) in ("", "file") else None
    except NotLocal as error:
        raise OptionError(str(error)) from None


def format_of(table: str) -> str | None:
    """The format of a table that is there, as far as this machine can tell; None: there is none in the folder, or it is
    a URL. Raises OptionError."""
    folder = local_table(table)
    if folder is not None and (folder / "_delta_log").exists():
        return DELTA
    return ICEBERG if folder is not None and (folder / CATALOG).exists() else None


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a table: null where an ingest has none."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema)


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
    place of a new table, for upkeep deletes what belongs to none. Raises OSError."""
    if scheme_of(table) not in ("", *S3):
        return
    folder = path_of(table)
    there = [folder] if folder.is_file() else folder.iterdir() if folder.exists() else ()
    if any(path.name[0] not in "._" and not path.name.startswith(CATALOG) for path in there):
        raise IngestUnusable(f"{table} holds files that no ingest has written: name a new folder")


def check_there(folder: str, part: str) -> None:
    """Raises IngestMissing if a folder of this machine does not have this part of a table."""
    if not scheme_of(folder) and not Path(folder, part).exists():
        raise IngestMissing(f"the table is not in {folder} any more: there is no {part}")


def unfit_columns(there: Mapping[str, Any], ours: Mapping[str, Any], types: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """What does not fit: fields of the table, of an ingest, and for those that both have a comparable type of each."""
    unfit = [
        f"{name} {said(ours[name].type)}, which is {said(there[name].type)} there"
        for name, (one, other) in types.items()
        if one != other
    ]
    return unfit + [
        f"{name}, which may not be null there"
        for name, column in there.items()
        if not column.nullable and (name not in ours or ours[name].nullable)
    ]


def check_columns(table: str, there: Sequence[str], ours: Sequence[str], unfit: list[str]) -> None:
    """Raises IngestUnusable for what does not fit, and for columns of bodies that a table does not have. What else of a
    message it does not have is left out: it may be of an older version, or its owner does not want it."""
    lacking = [name for name in ours if name not in there]
    folded = {name.lower(): name for name in there}
    unfit += [f"{name}, which is {folded[name.lower()]} there" for name in lacking if name.lower() in folded]
    if MALFORMED in there and MALFORMED not in ours:
        unfit.append(f"it decodes bodies, and has no property {DECODING} that says how")
    if set(ours) == set(lacking):
        unfit.append("none of its own is among them")
    unfit += [f"it lacks {name}" for name in lacking if name not in SCHEMA.names]
    if unfit:
        raise IngestUnusable(
            f"the table {table} has other columns than this ingest: {'; '.join(unfit)}. A table keeps its columns: say "
            "the --schema that it has, or begin a new table"
        )


def check_format(body_format: str | None) -> None:
    """Raises OptionError."""
    if body_format not in (None, *FORMATS):
        raise OptionError(f"option --bodies is {body_format!r}; bodies are {' or '.join(FORMATS)}")
