"""The report of an audit for people: one HTML file that stands alone, with tables and plots.

    write(result, Path("audit.html"))

page.html is the page, page.js what moves in it; sheet.py has what it shares with other pages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ordack import classes
from ordack.audit import sheet
from ordack.audit.files import write_whole
from ordack.audit.result import (
    ConnectionReport,
    Latency,
    Packet,
    Result,
    SequenceId,
    Series,
    StreamKey,
    StreamReport,
    Unknown,
    Violation,
)
from ordack.peer_names import PeerNames
from ordack.store.database import legible

FINDINGS_MAX = 5000  # of violations, and of what is not known, in one report
TIME_LINES_MAX = 500  # connections whose events are in the report

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
    "resent_after_ack": "A message was sent again after its sender knew that it had been settled. Look at the "
    "sender: what it has "
    "learned is not kept.",
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
    ("streams", "Sequences"),
    ("messages", "Messages"),
    ("settled", "Settled"),
    ("unsettled", "Unsettled"),
    ("resends", "Resends"),
    ("holes", "Holes"),
    ("malformed", "Malformed"),
)
_LATENCIES = ("session", "order", "final")


def write(result: Result, path: Path) -> None:
    """Write the report of this audit to path, whole or not at all. Raises OSError."""
    text = _page(result)
    write_whole(path, lambda aside: aside.write_text(text, "utf-8"))


def _page(result: Result) -> str:
    violations, unknowns = _totals(result)
    verdict, headline, advice = _verdict(result, violations, unknowns)
    outcomes = _outcomes(result.streams)
    rejects = sum((Counter(stream.rejects) for stream in result.streams), Counter[str]())
    parts = {
        "title": sheet.markup("Audit of " + _names(result.paths)),
        "paths": sheet.markup(_names(result.paths)),
        "span": sheet.markup(_span(result.streams)),
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
    return sheet.page("ordack.audit", parts, _data(result, violations, unknowns, outcomes))


# ---- words


def _totals(result: Result) -> tuple[int, int]:
    """(violations, verdicts that are not known)."""
    unknowns = sum(sum(stream.unknowns.values()) for stream in result.streams)
    return (
        sum(result.summary["violations"].values()),
        unknowns + sum(unknown.stream is None for unknown in result.unknowns),
    )


def _verdict(result: Result, violations: int, unknowns: int) -> tuple[str, str, str]:
    """(CSS class, headline, markup of what it means and what to do)."""
    messages, unsettled = result.summary["messages"], result.summary["unsettled"]
    kinds, advice = {}, []
    if violations:
        kinds = {kind: count for kind, count in result.summary["violations"].items() if count}
        bad = sum(bool(stream.violations) for stream in result.streams)
        where = f" in {bad:,} of {_count(len(result.streams), 'stream')}" if bad else ""
        verdict, headline = "violations", f"{_count(violations, 'violation')}{where}"
    elif unknowns:
        verdict, headline = "unknown", f"Nothing wrong was found, but {_count(unknowns, 'verdict')} must stay open"
    elif not messages:
        verdict, headline = "unknown", "Nothing to judge: no transactional message is in this capture"
        advice.append(
            "Capture TCP port 1801 where the messages pass, or let `ordack serve --capture FILE` write all "
            "that it sends and receives."
        )
    else:
        verdict, headline = "clean", f"Clean: {_count(messages, 'message')} in {_count(len(result.streams), 'stream')}"
        advice.append(
            "No message was renumbered, skipped or delivered twice, and none was acknowledged before it was there."
        )
    if unknowns:
        advice.append(
            f"{_count(unknowns, 'verdict')} cannot be known, because the capture has holes, ends early, or "
            "began after the connections. Capture whole packets (`tcpdump -s 0`) into a larger buffer "
            "(`-B`), from before the connections begin; or let `ordack serve --capture FILE` do it."
        )
    if unsettled:
        advice.append(
            f"{_count(unsettled, 'message')} {'was' if unsettled == 1 else 'were'} not settled when the "
            "capture ended: on the way, or waiting for an application. A longer capture tells what "
            "becomes of them."
        )
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
    return verdict, headline, markup


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _names(paths: Sequence[str]) -> str:
    if len(paths) > 3:
        return f"{paths[0]} and {len(paths) - 1:,} more files"
    return ", ".join(paths) or "no files"


def _span(streams: Sequence[StreamReport]) -> str:
    if not streams:
        return ""
    return (
        f"Messages from {_moment(min(stream.first_time for stream in streams))} "
        f"to {_moment(max(stream.last_time for stream in streams))} UTC"
    )


def _reason(reason: str) -> str:
    return _REJECTS.get(reason) or f"rejected on arrival, {_class(reason)}"


def _class(text: str) -> str:
    try:
        return classes.words(int(text, 16))
    except ValueError:
        return text.replace("_", " ")


def _outcomes(streams: Iterable[StreamReport]) -> list[tuple[str, int, str]]:
    """(in words, messages, name of a colour)."""
    total: Counter[str] = Counter()
    for stream in streams:
        total.update(stream.outcomes)
    known = [(text, total.pop(name), colour) for name, (text, colour) in _OUTCOMES.items() if total.get(name)]
    negative = [(name, count) for name, count in total.most_common() if count]
    return known + [(f"not received: {_class(name)}", count, "negative") for name, count in negative]


def _moment(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1000:06}"


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


def _data(result: Result, violations: int, unknowns: int, outcomes: list[tuple[str, int, str]]) -> dict[str, Any]:
    streams = sorted(result.streams, key=_trouble, reverse=True)
    managers: dict[str, int] = {}
    queues: dict[str, int] = {}
    rows = [_stream(stream, managers, queues) for stream in streams]
    place = {stream.stream: at for at, stream in enumerate(streams)}
    connections = sorted(result.connections.items(), key=lambda item: _connection_trouble(item[1]), reverse=True)
    data = {
        "paths": result.paths,
        "kinds": KINDS,
        "streams": sheet.columns(rows),
        "violations": [_finding(one, one.text, one.rule, place) for one in result.violations[:FINDINGS_MAX]],
        "violation_count": violations,
        "unknowns": [_finding(one, one.reason, "", place) for one in result.unknowns[:FINDINGS_MAX]],
        "unknown_count": unknowns,
        "series": [
            _series(one, place[one.stream], streams[place[one.stream]])
            for one in sorted(result.series, key=lambda one: place[one.stream])
        ],
        "histograms": {which: sorted(result.histograms.get(which, {}).items()) for which in _LATENCIES},
        "senders": sheet.columns(
            [
                {
                    "source": managers.setdefault(legible(sender.source_queue_manager), len(managers)),
                    "streams": sender.streams,
                    "messages": sender.messages,
                    "resends": sender.resends,
                    "rejects": sender.rejects,
                    "unsettled": sender.unsettled,
                    "violations": sender.violations,
                    **_latency(sender.latency),
                }
                for sender in sorted(
                    result.senders,
                    reverse=True,
                    key=lambda one: (one.violations, one.unknowns, one.unsettled, one.resends),
                )
            ]
        ),
        "outcomes": outcomes,
        "connections": sheet.columns(
            [_connection(index, one, at < TIME_LINES_MAX, result.names) for at, (index, one) in enumerate(connections)]
        ),
        "connection_count": result.summary["connections"],
    }
    return {**data, "managers": list(map(result.names.added, managers)), "queues": list(queues)}


def _negative(stream: StreamReport) -> int:
    return sum(count for name, count in stream.outcomes.items() if name.startswith("0x"))


def _trouble(stream: StreamReport) -> tuple[int, ...]:
    """The greater, the sooner somebody should look."""
    return (
        sum(stream.violations.values()),
        sum(stream.unknowns.values()),
        stream.outcomes.get("in_doubt", 0) + _negative(stream),
        stream.unsettled,
        stream.holes,
        stream.resends,
        sum(stream.rejects.values()),
    )


def _stream(stream: StreamReport, managers: dict[str, int], queues: dict[str, int]) -> dict[str, Any]:
    key, violations, unknowns = stream.stream, sum(stream.violations.values()), sum(stream.unknowns.values())
    return {
        "source": managers.setdefault(legible(key.source_queue_manager), len(managers)),
        "queue": queues.setdefault(legible(key.destination_queue), len(queues)),
        "hops": key.hops,
        "verdict": 0 if violations else 1 if unknowns else 2 if stream.unsettled else 3,
        "violations": violations,
        "unknowns": unknowns,
        "messages": stream.messages,
        "unsettled": stream.unsettled,
        "order_acked": stream.order_acked,
        "final_acked": stream.final_acked,
        "resends": stream.resends,
        "rejects": sum(stream.rejects.values()),
        "holes": stream.holes,
        "connections": stream.connections,
        "first": stream.first_time // 1_000_000,
        "last": stream.last_time // 1_000_000,
        **_latency(stream.latency),
    }


def _latency(latency: Mapping[str, Latency]) -> dict[str, float | None]:
    """None: no message has been acknowledged like that."""
    return {
        f"{which}_{rank}": round(getattr(one, rank), 4) if (one := latency.get(which)) and one.count else None
        for which in _LATENCIES
        for rank in ("p50", "p90", "p99", "max")
    }


def _sequence(sequence: SequenceId | None) -> str:
    return f"{sequence.ordinal}/{sequence.time_stamp}" if sequence else ""


def _finding(one: Violation | Unknown, text: str, rule: str, place: Mapping[StreamKey, int]) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "stream": place.get(one.stream) if one.stream else None,
        "sequence": _sequence(one.sequence),
        "connection": one.connection,
        "number": one.number,
        "text": legible(text),
        "rule": rule,
        "packets": [_packet(packet) for packet in one.packets],
        "at": one.packets[-1].time / 1e6 if one.packets else None,
    }


def _packet(packet: Packet) -> tuple[int, int, str]:
    return packet.file, packet.frame, _moment(packet.time)


def _series(series: Series, place: int, stream: StreamReport) -> dict[str, Any]:
    begin = series.points[0][0] if series.points else stream.first_time
    return {
        "stream": place,
        "time": begin / 1e6,
        "at": [round((time - begin) / 1e6, 3) for time, _, _ in series.points],
        "position": [position for _, position, _ in series.points],
        "what": [what for _, _, what in series.points],
        "boundaries": [
            {"at": time / 1e6, "base": base, "sequence": _sequence(sequence)}
            for time, base, sequence in series.boundaries
        ],
        "sequences": [
            {
                "sequence": _sequence(one.sequence),
                "messages": one.messages,
                "first": one.first_transmissions,
                "resends": one.resends,
                "highest": one.highest,
                "acknowledged": one.acknowledged,
                "unsettled": one.unsettled,
            }
            for one in stream.sequences
        ],
    }


def _connection_trouble(connection: ConnectionReport) -> tuple[int, ...]:
    violations = sum(event.what == "violation" for event in connection.events)
    return violations, sum(connection.malformed), sum(connection.holes), not connection.syn, -connection.first_time


def _connection(index: int, connection: ConnectionReport, with_events: bool, names: PeerNames) -> dict[str, Any]:
    return {
        "index": index,
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
