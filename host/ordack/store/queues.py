"""The queues of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ordack.config.names import local_queue, queue_name
from ordack.store.database import Database, StoreError
from ordack.store.schema import PRIVATE
from ordack.text import legible


class QueueExists(StoreError, kind="queue exists", decided=True):
    """A queue of this name is there already."""


class QueueNotEmpty(StoreError, kind="queue not empty", decided=True):
    """A queue with messages in it was to be deleted only if there are none."""


class NoSuchQueue(StoreError, kind="queue", decided=True):
    """There is no queue of this name."""


class QueueState(NamedTuple):
    """One queue. `identifier` is its PrivateQueueIdentifier; `messages` and `bytes` count what is in it. `quota`: bytes
    that may be in it, None without limit (B-084)."""

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
        """Make a private queue; raises BadName, QueueExists (names do not differ by case)."""
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
        found: int = self._db.one("SELECT coalesce(sum(messages), 0) FROM queues WHERE kind = ?", (PRIVATE,))
        return found

    def find(self, name: str | int) -> QueueState | None:
        """The queue of this name, which is taken as it is, or identifier; None if there is none."""
        if isinstance(name, str) and not name.isascii():  # SQLite knows the case of ASCII letters only
            return next((queue for queue in self.all() if queue.name.lower() == name.lower()), None)
        found = self.all("id = ?" if isinstance(name, int) else "name = ?", (name,))
        return found[0] if found else None

    def set_quota(self, name: str, quota: int | None) -> None:
        """Limit the bytes of the packets in a queue, or lift the limit; raises NoSuchQueue."""
        with self._db.transaction():
            self._db.all("UPDATE queues SET quota = ? WHERE id = ?", (quota, self.named(name).identifier))

    def named(self, name: str) -> QueueState:
        """The queue of this name (system queues by their full name); raises BadName, NoSuchQueue."""
        meant = local_queue(name)
        found = self.find(meant) if legible(meant) == meant else None
        found = found or self.find(queue_name(meant))
        if not found:
            raise NoSuchQueue(f"there is no queue {name}; `ordack queue list` shows them")
        return found

    def remove(self, queue: int) -> None:
        """Remove a private queue that is empty. What streams delivered to it stays noted by its name, so that a queue
        made again under that name gets nothing twice."""
        self._db.all("DELETE FROM queues WHERE id = ? AND messages = 0", (queue,))
