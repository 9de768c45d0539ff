"""Reads records of a log, and says which are whole."""

import struct
from binascii import crc32

from mqqb import const

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from node.log import Segment

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
)


class Records:
    """Whole records in the files of a log, through one small buffer.

    bulk: another buffer, of any size. view: of the own one. begin, end: the part of a file that is in it; an end of 0
    says that nothing is.
    """

    def __init__(self, opened: "log.Log", bulk: memoryview) -> None:
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
