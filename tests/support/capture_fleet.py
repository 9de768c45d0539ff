"""Millions of packets of many boards, written with numpy."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.support.capture_bytes import (
    ACK,
    ACK_RECEIVE,
    DM,
    FIN,
    JN,
    NULL,
    ORDER_ACK,
    ORDER_QUEUE_ID,
    PSH,
    SYN,
    acknowledgement,
    connection_parameters,
    direct_name,
    establish_connection,
    session_ack,
    session_header,
    user_message,
)
from tests.support.capture_model import KINDS

IntArray = NDArray[np.int64]


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
                acknowledgement(NULL, NULL, 3, struct.pack("<I", ORDER_QUEUE_ID), 0, message_class, bytes(36)), _TX_ACK
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

    def _frame(self, kind: str, who: IntArray, direction: int, flags: int = ACK | PSH) -> Any:
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
        frames["ack"] = self.tcp[1 - direction][who] if flags & ACK else 0
        frames["offset"], frames["flags"], frames["window"] = 0x50, flags, 64000
        self.tcp[direction][who] += np.uint32(size - 54 + bool(flags & (SYN | FIN)))
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
        self._write(self._frame("plain", who, 0, SYN), 0)
        self._write(self._frame("plain", who, 1, SYN | ACK), 0)
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
                self._write(self._frame("plain", who[answer], 1, ACK), 0)

    def reconnect(self) -> None:
        """A few connections end and begin again."""
        who = self.rng.permutation(self.senders)[: max(1, self.senders // 50)]
        for direction in (0, 1):
            self._write(self._frame("plain", who, direction, FIN | ACK), 0)
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
