"""What an audit says: plain values, picklable, no numpy.

A stream is what the receiver keeps state for (B-099, A-21): the transactional messages from one source queue manager to
one destination queue, at one hop count (a queue manager that forwards them, B-012, sends them a second time). The
sequences that it runs through one after the other (B-096) are in it.

All of a capture is one observation, in the order in which packets were completed. A number of a sequence is *accounted
for* if all transmissions of it and of greater ones are certainly seen: nothing of its sender was missed since its
SentTime, or since a lower sequence of the stream was accounted for or seen. Of each sequence the last 64 messages at
least are remembered, up to 1,024 while something is to be expected for them. Of older ones nothing is reported that
needs their MessageID or their acknowledgements.

Kinds of violation, and when one is reported:
  renumbered          One (sequence, number) with two MessageIDs, or one MessageID of a source under two (sequence,
                      number) of a stream (A-08, B-309, B-317, B-318).
  id_went_back        A message of a sequence lower than one that the stream has used (B-078, B-093), on the
                      connection that carried the higher one, or on one that began afterwards. On an older connection
                      it may be late: there only if its sender had shown an OrderAck for the higher one. Not of
                      forwarded streams.
  ack_beyond_receipt  An OrderAck, or a FinalAck, names a number that is accounted for and was not sent so far (B-110,
                      B-230), or a sequence of which nothing was sent, above one that began within the capture: the
                      identifiers of a queue manager only rise (B-079). Or a SessionHeader's AckSequenceNumber, or its
                      recoverable bits, exceed what the other side has sent on a connection that was seen whole (B-229).
  skipped             An OrderAck names a number that was sent, but that the receiver's rule (B-270) cannot have
                      reached: what PreviousTxSequenceNumber points at is accounted for and was not sent (B-110). A
                      FinalAck of a class that follows insertion (0x4000, 0xC000 to 0xC004) shows the same (B-338 to
                      B-342).
  count_mismatch      UserMsgSequenceNumber or RecoverableMsgSeqNumber of a SessionHeader differs from the packets
                      counted in its direction (B-104, B-105, B-227), on a connection that was seen whole. A header
                      carried by a message may leave that message out (OP-14).
  resent_after_ack    A message was sent again on a connection on which its sender had shown that it knew it as
                      settled: by a SessionHeader that covers its FinalAck (B-244), or its OrderAck and a packet after
                      the session acknowledgement (B-236, B-224). On a later connection it counts as a resend: a sender
                      that lost its power may have forgotten. Not of forwarded streams.
  delivered_twice     Two FinalAcks of classes that follow insertion, with MessageIDs of their own, for one message
                      (B-116). Or the receiver's OrderAcks went back, and came over a number again that was resent in
                      between (A-01, B-271).

Where packets are missing, a verdict that depends on them is `unknown`. Nothing is said of acknowledgements of sequences
that may be older than the capture (A-30).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ordack.config.names import PeerNames, counted

Word = Literal["no violations", "violations", "incomplete"]
STATUS: dict[Word, int] = {"no violations": 0, "violations": 1, "incomplete": 3}
KINDS = (
    "renumbered",
    "ack_beyond_receipt",
    "id_went_back",
    "skipped",
    "count_mismatch",
    "resent_after_ack",
    "delivered_twice",
)

# Why the receiver's rule does not accept a message (B-270). FinalAcks that reject on arrival (B-261) count as "0x8003"
# and so on.
REJECTS = ("duplicate", "hole", "old_sequence", "sequence_start_missing")


class PacketPlace(NamedTuple):
    """Where a packet is. file: index in AuditResult.paths. frame: from 1, in which the packet begins. time: ns since
    1970."""

    file: int
    frame: int
    time: int


class StreamKey(NamedTuple):
    """source_queue_manager: GUID as text. destination_queue: format name as in the packets; a private name (DQ 3)
    with the GUID of its host. hops: hop count at which it was seen."""

    source_queue_manager: str
    destination_queue: str
    hops: int


class SequenceId(NamedTuple):
    """A TxSequenceID."""

    ordinal: int
    time_stamp: int


def count_text(number: int, word: str) -> str:
    """A number of things, in a report: 1 hole, 2,000 holes."""
    return counted(number, word, grouped=True)


def kinds_text(counts: dict[str, int]) -> str:
    """Numbers of violations by kind, in a report."""
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the whole capture shows. Text, JSON, page and exit status all say this.

    text: one sentence, without a capital letter. incomplete: why something may not have been seen.
    """

    word: Word
    text: str
    incomplete: list[str]

    @property
    def status(self) -> int:
        """The exit status."""
        return STATUS[self.word]


@dataclass(frozen=True, slots=True)
class Violation:
    """kind: of KINDS. stream, sequence: None if it is the connection that shows it. connection: index in
    AuditResult.connections. number: TxSequenceNumber, 0 if none. rule: numbers of the rules. packets: the evidence, in
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
    """A violation that would have been reported if everything had been seen. reason: what may be missing."""

    kind: str
    stream: StreamKey | None
    sequence: SequenceId | None
    connection: int
    number: int
    reason: str
    packets: tuple[PacketPlace, ...]


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """One sequence of a stream. Counts are of messages (different numbers seen) unless said otherwise.

    resends: transmissions of a number that was seen before. order_acked: covered
    by an OrderAck. final_acked: by a FinalAck of any class. unsettled: at the end neither settled by a FinalAck, nor
    by an OrderAck that is enough because neither JN nor JP was set (C-05). highest: number seen. acknowledged: by
    OrderAcks.
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
    """A stream: sums over its sequences, whose last one is `sequence`. Times in ns since 1970.

    connections: how many carried it. holes: how often something of this sender's may have been lost to the capture.
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
class SenderReport:
    """All streams of a source queue manager together."""

    source_queue_manager: str
    streams: int
    messages: int
    resends: int
    rejects: int
    unsettled: int
    violations: int
    unknowns: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """summary: the JSON object of `ordack audit --json`. paths: the files, in the order of their first frames.

    damages: (path, text) for what could not be read. violations, unknowns: at most 1,000 of a kind for a stream are
    kept with their packets; the counts in summary and streams are of all. connections: both ends of those that
    findings name, by index of the capture. worst: the 1,000 streams with most violations, then unknown verdicts, then
    resends. names: what people call queue managers.
    """

    summary: dict[str, Any]
    paths: list[str]
    damages: list[tuple[str, str]]
    violations: list[Violation]
    unknowns: list[Unknown]
    streams: Sequence[StreamReport]
    senders: list[SenderReport]
    connections: dict[int, tuple[str, str]]
    worst: Sequence[StreamReport]
    names: PeerNames = field(default=PeerNames({}), compare=False)

    def add_damages(self, damages: Iterable[tuple[str, str]]) -> None:
        """More that could not be read."""
        self.damages.extend(damages)
        self.summary["damages"] = list(map(list, self.damages))
        self.summary["incomplete"] = self.verdict.incomplete
        self.summary["verdict"] = self.verdict.word

    @property
    def verdict(self) -> Verdict:
        """What the capture shows, and whether all of it was seen."""
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
        """Why the evidence is incomplete: what was not seen may have been a violation."""
        summary = self.summary
        counts = {
            "unknown verdict": sum(summary["unknown"].values()),
            "hole": summary["holes"],
            "malformed packet": summary["malformed"],
            "unreadable frame": summary["unsupported_frames"],
            "damaged or missing file": len({path for path, _ in self.damages}),
        }
        return [count_text(count, what) for what, count in counts.items() if count]
