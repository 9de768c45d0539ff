"""Write an audit's result as files for programs and as text for people.

`save` writes summary.json, violations.json (one line a violation) and the Parquet tables of SCHEMAS. Times are in
microseconds, durations in milliseconds. Texts are made legible because names of queues come from the network.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ordack.audit import result as results
from ordack.config.names import PeerNames, legible

Row = dict[str, Any]

_TIME = pa.timestamp("us", "UTC")
_COUNTS = pa.map_(pa.string(), pa.int64())
_PACKETS = pa.list_(pa.struct([("file", pa.string()), ("frame", pa.int64()), ("time", _TIME)]))
_TYPES = {
    **dict.fromkeys(("kind", "connection", "text", "rule", "source_queue_manager", "destination_queue"), pa.string()),
    **dict.fromkeys(("first_time", "last_time"), _TIME),
    "packets": _PACKETS,
}
_STREAM = "source_queue_manager destination_queue hops tx_sequence_ordinal tx_sequence_time_stamp"
_MESSAGES = "messages resends order_acked final_acked unsettled"
_MAPS = ("rejects", "violations", "unknowns", "final_acks")


def _schema(names: str, maps: tuple[str, ...] = ()) -> pa.Schema:
    return pa.schema([(name, _COUNTS if name in maps else _TYPES.get(name, pa.int64())) for name in names.split()])


SCHEMAS = {
    "violations": _schema(f"kind {_STREAM} number connection text rule packets"),
    "unknown": _schema(f"kind {_STREAM} number connection text rule packets"),
    "streams": _schema(
        f"{_STREAM} sequences connections {_MESSAGES} holes {' '.join(_MAPS)} first_time last_time", _MAPS
    ),
    "sequences": _schema(f"{_STREAM} {_MESSAGES} highest acknowledged rejects first_time last_time", _MAPS),
}
_BATCH_ROWS = 16384


def table(name: str, result: results.AuditResult) -> Iterator[Row]:
    """Yield the rows of one table of SCHEMAS."""
    match name:
        case "violations" | "unknown":
            found = result.violations if name == "violations" else result.unknowns
            return (finding(result, item) for item in found)
        case "streams":
            return map(_stream, result.streams)
        case _:
            return (row for report in result.streams for row in _sequences(report))


def finding(result: results.AuditResult, item: results.Violation | results.Unknown) -> Row:
    """Return a violation or an unknown verdict as a row. An unknown verdict's `text` names what may be missing."""
    text, rule = (item.text, item.rule) if isinstance(item, results.Violation) else (item.reason, "")
    return {
        "kind": item.kind,
        **_named(item.stream, item.sequence),
        "number": item.number,
        "connection": " > ".join(result.connections[item.connection]),
        "text": text,
        "rule": rule,
        "packets": [
            {"file": legible(result.paths[packet.file]), "frame": packet.frame, "time": packet.time // 1000}
            for packet in item.packets
        ],
    }


def _stream(report: results.StreamReport) -> Row:
    """Return a stream's row, with sums over its sequences."""
    return {**_counts(report, "streams"), **_named(report.stream, report.sequence), "sequences": report.sequence_count}


def _sequences(report: results.StreamReport) -> Iterator[Row]:
    """Yield the rows of a stream's sequences that are kept in detail."""
    for sequence in report.sequences:
        yield {**_counts(sequence, "sequences"), **_named(report.stream, sequence.sequence)}


def _counts(report: Any, name: str) -> Row:
    """Return the columns of table `name` that the report has as attributes."""
    row: Row = {field.name: getattr(report, field.name, None) for field in SCHEMAS[name]}
    return row | {time: row[time] // 1000 for time in ("first_time", "last_time")}


def _named(stream: results.StreamKey | None, sequence: results.SequenceId | None) -> Row:
    key = dict.fromkeys(results.StreamKey._fields) if stream is None else stream._asdict()
    if stream is not None:
        key["destination_queue"] = legible(stream.destination_queue)
    return {
        **key,
        "tx_sequence_ordinal": None if sequence is None else sequence.ordinal,
        "tx_sequence_time_stamp": None if sequence is None else sequence.time_stamp,
    }


def save(result: results.AuditResult, folder: Path) -> None:
    """Write all files. Each file is replaced atomically. Raises OSError."""

    def write_table(name: str, path: Path) -> None:
        with pq.ParquetWriter(path, SCHEMAS[name]) as file:
            for rows in _batched(table(name, result)):
                file.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMAS[name]))

    folder.mkdir(parents=True, exist_ok=True)
    violations = "".join(json.dumps(_legible_finding(result, item)) + "\n" for item in result.violations)
    write_whole(folder / "summary.json", lambda path: path.write_text(json.dumps(result.summary, indent=2) + "\n"))
    write_whole(folder / "violations.json", lambda path: path.write_text(violations))
    for name in SCHEMAS:
        write_whole(folder / f"{name}.parquet", partial(write_table, name))


def _batched(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := list(islice(rows, _BATCH_ROWS)):
        yield chunk


STREAMS_SHOWN = 20  # in text
_OPEN = "/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` write a temporary file in the same folder, then atomically rename it to `path`, or to the target of
    a link. A pipe, a device or an open descriptor (/dev/stdout) is written directly. Raises OSError."""
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
    """Format microseconds since 1970 as UTC."""
    return datetime.fromtimestamp(time // 10**6, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{time % 10**6:06d}"


def _legible_finding(result: results.AuditResult, item: results.Violation) -> dict[str, Any]:
    """Return a violation for JSON, with times as text."""
    found = finding(result, item)
    for packet in found["packets"]:
        packet["time"] = time_text(packet["time"]) + "Z"
    return found


def text_of(result: results.AuditResult, violations_max: int = 20) -> list[str]:
    """Return the report's lines for people. The last line is the verdict."""
    summary = result.summary
    said = {
        name: results.count_text(summary[name], name.removesuffix("s"))
        for name in ("packets", "connections", "holes", "messages", "sequences", "streams", "resends", "rejects")
    }
    lines = [
        "{packets} on {connections}; {holes}".format_map(said) + f", {summary['malformed']:,} malformed",
        *(foreign_text(summary),) * (summary["foreign_connections"] > 0),
        "{messages} in {sequences} of {streams}: {resends}, {rejects}".format_map(said)
        + f", {summary['unsettled']:,} unsettled",
    ]
    lines += [f"{path}: {text}" for path, text in result.damages]
    total = sum(summary["violations"].values())
    for item in result.violations[:violations_max]:
        row = finding(result, item)
        where = row["connection"] if item.stream is None else stream_text(item.stream, result.names)
        lines.append(f"{row['kind']}: {row['text']} [{row['rule']}]; {where}")
        lines += [
            f"    {packet['file']} frame {packet['frame']}, {time_text(packet['time'])}" for packet in row["packets"]
        ]
    if total > violations_max:
        lines.append(f"{results.count_text(total - violations_max, 'more violation')}: --out and --html have them")
    unknown = sum(summary["unknown"].values())
    if unknown:
        lines.append(
            f"{results.count_text(unknown, 'verdict')} unknown, because something is missing in the capture: "
            + results.kinds_text(summary["unknown"])
        )
    lines.append(result.verdict.text)
    return lines


def foreign_text(summary: dict[str, Any]) -> str:
    """Describe the connections of other protocols, which do not count."""
    return f"{results.count_text(summary['foreign_connections'], 'other connection')} never spoke the protocol"


def stream_text(stream: results.StreamKey, names: PeerNames) -> str:
    """Name the source and the destination of a stream."""
    return names.added(f"{legible(stream.source_queue_manager)} to {legible(stream.destination_queue)}")


def streams_text(result: results.AuditResult) -> list[str]:
    """Format the worst streams as a table. A stream's name has its own line because it can fill a terminal's width."""
    headings = ("messages", "resends", "rejects", "unsettled", "violations", "unknown")
    lines = ["  ".join(headings)]
    for report in result.worst[:STREAMS_SHOWN]:
        figures = (
            str(report.messages),
            str(report.resends),
            str(sum(report.rejects.values())),
            str(report.unsettled),
            *(str(sum(counts.values())) for counts in (report.violations, report.unknowns)),
        )
        lines += [
            stream_text(report.stream, result.names),
            "  ".join(figure.rjust(len(heading)) for figure, heading in zip(figures, headings, strict=True)),
        ]
    return [*lines, ""]
