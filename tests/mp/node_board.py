"""A node over a disk that loses power, without a network: for tests of what a board says of its messages."""

import asyncio

import power
from confirm_cases import JN, JP, T0
from mqqb import acks, confirm, core, parse
from ordack.node import Node

LINE = power.NAMES[0]
PEER = bytes(range(100, 116))


def aside(node, queue):
    """MessageIDs of what is stored while its fate is open."""
    some = node.outbox.flash_only
    found = [found for number in sorted(queue.logged.flash_only) for found in some.walk(queue.logged, number)]
    restored = [some.restored(queue.logged, one) for one in found]
    return [one.handle.message_id for one in restored if one.is_open]


class Board:
    """A node whose clock and peer are the test's. told: (MessageID, class) of what it said has failed."""

    def __init__(self, disk=None, time=0, **options):
        self.time = time
        self._told = []
        self.numbers = {}  # MessageID -> (TxSequenceID, number) of what was transmitted
        self.options = options
        self.open(disk or power.Disk())

    def open(self, disk):
        self.disk = disk
        self.node = Node(
            "",
            files=disk,
            guid=power.GUID,
            clock=lambda: T0 + self.time,
            on_failed=lambda message: self._told.append((message.message_id, message.conclusion().message_class)),
            **self.options,
        )
        self.queue = self.node.queue(LINE)
        self.node.deadlines.check()  # as start() does

    @property
    def told(self):
        """What it has been told, as soon as it is."""
        self.node.notices.deliver()
        return self._told

    def restart(self, how=power.KEEP_SYNCED, **options):
        """The power goes and comes back."""
        self.options.update(options)
        self.open(self.disk.after_cut(how, power.Dice(1)))

    def run(self, time, seen):
        """Let the clock pass to `time`; deadlines before it act, and seen() is called after each."""
        while self.time < time:
            due = self.node.deadlines.due
            self.time = time if due is None or due - T0 >= time else max(self.time, due - T0)
            if self.time < time:
                self.node.deadlines.check()
                seen()

    def send(self, body=b"", journal=0, **properties):
        flags = {"dead_letter": journal & JN != 0, "journal": journal & JP != 0}
        flags.update(properties)
        return asyncio.run(self.queue.send(body, **flags))

    def transmit(self):
        """Put everything on the wire; the packets."""
        stream = self.queue.stream
        stream.restart()
        seen = []
        while True:
            entry = stream.next_to_send()
            if entry is None:
                return seen
            packet = bytearray(entry.key.size)
            if self.node.backlog.transmit(self.queue, entry, memoryview(packet)):
                stream.prepare(entry, packet, parse.transaction_offset(packet))
                entry.awaiting_ack = True
                seen.append(parse.parse(bytes(packet)))
                self.numbers[entry.message_id] = entry.tx_sequence_id, entry.tx_sequence_number

    def order_ack(self, sequence, number):
        packet = acks.order_ack(acks.order_queue("h"), PEER, 1, 0, sequence & 0xFFFFFFFF, sequence >> 32, number)
        self.node.outcomes.received(parse.parse(bytes(packet)), [self.queue])

    def final_ack(self, message_id, message_class):
        sequence, number = self.numbers.get(message_id, (1 << 32 | 1, 1))
        for entry in self.queue.stream.table + self.queue.stream.awaiting_final_ack:
            if entry.message_id == message_id:
                sequence, number = entry.tx_sequence_id, entry.tx_sequence_number
        packet = acks.final_ack(
            acks.order_queue("h"),
            PEER,
            1,
            0,
            sequence & 0xFFFFFFFF,
            sequence >> 32,
            number,
            number - 1,
            self.node.guid,
            message_id,
            message_class,
        )
        self.node.outcomes.received(parse.parse(bytes(packet)), [self.queue])
        return self.node.commit_now()

    def store(self):
        """Transmit, and the destination stores it all."""
        for packet in self.transmit():
            self.order_ack(packet.transaction.tx_sequence_id, packet.transaction.fields[core.TX_NUMBER])

    def state(self, message_id=1):
        self.node.notices.deliver()
        message = self.node.find(message_id)
        return "-" if message is None else chr(message.record[confirm.STATE])
