"""The audit of captures, in this process or in Spark's tasks.

    result = run(["a.pcap", "b.pcap"])              # in this process
    result = run(paths, spark=spark_session(master))      # in Spark's tasks

What the result says, and when, is in result. With Spark, stages says which task does what; merge puts together what
they have found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ordack.audit import stages
from ordack.audit.merge import Merged
from ordack.audit.partial import Partial
from ordack.audit.replay import BATCH_ROWS, COLUMNS, start_of
from ordack.audit.result import Result, count_text
from ordack.capture import columnar
from ordack.config.machine import is_local
from ordack.config.paths import each, size_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_NAMED = 3  # in a complaint
SHARE_BYTES = 128 << 20  # at least, which take 0.3 s; a task takes a tenth of a second to start
FEW_SHARES = 8  # below, one task is faster
SHARES_MAX = 512  # each range of a file hands something to each share

Progress = Callable[[int], None]


class CaptureUnusable(Exception):
    """Nothing of the input can be audited; the text names the file and says why."""


def run(
    paths: Sequence[str | Path],
    *,
    spark: SparkSession | None = None,
    parts: int | None = None,
    range_bytes: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Audit files that are one capture together.

    spark: its tasks do it, if it is divided; else this process does. parts: into how many shares the connections are
    divided; by default `shares` says it, without Spark 1.
    range_bytes: of a file that one
    task reads; by default so many that each place has some, and 128 MiB at most. progress: called with numbers of
    packets as this process has done them.
    Raises CaptureUnusable, and OSError for a file that cannot be read.
    """
    files = columnar.in_order(paths)
    if not files:
        raise CaptureUnusable("there is no capture")
    start = start_of(files)
    size = sum(each(size_of, files))
    if parts is None:
        parts = 1 if spark is None else shares(size, _places(spark))
    if parts > 1:
        with stages.Stages(files, start, parts, range_bytes, spark, progress) as staged:
            result = result_of(files, staged.partials(), staged.again)
            return replace(result, bytes_read=staged.bytes_read)
    return replace(result_of(files, [stages.whole(files, start, progress)]), bytes_read=size)


def shares(size: int, places: int | None) -> int:
    """Into how many shares an audit of so many bytes is divided: 128 MiB at least for each, and no more than there are
    places for tasks; 1 if that is less than 8, because one process is faster then. places: None if nobody knows."""
    parts = min(places or SHARES_MAX, SHARES_MAX, size // SHARE_BYTES)
    return parts if parts >= FEW_SHARES else 1


def _problem(path: str) -> str:
    """Why there is nothing to look at in this file."""
    decoder = columnar.Decoder([path], 0, 1, False)
    for _ in columnar.read_on(decoder, BATCH_ROWS, COLUMNS, finish=True):
        pass
    why = [damage.text for damage in decoder.damages]
    if decoder.unread:
        why.append(
            f"{count_text(decoder.unread, 'frame')} of a link type that is not supported, in tunnels, "
            "in fragments of IP, or cut off in their headers (capture with tcpdump -s 0)"
        )
    if read := decoder.frames - decoder.unread:
        of = "the other" if decoder.unread else "its"
        why.append(f"none of {of} {count_text(read, 'frame')} is of TCP port 1801")
    return f"{path}: {'; '.join(why) or 'there is no frame in it'}"


def require_packets(result: Result) -> None:
    """Raises CaptureUnusable if there was no packet of the protocol, so that nothing could be judged."""
    if result.summary["packets"]:
        return
    files = ", ".join(result.paths[:FILES_NAMED])
    if len(result.paths) > FILES_NAMED:
        files += f" and {len(result.paths) - FILES_NAMED:,} more"
    summary = result.summary
    seen = (
        f"{count_text(summary['connections'], 'connection')} to TCP port 1801, "
        f"{count_text(summary['foreign_connections'], 'connection')} of another protocol, "
        f"{count_text(summary['malformed'], 'malformed packet')}, {count_text(summary['holes'], 'hole')}"
    )
    damages = "".join(f"; {path}: {text}" for path, text in result.damages)
    raise CaptureUnusable(f"there was nothing to judge: no packet of the protocol in {files} ({seen}){damages}")


def result_of(
    paths: Sequence[str],
    partials: Sequence[Partial],
    again: Callable[[set[int]], Partial] | None = None,
) -> Result:
    """What all tasks together say of the files.

    again: replays the connections of these pairs of hosts once more, all in one place, for streams of which several
    tasks know something; not needed for one task. Raises CaptureUnusable.
    """
    if not any(partial.frames for partial in partials):
        raise CaptureUnusable("; ".join(map(_problem, paths)) or "there is no capture")
    merged = Merged(paths, partials)
    if merged.split.any() and again is not None:
        merged.settle(again(merged.wanted()))
    return merged.result()


def _places(spark: SparkSession) -> int | None:
    """A cluster does not know: its executors may not have registered yet, and more of them may come."""
    if not is_local(spark.sparkContext.master or "local"):
        return None
    return spark.sparkContext.defaultParallelism
