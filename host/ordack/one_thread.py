"""What one thread of one process may use at a time: whoever else comes is refused, before anything has happened.

The questions of two threads on one connection would get each other's answers, and the statements of one would be part
of the other's transaction. A process that was forked has the connections of its parent, and would ask on them under the
parent's numbers, by which `serve` takes what was never done for something that it has done already.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

IN_USE = "another thread is using this Client just now; nothing was done. Give each thread a Client of its own"
FORKED = "this Client was made in the process {}, and this one, {}, was forked from it; nothing was done. Make one here"


class Turn:
    """Who is using a Client."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._process = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Was this process forked from that which has made it?"""
        return os.getpid() != self._process

    def take(self) -> None:
        """Raises RuntimeError if it is not this thread's, or not this process'."""
        if self.is_inherited:
            raise RuntimeError(FORKED.format(self._process, os.getpid()))
        if not self.lock.acquire(blocking=False):
            raise RuntimeError(IN_USE)


def one_thread(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """A method that raises RuntimeError while another thread is in one with the same `self.turn`, a Turn, or in another
    process."""

    @functools.wraps(method)
    def guarded(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        turn: Turn = self.turn
        turn.take()
        try:
            return method(self, *arguments, **named)
        finally:
            turn.lock.release()

    return guarded
