"""Tables of Delta Lake and Iceberg for tests: made without Spark, but for its types, and read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from ordack.pipeline.iceberg import _catalog
from ordack.pipeline.ingest import Job, Load, rows_of
from ordack.pipeline.lake import Decoding
from pyspark.sql.types import DoubleType, StructField

both = pytest.mark.parametrize("table_format", ["delta", "iceberg"])


def job(folder: Path | Sequence[Path | str], table: Path | str, table_format: str | None = None, **others: Any) -> Job:
    named = [folder] if isinstance(folder, Path) else folder
    return Job([*map(str, named)], str(table), table_format, **others)


def read_here(decoding: Decoding, paths: Sequence[str]) -> pa.Table:
    """As Spark's tasks do it."""
    return pa.concat_tables(rows_of(decoding, paths))


def load(what: Job, told: Callable[[Any], None] | None = None) -> Load:
    """An ingest without Spark."""
    return Load(what, read_here, told)


def decoding(what: Job, *columns: str) -> None:
    """Bodies with columns of DOUBLE; what parses DDL is in Spark."""
    what.given = lambda: [StructField(name, DoubleType()) for name in columns]  # type: ignore[method-assign]


def read(table: Path, table_format: str = "delta") -> pa.Table:
    if table_format == "delta":
        return DeltaTable(table).to_pyarrow_table()
    catalog, name = _catalog(str(table))
    return catalog.load_table(name).scan().to_arrow()


def read_by_polars(table: Path, table_format: str) -> polars.DataFrame:
    if table_format == "delta":
        return polars.read_delta(str(table))
    catalog, name = _catalog(str(table))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a package of theirs would be faster
        made: Any = polars.scan_iceberg(catalog.load_table(name)).collect()
    return cast("polars.DataFrame", made)


def numbers(table: Path, table_format: str = "delta") -> list[int]:
    return sorted(read(table, table_format)["lookup_id"].to_pylist())
