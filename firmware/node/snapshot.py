"""Snapshots: at the begin of a segment, what a start needs to know of the segments before it, so as not to read them.

One record for each queue that has messages on the flash only, some that list what is in memory, and one that ends it.
"""

import struct

from mqqb import confirm, const

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from node.log import Log, LoggedQueue

LOG_SHARE = 32  # one is written where it takes at most one of so many bytes that a start would read without it,
SEGMENT_SHARE = 16  # and of a segment
# After so many messages were taken from the flash, or as many as a start takes into memory, the next segment begins.
TAKEN_MIN = 32
_ENTRIES_MAX = const(24)  # in one record
_ENDED_MAX = const(64)


def size(opened: "Log", queues: "list[LoggedQueue]") -> int:
    """Bytes of a snapshot, now; 0: none is to be written.

    Not while the log has a part that cannot be read, for there the counts in its headers are wrong, nor while something
    that has ended is not noted yet.
    """
    segments = opened.segments
    for name, _, _ in opened.gaps:
        if int(name[:8], 16) >= segments[0].number:
            return 0
    total = log.RECORD_BYTES
    for queue in queues:
        if queue.deferred:
            records = 1 + len(queue.ended) // _ENDED_MAX
            total += records * (log.RECORD_BYTES + log.PLACE_PREFIX_BYTES) + 4 * len(queue.ended)
    kept = whole = 0
    for segment in segments:  # and no list of them: there may be hundreds
        whole += segment.size
        kept += len(segment.handles)
        for handle in segment.handles:
            if handle.record[confirm.STATE] == confirm.GONE:
                return 0
    total += log.ENTRY_BYTES * kept + log.RECORD_BYTES * (1 + kept // _ENTRIES_MAX)
    return total if LOG_SHARE * total <= whole and SEGMENT_SHARE * total <= opened.segment_size else 0


def write(opened: "Log", queues: "list[LoggedQueue]") -> None:
    """Log one. Raises OutboxWriteFailed."""
    for queue in queues:
        if queue.deferred:
            _write_place(opened, queue)
    left = 0
    for segment in opened.segments:
        left += len(segment.handles)
    entries = count = place = 0
    for segment in opened.segments:
        for handle in segment.handles:
            if not entries:
                count = min(left, _ENTRIES_MAX)
                place = opened.room(log.RECORD_BYTES + count * log.ENTRY_BYTES) + log.RECORD_BYTES
            record = handle.record
            struct.pack_into(
                log.ENTRY,
                opened.out,
                place + entries * log.ENTRY_BYTES,
                handle.message_id,
                segment.number,
                handle.offset,
                record[confirm.STATE],
                record[confirm.MARKS],
                record[confirm.CLASS],
                record[confirm.SENT_TIME],
            )
            entries += 1
            if entries == count:
                opened.finish(log.KEPT, entries * log.ENTRY_BYTES)
                left -= entries
                entries = 0
    opened.room(log.RECORD_BYTES)
    opened.finish(log.SNAPSHOT, 0)


def _write_place(opened: "Log", queue: "LoggedQueue") -> None:
    ended = list(queue.ended)
    assert queue.cursor is not None
    for begin in range(0, len(ended) + 1, _ENDED_MAX):
        ids = ended[begin : begin + _ENDED_MAX]
        length = log.PLACE_PREFIX_BYTES + 4 * len(ids)
        place = opened.room(log.RECORD_BYTES + length) + log.RECORD_BYTES
        struct.pack_into(
            log.PLACE_PREFIX,
            opened.out,
            place,
            queue.index,
            0,
            queue.cursor.number,
            queue.offset,
            queue.first,
            queue.last,
            queue.deferred,
            queue.bytes,
        )
        for message_id in ids:
            place += 4
            struct.pack_into("<I", opened.out, place + log.PLACE_PREFIX_BYTES - 4, message_id)
        opened.finish(log.PLACE, length)
