"""The outbox: an append-only log of the messages that are kept, of their confirmation, and of the counters.

A message that `append` took and `sync` made durable survives any power cut, with its MessageID, its place in its
sequence and its confirmation record (mqqb.confirm), until `change` says that it is gone (C-09, C-33). The same log
holds arrivals: messages received, with the counters of the stream that they came by, so that one sync makes both
durable (B-098). The format is in firmware/docs/storage.md. What the log promises:

* Order in the log is order of durability: a segment is synced before the next one is begun, and replay stops at the
  first record that is not whole. A change of state that stands before a message is durable if the message is.
* A tail that a power cut tore is dropped and never appended to: the next segment says where its predecessor ends.
* A broken record that was durable once is told from a torn one by the records behind it, whose AFTER_SYNC flag says
  that everything before them was durable. One flipped bit is told by the CRC, and passed over whenever it is read; what
  is broken worse is left out, and all of it is said (`damage`). No number that may have been given is given again.
* Files go oldest first. What is kept for long does not hold them: near the capacity it is copied to the end of the log.

Nothing here blocks for longer than the file system does. Bodies are not kept in memory: records go through one small
buffer, a packet that is larger goes to the file as it is.
"""

import os
import struct
import sys
from array import array
from binascii import crc32

from mqqb import confirm, const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Generator
    from io import FileIO
    from typing import Any

    from node.replay import Restored

    Buffer = bytes | bytearray | memoryview

VERSION = const(3)
MAGIC = b"ORDK"
# magic, version, queues, bytes until the first record, segment, first segment needed, end of the one before,
# next MessageID, next arrival, highest TimeStamp, starts, sources, has this start sent, GUID; the queues and the
# sources follow, then a CRC of all before it
HEADER = const("<4sHHIIIIIIIIHH16s")
HEADER_BYTES = const(60)
VERSION_BYTES = const(12)  # so much of it is the same in every version

AHEAD = (
    "an acknowledgement names numbers that this outbox never gave: it was put back from a copy, or erased under a "
    "fixed GUID, or a twin has its GUID (B-426)"
)
jump = os.urandom  # how far MessageIDs go on from those of the start before

MESSAGE = const(0xB1)
STATE = const(0xB2)
QUEUE = const(0xB3)
STARTED = const(0xB4)
COPY = const(0xB5)  # as MESSAGE, of one whose first place is given up
ARRIVAL = const(0xC1)  # the same four of what was received
ARRIVAL_STATE = const(0xC2)
SOURCE = const(0xC3)
ARRIVAL_COPY = const(0xC5)
AFTER_SYNC = const(0x08)  # flag of a record's type: everything before it was durable when it was written
RECORD_BYTES = const(8)  # CRC; type and length
# After those: queue or source, flags, number; then
_COUNTERS_OFFSET = const(16)  # the stream's four counters after this message,
_CONFIRMATION_OFFSET = const(32)  # state, marks, class,
_TIMES_OFFSET = const(36)  # T0, TTRQ, TTBR, then the packet
MESSAGE_PREFIX_BYTES = const(40)
HEAD_BYTES = const(48)  # of a message: all but the packet
QUEUE_PREFIX_BYTES = const(18)  # queue, counters; the format name follows in UTF-8
SOURCE_PREFIX_BYTES = const(34)  # source, counters, GUID of the queue manager; the queue's name follows in UTF-8
_SOURCE_HEAD_BYTES = const(42)  # all of the record but the name; a queue's is smaller
_INDEX_MAX = const(0xFFFF)
STATE_PREFIX = const("<BBHI")  # state, marks, class, T0 or 0: as it was; MessageIDs or numbers of arrivals follow
STATE_PREFIX_BYTES = const(8)
_STATE_IDS_MAX = const(64)  # in one record
START_BYTES = const(8)
_NAME_MAX = const(100)
START = const("<II")  # starts, flags; the board's name follows in UTF-8
STARTED_SENT = const(
    1
)  # flags of a start: something may have been transmitted; an OrderAck has named what was never given
STARTED_AHEAD = const(2)
_STARTS_MAX = const(0xFFFFFF)
_STARTS_SHIFT = const(8)  # where a TimeStamp comes from the number of starts: so many low bits are the sequence's

TRANSACTIONAL = const(0x01)  # flags of a message
RECOVERABLE = const(0x02)

RECEIVED = const(0x52)  # states of an arrival: waiting for the application,
TAKEN = const(0x54)  # taken, and a FinalAck is still owed; then confirm.GONE

_ZEROS_BYTES = const(512)
_PIECE_BYTES = const(128)  # what is read later passes through so much
_OUT_BYTES_MIN = const(520)  # what is written, too: a record of any name and its length and CRC in a header
_QUEUE_NAME_MAX = const(486)
SOURCE_NAME_MAX = const(470)
_LARGE_OUT_BYTES = const(8192)  # who has so much need not save
_EINTR = const(4)
_EIO = const(5)


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
    """What the outbox needs of a file system: one file that is written, others that are read or removed.

    fixed: files do not grow. Each is filled with zeros when it is begun, and then written over, so that neither its
    size nor its place changes any more: on FAT a torn directory entry could lose both. None: where the folder is on
    FAT, as far as `vfs` tells. Everything here may raise OSError. Demanded: what was appended before a `sync` is
    durable after it, the file's name included; names appear and vanish in the order of the calls. Where there are other
    processes, a file `lock` keeps them out of the folder until this one ends.
    """

    files_max = 0  # so many files the folder takes before it grows, which FAT cannot do safely; 0: no such bound

    def __init__(self, folder: str, fixed: "bool | None" = None) -> None:
        self.folder = folder
        self.fixed = _is_fat(folder) if fixed is None else fixed
        self._tail: "FileIO | None" = None
        self._tail_is_new = False
        self._reader: "FileIO | None" = None
        self._reader_name = ""
        self._reader_end = 0
        try:
            os.mkdir(folder)
        except OSError as error:
            try:
                os.stat(folder)  # there already
            except OSError:
                raise error  # noqa: B904 - why not: no room, for example
        core.lock(self._path("lock"))
        if self.fixed and hasattr(os, "statvfs"):
            self.files_max = os.statvfs(folder)[0] // 32 - 2  # names in a cluster, without "." and ".."

    def names(self) -> "list[str]":
        """The files of the folder, in any order."""
        try:
            return os.listdir(self.folder)
        except UnicodeError:  # MicroPython, and FAT's directory is broken
            raise OSError(_EIO)  # noqa: B904

    def size(self, name: str) -> int:
        """Bytes of a file that does not grow just now."""
        self._open_reader(name)
        return self._reader_end

    def begin(self, name: str, size: int) -> None:
        """A new file becomes the one that is written, from its begin. size: its bytes, if files do not grow."""
        self._open(name, "wb")
        if self.fixed:
            zeros = bytes(_ZEROS_BYTES)
            for done in range(0, size, _ZEROS_BYTES):
                self.append(zeros, min(size - done, _ZEROS_BYTES))
            self.sync()
            assert self._tail is not None
            self._tail.seek(0)

    def resume(self, name: str, offset: int) -> None:
        """An existing file becomes the one that is written, from offset on; that is its end if files grow."""
        self._open(name, "r+b" if self.fixed else "ab")
        if self.fixed:
            assert self._tail is not None
            self._tail.seek(offset)

    def append(self, data: "Buffer", size: int) -> None:
        """Write data[:size] behind what was written last. After an OSError any part of it may be there."""
        assert self._tail is not None
        done = _write(self._tail, data, size)
        if done != size:
            view = memoryview(data)
            while done < size:
                done += self._tail.write(view[done:size])

    def sync(self) -> None:
        """Make the file that is written durable as it is, and its name."""
        assert self._tail is not None
        _sync(self._tail)
        if self._tail_is_new:
            _sync_folder(self.folder)
            self._tail_is_new = False

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """Fill buffer from a file at offset (bytes); the number of bytes read, fewer only at its end."""
        if offset + len(buffer) > self._reader_end:
            self._close_reader()  # it may have grown
        reader = self._open_reader(name)
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

    def _open_reader(self, name: str) -> "FileIO":
        reader = self._reader
        if reader is None or self._reader_name != name:
            self._close_reader()
            reader = self._reader = open(self._path(name), "rb", 0)  # noqa: SIM115 - stays open
            self._reader_name = name
            self._reader_end = reader.seek(0, 2)  # to look a name up costs more than this
        return reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._reader_end = 0


def _is_fat(folder: str) -> bool:
    try:
        import vfs  # type: ignore[import-not-found]

        path = folder if folder.startswith("/") else os.getcwd().rstrip("/") + "/" + folder
        best = ""
        fat = False
        for system, place in vfs.mount():
            at = place.rstrip("/")
            if (path == at or path.startswith(at + "/")) and len(at) >= len(best):
                best = at
                fat = isinstance(system, vfs.VfsFat)
        return fat
    except (ImportError, AttributeError, TypeError):
        return False  # CPython; an older MicroPython, which does not say what is mounted; no FAT in it


if hasattr(os, "fsync"):  # CPython
    from node.cpython import append as _write
    from node.cpython import sync as _sync
    from node.cpython import sync_folder as _sync_folder

else:  # MicroPython: flush() is fsync(), or the sync of the board's file system

    def _sync(file: "FileIO") -> None:
        file.flush()

    def _write(file: "Any", data: "Buffer", size: int) -> int:
        return int(file.write(data, size))  # without a view of the part

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
    """Where the log holds a message: its owner's handle. `size`: bytes of the packet. record: its confirmation.

    `segment` is None while the log does not hold it: not yet, not any more, or because writing failed.
    """

    __slots__ = ("message_id", "offset", "record", "segment", "size")
    source: "LoggedSource | None" = None

    def __init__(self, message_id: int, record: "array[int]") -> None:
        self.message_id = message_id
        self.record = record
        self.segment: "Segment | None" = None
        self.offset = 0
        self.size = 0


class Arrival(Stored):
    """A message received, from `source`. `message_id` is the number of the arrival.

    record: as of a message that is sent; the state is RECEIVED, TAKEN or confirm.GONE, the other words are the owner's.
    """

    __slots__ = ("source",)

    def __init__(self, number: int, record: "array[int]", source: "LoggedSource") -> None:
        super().__init__(number, record)
        self.source = source


class Segment:
    """One file of the log: `size` in bytes that count, of which it began with `base`, `space` in bytes of a file that
    does not grow; `handles` of the messages kept in it, which take `live` bytes; `seed` of its CRCs.
    """

    __slots__ = ("base", "handles", "live", "name", "number", "seed", "size", "space")

    def __init__(self, number: int, seed: int, size: int, space: int) -> None:
        self.number = number
        self.name = file_name(number)
        self.seed = seed
        self.size = self.base = size
        self.space = space
        self.handles: "list[Stored]" = []
        self.live = 0

    def bytes(self) -> int:
        """Bytes of the file."""
        return max(self.size, self.space)


class LoggedQueue:
    """A destination queue in the log. `record`: its stream's counters after the last message (mqqb_outgoing)."""

    __slots__ = ("before", "index", "name", "record", "touched")

    def __init__(self, index: int, name: str, record: "array[int]") -> None:
        self.index = index
        self.name = name
        self.record = record
        self.before = array("I", record)  # what is durable of it, if `touched`
        self.touched = False


class LoggedSource:
    """Where messages come from: a stream of the queue manager `guid` (16 bytes) to the own queue `name`.

    `record`: the counters of what was accepted from it (mqqb_incoming), for an IncomingStream to move on. They become
    durable with `arrive` or `advance`, and go back to what the log knows if those or the `sync` fail.
    """

    __slots__ = ("before", "dirty", "guid", "index", "name", "noted", "record", "touched")

    def __init__(self, index: int, guid: bytes, name: str, record: "array[int]") -> None:
        self.index = index
        self.guid = guid
        self.name = name
        self.record = record
        self.noted = array("I", record)  # as of the last `arrive` or `advance`
        self.before = array("I", record)  # what is durable of `noted`, if `touched`
        self.touched = False
        self.dirty = False  # `noted` is not in the log


def _replay(box: "Outbox", handle: "type[Stored]", arrival: "type[Arrival]") -> None:
    """Take in what the files hold. A small board has no memory for the program that does it, once it is done."""
    import node.replay

    node.replay.Replay(box, handle, arrival)
    if len(box._out) < _LARGE_OUT_BYTES:  # noqa: SLF001
        del node.replay
        del sys.modules["node.replay"]


def file_name(number: int) -> str:
    """Of a segment."""
    return "{:08x}.log".format(number)


class Outbox:
    """The log. guid: 16 bytes, the board's; None takes the one in the log, or a `fresh_guid` if there is no log yet.

    segment_size: bytes after which a new file is begun, at most a quarter of capacity. capacity: bytes of all files
    together, beyond which messages are refused. waiting_max: so many may be kept at once, for each needs memory, also
    at the next start; arrivals_max: so many arrivals. handle: makes the handle of a stored message from its MessageID
    and record. starts: how often this board has started, 0 to 0xFFFFFF, where somebody else counts that too. arrival:
    makes the handle of an arrival from its number, record and source. write_bytes: in so much memory records are put
    together until they are written; less than the default is for small boards, which also give up what only the
    start needs.
    hold: so many messages the start takes into memory, those that are sent first; `deferred` has the MessageIDs of the
    others, which `more` takes when these are gone. Nothing is accepted before that. only: the MessageIDs to look for.
    `damage`: what the start could not read as it was written, a sentence each.
    `restored`: the messages that are kept, those of a queue in the order of their numbers, for the owner to take.
    Raises OutboxDamaged, OutboxError (another board's folder, another format), OutboxWriteFailed, OSError, ValueError.
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
        arrivals_max: int = 500,
        arrival: "type[Arrival]" = Arrival,
        write_bytes: int = 8192,
        name: str = "",
        hold: int = 1 << 24,
        only: "list[int] | None" = None,
    ) -> None:
        if not 0 <= starts <= _STARTS_MAX:
            raise ValueError("starts is 0 to 0xFFFFFF")
        if len(name.encode()) > _NAME_MAX:
            raise ValueError("a board's name has at most {} bytes".format(_NAME_MAX))
        self.capacity = capacity
        self.waiting_max = waiting_max
        self.arrivals_max = arrivals_max
        self.guid = guid
        self.next_message_id = 1
        self.next_arrival = 1
        self.queues: "list[LoggedQueue]" = []
        self.sources: "list[LoggedSource]" = []
        self.restored: "list[Restored]" = []
        self.live = 0  # messages that are kept
        self.arrivals = 0  # arrivals that are kept
        self.bytes_written = 0
        self.starts = 0  # of this board, this one included
        self._first_message_id = self._last_message_id = 0  # the first that this start may give; the last before that
        self.name = ""  # of the board, for people
        self.deferred: "list[int]" = []
        self.only = only
        self.hold = hold
        self.damage: "list[str]" = []
        self._mended: "list[tuple[str, int, int]]" = []  # flipped bits: file, place, mask
        self.ahead = False  # an OrderAck has named what was never given here; in the start before, too
        self._sent = False  # in this start something may have been transmitted
        self._start_logged = False
        self._files = files
        if files.fixed and files.files_max:
            segment_size = max(segment_size, capacity // max(files.files_max - 3, 1))
        segment_size = min(segment_size, capacity // 4)  # room comes back by whole files
        self._segment_size = segment_size
        self._time_stamp = 0  # the highest that any sequence has
        self._segments: "list[Segment]" = []
        self._current: "Segment | None" = None
        self._older = 0  # bytes of the other segments
        self._queues_logged = 0  # so many of the queues are in the log
        self._queues_synced = 0  # so many of them durably
        self._sources_logged = 0
        self._sources_synced = 0
        self._clean = True  # all that counts is durable
        self._synced_size = 0  # bytes of the current segment that are
        self._ended = False  # nothing may be appended to the current segment any more
        self._torn = False  # a write did not come to its end
        self._unsynced: "list[Stored]" = []  # messages and arrivals that are not durable, in the order of the log
        self._touched: "list[LoggedQueue | LoggedSource]" = []  # whose counters have changed since the last sync
        self._advanced: "list[LoggedSource]" = []  # those that are dirty
        # Changes of state that are not durable, a record of STATE each: its kind, the words that are the same, the ids.
        self._marks: "list[tuple[int, bytes, array[int]]]" = []
        self._marks_logged = 0  # how many of them stand in the log
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._out = memoryview(bytearray(max(write_bytes, _OUT_BYTES_MIN)))
        self._fill = 0  # bytes in _out: the end of the current segment, which the file does not have yet
        try:
            _replay(self, handle, arrival)
            self.starts = max(self.starts + 1, starts)
            self._sent = False
            self.name = name or self.name
            if self._current is None:
                self._begin()
        except (OutboxError, OSError):
            files.close()
            raise

    # ---- use ------------------------------------------------------------------------------------

    @property
    def last_message_id(self) -> int:
        """MessageID of the last message that was accepted, also before this start; 0: of none."""
        if self.next_message_id == self._first_message_id:
            return self._last_message_id
        return self.next_message_id - 1

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._older + (self._current.bytes() if self._current is not None else 0)

    @property
    def restored_arrivals(self) -> "list[Arrival]":
        """The arrivals that are kept, in their order."""
        kept: "list[Any]" = [handle for segment in self._segments for handle in segment.handles if handle.source]
        return sorted(kept, key=lambda arrival: arrival.message_id - self.next_arrival & 0xFFFFFFFF)

    def handles(self) -> "list[Stored]":
        """Of all messages that are kept."""
        return [handle for segment in self._segments for handle in segment.handles if handle.source is None]

    def time_stamp(self, now: int = 0) -> int:
        """A TimeStamp for a new sequence, above all that this log has seen (B-056, B-079, A-22).

        now: s since 1970, which it is at least; 0: the clock is not set, and it is above all of earlier starts.
        """
        self._time_stamp = max(self._time_stamp + 1, now or self.starts << _STARTS_SHIFT)
        return self._time_stamp

    def more(self, handle: "type[Stored]" = Stored, arrival: "type[Arrival]" = Arrival) -> None:
        """Take into memory what the start has left on the flash, as far as it can be held: it is `restored` then.

        Raises as the start does; OutboxWriteFailed: it is to be tried again.
        """
        if not self.sync():
            raise OutboxWriteFailed(OSError(_EIO))
        again = Outbox(
            self._files,
            self.guid,
            handle=handle,
            arrival=arrival,
            write_bytes=len(self._out),
            hold=self.hold - self.live,
            only=self.deferred,
        )
        segments = {segment.number: segment for segment in self._segments}
        self.restored = again.restored
        for restored in self.restored:
            restored.queue = self.queues[restored.queue.index]
            stored = restored.handle
            assert stored.segment is not None
            self._keep_in(stored, segments[stored.segment.number])
            self.live += 1
        self.deferred = again.deferred
        self._reclaim()

    def queue(self, name: str, now: int = 0) -> LoggedQueue:
        """The queue of that format name. A new one gets a `time_stamp(now)`. Raises ValueError for a name too long."""
        for queue in self.queues:
            if queue.name.lower() == name.lower():
                return queue
        if len(name.encode()) > _QUEUE_NAME_MAX:
            raise ValueError("a format name has at most {} bytes here".format(_QUEUE_NAME_MAX))
        if len(self.queues) > _INDEX_MAX:
            raise ValueError("too many queues")
        queue = LoggedQueue(len(self.queues), name, array("I", (1, self.time_stamp(now), 1, 0)))
        self.queues.append(queue)
        return queue

    def source(self, guid: bytes, name: str) -> LoggedSource:
        """The source of messages from a queue manager (16 bytes) to the own queue of that name; an unknown one is made.

        Nothing is written before something has arrived from it. Raises ValueError: a name too long, too many sources.
        """
        for source in self.sources:
            if source.guid == guid and source.name.lower() == name.lower():
                return source
        if len(name.encode()) > SOURCE_NAME_MAX:
            raise ValueError("a queue's name has at most {} bytes here".format(SOURCE_NAME_MAX))
        if len(self.sources) > _INDEX_MAX:
            raise ValueError("too many sources")
        source = LoggedSource(len(self.sources), bytes(guid), name, array("I", (0, 0, 0, 0)))
        self.sources.append(source)
        return source

    def replace(self, source: LoggedSource, guid: bytes, name: str) -> None:
        """Forget a source of which no arrival is kept: its place in the log becomes that of another one, from 0 on.

        It is written before anything that arrives from there. A power cut before leaves the one or the other.
        """
        nothing = array("I", (0, 0, 0, 0))
        self._log_later(source)
        source.guid = guid
        source.name = name
        source.record[:] = source.noted[:] = source.before[:] = nothing

    def append(self, handle: Stored, queue: LoggedQueue, flags: int, record: "array[int]", packet: "Buffer") -> None:
        """Log a message as numbered; record: the stream's counters after it. It is accepted only by the next `sync`.

        Its MessageID is `next_message_id`, which moves on. Raises OutboxFull, OutboxWriteFailed: it is not in the log,
        and the caller takes its number back. Those before it are not concerned, unless their `segment` is None now.
        """
        assert handle.message_id == self.next_message_id
        if self.live >= self.waiting_max or self.deferred:
            kept = self.live + len(self.deferred)
            raise OutboxFull("not accepted, {} messages are kept: send again when some of them are gone".format(kept))
        self._prepare(len(packet), queue, self._queues_logged)
        self._log_queues(queue.index + 1)
        next_message_id = following(handle.message_id)  # now, for want of memory ends it
        self._log_message(MESSAGE, handle, queue, flags, record, queue.record, packet)
        self.next_message_id = next_message_id

    def arrive(self, handle: Stored, source: LoggedSource, packet: "Buffer") -> None:
        """Log a message that was received, and the counters of its source, which have moved on to it.

        It is accepted, and an OrderAck may say so, only by the next `sync`. Its number is `next_arrival`, which moves
        on. Raises OutboxFull, OutboxWriteFailed: it is not in the log, and the source's counters are as before; those
        before it are not concerned, unless their `segment` is None now. Then it must come again.
        """
        assert handle.message_id == self.next_arrival
        assert handle.source is source
        try:
            if self.arrivals >= self.arrivals_max:
                raise OutboxFull("not accepted, {} messages received are kept: take some of them".format(self.arrivals))
            self._prepare(len(packet), source, self._sources_logged)
            self._log_sources(source.index + 1)
            next_arrival = following(handle.message_id)
            self._log_message(ARRIVAL, handle, source, 0, source.record, source.noted, packet)
        except Exception:
            core.copy_words(source.record, source.noted)
            raise
        self.next_arrival = next_arrival

    def advance(self, source: LoggedSource) -> None:
        """The counters of a source have moved on, and no message is kept: it was rejected.

        Lazy as `change`, and durable once a `sync` says True: an OrderAck has to wait for that. After a `sync`
        that failed or said False the counters may be as before, and the message has to come again.
        """
        self._log_later(source)
        self._touch(source, source.noted)
        core.copy_words(source.noted, source.record)

    def change(self, handles: "list[Stored]", with_time: bool = False) -> None:
        """The records of these messages or arrivals have changed; those that are GONE need not be kept any more.

        with_time: their T0 too. Lazy: it is written with the next `sync`, or before the next message. Never fails: if
        it is lost, the messages come back as they were, and it happens to them again.
        """
        marks = self._marks
        last = marks[-1] if len(marks) > self._marks_logged else None
        gone = False
        for handle in handles:
            record = handle.record
            state = record[confirm.STATE]
            time = record[confirm.SENT_TIME] if with_time else 0
            kind = STATE if handle.source is None else ARRIVAL_STATE
            prefix = struct.pack(STATE_PREFIX, state, record[confirm.MARKS], record[confirm.CLASS], time)
            if last is None or last[0] != kind or last[1] != prefix or len(last[2]) >= _STATE_IDS_MAX:
                last = kind, prefix, array("I")
                marks.append(last)
            last[2].append(handle.message_id)
            if state == confirm.GONE:
                gone = True
                self._drop(handle)
                self._count(handle, -1)
        if gone:
            self._reclaim()

    def will_send(self) -> None:
        """Note durably that messages may be transmitted from now on. Raises OutboxWriteFailed: they must not be."""
        if self._sent:
            return
        self._sent = True
        self._start_logged = False
        try:
            self._log_start()
            self._sync_tail()
        except OutboxWriteFailed:
            self._sent = False
            raise

    def is_ahead(self, time_stamp: int) -> None:
        """An OrderAck has named what was never given here, with this TimeStamp: every new one is above it.

        That it was so is in the log with the next message.
        """
        self._time_stamp = max(self._time_stamp, time_stamp)
        self.ahead = True
        self._start_logged = False

    def sync(self) -> bool:
        """Make everything durable: this is what accepts a message. False: all but the changes of state, not yet.

        Raises OutboxWriteFailed: messages whose `segment` is None now are not accepted, and `next_message_id` or
        `next_arrival` is the first one's again. Until another message is accepted instead, a power cut may still bring
        some of them back; `next_message_id` after the restart tells.
        """
        waiting = len(self._unsynced) > 0
        try:
            self._log_marks()
            self._sync_tail()
        except OutboxWriteFailed:
            if waiting:
                raise
            return False
        return True

    def load(self, handle: Stored) -> bytearray:
        """The packet of a message that is kept, as it was appended. Raises as `load_into`."""
        packet = bytearray(handle.size)
        self.load_into(handle, memoryview(packet))
        return packet

    def load_into(self, handle: Stored, part: memoryview, offset: int = 0) -> None:
        """Fill part with the packet of a message that is kept, as it was appended, from its byte offset on.

        The whole packet is checked against its CRC with the part that begins it, the parts that follow are not.
        Raises OutboxDamaged, OSError; OutboxWriteFailed for one that is not durable.
        """
        segment = handle.segment
        assert segment is not None
        if segment is self._current and handle.offset >= self._synced_size:
            if self._torn:
                self._give_up()
            self._flush()
        is_right = True
        if not offset:
            self._read(segment.name, handle.offset, self._piece[:HEAD_BYTES])
            crc, word = struct.unpack_from("<II", self._piece, 0)
            value = crc32(self._piece[4:HEAD_BYTES], segment.seed)
            if len(part) < handle.size:
                for chunk in self._chunks(handle):
                    value = crc32(chunk, value)
                is_right = value == crc
        count = self._read(segment.name, handle.offset + HEAD_BYTES + offset, part)
        if count == handle.size:
            is_right = crc32(part, value) == crc
        if not is_right or count < len(part) or (not offset and word >> 8 != MESSAGE_PREFIX_BYTES + handle.size):
            raise OutboxDamaged(segment.name, handle.offset, "a message cannot be read back")

    def close(self) -> None:
        """Make everything durable if possible, and let go of the files."""
        try:
            self.sync()
        except OutboxWriteFailed:
            pass
        self._files.close()

    def _read(self, name: str, offset: int, buffer: memoryview) -> int:
        """As Files.read_into, with the bits that the start found flipped as they were."""
        count = self._files.read_into(name, offset, buffer)
        for file, place, mask in self._mended:
            if file == name and offset <= place < offset + count:
                buffer[place - offset] ^= mask
        return count

    # ---- writing --------------------------------------------------------------------------------

    def _prepare(self, size: int, thing: "LoggedQueue | LoggedSource", logged: int) -> None:
        """Log what must stand before every newer message, and see that a packet of size bytes has room.

        thing: its queue or source, which needs room too if it is not one of the first `logged`.
        """
        if self._torn:
            self._give_up()
        self._log_marks()
        self._log_start()
        if thing.index >= logged:
            size += _SOURCE_HEAD_BYTES + len(thing.name.encode())
        self._make_room(HEAD_BYTES + size)

    def _make_room(self, need: int) -> None:
        """See that the current segment takes another message of need bytes; drop what is gone before refusing."""
        segment = self._current
        assert segment is not None
        size = segment.size + need
        margin = self._segment_size << self._files.fixed  # with so much of the capacity free, no need to look closer
        if not self._ended and size <= self._segment_size and self.size + need + margin <= self.capacity:
            return
        self._compact(need, margin)
        full = self.size + self._growth(need) > self.capacity
        if full:
            self._reclaim()  # a file that could not be removed before may go now
            full = self.size + self._growth(need) > self.capacity
        if full and self.live + self.arrivals:
            raise OutboxFull(
                "not accepted, {} of {} bytes are in use: wait until messages are gone, then send again".format(
                    self.size, self.capacity
                )
            )
        segment = self._current
        assert segment is not None
        overflows = segment.size + need > self._segment_size or full
        if (self._ended or (overflows and segment.size > segment.base)) and segment.base + need <= self.capacity:
            self._begin(need)
        if self.size + self._growth(need) > self.capacity:
            raise OutboxFull("not accepted, the message is too large for an outbox of {} bytes".format(self.capacity))

    def _growth(self, need: int) -> int:
        """Bytes by which the files grow if so many more are logged."""
        segment = self._current
        assert segment is not None
        if not self._files.fixed:
            return need
        if not self._ended and segment.size + need <= segment.space:
            return 0
        return max(self._segment_size, segment.base + need)

    def _compact(self, need: int, margin: int) -> None:
        """While there is hardly room for another segment, and a quarter of all is waste: give up the oldest segments.

        So what is kept for long costs at most three bytes copied for each that it would hold back. While the copy of a
        large message stands beside it, the capacity may be exceeded by that much.
        """
        for _ in range(len(self._segments) - 1):
            size = self.size
            if (
                self.deferred
                or len(self._segments) < 2
                or size + self._growth(need) + margin <= self.capacity
                or 4 * sum([segment.live for segment in self._segments]) > 3 * size
            ):
                return
            places = []
            for handle in self._segments[0].handles:
                segment = self._current
                assert segment is not None
                if self._ended or segment.size + HEAD_BYTES + handle.size > self._segment_size:
                    self._begin(HEAD_BYTES + handle.size)
                places.append((handle, self._log_copy(handle), self._current))
            self._sync_tail()
            for handle, offset, place in places:
                assert place is not None
                self._keep(handle, place, offset)
            self._reclaim()

    def _log_message(
        self,
        kind: int,
        handle: Stored,
        thing: "LoggedQueue | LoggedSource",
        flags: int,
        counters: "array[int]",
        noted: "array[int]",
        packet: "Buffer",
    ) -> None:
        """Log a message and keep it, note its counters. What interrupts that, as want of memory, leaves it torn: all
        since the last sync is given up then, and the handle's segment is None at once.
        """
        size = len(packet)
        start = self._room(HEAD_BYTES, size)
        segment = self._current
        assert segment is not None
        offset = segment.size
        self._torn = True
        out = self._out
        struct.pack_into("<HHI", out, start + RECORD_BYTES, thing.index, flags, handle.message_id)
        core.put_words(out, start + _COUNTERS_OFFSET, counters, 0, 4)
        self._put_confirmation(handle.record, start)
        end = start + HEAD_BYTES
        if end + size <= len(out):
            core.copy(out, end, packet, 0, size)
            self._finish(kind, MESSAGE_PREFIX_BYTES + size)
        else:
            struct.pack_into("<I", out, start + 4, self._word(kind, MESSAGE_PREFIX_BYTES + size))
            crc = crc32(packet, crc32(self._out[start + 4 : end], segment.seed))
            struct.pack_into("<I", out, start, crc)
            self._fill = end
            self._flush()
            try:
                self._files.append(packet, size)
            except OSError as error:
                self._torn = False
                self._ended = True  # those before it are whole
                raise OutboxWriteFailed(error)  # noqa: B904 - MicroPython has no `from`
            self._grow(HEAD_BYTES + size)
        handle.size = size
        self._unsynced.append(handle)
        self._touch(thing, noted)
        self._keep(handle, segment, offset)
        try:
            core.copy_words(noted, counters)
        except MemoryError:
            self._drop(handle)
            raise
        self._count(handle, 1)
        self._torn = False

    def _put_confirmation(self, record: "array[int]", start: int) -> None:
        """Into the message record that begins there in the write buffer."""
        struct.pack_into(
            "<BBH",
            self._out,
            start + _CONFIRMATION_OFFSET,
            record[confirm.STATE],
            record[confirm.MARKS],
            record[confirm.CLASS],
        )
        core.put_words(self._out, start + _TIMES_OFFSET, record, confirm.SENT_TIME, confirm.TTBR + 1)

    def _log_copy(self, handle: Stored) -> int:
        """Log a message again, from its place in the log: its offset in the current segment."""
        start = self._room(HEAD_BYTES, handle.size)
        segment = handle.segment
        current = self._current
        assert segment is not None
        assert current is not None
        offset = current.size
        end = start + HEAD_BYTES
        self._torn = True  # until all of it is in the buffer or written: the file may fail to be read meanwhile
        self._read(segment.name, handle.offset, self._piece[:HEAD_BYTES])
        crc, word = struct.unpack_from("<II", self._piece, 0)
        value = crc32(self._piece[4:HEAD_BYTES], segment.seed)
        self._out[start:end] = self._piece[:HEAD_BYTES]
        kind = COPY if handle.source is None else ARRIVAL_COPY
        struct.pack_into("<I", self._out, start + 4, self._word(kind, word >> 8))
        self._put_confirmation(handle.record, start)
        new = crc32(self._out[start + 4 : end], current.seed)
        for chunk in self._chunks(handle):
            value = crc32(chunk, value)
            new = crc32(chunk, new)
        if value != crc or word >> 8 != MESSAGE_PREFIX_BYTES + handle.size:
            raise OutboxDamaged(segment.name, handle.offset, "a message cannot be read back")
        struct.pack_into("<I", self._out, start, new)
        self._fill = end
        for chunk in self._chunks(handle):
            if self._fill + len(chunk) > len(self._out):
                self._flush()
            self._out[self._fill : self._fill + len(chunk)] = chunk
            self._fill += len(chunk)
        self._grow(HEAD_BYTES + handle.size)
        self._torn = False
        return offset

    def _chunks(self, handle: Stored) -> "Generator[memoryview]":
        """The packet of a message, through the buffer."""
        segment = handle.segment
        assert segment is not None
        offset = handle.offset + HEAD_BYTES
        left = handle.size
        while left:
            count = self._read(segment.name, offset, self._piece[: min(_PIECE_BYTES, left)])
            if not count:
                raise OutboxDamaged(segment.name, handle.offset, "a message cannot be read back")
            yield self._piece[:count]
            offset += count
            left -= count

    def _log_marks(self) -> None:
        """Log the changes of state and the counters that are not in the log."""
        if self._marks_logged == len(self._marks) and not self._advanced:
            return
        if self._torn:
            self._give_up()
        while self._marks_logged < len(self._marks):
            kind, prefix, ids = self._marks[self._marks_logged]
            size = STATE_PREFIX_BYTES + 4 * len(ids)
            place = self._room(RECORD_BYTES + size, 0) + RECORD_BYTES
            core.copy(self._out, place, prefix, 0, STATE_PREFIX_BYTES)
            core.put_words(self._out, place + STATE_PREFIX_BYTES, ids, 0, len(ids))
            self._finish(kind, size)
            self._marks_logged += 1
        while self._advanced:
            source = self._advanced[-1]
            self._log_sources(source.index)
            if source.dirty:
                self._log_source(source)
                if source.index == self._sources_logged:
                    self._sources_logged += 1
            self._advanced.pop()

    def _log_queues(self, end: int) -> None:
        """Log the queues before that index of which the log does not know."""
        while self._queues_logged < end:
            queue = self.queues[self._queues_logged]
            start = self._room(_SOURCE_HEAD_BYTES + len(queue.name.encode()), 0)
            self._finish(QUEUE, self._pack(start + RECORD_BYTES, queue, queue.record, b""))
            self._queues_logged += 1

    def _log_sources(self, end: int) -> None:
        """Log the sources before that index of which the log does not know."""
        while self._sources_logged < end:
            self._log_source(self.sources[self._sources_logged])
            self._sources_logged += 1

    def _log_source(self, source: LoggedSource) -> None:
        start = self._room(_SOURCE_HEAD_BYTES + len(source.name.encode()), 0)
        self._touch(source, source.noted)  # not before: to begin a segment forgets it
        self._finish(SOURCE, self._pack(start + RECORD_BYTES, source, source.noted, source.guid))
        source.dirty = False

    def _log_later(self, source: LoggedSource) -> None:
        if not source.dirty:
            self._advanced.append(source)
            source.dirty = True

    def _log_start(self) -> None:
        if not self._start_logged:
            name = self.name.encode()
            size = START_BYTES + len(name)
            place = self._room(RECORD_BYTES + size, 0) + RECORD_BYTES
            struct.pack_into(START, self._out, place, self.starts, self._flags())
            core.copy(self._out, place + START_BYTES, name, 0, len(name))
            self._finish(STARTED, size)
            self._start_logged = True

    def _flags(self) -> int:
        return STARTED_SENT * self._sent | STARTED_AHEAD * self.ahead

    def _pack(self, place: int, thing: "LoggedQueue | LoggedSource", counters: "array[int]", guid: bytes) -> int:
        """Put a QUEUE or SOURCE payload into the write buffer; its size."""
        out = self._out
        struct.pack_into("<H", out, place, thing.index)
        core.put_words(out, place + 2, counters, 0, 4)
        rest = guid + thing.name.encode()
        core.copy(out, place + QUEUE_PREFIX_BYTES, rest, 0, len(rest))
        return QUEUE_PREFIX_BYTES + len(rest)

    def _touch(self, thing: "LoggedQueue | LoggedSource", counters: "array[int]") -> None:
        """These counters are about to change: remember what is durable of them."""
        if not thing.touched:
            core.copy_words(thing.before, counters)
            self._touched.append(thing)
            thing.touched = True

    def _keep(self, handle: Stored, segment: Segment, offset: int) -> None:
        """It stands there, no longer where it stood."""
        if handle.segment is not None:
            self._drop(handle)
        self._keep_in(handle, segment)
        handle.offset = offset

    def _keep_in(self, handle: Stored, segment: Segment) -> None:
        segment.handles.append(handle)
        segment.live += HEAD_BYTES + handle.size
        handle.segment = segment

    def _drop(self, handle: Stored) -> None:
        segment = handle.segment
        assert segment is not None
        handles = segment.handles
        if handles[0] is handle:
            handles.pop(0)
        else:
            handles.remove(handle)
        handle.segment = None
        segment.live -= HEAD_BYTES + handle.size

    def _count(self, handle: Stored, change: int) -> None:
        if handle.source is None:
            self.live += change
        else:
            self.arrivals += change

    def _room(self, head: int, body: int) -> int:
        """Where in the write buffer a record begins, whose first head bytes must fit; all of it if it ever does.

        Begins a segment for it where it must not go to the end of this one.
        """
        assert not self._torn
        need = head + body
        segment = self._current
        assert segment is not None
        if self._ended or 0 < segment.space < segment.size + need:
            self._begin(need)
        most = len(self._out)
        if self._fill + (need if need <= most else head) > most:
            self._flush()
        return self._fill

    def _word(self, kind: int, size: int) -> int:
        """The second word of the next record."""
        if self._clean:
            kind |= AFTER_SYNC
        return kind | size << 8

    def _finish(self, kind: int, size: int) -> None:
        """Complete the record whose payload of size bytes is in the write buffer."""
        segment = self._current
        assert segment is not None
        start = self._fill
        end = start + RECORD_BYTES + size
        struct.pack_into("<I", self._out, start + 4, self._word(kind, size))
        core.put_crc(self._out, start, start + 4, end, segment.seed)
        self._grow(RECORD_BYTES + size)
        self._fill = end

    def _grow(self, size: int) -> None:
        segment = self._current
        assert segment is not None
        self.bytes_written += size
        segment.size += size
        self._clean = False

    def _flush(self) -> None:
        """Give the file what is in the write buffer."""
        if not self._fill:
            return
        torn = self._torn
        self._torn = True  # until all of it is written: whatever interrupts this, nothing is appended to half a record
        try:
            self._files.append(self._out, self._fill)
        except OSError as error:
            self._abandon()
            raise OutboxWriteFailed(error)  # noqa: B904 - MicroPython has no `from`
        self._torn = torn
        self._fill = 0

    def _sync_tail(self) -> None:
        segment = self._current
        if self._torn:
            self._give_up()
        if self._clean or segment is None:
            return
        self._flush()
        try:
            self._files.sync()
        except OSError as error:
            self._abandon()
            raise OutboxWriteFailed(error)  # noqa: B904
        self._clean = True
        self._synced_size = segment.size
        self._queues_synced = self._queues_logged
        self._sources_synced = self._sources_logged
        self._unsynced.clear()
        for thing in self._touched:
            thing.touched = False
        self._touched.clear()
        if self._marks_logged == len(self._marks):
            self._marks.clear()
        else:
            core.drop(self._marks, self._marks_logged)
        self._marks_logged = 0

    def _give_up(self) -> None:
        """A write was interrupted: nobody knows how much of it the file has."""
        self._abandon()
        raise OutboxWriteFailed(OSError(_EINTR))

    def _abandon(self) -> None:
        """Nothing since the last sync can be relied upon: forget it; the next segment will cut it off."""
        segment = self._current
        assert segment is not None
        for thing in self._touched:
            thing.touched = False
            if isinstance(thing, LoggedQueue):
                core.copy_words(thing.record, thing.before)
            else:
                core.copy_words(thing.noted, thing.before)
                core.copy_words(thing.record, thing.before)
                self._log_later(thing)  # part of it may have been logged, but not durably
        self._touched = []
        for handle in reversed(self._unsynced):
            if handle.segment is not None:
                self._drop(handle)
                self._count(handle, -1)
            if handle.source is None:
                self.next_message_id = handle.message_id
            else:
                self.next_arrival = handle.message_id
        self._unsynced = []
        self._marks_logged = 0
        self._queues_logged = self._queues_synced
        self._sources_logged = self._sources_synced
        self._fill = 0
        segment.size = self._synced_size
        self._clean = True
        self._torn = False
        self._ended = True

    def _begin(self, need: int = 0) -> None:
        """Begin the next segment, with all counters in its header; then drop the segments that nobody needs.

        need: bytes for which it will have room at least.
        """
        self._sync_tail()
        current = self._current
        number = current.number + 1 if current is not None else 1
        size = self._header_size()
        out = self._out
        struct.pack_into(
            HEADER,
            out,
            0,
            MAGIC,
            VERSION,
            self._queues_logged,
            size,
            number,
            self._segments[0].number if self._segments else number,
            current.size if current is not None else 0,
            following(self.last_message_id),
            self.next_arrival,
            self._time_stamp,
            self.starts,
            self._sources_logged,
            self._flags(),
            self.guid,
        )
        self._ended = True  # from here on the files' tail is not the current segment
        try:
            space = max(self._segment_size, size + need) if self._files.fixed else 0
            self._files.begin(file_name(number), space)
            fill = HEADER_BYTES
            seed = 0
            for i in range(self._queues_logged + self._sources_logged):
                if fill + _OUT_BYTES_MIN > len(out):
                    seed = crc32(self._out[:fill], seed)
                    self._files.append(out, fill)
                    fill = 0
                if i < self._queues_logged:
                    queue = self.queues[i]
                    count = self._pack(fill + 2, queue, queue.record, b"")
                else:
                    source = self.sources[i - self._queues_logged]
                    count = self._pack(fill + 2, source, source.noted, source.guid)
                struct.pack_into("<H", out, fill, count)
                fill += 2 + count
            seed = crc32(self._out[:fill], seed)
            struct.pack_into("<I", out, fill, seed)
            self._files.append(out, fill + 4)
            self._files.sync()
        except OSError as error:
            raise OutboxWriteFailed(error)  # noqa: B904
        self._adopt(Segment(number, seed, size, space))
        self._start_logged = not self.name
        self.bytes_written += size
        self._reclaim()

    def _header_size(self) -> int:
        """Bytes of the header of a segment, if it were begun now."""
        size = HEADER_BYTES + 4
        for queue in self.queues[: self._queues_logged]:
            size += 2 + QUEUE_PREFIX_BYTES + len(queue.name.encode())
        for source in self.sources[: self._sources_logged]:
            size += 2 + SOURCE_PREFIX_BYTES + len(source.name.encode())
        return size

    def _adopt(self, segment: Segment) -> None:
        self._segments.append(segment)
        if self._current is not None:
            self._older += self._current.bytes()
        self._current = segment
        self._synced_size = segment.size
        self._ended = False

    def _reclaim(self) -> None:
        """Remove segments that hold nothing any more, oldest first: what became of it stands in them and later ones."""
        while len(self._segments) > 1 and not self._segments[0].handles and not self.deferred:
            if not self._remove(self._segments[0].number):
                return
            self._older -= self._segments[0].bytes()
            del self._segments[0]

    def _remove(self, number: int) -> bool:
        try:
            self._files.remove(file_name(number))
        except OSError:
            return False  # it does no harm, and is tried again: with the next segment, or at the next start
        return True


def following(number: int) -> int:
    """The MessageID, or number of an arrival, after this one; 0 means "none" (A-46)."""
    return number + 1 & 0xFFFFFFFF or 1
