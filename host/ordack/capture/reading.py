"""What the C core's mqqb_capture needs, without numpy: files in memory, and tables that grow."""

import contextlib
import ipaddress
import mmap
import os
import sys
import tempfile
from collections.abc import Collection
from typing import Any, BinaryIO, NamedTuple

from _mqqb import ffi, lib

from ordack.capture import packed
from ordack.config.paths import LEAST_BYTES, MOST_BYTES, RemoteFile, path_of

MALFORMED, HOLE, BEGIN, OLDER, END, FOREIGN = (
    lib.MQQB_KIND_MALFORMED, lib.MQQB_KIND_HOLE, lib.MQQB_KIND_BEGIN, lib.MQQB_KIND_OLDER, lib.MQQB_KIND_END,
    lib.MQQB_KIND_FOREIGN,
)  # fmt: skip

_ERRORS = {
    lib.MQQB_CAPTURE_BAD_MAGIC: "neither pcap nor pcapng",
    lib.MQQB_CAPTURE_BAD_END: "the file ends inside the record that begins there",
    lib.MQQB_CAPTURE_BAD_SIZE: "a record claims a size that it cannot have",
    lib.MQQB_CAPTURE_BAD_BLOCK: (
        "a block is too short, has no byte order mark or no end, is of an unknown interface or an obsolete kind, or "
        "has times in units that are not supported: editcap -F pcap writes the file anew"
    ),
}


class TcpConnection(NamedTuple):
    """One incarnation of a TCP connection.

    ends: address and port, as text, of the end that opened it (or, if no SYN was seen, of the lower end), and of the
    other: the senders of directions 0 and 1. syn: its beginning was seen.
    """

    ends: tuple[str, str]
    syn: bool


class CaptureFile:
    """A file in memory; what lies behind is given back. damage: why not all of a packed one is in it. most: bytes of a
    packed one that are needed. Raises OSError."""

    def __init__(self, path: str, most: int = packed.UNPACKED_MAX) -> None:
        self.damage = ""
        self._part: _Part | None = None
        with contextlib.ExitStack() as opened:
            file: BinaryIO = opened.enter_context(path_of(path).open("rb"))
            remote: Any = getattr(file, "raw", None)
            if isinstance(remote, RemoteFile):
                first = remote.read(LEAST_BYTES)  # no more than the beginning
            else:
                first = file.read(LEAST_BYTES)
            self.packed = packed.is_packed(first)
            if isinstance(remote, RemoteFile) and not self.packed:
                self._part = _Part(remote, first)
            if self.packed:
                unpacked, self.damage = packed.unpack(file, first, most)
                file = opened.enter_context(unpacked)
            size = file.seek(0, 2)
            number = file.fileno() if self._part is None else self._part.number
            self._map = mmap.mmap(number, 0, access=mmap.ACCESS_READ) if size else None
        self.size = size
        self.pointer = ffi.from_buffer("uint8_t[]", self._map) if self._map is not None else ffi.new("uint8_t[1]")
        self._released = 0

    def read(self, c: Any) -> int:
        """What mqqb_capture_read says when it has as much of the file as it needs."""
        while True:
            c.size = self.size if self._part is None else self._part.there
            status = int(lib.mqqb_capture_read(c))
            ended = status in (lib.MQQB_CAPTURE_END_OF_FILE, lib.MQQB_CAPTURE_BAD_END)
            if not ended or c.size == self.size or self._part is None:
                return status
            self._part.fetch()

    def check(self) -> None:
        """Raises OSError if an object in a bucket was replaced while it was read."""
        if self._part is not None:
            self._part.remote.check()

    def error(self, at: int, frame: int, status: int) -> str:
        """What is wrong at this byte, behind this frame."""
        text = error_text(at, frame, status)
        if self.packed:
            text += f"; {self.damage}" if self.damage else ", in what was packed"
        return text

    def close(self) -> None:
        """Nothing refers to it any more."""
        if self._map is not None:
            ffi.release(self.pointer)
            self._map.close()

    def release(self, cursor: int) -> None:
        """These pages count for the process no longer. They are read again if something refers to them."""
        end = cursor // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and end > self._released:
            self._map.madvise(mmap.MADV_DONTNEED, self._released, end - self._released)
            self._released = end


class _Part:
    """What was fetched of an object in a bucket, at its place in a temporary file as large as that; the rest takes no
    room, and nobody else sees the file. there: behind the last byte that is in it; number: its descriptor."""

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
        """The next piece."""
        size = min(self._step, self.remote.size - self.there)
        self.remote.seek(self.there)
        self._put(self.remote.read(size))
        self._step = min(2 * self._step, MOST_BYTES)


def error_text(at: int, frame: int, status: int) -> str:
    """What a status of mqqb_capture_read says of a file at this byte, behind this frame."""
    return f"at byte {at}, behind frame {frame}: {_ERRORS[status]}"


def memory(size: int, old: bytes | mmap.mmap = b"") -> mmap.mmap:
    """So many bytes, which begin with the old ones; the others are 0, and take no room before they are written."""
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made[: len(old)] = old
    return made


class Dictionary:
    """Memory of a mqqb_capture_dictionary. end, names: what one that was saved had."""

    def __init__(self, c: Any, end: bytes = b"", names: bytes = b"") -> None:
        self._c = c
        self._capacity, self._size = c.capacity or 1 << 12, c.size or 4 * lib.MQQB_CAPTURE_NAMES
        self._end = memory(8 * (self._capacity + 1), end)
        self._bytes = memory(self._size, names)
        self._attach()

    def saved(self) -> tuple[bytes, bytes]:
        """What __init__ takes."""
        return self._end[: 8 * (len(self) + 1)], self._bytes[: self._c.end[len(self)]]

    def _attach(self) -> None:
        self._index = memory(8 * self._capacity)
        self._c.index_size, self._c.capacity, self._c.size = 2 * self._capacity, self._capacity, self._size
        self._c.index = ffi.from_buffer("uint32_t[]", self._index)
        self._c.end = ffi.from_buffer("uint64_t[]", self._end)
        self._c.bytes = ffi.from_buffer("uint8_t[]", self._bytes)

    def grow(self) -> None:
        """The index is empty then: mqqb_capture_rehash has to follow."""
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
    """A mqqb_capture with the tables that it fills. kept: {number of a file that is gone: what waits of it}."""

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

    def __getstate__(self) -> dict[str, Any]:
        """What waits of the files read so far comes along, so they may go."""
        c = self.c
        return {
            "c": bytes(ffi.buffer(c)),
            "connections": self._connections[: c.connections_used * ffi.sizeof("mqqb_capture_connection")],
            "segments": self._segments[: c.segments_used * ffi.sizeof("mqqb_capture_segment")],
            "kept": {file: bytes(ffi.buffer(kept)) for file, kept in self.kept.items()},
            "dictionaries": (self._managers.saved(), self._queues.saved()),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.c = c = ffi.new("mqqb_capture *")
        ffi.memmove(c, state["c"], ffi.sizeof("mqqb_capture"))
        self._managers, self._queues = (
            Dictionary(*saved) for saved in zip(c.dictionary, *zip(*state["dictionaries"], strict=True), strict=True)
        )
        self._scratch = memory(lib.MQQB_CAPTURE_SCRATCH)
        c.scratch = ffi.from_buffer("uint8_t[]", self._scratch)
        self._connections, self._segments = state["connections"], state["segments"]
        self._grow_connections(c.connections_size)
        self._grow_segments(c.segments_size)
        lib.mqqb_capture_rehash(c)
        self.kept = {file: ffi.from_buffer("uint8_t[]", bytearray(raw)) for file, raw in state["kept"].items()}

    def keep(self, number: int, files: int = 0, room: int = 0, held: Collection[int] = ()) -> Any:
        """The file c.file, which was read, goes: what waits of it is in memory of its own from now on, which is the
        answer, before as much room as the caller needs. files: how many there are, if others are read meanwhile. held:
        those of which the caller has something in that room."""
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
        """As this MQQB_CAPTURE_GROW_* asks for."""
        c = self.c
        if status == lib.MQQB_CAPTURE_GROW_SEGMENTS:
            self._grow_segments(2 * c.segments_size)
            return
        # All indexes are filled again, so all are empty before.
        self._grow_connections(c.connections_size * (2 if status == lib.MQQB_CAPTURE_GROW_CONNECTIONS else 1))
        self._managers.grow()
        self._queues.grow()
        lib.mqqb_capture_rehash(c)

    def connection(self, number: int) -> TcpConnection:
        """Ends of a connection. IndexError if there is no such number."""
        if not 0 <= number < self.c.connections_used:
            raise IndexError(f"there is no connection {number}")
        found = self.c.connections[number]
        texts = (end_text(ffi.buffer(end.word)[:]) for end in found.end)
        return TcpConnection((next(texts), next(texts)), bool(found.flags & 1))


def end_text(end: bytes) -> str:
    """Address and port of a mqqb_capture_end."""
    word = int.from_bytes(end[16:], sys.byteorder)
    if word >> 16 & 1:
        return f"[{ipaddress.IPv6Address(end[:16])}]:{word & 0xFFFF}"
    return f"{ipaddress.IPv4Address(end[:4])}:{word & 0xFFFF}"
