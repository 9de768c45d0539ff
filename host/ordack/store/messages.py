"""The messages in the queues of a store.

Messages that arrive together may share a row, a run: `packet` holds their packets one behind the other, and `lookup_id`
is the last one's. The others have the lookup ids just below. Their removal has no effects, and they never expire.
Readers see single messages. A change to a part of a run first splits it into rows of one message.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import apsw
from mqqb import compose, core, headers

from ordack.config.settings import NEVER
from ordack.store.disk import StoreError, StoreUnknown, first_piece, ranges
from ordack.store.schema import POISON, SUBQUEUE

if TYPE_CHECKING:
    from ordack.store.database import Database
    from ordack.store.receive_locks import ReceiveLocks

RECEIVE_BYTES = 8 << 20  # limit of the bytes in one receive or peek, which bounds memory
RANKS = range(8)  # 7 - priority
_SIZE = struct.Struct("<I")

ANY = 0  # stands for all queues; no queue has this identifier
FIRST = (-1, -1)  # the place in front of all messages
IN_ORDER = "INDEXED BY messages_order"
BY_LOOKUP_ID = "NOT INDEXED"  # the primary key finds the message without walking the queue
BY_CORRELATION = "INDEXED BY messages_answering"
_ADD = (
    "INSERT INTO messages (arrived, queue, rank, packet, expires, wants, peer, address, own, in_doubt, dead_letter, "
    "correlation) "
)
_ADD_ALIKE = _ADD + "SELECT ?1, ?2, ?3, value, ?5, ?6, ?7, ?8, ?9 + rowid - 1, ?10, ?11, ?12 FROM carray(?4)"
_ADD += "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_RUN = (
    "INSERT INTO messages (lookup_id, arrived, queue, rank, packet, wants, count) VALUES "
    "(ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'messages'), 0) + ?5, ?1, ?2, ?3, ?4, 0, ?5)"
)
_SPLIT = (
    "INSERT INTO messages (lookup_id, arrived, queue, rank, wants, purged, aborts, packet) "
    "SELECT lookup_id - messages.count + each.rowid, arrived, queue, rank, wants, purged, aborts, value "
    "FROM messages, carray(?2) AS each WHERE lookup_id = ?1"
)
_EFFECTS = ", queue, wants, peer, address, dead_letter, CASE WHEN wants THEN packet END"  # see Leaving
_DELETE = "DELETE FROM messages WHERE lookup_id = ? AND count = 1 RETURNING queue, 1, length(packet), lookup_id"
RUN_MESSAGES = 64  # in a row
RUN_BYTES = 256 << 10
_PLAIN = (None, False, None, None)  # own, in_doubt, dead_letter, correlation of messages that may share a row
FREE = " AND NOT is_locked(lookup_id, count)"  # not all of the row's messages are in unfinished receives

# Bits of NewMessage.wants: effects of the removal of a message from its queue.
FINAL_ACK = 1  # a FinalAck to the sending queue manager (B-116)
POSITIVE = 2  # an administration acknowledgement after a receive by an application,
NEGATIVE = 4  # or after any other end (B-336)
OWN = 8  # the end of the confirmation process of a message sent here (confirmation.md 7)
ON_EXPIRY = 16  # a copy in the dead-letter queue when TimeToBeReceived expires (B-407)
DIRECT = 32  # the FinalAck is addressed by the peer's IP address (B-361)


UNFINISHED = "the receive cannot be completed: its messages are"
BACK = "back in their queue, because `ordack serve` or the connection to it ended: receive them again"


class NotTaken(StoreError, kind="not taken", decided=True):
    """The process does not hold messages that it wants to remove. Its transaction was rolled back."""


class StoredMessage(NamedTuple):
    """A message in a queue: its place (rank, lookup_id), its arrival in microseconds since 1970 by the local clock, and
    the packet as it arrived. aborts: counted receives without a commit. Or a run of `messages`: lookup_id is the
    first one's, and their packets follow each other."""

    rank: int
    lookup_id: int
    arrived: int
    in_doubt: int
    packet: bytes
    aborts: int = 0
    messages: int = 1


_STORED: Callable[[tuple[Any, ...]], StoredMessage] = functools.partial(tuple.__new__, StoredMessage)  # unchecked


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


def _is_whole(packet: bytes | bytearray | memoryview) -> bool:
    """Is this one packet, as its own size says? Others cannot be found in a run."""
    return len(packet) >= core.BASE_HEADER_SIZE and _SIZE.unpack_from(packet, core.BASE_PACKET_SIZE_AT)[0] == len(
        packet
    )


def packets_of(row: bytes, count: int) -> list[bytes]:
    """The packets in a row."""
    if count == 1:
        return [row]
    packets, at = [], 0
    for _ in range(count):
        (size,) = _SIZE.unpack_from(row, at + core.BASE_PACKET_SIZE_AT)
        packets.append(row[at : at + size])
        at += size
    return packets


def singles(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """Each message of these messages and runs."""
    found: list[StoredMessage] = []
    for message in messages:
        rank, key, arrived, in_doubt, row, aborts, count = message
        if count == 1:
            found.append(message)
        else:
            numbers = itertools.repeat(rank), range(key, key + count), itertools.repeat(arrived)
            its = zip(*numbers, itertools.repeat(in_doubt), packets_of(row, count), *map(itertools.repeat, (aborts, 1)))
            found += map(_STORED, its)
    return found


def keys_of(messages: Iterable[StoredMessage]) -> list[int]:
    """The lookup ids of messages and runs."""
    return [key for message in messages for key in range(message.lookup_id, message.lookup_id + message.messages)]


def _pieces(sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The number and bytes of the packets in each row of a run, from the sizes of its packets."""
    count = total = 0
    for size in sizes:
        if count == RUN_MESSAGES or (count and total + size > RUN_BYTES):
            yield count, total
            count = total = 0
        count += 1
        total += size
    if count:
        yield count, total


def _rows(messages: Iterable[NewMessage], now: int) -> list[tuple[str, tuple[Any, ...], tuple[int, int, int]]]:
    """Rows to insert, in order: statement, values, and the arrival for Database.tally."""
    groups: list[tuple[NewMessage, list[bytes | bytearray | memoryview] | None]] = []
    runs: dict[tuple[int, int], list[bytes | bytearray | memoryview]] = {}  # last in their queue and rank
    for message in messages:
        place = message.queue, message.rank
        is_plain = not message.wants and message.expires is None and message[7:11] == _PLAIN
        if is_plain and _is_whole(message.packet) and all(map(_is_whole, message.more)):
            if place not in runs:
                runs[place] = []
                groups.append((message, runs[place]))
            runs[place] += message.packet, *message.more
        else:
            runs.pop(place, None)
            groups.append((message, None))
    rows: list[tuple[str, tuple[Any, ...], tuple[int, int, int]]] = []
    for message, run in groups:
        queue, rank, packet = message[:3]
        if run is not None:
            at = 0
            for count, size in _pieces(map(len, run)):
                packet = run[at] if count == 1 else b"".join(run[at : at + count])
                rows.append((_ADD_RUN, (now, queue, rank, packet, count), (queue, count, size)))
                at += count
        elif message.more:
            packets = packet, *message.more
            alike = apsw.carray(packets, flags=apsw.SQLITE_CARRAY_BLOB)
            come = queue, len(packets), sum(map(len, packets))
            rows.append((_ADD_ALIKE, (now, queue, rank, alike, *message[3:11]), come))
        else:
            rows.append((_ADD, (now, *message[:11]), (queue, 1, len(packet))))
    return rows


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
        database.connection.create_scalar_function("is_locked", cast(Any, self._is_locked), 2)

    def close(self) -> None:
        """Return the messages of unfinished receives to their queues."""
        if self._receive_locks.mine:
            with contextlib.suppress(StoreError):
                self.put_back(set(self._receive_locks.mine))
        self._receive_locks.close()

    def _is_locked(self, lookup_id: int, count: int) -> bool:
        """Are all messages of the row in unfinished receives?"""
        if count == 1:
            return lookup_id in self._locked
        return self._locked.issuperset(range(lookup_id - count + 1, lookup_id + 1))

    def _free(self) -> str:
        """The condition for rows with messages in no unfinished receive; `_locked` has the others of such a row."""
        self._locked = self._receive_locks.all()
        return FREE if self._locked else ""

    def mark_purged(self, queue: int, last: int = NEVER) -> int:
        """Mark a queue's messages in unfinished receives, up to this lookup id. They are removed if the receive ends
        without a commit (B-340). Return their number."""
        taken = [key for key in self._receive_locks.all() if key <= last]
        if not taken:
            return 0
        with self._db.transaction():
            condition, keys, _ = self._whole(taken)
            return sum(
                self._db.column(
                    f"UPDATE messages SET purged = 1 WHERE queue = ? AND {condition} RETURNING count", (queue, *keys)
                )
            )

    def receiving(self) -> Counter[int]:
        """The number of messages in unfinished receives, by queue."""
        found = Counter[int]()
        for first, last in ranges(sorted(self._receive_locks.all())):
            for queue, key, count in self._db.all(
                "SELECT queue, lookup_id, count FROM messages WHERE lookup_id >= ? ORDER BY lookup_id LIMIT ?",
                (first, last - first + 1),
            ):
                found[queue] += max(min(key, last) - max(key - count + 1, first) + 1, 0)
        return found

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
            rows = _rows(messages, now)
            for sql, group in itertools.groupby(rows, lambda row: row[0]):
                self._db.many(sql, [values for _, values, _ in group])
            come = [arrival for _, _, arrival in rows]
            self._db.tally("queues", come)
        self.news.update(queue for queue, _, _ in come)

    def add_run(
        self, queue: int, rank: int, packets: bytes | bytearray | memoryview, sizes: Sequence[int] | array[int]
    ) -> None:
        """Put messages in a queue, in order of arrival. packets: one behind the other; each begins with its own size.
        sizes: theirs. The messages have no effects when they leave, never expire, and have no CorrelationID."""
        now = time.time_ns() // 1000
        rows, at = [], 0
        for count, size in _pieces(sizes):
            rows.append((now, queue, rank, packets[at : at + size], count))
            at += size
        with self._db.transaction():
            self._db.many(_ADD_RUN, rows)
            self._db.tally("queues", [(queue, len(sizes), at)])
        self.news.add(queue)

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
        become available again in their old place. Whole rows stay runs.

        counted: count receives that end without a commit. poison_after: a message with this number of aborts moves to
        the sub-queue POISON. A message with aborts is received alone, so that its next abort returns no other message.
        """
        keys: list[int] = []
        try:
            is_count = counted and not self.outlives  # else this writes nothing
            writes = not self.outlives or poison_after is not None  # no other process locks the same messages meanwhile
            with self._db.transaction(not is_count, writes):
                found = self._first(queue, limit, now, selection=selection, in_rows=True)
                if any(message.aborts for message in found):
                    found = singles(found)
                if poison_after is not None:
                    while poisonous := [message.lookup_id for message in found if message.aborts >= poison_after]:
                        self._move_to_poison(queue, poisonous)
                        found = singles(self._first(queue, limit, now, selection=selection, in_rows=True))
                    suspects = (index for index, message in enumerate(found) if message.aborts)
                    found = found[: max(next(suspects, len(found)), 1)]
                keys = keys_of(found)
                if keys and is_count:
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
        condition, keys, rows = self._whole(lookup_ids)
        self._db.all("UPDATE messages SET queue = ? WHERE " + condition, (poison, *keys))
        self._db.tally("queues", [(poison, *row[1:3]) for row in rows], [row[:3] for row in rows])

    def _whole(self, lookup_ids: Iterable[int], more: str = "") -> tuple[str, tuple[Any, ...], list[tuple[Any, ...]]]:
        """Split rows that hold other messages besides these, within a transaction. Return the condition for the rows of
        these messages with its arguments, and the rows: queue, messages and bytes, then lookup id and `more`."""
        keys = sorted(set(lookup_ids))
        condition, arguments = self._db.among("lookup_id", keys)
        columns = f"queue, count, length(packet), lookup_id{more}"
        query = f"SELECT {columns} FROM messages WHERE {condition} ORDER BY lookup_id"
        rows = self._db.all(query, arguments)
        count = sum(row[1] for row in rows)
        is_run = len(arguments) == 2 and rows and rows[0][3] - rows[0][1] >= keys[0] - 1
        if count != len(keys) or not (len(rows) == count or is_run):
            for start, end in ranges(keys):
                self._cut(start - 1)
                self._cut(end)
            rows = self._db.all(query, arguments)
        return condition, arguments, rows

    def _cut(self, lookup_id: int) -> None:
        """Split the row that holds this message and the next one, if there is such a row."""
        for last, count, row in self._db.all(
            "SELECT lookup_id, count, packet FROM messages WHERE lookup_id = (SELECT min(lookup_id) FROM messages "
            "WHERE lookup_id > ?1) AND lookup_id - count < ?1",
            (lookup_id,),
        ):
            *packets, own = packets_of(row, count)
            self._db.all(_SPLIT, (last, apsw.carray(tuple(packets), flags=apsw.SQLITE_CARRAY_BLOB)))
            self._db.all("UPDATE messages SET packet = ?, count = 1 WHERE lookup_id = ?", (own, last))

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
        condition, keys, _ = self._whole(lookup_ids)
        self._db.all("UPDATE messages SET aborts = aborts + 1 WHERE " + condition, keys)

    def let_go(self, lookup_ids: Collection[int]) -> None:
        """Release messages that were removed, or not given to an application."""
        self._receive_locks.let_go(lookup_ids)

    def delete(self, lookup_ids: Collection[int], is_receive: bool = False) -> list[Leaving]:
        """Delete messages; return those whose removal has effects, in order. is_receive: raise NotTaken unless this
        object still holds all of them."""
        with self._db.transaction():
            is_ours = not is_receive or self._receive_locks.mine.issuperset(lookup_ids)
            rows = self._db.all(_DELETE + _EFFECTS, tuple(lookup_ids)) if is_ours and len(lookup_ids) == 1 else []
            if not rows:
                condition, arguments, rows = self._whole(lookup_ids, _EFFECTS)
                if is_receive and (not is_ours or sum(row[1] for row in rows) != len(lookup_ids)):
                    raise NotTaken(f"{UNFINISHED} {'not there any more' if is_ours else BACK}")
                self._db.all("DELETE FROM messages WHERE " + condition, arguments)
            self._db.tally("queues", gone=[row[:3] for row in rows])
        return [Leaving(*row[3:]) for row in rows if row[5]]

    def unlocked(self, queue: int, limit: int, last: int = NEVER) -> list[int]:
        """Keys of up to `limit` messages of a queue in no receive, up to `last`; fewer if the messages are large."""
        found: list[tuple[int, int]] = []
        free = self._free()
        for rank in RANKS:  # one query per rank, so that the index skips messages above `last`
            sql = (
                f"SELECT lookup_id, count, length(packet) FROM messages {IN_ORDER} WHERE queue = ? AND rank = ?{free} "
                "AND lookup_id < ? ORDER BY lookup_id"
            )
            with self._db.errors():
                for key, count, size in self._db.connection.execute(sql, (queue, rank, last + RUN_MESSAGES)):
                    found += [(each, size // count) for each in self._available(key, count) if each <= last]
                    if len(found) >= limit:
                        return first_piece(found[:limit])
        return first_piece(found)

    def _available(self, lookup_id: int, count: int) -> Iterator[int]:
        """The lookup ids of the messages in a row that are in no unfinished receive, after `_free`."""
        return (key for key in range(lookup_id - count + 1, lookup_id + 1) if key not in self._locked)

    def move(self, lookup_id: int, queue: int, to: int) -> bool:
        """Move a message to another queue; its removal keeps its effects. False if the message has left `queue`, or is
        in a receive."""
        with self._db.transaction():
            self._whole([lookup_id])
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
            "SELECT count(*) FROM json_each(?) AS taken, messages WHERE queue = ? AND lookup_id = (SELECT "
            "min(lookup_id) FROM messages WHERE lookup_id >= taken.value) AND lookup_id - count < taken.value",
            (json.dumps(list(self._receive_locks.all())), queue),
        )

    def over(self, now: int, limit: int) -> tuple[list[int], list[int]]:
        """Keys of up to `limit` expired messages in no receive (B-407), fewer if they are large; and keys of messages
        that were in a receive when their queue was purged (B-340)."""
        free = self._free()
        expired = self._db.all(
            f"SELECT lookup_id, length(packet) FROM messages WHERE expires <= ?{free} AND NOT purged "
            "ORDER BY expires, lookup_id LIMIT ?",
            (now, limit),
        )
        purged = self._db.all(
            f"SELECT lookup_id, count FROM messages WHERE purged{free} ORDER BY lookup_id LIMIT ?", (limit,)
        )
        return first_piece(expired), [key for row in purged for key in self._available(*row)][:limit]

    def own(self, message_id: int) -> bytes | None:
        """The packet of a message that was sent here to a local queue; None if the message is in no queue."""
        packet: bytes | None = self._db.one("SELECT packet FROM messages WHERE own = ?", (message_id,))
        return packet

    def peek(self, queue: int, limit: int = 1, after: tuple[int, int] = FIRST, now: int = 0) -> list[StoredMessage]:
        """Up to `limit` messages of a queue in its order, behind the place `after`. They stay in the queue."""
        return singles(self._first(queue, limit, now, after))

    def find(self, queue: int, lookup_id: int, now: int) -> StoredMessage | None:
        """The message of a queue with this lookup id, which stays in the queue; None if it is missing, or in a
        receive."""
        found = self._first(queue, 1, now, selection=Selection(lookup_id))  # one message, no run
        return found[0] if found else None

    def _parts(
        self, row: StoredMessage, left: int, after: tuple[int, int], lookup_id: int | None
    ) -> Sequence[StoredMessage]:
        """The available messages of a row; the row, if it has no others and no more than `left`."""
        keys = range(row.lookup_id, row.lookup_id + row.messages)
        is_whole = (row.rank, keys[0]) > after and lookup_id is None and self._locked.isdisjoint(keys)
        if row.messages == 1 or (is_whole and row.messages <= left):
            return (row,)
        return [
            one
            for one in singles([row])
            if one.lookup_id not in self._locked
            and (one.rank, one.lookup_id) > after
            and one.lookup_id == (lookup_id or one.lookup_id)
        ]

    def _first(
        self,
        queue: int,
        limit: int,
        now: int,
        after: tuple[int, int] = FIRST,
        selection: Selection = EVERY,
        in_rows: bool = False,
    ) -> list[StoredMessage]:
        """The first messages behind a place; whole rows are runs. in_rows: leave the last row whole, if an eighth of
        `limit` is found by then: to cut a row costs more than another receive."""
        found: list[StoredMessage] = []
        if not limit:
            return found
        size = 0
        left = limit if limit > 0 else NEVER
        correlation = selection.correlation_id
        way = IN_ORDER
        if selection.lookup_id is not None:
            way = BY_LOOKUP_ID
        elif any(correlation or b""):
            way = BY_CORRELATION
        sql = (
            f"SELECT rank, lookup_id, arrived, in_doubt, packet, aborts, count FROM messages {way} "
            f"WHERE queue = ?{self._free()} AND NOT purged AND (expires IS NULL OR expires > ?)"
        )
        values: tuple[object, ...] = (queue, now)
        if correlation is not None:
            sql += " AND correlation = ?" if any(correlation) else " AND correlation IS NULL"
            values += (correlation,) * any(correlation)
        if selection.lookup_id is not None:
            sql += (
                " AND lookup_id = (SELECT min(lookup_id) FROM messages WHERE lookup_id >= ?) AND lookup_id - count < ?"
            )
            values += (selection.lookup_id,) * 2
        behind = [(" AND rank = ? AND lookup_id > ?", after), (" AND rank > ?", after[:1])]
        with self._db.errors():  # two queries: for (rank, lookup_id) > (?, ?) SQLite walks from the rank's first
            for condition, place in behind[after == FIRST :]:
                query = f"{sql}{condition} ORDER BY rank, lookup_id"  # rows are read one by one, as needed
                for rank, last, *others, count in self._db.connection.execute(query, (*values, *place)):
                    if in_rows and count > left and 8 * left <= 7 * limit:
                        return found
                    row = StoredMessage._make((rank, last - count + 1, *others, count))
                    for part in self._parts(row, left, after, selection.lookup_id):
                        found.append(part)
                        left -= part.messages
                        size += len(part.packet)
                        if not left or size >= RECEIVE_BYTES:
                            return found
        return found
