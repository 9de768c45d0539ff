"""Messages that wait on the flash only: read from the log one by one, each checked when its turn comes.

A start does not read them: a snapshot at the begin of a segment is what it needs to know of the segments before it, one
record for each queue that has such messages, some that list what is in memory or aside, and one that ends it. What
cannot be read at its turn is left out, to the next whole record, and said (`Log.damage`).
"""

import struct
import sys
from binascii import crc32

from mqqb import confirm, const
from mqqb.streams import position
from ordack.node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from ordack.node.log import Log, LoggedQueue, Restored, Segment, Stored

    Found = tuple[Segment, int, int, tuple[int, ...]]  # segment, offset, bytes of the payload, what its prefix says

LOG_SHARE = 32  # a snapshot is written where it takes at most one of so many bytes that a start would read without it,
SEGMENT_SHARE = 16  # and of a segment
ASIDE_SHARE = 4  # as both, for what it says of messages that are aside: else a start would have to read all of those
# After so many messages were taken from the flash, or as many as a start takes into memory, the next segment begins.
TAKEN_MIN = 32
_ENTRIES_MAX = const(24)  # in one record
_ENDED_MAX = const(64)


class Deferred:
    """Those of a log. queues: its own, all of them, also those that are made later. make: makes a message's handle.

    All of it raises OSError; OutboxDamaged: a message cannot be read, and another attempt may find out why.
    """

    def __init__(self, opened: "Log", queues: "list[LoggedQueue]", make: "type[Stored]") -> None:
        self._log = opened
        self._queues = queues
        self._make = make

    def next(self, queue: "LoggedQueue", until: "int | None" = None) -> "Restored | None":
        """Take the first one of the queue into memory. None: there is none, or it is behind the MessageID `until`."""
        while True:
            found = self._seek(queue, queue.cursor, queue.offset, True)
            if found is None:
                if queue.deferred and until is None:  # they are not there: count again
                    self._salvage(queue.cursor, -1)
                    continue
                return None
            _, offset, size, fields = found
            number = fields[2]
            if until is not None and log.is_after(number, until):
                return None
            restored = None
            first = log.following(number)  # before want of memory could end it half-way
            if number not in queue.ended:
                restored = self._restore(queue, found)
            if queue.ended:  # also those in segments that it has passed over
                queue.ended = {one for one in queue.ended if log.is_after(one, number)}
            queue.offset = offset + log.RECORD_BYTES + size
            queue.first = first
            queue.bytes -= log.RECORD_BYTES + size
            if restored is not None:
                return restored

    def take(self, queue: "LoggedQueue", message_id: int, where: "tuple[int, int] | None" = None) -> "Restored | None":
        """Take a message into memory ahead of the others; the owner notes that it has ended. None: it is not there, or
        has another position than `where`.
        """
        found = self._find(queue, message_id)
        if found is None:
            return None
        if where is not None and where != position(log.restored_of(queue, found[2], found[3], self._make)):
            return None
        queue.ended.add(message_id)
        try:
            return self._restore(queue, found)
        except MemoryError:
            queue.ended.remove(message_id)
            raise

    def look_at(self, queue: "LoggedQueue", message_id: int) -> "Stored | None":
        """A handle of a message that stays where it is, to be read. None: it is not there."""
        found = self._find(queue, message_id)
        if found is None:
            return None
        segment, offset, size, fields = found
        handle = log.restored_of(queue, size, fields, self._make).handle
        handle.segment = segment
        handle.offset = offset
        return handle

    def _find(self, queue: "LoggedQueue", message_id: int) -> "Found | None":
        segment, offset = queue.cursor, queue.offset
        while queue.may_defer(message_id):
            found = self._seek(queue, segment, offset)
            if found is None or log.is_after(found[3][2], message_id):
                break
            segment, offset, size, fields = found
            if fields[2] == message_id:
                return found
            offset += log.RECORD_BYTES + size
        return None

    def _restore(self, queue: "LoggedQueue", found: "Found") -> "Restored":
        segment, offset, size, fields = found
        restored = log.restored_of(queue, size, fields, self._make)
        segment.add(restored.handle)  # want of memory ends it before anything has changed
        restored.handle.segment = segment
        restored.handle.offset = offset
        segment.deferred -= 1
        queue.deferred -= 1
        if not queue.deferred:
            queue.ended.clear()
        return restored

    def _seek(
        self, queue: "LoggedQueue", segment: "Segment | None", offset: int, moves: bool = False
    ) -> "Found | None":
        """The next message of a queue from there on, also one that has ended. None: no other one is there.

        moves: the cursor goes there, too.
        """
        segments = self._log.segments
        while queue.deferred:
            assert segment is not None
            for name, begin, end in self._log.gaps:
                if name == segment.name and offset == begin:
                    offset = end
            if offset >= segment.size or not segment.deferred:  # the file may be gone then
                if segment is segments[-1]:
                    return None
                segment = segments[max(segment.number + 1 - segments[0].number, 0)]
                offset = segment.base
                continue
            word, fields = self._read(segment, offset)
            if not word:
                self._salvage(segment, offset)
                continue
            if moves:
                queue.cursor = segment
                queue.offset = offset
            if word & 0xFF & ~log.AFTER_SYNC == log.MESSAGE and fields[0] == queue.index:
                return segment, offset, word >> 8, fields
            offset += log.RECORD_BYTES + (word >> 8)
        return None

    def _read(self, segment: "Segment", offset: int) -> "tuple[int, tuple[int, ...]]":
        """The second word of the record there, and its prefix if it is a message; 0: it is not whole."""
        opened = self._log
        piece = opened.piece
        head = piece[: log.HEAD_BYTES]
        count = opened.read(segment.name, offset, head)
        if count < log.RECORD_BYTES:
            return 0, ()
        crc, word = struct.unpack_from("<II", head)
        fields = struct.unpack_from(log.MESSAGE_PREFIX, head, log.RECORD_BYTES)
        end = offset + log.RECORD_BYTES + (word >> 8)
        if end > segment.size:
            return 0, ()
        count = min(count, end - offset)
        value = crc32(head[4:count], segment.seed)
        place = offset + count
        while count and place < end:
            count = opened.read(segment.name, place, piece[: min(len(piece), end - place)])
            value = crc32(piece[:count], value)
            place += count
        return word if place == end and value == crc else 0, fields

    def _salvage(self, segment: "Segment | None", offset: int) -> None:
        """What is there cannot be read: see what can be done. A small board then forgets the program that does it."""
        assert segment is not None
        import ordack.node.records

        ordack.node.records.at_its_turn(self._log, self._queues, segment, offset)
        if len(self._log.out) < log.LARGE_OUT_BYTES:
            del ordack.node.records, sys.modules["ordack.node.records"]


def snapshot_size(opened: "Log", queues: "list[LoggedQueue]") -> int:
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
    more = 0
    if _has_aside(queues):
        from ordack.node import aside

        more = aside.snapshot_size(queues)
    if LOG_SHARE * total + ASIDE_SHARE * more > whole:
        return 0
    return total + more if SEGMENT_SHARE * total + ASIDE_SHARE * more <= opened.segment_size else 0


def write_snapshot(opened: "Log", queues: "list[LoggedQueue]") -> None:
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
    if _has_aside(queues):
        from ordack.node import aside

        aside.write_snapshot(opened, queues)
    opened.room(log.RECORD_BYTES)
    opened.finish(log.SNAPSHOT, 0)


def put_aside(handle: "Stored") -> None:
    """The message is on the flash only from now on, stored while its fate is open."""
    from ordack.node import aside  # not before there is one

    aside.put(handle)


def _has_aside(queues: "list[LoggedQueue]") -> bool:
    return any(queue.aside for queue in queues)


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
