"""Reads whole records from the files of a log at a start, and repairs broken ones. The CRC locates a single flipped
bit, which goes into the log's `mended` and is corrected in every later read. Any worse damage is skipped up to the next
whole record.
"""

import struct
from binascii import crc32

from mqqb import const
from ordack.node.storage import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from ordack.node.storage.log import Log, Segment

BUFFER_BYTES = const(1536)  # fits a record of any name
TYPES = (
    log.MESSAGE,
    log.STATE,
    log.QUEUE,
    log.STARTED,
    log.COPY,
    log.ARRIVAL,
    log.ARRIVAL_STATE,
    log.SOURCE,
    log.ARRIVAL_COPY,
)
_POLYNOMIAL = const(0xEDB88320)  # of the CRC
_MEND_BYTES_MAX = const(8192)  # repair range: up to 11,450 bytes, two flipped bits never look like one
CHANGED = "{} at byte {}: a bit was changed, and is read as it was"


class Records:
    """Whole records in the files of a log, through one small buffer.

    bulk: another buffer of any size. view: the small buffer. begin, end: the part of a file in it; end 0: empty.
    """

    def __init__(self, opened: "Log", bulk: memoryview) -> None:
        self.log = opened
        self._bulk = bulk
        self.view = memoryview(bytearray(BUFFER_BYTES))
        self._segment: "Segment | None" = None
        self.begin = 0
        self.end = 0
        self._payload = 0  # where in the buffer `check` found the payload

    def word(self, name: str, offset: int) -> int:
        """Return the 32-bit word at an offset of a file."""
        self.log.read(name, offset, self.view[:4])
        self.end = 0
        return int(struct.unpack_from("<I", self.view, 0)[0])

    def payload(self, size: int) -> memoryview:
        """Return the payload of the record that `check` found, of `size` bytes, as far as the buffer holds it."""
        return self.view[self._payload : self._payload + size]

    def counters(self, segment: "Segment", offset: int, end: int) -> memoryview:
        """Return the counters of a queue or source in a header that ends at `end`."""
        length = 0
        for _ in range(2):  # at first the buffer may lack even the length
            if segment is not self._segment or offset + 2 + length > self.end:
                self.read(segment, offset, end)
            length = struct.unpack_from("<H", self.view, offset - self.begin)[0]
        self._payload = offset + 2 - self.begin
        return self.payload(length)

    def read(self, segment: "Segment", offset: int, end: int) -> None:
        """Fill the buffer from a file's offset."""
        self._segment = segment
        self.begin = offset
        self.end = offset + self.log.read(segment.name, offset, self.view[: min(BUFFER_BYTES, end - offset)])

    def check(self, segment: "Segment", offset: int, end: int) -> int:
        """Return the second word of a whole record at offset, else 0. The buffer then has its beginning, with the
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
        """Continue a CRC over bytes of a file, through the bulk buffer."""
        view = self._bulk
        while offset < end:
            count = self.log.read(name, offset, view[: min(len(view), end - offset)])
            if not count:
                raise OSError("a file became shorter while it was read")
            value = crc32(view[:count], value)
            offset += count
        return value

    def is_blank(self, name: str, offset: int, end: int) -> bool:
        """Is this an unwritten part of a fixed file?"""
        view = self._bulk
        blank = self.log.files.fixed
        while blank and offset < end:
            count = self.log.read(name, offset, view[: min(len(view), end - offset)])
            blank = count > 0 and bytes(view[:count]) == count * self.log.files.blank
            offset += count
        return blank


def whole_behind(records: Records, segment: "Segment", offset: int, end: int, is_followed: bool) -> int:
    """Return the offset of the first whole record after a broken one, or the end if the segment is_followed.

    0: no record proves that everything before it was durable.
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


def mend_record(records: Records, segment: "Segment", start: int, end: int) -> int:
    """Repair a record with one flipped bit; return its second word, or 0 if that is not the cause."""
    opened = records.log
    mended = opened.mended
    count = len(mended)
    records.end = 0
    if opened.read(segment.name, start, records.view[: log.RECORD_BYTES]) < log.RECORD_BYTES:
        return 0
    size = struct.unpack_from("<I", records.view, 4)[0] >> 8
    for bit in range(-1, 24):  # bits of the length; -1: elsewhere
        del mended[count:]
        stop = start + log.RECORD_BYTES + (size if bit < 0 else size ^ 1 << bit)
        if stop > end:
            continue
        if bit >= 0:
            mended.append((segment.name, start + 5 + (bit >> 3), 1 << (bit & 7)))
        elif not mend(records, segment.name, start, start + 4, stop, segment.seed):
            continue
        records.end = 0
        word = records.check(segment, start, end)
        if word:
            opened.damage.append(CHANGED.format(segment.name, start))
            return word
    del mended[count:]
    records.end = 0
    return 0


def mend(records: Records, name: str, crc_at: int, start: int, stop: int, seed: int) -> bool:
    """Repair a single flipped bit between start and stop, if one explains the wrong CRC."""
    mask = records.word(name, crc_at) ^ records.crc(name, start, stop, seed)
    if not mask:
        return False
    place = stop
    if not mask & mask - 1:  # a bit of the CRC itself
        place = crc_at
        while mask > 0xFF:
            mask >>= 8
            place += 1
    while mask > 0xFF:  # find the byte whose flipped bit causes this difference
        if place == start or stop - place == _MEND_BYTES_MAX:
            return False
        place -= 1
        for _ in range(8):
            high = mask >> 31
            mask = (mask ^ (_POLYNOMIAL if high else 0)) << 1 | high
    if mask & mask - 1:
        return False
    records.log.mended.append((name, place, mask))
    return True
