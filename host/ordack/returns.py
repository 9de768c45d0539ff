"""FinalAcks for peers that may never come back: how many may wait, which are given up, and what holds then.

An OrderAck covers rejected messages, too. Their FinalAcks go in front of it, so that no source takes a rejected message
for stored. A FinalAck that is given up, for want of room or by an operator's purge, would break that. From then on the
OrderAcks of its stream end below the message that it rejected (`IncomingStream.give_up`).
"""

from __future__ import annotations

from collections.abc import Iterable

from mqqb import headers, parse

from ordack.config import Config
from ordack.incoming import IncomingState
from ordack.outgoing import OutgoingQueue
from ordack.store import Store

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
