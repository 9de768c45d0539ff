"""The result of one audit task: the C core's tables as findings and as reports of streams."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _mqqb import lib
from mqqb.guids import format_name, guid_text
from mqqb.headers import PrivateQueueFormatNameId
from numpy.typing import NDArray

from ordack.audit import result
from ordack.capture.columnar import PacketQueue
from ordack.capture.reading import end_text

COUNTS = ("messages", "resends", "order_acked", "final_acked", "unsettled")

Structure = NDArray[Any]


@dataclass(slots=True)
class Partial:
    """The result of one task. flows, connections, findings: structures of mqqb_audit.h.

    sequences: sequences kept in detail, by flow, each flow's in order. ends: see Decoder.ends. guids: by code; b"" is
    none. queues: by code, only queues of flows. missed: by queue manager's code, the number of gaps. pair_missed: gaps
    by host, two items for each of pairs. strays: (GUID or b"", ordinal, time stamp) of acknowledgements of sequences
    that this task has not seen. foreign: number of connections that never
    spoke the protocol.
    """

    flows: Structure
    sequences: Structure
    connections: Structure
    findings: Structure
    ends: NDArray[np.uint32]
    guids: list[bytes]
    queues: dict[int, PacketQueue]
    missed: NDArray[np.uint32]
    pairs: list[tuple[bytes, bytes]]
    pair_missed: NDArray[np.uint32]
    strays: set[tuple[bytes, int, int]]
    kind_counts: NDArray[np.int64]
    packets: int
    holes: int
    malformed: int
    foreign: int
    frames: int
    unread: int
    paths: list[str]
    damages: list[tuple[str, str]]
    gaps: list[tuple[str, str]]

    def stream(self, index: int) -> result.StreamKey:
        """Return the stream of a flow."""
        source, destination, address, hops = self.flows["key"][index].tolist()
        queue, text = self.queues[destination], self.queues[destination].text
        if host := self.guids[address]:  # DQ 3: a number on a host
            text = format_name(PrivateQueueFormatNameId(int.from_bytes(queue.raw[:4], "little")), host)
        return result.StreamKey(guid_text(self.guids[source]), text, hops)

    def streams(self) -> Iterator[result.StreamKey]:
        """Yield the streams of all flows."""
        return map(self.stream, range(len(self.flows)))

    def ends_of(self, connection: int) -> tuple[str, str]:
        """Return address and port of both ends."""
        one, other = self.ends[connection]
        return end_text(one.tobytes()), end_text(other.tobytes())

    def missed_sources(self) -> set[bytes]:
        """Return the GUIDs of queue managers with gaps in the capture."""
        return {self.guids[code] for code in np.flatnonzero(self.missed).tolist()}

    def missed_pairs(self) -> set[tuple[bytes, bytes]]:
        """Return the pairs of hosts with gaps in the capture between them."""
        return {self.pairs[place // 2] for place in np.flatnonzero(self.pair_missed).tolist()}

    def reports(self) -> Iterator[result.StreamReport]:
        """Yield the reports of all flows."""
        sequences = _sequence_reports(self.sequences)
        for index, key in enumerate(self.streams()):
            yield self._report(index, key, sequences[index + 1])

    def _report(self, index: int, key: result.StreamKey, details: list[result.SequenceReport]) -> result.StreamReport:
        flow = self.flows[index]
        folded = flow["folded"]
        rejects = Counter(_used(result.REJECTS, folded["rejects"]))
        for one in details:
            rejects.update(one.rejects)
        final_acks: dict[str, int] = {}
        for code, count in zip(flow["classes"].tolist(), flow["class_counts"].tolist()):
            if code and count:
                final_acks[f"0x{code:04X}"] = count
                if not code & 0x4000:
                    rejects[f"0x{code:04X}"] = count
        final_acks |= _used(("other",), flow["class_rest"][None])
        return result.StreamReport(
            stream=key,
            sequence=details[-1].sequence if details else result.SequenceId(0, 0),
            sequences=tuple(details),
            sequence_count=int(flow["sequences"]),
            rejects=dict(rejects),
            final_acks=final_acks,
            violations=_used(result.KINDS, flow["violations"]),
            unknowns=_used(result.KINDS, flow["unknowns"]),
            holes=int(self.missed[flow["key"]["source"]]),
            **{name: int(flow[name]) for name in ("connections", "first_time", "last_time")},
            **{name: int(folded[name]) + sum(getattr(one, name) for one in details) for name in COUNTS},
        )


def _used(names: Sequence[str], counts: NDArray[Any]) -> dict[str, int]:
    return {name: count for name, count in zip(names, counts.tolist()) if count}


def _sequence_reports(table: Structure) -> defaultdict[int, list[result.SequenceReport]]:
    """Return reports by flow, counted from 1, in the table's order."""
    reports: defaultdict[int, list[result.SequenceReport]] = defaultdict(list)
    for row in table:
        counts = row["counts"]
        reports[int(row["flow"])].append(
            result.SequenceReport(
                result.SequenceId(int(row["ordinal"]), int(row["time_stamp"])),
                **{name: int(counts[name]) for name in COUNTS},
                rejects=_used(result.REJECTS, counts["rejects"]),
                highest=int(row["highest"]),
                acknowledged=int(row["covered"]),
                first_time=int(row["first_time"]),
                last_time=int(row["last_time"]),
            )
        )
    return reports


# ---- findings

STRAY = (lib.MQQB_AUDIT_ORDER_ACK_STRAY, lib.MQQB_AUDIT_FINAL_ACK_STRAY)
OF_NUMBERS = (
    lib.MQQB_AUDIT_ORDER_ACK_UNSENT,
    lib.MQQB_AUDIT_ORDER_ACK_SKIPS,
    lib.MQQB_AUDIT_FINAL_ACK_UNSENT,
    lib.MQQB_AUDIT_FINAL_ACK_SKIPS,
    lib.MQQB_AUDIT_FINAL_ACK_OTHER,
    *STRAY,
)
_OF_COUNTS = (lib.MQQB_AUDIT_SESSION_ACK, lib.MQQB_AUDIT_RECOVERABLE_ACK)


def withdraw(
    findings: Structure, flows: Structure, kind_counts: NDArray[np.int64], connections: Structure
) -> Structure:
    """Make findings unknown that a gap discovered later puts in doubt. Adjust the counts, and drop the gaps' marks."""
    hosts = connections["pair"][findings["connection"]] // 2
    late = findings["detail"] == lib.MQQB_AUDIT_LATE
    times = findings["packet"]["time"][np.arange(len(findings)), findings["packets"].astype(np.int64) - 1]
    dependent = np.isin(findings["detail"], OF_NUMBERS + _OF_COUNTS)
    sources = np.zeros(len(findings), np.uint32)
    of_flows = findings["flow"] != 0
    sources[of_flows] = flows["key"]["source"][findings["flow"][of_flows].astype(np.int64) - 1]
    forwarders = connections["direction"]["owner"][findings["connection"], 1 - findings["direction"]]
    for mark in np.flatnonzero(late).tolist():
        found = findings[mark]
        concerned = dependent & (findings["unknown"] == 0) & (times >= times[mark])
        managed = (sources == found["a"]) | (forwarders == found["a"])
        concerned &= (hosts == hosts[mark]) | (of_flows & managed & (found["a"] != 0))
        concerned[mark:] = False
        for row in np.flatnonzero(concerned).tolist():
            kind, flow = findings["kind"][row], findings["flow"][row]
            findings["unknown"][row] = 1
            if flow:
                flows["violations"][flow - 1, kind] -= 1
                flows["unknowns"][flow - 1, kind] += 1
            else:
                kind_counts[:, kind] += (-1, 1)
    kept: Structure = findings[~late]
    return kept


# {detail: (rules, text of a violation)}
_SAID = {
    getattr(lib, f"MQQB_AUDIT_{detail}"): (rules, text)
    for detail, rules, text in (
        ("TWO_IDS", "A-08, B-317, B-318",
         "number {number} came with MessageID {a}, and then with {b}"),
        ("TWO_NUMBERS", "A-08, B-309",
         "MessageID {a} came under number {b}, and then under {number}"),
        ("LOWER_SEQUENCE", "B-078, B-093",
         "a message of sequence {sequence} after sequence {a}/{b} had begun"),
        ("ORDER_ACK_UNSENT", "B-110, B-230",
         "an OrderAck names number {number}, which was not sent; the highest that was is {a}"),
        ("ORDER_ACK_SKIPS", "B-110, B-270",
         ("an OrderAck names number {number}, whose previous one is {b}; the receiver cannot have come further "
          "than {a}")),
        ("FINAL_ACK_UNSENT", "B-241, B-360",
         "a FinalAck names number {number}, which was not sent; the highest that was is {a}"),
        ("FINAL_ACK_SKIPS", "B-270, B-337",
         ("a FinalAck says that number {number}, whose previous one is {b}, was in its queue; the receiver cannot "
          "have come further than {a}")),
        ("FINAL_ACK_OTHER", "B-241, B-360",
         "a FinalAck names number {number} with MessageID {a}; that number was sent with {b}"),
        ("SESSION_ACK", "B-101, B-229",
         "AckSequenceNumber is {a}; the other side has sent {b} messages"),
        ("RECOVERABLE_ACK", "B-102, B-103, B-229",
         ("RecoverableMsgAckSeqNumber is {a}, and with its flags it names more than the {b} recoverable messages "
          "that the other side has sent")),
        ("USER_COUNT", "B-104, B-227",
         "UserMsgSequenceNumber is {a}; counted were {b} messages"),
        ("RECOVERABLE_COUNT", "B-105, B-227",
         "RecoverableMsgSeqNumber is {a}; counted were {b} recoverable messages"),
        ("RESENT_ORDERED", "B-235, B-236",
         "number {number} was sent again after its sender had shown that it had the OrderAck for {a}"),
        ("RESENT_FINAL", "B-244",
         "number {number} was sent again after its sender had shown that it had the FinalAck, class 0x{a:04X}"),
        ("TWO_FINAL_ACKS", "B-116",
         "two FinalAcks, MessageIDs {a} and {b}, say that number {number} was removed from its queue"),
        ("WENT_BACK", "A-01, B-271",
         "the OrderAcks went back from {a}, and number {number} was accepted once more"),
        ("ORDER_ACK_STRAY", "B-079, B-110, B-230",
         ("an OrderAck names number {number} of sequence {sequence}, of which nothing was sent: it is above "
          "sequence {a}/{b}, which began in this capture")),
        ("FINAL_ACK_STRAY", "B-079, B-241, B-360",
         ("a FinalAck names number {number} of sequence {sequence}, of which nothing was sent: it is above "
          "sequence {a}/{b}, which began in this capture")),
    )
}  # fmt: skip


def _reason(partial: Partial, found: Any) -> str:
    connection = partial.connections[found["connection"]]
    if not found["flow"]:
        side = found["direction"] ^ (found["detail"] in _OF_COUNTS)
        own = connection["direction"][side]
        if own["holes"]:
            return "not all of this connection was captured"
        if own["malformed"]:
            return "a packet of this connection is malformed"
        if connection["begun"]:
            return "a part of the capture is missing"
        return "the connection is older than the capture"
    source = partial.flows[found["flow"] - 1]["key"]["source"]
    if found["detail"] in STRAY and found["time_stamp"] != found["b"]:
        return "sequence identifiers with another time stamp need not be younger"
    if partial.missed[source] or partial.pair_missed.any():
        return "something of this sender's may be missing in the capture"
    return "the sequence may be older than the capture, or the end of a connection may be missing"


def finding(partial: Partial, found: Any, connection: int) -> result.Violation | result.Unknown:
    """Convert a row of partial.findings. connection: index in AuditResult.connections."""
    flow = int(found["flow"])
    sequence = result.SequenceId(int(found["ordinal"]), int(found["time_stamp"])) if flow else None
    stream = partial.stream(flow - 1) if flow else None
    kind, number = result.KINDS[found["kind"]], int(found["number"])
    shown = tuple(
        result.PacketPlace(int(packet["file"]), int(packet["frame"]), int(packet["time"]))
        for packet in found["packet"][: found["packets"]]
    )
    if found["unknown"]:
        return result.Unknown(kind, stream, sequence, connection, number, _reason(partial, found), shown)
    rule, text = _SAID[int(found["detail"])]
    name = f"{sequence.ordinal}/{sequence.time_stamp}" if sequence else ""
    said = text.format(number=number, a=int(found["a"]), b=int(found["b"]), sequence=name)
    return result.Violation(kind, stream, sequence, connection, number, said, rule, shown)
