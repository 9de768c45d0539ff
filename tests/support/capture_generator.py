"""Captures of MSMQ traffic with known faults, written byte by byte from the protocol's layouts.

Independent of the engine and of the C core on purpose: readers of captures are tested with bytes that they had no hand
in. Two forms:

`generate(seed, folder)` simulates a few queue managers in detail: sessions, streams, acknowledgements, breaks and
resends, as one observation point between the hosts sees them. Some senders are behind a router: an address and a port
say nothing of who has them. Then the capture itself suffers (lost, doubled and cut frames, a late start, rotated
files). Violations of the protocol can be planted; what they are and what shows them is in the result.

`write_fleet(paths, packets, streams, seed)` writes millions of packets with numpy.
"""

import ipaddress
import itertools
import random
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from ordack.capture import columnar

from tests.support import capture_generator

IntArray = NDArray[np.int64]

KINDS = (
    "renumbered",
    "ack_beyond_receipt",
    "id_went_back",
    "skipped",
    "count_mismatch",
    "resent_after_ack",
    "delivered_twice",
)
# What else a reader may rightly say of a stream with this violation.
CONSEQUENCES = {
    "id_went_back": {"resent_after_ack"},
    "renumbered": {"resent_after_ack"},
    "ack_beyond_receipt": {"resent_after_ack", "skipped", "delivered_twice"},
    "skipped": {"ack_beyond_receipt"},
    "delivered_twice": {"resent_after_ack"},
}
OLDER = "older connection"  # variant of id_went_back: a SessionHeader shows it, which has to be counted
# Shown by the packets alone, whatever else the capture misses. The others need counts or earlier packets.
STANDING_ALONE = {"renumbered", "id_went_back", "delivered_twice"}

# ---- the bytes: wire.md 2 to 6 -------------------------------------------------------------------

NEVER = 0xFFFFFFFF
NULL = bytes(16)
IN, SH = 0x0008, 0x0010  # BaseHeader.Flags
DM, JN, JP, TH, MP = 0x20, 0x100, 0x200, 0x100000, 0x200000  # UserHeader.Flags
FA = 0x2  # TransactionHeader.Flags
ORDER_ACK, ACK_RECEIVE, NACK_Q_EXCEED_QUOTA, NACK_Q_PURGED = 0x00FF, 0x4000, 0x8003, 0xC001
ORDER_LABEL = "QM Ordering Ack"
ORDER_QUEUE_ID = 4


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _text(text: str) -> bytes:
    return (text + "\0").encode("utf-16-le")


def base_header(size: int, flags: int, ttrq: int = NEVER) -> bytes:
    """wire.md 2.1."""
    return struct.pack("<BBHIII", 0x10, 0x5A, flags, 0x524F494C, size, ttrq)


def direct_name(text: str) -> bytes:
    """wire.md 1.5: Count in bytes with the NUL."""
    raw = _text(text)
    return _padded(struct.pack("<H", len(raw)) + raw)


def establish_connection(client: bytes, server: bytes, stamp: int, refused: bool = False) -> bytes:
    """wire.md 5.2."""
    flags = 2 | (0x10 if refused else 0)
    body = struct.pack("<HH16s16sIHH", 0, flags, client, server, stamp, 0x0310, 0) + b"\x5a" * 512
    return base_header(16 + len(body), IN | 3) + body


def connection_parameters(window: int) -> bytes:
    """wire.md 5.3."""
    return base_header(32, IN | 3) + struct.pack("<HHIIHH", 0, 3, 1496, 120000, 0, window)


def session_header(ack: int, base: int, bits: int, sent: int, recoverable: int, window: int) -> bytes:
    """wire.md 2.9."""
    return struct.pack(
        "<HHIHHHH", ack & 0xFFFF, base & 0xFFFF, bits, sent & 0xFFFF, recoverable & 0xFFFF, window, 0xCDCD
    )


def session_ack(header: bytes) -> bytes:
    """wire.md 5.4: PacketSize counts the SessionHeader here."""
    return base_header(36, IN | SH | 3) + struct.pack("<HH", 0, 1) + header


def user_message(
    source: bytes,
    address: bytes,
    message_id: int,
    selector: int,
    name: bytes,
    *,
    flags: int = 0,
    transaction: bytes = b"",
    label: str = "",
    body: bytes = b"",
    body_type: int = 0,
    message_class: int = 0,
    sent_time: int = 0,
    header: bytes = b"",
    priority: int = 0,
) -> bytes:
    """wire.md 3. header: a SessionHeader, which PacketSize does not count."""
    text = _text(label) if label else b""
    user = struct.pack(
        "<16s16sIIII",
        source,
        address,
        NEVER,
        sent_time,
        message_id,
        flags | MP | selector << 10 | (TH if transaction else 0),
    )
    properties = struct.pack(
        "<BBH20sIIIIIIII",
        0,
        len(text) // 2,
        message_class,
        bytes(20),
        body_type,
        0,
        len(body),
        len(body),
        0,
        0x8004,
        0x6801,
        0,
    )
    rest = user + name + transaction + _padded(properties + text + body)
    return base_header(16 + len(rest), priority | (SH if header else 0)) + rest + header


def acknowledgement(
    source: bytes, address: bytes, selector: int, name: bytes, message_id: int, message_class: int, body: bytes
) -> bytes:
    """OrderAck or FinalAck, wire.md 6; body: 36 bytes."""
    flags = 0 if message_class == ORDER_ACK else DM
    return user_message(
        source,
        address,
        message_id,
        selector,
        name,
        flags=flags,
        label=ORDER_LABEL,
        body=body,
        message_class=message_class,
    )


def ping(cookie: int, guid: bytes) -> bytes:
    """wire.md 7."""
    return struct.pack("<HHI16s", 0x7D00, 0x5548, cookie, guid)


# ---- what the simulation keeps -------------------------------------------------------------------


@dataclass(eq=False)
class Packet:
    """A packet on one direction of a connection, and what the sender meant by it."""

    data: bytes
    kind: str
    connection: "Connection"
    direction: int
    line: "Line | None" = None  # the messages that it belongs to, or acknowledges
    sequence: tuple[int, int] = (0, 0)
    number: int = 0
    previous: int = 0
    message_id: int = 0  # of the message; in a FinalAck of the one it settles
    own_id: int = 0
    message_class: int = 0
    sent_time: int = 0
    journaled: bool = False  # JN or JP
    recoverable: bool = False
    counted: bool = True  # UserMessage-shaped
    header: tuple[int, int, int] | None = None  # AckSequenceNumber, base, bits
    start: int = -1  # place in the direction's bytes, once it has passed the observer
    visible: bool = False  # every byte of it is in the capture
    frames: list["Frame"] = field(default_factory=list)


@dataclass(eq=False)
class Frame:
    """A TCP segment as the observer saw it."""

    time: int  # ns
    connection: "Connection"
    direction: int
    sequence: int  # place in the direction's bytes; -1 for SYN
    payload: bytes
    flags: int
    ack: int  # bytes of the other direction
    noise: bytes = b""  # an IP packet that is none of ours
    file: int = -1  # index in Capture.paths
    number: int = 0  # in the file, from 1
    kept: int = -1  # bytes of payload in the file; -1: not there at all


@dataclass(eq=False)
class Manager:
    """A queue manager."""

    guid: bytes
    address: bytes
    next_id: int
    stamp: int
    ordinal: int = 0

    def message_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def sequence(self) -> tuple[int, int]:
        self.ordinal += 1
        return self.ordinal, self.stamp

    @property
    def text(self) -> str:
        return str(ipaddress.ip_address(self.address))


@dataclass(eq=False)
class Entry:
    """A message in the sender's table."""

    message_id: int
    body: bytes
    flags: int
    transaction_flags: int
    sent_time: int  # s since 1970: when the application handed it over
    number: int = 0
    sequence: tuple[int, int] = (0, 0)
    previous: int = -1  # of the first transmission
    in_flight: bool = False


@dataclass(eq=False)
class Line:
    """All messages from one queue manager to one queue: a stream at a time."""

    sender: int  # 0 or 1: which end of the pair
    source: Manager
    target: Manager
    selector: int
    name: bytes
    queue: str
    sequence: tuple[int, int]
    connection: "Connection | None" = None
    next_number: int = 1
    table: list[Entry] = field(default_factory=list)
    acknowledged: list[tuple[Entry, Packet]] = field(default_factory=list)  # with the OrderAck that did it
    highest_sent: dict[tuple[int, int], int] = field(default_factory=dict)
    incoming: tuple[tuple[int, int], int] = ((0, 0), 0)
    order_ack_due: bool = False
    received: list[tuple[tuple[int, int], int, int, int]] = field(
        default_factory=list
    )  # sequence, number, previous, id
    finals: list[tuple[tuple[int, int], int, int, int]] = field(default_factory=list)  # positive ones sent
    planted: "Planted | None" = None
    stubborn: bool = False  # never bridges a gap
    lenient: bool = False  # the receiver accepts past holes
    hops: int = 0  # 1: source is a queue manager behind the connection's end, which forwards for it (B-012)


@dataclass(eq=False)
class Half:
    """One end of a connection: what it has sent and received on it (behaviour.md 2.2)."""

    sent: int = 0
    recoverable_sent: int = 0
    received: int = 0
    recoverable_received: int = 0
    last_acked: int = 0
    bits: int = 0
    unacked: int = 0
    peer_acked: int = 0
    log: list[Packet] = field(default_factory=list)  # counted packets that it sent
    everything: list[Packet] = field(default_factory=list)  # those, and its SessionAcks
    receipts: list[Packet] = field(default_factory=list)  # counted packets that it received
    before: list[Packet] = field(default_factory=list)  # sent, not yet past the observer
    behind: list[Packet] = field(default_factory=list)  # past the observer, not yet received
    passed: int = 0  # bytes past the observer
    received_bytes: int = 0
    acked_bytes: int = 0  # of the other side's bytes, as last acknowledged


@dataclass(eq=False)
class Connection:
    """A TCP connection with a session; direction 0 is from the one that opened it."""

    number: int
    ends: tuple[Manager, Manager]
    ports: tuple[int, int]
    initial: tuple[int, int]
    opener: int  # which end of the pair: 0 or 1
    begin: int  # when it was opened
    purpose: int = 0  # 0: what the opener's lines are on; 1: for acknowledgements only
    halves: tuple[Half, Half] = field(default_factory=lambda: (Half(), Half()))
    options: bytes = b""
    open: bool = True
    outer: bytes = b""  # the address that the opener's frames have, if it is not its own

    @property
    def addresses(self) -> tuple[bytes, bytes]:
        return self.outer or self.ends[0].address, self.ends[1].address

    @property
    def hosts(self) -> frozenset[bytes]:
        return frozenset(self.addresses)


@dataclass(eq=False)
class Planted:
    """A violation, and what shows it.

    evidence: groups of packets; the violation shows if one of each group is visible. line: None if the violation is the
    connection's.
    """

    kind: str
    variant: str
    pair: int
    line: Line | None
    connection: Connection
    number: int
    evidence: list[list[Packet]]
    shown: bool = False  # all of its evidence is in the capture
    certain: bool = False  # no hole excuses an `unknown`
    frames: set[tuple[int, int]] = field(default_factory=set)  # of the evidence: (index of path, number)


@dataclass
class Capture:
    """What was made. clouded: pairs of hosts of which something is missing. begins: where what a reader sees of a
    connection's direction begins. unclear: directions of which it cannot tell that they are another connection's."""

    seed: int
    paths: list[Path]
    planted: list[Planted]
    packets: list[Packet]
    frames: list[Frame]
    faults: list[str]
    clouded: set[int]
    pairs: dict[int, list[Line]]
    connections: list[Connection]
    cuts: list[int]  # when files end early, or are missing
    begins: dict[tuple[int, int], int] = field(default_factory=dict)
    unclear: set[tuple[int, int]] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        """Is everything in the capture that was on the wire?"""
        return all(packet.visible for packet in self.packets) and not self.clouded

    def line_frames(self, line: Line) -> set[tuple[int, int]]:
        """The frames that carry messages or acknowledgements of a line."""
        return {
            (frame.file, frame.number)
            for packet in self.packets
            if packet.line is line
            for frame in packet.frames
            if frame.kept >= 0
        }

    def connection_frames(self, connection: Connection) -> set[tuple[int, int]]:
        """All frames of a connection."""
        return {
            (frame.file, frame.number) for frame in self.frames if frame.connection is connection and frame.kept >= 0
        }

    def expected(self) -> dict[str, int]:
        """Counts of a whole capture without violations. Settled: by a FinalAck, or by an OrderAck if not journaled."""
        messages = [packet for packet in self.packets if packet.kind == "message" and packet.line is not None]
        distinct = {(id(packet.line), packet.sequence, packet.number): packet for packet in messages}
        final = {(id(packet.line), packet.message_id) for packet in self.packets if packet.kind == "final"}
        ordered: dict[tuple[int, tuple[int, int]], int] = defaultdict(int)
        for packet in self.packets:
            if packet.kind == "order":
                key = id(packet.line), packet.sequence
                ordered[key] = max(ordered[key], packet.number)
        settled = sum(
            (id(packet.line), packet.message_id) in final
            or (not packet.journaled and packet.number <= ordered[id(packet.line), packet.sequence])
            for packet in distinct.values()
        )
        return {
            "packets": len(self.packets),
            "connections": len(self.connections),
            "streams": len({id(packet.line) for packet in messages}),
            "sequences": len({(id(packet.line), packet.sequence) for packet in messages}),
            "messages": len(distinct),
            "resends": len(messages) - len(distinct),
            "settled": settled,
            "unsettled": len(distinct) - settled,
            "holes": 0,
            "malformed": 0,
        }


# ---- the simulation ------------------------------------------------------------------------------

_SYN, _ACK, _PSH, _FIN, _RST = 0x02, 0x10, 0x08, 0x01, 0x04


class _Pair:
    """Two hosts, what they send each other, and what an observer between them sees."""

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
            self._emit(connection, direction, begin + first, data[first:last], _ACK | _PSH)

    def _receive(self, connection: Connection, direction: int, count: int) -> None:
        half = connection.halves[direction]
        moved, half.behind = half.behind[:count], half.behind[count:]
        for packet in moved:
            half.received_bytes += len(packet.data)
            self._process(packet)
            if not connection.open:
                return
        if moved and self.rng.random() < 0.4:
            self._emit(connection, 1 - direction, connection.halves[1 - direction].passed, b"", _ACK)

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
        self._emit(connection, 0, -1, b"", _SYN)
        self._emit(connection, 1, -1, b"", _SYN | _ACK)
        self._emit(connection, 0, 0, b"", _ACK)
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
                self._emit(connection, direction, connection.halves[direction].passed, b"", _FIN | _ACK)
        elif how < 0.7:
            direction = self.rng.randrange(2)
            self._emit(connection, direction, connection.halves[direction].passed, b"", _RST | _ACK)
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

    # -- steps

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

    def step(self) -> None:
        """One thing happens."""
        rng = self.rng
        line = rng.choice(self.lines)
        if rng.random() < 0.005:
            self._older_connection(line, False)
        connection = line.connection
        if connection is None or not connection.open:
            if rng.random() < 0.5:
                self._open(line.sender, 0)
                if self.quiet_start:
                    self.quiet_start = False
                    self.clock += rng.randrange(1_100_000_000, 3_000_000_000)
            return
        what = rng.random()
        if what < 0.25:
            self._send_messages(line, rng.randint(1, 6))
        elif what < 0.30 and line.order_ack_due:
            self._order_ack(line)
        elif what < 0.36 and line.received:
            self._take(line)
        elif what < 0.37 and line.hops and line.acknowledged and self._room(connection, 0):
            # The one that forwards has the OrderAck, the source may not have it yet. And it keeps what it has no
            # session acknowledgement for, also if the source has gone on to the next sequence.
            entry, _ = rng.choice(line.acknowledged[-5:])
            self._transmit_as(line, connection, entry, entry.number - 1)
        elif what < 0.38:
            self._plain_message(connection, rng.randrange(2))
        elif what < 0.385:  # the resend timer, 30 s (B-151)
            self.clock += 30_000_000_000
            for entry in line.table:
                entry.in_flight = False
        elif what < 0.40 and line.table and not line.stubborn:  # expired (B-311)
            line.table.pop(rng.randrange(len(line.table)))
            self._roll(line)
        elif what < 0.40 + self.breaks:
            self._break(rng.choice([one for one in self.current.values() if one.open]))
        else:
            moving = rng.choice([one for one in self.current.values() if one.open])
            direction = rng.randrange(2)
            # Near the sender of this direction packets pass at once, near the receiver they are received at once.
            end = moving.opener ^ direction
            near = 1 - self.observer if end == 0 else self.observer
            half = moving.halves[direction]
            if half.before and rng.random() < near:
                self._pass(moving, direction, rng.randint(1, len(half.before)))
                if half.behind and rng.random() > near:
                    self._receive(moving, direction, len(half.behind))
            elif half.behind:
                self._receive(moving, direction, rng.randint(1, len(half.behind)))
            elif half.before:
                self._pass(moving, direction, rng.randint(1, len(half.before)))
            if moving.open:
                self._session_ack_if_due(moving)

    def settle(self) -> None:
        """Everything under way arrives."""
        for _ in range(6):
            for connection in list(self.current.values()):
                for direction in (0, 1):
                    if connection.open:
                        self._pass(connection, direction, len(connection.halves[direction].before))
                        self._receive(connection, direction, len(connection.halves[direction].behind))
                        self._session_ack_if_due(connection)

    # -- violations

    def plant(self, kind: str, line: Line) -> bool:
        """Commits a violation now, if that is possible now."""
        if line.planted is not None or line.connection is None or not line.connection.open:
            return False
        violation = getattr(self, f"_plant_{kind}")(line)
        if violation is None:
            return False
        line.planted = violation
        self.planted.append(violation)
        return True

    def _violation(
        self, kind: str, variant: str, line: Line, number: int, *evidence: list[Packet], own: bool = True
    ) -> Planted:
        connection = evidence[-1][-1].connection
        return Planted(kind, variant, self.number, line if own else None, connection, number, list(evidence))

    def _transmissions(self, line: Line, message_id: int, number: int = 0) -> list[Packet]:
        return [
            packet
            for packet in self.packets
            if packet.line is line
            and packet.kind == "message"
            and packet.message_id == message_id
            and number in (0, packet.number)
        ]

    def _numbered(self, line: Line) -> list[Entry]:
        """Messages of the current sequence that the observer has seen."""
        return [entry for entry in line.table if entry.number and self._transmissions(line, entry.message_id)]

    def _plant_renumbered(self, line: Line) -> Planted | None:
        entries = self._numbered(line)
        connection = line.connection
        if not entries or connection is None or not self._room(connection, 0):
            return None
        variant = self.rng.choice(["new number", "new message id", "new sequence"])
        entry = self.rng.choice(entries)
        seen = self._transmissions(line, entry.message_id)
        if variant == "new number":
            line.table.remove(entry)
            line.table.append(entry)
            entry.number = 0
            for other in line.table[:-1]:  # numbers stay in table order
                if not other.number:
                    other.number, other.sequence, other.previous = line.next_number, line.sequence, line.next_number - 1
                    line.next_number += 1
            again = self._transmit(line, connection, len(line.table) - 1)
        elif variant == "new message id":
            entry.message_id = line.source.message_id()
            again = self._transmit(line, connection, line.table.index(entry))
        else:
            line.sequence, line.next_number = line.source.sequence(), 1
            for other in line.table:
                other.number, other.in_flight = 0, False
            for index, other in enumerate(line.table):
                again = self._transmit(line, connection, index)
                if other is entry:
                    break
        return self._violation("renumbered", variant, line, entry.number, seen, [again])

    def _plant_ack_beyond_receipt(self, line: Line) -> Planted | None:
        sequence, number = line.incoming
        path = self._ack_path(line)
        if not number or path is None or not self._room(*path):
            return None
        variant = self.rng.choice(["order", "final", "session", "bits", "sequence order", "sequence final"])
        if variant.startswith("sequence"):
            return self._plant_stray(line, variant)
        if variant in ("order", "final"):
            beyond = line.highest_sent[sequence] + self.rng.randint(1000, 2000)
            message_class = ORDER_ACK if variant == "order" else ACK_RECEIVE
            packet = self._acknowledge(line, message_class, sequence, beyond, beyond - 1, line.source.next_id + 100_000)
            return None if packet is None else self._violation("ack_beyond_receipt", variant, line, beyond, [packet])
        connection, direction = path
        far = self.rng.randint(300, 1000)
        packet = self._session_ack(connection, direction, **({"ack": far} if variant == "session" else {"base": far}))
        return self._violation("ack_beyond_receipt", variant, line, 0, [packet], own=False)

    def _plant_stray(self, line: Line, variant: str) -> Planted | None:
        """An acknowledgement of a sequence that the sender has not begun."""
        if line.hops:
            return None
        sequence = (line.source.ordinal + self.rng.randint(1000, 2000), line.source.stamp)
        message_class = ORDER_ACK if variant == "sequence order" else ACK_RECEIVE
        packet = self._acknowledge(line, message_class, sequence, 1, 0, line.source.next_id + 100_000)
        return None if packet is None else self._violation("ack_beyond_receipt", variant, line, 1, [packet])

    def _older_connection(self, line: Line, violation: bool) -> Planted | None:
        """A message of a lower sequence on a connection that is older than the higher one's, behind the higher one.

        violation: sent when the sender had an OrderAck for the higher one, and had shown it; else it was under way.
        """
        old = line.connection
        if old is None or not old.open or line.hops or line.stubborn or line.planted or self.own_ack_connection:
            return None
        self.settle()
        numbered = [entry for entry in line.table if entry.number]
        if not old.open or not numbered or line.incoming != (line.sequence, numbered[-1].number):
            return None
        if not self._room(old, 0) or not self._room(old, 1) or any(not entry.in_flight for entry in numbered):
            return None
        entry, lower = numbered[0], line.sequence
        if not violation:
            self._transmit_as(line, old, entry, 0)
        self._order_ack(line)
        self._arrive(old, 1)
        if line.sequence == lower:
            if any(other.number for other in line.table):
                return None
            line.sequence, line.next_number = line.source.sequence(), 1
        line.connection = new = self._open(line.sender, 2)
        self._send_messages(line, 1)
        self._arrive(new, 0)
        planted = None
        line.connection = old
        if violation and line.incoming == (line.sequence, 1) and self._room(old, 0) and self._room(old, 1):
            self._order_ack(line)
            order_ack = old.halves[1].log[-1]
            self._arrive(old, 1)
            shown = self._session_ack(old, 0)
            higher = [p for p in self.packets if p.line is line and p.kind == "message" and p.connection is new]
            again = self._transmit_as(line, old, entry, 0)
            planted = self._violation("id_went_back", OLDER, line, entry.number, higher, [order_ack], [shown], [again])
        self._pass(old, 0, len(old.halves[0].before))
        self._break(new)
        for other in line.table:
            other.in_flight = False
        return planted

    def _arrive(self, connection: Connection, direction: int) -> None:
        self._pass(connection, direction, len(connection.halves[direction].before))
        self._receive(connection, direction, len(connection.halves[direction].behind))

    def _plant_id_went_back(self, line: Line) -> Planted | None:
        connection = line.connection
        if line.hops:
            return None
        if self.rng.random() < 0.5:
            return self._older_connection(line, True)
        seen = [
            packet
            for packet in self.packets
            if packet.line is line and packet.sequence == line.sequence and packet.kind == "message"
        ]
        if not seen or connection is None or not self._room(connection, 0):
            return None
        line.sequence = (self.rng.randint(1, 5), line.source.stamp - self.rng.randint(1, 10**6))
        line.next_number, line.table = 1, [self._new_entry(line)]
        packet = self._transmit(line, connection, 0)
        line.stubborn = True  # never rolls
        return self._violation("id_went_back", "", line, 1, seen, [packet])

    def _plant_skipped(self, line: Line) -> Planted | None:
        """The sender leaves a number out; finish_skipped() looks for the acknowledgement past it."""
        seen = line.highest_sent.get(line.sequence)
        if not seen or seen != line.next_number - 1 or line.incoming[0] != line.sequence:
            return None
        connection = line.connection
        if connection is None or not self._room(connection, 0) or any(entry.number == 0 for entry in line.table):
            return None
        before = [
            p
            for p in self.packets
            if p.line is line and p.sequence == line.sequence and p.number == seen and p.kind == "message"
        ]
        if not before or any(not entry.in_flight for entry in line.table):
            return None
        line.stubborn = line.lenient = True
        line.next_number += 1
        line.table.append(self._new_entry(line))
        packet = self._transmit(line, connection, len(line.table) - 1)
        return self._violation("skipped", "", line, packet.number, before, [packet])

    def finish_skipped(self, violation: Planted) -> None:
        """Adds the acknowledgements past the hole to the evidence."""
        line, number = violation.line, violation.number
        assert line is not None
        sequence = violation.evidence[-1][0].sequence
        resent = [
            p
            for p in self.packets
            if p.line is line and p.kind == "message" and p.sequence == sequence and p.number == number
        ]
        violation.evidence[-1] = resent
        violation.evidence.append(
            [
                packet
                for packet in self.packets
                if packet.line is line
                and packet.sequence == sequence
                and packet.number >= number
                and (packet.kind == "order" or (packet.kind == "final" and packet.message_class == ACK_RECEIVE))
            ]
        )

    def _plant_count_mismatch(self, line: Line) -> Planted | None:
        connection = line.connection
        direction = self.rng.randrange(2)
        if connection is None or not connection.halves[direction].sent:
            return None
        variant = self.rng.choice(["sent", "recoverable"])
        packet = self._session_ack(connection, direction, **{variant: self.rng.choice([-1, 1, 2, 7])})
        violation = self._violation("count_mismatch", variant, line, 0, [packet], own=False)
        self._pass(connection, direction, len(connection.halves[direction].before))
        self._break(connection)
        return violation

    def _plant_resent_after_ack(self, line: Line) -> Planted | None:
        connection = line.connection
        if connection is None or not self._room(connection, 0) or line.hops:
            return None
        for entry, order_ack in reversed(line.acknowledged):
            if entry.sequence != max(line.highest_sent, key=lambda sequence: sequence[::-1]):
                continue
            used = order_ack.connection
            half = used.halves[1 - order_ack.direction]
            if order_ack not in half.receipts or used is not connection:
                continue
            place = half.receipts.index(order_ack) + 1
            shown = [
                packet
                for packet in self.packets
                if packet.connection is used
                and packet.direction == 1 - order_ack.direction
                and packet.header
                and packet.header[0] >= place
            ]
            known = self._known(used, entry, max((packet.header[0] for packet in shown if packet.header), default=0))
            if shown and known:
                packet = self._transmit_as(line, connection, entry, entry.number - 1)
                return self._violation(
                    "resent_after_ack", "", line, entry.number, [order_ack], [known], shown[-1:], [packet]
                )
        return None

    @staticmethod
    def _known(connection: Connection, entry: Entry, acked: int) -> Packet | None:
        """A SessionHeader that covers the message and that the sender has had: A-17 asks for it besides the OrderAck.

        acked: how many counted packets of the receiver the sender has acknowledged.
        """
        sent = connection.halves[0].log
        own = entry.message_id, entry.sequence  # others have passed messages on here, whose MessageIDs may be the same
        place = max((at for at, packet in enumerate(sent, 1) if (packet.message_id, packet.sequence) == own), default=0)
        stream = connection.halves[1].everything
        counted = 0
        for at, packet in enumerate(stream):
            counted += packet.counted
            if place and packet.header and packet.header[0] >= place:
                later = any(other.counted for other in stream[at + 1 :])
                return packet if later and counted + 1 <= acked else None
        return None

    def _plant_delivered_twice(self, line: Line) -> Planted | None:
        if not line.finals:
            return None
        sequence, number, previous, message_id = self.rng.choice(line.finals)
        first = [p for p in self.packets if p.line is line and p.kind == "final" and p.message_id == message_id]
        if not first:
            return None
        packet = self._acknowledge(line, ACK_RECEIVE, sequence, number, previous, message_id)
        return None if packet is None else self._violation("delivered_twice", "", line, number, first, [packet])


def _lines(rng: random.Random, ends: tuple[Manager, Manager], both_ways: bool) -> Iterator[Line]:
    senders = [0, 1] if both_ways else [0]
    for sender in senders:
        target = ends[1 - sender]
        for index in range(rng.choice([1, 1, 2, 3])):
            source = ends[sender]
            hops = int(rng.random() < 0.1)
            if hops:
                source = Manager(rng.randbytes(16), source.address, rng.randrange(1000), source.stamp)
            selector = rng.choice([3, 5] if hops else [3, 5, 7, 7])
            if selector == 3:
                queue, name = f"private {index + 7}", struct.pack("<I", index + 7)
            elif selector == 5:
                name = rng.randbytes(16)
                queue = f"public {name.hex()}"
            else:
                host = f"[{target.text}]" if ":" in target.text else target.text
                queue = f"TCP:{host}\\PRIVATE$\\line{index}"
                name = direct_name(queue)
            yield Line(sender, source, target, selector, name, queue, source.sequence(), hops=hops)


def _simulate(rng: random.Random, violations: bool, length: int, power_cuts: bool) -> list[_Pair]:
    start = rng.randrange(1_600_000_000, 1_900_000_000) * 1_000_000_000 + rng.randrange(10**9)
    six = rng.random() < 0.15

    def manager(index: int, receiver: bool) -> Manager:
        place = bytes([10, 0, int(receiver), index + 1])
        stamp = start // 1_000_000_000 if rng.random() < 0.5 else start // 1_000_000_000 - rng.randrange(10**7)
        return Manager(rng.randbytes(16), bytes(12) + place if six else place, rng.randrange(1000), stamp)

    receivers = [manager(index, True) for index in range(rng.choice([1, 1, 2]))]
    senders = [manager(index, False) for index in range(rng.choice([1, 2, 3]))]
    pairs: list[_Pair] = []
    connections = 0
    for sender in senders:
        for receiver in receivers:
            pair = _Pair(rng, len(pairs), (sender, receiver), start + rng.randrange(10**10), connections)
            pair.power_cuts = power_cuts
            pair.lines = list(_lines(rng, pair.ends, rng.random() < 0.3))
            plan = {id(line): rng.choice(KINDS) for line in pair.lines if violations and rng.random() < 0.5}
            due = {id(line): rng.randrange(length // 4, length) for line in pair.lines}
            for moment in range(length):
                pair.step()
                for line in pair.lines:
                    if id(line) in plan and moment >= due[id(line)] and pair.plant(plan[id(line)], line):
                        del plan[id(line)]
            pair.settle()
            for violation in pair.planted:
                skipping = violation.line
                if violation.kind == "skipped" and skipping is not None:
                    if skipping.connection is not None and skipping.connection.open:
                        pair._order_ack(skipping)
                        pair.settle()
                    pair.finish_skipped(violation)
            connections += len(pair.connections)
            pairs.append(pair)
    return pairs


def _translate(rng: random.Random, pairs: list[_Pair]) -> None:
    """Some senders are behind a router (NAT): each connection that they open comes from one of its few addresses and
    from a port that no open one has, maybe one that another sender's had."""
    own = pairs[0].ends[0].address
    outer = [own[:-4] + bytes([100, 64, 0, index]) for index in range(rng.choice([1, 1, 2, 4]))]
    share = rng.choice([0, 0, 0.5, 1])
    behind = {id(sender) for sender in dict.fromkeys(pair.ends[0] for pair in pairs) if rng.random() < share}
    ends = {frame.connection.number: frame.time for pair in pairs for frame in pair.frames}
    opened = (one for pair in pairs for one in pair.connections if id(one.ends[0]) in behind)
    until: dict[tuple[bytes, int], int] = {}  # when an address and port were last used
    for connection in sorted(opened, key=lambda one: one.begin):
        connection.outer = rng.choice(outer)
        mine = {port: end for (address, port), end in until.items() if address == connection.outer}
        free = [port for port, end in mine.items() if end + 10**6 < connection.begin]
        fresh = next(port for port in iter(lambda: rng.randrange(2000, 65000), 0) if port not in mine)
        port = rng.choice(free) if free and rng.random() < 0.3 else fresh
        connection.ports = port, 1801
        until[connection.outer, port] = ends[connection.number]


# ---- the files -----------------------------------------------------------------------------------


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def _ip(source: bytes, target: bytes, protocol: int, payload: bytes, number: int) -> bytes:
    if len(source) == 16:
        return struct.pack(">IHBB", 0x60000000, len(payload), protocol, 64) + source + target + payload
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), number & 0xFFFF, 0x4000, 64, protocol, 0, source, target
    )
    return head[:10] + struct.pack(">H", _checksum(head)) + head[12:] + payload


def _segment(frame: Frame, number: int) -> bytes:
    """The IP packet of a frame; its TCP checksum is 0, as where the network card fills it in."""
    if frame.noise:
        return frame.noise
    connection, direction = frame.connection, frame.direction
    initial = connection.initial[direction]
    sequence = initial if frame.sequence < 0 else initial + 1 + frame.sequence & 0xFFFFFFFF
    ack = connection.initial[1 - direction] + 1 + frame.ack & 0xFFFFFFFF if frame.flags & _ACK else 0
    options = connection.options
    source, target = connection.ports if direction == 0 else connection.ports[::-1]
    head = struct.pack(
        ">HHIIBBHHH", source, target, sequence, ack, 5 + len(options) // 4 << 4, frame.flags, 64000, 0, 0
    )
    addresses = connection.addresses if direction == 0 else connection.addresses[::-1]
    return _ip(*addresses, 6, head + options + frame.payload, number)


def _link(kind: int, packet: bytes, vlan: int) -> bytes:
    six = packet[0] >> 4 == 6
    ethertype = 0x86DD if six else 0x0800
    if kind == 1:
        tag = struct.pack(">HH", 0x8100, vlan) if vlan else b""
        return (b"\x02\0\0\0\0\1\x02\0\0\0\0\2" + tag + struct.pack(">H", ethertype) + packet).ljust(60, b"\0")
    if kind == 113:
        return struct.pack(">HHH8sH", 0, 1, 6, b"\x02\0\0\0\0\1\0\0", ethertype) + packet
    if kind == 276:
        return struct.pack(">HHIHBB8s", ethertype, 0, 2, 1, 0, 6, b"\x02\0\0\0\0\1\0\0") + packet
    if kind == 0:
        return struct.pack("<I", 10 if six else 2) + packet
    return packet


LINKS = (1, 1, 1, 101, 113, 276, 0)


class _Writer:
    """One capture file of a random format."""

    def __init__(self, rng: random.Random, path: Path) -> None:
        self.path = path
        self.order = rng.choice("<<>")
        self.nano = rng.random() < 0.4
        self.ng = rng.random() < 0.4
        self.links = [rng.choice(LINKS) for _ in range(rng.choice([1, 2]) if self.ng else 1)]
        self.count = 0
        if self.ng:
            self.parts = [self._block(0x0A0D0D0A, struct.pack(self.order + "IHHq", 0x1A2B3C4D, 1, 0, -1))]
            option = struct.pack(self.order + "HHB3xHH", 9, 1, 9, 0, 0) if self.nano else b""
            self.parts += [self._block(1, struct.pack(self.order + "HHI", link, 0, 0) + option) for link in self.links]
        else:
            magic = 0xA1B23C4D if self.nano else 0xA1B2C3D4
            self.parts = [struct.pack(self.order + "IHHiIII", magic, 2, 4, 0, 0, 262144, self.links[0])]

    def _block(self, kind: int, body: bytes) -> bytes:
        body = _padded(body)
        size = struct.pack(self.order + "I", 12 + len(body))
        return struct.pack(self.order + "I", kind) + size + body + size

    def add(self, rng: random.Random, time: int, packet: bytes, vlan: int, snap: int) -> tuple[int, int]:
        """Writes one frame; returns its number and how many bytes of the IP packet are kept."""
        interface = rng.randrange(len(self.links))
        data = _link(self.links[interface], packet, vlan)
        kept = data[:snap] if snap else data
        units = time if self.nano else time // 1000
        if self.ng:
            head = struct.pack(self.order + "IIIII", interface, units >> 32, units & 0xFFFFFFFF, len(kept), len(data))
            self.parts.append(self._block(6, head + kept))
        else:
            per_second = 10**9 if self.nano else 10**6
            head = struct.pack(self.order + "IIII", units // per_second, units % per_second, len(kept), len(data))
            self.parts.append(head + kept)
        self.count += 1
        header = len(data) if len(data) == len(packet) else data.index(packet[:12])
        header = 0 if len(data) == len(packet) else header
        return self.count, max(0, min(len(packet), len(kept) - header))

    def close(self, cut: int = 0) -> None:
        """Writes the file without its last cut bytes."""
        data = b"".join(self.parts)
        self.path.write_bytes(data[: len(data) - cut])


def _noise(rng: random.Random, pair: _Pair) -> bytes:
    a, b = pair.ends
    what = rng.randrange(3)
    if what == 0:  # a ping
        data = ping(rng.getrandbits(16), a.guid)
        return _ip(
            a.address, b.address, 17, struct.pack(">HHHH", 4057, 3527, 8 + len(data), 0) + data, rng.getrandbits(16)
        )
    if what == 1:  # another port
        return _ip(
            a.address, b.address, 6, struct.pack(">HHIIBBHHH", 40000, 80, 1, 1, 0x50, 0x18, 100, 0, 0) + b"LIOR" * 9, 1
        )
    return _ip(a.address, b.address, 1, bytes(8), 2)


def _faults(rng: random.Random, frames: list[Frame], faults: list[str]) -> tuple[list[Frame], int]:
    """What the capture suffers: the frames that are left, and the snap length."""
    snap = 0
    if "duplicates" in faults:
        doubled = []
        for frame in frames:
            doubled.append(frame)
            if rng.random() < 0.1:
                copy = Frame(
                    frame.time + 500,
                    frame.connection,
                    frame.direction,
                    frame.sequence,
                    frame.payload,
                    frame.flags,
                    frame.ack,
                )
                copy.noise = frame.noise
                doubled.append(copy)
        frames = doubled
    if "loss" in faults:
        rate = rng.choice([0.003, 0.01, 0.05])
        lost = [frame for frame in frames if rng.random() < rate]
        # A copy of the same bytes is lost too: once the peer has acknowledged them, a late copy helps no reader.
        gone = {
            (id(f.connection), f.direction, at) for f in lost for at in range(f.sequence, f.sequence + len(f.payload))
        }
        dropped = {id(frame) for frame in lost}
        frames = [
            f
            for f in frames
            if id(f) not in dropped
            and not any(
                (id(f.connection), f.direction, at) in gone for at in range(f.sequence, f.sequence + len(f.payload))
            )
        ]
    if "late start" in faults:
        frames = frames[rng.randrange(1, max(2, len(frames) // 2)) :]
    if "snap length" in faults:
        snap = rng.choice([68, 96, 150, 250, 400, 1000])
    return frames, snap


def _queued(rng: random.Random, frames: list[Frame]) -> list[Frame]:
    """As several queues of a network card write them: each in pieces, all that came since the one before."""
    count, by_flow = rng.randint(2, 4), rng.random() < 0.7
    period = rng.choice([1, 10, 100, 400]) * 10**6
    phases = [rng.randrange(period) for _ in range(count)]

    def written(frame: Frame) -> int:
        flow = 2 * frame.connection.number + frame.direction
        phase = phases[flow * 7919 % count if by_flow else rng.randrange(count)]
        return phase - (phase - frame.time) // period * period

    return sorted(frames, key=written)


def _tapped(frames: list[Frame]) -> list[list[Frame]]:
    """As a tap writes them: a file for each direction of the wire."""
    sides: tuple[list[Frame], list[Frame]] = [], []
    for frame in frames:
        addresses = frame.connection.addresses
        sides[addresses[frame.direction] > addresses[1 - frame.direction]].append(frame)
    return [side for side in sides if side]


def generate(
    seed: int,
    folder: Path,
    *,
    violations: bool | None = None,
    faults: Iterable[str] | None = None,
    length: int = 0,
    form: str = "",
    power_cuts: bool = False,
) -> Capture:
    """A capture, its seed deciding everything that is not given.

    violations: whether some are planted. faults: of the capture, out of FAULTS; with a form, those of FORMED. length:
    steps for each pair of hosts. form: out of FORMS, of which the first is in one file and in order. power_cuts:
    senders may forget acknowledgements.
    """
    rng = random.Random(seed)
    if violations is None:
        violations = rng.random() < 0.7
    if faults is None:
        faults = [] if rng.random() < 0.35 else [fault for fault in FAULTS if rng.random() < 0.25]
    faults = [fault for fault in faults if not form or fault in FORMED]
    pairs = _simulate(rng, violations, length or rng.choice([60, 150, 400]), power_cuts)
    _translate(random.Random(f"router {seed}"), pairs)
    everything = [frame for pair in pairs for frame in pair.frames]
    vlans = {connection.number: pair.vlan for pair in pairs for connection in pair.connections}
    for pair in pairs:
        for _ in range(rng.randrange(4)):
            moment = rng.choice(pair.frames)
            everything.append(Frame(moment.time + 1, moment.connection, 0, 0, b"", 0, 0, _noise(rng, pair)))
    everything.sort(key=lambda frame: frame.time)
    frames, snap = _faults(rng, everything, faults)
    folder.mkdir(parents=True, exist_ok=True)
    parts = rng.randint(2, 4) if "rotation" in faults or "lost file" in faults else 1
    borders = [0, *sorted(rng.randrange(len(frames) + 1) for _ in range(parts - 1)), len(frames)]
    missing = rng.randrange(parts) if "lost file" in faults else -1
    paths: list[Path] = []
    cuts: list[int] = []
    number = 0
    for part in range(parts):
        mine = frames[borders[part] : borders[part + 1]]
        if not mine:
            continue
        number += 1
        if part == missing:
            cuts += [mine[0].time] if paths else []  # the next file's number tells
            continue
        for side, own in enumerate(_tapped(mine) if form == "tap" else [mine]):
            name = f"capture-{seed}{'-ab'[side + 1] if form == 'tap' else ''}-{number:06}"
            writer = _Writer(rng, folder / f"{name}.{rng.choice(['pcap', 'pcapng', 'cap'])}")
            for frame in _queued(random.Random(f"queues {seed}"), own) if form == "queues" else own:
                packet = _segment(frame, rng.getrandbits(16))
                place, kept = writer.add(rng, frame.time, packet, vlans[frame.connection.number], snap)
                frame.file, frame.number = len(paths), place
                if frame.noise:
                    continue
                frame.kept = max(0, len(frame.payload) - (len(packet) - kept))
                if (len(frame.connection.ends[0].address) == 4 and kept < 40) or (kept < 60 and len(packet) > kept):
                    frame.kept = 0
            if "file end" in faults and rng.random() < 0.5:
                writer.close(rng.randint(1, 15))
                mine[-1].kept = -1
                cuts.append(mine[-1].time)
            else:
                writer.close()
            paths.append(writer.path)
    capture = Capture(
        seed,
        paths,
        [violation for pair in pairs for violation in pair.planted],
        [packet for pair in pairs for packet in pair.packets],
        frames,
        faults,
        set(),
        {pair.number: pair.lines for pair in pairs},
        sorted((connection for pair in pairs for connection in pair.connections), key=lambda one: one.begin),
        cuts,
    )
    _judge(capture, pairs, everything)
    return capture


def _is_syn(frame: Frame) -> bool:
    return frame.kept >= 0 and not frame.noise and bool(frame.flags & _SYN)


def _within_reach(capture: Capture, violation: Planted) -> bool:
    """Do both packets that show it come close enough together, and in an order that the capture shows?"""
    line, last = violation.line, violation.evidence[-1][-1]
    if violation.kind == "id_went_back" and violation.variant != OLDER:
        syns = {
            frame.direction: frame.time
            for frame in capture.frames
            if frame.connection is last.connection and _is_syn(frame)
        }
        higher = [packet for packet in violation.evidence[0] if packet.visible]
        same = any(packet.connection is last.connection for packet in higher)
        first = min((packet.frames[-1].time for packet in higher), default=0)
        return same or (len(syns) == 2 and min(syns.values()) > first)
    if violation.kind in ("delivered_twice", "resent_after_ack"):
        moment = last.frames[0].time
        sent = [
            packet
            for packet in capture.packets
            if packet.line is line
            and packet.kind == "message"
            and packet is not last
            and packet.frames
            and packet.frames[0].time <= moment
        ]
        newest = max((packet.sequence[::-1] for packet in sent), default=(0, 0))[::-1]
        highest = max((packet.number for packet in sent if packet.sequence == last.sequence), default=0)
        seen = any(packet.visible and packet.message_id == last.message_id for packet in sent)
        return seen and newest == last.sequence and highest < violation.number + WINDOW
    return True


def _ports_again(capture: Capture, begun: set[tuple[int, int]], seen: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Connections and directions that take ports of an earlier one and cannot be told from it: the SYN is not in the
    capture, and their numbers lie behind those of the one before, as if that one sent again."""
    found, used = set(), set()
    for connection in capture.connections:
        for direction in (0, 1):
            way = connection.number, direction
            ports = connection.addresses, connection.ports, direction
            if ports in used and way not in begun:
                found.add(way)
            if way in seen or way in begun:
                used.add(ports)
    return found


WINDOW = 64  # numbers of a sequence that a reader keeps in detail at least


def _accounted(capture: Capture, violation: Planted) -> bool:
    """May a reader trust that it knows every message of the sequence? What was sent before the capture it cannot know.

    It may if a message seen was handed over after the capture began. Counts of a connection it always knows.
    """
    line = violation.line
    if line is None or violation.kind == "resent_after_ack" or violation.variant == OLDER:
        return True
    evidence = min(frame.time for packet in violation.evidence[-1] for frame in packet.frames)
    if violation.variant.startswith("sequence"):
        left = any(
            _is_left(capture, other, evidence, sequence)
            for other in capture.pairs[violation.pair]
            for sequence in {None, *(packet.sequence for packet in capture.packets if packet.line is other)}
        )
        return not left and _has_begun(capture, violation)
    sequence = violation.evidence[-1][0].sequence
    if violation.kind in ("ack_beyond_receipt", "skipped") and _is_left(capture, line, evidence, sequence):
        return False
    begin = min(frame.time for frame in capture.frames if frame.kept >= 0)
    return any(
        packet.line is line
        and packet.sequence == sequence
        and packet.visible
        and packet.sent_time * 10**9 >= begin
        and packet.number < violation.number  # "skipped" is about the number before
        and packet.frames[-1].time <= evidence
        for packet in capture.packets
        if packet.kind == "message"
    )


def _is_left(capture: Capture, line: Line, evidence: int, sequence: tuple[int, int] | None = None) -> bool:
    """Had the sender begun another connection by then, and is no end of the one that carried the line, or this sequence
    of it, last in the capture? Then a reader cannot know what was sent there last."""
    sent = [
        packet
        for packet in capture.packets
        if packet.line is line and packet.kind == "message" and packet.visible and packet.frames[-1].time <= evidence
        if sequence in (None, packet.sequence)
    ]
    if not sent:
        return False
    last = max(sent, key=lambda packet: packet.frames[-1].time)
    own = [frame for frame in capture.frames if frame.connection is last.connection and frame.kept >= 0]
    fins = [frame.time for frame in own if frame.flags & _FIN and frame.direction == last.direction and not frame.noise]
    if min(fins, default=evidence) < evidence:  # a reset may be told late: what it overtook is waited for
        return False
    begun = [frame.time for frame in capture.frames if _is_syn(frame) and frame.connection.ends == last.connection.ends]
    return any(last.frames[-1].time < time <= evidence for time in begun)


def _has_begun(capture: Capture, violation: Planted) -> bool:
    """Is there, between these addresses, a sequence of the same source that began within the capture?

    It did if it followed on one with a message seen that was handed over after the capture began. An OrderAck names no
    source: if there are several, it is not certain whose it is.
    """
    line, begin = violation.line, min(frame.time for frame in capture.frames if frame.kept >= 0)
    assert line is not None
    lines = [other for other in capture.pairs[violation.pair] if other.sender == line.sender]
    if violation.variant == "sequence order" and any(other.hops for other in lines):
        return False
    hosts = violation.connection.hosts
    used = {packet.connection.hosts for packet in capture.packets if packet.line in lines and packet.kind == "message"}
    if used != {hosts} or len({end.guid for one in capture.connections if one.hosts == hosts for end in one.ends}) > 2:
        return False  # the sender's address is not the same each time, or not its own
    end = min(frame.time for packet in violation.evidence[-1] for frame in packet.frames)
    for other in lines:
        first: dict[tuple[int, int], int] = {}  # (time stamp, ordinal) -> when its first message was seen
        handed: dict[tuple[int, int], int] = {}  # of one handed over after the capture began
        for packet in capture.packets:
            if packet.line is other and packet.kind == "message" and packet.visible and not other.hops:
                key, time = packet.sequence[::-1], packet.frames[-1].time
                first[key] = min(first.get(key, time), time)
                if packet.sent_time * 10**9 >= begin:
                    handed[key] = min(handed.get(key, time), time)
        if any(lower < key and seen < time < end for key, time in first.items() for lower, seen in handed.items()):
            return True
    return False


FAULTS = ("loss", "duplicates", "late start", "snap length", "file end", "rotation", "lost file")
FORMED = ("loss", "duplicates", "late start", "snap length", "rotation")
FORMS = ("", "tap", "queues")


def _judge(capture: Capture, pairs: list[_Pair], everything: list[Frame]) -> None:
    """Which packets are in the capture, which pairs of hosts have holes, which violations must be found."""
    there = {id(frame) for frame in capture.frames if frame.kept >= 0 and not frame.noise}
    ranges: dict[tuple[int, int], list[tuple[int, int, Frame]]] = defaultdict(list)
    for frame in capture.frames:
        if id(frame) in there and frame.payload:
            ranges[frame.connection.number, frame.direction].append(
                (frame.sequence, frame.sequence + frame.kept, frame)
            )
    # A reader of a connection older than the capture takes the first bytes that it sees for the earliest. The SYN that
    # answers tells where both directions begin.
    syns = [f for f in capture.frames if id(f) in there and f.flags & _SYN]
    begun = {(f.connection.number, direction) for f in syns for direction in {0, f.direction}}
    capture.begins = {key: 0 if key in begun else found[0][0] for key, found in ranges.items()}
    capture.unclear = unclear = _ports_again(capture, begun, set(ranges))
    for packet in capture.packets:
        begin, end = packet.start, packet.start + len(packet.data)
        packet.frames = [
            f for low, high, f in ranges[packet.connection.number, packet.direction] if low < end and high > begin
        ]
        covered = begin
        for low, high in sorted((f.sequence, f.sequence + f.kept) for f in packet.frames):
            if low > covered:
                break
            covered = max(covered, high)
        packet.visible = covered >= end and begin >= capture.begins.get((packet.connection.number, packet.direction), 0)
    numbers = {connection.number: pair.number for pair in pairs for connection in pair.connections}
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)  # of packets
    for packet in capture.packets:
        if packet.visible:
            ends[packet.connection.number, packet.direction].append(packet.start + len(packet.data))
    for places in ends.values():
        places.sort()
    clouded: dict[int, int] = {}  # pair -> since when
    seen_until: dict[tuple[int, int], int] = {}  # connection, direction -> when its last whole packet was sent
    for frame in everything:
        number = numbers[frame.connection.number]
        harmless = frame.noise or (not frame.payload and not frame.flags & _SYN)
        whole = id(frame) in there and frame.kept == len(frame.payload)
        way = (frame.connection.number, frame.direction)
        if not harmless and not whole:
            # A reader cannot tell when the missing bytes were sent: packets of both directions may have overtaken them.
            other = seen_until.get((way[0], 1 - way[1]), frame.connection.begin)
            clouded[number] = min(clouded.get(number, frame.time), seen_until.get(way, 0), other)
        reached = bisect_right(ends[way], frame.sequence + len(frame.payload))
        if whole and not harmless and reached > bisect_right(ends[way], frame.sequence):
            seen_until[way] = frame.time
    for moment in capture.cuts:  # nobody knows whose frames they were
        for pair in pairs:
            clouded[pair.number] = min(clouded.get(pair.number, moment), moment)
    capture.clouded = set(clouded)
    hosts = {pair.number: {connection.hosts for connection in pair.connections} for pair in pairs}
    for violation in capture.planted:
        groups = [[packet for packet in group if packet.visible] for group in violation.evidence]
        violation.shown = all(groups)
        last = max((frame.time for group in groups[-1:] for packet in group[:1] for frame in packet.frames), default=0)
        standing = violation.kind in STANDING_ALONE and violation.variant != OLDER
        # What is missing may be anybody's behind the address; and the stream's source may have sent it to another.
        concerned = {number for number, used in hosts.items() if used & hosts[violation.pair]}
        if violation.line is not None:
            concerned |= {pair.number for pair in pairs if violation.line.source in pair.ends}
        clear = min(clouded.get(number, last + 1) for number in concerned) > last
        told = [[p for p in group if (p.connection.number, p.direction) not in unclear] for group in groups]
        violation.certain = all(told) and (
            _within_reach(capture, violation) and (standing or (clear and _accounted(capture, violation)))
        )
        shown = [packet for group in groups for packet in group]
        finals = {(id(packet.line), packet.own_id) for packet in shown if packet.kind == "final"}
        again = [p for p in capture.packets if p.kind == "final" and (id(p.line), p.own_id) in finals]  # shows it too
        if violation.kind == "id_went_back":  # and so does each message of either sequence
            either = {packet.sequence for packet in shown if packet.kind == "message"}
            again += [p for p in capture.packets if p.line is violation.line and p.sequence in either]
        violation.frames = {
            (frame.file, frame.number) for packet in (*shown, *again) for frame in packet.frames if frame.kept >= 0
        }


# ---- the big form --------------------------------------------------------------------------------

QUEUES = 4  # of one sender, on one connection
RECEIVERS = 8
BODY = 16
JOURNALED = 64  # one message of so many asks for a FinalAck; more would pile up unsettled
UNACKED = 30  # recoverable messages since the last SessionHeader; its bits are 32
_GAP = 150_000  # ns between frames
_START = 1_790_000_000  # s since 1970

_HEAD = [
    *[(name, "<u4") for name in ("seconds", "nanoseconds", "captured", "length")],
    ("ethernet", "V14"),
    *[("version", "u1"), ("service", "u1"), ("total", ">u2"), ("ip_id", ">u2"), ("fragment", ">u2"), ("ttl", "u1")],
    *[("protocol", "u1"), ("ip_checksum", ">u2"), ("source_address", ">u4"), ("target_address", ">u4")],
    *[("source_port", ">u2"), ("target_port", ">u2"), ("sequence", ">u4"), ("ack", ">u4"), ("offset", "u1")],
    *[("flags", "u1"), ("window", ">u2"), ("checksum", ">u2"), ("urgent", ">u2")],
]
_USER = [
    *[("base_version", "u1"), ("reserved", "u1"), ("base_flags", "<u2"), ("signature", "<u4"), ("size", "<u4")],
    *[("ttrq", "<u4"), ("source", "V16"), ("address", "V16"), ("ttbr", "<u4"), ("sent_time", "<u4")],
    *[("message_id", "<u4"), ("user_flags", "<u4")],
]
_TRANSACTION = [(name, "<u4") for name in ("tx_flags", "ordinal", "stamp", "number", "previous")]
_NAME = len(direct_name("TCP:10.200.0.101\\PRIVATE$\\q1"))
_MESSAGE = np.dtype([*_USER, ("name", f"V{_NAME}"), *_TRANSACTION, ("properties", f"V{56 + BODY}")])
_ACK_BODY = [(name, "<u4") for name in ("ordinal", "stamp", "number", "previous")]
_TX_ACK = np.dtype(
    [*_USER, ("name", "<u4"), ("properties", "V88"), *_ACK_BODY, ("ack_source", "V16"), ("ack_id", "<u4")]
)
_SESSION = np.dtype(
    [
        ("base", "V20"),
        *[("acked", "<u2"), ("first", "<u2"), ("bits", "<u4"), ("sent", "<u2"), ("recoverable", "<u2")],
        *[("window", "<u2"), ("reserved", "<u2")],
    ]
)
_FRAMES = {
    "plain": np.dtype(_HEAD),
    "hello": np.dtype([*_HEAD, ("packet", "V572")]),
    "parameters": np.dtype([*_HEAD, ("packet", "V32")]),
    "one": np.dtype([*_HEAD, ("messages", _MESSAGE, (1,))]),
    "three": np.dtype([*_HEAD, ("messages", _MESSAGE, (3,))]),
    "order": np.dtype([*_HEAD, ("tx_ack", _TX_ACK), ("session", _SESSION)]),
    "final": np.dtype([*_HEAD, ("tx_ack", _TX_ACK)]),
    "session": np.dtype([*_HEAD, ("session", _SESSION)]),
}


class FleetTruth(NamedTuple):
    """What write_fleet has written. planted: kind, source GUID in hex, queue, sequence, number."""

    packets: int
    frames: int
    bytes: int
    connections: int
    streams: int
    messages: int
    resends: int
    planted: list[dict[str, Any]]


class _Fleet:
    """Senders with one connection each, QUEUES streams on it; arrays have an item for each sender or stream."""

    def __init__(self, paths: list[Path], packets: int, streams: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.goal = packets
        self.senders = count = max(1, streams // QUEUES)
        self.paths = paths
        self.file = 0
        self.out = self._next_file()
        self.packets = self.frames = self.bytes = self.connections = self.messages = self.resends = 0
        self.time = 0  # ns since _START
        self.own_id = 0
        self.planted: list[dict[str, Any]] = []
        self.guids = np.frombuffer(self.rng.bytes(16 * count), "V16")
        self.receivers = np.frombuffer(self.rng.bytes(16 * RECEIVERS), "V16")
        self.receiver = np.arange(count) % RECEIVERS
        self.address = 0x0A000001 + np.arange(count, dtype=np.uint32)
        self.target = (0x0AC80065 + self.receiver).astype(np.uint32)
        self.stamp = (_START - self.rng.integers(0, 10**6, count)).astype(np.uint32)
        self.names = np.array(
            [
                [direct_name(f"TCP:10.200.0.{101 + receiver}\\PRIVATE$\\q{queue}") for queue in range(QUEUES)]
                for receiver in range(RECEIVERS)
            ],
            f"V{_NAME}",
        )
        self.port = np.full(count, 49151)
        self.tcp = np.zeros((2, count), np.uint32)  # next sequence number, by direction
        self.sent = np.zeros((2, count), np.int64)
        self.recoverable = np.zeros((2, count), np.int64)
        self.acked = np.zeros((2, count), np.int64)  # recoverable ones of this direction covered by a SessionHeader
        self.next = np.ones((count, QUEUES), np.int64)  # number of the next new message
        self.cursor = np.ones((count, QUEUES), np.int64)  # of the next to be sent
        self.ordered = np.zeros((count, QUEUES), np.int64)  # order-acknowledged
        self.settled = np.zeros((count, QUEUES), np.int64)  # highest with a FinalAck
        self.used: set[int] = set()  # senders with a planted violation

        self.message = np.frombuffer(
            user_message(
                bytes(16),
                NULL,
                0,
                7,
                bytes(_NAME),
                flags=DM,
                transaction=struct.pack("<IIIII", 0xC, 0, 0, 1, 0),
                body=bytes(BODY),
                sent_time=_START + 1,  # all handed over at once, after the capture began
            ),
            _MESSAGE,
        )
        self.tx_ack = {
            message_class: np.frombuffer(
                acknowledgement(NULL, NULL, 3, struct.pack("<I", ORDER_QUEUE_ID), 0, message_class, bytes(36)),
                _TX_ACK,
            )
            for message_class in (ORDER_ACK, ACK_RECEIVE)
        }
        self.session = np.frombuffer(session_ack(session_header(0, 0, 0, 0, 0, 64)), _SESSION)

    def _next_file(self) -> BinaryIO:
        out = self.paths[self.file].open("wb")
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262144, 1))
        self.file += 1
        return out

    # -- frames

    def _frame(self, kind: str, who: IntArray, direction: int, flags: int = _ACK | _PSH) -> Any:
        """Frames of one kind, one for each sender of who: all but what they carry is filled in."""
        dtype = _FRAMES[kind]
        count, size = len(who), dtype.itemsize - 16
        frames = np.zeros(count, dtype)
        moment = self.time + _GAP * np.arange(1, count + 1)
        self.time = int(moment[-1])
        frames["seconds"] = _START + moment // 10**9
        frames["nanoseconds"] = moment % 10**9
        frames["captured"] = frames["length"] = size
        frames["ethernet"] = np.void(b"\x02\0\0\0\0\1\x02\0\0\0\0\2\x08\0")
        frames["version"], frames["fragment"], frames["ttl"], frames["protocol"] = 0x45, 0x4000, 64, 6
        frames["total"] = size - 14
        frames["ip_id"] = self.frames + np.arange(count) & 0xFFFF
        ends = (self.address[who], self.target[who])
        ports = (self.port[who], np.full(count, 1801))
        frames["source_address"], frames["target_address"] = ends[direction], ends[1 - direction]
        frames["source_port"], frames["target_port"] = ports[direction], ports[1 - direction]
        frames["sequence"] = self.tcp[direction][who]
        frames["ack"] = self.tcp[1 - direction][who] if flags & _ACK else 0
        frames["offset"], frames["flags"], frames["window"] = 0x50, flags, 64000
        self.tcp[direction][who] += np.uint32(size - 54 + bool(flags & (_SYN | _FIN)))
        return frames

    def _write(self, frames: Any, packets: int) -> None:
        """packets: in each frame."""
        if self.file < len(self.paths) and self.packets >= self.goal * self.file // len(self.paths):
            self.out.close()
            self.out = self._next_file()
        self.out.write(frames.tobytes())
        self.frames += len(frames)
        self.packets += packets * len(frames)
        self.bytes += frames.nbytes

    def connect(self, who: IntArray) -> None:
        """New connections, with their sessions; what was sent and not order-acknowledged is to be sent again."""
        count = len(who)
        self.connections += count
        self.port[who] += 1
        self.tcp[:, who] = self.rng.integers(0, 2**32, (2, count), dtype=np.uint32)
        self.sent[:, who] = self.recoverable[:, who] = self.acked[:, who] = 0
        self.cursor[who] = self.ordered[who] + 1
        self._write(self._frame("plain", who, 0, _SYN), 0)
        self._write(self._frame("plain", who, 1, _SYN | _ACK), 0)
        hello = np.zeros((count, 572), np.uint8)
        hello[:] = np.frombuffer(establish_connection(NULL, NULL, 1), np.uint8)
        hello[:, 20:36] = np.frombuffer(self.guids[who].tobytes(), np.uint8).reshape(-1, 16)
        for direction in (0, 1):
            if direction:
                hello[:, 36:52] = np.frombuffer(self.receivers[self.receiver[who]].tobytes(), np.uint8).reshape(-1, 16)
            frames = self._frame("hello", who, direction)
            frames["packet"] = np.frombuffer(hello.tobytes(), "V572")
            self._write(frames, 1)
        for direction in (0, 1):
            frames = self._frame("parameters", who, direction)
            frames["packet"] = np.void(connection_parameters(64))
            self._write(frames, 1)

    def send(self, who: IntArray, queue: IntArray, several: int, **given: Any) -> None:
        """Frames with several messages of a stream each. given: what is not as it should be."""
        numbers = given.get("number", self.cursor[who, queue])
        fresh, ordered = self.next[who, queue], self.ordered[who, queue]
        frames = self._frame("one" if several == 1 else "three", who, 0)
        messages = frames["messages"]
        messages[:] = self.message
        messages["source"] = self.guids[who][:, None]
        messages["name"] = self.names[self.receiver[who], queue][:, None]
        messages["stamp"] = given.get("stamp", self.stamp[who])[:, None]
        messages["ordinal"] = (queue + 1)[:, None]
        for index in range(several):
            number = numbers + index
            again = number < fresh
            head = again & (number - 1 <= ordered)
            messages["number"][:, index] = number
            messages["previous"][:, index] = given.get("previous", np.where(head, 0, number - 1))
            messages["message_id"][:, index] = given.get("message_id", number * QUEUES + queue)
            messages["user_flags"][:, index] |= np.where(number % JOURNALED == 0, JN, 0).astype(np.uint32)
            if "apart" not in given:
                self.resends += int(again.sum())
                self.messages += int((~again).sum())
        self.sent[0][who] += several
        self.recoverable[0][who] += several
        self._write(frames, several)
        if "apart" in given:
            self.messages += 1
        else:
            self.cursor[who, queue] = numbers + several
            self.next[who, queue] = np.maximum(fresh, numbers + several)

    def _session_part(self, session: Any, who: IntArray, direction: int, wrong: int = 0) -> None:
        other = 1 - direction
        session[:] = self.session
        session["acked"] = self.sent[other][who] & 0xFFFF
        open_ones = self.recoverable[other][who] - self.acked[other][who]
        session["first"] = np.where(open_ones > 0, self.acked[other][who] + 1, 0) & 0xFFFF
        session["bits"] = (1 << np.minimum(open_ones, 32)) - 1
        session["sent"] = self.sent[direction][who] + wrong & 0xFFFF
        session["recoverable"] = self.recoverable[direction][who] & 0xFFFF
        self.acked[other][who] = self.recoverable[other][who]

    def _tx_ack_part(self, part: Any, who: IntArray, queue: IntArray, number: IntArray, message_class: int) -> None:
        count = len(who)
        part[:] = self.tx_ack[message_class]
        part["source"] = self.receivers[self.receiver[who]]
        part["address"] = self.guids[who]
        part["sent_time"] = _START + self.time // 10**9
        part["message_id"] = self.own_id + 1 + np.arange(count)
        self.own_id += count
        part["ordinal"], part["stamp"] = queue + 1, self.stamp[who]
        part["number"], part["previous"] = number, number - 1
        if message_class != ORDER_ACK:
            part["ack_source"] = self.guids[who]
            part["ack_id"] = number * QUEUES + queue
            self.recoverable[1][who] += 1
        self.sent[1][who] += 1

    def acknowledge(self, who: IntArray, queue: IntArray) -> None:
        """OrderAck and SessionAck in one frame."""
        highest = self.next[who, queue] - 1
        frames = self._frame("order", who, 1)
        self._tx_ack_part(frames["tx_ack"], who, queue, highest, ORDER_ACK)
        self._session_part(frames["session"], who, 1)
        self._write(frames, 2)
        self.ordered[who, queue] = highest
        self.cursor[who, queue] = self.next[who, queue]

    def session_acks(self, who: IntArray, direction: int, wrong: int = 0) -> None:
        """SessionAcks alone."""
        frames = self._frame("session", who, direction)
        self._session_part(frames["session"], who, direction, wrong)
        self._write(frames, 1)

    def settle(self, who: IntArray, queue: IntArray, number: IntArray) -> None:
        """Positive FinalAcks."""
        frames = self._frame("final", who, 1)
        self._tx_ack_part(frames["tx_ack"], who, queue, number, ACK_RECEIVE)
        self._write(frames, 1)
        if (number < self.next[who, queue]).all():
            self.settled[who, queue] = number

    # -- rounds

    def round(self) -> None:
        """Some senders do something, or are answered."""
        rng = self.rng
        who = rng.permutation(self.senders)[: int(rng.integers(1, 1000))]
        queue = rng.integers(0, QUEUES, len(who))
        what = rng.random(len(who))
        full = self.recoverable[0][who] - self.acked[0][who] > UNACKED - 3
        empty = self.next[who, queue] == 1
        order = (full | (what < 0.12)) & ~empty
        final = ~order & (what < 0.16) & (self.settled[who, queue] + JOURNALED <= self.ordered[who, queue])
        answer = ~order & ~final & (what < 0.20) & (self.sent[1][who] > 0)
        again = ~order & ~final & ~answer & (what < 0.21) & ~full  # the resend timer
        self.cursor[who[again], queue[again]] = self.ordered[who[again], queue[again]] + 1
        rest = ~order & ~final & ~answer & ~full
        one = rest & (rng.random(len(who)) < 0.7)
        # A FinalAck is recoverable: its bits have the same bound.
        final &= self.recoverable[1][who] - self.acked[1][who] < UNACKED
        for kind in rng.permutation(6):
            if kind == 0 and one.any():
                self.send(who[one], queue[one], 1)
            elif kind == 1 and (rest & ~one).any():
                self.send(who[rest & ~one], queue[rest & ~one], 3)
            elif kind == 2 and order.any():
                self.acknowledge(who[order], queue[order])
            elif kind == 3 and final.any():
                number = self.settled[who[final], queue[final]] // JOURNALED * JOURNALED + JOURNALED
                self.settle(who[final], queue[final], number)
            elif kind == 4 and answer.any():
                self.session_acks(who[answer], 0)
            elif kind == 5 and answer.any():
                self._write(self._frame("plain", who[answer], 1, _ACK), 0)

    def reconnect(self) -> None:
        """A few connections end and begin again."""
        who = self.rng.permutation(self.senders)[: max(1, self.senders // 50)]
        for direction in (0, 1):
            self._write(self._frame("plain", who, direction, _FIN | _ACK), 0)
        self.connect(who)

    def plant(self, kind: str) -> bool:
        """One violation, by a sender that has none yet."""
        rng = self.rng
        free = [sender for sender in rng.permutation(self.senders)[:50].tolist() if sender not in self.used]
        for sender in free:
            who, queue = np.array([sender]), rng.integers(0, QUEUES, 1)
            fresh = self.next[who, queue]
            calm = fresh[0] > JOURNALED + 20 and self.cursor[who, queue] == fresh
            calm &= kind != "skipped" or fresh[0] % JOURNALED != 0  # the number left out gets no FinalAck
            if not calm or self.recoverable[0][sender] - self.acked[0][sender] > UNACKED - 4:
                continue
            number, stamp = fresh, self.stamp[who]
            if kind == "renumbered":
                self.send(who, queue, 1, message_id=(fresh - 2) * QUEUES + queue)
            elif kind == "ack_beyond_receipt":
                number = fresh + 1000  # a FinalAck: after an OrderAck every resend would be a violation too
                self.settle(who, queue, number)
            elif kind == "id_went_back":
                number, stamp = np.array([1]), stamp - np.uint32(5)
                self.send(who, queue, 1, number=number, stamp=stamp, previous=0, message_id=2**31 + queue, apart=True)
            elif kind == "skipped":
                number = fresh + 1
                self.send(who, queue, 1, number=number)
                self.acknowledge(who, queue)
            elif kind == "count_mismatch":
                number = np.array([0])
                self.session_acks(who, int(rng.integers(0, 2)), 3)
            elif kind == "resent_after_ack":
                number = fresh - 1
                self.acknowledge(who, queue)
                self.acknowledge(who, queue)  # counted, behind the SessionHeader: the sender has had that too
                self.session_acks(who, 0)
                self.send(who, queue, 1, number=number, previous=number - 1)
            else:
                number = np.maximum(JOURNALED, self.settled[who, queue])
                self.acknowledge(who, queue)  # what has a FinalAck is not sent again
                if self.settled[who, queue] == 0:
                    self.settle(who, queue, number)
                self.settle(who, queue, number)
            self.used.add(sender)
            self.planted.append(
                {
                    "kind": kind,
                    "source": self.guids[sender].tobytes().hex(),
                    "queue": f"TCP:10.200.0.{101 + int(self.receiver[sender])}\\PRIVATE$\\q{int(queue[0])}",
                    "sequence": (int(queue[0]) + 1, int(stamp[0])),
                    "number": int(number[0]),
                }
            )
            return True
        return False

    def run(self, each: int) -> None:
        """Writes everything; each: violations of each kind."""
        self.connect(np.arange(self.senders))
        self.time = max(self.time, 2 * 10**9)
        due = [kind for kind in KINDS for _ in range(each)]
        due = [due[index] for index in self.rng.permutation(len(due))]
        total, reconnects = len(due), 0
        while self.packets < self.goal:
            self.round()
            done = self.packets / self.goal
            if done > (reconnects + 1) / 8:
                reconnects += 1
                self.reconnect()
            while due and done > 0.1 and (total - len(due)) / total < (done - 0.1) / 0.85 and self.plant(due[-1]):
                due.pop()
        self.out.close()


def write_fleet(
    paths: list[Path], packets: int = 10_000_000, streams: int = 10_000, seed: int = 1, each: int = 10
) -> FleetTruth:
    """At least so many packets over streams (a multiple of 4) into pcap files, one after another in time.

    One or three messages a frame, acknowledgements, resends by timer and after reconnecting; each: violations of each
    kind (fewer if there are too few senders), by senders of their own.
    """
    fleet = _Fleet(paths, packets, streams, seed)
    fleet.run(each)
    return FleetTruth(
        fleet.packets,
        fleet.frames,
        fleet.bytes,
        fleet.connections,
        int((fleet.next > 1).sum()) + sum(1 for one in fleet.planted if one["kind"] == "id_went_back"),
        fleet.messages,
        fleet.resends,
        fleet.planted,
    )


def capture_files(seed: int, folder: Path, pieces: int, length: int = 0, form: str = "") -> list[Path]:
    """A generated capture in so many files, or in as many as it has, in the order of time. With a form, each of its
    files is cut by itself."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    capture = capture_generator.generate(seed, folder, length=length, form=form)
    paths = [Path(path) for path in columnar.in_order(capture.paths)]
    made = []
    for side, path in enumerate(paths):
        data = path.read_bytes()
        order = {
            b"\xd4\xc3\xb2\xa1": "<",
            b"\x4d\x3c\xb2\xa1": "<",
            b"\xa1\xb2\xc3\xd4": ">",
            b"\xa1\xb2\x3c\x4d": ">",
        }.get(data[:4])
        if order is None or (len(paths) > 1 and not form):
            made.append(path)
            continue
        records, at = [], 24
        while at + 16 <= len(data):
            size = 16 + struct.unpack_from(order + "I", data, at + 8)[0]
            records.append(data[at : at + size])
            at += size
        cuts = [0, *sorted(chance.sample(range(1, len(records)), min(pieces, len(records)) - 1)), len(records)]
        path.unlink()
        for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
            made.append(folder / f"plant{f'-{side}' if form else ''}-{number:06}.pcap")
            made[-1].write_bytes(data[:24] + b"".join(records[begin:end]))
    return made if not form else [Path(path) for path in columnar.in_order(made)]


def split_by_direction(source: Path, targets: Sequence[Path]) -> None:
    """A fleet's capture as a tap writes it: to port 1801, and from there."""
    data = source.read_bytes()
    parts, at = [bytearray(data[:24]), bytearray(data[:24])], 24
    while at < len(data):
        end = at + 16 + struct.unpack_from("<I", data, at + 8)[0]
        parts[data[at + 50 : at + 52] == struct.pack(">H", 1801)] += data[at:end]
        at = end
    for target, part in zip(targets, parts, strict=True):
        target.write_bytes(part)


def behind_one_address(source: Path, target: Path) -> int:
    """The same capture, with all boards at one address; how many connections they have."""
    data = bytearray(source.read_bytes())
    ports: dict[bytes, int] = {}
    at = 24
    ethernet = 14 * (struct.unpack_from("<I", data, 20)[0] == 1)
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        ip = at + 16 + ethernet
        for address, port in ((ip + 12, ip + 20), (ip + 16, ip + 22)):
            if data[port : port + 2] != struct.pack(">H", 1801):
                end = bytes(data[address : address + 4] + data[port : port + 2])
                data[address : address + 4] = bytes([10, 9, 9, 9])
                data[port : port + 2] = struct.pack(">H", 2000 + ports.setdefault(end, len(ports)))
        at += 16 + size
    target.write_bytes(data)
    return len(ports)
