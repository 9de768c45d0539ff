"""What applications do with a store: take messages from queues, and in one commit remove what they took and send more.

`Direct` does it with a store that this process has opened. `ordack serve` does it for all who ask, in one transaction
with what others do at the same time (`applications.py`). Both carry out the same commit here; `remote.py` asks them.

A commit that goes to `ordack serve` bears the application's identifier and a number, and its answer is kept with what
it changes. So whoever does not know whether it has happened can ask for it again, of whomever: it happens once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from mqqb import confirm

from ordack.broker.orders import Order, obey
from ordack.broker.outcome import Outcomes
from ordack.broker.pieces import in_pieces
from ordack.broker.sending import Run, Sending, SentRun
from ordack.config import names
from ordack.config.config import Config
from ordack.store import Store, StoreError, StoreServed, StoreUnknown
from ordack.store.messages import NotTaken, Selection, Stored
from ordack.store.outgoing import Added

LOOK_AGAIN_S = 1.0  # while waiting: what a process had received when it died comes back without a change of the store
AS_CONFIGURED = 0  # as Wanted.poison_after: what the store, or the `serve` that does it, goes by


class Wanted(NamedTuple):
    """What is to be taken: up to `limit` messages of the queue with this identifier. counted, poison_after: as
    Messages.begin_receive has them. lookup_id: the one message that has it; correlation_id: those that have it, 20
    bytes; None: any."""

    queue: int
    limit: int
    counted: bool = False
    poison_after: int | None = None
    lookup_id: int | None = None
    correlation_id: bytes | None = None


class Emptying(NamedTuple):
    """What is to be removed: the messages of the queue with this identifier whose lookup id is not above `last`, for
    the reason that the class says. marks: those that somebody is receiving go when that ends without a commit."""

    queue: int
    message_class: int
    last: int
    marks: bool


class Commit(NamedTuple):
    """What happens together, or not at all: messages that were taken are removed for the reason that the class says,
    others are sent, and an operator's order is carried out."""

    taken: tuple[int, ...] = ()
    message_class: int = confirm.ACK_RECEIVE
    letters: tuple[Run, ...] = ()
    order: Order | None = None

    @property
    def messages(self) -> int:
        """How many are sent."""
        return sum(len(run.bodies) for run in self.letters)


class Request(NamedTuple):
    """A commit under a number of the application that wants it, 16 bytes. Numbers rise."""

    application: bytes
    number: int
    commit: Commit


class Done(NamedTuple):
    """What came of a commit: of the letters, and of the order. stored: what was put in outgoing queues."""

    sent: list[SentRun]
    result: Any = None
    stored: Sequence[Added] = ()


class Current:
    """What the configuration of a store means now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: object = None
        self._config = Config()

    def __call__(self) -> Config:
        kept = self._store.names()
        if self._known != kept:
            self._known = kept
            self._config = Config.kept(kept)
        return self._config


class Direct:
    """Answers what `serve` is asked, with a store that this process has opened. now: gives seconds since 1970. Raises
    StoreServed, and changes nothing, if `serve` is to do it."""

    def __init__(self, store: Store, now: Callable[[], int], config: Callable[[], Config]) -> None:
        self._store = store
        self._now = now
        self._config = config

    def take(self, wanted: Wanted, timeout: float) -> list[Stored]:
        """Take messages, waiting up to `timeout` seconds."""
        if wanted.poison_after == AS_CONFIGURED:
            wanted = wanted._replace(poison_after=self._config().poison_after)
        return wait_for(self._store, lambda: take(self._store, wanted, self._now()), timeout)

    def carry_out(self, request: Request) -> Done:
        """Do a commit that may have a number. If it fails, what it was to remove is put back."""
        done = Done([])
        try:
            with self._store.transaction():
                outcomes = Outcomes(self._store, self._now(), self._config())
                done = carry_out(outcomes, request)
        except StoreServed:
            raise
        except StoreUnknown as error:
            self.put_back(request.commit.taken)
            raise unknown(request.commit, done.sent, error) from None
        except BaseException:
            self.put_back(request.commit.taken)
            raise
        self.let_go(request.commit.taken)
        return done

    def put_back(self, keys: Collection[int]) -> None:
        """Put back messages that were taken."""
        with contextlib.suppress(StoreError):  # later, then: what the application raises matters more
            self._store.messages.put_back(keys)

    def let_go(self, keys: Collection[int]) -> None:
        """These are this process' no more."""
        self._store.messages.let_go(keys)

    def empty(self, emptying: Emptying) -> tuple[int, bool]:
        """Remove messages, in pieces, between which others have their turn: how many, and that it was all."""
        queue, message_class, last, marks = emptying

        def remove(limit: int) -> int:
            return Outcomes(self._store, self._now(), self._config()).empty(queue, message_class, limit, last)

        removed = in_pieces(self._store, remove)
        return removed + (self._store.messages.mark_purged(queue, last) if marks else 0), True


def wait_for(store: Store, find: Callable[[], list[Stored]], timeout: float) -> list[Stored]:
    """What `find` finds in a store of this process; an empty list if it finds nothing in so many seconds."""
    deadline = time.monotonic() + timeout
    while True:
        store.changed()  # before looking, so that nothing slips in between
        found = find()
        left = deadline - time.monotonic()
        if found or left <= 0:
            return found
        store.wait(min(left, LOOK_AGAIN_S))


def take(store: Store, wanted: Wanted, now: int) -> list[Stored]:
    """Take what is there of it. now: seconds since 1970."""
    selection = Selection(wanted.lookup_id, wanted.correlation_id)
    return store.messages.begin_receive(wanted.queue, wanted.limit, now, wanted.counted, wanted.poison_after, selection)


def carry_out(outcomes: Outcomes, request: Request, held: Collection[int] | None = None) -> Done:
    """Do a commit in the running transaction, unless one with its number has happened. held: what of the messages that
    this store has taken may be removed, by default all. Raises what remote.Access.commit and order do."""
    store, commit = outcomes.store, request.commit
    if request.number:
        import cbor2  # commits without a number need no frames

        known = store.answers.find(request.application)
        if known and known.number >= request.number:
            if known.number > request.number:
                raise StoreError("the commit was given up")
            sent, result = cbor2.loads(known.answer)
            return Done([SentRun(*run) for run in sent], result)
    if commit.taken:
        if held is not None and not set(commit.taken).issubset(held):
            raise NotTaken("the receive cannot be completed: its messages are back in their queue")
        store.messages.received(commit.taken)
        outcomes.remove(commit.taken, commit.message_class)
    post = Sending(outcomes, commit.messages)
    sent = post.send_all(commit.letters)
    post.write()
    result = obey(outcomes, commit.order) if commit.order else None
    if request.number:
        store.answers.keep(request.application, request.number, cbor2.dumps((sent, result)), outcomes.now)
    return Done(sent, result, post.stored)


def unknown(commit: Commit, sent: list[SentRun], error: StoreUnknown) -> StoreUnknown:
    """What is to be said of a commit of which nobody knows whether it has happened."""
    if commit.order:  # whoever gives it says what it was for
        return error
    count = commit.messages
    if count != 1 or commit.taken:
        what = f"the commit ({len(commit.taken)} received, {count} sent) has happened"
    else:
        number = f" {sent[0].message_id}" if sent else ""
        what = f"the message{number} to {names.destination(commit.letters[0].letter.destination)} was sent"
    return StoreUnknown(f"{what}, or not: {error.reason}", error.then)


def asked_again(commit: Commit, error: StoreError) -> StoreError:
    """What is to be said of a commit that was asked for before, without an answer, and now failed with this: the disk
    that fails now does not say what has happened then."""
    if error.decided:
        return error
    return unknown(commit, [], StoreUnknown(str(error), "look, before you make it again"))
