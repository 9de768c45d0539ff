"""An audit's result as files for other programs, and as text for people.

`save` writes into a folder: summary.json; violations.json, a line each; and every table of rows as Parquet.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ordack.audit import rows
from ordack.audit.result import Result, StreamKey, Violation, count_text, kinds_text
from ordack.broker.peer_names import PeerNames
from ordack.text import legible


def save(result: Result, folder: Path) -> None:
    """Write everything; a file is replaced as a whole. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "summary.json", lambda path: path.write_text(json.dumps(result.summary, indent=2) + "\n"))
    write_whole(
        folder / "violations.json",
        lambda path: path.write_text(
            "".join(json.dumps(legible_finding(result, item)) + "\n" for item in result.violations)
        ),
    )
    for name in rows.TABLES:
        write_whole(folder / f"{name}.parquet", partial(_write_parquet, name, result))


def _write_parquet(name: str, result: Result, path: Path) -> None:
    with pq.ParquetWriter(path, rows.TABLES[name].schema) as file:
        for batch in rows.batches(name, result):
            file.write_batch(batch)


STREAMS_SHOWN = 20  # as text
_OPEN = "/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file at another path in the same folder, then put it at `path`, whole or not at all; where it
    leads, if it is a link. A pipe, a device, and whatever is open as /dev/stdout, get what is written as it comes.
    Raises OSError.
    """
    if any(map(path.is_relative_to, _OPEN)) or (path.exists() and not path.is_file() and not path.is_dir()):
        write(path)
        return
    path = path.resolve()
    descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(descriptor)
    try:
        write(Path(aside))
        umask = os.umask(0)
        os.umask(umask)
        Path(aside).chmod(0o666 & ~umask)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def time_text(time: int) -> str:
    """Microseconds since 1970 as UTC."""
    return datetime.fromtimestamp(time // 10**6, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{time % 10**6:06d}"


def legible_finding(result: Result, item: Violation) -> dict[str, Any]:
    """A violation for JSON: times as text."""
    found = rows.finding(result, item)
    for packet in found["packets"]:
        packet["time"] = time_text(packet["time"]) + "Z"
    return found


def text_of(result: Result, violations_max: int = 20) -> list[str]:
    """For people: lines; the last one is the verdict."""
    summary = result.summary
    said = {
        name: count_text(summary[name], name.removesuffix("s"))
        for name in ("packets", "connections", "holes", "messages", "sequences", "streams", "resends", "rejects")
    }
    lines = [
        "{packets} on {connections}; {holes}".format_map(said) + f", {summary['malformed']:,} malformed",
        *(foreign_text(summary),) * (summary["foreign_connections"] > 0),
        "{messages} in {sequences} of {streams}: {resends}, {rejects}".format_map(said)
        + f", {summary['unsettled']:,} unsettled",
    ]
    for kind, value in result.latency.items():
        if value.count:
            lines.append(
                f"{kind} acknowledgement after ms: p50 {value.p50:g}, p90 {value.p90:g}, p99 {value.p99:g}, "
                f"max {value.max:g} ({count_text(value.count, 'message')})"
            )
    lines += [f"{path}: {text}" for path, text in result.damages]
    total = sum(summary["violations"].values())
    for item in result.violations[:violations_max]:
        row = rows.finding(result, item)
        where = row["connection"] if item.stream is None else stream_text(item.stream, result.names)
        lines.append(f"{row['kind']}: {row['text']} [{row['rule']}]; {where}")
        lines += [
            f"    {packet['file']} frame {packet['frame']}, {time_text(packet['time'])}" for packet in row["packets"]
        ]
    if total > violations_max:
        lines.append(f"{count_text(total - violations_max, 'more violation')}: --out and --html have them")
    unknown = sum(summary["unknown"].values())
    if unknown:
        lines.append(
            f"{count_text(unknown, 'verdict')} unknown, because something is missing in the capture: "
            + kinds_text(summary["unknown"])
        )
    lines.append(result.verdict.text)
    return lines


def foreign_text(summary: dict[str, Any]) -> str:
    """The connections that do not count."""
    return f"{count_text(summary['foreign_connections'], 'other connection')} never spoke the protocol"


def stream_text(stream: StreamKey, names: PeerNames) -> str:
    """Source and destination of a stream."""
    return names.added(f"{legible(stream.source_queue_manager)} to {legible(stream.destination_queue)}")


def streams_text(result: Result) -> list[str]:
    """A table of the streams with most trouble. A stream's name has a line of its own: it is as wide as a terminal."""
    headings = ("messages", "resends", "rejects", "unsettled", "order p99 ms", "violations", "unknown")
    lines = ["  ".join(headings)]
    for report in result.worst[:STREAMS_SHOWN]:
        order = report.latency["order"]
        figures = (
            str(report.messages),
            str(report.resends),
            str(sum(report.rejects.values())),
            str(report.unsettled),
            f"{order.p99:g}" if order.count else "",
            *(str(sum(counts.values())) for counts in (report.violations, report.unknowns)),
        )
        lines += [
            stream_text(report.stream, result.names),
            "  ".join(figure.rjust(len(heading)) for figure, heading in zip(figures, headings, strict=True)),
        ]
    return [*lines, ""]
