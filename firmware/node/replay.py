"""What the log in its files holds. No file is changed. A board forgets this module once it has started."""

import os
import struct
from array import array
from binascii import crc32
from hashlib import sha256

from mqqb import confirm, const
from mqqb.streams import position

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from node.log import Arrival, LoggedQueue, LoggedSource, Segment, Stored

_VERSION_BEFORE = const(3)  # all of its messages are in memory, and its STATE does not say the queue
_STATE_PREFIX_BYTES_BEFORE = const(8)
_QUEUE_PREFIX = const("<HIIII")
_SOURCE_PREFIX = const("<HIIII16s")
_POLYNOMIAL = const(0xEDB88320)  # of the CRC
# So much is looked through for a flipped bit; up to 11,450 bytes two that are flipped are never taken for another one.
_MEND_BYTES_MAX = const(8192)
_BUFFER_BYTES = const(512)  # a record of any name fits into it

nonce = os.urandom
_TYPES = (
    log.MESSAGE,
    log.STATE,
    log.QUEUE,
    log.STARTED,
    log.COPY,
    log.OUT_OF_TURN,
    log.ARRIVAL,
    log.ARRIVAL_STATE,
    log.SOURCE,
    log.ARRIVAL_COPY,
)


class Recovered:
    """What a log holds.

    guid: 16 bytes, of the board; name: of it, for people. `restored`: the messages that are kept in memory, those of a
    queue in the order of their numbers; the queues know of others, for which there was no room. `arrivals`: those kept,
    in any order. `segments`: the files that count, oldest first; is_torn: nothing may be appended to the last one;
    `useless`: files that hold nothing. `last_message_id` was given last; `next_message_id`, `next_arrival` come next.
    `time_stamp`: the highest that any sequence has. `starts` of the board so far; ahead: in the last one an OrderAck
    named what was never given; was_sent: in some of them something may have been transmitted. `damage`: what could not
    be read as it was written, a sentence each.
    """

    def __init__(self, guid: "bytes | None") -> None:
        self.guid = guid
        self.name = ""
        self.queues: "list[LoggedQueue]" = []
        self.sources: "list[LoggedSource]" = []
        self.restored: "list[log.Restored]" = []
        self.arrivals: "list[Arrival]" = []
        self.segments: "list[Segment]" = []
        self.is_torn = False
        self.useless: "list[str]" = []
        self.last_message_id = 0
        self.next_message_id = 1
        self.next_arrival = 1
        self.time_stamp = 0
        self.starts = 0
        self.ahead = False
        self.was_sent = False
        self.damage: "list[str]" = []


def _numbers(names: "list[str]") -> "list[int]":
    numbers = []
    for name in names:
        if len(name) == 12 and name.endswith(".log"):
            try:
                numbers.append(int(name[:8], 16))
            except ValueError:
                continue
    return sorted(numbers)


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


def recover(
    opened: "log.Log",
    guid: "bytes | None" = None,
    hold: int = 1 << 24,
    make: "type[Stored]" = log.Stored,
    make_arrival: "type[Arrival]" = log.Arrival,
) -> Recovered:
    """What the files of a log hold, of which nothing is written now. guid: whose it has to be; None: anybody's.

    hold: about so many messages are taken into memory, of each queue those that are sent first. make and make_arrival:
    make the handles. Raises OutboxDamaged, OutboxError (another board's folder, another format), OSError.
    """
    replay = _Replay(opened, guid, hold, make, make_arrival)
    replay.read()
    return replay.found


class _Records:
    """What stands in the files of a log, through one small buffer: whole records, those of which one bit was flipped,
    and where they end.

    view: of the buffer. begin, end: the part of a file that is in it; an end of 0 says that nothing is.
    """

    def __init__(self, opened: "log.Log") -> None:
        self._log = opened
        self.view = memoryview(bytearray(_BUFFER_BYTES))
        self.begin = 0
        self.end = 0
        self._payload = 0  # where in the buffer the payload of the record is that `check` has found

    def word(self, name: str, offset: int) -> int:
        """The 32 bits there in a file."""
        self._log.read(name, offset, self.view[:4])
        self.end = 0
        return int(struct.unpack_from("<I", self.view, 0)[0])

    def payload(self, size: int) -> memoryview:
        """Of the record that `check` has found, which has so many bytes of it, as much as the buffer holds."""
        return self.view[self._payload : self._payload + size]

    def counters(self, segment: "Segment", offset: int, end: int) -> memoryview:
        """Those of a queue or source, in a header that ends there."""
        length = 0
        for _ in range(2):  # first it may be that not even the length is in the buffer
            if offset + 2 + length > self.end:
                self.read(segment, offset, end)
            length = struct.unpack_from("<H", self.view, offset - self.begin)[0]
        self._payload = offset + 2 - self.begin
        return self.payload(length)

    def read(self, segment: "Segment", offset: int, end: int) -> None:
        """Fill the buffer with the file from offset on."""
        self.begin = offset
        self.end = offset + self._log.read(segment.name, offset, self.view[: min(_BUFFER_BYTES, end - offset)])

    def check(self, segment: "Segment", offset: int, end: int) -> int:
        """The second word of the record at offset if it is whole, else 0. Its beginning is then in the buffer, the
        payload at _payload.
        """
        if offset < self.begin or offset + log.RECORD_BYTES > self.end:
            self.read(segment, offset, end)
        if self.end - offset < log.RECORD_BYTES:
            return 0
        crc, word = struct.unpack_from("<II", self.view, offset - self.begin)
        stop = offset + log.RECORD_BYTES + (word >> 8)
        if word & 0xFF & ~log.AFTER_SYNC not in _TYPES or stop > end:
            return 0
        if stop > self.end and offset > self.begin:
            self.read(segment, offset, end)
        start = offset - self.begin
        self._payload = start + log.RECORD_BYTES
        value = crc32(self.view[start + 4 : min(self.end, stop) - self.begin], segment.seed)
        if self.end < stop:
            value = self.crc(segment.name, self.end, stop, value)
        return int(word) if value == crc else 0

    def crc(self, name: str, offset: int, end: int, value: int) -> int:
        """Carry a CRC on over bytes of a file, through the log's write buffer, which is empty at the start."""
        view = self._log.out
        while offset < end:
            count = self._log.read(name, offset, view[: min(len(view), end - offset)])
            if not count:
                raise OSError("a file became shorter while it was read")
            value = crc32(view[:count], value)
            offset += count
        return value

    def is_blank(self, name: str, offset: int, end: int) -> bool:
        """Is this the part of a file that does not grow to which nothing was written yet?"""
        view = self._log.out
        blank = self._log.files.fixed
        while blank and offset < end:
            count = self._log.read(name, offset, view[: min(len(view), end - offset)])
            blank = count > 0 and bytes(view[:count]) == count * self._log.files.blank
            offset += count
        return blank

    def whole_behind(self, segment: "Segment", offset: int, end: int, is_followed: bool) -> int:
        """Where the first whole record behind a broken one begins, or the end if the segment is_followed.

        0: no record says that everything before it was durable.
        """
        first = 0
        while offset < end:
            self.read(segment, offset, end)
            count = self.end - offset
            chunk = bytes(self.view[:count])
            for place in range(4, count):
                if chunk[place] & ~log.AFTER_SYNC in _TYPES and self.check(segment, offset + place - 4, end):
                    first = first or offset + place - 4
                    if is_followed or chunk[place] & log.AFTER_SYNC:
                        self.end = 0
                        return first
            offset += max(count - 4, 1) if offset + count < end else count
        self.end = 0
        return end if is_followed else 0

    def mend_record(self, segment: "Segment", end: int, is_followed: bool) -> int:
        """Is one flipped bit all that is wrong with this record? Its second word then, else 0.

        What follows has to begin where it ends, or the bits may be those of a torn one.
        """
        start = segment.size
        mended = self._log.mended
        count = len(mended)
        self.end = 0
        if self._log.read(segment.name, start, self.view[: log.RECORD_BYTES]) < log.RECORD_BYTES:
            return 0
        size = struct.unpack_from("<I", self.view, 4)[0] >> 8
        word = 0
        stop = start + log.RECORD_BYTES + size
        if stop <= end and self.mend(segment.name, start, start + 4, stop, segment.seed):
            word = self.check(segment, start, end)
        for bit in range(24):
            if word:
                break
            stop = start + log.RECORD_BYTES + (size ^ 1 << bit)
            if stop <= end:
                del mended[count:]
                mended.append((segment.name, start + 5 + (bit >> 3), 1 << (bit & 7)))
                self.end = 0
                word = self.check(segment, start, end)
        if word and not is_followed and stop != end and not self.check(segment, stop, end):
            word = word if self.is_blank(segment.name, stop, end) else 0
        self.end = 0
        if not word:
            del mended[count:]
            return 0
        return self.check(segment, start, end)

    def mend(self, name: str, crc_at: int, start: int, stop: int, seed: int) -> bool:
        """If one flipped bit explains why the bytes from start to stop do not have the CRC that is kept, unflip it."""
        difference = self.word(name, crc_at) ^ self.crc(name, start, stop, seed)
        for bit in range(32):
            if difference == 1 << bit:
                self._log.mended.append((name, crc_at + (bit >> 3), 1 << (bit & 7)))
                return True
        if stop - start > _MEND_BYTES_MAX:
            return False
        value = _POLYNOMIAL  # what the last bit makes different
        for bit in range(8 * (stop - start)):
            if value == difference:
                self._log.mended.append((name, stop - 1 - (bit >> 3), 0x80 >> (bit & 7)))
                return True
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        return False


class _Replay:
    """What has been read so far."""

    def __init__(
        self,
        opened: "log.Log",
        guid: "bytes | None",
        hold: int,
        make: "type[Stored]",
        make_arrival: "type[Arrival]",
    ) -> None:
        self.found = Recovered(guid)
        self._log = opened
        self._files = opened.files
        self._hold = hold
        self._make = make
        self._make_arrival = make_arrival
        self._was_sent = False  # in the start that is read something may have been transmitted
        self._kept: "dict[int, log.Restored]" = {}
        self._counts: "dict[int, int]" = {}  # of them, by the indices of queues
        self._arrivals: "dict[int, Arrival]" = {}
        self._records = _Records(opened)
        self._version = log.VERSION  # of the segment that is read
        self._left_out = 0  # bytes that cannot be read,
        self._gap = 0  # of them those before the record that is next,
        self._gap_from = 0  # and what would have been the first MessageID in there
        self._missing: "set[int]" = set()  # MessageIDs that were in there

    def read(self) -> None:
        """Take in all files, the oldest first."""
        numbers = _numbers(self._files.names())
        last = self._read_header(numbers[-1]) if numbers else None
        unfinished = 0
        if numbers and last is None:  # the cut came while it was begun; nothing can be in it yet
            unfinished = numbers.pop()
            last = self._read_header(numbers[-1]) if numbers else None
        first = last[5] if last is not None else 0
        stale = [number for number in numbers if number < first]
        torn = False
        numbers = numbers[len(stale) :]
        following = self._read_header(numbers[0]) if numbers else None
        for i, number in enumerate(numbers):
            header = following
            if header is None:
                raise log.OutboxDamaged(log.file_name(number), 0, "the header is broken")
            following = None
            if number != numbers[-1]:
                if numbers[i + 1] != number + 1:
                    raise log.OutboxDamaged(log.file_name(number + 1), 0, "the file is missing")
                following = self._read_header(number + 1)
            torn = self._replay_segment(number, header, following)
        found = self.found
        if unfinished:
            name = log.file_name(unfinished)
            size = self._files.size(name)
            things: "list[Any]" = found.queues + found.sources
            base = log.header_size(things)
            if (size > base and not self._records.is_blank(name, base, size)) or (not numbers and unfinished != 1):
                raise log.OutboxDamaged(name, 0, "the header is broken")
            found.useless.append(name)
        for number in stale:
            found.useless.append(log.file_name(number))
        # What comes next begins a segment of its own: of this version; and behind a record that is whole only as
        # mended, for the next start could take that for a torn one as soon as half a record stands behind it.
        mended = [name for name, _, _ in self._log.mended if found.segments and name == found.segments[-1].name]
        found.is_torn = torn or self._version == _VERSION_BEFORE or len(mended) > 0
        found.last_message_id = found.next_message_id - 1
        found.arrivals = list(self._arrivals.values())
        if found.damage or self._log.mended:  # now, or by an earlier look
            self._go_beyond()
        found.restored = sorted(self._kept.values(), key=position)
        for source in found.sources:
            source.noted[:] = source.record
        self._jump()

    def _go_beyond(self) -> None:
        """What could not be read may have said anything: be above all numbers that it can have given."""
        found = self.found
        for number in sorted(self._missing):
            found.damage.append("message {} cannot be read, and is not known to have ended".format(number))
        found.next_message_id = found.next_message_id + self._left_out & 0xFFFFFFFF or 1
        found.next_arrival = found.next_arrival + self._left_out & 0xFFFFFFFF or 1
        found.starts += 1
        found.was_sent = True
        for restored in self._kept.values():
            restored.sent = True

    def _jump(self) -> None:
        """Number on at a distance: the log may be an old copy, whose next numbers were given (B-020)."""
        found = self.found
        low, high, arrivals = struct.unpack("<HHH", log.jump(6))
        if not found.segments:
            if found.guid is None:
                found.guid = fresh_guid()
                low = high = arrivals = 0
            low += high >> 1 << 16  # else it was here before its log was erased: nothing is known of it
        found.next_message_id = found.next_message_id + low & 0xFFFFFFFF or 1
        found.next_arrival = found.next_arrival + arrivals & 0xFFFFFFFF or 1

    def _read_header(self, number: int) -> "tuple[Any, ...] | None":
        """The fields of a segment's header, its CRC last; None if it is not whole, and not by one flipped bit."""
        name = log.file_name(number)
        header = self._whole_header(number, name)
        if header is None:
            stated = self._records.word(name, 8)
            for bit in range(-1, 32):
                base = stated ^ 1 << bit if bit >= 0 else stated
                if header is None and log.HEADER_BYTES + 4 <= base <= self._files.size(name):
                    count = len(self._log.mended)
                    if bit >= 0:
                        self._log.mended.append((name, 8 + (bit >> 3), 1 << (bit & 7)))
                    elif not self._records.mend(name, base - 4, 0, base - 4, 0):
                        continue
                    header = self._whole_header(number, name)
                    if header is None:
                        del self._log.mended[count:]
            if header is not None:
                self._say(name, 0, "a bit was flipped; it is read as it was")
        return header

    def _whole_header(self, number: int, name: str) -> "tuple[Any, ...] | None":
        found = self.found
        records = self._records
        size = self._log.read(name, 0, records.view[: log.HEADER_BYTES])
        if size < log.VERSION_BYTES:
            return None
        magic, version, _, base = struct.unpack_from("<4sHHI", records.view)
        if magic != log.MAGIC or not log.VERSION_BYTES + 4 <= base <= self._files.size(name):
            return None
        header = struct.unpack_from(log.HEADER, records.view)
        crc = records.crc(name, 0, base - 4, 0)
        if records.word(name, base - 4) != crc:
            return None
        if version not in (log.VERSION, _VERSION_BEFORE):
            raise log.OutboxError(
                "{} has format version {}, this program knows {}: "
                "let the program that wrote it deliver what is in it, then empty the folder".format(
                    name, version, log.VERSION
                )
            )
        if size < log.HEADER_BYTES or base < log.HEADER_BYTES + 4 or header[4] != number:
            return None
        if found.guid is None:
            found.guid = header[13]
        if header[13] != found.guid:
            raise log.OutboxError(name + " belongs to another board: its folder must not be used under this GUID")
        return header + (crc,)

    def _replay_segment(self, number: int, header: "tuple[Any, ...]", following: "tuple[Any, ...] | None") -> bool:
        """Take in one segment; True if its end is torn. following: the next header, which says where this one ends."""
        found = self.found
        name = log.file_name(number)
        size = self._files.size(name)
        segment = log.Segment(number, header[14], header[3], size if self._files.fixed else 0)
        end = size if following is None else following[6]
        if end > size:
            raise log.OutboxDamaged(name, size, "the file is cut short")
        found.segments.append(segment)
        self._version = header[1]
        offset = log.HEADER_BYTES
        records = self._records
        records.end = 0
        for i in range(header[2] + header[11]):
            payload = records.counters(segment, offset, header[3])
            self._apply_counters(log.QUEUE if i < header[2] else log.SOURCE, payload)
            offset += 2 + len(payload)
        if self._gap:
            self._end_gap(header[7])
        found.next_message_id = header[7]
        found.next_arrival = header[8]
        found.time_stamp = max(found.time_stamp, header[9])
        self._started(header[10], header[12])
        while segment.size < end:
            word = records.check(segment, segment.size, end)
            if not word:
                if following is None and records.is_blank(name, segment.size, end):
                    return False
                word = records.mend_record(segment, end, following is not None)
                if word:
                    self._say(name, segment.size, "a bit was flipped; it is read as it was")
            if not word:
                behind = records.whole_behind(segment, segment.size + 1, end, following is not None)
                if not behind:
                    return True  # torn: it was never durable
                self._leave_out(segment, behind)
                continue
            self._apply(word & 0xFF & ~log.AFTER_SYNC, records.payload(word >> 8), word >> 8, segment)
            segment.size += log.RECORD_BYTES + (word >> 8)
        return False

    def _leave_out(self, segment: "Segment", stop: int) -> None:
        """What stands until there cannot be read."""
        count = stop - segment.size
        self._log.gaps.append((segment.name, segment.size, stop))
        self._say(segment.name, segment.size, "{} bytes cannot be read".format(count))
        self._left_out += count
        if not self._gap:
            self._gap_from = self.found.next_message_id
        self._gap += count
        segment.size = stop

    def _end_gap(self, number: int) -> None:
        """The MessageID that comes after what could not be read: those between may have stood there."""
        missing = number - self._gap_from & 0xFFFFFFFF
        if missing <= self._gap // log.HEAD_BYTES:  # else a start has jumped
            self._missing.update([self._gap_from + k & 0xFFFFFFFF for k in range(missing)])
        self._gap = 0

    def _say(self, name: str, offset: int, what: str) -> None:
        self.found.damage.append("{} at byte {}: {}".format(name, offset, what))

    def _apply(self, kind: int, payload: memoryview, size: int, segment: "Segment") -> None:
        """Repeat what a whole record says. size: of its payload, of which a message has only the beginning here."""
        if kind in (log.QUEUE, log.SOURCE):
            self._apply_counters(kind, payload)
        elif kind in (log.MESSAGE, log.COPY, log.ARRIVAL, log.ARRIVAL_COPY):
            self._apply_message(kind, payload, size, segment)
        elif kind == log.STARTED:
            starts, flags = struct.unpack_from(log.START, payload)
            self.found.name = bytes(payload[log.START_BYTES :]).decode()
            self._started(starts, flags)
        else:
            self._apply_state(kind, payload)

    def _apply_counters(self, kind: int, payload: memoryview) -> None:
        found = self.found
        if kind == log.QUEUE:
            index, *counters = struct.unpack_from(_QUEUE_PREFIX, payload)
            if index == len(found.queues):
                name = bytes(payload[log.QUEUE_PREFIX_BYTES :]).decode()
                found.queues.append(log.LoggedQueue(index, name, array("I", (0, 0, 0, 0))))
            if index < len(found.queues):
                self._queue_counters(found.queues[index], array("I", counters))
        else:
            index, *counters, guid = struct.unpack_from(_SOURCE_PREFIX, payload)
            name = bytes(payload[log.SOURCE_PREFIX_BYTES :]).decode()
            if index == len(found.sources):
                found.sources.append(log.LoggedSource(index, guid, name, array("I", (0, 0, 0, 0))))
            if index < len(found.sources):
                source = found.sources[index]
                if (source.guid, source.name) != (guid, name):  # it was replaced: no arrival of it is kept
                    source.guid = guid
                    source.name = name
                    for arrival in list(self._arrivals.values()):
                        if arrival.source is source:
                            log.drop(self._arrivals.pop(arrival.message_id))
                source.record[:] = array("I", counters)

    def _queue_counters(self, queue: "LoggedQueue", counters: "array[int]") -> None:
        queue.record[:] = counters
        self.found.time_stamp = max(self.found.time_stamp, counters[1])

    def _apply_message(self, kind: int, payload: memoryview, size: int, segment: "Segment") -> None:
        found = self.found
        fields = struct.unpack_from(log.MESSAGE_PREFIX, payload)
        index, _, number = fields[:3]
        if index >= len(found.sources if kind in (log.ARRIVAL, log.ARRIVAL_COPY) else found.queues):
            self._say(segment.name, segment.size, "the queue of message {} cannot be read".format(number))
            return
        handle: "Stored"
        if kind in (log.ARRIVAL, log.ARRIVAL_COPY):
            source = found.sources[index]
            old_arrival = self._arrivals.pop(number, None)
            if old_arrival is not None:
                log.drop(old_arrival)
            handle = self._arrivals[number] = self._make_arrival(number, log.confirmation_of(fields), source)
            handle.size = size - log.MESSAGE_PREFIX_BYTES
            if kind == log.ARRIVAL:
                found.next_arrival = log.following(number)
                source.record[:] = array("I", fields[3:7])
        else:
            queue = found.queues[index]
            if kind == log.MESSAGE:
                self._numbered(queue, number, array("I", fields[3:7]))
                if queue.deferred or self._is_enough(index):
                    queue.defer(number, segment, segment.size, log.RECORD_BYTES + size)
                    return
            old = self._find(queue, number)
            if old is not None:
                log.drop(old.handle)
                self._lose(number)
            restored = log.restored_of(queue, size, fields, self._make)
            self._keep(restored, self._was_sent)
            handle = restored.handle
        segment.keep(handle, segment.size)

    def _is_enough(self, index: int) -> bool:
        """Are so many messages of a queue in memory that another one is not taken?"""
        most = max(self._hold // len(self.found.queues), 1)
        return self._version == log.VERSION and self._counts.get(index, 0) >= most

    def _find(self, queue: "LoggedQueue", number: int) -> "log.Restored | None":
        """A message of which a record says more: the start before had it in memory, so this one takes it, too."""
        found = self._kept.get(number)
        while found is None and queue.may_defer(number):
            restored = self._log.next_deferred(queue, self.found.segments, self._make, number)
            if restored is None:
                break
            self._keep(restored, self.found.was_sent)
            found = self._kept.get(number)
        return found

    def _keep(self, restored: "log.Restored", was_sent: bool) -> None:
        restored.sent = was_sent
        self._kept[restored.handle.message_id] = restored
        self._counts[restored.queue.index] = self._counts.get(restored.queue.index, 0) + 1

    def _lose(self, number: int) -> None:
        self._counts[self._kept.pop(number).queue.index] -= 1

    def _numbered(self, queue: "LoggedQueue", number: int, counters: "array[int]") -> None:
        if self._gap:
            self._end_gap(number)
        self.found.next_message_id = log.following(number)
        self._queue_counters(queue, counters)

    def _apply_state(self, kind: int, payload: memoryview) -> None:
        state, marks, message_class, sent_time, index = struct.unpack_from(log.STATE_PREFIX, payload)
        queues = self.found.queues
        begin = log.STATE_PREFIX_BYTES
        if self._version == _VERSION_BEFORE:
            begin = _STATE_PREFIX_BYTES_BEFORE
            index = 0
        for place in range(begin, len(payload), 4):
            number = struct.unpack_from("<I", payload, place)[0]
            if kind == log.ARRIVAL_STATE:
                arrival = self._arrivals.get(number)
                if arrival is not None and self._change(arrival, state, marks, message_class, sent_time):
                    del self._arrivals[number]
            elif index < len(queues):
                if kind == log.OUT_OF_TURN:
                    self._take_out(queues[index], number)
                found = self._find(queues[index], number)
                if found is not None and self._change(found.handle, state, marks, message_class, sent_time):
                    self._lose(number)
                elif found is None and state == confirm.GONE:
                    self._missing.discard(number)

    def _take_out(self, queue: "LoggedQueue", number: int) -> None:
        restored = self._log.find_deferred(queue, self.found.segments, self._make, number)
        if restored is not None:
            self._keep(restored, self.found.was_sent)

    def _change(self, handle: "Stored", state: int, marks: int, message_class: int, sent_time: int) -> bool:
        """What has become of a message or arrival. Is it gone?"""
        record = handle.record
        record[confirm.STATE] = state
        record[confirm.MARKS] = marks
        record[confirm.CLASS] = message_class
        if sent_time:
            record[confirm.SENT_TIME] = sent_time
        if state == confirm.GONE:
            log.drop(handle)
        return bool(state == confirm.GONE)

    def _started(self, starts: int, flags: int) -> None:
        self.found.starts = starts
        self.found.ahead = bool(flags & log.STARTED_AHEAD)
        self._was_sent = bool(flags & log.STARTED_SENT)
        self.found.was_sent = self.found.was_sent or self._was_sent
        if flags & log.STARTED_SENT:
            for restored in self._kept.values():
                restored.sent = True
