"""The audit of captures, in this process or in Spark tasks.

    result = run(["a.pcap", "b.pcap"])              # in this process
    result = run(paths, spark=spark_session(master))      # in Spark tasks

Module result defines the findings. Module stages divides the work among Spark tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ordack.audit.replay import BATCH_ROWS, COLUMNS, Auditor, start_of
from ordack.audit.reports import Partial, finding
from ordack.audit.result import KINDS, AuditResult, StreamReport, Unknown, Violation, count_text
from ordack.capture import columnar
from ordack.config.paths import is_local, total_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_NAMED = 3  # in an error message
SHARE_BYTES = 128 << 20  # least, 0.3 s of work; a task takes 0.1 s to start
FEW_SHARES = 8  # with fewer, one task is faster
SHARES_MAX = 512  # each file has output for each share
WORST_MAX = 1000

Progress = Callable[[int], None]


class CaptureUnusable(Exception):
    """The input has nothing to audit. The text names the file and the reason."""


def run(
    paths: Sequence[str | Path],
    *,
    spark: SparkSession | None = None,
    parts: int | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Audit files that form one capture.

    spark: run in Spark tasks if the audit is divided, else in this process. parts: number of shares of the connections;
    `shares` computes the default. progress: called with numbers of packets done in this process. Raises
    CaptureUnusable, and OSError if a file cannot be read.
    """
    files = columnar.in_order(paths)
    if not files:
        raise CaptureUnusable("there is no capture")
    start = start_of(files)
    if spark is not None:
        parts = parts or shares(total_size(files), _places(spark))
        if parts > 1:
            from ordack.audit import stages

            return result_of(files, stages.partials(spark, files, start, parts))
    auditor = Auditor(start)
    auditor.take(columnar.batches(files, rows=BATCH_ROWS, columns=COLUMNS, ordered=True), progress)
    return result_of(files, [auditor.partial()])


def shares(size: int, places: int | None) -> int:
    """Return the number of shares for `size` bytes: at least 128 MiB each, and at most one for each place of a task.
    Below 8 shares return 1, because one process is faster. places: None if unknown."""
    parts = min(places or SHARES_MAX, SHARES_MAX, size // SHARE_BYTES)
    return parts if parts >= FEW_SHARES else 1


def _problem(path: str) -> str:
    """Explain why a file has nothing to audit."""
    decoder = columnar.Decoder([path])
    for _ in decoder.batches(BATCH_ROWS, COLUMNS):
        pass
    why = [damage.text for damage in decoder.damages]
    if decoder.unread:
        why.append(
            f"{count_text(decoder.unread, 'frame')} of a link type that is not supported, in tunnels, "
            "in fragments of IP, or cut off in their headers (capture with tcpdump -s 0)"
        )
    if read := decoder.frames - decoder.unread:
        of = "the other" if decoder.unread else "its"
        why.append(
            f"none of {of} {count_text(read, 'frame')} is of TCP port 1801 (`serve --capture` records any port as 1801)"
        )
    return f"{path}: {'; '.join(why) or 'there is no frame in it'}"


def require_packets(result: AuditResult) -> None:
    """Raise CaptureUnusable if the capture has no packet of the protocol, because then nothing was judged."""
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


def result_of(paths: Sequence[str], partials: Sequence[Partial]) -> AuditResult:
    """Merge the results of all tasks. Raises CaptureUnusable."""
    if not any(partial.frames for partial in partials):
        raise CaptureUnusable("; ".join(map(_problem, paths)) or "there is no capture")
    base = np.cumsum([0] + [len(partial.connections) for partial in partials]).tolist()
    found: list[Violation | Unknown] = []
    connections: dict[int, tuple[str, str]] = {}
    for partial, first in zip(partials, base):
        for row in partial.findings:
            found.append(finding(partial, row, first + int(row["connection"])))
            connections[found[-1].connection] = partial.ends_of(int(row["connection"]))
    found.sort(key=lambda item: (isinstance(item, Unknown), item.packets[-1].time if item.packets else 0))
    streams = sorted((report for partial in partials for report in partial.reports()), key=lambda one: one.stream)
    # Each task knows all files. A task without rows reports no gaps.
    gaps = max((partial.gaps for partial in partials), key=len)
    result = AuditResult(
        summary=_summary(partials, streams),
        paths=list(paths),
        damages=[],
        violations=[item for item in found if isinstance(item, Violation)],
        unknowns=[item for item in found if isinstance(item, Unknown)],
        streams=streams,
        worst=sorted(streams, key=_trouble, reverse=True)[:WORST_MAX],
        connections=connections,
    )
    result.summary["holes"] += len(gaps)
    damages = max((partial.damages for partial in partials), key=len)
    result.add_damages(damages)
    result.add_damages(gaps)
    return result


def _trouble(report: StreamReport) -> tuple[int, ...]:
    return sum(report.violations.values()), sum(report.unknowns.values()), report.resends


def _summary(partials: Sequence[Partial], streams: Sequence[StreamReport]) -> dict[str, Any]:
    """Build the summary without the fields of AuditResult.add_damages."""
    counts = np.sum([partial.kind_counts for partial in partials], axis=0)
    violations, unknowns = (Counter(dict(zip(KINDS, of_kinds))) for of_kinds in counts.tolist())
    total = Counter[str]()
    for report in streams:
        violations.update(report.violations)
        unknowns.update(report.unknowns)
        for name in ("messages", "resends", "unsettled"):
            total[name] += getattr(report, name)
        total["sequences"] += report.sequence_count
        total["rejects"] += sum(report.rejects.values())
    sums = {
        name: sum(getattr(partial, name) for partial in partials)
        for name in ("packets", "holes", "malformed", "foreign")
    }
    return {
        "packets": sums["packets"],
        "connections": sum(len(partial.connections) for partial in partials) - sums["foreign"],
        "foreign_connections": sums["foreign"],
        "streams": len(streams),
        "sequences": total["sequences"],
        "messages": total["messages"],
        "resends": total["resends"],
        "rejects": total["rejects"],
        "settled": total["messages"] - total["unsettled"],
        "unsettled": total["unsettled"],
        "holes": sums["holes"],
        "malformed": sums["malformed"],
        "unsupported_frames": max(partial.unread for partial in partials),
        "violations": dict(violations),
        "unknown": dict(unknowns),
    }


def _places(spark: SparkSession) -> int | None:
    """Return None for a cluster: executors may register later."""
    if not is_local(spark.sparkContext.master or "local"):
        return None
    return spark.sparkContext.defaultParallelism
