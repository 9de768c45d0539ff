"""Read captures into column batches: numpy arrays around the C core's mqqb_capture."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _mqqb import ffi, lib
from mqqb import guids, headers
from mqqb import names as wire_names
from numpy.typing import NDArray

from ordack.capture.reading import CaptureFile, Tables, error_text
from ordack.config.paths import each

Words = NDArray[np.uint32]


def _columns(prefix: str, first: int, end: int) -> tuple[str, ...]:
    """Return the names of columns in mqqb_scan.h and mqqb_capture.h, by number."""
    found = {getattr(lib, name): name for name in dir(lib) if name.startswith(prefix) and name != "MQQB_SCAN_FULL"}
    return tuple(found[number].removeprefix(prefix).lower() for number in range(first, end))


SCAN_COLUMNS = _columns("MQQB_SCAN_", 0, lib.MQQB_SCAN_COLUMNS)
PLACE_COLUMNS = _columns("MQQB_CAPTURE_", lib.MQQB_SCAN_COLUMNS, lib.MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS)
DETAIL_COLUMNS = _columns("MQQB_CAPTURE_", lib.MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS, lib.MQQB_CAPTURE_COLUMNS)
COLUMNS = SCAN_COLUMNS + PLACE_COLUMNS + DETAIL_COLUMNS
_NUMBERS = {name: number for number, name in enumerate(COLUMNS)}

_LABEL_BYTES = 64  # average label; longer ones end a batch early


class PacketQueue(NamedTuple):
    """A queue as named in packets: selector of UserHeader.Flags.DQ, bytes of the name, format name as text.

    A private queue without a GUID belongs to the receiving queue manager, or in replies to the sending one. Its text
    has zeros for the GUID.
    """

    selector: int
    raw: bytes
    text: str


class Damage(NamedTuple):
    """Why a file was read only in part. frame: last readable frame. latest: greatest time so far, -1 if none."""

    path: str
    text: str
    frame: int
    latest: int


class Gathered(NamedTuple):
    """What a task read of a file. unread: frames of unknown link types. span: time of the first frame and greatest
    time, None without frames."""

    frames: int
    unread: int
    span: tuple[int, int] | None
    damage: Damage | None


class Chunk(NamedTuple):
    """Frames of a file, gathered by a task. low: lower bound of the moments in this chunk and in later chunks."""

    low: int
    file: int
    data: bytes


@cache
def structure(name: str) -> np.dtype[Any]:
    """Return the numpy type of a structure of the C core."""
    return _numpy(ffi.typeof(name))


def _numpy(kind: Any) -> np.dtype[Any]:
    if kind.kind == "primitive":
        return np.dtype(("i" if kind.cname.startswith("int") else "u") + str(ffi.sizeof(kind)))
    if kind.kind == "array":
        return np.dtype((_numpy(kind.item), (kind.length,)))
    fields = dict(kind.fields)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [_numpy(item.type) for item in fields.values()],
            "offsets": [item.offset for item in fields.values()],
            "itemsize": ffi.sizeof(kind),
        }
    )


# ---- frames by their moments

Routed = NDArray[Any]

WINDOW_NS: int = lib.MQQB_CAPTURE_WINDOW
ROUTED = structure("mqqb_capture_routed")
HEAD_BYTES = ffi.sizeof("mqqb_capture_frame")
_ROUTED_FRAMES = 1 << 12  # read at once
_KEPT_BYTES = 32 << 20  # of a read file that stay mapped
_STEP_BYTES = 16 << 20  # of a file that are read at once if few frames have port 1801


class Merge:
    """Frames that wait for earlier frames."""

    def __init__(self) -> None:
        self.waiting = np.empty(0, ROUTED)
        self._new: list[Routed] = []

    def add(self, rows: Routed) -> None:
        """Add frames. Their rank is the number of their file."""
        if len(rows):
            self._new.append(rows)

    def pending(self) -> Routed:
        """Return all waiting frames in order. The caller may change them in place."""
        if self._new:
            rows = np.concatenate([self.waiting, *self._new])
            self._new.clear()
            moments, ranks = rows["moment"], rows["rank"]
            if (moments[1:] < moments[:-1]).any() or (ranks != ranks[0]).any():
                rows = rows[np.lexsort((rows["frame"], ranks, moments))]
            self.waiting = rows
        return self.waiting

    def take(self, moment: int | None) -> Routed:
        """Remove and return the frames before this moment, in order. None: all frames."""
        rows = self.pending()
        cut = len(rows) if moment is None else int(np.searchsorted(rows["moment"], moment))
        self.waiting = rows[cut:]
        return rows[:cut]


class Router:
    """Finds the frames of port 1801 in a file, from its beginning.

    latest: greatest time so far, -1 without frames; later frames are at most WINDOW_NS older. first: time of the first
    frame. damage: why the file was read only in part.
    """

    def __init__(self, number: int, path: str, part: int = 0, parts: int = 1) -> None:
        self.number, self.path = number, path
        self.file = CaptureFile(path)
        self.c = c = ffi.new("mqqb_capture *")
        self._pointers = ffi.new("uint8_t *[]", [self.file.pointer] * (number + 1))
        c.files, c.file, c.capacity = ffi.cast("const uint8_t *const *", self._pointers), number, 16
        c.part, c.parts = part, parts
        c.connections_size, c.segments_size = 1, 2  # routing makes none
        self._table = np.empty(_ROUTED_FRAMES, ROUTED)
        self.latest: int = -1
        self.first: int = -1
        self.ended = False
        self._released = 0
        self.damage = ""
        lib.mqqb_capture_start(c)

    def more(self) -> Routed:
        """Return some of the next frames. The first call examines only one frame."""
        c = self.c
        c.routed, c.routed_size = ffi.from_buffer("mqqb_capture_routed[]", self._table), len(self._table)
        c.routed_used = 0
        c.pause = min(c.cursor + (_STEP_BYTES if c.frames else 1), max(self.file.size, 1))
        status = self.file.read(c)
        paused = status == lib.MQQB_CAPTURE_PAUSE and c.cursor < self.file.size
        self.ended = status != lib.MQQB_CAPTURE_ROWS and not paused
        if status < 0:
            self.damage = error_text(c.cursor, c.frame, status)
        if c.frames:
            self.first = c.time if self.first < 0 else self.first
            self.latest = c.latest
        rows = self._table[: c.routed_used].copy()
        rows["rank"] = self.number
        return rows

    def release(self, waiting: Routed) -> None:
        """Release the memory of frames already read, unless a waiting frame is in it."""
        if self.c.cursor >= self._released + _KEPT_BYTES:
            places = waiting["place"][waiting["file"] == self.number]
            self._released = int(places.min(initial=self.c.cursor))
            self.file.release(self._released)

    def close(self) -> None:
        """Close the file. Nothing may refer to its memory. Raise OSError if an object in a bucket was replaced."""
        self.file.check()
        self.file.close()


def bytes_of(pointer: Any, rows: Routed, out: Any) -> NDArray[np.uint64]:
    """Copy frames of a file to `out`, adjacent to each other. Return their places there."""
    which = np.arange(len(rows), dtype=np.uint32)
    rows = np.ascontiguousarray(rows)
    lib.mqqb_capture_gather(
        pointer, ffi.from_buffer("mqqb_capture_routed[]", rows), ffi.from_buffer("uint32_t[]", which), len(rows), out
    )
    ends = np.cumsum(rows["size"].astype(np.uint64) + np.uint64(HEAD_BYTES))
    places: NDArray[np.uint64] = ends - rows["size"]
    return places


# ---- packets


def _queue_name(selector: int, raw: bytes) -> PacketQueue:
    name: wire_names.QueueName
    if selector == 7:
        name = wire_names.DirectQueueFormatName("", raw)
    elif selector == 5:
        name = headers.PublicQueueFormatName(raw)
    elif selector == 6:
        name = headers.PrivateQueueFormatName(raw[:16], int.from_bytes(raw[16:], "little"))
    else:
        name = headers.PrivateQueueFormatNameId(int.from_bytes(raw, "little"))
    return PacketQueue(selector, raw, guids.format_name(name))


class Decoder(Tables):
    """Resolves the codes in batches. Codes are added while batches are taken.

    paths: files, in the order of their first frames. damages: partly readable files. frames: frames read. unread:
    frames with an unsupported link type or truncated headers. spans: {number of a file: time of its first frame and
    greatest time, ns since 1970}. closed: files read to the end. latest: greatest time of all files.
    """

    def __init__(self, paths: Sequence[str], part: int = 0, parts: int = 1) -> None:
        super().__init__(part, parts)
        self.paths = list(paths)
        self.damages: list[Damage] = []
        self.spans: dict[int, tuple[int, int]] = {}
        self.closed: set[int] = set()
        self.frames = self.unread = 0
        self._queue_names: dict[int, PacketQueue] = {}
        self._read = self._last = 0  # number of files; frames of the last file
        self.latest = -1
        self._merge = Merge()

    def batches(
        self, rows: int, columns: Sequence[str], *, labels: bool = False, correlations: bool = False
    ) -> Iterator["PacketColumns"]:
        """Yield the packets of all paths. Call it once.

        rows: maximum of a batch, at least 16. columns: names of columns. labels, correlations: add labels as text, and
        CorrelationIDs.
        """
        self._read = len(self.paths)
        pointers = ffi.new("uint8_t *[]", self._read + 1)
        self.c.files = ffi.cast("const uint8_t *const *", pointers)
        tables = [_Table(rows, columns, labels, correlations) for _ in range(2)]
        reader = _BatchReader(self, tables, rows)
        for order in self._ordered(pointers):
            yield from reader.read(order)
        self.c.file, self.c.frame = max(self._read - 1, 0), self._last
        yield from reader.end()

    def _ordered(self, pointers: Any) -> Iterator[Routed]:
        """Yield the frames of all files, ordered by moment."""
        active: list[Router] = []
        numbers = iter(range(self._read))
        ahead = self._open(numbers, pointers)
        while ahead or active:
            if ahead and all(ahead.latest <= router.latest for router in active):
                active.append(ahead)
                ahead = self._open(numbers, pointers)
            router = min(active, key=lambda one: one.latest)
            self._more(router)
            if router.ended:
                active.remove(router)
            latest = [one.latest for one in (*active, ahead) if one]
            yield self._merge.take(min(latest) - WINDOW_NS if latest else None)
            if router.ended:
                self._close(router, pointers)
            else:
                router.release(self._merge.waiting)
        yield self._merge.take(None)

    def _open(self, numbers: Iterator[int], pointers: Any) -> Router | None:
        """Open the next file that has a frame. Close files without frames."""
        c = self.c
        for number in numbers:
            router = Router(number, self.paths[number], c.part, c.parts)
            pointers[number] = router.file.pointer
            while not router.ended and router.latest < 0:
                self._more(router)
            if router.latest >= 0 and not router.ended:
                return router
            self._close(router, pointers)
        return None

    def _more(self, router: Router) -> None:
        frames, unread = router.c.frames, router.c.unread
        self._merge.add(router.more())
        self.frames += router.c.frames - frames
        self.unread += router.c.unread - unread
        self._last = int(router.c.frame) if router.number == self._read - 1 else self._last
        if router.latest >= 0:
            self.spans[router.number] = router.first, router.latest
            self.latest = max(self.latest, router.latest)
        if router.damage:
            self.damages.append(Damage(router.path, router.damage, int(router.c.frame), router.latest))

    def _close(self, router: Router, pointers: Any) -> None:
        """Move the waiting frames of a read file to separate memory, and close the file."""
        waiting = self._merge.pending()
        own = np.flatnonzero(waiting["file"] == router.number)
        rows = waiting[own]
        room = int(rows["size"].sum(dtype=np.int64)) + len(rows) * int(HEAD_BYTES)
        self.c.file = router.number
        pointers[router.number] = kept = self.keep(router.number, self._read, room, set(waiting["file"].tolist()))
        if room:
            begin = len(kept) - room
            waiting["place"][own] = bytes_of(router.file.pointer, rows, kept + begin) + np.uint64(begin)
        router.close()
        self.closed.add(router.number)

    def gathered(
        self, read: Sequence[Gathered], chunks: Iterable[Chunk], rows: int, columns: Sequence[str]
    ) -> Iterator["PacketColumns"]:
        """Yield the packets in gathered frames. read: one item a file. chunks: ordered by low."""
        tables = [_Table(rows, columns) for _ in range(2)]
        self.damages += [file.damage for file in read if file.damage]
        self.frames, self.unread = sum(file.frames for file in read), sum(file.unread for file in read)
        self.spans = {number: file.span for number, file in enumerate(read) if file.span}
        self.closed = set(range(len(read)))
        self.latest = max((latest for _, latest in self.spans.values()), default=-1)
        files = np.zeros(64, np.uint32)  # file of each chunk; the C core treats a chunk as a file
        reader, pointers = _BatchReader(self, tables, rows, files), ffi.new("uint8_t *[]", len(files))
        held: dict[int, tuple[int, bytes]] = {}  # chunk: its last moment and data
        for number, chunk in enumerate(chunks):
            self.c.files = ffi.cast("const uint8_t *const *", pointers)
            yield from reader.read(self._merge.take(chunk.low))
            for done in [at for at, (last, _) in held.items() if last < chunk.low]:
                self.c.file = done
                pointers[done] = self.keep(done, number)
                del held[done]
            if number == len(files):
                files = reader.files = np.concatenate((files, np.zeros(number, np.uint32)))
                pointers = ffi.new("uint8_t *[]", [*pointers, *[ffi.NULL] * number])
            files[number], pointers[number] = chunk.file, ffi.from_buffer("uint8_t[]", chunk.data)
            table = np.empty(len(chunk.data) // HEAD_BYTES, ROUTED)
            head = ffi.from_buffer("mqqb_capture_routed[]", table)
            found = table[: lib.mqqb_capture_list(pointers[number], len(chunk.data), number, head)]
            found["rank"] = chunk.file
            held[number] = int(found["moment"].max()), chunk.data
            self._merge.add(found)
        self.c.files = ffi.cast("const uint8_t *const *", pointers)
        yield from reader.read(self._merge.take(None))
        reader.files = np.append(files, np.uint32(len(read) - 1))
        self.c.file, self.c.frame = len(files), read[-1].frames
        yield from reader.end()

    def begin(self) -> tuple[bool, float]:
        """Read up to the first file's first frame. Return whether the file is pcap or pcapng, and the frame's time (s
        since 1970; infinity without frames)."""
        c, file = self.c, CaptureFile(self.paths[0])
        pointers = ffi.new("uint8_t *[]", [file.pointer])
        c.files, c.capacity, c.pause = ffi.cast("const uint8_t *const *", pointers), 16, 1
        while file.read(c) == lib.MQQB_CAPTURE_PAUSE and not c.frames:
            c.pause = c.cursor + 1
        file.close()
        return bool(c.format), c.time / 1e9 if c.frames else float("inf")

    @property
    def connections(self) -> int:
        """Number of connections. Connection numbers are below it."""
        return int(self.c.connections_used)

    @property
    def queue_managers(self) -> int:
        """Highest code of a queue manager."""
        return len(self._managers)

    @property
    def queues(self) -> int:
        """Highest code of a queue."""
        return len(self._queues)

    def queue_manager(self, code: int) -> bytes:
        """Return the GUID as 16 wire bytes. Raise IndexError for an unknown code."""
        return self._managers.entry(code)[1]

    def queue(self, code: int) -> PacketQueue:
        """Return the name of a queue. Raise IndexError for an unknown code."""
        name = self._queue_names.get(code)
        if name is None:
            name = self._queue_names[code] = _queue_name(*self._queues.entry(code))
        return name

    def ends(self, first: int = 0) -> Words:
        """Return the two ends of each connection from `first` on, as words."""
        size, at = ffi.sizeof("mqqb_capture_connection"), ffi.offsetof("mqqb_capture_connection", "end")
        table = np.frombuffer(self._connections, np.uint8).reshape(-1, size)[first : self.connections]
        return table[:, at : at + 2 * ffi.sizeof("mqqb_capture_end")].copy().view(np.uint32).reshape(-1, 2, 5)


@dataclass(frozen=True, slots=True)
class PacketColumns:
    """Rows in the order in which packets become complete. All arrays have `rows` items.

    columns: {MQQB_SCAN_* or MQQB_CAPTURE_* name in lower case: uint32 array}. time: int64, ns since 1970. pointers:
    `mqqb_capture_columns *` of the arrays, for C. Optional: label_end (int32, rows + 1 items), label_text (UTF-8
    bytes), correlation_id (20 bytes a row). The batch after the next reuses the arrays: copy lasting data.
    """

    rows: int
    columns: dict[str, Words]
    time: NDArray[np.int64]
    pointers: Any
    decoder: Decoder
    label_end: NDArray[np.int32] | None = None
    label_text: NDArray[np.uint8] | None = None
    correlation_id: NDArray[np.uint8] | None = None

    def __getitem__(self, name: str) -> Words:
        return self.columns[name]


class _BatchReader:
    """Reads ordered frames into batches. files: number of the file of each chunk, if chunks are read."""

    def __init__(self, decoder: Decoder, tables: Sequence["_Table"], rows: int, files: Words | None = None) -> None:
        self._decoder, self._tables, self._turn, self.files = decoder, tables, 0, files
        decoder.c.capacity, decoder.c.columns = rows, tables[0].pointers[0]

    def read(self, order: Routed) -> Iterator[PacketColumns]:
        c = self._decoder.c
        if len(order):
            c.order, c.size, c.cursor = ffi.from_buffer("mqqb_capture_routed[]", order), len(order), 0
            yield from self._run(lib.mqqb_capture_read)

    def end(self) -> Iterator[PacketColumns]:
        c = self._decoder.c
        c.time = self._decoder.latest
        yield from self._run(lib.mqqb_capture_finish)
        if c.rows:
            yield self._batch()

    def _run(self, call: Callable[[Any], int]) -> Iterator[PacketColumns]:
        while status := call(self._decoder.c):
            if status == lib.MQQB_CAPTURE_ROWS:
                yield self._batch()
            else:
                self._decoder.grow(status)

    def _batch(self) -> PacketColumns:
        c, table = self._decoder.c, self._tables[self._turn]
        batch = table.batch(c.rows, self._decoder, self.files)
        self._turn = (self._turn + 1) % len(self._tables)
        c.rows, c.columns = 0, self._tables[self._turn].pointers[0]
        return batch


class _Table:
    """Memory for the rows of one batch."""

    def __init__(self, rows: int, columns: Sequence[str], labels: bool = False, correlations: bool = False) -> None:
        # Columns a multiple of 4 KiB apart would share cache lines.
        stride = (rows + 15) // 16 * 16 + 16
        self._words = np.empty((len(columns), stride), np.uint32)
        self._time = np.empty(rows, np.int64)
        self._label_end = np.zeros(rows + 1, np.int32) if labels else None
        self._label_text = np.empty(rows * _LABEL_BYTES + lib.MQQB_CAPTURE_LABEL, np.uint8) if labels else None
        self._correlation_id = np.empty((rows, 20), np.uint8) if correlations else None
        self._names = columns
        self.pointers = ffi.new("mqqb_capture_columns *")
        for name, words in zip(columns, self._words, strict=True):
            self.pointers.column[_NUMBERS[name]] = ffi.from_buffer("uint32_t[]", words)
        self.pointers.time = ffi.from_buffer("int64_t[]", self._time)
        if self._label_end is not None and self._label_text is not None:
            self.pointers.label_end = ffi.from_buffer("int32_t[]", self._label_end) + 1
            self.pointers.label_text = ffi.from_buffer("uint8_t[]", self._label_text)
            self.pointers.label_size = len(self._label_text)
        if self._correlation_id is not None:
            self.pointers.correlation_id = ffi.from_buffer("uint8_t[]", self._correlation_id)

    def batch(self, rows: int, decoder: Decoder, files: Words | None = None) -> PacketColumns:
        """files: number of the file of each chunk, if the column has numbers of chunks."""
        if files is not None:
            words = self._words[self._names.index("file"), :rows]
            words[:] = files[words]
        return PacketColumns(
            rows,
            {name: words[:rows] for name, words in zip(self._names, self._words, strict=True)},
            self._time[:rows],
            self.pointers,
            decoder,
            None if self._label_end is None else self._label_end[: rows + 1],
            self._label_text,
            None if self._correlation_id is None else self._correlation_id[:rows],
        )


def hosts_of(ends: Words) -> list[tuple[bytes, bytes]]:
    """Return the addresses of the two ends of each connection."""
    words = ends.copy()
    words[:, :, 4] >>= 16  # drops the port
    return list(map(tuple, words.view("V20").reshape(-1, 2).tolist()))


def is_capture(path: str) -> bool:
    """Test whether a file begins as pcap or pcapng. Raise OSError if it cannot be read."""
    return Decoder([path]).begin()[0]


def first_time(path: str) -> float:
    """Return the time of a file's first frame, s since 1970; infinity without frames. Raise OSError if unreadable."""
    return Decoder([path]).begin()[1]


def in_order(paths: Sequence[str | Path]) -> list[str]:
    """Sort files by the time of their first frame. Raise OSError if a file cannot be read."""
    names = list(map(str, paths))
    return [name for _, name in sorted(zip(each(first_time, names), names, strict=True))]


def batches(
    paths: Sequence[str | Path],
    part: int = 0,
    parts: int = 1,
    rows: int = 65536,
    columns: Sequence[str] | None = None,
    *,
    labels: bool = False,
    correlations: bool = False,
    ordered: bool = False,
) -> Iterator[PacketColumns]:
    """Yield the packets of a capture in one or more files, ordered by first frame.

    part, parts: only connections whose hash modulo parts is part. columns: None for SCAN_COLUMNS and PLACE_COLUMNS.
    ordered: paths are sorted already. Other arguments: see Decoder.batches. Memory grows with the number of
    connections, not with the files. Raise OSError if a file cannot be read. Decoder.damages lists damaged files.
    """
    if not 0 <= part < parts or rows < 16:
        raise ValueError(f"part {part} of {parts}, {rows} rows: part counts from 0, and a batch has at least 16 rows")
    columns = SCAN_COLUMNS + PLACE_COLUMNS if columns is None else tuple(columns)
    files = list(map(str, paths)) if ordered else in_order(paths)
    decoder = Decoder(files, part, parts)
    yield from decoder.batches(rows, columns, labels=labels, correlations=correlations)
