"""Queues are emptied and deleted, outgoing ones too, in pieces: if that is killed, a part is gone, and senders know."""

from __future__ import annotations

from mqqb import confirm

from ordack.commits import Access, Emptying
from ordack.orders import Order, deletable
from ordack.returns import indispensable
from ordack.store import Store


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
