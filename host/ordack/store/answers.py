"""What the last commit of each application came to, so that one of which nobody knows whether it has happened can be
asked for again."""

from __future__ import annotations

from typing import NamedTuple

from ordack.store.database import Database


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
