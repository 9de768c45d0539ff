"""The lock of a client, and the read-only questions of a client to a store opened by this process.

A client is for one thread of one process. Two threads on one connection would mix up their answers. A forked process
would reuse its parent's commit numbers, and `serve` would take new commits for repeated ones. So a second thread, a
forked process and a signal handler get an error before anything happens.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from mqqb import confirm
from mqqb.confirm import Confirmation

from ordack.broker.sending import open_queue
from ordack.config.config import Config
from ordack.store import Store, StoreError
from ordack.store.messages import StoredMessage
from ordack.store.packet_fields import of_local
from ordack.store.queues import NoSuchQueue, QueueState

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ClientLock:
    """The lock of a Client. One thread holds it at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._later: deque[Callable[[], object]] = deque()
        self._process = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Was this process forked after the Client was made?"""
        return os.getpid() != self._process

    def __enter__(self) -> None:
        if self.is_inherited:
            raise RuntimeError(
                f"this Client was made in the process {self._process}, and this one, {os.getpid()}, was forked from "
                "it; nothing was done. Make one here"
            )
        if not self.lock.acquire(blocking=False):
            raise RuntimeError(
                "this Client is in use just now, by another thread or by what the handler of a signal has interrupted; "
                "nothing was done. Give each thread and each handler a Client of its own"
            )

    def __exit__(self, *exception: object) -> None:
        self.lock.release()
        while self._later and self.lock.acquire(blocking=False):
            try:
                with contextlib.suppress(StoreError, IndexError):  # another thread has done it
                    self._later.popleft()()
            finally:
                self.lock.release()

    def soon(self, function: Callable[[], object]) -> None:
        """Call the function now, or when the thread that holds the lock releases it: the garbage collector ends loops
        at any moment, in any thread. Ignores StoreError. Raises RuntimeError in a forked process."""
        self._later.append(function)
        try:
            with self:
                pass
        except RuntimeError:
            if self.is_inherited:
                raise


def one_thread(
    method: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Make a method hold the lock `self.turn`, a Turn. Raises RuntimeError if another thread holds the lock."""

    @functools.wraps(method)
    def guarded(self: Any, /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with self.turn:
            return method(self, *arguments, **named)

    return guarded


class LocalReader:
    """A store opened by this process. now: returns seconds since 1970. config: returns the current Config. turn: the
    lock for `one_thread`."""

    def __init__(self, store: Store, now: Callable[[], int], config: Callable[[], Config], turn: ClientLock) -> None:
        self.turn = turn
        self.place = str(store.folder)
        self.store = store
        self.config = config
        self._now = now

    @property
    def guid(self) -> bytes:
        """Identifier of the queue manager, 16 bytes."""
        return self.store.guid

    @one_thread
    def queue(self, name: str | int) -> QueueState:
        """The queue with this name, if open to applications, or with this identifier. Raises BadName, NoSuchQueue."""
        if isinstance(name, str):
            return open_queue(self.store, name)
        found = self.store.queues.find(name)
        if found is None:
            raise NoSuchQueue(f"there is no queue {name} any more")
        return found

    @one_thread
    def look(self, queue: int, place: tuple[int, int], limit: int) -> list[StoredMessage]:
        """Up to `limit` messages behind the position `place`, (rank, lookup id). The messages stay in the queue."""
        self.store.changed()
        return self.store.messages.peek(queue, limit, place, self._now())

    @one_thread
    def state(self, message_id: int) -> confirm.Conclusion | None:
        """As Client.state."""
        settings = self.config().confirmation
        waiting = self.store.outgoing.waiting_own(message_id)
        if waiting is None and (packet := self.store.messages.own(message_id)) is not None:
            return Confirmation(of_local(packet, settings)[1], settings).conclusion()
        # last: a message that ends between these questions has its outcome by now
        record = waiting.confirmation if waiting is not None else self.store.memory.outcome(message_id)
        if record is None:
            return None
        return Confirmation(array("I", record), settings).conclusion()
