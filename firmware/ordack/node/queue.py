"""A destination queue for an application, its accepted messages, and their packets."""

import struct
from array import array

from mqqb import compose, confirm, const, core, names, streams
from ordack.node.storage import log
from ordack.node.talk import link

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    import asyncio
    from typing import Any

    from ordack.node.backlog import Backlog
    from ordack.node.storage.flash_only import Restored
    from ordack.node.storage.log import LoggedQueue
    from ordack.node.talk.peer import Peer

_CACHE_BYTES = const(1048576)  # of packets kept in memory until sent: at most this, and
_CACHE_SHARE = const(32)  # this share of the heap


class OutboxMessage(log.Stored):
    """A message to be delivered, or kept in the dead-letter queue or the journal.

    error: why it was not accepted. failure: the error that ended delivery. The node forgets a message that waits
    on flash only, behind many others, until the application asks about it.
    """

    # Class attributes until they differ: a waiting message takes less memory so.
    twin: "OutboxMessage | None" = None  # the node's handle of the message
    elsewhere: "DestinationQueue | None" = None  # its queue, while it is on flash only
    error: "Exception | None" = None
    event: "asyncio.Event | None" = None
    failure: "Exception | None" = None
    packet: "bytearray | None" = None  # kept until the first transmission if memory allows

    def conclusion(self) -> confirm.Conclusion:
        """Return the outcome as known now (C-80 to C-87)."""
        from ordack.node import node

        record = self.current()
        if record[confirm.MARKS] & log.GOES == log.GOES:
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
        """The cause of a failure in words, with its class. "": the message has not failed."""
        message_class = self.current()[confirm.CLASS]
        return confirm.words(message_class) if message_class & confirm.CLASS_NEGATIVE else ""

    def is_settled(self) -> bool:
        """True once the message is stored at its destination or has failed."""
        return self.current()[confirm.STATE] not in (confirm.Q, confirm.S)

    def is_stored(self) -> bool:
        """True once the destination has stored the message."""
        message_class = self.current()[confirm.CLASS]
        if message_class & confirm.CLASS_NEGATIVE:
            return (
                bool(message_class & confirm.CLASS_RECEIVING)
                and message_class != confirm.NACK_RECEIVE_TIMEOUT_AT_SENDER
            )
        return self.is_settled()

    def is_received(self) -> bool:
        """True once an application has received the message."""
        return self.current()[confirm.CLASS] == confirm.ACK_RECEIVE

    def is_ended(self) -> bool:
        """True once nothing will change."""
        return self.current()[confirm.STATE] not in (confirm.Q, confirm.S, confirm.O)

    def is_kept(self) -> bool:
        """Is the message in the dead-letter queue or the journal?"""
        record = self.record
        is_there = self.segment is not None and record[confirm.STATE] in (confirm.X, confirm.J)
        return is_there and record[confirm.MARKS] & log.GOES != log.GOES

    async def stored(self) -> bool:
        """Wait until the destination has the message on disk. Return False if the message has failed.

        Raises the error that ended delivery: the message then leaves after a restart.
        """
        while not self.is_settled():
            await self.changed()
        return self.is_stored()

    async def received(self) -> bool:
        """Wait until an application has received the message. Return False if the message failed or is in doubt.

        Raises ValueError without `dead_letter` and `journal`, because no answer would come (C-05).
        """
        if not self.record[confirm.MARKS] & confirm.JOURNAL_BITS:
            raise ValueError("received() needs dead_letter or journal at send()")
        return await self.dead_lettered() == 0

    async def dead_lettered(self) -> int:
        """Wait for the end. Return the class of a failed message; 0 for success. Raises as `stored`."""
        while not self.is_ended():
            await self.changed()
        message_class = self.current()[confirm.CLASS]
        return 0 if message_class == confirm.ACK_RECEIVE else message_class

    def tell(self) -> None:
        """Wake tasks that wait for a change of this message."""
        if self.event is not None:
            self.event.set()
            self.event = None

    def current(self) -> "array[int]":
        """Return the current record, also of a message that was on flash only. Raises as `outcome` of Node."""
        return self.known().record

    def known(self) -> "OutboxMessage":
        """Return the node's current handle of the message. Raises as `outcome` of Node."""
        if self.elsewhere is not None:
            self.elsewhere.follow(self)
        return self if self.twin is None else self.twin.known()

    async def changed(self) -> None:
        """Wait for a change. Raises the error that ended delivery."""
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
    """Packets of messages: always on flash, and in memory until sent if there is room.

    heap: bytes of the board's heap.
    """

    def __init__(self, opened: log.Log, heap: int) -> None:
        self._log = opened
        self._cached_max = min(heap // _CACHE_SHARE, _CACHE_BYTES)
        self._cached = 0  # bytes of packets in memory, with
        self._free: "list[bytearray]" = []  # these reusable ones

    def memory(self, size: int) -> bytearray:
        """Return memory for a packet of `size` bytes, reused from a sent packet of that size if possible."""
        if self._free:
            packet = self._free.pop()
            self._cached -= len(packet)
            if len(packet) == size:
                return packet
        return bytearray(size)

    def keep(self, message: "Any", packet: bytearray, room: int) -> None:
        """Keep a logged packet of at most `room` bytes in memory until it is sent."""
        size = len(packet)
        self._cached += size
        if size <= room and self._cached <= self._cached_max:
            message.packet = packet
        else:
            self._free.append(packet)

    def let_go(self, message: "Any") -> None:
        """Let the memory of the message's packet be reused, if any."""
        if message.packet is not None:
            self._free.append(message.packet)
            message.packet = None

    def load(self, message: "Any", part: memoryview) -> None:
        """Fill part with a message's packet or its beginning, with the times known now."""
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


class DestinationQueue:
    """A destination queue and the stream of messages to it. Made by Node.queue.

    Properties of a message: label; default: the board's name. ttrq, ttbr: TimeToReachQueue and TimeToBeReceived in s; a
    ttrq of 0 counts as the 10 s of a connection timeout. dead_letter (JN): keep the message until it is known to be
    received; if it fails or stays in doubt, in the dead-letter queue. journal (JP): keep it until it is known to be
    received, then in the journal (B-389). A body has at most about 4 MiB.

    All sending methods raise OutboxFull and OutboxWriteFailed (not accepted), and ValueError (invalid message).
    """

    def __init__(self, backlog: "Backlog", logged: "LoggedQueue", destination: names.QueueName, peer: "Peer") -> None:
        self.name = logged.name
        self.backlog = backlog
        self.logged = logged
        self.destination = destination
        self.draft = compose.Draft(backlog.commits.guid, destination)
        self.peer = peer
        self.stream = streams.OutgoingStream(array("I", logged.record))
        self.followed: "dict[int, OutboxMessage]" = {}  # messages on flash only that the application follows
        self.renewed = False  # began its sequence since the start
        self.sending = 0  # TxSequenceID of the last transmission; 0: sync changes of state before the next one

    def renew(self) -> None:
        """Begin a sequence that is new to everybody (A-22), even to a second copy of this log without a clock and with
        as many starts.
        """
        commits = self.backlog.commits
        ordinal = struct.unpack("<I", log.jump(3) + b"\0")[0] + 1
        self.stream.renew(commits.outbox.time_stamp(commits.clock.time()), ordinal)
        self.renewed = True

    def held(self) -> int:
        """Return the number of its messages in memory and in flight."""
        return len(self.stream.table) + len(self.stream.awaiting_final_ack)

    def hand_over(self, restored: "Restored") -> None:
        """Replace the handle read from flash by the one that the application follows."""
        asked = self.followed.get(restored.handle.message_id)
        if asked is None:
            return
        if asked is not restored.handle:
            log.replace(restored.handle, asked)
            restored.handle = asked
            asked.elsewhere = None
        del self.followed[asked.message_id]

    def miss(self) -> None:
        """Fail followed messages in an unreadable part of the flash."""
        for message_id in list(self.followed):
            if self.backlog.commits.outbox.flash_only.find(self.logged, message_id) is None:
                message = self.followed.pop(message_id)
                message.failure = log.OutboxError("message {} cannot be read any more".format(message_id))
                message.tell()

    def follow(self, message: "OutboxMessage") -> None:
        """Update a message on flash that the application follows, and use this handle once it is in memory.

        Raises OutboxError if its outcome is forgotten.
        """
        outcomes = self.backlog.outcomes
        commits = self.backlog.commits
        message_id = message.message_id
        is_there = message_id in self.followed
        if not is_there:
            if commits.uncommitted:
                commits.commit_now()  # search needs durable messages
            restored = commits.outbox.flash_only.find(self.logged, message_id)
            is_there = restored is not None
            if restored is not None and restored.is_open:
                message.record = restored.handle.record
        if is_there:
            message.twin = self.followed.setdefault(message_id, message)
            if message.twin is message:
                message.twin = None
                return
        else:
            message.twin = outcomes.in_memory(message_id)
            if message.twin is None:
                message_class = outcomes.remembered(message_id)
                message.record[confirm.STATE] = confirm.GONE
                message.record[confirm.CLASS] = message_class
        message.elsewhere = None

    async def send(
        self,
        body: "bytes | bytearray | memoryview",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> "OutboxMessage":
        """Accept a message. It is on flash on return. Concurrent calls share one sync of the file system."""
        message = self._accept(body, label, ttrq, ttbr, dead_letter, journal)
        await self.backlog.commits.commit()
        if message.error is not None:
            raise message.error
        return message

    async def send_all(
        self,
        bodies: "list[bytes]",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> "list[OutboxMessage]":
        """Accept messages in order, with one sync. After an error, messages before the failed one may be accepted.

        Node.last_message_id tells the last one.
        """
        messages = self._accept_all(bodies, label, ttrq, ttbr, dead_letter, journal)
        await self.backlog.commits.commit()
        return _all_accepted(messages)

    def put(
        self,
        body: "bytes | bytearray | memoryview",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> "OutboxMessage":
        """Accept a message without asyncio. It is on flash on return."""
        message = self._accept(body, label, ttrq, ttbr, dead_letter, journal)
        self.backlog.commits.commit_now()
        if message.error is not None:
            raise message.error
        return message

    def put_all(
        self,
        bodies: "list[bytes]",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> "list[OutboxMessage]":
        """Accept messages in order, with one sync, without asyncio."""
        messages = self._accept_all(bodies, label, ttrq, ttbr, dead_letter, journal)
        self.backlog.commits.commit_now()
        return _all_accepted(messages)

    def _accept_all(
        self, bodies: "list[bytes]", label: str, ttrq: int, ttbr: int, dead_letter: bool, journal: bool
    ) -> "list[OutboxMessage]":
        try:
            return [self._accept(body, label, ttrq, ttbr, dead_letter, journal) for body in bodies]
        except Exception:
            self.backlog.commits.commit_now()
            raise

    def _accept(
        self, body: "bytes | bytearray | memoryview", label: str, ttrq: int, ttbr: int, dead_letter: bool, journal: bool
    ) -> "OutboxMessage":
        backlog = self.backlog
        commits = backlog.commits
        settings = backlog.outcomes.settings
        flags = _flags(dead_letter, journal) if dead_letter or journal else 0
        _check(body, label, ttrq, ttbr)
        ttrq = ttrq or link.CONNECT_TIMEOUT_S  # 0: one attempt to deliver it (B-405)
        outbox = commits.outbox
        label = label or outbox.name
        draft = self.draft
        while True:
            commits.enter()
            try:
                sent_time = commits.clock.time()
                backlog.deadlines.check()  # expired messages make room; a failed sync takes MessageIDs back
                size = draft.size(len(body), label)
                # If not, the packet is written in parts: the heap may lack a piece of that size.
                is_whole = not body or log.HEAD_BYTES + size <= len(outbox.log.out)
                packet = commits.packets.memory(size if is_whole else draft.head_size)
                draft.write_into(
                    packet,
                    0,
                    outbox.next_message_id,
                    body,
                    label,
                    ttrq,
                    ttbr,
                    sent_time,
                    confirm.journal_of(flags, settings),
                )
                message = backlog.accept(
                    self,
                    packet,
                    confirm.new(sent_time, settings, flags, ttrq, ttbr),
                    not sent_time or ttrq != compose.FOREVER or ttbr != compose.FOREVER,
                    b"" if is_whole else body,
                )
            except Exception as error:  # after Ctrl-C it stays busy
                commits.is_busy = False
                if not isinstance(error, log.OutboxFull) or not backlog.expire_more():
                    raise
            else:
                commits.is_busy = False
                return message


def _check(body: "Any", label: str, ttrq: int, ttbr: int) -> None:
    """Raise ValueError for common mistakes."""
    if isinstance(body, str):
        raise ValueError("a body is bytes: encode the text")
    if not isinstance(body, bytes) and len(bytes(body[:1])) > 1:
        raise ValueError("a body is bytes: give bytes(array)")
    if len(label) > 249:
        raise ValueError("a label has at most 249 characters, this one " + str(len(label)))
    if not 0 <= ttrq <= compose.FOREVER:
        raise ValueError("ttrq is 0 to 4294967295 s, not " + str(ttrq))
    if not 0 <= ttbr <= compose.FOREVER:
        raise ValueError("ttbr is 0 to 4294967295 s, not " + str(ttbr))


def _flags(dead_letter: bool, journal: bool) -> int:
    return core.USER_JN * dead_letter | core.USER_JP * journal


def _all_accepted(messages: "list[OutboxMessage]") -> "list[OutboxMessage]":
    for message in messages:
        if message.error is not None:
            raise message.error
    return messages
