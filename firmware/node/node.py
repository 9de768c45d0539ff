"""The node: a board's own small queue manager, which sends.

    node = Node("outbox")
    queue = node.queue("DIRECT=TCP:10.0.0.5\\\\private$\\\\line1")
    node.start()
    message = await queue.send(b"21.5", dead_letter=True)  # returns when it is on flash
    await message.stored()    # and this when it is on the destination's disk, once and in order
    await message.received()  # and this when an application there has taken it

or without asyncio

    message = queue.put(b"21.5")              # returns when it is on flash
    node.poll()                               # now and then: does what can be done now, and does not wait
    node.wait(message.is_settled, 5000)       # or this: polls, and sleeps in between

No call but `wait` lasts longer than a few operations of the file system (see `poll`), whatever network and name servers
do: a watchdog that is fed around them may be short.

Messages are transactional. They are numbered once, when they are accepted, and keep their numbers over cuts of the link
and of the power until the destination has acknowledged them (B-317, A-08, B-098). What becomes of each is decided by
mqqb.confirm; dead-lettered and journaled ones stay in the outbox until the application takes them. One session carries
all queues of an address. What others send to this node goes to its `receiver`; without one it is dropped.

Deadlines. Each queue manager measures TTRQ and TTBR from SentTime by its own clock, so this board's must be right.
While it is not set (below CLOCK_SET) nothing expires here, and what was accepted then goes out without limits. T0 of
such a message is the moment in which the clock becomes known: it may live longer than it was told, never shorter.
"""

import gc
import random as _random
import struct
import sys
from array import array

from mqqb import MICROPYTHON, compose, confirm, const, core, names, reader, source, streams

from node import link, log, outbox
from node.clock import CLOCK_SET, Clock, unix_time
from node.link import TICK_MS, Backoff, TcpLink
from node.message import Message
from node.peer import Peer

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from mqqb import lives, session
    from mqqb.headers import FinalAck, UserMessage

    from node.inbox import Inbox, Inboxes
    from node.interfaces import Link, Receiver, Waitable
    from node.listener import TcpListener
    from node.log import LoggedQueue, Restored
    from node.tasks import Tasks
    from node.wait import Waiter

PORT = 1801  # B-001
LAZY_SYNC_MS = 1000  # marks of settlement are durable after that, if no message came
ACCEPTED_MAX = 4  # connections that others have made to this node, at a time
_STAMPS_END = const(0xF0000000)  # a TimeStamp above that is no time, and would leave no room for newer ones
_CACHE_BYTES = const(1048576)  # of packets that are kept in memory until they are sent, at most, and
_CACHE_SHARE = const(32)  # of the heap, one part in so many
_WRITE_BYTES_MAX = const(16384)  # that the outbox writes at once, if it may be less: again
_WRITE_SHARE = const(128)
_PLACE_BYTES = const(512)  # of heap for each message that waits, on 32 bits: a start needs so much, running the half
_SESSION_BYTES = const(12288)  # for all else
_PLACES_MIN = const(8)

_SPARES_MAX = const(64)
_HOLD_MAX = const(500)  # messages in memory, half of them under way
OUTCOMES_MAX = const(64)
_LARGE_HEAP = const(1048576)
_ENDLESS = const(0xFFFFFFFE)  # a LongLiveTime: without TTRQ a message waits for ever
_HELD = const(0x80)  # of a record's MARKS, ours: TTBR is over, it is not transmitted any more (C-22)
# Where a packet has its times (wire.md 2.1 and 2.4).


class Stats:
    """Counts since the start: messages accepted; stored at their destinations; received there, as far as that was asked
    for; failed, that is dead-lettered or discarded; positive FinalAcks that came too `late` (C-34). OrderAcks that were
    `ahead`, of numbers that this outbox never gave: it is an old copy, or has a twin with the same GUID (B-426).
    Packets sent, resends included; sessions opened (`connects`); messages from others that were dropped.
    """

    __slots__ = ("accepted", "ahead", "connects", "dropped", "failed", "late", "received", "sent", "stored")

    def __init__(self) -> None:
        self.accepted = 0
        self.stored = 0
        self.received = 0
        self.failed = 0
        self.late = 0
        self.ahead = 0
        self.sent = 0
        self.connects = 0
        self.dropped = 0


class Queue:
    """A destination queue and the stream of messages to it. Made by Node.queue, for the application to send to.

    The properties that a message may be sent with: label, the board's name if it has none. ttrq, ttbr: TimeToReachQueue
    and TimeToBeReceived in s; a ttrq of 0 counts as the 10 s that connecting may take. dead_letter (JN): keep it until
    it is known to be received, and if it is not, or that remains unknown, in the dead-letter queue. journal (JP): keep
    it until it is known to be received, and then in the journal (B-389).
    priority: without effect, transactional messages have none (B-287). A body has at most about 4 MiB.

    Every form of sending raises OutboxFull, OutboxWriteFailed: it was not accepted. ValueError: it cannot be a message.
    """

    def __init__(self, node: "Node", logged: log.LoggedQueue, destination: names.QueueName, peer: Peer) -> None:
        self.name = logged.name
        self.node = node
        self.logged = logged
        self.destination = destination
        self.draft = compose.Draft(node.guid, destination)
        self.peer = peer
        self.stream = streams.OutgoingStream(array("I", logged.record))
        self.followed: "dict[int, Message]" = {}  # those on the flash only about which somebody has asked
        self.renewed = False  # its sequence has been begun since the start
        self.sending = 0  # the TxSequenceID of what was sent last; 0: changes of state must be durable before more is

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

    def follow(self, message: Message) -> None:
        """See message.Follower. Raises OutboxError: it has ended, and what became of it is not known any more."""
        message_id = message.message_id
        if self.logged.may_defer(message_id):
            message.twin = self.followed.setdefault(message_id, message)
            if message.twin is message:
                message.twin = None
                return
        else:
            message.twin = self.node.in_memory(message_id)
            if message.twin is None:
                message_class = self.node.outcome(message_id)
                message.record[confirm.STATE] = confirm.GONE
                message.record[confirm.CLASS] = message_class
        message.elsewhere = None

    async def send(
        self,
        body: "bytes | bytearray | memoryview",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        priority: int = 3,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> Message:
        """Accept a message: returns when it is durable here. Concurrent calls share one sync of the file system."""
        message = self._accept(body, label, ttrq, ttbr, priority, dead_letter, journal)
        await self.node.commit()
        if message.error is not None:
            raise message.error
        return message

    async def send_all(
        self,
        bodies: "list[bytes]",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        priority: int = 3,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> "list[Message]":
        """Accept messages, in this order: returns when they are durable here, with one sync for all.

        If it raises, those before the one that failed may be accepted: Node.next_message_id tells.
        """
        messages = self._accept_all(bodies, label, ttrq, ttbr, priority, dead_letter, journal)
        await self.node.commit()
        return _all_accepted(messages)

    def put(
        self,
        body: "bytes | bytearray | memoryview",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        priority: int = 3,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> Message:
        """Accept a message: it is durable here when this returns."""
        message = self._accept(body, label, ttrq, ttbr, priority, dead_letter, journal)
        self.node.commit_now()
        if message.error is not None:
            raise message.error
        return message

    def put_all(
        self,
        bodies: "list[bytes]",
        label: str = "",
        ttrq: int = compose.FOREVER,
        ttbr: int = compose.FOREVER,
        priority: int = 3,
        dead_letter: bool = False,
        journal: bool = False,
    ) -> "list[Message]":
        """As `send_all`: they are durable here when this returns."""
        messages = self._accept_all(bodies, label, ttrq, ttbr, priority, dead_letter, journal)
        self.node.commit_now()
        return _all_accepted(messages)

    def _accept_all(
        self,
        bodies: "list[bytes]",
        label: str,
        ttrq: int,
        ttbr: int,
        priority: int,
        dead_letter: bool,
        journal: bool,
    ) -> "list[Message]":
        try:
            return [self._accept(body, label, ttrq, ttbr, priority, dead_letter, journal) for body in bodies]
        except Exception:
            self.node.commit_now()
            raise

    def _accept(
        self,
        body: "bytes | bytearray | memoryview",
        label: str,
        ttrq: int,
        ttbr: int,
        priority: int,
        dead_letter: bool,
        journal: bool,
    ) -> Message:
        node = self.node
        flags = core.USER_JN * dead_letter | core.USER_JP * journal
        sent_time = node.time()
        _check(body, label, ttrq, ttbr, priority)
        ttrq = ttrq or link.CONNECT_TIMEOUT_S  # 0: one attempt to deliver it (B-405)
        journal_flags = confirm.journal_of(flags, node.confirmation)
        node.check_deadlines()  # what expires now makes room; what its sync gives up gives its MessageID back
        label = label or node.outbox.name
        packet = node.packet(self.draft.size(len(body), label))
        may_expire = not sent_time or ttrq != compose.FOREVER or ttbr != compose.FOREVER
        while True:
            self.draft.write_into(packet, 0, node.next_message_id, body, label, ttrq, ttbr, sent_time, journal_flags)
            record = confirm.new(sent_time, node.confirmation, flags, ttrq, ttbr)
            try:
                return node.accept(self, packet, record, may_expire)
            except log.OutboxFull:
                if not node.expire_more():
                    raise


def _check(body: object, label: str, ttrq: int, ttbr: int, priority: int) -> None:
    """What an application gets wrong most, said in its own words."""
    if isinstance(body, str):
        raise ValueError("a body is bytes: encode the text")
    if len(label) > 249:
        raise ValueError("a label has at most 249 characters, this one " + str(len(label)))
    if not 0 <= ttrq <= compose.FOREVER:
        raise ValueError("ttrq is 0 to 4294967295 s, not " + str(ttrq))
    if not 0 <= ttbr <= compose.FOREVER:
        raise ValueError("ttbr is 0 to 4294967295 s, not " + str(ttbr))
    if not 0 <= priority <= 7:
        raise ValueError("priority is 0 to 7, not " + str(priority))


def _check_address(where: str, address: object) -> None:
    if isinstance(address, (str, tuple, list)):
        host, port = address if isinstance(address, tuple) and len(address) == 2 else (None, None)
        if not isinstance(host, str) or not isinstance(port, int) or not 0 <= port <= 0xFFFF:
            raise ValueError(where + ' is ("address", port), not ' + repr(address))


class Node:
    """A board's queue manager. folder: of the outbox, made if it is missing.

    connect: (host, port) through which everything goes, or a link (of link.py, or uart.py); None: each queue's own
    address, port 1801. listen: (host, port) where others may connect; None: nowhere. guid: 16 bytes; None: the one in
    the outbox, at first one that nobody has had, so that an erased folder uses no number again. name: of this board,
    for people: `ordack board doctor` shows it, and it is the label of messages that have none. capacity, segment_size:
    see outbox.Outbox; capacity alone bounds how many messages wait. hold: about so many of them are in memory, the half
    of which is under way; None: as many as there is room for now, at most 500. quota: bytes of the dead-letter queue
    and of the journal, each; None: a quarter of capacity. Neither takes more than a quarter of `hold` either; then
    copies are discarded (C-37). starts: how often the board has started, where something outside of the folder counts
    that. inbox_quota: (bytes, messages) that may wait in all inboxes; None: as in the dead-letter queue. confirmation:
    the machine's values of the confirmation process; None: the defaults, but without LongLiveTime, so that a message
    without ttrq waits for ever. clock: gives s since 1970.
    random: gives floats from 0 up to 1, for the back-off. on_failed: called with each message that was dead-lettered
    or discarded, also with one of an earlier life; if the power fails then, once more. files: in place of folder, what
    the outbox writes to. Raises what outbox.Outbox raises; ValueError for a queue in the outbox that cannot be reached.
    """

    def __init__(
        self,
        folder: str = "",
        connect: "tuple[str, int] | Link | None" = None,
        guid: "bytes | None" = None,
        capacity: int = 4194304,
        hold: "int | None" = None,
        segment_size: int = 65536,
        settings: "session.Settings | None" = None,
        random: "Callable[[], float]" = _random.random,
        on_failed: "Callable[[Message], None] | None" = None,
        files: "log.Files | None" = None,
        quota: "int | None" = None,
        starts: int = 0,
        confirmation: "confirm.Settings | None" = None,
        clock: "Callable[[], int]" = unix_time,
        listen: "tuple[str, int] | None" = None,
        inbox_quota: "tuple[int, int] | None" = None,
        name: str = "",
    ) -> None:
        _check_address("connect", connect)
        _check_address("listen", listen)
        files = files or log.Files(folder)
        capacity = min(capacity, files.bytes_max or capacity)
        self.heap = _collect_often()  # bytes
        self.hold = hold or min(_places(), _HOLD_MAX)
        copies = capacity // 4 if quota is None else quota, max(self.hold // 4, 1)
        inbox_quota = inbox_quota or copies
        self.outbox = outbox.Outbox(
            files,
            guid,
            segment_size,
            capacity,
            self.hold // 2,
            Message,
            starts,
            2 * inbox_quota[1] + 32,  # as many again may have ended, while their acknowledgements are under way
            _arrival,  # type: ignore[arg-type]
            min(self.heap // _WRITE_SHARE, _WRITE_BYTES_MAX),
            name,
        )
        self.guid: bytes = self.outbox.log.guid  # type: ignore[assignment]  # of this queue manager, 16 bytes
        self.settings = settings
        self.confirmation = confirmation or confirm.Settings(long_live_time=_ENDLESS)
        self._process = confirm.Confirmation(array("I", bytes(4 * confirm.RECORD_WORDS)), self.confirmation)
        self._unix_time = clock
        self._connect = connect
        self._random = random
        self._on_failed = on_failed
        self._quotas = copies, inbox_quota
        self._begin_empty()
        self._listener: "TcpListener | None" = None
        if listen:
            from node.listener import TcpListener  # not before a program uses it

            self._listener = TcpListener(listen[0], listen[1], Backoff(random))
            self.links.append(self._listener)
        for logged in self.outbox.queues:
            self._add(logged)
        self._take_restored()

    def _begin_empty(self) -> None:
        self.stats = Stats()
        self.error: "Exception | None" = None  # what ended delivery
        self.waiting = 0  # messages in the states Q and S
        self.receiver: "Receiver | None" = None
        self.inboxes: "Inboxes | None" = None  # if there are any
        self.links: "list[Waitable]" = []  # all that may become ready
        self.uncommitted: "list[streams.Entry]" = []  # numbered, but not durable
        self.must_commit = False  # something is in the log on which others will rely
        self.strangers: "dict[int, int]" = {}  # see mqqb.lives
        self._cached = 0  # bytes of packets in memory, those of
        self._free: "list[bytearray]" = []  # these among them, which may be used again
        self._spare: "streams.Entry | None" = None  # an entry that nothing needs any more; its key is the next such one
        self._spares = 0
        self._coming: "Restored | None" = None  # taken from the flash, and not in its stream yet
        # Classes of the last messages that have ended with one, once there are any of which only the flash knows.
        self._outcomes: "dict[int, int] | None" = None
        self._forgotten = False  # some of them
        self._is_expiring = False
        # What an acknowledgement says, until it is noted: for want of memory it may have to be tried again.
        self._answered: "list[streams.Entry] | None" = None
        self._answer = 0  # the class
        self._clock = Clock()
        # Bytes, messages in the dead-letter queue and in the journal.
        self._kept = {confirm.X: [0, 0], confirm.J: [0, 0]}
        self._queues: "list[Queue]" = []
        self._peers: "list[Peer]" = []
        self._tasks: "Tasks | None" = None
        self._waiter: "Waiter | None" = None
        self._commits = 0
        self._marked_at: "int | None" = None  # when the oldest change of state was made that is not durable yet
        self._due: "int | None" = None  # no deadline is earlier; 0: some T0 is not known

    # ---- for the application --------------------------------------------------------------------

    @property
    def next_message_id(self) -> int:
        """The MessageID that the next accepted message gets. They jump at each start, and count up after that."""
        return self.outbox.next_message_id

    @property
    def last_message_id(self) -> int:
        """MessageID of the last message that was accepted, also before this start; 0: there was none.

        After a restart it tells an application whether the send() that the power cut interrupted has counted.
        """
        return self.outbox.last_message_id

    @property
    def damage(self) -> "list[str]":
        """What this start could not read of the outbox as it was written, a sentence each."""
        return self.outbox.damage

    @property
    def is_unheard(self) -> bool:
        """Does nobody in the network answer, not even to refuse, although there is something to send?"""
        peers = [peer for peer in self._peers if peer.address]
        return bool([peer for peer in peers if peer.is_unheard] and not [peer for peer in peers if peer.session])

    def queue(self, name: str) -> Queue:
        """The queue of a direct format name, DIRECT=TCP:10.0.0.5\\private$\\line1. Raises ValueError for others.

        Names differ by more than upper and lower case: one name is one stream (B-099).
        """
        for queue in self._queues:
            if queue.name.lower() == name.lower():
                return queue
        if name and min(name) < " ":
            raise ValueError("a control character in a format name: is each backslash written twice? " + repr(name))
        names.parse_format_name(name)
        self._address(name)
        host = name[name.index(":") + 1 : name.index("\\")]
        if not host or " " in host or "/" in host or host.count(":") == 1:
            raise ValueError("the host in a format name is a name or an address without a port, not " + repr(host))
        return self._add(self.outbox.queue(name, self.time()))

    def inbox(self, name: str, number: int = 0) -> "Inbox":
        """The private queue of that name here: others send to DIRECT=...\\private$\\name, and with a number also to
        PRIVATE=<guid>\\number. To be opened before the first poll, or start, for what comes for others is refused.

        From then on sessions are kept open. Raises ValueError: it cannot be the name or number, or is another's.
        """
        if self.inboxes is None:
            from node.inbox import Inboxes  # not before a program uses it

            self.inboxes = Inboxes(self, self._quotas[1])
            self.receive_with(self.inboxes)
        return self.inboxes.open(name, number)

    def find(self, message_id: int) -> "Message | None":
        """The message of that MessageID, also of an earlier life. None: it is not here any more, or never was."""
        message = self.in_memory(message_id)
        for queue in self._queues:
            if message is None:
                message = queue.followed.get(message_id)
            if message is None:
                self.commit_now()
                seen: "Any" = self.outbox.log.look_at(queue.logged, Message, message_id)
                if seen is not None:
                    message = queue.followed[message_id] = seen
                    seen.elsewhere = queue
        return message

    def in_memory(self, message_id: int) -> "Message | None":
        """As `find`, without a look at what is on the flash only."""
        for message in self._messages():
            if message.message_id == message_id:
                return message
        return None

    def dead_letters(self) -> "list[Message]":
        """The transactional dead-letter queue: what failed, or may have; `conclusion` says which (B-391)."""
        return [message for message in self._messages() if message.record[confirm.STATE] == confirm.X]

    def journal(self) -> "list[Message]":
        """The journal: messages sent with JP that are known to be received (B-393)."""
        return [message for message in self._messages() if message.record[confirm.STATE] == confirm.J]

    def read(self, message: Message) -> "UserMessage":
        """All of a message that is still in the outbox. A dead letter has the class of its failure (B-394).

        Raises OutboxDamaged, OSError.
        """
        message = message.known()
        data = bytearray(message.size)
        self._load(message, memoryview(data))
        from mqqb import parse  # not before a program reads one

        packet: "UserMessage" = parse.parse(bytes(data))  # type: ignore[assignment]
        if message.record[confirm.STATE] == confirm.X:
            packet.properties.fields[core.PROPERTIES_MESSAGE_CLASS] = message.record[confirm.CLASS]
        return packet

    async def take(self, message: Message) -> None:
        """Take a message out of the dead-letter queue or the journal: returns when that is durable.

        Raises ValueError if it is in neither; OutboxError: the file system refused, after a cut it may be there again.
        """
        self._let_go(message)
        await self.commit()
        self._check_durable()

    def take_now(self, message: Message) -> None:
        """As `take`, without asyncio."""
        self._let_go(message)
        self.commit_now()
        self._check_durable()

    async def delete(self, message: Message) -> None:
        """Give up a message that is on its way: dead-lettered with JN, discarded without, class 0x8001 (C-29).

        Returns when that is durable. Raises ValueError if it has ended already; OutboxError as `take`.
        """
        self._give_up(message)
        await self.commit()
        self._check_durable()

    def delete_now(self, message: Message) -> None:
        """As `delete`, without asyncio."""
        self._give_up(message)
        self.commit_now()
        self._check_durable()

    def poll(self) -> int:
        """Do everything that can be done now; ms until it wants to be called again at the latest, 0 to TICK_MS.

        It never waits. For each peer it reads READ_BYTES, writes about as many bytes of messages as one write takes
        (peer.WRITE_BYTES, read back from the files), and makes the outcome durable, all that at most once.
        Raises what makes going on impossible: OutboxDamaged, or a mistake in here; then every later call does, too.
        """
        if self.error is not None:
            raise self.error
        try:
            self._settle()
            self.check_deadlines()
            self._refill()
            now = self.now()
            if self._marked_at is not None and now - self._marked_at >= LAZY_SYNC_MS:
                self._marked_at = now
                self.commit_now()  # no message has done it for a while: after a cut this saves a resend
            wait = TICK_MS
            if self._listener is not None:
                link = self._listener.poll(now, self)
                if link is not None:
                    if len([peer for peer in self._peers if peer.backoff is None]) >= ACCEPTED_MAX:
                        link.close()
                    else:
                        self._peers.append(Peer(self, link, None))
                        self.links.append(link)
            for peer in self._peers:
                wait = min(wait, peer.poll(now))
                if peer.backoff is None and peer.session is None:  # another one connected, and has gone
                    self._peers.remove(peer)
                    self.links.remove(peer.link)
                    return 0  # the list has changed
            if self.receiver is not None:
                due = self.receiver.next_timeout(now)
                if due is not None:
                    wait = min(wait, max(due - now, 0))
            for queue in self._queues:
                if self._is_low(queue):
                    wait = 0
        except MemoryError:  # nothing is lost by another attempt, when something else may have let go of some
            gc.collect()
            return TICK_MS
        except Exception as error:
            self.error = error
            for message in self._messages() + [one for queue in self._queues for one in queue.followed.values()]:
                message.failure = error
                message.tell()
            raise
        return wait

    def wait(self, condition: "Callable[[], Any]", timeout_ms: "int | None" = None) -> bool:
        """Poll until the condition holds; False: it did not within timeout_ms. Sleeps while there is nothing to do.

        Raises as `poll`.
        """
        began = self.now()
        while not condition():
            wait = self.poll()
            if timeout_ms is not None:
                left = began + timeout_ms - self.now()
                if left <= 0:
                    return bool(condition())
                wait = min(wait, left)
            if wait and not condition():
                if self._waiter is None:
                    from node.wait import Waiter  # not before a program uses it

                    self._waiter = Waiter()
                self._waiter.sleep(self.links, wait)
        return True

    def start(self) -> None:
        """Act on overdue deadlines (C-33), then begin to deliver, in a task of the running event loop."""
        if self._tasks is not None:
            return
        from node.tasks import Tasks  # not before a program uses it

        self.check_deadlines()
        self._tasks = Tasks(self)

    async def run(self) -> None:
        """Deliver until close(). Raises what makes going on impossible: OutboxDamaged, or a mistake in here."""
        self.start()
        assert self._tasks is not None
        await self._tasks.ended.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """End all connections and let go of the files. What waits stays in the outbox."""
        if self._tasks is not None:
            await self._tasks.close()
        self.close_now()

    def close_now(self) -> None:
        """As `close`, of a node that was not started."""
        now = self.now()
        for peer in self._peers:
            peer.end(now, "closed")
        if self._listener is not None:
            self.leave(self._listener)
            self._listener.close()
        self.commit_now()
        self.outbox.close()

    # ---- for queues and peers -------------------------------------------------------------------

    def now(self) -> int:
        """Monotonic ms."""
        return self._clock.now()

    def time(self) -> int:
        """s since 1970, or 0: this board's clock is not set."""
        now = self._unix_time()
        return now if now >= CLOCK_SET else 0

    def accept(self, queue: Queue, packet: bytearray, record: "array[int]", may_expire: bool = True) -> Message:
        """Number a message and log it (B-317); commit makes it durable. Raises OutboxFull, OutboxWriteFailed.

        record: its confirmation, in state Q. may_expire: False: T0 is known, neither TTRQ nor TTBR is set.
        """
        if self.error is not None:
            raise self.error
        stream = queue.stream
        message = Message(self.outbox.next_message_id, record)
        offset = queue.draft.transaction_at
        journal = record[confirm.MARKS] & confirm.JOURNAL_BITS != 0
        spare: "Any" = self._spare
        if spare is not None:
            self._spare = spare.key
            self._spares -= 1
        entry = None
        if queue.renewed:
            entry = stream.number(packet, offset, message, message.message_id, journal, spare)
        if entry is None:  # the first one since the start: what came back may be an old copy (A-22, B-426); or A-24
            self._renew(queue)
            entry = stream.number(packet, offset, message, message.message_id, journal, spare)
            assert entry is not None
        flags = log.TRANSACTIONAL | log.RECOVERABLE
        logged = queue.logged
        coming = self._coming is not None and self._coming.queue is logged
        defer = logged.deferred > 0 or coming or queue.held() > self._share()
        if defer and self._outcomes is None:
            self._outcomes = {}
        try:
            self.outbox.append(message, logged, flags, stream.record, packet, defer)
        except Exception as error:
            queue.stream.withdraw(entry)
            self._roll_back(error)
            raise
        self.uncommitted.append(entry)
        self.waiting += 1
        if defer:
            stream.rolls = False
            stream.leave_out(entry)
            message.elsewhere = queue
            self._free.append(packet)
            self._cached += len(packet)
            return message
        if may_expire or self.confirmation.long_live_time != _ENDLESS:
            self._expect(message)
        size = len(packet)
        self._cached += size
        if size <= queue.peer.room and self._cached <= min(self.heap // _CACHE_SHARE, _CACHE_BYTES):
            message.packet = packet
        else:
            self._free.append(packet)
        return message

    def packet(self, size: int) -> bytearray:
        """Memory for a packet of so many bytes: that of one that has been sent, if it is as large."""
        if self._free:
            packet = self._free.pop()
            self._cached -= len(packet)
            if len(packet) == size:
                return packet
        return bytearray(size)

    async def commit(self) -> None:
        """Make durable what was accepted by now, together with what other tasks are about to send."""
        import asyncio  # not before a program uses it

        commits = self._commits
        try:
            await asyncio.sleep(0)
        finally:
            if self._commits == commits:
                self.commit_now()

    def log(self, messages: "list[Any]", with_time: bool = False) -> None:
        """Note changes of these messages, or arrivals; they are made durable within LAZY_SYNC_MS, or by commit_now."""
        if messages:
            self.outbox.change(messages, with_time)
            if self._marked_at is None:
                self._marked_at = self.now()

    def commit_now(self) -> bool:
        """Make durable what was accepted, at once. False: the file system refused, some of it was or nothing."""
        self._commits += 1
        if not self.uncommitted and self._marked_at is None and not self.must_commit:
            return True
        try:
            durable = self.outbox.sync()
        except log.OutboxWriteFailed as error:
            self._roll_back(error)
            durable = False
        self.must_commit = False
        if durable:
            self._marked_at = None
        if self.uncommitted:
            self.stats.accepted += len(self.uncommitted)
            self.uncommitted.clear()
            self.touch()
        return durable

    def transmit(self, queue: Queue, entry: streams.Entry, part: memoryview) -> bool:
        """Fill part with the packet of an entry that is about to be transmitted, or with its beginning, which goes as
        far as to the end of its TransactionHeader. False: it is too late for that (C-18, C-22).

        Raises OutboxDamaged; OSError: also if it cannot be noted that something was transmitted.
        """
        confirmation = self._confirmation(entry.key)
        record = confirmation.record
        now = self.time()
        if self._due is not None and now and record[confirm.SENT_TIME] and not confirmation.may_send(now):
            before = record[confirm.STATE]
            action = source.too_late(confirmation, now, now - 1)
            queue.sending = 0
            if action == source.HOLD:
                record[confirm.MARKS] |= _HELD
                queue.stream.hold([entry])
                self.log([entry.key])
            else:
                queue.stream.remove([entry])
                self._count(entry.key, before, action)
                self._tell([entry.key])
            return False
        try:
            self.outbox.will_send()
        except log.OutboxWriteFailed as error:
            raise OSError(error.errno)  # noqa: B904 - MicroPython has no `from`
        message: "Any" = entry.key
        self._load(message, part)
        if message.packet is not None:
            _uncache(message, self._free)
        confirmation.sent()
        return True

    def received(
        self, packet: "UserMessage | reader.OrderAck | FinalAck", of_peer: "Sequence[lives.Queue]" = ()
    ) -> None:
        """Take what a peer sent. What has to be durable before it is acknowledged sets must_commit (B-098).

        of_peer: the queues whose messages go to that peer.
        """
        now = self.now()
        if isinstance(packet, reader.OrderAck):
            self._settle()  # else what the streams say now would take its place
            source.order_ack(self, packet.body, self._queues, of_peer, now)
            return
        from mqqb.headers import FinalAck  # not before something else than an OrderAck comes

        if isinstance(packet, FinalAck):
            source.final_ack(self, packet, self.guid, self._queues, now)
        else:
            self.stats.dropped += 1

    def answer(self, queue: Queue, entries: "list[streams.Entry]", message_class: int) -> None:
        """As mqqb.lives.Storage asks."""
        self._answered = entries
        self._answer = message_class
        if message_class:
            queue.sending = 0
            self.must_commit = True
        self._settle()

    def outrun(self, time_stamp: int, queue: "Queue | None") -> None:
        """As mqqb.lives.Storage asks; whoever asks is told why."""
        queues = self._queues if queue is None else [queue]
        if time_stamp >= _STAMPS_END:
            return
        for one in queues:
            if time_stamp < one.stream.record[core.OUTGOING_TIME_STAMP]:
                return
        self.stats.ahead += 1
        self.outbox.is_ahead(time_stamp)
        for one in queues:
            self._renew(one)
        for peer in self._peers:
            peer.reason = log.AHEAD

    def came_late(self, message_id: int, message_class: int) -> None:
        """As mqqb.lives.Storage asks."""
        self.must_commit = True  # its end may not be durable yet
        message = self.in_memory(message_id)
        if message is not None and message.record[confirm.STATE] == confirm.X:
            self.stats.late += message_class == confirm.ACK_RECEIVE  # C-34

    def receive_with(self, receiver: "Receiver") -> None:
        """What others send goes to `receiver` from now on; sessions are kept open, so that it can come."""
        self.receiver = receiver
        if self._connect is not None:
            self._peer(self._connect)
        self.touch()

    def touch(self) -> None:
        """Something has changed: poll will be called soon."""
        if self._tasks is not None:
            self._tasks.wake()

    def leave(self, link: "Waitable") -> None:
        """This link is about to be closed."""
        if self._tasks is not None:
            self._tasks.leave(link)
        if self._waiter is not None:
            self._waiter.leave(link)

    def check_deadlines(self) -> None:
        """Act on all deadlines that are due, if the clock is set."""
        if self._due is None:
            return
        now = self.time()
        if not now or now < self._due:
            return
        self._expire(now)

    def _expire(self, now: int) -> bool:
        """Act on the deadlines of what is in memory. Has any message ended?"""
        message: "Any"
        has_ended = False
        self.commit_now()  # what is not durable cannot change yet; if that fails it is gone
        if not self._due:  # the clock has become known: that is T0 of all messages that have none
            undated = [message for message in self._messages() if not message.record[confirm.SENT_TIME]]
            for message in undated:
                message.record[confirm.SENT_TIME] = now
            self.log(undated, True)
        self._due = None
        for queue in self._queues:
            ended = []
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                message = entry.key
                confirmation = self._confirmation(message)
                before = confirmation.record[confirm.STATE]
                action = confirmation.handle_deadline(now)
                if action:
                    ended.append(entry)
                    self._count(message, before, action)
                else:
                    self._expect(message)
            if ended:
                queue.sending = 0
                has_ended = True
            queue.stream.remove(ended)
            self._tell([entry.key for entry in ended])
        return has_ended

    def expire_more(self) -> bool:
        """Take messages from the flash and act on their deadlines, for there is no room. Has any ended?"""
        now = self.time()
        if not now or self._is_expiring:  # an on_failed that sends again would go as deep as there are messages
            return False
        self._is_expiring = True
        try:
            self._refill()
            return self._due is not None and now >= self._due and self._expire(now)
        finally:
            self._is_expiring = False

    # ---- inside ---------------------------------------------------------------------------------

    def _address(self, name: str) -> "tuple[str, int] | Link":
        if not name.upper().startswith(("DIRECT=TCP:", "DIRECT=OS:")):
            raise ValueError("only direct format names are supported, DIRECT=TCP:... or DIRECT=OS:...")
        return self._connect or (name[name.index(":") + 1 : name.index("\\")], PORT)

    def _peer(self, address: "tuple[str, int] | Link") -> Peer:
        """The peer that is reached there."""
        for peer in self._peers:
            known: "Any" = peer.link
            if peer.backoff and (known is address or (peer.address and (known.host, known.port) == address)):
                return peer
        link: "Link" = TcpLink(address[0], address[1]) if isinstance(address, tuple) else address
        peer = Peer(self, link, Backoff(self._random))
        self._peers.append(peer)
        self.links.append(link)
        return peer

    def _add(self, logged: "LoggedQueue") -> Queue:
        peer = self._peer(self._address(logged.name))
        queue = Queue(self, logged, names.parse_format_name(logged.name), peer)
        peer.add(queue)
        self._queues.append(queue)
        return queue

    def _take_restored(self) -> None:
        """Take the messages that the outbox holds since it has read its log."""
        for queue in self._queues:
            queue.stream.rolls = not queue.logged.deferred
            self.waiting += queue.logged.deferred
        for restored in self.outbox.restored:
            self._take(restored)
        self.outbox.restored = []

    def _take(self, restored: "Restored") -> None:
        """Take a message that the outbox has read from its log."""
        message: "Any" = restored.handle
        record = message.record
        state = record[confirm.STATE]
        if state in (confirm.X, confirm.J):
            kept = self._kept[state]
            kept[0] += message.size
            kept[1] += 1
            return
        stream = self._queues[restored.queue.index].stream
        entry = streams.Entry(
            message,
            message.message_id,
            bool(restored.flags & log.RECOVERABLE),
            record[confirm.MARKS] & confirm.JOURNAL_BITS != 0,
            restored.tx_sequence_id,
            restored.tx_sequence_number,
        )
        if restored.sent:
            self._confirmation(message).sent()
        is_waiting = record[confirm.STATE] != confirm.O
        self._expect(message)
        if is_waiting and not record[confirm.MARKS] & _HELD:
            stream.append(entry)
        else:
            stream.awaiting_final_ack.append(entry)
        self.waiting += is_waiting

    def _share(self) -> int:
        """So many messages of a queue may be in memory and under way."""
        return max(self.hold // (2 * max(len(self._queues), 1)), 1)

    def _refill(self) -> None:
        """Take messages from the flash, where few of a queue are left in memory.

        Want of memory may end it: it goes on from there.
        """
        if self._coming is not None:
            self._take_coming(self._coming)
        for queue in self._queues:
            logged = queue.logged
            if not (self._is_low(queue) and self.commit_now()):
                continue
            share = self._share()
            while logged.deferred and queue.held() < share:
                self._coming = self.outbox.more(logged)
                self._take_coming(self._coming)

    def _is_low(self, queue: Queue) -> bool:
        """Are few of its messages left in memory, and others on the flash?"""
        if not queue.logged.deferred:
            return False
        share = self._share()
        return 2 * len(queue.stream.table) <= share and queue.held() < share

    def _take_coming(self, restored: "Restored") -> None:
        queue = self._queues[restored.queue.index]
        restored.sent = self.outbox.may_have_been_sent(restored.handle.message_id)
        queue.hand_over(restored)
        self._take(restored)
        self._coming = None
        self.waiting -= 1
        queue.stream.rolls = not queue.logged.deferred

    def outcome(self, message_id: int) -> int:
        """The class with which a message has ended that nobody has followed; 0: it is stored at its destination.

        Raises OutboxError: that is not known any more.
        """
        outcomes = self._outcomes or {}
        if self._forgotten and message_id not in outcomes:
            raise log.OutboxError(
                "message {} has ended, it is not known how: ask while it waits, or use on_failed".format(message_id)
            )
        return outcomes.get(message_id, 0)

    def _renew(self, queue: Queue) -> None:
        """Begin a sequence that nobody can have seen (A-22): not with another copy of this log either, if the clock is
        not set, and both have counted as many starts.
        """
        ordinal = struct.unpack("<I", log.jump(3) + b"\0")[0] + 1
        queue.stream.renew(self.outbox.time_stamp(self.time()), ordinal)
        queue.renewed = True

    def _roll_back(self, error: Exception) -> None:
        """Take back the numbers of the messages that the outbox had to abandon, newest first."""
        for entry in reversed(self.uncommitted):
            message: "Any" = entry.key
            if message.segment is None:
                if message.packet is not None:
                    _uncache(message, self._free)
                queue = message.elsewhere
                if queue is not None:
                    queue.followed.pop(message.message_id, None)
                    message.elsewhere = None
                    queue.stream.rolls = not queue.logged.deferred
                stream: "Any" = entry.stream or queue.stream
                stream.withdraw(entry)
                self.waiting -= 1
                message.error = error
        self.uncommitted = [entry for entry in self.uncommitted if entry.key.segment is not None]  # type: ignore[attr-defined]

    def _messages(self) -> "list[Message]":
        return [handle for handle in self.outbox.handles() if isinstance(handle, Message)]

    def _confirmation(self, message: "Any") -> confirm.Confirmation:
        """The process of a message, until this is called for another one."""
        self._process.record = message.record
        return self._process

    def _expect(self, message: "Any") -> None:
        """Take a deadline into account, once its T0 is known."""
        record = message.record
        if not record[confirm.SENT_TIME]:
            self._due = 0
            return
        if (
            self.confirmation.long_live_time == _ENDLESS
            and record[confirm.TTRQ] == compose.FOREVER
            and record[confirm.TTBR] == compose.FOREVER
        ):
            return
        due = self._confirmation(message).next_deadline()
        if due is not None and (self._due is None or due < self._due):
            self._due = due

    def _load(self, message: "Any", part: memoryview) -> None:
        """Fill part with the packet of a message or its beginning, the times as they are known now."""
        if message.packet is not None and len(part) == message.size:
            part[:] = message.packet
        else:
            self.outbox.log.load_into(message, part)
        sent_time = message.record[confirm.SENT_TIME]
        if sent_time:
            struct.pack_into("<I", part, compose.SENT_TIME_AT, sent_time)
        else:
            struct.pack_into("<I", part, compose.TTRQ_AT, compose.FOREVER)
            struct.pack_into("<I", part, compose.TTBR_AT, compose.FOREVER)

    def _settle(self) -> None:
        """Note what an acknowledgement says, if some of that is left to do: memory may run out before it is done."""
        answered = self._answered
        if answered is None:
            return
        message: "Any"
        messages = []
        message_class = self._answer
        for entry in answered:
            message = entry.key
            if message.segment is None:
                continue  # done before memory ran out
            confirmation = self._confirmation(message)
            before = confirmation.record[confirm.STATE]
            if message_class:
                action = confirmation.final_ack(message_class)
                if action:
                    self._count(message, before, action)
                self._tell([message])
                continue
            messages.append(message)
            if before == confirm.Q or before == confirm.S:
                self._count(message, before, confirmation.order_ack())
        self.log(messages)
        self._answered = None
        if not message_class:
            for entry in answered:
                message = entry.key
                message.tell()
                if not entry.journal and self._spares < _SPARES_MAX:
                    entry.key = self._spare
                    self._spare = entry
                    self._spares += 1

    def _count(self, message: "Any", before: int, action: int) -> None:
        """An event has led a message out of its stream: state before, what confirm asks for. `_tell` follows."""
        record = message.record
        message_class = record[confirm.CLASS]
        stats = self.stats
        if before == confirm.Q or before == confirm.S:
            self.waiting -= 1
            if not message_class & confirm.CLASS_NEGATIVE:
                stats.stored += 1
        if message_class:
            is_received = message_class == confirm.ACK_RECEIVE
            stats.received += is_received
            stats.failed += not is_received
        if message.packet is not None:
            _uncache(message, self._free)
        if action & (confirm.DEAD_LETTER | confirm.JOURNAL):
            kept = self._kept[record[confirm.STATE]]
            quota = self._quotas[0]
            if kept[0] + message.size > quota[0] or kept[1] >= quota[1]:
                record[confirm.STATE] = confirm.GONE  # C-37
            else:
                kept[0] += message.size
                kept[1] += 1

    def _tell(self, messages: "list[Any]") -> None:
        """Log what has become of messages, and tell whom it concerns."""
        self.log(messages)
        for message in messages:  # all, before anybody is told of one and asks for another
            message_class = message.record[confirm.CLASS]
            if message_class and self._outcomes is not None:
                if len(self._outcomes) >= OUTCOMES_MAX:
                    del self._outcomes[next(iter(self._outcomes))]
                    self._forgotten = True
                self._outcomes[message.message_id] = message_class
        for message in messages:
            message_class = message.record[confirm.CLASS]
            message.tell()
            if message_class not in (0, confirm.ACK_RECEIVE) and self._on_failed is not None:
                self._on_failed(message)

    def _let_go(self, message: Message) -> None:
        message = message.known()
        record = message.record
        state = record[confirm.STATE]
        if state not in (confirm.X, confirm.J) or message.segment is None:
            raise ValueError("the message is neither in the dead-letter queue nor in the journal")
        kept = self._kept[state]
        kept[0] -= message.size
        kept[1] -= 1
        record[confirm.STATE] = confirm.GONE
        self.log([message])
        record[confirm.STATE] = state  # what may be concluded of it stays

    def _give_up(self, message: Message) -> None:
        self.commit_now()
        message = message.known()
        for queue in self._queues:
            for entry in queue.stream.table + queue.stream.awaiting_final_ack:
                if entry.key is message:
                    before = message.record[confirm.STATE]
                    action = self._confirmation(entry.key).failed(confirm.NACK_DELETED)
                    queue.sending = 0
                    queue.stream.remove([entry])
                    self._count(message, before, action)
                    self._tell([message])
                    return
        self._give_up_deferred(message)

    def _give_up_deferred(self, message: Message) -> None:
        queue: "Any" = message.elsewhere
        restored = None if queue is None else self.outbox.find(queue.logged, message.message_id)
        if restored is None:
            raise ValueError("the message is not on its way")
        queue.hand_over(restored)
        queue.stream.rolls = not queue.logged.deferred
        confirmation = self._confirmation(message)
        if self.outbox.may_have_been_sent(message.message_id):
            confirmation.sent()
        self._count(message, confirm.Q, confirmation.failed(confirm.NACK_DELETED))
        self._tell([message])

    def _check_durable(self) -> None:
        if self._marked_at is not None:
            raise log.OutboxError("the file system refuses: it is not durable yet")


def _all_accepted(messages: "list[Message]") -> "list[Message]":
    for message in messages:
        if message.error is not None:
            raise message.error
    return messages


def _uncache(message: "Any", free: "list[bytearray]") -> None:
    """The memory of its packet may be used again."""
    free.append(message.packet)
    message.packet = None


def _arrival(number: int, record: "array[int]", source: log.LoggedSource) -> log.Arrival:
    from node.inbox import Arrival  # not before there is one

    return Arrival(number, record, source)


def _places() -> int:
    """So many messages fit into the memory that is free now, also at the next start, beside a session."""
    heap: "Any" = gc
    if not MICROPYTHON:
        return 1 << 24
    gc.collect()
    wide = sys.maxsize >> 32 != 0  # 64 bits
    free = int(heap.mem_free())
    return max((free - (_SESSION_BYTES << wide)) // (_PLACE_BYTES << wide), _PLACES_MIN)


def _collect_often() -> int:
    """MicroPython's heap is never compacted: collect before what stays is spread thinly over all of it.

    Else a list that grows finds no room although most of the heap is free. An application's own threshold is kept.
    Returns the bytes of the heap.
    """
    heap: "Any" = gc
    if not MICROPYTHON:
        return 1 << 30
    size: int = heap.mem_free() + heap.mem_alloc()
    if heap.threshold() == -1:
        heap.threshold(size // 4 if size > _LARGE_HEAP else size // 16)  # the whole heap is looked at each time
    return size
