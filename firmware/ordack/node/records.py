"""Reads the records of a log: says which are whole, and what can still be read where one is damaged.

What one changed byte explains is read as it was, what is broken worse is left out. No file is changed: what is found
here stands in the log's `mended` and `gaps`, by which all is read from then on, and in its `damage`, a sentence each. A
board imports this at its start and when damage is found later, and forgets it then.
"""

import struct
from binascii import crc32

from mqqb import const
from ordack.node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from ordack.node.log import Log, LoggedQueue, Segment

CHANGED = "a byte was changed; it is read as it was"
BUFFER_BYTES = const(1536)  # a record of any name fits into it
TYPES = (
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
    log.PLACE,
    log.KEPT,
    log.SNAPSHOT,
    log.ASIDE,
)
_POLYNOMIAL = const(0xEDB88320)  # of the CRC
# So much is looked through for a flipped bit; up to 11,450 bytes two that are flipped are never taken for another one.
_MEND_BYTES_MAX = const(8192)
# So much for a byte of which more is changed: what is broken worse is taken for that once in 30,000 times.
_MEND_BYTE_MAX = const(512)
_BULK_BYTES = const(512)
_HEADER_NEXT_ID = const(24)  # where a header has the last MessageID + 1 of the segments before


class Records:
    """Whole records in the files of a log, through one small buffer.

    bulk: another buffer, of any size. view: of the own one. begin, end: the part of a file that is in it; an end of 0
    says that nothing is.
    """

    def __init__(self, opened: "Log", bulk: memoryview) -> None:
        self.log = opened
        self._bulk = bulk
        self.view = memoryview(bytearray(BUFFER_BYTES))
        self._segment: "Segment | None" = None
        self.begin = 0
        self.end = 0
        self._payload = 0  # where in the buffer the payload of the record is that `check` has found

    def word(self, name: str, offset: int) -> int:
        """The 32 bits there in a file."""
        self.log.read(name, offset, self.view[:4])
        self.end = 0
        return int(struct.unpack_from("<I", self.view, 0)[0])

    def payload(self, size: int) -> memoryview:
        """Of the record that `check` has found, which has so many bytes of it, as much as the buffer holds."""
        return self.view[self._payload : self._payload + size]

    def counters(self, segment: "Segment", offset: int, end: int) -> memoryview:
        """Those of a queue or source, in a header that ends there."""
        length = 0
        for _ in range(2):  # first it may be that not even the length is in the buffer
            if segment is not self._segment or offset + 2 + length > self.end:
                self.read(segment, offset, end)
            length = struct.unpack_from("<H", self.view, offset - self.begin)[0]
        self._payload = offset + 2 - self.begin
        return self.payload(length)

    def read(self, segment: "Segment", offset: int, end: int) -> None:
        """Fill the buffer with the file from offset on."""
        self._segment = segment
        self.begin = offset
        self.end = offset + self.log.read(segment.name, offset, self.view[: min(BUFFER_BYTES, end - offset)])

    def check(self, segment: "Segment", offset: int, end: int) -> int:
        """The second word of the record at offset if it is whole, else 0. Its beginning is then in the buffer, the
        payload at _payload.
        """
        if segment is not self._segment or offset < self.begin or offset + log.RECORD_BYTES > self.end:
            self.read(segment, offset, end)
        if self.end - offset < log.RECORD_BYTES:
            return 0
        crc, word = struct.unpack_from("<II", self.view, offset - self.begin)
        stop = offset + log.RECORD_BYTES + (word >> 8)
        if word & 0xFF & ~log.AFTER_SYNC not in TYPES or stop > end:
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
        """Carry a CRC on over bytes of a file, through the larger buffer."""
        view = self._bulk
        while offset < end:
            count = self.log.read(name, offset, view[: min(len(view), end - offset)])
            if not count:
                raise OSError("a file became shorter while it was read")
            value = crc32(view[:count], value)
            offset += count
        return value

    def is_blank(self, name: str, offset: int, end: int) -> bool:
        """Is this the part of a file that does not grow to which nothing was written yet?"""
        view = self._bulk
        blank = self.log.files.fixed
        while blank and offset < end:
            count = self.log.read(name, offset, view[: min(len(view), end - offset)])
            blank = count > 0 and bytes(view[:count]) == count * self.log.files.blank
            offset += count
        return blank


def whole_behind(records: Records, segment: "Segment", offset: int, end: int, is_followed: bool) -> int:
    """Where the first whole record behind a broken one begins, or the end if the segment is_followed.

    0: no record says that everything before it was durable.
    """
    first = 0
    while offset < end:
        records.read(segment, offset, end)
        count = records.end - offset
        chunk = bytes(records.view[:count])
        for place in range(4, count):
            if chunk[place] & ~log.AFTER_SYNC in TYPES and records.check(segment, offset + place - 4, end):
                first = first or offset + place - 4
                if is_followed or chunk[place] & log.AFTER_SYNC:
                    records.end = 0
                    return first
        offset += max(count - 4, 1) if offset + count < end else count
    records.end = 0
    return end if is_followed else 0


def mend_record(
    records: Records, segment: "Segment", start: int, end: int, is_followed: bool, message: int = -1, arrival: int = -1
) -> int:
    """Is one changed byte all that is wrong with the record at start? Its second word then, else 0.

    What follows has to begin where it ends, or the bytes may be those of a torn one. If nothing follows and more than a
    bit is changed, it has to be of the message or arrival of this number.
    """
    mended = records.log.mended
    count = len(mended)
    records.end = 0
    if records.log.read(segment.name, start, records.view[: log.RECORD_BYTES]) < log.RECORD_BYTES:
        return 0
    size = struct.unpack_from("<I", records.view, 4)[0] >> 8
    word = 0
    stop = start + log.RECORD_BYTES + size
    if stop <= end and mend(records, segment.name, start, start + 4, stop, segment.seed):
        word = records.check(segment, start, end)
    for change in range(3 * 256):
        if word:
            break
        mask = change & 0xFF
        length = size ^ mask << (change >> 8 << 3)
        stop = start + log.RECORD_BYTES + length
        if mask and stop <= end and (length <= _MEND_BYTE_MAX or not mask & mask - 1):
            del mended[count:]
            mended.append((segment.name, start + 5 + (change >> 8), mask))
            records.end = 0
            word = records.check(segment, start, end)
    if word and not is_followed and (stop == end or not records.check(segment, stop, end)):
        mask = mended[-1][2]
        if stop != end and not records.is_blank(segment.name, stop, end):
            word = 0
        elif mask & mask - 1:
            records.check(segment, start, end)
            kind = word & 0xFF & ~log.AFTER_SYNC
            expected = message if kind == log.MESSAGE else arrival if kind == log.ARRIVAL else -1
            if struct.unpack_from("<I", records.payload(8), 4)[0] != expected:
                say(records.log, segment.name, start, "a byte was changed, or the end is torn: it is left out")
                word = 0
    records.end = 0
    if not word:
        del mended[count:]
        return 0
    say(records.log, segment.name, start, CHANGED)
    return records.check(segment, start, end)


def only_byte(difference: int) -> int:
    """In which of its four bytes all of a difference is; 4: in several."""
    for k in range(4):
        if not difference & ~(0xFF << 8 * k):
            return k
    return 4


def mend(records: Records, name: str, crc_at: int, start: int, stop: int, seed: int) -> bool:
    """If one changed byte explains why the bytes from start to stop do not have the CRC that is kept, undo that.

    A start of 0: they are a header, in which much else has to fit.
    """
    mask = records.word(name, crc_at) ^ records.crc(name, start, stop, seed)
    place = stop
    k = only_byte(mask)
    if k < 4:
        place = crc_at + k
        mask >>= 8 * k
    while mask > 0xFF:  # what makes so much different that many bytes before the end
        if place == start or stop - place == _MEND_BYTES_MAX:
            return False
        place -= 1
        for _ in range(8):
            high = mask >> 31
            mask = (mask ^ (_POLYNOMIAL if high else 0)) << 1 | high
    if start and mask & mask - 1 and stop - start > _MEND_BYTE_MAX:
        return False
    records.log.mended.append((name, place, mask))
    return True


def leave_out(opened: "Log", segment: "Segment", begin: int, end: int) -> None:
    """What stands there in a segment cannot be read."""
    opened.gaps.append((segment.name, begin, end))
    say(opened, segment.name, begin, "{} bytes cannot be read".format(end - begin))


def say(opened: "Log", name: str, offset: int, what: str) -> None:
    """To whom it concerns."""
    opened.damage.append("{} at byte {}: {}".format(name, offset, what))


def miss(opened: "Log", message_id: int) -> None:
    """A message stood in what cannot be read."""
    opened.missing.append(message_id)
    opened.damage.append("message {} cannot be read, and is not known to have ended".format(message_id))


def at_its_turn(opened: "Log", queues: "list[LoggedQueue]", segment: "Segment", offset: int) -> None:
    """A record that a start has not read is broken: read it as it was, or leave it out and count what is there.

    offset: where it stands in its segment; -1: nothing is known to be broken.
    """
    records = Records(opened, memoryview(bytearray(_BULK_BYTES)))
    if offset >= 0:
        if mend_record(records, segment, offset, segment.size, True):
            return
        if segment.aside:
            from ordack.node import aside

            end = whole_behind(records, segment, offset + 1, segment.size, True)
            leave_out(opened, segment, offset, end)
            aside.forget(opened, queues, segment, offset, end)
    if any(queue.deferred for queue in queues):
        _Count(records, queues).run()


class _Count:
    """Counts the messages that are on the flash only, by reading all of them."""

    def __init__(self, records: Records, queues: "list[LoggedQueue]") -> None:
        self._records = records
        self._log = records.log
        self._all = queues
        self._queues = [queue for queue in queues if queue.deferred]
        self._counts = [[0, 0] for _ in self._queues]  # messages, bytes
        self._ended: "list[set[int]]" = [set() for _ in self._queues]
        self._missing: "list[int]" = []

    def run(self) -> None:
        """What has not been said is said; nothing changes before all is counted."""
        segments = self._log.segments
        first = min([queue.cursor.number for queue in self._queues if queue.cursor is not None])
        first = max(first - segments[0].number, 0)
        found = [self._read(segment) for segment in segments[first:]]
        for message_id in self._missing:
            if any(queue.may_defer(message_id) for queue in self._queues):
                miss(self._log, message_id)
        for k in range(len(segments)):
            segment = segments[k]
            segment.deferred, size = found[k - first] if k >= first else (0, 0)
            segment.live = size + sum([log.HEAD_BYTES + handle.size for handle in segment.handles])
            if segment.aside:
                from ordack.node import aside

                segment.live += aside.bytes_in(self._all, segment.number)
        for k in range(len(self._queues)):
            self._queues[k].deferred, self._queues[k].bytes = self._counts[k]
            self._queues[k].ended = self._ended[k]

    def _read(self, segment: "Segment") -> "tuple[int, int]":
        """Messages in a segment that are on the flash only, and their bytes."""
        opened = self._log
        records = self._records
        deferred = size = gap = 0
        offset = segment.base
        expected = records.word(segment.name, _HEADER_NEXT_ID)
        while offset < segment.size:
            known = [end for name, begin, end in opened.gaps if name == segment.name and begin == offset]
            if known:
                gap += known[0] - offset
                offset = known[0]
                continue
            word = records.check(segment, offset, segment.size)
            word = word or mend_record(records, segment, offset, segment.size, True)
            if not word:
                end = whole_behind(records, segment, offset + 1, segment.size, True)
                leave_out(opened, segment, offset, end)
                continue
            if word & 0xFF & ~log.AFTER_SYNC == log.MESSAGE:
                index, _, number = struct.unpack_from("<HHI", records.payload(8))
                if gap:
                    self._miss(expected, number, gap)
                    gap = 0
                expected = log.following(number)
                count = log.RECORD_BYTES + (word >> 8)
                if self._is_deferred(index, segment, offset, number, count):
                    deferred += 1
                    size += count
            offset += log.RECORD_BYTES + (word >> 8)
        if gap:
            self._end(segment, expected, gap)
        return deferred, size

    def _is_deferred(self, index: int, segment: "Segment", offset: int, number: int, size: int) -> bool:
        for k in range(len(self._queues)):
            queue = self._queues[k]
            if queue.index == index:
                cursor = queue.cursor
                assert cursor is not None
                if (segment.number, offset) < (cursor.number, queue.offset):
                    return False
                self._counts[k][1] += size
                if number in queue.ended:
                    self._ended[k].add(number)
                    return False
                self._counts[k][0] += 1
                return True
        return False

    def _end(self, segment: "Segment", expected: int, gap: int) -> None:
        """A segment ends with a gap: the next header, or who writes the log, knows the number behind it."""
        segments = self._log.segments
        if segment is not segments[-1]:
            following = segments[segment.number + 1 - segments[0].number]
            self._miss(expected, self._records.word(following.name, _HEADER_NEXT_ID), gap)

    def _miss(self, expected: int, number: int, gap: int) -> None:
        missing = number - expected & 0xFFFFFFFF
        if missing <= gap // log.HEAD_BYTES:
            self._missing += [expected + k & 0xFFFFFFFF for k in range(missing)]
        else:  # a start has jumped
            self._log.missing.append(0)
