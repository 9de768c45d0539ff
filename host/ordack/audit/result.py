"""The result of an audit: plain, picklable values without numpy.

A stream is the unit of the receiver's state (B-099, A-21): the transactional messages from one source queue manager to
one destination queue, at one hop count. A forwarding queue manager sends them a second time (B-012). A stream runs
through its sequences one after the other (B-096).

A capture is one observation, ordered by packet completion. A sequence's number is *accounted for* if all transmissions
of it and of greater numbers are certainly seen. Then the capture has no gap of the sender since the SentTime, or since
a lower sequence of the stream was accounted for or seen. If the capture has any gap, a connection without an end is a
gap too, once its sender has begun a later one to the same peer. The audit remembers at least the last 64 messages of a
sequence, and up to 1,024 pending ones. It reports nothing about older messages that needs their MessageID or
acknowledgements.

Kinds of violation, with the condition for each report:
  renumbered          One (sequence, number) has two MessageIDs, or one MessageID of a source has two (sequence, number)
                      in a stream (A-08, B-309, B-317, B-318).
  id_went_back        A message has a lower sequence than the stream has used (B-078, B-093), on the connection that
                      carried the higher one or on a later connection. On an older connection it may be late: reported
                      only if its sender had shown an OrderAck for the higher one. Not for forwarded streams.
  ack_beyond_receipt  An OrderAck or FinalAck names a number that is accounted for and unsent (B-110, B-230). Or it
                      names an unsent sequence above one that began within the capture, although identifiers of a queue
                      manager only rise (B-079). Or, on a connection seen whole, a SessionHeader's AckSequenceNumber or
                      recoverable bits exceed what the other side has sent (B-229).
  skipped             An OrderAck names a sent number that the receiver's rule (B-270) cannot have reached, because the
                      number in PreviousTxSequenceNumber is accounted for and unsent (B-110). A FinalAck of a class that
                      follows insertion (0x4000, 0xC000 to 0xC004) shows the same (B-338 to B-342).
  count_mismatch      A SessionHeader's UserMsgSequenceNumber or RecoverableMsgSeqNumber differs from the packets
                      counted in its direction (B-104, B-105, B-227), on a connection seen whole. A header carried by a
                      message may exclude that message (OP-14).
  resent_after_ack    A message was resent on a connection on which its sender had shown that it was settled: by a
                      SessionHeader that covers its FinalAck (B-244), or its OrderAck and a packet after the session
                      acknowledgement (B-236, B-224). On a later connection it counts as a resend, because a sender may
                      forget at a power cut. Not for forwarded streams.
  delivered_twice     One message has two FinalAcks of classes that follow insertion, with different MessageIDs (B-116).
                      Or the receiver's OrderAcks went back and passed again a number that was resent in between
                      (A-01, B-271).

A verdict that depends on missing packets is `unknown`. The audit does not judge acknowledgements of sequences that may
be older than the capture (A-30).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ordack.config.names import PeerNames, counted

Word = Literal["no violations", "violations", "incomplete"]
STATUS: dict[Word, int] = {"no violations": 0, "violations": 1, "incomplete": 3}
KINDS = (
    "renumbered", "ack_beyond_receipt", "id_went_back", "skipped", "count_mismatch", "resent_after_ack",
    "delivered_twice",
)  # fmt: skip

# Why the receiver's rule does not accept a message (B-270). FinalAcks that reject on arrival (B-261) count by class, as
# "0x8003".
REJECTS = ("duplicate", "hole", "old_sequence", "sequence_start_missing")


class PacketPlace(NamedTuple):
    """The place of a packet. file: index in AuditResult.paths. frame: number of its first frame, from 1. time: ns since
    1970."""

    file: int
    frame: int
    time: int


class StreamKey(NamedTuple):
    """source_queue_manager: GUID as text. destination_queue: format name as on the wire, but a private name (DQ 3) has
    its host's GUID. hops: hop count."""

    source_queue_manager: str
    destination_queue: str
    hops: int


class SequenceId(NamedTuple):
    """A TxSequenceID."""

    ordinal: int
    time_stamp: int


def count_text(number: int, word: str) -> str:
    """Format a count for a report: 1 hole, 2,000 holes."""
    return counted(number, word, grouped=True)


def kinds_text(counts: dict[str, int]) -> str:
    """Format the counts of violations by kind for a report."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion from the whole capture. Text, JSON, page and exit status use it.

    text: one sentence without a capital letter. incomplete: reasons why evidence may be missing.
    """

    word: Word
    text: str
    incomplete: list[str]

    @property
    def status(self) -> int:
        """Exit status."""
        return STATUS[self.word]


@dataclass(frozen=True, slots=True)
class Violation:
    """kind: of KINDS. stream, sequence: None for a violation of a connection. connection: index in
    AuditResult.connections. number: TxSequenceNumber, 0 if none. rule: rule numbers. packets: the evidence, in
    order."""

    kind: str
    stream: StreamKey | None
    sequence: SequenceId | None
    connection: int
    number: int
    text: str
    rule: str
    packets: tuple[PacketPlace, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A possible violation that gaps in the capture leave undecided. reason: what may be missing."""

    kind: str
    stream: StreamKey | None
    sequence: SequenceId | None
    connection: int
    number: int
    reason: str
    packets: tuple[PacketPlace, ...]


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """One sequence of a stream. Counts are of distinct message numbers unless said otherwise.

    resends: repeated transmissions of a number. order_acked: messages covered by an OrderAck. final_acked: messages
    with a FinalAck of any class. unsettled: messages with neither a FinalAck nor, if JN and JP are not set, an OrderAck
    (C-05). highest: highest number seen. acknowledged: highest number in an OrderAck.
    """

    sequence: SequenceId
    messages: int
    resends: int
    rejects: dict[str, int]
    order_acked: int
    final_acked: int
    unsettled: int
    highest: int
    acknowledged: int
    first_time: int
    last_time: int


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A stream, with sums over its sequences. sequence: the last one. Times are in ns since 1970.

    connections: number of connections that carried the stream. holes: possible gaps in the capture of this sender.
    final_acks: messages by the class of their FinalAck, such as "0x4000" (received).
    """

    stream: StreamKey
    sequence: SequenceId
    sequences: tuple[SequenceReport, ...]
    sequence_count: int
    connections: int
    messages: int
    resends: int
    rejects: dict[str, int]
    order_acked: int
    final_acked: int
    unsettled: int
    holes: int
    violations: dict[str, int]
    unknowns: dict[str, int]
    first_time: int
    last_time: int
    final_acks: dict[str, int]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """summary: the JSON object of `ordack capture audit --json`. paths: files, in the order of their first frames.

    damages: (path, reason) of unreadable data. violations, unknowns: at most 1,000 of each kind for a stream, with
    packets; summary and streams count all. connections: {index: both ends} of connections in findings. worst: 1,000
    streams sorted by violations, unknown verdicts and resends. names: display names of queue managers.
    """

    summary: dict[str, Any]
    paths: list[str]
    damages: list[tuple[str, str]]
    violations: list[Violation]
    unknowns: list[Unknown]
    streams: Sequence[StreamReport]
    connections: dict[int, tuple[str, str]]
    worst: Sequence[StreamReport]
    names: PeerNames = field(default=PeerNames({}), compare=False)

    def add_damages(self, damages: Iterable[tuple[str, str]]) -> None:
        """Add unreadable data, and update the summary."""
        self.damages.extend(damages)
        self.summary["damages"] = list(map(list, self.damages))
        self.summary["incomplete"] = self.verdict.incomplete
        self.summary["verdict"] = self.verdict.word

    @property
    def verdict(self) -> Verdict:
        """The conclusion from the capture, and the gaps in its evidence."""
        summary, incomplete = self.summary, self._incomplete()
        if total := sum(summary["violations"].values()):
            return Verdict(
                "violations", f"{count_text(total, 'violation')}: {kinds_text(summary['violations'])}", incomplete
            )
        if incomplete:
            text = f"no violations, but the evidence is incomplete: {', '.join(incomplete)}"
            return Verdict("incomplete", text, incomplete)
        if not summary["messages"]:
            what = "transactional message" if summary["packets"] else "packet of the protocol"
            return Verdict("no violations", f"no violations, because no {what} is in the capture", incomplete)
        return Verdict("no violations", "no violations", incomplete)

    def _incomplete(self) -> list[str]:
        """Return the reasons why the evidence is incomplete. A gap may hide a violation."""
        summary = self.summary
        counts = {
            "unknown verdict": sum(summary["unknown"].values()),
            "hole": summary["holes"],
            "malformed packet": summary["malformed"],
            "unreadable frame": summary["unsupported_frames"],
            "damaged or missing file": len({path for path, _ in self.damages}),
        }
        return [count_text(count, what) for what, count in counts.items() if count]
