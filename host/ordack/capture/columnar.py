"""Captures to column batches: the C core's mqqb_capture behind numpy arrays."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _mqqb import ffi, lib
from mqqb import guid_names, guids
from mqqb import names as wire_names
from numpy.typing import NDArray

from ordack.capture import packed
from ordack.capture.reading import CaptureFile, Tables
from ordack.paths import each

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

_WINDOW = 64 << 20  # bytes of a file that stay in this process's memory behind the place that is read
_BEGINNING = 1 << 18  # bytes of what was packed that have its first frame, but for odd cases
_SAMPLE = 16 << 20  # bytes that decide how connections are divided
_LABEL_BYTES = 64  # of an average label at most, before a batch is full early


class QueueName(NamedTuple):
    """A queue as packets name it: selector as in UserHeader.Flags.DQ, bytes of the name, format name as text.

    A private queue without a GUID is one of the receiving (in replies: of the sending) queue manager: its text has
    zeros for the GUID.
    """

    selector: int
    raw: bytes
    text: str


class Damage(NamedTuple):
    """Why a file could be read only in part, and the last frame that could."""

    path: str
    text: str
    frame: int


class Gathered(NamedTuple):
    """A part of a file whose frames were read elsewhere. before, frames_before: frames of the capture and of the file
    before it; frames: of it; unread: of these, those of unknown link types; span: times of the file's first and last
    frames, None if it has none; damage: behind this part, nothing of the file can be read."""

    file: int
    before: int
    frames_before: int
    frames: int
    unread: int
    span: tuple[int, int] | None
    damage: Damage | None


def _with_ends(
    parts: Sequence[Gathered], frames: Callable[[int], Iterable[bytes]]
) -> Iterator[tuple[Gathered | None, bytes]]:
    """The frames of each part, then b"" for its end; at last None."""
    for number, part in enumerate(parts):
        for data in frames(number):
            yield part, data
        yield part, b""
    yield None, b""


def places_of(data: bytes) -> NDArray[np.uint64]:
    """Places of frames that were gathered, in the order of their numbers."""
    most = len(data) // ffi.sizeof("mqqb_capture_frame")
    places, frames = np.empty(most, np.uint64), np.empty(most, np.uint32)
    count = lib.mqqb_capture_places(
        ffi.from_buffer("uint8_t[]", data), len(data),
        ffi.from_buffer("uint64_t[]", places), ffi.from_buffer("uint32_t[]", frames),
    )  # fmt: skip
    return places[:count][np.argsort(frames[:count], kind="stable")]


def _queue_name(selector: int, raw: bytes) -> QueueName:
    name: wire_names.QueueName
    if selector == 7:
        name = wire_names.DirectQueueFormatName("", raw)
    elif selector == 5:
        name = guid_names.PublicQueueFormatName(raw)
    elif selector == 6:
        name = guid_names.PrivateQueueFormatName(raw[:16], int.from_bytes(raw[16:], "little"))
    else:
        name = guid_names.PrivateQueueFormatNameId(int.from_bytes(raw, "little"))
    return QueueName(selector, raw, guids.format_name(name))


class Decoder(Tables):
    """What the codes in batches mean. It grows while batches are taken.

    paths: the files, in the order of their first frames. damages: files that could be read only in part, so far.
    frames: frames read so far; unread: those of them with a link type that is not supported, or with headers that are
    cut off. spans: {number of a file: times of its first and of its last frame so far, ns since 1970}, of the last one
    before those read now, and these.
    """

    def __init__(self, paths: Sequence[str], part: int, parts: int, by_ports: bool) -> None:
        super().__init__(part, parts, by_ports)
        self.paths = list(paths)
        self.damages: list[Damage] = []
        self.spans: dict[int, tuple[int, int]] = {}
        self._queue_names: dict[int, QueueName] = {}
        self._read = 0

    def __getstate__(self) -> dict[str, Any]:
        """To read on elsewhere, with more paths."""
        own = {"paths": self.paths, "damages": self.damages, "read": self._read, "spans": self.spans}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.paths, self.damages, self._read = state["paths"], state["damages"], state["read"]
        self.spans = state["spans"]
        self._queue_names = {}

    def batches(
        self, tables: Sequence["_Table"], rows: int, stop: int | None = None, finish: bool = True
    ) -> Iterator["Batch"]:
        """The batches of all files, or of the first `stop` bytes of each. finish: nothing follows.

        If something does: add it to paths, and call this again.
        """
        c = self.c
        number, self._read = self._read, len(self.paths)
        self.spans = {at: span for at, span in self.spans.items() if at == number - 1}
        pointers = ffi.new("uint8_t *[]", self._read + 1)
        for at, kept in self.kept.items():
            pointers[at] = kept
        c.files, c.capacity = ffi.cast("const uint8_t *const *", pointers), rows
        turn, end, begun = 0, 0, 0
        file = None
        c.columns = tables[0].pointers[0]
        while number < self._read + finish:
            if number < self._read:
                if file is None:
                    file = CaptureFile(self.paths[number])
                    pointers[number] = file.pointer
                    c.file, c.pause = number, 1
                    end = file.size if stop is None else stop
                    begun = c.frames
                status = file.read(c)
                file.release(c.cursor)
                if c.frames > begun:
                    self.spans[number] = self.spans.get(number, (c.time, 0))[0], c.time
            else:
                status = lib.mqqb_capture_finish(c)
            if status == lib.MQQB_CAPTURE_ROWS:
                yield tables[turn].batch(c.rows, self)
                c.rows = 0
                turn = (turn + 1) % len(tables)
                c.columns = tables[turn].pointers[0]
            elif status == lib.MQQB_CAPTURE_PAUSE and c.cursor < end:
                c.pause = min(c.cursor + (_WINDOW if number in self.spans else 1), end)
            elif status in (lib.MQQB_CAPTURE_END_OF_FILE, lib.MQQB_CAPTURE_PAUSE) or status < 0:
                if status < 0:
                    assert file is not None
                    text = file.error(c.cursor, c.frame, status)
                    self.damages.append(Damage(self.paths[number], text, c.frame))
                if file is not None and file.damage and status >= 0 and c.cursor >= file.size:
                    self.damages.append(Damage(self.paths[number], file.damage, c.frame))
                if file is not None:
                    if end == file.size:
                        file.check()
                    pointers[number] = self.keep(number)
                    file.close()
                file = None
                number += 1
                c.cursor = c.started = 0
            else:
                self.grow(status)
        if c.rows:
            yield tables[turn].batch(c.rows, self)
            c.rows = 0

    def gathered(
        self,
        parts: Sequence["Gathered"],
        frames: Callable[[int], Iterable[bytes]],
        tables: Sequence["_Table"],
        rows: int,
    ) -> Iterator["Batch"]:
        """The batches of frames that were read elsewhere. parts: all of the capture, in order, whether frames came of
        them or not; frames: of one of them, as byte_ranges made them."""
        c = self.c
        files = np.zeros(len(parts), np.uint32)  # of what has a number in kept
        pointers = ffi.new("uint8_t *[]", len(files))
        c.capacity, c.columns, c.started, c.pause = rows, tables[0].pointers[0], 1, (1 << 64) - 1
        turn = 0
        for number, (part, data) in enumerate(_with_ends(parts, frames)):
            if number == len(files):
                files = np.concatenate((files, np.zeros(number, np.uint32)))
                more = ffi.new("uint8_t *[]", len(files))
                ffi.memmove(more, pointers, ffi.sizeof(pointers))
                pointers = more
            c.files = ffi.cast("const uint8_t *const *", pointers)
            if part is not None:
                order = places_of(data)
                pointer, places = ffi.from_buffer("uint8_t[]", data), ffi.from_buffer("uint64_t[]", order)
                files[number], pointers[number], c.order = part.file, pointer, places
                c.file, c.size, c.cursor = number, len(order), 0
                c.before, c.frames_before = part.before, part.frames_before
                c.behind = 0 if data else part.before + part.frames
                if part.span is not None:
                    self.spans[part.file] = part.span
            while status := (lib.mqqb_capture_read if part is not None else lib.mqqb_capture_finish)(c):
                if status == lib.MQQB_CAPTURE_ROWS:
                    yield tables[turn].batch(c.rows, self, files)
                    c.rows = 0
                    turn = (turn + 1) % len(tables)
                    c.columns = tables[turn].pointers[0]
                else:
                    self.grow(status)
            if part is None:
                break
            pointers[number] = self.keep(number)
            if not data:
                c.unread += part.unread
                self.damages.extend([part.damage] if part.damage else [])
        if c.rows:
            yield tables[turn].batch(c.rows, self, files)
            c.rows = 0
        c.frames = parts[-1].before + parts[-1].frames if parts else 0

    def forget(self, numbers: Words) -> None:
        """Forget connections, as mqqb_capture_forget says, when all batches were taken."""
        lib.mqqb_capture_forget(self.c, ffi.from_buffer("uint32_t[]", numbers))
        self.grow(lib.MQQB_CAPTURE_GROW_DICTIONARY)  # with new indexes

    def pairs(self) -> NDArray[np.uint64]:
        """Of each connection, the number of its two hosts, as byte_ranges has it."""
        found = self.c.connections
        return np.array([lib.mqqb_capture_pair(found + number) for number in range(self.connections)], np.uint64)

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
    def frames(self) -> int:
        return int(self.c.frames)

    @property
    def unread(self) -> int:
        return int(self.c.unread)

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

    def queue(self, code: int) -> QueueName:
        """Name of a queue. IndexError if there is no such code."""
        name = self._queue_names.get(code)
        if name is None:
            name = self._queue_names[code] = _queue_name(*self._queues.entry(code))
        return name

    def ends(self, first: int = 0) -> tuple[Words, NDArray[np.bool_]]:
        """Of each connection from the first one on, its two ends as words, and whether its SYN was seen."""
        size, at = ffi.sizeof("mqqb_capture_connection"), ffi.offsetof("mqqb_capture_connection", "end")
        table = np.frombuffer(self._connections, np.uint8).reshape(-1, size)[first : self.connections]
        words = table[:, at : at + 2 * ffi.sizeof("mqqb_capture_end") + 4].copy().view(np.uint32)
        return words[:, :-1].reshape(-1, 2, 5), (words[:, -1] & 1).astype(bool)


@dataclass(frozen=True, slots=True)
class Batch:
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


class _Table:
    """Memory for the rows of one batch."""

    def __init__(self, rows: int, columns: Sequence[str], labels: bool, correlations: bool) -> None:
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

    def batch(self, rows: int, decoder: Decoder, files: Words | None = None) -> Batch:
        """files: number of the file of each part, if those are in the column."""
        if files is not None:
            words = self._words[self._names.index("file"), :rows]
            words[:] = files[words]
        return Batch(
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
    return Decoder([path], 0, 1, False).begin(_BEGINNING)[0]


def first_time(path: str) -> float:
    """Time of a file's first frame, s since 1970; infinity if it has none. OSError if it cannot be read."""
    found = Decoder([path], 0, 1, False).begin(_BEGINNING)[1]
    return found if found < float("inf") else Decoder([path], 0, 1, False).begin(packed.UNPACKED_MAX)[1]


def in_order(paths: Sequence[str | Path]) -> list[str]:
    """Files by the time of their first frame. OSError if one cannot be read."""
    names = list(map(str, paths))
    return [name for _, name in sorted(zip(each(first_time, names), names, strict=True))]


def divides_by_ports(paths: Sequence[str], parts: int) -> bool:
    """Is the traffic of too few hosts to be divided by them? Told from the beginnings of three of the files."""
    if parts <= 1:
        return False
    pairs: Counter[frozenset[bytes]] = Counter()
    counts = np.zeros(0, np.int64)
    chosen = sorted({0, len(paths) // 2, len(paths) - 1})
    decoder = Decoder([paths[number] for number in chosen], 0, 1, False)
    for batch in decoder.batches([_Table(1 << 14, ("connection",), False, False)], 1 << 14, _SAMPLE // len(chosen)):
        found = np.bincount(batch["connection"], minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    for hosts, count in zip(hosts_of(decoder.ends()[0]), counts.tolist(), strict=False):  # the last may have no rows
        pairs[frozenset(hosts)] += count
    return bool(pairs) and max(pairs.values()) * 2 * parts > pairs.total()


def batches(
    paths: Sequence[str | Path],
    part: int = 0,
    parts: int = 1,
    rows: int = 65536,
    columns: Sequence[str] | None = None,
    *,
    labels: bool = False,
    correlations: bool = False,
    by_ports: bool | None = None,
    ordered: bool = False,
) -> Iterator[Batch]:
    """The packets of a capture that is in one or more files, in the order of their first frames.

    Of the connections, those whose hash modulo parts is part; by_ports: ports count for the hash (None: found out, the
    same in all parts). rows: of a batch at most, at least 16. columns: only these; None: those of SCAN_COLUMNS and
    PLACE_COLUMNS. labels, correlations: labels as text and CorrelationID, too. ordered: paths are in their order.
    Memory grows with the number of connections, not with the size of the files. OSError if a file cannot be read; what
    is wrong in it is in Decoder.damages.
    """
    if not 0 <= part < parts or rows < 16:
        raise ValueError(f"part {part} of {parts}, {rows} rows: part counts from 0, and a batch has at least 16 rows")
    columns = SCAN_COLUMNS + PLACE_COLUMNS if columns is None else tuple(columns)
    files = list(map(str, paths)) if ordered else in_order(paths)
    if by_ports is None:
        by_ports = divides_by_ports(files, parts)
    yield from read_on(Decoder(files, part, parts, by_ports), rows, columns, True, labels, correlations)


def read_on(
    decoder: Decoder,
    rows: int,
    columns: Sequence[str],
    finish: bool = False,
    labels: bool = False,
    correlations: bool = False,
) -> Iterator[Batch]:
    """The packets of the paths that were added to this decoder since it was made, or since this was called last.

    finish: the capture ends there, and nothing can be added any more.
    """
    yield from decoder.batches([_Table(rows, columns, labels, correlations) for _ in range(2)], rows, finish=finish)


def gathered(
    paths: Sequence[str],
    parts: Sequence[Gathered],
    frames: Callable[[int], Iterable[bytes]],
    rows: int,
    columns: Sequence[str],
) -> Iterator[Batch]:
    """The packets in frames that were read elsewhere, as Decoder.gathered has it. paths: in their order."""
    tables = [_Table(rows, columns, labels=False, correlations=False) for _ in range(2)]
    yield from Decoder(paths, 0, 1, False).gathered(parts, frames, tables, rows)
