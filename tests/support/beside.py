"""A program that writes to a store beside its queue manager, which hears of it before its next batch.

In the field nobody does: a program asks `ordack serve`. The tests of the queue manager need what the program has done
in its store, and that it can die at any statement of its own; how it asks is tested in test_applications.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ordack.broker.applications import Question
from ordack.broker.links import PeerLink
from ordack.broker.manager import Manager
from ordack.broker.outcome import Settlements
from ordack.client import Client
from ordack.store import Store
from ordack.store.messages import ANY


def unserved(store: Store) -> Store:
    """This store object takes no notice of a `serve`."""
    store._lock.is_anothers = lambda: False  # type: ignore[method-assign]
    return store


def client_beside(folder: Path, clock: Callable[[], float] = time.time) -> Client:
    """A client that does everything itself."""
    client = Client(folder, clock=clock)
    unserved(client.store)
    return client


def outcomes_of(client: Client) -> Settlements:
    """What follows when messages end now, in that client's own transaction."""
    return Settlements(client.store, client.now(), client.config())


class HearingManager(Manager):
    """A manager that takes up what others have written."""

    def hear(self, now: int) -> None:
        if not self.failure:
            with self._guard(now):
                if self.store.changed():
                    self._refresh()
                    self.store.messages.news.add(ANY)

    def receive(
        self,
        arrivals: Iterable[tuple[PeerLink, bytes]],
        now: int,
        wall: int,
        questions: Sequence[Question] = (),
        lazily: bool = False,
    ) -> None:
        self.hear(now)
        super().receive(arrivals, now, wall, questions, lazily)

    def poll(self, now: int, wall: int) -> None:
        self.hear(now)
        super().poll(now, wall)
