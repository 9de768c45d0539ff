"""The duplicate filter: which messages that are not transactional have come already (B-248, B-254)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ordack.config import Config
from ordack.store import Store

Identifier = tuple[bytes, int]  # source queue manager, MessageID


class Duplicates:
    """MessageIDHistoryTable; `load` takes it from the store. Times: seconds since 1970."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._seen: dict[Identifier, int] = {}  # the oldest first
        self._before = 0

    def __contains__(self, identifier: Identifier) -> bool:
        return identifier in self._seen

    def load(self) -> None:
        """Take it from the store."""
        self._seen = {(source, message_id): time for source, message_id, time in self._store.memory.history()}

    def note(self, identifier: Identifier, wall: int) -> None:
        """It has come."""
        self._seen.pop(identifier, None)
        self._seen[identifier] = wall

    def save(self, noted: Iterable[Identifier]) -> None:
        """Write what was noted to the store, and forget what is more than may be remembered."""
        self._store.memory.save_history([(*identifier, self._seen[identifier]) for identifier in noted])
        surplus = len(self._seen) - self._config.history_size
        if surplus > 0:
            self._forget(list(islice(self._seen, surplus)))

    def forget_before(self, time: int) -> None:
        """What came before this time is to be forgotten (B-154)."""
        self._before = time

    @property
    def has_old(self) -> bool:
        """Is there something to be forgotten?"""
        return next(iter(self._seen.values()), self._before) < self._before

    def forget_old(self, limit: int) -> int:
        """Forget up to so many of those; how many."""
        old = [identifier for identifier, noted in islice(self._seen.items(), limit) if noted < self._before]
        self._forget(old)
        return len(old)

    def _forget(self, identifiers: list[Identifier]) -> None:
        for identifier in identifiers:
            del self._seen[identifier]
        self._store.memory.delete_history(identifiers)
