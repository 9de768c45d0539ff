"""A destination queue, as an application has it: what it may send there, and how."""

import struct
from array import array

from mqqb import compose, confirm, const, core, names, streams
from ordack.node import link, log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.backlog import Backlog
    from ordack.node.log import LoggedQueue, Restored
    from ordack.node.message import OutboxMessage
    from ordack.node.peer import Peer


class DestinationQueue:
    """A destination queue and the stream of messages to it. Made by Node.queue, for the application to send to.

    The properties that a message may be sent with: label, the board's name if it has none. ttrq, ttbr: TimeToReachQueue
    and TimeToBeReceived in s; a ttrq of 0 counts as the 10 s that connecting may take. dead_letter (JN): keep it until
    it is known to be received, and if it is not, or that remains unknown, in the dead-letter queue. journal (JP): keep
    it until it is known to be received, and then in the journal (B-389).
    A body has at most about 4 MiB.

    Every form of sending raises OutboxFull, OutboxWriteFailed: it was not accepted. ValueError: it cannot be a message.
    """

    def __init__(self, backlog: "Backlog", logged: "LoggedQueue", destination: names.QueueName, peer: "Peer") -> None:
        self.name = logged.name
        self.backlog = backlog
        self.logged = logged
        self.destination = destination
        self.draft = compose.Draft(backlog.commits.guid, destination)
        self.peer = peer
        self.stream = streams.OutgoingStream(array("I", logged.record))
        self.followed: "dict[int, OutboxMessage]" = {}  # those on the flash only about which somebody has asked
        self.renewed = False  # its sequence has been begun since the start
        self.sending = 0  # the TxSequenceID of what was sent last; 0: changes of state must be durable before more is

    def renew(self) -> None:
        """Begin a sequence that nobody can have seen (A-22): not with another copy of this log either, if the clock is
        not set, and both have counted as many starts.
        """
        commits = self.backlog.commits
        ordinal = struct.unpack("<I", log.jump(3) + b"\0")[0] + 1
        self.stream.renew(commits.outbox.time_stamp(commits.clock.time()), ordinal)
        self.renewed = True

    def held(self) -> int:
        """So many of its messages are in memory, and under way."""
        return len(self.stream.table) + len(self.stream.awaiting_final_ack)

    def hand_over(self, restored: "Restored") -> None:
        """The handle about which somebody has asked takes the place of the one with which it came from the flash."""
        asked = self.followed.get(restored.handle.message_id)
        if asked is None:
            return
        if asked is not restored.handle:
            log.replace(restored.handle, asked)
            restored.handle = asked
            asked.elsewhere = None
        del self.followed[asked.message_id]

    def miss(self) -> None:
        """Of what has been passed over on the flash, a part cannot be read: who has asked about it is told."""
        for message_id in list(self.followed):
            if self.backlog.commits.outbox.flash_only.find(self.logged, message_id) is None:
                message = self.followed.pop(message_id)
                message.failure = log.OutboxError("message {} cannot be read any more".format(message_id))
                message.tell()

    def follow(self, message: "OutboxMessage") -> None:
        """Somebody asks about it: say what is known, and use this handle when it comes into memory.

        Raises OutboxError: it has ended, and what became of it is not known any more.
        """
        outcomes = self.backlog.outcomes
        commits = self.backlog.commits
        message_id = message.message_id
        is_there = message_id in self.followed
        if not is_there:
            if commits.uncommitted:
                commits.commit_now()  # what is not durable is not found
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
        """Accept a message: returns when it is durable here. Concurrent calls share one sync of the file system."""
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
        """Accept messages, in this order: returns when they are durable here, with one sync for all.

        If it raises, those before the one that failed may be accepted: Node.next_message_id tells.
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
        """Accept a message: it is durable here when this returns."""
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
        """As `send_all`: they are durable here when this returns."""
        messages = self._accept_all(bodies, label, ttrq, ttbr, dead_letter, journal)
        self.backlog.commits.commit_now()
        return _all_accepted(messages)

    def _accept_all(
        self,
        bodies: "list[bytes]",
        label: str,
        ttrq: int,
        ttbr: int,
        dead_letter: bool,
        journal: bool,
    ) -> "list[OutboxMessage]":
        try:
            return [self._accept(body, label, ttrq, ttbr, dead_letter, journal) for body in bodies]
        except Exception:
            self.backlog.commits.commit_now()
            raise

    def _accept(
        self,
        body: "bytes | bytearray | memoryview",
        label: str,
        ttrq: int,
        ttbr: int,
        dead_letter: bool,
        journal: bool,
    ) -> "OutboxMessage":
        backlog = self.backlog
        commits = backlog.commits
        settings = backlog.outcomes.settings
        flags = core.USER_JN * dead_letter | core.USER_JP * journal
        _check(body, label, ttrq, ttbr)
        ttrq = ttrq or link.CONNECT_TIMEOUT_S  # 0: one attempt to deliver it (B-405)
        outbox = commits.outbox
        label = label or outbox.name
        draft = self.draft
        while True:
            commits.enter()
            try:
                sent_time = commits.clock.time()
                backlog.deadlines.check()  # what expires makes room; what its sync gives up gives its MessageID back
                size = draft.size(len(body), label)
                # If not, it is never put together: the heap need not have a piece as large as that.
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
    """What an application gets wrong most, said in its own words."""
    if isinstance(body, str):
        raise ValueError("a body is bytes: encode the text")
    if not isinstance(body, bytes) and len(bytes(body[:1])) > 1:
        raise ValueError("a body is bytes: of an array of larger items give bytes(array)")
    if len(label) > 249:
        raise ValueError("a label has at most 249 characters, this one " + str(len(label)))
    if not 0 <= ttrq <= compose.FOREVER:
        raise ValueError("ttrq is 0 to 4294967295 s, not " + str(ttrq))
    if not 0 <= ttbr <= compose.FOREVER:
        raise ValueError("ttbr is 0 to 4294967295 s, not " + str(ttbr))


def _all_accepted(messages: "list[OutboxMessage]") -> "list[OutboxMessage]":
    for message in messages:
        if message.error is not None:
            raise message.error
    return messages
