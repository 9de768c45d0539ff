"""An audit's result as files for other programs, and as text for people.

`save` writes into a folder: summary.json; violations.json, with the packets that show each; streams, sequences,
senders, violations and unknown as Parquet.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ordack.audit.result import Latency, Packet, Result, SequenceId, StreamKey, Unknown, Violation, count_text
from ordack.peer_names import PeerNames
from ordack.store.database import legible

_TIME = pa.timestamp("ns", "UTC")
_COUNTS = pa.map_(pa.string(), pa.int64())
_STREAM = [
    pa.field("source_queue_manager", pa.string()),
    pa.field("destination_queue", pa.string()),
    pa.field("hops", pa.int64()),
]
_SEQUENCE = [pa.field("tx_sequence_ordinal", pa.int64()), pa.field("tx_sequence_time_stamp", pa.int64())]
_NUMBERS = [
    pa.field(name, pa.int64())
    for name in ("messages", "first_transmissions", "resends", "order_acked", "final_acked", "unsettled")
]
_TIMES = [pa.field("first_time", _TIME), pa.field("last_time", _TIME)]
_LATENCY = pa.struct(
    [pa.field("count", pa.int64()), *(pa.field(name, pa.float64()) for name in ("p50", "p90", "p99", "max"))]
)
_LATENCIES = pa.field("latency_ms", pa.map_(pa.string(), _LATENCY))
_PACKETS = pa.list_(pa.struct([pa.field("file", pa.string()), pa.field("frame", pa.int64()), pa.field("time", _TIME)]))
_FINDING = [
    pa.field("kind", pa.string()),
    *_STREAM,
    *_SEQUENCE,
    pa.field("number", pa.int64()),
    pa.field("connection", pa.string()),
    pa.field("text", pa.string()),
    pa.field("rule", pa.string()),
    pa.field("packets", _PACKETS),
]

STREAMS = pa.schema(
    [
        *_STREAM,
        *_SEQUENCE,
        pa.field("sequences", pa.int64()),
        pa.field("connections", pa.int64()),
        *_NUMBERS,
        pa.field("holes", pa.int64()),
        *(pa.field(name, _COUNTS) for name in ("rejects", "violations", "unknowns", "outcomes")),
        *_TIMES,
        _LATENCIES,
    ]
)
SEQUENCES = pa.schema(
    [
        *_STREAM,
        *_SEQUENCE,
        *_NUMBERS,
        pa.field("highest", pa.int64()),
        pa.field("acknowledged", pa.int64()),
        pa.field("rejects", _COUNTS),
        *_TIMES,
    ]
)
SENDERS = pa.schema(
    [
        pa.field("source_queue_manager", pa.string()),
        pa.field("name", pa.string()),
        *(
            pa.field(name, pa.int64())
            for name in ("streams", "messages", "resends", "rejects", "unsettled", "violations", "unknowns")
        ),
        _LATENCIES,
    ]
)
FINDINGS = pa.schema(_FINDING)


def save(result: Result, folder: Path) -> None:
    """Write everything; a file is replaced as a whole. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    violations = [_finding(result, item) for item in result.violations]
    write_whole(folder / "summary.json", lambda path: path.write_text(json.dumps(result.summary, indent=2) + "\n"))
    write_whole(
        folder / "violations.json",
        lambda path: path.write_text(
            "".join(json.dumps(legible_finding(result, item)) + "\n" for item in result.violations)
        ),
    )
    for name, rows, schema in (
        ("streams", _streams(result), STREAMS),
        ("sequences", _sequences(result), SEQUENCES),
        ("senders", _senders(result), SENDERS),
        ("violations", violations, FINDINGS),
        ("unknown", [_finding(result, item) for item in result.unknowns], FINDINGS),
    ):
        write_whole(folder / f"{name}.parquet", partial(pq.write_table, pa.Table.from_pylist(list(rows), schema)))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file at another path in the same folder, then put it at `path`, whole or not at all."""
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


def _named(stream: StreamKey | None, sequence: SequenceId | None) -> dict[str, Any]:
    return {
        **(dict.fromkeys(StreamKey._fields) if stream is None else stream._asdict()),
        "tx_sequence_ordinal": None if sequence is None else sequence.ordinal,
        "tx_sequence_time_stamp": None if sequence is None else sequence.time_stamp,
    }


def _latency(latency: dict[str, Latency]) -> dict[str, Any]:
    return {kind: value.as_json() for kind, value in latency.items()}


def _streams(result: Result) -> Iterable[dict[str, Any]]:
    for report in result.streams:
        yield {
            **_named(report.stream, report.sequence),
            **{field.name: getattr(report, field.name) for field in _NUMBERS},
            "sequences": report.sequence_count,
            "connections": report.connections,
            "holes": report.holes,
            "rejects": report.rejects,
            "violations": report.violations,
            "unknowns": report.unknowns,
            "outcomes": report.outcomes,
            "first_time": report.first_time,
            "last_time": report.last_time,
            "latency_ms": _latency(report.latency),
        }


def _sequences(result: Result) -> Iterable[dict[str, Any]]:
    for report in result.streams:
        for sequence in report.sequences:
            yield {
                **_named(report.stream, sequence.sequence),
                **{field.name: getattr(sequence, field.name) for field in _NUMBERS},
                "highest": sequence.highest,
                "acknowledged": sequence.acknowledged,
                "rejects": sequence.rejects,
                "first_time": sequence.first_time,
                "last_time": sequence.last_time,
            }


def _senders(result: Result) -> Iterable[dict[str, Any]]:
    for report in result.senders:
        yield {
            **{field.name: getattr(report, field.name, None) for field in SENDERS},
            "name": result.names.of(report.source_queue_manager),
            "latency_ms": _latency(report.latency),
        }


def _packets(result: Result, packets: Iterable[Packet]) -> list[dict[str, Any]]:
    return [{"file": result.paths[packet.file], "frame": packet.frame, "time": packet.time} for packet in packets]


def connection_text(result: Result, number: int) -> str:
    """Both ends of a connection."""
    report = result.connections.get(number)
    return " > ".join(report.ends) if report is not None else f"connection {number}"


def _finding(result: Result, item: Violation | Unknown) -> dict[str, Any]:
    text, rule = (item.text, item.rule) if isinstance(item, Violation) else (item.reason, "")
    return {
        "kind": item.kind,
        **_named(item.stream, item.sequence),
        "number": item.number,
        "connection": connection_text(result, item.connection),
        "text": text,
        "rule": rule,
        "packets": _packets(result, item.packets),
    }


def time_text(time: int) -> str:
    """ns since 1970 as UTC, microseconds."""
    return datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{time % 10**9 // 1000:06d}"


def legible_finding(result: Result, item: Violation | Unknown) -> dict[str, Any]:
    """A violation for JSON: times as text."""
    found = _finding(result, item)
    for packet in found["packets"]:
        packet["time"] = time_text(packet["time"]) + "Z"
    return found


def text_of(result: Result, violations_max: int = 20) -> list[str]:
    """For people: lines; the last one is the verdict."""
    summary = result.summary
    said = {
        name: count_text(summary[name], name.removesuffix("s"))
        for name in ("packets", "connections", "holes", "messages", "streams", "resends", "rejects")
    }
    lines = [
        "{packets} on {connections}; {holes}".format_map(said) + f", {summary['malformed']:,} malformed",
        "{messages} in {streams}: {resends}, {rejects}".format_map(said) + f", {summary['unsettled']:,} unsettled",
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
        where = (
            connection_text(result, item.connection) if item.stream is None else stream_text(item.stream, result.names)
        )
        lines.append(f"{item.kind}: {item.text} [{item.rule}]; {where}")
        lines += [
            f"    {result.paths[packet.file]} frame {packet.frame}, {time_text(packet.time)}" for packet in item.packets
        ]
    if total > violations_max:
        lines.append(f"{count_text(total - violations_max, 'more violation')}: --out and --html have them")
    unknown = sum(summary["unknown"].values())
    if unknown:
        lines.append(
            f"{count_text(unknown, 'verdict')} unknown, because something is missing in the capture: "
            + _kinds(summary["unknown"])
        )
    if not summary["packets"]:
        lines.append("nothing to judge: no packet of the protocol")
    else:
        verdict = f"{count_text(total, 'violation')}: {_kinds(summary['violations'])}" if total else "no violations"
        less = f", but the evidence is incomplete: {', '.join(summary['incomplete'])}" if summary["incomplete"] else ""
        lines.append(verdict + (less if not total else ""))
    return lines


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


def stream_text(stream: StreamKey, names: PeerNames) -> str:
    """Source and destination of a stream."""
    return names.added(f"{legible(stream.source_queue_manager)} to {legible(stream.destination_queue)}")


def streams_text(result: Result) -> list[str]:
    """A table of the streams with most trouble. A stream's name has a line of its own: it is as wide as a terminal."""
    headings = ("messages", "resends", "rejects", "unsettled", "order p99 ms", "violations", "unknown")
    lines = ["  ".join(headings)]
    for report in result.worst:
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
