"""The queue manager's store: one SQLite file. No other module touches the disk.

One write transaction takes a whole batch: messages, the state of their streams, and what was settled. It is durable
when `transaction()` has returned (write-ahead log, synchronous=FULL), and does not happen at all if it raises. Several
processes may have one store open: `ordack serve` and any number of applications and commands. Writers wait for each
other.

The store keeps a message as the packet that came. Only what is searched by has a column of its own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import struct
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
from mqqb.confirm import SENT_TIME

from ordack.clock import SENT_TIME_AT, sent_time
from ordack.names import DEAD_LETTER, DEAD_XACT, JOURNAL, local_queue, queue_name
from ordack.room import Disk, Room, room
from ordack.write_ahead import WriteAheadLog, log_bytes, patience

FORMAT_VERSION = 8
APPLICATION_ID = 0x4C494F52  # in the file's header, so that no other program's database is taken for a store
FILE_NAME = "ordack.sqlite"
SERVE_LOCK = "serve.lock"
EXPORT_LOCK = "export.lock"
STATUS = "status.json"
BUSY_TIMEOUT_S = 10.0
FIRST_WAIT_S = 0.0002
LAST_WAIT_S = 0.02
PIECE_BYTES = 1 << 20  # messages that are moved in one transaction: their copies go through the log
RECEIVE_BYTES = 8 << 20  # one receive or peek of several messages ends when it has as many, to bound memory

PRIVATE = 0
SYSTEM = 1
SUBQUEUE = 2  # of a private queue: only what was moved from there comes into it
NEVER = 1 << 62  # seconds since 1970
ORDER_QUEUE_ID = 4

SYSTEM_QUEUES = (  # B-085; only the order queue's identifier is fixed by the protocol
    (1, DEAD_LETTER, False),
    (2, DEAD_XACT, True),
    (3, JOURNAL, False),
    (ORDER_QUEUE_ID, "order_queue$", False),
    (5, "notify_queue$", False),
)
CLOSED_QUEUES = ("order_queue$", "notify_queue$")  # not open to applications (B-085)
FIRST_PRIVATE_ID = 16
RANKS = range(8)  # 7 - priority
POISON = ";poison"  # behind a queue's name: its sub-queue for messages that came back too often
LAST_TIME_STAMP = 0xF0000000  # in 2097: an OrderAck, which anybody can forge (B-411), raises TimeStamps no further
FIRST_ORDINALS = 1 << 31
MESSAGE_IDS = 0xFFFFFFFF  # 1 to that

EXPORTS = """
CREATE TABLE exports (                           -- the last segment of a queue in a folder, see pipeline/segments.py
    queue TEXT NOT NULL COLLATE NOCASE,          -- its name: a queue made again under it goes on where that one ended
    folder TEXT NOT NULL,                        -- the folder's own identifier,
    path TEXT NOT NULL,                          -- and where it was
    serial INTEGER NOT NULL,
    name TEXT NOT NULL,                          -- of the file when it is visible
    messages INTEGER NOT NULL, size INTEGER NOT NULL, -- the file's, in bytes
    pending INTEGER NOT NULL,                    -- 1: it is not known to be visible; 2: nor is that expected any more
    PRIMARY KEY (queue, folder)) WITHOUT ROWID;
"""
MOVED = """
CREATE TRIGGER message_moved AFTER UPDATE OF queue ON messages BEGIN
    UPDATE queues SET messages = messages - 1, bytes = bytes - length(OLD.packet) WHERE id = OLD.queue;
    UPDATE queues SET messages = messages + 1, bytes = bytes + length(NEW.packet) WHERE id = NEW.queue; END;
"""
UPGRADES = {  # what makes the next version of one
    3: EXPORTS,
    4: "UPDATE messages SET arrived = arrived * 1000000",
    5: "ALTER TABLE incoming ADD COLUMN order_ack_limit INTEGER",
    6: "ALTER TABLE messages ADD COLUMN aborts INTEGER NOT NULL DEFAULT 0;" + MOVED,
    7: "ALTER TABLE outgoing ADD COLUMN discarded INTEGER NOT NULL DEFAULT 0",
}

SCHEMA = (
    """
CREATE TABLE settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE configuration (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID; -- what is not the default
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,      -- PrivateQueueIdentifier, never used twice
    name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    transactional INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    quota INTEGER,                             -- bytes; NULL: no limit
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE messages (
    lookup_id INTEGER PRIMARY KEY AUTOINCREMENT, -- order of arrival
    queue INTEGER NOT NULL,
    rank INTEGER NOT NULL,                       -- 7 - priority: order of reading is (rank, lookup_id)
    arrived INTEGER NOT NULL,                    -- microseconds since 1970
    receiver INTEGER,                            -- who has it in an unfinished receive
    expires INTEGER,                             -- when TimeToBeReceived is over, seconds since 1970; NULL: never
    wants INTEGER NOT NULL,                      -- what its removal leads to, bits of outcome.py
    peer BLOB,                                   -- queue manager that acknowledgements go back to,
    address TEXT,                                -- and the IP address that it had
    own INTEGER,                                 -- MessageID, if it was sent on this queue manager
    dead_letter TEXT,                            -- then: the application's dead-letter queue
    purged INTEGER NOT NULL DEFAULT 0,           -- it goes when its receive ends without a commit
    in_doubt INTEGER NOT NULL DEFAULT 0,         -- of a dead letter: it may have been received all the same
    aborts INTEGER NOT NULL DEFAULT 0,           -- how often a receive of it by an application was begun
    packet BLOB NOT NULL);
CREATE INDEX messages_expiry ON messages (expires) WHERE expires IS NOT NULL;
CREATE INDEX messages_purged ON messages (lookup_id) WHERE purged;
CREATE INDEX messages_own ON messages (own) WHERE own IS NOT NULL;
CREATE INDEX messages_order ON messages (queue, rank, lookup_id) WHERE receiver IS NULL;
CREATE INDEX messages_received ON messages (receiver) WHERE receiver IS NOT NULL;
CREATE TABLE incoming (
    source BLOB NOT NULL,
    destination TEXT NOT NULL,                   -- the name that the source's stream has, see Manager
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, reject_count INTEGER NOT NULL,
    last_access INTEGER NOT NULL,                -- seconds since 1970
    order_ack_limit INTEGER,                     -- no OrderAck names a higher number, see returns.py; NULL: none
    PRIMARY KEY (source, destination)) WITHOUT ROWID;
CREATE TABLE outgoing (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    format_name TEXT NOT NULL UNIQUE COLLATE NOCASE,
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, last_ack INTEGER NOT NULL,
    on_hold INTEGER NOT NULL DEFAULT 0,
    session_open INTEGER NOT NULL DEFAULT 0,     -- what is in it may have been transmitted
    resends INTEGER NOT NULL DEFAULT 0,          -- how often an operator has asked for one
    discarded INTEGER NOT NULL DEFAULT 0,        -- class of the latest message that has ended, if it is lost
    address TEXT,                                -- where the peer was last, if the queue is for one
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0);
CREATE TABLE outgoing_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,        -- order of sending
    outgoing INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    ordinal INTEGER NOT NULL, time_stamp INTEGER NOT NULL, number INTEGER NOT NULL, -- 0: not transactional
    recoverable INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    journal INTEGER NOT NULL,                    -- bits 1 JN, 2 JP
    own INTEGER NOT NULL,                        -- 0: forwarded
    send_until INTEGER NOT NULL,                 -- not sent after that; seconds since 1970
    due INTEGER,                                 -- when something becomes of it if nothing happens; NULL: never
    confirmation BLOB,                           -- record of mqqb.confirm; NULL: not transactional, or not sent here
    dead_letter TEXT,                            -- the application's dead-letter queue
    held INTEGER NOT NULL DEFAULT 0,             -- not to be sent any more: it waits for its FinalAck or its deadline
    deleted INTEGER NOT NULL DEFAULT 0,          -- an operator wants it to end
    packet BLOB NOT NULL);
CREATE INDEX outgoing_messages_order ON outgoing_messages (outgoing, id);
CREATE INDEX outgoing_messages_own ON outgoing_messages (message_id) WHERE own;
CREATE INDEX outgoing_messages_due ON outgoing_messages (due) WHERE due IS NOT NULL;
CREATE TABLE outcomes (                          -- of transactional messages sent here that have ended
    message_id INTEGER PRIMARY KEY,
    confirmation BLOB NOT NULL,
    ended INTEGER NOT NULL);                     -- seconds since 1970
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
    + MOVED
    + EXPORTS
)


class StoreError(Exception):
    """The store cannot do what was asked; the text says why, for a person to read. Nothing was changed, unless it is
    StoreUnknown."""


class StoreBusy(StoreError):
    """Another process holds the store for longer than the busy timeout, or is already its queue manager."""


class StoreFull(StoreError):
    """No room: the disk, or the file's own limit."""


class StoreUnknown(StoreError):
    """The disk failed while a change was made durable, and with all that came after: after a power cut the change may
    be there, whole, or not. Done again by this very Store, Client or queue manager it cannot happen twice, because they
    first make sure that it has not happened. Another process, or a later one, has to look before it does it again.

    reason: what failed. then: what to do about it."""

    def __init__(self, reason: str, then: str = "look, before another process makes it again") -> None:
        super().__init__(f"{reason}. It is not known whether the change was made: {then}")
        self.reason = reason


class QueueExists(StoreError):
    """A queue of this name is there already."""


class QueueNotEmpty(StoreError):
    """A queue with messages in it was to be deleted only if there are none."""


class NoSuchQueue(StoreError):
    """There is no queue of this name."""


class Queue(NamedTuple):
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
    """A message to put in a queue. `rank` is 7 - priority; the others are the columns of the table."""

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


class Leaving(NamedTuple):
    """A message that is about to be removed, and that somebody wants to be told of (`wants`, see NewMessage)."""

    lookup_id: int
    queue: int
    wants: int
    peer: bytes | None
    address: str | None
    dead_letter: str | None
    packet: bytes


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


class Incoming(NamedTuple):
    """State of one incoming transactional stream (B-058 to B-060, B-081). `record`: the words of mqqb_incoming.
    `limit`: no OrderAck names a higher number (returns.py); None: it may name what was accepted."""

    source: bytes
    destination: str
    record: tuple[int, ...]
    last_access: int
    limit: int | None = None


class Outgoing(NamedTuple):
    """One outgoing queue and its stream's state (B-056, B-057). `record`: the words of mqqb_outgoing. `resends`: how
    often an operator has asked for one (B-425)."""

    identifier: int
    format_name: str
    record: tuple[int, ...]
    on_hold: bool = False
    session_open: bool = False
    resends: int = 0
    address: str | None = None


class OutgoingCount(NamedTuple):
    """What is in an outgoing queue: all messages and their bytes; of the transactional ones sent here those that no
    OrderAck covers, EodNoAckCount, and those that wait for their FinalAck, EodNoReadCount (B-239, B-423). oldest_sent:
    SentTime of the first one that is still to be sent."""

    format_name: str
    on_hold: bool
    messages: int
    bytes: int
    not_order_acked: int
    not_read: int
    oldest_sent: int | None


class NewOutgoing(NamedTuple):
    """A message to put in an outgoing queue; `number` 0 and no sequence if it is not transactional, or forwarded. The
    others are the columns of the table."""

    outgoing: int
    message_id: int
    ordinal: int
    time_stamp: int
    number: int
    recoverable: bool
    journal: int
    packet: bytes | bytearray | memoryview
    priority: int = 0
    own: bool = True
    send_until: int = NEVER
    due: int | None = None
    confirmation: bytes | None = None
    dead_letter: str | None = None


class OutgoingEntry(NamedTuple):
    """A message in an outgoing queue, without its packet. `recoverable`, `held` and `stored` are 0 or 1."""

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
    stored: int  # an OrderAck has covered it


class Waiting(NamedTuple):
    """What decides about one outgoing message; columns of the table, without the packet."""

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


def legible(text: str) -> str:
    r"""Text that anything takes, SQLite, JSON, a terminal: a lone surrogate, which the wire and an argument may hold,
    becomes the six characters \udXXX. Whatever came from outside passes here on its way to one of these."""
    return text.encode("utf-8", "backslashreplace").decode()


def counted(number: int, noun: str, grouped: bool = False) -> str:
    """1 message, 2 messages, 2 batches; 2,000 messages if grouped."""
    text = f"{number:,}" if grouped else str(number)
    return f"{text} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def first_piece(rows: Iterable[tuple[int, int]]) -> list[int]:
    """The first keys of (key, bytes), as many as may be moved in one transaction; one at least."""
    keys: list[int] = []
    total = 0
    for key, size in rows:
        total += size
        if keys and total > PIECE_BYTES:
            break
        keys.append(key)
    return keys


class Store:
    """An open store. Not for use by several threads at once; each process or thread opens its own.

    All methods raise StoreError (or one of its kinds) when the store cannot be read or written; a method that writes
    outside `transaction()` is a transaction by itself.
    """

    guid: bytes  # QueueManager.Identifier (B-023), 16 wire bytes

    def __init__(
        self,
        folder: str | os.PathLike[str],
        create: bool = False,
        busy_timeout: float = BUSY_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the store in `folder`; make it there first if `create`. `busy_timeout` in seconds; clock: gives seconds
        since 1970."""
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        self.is_new = False  # it was not there before
        self._locks: list[int] = []  # descriptors
        self._receiver = 0
        self._to_put_back: list[int] = []
        self._in_doubt = False  # the last transaction may be in the log
        self._seen_version = -1
        self._clock = clock
        self._knows_run = False  # this store object was open all the time since the run began
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
                raise StoreError(
                    f"there is no store in {self.folder} (`ordack queue create` or `ordack serve` makes one)"
                ) from None
            except OSError as error:
                raise StoreError(f"cannot open {self.path}: {error.strerror}") from None
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        with self._errors():
            self._db = self._connect(flags)
        try:
            self._prepare(busy_timeout)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, busy_timeout: float) -> None:
        with self._errors():
            self._db.set_busy_handler(patience(busy_timeout))
            self._db.pragma("synchronous", "full")
            self._db.pragma("temp_store", "memory")  # another file system may be full
            if self._check_program():
                self._check_version()
            self._use_write_ahead_log(time.monotonic() + busy_timeout)
            self._log = WriteAheadLog(self._db, self.path, patience(busy_timeout))
        with self.transaction():
            if not self._one("SELECT count(*) FROM sqlite_master"):
                self._fill()
                self.is_new = True
            self._check_version()
            self._upgrade()
            self.guid = self._one("SELECT value FROM settings WHERE name = 'guid'")

    def _connect(self, flags: int) -> apsw.Connection:
        return apsw.Connection(str(self.path), flags=flags, statementcachesize=64)

    def _check_program(self) -> bool:
        """Is there a store in the file already? Raises StoreError if it is another program's."""
        if self._one("PRAGMA application_id") == APPLICATION_ID:
            return True
        if self._one("SELECT count(*) FROM sqlite_master"):
            raise StoreError(f"{self.path} is a database of another program")
        return False

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
        if version != FORMAT_VERSION and version not in UPGRADES:
            raise StoreError(
                f"{self.path} has format version {version}; this ordack reads version {FORMAT_VERSION}"
                + (": use a newer one" if version > FORMAT_VERSION else "")
            )

    def _upgrade(self) -> None:
        while (version := self._one("PRAGMA user_version")) != FORMAT_VERSION:
            self._db.execute(UPGRADES[version])
            self._db.pragma("user_version", version + 1)

    def _fill(self) -> None:
        self._db.execute(SCHEMA)
        self._db.pragma("application_id", APPLICATION_ID)
        self._db.pragma("user_version", FORMAT_VERSION)
        self._many(
            "INSERT INTO settings VALUES (?, ?)",
            [("guid", secrets.token_bytes(16)), ("message_id_ordinal", 0), ("tx_time_stamp", 0), ("receiver", 0)],
        )
        self._many(
            "INSERT INTO queues (id, name, transactional, kind) VALUES (?, ?, ?, ?)",
            [(identifier, name, transactional, SYSTEM) for identifier, name, transactional in SYSTEM_QUEUES],
        )
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
        """Everything written inside becomes durable together, or not at all if an exception leaves it, but for
        StoreUnknown. Nests."""
        if not self._db.get_autocommit():
            yield
            return
        if self._in_doubt:
            self._end_doubt()
        self._all("BEGIN IMMEDIATE")
        try:
            yield
            self._commit()
        except BaseException as error:
            self._roll_back()
            if isinstance(error, StoreFull):
                self._log.empty()  # for the next one
            raise

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read inside is of one moment. Nobody has to wait for that; nothing may be written."""
        if not self._db.get_autocommit():
            yield
            return
        self._all("BEGIN")
        try:
            yield
        finally:
            if not self._db.get_autocommit():  # SQLite itself has ended it after some errors
                self._db.execute("ROLLBACK")

    def _commit(self) -> None:
        """End the running transaction. If the disk fails in that, all of it may be in the log already, where only the
        next process to recover the log would find it."""
        try:
            with self._errors():
                self._log.keep_place()
                try:
                    self._db.execute("COMMIT")
                except apsw.IOError:
                    self._in_doubt = True
                    raise
        except StoreError:
            if self._in_doubt:
                self._roll_back()
                self._end_doubt()
            raise

    def _roll_back(self) -> None:
        self._knows_run = False  # it may have begun in this transaction
        if not self._db.get_autocommit():  # SQLite itself has ended it after some errors
            self._db.execute("ROLLBACK")

    def _end_doubt(self) -> None:
        """Make sure that a transaction whose end is unknown has not happened: the next one takes its place in the log.
        Raises StoreUnknown."""
        try:
            self._all("BEGIN IMMEDIATE")
            try:
                self._all("UPDATE settings SET value = value + 1 WHERE name = 'receiver'")  # it may skip some
                self._all("COMMIT")
            finally:
                self._roll_back()
        except StoreError as error:
            raise StoreUnknown(str(error)) from None
        self._in_doubt = False

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
            raise self._full() from None
        except (apsw.NotADBError, apsw.CorruptError):
            raise StoreError(f"{self.path} is damaged, or no store at all") from None
        except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError):
            raise StoreError(
                f"cannot open {self.path}: check the permissions of the folder and of the files in it"
            ) from None
        except apsw.Error as error:
            if isinstance(error, apsw.IOError) and os.statvfs(self.folder).f_bavail == 0:
                raise self._full() from None  # no room for the index of the log
            raise StoreError(f"{self.path}: {error}") from error

    def _full(self) -> StoreFull:
        return StoreFull(f"{self.path}: the disk is full, nothing can be written until there is room again")

    def _all(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self._errors():
            return self._db.execute(sql, arguments).fetchall()

    def _column(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        return [row[0] for row in self._all(sql, arguments)]

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

    def _is_locked(self, name: str) -> bool:
        """Does a process hold this lock? Asked as a reader, so that it needs no permission to write, and of two who ask
        at once none takes the other for it."""
        path = self.folder / name
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def lock_manager(self) -> None:
        """Become the store's only queue manager, until close, and begin a run. Raises StoreBusy if another is."""
        with self.transaction():  # nobody gives a number between the two
            descriptor = self._open_lock(SERVE_LOCK, os.O_CREAT)
            if descriptor is None:  # it may be one who asks, who has it for an instant
                time.sleep(LAST_WAIT_S)
                descriptor = self._open_lock(SERVE_LOCK, os.O_CREAT)
            if descriptor is None:
                pid = (self.folder / SERVE_LOCK).read_text().strip()
                raise StoreBusy(f"another `ordack serve` (process {pid or 'unknown'}) is running on {self.folder}")
            self._locks.append(descriptor)
            with contextlib.suppress(OSError):  # a full disk; the lock itself needs no room
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            self.begin_run()

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
        try:
            (self.folder / (name + ".new")).rename(self.folder / name)  # under this name it was never without its lock
        except OSError as error:
            os.close(descriptor)
            raise StoreError(f"cannot make {self.folder / name}: {error.strerror}") from None
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
        try:
            self._all("UPDATE messages SET receiver = NULL WHERE receiver = ?", (receiver,))
            path.unlink(missing_ok=True)
        finally:
            if descriptor is not None:  # else this process would hold the lock of the dead one
                os.close(descriptor)

    # ---- queues

    def create_queue(self, name: str, transactional: bool = False) -> Queue:
        """Make a private queue; raises BadName, QueueExists (names do not differ by case)."""
        name = queue_name(local_queue(name))
        with self.transaction():
            if self.find_queue(name):
                raise QueueExists(f"the queue {name} exists already")
            self._all("INSERT INTO queues (name, transactional, kind) VALUES (?, ?, ?)", (name, transactional, PRIVATE))
            return self.queue(name)

    def queues(self, where: str = "true ORDER BY kind = 1 DESC, name", arguments: Sequence[Any] = ()) -> list[Queue]:
        """All queues, system queues first."""
        rows = self._all(
            "SELECT id, name, transactional, kind, quota, messages, bytes FROM queues WHERE " + where, arguments
        )
        return [Queue(row[0], row[1], bool(row[2]), *row[3:]) for row in rows]

    def find_queue(self, name: str | int) -> Queue | None:
        """The queue of this name, which is taken as it is, or identifier; None if there is none."""
        found = self.queues("id = ?" if isinstance(name, int) else "name = ?", (name,))
        return found[0] if found else None

    def set_quota(self, name: str, quota: int | None) -> None:
        """Limit the bytes of the packets in a queue, or lift the limit; raises NoSuchQueue."""
        with self.transaction():
            self._all("UPDATE queues SET quota = ? WHERE id = ?", (quota, self.queue(name).identifier))

    def queue(self, name: str) -> Queue:
        """The queue of this name (system queues by their full name); raises BadName, NoSuchQueue."""
        meant = local_queue(name)
        found = self.find_queue(meant) if meant.isascii() else None
        found = found or self.find_queue(queue_name(meant))
        if not found:
            raise NoSuchQueue(f"there is no queue {name}; `ordack queue list` shows them")
        return found

    def mark_purged(self, queue: int, last: int = NEVER) -> int:
        """Messages of a queue up to this lookup id that are in an unfinished receive go when that ends without a commit
        (B-340); how many."""
        self._put_back_for_the_dead()
        return len(
            self._all(
                "UPDATE messages SET purged = 1 WHERE queue = ? AND lookup_id <= ? AND receiver IS NOT "
                "NULL RETURNING 1",
                (queue, last),
            )
        )

    def last_lookup_id(self) -> int:
        """What the newest message of all queues has, or had."""
        found: int | None = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'messages'")
        return found or 0

    def remove_queue(self, queue: int) -> None:
        """Remove a private queue that is empty. What streams delivered to it stays noted by its name, so that a queue
        made again under that name gets nothing twice."""
        self._all("DELETE FROM queues WHERE id = ? AND messages = 0", (queue,))

    def usage(self) -> int:
        """Bytes of all packets kept, in local and outgoing queues (B-398)."""
        used: int = self._one("SELECT (SELECT total(bytes) FROM queues) + (SELECT total(bytes) FROM outgoing)")
        return int(used)

    def room(self, quota: int) -> Room:
        """How much may still be stored, within the quota and on the disk (B-285, B-398)."""
        page, pages, unused = (self._one(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count"))
        try:
            disk, file = os.statvfs(self.folder), self.path.stat().st_size
            log = log_bytes(self.path)
        except OSError as error:
            raise StoreError(f"cannot look at {self.path}: {error.strerror}") from None
        size, free = (disk.f_frsize * blocks for blocks in (disk.f_blocks, disk.f_bavail))
        return room(quota, self.usage(), Disk(size, free, file, page * pages, page * unused, log))

    # ---- messages in queues

    def add_messages(self, messages: Iterable[NewMessage]) -> None:
        """Put messages in queues, in order of arrival, which is now."""
        now = time.time_ns() // 1000
        self._many(
            "INSERT INTO messages (arrived, queue, rank, packet, expires, wants, peer, address, own, in_doubt, "
            "dead_letter) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(now, *message) for message in messages],
        )

    def begin_receive(
        self, queue: int, limit: int = 1, now: int = 0, counted: bool = False, poison_after: int | None = None
    ) -> list[Stored]:
        """Take up to `limit` messages in the queue's order (B-287) that have not expired at `now`, seconds since 1970.
        They stay on disk, hidden from other receivers, until `delete_messages` or `put_back`; if this process dies
        before that they are available again, in their old place.

        counted: of each it is counted that a receive was begun; if it ends without a commit, that stays. poison_after:
        instead of being received once more, a message that came back so often is moved to the queue's sub-queue POISON;
        one that came back at all is received alone, so that others do not come back for its sake."""
        try:
            self._become_receiver()
            with self.transaction():
                self.put_back(())
                self._put_back_for_the_dead()
                found = self._first(queue, limit, now)
                if poison_after is not None:
                    while poisonous := [message.lookup_id for message in found if message.aborts >= poison_after]:
                        self._move_to_poison(queue, poisonous)
                        found = self._first(queue, limit, now)
                    suspects = (index for index, message in enumerate(found) if message.aborts)
                    found = found[: max(next(suspects, len(found)), 1)]
                if found:
                    self._all(
                        "UPDATE messages SET receiver = ?, aborts = aborts + ? WHERE lookup_id IN "
                        "(SELECT value FROM json_each(?))",
                        (self._receiver, counted, json.dumps([message.lookup_id for message in found])),
                    )
                return found
        except StoreUnknown as error:  # known is that none has left the queue, and nobody was given one
            raise StoreError(error.reason) from None

    def _move_to_poison(self, queue: int, lookup_ids: Sequence[int]) -> None:
        """They keep everything but their queue: also what follows when they are received, or expire."""
        self._all(
            "INSERT OR IGNORE INTO queues (name, transactional, kind) SELECT name || ?, transactional, ? "
            "FROM queues WHERE id = ?",
            (POISON, SUBQUEUE, queue),
        )
        self._all(
            "UPDATE messages SET queue = (SELECT id FROM queues WHERE name = "
            "(SELECT name || ? FROM queues WHERE id = ?)) WHERE lookup_id IN (SELECT value FROM json_each(?))",
            (POISON, queue, json.dumps(lookup_ids)),
        )

    def put_back(self, lookup_ids: Iterable[int]) -> None:
        """End a receive without a commit: the messages are available again in their old place (B-343). If the store
        fails they are before the next receive or peek of this store object."""
        self._to_put_back += lookup_ids
        if self._to_put_back:
            self._many("UPDATE messages SET receiver = NULL WHERE lookup_id = ?", [(key,) for key in self._to_put_back])
        self._to_put_back = []

    def received(self, lookup_ids: Sequence[int]) -> None:
        """Check that these messages are still ours to remove; raises StoreError."""
        count = self._one(
            "SELECT count(*) FROM messages WHERE receiver = ? AND lookup_id IN (SELECT value FROM json_each(?))",
            (self._receiver, json.dumps(list(lookup_ids))),
        )
        if count != len(lookup_ids):
            raise StoreError("the receive cannot be completed: its messages are not there any more")

    def leaving(self, lookup_ids: Iterable[int]) -> list[Leaving]:
        """Those of these messages whose removal somebody wants to be told of, in their order."""
        return [
            Leaving(*row)
            for row in self._all(
                "SELECT lookup_id, queue, wants, peer, address, dead_letter, packet FROM messages WHERE wants AND "
                "lookup_id IN (SELECT value FROM json_each(?)) ORDER BY lookup_id",
                (json.dumps(list(lookup_ids)),),
            )
        ]

    def delete_messages(self, lookup_ids: Iterable[int]) -> None:
        """Remove messages for good."""
        self._all(
            "DELETE FROM messages WHERE lookup_id IN (SELECT value FROM json_each(?))", (json.dumps(list(lookup_ids)),)
        )

    def unlocked(self, queue: int, limit: int, last: int = NEVER) -> list[int]:
        """Keys of up to `limit` messages of a queue that are in no receive, none above `last`. Fewer if large."""
        self._put_back_for_the_dead()
        found: list[tuple[int, int]] = []
        for rank in RANKS:  # one by one, so that the index leads past what is above `last`
            found += self._all(
                "SELECT lookup_id, length(packet) FROM messages INDEXED BY messages_order WHERE queue = "
                "? AND rank = ? AND receiver IS NULL AND lookup_id <= ? ORDER BY lookup_id LIMIT ?",
                (queue, rank, last, limit - len(found)),
            )
        return first_piece(found)

    def locked(self, queue: int) -> int:
        """How many messages of a queue are in an unfinished receive."""
        self._put_back_for_the_dead()
        found: int = self._one("SELECT count(*) FROM messages WHERE queue = ? AND receiver IS NOT NULL", (queue,))
        return found

    def over(self, now: int, limit: int) -> tuple[list[int], list[int]]:
        """Keys of up to `limit` messages in no receive whose time to be received is over (B-407), fewer if they are
        large, and of those that were in a receive when their queue was purged (B-340)."""
        self._put_back_for_the_dead()
        return (
            first_piece(
                self._all(
                    "SELECT lookup_id, length(packet) FROM messages WHERE expires <= ? AND receiver "
                    "IS NULL AND NOT purged ORDER BY expires, lookup_id LIMIT ?",
                    (now, limit),
                )
            ),
            self._column(
                "SELECT lookup_id FROM messages WHERE purged AND receiver IS NULL ORDER BY lookup_id LIMIT ?", (limit,)
            ),
        )

    def own_message(self, message_id: int) -> bytes | None:
        """The packet of a message sent here that is in a queue here; None if it is in none."""
        packet: bytes | None = self._one("SELECT packet FROM messages WHERE own = ?", (message_id,))
        return packet

    def peek(self, queue: int, limit: int = 1, after: tuple[int, int] = (-1, -1), now: int = 0) -> list[Stored]:
        """Up to `limit` messages of a queue in its order, beginning behind the place `after`; they stay in it."""
        self.put_back(())
        self._put_back_for_the_dead()
        return self._first(queue, limit, now, after)

    def _first(self, queue: int, limit: int, now: int, after: tuple[int, int] = (-1, -1)) -> list[Stored]:
        found: list[Stored] = []
        size = 0
        with self._errors():
            for row in self._db.execute(
                "SELECT rank, lookup_id, arrived, in_doubt, packet, aborts FROM messages "
                + self._available()
                + " AND queue = ? AND (rank, lookup_id) > (?, ?) AND NOT purged "
                "AND (expires IS NULL OR expires > ?) ORDER BY rank, lookup_id LIMIT ?",
                (queue, *after, now, limit),
            ):
                found.append(Stored(*row))
                size += len(found[-1].packet)
                if size >= RECEIVE_BYTES:
                    break
        return found

    def _available(self) -> str:
        """The condition for messages that nobody has in his hands, and the index that holds only them."""
        return "INDEXED BY messages_order WHERE receiver IS NULL"

    # ---- exports

    @contextlib.contextmanager
    def lock_exports(self, queues: Mapping[int, str]) -> Iterator[None]:
        """Be the only one who exports these queues, {identifier: name}; raises StoreBusy if another exporter does one.

        A byte of one file is locked for each: a file for each would be a descriptor for each.
        """
        path = self.folder / EXPORT_LOCK
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

    def exports(self, queue: str | None = None) -> list[Export]:
        """The last segments of a queue, or of all, one for each folder."""
        return [
            Export(*row)
            for row in self._all(
                "SELECT queue, folder, path, serial, name, messages, size, pending FROM exports "
                "WHERE ?1 IS NULL OR queue = ?1",
                (queue,),
            )
        ]

    def save_export(self, export: Export) -> None:
        """Record the last segment of a queue in a folder; with the removal of its messages in the same transaction."""
        self._many(
            "INSERT OR REPLACE INTO exports (queue, folder, path, serial, name, messages, size, pending) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [export],
        )

    # ---- the queue manager's configuration, counters, identity, state

    def configuration(self) -> dict[str, int]:
        """The values that differ from the defaults, by name (config.SETTINGS)."""
        return dict(self._all("SELECT name, value FROM configuration"))

    def configure(self, name: str, value: int | None) -> None:
        """Set a value; None: back to its default."""
        if value is None:
            self._all("DELETE FROM configuration WHERE name = ?", (name,))
        else:
            self._all("INSERT OR REPLACE INTO configuration VALUES (?, ?)", (name, value))

    def names(self) -> dict[str, Any]:
        """What the queue manager has last kept of its own names and public queues."""
        found: dict[str, Any] = json.loads(self._one("SELECT value FROM settings WHERE name = 'names'") or "{}")
        return found

    def keep_names(self, names: Mapping[str, Any]) -> None:
        """Keep the names that the queue manager was started with: applications' acknowledgements go by them."""
        self._all("INSERT OR REPLACE INTO settings VALUES ('names', ?)", (json.dumps(names),))

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Show other processes what the queue manager is doing; it need not survive anything."""
        try:
            (self.folder / (STATUS + ".new")).write_text(json.dumps(status))
            (self.folder / (STATUS + ".new")).rename(self.folder / STATUS)
        except OSError as error:
            raise StoreError(f"cannot write {self.folder / STATUS}: {error.strerror}") from None

    def status(self) -> dict[str, Any] | None:
        """What the queue manager has last shown; None if none is running."""
        if not self._is_locked(SERVE_LOCK):
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
            self._all("UPDATE settings SET value = ? WHERE name = 'guid'", (self.guid,))
        return self.guid

    # ---- runs

    def begin_run(self, above: int = 0) -> None:
        """From now on numbers are given in new sequences, and MessageIDs from another place on.

        What a store says of the numbers that it has given is true only while a process has it open: before that it may
        have been a backup that was put back, or a copy, and the numbers may be known at their destination as those of
        other messages. So `ordack serve` begins a run at its start, as a board does, and without it each process that
        sends; what has a number keeps it. above: see `outrun`.

        A TimeStamp comes from the clock, and is later than any that the store knows (B-056, B-079, A-22). If the clock
        is behind what was used after the backup was made, the destination refuses what is numbered, and its OrderAck
        tells (see lives.py). A first Ordinal is random rather than 1 (B-056), so that not even the same TimeStamp makes
        the same sequence.

        MessageIDs go on at a random place. So one is given twice only if the run comes to ids that were given in
        another life and are still remembered somewhere: the probability is about (ids of the run + ids remembered) /
        2**32. With 20,000 ids in the run and 10,000 in a duplicate filter that is 1 in 140,000.
        """
        with self.transaction():
            self._knows_run = True
            self._all("UPDATE settings SET value = max(value, ?) WHERE name = 'tx_time_stamp'", (above,))
            self._many(
                "INSERT OR REPLACE INTO settings VALUES (?, ?)",
                [
                    ("run", self.new_time_stamp(int(self._clock()))),
                    ("message_id_ordinal", secrets.randbelow(MESSAGE_IDS)),
                ],
            )

    def outrun(self, time_stamp: int) -> bool:
        """Begin a run with later TimeStamps than this one, which was not given here; False if this one is earlier."""
        with self.transaction():
            if not self._run() < time_stamp < LAST_TIME_STAMP:
                return False
            self.begin_run(time_stamp)
            return True

    def _run(self) -> int:
        return self._one("SELECT value FROM settings WHERE name = 'run'") or 0

    def _join_run(self) -> None:
        """Give numbers in the run of the queue manager, or without one begin a run for this process."""
        if not self._knows_run:
            if not self._is_locked(SERVE_LOCK):
                self.begin_run()
            self._knows_run = True

    def reserve_message_ids(self, count: int = 1) -> int:
        """The first of `count` consecutive MessageIDs that nothing else will get (B-020; 0 is skipped, A-46), nor any
        message has that this store remembers; see `begin_run`."""
        with self.transaction():
            self._join_run()
            last: int | None = self._one("SELECT value FROM settings WHERE name = 'message_id_ordinal'")
            while last is not None:
                first = 1 if last + count > MESSAGE_IDS else last + 1
                last = self._one(
                    "SELECT max(id) FROM (SELECT message_id AS id FROM outcomes WHERE message_id BETWEEN ?1 AND ?2 "
                    "UNION ALL SELECT message_id FROM outgoing_messages WHERE own AND message_id BETWEEN ?1 AND ?2 "
                    "UNION ALL SELECT own FROM messages WHERE own BETWEEN ?1 AND ?2)",
                    (first, first + count - 1),
                )
            self._all("UPDATE settings SET value = ? WHERE name = 'message_id_ordinal'", (first + count - 1,))
            return first

    def new_time_stamp(self, now: int) -> int:
        """A TimeStamp for a new sequence, later than any before (B-056, B-079)."""
        time_stamp: int = self._one(
            "UPDATE settings SET value = max(value + 1, ?) WHERE name = 'tx_time_stamp' RETURNING value", (now,)
        )
        return time_stamp

    def new_sequence(self, now: int) -> tuple[int, ...]:
        """The record of a new sequence (mqqb_outgoing). now: seconds since 1970."""
        return 1 + secrets.randbelow(FIRST_ORDINALS), self.new_time_stamp(now), 1, 0

    def number_in(self, outgoing: Outgoing, now: int) -> Outgoing:
        """The outgoing queue with the sequence in which its next message is to be numbered, in the same transaction:
        a new one if that which it has was not begun in this run."""
        self._join_run()
        if outgoing.record[1] > self._run():
            return outgoing
        return outgoing._replace(record=self.new_sequence(now))

    # ---- streams

    def incoming(self) -> list[Incoming]:
        """The state of all incoming streams."""
        return [
            Incoming(row[0], row[1], row[4:], *row[2:4])
            for row in self._all(
                "SELECT source, destination, last_access, order_ack_limit, ordinal, time_stamp, number, reject_count "
                "FROM incoming"
            )
        ]

    def save_incoming(self, records: Iterable[Incoming]) -> None:
        """Keep the new state of these streams."""
        self._many(
            "INSERT OR REPLACE INTO incoming (source, destination, last_access, order_ack_limit, ordinal, "
            "time_stamp, number, reject_count) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (record.source, record.destination, record.last_access, record.limit, *record.record)
                for record in records
            ],
        )

    def delete_incoming(self, streams: Iterable[tuple[bytes, str]]) -> None:
        """Forget the state of these streams (source, destination)."""
        self._many("DELETE FROM incoming WHERE source = ? AND destination = ?", streams)

    def outgoing_queues(self) -> list[Outgoing]:
        """All outgoing queues."""
        return self._outgoing_queues("true")

    def _outgoing_queues(self, where: str, arguments: Sequence[Any] = ()) -> list[Outgoing]:
        return [
            Outgoing(row[0], row[1], row[6:], bool(row[2]), bool(row[3]), *row[4:6])
            for row in self._all(
                "SELECT id, format_name, on_hold, session_open, resends, "
                "address, ordinal, time_stamp, number, last_ack "
                "FROM outgoing WHERE " + where,
                arguments,
            )
        ]

    def find_outgoing_queue(self, format_name: str) -> Outgoing | None:
        """The outgoing queue of this format name; None if there is none."""
        found = self._outgoing_queues("format_name = ?", (format_name,))
        return found[0] if found else None

    def outgoing_queue(self, format_name: str, now: int, address: str | None = None) -> Outgoing:
        """The outgoing queue of this format name, made if there is none, with a new sequence. now: seconds since 1970.
        address: where the peer that the queue is for was last."""
        with self.transaction():
            found = self.find_outgoing_queue(format_name)
            if found and address in (None, found.address):
                return found
            if found:
                self._all("UPDATE outgoing SET address = ? WHERE id = ?", (address, found.identifier))
            else:
                self._all(
                    "INSERT INTO outgoing (format_name, ordinal, time_stamp, number, last_ack, address) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (format_name, *self.new_sequence(now), address),
                )
            return self.outgoing_queue(format_name, now, address)

    def save_outgoing(self, records: Iterable[Outgoing]) -> None:
        """Keep the new state of the streams of these outgoing queues."""
        self._many(
            "UPDATE outgoing SET ordinal = ?, time_stamp = ?, number = ?, last_ack = ? WHERE id = ?",
            [(*record.record, record.identifier) for record in records],
        )

    def set_on_hold(self, format_name: str, on_hold: bool) -> bool:
        """Pause or resume an outgoing queue (B-345, B-346); False if there is none of this name."""
        return bool(
            self._all("UPDATE outgoing SET on_hold = ? WHERE format_name = ? RETURNING 1", (on_hold, format_name))
        )

    def request_resend(self, format_name: str) -> bool:
        """Ask the queue manager to send again what is not order-acknowledged (B-425). False: no such queue."""
        return bool(
            self._all("UPDATE outgoing SET resends = resends + 1 WHERE format_name = ? RETURNING 1", (format_name,))
        )

    def forwarded(self, outgoing: int) -> Iterator[tuple[int, bytearray]]:
        """What only passes through an outgoing queue: (key, packet)."""
        keys = self._column("SELECT id FROM outgoing_messages WHERE outgoing = ? AND NOT own AND due > 0", (outgoing,))
        return ((key, self.outgoing_packet(key)[0]) for key in keys)

    def request_purge(
        self, outgoing: int, limit: int = -1, after: int = 0, last: int = NEVER, keep: Collection[int] = ()
    ) -> list[int]:
        """Ask the queue manager to end the messages in an outgoing queue with keys above `after` up to `last` (C-29),
        `limit` at most, fewer if they are large, but for those with the keys `keep`; their keys."""
        keys = first_piece(
            self._all(
                "SELECT id, length(packet) FROM outgoing_messages WHERE outgoing = ? AND id > ? AND id <= ? "
                "AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY id LIMIT ?",
                (outgoing, after, last, json.dumps(list(keep)), limit),
            )
        )
        self._all(
            "UPDATE outgoing_messages SET deleted = 1, due = 0 WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(keys),),
        )
        return keys

    def last_outgoing_key(self) -> int:
        """What the newest message of all outgoing queues has, or had."""
        found: int | None = self._one("SELECT seq FROM sqlite_sequence WHERE name = 'outgoing_messages'")
        return found or 0

    def give_up_acknowledgements(self, outgoing: int, count: int) -> None:
        """The queue manager gives up the oldest so many of its acknowledgements in an outgoing queue, as a purge does;
        not messages that only pass through."""
        self._all(
            "UPDATE outgoing_messages SET deleted = 1, due = 0 WHERE id IN (SELECT id FROM outgoing_messages "
            "WHERE outgoing = ? AND NOT own AND due IS NULL ORDER BY id LIMIT ?)",
            (outgoing, count),
        )

    def note_discarded(self, classes: Mapping[int, int]) -> None:
        """Note of outgoing queues how their latest message has ended: 0, or the class of one that was discarded."""
        self._many(
            "UPDATE outgoing SET discarded = ?1 WHERE id = ?2 AND discarded <> ?1",
            [(number, outgoing) for outgoing, number in classes.items()],
        )

    def discarded(self, format_name: str) -> int:
        """What `note_discarded` has noted; 0 if there is no such queue."""
        found: int | None = self._one("SELECT discarded FROM outgoing WHERE format_name = ?", (format_name,))
        return found or 0

    def set_session_open(self, outgoing: int, session_open: bool) -> None:
        """Note that what is in an outgoing queue may be transmitted from now on, or is not any more."""
        self._all("UPDATE outgoing SET session_open = ? WHERE id = ?", (session_open, outgoing))

    def outgoing_counts(self) -> list[OutgoingCount]:
        """What is in the outgoing queues, by format name."""
        return [
            OutgoingCount(
                row[0], bool(row[1]), row[2], row[3], row[4], row[5], row[6] and int.from_bytes(row[6], "little")
            )
            for row in self._all(
                "SELECT format_name, on_hold, messages, bytes, "
                "(SELECT count(*) FROM outgoing_messages WHERE outgoing = outgoing.id AND number "
                "AND substr(confirmation, 1, 1) <> x'4F'), "
                "(SELECT count(*) FROM outgoing_messages WHERE outgoing = outgoing.id AND number "
                "AND substr(confirmation, 1, 1) = x'4F'), "
                "(SELECT substr(packet, 53, 4) FROM outgoing_messages WHERE outgoing = outgoing.id AND NOT held "
                "ORDER BY id LIMIT 1) "
                "FROM outgoing ORDER BY format_name"
            )
        ]

    def delete_outgoing_queue(self, identifier: int) -> None:
        """Remove an outgoing queue that has drained for good."""
        self._all("DELETE FROM outgoing WHERE id = ? AND messages = 0", (identifier,))

    def add_outgoing(self, messages: Iterable[NewOutgoing]) -> None:
        """Put numbered packets in outgoing queues; with the streams' new state in the same transaction (B-098)."""
        self._many(
            "INSERT INTO outgoing_messages (outgoing, message_id, ordinal, time_stamp, number, recoverable, "
            "journal, packet, priority, own, send_until, due, confirmation, dead_letter) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            messages,
        )

    def outgoing_messages(self, after: int = 0, limit: int = -1) -> list[OutgoingEntry]:
        """What is in all outgoing queues with a key above `after`, in order of sending, `limit` at most."""
        return [
            OutgoingEntry(*row)
            for row in self._all(
                "SELECT id, outgoing, message_id, ordinal, time_stamp, number, recoverable, journal, priority, held, "
                "held AND substr(confirmation, 1, 1) = x'4F' FROM outgoing_messages WHERE id > ? ORDER BY id LIMIT ?",
                (after, limit),
            )
        ]

    def last_outgoing_number(self, outgoing: int, ordinal: int, time_stamp: int) -> int:
        """TxSequenceNumber of the last message of this sequence still in the outgoing queue; 0 if none (B-318)."""
        found: int | None = self._one(
            "SELECT number FROM outgoing_messages WHERE outgoing = ? AND ordinal = ? AND time_stamp = ? "
            "AND number > 0 AND NOT held ORDER BY id DESC LIMIT 1",
            (outgoing, ordinal, time_stamp),
        )
        return found or 0

    def outgoing_packet(self, key: int) -> tuple[bytearray, int]:
        """The packet of one outgoing message, and until when it may be sent: -1 if an operator has withdrawn it. Raises
        StoreError if it is gone."""
        rows = self._all("SELECT packet, iif(deleted, -1, send_until) FROM outgoing_messages WHERE id = ?", (key,))
        if not rows:
            raise StoreError(f"{self.path}: outgoing message {key} is gone")
        return bytearray(rows[0][0]), rows[0][1]

    def waiting(self, keys: Iterable[int]) -> list[Waiting]:
        """What decides about these outgoing messages, in order of sending."""
        return self._waiting("id IN (SELECT value FROM json_each(?)) ORDER BY id", (json.dumps(list(keys)),))

    def waiting_own(self, message_id: int) -> Waiting | None:
        """The outgoing message that was sent here under this MessageID; None if it is not there (any more)."""
        found = self._waiting("own AND message_id = ? ORDER BY id DESC LIMIT 1", (message_id,))
        return found[0] if found else None

    def due_outgoing(self, now: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` outgoing messages of which something becomes by now, those that were due first, in order of
        sending: (key, bytes)."""
        return sorted(
            self._all(
                "SELECT id, length(packet) FROM outgoing_messages WHERE due <= ? ORDER BY due, id LIMIT ?", (now, limit)
            )
        )

    def waiting_in(self, outgoing: int, after: int, last: int, limit: int) -> list[Waiting]:
        """What decides about up to `limit` messages of an outgoing queue, with keys above `after` up to `last`."""
        return self._waiting("outgoing = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?", (outgoing, after, last, limit))

    def foreign_outgoing(self, limit: int) -> list[Waiting]:
        """Up to `limit` outgoing messages that were sent here when the queue manager had another identifier (C-30)."""
        return self._waiting(
            "own AND confirmation IS NOT NULL AND substr(packet, 17, 16) <> ? ORDER BY id LIMIT ?", (self.guid, limit)
        )

    def _waiting(self, where: str, arguments: Sequence[Any]) -> list[Waiting]:
        return [
            Waiting(*row)
            for row in self._all(
                "SELECT id, outgoing, message_id, own, journal, send_until, due, confirmation, dead_letter, deleted "
                "FROM outgoing_messages WHERE " + where,
                arguments,
            )
        ]

    def keep_outgoing(self, messages: Iterable[tuple[bytes | None, int | None, bool, int]]) -> None:
        """Keep what has become of outgoing messages: (confirmation, due, held, key). One that was withdrawn stays due
        at once."""
        self._many(
            "UPDATE outgoing_messages SET confirmation = ?, due = iif(deleted, 0, ?), held = ? WHERE id = ?", messages
        )

    def delete_outgoing(self, keys: Iterable[int]) -> None:
        """Remove settled messages from their outgoing queues."""
        self._many("DELETE FROM outgoing_messages WHERE id = ?", [(key,) for key in keys])

    def move(self, first: int, last: int, step: int) -> None:
        """What was sent here between these times, seconds since 1970, was sent so many seconds later; what came then
        came later, too."""
        times = step, first, last
        with self.snapshot(), self._errors():  # as a rule there is nothing: nobody waits for such a look
            keys = [
                key
                for key, start in self._db.execute("SELECT id, substr(packet, 1, 60) FROM outgoing_messages WHERE own")
                if first <= sent_time(start) <= last
            ]
            came = self._one(
                "SELECT EXISTS (SELECT 1 FROM messages WHERE expires IS NOT NULL AND arrived / 1000000 "
                "BETWEEN ?1 AND ?2) OR EXISTS (SELECT 1 FROM history WHERE time BETWEEN ?1 AND ?2)",
                (first, last),
            )
        if not keys and not came:
            return
        with self.transaction():
            rows = self._all(
                "SELECT substr(packet, 1, 60), confirmation, send_until, due, id FROM outgoing_messages "
                "WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(keys),),
            )
            for start, confirmation, until, due, key in rows:
                later = sent_time(start) + step
                record = array("I", confirmation or b"")
                if record:
                    record[SENT_TIME] = later
                self._all(
                    "UPDATE outgoing_messages SET send_until = ?, due = ?, confirmation = ?, "
                    "packet = CAST(substr(packet, 1, ?4) || ?5 || substr(packet, ?4 + 5) AS BLOB) WHERE id = ?6",
                    (
                        until if until >= NEVER else until + step,
                        due and due + step,
                        record.tobytes() or None,
                        SENT_TIME_AT,
                        later.to_bytes(4, "little"),
                        key,
                    ),
                )
            self._all(
                "UPDATE messages SET expires = expires + ? WHERE expires IS NOT NULL "
                "AND arrived / 1000000 BETWEEN ? AND ?",
                times,
            )
            self._all("UPDATE history SET time = time + ? WHERE time BETWEEN ? AND ?", times)

    # ---- outcomes

    def add_outcomes(self, outcomes: Iterable[tuple[int, bytes, int]]) -> None:
        """Note how messages sent here have ended: (MessageID, confirmation, seconds since 1970)."""
        self._many("INSERT OR REPLACE INTO outcomes (message_id, confirmation, ended) VALUES (?, ?, ?)", outcomes)

    def outcome(self, message_id: int) -> bytes | None:
        """The record of mqqb.confirm of a message that has ended; None if it has not, or that was too long ago."""
        confirmation: bytes | None = self._one("SELECT confirmation FROM outcomes WHERE message_id = ?", (message_id,))
        return confirmation

    def old_outcomes(self, keep: int) -> list[int]:
        """The messages of all outcomes but for the last `keep`, youngest first."""
        return self._column(
            "SELECT message_id FROM outcomes ORDER BY ended DESC, message_id DESC LIMIT "
            "iif((SELECT count(*) FROM outcomes) > ?1, -1, 0) OFFSET ?1",
            (keep,),
        )

    def forget_outcomes(self, messages: list[int], limit: int) -> int:
        """Forget the outcomes of the last so many of these messages, and take them off the list; how many."""
        last = messages[-limit:]
        del messages[-limit:]
        self._many("DELETE FROM outcomes WHERE message_id = ?", [(message,) for message in last])
        return len(last)

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
