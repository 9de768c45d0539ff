"""What ends by time: due and expired messages, old outcomes and surplus FinalAcks."""

from __future__ import annotations

from collections.abc import Callable

from ordack.broker.acceptance import Batch, Duplicates
from ordack.broker.incoming import IncomingStreams
from ordack.broker.outcome import CHUNK, piece
from ordack.broker.outgoing import OutgoingQueues
from ordack.broker.settling import Settling
from ordack.store import Store
from ordack.store.disk import first_piece

DUE = 10_000  # messages found due at once, so that neighbours in the store end together


class ConfirmationDeadlines:
    """Ends expired messages piece by piece, so that sessions and other processes get their turn. transact: runs one
    decision in a transaction of Manager."""

    def __init__(
        self,
        store: Store,
        incoming: IncomingStreams,
        outgoing: OutgoingQueues,
        settling: Settling,
        duplicates: Duplicates,
        transact: Callable[[int, int, Callable[[Batch], object]], object],
    ) -> None:
        self.is_behind = False  # more messages may be due now
        self._store = store
        self._incoming = incoming
        self._outgoing = outgoing
        self._settling = settling
        self._duplicates = duplicates
        self._transact = transact
        self.load()

    def load(self) -> None:
        """Discard the list of due messages."""
        self._due: list[tuple[int, int]] = []  # as store.outgoing.OutgoingQueues.due returns; the latest first
        self._old_outcomes: list[int] = []

    def forget_outcomes(self, keep: int) -> None:
        """Mark all outcomes for removal except the newest `keep`."""
        self._old_outcomes = self._store.memory.old_outcomes(keep)

    def end_foreign(self, now: int, wall: int) -> bool:
        """End a piece of the messages sent under another identifier; return whether none is left."""
        messages = self._store.outgoing.foreign(self._store.guid, CHUNK)
        self.is_behind = len(messages) == CHUNK
        if messages:
            self._transact(now, wall, lambda batch: self._settling.forsake(batch, messages))
        return not self.is_behind

    def end(self, now: int, wall: int) -> None:
        """End a piece of the due messages."""
        self.is_behind = False
        if self._store.is_pinned():  # receives need the remaining space
            return

        def end(work: Callable[[Batch, int], int]) -> None:
            def decide(batch: Batch) -> None:
                _, is_more = piece(lambda limit: work(batch, limit))
                self.is_behind |= is_more

            self._transact(now, wall, decide)

        if surplus := self._incoming.surplus(self._outgoing.ack_queues):
            end(lambda batch, limit: self._settling.give_up_final_acks(batch, wall, surplus, limit))
        self._due = self._due or self._store.outgoing.due(wall, DUE)[::-1]
        if self._due:
            end(lambda batch, limit: self._end_some(batch, wall, limit))
            self.is_behind = True  # DUE may have cut the list
        if any(self._store.messages.over(wall, 1)):
            end(lambda batch, limit: batch.outcomes.remove_over(limit))
        if self._old_outcomes:
            end(lambda _batch, limit: self._store.memory.forget_outcomes(self._old_outcomes, limit))
        if self._duplicates.has_old:
            end(lambda _batch, limit: self._duplicates.forget_old(limit))

    def _end_some(self, batch: Batch, wall: int, limit: int) -> int:
        keys = first_piece(self._due[: -limit - 1 : -1])
        del self._due[len(self._due) - len(keys) :]
        found = self._store.outgoing.waiting(keys)
        due = [waiting for waiting in found if waiting.due is not None and waiting.due <= wall]
        self._settling.due(batch, wall, due)
        return len(keys)
