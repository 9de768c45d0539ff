"""Queues are emptied and deleted, in pieces: if the process is killed, a part is gone, and its senders know."""

from __future__ import annotations

from collections.abc import Callable

from mqqb import confirm

from ordack.commits import Access, Emptying
from ordack.outcome import Outcomes
from ordack.pieces import CHUNK
from ordack.store import Store, StoreError
from ordack.store.database import counted
from ordack.store.queues import Queue, QueueNotEmpty
from ordack.store.schema import POISON, SYSTEM


def purge(store: Store, access: Access, name: str) -> int:
    """As Client.purge_queue."""
    queue = store.queues.named(name)
    last = store.messages.last_lookup_id()
    return access.empty(Emptying(queue.identifier, confirm.NACK_Q_PURGED, last, marks=True))


def delete(store: Store, access: Access, outcomes: Callable[[], Outcomes], name: str, only_empty: bool) -> int:
    """As Client.delete_queue. The queue goes with the last piece. outcomes: gives what follows when messages end."""
    removed = 0
    if not only_empty:
        last = store.messages.last_lookup_id()
        for one in _deletable(store, name):
            removed += access.empty(Emptying(one.identifier, confirm.NACK_Q_DELETED, last, marks=False))
    with store.transaction():
        queues = _deletable(store, name)
        if only_empty and (count := sum(one.messages for one in queues)):
            raise QueueNotEmpty(f"{counted(count, 'message')} in {queues[0].name} would be deleted, too")
        for one in queues:
            while gone := outcomes().empty(one.identifier, confirm.NACK_Q_DELETED, CHUNK):  # what has come since
                removed += gone
            store.queues.remove(one.identifier)
    return removed


def _deletable(store: Store, name: str) -> list[Queue]:
    """A private queue and its sub-queue, of which no message is being received."""
    queue = store.queues.named(name)
    if queue.kind == SYSTEM:
        raise StoreError(f"{queue.name} is a system queue: it cannot be deleted")
    poison = store.queues.find(queue.name + POISON)
    queues = [queue, poison] if poison else [queue]
    for one in queues:
        if store.messages.locked(one.identifier):
            raise StoreError(f"messages of {one.name} are being received: delete the queue when that has ended")
    return queues
