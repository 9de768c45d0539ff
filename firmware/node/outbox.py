"""The outbox: an append-only log of the messages that are kept, of their confirmation, and of the counters.

A message that `append` took and `sync` made durable survives any power cut, with its MessageID, its place in its
sequence and its confirmation record (mqqb.confirm), until `change` says that it is gone (C-09, C-33). The format is in
firmware/README.md. What the log promises:

* Order in the log is order of durability: a segment is synced before the next one is begun, and replay stops at the
  first record that is not whole. A change of state that stands before a message is durable if the message is.
* A tail that a power cut tore is dropped and never appended to: the next segment says where its predecessor ends.
* A broken record that was durable once is never skipped: OutboxDamaged. It is told from a torn one by the records
  behind it, whose AFTER_SYNC flag says that everything before them was durable.
* Files go oldest first. What is kept for long does not hold them: near the capacity it is copied to the end of the log.

Nothing here blocks for longer than the file system does. Bodies are not kept in memory.
"""

import os
import struct
from array import array
from binascii import crc32

from mqqb import confirm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import FileIO
    from typing import Any

    Buffer = bytes | bytearray | memoryview

VERSION = 2
MAGIC = b"ORDK"
# magic, version, queues, bytes until the first record, segment, first segment needed, end of the one before,
# next MessageID, highest TimeStamp, starts, has this one sent, GUID; the queues follow, then a CRC of all before it
_HEADER = "<4sHHIIIIIIII16s"
_HEADER_BYTES = 56
_VERSION_BYTES = 12  # so much of it is the same in every version

MESSAGE = 0xB1
STATE = 0xB2
QUEUE = 0xB3
START = 0xB4
COPY = 0xB5  # as MESSAGE, of one whose first place is given up
AFTER_SYNC = 0x08  # flag of a record's type: everything before it was durable when it was written
_TYPES = (MESSAGE, STATE, QUEUE, START, COPY)
_RECORD_BYTES = 8  # type and length, CRC
_MESSAGE_PREFIX = "<HHIIIII"  # queue, flags, MessageID, then the stream's four counters after this message
_CONFIRMATION = "<BBHIII"  # it follows: state, marks, class, T0, TTRQ, TTBR
_CONFIRMATION_OFFSET = 24
_MESSAGE_PREFIX_BYTES = 40
_QUEUE_PREFIX = "<HIIII"  # queue, counters; the format name follows in UTF-8
_QUEUE_PREFIX_BYTES = 18
_QUEUES_MAX = 0xFFFF
_STATE_PREFIX = "<BBHI"  # state, marks, class, T0 or 0: as it was; MessageIDs follow
_STATE_IDS_MAX = 64  # in one record
_START = "<II"  # starts, has this one sent
_STARTS_MAX = 0xFFFFFF
_STARTS_SHIFT = 8  # where a TimeStamp comes from the number of starts: so many low bits are the sequence's

TRANSACTIONAL = 0x01  # flags of a message
RECOVERABLE = 0x02
JOURNAL = 0x04

_GONE = ord(confirm.GONE)
_BUFFER_BYTES = 512
_NAME_BYTES_MAX = _BUFFER_BYTES - _RECORD_BYTES - _QUEUE_PREFIX_BYTES


class OutboxError(Exception):
    """The outbox cannot do what was asked; the text says what to do."""


class OutboxFull(OutboxError):
    """The capacity is used up and nothing was accepted. Wait until messages are gone, then send again."""


class OutboxWriteFailed(OutboxError):
    """The file system refused (`errno`): what was not durable yet is not accepted. The outbox itself stays in order."""

    def __init__(self, error: OSError) -> None:
        super().__init__(
            "not accepted, the file system failed ({}): make room or repair it, then send again".format(error)
        )
        self.errno = error.errno


class OutboxDamaged(OutboxError):
    """What was durable once cannot be read any more, or is missing: file `name`, byte `offset`. No file was changed."""

    def __init__(self, name: str, offset: int, what: str) -> None:
        super().__init__(
            "{} at byte {}: {}. Accepted messages may be lost: keep a copy of the folder, "
            "then empty it to begin anew under another GUID".format(name, offset, what)
        )
        self.name = name
        self.offset = offset


class Files:
    """What the outbox needs of a file system: one file that grows, others that are read or removed.

    Everything here may raise OSError. Demanded: what was appended before a `sync` is durable after it, the file's name
    included; names appear and vanish in the order of the calls.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._tail: "FileIO | None" = None
        self._tail_is_new = False
        self._reader: "FileIO | None" = None
        self._reader_name = ""
        self._reader_end = 0
        try:
            os.mkdir(folder)
        except OSError:
            os.stat(folder)  # there already, or there is the reason why not

    def names(self) -> "list[str]":
        """The files of the folder, in any order."""
        return os.listdir(self.folder)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return os.stat(self._path(name))[6]

    def begin(self, name: str) -> None:
        """An empty file of that name becomes the one that grows."""
        self._open(name, "wb")

    def resume(self, name: str) -> None:
        """An existing file becomes the one that grows, at its end."""
        self._open(name, "ab")

    def append(self, data: "Buffer") -> None:
        """Write all of data at the end of the file that grows. After an OSError any part of it may be there."""
        assert self._tail is not None
        done = self._tail.write(data)
        if done != len(data):
            view = memoryview(data)
            while done < len(view):
                done += self._tail.write(view[done:])

    def sync(self) -> None:
        """Make the file that grows durable as it is, and its name."""
        assert self._tail is not None
        _sync(self._tail)
        if self._tail_is_new:
            _sync_folder(self.folder)
            self._tail_is_new = False

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """Fill buffer from a file at offset (bytes); the number of bytes read, fewer only at its end."""
        reader = self._reader
        if reader is None or self._reader_name != name or offset + len(buffer) > self._reader_end:
            self._close_reader()
            self._reader_end = self.size(name)
            reader = self._reader = open(self._path(name), "rb", 0)  # noqa: SIM115 - stays open
            self._reader_name = name
        reader.seek(offset)
        done = 0
        while done < len(buffer):
            count = reader.readinto(buffer[done:])
            if not count:
                break
            done += count
        return done

    def remove(self, name: str) -> None:
        """Delete a file."""
        if self._reader_name == name:
            self._close_reader()
        os.remove(self._path(name))

    def close(self) -> None:
        """Let go of all files."""
        self._close_reader()
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _path(self, name: str) -> str:
        return self.folder + "/" + name

    def _open(self, name: str, mode: str) -> None:
        if self._tail is not None:
            self._tail.close()
        self._tail = open(self._path(name), mode, 0)  # type: ignore[assignment]  # noqa: SIM115 - stays open
        self._tail_is_new = True

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


if hasattr(os, "fsync"):  # CPython

    def _sync(file: "FileIO") -> None:
        os.fsync(file.fileno())

    def _sync_folder(folder: str) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

else:  # MicroPython: flush() is fsync(), or the sync of the board's file system

    def _sync(file: "FileIO") -> None:
        file.flush()

    def _sync_folder(folder: str) -> None:
        try:
            entries = open(folder, "rb")  # noqa: SIM115
        except OSError:
            return  # LittleFS and FAT: a folder is no file there, and each call that changes it is durable by itself
        try:
            entries.flush()
        finally:
            entries.close()


class Stored:
    """Where the log holds a message: its owner's handle. `size`: bytes of the packet. record: its confirmation."""

    __slots__ = ("message_id", "offset", "record", "segment", "size")

    def __init__(self, message_id: int, record: "array[int]") -> None:
        self.message_id = message_id
        self.record = record
        self.segment: "Segment | None" = None
        self.offset = 0
        self.size = 0


class Segment:
    """One file of the log: `size` in bytes that count, `handles` of the messages kept in it, which take `live` bytes,
    `seed` of its CRCs.
    """

    __slots__ = ("handles", "live", "name", "number", "seed", "size")

    def __init__(self, number: int, seed: int, size: int) -> None:
        self.number = number
        self.name = _name(number)
        self.seed = seed
        self.size = size
        self.handles: "list[Stored]" = []
        self.live = 0


class LoggedQueue:
    """A destination queue in the log. `record`: its stream's counters after the last message (mqqb_outgoing)."""

    __slots__ = ("index", "name", "record")

    def __init__(self, index: int, name: str, record: "array[int]") -> None:
        self.index = index
        self.name = name
        self.record = record


class Restored:
    """A message that the log held at start: what its owner's table needs.

    `sent`: it may have been transmitted, whatever the state in its record is.
    """

    __slots__ = ("flags", "handle", "queue", "sent", "tx_sequence_id", "tx_sequence_number")

    def __init__(
        self, queue: LoggedQueue, handle: Stored, flags: int, tx_sequence_id: int, tx_sequence_number: int
    ) -> None:
        self.queue = queue
        self.handle = handle
        self.flags = flags
        self.tx_sequence_id = tx_sequence_id
        self.tx_sequence_number = tx_sequence_number
        self.sent = False


def _name(number: int) -> str:
    return "{:08x}.log".format(number)


def _numbers(names: "list[str]") -> "list[int]":
    numbers = []
    for name in names:
        if len(name) == 12 and name.endswith(".log"):
            try:
                numbers.append(int(name[:8], 16))
            except ValueError:
                continue
    return sorted(numbers)


class Outbox:
    """The log. guid: 16 bytes, the board's; None takes the one in the log, or a random one if there is no log yet.

    segment_size: bytes after which a new file is begun. capacity: bytes of all files together, beyond which messages
    are refused. waiting_max: so many may be kept at once, for each needs memory, also at the next start (about 600
    bytes with its node's share on a 64-bit machine, half as much again at the start). handle: makes the handle of a
    stored message from its MessageID and record. starts: how often this board has started, 0 to 0xFFFFFF, where
    somebody else counts that too. `restored`: the messages that are kept, those of a queue in the order of their
    numbers, for the owner to take. Raises OutboxDamaged, OutboxError (another board's folder, another format),
    OutboxWriteFailed, OSError, ValueError.
    """

    def __init__(
        self,
        files: Files,
        guid: "bytes | None" = None,
        segment_size: int = 65536,
        capacity: int = 1048576,
        waiting_max: int = 500,
        handle: "type[Stored]" = Stored,
        starts: int = 0,
    ) -> None:
        if not 0 <= starts <= _STARTS_MAX:
            raise ValueError("starts is 0 to 0xFFFFFF")
        self.capacity = capacity
        self.waiting_max = waiting_max
        self.guid = guid
        self.next_message_id = 1
        self.queues: "list[LoggedQueue]" = []
        self.restored: "list[Restored]" = []
        self.bytes_written = 0
        self.starts = 0  # of this board, this one included
        self._sent = False  # in this start something may have been transmitted
        self._start_logged = False
        self._files = files
        self._segment_size = segment_size
        self._time_stamp = 0  # the highest that any sequence has
        self._segments: "list[Segment]" = []
        self._current: "Segment | None" = None
        self._base = 0  # bytes with which the current segment began
        self._logged = 0  # so many of the queues are in the log
        self._logged_synced = 0  # so many of them durably
        self._clean = True  # all that counts is durable
        self._synced_size = 0  # bytes of the current segment that are
        self._ended = False  # nothing may be appended to the current segment any more
        self._unsynced: "list[tuple[Stored, LoggedQueue, tuple[int, ...]]]" = []  # messages, and the counters before
        self._marks: "list[bytes]" = []  # payloads of STATE records that are not durable
        self._marks_logged = 0  # how many of them stand in the log
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        try:
            self._replay(handle)
            self.starts = max(self.starts + 1, starts)
            self._sent = False
            if self._current is None:
                if self.guid is None:
                    self.guid = os.urandom(16)
                self._begin()
        except (OutboxError, OSError):
            files.close()
            raise

    # ---- use ------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum([segment.size for segment in self._segments])

    @property
    def live(self) -> int:
        """Messages that are kept."""
        return sum([len(segment.handles) for segment in self._segments])

    def handles(self) -> "list[Stored]":
        """Of all messages that are kept."""
        return [handle for segment in self._segments for handle in segment.handles]

    def time_stamp(self, now: int = 0) -> int:
        """A TimeStamp for a new sequence, above all that this log has seen (B-056, B-079, A-22).

        now: s since 1970, which it is at least; 0: the clock is not set, and it is above all of earlier starts.
        """
        self._time_stamp = max(self._time_stamp + 1, now or self.starts << _STARTS_SHIFT)
        return self._time_stamp

    def queue(self, name: str, now: int = 0) -> LoggedQueue:
        """The queue of that format name. A new one gets a `time_stamp(now)`. Raises ValueError for a name too long."""
        for queue in self.queues:
            if queue.name.lower() == name.lower():
                return queue
        if len(name.encode()) > _NAME_BYTES_MAX:
            raise ValueError("a format name has at most {} bytes here".format(_NAME_BYTES_MAX))
        if len(self.queues) > _QUEUES_MAX:
            raise ValueError("too many queues")
        queue = LoggedQueue(len(self.queues), name, array("I", (1, self.time_stamp(now), 1, 0)))
        self.queues.append(queue)
        return queue

    def append(self, handle: Stored, queue: LoggedQueue, flags: int, record: "array[int]", packet: "Buffer") -> None:
        """Log a message as numbered; record: the stream's counters after it. It is accepted only by the next `sync`.

        Its MessageID is `next_message_id`, which moves on. Raises OutboxFull, OutboxWriteFailed: it is not in the log,
        and the caller takes its number back. Those before it are not concerned, unless their `segment` is None now.
        """
        assert handle.message_id == self.next_message_id
        self._make_room(_RECORD_BYTES + _MESSAGE_PREFIX_BYTES + len(packet))
        self._log_marks()  # they stand before every newer message
        self._log_start()
        while self._logged <= queue.index:
            self._write(QUEUE, _queue_payload(self.queues[self._logged]), b"")
            self._logged += 1
        segment = self._current
        assert segment is not None
        offset = segment.size
        prefix = struct.pack(
            _MESSAGE_PREFIX, queue.index, flags, handle.message_id, record[0], record[1], record[2], record[3]
        )
        self._write(MESSAGE, prefix + _confirmation(handle.record), packet)
        handle.size = len(packet)
        self._keep(handle, segment, offset)
        self._unsynced.append((handle, queue, tuple(queue.record)))
        for i in range(4):
            queue.record[i] = record[i]
        self.next_message_id = _following(handle.message_id)

    def change(self, handles: "list[Stored]", with_time: bool = False) -> None:
        """The records of these messages have changed; those in the state GONE need not be kept any more.

        with_time: their T0 too, which is the same of all. Lazy: it is written with the next `sync`, or before the
        next message. Never fails: if it is lost, the messages come back as they were, and it happens to them again.
        """
        groups: "dict[tuple[int, int, int], list[Stored]]" = {}
        for handle in handles:
            record = handle.record
            what = (record[confirm.STATE], record[confirm.MARKS], record[confirm.CLASS])
            groups.setdefault(what, []).append(handle)
            if record[confirm.STATE] == _GONE:
                self._drop(handle)
        for what, group in groups.items():
            time = group[0].record[confirm.SENT_TIME] if with_time else 0
            prefix = struct.pack(_STATE_PREFIX, what[0], what[1], what[2], time)
            for start in range(0, len(group), _STATE_IDS_MAX):
                ids = [handle.message_id for handle in group[start : start + _STATE_IDS_MAX]]
                self._marks.append(prefix + struct.pack("<" + str(len(ids)) + "I", *ids))
        self._reclaim()

    def will_send(self) -> None:
        """Note durably that messages may be transmitted from now on. Raises OutboxWriteFailed: they must not be."""
        if self._sent:
            return
        self._sent = True
        self._start_logged = False
        try:
            if self._ended:
                self._begin()
            self._log_start()
            self._sync_tail()
        except OutboxWriteFailed:
            self._sent = False
            raise

    def sync(self) -> bool:
        """Make everything durable: this is what accepts a message. False: all but the changes of state, not yet.

        Raises OutboxWriteFailed: messages whose `segment` is None now are not accepted, and `next_message_id` is the
        first one's again. Until another message is accepted instead, a power cut may still bring some of them back;
        `next_message_id` after the restart tells.
        """
        self._sync_tail()
        if self._marks:
            try:
                self._log_marks()
                self._sync_tail()
            except OutboxWriteFailed:
                return False
        return True

    def load(self, handle: Stored) -> bytearray:
        """The packet of a message that is kept, as it was appended. Raises OutboxDamaged, OSError."""
        segment = handle.segment
        assert segment is not None
        packet = bytearray(handle.size)
        prefix = self._view[: _RECORD_BYTES + _MESSAGE_PREFIX_BYTES]
        count = self._files.read_into(segment.name, handle.offset, prefix)
        count += self._files.read_into(segment.name, handle.offset + len(prefix), memoryview(packet))
        word, crc = struct.unpack_from("<II", self._buffer, 0)
        value = crc32(packet, crc32(prefix[_RECORD_BYTES:], crc32(prefix[:4], segment.seed)))
        if count != len(prefix) + len(packet) or value != crc or word >> 8 != count - _RECORD_BYTES:
            raise OutboxDamaged(segment.name, handle.offset, "a message cannot be read back")
        return packet

    def close(self) -> None:
        """Make everything durable if possible, and let go of the files."""
        try:
            self.sync()
        except OutboxWriteFailed:
            pass
        self._files.close()

    # ---- writing --------------------------------------------------------------------------------

    def _make_room(self, need: int) -> None:
        """See that the current segment takes another message of need bytes; drop what is gone before refusing."""
        segment = self._current
        assert segment is not None
        live = self.live
        if live >= self.waiting_max:
            raise OutboxFull("not accepted, {} messages are kept: send again when some of them are gone".format(live))
        self._compact(need)
        full = self.size + need > self.capacity
        if full:
            self._reclaim()  # a file that could not be removed before may go now
            full = self.size + need > self.capacity
        if full and live:
            raise OutboxFull(
                "not accepted, {} of {} bytes are in use: wait until messages are gone, then send again".format(
                    self.size, self.capacity
                )
            )
        overflows = segment.size + need > self._segment_size or full
        if self._ended or (overflows and segment.size > self._base):
            self._begin()
        if self.size + need > self.capacity:
            raise OutboxFull("not accepted, the message is too large for an outbox of {} bytes".format(self.capacity))

    def _compact(self, need: int) -> None:
        """While there is hardly room for another segment, and a quarter of all is waste: give up the oldest segments.

        So what is kept for long costs at most three bytes copied for each that it would hold back. While the copy of a
        large message stands beside it, the capacity may be exceeded by that much.
        """
        for _ in range(len(self._segments) - 1):
            oldest = self._segments[0]
            size = self.size
            if (
                len(self._segments) < 2
                or size + need + self._segment_size <= self.capacity
                or 4 * sum([segment.live for segment in self._segments]) > 3 * size
            ):
                return
            places = []
            for handle in list(oldest.handles):
                segment = self._current
                assert segment is not None
                if self._ended or segment.size + _RECORD_BYTES + handle.size > self._segment_size:
                    self._begin()
                packet = self.load(handle)
                prefix = bytes(self._view[_RECORD_BYTES : _RECORD_BYTES + _CONFIRMATION_OFFSET])
                segment = self._current
                assert segment is not None
                places.append((handle, segment, segment.size))
                self._write(COPY, prefix + _confirmation(handle.record), packet)
            self._sync_tail()
            for handle, segment, offset in places:
                self._drop(handle)
                self._keep(handle, segment, offset)
            self._reclaim()

    def _log_marks(self) -> None:
        if self._marks_logged < len(self._marks) and self._ended:
            self._begin()
        while self._marks_logged < len(self._marks):
            self._write(STATE, self._marks[self._marks_logged], b"")
            self._marks_logged += 1

    def _log_start(self) -> None:
        if not self._start_logged:
            self._write(START, struct.pack(_START, self.starts, self._sent), b"")
            self._start_logged = True

    def _keep(self, handle: Stored, segment: Segment, offset: int) -> None:
        handle.segment = segment
        handle.offset = offset
        segment.handles.append(handle)
        segment.live += _RECORD_BYTES + _MESSAGE_PREFIX_BYTES + handle.size

    def _drop(self, handle: Stored) -> None:
        segment = handle.segment
        assert segment is not None
        segment.handles.remove(handle)
        handle.segment = None
        segment.live -= _RECORD_BYTES + _MESSAGE_PREFIX_BYTES + handle.size

    def _write(self, kind: int, prefix: bytes, body: "Buffer") -> None:
        segment = self._current
        assert segment is not None
        assert not self._ended
        if self._clean:
            kind |= AFTER_SYNC
        self._clean = False
        self._ended = True  # until all of it is written: whatever interrupts this, nothing is appended to half a record
        try:
            self._files.append(_record(kind, prefix, body, segment.seed))
            if body:
                self._files.append(body)
        except OSError as error:
            raise OutboxWriteFailed(error)  # noqa: B904 - MicroPython has no `from`
        self._ended = False
        segment.size += _RECORD_BYTES + len(prefix) + len(body)
        self.bytes_written += _RECORD_BYTES + len(prefix) + len(body)

    def _sync_tail(self) -> None:
        segment = self._current
        if self._clean or segment is None:
            return
        try:
            self._files.sync()
        except OSError as error:
            self._abandon(segment)
            raise OutboxWriteFailed(error)  # noqa: B904
        self._clean = True
        self._synced_size = segment.size
        self._logged_synced = self._logged
        self._unsynced = []
        self._marks = self._marks[self._marks_logged :]
        self._marks_logged = 0

    def _abandon(self, segment: Segment) -> None:
        """Nothing since the last sync can be relied upon: forget it; the next segment will cut it off."""
        for handle, queue, record in reversed(self._unsynced):
            for i in range(4):
                queue.record[i] = record[i]
            self._drop(handle)
            self.next_message_id = handle.message_id
        self._unsynced = []
        self._marks_logged = 0
        self._logged = self._logged_synced
        segment.size = self._synced_size
        self._clean = True
        self._ended = True

    def _begin(self) -> None:
        """Begin the next segment, with all counters in its first write; then drop the segments that nobody needs."""
        self._sync_tail()
        current = self._current
        number = current.number + 1 if current is not None else 1
        queues = b""
        for queue in self.queues[: self._logged]:
            payload = _queue_payload(queue)
            queues += struct.pack("<H", len(payload)) + payload
        data = struct.pack(
            _HEADER,
            MAGIC,
            VERSION,
            self._logged,
            _HEADER_BYTES + len(queues) + 4,
            number,
            self._segments[0].number if self._segments else number,
            current.size if current is not None else 0,
            self.next_message_id,
            self._time_stamp,
            self.starts,
            self._sent,
            self.guid,
        )
        data += queues
        seed = crc32(data)
        data += struct.pack("<I", seed)
        self._ended = True  # from here on the files' tail is not the current segment
        try:
            self._files.begin(_name(number))
            self._files.append(data)
            self._files.sync()
        except OSError as error:
            raise OutboxWriteFailed(error)  # noqa: B904
        self._adopt(Segment(number, seed, len(data)))
        self._start_logged = True
        self.bytes_written += len(data)
        self._reclaim()

    def _adopt(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._current = segment
        self._base = segment.size
        self._synced_size = segment.size
        self._ended = False

    def _reclaim(self) -> None:
        """Remove segments that hold nothing any more, oldest first: what became of it stands in them and later ones."""
        while len(self._segments) > 1 and not self._segments[0].handles:
            if not self._remove(self._segments[0].number):
                return
            del self._segments[0]

    def _remove(self, number: int) -> bool:
        try:
            self._files.remove(_name(number))
        except OSError:
            return False  # it does no harm, and is tried again: with the next segment, or at the next start
        return True

    # ---- start ----------------------------------------------------------------------------------

    def _replay(self, make: "type[Stored]") -> None:
        numbers = _numbers(self._files.names())
        headers = [self._read_header(number) for number in numbers]
        unfinished = 0
        if headers and headers[-1] is None:  # the cut came while it was begun; nothing can be in it yet
            headers.pop()
            unfinished = numbers.pop()
        first = headers[-1][5] if headers and headers[-1] is not None else 0
        stale = [number for number in numbers if number < first]
        kept: "dict[int, Restored]" = {}
        torn = False
        numbers = numbers[len(stale) :]
        headers = headers[len(stale) :]
        for i in range(1, len(numbers)):
            if numbers[i] != numbers[i - 1] + 1:
                raise OutboxDamaged(_name(numbers[i] - 1), 0, "the file is missing")
        for i in range(len(numbers)):
            header = headers[i]
            if header is None:
                raise OutboxDamaged(_name(numbers[i]), 0, "the header is broken")
            following = headers[i + 1] if i + 1 < len(numbers) else None
            torn = self._replay_segment(numbers[i], header, following, kept, make)
        if unfinished:
            base = _HEADER_BYTES + 4
            for queue in self.queues:
                base += 2 + _QUEUE_PREFIX_BYTES + len(queue.name.encode())
            if self._files.size(_name(unfinished)) > base or (not numbers and unfinished != 1):
                raise OutboxDamaged(_name(unfinished), 0, "the header is broken")
            self._remove(unfinished)
        for number in stale:
            self._remove(number)
        self.restored = list(kept.values())
        self.restored.sort(key=_place)
        current = self._current
        if current is not None:
            # Killed, not cut off from power: what was read may not be durable yet, and it is about to be built upon.
            self._files.resume(current.name)
            self._files.sync()
            self._synced_size = current.size
            self._logged = self._logged_synced = len(self.queues)
            self._ended = torn
            self._reclaim()

    def _read_header(self, number: int) -> "tuple[Any, ...] | None":
        """The fields of a segment's header, its CRC last; None if it is not whole."""
        name = _name(number)
        size = self._files.read_into(name, 0, self._view[:_HEADER_BYTES])
        if size < _VERSION_BYTES:
            return None
        magic, version, _, base = struct.unpack_from("<4sHHI", self._buffer, 0)
        if magic != MAGIC or not _VERSION_BYTES + 4 <= base <= self._files.size(name):
            return None
        header = struct.unpack_from(_HEADER, self._buffer, 0)
        crc = self._crc(name, 0, base - 4, 0)
        self._files.read_into(name, base - 4, self._view[:4])
        if struct.unpack_from("<I", self._buffer, 0)[0] != crc:
            return None
        if version != VERSION:
            raise OutboxError(
                "{} has format version {}, this program knows {}: "
                "let the program that wrote it deliver what is in it, then empty the folder".format(
                    name, version, VERSION
                )
            )
        if size < _HEADER_BYTES or base < _HEADER_BYTES + 4 or header[4] != number:
            return None
        if self.guid is None:
            self.guid = header[11]
        if header[11] != self.guid:
            raise OutboxError("{} belongs to another board: its folder must not be used under this GUID".format(name))
        return header + (crc,)

    def _replay_segment(
        self,
        number: int,
        header: "tuple[Any, ...]",
        following: "tuple[Any, ...] | None",
        kept: "dict[int, Restored]",
        make: "type[Stored]",
    ) -> bool:
        """Take in one segment; True if its end is torn. following: the next header, which says where this one ends."""
        segment = Segment(number, header[12], header[3])
        size = self._files.size(segment.name)
        end = size if following is None else following[6]
        if end > size:
            raise OutboxDamaged(segment.name, size, "the file is cut short")
        self._adopt(segment)
        offset = _HEADER_BYTES
        for _ in range(header[2]):
            self._files.read_into(segment.name, offset, self._view[_RECORD_BYTES - 2 :])  # payload where _apply has it
            length = struct.unpack_from("<H", self._buffer, _RECORD_BYTES - 2)[0]
            self._apply(QUEUE, length, segment, kept, make)
            offset += 2 + length
        self.next_message_id = header[7]
        self._time_stamp = max(self._time_stamp, header[8])
        self._started(header[9], header[10], kept)
        while segment.size < end:
            word = self._check(segment, segment.size, end)
            if not word:
                if following is not None or self._durable_after(segment, segment.size + 1, end):
                    raise OutboxDamaged(segment.name, segment.size, "the record is broken")
                return True
            self._apply(word & 0xFF & ~AFTER_SYNC, word >> 8, segment, kept, make)
            segment.size += _RECORD_BYTES + (word >> 8)
        return False

    def _check(self, segment: Segment, offset: int, end: int) -> int:
        """The first word of the record at offset if it is whole, else 0. Its beginning is then in the buffer."""
        view = self._view
        count = self._files.read_into(segment.name, offset, view[: min(_BUFFER_BYTES, end - offset)])
        if count < _RECORD_BYTES:
            return 0
        word, crc = struct.unpack_from("<II", self._buffer, 0)
        stop = offset + _RECORD_BYTES + (word >> 8)
        if word & 0xFF & ~AFTER_SYNC not in _TYPES or stop > end:
            return 0
        value = crc32(view[_RECORD_BYTES : min(count, stop - offset)], crc32(view[:4], segment.seed))
        if offset + count < stop:
            value = self._crc(segment.name, offset + count, stop, value)
        return int(word) if value == crc else 0

    def _crc(self, name: str, offset: int, end: int, value: int) -> int:
        """Carry a CRC on over bytes of a file, without touching the buffer."""
        chunk = memoryview(bytearray(_BUFFER_BYTES))
        while offset < end:
            count = self._files.read_into(name, offset, chunk[: min(_BUFFER_BYTES, end - offset)])
            if not count:
                raise OSError("a file became shorter while it was read")
            value = crc32(chunk[:count], value)
            offset += count
        return value

    def _durable_after(self, segment: Segment, offset: int, end: int) -> bool:
        """Does a whole record behind a broken one say that everything before it was durable?"""
        while offset < end:
            count = self._files.read_into(segment.name, offset, self._view[: min(_BUFFER_BYTES, end - offset)])
            chunk = bytes(self._view[:count])
            for kind in _TYPES:
                place = chunk.find(bytes((kind | AFTER_SYNC,)))
                while place >= 0:
                    if self._check(segment, offset + place, end):
                        return True
                    place = chunk.find(bytes((kind | AFTER_SYNC,)), place + 1)
            offset += count
        return False

    def _apply(
        self, kind: int, length: int, segment: Segment, kept: "dict[int, Restored]", make: "type[Stored]"
    ) -> None:
        """Repeat what a whole record says, which is in the buffer."""
        buffer = self._buffer
        if kind == QUEUE:
            index, ordinal, time_stamp, number, last_ack = struct.unpack_from(_QUEUE_PREFIX, buffer, _RECORD_BYTES)
            name = bytes(self._view[_RECORD_BYTES + _QUEUE_PREFIX_BYTES : _RECORD_BYTES + length]).decode()
            if index == len(self.queues):
                self.queues.append(LoggedQueue(index, name, array("I", (0, 0, 0, 0))))
            queue = self.queues[index]
        elif kind in (MESSAGE, COPY):
            index, flags, message_id, ordinal, time_stamp, number, last_ack = struct.unpack_from(
                _MESSAGE_PREFIX, buffer, _RECORD_BYTES
            )
            queue = self.queues[index]
            state, marks, message_class, sent_time, ttrq, ttbr = struct.unpack_from(
                _CONFIRMATION, buffer, _RECORD_BYTES + _CONFIRMATION_OFFSET
            )
            old = kept.pop(message_id, None)
            if old is not None:
                self._drop(old.handle)
            handle = make(message_id, array("I", (state, marks, sent_time, ttrq, ttbr, message_class)))
            handle.size = length - _MESSAGE_PREFIX_BYTES
            self._keep(handle, segment, segment.size)
            own = (number - 1) & 0xFFFFFFFF if flags & TRANSACTIONAL else 0
            restored = kept[message_id] = Restored(queue, handle, flags, time_stamp << 32 | ordinal if own else 0, own)
            restored.sent = self._sent
            if kind == COPY:
                return
            self.next_message_id = _following(message_id)
        elif kind == START:
            starts, sent = struct.unpack_from(_START, buffer, _RECORD_BYTES)
            self._started(starts, sent, kept)
            return
        else:
            size = struct.calcsize(_STATE_PREFIX)
            state, marks, message_class, sent_time = struct.unpack_from(_STATE_PREFIX, buffer, _RECORD_BYTES)
            count = (length - size) // 4
            for message_id in struct.unpack_from("<" + str(count) + "I", buffer, _RECORD_BYTES + size):
                changed = kept.get(message_id)
                if changed is None:
                    continue
                record = changed.handle.record
                record[confirm.STATE] = state
                record[confirm.MARKS] = marks
                record[confirm.CLASS] = message_class
                if sent_time:
                    record[confirm.SENT_TIME] = sent_time
                if state == _GONE:
                    self._drop(kept.pop(message_id).handle)
            return
        queue.record[0] = ordinal
        queue.record[1] = time_stamp
        queue.record[2] = number
        queue.record[3] = last_ack
        self._time_stamp = max(self._time_stamp, time_stamp)

    def _started(self, starts: int, sent: int, kept: "dict[int, Restored]") -> None:
        self.starts = starts
        self._sent = bool(sent)
        if sent:
            for restored in kept.values():
                restored.sent = True


def _following(message_id: int) -> int:
    return message_id + 1 & 0xFFFFFFFF or 1  # 0 means "none"


def _place(restored: Restored) -> "tuple[int, int]":
    return restored.tx_sequence_id, restored.tx_sequence_number


def _confirmation(record: "array[int]") -> bytes:
    return struct.pack(
        _CONFIRMATION,
        record[confirm.STATE],
        record[confirm.MARKS],
        record[confirm.CLASS],
        record[confirm.SENT_TIME],
        record[confirm.TTRQ],
        record[confirm.TTBR],
    )


def _queue_payload(queue: LoggedQueue) -> bytes:
    record = queue.record
    return struct.pack(_QUEUE_PREFIX, queue.index, record[0], record[1], record[2], record[3]) + queue.name.encode()


def _record(kind: int, prefix: bytes, body: "Buffer", seed: int) -> bytes:
    """A record up to its body: type and length, CRC of everything else, prefix."""
    word = struct.pack("<I", kind | len(prefix) + len(body) << 8)
    crc = crc32(body, crc32(prefix, crc32(word, seed)))
    return word + struct.pack("<I", crc) + prefix
