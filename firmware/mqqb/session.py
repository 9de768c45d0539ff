"""A session: both message sequences over one connection, acknowledgements, window, timers.

Sans I/O. Bytes and `now` (monotonic milliseconds) go in; events, bytes to write and the next deadline come out. The
session acknowledges a received message only after its owner calls `stored` (B-098, B-281).

    events = session.receive_data(data, now)      # the owner handles them and commits the outcome in one step
    session.stored(recoverable, now)              # then, for each message among them, in order
    while session.can_send(): session.send(entry, packet, recoverable, now)
    write(session.data_to_send())

A board has little memory. Its session keeps the received bytes, and writes into the board's own buffer:

    session.reader.took(link.readinto(session.reader.room()))
    while (event := session.next_event(now)) is not None: ...    # no OrderAck or SessionAck takes memory
    size = session.take_output(buffer, 0)
    size += session.send_in(entry, buffer, size, length, recoverable, now)    # the packet is already there

`connection` has the handshake, the end, the window and the received bytes. TABLE lists the events of each state.
"""

from mqqb import compose, connection, const, core, names
from mqqb.connection import Acknowledged, Handshake, MessageReceived, Noted
from mqqb.connection import Settings as Settings

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable

    from mqqb import streams
    from mqqb.headers import FinalAck, UserMessage

ANY = const("")  # all states except CLOSED

# State, event and handler: packets by name (B-180 to B-188), timers by number, and the end. Any other packet closes
# the session. A timer without a row for a state does not run in the state.
TABLE = (
    (connection.WAITING_EC_MSG, "EstablishConnection", "_establish_request"),
    (connection.WAITING_ECR_MSG, "EstablishConnection", "_establish_response"),
    (connection.WAITING_CP_MSG, "ConnectionParameters", "_parameters"),
    (connection.WAITING_CPR_MSG, "ConnectionParameters", "_parameters"),
    (connection.OPEN, "SessionAck", "_session_header"),
    (connection.OPEN, "OrderAck", "_message"),
    (connection.OPEN, "FinalAck", "_message"),
    (connection.OPEN, "UserMessage", "_message"),
    (connection.OPEN, connection.ACK_SEND, "send_session_ack"),
    (connection.OPEN, connection.ACK_WAIT, "_peer_is_silent"),
    (connection.OPEN, connection.WINDOW_GROWTH, "_window_grows"),
    (connection.WAITING_EC_MSG, connection.INITIALIZATION, "_handshake_is_late"),
    (connection.WAITING_ECR_MSG, connection.INITIALIZATION, "_handshake_is_late"),
    (connection.WAITING_CP_MSG, connection.INITIALIZATION, "_handshake_is_late"),
    (connection.WAITING_CPR_MSG, connection.INITIALIZATION, "_handshake_is_late"),
    (ANY, connection.CLEANUP, "_is_idle"),
    (ANY, "the transport is gone", "transport_closed"),
    (ANY, "the owner ends it", "close"),
)

_parse: "Callable[[bytes], object] | None" = None  # of mqqb.parse, after the first packet other than an OrderAck


class Session(Handshake):
    """One protocol session over one byte stream.

    initiator: this side connects and begins. own_guid, remote_guid: 16 bytes; remote_guid is NULL_GUID for a direct
    format name, and the peer's answer sets it (A-39). After the end, `closed` is a Closed.

    The owner may set `is_needed`: a function that returns True while messages of this session's tables wait for an
    acknowledgement. The session is then not closed for being idle (A-28).
    """

    def __init__(
        self, initiator: bool, own_guid: bytes, now: int, remote_guid: bytes = b"", settings: "Settings | None" = None
    ) -> None:
        Handshake.__init__(self, initiator, own_guid, now, remote_guid or names.NULL_GUID, settings)
        self.direct_format_session = False
        self.is_needed: "Callable[[], bool] | None" = None
        self.due[connection.CLEANUP] = now + self.settings.cleanup_timeout
        self._ack_send_duration = 0
        self._events: "list[object]" = []  # pending events of next_event
        self._order_ack_received: "MessageReceived | None" = None  # reused for OrderAcks
        self._ack = b""  # a SessionAck template; only its SessionHeader changes
        self._is_direct = initiator and self.remote_guid == names.NULL_GUID
        self.is_active = False
        self._received_ack = False
        self._has_noted = False

    # ---- receiving ----------------------------------------------------------------------------

    def progressed(self) -> None:
        """Part of a packet has arrived, or pending output has left: the peer is alive, as after a packet (B-167)."""
        self._received_ack = self.is_active = True

    def receive_data(self, data: "bytes | bytearray | memoryview", now: int) -> "list[object]":
        """Handle bytes from the peer. Returns Opened, MessageReceived, Acknowledged and Closed events, in order of
        cause."""
        events: "list[object]" = []
        if self.closed is None:
            self.reader.add(data)
            while self._next(now, events):
                pass
        return events

    def next_event(self, now: int) -> "object | None":
        """The next event of the received bytes, as in receive_data; None: more bytes are needed.

        Handle a MessageReceived with an OrderAck before the next call, which reuses its objects. It has `packet.body`
        only: `packet.message` is None, and `raw` is empty.
        """
        events = self._events
        while not events:
            if self.closed is not None or not self._next(now, events, True):
                return None
        return events.pop(0)

    def _next(self, now: int, events: "list[object]", reuse: bool = False) -> bool:
        """Handle one packet; False: the packet is incomplete, or the session has ended. reuse: read known OrderAcks in
        place.

        All packets pass here one by one, except messages that a host recognises and reads in batches
        (ordack.broker.streams).
        """
        come = self.reader
        data = come.data
        start = come.begin
        left = come.end - start
        if not left or self.closed is not None:
            return False
        status = core.frame(data, start, come.end, come.total)
        total = come.total[0]
        if status < 0:
            error = core.malformed(status, 0)
            events += self.close(error.rule, error.field + ": " + error.reason)
        elif (
            left >= core.BASE_HEADER_SIZE
            and data[start + core.BASE_FLAGS_AT] & core.BASE_IN
            and total > core.PACKET_SIZE_ESTABLISH_CONNECTION
        ):
            events += self.close("B-433", "BaseHeader.PacketSize: no internal packet is so long")
        elif (
            left >= core.BASE_HEADER_SIZE
            and not data[start + core.BASE_FLAGS_AT] & core.BASE_IN
            and self.state != connection.OPEN
        ):
            events += self.close("B-434", "a message came before the session was open")
        elif status != core.OK:
            if self.state == connection.OPEN:
                self.progressed()
            return False
        else:
            come.begin = start + total
            self._received_ack = True  # B-167
            try:
                if data[start + core.BASE_FLAGS_AT] & core.BASE_IN:
                    self._internal(data, start, start + total, now, events)
                elif reuse and come.read_order_ack(start, total, self._words):
                    self._order_ack(data[start + core.BASE_FLAGS_AT] & core.BASE_SH != 0, now, events)
                else:
                    self._packet(bytes(data[start : start + total]), now, events)
            except core.Malformed as error:
                events += self.close(error.rule, error.field + ": " + error.reason)  # B-169
        return True

    def _handler(self, event: "str | int") -> str:
        """The table's handler for this event in this state; "" if there is none."""
        for state, happens, handler in TABLE:
            if happens == event and (state == self.state or state == ANY):
                return handler
        return ""

    def _internal(self, buffer: bytearray, start: int, limit: int, now: int, events: "list[object]") -> None:
        kind = connection.read_internal(buffer, start, limit, self._words) & core.INTERNAL_PT
        if kind == core.PT_SESSION_ACK and self.state == connection.OPEN:
            self._session_header(False, now, events)  # the table's handler, called directly to save memory
            return
        name = connection.INTERNAL_PACKETS[kind]
        handler = self._handler(name)
        if handler:
            getattr(self, handler)(buffer, start, now, events)
        else:
            events += self.close("B-180", name + " is not expected in " + self.state)

    def _order_ack(self, carries: bool, now: int, events: "list[object]") -> None:
        event = self._order_ack_received
        if event is None:
            nothing: "UserMessage" = None  # type: ignore[assignment]  # a board has no room for it
            event = MessageReceived(connection.OrderAck(nothing, self.reader.body), b"", False)
            self._order_ack_received = event
        flags = self.reader.user_flags
        event.recoverable = flags & core.USER_DM != 0
        self._count(event.recoverable, flags & core.USER_DQ == core.USER_DQ, now)
        events.append(event)
        if carries:
            self._session_header(True, now, events)

    def _packet(self, raw: bytes, now: int, events: "list[object]") -> None:
        global _parse
        if _parse is None:
            from mqqb import parse  # many boards never need it

            _parse = parse.parse
        packet: "UserMessage | connection.OrderAck | FinalAck" = _parse(raw)  # type: ignore[assignment]
        message: "UserMessage" = getattr(packet, "message", packet)  # type: ignore[arg-type]
        self._message(packet, message, raw, now, events)  # the table's handler; the state is OPEN

    def _message(
        self,
        packet: "UserMessage | connection.OrderAck | FinalAck",
        message: "UserMessage",
        raw: bytes,
        now: int,
        events: "list[object]",
    ) -> None:
        flags = message.user.fields[core.USER_FLAGS]
        recoverable = flags & core.USER_DM != 0
        self._count(recoverable, flags & core.USER_DQ == core.USER_DQ, now)
        session = message.session
        if session is not None:
            stripped = bytearray(memoryview(raw)[: message.base.fields[core.BASE_PACKET_SIZE]])
            stripped[2] &= ~core.BASE_SH & 0xFF
            raw = bytes(stripped)
        events.append(MessageReceived(packet, raw, recoverable))
        if session is not None:
            core.copy_words(self._words, session.fields)
            self._session_header(True, now, events)  # B-263: after its message

    def _count(self, recoverable: bool, direct: bool, now: int) -> None:
        """Count a received message. direct: sent to a direct format name."""
        core.session_received(self.window.counts, recoverable)  # B-252, B-278
        self.is_active = True
        if direct:
            self.direct_format_session = True  # B-253
        if self.due[connection.ACK_SEND] is None:
            self._start_ack_send(self.ack_wait_timeout // 2, now)  # B-121

    def _session_header(self, carried: bool, now: int, events: "list[object]") -> None:
        """Apply the SessionHeader in _words. carried: at the end of a message, which is already counted."""
        status = core.session_check(self.window.counts, self._words, carried)
        if status == core.BAD_ACK_COUNT:
            events += self.close("B-229", "SessionHeader acknowledges messages that were never sent")
            return
        self._start_window_growth(now)
        settled = self.window.acknowledge(self._words)
        if self.window.in_flight or self.window.awaiting_bits:
            self._start_ack_wait(now)  # B-228
        if settled:
            events.append(Acknowledged(settled))
        if status == core.BAD_MESSAGE_COUNT:
            reason = "SessionHeader counts other messages than were received"
            if self.settings.close_on_mismatch:
                events += self.close("B-227", reason)
            elif not self._has_noted:
                self._has_noted = True
                events.append(Noted("B-227", reason))

    # ---- sending ------------------------------------------------------------------------------

    def can_send(self) -> bool:
        """Are the session and its window open (B-118, B-307)?"""
        return self.state == connection.OPEN and core.session_can_send(self.window.counts)

    def send(self, entry: "streams.Entry | None", packet: bytearray, recoverable: bool, now: int) -> None:
        """Send one packet in UserMessage format (B-320, B-321). Only if can_send().

        entry: for the acknowledgement; None for an OrderAck. packet: complete, without SessionHeader; this method sets
        its SH flag. recoverable: DM = 1. An OrderAck or FinalAck carries no SessionHeader (B-437). A SessionAck
        precedes it, so that the peer has settled the covered messages (B-443).
        """
        if self.due[connection.ACK_SEND] is not None and packet.startswith(
            connection.ORDER_LABEL_RAW, connection.ORDER_LABEL_AT
        ):
            self.send_session_ack(now)
        carries = self._begin_send(recoverable, now)
        packet[core.BASE_FLAGS_AT] = packet[core.BASE_FLAGS_AT] & ~core.BASE_SH & 0xFF | carries
        self._out.append(packet)
        if carries:
            header = bytearray(core.SESSION_HEADER_SIZE)
            core.pack(core.SESSION_HEADER, self._words, header, 0)
            self._out.append(header)
        self._end_send(entry, recoverable, now)

    def send_in(
        self, entry: "streams.Entry | None", buffer: bytearray, offset: int, size: int, recoverable: bool, now: int
    ) -> int:
        """As `send`, for a packet in buffer[offset:offset + size], written from there. 16 free bytes must follow it.
        Returns the number of bytes to write. Output of `take_output` goes first. Not for an OrderAck or a FinalAck.
        """
        carries = self._begin_send(recoverable, now)
        buffer[offset + core.BASE_FLAGS_AT] = buffer[offset + core.BASE_FLAGS_AT] & ~core.BASE_SH & 0xFF | carries
        if carries:
            core.pack(core.SESSION_HEADER, self._words, buffer, offset + size)
            size += core.SESSION_HEADER_SIZE
        self._end_send(entry, recoverable, now)
        return size

    def _begin_send(self, recoverable: bool, now: int) -> int:
        """Count a message. BASE_SH: the SessionHeader to carry is made; 0: it carries none."""
        assert self.can_send()
        core.session_sent(self.window.counts, recoverable)
        self.is_active = True
        if not self._piggybacks(now):
            return 0
        self._fill(now)  # B-126: after this message was counted
        return core.BASE_SH

    def _end_send(self, entry: "streams.Entry | None", recoverable: bool, now: int) -> None:
        self.window.sent(entry, recoverable, now)
        if self.due[connection.ACK_WAIT] is None:
            self._start_ack_wait(now)  # B-134

    def stored(self, recoverable: bool, now: int) -> None:
        """Report the oldest unreported MessageReceived as durable, or as discarded by a rule (B-250, B-262, B-278 to
        B-281).
        """
        if self.state != connection.OPEN:
            return
        counts = self.window.counts
        if core.session_stored(counts, recoverable) == core.ACK_FIRST:  # B-123, B-277
            self.send_session_ack(now)
            core.session_stored(counts, recoverable)
        flags = counts[core.SESSION_ACK_FLAGS]
        if flags == 1 and recoverable:
            self._start_ack_send(self.recoverable_ack_send_timeout, now)  # B-122, B-279
        if (counts[core.SESSION_STORED] - counts[core.SESSION_ACKED]) & 0xFFFF >= self.window.half:
            self.send_session_ack(now)  # B-124

    def _fill(self, now: int) -> None:
        """Fill a SessionHeader to send now."""
        self.due[connection.ACK_SEND] = None
        if self.window.fill(self._words):
            self._start_ack_send(self.ack_wait_timeout // 2, now)

    def send_session_ack(self, now: int) -> None:
        """Send a SessionAck; also the handler of its timer, which runs while a message is unacknowledged (B-127,
        B-150)."""
        self._fill(now)
        header = self._words
        if not self._ack:
            self._ack = bytes(compose.session_ack(header))
        packet = bytearray(self._ack)
        core.pack(core.SESSION_HEADER, header, packet, core.PACKET_SIZE_SESSION_ACK - core.SESSION_HEADER_SIZE)
        self._out.append(packet)

    # ---- timers -------------------------------------------------------------------------------

    def next_timeout(self) -> "int | None":
        """The deadline of the next `handle_timeout`, or None."""
        first: "int | None" = None
        for due in self.due:
            if due is not None and (first is None or due < first):
                first = due
        return first

    def handle_timeout(self, now: int) -> "list[object]":
        """Run due timers: may queue a SessionAck, may close the session."""
        events: "list[object]" = []
        for timer in range(connection.TIMERS):
            due = self.due[timer]
            if due is not None and now >= due:
                told = getattr(Session, self._handler(timer))(self, now)  # a call through the class takes no memory
                if told:
                    events += told
        return events

    def _peer_is_silent(self, now: int) -> "list[object] | None":
        self.due[connection.ACK_WAIT] = None
        if self.window.in_flight or self.window.awaiting_bits:
            if not self._received_ack:
                return self.close("B-148", "the peer has fallen silent")
            self._start_ack_wait(now)
        self._received_ack = False
        return None

    def _window_grows(self, now: int) -> None:
        self.window.grow()
        self._start_window_growth(now)

    def _is_idle(self, now: int) -> "list[object] | None":
        if not self.is_active and (self.is_needed is None or not self.is_needed()):
            return self.close("B-147", "the session was idle")
        self.is_active = False
        self.due[connection.CLEANUP] = now + self.settings.cleanup_timeout
        return None

    def _start_ack_wait(self, now: int) -> None:
        direct = self._is_direct or self.direct_format_session
        self.due[connection.ACK_WAIT] = now + self.ack_wait_timeout * (self.settings.ack_wait_multiple if direct else 1)

    def _start_window_growth(self, now: int) -> None:
        due = now + self.settings.window_growth_interval if self.window.is_small() else None
        self.due[connection.WINDOW_GROWTH] = due

    def _start_ack_send(self, duration: int, now: int) -> None:
        self.due[connection.ACK_SEND] = now + duration
        self._ack_send_duration = duration

    def _piggybacks(self, now: int) -> bool:
        """Is more than 75 % of the Session Ack Send Timer over? It runs while a message is unacknowledged (B-125)."""
        due = self.due[connection.ACK_SEND]
        return due is not None and 4 * (due - now) < self._ack_send_duration
