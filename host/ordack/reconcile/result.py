"""The result of a reconciliation, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import Row

from ordack.config.names import PeerNames, counted, legible

FINDINGS_MAX = 1000  # named; the count and the view include all findings
NAMED_MAX = 20  # in the text
STATUS = {"reconciled": 0, "violations": 1, "incomplete": 3}


class Kind(NamedTuple):
    """The meaning of a kind of finding. violation: False for an unknown outcome."""

    violation: bool
    meaning: str


KINDS = {
    "missing": Kind(True, "acknowledged, and in no segment and no row of the table: lost, purged, or received by "
                    "another program"),
    "missing_in_table": Kind(True, "in a segment that the table has taken, and not in the table"),
    "in_no_segment": Kind(True, "in the table, and in no segment"),
    "never_sent": Kind(True, "stored while its source was captured, and not in the captures"),
    "twice_in_segments": Kind(True, "in the segments more than once"),
    "twice_in_table": Kind(True, "in the table more than once"),
    "other_body_in_segments": Kind(True, "in a segment with another body than was sent"),
    "other_body_in_table": Kind(True, "in the table with another body than was sent, or, if the captures do not show "
                                "that, than in its segment"),
    "body_not_compared": Kind(False, "in the table without its body: the table has no column body"),
    "not_exported_yet": Kind(False, "acknowledged, and perhaps still in its queue: export, ingest and reconcile again"),
    "not_ingested_yet": Kind(False, "in a segment that the table has not taken yet: ingest, and reconcile again"),
    "queue_not_exported": Kind(False, "acknowledged, and sent to a queue of which there is no segment: name all "
                               "folders, or with --queue the queue"),
    "of_other_folder": Kind(False, "in the table, which has messages of other folders, too: name them all"),
    "source_not_captured": Kind(False, "stored while captures were made that have nothing of its source: capture "
                                "wherever messages come in"),
    "perhaps_not_captured": Kind(False, "stored and not in the captures, which have holes or damage"),
}  # fmt: skip


class Packet(NamedTuple):
    """The place of a packet: file, frame, and microseconds since 1970."""

    file: str
    frame: int
    time: int

    def __str__(self) -> str:
        return f"{self.file}:{self.frame} at {moment(self.time)}"


class Finding(NamedTuple):
    """One message with its problem. sent, acknowledged: packets that show it, or None."""

    kind: str
    source_queue_manager: str
    message_id: int
    message_key: str
    queue: str | None
    destination_queue: str | None
    segments: int
    table: int
    sent: Packet | None
    acknowledged: Packet | None

    def __str__(self) -> str:
        text = f"{self.source_queue_manager}\\{self.message_id}"
        if self.queue or self.destination_queue:
            text += f" to {self.queue or self.destination_queue}"
        if self.kind.startswith("twice"):
            text += f", {self.table if self.kind.endswith('table') else self.segments} times"
        for what, packet in (("sent", self.sent), ("acknowledged", self.acknowledged)):
            text += f", {what} in {packet}" if packet else ""
        return legible(text)


@dataclass
class Result:
    """names: captures, segments and table. totals: captured and acknowledged messages to the segments' queue managers,
    copies in segments and table, and messages stored during the captures. found: number of findings by kind. events:
    gaps in the captures. peer_names: display names of queue managers."""

    names: dict[str, Any]
    totals: dict[str, int]
    found: dict[str, int]
    findings: list[Finding]
    events: dict[str, int]
    peer_names: PeerNames = field(default=PeerNames({}), compare=False)

    @property
    def violations(self) -> int:
        return sum(count for kind, count in self.found.items() if KINDS[kind].violation)

    @property
    def unknown(self) -> int:
        return sum(self.found.values()) - self.violations

    @property
    def verdict(self) -> str:
        if self.violations:
            return "violations"
        return "incomplete" if self.unknown or self.incomplete else "reconciled"

    @property
    def incomplete(self) -> list[str]:
        """Reasons why a comparison without violations does not prove completeness."""
        reasons = [
            f"the captures are not whole: {event} {count} times" for event, count in self.events.items() if count
        ]
        if not self.totals["acknowledged"]:
            reasons.append("the captures show no acknowledgement, so nothing was promised: capture both directions")
        if not self.totals["stored_meanwhile"]:
            reasons.append(
                "no message was stored while the captures were made, so whether one was never sent is not known: do "
                "the clocks of the captures and of the queue manager agree?"
            )
        return reasons

    def as_json(self) -> dict[str, Any]:
        """Return the object that `ordack table reconcile --json` prints."""
        return {
            "verdict": self.verdict,
            "incomplete": self.incomplete,
            **self.names,
            **self.totals,
            "found": self.found,
            "findings": [
                {
                    **one._asdict(),
                    "source_name": self.peer_names.of(one.source_queue_manager),
                    "sent": one.sent and {**one.sent._asdict(), "time": moment(one.sent.time)},
                    "acknowledged": one.acknowledged
                    and {**one.acknowledged._asdict(), "time": moment(one.acknowledged.time)},
                }
                for one in self.findings
            ],
            "captures_lack": self.events,
        }

    def lines(self) -> list[str]:
        """Return the report for people."""
        totals = self.totals
        lines = [
            (
                f"{self.verdict}: {counted(totals['acknowledged'], 'acknowledged message')} of {totals['captured']} in "
                f"the captures; {totals['in_segments']} in segments, {totals['in_table']} in the table"
            )
        ]
        for kind, count in self.found.items():
            if not count:
                continue
            lines.append(f"{kind.replace('_', ' ')} ({count}): {KINDS[kind].meaning}")
            named = [one for one in self.findings if one.kind == kind][:NAMED_MAX]
            lines += [f"  {one}" for one in named]
            if count > len(named):
                lines.append(f"  and {count - len(named)} more")
        lines += self.incomplete
        return [self.peer_names.added(legible(line)) for line in lines]


def moment(microseconds: int) -> str:
    """Format microseconds since 1970 as UTC."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06}Z"


def micros(value: datetime | None) -> int | None:
    """Convert a time collected by pyspark, which is naive local time."""
    return None if value is None else round(value.timestamp() * 1e6)


def _packet(row: Row | None) -> Packet | None:
    return None if row is None else Packet(row["file"], row["frame"], micros(row["time"]) or 0)


def finding_of(row: Row) -> Finding:
    """Convert a row of Compared.findings."""
    values = {name: row[name] for name in Finding._fields if name not in ("sent", "acknowledged")}
    return Finding(**values, sent=_packet(row["first"]), acknowledged=_packet(row["acknowledged"]))
