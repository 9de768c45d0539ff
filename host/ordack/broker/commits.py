"""Commits of applications: one commit removes received messages and sends new ones.

`Direct` commits to a store that this process opened. `ordack serve` commits for all its applications, together with
other work (`applications.py`). Both call `carry_out`; `remote.py` calls them.

A commit to `ordack serve` carries the application's identifier and a number; the store keeps its answer. An application
that missed the answer can repeat the commit through either path: the commit happens once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from mqqb import confirm, core, guids, headers
from mqqb.names import QueueName

from ordack.broker.message import AS_CONFIGURED, Commit, Emptying, Letter, Message, Order, Request, Wanted, take
from ordack.broker.outcome import CHUNK, Settlements, in_pieces, piece
from ordack.broker.sending import Sending, SentRun, delivery_to, open_queue, target
from ordack.config import names
from ordack.config.config import Config
from ordack.config.names import counted
from ordack.store import Store, StoreError, StoreServed, StoreUnknown, packet_fields
from ordack.store.messages import BACK, UNFINISHED, NotTaken, StoredMessage, singles
from ordack.store.outgoing import Added
from ordack.store.queues import Export, NoSuchQueue, QueueNotEmpty, QueueState
from ordack.store.schema import POISON, SYSTEM

# Moving dead letters, copies and poison messages: one transaction removes the message and sends it as a new one.
# The new message needs its own identifier and times, or its destination would filter it (B-248, B-271). A poison
# message returns to its queue unchanged. A dead letter in doubt may have been received: moved, it can come twice
# (C-84 to C-86).


class Moved(NamedTuple):
    """The result of moving a message. destination: its new target. message_id: of the new message; None: the message
    is in doubt and stays."""

    message: Message
    destination: str
    message_id: int | None


def move(
    outcomes: Settlements, identifier: int, lookup_id: int, destination: str | None, in_doubt: bool
) -> tuple[str, int | None] | None:
    """Move a message of the queue `identifier` to a destination as in Letter; None: the original one. in_doubt: also
    move a message that may have been received. Return destination and new message id; None if the message is gone or
    locked by a receive. Raises the errors of Client.send, and StoreError."""
    store = outcomes.store
    queue = store.queues.find(identifier)
    if queue is None:
        raise NoSuchQueue(f"there is no queue {identifier} any more")
    open_queue(store, queue.name)
    stored = store.messages.find(queue.identifier, lookup_id, outcomes.now)
    if stored is None:
        return None
    message = Message(stored)
    if message.in_doubt and not in_doubt:
        raise StoreError("it is in doubt: it may have been received, and sent again it can come twice")
    if queue.name.endswith(POISON):
        return _return(store, queue, message, destination)
    destination = message.destination if destination is None else destination
    to, format_name = target(store, destination)
    if to is not None and to.identifier == queue.identifier:
        raise StoreError(f"a message of {queue.name} was sent to this very queue: name another one for it to go to")
    letter = _letter(store, message, destination, delivery_to(to, message.delivery if to is None else None))
    sending = Sending(outcomes)
    sent = sending.send(letter)
    sending.write()
    outcomes.remove([message.lookup_id], confirm.ACK_RECEIVE)
    return guids.format_name(*packet_fields.destination(format_name)), sent.message_id


def _return(store: Store, queue: QueueState, message: Message, destination: str | None) -> tuple[str, int] | None:
    """Put a poison message back into the parent queue."""
    home = open_queue(store, queue.name.removesuffix(POISON))
    if destination is not None and open_queue(store, destination).identifier != home.identifier:
        raise StoreError(f"messages of {queue.name} can go to {home.name} only, where they came from")
    is_moved = store.messages.move(message.lookup_id, queue.identifier, home.identifier)
    return (home.name, message.message_id) if is_moved else None


def _letter(store: Store, message: Message, destination: str, delivery: str) -> Letter:
    """Return a new message with the application's content of this one."""
    content = message.content
    user, properties = content.user, content.properties
    return Letter(
        destination,
        properties.body,
        properties.label,
        content.base.flags & core.BASE_PR,
        delivery,
        content.base.time_to_reach_queue,
        user.time_to_be_received,
        bool(user.flags & core.USER_JN),
        bool(user.flags & core.USER_JP),
        acknowledge=properties.flags if user.admin_queue is not None else 0,
        administration_queue=_seen_from(store, user.admin_queue, message),
        correlation_id=bytes(properties.correlation_id),
        response_queue=_seen_from(store, user.response_queue, message),
        body_type=properties.body_type,
        application_tag=properties.application_tag,
        extension=bytes(properties.extension),
    )


def _seen_from(store: Store, name: QueueName | None, message: Message) -> QueueName | None:
    """Return the name valid in a message from here: a bare number refers to the machine that sent the message."""
    source = bytes(message.content.user.source_queue_manager)
    if isinstance(name, headers.PrivateQueueFormatNameId) and source != store.guid:
        return headers.PrivateQueueFormatName(source, name.private_queue_identifier)
    return name


def delete_queue(outcomes: Settlements, name: str, only_empty: bool) -> int:
    """Delete a private queue and its sub-queue with their messages; return the number of messages. only_empty: refuse
    if there are any. Raises NoSuchQueue, QueueNotEmpty, StoreError."""
    queues = deletable(outcomes.store, name)
    if only_empty and (count := sum(one.messages for one in queues)):
        raise QueueNotEmpty(f"{counted(count, 'message')} in {queues[0].name} would be deleted, too")
    removed = 0
    for one in queues:
        while gone := outcomes.empty(one.identifier, confirm.NACK_Q_DELETED, CHUNK):
            removed += gone
        outcomes.store.queues.remove(one.identifier)
    return removed


def deletable(store: Store, name: str) -> list[QueueState]:
    """Return a private queue and its sub-queue if no message is being received. Raises NoSuchQueue, StoreError."""
    queue = store.queues.named(name)
    if queue.kind == SYSTEM:
        raise StoreError(f"{queue.name} is a system queue: it cannot be deleted")
    poison = store.queues.find(queue.name + POISON)
    queues = [queue, poison] if poison else [queue]
    for one in queues:
        if store.messages.locked(one.identifier):
            raise StoreError(f"messages of {one.name} are being received: delete the queue when that has ended")
    return queues


def withdraw(outcomes: Settlements, outgoing: int, after: int, last: int, keep: list[int]) -> tuple[int, int | None]:
    """Purge one piece of an outgoing queue: keys above `after` up to `last`, except `keep` (C-29). Return the count
    and the key to continue after; None: done."""
    at = after

    def some(limit: int) -> int:
        nonlocal at
        keys = outcomes.store.outgoing.request_purge(outgoing, limit, at, last, keep)
        at = keys[-1] if keys else last
        return len(keys)

    done, is_more = piece(some)
    return done, at if is_more else None


_Types = tuple[type | tuple[type, ...], ...]
_EXPORT: _Types = (str, str, str, int, str, int, int, int)
ORDERS: dict[str, tuple[Callable[..., Any], _Types]] = {  # with the types of their arguments
    "create_queue": (lambda outcomes, *of: outcomes.store.queues.create(*of), (str, bool)),
    "set_quota": (lambda outcomes, *of: outcomes.store.queues.set_quota(*of), (str, (int, type(None)))),
    "delete_queue": (delete_queue, (str, bool)),
    "set_on_hold": (lambda outcomes, *of: outcomes.store.outgoing.set_on_hold(*of), (str, bool)),
    "request_resend": (lambda outcomes, *of: outcomes.store.outgoing.request_resend(*of), (str,)),
    "reset_incoming": (lambda outcomes, *of: outcomes.store.memory.delete_incoming([of]), (bytes, str)),
    "withdraw": (withdraw, (int, int, int, list)),
    "move": (move, (int, int, (str, type(None)), bool)),
    "add_export": (lambda outcomes, *of: outcomes.store.exports.add(Export(*of)), _EXPORT),
    "save_export": (lambda outcomes, *of: outcomes.store.exports.save(Export(*of)), _EXPORT),
}


def obey(outcomes: Settlements, order: Order) -> Any:
    """Run an order in the running transaction; return its result."""
    return ORDERS[order.name][0](outcomes, *order.arguments)


ANSWER_MAX_BYTES = 32 << 20  # of an answer, which must fit into a frame (service.FRAME_MAX)
LOOK_AGAIN_S = 1.0  # while waiting: messages held by a killed process return without a change of the store


class Done(NamedTuple):
    """The results of a commit's letters and order. stored: entries added to outgoing queues. answer: both results, as
    the store keeps them."""

    sent: list[SentRun]
    result: Any = None
    stored: Sequence[Added] = ()
    answer: bytes = b""


class Current:
    """The current configuration of a store."""

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
    """Runs the requests of `serve` on a store that this process opened. now: gives seconds since 1970. Raises
    StoreServed, and changes nothing, if `serve` owns the store."""

    def __init__(self, store: Store, now: Callable[[], int], config: Callable[[], Config]) -> None:
        self._store = store
        self._now = now
        self._config = config

    def take(self, wanted: Wanted, timeout: float) -> list[StoredMessage]:
        """Take messages, waiting up to `timeout` seconds."""
        if wanted.poison_after == AS_CONFIGURED:
            wanted = wanted._replace(poison_after=self._config().poison_after)
        return singles(wait_for(self._store, lambda: take(self._store, wanted, self._now()), timeout))

    def carry_out(self, request: Request) -> Done:
        """Run a commit, with or without a number. If it fails, put back the messages that it was to remove."""
        done = Done([])
        try:
            with self._store.transaction():
                outcomes = Settlements(self._store, self._now(), self._config())
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
        with contextlib.suppress(StoreError):  # the application's own exception matters more
            self._store.messages.put_back(keys)

    def let_go(self, keys: Collection[int]) -> None:
        """Release messages that this process took."""
        self._store.messages.let_go(keys)

    def empty(self, emptying: Emptying) -> tuple[int, bool]:
        """Remove messages in pieces, so that other processes get their turn; return the count and True."""
        queue, message_class, last, marks = emptying

        def remove(limit: int) -> int:
            return Settlements(self._store, self._now(), self._config()).empty(queue, message_class, limit, last)

        removed = in_pieces(self._store, remove)
        return removed + (self._store.messages.mark_purged(queue, last) if marks else 0), True


def wait_for(store: Store, find: Callable[[], list[StoredMessage]], timeout: float) -> list[StoredMessage]:
    """Return the result of `find` on a store of this process; an empty list after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        store.changed()  # before the search, so that no change is missed
        found = find()
        left = deadline - time.monotonic()
        if found or left <= 0:
            return found
        store.wait(min(left, LOOK_AGAIN_S))


def carry_out(outcomes: Settlements, request: Request, held: Collection[int] | None = None, last: int = -1) -> Done:
    """Run a commit in the running transaction, unless its number was already committed. held: the messages that may be
    removed; None: all that this store took. last: the application's last number, if known. Raises the errors of
    Conversation.commit and order."""
    store, commit = outcomes.store, request.commit
    if request.number:
        import cbor2  # commits without a number need no frames

        known = store.answers.find(request.application) if request.number - 1 != last else None
        if known and known.number >= request.number:
            if known.number > request.number:
                raise StoreError("the commit was given up")
            runs, result = cbor2.loads(known.answer)
            return Done([SentRun(*run) for run in runs], result, answer=known.answer)
    if commit.taken:
        if held is not None and not set(commit.taken).issubset(held):
            raise NotTaken(f"{UNFINISHED} {BACK}")
        outcomes.remove(commit.taken, commit.message_class, is_receive=True)
    sent: list[SentRun] = []
    stored: Sequence[Added] = ()
    if commit.letters:
        post = Sending(outcomes, commit.messages)
        sent = post.send_all(commit.letters)
        post.write()
        stored = post.stored
    result = obey(outcomes, commit.order) if commit.order else None
    answer = b""
    if request.number:
        answer = cbor2.dumps((sent, result))
        if len(answer) > ANSWER_MAX_BYTES:
            raise ValueError(f"the answer to the commit has {len(answer)} bytes: send it in several commits")
        store.answers.keep(request.application, request.number, answer, outcomes.now)
    return Done(sent, result, stored, answer)


def unknown(commit: Commit, sent: list[SentRun], error: StoreUnknown) -> StoreUnknown:
    """Return the error for a commit whose outcome is unknown."""
    if commit.order:  # the caller of an order knows its purpose
        return error
    count = commit.messages
    if count != 1 or commit.taken:
        what = f"the commit ({len(commit.taken)} received, {count} sent) has happened"
    else:
        number = f" {sent[0].message_id}" if sent else ""
        what = f"the message{number} to {names.destination(commit.letters[0].letter.destination)} was sent"
    return StoreUnknown(f"{what}, or not: {error.reason}", error.then)


def asked_again(commit: Commit, error: StoreError) -> StoreError:
    """Return the error for a repeated commit that fails now. The new error does not tell the outcome of the first
    attempt."""
    if error.decided:
        return error
    return unknown(commit, [], StoreUnknown(str(error), "look, before you make it again"))
