"""What the log does not have durably yet: what has become of messages and arrivals, which is written with the next sync
or before a message; counters of queues and sources.
"""

import struct
from array import array

from mqqb import confirm, const, core
from ordack.node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_IDS_MAX = const(64)  # in one record
_HEAD_BYTES = const(42)  # all of a source's record but the name; a queue's is smaller


class Marks:
    """Changes of state that are not durable, a record of STATE each. If they are lost, they happen again."""

    def __init__(self, opened: log.Log) -> None:
        self._log = opened
        # Of each record its kind, the words that are the same, the ids.
        self._records: "list[tuple[int, bytes, array[int]]]" = []
        self._logged = 0  # how many of them stand in the log

    def add(self, handle: log.Stored, with_time: bool) -> None:
        """The record of this message or arrival has changed. with_time: its T0, too."""
        record = handle.record
        time = record[confirm.SENT_TIME] if with_time else 0
        thing: "Any" = handle.source or handle.queue
        kind = log.STATE if handle.source is None else log.ARRIVAL_STATE
        prefix = struct.pack(
            log.STATE_PREFIX,
            record[confirm.STATE],
            record[confirm.MARKS],
            record[confirm.CLASS],
            time,
            thing.index,
        )
        records = self._records
        last = records[-1] if len(records) > self._logged else None
        if last is None or last[0] != kind or last[1] != prefix or len(last[2]) >= _IDS_MAX:
            last = kind, prefix, array("I")
            records.append(last)
        last[2].append(handle.message_id)

    def write(self) -> None:
        """Log those that are not in the log. Raises OutboxWriteFailed."""
        opened = self._log
        if self._logged == len(self._records):
            return
        if opened.is_torn:
            opened.give_up()
        while self._logged < len(self._records):
            kind, prefix, ids = self._records[self._logged]
            size = log.STATE_PREFIX_BYTES + 4 * len(ids)
            place = opened.room(log.RECORD_BYTES + size) + log.RECORD_BYTES
            if self._logged == len(self._records):
                return  # the segment that it has begun begins with them
            core.copy(opened.out, place, prefix, 0, log.STATE_PREFIX_BYTES)
            core.put_words(opened.out, place + log.STATE_PREFIX_BYTES, ids, 0, len(ids))
            opened.finish(kind, size)
            self._logged += 1

    def synced(self) -> None:
        """Those that are in the log are durable."""
        if self._logged == len(self._records):
            self._records.clear()
        else:
            core.drop(self._records, self._logged)
        self._logged = 0

    def abandoned(self) -> None:
        """The log has lost what was logged since the last sync."""
        self._logged = 0


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
            self.put(self._things[self._logged])
            self._logged += 1
        if thing.is_replaced:
            self.put(thing)
            source: "Any" = thing
            source.is_replaced = False

    def put(self, thing: log.LoggedQueue) -> None:
        """Log this one, of which the log knows, as it is now."""
        place = self._log.room(_HEAD_BYTES + len(thing.name.encode())) + log.RECORD_BYTES
        self._log.finish(self._kind, self._log.put_counters(place, thing))

    def touch(self, thing: log.LoggedQueue) -> None:
        """Its counters are about to change: remember what is durable of them."""
        if not thing.touched:
            core.copy_words(thing.before, thing.noted)
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
