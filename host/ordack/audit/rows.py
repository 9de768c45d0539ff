"""An audit's result as tables. What a row says is decided here, for files, for pages and for Spark alike.

    for batch in batches("streams", result): ...

Times are in microseconds, as Spark and Delta Lake keep them. Durations are in milliseconds. Texts are legible: names of
queues come from the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from ordack.audit.result import Latency, Result, SequenceId, StreamKey, StreamReport, Unknown, Violation
from ordack.text import legible

Row = dict[str, Any]

BATCH_ROWS = 16384
_TIME = pa.timestamp("us", "UTC")
_COUNTS = pa.map_(pa.string(), pa.int64())


def _numbers(names: str) -> list[pa.Field]:
    return [pa.field(name, pa.int64()) for name in names.split()]


_STREAM = [
    pa.field("source_queue_manager", pa.string()),
    pa.field("destination_queue", pa.string()),
    *_numbers("hops"),
]
_SEQUENCE = _numbers("tx_sequence_ordinal tx_sequence_time_stamp")
_NUMBERS = _numbers("messages first_transmissions resends order_acked final_acked unsettled")
_TIMES = [pa.field("first_time", _TIME), pa.field("last_time", _TIME)]
_RANKS = ("p50", "p90", "p99", "max")
_LATENCY = pa.struct([*_numbers("count"), *(pa.field(name, pa.float64()) for name in _RANKS)])
_LATENCIES = pa.field("latency_ms", pa.map_(pa.string(), _LATENCY))
_PACKETS = pa.list_(pa.struct([pa.field("file", pa.string()), pa.field("frame", pa.int64()), pa.field("time", _TIME)]))
_FINDINGS = pa.schema(
    [
        pa.field("kind", pa.string()),
        *_STREAM,
        *_SEQUENCE,
        *_numbers("number"),
        pa.field("connection", pa.string()),
        pa.field("text", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("packets", _PACKETS),
    ]
)


class Table(NamedTuple):
    """Columns, and what makes the rows of a result."""

    schema: pa.Schema
    rows: Callable[[Result], Iterable[Row]]


def batches(name: str, result: Result) -> Iterator[pa.RecordBatch]:
    """The rows of one of TABLES."""
    schema, make = TABLES[name]
    rows = iter(make(result))
    while chunk := list(islice(rows, BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(chunk, schema)


def finding(result: Result, item: Violation | Unknown) -> Row:
    """A violation, or what is not known; then `text` says what may be missing."""
    text, rule = (item.text, item.rule) if isinstance(item, Violation) else (item.reason, "")
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


def stream(report: StreamReport) -> Row:
    """A stream, with sums over its sequences."""
    return {
        **_named(report.stream, report.sequence),
        **_counts(report),
        "sequences": report.sequence_count,
        "connections": report.connections,
        "holes": report.holes,
        "rejects": report.rejects,
        "violations": report.violations,
        "unknowns": report.unknowns,
        "outcomes": report.outcomes,
        "latency_ms": _latency(report.latency),
    }


def sequences(report: StreamReport) -> Iterator[Row]:
    """Those of a stream that are kept in detail."""
    for sequence in report.sequences:
        yield {
            **_named(report.stream, sequence.sequence),
            **_counts(sequence),
            "highest": sequence.highest,
            "acknowledged": sequence.acknowledged,
            "rejects": sequence.rejects,
        }


def _latencies(report: StreamReport) -> Iterator[Row]:
    for kind, latency in report.latency.items():
        if latency.count:
            yield {
                **named(report.stream),
                "acknowledgement": kind,
                "messages": latency.count,
                **{f"{rank}_ms": getattr(latency, rank) for rank in _RANKS},
                "histogram": report.histograms[kind],
            }


def senders(result: Result) -> Iterator[Row]:
    """All streams of a source queue manager together."""
    for report in result.senders:
        yield {
            **{field.name: getattr(report, field.name, None) for field in TABLES["senders"].schema},
            "name": result.names.of(report.source_queue_manager),
            "latency_ms": _latency(report.latency),
        }


def named(key: StreamKey) -> Row:
    """What names a stream, as in every table."""
    return {**key._asdict(), "destination_queue": legible(key.destination_queue)}


def _named(stream: StreamKey | None, sequence: SequenceId | None) -> Row:
    return {
        **(dict.fromkeys(StreamKey._fields) if stream is None else named(stream)),
        "tx_sequence_ordinal": None if sequence is None else sequence.ordinal,
        "tx_sequence_time_stamp": None if sequence is None else sequence.time_stamp,
    }


def _counts(report: Any) -> Row:
    """Of a stream or a sequence."""
    return {
        **{field.name: getattr(report, field.name) for field in _NUMBERS},
        **{field.name: getattr(report, field.name) // 1000 for field in _TIMES},
    }


def _latency(latency: dict[str, Latency]) -> Row:
    return {kind: value.as_json() for kind, value in latency.items()}


TABLES = {
    "summary": Table(
        pa.schema(
            [
                pa.field("verdict", pa.string()),
                pa.field("incomplete", pa.list_(pa.string())),
                *_numbers("packets connections foreign_connections streams sequences messages resends rejects"),
                *_numbers("settled unsettled holes malformed unsupported_frames"),
                pa.field("violations", _COUNTS),
                pa.field("unknown", _COUNTS),
                _LATENCIES,
            ]
        ),
        lambda result: [result.summary],
    ),
    "violations": Table(_FINDINGS, lambda result: (finding(result, item) for item in result.violations)),
    "unknown": Table(_FINDINGS, lambda result: (finding(result, item) for item in result.unknowns)),
    "streams": Table(
        pa.schema(
            [
                *_STREAM,
                *_SEQUENCE,
                *_numbers("sequences connections"),
                *_NUMBERS,
                *_numbers("holes"),
                *(pa.field(name, _COUNTS) for name in ("rejects", "violations", "unknowns", "outcomes")),
                *_TIMES,
                _LATENCIES,
            ]
        ),
        lambda result: map(stream, result.streams),
    ),
    "sequences": Table(
        pa.schema(
            [
                *_STREAM,
                *_SEQUENCE,
                *_NUMBERS,
                *_numbers("highest acknowledged"),
                pa.field("rejects", _COUNTS),
                *_TIMES,
            ]
        ),
        lambda result: (row for report in result.streams for row in sequences(report)),
    ),
    "senders": Table(
        pa.schema(
            [
                pa.field("source_queue_manager", pa.string()),
                pa.field("name", pa.string()),
                *_numbers("streams messages resends rejects unsettled violations unknowns"),
                _LATENCIES,
            ]
        ),
        senders,
    ),
    "latencies": Table(
        pa.schema(
            [
                *_STREAM,
                pa.field("acknowledgement", pa.string()),
                *_numbers("messages"),
                *(pa.field(f"{rank}_ms", pa.float64()) for rank in _RANKS),
                pa.field("histogram", pa.map_(pa.float64(), pa.int64())),
            ]
        ),
        lambda result: (row for report in result.streams for row in _latencies(report)),
    ),
    "damages": Table(
        pa.schema([pa.field("file", pa.string()), pa.field("text", pa.string())]),
        lambda result: ({"file": legible(path), "text": legible(text)} for path, text in result.damages),
    ),
}
