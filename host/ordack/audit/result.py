"""What an audit says: plain values, picklable, no numpy.

A stream here is what the receiver keeps state for (B-099, A-21): the transactional messages from one source queue
manager to one destination queue, at one hop count (a queue manager on the way that forwards them, B-012, sends them a
second time, and that is no resend). The sequences that it runs through one after the other (B-096) are in it: the
summary counts them, because a sequence is what the specification calls a stream of messages (B-091).

When is a verdict certain? All of a capture is one observation, in the order in which packets were completed. What may
have been sent unseen: all before the capture's first frame, and what a hole, a connection older than the capture, or
a file that ends early swallowed. `unseen` below is the last such moment for the sender concerned. A number n of a
sequence is *accounted for* if all transmissions of it and of greater ones are certainly seen, because one of these
holds:
  - the message n (or a lower one) was handed to its queue manager after `unseen`: its SentTime, whole seconds, is not
    before it. A sender's clock that is ahead of the capture's would spoil this: once a SentTime lies more than a
    second in the future, those of its queue manager prove nothing;
  - a lower sequence of the stream was accounted for, or was seen after `unseen` on a connection that began in the
    capture (a sender begins a new one when the old one is drained, B-093, B-096).

What is remembered of single messages is bounded: of each sequence the last ones, 64 at least, and up to 1,024 while
something is to be expected for them. Of older ones nothing is reported that needs their MessageID or their
acknowledgements. A file that is missing altogether leaves no trace of connections that were wholly in it, but for the
numbers in the files' names, if the times inside leave room for it: one left out between two that follow on one another
is a hole for every sender and every open connection.

Kinds of violation, and when one is reported:
  renumbered          One (sequence, number) with two MessageIDs, or one MessageID of a source under two (sequence,
                      number) of a stream (A-08, B-309, B-317, B-318). Compared with what the window of the stream
                      still has. Needs no other packet.
  id_went_back        A message of a sequence lower than one that the stream has used (B-078, B-093), on the
                      connection that carried the higher one, or on one that began afterwards. On an older connection
                      it may be late: there only if a SessionHeader of the sender, before it in its direction, covers an
                      OrderAck for the higher one. Not of streams that another queue manager forwards: what waits there
                      is sent later than it was numbered.
  ack_beyond_receipt  An OrderAck, or a FinalAck, names a number that is accounted for and was not sent so far (B-110,
                      B-230). Or it names a sequence of which nothing was sent (the next paragraph). Or a
                      SessionHeader's AckSequenceNumber, or its recoverable bits, exceed what the other
                      side has sent on a connection that was seen from its beginning without a hole (B-229).
  skipped             An OrderAck names a number that was sent, but which the receiver's rule (B-270), applied to all
                      that was seen, cannot have reached: what PreviousTxSequenceNumber points at is accounted for and
                      was not sent (B-110). A FinalAck of a class that follows insertion (0x4000, 0xC000 to 0xC004)
                      shows the same (B-338 to B-342).
  count_mismatch      UserMsgSequenceNumber or RecoverableMsgSeqNumber of a SessionHeader differs from the packets
                      counted in its direction (B-104, B-105, B-227), on a connection seen from its beginning without
                      a hole. A header carried by a message may leave that message out (OP-14). The same difference
                      is reported once.
  resent_after_ack    A message was sent again on a connection on which its sender had shown that it knew it as
                      settled: by a SessionHeader that covers the FinalAck of the message (B-244), or covers both an
                      OrderAck for it and a packet after the SessionHeader that acknowledged the message (B-236,
                      B-224; one without bits for recoverable messages only if the OrderAck came after it). Earlier
                      it is legal: acknowledgements cross, or get lost. On a later connection too: a sender that lost
                      its power may have forgotten them; the message counts as a resend. Not of streams that another
                      queue manager forwards: what that one has, the source may not have.
  delivered_twice     Two FinalAcks of classes that follow insertion, for one message, that are two messages (by their
                      own MessageIDs; one sent again keeps its own): it was removed from the queue twice (B-116). Or
                      the receiver's OrderAcks went back (generated later, by their own MessageIDs), and then came
                      back over a number that was sent again in between: it was accepted twice (A-01, B-271). Or a
                      renumbered message, one MessageID under two (sequence, number), of which both are covered by
                      OrderAcks (A-08, B-271, B-309). Not if a FinalAck says that one was rejected on arrival (B-115,
                      B-262), and not if a number after it, which the OrderAck covers as well, leads past it: then
                      the receiver need not have had it (B-270).

An acknowledgement of a sequence of which nothing was seen: most are legal, because a FinalAck comes when the
application takes the message, and an OrderAck may come on a later session (A-30), long after the messages. That a
connection was seen whole proves nothing: the sequence may be older. One thing does: identifiers of a queue manager
only rise (B-079). If a sequence L of it followed, between these two hosts, on one that was in use after `unseen` (by a
SentTime, as above; not a forwarded stream), then L began within the capture, and what is above L began later still:
its messages would have been seen. So an acknowledgement of a sequence above L is ack_beyond_receipt, shown with L's
stream and the first message of L; one of an OrderAck only where a single source sends from that host (an OrderAck
names no source, and may be addressed to who forwards, B-361). It is `unknown` if something of that sender was missed
since; or if its time stamp is not L's: a queue that began to count by itself, or another queue manager, could have
such an identifier. Below L, or below what is not remembered any more, or where no sequence followed on another,
nothing is said: every capture that begins in the middle has such acknowledgements.

What becomes `unknown` where packets are missing: ack_beyond_receipt and skipped of numbers not accounted for, or if the
sender has begun another connection to this host and no end of the one that carried the sequence last was seen (of its
last packets nothing tells; once the sequence goes on elsewhere, the capture is taken to have had them); of a direction
with a hole, what a SessionHeader counts and acknowledges (once each); a message accepted under two numbers that are not
both accounted for, or if something of the receiver's was missed since the first was sent. What a hole that is found
later may explain becomes unknown too, for all that these hosts and the senders on the connection have sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from ordack.broker.peer_names import PeerNames
from ordack.text import counted

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


class Packet(NamedTuple):
    """Where a packet is. file: index in Result.paths. frame: from 1, in which the packet begins. time: ns since
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
class Latency:
    """Milliseconds; percentiles from a histogram with steps of at most 1/8, max exact. count 0: the rest is 0."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float

    def as_json(self) -> dict[str, float | None]:
        """For other programs: of nothing there are no percentiles."""
        return {name: value if self.count or name == "count" else None for name, value in asdict(self).items()}


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
    Result.connections. number: TxSequenceNumber, 0 if none. rule: numbers of the rules. packets: those that show it,
    in order."""

    kind: str
    stream: StreamKey | None
    sequence: SequenceId | None
    connection: int
    number: int
    text: str
    rule: str
    packets: tuple[Packet, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A violation that would have been reported if everything had been seen. reason: what may be missing."""

    kind: str
    stream: StreamKey | None
    sequence: SequenceId | None
    connection: int
    number: int
    reason: str
    packets: tuple[Packet, ...]


@dataclass(frozen=True, slots=True)
class SequenceReport:
    """One sequence of a stream. Counts are of messages (different numbers seen) unless said otherwise.

    first_transmissions, resends: transmissions; one is a resend if its number was seen before. order_acked: covered
    by an OrderAck. final_acked: by a FinalAck of any class. unsettled: at the end neither settled by a FinalAck, nor
    by an OrderAck that is enough because neither JN nor JP was set (C-05). highest: number seen. acknowledged: by
    OrderAcks.
    """

    sequence: SequenceId
    messages: int
    first_transmissions: int
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
    latency: {"session", "order", "final"}: from the first transmission seen to the SessionHeader, OrderAck, FinalAck
    that covers it. histograms: the same, {kind: {upper bound in ms: messages}}. outcomes: messages by what confirm's
    rules say has become of them (OUTCOMES), a negative class as "0x8003". sequences_dropped: of `sequences` only the
    last 1,000 are kept in detail.
    """

    stream: StreamKey
    sequence: SequenceId
    sequences: tuple[SequenceReport, ...]
    sequence_count: int
    connections: int
    messages: int
    first_transmissions: int
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
    latency: dict[str, Latency]
    histograms: dict[str, dict[float, int]]
    outcomes: dict[str, int]


# What has become of a message, besides the classes of negative FinalAcks: received (C-25), stored at its destination
# and nothing more is asked for (C-40), waiting for its FinalAck (O), on its way (S), in doubt: a deadline of C-20 to
# C-23 has passed without an answer.
OUTCOMES = ("received", "stored", "waiting", "sent", "in_doubt")


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
    latency: dict[str, Latency]


@dataclass(frozen=True, slots=True)
class Result:
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
    histograms: dict[str, dict[float, int]]
    latency: dict[str, Latency]
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
