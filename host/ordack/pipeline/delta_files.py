"""The files of a table of Delta Lake: what its log says of them, and how `optimize` puts them together.

delta-rs could put them together itself. But it leaves NaN out of the statistics, and a file of which nothing but NaN is
in a column has none for that: `to_pyarrow_dataset` then finds no row in it.
"""

from __future__ import annotations

import json
import re
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
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from ordack.config.paths import S3, NotLocal, RemoteError, RemoteMissing, RemotePath, scheme_of, sync
from ordack.pipeline.lake import ATTEMPTS, first_line, in_groups
from ordack.pipeline.progress import IngestUnusable
from ordack.pipeline.statistics import completed, is_complete
from ordack.pipeline.writing import Growing, open_folder

_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
HINT = "_last_checkpoint"
# delta-rs would make checkpoints behind commits, and delete commits in them before they are on disk.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# What a file may have that an action of delta-rs's would take from it.
_UNKNOWN = ("deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider", "tags")


def log_of(folder: str) -> tuple[fs.FileSystem, str]:
    """The file system and the folder of the log of the table in this folder or URL. Raises ValueError, OSError."""
    system, path = open_folder(folder)
    return system, f"{path}/_delta_log"


def uri_of(table: str) -> str:
    """As delta-rs takes a folder or URL. Raises IngestUnusable for a bucket that is not there: delta-rs tries for a
    minute, and does not say it."""
    if scheme_of(table) in S3:
        try:
            RemotePath(table).require_bucket()
        except (NotLocal, RemoteMissing) as error:
            raise IngestUnusable(str(error)) from None
        except RemoteError:
            pass  # a key that may not do this may do the rest
    return table if scheme_of(table) else Path(table).absolute().as_uri()


def open_table(folder: str) -> DeltaTable:
    """Without checkpoints that cannot be read, as a loss of power leaves them: they are moved aside where the commits
    tell everything. Raises DeltaError, OSError, IngestUnusable."""
    try:
        return DeltaTable(uri_of(folder))
    except (DeltaError, OSError) as error:
        system, log = log_of(folder)
        damaged = _damaged(system, log)
        if not damaged:
            raise
        first = first_line(error)
    moved: list[str] = []
    try:
        for name in damaged:
            system.move(f"{log}/{name}", f"{log}/.{name}.damaged")
            moved.append(name)
        return DeltaTable(uri_of(folder))
    except DeltaError:
        for name in moved:
            system.move(f"{log}/.{name}.damaged", f"{log}/{name}")
        names = ", ".join(name for name in damaged if name != HINT) or HINT
        raise IngestUnusable(
            f"the table {folder} cannot be opened: {first}. In its _delta_log {names} is damaged, and "
            "commits before it are gone: bring them back from a copy, or begin a new table"
        ) from None


def _damaged(system: fs.FileSystem, log: str) -> list[str]:
    """The checkpoints that cannot be read, and what names one that is not there. Raises OSError."""
    names = [file.base_name for file in system.get_file_info(fs.FileSelector(log))]
    damaged = [name for name in names if _CHECKPOINT.fullmatch(name) and not _is_whole(system, f"{log}/{name}")]
    whole = {int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name) and name not in damaged}
    if HINT in names:
        try:
            with system.open_input_stream(f"{log}/{HINT}") as hint:
                named = json.loads(hint.read())["version"]
        except (ValueError, KeyError, TypeError):
            named = None
        if named not in whole:
            damaged.append(HINT)
    return sorted(damaged)


def _is_whole(system: fs.FileSystem, path: str) -> bool:
    try:
        pq.read_table(path, filesystem=system)
    except (pa.ArrowException, OSError):
        return False
    return True


def last_checkpoint(folder: str) -> int:
    """The version of the newest one; -1: there is none. Raises OSError."""
    system, log = log_of(folder)
    names = [file.base_name for file in system.get_file_info(fs.FileSelector(log))]
    return max((int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name)), default=-1)


def checkpoint(table: DeltaTable, folder: str) -> None:
    """Make one, and have it on disk where that can be had: commits in it may be deleted. Raises DeltaError, OSError."""
    table.create_checkpoint()
    if not scheme_of(folder):
        log = Path(folder, "_delta_log")
        for path in (*log.glob(f"{table.version():020}.checkpoint*"), log / HINT, log):
            sync(str(path))


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
    checkpoint(table, folder)
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
            table.create_write_transaction(
                actions, "append", table.schema(), by, commit_properties=once, post_commithook_properties=NO_HOOKS
            )
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
    by = table.metadata().partition_columns
    table.create_write_transaction(actions, "append", table.schema(), by, post_commithook_properties=NO_HOOKS)
    table.update_incremental()
    sync_log(folder, version, table.version())
