"""A board's queue manager: sends from an outbox on flash and receives into inboxes (docs/reference.md).

    node = Node("outbox")
    queue = node.queue("DIRECT=TCP:10.0.0.5\\\\private$\\\\line1")
    message = queue.put(b"21.5")              # on flash when it returns
    node.wait(message.is_settled, 5000)       # or node.poll() regularly, or node.start() and `await queue.send(...)`

No call except `wait` takes longer than a few file system operations, whatever networks and name servers do, so a short
watchdog timeout is safe. One session carries all queues of an address. Without an inbox, received messages are dropped.
The parts: `backlog` (messages to send), `deadlines`, `outcomes` of messages, and `commits`, which makes all durable.
"""

import gc
import random as _random
import sys

from mqqb import MICROPYTHON, confirm, const, core, names
from ordack.node.backlog import Backlog, Commits, Deadlines
from ordack.node.clock import Clock
from ordack.node.outcomes import Notices, Outcomes
from ordack.node.queue import DestinationQueue, OutboxMessage, Packets
from ordack.node.storage import log, outbox
from ordack.node.storage.files import absolute
from ordack.node.talk.link import TICK_MS
from ordack.node.talk.peer import Peers

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable
    from typing import Any

    from mqqb import session
    from mqqb.headers import UserMessage
    from ordack.node.inbox import Inbox, Inboxes
    from ordack.node.owed import Arrival
    from ordack.node.storage.log import LoggedQueue
    from ordack.node.storage.sources import LoggedSource
    from ordack.node.talk.link import Link, Waitable
    from ordack.node.talk.peer import Peer
    from ordack.node.tasks import Tasks
    from ordack.node.wait import Waiter

LAZY_SYNC_MS = 60000  # settlement marks become durable after this without a new message: on LittleFS a sync is an erase
_WRITE_BYTES_MAX = const(16384)  # of the write buffer; at most heap / _WRITE_SHARE
_WRITE_SHARE = const(128)
_PLACE_BYTES = const(512)  # of heap for each waiting message on 32 bits; a start needs all of it, running half
_SESSION_BYTES = const(12288)  # for the rest of the node
_PLACES_MIN = const(8)
_HOLD_MAX = const(500)  # messages in memory, half of them in flight
_LARGE_HEAP = const(1048576)
_MODULES_BYTES = const(24576)  # of the heap, for these modules
_CAPACITY_MIN = const(1024)
_NAME_MAX = const(100)  # bytes
TAKEN = "another Node has this outbox now: use that one"
_CLOSED = const("this Node is closed: make a new one")
_NUMBERS = "capacity", "segment_size", "hold", "quota", "bytes of inbox_quota", "messages of inbox_quota"
opened: "dict[Any, Node]" = {}  # the last Node to open its files, by their place


def _refuse(what: str, rule: str, value: object) -> None:
    raise ValueError("{} is {}, not {}".format(what, rule, repr(value)))


def _check(
    connect: object, listen: object, name: object, accept: object, guid: object, inbox_quota: object, *numbers: object
) -> None:
    """Raise ValueError for invalid arguments of Node."""
    for where, address in (("connect", connect), ("listen", listen)):
        if isinstance(address, (str, tuple, list)):
            host, port = address if isinstance(address, tuple) and len(address) == 2 else (None, None)
            if not isinstance(host, str) or not isinstance(port, int) or not 0 <= port <= 0xFFFF:
                _refuse(where, '("address", port)', address)
    for what, text in (("name", name), ("accept", accept)):
        if not isinstance(text, str) or len(text.encode()) > _NAME_MAX:
            _refuse(what, "a text of at most 100 bytes", text)
    if guid is not None and (not isinstance(guid, bytes) or len(guid) != 16):
        _refuse("guid", "16 bytes", guid)
    if not isinstance(inbox_quota, tuple) or len(inbox_quota) != 2:
        _refuse("inbox_quota", "(bytes, messages)", inbox_quota)
    numbers += inbox_quota  # type: ignore[operator]
    for what, value, least in zip(_NUMBERS, numbers, (_CAPACITY_MIN, 1, 1, 0, 0, 0)):
        if not isinstance(value, int) or not least <= value <= sys.maxsize:
            _refuse(what, "a whole number from {} on".format(least), value)


if not MICROPYTHON:
    import os

    def _forked() -> None:
        """Release the parent's outboxes: parent and child would overwrite each other."""
        for one in opened.values():
            one.give_way()
        opened.clear()

    os.register_at_fork(after_in_child=_forked)


class _Gone:
    """Replaces a Node's files after it is closed or another Node has opened them."""

    place = None
    fixed = True  # close() then tidies nothing

    def close(self) -> None:
        """As Files.close."""

    def __getattr__(self, name: str) -> "Any":
        raise OSError("this Node has let go of its files")


def _take_over(place: object) -> None:
    """Make the Node that has these files release them, after a commit."""
    older = opened.pop(place, None)
    if older and place:
        try:
            older.commits.commit_now()
        finally:
            older.give_way()


class Node:
    """A board's queue manager. folder: of the outbox, created if missing. docs/reference.md has all arguments.

    connect: (host, port) or a link for all traffic; None: each queue's own address, port 1801. listen: (host, port) for
    incoming connections. guid: 16 bytes; None: the outbox's, which starts with a new one. name: of this board, for
    people, and the default label. capacity, segment_size: see outbox.Outbox. hold: messages in memory, half of them in
    flight; None: as many as fit, at most 500. quota: bytes of the dead-letter queue and of the journal, each; None: a
    quarter of capacity. inbox_quota: (bytes, messages) waiting in all inboxes. confirmation: settings of the
    confirmation process. accept: GUIDs of queue managers that replace the ones that answered before. clock: s since
    1970. random: floats from 0 up to 1. on_failed, on_stored, on_connection: see outcomes.Notices. files: instead of
    folder.

    An older Node of this program with the same outbox ends: its calls then raise OutboxError. Raises the errors of
    outbox.Outbox; ValueError for an invalid argument, or an invalid queue in the outbox.
    """

    inboxes: "Inboxes | None" = None  # if any
    _queues: "list[DestinationQueue]"
    _tasks: "Tasks | None" = None
    _waiter: "Waiter | None" = None

    def __init__(
        self,
        folder: str = "",
        connect: "tuple[str, int] | Link | None" = None,
        guid: "bytes | None" = None,
        capacity: int = 4194304,
        hold: "int | None" = None,
        segment_size: int = 65536,
        settings: "session.Settings | None" = None,
        random: "Callable[[], float] | None" = None,
        on_failed: "Callable[[OutboxMessage], Any] | None" = None,
        files: "log.Files | None" = None,
        quota: "int | None" = None,
        confirmation: "confirm.Settings | None" = None,
        clock: "Callable[[], int] | None" = None,
        listen: "tuple[str, int] | None" = None,
        inbox_quota: "tuple[int, int] | None" = None,
        name: str = "",
        on_stored: "Callable[[OutboxMessage], Any] | None" = None,
        on_connection: "Callable[[Peer, str], Any] | None" = None,
        accept: str = "",
    ) -> None:
        numbers = capacity, segment_size, 1 if hold is None else hold, quota or 0
        _check(connect, listen, name, accept, guid, inbox_quota or (0, 0), *numbers)
        self.accept = accept.upper()
        self.heap, free = _collect_often()  # bytes
        _take_over(files.place if files else absolute(folder))  # before the folder is read
        files = files or log.Files(folder)
        capacity = min(capacity, files.bytes_max or capacity)
        hold = hold or min(_places(free), _HOLD_MAX)
        copies = capacity // 4 if quota is None else quota, max(hold // 4, 1)
        inbox_quota = self._inbox_quota = inbox_quota or copies
        self.outbox = outbox.Outbox(
            files,
            guid,
            segment_size,
            capacity,
            hold // 2,
            OutboxMessage,
            2 * inbox_quota[1] + 32,  # twice, as ended ones stay until their acknowledgements have arrived
            _arrival,  # type: ignore[arg-type]
            min(self.heap // _WRITE_SHARE, _WRITE_BYTES_MAX),
            name,
        )
        self.settings, self.clock = settings, Clock(clock)
        self.peers = Peers(self, connect, listen, random or _random.random)
        self.links = self.peers.links
        queues = self._queues = []
        confirmation = confirmation or confirm.Settings(long_live_time=log.ENDLESS)
        commits = self.commits = Commits(self.outbox, self.clock, Packets(self.outbox.log, self.heap), self.touch)
        notices = self.notices = Notices(commits, on_failed, on_stored, on_connection)
        outcomes = self.outcomes = Outcomes(commits, notices, queues, self.peers.all, confirmation, copies)
        self.deadlines = Deadlines(commits, outcomes, queues)
        self.backlog = Backlog(commits, outcomes, self.deadlines, notices, queues, hold)
        self.guid, self.stats = commits.guid, commits.stats
        for logged in self.outbox.queues:
            self._add(logged)
        self.backlog.take_restored()
        opened[files.place] = self

    # ---- for the application --------------------------------------------------------------------

    @property
    def next_message_id(self) -> int:
        """The MessageID of the next accepted message. MessageIDs jump at each start, then count up."""
        return self.outbox.next_message_id

    @property
    def last_message_id(self) -> int:
        """MessageID of the last accepted message, earlier starts included; 0: none. It tells after a restart whether an
        interrupted `send` was accepted. MessageIDs rise, not always by 1.
        """
        return self.outbox.last_message_id

    @property
    def damage(self) -> "list[str]":
        """One sentence for each unreadable record of the outbox."""
        return self.outbox.damage

    @property
    def waiting(self) -> int:
        """Number of pending messages: neither stored at their destination nor failed."""
        return self.backlog.waiting()

    @property
    def error(self) -> "Exception | None":
        """The error that ended delivery, or None."""
        return self.commits.error

    @property
    def is_unheard(self) -> bool:
        """True if messages are pending and no peer answers, not even with a refusal."""
        peers = [peer for peer in self.peers.all if peer.address]
        return bool([peer for peer in peers if peer.is_unheard] and not [peer for peer in peers if peer.session])

    def queue(self, name: str) -> DestinationQueue:
        """Return the destination queue with a format name such as DIRECT=TCP:10.0.0.5\\private$\\line1.

        Names are case-insensitive. Raises ValueError for other names. One name is one stream (B-099).
        """
        for queue in self._queues:
            if queue.name.lower() == name.lower():
                return queue
        self.peers.address(name)
        names.parse_format_name(name)
        host = name[name.index(":") + 1 : name.index("\\")]
        if not host or min(host) <= " " or "/" in host or host.count(":") == 1:
            raise ValueError("the host is a name or an address, without a port, not " + repr(host))
        return self._add(self.outbox.queue(name, self.clock.time()))

    def inbox(self, name: str, number: int = 0) -> "Inbox":
        """Open a private queue of the board. Open all inboxes before `start` or the first `poll`: the node refuses
        messages for queues that are not open. With a number, PRIVATE=<GUID>\\number is an address, too.

        Raises ValueError for an invalid name or number, or one of another inbox.
        """
        if self.inboxes is None:
            from ordack.node.inbox import Inboxes  # not before a program uses it

            self.inboxes = Inboxes(self.commits, self._inbox_quota)
            if self.peers.connect is not None:
                self.peers.at(self.peers.connect)
            self.touch()
        return self.inboxes.open(name, number)

    def find(self, message_id: int) -> "OutboxMessage | None":
        """Return the message with this MessageID, earlier starts included; None if the outbox does not have it."""
        message = self.outcomes.in_memory(message_id)
        for queue in self._queues:
            if message is None:
                message = queue.followed.get(message_id)
            if message is None:
                self.commits.commit_now()
                restored: "Any" = self.outbox.flash_only.find(queue.logged, message_id)
                if restored is not None:
                    message = queue.followed[message_id] = restored.handle
                    message.elsewhere = queue
        return message

    def dead_letters(self) -> "list[OutboxMessage]":
        """Return the dead-letter queue: messages with `dead_letter` that failed or are in doubt (B-391)."""
        return self._kept(confirm.X)

    def journal(self) -> "list[OutboxMessage]":
        """Return the journal: messages with `journal` that an application has received (B-393)."""
        return self._kept(confirm.J)

    def read(self, message: OutboxMessage) -> "UserMessage":
        """Return a whole message: `properties.body`, `properties.label`. A dead letter has its final class (B-394).

        Raises OutboxDamaged, OSError.
        """
        message = message.known()
        if message.record[confirm.STATE] == confirm.O and message.queue is not None:
            restored: "Any" = self.outbox.flash_only.find(message.queue, message.message_id)
            message = message if restored is None else restored.handle
        data = bytearray(message.size)
        self.commits.packets.load(message, memoryview(data))
        from mqqb import parse  # not before a program reads one

        packet: "UserMessage" = parse.parse(bytes(data))  # type: ignore[assignment]
        if message.record[confirm.STATE] == confirm.X:
            packet.properties.fields[core.PROPERTIES_MESSAGE_CLASS] = message.record[confirm.CLASS]
        return packet

    def take(self, message: OutboxMessage) -> None:
        """Remove a message from the dead-letter queue or the journal, durably.

        Raises ValueError if the message is in neither, OutboxError if the file system fails.
        """
        self.outcomes.let_go(message)
        self.commits.commit_now()
        self.commits.check_durable()

    def delete(self, message: OutboxMessage) -> None:
        """Give up a pending message, durably. Its class becomes 0x8001 (C-29).

        Raises ValueError if the message has ended, OutboxError if the file system fails.
        """
        self.outcomes.give_up(message)
        self.commits.commit_now()
        self.commits.check_durable()

    async def __aenter__(self) -> "Node":
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def poll(self) -> int:
        """Do all work that is due, then run callbacks. Return the ms until the next call is needed, 0 to 100.

        It never waits: each peer reads and writes one buffer at most. Raises errors that end delivery, at every later
        call, too; and once, exceptions of callbacks.
        """
        wait = self.work()
        notices = self.notices
        if notices.deliver():
            wait = 0
        error = notices.error
        if error is not None:
            notices.error = None
            raise error
        return wait

    def work(self) -> int:
        """As `poll`, without callbacks."""
        commits = self.commits
        commits.enter()
        try:
            self.outcomes.settle()
            self.deadlines.check()
            has_memory = self.backlog.refill()
            now = self.clock.now()
            if commits.marked_at is not None and now - commits.marked_at >= LAZY_SYNC_MS:
                commits.marked_at = now
                commits.commit_now()  # without a new message; saves resends after a power cut
            wait = self.peers.poll(now)
            if self.inboxes is not None:
                due = self.inboxes.next_timeout(now)
                if due is not None:
                    wait = min(wait, max(due - now, 0))
            for queue in self._queues:
                if has_memory and self.backlog.is_low(queue):
                    wait = 0
        except MemoryError:  # retry later: other code may free memory
            for peer in self.peers.all:
                peer.reason = log.NO_MEMORY
            gc.collect()
            wait = TICK_MS
        except Exception as error:
            commits.error = error
            self._fail(error)
            raise
        commits.is_busy = False  # not after Ctrl-C: then a new Node must clean up
        return wait

    def wait(self, condition: "Callable[[], Any]", timeout_ms: "int | None" = None) -> bool:
        """Poll until `condition()` is true. Return False if it is not true within timeout_ms. Sleeps in between.

        Raises as `poll`.
        """
        began = self.clock.now()
        while not condition():
            wait = self.poll()
            if timeout_ms is not None:
                left = began + timeout_ms - self.clock.now()
                if left <= 0:
                    return bool(condition())
                wait = min(wait, left)
            if wait and not condition():
                if self._waiter is None:
                    from ordack.node.wait import Waiter  # not before a program uses it

                    self._waiter = Waiter()
                self._waiter.sleep(self.links, wait)
        return True

    def start(self) -> None:
        """Start delivery in a task of the running event loop; `async with node:` starts and closes (C-33)."""
        if self._tasks is not None:
            return
        from ordack.node.tasks import Tasks  # not before a program uses it

        self.deadlines.check()
        self._tasks = Tasks(self)

    async def run(self) -> None:
        """Deliver until `close`. Raises the error that ends delivery."""
        self.start()
        assert self._tasks is not None
        await self._tasks.ended.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Close connections and files. Pending messages stay in the outbox; tasks that await them get OutboxError."""
        if self._tasks is not None:
            await self._tasks.close()
        self.close_now()
        self._fail(self.error or log.OutboxError(_CLOSED))

    def close_now(self) -> None:
        """Close a node that was not started."""
        self.peers.close(self.clock.now())
        self.commits.commit_now()
        self.outbox.close()
        written: "Any" = self.outbox.log
        place = written.files.place
        written.files = _Gone()
        self.commits.closed = log.OutboxError(_CLOSED)
        if opened.get(place) is self:
            del opened[place]

    def give_way(self) -> None:
        """Stop because another Node is about to open the same files, and tell waiting tasks."""
        written: "Any" = self.outbox.log
        written.files.close()
        written.files = _Gone()
        error = self.commits.error = log.OutboxError(TAKEN)
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Tell all tasks that wait for a message that delivery has ended."""
        handles: "list[Any]" = self.outbox.handles()
        for message in handles + [one for queue in self._queues for one in queue.followed.values()]:
            message.failure = error
            message.tell()

    # ---- for queues and peers -------------------------------------------------------------------

    def commit_now(self) -> bool:
        """Make accepted messages durable now. False: the file system refused, and some messages may not be accepted."""
        return self.commits.commit_now()

    def touch(self) -> None:
        """Wake the task that polls, after a change."""
        if self._tasks is not None:
            self._tasks.wake()

    def leave(self, link: "Waitable") -> None:
        """Release a link that is about to be closed."""
        if self._tasks is not None:
            self._tasks.leave(link)
        if self._waiter is not None:
            self._waiter.leave(link)

    # ---- inside ---------------------------------------------------------------------------------

    def _kept(self, state: int) -> "list[OutboxMessage]":
        handles: "list[Any]" = self.outbox.handles()
        return [message for message in handles if message.record[confirm.STATE] == state and message.is_kept()]

    def _add(self, logged: "LoggedQueue") -> DestinationQueue:
        peer = self.peers.at(self.peers.address(logged.name))
        queue = DestinationQueue(self.backlog, logged, names.parse_format_name(logged.name), peer)
        peer.add(queue)
        self._queues.append(queue)
        return queue


def _arrival(number: int, record: "array[int]", source: "LoggedSource") -> "Arrival":
    from ordack.node import owed  # not before there is one

    return owed.Arrival(number, record, source)


async def await_start(owner: "Any") -> bool:
    """Raise OutboxError if the owner's node is not started, and no other task is about to start it. False: it was
    running before, and nothing has changed.
    """
    node = owner_of(owner)
    tasks = None if node is None else node._tasks  # noqa: SLF001 - of this module
    if node is None or tasks is not None:
        return False
    import asyncio

    await asyncio.sleep(0)
    if node._tasks is None:  # noqa: SLF001
        raise log.OutboxError("the node is not started: call node.start()")
    return True


def owner_of(part: "Any") -> "Node | None":
    """Return the open Node of these inboxes or this logged queue, or None."""
    for node in opened.values():
        if part is node.inboxes or part in node.outbox.queues:
            return node
    return None


def _places(free: int) -> int:
    """Return how many messages fit into free bytes beside a session, also at the next start."""
    wide = sys.maxsize >> 32 != 0  # 64 bits
    return max((free - (_SESSION_BYTES << wide)) // (_PLACE_BYTES << wide), _PLACES_MIN)


def _collect_often() -> "tuple[int, int]":
    """Let MicroPython collect often, before objects that stay are scattered over the heap, which is never compacted.

    Otherwise a growing list finds no room although most of the heap is free. An application's own threshold is kept.
    Returns the heap bytes of these modules and free ones, and the free bytes.
    """
    heap: "Any" = gc
    if not MICROPYTHON:
        return 1 << 30, 1 << 30
    gc.collect()
    free: int = getattr(core.functions, "heap_free", heap.mem_free)()
    if heap.threshold() == -1:
        heap.threshold(free // (4 if free > _LARGE_HEAP else 6))  # each collection scans the whole heap
    return free + _MODULES_BYTES, free
