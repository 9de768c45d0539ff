"""The packets of a capture one by one, with their bytes, as they come: a pipe can be read while it is written."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO, NamedTuple, cast

from _mqqb import ffi, lib

from ordack.capture import reading
from ordack.capture.reading import Tables, memory
from ordack.config.names import counted

MAGICS = (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x0a\x0d\x0d\x0a")

_ROWS = 64  # of a batch
_READ = 1 << 20  # bytes of the file in memory at most, if no record is larger
_PACKETS = lib.MQQB_CAPTURE_SCRATCH + (1 << 20)  # bytes of a batch's packets, and what has to be free for one more
_COLUMNS = {
    "offset": lib.MQQB_SCAN_OFFSET, "size": lib.MQQB_SCAN_TOTAL_SIZE, "kind": lib.MQQB_SCAN_KIND,
    "frame": lib.MQQB_CAPTURE_FRAME, "connection": lib.MQQB_CAPTURE_CONNECTION,
    "direction": lib.MQQB_CAPTURE_DIRECTION,
}  # fmt: skip


class CaptureError(Exception):
    """The file is no capture, or stops being one; the text names the byte, and the frame before it."""


class FoundPacket(NamedTuple):
    """A packet's bytes with its place; or, with a problem, why there is no packet at this place.

    connection: addresses and ports of sender and receiver. time: of the frame in which it begins, s since 1970. frame:
    its number, from 1. offset: in the direction of the connection, from the byte behind the SYN on, or from the first
    one captured; modulo 2^32. data: of a packet whose end is unknown its first 16 bytes.
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
    """What packets() has read: the number of frames, and of those with a link type that is not supported, or with
    headers that are cut off, or wrapped; the link type of the first of those, CUT or WRAPPED."""

    frames: int = 0
    unread: int = 0
    unread_link: int = 0


def is_capture(first: bytes) -> bool:
    """Do these first four (or more) bytes of a file begin a pcap or pcapng capture? See `packed` for others."""
    return first[:4] in MAGICS


class _Batch:
    """Memory for some rows."""

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
        """Columns, time in s, bytes."""
        begin = 0
        for row in range(count):
            end = self._ends[row]
            columns = {name: words[row] for name, words in self._columns.items()}
            seconds, rest = divmod(self._times[row], 10**9)
            yield columns, seconds + rest / 1e9, ffi.buffer(self._bytes + begin, end - begin)[:]
            begin = end


class _Directions:
    """What the rows of each direction say, in sentences."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._older: dict[tuple[int, int], FoundPacket] = {}  # older than the capture, and no packet yet

    def found(self, row: dict[str, int], time: float, data: bytes) -> Iterator[FoundPacket]:
        ends = self._tables.connection(row["connection"]).ends
        place = FoundPacket(
            f"{ends[row['direction']]}>{ends[1 - row['direction']]}", time, row["frame"], row["offset"], data
        )
        direction = row["connection"], row["direction"]
        if row["kind"] == reading.OLDER:
            self._older[direction] = place
        elif row["kind"] == reading.HOLE:
            self._older.pop(direction, None)
            missing = f"{counted(row['size'], 'byte')} from offset {row['offset']} on are missing in the capture"
            yield place._replace(problem=missing)
        elif row["kind"] == reading.END:
            begun = self._older.pop(direction, None)
            if begun is not None and row["offset"]:
                yield begun._replace(problem="older than the capture, in which no packet of it begins")
            elif row["size"]:
                text = f"the stream ends after {counted(row['size'], 'byte')} of this packet"
                yield place._replace(offset=row["offset"] - row["size"], problem=text)
        elif row["kind"] != reading.BEGIN:
            begun = self._older.pop(direction, None)
            if begun is not None and row["offset"]:
                text = f"older than the capture: {counted(row['offset'], 'byte')} before the first whole packet"
                yield begun._replace(problem=text)
            yield place


def packets(file: BinaryIO, first: bytes = b"", tally: Tally | None = None) -> Iterator[FoundPacket]:
    """The packets of a capture, in the order in which they become complete.

    first: what was read of the file already. Each packet comes as soon as the file has it, also from a pipe. Memory
    grows with the number of connections, not with the file. CaptureError behind the last packet if the file is damaged.
    """
    tables, batch = Tables(), _Batch()
    directions = _Directions(tables)
    c = tables.c
    c.capacity, c.columns, c.pause = _ROWS, batch.pointers[0], (1 << 64) - 1
    data, behind, more = first, 0, True  # bytes in memory; bytes of the file before them
    status = lib.MQQB_CAPTURE_BAD_END
    while more and status in (lib.MQQB_CAPTURE_END_OF_FILE, lib.MQQB_CAPTURE_BAD_END):
        read = cast("BufferedReader", file).read1(_READ)
        data, more = data + read, bool(read)
        number = next(number for number in range(len(tables.kept) + 1) if number not in tables.kept)
        tables.kept[number] = ffi.from_buffer("uint8_t[]", data)
        files = _files(tables)
        c.file, c.size, c.cursor = number, len(data), 0
        status = yield from _rows(lib.mqqb_capture_read, tables, batch, directions)
        tables.keep(number)
        data, behind = data[c.cursor :], behind + c.cursor
    files = _files(tables)
    yield from _rows(lib.mqqb_capture_finish, tables, batch, directions)
    del files
    if tally is not None:
        tally.frames, tally.unread, tally.unread_link = c.frames, c.unread, c.unread_link
    if status:
        raise CaptureError(reading.error_text(behind, c.frame, status))


def _files(tables: Tables) -> Any:
    """What tables.kept has, for the C core, as long as this is referred to."""
    files = ffi.new("uint8_t *[]", max(tables.kept, default=0) + 1)
    for number, kept in tables.kept.items():
        files[number] = kept
    tables.c.files = ffi.cast("const uint8_t *const *", files)
    return files


def _rows(call: Any, tables: Tables, batch: _Batch, directions: _Directions) -> Generator[FoundPacket, None, int]:
    """What this function of the C core finds. Returns its last status: 0, or why it cannot go on."""
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
