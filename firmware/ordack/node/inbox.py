"""The board as a destination: private queues that receive each message once and in order (sans I/O).

A message is in the log before it is acknowledged, until the application has handled it. Then the log keeps the FinalAck
that is owed until a session has acknowledged the FinalAck. `mqqb.destination` decides. A sender and its name for the
queue form a stream (B-099), whose counters become durable with the message (B-098). All queues are transactional
(B-258). The node passes each UserMessage to `arrived`, makes the log durable and calls `settled`; then it tells the
session that the messages are stored. Times: `now` ms, `time` s since 1970 or 0.
"""

from array import array

from mqqb import compose, confirm, const, core, headers, names, parse
from mqqb.destination import EARLY_ORDER_ACK, IncomingStream, rejection_of
from ordack.node import owed
from ordack.node.owed import Arrival, Source
from ordack.node.storage import log, outbox

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from mqqb import streams
    from ordack.node.backlog import Commits
    from ordack.node.storage.sources import LoggedSource
    from ordack.node.talk.peer import Peer


class InboxMessage:
    """A message for the application.

    source: GUID of its sender, 16 bytes; message_id: the sender's number for it. sent_time: s since 1970 by the
    sender's clock. again: it was, or may have been, handed out before. packet: the whole message.
    """

    def __init__(self, arrival: Arrival, packet: headers.UserMessage, again: bool) -> None:
        properties = packet.properties
        self.arrival = arrival
        self.packet = packet
        self.body = bytes(properties.body)
        self.label = properties.label
        self.message_class = properties.fields[core.PROPERTIES_MESSAGE_CLASS]
        self.message_id = packet.user.fields[core.USER_MESSAGE_ID]
        self.source = packet.user.source_queue_manager
        self.sent_time = packet.user.fields[core.USER_SENT_TIME]
        self.again = again


class Inbox:
    """A private queue of this board. Made by Inboxes.open.

        async for message in inbox:
            handle(message.body)  # the next iteration takes this message

        message = inbox.get()     # without asyncio
        if message is not None:
            handle(message.body)
            inbox.take(message)

    A message that was not taken, because its handler failed or the board was reset, comes again next.
    """

    def __init__(self, inboxes: "Inboxes", name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.waiting: "list[Arrival]" = []  # in order; the application may have the first
        self.restored = False  # the application may have had the first before the reset
        self._inboxes = inboxes
        self._given: "InboxMessage | None" = None
        self._event: "Any" = None

    def __len__(self) -> int:
        """Messages that are not taken yet."""
        return len(self.waiting)

    def get(self) -> "InboxMessage | None":
        """Return the oldest message, the same one until it is taken; None if there is none."""
        given = self._given
        if given is not None:
            given.again = True
            return given
        self._inboxes.check_deadlines()  # poll may not have run for a while
        if self.waiting:
            arrival = self.waiting[0]
            given = self._given = InboxMessage(arrival, self._inboxes.read(arrival), self.restored)
        return given

    def take(self, message: InboxMessage) -> None:
        """Remove a handled message, durably. Raises ValueError if `get` did not return it last.

        Raises OutboxError if the file system fails: after a power cut the message may come again.
        """
        self._end(message, confirm.ACK_RECEIVE)

    def reject(self, message: InboxMessage) -> None:
        """Reject a message. Its sender gets class 0xC004 (B-342). Raises as `take`."""
        self._end(message, confirm.NACK_RECEIVE_REJECTED)

    def _end(self, message: InboxMessage, message_class: int) -> None:
        if self._given is None or message is not self._given:
            raise ValueError("get() did not return this message last")
        self._given = None
        self.restored = False
        del self.waiting[0]
        self._inboxes.end(message.arrival, message_class)
        self._inboxes.settle()

    def expired(self, time: int) -> "list[Arrival]":
        """Remove messages whose TimeToBeReceived has expired, except the application's (B-341, B-407)."""
        first = 1 if self._given is not None else 0
        over = [arrival for arrival in self.waiting[first:] if _expiry(arrival) <= time]
        if over:
            self.waiting = [arrival for arrival in self.waiting if arrival not in over]
            self.restored = self.restored and first == 1
        return over

    def tell(self) -> None:
        """Wake a task that waits for a message."""
        if self._event is not None:
            self._event.set()
            self._event = None

    def __aiter__(self) -> "_Messages":
        return _Messages(self)

    async def arrived(self) -> None:
        """Wait for a message. Raises OutboxError: the node is not started."""
        from ordack.node import node

        if not self.waiting and not await node.await_start(self._inboxes):
            import asyncio

            if self._event is None:
                self._event = asyncio.Event()
            await self._event.wait()


class _Messages:
    """One loop over an inbox. It takes only messages that it returned itself."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._last: "InboxMessage | None" = None

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> InboxMessage:
        inbox = self._inbox
        last = self._last
        self._last = None
        if last is not None:
            inbox.take(last)
        while True:
            message = inbox.get()
            if message is not None:
                self._last = message
                return message
            await inbox.arrived()


class Inboxes:
    """All inboxes of a node, in its log; messages of the last start are restored.

    quota: (bytes, messages) that may wait for the application; a message beyond it is refused with NACK_Q_EXCEED_QUOTA.
    sources_max: streams remembered (B-435). early_order_ack: ms that an OrderAck waits while a packet is incomplete;
    0: as B-045. clock_skew: s that a sender's clock may be behind.
    """

    def __init__(self, commits: "Commits", quota: "tuple[int, int]", sources_max: int = 32) -> None:
        self.inboxes: "list[Inbox]" = []
        self.bytes = 0  # waiting for the application, or about to
        self.messages = 0
        self.dropped = 0  # messages that are not transactional
        self.refused = 0
        self.left = 0  # left with their senders: no room
        self.forgotten = 0  # FinalAcks given up
        self.streams_forgotten = 0
        self._commits = commits
        self._outbox = commits.outbox
        self._quota = quota
        self._sources_max = sources_max
        self.early_order_ack = EARLY_ORDER_ACK
        self.clock_skew = 0
        self._sources: "list[Source]" = []
        self._unclaimed: "list[Arrival]" = []  # for inboxes that are not open
        self._pending: "list[Arrival]" = []  # not durable
        self._due = compose.FOREVER  # no waiting message expires earlier
        self.owed = owed.Owed(commits, self._sources)
        now = commits.clock.now()
        for logged in self._outbox.sources:
            self._sources.append(Source(logged, IncomingStream(logged.record, now)))
        restored: "Any" = self._outbox.restored_arrivals
        for arrival in restored:
            self._count(arrival, 1)
            self._deliver(arrival)

    # ---- for the application --------------------------------------------------------------------

    def open(self, name: str, number: int = 0) -> Inbox:
        """Open the inbox for DIRECT=...\\private$\\name; with a number also for PRIVATE=<guid>\\number.

        Open it before the first session: messages for closed queues are refused. Raises ValueError if the name or
        number is invalid, or belongs to another inbox.
        """
        names.check_queue(name)
        if not 0 <= number <= 0xFFFFFFFF:
            raise ValueError("an inbox has a number from 1, or none")
        for inbox in self.inboxes:
            if inbox.name.lower() == name.lower():
                if number not in (0, inbox.number):
                    raise ValueError("the inbox has another number")
                return inbox
            if number and inbox.number == number:
                raise ValueError("the number belongs to another inbox")
        if number == names.ORDER_QUEUE_ID:
            raise ValueError("this is the number of the order queue")
        inbox = Inbox(self, name, number)
        self.inboxes.append(inbox)
        unclaimed = self._unclaimed
        self._unclaimed = []
        for arrival in unclaimed:
            self._deliver(arrival)
        inbox.restored = bool(inbox.waiting)
        return inbox

    def read(self, arrival: Arrival) -> headers.UserMessage:
        """Return a waiting message. Raises OutboxDamaged, OSError."""
        packet = parse.parse(self._outbox.log.load(arrival))
        assert isinstance(packet, headers.UserMessage)
        return packet

    # ---- for the node -----------------------------------------------------------------------------

    def arrived(self, peer: "Peer", message: headers.UserMessage, raw: bytes, now: int) -> bool:
        """Decide about a message from this peer's session; raw: its packet. `settled` must follow.

        True: the log is full, and the message counts as not received (B-285). If only a new stream finds no room, its
        message stays with the sender like one out of order (A-02), so that it does not block others. Raises
        OutboxError: the log has failed; close the session without an acknowledgement.
        """
        transaction = message.transaction
        if transaction is None:
            self.dropped += 1
            return False
        user = message.user
        key = _key(user, self._commits.guid)
        source = self._find(user.source_queue_manager, key)
        is_here = self._meaning(key) is not None
        if source is None:
            stream = IncomingStream(None, now)
            is_here = is_here and _is_legible(key)
        else:
            source.carrier = peer
            stream = source.stream
        rejection = rejection_of(message, is_here, True, self._commits.clock.time(), self.clock_skew)
        before = len(self._pending)
        try:
            refusal = stream.decide(transaction, rejection, self, (peer, message, raw, source, stream, key))
        except BaseException as error:  # MemoryError, too: a message that is not in the log was not accepted
            if len(self._pending) > before and self._pending[before].segment is None:
                self._pending.pop()
            source = self._find(user.source_queue_manager, key)
            if source is not None:
                core.copy_words(source.logged.record, source.logged.noted)
            if not isinstance(error, log.OutboxFull):
                raise
            self.left += 1
            return source is not None
        source = self._find(user.source_queue_manager, key)
        if source is not None and not refusal:
            source.heard = now
            source.stream.schedule_order_ack(now, peer.session, self.early_order_ack)
        return False

    def settled(self) -> None:
        """Deliver pending messages after a sync; drop those that a failed sync took back."""
        if not self._pending:
            return
        pending = self._pending
        self._pending = []
        for arrival in pending:
            if arrival.segment is None:
                self._count(arrival, -1)
            else:
                self._deliver(arrival)

    def next_packet(self, peer: "Peer", now: int) -> "tuple[streams.Entry | None, bytearray, bool] | None":
        """Return this peer's next packet; make the log durable first if needed. Raises OutboxDamaged, OSError."""
        if self._pending:  # left by a session that died
            if not self._commits.commit_now():
                return None
            self.settled()
        return self.owed.next_packet(peer, now)

    def acknowledged(self, entries: "list[streams.Entry]") -> None:
        """Settle FinalAcks that a session has acknowledged for good."""
        self.owed.acknowledged(entries)

    def closed(self, peer: "Peer") -> None:
        """Handle the end of a session."""
        self.owed.closed(peer)

    def next_timeout(self, now: int) -> "int | None":
        """Return when the next OrderAck is due. None: none, or it waits for a session."""
        self.check_deadlines()
        due: "int | None" = None
        for source in self._sources:
            at = source.stream.next_timeout()
            if at is not None and at > now and (due is None or at < due):
                due = at
        return due

    # ---- inside -----------------------------------------------------------------------------------

    def end(self, arrival: Arrival, message_class: int) -> None:
        """Remove a message from its inbox with the reason message_class; owe its FinalAck if requested."""
        record = arrival.record
        self._count(arrival, -1)
        if record[confirm.MARKS] & owed.ASKED:
            record[confirm.STATE] = log.TAKEN
            record[confirm.CLASS] = message_class
            self.owed.add(arrival)
            self.owed.is_durable = False
            self._commits.log([arrival])
        else:
            self.owed.gone(arrival)

    def settle(self) -> None:
        """Make the application's changes durable. Raises OutboxError: file system refuses, node closed."""
        self._commits.check_open()
        self.owed.is_durable = self._commits.commit_now()
        if not self.owed.is_durable:
            raise log.OutboxError("the file system refuses: it is not durable yet")
        self._commits.touch()

    def check_deadlines(self) -> None:
        """End messages whose TimeToBeReceived has expired (B-341)."""
        if self._due == compose.FOREVER:
            return
        time = self._commits.clock.time()
        if not time or time < self._due:
            return
        self._due = compose.FOREVER
        for inbox in self.inboxes:
            for arrival in inbox.expired(time):
                self.end(arrival, confirm.NACK_RECEIVE_TIMEOUT)
            for arrival in inbox.waiting:
                self._expect(arrival)

    def _meaning(self, key: str) -> "Inbox | None":
        place = key.find("\\private$\\")
        name = key[place + 10 :] if place > 3 and key[3:place] != ":" and key[:3] in ("tcp", "os:") else ""
        for inbox in self.inboxes:
            if name == inbox.name.lower() or (inbox.number and key == "#{}".format(inbox.number)):  # no name is ""
                return inbox
        return None

    def _find(self, guid: bytes, key: str) -> "Source | None":
        for source in self._sources:
            if source.logged.guid == guid and source.logged.name == key:
                return source
        return None

    def over_quota(self, arriving: "Any") -> int:
        """Implement mqqb.destination.Storage."""
        size = len(arriving[2])
        if (
            self.bytes + size > self._quota[0]
            or self.messages >= self._quota[1]
            or 2 * size > self._outbox.log.capacity
        ):
            return confirm.NACK_Q_EXCEED_QUOTA
        return 0

    def keep(self, arriving: "Any", rejection: int) -> str:
        """Implement mqqb.destination.Storage: log the message. Raises OutboxError."""
        key: str
        peer, message, raw, source, stream, key = arriving
        if rejection == confirm.NACK_BAD_DST_Q:
            self.refused += self.owed.refuse(raw, peer)
            return key  # any text leaves the stream unchanged
        user = message.user
        transaction = message.transaction
        assert transaction is not None
        time = self._commits.clock.time()
        asked = (
            rejection
            or user.fields[core.USER_FLAGS] & (core.USER_JN | core.USER_JP)
            or transaction.fields[0] & core.TX_FA
        )
        guid = user.source_queue_manager
        packet: "bytes | bytearray" = raw
        if rejection:
            packet = owed.beginning(raw)
        if peer.remote_guid != guid:  # a router: replaces the destination's GUID, which is this board's
            packet = bytearray(packet)
            packet[core.USER_QUEUE_MANAGER_ADDRESS_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT + 16] = peer.remote_guid
        sent_time = user.fields[core.USER_SENT_TIME]
        if time:
            sent_time = min(sent_time, time)
        state = log.TAKEN if rejection else log.RECEIVED
        ttrq = message.base.fields[core.BASE_TIME_TO_REACH_QUEUE]
        words = (state, 1 if asked else 0, sent_time, ttrq, user.fields[core.USER_TIME_TO_BE_RECEIVED], rejection)
        if source is None:
            logged = self._place_for(guid, key)
            core.copy_words(logged.record, stream.record)
            stream.record = logged.record
            source = Source(logged, stream)
            source.carrier = peer
            self._sources.append(source)
        if self._outbox.arrivals >= self._outbox.arrivals_max:
            self._forget()
        arrival = Arrival(self._outbox.next_arrival, array("I", words), source.logged)
        self._pending.append(arrival)
        self._commits.must_commit = True
        self._outbox.arrive(arrival, source.logged, packet)
        self._count(arrival, 1)
        self.refused += rejection != 0
        return ""

    def _deliver(self, arrival: Arrival) -> None:
        """Deliver a durable arrival to its inbox, or owe its FinalAck."""
        if arrival.record[confirm.STATE] == log.TAKEN:
            self.owed.add(arrival)
            return
        assert arrival.source is not None
        inbox = self._meaning(arrival.source.name)
        if inbox is None:
            self._unclaimed.append(arrival)
            return
        inbox.waiting.append(arrival)
        self._expect(arrival)
        inbox.tell()

    def _expect(self, arrival: Arrival) -> None:
        expiry = _expiry(arrival)
        if expiry < self._due:
            self._due = expiry

    def _forget(self) -> None:
        """Give up the oldest FinalAck for an absent peer: anybody can cause more, which must not block others. Positive
        ones go first: their sender stays in doubt. Without a negative one the sender is wrong after the next start;
        until then OrderAcks stop below its message.
        """
        waiting = [arrival for arrival in self.owed.final_acks if arrival.carrier is None and arrival.packet is None]
        if waiting:
            arrival = min(waiting, key=lambda one: one.record[confirm.CLASS] & confirm.CLASS_NEGATIVE)
            if arrival.record[confirm.CLASS] & confirm.CLASS_NEGATIVE:
                _, ordinal, time_stamp, number, _ = owed.sequence(self._outbox.log.load(arrival))
                for source in self._sources:
                    if source.logged is arrival.source:
                        source.stream.give_up(time_stamp << 32 | ordinal, number)
            self._give_up(arrival)

    def _give_up(self, arrival: Arrival) -> None:
        self.owed.remove(arrival)
        self.forgotten += 1

    def _place_for(self, guid: bytes, key: str) -> "LoggedSource":
        """Return a place in the log for another stream: a new one, or that of a forgotten stream.

        Its unfetched FinalAcks go with it. Raises OutboxFull: no stream can be forgotten.
        """
        box = self._outbox
        if len(self._sources) < self._sources_max:
            return box.source(guid, key)
        arrivals: "Any" = box.restored_arrivals
        old = _longest_quiet(self._sources, arrivals, self._pending, self._commits.clock.now() - owed.QUIET)
        for arrival in arrivals:
            if arrival.source is old.logged:
                self._give_up(arrival)
        old.logged.replace(guid, key)
        self._sources.remove(old)
        self.streams_forgotten += 1
        return old.logged

    def _count(self, arrival: Arrival, change: int) -> None:
        if arrival.record[confirm.STATE] == log.RECEIVED:
            self.bytes += change * arrival.size
            self.messages += change


def _expiry(arrival: Arrival) -> int:
    """Return the expiry in s since 1970, the first second after its life; FOREVER: never (B-402, A-43, C-51)."""
    record = arrival.record
    life = record[confirm.TTBR]
    return compose.FOREVER if life == compose.FOREVER else record[confirm.SENT_TIME] + life


def _longest_quiet(sources: "list[Source]", arrivals: "list[Arrival]", pending: "list[Arrival]", latest: int) -> Source:
    """Return the stream idle for longest, by TimeStamp if idle since the start; first those that owe nothing.

    Streams with a waiting message, an open session or a message after `latest` stay: their sender may lack an OrderAck
    and resend. Raises OutboxFull if none is left.
    """
    owing = [one.source for one in arrivals]
    waits = log.RECEIVED
    busy = [one.source for one in arrivals if one.record[confirm.STATE] == waits or one.carrier or one in pending]
    idle = [one for one in sources if one.carrier is None and one.heard <= latest and one.logged not in busy]
    if not idle:
        raise log.OutboxFull("enough senders are known")
    return min(idle, key=lambda one: (one.logged in owing, one.heard, one.logged.record[core.INCOMING_TIME_STAMP]))


def _key(user: headers.UserHeader, guid: bytes) -> str:
    """Return the sender's name for the queue, in lower case; "" if it is not this board's (B-264, A-38)."""
    if user.queue_manager_address not in (names.NULL_GUID, guid):
        return ""
    name = user.destination_queue
    if isinstance(name, names.DirectQueueFormatName):
        return name.direct_format_name.lower()
    if isinstance(name, headers.PrivateQueueFormatNameId):
        return "#{}".format(name.private_queue_identifier)
    return ""


def _is_legible(key: str) -> bool:
    """Can the log store this name?"""
    size = 0
    for character in key:
        code = ord(character)
        if code < 0x20 or 0xD800 <= code < 0xE000:
            return False
        size += 1 if code < 0x80 else 4
    return size <= outbox.SOURCE_NAME_MAX
