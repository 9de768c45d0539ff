"""Long work on the store in short transactions, so that nobody else waits long for the only writer."""

from __future__ import annotations

import time
from collections.abc import Callable

from ordack.store import Store

AIM_S = 0.02  # what one transaction is to take; design: no operation holds the writer longer than 50 ms
FIRST = 50
LARGEST = 2000  # to bound memory


def in_pieces(store: Store, work: Callable[[int], int]) -> int:
    """Do `work(so many at most)` in one transaction after the other, until it has done fewer; how many in all. What is
    committed stays done if a later piece fails, or the process dies. Between two pieces others have their turn."""
    total = 0
    size = FIRST
    while True:
        with store.transaction():
            began = time.monotonic()
            done = work(size)
        took = time.monotonic() - began
        total += done
        if done < size:
            return total
        size = min(max(int(size * AIM_S / max(took, 1e-6)), 1), 2 * size, LARGEST)
        time.sleep(took)


def purge_outgoing(store: Store, outgoing: int) -> int:
    """Ask the queue manager to end all messages that an outgoing queue has now (C-29); how many."""
    last = store.last_outgoing_key()
    after = 0

    def withdraw(limit: int) -> int:
        nonlocal after
        keys = store.request_purge(outgoing, limit, after, last)
        after = keys[-1] if keys else last
        return len(keys)

    return in_pieces(store, withdraw)
