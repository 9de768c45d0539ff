"""What a query with a filter finds in a table, by every reader that the pages name: the rows that it finds in memory.

Readers pass over files and groups of rows by statistics in the commit and in the files.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import operator
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, cast

import cbor2
import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from ordack.pipeline import iceberg
from ordack.pipeline.ingest import Job
from ordack.pipeline.lake import MALFORMED
from pyspark.sql import types

from tests.pipeline.lake import load
from tests.support.segment_files import row, write_rows

both = pytest.mark.parametrize("table_format", ["delta", "iceberg"])
NAN, INF = math.nan, math.inf
LAST = "\U0010ffff"
FIRST_DAY, LAST_DAY = datetime.date(1, 1, 1), datetime.date(9999, 12, 31)
UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 11, 21, 18, 30, 0, 123_456, UTC).replace(tzinfo=None)
FIRST, END = datetime.datetime.min, datetime.datetime.max  # noqa: DTZ901 - columns without a zone


class Kind(NamedTuple):
    """A column's type, and values of it by the file that they are in."""

    type: types.DataType
    files: list[list[Any]]


def _utc(moments: list[list[datetime.datetime]]) -> list[list[datetime.datetime]]:
    return [[moment.replace(tzinfo=UTC) for moment in file] for file in moments]


_MOMENTS = [[MOMENT, MOMENT + datetime.timedelta(microseconds=1)], [FIRST, END], [MOMENT]]
_TEXTS = [["a" * 100, "a" * 100 + "b", "ü" * 31 + LAST * 2], ["", LAST * 40, LAST * 40 + "a", "\ud7ff" * 32], ["m\0"]]
_LARGE = Decimal("1234567890123456789012345678.9012345678")
KINDS = {
    "flag": Kind(types.BooleanType(), [[True, False], [False], [True]]),
    "tiny": Kind(types.ByteType(), [[1, 2], [-128, 127], [3]]),
    "small": Kind(types.ShortType(), [[1, 2], [-(1 << 15), (1 << 15) - 1], [3]]),
    "whole": Kind(types.IntegerType(), [[1, 2], [-(1 << 31), (1 << 31) - 1], [3]]),
    "long": Kind(types.LongType(), [[1, 2], [-(1 << 63), (1 << 63) - 1], [(1 << 53) + 1]]),
    "real": Kind(types.FloatType(), [[0.5, 1.5, 2.0**-149], [NAN, INF, -INF], [5.0, NAN]]),
    "double": Kind(types.DoubleType(), [[0.1, -0.0, 5e-324], [NAN, INF, -INF], [5.0, NAN]]),
    "finite": Kind(types.DoubleType(), [[0.1, 1.5], [1.7976931348623157e308, -1.7976931348623157e308], [0.0]]),
    "only_nan": Kind(types.DoubleType(), [[1.0], [NAN], [2.0]]),
    "price": Kind(types.DecimalType(10, 2), [[Decimal("0.10"), Decimal("0.30")], [Decimal("-99999999.99")], []]),
    "large": Kind(types.DecimalType(38, 10), [[_LARGE, Decimal("1E-10")], [_LARGE.copy_negate()], [Decimal("0E-10")]]),
    "text": Kind(types.StringType(), _TEXTS),
    "raw": Kind(types.BinaryType(), [[b"a" * 100, b"\0"], [b"", b"\xff" * 40], [b"m"]]),
    "date": Kind(types.DateType(), [[MOMENT.date()], [FIRST_DAY, LAST_DAY], [datetime.date(1582, 10, 5)]]),
    "at": Kind(types.TimestampType(), cast("list[list[Any]]", _utc(_MOMENTS))),
    "local": Kind(types.TimestampNTZType(), cast("list[list[Any]]", _MOMENTS)),
    "nothing": Kind(types.IntegerType(), [[], [], []]),
}
NESTED = {
    "pair": types.StructType().add("x", types.DoubleType()).add("names", types.ArrayType(types.StringType())),
    "list": types.ArrayType(types.IntegerType()),
    "map": types.MapType(types.StringType(), types.LongType()),
}
NESTED_VALUES = {
    "pair": [[{"x": 1.5, "names": ["a"]}, {"x": None}], [{"x": NAN}], [{"names": []}]],
    "list": [[[1], [None]], [[]], [[2, 3]]],
    "map": [[{"a": 1}], [{}], [{"b": None}]],
}
COMPARISONS = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
               ">=": operator.ge}  # fmt: skip


def _encoded(value: Any, kind: types.DataType) -> Any:
    """As a board sends it."""
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, datetime.date) else value


def bodies() -> list[list[bytes]]:
    """Of three files with these values, and of one with nothing. Each file has a row without any."""
    found = []
    for file in range(3):
        columns = {name: kind.files[file] for name, kind in KINDS.items()}
        columns |= {name: values[file] for name, values in NESTED_VALUES.items()}
        kinds: dict[str, types.DataType] = {**{name: kind.type for name, kind in KINDS.items()}, **NESTED}
        rows = max(map(len, columns.values()))
        found.append([
            cbor2.dumps({name: _encoded(values[number], kinds[name])
                         for name, values in columns.items() if number < len(values)})
            for number in range(rows + 1)
        ])  # fmt: skip
    return [*found, [cbor2.dumps({})]]


def job(folder: Path, table: Path, table_format: str, fields: list[types.StructField], **others: Any) -> Job:
    what = Job([str(folder)], str(table), table_format, segments_max=1, bodies="cbor", **others)
    what.given = lambda: fields  # type: ignore[method-assign] # what parses DDL is in Spark
    return what


def filled(folder: Path, table: Path, table_format: str) -> Job:
    number = 0
    for serial, file in enumerate(bodies(), 1):
        write_rows(folder, serial, [row(number + place, body=body) for place, body in enumerate(file)])
        number += len(file)
    fields = [types.StructField(name, kind.type) for name, kind in KINDS.items()]
    what = job(folder, table, table_format, [*fields, *(types.StructField(*one) for one in NESTED.items())])
    done = load(what).run(False)
    assert (done.rows, done.batches, done.malformed) == (number, 4, 0)
    return what


def questions() -> Iterator[tuple[str, str, Any]]:
    """Column, comparison and value."""
    for name, kind in KINDS.items():
        for value in [one for file in kind.files for one in file] or [1]:
            for sign in COMPARISONS:
                yield name, sign, value
    for name in [*KINDS, *NESTED, "report_queue", "body", "label", "sent_time", MALFORMED]:
        yield name, "is", None
        yield name, "is not", None
    for name, value in (("label", "reading 2"), ("lookup_id", 3), ("message_id", 3), ("body", cbor2.dumps({}))):
        yield name, "=", value


Ask = Callable[[str, str, Any], object]


def _expression(name: str, sign: str, value: Any, kind: pa.DataType) -> pc.Expression:
    if value is None:
        return pc.field(name).is_null() if sign == "is" else pc.field(name).is_valid()
    return cast("pc.Expression", COMPARISONS[sign](pc.field(name), pa.scalar(value, kind)))


def by_pyarrow(opened: DeltaTable) -> tuple[Ask, Ask]:
    """By a filter, and in memory: which rows are found."""
    dataset = opened.to_pyarrow_dataset()
    whole = dataset.to_table()

    def ask(name: str, sign: str, value: Any) -> object:
        wanted = _expression(name, sign, value, whole[name].type)
        return sorted(dataset.to_table(["lookup_id"], filter=wanted)["lookup_id"].to_pylist())

    def known(name: str, sign: str, value: Any) -> object:
        return sorted(whole.filter(_expression(name, sign, value, whole[name].type))["lookup_id"].to_pylist())

    return ask, known


def _of_polars(name: str, sign: str, value: Any, kind: Any) -> polars.Expr:
    if value is None:
        return polars.col(name).is_null() if sign == "is" else polars.col(name).is_not_null()
    return cast("polars.Expr", COMPARISONS[sign](polars.col(name), polars.lit(value, kind)))


def by_polars(lazy: polars.LazyFrame) -> tuple[Ask, Ask]:
    whole = lazy.collect()

    def ask(name: str, sign: str, value: Any) -> object:
        found = lazy.filter(_of_polars(name, sign, value, whole[name].dtype)).select("lookup_id").collect()
        return sorted(found["lookup_id"].to_list())

    def known(name: str, sign: str, value: Any) -> object:
        return sorted(whole.filter(_of_polars(name, sign, value, whole[name].dtype))["lookup_id"].to_list())

    return ask, known


def by_duckdb(opened: DeltaTable) -> tuple[Ask, Ask]:
    dataset = opened.to_pyarrow_dataset()
    whole = dataset.to_table()
    base = duckdb.connect()
    base.execute("SET TimeZone = 'UTC'")
    base.register("filtered", dataset)
    base.register("arrow", whole)
    base.execute("CREATE TABLE known AS SELECT * FROM arrow")

    def asked(of: str) -> Ask:
        def ask(name: str, sign: str, value: Any) -> object:
            wanted = f'"{name}" {sign} NULL' if value is None else f'"{name}" {sign} $value'
            given = {} if value is None else {"value": value}
            found = base.execute(f"SELECT lookup_id FROM {of} WHERE {wanted} ORDER BY 1", given).fetchall()
            return [number for (number,) in found]

        return ask

    return asked("filtered"), asked("known")


class Reader(NamedTuple):
    """How it is asked, and what it cannot be asked."""

    open: Callable[[Path], tuple[Ask, Ask]]
    cannot: Callable[[str, Any], bool] = lambda _name, _value: False


def _is_nan(_: str, value: Any) -> bool:
    """pyarrow takes what is known of a file, `x <= 1`, for a proof of `x < NaN`."""
    return isinstance(value, float) and math.isnan(value)


def _is_pair(name: str, _: Any) -> bool:
    """polars raises an error for a struct with a list in it, whoever has written the table of Delta Lake."""
    return name == "pair"


def scan_iceberg(table: Path) -> polars.LazyFrame:
    return polars.scan_iceberg(iceberg.read_table(str(table)))


READERS = {
    "pyarrow": Reader(lambda table: by_pyarrow(DeltaTable(table)), _is_nan),
    "polars": Reader(lambda table: by_polars(polars.scan_delta(str(table))), _is_pair),
    "duckdb": Reader(lambda table: by_duckdb(DeltaTable(table))),
    "polars of iceberg": Reader(lambda table: by_polars(scan_iceberg(table))),
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """polars warns that a package of theirs would be faster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compare(reader: str, table: Path) -> None:
    """Raises AssertionError if a filter finds other rows than are there."""
    with quiet():
        ask, known = READERS[reader].open(table)
        wrong = []
        for name, sign, value in questions():
            if READERS[reader].cannot(name, value):
                continue
            found, expected = ask(name, sign, value), known(name, sign, value)
            if found != expected:
                wrong.append(f"{name} {sign} {value!r}: {found}, and {expected} are there")
    assert not wrong, "\n".join([f"{reader}: {len(wrong)} answers are wrong", *wrong[:40]])


@pytest.mark.parametrize("reader", READERS)
def test_a_filter_finds_the_rows_that_are_there(folder: Path, table: Path, reader: str) -> None:
    filled(folder, table, "iceberg" if "iceberg" in reader else "delta")
    compare(reader, table)
