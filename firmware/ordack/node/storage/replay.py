"""Reads a log at a start. Changes no file. A board unloads this module after the start."""

import os
import struct
from array import array

from mqqb import confirm, const
from mqqb.streams import position
from ordack.node.storage import flash_only, log, records

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.storage.log import LoggedQueue, Segment, Stored
    from ordack.node.storage.sources import Arrival, LoggedSource

_QUEUE_PREFIX = const("<HIIII")
_SOURCE_PREFIX = const("<HIIII16s")
_NUMBERED = const("<HHIIIII")  # beginning of log.MESSAGE_PREFIX

_ARRIVALS = (log.ARRIVAL, log.ARRIVAL_COPY)

_BASE_AT = const(8)  # where a header has its length
_BASE_BYTES = const(4)

nonce = os.urandom


class Recovered:
    """The content of a log.

    guid: of the board, 16 bytes; name: for people. restored: kept messages in memory, in order within each queue; the
    queues have the others on flash. arrivals: kept ones, in any order. segments: valid files, oldest first; is_torn:
    the last one is closed for appending; useless: empty files. last_message_id: the last given; next_message_id,
    next_arrival: the next. time_stamp: highest of all sequences. starts: of the board so far; ahead: in the last one an
    OrderAck named a number never given; was_sent: a start may have transmitted. damage: unreadable parts, a sentence
    each.
    """

    def __init__(self, guid: "bytes | None", opened: "log.Log") -> None:
        self.guid = guid
        self.name = ""
        self.queues: "list[LoggedQueue]" = []
        self.sources: "list[LoggedSource]" = []
        self.restored: "list[flash_only.Restored]" = []
        self.arrivals: "list[Arrival]" = []
        self.segments = opened.segments
        self.is_torn = False
        self.useless: "list[str]" = []
        self.last_message_id = 0
        self.next_message_id = 1
        self.next_arrival = 1
        self.time_stamp = 0
        self.starts = 0
        self.ahead = False
        self.was_sent = False
        self.damage = opened.damage


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
    """Return a new identity: a UUID of version 8 (RFC 9562, 5.8), in the byte order of packets.

    It hashes the chip's identifier, for boards with poor randomness, and a nonce, so that an erased folder begins
    another identity: nothing tells the numbers of the former one. The last group depends on the chip only, so that
    people recognize the board.
    """
    from hashlib import sha256  # not before it is needed

    try:
        import machine  # type: ignore[import-not-found,unused-ignore]

        chip = machine.unique_id()
    except (ImportError, AttributeError):
        chip = b""
    made = bytearray(sha256(chip + nonce(16)).digest()[:16])
    if chip:
        made[10:] = sha256(chip).digest()[:6]
    made[7] = made[7] & 0x0F | 0x80  # packets store the third group little-endian
    made[8] = made[8] & 0x3F | 0x80
    return bytes(made)


def recover(
    opened: "log.Log",
    guid: "bytes | None" = None,
    hold: "int | None" = None,
    make: "type[Stored]" = log.Stored,
    make_arrival: "type[Arrival] | None" = None,
) -> Recovered:
    """Read the content of a log's files without writing. guid: the required owner; None: any.

    hold: number of messages to load into memory, those of each queue that are sent first; None: all. make and
    make_arrival: make the handles. Raises OutboxDamaged, OutboxError (another board's folder, another format), OSError.
    """
    replay = _Replay(opened, guid, hold, make, make_arrival)
    replay.read()
    return replay.found


class _Header:
    """The fields of a segment's header, its CRC, and the bytes of the file."""

    def __init__(self, words: "tuple[Any, ...]", crc: int, size: int) -> None:
        _, _, self.queues, self.base, self.number, self.first, self.end_before, self.next_id = words[:8]
        self.next_arrival, self.time_stamp, self.starts, self.sources, self.flags, self.guid = words[8:]
        self.crc = crc
        self.size = size

    def end_of(self, name: str, following: "_Header | None") -> int:
        """Return the number of valid bytes; following: the next header. Raises OutboxDamaged if the file is shorter."""
        end: int = self.size if following is None else following.end_before
        if end > self.size:
            raise log.OutboxDamaged(name, self.size, "the file is cut short")
        return end


class _Headers:
    """The headers of segments. guid: the required owner; None: that of the first header."""

    def __init__(self, reader: records.Records, guid: "bytes | None") -> None:
        self.guid = guid
        self._records = reader
        self._log = reader.log
        self._last: "_Header | None" = None  # the last one read

    def read(self, number: int) -> "_Header | None":
        """Return a segment's header; None if it is broken by more than one flipped bit."""
        if self._last is None or self._last.number != number:
            self._last = self._read(number)
        return self._last

    def _read(self, number: int) -> "_Header | None":
        name = log.file_name(number)
        header = self._whole(number, name)
        if header is None:
            size = self._log.files.size(name)
            mended = self._log.mended
            count = len(mended)
            base = self._records.word(name, _BASE_AT)
            if log.HEADER_BYTES + 4 <= base <= size and records.mend(self._records, name, base - 4, 0, base - 4, 0):
                header = self._whole(number, name)
            for bit in range(8 * _BASE_BYTES):
                if header is None:
                    del mended[count:]
                    mended.append((name, _BASE_AT + (bit >> 3), 1 << (bit & 7)))
                    header = self._whole(number, name)
            if header is None:
                del mended[count:]
            else:
                self._log.damage.append(records.CHANGED.format(name, 0))
        return header

    def _whole(self, number: int, name: str) -> "_Header | None":
        reader = self._records
        size = self._log.read(name, 0, reader.view[: log.HEADER_BYTES])
        reader.end = 0
        if size < log.VERSION_BYTES:
            return None
        magic, version, _, base = struct.unpack_from("<4sHHI", reader.view)
        if magic != log.MAGIC or not log.VERSION_BYTES + 4 <= base <= self._log.files.size(name):
            return None
        words = struct.unpack_from(log.HEADER, reader.view)
        crc = reader.crc(name, 0, base - 4, 0)
        if reader.word(name, base - 4) != crc:
            return None
        if version != log.VERSION:  # an upgrade from an earlier version would begin here
            raise log.OutboxError(
                "{} has format version {}, this program {}: let the program that wrote it "
                "deliver its messages, then empty the folder".format(name, version, log.VERSION)
            )
        if size < log.HEADER_BYTES or base < log.HEADER_BYTES + 4 or words[4] != number:
            return None
        header = _Header(words, crc, self._log.files.size(name))
        if self.guid is None:
            self.guid = header.guid
        if header.guid != self.guid:
            raise log.OutboxError(name + " belongs to another board with another GUID")
        return header


class _Replay:
    """The state of a replay."""

    def __init__(
        self,
        opened: "log.Log",
        guid: "bytes | None",
        hold: "int | None",
        make: "type[Stored]",
        make_arrival: "type[Arrival] | None",
    ) -> None:
        self.found = Recovered(guid, opened)
        self._log = opened
        self._files = opened.files
        self._hold = hold
        self._make = make
        self._make_arrival = make_arrival
        self._was_sent = False  # the current start may have transmitted
        self._kept: "dict[int, flash_only.Restored]" = {}
        self._counts: "dict[int, int]" = {}  # in memory, by index of the queue
        self._arrivals: "dict[int, Arrival]" = {}
        self._flash_only = flash_only.FlashOnly(opened, self.found.queues, make)
        self._records = records.Records(opened, opened.out)  # unused before the first write
        self._headers = _Headers(self._records, guid)
        self._left_out = 0  # unreadable bytes,
        self._gap = 0  # those before the next record,
        self._gap_from = 0  # and the first MessageID that those may hold
        self._missing: "set[int]" = set()  # MessageIDs that were in there

    def read(self) -> None:
        """Read all files, the oldest first."""
        numbers = _numbers(self._files.names())
        last = self._headers.read(numbers[-1]) if numbers else None
        unfinished = 0
        if numbers and last is None:  # a power cut interrupted its creation, so it is empty
            unfinished = numbers.pop()
            last = self._headers.read(numbers[-1]) if numbers else None
        first = last.first if last is not None else 0
        stale = [number for number in numbers if number < first]
        torn = False
        numbers = numbers[len(stale) :]
        following = self._headers.read(numbers[0]) if numbers else None
        for i, number in enumerate(numbers):
            header = following
            if header is None:
                raise log.OutboxDamaged(log.file_name(number), 0, "the header is broken")
            following = None
            if number != numbers[-1]:
                if numbers[i + 1] != number + 1:
                    raise log.OutboxDamaged(log.file_name(number + 1), 0, "the file is missing")
                following = self._headers.read(number + 1)
            torn = self._replay_segment(header, following)
        found = self.found
        found.guid = self._headers.guid
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
        # A record that is valid only after repair ends its segment: behind it, the next start could take it for a torn
        # tail as soon as half a record follows.
        mended = [name for name, _, _ in self._log.mended if found.segments and name == found.segments[-1].name]
        found.is_torn = torn or len(mended) > 0
        found.last_message_id = found.next_message_id - 1
        found.arrivals = list(self._arrivals.values())
        if found.damage or self._log.mended:  # from this look or an earlier one
            self._go_beyond()
        for source in found.sources:
            source.noted[:] = source.record
        self._jump()

    def _go_beyond(self) -> None:
        """Advance all numbers past those that the unreadable part may have given."""
        found = self.found
        for number in sorted(self._missing):
            self._log.miss(number)
        found.next_message_id = found.next_message_id + self._left_out & 0xFFFFFFFF or 1
        found.next_arrival = found.next_arrival + self._left_out & 0xFFFFFFFF or 1
        found.starts += 1
        found.was_sent = True
        for restored in self._kept.values():
            restored.sent = True

    def _jump(self) -> None:
        """Jump ahead: the log may be an old copy whose next numbers were given (B-020)."""
        found = self.found
        low, high, arrivals = struct.unpack("<HHH", log.jump(6))
        if not found.segments:
            if found.guid is None:
                found.guid = fresh_guid()
                low = high = arrivals = 0
            low += high >> 1 << 16  # else the log was erased, and its former numbers are unknown
        found.next_message_id = found.next_message_id + low & 0xFFFFFFFF or 1
        found.next_arrival = found.next_arrival + arrivals & 0xFFFFFFFF or 1

    def _begin_segment(self, header: "_Header") -> "Segment":
        segment = log.Segment(header.number, header.crc, header.base, header.size if self._files.fixed else 0)
        self.found.segments.append(segment)
        return segment

    def _replay_segment(self, header: "_Header", following: "_Header | None") -> bool:
        """Replay one segment; True if its end is torn. following: the next header, which records this segment's end."""
        segment = self._begin_segment(header)
        end = header.end_of(segment.name, following)
        reader = self._records
        self._apply_header(segment, header)
        while segment.size < end:
            word = reader.check(segment, segment.size, end)
            if not word:
                if following is None and reader.is_blank(segment.name, segment.size, end):
                    return False
                word = records.mend_record(reader, segment, segment.size, end)
                if not word:
                    stop = records.whole_behind(reader, segment, segment.size + 1, end, following is not None)
                    if not stop:
                        return True  # torn: it was never durable
                    self._log.leave_out(segment, segment.size, stop)
                    self._left(segment, stop)
                    continue
            self._apply(word & 0xFF & ~log.AFTER_SYNC, reader.payload(word >> 8), word >> 8, segment)
            segment.size += log.RECORD_BYTES + (word >> 8)
        return False

    def _apply_header(self, segment: "Segment", header: "_Header") -> None:
        found = self.found
        offset = log.HEADER_BYTES
        for i in range(header.queues + header.sources):
            payload = self._records.counters(segment, offset, header.base)
            self._apply_counters(log.QUEUE if i < header.queues else log.SOURCE, payload)
            offset += 2 + len(payload)
        if self._gap:
            self._end_gap(header.next_id)
        found.next_message_id = header.next_id
        found.next_arrival = header.next_arrival
        found.time_stamp = max(found.time_stamp, header.time_stamp)
        self._started(header.starts, header.flags)

    def _left(self, segment: "Segment", stop: int) -> None:
        """Skip an unreadable part up to `stop`."""
        count = stop - segment.size
        self._left_out += count
        if not self._gap:
            self._gap_from = self.found.next_message_id
        self._gap += count
        segment.size = stop

    def _end_gap(self, number: int) -> None:
        """Note the MessageIDs that the skipped part may hold, before `number`."""
        missing = number - self._gap_from & 0xFFFFFFFF
        if missing <= self._gap // log.HEAD_BYTES:  # else a start has jumped
            self._missing.update([self._gap_from + k & 0xFFFFFFFF for k in range(missing)])
        self._gap = 0

    def _apply(self, kind: int, payload: memoryview, size: int, segment: "Segment") -> None:
        """Apply a whole record. size: of its payload; of a message only the beginning is here."""
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
            rest = bytes(payload[log.QUEUE_PREFIX_BYTES :])
            if index == len(found.queues):
                name = "DIRECT=" + rest[log.KNOWN_BYTES :].decode()
                found.queues.append(log.LoggedQueue(index, name, array("I", (0, 0, 0, 0))))
            if index < len(found.queues):
                found.queues[index].guid = rest[: log.KNOWN_BYTES]
                self._queue_counters(found.queues[index], counters)
        else:
            index, *counters, guid = struct.unpack_from(_SOURCE_PREFIX, payload)
            name = bytes(payload[log.SOURCE_PREFIX_BYTES :]).decode()
            if index == len(found.sources):
                from ordack.node.storage.sources import LoggedSource  # not before there is one

                found.sources.append(LoggedSource(index, guid, name, array("I", (0, 0, 0, 0))))
            if index < len(found.sources):
                source = found.sources[index]
                if (source.guid, source.name) != (guid, name):  # it was replaced: none of its arrivals is kept
                    source.guid = guid
                    source.name = name
                    for arrival in list(self._arrivals.values()):
                        if arrival.source is source:
                            log.drop(self._arrivals.pop(arrival.message_id))
                source.record[:] = array("I", counters)

    def _queue_counters(self, queue: "LoggedQueue", counters: "list[int]") -> None:
        record = queue.record
        for k in range(4):
            record[k] = counters[k]
        if counters[1] > self.found.time_stamp:
            self.found.time_stamp = counters[1]

    def _apply_message(self, kind: int, payload: memoryview, size: int, segment: "Segment") -> None:
        found = self.found
        index, _, number, *counters = struct.unpack_from(_NUMBERED, payload)
        if index >= len(found.sources if kind in _ARRIVALS else found.queues):
            what = "the queue of message {} cannot be read".format(number)
            self._log.damage.append("{} at byte {}: {}".format(segment.name, segment.size, what))
            return
        if kind == log.ARRIVAL:
            found.next_arrival = log.following(number)
            found.sources[index].record[:] = array("I", counters)
        elif kind == log.MESSAGE:
            queue = found.queues[index]
            self._numbered(queue, number, counters)
            if queue.deferred or self._is_enough(index):
                flash_only.put(queue, segment, segment.size, log.RECORD_BYTES + size, number)
                return
        handle = self._take_in(kind, struct.unpack_from(log.MESSAGE_PREFIX, payload), size, segment, segment.size)
        if self._is_gone(handle):
            self._lose(number)

    def _take_in(
        self, kind: int, fields: "tuple[int, ...]", size: int, segment: "Segment", offset: int
    ) -> "log.Stored":
        """Load a message or arrival into memory, and drop its older place."""
        index, _, number = fields[:3]
        handle: "Stored"
        if kind in _ARRIVALS:
            old_arrival = self._arrivals.pop(number, None)
            if old_arrival is not None:
                log.drop(old_arrival)
            from ordack.node.storage.sources import Arrival

            source = self.found.sources[index]
            make = self._make_arrival or Arrival
            handle = self._arrivals[number] = make(number, flash_only.confirmation_of(fields), source)
            handle.size = size - log.MESSAGE_PREFIX_BYTES
        else:
            queue = self.found.queues[index]
            old = None if kind == log.MESSAGE else self._find(queue, number, fields[7])
            if old is not None:
                log.drop(old.handle)
                self._lose(number)
            restored = flash_only.restored_of(queue, size, fields, self._make)
            self._keep(restored, self._was_sent)
            handle = restored.handle
        segment.keep(handle, offset)
        return handle

    def _is_enough(self, index: int) -> bool:
        """Has the queue enough messages in memory?"""
        return self._hold is not None and self._counts.get(index, 0) >= max(self._hold // len(self.found.queues), 1)

    def _find(self, queue: "LoggedQueue", number: int, state: int) -> "flash_only.Restored | None":
        """Return a message that a record puts into this state, loaded into memory.

        A waiting message was in memory when it was sent or stored, with all before it, so this start loads those, too.
        Other messages end or fail out of that order.
        """
        found = self._kept.get(number)
        while found is None and state in (confirm.Q, confirm.S, confirm.O):
            restored = self._flash_only.next(queue, number)
            if restored is None:
                break
            self._keep(restored, self.found.was_sent)
            found = self._kept.get(number)
        if found is None and queue.flash_only:
            found = self._flash_only.find(queue, number)
            if found is not None:
                self._flash_only.attach(found)
                self._keep(found, self.found.was_sent)
        return found

    def _keep(self, restored: "flash_only.Restored", was_sent: bool) -> None:
        restored.sent = was_sent
        self._kept[restored.handle.message_id] = restored
        self._counts[restored.queue.index] = self._counts.get(restored.queue.index, 0) + 1
        order = self.found.restored  # nearly always the end; sorting takes a board far longer
        place = k = len(order)
        while k:
            k -= 1
            if order[k].queue is restored.queue:
                if position(order[k]) < position(restored):
                    break
                place = k
        order.insert(place, restored)

    def _lose(self, number: int) -> None:
        restored = self._kept.pop(number)
        self._counts[restored.queue.index] -= 1
        self.found.restored.remove(restored)

    def _numbered(self, queue: "LoggedQueue", number: int, counters: "list[int]") -> None:
        if self._gap:
            self._end_gap(number)
        self.found.next_message_id = log.following(number)
        self._queue_counters(queue, counters)

    def _apply_state(self, kind: int, payload: memoryview) -> None:
        state, marks, message_class, sent_time, index = struct.unpack_from(log.STATE_PREFIX, payload)
        queues = self.found.queues
        for place in range(log.STATE_PREFIX_BYTES, len(payload), 4):
            number = struct.unpack_from("<I", payload, place)[0]
            if kind == log.ARRIVAL_STATE:
                arrival = self._arrivals.get(number)
                if arrival is not None and self._change(arrival, state, marks, message_class, sent_time):
                    del self._arrivals[number]
            elif index < len(queues):
                found = self._find(queues[index], number, state)
                if found is not None and self._change(found.handle, state, marks, message_class, sent_time):
                    self._lose(number)
                elif found is None and state == confirm.GONE:
                    self._missing.discard(number)

    def _change(self, handle: "Stored", state: int, marks: int, message_class: int, sent_time: int) -> bool:
        """Apply a change of state; return whether the handle has left memory."""
        record = handle.record
        record[confirm.STATE] = state
        record[confirm.MARKS] = marks
        record[confirm.CLASS] = message_class
        if sent_time:
            record[confirm.SENT_TIME] = sent_time
        return self._is_gone(handle)

    def _is_gone(self, handle: "Stored") -> bool:
        """Release a handle that need not stay in memory; return whether it has left."""
        state = handle.record[confirm.STATE]
        if state == confirm.GONE:
            log.drop(handle)
        elif state == confirm.O and self._hold is not None:
            flash_only.put_open(handle)
        else:
            return False
        return True

    def _started(self, starts: int, flags: int) -> None:
        self.found.starts = starts
        self.found.ahead = bool(flags & log.STARTED_AHEAD)
        self._was_sent = bool(flags & log.STARTED_SENT)
        self.found.was_sent = self.found.was_sent or bool(flags & (log.STARTED_SENT | log.STARTED_SENT_BEFORE))
        if self._was_sent:
            for restored in self._kept.values():
                restored.sent = True
