"""The report of a reconciliation for people: one HTML file that stands alone, with tables and plots.

write(result, Path("reconcile.html"))
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ordack.audit import sheet
from ordack.audit.files import write_whole
from ordack.peer_names import PeerNames
from ordack.reconcile.result import KINDS, Finding, Result, moment
from ordack.text import counted, legible

CLASSES = {"reconciled": "clean", "violations": "violations", "incomplete": "unknown"}
FIGURES = {"captured": "In the captures", "acknowledged": "Acknowledged", "in_segments": "In segments",
           "in_table": "In the table"}  # fmt: skip


def write(result: Result, path: Path) -> None:
    """Write the report to path, whole or not at all. Raises OSError."""
    text = sheet.page("ordack.reconcile", _parts(result), _data(result))
    write_whole(path, lambda aside: aside.write_text(text, "utf-8"))


def _parts(result: Result) -> dict[str, str]:
    rows = [(kind.replace("_", " "), count, KINDS[kind].meaning) for kind, count in result.found.items() if count]
    figures = "".join(f"<div><dt>{title}</dt><dd>{result.totals[name]:,}</dd></div>" for name, title in FIGURES.items())
    return {
        "title": "Reconciliation",
        "names": sheet.markup(", ".join(f"{what} {name}" for what, name in result.names.items())),
        "verdict": CLASSES[result.verdict],
        "headline": sheet.markup(_headline(result)),
        "figures": figures,
        "kinds": sheet.table("What was found", ("finding", "messages", "what it means"), rows),
        "lacks": sheet.table(
            "What the captures lack", ("why not all can be known",), [(one,) for one in result.doubts]
        ),
        "footer": f"Written by ordack pipeline reconcile, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC.",
    }


def _headline(result: Result) -> str:
    if result.violations:
        return counted(result.violations, "violation")
    if result.verdict == "incomplete":
        why = f"{counted(result.unknown, 'message')} must stay open" if result.unknown else result.doubts[0]
        return f"Nothing wrong was found, but {why}"
    return f"Reconciled: {counted(result.totals['acknowledged'], 'acknowledged message')}, each there once"


def _data(result: Result) -> dict[str, Any]:
    sensors = [
        {
            "source": result.peer_names.added(legible(one.source_queue_manager)),
            "queue": legible(one.queue),
            **{name: getattr(one, name) for name in ("rows", "duplicates", "gaps", "lacking")},
            **{rank: (one.latency_s or {}).get(rank) for rank in ("p50", "p90", "p99", "max")},
            "first": None if one.first is None else one.first // 1000,
            "last": None if one.last is None else one.last // 1000,
        }
        for one in result.sensors
    ]
    return {
        "findings": sheet.columns([_finding(one, result.peer_names) for one in result.findings]),
        "finding_count": sum(result.found.values()),
        "sensors": sheet.columns(sensors),
    }


def _finding(one: Finding, names: PeerNames) -> dict[str, Any]:
    packets = ((what, packet) for what, packet in (("sent", one.sent), ("acknowledged", one.acknowledged)) if packet)
    return {
        "kind": one.kind,
        "violation": KINDS[one.kind].violation,
        "meaning": KINDS[one.kind].meaning,
        "source": names.added(legible(one.source_queue_manager)),
        "message": one.message_id,
        "queue": legible(one.queue or one.destination_queue or ""),
        "packets": [f"{what}: {legible(packet.file)} frame {packet.frame}, {moment(packet.time)}" for what, packet in
                    packets],
    }  # fmt: skip
