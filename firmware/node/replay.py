"""The start of an outbox: what the log in its files holds. The other half of outbox.py, and its alone: a board keeps it
in memory only until it has started.
"""
# ruff: noqa: SLF001 - what they share is nobody else's

import os
import struct
from array import array
from binascii import crc32
from hashlib import sha256

from mqqb import const

from node import outbox

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from node.outbox import Arrival, LoggedQueue, Outbox, Segment, Stored

# Of outbox.py (a test compares them).
_HEADER = const("<4sHHIIIIIIIIHH16s")
_HEADER_BYTES = const(60)
_VERSION_BYTES = const(12)
_MESSAGE = const(0xB1)
_STATE = const(0xB2)
_QUEUE = const(0xB3)
_STARTED = const(0xB4)
_COPY = const(0xB5)
_ARRIVAL = const(0xC1)
_ARRIVAL_STATE = const(0xC2)
_SOURCE = const(0xC3)
_ARRIVAL_COPY = const(0xC5)
_AFTER_SYNC = const(0x08)
_RECORD_BYTES = const(8)
_MESSAGE_PREFIX_BYTES = const(40)
_QUEUE_PREFIX_BYTES = const(18)
_SOURCE_PREFIX_BYTES = const(34)
_STATE_PREFIX = const("<BBHI")
_STATE_PREFIX_BYTES = const(8)
_START = const("<II")
_START_BYTES = const(8)
_SENT = const(1)
_AHEAD = const(2)
_GONE = const(45)
_WORD_STATE = const(0)
_WORD_MARKS = const(1)
_WORD_SENT_TIME = const(2)
_WORD_CLASS = const(5)
_MESSAGE_PREFIX = const("<HHIIIIIBBHIII")
_QUEUE_PREFIX = const("<HIIII")
_SOURCE_PREFIX = const("<HIIII16s")
_BUFFER_BYTES = const(512)  # a record of any name fits into it

nonce = os.urandom
_TYPES = (_MESSAGE, _STATE, _QUEUE, _STARTED, _COPY, _ARRIVAL, _ARRIVAL_STATE, _SOURCE, _ARRIVAL_COPY)


class Restored:
    """A message that the log held at start: what its owner's table needs.

    `sent`: it may have been transmitted, whatever the state in its record is.
    """

    __slots__ = ("flags", "handle", "queue", "sent", "tx_sequence_id", "tx_sequence_number")

    def __init__(
        self, queue: "LoggedQueue", handle: "Stored", flags: int, tx_sequence_id: int, tx_sequence_number: int
    ) -> None:
        self.queue = queue
        self.handle = handle
        self.flags = flags
        self.tx_sequence_id = tx_sequence_id
        self.tx_sequence_number = tx_sequence_number
        self.sent = False


def _numbers(names: "list[str]") -> "list[int]":
    numbers = []
    for name in names:
        if len(name) == 12 and name.endswith(".log"):
            try:
                numbers.append(int(name[:8], 16))
            except ValueError:
                continue
    return sorted(numbers)


def _place(restored: Restored) -> "tuple[int, int]":
    return restored.tx_sequence_id, restored.tx_sequence_number


def fresh_guid() -> bytes:
    """An identity that nobody has had: a UUID of version 8 (RFC 9562, 5.8), in the byte order of packets.

    Of the chip's identifier, so that boards with a poor source of randomness differ, and of a nonce, so that a folder
    that was erased begins another identity: nothing tells what the one before has numbered.
    """
    try:
        import machine  # type: ignore[import-not-found,unused-ignore]

        chip = machine.unique_id()
    except (ImportError, AttributeError):
        chip = b""
    made = bytearray(sha256(chip + nonce(16)).digest()[:16])
    made[7] = made[7] & 0x0F | 0x80  # the third group is little-endian in packets
    made[8] = made[8] & 0x3F | 0x80
    return bytes(made)


class Replay:
    """Gives `box`, which is empty, what its files hold; make and make_arrival make the handles. Raises as Outbox."""

    def __init__(self, box: "Outbox", make: "type[Stored]", make_arrival: "type[Arrival]") -> None:
        self._box = box
        self._files = box._files
        self._make = make
        self._make_arrival = make_arrival
        self._kept: "dict[int, Restored]" = {}
        self._arrivals: "dict[int, Arrival]" = {}
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._from = 0  # the part of a file that is in _buffer
        self._to = 0
        self._payload = _RECORD_BYTES  # where in _buffer the payload of a record begins
        numbers = _numbers(self._files.names())
        headers = [self._read_header(number) for number in numbers]
        unfinished = 0
        if headers and headers[-1] is None:  # the cut came while it was begun; nothing can be in it yet
            headers.pop()
            unfinished = numbers.pop()
        first = headers[-1][5] if headers and headers[-1] is not None else 0
        stale = [number for number in numbers if number < first]
        torn = False
        numbers = numbers[len(stale) :]
        headers = headers[len(stale) :]
        for i in range(1, len(numbers)):
            if numbers[i] != numbers[i - 1] + 1:
                raise outbox.OutboxDamaged(outbox.file_name(numbers[i] - 1), 0, "the file is missing")
        for i in range(len(numbers)):
            header = headers[i]
            if header is None:
                raise outbox.OutboxDamaged(outbox.file_name(numbers[i]), 0, "the header is broken")
            following = headers[i + 1] if i + 1 < len(numbers) else None
            torn = self._replay_segment(numbers[i], header, following)
        box._queues_logged = box._queues_synced = len(box.queues)
        box._sources_logged = box._sources_synced = len(box.sources)
        if unfinished:
            name = outbox.file_name(unfinished)
            size = self._files.size(name)
            base = box._header_size()
            if (size > base and not self._is_blank(name, base, size)) or (not numbers and unfinished != 1):
                raise outbox.OutboxDamaged(name, 0, "the header is broken")
            box._remove(unfinished)
        for number in stale:
            box._remove(number)
        box.restored = sorted(self._kept.values(), key=_place)
        box.live = len(self._kept)
        box.arrivals = len(self._arrivals)
        for source in box.sources:
            source.noted[:] = source.record
        current = box._current
        if current is not None:
            # Killed, not cut off from power: what was read may not be durable yet, and it is about to be built upon.
            self._files.resume(current.name, current.size)
            self._files.sync()
            box._synced_size = current.size
            box._ended = torn
            box._reclaim()
        self._jump()

    def _jump(self) -> None:
        """Number on at a distance: the log may be an old copy, whose next numbers were given (B-020)."""
        box = self._box
        box._last_message_id = box.next_message_id - 1
        low, high, arrivals = struct.unpack("<HHH", outbox.jump(6))
        if box._current is None:
            if box.guid is None:
                box.guid = fresh_guid()
                low = high = arrivals = 0
            low += high >> 1 << 16  # else it was here before its log was erased: nothing is known of it
        box.next_message_id = box.next_message_id + low & 0xFFFFFFFF or 1
        box.next_arrival = box.next_arrival + arrivals & 0xFFFFFFFF or 1
        box._first_message_id = box.next_message_id

    def _read_header(self, number: int) -> "tuple[Any, ...] | None":
        """The fields of a segment's header, its CRC last; None if it is not whole."""
        box = self._box
        name = outbox.file_name(number)
        size = self._files.read_into(name, 0, self._view[:_HEADER_BYTES])
        if size < _VERSION_BYTES:
            return None
        magic, version, _, base = struct.unpack_from("<4sHHI", self._buffer, 0)
        if magic != outbox.MAGIC or not _VERSION_BYTES + 4 <= base <= self._files.size(name):
            return None
        header = struct.unpack_from(_HEADER, self._buffer, 0)
        crc = self._crc(name, 0, base - 4, 0)
        self._files.read_into(name, base - 4, self._view[:4])
        if struct.unpack_from("<I", self._buffer, 0)[0] != crc:
            return None
        if version != outbox.VERSION:
            raise outbox.OutboxError(
                "{} has format version {}, this program knows {}: "
                "let the program that wrote it deliver what is in it, then empty the folder".format(
                    name, version, outbox.VERSION
                )
            )
        if size < _HEADER_BYTES or base < _HEADER_BYTES + 4 or header[4] != number:
            return None
        if box.guid is None:
            box.guid = header[13]
        if header[13] != box.guid:
            raise outbox.OutboxError(name + " belongs to another board: its folder must not be used under this GUID")
        return header + (crc,)

    def _replay_segment(self, number: int, header: "tuple[Any, ...]", following: "tuple[Any, ...] | None") -> bool:
        """Take in one segment; True if its end is torn. following: the next header, which says where this one ends."""
        box = self._box
        name = outbox.file_name(number)
        size = self._files.size(name)
        segment = outbox.Segment(number, header[14], header[3], size if self._files.fixed else 0)
        end = size if following is None else following[6]
        if end > size:
            raise outbox.OutboxDamaged(name, size, "the file is cut short")
        box._adopt(segment)
        offset = _HEADER_BYTES
        self._to = 0
        for i in range(header[2] + header[11]):
            length = 0
            for _ in range(2):  # first it may be that not even the length is in the buffer
                if offset + 2 + length > self._to:
                    self._read(segment, offset, header[3])
                length = struct.unpack_from("<H", self._buffer, offset - self._from)[0]
            self._payload = offset + 2 - self._from
            self._apply(_QUEUE if i < header[2] else _SOURCE, length, segment)
            offset += 2 + length
        box.next_message_id = header[7]
        box.next_arrival = header[8]
        box._time_stamp = max(box._time_stamp, header[9])
        self._started(header[10], header[12])
        while segment.size < end:
            word = self._check(segment, segment.size, end)
            if not word:
                if following is None and self._is_blank(name, segment.size, end):
                    return False
                if following is not None or self._durable_after(segment, segment.size + 1, end):
                    raise outbox.OutboxDamaged(name, segment.size, "the record is broken")
                return True
            self._apply(word & 0xFF & ~_AFTER_SYNC, word >> 8, segment)
            segment.size += _RECORD_BYTES + (word >> 8)
        return False

    def _read(self, segment: "Segment", offset: int, end: int) -> None:
        """Fill the buffer with the file from offset on."""
        self._from = offset
        self._to = offset + self._files.read_into(segment.name, offset, self._view[: min(_BUFFER_BYTES, end - offset)])

    def _check(self, segment: "Segment", offset: int, end: int) -> int:
        """The second word of the record at offset if it is whole, else 0. Its beginning is then in the buffer, the
        payload at _payload.
        """
        if offset < self._from or offset + _RECORD_BYTES > self._to:
            self._read(segment, offset, end)
        if self._to - offset < _RECORD_BYTES:
            return 0
        crc, word = struct.unpack_from("<II", self._buffer, offset - self._from)
        stop = offset + _RECORD_BYTES + (word >> 8)
        if word & 0xFF & ~_AFTER_SYNC not in _TYPES or stop > end:
            return 0
        if stop > self._to and offset > self._from:
            self._read(segment, offset, end)
        start = offset - self._from
        self._payload = start + _RECORD_BYTES
        value = crc32(self._view[start + 4 : min(self._to, stop) - self._from], segment.seed)
        if self._to < stop:
            value = self._crc(segment.name, self._to, stop, value)
        return int(word) if value == crc else 0

    def _crc(self, name: str, offset: int, end: int, value: int) -> int:
        """Carry a CRC on over bytes of a file, through the box's write buffer, which is empty at the start."""
        view = self._box._out
        while offset < end:
            count = self._files.read_into(name, offset, view[: min(len(view), end - offset)])
            if not count:
                raise OSError("a file became shorter while it was read")
            value = crc32(view[:count], value)
            offset += count
        return value

    def _is_blank(self, name: str, offset: int, end: int) -> bool:
        """Is this the part of a file that does not grow to which nothing was written yet?"""
        view = self._box._out
        blank = self._files.fixed
        while blank and offset < end:
            count = self._files.read_into(name, offset, view[: min(len(view), end - offset)])
            blank = count > 0 and bytes(view[:count]) == bytes(count)
            offset += count
        return blank

    def _durable_after(self, segment: "Segment", offset: int, end: int) -> bool:
        """Does a whole record behind a broken one say that everything before it was durable?"""
        while offset < end:
            self._read(segment, offset, end)
            count = self._to - offset
            chunk = bytes(self._view[:count])
            for kind in _TYPES:
                place = chunk.find(bytes((kind | _AFTER_SYNC,)))
                while place >= 0:
                    if self._check(segment, offset + place - 4, end):
                        return True
                    place = chunk.find(bytes((kind | _AFTER_SYNC,)), place + 1)
            offset += count
        return False

    def _apply(self, kind: int, length: int, segment: "Segment") -> None:
        """Repeat what a whole record says, which is in the buffer."""
        if kind in (_QUEUE, _SOURCE):
            self._apply_counters(kind, length)
        elif kind in (_MESSAGE, _COPY, _ARRIVAL, _ARRIVAL_COPY):
            self._apply_message(kind, length, segment)
        elif kind == _STARTED:
            starts, flags = struct.unpack_from(_START, self._buffer, self._payload)
            end = self._payload + length
            self._box.name = bytes(self._view[self._payload + _START_BYTES : end]).decode()
            self._started(starts, flags)
        else:
            self._apply_state(kind, length)

    def _apply_counters(self, kind: int, length: int) -> None:
        box = self._box
        buffer = self._buffer
        end = self._payload + length
        if kind == _QUEUE:
            index, *counters = struct.unpack_from(_QUEUE_PREFIX, buffer, self._payload)
            if index == len(box.queues):
                name = bytes(self._view[self._payload + _QUEUE_PREFIX_BYTES : end]).decode()
                box.queues.append(outbox.LoggedQueue(index, name, array("I", (0, 0, 0, 0))))
            self._queue_counters(box.queues[index], array("I", counters))
        else:
            index, *counters, guid = struct.unpack_from(_SOURCE_PREFIX, buffer, self._payload)
            if index == len(box.sources):
                name = bytes(self._view[self._payload + _SOURCE_PREFIX_BYTES : end]).decode()
                box.sources.append(outbox.LoggedSource(index, guid, name, array("I", (0, 0, 0, 0))))
            box.sources[index].record[:] = array("I", counters)

    def _queue_counters(self, queue: "LoggedQueue", counters: "array[int]") -> None:
        queue.record[:] = counters
        self._box._time_stamp = max(self._box._time_stamp, counters[1])

    def _apply_message(self, kind: int, length: int, segment: "Segment") -> None:
        box = self._box
        index, flags, number, *rest = struct.unpack_from(_MESSAGE_PREFIX, self._buffer, self._payload)
        counters = array("I", rest[:4])
        state, marks, message_class, sent_time, ttrq, ttbr = rest[4:]
        record = array("I", (state, marks, sent_time, ttrq, ttbr, message_class))
        handle: "Stored"
        if kind in (_ARRIVAL, _ARRIVAL_COPY):
            source = box.sources[index]
            old_arrival = self._arrivals.pop(number, None)
            if old_arrival is not None:
                box._drop(old_arrival)
            handle = self._arrivals[number] = self._make_arrival(number, record, source)
            if kind == _ARRIVAL:
                box.next_arrival = outbox.following(number)
                source.record[:] = counters
        else:
            queue = box.queues[index]
            old = self._kept.pop(number, None)
            if old is not None:
                box._drop(old.handle)
            handle = self._make(number, record)
            own = (counters[2] - 1) & 0xFFFFFFFF if flags & outbox.TRANSACTIONAL else 0
            tx_sequence_id = counters[1] << 32 | counters[0] if own else 0
            restored = self._kept[number] = Restored(queue, handle, flags, tx_sequence_id, own)
            restored.sent = box._sent
            if kind == _MESSAGE:
                box.next_message_id = outbox.following(number)
                self._queue_counters(queue, counters)
        handle.size = length - _MESSAGE_PREFIX_BYTES
        box._keep(handle, segment, segment.size)

    def _apply_state(self, kind: int, length: int) -> None:
        state, marks, message_class, sent_time = struct.unpack_from(_STATE_PREFIX, self._buffer, self._payload)
        for place in range(self._payload + _STATE_PREFIX_BYTES, self._payload + length, 4):
            number = struct.unpack_from("<I", self._buffer, place)[0]
            if kind == _STATE:
                restored = self._kept.get(number)
                handle: "Stored | None" = restored.handle if restored is not None else None
            else:
                handle = self._arrivals.get(number)
            if handle is None:
                continue
            record = handle.record
            record[_WORD_STATE] = state
            record[_WORD_MARKS] = marks
            record[_WORD_CLASS] = message_class
            if sent_time:
                record[_WORD_SENT_TIME] = sent_time
            if state == _GONE:
                self._box._drop(handle)
                if kind == _STATE:
                    del self._kept[number]
                else:
                    del self._arrivals[number]

    def _started(self, starts: int, flags: int) -> None:
        self._box.starts = starts
        self._box.ahead = bool(flags & _AHEAD)
        self._box._sent = bool(flags & _SENT)
        if flags & _SENT:
            for restored in self._kept.values():
                restored.sent = True
