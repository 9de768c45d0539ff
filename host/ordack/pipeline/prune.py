"""Delete segments that all tables have loaded.

The oldest segment of a queue is deleted first. The newest stays, because the export after a kill needs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

from ordack.config.paths import AnyPath, scheme_of
from ordack.pipeline.delta import read_serials
from ordack.pipeline.folders import Folders, FoundSegment, Place, Serials
from ordack.pipeline.lake import DELTA, ICEBERG, IngestUnusable, format_of
from ordack.pipeline.segments import OptionError

DAY_S = 86_400


class Pruned(NamedTuple):
    """Deleted segments of a folder. Remaining ones: missing from a table, too new, or the newest of their queue."""

    folder: str
    segments: int
    bytes: int
    missing_in_table: int
    too_new: int
    newest: int


def prune(source: Folders, tables: Sequence[str], days: float, dry: bool = False) -> list[Pruned]:
    """Delete segments that all tables have and that became visible `days` ago or earlier. dry: only list them. Raises
    FolderError, IngestError, IngestUnusable, OptionError."""
    if not tables:
        raise OptionError("say which tables have the messages (--in): only what is in all of them is deleted")
    read = [serials(table) for table in tables]
    newest = source.last()
    found = source.listed({})
    if not dry:
        os.sync()  # makes the tables' rows durable
    done = []
    for path in source.now():
        there = [one for one in found if one.segment.path.parent == path]
        done.append(_prune(path, there, read, newest, time.time() - days * DAY_S, dry))
    return done


def _prune(
    folder: AnyPath, found: Sequence[FoundSegment], read: Sequence[Serials], newest: Serials, until: float, dry: bool
) -> Pruned:
    deleted = size = missing = young = last = 0
    kept: set[Place] = set()  # queues that keep an older segment
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
    """Return the last loaded segment of each queue in a Delta or Iceberg table. Raises IngestError, IngestUnusable."""
    kind = format_of(table)
    if kind == DELTA or (kind is None and scheme_of(table)):
        return read_serials(table)
    from ordack.pipeline.iceberg import is_name, read_table, serials_in

    if kind == ICEBERG or is_name(table):
        return serials_in(read_table(table))[0]
    raise IngestUnusable(f"there is no table in {table}")
