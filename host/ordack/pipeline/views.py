"""Views of the data source "mqqb": the tables of an audit as data frames, with the rows that `ordack audit` reports.

    spark.read.format("mqqb").option("view", "violations").load("/captures")
    CREATE TEMPORARY VIEW fleet USING mqqb OPTIONS (path '/captures', view 'streams')

Each query audits the captures in one task. pipeline.md has the columns, audit/rows.py what they say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ordack.audit.rows import TABLES, batches
from ordack.pipeline.options import OptionError

PACKETS = "packets"
_OF_PACKETS = ("columns", "partitions")


def view_of(options: Mapping[str, str]) -> str:
    """PACKETS, or the name of a table of the audit. Raises OptionError."""
    view = options.get("view", PACKETS)
    if view != PACKETS and view not in TABLES:
        raise OptionError(f"there is no view {view!r}; there are {', '.join((PACKETS, *TABLES))}")
    for name in _OF_PACKETS if view != PACKETS else ():
        if name in options:
            raise OptionError(f"option {name} is for packets: leave it out, and SELECT what you want of view {view}")
    return view


def view_schema(view: str) -> StructType:
    """The columns of a table of the audit."""
    return from_arrow_schema(TABLES[view].schema)


class ViewReader(DataSourceReader):
    """A table of the audit of these captures, in one task: the rows of one stream may need packets of all files."""

    def __init__(self, paths: Sequence[str], view: str) -> None:
        self._paths, self._view = list(paths), view

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - there is one
        """Raises CaptureUnusable where there is nothing to judge: no rows would mean that nothing is wrong."""
        from ordack.audit import tasks  # with the decoder, which planning does not need

        result = tasks.run(self._paths)
        tasks.require_packets(result)
        yield from batches(self._view, result)
