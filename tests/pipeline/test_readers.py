"""What a query with a filter finds in a table, by pyarrow, polars, DuckDB and pyiceberg: those that are there.

Readers pass over files and groups of rows by statistics in the commit and in the files.
"""

from __future__ import annotations

import datetime
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from ordack.pipeline.iceberg import read_table
from ordack.pipeline.ingest import Job
from ordack.pipeline.lake import MALFORMED
from ordack.pipeline.segments import SCHEMA
from pyiceberg import expressions
from pyspark.sql import types

from tests.pipeline.lake import decoding, job, load
from tests.support.segment_files import BEGIN, row, write, write_rows

NAN, INF = math.nan, math.inf
MOMENT = datetime.datetime(2026, 11, 21, 18, 30, 0, 123_456, datetime.UTC)
# A column's type, and values of it by the file that they are in.
KINDS: dict[str, tuple[types.DataType, list[list[Any]]]] = {
    "flag": (types.BooleanType(), [[True, False], [False], [True]]),
    "small": (types.ShortType(), [[1, 2], [-(1 << 15), (1 << 15) - 1], [3]]),
    "long": (types.LongType(), [[1, 2], [-(1 << 63), (1 << 63) - 1], [(1 << 53) + 1]]),
    "real": (types.FloatType(), [[0.5, 1.5], [NAN, INF, -INF], [5.0, NAN]]),
    "double": (types.DoubleType(), [[0.1, -0.0, 5e-324], [NAN, INF, -INF], [5.0, NAN]]),
    "only_nan": (types.DoubleType(), [[1.0], [NAN], [2.0]]),
    "text": (types.StringType(), [["a" * 100, "a" * 100 + "b"], ["", "\U0010ffff" * 40], ["m\0"]]),
    "price": (types.DecimalType(10, 2), [[Decimal("0.10"), Decimal("0.30")], [Decimal("-99999999.99")], []]),
    "raw": (types.BinaryType(), [[b"a" * 100, b"\0"], [b"", b"\xff" * 40], [b"m"]]),
    "date": (types.DateType(), [[MOMENT.date()], [datetime.date(1, 1, 1), datetime.date.max], [MOMENT.date()]]),
    "local": (types.TimestampNTZType(), [[MOMENT.replace(tzinfo=None)], [MOMENT.replace(year=9999, tzinfo=None)], []]),
    "at": (types.TimestampType(), [[MOMENT], [MOMENT + datetime.timedelta(microseconds=1)], [MOMENT]]),
    "nothing": (types.IntegerType(), [[], [], []]),
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, ">=": operator.ge
}  # fmt: skip
OF_ICEBERG: dict[str, Any] = {
    "=": expressions.EqualTo, "<>": expressions.NotEqualTo, "<": expressions.LessThan,
    ">=": expressions.GreaterThanOrEqual,
}  # fmt: skip


def filled(folder: Path, table: Path, table_format: str = "delta") -> None:
    """Three files, in each a row without any value."""
    for file in range(3):
        bodies = [{name: values[file][at] for name, (_, values) in KINDS.items() if at < len(values[file])}
                  for at in range(4)]  # fmt: skip
        encoded = [
            cbor2.dumps({name: value.isoformat() if isinstance(value, datetime.date) else value
                         for name, value in body.items()})
            for body in bodies
        ]  # fmt: skip
        write_rows(folder, file + 1, [row(4 * file + at, body=body) for at, body in enumerate(encoded)])
    what = Job([str(folder)], str(table), table_format, segments_max=1, bodies="cbor")
    fields = [types.StructField(name, kind) for name, (kind, _) in KINDS.items()]
    what.given = lambda: fields  # type: ignore[method-assign] # what parses DDL is in Spark
    done = load(what).run(False)
    assert (done.rows, done.batches, done.malformed) == (12, 3, 0)


@pytest.mark.parametrize("reader", ["pyarrow", "polars"])
def test_a_filter_finds_the_rows_that_are_there(folder: Path, table: Path, reader: str) -> None:
    filled(folder, table)
    dataset = DeltaTable(table).to_pyarrow_dataset()
    whole: Any = dataset.to_table()
    lazy = polars.scan_delta(str(table))
    known = lazy.collect()
    wrong = []

    def check(name: str, of_arrow: pc.Expression, of_polars: polars.Expr, said: object) -> None:
        if reader == "pyarrow":
            found, expected = (one["lookup_id"].to_pylist() for one in (
                dataset.to_table(filter=of_arrow), whole.filter(of_arrow)))  # fmt: skip
        else:
            found, expected = (one["lookup_id"].to_list() for one in (
                lazy.filter(of_polars).collect(), known.filter(of_polars)))  # fmt: skip
        if sorted(found) != sorted(expected):
            wrong.append(f"{name} {said}: {found}, and {expected} are there")

    for name, (_, files) in KINDS.items():
        for value in [value for file in files for value in file]:
            if reader == "pyarrow" and isinstance(value, float) and math.isnan(value):
                continue  # it takes what is known of a file, `x <= 1`, for a proof of `x < NaN`
            for sign in COMPARISONS.values():
                arrow = sign(pc.field(name), pa.scalar(value, whole[name].type))
                check(name, arrow, sign(polars.col(name), polars.lit(value, known[name].dtype)), (sign, value))
    for name in [*KINDS, "report_queue", "body", "label", MALFORMED]:
        check(name, pc.field(name).is_null(), polars.col(name).is_null(), "is null")
    assert not wrong, "\n".join(wrong)


def test_duckdb_finds_the_rows_that_are_there(folder: Path, table: Path) -> None:
    filled(folder, table)
    dataset = DeltaTable(table).to_pyarrow_dataset()
    base = duckdb.connect()
    base.register("filtered", dataset)
    base.execute("CREATE TABLE known AS SELECT * FROM filtered")
    wrong = []
    for name, (_, files) in KINDS.items():
        for value in [value for file in files for value in file]:
            for sign in COMPARISONS:
                found, expected = (
                    base.execute(f'SELECT lookup_id FROM {rows} WHERE "{name}" {sign} ? ORDER BY 1', [value]).fetchall()
                    for rows in ("filtered", "known")
                )
                if found != expected:
                    wrong.append(f"{name} {sign} {value}: {found}, and {expected} are there")
    assert not wrong, "\n".join(wrong)


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")  # a package of theirs would make polars faster
def test_readers_of_iceberg_find_the_rows_that_are_there(folder: Path, table: Path) -> None:
    filled(folder, table, "iceberg")
    opened = read_table(str(table))
    lazy = polars.scan_iceberg(opened)
    whole, known = opened.scan().to_arrow(), lazy.collect()
    wrong = []
    for name, (_, files) in KINDS.items():
        for value in [value for file in files for value in file]:
            for sign, compare in COMPARISONS.items():
                answers = {}
                lost = sign == "<>" and name in ("real", "double")  # NaN, where all others are the value
                if not lost and value not in (INF, -INF) and value == value:  # pyiceberg refuses them
                    rows = opened.scan(OF_ICEBERG[sign](name, value)).to_arrow(), whole.filter(
                        compare(pc.field(name), pa.scalar(value, whole[name].type)))  # fmt: skip
                    answers["pyiceberg"] = [sorted(one["lookup_id"].to_pylist()) for one in rows]
                wanted = compare(polars.col(name), polars.lit(value, known[name].dtype))
                frames = lazy.filter(wanted).collect(), known.filter(wanted)
                answers["polars"] = [sorted(one["lookup_id"].to_list()) for one in frames]
                wrong += [f"{reader}: {name} {sign} {value}: {found}, and {expected} are there"
                          for reader, (found, expected) in answers.items() if found != expected]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_filter_finds_rows_in_table_without_statistics_columns(folder: Path, table: Path) -> None:
    """As its owner, or an older version, has made it. Upkeep mends files of an older version."""
    columns = [pa.field("t", pa.float64()), pa.field(MALFORMED, pa.string())]
    DeltaTable.create(table, pa.schema([*columns, *(field.with_nullable(True) for field in SCHEMA)]))
    for serial in (1, 2):
        write(folder, serial, serial, serial, body=b'{"t": 1.5}')
    what = job(folder, table, segments_max=1)
    decoding(what, "t")
    load(what).run(False)

    def found(*wanted: pc.Expression) -> list[int]:
        return [DeltaTable(table).to_pyarrow_dataset().to_table(filter=one).num_rows for one in wanted]

    wanted = (pc.field("t") == 1.5, pc.field("body").is_valid(), pc.field("label").is_valid())
    assert found(*wanted) == [2, 2, 2]
    opened = DeltaTable(table)
    few = (
        '{"numRecords": 1, "minValues": {"lookup_id": 1}, "maxValues": {"lookup_id": 2}, "nullCount": {"lookup_id": 0}}'
    )
    files = pa.table(opened.get_add_actions()).to_pylist()
    actions = [AddAction(file["path"], file["size_bytes"], {}, 1, False, few) for file in files]
    opened.create_write_transaction(actions, "append", opened.schema(), [])
    assert found(*wanted)[:2] == [2, 2]
    DeltaTable(table).optimize.compact()
    assert found(*wanted) == [2, 2, 2]


def test_readers_pass_over_files(folder: Path, table: Path) -> None:
    for serial in (1, 2):
        write(folder, serial, 10 * serial, 10 * serial + 5)
    load(Job([str(folder)], str(table), segments_max=1)).run(False)
    for wanted, files in (
        (pc.field("lookup_id") == 12, 1),
        (pc.field("label") == "reading 23", 1),
        (pc.field("arrived") < BEGIN, 0),
        (pc.field("destination_queue").is_null(), 2),
    ):
        assert len([*DeltaTable(table).to_pyarrow_dataset().get_fragments(wanted)]) == files, wanted
