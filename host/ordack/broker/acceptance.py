"""Decides about a message from the network: store it in a queue here, forward it, or refuse it.

A refused transactional message is answered with a negative FinalAck. The FinalAck stays in an acknowledgement queue, an
outgoing queue named by the peer's GUID, until a session with that peer has acknowledged it. A queue manager that routes
puts a message for another one into an outgoing queue unchanged. Such a message has no stream here: only sessions
acknowledge it (B-012, B-077).

Every decision returns a text: "" after a decision, else why the queue manager has no room for the message (B-285).
Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, repeat
from typing import TYPE_CHECKING

from mqqb import build, confirm, connection, core, guids, headers, names
from mqqb.destination import is_too_late, rejection_of
from mqqb.streams import Entry

from ordack.broker.outcome import ReturnPath
from ordack.broker.streams import key_of
from ordack.config import classes
from ordack.config.config import Config, split_direct
from ordack.config.names import legible
from ordack.store import Counters, Store, packet_fields
from ordack.store.messages import DIRECT, NewMessage, correlation_of, expires_of, wants_of
from ordack.store.queues import QueueState

if TYPE_CHECKING:
    from ordack.broker.incoming import IncomingState, IncomingStreams
    from ordack.broker.links import PeerLink
    from ordack.broker.outcome import Settlements
    from ordack.broker.outgoing import OutgoingQueue, OutgoingQueues
    from ordack.broker.serve_log import Operator


class Batch:
    """The decisions of one transaction. `outcomes` writes at once; all other fields wait for the end of the batch.

    messages: for local queues; queued: their bytes by queue. forwarded: with the name of the outgoing queue.
    noted: for the duplicate filter. incoming: changed streams; forgotten: deleted ones.
    stored: link, recoverable or not: the messages to acknowledge, in order. refused: links to close.
    received: decided messages by link. refusals: refused messages with their class; 0 if the store is full.
    """

    def __init__(self, outcomes: Settlements) -> None:
        self.outcomes = outcomes
        self.messages: list[NewMessage] = []
        self.queued: dict[int, int] = {}
        self.forwarded: list[tuple[str, headers.UserMessage, bytearray]] = []
        self.noted: dict[tuple[bytes, int], None] = {}
        self.incoming: dict[IncomingState, None] = {}
        self.forgotten: list[tuple[bytes, str]] = []
        self.rejected: list[tuple[IncomingState | None, bytes]] = []  # with the peer whose queue holds the FinalAck
        self.stored: list[tuple[PeerLink, bool]] = []
        self.refused: set[PeerLink] = set()
        self.received: dict[PeerLink, int] = {}
        self.refusals: list[tuple[PeerLink, int]] = []
        self.touched: dict[OutgoingQueue, None] = {}  # entries were removed from these queues
        self.moved: dict[OutgoingQueue, None] = {}  # streams to save
        self.passed_on: list[int] = []  # keys of acknowledged messages that are not transactional
        self.journaled: list[int] = []  # such messages with JN or JP
        self.answers: list[tuple[int, int]] = []  # key, class of the FinalAck or 0 for an OrderAck; in order of arrival
        self.fast = 0  # messages written by the fast path
        self.learned: dict[IncomingState, tuple[PeerLink, headers.UserMessage, bytes]] = {}  # for the fast path
        self.queue_of: dict[int, OutgoingQueue] = {}  # of each key in answers, and of entries taken out

    def passed(self, queue: OutgoingQueue, entries: list[Entry]) -> None:
        """Remove entries that a session has acknowledged for good."""
        queue.stream.remove(entries)
        self.touched[queue] = None
        for entry in entries:
            (self.journaled if entry.journal else self.passed_on).append(key_of(entry))

    def answer(self, queue: OutgoingQueue, entries: list[Entry], message_class: int) -> None:
        """Note the answer of an OrderAck or FinalAck to these entries."""
        keys = list(map(key_of, entries))
        self.answers += zip(keys, repeat(message_class))
        self.queue_of.update(dict.fromkeys(keys, queue))
        self.touched[queue] = self.moved[queue] = None

    def count(self, counters: Counters) -> None:
        """Add the batch to the counters after its commit."""
        stored = len(self.messages) + len(self.forwarded) + self.fast
        if stored:
            counters.batches.add(stored)
        for link, count in self.received.items():
            link.counts.received += count
            link.history.received += count
        for link, message_class in self.refusals:
            link.counts.refuse(message_class)
            counters.refused_at[classes.reason(message_class)] = self.outcomes.now
        counters.failure = ""

    def take_out(self, queue: OutgoingQueue, entries: list[Entry]) -> None:
        """Remove entries that ended without an acknowledgement."""
        queue.stream.remove(entries)
        self.queue_of.update((key_of(entry), queue) for entry in entries)
        self.touched[queue] = self.moved[queue] = None


Identifier = tuple[bytes, int]  # source queue manager, MessageID


class Duplicates:
    """MessageIDHistoryTable; `load` reads it from the store. Times: seconds since 1970."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._seen: dict[Identifier, int] = {}  # oldest first
        self._before = 0

    def __contains__(self, identifier: Identifier) -> bool:
        return identifier in self._seen

    def load(self) -> None:
        """Read the table from the store."""
        self._seen = {(source, message_id): time for source, message_id, time in self._store.memory.history()}

    def note(self, identifier: Identifier, wall: int) -> None:
        """Record the arrival of a message."""
        self._seen.pop(identifier, None)
        self._seen[identifier] = wall

    def save(self, noted: Iterable[Identifier]) -> None:
        """Write new entries to the store, and drop the oldest above history_size."""
        self._store.memory.save_history([(*identifier, self._seen[identifier]) for identifier in noted])
        surplus = len(self._seen) - self._config.history_size
        if surplus > 0:
            self._forget(list(islice(self._seen, surplus)))

    def forget_before(self, time: int) -> None:
        """Mark entries older than `time` for removal (B-154)."""
        self._before = time

    @property
    def has_old(self) -> bool:
        """Does the table hold entries marked for removal?"""
        return next(iter(self._seen.values()), self._before) < self._before

    def forget_old(self, limit: int) -> int:
        """Remove up to `limit` marked entries; return the count."""
        old = [identifier for identifier, noted in islice(self._seen.items(), limit) if noted < self._before]
        self._forget(old)
        return len(old)

    def _forget(self, identifiers: list[Identifier]) -> None:
        for identifier in identifiers:
            del self._seen[identifier]
        self._store.memory.delete_history(identifiers)


LOWEST_PRIORITY_RANK = 7
FINAL_ACK_BYTES = 512  # at most, with the longest address
NOT_NOW = "too many FinalAcks wait for the peer already"  # the message is dropped; its source resends it (B-151)


@dataclass(slots=True)
class Arriving:
    """An arriving message with its packet, size, local queue, and local stream if it has one."""

    batch: Batch
    link: PeerLink
    message: headers.UserMessage
    raw: bytes
    size: int
    wall: int
    queue: QueueState | None = None
    state: IncomingState | None = None


class Acceptance:
    """Decides about messages, and puts each decision into the batch."""

    def __init__(
        self,
        store: Store,
        config: Config,
        incoming: IncomingStreams,
        outgoing: OutgoingQueues,
        duplicates: Duplicates,
        operator: Operator,
    ) -> None:
        self._store = store
        self._config = config
        self._incoming = incoming
        self._outgoing = outgoing
        self._duplicates = duplicates
        self._operator = operator

    def message(
        self, batch: Batch, link: PeerLink, message: headers.UserMessage, raw: bytes, now: int, wall: int
    ) -> str:
        """Decide about one message."""
        user = message.user
        batch.received[link] = batch.received.get(link, 0) + 1
        arriving = Arriving(batch, link, message, raw, len(raw), wall)
        forward = self._config.route and not self._incoming.is_here(user)
        if message.transaction is not None:  # B-247: no look-up, the stream's order shows duplicates
            return self._forward(arriving) if forward else self._transactional(arriving, now)
        identifier = (bytes(user.source_queue_manager), user.message_id)
        refusal = ""
        if identifier not in self._duplicates:  # B-248
            refusal = (self._forward if forward else self._other)(arriving)
        if not refusal:
            self._duplicates.note(identifier, wall)  # B-254
            batch.noted[identifier] = None
        return refusal

    def acknowledgement(
        self,
        batch: Batch,
        link: PeerLink,
        packet: connection.OrderAck | headers.FinalAck,
        raw: bytes,
        now: int,
        wall: int,
    ) -> str:
        """Decide about an acknowledgement for another queue manager (B-363). An OrderAck without a route is dropped: a
        source that needs it resends and gets another."""
        source = bytes(packet.message.user.queue_manager_address)
        if not self._config.route or (isinstance(packet, connection.OrderAck) and not self._outgoing.has_way(source)):
            return ""
        return self.message(batch, link, packet.message, raw, now, wall)

    # ---- messages for local queues

    def _other(self, arriving: Arriving) -> str:
        """Decide about a message that is not transactional."""
        message = arriving.message
        arriving.queue = self._incoming.queue(self._incoming.target(message.user)[1])
        rejection = self._rejection(arriving) or self.over_quota(arriving)
        if not rejection:
            return self._insert(arriving)
        if message.user.flags & core.USER_JN and not self._fits(arriving):
            return arriving.batch.outcomes.why_full
        self._fail(arriving, rejection)
        return ""

    def _transactional(self, arriving: Arriving, now: int) -> str:
        batch, link, user, transaction = (
            arriving.batch,
            arriving.link,
            arriving.message.user,
            arriving.message.transaction,
        )
        assert transaction is not None
        key, target = self._incoming.target(user)
        state = self._state(batch, bytes(user.source_queue_manager), key, target, now)
        arriving.queue, arriving.state = self._incoming.queue(target), state
        self._incoming.came_on(link, state)
        before, state.last_access = state.last_access, arriving.wall  # B-274
        refusal = state.stream.decide(transaction, self._rejection(arriving), self, arriving)
        if refusal:
            return refusal
        state.stream.schedule_order_ack(now, link.session, self._config.early_order_ack)
        self._incoming.owe(state)
        batch.incoming[state] = None
        self._complain_of_refusals(state, transaction, before)
        return ""

    def _state(self, batch: Batch, source: bytes, key: str, target: str | int, now: int) -> IncomingState:
        state = self._incoming.find(source, key)
        if state is None:
            state, forgotten = self._incoming.add(source, key, target, now)
            for stray in forgotten:
                batch.incoming.pop(stray, None)
                batch.forgotten.append((stray.source, stray.key))
        return state

    def _rejection(self, arriving: Arriving) -> int:
        queue = arriving.queue
        is_transactional = queue is not None and queue.transactional
        rejection = rejection_of(
            arriving.message, queue is not None, is_transactional, arriving.wall, self._config.clock_skew
        )
        if queue is not None and rejection in (0, confirm.NACK_REACH_QUEUE_TIMEOUT) and self._denial(arriving, queue):
            return confirm.NACK_ACCESS_DENIED  # B-374, C-58; access precedes expiry (15.5 of behaviour.md)
        return rejection

    def _denial(self, arriving: Arriving, queue: QueueState) -> str:
        """Return why the sender may not write to this queue; "" if it may."""
        if not self._config.access:
            return ""
        source = bytes(arriving.message.user.source_queue_manager)
        return self._config.access_to(queue.name).refusal(arriving.link.address, source, arriving.link.certificate)

    def _fits(self, arriving: Arriving) -> bool:
        return arriving.batch.outcomes.room >= arriving.size

    def over_quota(self, arriving: Arriving) -> int:
        """Implement mqqb.destination.Storage."""
        queue = arriving.queue
        assert queue is not None
        if queue.quota is None or not self._fits(arriving):
            return 0
        now = self._store.queues.find(queue.identifier)
        queued = arriving.batch.queued.get(queue.identifier, 0)
        return 0 if now is None or now.has_room(queued + arriving.size) else confirm.NACK_Q_EXCEED_QUOTA

    def keep(self, arriving: Arriving, rejection: int) -> str:
        """Implement mqqb.destination.Storage."""
        return self._reject(arriving, rejection) if rejection else self._insert(arriving)

    def _insert(self, arriving: Arriving) -> str:
        """Put a message into its queue (B-288), and acknowledge its arrival if the sender wants that (B-291)."""
        batch, message, raw, queue = arriving.batch, arriving.message, arriving.raw, arriving.queue
        if not self._fits(arriving):
            return batch.outcomes.why_full
        assert queue is not None
        if arriving.state is not None:
            self._incoming.accepted(arriving.state)
        expires, wanted = expires_of(message, arriving.wall), wants_of(message, own=False)
        correlation = correlation_of(message)
        back = _way_back(arriving.link, message.user)
        if wanted and back.direct:
            wanted |= DIRECT
        priority = 0 if message.transaction is not None else message.base.flags & core.BASE_PR  # B-287
        rank = LOWEST_PRIORITY_RANK - priority
        peer, address = (back.peer, back.address) if wanted else (None, None)
        if arriving.state is not None and not (wanted or correlation) and expires is None:
            batch.learned[arriving.state] = arriving.link, message, raw
        batch.messages.append(
            NewMessage(queue.identifier, rank, raw, expires, wanted, peer, address, correlation=correlation)
        )
        batch.queued[queue.identifier] = batch.queued.get(queue.identifier, 0) + len(raw)
        batch.outcomes.room -= len(raw)
        if message.properties.flags & headers.WANT_PA:
            batch.outcomes.administer(message, confirm.ACK_REACH_QUEUE, back)
        if message.base.flags & core.BASE_TR:
            batch.outcomes.report(message)
        return ""

    # ---- messages for another queue manager

    def _forward(self, arriving: Arriving) -> str:
        """Decide about a message or acknowledgement for another queue manager (B-012, B-259, B-264)."""
        batch, message = arriving.batch, arriving.message
        hops = (message.user.flags & core.USER_RC) + 1
        target = _onward(message.user)
        rejection = 0
        if not target:
            rejection = confirm.NACK_BAD_DST_Q
        elif hops > self._config.hop_limit:
            rejection = confirm.NACK_HOP_COUNT_EXCEEDED
        elif is_too_late(message, arriving.wall, self._config.clock_skew):
            rejection = confirm.NACK_REACH_QUEUE_TIMEOUT
        if rejection:
            if message.transaction is not None:
                return self._reject(arriving, rejection)
            self._fail(arriving, rejection)
            return ""
        if not self._fits(arriving):
            return batch.outcomes.why_full  # B-251
        batch.outcomes.room -= arriving.size
        packet = bytearray(arriving.raw)
        build.set_hop_count(packet, hops)
        batch.forwarded.append((target, message, packet))
        if message.base.flags & core.BASE_TR:
            batch.outcomes.report(message)
        return ""

    # ---- refused messages

    def _reject(self, arriving: Arriving, message_class: int) -> str:
        """Refuse a transactional message (B-260).

        The FinalAck is filed under the peer, the next hop back, even if its address names another source (B-011,
        B-362).
        """
        batch, link, message = arriving.batch, arriving.link, arriving.message
        back = _way_back(link, message.user)
        waiting = self._outgoing.to_peer(back.peer)
        if waiting and waiting.stream.waiting >= self._config.max_peer_final_acks:
            return NOT_NOW
        if batch.outcomes.room < FINAL_ACK_BYTES:
            return batch.outcomes.why_full
        self._refused(arriving, message_class)
        batch.outcomes.final_ack(message, message_class, back)
        batch.rejected.append((arriving.state, back.peer))
        if message.properties.flags & headers.WANT_NA:
            batch.outcomes.administer(message, message_class, back)
        return ""

    def _fail(self, arriving: Arriving, message_class: int) -> None:
        """Refuse a message that is not transactional."""
        self._refused(arriving, message_class)
        back = _way_back(arriving.link, arriving.message.user)
        arriving.batch.outcomes.undelivered(arriving.raw, message_class, back)

    def _refused(self, arriving: Arriving, message_class: int) -> None:
        """Count the refusal, and tell the operator."""
        link, queue, name = arriving.link, arriving.queue, packet_fields.format_name(arriving.message.user)
        arriving.batch.refusals.append((link, message_class))
        said = classes.words(message_class, name)
        if message_class == confirm.NACK_ACCESS_DENIED and queue is not None:
            said = f"{self._denial(arriving, queue)} of {queue.name} (class {classes.label(message_class)})"
        self._operator.tell(
            f"{link.address}: a message for {name} is refused: {said}",
            fact=f"{link.address} {name}: {message_class}",
            peer=link.address,
            queue=name,
            **{"class": classes.label(message_class)},
        )

    def _complain_of_refusals(
        self, state: IncomingState, transaction: headers.TransactionHeader, last_access: int
    ) -> None:
        """Tell the operator once about a source whose messages are all out of order; resent messages do not count.
        last_access: before this message."""
        stream = state.stream
        count = stream.record[core.INCOMING_REJECT_COUNT]
        if not count:
            state.complained = False
            state.refusing_since = 0
            return
        if (
            transaction.tx_sequence_id == stream.tx_sequence_id
            and transaction.tx_sequence_number <= stream.tx_sequence_number
        ):
            return
        if not state.refusing_since:  # after a start, the stream may have been refusing for long
            state.refusing_since = last_access if count > 1 else state.last_access
        if count >= self._config.refusals_told and not state.complained:
            state.complained = True
            self._operator.tell(
                f"{guids.guid_text(state.source)} to {state.key}: {count} messages refused in a row, the last "
                f"{transaction.tx_sequence_id}/{transaction.tx_sequence_number} after "
                f"{transaction.previous_tx_sequence_number}, while the last accepted is "
                f"{stream.tx_sequence_id}/{stream.tx_sequence_number}: was the source restored from an older copy? "
                "(B-426)",
                peer=guids.guid_text(state.source),
                queue=state.key,
                rule="B-426",
            )


def _way_back(link: PeerLink, user: headers.UserHeader) -> ReturnPath:
    return ReturnPath(
        link.peer, link.address, link.session.direct_format_session and bytes(user.source_queue_manager) == link.peer
    )


def _onward(user: headers.UserHeader) -> str:
    """Return the format name of the outgoing queue for a message that ends elsewhere (B-012); "" if its destination
    names no reachable queue manager."""
    name = user.destination_queue
    if isinstance(name, headers.PrivateQueueFormatNameId):
        return packet_fields.return_queue(bytes(user.queue_manager_address))
    if isinstance(name, names.DirectQueueFormatName) and split_direct(legible(name.direct_format_name)):
        return guids.format_name(name).lower()
    return ""
