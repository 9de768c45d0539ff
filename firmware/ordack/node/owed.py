"""Acknowledgements that the board owes: FinalAcks in order, and due OrderAcks (behaviour.md 15 and 19).

* A FinalAck replaces its message in the log until a session has acknowledged it.
* An OrderAck leaves only after the FinalAcks of the messages that it covers and that were refused (too late, quota,
  secured): these are on the wire before it, or on the peer's disk.
* A message for an unknown queue gets a FinalAck each time it comes, without a trace in the log: no OrderAck covers it.
"""

import struct
from array import array

from mqqb import acks, confirm, const, core, names, parse, streams
from mqqb.destination import IncomingStream, may_acknowledge
from ordack.node.storage import log, sources

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.backlog import Commits
    from ordack.node.talk.peer import Peer

REFUSALS_MAX = 16  # waiting FinalAcks for messages without a record in the log
QUIET = const(86400000)  # ms of silence before a stream may be forgotten; a resend comes sooner
ASKED = const(1)  # MARKS of an arrival: its sender wants a FinalAck (B-116)
# MessageIDs of acknowledgements, distinct for routers; those of messages count up from 1.
_FINAL_ACK_IDS = const(0x80000000)
_REFUSAL_IDS = const(0xA0000000)
_ORDER_ACK_IDS = const(0xC0000000)


class Arrival(sources.Arrival):
    """A message in an inbox (log.RECEIVED), or the FinalAck owed for it (log.TAKEN).

    carrier: the peer whose session carries the FinalAck. peer: GUID of the queue manager that delivered the message;
    None after a start until it is read. packet: the beginning of a message without a record in the log.
    """

    # Class attributes until they differ: a waiting arrival takes less memory so.
    carrier: "Peer | None" = None
    peer: "bytes | None" = None
    packet: "bytes | None" = None


class Source:
    """One stream from a sender to a queue. carrier: the peer of its last message; heard: the time of that message."""

    def __init__(self, logged: sources.LoggedSource, stream: IncomingStream) -> None:
        self.logged = logged
        self.stream = stream
        self.heard = -QUIET  # not since the start
        self.carrier: "Peer | None" = None


class Owed:
    """The acknowledgements owed to the senders of these sources.

    final_acks: oldest first. is_durable: the log has them durably.
    """

    def __init__(self, commits: "Commits", sources: "list[Source]") -> None:
        self.final_acks: "list[Arrival]" = []
        self.is_durable = True
        self._commits = commits
        self._sources = sources
        self._unsent = 0  # FinalAcks that no session carries
        # Counters for MessageIDs. They begin at random, since a start that logs nothing is not counted.
        self._order_acks, self._refusals = struct.unpack("<HH", log.jump(4))

    def add(self, arrival: Arrival) -> None:
        """Owe the FinalAck of this arrival."""
        self.final_acks.append(arrival)
        self._unsent += 1

    def remove(self, arrival: Arrival) -> None:
        """Give up a FinalAck that no session carries."""
        self.final_acks.remove(arrival)
        self._unsent -= 1
        self.gone(arrival)

    def gone(self, arrival: Arrival) -> None:
        """Release an arrival that is no longer needed."""
        arrival.record[confirm.STATE] = confirm.GONE
        self._commits.log([arrival])

    def refuse(self, raw: bytes, peer: "Peer") -> bool:
        """Owe a FinalAck for a message to an unknown queue (B-256), without a durable record.

        False: it is already owed; the message is a resend.
        """
        packet = beginning(raw)
        count = 0
        for arrival in self.final_acks:
            other = arrival.packet
            if other is not None:
                count += 1
                if (
                    other[core.USER_SOURCE_QUEUE_MANAGER_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT]
                    == packet[core.USER_SOURCE_QUEUE_MANAGER_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT]
                    and other[core.USER_MESSAGE_ID_AT :] == packet[core.USER_MESSAGE_ID_AT :]
                ):
                    return False
        if count >= REFUSALS_MAX:
            return True  # its sender resends it
        self._refusals += 1
        arrival = Arrival(
            self._refusals,
            array("I", (log.TAKEN, ASKED, 0, 0, 0, confirm.NACK_BAD_DST_Q)),
            None,  # type: ignore[arg-type]
        )
        arrival.packet = packet
        arrival.peer = peer.remote_guid
        self.add(arrival)
        return True

    def next_packet(self, peer: "Peer", now: int) -> "tuple[streams.Entry | None, bytearray, bool] | None":
        """Return (entry, packet, recoverable) for this peer: FinalAcks in order, then due OrderAcks.

        Makes the log durable first if needed. Raises OutboxDamaged, OSError.
        """
        if self._unsent:
            if not self.is_durable:
                self.is_durable = self._commits.commit_now()
            if self.is_durable:
                for arrival in self.final_acks:
                    if arrival.carrier is None and self._peer_of(arrival) == peer.remote_guid:
                        packet = self._final_ack(arrival, peer)
                        self._unsent -= 1
                        if arrival.packet is not None:  # if it is lost, the message is resent
                            self.final_acks.remove(arrival)
                            return None, packet, True
                        arrival.carrier = peer
                        return streams.Entry(arrival, arrival.message_id), packet, True
        for source in self._sources:
            due = source.stream.next_timeout()
            if due is not None and due <= now and self._may_acknowledge(source, peer):
                source.stream.order_ack_sent(now)
                if source.stream.order_ack_number:
                    return None, self._order_ack(source, peer), False
        return None

    def acknowledged(self, entries: "list[streams.Entry]") -> None:
        """Settle FinalAcks that a session has acknowledged: they are on the peer's disk."""
        for entry in entries:
            arrival: "Any" = entry.key
            if isinstance(arrival, Arrival):
                arrival.carrier = None
                self.final_acks.remove(arrival)
                self.gone(arrival)

    def closed(self, peer: "Peer") -> None:
        """Release the FinalAcks and sources of a closed session."""
        for arrival in self.final_acks:
            if arrival.carrier is peer:
                arrival.carrier = None
                self._unsent += 1
        for source in self._sources:
            if source.carrier is peer:
                source.carrier = None

    # ---- inside -----------------------------------------------------------------------------------

    def _may_acknowledge(self, source: Source, peer: "Peer") -> bool:
        """May the stream's OrderAck go to this peer now, after all refusals that it covers?"""
        if source.carrier is not peer and (source.carrier is not None or source.logged.guid != peer.remote_guid):
            return False
        rejecting = [
            arrival.carrier
            for arrival in self.final_acks
            if arrival.source is source.logged and arrival.record[confirm.CLASS] & confirm.CLASS_NEGATIVE
        ]
        return may_acknowledge(rejecting, peer)

    def _peer_of(self, arrival: Arrival) -> bytes:
        """Return the GUID of the arrival's sender, or of the router noted in its packet."""
        if arrival.peer is None:
            packet = self._commits.outbox.log.load(arrival)
            peer = bytes(packet[core.USER_QUEUE_MANAGER_ADDRESS_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT + 16])
            arrival.peer = (
                bytes(packet[core.USER_SOURCE_QUEUE_MANAGER_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT])
                if peer in (names.NULL_GUID, self._commits.guid)
                else peer
            )
        return arrival.peer

    def _final_ack(self, arrival: Arrival, peer: "Peer") -> bytearray:
        packet = self._commits.outbox.log.load(arrival) if arrival.packet is None else arrival.packet
        source = bytes(packet[core.USER_SOURCE_QUEUE_MANAGER_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT])
        _, ordinal, time_stamp, number, previous = sequence(packet)
        ids = _FINAL_ACK_IDS if arrival.packet is None else _REFUSAL_IDS
        destination, host = _way_to(peer, source)
        return acks.final_ack(
            destination,
            self._commits.guid,
            ids | arrival.message_id & 0x1FFFFFFF,
            self._commits.clock.time(),
            ordinal,
            time_stamp,
            number,
            previous,
            source,
            struct.unpack_from("<I", packet, core.USER_MESSAGE_ID_AT)[0],
            arrival.record[confirm.CLASS],
            host,
        )

    def _order_ack(self, source: Source, peer: "Peer") -> bytearray:
        record = source.stream.record
        destination, host = _way_to(peer, source.logged.guid)
        self._order_acks = self._order_acks + 1 & 0xFFFF
        return acks.order_ack(
            destination,
            self._commits.guid,
            _ORDER_ACK_IDS | (self._commits.outbox.starts & 0x3FFF) << 16 | self._order_acks,
            self._commits.clock.time(),
            record[core.INCOMING_ORDINAL],
            record[core.INCOMING_TIME_STAMP],
            source.stream.order_ack_number,
            host,
        )


def beginning(raw: bytes) -> bytes:
    """Return the part of a packet that its FinalAck needs."""
    return bytes(raw[: parse.transaction_offset(raw) + core.TRANSACTION_HEADER_SIZE])


def sequence(packet: "bytes | bytearray | memoryview") -> "tuple[int, ...]":
    """Return the words of the packet's TransactionHeader."""
    return struct.unpack_from("<IIIII", packet, parse.transaction_offset(packet))


def _way_to(peer: "Peer", source: bytes) -> "tuple[names.QueueName, bytes]":
    """Return destination and QueueManagerAddress of an acknowledgement: by the peer's IP address if the peer is the
    source, else by the source's GUID."""
    address = peer.address
    direct = peer.session is not None and peer.session.direct_format_session and source == peer.remote_guid
    return acks.to_source(source, address if direct and not address.strip("0123456789.") else "")
