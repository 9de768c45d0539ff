"""Deletes segments that were loaded.

A segment may be deleted when every table that needs it has it, the oldest of its queue first. The newest segment of
each queue stays: the export that follows a killed one needs it.
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
        os.sync()  # the rows of the tables are durable
    done = []
    for path in source.now():
        there = [one for one in found if one.segment.path.parent == path]
        done.append(_prune(path, there, read, newest, time.time() - days * DAY_S, dry))
    return done


def _prune(
    folder: AnyPath, found: Sequence[FoundSegment], read: Sequence[Serials], newest: Serials, until: float, dry: bool
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
