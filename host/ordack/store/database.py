"""The SQLite file of a store: opening, transactions, queries; and the lock of the queue manager."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
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
from ordack.store.schema import APPLICATION_ID, FILE_NAME, FORMAT_VERSION

BUSY_TIMEOUT_S = 10.0
FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
STATEMENTS = 256  # stay compiled: apsw forgets a statement after so many others
OPERATIONS = 100_000  # of SQLite's machine, between two checks for signals
SERVE_LOCK = "serve.lock"
LOCK_TRIES = 10
NESTED = contextlib.nullcontext()


class ServeLock:
    """The lock that makes a process the only queue manager of a store. The kernel frees it when the process dies."""

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
        """Does a process hold the lock, this one included? A shared lock needs no permission to write, and two
        processes that ask at once do not take each other for the holder."""
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
        """Does another object hold the lock, as a rule in another process?"""
        return self._descriptor is None and self.is_taken()

    def holder(self) -> str:
        """The `ordack serve` that holds the lock, for people."""
        try:
            return f"`ordack serve`, {process(int(self._path.read_text()))},"
        except (OSError, ValueError):
            return "`ordack serve`"

    def busy(self) -> StoreBusy:
        """The error for a second queue manager."""
        return StoreBusy(f"another {self.holder()} is running on {self._path.parent}")

    def _open(self, flags: int) -> int | None:
        """A descriptor of the lock file; None if there is no such file."""
        try:
            return os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {self._path}: {error.strerror}") from None


class Database:
    """An open file. All methods raise StoreError. A method that writes outside `transaction()` is a transaction.
    rolled_back: how many transactions of this object were rolled back. work: what this object has written."""

    may_be_anywhere = False  # also on a file system of another machine
    is_read_only = False
    _log_is_long = False

    def __init__(
        self,
        folder: str | os.PathLike[str],
        busy_timeout: float = BUSY_TIMEOUT_S,
        is_served: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the store in `folder`. `busy_timeout` in seconds. is_served: does another process run a queue manager on
        the store? Then this object only reads."""
        self.folder = Path(folder)
        self._is_served = is_served
        self.path = self.folder / FILE_NAME
        self._in_doubt = False  # the last transaction may be in the log
        self._has_gap = False  # the log may have: the disk has failed
        self._seen_version = -1
        self.rolled_back = 0
        self.work = DiskWork()
        size = check_folder(self.folder, self.may_be_anywhere)
        if size is None:
            command = f"ordack init --store {shlex.quote(str(folder))}"
            raise StoreError(
                f"there is no store in {self.folder}: if there was one, mount its disk; `{command}` makes a new one"
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
        """Close the file. Other methods raise StoreError then."""
        if (self._in_doubt or self._has_gap) and not self._is_served():
            try:
                self._end_doubt()
            except StoreError:
                self._keep_log()
        self._in_doubt = self._has_gap = False
        self.connection.close()

    def _keep_log(self) -> None:
        """Leave the log as it is at the end: a log with a gap must not be copied."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _prepare(self, busy_timeout: float) -> None:
        busy = patience(busy_timeout)
        with self.errors():
            self.connection.set_busy_handler(busy)
            self.connection.pragma("synchronous", "full")
            self.connection.pragma("temp_store", "memory")  # another file system may be full
            self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else other arguments mean another compilation
            self._check_format()
            self._use_write_ahead_log(time.monotonic() + busy_timeout)
            self._log = WriteAheadLog(self.connection, self.path, busy, self.work, self._failed)
        with contextlib.suppress(StoreServed), self.transaction(), self.errors():  # its queue manager has done so
            self._log.write_again()  # nobody may be left who knows that a sync has failed
        self.guid: bytes = self.one("SELECT value FROM settings WHERE name = 'guid'")

    def _connect(self, flags: int) -> apsw.Connection:
        return apsw.Connection(str(self.path), flags=flags, statementcachesize=STATEMENTS)

    def _check_format(self) -> None:
        """Raise StoreError if the file holds no store, or a store of another format version."""
        if self.one("PRAGMA application_id") != APPLICATION_ID:
            raise StoreError(f"{self.path} is a database of another program")
        version = self.one("PRAGMA user_version")
        if version != FORMAT_VERSION:  # the one place where an upgrade from an earlier version would begin
            raise StoreError(
                f"{self.path} has format version {version}; this ordack reads version {FORMAT_VERSION}"
                + (": use a newer one" if version > FORMAT_VERSION else "")
            )

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
        """Is a transaction running? SQLite itself rolls it back after some errors."""
        try:
            return not self.connection.get_autocommit()
        except apsw.Error as error:
            self.explain(error)

    def transaction(self, durable: bool = True, writes: bool = True) -> contextlib.AbstractContextManager[None]:
        """All writes inside become durable together, or none if an exception other than StoreUnknown leaves the block.
        Nests. Raises StoreServed.

        durable: False if a power cut may undo the transaction while nothing durable has followed: it waits for no sync.
        writes: False if nothing is written: it waits for no writer."""
        return NESTED if self.in_transaction() else self._transaction(durable, writes)

    @contextlib.contextmanager
    def _transaction(self, durable: bool, writes: bool) -> Iterator[None]:
        self._check_served()
        if self._in_doubt or self._has_gap:
            self._end_doubt()
        if self._log_is_long:
            self.empty_log()
        if not durable:
            self._set_synchronous(False)
        try:
            self.all("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                self._check_served()  # a queue manager may have begun during the wait; from here on none can begin
                yield
                self.commit()
            except BaseException as error:
                self._roll_back()
                if isinstance(error, StoreFull) and not self._has_gap:
                    self._log.empty()  # for the next transaction
                raise
        finally:
            if not durable:
                self._set_synchronous(True)

    def _check_served(self) -> None:
        if self._is_served():
            raise StoreServed(f"{self.path}: an `ordack serve` runs on it, which has to be asked for this")

    def _set_synchronous(self, is_synced: bool) -> None:
        self.connection.pragma("synchronous", "full" if is_synced else "normal")
        self._log.is_synced = is_synced

    def empty_log(self) -> bool:
        """Let the write-ahead log give its room back, unless a reader pins it; before the next transaction if one is
        running. Only writers can do so. Does a reader pin the log, as far as is known?"""
        if self.is_read_only or self._is_served():
            return True
        self._log_is_long = self.in_transaction()
        if not (self._log_is_long or self._in_doubt or self._has_gap):
            self._log.empty()
        return self._log.is_kept

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Within a transaction: an exception that leaves the block undoes the writes of the block, and no others."""
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

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside are of one moment. Nobody waits for that; nothing may be written."""
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
        """End the running transaction. If the disk fails meanwhile, all of it may be in the log already, where only the
        next process that recovers the log would find it."""
        syncs, began = self.work.syncs, time.perf_counter_ns()
        try:
            with self.errors():
                try:
                    self.connection.execute("COMMIT")
                except apsw.IOError:
                    self._in_doubt = True
                    raise
        except StoreError:
            if self._in_doubt:
                self._roll_back()
                self._end_doubt()
            raise
        if self.work.syncs != syncs:
            self.work.commit_us = (time.perf_counter_ns() - began) // 1000
            self.work.commits.add(self.work.commit_us)

    def _roll_back(self) -> None:
        self.rolled_back += 1
        if self.in_transaction():
            self.connection.execute("ROLLBACK")

    def _end_doubt(self) -> None:
        """Make sure that a transaction in doubt has not happened: the next transaction takes its place in the log, all
        of which is on the disk then. Raises StoreUnknown."""
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
            if self._in_doubt:
                raise StoreUnknown(str(error)) from None
            raise
        self._in_doubt = self._has_gap = False

    def _failed(self, error: apsw.Error) -> None:
        """After a failed sync, data may be missing on the disk for good."""
        if may_be_a_sync(error):
            self._has_gap = True

    def touch(self) -> None:
        """Within a transaction: write something, so that its commit makes durable what earlier transactions without a
        sync have written."""
        self.all("UPDATE settings SET value = value + 1 WHERE name = 'receiver'")  # it may skip some

    def changed(self) -> bool:
        """Has another process changed the store since this was last asked? True the first time. Costs microseconds."""
        version = self.one("PRAGMA data_version")
        if version == self._seen_version:
            return False
        self._seen_version = version
        return True

    def wait(self, timeout: float) -> bool:
        """Wait until another process has changed the store; False if none has in `timeout` seconds."""
        deadline = time.monotonic() + timeout
        interval = FIRST_WAIT_S  # short at first: a busy store is answered at once, an idle one costs nothing
        while not self.changed():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(interval, left))
            interval = min(2 * interval, LAST_WAIT_S)
        return True

    @staticmethod
    def among(column: str, keys: Iterable[int]) -> tuple[str, tuple[Any, ...]]:
        """A condition with its arguments: the column has one of these keys. Keys without a gap, as many messages
        at once have, cost SQLite half as much as others."""
        known = list(keys)
        first, last = min(known, default=0), max(known, default=-1)
        if last - first + 1 == len(set(known)):
            return f"{column} BETWEEN ? AND ?", (first, last)
        return f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(known),)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors of SQLite as StoreError, in words."""
        try:
            yield
        except apsw.Error as error:
            self.explain(error)

    def explain(self, error: apsw.Error) -> NoReturn:
        """Raise an error of SQLite in words."""
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
        """The integer that a query finds; 0 if it finds none."""
        return int(self.one(sql, arguments) or 0)

    def add_packets(
        self,
        table: str,
        one: str,
        run: str,
        rows: Sequence[tuple[int, tuple[Any, ...], Sequence[bytes | bytearray]]],
        place: int,
    ) -> int:
        """Insert packets, in order, count them in their queues, and give their number. table: of the queues. rows: the
        queue of a packet, its values, and more packets, which differ only in numbers that count on. The statement `one`
        takes the values of a row, with the packet at `place`; `run` takes an array of all packets there."""
        come = []
        for has_more, group in itertools.groupby(rows, lambda row: bool(row[2])):
            inserts = []
            for queue, values, more in group:
                packets = values[place], *more
                come.append((queue, len(packets), sum(map(len, packets))))
                packed = apsw.carray(packets, flags=apsw.SQLITE_CARRAY_BLOB) if has_more else packets[0]
                inserts.append((*values[:place], packed, *values[place + 1 :]))
            self.many(run if has_more else one, inserts)
        self.tally(table, come)
        return sum(count for _, count, _ in come)

    def tally(
        self, table: str, come: Iterable[tuple[int, int, int]] = (), gone: Iterable[tuple[int, int, int]] = ()
    ) -> None:
        """Count messages that have come into queues and left queues, in the same transaction. table: of the queues.
        come, gone: a queue's identifier, a number of messages, and their bytes."""
        changes: dict[int, tuple[int, int]] = {}
        for sign, messages in ((1, come), (-1, gone)):
            for queue, number, size in messages:
                count, total = changes.get(queue, (0, 0))
                changes[queue] = count + sign * number, total + sign * size
        self.many(
            f"UPDATE {table} SET messages = messages + ?, bytes = bytes + ? WHERE id = ?",
            [(*change, queue) for queue, change in changes.items()],
        )

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.transaction():
            try:
                self.connection.executemany(sql, rows)
            except apsw.Error as error:
                self.explain(error)
