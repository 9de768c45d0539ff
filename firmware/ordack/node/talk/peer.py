"""The peers of a node: those that it connects to, by its queues' addresses, and those that connect to it.

Each peer has a link, the session over the link, and the queues whose messages go there.
"""

import errno
import gc

from mqqb import connection, const, core, names, session
from ordack.node.storage import log
from ordack.node.talk.link import TICK_MS, Backoff, TcpLink

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ordack.node.node import Node
    from ordack.node.queue import DestinationQueue
    from ordack.node.talk.link import Link, Waitable

PORT = 1801  # B-001
ACCEPTED_MAX = 4  # incoming connections at a time
WRITE_BYTES = 8192  # of the buffer for one write, or
_HEAP_SHARE = const(128)  # this share of the heap if that is less, but at least
_HANDSHAKE_BYTES = const(592)  # this,
_FROM_HERE_BYTES = const(1088)  # or this for a node with inboxes: fits two of the longest format names
_ACKS_BYTES = const(312)  # of an OrderAck or FinalAck to the longest address, after a SessionAck
_UNHEARD = ((errno.ETIMEDOUT,), (errno.EHOSTUNREACH,), (errno.ECONNABORTED,))  # no answer
_FULL_MS = const(5000)  # limit for a session that still sends after a received message found no room


class Peer:
    """A session with another queue manager, opened when needed, and its traffic.

    backoff: between attempts to connect; None: `link` is an incoming connection. remote_guid: of the queue manager that
    answered last (A-39). reason: why the last session or attempt ended. is_unheard: the last attempt got no answer, not
    even a refusal. session: None while there is none.
    """

    def __init__(self, source: "Node", link: "Link", backoff: "Backoff | None") -> None:
        self.source = source
        self.link = link
        self.queues: "list[DestinationQueue]" = []
        self.remote_guid = names.NULL_GUID
        self.reason = ""
        self._told: "str | None" = None  # the `reason` last reported to the application
        self.is_unheard = False
        self.session: "session.Session | None" = None
        self.backoff = backoff
        self._is_opening = False
        self._was_open = False
        self._again_at = 0  # ms: the next attempt
        self._turn = 0  # the first queue to ask for the next message
        self.room = 0  # bytes of a packet that fit into the buffer; 0: no session
        self._out = bytearray()
        self._view = memoryview(self._out)
        self._at = 0  # bytes written of it,
        self._end = 0  # and to be written
        self._large: "Any" = None  # a message too large for the buffer, sent in parts;
        self._large_at = 0  # bytes of it that have been in the buffer
        self._leaving: "DestinationQueue | None" = (
            None  # the queue of such a message, until the link has taken all of it
        )
        self._trailer = 0  # bytes of its SessionHeader, which waits at the end of the buffer
        # After a message found no room: ms when the session closes, or count below which kept arrivals must fall first.
        self._full: "tuple[int, int] | None" = None
        self._write_bytes = min(WRITE_BYTES, source.heap // _HEAP_SHARE)
        self._least = _HANDSHAKE_BYTES
        if backoff is None:
            self._begin(source.clock.now())

    @property
    def address(self) -> str:
        """The host at the other end, "" without an address."""
        return getattr(self.link, "host", "")

    def add(self, queue: "DestinationQueue") -> None:
        """Carry the messages of this queue, too."""
        if self.queues and queue.logged.guid == b"\0\0\0\0":
            queue.logged.guid = self.queues[0].logged.guid
        self.queues.append(queue)
        self._least = max(
            self._least, queue.draft.transaction_at + core.TRANSACTION_HEADER_SIZE + core.SESSION_HEADER_SIZE
        )

    def poll(self, now: int) -> int:
        """Do what can be done now; return the ms until the next call is needed, up to TICK_MS.

        At most one read, one write of WRITE_BYTES or a packet, and two syncs of the outbox, one for received and one
        for sent messages. Raises errors that end delivery.
        """
        try:
            if self.session is None and not self._connect(now):
                wait = self._again_at - now
                return TICK_MS if self._is_opening or wait <= 0 else min(wait, TICK_MS)
            return self._converse(now)
        except OSError as error:
            self.is_unheard = error.args[:1] in _UNHEARD
            self.end(now, str(error))
        except MemoryError:  # nothing is lost, and the next attempt needs less
            gc.collect()  # ending it needs memory, too
            self._write_bytes //= 2
            self.end(now, log.NO_MEMORY)
            self._out = bytearray()
            self._view = memoryview(self._out)
        return 1

    def end(self, now: int, reason: str) -> None:
        """End the connection in any state."""
        conversation = self.session
        self.reason = log.AHEAD + "; " + reason if self.source.outbox.ahead else reason
        self.session = None
        self._is_opening = False
        self._at = self._end = self.room = 0
        self._large = self._leaving = None
        if self.link.stream is not None:
            self.source.leave(self.link)
        self.link.close()
        if self.backoff is not None:
            self._again_at = now + self.backoff.next()
        if self.backoff is not None or self._was_open:
            self._tell(self.reason)
        if conversation is not None:
            conversation.transport_closed()
            if self._was_open and self.source.inboxes is not None:
                self.source.inboxes.closed(self)

    def _tell(self, reason: str) -> None:
        """Report the begin of a session (""), or why there is none, unless reported already."""
        if reason != self._told:
            self._told = reason
            self.source.notices.connection(self, reason)

    def _is_needed(self) -> bool:
        """Is there a message to send (B-189, B-190, B-217), a FinalAck to await, or an inbox?"""
        for queue in self.queues:
            if queue.stream.table or queue.stream.awaiting_final_ack or queue.logged.open:
                return True
        return self.source.inboxes is not None

    def _connect(self, now: int) -> bool:
        """Proceed towards a session if needed; True when the handshake begins."""
        if not self._is_opening:
            if now < self._again_at:
                return False
            if not self._is_needed():
                self.is_unheard = False
                return False
            self._is_opening = True
            self.link.open()
        if not self.link.is_open():
            return False
        self._is_opening = self.is_unheard = False
        self._begin(now)
        return True

    def _begin(self, now: int) -> None:
        conversation = self.session = session.Session(
            self.backoff is not None, self.source.guid, now, settings=self.source.settings
        )
        self._was_open = False
        self._full = None
        for queue in self.queues:
            queue.stream.restart()
        self._make_room()
        conversation.connected(now, False, "ordack name:{}\0".format(self.source.outbox.name).encode())

    def _make_room(self) -> None:
        """Make the empty buffer large enough."""
        least = self._least if self.source.inboxes is None else max(self._least, _FROM_HERE_BYTES)
        if len(self._out) < least:
            self._out = bytearray(max(self._write_bytes, least))
            self._view = memoryview(self._out)
        self.room = len(self._out) - core.SESSION_HEADER_SIZE

    def _converse(self, now: int) -> int:
        conversation = self.session
        assert conversation is not None
        room = conversation.reader.room()
        count = self.link.readinto(room)
        if count:
            conversation.reader.took(count)
            self._listen(conversation, now)
        due = conversation.next_timeout()
        if due is not None and due <= now:
            for event in conversation.handle_timeout(now):
                self._take(event)
        if self._leaving is not None:
            self._leaving.stream.postpone(now)
        for queue in self.queues:
            due = queue.stream.next_timeout()
            if due is not None and due <= now:
                queue.stream.handle_timeout(now)
        full = self._full
        is_free = full and self._at == self._end and self._large is None  # no packet is half written
        if full and is_free and (now >= full[0] or self.source.outbox.arrivals < full[1]):
            conversation.close("B-285", "no room for what came")
        is_written = conversation.closed is None and self._write(conversation, now)
        if conversation.closed is not None:
            last = conversation.data_to_send()  # a refusal at most
            if last:
                self.link.write(memoryview(last))
            self.end(now, conversation.closed.rule + ": " + conversation.closed.reason)
            return 1
        if is_written or count == len(room):
            return 0
        wait = TICK_MS
        due = conversation.next_timeout()
        if due is not None and due - now < wait:
            wait = due - now
        for queue in self.queues:
            due = queue.stream.next_timeout()
            if due is not None and due - now < wait:
                wait = due - now
        return max(wait, 1)

    def _write(self, conversation: session.Session, now: int) -> bool:
        """Write waiting bytes, or the next messages. True: a full buffer was written, and there may be more."""
        is_full = False
        if self._at == self._end:
            self._at = 0
            if self._large is not None:
                self._go_on()
                is_full = True
            else:
                self._leaving = None
                self._make_room()
                self._end = conversation.take_output(self._out, 0)
                is_full = self._fill(conversation, now)
            if not self._end:
                return False
        count = self.link.write(self._view[self._at : self._end])
        if count and self._leaving is not None:
            conversation.progressed()
        self._at += count
        return is_full and self._at == self._end

    def _go_on(self) -> None:
        """Put the next part of a large packet into the buffer. Raises OSError if its message has ended."""
        message = self._large
        if message.segment is None:
            raise OSError("a message ended while it was sent")
        at = self._large_at
        room = self.room
        end = self._end = min(message.size - at, room)
        self.source.outbox.log.load_into(message, self._view[:end], at)
        self._large_at = at + end
        if self._large_at == message.size:
            self._out[end : end + core.SESSION_HEADER_SIZE] = self._out[room:]
            self._end += self._trailer
            self._large = None

    def _fill(self, conversation: session.Session, now: int) -> bool:
        """Put messages into the buffer. True: there are more."""
        source = self.source
        if not conversation.can_send():
            return False
        if source.commits.uncommitted:
            source.commits.commit_now()  # durable before sent (B-098)
        room = self.room
        if source.inboxes is not None:
            while conversation.can_send():
                if self._end + _ACKS_BYTES > room:
                    return True
                reply = source.inboxes.next_packet(self, now)
                if reply is None:
                    break
                conversation.send(reply[0], reply[1], reply[2], now)
                self._end += conversation.take_output(self._out, self._end)
        while conversation.can_send():
            entry = None
            for _ in self.queues:
                queue = self.queues[self._turn]
                self._turn = (self._turn + 1) % len(self.queues)
                entry = queue.stream.next_to_send()
                if entry is not None:
                    break
            if entry is None:
                break
            message: "Any" = entry.key
            at = self._end
            if at and at + message.size > room:
                return True
            if entry.tx_sequence_id is not queue.sending and entry.tx_sequence_id != queue.sending:
                # An older sequence after a power cut would be refused for ever (B-275), and the OrderAck of this
                # message would cover failed ones behind the gap.
                if not source.commits.commit_now():
                    raise OSError("the outbox cannot be written")
                queue.sending = entry.tx_sequence_id
            size = min(message.size, room)
            if not source.backlog.transmit(queue, entry, self._view[at : at + size]):
                continue
            queue.stream.prepare(entry, self._out, at + queue.draft.transaction_at)
            source.stats.sent += 1
            self._end = at + conversation.send_in(entry, self._out, at, size, entry.recoverable, now)
            if size < message.size:
                self._large = message
                self._leaving = queue
                self._large_at = size
                self._trailer = self._end - size
                self._end = size
                return True
        return False

    def _listen(self, conversation: session.Session, now: int) -> None:
        """Handle received data; messages are reported stored once all that came with them is durable.

        After a message that finds no room, none is (B-110, B-285). The session continues until there may be room, at
        most 5 s: its messages and their acknowledgements in the other direction make room.
        """
        source = self.source
        inboxes = source.inboxes
        waiting: "list[bool] | None" = None  # whether each message in the sync is recoverable
        refusal = ""
        has_arrived = False
        while True:
            event = conversation.next_event(now)
            if event is None:
                break
            if self._was_open and conversation.closed is None and self.backoff is not None:  # the peer accepts data
                self.backoff.reset()
            if not isinstance(event, connection.MessageReceived):
                self._take(event)
                continue
            if refusal:
                continue
            packet = event.packet
            try:
                if inboxes is None or hasattr(packet, "body"):  # an OrderAck or a FinalAck
                    source.outcomes.received(packet, self.queues)
                elif not self._full:
                    has_arrived = True
                    if inboxes.arrived(self, packet, event.raw, now):
                        self._full = now + _FULL_MS, source.outbox.arrivals
            except log.OutboxError as error:
                refusal = str(error)
                waiting = waiting or []
                continue
            if self._full:
                continue
            if waiting is None:
                if not source.commits.must_commit:
                    conversation.stored(event.recoverable, now)
                    continue
                waiting = []
            waiting.append(event.recoverable)
        if waiting is not None and source.commits.must_commit and not source.commits.commit_now():
            refusal = refusal or "an outcome could not be made durable"
        if inboxes is not None and has_arrived:
            inboxes.settled()
        if refusal:
            conversation.close("B-098", refusal)
        for recoverable in waiting or ():
            conversation.stored(recoverable, now)

    def _take(self, event: object) -> None:
        """Handle an event other than a message."""
        source = self.source
        if isinstance(event, connection.Acknowledged):
            if source.inboxes is not None:
                source.inboxes.acknowledged(event.entries)
        elif isinstance(event, connection.Opened):
            assert self.session is not None
            guid = self.session.remote_guid
            known = guid[: log.KNOWN_BYTES]
            for queue in self.queues:  # waiting messages are for the first queue manager that answered
                if queue.logged.guid not in (known, b"\0\0\0\0"):
                    from mqqb.names import guid_text  # not before a GUID differs

                    text = guid_text(guid)
                    if text not in source.accept:
                        self.session.close("A-39", text + " is not the queue manager before: see accept= of Node")
                        return
            for queue in self.queues:
                if queue.logged.guid != known:
                    source.outbox.bind(queue.logged, known)
            source.stats.connects += 1
            self._was_open = True
            self.link.failed = False
            self._tell("")
            self.remote_guid = guid


class Peers:
    """The peers of a node. connect, listen, random: as in Node. links: all links to wait for."""

    def __init__(
        self,
        source: "Node",
        connect: "tuple[str, int] | Link | None",
        listen: "tuple[str, int] | None",
        random: "Callable[[], float]",
    ) -> None:
        self.links: "list[Waitable]" = []
        self.all: "list[Peer]" = []
        self._source = source
        self.connect = connect
        self._random = random
        self._listener: "Any" = None  # a listener.TcpListener
        if listen:
            from ordack.node.talk.listener import TcpListener  # not before a program uses it

            self._listener = TcpListener(listen[0], listen[1], Backoff(random))
            self.links.append(self._listener)

    def add(self, link: "Link", backoff: "Backoff | None") -> Peer:
        """Add a peer at the other end of this link. backoff: as in Peer."""
        peer = Peer(self._source, link, backoff)
        self.all.append(peer)
        self.links.append(link)
        return peer

    def address(self, name: str) -> "tuple[str, int] | Link":
        """Return where messages for a format name go. Raises ValueError for an invalid name."""
        if not name.upper().startswith(("DIRECT=TCP:", "DIRECT=OS:")) or "\\" not in name:
            raise ValueError("a queue is DIRECT=TCP:address\\private$\\name, or with OS, not " + name)
        return self.connect or (name[name.index(":") + 1 : name.index("\\")], PORT)

    def at(self, address: "tuple[str, int] | Link") -> Peer:
        """Return the peer at this address, new if unknown."""
        for peer in self.all:
            known: "Any" = peer.link
            if peer.backoff and (known is address or (peer.address and (known.host, known.port) == address)):
                return peer
        link: "Link" = TcpLink(address[0], address[1]) if isinstance(address, tuple) else address
        return self.add(link, Backoff(self._random))

    def poll(self, now: int) -> int:
        """Do the peers' work; return the ms until the next call is needed."""
        wait = TICK_MS
        if self._listener is not None:
            link = self._listener.poll(now, self._source)
            if link is not None:
                if len([peer for peer in self.all if peer.backoff is None]) >= ACCEPTED_MAX:
                    link.close()
                else:
                    self.add(link, None)
        for peer in self.all:
            wait = min(wait, peer.poll(now))
            if peer.backoff is None and peer.session is None:  # an incoming connection has ended
                self.all.remove(peer)
                self.links.remove(peer.link)
                return 0  # the list has changed
        return wait

    def close(self, now: int) -> None:
        """End all connections."""
        for peer in self.all:
            peer.end(now, "closed")
        if self._listener is not None:
            self._source.leave(self._listener)
            self._listener.close()
