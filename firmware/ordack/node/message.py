"""A message that the node has accepted: its packet, and the answers about what became of it."""

import struct

from mqqb import compose, confirm, const, core
from ordack.node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    import asyncio
    from array import array
    from typing import Any

    from ordack.node.queue import DestinationQueue

# Of a record's MARKS in state X, ours: the application has not been told yet that the message has failed,
UNTOLD = const(0x40)
GOES = const(0xC0)  # and when it has been, the message goes, for nothing else keeps it
MARKS = const(0x3F)  # those of mqqb.confirm

_CACHE_BYTES = const(1048576)  # of packets that are kept in memory until they are sent, at most, and
_CACHE_SHARE = const(32)  # of the heap, one part in so many


class OutboxMessage(log.Stored):
    """A message on its way, or kept in the dead-letter queue or the journal.

    `error`: what kept it from being accepted. `failure`: what ended delivery while it was on its way. One that waits on
    the flash only, behind many others, is not known to the node any more until somebody asks.
    """

    # Of the class, until a message differs: one that waits takes less memory so.
    twin: "OutboxMessage | None" = None  # the handle by which the node knows it
    elsewhere: "DestinationQueue | None" = None  # who knows of it while it waits on the flash only
    error: "Exception | None" = None
    event: "asyncio.Event | None" = None
    failure: "Exception | None" = None
    packet: "bytearray | None" = None  # it, until it is sent for the first time, if there is room in memory

    def conclusion(self) -> confirm.Conclusion:
        """What may be said of it now (C-80 to C-87). The deadline is None when the node is closed, too."""
        from ordack.node import node

        record = self.current()
        if record[confirm.MARKS] & GOES == GOES:
            record = record[:]
            record[confirm.STATE] = confirm.GONE
        owner = node.owner_of(self.queue)
        settings = confirm.Settings() if owner is None else owner.outcomes.settings
        conclusion = confirm.Confirmation(record, settings).conclusion()
        if owner is None:
            conclusion.deadline = None
        return conclusion

    @property
    def reason(self) -> str:
        """Why it has failed, and the commands that help if there are any. Of no meaning before it has failed."""
        known = self.known()
        message_class = known.record[confirm.CLASS]
        text = "class 0x{1:04X}"
        if message_class == confirm.NACK_NOT_TRANSACTIONAL_Q:
            text = "queue {0} is not transactional: ordack queue delete {0}; ordack queue create {0} --transactional"
        return text.format(known.queue.name.split("\\")[-1], message_class)  # type: ignore[union-attr]

    def is_settled(self) -> bool:
        """Is it known whether it is stored at the destination?"""
        return self.current()[confirm.STATE] not in (confirm.Q, confirm.S)

    def is_stored(self) -> bool:
        """Does the destination have it, once and in order (OrderAck)?"""
        message_class = self.current()[confirm.CLASS]
        if message_class & confirm.CLASS_NEGATIVE:
            return (
                bool(message_class & confirm.CLASS_RECEIVING)
                and message_class != confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER
            )
        return self.is_settled()

    def is_received(self) -> bool:
        """Is it known that an application there has received it (positive FinalAck)?"""
        return self.current()[confirm.CLASS] == confirm.ACK_RECEIVE

    def is_ended(self) -> bool:
        """Will nothing more be learned of it?"""
        return self.current()[confirm.STATE] not in (confirm.Q, confirm.S, confirm.O)

    def is_kept(self) -> bool:
        """Is it in the dead-letter queue or in the journal?"""
        record = self.record
        is_there = self.segment is not None and record[confirm.STATE] in (confirm.X, confirm.J)
        return is_there and record[confirm.MARKS] & GOES != GOES

    async def stored(self) -> bool:
        """Wait until the destination has it, once and in order (OrderAck): True. False: it failed before.

        Raises what ended delivery (Node.error): the message is still in the outbox, and goes out after a restart.
        """
        while not self.is_settled():
            await self.changed()
        return self.is_stored()

    async def received(self) -> bool:
        """Wait until an application there has received it (positive FinalAck): True. False: it failed, or may have;
        `conclusion` says how. Raises as `stored`; ValueError without JN and JP, for nobody will say (C-05).
        """
        if not self.record[confirm.MARKS] & confirm.JOURNAL_BITS:
            raise ValueError("received() needs dead_letter or journal at send()")
        return await self.dead_lettered() == 0

    async def dead_lettered(self) -> int:
        """Wait for its end: the class with which it is dead-lettered, or discarded if nothing keeps it (no JN, or the
        quota is used up); 0: it has ended well. Raises as `stored`.
        """
        while not self.is_ended():
            await self.changed()
        message_class = self.current()[confirm.CLASS]
        return 0 if message_class == confirm.ACK_RECEIVE else message_class

    def tell(self) -> None:
        """Wake whoever waits for a change of this message."""
        if self.event is not None:
            self.event.set()
            self.event = None

    def current(self) -> "array[int]":
        """Its record as it is now, also where it was on the flash only. Raises as `outcome` of Node."""
        return self.known().record

    def known(self) -> "OutboxMessage":
        """The handle by which the node knows it, as it is now. Raises as `outcome` of Node."""
        if self.elsewhere is not None:
            self.elsewhere.follow(self)
        return self if self.twin is None else self.twin.known()

    async def changed(self) -> None:
        """Wait until something is known of it. Raises what ended delivery."""
        if self.twin is not None:
            await self.twin.changed()
            return
        if self.failure is not None:
            raise self.failure
        if self.event is None:
            import asyncio  # not before a program uses it

            from ordack.node import node

            if await node.await_start(self.queue):
                return
            self.event = asyncio.Event()
        await self.event.wait()


class Packets:
    """Packets of messages: on flash in any case, and in memory until they are sent if there is room.

    heap: bytes that the board has.
    """

    def __init__(self, opened: log.Log, heap: int) -> None:
        self._log = opened
        self._cached_max = min(heap // _CACHE_SHARE, _CACHE_BYTES)
        self._cached = 0  # bytes of packets in memory, those of
        self._free: "list[bytearray]" = []  # these among them, which may be used again

    def memory(self, size: int) -> bytearray:
        """Memory for a packet of so many bytes: that of one that has been sent, if it is as large."""
        if self._free:
            packet = self._free.pop()
            self._cached -= len(packet)
            if len(packet) == size:
                return packet
        return bytearray(size)

    def keep(self, message: "Any", packet: bytearray, room: int) -> None:
        """The log has this packet: it stays in memory until it is sent, if it has at most `room` bytes."""
        size = len(packet)
        self._cached += size
        if size <= room and self._cached <= self._cached_max:
            message.packet = packet
        else:
            self._free.append(packet)

    def let_go(self, message: "Any") -> None:
        """The memory of its packet may be used again, if there is one."""
        if message.packet is not None:
            self._free.append(message.packet)
            message.packet = None

    def load(self, message: "Any", part: memoryview) -> None:
        """Fill part with the packet of a message or its beginning, the times as they are known now."""
        if message.packet is not None and len(part) == message.size:
            part[:] = message.packet
        else:
            self._log.load_into(message, part)
        sent_time = message.record[confirm.SENT_TIME]
        if sent_time:
            struct.pack_into("<I", part, core.USER_SENT_TIME_AT, sent_time)
        else:
            struct.pack_into("<I", part, core.BASE_TIME_TO_REACH_QUEUE_AT, compose.FOREVER)
            struct.pack_into("<I", part, core.USER_TIME_TO_BE_RECEIVED_AT, compose.FOREVER)
