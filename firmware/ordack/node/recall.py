"""Reads the messages that are stored while their fate is open (aside.py): each is found on the flash by its number, and
is in memory only while it ends. A board imports this when the first one does.
"""

from mqqb import confirm, const
from mqqb.streams import position
from ordack.node import aside, log
from ordack.node.deferred import Deferred

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Generator

    from ordack.node.deferred import Found
    from ordack.node.log import LoggedQueue, Restored, Stored

_SETTINGS = confirm.Settings()


class Aside(Deferred):
    """Those of a log, as Deferred has the ones that wait. Reading raises as there."""

    def find(self, queue: "LoggedQueue", message_id: int, where: "tuple[int, int] | None" = None) -> "Restored | None":
        """A message, which stays where it is. where: its position, if a MessageID is not enough. None: not here.

        FinalAcks come in the order of the log, as a rule: it looks first behind where it has found one.
        """
        numbers = sorted([number for number in queue.aside if aside.may_have(queue, number, message_id)])
        for number, offset in [queue.near] * (queue.near[0] in numbers) + [(number, 0) for number in numbers]:
            for found in self.walk(queue, number, offset):
                if found[3][2] == message_id:
                    restored = self.restored(queue, found)
                    if where is None or where == position(restored):
                        queue.near = number, found[1]
                        return restored
        return None

    def walk(self, queue: "LoggedQueue", number: int, offset: int = 0) -> "Generator[Found]":
        """Those of a queue in a segment, from there on. Raises OSError: another attempt may read what is there."""
        opened = self._log
        segments = opened.segments
        segment = segments[number - segments[0].number]
        offset = max(offset, segment.base)
        while number in queue.aside and offset < opened.end_of(segment):
            known = [end for name, begin, end in opened.gaps if name == segment.name and begin == offset]
            if known:
                offset = known[0]
                continue
            word, fields = self._read(segment, offset)
            if not word:
                if opened.end_of(segments[-1]) != segments[-1].size:
                    raise OSError(log.EIO)  # to count what is left takes all that was logged
                self._salvage(segment, offset)
                continue
            if word & 0xFF & ~log.AFTER_SYNC in (log.MESSAGE, log.COPY) and aside.has(
                queue, number, offset // log.HEAD_BYTES
            ):
                yield segment, offset, word >> 8, fields
            offset += log.RECORD_BYTES + (word >> 8)

    def restored(self, queue: "LoggedQueue", found: "Found") -> "Restored":
        """A message that `walk` has found, as it is now. It stays where it is."""
        segment, offset, size, fields = found
        restored = log.restored_of(queue, size, fields, self._make)
        handle = restored.handle
        record = handle.record
        confirm.Confirmation(record, _SETTINGS).order_ack()
        if not record[confirm.SENT_TIME]:
            record[confirm.SENT_TIME] = aside.dated(queue, segment.number)
        handle.segment = segment
        handle.offset = offset
        return restored

    def attach(self, restored: "Restored") -> None:
        """A message that was found is in memory from now on."""
        handle = restored.handle
        segment = handle.segment
        assert segment is not None
        segment.add(handle)  # want of memory ends it before anything has changed
        handles = segment.handles
        k = len(handles) - 1
        while k and handles[k - 1].offset > handle.offset:  # dead letters stand in the order of their numbers
            handles[k] = handles[k - 1]
            k -= 1
        handles[k] = handle
        aside.clear(restored.queue, segment, handle.offset // log.HEAD_BYTES, log.HEAD_BYTES + handle.size)

    def some_of(self, number: int, most: int) -> "list[Stored]":
        """Up to so many of those in a segment are in memory from now on."""
        restored: "list[Restored]" = []
        for queue in self._queues:
            for found in self.walk(queue, number):
                if len(restored) == most:
                    break
                restored.append(self.restored(queue, found))
        for one in restored:
            self.attach(one)
        return [one.handle for one in restored]
