"""The SQLite file of a store: opening, transactions, queries; and the queue manager's lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import apsw

from ordack.store.disk import (
    DiskWork,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreServed,
    StoreUnknown,
    WriteAheadLog,
    check_folder,
    explained,
    may_be_a_sync,
    patience,
    process,
)
from ordack.store.schema import APPLICATION_ID, FILE_NAME, FORMAT_VERSION, UPGRADES, upgrade

BUSY_TIMEOUT_S = 10.0
FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
STATEMENTS = 256  # in apsw's cache of compiled statements
OPERATIONS = 100_000  # of SQLite's virtual machine between two checks for signals
SERVE_LOCK = "serve.lock"
LOCK_TRIES = 10
NESTED = contextlib.nullcontext()


class Handled:
    """A context that gives an exception of a kind to `handle`, which returns whether it ends there. Costs less than a
    generator."""

    __slots__ = ("_handle", "_kind")

    def __init__(self, handle: Callable[[Any], bool], kind: type[BaseException]) -> None:
        self._handle, self._kind = handle, kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, self._kind) and self._handle(error)


class ServeLock:
    """The lock of a store's only queue manager. The kernel releases it when the process dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SERVE_LOCK
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Hold the lock until `close`. Raises StoreBusy if another process holds it."""
        for _ in range(LOCK_TRIES):
            descriptor = self._open(os.O_RDWR | os.O_CREAT)
            assert descriptor is not None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                time.sleep(LAST_WAIT_S)  # `is_taken` of another process holds the lock for an instant
                continue
            self._descriptor = descriptor
            with contextlib.suppress(OSError):  # a full disk; the lock itself needs no room
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            return
        raise self.busy()

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def is_taken(self) -> bool:
        """Does any process hold the lock, this one included? A shared lock needs no write permission, and two askers at
        once do not take each other for the holder."""
        descriptor = self._open(os.O_RDONLY)
        if descriptor is None:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def is_anothers(self) -> bool:
        """Does another object, usually in another process, hold the lock?"""
        return self._descriptor is None and self.is_taken()

    def holder(self) -> str:
        """The text that names the `ordack serve` that holds the lock."""
        try:
            return f"`ordack serve`, {process(int(self._path.read_text()))},"
        except (OSError, ValueError):
            return "`ordack serve`"

    def busy(self) -> StoreBusy:
        """The error for a second queue manager."""
        return StoreBusy(f"another {self.holder()} is running on {self._path.parent}")

    def _open(self, flags: int) -> int | None:
        """A descriptor of the lock file; None if the file is missing."""
        try:
            return os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {self._path}: {error.strerror}") from None


class Database:
    """An open file. All methods raise StoreError. A writing method outside `transaction()` is a transaction of its own.
    rolled_back: number of rolled back transactions. work: writes of this object."""

    may_be_anywhere = False  # True permits file systems of other machines
    is_read_only = False
    _log_is_long = False

    def __init__(
        self,
        folder: str | os.PathLike[str],
        busy_timeout: float = BUSY_TIMEOUT_S,
        is_served: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the store in `folder`. busy_timeout: seconds. is_served: does another process run a queue manager on the
        store? Then this object only reads."""
        self.folder = Path(folder)
        self._is_served = is_served
        self.path = self.folder / FILE_NAME
        self._is_unknown = False  # the log may contain the failed transaction
        self._has_gap = False  # the log may have a gap after a disk failure
        self._seen_version = -1
        self.rolled_back = 0
        self.work = DiskWork()
        size = check_folder(self.folder, self.may_be_anywhere)
        if size is None:
            command = f"ordack init --store {shlex.quote(str(folder))}"
            raise StoreError(
                f"there is no store in {self.folder}: `{command}` creates one, --store or ORDACK_STORE names another; "
                "if there was a store, mount its disk"
            )
        if not size:
            raise StoreError(
                f"{self.path} is empty, and no store: put its file back, or remove it if no message was in it"
            )
        with self.errors():
            self.connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
        try:
            self._prepare(busy_timeout)
        except BaseException:
            if self._has_gap:
                self._keep_log()
            self.connection.close()
            raise

    def close(self) -> None:
        """Close the file. Other methods raise StoreError afterwards."""
        if (self._is_unknown or self._has_gap) and not self._is_served():
            try:
                self._settle_unknown()
            except StoreError:
                self._keep_log()
        self._is_unknown = self._has_gap = False
        self.connection.close()

    def _keep_log(self) -> None:
        """Suppress the checkpoint on close: a log with a gap must not be copied."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _prepare(self, busy_timeout: float) -> None:
        busy = patience(busy_timeout)
        with self.errors():
            self.connection.set_busy_handler(busy)
            self.connection.pragma("synchronous", "full")
            self.connection.pragma("temp_store", "memory")  # another file system may be full
            self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else other arguments cause recompilation
            version = self._check_format()
            self._use_write_ahead_log(time.monotonic() + busy_timeout)
            self._log = WriteAheadLog(self.connection, self.path, busy, self.work, self._failed)
        with contextlib.suppress(StoreServed), self.transaction(), self.errors():  # queue managers do it themselves
            self._log.write_again()  # a dead process may have seen a sync fail
        if version != FORMAT_VERSION:
            self._upgrade(busy_timeout)
        self.guid: bytes = self.one("SELECT value FROM settings WHERE name = 'guid'")

    def _connect(self, flags: int) -> apsw.Connection:
        return apsw.Connection(str(self.path), flags=flags, statementcachesize=STATEMENTS)

    def _check_format(self) -> int:
        """The format version. Raises StoreError if the file is not a store, or has a version that cannot be read."""
        if self.one("PRAGMA application_id") != APPLICATION_ID:
            raise StoreError(f"{self.path} is a database of another program")
        version: int = self.one("PRAGMA user_version")
        if version == FORMAT_VERSION or (version in UPGRADES and not self.is_read_only):
            return version
        advice = ""
        if version > FORMAT_VERSION:
            advice = ": use a newer one"
        elif version in UPGRADES:
            advice = ": a command that may write the store upgrades it"
        raise StoreError(
            f"{self.path} has format version {version}; this ordack reads version {FORMAT_VERSION}{advice}"
        )

    def _upgrade(self, busy_timeout: float) -> None:
        """Upgrade the store while no other process has it open."""
        lock = ServeLock(self.folder)  # of two processes that upgrade at once, one fails at once
        lock.acquire()
        try:
            with self.errors():
                upgrade(self.connection, "delete")
                self._use_write_ahead_log(time.monotonic() + busy_timeout)
        except StoreBusy:
            raise StoreBusy(
                f"{self.path} has an earlier format version, and its upgrade needs it alone: stop the other programs "
                "that use the store, and try again"
            ) from None
        finally:
            lock.close()

    def _use_write_ahead_log(self, deadline: float) -> None:
        while True:
            try:
                self.connection.pragma("journal_mode", "wal")
                return
            except apsw.BusyError:  # the busy timeout does not cover the change of mode
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def in_transaction(self) -> bool:
        """Is a transaction running? SQLite rolls transactions back by itself after some errors."""
        try:
            return not self.connection.get_autocommit()
        except apsw.Error as error:
            self.explain(error)

    def transaction(self, durable: bool = True, writes: bool = True) -> contextlib.AbstractContextManager[None]:
        """Commit all writes of the block together; roll back on any exception except StoreUnknown. Nests. Raises
        StoreServed.

        durable: False: waits for no sync; a power cut may undo the transaction until a durable one follows. writes:
        False: the block only reads, and this process is the only writer; usually needs no transaction."""
        is_needed = writes or self._is_unknown or self._has_gap or self._log_is_long
        return self._transaction(durable, writes) if is_needed and not self.in_transaction() else NESTED

    @contextlib.contextmanager
    def _transaction(self, durable: bool, writes: bool) -> Iterator[None]:
        self._check_served()
        if self._is_unknown or self._has_gap:
            self._settle_unknown()
        if self._log_is_long:
            self.empty_log()
        if self._log.is_synced != durable:  # True also after a transaction that could not set it back
            self._set_synchronous(durable)
        try:
            self.all("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                self._check_served()  # a queue manager may have begun during the wait; none can begin now
                if writes and self._log.ends:
                    self._log.lengthen()
                yield
                self.commit()
            except BaseException as error:
                self._roll_back()
                if isinstance(error, StoreFull) and not self._has_gap:
                    self._log.empty()  # make room for the next transaction
                raise
        finally:
            if not durable:
                self._set_synchronous(True)

    def _check_served(self) -> None:
        if self._is_served():
            raise StoreServed(f"{self.path}: an `ordack serve` runs on it, which has to be asked for this")

    def _set_synchronous(self, is_synced: bool) -> None:
        with self.errors():
            self.connection.pragma("synchronous", "full" if is_synced else "normal")
        self._log.is_synced = is_synced

    def empty_log(self) -> bool:
        """Shrink the write-ahead log, unless a reader pins it; in a transaction, before the next one. Only writers can
        shrink it. Return True if a reader pins the log, as far as is known."""
        if self.is_read_only or self._is_served():
            return True
        self._log_is_long = self.in_transaction()
        if not (self._log_is_long or self._is_unknown or self._has_gap):
            self._log.empty()
        return self._log.is_kept

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A savepoint: an exception undoes the writes of the block only, and the transaction continues."""
        self.all("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            self.rolled_back += 1
            if self.in_transaction():
                self.connection.execute("ROLLBACK TO attempt")
                self.connection.execute("RELEASE attempt")
            raise
        self.all("RELEASE attempt")

    def restart(self) -> None:
        """Undo all writes of the running transaction, which continues."""
        self._roll_back()
        self.all("BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads of the block see one snapshot. No other process waits. The block must not write."""
        if self.in_transaction():
            yield
            return
        self.all("BEGIN")
        try:
            yield
        finally:
            if self.in_transaction():
                self.connection.execute("ROLLBACK")

    def commit(self) -> None:
        """Commit the running transaction. After a disk failure the log may contain all of it, and the next process that
        recovers the log would apply it."""
        syncs, began = self.work.syncs, time.perf_counter_ns()
        try:
            with self.errors():
                try:
                    self.connection.execute("COMMIT")
                except apsw.IOError:
                    self._is_unknown = True
                    raise
        except StoreError:
            if self._is_unknown:
                self._roll_back()
                self._settle_unknown()
            raise
        if self.work.syncs != syncs:
            self.work.commit_us = (time.perf_counter_ns() - began) // 1000
            self.work.commits.add(self.work.commit_us)

    def _roll_back(self) -> None:
        self.rolled_back += 1
        if self.in_transaction():
            self.connection.execute("ROLLBACK")

    def _settle_unknown(self) -> None:
        """Make sure that a transaction in doubt does not happen: the next transaction overwrites it in the log. The
        whole log is on the disk then. Raises StoreUnknown."""
        try:
            self.all("BEGIN IMMEDIATE")
            try:
                with self.errors():
                    self._log.write_again()
                self.touch()
                self.all("COMMIT")
            finally:
                self._roll_back()
        except StoreError as error:
            if self._is_unknown:
                raise StoreUnknown(str(error)) from None
            raise
        self._is_unknown = self._has_gap = False

    def _failed(self, error: apsw.Error) -> None:
        """Note a failed sync: data may be missing on the disk for good."""
        if may_be_a_sync(error):
            self._has_gap = True

    def touch(self) -> None:
        """Within a transaction: write a row, so that the commit also makes earlier transactions without a sync
        durable."""
        self.all("UPDATE settings SET value = value + 1 WHERE name = 'receiver'")  # `receiver` may skip values

    def changed(self) -> bool:
        """Has another process changed the store since the last call? True on the first call. Costs microseconds."""
        version = self.one("PRAGMA data_version")
        if version == self._seen_version:
            return False
        self._seen_version = version
        return True

    def wait(self, timeout: float) -> bool:
        """Wait until another process changes the store; False after `timeout` seconds without a change."""
        deadline = time.monotonic() + timeout
        interval = FIRST_WAIT_S  # grows: a busy store is answered at once, an idle store costs little
        while not self.changed():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(interval, left))
            interval = min(2 * interval, LAST_WAIT_S)
        return True

    @staticmethod
    def among(column: str, keys: Iterable[int]) -> tuple[str, tuple[Any, ...]]:
        """A condition, with its arguments, that the column has one of the keys. Consecutive keys, the usual case, cost
        SQLite half as much as a list."""
        known = list(keys)
        first, last = min(known, default=0), max(known, default=-1)
        if last - first + 1 == len(set(known)):
            return f"{column} BETWEEN ? AND ?", (first, last)
        return f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(known),)

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Raise SQLite's errors as StoreError with a readable text."""
        return Handled(self.explain, apsw.Error)

    def explain(self, error: apsw.Error) -> NoReturn:
        """Raise an error of SQLite as StoreError with a readable text."""
        self._failed(error)
        raise explained(error, self.path) from error

    def all(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        try:
            return self.connection.execute(sql, arguments).fetchall()
        except apsw.Error as error:  # `errors` would cost a microsecond
            self.explain(error)

    def column(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        return [row[0] for row in self.all(sql, arguments)]

    def one(self, sql: str, arguments: Sequence[Any] = ()) -> Any:
        rows = self.all(sql, arguments)
        return rows[0][0] if rows else None

    def number(self, sql: str, arguments: Sequence[Any] = ()) -> int:
        """The integer result of a query; 0 without a row."""
        return int(self.one(sql, arguments) or 0)

    def tally(
        self, table: str, come: Iterable[tuple[int, int, int]] = (), gone: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """Add arrivals and subtract departures in the counts of queues, in the same transaction. table: of the queues.
        come, gone: queue identifier, number of messages, and their bytes."""
        changes: dict[int, tuple[int, int]] = {}
        for sign, messages in ((1, come), (-1, gone)):
            for queue, number, size in messages:
                count, total = changes.get(queue, (0, 0))
                changes[queue] = count + sign * number, total + sign * size
        for queue, change in changes.items():  # mostly one, for which `many` is slow
            self.all(f"UPDATE {table} SET messages = messages + ?, bytes = bytes + ? WHERE id = ?", (*change, queue))

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        rows = list(rows)
        if not rows:
            return
        with self.transaction():
            try:
                self.connection.executemany(sql, rows)
            except apsw.Error as error:
                self.explain(error)
