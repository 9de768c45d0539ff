"""The queues of a store, and their segments from `ordack table export`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ordack.config.names import legible, local_queue, queue_name
from ordack.store.disk import StoreBusy, StoreError
from ordack.store.schema import PRIVATE

if TYPE_CHECKING:
    from ordack.store.database import Database


class QueueExists(StoreError, kind="queue exists", decided=True):
    """A queue of this name exists."""


class QueueNotEmpty(StoreError, kind="queue not empty", decided=True):
    """The queue to delete has messages."""


class NoSuchQueue(StoreError, kind="queue", decided=True):
    """No queue has this name."""


class QueueState(NamedTuple):
    """A queue. identifier: its PrivateQueueIdentifier. messages, bytes: in the queue. quota: limit of bytes, None for
    no limit (B-084)."""

    identifier: int
    name: str
    transactional: bool
    kind: int
    quota: int | None
    messages: int
    bytes: int

    def has_room(self, size: int) -> bool:
        """Does a packet of this size fit under the quota?"""
        return self.quota is None or self.bytes + size <= self.quota


class Queues:
    """The table `queues`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def create(self, name: str, transactional: bool = True) -> QueueState:
        """Make a private queue. Raises BadName, or QueueExists if a name differs at most in case."""
        name = queue_name(local_queue(name))
        with self._db.transaction():
            if self.find(name):
                raise QueueExists(f"the queue {name} exists already")
            self._db.all(
                "INSERT INTO queues (name, transactional, kind) VALUES (?, ?, ?)", (name, transactional, PRIVATE)
            )
            return self.named(name)

    def all(self, where: str = "true ORDER BY kind = 1 DESC, name", arguments: Sequence[Any] = ()) -> list[QueueState]:
        """All queues, system queues first."""
        rows = self._db.all(
            "SELECT id, name, transactional, kind, quota, messages, bytes FROM queues WHERE " + where, arguments
        )
        return [QueueState(row[0], row[1], bool(row[2]), *row[3:]) for row in rows]

    def total(self) -> int:
        """Messages in all private queues."""
        return self._db.number("SELECT coalesce(sum(messages), 0) FROM queues WHERE kind = ?", (PRIVATE,))

    def find(self, name: str | int) -> QueueState | None:
        """The queue of this identifier or exact name; None if there is none."""
        if isinstance(name, str) and not name.isascii():  # SQLite folds the case of ASCII letters only
            return next((queue for queue in self.all() if queue.name.lower() == name.lower()), None)
        found = self.all("id = ?" if isinstance(name, int) else "name = ?", (name,))
        return found[0] if found else None

    def set_quota(self, name: str, quota: int | None) -> None:
        """Limit the bytes of packets in a queue, or lift the limit. Raises NoSuchQueue."""
        with self._db.transaction():
            self._db.all("UPDATE queues SET quota = ? WHERE id = ?", (quota, self.named(name).identifier))

    def named(self, name: str) -> QueueState:
        """The queue of this name (system queues by their full name). Raises BadName, NoSuchQueue."""
        meant = local_queue(name)
        found = self.find(meant) if legible(meant) == meant else None
        found = found or self.find(queue_name(meant))
        if not found:
            raise NoSuchQueue(
                f"there is no queue {name}; `ordack queue list` shows them, and BOARD/QUEUE names a board's"
            )
        return found

    def remove(self, queue: int) -> None:
        """Remove an empty private queue. Its stream states stay, so that a new queue of the same name receives no
        duplicate."""
        self._db.all("DELETE FROM queues WHERE id = ? AND messages = 0", (queue,))


EXPORT_LOCK = "export.lock"


class Export(NamedTuple):
    """The last segment of a queue in a folder: a row of the table."""

    queue: str
    folder: str
    path: str
    serial: int
    name: str
    messages: int
    size: int
    pending: int


class Exports:
    """The table `exports`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    @contextlib.contextmanager
    def lock(self, queues: Mapping[int, str]) -> Iterator[None]:
        """Become the only exporter of queues, {identifier: name}. Raises StoreBusy if a queue has another exporter.
        Each queue locks a byte of one file; separate files would need a descriptor each."""
        path = self._db.folder / EXPORT_LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        try:
            for queue, name in queues.items():
                whose = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, queue, 1, 0)  # a struct flock
                try:
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whose)
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise StoreError(f"cannot lock {path}: {error.strerror}") from None
                    raise StoreBusy(f"another `ordack table export` runs on the queue {name}: only one can") from None
            yield
        finally:
            os.close(descriptor)

    def all(self, queue: str | None = None) -> list[Export]:
        """The last segments, one for each folder, of a queue or of all queues."""
        rows = self._db.all("SELECT * FROM exports WHERE ?1 IS NULL OR queue = ?1", (queue,))
        return [Export(*row) for row in rows]

    def add(self, export: Export) -> None:
        """Record the next segment, in the transaction that removes its messages. Raises StoreError if the last segment
        is not visible yet: it must not be replaced."""
        for last in self.all(export.queue):
            if last.folder == export.folder and (last.serial + 1, last.pending) != (export.serial, 0):
                raise StoreError(
                    f"the segment after {export.serial - 1} of the queue {export.queue} is recorded already: begin the "
                    "export again"
                )
        self.save(export)

    def save(self, export: Export) -> None:
        """Record the last segment of a queue in a folder."""
        self._db.many("INSERT OR REPLACE INTO exports VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [export])
