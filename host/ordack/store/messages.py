"""The messages in the queues of a store."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mqqb import compose, core, headers

from ordack.config.settings import NEVER
from ordack.store.disk import StoreError, StoreUnknown, first_piece
from ordack.store.schema import POISON, SUBQUEUE

if TYPE_CHECKING:
    from ordack.store.database import Database

RECEIVE_BYTES = 8 << 20  # limit of the bytes in one receive or peek, which bounds memory
RANKS = range(8)  # 7 - priority
ANY = 0  # stands for all queues; no queue has this identifier
FIRST = (-1, -1)  # the place in front of all messages
IN_ORDER = "INDEXED BY messages_order"
BY_LOOKUP_ID = "NOT INDEXED"  # the primary key finds the message without walking the queue
BY_CORRELATION = "INDEXED BY messages_answering"
_ADD = (
    "INSERT INTO messages (arrived, queue, rank, packet, expires, wants, peer, address, own, in_doubt, dead_letter, "
    "correlation) "
)
_ADD_RUN = _ADD + "SELECT ?1, ?2, ?3, value, ?5, ?6, ?7, ?8, ?9 + rowid - 1, ?10, ?11, ?12 FROM carray(?4)"
_ADD += "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PACKET = 3  # index of the packet among the values
FREE = " AND NOT is_locked(lookup_id)"  # in no unfinished receive

# Bits of NewMessage.wants: effects of the removal of a message from its queue.
FINAL_ACK = 1  # a FinalAck to the sending queue manager (B-116)
POSITIVE = 2  # an administration acknowledgement after a receive by an application,
NEGATIVE = 4  # or after any other end (B-336)
OWN = 8  # the end of the confirmation process of a message sent here (confirmation.md 7)
ON_EXPIRY = 16  # a copy in the dead-letter queue when TimeToBeReceived expires (B-407)
DIRECT = 32  # the FinalAck is addressed by the peer's IP address (B-361)


class NotTaken(StoreError, kind="not taken", decided=True):
    """The process does not hold messages that it wants to remove. Its transaction was rolled back."""


class StoredMessage(NamedTuple):
    """A message in a queue: its place (rank, lookup_id), its arrival in microseconds since 1970 by the local clock, and
    the packet as it arrived. aborts: counted receives without a commit."""

    rank: int
    lookup_id: int
    arrived: int
    in_doubt: int
    packet: bytes
    aborts: int = 0


class NewMessage(NamedTuple):
    """A message to put in a queue. rank: 7 - priority. correlation: see correlation_of. The other fields are columns of
    the table. more: following packets with equal columns; `own`, if set, rises by one with each packet."""

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
    more: Sequence[bytes | bytearray] = ()


class Selection(NamedTuple):
    """Selects messages of a queue by lookup id, or by CorrelationID (20 bytes)."""

    lookup_id: int | None = None
    correlation_id: bytes | None = None


EVERY = Selection()


class Leaving(NamedTuple):
    """A message whose removal has effects (`wants`, see NewMessage)."""

    lookup_id: int
    queue: int
    wants: int
    peer: bytes | None
    address: str | None
    dead_letter: str | None
    packet: bytes


# The kernel locks each message in a receive: one byte of a file, at the lookup id. The lock ends with its owner.

RECEIVE_LOCK = "receive.lock"
_LOCK = struct.Struct("hhqqi4x")  # a struct flock: kind, whence, start, length, process
_END = 1 << 62  # above all lookup ids


class ReceiveLocks:
    """Locks of messages in unfinished receives, of this store object and of others. database: the store's file; its
    users may lock."""

    def __init__(self, database: Path) -> None:
        self.mine: set[int] = set()
        self._database = database
        self._file: int | None = None

    def take(self, keys: Iterable[int]) -> None:
        """Lock keys that `all` has not returned in the same write transaction, which blocks other objects' locks."""
        new = sorted(keys)
        if new:
            self._set(fcntl.F_WRLCK, new)
            self.mine.update(new)

    def let_go(self, keys: Iterable[int]) -> None:
        """Release locks of this object; other locks stay."""
        old = sorted(self.mine.intersection(keys))
        if old:
            self.mine.difference_update(old)
            self._set(fcntl.F_UNLCK, old)

    def all(self) -> set[int]:
        """All locked messages, of this object and of others."""
        file = self._opened(os.O_RDONLY) if self._file is None else self._file
        if file is None:
            return self.mine
        found: set[int] = set()
        left = [(0, _END)]
        while left:
            start, end = left.pop()
            asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            kind, _, first, length, _ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                last = min(first + length, end)
                found.update(range(max(first, start), last))
                left += [part for part in ((start, first), (last, end)) if part[0] < part[1]]
        if self._file is None:
            os.close(file)
        return self.mine | found if found else self.mine

    def close(self) -> None:
        """Release all locks."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self.mine.clear()

    def _set(self, kind: int, keys: list[int]) -> None:
        if self._file is None:
            self._file = self._opened(os.O_RDWR | os.O_CREAT)
            assert self._file is not None
        first = last = keys[0]
        if keys[-1] - first + 1 == len(keys):  # the usual case
            last, keys = keys[-1], keys[:1]
        for key in [*keys[1:], _END]:
            if key != last + 1:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, first, last + 1 - first, 0))
                first = key
            last = key

    def _opened(self, flags: int) -> int | None:
        """The lock file; None if it is missing and the flags do not create it."""
        path = self._database.with_name(RECEIVE_LOCK)
        try:
            is_new = not path.exists()
            file = os.open(path, flags, 0o644)
            if is_new and flags & os.O_CREAT:
                of = self._database.stat()
                os.fchmod(file, of.st_mode & 0o666)
                with contextlib.suppress(OSError):  # only root can
                    os.fchown(file, of.st_uid, of.st_gid)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        return file


def correlation_of(message: headers.UserMessage) -> bytes | None:
    """Return the column `correlation` of a message: its CorrelationID, or None for zero."""
    correlation_id = bytes(message.properties.correlation_id)
    return correlation_id if any(correlation_id) else None


def wants_of(message: headers.UserMessage, own: bool) -> int:
    """Return the effects of a message's removal, as bits. own: this queue manager sent the message."""
    flags = message.user.flags
    requested = message.properties.flags if message.user.admin_queue is not None else 0
    wanted = (POSITIVE if requested & headers.WANT_PR else 0) | (NEGATIVE if requested & headers.WANT_NR else 0)
    if message.transaction is None:
        return wanted | (ON_EXPIRY if flags & core.USER_JN else 0)
    if own:
        return wanted | OWN
    asked = flags & (core.USER_JN | core.USER_JP) or message.transaction.flags & core.TX_FA
    return wanted | (FINAL_ACK if asked else 0)


def expires_of(message: headers.UserMessage, now: int) -> int | None:
    """Return when a message that arrives now expires in its queue. None: never (B-288, B-402, A-43)."""
    life = message.user.time_to_be_received
    if life == compose.FOREVER:
        return None
    elapsed = max(now - message.user.sent_time, 0)  # a sender's clock ahead of ours counts as no time
    return now + max(life - elapsed, 0)


class Messages:
    """The table `messages`, with unfinished receives.

    news: queues in which this object has made messages available; ANY stands for all queues. A waiting receiver clears
    it. outlives: True: this object outlives its receivers, and counts the messages that they return. False: each
    receive is counted at its begin, because the process may die before its end.
    """

    outlives = False

    def __init__(self, database: Database, locks: ReceiveLocks) -> None:
        self._db = database
        self._receive_locks = locks
        self._locked: set[int] = set()
        self._counted: set[int] = set()  # messages whose return is counted
        self.news: set[int] = set()
        database.connection.create_scalar_function("is_locked", cast(Any, lambda key: key in self._locked), 1)

    def close(self) -> None:
        """Return the messages of unfinished receives to their queues."""
        if self._receive_locks.mine:
            with contextlib.suppress(StoreError):
                self.put_back(set(self._receive_locks.mine))
        self._receive_locks.close()

    def _free(self) -> str:
        """The condition for messages in no unfinished receive."""
        self._locked = self._receive_locks.all()
        return FREE if self._locked else ""

    def _taken(self) -> str:
        """Messages in unfinished receives, for json_each."""
        return json.dumps(list(self._receive_locks.all()))

    def mark_purged(self, queue: int, last: int = NEVER) -> int:
        """Mark a queue's messages in unfinished receives, up to this lookup id. They are removed if the receive ends
        without a commit (B-340). Return their number."""
        return len(
            self._db.all(
                "UPDATE messages SET purged = 1 WHERE queue = ? AND lookup_id <= ? AND lookup_id IN "
                "(SELECT value FROM json_each(?)) RETURNING 1",
                (queue, last, self._taken()),
            )
        )

    def oldest(self, queue: int) -> int | None:
        """The arrival of the oldest available message of a queue, in microseconds since 1970; None if there is none.
        Costs a look at each priority."""
        found: int | None = self._db.one(
            "WITH ranks (rank) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7)) "
            f"SELECT min((SELECT arrived FROM messages WHERE queue = ? AND rank = ranks.rank{self._free()} "
            "ORDER BY lookup_id LIMIT 1)) FROM ranks",
            (queue,),
        )
        return found

    def last_lookup_id(self) -> int:
        """The highest lookup id ever assigned, over all queues."""
        return self._db.number("SELECT seq FROM sqlite_sequence WHERE name = 'messages'")

    def add(self, messages: Iterable[NewMessage]) -> None:
        """Put messages in queues, in order of arrival. The arrival time is now."""
        now = time.time_ns() // 1000
        with self._db.transaction():
            rows = [(message.queue, (now, *message[:-1]), message.more) for message in messages]
            self._db.add_packets("queues", _ADD, _ADD_RUN, rows, _PACKET)
        self.news.update(row[0] for row in rows)

    def begin_receive(
        self,
        queue: int,
        limit: int = 1,
        now: int = 0,
        counted: bool = False,
        poison_after: int | None = None,
        selection: Selection = EVERY,
    ) -> list[StoredMessage]:
        """Lock up to `limit` messages in the queue's order (B-287) that have not expired at `now`, in seconds since
        1970. They stay on disk, hidden from other receivers, until `delete` or `put_back`. If this process dies, they
        become available again in their old place.

        counted: count receives that end without a commit. poison_after: a message with this number of aborts moves to
        the sub-queue POISON. A message with aborts is received alone, so that its next abort returns no other message.
        """
        keys: list[int] = []
        try:
            with self._db.transaction(durable=False):  # no other process locks the same messages meanwhile
                found = self._first(queue, limit, now, selection=selection)
                if poison_after is not None:
                    while poisonous := [message.lookup_id for message in found if message.aborts >= poison_after]:
                        self._move_to_poison(queue, poisonous)
                        found = self._first(queue, limit, now, selection=selection)
                    suspects = (index for index, message in enumerate(found) if message.aborts)
                    found = found[: max(next(suspects, len(found)), 1)]
                keys = [message.lookup_id for message in found]
                if keys and counted and not self.outlives:
                    self._count_abort(keys)
                self._receive_locks.take(keys)
        except BaseException as error:
            self.let_go(keys)
            if isinstance(error, StoreUnknown):  # no message has left the queue
                raise StoreError(error.reason) from None
            raise
        if counted and self.outlives:
            self._counted.update(keys)
        return found

    def _move_to_poison(self, queue: int, lookup_ids: Sequence[int]) -> None:
        """Move messages to the sub-queue POISON. Their removal keeps its effects."""
        self._db.all(
            "INSERT OR IGNORE INTO queues (name, transactional, kind) SELECT name || ?, transactional, ? "
            "FROM queues WHERE id = ?",
            (POISON, SUBQUEUE, queue),
        )
        poison = self._db.one(
            "SELECT id FROM queues WHERE name = (SELECT name || ? FROM queues WHERE id = ?)", (POISON, queue)
        )
        condition, keys = self._db.among("lookup_id", lookup_ids)
        gone = self._counts(condition, keys)
        self._db.all("UPDATE messages SET queue = ? WHERE " + condition, (poison, *keys))
        self._db.tally("queues", [(poison, count, size) for _, count, size in gone], gone)

    def _counts(self, condition: str, arguments: Sequence[Any]) -> list[tuple[int, int, int]]:
        """Queues with the number and bytes of these messages in each, for Database.tally."""
        [(first, count, size, last)] = self._db.all(
            f"SELECT min(queue), count(*), sum(length(packet)), max(queue) FROM messages WHERE {condition}", arguments
        )
        if first == last:  # the usual case; GROUP BY doubles the cost
            return [(first, count, size)] if count else []
        return self._db.all(
            f"SELECT queue, count(*), sum(length(packet)) FROM messages WHERE {condition} GROUP BY queue", arguments
        )

    def put_back(self, lookup_ids: Collection[int]) -> None:
        """End a receive without a commit: the messages become available again in their old place (B-343)."""
        self.let_go(lookup_ids)
        aborted = self._counted.intersection(lookup_ids)
        self._counted -= aborted
        self.news.add(ANY)
        with self._db.transaction(durable=False):
            self._db.touch()  # waiting receivers then look again
            self._count_abort(aborted)

    def _count_abort(self, lookup_ids: Collection[int]) -> None:
        condition, keys = self._db.among("lookup_id", lookup_ids)
        self._db.all("UPDATE messages SET aborts = aborts + 1 WHERE " + condition, keys)

    def let_go(self, lookup_ids: Collection[int]) -> None:
        """Release messages that were removed, or not given to an application."""
        self._receive_locks.let_go(lookup_ids)

    def received(self, lookup_ids: Collection[int]) -> None:
        """Raise NotTaken unless this object still holds these messages."""
        condition, arguments = self._db.among("lookup_id", lookup_ids)
        count = self._db.one("SELECT count(*) FROM messages WHERE " + condition, arguments)
        if count != len(lookup_ids) or not self._receive_locks.mine.issuperset(lookup_ids):
            raise NotTaken("the receive cannot be completed: its messages are not there any more")

    def leaving(self, lookup_ids: Iterable[int]) -> list[Leaving]:
        """The messages whose removal has effects, in order."""
        condition, arguments = self._db.among("lookup_id", lookup_ids)
        return [
            Leaving(*row)
            for row in self._db.all(
                "SELECT lookup_id, queue, wants, peer, address, dead_letter, packet FROM messages WHERE wants AND "
                f"{condition} ORDER BY lookup_id",
                arguments,
            )
        ]

    def delete(self, lookup_ids: Iterable[int]) -> None:
        """Delete messages."""
        condition, arguments = self._db.among("lookup_id", lookup_ids)
        with self._db.transaction():
            self._db.tally("queues", gone=self._counts(condition, arguments))
            self._db.all("DELETE FROM messages WHERE " + condition, arguments)

    def unlocked(self, queue: int, limit: int, last: int = NEVER) -> list[int]:
        """Keys of up to `limit` messages of a queue in no receive, up to `last`; fewer if the messages are large."""
        found: list[tuple[int, int]] = []
        free = self._free()
        for rank in RANKS:  # one query per rank, so that the index skips messages above `last`
            found += self._db.all(
                f"SELECT lookup_id, length(packet) FROM messages {IN_ORDER} WHERE queue = ? AND rank = ?{free} "
                "AND lookup_id <= ? ORDER BY lookup_id LIMIT ?",
                (queue, rank, last, limit - len(found)),
            )
        return first_piece(found)

    def move(self, lookup_id: int, queue: int, to: int) -> bool:
        """Move a message to another queue; its removal keeps its effects. False if the message has left `queue`, or is
        in a receive."""
        with self._db.transaction():
            sizes = self._db.column(
                f"UPDATE messages SET queue = ?, aborts = 0 WHERE lookup_id = ? AND queue = ?{self._free()} "
                "AND NOT purged RETURNING length(packet)",
                (to, lookup_id, queue),
            )
            self._db.tally("queues", [(to, 1, size) for size in sizes], [(queue, 1, size) for size in sizes])
        return bool(sizes)

    def locked(self, queue: int) -> int:
        """The number of a queue's messages in unfinished receives."""
        return self._db.number(
            "SELECT count(*) FROM messages WHERE queue = ? AND lookup_id IN (SELECT value FROM json_each(?))",
            (queue, self._taken()),
        )

    def over(self, now: int, limit: int) -> tuple[list[int], list[int]]:
        """Keys of up to `limit` expired messages in no receive (B-407), fewer if they are large; and keys of messages
        that were in a receive when their queue was purged (B-340)."""
        free = self._free()
        return (
            first_piece(
                self._db.all(
                    f"SELECT lookup_id, length(packet) FROM messages WHERE expires <= ?{free} AND NOT purged "
                    "ORDER BY expires, lookup_id LIMIT ?",
                    (now, limit),
                )
            ),
            self._db.column(f"SELECT lookup_id FROM messages WHERE purged{free} ORDER BY lookup_id LIMIT ?", (limit,)),
        )

    def own(self, message_id: int) -> bytes | None:
        """The packet of a message that was sent here to a local queue; None if the message is in no queue."""
        packet: bytes | None = self._db.one("SELECT packet FROM messages WHERE own = ?", (message_id,))
        return packet

    def peek(self, queue: int, limit: int = 1, after: tuple[int, int] = FIRST, now: int = 0) -> list[StoredMessage]:
        """Up to `limit` messages of a queue in its order, behind the place `after`. They stay in the queue."""
        return self._first(queue, limit, now, after)

    def find(self, queue: int, lookup_id: int, now: int) -> StoredMessage | None:
        """The message of a queue with this lookup id, which stays in the queue; None if it is missing, or in a
        receive."""
        found = self._first(queue, 1, now, selection=Selection(lookup_id))
        return found[0] if found else None

    def _first(
        self, queue: int, limit: int, now: int, after: tuple[int, int] = FIRST, selection: Selection = EVERY
    ) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        size = 0
        correlation = selection.correlation_id
        way = IN_ORDER
        if selection.lookup_id is not None:
            way = BY_LOOKUP_ID
        elif correlation is not None and any(correlation):
            way = BY_CORRELATION
        sql = (
            f"SELECT rank, lookup_id, arrived, in_doubt, packet, aborts FROM messages {way} "
            f"WHERE queue = ?{self._free()} AND NOT purged AND (expires IS NULL OR expires > ?)"
        )
        values: tuple[object, ...] = (queue, now)
        if correlation is not None:
            sql += " AND correlation = ?" if any(correlation) else " AND correlation IS NULL"
            values += (correlation,) * any(correlation)
        if selection.lookup_id is not None:
            sql += " AND lookup_id = ?"
            values += (selection.lookup_id,)
        behind = [(" AND rank = ? AND lookup_id > ?", after), (" AND rank > ?", after[:1])]
        with self._db.errors():  # two queries: for (rank, lookup_id) > (?, ?) SQLite walks from the rank's first
            for condition, place in behind[after == FIRST :]:
                left = limit - len(found)
                query = f"{sql}{condition} ORDER BY rank, lookup_id LIMIT ?"
                for row in self._db.connection.execute(query, (*values, *place, left)):
                    found.append(StoredMessage(*row))
                    size += len(found[-1].packet)
                    if size >= RECEIVE_BYTES:
                        return found
        return found
