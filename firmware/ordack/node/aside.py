"""Where those messages are that are stored at their destinations while nobody knows yet whether they are received
(state O): on the flash only, however many they are (recall.py reads them when they end).

Of each segment that has some of a queue, LoggedQueue.aside says where they begin. No message is shorter than its head,
so a bit for each HEAD_BYTES of the segment is enough. What stands before the bits is HEAD:
how many they are; their bytes, with their heads; a time before which no deadline is, s since 1970, or NEVER; a T0 that
is not before that of any, for those of whose own the log does not know; the first and the last MessageID.
A board imports this when it has the first one.
"""

import struct

from mqqb import confirm, const, core
from ordack.node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ordack.node.log import Log, LoggedQueue, Segment, Stored

NEVER = const(0xFFFFFFFFFFFFFFFF)
HEAD = const("<IIQIII")
_BITS = const(28)  # bytes before the bits
_DUE_AT = const(8)


def put(handle: "Stored") -> None:
    """The message, which is in memory, is on the flash only from now on."""
    segment = handle.segment
    queue = handle.queue
    assert segment is not None
    assert queue is not None
    record = handle.record
    number = handle.message_id
    count, size, due, dated, first, last = 0, 0, NEVER, 0, number, number
    held = queue.aside.get(segment.number)
    if held is None:
        held = bytearray(_BITS)
    else:
        count, size, due, dated, first, last = struct.unpack_from(HEAD, held)
    bit = handle.offset // log.HEAD_BYTES
    more = _BITS + (bit >> 3) + 1 - len(held)
    if more > 0:
        held.extend(bytes(more))
    sent_time = record[confirm.SENT_TIME]
    if sent_time and record[confirm.TTBR] != confirm.UNSET:
        due = min(due, sent_time + record[confirm.TTBR])
    head = struct.pack(
        HEAD,
        count + 1,
        size + log.HEAD_BYTES + handle.size,
        due,
        max(dated, sent_time),
        number if log.is_after(first, number) else first,
        number if log.is_after(number, last) else last,
    )
    queue.aside[segment.number] = held  # want of memory ends it before anything has changed
    core.copy(held, 0, head, 0, _BITS)
    held[_BITS + (bit >> 3)] |= 1 << (bit & 7)
    segment.aside += 1
    log.drop(handle)
    segment.live += log.HEAD_BYTES + handle.size


def due(queue: "LoggedQueue", number: int) -> int:
    """No deadline of those in this segment is before that."""
    return int(struct.unpack_from("<Q", queue.aside[number], _DUE_AT)[0])


def set_due(queue: "LoggedQueue", number: int, time: int) -> None:
    """No deadline of those in this segment is before this time."""
    if number in queue.aside:
        struct.pack_into("<Q", queue.aside[number], _DUE_AT, time)


def bytes_in(queues: "Sequence[LoggedQueue]", number: int) -> int:
    """Of those in this segment, with their heads."""
    return sum([struct.unpack_from(HEAD, queue.aside[number])[1] for queue in queues if number in queue.aside])


def restore(segment: "Segment", queue: "LoggedQueue", held: bytearray) -> None:
    """A snapshot says this of a segment that a start does not read."""
    count, size = struct.unpack_from(HEAD, held)[:2]
    queue.aside[segment.number] = held
    segment.aside += count
    segment.live += size


def forget(opened: "Log", queues: "Sequence[LoggedQueue]", segment: "Segment", begin: int, end: int) -> None:
    """What stands there cannot be read any more: it is told how many of these that concerns."""
    for queue in queues:
        lost = 0
        for bit in range(begin // log.HEAD_BYTES, end // log.HEAD_BYTES):
            if has(queue, segment.number, bit):
                lost += 1
                clear(queue, segment, bit, 0)
        if lost:
            opened.missing.append(0)
            opened.damage.append("{} stored messages cannot be read: nobody will be told of them".format(lost))


def snapshot_size(queues: "Sequence[LoggedQueue]") -> int:
    """Bytes of their records in a snapshot; more than any has, if one is too long for a record."""
    total = 0
    for queue in queues:
        for number in queue.aside:
            size = log.RECORD_BYTES + log.ASIDE_PREFIX_BYTES + len(queue.aside[number])
            total += size if size <= log.OUT_BYTES_MIN else 1 << 28
    return total


def write_snapshot(opened: "Log", queues: "Sequence[LoggedQueue]") -> None:
    """Log them. Raises OutboxWriteFailed."""
    for queue in queues:
        for number in queue.aside:
            held = queue.aside[number]
            size = log.ASIDE_PREFIX_BYTES + len(held)
            place = opened.room(log.RECORD_BYTES + size) + log.RECORD_BYTES
            struct.pack_into(log.ASIDE_PREFIX, opened.out, place, number, queue.index, 0)
            core.copy(opened.out, place + log.ASIDE_PREFIX_BYTES, held, 0, len(held))
            opened.finish(log.ASIDE, size)


def dated(queue: "LoggedQueue", number: int) -> int:
    """A T0 for those in this segment of whose own the log does not know; 0: there is none."""
    return int(struct.unpack_from(HEAD, queue.aside[number])[3])


def may_have(queue: "LoggedQueue", number: int, message_id: int) -> bool:
    """May the message be among those in this segment?"""
    held = queue.aside.get(number)
    if held is None:
        return False
    first, last = struct.unpack_from(HEAD, held)[4:]
    return not log.is_after(first, message_id) and not log.is_after(message_id, last)


def has(queue: "LoggedQueue", number: int, bit: int) -> bool:
    held = queue.aside.get(number)
    at = _BITS + (bit >> 3)
    return held is not None and at < len(held) and held[at] & 1 << (bit & 7) != 0


def clear(queue: "LoggedQueue", segment: "Segment", bit: int, size: int) -> None:
    """One of them is none any more, size bytes with its head."""
    held = queue.aside[segment.number]
    count, before = struct.unpack_from("<II", held)
    if count == 1:
        del queue.aside[segment.number]
    else:
        struct.pack_into("<II", held, 0, count - 1, before - size)
        held[_BITS + (bit >> 3)] &= ~(1 << (bit & 7))
    segment.aside -= 1
