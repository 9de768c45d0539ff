"""The files of a table that `ordack pipeline ingest` writes, for readers other than Spark.

Spark's file sink makes a batch part of the table by one file in `_spark_metadata`, which names the batch's files. Spark
reads only what is named there. Files of a batch that was killed before that stay in the folder, and their rows come
again in other files: a reader that takes all `*.parquet` reads them twice.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ordack.paths import sync

METADATA = "_spark_metadata"
VERSION = "v1"


class TableError(Exception):
    """The folder is no table of Spark's file sink, or a part of it is missing; the text says what."""


def committed_files(table: str | os.PathLike[str]) -> list[Path]:
    """The files of the table, batch after batch, as `pyarrow.parquet.read_table` and DuckDB's `read_parquet` take them.
    Raises TableError."""
    files: dict[str, None] = {}
    for part in _log(Path(table)):
        for entry in _entries(part):
            file = unquote(entry["path"].rpartition("/")[2])  # the folder may have been moved since
            if entry["action"] == "delete":
                files.pop(file, None)
            else:
                files[file] = None
    return [Path(table) / file for file in files]


def settle(table: Path) -> None:
    """Have Spark read a table that was moved or copied, whose log names its files where they were: Spark passes over
    those, without a word if there are newer ones. Raises TableError, OSError."""
    home = Path(os.path.normpath(table.absolute())).as_uri()  # as Hadoop names it
    for part in _log(table):
        entries = list(_entries(part))
        elsewhere = {_plain(folder): folder for entry in entries if (folder := entry["path"].rpartition("/")[0])}
        elsewhere.pop(_plain(home), None)
        for place in map(Path, elsewhere):
            if place.exists() and place.samefile(table):
                raise TableError(f"{table} is {place} by another name: name that, for Spark finds its files only there")
        if not elsewhere:
            continue
        for entry in entries:
            name = entry["path"].rpartition("/")[2]
            if entry["action"] != "delete" and not (table / unquote(name)).exists():
                raise TableError(f"{table} was moved or copied without its file {unquote(name)}: put that there, too")
            entry["path"] = f"{home}/{name}"
        aside = part.with_name(f".{part.name}.{os.getpid()}.settled")  # another ingest may do the same
        aside.write_text("\n".join([VERSION, *(json.dumps(entry, separators=(",", ":")) for entry in entries)]))
        sync(str(aside))
        part.with_name(f".{part.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of what it was
        aside.replace(part)
    sync(str(table / METADATA))


def _plain(folder: str) -> str:
    """A folder's path from its URL."""
    return re.sub("^file:/+", "/", unquote(folder))


def _entries(part: Path) -> Iterator[dict[str, Any]]:
    lines = part.read_text(encoding="utf-8").splitlines()
    if lines[:1] != [VERSION]:
        raise TableError(f"{part} is of version {lines[:1]}, not {VERSION}")
    return map(json.loads, lines[1:])


def _log(table: Path) -> list[Path]:
    """The files that together tell which files belong to the table. Raises TableError."""
    log = table / METADATA
    try:
        names = [file.name for file in log.iterdir() if file.name.removesuffix(".compact").isdecimal()]
    except OSError as error:
        raise TableError(f"{table} is no table that a stream of Spark has written: {log}: {error.strerror}") from None
    # A compact file holds what all files before it have said.
    whole = max((int(name.partition(".")[0]) for name in names if name.endswith(".compact")), default=-1)
    later = sorted(int(name) for name in names if name.isdecimal() and int(name) > whole)
    if later != list(range(whole + 1, whole + 1 + len(later))):
        raise TableError(f"{log} has holes: it lists the batches {later} behind {whole}")
    return [log / name for name in ([f"{whole}.compact"] if whole >= 0 else []) + [str(number) for number in later]]
