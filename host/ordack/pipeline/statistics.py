"""What a commit of Delta Lake says of the rows of a file: readers pass over the file by it.

Where some columns of a file have statistics and others have none, deltalake's `to_pyarrow_dataset` finds no rows by the
others. So all columns have them. A file in which a column holds NaN or an infinity has only its numbers of rows and
nulls: readers do not agree on where NaN stands among numbers.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TEXT_MAX = 32  # characters of a text that are told
_LAST = "\U0010ffff"
_Path = tuple[str, ...]  # of a column, or of a field in a column of structs


class Number(str):
    """A number as JSON has it: a DECIMAL has more digits than a float."""


class Statistics:
    """Of the rows that were added."""

    def __init__(self) -> None:
        self.rows = 0
        self._schema = pa.schema([])
        self._nulls: dict[_Path, int] = {}
        self._ends: dict[_Path, tuple[Any, Any]] = {}
        self._finite = True

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        self._schema = rows.schema
        for name in rows.schema.names:
            for path, values in _leaves((name,), rows[name]):
                self._nulls[path] = self._nulls.get(path, 0) + values.null_count
                self._add(path, values)

    def _add(self, path: _Path, values: pa.ChunkedArray) -> None:
        if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            self._finite = False
        if not self._finite or not _has_order(values.type) or values.null_count == len(values):
            return
        found = pc.min_max(values).as_py()
        lowest, highest = self._ends.get(path, (found["min"], found["max"]))
        self._ends[path] = min(lowest, found["min"]), max(highest, found["max"])

    def __str__(self) -> str:
        """As a commit has it."""
        told: dict[str, Any] = {"numRecords": Number(self.rows)}
        if self._finite:
            for which, key in enumerate(("minValues", "maxValues")):
                told[key] = _structs(self._schema)
                for path, ends in self._ends.items():
                    _put(told[key], path, _plain(ends[which], which == 1))
        told["nullCount"] = {}
        for path, count in self._nulls.items():
            _put(told["nullCount"], path, Number(count))
        return dumps(told)


def completed(stats: str, schema: pa.Schema) -> str:
    """Statistics of a file, with those of the columns of this schema that are not in the file: all null there."""
    told = loads(stats)
    lacking = pa.schema([field for field in schema if field.name not in told["nullCount"]])
    if not lacking.names:
        return stats
    rows = Number(told["numRecords"])
    for path, _ in _paths(lacking):
        _put(told["nullCount"], path, rows)
    for key in {"minValues", "maxValues"} & told.keys():
        told[key] = {**_structs(lacking), **told[key]}
    return dumps(told)


def is_complete(stats: str | None, schema: pa.Schema) -> bool:
    """Whether these are of all columns of the schema, also of those that others leave out."""
    counts = loads(stats).get("nullCount") if stats else None
    return counts is not None and all(_has(counts, path) for path, _ in _paths(schema))


def with_statistics(schema: pa.Schema) -> list[str]:
    """The columns of a Parquet file that get statistics in it. Those of floats leave NaN out, and pyarrow takes a group
    of rows with 5 and NaN for one in which nothing but 5 is."""
    return [".".join(path) for path, kind in _paths(schema) if not pa.types.is_floating(kind)]


def loads(stats: str) -> dict[str, Any]:
    """Statistics with numbers as they are written. Raises ValueError."""
    told = json.loads(stats, parse_int=Number, parse_float=Number)
    if not isinstance(told, dict):
        raise ValueError(f"no statistics: {stats}")
    return told


def dumps(told: Any) -> str:
    """In UTF-8: delta-rs reads another letter than U+10FFFF from an escaped pair of surrogates."""
    if isinstance(told, Mapping):
        return "{" + ",".join(f"{dumps(name)}:{dumps(value)}" for name, value in told.items()) + "}"
    return str(told) if isinstance(told, Number) else json.dumps(told, ensure_ascii=False)


def _leaves(path: _Path, values: pa.ChunkedArray) -> Iterator[tuple[_Path, pa.ChunkedArray]]:
    if not pa.types.is_struct(values.type):
        yield path, values
        return
    for number, field in enumerate(values.type):
        yield from _leaves((*path, field.name), pc.struct_field(values, number))


def _paths(schema: pa.Schema) -> list[tuple[_Path, pa.DataType]]:
    empty = schema.empty_table()
    return [(path, values.type) for name in schema.names for path, values in _leaves((name,), empty[name])]


def _structs(fields: Any) -> dict[str, Any]:
    """Of a schema or a struct: an object for each struct in it. One that is missing has no value, too."""
    return {field.name: _structs(field.type) for field in fields if pa.types.is_struct(field.type)}


def _put(told: dict[str, Any], path: _Path, value: Any) -> None:
    for name in path[:-1]:
        told = told.setdefault(name, {})
    told[path[-1]] = value


def _has(told: Any, path: _Path) -> bool:
    for name in path:
        if not isinstance(told, dict) or name not in told:
            return False
        told = told[name]
    return True


def _has_order(kind: pa.DataType) -> bool:
    """Whether readers take the least and the greatest value of it."""
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_string(kind))


def _plain(value: Any, highest: bool) -> Any:
    """A least or a greatest value in JSON."""
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return Number((0.0 if highest else -0.0) if value == 0 else value)  # they are the same, and not to all readers
    if isinstance(value, Decimal):
        return Number(f"{value:f}")
    if isinstance(value, int):
        return Number(value)
    if isinstance(value, datetime.datetime):
        return re.sub(r"\+00:00$", "Z", value.isoformat(timespec="microseconds"))
    if isinstance(value, datetime.date):
        return value.isoformat()
    return _above(value) if highest else value[:TEXT_MAX]


def _above(text: str) -> str:
    """A short text that is not less than this one."""
    if len(text) <= TEXT_MAX:
        return text
    end = TEXT_MAX - 1
    while end < len(text) and text[end] == _LAST:
        end += 1
    if end == len(text):
        return text
    following = ord(text[end]) + 1
    return text[:end] + chr(0xE000 if following == 0xD800 else following)
