"""Exported messages in a Spark program of your own, as a batch and as a stream.

    python3 spark_source.py SEGMENTS

host/ordack/pipeline/segment_source.py lists the options of the source. In SQL: CREATE TEMPORARY VIEW readings USING
ordack OPTIONS (path '/data/segments'). The source "mqqb" does the same for the packets of captures.
"""

import sys

from ordack.pipeline.spark import spark_session, words
from pyspark.errors import PySparkException

if len(sys.argv) != 2:
    sys.exit(__doc__)
spark = spark_session()  # or register(spark), from the same module, for a session that is there
try:
    messages = spark.read.format("ordack").load(sys.argv[1])
except PySparkException as error:  # there is no such folder, or it is none of segments
    sys.exit(words(error))
late = messages.where("queue = 'line1' and arrived > '2026-11-21'")
print(late.count(), "messages since then")
stream = spark.readStream.format("ordack").option("schema", "temperature DOUBLE").load(sys.argv[1])
print("a stream" if stream.isStreaming else "a batch")
