"""Reads a table that `ordack table ingest` has made, without Spark.

    python3 read_table.py TABLE

A new table is one of Delta Lake: polars, DuckDB, pandas and others read it, too.
"""

import sys

from deltalake import DeltaTable

if len(sys.argv) != 2:
    sys.exit(__doc__)
if not DeltaTable.is_deltatable(sys.argv[1]):
    sys.exit(f"there is no table of Delta Lake in {sys.argv[1]}")
readings = DeltaTable(sys.argv[1]).to_pyarrow_dataset().to_table(use_threads=False)  # threads may abort the exit
print(f"{readings.num_rows} messages, columns {', '.join(readings.column_names)}")
