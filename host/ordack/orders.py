"""What operators have done to a store, each in one transaction of the process that writes to it: `ordack serve`, if it
runs, is asked for it as for any other commit; otherwise whoever wants it does it himself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mqqb import confirm

from ordack.moving import Move, move_one
from ordack.outcome import Outcomes
from ordack.pieces import CHUNK, piece
from ordack.store import Store, StoreError
from ordack.store.exports import Export
from ordack.store.queues import Queue, QueueNotEmpty
from ordack.store.schema import POISON, SYSTEM
from ordack.text import counted


class Order(NamedTuple):
    """One of ORDERS, and its arguments."""

    name: str
    arguments: tuple[Any, ...] = ()


def create_queue(outcomes: Outcomes, name: str, transactional: bool) -> Queue:
    """As Queues.create."""
    return outcomes.store.queues.create(name, transactional)


def set_quota(outcomes: Outcomes, name: str, quota: int | None) -> None:
    """As Queues.set_quota."""
    outcomes.store.queues.set_quota(name, quota)


def delete_queue(outcomes: Outcomes, name: str, only_empty: bool) -> int:
    """Delete a private queue and its sub-queue, with what is in them, if that is allowed; how many messages. Raises
    NoSuchQueue, QueueNotEmpty, StoreError."""
    queues = deletable(outcomes.store, name)
    if only_empty and (count := sum(one.messages for one in queues)):
        raise QueueNotEmpty(f"{counted(count, 'message')} in {queues[0].name} would be deleted, too")
    removed = 0
    for one in queues:
        while gone := outcomes.empty(one.identifier, confirm.NACK_Q_DELETED, CHUNK):
            removed += gone
        outcomes.store.queues.remove(one.identifier)
    return removed


def deletable(store: Store, name: str) -> list[Queue]:
    """A private queue and its sub-queue, of which no message is being received. Raises NoSuchQueue, StoreError."""
    queue = store.queues.named(name)
    if queue.kind == SYSTEM:
        raise StoreError(f"{queue.name} is a system queue: it cannot be deleted")
    poison = store.queues.find(queue.name + POISON)
    queues = [queue, poison] if poison else [queue]
    for one in queues:
        if store.messages.locked(one.identifier):
            raise StoreError(f"messages of {one.name} are being received: delete the queue when that has ended")
    return queues


def set_on_hold(outcomes: Outcomes, format_name: str, on_hold: bool) -> bool:
    """As OutgoingQueues.set_on_hold."""
    return outcomes.store.outgoing.set_on_hold(format_name, on_hold)


def request_resend(outcomes: Outcomes, format_name: str) -> bool:
    """As OutgoingQueues.request_resend."""
    return outcomes.store.outgoing.request_resend(format_name)


def reset_incoming(outcomes: Outcomes, source: bytes, destination: str) -> None:
    """Forget an incoming stream: its source may begin anew."""
    outcomes.store.memory.delete_incoming([(source, destination)])


def withdraw(outcomes: Outcomes, outgoing: int, after: int, last: int, keep: list[int]) -> tuple[int, int | None]:
    """End a piece of the messages of an outgoing queue with keys above `after` up to `last`, but for those to keep
    (C-29): how many, and the key to go on after; None: that was all."""
    at = after

    def some(limit: int) -> int:
        nonlocal at
        keys = outcomes.store.outgoing.request_purge(outgoing, limit, at, last, keep)
        at = keys[-1] if keys else last
        return len(keys)

    done, is_more = piece(some)
    return done, at if is_more else None


def move(
    outcomes: Outcomes, queue: int, lookup_id: int, destination: str | None, in_doubt: bool
) -> tuple[str, int | None] | None:
    """As moving.move_one: where the message went, and its new message id; None if it is not to be had."""
    moved = move_one(outcomes, Move(queue, lookup_id, destination, in_doubt))
    return moved and (moved.destination, moved.message_id)


def add_export(outcomes: Outcomes, *export: Any) -> None:
    """As Exports.add."""
    outcomes.store.exports.add(Export(*export))


def save_export(outcomes: Outcomes, *export: Any) -> None:
    """As Exports.save."""
    outcomes.store.exports.save(Export(*export))


_Types = tuple[type | tuple[type, ...], ...]
_EXPORT: _Types = (str, str, str, int, str, int, int, int)
_MAYBE_NUMBER, _MAYBE_TEXT = (int, type(None)), (str, type(None))
ORDERS: dict[str, tuple[Callable[..., Any], _Types]] = {  # and what their arguments are
    "create_queue": (create_queue, (str, bool)),
    "set_quota": (set_quota, (str, _MAYBE_NUMBER)),
    "delete_queue": (delete_queue, (str, bool)),
    "set_on_hold": (set_on_hold, (str, bool)),
    "request_resend": (request_resend, (str,)),
    "reset_incoming": (reset_incoming, (bytes, str)),
    "withdraw": (withdraw, (int, int, int, list)),
    "move": (move, (int, int, _MAYBE_TEXT, bool)),
    "add_export": (add_export, _EXPORT),
    "save_export": (save_export, _EXPORT),
}


def obey(outcomes: Outcomes, order: Order) -> Any:
    """Do it in the running transaction; what came of it."""
    return ORDERS[order.name][0](outcomes, *order.arguments)
