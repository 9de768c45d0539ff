"""Incoming streams: the accepted messages of each source and destination, and the OrderAcks that streams owe.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mqqb import acks, connection, core, guids, headers, names, parse
from mqqb.destination import IncomingStream, may_acknowledge

from ordack.config.config import Config, split_direct
from ordack.config.names import legible
from ordack.store import Store
from ordack.store.queues import QueueState
from ordack.store.schema import PRIVATE

if TYPE_CHECKING:
    from ordack.broker.links import Links, PeerLink
    from ordack.broker.outgoing import OutgoingQueue, OutgoingQueues

LONGEST_KEY = 512  # characters; longer than the name of any local queue
ROWS = 500  # acknowledgements read at once, to bound memory
REFUSING_S = 60  # from the first to the last refused message before the stream is reported


class IncomingState:
    """One incoming stream, and the session of its last message.

    key: the destination's format name as the source writes it, in lower case. A source numbers its messages for each
    name (B-099), so two names of one queue are two streams: under one key, the stream with the lower sequence would be
    refused for ever. The key outlives the queue, so a recreated queue gets no duplicates. target: name or identifier of
    the local queue, "" for none. refusing_since: arrival of the first of the messages refused without a break because
    they were out of order; 0: none.
    """

    def __init__(
        self, source: bytes, key: str, target: str | int, stream: IncomingStream, last_access: int = 0
    ) -> None:
        self.source = source
        self.key = key
        self.target = target
        self.stream = stream
        self.last_access = last_access
        self.complained = False
        self.refusing_since = 0
        self.link: PeerLink | None = None
        self.final_acks: OutgoingQueue | None = None  # holds the last FinalAck that rejected a message of this stream
        self.waits_for = b""  # GUID of the peer whose session the overdue OrderAck needs


class IncomingStreams:
    """All incoming streams; `load` reads them from the store. order_acks_due: deadline of the first OrderAck, or
    None. changed: called with a stream whose next message or OrderAck needs another way or decision."""

    def __init__(self, store: Store, config: Config) -> None:
        self.order_acks_due: int | None = None
        self.changed: Callable[[IncomingState], None] = lambda _state: None
        self._store = store
        self._guid = guids.guid_text(store.guid)[1:-1].lower()
        self._here = (names.NULL_GUID, store.guid)  # QueueManagerAddresses of this queue manager
        self._config = config
        self._states: dict[tuple[bytes, str], IncomingState] = {}
        self._strays: dict[IncomingState, None] = {}  # without a transactional queue or an accepted message
        self._on: dict[PeerLink, dict[IncomingState, None]] = {}
        self._owed: dict[IncomingState, None] = {}  # an OrderAck is scheduled
        self._overdue: dict[bytes, dict[IncomingState, None]] = {}  # an OrderAck waits for a session; by peer
        self._queues: dict[str | int, QueueState] = {}

    def __iter__(self) -> Iterator[IncomingState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def load(self, now: int) -> None:
        """Read the streams from the store; `refresh` follows. Owed OrderAcks stay owed, and open sessions keep their
        streams."""
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

    def _stream(self, now: int, record: array[int] | None = None, limit: int | None = None) -> IncomingStream:
        stream = IncomingStream(record, now, self._config.order_ack_timeout, self._config.maximum_order_ack_delay)
        stream.limit = limit
        return stream

    def refresh(self) -> None:
        """Read the queues from the store, and drop the streams that an operator has reset."""
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
        """Return the private queue of this name or identifier (B-085, B-395)."""
        queue = self._queues.get(target)
        return queue if queue and queue.kind == PRIVATE else None

    def _is_stray(self, state: IncomingState) -> bool:
        queue = self.queue(state.target)
        return not (queue and queue.transactional and state.stream.tx_sequence_number)

    def refusing(self) -> list[dict[str, Any]]:
        """Return the streams that refuse all messages (B-426), for an operator."""
        return [
            {"source": guids.guid_text(state.source), "destination": state.key, "since": state.refusing_since}
            for state in self
            if state.refusing_since and state.last_access - state.refusing_since >= REFUSING_S
        ]

    # ---- arriving messages

    def is_here(self, user: headers.UserHeader) -> bool:
        """Does the message's destination belong to this queue manager (B-264)?"""
        if user.queue_manager_address not in self._here:
            return False
        name = user.destination_queue
        if not isinstance(name, names.DirectQueueFormatName):
            return True
        address = (split_direct(legible(name.direct_format_name)) or ("", ""))[0]
        return not address or self._may_be_own(address)

    def _may_be_own(self, address: str) -> bool:
        own = self._config.own_names
        return not own or address in own or address == self._guid  # B-416

    def target(self, user: headers.UserHeader) -> tuple[str, str | int]:
        """Return the key of a message's stream, and the local queue of its destination, "" if none (B-264)."""
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
        """Return the name or identifier of the local queue for a stream's key, "" if none."""
        if key.startswith("#"):
            return int(key[1:])
        address, queue_name = split_direct(key) or ("", "")
        return queue_name if self._may_be_own(address) else ""

    def find(self, source: bytes, key: str) -> IncomingState | None:
        """Return the stream of this source and key; None if it is new."""
        return self._states.get((source, key))

    def add(self, source: bytes, key: str, target: str | int, now: int) -> tuple[IncomingState, list[IncomingState]]:
        """Return a new stream, and the streams dropped to make room for it."""
        forgotten = []
        if len(self._strays) >= self._config.max_unknown_streams:  # drop the older half: anybody makes more (B-435)
            strays = sorted(self._strays, key=lambda state: state.last_access)
            forgotten = strays[: len(strays) // 2 + 1]
            for stray in forgotten:
                self._forget(stray)
        state = self._states[source, key] = IncomingState(source, key, target, self._stream(now))
        self._strays[state] = None
        return state, forgotten

    def came_on(self, link: PeerLink, state: IncomingState) -> None:
        """Note that a message of this stream arrived on this link."""
        if state.link is not link:
            self.changed(state)
            if state.link:
                del self._on[state.link][state]
            state.link = link
            self._on.setdefault(link, {})[state] = None

    def accepted(self, state: IncomingState) -> None:
        """Note that a queue takes a message of this stream."""
        self._strays.pop(state, None)

    def ended(self, link: PeerLink) -> None:
        """Detach the streams of a closed link; the next session sends their OrderAcks at once (A-30)."""
        for state in self._on.pop(link, ()):
            state.link = None
            if self.settle(state):
                self.wait_for(state, link.peer)
            if not state.stream.tx_sequence_number:  # nothing accepted, so nothing to keep
                self._forget(state)

    def _forget(self, state: IncomingState) -> None:
        self.changed(state)
        if state.link:
            del self._on[state.link][state]
        del self._states[state.source, state.key]
        self.settle(state)
        self._strays.pop(state, None)

    def save(self, changed: Iterable[IncomingState], forgotten: Iterable[tuple[bytes, str]]) -> None:
        """Write changed and forgotten streams to the store."""
        self._store.memory.delete_incoming(forgotten)  # first: a forgotten stream may return in the same batch
        self._store.memory.save_incoming(
            [
                (state.source, state.key, state.last_access, state.stream.limit, *state.stream.record)
                for state in changed
                if state.stream.tx_sequence_number
            ]
        )

    # ---- FinalAcks given up

    def surplus(self, queues: Iterable[OutgoingQueue]) -> list[tuple[int, int]]:
        """Return how many of the oldest acknowledgements to give up, by outgoing queue (B-435).

        Only peers without a session lose acknowledgements. Peers without an accepted message come first, since anybody
        can invent GUIDs; among equals, the peer whose newest acknowledgement is the oldest.
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
        """Limit the OrderAcks of the streams whose rejections these unsent packets carry; return those streams."""
        found = [known for packet in acknowledgements if (known := rejected(packet))]
        sequences = by_sequence(self) if found else {}
        limited = []
        for sequence, number in found:
            if state := sequences.get(sequence):
                self.changed(state)
                state.stream.give_up(sequence[1], number)
                limited.append(state)
        return limited

    # ---- owed OrderAcks

    def order_ack_template(self, link: PeerLink, state: IncomingState) -> bytes:
        """Return an OrderAck for the source of a stream, sent on this link, without its numbers and times."""
        direct = link.session.direct_format_session and state.source == link.peer
        return _template(self._store.guid, *((b"", link.address) if direct else (state.source, "")))

    def owe(self, state: IncomingState) -> None:
        """Schedule the stream's OrderAck."""
        if state not in self._owed:
            self.settle(state)
            self._owed[state] = None
        due = state.stream.next_timeout()
        if due is not None and (self.order_acks_due is None or due < self.order_acks_due):
            self.order_acks_due = due

    def wait_for(self, state: IncomingState, guid: bytes) -> None:
        """Let the stream's overdue OrderAck wait for a session with this peer."""
        state.waits_for = guid
        self._overdue.setdefault(guid, {})[state] = None

    def settle(self, state: IncomingState) -> bool:
        """Cancel the stream's OrderAck; return whether it owed one."""
        for group in (self._owed, self._overdue.get(state.waits_for, {})):
            if state in group:
                del group[state]
                return True
        return False

    def due(self, now: int) -> list[IncomingState]:
        """Return the streams whose OrderAck is due."""
        if self.order_acks_due is None or now < self.order_acks_due:
            return []
        found = []
        later = []
        for state in self._owed:
            due = state.stream.next_timeout()
            if due is not None:
                (found.append(state) if due <= now else later.append(due))
        self.order_acks_due = min(later, default=None)
        return found

    @property
    def overdue_peers(self) -> Set[bytes]:
        """Peers for which an OrderAck is overdue."""
        return self._overdue.keys()

    def overdue(self, guid: bytes) -> Iterable[IncomingState]:
        """Remove and return the streams whose OrderAck waits for a session with this peer."""
        return self._overdue.pop(guid, ())


# An OrderAck also covers rejected messages. Their FinalAcks go first, or the source would take a rejected message
# for stored. If a FinalAck is given up or purged, later OrderAcks of the stream stop below the rejected message
# (`IncomingStream.give_up`).
Sequence = tuple[bytes, int]  # source and TxSequenceID: unique to one stream


def by_sequence(states: Iterable[IncomingState]) -> dict[Sequence, IncomingState]:
    """Return the streams by their current sequence."""
    return {(state.source, state.stream.tx_sequence_id): state for state in states}


def rejected(packet: bytes | bytearray) -> tuple[Sequence, int] | None:
    """Return sequence and number that a FinalAck packet rejects. None: another packet, or a FinalAck for an accepted
    message."""
    found = parse.parse(packet)
    if not isinstance(found, headers.FinalAck) or found.message.properties.message_class & 0xC000 != 0x8000:
        return None
    body = found.body
    return (bytes(body.source_guid), body.tx_sequence_id), body.tx_sequence_number


def indispensable(store: Store, outgoing: int) -> list[int]:
    """Return the keys that an operator cannot purge from an outgoing queue: forwarded FinalAcks that reject a message.
    Without one, the next forwarded OrderAck reports the message as stored, and only the other queue manager could
    prevent that."""
    return [key for key, packet in store.outgoing.forwarded(outgoing) if rejected(packet)]


MESSAGE_ID_BLOCK = 256  # reserved at once, so that an OrderAck rarely needs a commit
SENT = struct.Struct("<II")  # SentTime and MessageID
ACKNOWLEDGED = struct.Struct("<4I")  # the body of an OrderAck: sequence as ordinal and time, number, previous number


@lru_cache(maxsize=4096)  # as many peers; one template has less than 400 bytes
def _template(guid: bytes, source: bytes, address: str) -> bytes:
    """Return an OrderAck for a source, by its GUID or its IP address, without what differs from one to the next."""
    destination, host = acks.to_source(source, address)
    return bytes(acks.order_ack(destination, guid, 0, 0, 0, 0, 1, host))


class OrderAcks:
    """Sends OrderAcks. Times: `now` monotonic milliseconds, `wall` seconds since 1970."""

    def __init__(self, store: Store, links: Links, incoming: IncomingStreams, outgoing: OutgoingQueues) -> None:
        self._store = store
        self._links = links
        self._incoming = incoming
        self._outgoing = outgoing
        self._message_ids = range(0)

    def load(self) -> None:
        """Find the OrderAcks that must wait for FinalAcks in the store."""
        sequences = by_sequence(self._incoming)
        for queue in self._outgoing.ack_queues:
            queue.rejections = self._outgoing.last_key  # the record does not tell which FinalAcks reject
            after = 0
            while sequences and (rows := self._store.outgoing.rows(queue.identifier, after + 1, ROWS)):
                after = rows[-1].key
                for row in rows:
                    found = rejected(bytes(row.packet))
                    if found and found[0] in sequences:
                        sequences[found[0]].final_acks = queue

    def wait_behind(self, rejected: Iterable[tuple[IncomingState | None, bytes]]) -> None:
        """Let the OrderAcks of these streams wait for FinalAcks just queued for these peers."""
        for state, peer in rejected:
            queue = self._outgoing.to_peer(peer)
            assert queue
            queue.rejections = self._outgoing.last_key
            if state:
                self._incoming.changed(state)
                state.final_acks = queue

    def send_due(self, now: int, wall: int) -> None:
        """Send OrderAcks whose deadline has passed."""
        for state in self._incoming.due(now):
            self._send(state, now, wall)

    def send_overdue(self, link: PeerLink, now: int, wall: int) -> None:
        """Send OrderAcks that waited for a session with the peer of this link."""
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
        """Return the OrderAck's peer and candidate links: the messages' link first, then links with their sender
        (B-011, B-414). If FinalAcks go first, only their link counts."""
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
        packet = bytearray(self._incoming.order_ack_template(link, state))
        SENT.pack_into(packet, core.USER_SENT_TIME_AT, wall, self._message_id())
        record, number = state.stream.record, state.stream.order_ack_number
        ACKNOWLEDGED.pack_into(
            packet,
            len(packet) - core.ORDER_ACK_SIZE,
            record[core.INCOMING_ORDINAL],
            record[core.INCOMING_TIME_STAMP],
            number,
            number - 1,
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
