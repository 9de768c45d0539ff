"""Messages on flash only: those that wait behind the messages in memory, and `open` ones, stored at their destination
but not known to be received (state O).

For each segment with such messages of a queue, LoggedQueue.flash_only has a bitmap of their positions. No message is
shorter than its head, so one bit per HEAD_BYTES is enough. Waiting messages are the MESSAGE records from the queue's
cursor on. A message is read and checked when its turn comes or an answer names it.
"""

import struct
from array import array
from binascii import crc32

from mqqb import confirm, const, core
from mqqb.streams import position
from ordack.node.storage import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from ordack.node.storage.log import Log, LoggedQueue, Segment, Stored

    Found = tuple[Segment, int, int, tuple[int, ...]]  # segment, offset, bytes of the payload, fields of its prefix

NEVER = const(0xFFFFFFFFFFFFFFFF)
# Count; lower bound of the open ones' deadlines, s since 1970; latest known T0, for those without their own; first and
# last MessageID. The bitmap follows.
_HEAD = const("<IQIII")
_HEAD_BYTES = const(24)
_DUE_AT = const(4)
_NEXT_ID_AT = const(24)  # in the header of a segment


class Restored:
    """A message read from the log, with the facts that its stream needs.

    sent: it may have been transmitted, regardless of its state. is_open: it was in state O.
    """

    __slots__ = ("flags", "handle", "is_open", "queue", "sent", "tx_sequence_id", "tx_sequence_number")

    def __init__(
        self, queue: "LoggedQueue", handle: "Stored", flags: int, tx_sequence_id: int, tx_sequence_number: int
    ) -> None:
        self.queue = queue
        self.handle = handle
        self.flags = flags
        self.tx_sequence_id = tx_sequence_id
        self.tx_sequence_number = tx_sequence_number
        self.sent = self.is_open = False


def put(queue: "LoggedQueue", segment: "Segment", offset: int, size: int, number: int, record: "Any" = None) -> None:
    """Mark a message of size bytes with its head as on flash only. record: its confirmation, if it is open.

    A MemoryError changes nothing.
    """
    count, due, dated, first, last = 0, NEVER, 0, number, number
    held = queue.flash_only.get(segment.number)
    if held is None:
        held = bytearray(_HEAD_BYTES)
    else:
        count, due, dated, first, last = struct.unpack_from(_HEAD, held)
    bit = offset // log.HEAD_BYTES
    more = _HEAD_BYTES + (bit >> 3) + 1 - len(held)
    if more > 0:
        held.extend(bytes(more))
    if record is not None:
        sent_time = record[confirm.SENT_TIME]
        dated = max(dated, sent_time)
        if sent_time and record[confirm.TTBR] != confirm.UNSET:
            due = min(due, sent_time + record[confirm.TTBR])
    first = number if log.is_after(first, number) else first
    last = number if log.is_after(number, last) else last
    head = struct.pack(_HEAD, count + 1, due, dated, first, last)
    queue.flash_only[segment.number] = held
    core.copy(held, 0, head, 0, _HEAD_BYTES)
    held[_HEAD_BYTES + (bit >> 3)] |= 1 << (bit & 7)
    segment.flash_only += 1
    segment.live += size
    if record is not None:
        queue.open += 1
    else:
        if not queue.deferred:
            queue.cursor = segment.number
            queue.offset = offset
        queue.deferred += 1


def put_open(handle: "Stored") -> None:
    """Leave a stored message with an open fate on flash only."""
    segment = handle.segment
    queue = handle.queue
    assert segment is not None
    assert queue is not None
    put(queue, segment, handle.offset, log.HEAD_BYTES + handle.size, handle.message_id, handle.record)
    log.drop(handle)


def clear(queue: "LoggedQueue", segment: "Segment", offset: int, size: int, is_open: bool) -> None:
    """Unmark a message of size bytes with its head."""
    held = queue.flash_only[segment.number]
    count = struct.unpack_from("<I", held)[0]
    if count == 1:
        del queue.flash_only[segment.number]
    else:
        bit = offset // log.HEAD_BYTES
        struct.pack_into("<I", held, 0, count - 1)
        held[_HEAD_BYTES + (bit >> 3)] &= ~(1 << (bit & 7))
    segment.flash_only -= 1
    segment.live -= size
    if is_open:
        queue.open -= 1
    else:
        queue.deferred -= 1


def due(queue: "LoggedQueue", number: int) -> int:
    """Return a lower bound of the deadlines of a segment's open messages."""
    return int(struct.unpack_from("<Q", queue.flash_only[number], _DUE_AT)[0])


def set_due(queue: "LoggedQueue", number: int, time: int) -> None:
    """Set the lower bound of the deadlines of a segment's open messages."""
    if number in queue.flash_only:
        struct.pack_into("<Q", queue.flash_only[number], _DUE_AT, time)


def waits_in(queues: "list[LoggedQueue]", number: int) -> bool:
    """May a waiting message be in this segment?"""
    return any(queue.deferred and queue.cursor <= number and number in queue.flash_only for queue in queues)


def _has(queue: "LoggedQueue", number: int, bit: int) -> bool:
    held = queue.flash_only.get(number)
    at = _HEAD_BYTES + (bit >> 3)
    return held is not None and at < len(held) and held[at] & 1 << (bit & 7) != 0


class FlashOnly:
    """The messages of a log that are on flash only. queues: all of the log, later ones included. make: makes handles.

    Reading raises OSError; a retry may succeed. Broken records are skipped and reported (`Log.damage`).
    """

    def __init__(self, opened: "Log", queues: "list[LoggedQueue]", make: "type[Stored]") -> None:
        self._log = opened
        self._queues = queues
        self._make = make
        self._settings = confirm.Settings()

    def next(self, queue: "LoggedQueue", until: "int | None" = None) -> "Restored | None":
        """Load the first waiting message into memory. None: none yet, or it comes after the MessageID `until`."""
        segments = self._log.segments
        while queue.deferred:
            if queue.cursor < segments[0].number:
                queue.cursor = segments[0].number
                queue.offset = 0
            for found in self.walk(queue, queue.cursor, queue.offset):
                _, offset, size, fields = found
                if self._is_open(queue, found):
                    continue
                if until is not None and log.is_after(fields[2], until):
                    return None
                restored = self.restored(queue, found)
                self.attach(restored)
                queue.offset = offset + log.RECORD_BYTES + size
                return restored
            if queue.cursor == segments[-1].number:
                return None
            queue.cursor += 1
            queue.offset = 0
        return None

    def find(self, queue: "LoggedQueue", message_id: int, where: "tuple[int, int] | None" = None) -> "Restored | None":
        """Find a message and leave it on flash. where: its position, if a MessageID is ambiguous. None: not here.

        Answers usually come in log order, so the search starts behind the last hit.
        """
        numbers = []
        for number in sorted(queue.flash_only):
            first, last = struct.unpack_from("<II", queue.flash_only[number], _HEAD_BYTES - 8)
            if not log.is_after(first, message_id) and not log.is_after(message_id, last):
                numbers.append(number)
        for number, offset in [queue.near] * (queue.near[0] in numbers) + [(number, 0) for number in numbers]:
            for found in self.walk(queue, number, offset):
                if found[3][2] == message_id:
                    restored = self.restored(queue, found)
                    if where is None or where == position(restored):
                        queue.near = number, found[1]
                        return restored
        return None

    def walk(self, queue: "LoggedQueue", number: int, offset: int = 0) -> "Generator[Found]":
        """Yield a queue's durable messages in a segment from an offset on."""
        opened = self._log
        segments = opened.segments
        segment = segments[number - segments[0].number]
        offset = max(offset, segment.base)
        while number in queue.flash_only and offset < opened.end_of(segment):
            known = [end for name, begin, end in opened.gaps if name == segment.name and begin == offset]
            if known:
                offset = known[0]
                continue
            word, fields = self._read(segment, offset)
            if not word:
                offset = self._pass_over(segment, offset)
                continue
            if word & 0xFF & ~log.AFTER_SYNC in (log.MESSAGE, log.COPY) and _has(
                queue, number, offset // log.HEAD_BYTES
            ):
                yield segment, offset, word >> 8, fields + (word & 0xFF,)
            offset += log.RECORD_BYTES + (word >> 8)

    def restored(self, queue: "LoggedQueue", found: "Found") -> "Restored":
        """Return a message found by `walk` in its current state. It stays on flash."""
        segment, offset, size, fields = found
        restored = restored_of(queue, size, fields[:-1], self._make)
        handle = restored.handle
        handle.segment = segment
        handle.offset = offset
        restored.is_open = self._is_open(queue, found)
        if restored.is_open:
            record = handle.record
            confirm.Confirmation(record, self._settings).order_ack()
            if not record[confirm.SENT_TIME]:
                record[confirm.SENT_TIME] = struct.unpack_from(_HEAD, queue.flash_only[segment.number])[2]
        return restored

    def attach(self, restored: "Restored") -> None:
        """Take a found message into memory."""
        handle = restored.handle
        segment = handle.segment
        assert segment is not None
        segment.add(handle)  # a MemoryError changes nothing
        handles = segment.handles
        k = len(handles) - 1
        while k and handles[k - 1].offset > handle.offset:  # dead letters stay in the order of their numbers
            handles[k] = handles[k - 1]
            k -= 1
        handles[k] = handle
        size = log.HEAD_BYTES + handle.size
        clear(restored.queue, segment, handle.offset, size, restored.is_open)
        segment.live += size

    def some_of(self, number: int, most: int) -> "list[Stored]":
        """Load up to `most` open messages of a segment without waiting ones into memory."""
        some: "list[Restored]" = []
        for queue in self._queues:
            for found in self.walk(queue, number):
                if len(some) == most:
                    break
                some.append(self.restored(queue, found))
        for one in some:
            self.attach(one)
        return [one.handle for one in some]

    def _is_open(self, queue: "LoggedQueue", found: "Found") -> bool:
        segment, offset, _, fields = found
        is_behind = queue.deferred and (segment.number, offset) >= (queue.cursor, queue.offset)
        return not is_behind or fields[-1] & ~log.AFTER_SYNC == log.COPY

    def _read(self, segment: "Segment", offset: int) -> "tuple[int, tuple[int, ...]]":
        """Return the second word of a record and its prefix if it is a message; word 0: not whole."""
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

    def _pass_over(self, segment: "Segment", begin: int) -> int:
        """Skip an unreadable record: return the offset of the next readable message, or the segment's end. Messages in
        between are lost and reported.
        """
        opened = self._log
        end = stop = opened.end_of(segment)
        bits = range(begin // log.HEAD_BYTES, stop // log.HEAD_BYTES)
        for bit in bits:
            if end < stop:
                break
            if any(_has(queue, segment.number, bit) for queue in self._queues):
                for offset in range(max(bit * log.HEAD_BYTES, begin + 1), min((bit + 1) * log.HEAD_BYTES, stop)):
                    word, _ = self._read(segment, offset)
                    if word & 0xFF & ~log.AFTER_SYNC in (log.MESSAGE, log.COPY):
                        end = offset
                        break
        lost = 0
        for queue in self._queues:
            for bit in range(begin // log.HEAD_BYTES, end // log.HEAD_BYTES):
                if _has(queue, segment.number, bit):
                    lost += 1
                    place = segment.number, bit * log.HEAD_BYTES + log.HEAD_BYTES - 1
                    is_open = not queue.deferred or place < (queue.cursor, queue.offset)
                    clear(queue, segment, place[1], 0, is_open)
        opened.leave_out(segment, begin, end)
        if lost:
            self._say_lost(segment, begin, end)
        return end

    def _say_lost(self, segment: "Segment", begin: int, end: int) -> None:
        """Report the messages that the skipped part may have held."""
        opened = self._log
        first = self._next_id(segment)
        offset = segment.base
        while offset < begin:
            known = [stop for name, start, stop in opened.gaps if name == segment.name and start == offset]
            word, fields = (0, ()) if known else self._read(segment, offset)
            if word & 0xFF & ~log.AFTER_SYNC == log.MESSAGE:
                first = log.following(fields[2])
            offset = known[0] if known else offset + log.RECORD_BYTES + (word >> 8)
        last = 0
        offset = end
        while not last and offset < opened.end_of(segment):
            word, fields = self._read(segment, offset)
            if not word:
                break
            if word & 0xFF & ~log.AFTER_SYNC == log.MESSAGE:
                last = fields[2]
            offset += log.RECORD_BYTES + (word >> 8)
        if not last and segment is not opened.segments[-1]:
            last = self._next_id(opened.segments[segment.number + 1 - opened.segments[0].number])
        missing = last - first & 0xFFFFFFFF
        if last and missing <= (end - begin) // log.HEAD_BYTES:
            for k in range(missing):
                opened.miss(first + k & 0xFFFFFFFF)
        else:
            opened.missing.append(0)
            opened.damage.append("messages from {} on cannot be read".format(first))

    def _next_id(self, segment: "Segment") -> int:
        """Return the first MessageID in this segment or after it."""
        head = self._log.piece[:4]
        self._log.read(segment.name, _NEXT_ID_AT, head)
        return int(struct.unpack_from("<I", head)[0])


def confirmation_of(fields: "tuple[int, ...]") -> "array[int]":
    """Return the record of a message or arrival from its prefix."""
    state, marks, message_class, sent_time, ttrq, ttbr = fields[7:]
    return array("I", (state, marks, sent_time, ttrq, ttbr, message_class))


def restored_of(queue: "LoggedQueue", size: int, fields: "tuple[int, ...]", make: "type[Stored]") -> Restored:
    """Return a message from its prefix; its handle has no place yet. size: of the payload, bytes."""
    _, flags, number, ordinal, time_stamp, after = fields[:6]
    handle = make(number, confirmation_of(fields))
    handle.queue = queue
    handle.size = size - log.MESSAGE_PREFIX_BYTES
    own = (after - 1) & 0xFFFFFFFF if flags & log.TRANSACTIONAL else 0
    return Restored(queue, handle, flags, time_stamp << 32 | ordinal if own else 0, own)
