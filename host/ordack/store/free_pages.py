"""Pages of a store's file that messages have left. They are room for the next messages; what nobody has needed of them
for long goes back to the disk, for others.

SQLite does that some pages at a time: the last page of the file takes the place of a free one, and the file ends before
it from the next checkpoint on. Only a file that was made for it can (`auto_vacuum`); one of an older ordack keeps its
size.
"""

from __future__ import annotations

from ordack.store.database import Database
from ordack.store.room import RESERVE_BYTES

KEPT_BYTES = RESERVE_BYTES  # a store keeps as many, however quiet it is
WATCHED_MS = 600_000  # what is free all that time is too much


class FreePages:
    """too_many: pages that are to be given back now."""

    def __init__(self, database: Database) -> None:
        self.too_many = 0
        self._db = database
        self._least = 0  # that were to spare since the watch began
        self._until = 0

    def watch(self, now: int) -> None:
        """To be called again and again: see what is to spare. now: monotonic milliseconds."""
        spare = self._spare()
        if now >= self._until:
            self.too_many = self._least
            self._least, self._until = spare, now + WATCHED_MS
        self._least = min(self._least, spare)

    def give_back(self, limit: int) -> int:
        """Within a transaction: give back up to `limit` of the pages that are too many; how many."""
        pages = min(limit, self.too_many, self._spare())
        if pages:
            self._db.all(f"PRAGMA incremental_vacuum({pages})")
        self.too_many = self.too_many - pages if pages else 0
        return pages

    def _spare(self) -> int:
        """Pages that are free, but for those that are kept."""
        free: int = self._db.one("PRAGMA freelist_count")
        kept: int = KEPT_BYTES // self._db.one("PRAGMA page_size")
        return max(free - kept, 0)
