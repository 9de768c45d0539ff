"""The report of an audit for people: one HTML file that stands alone, with tables and plots.

    write(result, Path("audit.html"))

page.html is the page, page.js what moves in it; sheet.py has what it shares with other pages, rows.py what a row says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ordack.audit import rows, sheet
from ordack.audit.files import foreign_text, time_text, write_whole
from ordack.audit.result import ConnectionReport, Result, Series
from ordack.audit.rows import Row
from ordack.broker.peer_names import PeerNames
from ordack.config import classes
from ordack.text import legible

FINDINGS_MAX = 5000  # of violations, and of what is not known, in one report
TIME_LINES_MAX = 500  # connections whose events are in the report
CLASSES = {"no violations": "clean", "violations": "violations", "incomplete": "unknown"}  # of the style sheet

KINDS = {
    "renumbered": "A message came under two numbers, or two messages under one. The receiver may take it twice, or "
    "drop one. "
    "Look for a store or outbox at the sender that was copied, or put back from a backup.",
    "ack_beyond_receipt": "An acknowledgement names what its sender cannot have had. The source deletes messages "
    "that nobody has. Look "
    "at the receiver: a store put back from a backup, or two with one identity.",
    "id_went_back": "The source went back to an older sequence, and the receiver ignores all that is in it. Look for "
    "a clock or a "
    "store that was put back at the sender.",
    "skipped": "The receiver accepted a message although one before it was missing. That one is lost for it. Look at "
    "the "
    "receiver's version.",
    "count_mismatch": "A session's counters differ from the packets that were sent on it. One end has a defect, or "
    "something on the "
    "way changes packets.",
    "resent_after_ack": "A message was sent again on a connection on which its sender had shown that it knew it as "
    "settled. Look at the sender.",
    "delivered_twice": "A message was accepted or received twice. If it is renumbered, too, look for a store or "
    "outbox at the sender "
    "that was copied, or put back from a backup; otherwise for such a store at the receiver.",
}
_OUTCOMES = {
    "received": ("received by an application", "order"),
    "stored": ("stored at the destination; nothing more was asked for", "first"),
    "waiting": ("stored at the destination, not received yet", "resend"),
    "sent": ("on its way", "resend"),
    "in_doubt": ("in doubt: the time is over without an answer", "negative"),
}
_REJECTS = {
    "duplicate": "a copy of what the receiver has: it is dropped, and acknowledged again",
    "hole": "a message before it is missing: it has to come again",
    "old_sequence": "of a sequence that is over",
    "sequence_start_missing": "the first message of its sequence is missing",
}
_FIGURES = (
    ("packets", "Packets"),
    ("connections", "Connections"),
    ("foreign_connections", "Other protocols"),
    ("streams", "Streams"),
    ("sequences", "Sequences"),
    ("messages", "Messages"),
    ("settled", "Settled"),
    ("unsettled", "Unsettled"),
    ("resends", "Resends"),
    ("holes", "Holes"),
    ("malformed", "Malformed"),
)
_LATENCIES = ("session", "order", "final")
_COUNTS = (
    "hops", "messages", "unsettled", "order_acked", "final_acked", "resends", "holes", "connections",
)  # fmt: skip


def write(result: Result, path: Path) -> None:
    """Write the report of this audit to path, whole or not at all. Raises OSError."""
    text = _page(result)
    write_whole(path, lambda aside: aside.write_text(text, "utf-8"))


def _page(result: Result) -> str:
    streams = sorted(map(rows.stream, result.streams), key=_trouble, reverse=True)
    violations, unknowns = _totals(result, streams)
    verdict, headline, advice = _verdict(result, streams, violations)
    outcomes = _outcomes(streams)
    rejects = sum((Counter(stream["rejects"]) for stream in streams), Counter[str]())
    parts = {
        "title": sheet.markup("Audit of " + _names(result.paths)),
        "paths": sheet.markup(_names(result.paths)),
        "span": sheet.markup(_span(streams)),
        "verdict": verdict,
        "headline": sheet.markup(headline),
        "advice": advice,
        "figures": _figures(result.summary, violations, unknowns),
        "latency": sheet.table(
            "Milliseconds, all messages together",
            ("to", "messages", "p50", "p90", "p99", "greatest"),
            [
                (
                    f"{which} acknowledgement",
                    latency.count,
                    *map(_milliseconds, (latency.p50, latency.p90, latency.p99, latency.max)),
                )
                for which in _LATENCIES
                if (latency := result.latency.get(which)) and latency.count
            ],
        ),
        "outcomes": sheet.table("Messages by outcome", ("outcome", "messages"), [one[:2] for one in outcomes]),
        "rejects": sheet.table(
            "Transmissions by reason",
            ("reason", "transmissions"),
            [(_reason(reason), count) for reason, count in rejects.most_common()],
        ),
        "files": sheet.table(
            "In the order of their first frames",
            ("file", "read"),
            [
                (path, "; ".join(text for name, text in result.damages if name == path) or "whole")
                for path in result.paths
            ],
        ),
        "footer": f"Written by ordack audit, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. Times are the capture's.",
    }
    return sheet.page("ordack.audit", parts, _data(result, streams, violations, unknowns, outcomes))


# ---- words


def _totals(result: Result, streams: Sequence[Row]) -> tuple[int, int]:
    """(violations, verdicts that are not known)."""
    unknowns = sum(sum(stream["unknowns"].values()) for stream in streams)
    return (
        sum(result.summary["violations"].values()),
        unknowns + sum(unknown.stream is None for unknown in result.unknowns),
    )


def _verdict(result: Result, streams: Sequence[Row], violations: int) -> tuple[str, str, str]:
    """(CSS class, headline, markup of what it means and what to do)."""
    verdict = result.verdict
    messages, unsettled = result.summary["messages"], result.summary["unsettled"]
    kinds, advice = {}, []
    headline = verdict.text[0].upper() + verdict.text[1:]
    if verdict.word == "violations":
        kinds = {kind: count for kind, count in result.summary["violations"].items() if count}
        bad = sum(bool(stream["violations"]) for stream in streams)
        where = f" in {bad:,} of {_count(len(streams), 'stream')}" if bad else ""
        headline = f"{_count(violations, 'violation')}{where}"
    elif not messages:
        advice.append(
            "Capture TCP port 1801 where the messages pass, or let `ordack serve --capture FILE` write all "
            "that it sends and receives."
        )
    elif verdict.word == "no violations":
        headline += f": {_count(messages, 'message')} in {_count(len(streams), 'stream')}"
        advice.append(
            "No message was renumbered, skipped or delivered twice, and none was acknowledged before it was there."
        )
    if verdict.incomplete:
        advice.append(
            f"The capture lacks something ({', '.join(verdict.incomplete)}). A violation may have been missed. Capture "
            "whole packets (`tcpdump -s 0`) into a larger buffer (`-B`), from before the connections begin; or let "
            "`ordack serve --capture FILE` do it."
        )
    if unsettled:
        advice.append(
            f"{_count(unsettled, 'message')} {'was' if unsettled == 1 else 'were'} not settled when the "
            "capture ended: on the way, or waiting for an application. A longer capture tells what "
            "becomes of them."
        )
    if result.summary["foreign_connections"]:
        advice.append(f"{foreign_text(result.summary)}. They do not count.")
    if result.damages:
        advice.append(
            f"{_count(len(result.damages), 'file')} could not be read to the end, or did not follow on the "
            "one before; the last part of this page has the reason."
        )
    told = "".join(
        f"<div><dt>{sheet.markup(kind.replace('_', ' '))} ({count:,})</dt>"
        f"<dd>{sheet.markup(KINDS.get(kind, ''))}</dd></div>"
        for kind, count in kinds.items()
    )
    markup = f'<dl class="kinds">{told}</dl>' if told else ""
    for line in advice:
        markup += "<p>" + re.sub("`(.*?)`", r"<code>\1</code>", sheet.markup(line)) + "</p>"
    return CLASSES[verdict.word], headline, markup


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _names(paths: Sequence[str]) -> str:
    if len(paths) > 3:
        return f"{paths[0]} and {len(paths) - 1:,} more files"
    return ", ".join(paths) or "no files"


def _span(streams: Sequence[Row]) -> str:
    if not streams:
        return ""
    return (
        f"Messages from {time_text(min(stream['first_time'] for stream in streams))} "
        f"to {time_text(max(stream['last_time'] for stream in streams))} UTC"
    )


def _reason(reason: str) -> str:
    return _REJECTS.get(reason) or f"rejected on arrival, {_class(reason)}"


def _class(text: str) -> str:
    try:
        return classes.words(int(text, 16))
    except ValueError:
        return text.replace("_", " ")


def _outcomes(streams: Iterable[Row]) -> list[tuple[str, int, str]]:
    """(in words, messages, name of a colour)."""
    total: Counter[str] = Counter()
    for stream in streams:
        total.update(stream["outcomes"])
    known = [(text, total.pop(name), colour) for name, (text, colour) in _OUTCOMES.items() if total.get(name)]
    negative = [(name, count) for name, count in total.most_common() if count]
    return known + [(f"not received: {_class(name)}", count, "negative") for name, count in negative]


def _milliseconds(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


# ---- markup


def _figures(summary: Mapping[str, Any], violations: int, unknowns: int) -> str:
    rejects = summary["rejects"]
    figures = [(title, summary[name]) for name, title in _FIGURES]
    figures += [
        ("Not accepted", sum(rejects.values()) if isinstance(rejects, dict) else rejects),
        ("Violations", violations),
        ("Not known", unknowns),
    ]
    return "".join(f"<div><dt>{sheet.markup(title)}</dt><dd>{number:,}</dd></div>" for title, number in figures)


# ---- data


def _data(
    result: Result, streams: Sequence[Row], violations: int, unknowns: int, outcomes: list[tuple[str, int, str]]
) -> dict[str, Any]:
    managers: dict[str, int] = {}
    queues: dict[str, int] = {}
    place = {rows.key_of(stream): at for at, stream in enumerate(streams)}
    files = {legible(path): at for at, path in enumerate(result.paths)}
    plotted = {one.stream: one for one in result.series}
    series = [
        (place[rows.key_of(rows.named(report.stream))], report, plotted[report.stream])
        for report in result.streams
        if report.stream in plotted
    ]
    connections = sorted(result.connections.items(), key=lambda item: _connection_trouble(item[1]), reverse=True)
    data = {
        "paths": [*map(legible, result.paths)],
        "kinds": KINDS,
        "streams": sheet.columns([_stream(stream, managers, queues) for stream in streams]),
        "violations": [_finding(rows.finding(result, one), place, files) for one in result.violations[:FINDINGS_MAX]],
        "violation_count": violations,
        "unknowns": [_finding(rows.finding(result, one), place, files) for one in result.unknowns[:FINDINGS_MAX]],
        "unknown_count": unknowns,
        "series": [
            _series(one, at, [*rows.sequences(report)])
            for at, report, one in sorted(series, key=lambda found: found[0])
        ],
        "histograms": {which: sorted(result.histograms.get(which, {}).items()) for which in _LATENCIES},
        "senders": sheet.columns(
            [
                _sender(sender, managers)
                for sender in sorted(
                    rows.senders(result),
                    reverse=True,
                    key=lambda one: (one["violations"], one["unknowns"], one["unsettled"], one["resends"]),
                )
            ]
        ),
        "outcomes": outcomes,
        "connections": sheet.columns(
            [_connection(one, at < TIME_LINES_MAX, result.names) for at, (_, one) in enumerate(connections)]
        ),
        "connection_count": result.summary["connections"],
    }
    return {**data, "managers": list(map(result.names.added, managers)), "queues": list(queues)}


def _negative(stream: Row) -> int:
    return sum(count for name, count in stream["outcomes"].items() if name.startswith("0x"))


def _trouble(stream: Row) -> tuple[int, ...]:
    """The greater, the sooner somebody should look."""
    return (
        sum(stream["violations"].values()),
        sum(stream["unknowns"].values()),
        stream["outcomes"].get("in_doubt", 0) + _negative(stream),
        stream["unsettled"],
        stream["holes"],
        stream["resends"],
        sum(stream["rejects"].values()),
    )


def _stream(stream: Row, managers: dict[str, int], queues: dict[str, int]) -> Row:
    violations, unknowns = sum(stream["violations"].values()), sum(stream["unknowns"].values())
    return {
        "source": managers.setdefault(stream["source_queue_manager"], len(managers)),
        "queue": queues.setdefault(stream["destination_queue"], len(queues)),
        "verdict": 0 if violations else 1 if unknowns else 2 if stream["unsettled"] else 3,
        "violations": violations,
        "unknowns": unknowns,
        **{name: stream[name] for name in _COUNTS},
        "rejects": sum(stream["rejects"].values()),
        "first": stream["first_time"] // 1000,
        "last": stream["last_time"] // 1000,
        **_latency(stream["latency_ms"]),
    }


def _sender(sender: Row, managers: dict[str, int]) -> Row:
    return {
        "source": managers.setdefault(sender["source_queue_manager"], len(managers)),
        **{name: sender[name] for name in ("streams", "messages", "resends", "rejects", "unsettled", "violations")},
        **_latency(sender["latency_ms"]),
    }


def _latency(latency: Mapping[str, Row]) -> dict[str, float | None]:
    """None: no message has been acknowledged like that."""
    return {
        f"{which}_{rank}": None if (value := latency.get(which, {}).get(rank)) is None else round(value, 4)
        for which in _LATENCIES
        for rank in ("p50", "p90", "p99", "max")
    }


def _sequence(ordinal: int | None, time_stamp: int | None) -> str:
    return "" if ordinal is None else f"{ordinal}/{time_stamp}"


def _sequence_of(row: Row) -> str:
    return _sequence(row["tx_sequence_ordinal"], row["tx_sequence_time_stamp"])


def _finding(row: Row, place: Mapping[tuple[Any, ...], int], files: Mapping[str, int]) -> Row:
    packets = row["packets"]
    return {
        **{name: row[name] for name in ("kind", "connection", "number", "text", "rule")},
        "stream": place.get(rows.key_of(row)),
        "sequence": _sequence_of(row),
        "packets": [(files[packet["file"]], packet["frame"], time_text(packet["time"])) for packet in packets],
        "at": packets[-1]["time"] / 1e3 if packets else None,
    }


def _series(series: Series, place: int, sequences: Sequence[Row]) -> Row:
    begin = series.points[0][0] if series.points else 0
    return {
        "stream": place,
        "time": begin / 1e6,
        "at": [round((time - begin) / 1e6, 3) for time, _, _ in series.points],
        "position": [position for _, position, _ in series.points],
        "what": [what for _, _, what in series.points],
        "boundaries": [
            {"at": time / 1e6, "base": base, "sequence": _sequence(*sequence)}
            for time, base, sequence in series.boundaries
        ],
        "sequences": [
            {
                "sequence": _sequence_of(one),
                "first": one["first_transmissions"],
                **{name: one[name] for name in ("messages", "resends", "highest", "acknowledged", "unsettled")},
            }
            for one in sequences
        ],
    }


def _connection_trouble(connection: ConnectionReport) -> tuple[int, ...]:
    violations = sum(event.what == "violation" for event in connection.events)
    return violations, sum(connection.malformed), sum(connection.holes), not connection.syn, -connection.first_time


def _connection(connection: ConnectionReport, with_events: bool, names: PeerNames) -> Row:
    return {
        "ends": connection.ends,
        "syn": connection.syn,
        "managers": tuple(map(names.added, connection.queue_managers)),
        "first": connection.first_time // 1_000_000,
        "last": connection.last_time // 1_000_000,
        "packets": sum(connection.packets),
        "messages": sum(connection.messages),
        "holes": sum(connection.holes),
        "malformed": sum(connection.malformed),
        "end": legible(connection.end),
        "whole": connection.syn and not any(connection.holes),
        "events": [(event.time / 1e6, event.what, legible(event.text)) for event in connection.events if with_events],
    }
