"""Two ends of the protocol on a wire that the test holds: what both CPython's and MicroPython's engine tests are made
of.

Each end keeps what is durable apart from what a crash takes, so that a test can cut the wire, or the power, wherever
it likes.
"""

from array import array

from mqqb import acks, build, compose, connection, core, handshake, names, parse, session, streams
from mqqb.connection import Acknowledged, MessageReceived
from mqqb.destination import IncomingStream
from mqqb.headers import FinalAck, FinalAckBody, TransactionHeader, UserMessage

SENDER = bytes(range(16))
RECEIVER = bytes(range(100, 116))
ORDER_QUEUE = names.parse_format_name("DIRECT=TCP:127.0.0.1\\PRIVATE$\\order_queue$")
DESTINATION = names.parse_format_name("DIRECT=TCP:127.0.0.1\\private$\\line1")

BOARD = False  # True: the session is used as a board uses it, with its own room and a buffer for the output


def events_of(subject, data, now):
    """What the bytes tell, each event before the next one is made."""
    if not BOARD:
        for event in subject.receive_data(data, now):
            yield event
        return
    data = memoryview(data)
    while len(data):
        room = subject.reader.room()
        count = min(len(room), len(data))
        assert count
        room[:count] = data[:count]
        data = data[count:]
        subject.reader.took(count)
        event = subject.next_event(now)
        while event is not None:
            yield event
            event = subject.next_event(now)


def send(subject, entry, packet, recoverable, now):
    """Session.send, or send_in at an odd place of a buffer; then its bytes wait with the others."""
    if not BOARD:
        subject.send(entry, packet, recoverable, now)
        return
    buffer = bytearray(b"?" * 7) + packet + bytes(16)
    size = subject.send_in(entry, buffer, 7, len(packet), recoverable, now)
    assert size in (len(packet), len(packet) + 16)
    subject._out.append(buffer[7 : 7 + size])
    buffer[9] &= ~core.BASE_SH
    assert buffer[: 7 + len(packet)] == b"?" * 7 + packet


class Sender:
    """An application's side: an outgoing stream, its packets on `disk`, at most one session."""

    def __init__(self, time_stamp=7, rolls=True):
        self.disk = {}  # message id -> packet as numbered
        self.settled = []
        self.record = streams.OutgoingStream.new(time_stamp)
        self.stream = streams.OutgoingStream(self.record, rolls=rolls)
        self.next_message_id = 1
        self.session = None
        self.rejected = []

    def send(self, body, delivery="transactional", journal=False):
        message_id = self.next_message_id
        self.next_message_id += 1
        packet = build.user_message(SENDER, message_id, DESTINATION, body, delivery=delivery)
        offset = parse.transaction_offset(packet)
        if offset:
            entry = self.stream.number(packet, offset, message_id, message_id, journal)
            assert entry is not None
        else:
            self.stream.append(streams.Entry(message_id, message_id, delivery != "express"))
        self.disk[message_id] = bytes(packet)
        return message_id

    def connect(self, now, settings=None):
        self.stream.restart()
        self.session = session.Session(True, SENDER, now, settings=settings)
        self.session.connected(now)

    def crash(self):
        """Only the disk is left: the table comes back from it, in order."""
        record = array("I", self.stream.record)
        old = {entry.message_id: entry for entry in self.stream.table}
        self.stream = streams.OutgoingStream(record)
        for message_id in sorted(self.disk):
            gone = old[message_id]
            self.stream.append(
                streams.Entry(
                    message_id, message_id, gone.recoverable, gone.journal, gone.tx_sequence_id, gone.tx_sequence_number
                )
            )
        self.session = None

    def receive(self, data, now):
        events = []
        for event in events_of(self.session, data, now):
            events.append(event)
            if isinstance(event, MessageReceived):
                packet = event.packet
                if isinstance(packet, connection.OrderAck):
                    covered = self.stream.order_ack(packet.body, now)
                    self._settle([entry for entry in covered if not entry.journal])
                elif isinstance(packet, FinalAck):
                    entry = self.stream.final_ack(packet.body, now)
                    if entry is not None:
                        properties = packet.message.properties.fields
                        self.rejected.append((entry.message_id, properties[core.PROPERTIES_MESSAGE_CLASS]))
                        self._settle([entry])
                self.session.stored(event.recoverable, now)
            elif isinstance(event, Acknowledged):
                self.stream.remove(event.entries)
                self._settle(event.entries)
        self.pump(now)
        return events

    def _settle(self, entries):
        for entry in entries:
            self.settled.append(entry.message_id)
            del self.disk[entry.message_id]

    def pump(self, now, limit=1 << 30):
        sent = 0
        while sent < limit and self.session is not None and self.session.can_send():
            entry = self.stream.next_to_send()
            if entry is None:
                break
            packet = bytearray(self.disk[entry.key])
            if entry.tx_sequence_number:
                self.stream.prepare(entry, packet, parse.transaction_offset(packet))
            send(self.session, entry, packet, entry.recoverable, now)
            sent += 1
        return sent


class Receiver:
    """A queue's side: `queue`, `history` and the incoming record are durable, the rest is not.

    hold: events are not stored. refuse: MessageID -> class of the negative FinalAck that it gets. is_full: the quota of
    the queue manager is used up, which ends the session. duplicates: of messages that are not transactional, discarded.
    """

    def __init__(self, now=0):
        self.queue = []  # (message id, tx id, number, body), as inserted
        self.record = array("I", (0, 0, 0, 0))
        self.incoming = IncomingStream(array("I", self.record), now)
        self.session = None
        self.order_acks = []
        self.hold = False
        self.refuse = {}
        self.is_full = False
        self.held = []
        self.history = set()
        self.duplicates = 0
        self.next_message_id = 1

    def accept(self, now, settings=None):
        self.session = session.Session(False, RECEIVER, now, settings=settings)
        self.session.connected(now)

    def crash(self, now):
        self.incoming = IncomingStream(array("I", self.record), now)
        self.session = None
        self.held = []

    def receive(self, data, now):
        events = []
        for event in events_of(self.session, data, now):
            events.append(event)
            if isinstance(event, MessageReceived):
                self.held.append(event)
        if not self.hold:
            self.store(now)
        return events

    def store(self, now):
        """One durable step for everything that was held, then tell the session (design rule 2)."""
        for event in self.held:
            message = event.packet
            if self.is_full:
                self.session.close("B-285", "the quota is used up")
                break
            if isinstance(message, UserMessage):
                self._take(message, now)
        self.record = array("I", self.incoming.record)
        for event in self.held:
            self.session.stored(event.recoverable, now)
        self.held = []

    def _take(self, message, now):
        message_id = message.user.fields[core.USER_MESSAGE_ID]
        transaction = message.transaction
        number = None
        if transaction is not None:
            number = (transaction.tx_sequence_id, transaction.fields[core.TX_NUMBER])
            self.incoming.schedule_order_ack(now)
            if not self.incoming.accept(transaction):
                return
        elif message_id in self.history:
            self.duplicates += 1
            return
        else:
            self.history.add(message_id)
        if message_id in self.refuse:
            self.final_ack(message, self.refuse[message_id], now)
        else:
            self.queue.append((message_id, number, bytes(message.properties.body)))

    def final_ack(self, message, message_class, now):
        """Send a FinalAck for this UserMessage."""
        transaction = message.transaction
        packet = acks.final_ack(
            ORDER_QUEUE,
            RECEIVER,
            self.next_message_id,
            0,
            transaction.fields[core.TX_ORDINAL],
            transaction.fields[core.TX_TIME_STAMP],
            transaction.fields[core.TX_NUMBER],
            transaction.fields[core.TX_PREVIOUS],
            message.user.source_queue_manager,
            message.user.fields[core.USER_MESSAGE_ID],
            message_class,
        )
        self.next_message_id += 1
        send(self.session, None, packet, True, now)

    def tick(self, now):
        if self.session is None or self.session.state != connection.OPEN:
            return
        due = self.incoming.next_timeout()
        if due is not None and now >= due and self.session.can_send():
            if self.incoming.tx_sequence_number:
                packet = acks.order_ack(
                    ORDER_QUEUE,
                    RECEIVER,
                    self.next_message_id,
                    0,
                    self.incoming.record[core.INCOMING_ORDINAL],
                    self.incoming.record[core.INCOMING_TIME_STAMP],
                    self.incoming.tx_sequence_number,
                )
                self.next_message_id += 1
                send(self.session, None, packet, False, now)
                self.order_acks.append((now, self.incoming.tx_sequence_number))
            self.incoming.order_ack_sent(now)
        self.session.handle_timeout(now)


def exchange(sender, receiver, now):
    """Carry bytes both ways until nobody has anything to say."""
    moved = True
    while moved:
        up = sender.session.data_to_send()
        if up:
            receiver.receive(up, now)
        receiver.tick(now)
        down = receiver.session.data_to_send()
        if down:
            sender.receive(down, now)
        moved = bool(up or down)


def open_pair(now=0, sender=None, receiver=None, settings=None):
    """A sender and a receiver with an open session between them."""
    sender = sender or Sender()
    receiver = receiver or Receiver(now)
    sender.connect(now, settings)
    receiver.accept(now, settings)
    exchange(sender, receiver, now)
    assert sender.session.state == connection.OPEN
    assert receiver.session.state == connection.OPEN
    return sender, receiver


def run(sender, receiver, now, until):
    """Let time pass in steps of 100 ms, carrying bytes, to `until`."""
    while now < until:
        now += 100
        sender.session.handle_timeout(now)
        sender.stream.handle_timeout(now)
        sender.pump(now)
        exchange(sender, receiver, now)
    return now


def transaction(tx_sequence_id, number, previous):
    """A TransactionHeader with these three."""
    header = TransactionHeader()
    header.fields[core.TX_ORDINAL] = tx_sequence_id & 0xFFFFFFFF
    header.fields[core.TX_TIME_STAMP] = tx_sequence_id >> 32
    header.fields[core.TX_NUMBER] = number
    header.fields[core.TX_PREVIOUS] = previous
    return header


def order_ack_body(tx_sequence_id, number):
    """The body of an OrderAck."""
    body = streams.OrderAckBody()
    body.fields[core.ACK_ORDINAL] = tx_sequence_id & 0xFFFFFFFF
    body.fields[core.ACK_TIME_STAMP] = tx_sequence_id >> 32
    body.fields[core.ACK_NUMBER] = number
    return body


def final_ack_body(entry):
    """The body of a FinalAck for this entry."""
    body = FinalAckBody()
    body.fields[core.ACK_ORDINAL] = entry.tx_sequence_id & 0xFFFFFFFF
    body.fields[core.ACK_TIME_STAMP] = entry.tx_sequence_id >> 32
    body.fields[core.ACK_NUMBER] = entry.tx_sequence_number
    body.fields[core.ACK_MESSAGE_ID] = entry.message_id
    return body


def session_headers(data):
    """The words of the SessionHeaders of the SessionAcks among these packets."""
    found = []
    total = 0
    while total < len(data):
        packet = parse.parse(data, total)
        size = core.packet_total(packet.base.fields[core.BASE_FLAGS], packet.base.fields[core.BASE_PACKET_SIZE])
        if isinstance(packet, handshake.SessionAck):
            found.append(packet.session.fields)
        total += size
    return found


def end_of(events: list[object]) -> connection.Closed:
    """The last event, which is the end."""
    assert events
    assert isinstance(events[-1], connection.Closed)
    assert isinstance(events[-1].reason, str), "an operator is told"
    return events[-1]


def states() -> dict[str, session.Session]:
    """A session in each state but CLOSED."""
    made = {}
    initiator = session.Session(True, SENDER, 0)
    initiator.connected(0)
    made[connection.WAITING_ECR_MSG] = initiator
    made[connection.WAITING_EC_MSG] = session.Session(False, RECEIVER, 0)
    asked = session.Session(False, RECEIVER, 0)
    asked.receive_data(compose.establish_connection(SENDER, bytes(16), 0), 0)
    asked.data_to_send()
    made[connection.WAITING_CP_MSG] = asked
    asking = session.Session(True, SENDER, 0)
    asking.connected(0)
    asking.receive_data(compose.establish_connection(SENDER, RECEIVER, 0), 0)
    asking.data_to_send()
    made[connection.WAITING_CPR_MSG] = asking
    made[connection.OPEN] = open_pair()[1].session
    return made
