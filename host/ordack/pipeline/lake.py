"""The common part of Delta Lake and Iceberg tables of `ordack table ingest`.

The table itself records the serial of the last segment of each queue in each folder. A commit changes rows and serials
atomically. So there is no separate checkpoint to lose or confuse, several ingests may write to one table, and a kill
cannot separate rows from serials.
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

PROPERTY = "ordack.ingest"  # marks a table to which an ingest may add rows
DECODING = "ordack.decoding"  # marks a table with columns decoded from bodies
MALFORMED = "_malformed"
DELTA, ICEBERG = "delta", "iceberg"
CATALOG = "catalog.sqlite"  # Iceberg's catalog in the folder of a table
ATTEMPTS = 10  # to commit, against concurrent commits
NAME_SHOWN = 60


class IngestError(Exception):
    """The ingest cannot begin, or has ended early. The text gives the reason and the remedy."""


class IngestUnusable(IngestError):
    """An error for an operator: table and segments do not match, or a segment is unreadable."""


class IngestMissing(IngestUnusable):
    """A folder is missing. It may return if its file system is not mounted."""


class Decoding(NamedTuple):
    """The columns decoded from bodies, and the method. A table keeps the text form in its property DECODING."""

    fields: list[StructField]
    body_format: str = JSON
    prefix: str = ""

    def __str__(self) -> str:
        return json.dumps(self._asdict() | {"fields": [field.jsonValue() for field in self.fields]})

    @staticmethod
    def of(text: str, table: str) -> Decoding:
        """Parse the property of a table. Raises IngestUnusable."""
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
        """Raise IngestUnusable if the given columns or prefix differ from the table's."""
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
        """Return the decoder of bodies. Raises SchemaError."""
        return Bodies(self.fields, self.body_format, self.prefix)

    def rows(self, segment: pa.Table, bodies: Bodies) -> pa.Table:
        """Return a segment's rows with the decoded columns."""
        if not self.fields:
            return segment
        columns, malformed = bodies.decode(segment["body"].to_pylist())
        return pa.table([*columns, malformed, *segment.columns], self.schema)


class Lake(Protocol):
    """An open table. serials: last loaded segment of each queue. known: identifiers of the known folders."""

    serials: dict[Place, int]
    known: set[str]

    @property
    def names(self) -> list[str]:
        """The table's columns."""

    def catch_up(self) -> None:
        """Update `serials` and `known` with commits of others. Raises IngestError, IngestUnusable."""

    def check_there(self) -> None:
        """Raise IngestMissing if the table's folder is gone, because a commit would make another table."""

    def find(self, where: str, columns: list[str]) -> Iterable[pa.RecordBatch]:
        """Yield columns of the rows that satisfy `where`. Raises IngestError."""

    def commit(self, rows: pa.Table, reached: Mapping[Place, int], new: set[str]) -> bool:
        """Commit rows, serials and new folders atomically. Return False if another ingest was faster with one of them;
        `serials` are then up to date. Raises IngestError."""


def local_table(path: str) -> Path | None:
    """Return a path of this machine, or None for a URL of another file system. Raises OptionError."""
    try:
        return Path(local_path(path)) if scheme_of(path) in ("", "file") else None
    except NotLocal as error:
        raise OptionError(str(error)) from None


def format_of(table: str) -> str | None:
    """Return the format of an existing local table; None for a folder without a table or a URL. Raises OptionError."""
    folder = local_table(table)
    if folder is not None and (folder / "_delta_log").exists():
        return DELTA
    return ICEBERG if folder is not None and (folder / CATALOG).exists() else None


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the table's columns; columns that an ingest lacks are null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema)


def said(kind: object) -> str:
    """Format a column's type for people."""
    text = str(getattr(kind, "type", kind))
    return text if len(text) <= NAME_SHOWN else f"{text[: NAME_SHOWN - 3]}..."


def first_line(error: Exception) -> str:
    """Return an error's first line, joined with the reasons that delta-rs adds in lines with red arrows."""
    return (re.sub(r"\s*(\x1b\[\d+m)?↳(\x1b\[0m)?\s*", ": ", str(error)) or type(error).__name__).partition("\n")[0]


def foreign(table: str, how: str) -> str:
    """Return the message about a table whose rows no ingest of this version has written."""
    return (
        f"the table {table} holds rows, and does not say which segments they are from: others wrote them, or an ingest "
        "through Spark's own packages. Begin a new table. If none of its rows came from these segments, and an ingest "
        f"may add to it, say so: {how}"
    )


def check_empty(table: str) -> None:
    """Raise IngestUnusable if a local or S3 folder has visible files: maintenance of a new table there would delete
    them. Raises OSError."""
    if scheme_of(table) not in ("", *S3):
        return
    folder = path_of(table)
    there = [folder] if folder.is_file() else folder.iterdir() if folder.exists() else ()
    if any(path.name[0] not in "._" and not path.name.startswith(CATALOG) for path in there):
        raise IngestUnusable(f"{table} holds files that no ingest has written: name a new folder")


def check_there(folder: str, part: str) -> None:
    """Raise IngestMissing if a local folder lacks this part of a table."""
    if not scheme_of(folder) and not Path(folder, part).exists():
        raise IngestMissing(f"the table is not in {folder} any more: there is no {part}")


def unfit_columns(there: Mapping[str, Any], ours: Mapping[str, Any], types: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Describe misfits of the table's fields (there) and the ingest's (ours). types: of common columns, comparable."""
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
    """Raise IngestUnusable for columns that do not fit, and for decoded columns that the table lacks. Other missing
    columns are skipped: the table may be older, or its owner may not want them."""
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
    """Check --bodies. Raises OptionError."""
    if body_format not in (None, *FORMATS):
        raise OptionError(f"option --bodies is {body_format!r}; bodies are {' or '.join(FORMATS)}")
