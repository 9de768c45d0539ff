"""What the generator of captures keeps: queue managers, connections, packets, violations, and the whole capture."""

import ipaddress
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from ordack.audit.result import KINDS as KINDS

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
