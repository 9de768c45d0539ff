"""What one thread of one process may use at a time: whoever else comes is refused, before anything has happened.

The questions of two on one connection would get each other's answers, and the statements of one would be part of the
other's transaction. So it is of two threads, and of one thread that is in the middle of something when the handler of a
signal asks for more. A process that was forked has the connections of its parent, and would ask on them under the
parent's numbers, by which `serve` takes what was never done for something that it has done already.

Only what puts messages back is not refused, for nobody may be there to try again: a loop that was left ends when the
garbage collector finds it, at any instant and in any thread. It is done as soon as the other has ended.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from ordack.store import StoreError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

IN_USE = "another thread is using this Client just now; nothing was done. Give each thread a Client of its own"
HALF_WAY = (
    "this Client is in the middle of something that this, as the handler of a signal, has interrupted; nothing was "
    "done. Have the handler use a Client of its own, or note what is to be done"
)
FORKED = "this Client was made in the process {}, and this one, {}, was forked from it; nothing was done. Make one here"


class Turn:
    """Who is using a Client."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._is_half_way = False
        self._later: deque[Callable[[], object]] = deque()
        self._process = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Was this process forked from that which has made it?"""
        return os.getpid() != self._process

    def take(self) -> None:
        """Begin; `give` is to follow. Raises RuntimeError if it is somebody else's, or another process'."""
        self._check_process()
        if not self.lock.acquire(blocking=False):
            raise RuntimeError(IN_USE)
        if self._is_half_way:
            self.lock.release()
            raise RuntimeError(HALF_WAY)
        self._is_half_way = True

    def give(self) -> None:
        """End, and do what was left for later."""
        self._free()
        if self._later:
            self._catch_up()

    def soon(self, function: Callable[[], object]) -> None:
        """Call it, now or when whoever is using the Client has ended. A StoreError of it is passed over. Raises
        RuntimeError in another process."""
        self._check_process()
        self._later.append(function)
        self._catch_up()

    def _check_process(self) -> None:
        if self.is_inherited:
            raise RuntimeError(FORKED.format(self._process, os.getpid()))

    def _catch_up(self) -> None:
        while self._later:
            try:
                self.take()
            except RuntimeError:
                return  # whoever has it catches up
            try:
                with contextlib.suppress(StoreError):
                    if self._later:  # still
                        self._later.popleft()()
            finally:
                self._free()

    def _free(self) -> None:
        self._is_half_way = False
        self.lock.release()


def one_thread(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """A method that takes the `self.turn`, a Turn, of its object. Raises RuntimeError if somebody else has it."""

    @functools.wraps(method)
    def guarded(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        turn: Turn = self.turn
        turn.take()
        try:
            return method(self, *arguments, **named)
        finally:
            turn.give()

    return guarded
