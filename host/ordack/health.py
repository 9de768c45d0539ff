"""Whether a queue manager that runs can do its work: what `/healthz` and the metric `ordack_healthy` say of it."""

from __future__ import annotations

from ordack.manager import Manager
from ordack.status import LARGE_MESSAGE
from ordack.store import Store, StoreError, StoreFull
from ordack.store.schema import PRIVATE
from ordack.text import counted

STUCK_S = 10.0  # its loop comes round every 50 ms, whatever it does
FAILURE_S = 60.0  # after which a failure of the store is no news, if nothing was written meanwhile


def problems(manager: Manager, store: Store, now: float) -> list[str]:
    """Sentences, of what keeps it from its work; none: it works. To be asked in another thread.

    store: its store, on a connection of that thread. now: monotonic seconds. What keeps single messages from moving is
    in status.glance.
    """
    counters = manager.links.counters
    found = []
    quiet = now - counters.turned
    if quiet > STUCK_S:
        found.append(f"the queue manager has not come round for {quiet:.0f} s: something in this process holds it up")
    if counters.failure and now - counters.failed_at / 1000 < FAILURE_S:
        found.append(f"the store refuses changes: {counters.failure}")
    try:
        room = store.room(manager.config.quota)
    except StoreError as error:
        found.append(f"the store cannot be read: {error}")
    else:
        if room.bytes < LARGE_MESSAGE:
            found.append(room.reason)
    return found


def restart_helps(manager: Manager, now: float) -> str:
    """Why a new process may do better, in a sentence; "" if nothing says so. For the loop's own thread, with now in
    monotonic seconds. On a full disk it would only have to wait, too."""
    quiet = now - manager.links.counters.turned
    if quiet > STUCK_S:
        return f"the queue manager has not come round for {quiet:.0f} s"
    if manager.failure and not isinstance(manager.failure, StoreFull):
        return f"the store cannot be read: {manager.failure}"
    return ""


def sentence(manager: Manager) -> str:
    """How it is, for whoever asks the service manager. For the loop's own thread."""
    store = manager.store
    try:
        queues = [queue for queue in store.queues.all() if queue.kind == PRIVATE]
        waiting = store.outgoing.total()
    except StoreError as error:
        return f"the store cannot be read: {error}"
    inside = counted(sum(queue.messages for queue in queues), "message")
    peers = counted(sum(link.is_open for link in manager.links), "peer")
    return f"{counted(len(queues), 'queue')} with {inside}; {peers} connected; {waiting} to be sent or acknowledged"
