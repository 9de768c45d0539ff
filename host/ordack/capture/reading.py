"""Read captures without numpy: files in memory, the C core's tables, and packets one at a time, also from a pipe."""

import ipaddress
import mmap
import os
import sys
import tempfile
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple, cast

from _mqqb import ffi, lib

from ordack.config.names import counted
from ordack.config.paths import LEAST_BYTES, MOST_BYTES, RemoteFile, path_of

MALFORMED, HOLE, BEGIN, OLDER, END, FOREIGN = (
    lib.MQQB_KIND_MALFORMED, lib.MQQB_KIND_HOLE, lib.MQQB_KIND_BEGIN, lib.MQQB_KIND_OLDER, lib.MQQB_KIND_END,
    lib.MQQB_KIND_FOREIGN,
)  # fmt: skip

_ERRORS = {
    lib.MQQB_CAPTURE_BAD_MAGIC: "neither pcap nor pcapng; unpack a compressed capture first",
    lib.MQQB_CAPTURE_BAD_END: "the file ends inside the record that begins there",
    lib.MQQB_CAPTURE_BAD_SIZE: "a record claims a size that it cannot have",
    lib.MQQB_CAPTURE_BAD_BLOCK: (
        "a block is too short, has no byte order mark or no end, is of an unknown interface or an obsolete kind, or "
        "has times in units that are not supported: editcap -F pcap writes the file anew"
    ),
}

# ---- files and tables in memory


class TcpConnection(NamedTuple):
    """One incarnation of a TCP connection.

    ends: "address:port" of the senders of directions 0 and 1. Direction 0 is the end that opened the connection, or the
    lower end if the capture has no SYN. syn: the capture has the SYN.
    """

    ends: tuple[str, str]
    syn: bool


class CaptureFile:
    """A file mapped into memory; release() frees pages already read. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._part: _Part | None = None
        with path_of(path).open("rb") as file:
            remote: Any = getattr(file, "raw", None)
            if isinstance(remote, RemoteFile):
                self._part = _Part(remote, remote.read(LEAST_BYTES))  # only the beginning
            size = file.seek(0, 2)
            number = file.fileno() if self._part is None else self._part.number
            self._map = mmap.mmap(number, 0, access=mmap.ACCESS_READ) if size else None
        self.size = size
        self.pointer = ffi.from_buffer("uint8_t[]", self._map) if self._map is not None else ffi.new("uint8_t[1]")
        self._released = 0

    def read(self, c: Any) -> int:
        """Run mqqb_capture_read, fetching as much of the file as it needs, and return its status."""
        while True:
            c.size = self.size if self._part is None else self._part.there
            status = int(lib.mqqb_capture_read(c))
            ended = status in (lib.MQQB_CAPTURE_END_OF_FILE, lib.MQQB_CAPTURE_BAD_END)
            if not ended or c.size == self.size or self._part is None:
                return status
            self._part.fetch()

    def check(self) -> None:
        """Raise OSError if an object in a bucket was replaced during reading."""
        if self._part is not None:
            self._part.remote.check()

    def close(self) -> None:
        """Unmap the file. Nothing may refer to its memory."""
        if self._map is not None:
            ffi.release(self.pointer)
            self._map.close()

    def release(self, cursor: int) -> None:
        """Release the pages before the cursor. A later access reads them again."""
        end = cursor // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and end > self._released:
            self._map.madvise(mmap.MADV_DONTNEED, self._released, end - self._released)
            self._released = end


class _Part:
    """The fetched part of an object in a bucket, in an anonymous sparse temporary file of the object's size. there: end
    of the fetched bytes. number: file descriptor."""

    def __init__(self, remote: RemoteFile, first: bytes) -> None:
        with tempfile.TemporaryFile(prefix="ordack-") as made:
            made.truncate(remote.size)
            self.number = os.dup(made.fileno())
        self.remote = remote
        self.there, self._step = 0, LEAST_BYTES
        self._put(first)

    def __del__(self) -> None:
        os.close(self.number)

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                count = os.pwrite(self.number, left, self.there)
            except OSError as error:
                where = f"{error.strerror}, where it is fetched to: name a place with more room in TMPDIR"
                raise OSError(error.errno, where, tempfile.gettempdir()) from None
            left, self.there = left[count:], self.there + count

    def fetch(self) -> None:
        """Fetch the next piece."""
        size = min(self._step, self.remote.size - self.there)
        self.remote.seek(self.there)
        self._put(self.remote.read(size))
        self._step = min(2 * self._step, MOST_BYTES)


def error_text(at: int, frame: int, status: int) -> str:
    """Describe an error status of mqqb_capture_read at byte `at`, behind frame `frame`."""
    return f"at byte {at}, behind frame {frame}: {_ERRORS[status]}"


def memory(size: int, old: bytes | mmap.mmap = b"") -> mmap.mmap:
    """Allocate `size` bytes that begin with `old`. Untouched pages are zero and take no memory."""
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made[: len(old)] = old
    return made


class Dictionary:
    """Memory of a mqqb_capture_dictionary."""

    def __init__(self, c: Any) -> None:
        self._c = c
        self._capacity, self._size = 1 << 12, 4 * lib.MQQB_CAPTURE_NAMES
        self._end = memory(8 * (self._capacity + 1))
        self._bytes = memory(self._size)
        self._attach()

    def _attach(self) -> None:
        self._index = memory(8 * self._capacity)
        self._c.index_size, self._c.capacity, self._c.size = 2 * self._capacity, self._capacity, self._size
        self._c.index = ffi.from_buffer("uint32_t[]", self._index)
        self._c.end = ffi.from_buffer("uint64_t[]", self._end)
        self._c.bytes = ffi.from_buffer("uint8_t[]", self._bytes)

    def grow(self) -> None:
        """Enlarge the memory. The index is empty afterwards: call mqqb_capture_rehash."""
        if self._capacity - self._c.count < self._capacity // 4:
            self._capacity *= 2
        if self._size - self._c.end[self._c.count] < 2 * lib.MQQB_CAPTURE_NAMES:
            self._size *= 2
        self._end = memory(8 * (self._capacity + 1), self._end)
        self._bytes = memory(self._size, self._bytes)
        self._attach()

    def __len__(self) -> int:
        return int(self._c.count)

    def entry(self, code: int) -> tuple[int, bytes]:
        if not 1 <= code <= len(self):
            raise IndexError(f"{code} is no code of this dictionary")
        raw = self._bytes[self._c.end[code - 1] : self._c.end[code]]
        return raw[0], raw[1:]


class Tables:
    """A mqqb_capture with its tables. kept: {number of a closed file: its pending frames}."""

    def __init__(self, part: int = 0, parts: int = 1) -> None:
        self.c = c = ffi.new("mqqb_capture *")
        c.part, c.parts = part, parts
        self._managers, self._queues = Dictionary(c.dictionary[0]), Dictionary(c.dictionary[1])
        self._connections: bytes | mmap.mmap = b""
        self._segments: bytes | mmap.mmap = b""
        self.kept: dict[int, Any] = {}
        self._scratch = memory(lib.MQQB_CAPTURE_SCRATCH)
        c.scratch = ffi.from_buffer("uint8_t[]", self._scratch)
        self._grow_connections(1 << 10)
        self._grow_segments(1 << 12)
        lib.mqqb_capture_start(c)

    def keep(self, number: int, files: int = 0, room: int = 0, held: Collection[int] = ()) -> Any:
        """Copy the pending frames of file c.file, which was read, to separate memory. Return that memory, with `room`
        more bytes at its end for the caller. files: number of files, if others are read too. held: files whose frames
        the caller keeps in such room."""
        there = bytearray(max([files - 1, number, *self.kept]) + 1)
        out = bytearray(lib.mqqb_capture_keep(self.c, ffi.NULL, ffi.from_buffer("uint8_t[]", there)) + room)
        pointer = ffi.from_buffer("uint8_t[]", out)
        lib.mqqb_capture_keep(self.c, pointer, ffi.from_buffer("uint8_t[]", there))
        self.kept[number] = pointer
        self.kept = {at: kept for at, kept in self.kept.items() if there[at] or at in held}
        return self.kept.get(number, ffi.NULL)

    def _grow_connections(self, size: int) -> None:
        c = self.c
        self._connections = memory(size * ffi.sizeof("mqqb_capture_connection"), self._connections)
        self._index = memory(8 * size)
        c.connections, c.connections_size = ffi.from_buffer("mqqb_capture_connection[]", self._connections), size
        c.index, c.index_size = ffi.from_buffer("uint32_t[]", self._index), 2 * size

    def _grow_segments(self, size: int) -> None:
        self._segments = memory(size * ffi.sizeof("mqqb_capture_segment"), self._segments)
        self.c.segments = ffi.from_buffer("mqqb_capture_segment[]", self._segments)
        self.c.segments_size = size

    def grow(self, status: int) -> None:
        """Enlarge the tables that this MQQB_CAPTURE_GROW_* status names."""
        c = self.c
        if status == lib.MQQB_CAPTURE_GROW_SEGMENTS:
            self._grow_segments(2 * c.segments_size)
            return
        # mqqb_capture_rehash fills all indexes, so all must be empty.
        self._grow_connections(c.connections_size * (2 if status == lib.MQQB_CAPTURE_GROW_CONNECTIONS else 1))
        self._managers.grow()
        self._queues.grow()
        lib.mqqb_capture_rehash(c)

    def connection(self, number: int) -> TcpConnection:
        """Return the ends of a connection. Raise IndexError for an unknown number."""
        if not 0 <= number < self.c.connections_used:
            raise IndexError(f"there is no connection {number}")
        found = self.c.connections[number]
        texts = (end_text(ffi.buffer(end.word)[:]) for end in found.end)
        return TcpConnection((next(texts), next(texts)), bool(found.flags & 1))


def end_text(end: bytes) -> str:
    """Format address and port of a mqqb_capture_end."""
    word = int.from_bytes(end[16:], sys.byteorder)
    if word >> 16 & 1:
        return f"[{ipaddress.IPv6Address(end[:16])}]:{word & 0xFFFF}"
    return f"{ipaddress.IPv4Address(end[:4])}:{word & 0xFFFF}"


# ---- packets one at a time

MAGICS = (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x0a\x0d\x0d\x0a")

_ROWS = 64  # of a batch
_READ_BYTES = 1 << 20  # kept in memory at most, unless a record is larger
_PACKETS = lib.MQQB_CAPTURE_SCRATCH + (1 << 20)  # bytes of a batch's packets, with reserve for one more packet
_COLUMNS = {
    "offset": lib.MQQB_SCAN_OFFSET, "size": lib.MQQB_SCAN_TOTAL_SIZE, "kind": lib.MQQB_SCAN_KIND,
    "frame": lib.MQQB_CAPTURE_FRAME, "connection": lib.MQQB_CAPTURE_CONNECTION,
    "direction": lib.MQQB_CAPTURE_DIRECTION,
}  # fmt: skip


class CaptureError(Exception):
    """The file is not a capture, or is damaged. The text names the byte and the preceding frame."""


class FoundPacket(NamedTuple):
    """A packet's bytes and place, or the problem at that place.

    connection: "sender>receiver", with addresses and ports. time: of the packet's first frame, s since 1970. frame: its
    number, from 1. offset: bytes since the direction's SYN, or since its first captured byte, modulo 2^32. data: the
    packet, or the first 16 bytes of a packet with unknown end.
    """

    connection: str
    time: float
    frame: int
    offset: int
    data: bytes
    problem: str = ""


CUT, WRAPPED = lib.MQQB_CAPTURE_CUT, lib.MQQB_CAPTURE_WRAPPED


@dataclass
class Tally:
    """Frames that packets() read. unread: frames with an unsupported link type, truncated headers or a wrapping
    (tunnel, IP fragment). unread_link: the first unread frame's link type, CUT or WRAPPED."""

    frames: int = 0
    unread: int = 0
    unread_link: int = 0


def is_capture(first: bytes) -> bool:
    """Test whether four or more first bytes of a file begin a pcap or pcapng capture."""
    return first[:4] in MAGICS


class _Batch:
    """Memory for the rows of a batch."""

    def __init__(self) -> None:
        self.pointers = ffi.new("mqqb_capture_columns *")
        self._columns = {name: ffi.new("uint32_t[]", _ROWS) for name in _COLUMNS}
        for name, number in _COLUMNS.items():
            self.pointers.column[number] = self._columns[name]
        self._times, self._ends = ffi.new("int64_t[]", _ROWS), ffi.new("int64_t[]", _ROWS)
        self._bytes = ffi.from_buffer("uint8_t[]", memory(_PACKETS))
        self.pointers.time, self.pointers.packet_end = self._times, self._ends
        self.pointers.packets, self.pointers.packets_size = self._bytes, _PACKETS

    def rows(self, count: int) -> Iterator[tuple[dict[str, int], float, bytes]]:
        """Yield each row's columns, time (s since 1970) and bytes."""
        begin = 0
        for row in range(count):
            end = self._ends[row]
            columns = {name: words[row] for name, words in self._columns.items()}
            seconds, rest = divmod(self._times[row], 10**9)
            yield columns, seconds + rest / 1e9, ffi.buffer(self._bytes + begin, end - begin)[:]
            begin = end


class _Directions:
    """Turns the rows of each direction into packets and problems."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._older: dict[tuple[int, int], FoundPacket] = {}  # bytes older than the capture, before a packet

    def found(self, row: dict[str, int], time: float, data: bytes) -> Iterator[FoundPacket]:
        ends = self._tables.connection(row["connection"]).ends
        place = FoundPacket(
            f"{ends[row['direction']]}>{ends[1 - row['direction']]}", time, row["frame"], row["offset"], data
        )
        direction = row["connection"], row["direction"]
        if row["kind"] == OLDER:
            self._older[direction] = place
        elif row["kind"] == HOLE:
            self._older.pop(direction, None)
            missing = f"{counted(row['size'], 'byte')} from offset {row['offset']} on are missing in the capture"
            yield place._replace(problem=missing)
        elif row["kind"] == END:
            begun = self._older.pop(direction, None)
            if begun is not None and row["offset"]:
                yield begun._replace(problem="older than the capture, in which no packet of it begins")
            elif row["size"]:
                text = f"the stream ends after {counted(row['size'], 'byte')} of this packet"
                yield place._replace(offset=row["offset"] - row["size"], problem=text)
        elif row["kind"] != BEGIN:
            begun = self._older.pop(direction, None)
            if begun is not None and row["offset"]:
                text = f"older than the capture: {counted(row['offset'], 'byte')} before the first whole packet"
                yield begun._replace(problem=text)
            yield place


def packets(file: BinaryIO, first: bytes = b"", tally: Tally | None = None) -> Iterator[FoundPacket]:
    """Yield the packets of a capture in the order in which they become complete.

    first: bytes already read from the file. A packet is yielded as soon as the file, or a pipe, has it. Memory grows
    with the number of connections, not with the file. Raise CaptureError behind the last packet if the file is damaged.
    """
    tables, batch = Tables(), _Batch()
    directions = _Directions(tables)
    c = tables.c
    c.capacity, c.columns, c.pause = _ROWS, batch.pointers[0], (1 << 64) - 1
    data, behind, more = first, 0, True  # bytes in memory; bytes of the file before them
    status = lib.MQQB_CAPTURE_BAD_END
    while more and status in (lib.MQQB_CAPTURE_END_OF_FILE, lib.MQQB_CAPTURE_BAD_END):
        read = cast("BufferedReader", file).read1(_READ_BYTES)
        data, more = data + read, bool(read)
        number = next(number for number in range(len(tables.kept) + 1) if number not in tables.kept)
        tables.kept[number] = ffi.from_buffer("uint8_t[]", data)
        files = _kept_files(tables)
        c.file, c.size, c.cursor = number, len(data), 0
        status = yield from _rows(lib.mqqb_capture_read, tables, batch, directions)
        tables.keep(number)
        data, behind = data[c.cursor :], behind + c.cursor
    files = _kept_files(tables)
    yield from _rows(lib.mqqb_capture_finish, tables, batch, directions)
    del files
    if tally is not None:
        tally.frames, tally.unread, tally.unread_link = c.frames, c.unread, c.unread_link
    if status:
        raise CaptureError(error_text(behind, c.frame, status))


def _kept_files(tables: Tables) -> Any:
    """Point the C core at the memory in tables.kept. The caller keeps a reference to the result meanwhile."""
    files = ffi.new("uint8_t *[]", max(tables.kept, default=0) + 1)
    for number, kept in tables.kept.items():
        files[number] = kept
    tables.c.files = ffi.cast("const uint8_t *const *", files)
    return files


def _rows(call: Any, tables: Tables, batch: _Batch, directions: _Directions) -> Generator[FoundPacket, None, int]:
    """Yield the packets that a function of the C core finds. Return its last status: 0 or an error."""
    c = tables.c
    while True:
        status = int(call(c))
        if status > 0 and status != lib.MQQB_CAPTURE_ROWS:
            tables.grow(status)
            continue
        for row, time, data in batch.rows(c.rows):
            yield from directions.found(row, time, data)
        c.rows = 0
        if status <= 0:
            return status
