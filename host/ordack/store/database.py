"""The SQLite file of a store: opening it, transactions, and what may fail, in words."""

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
from typing import Any, NoReturn, cast

import apsw

from ordack.store.disk import (
    REFUSALS,
    DiskWork,
    StoreError,
    StoreFull,
    StoreServed,
    StoreUnknown,
    WriteAheadLog,
    check_folder,
    explained,
    may_be_a_sync,
    patience,
)
from ordack.store.schema import APPLICATION_ID, FILE_NAME, FORMAT_VERSION

BUSY_TIMEOUT_S = 10.0
FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
STATEMENTS = 256  # that stay compiled; apsw forgets one when so many others were executed since
OPERATIONS = 100_000  # of SQLite's machine, between two looks at signals


SERVE_LOCK = "serve.lock"


class Locks:
    """The locks in a store's folder, and those that this process has kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: list[int] = []  # descriptors
        self._names: set[str] = set()

    def keep(self, descriptor: int, name: str = "") -> None:
        """Have this file, and the lock of that name, until `close`."""
        self._kept.append(descriptor)
        self._names.add(name)

    def close(self) -> None:
        """Give all locks back."""
        for descriptor in self._kept:
            os.close(descriptor)
        self._kept.clear()
        self._names.clear()

    def take(self, name: str, flags: int) -> int | None:
        """A descriptor of this lock file with its lock, which the kernel frees when the process dies; None if another
        process has it, or without O_CREAT in flags if there is no such file."""
        descriptor = self._open(name, os.O_RDWR | flags)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_taken(self, name: str) -> bool:
        """Does a process hold this lock? Asked as a reader, so that it needs no permission to write, and of two who ask
        at once none takes the other for it."""
        descriptor = self._open(name, os.O_RDONLY)
        if descriptor is None:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def is_anothers(self, name: str) -> bool:
        """Does anybody hold this lock but this object?"""
        return name not in self._names and self.is_taken(name)

    def _open(self, name: str, flags: int) -> int | None:
        """A descriptor of this lock file; None if there is no such file."""
        path = self.folder / name
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None


class _Closed:
    """In place of a connection that is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        """Nothing: it is."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise StoreError(f"{self._path} is closed: open it again, with a new Client or Store")


NESTED = contextlib.nullcontext()  # in a transaction already


class Database:
    """An open file. All methods raise StoreError, or one of its kinds; one that writes outside `transaction()` is a
    transaction by itself. rolled_back: how many transactions of this object did not happen.
    work: what was written."""

    may_be_anywhere = False  # also on a file system of another machine
    _log_is_long = False
    is_read_only = False

    def __init__(
        self,
        folder: str | os.PathLike[str],
        busy_timeout: float = BUSY_TIMEOUT_S,
        is_served: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the store in `folder`. `busy_timeout` in seconds. is_served: does another process run a queue manager on
        it? Then it is only to be read."""
        self.folder = Path(folder)
        self._is_served = is_served
        self.path = self.folder / FILE_NAME
        self._in_doubt = False  # the last transaction may be in the log
        self._has_gap = False  # the log may have: the disk has failed
        self._seen_version = -1
        self.rolled_back = 0  # transactions
        self.work = DiskWork()
        check_folder(self.folder, self.may_be_anywhere)
        try:
            size = self.path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            command = f"ordack init --store {shlex.quote(str(folder))}"
            raise StoreError(
                f"there is no store in {self.folder}: if there was one, mount its disk; `{command}` makes a new one"
            ) from None
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {error.strerror}") from None
        if not size:
            raise self._empty()
        with self.errors():
            self.connection = self._connect(apsw.SQLITE_OPEN_READWRITE)
        try:
            self._prepare(busy_timeout)
        except BaseException:
            if self._has_gap:
                self._leave_log()
            self.connection.close()
            raise

    def _empty(self) -> StoreError:
        return StoreError(
            f"{self.path} is empty, and no store: put its file back, or remove it if no message was in it"
        )

    def close(self) -> None:
        """Close it. Whatever is asked of it then raises StoreError, but to close it again."""
        if (self._in_doubt or self._has_gap) and not self._is_served():
            try:
                self._end_doubt()
            except StoreError:
                self._leave_log()
        self._in_doubt = self._has_gap = False
        self.connection.close()
        self.connection = cast(apsw.Connection, _Closed(self.path))

    def _leave_log(self) -> None:
        """Have the log as it is after the end: what may be missing in it is not to be copied."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def _prepare(self, busy_timeout: float) -> None:
        busy = patience(busy_timeout)
        with self.errors():
            self.connection.set_busy_handler(busy)
            self.connection.pragma("synchronous", "full")
            self.connection.pragma("temp_store", "memory")  # another file system may be full
            self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else other arguments mean another compilation
            self._check_program()
            self._check_version()
            self._use_write_ahead_log(time.monotonic() + busy_timeout)
            self._log = WriteAheadLog(self.connection, self.path, busy, self.work, self._failed)
        with contextlib.suppress(StoreServed), self.transaction(), self.errors():  # its queue manager has done so
            self._log.write_again()  # nobody may be left who knows that a sync has failed
        self.guid: bytes = self.one("SELECT value FROM settings WHERE name = 'guid'")

    def _connect(self, flags: int) -> apsw.Connection:
        return apsw.Connection(str(self.path), flags=flags, statementcachesize=STATEMENTS)

    def _check_program(self) -> None:
        """Raises StoreError if the file holds no store."""
        if self.one("PRAGMA application_id") != APPLICATION_ID:
            if self.one("SELECT count(*) FROM sqlite_master"):
                raise StoreError(f"{self.path} is a database of another program")
            raise self._empty()

    def _use_write_ahead_log(self, deadline: float) -> None:
        while True:
            try:
                self.connection.pragma("journal_mode", "wal")
                return
            except apsw.BusyError:  # the busy timeout does not cover the change of mode
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check_version(self) -> None:
        version = self.one("PRAGMA user_version")
        if version != FORMAT_VERSION:  # the one place where an upgrade from an earlier version would begin
            raise StoreError(
                f"{self.path} has format version {version}; this ordack reads version {FORMAT_VERSION}"
                + (": use a newer one" if version > FORMAT_VERSION else "")
            )

    def transaction(self, durable: bool = True, writes: bool = True) -> contextlib.AbstractContextManager[None]:
        """Everything written inside becomes durable together, or not at all if an exception leaves it, but for
        StoreUnknown. Nests. Raises StoreServed.

        durable: False of what a power cut may undo, as long as nothing durable has followed: no sync is waited for.
        writes: False of what writes nothing. It waits for no writer."""
        return self._transaction(durable, writes) if self.connection.get_autocommit() else NESTED

    @contextlib.contextmanager
    def _transaction(self, durable: bool, writes: bool) -> Iterator[None]:
        self.ready()
        if not durable:
            self.set_synchronous(False)
        try:
            self.all("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                self.check_served()  # it may have begun while this waited; from here on none can begin
                yield
                self.commit()
            except BaseException as error:
                self.undo(error)
                raise
        finally:
            if not durable:
                self.set_synchronous(True)

    def ready(self) -> None:
        """See that a transaction may begin. Raises StoreServed, StoreUnknown."""
        self.check_served()
        if self._in_doubt or self._has_gap:
            self._end_doubt()
        if self._log_is_long:
            self.empty_log()

    def empty_log(self) -> bool:
        """Have the write-ahead log give its room back, unless a reader pins it; before the next transaction if one is
        running. Only who may write to the store does that. Does a reader pin it, as far as is known?"""
        if self.is_read_only or self._is_served():
            return True  # only writers can say
        self._log_is_long = not self.connection.get_autocommit()
        if not (self._log_is_long or self._in_doubt or self._has_gap):
            self._log.empty()
        return self._log.is_kept

    def check_served(self) -> None:
        """Raise StoreServed if another process runs a queue manager on it."""
        if self._is_served():
            raise StoreServed(f"{self.path}: an `ordack serve` runs on it, which has to be asked for this")

    def set_synchronous(self, is_synced: bool) -> None:
        """Have commits wait for the disk, or not."""
        self.connection.pragma("synchronous", "full" if is_synced else "normal")
        self._log.is_synced = is_synced

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Within a transaction: what is written inside is undone if an exception leaves it, and nothing else is."""
        self.all("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            self.rolled_back += 1
            if not self.connection.get_autocommit():  # SQLite itself has ended it all after some errors
                self.connection.execute("ROLLBACK TO attempt")
                self.connection.execute("RELEASE attempt")
            raise
        self.all("RELEASE attempt")

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read inside is of one moment. Nobody has to wait for that; nothing may be written."""
        if not self.connection.get_autocommit():
            yield
            return
        self.all("BEGIN")
        try:
            yield
        finally:
            if not self.connection.get_autocommit():  # SQLite itself has ended it after some errors
                self.connection.execute("ROLLBACK")

    def commit(self) -> None:
        """End the running transaction. If the disk fails in that, all of it may be in the log already, where only the
        next process to recover the log would find it."""
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

    def undo(self, error: BaseException) -> None:
        """End the running transaction for this error."""
        self._roll_back()
        if isinstance(error, StoreFull) and not self._has_gap:
            self._log.empty()  # for the next one

    def _roll_back(self) -> None:
        self.rolled_back += 1
        if not self.connection.get_autocommit():  # SQLite itself has ended it after some errors
            self.connection.execute("ROLLBACK")

    def _end_doubt(self) -> None:
        """Make sure that a transaction whose end is unknown has not happened: the next one takes its place in the log,
        which is all on the disk then. Raises StoreUnknown."""
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
        """Remember it if this may have been a sync: what was to be synced may be missing on the disk for good."""
        if may_be_a_sync(error):
            self._has_gap = True

    def touch(self) -> None:
        """Within a transaction: change something, so that its end makes durable what was written before without it."""
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
        """A condition, with its arguments: the column is one of these keys. Those without a gap, as they are where many
        messages go together, cost SQLite half as much as others."""
        known = list(keys)
        first, last = min(known, default=0), max(known, default=-1)
        if last - first + 1 == len(set(known)):
            return f"{column} BETWEEN ? AND ?", (first, last)
        return f"{column} IN (SELECT value FROM json_each(?))", (json.dumps(known),)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """What SQLite raises inside is raised as StoreError, in words."""
        try:
            yield
        except apsw.Error as error:
            self.explain(error)

    def explain(self, error: apsw.Error) -> NoReturn:
        """Raise it in words."""
        if not isinstance(error, REFUSALS):
            self._failed(error)
        raise explained(error, self.path) from error

    def all(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        try:
            return self.connection.execute(sql, arguments).fetchall()
        except apsw.Error as error:  # `errors` in its place would cost a microsecond
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
        """Insert packets, in order, and count them in their queues; how many there are. table: of the queues. rows: the
        queue of a packet, its values, and more packets, which differ only in numbers that count on. The statement `one`
        takes the values of a row, the packet at `place`; `run` takes an array of all packets there."""
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
        """Count messages that have come into queues, and that have left them, in the same transaction. table: of the
        queues; of messages the queue's identifier, how many there are, and their bytes."""
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
