"""Applications that a manager does work for, without sockets between them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from typing import Any

from mqqb import confirm
from ordack.broker import service
from ordack.broker.applications import Application, Asked, PutBack, Question, Take
from ordack.broker.manager import Manager
from ordack.broker.message import Commit, Emptying, Order, Request, Wanted, in_runs
from ordack.broker.sending import Sent, SentRun, each
from ordack.client import Letter
from ordack.store import Store, StoreError
from ordack.store.messages import StoredMessage

from tests.support.host_world import START, WALL


def _result(answer: bytes) -> Any:
    return service.result_of(service.content_of(answer[service.LENGTH.size :]))


class App:
    """An application, as the manager of a host sees it."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.application = manager.applications.connected(secrets.token_bytes(16))
        self.number = 0

    def wants(self, queue: str, limit: int = 1, wait: int = 0) -> Question:
        identifier = self.manager.store.queues.named(queue).identifier
        return self.application, Take(Wanted(identifier, limit), START + wait)

    def commits(self, *letters: Letter, taken: tuple[int, ...] = (), number: int | None = None) -> Question:
        self.number += 1
        commit = Commit(taken, confirm.ACK_RECEIVE, in_runs(letters))
        return self.application, Request(self.application.identifier, number or self.number, commit)

    def empties(self, queue: str, last: int, marks: bool = True) -> Question:
        identifier = self.manager.store.queues.named(queue).identifier
        return self.application, Emptying(identifier, confirm.NACK_Q_PURGED, last, marks)


class Asking:
    """The conversation of an application with a manager, which gets its questions by `hand_over`. store: what the
    application reads. number: of its last commit, in the life of a manager before this one."""

    def __init__(
        self, manager: Manager, hand_over: Callable[[Question], None], store: Store, identifier: bytes, number: int
    ) -> None:
        self.number = number
        self._manager = manager
        self._hand_over = hand_over
        self._store = store
        self._application = manager.applications.connected(identifier)

    def _ask(self, asked: Asked) -> Any:
        self._hand_over((self._application, asked))
        answers = dict(self._manager.applications.answers())
        return _result(service.answered(answers[self._application]))

    def take(self, wanted: Wanted, _timeout: float) -> list[StoredMessage]:
        return service.messages_in(self._ask(Take(wanted, 0)))

    def commit(self, commit: Commit) -> list[Sent]:
        self.number += 1
        return self.ask_again(commit)

    def ask_again(self, commit: Commit) -> list[Sent]:
        """For the last commit, whose answer has not come."""
        sent, _ = self._ask(Request(self._application.identifier, self.number, commit))
        return each(self._store.guid, (SentRun(*run) for run in sent))

    def order(self, order: Order) -> Any:
        self.number += 1
        return self._ask(Request(self._application.identifier, self.number, Commit(order=order)))[1]

    def put_back(self, keys: Collection[int]) -> None:
        self._ask(PutBack(tuple(keys)))

    def empty(self, emptying: Emptying) -> int:
        total = 0
        is_all = False
        while not is_all:
            removed, is_all = self._ask(emptying)
            total += removed
        return total

    def close(self) -> None:
        self._store.close()


def told_by(manager: Manager) -> dict[Application, list[Any]]:
    """What each was told since this was asked last: a result, or an error."""
    found: dict[Application, list[Any]] = {}
    for application, answer in manager.applications.answers():
        try:
            result = _result(service.answered(answer))
        except (StoreError, ValueError) as error:
            result = error
        found.setdefault(application, []).append(result)
    return found


def do(manager: Manager, *questions: Question, now: int = START) -> list[Any]:
    """What the askers were told, in the order of the questions; None: nothing yet."""
    manager.receive([], now, WALL, questions)
    answers = told_by(manager)
    found = [answers[application].pop(0) if answers.get(application) else None for application, _ in questions]
    return [
        answer[0] if isinstance(question, Request) and isinstance(answer, list) else answer  # what was sent
        for answer, (_, question) in zip(found, questions, strict=True)
    ]
