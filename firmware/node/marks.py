"""What has become of messages and arrivals, until it is durable: written with the next sync, or before a message."""

import struct
from array import array

from mqqb import confirm, const, core

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

_IDS_MAX = const(64)  # in one record


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
        if handle.source is not None:
            kind = log.ARRIVAL_STATE
        else:
            kind = log.OUT_OF_TURN if handle.message_id in thing.ended else log.STATE
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

    def bytes(self) -> int:
        """So many the log takes for those that are not in it."""
        size = 0
        for k in range(self._logged, len(self._records)):
            size += log.RECORD_BYTES + log.STATE_PREFIX_BYTES + 4 * len(self._records[k][2])
        return size

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
