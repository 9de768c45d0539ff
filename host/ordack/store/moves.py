"""A clock that is put forward: what was sent or came before has times that are too early, and all of them are moved
along, a piece in each transaction. How far that is stands in the store, so that a process which dies in between moves
nothing twice."""

from __future__ import annotations

import json
from array import array
from typing import Any

from mqqb import core
from mqqb.confirm import SENT_TIME

from ordack.config.settings import NEVER
from ordack.store.clock import FIRST, sent_time
from ordack.store.database import Database, first_piece


class Moves:
    """The moves of one store."""

    def __init__(self, database: Database) -> None:
        self._is_pending = False
        self._db = database

    def is_pending(self) -> bool:
        """Have not all times been moved yet, as far as `load` and `begin` know? Nobody may go by them then."""
        return self._is_pending

    def load(self) -> None:
        """Find out what is pending."""
        self._is_pending = self._db.one("SELECT 1 FROM settings WHERE name = 'moving'") is not None

    def note_early(self) -> None:
        """Something is about to be stored while the clock is not set."""
        self._db.all("INSERT OR IGNORE INTO settings VALUES ('early', 1)")

    def begin_early(self, step: int) -> None:
        """As `begin`, of all that was stored before the clock was set."""
        if self._db.one("SELECT 1 FROM settings WHERE name = 'early'"):
            with self._db.transaction():
                self._db.all("DELETE FROM settings WHERE name = 'early'")
                self.begin(0, FIRST, step)

    def begin(self, first: int, last: int, step: int) -> None:
        """What was sent here between these times, seconds since 1970, was sent so many seconds later; what came then
        came later, too. `some` is to follow until nothing is pending, and before `begin` is called again."""
        with self._db.transaction():
            self._note(first, last, step, 0, 0)
        self._is_pending = True

    def _note(self, *progress: object) -> None:
        self._db.all("INSERT OR REPLACE INTO settings VALUES ('moving', ?)", (json.dumps(progress),))

    def some(self, limit: int) -> int:
        """Within a transaction: look at up to `limit` messages, fewer if they are large, and move the times of those
        that have to be; how many were looked at."""
        first, last, step, done, after = json.loads(self._db.one("SELECT value FROM settings WHERE name = 'moving'"))
        tables = self._outgoing, self._messages, self._history
        left = limit
        for place in range(done, len(tables)):
            keys, is_end = tables[place](first, last, step, after, left)
            left -= len(keys)
            if not is_end:
                self._note(first, last, step, place, keys[-1])
                return limit - left
            after = 0
        self._db.all("DELETE FROM settings WHERE name = 'moving'")
        self._is_pending = False
        return limit - left

    def _outgoing(self, first: int, last: int, step: int, after: Any, limit: int) -> tuple[list[Any], bool]:
        next_ones = self._db.all(
            "SELECT id, length(packet) FROM outgoing_messages WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
        )
        keys = first_piece(next_ones)
        rows = self._db.all(
            "SELECT substr(packet, 1, 60), confirmation, send_until, due, id FROM outgoing_messages "
            "WHERE (own OR due <= send_until) AND id > ? AND id <= ?",
            (after, max(keys, default=after)),
        )
        moved = []
        for start, confirmation, until, due, key in rows:
            if first <= sent_time(start) <= last:
                later = sent_time(start) + step
                record = array("I", confirmation or b"")
                if record:
                    record[SENT_TIME] = later
                moved.append(
                    (
                        until if until >= NEVER else until + step,
                        due and due + step,
                        record.tobytes() or None,
                        core.USER_SENT_TIME_AT,
                        later.to_bytes(4, "little"),
                        key,
                    )
                )
        self._db.many(
            "UPDATE outgoing_messages SET send_until = ?, due = ?, confirmation = ?, "
            "packet = CAST(substr(packet, 1, ?4) || ?5 || substr(packet, ?4 + 5) AS BLOB) WHERE id = ?6",
            moved,
        )
        return keys, len(keys) == len(next_ones) < limit

    def _messages(self, first: int, last: int, step: int, after: Any, limit: int) -> tuple[list[Any], bool]:
        next_ones = self._db.all(
            "SELECT lookup_id, length(packet) FROM messages WHERE lookup_id > ? ORDER BY lookup_id LIMIT ?",
            (after, limit),
        )
        keys = first_piece(next_ones)
        self._db.all(
            "UPDATE messages SET expires = expires + ?1, arrived = arrived + 1000000 * ?1 "
            "WHERE lookup_id > ?2 AND lookup_id <= ?3 AND arrived / 1000000 BETWEEN ?4 AND ?5",
            (step, after, max(keys, default=after), first, last),
        )
        return keys, len(keys) == len(next_ones) < limit

    def _history(self, first: int, last: int, step: int, after: Any, limit: int) -> tuple[list[Any], bool]:
        source, message_id = after or ("", 0)
        behind = bytes.fromhex(source), message_id
        keys = self._db.all(
            "SELECT source, message_id FROM history WHERE (source, message_id) > (?, ?) "
            "ORDER BY source, message_id LIMIT ?",
            (*behind, limit),
        )
        if keys:
            self._db.all(
                "UPDATE history SET time = time + ? WHERE (source, message_id) > (?, ?) "
                "AND (source, message_id) <= (?, ?) AND time BETWEEN ? AND ?",
                (step, *behind, *keys[-1], first, last),
            )
        return [(source.hex(), message_id) for source, message_id in keys], len(keys) < limit
