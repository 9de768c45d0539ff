"""The disk of a store: the write-ahead log, the free room, and the store's errors.

SQLite writes changes to the log first. A commit that makes the log LOG_BYTES long starts a checkpoint, which copies
the log to the database's file. The log restarts when a checkpoint has copied all of it and no reader needs it. On a
nearly full disk each checkpoint also shrinks the log.

The queue manager's quota (B-398) and the disk limit the stored messages. A reserve of the disk is kept for receives
and acknowledgements of stored messages (B-285).
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import apsw

from ordack.config.names import legible
from ordack.store.schema import FILE_NAME

LOG_BYTES = 4 << 20  # of the write-ahead log between two checkpoints
LONG_LOG_BYTES = 64 << 20  # a longer log is pinned by a reader
RESERVE_BYTES = 16 << 20  # of a disk; a small disk reserves an eighth
AMPLE_BYTES = 1 << 30  # free; such a disk is measured every DISK_S only
DISK_S = 0.5
USUAL_LOG = 4  # on a short disk the log may take this fraction (a quarter) of the reserve
SHORT_OF = 2  # a disk with less than SHORT_OF reserves free is short
BUSY_WAIT_S = 0.001  # between two tries to write; SQLite's own waits, up to 0.1, let two writers starve a third
READERS_S = 0.05  # wait for readers before the log shrinks
PINNED_S = 0.5  # between two tries to empty a pinned log
COPY_BYTES = 64 << 10  # SQLite writes less than 128 KiB at once
ROOM_BYTES = 256 << 10  # of zeros appended to the log at once
CACHE_KIB = 16 << 10  # of cached pages: pending messages are not read from the disk again
NO_SYNCS = (
    apsw.SQLITE_IOERR_READ,
    apsw.SQLITE_IOERR_SHORT_READ,
    apsw.SQLITE_IOERR_SHMOPEN,
    apsw.SQLITE_IOERR_SHMSIZE,
    apsw.SQLITE_IOERR_SHMMAP,
    apsw.SQLITE_IOERR_SHMLOCK,
)  # failures that leave the log unchanged
PIECE_BYTES = 1 << 20  # of messages moved in one transaction: the log holds their copies


class StoreError(Exception):
    """The store has refused a request. The text gives the reason. Nothing has changed, except after StoreUnknown.

    kind: the error's name between `serve` and a program, a key of KINDS; a class without a kind inherits its base's.
    decided: the commit did not happen, even if the answer was lost."""

    KINDS: ClassVar[dict[str, type[StoreError]]] = {}
    kind = "store"
    decided = False

    def __init_subclass__(cls, kind: str = "", decided: bool = False) -> None:
        if kind:
            cls.kind = kind
            cls.decided = decided
            StoreError.KINDS[kind] = cls


class StoreBusy(StoreError, kind="busy"):
    """Another process writes for longer than the busy timeout, or is the store's queue manager."""


class StoreServed(StoreBusy):
    """An `ordack serve` runs on the store, and is its only writer."""


class StoreFull(StoreError, kind="full"):
    """The disk, or the file's own limit, leaves no room."""


class StoreUnknown(StoreError, kind="unknown"):
    """The disk failed during a commit and all later attempts. After a power cut the store may have all of the change or
    nothing. The same Store or queue manager may repeat the change: it first undoes the change in doubt. Any other
    process has to look first, also if a queue manager's answer was lost.

    reason: the failure. then: advice."""

    def __init__(self, reason: str, then: str = "look, before another process makes it again") -> None:
        super().__init__(f"{reason}. It is not known whether the change was made: {then}")
        self.reason = reason
        self.then = then


class Disk(NamedTuple):
    """The disk of a store, in bytes. size: of the file system. free: for this process. file: of the database. planned:
    of the database after a checkpoint. unused: free pages in the database. log: of the write-ahead log."""

    size: int
    free: int
    file: int
    planned: int
    unused: int
    log: int


class Room(NamedTuple):
    """bytes: room for packets, none if 0 or less. reason: the limit, for people."""

    bytes: int
    reason: str


def reserve(size: int) -> int:
    """Bytes to reserve of a disk of this size."""
    return min(RESERVE_BYTES, size // 8)


def pinned_bytes(disk: Disk) -> int:
    """Bytes of the write-ahead log beyond its usual length on a short disk."""
    return max(disk.log - reserve(disk.size) // USUAL_LOG, 0)


def is_pinned(disk: Disk) -> bool:
    """Has a long log brought the room below the reserve?"""
    return disk.free < reserve(disk.size) + pinned_bytes(disk) and pinned_bytes(disk) > 0


def room(quota: int, used: int, disk: Disk, is_kept: bool = True) -> Room:
    """The room in a store. quota, used: bytes of packets. is_kept: a reader keeps a long log from restarting.

    Free pages of the database are room, but writes to them go through the log and will lengthen the file. The reserve
    contains the log's usual length, because the log returns it. Each receive lengthens a pinned log: its pinned part
    needs the same room again, and a transaction leaves half of the reserve.
    """
    free = disk.free - max(disk.planned - disk.file, 0)
    pinned = pinned_bytes(disk) if is_kept else 0
    in_the_end = free + (disk.log - pinned) + (0 if is_kept and is_pinned(disk) else disk.unused)
    kept_back = reserve(disk.size) + pinned
    spare = reserve(disk.size) // 2
    by_disk = min(in_the_end - kept_back, free - spare)
    if quota - used <= by_disk:
        return Room(
            quota - used,
            f"the quota is {quota} bytes, and {used} are kept, messages that wait for their "
            "receipt included; the setting Quota raises it",
        )
    shown, kept = (in_the_end, kept_back) if by_disk < free - spare else (free, spare)
    reason = f"disk nearly full: {megabytes(shown)} free, {megabytes(kept)} kept back"
    if is_pinned(disk):
        reason += (
            f" while a process that reads keeps the write-ahead log, {megabytes(disk.log)}, from beginning anew: "
            "`ordack status` names it"
        )
    return Room(by_disk, reason)


def megabytes(count: int) -> str:
    """Bytes as 9.9 MB, 10 MB or 10 GB."""
    number = max(count, 0) / 1e6
    if number >= 10_000:
        return f"{number / 1000:.0f} GB"
    return f"{number:.1f} MB" if number < 9.95 else f"{number:.0f} MB"


# Readers and writers, from the kernel's list of locks: opening SQLite's file `-shm` would free locks of this process.

WRITES_AT = 120  # byte of `-shm` that a writer locks (wal.c, WAL_WRITE_LOCK)
READS_AT = range(123, 128)  # a reader locks one of these bytes (WAL_READ_LOCK)
COMMAND_MAX = 200  # characters


def writer_of(database: Path) -> str:
    """The process that writes to the database now."""
    for pid, first, last in _locks(database):
        if (first, last) == (WRITES_AT, WRITES_AT):
            return "this program itself" if pid == os.getpid() else process(pid)
    return "another process"


def pinned_by(database: Path, log: int) -> str:
    """A sentence that names other processes that read the database and pin its log of `log` bytes; "" if there are
    none."""
    pids = {pid for pid, first, last in _locks(database) if set(READS_AT).intersection(range(first, last + 1))}
    readers = [process(pid) for pid in sorted(pids - {os.getpid()})]
    if not readers:
        return ""
    return (
        f"the write-ahead log has {megabytes(log)} and cannot begin anew while {' and '.join(readers)} "
        f"{'reads' if len(readers) == 1 else 'read'} {database}: if that does not end by itself, end it"
    )


def _locks(database: Path) -> Iterator[tuple[int, int, int]]:
    """The locks on `-shm`: process, first and last byte."""
    try:
        file = database.with_name(database.name + "-shm").stat()
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in locks:  # 12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120
        fields = line.split()
        if len(fields) == 8 and fields[5].rpartition(":")[2] == str(file.st_ino) and fields[7] != "EOF":
            yield int(fields[4]), int(fields[6]), int(fields[7])


def process(pid: int) -> str:
    """A process: its number, and its command if /proc shows one."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        words = []
    command = b" ".join(words).decode(errors="replace")[:COMMAND_MAX]
    shown = "".join(sign if sign.isprintable() else "?" for sign in command)  # terminals obey control characters
    return f"process {pid} ({shown})" if shown else f"process {pid}"


MOUNTS = Path("/proc/self/mountinfo")  # proc(5)
OF_ANOTHER_MACHINE = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "vboxsf", "davfs", "fuse.davfs2", "fuse.sshfs", "fuse.rclone")
)
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def file_system(folder: Path) -> str:
    """The type of the file system of a folder, as `mount` names it; "" if unknown. The folder may be missing."""
    device = 0
    for there in (folder.absolute(), *folder.absolute().parents):
        with contextlib.suppress(OSError):
            device = there.stat().st_dev
            break
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            return source.split()[0]
    return ""


def check_folder(folder: Path, may_be_anywhere: bool = False) -> int | None:
    """The size of the database in the folder; None if there is none. may_be_anywhere: accept file systems of other
    machines. Raises StoreError if the folder cannot hold a store, or holds a log without its database: SQLite would
    delete that log and its messages."""
    path = folder / FILE_NAME
    if legible(str(path)) != str(path):
        raise StoreError(f"the folder's name {str(folder)!r} is not UTF-8")
    if not may_be_anywhere and (kind := file_system(folder)) in OF_ANOTHER_MACHINE:
        raise StoreError(
            f"{folder} is on {kind}, a file system of another machine, where neither locks nor syncs can be "
            "relied on: have the store on a disk of this machine"
        )
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        size = None
    except OSError as error:
        raise StoreError(f"cannot open {path}: {error.strerror}") from None
    if not size and log_bytes(path):
        raise StoreError(
            f"{path} is {'missing' if size is None else 'empty'}, but the log {path.name}-wal holds data: mount the "
            "disk or put the file back; nothing was changed"
        )
    return size


def explained(error: apsw.Error, path: Path) -> StoreError:
    """An error of SQLite about the store's file as StoreError."""
    no_room = isinstance(error, apsw.IOError) and os.statvfs(path.parent).f_bavail == 0  # for the index of the log
    if no_room or isinstance(error, apsw.FullError):
        pinned = ""
        with contextlib.suppress(OSError):
            pinned = pinned_by(path, log) if (log := log_bytes(path)) > LOG_BYTES else ""
        full = f"{path}: the disk is full, nothing can be written until there is room again"
        return StoreFull(f"{full}; {pinned}" if pinned else full)
    if isinstance(error, apsw.BusyError):
        return StoreBusy(
            f"{path} is in use: {writer_of(path)} has been writing to it as long as this could wait. Try again when "
            "that is done, or end it"
        )
    if isinstance(error, (apsw.NotADBError, apsw.CorruptError)):
        return StoreError(f"{path} is damaged, or no store at all")
    if isinstance(error, apsw.ConnectionClosedError):
        return StoreError(f"{path} is closed: open it again, with a new Client or Store")
    if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        return StoreError(f"cannot open {path}: check the permissions of the folder and of the files in it")
    return StoreError(f"{path}: {error}")


# The write-ahead log, and its counters.

MICROSECONDS = tuple(digit * 10**power for power in range(2, 7) for digit in (1, 2, 5))  # 0.1 ms to 5 s
MESSAGES = tuple(1 << power for power in range(13))


class Spread:
    """A histogram. bounds: upper bounds of the ranges, rising; one more range has no bound. counts: by range. total:
    sum of the numbers."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, number: int) -> None:
        """Count a number."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number


class DiskWork:
    """The writes of one open store. commits: by microseconds of the disk. commit_us: of the last commit. syncs:
    SQLite's waits for the disk. checkpoints: copies of the log to the database. log_bytes: in the write-ahead log now.
    """

    def __init__(self) -> None:
        self.commits = Spread(MICROSECONDS)
        self.commit_us = 0
        self.syncs = 0
        self.checkpoints = 0
        self.log_bytes = 0


def ranges(keys: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each range of consecutive keys, from sorted keys."""
    if keys and keys[-1] - keys[0] + 1 == len(keys):  # the usual case
        return [(keys[0], keys[-1])]
    found: list[tuple[int, int]] = []
    for key in keys:
        if found and key == found[-1][1] + 1:
            found[-1] = found[-1][0], key
        else:
            found.append((key, key))
    return found


def first_piece(rows: Iterable[tuple[int, int]]) -> list[int]:
    """The first keys of (key, bytes) that one transaction may move; at least one."""
    keys: list[int] = []
    total = 0
    for key, size in rows:
        total += size
        if keys and total > PIECE_BYTES:
            break
        keys.append(key)
    return keys


def may_be_a_sync(error: apsw.Error) -> bool:
    """Can this error come from a sync? Then data may be missing on the disk for good."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) not in NO_SYNCS


def patience(timeout: float) -> Callable[[int], bool]:
    """A busy handler for SQLite that retries for `timeout` seconds."""
    until = 0.0

    def try_again(tries: int) -> bool:
        nonlocal until
        if not tries:
            until = time.monotonic() + timeout
        if time.monotonic() >= until:
            return False
        time.sleep(BUSY_WAIT_S)
        return True

    return try_again


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def log_bytes(path: Path) -> int:
    """The size of a database's log; 0 without a log. Raises OSError."""
    try:
        return _log_of(path).stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def disk_bytes(path: Path) -> tuple[int, int]:
    """The size of the path's file system, and its free bytes for this process. Raises OSError."""
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


class WriteAheadLog:
    """The write-ahead log of an open database. path: the database's file. busy: its busy handler. work: counts writes.
    failed: called after a failed checkpoint. is_synced: commits sync the log. is_kept: a reader pins the log, as far
    as is known. ends: the file of the log has little room."""

    def __init__(
        self,
        database: apsw.Connection,
        path: Path,
        busy: Callable[[int], bool],
        work: DiskWork,
        failed: Callable[[apsw.Error], None],
    ) -> None:
        self._database = database
        self._path = path
        self._busy = busy
        self._work = work
        self._failed = failed
        self._pages = 0  # in the log since its restart, as far as this object knows
        self._is_begun = log_bytes(path) > 0
        self._pinned_until = self._ample_until = 0.0  # in monotonic seconds
        self._file_bytes = 0  # of the log's file, as far as this object knows
        self.ends = False
        self.is_kept = log_bytes(path) > LOG_BYTES
        self.is_synced = True
        self._page_bytes: int = database.pragma("page_size")
        database.pragma("cache_size", -CACHE_KIB)
        database.pragma("journal_size_limit", LOG_BYTES)  # a large transaction leaves no large log behind
        database.set_wal_hook(self._after_commit)

    def write_again(self) -> None:
        """Rewrite the log unchanged; the next sync brings it to the disk. Call it in a write transaction, so that no
        other process appends to the log. Raises apsw.Error.

        After a failed sync, readers see log data that may be missing on the disk. Linux takes the data for written,
        and no later sync writes it. A power cut would lose all data after the gap, and an interrupted checkpoint would
        leave a damaged database."""
        with self._file() as file:
            size = file.xFileSize()
            for start in range(0, size, COPY_BYTES):
                file.xWrite(file.xRead(min(COPY_BYTES, size - start), start), start)

    def lengthen(self) -> None:
        """Append zeros to the log, except on a short disk: a sync of a file that grew costs up to twice as much.
        Recovery ends at the zeros. Call it in a write transaction, as `write_again`."""
        self.ends = False
        wanted = min(self._work.log_bytes + ROOM_BYTES, LOG_BYTES)
        self._file_bytes = LOG_BYTES  # after a failure: as if there were room
        with contextlib.suppress(OSError, apsw.Error):
            disk, free = disk_bytes(self._path)
            if free >= SHORT_OF * reserve(disk):
                with self._file() as file:
                    size = file.xFileSize()
                    for start in range(size, wanted, COPY_BYTES):
                        file.xWrite(bytes(min(COPY_BYTES, wanted - start)), start)
                self._file_bytes = max(size, wanted)

    @contextlib.contextmanager
    def _file(self) -> Iterator[apsw.VFSFile]:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL
        file = apsw.VFSFile(self._database.open_vfs, str(_log_of(self._path)), [flags, 0])
        try:
            yield file
        finally:
            file.xClose()

    def empty(self) -> None:
        """Copy the log to the database and shrink it, unless a reader pins it."""
        if time.monotonic() < self._pinned_until:
            return
        self._database.set_busy_handler(patience(READERS_S))
        self.is_kept = not self._copy(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if self.is_kept:
            self._pinned_until = time.monotonic() + PINNED_S
        self._database.set_busy_handler(self._busy)

    def _after_commit(self, _database: apsw.Connection, _name: str, pages: int) -> int:
        """Start a checkpoint when the log is long. On a short disk it starts earlier and shrinks the log."""
        self._work.syncs += self.is_synced
        if not self._is_begun or pages <= self._pages:
            self._work.syncs += 1  # the header of a new log has its own sync
        self._pages, self._is_begun = pages, True
        size = self._work.log_bytes = pages * self._page_bytes
        if size >= LOG_BYTES or (size >= LOG_BYTES // USUAL_LOG and time.monotonic() >= self._ample_until):
            with contextlib.suppress(OSError):
                disk, free = disk_bytes(self._path)
                self._ample_until = time.monotonic() + DISK_S * (free > AMPLE_BYTES)
                kept_back = reserve(disk)
                if free < SHORT_OF * kept_back and size >= kept_back // USUAL_LOG:
                    self.empty()
                elif size >= LOG_BYTES:
                    self._copy(apsw.SQLITE_CHECKPOINT_PASSIVE)
        margin = ROOM_BYTES // 4  # a shorter log is not worth it
        self.ends = margin <= self._work.log_bytes < LOG_BYTES and self._work.log_bytes + margin > self._file_bytes
        return apsw.SQLITE_OK

    def _copy(self, mode: int) -> bool:
        """Make a checkpoint. False after a failure; the next commit retries."""
        try:
            pages, _ = self._database.wal_checkpoint("main", mode)
        except apsw.Error as error:
            self._failed(error)
            return False
        self._work.checkpoints += 1
        self._work.syncs += 2
        if not pages:
            self._work.log_bytes, self._is_begun, self._file_bytes = 0, False, 0
        return True
