"""The queues of a log, or the sources: which of them it knows, and which counters have changed since it was synced."""

from mqqb import const

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_HEAD_BYTES = const(42)  # all of a source's record but the name; a queue's is smaller


class Register:
    """All `things` of a kind, log.QUEUE or log.SOURCE, in the order of their indices. Those given are in the log."""

    def __init__(self, opened: log.Log, kind: int, things: "Sequence[log.LoggedQueue]") -> None:
        self._log = opened
        self._kind = kind
        self._things = things
        self._logged = self._synced = len(things)  # so many are in the log; so many of them durably
        self._touched: "list[log.LoggedQueue]" = []  # whose counters have changed since the last sync

    def known(self) -> "Sequence[log.LoggedQueue]":
        """Those in the log."""
        return self._things[: self._logged]

    def need(self, thing: log.LoggedQueue) -> int:
        """Bytes for which the log needs room before it can have anything of this one."""
        if thing.index < self._logged and not thing.is_replaced:
            return 0
        return _HEAD_BYTES + len(thing.name.encode())

    def write(self, thing: log.LoggedQueue) -> None:
        """Log this one, and those before it, where the log does not know of them. Raises OutboxWriteFailed."""
        while self._logged <= thing.index:
            self._put(self._things[self._logged])
            self._logged += 1
        if thing.is_replaced:
            self._put(thing)
            source: "Any" = thing
            source.is_replaced = False

    def _put(self, thing: log.LoggedQueue) -> None:
        place = self._log.room(_HEAD_BYTES + len(thing.name.encode())) + log.RECORD_BYTES
        self._log.finish(self._kind, self._log.put_counters(place, thing))

    def touch(self, thing: log.LoggedQueue) -> None:
        """Its counters are about to change: remember what is durable of them."""
        if not thing.touched:
            thing.touch()
            self._touched.append(thing)
            thing.touched = True

    def synced(self) -> None:
        """All that is in the log is durable."""
        self._synced = self._logged
        for thing in self._touched:
            thing.touched = False
        self._touched.clear()

    def abandoned(self) -> None:
        """The log has lost what was logged since the last sync."""
        for thing in self._touched:
            thing.restore()
        self._touched = []
        self._logged = self._synced
