"""The audit of captures, in this process or in Spark's tasks.

    result = run(["a.pcap", "b.pcap"])              # in this process
    result = run(paths, spark=session(master))      # in Spark's tasks

What the result says, and when, is in result. With Spark, a task takes the connections of a share of the hosts,
opens the files itself, and returns what it has found out; merge puts that together.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial as partial_function
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ordack.audit.merge import Merged
from ordack.audit.partial import Partial
from ordack.audit.replay import BATCH_ROWS, COLUMNS, Auditor, Wanted, start_of
from ordack.audit.result import Result, count_text
from ordack.audit.series import series_of
from ordack.capture import columnar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_NAMED = 3  # in a complaint

Progress = Callable[[int], None]


class CaptureUnusable(Exception):
    """Nothing of the input can be audited; the text names the file and says why."""


def audit_part(
    paths: Sequence[str],
    start: int,
    part: int = 0,
    parts: int = 1,
    by_ports: bool = False,
    wanted: Wanted | None = None,
    progress: Progress | None = None,
) -> Partial:
    """One task's share. paths: in their order. progress: called with the packets of each batch."""
    auditor = Auditor(start, parts > 1, wanted)
    for batch in columnar.batches(paths, part, parts, BATCH_ROWS, COLUMNS, by_ports=by_ports, ordered=True):
        auditor.feed(batch)
        if progress is not None:
            progress(batch.rows)
    return auditor.partial()


def run(
    paths: Sequence[str | Path],
    *,
    spark: SparkSession | None = None,
    parts: int | None = None,
    series: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Audit files that are one capture together.

    spark: its tasks do it; None: this process does. parts: into how many shares the hosts are divided; by default as
    many as Spark has places, and one without Spark. series: points for plots of the streams with most trouble, which
    takes another pass. progress: called with numbers of packets as this process has done them. Raises
    CaptureUnusable, and OSError for a file that cannot be read.
    """
    files = columnar.in_order(paths)
    if not files:
        raise CaptureUnusable("there is no capture")
    start = start_of(files)
    parts = parts or (1 if spark is None else _places(spark))
    by_ports = columnar.divides_by_ports(files, parts)
    if spark is None:
        partials = [audit_part(files, start, part, parts, by_ports, progress=progress) for part in range(parts)]
    else:
        partials = _in_tasks(spark, files, start, parts, by_ports)
    result = result_of(files, partials, lambda wanted: audit_part(files, start, wanted=wanted, progress=progress))
    if series:
        result.series.extend(series_of(files, result))
    return result


def _problem(path: str) -> str:
    """Why there is nothing to look at in this file."""
    decoder = columnar.Decoder([path], 0, 1, False)
    for _ in columnar.read_on(decoder, BATCH_ROWS, COLUMNS, finish=True):
        pass
    why = [damage.text for damage in decoder.damages]
    if decoder.unread:
        why.append(f"{count_text(decoder.unread, 'frame')} of a link type that is not supported")
    if decoder.frames:
        why.append(f"none of its {count_text(decoder.frames, 'frame')} is of TCP port 1801")
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
        f"{count_text(summary['malformed'], 'malformed packet')}, {count_text(summary['holes'], 'hole')}"
    )
    damages = "".join(f"; {path}: {text}" for path, text in result.damages)
    raise CaptureUnusable(f"there was nothing to judge: no packet of the protocol in {files} ({seen}){damages}")


def result_of(
    paths: Sequence[str], partials: Sequence[Partial], again: Callable[[Wanted], Partial] | None = None
) -> Result:
    """What all tasks together say of the files.

    again: reads the wanted connections once more, all in one place, for streams of which several tasks know
    something; not needed for one task. Raises CaptureUnusable.
    """
    if not any(partial.frames for partial in partials):
        raise CaptureUnusable("; ".join(map(_problem, paths)) or "there is no capture")
    merged = Merged(paths, partials)
    if merged.split and again is not None:
        merged.settle(again(merged.wanted()))
    return merged.result()


def _places(spark: SparkSession) -> int:
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except (AttributeError, NotImplementedError):  # Spark Connect does not tell
        return os.cpu_count() or 1


def _in_tasks(spark: SparkSession, files: list[str], start: int, parts: int, by_ports: bool) -> list[Partial]:
    """One task for each part; only what it has found out comes here."""
    work = partial_function(_task, files, start, parts, by_ports)
    rows = spark.range(0, parts, 1, parts).mapInArrow(work, "id long, size long, packed binary").collect()
    codec = pa.Codec("zstd")
    return [
        pickle.loads(codec.decompress(row["packed"], row["size"], asbytes=True))
        for row in sorted(rows, key=lambda row: row["id"])
    ]


def _task(
    files: list[str], start: int, parts: int, by_ports: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    codec = pa.Codec("zstd", 1)
    for batch in batches:
        for part in batch.column(0).to_pylist():
            data = pickle.dumps(audit_part(files, start, part, parts, by_ports), pickle.HIGHEST_PROTOCOL)
            row = {"id": part, "size": len(data), "packed": codec.compress(data, asbytes=True)}
            yield pa.RecordBatch.from_pylist([row])
