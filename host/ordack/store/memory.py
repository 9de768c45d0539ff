"""What a queue manager remembers: how far streams have come, how messages have ended, what it has had
before, what was exported."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ordack.store.database import Database, StoreBusy, StoreError, among
from ordack.store.files import SERVE_LOCK, Locks


class Incoming(NamedTuple):
    """State of one incoming transactional stream (B-058 to B-060, B-081). `record`: the words of mqqb_incoming.
    `limit`: no OrderAck names a higher number (incoming.py); None: it may name what was accepted."""

    source: bytes
    destination: str
    record: tuple[int, ...]
    last_access: int
    limit: int | None = None


class Memory:
    """The tables `incoming`, `outcomes` and `history`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def incoming(self) -> list[Incoming]:
        """The state of all incoming streams."""
        return [
            Incoming(row[0], row[1], row[4:], *row[2:4])
            for row in self._db.all(
                "SELECT source, destination, last_access, order_ack_limit, ordinal, time_stamp, number, reject_count "
                "FROM incoming"
            )
        ]

    def incoming_count(self) -> int:
        """How many incoming streams there are."""
        found: int = self._db.one("SELECT count(*) FROM incoming")
        return found

    def save_incoming(self, records: Iterable[Incoming]) -> None:
        """Keep the new state of these streams."""
        self._db.many(
            "INSERT OR REPLACE INTO incoming (source, destination, last_access, order_ack_limit, ordinal, "
            "time_stamp, number, reject_count) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (record.source, record.destination, record.last_access, record.limit, *record.record)
                for record in records
            ],
        )

    def delete_incoming(self, streams: Iterable[tuple[bytes, str]]) -> None:
        """Forget the state of these streams (source, destination)."""
        self._db.many("DELETE FROM incoming WHERE source = ? AND destination = ?", streams)

    def add_outcomes(self, outcomes: Iterable[tuple[int, bytes, int, str | None]]) -> None:
        """Note how messages sent here have ended: (MessageID, confirmation, seconds since 1970, format name of the
        destination of one that was not delivered)."""
        self._db.many(
            "INSERT OR REPLACE INTO outcomes (message_id, confirmation, ended, destination) VALUES (?, ?, ?, ?)",
            outcomes,
        )

    def add_outcomes_of(self, keys: Collection[int], record: bytes, end: bytes, now: int) -> None:
        """Note that those of the outgoing messages with these keys whose confirmation is `record` have ended so, and
        were delivered."""
        condition, arguments = among("id", keys)
        self._db.all(
            "INSERT OR REPLACE INTO outcomes (message_id, confirmation, ended) "
            f"SELECT message_id, ?, ? FROM outgoing_messages WHERE {condition} AND confirmation = ?",
            (end, now, *arguments, record),
        )

    def missed(self, message_id: int) -> str:
        """The format name of the queue that a message which has ended was not delivered to; "" if it was, or if nothing
        is known of it."""
        return self._db.one("SELECT destination FROM outcomes WHERE message_id = ?", (message_id,)) or ""

    def outcome(self, message_id: int) -> bytes | None:
        """The record of mqqb.confirm of a message that has ended; None if it has not, or that was too long ago."""
        confirmation: bytes | None = self._db.one(
            "SELECT confirmation FROM outcomes WHERE message_id = ?", (message_id,)
        )
        return confirmation

    def old_outcomes(self, keep: int) -> list[int]:
        """The messages of all outcomes but for the last `keep`, youngest first."""
        return self._db.column(
            "SELECT message_id FROM outcomes ORDER BY ended DESC, message_id DESC LIMIT "
            "iif((SELECT count(*) FROM outcomes) > ?1, -1, 0) OFFSET ?1",
            (keep,),
        )

    def forget_outcomes(self, messages: list[int], limit: int) -> int:
        """Forget the outcomes of the last so many of these messages, and take them off the list; how many."""
        last = messages[-limit:]
        del messages[-limit:]
        self._db.many("DELETE FROM outcomes WHERE message_id = ?", [(message,) for message in last])
        return len(last)

    def history(self) -> list[tuple[bytes, int, int]]:
        """MessageIDHistoryTable: (source, MessageID, time in seconds since 1970), oldest first."""
        return self._db.all("SELECT source, message_id, time FROM history ORDER BY time")

    def save_history(self, entries: Iterable[tuple[bytes, int, int]]) -> None:
        """Add identifiers, or give them a new time."""
        self._db.many("INSERT OR REPLACE INTO history (source, message_id, time) VALUES (?, ?, ?)", entries)

    def delete_history(self, identifiers: Iterable[tuple[bytes, int]]) -> None:
        """Forget identifiers (source, MessageID)."""
        self._db.many("DELETE FROM history WHERE source = ? AND message_id = ?", identifiers)


class Answer(NamedTuple):
    """The last commit of an application: its number, and what became of it, as access.py writes that."""

    number: int
    answer: bytes


class Answers:
    """The table `answers`. An application is 16 bytes."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def find(self, application: bytes) -> Answer | None:
        """Its last answer; None if it has had none, or was forgotten."""
        rows = self._db.all("SELECT number, answer FROM answers WHERE application = ?", (application,))
        return Answer(*rows[0]) if rows else None

    def keep(self, application: bytes, number: int, answer: bytes, now: int) -> None:
        """Keep it instead of the one before. now: seconds since 1970."""
        self._db.all("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (application, number, answer, now))

    def forget(self, application: bytes) -> None:
        """The application will not ask again."""
        self._db.all("DELETE FROM answers WHERE application = ?", (application,))

    def forget_before(self, time: int) -> None:
        """Forget those of applications that have done nothing since then, seconds since 1970."""
        self._db.all("DELETE FROM answers WHERE time < ?", (time,))


LAST_TIME_STAMP = 0xF0000000  # in 2097: an OrderAck, which anybody can forge (B-411), raises TimeStamps no further
FIRST_ORDINALS = 1 << 31
MESSAGE_IDS = 0xFFFFFFFF  # 1 to that


class Numbers:
    """Counters in the table `settings`. clock: gives seconds since 1970."""

    def __init__(self, database: Database, locks: Locks, clock: Callable[[], float]) -> None:
        self._db = database
        self._locks = locks
        self._clock = clock
        self._joined: int | None = None  # Database.rolled_back when it began, or joined, the run: that may be undone

    def begin_run(self, above: int = 0) -> None:
        """From now on numbers are given in new sequences, and MessageIDs from another place on.

        A store knows the numbers it has given only while a process has it open: it may be a backup that was put back,
        or a copy. So `ordack serve` begins a run at its start, and without it each process that sends; what has a
        number keeps it. above: see `outrun`.

        A TimeStamp comes from the clock, and is later than any that the store knows (B-056, B-079, A-22). A first
        Ordinal is random, not 1 (B-056), so that not even the same TimeStamp makes the same sequence. MessageIDs go on
        at a random place: 20,000 ids meet one of 10,000 in a duplicate filter with a probability of 1 in 140,000.
        """
        with self._db.transaction():
            self._joined = self._db.rolled_back
            self._db.all("UPDATE settings SET value = max(value, ?) WHERE name = 'tx_time_stamp'", (above,))
            self._db.many(
                "INSERT OR REPLACE INTO settings VALUES (?, ?)",
                [
                    ("run", self.new_time_stamp(int(self._clock()))),
                    ("message_id_ordinal", secrets.randbelow(MESSAGE_IDS)),
                ],
            )

    def outrun(self, time_stamp: int) -> bool:
        """Begin a run with later TimeStamps than this one, which was not given here; False if this one is earlier."""
        with self._db.transaction():
            if not self._run() < time_stamp < LAST_TIME_STAMP:
                return False
            self.begin_run(time_stamp)
            return True

    def _run(self) -> int:
        return self._db.one("SELECT value FROM settings WHERE name = 'run'") or 0

    def _join_run(self) -> None:
        """Give numbers in the run of the queue manager, or without one begin a run for this process."""
        if self._joined != self._db.rolled_back:
            if not self._locks.is_taken(SERVE_LOCK):
                self.begin_run()
            self._joined = self._db.rolled_back

    def is_of_this_run(self, time_stamp: int) -> bool:
        """Was a sequence with this TimeStamp begun in this run? In the transaction that gives a number in it."""
        self._join_run()
        return time_stamp > self._run()

    def reserve_message_ids(self, count: int = 1) -> int:
        """The first of `count` consecutive MessageIDs that nothing else will get (B-020; 0 is skipped, A-46), nor any
        message has that this store remembers; see `begin_run`."""
        with self._db.transaction():
            self._join_run()
            last: int | None = self._db.one("SELECT value FROM settings WHERE name = 'message_id_ordinal'")
            while last is not None:
                first = 1 if last + count > MESSAGE_IDS else last + 1
                last = self._db.one(
                    "SELECT max(id) FROM (SELECT message_id AS id FROM outcomes WHERE message_id BETWEEN ?1 AND ?2 "
                    "UNION ALL SELECT message_id FROM outgoing_messages WHERE own AND message_id BETWEEN ?1 AND ?2 "
                    "UNION ALL SELECT own FROM messages WHERE own BETWEEN ?1 AND ?2)",
                    (first, first + count - 1),
                )
            self._db.all("UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (first + count - 1,))
            return first

    def new_time_stamp(self, now: int) -> int:
        """A TimeStamp for a new sequence, later than any before (B-056, B-079)."""
        time_stamp: int = self._db.one(
            "UPDATE settings SET value = max(value + 1, ?) WHERE name = 'tx_time_stamp' RETURNING value", (now,)
        )
        return time_stamp

    def new_sequence(self, now: int) -> tuple[int, ...]:
        """The record of a new sequence (mqqb_outgoing). now: seconds since 1970."""
        return 1 + secrets.randbelow(FIRST_ORDINALS), self.new_time_stamp(now), 1, 0


EXPORT_LOCK = "export.lock"


class Export(NamedTuple):
    """The last segment of a queue in a folder, as in the table."""

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
        """Be the only one who exports these queues, {identifier: name}; raises StoreBusy if another exporter does one.

        A byte of one file is locked for each: a file for each would be a descriptor for each.
        """
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
                    raise StoreBusy(f"another `ordack export` is working on the queue {name}: only one can") from None
            yield
        finally:
            os.close(descriptor)

    def all(self, queue: str | None = None) -> list[Export]:
        """The last segments of a queue, or of all, one for each folder."""
        return [
            Export(*row)
            for row in self._db.all(
                "SELECT queue, folder, path, serial, name, messages, size, pending FROM exports "
                "WHERE ?1 IS NULL OR queue = ?1",
                (queue,),
            )
        ]

    def add(self, export: Export) -> None:
        """Record the segment that follows the last one, with the removal of its messages in the same transaction. One
        that waits to become visible must not be replaced: raises StoreError."""
        for last in self.all(export.queue):
            if last.folder == export.folder and (last.serial + 1, last.pending) != (export.serial, 0):
                raise StoreError(
                    f"the segment after {export.serial - 1} of the queue {export.queue} is recorded already: begin the "
                    "export again"
                )
        self.save(export)

    def save(self, export: Export) -> None:
        """Record the last segment of a queue in a folder."""
        self._db.many(
            "INSERT OR REPLACE INTO exports (queue, folder, path, serial, name, messages, size, pending) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [export],
        )
