"""The messages in the queues of a store."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ordack.store.database import Database, StoreError, StoreUnknown, first_piece
from ordack.store.locks import Locks
from ordack.store.schema import NEVER, POISON, SUBQUEUE

RECEIVE_BYTES = 8 << 20  # one receive or peek of several messages ends when it has as many, to bound memory
RANKS = range(8)  # 7 - priority
ANY = 0  # no queue has this identifier
FIRST = (-1, -1)  # the place in front of all messages
BY_LOOKUP_ID = "NOT INDEXED WHERE receiver IS NULL"  # by the primary key alone: without a walk over the queue
BY_CORRELATION = "INDEXED BY messages_answering WHERE correlation IS NOT NULL AND receiver IS NULL"
QUEUES_OF = "SELECT queue, length(packet) FROM messages WHERE lookup_id IN (SELECT value FROM json_each(?))"


class Stored(NamedTuple):
    """One message in a queue: its place (rank, lookup_id), arrival in microseconds since 1970 by this machine's clock,
    and the packet as it came. aborts: how often a counted receive of it was begun and has not ended with a commit."""

    rank: int
    lookup_id: int
    arrived: int
    in_doubt: int
    packet: bytes
    aborts: int = 0


class NewMessage(NamedTuple):
    """A message to put in a queue. `rank` is 7 - priority; the others are the columns of the table. correlation: as
    `correlation_of` has it."""

    queue: int
    rank: int
    packet: bytes | bytearray | memoryview
    expires: int | None = None
    wants: int = 0
    peer: bytes | None = None
    address: str | None = None
    own: int | None = None
    in_doubt: bool = False
    dead_letter: str | None = None
    correlation: bytes | None = None


class Selection(NamedTuple):
    """Which messages of a queue are meant: the one with this lookup id, if one is given; those with this correlation
    identifier, 20 bytes."""

    lookup_id: int | None = None
    correlation_id: bytes | None = None


EVERY = Selection()


class Leaving(NamedTuple):
    """A message that is about to be removed, and that somebody wants to be told of (`wants`, see NewMessage)."""

    lookup_id: int
    queue: int
    wants: int
    peer: bytes | None
    address: str | None
    dead_letter: str | None
    packet: bytes


class Messages:
    """The table `messages`, and who has which of them in an unfinished receive.

    news: queues in which this object has made messages available; ANY stands for all of them. Whoever waits for
    messages clears it.
    """

    def __init__(self, database: Database, locks: Locks) -> None:
        self._db = database
        self._locks = locks
        self._receiver = 0
        self._to_put_back: list[int] = []
        self.news: set[int] = set()

    def close(self) -> None:
        """Put back what this object had received without finishing."""
        if self._receiver:
            with contextlib.suppress(StoreError):
                self._db.all("UPDATE messages SET receiver = NULL WHERE receiver = ?", (self._receiver,))
            (self._db.folder / self._receiver_file(self._receiver)).unlink(missing_ok=True)
            self._receiver = 0

    def become_receiver(self) -> None:
        """Have a number to mark messages with, and the lock that tells that its owner lives."""
        if self._receiver:
            return
        for path in self._db.folder.glob("receiver-*.lock"):
            self._put_back_if_dead(int(path.stem[9:]))
        receiver: int = self._db.one("UPDATE settings SET value = value + 1 WHERE name = 'receiver' RETURNING value")
        name = self._receiver_file(receiver)
        descriptor = self._locks.take(name + ".new", os.O_CREAT)
        assert descriptor is not None
        try:
            (self._db.folder / (name + ".new")).rename(
                self._db.folder / name
            )  # under this name it was never without its lock
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"cannot make {self._db.folder / name}: {error.strerror}") from None
        self._locks.keep(descriptor)
        self._receiver = receiver

    @staticmethod
    def _receiver_file(receiver: int) -> str:
        return f"receiver-{receiver}.lock"

    def _put_back_for_the_dead(self) -> None:
        """Make available again what a process had received when it died before it finished."""
        for (receiver,) in self._db.all("SELECT DISTINCT receiver FROM messages WHERE receiver IS NOT NULL"):
            self._put_back_if_dead(receiver)

    def _put_back_if_dead(self, receiver: int) -> None:
        if receiver == self._receiver:
            return
        path = self._db.folder / self._receiver_file(receiver)
        descriptor = self._locks.take(path.name, 0)
        if descriptor is None and path.exists():
            return
        try:
            self._db.all("UPDATE messages SET receiver = NULL WHERE receiver = ?", (receiver,))
            self.news.add(ANY)
            path.unlink(missing_ok=True)
        finally:
            if descriptor is not None:  # else this process would hold the lock of the dead one
                os.close(descriptor)

    def mark_purged(self, queue: int, last: int = NEVER) -> int:
        """Messages of a queue up to this lookup id that are in an unfinished receive go when that ends without a commit
        (B-340); how many."""
        self._put_back_for_the_dead()
        return len(
            self._db.all(
                "UPDATE messages SET purged = 1 WHERE queue = ? AND lookup_id <= ? AND receiver IS NOT "
                "NULL RETURNING 1",
                (queue, last),
            )
        )

    def oldest(self, queue: int) -> int | None:
        """When the oldest message arrived that can be received from a queue, in microseconds since 1970; None: there is
        none. Costs a look at each priority."""
        found: int | None = self._db.one(
            "WITH ranks (rank) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7)) "
            "SELECT min((SELECT arrived FROM messages WHERE queue = ? AND rank = ranks.rank AND receiver IS NULL "
            "ORDER BY lookup_id LIMIT 1)) FROM ranks",
            (queue,),
        )
        return found

    def last_lookup_id(self) -> int:
        """What the newest message of all queues has, or had."""
        found: int | None = self._db.one("SELECT seq FROM sqlite_sequence WHERE name = 'messages'")
        return found or 0

    def add(self, messages: Iterable[NewMessage]) -> None:
        """Put messages in queues, in order of arrival, which is now."""
        now = time.time_ns() // 1000
        rows = [(now, *message) for message in messages]
        with self._db.transaction():
            self._db.many(
                "INSERT INTO messages (arrived, queue, rank, packet, expires, wants, peer, address, own, in_doubt, "
                "dead_letter, correlation) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            self._db.tally("queues", come=[(row[1], len(row[3])) for row in rows])
        self.news.update(row[1] for row in rows)

    def begin_receive(
        self,
        queue: int,
        limit: int = 1,
        now: int = 0,
        counted: bool = False,
        poison_after: int | None = None,
        selection: Selection = EVERY,
    ) -> list[Stored]:
        """Take up to `limit` messages in the queue's order (B-287) that have not expired at `now`, seconds since 1970.
        They stay on disk, hidden from other receivers, until `delete` or `put_back`; if this process dies
        before that they are available again, in their old place.

        counted: of each it is counted that a receive was begun; if it ends without a commit, that stays. poison_after:
        instead of being received once more, a message that came back so often is moved to the queue's sub-queue POISON;
        one that came back at all is received alone, so that others do not come back for its sake."""
        try:
            self.become_receiver()
            with self._db.transaction(durable=False):  # a receiver does not survive a power cut, nor what it has
                self.put_back(())
                self._put_back_for_the_dead()
                found = self._first(queue, limit, now, selection=selection)
                if poison_after is not None:
                    while poisonous := [message.lookup_id for message in found if message.aborts >= poison_after]:
                        self._move_to_poison(queue, poisonous)
                        found = self._first(queue, limit, now, selection=selection)
                    suspects = (index for index, message in enumerate(found) if message.aborts)
                    found = found[: max(next(suspects, len(found)), 1)]
                if found:
                    self._db.all(
                        "UPDATE messages SET receiver = ?, aborts = aborts + ? WHERE lookup_id IN "
                        "(SELECT value FROM json_each(?))",
                        (self._receiver, counted, json.dumps([message.lookup_id for message in found])),
                    )
                return found
        except StoreUnknown as error:  # known is that none has left the queue, and nobody was given one
            raise StoreError(error.reason) from None

    def _move_to_poison(self, queue: int, lookup_ids: Sequence[int]) -> None:
        """They keep everything but their queue: also what follows when they are received, or expire."""
        self._db.all(
            "INSERT OR IGNORE INTO queues (name, transactional, kind) SELECT name || ?, transactional, ? "
            "FROM queues WHERE id = ?",
            (POISON, SUBQUEUE, queue),
        )
        poison = self._db.one(
            "SELECT id FROM queues WHERE name = (SELECT name || ? FROM queues WHERE id = ?)", (POISON, queue)
        )
        keys = json.dumps(lookup_ids)
        gone = self._db.all(QUEUES_OF, (keys,))
        self._db.all(
            "UPDATE messages SET queue = ? WHERE lookup_id IN (SELECT value FROM json_each(?))", (poison, keys)
        )
        self._db.tally("queues", [(poison, size) for _, size in gone], gone)

    def put_back(self, lookup_ids: Iterable[int]) -> None:
        """End a receive without a commit: the messages are available again in their old place (B-343). If the store
        fails they are before the next receive or peek of this store object."""
        self._to_put_back += lookup_ids
        if self._to_put_back:
            self._db.many(
                "UPDATE messages SET receiver = NULL WHERE lookup_id = ?", [(key,) for key in self._to_put_back]
            )
            self.news.add(ANY)
        self._to_put_back = []

    def received(self, lookup_ids: Sequence[int]) -> None:
        """Check that these messages are still ours to remove; raises StoreError."""
        count = self._db.one(
            "SELECT count(*) FROM messages WHERE receiver = ? AND lookup_id IN (SELECT value FROM json_each(?))",
            (self._receiver, json.dumps(list(lookup_ids))),
        )
        if count != len(lookup_ids):
            raise StoreError("the receive cannot be completed: its messages are not there any more")

    def leaving(self, lookup_ids: Iterable[int]) -> list[Leaving]:
        """Those of these messages whose removal somebody wants to be told of, in their order."""
        return [
            Leaving(*row)
            for row in self._db.all(
                "SELECT lookup_id, queue, wants, peer, address, dead_letter, packet FROM messages WHERE wants AND "
                "lookup_id IN (SELECT value FROM json_each(?)) ORDER BY lookup_id",
                (json.dumps(list(lookup_ids)),),
            )
        ]

    def delete(self, lookup_ids: Iterable[int]) -> None:
        """Remove messages for good."""
        keys = (json.dumps(list(lookup_ids)),)
        with self._db.transaction():
            self._db.tally("queues", gone=self._db.all(QUEUES_OF, keys))
            self._db.all("DELETE FROM messages WHERE lookup_id IN (SELECT value FROM json_each(?))", keys)

    def unlocked(self, queue: int, limit: int, last: int = NEVER) -> list[int]:
        """Keys of up to `limit` messages of a queue that are in no receive, none above `last`. Fewer if large."""
        self._put_back_for_the_dead()
        found: list[tuple[int, int]] = []
        for rank in RANKS:  # one by one, so that the index leads past what is above `last`
            found += self._db.all(
                "SELECT lookup_id, length(packet) FROM messages INDEXED BY messages_order WHERE queue = "
                "? AND rank = ? AND receiver IS NULL AND lookup_id <= ? ORDER BY lookup_id LIMIT ?",
                (queue, rank, last, limit - len(found)),
            )
        return first_piece(found)

    def wants(self, queue: int, limit: int, last: int) -> list[int]:
        """What follows when those leave that `unlocked` would give (`wants`, see NewMessage), and perhaps some more."""
        return [
            wants
            for rank in RANKS
            for wants in self._db.column(
                "SELECT wants FROM messages INDEXED BY messages_order WHERE queue = ? AND rank = ? "
                "AND receiver IS NULL AND lookup_id <= ? ORDER BY lookup_id LIMIT ?",
                (queue, rank, last, limit),
            )
        ]

    def move(self, lookup_id: int, queue: int, to: int) -> bool:
        """Put a message of a queue into another one, with all that is to follow when it leaves that. False: it is not
        in the queue any more, or in a receive."""
        with self._db.transaction():
            sizes = self._db.column(
                "UPDATE messages SET queue = ?, aborts = 0 WHERE lookup_id = ? AND queue = ? AND receiver IS NULL AND "
                "NOT purged RETURNING length(packet)",
                (to, lookup_id, queue),
            )
            self._db.tally("queues", [(to, size) for size in sizes], [(queue, size) for size in sizes])
        return bool(sizes)

    def locked(self, queue: int) -> int:
        """How many messages of a queue are in an unfinished receive."""
        self._put_back_for_the_dead()
        found: int = self._db.one("SELECT count(*) FROM messages WHERE queue = ? AND receiver IS NOT NULL", (queue,))
        return found

    def over(self, now: int, limit: int) -> tuple[list[int], list[int]]:
        """Keys of up to `limit` messages in no receive whose time to be received is over (B-407), fewer if they are
        large, and of those that were in a receive when their queue was purged (B-340)."""
        self._put_back_for_the_dead()
        return (
            first_piece(
                self._db.all(
                    "SELECT lookup_id, length(packet) FROM messages WHERE expires <= ? AND receiver "
                    "IS NULL AND NOT purged ORDER BY expires, lookup_id LIMIT ?",
                    (now, limit),
                )
            ),
            self._db.column(
                "SELECT lookup_id FROM messages WHERE purged AND receiver IS NULL ORDER BY lookup_id LIMIT ?", (limit,)
            ),
        )

    def own(self, message_id: int) -> bytes | None:
        """The packet of a message sent here that is in a queue here; None if it is in none."""
        packet: bytes | None = self._db.one("SELECT packet FROM messages WHERE own = ?", (message_id,))
        return packet

    def peek(self, queue: int, limit: int = 1, after: tuple[int, int] = FIRST, now: int = 0) -> list[Stored]:
        """Up to `limit` messages of a queue in its order, beginning behind the place `after`; they stay in it."""
        self.put_back(())
        self._put_back_for_the_dead()
        return self._first(queue, limit, now, after)

    def find(self, queue: int, lookup_id: int, now: int) -> Stored | None:
        """The message of a queue with this lookup id, which stays in it; None if it is not there, or in a receive."""
        found = self._first(queue, 1, now, selection=Selection(lookup_id))
        return found[0] if found else None

    def _first(
        self, queue: int, limit: int, now: int, after: tuple[int, int] = FIRST, selection: Selection = EVERY
    ) -> list[Stored]:
        found: list[Stored] = []
        size = 0
        correlation = selection.correlation_id
        where = self._available()
        if selection.lookup_id is not None:
            where = BY_LOOKUP_ID
        elif correlation is not None and any(correlation):
            where = BY_CORRELATION
        sql = (
            f"SELECT rank, lookup_id, arrived, in_doubt, packet, aborts FROM messages {where} "
            "AND queue = ? AND NOT purged AND (expires IS NULL OR expires > ?)"
        )
        values: tuple[object, ...] = (queue, now)
        if correlation is not None:
            sql += " AND correlation IS ?"
            values += (correlation if any(correlation) else None,)
        if selection.lookup_id is not None:
            sql += " AND lookup_id = ?"
            values += (selection.lookup_id,)
        behind = [(" AND rank = ? AND lookup_id > ?", after), (" AND rank > ?", after[:1])]
        with self._db.errors():  # two looks: for (rank, lookup_id) > (?, ?) the index is walked from the rank's first
            for condition, place in behind[after == FIRST :]:
                left = limit - len(found)
                query = f"{sql}{condition} ORDER BY rank, lookup_id LIMIT ?"
                for row in self._db.connection.execute(query, (*values, *place, left)):
                    found.append(Stored(*row))
                    size += len(found[-1].packet)
                    if size >= RECEIVE_BYTES:
                        return found
        return found

    def _available(self) -> str:
        """The condition for messages that nobody has in his hands, and the index that holds only them."""
        return "INDEXED BY messages_order WHERE receiver IS NULL"
