"""What applications look at over their connections to `ordack serve`: read in a thread, from the store on a connection
of its own, a page at a time, so that nobody who writes waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ordack.api.one_thread import Turn
from ordack.api.reads import Here
from ordack.broker import service
from ordack.broker.commits import Current
from ordack.store import StoreError
from ordack.store.look import StoreBeside
from ordack.store.queues import NoSuchQueue

FILES = 8  # that the store and the thread may have open
Look = Callable[[Here], Any]


class Asker(Protocol):
    """Who has asked."""

    is_over: bool

    def answer(self, answer: bytes) -> None:
        """Take the answer."""


class _Asked(NamedTuple):
    """A question, and until when it may wait for something that is not empty, in monotonic seconds."""

    asker: Asker
    look: Look
    until: float


def looking_in(question: list[Any]) -> tuple[Look, float] | None:
    """How to answer this question, and how many seconds it may wait; None if it is about something else. Raises
    Malformed."""
    if question[0] == service.LOOK:
        queue, place, limit, milliseconds = service.look_in(question)
        return (lambda here: service.rows_of(here.look(queue, place, limit, 0.0))), milliseconds / 1000
    if question[0] not in (service.QUEUE, service.STATE, service.DISCARDED):
        return None
    if len(question) != 2:
        raise service.Malformed(f"`{question[0]}` with {len(question)} parts")
    subject: Any = question[1]
    if question[0] == service.STATE or (question[0] == service.QUEUE and not isinstance(subject, str)):
        service.check_number(subject)
    elif not isinstance(subject, str) or len(subject) > service.NAME_MAX:
        raise service.Malformed(f"the name of `{question[0]}` is no text of up to {service.NAME_MAX} characters")
    if question[0] == service.STATE:
        return (lambda here: _state(here, subject)), 0.0
    return (lambda here: here.queue(subject) if question[0] == service.QUEUE else here.last_discarded(subject)), 0.0


def _state(here: Here, message_id: int) -> tuple[str, int, bool, int | None, bool] | None:
    found = here.state(message_id)
    if found is None:
        return None
    return found.answer, found.message_class, found.in_doubt, found.deadline, found.is_final


class Reading:
    """Answers what is asked, one batch of questions after another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._here: Here | None = None  # the thread's
        self._store: StoreBeside | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._asked: list[_Asked] = []
        self._waiting: list[_Asked] = []  # for what is not there yet
        self._is_busy = False
        self._is_over = False

    def ask(self, asker: Asker, look: Look, patience: float) -> None:
        """It wants to know; patience: seconds that it waits for something that is not empty."""
        self._asked.append(_Asked(asker, look, time.monotonic() + patience))
        self.again()

    def again(self) -> None:
        """Look, if there is something to look for; the store may have changed."""
        if self._is_busy or self._is_over or not (self._asked or self._waiting):
            return
        self._is_busy = True
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="ordack-reading")
        asked, self._asked = self._asked, []
        waiting = [one for one in self._waiting if not one.asker.is_over]
        self._waiting = []
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._thread, self._look, asked, waiting)
        done.add_done_callback(self._tell)

    def _tell(self, done: asyncio.Future[list[tuple[_Asked, bytes | None]]]) -> None:
        self._is_busy = False
        if self._is_over or done.cancelled():
            return
        for one, answer in done.result():
            if answer is None:
                self._waiting.append(one)
            else:
                one.asker.answer(answer)
        if self._asked:
            self.again()

    # ---- in the thread

    def _look(self, asked: Sequence[_Asked], waiting: Sequence[_Asked]) -> list[tuple[_Asked, bytes | None]]:
        try:
            here = self._opened()
            has_changed = here.store.changed()  # before looking, so that nothing slips in between
        except StoreError as error:
            self._forget()
            return [(one, service.failed(error)) for one in (*asked, *waiting)]
        now = time.monotonic()
        return [(one, self._answer(here, one, now)) for one in asked] + [
            (one, self._answer(here, one, now) if has_changed or now >= one.until else None) for one in waiting
        ]

    def _answer(self, here: Here, one: _Asked, now: float) -> bytes | None:
        try:
            found = one.look(here)
            return None if found == [] and now < one.until else service.frame(service.DONE, found)
        except (NoSuchQueue, ValueError) as error:
            return service.failed(error)
        except StoreError as error:
            self._forget()
            return service.failed(error)
        except Exception as error:  # noqa: BLE001 - a defect that one application has met is not the others' end
            return service.failed(StoreError(f"`ordack serve` has a defect: {error!r}"))

    def _opened(self) -> Here:
        if self._here is None:
            self._store = StoreBeside(self._folder)
            self._here = Here(self._store, lambda: int(time.time()), Current(self._store), Turn())
        return self._here

    def _forget(self) -> None:
        store, self._store, self._here = self._store, None, None
        if store:
            store.close()

    # ---- the end

    def close(self) -> None:
        """End what is under way, and answer no more."""
        self._is_over = True
        if self._thread:
            end: Future[None] = self._thread.submit(self._forget)
            while not end.done():
                if store := self._store:
                    store.interrupt()
                wait([end], 0.02)
            self._thread.shutdown()
