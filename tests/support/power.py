"""Disks under SQLite whose power can go, and that can fail, at any write, sync, truncation, creation or deletion.

A VFS between SQLite and the system's. What is written goes to the system's files, as to a cache that every process
sees; beside it each file has what is on the disk for certain, and what was written since and not yet synced. When the
power goes, anything may have come of the latter: nothing, all, a part in any order, a write torn at a sector or at a
byte. Names come and go in order, and are on the disk when a file is synced for the first time, or a deletion asks for
it.

A sync that fails is as on Linux: of what was to be synced any part is on the disk, the cache has all of it, and no
later sync tries again; each descriptor that was open then is told once, by a sync that does its work all the same.

SQLite makes a file longer by a zero at the end of each block behind the end that the file had when it began, whatever
another has written there since.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

from tests.support.host_world import Crash

SECTOR = 512
BLOCK = 4096
RECENT = 100
GONE = "the power is gone"
CUT, IO_ERROR, FULL = "cut", "io error", "full"


class PowerCut(Crash):
    """The power is gone: nothing may react."""


class Accident(NamedTuple):
    """What happens at the operation that is `after`th from now, of this kind or of any: CUT, or IO_ERROR or FULL, for
    so many operations in turn."""

    after: int
    what: str
    lasts: int = 1
    kind: str = ""


class Piece(NamedTuple):
    """What was asked of a file: bytes at an offset, or, if `data` is None, to be so many bytes long."""

    at: int
    data: bytes | None = None


class Inode:
    """A file, whatever its name. disk: what is on the disk for certain. loose: what may be, in order. failures: syncs
    that failed."""

    def __init__(self, disk: bytes = b"", is_new: bool = False) -> None:
        self.disk = bytearray(disk)
        self.is_new = is_new  # its name is not on the disk
        self.loose: list[Piece] = []
        self.failures = 0

    def synced(self) -> None:
        """All is on the disk."""
        for piece in self.loose:
            _apply(self.disk, piece)
        self.loose.clear()

    def lost(self, dice: random.Random) -> None:
        """A part is, and nothing will bring the rest there."""
        for piece in self.loose:
            if dice.random() < 0.5:
                _apply(self.disk, piece)
        self.loose.clear()
        self.failures += 1

    def left(self, dice: random.Random, way: str) -> bytes:
        """What may be there after the power was gone."""
        content = bytearray(self.disk)
        for piece in _surviving(self.loose, dice, way):
            _apply(content, piece)
        return bytes(content)


WAYS = ("nothing", "all", "first", "some", "sectors", "bytes")  # of what is loose: how it survives


def _surviving(loose: list[Piece], dice: random.Random, way: str) -> Iterator[Piece]:
    if way == "nothing" or not loose:
        return
    torn = dice.randrange(len(loose))
    first_only = dice.random() < 0.5
    for place, piece in enumerate(loose):
        if way == "all":
            yield piece
        elif way == "first" or (way in ("sectors", "bytes") and first_only):
            if place < torn or (place == torn and way == "first"):
                yield piece
            elif place == torn:
                yield from _torn(piece, dice, way)
        elif way == "some" or place != torn:
            if dice.random() < 0.5:
                yield piece
        else:
            yield from _torn(piece, dice, way)


def _torn(piece: Piece, dice: random.Random, way: str) -> Iterator[Piece]:
    if piece.data is None:
        return
    if way == "bytes":
        yield Piece(piece.at, piece.data[: dice.randrange(len(piece.data))])
        return
    start = 0
    while start < len(piece.data):
        end = min(start + SECTOR - (piece.at + start) % SECTOR, len(piece.data))
        if dice.random() < 0.5:
            yield Piece(piece.at + start, piece.data[start:end])
        start = end


def _apply(content: bytearray, piece: Piece) -> None:
    size = piece.at if piece.data is None else piece.at + len(piece.data)
    if len(content) < size:
        content.extend(bytes(size - len(content)))
    if piece.data is None:
        del content[piece.at :]
    else:
        content[piece.at : size] = piece.data


class Machine:
    """A machine with one folder on its disk. off: its power is gone. operations: so far."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.folder = folder
        self.dice = dice
        self.off = False
        self.operations = 0
        self.failed = 0
        self.recent: deque[str] = deque(maxlen=RECENT)
        self.cut_at = ""  # what was done to which file when the power went
        self.plan: list[Accident] = []
        self._failing: tuple[str, int] = "", 0
        self.names: dict[str, Inode] = {}
        self._on_disk: dict[str, Inode] = {}
        self._renamed: list[tuple[str, Inode | None]] = []

    # ---- what happens to it

    def goes_on(self, left: dict[str, bytes], folder: Path) -> None:
        """The power is back, with this on the disk, which the folder shows."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.off = False
        self.repaired()
        self._on_disk = {name: Inode(content) for name, content in left.items()}
        self.names = dict(self._on_disk)
        self._renamed = []
        for name, content in left.items():
            (folder / name).write_bytes(content)

    def repaired(self) -> None:
        """No accident from now on."""
        self.plan = []
        self._failing = "", 0

    def is_well(self) -> None:
        """Nor are there traces of one: all that is written is on the disk."""
        self.repaired()
        for inode in self.names.values():
            inode.synced()
            inode.is_new = False
        self._names_synced()

    def left(self, way: str) -> dict[str, bytes]:
        """Files and their contents that may be there after the power was gone."""
        entries = dict(self._on_disk)
        count = {"nothing": 0, "all": len(self._renamed)}.get(way)
        for name, inode in self._renamed[: self.dice.randint(0, len(self._renamed)) if count is None else count]:
            if inode is None:
                entries.pop(name, None)
            else:
                entries[name] = inode
        return {name: inode.left(self.dice, way) for name, inode in entries.items()}

    # ---- what is done on it

    def inode(self, name: str) -> Inode:
        """The file of this name, which is made if it is not there."""
        if name not in self.names:
            self.names[name] = Inode(is_new=True)
            self._renamed.append((name, self.names[name]))
        return self.names[name]

    def delete(self, name: str, synced: bool) -> None:
        """Take a name away."""
        if self.names.pop(name, None):
            self._renamed.append((name, None))
        if synced:
            self._names_synced()

    def sync(self, inode: Inode) -> None:
        """All of a file is on the disk, its name too."""
        inode.synced()
        if inode.is_new:
            inode.is_new = False
            self._names_synced()

    def _names_synced(self) -> None:
        for name, inode in self._renamed:
            if inode is None:
                self._on_disk.pop(name, None)
            else:
                self._on_disk[name] = inode
        self._renamed.clear()

    @contextmanager
    def operation(self, what: str, name: str, takes_room: bool = False, can_fail: bool = True) -> Iterator[None]:
        """One that changes the disk: the power may go before it is done or after, or it may fail. Raises PowerCut,
        apsw.IOError, apsw.FullError.

        can_fail: False of what SQLite does not mind if it fails, because apsw would raise that all the same."""
        if self.off:
            raise apsw.IOError(GONE)
        self.operations += 1
        self.recent.append(f"{what} {name}")
        self._meet(what, name, takes_room, can_fail)
        yield
        if self.off:
            raise PowerCut

    def _meet(self, what: str, name: str, takes_room: bool, can_fail: bool) -> None:
        """Let happen what is planned for this operation."""
        if self.plan:
            first = self.plan[0]
            if first.kind not in ("", what):
                pass
            elif first.after > 1:
                self.plan[0] = first._replace(after=first.after - 1)
            else:
                del self.plan[0]
                if first.what != CUT:
                    self._failing = first.what, first.lasts
                else:
                    self.off = True
                    self.cut_at = f"{what} {name}"
                    if self.dice.random() < 0.5:  # else when it is done
                        raise PowerCut
        kind, lasts = self._failing
        if lasts and can_fail:
            self._failing = kind, lasts - 1
            if kind == IO_ERROR:
                self.failed += 1
                self.recent.append("FAILED")
                raise apsw.IOError(f"the {what} failed")
            if takes_room:
                self.failed += 1
                self.recent.append("FULL")
                raise apsw.FullError("no room")


class Power(apsw.VFS):
    """Where the machines' disks are. Other folders are the system's."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        super().__init__("power", "unix", makedefault=True)

    def machine(self, path: str) -> Machine | None:
        """Whose file this is; None: no machine's."""
        folder = path.rpartition("/")[0]
        return next((machine for machine in self.machines if str(machine.folder) == folder), None)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is opened meanwhile is on no machine's disk, and need not pass through here."""
        apsw.set_default_vfs("unix")
        try:
            yield
        finally:
            apsw.set_default_vfs("power")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - theirs
        path = (name.filename() if isinstance(name, apsw.URIFilename) else name) or ""
        machine = self.machine(path)
        if machine is None:
            return apsw.VFSFile("unix", name, flags)
        short = path.rpartition("/")[2]
        if short not in machine.names and flags[0] & apsw.SQLITE_OPEN_CREATE:
            with machine.operation("create", short, takes_room=True):
                machine.inode(short)
        return _File(machine, short, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 - theirs
        machine = self.machine(filename)
        if machine is None:
            super().xDelete(filename, syncdir)
            return
        short = filename.rpartition("/")[2]
        with machine.operation("delete", short, can_fail=False):
            super().xDelete(filename, syncdir)
            machine.delete(short, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, machine: Machine, short: str, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._machine = machine
        self._name = short
        self._inode = machine.inode(short)
        self._failures = self._inode.failures
        self._chunk = 1
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - theirs
        try:
            with self._machine.operation("write", self._name, takes_room=True):
                super().xWrite(data, offset)
                self._inode.loose.append(Piece(offset, bytes(data)))
        except apsw.Error:
            done = self._machine.dice.randrange(len(data))
            if done and not self._machine.off:  # a part of it may have been written
                super().xWrite(data[:done], offset)
                self._inode.loose.append(Piece(offset, bytes(data[:done])))
            raise

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - theirs
        with self._machine.operation("truncate", self._name, can_fail=not self._name.endswith("-wal")):
            super().xTruncate(newsize)
            self._inode.loose.append(Piece(self.xFileSize()))

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: N802 - theirs
        if op == apsw.SQLITE_FCNTL_CHUNK_SIZE:
            self._chunk = ctypes.c_int.from_address(ptr).value
        if op != apsw.SQLITE_FCNTL_SIZE_HINT:
            return super().xFileControl(op, ptr)
        size = -(-ctypes.c_int64.from_address(ptr).value // self._chunk) * self._chunk
        was = self.xFileSize()
        with self._machine.operation("grow", self._name, takes_room=True):
            now = self.xFileSize()
            done = super().xFileControl(op, ptr)
            if self.xFileSize() != now:
                self._inode.loose.append(Piece(self.xFileSize()))
            for end in range(was // BLOCK * BLOCK + BLOCK - 1, min(now, size), BLOCK):
                super().xWrite(b"\0", end)
                self._inode.loose.append(Piece(end, b"\0"))
            return done

    def xSync(self, flags: int) -> None:  # noqa: N802 - theirs
        was_told = self._failures == self._inode.failures
        self._failures = self._inode.failures
        try:
            with self._machine.operation("sync", self._name):
                self._machine.sync(self._inode)
        except apsw.IOError:
            if not self._machine.off:
                self._inode.lost(self._machine.dice)
                self._failures = self._inode.failures
            raise
        if not was_told:
            raise apsw.IOError("a sync failed before")


@contextmanager
def power() -> Iterator[Power]:
    """Every store that is opened meanwhile, in the folder of one of the machines, is on that machine's disk."""
    vfs = Power()
    told = sys.unraisablehook
    sys.unraisablehook = lambda of: None if isinstance(of.exc_value, (apsw.Error, PowerCut)) else told(of)
    try:
        yield vfs
        gc.collect()  # connections whose end nobody waits for
    finally:
        sys.unraisablehook = told
        vfs.unregister()
