"""Captures to column batches: the C core's mqqb_capture behind numpy arrays."""

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

from ordack.capture.reading import UNPACKED_MAX, CaptureFile, Tables
from ordack.config.paths import each

Words = NDArray[np.uint32]

# In the order of the enumerations in mqqb_scan.h and mqqb_capture.h.
SCAN_COLUMNS = (
    "offset", "total_size", "kind", "status", "base_flags", "time_to_reach_queue", "internal_flags", "session_offset",
    "ack_sequence_number", "recoverable_msg_ack_seq_number", "recoverable_msg_ack_flags", "user_msg_sequence_number",
    "recoverable_msg_sequence_number", "window_size", "source_offset", "message_id", "user_flags", "sent_time",
    "time_to_be_received", "destination_offset", "destination_size", "tx_flags", "tx_sequence_ordinal",
    "tx_sequence_time_stamp", "tx_sequence_number", "previous_tx_sequence_number", "properties_offset",
    "properties_flags", "message_class", "label_offset", "label_length", "body_offset", "body_size",
    "ack_tx_sequence_ordinal", "ack_tx_sequence_time_stamp", "ack_tx_sequence_number",
    "ack_previous_tx_sequence_number", "ack_source_offset", "ack_message_id",
)  # fmt: skip
PLACE_COLUMNS = (
    "file", "frame", "connection", "direction", "source_queue_manager", "destination_queue", "ack_source",
)  # fmt: skip
DETAIL_COLUMNS = (
    "queue_manager_address", "administration_queue", "response_queue", "connector_queue_manager", "security_flags",
    "sender_id_size", "encryption_key_size", "signature_size", "sender_cert_size", "provider_info_size", "body_type",
    "application_tag", "allocation_body_size", "privacy_level", "hash_algorithm", "encryption_algorithm",
    "extension_size", "body_crc", "client_guid", "server_guid", "time_stamp", "operating_system",
    "recoverable_ack_timeout", "ack_timeout", "parameters_window_size",
)  # fmt: skip
COLUMNS = SCAN_COLUMNS + PLACE_COLUMNS + DETAIL_COLUMNS
_NUMBERS = {name: number for number, name in enumerate(COLUMNS)}

_BEGINNING = 1 << 18  # bytes of what was packed that have its first frame, but for odd cases
_LABEL_BYTES = 64  # of an average label at most, before a batch is full early


class PacketQueue(NamedTuple):
    """A queue as packets name it: selector as in UserHeader.Flags.DQ, bytes of the name, format name as text.

    A private queue without a GUID is one of the receiving (in replies: of the sending) queue manager: its text has
    zeros for the GUID.
    """

    selector: int
    raw: bytes
    text: str


class Damage(NamedTuple):
    """Why a file could be read only in part, the last frame that could, and the greatest time so far, -1 if none."""

    path: str
    text: str
    frame: int
    latest: int


class Gathered(NamedTuple):
    """What a task has read of a file. frames; unread: of these, those of unknown link types; span: times of its first
    frame and its greatest one, None if it has none."""

    frames: int
    unread: int
    span: tuple[int, int] | None
    damage: Damage | None


class Chunk(NamedTuple):
    """Frames of a file that a task has gathered. low: none of these, and of chunks that follow, has a moment before
    it."""

    low: int
    file: int
    data: bytes


@cache
def structure(name: str) -> np.dtype[Any]:
    """The numpy type of a structure of the C core."""
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
_ROUTED_FRAMES = 1 << 12  # at once
_KEPT_BYTES = 32 << 20  # of a file that was read, which stay in this process's memory
_STEP_BYTES = 16 << 20  # of a file that are read at once, if few frames are of port 1801


class Merge:
    """Frames that wait for others before them."""

    def __init__(self, rows: Routed | None = None) -> None:
        self.waiting = np.empty(0, ROUTED) if rows is None else rows
        self._new: list[Routed] = []

    def add(self, rows: Routed) -> None:
        """rank: the number of the file."""
        if len(rows):
            self._new.append(rows)

    def pending(self) -> Routed:
        """All that wait, in order; to be changed in place."""
        if self._new:
            rows = np.concatenate([self.waiting, *self._new])
            self._new.clear()
            moments, ranks = rows["moment"], rows["rank"]
            if (moments[1:] < moments[:-1]).any() or (ranks != ranks[0]).any():
                rows = rows[np.lexsort((rows["frame"], ranks, moments))]
            self.waiting = rows
        return self.waiting

    def take(self, moment: int | None) -> Routed:
        """Those before this moment, in order; None: all."""
        rows = self.pending()
        cut = len(rows) if moment is None else int(np.searchsorted(rows["moment"], moment))
        self.waiting = rows[cut:]
        return rows[:cut]


class Router:
    """A file whose frames of port 1801 are looked for, from its beginning on.

    latest: the greatest time so far, -1 if there is no frame; what comes later has no moment more than WINDOW_NS before
    it. first: the time of the first frame. damage: why the file could be read only in part.
    """

    def __init__(self, number: int, path: str, part: int = 0, parts: int = 1) -> None:
        self.number, self.path = number, path
        self.file = CaptureFile(path)
        self.c = c = ffi.new("mqqb_capture *")
        self._pointers = ffi.new("uint8_t *[]", [self.file.pointer] * (number + 1))
        c.files, c.file, c.capacity = ffi.cast("const uint8_t *const *", self._pointers), number, 16
        c.part, c.parts = part, parts
        c.connections_size, c.segments_size = 1, 2  # of which none is made
        self._table = np.empty(_ROUTED_FRAMES, ROUTED)
        self.latest: int = -1
        self.first: int = -1
        self.ended = False
        self._released = 0
        self.damage = ""
        lib.mqqb_capture_start(c)

    def more(self) -> Routed:
        """Some of the next frames; at first, only one is looked at."""
        c = self.c
        c.routed, c.routed_size = ffi.from_buffer("mqqb_capture_routed[]", self._table), len(self._table)
        c.routed_used = 0
        c.pause = min(c.cursor + (_STEP_BYTES if c.frames else 1), max(self.file.size, 1))
        status = self.file.read(c)
        paused = status == lib.MQQB_CAPTURE_PAUSE and c.cursor < self.file.size
        self.ended = status != lib.MQQB_CAPTURE_ROWS and not paused
        if status < 0:
            self.damage = self.file.error(c.cursor, c.frame, status)
        elif self.ended and c.cursor >= self.file.size:
            self.damage = self.file.damage
        if c.frames:
            self.first = c.time if self.first < 0 else self.first
            self.latest = c.latest
        rows = self._table[: c.routed_used].copy()
        rows["rank"] = self.number
        return rows

    def release(self, waiting: Routed) -> None:
        """Give back the memory of what is behind, unless one of these frames is there."""
        if self.c.cursor >= self._released + _KEPT_BYTES:
            places = waiting["place"][waiting["file"] == self.number]
            self._released = int(places.min(initial=self.c.cursor))
            self.file.release(self._released)

    def close(self) -> None:
        """Nothing refers to the file any more. Raises OSError if an object in a bucket was replaced meanwhile."""
        self.file.check()
        self.file.close()


def bytes_of(pointer: Any, rows: Routed, out: Any) -> NDArray[np.uint64]:
    """Copies frames of a file to `out`, one behind the other. Returns their places there."""
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


_STATE = ("paths", "damages", "spans", "closed", "frames", "unread", "_read", "_last", "latest")  # of a Decoder


class Decoder(Tables):
    """What the codes in batches mean. It grows while batches are taken.

    paths: the files, in the order of their first frames. damages: files that could be read only in part, so far.
    frames: frames read so far; unread: those of them with a link type that is not supported, or with headers that are
    cut off. spans: {number of a file: times of its first frame and its greatest one so far, ns since 1970}, of the last
    one before those read now, and these. closed: those that are read. latest: the greatest time of all files so far.
    """

    def __init__(self, paths: Sequence[str], part: int = 0, parts: int = 1) -> None:
        super().__init__(part, parts)
        self.paths = list(paths)
        self.damages: list[Damage] = []
        self.spans: dict[int, tuple[int, int]] = {}
        self.closed: set[int] = set()
        self.frames = self.unread = 0
        self._queue_names: dict[int, PacketQueue] = {}
        self._read = self._last = 0  # files; frames of the last one
        self.latest = -1
        self._merge = Merge()

    def __getstate__(self) -> dict[str, Any]:
        """To read on elsewhere, with more paths."""
        own = {name: getattr(self, name) for name in _STATE}
        return super().__getstate__() | own | {"waiting": self._merge.waiting.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in _STATE:
            setattr(self, name, state[name])
        self._merge = Merge(state["waiting"])
        self._queue_names = {}

    def batches(
        self,
        rows: int,
        columns: Sequence[str],
        *,
        finish: bool = False,
        labels: bool = False,
        correlations: bool = False,
        hold: bool = False,
    ) -> Iterator["PacketColumns"]:
        """The packets of the paths that were added since the last call.

        rows: of a batch at most, at least 16. columns: only these. labels, correlations: labels as text and
        CorrelationID, too. finish: the capture ends there, and no path can be added. hold: frames wait for those of
        later paths.
        """
        number, self._read = self._read, len(self.paths)
        self.spans = {at: span for at, span in self.spans.items() if at == number - 1}
        self.closed &= self.spans.keys()
        pointers = ffi.new("uint8_t *[]", self._read + 1)
        for at, kept in self.kept.items():
            pointers[at] = kept
        self.c.files = ffi.cast("const uint8_t *const *", pointers)
        tables = [_Table(rows, columns, labels, correlations) for _ in range(2)]
        reader = _BatchReader(self, tables, rows)
        for order in self._ordered(number, pointers, hold and not finish):
            yield from reader.read(order)
        self.c.file, self.c.frame = max(self._read - 1, 0), self._last
        yield from reader.end(finish)

    def _ordered(self, number: int, pointers: Any, hold: bool) -> Iterator[Routed]:
        """The frames of the files from this one on, in the order of their moments."""
        active: list[Router] = []
        numbers = iter(range(number, self._read))
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
            yield self._merge.take(min(latest) - WINDOW_NS if latest else self._limit(hold))
            if router.ended:
                self._close(router, pointers)
            else:
                router.release(self._merge.waiting)
        yield self._merge.take(self._limit(hold))

    def _limit(self, hold: bool) -> int | None:
        """What has a moment before this can be read: files that follow begin at most WINDOW_NS before the latest frame,
        and have frames that belong as much before their first one."""
        return self.latest - 2 * WINDOW_NS if hold else None

    def _open(self, numbers: Iterator[int], pointers: Any) -> Router | None:
        """The next file, and its first frame; those without one are done."""
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
        """What waits of a file that was read is in memory of its own from now on."""
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
        """The packets in frames that were read elsewhere. read: of each file; chunks: in the order of their lows."""
        tables = [_Table(rows, columns) for _ in range(2)]
        self.damages += [file.damage for file in read if file.damage]
        self.frames, self.unread = sum(file.frames for file in read), sum(file.unread for file in read)
        self.spans = {number: file.span for number, file in enumerate(read) if file.span}
        self.closed = set(range(len(read)))
        self.latest = max((latest for _, latest in self.spans.values()), default=-1)
        files = np.zeros(64, np.uint32)  # of each chunk, which is a file for the C core
        reader, pointers = _BatchReader(self, tables, rows, files), ffi.new("uint8_t *[]", len(files))
        held: dict[int, tuple[int, bytes]] = {}  # chunks: their last moments
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
        yield from reader.end(True)

    def forget(self, numbers: Words) -> None:
        """Forget connections, as mqqb_capture_forget says, when all batches were taken."""
        lib.mqqb_capture_forget(self.c, ffi.from_buffer("uint32_t[]", numbers))
        self.grow(lib.MQQB_CAPTURE_GROW_DICTIONARY)  # with new indexes

    def begin(self, most: int) -> tuple[bool, float]:
        """Reads no more than the first file's first frame, and of a packed file about `most` bytes: does the file begin
        as pcap and pcapng do; the frame's time, s since 1970, infinity if there is none."""
        c, file = self.c, CaptureFile(self.paths[0], most)
        pointers = ffi.new("uint8_t *[]", [file.pointer])
        c.files, c.capacity, c.pause = ffi.cast("const uint8_t *const *", pointers), 16, 1
        while file.read(c) == lib.MQQB_CAPTURE_PAUSE and not c.frames:
            c.pause = c.cursor + 1
        file.close()
        return bool(c.format), c.time / 1e9 if c.frames else float("inf")

    @property
    def connections(self) -> int:
        """How many there are: their numbers are below."""
        return int(self.c.connections_used)

    @property
    def queue_managers(self) -> int:
        """The highest code of a queue manager."""
        return len(self._managers)

    @property
    def queues(self) -> int:
        """The highest code of a queue."""
        return len(self._queues)

    def queue_manager(self, code: int) -> bytes:
        """GUID, 16 bytes of the wire. IndexError if there is no such code."""
        return self._managers.entry(code)[1]

    def queue(self, code: int) -> PacketQueue:
        """Name of a queue. IndexError if there is no such code."""
        name = self._queue_names.get(code)
        if name is None:
            name = self._queue_names[code] = _queue_name(*self._queues.entry(code))
        return name

    def ends(self, first: int = 0) -> Words:
        """Of each connection from the first one on, its two ends as words."""
        size, at = ffi.sizeof("mqqb_capture_connection"), ffi.offsetof("mqqb_capture_connection", "end")
        table = np.frombuffer(self._connections, np.uint8).reshape(-1, size)[first : self.connections]
        return table[:, at : at + 2 * ffi.sizeof("mqqb_capture_end")].copy().view(np.uint32).reshape(-1, 2, 5)


@dataclass(frozen=True, slots=True)
class PacketColumns:
    """Rows in the order in which packets were completed. All arrays have `rows` items.

    columns: {name: uint32 array}; names are those of MQQB_SCAN_* and MQQB_CAPTURE_* in lower case. time: int64, ns
    since 1970. pointers: `mqqb_capture_columns *` of the same arrays, for C. label_end, label_text, correlation_id:
    only if wanted: int32, rows + 1 of them; bytes of UTF-8; 20 bytes a row. Arrays are used again for the batch after
    the next: copy what has to last.
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
    """Takes frames in their order, and gives batches. files: number of the file of each part, if those are files."""

    def __init__(self, decoder: Decoder, tables: Sequence["_Table"], rows: int, files: Words | None = None) -> None:
        self._decoder, self._tables, self._turn, self.files = decoder, tables, 0, files
        decoder.c.capacity, decoder.c.columns = rows, tables[0].pointers[0]

    def read(self, order: Routed) -> Iterator[PacketColumns]:
        c = self._decoder.c
        if len(order):
            c.order, c.size, c.cursor = ffi.from_buffer("mqqb_capture_routed[]", order), len(order), 0
            yield from self._run(lib.mqqb_capture_read)

    def end(self, finish: bool) -> Iterator[PacketColumns]:
        c = self._decoder.c
        if finish:
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
        # Columns a multiple of 4 KiB apart would fall on the same cache lines.
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
        """files: number of the file of each part, if those are in the column."""
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
    """The addresses of the two ends of connections."""
    words = ends.copy()
    words[:, :, 4] >>= 16  # the port goes
    return list(map(tuple, words.view("V20").reshape(-1, 2).tolist()))


def is_capture(path: str) -> bool:
    """Does this file begin as pcap and pcapng do? OSError if it cannot be read."""
    return Decoder([path]).begin(_BEGINNING)[0]


def first_time(path: str) -> float:
    """Time of a file's first frame, s since 1970; infinity if it has none. OSError if it cannot be read."""
    found = Decoder([path]).begin(_BEGINNING)[1]
    return found if found < float("inf") else Decoder([path]).begin(UNPACKED_MAX)[1]


def in_order(paths: Sequence[str | Path]) -> list[str]:
    """Files by the time of their first frame. OSError if one cannot be read."""
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
    """The packets of a capture that is in one or more files, in the order of their first frames.

    Of the connections, those whose hash modulo parts is part. columns: None for SCAN_COLUMNS and PLACE_COLUMNS.
    ordered: paths are in their order. Other arguments: as of Decoder.batches. Memory grows with the number of
    connections, not with the size of the files. OSError if a file cannot be read; Decoder.damages has what is wrong.
    """
    if not 0 <= part < parts or rows < 16:
        raise ValueError(f"part {part} of {parts}, {rows} rows: part counts from 0, and a batch has at least 16 rows")
    columns = SCAN_COLUMNS + PLACE_COLUMNS if columns is None else tuple(columns)
    files = list(map(str, paths)) if ordered else in_order(paths)
    decoder = Decoder(files, part, parts)
    yield from decoder.batches(rows, columns, finish=True, labels=labels, correlations=correlations)
