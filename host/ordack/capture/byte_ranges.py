"""Captures in ranges of bytes, each of which is read once: frames of port 1801 go where their connection is replayed.

    ranges = ranges_of(paths, 128 << 20)
    pieces, report = route(task)                # of each, anywhere, in any order
    todo, held = again(ranges, reports)         # which were read from a wrong place: route these, until there are none
    parts = parts_of(ranges, reports, held)     # for columnar.Decoder.gathered

Where the first record of a range begins is guessed from the bytes, and known when the range before it has been read:
what was guessed wrongly is read again. So what comes out is what one reader of the whole file gets, also of a damaged
one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from _mqqb import ffi, lib
from numpy.typing import NDArray

from ordack.capture import packed
from ordack.capture.columnar import Damage, Gathered
from ordack.capture.merging import HEAD_BYTES, ROUTED
from ordack.capture.reading import CaptureFile
from ordack.config.paths import each, path_of

FRAMES = 1 << 18  # that are held before their pieces are made
_SMALL = 1 << 20  # bytes of a range at least, if there are enough
_SEARCH = 1 << 20  # bytes in which the first record of a range is looked for
_CHAIN = 16  # records that have to follow one another where one is believed to begin
_PCAP_US, _PCAPNG = 1, 3  # values of mqqb_capture.format
_FRAME_MAX = 1 << 18  # bytes, as libpcap has it: larger records are read, but not guessed
_BLOCKS = {1, 2, 3, 4, 5, 6}  # of pcapng
_PIECE = 4 << 20  # bytes of a piece, unpacked, if no connection has more: a piece for each cost more than the audit
_LATER = 366 * 86400  # s that a capture may last for its records to be guessed


class State(NamedTuple):
    """What a file's records mean: how it began, and the interfaces that it has named so far."""

    format: int
    swapped: int
    interfaces: bytes


class Range(NamedTuple):
    """Records that begin from `begin` up to `end` (None: all others) of a file. size: bytes. at, state: where the first
    one begins and what was read before it, if that is known. version: of an object in a bucket."""

    file: int
    path: str
    begin: int
    end: int | None
    size: int
    at: int | None = None
    state: State | None = None
    version: str = ""


class Report(NamedTuple):
    """What was found in a range. at, state: where it was read from, -1: nowhere; stop, then: where the next record
    begins, and what is known there. times: of the first frame, and the greatest one. error: of the file at stop.
    bytes_read: of it.
    connections: key, pair and bytes, in rows; managers: key and two queue managers of it."""

    at: int
    stop: int
    state: State | None
    then: State | None
    frames: int
    unread: int
    times: tuple[int, int] | None
    error: str
    bytes_read: int
    connections: NDArray[np.uint64]
    managers: NDArray[np.uint64]


class Piece(NamedTuple):
    """Frames of some connections, packed. chunk: number of those that were read together. low: the first moment of
    their frames, by what is known of this range alone. connections: key and bytes, in rows, in the order in which they
    are there, unpacked."""

    chunk: int
    low: int
    connections: NDArray[np.uint64]
    packed: bytes


class Places(NamedTuple):
    """Connections, by their keys in order, and the share that each one is of."""

    keys: NDArray[np.uint64]
    shares: NDArray[np.int64]


def ranges_of(paths: Sequence[str], count: int, most: int) -> list[Range]:
    """So many of the same size, if that is not more than `most` bytes; a packed file is one. OSError if a file cannot
    be read."""

    def look(path: str) -> tuple[bool, int, str]:
        with path_of(path).open("rb") as opened:
            version = getattr(getattr(opened, "raw", None), "version", "")
            return packed.is_packed(opened.read(4)), opened.seek(0, 2), version

    seen = each(look, paths)
    size = range_bytes(sum(one for _, one, _ in seen), count, most)
    found: list[Range] = []
    for file, (path, (single, own, version)) in enumerate(zip(paths, seen, strict=True)):
        number = 1 if single else max(1, round(own / size))
        marks = [own * at // number for at in range(number + 1)]
        found += [Range(file, path, begin, end, end - begin, version=version) for begin, end in pairwise(marks)]
        found[-1] = found[-1]._replace(end=None)
    return found


def range_bytes(total: int, count: int, most: int) -> int:
    """Of so many ranges of `total` bytes together: not few, and not more than `most`."""
    return max(1, min(most, max(_SMALL, total // count)))


def unpacked(size: int, data: bytes) -> bytes:
    """Frames, so many bytes."""
    raw: bytes = pa.Codec("lz4_raw").decompress(data, size, asbytes=True)
    return raw


def _packed(data: Any) -> bytes:
    raw: bytes = pa.Codec("lz4_raw").compress(data, asbytes=True)
    return raw


def divided(connections: NDArray[np.uint64], data: bytes, places: Places) -> Iterator[tuple[int, int, bytes]]:
    """What the shares get of a piece: share, size, packed frames. Connections without a place go to none."""
    if not len(places.keys):
        return
    keys, sizes = connections[:, 0], connections[:, 1].astype(np.int64)
    at = np.minimum(np.searchsorted(places.keys, keys), len(places.keys) - 1)
    shares = np.where(places.keys[at] == keys, places.shares[at], -1)
    used = np.unique(shares)
    if len(used) == 1:
        if used[0] >= 0:
            yield int(used[0]), int(sizes.sum()), data
        return
    raw = memoryview(unpacked(int(sizes.sum()), data))
    ends = np.cumsum(sizes)
    for share in used[used >= 0].tolist():
        own = np.flatnonzero(shares == share)
        found = b"".join(raw[end - size : end] for end, size in zip(ends[own].tolist(), sizes[own].tolist()))
        yield share, len(found), _packed(found)


class _Reader:
    """A mqqb_capture that routes."""

    def __init__(self, task: Range) -> None:
        self._task = task
        self._file = file = CaptureFile(task.path, version=task.version)
        self.c = c = ffi.new("mqqb_capture *")
        self._table = np.empty(FRAMES, ROUTED)
        self._pointers = ffi.new("uint8_t *[]", [file.pointer])
        c.files, c.size, c.capacity = ffi.cast("const uint8_t *const *", self._pointers), file.size, 16
        c.routed, c.routed_size = ffi.from_buffer("mqqb_capture_routed[]", self._table), FRAMES
        c.connections_size, c.segments_size = 1, 2  # of which none is made
        self._connections: list[NDArray[np.uint64]] = [np.zeros((0, 3), np.uint64)]
        self._managers = self._connections.copy()
        self._out = np.empty(0, np.uint8)
        self._chunk = 0
        lib.mqqb_capture_start(c)

    def state(self) -> State:
        c = self.c
        used = c.interfaces_used if c.format == _PCAPNG else 1
        return State(c.format, c.swapped, bytes(ffi.buffer(c.interfaces, used * ffi.sizeof("mqqb_capture_interface"))))

    def _restore(self, at: int, state: State | None) -> None:
        c = self.c
        c.cursor, c.frame, c.frames, c.unread, c.routed_used, c.latest = at, 0, 0, 0, 0, 0
        if state is not None:
            c.started, c.format, c.swapped = 1, state.format, state.swapped
            size = ffi.sizeof("mqqb_capture_interface")
            c.interfaces_used = len(state.interfaces) // size if state.format == _PCAPNG else 0
            ffi.memmove(c.interfaces, state.interfaces, len(state.interfaces))

    def _start(self) -> tuple[bool, int]:
        """To the first record of the range: is it found; bytes read for that."""
        c, task = self.c, self._task
        if task.at is not None or not task.begin:
            self._file.go_to(task.at or 0, task.end)
            self._restore(task.at or 0, task.state)
            return True, 0
        c.pause = 1
        while self._file.read(c) == lib.MQQB_CAPTURE_PAUSE and not c.frames and c.cursor < task.begin:
            c.pause = c.cursor + 1
        head, state = int(c.cursor), self.state()
        near = c.time // 10**9
        if not c.frames:
            return False, head
        self._file.go_to(task.begin, task.end)
        data = self._file.bytes_at(task.begin, _SEARCH)
        whole = task.begin + len(data) == self._file.size
        found = _first_block(data, state, whole) if state.format == _PCAPNG else _first_record(data, state, whole, near)
        if found is not None:
            self._restore(task.begin + found, state)
        return found is not None, head

    def run(self) -> Iterator[Piece | Report]:
        c, task = self.c, self._task
        found, probed = self._start()
        if not found:
            read = probed if self._file.fetched is None else self._file.fetched
            yield Report(-1, -1, None, None, 0, 0, None, "", read, self._connections[0], self._managers[0])
            return
        at, state = int(c.cursor), self.state() if c.started else None
        end = 1 << 63 if task.end is None else task.end
        c.pause, times, status = min(at + 1, end), None, 0
        while True:
            status = self._file.read(c)
            if c.frames:
                times = (c.time if times is None else times[0], c.latest)
            if status == lib.MQQB_CAPTURE_ROWS:
                yield from self._pieces()
            elif status != lib.MQQB_CAPTURE_PAUSE or c.cursor >= end:
                break
            else:
                c.pause = end if c.frames else min(end, c.cursor + 1)
        yield from self._pieces()
        error = self._file.error(c.cursor, -1, status) if status < 0 else ""
        if not error and self._file.damage and c.cursor >= self._file.size:
            error = self._file.damage
        stop, then = int(c.cursor), self.state()
        read = probed + stop - at if self._file.fetched is None else self._file.fetched
        self._file.check()
        self._file.close()
        told = np.concatenate(self._connections), np.concatenate(self._managers)
        yield Report(at, stop, state, then, c.frames, c.unread, times, error, read, *told)

    def _pieces(self) -> Iterator[Piece]:
        """The frames so far, by connection."""
        used = self.c.routed_used
        if not used:
            return
        self.c.routed_used = 0
        rows = self._table[:used]
        order = _by_key(rows["key"])
        keys = rows["key"][order]
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        sizes = rows["size"][order].astype(np.int64) + HEAD_BYTES
        ends = np.cumsum(sizes)
        taken = np.add.reduceat(sizes, begins).astype(np.uint64)
        connections = np.stack([keys[begins], rows["pair"][order[begins]], taken], axis=1)
        self._connections.append(connections)
        named = rows[["key", "managers"]][rows["managers"].any(axis=1)]
        told = np.column_stack([named["key"], np.sort(named["managers"], axis=1)])
        told = told[_by_key(told[:, 0])]
        new = np.concatenate([[True], (told[1:] != told[:-1]).any(axis=1)])[: len(told)]
        self._managers.append(np.unique(told[new], axis=0))
        if len(self._out) < ends[-1]:
            self._out = np.empty(int(ends[-1]) * 5 // 4, np.uint8)
        lib.mqqb_capture_gather(
            self._file.pointer, self.c.routed, ffi.from_buffer("uint32_t[]", order), used,
            ffi.from_buffer("uint8_t[]", self._out),
        )  # fmt: skip
        behind = np.cumsum(taken)
        cuts = np.flatnonzero(np.diff((behind - taken) // np.uint64(_PIECE))) + 1
        begin, low = 0, int(rows["moment"].min())
        for own in np.split(connections[:, ::2], cuts):
            end = begin + int(own[:, 1].sum())
            yield Piece(self._chunk, low, own, _packed(self._out[begin:end]))
            begin = end
        self._chunk += 1
        self._file.release(self.c.cursor)


def _by_key(keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """An order in which the same ones are together, but for few, and keep theirs: by some of their bits, fast."""
    order = np.argsort((keys >> np.uint64(48)).astype(np.uint16), kind="stable")
    low = (keys >> np.uint64(32)).astype(np.uint16)
    return order[np.argsort(low[order], kind="stable")].astype(np.uint32)


def _first_record(data: bytes, state: State, whole: bool, near: int) -> int | None:
    """Of a pcap file; near: s since 1970."""
    head = struct.Struct(">IIII" if state.swapped else "<IIII")
    parts = 10**6 if state.format == _PCAP_US else 10**9

    def is_record(at: int) -> int:
        seconds, fraction, size, wire = head.unpack_from(data, at)
        credible = fraction < parts and 0 < size <= min(wire, _FRAME_MAX) and -86400 <= seconds - near <= _LATER
        return size + 16 if credible else 0

    return _first(len(data), 16, whole, is_record)


def _first_block(data: bytes, state: State, whole: bool) -> int | None:
    """Of a pcapng file."""
    head = struct.Struct(">II" if state.swapped else "<II")
    tail = struct.Struct(">I" if state.swapped else "<I")

    def is_block(at: int) -> int:
        kind, size = head.unpack_from(data, at)
        if kind not in _BLOCKS or size % 4 or not 12 <= size <= _FRAME_MAX:
            return 0
        return 0 if at + size <= len(data) and tail.unpack_from(data, at + size - 4)[0] != size else size

    return _first(len(data), 8, whole, is_block)


def _first(size: int, room: int, whole: bool, measure: Callable[[int], int]) -> int | None:
    """The first place from which records follow one another: so many, or up to the file's end."""
    for begin in range(size):
        at, count = begin, 0
        while at + room <= size and count < _CHAIN:
            length = measure(at)
            if not length:
                break
            at += length
            count += 1
        if count == _CHAIN or (count and (at == size if whole else at + room > size)):
            return begin
    return None


def route(task: Range) -> Iterator[Piece | Report]:
    """Read a range: pieces, and at last the report. OSError if the file cannot be read."""
    return _Reader(task).run()


def again(ranges: Sequence[Range], reports: Mapping[int, Report]) -> tuple[dict[int, Range], list[int]]:
    """Ranges, by number, that have to be read once more, from where they do begin; and numbers of those that hold."""
    todo: dict[int, Range] = {}
    held: list[int] = []
    file, at, state, known, over = -1, 0, None, True, False
    for number, task in enumerate(ranges):
        report = reports[number]
        if task.file != file:
            file, at, state, known, over = task.file, 0, report.state, True, False
        if over or (known and task.end is not None and at >= task.end):
            continue  # nothing begins in it
        if known and report.at == at and report.state == state:
            held.append(number)
            at, state, over = report.stop, report.then, bool(report.error)
        elif known:
            todo[number] = task._replace(at=at, state=state)
            known = False
        elif report.at >= 0 and report.state != state:  # behind one that is read again: what is known by now
            todo[number] = task._replace(at=report.at, state=state)
    return todo, held


def parts_of(ranges: Sequence[Range], reports: Mapping[int, Report], held: Sequence[int]) -> list[Gathered]:
    """The ranges that hold, as columnar.Decoder.gathered needs them."""
    spans: dict[int, tuple[int, int]] = {}
    parts: list[Gathered] = []
    for number in held:
        report, task = reports[number], ranges[number]
        before = [part for part in parts[-1:] if part.file == task.file]
        frames_before = sum(part.frames_before + part.frames for part in before)
        latest = spans.get(task.file, (-1, -1))[1]
        first, last = report.times or (-1, -1)
        if report.times:
            spans[task.file] = spans.get(task.file, (first, -1))[0], max(latest, last)
        text = report.error.replace("behind frame -1:", f"behind frame {frames_before + report.frames}:")
        damage = Damage(task.path, text, frames_before + report.frames, max(latest, last)) if text else None
        parts.append(Gathered(task.file, frames_before, report.frames, report.unread, latest, None, damage))
    return [part._replace(span=spans.get(part.file)) for part in parts]
