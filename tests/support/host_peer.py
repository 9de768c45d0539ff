"""A sender at the other end of the wire, for the tests of the host: the real engine, its table in memory, no sockets.

Its memory stands for a disk that never fails: the sender survives every cut, and knows what it has been told.
"""

from __future__ import annotations

from typing import Any

from mqqb import build, compose, connection, core, headers, names, parse
from mqqb.connection import Acknowledged, MessageReceived
from mqqb.session import Session, Settings
from mqqb.streams import Entry, OutgoingStream


class Peer:
    """Sends transactional messages to one destination; receives acknowledgements and messages.

    acked: MessageIDs that an OrderAck has covered, in that order. rejected: MessageID -> class of its negative
    FinalAck. received: messages that came the other way.
    """

    def __init__(
        self,
        guid: bytes,
        destination: names.QueueName,
        address: bytes = names.NULL_GUID,
        time_stamp: int = 100,
        window: int = 64,
    ) -> None:
        self.guid = guid
        self.destination = destination
        self.address = address
        self.settings = Settings(window_size=window)
        self.stream = OutgoingStream(OutgoingStream.new(time_stamp))
        self.packets: dict[int, bytearray] = {}
        self.session: Session | None = None
        self.acked: list[int] = []
        self.rejected: dict[int, int] = {}
        self.received: list[headers.UserMessage] = []
        self.next_message_id = 1
        self.order_acks = 0
        self.name = ""  # announced

    def send(self, body: bytes, delivery: str = "transactional", priority: int = 3, **properties: Any) -> int:
        """Accept a message, number it; its MessageID. properties: of build.user_message."""
        message_id = self.next_message_id
        self.next_message_id += 1
        packet = build.user_message(
            self.guid,
            message_id,
            self.destination,
            body,
            delivery=delivery,
            address=self.address,
            priority=priority,
            **{"ttrq": compose.FOREVER, **properties},
        )
        self.packets[message_id] = packet
        if delivery == "transactional":
            assert self.stream.number(packet, parse.transaction_offset(packet), message_id, message_id)
        else:
            self.stream.append(Entry(message_id, message_id, delivery == "recoverable"))
        return message_id

    @property
    def is_settled(self) -> bool:
        return not self.stream.table

    def connect(self, now: int) -> None:
        self.session = Session(True, self.guid, now, settings=self.settings)
        self.session.connected(now, name=f"ordack name:{self.name}\0".encode())
        self.stream.restart()

    def disconnect(self) -> None:
        self.session = None

    def receive(self, data: bytes, now: int) -> None:
        session = self.session
        if session is None:
            return
        for event in session.receive_data(data, now):
            if isinstance(event, MessageReceived):
                self._message(event.packet, now)
                session.stored(event.recoverable, now)
            elif isinstance(event, Acknowledged):
                self.stream.remove(event.entries)

    def _message(self, packet: headers.UserMessage | connection.OrderAck | headers.FinalAck, now: int) -> None:
        if isinstance(packet, connection.OrderAck):
            self.order_acks += 1
            self.acked += [entry.message_id for entry in self.stream.order_ack(packet.body, now)]
        elif isinstance(packet, headers.FinalAck):
            self.rejected[packet.body.message_id] = packet.message.properties.message_class
            self.stream.final_ack(packet.body, now)
        else:
            self.received.append(packet)

    def output(self, now: int) -> bytes:
        """Run the timers, send what may be sent; the bytes for the wire."""
        session = self.session
        if session is None:
            return b""
        session.handle_timeout(now)
        self.stream.handle_timeout(now)
        while session.can_send():
            entry = self.stream.next_to_send()
            if entry is None:
                break
            packet = bytearray(self.packets[entry.message_id])
            if entry.tx_sequence_number:
                self.stream.prepare(entry, packet, parse.transaction_offset(packet))
            session.send(entry, packet, entry.recoverable, now)
        return session.data_to_send()


def direct(name: str) -> names.DirectQueueFormatName:
    """A queue of whoever is listening on this machine."""
    return names.DirectQueueFormatName(f"TCP:127.0.0.1\\private$\\{name}")


def body_of(raw: bytes) -> bytes:
    """The body of a stored packet."""
    message = parse.parse(raw)
    assert isinstance(message, headers.UserMessage)
    assert not message.base.flags & core.BASE_SH
    return bytes(message.properties.body)
