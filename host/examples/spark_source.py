"""Exported messages in a Spark program of your own, as a batch and as a stream: segments are Parquet files.

    python3 spark_source.py SEGMENTS

The source "mqqb" reads the packets of captures: spark.read.format("mqqb").load("/captures"), in a session that
ordack.pipeline.spark has made, or made it known to with register(spark).
"""

import sys

from ordack.pipeline.spark import spark_session, words
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, from_json

if len(sys.argv) != 2:
    sys.exit(__doc__)
spark = spark_session()
try:
    messages = spark.read.parquet(sys.argv[1])
except PySparkException as error:  # there is no such folder
    sys.exit(words(error))
late = messages.where("queue = 'line1' and arrived > '2026-11-21'")
print(late.count(), "messages since then")
stream = spark.readStream.schema(messages.schema).parquet(sys.argv[1])
readings = stream.select("queue", from_json(col("body").cast("string"), "temperature DOUBLE").alias("reading"))
print("a stream" if readings.isStreaming else "a batch")
