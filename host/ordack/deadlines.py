"""What time ends, and what it leaves over, a piece at a time: sessions and other processes have their turn in between.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable

from ordack.batch import Batch
from ordack.duplicates import Duplicates
from ordack.pieces import CHUNK, piece
from ordack.settling import Settling
from ordack.store import Store
from ordack.store.database import first_piece

DUE = 10_000  # messages that are found due at once: what is near each other in the store ends together

Transact = Callable[[int, int, Callable[[Batch], object]], object]


class Deadlines:
    """transact: runs what decides in one transaction (Manager)."""

    def __init__(self, store: Store, settling: Settling, duplicates: Duplicates, transact: Transact) -> None:
        self._is_behind = False
        self._store = store
        self._settling = settling
        self._duplicates = duplicates
        self._transact = transact
        self.load()

    def load(self) -> None:
        """Begin anew: what is due is to be looked for."""
        self._due: list[tuple[int, int]] = []  # as OutgoingQueues.due, what is due later first
        self._old_outcomes: list[int] = []
        self._store.moves.load()

    def forget_outcomes(self, keep: int) -> None:
        """The oldest outcomes are to be forgotten, but for the last `keep`."""
        self._old_outcomes = self._store.memory.old_outcomes(keep)

    def end_foreign(self, now: int, wall: int) -> bool:
        """Messages that were sent under another identifier end: some of them. Was that all?"""
        messages = self._store.outgoing.foreign(self._store.guid, CHUNK)
        self._is_behind = len(messages) == CHUNK
        if messages:
            self._transact(now, wall, lambda batch: self._settling.forsake(batch, messages))
        return not self._is_behind

    @property
    def is_behind(self) -> bool:
        """There may be more to be ended, or moved, now."""
        return self._is_behind or self._store.moves.is_pending()

    def end(self, now: int, wall: int) -> None:
        """A piece of what is due ends."""
        self._is_behind = False
        if self._store.is_pinned():  # what would be written is left to receives
            return

        def end(work: Callable[[Batch, int], int]) -> None:
            def decide(batch: Batch) -> None:
                _, is_more = piece(lambda limit: work(batch, limit))
                self._is_behind |= is_more

            self._transact(now, wall, decide)

        if self._store.moves.is_pending():
            end(self._move_some)
        if self._store.moves.is_pending():  # what is due by a time that is wrong may not be
            return
        if surplus := self._settling.too_many_final_acks():
            end(lambda batch, limit: self._settling.give_up_final_acks(batch, wall, surplus, limit))
        self._due = self._due or self._store.outgoing.due(wall, DUE)[::-1]
        if self._due:
            end(lambda batch, limit: self._end_some(batch, wall, limit))
            self._is_behind = True  # there may be more than that
        if any(self._store.messages.over(wall, 1)):
            end(lambda batch, limit: batch.outcomes.remove_over(limit))
        if self._old_outcomes:
            end(lambda _batch, limit: self._store.memory.forget_outcomes(self._old_outcomes, limit))
        if self._duplicates.has_old:
            end(lambda _batch, limit: self._duplicates.forget_old(limit))
        self._store.free_pages.watch(now)
        if self._store.free_pages.too_many:
            end(lambda _batch, limit: self._store.free_pages.give_back(limit))

    def _move_some(self, _batch: Batch, limit: int) -> int:
        moved = self._store.moves.some(limit)
        if not self._store.moves.is_pending():
            self._duplicates.load()
        return moved

    def _end_some(self, batch: Batch, wall: int, limit: int) -> int:
        keys = first_piece(self._due[: -limit - 1 : -1])
        del self._due[len(self._due) - len(keys) :]
        self._settling.due(
            batch,
            wall,
            [
                waiting
                for waiting in self._store.outgoing.waiting(keys)
                if waiting.due is not None and waiting.due <= wall
            ],
        )
        return len(keys)
