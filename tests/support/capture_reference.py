"""Captures read a second time, in plain Python, for tests to hold the C core's reader against.

Three steps, each a generator: frames (the file), streams (each direction of a TCP connection put together again) and
packets (cut out of the streams). Link, IP and TCP headers are dpkt's work.
"""

import heapq
import ipaddress
import struct
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import dpkt
from mqqb import core
from ordack.capture.one_by_one import CaptureError, Found

TCP_PORT = 1801
PCAP_MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e6),
    b"\xa1\xb2\xc3\xd4": (">", 1e6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e9),
    b"\xa1\xb2\x3c\x4d": (">", 1e9),
}
PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"

_RECORD_MAX = 16 << 20  # bytes of one frame or block; more is no capture but a corrupt length
_PENDING_MAX = 4 << 20  # bytes kept out of order for one direction: more than a TCP window
_ETHERNET, _LOOPBACK, _LOOP, _LINUX_COOKED, _LINUX_COOKED_2 = 1, 0, 108, 113, 276  # others: raw IP


class Frame(NamedTuple):
    """One record of the file: number from 1, time in s since 1970, link type, bytes from the link header on."""

    number: int
    time: float
    link: int
    data: bytes


class Chunk(NamedTuple):
    """Bytes of one direction of a TCP connection, each byte once and in order.

    stream: number of the direction; a new connection of the same addresses and ports has a new one. offset: of data in
    the stream, 0 being the first byte behind the SYN, or the first one captured. missing: bytes in front of data that
    the capture does not have; -1: the connection is older than the capture, so data may begin anywhere. end: nothing
    follows.
    """

    connection: str
    time: float
    frame: int
    offset: int
    data: bytes
    stream: int = 0
    missing: int = 0
    end: bool = False


# ---- the file -----------------------------------------------------------------------------------


class _File:
    """Reads that are either complete or say where the file ended."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._first = b""
        self.offset = 0

    def read(self, size: int, what: str) -> bytes:
        if size > _RECORD_MAX:
            raise CaptureError(f"{what} at byte {self.offset} claims to have {size} bytes")
        data = self._first[:size]
        self._first = self._first[size:]
        data += self._file.read(size - len(data))
        if len(data) < size:
            raise CaptureError(f"the file ends at byte {self.offset + len(data)}, inside {what}")
        self.offset += size
        return data

    def at_end(self) -> bool:
        if not self._first:
            self._first = self._file.read(1)
        return not self._first


def frames(file: BinaryIO) -> Iterator[Frame]:
    """The frames of a capture, in the order of the file.

    CaptureError after the last good frame if the file ends inside a record or is not a capture.
    """
    source = _File(file)
    magic = source.read(4, "the file header")
    if magic == PCAPNG_MAGIC:
        return _pcapng(source)
    if magic in PCAP_MAGICS:
        return _pcap(source, *PCAP_MAGICS[magic])
    raise CaptureError("neither pcap nor pcapng")


def _pcap(source: _File, order: str, resolution: float) -> Iterator[Frame]:
    header = source.read(20, "the file header")
    link = struct.unpack(order + "I", header[16:])[0] & 0x0FFFFFFF  # the upper bits tell about checksums
    number = 0
    while not source.at_end():
        number += 1
        seconds, fraction, size, _ = struct.unpack(order + "IIII", source.read(16, f"frame {number}"))
        yield Frame(number, seconds + fraction / resolution, link, source.read(size, f"frame {number}"))


def _resolution(options: bytes, order: str) -> tuple[float, int]:
    """Units per second and offset in s from an interface's options (if_tsresol is 9, if_tsoffset is 14)."""
    units, shift, at = 1e6, 0, 0
    while at + 4 <= len(options):
        code, size = struct.unpack_from(order + "HH", options, at)
        value = options[at + 4 : at + 4 + size]
        if code == 9 and value:
            units = float(2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0])
        elif code == 14 and len(value) == 8:
            shift = struct.unpack(order + "q", value)[0]
        at += 4 + size + (-size & 3)
    return units, shift


def _pcapng(source: _File) -> Iterator[Frame]:
    order = "<"
    number = 0
    block = 1
    kind = PCAPNG_MAGIC
    interfaces: list[tuple[int, float, int, int]] = []  # link type, units per s, offset in s, snap length
    while True:
        what = f"block {block}"
        length = source.read(4, what)
        if kind == PCAPNG_MAGIC:
            byte_order = source.read(4, what)
            if byte_order not in (b"\x4d\x3c\x2b\x1a", b"\x1a\x2b\x3c\x4d"):
                raise CaptureError(f"{what} at byte {source.offset}: no byte order mark")
            order = "<" if byte_order[0] == 0x4D else ">"
            interfaces = []
        size = struct.unpack(order + "I", length)[0]
        done = 12 if kind == PCAPNG_MAGIC else 8
        if size < done + 4 or size & 3:
            raise CaptureError(f"{what} at byte {source.offset} cannot have {size} bytes")
        body = source.read(size - done, what)
        if body[-4:] != length:
            raise CaptureError(f"{what} before byte {source.offset}: it does not end with its size")
        body = body[:-4]
        code = struct.unpack(order + "I", kind)[0]
        try:
            if code == 1:
                link, snap = struct.unpack_from(order + "HxxI", body)
                interfaces.append((link, *_resolution(body[8:], order), snap))
            elif code in (2, 6):  # packet block (obsolete), enhanced packet block
                number += 1
                interface, high, low, size = struct.unpack_from(order + ("HxxIII" if code == 2 else "IIII"), body)
                link, units, shift, _ = interfaces[interface]
                yield Frame(number, shift + (high << 32 | low) / units, link, body[20 : 20 + size])
            elif code == 3:  # simple packet block: no time
                number += 1
                link, _, _, snap = interfaces[0]
                size = min(struct.unpack_from(order + "I", body)[0], snap or len(body))
                yield Frame(number, 0.0, link, body[4 : 4 + size])
        except (struct.error, IndexError):
            raise CaptureError(f"{what} before byte {source.offset}: too short, or of an unknown interface") from None
        if source.at_end():
            return
        block += 1
        kind = source.read(4, f"block {block}")


# ---- streams ------------------------------------------------------------------------------------


def _ip(link: int, data: bytes) -> Any:
    if link == _ETHERNET:
        return dpkt.ethernet.Ethernet(data).data
    if link == _LINUX_COOKED:
        return dpkt.sll.SLL(data).data
    if link == _LINUX_COOKED_2:
        return dpkt.sll2.SLL2(data).data
    if link in (_LOOPBACK, _LOOP):
        data = data[4:]
    return (dpkt.ip6.IP6 if data[0] >> 4 == 6 else dpkt.ip.IP)(data)


def _address(raw: bytes, port: int) -> str:
    address = ipaddress.ip_address(raw)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _segment(ip: Any) -> Any:
    """What ip carries, unless it is a fragment."""
    if isinstance(ip, dpkt.ip.IP) and (ip.offset or ip.mf):
        return None
    if isinstance(ip, dpkt.ip6.IP6) and dpkt.ip.IP_PROTO_FRAGMENT in ip.extension_hdrs:
        header = ip.extension_hdrs[dpkt.ip.IP_PROTO_FRAGMENT]
        return None if header.frag_off or header.m_flag else ip.data
    return getattr(ip, "data", None)


class _Stream:
    """One direction of a connection: what is next, and what came too early."""

    def __init__(self, number: int, connection: str, sequence: int, missing: int) -> None:
        self.number = number
        self.connection = connection
        self.initial = sequence
        self.sequence = sequence  # of the next byte, modulo 2^32
        self.offset = 0  # of the next byte
        self.missing = missing
        self.frame = 0
        self.time = 0.0
        self.pending: list[tuple[int, int, float, bytes]] = []  # heap: offset, frame, time, bytes
        self.pending_size = 0

    def add(self, sequence: int, data: bytes, frame: int, time: float) -> Iterator[Chunk]:
        ahead = (sequence - self.sequence + 0x80000000 & 0xFFFFFFFF) - 0x80000000
        self.frame, self.time = frame, time
        if ahead <= 0 and not self.pending:
            yield from self._deliver(self.offset + ahead, frame, time, data)
            return
        if ahead + len(data) > 0:
            heapq.heappush(self.pending, (self.offset + ahead, frame, time, data))
            self.pending_size += len(data)
        while self.pending and (self.pending[0][0] <= self.offset or self.pending_size > _PENDING_MAX):
            yield from self._pop()

    def _pop(self) -> Iterator[Chunk]:
        offset, frame, time, data = heapq.heappop(self.pending)
        self.pending_size -= len(data)
        if offset > self.offset:
            self.missing = offset - self.offset
            self._advance(self.missing)
        yield from self._deliver(offset, frame, time, data)

    def _deliver(self, offset: int, frame: int, time: float, data: bytes) -> Iterator[Chunk]:
        data = data[self.offset - offset :]
        if data:
            yield Chunk(self.connection, time, frame, self.offset, data, self.number, self.missing)
            self.missing = 0
            self._advance(len(data))

    def _advance(self, size: int) -> None:
        self.offset += size
        self.sequence = self.sequence + size & 0xFFFFFFFF

    def finish(self) -> Iterator[Chunk]:
        while self.pending:
            yield from self._pop()
        yield Chunk(self.connection, self.time, self.frame, self.offset, b"", self.number, end=True)


def streams(source: Iterator[Frame]) -> Iterator[Chunk]:
    """Put the TCP connections of port 1801 together again.

    Repeated and overlapping bytes are given once, early ones wait for what is missing, up to 4 MiB a direction; then,
    or at the end of the stream, what is missing is given up. Fragments of IP are passed over. A new SYN of
    the same addresses and ports begins a new stream; the SYN that answers one says where that begins, too. Frames that
    are no IP, or broken, are passed over. An error of source is raised at the very end.
    """
    table: dict[tuple[bytes, int, bytes, int], _Stream] = {}
    answered: dict[tuple[bytes, int, bytes, int], int] = {}  # the first byte, by the SYN that answers
    count = 0
    error = None
    try:
        for number, time, link, raw in source:
            try:
                ip = _ip(link, raw)
                segment = _segment(ip)
            except (dpkt.Error, struct.error, IndexError, ValueError, AttributeError, RecursionError):
                continue  # the last two: dpkt on IPv6 headers in an odd order, and on IP in IP in IP ...
            if not isinstance(segment, dpkt.tcp.TCP) or TCP_PORT not in (segment.sport, segment.dport):
                continue
            key = (ip.src, segment.sport, ip.dst, segment.dport)
            data = bytes(segment.data)
            syn = bool(segment.flags & dpkt.tcp.TH_SYN)
            sequence = segment.seq + syn & 0xFFFFFFFF
            stream = table.pop(key, None)
            if stream is not None and syn and sequence != stream.initial:
                yield from stream.finish()
                stream = None
            if stream is None:
                if not syn and not data:
                    continue
                count += 1
                connection = _address(ip.src, segment.sport) + ">" + _address(ip.dst, segment.dport)
                begin = sequence if syn else answered.pop(key, -1)
                stream = _Stream(count, connection, sequence if begin < 0 else begin, min(begin, 0))
            if syn and segment.flags & dpkt.tcp.TH_ACK and key[2:] + key[:2] not in table:
                answered[key[2:] + key[:2]] = segment.ack
            table[key] = stream  # the last in order is the last heard of
            if data:
                yield from stream.add(sequence, data, number, time)
    except CaptureError as problem:
        error = problem
    for stream in table.values():
        yield from stream.finish()
    if error is not None:
        raise error


# ---- packets ------------------------------------------------------------------------------------


class _Cutter:
    """Cuts one stream."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.offset = 0  # of the buffer's first byte in the stream
        self.marks: deque[tuple[int, int, float]] = deque()  # offset, frame, time of the chunks in the buffer
        self.searching: Found | None = None  # for the next credible BaseHeader: where that began
        self.reported = False  # why it is searching
        self.dead = False  # nothing tells where the next packet begins
        self.total = array("I", [0])

    def _cut(self, connection: str, at: int, size: int, problem: str = "") -> Found:
        offset = self.offset + at
        while len(self.marks) > 1 and self.marks[1][0] <= offset:
            self.marks.popleft()
        _, frame, time = self.marks[0]
        return Found(connection, time, frame, offset, bytes(self.buffer[at : at + size]), problem)

    def feed(self, chunk: Chunk) -> Iterator[Found]:
        """The packets that are complete now."""
        mark = (chunk.offset, chunk.frame, chunk.time)
        if chunk.missing:
            begin = chunk.offset - max(0, chunk.missing)
            if not self.buffer:
                self.offset = begin
                self.marks = deque([(begin, chunk.frame, chunk.time)])
            hole = f"{chunk.missing} bytes from offset {begin} on are missing in the capture"
            self.searching = self._cut(chunk.connection, 0, 0, hole)
            self.reported = chunk.missing > 0
            self.dead = False
            self.buffer.clear()
            if self.reported:
                yield self.searching
        if self.dead:
            return
        if not self.buffer:
            self.offset = chunk.offset
            self.marks.clear()
        self.buffer += chunk.data
        self.marks.append(mark)
        yield from self._packets(chunk.connection)
        if chunk.end and self.searching is not None and not self.reported:
            yield self.searching._replace(problem="older than the capture, in which no packet of it begins")
        elif chunk.end and self.buffer and self.searching is None:
            core.frame(self.buffer, 0, len(self.buffer), self.total)
            problem = f"the stream ends after {len(self.buffer)} of {self.total[0]} bytes of this packet"
            yield self._cut(chunk.connection, 0, 0, problem)

    def _packets(self, connection: str) -> Iterator[Found]:
        at = 0
        end = len(self.buffer)
        if self.searching is not None:
            at, found = self._plausible()
            if found:
                skipped = self.offset + at - self.searching.offset
                if skipped and not self.reported:
                    problem = f"older than the capture: {skipped} bytes before the first whole packet"
                    yield self.searching._replace(problem=problem)
                self.searching = None
        while self.searching is None and at < end:
            status = core.frame(self.buffer, at, end, self.total)
            if status == core.NEED_MORE:
                break
            if status < 0:
                yield self._cut(connection, at, core.part_size(core.BASE_HEADER))
                self.dead = True
                at = end
                break
            yield self._cut(connection, at, self.total[0])
            at += self.total[0]
        del self.buffer[:at]
        self.offset += at

    def _plausible(self) -> tuple[int, bool]:
        """(where the first credible BaseHeader begins, True), or (how many bytes are certainly of no use, False)."""
        end = len(self.buffer)
        at = self.buffer.find(b"LIOR", 4)
        while at >= 0:
            if end - at < 12:  # not yet all of it
                return at - 4, False
            if core.frame(self.buffer, at - 4, end, self.total) >= 0:
                return at - 4, True
            at = self.buffer.find(b"LIOR", at + 1)
        return max(0, end - 7), False


def packets(source: Iterator[Chunk]) -> Iterator[Found]:
    """Cut the streams into packets, which are not checked beyond their framing.

    A packet with a wrong BaseHeader comes as these 16 bytes, and is the last of its stream: nothing tells where the
    next one begins. After a hole, and in a connection that is older than the capture, the next packet is where the next
    credible BaseHeader is; what was lost comes as one Found with a problem.
    """
    cutters: dict[int, _Cutter] = {}
    for item in source:
        cutter = cutters.get(item.stream)
        if cutter is None:
            cutter = cutters[item.stream] = _Cutter()
        yield from cutter.feed(item)
        if item.end:
            del cutters[item.stream]
