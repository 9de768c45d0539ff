"""What one thread may use at a time: another one that comes meanwhile is refused, before anything has happened.

The questions of two threads on one connection would get each other's answers, and the statements of one would be part
of the other's transaction.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

IN_USE = "another thread is using this Client just now; nothing was done. Give each thread a Client of its own"


def one_thread(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """A method that raises RuntimeError while another thread is in one with the same `self.turn`, a threading.RLock."""

    @functools.wraps(method)
    def guarded(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        turn = self.turn
        if not turn.acquire(blocking=False):
            raise RuntimeError(IN_USE)
        try:
            return method(self, *arguments, **named)
        finally:
            turn.release()

    return guarded
