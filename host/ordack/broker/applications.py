"""Applications that have `ordack serve` do their work: what they ask for, done in the manager's batches. No sockets.

What an application asks for happens in one transaction with what has come from the network, and with what others ask
for; it is told when that is durable. A question that fails changes nothing, and the others of its batch stand. Messages
that somebody waits for are given to him in the transaction that brings them.

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ordack.broker.message import Emptying, Request, Wanted, take
from ordack.broker.outcome import Settlements, piece
from ordack.broker.serve_log import ERROR, Operator
from ordack.store import Store, StoreError
from ordack.store.messages import ANY, StoredMessage
from ordack.store.outgoing import Added

if TYPE_CHECKING:
    from ordack.broker.commits import Done
    from ordack.broker.outgoing import OutgoingQueues


class Application:
    """An application that is connected. identifier: it has said so of itself, 16 bytes. held: keys of messages that it
    has taken and not committed."""

    def __init__(self, identifier: bytes) -> None:
        self.identifier = identifier
        self.held: set[int] = set()


class Take(NamedTuple):
    """It wants messages, and waits for them until then."""

    wanted: Wanted
    until: int


class PutBack(NamedTuple):
    """It puts messages back."""

    keys: tuple[int, ...]


Asked = Take | PutBack | Request | Emptying
Question = tuple[Application, Asked]
Answer = list[StoredMessage] | tuple[Any, ...] | Exception | None
CarryOut = Callable[[Settlements, Request, Collection[int]], "Done"]


class _Done(NamedTuple):
    """What was done for an application, if the transaction becomes durable; it has no answer as long as it `waits`.
    sent, removed: messages, by a commit."""

    application: Application
    answer: Answer
    taken: Collection[int] = ()
    released: Collection[int] = ()
    waits: Take | None = None
    sent: int = 0
    removed: int = 0


class Applications:
    """All that are connected. `decide` and `serve_waiting` work in the running transaction; `committed` or `failed` is
    to follow. sent, removed: messages, by commits since the start. has_obeyed: `decide` has carried
    out orders, which may have changed any queue. carry_out: commits.carry_out."""

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
        self._returning: set[int] = set()  # of those that have gone
        self._gone: list[bytes] = []  # they will not ask again
        self._done: list[_Done] = []
        self._answers: list[tuple[Application, Answer]] = []

    def __len__(self) -> int:
        return len(self._connected)

    def connected(self, identifier: bytes) -> Application:
        """An application has connected."""
        application = Application(identifier)
        self._connected[application] = None
        return application

    def ended(self, application: Application, for_good: bool) -> None:
        """Its connection is over; for_good: it will not ask whether its last commit has happened."""
        self._connected.pop(application, None)
        self._waiting.pop(application, None)
        self._returning |= application.held
        application.held = set()
        if for_good:
            self._gone.append(application.identifier)

    def answers(self) -> list[tuple[Application, Answer]]:
        """What is to be told to whom."""
        found, self._answers = self._answers, []
        return found

    @property
    def has_work(self) -> bool:
        """Is there something to do in a transaction, although nobody has asked for it just now?"""
        news = self._store.messages.news
        return bool(self._returning) or any(
            ANY in news or waits.wanted.queue in news for waits in self._waiting.values()
        )

    def end_waiting(self, now: int) -> None:
        """Those that have waited long enough are told that there is nothing."""
        for application, waits in list(self._waiting.items()):
            if now >= waits.until:
                del self._waiting[application]
                self._answers.append((application, []))

    # ---- in a transaction

    def writes(self, questions: Sequence[Question]) -> bool:
        """May what is asked for, or given to those who wait, write something? A poison message is moved."""
        asked = [*(question for _, question in questions), *self._waiting.values()]
        return bool(self._returning or self._gone) or not all(
            isinstance(question, Take) and question.wanted.poison_after is None for question in asked
        )

    def must_last(self, questions: Sequence[Question]) -> bool:
        """Must what is asked for be on the disk before it is answered? What is taken or put back need not."""
        return any(isinstance(question, (Request, Emptying)) for _, question in questions)

    def decide(self, outcomes: Settlements, questions: Sequence[Question], now: int) -> None:
        """Do what is asked for."""
        self._done = []
        self.has_obeyed = False
        if self._returning:
            self._store.messages.put_back(self._returning)
        for identifier in self._gone:
            self._store.answers.forget(identifier)
        for application, question in questions:
            if application in self._connected:
                self._answer(outcomes, application, question, now)

    def _answer(self, outcomes: Settlements, application: Application, question: Asked, now: int) -> None:
        stored: Collection[Added] = ()
        try:
            with self._store.attempt():
                if isinstance(question, Request):
                    sent, result, stored = self._carry_out(outcomes, question, application.held)
                    taken = question.commit.taken
                    order = question.commit.order
                    moved = int(order is not None and order.name == "move" and result is not None)
                    counts = question.commit.messages + moved, len(taken) + moved
                    done = _Done(application, (sent, result), (), taken, None, *counts)
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
            self._refuse(application, question, error)
        except Exception as error:  # noqa: BLE001 - a defect that one application has met is not the others' end
            self._operator.tell(f"a defect, met by an application: {error!r}", ERROR)
            self._refuse(application, question, StoreError(f"`ordack serve` has a defect: {error!r}"))
        else:
            self._done.append(done)
            self._outgoing.fed(stored)

    def _empty(self, outcomes: Settlements, emptying: Emptying) -> tuple[int, bool]:
        """Remove some messages: how many, and whether that was all."""
        queue, message_class, last, marks = emptying
        removed, _ = piece(lambda limit: outcomes.empty(queue, message_class, limit, last))
        if removed:
            return removed, False
        self._store.touch()
        return self._store.messages.mark_purged(queue, last) if marks else 0, True

    def _refuse(self, application: Application, question: Asked, error: Exception) -> None:
        """Nothing of what it has asked for was done; what it was to remove goes back."""
        keys: set[int] = set()
        if isinstance(question, Request):
            keys = application.held.intersection(question.commit.taken)
            self._store.messages.put_back(keys)
        self._done.append(_Done(application, error, released=keys))

    def serve_waiting(self, now: int) -> None:
        """Give messages that have come in this transaction to those who wait for them, whoever has waited longest
        first. now: seconds since 1970."""
        waiting = {**self._waiting, **{done.application: done.waits for done in self._done if done.waits}}
        if not waiting:
            return
        news = set(self._store.messages.news)
        for application, question in waiting.items():
            if ANY in news or question.wanted.queue in news:
                found = take(self._store, question.wanted, now)
                if found:
                    self._done.append(_taken(application, found))

    # ---- after it

    def committed(self) -> None:
        """What was done is durable."""
        self._store.messages.news.clear()
        self._returning.clear()
        self._gone.clear()
        for done in self._done:
            application = done.application
            self.sent += done.sent
            self.removed += done.removed
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
        """Nothing of what was done has happened; all of it is to be asked for again."""
        for done in self._done:
            self._store.messages.let_go(done.taken)
        self._done = []
        self._store.messages.news.add(ANY)

    def failed(self, questions: Iterable[Question], error: StoreError) -> None:
        """Nothing of what was done has happened; who has asked is told why."""
        self.undone()
        for application, question in questions:
            if isinstance(question, Request):
                released = application.held.intersection(question.commit.taken)
                application.held -= released
                self._returning |= released
            self._answers.append((application, error))


def _taken(application: Application, found: list[StoredMessage]) -> _Done:
    return _Done(application, found, [message.lookup_id for message in found])
