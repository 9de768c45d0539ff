"""How a queue manager that runs is: what its HTTP port and its service manager say of it."""

from __future__ import annotations

import time
from typing import Any

from ordack.broker import status
from ordack.broker.manager import Manager
from ordack.store import Store, StoreError, StoreFull
from ordack.store.schema import PRIVATE
from ordack.text import counted

STUCK_S = 10.0  # its loop comes round every 50 ms, whatever it does


def glance(manager: Manager, store: Store) -> dict[str, Any]:
    """As status.glance, of the queue manager of this process. To be asked in another thread, with a store on a
    connection of that thread."""
    counters = manager.links.counters
    quiet = _quiet(manager, time.monotonic())
    silence = f"{quiet}: something in it holds it up" if quiet else ""
    return status.glance(store, silence, {**manager.shown, "failure": counters.failure})


def _quiet(manager: Manager, now: float) -> str:
    """That its loop stands, in words; "" if it does not."""
    quiet = now - manager.links.counters.turned
    return f"it has not come round for {quiet:.0f} s" if quiet > STUCK_S else ""


def restart_helps(manager: Manager, now: float) -> str:
    """Why a new process may do better, in a sentence; "" if nothing says so: for a service manager's watchdog, and
    /livez. now: monotonic seconds. On a full disk it would only have to wait, too."""
    quiet = _quiet(manager, now)
    if quiet:
        return quiet
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
