"""The outgoing queues of a store, and their messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ordack.config.settings import NEVER
from ordack.store.at_hand import Packet, Row
from ordack.store.disk import StoreError, first_piece
from ordack.store.numbers import RUN_MESSAGES

if TYPE_CHECKING:
    from ordack.store.database import Database
    from ordack.store.numbers import Numbers

_ADD = (
    "INSERT INTO outgoing_messages (outgoing, message_id, ordinal, time_stamp, number, recoverable, journal, packet, "
    "priority, own, send_until, due, confirmation, dead_letter, count, id) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_COPY = (  # of a row, as one of its messages
    "INSERT INTO outgoing_messages (outgoing, message_id, ordinal, time_stamp, number, recoverable, journal, packet, "
    "priority, own, send_until, due, confirmation, dead_letter, deleted, id) "
    "SELECT outgoing, message_id - ?1, ordinal, time_stamp, number - ?1, recoverable, journal, ?2, "
    "priority, own, send_until, due, confirmation, dead_letter, deleted, id - ?1 FROM outgoing_messages WHERE id = ?3"
)
_ROWS = "SELECT id, count, packet, iif(deleted, -1, send_until) FROM outgoing_messages WHERE "
RUN_BYTES = 256 << 10  # of their packets


class Outgoing(NamedTuple):
    """An outgoing queue and its stream's state (B-056, B-057). record: the words of mqqb_outgoing. sent_to: messages up
    to this key may have been transmitted. resends: operators' requests (B-425). messages: in the queue. address: the
    peer's at its latest connection."""

    identifier: int
    format_name: str
    record: tuple[int, ...]
    on_hold: bool = False
    sent_to: int = 0
    resends: int = 0
    messages: int = 0
    address: str | None = None


class OutgoingCount(NamedTuple):
    """Counts of an outgoing queue: messages and their bytes. not_order_acked (EodNoAckCount), not_read
    (EodNoReadCount): transactional messages sent here without an OrderAck, and those without a FinalAck (B-239,
    B-423). oldest_sent: SentTime of the first message to send."""

    format_name: str
    on_hold: bool
    messages: int
    bytes: int
    not_order_acked: int
    not_read: int
    oldest_sent: int | None


class NewOutgoing(NamedTuple):
    """A row to put in an outgoing queue: columns of the table. number: 0, without a sequence, for a forwarded or
    non-transactional message. messages: in the row, whose packets follow each other in `packet`; `message_id` and
    `number` are those of the first one, and rise by one with each message."""

    outgoing: int
    message_id: int
    ordinal: int
    time_stamp: int
    number: int
    recoverable: bool
    journal: int
    packet: Packet
    priority: int = 0
    own: bool = True
    send_until: int = NEVER
    due: int | None = None
    confirmation: bytes | None = None
    dead_letter: str | None = None
    messages: int = 1


Added = tuple[range, Sequence[NewOutgoing], Sequence[Outgoing]]  # keys of new messages, the messages, their queues


class OutgoingEntry(NamedTuple):
    """A message in an outgoing queue, without its packet; or several of a row, then the first one. recoverable, held:
    0 or 1."""

    key: int
    outgoing: int
    message_id: int
    ordinal: int
    time_stamp: int
    number: int
    recoverable: int
    journal: int
    priority: int
    held: int
    messages: int = 1


class Unsent(NamedTuple):
    """A transactional message to send. size: of its packet, in bytes."""

    key: int
    size: int
    message_id: int
    ordinal: int
    time_stamp: int


class Waiting(NamedTuple):
    """The state of an outgoing message: columns of the table, without the packet."""

    key: int
    outgoing: int
    message_id: int
    own: int
    journal: int
    send_until: int
    due: int | None
    confirmation: bytes | None
    dead_letter: str | None
    deleted: int
    ordinal: int
    time_stamp: int
    number: int
    held: int


class Run(NamedTuple):
    """A row of several messages. state: of its last message. size: of its packets, in bytes."""

    state: Waiting
    messages: int
    size: int


Kind = TypeVar("Kind", OutgoingEntry, Waiting)


def _of_row(row: Any, after: int) -> OutgoingEntry:
    """The messages of a row with keys above `after`. row: columns of OutgoingEntry."""
    key, outgoing, message_id, ordinal, time_stamp, number, *others, messages = row
    messages = min(messages, key - after)
    back = messages - 1
    first = number and number - back
    return OutgoingEntry._make((key - back, outgoing, message_id - back, ordinal, time_stamp, first, *others, messages))


def _entries(db: Database, where: str, arguments: Sequence[Any], after: int, limit: int) -> list[OutgoingEntry]:
    """Rows with up to `limit` messages and the rest of the last one, -1: all. The first argument is `after`: the
    messages have keys above it."""
    found: list[OutgoingEntry] = []
    most = max(limit // RUN_MESSAGES, 1) if limit > 0 else limit  # rows of long runs are slow to read
    count = 0
    while True:
        rows = _rows_of_entries(db, where + " ORDER BY id LIMIT ?", (after, *arguments[1:], most))
        found += [_of_row(row, after) for row in rows]
        if not 0 <= most <= len(rows):
            return found
        count += sum(entry.messages for entry in found[-most:])
        if count >= limit:
            return found
        after = rows[-1][0]
        if rows[-1][-1] == 1:
            most = limit - count


def _rows_of_entries(db: Database, where: str, arguments: Sequence[Any]) -> list[Any]:
    columns = ", ".join(OutgoingEntry._fields[1:-1])
    return db.all(f"SELECT id, {columns}, count FROM outgoing_messages WHERE {where}", arguments)


class OutgoingQueues:
    """The tables `outgoing` and `outgoing_messages`. Keys rise in the order of sending.

    Transactional messages that one commit sends to one queue with the same properties share a row. Its id, message_id
    and number are those of the last message; the others have the numbers just below, and their packets, of the same
    length, are in front of its packet. Whoever changes some messages of a row splits it first.
    """

    def __init__(self, database: Database, numbers: Numbers) -> None:
        self._db = database
        self._numbers = numbers

    def some(self, identifiers: Collection[int]) -> list[Outgoing]:
        """The outgoing queues with these identifiers."""
        return self.queues(*self._db.among("id", identifiers))

    def queues(self, where: str = "true", arguments: Sequence[Any] = ()) -> list[Outgoing]:
        """The outgoing queues that satisfy an SQL condition."""
        return [
            Outgoing(row[0], row[1], row[7:], bool(row[2]), *row[3:7])
            for row in self._db.all(
                "SELECT id, format_name, on_hold, sent_to, resends, messages, "
                "address, ordinal, time_stamp, number, last_ack "
                "FROM outgoing WHERE " + where,
                arguments,
            )
        ]

    def find(self, format_name: str) -> Outgoing | None:
        """The outgoing queue of this format name; None if there is none."""
        found = self.queues("format_name = ?", (format_name,))
        return found[0] if found else None

    def queue(self, format_name: str, now: int, address: str | None = None) -> Outgoing:
        """The outgoing queue of this format name; a missing one is made, with a new sequence. now: seconds since 1970.
        address: the peer's at its latest connection."""
        with self._db.transaction():
            found = self.find(format_name)
            if found and address in (None, found.address):
                return found
            if found:
                self._db.all("UPDATE outgoing SET address = ? WHERE id = ?", (address, found.identifier))
            else:
                self._db.all(
                    "INSERT INTO outgoing (format_name, ordinal, time_stamp, number, last_ack, address) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (format_name, *self._numbers.new_sequence(now), address),
                )
            return self.queue(format_name, now, address)

    def number_in(self, outgoing: Outgoing, now: int) -> Outgoing:
        """The outgoing queue with the sequence for its next message, in the same transaction: a new sequence if the
        present one is older than this run."""
        if self._numbers.is_of_this_run(outgoing.record[1]):
            return outgoing
        return outgoing._replace(record=self._numbers.new_sequence(now))

    def save(self, records: Iterable[Outgoing]) -> None:
        """Store the new states of streams."""
        self._db.many(
            "UPDATE outgoing SET ordinal = ?, time_stamp = ?, number = ?, last_ack = ? WHERE id = ?",
            [(*record.record, record.identifier) for record in records],
        )

    def set_on_hold(self, format_name: str, on_hold: bool) -> bool:
        """Pause or resume an outgoing queue (B-345, B-346); False if there is none of this name."""
        return self._set(format_name, "on_hold = ?", on_hold)

    def request_resend(self, format_name: str) -> bool:
        """Ask the queue manager to resend messages without an OrderAck (B-425); False if there is no such queue."""
        return self._set(format_name, "resends = resends + 1")

    def _set(self, format_name: str, assignment: str, *values: bool) -> bool:
        with self._db.transaction():
            sql = f"UPDATE outgoing SET {assignment} WHERE format_name = ? RETURNING 1"
            return bool(self._db.all(sql, (*values, format_name)))

    def forwarded(self, outgoing: int) -> Iterator[tuple[int, bytearray]]:
        """Forwarded messages of an outgoing queue: (key, packet)."""
        keys = self._db.column(
            "SELECT id FROM outgoing_messages WHERE outgoing = ? AND NOT own AND due > send_until", (outgoing,)
        )
        return ((key, self.packet(key)[0]) for key in keys)

    def request_purge(
        self, outgoing: int, limit: int = -1, after: int = 0, last: int = NEVER, keep: Collection[int] = ()
    ) -> list[int]:
        """Ask the queue manager to end messages of an outgoing queue with keys above `after` up to `last`, except
        `keep` (C-29). Return their keys: up to `limit`, fewer if the messages are large."""
        with self._db.transaction():
            self._split("outgoing = ? AND id > ? AND id - count < ?", (outgoing, after, last), limit)
            keys = first_piece(
                self._db.all(
                    "SELECT id, length(packet) FROM outgoing_messages WHERE outgoing = ? AND id > ? AND id <= ? "
                    "AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?",
                    (outgoing, after, last, json.dumps(list(keep)), limit),
                )
            )
            condition, those = self._db.among("id", keys)
            self._db.all("UPDATE outgoing_messages SET deleted = 1, due = 0 WHERE " + condition, those)
        return keys

    def _split(self, where: str, arguments: Sequence[Any], limit: int = -1) -> None:
        """Split the runs that satisfy an SQL condition into single rows; limit: of their messages."""
        rows = self._db.all(
            f"SELECT id, count FROM outgoing_messages WHERE {where} AND count > 1 ORDER BY id LIMIT ?",
            (*arguments, limit),
        )
        for key, count in rows:
            packets = self._db.one("SELECT packet FROM outgoing_messages WHERE id = ?", (key,))
            size = len(packets) // count
            singles = [(count - 1 - place, packets[place * size : (place + 1) * size], key) for place in range(count)]
            with self._db.transaction():
                self._db.many(_COPY, singles[:-1])
                self._db.all("UPDATE outgoing_messages SET packet = ?, count = 1 WHERE id = ?", singles[-1][1:])
            limit -= count
            if limit <= 0 and limit + count > 0:
                return

    def runs(self, first: int, last: int) -> list[Run]:
        """The runs with messages from the key `first` to the key `last`, in order of sending."""
        columns = ", ".join(Waiting._fields[1:])
        return [
            Run(Waiting(*row[2:]), *row[:2])
            for row in self._db.all(
                f"SELECT count, length(packet), id, {columns} FROM outgoing_messages "
                "WHERE id BETWEEN ?1 AND ?2 + ?3 AND id - count < ?2 AND count > 1 ORDER BY id",
                (first, last, RUN_MESSAGES - 1),
            )
        ]

    def shorten(self, runs: Iterable[tuple[Run, int]]) -> None:
        """Delete the first messages of runs: (run, number of messages)."""
        gone, whole, parts = [], [], []
        for run, count in runs:
            size, key = run.size // run.messages * count, run.state.key
            if count == run.messages:
                whole.append((key,))
            else:
                parts.append((size + 1, count, key))
            gone.append((run.state.outgoing, count, size))
        with self._db.transaction():
            self._db.tally("outgoing", gone=gone)
            self._db.many("DELETE FROM outgoing_messages WHERE id = ?", whole)
            self._db.many(
                "UPDATE outgoing_messages SET packet = substr(packet, ?), count = count - ? WHERE id = ?", parts
            )

    def last_key(self) -> int:
        """The highest key ever assigned, over all outgoing queues."""
        return self._db.number("SELECT seq FROM sqlite_sequence WHERE name = 'outgoing_messages'")

    def acknowledgements(self, outgoing: int, limit: int) -> list[Waiting]:
        """The oldest `limit` acknowledgements by this queue manager in an outgoing queue; no forwarded messages."""
        return self._messages(
            Waiting,
            "outgoing = ? AND NOT own AND coalesce(due, 1) BETWEEN 1 AND send_until ORDER BY id LIMIT ?",
            (outgoing, limit),
        )

    def set_sent_to(self, outgoing: int, key: int) -> None:
        """Permit the transmission of an outgoing queue's messages up to this key; 0: none."""
        self._db.all("UPDATE outgoing SET sent_to = ? WHERE id = ?", (key, outgoing))

    def accepts(self) -> dict[tuple[str, int], bytes]:
        """The queue manager that answered last at each address (host, port) of an outgoing session."""
        rows = self._db.all("SELECT substr(name, 9), value FROM settings WHERE name GLOB 'accepts *'")
        return {(host, int(port)): peer for where, peer in rows for host, _, port in [where.rpartition(":")]}

    def note_accepts(self, host: str, port: int, peer: bytes) -> None:
        """Store that this queue manager has answered at the address."""
        with self._db.transaction():
            self._db.all("INSERT OR REPLACE INTO settings VALUES (?, ?)", (f"accepts {host}:{port}", peer))

    def unsent(self, outgoing: int, after: int, last: int, limit: int) -> list[Unsent]:
        """Up to `limit` transactional messages of an outgoing queue that are not held, with keys above `after` up to
        `last`, in order of sending."""
        return [
            Unsent(key - back, size // count, message_id - back, ordinal, time_stamp)
            for key, size, message_id, ordinal, time_stamp, count in self._db.all(
                "SELECT id, length(packet), message_id, ordinal, time_stamp, count FROM outgoing_messages "
                "WHERE outgoing = ? AND id > ? AND id <= ? AND number AND NOT held ORDER BY id LIMIT ?",
                (outgoing, after, last, limit),
            )
            for back in range(min(count, key - after) - 1, -1, -1)
        ][:limit]

    def renumber(self, key: int, ordinal: int, time_stamp: int, number: int, packet: Packet) -> None:
        """Renumber a message in a row of its own, also in its packet."""
        self._db.all(
            "UPDATE outgoing_messages SET ordinal = ?, time_stamp = ?, number = ?, packet = ? WHERE id = ?",
            (ordinal, time_stamp, number, packet, key),
        )

    def total(self) -> int:
        """Messages in all outgoing queues."""
        return self._db.number("SELECT coalesce(sum(messages), 0) FROM outgoing")

    def counts(self) -> list[OutgoingCount]:
        """Counts of all outgoing queues, by format name. Costs a look at each held or non-transactional message."""
        aside = "(SELECT count(*) FROM outgoing_messages WHERE outgoing = outgoing.id AND (held OR number = 0) AND {})"
        acked = "substr(confirmation, 1, 1) = x'4F'"
        return [
            OutgoingCount(
                name,
                bool(on_hold),
                messages,
                size,
                messages - others - unread,
                unread,
                sent and int.from_bytes(sent, "little"),
            )
            for name, on_hold, messages, size, others, unread, sent in self._db.all(
                f"SELECT format_name, on_hold, messages, bytes, {aside.format('number = 0')}, "
                f"{aside.format(f'number AND {acked}')}, "
                "(SELECT substr(packet, 53, 4) FROM outgoing_messages WHERE outgoing = outgoing.id AND NOT held "
                "ORDER BY id LIMIT 1) "
                "FROM outgoing ORDER BY format_name"
            )
        ]

    def remove_queue(self, identifier: int) -> None:
        """Remove an outgoing queue that has drained for good."""
        self._db.all("DELETE FROM outgoing WHERE id = ? AND messages = 0", (identifier,))

    def add(self, messages: Sequence[NewOutgoing]) -> range:
        """Put numbered packets in outgoing queues, in the transaction that stores the new stream states (B-098). Return
        their keys."""
        with self._db.transaction():
            first = key = self.last_key() + 1
            rows = []
            for message in messages:
                back = message.messages - 1
                key += message.messages
                number = message.number and message.number + back
                rows.append((message.outgoing, message.message_id + back, *message[2:4], number, *message[5:], key - 1))
            self._db.many(_ADD, rows)
            self._db.tally(
                "outgoing", [(message.outgoing, message.messages, len(message.packet)) for message in messages]
            )
        return range(first, key)

    def messages(self, after: int = 0, limit: int = -1) -> list[OutgoingEntry]:
        """Up to `limit` messages of all outgoing queues with keys above `after`, in order of sending."""
        return [
            row._replace(
                key=row.key + place,
                message_id=row.message_id + place,
                number=row.number and row.number + place,
                messages=1,
            )
            for row in self.rows_after(after, limit)
            for place in range(row.messages)
        ][: limit if limit >= 0 else None]

    def rows_after(self, after: int, limit: int) -> list[OutgoingEntry]:
        """As `messages`, by row. The last one may exceed the limit."""
        return _entries(self._db, "id > ?", (after,), after, limit)

    def to_be_sent(self, outgoing: int, after: int, last: int, limit: int) -> list[OutgoingEntry]:
        """Rows of an outgoing queue that are not held, with keys above `after` up to `last`, in order of sending: up to
        `limit` messages, and the rest of the last row."""
        return _entries(
            self._db, "id > ? AND outgoing = ? AND id <= ? AND NOT held", (after, outgoing, last), after, limit
        )

    def last_to_be_sent(self, outgoing: int, last: int, limit: int) -> list[OutgoingEntry]:
        """The last `limit` messages or more that are not held, with keys up to `last`, in order of sending, by row."""
        where = "outgoing = ? AND id <= ? AND NOT held ORDER BY id DESC LIMIT ?"
        return [_of_row(row, 0) for row in reversed(_rows_of_entries(self._db, where, (outgoing, last, limit)))]

    def aside(self, outgoing: int) -> tuple[int, int, int, int]:
        """Counts of an outgoing queue's held messages, and of its messages neither held nor transactional; the lowest
        and highest priority of the latter, 0 without any. Costs no look at other messages."""
        found: tuple[int, int, int, int] = self._db.all(
            "SELECT count(*) - count(plain), count(plain), coalesce(min(plain), 0), coalesce(max(plain), 0) FROM "
            "(SELECT iif(held, NULL, priority) AS plain FROM outgoing_messages "
            "WHERE (held OR number = 0) AND outgoing = ?)",
            (outgoing,),
        )[0]
        return found

    def _messages(self, kind: type[Kind], where: str, arguments: Sequence[Any]) -> list[Kind]:
        columns = ", ".join(kind._fields[1:])
        rows = self._db.all(f"SELECT id, {columns} FROM outgoing_messages WHERE {where}", arguments)
        return [kind(*row) for row in rows]

    def last_number(self, outgoing: int, ordinal: int, time_stamp: int) -> int:
        """TxSequenceNumber of the sequence's last message in the outgoing queue; 0 if there is none (B-318)."""
        return self._db.number(
            "SELECT number FROM outgoing_messages WHERE outgoing = ? AND ordinal = ? AND time_stamp = ? "
            "AND number > 0 AND NOT held ORDER BY id DESC LIMIT 1",
            (outgoing, ordinal, time_stamp),
        )

    def packet(self, key: int) -> tuple[bytearray, int]:
        """The packet of an outgoing message, and its last second for sending, -1 after a withdrawal by an operator.
        Raises StoreError if the message is gone."""
        rows = self._db.all(_ROWS + "id >= ? ORDER BY id LIMIT 1", (key,))
        if not rows or key <= rows[0][0] - rows[0][1]:
            raise StoreError(f"{self._db.path}: outgoing message {key} is gone")
        row = Row(*rows[0])
        return row.packets(key, 1), row.until

    def rows(self, outgoing: int, first: int, limit: int) -> list[Row]:
        """Up to `limit` rows of an outgoing queue, from the message with the key `first` on."""
        found = self._db.all(_ROWS + "outgoing = ? AND id >= ? ORDER BY id LIMIT ?", (outgoing, first, limit))
        return [Row(*row) for row in found]

    def waiting(self, keys: Iterable[int]) -> list[Waiting]:
        """The states of these outgoing messages, in order of sending. Each then has a row of its own."""
        known = sorted(keys)
        with self._db.transaction():
            for _, group in itertools.groupby(enumerate(known), lambda pair: pair[1] - pair[0]):
                its = [key for _, key in group]
                self._split("id BETWEEN ?1 AND ?2 + ?3 AND id - count < ?2", (its[0], its[-1], RUN_MESSAGES - 1))
            condition, arguments = self._db.among("id", known)
            return self._messages(Waiting, condition + " ORDER BY id", arguments)

    def waiting_own(self, message_id: int) -> Waiting | None:
        """The outgoing message sent here under this MessageID; None if there is none."""
        found = self._messages(
            Waiting,
            "own AND message_id BETWEEN ?1 AND ?1 + ?2 AND message_id - count < ?1 ORDER BY id DESC LIMIT 1",
            (message_id, RUN_MESSAGES - 1),
        )
        for last in found:
            back = last.message_id - message_id
            number = last.number and last.number - back
            return last._replace(key=last.key - back, message_id=message_id, number=number)
        return None

    def due(self, now: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` outgoing messages due by now, the most overdue, in order of sending: (key, bytes)."""
        rows = self._db.all(
            "SELECT id, count, length(packet) FROM outgoing_messages WHERE due <= ? ORDER BY due, id LIMIT ?",
            (now, limit),
        )
        due = [(key - back, size // count) for key, count, size in rows for back in range(count - 1, -1, -1)]
        return sorted(due[:limit])

    def waiting_in(self, outgoing: int, after: int, last: int, limit: int) -> list[Waiting]:
        """The states of up to `limit` rows of an outgoing queue with messages above the key `after` up to `last`. Each
        stands for all messages of its row."""
        return self._messages(
            Waiting,
            "outgoing = ?1 AND id > ?2 AND id <= ?3 + ?5 AND id - count < ?3 ORDER BY id LIMIT ?4",
            (outgoing, after, last, limit, RUN_MESSAGES - 1),
        )

    def foreign(self, guid: bytes, limit: int) -> list[Waiting]:
        """Up to `limit` outgoing messages sent here under another identifier than `guid` (C-30). After a change of the
        identifier, costs a look at all messages until there are none."""
        if not self._db.one("SELECT 1 FROM settings WHERE name = 'foreign'"):
            return []
        where = "own AND confirmation IS NOT NULL AND substr(packet, 17, 16) <> ?"
        self._split(where, (guid,), limit)
        found = self._messages(Waiting, where + " ORDER BY id LIMIT ?", (guid, limit))
        if not found:
            self._db.all("DELETE FROM settings WHERE name = 'foreign'")
        return found

    def note_foreign(self) -> None:
        """Store that the queue manager has a new identifier."""
        self._db.all("INSERT OR IGNORE INTO settings VALUES ('foreign', 1)")

    def keep(self, messages: Iterable[tuple[bytes | None, int | None, bool, int]]) -> None:
        """Store states of rows: (confirmation, due, held, key). A withdrawn message stays due at once."""
        self._db.many(
            "UPDATE outgoing_messages SET confirmation = ?, due = iif(deleted, 0, ?), held = ? WHERE id = ?", messages
        )

    def delete(self, keys: Iterable[int]) -> None:
        """Delete settled messages, in rows of their own, from their outgoing queues."""
        condition, gone = self._db.among("id", keys)
        of = "FROM outgoing_messages WHERE " + condition
        counts = f"SELECT outgoing, count(*), sum(length(packet)) {of} GROUP BY outgoing"
        with self._db.transaction():
            self._db.tally("outgoing", gone=self._db.all(counts, gone))
            self._db.all("DELETE " + of, gone)
