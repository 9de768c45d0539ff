"""Makes the file from which the JVMs of tests take Spark's classes as they are once loaded: `python -m
tests.support.spark_classes FILE`.

A session needs 4 s of processor instead of 8 until it has done its first job. A JVM that cannot use the file, because
Java or Spark has changed, starts as it would without it.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from hil.quick_spark import QUICK_JVM


def _same(batches: "Iterable[object]") -> "Iterator[object]":
    yield from batches


def make(file: Path) -> None:
    """Lets a session do a little of all that tests do, and keeps what its JVM has loaded when it ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={file}"
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    gateway = SparkContext._gateway
    with tempfile.TemporaryDirectory() as folder:
        spark.range(9).mapInArrow(_same, "id long").groupBy("id").count().write.parquet(f"{folder}/table")
        stream = spark.readStream.schema("id long, count long").parquet(f"{folder}/table").writeStream
        stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        stream.foreachBatch(lambda batch, _: batch.orderBy("id").collect()).start().awaitTermination()
        spark.sql("SELECT 1 AS one").toPandas()
        spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # its JVM then ends by itself, and writes the file
    gateway.proc.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
