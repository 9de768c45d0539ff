"""Read-only access to a store, without write permission.

Reads see the same data as a writer, or raise an error that says why they cannot. SQLite reads a store in use through
the files beside it (`-wal`, `-shm`). If no process has the store open, these files are missing, and a reader without
write permission cannot make them. The reader then opens the database file alone, which must not change meanwhile.

A process that has the store open may read it on a second connection (`StoreBeside`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import apsw

from ordack.store import Store
from ordack.store.database import Database
from ordack.store.disk import StoreBusy, StoreError, StoreFull, log_bytes, patience
from ordack.store.queues import NoSuchQueue
from ordack.store.schema import FILE_NAME

Result = TypeVar("Result")


def open_to_look(folder: str | os.PathLike[str]) -> Store:
    """A store for reading: writable if this process may write it, else read-only. Raises StoreError."""
    try:
        return Store(folder) if is_writable(Path(folder) / FILE_NAME) else ReadOnlyStore(folder)
    except StoreFull:
        return ReadOnlyStore(folder)


def is_writable(path: Path) -> bool:
    """May this process write the database and SQLite's files beside it?"""
    beside = [path.with_name(path.name + end) for end in ("-wal", "-shm")]
    files = [path.parent, path, *(file for file in beside if os.access(file, os.F_OK))]
    return all(os.access(file, os.W_OK, effective_ids=True) for file in files)


class ReadOnlyDatabase(Database):
    """A file, possibly a copy, that is only read."""

    may_be_anywhere = True
    is_read_only = True

    def _connect(self, flags: int) -> apsw.Connection:
        del flags
        self._still = None if self._has_log() else self._state()
        options = "mode=ro" if self._still is None else "mode=ro&immutable=1"
        return apsw.Connection(
            f"file:{quote(str(self.path.absolute()))}?{options}",
            statementcachesize=64,
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )

    def _state(self) -> tuple[object, ...]:
        """Values that differ after a change of the file."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns, self._has_log()

    def _has_log(self) -> bool:
        try:
            return log_bytes(self.path) > 0  # a full disk leaves an empty log
        except OSError:
            return False

    def _prepare(self, busy_timeout: float) -> None:
        with self.errors():
            self.connection.set_busy_handler(patience(busy_timeout))
            self._check_format()
        self.guid = self.one("SELECT value FROM settings WHERE name = 'guid'")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        with super().errors():
            yield
        if self._still not in (None, self._state()):
            raise StoreBusy(f"{self.path} was changed while it was looked at: look again")

    def all(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self.errors():
            return super().all(sql, arguments)


class ReadOnlyStore(Store):
    """A store that is only read. Writing methods raise StoreError."""

    database_type = ReadOnlyDatabase


class _BesideDatabase(ReadOnlyDatabase):
    """A file that this process has open. Reads always use its log: closing the file itself would free all locks of this
    process on it."""

    def _has_log(self) -> bool:
        return True


class StoreBeside(ReadOnlyStore):
    """A second connection to a store that this process has open, for another thread. Its reads make no writer wait."""

    database_type = _BesideDatabase

    def interrupt(self) -> None:
        """Interrupt a running read of another thread, which raises StoreError there."""
        with contextlib.suppress(apsw.ConnectionClosedError):
            self._database.connection.interrupt()


class StoreReader:
    """A thread that reads a store on a second connection of this process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._store: StoreBeside | None = None
        self._is_over = False

    def read(self, look: Callable[[StoreBeside], Result]) -> Future[Result]:
        """The result of `look` in the thread. After a StoreError the next call opens a new connection."""
        return self._thread.submit(self._read, look)

    def _read(self, look: Callable[[StoreBeside], Result]) -> Result:
        if self._is_over:
            raise StoreError("`ordack serve` ends")
        try:
            if self._store is None:
                self._store = StoreBeside(self._folder)
            return look(self._store)
        except NoSuchQueue:
            raise
        except StoreError:
            self._forget()
            raise

    def _forget(self) -> None:
        store, self._store = self._store, None
        if store:
            store.close()

    def close(self) -> None:
        """Interrupt running reads, and end the thread."""
        self._is_over = True
        end = self._thread.submit(self._forget)
        while not end.done():
            if store := self._store:
                store.interrupt()
            wait([end], 0.02)
        self._thread.shutdown()
