"""The report of an audit for people: one self-contained, static HTML file.

    write(result, Path("audit.html"))

page.html is the template. Network text reaches it only through `markup`. The content security policy forbids scripts.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template

from ordack.audit.files import finding, foreign_text, time_text, write_whole
from ordack.audit.result import AuditResult, StreamReport, Unknown, Violation, count_text
from ordack.config.names import legible

FINDINGS_MAX = 5000  # violations, and unknown verdicts, in one report
CLASSES = {"no violations": "clean", "violations": "violations", "incomplete": "unknown"}  # in the style sheet

KINDS = {
    "renumbered": "A message came under two numbers, or two messages under one. The receiver may take it twice, "
    "or drop one. Look for a store or outbox at the sender that was copied, or put back from a backup.",
    "ack_beyond_receipt": "An acknowledgement names a message that its sender cannot have had. The source "
    "deletes messages that nobody has. Look at the receiver: a store put back from a backup, or two with one identity.",
    "id_went_back": "The source went back to an older sequence, and the receiver ignores all that is in it. "
    "Look for a clock or a store that was put back at the sender.",
    "skipped": "The receiver accepted a message although one before it was missing. That one is lost for it. "
    "Look at the receiver's version.",
    "count_mismatch": "A session's counters differ from the packets that were sent on it. One end has a defect, "
    "or something on the way changes packets.",
    "resent_after_ack": "A message was sent again on a connection on which its sender had shown that it knew it "
    "as settled. Look at the sender.",
    "delivered_twice": "A message was accepted or received twice. Look for a store at the receiver that was copied, "
    "or put back from a backup.",
}
_FIGURES = (
    "packets", "connections", "foreign_connections", "streams", "sequences", "messages", "settled", "unsettled",
    "resends", "rejects", "holes", "malformed",
)  # fmt: skip
_STREAM_HEADINGS = (
    "Source", "Destination queue", "Hops", "Violations", "Not known", "Messages", "With order ack.", "With final ack.",
    "Unsettled", "Resends", "Not accepted", "Holes",
)  # fmt: skip


def write(result: AuditResult, path: Path) -> None:
    """Write the report to path, atomically. Raises OSError."""
    text = _page(result)
    write_whole(path, lambda aside: aside.write_text(text, "utf-8"))


def _page(result: AuditResult) -> str:
    summary, verdict = result.summary, result.verdict
    violations, unknowns = (sum(summary[name].values()) for name in ("violations", "unknown"))
    figures = [(name.replace("_", " ").capitalize(), summary[name]) for name in _FIGURES]
    figures += [("Violations", violations), ("Not known", unknowns)]
    template = Template((resources.files("ordack.audit") / "page.html").read_text("utf-8"))
    return template.substitute(
        title=markup("Audit of " + _names(result.paths)),
        verdict=CLASSES[verdict.word],
        headline=markup(verdict.text[0].upper() + verdict.text[1:]),
        advice=_advice(result),
        figures="".join(f"<div><dt>{markup(title)}</dt><dd>{number:,}</dd></div>" for title, number in figures),
        violations=_findings(result, result.violations, violations),
        unknowns=_findings(result, result.unknowns, unknowns),
        streams=_table(
            _count_shown(len(result.worst), len(result.streams)),
            _STREAM_HEADINGS,
            [_stream(result, report) for report in result.worst],
        ),
        files=_table(
            "In the order of their first frames",
            ("File", "Read"),
            [
                (path, "; ".join(text for name, text in result.damages if name == path) or "whole")
                for path in result.paths
            ],
        ),
        footer=f"Written by ordack capture audit, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. Times are the capture's.",
    )


def _advice(result: AuditResult) -> str:
    """Return the meaning of the verdict, and the remedy, as markup."""
    summary, verdict = result.summary, result.verdict
    kinds = {kind: count for kind, count in summary["violations"].items() if count}
    told = "".join(
        f"<dt>{markup(kind.replace('_', ' '))} ({count:,})</dt><dd>{markup(KINDS[kind])}</dd>"
        for kind, count in kinds.items()
    )
    lines = []
    if not summary["messages"] and not kinds:
        lines.append(
            "Capture TCP port 1801 where the messages pass, or let `ordack serve --capture FILE` write all that "
            "it sends and receives."
        )
    if verdict.incomplete:
        lines.append(
            f"The capture lacks something ({', '.join(verdict.incomplete)}). A violation may have been missed. Capture "
            "whole packets (`tcpdump -s 0`) into a larger buffer (`-B`), from before the connections begin; or let "
            "`ordack serve --capture FILE` do it."
        )
    if summary["unsettled"]:
        lines.append(
            f"{count_text(summary['unsettled'], 'message')} not settled when the capture ended: on the way, or "
            "waiting for an application. A longer capture tells what becomes of them."
        )
    if summary["foreign_connections"]:
        lines.append(f"{foreign_text(summary)}. They do not count.")
    if result.damages:
        lines.append(
            f"{count_text(len(result.damages), 'file')} could not be read to the end, or did not follow on the "
            "one before; the last part of this page has the reason."
        )
    return (f"<dl>{told}</dl>" if told else "") + "".join(
        "<p>" + re.sub("`(.*?)`", r"<code>\1</code>", markup(line)) + "</p>" for line in lines
    )


def _stream(result: AuditResult, report: StreamReport) -> tuple[str | int, ...]:
    return (
        result.names.added(report.stream.source_queue_manager),
        report.stream.destination_queue,
        report.stream.hops,
        *(sum(counts.values()) for counts in (report.violations, report.unknowns)),
        report.messages,
        report.order_acked,
        report.final_acked,
        report.unsettled,
        report.resends,
        sum(report.rejects.values()),
        report.holes,
    )


def _findings(result: AuditResult, items: Sequence[Violation | Unknown], total: int) -> str:
    shown = items[:FINDINGS_MAX]
    headings = "Kind", "Source", "Destination queue or connection", "Sequence", "Number", "What", "Packets"
    return _table(_count_shown(len(shown), total), headings, [_finding(result, item) for item in shown])


def _finding(result: AuditResult, item: Violation | Unknown) -> tuple[str | int, ...]:
    row = finding(result, item)
    source, where = "", row["connection"]
    if item.stream is not None:
        source, where = result.names.added(item.stream.source_queue_manager), item.stream.destination_queue
    return (
        item.kind,
        source,
        where,
        f"{item.sequence.ordinal}/{item.sequence.time_stamp}" if item.sequence else "",
        item.number or "",
        f"{row['text']} ({row['rule']})" if row["rule"] else row["text"],
        "\n".join(f"{one['file']} frame {one['frame']}, {time_text(one['time'])}" for one in row["packets"]),
    )


def _count_shown(shown: int, total: int) -> str:
    return f"{shown:,} of {total:,}; ordack capture audit --out writes more" if shown < total else f"{total:,}"


def _names(paths: Sequence[str]) -> str:
    if len(paths) > 3:
        return f"{paths[0]} and {len(paths) - 1:,} more files"
    return ", ".join(paths) or "no files"


def markup(text: str) -> str:
    """Escape text for the page."""
    return html.escape(legible(text))


def _table(caption: str, headings: Sequence[str], lines: Sequence[Sequence[str | int]]) -> str:
    if not lines:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{markup(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(_cells(line))}</tr>\n" for line in lines)
    return f"<table><caption>{markup(caption)}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _cells(line: Sequence[str | int]) -> Iterator[str]:
    for cell in line:
        if isinstance(cell, int):
            yield f'<td class="number">{cell:,}</td>'
        else:
            yield f"<td>{'<br>'.join(map(markup, cell.splitlines()))}</td>"
