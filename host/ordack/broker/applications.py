"""Runs the requests of applications connected to `ordack serve` in the manager's batches. No sockets.

One transaction holds requests of applications and packets from the network. An application gets its answer once the
transaction is durable. A failed request changes nothing and leaves the other requests of its batch intact. A waiting
application gets a message in the transaction that stores the message.

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ordack.broker.message import Emptying, Request, Wanted, take
from ordack.broker.outcome import Settlements, piece
from ordack.broker.serve_log import ERROR, Operator
from ordack.store import Store, StoreError
from ordack.store.messages import ANY, StoredMessage, keys_of
from ordack.store.outgoing import Added

if TYPE_CHECKING:
    from ordack.broker.commits import Done
    from ordack.broker.outgoing import OutgoingQueues


class Application:
    """A connected application. identifier: 16 bytes that the application chose. held: keys of messages taken but not
    committed. number: of its last commit on this connection, -1 before."""

    number = -1

    def __init__(self, identifier: bytes) -> None:
        self.identifier = identifier
        self.held: set[int] = set()


class Take(NamedTuple):
    """Take messages; wait for them until `until`."""

    wanted: Wanted
    until: int


class PutBack(NamedTuple):
    """Put messages back."""

    keys: tuple[int, ...]


Asked = Take | PutBack | Request | Emptying
Question = tuple[Application, Asked]
Answer = list[StoredMessage] | tuple[Any, ...] | bytes | Exception | None  # bytes: as Done.answer
CarryOut = Callable[[Settlements, Request, Collection[int], int], "Done"]


class _Done(NamedTuple):
    """The result of one request, valid once the transaction is durable. No answer goes out while `waits` is set.
    sent, removed: messages of a commit. number: of a commit."""

    application: Application
    answer: Answer
    taken: Collection[int] = ()
    released: Collection[int] = ()
    waits: Take | None = None
    sent: int = 0
    removed: int = 0
    number: int = -1


class Applications:
    """All connected applications. `decide` and `serve_waiting` work in the running transaction; then `committed` or
    `failed` follows. sent, removed: committed messages since the start. has_obeyed: `decide` ran orders, which may have
    changed any queue. carry_out: commits.carry_out."""

    def __init__(self, store: Store, outgoing: OutgoingQueues, operator: Operator, carry_out: CarryOut) -> None:
        self._store = store
        self._carry_out = carry_out
        store.messages.outlives = True
        self._outgoing = outgoing
        self._operator = operator
        self.sent = 0
        self.removed = 0
        self.has_obeyed = False
        self._connected: dict[Application, None] = {}
        self._waiting: dict[Application, Take] = {}
        self._returning: set[int] = set()  # keys held by ended applications
        self._gone: list[bytes] = []  # identifiers whose stored answers are obsolete
        self._done: list[_Done] = []
        self._answers: list[tuple[Application, Answer]] = []

    def __len__(self) -> int:
        return len(self._connected)

    def connected(self, identifier: bytes) -> Application:
        """Register a new connection."""
        application = Application(identifier)
        self._connected[application] = None
        return application

    def ended(self, application: Application, for_good: bool) -> None:
        """End a connection; for_good: the application will not ask about its last commit."""
        self._connected.pop(application, None)
        self._waiting.pop(application, None)
        self._returning |= application.held
        application.held = set()
        if for_good:
            self._gone.append(application.identifier)

    def answers(self) -> list[tuple[Application, Answer]]:
        """Return and clear the pending answers."""
        found, self._answers = self._answers, []
        return found

    @property
    def has_work(self) -> bool:
        """Is a transaction needed without a new request?"""
        news = self._store.messages.news
        return bool(self._returning) or any(
            ANY in news or waits.wanted.queue in news for waits in self._waiting.values()
        )

    def end_waiting(self, now: int) -> None:
        """Answer expired waits with an empty list."""
        for application, waits in list(self._waiting.items()):
            if now >= waits.until:
                del self._waiting[application]
                self._answers.append((application, []))

    def stop_waiting(self, application: Application) -> None:
        """Let the next `end_waiting` answer this application."""
        if waits := self._waiting.get(application):
            self._waiting[application] = waits._replace(until=0)

    # ---- in a transaction

    def writes(self, questions: Sequence[Question]) -> bool:
        """May these requests or the waiting ones write to the store? A receive may move a poison message."""
        asked = [*(question for _, question in questions), *self._waiting.values()]
        return bool(self._returning or self._gone) or not all(map(_only_reads, asked))

    def must_last(self, questions: Sequence[Question]) -> bool:
        """Must the transaction reach the disk before the answers? Takes and put-backs need not."""
        return any(isinstance(question, (Request, Emptying)) for _, question in questions)

    def decide(self, outcomes: Settlements, questions: Sequence[Question], now: int) -> None:
        """Run the requests."""
        self._done = []
        self.has_obeyed = False
        if self._returning:
            self._store.messages.put_back(self._returning)
        for identifier in self._gone:
            self._store.answers.forget(identifier)
        commits = sum(isinstance(question, Request) for _, question in questions)
        # The first request rarely fails: it begins the transaction anew then, and needs no savepoint.
        is_first = not (self._returning or self._gone) and commits == 1 and isinstance(questions[0][1], Request)
        for application, question in questions:
            if application in self._connected:
                self._answer(outcomes, application, question, now, is_first and isinstance(question, Request))

    def _answer(
        self, outcomes: Settlements, application: Application, question: Asked, now: int, is_first: bool
    ) -> None:
        stored: Collection[Added] = ()
        try:
            with _NOTHING_TO_UNDO if is_first or _only_reads(question) else self._store.attempt():
                if isinstance(question, Request):
                    sent, result, stored, answer = self._carry_out(
                        outcomes, question, application.held, application.number
                    )
                    taken = question.commit.taken
                    order = question.commit.order
                    moved = int(order is not None and order.name == "move" and result is not None)
                    counts = question.commit.messages + moved, len(taken) + moved
                    done = _Done(application, answer or (sent, result), (), taken, None, *counts, question.number or -1)
                    self.has_obeyed |= order is not None
                elif isinstance(question, Emptying):
                    removed, is_all = self._empty(outcomes, question)
                    done = _Done(application, (removed, is_all), removed=removed)
                elif isinstance(question, PutBack):
                    keys = application.held.intersection(question.keys)
                    self._store.messages.put_back(keys)
                    done = _Done(application, None, released=keys)
                else:
                    found = take(self._store, question.wanted, outcomes.now)
                    is_over = found or now >= question.until
                    done = _taken(application, found) if is_over else _Done(application, None, waits=question)
        except (StoreError, ValueError) as error:
            if not self._store.in_transaction:
                raise
            if is_first:
                self._store.restart()
            self._refuse(application, question, error)
        except Exception as error:  # noqa: BLE001 - a defect fails the request of one application only
            if is_first:
                self._store.restart()
            self._operator.tell(f"a defect, met by an application: {error!r}", ERROR)
            self._refuse(application, question, StoreError(f"`ordack serve` has a defect: {error!r}"))
        else:
            self._done.append(done)
            self._outgoing.fed(stored)

    def _empty(self, outcomes: Settlements, emptying: Emptying) -> tuple[int, bool]:
        """Remove some messages; return how many, and whether none is left."""
        queue, message_class, last, marks = emptying
        removed, _ = piece(lambda limit: outcomes.empty(queue, message_class, limit, last))
        if removed:
            return removed, False
        self._store.touch()
        return self._store.messages.mark_purged(queue, last) if marks else 0, True

    def _refuse(self, application: Application, question: Asked, error: Exception) -> None:
        """Answer a failed request with its error, and put back the messages that it was to remove."""
        keys: set[int] = set()
        if isinstance(question, Request):
            keys = application.held.intersection(question.commit.taken)
            self._store.messages.put_back(keys)
        self._done.append(_Done(application, error, released=keys))

    def serve_waiting(self, now: int) -> None:
        """Give messages stored in this transaction to waiting applications, the longest wait first. now: seconds since
        1970."""
        waiting = {**self._waiting, **{done.application: done.waits for done in self._done if done.waits}}
        if not waiting:
            return
        news = set(self._store.messages.news)
        for application, question in waiting.items():
            if ANY in news or question.wanted.queue in news:
                found = take(self._store, question.wanted, now)
                if found:
                    self._done.append(_taken(application, found))

    # ---- after the transaction

    def committed(self) -> None:
        """Record the results, and queue the answers, of a durable transaction."""
        self._store.messages.news.clear()
        self._returning.clear()
        self._gone.clear()
        for done in self._done:
            application = done.application
            self.sent += done.sent
            self.removed += done.removed
            application.number = max(application.number, done.number)
            application.held.update(done.taken)
            application.held.difference_update(done.released)
            if done.removed:
                self._store.messages.let_go(done.released)
            if done.waits:
                self._waiting[application] = done.waits
            else:
                self._waiting.pop(application, None)
                self._answers.append((application, done.answer))
        self._done = []

    def undone(self) -> None:
        """Drop the results of a rolled-back transaction; the caller repeats its requests."""
        for done in self._done:
            self._store.messages.let_go(done.taken)
        self._done = []
        self._store.messages.news.add(ANY)

    def failed(self, questions: Iterable[Question], error: StoreError) -> None:
        """Drop the results of a failed transaction, and answer its requests with the error."""
        self.undone()
        for application, question in questions:
            if isinstance(question, Request):
                released = application.held.intersection(question.commit.taken)
                application.held -= released
                self._returning |= released
            self._answers.append((application, error))


_NOTHING_TO_UNDO = contextlib.nullcontext()


def _only_reads(question: Asked) -> bool:
    return isinstance(question, Take) and question.wanted.poison_after is None


def _taken(application: Application, found: list[StoredMessage]) -> _Done:
    return _Done(application, found, keys_of(found))
