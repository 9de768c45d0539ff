"""What applications do with a store: take messages from queues, and in one commit remove what they took and send more.

`Direct` does it with a store that this process has opened. `remote.Remote` has `ordack serve` do it, if that runs, in
one transaction with what others do at the same time (`applications.py`). Both carry out the same commit here.

A commit that goes to `ordack serve` bears the application's identifier and a number, and its answer is kept with what
it changes. So whoever does not know whether it has happened can ask for it again, of whomever: it happens once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from mqqb import confirm

from ordack import names
from ordack.config import Config
from ordack.order_acks import indispensable
from ordack.orders import Order, deletable, obey
from ordack.outcome import Outcomes
from ordack.pieces import in_pieces
from ordack.sending import Run, Sending, Sent, SentRun, each
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


class Access(Protocol):
    """The ways to do it. All methods raise StoreError and its kinds."""

    def take(self, wanted: Wanted, timeout: float) -> list[Stored]:
        """Take messages, hidden from others until `commit` or `put_back`; an empty list if none came in time, in
        seconds. If this process dies, they are available again."""

    def commit(self, commit: Commit) -> list[Sent]:
        """Do it, durably; what became of each letter. If it raises, what was taken is put back. Raises also
        NoSuchQueue, BadName, ValueError for a letter."""

    def order(self, order: Order) -> Any:
        """Have it carried out, durably; what came of it. Raises what it raises."""

    def put_back(self, keys: Collection[int]) -> None:
        """Put messages that were taken back in their old places."""

    def empty(self, emptying: Emptying) -> int:
        """Remove messages, in pieces: if it raises, or this process dies, a part is gone, and its senders know. How
        many, those that are marked included."""

    def close(self) -> None:
        """Put back what was taken, and do no more."""


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
    """Access to a store that this process has opened. now: gives seconds since 1970."""

    def __init__(self, store: Store, now: Callable[[], int], config: Callable[[], Config]) -> None:
        self._store = store
        self._now = now
        self._config = config

    def take(self, wanted: Wanted, timeout: float) -> list[Stored]:
        """As Access has it."""
        if wanted.poison_after == AS_CONFIGURED:
            wanted = wanted._replace(poison_after=self._config().poison_after)
        deadline = time.monotonic() + timeout
        while True:
            self._store.changed()  # before looking, so that nothing slips in between
            stored = take(self._store, wanted, self._now())
            left = deadline - time.monotonic()
            if stored or left <= 0:
                return stored
            self._store.wait(min(left, LOOK_AGAIN_S))

    def commit(self, commit: Commit) -> list[Sent]:
        """As Access has it."""
        return each(self._store.guid, self.carry_out(Request(b"", 0, commit)).sent)

    def order(self, order: Order) -> Any:
        """As Access has it."""
        return self.carry_out(Request(b"", 0, Commit(order=order))).result

    def carry_out(self, request: Request) -> Done:
        """Do a commit that may have a number. Raises StoreServed, and puts nothing back, if `serve` is to do it."""
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
        self._store.messages.let_go(request.commit.taken)
        return done

    def put_back(self, keys: Collection[int]) -> None:
        """As Access has it."""
        with contextlib.suppress(StoreError):  # later, then: what the application raises matters more
            self._store.messages.put_back(keys)

    def empty(self, emptying: Emptying) -> int:
        """As Access has it. Between two pieces others have their turn."""
        queue, message_class, last, marks = emptying

        def remove(limit: int) -> int:
            return Outcomes(self._store, self._now(), self._config()).empty(queue, message_class, limit, last)

        return in_pieces(self._store, remove) + (self._store.messages.mark_purged(queue, last) if marks else 0)

    def close(self) -> None:
        """Nothing: closing the store does it."""


def take(store: Store, wanted: Wanted, now: int) -> list[Stored]:
    """Take what is there of it. now: seconds since 1970."""
    selection = Selection(wanted.lookup_id, wanted.correlation_id)
    return store.messages.begin_receive(wanted.queue, wanted.limit, now, wanted.counted, wanted.poison_after, selection)


def carry_out(outcomes: Outcomes, request: Request, held: Collection[int] | None = None) -> Done:
    """Do a commit in the running transaction, unless one with its number has happened. held: what of the messages that
    this store has taken may be removed, by default all. Raises what Access.commit and Access.order do."""
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


# Emptying goes in pieces: a kill leaves a part, and the senders of what is gone know.


def purge(store: Store, access: Access, name: str) -> int:
    """As Client.purge_queue."""
    queue = store.queues.named(name)
    last = store.messages.last_lookup_id()
    return access.empty(Emptying(queue.identifier, confirm.NACK_Q_PURGED, last, marks=True))


def delete(store: Store, access: Access, name: str, only_empty: bool) -> int:
    """As Client.delete_queue. The queue goes with the last piece."""
    removed = 0
    if not only_empty:
        last = store.messages.last_lookup_id()
        for one in deletable(store, name):
            removed += access.empty(Emptying(one.identifier, confirm.NACK_Q_DELETED, last, marks=False))
    rest: int = access.order(Order("delete_queue", (name, only_empty)))
    return removed + rest


def purge_outgoing(store: Store, access: Access, outgoing: int) -> tuple[int, int]:
    """Ask the queue manager to end all messages that an outgoing queue has now (C-29); how many, and how many stay as
    `indispensable` says."""
    last = store.outgoing.last_key()
    keep = list(indispensable(store, outgoing))
    removed = 0
    after: int | None = 0
    while after is not None:
        done, after = access.order(Order("withdraw", (outgoing, after, last, keep)))
        removed += done
    return removed, len(keep)
