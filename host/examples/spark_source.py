"""Exported messages in a Spark program of your own, as a batch and as a stream.

    python3 spark_source.py SEGMENTS

host/ordack/pipeline/source.py lists the options of the source. In SQL: CREATE TABLE readings USING ordack LOCATION
'/data/segments'. The source "mqqb" does the same for the packets of captures.
"""

import sys

from ordack.pipeline.session import session

spark = session()  # or register(spark), from the same module, for a session that is there
late = spark.read.format("ordack").load(sys.argv[1]).where("queue = 'line1' and arrived > '2026-11-21'")
print(late.count(), "messages since then")
stream = spark.readStream.format("ordack").option("schema", "temperature DOUBLE").load(sys.argv[1])
print("a stream" if stream.isStreaming else "a batch")
