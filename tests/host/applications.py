"""Applications that a manager does work for, without sockets between them."""

from __future__ import annotations

import secrets
from typing import Any

from mqqb import confirm
from ordack import service
from ordack.applications import Application, Question, Take
from ordack.client import Letter
from ordack.commits import Commit, Emptying, Request, Wanted
from ordack.manager import Manager
from ordack.store import StoreError

from tests.support.host_world import START, WALL


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
        commit = Commit(taken, confirm.ACK_RECEIVE, letters)
        return self.application, Request(self.application.identifier, number or self.number, commit)

    def empties(self, queue: str, last: int, marks: bool = True) -> Question:
        identifier = self.manager.store.queues.named(queue).identifier
        return self.application, Emptying(identifier, confirm.NACK_Q_PURGED, last, marks)


def told_by(manager: Manager) -> dict[Application, list[Any]]:
    """What each was told since this was asked last: a result, or an error."""
    found: dict[Application, list[Any]] = {}
    for application, answer in manager.applications.answers():
        (content,) = service.frames(bytearray(answer))
        try:
            result = service.result_of(content)
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
