"""The queue manager's store: one SQLite file. No other module touches the disk.

One write transaction takes a whole batch: messages, the state of their streams, and what was settled. It is durable
when `transaction()` has returned (write-ahead log, synchronous=FULL), and does not happen at all if it raises. Several
processes may have one store open. While `ordack serve` has it, nobody else writes: applications and commands ask it.
Without it they write themselves, one transaction after another, and wait for each other.

The store keeps a message as the packet that came. Only what is searched by has a column of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ordack.store.database import (
    BUSY_TIMEOUT_S,
    LAST_WAIT_S,
    Database,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreServed,
    StoreUnknown,
)
from ordack.store.files import SERVE_LOCK, Locks, ReceiveLocks, make_store
from ordack.store.memory import Answers, Exports, Memory, Numbers
from ordack.store.messages import Messages
from ordack.store.outgoing import OutgoingQueues
from ordack.store.queues import Queues
from ordack.store.write_ahead import (
    AMPLE_BYTES,
    DISK_S,
    LONG_LOG_BYTES,
    Disk,
    Room,
    disk_bytes,
    is_pinned,
    log_bytes,
    pinned_by,
    process,
    room,
)
from ordack.text import counted

__all__ = ["STATUS", "Store", "StoreBusy", "StoreError", "StoreFull", "StoreServed", "StoreUnknown"]

STATUS = "status.json"
LOCK_TRIES = 10


def manager_of(folder: Path) -> str:
    """The `ordack serve` that runs on the store in that folder, for people."""
    try:
        return f"`ordack serve`, {process(int((folder / SERVE_LOCK).read_text()))},"
    except (OSError, ValueError):
        return "`ordack serve`"


def refuse_served(folder: Path) -> None:
    """Raises StoreBusy if a queue manager runs on the store in that folder."""
    if Locks(folder).is_taken(SERVE_LOCK):
        raise StoreBusy(f"another {manager_of(folder)} is running on {folder}")


class Store:
    """An open store. Not for use by several threads at once; each process or thread opens its own.

    All methods, and those of what it consists of, raise StoreError (or one of its kinds) when the store cannot be read
    or written; a method that writes outside `transaction()` is a transaction by itself.

    queues, messages: what is here. outgoing: what is on its way. memory: how far streams have come, how messages have
    ended. numbers: MessageIDs and sequences. exports: what left as segments. answers: what applications were told last.
    work: what this object has written. transaction, snapshot, attempt, touch, changed, wait: as Database has them.
    guid: QueueManager.Identifier (B-023), 16 wire bytes.
    """

    database_type: type[Database] = Database  # a store that is only looked at has another one

    def __init__(
        self,
        folder: str | os.PathLike[str],
        create: bool = False,
        busy_timeout: float = BUSY_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the store in `folder`; if there is none, make it if `create`. `busy_timeout` in seconds; clock: gives
        seconds since 1970."""
        self._locks = locks = Locks(Path(folder))
        self.is_new = create and make_store(locks.folder)
        self._database = database = self.database_type(folder, busy_timeout, lambda: locks.is_anothers(SERVE_LOCK))
        self.folder = database.folder
        self.path = database.path
        self.work = database.work
        self.guid = database.guid
        self.transaction, self.snapshot, self.attempt = database.transaction, database.snapshot, database.attempt
        self.touch, self.changed, self.wait = database.touch, database.changed, database.wait
        self.queues = Queues(database)
        self.messages = Messages(database, ReceiveLocks(locks, database.path))
        self.numbers = Numbers(database, locks, clock)
        self.outgoing = OutgoingQueues(database, self.numbers)
        self.memory = Memory(database)
        self.exports = Exports(database)
        self.answers = Answers(database)
        self._disk = Disk(0, 0, 0, 0, 0, 0)
        self._disk_until = 0.0  # what was seen of it counts, in monotonic seconds

    def close(self) -> None:
        """Put back what this store object had received without finishing, and close. Closing twice is fine."""
        self.messages.close()
        self._locks.close()
        self._database.close()

    @property
    def in_transaction(self) -> bool:
        """Is one running? After some errors SQLite has ended it by itself."""
        return not self._database.connection.get_autocommit()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def lock_manager(self) -> None:
        """Become the store's only queue manager, until close, and begin a run. Raises StoreBusy if another is."""
        if self.is_served:
            raise StoreBusy(f"another {self.manager} is running on {self.folder}")
        with self.transaction():  # nobody gives a number between the two
            for _ in range(LOCK_TRIES):
                descriptor = self._locks.take(SERVE_LOCK, os.O_CREAT)
                if descriptor is not None:
                    break
                time.sleep(LAST_WAIT_S)  # it may be some who ask, who have it for an instant
            else:
                raise StoreBusy(f"another {self.manager} is running on {self.folder}")
            self._locks.keep(descriptor, SERVE_LOCK)
            with contextlib.suppress(OSError):  # a full disk; the lock itself needs no room
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            self.numbers.begin_run()

    @property
    def is_served(self) -> bool:
        """Does another store object, as a rule in another process, have it as its queue manager?"""
        return self._locks.is_anothers(SERVE_LOCK)

    @property
    def manager(self) -> str:
        """The `ordack serve` that runs on it, for people."""
        return manager_of(self.folder)

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Show other processes what the queue manager is doing; it need not survive anything."""
        try:
            (self.folder / (STATUS + ".new")).write_text(json.dumps(status))
            (self.folder / (STATUS + ".new")).rename(self.folder / STATUS)
        except OSError as error:
            raise StoreError(f"cannot write {self.folder / STATUS}: {error.strerror}") from None

    def status(self) -> dict[str, Any] | None:
        """What the queue manager has last shown; None if none is running."""
        if not self._locks.is_taken(SERVE_LOCK):
            return None
        try:
            shown: dict[str, Any] = json.loads((self.folder / STATUS).read_text())
        except (OSError, ValueError):
            return None
        return shown

    def renew_identity(self) -> bytes:
        """Give the queue manager a new identifier (B-023), as a copy of another one's store needs it; the new one.

        Raises StoreBusy while `ordack serve` runs on it."""
        self.lock_manager()
        with self.transaction():
            self.guid = secrets.token_bytes(16)
            self._database.all("UPDATE settings SET value = ? WHERE name = 'guid'", (self.guid,))
            self.outgoing.note_foreign()
        return self.guid

    def usage(self) -> int:
        """Bytes of all packets kept, in local and outgoing queues (B-398)."""
        used = "SELECT (SELECT total(bytes) FROM queues) + (SELECT total(bytes) FROM outgoing)"
        return int(self._database.one(used))

    def room(self, quota: int) -> Room:
        """How much may still be stored, within the quota and on the disk (B-285, B-398)."""
        now = time.monotonic()
        if now >= self._disk_until:
            self._disk = self._look_at_disk()
            self._disk_until = now + DISK_S * (self._disk.free > AMPLE_BYTES)
        is_kept = is_pinned(self._disk) and self._database.empty_log()
        return room(quota, self.usage(), self._disk, is_kept)

    def why_full(self, room: Room) -> str:
        """What limits the room, and what has taken most of it, for a person."""
        if is_pinned(self._disk):
            return room.reason
        [(name, messages, size, is_here)] = self._database.all(
            "SELECT name, messages, bytes, true FROM queues UNION ALL SELECT format_name, messages, bytes, false "
            "FROM outgoing ORDER BY bytes DESC LIMIT 1"
        )
        if not size:
            return room.reason
        purge = f"receive from it, or empty it with `ordack purge {shlex.quote(name)}`"
        way = purge if is_here else "`ordack status` says why it waits"
        return f"{room.reason}. {name} has most, {counted(messages, 'message')} of {counted(size, 'byte')}: {way}"

    def is_pinned(self) -> bool:
        """Does a reader keep the write-ahead log so long that the rest of the disk is needed for receives? Not for use
        in a transaction."""
        if not is_pinned(self._look_at_disk()):
            return False
        self._database.empty_log()
        return is_pinned(self._look_at_disk())

    def why_pinned(self) -> str:
        """Which processes keep the write-ahead log from giving its room back, in a sentence; "" if it is not long."""
        disk = self._look_at_disk()
        if not is_pinned(disk) and disk.log < LONG_LOG_BYTES:
            return ""
        return pinned_by(self.path, disk.log)

    def _look_at_disk(self) -> Disk:
        page, pages, unused = (
            self._database.one(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")
        )
        try:
            (size, free), file, log = disk_bytes(self.folder), self.path.stat().st_size, log_bytes(self.path)
        except OSError as error:
            raise StoreError(f"cannot look at {self.path}: {error.strerror}") from None
        return Disk(size, free, file, page * pages, page * unused, log)

    def names(self) -> dict[str, Any]:
        """The names, public queues and numbers that the queue manager has last kept."""
        found: dict[str, Any] = json.loads(
            self._database.one("SELECT value FROM settings WHERE name = 'names'") or "{}"
        )
        return found

    def keep_names(self, names: Mapping[str, Any]) -> None:
        """Keep what the queue manager was started with, for applications (`Config.to_keep`)."""
        self._database.all("INSERT OR REPLACE INTO settings VALUES ('names', ?)", (json.dumps(names),))
