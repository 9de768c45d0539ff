"""Reads a table that `ordack pipeline ingest` has made, without Spark.

    python3 read_table.py TABLE

A batch that was killed leaves files whose rows stand again in other files. `committed_files` names those that belong to
the table; DuckDB's read_parquet takes the same list.
"""

import sys

import pyarrow.parquet
from ordack.pipeline.table import committed_files

readings = pyarrow.parquet.read_table(committed_files(sys.argv[1]))
print(f"{readings.num_rows} messages, columns {', '.join(readings.column_names)}")
