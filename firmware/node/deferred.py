"""Messages that wait on the flash only: read from the log one by one, each checked when its turn comes.

A start does not read them. What cannot be read then is left out, to the next whole record, and said (`Log.damage`).
"""

import struct
import sys
from binascii import crc32

from mqqb import const

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from node.log import Log, LoggedQueue, Restored, Segment, Stored

    Found = tuple[Segment, int, int, tuple[int, ...]]  # segment, offset, bytes of the payload, what its prefix says


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

    def take(self, queue: "LoggedQueue", message_id: int) -> "Restored | None":
        """Take a message into memory ahead of the others; the owner notes that it has ended. None: it is not there."""
        found = self._find(queue, message_id)
        if found is None:
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
        import node.records
        import node.salvage

        node.salvage.at_its_turn(self._log, self._queues, segment, offset)
        if len(self._log.out) < log.LARGE_OUT_BYTES:
            del node.salvage, node.records
            del sys.modules["node.salvage"], sys.modules["node.records"]
