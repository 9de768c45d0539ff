"""Reads a table that `ordack pipeline ingest` has made, without Spark.

    python3 read_table.py TABLE

A new table is one of Delta Lake: polars, DuckDB, pandas and others read it, too. Of a table of Parquet, which has
_spark_metadata in its folder, pyarrow reads the files that ordack.pipeline.table.committed_files names: those of a
batch that was killed are not among them.
"""

import sys

from deltalake import DeltaTable

if len(sys.argv) != 2:
    sys.exit(__doc__)
if not DeltaTable.is_deltatable(sys.argv[1]):
    sys.exit(f"there is no table of Delta Lake in {sys.argv[1]}")
readings = DeltaTable(sys.argv[1]).to_pyarrow_table()
print(f"{readings.num_rows} messages, columns {', '.join(readings.column_names)}")
