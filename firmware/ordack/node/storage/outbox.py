"""The outbox: kept messages, their outcomes, and the counters that number them, in a log (log.py).

A message taken by `append` and made durable by `sync` survives any power cut, with its numbers and its confirmation
record, until `change` releases it (C-09, C-33). The same log holds arrivals with the counters of their streams (B-098).
A change of state before a message in the log is durable if the message is. No number is given twice, even if a part of
the log is unreadable. The oldest file goes first: near the capacity, long-kept messages are copied to the log's end.
"""

import struct
import sys
from array import array

from mqqb import confirm, const, core
from ordack.node.storage import flash_only, log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ordack.node.storage.replay import Recovered
    from ordack.node.storage.sources import Arrival, LoggedSource

    Buffer = bytes | bytearray | memoryview

_STARTS_SHIFT = const(8)  # low bits of a start's TimeStamps, left to sequences
_QUEUE_NAME_MAX = const(486)
SOURCE_NAME_MAX = const(470)
_AT_ONCE = const(16)  # messages on flash only that are in memory at once while they are copied
_CLOSED_MAX = const(1024)  # bytes that a close leaves in a growing file without kept messages
_IDS_MAX = const(64)  # per record
_HEAD_BYTES = const(42)  # of a source's record without the name; a queue's is smaller


class Marks:
    """Changes of state that are not durable, one STATE record each. A lost change happens again."""

    def __init__(self, opened: log.Log) -> None:
        self._log = opened
        # Of each record: kind, constant words, ids.
        self._records: "list[tuple[int, bytes, array[int]]]" = []
        self._logged = 0  # records in the log

    def add(self, handle: log.Stored, with_time: bool) -> None:
        """Note the changed record of a message or arrival. with_time: its T0, too."""
        record = handle.record
        time = record[confirm.SENT_TIME] if with_time else 0
        thing: "Any" = handle.source or handle.queue
        kind = log.STATE if handle.source is None else log.ARRIVAL_STATE
        prefix = struct.pack(
            log.STATE_PREFIX, record[confirm.STATE], record[confirm.MARKS], record[confirm.CLASS], time, thing.index
        )
        records = self._records
        last = records[-1] if len(records) > self._logged else None
        if last is None or last[0] != kind or last[1] != prefix or len(last[2]) >= _IDS_MAX:
            last = kind, prefix, array("I")
            records.append(last)
        last[2].append(handle.message_id)

    def write(self) -> None:
        """Log the records that are not in the log. Raises OutboxWriteFailed."""
        opened = self._log
        if self._logged == len(self._records):
            return
        if opened.is_torn:
            opened.give_up()
        while self._logged < len(self._records):
            kind, prefix, ids = self._records[self._logged]
            size = log.STATE_PREFIX_BYTES + 4 * len(ids)
            place = opened.room(log.RECORD_BYTES + size) + log.RECORD_BYTES
            if self._logged == len(self._records):
                return  # `room` began a segment, which starts with them
            core.copy(opened.out, place, prefix, 0, log.STATE_PREFIX_BYTES)
            core.put_words(opened.out, place + log.STATE_PREFIX_BYTES, ids, 0, len(ids))
            opened.finish(kind, size)
            self._logged += 1

    def synced(self) -> None:
        """Drop the records that are durable now."""
        if self._logged == len(self._records):
            self._records.clear()
        else:
            core.drop(self._records, self._logged)
        self._logged = 0

    def abandoned(self) -> None:
        """Log all records again after a failed sync."""
        self._logged = 0


class Register:
    """All `things` of a kind, log.QUEUE or log.SOURCE, by index. The initial ones are in the log."""

    def __init__(self, opened: log.Log, kind: int, things: "Sequence[log.LoggedQueue]") -> None:
        self._log = opened
        self._kind = kind
        self._things = things
        self._logged = self._synced = len(things)  # number of things in the log; number of durable ones
        self._touched: "list[log.LoggedQueue]" = []  # with counters changed since the last sync

    def known(self) -> "Sequence[log.LoggedQueue]":
        """Return the things in the log."""
        return self._things[: self._logged]

    def need(self, thing: log.LoggedQueue) -> int:
        """Return the bytes that the log needs before the first record of this thing."""
        if thing.index < self._logged and not thing.is_replaced:
            return 0
        return _HEAD_BYTES + len(thing.name.encode())

    def write(self, thing: log.LoggedQueue) -> None:
        """Log this thing and those before it, unless the log has them. Raises OutboxWriteFailed."""
        while self._logged <= thing.index:
            self.put(self._things[self._logged])
            self._logged += 1
        if thing.is_replaced:
            self.put(thing)
            source: "Any" = thing
            source.is_replaced = False

    def put(self, thing: log.LoggedQueue) -> None:
        """Log the current state of a known thing."""
        place = self._log.room(_HEAD_BYTES + len(thing.name.encode())) + log.RECORD_BYTES
        self._log.finish(self._kind, self._log.put_counters(place, thing))

    def touch(self, thing: log.LoggedQueue) -> None:
        """Remember the durable counters before a change."""
        if not thing.touched:
            core.copy_words(thing.before, thing.noted)
            self._touched.append(thing)
            thing.touched = True

    def synced(self) -> None:
        """Note that all logged things are durable."""
        self._synced = self._logged
        for thing in self._touched:
            thing.touched = False
        self._touched.clear()

    def abandoned(self) -> None:
        """Restore the durable counters after a failed sync."""
        for thing in self._touched:
            thing.restore()
        self._touched = []
        self._logged = self._synced


def _recover(
    opened: log.Log, guid: "bytes | None", hold: int, handle: "type[log.Stored]", arrival: "type[Arrival] | None"
) -> "Recovered":
    """Call replay.recover. A small board unloads its code afterwards to free memory."""
    import ordack.node.storage.replay

    storage = ordack.node.storage
    found = storage.replay.recover(opened, guid, hold, handle, arrival)
    if len(opened.out) < log.LARGE_OUT_BYTES:
        del storage.replay, storage.records
        del sys.modules["ordack.node.storage.replay"], sys.modules["ordack.node.storage.records"]
    return found


class Outbox:
    """Messages in a `log`.

    guid: 16 bytes; None: the log's, or a `fresh_guid`. segment_size: bytes of a file, at most a quarter of capacity.
    capacity: bytes of all files; a message beyond it is refused. hold: messages of each queue that a start reads into
    memory; the rest is deferred (log.LoggedQueue). write_bytes: of the write buffer; below the default, code and data
    of the start are freed.
    damage: a sentence for each unreadable record. restored: messages in memory, in order within each queue. Raises
    OutboxDamaged, OutboxError (another board's folder, another format), OutboxWriteFailed, OSError, ValueError.
    """

    def __init__(
        self,
        files: log.Files,
        guid: "bytes | None" = None,
        segment_size: int = 65536,
        capacity: int = 1048576,
        hold: int = 500,
        handle: "type[log.Stored] | None" = None,
        arrivals_max: int = 500,
        arrival: "type[Arrival] | None" = None,
        write_bytes: int = 8192,
        name: str = "",
    ) -> None:
        if files.fixed and files.files_max:  # a folder that must not grow has few files
            segment_size = max(segment_size, capacity // max(files.files_max - 3, 1))
        segment_size = min(segment_size, capacity // 4)  # room is freed by whole files
        segment_size = max(segment_size - segment_size % files.unit, files.unit)
        handle = handle or log.Stored
        opened = self.log = log.Log(files, segment_size, capacity, write_bytes, self)
        self.arrivals_max = arrivals_max
        self._sent = False  # a message may have been transmitted since the start
        self.to_note: "list[log.LoggedQueue] | None" = []  # GUIDs to log before sending; None: all durable
        self._start_logged = False
        self._unsynced: "list[log.Stored]" = []  # messages and arrivals that are not durable, in log order
        self._deferred: "list[log.Stored]" = []  # those of them not kept in memory
        self.copied: "list[tuple[log.Stored, int, log.Segment]]" = []  # copies that are not durable, with their places
        self._marks = Marks(opened)
        try:
            found = _recover(opened, guid, hold, handle, arrival)
            opened.guid = found.guid
            self.next_message_id = self._first_message_id = found.next_message_id  # the first of this start
            self._last_message_id = found.last_message_id  # the last before this start
            self.next_arrival = found.next_arrival
            self.queues = found.queues
            self.flash_only = flash_only.FlashOnly(opened, found.queues, handle)
            self.sources = found.sources
            self.restored = found.restored
            self.arrivals = len(found.arrivals)  # kept arrivals
            self.damage = found.damage
            self.starts = found.starts + 1  # starts of this board, this one included
            self.name = name or found.name  # of the board, for people
            self.ahead = found.ahead  # an OrderAck named a number never given here, in this start or the last
            self._time_stamp = found.time_stamp  # highest of all sequences
            self._queues = Register(opened, log.QUEUE, self.queues)
            self._sources = Register(opened, log.SOURCE, self.sources)
            self._was_sent = found.was_sent  # transmitted in an earlier start
            opened.resume(found.segments, found.is_torn, found.useless)
            if not found.segments:
                self.begin()
        except (log.OutboxError, OSError):
            files.close()
            raise

    # ---- use ------------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Kept messages, in memory or on flash only."""
        return sum([len(one.handles) + one.flash_only for one in self.log.segments]) - self.arrivals

    @property
    def last_message_id(self) -> int:
        """MessageID of the last accepted message, earlier starts included; 0: none."""
        return self.next_message_id - 1 if self.next_message_id != self._first_message_id else self._last_message_id

    @property
    def restored_arrivals(self) -> "list[Arrival]":
        """The kept arrivals, in order."""
        kept: "list[Any]" = [handle for segment in self.log.segments for handle in segment.handles if handle.source]
        return sorted(kept, key=lambda arrival: arrival.message_id - self.next_arrival & 0xFFFFFFFF)

    def handles(self) -> "list[log.Stored]":
        """Return the handles of all kept messages in memory."""
        return [handle for segment in self.log.segments for handle in segment.handles if handle.source is None]

    def time_stamp(self, now: int = 0) -> int:
        """Return a TimeStamp for a new sequence, above all that this log has seen (B-056, B-079, A-22).

        now: s since 1970, a lower bound; 0: the clock is not set, and the number of starts is the lower bound.
        """
        self._time_stamp = max(self._time_stamp + 1, now or self.starts << _STARTS_SHIFT)
        return self._time_stamp

    def may_have_been_sent(self, message_id: int) -> bool:
        """May a deferred message have been sent? After an earlier start has sent, nobody knows how far it got."""
        return self._was_sent and log.is_after(self._first_message_id, message_id)

    def queue(self, name: str, now: int = 0) -> log.LoggedQueue:
        """Return a format name's queue. A new one gets `time_stamp(now)`. Raises ValueError if the name is too long."""
        for queue in self.queues:
            if queue.name.lower() == name.lower():
                return queue
        if len(name.encode()) > _QUEUE_NAME_MAX:
            raise ValueError("a format name has at most {} bytes here".format(_QUEUE_NAME_MAX))
        queue = log.LoggedQueue(len(self.queues), name, array("I", (1, self.time_stamp(now), 1, 0)))
        self.queues.append(queue)
        return queue

    def source(self, guid: bytes, name: str) -> "LoggedSource":
        """Return the source of messages from a queue manager (16 bytes) to a local queue, new if unknown.

        The log gets it with its first arrival. Raises ValueError if the name is too long.
        """
        for source in self.sources:
            if source.guid == guid and source.name.lower() == name.lower():
                return source
        if len(name.encode()) > SOURCE_NAME_MAX:
            raise ValueError("a queue's name has at most {} bytes here".format(SOURCE_NAME_MAX))
        from ordack.node.storage.sources import LoggedSource  # not before there is one

        source = LoggedSource(len(self.sources), bytes(guid), name, array("I", (0, 0, 0, 0)))
        self.sources.append(source)
        return source

    def append(
        self,
        handle: log.Stored,
        queue: log.LoggedQueue,
        flags: int,
        record: "array[int]",
        packet: "Buffer",
        defer: bool = False,
        body: "Buffer" = b"",
    ) -> None:
        """Log a numbered message; record: the stream's counters after it. The next `sync` accepts it.

        body: the rest of a packet too large for the log's buffer, as in put_message. defer: do not keep it in memory;
        required while the queue has `deferred` messages. Its MessageID is `next_message_id`, which advances. Raises
        OutboxFull, OutboxWriteFailed: it is not in the log, and the caller takes its number back. Earlier messages are
        unaffected unless their `segment` is None now.
        """
        assert handle.message_id == self.next_message_id
        assert defer or not queue.deferred
        self.prepare((len(packet) + len(body) + 3 & ~3) + self._queues.need(queue))
        self._queues.write(queue)
        next_message_id = log.following(handle.message_id)  # now, because it may raise MemoryError
        handle.queue = queue
        self._log_message(log.MESSAGE, handle, queue, flags, record, packet, defer, body)
        self.next_message_id = next_message_id

    def arrive(self, handle: log.Stored, source: "LoggedSource", packet: "Buffer") -> None:
        """Log a received message, with the counters of its source, which already include it.

        The next `sync` accepts it; only then may an OrderAck cover it. Its number is `next_arrival`, which advances.
        Raises OutboxFull, OutboxWriteFailed: it is not in the log, and the source's counters are restored. Earlier ones
        are unaffected unless their `segment` is None now: then they must be resent.
        """
        assert handle.message_id == self.next_arrival
        assert handle.source is source
        try:
            if self.arrivals >= self.arrivals_max:
                text = "not accepted, {} messages received wait: take some"
                raise log.OutboxFull(text.format(self.arrivals))
            self.prepare(len(packet) + self._sources.need(source))
            self._sources.write(source)
            next_arrival = log.following(handle.message_id)
            self._log_message(log.ARRIVAL, handle, source, 0, source.record, packet)
        except Exception:
            core.copy_words(source.record, source.noted)
            raise
        self.next_arrival = next_arrival

    def change(self, handles: "list[log.Stored]", with_time: bool = False) -> None:
        """Note changed records of messages or arrivals: GONE ones are released, those in state O leave memory.

        with_time: their T0, too. Written with the next `sync` or before the next message. Never fails: after a loss the
        messages return in their former state, and the changes happen again.
        """
        for handle in handles:
            self._marks.add(handle, with_time)
            state = handle.record[confirm.STATE]
            if state == confirm.GONE:
                log.drop(handle)
                self._count(handle, -1)
                self.log.reclaim(False)
            elif state == confirm.O:
                flash_only.put_open(handle)

    def bind(self, queue: log.LoggedQueue, known: bytes) -> None:
        """Bind a queue's messages to this queue manager; durable before any is transmitted."""
        queue.guid = known
        self.to_note = (self.to_note or []) + [queue]

    def will_send(self) -> None:
        """Note durably that messages may be transmitted from now on. Raises OutboxWriteFailed: do not transmit."""
        if self.to_note is None:
            return
        self._sent = True
        self._start_logged = False
        self._log_start()
        for queue in self.to_note:
            if queue in self._queues.known():
                self._queues.put(queue)
        self.sync_tail()
        self.to_note = None

    def is_ahead(self, time_stamp: int) -> None:
        """Note an OrderAck for a number never given here: new TimeStamps are above this one.

        The next message brings the fact into the log.
        """
        self._time_stamp = max(self._time_stamp, time_stamp)
        self.ahead = True
        self._start_logged = False

    def sync(self) -> bool:
        """Make everything durable, which accepts messages. False: only changes of state are not durable yet.

        Raises OutboxWriteFailed: messages whose `segment` is None now are not accepted, and `next_message_id` or
        `next_arrival` returns to the first of them. Until another message replaces them, a power cut may bring some
        back; `next_message_id` after the restart tells.
        """
        waiting = len(self._unsynced) > 0
        try:
            self._marks.write()
            self.sync_tail()
        except log.OutboxWriteFailed:
            if waiting:
                raise
            return False
        return True

    def close(self) -> None:
        """Make everything durable if possible, and close the files."""
        try:
            self.sync()
            files, kept = self.log.files, self.live + self.arrivals
            if not files.fixed and not kept and self.log.segments[-1].size > _CLOSED_MAX:
                self.begin()  # the next start then reads little
        except (log.OutboxWriteFailed, MemoryError):
            pass
        self.log.files.close()

    # ---- writing --------------------------------------------------------------------------------

    def prepare(self, size: int) -> None:
        """Log everything that must precede a new message, and make room for size bytes without its head."""
        if self.log.is_torn:
            self.log.give_up()
        self._marks.write()
        self._log_start()
        _make_room(self.log, self, log.HEAD_BYTES + size)

    def _log_message(
        self,
        kind: int,
        handle: log.Stored,
        thing: log.LoggedQueue,
        flags: int,
        counters: "array[int]",
        packet: "Buffer",
        defer: bool = False,
        body: "Buffer" = b"",
    ) -> None:
        """Log a message, keep or defer it, and note its counters. A MemoryError leaves the log torn; the handle's
        segment becomes None.
        """
        offset = self.log.put_message(kind, handle, thing.index, flags, counters, packet, body)
        self._unsynced.append(handle)
        (self._queues if handle.source is None else self._sources).touch(thing)
        segment = self.log.segments[-1]
        if defer:
            self._deferred.append(handle)
            core.copy_words(thing.noted, counters)
            flash_only.put(thing, segment, offset, log.HEAD_BYTES + handle.size, handle.message_id)
            handle.segment = segment
            handle.offset = offset
        else:
            segment.keep(handle, offset)
            try:
                core.copy_words(thing.noted, counters)
            except MemoryError:
                log.drop(handle)
                raise
            self._count(handle, 1)
        self.log.is_torn = False

    def _log_start(self) -> None:
        opened = self.log
        if not self._start_logged:
            name = self.name.encode()
            size = log.START_BYTES + len(name)
            place = opened.room(log.RECORD_BYTES + size) + log.RECORD_BYTES
            struct.pack_into(log.START, opened.out, place, self.starts, self._flags())
            core.copy(opened.out, place + log.START_BYTES, name, 0, len(name))
            opened.finish(log.STARTED, size)
            self._start_logged = True

    def _flags(self) -> int:
        sent_before = log.STARTED_SENT_BEFORE * self._was_sent
        return log.STARTED_SENT * self._sent | log.STARTED_AHEAD * self.ahead | sent_before

    def _count(self, handle: log.Stored, change: int) -> None:
        if handle.source is not None:
            self.arrivals += change

    def sync_tail(self) -> None:
        """Make the log durable. Raises OutboxWriteFailed."""
        is_new = self.log.sync()
        for handle, offset, place in self.copied:
            if handle.segment is not None:  # else the message has ended
                place.keep(handle, offset)
        self.copied.clear()
        if not is_new:
            return
        self._queues.synced()
        self._sources.synced()
        self._unsynced.clear()
        self._deferred.clear()
        self._marks.synced()

    def abandoned(self) -> None:
        """Undo everything since the last sync."""
        self._queues.abandoned()
        self._sources.abandoned()
        self.copied = []
        for handle in reversed(self._unsynced):
            if handle.segment is not None:
                if handle in self._deferred:
                    assert handle.queue is not None
                    size = log.HEAD_BYTES + handle.size
                    flash_only.clear(handle.queue, handle.segment, handle.offset, size, False)
                    handle.segment = None
                else:
                    log.drop(handle)
                    self._count(handle, -1)
            if handle.source is None:
                self.next_message_id = handle.message_id
            else:
                self.next_arrival = handle.message_id
        self._unsynced = []
        self._deferred = []
        self._marks.abandoned()

    def begin(self, need: int = 0) -> None:
        """Begin the next segment, with all counters in its header. need: minimum bytes of room in it."""
        self.sync_tail()
        self.log.begin(
            self._queues.known(),
            self._sources.known(),
            (log.following(self.last_message_id), self.next_arrival, self._time_stamp, self.starts),
            self._flags(),
            need,
        )
        self._start_logged = not self.name


def _make_room(opened: log.Log, owner: Outbox, need: int) -> None:
    """Make room for need bytes in the current segment; drop released data first. Raises OutboxFull."""
    if not opened.is_seen:
        opened.reclaim(True)
    size = opened.segments[-1].size + need
    # Fast path: this much of the capacity is free.
    margin = opened.segment_size << opened.files.fixed
    if not opened.is_ended and size <= opened.segment_size and opened.size + need + margin <= opened.bound:
        return
    _compact(opened, owner, need, margin)
    full = opened.size + opened.growth(need) > opened.bound
    if full:
        opened.reclaim(True)  # a file that could not be removed before may go now
        full = opened.size + opened.growth(need) > opened.bound
    if full and owner.live + owner.arrivals:
        raise log.OutboxFull(
            "not accepted, {} of {} bytes are in use: wait until messages are gone".format(opened.size, opened.bound)
        )
    segment = opened.segments[-1]
    overflows = segment.size + need > opened.segment_size or full
    if (opened.is_ended or (overflows and segment.size > segment.base)) and segment.base + need <= opened.capacity:
        owner.begin(need)
    if opened.size + opened.growth(need) > opened.capacity:
        raise log.OutboxFull("not accepted, too large for an outbox of {} bytes".format(opened.capacity))


def _compact(opened: log.Log, owner: Outbox, need: int, margin: int) -> None:
    """Give up the oldest segments while room for another segment is short and a quarter of the log is waste.

    So long-kept messages cost at most three copied bytes for each byte freed. The copy of a large message may exceed
    the capacity temporarily.
    """
    for _ in range(len(opened.segments) - 1):
        size = opened.size
        if (
            flash_only.waits_in(owner.queues, opened.segments[0].number)
            or len(opened.segments) < 2
            or size + opened.growth(need) + margin <= opened.bound
            or 4 * sum([segment.live for segment in opened.segments]) > 3 * size
        ):
            return
        segment = opened.segments[0]
        _copy(opened, owner, segment.handles)
        while segment.flash_only:
            some = owner.flash_only.some_of(segment.number, _AT_ONCE)
            if not some:
                return
            try:
                _copy(opened, owner, some)
            finally:
                for handle in some:
                    flash_only.put_open(handle)
        opened.reclaim(False)


def _copy(opened: log.Log, owner: Outbox, handles: "list[log.Stored]") -> None:
    """Copy these messages and arrivals to the end of the log."""
    for handle in list(handles):
        size = log.HEAD_BYTES + handle.size
        if opened.segments[-1].size + size > opened.segment_size or opened.is_ended:
            owner.begin(size)
        owner.copied.append((handle, opened.copy_message(handle), opened.segments[-1]))
    owner.sync_tail()
