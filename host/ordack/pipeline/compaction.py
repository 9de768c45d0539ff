"""Upkeep of a table of Iceberg: small files are put together, and what nobody needs any more is deleted.

Files of one partition become one, in a snapshot of which they are all gone and the new one is there. Rows stay the
same, and so do the table's properties, by which an ingest knows what is in it. A file from which rows have been
deleted, or of another division, stays as it is.
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, parquet_file_to_data_file
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Record

from ordack.config.paths import sync
from ordack.pipeline.iceberg import PROBLEMS, once, read_table
from ordack.pipeline.lake import ATTEMPTS, in_groups
from ordack.pipeline.writing import Growing, open_folder

WEEK_MS = 7 * 86_400_000
FAILURES = (*PROBLEMS, CommitFailedException, ValidationException, pa.ArrowException)
_ROWS = re.compile(r"(part-[0-9a-f-]{36}|optimized)-[0-9a-f-]{36}\.parquet")  # of an ingest's and ours
_MANIFESTS = re.compile(r"[\w-]+\.avro")


def optimize(name: str) -> tuple[int, int, int]:
    """How many files were replaced, by how many, and how many were deleted that nobody needed. Raises FAILURES,
    IngestError, IngestUnusable."""
    table = read_table(name)
    removed = added = 0
    for group in list(_groups(table)):
        _replace(table, group)
        removed, added = removed + len(group), added + 1
    return removed, added, _clear(table)


def _groups(table: Table) -> Iterator[list[FileScanTask]]:
    """Small files of the same partition."""
    found: defaultdict[Record, list[FileScanTask]] = defaultdict(list)
    for task in table.scan().plan_files():
        file = task.file
        ours = file.file_format == FileFormat.PARQUET and file.spec_id == table.spec().spec_id
        if file.record_count > 0 and ours and not task.delete_files:
            found[file.partition].append(task)
    for tasks in found.values():
        yield from in_groups(tasks, lambda task: task.file.file_size_in_bytes)


def _replace(table: Table, group: Sequence[FileScanTask]) -> None:
    seen = table.current_snapshot()
    made = _together(table, group)
    for attempt in range(ATTEMPTS):
        try:
            transaction = once(table)
            with transaction.update_snapshot().overwrite() as change:
                _evaluate_by_manifest(change)
                for task in group:
                    change.delete_data_file(task.file)
                change.append_data_file(made)
            transaction.commit_transaction()
            return
        except CommitFailedException:
            table.refresh()
            if attempt == ATTEMPTS - 1 or not _only_added(table, seen):
                raise


def _evaluate_by_manifest(change: Any) -> None:
    """pyiceberg evaluates manifests in threads that share one evaluator, which keeps the manifest it looks at: a thread
    then passes over a manifest and misses the files to delete."""
    build = change._build_manifest_evaluator  # noqa: SLF001
    change._build_manifest_evaluator = lambda spec: lambda manifest: build(spec)(manifest)  # noqa: SLF001


def _together(table: Table, group: Sequence[FileScanTask]) -> DataFile:
    """A file with the rows of these, on disk."""
    data, name = f"{table.location()}/data", f"optimized-{uuid.uuid4()}.parquet"
    system, folder = open_folder(data)
    growing = Growing(system, folder, name, ())
    schema: pa.Schema | None = None
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for task in group:
        for batch in scan.to_record_batches([task]):
            schema = schema or batch.schema
            growing.add(pa.Table.from_batches([batch]).cast(schema))
    rows = growing.finish().rows
    if isinstance(system, fs.LocalFileSystem):
        sync(folder)
    made = parquet_file_to_data_file(table.io, table.metadata, f"{data}/{name}")
    if rows != sum(task.file.record_count for task in group) or made.partition != group[0].file.partition:
        raise ValueError(f"{name} has other rows than the {len(group)} files that it is made of")
    return made


def _only_added(table: Table, since: Snapshot | None) -> bool:
    """Has all that was committed since this snapshot added files, as ingests do? Then those before are as they were."""
    later = table.current_snapshot()
    while later is not None and later != since:
        if later.summary is None or later.summary.operation != Operation.APPEND:
            return False
        later = None if later.parent_snapshot_id is None else table.snapshot_by_id(later.parent_snapshot_id)
    return later is not None


def _clear(table: Table) -> int:
    """Forgets snapshots of more than a week ago, and deletes the files that are as old and in no snapshot."""
    if table.properties.get("gc.enabled") == "false":
        return 0
    age = max(WEEK_MS, int(table.properties.get("history.expire.max-snapshot-age-ms", WEEK_MS)))
    until = datetime.datetime.fromtimestamp(time.time() - age / 1000, datetime.UTC)
    named = {reference.snapshot_id for reference in table.refs().values()}
    if any(one.timestamp_ms < until.timestamp() * 1000 and one.snapshot_id not in named for one in table.snapshots()):
        with contextlib.suppress(CommitFailedException):  # an ingest was faster: next time
            table.maintenance.expire_snapshots().older_than(until).commit()
    table.refresh()
    lists = {snapshot.manifest_list for snapshot in table.snapshots()}
    manifests = {one.manifest_path: one for snapshot in table.snapshots() for one in snapshot.manifests(table.io)}
    files = {entry.data_file.file_path for one in manifests.values() for entry in one.fetch_manifest_entry(table.io)}
    needed = {path.rpartition("/")[2] for path in (*lists, *manifests, *files)}
    deleted = 0
    for folder, pattern in (("data", _ROWS), ("metadata", _MANIFESTS)):
        system, path = open_folder(f"{table.location()}/{folder}")
        for file in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if pattern.fullmatch(file.base_name) and file.base_name not in needed and file.mtime < until:
                system.delete_file(file.path)
                deleted += 1
    return deleted
