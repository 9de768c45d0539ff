"""The queue manager's store: one SQLite file, and the only module that touches the disk.

One write transaction takes a whole batch: messages, the state of their streams, what was settled. It is durable when
`transaction()` has returned (write-ahead log, synchronous=FULL), and not at all if it raises. Several processes may
have the same store open at once, `ordack serve` and any number of applications and commands; writers wait for each
other.

A message is kept as the packet that came, one truth; only what is searched by is a column of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

FORMAT_VERSION = 2
APPLICATION_ID = 0x4C494F52  # in the file's header, so that no other program's database is taken for a store
FILE_NAME = "ordack.sqlite"
SERVE_LOCK = "serve.lock"
BUSY_TIMEOUT_S = 10.0
FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
RECEIVE_BYTES = 8 << 20  # one receive or peek of several messages ends when it has as many, to bound memory

PRIVATE = 0
SYSTEM = 1
ORDER_QUEUE_ID = 4

SYSTEM_QUEUES = (  # B-085; only the order queue's identifier is fixed by the protocol
    (1, "system$;deadletter", False),
    (2, "system$;deadxact", True),
    (3, "system$;journal", False),
    (ORDER_QUEUE_ID, "order_queue$", False),
    (5, "notify_queue$", False),
)
CLOSED_QUEUES = ("order_queue$", "notify_queue$")  # not open to applications (B-085)
FIRST_PRIVATE_ID = 16

SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- PrivateQueueIdentifier, never used twice
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    transactional INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE messages (
    lookup_id INTEGER PRIMARY KEY AUTOINCREMENT, -- order of arrival
    queue INTEGER NOT NULL,
    rank INTEGER NOT NULL,                       -- 7 - priority: order of reading is (rank, lookup_id)
    arrived INTEGER NOT NULL,                    -- seconds since 1970
    receiver INTEGER,                            -- who has it in an unfinished receive
    packet BLOB NOT NULL);
CREATE INDEX messages_order ON messages (queue, rank, lookup_id) WHERE receiver IS NULL;
CREATE INDEX messages_received ON messages (receiver) WHERE receiver IS NOT NULL;
CREATE TABLE incoming (
    source BLOB NOT NULL,
    destination TEXT NOT NULL,                   -- the name that the source's stream has, see Manager
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, reject_count INTEGER NOT NULL,
    last_access INTEGER NOT NULL,                -- seconds since 1970
    PRIMARY KEY (source, destination)) WITHOUT ROWID;
CREATE TABLE outgoing (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    format_name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, last_ack INTEGER NOT NULL,
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE outgoing_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,        -- order of sending
    outgoing INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, -- 0: not transactional
    recoverable INTEGER NOT NULL,
    journal INTEGER NOT NULL,
    awaiting_final_ack INTEGER NOT NULL DEFAULT 0,
    packet BLOB NOT NULL);
CREATE INDEX outgoing_messages_order ON outgoing_messages (outgoing, id);
CREATE TABLE history (
    source BLOB NOT NULL, message_id INTEGER NOT NULL, time INTEGER NOT NULL,
    PRIMARY KEY (source, message_id)) WITHOUT ROWID;

CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
    UPDATE queues SET messages = messages + 1, bytes = bytes + length(NEW.packet) WHERE id = NEW.queue; END;
CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
    UPDATE queues SET messages = messages - 1, bytes = bytes - length(OLD.packet) WHERE id = OLD.queue; END;
CREATE TRIGGER outgoing_added AFTER INSERT ON outgoing_messages BEGIN
    UPDATE outgoing SET messages = messages + 1, bytes = bytes + length(NEW.packet) WHERE id = NEW.outgoing; END;
CREATE TRIGGER outgoing_removed AFTER DELETE ON outgoing_messages BEGIN
    UPDATE outgoing SET messages = messages - 1, bytes = bytes - length(OLD.packet) WHERE id = OLD.outgoing; END;
"""


class StoreError(Exception):
    """The store cannot do what was asked; the text says why, for a person to read. Nothing was changed."""


class StoreBusy(StoreError):
    """Another process holds the store for longer than the busy timeout, or is already its queue manager."""


class StoreFull(StoreError):
    """No room: the disk, or the file's own limit."""


class BadName(ValueError):
    """A queue name or address that breaks the rules of wire.md 1.5; the text says which."""


class QueueExists(StoreError):
    """A queue of this name is there already."""


class NoSuchQueue(StoreError):
    """There is no queue of this name."""


class Queue(NamedTuple):
    """One queue. `identifier` is its PrivateQueueIdentifier; `messages` and `bytes` count what is in it."""

    identifier: int
    name: str
    transactional: bool
    kind: int
    messages: int
    bytes: int


class Stored(NamedTuple):
    """One message in a queue: its place (rank, lookup_id), arrival in seconds since 1970, and the packet as it came."""

    rank: int
    lookup_id: int
    arrived: int
    packet: bytes


class NewMessage(NamedTuple):
    """A message to put in a queue. `rank` is 7 - priority."""

    queue: int
    rank: int
    arrived: int
    packet: bytes | bytearray | memoryview


class Incoming(NamedTuple):
    """State of one incoming transactional stream (B-058 to B-060, B-081). `record`: the words of mqqb_incoming."""

    source: bytes
    destination: str
    record: tuple[int, ...]
    last_access: int


class Outgoing(NamedTuple):
    """One outgoing queue and its stream's state (B-056, B-057). `record`: the words of mqqb_outgoing."""

    identifier: int
    format_name: str
    record: tuple[int, ...]


class NewOutgoing(NamedTuple):
    """A message to put in an outgoing queue; `number` 0 and no sequence if it is not transactional."""

    outgoing: int
    message_id: int
    ordinal: int
    time_stamp: int
    number: int
    recoverable: bool
    journal: bool
    packet: bytes | bytearray | memoryview


class OutgoingEntry(NamedTuple):
    """A message in an outgoing queue, without its packet. The last three are 0 or 1."""

    key: int
    outgoing: int
    message_id: int
    ordinal: int
    time_stamp: int
    number: int
    recoverable: int
    journal: int
    awaiting_final_ack: int


def legible(text: str) -> str:
    r"""Text that anything takes, SQLite, JSON, a terminal: a lone surrogate, which the wire and an argument may hold,
    becomes the six characters \udXXX. Whatever came from outside passes here on its way to one of these."""
    return text.encode("utf-8", "backslashreplace").decode()


def queue_name(text: str) -> str:
    """The bare name in `line1` or `private$\\line1`; raises BadName with what is wrong with it (wire.md 1.5)."""
    name = text[9:] if text[:9].lower() == "private$\\" else text
    if not 1 <= len(name) <= 124:
        raise BadName(f"queue name {text!r}: has {len(name)} characters; 1 to 124 are allowed")
    bad = re.search(r"[^\x21-\x7f]|[\\;+,\"]", name)
    if bad:
        raise BadName(f"queue name {text!r}: the character {bad[0]!r} is not allowed "
                      '(visible ASCII without \\ ; + , ")')
    return name


class Store:
    """An open store. Not for use by several threads at once; each process or thread opens its own.

    All methods raise StoreError (or one of its kinds) when the store cannot be read or written; a method that writes
    outside `transaction()` is a transaction by itself.
    """

    guid: bytes  # QueueManager.Identifier (B-023), 16 wire bytes

    def __init__(self, folder: str | os.PathLike[str], create: bool = False,
                 busy_timeout: float = BUSY_TIMEOUT_S) -> None:
        """Open the store in `folder`; make it there first if `create`. `busy_timeout` in seconds."""
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        self._locks: list[int] = []  # descriptors
        self._receiver = 0
        self._seen_version = -1
        if legible(str(self.path)) != str(self.path):
            raise StoreError(f"the folder's name {str(folder)!r} is not UTF-8")
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(f"cannot make the folder {self.folder}: {error.strerror}") from None
        else:
            try:
                self.path.stat()
            except (FileNotFoundError, NotADirectoryError):
                raise StoreError(f"there is no store in {self.folder} "
                                 "(`ordack queue create` or `ordack serve` makes one)") from None
            except OSError as error:
                raise StoreError(f"cannot open {self.path}: {error.strerror}") from None
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        with self._errors():
            self._db = apsw.Connection(str(self.path), flags=flags, statementcachesize=64)
        try:
            self._prepare(busy_timeout)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, busy_timeout: float) -> None:
        with self._errors():
            self._db.set_busy_timeout(int(busy_timeout * 1000))
            self._db.pragma("synchronous", "full")
            if self._one("PRAGMA application_id") == APPLICATION_ID:
                self._check_version()
            elif self._one("SELECT count(*) FROM sqlite_master"):
                raise StoreError(f"{self.path} is a database of another program")
            self._use_write_ahead_log(time.monotonic() + busy_timeout)
        with self.transaction():
            if not self._one("SELECT count(*) FROM sqlite_master"):
                self._fill()
            self._check_version()
            self.guid = self._one("SELECT value FROM settings WHERE name = 'guid'")

    def _use_write_ahead_log(self, deadline: float) -> None:
        while True:
            try:
                self._db.pragma("journal_mode", "wal")
                return
            except apsw.BusyError:  # the busy timeout does not cover the change of mode
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check_version(self) -> None:
        version = self._one("PRAGMA user_version")
        if version != FORMAT_VERSION:
            raise StoreError(f"{self.path} has format version {version}; this ordack reads version {FORMAT_VERSION}"
                             + (": use a newer one" if version > FORMAT_VERSION else ""))

    def _fill(self) -> None:
        self._db.execute(SCHEMA)
        self._db.pragma("application_id", APPLICATION_ID)
        self._db.pragma("user_version", FORMAT_VERSION)
        self._many("INSERT INTO settings VALUES (?, ?)", [
            ("guid", secrets.token_bytes(16)), ("message_id_ordinal", 0), ("tx_time_stamp", 0), ("receiver", 0)])
        self._many("INSERT INTO queues (id, name, transactional, kind) VALUES (?, ?, ?, ?)",
                   [(identifier, name, transactional, SYSTEM) for identifier, name, transactional in SYSTEM_QUEUES])
        self._all("UPDATE sqlite_sequence SET seq = ? WHERE name = 'queues'", (FIRST_PRIVATE_ID - 1,))

    def close(self) -> None:
        """Put back what this store object had received without finishing, and close. Closing twice is fine."""
        if self._receiver:
            with contextlib.suppress(StoreError):
                self._all("UPDATE messages SET receiver = NULL WHERE receiver = ?", (self._receiver,))
            (self.folder / self._receiver_file(self._receiver)).unlink(missing_ok=True)
            self._receiver = 0
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- transactions

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside becomes durable together, or not at all if an exception leaves it. Nests."""
        if not self._db.get_autocommit():
            yield
            return
        self._all("BEGIN IMMEDIATE")
        try:
            yield
            self._all("COMMIT")
        except BaseException:
            if not self._db.get_autocommit():  # SQLite itself has ended it after some errors
                self._db.execute("ROLLBACK")
            raise

    def changed(self) -> bool:
        """Has another process changed the store since this was last asked? True the first time. Costs microseconds."""
        version = self._one("PRAGMA data_version")
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

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except apsw.BusyError:
            raise StoreBusy(f"{self.path} is locked by another process") from None
        except apsw.FullError:
            raise StoreFull(f"{self.path}: no room left to write") from None
        except (apsw.NotADBError, apsw.CorruptError):
            raise StoreError(f"{self.path} is damaged, or no store at all") from None
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError):
            raise StoreError(f"cannot open {self.path} for writing: check the folder's and the file's permissions"
                             ) from None
        except apsw.Error as error:
            raise StoreError(f"{self.path}: {error}") from error

    def _all(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self._errors():
            return self._db.execute(sql, arguments).fetchall()

    def _one(self, sql: str, arguments: Sequence[Any] = ()) -> Any:
        rows = self._all(sql, arguments)
        return rows[0][0] if rows else None

    def _many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.transaction(), self._errors():
            self._db.executemany(sql, rows)

    # ---- who else is there

    def _open_lock(self, name: str, flags: int) -> int | None:
        """A descriptor of this lock file with its lock, which the kernel frees when the process dies; None if another
        process has it, or without O_CREAT in flags if there is no such file."""
        path = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDWR | flags, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def lock_manager(self) -> None:
        """Become the store's only queue manager, until close; raises StoreBusy if another process is."""
        descriptor = self._open_lock(SERVE_LOCK, os.O_CREAT)
        if descriptor is None:
            pid = (self.folder / SERVE_LOCK).read_text().strip()
            raise StoreBusy(f"another `ordack serve` (process {pid or 'unknown'}) is running on {self.folder}")
        self._locks.append(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())

    def _become_receiver(self) -> None:
        """Have a number to mark messages with, and the lock that tells that its owner lives."""
        if self._receiver:
            return
        for path in self.folder.glob("receiver-*.lock"):
            self._put_back_if_dead(int(path.stem[9:]))
        receiver: int = self._one("UPDATE settings SET value = value + 1 WHERE name = 'receiver' RETURNING value")
        name = self._receiver_file(receiver)
        descriptor = self._open_lock(name + ".new", os.O_CREAT)
        assert descriptor is not None
        (self.folder / (name + ".new")).rename(self.folder / name)  # under this name it was never without its lock
        self._locks.append(descriptor)
        self._receiver = receiver

    @staticmethod
    def _receiver_file(receiver: int) -> str:
        return f"receiver-{receiver}.lock"

    def _put_back_for_the_dead(self) -> None:
        """Make available again what a process had received when it died before it finished."""
        for (receiver,) in self._all("SELECT DISTINCT receiver FROM messages WHERE receiver IS NOT NULL"):
            self._put_back_if_dead(receiver)

    def _put_back_if_dead(self, receiver: int) -> None:
        if receiver == self._receiver:
            return
        path = self.folder / self._receiver_file(receiver)
        descriptor = self._open_lock(path.name, 0)
        if descriptor is None and path.exists():
            return
        self._all("UPDATE messages SET receiver = NULL WHERE receiver = ?", (receiver,))
        path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)

    # ---- queues

    def create_queue(self, name: str, transactional: bool = False) -> Queue:
        """Make a private queue; raises BadName, QueueExists (names do not differ by case)."""
        name = queue_name(name)
        with self.transaction():
            if self.find_queue(name):
                raise QueueExists(f"the queue {name} exists already")
            self._all("INSERT INTO queues (name, transactional, kind) VALUES (?, ?, ?)", (name, transactional, PRIVATE))
            return self.queue(name)

    def queues(self) -> list[Queue]:
        """All queues, system queues first."""
        rows = self._all("SELECT id, name, transactional, kind, messages, bytes FROM queues ORDER BY kind DESC, name")
        return [Queue(row[0], row[1], bool(row[2]), *row[3:]) for row in rows]

    def find_queue(self, name: str) -> Queue | None:
        """The queue of this name, which is taken as it is, or None."""
        rows = self._all("SELECT id, name, transactional, kind, messages, bytes FROM queues WHERE name = ?", (name,))
        return Queue(rows[0][0], rows[0][1], bool(rows[0][2]), *rows[0][3:]) if rows else None

    def queue(self, name: str) -> Queue:
        """The queue of this name (system queues by their full name); raises BadName, NoSuchQueue."""
        found = self.find_queue(name) if name.isascii() else None
        found = found or self.find_queue(queue_name(name))
        if not found:
            raise NoSuchQueue(f"there is no queue {name}")
        return found

    def purge_queue(self, name: str) -> int:
        """Remove all messages of a queue, also those in an unfinished receive (B-340); how many."""
        with self.transaction():
            queue = self.queue(name)
            self._all("DELETE FROM messages WHERE queue = ?", (queue.identifier,))
            return queue.messages

    def delete_queue(self, name: str) -> int:
        """Remove a private queue and its messages; how many there were. What streams delivered to it stays noted by
        its name, so that a queue made again under that name gets nothing twice."""
        with self.transaction():
            queue = self.queue(name)
            if queue.kind == SYSTEM:
                raise StoreError(f"{queue.name} is a system queue: it cannot be deleted")
            self.purge_queue(name)
            self._all("DELETE FROM queues WHERE id = ?", (queue.identifier,))
            return queue.messages

    def usage(self) -> int:
        """Bytes of all packets kept, in local and outgoing queues (B-398)."""
        used: int = self._one("SELECT (SELECT total(bytes) FROM queues) + (SELECT total(bytes) FROM outgoing)")
        return int(used)

    # ---- messages in queues

    def add_messages(self, messages: Iterable[NewMessage]) -> None:
        """Put messages in queues, in order of arrival."""
        self._many("INSERT INTO messages (queue, rank, arrived, packet) VALUES (?, ?, ?, ?)", messages)

    def begin_receive(self, queue: int, limit: int = 1) -> list[Stored]:
        """Take up to `limit` messages in the queue's order (B-287). They stay on disk, hidden from other receivers,
        until `end_receive`; if this process dies before that they are available again, in their old place."""
        self._become_receiver()
        with self.transaction():
            self._put_back_for_the_dead()
            found = self._first(queue, limit)
            if found:
                self._many("UPDATE messages SET receiver = ? WHERE lookup_id = ?",
                           [(self._receiver, message.lookup_id) for message in found])
            return found

    def end_receive(self, lookup_ids: Iterable[int], remove: bool) -> None:
        """Finish a receive: remove the messages for good, or put them back (B-343)."""
        self._many("DELETE FROM messages WHERE lookup_id = ?" if remove else
                   "UPDATE messages SET receiver = NULL WHERE lookup_id = ?", [(key,) for key in lookup_ids])

    def peek(self, queue: int, limit: int = 1, after: tuple[int, int] = (-1, -1)) -> list[Stored]:
        """Up to `limit` messages of a queue in its order, beginning behind the place `after`; they stay in it."""
        self._put_back_for_the_dead()
        return self._first(queue, limit, after)

    def _first(self, queue: int, limit: int, after: tuple[int, int] = (-1, -1)) -> list[Stored]:
        found: list[Stored] = []
        size = 0
        with self._errors():
            for row in self._db.execute(
                    "SELECT rank, lookup_id, arrived, packet FROM messages INDEXED BY messages_order WHERE queue = ? "
                    "AND receiver IS NULL AND (rank, lookup_id) > (?, ?) ORDER BY rank, lookup_id LIMIT ?",
                    (queue, *after, limit)):
                found.append(Stored(*row))
                size += len(found[-1].packet)
                if size >= RECEIVE_BYTES:
                    break
        return found

    # ---- counters of the queue manager

    def reserve_message_ids(self, count: int = 1) -> int:
        """The first of `count` consecutive MessageIDs that nothing else will get (B-020; 0 is skipped, A-46)."""
        with self.transaction():
            last: int = self._one("SELECT value FROM settings WHERE name = 'message_id_ordinal'")
            first = 1 if last + count > 0xFFFFFFFF else last + 1
            self._all("UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (first + count - 1,))
            return first

    # ---- streams

    def incoming(self) -> list[Incoming]:
        """The state of all incoming streams."""
        return [Incoming(row[0], row[1], row[3:], row[2]) for row in self._all(
            "SELECT source, destination, last_access, ordinal, time_stamp, number, reject_count FROM incoming")]

    def save_incoming(self, records: Iterable[Incoming]) -> None:
        """Keep the new state of these streams."""
        self._many("INSERT OR REPLACE INTO incoming (source, destination, last_access, ordinal, time_stamp, "
                   "number, reject_count) VALUES (?, ?, ?, ?, ?, ?, ?)",
                   [(record.source, record.destination, record.last_access, *record.record) for record in records])

    def delete_incoming(self, streams: Iterable[tuple[bytes, str]]) -> None:
        """Forget the state of these streams (source, destination)."""
        self._many("DELETE FROM incoming WHERE source = ? AND destination = ?", streams)

    def outgoing_queues(self) -> list[Outgoing]:
        """All outgoing queues."""
        return [Outgoing(row[0], row[1], row[2:]) for row in self._all(
            "SELECT id, format_name, ordinal, time_stamp, number, last_ack FROM outgoing")]

    def outgoing_queue(self, format_name: str, now: int) -> Outgoing:
        """The outgoing queue of this format name, made if there is none. Its first sequence then has a TimeStamp later
        than any before (B-056, B-079): `now`, in seconds since 1970, unless that is not later."""
        with self.transaction():
            rows = self._all("SELECT id, format_name, ordinal, time_stamp, number, last_ack FROM outgoing "
                             "WHERE format_name = ?", (format_name,))
            if rows:
                return Outgoing(rows[0][0], rows[0][1], rows[0][2:])
            time_stamp = self._one("UPDATE settings SET value = max(value + 1, ?) WHERE name = 'tx_time_stamp' "
                                   "RETURNING value", (now,))
            self._all("INSERT INTO outgoing (format_name, ordinal, time_stamp, number, last_ack) "
                      "VALUES (?, 1, ?, 1, 0)", (format_name, time_stamp))
            return self.outgoing_queue(format_name, now)

    def save_outgoing(self, records: Iterable[Outgoing]) -> None:
        """Keep the new state of these outgoing queues."""
        self._many("UPDATE outgoing SET ordinal = ?, time_stamp = ?, number = ?, last_ack = ? WHERE id = ?",
                   [(*record.record, record.identifier) for record in records])

    def delete_outgoing_queue(self, identifier: int) -> None:
        """Remove an outgoing queue that has drained for good."""
        self._all("DELETE FROM outgoing WHERE id = ? AND messages = 0", (identifier,))

    def add_outgoing(self, messages: Iterable[NewOutgoing]) -> None:
        """Put numbered packets in outgoing queues; with the streams' new state in the same transaction (B-098)."""
        self._many("INSERT INTO outgoing_messages (outgoing, message_id, ordinal, time_stamp, number, recoverable, "
                   "journal, packet) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", messages)

    def outgoing_messages(self, after: int = 0) -> list[OutgoingEntry]:
        """What is in all outgoing queues with a key above `after`, in order of sending."""
        return [OutgoingEntry(*row) for row in self._all(
            "SELECT id, outgoing, message_id, ordinal, time_stamp, number, recoverable, journal, awaiting_final_ack "
            "FROM outgoing_messages WHERE id > ? ORDER BY id", (after,))]

    def last_outgoing_number(self, outgoing: int, ordinal: int, time_stamp: int) -> int:
        """TxSequenceNumber of the last message of this sequence still in the outgoing queue; 0 if none (B-318)."""
        found: int | None = self._one(
            "SELECT number FROM outgoing_messages WHERE outgoing = ? AND ordinal = ? AND time_stamp = ? "
            "AND number > 0 AND awaiting_final_ack = 0 ORDER BY id DESC LIMIT 1", (outgoing, ordinal, time_stamp))
        return found or 0

    def outgoing_packet(self, key: int) -> bytearray:
        """The packet of one outgoing message; raises StoreError if it is gone."""
        packet = self._one("SELECT packet FROM outgoing_messages WHERE id = ?", (key,))
        if packet is None:
            raise StoreError(f"{self.path}: outgoing message {key} is gone")
        return bytearray(packet)

    def keep_for_final_ack(self, keys: Iterable[int]) -> None:
        """Mark messages as delivered and waiting for their FinalAck (B-055, B-237)."""
        self._many("UPDATE outgoing_messages SET awaiting_final_ack = 1 WHERE id = ?", [(key,) for key in keys])

    def delete_outgoing(self, keys: Iterable[int]) -> None:
        """Remove settled messages from their outgoing queues."""
        self._many("DELETE FROM outgoing_messages WHERE id = ?", [(key,) for key in keys])

    # ---- duplicate filter

    def history(self) -> list[tuple[bytes, int, int]]:
        """MessageIDHistoryTable: (source, MessageID, time in seconds since 1970), oldest first."""
        return self._all("SELECT source, message_id, time FROM history ORDER BY time")

    def save_history(self, entries: Iterable[tuple[bytes, int, int]]) -> None:
        """Add identifiers, or give them a new time."""
        self._many("INSERT OR REPLACE INTO history (source, message_id, time) VALUES (?, ?, ?)", entries)

    def delete_history(self, identifiers: Iterable[tuple[bytes, int]]) -> None:
        """Forget identifiers (source, MessageID)."""
        self._many("DELETE FROM history WHERE source = ? AND message_id = ?", identifiers)
