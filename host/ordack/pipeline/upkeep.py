"""Upkeep of what `ordack export` and `ordack pipeline ingest` leave: small files of tables, and segments that are read.

A segment may be deleted when it is in every table that is to have it, the oldest of its queue first. The newest of each
queue stays, for an export that was killed looks for it. Neither needs Spark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ordack.config.paths import AnyPath, scheme_of
from ordack.pipeline.delta import read_serials
from ordack.pipeline.delta_files import checkpoint, open_table, uri_of
from ordack.pipeline.folders import Folders, Found, Place, Serials
from ordack.pipeline.ingest import DELTA, ICEBERG, format_of
from ordack.pipeline.lake import first_line
from ordack.pipeline.options import OptionError
from ordack.pipeline.progress import IngestError, IngestUnusable

DAY_S = 86_400
WEEK_H = 7 * 24


class Optimized(NamedTuple):
    """What was done to a table: files that were replaced by larger ones, those, and files that nobody needed."""

    table: str
    files_removed: int
    files_added: int
    files_deleted: int


def optimize(table: str) -> Optimized:
    """Put small files of a table of Delta Lake or Iceberg together, and delete files that have not belonged to it for a
    week, those of killed batches, too. Ingests may go on meanwhile. Raises IngestError, IngestUnusable, OptionError."""
    from ordack.pipeline import compaction, delta_files, iceberg

    kind = format_of(table)
    try:
        if kind == ICEBERG or iceberg.is_name(table):
            return Optimized(table, *compaction.optimize(table))
        if not DeltaTable.is_deltatable(uri_of(table)):
            raise IngestUnusable(f"there is no table of Delta Lake or Iceberg in {table}")
        opened = open_table(table)
        removed, added = delta_files.compact(opened, table)
        deleted = _clear(opened)
        checkpoint(opened, table)
        opened.cleanup_metadata()
    except (DeltaError, *compaction.FAILURES) as error:
        raise IngestError(f"cannot optimize {table}: {first_line(error)}; what is in it is whole") from None
    return Optimized(table, removed, added, deleted)


def _clear(table: DeltaTable) -> int:
    """Deletes what has not belonged to the table for a week, or as long as that says if it is longer: what an ingest is
    about to commit is younger."""
    try:
        return len(table.vacuum(WEEK_H, dry_run=False, full=True))
    except DeltaError as error:
        if "minimum retention" not in str(error):
            raise
        return len(table.vacuum(dry_run=False, full=True))


class Pruned(NamedTuple):
    """Segments of a folder: deleted, and how many stay, because they are not in every table, not old enough, or the
    newest of their queue."""

    folder: str
    segments: int
    bytes: int
    missing_in_table: int
    too_new: int
    newest: int


def prune(source: Folders, tables: Sequence[str], days: float, dry: bool = False) -> list[Pruned]:
    """Delete segments that are in all these tables and became visible so many days ago. dry: only say which. Raises
    FolderError, IngestError, IngestUnusable, OptionError."""
    if not tables:
        raise OptionError("say which tables have the messages (--in): only what is in all of them is deleted")
    read = [serials(table) for table in tables]
    newest = source.last()
    found = source.listed({})
    if not dry:
        os.sync()  # what the tables have is on disk, whoever wrote it
    done = []
    for path in source.now():
        there = [one for one in found if one.segment.path.parent == path]
        done.append(_prune(path, there, read, newest, time.time() - days * DAY_S, dry))
    return done


def _prune(
    folder: AnyPath, found: Sequence[Found], read: Sequence[Serials], newest: Serials, until: float, dry: bool
) -> Pruned:
    deleted = size = missing = young = last = 0
    kept: set[Place] = set()  # queues of which an older one stays
    for one in found:
        status = one.segment.path.stat()
        if any(one.serial > serials.get(one.place, 0) for serials in read):
            missing += 1
        elif one.serial == newest[one.place]:
            last += 1
        elif one.place in kept or status.st_ctime > until:
            young += 1
            kept.add(one.place)
        else:
            deleted, size = deleted + 1, size + status.st_size
            if not dry:
                one.segment.path.unlink()
    return Pruned(str(folder), deleted, size, missing, young, last)


def serials(table: str) -> Serials:
    """The last segment of each queue that is in a table, of whatever format. Raises IngestError, IngestUnusable."""
    kind = format_of(table)
    if kind == DELTA or (kind is None and scheme_of(table)):
        return read_serials(table)
    from ordack.pipeline.iceberg import is_name, read_table, serials_in

    if kind == ICEBERG or is_name(table):
        return serials_in(read_table(table))[0]
    raise IngestUnusable(f"there is no table in {table}")
