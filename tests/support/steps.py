"""What SQLite does for something, counted: the same on every machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count

from ordack.store import Store


@contextlib.contextmanager
def steps_of(store: Store) -> Iterator[list[int]]:
    """Afterwards the list has tens of steps of SQLite's machine."""
    found: list[int] = []
    steps = count()
    store._database.connection.set_progress_handler(lambda: next(steps) < 0, 10)
    yield found
    store._database.connection.set_progress_handler(None)
    found.append(next(steps))
