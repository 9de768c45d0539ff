"""One peer: the link to it, the session over the link, the queues whose messages go there."""

import gc

from mqqb import packets, session

from node import outbox
from node.link import TICK_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from node.interfaces import Link
    from node.link import Backoff
    from node.node import Node, Queue

WRITE_BYTES = 8192  # about so much is put together for one write,
WRITE_BYTES_MIN = 256  # and at least so much when memory has run out


class Peer:
    """A session with another queue manager, as often as it is needed, and what it carries.

    initiator: this side connects; False: `link` is a connection that has come. `remote_guid`: of the queue manager that
    answered last (A-39). `reason`: why the last session or attempt ended. `session`: None while there is none.
    """

    def __init__(self, node: "Node", link: "Link", backoff: "Backoff | None") -> None:
        self.node = node
        self.link = link
        self.initiator = backoff is not None
        self.queues: "list[Queue]" = []
        self.remote_guid = packets.NULL_GUID
        self.reason = ""
        self.session: "session.Session | None" = None
        self.is_over = False  # this connection, and nobody will open another one
        self._backoff = backoff
        self._is_opening = False
        self._was_open = False
        self._again_at = 0  # ms: the next attempt
        self._turn = 0  # the queue that is asked first for the next message
        self._unwritten = memoryview(b"")
        self._write_bytes = WRITE_BYTES
        if not self.initiator:
            self._begin(node.now())

    @property
    def address(self) -> str:
        """The host at the other end as the link knows it, "" if it has no address."""
        return getattr(self.link, "host", "")

    def wake(self) -> None:
        """Something has changed in a queue."""
        self.node.touch()

    def poll(self, now: int) -> int:
        """Do what can be done now; ms until it wants to be called again at the latest, up to TICK_MS.

        At most one read, one write of about WRITE_BYTES, and one sync of the outbox. Raises what ends delivery.
        """
        try:
            if self.session is None and not self._connect(now):
                return TICK_MS if self._is_opening else min(max(self._again_at - now, 1), TICK_MS)
            return self._converse(now)
        except OSError as error:
            self.end(now, str(error))
        except MemoryError as error:  # nothing is lost by another attempt, and it needs less
            self._write_bytes = max(self._write_bytes // 2, WRITE_BYTES_MIN)
            self.end(now, str(error))
            gc.collect()
        return 1

    def end(self, now: int, reason: str) -> None:
        """End the connection, whatever its state."""
        conversation = self.session
        self.reason = reason
        self.session = None
        self._is_opening = False
        self._unwritten = memoryview(b"")
        if self.link.stream is not None:
            self.node.leave(self.link)
        self.link.close()
        if self._backoff is None:
            self.is_over = True
        else:
            self._again_at = now + self._backoff.next()
        if conversation is not None:
            conversation.transport_closed()
            if self._was_open and self.node.receiver is not None:
                self.node.receiver.closed(self, now)

    def _is_needed(self) -> bool:
        """Is there something to send (B-189, B-190, B-217), or is a FinalAck awaited, or can messages come?"""
        if self.node.receiver is not None:
            return True
        return any(queue.stream.table or queue.stream.awaiting_final_ack for queue in self.queues)

    def _connect(self, now: int) -> bool:
        """Go on towards a session if one is needed; True when the handshake begins."""
        if not self._is_opening:
            if now < self._again_at or not self._is_needed():
                return False
            self._is_opening = True
            self.link.open()
        if not self.link.is_open():
            return False
        self._is_opening = False
        self._begin(now)
        return True

    def _begin(self, now: int) -> None:
        conversation = self.session = session.Session(self.initiator, self.node.guid, now, settings=self.node.settings)
        self._was_open = False
        for queue in self.queues:
            queue.stream.restart()
        conversation.connected(now)

    def _converse(self, now: int) -> int:
        conversation = self.session
        assert conversation is not None
        node = self.node
        data = node.read_buffer
        count = self.link.readinto(data)
        if count:
            self._take(conversation.receive_data(data[:count], now), now)
        due = conversation.next_timeout()
        if due is not None and due <= now:
            self._take(conversation.handle_timeout(now), now)
        for queue in self.queues:
            due = queue.stream.next_timeout()
            if due is not None and due <= now:
                queue.stream.handle_timeout(now)
        is_written = conversation.closed is None and self._write(conversation, now)
        if conversation.closed is not None:
            last = conversation.data_to_send()  # a refusal, that is all
            if last:
                self.link.write(memoryview(last))
            self.end(now, conversation.closed.rule + ": " + conversation.closed.reason)
            return 1
        if is_written or count == len(data):
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
        """Hand over what waits, or the next messages. True: all of a full buffer went, there may be more."""
        size = 0
        if not self._unwritten:
            size = self._fill(conversation, now)
            data = conversation.data_to_send()
            if not data:
                return False
            self._unwritten = memoryview(data)
        count = self.link.write(self._unwritten)
        self._unwritten = self._unwritten[count:]
        return size >= self._write_bytes and not self._unwritten

    def _fill(self, conversation: session.Session, now: int) -> int:
        """Give the session messages until there is enough for one write; bytes of them."""
        node = self.node
        if not conversation.can_send():
            return 0
        if node.uncommitted:
            node.commit_now()  # nothing leaves before it is durable (B-098)
        size = 0
        if node.receiver is not None:
            while size < self._write_bytes and conversation.can_send():
                reply = node.receiver.next_packet(self, now)
                if reply is None:
                    break
                conversation.send(reply[0], reply[1], reply[2], now)
                size += len(reply[1])
        while size < self._write_bytes and conversation.can_send():
            entry = None
            for _ in self.queues:
                queue = self.queues[self._turn]
                self._turn = (self._turn + 1) % len(self.queues)
                entry = queue.stream.next_to_send()
                if entry is not None:
                    break
            if entry is None:
                break
            if entry.tx_sequence_id != queue.sending:
                # If an older sequence came back after a cut, the destination would refuse it for ever (B-275).
                node.settle_now()
                queue.sending = entry.tx_sequence_id
            packet = node.transmit(queue, entry)
            if packet is None:
                continue
            queue.stream.prepare(entry, packet, queue.draft.transaction_at)
            conversation.send(entry, packet, entry.recoverable, now)
            node.stats.sent += 1
            size += len(packet)
        return size

    def _take(self, events: "list[object]", now: int) -> None:
        """Act on what the session tells; messages are reported stored when all that came with them is durable."""
        conversation = self.session
        assert conversation is not None
        node = self.node
        receiver = node.receiver
        messages: "list[session.MessageReceived]" = []
        refusal = ""
        for event in events:
            if isinstance(event, session.MessageReceived):
                if refusal:
                    continue
                try:
                    if isinstance(event.packet, packets.UserMessage) and receiver is not None:
                        receiver.arrived(self, event.packet, event.raw, now)
                    else:
                        node.received(event.packet)
                except outbox.OutboxError as error:
                    refusal = str(error)
                else:
                    messages.append(event)
            elif isinstance(event, session.Acknowledged):
                if receiver is not None:
                    receiver.acknowledged(self, event.entries, now)
            elif isinstance(event, session.Opened):
                node.stats.connects += 1
                self._was_open = True
                self.remote_guid = conversation.remote_guid
                if self._backoff is not None:
                    self._backoff.reset()
                if receiver is not None:
                    receiver.opened(self, now)
        if node.must_commit and not node.commit_now():
            refusal = refusal or "an outcome could not be made durable"
        if receiver is not None and (messages or refusal):
            receiver.settled(self, now)
        if refusal:
            conversation.close("B-098", refusal)
        for event in messages:
            conversation.stored(event.recoverable, now)
