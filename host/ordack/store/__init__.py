"""The queue manager's store: one SQLite file. No module outside this package touches the file.

One write transaction takes a whole batch: messages, stream states and settled messages. `transaction()` returns when
the batch is durable (write-ahead log, synchronous=FULL), and rolls it back on an exception. Several processes may open
one store. While `ordack serve` runs, it is the only writer, and other processes send their requests to it. Without
`ordack serve`, each process writes its own transactions.

The store keeps each message as the packet that arrived. Only searched fields have columns.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mqqb import guids

from ordack.config.names import PeerNames, counted, folded
from ordack.store import disk
from ordack.store.database import BUSY_TIMEOUT_S, Database, ServeLock
from ordack.store.disk import StoreBusy, StoreError, StoreFull, StoreServed, StoreUnknown
from ordack.store.files import make_store
from ordack.store.messages import Messages
from ordack.store.numbers import RUN_MESSAGES, Numbers
from ordack.store.outgoing import OutgoingQueues
from ordack.store.queues import Exports, Queues
from ordack.store.receive_locks import ReceiveLocks

__all__ = ["STATUS", "Store", "StoreBusy", "StoreError", "StoreFull", "StoreServed", "StoreUnknown"]

STATUS = "status.json"
PEERS_MAX = 1000  # counted by name; OTHER counts all further peers
OTHER = "other"
LIMIT, ALLOW_LIST, TLS = "limit", "allow-list", "tls"  # reasons for a refused connection


def refuse_served(folder: Path) -> None:
    """Raise StoreBusy if a queue manager runs on the store in the folder."""
    lock = ServeLock(folder)
    if lock.is_taken():
        raise lock.busy()


class Incoming(NamedTuple):
    """The state of an incoming transactional stream (B-058 to B-060, B-081). record: the words of mqqb_incoming. limit:
    the highest number that an OrderAck may name (incoming.py); None: no limit."""

    source: bytes
    destination: str
    record: tuple[int, ...]
    last_access: int
    limit: int | None = None


class Memory:
    """The tables `incoming` (streams), `outcomes` (of sent messages) and `history` (the duplicate filter)."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def incoming(self) -> list[Incoming]:
        """All incoming streams."""
        return [
            Incoming(row[0], row[1], row[4:], *row[2:4])
            for row in self._db.all(
                "SELECT source, destination, last_access, order_ack_limit, ordinal, time_stamp, number, reject_count "
                "FROM incoming"
            )
        ]

    def incoming_count(self) -> int:
        """The number of incoming streams."""
        return self._db.number("SELECT count(*) FROM incoming")

    def save_incoming(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert or replace streams: source, destination, last access, limit, and the words of the record."""
        self._db.many(
            "INSERT OR REPLACE INTO incoming (source, destination, last_access, order_ack_limit, ordinal, "
            "time_stamp, number, reject_count) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def delete_incoming(self, streams: Iterable[tuple[bytes, str]]) -> None:
        """Delete streams, named by (source, destination)."""
        self._db.many("DELETE FROM incoming WHERE source = ? AND destination = ?", streams)

    def add_outcomes(self, outcomes: Iterable[tuple[int, bytes, int, str | None, int]]) -> None:
        """Store outcomes of sent messages: (MessageID, confirmation, seconds since 1970, for an undelivered message the
        format name of its destination, and the number of messages up to this MessageID)."""
        self._db.many(
            "INSERT OR REPLACE INTO outcomes (message_id, confirmation, ended, destination, count) "
            "VALUES (?, ?, ?, ?, ?)",
            outcomes,
        )

    def missed(self, message_id: int) -> str:
        """The format name of an undelivered message's destination; "" for a delivered or unknown message."""
        return self._outcome("destination", message_id) or ""

    def outcome(self, message_id: int) -> bytes | None:
        """The mqqb.confirm record of a settled message; None for a pending or forgotten message."""
        confirmation: bytes | None = self._outcome("confirmation", message_id)
        return confirmation

    def _outcome(self, column: str, message_id: int) -> Any:
        return self._db.one(
            f"SELECT {column} FROM outcomes WHERE message_id BETWEEN ?1 AND ?1 + ?2 AND message_id - count < ?1 "
            "ORDER BY ended DESC LIMIT 1",
            (message_id, RUN_MESSAGES - 1),
        )

    def lost(self, since: int, destination: str = "") -> list[tuple[str, bytes, int, int, int, int]]:
        """The latest 20 groups of failed messages without dead letter (state X of mqqb.confirm, 0x58) that ended since
        then: destination, class (a word), number, first and last end, a MessageID. destination: "" for all."""
        return self._db.all(
            "SELECT destination, substr(confirmation, 21), sum(count), min(ended), max(ended), message_id "
            "FROM outcomes WHERE ended >= ?1 AND destination IS NOT NULL AND ?2 IN ('', destination) "
            "AND NOT instr(substr(confirmation, 1, 4), x'58') GROUP BY 1, 2 ORDER BY 5 DESC LIMIT 20",
            (since, destination),
        )

    def old_outcomes(self, keep: int) -> list[int]:
        """The last MessageIDs of all outcomes except those of the newest `keep` messages, newest first."""
        if self._db.number("SELECT sum(count) FROM outcomes") <= keep:
            return []
        return self._db.column(
            "SELECT message_id FROM (SELECT message_id, sum(count) OVER (ORDER BY ended DESC, message_id DESC) - count "
            "AS newer FROM outcomes) WHERE newer >= ?",
            (keep,),
        )

    def forget_outcomes(self, messages: list[int], limit: int) -> int:
        """Delete at most `limit` outcomes, from the end of the list of MessageIDs. Shorten the list, and return the
        number of deleted outcomes."""
        last = messages[-limit:]
        del messages[-limit:]
        self._db.many("DELETE FROM outcomes WHERE message_id = ?", [(message,) for message in last])
        return len(last)

    def history(self) -> list[tuple[bytes, int, int]]:
        """MessageIDHistoryTable: (source, MessageID, time in seconds since 1970), oldest first."""
        return self._db.all("SELECT source, message_id, time FROM history ORDER BY time")

    def save_history(self, entries: Iterable[tuple[bytes, int, int]]) -> None:
        """Insert identifiers, or renew their times."""
        self._db.many("INSERT OR REPLACE INTO history (source, message_id, time) VALUES (?, ?, ?)", entries)

    def delete_history(self, identifiers: Iterable[tuple[bytes, int]]) -> None:
        """Delete identifiers (source, MessageID)."""
        self._db.many("DELETE FROM history WHERE source = ? AND message_id = ?", identifiers)


class Answer(NamedTuple):
    """An application's last commit: its number, and its answer."""

    number: int
    answer: bytes


class Answers:
    """The table `answers`. The key is an application's identifier of 16 bytes."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def find(self, application: bytes) -> Answer | None:
        """The application's last answer; None if the table has none."""
        rows = self._db.all("SELECT number, answer FROM answers WHERE application = ?", (application,))
        return Answer(*rows[0]) if rows else None

    def keep(self, application: bytes, number: int, answer: bytes, now: int) -> None:
        """Insert or replace the last answer. now: seconds since 1970."""
        self._db.all("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (application, number, answer, now))

    def forget(self, application: bytes) -> None:
        """Delete the answer to an application that will not ask again."""
        self._db.all("DELETE FROM answers WHERE application = ?", (application,))

    def forget_before(self, time: int) -> None:
        """Delete the answers of commits before `time`, in seconds since 1970."""
        self._db.all("DELETE FROM answers WHERE time < ?", (time,))


class Claim(NamedTuple):
    """A name that a peer has announced. name: as announced; folded: as compared. certified: its certificate has the
    name. heard: when it was announced last, in seconds since 1970, within a day."""

    folded: str
    name: str
    guid: bytes
    certified: bool
    heard: int


class Claims:
    """The table `claims`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> list[Claim]:
        """All claims; the last one of a GUID is its current name."""
        return [Claim(*row) for row in self._db.all("SELECT * FROM claims ORDER BY heard")]

    def guid_of(self, folded: str) -> str:
        """The GUID of a name, in lower case without braces; "" if nobody has the name."""
        guid = self._db.one("SELECT guid FROM claims WHERE folded = ?", (folded,))
        return guids.guid_text(guid)[1:-1].lower() if guid else ""

    def save(self, claims: Iterable[Claim], gone: Iterable[str]) -> None:
        """Delete the claims of the folded names `gone`, and insert or replace others."""
        self._db.many("DELETE FROM claims WHERE folded = ?", [(folded,) for folded in gone])
        self._db.many("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?)", claims)


# Counters of a queue manager since its start. Only the working thread adds to them, so they need no lock. Other threads
# may read them at any time; two numbers may be an instant apart.


class PeerCounts:
    """Messages to and from a peer. sessions: open now, including handshakes. received: stored or answered. sent: all
    transmissions. resent: repeated transmissions. refused: refusals by message class; class 0 means lack of room."""

    __slots__ = ("received", "received_bytes", "refused", "resent", "sent", "sent_bytes", "sessions")

    def __init__(self) -> None:
        self.sessions = 0
        self.received = 0
        self.received_bytes = 0
        self.sent = 0
        self.sent_bytes = 0
        self.resent = 0
        self.refused: dict[int, int] = {}

    def refuse(self, message_class: int) -> None:
        """Count a refused message."""
        self.refused[message_class] = self.refused.get(message_class, 0) + 1


class CountsByPeer:
    """Counts of the first PEERS_MAX peers by name, and one count for all further peers. The limit bounds the memory:
    anybody may connect under new addresses."""

    def __init__(self) -> None:
        self.other = PeerCounts()
        self._named: dict[str, PeerCounts] = {}

    def of(self, name: str) -> PeerCounts:
        """The counts of a peer."""
        if name not in self._named:
            if len(self._named) >= PEERS_MAX:
                return self.other
            self._named[name] = PeerCounts()
        return self._named[name]

    def __iter__(self) -> Iterator[tuple[str, PeerCounts]]:
        return iter([*self._named.copy().items(), (OTHER, self.other)])  # a copy, because another thread may add a peer


class Counters:
    """The work of a queue manager. batches: transactions with messages from the network, by number of messages.
    sessions_refused: connections, by LIMIT, ALLOW_LIST or TLS. refused_at: the last refusal of a message in seconds
    since 1970, by reason. ends: ended sessions, by rule. failure: the store's failure at `failed_at`
    (monotonic milliseconds), "" after the next commit. turned: the loop's last round, in monotonic seconds."""

    def __init__(self) -> None:
        self.peers = CountsByPeer()
        self.batches = disk.Spread(disk.MESSAGES)
        self.sessions_refused = {LIMIT: 0, ALLOW_LIST: 0, TLS: 0}
        self.ends: dict[str, int] = {}
        self.store_failures = 0
        self.failure = ""
        self.failed_at = 0
        self.refused_at: dict[str, int] = {}
        self.turned = 0.0

    def ended(self, rule: str) -> None:
        """Count a session that ended by a rule."""
        self.ends[rule] = self.ends.get(rule, 0) + 1

    def store_failed(self, reason: str, now: int) -> None:
        """Count a failure of the store. now: monotonic milliseconds."""
        self.store_failures += 1
        self.failure = reason
        self.failed_at = now


class Store:
    """An open store. Each thread opens its own.

    All methods, also those of the store's parts, raise StoreError if the store is not readable or writable. A writing
    method outside `transaction()` is a transaction of its own.

    queues, messages: of this queue manager. outgoing: messages for other queue managers. memory: incoming streams and
    outcomes. numbers: MessageIDs and sequences. exports: segments of `ordack table export`. answers: to applications.
    claims: names that peers announce. work: writes of this object. guid: QueueManager.Identifier (B-023), 16 wire
    bytes.
    """

    database_type: type[Database] = Database

    def __init__(
        self,
        folder: str | os.PathLike[str],
        create: bool = False,
        busy_timeout: float = BUSY_TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the store in `folder`. create: make a missing store. busy_timeout: seconds. clock: returns seconds since
        1970."""
        self._lock = lock = ServeLock(Path(folder))
        self.is_new = create and make_store(Path(folder))
        self._database = database = self.database_type(folder, busy_timeout, lambda: lock.is_anothers())
        self.folder = database.folder
        self.path = database.path
        self.work = database.work
        self.guid = database.guid
        self.transaction, self.snapshot, self.attempt = database.transaction, database.snapshot, database.attempt
        self.touch, self.changed, self.wait = database.touch, database.changed, database.wait
        self.restart = database.restart
        self.queues = Queues(database)
        self.messages = Messages(database, ReceiveLocks(database.path))
        self.numbers = Numbers(database, lock.is_taken, clock)
        self.outgoing = OutgoingQueues(database, self.numbers)
        self.memory = Memory(database)
        self.exports = Exports(database)
        self.answers = Answers(database)
        self.claims = Claims(database)
        self._disk = disk.Disk(0, 0, 0, 0, 0, 0)
        self._disk_until = 0.0  # expiry of `_disk`, in monotonic seconds
        self._room, self._room_quota, self._room_until = disk.Room(0, ""), 0, 0.0

    def close(self) -> None:
        """Return unfinished receives of this object to their queues, and close. A second call does nothing."""
        self.messages.close()
        self._lock.close()
        self._database.close()

    @property
    def in_transaction(self) -> bool:
        """Is a transaction running? SQLite rolls transactions back by itself after some errors."""
        return self._database.in_transaction()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def lock_manager(self) -> None:
        """Become the store's only queue manager until close, and begin a run. Raises StoreBusy if a queue manager
        runs."""
        if self.is_served:
            raise self._lock.busy()
        with self.transaction():  # no other process takes a number in between
            self._lock.acquire()
            self.numbers.begin_run()

    @property
    def is_served(self) -> bool:
        """Is another object, usually in another process, the store's queue manager?"""
        return self._lock.is_anothers()

    @property
    def manager(self) -> str:
        """The text that names the `ordack serve` on the store, for people."""
        return self._lock.holder()

    def write_status(self, status: Mapping[str, Any]) -> None:
        """Write the queue manager's status for other processes. The file need not survive a power cut."""
        path = self.folder / STATUS
        try:
            new = path.with_suffix(".json.new")
            new.write_text(json.dumps(status))
            new.rename(path)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None

    def status(self) -> dict[str, Any] | None:
        """The queue manager's latest status; None if no queue manager runs."""
        if not self._lock.is_taken():
            return None
        try:
            shown: dict[str, Any] = json.loads((self.folder / STATUS).read_text())
        except (OSError, ValueError):
            return None
        return shown

    def renew_identity(self) -> bytes:
        """Give the queue manager of a copied store a new identifier (B-023). Raises StoreBusy while `ordack serve`
        runs."""
        self.lock_manager()
        with self.transaction():
            self.guid = secrets.token_bytes(16)
            self._database.all("UPDATE settings SET value = ? WHERE name = 'guid'", (self.guid,))
            self.outgoing.note_foreign()
        return self.guid

    def usage(self) -> int:
        """Bytes of all packets in local and outgoing queues (B-398)."""
        used = "SELECT (SELECT total(bytes) FROM queues) + (SELECT total(bytes) FROM outgoing)"
        return self._database.number(used)

    def room(self, quota: int) -> disk.Room:
        """The room for packets within the quota and on the disk (B-285, B-398)."""
        now = time.monotonic()
        if now < self._room_until and quota == self._room_quota:
            return self._room
        if now >= self._disk_until:
            self._disk = self._measure_disk()
            self._disk_until = now + disk.DISK_S * (self._disk.free > disk.AMPLE_BYTES)
        is_kept = disk.is_pinned(self._disk) and self._database.empty_log()
        self._room, self._room_quota = disk.room(quota, self.usage(), self._disk, is_kept), quota
        self._room_until = now + disk.DISK_S * (self._room.bytes > disk.AMPLE_BYTES)  # nobody fills it meanwhile
        return self._room

    def why_full(self, room: disk.Room) -> str:
        """The limit of the room and the largest queue, as text for people."""
        if disk.is_pinned(self._disk):
            return room.reason
        [(name, messages, size, is_here)] = self._database.all(
            "SELECT name, messages, bytes, true FROM queues UNION ALL SELECT format_name, messages, bytes, false "
            "FROM outgoing ORDER BY bytes DESC LIMIT 1"
        )
        if not size:
            return room.reason
        purge = f"receive from it, or empty it with `ordack message purge {shlex.quote(name)}`"
        way = purge if is_here else "`ordack status` says why it waits"
        return f"{room.reason}. {name} has most, {counted(messages, 'message')} of {counted(size, 'byte')}: {way}"

    def is_pinned(self) -> bool:
        """Does a reader pin a log so long that receives need the rest of the disk? Not for use in a transaction."""
        if not disk.is_pinned(self._measure_disk()):
            return False
        self._database.empty_log()
        return disk.is_pinned(self._measure_disk())

    def why_pinned(self) -> str:
        """A sentence that names the processes that pin the write-ahead log; "" if the log is short."""
        now = self._measure_disk()
        if not disk.is_pinned(now) and now.log < disk.LONG_LOG_BYTES:
            return ""
        return disk.pinned_by(self.path, now.log)

    def _measure_disk(self) -> disk.Disk:
        page, pages, unused = (
            self._database.one(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")
        )
        try:
            (size, free), file, log = disk.disk_bytes(self.folder), self.path.stat().st_size, disk.log_bytes(self.path)
        except OSError as error:
            raise StoreError(f"cannot look at {self.path}: {error.strerror}") from None
        return disk.Disk(size, free, file, page * pages, page * unused, log)

    def names(self) -> dict[str, Any]:
        """The names, public queues and numbers of the latest `keep_names`."""
        found: dict[str, Any] = json.loads(
            self._database.one("SELECT value FROM settings WHERE name = 'names'") or "{}"
        )
        return found

    def keep_names(self, names: Mapping[str, Any]) -> None:
        """Store the queue manager's configuration for applications (`Config.to_keep`)."""
        self._database.all("INSERT OR REPLACE INTO settings VALUES ('names', ?)", (json.dumps(names),))

    def peer_names(self) -> PeerNames:
        """The names of peers, from the configuration and announced."""
        names = self.names().get("names", {})
        return PeerNames(names, shown(self.claims.all(), names))

    def guid_named(self, name: str) -> str:
        """The GUID of a board or queue manager, in lower case without braces. Raises BadName."""
        names = self.names().get("names", {})
        if guid := PeerNames(names).guid_of(name):
            return guid
        guid = self.claims.guid_of(folded(name))
        if not guid or guid in names:
            raise self.peer_names().unknown(name)
        return guid


def shown(claims: Iterable[Claim], names: Mapping[str, str]) -> dict[str, str]:
    """Return names by GUID: those of the claims that the configured `names` do not override."""
    taken = set(map(folded, names.values()))
    return {guids.guid_text(one.guid)[1:-1].lower(): one.name for one in claims if one.folded not in taken}
