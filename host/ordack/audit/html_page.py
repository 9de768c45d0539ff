"""The report of an audit for people: one HTML file that stands alone, with tables.

    write(result, Path("audit.html"))

page.html is the page, page.css its style, page.js its tables; rows.py says what is in a row. The content security
policy forbids all else. Text from the network reaches the page as JSON whose markup characters are escaped, or through
`markup`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from ordack.audit import rows
from ordack.audit.files import foreign_text, time_text, write_whole
from ordack.audit.result import ConnectionReport, Result
from ordack.audit.rows import Row
from ordack.broker.peer_names import PeerNames
from ordack.config import classes
from ordack.text import legible

FINDINGS_MAX = 5000  # of violations, and of what is not known, in one report
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
    "received": "received by an application",
    "stored": "stored at the destination; nothing more was asked for",
    "waiting": "stored at the destination, not received yet",
    "sent": "on its way",
    "in_doubt": "in doubt: the time is over without an answer",
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
_COUNTS = ("hops", "messages", "unsettled", "order_acked", "final_acked", "resends", "holes")


def write(result: Result, path: Path) -> None:
    """Write the report of this audit to path, whole or not at all. Raises OSError."""
    text = _page(result)
    write_whole(path, lambda aside: aside.write_text(text, "utf-8"))


def _page(result: Result) -> str:
    streams = sorted(map(rows.stream, result.streams), key=_trouble, reverse=True)
    violations, unknowns = _totals(result, streams)
    verdict, headline, advice = _verdict(result, streams, violations)
    rejects = sum((Counter(stream["rejects"]) for stream in streams), Counter[str]())
    parts = {
        "title": markup("Audit of " + _names(result.paths)),
        "paths": markup(_names(result.paths)),
        "span": markup(_span(streams)),
        "verdict": verdict,
        "headline": markup(headline),
        "advice": advice,
        "figures": _figures(result.summary, violations, unknowns),
        "latency": table(
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
        "outcomes": table("Messages by outcome", ("outcome", "messages"), _outcomes(streams)),
        "rejects": table(
            "Transmissions by reason",
            ("reason", "transmissions"),
            [(_reason(reason), count) for reason, count in rejects.most_common()],
        ),
        "files": table(
            "In the order of their first frames",
            ("file", "read"),
            [
                (path, "; ".join(text for name, text in result.damages if name == path) or "whole")
                for path in result.paths
            ],
        ),
        "footer": f"Written by ordack audit, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. Times are the capture's.",
    }
    return _filled(parts, _data(result, streams, violations, unknowns))


def _filled(parts: Mapping[str, str], data: Any) -> str:
    """page.html with these parts, all markup, in the place of their names; and page.js, which finds `data`."""
    files = resources.files("ordack.audit")
    script = (files / "page.js").read_text("utf-8")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    whole = {
        **parts,
        "css": (files / "page.css").read_text("utf-8"),
        "data": text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        "script": script,
        "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    return re.sub(r"@([a-z]+)@", lambda match: whole[match[1]], (files / "page.html").read_text("utf-8"))


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
        f"<div><dt>{markup(kind.replace('_', ' '))} ({count:,})</dt><dd>{markup(KINDS.get(kind, ''))}</dd></div>"
        for kind, count in kinds.items()
    )
    body = f'<dl class="kinds">{told}</dl>' if told else ""
    for line in advice:
        body += "<p>" + re.sub("`(.*?)`", r"<code>\1</code>", markup(line)) + "</p>"
    return CLASSES[verdict.word], headline, body


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


def _outcomes(streams: Iterable[Row]) -> list[tuple[str, int]]:
    """(in words, messages)."""
    total: Counter[str] = Counter()
    for stream in streams:
        total.update(stream["outcomes"])
    known = [(text, total.pop(name)) for name, text in _OUTCOMES.items() if total.get(name)]
    return known + [(f"not received: {_class(name)}", count) for name, count in total.most_common() if count]


def _milliseconds(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


# ---- markup


def markup(text: str) -> str:
    """Text as a page has it."""
    return html.escape(legible(text))


def table(caption: str, headings: Sequence[str], lines: Sequence[Sequence[str | int]]) -> str:
    """The first column is text, the others are aligned as numbers where they are."""
    if not lines:
        return f'<p class="quiet">{markup(caption)}: none.</p>'
    head = "".join(
        f'<th scope="col"{"" if at == 0 else _align(lines[0][at])}>{markup(heading)}</th>'
        for at, heading in enumerate(headings)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{'' if at == 0 else _align(cell)}>{markup(f'{cell:,}' if isinstance(cell, int) else cell)}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in lines
    )
    return f"<table><caption>{markup(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _align(cell: str | int) -> str:
    return ' class="number"' if isinstance(cell, int) or re.fullmatch(r"[\d,.e+-]+", cell) else ""


def _figures(summary: Mapping[str, Any], violations: int, unknowns: int) -> str:
    rejects = summary["rejects"]
    figures = [(title, summary[name]) for name, title in _FIGURES]
    figures += [
        ("Not accepted", sum(rejects.values()) if isinstance(rejects, dict) else rejects),
        ("Violations", violations),
        ("Not known", unknowns),
    ]
    return "".join(f"<div><dt>{markup(title)}</dt><dd>{number:,}</dd></div>" for title, number in figures)


# ---- data


def _data(result: Result, streams: Sequence[Row], violations: int, unknowns: int) -> dict[str, Any]:
    managers: dict[str, int] = {}
    queues: dict[str, int] = {}
    place = {rows.key_of(stream): at for at, stream in enumerate(streams)}
    files = {legible(path): at for at, path in enumerate(result.paths)}
    broken = {one.connection for one in result.violations}
    connections = sorted(
        result.connections.items(), key=lambda item: _connection_trouble(item[1], item[0] in broken), reverse=True
    )
    data = {
        "paths": [*map(legible, result.paths)],
        "kinds": KINDS,
        "streams": columns([_stream(stream, managers, queues) for stream in streams]),
        "violations": [_finding(rows.finding(result, one), place, files) for one in result.violations[:FINDINGS_MAX]],
        "violation_count": violations,
        "unknowns": [_finding(rows.finding(result, one), place, files) for one in result.unknowns[:FINDINGS_MAX]],
        "unknown_count": unknowns,
        "senders": columns(
            [
                _sender(sender, managers)
                for sender in sorted(
                    rows.senders(result),
                    reverse=True,
                    key=lambda one: (one["violations"], one["unknowns"], one["unsettled"], one["resends"]),
                )
            ]
        ),
        "connections": columns([_connection(one, result.names) for _, one in connections]),
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


def _finding(row: Row, place: Mapping[tuple[Any, ...], int], files: Mapping[str, int]) -> Row:
    packets = row["packets"]
    return {
        **{name: row[name] for name in ("kind", "connection", "number", "text", "rule")},
        "stream": place.get(rows.key_of(row)),
        "sequence": ""
        if row["tx_sequence_ordinal"] is None
        else f"{row['tx_sequence_ordinal']}/{row['tx_sequence_time_stamp']}",
        "packets": [(files[packet["file"]], packet["frame"], time_text(packet["time"])) for packet in packets],
    }


def columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Names once instead of in every row."""
    return {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}


def _connection_trouble(connection: ConnectionReport, is_broken: bool) -> tuple[int, ...]:
    return is_broken, sum(connection.malformed), sum(connection.holes), not connection.syn, -connection.first_time


def _connection(connection: ConnectionReport, names: PeerNames) -> Row:
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
    }
