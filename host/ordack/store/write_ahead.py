"""The write-ahead log of a store: who waits for whom, how long the log gets, and where its content will go.

SQLite writes all changes to the log first, and copies them to the database's file later, in a checkpoint: in a commit,
or beside it (`Checkpoints`). The log begins anew only when a checkpoint has copied all of it and nobody reads from it
any more. Two things keep a full disk from being the end of a store: what is in the log has its place in the database's
file already, so that a checkpoint needs no room; and where the disk is nearly full, the log gives its room back after
each checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from ordack.store.counters import DiskWork
from ordack.store.processes import is_read
from ordack.store.room import AMPLE_BYTES, DISK_S, LOG_BYTES, SERVED_LOG_BYTES, USUAL_LOG, reserve

# Checkpoints beside the writer. A connection of its own copies the log to the file while the writer goes on; only for
# the last part the writer is kept out, and the log begins anew. A log that grows faster than it can be copied is cut
# short at MOST times its usual size. A sync that fails here is told to the writer, whose next transaction fails; until
# it has made sure of the log (`Database._end_doubt`) nothing more is copied. No checkpoint begins while a writer makes
# the file longer (`FileTurn`), and when one begins all that it copies has its place in the file.
MOST = 8  # times SERVED_LOG_BYTES
REST = 8  # the part of SERVED_LOG_BYTES that may be left to copy while the writer is kept out
WAIT_S = 0.02  # for the writer, and then with the writer kept out for readers; another time if that is not enough
LOCKED = (
    "another process has been copying its write-ahead log as long as this could wait. Try again when that is done, "
    "or end it"
)
NO_SYNCS = (
    apsw.SQLITE_IOERR_READ,
    apsw.SQLITE_IOERR_SHORT_READ,
    apsw.SQLITE_IOERR_SHMOPEN,
    apsw.SQLITE_IOERR_SHMSIZE,
    apsw.SQLITE_IOERR_SHMMAP,
    apsw.SQLITE_IOERR_SHMLOCK,
)  # failures after which the log is as it was


def may_be_a_sync(error: apsw.Error) -> bool:
    """May this have been a sync that failed? Then what was to be synced may be missing on the disk for good."""
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) not in NO_SYNCS


class FileTurn:
    """Whose turn it is, among all processes and threads that write, to change the length of the database's file.

    SQLite makes a file longer by a zero at the end of each block, from the end on that it saw when it began. A
    checkpoint may write pages there meanwhile, because one before it can have made the file shorter than what is
    committed; the zeros would damage them. Each object is one contender; a thread has its own."""

    def __init__(self, folder: Path, busy: Callable[[int], bool] = lambda _tries: False) -> None:
        """busy: a busy handler, as SQLite calls one."""
        self._folder = folder
        self._busy = busy
        self._has_it = False

    @contextlib.contextmanager
    def mine(self) -> Iterator[None]:
        """Inside it is mine. Nests. Raises apsw.LockedError if another has it for too long, apsw.CantOpenError."""
        if self._has_it:
            yield
            return
        try:
            descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise apsw.CantOpenError(f"{self._folder}: {error.strerror}") from None
        try:
            self._wait(descriptor)
            self._has_it = True
            try:
                yield
            finally:
                self._has_it = False
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may keep the file open
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int) -> None:
        tries = 0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not self._busy(tries):
                    raise apsw.LockedError(LOCKED) from None
                tries += 1
            else:
                return


def needed(database: apsw.Connection, page_bytes: int) -> int:
    """Bytes that the database's file has when the log is in it. Raises apsw.Error."""
    pages: int = database.execute("PRAGMA page_count").get
    return pages * page_bytes


def keep_place(database: apsw.Connection, size: int) -> None:
    """Make the database's file so long, if it is not. In the caller's turn; raises apsw.Error."""
    hint = ctypes.c_int64(size)
    database.file_control("main", apsw.SQLITE_FCNTL_SIZE_HINT, ctypes.addressof(hint))


class Checkpoints:
    """Of the database in that file. done: how many there were. failure: why there are no more until the writer has
    taken it from here. held: the writer does not know what of its log is on the disk, so none is to be made."""

    def __init__(self, path: Path, chunk_bytes: int) -> None:
        self.done = 0
        self.failure: apsw.Error | None = None
        self.held = False
        self._pages = 0  # in the log, as the writer has told,
        self._copied = 0  # of them in the database's file,
        self._begin_at = 0  # and when it is tried again to begin the log anew
        self._wanted = threading.Event()
        self._ends = False
        self._thread: threading.Thread | None = None
        self._turn = FileTurn(path.parent)
        self._database = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        self._database.pragma("synchronous", "full")
        self._database.set_busy_timeout(int(1000 * WAIT_S))
        chunk = ctypes.c_int(chunk_bytes)
        self._database.file_control("main", apsw.SQLITE_FCNTL_CHUNK_SIZE, ctypes.addressof(chunk))
        self._database.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._page_bytes: int = self._database.pragma("page_size")

    def start(self) -> None:
        """Have a thread make them."""
        self._thread = threading.Thread(target=self._run, name="ordack-checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more of them, when the one that is being made is done."""
        self._ends = True
        self._wanted.set()
        if self._thread:
            self._thread.join()
        self._database.close()

    def tell(self, pages: int) -> None:
        """The writer has committed: so many pages are in the log."""
        if pages < self._pages:
            self._copied = 0
        self._pages = pages
        if pages * self._page_bytes >= SERVED_LOG_BYTES:
            self._wanted.set()

    def step(self) -> None:
        """Copy what is in the log, if that is much; have it begin anew, if little is left to copy."""
        pages, rest = self._pages, SERVED_LOG_BYTES // REST // self._page_bytes
        if self.held or self.failure or pages * self._page_bytes < SERVED_LOG_BYTES:
            return
        if pages - self._copied > rest:
            self._copy(apsw.SQLITE_CHECKPOINT_PASSIVE)
        is_long = pages * self._page_bytes >= MOST * SERVED_LOG_BYTES
        if pages >= self._begin_at and (is_long or self._pages - self._copied <= rest) and not self.failure:
            if self._copy(apsw.SQLITE_CHECKPOINT_RESTART):
                self._pages = self._copied = self._begin_at = 0
            else:
                self._begin_at = pages + rest

    def _copy(self, mode: int) -> bool:
        """Make one; was it made to its end?"""
        try:
            with self._turn.mine():
                keep_place(self._database, needed(self._database, self._page_bytes))
            _, self._copied = self._database.wal_checkpoint("main", mode)
        except apsw.Error as error:
            if may_be_a_sync(error):
                self.failure = error
            return False
        self.done += 1
        return True

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._ends:
                return
            self.step()


BUSY_WAIT_S = 0.001  # between two tries to write; SQLite's own, up to 0.1, let two that write in turn starve a third
READERS_S = 0.05  # so long a log that is to begin anew waits for those who read from it
PINNED_S = 0.5  # then a log that readers pin is emptied again
SHORT_LOG_BYTES = 256 << 10  # with less in it a log is not looked at
COPY_BYTES = 64 << 10  # SQLite writes less than 128 KiB at once
SHORT_OF = 2  # times what is kept back of a disk: with less room, no checkpoint is made beside commits
SERVED_LOG = 2  # times SERVED_LOG_BYTES: so much of the log's file stays where it is copied beside commits,
AHEAD_BYTES = 1 << 20  # and gets so much longer before it has to: who commits would wait for blocks of the disk, too;
FAST_US = 5_000  # unless a commit takes longer, for so much more to write would hold the next one up
HEADER_BYTES, FRAME_BYTES = 32, 24  # of the log's file, and of each page there
CACHE_KIB = 16 << 10  # of pages that `serve` keeps: what waits to be sent is not read from the disk again
NOT_OURS = contextlib.nullcontext()  # who checkpoints beside has the turn when it needs it
CHUNK_BYTES = 256 << 10  # the database's file grows and shrinks by so much: not each transaction asks for more


def patience(timeout: float) -> Callable[[int], bool]:
    """A busy handler, as SQLite calls one: it tries again and again for so many seconds."""
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
    """The size of the log of the database in that file, which may have none. Raises OSError."""
    try:
        return _log_of(path).stat().st_size
    except FileNotFoundError:
        return 0


def disk_bytes(path: Path) -> tuple[int, int]:
    """The size of the file system that the path is on, and what is free of it for this process. Raises OSError."""
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


class WriteAheadLog:
    """The log of an open database that has one. path: the database's file; busy: its busy handler. work: is told what
    is written. failed: is called when a checkpoint has. is_synced: does a commit sync the log? beside: what makes the
    checkpoints, if commits need not."""

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
        self._name = str(path)
        self._busy = busy
        self._work = work
        self._pages = 0  # that were written to the log since it began, as far as this object knows
        self._is_begun = log_bytes(path) > 0
        self._ample_until = 0.0  # the disk has room enough, in monotonic seconds
        self._pinned_until = 0.0  # in monotonic seconds
        self.is_kept = log_bytes(path) > SHORT_LOG_BYTES  # from giving its room back, as far as is known
        self._length = 0  # of the log's file at least, while there is
        self.is_synced = True
        self.beside: Checkpoints | None = None
        self._done_beside = 0  # that were counted
        self._failed = failed
        self._page_bytes: int = database.pragma("page_size")
        self._turn = FileTurn(path.parent, busy)
        chunk = ctypes.c_int(CHUNK_BYTES)
        database.file_control("main", apsw.SQLITE_FCNTL_CHUNK_SIZE, ctypes.addressof(chunk))
        database.pragma("journal_size_limit", LOG_BYTES)  # a large transaction leaves no large log behind
        database.set_wal_hook(self._after_commit)

    def checkpoint_beside(self) -> Checkpoints:
        """From now on commits make no checkpoints, unless the disk is nearly full: this does. Raises apsw.Error."""
        self._database.pragma("journal_size_limit", SERVED_LOG * SERVED_LOG_BYTES)
        self._database.pragma("cache_size", -CACHE_KIB)
        self.beside = Checkpoints(self._path, CHUNK_BYTES)
        self.beside.tell(self._pages)
        return self.beside

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the running transaction is committed, when `keep_place` has been called."""
        return NOT_OURS if self.beside else self._turn.mine()

    def keep_place(self) -> None:
        """See that what the running transaction adds to the database's file has its room on the disk. Raises
        apsw.FullError, apsw.LockedError, apsw.CantOpenError if the file is gone."""
        size = needed(self._database, self._page_bytes)
        try:
            if os.stat(self._name).st_size >= size:  # noqa: PTH116 - of a Path it takes twice as long
                return
        except OSError as error:
            raise apsw.CantOpenError(str(error)) from None
        with self._turn.mine():
            try:
                keep_place(self._database, size)
            except apsw.IOError as error:
                raise apsw.FullError(str(error)) from None

    def write_again(self) -> None:
        """Write the log once more as it is; the next sync brings it to the disk. To be called in a write transaction,
        so that nobody adds to it. Raises apsw.Error.

        When a sync has failed, a part of what was written before may be missing on the disk, while all who read it see
        it, and no later sync brings it there: Linux takes it for written. What follows in the log would be behind a
        gap, and lost with the power, and a checkpoint that is cut off would leave a database that is damaged."""
        with self._file() as file:
            size = file.xFileSize()
            for start in range(0, size, COPY_BYTES):
                file.xWrite(file.xRead(min(COPY_BYTES, size - start), start), start)

    @contextlib.contextmanager
    def _file(self) -> Iterator[apsw.VFSFile]:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL
        file = apsw.VFSFile(self._database.open_vfs, str(_log_of(self._path)), [flags, 0])
        try:
            yield file
        finally:
            file.xClose()

    def _lengthen(self, pages: int) -> None:
        """Have the file longer than so many pages need. What follows them counts as no page."""
        end = HEADER_BYTES + pages * (FRAME_BYTES + self._page_bytes)
        if end + COPY_BYTES > self._length:
            with contextlib.suppress(apsw.Error), self._file() as file:  # else commits do it themselves
                size = file.xFileSize()
                self._length = max(size, end + AHEAD_BYTES)
                for start in range(size, self._length, COPY_BYTES):
                    file.xWrite(bytes(COPY_BYTES), start)

    def empty(self) -> None:
        """Copy all to the database's file and give the log's room back, unless somebody reads from it for long."""
        if time.monotonic() < self._pinned_until:
            return
        self._database.set_busy_handler(patience(READERS_S))
        is_empty = self._copy(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.is_kept = not is_empty and is_read(self._path)  # else a checkpoint beside commits was in the way
        if self.is_kept:
            self._pinned_until = time.monotonic() + PINNED_S
        self._database.set_busy_handler(self._busy)

    def _after_commit(self, _database: apsw.Connection, _name: str, pages: int) -> int:
        """Where room is short the log takes a quarter of what is kept back, and nothing is made beside: a checkpoint
        there could take from a commit the room that it has got, and keep the log from giving its own back."""
        self._work.syncs += self.is_synced
        if not self._is_begun or pages <= self._pages:
            self._work.syncs += 1  # the header of a new log by itself
        self._pages, self._is_begun = pages, True
        size = self._work.log_bytes = pages * self._page_bytes
        is_short = False
        if size >= SHORT_LOG_BYTES and (not self.beside or time.monotonic() >= self._ample_until):
            with contextlib.suppress(OSError):
                disk, free = disk_bytes(self._path)
                kept_back = reserve(disk)
                is_short = free < SHORT_OF * kept_back
                if size >= kept_back // USUAL_LOG and is_short:
                    self.empty()
                elif size >= LOG_BYTES and (is_short or not self.beside):
                    self._copy(apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._ample_until = time.monotonic() + DISK_S if free > AMPLE_BYTES else 0.0
        if self.beside:
            if self._ample_until and size >= SHORT_LOG_BYTES and self._work.commit_us < FAST_US:
                self._lengthen(pages)
            self.beside.tell(0 if is_short else pages)
            if self.is_synced:  # a commit by which nothing is synced is told from others by that
                new, self._done_beside = self.beside.done - self._done_beside, self.beside.done
                self._work.checkpoints += new
                self._work.syncs += 2 * new
        return apsw.SQLITE_OK

    def _copy(self, mode: int) -> bool:
        """Make a checkpoint, which waits for the log and for the database's file; another time if it fails: False."""
        try:
            with self._turn.mine():
                pages, _ = self._database.wal_checkpoint("main", mode)
        except apsw.Error as error:
            self._failed(error)
            return False
        self._work.checkpoints += 1
        self._work.syncs += 2
        if not pages:
            self._work.log_bytes, self._is_begun = 0, False
        return True
