"""The log's files: segments of records, writing and reading. firmware/README.md lists the format.

* A segment is synced before the next one begins, and replay stops at the first torn record.
* A tail torn by a power cut is dropped and never extended: the next segment records where its predecessor ends.
* Records with the flag AFTER_SYNC behind a broken one prove that it was durable. It is skipped and reported (`damage`).

Bodies are not kept in memory: records pass through one small buffer, larger packets go to the file directly.
"""

import os
import struct
from array import array
from binascii import crc32

from mqqb import confirm, const, core
from ordack.node.storage.files import Files as Files
from ordack.node.storage.files import OutboxDamaged as OutboxDamaged
from ordack.node.storage.files import OutboxError as OutboxError
from ordack.node.storage.files import OutboxFull as OutboxFull
from ordack.node.storage.files import OutboxWriteFailed as OutboxWriteFailed

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from typing import Any, NoReturn

    Buffer = bytes | bytearray | memoryview


VERSION = const(1)  # of the format
MAGIC = b"ORDK"
# magic, version, queues, offset of the first record, segment, first segment needed, end of the previous one, next
# MessageID, next arrival, highest TimeStamp, starts, sources, flags of the start, GUID; the queues, the sources and a
# CRC of everything before follow
HEADER = const("<4sHHIIIIIIIIHH16s")
HEADER_BYTES = const(60)
VERSION_BYTES = const(12)  # of the header; the same in every version

AHEAD = "unknown numbers were acknowledged: this outbox is an old copy, was erased, or has a twin (B-426)"
NO_MEMORY = "not enough memory: it tries again with fewer"
jump = os.urandom  # source of the distance by which MessageIDs jump at a start

MESSAGE = const(0xB1)
STATE = const(0xB2)
QUEUE = const(0xB3)
STARTED = const(0xB4)
COPY = const(0xB5)  # as MESSAGE, copied from a segment that is given up
ARRIVAL = const(0xC1)  # as above, for received messages
ARRIVAL_STATE = const(0xC2)
SOURCE = const(0xC3)
ARRIVAL_COPY = const(0xC5)
AFTER_SYNC = const(0x08)  # flag of a record's type: everything before was durable when it was written
RECORD_BYTES = const(8)  # CRC; type and length
# Offsets after these, queue or source, flags and number:
_COUNTERS_OFFSET = const(16)  # the stream's four counters after this message,
_CONFIRMATION_OFFSET = const(32)  # state, marks, class,
_TIMES_OFFSET = const(36)  # T0, TTRQ, TTBR, then the packet
MESSAGE_PREFIX_BYTES = const(40)
HEAD_BYTES = const(48)  # of a message: all but the packet
QUEUE_PREFIX_BYTES = const(18)  # queue, counters; LoggedQueue.guid and the name after DIRECT= in UTF-8 follow
KNOWN_BYTES = const(4)  # of LoggedQueue.guid
SOURCE_PREFIX_BYTES = const(34)  # source, counters, GUID of the queue manager; the queue's name in UTF-8 follows
# state, marks, class, T0 or 0 for unchanged, queue or source; MessageIDs or arrival numbers follow
STATE_PREFIX = const("<BBHIH")
STATE_PREFIX_BYTES = const(10)
# queue or source, flags, number, the stream's four counters, state, marks, class, T0, TTRQ, TTBR
MESSAGE_PREFIX = const("<HHIIIIIBBHIII")
START_BYTES = const(8)
START = const("<II")  # starts, flags; the board's name in UTF-8 follows
STARTED_SENT = const(1)  # flags of a start: a message may have been transmitted,
STARTED_AHEAD = const(2)  # an OrderAck named a number that was never given,
STARTED_SENT_BEFORE = const(4)  # a message may have been transmitted in an earlier start

TRANSACTIONAL = const(0x01)  # flags of a message
RECOVERABLE = const(0x02)

ENDLESS = const(0xFFFFFFFE)  # a LongLiveTime: without TTRQ a message waits for ever
HELD = const(0x80)  # bits of MARKS, the node's: TTBR has expired, no further transmission (C-22)
UNTOLD = const(0x40)  # in state X: the failure is not reported yet;
GOES = const(0xC0)  # in state X: not reported yet, and released afterwards
MARKS = const(0x3F)  # bits of mqqb.confirm

RECEIVED = const(0x52)  # states of an arrival: waits for the application;
TAKEN = const(0x54)  # taken, and its FinalAck is owed; then confirm.GONE

_PIECE_BYTES = const(128)  # of the buffer for later reads
LARGE_OUT_BYTES = const(8192)  # a write buffer from this size on belongs to a large board
OUT_BYTES_MIN = const(520)  # of the write buffer: a record of any name, with its length and CRC in a header
_EINTR = const(4)


class Stored:
    """A message's handle and its place in the log. size: bytes of the packet. record: its confirmation.

    segment: None while the log does not hold the message: not yet, no longer, or after a failed write. queue: the
    destination of a sent message.
    """

    __slots__ = ("message_id", "offset", "queue", "record", "segment", "size")
    source: "LoggedQueue | None" = None  # of an arrival, a sources.LoggedSource

    def __init__(self, message_id: int, record: "array[int]") -> None:
        self.message_id = message_id
        self.record = record
        self.queue: "LoggedQueue | None" = None
        self.segment: "Segment | None" = None
        self.offset = 0
        self.size = 0


_NONE: "list[Stored]" = []  # shared by all segments without handles, to save memory


class Segment:
    """One file of the log. size: valid bytes; base: of its header; space: bytes of a fixed file; seed: of its CRCs.
    handles: of its messages in memory; flash_only: number of its messages on flash only; live: bytes of both.
    """

    __slots__ = ("base", "flash_only", "handles", "live", "name", "number", "seed", "size", "space")

    def __init__(self, number: int, seed: int, size: int, space: int) -> None:
        self.number = number
        self.name = file_name(number)
        self.seed = seed
        self.size = self.base = size
        self.space = space
        self.handles = _NONE
        self.flash_only = self.live = 0

    def bytes(self) -> int:
        """Return the bytes of the file."""
        return max(self.size, self.space)

    def is_needed(self) -> bool:
        """Does it hold any kept message?"""
        return bool(self.handles or self.flash_only)

    def add(self, handle: Stored) -> None:
        """Add a handle."""
        if self.handles is _NONE:
            self.handles = [handle]
        else:
            self.handles.append(handle)

    def keep(self, handle: Stored, offset: int) -> None:
        """Move the handle's message here from its former place."""
        self.add(handle)  # a MemoryError changes nothing
        if handle.segment is not None:
            drop(handle)
        self.live += HEAD_BYTES + handle.size
        handle.segment = self
        handle.offset = offset


def drop(handle: Stored) -> None:
    """Release a message."""
    segment = handle.segment
    assert segment is not None
    handles = segment.handles
    if handles[0] is handle:
        handles.pop(0)
    else:
        handles.remove(handle)
    handle.segment = None
    segment.live -= HEAD_BYTES + handle.size


def replace(handle: Stored, other: Stored) -> None:
    """Replace a handle by another one, which takes over all its facts."""
    segment = handle.segment
    assert segment is not None
    segment.handles[segment.handles.index(handle)] = other
    other.record = handle.record
    other.queue = handle.queue
    other.size = handle.size
    other.offset = handle.offset
    other.segment = segment
    handle.segment = None


class LoggedQueue:
    """A destination queue in the log. record: counters of its stream after the last message (mqqb_outgoing). guid: the
    first bytes of the GUID of its queue manager; zeros until one has answered.

    flash_only: its messages on flash only, by segment number (flash_only.py). deferred: those that wait behind the
    messages in memory, from the segment `cursor` and `offset` on; open: the others. near: segment and offset of the
    last search hit.
    """

    is_replaced = False
    skip = 7  # bytes of the name that the log omits: DIRECT=

    def __init__(self, index: int, name: str, record: "array[int]") -> None:
        self.index = index
        self.name = name
        self.guid = b"\0\0\0\0"
        self.record = self.noted = record
        self.before = array("I", record)  # durable value of `noted` while `touched`
        self.touched = False
        self.flash_only: "dict[int, bytearray]" = {}
        self.deferred = self.open = self.cursor = self.offset = 0
        self.near = 0, 0

    def restore(self) -> None:
        """Return to the durable counters."""
        self.touched = False
        core.copy_words(self.noted, self.before)


class Log:
    """The segments in `files`. A record is built in `out`, where `room` says, then `finish`ed.

    segment_size: bytes after which a new file begins. capacity: bytes of all files together; bound: the same, limited
    by free space at the last look. write_bytes: of `out`, which goes to the file when full. guid: 16 bytes, the log's
    owner. owner: the outbox, which begins segments. Writing methods raise OutboxWriteFailed.
    """

    def __init__(self, files: Files, segment_size: int, capacity: int, write_bytes: int, owner: "Any") -> None:
        self.files = files
        self.segment_size = segment_size
        self.capacity = self.bound = capacity
        self.is_seen = False  # free space was read since the start
        self.guid: "bytes | None" = None
        self.segments: "list[Segment]" = []  # the last one is written
        self.gaps: "list[tuple[str, int, int]]" = []  # unreadable parts found at the start: file, begin, end
        self.bytes_written = 0
        self.mended: "list[tuple[str, int, int]]" = []  # flipped bits found at the start: file, offset, mask
        self.damage: "list[str]" = []  # unreadable parts, a sentence each
        self.missing: "list[int]" = []  # unreadable MessageIDs; 0: some are unknown
        self.is_ended = False  # the current segment is closed for appending
        self.is_torn = False  # a record is unfinished
        self.out = memoryview(bytearray(max(write_bytes, OUT_BYTES_MIN)))
        self._fill = 0  # bytes in `out`: the end of the current segment, not in the file yet
        self.piece = memoryview(bytearray(_PIECE_BYTES))
        self._older = 0  # bytes of the other segments
        self._synced_size = 0  # durable bytes of the current segment
        self._is_clean = True  # all valid bytes are durable
        self._owner = owner

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._older + self.segments[-1].bytes()

    def growth(self, need: int) -> int:
        """Return the growth of the files if `need` more bytes are logged."""
        segment = self.segments[-1]
        if not self.files.fixed:
            return need
        if not self.is_ended and segment.size + need <= segment.space:
            return 0
        return max(self.segment_size, segment.base + need)

    def end_of(self, segment: Segment) -> int:
        """Return the durable bytes of a segment."""
        return segment.size if self._is_clean or segment is not self.segments[-1] else self._synced_size

    # ---- reading --------------------------------------------------------------------------------

    def read(self, name: str, offset: int, buffer: memoryview) -> int:
        """Read as Files.read_into, with flipped bits corrected."""
        count = self.files.read_into(name, offset, buffer)
        for file, place, mask in self.mended:
            if file == name and offset <= place < offset + count:
                buffer[place - offset] ^= mask
        return count

    def load(self, handle: Stored) -> bytearray:
        """Return the packet of a kept message. Raises as `load_into`."""
        packet = bytearray(handle.size)
        self.load_into(handle, memoryview(packet))
        return packet

    def load_into(self, handle: Stored, part: memoryview, offset: int = 0) -> None:
        """Fill part with the packet of a kept message, from byte `offset` on.

        The first part checks the whole packet against its CRC; later parts are not checked. Raises OutboxDamaged,
        OSError; OutboxWriteFailed for a message that is not durable.
        """
        segment = handle.segment
        assert segment is not None
        if (self.is_torn or self._fill) and segment is self.segments[-1] and handle.offset >= self._synced_size:
            if self.is_torn:
                self.give_up()
            self._flush()
        is_right = True
        if not offset:
            self.read(segment.name, handle.offset, self.piece[:HEAD_BYTES])
            crc, word = struct.unpack_from("<II", self.piece, 0)
            value = crc32(self.piece[4:HEAD_BYTES], segment.seed)
            if len(part) < handle.size:
                for chunk in self._chunks(handle):
                    value = crc32(chunk, value)
                is_right = value == crc
        count = self.read(segment.name, handle.offset + HEAD_BYTES + offset, part)
        if count == handle.size:
            is_right = crc32(part, value) == crc
        if not is_right or count < len(part) or (not offset and word >> 8 != MESSAGE_PREFIX_BYTES + handle.size):
            raise _unreadable(handle)

    def _chunks(self, handle: Stored) -> "Generator[memoryview]":
        """Yield a message's packet in pieces through the small buffer."""
        segment = handle.segment
        assert segment is not None
        offset = handle.offset + HEAD_BYTES
        left = handle.size
        while left:
            count = self.read(segment.name, offset, self.piece[: min(_PIECE_BYTES, left)])
            if not count:
                raise _unreadable(handle)
            yield self.piece[:count]
            offset += count
            left -= count

    def leave_out(self, segment: Segment, begin: int, end: int) -> None:
        """Report an unreadable part of a segment."""
        self.gaps.append((segment.name, begin, end))
        self.damage.append("{} at byte {}: {} bytes cannot be read".format(segment.name, begin, end - begin))

    def miss(self, message_id: int) -> None:
        """Report a message in an unreadable part."""
        self.missing.append(message_id)
        self.damage.append("message {} cannot be read, and is not known to have ended".format(message_id))

    # ---- writing --------------------------------------------------------------------------------

    def room(self, head: int, body: int = 0) -> int:
        """Return where in `out` a record begins, whose first `head` bytes must fit; all of it if possible.

        Begins a new segment if the record would not fit into this one.
        """
        assert not self.is_torn
        need = head + body
        segment = self.segments[-1]
        if self.is_ended or 0 < segment.space < segment.size + need:
            self._owner.begin(need)
        most = len(self.out)
        if self._fill + (need if need <= most else head) > most:
            self._flush()
        return self._fill

    def finish(self, kind: int, size: int) -> None:
        """Complete the record in `out` with a payload of size bytes."""
        segment = self.segments[-1]
        start = self._fill
        end = start + RECORD_BYTES + size
        struct.pack_into("<I", self.out, start + 4, kind | AFTER_SYNC * self._is_clean | size << 8)
        core.put_crc(self.out, start, start + 4, end, segment.seed)
        self._grow(RECORD_BYTES + size)
        self._fill = end

    def put_message(
        self,
        kind: int,
        handle: Stored,
        index: int,
        flags: int,
        counters: "array[int]",
        packet: "Buffer",
        body: "Buffer" = b"",
    ) -> int:
        """Log a message; return its offset. body: the rest of a packet too large for `out`, padded with zeros to whole
        words. `is_torn` stays set until the caller has noted the message: an interruption, such as a MemoryError, rolls
        back everything since the last sync.
        """
        size = len(packet) + len(body) + 3 & ~3 if body else len(packet)
        start = self.room(HEAD_BYTES, size)
        segment = self.segments[-1]
        offset = segment.size
        self.is_torn = True
        out = self.out
        struct.pack_into("<HHI", out, start + RECORD_BYTES, index, flags, handle.message_id)
        core.put_words(out, start + _COUNTERS_OFFSET, counters, 0, 4)
        self._put_confirmation(handle.record, start)
        end = start + HEAD_BYTES
        if end + size <= len(out):
            core.copy(out, end, packet, 0, size)
            self.finish(kind, MESSAGE_PREFIX_BYTES + size)
        else:
            word = kind | AFTER_SYNC * self._is_clean | MESSAGE_PREFIX_BYTES + size << 8
            struct.pack_into("<I", out, start + 4, word)
            parts = packet, body, bytes(size - len(packet) - len(body))
            crc = crc32(self.out[start + 4 : end], segment.seed)
            for part in parts:
                crc = crc32(part, crc)
            struct.pack_into("<I", out, start, crc)
            self._fill = end
            self._flush()
            try:
                for part in parts:
                    self.files.append(part, len(part))
            except OSError as error:
                self._fail(error)  # also older records: LittleFS never syncs a file after an error
            self._grow(HEAD_BYTES + size)
        handle.size = size
        return offset

    def copy_message(self, handle: Stored, numbers: "array[int] | None" = None, at: int = 0) -> int:
        """Log a message again from its place in the log; return its offset in the current segment.

        numbers: the counters after it, for a new number, which its packet has at byte `at`.
        """
        packet = self.load(handle)
        index, flags, _, *counters = struct.unpack_from("<HHIIIII", self.piece, RECORD_BYTES)
        if numbers is None:
            numbers = array("I", counters)
        else:
            number = numbers[2] - 1
            struct.pack_into("<IIII", packet, at, numbers[0], numbers[1], number, number - 1)
        kind = COPY if handle.source is None else ARRIVAL_COPY
        offset = self.put_message(kind, handle, index, flags, numbers, packet)
        self.is_torn = False
        return offset

    def put_counters(self, place: int, thing: LoggedQueue) -> int:
        """Put a QUEUE or SOURCE payload into `out`; return its size."""
        out = self.out
        struct.pack_into("<H", out, place, thing.index)
        core.put_words(out, place + 2, thing.noted, 0, 4)
        rest = thing.guid + thing.name.encode()[thing.skip :]
        core.copy(out, place + QUEUE_PREFIX_BYTES, rest, 0, len(rest))
        return QUEUE_PREFIX_BYTES + len(rest)

    def sync(self) -> bool:
        """Make the log durable. False: it was already."""
        if self.is_torn:
            self.give_up()
        if self._is_clean:
            return False
        self._flush()
        try:
            self.files.sync()
        except OSError as error:
            self._fail(error)
        self._is_clean = True
        self._synced_size = self.segments[-1].size
        return True

    def give_up(self) -> None:
        """Abandon an interrupted write, of which the file has an unknown part. Raises OutboxWriteFailed."""
        self._fail(OSError(_EINTR))

    def begin(
        self,
        queues: "Sequence[LoggedQueue]",
        sources: "Sequence[LoggedQueue]",
        numbers: "tuple[int, int, int, int]",
        flags: int,
        need: int,
    ) -> None:
        """Begin the next segment after the synced part, then remove unneeded segments.

        Its header has the counters of queues and sources, and numbers: next MessageID, next arrival, highest TimeStamp,
        starts. need: minimum bytes of room in it.
        """
        first, number, last = 1, 1, 0
        if self.segments:
            first = self.segments[0].number
            number = self.segments[-1].number + 1
            last = self.segments[-1].size
        things = list(queues) + list(sources)
        size = header_size(things)
        out = self.out
        counts = len(queues), size, number, first, last
        self.is_ended = True  # from here on the files' tail is not the current segment
        try:
            space = max(self.segment_size, size + need) if self.files.fixed else 0
            self.files.begin(file_name(number), space)
            struct.pack_into(HEADER, out, 0, MAGIC, VERSION, *counts, *numbers, len(sources), flags, self.guid)
            fill = HEADER_BYTES
            seed = 0
            for thing in things:
                if fill + OUT_BYTES_MIN > len(out):
                    seed = crc32(self.out[:fill], seed)
                    self.files.append(out, fill)
                    fill = 0
                count = self.put_counters(fill + 2, thing)
                struct.pack_into("<H", out, fill, count)
                fill += 2 + count
            seed = crc32(self.out[:fill], seed)
            struct.pack_into("<I", out, fill, seed)
            self.files.append(out, fill + 4)
            self.files.sync()
        except OSError as error:
            raise OutboxWriteFailed(error)  # noqa: B904
        older = self.segments[-1].bytes() if self.segments else 0
        self.segments.append(Segment(number, seed, size, space))
        self._older += older
        self._synced_size = size
        self.is_ended = False
        self.bytes_written += size
        self.reclaim(True)

    def resume(self, segments: "list[Segment]", is_ended: bool, useless: "list[str]") -> None:
        """Continue after the segments that the start found. Raises OSError."""
        for name in useless:
            try:
                self.files.remove(name)
            except OSError:
                pass  # harmless; the next start tries again
        self.segments = segments
        if segments:
            for segment in segments[:-1]:
                self._older += segment.bytes()
            segment = segments[-1]
            # After a kill without a power cut, the data read may not be durable yet.
            self.files.resume(segment.name, segment.size)
            self.files.sync()
            self._synced_size = segment.size
            self.is_ended = is_ended
            self.reclaim(True)

    def reclaim(self, looks: bool) -> None:
        """Remove the oldest segments without kept messages; outcomes of their messages are in them or later segments.

        looks: also read the free space, except for the room that outcomes need.
        """
        segments = self.segments
        while len(segments) > 1 and not segments[0].is_needed():
            try:
                self.files.remove(segments[0].name)
            except OSError:
                break  # harmless; the next segment or start tries again
            self._older -= segments[0].bytes()
            del segments[0]
        if looks and hasattr(self.files, "folder") and hasattr(os, "statvfs"):
            self.is_seen = True
            block, _, _, _, free = os.statvfs(self.files.folder)[:5]
            self.bound = min(self.capacity, self.size + free * block - max(self.segment_size, 4 * block))

    def _put_confirmation(self, record: "array[int]", start: int) -> None:
        """Put a confirmation into the message record at `start` of the write buffer."""
        state, marks, message_class = record[confirm.STATE], record[confirm.MARKS], record[confirm.CLASS]
        struct.pack_into("<BBH", self.out, start + _CONFIRMATION_OFFSET, state, marks, message_class)
        core.put_words(self.out, start + _TIMES_OFFSET, record, confirm.SENT_TIME, confirm.TTBR + 1)

    def _grow(self, size: int) -> None:
        segment = self.segments[-1]
        self.bytes_written += size
        segment.size += size
        self._is_clean = False

    def _flush(self) -> None:
        """Write the buffer to the file."""
        if not self._fill:
            return
        torn = self.is_torn
        self.is_torn = True  # until all is written: nothing may follow half a record
        try:
            self.files.append(self.out, self._fill)
        except OSError as error:
            self._fail(error)
        self.is_torn = torn
        self._fill = 0

    def _fail(self, error: OSError) -> "NoReturn":
        """Forget everything since the last sync; the next segment will cut it off."""
        segment = self.segments[-1]
        self._owner.abandoned()
        self._fill = 0
        segment.size = self._synced_size
        self._is_clean = True
        self.is_torn = False
        self.is_ended = True
        raise OutboxWriteFailed(error)


def _unreadable(handle: Stored) -> OutboxDamaged:
    assert handle.segment is not None
    return OutboxDamaged(handle.segment.name, handle.offset, "a message cannot be read back")


def header_size(things: "list[Any]") -> int:
    """Return the bytes of a segment header with the counters of these queues and sources."""
    size = HEADER_BYTES + 4
    for thing in things:
        size += 2 + QUEUE_PREFIX_BYTES + len(thing.guid) + len(thing.name.encode()) - thing.skip
    return size


def file_name(number: int) -> str:
    """Return the file name of a segment."""
    return "{:08x}.log".format(number)


def is_after(number: int, other: int) -> bool:
    """Was `number` given after `other`?"""
    return 0 < number - other & 0xFFFFFFFF < 0x80000000


def following(number: int) -> int:
    """Return the next MessageID or arrival number; 0 means "none" (A-46)."""
    return number + 1 & 0xFFFFFFFF or 1
