"""Incoming streams: what was accepted of each source for each of its destinations, as the store has it, and which of
them owe an OrderAck.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

from mqqb import acks, connection, core, guids, headers, names, parse
from mqqb.destination import IncomingStream, may_acknowledge
from mqqb.session import Session

from ordack.config.config import Config, split_direct
from ordack.config.names import legible
from ordack.store import Incoming, Store
from ordack.store.queues import QueueState
from ordack.store.schema import PRIVATE

if TYPE_CHECKING:
    from ordack.broker.links import Links, PeerLink
    from ordack.broker.outgoing import OutgoingQueue, OutgoingQueues

LONGEST_KEY = 512  # characters; the name of any queue that can be here fits
ROWS = 500  # acknowledgements that are read at once, to bound memory
REFUSING_S = 60  # between the first and the last message that was refused, until this is a problem


class RunStream(IncomingStream):
    """A stream that messages come for in runs, too."""

    def schedule_for_run(self, count: int, now: int, session: Session, early: int) -> None:
        """As `schedule_order_ack`, for so many messages that have come at once."""
        self._come += count - 1
        self.schedule_order_ack(now, session, early)


class IncomingState:
    """One incoming stream, and the session that its last message came on.

    key: the destination's format name as the source uses it, in lower case. The source numbers its messages for each
    name (B-099), so two names of one queue are two streams: under one key the one with the lower sequence would be
    refused for ever. The name outlives the queue, so that one made again gets nothing twice. target: name or identifier
    of the queue that it means here, "" for none. refusing_since: when the first of the messages came that were all
    refused since, because none was the next one; 0: none is.
    """

    def __init__(
        self,
        source: bytes,
        key: str,
        target: str | int,
        stream: RunStream,
        last_access: int = 0,
    ) -> None:
        self.source = source
        self.key = key
        self.target = target
        self.stream = stream
        self.last_access = last_access
        self.complained = False
        self.refusing_since = 0
        self.link: PeerLink | None = None
        self.final_acks: OutgoingQueue | None = None  # where the last one that rejected a message waits or waited
        self.waits_for = b""  # GUID of the peer whose session an overdue OrderAck waits for


class IncomingStreams:
    """All of them; `load` takes them from the store. order_acks_due: when the first OrderAck is due, or None."""

    def __init__(self, store: Store, config: Config) -> None:
        self.order_acks_due: int | None = None
        self._store = store
        self._here = (names.NULL_GUID, store.guid)  # a QueueManagerAddress that means this queue manager
        self._config = config
        self._states: dict[tuple[bytes, str], IncomingState] = {}
        self._strays: dict[IncomingState, None] = {}  # they lead to no transactional queue, or nothing was accepted
        self._on: dict[PeerLink, dict[IncomingState, None]] = {}
        self._owed: dict[IncomingState, None] = {}  # with an OrderAck to send in time,
        self._overdue: dict[bytes, dict[IncomingState, None]] = {}  # or one that waits for a session, by its peer
        self._queues: dict[str | int, QueueState] = {}

    def __iter__(self) -> Iterator[IncomingState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def load(self, now: int) -> None:
        """Take the streams from the store; `refresh` is to follow. What was to be acknowledged, is; sessions that stand
        keep theirs."""
        before = self._states
        owing = [*self._owed, *(state for group in self._overdue.values() for state in group)]
        self._states = {
            (row.source, row.destination): IncomingState(
                row.source,
                row.destination,
                self._meaning(row.destination),
                self._stream(now, array("I", row.record), row.limit),
                row.last_access,
            )
            for row in self._store.memory.incoming()
        }
        self.order_acks_due = None
        self._on, self._owed, self._overdue = {}, {}, {}
        for place, state in self._states.items():
            if place in before and (link := before[place].link):
                self.came_on(link, state)
        for old in owing:
            if again := self._states.get((old.source, old.key)):
                again.stream.schedule_order_ack(now)
                self.owe(again)

    def _stream(self, now: int, record: array[int] | None = None, limit: int | None = None) -> RunStream:
        stream = RunStream(record, now, self._config.order_ack_timeout, self._config.maximum_order_ack_delay)
        stream.limit = limit
        return stream

    def refresh(self) -> None:
        """Take up which queues there are, and which streams an operator has reset."""
        saved = {place: state for place, state in self._states.items() if state.stream.tx_sequence_number}
        if len(saved) != self._store.memory.incoming_count():
            for row in self._store.memory.incoming():
                saved.pop((row.source, row.destination), None)
            for reset in saved.values():
                self._forget(reset)
        queues = self._store.queues.all()
        self._queues = {queue.name.lower(): queue for queue in queues}
        self._queues.update((queue.identifier, queue) for queue in queues)
        self._strays = {state: None for state in self if self._is_stray(state)}

    def queue(self, target: str | int) -> QueueState | None:
        """The private queue of this name or identifier (B-085, B-395)."""
        queue = self._queues.get(target)
        return queue if queue and queue.kind == PRIVATE else None

    def _is_stray(self, state: IncomingState) -> bool:
        queue = self.queue(state.target)
        return not (queue and queue.transactional and state.stream.tx_sequence_number)

    def refusing(self) -> list[dict[str, Any]]:
        """The streams that nothing is accepted of (B-426), for an operator."""
        return [
            {"source": guids.guid_text(state.source), "destination": state.key, "since": state.refusing_since}
            for state in self
            if state.refusing_since and state.last_access - state.refusing_since >= REFUSING_S
        ]

    # ---- messages that come

    def is_here(self, user: headers.UserHeader) -> bool:
        """Does the message end here, as far as its destination says (B-264)?"""
        if user.queue_manager_address not in self._here:
            return False
        name = user.destination_queue
        if not isinstance(name, names.DirectQueueFormatName):
            return True
        address = (split_direct(legible(name.direct_format_name)) or ("", ""))[0]
        return not address or self._may_be_own(address)

    def _may_be_own(self, address: str) -> bool:
        return not self._config.own_names or address in self._config.own_names  # B-416

    def target(self, user: headers.UserHeader) -> tuple[str, str | int]:
        """Return the key of a message's stream, and the queue here that its destination means, "" if none (B-264)."""
        name = user.destination_queue
        here = user.queue_manager_address in self._here
        if isinstance(name, names.DirectQueueFormatName):
            key = legible("DIRECT=" + name.direct_format_name).lower()
            if len(key) > LONGEST_KEY:
                key = key[: LONGEST_KEY - 64] + hashlib.sha256(key.encode()).hexdigest()
        elif isinstance(name, headers.PrivateQueueFormatNameId) and here:
            key = f"#{name.private_queue_identifier}"
        else:
            return guids.format_name(name, user.queue_manager_address) if name is not None else "", ""
        return key, self._meaning(key) if here else ""

    def _meaning(self, key: str) -> str | int:
        """Return the name or identifier of the queue here that a stream's key means, "" if none."""
        if key.startswith("#"):
            return int(key[1:])
        address, queue_name = split_direct(key) or ("", "")
        return queue_name if self._may_be_own(address) else ""

    def find(self, source: bytes, key: str) -> IncomingState | None:
        """The stream of this source under this key; None if it is new."""
        return self._states.get((source, key))

    def add(self, source: bytes, key: str, target: str | int, now: int) -> tuple[IncomingState, list[IncomingState]]:
        """A new stream; and those that were forgotten to make room for it."""
        forgotten = []
        if len(self._strays) >= self._config.max_unknown_streams:  # the older half: anybody can make more (B-435)
            strays = sorted(self._strays, key=lambda state: state.last_access)
            forgotten = strays[: len(strays) // 2 + 1]
            for stray in forgotten:
                self._forget(stray)
        state = self._states[source, key] = IncomingState(source, key, target, self._stream(now))
        self._strays[state] = None
        return state, forgotten

    def came_on(self, link: PeerLink, state: IncomingState) -> None:
        """A message of this stream has come on this link."""
        if state.link is not link:
            if state.link:
                del self._on[state.link][state]
            state.link = link
            self._on.setdefault(link, {})[state] = None

    def accepted(self, state: IncomingState) -> None:
        """A message of it goes into a queue."""
        self._strays.pop(state, None)

    def ended(self, link: PeerLink) -> None:
        """This link is over; the OrderAcks for what came on it go at once on the next session (A-30)."""
        for state in self._on.pop(link, ()):
            state.link = None
            if self.settle(state):
                self.wait_for(state, link.peer)
            if not state.stream.tx_sequence_number:  # nothing accepted: nothing to remember
                self._forget(state)

    def _forget(self, state: IncomingState) -> None:
        if state.link:
            del self._on[state.link][state]
        del self._states[state.source, state.key]
        self.settle(state)
        self._strays.pop(state, None)

    def save(self, changed: Iterable[IncomingState], forgotten: Iterable[tuple[bytes, str]]) -> None:
        """Write to the store what has become of these."""
        self._store.memory.delete_incoming(forgotten)  # before the next: a stream may have come back in the same batch
        self._store.memory.save_incoming(
            [
                Incoming(state.source, state.key, tuple(state.stream.record), state.last_access, state.stream.limit)
                for state in changed
                if state.stream.tx_sequence_number
            ]
        )

    # ---- FinalAcks that are given up

    def surplus(self, queues: Iterable[OutgoingQueue]) -> list[tuple[int, int]]:
        """Return of which outgoing queues how many of the oldest acknowledgements are to be given up (B-435).

        Peers without a session lose theirs: first peers that no message was accepted from, since anybody can make up
        GUIDs; of each kind the peer first whose newest acknowledgement is the oldest.
        """
        waiting = [queue for queue in queues if queue.stream.waiting]
        absent = [queue for queue in waiting if queue.link is None]
        peers = len(absent) - self._config.max_ack_queues
        messages = sum(queue.stream.waiting for queue in waiting) - self._config.max_final_acks
        if peers <= 0 and messages <= 0:
            return []
        known = {state.source for state in self if state not in self._strays}
        found = []
        for queue in sorted(absent, key=lambda queue: (queue.peer in known, queue.stream.newest())):
            count = queue.stream.waiting
            if peers <= 0:
                count = min(count, messages)
            if count <= 0:
                break
            found.append((queue.identifier, count))
            peers -= 1
            messages -= count
        return found

    def give_up(self, acknowledgements: Iterable[bytearray]) -> list[IncomingState]:
        """These packets will not be sent: limit the OrderAcks of streams whose messages they reject; return these."""
        found = [known for packet in acknowledgements if (known := rejected(packet))]
        sequences = by_sequence(self) if found else {}
        limited = []
        for sequence, number in found:
            if state := sequences.get(sequence):
                state.stream.give_up(sequence[1], number)
                limited.append(state)
        return limited

    # ---- OrderAcks that are owed

    def owe(self, state: IncomingState) -> None:
        """Its OrderAck is to be sent in time."""
        self.settle(state)
        self._owed[state] = None
        due = state.stream.next_timeout()
        if due is not None and (self.order_acks_due is None or due < self.order_acks_due):
            self.order_acks_due = due

    def wait_for(self, state: IncomingState, guid: bytes) -> None:
        """Its OrderAck is overdue: to be sent as soon as a session with this peer takes it."""
        state.waits_for = guid
        self._overdue.setdefault(guid, {})[state] = None

    def settle(self, state: IncomingState) -> bool:
        """It owes no OrderAck any more; did it?"""
        for group in (self._owed, self._overdue.get(state.waits_for, {})):
            if state in group:
                del group[state]
                return True
        return False

    def due(self, now: int) -> list[IncomingState]:
        """Those whose OrderAck is to be sent now."""
        if self.order_acks_due is None or now < self.order_acks_due:
            return []
        self.order_acks_due = None
        found = []
        for state in list(self._owed):
            due = state.stream.next_timeout()
            if due is not None and due <= now:
                found.append(state)
            else:
                self.owe(state)
        return found

    @property
    def overdue_peers(self) -> Set[bytes]:
        """For which an OrderAck is overdue."""
        return self._overdue.keys()

    def overdue(self, guid: bytes) -> Iterable[IncomingState]:
        """Those whose OrderAck waits for a session with this peer; they wait no more."""
        return self._overdue.pop(guid, ())


# An OrderAck covers rejected messages, too. Their FinalAcks go in front of it, so that no source takes a rejected
# message for stored. After a FinalAck was given up, for want of room or by a purge, the OrderAcks of its stream end
# below the message that it rejected (`IncomingStream.give_up`).
Sequence = tuple[bytes, int]  # source and TxSequenceID: no other stream has the same


def by_sequence(states: Iterable[IncomingState]) -> dict[Sequence, IncomingState]:
    """The streams by the sequence that each is at."""
    return {(state.source, state.stream.tx_sequence_id): state for state in states}


def rejected(packet: bytes | bytearray) -> tuple[Sequence, int] | None:
    """What the FinalAck that this packet is has rejected, sequence and number. None: it is something else, or says what
    became of a message that had been accepted."""
    found = parse.parse(packet)
    if not isinstance(found, headers.FinalAck) or found.message.properties.message_class & 0xC000 != 0x8000:
        return None
    body = found.body
    return (bytes(body.source_guid), body.tx_sequence_id), body.tx_sequence_number


def indispensable(store: Store, outgoing: int) -> list[int]:
    """What an operator cannot purge of an outgoing queue, by key: FinalAcks of another queue manager that reject a
    message and pass through here. Without one, the next OrderAck that passes says that the message was stored, and only
    that other queue manager could hold it back."""
    return [key for key, packet in store.outgoing.forwarded(outgoing) if rejected(packet)]


MESSAGE_ID_BLOCK = 256  # reserved at once, so that not each OrderAck costs a commit


class OrderAcks:
    """Times: `now` monotonic milliseconds, `wall` seconds since 1970."""

    def __init__(self, store: Store, links: Links, incoming: IncomingStreams, outgoing: OutgoingQueues) -> None:
        self._store = store
        self._links = links
        self._incoming = incoming
        self._outgoing = outgoing
        self._message_ids = range(0)

    def load(self) -> None:
        """Find out which OrderAcks have to wait for FinalAcks that are in the store."""
        sequences = by_sequence(self._incoming)
        for queue in self._outgoing.returns:
            queue.rejections = self._outgoing.last_key  # nothing says which of them reject
            after = 0
            while sequences and (packets := self._store.outgoing.packets(queue.identifier, after + 1, ROWS)):
                after = max(packets)
                for packet, _ in packets.values():
                    found = rejected(bytes(packet))
                    if found and found[0] in sequences:
                        sequences[found[0]].final_acks = queue

    def wait_behind(self, rejected: Iterable[tuple[IncomingState | None, bytes]]) -> None:
        """FinalAcks that reject messages of these streams were put in the outgoing queues for these peers."""
        for state, peer in rejected:
            queue = self._outgoing.to_peer(peer)
            assert queue
            queue.rejections = self._outgoing.last_key
            if state:
                state.final_acks = queue

    def send_due(self, now: int, wall: int) -> None:
        """Send those whose time has come."""
        for state in self._incoming.due(now):
            self._send(state, now, wall)

    def send_overdue(self, link: PeerLink, now: int, wall: int) -> None:
        """Send those that have waited for a session with the peer of this link."""
        for state in self._incoming.overdue(link.peer):
            self._send(state, now, wall)

    def _send(self, state: IncomingState, now: int, wall: int) -> None:
        self._incoming.settle(state)
        if state.stream.order_ack_number:
            peer, candidates = self._ways(state)
            for link in candidates:
                if link.session.can_send() and (state.final_acks is None or self._final_acks_are_ahead(link)):
                    self._send_on(link, state, now, wall)
                    break
            else:
                self._incoming.wait_for(state, peer)
                return
        state.stream.order_ack_sent(now)

    def _ways(self, state: IncomingState) -> tuple[bytes, list[PeerLink]]:
        """The peer that the OrderAck is for, and links: the one that the messages came on, else any with their sender
        (B-011, B-414); behind FinalAcks, the one that these go on."""
        final_acks = state.final_acks
        if final_acks and final_acks.rejecting:
            assert final_acks.peer
            return final_acks.peer, [final_acks.link] if final_acks.link else []
        peer = state.link.peer if state.link else state.source
        return peer, [
            *([state.link] if state.link else []),
            *self._links.with_peer(peer),
            *self._links.with_peer(state.source),
        ]

    def _final_acks_are_ahead(self, link: PeerLink) -> bool:
        queue = self._outgoing.to_peer(link.peer)
        return queue is None or may_acknowledge(queue.rejecting, link)

    def _send_on(self, link: PeerLink, state: IncomingState, now: int, wall: int) -> None:
        direct = link.session.direct_format_session and state.source == link.peer
        destination, host = acks.to_source(state.source, link.address if direct else "")
        record = state.stream.record
        packet = acks.order_ack(
            destination,
            self._store.guid,
            self._message_id(),
            wall,
            record[core.INCOMING_ORDINAL],
            record[core.INCOMING_TIME_STAMP],
            state.stream.order_ack_number,
            host,
        )
        came_on = state.link
        if came_on and came_on is not link and came_on.session.due[connection.ACK_SEND] is not None:
            came_on.session.send_session_ack(now)  # B-443
            self._links.touch(came_on)
        link.session.send(None, packet, False, now)
        self._links.touch(link)

    def _message_id(self) -> int:
        if not self._message_ids:
            first = self._store.numbers.reserve_message_ids(MESSAGE_ID_BLOCK)
            self._message_ids = range(first, first + MESSAGE_ID_BLOCK)
        identifier, self._message_ids = self._message_ids[0], self._message_ids[1:]
        return identifier
