"""What one batch decides, until it is written: in one transaction, or not at all."""

from __future__ import annotations

from mqqb import headers
from mqqb.streams import Entry

from ordack.broker.incoming import IncomingState
from ordack.broker.links import Link
from ordack.broker.outcome import Outcomes
from ordack.broker.outgoing import OutgoingQueue
from ordack.broker.tables import key_of
from ordack.store.counters import Counters
from ordack.store.messages import NewMessage


class Batch:
    """outcomes: writes at once, in the batch's transaction; all else waits here.

    messages: for queues here, and queued: bytes of these, by queue. forwarded: with the name of their outgoing queue.
    noted: for the duplicate filter. incoming: streams that have moved, and forgotten ones.
    stored: of how many messages the sessions are to hear, recoverable ones or not, in order. refused: links that had to
    be closed. received: messages that were decided, by link; refusals: those that were refused, with their class, or 0
    for want of room. order_acked: how many milliseconds it took until OrderAcks came.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes = outcomes
        self.messages: list[NewMessage] = []
        self.queued: dict[int, int] = {}
        self.forwarded: list[tuple[str, headers.UserMessage, bytearray]] = []
        self.noted: dict[tuple[bytes, int], None] = {}
        self.incoming: dict[IncomingState, None] = {}
        self.forgotten: list[tuple[bytes, str]] = []
        self.rejected: list[tuple[IncomingState | None, bytes]] = []  # with the peer under which the FinalAck is filed
        self.stored: list[tuple[Link, bool, int]] = []
        self.refused: set[Link] = set()
        self.received: dict[Link, int] = {}
        self.refusals: list[tuple[Link, int]] = []
        self.order_acked: list[int] = []
        self.touched: dict[OutgoingQueue, None] = {}  # something has left these
        self.moved: dict[OutgoingQueue, None] = {}  # their streams are to be saved
        self.passed_on: list[int] = []  # keys of what sessions have acknowledged, not transactional
        self.journaled: list[int] = []  # those of it with JN or JP
        self.answers: list[tuple[int, int]] = []  # key, class of a FinalAck or 0 for an OrderAck; in order of arrival
        self.queue_of: dict[int, OutgoingQueue] = {}  # by these keys, and those of what has ended otherwise

    def passed(self, queue: OutgoingQueue, entries: list[Entry]) -> None:
        """A session has acknowledged these for good."""
        queue.stream.remove(entries)
        self.touched[queue] = None
        for entry in entries:
            (self.journaled if entry.journal else self.passed_on).append(key_of(entry))

    def answer(self, queue: OutgoingQueue, entries: list[Entry], message_class: int) -> None:
        """An acknowledgement says this of messages."""
        keys = list(map(key_of, entries))
        self.answers += [(key, message_class) for key in keys]
        self.queue_of.update(dict.fromkeys(keys, queue))
        self.touched[queue] = self.moved[queue] = None

    def count(self, counters: Counters) -> None:
        """All of it has happened."""
        stored = sum(1 + len(message.more) for message in self.messages) + len(self.forwarded)
        if stored:
            counters.batches.add(stored)
        for link, count in self.received.items():
            link.counts.received += count
        for link, message_class in self.refusals:
            link.counts.refuse(message_class)
            if message_class:
                counters.last_refusal = self.outcomes.now, message_class
        for took in self.order_acked:
            counters.order_acks.add(took)
        counters.failure = ""

    def take_out(self, queue: OutgoingQueue, entries: list[Entry]) -> None:
        """These have ended otherwise."""
        queue.stream.remove(entries)
        queue.watched = None
        self.queue_of.update((key_of(entry), queue) for entry in entries)
        self.touched[queue] = self.moved[queue] = None
