"""What a client looks at, and does not change, in a store that this process has opened."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from mqqb import confirm
from mqqb.confirm import Confirmation

from ordack.api.one_thread import Turn, one_thread
from ordack.broker.commits import wait_for
from ordack.broker.outcome import of_local
from ordack.broker.sending import open_queue
from ordack.config import names
from ordack.config.config import Config
from ordack.store import Store
from ordack.store.messages import Stored
from ordack.store.queues import NoSuchQueue, Queue


class Here:
    """A store that this process has opened. now: gives seconds since 1970. config: what its configuration means. turn:
    as `one_thread` has it."""

    def __init__(self, store: Store, now: Callable[[], int], config: Callable[[], Config], turn: Turn) -> None:
        self.turn = turn
        self.place = str(store.folder)
        self.store = store
        self.config = config
        self._now = now

    @property
    def guid(self) -> bytes:
        """Identifier of the queue manager, 16 bytes."""
        return self.store.guid

    @one_thread
    def queue(self, name: str | int) -> Queue:
        """The queue of this name, which is open to applications, or with this identifier. Raises BadName,
        NoSuchQueue."""
        if isinstance(name, str):
            return open_queue(self.store, name)
        found = self.store.queues.find(name)
        if found is None:
            raise NoSuchQueue(f"there is no queue {name} any more")
        return found

    @one_thread
    def look(self, queue: int, place: tuple[int, int], limit: int, timeout: float) -> list[Stored]:
        """Up to `limit` messages of a queue behind a place, (rank, lookup id), which stay in it; an empty list if none
        came within `timeout` seconds."""
        return wait_for(self.store, lambda: self.store.messages.peek(queue, limit, place, self._now()), timeout)

    @one_thread
    def state(self, message_id: int) -> confirm.Conclusion | None:
        """As Client.state."""
        settings = self.config().confirmation
        waiting = self.store.outgoing.waiting_own(message_id)
        if waiting is None and (packet := self.store.messages.own(message_id)) is not None:
            return Confirmation(of_local(packet, settings)[1], settings).conclusion()
        # last: a message that ends between these questions has its outcome by now
        record = waiting.confirmation if waiting is not None else self.store.memory.outcome(message_id)
        if record is None:
            return None
        return Confirmation(array("I", record), settings).conclusion()

    @one_thread
    def last_discarded(self, destination: str) -> int:
        """As Client.last_discarded."""
        return self.store.outgoing.discarded(names.destination(destination).lower())
