"""What the C core has found against the rules: what of it holds at the end, and what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
from _mqqb import lib
from numpy.typing import NDArray

from ordack.audit.reports import Partial, Structure
from ordack.audit.result import KINDS, Packet, SequenceId, Unknown, Violation

STRAY = (lib.MQQB_AUDIT_ORDER_ACK_STRAY, lib.MQQB_AUDIT_FINAL_ACK_STRAY)
_OF_NUMBERS = (
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
    """What was found too early becomes unknown; counts follow. Returns the findings, without the marks that tell so."""
    hosts = connections["pair"][findings["connection"]] // 2
    late = findings["detail"] == lib.MQQB_AUDIT_LATE
    times = findings["packet"]["time"][np.arange(len(findings)), findings["packets"].astype(np.int64) - 1]
    dependent = np.isin(findings["detail"], _OF_NUMBERS + _OF_COUNTS)
    sources = np.zeros(len(findings), np.uint32)
    of_flows = findings["flow"] != 0
    sources[of_flows] = flows["key"]["source"][findings["flow"][of_flows].astype(np.int64) - 1]
    for mark in np.flatnonzero(late).tolist():
        found = findings[mark]
        concerned = dependent & (findings["unknown"] == 0) & (times >= times[mark])
        concerned &= (hosts == hosts[mark]) | (of_flows & (sources == found["a"]))
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


# By detail: the rules, and the text of a violation.
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


def finding(partial: Partial, found: Any, connection: int) -> Violation | Unknown:
    """One of partial.findings. connection: index in Result.connections."""
    flow = int(found["flow"])
    sequence = SequenceId(int(found["ordinal"]), int(found["time_stamp"])) if flow else None
    stream = partial.stream(flow - 1) if flow else None
    kind, number = KINDS[found["kind"]], int(found["number"])
    shown = tuple(
        Packet(int(packet["file"]), int(packet["frame"]), int(packet["time"]))
        for packet in found["packet"][: found["packets"]]
    )
    if found["unknown"]:
        return Unknown(kind, stream, sequence, connection, number, _reason(partial, found), shown)
    rule, text = _SAID[int(found["detail"])]
    name = f"{sequence.ordinal}/{sequence.time_stamp}" if sequence else ""
    said = text.format(number=number, a=int(found["a"]), b=int(found["b"]), sequence=name)
    return Violation(kind, stream, sequence, connection, number, said, rule, shown)
