"""Checkpoints beside the writer, which waits for none of them.

A connection of its own copies the write-ahead log to the database's file while the writer goes on. What the writer adds
meanwhile is copied next, until little is left; only for that the writer is kept out, and the log begins anew. A log
that grows faster than it can be copied is cut short all the same, at MOST times its usual size.

A sync that fails here is the writer's business: it hears of it in its next transaction, which fails, and until the
writer has made sure of the log (`Database._end_doubt`) nothing more is copied. SQLite takes nothing for copied then, so
the log does not begin anew, and the next checkpoint writes all of it again.

No checkpoint begins while a writer makes the database's file longer (`FileTurn`): what the checkpoint copied behind the
end of the file would be damaged by that. When one begins, all that it copies has its place in the file, so that the
writer may make it longer meanwhile, and waits for no checkpoint.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from ordack.store.room import SERVED_LOG_BYTES

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
