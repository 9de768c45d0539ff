"""OrderAcks that this queue manager sends: on which session, and behind which FinalAcks."""

from __future__ import annotations

from collections.abc import Iterable

from mqqb import acks, core, headers, parse, timers
from mqqb.destination import may_acknowledge

from ordack.broker.incoming import IncomingState, IncomingStreams
from ordack.broker.links import Link, Links
from ordack.broker.outgoing import ROWS, OutgoingQueue, OutgoingQueues
from ordack.config.config import Config
from ordack.store import Store

# An OrderAck covers rejected messages, too. Their FinalAcks go in front of it, so that no source takes a rejected
# message for stored. After a FinalAck was given up, for want of room or by a purge, the OrderAcks of its stream end
# below the message that it rejected (`IncomingStream.give_up`).
Sequence = tuple[bytes, int]  # source and TxSequenceID: no other stream has the same


def surplus(queues: Iterable[OutgoingQueue], known: Iterable[bytes], config: Config) -> list[tuple[int, int]]:
    """Of which outgoing queues so many of the oldest acknowledgements are to be given up: (identifier, how many).

    known: peers that have sent messages to queues that are here. Strangers go before them: anybody can make up GUIDs.
    Of each kind, the peer goes first that nothing was filed for the longest; none that has a session.
    """
    waiting = [queue for queue in queues if queue.stream.waiting]
    absent = [queue for queue in waiting if queue.link is None]
    peers = len(absent) - config.max_ack_queues
    messages = sum(queue.stream.waiting for queue in waiting) - config.max_final_acks
    if peers <= 0 and messages <= 0:
        return []
    friends = frozenset(known)
    found = []
    for queue in sorted(absent, key=lambda queue: (queue.peer in friends, queue.stream.newest())):
        count = queue.stream.waiting
        if peers <= 0:
            count = min(count, messages)
        if count <= 0:
            break
        found.append((queue.identifier, count))
        peers -= 1
        messages -= count
    return found


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


def given_up(acknowledgements: Iterable[bytearray], states: Iterable[IncomingState]) -> list[IncomingState]:
    """These packets will not be sent: limit the OrderAcks of streams whose messages they reject; which were."""
    found = [known for packet in acknowledgements if (known := rejected(packet))]
    sequences = by_sequence(states) if found else {}
    limited = []
    for sequence, number in found:
        if state := sequences.get(sequence):
            state.stream.give_up(sequence[1], number)
            limited.append(state)
    return limited


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
            while sequences and (rows := self._store.outgoing.packets_in(queue.identifier, after, ROWS)):
                after = rows[-1][0]
                for _, packet in rows:
                    found = rejected(packet)
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

    def send_overdue(self, link: Link, now: int, wall: int) -> None:
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

    def _ways(self, state: IncomingState) -> tuple[bytes, list[Link]]:
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

    def _final_acks_are_ahead(self, link: Link) -> bool:
        queue = self._outgoing.to_peer(link.peer)
        return queue is None or may_acknowledge(queue.rejecting, link)

    def _send_on(self, link: Link, state: IncomingState, now: int, wall: int) -> None:
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
        if came_on and came_on is not link and came_on.session.due[timers.ACK_SEND] is not None:
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
