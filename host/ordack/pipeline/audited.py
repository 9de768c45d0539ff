"""One audit that Spark's tasks do together, and its tables as data frames.

    fleet = Audited(spark, "/captures")
    fleet["streams"].createOrReplaceTempView("fleet")

The source "mqqb" has the same rows, but a source has no session to shuffle with, so that one task makes them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ordack.audit import tasks
from ordack.audit.rows import TABLES, batches
from ordack.pipeline.options import OptionError
from ordack.pipeline.packets import find_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Audited:
    """result: the audit of the captures that a file's name, a pattern or a folder means; all are one capture together.

    parts: into how many shares its connections are divided; by default as `ordack audit --master` divides them. Raises
    OptionError, OSError, and CaptureUnusable where there is nothing to judge.
    """

    def __init__(self, spark: SparkSession, path: str, parts: int | None = None) -> None:
        self._spark = spark
        self.result = tasks.run(find_files(path), spark=spark, parts=parts)
        tasks.require_packets(self.result)

    def __getitem__(self, view: str) -> DataFrame:
        """One of the views of the source "mqqb"."""
        if view not in TABLES:
            raise OptionError(f"there is no view {view!r} of an audit; there are {', '.join(TABLES)}")
        table = pa.Table.from_batches(batches(view, self.result), TABLES[view].schema)
        return self._spark.createDataFrame(table)
