"""Two hosts that exchange messages, as one observation point between them sees them."""

import itertools
import random
import struct

from tests.support.capture_bytes import (
    ACK,
    ACK_RECEIVE,
    DM,
    FA,
    FIN,
    JN,
    JP,
    NACK_Q_EXCEED_QUOTA,
    NACK_Q_PURGED,
    NULL,
    ORDER_ACK,
    ORDER_QUEUE_ID,
    PSH,
    RST,
    SH,
    SYN,
    acknowledgement,
    connection_parameters,
    direct_name,
    establish_connection,
    session_ack,
    session_header,
    user_message,
)
from tests.support.capture_model import Connection, Entry, Frame, Half, Line, Manager, Packet, Planted


class Wire:
    """Two hosts, their connections and sessions, and what an observer between them sees."""

    def __init__(self, rng: random.Random, number: int, ends: tuple[Manager, Manager], start: int, first: int) -> None:
        self.rng = rng
        self.number = number
        self.ends = ends
        self.clock = start
        self.frames: list[Frame] = []
        self.packets: list[Packet] = []
        self.connections: list[Connection] = []
        self.first_connection = first
        self.lines: list[Line] = []
        self.planted: list[Planted] = []
        self.current: dict[tuple[int, int], Connection] = {}  # (opener, purpose)
        self.unsettled: list[list[tuple[Packet, bytes]]] = [[], []]  # recoverable, not session-acknowledged, by end
        # How these implementations behave.
        self.window = rng.choice([4, 16, 64])
        self.piggyback_counts_itself = rng.random() < 0.7
        self.piggybacks = rng.random() < 0.5
        self.rolls = rng.random() < 0.7
        self.rejects = rng.random() < 0.3
        self.advances_on_reject = rng.random() < 0.5
        self.bridges_at_once = rng.random() < 0.5
        self.direct_acks = rng.random() < 0.5
        self.own_ack_connection = rng.random() < 0.25
        self.observer = rng.choice([0.1, 0.5, 0.9])  # where between end 0 and end 1
        self.biggest = rng.choice([200, 536, 1448, 8000])  # bytes of payload in a segment
        self.options = b"\x01\x01\x08\x0a" + bytes(8) if rng.random() < 0.5 else b""
        self.vlan = rng.randrange(1, 4000) if rng.random() < 0.2 else 0
        self.disorder = rng.choice([0.0, 0.0, 0.1, 0.3])
        self.repeats = rng.choice([0.0, 0.05, 0.2])
        self.breaks = rng.choice([0.002, 0.01, 0.03])
        self.quiet_start = rng.random() < 0.8  # seconds between the first connection and the first message
        self.port = rng.randrange(2000, 60000)
        self.power_cuts = False

    # -- the wire

    def _emit(self, connection: Connection, direction: int, place: int, payload: bytes, flags: int) -> None:
        self.clock += int(self.rng.expovariate(1) * 300_000) + 1000
        half, other = connection.halves[direction], connection.halves[1 - direction]
        half.acked_bytes = max(
            half.acked_bytes,
            self.rng.randint(other.received_bytes, other.passed) if self.rng.random() < 0.3 else other.received_bytes,
        )
        self.frames.append(Frame(self.clock, connection, direction, place, payload, flags, half.acked_bytes))

    def _pass(self, connection: Connection, direction: int, count: int, part: float = 1.0) -> None:
        """Lets packets pass the observer; of the last one only a part (then it arrives nowhere)."""
        half = connection.halves[direction]
        moved, half.before = half.before[:count], half.before[count:]
        if not moved:
            return
        begin = half.passed
        data = b""
        for packet in moved:
            packet.start = begin + len(data)
            data += packet.data
            self.packets.append(packet)
        if part < 1:
            cut = len(data) - int(len(moved[-1].data) * (1 - part)) - 1
            data = data[:cut]
            self.packets.remove(moved.pop())
        half.passed += len(data)
        half.behind += moved
        cuts = [0]
        while cuts[-1] < len(data):
            size = self.biggest if self.rng.random() < 0.6 else self.rng.randint(1, self.biggest)
            cuts.append(min(len(data), cuts[-1] + size))
        segments = list(itertools.pairwise(cuts))
        if len(segments) > 1 and self.rng.random() < self.disorder:
            at = self.rng.randrange(len(segments) - 1)
            segments.insert(self.rng.randint(at + 1, len(segments) - 1), segments.pop(at))
        if self.rng.random() < self.repeats:
            first = self.rng.randrange(max(0, len(data) - 1) + 1)
            again = (first, min(len(data), first + self.rng.randint(1, self.biggest)))
            if again[0] < again[1]:
                segments.insert(self.rng.randint(0, len(segments)), again)
        for first, last in segments:
            self._emit(connection, direction, begin + first, data[first:last], ACK | PSH)

    def _receive(self, connection: Connection, direction: int, count: int) -> None:
        half = connection.halves[direction]
        moved, half.behind = half.behind[:count], half.behind[count:]
        for packet in moved:
            half.received_bytes += len(packet.data)
            self._process(packet)
            if not connection.open:
                return
        if moved and self.rng.random() < 0.4:
            self._emit(connection, 1 - direction, connection.halves[1 - direction].passed, b"", ACK)

    def _process(self, packet: Packet) -> None:
        """The receiver takes a packet."""
        raise NotImplementedError

    # -- sessions

    def _open(self, opener: int, purpose: int) -> Connection:
        rng = self.rng
        used = any(one.open and one.opener == opener and one.ports[0] == self.port for one in self.current.values())
        if used or rng.random() < 0.8:  # else the port of an earlier connection
            self.port = self.port % 60000 + rng.randint(1, 5)
            self.port += self.port == 1801  # two ends with that port could open the same connection
        ends = (self.ends[opener], self.ends[1 - opener])
        initial = tuple(rng.choice([rng.getrandbits(32), 0xFFFFFFFF - rng.randrange(3000)]) for _ in range(2))
        number = self.first_connection + len(self.connections)
        connection = Connection(
            number, ends, (self.port, 1801), (initial[0], initial[1]), opener, self.clock, purpose, options=self.options
        )
        self.connections.append(connection)
        self.current[opener, purpose] = connection
        self._emit(connection, 0, -1, b"", SYN)
        self._emit(connection, 1, -1, b"", SYN | ACK)
        self._emit(connection, 0, 0, b"", ACK)
        stamp = rng.getrandbits(32)
        hello = [
            (0, establish_connection(ends[0].guid, rng.choice([NULL, ends[1].guid]), stamp)),
            (1, establish_connection(ends[0].guid, ends[1].guid, stamp)),
            (0, connection_parameters(self.window)),
            (1, connection_parameters(self.window)),
        ]
        for direction, data in hello:
            connection.halves[direction].before.append(Packet(data, "handshake", connection, direction, counted=False))
            self._pass(connection, direction, 1)
            self._receive(connection, direction, 1)
        for line in self.lines:
            if line.sender == opener and not purpose:
                line.connection = connection
                if self.power_cuts and rng.random() < 0.2:
                    self._lose_marks(line)
                for entry in line.table:
                    entry.in_flight = False
        for packet, data in self._resend_unsettled(connection):
            self._send(connection, packet, data)
        return connection

    def _resend_unsettled(self, connection: Connection) -> list[tuple[Packet, bytes]]:
        again: list[tuple[Packet, bytes]] = []
        for end in (0, 1):
            direction = int(end != connection.opener)
            stay = []
            for packet, data in self.unsettled[end]:
                if packet.connection.open or not self._carries(connection, packet):
                    stay.append((packet, data))
                else:
                    copy = Packet(data, packet.kind, connection, direction, packet.line, packet.sequence, packet.number)
                    copy.previous, copy.message_id, copy.own_id = packet.previous, packet.message_id, packet.own_id
                    copy.message_class, copy.recoverable = packet.message_class, True
                    again.append((copy, data))
            self.unsettled[end] = stay
        return again

    def _lose_marks(self, line: Line) -> None:
        """The sender lost its power, and with it that the last messages of the sequence are acknowledged."""
        lost = line.acknowledged[-self.rng.randint(1, 5) :]
        if not line.stubborn and all(entry.sequence == line.sequence for entry, _ in lost):
            line.table = [entry for entry, _ in lost] + line.table
            del line.acknowledged[len(line.acknowledged) - len(lost) :]

    @staticmethod
    def _carries(connection: Connection, packet: Packet) -> bool:
        return connection.opener == packet.connection.opener and connection.purpose == packet.connection.purpose

    def _break(self, connection: Connection) -> None:
        """The connection ends: what is before the observer is never seen, what is behind it never received."""
        for direction in (0, 1):
            half = connection.halves[direction]
            if half.before and self.rng.random() < 0.3:
                self._pass(connection, direction, self.rng.randint(1, len(half.before)), self.rng.random())
            half.before.clear()
            half.behind.clear()
        connection.open = False
        how = self.rng.random()
        if how < 0.4:
            for direction in (0, 1):
                self._emit(connection, direction, connection.halves[direction].passed, b"", FIN | ACK)
        elif how < 0.7:
            direction = self.rng.randrange(2)
            self._emit(connection, direction, connection.halves[direction].passed, b"", RST | ACK)
        self.clock += int(self.rng.expovariate(1) * 2e9)

    def _header(self, half: Half, **wrong: int) -> tuple[bytes, tuple[int, int, int]]:
        """Fills a SessionHeader (B-101 to B-108) and resets what it acknowledges."""
        ack, base, bits = half.received, half.last_acked + 1 if half.bits else 0, half.bits
        if "ack" in wrong:
            ack += wrong["ack"]
        if "base" in wrong:
            base, bits = half.recoverable_received + wrong["base"], 1
        header = session_header(
            ack,
            base,
            bits,
            half.sent + wrong.get("sent", 0),
            half.recoverable_sent + wrong.get("recoverable", 0),
            self.window,
        )
        half.bits, half.unacked, half.last_acked = 0, 0, half.recoverable_received
        return header, (ack, base, bits)

    def _send(self, connection: Connection, packet: Packet, data: bytes) -> None:
        """Counts and sends a UserMessage-shaped packet; data without SessionHeader."""
        end = connection.opener ^ packet.direction
        half = connection.halves[packet.direction]
        if self.piggybacks and half.unacked and packet.kind == "message" and self.rng.random() < 0.3:
            if self.piggyback_counts_itself:
                half.sent += 1
                half.recoverable_sent += packet.recoverable
            header, packet.header = self._header(half)
            if not self.piggyback_counts_itself:
                half.sent += 1
                half.recoverable_sent += packet.recoverable
            flags = struct.unpack_from("<H", data, 2)[0] | SH
            packet.data = data[:2] + struct.pack("<H", flags) + data[4:] + header
        else:
            half.sent += 1
            half.recoverable_sent += packet.recoverable
            packet.data = data
        half.log.append(packet)
        half.everything.append(packet)
        half.before.append(packet)
        if (packet.recoverable and packet.line is None) or packet.kind == "final":
            self.unsettled[end].append((packet, data))

    def _session_ack(self, connection: Connection, direction: int, **wrong: int) -> Packet:
        header, meaning = self._header(connection.halves[direction], **wrong)
        packet = Packet(session_ack(header), "session", connection, direction, counted=False)
        if not wrong.keys() & {"ack", "base"}:  # else it acknowledges nothing: its receiver ignores it (B-229)
            packet.header = meaning
        connection.halves[direction].before.append(packet)
        connection.halves[direction].everything.append(packet)
        return packet

    def _room(self, connection: Connection, direction: int) -> bool:
        half = connection.halves[direction]
        return half.sent - half.peer_acked < self.window


class Exchange(Wire):
    """Messages and acknowledgements of two hosts."""

    # -- messages

    def _new_entry(self, line: Line) -> Entry:
        rng = self.rng
        body = rng.randbytes(rng.choice([0, 4, 30, rng.randrange(200), rng.randrange(3000)]))
        flags = DM | rng.choice([0, 0, JN, JP, JN | JP])
        return Entry(
            line.source.message_id(),
            body,
            flags,
            rng.choice([0, FA]) | 0xC | rng.getrandbits(20) << 4,
            self.clock // 10**9,
        )

    def _send_messages(self, line: Line, count: int) -> None:
        """What is not in flight on this connection, in table order, then new ones."""
        connection = line.connection
        if connection is None or not connection.open:
            return
        for _ in range(count):
            if not self._room(connection, 0):
                return
            waiting = [index for index, entry in enumerate(line.table) if not entry.in_flight]
            if not waiting:
                line.table.append(self._new_entry(line))
                waiting = [len(line.table) - 1]
            self._transmit(line, connection, waiting[0])

    def _transmit(self, line: Line, connection: Connection, index: int) -> Packet:
        entry = line.table[index]
        before = [other.number for other in line.table[:index] if other.sequence == line.sequence and other.number]
        if not entry.number:  # B-317; B-319 if the predecessor has expired
            entry.number, entry.sequence = line.next_number, line.sequence
            line.next_number += 1
            previous = entry.number - 1
            expired = previous and line.incoming != (line.sequence, previous) and (not before or before[-1] != previous)
            if expired and self.bridges_at_once and not line.stubborn:
                acked = [old.number for old, _ in line.acknowledged if old.sequence == line.sequence]
                if previous not in acked:
                    previous = before[-1] if before else 0
            entry.previous = previous
        elif line.stubborn:
            previous = entry.previous
        else:  # B-318
            previous = before[-1] if before else 0
        return self._transmit_as(line, connection, entry, previous)

    def _transmit_as(self, line: Line, connection: Connection, entry: Entry, previous: int) -> Packet:
        ordinal, stamp = entry.sequence
        transaction = struct.pack("<IIIII", entry.transaction_flags, ordinal, stamp, entry.number, previous)
        address = line.target.guid if line.selector in (3, 5) else NULL
        data = user_message(
            line.source.guid,
            address,
            entry.message_id,
            line.selector,
            line.name,
            flags=entry.flags | line.hops,
            transaction=transaction,
            label="reading",
            body=entry.body,
            body_type=0x11 | 0x1000,
            sent_time=entry.sent_time,
        )
        packet = Packet(data, "message", connection, 0, line, entry.sequence, entry.number, previous, entry.message_id)
        packet.own_id, packet.sent_time, packet.recoverable = entry.message_id, entry.sent_time, True
        self._send(connection, packet, data)
        packet.journaled = bool(entry.flags & (JN | JP))
        entry.in_flight = True
        line.highest_sent[entry.sequence] = max(line.highest_sent.get(entry.sequence, 0), entry.number)
        return packet

    def _plain_message(self, connection: Connection, direction: int) -> None:
        """Express or recoverable, in no stream."""
        if not self._room(connection, direction):
            return
        source = connection.ends[direction]
        recoverable = self.rng.random() < 0.5
        own = source.message_id()
        name = direct_name(f"TCP:{connection.ends[1 - direction].text}\\PRIVATE$\\plain")
        data = user_message(
            source.guid, NULL, own, 7, name, flags=DM if recoverable else 0, body=self.rng.randbytes(20), priority=3
        )
        packet = Packet(data, "message", connection, direction, message_id=own, own_id=own, recoverable=recoverable)
        self._send(connection, packet, data)

    def _ack_path(self, line: Line) -> tuple[Connection, int] | None:
        """The connection and direction for a line's order and final acknowledgements."""
        if self.own_ack_connection:
            opener = 1 - line.sender
            connection = self.current.get((opener, 1))
            if connection is None or not connection.open:
                if self.rng.random() < 0.3:
                    self._open(opener, 1)
                return None
            return connection, 0
        if line.connection is None or not line.connection.open:
            return None
        return line.connection, 1

    def _acknowledge(
        self, line: Line, message_class: int, sequence: tuple[int, int], number: int, previous: int, of: int
    ) -> Packet | None:
        path = self._ack_path(line)
        if path is None or not self._room(*path):
            return None
        connection, direction = path
        if message_class == ORDER_ACK:
            body = struct.pack("<IIII", *sequence, number, previous) + self.rng.choice(
                [bytes(20), self.rng.randbytes(20)]
            )
        else:
            body = struct.pack("<IIII16sI", *sequence, number, previous, line.source.guid, of)
        own = line.target.message_id()
        if self.direct_acks and not line.hops:
            address, selector, name = NULL, 7, direct_name(f"TCP:{line.source.text}\\PRIVATE$\\order_queue$")
        else:
            address, selector, name = line.source.guid, 3, struct.pack("<I", ORDER_QUEUE_ID)
        data = acknowledgement(line.target.guid, address, selector, name, own, message_class, body)
        kind = "order" if message_class == ORDER_ACK else "final"
        packet = Packet(data, kind, connection, direction, line, sequence, number, previous, of)
        packet.own_id, packet.message_class, packet.recoverable = own, message_class, kind == "final"
        self._send(connection, packet, data)
        return packet

    # -- reception

    def _process(self, packet: Packet) -> None:
        connection = packet.connection
        half = connection.halves[1 - packet.direction]  # the receiver's
        if packet.counted:
            if packet.recoverable:
                if half.recoverable_received - half.last_acked >= 32:
                    self._session_ack(connection, 1 - packet.direction)
                half.recoverable_received += 1
                half.bits |= 1 << half.recoverable_received - half.last_acked - 1
            half.received += 1
            half.unacked += 1
            half.receipts.append(packet)
        if packet.header is not None:
            self._process_header(packet, half)
        if packet.kind == "message" and packet.line is not None:
            self._process_message(packet, packet.line)
        elif packet.kind == "order" and packet.line is not None:
            self._process_order_ack(packet, packet.line)
        elif packet.kind == "final" and packet.line is not None:
            line = packet.line
            line.table = [entry for entry in line.table if entry.message_id != packet.message_id]
            self._roll(line)

    def _process_header(self, packet: Packet, half: Half) -> None:
        assert packet.header is not None
        ack = packet.header[0]
        if ack > half.sent:
            return  # planted
        half.peer_acked = max(half.peer_acked, ack)
        end = packet.connection.opener ^ (1 - packet.direction)
        acked = {id(sent) for sent in half.log[:ack]}
        self.unsettled[end] = [item for item in self.unsettled[end] if id(item[0]) not in acked]

    def _process_message(self, packet: Packet, line: Line) -> None:
        line.order_ack_due = True
        sequence, number = line.incoming
        same = packet.sequence == sequence and packet.number > number and (packet.previous <= number or line.lenient)
        newer = packet.sequence[::-1] > sequence[::-1] and packet.previous == 0
        if not same and not newer:
            return
        if self.rejects and self.rng.random() < 0.1:
            if self.advances_on_reject:
                line.incoming = (packet.sequence, packet.number)
            self._acknowledge(
                line, NACK_Q_EXCEED_QUOTA, packet.sequence, packet.number, packet.previous, packet.message_id
            )
            return
        line.incoming = (packet.sequence, packet.number)
        line.received.append((packet.sequence, packet.number, packet.previous, packet.message_id))

    def _process_order_ack(self, packet: Packet, line: Line) -> None:
        if packet.sequence != line.sequence or packet.number >= line.next_number:
            return  # stale (B-230), or planted
        stay = []
        for entry in line.table:
            if entry.number and entry.sequence == packet.sequence and entry.number <= packet.number:
                line.acknowledged.append((entry, packet))
            else:
                stay.append(entry)
        line.table = stay
        self._roll(line)

    def _roll(self, line: Line) -> None:
        """B-096."""
        if self.rolls and not line.stubborn and line.next_number > 1 and not any(entry.number for entry in line.table):
            line.sequence, line.next_number = line.source.sequence(), 1

    # -- acknowledgements and receptions

    def _session_ack_if_due(self, connection: Connection) -> None:
        for direction in (0, 1):
            half = connection.halves[direction]
            if half.unacked >= max(1, self.window // 2) or (half.unacked and self.rng.random() < 0.15):
                self._session_ack(connection, direction)

    def _order_ack(self, line: Line) -> None:
        sequence, number = line.incoming
        if number:
            line.order_ack_due = self._acknowledge(line, ORDER_ACK, sequence, number, number - 1, 0) is None

    def _take(self, line: Line) -> None:
        """An application receives a message."""
        sequence, number, previous, message_id = line.received[0]
        message_class = ACK_RECEIVE if self.rng.random() < 0.9 else NACK_Q_PURGED
        packet = self._acknowledge(line, message_class, sequence, number, previous, message_id)
        if packet is not None:
            del line.received[0]
            if message_class == ACK_RECEIVE:
                line.finals.append((sequence, number, previous, message_id))

    def settle(self) -> None:
        """Everything under way arrives."""
        for _ in range(6):
            for connection in list(self.current.values()):
                for direction in (0, 1):
                    if connection.open:
                        self._pass(connection, direction, len(connection.halves[direction].before))
                        self._receive(connection, direction, len(connection.halves[direction].behind))
                        self._session_ack_if_due(connection)
