"""What a queue manager remembers: how far streams have come, how messages have ended, what it has had before."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ordack.store.database import Database, among


class Incoming(NamedTuple):
    """State of one incoming transactional stream (B-058 to B-060, B-081). `record`: the words of mqqb_incoming.
    `limit`: no OrderAck names a higher number (returns.py); None: it may name what was accepted."""

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
