"""The files of a table of Delta Lake: what its log says of them, and how `optimize` puts them together.

delta-rs could put them together itself. But it leaves NaN out of the statistics, and a file of which nothing but NaN is
in a column has none for that: `to_pyarrow_dataset` then finds no row in it.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from ordack.paths import scheme_of, sync
from ordack.pipeline.lake import ATTEMPTS, in_groups
from ordack.pipeline.progress import IngestUnusable
from ordack.pipeline.statistics import completed, is_complete
from ordack.pipeline.writing import Growing, open_folder

# What a file may have that an action of delta-rs's would take from it.
_UNKNOWN = ("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider", "tags")


def log_of(folder: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder of the log of the table in this folder or URL. Raises ValueError, OSError."""
    system, path = open_folder(folder)
    return system, f"{path}/_delta_log"


def columns_of(table: DeltaTable) -> pa.Schema:
    """Those that its files hold."""
    by = table.metadata().partition_columns
    return pa.schema([column for column in pa.schema(table.schema().to_arrow()) if column.name not in by])


def sync_log(folder: str, behind: int, until: int) -> None:
    """What was committed behind one version up to another survives a loss of power, where that can be had."""
    if not scheme_of(folder):
        log = Path(folder, "_delta_log")
        for number in range(behind + 1, until + 1):
            sync(str(log / f"{number:020}.json"))
        sync(str(log))


def _files(table: DeltaTable, folder: str) -> list[dict[str, Any]]:
    """What the log says of each file, in a checkpoint that is made for it; `name`: in the table's folder. Raises
    DeltaError, OSError."""
    table.create_checkpoint()
    system, log = log_of(folder)
    path = f"{log}/{table.version():020}.checkpoint.parquet"
    found = pq.read_table(path, columns=["add"], filesystem=system)["add"].drop_null().to_pylist()
    return [one | {"name": unquote(one["path"]), "partitionValues": dict(one["partitionValues"])} for one in found]


def _has_unknown(file: dict[str, Any]) -> bool:
    return any(file.get(name) for name in _UNKNOWN)


def complete_statistics(table: DeltaTable, folder: str, added: pa.Schema) -> None:
    """Have the files of a table that gets these columns say that they are null there. Raises DeltaError, OSError."""
    before = pa.schema([column for column in columns_of(table) if column.name not in added.names])
    for attempt in range(ATTEMPTS):
        actions: list[AddAction | RemoveAction] = [
            AddAction(file["name"], file["size"], file["partitionValues"], file["modificationTime"], False, stats)
            for file in _files(table, folder)
            if not _has_unknown(file) and is_complete(file["stats"], before)
            if (stats := completed(file["stats"], added)) != file["stats"]
        ]
        if not actions:
            return
        try:
            # Only if nobody else has committed meanwhile: one of these files may be removed.
            once = CommitProperties(max_commit_retries=0)
            by = table.metadata().partition_columns
            table.create_write_transaction(actions, "append", table.schema(), by, commit_properties=once)
        except CommitFailedError:
            if attempt == ATTEMPTS - 1:
                raise
        table.update_incremental()


def compact(table: DeltaTable, folder: str) -> tuple[int, int]:
    """Put small files together, and rewrite those without statistics of all columns. How many were replaced, and by how
    many. Raises DeltaError, OSError, pa.ArrowException, IngestUnusable."""
    if "columnMapping" in (table.protocol().reader_features or ()):
        raise IngestUnusable(f"the table {folder} has columnMapping, which optimize does not heed")
    columns = columns_of(table)
    found: defaultdict[tuple[tuple[str, str | None], ...], list[dict[str, Any]]] = defaultdict(list)
    for file in _files(table, folder):
        if not _has_unknown(file):
            found[tuple(sorted(file["partitionValues"].items()))].append(file)
    removed = added = 0
    for files in found.values():
        for group in in_groups(files, _size, lambda file: not is_complete(file["stats"], columns)):
            _replace(table, folder, group, columns)
            removed, added = removed + len(group), added + 1
    return removed, added


def _size(file: dict[str, Any]) -> int:
    return int(file["size"])


def _replace(table: DeltaTable, folder: str, group: Sequence[dict[str, Any]], columns: pa.Schema) -> None:
    system, path = open_folder(folder)
    place = PurePosixPath(group[0]["name"]).parent
    growing = Growing(system, path, str(place / f"optimized-{uuid.uuid4()}.parquet"), ())
    growing.add(columns.empty_table())
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    kind = ds.ParquetFileFormat(default_fragment_scan_options=options)
    names = [f"{path}/{file['name']}" for file in group]
    for batch in ds.dataset(names, columns, kind, system).to_batches(use_threads=False):
        growing.add(pa.Table.from_batches([batch]))
    made = growing.finish()
    if isinstance(system, fs.LocalFileSystem):
        sync(f"{path}/{place}")
    now = int(time.time() * 1000)
    values = group[0]["partitionValues"]
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(file["name"], False, now, file["size"], file["partitionValues"]) for file in group
    ]
    actions.append(AddAction(made.name, made.size, values, now, False, made.stats))
    version = table.version()
    table.create_write_transaction(actions, "append", table.schema(), table.metadata().partition_columns)
    table.update_incremental()
    sync_log(folder, version, table.version())
