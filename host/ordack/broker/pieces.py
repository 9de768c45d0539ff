"""Long work on the store in short transactions, so that other writers do not wait long."""

from __future__ import annotations

import time
from collections.abc import Callable

from ordack.store import Store

PIECE_S = 0.015  # of work in one transaction, then comes its commit; design: nothing holds the writer for 50 ms
CHUNK = 100  # messages between two looks at the clock


def piece(work: Callable[[int], int], seconds: float | None = None, chunk: int = CHUNK) -> tuple[int, bool]:
    """Do `work(so many at most)` again and again, until it finds nothing to do, or the time of a piece is over: how
    many it has done, and whether there may be more. If it does fewer they are large, and a piece as they are. seconds:
    of a piece, PIECE_S by default."""
    total = 0
    until = time.monotonic() + (PIECE_S if seconds is None else seconds)
    while done := work(chunk):
        total += done
        if done < chunk or time.monotonic() >= until:
            return total, True
    return total, False


def in_pieces(store: Store, work: Callable[[int], int]) -> int:
    """Do `work(so many at most)` until it finds nothing to do, a piece in each transaction; how many in all. What is
    committed stays done if a later piece fails, or the process dies. Between two pieces others have their turn."""
    total = 0
    while True:
        began = time.monotonic()
        with store.transaction():
            done, is_more = piece(work)
        total += done
        if not is_more:
            return total
        time.sleep(time.monotonic() - began)
