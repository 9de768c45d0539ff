"""Frames in the order in which they were captured, whatever the order in which they were written.

A tap writes a file for each direction, and a network card with several queues writes some frames late. A frame is
put in its place by its moment (mqqb_capture_routed), if it comes no more than WINDOW_NS behind later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from _mqqb import ffi, lib
from numpy.typing import NDArray

from ordack.capture.reading import CaptureFile

Routed = NDArray[Any]

WINDOW_NS: int = lib.MQQB_CAPTURE_WINDOW
ROUTED = np.dtype(
    [
        ("key", "u8"),
        ("managers", "u8", 2),
        ("place", "u8"),
        ("time", "i8"),
        ("moment", "i8"),
        ("file", "u4"),
        ("frame", "u4"),
        ("link", "u4"),
        ("size", "u4"),
        ("wire", "u4"),
        ("rank", "u4"),
    ]
)
HEAD_BYTES = ffi.sizeof("mqqb_capture_frame")
_FRAMES = 1 << 12  # that are routed at once
_KEPT_BYTES = 32 << 20  # of a file that was read, which stay in this process's memory
_STEP_BYTES = 16 << 20  # of a file that are read at once, if few frames are of port 1801


def listed(data: Any, size: int, file: int) -> Routed:
    """Gathered frames, as frames of this file."""
    rows = np.empty(size // HEAD_BYTES, ROUTED)
    return rows[: lib.mqqb_capture_list(data, size, file, ffi.from_buffer("mqqb_capture_routed[]", rows))]


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

    def __init__(self, number: int, path: str, division: tuple[int, int], end: int | None) -> None:
        """division: part, parts of mqqb_capture."""
        self.number, self.path = number, path
        self.file = CaptureFile(path)
        self.c = c = ffi.new("mqqb_capture *")
        self._pointers = ffi.new("uint8_t *[]", [self.file.pointer] * (number + 1))
        c.files, c.file, c.capacity = ffi.cast("const uint8_t *const *", self._pointers), number, 16
        c.part, c.parts = division
        c.connections_size, c.segments_size = 1, 2  # of which none is made
        self._end = self.file.size if end is None else min(end, self.file.size)
        self._table = np.empty(_FRAMES, ROUTED)
        self.latest: int = -1
        self.first: int = -1
        self.ended = False
        self._released = 0
        self.damage = ""
        lib.mqqb_capture_start(c)

    def more(self) -> Routed:
        """Some of the next frames; at first, only one is looked at."""
        c = self.c
        c.routed, c.routed_size, c.routed_used = ffi.from_buffer("mqqb_capture_routed[]", self._table), _FRAMES, 0
        c.pause = min(c.cursor + (_STEP_BYTES if c.frames else 1), max(self._end, 1))
        status = self.file.read(c)
        self.ended = status != lib.MQQB_CAPTURE_ROWS and (status != lib.MQQB_CAPTURE_PAUSE or c.cursor >= self._end)
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


def size_of(rows: Routed) -> int:
    """How many bytes `bytes_of` takes."""
    return int(rows["size"].sum(dtype=np.int64)) + len(rows) * int(HEAD_BYTES)


def earliest(routers: Sequence[Router]) -> int | None:
    """What comes later of these files has no moment before this; None: nothing comes."""
    return min((router.latest - WINDOW_NS for router in routers if not router.ended), default=None)
