"""The files of a table that `ordack pipeline ingest` writes, for readers other than Spark.

Spark's file sink makes a batch part of the table by one file in `_spark_metadata`, which names the batch's files. Spark
reads only what is named there. Files of a batch that was killed before that stay in the folder, and their rows come
again in other files: a reader that takes all `*.parquet` reads them twice.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import unquote

METADATA = "_spark_metadata"
VERSION = "v1"


class TableError(Exception):
    """The folder is no table of Spark's file sink, or a part of it is missing; the text says what."""


def committed_files(table: str | os.PathLike[str]) -> list[Path]:
    """The files of the table, batch after batch, as `pyarrow.parquet.read_table` and DuckDB's `read_parquet` take them.
    Raises TableError."""
    log = Path(table) / METADATA
    try:
        names = [file.name for file in log.iterdir() if file.name.removesuffix(".compact").isdecimal()]
    except OSError as error:
        raise TableError(f"{table} is no table that a stream of Spark has written: {log}: {error.strerror}") from None
    # A compact file holds what all files before it have said.
    whole = max((int(name.partition(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    later = sorted(int(name) for name in names if name.isdecimal() and int(name) > whole)
    if later != list(range(whole + 1, whole + 1 + len(later))):
        raise TableError(f"{log} has holes: it lists the batches {later} behind {whole}")
    files: dict[str, None] = {}
    for name in ([f"{whole}.compact"] if whole >= 0 else []) + [str(number) for number in later]:
        lines = (log / name).read_text(encoding="utf-8").splitlines()
        if lines[:1] != [VERSION]:
            raise TableError(f"{log / name} is of version {lines[:1]}, not {VERSION}")
        for entry in map(json.loads, lines[1:]):
            file = unquote(entry["path"].rpartition("/")[2])  # the folder may have been moved since
            if entry["action"] == "delete":
                files.pop(file, None)
            else:
                files[file] = None
    return [Path(table) / file for file in files]
