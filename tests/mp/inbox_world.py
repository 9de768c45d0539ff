"""Senders over wires that exist only in memory, and a board with inboxes that loses power: for tests of the inboxes."""

import power
from mqqb import build, compose, connection, core, guids, headers, names, parse, session, streams
from mqqb.connection import Acknowledged, MessageReceived
from mqqb.session import Settings
from ordack.node import Node

JN = core.USER_JN
BOARD = bytes(range(16))
NAME = "DIRECT=TCP:10.0.0.7\\private$\\commands"


class Sender:
    """Sends to a queue of the board, and survives everything: its memory stands for a disk that never fails.

    said: MessageID -> class of the FinalAck. stored: MessageIDs that OrderAcks have covered, but no FinalAck has
    refused. seen: what came, in order: ("final", MessageID, class) or ("order", number).
    """

    def __init__(self, number, name=NAME, time_stamp=100, window=64):
        self.guid = bytes([number]) * 16
        self.name = guids.parse_format_name(name)
        self.host = names.NULL_GUID
        if isinstance(self.name, headers.PrivateQueueFormatName):
            self.host = self.name.source_queue_manager
            self.name = headers.PrivateQueueFormatNameId(self.name.private_queue_identifier)
        self.settings = Settings(window_size=window)
        self.stream = streams.OutgoingStream(streams.OutgoingStream.new(time_stamp))
        self.packets = {}
        self.sent = []  # MessageIDs, in order
        self.said = {}
        self.stored = []
        self.seen = []
        self.acknowledged_by = []  # MessageIDs of the acknowledgements
        self.session = None

    def send(self, body, delivery="transactional", journal=JN, ttrq=compose.FOREVER, **properties):
        """Accept a message; its MessageID."""
        message_id = len(self.sent) + 1
        packet = build.user_message(
            self.guid,
            message_id,
            self.name,
            body,
            delivery=delivery,
            address=self.host,
            journal=journal,
            ttrq=ttrq,
            **properties,
        )
        self.sent.append(message_id)
        self.packets[message_id] = packet
        if delivery == "transactional":
            offset = parse.transaction_offset(packet)
            assert self.stream.number(packet, offset, message_id, message_id, journal != 0)
        else:
            self.stream.append(streams.Entry(message_id, message_id, delivery == "recoverable"))
        return message_id

    def body(self, message_id):
        return bytes(parse.parse(bytes(self.packets[message_id])).properties.body)

    @property
    def is_settled(self):
        return not self.stream.table and not self.stream.awaiting_final_ack

    def connect(self, now):
        self.session = session.Session(True, self.guid, now, settings=self.settings)
        self.session.connected(now)
        self.stream.restart(now)

    def receive(self, data, now):
        for event in self.session.receive_data(data, now):
            if isinstance(event, MessageReceived):
                self._message(event.packet, now)
                self.session.stored(event.recoverable, now)
            elif isinstance(event, Acknowledged):
                self.stream.remove(event.entries)

    def _message(self, packet, now):
        self.acknowledged_by.append(packet.message.user.fields[core.USER_MESSAGE_ID])
        if isinstance(packet, connection.OrderAck):
            self.seen.append(("order", packet.body.fields[core.ACK_NUMBER]))
            self.stored += [entry.message_id for entry in self.stream.order_ack(packet.body, now)]
        elif isinstance(packet, headers.FinalAck):
            assert packet.body.source_guid == self.guid
            message_id = packet.body.fields[core.ACK_MESSAGE_ID]
            message_class = packet.message.properties.fields[core.PROPERTIES_MESSAGE_CLASS]
            self.seen.append(("final", message_id, message_class))
            assert self.said.get(message_id, message_class) == message_class, "two answers"
            self.said[message_id] = message_class
            self.stream.final_ack(packet.body, now)

    def output(self, now):
        """Run the timers, send what may be sent; the bytes for the wire."""
        conversation = self.session
        conversation.handle_timeout(now)
        self.stream.handle_timeout(now)
        while conversation.can_send():
            entry = self.stream.next_to_send()
            if entry is None:
                break
            packet = bytearray(self.packets[entry.message_id])
            if entry.tx_sequence_number:
                self.stream.prepare(entry, packet, parse.transaction_offset(packet))
            conversation.send(entry, packet, entry.recoverable, now)
        return conversation.data_to_send()


class Wire:
    """A connection to the board: a link of its node. What is on the way is lost when it is cut."""

    stream = None
    wants_write = False

    def __init__(self, host="10.0.0.9"):
        self.host = host
        self.to_board = bytearray()
        self.to_sender = bytearray()
        self.is_cut = False

    def readinto(self, buffer):
        if self.is_cut:
            raise OSError(104)
        count = min(len(buffer), len(self.to_board))
        buffer[:count] = self.to_board[:count]
        self.to_board = self.to_board[count:]
        return count

    def write(self, data):
        if self.is_cut:
            raise OSError(104)
        self.to_sender += data
        return len(data)

    def close(self):
        self.is_cut = True


class Time:
    """Monotonic ms, as node.clock.Clock."""

    def __init__(self):
        self.ms = 0

    def now(self):
        return self.ms


class World:
    """A board with the inbox "commands", number 7, and senders that connect to it. time: s since 1970; 0: not set."""

    def __init__(self, senders=(), time=0, **options):
        self.senders = list(senders)
        self.wires = {}  # sender -> Wire
        self.time = time
        self.clock = Time()
        self.options = options
        self.open(power.Disk())

    def open(self, disk):
        self.disk = disk
        self.node = Node("", files=disk, guid=BOARD, clock=lambda: self.time, random=lambda: 0.5, **self.options)
        self.node.clock.now = self.clock.now
        self.inbox = self.node.inbox("commands", 7)

    def restart(self, how=power.KEEP_SYNCED, dice=None, partial=b""):
        """The power goes and comes back."""
        for sender in list(self.wires):
            self.cut(sender)
        self.open(self.disk.after_cut(how, dice or power.Dice(1), partial))

    def connect(self, sender, address=None):
        """Connect a sender if it is not; address: None, its own, as a link knows it."""
        if sender not in self.wires:
            wire = self.wires[sender] = Wire() if address is None else Wire(address)
            sender.connect(self.clock.ms)
            self.node.peers.add(wire, None)

    def cut(self, sender):
        wire = self.wires.pop(sender, None)
        if wire is not None:
            wire.is_cut = True
            sender.session = None

    def step(self, most=1 << 30):
        """Up to so many bytes of each wire arrive on each side; the board does what it can."""
        for sender, wire in list(self.wires.items()):
            wire.to_board += sender.output(self.clock.ms)
            data = bytes(wire.to_sender[:most])
            wire.to_sender = wire.to_sender[len(data) :]
            if data:
                sender.receive(data, self.clock.ms)
            if wire.is_cut or sender.session.closed:
                self.cut(sender)
        for _ in range(20):
            if self.node.poll():
                break

    def run(self, ms=2000, handle=None):
        """Everybody is connected, time passes, everything arrives; handle: called with what is in the inbox."""
        end = self.clock.ms + ms
        while True:
            for sender in self.senders:
                self.connect(sender)
            for _ in range(4):
                self.step()
                if handle is not None:
                    message = self.inbox.get()
                    while message is not None:
                        handle(message)
                        message = self.inbox.get()
            if self.clock.ms >= end:
                return
            self.clock.ms += 100
            self.time += (self.time != 0) * (self.clock.ms % 1000 == 0)


class Application:
    """Handles what is in the inbox, and knows what it has handled: its memory outlives the power cuts."""

    def __init__(self):
        self.handled = []  # (source, MessageID), in order
        self.rejected = []
        self.open = None  # handled, but perhaps not durably taken

    def look(self, world, dice):
        """Handle a message, or part of it: take it, or not yet."""
        message = world.inbox.get()
        if message is None:
            return
        what = (message.source, message.message_id)
        if what != self.open:
            assert what not in self.handled, ("handled before", what)
            self.handled.append(what)
            self.open = what
        else:
            assert message.again
        if dice.below(4):
            if dice.below(5):
                world.inbox.take(message)
            else:
                self.rejected.append(what)
                world.inbox.reject(message)
                # if the power goes in it, it may be taken later instead
            self.open = None

    def restarted(self, world):
        """What was about to be taken may be there again."""
        self.open = None
        message = world.inbox.get()
        if message is None:
            return
        what = (message.source, message.message_id)
        if what in self.handled:
            assert message.again
            assert what == self.handled[-1], ("again, and not the last one", what)
            self.open = what


def world_of(*senders, **options):
    return World(senders, **options)


def taker(world, bodies):
    def handle(message):
        bodies.append(message.body)
        world.inbox.take(message)

    return handle
