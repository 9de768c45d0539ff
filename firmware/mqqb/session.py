"""One connection: handshake, both message sequences, acknowledgements, window, timers.

Sans I/O. Bytes and `now` (monotonic milliseconds) go in; events, bytes to write and the next deadline come out. What
a session says about durability is what its owner has said: a received message is acknowledged only after `stored`
(B-098, B-281).

    events = session.receive_data(data, now)      # the owner handles them and makes the outcome durable in one step
    session.stored(recoverable, now)              # then, for each message among them, in order
    while session.can_send(): session.send(entry, packet, recoverable, now)
    write(session.data_to_send())

A board, which has little memory, lets the session keep the bytes that come, and has it write into a buffer of its own:

    session.took(link.readinto(session.room()))
    while (event := session.next_event(now)) is not None: ...    # no OrderAck or SessionAck takes memory
    size = session.take_output(buffer, 0)
    size += session.send_in(entry, buffer, size, length, recoverable, now)    # the packet has been put there
"""

from array import array
from collections import deque

from mqqb import compose, const, core, names, reader
from mqqb.events import Acknowledged, Closed, MessageReceived, Noted, Opened

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable

    from mqqb import streams
    from mqqb.headers import FinalAck, UserMessage

WAITING_EC_MSG = const("WAITING_EC_MSG")
WAITING_ECR_MSG = const("WAITING_ECR_MSG")
WAITING_CP_MSG = const("WAITING_CP_MSG")
WAITING_CPR_MSG = const("WAITING_CPR_MSG")
OPEN = const("OPEN")
CLOSED = const("CLOSED")

# Which packet is welcome in which state, and what takes it (B-180 to B-188). Anything else closes the session.
TABLE = (
    (WAITING_EC_MSG, "EstablishConnection", "_establish_request"),
    (WAITING_ECR_MSG, "EstablishConnection", "_establish_response"),
    (WAITING_CP_MSG, "ConnectionParameters", "_parameters_request"),
    (WAITING_CPR_MSG, "ConnectionParameters", "_parameters_response"),
    (OPEN, "SessionAck", "_session_ack"),
    (OPEN, "OrderAck", "_message"),
    (OPEN, "FinalAck", "_message"),
    (OPEN, "UserMessage", "_message"),
)

NULL_GUID = names.NULL_GUID
_INTERNAL = ("", "SessionAck", "EstablishConnection", "ConnectionParameters")  # by PT


_SESSION_HEADER_WORDS = const(7)
_ESTABLISH_WORDS = const(11)  # the longest internal header
_ROOM = const(384)  # bytes, more than an OrderAck has; grows for as long as a longer packet is coming
_RECOVERABLE_ACK_MIN = const(500)
_RECOVERABLE_ACK_MAX = const(120000)
_ACK_WAIT_MAX = const(120000)
_OPERATING_SYSTEM = const(0x0210)  # RE, and OS: a server (wire.md 5.2)
_SESSION_REQUESTED = const(0x0100)  # OperatingSystem.SE (B-204, A-52)
_IN_FLIGHT_MAX = const(0x7FFF)
_ONE_MESSAGE = const(1)  # the window that asks the peer to wait


class Settings:
    """Durations in milliseconds under the specification's names, with its defaults; B-039, B-043, B-129, B-131 to
    B-134, A-13.

    round_trip_delay: of a slow line, goes into the others. ack_wait_multiple: for sessions with direct format names,
    for others it is 1. cleanup_timeout: 120000 on a routing server. window_growth_interval: after it a window that the
    peer made small is doubled. close_on_mismatch: False only tells (Noted) of wrong counts in a SessionHeader. The
    timers of transactional streams are arguments of streams.py.
    """

    def __init__(
        self,
        window_size: int = 64,
        ack_wait_timeout: int = 20000,
        ack_wait_multiple: int = 2,
        initialization_timeout: int = 60000,
        cleanup_timeout: int = 300000,
        close_on_mismatch: bool = True,
        round_trip_delay: int = 0,
        window_growth_interval: int = 30000,
    ) -> None:
        self.window_size = window_size
        self.ack_wait_timeout = ack_wait_timeout
        self.ack_wait_multiple = ack_wait_multiple
        self.initialization_timeout = initialization_timeout
        self.cleanup_timeout = cleanup_timeout
        self.close_on_mismatch = close_on_mismatch
        self.round_trip_delay = round_trip_delay
        self.window_growth_interval = window_growth_interval


def _earlier(one: "int | None", other: "int | None") -> "int | None":
    return other if one is None or (other is not None and other < one) else one


class Session:
    """One protocol session over one byte stream.

    initiator: this side connected and begins. own_guid, remote_guid: 16 bytes; remote_guid is NULL_GUID where a
    direct format name leads to the peer, and the peer's answer is taken (A-39). After the end, `closed` is a Closed.

    The owner may set `is_needed`, a function that says whether messages of the tables that this session serves wait for
    an acknowledgement: the session is then not closed for being idle (A-28).
    """

    def __init__(
        self,
        initiator: bool,
        own_guid: bytes,
        now: int,
        remote_guid: bytes = NULL_GUID,
        settings: "Settings | None" = None,
    ) -> None:
        self.initiator = initiator
        self.own_guid = own_guid
        self.remote_guid = remote_guid
        self.settings = settings or Settings()
        self.state = WAITING_EC_MSG  # B-161
        self.closed: "Closed | None" = None
        self.direct_format_session = False
        # B-043; ConnectionParameters carries it, and can carry no more
        self.ack_wait_timeout = min(self.settings.ack_wait_timeout + self.settings.round_trip_delay, _ACK_WAIT_MAX)
        self.recoverable_ack_send_timeout = 0xFFFFFFFF  # B-044: until it is negotiated
        self.is_needed: "Callable[[], bool] | None" = None
        self._counts = array("I", bytes(4 * core.SESSION_WORDS))
        core.session_init(self._counts, self.settings.window_size)
        self._header = array("I", bytes(4 * _SESSION_HEADER_WORDS))  # the next one to send
        self._heard = array("I", bytes(4 * _ESTABLISH_WORDS))  # one that has come, or another internal header
        self._total = array("I", (0,))
        self._buffer = bytearray()  # bytes that have come: those from _begin to _end
        self._begin = 0
        self._end = 0
        self._view = memoryview(b"")  # of the buffer, if it is a bytearray
        self._events: "list[object]" = []  # what next_event has not told yet
        self._order_acks = reader.OrderAckReader()
        self._order_ack_received: "MessageReceived | None" = None  # told of them, again and again
        self._out: "list[bytes | bytearray]" = []
        self._ack = b""  # a SessionAck, in which only the SessionHeader changes
        # what was sent and not yet covered by an AckSequenceNumber, oldest first
        self._in_flight: "deque[streams.Entry | None]" = deque((), min(self.settings.window_size, _IN_FLIGHT_MAX))  # noqa: RUF037
        # recoverable entries, not transactional, until a bit covers them
        self._awaiting_bits: "list[streams.Entry]" = []
        self._is_direct = initiator and remote_guid == NULL_GUID
        self._session_active = False
        self._received_ack = False
        self._has_noted = False
        self._is_paused = False
        self._initialization_due: "int | None" = None
        self._start_initialization(now)
        self._cleanup_due: "int | None" = now + self.settings.cleanup_timeout
        self._ack_wait_due: "int | None" = None
        self._ack_send_due: "int | None" = None
        self._ack_send_duration = 0
        self._window_due: "int | None" = None
        self._full_window = 0  # the peer's, as negotiated

    # ---- the transport ------------------------------------------------------------------------

    def connected(self, now: int, pinged: bool = False) -> None:
        """The transport is up. An initiator asks for the session (B-204); an acceptor waits. pinged: the peer was asked
        by a ping before, and agreed.
        """
        if self.initiator:
            self._start_initialization(now)
            operating_system = _OPERATING_SYSTEM | (0 if pinged else _SESSION_REQUESTED)
            self._out.append(
                compose.establish_connection(self.own_guid, self.remote_guid, now & 0xFFFFFFFF, operating_system)
            )
            self.state = WAITING_ECR_MSG  # B-181

    def transport_closed(self) -> "list[object]":
        """The transport is gone (B-298): a Closed event, unless the session was over already."""
        return self._close("B-298", "the peer closed the connection")

    def data_to_send(self) -> bytes:
        """Everything that is to be written now, once; write it in one go."""
        data = b"".join(self._out)
        self._out = []
        return data

    def take_output(self, buffer: bytearray, offset: int) -> int:
        """Move what is to be written to buffer[offset:], as many whole packets as there is room for; bytes."""
        out = self._out
        at = offset
        while out and at + len(out[0]) <= len(buffer):
            packet = out.pop(0)
            buffer[at : at + len(packet)] = packet
            at += len(packet)
        return at - offset

    def close(self, rule: str, reason: str) -> "list[object]":
        """End the session from this side: shut the transport afterwards. No packet says so (B-004)."""
        return self._close(rule, reason)

    def progressed(self) -> None:
        """A part of a packet has come, or more of what was written before has left: the peer is there, however long a
        packet takes, as if one had come (B-167).
        """
        self._received_ack = self._session_active = True

    @property
    def half_window(self) -> int:
        """Messages of the peer after which it should hear of them (B-124)."""
        counts = self._counts
        window = _ONE_MESSAGE if self._is_paused else counts[core.SESSION_WINDOW_SIZE]
        return max(min(window, counts[core.SESSION_RECEIVED_WINDOW_SIZE]) // 2, 1)

    @property
    def round_trip(self) -> int:
        """ms, as the initiator has measured it; 0: less than 63 (B-210), or not known."""
        timeout = self.recoverable_ack_send_timeout
        return timeout // 8 if timeout > _RECOVERABLE_ACK_MIN else 0

    @property
    def half_received(self) -> int:
        """Bytes held of a packet that has not come whole (B-435)."""
        return self._end - self._begin

    # ---- receiving ----------------------------------------------------------------------------

    def receive_data(self, data: "bytes | bytearray | memoryview", now: int) -> "list[object]":
        """Take bytes from the peer: Opened, MessageReceived, Acknowledged, Closed events, in order of cause."""
        events: "list[object]" = []
        if self.closed is None:
            if self._begin or self._view:
                self._view = memoryview(b"")
                self._buffer = self._buffer[self._begin : self._end]
                self._begin = 0
            self._buffer += data  # in place: a packet in small pieces is not copied for each of them
            self._end = len(self._buffer)
            while self._next(now, events):
                pass
        return events

    def room(self) -> memoryview:
        """Where the next bytes are to be put; `took` tells how many there are then, and next_event what they mean."""
        begin = self._begin
        end = self._end - begin
        least = max(self._total[0], _ROOM) if end else _ROOM
        if len(self._view) != least:
            buffer = bytearray(least)
            buffer[:end] = self._buffer[begin : begin + end]
            self._buffer = buffer
            self._view = memoryview(buffer)
        elif end and begin:
            self._view[:end] = bytes(self._view[begin : begin + end])
        self._begin = 0
        self._end = end
        return self._view[end:] if end else self._view

    def took(self, count: int) -> None:
        """So many bytes of the peer are now where `room` said. After the end they are dropped."""
        if self.closed is None:
            self._end += count

    def next_event(self, now: int) -> "object | None":
        """What the bytes that came tell next, as receive_data does; None: nothing before more bytes come.

        Handle a MessageReceived with an OrderAck before the next call: that uses its objects again. Its `packet.body`
        is all there is of it: `packet.message` is None, and `raw` is empty.
        """
        events = self._events
        while not events:
            if self.closed is not None or not self._next(now, events, True):
                return None
        return events.pop(0)

    def _next(self, now: int, events: "list[object]", reuse: bool = False) -> bool:
        """Handle one packet; False: none is there whole, or the session is over. reuse: known OrderAcks in place."""
        start = self._begin
        left = self._end - start
        buffer = self._buffer
        if not left or self.closed is not None:
            return False
        status = core.frame(buffer, start, self._end, self._total)
        total = self._total[0]
        if status < 0:
            error = core.malformed(status, 0)
            events += self._close(error.rule, error.field + ": " + error.reason)
        elif left >= 16 and buffer[start + 2] & core.BASE_IN and total > compose.ESTABLISH_CONNECTION_SIZE:
            events += self._close("B-433", "BaseHeader.PacketSize: no internal packet is so long")
        elif left >= 16 and not buffer[start + 2] & core.BASE_IN and self.state != OPEN:
            events += self._close("B-434", "a message came before the session was open")
        elif status != core.OK:
            if self.state == OPEN:
                self.progressed()
            return False
        else:
            self._begin = start + total
            self._received_ack = True  # B-167
            try:
                if buffer[start + 2] & core.BASE_IN:
                    self._internal(buffer, start, start + total, now, events)
                elif reuse and self._order_acks.read(buffer, start, total, self._heard):
                    self._order_ack(buffer[start + 2] & core.BASE_SH != 0, now, events)
                else:
                    self._packet(bytes(buffer[start : start + total]), now, events)
            except core.Malformed as error:
                events += self._close(error.rule, error.field + ": " + error.reason)  # B-169
        return True

    def _internal(self, buffer: "bytes | bytearray", start: int, limit: int, now: int, events: "list[object]") -> None:
        kind = reader.read_internal(buffer, start, limit, self._heard) & core.INTERNAL_PT
        if kind == core.PT_SESSION_ACK and self.state == OPEN:
            self._session_ack(now, events)  # as the table says; it takes no memory
            return
        name = _INTERNAL[kind]
        for state, welcome, handler in TABLE:
            if state == self.state and welcome == name:
                getattr(self, handler)(buffer, start, now, events)
                return
        events += self._close("B-180", name + " is not expected in " + self.state)

    def _order_ack(self, carries: bool, now: int, events: "list[object]") -> None:
        order_acks = self._order_acks
        event = self._order_ack_received
        if event is None:
            nothing: "UserMessage" = None  # type: ignore[assignment]  # a board has no room for it
            event = MessageReceived(reader.OrderAck(nothing, order_acks.body), b"", False)
            self._order_ack_received = event
        flags = order_acks.user_flags
        event.recoverable = flags & core.USER_DM != 0
        self._count(event.recoverable, flags & core.USER_DQ == core.USER_DQ, now)
        events.append(event)
        if carries:
            self._session_header(True, now, events)

    def _packet(self, raw: bytes, now: int, events: "list[object]") -> None:
        from mqqb import headers, parse  # not before something else than an OrderAck comes

        packet: "UserMessage | reader.OrderAck | FinalAck" = parse.parse(raw)  # type: ignore[assignment]
        message = packet if isinstance(packet, headers.UserMessage) else packet.message
        self._message(packet, message, raw, now, events)  # as the table says; the state is OPEN

    def _establish_request(self, buffer: "bytes | bytearray", start: int, now: int, events: "list[object]") -> None:
        self.remote_guid = bytes(buffer[start + 20 : start + 36])  # B-205
        asked = bytes(buffer[start + 36 : start + 52])
        refused = asked != NULL_GUID and asked != self.own_guid  # B-207, A-39
        self._out.append(
            compose.establish_connection(
                self.remote_guid,
                self.own_guid,
                self._heard[core.ESTABLISH_TIME_STAMP],
                self._heard[core.ESTABLISH_OPERATING_SYSTEM],
                refused,
            )
        )
        if refused:
            events += self._close("B-207", "the session was asked of another queue manager", keep_output=True)
            return
        self.state = WAITING_CP_MSG  # B-185
        self._start_initialization(now)

    def _establish_response(self, buffer: "bytes | bytearray", start: int, now: int, events: "list[object]") -> None:
        client = buffer[start + 20 : start + 36]
        server = bytes(buffer[start + 36 : start + 52])
        if buffer[start + 18] & core.INTERNAL_CS:
            events += self._close("B-209", "the peer refused the session")
        elif client != self.own_guid:
            events += self._close("B-209", "the answer is for another queue manager")
        elif server == NULL_GUID or self.remote_guid not in (NULL_GUID, server):
            events += self._close("B-209", "another queue manager answered")
        else:
            self.remote_guid = server
            elapsed = (now - self._heard[core.ESTABLISH_TIME_STAMP]) & 0xFFFFFFFF
            timeout = min(max(8 * elapsed, _RECOVERABLE_ACK_MIN), _RECOVERABLE_ACK_MAX)  # B-210
            self.recoverable_ack_send_timeout = timeout
            self._out.append(
                compose.connection_parameters(timeout, self.ack_wait_timeout, self.settings.window_size)
            )  # B-212
            self.state = WAITING_CPR_MSG  # B-182

    def _parameters_request(self, _buffer: "bytes | bytearray", _start: int, _now: int, events: "list[object]") -> None:
        fields = self._heard
        self.ack_wait_timeout = fields[core.PARAMETERS_ACK_TIMEOUT]  # B-214
        self.recoverable_ack_send_timeout = fields[core.PARAMETERS_RECOVERABLE_ACK_TIMEOUT]
        self._out.append(
            compose.connection_parameters(
                self.recoverable_ack_send_timeout, self.ack_wait_timeout, self.settings.window_size
            )
        )  # B-215
        self._open(fields[core.PARAMETERS_WINDOW_SIZE], events)

    def _parameters_response(
        self, _buffer: "bytes | bytearray", _start: int, _now: int, events: "list[object]"
    ) -> None:
        self._open(self._heard[core.PARAMETERS_WINDOW_SIZE], events)  # B-216

    def _open(self, window_size: int, events: "list[object]") -> None:
        self._full_window = max(window_size, 1)  # B-213
        self._counts[core.SESSION_RECEIVED_WINDOW_SIZE] = self._full_window
        self._initialization_due = None
        self.state = OPEN  # B-183, B-187
        events.append(Opened())

    def _session_ack(self, now: int, events: "list[object]") -> None:
        self._session_header(False, now, events)

    def _message(
        self,
        packet: "UserMessage | reader.OrderAck | FinalAck",
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
            self._heard[:_SESSION_HEADER_WORDS] = session.fields
            self._session_header(True, now, events)  # B-263: after the message that carried it

    def _count(self, recoverable: bool, direct: bool, now: int) -> None:
        """A message has come. direct: to a direct format name."""
        core.session_received(self._counts, recoverable)  # B-252, B-278
        self._session_active = True
        if direct:
            self.direct_format_session = True  # B-253
        if self._ack_send_due is None:
            self._start_ack_send(self.ack_wait_timeout // 2, now)  # B-121

    def _session_header(self, carried: bool, now: int, events: "list[object]") -> None:
        """Take the one in _heard. carried: at the end of a message, which is counted."""
        status = core.session_check(self._counts, self._heard, carried)
        if status == core.BAD_ACK_COUNT:
            events += self._close("B-229", "SessionHeader acknowledges messages that were never sent")
            return
        self._start_window_growth(now)
        self._acknowledge(now, events)
        if status == core.BAD_MESSAGE_COUNT:
            reason = "SessionHeader counts other messages sent than were received"
            if self.settings.close_on_mismatch:
                events += self._close("B-227", reason)
            elif not self._has_noted:
                self._has_noted = True
                events.append(Noted("B-227", reason))

    def _acknowledge(self, now: int, events: "list[object]") -> None:
        """Apply an acknowledgement that has been checked: in-flight entries first, then the bits (B-219 to B-225)."""
        settled: "list[streams.Entry] | None" = None
        in_flight = self._in_flight
        acked = self._counts[core.SESSION_PEER_ACKED]
        left = core.session_unacked_sent(self._counts)
        while len(in_flight) > left:
            entry = in_flight.popleft()
            # not one that waits to be sent again, or was, behind what is acknowledged (B-151)
            if entry is not None and entry.awaiting_ack and not core.serial_after(entry.sequence_number, acked):
                entry.awaiting_ack = False
                entry.received_session_ack = True
                if not entry.recoverable:
                    if settled is None:
                        settled = []
                    settled.append(entry)
        if self._awaiting_bits:
            base = self._heard[core.ACKS_BASE]
            flags = self._heard[core.ACKS_FLAGS]
            waiting: "list[streams.Entry]" = []
            settled = settled or []
            for entry in self._awaiting_bits:
                (settled if core.is_acked(base, flags, entry.recoverable_sequence_number) else waiting).append(entry)
            self._awaiting_bits = waiting
        if in_flight or self._awaiting_bits:
            self._start_ack_wait(now)  # B-228
        if settled:
            events.append(Acknowledged(settled))

    # ---- sending ------------------------------------------------------------------------------

    def can_send(self) -> bool:
        """Is the session open, and the window too (B-118, B-307)?"""
        return self.state == OPEN and core.session_can_send(self._counts)

    def send(self, entry: "streams.Entry | None", packet: bytearray, recoverable: bool, now: int) -> None:
        """Put one UserMessage-format packet on the wire (B-320, B-321). Only when can_send() says so.

        entry: what the acknowledgement is for; None for an OrderAck, which nobody waits for. packet: complete,
        without SessionHeader; its SH flag is set here as needed. recoverable: DM = 1.
        """
        carries = self._begin_send(recoverable, now)
        packet[2] = packet[2] & ~core.BASE_SH & 0xFF | carries
        self._out.append(packet)
        if carries:
            header = bytearray(compose.SESSION_HEADER_SIZE)
            core.pack(core.SESSION_HEADER, self._header, header, 0)
            self._out.append(header)
        self._end_send(entry, recoverable, now)

    def send_in(
        self, entry: "streams.Entry | None", buffer: bytearray, offset: int, size: int, recoverable: bool, now: int
    ) -> int:
        """As `send`, for a packet that lies in buffer[offset:offset + size] and is written from there. Behind it has
        to be room for 16 bytes. Returns how many bytes to write. What `take_output` gives goes before.
        """
        carries = self._begin_send(recoverable, now)
        buffer[offset + 2] = buffer[offset + 2] & ~core.BASE_SH & 0xFF | carries
        if carries:
            core.pack(core.SESSION_HEADER, self._header, buffer, offset + size)
            size += compose.SESSION_HEADER_SIZE
        self._end_send(entry, recoverable, now)
        return size

    def _begin_send(self, recoverable: bool, now: int) -> int:
        """Count a message. BASE_SH: the header that it is to carry has been made; 0: it carries none."""
        assert self.can_send()
        core.session_sent(self._counts, recoverable)
        self._session_active = True
        if not self._piggybacks(now):
            return 0
        self._fill(now)  # B-126: after this message was counted
        return core.BASE_SH

    def _end_send(self, entry: "streams.Entry | None", recoverable: bool, now: int) -> None:
        if entry is not None:
            entry.sequence_number = self._counts[core.SESSION_SENT]
            entry.recoverable_sequence_number = self._counts[core.SESSION_RECOVERABLE_SENT] if recoverable else 0
            entry.awaiting_ack = True
            if entry.stream is not None:
                entry.stream.sent(entry, now)
            if recoverable and not entry.tx_sequence_number:
                self._awaiting_bits.append(entry)
        self._in_flight.append(entry)
        if self._ack_wait_due is None:
            self._start_ack_wait(now)  # B-134

    def stored(self, recoverable: bool, now: int) -> None:
        """The oldest MessageReceived not yet reported is durable, or a rule discarded it (B-250, B-262, B-278 to
        B-281).
        """
        if self.state != OPEN:
            return
        counts = self._counts
        if core.session_stored(counts, recoverable) == core.ACK_FIRST:  # B-123, B-277
            self._send_session_ack(now)
            core.session_stored(counts, recoverable)
        flags = counts[core.SESSION_ACK_FLAGS]
        if flags == 1 and recoverable:
            self._start_ack_send(self.recoverable_ack_send_timeout, now)  # B-122, B-279
        if (counts[core.SESSION_STORED] - counts[core.SESSION_ACKED]) & 0xFFFF >= self.half_window:
            self._send_session_ack(now)  # B-124

    def _piggybacks(self, now: int) -> bool:
        """More than 75 % of the Session Ack Send Timer is over; it runs while something is unacknowledged (B-125)."""
        return self._ack_send_due is not None and 4 * (self._ack_send_due - now) < self._ack_send_duration

    def _fill(self, now: int) -> None:
        core.session_fill(self._counts, self._header)
        if self._is_paused:
            self._header[core.ACKS_WINDOW_SIZE] = _ONE_MESSAGE
        self._ack_send_due = None
        if core.session_unacked_received(self._counts):
            self._start_ack_send(self.ack_wait_timeout // 2, now)

    def _send_session_ack(self, now: int) -> None:
        self._fill(now)
        if not self._ack:
            self._ack = bytes(compose.session_ack(self._header))
        packet = bytearray(self._ack)
        core.pack(core.SESSION_HEADER, self._header, packet, compose.SESSION_ACK_SIZE - compose.SESSION_HEADER_SIZE)
        self._out.append(packet)

    # ---- pause and resume ---------------------------------------------------------------------

    def pause(self, now: int) -> None:
        """The queue is put on hold (B-128, B-345): what is stored is acknowledged, and from now on each SessionHeader
        asks the peer for one message at a time. The owner sends nothing of the queue; the session may go idle.
        """
        if self.state == OPEN:
            self._is_paused = True
            self._send_session_ack(now)
            self._session_active = False

    def resume(self, now: int) -> None:
        """The queue is taken off hold (B-346): tell the peer that the whole window is open again."""
        if self.state == OPEN and self._is_paused:
            self._is_paused = False
            self._send_session_ack(now)
            self._session_active = True

    # ---- timers -------------------------------------------------------------------------------

    def _start_initialization(self, now: int) -> None:
        settings = self.settings
        self._initialization_due = now + settings.initialization_timeout + 2 * settings.round_trip_delay  # B-131, A-41

    def _start_ack_wait(self, now: int) -> None:
        direct = self._is_direct or self.direct_format_session
        self._ack_wait_due = now + self.ack_wait_timeout * (self.settings.ack_wait_multiple if direct else 1)

    def _start_window_growth(self, now: int) -> None:
        is_small = self._counts[core.SESSION_RECEIVED_WINDOW_SIZE] < self._full_window
        self._window_due = now + self.settings.window_growth_interval if is_small else None

    def _start_ack_send(self, duration: int, now: int) -> None:
        self._ack_send_due = now + duration
        self._ack_send_duration = duration

    def next_timeout(self) -> "int | None":
        """When `handle_timeout` is due at the latest, or None."""
        due = _earlier(self._initialization_due, self._cleanup_due)
        due = _earlier(due, self._ack_wait_due)
        due = _earlier(due, self._ack_send_due)
        return _earlier(due, self._window_due)

    def handle_timeout(self, now: int) -> "list[object]":
        """Run the timers that are due: may queue a SessionAck, may close the session."""
        events: "list[object]" = []
        if self._ack_send_due is not None and now >= self._ack_send_due:
            self._send_session_ack(now)  # B-127, B-150: the timer runs only while something is unacknowledged
        if self._ack_wait_due is not None and now >= self._ack_wait_due:
            self._ack_wait_due = None
            if self._in_flight or self._awaiting_bits:
                if not self._received_ack:
                    events += self._close("B-148", "the peer has fallen silent")
                else:
                    self._start_ack_wait(now)
            self._received_ack = False
        if self._window_due is not None and now >= self._window_due:  # B-129
            counts = self._counts
            counts[core.SESSION_RECEIVED_WINDOW_SIZE] = min(
                2 * counts[core.SESSION_RECEIVED_WINDOW_SIZE], self._full_window
            )
            self._start_window_growth(now)
        if self._cleanup_due is not None and now >= self._cleanup_due:
            if self._session_active or (self.is_needed is not None and self.is_needed()):
                self._session_active = False
                self._cleanup_due = now + self.settings.cleanup_timeout
            else:
                events += self._close("B-147", "the session was idle")
        if self._initialization_due is not None and now >= self._initialization_due:
            events += self._close("B-155", "the handshake took too long")
        return events

    def _close(self, rule: str, reason: str, keep_output: bool = False) -> "list[object]":
        if self.closed is not None:
            return []
        self.state = CLOSED
        self.closed = Closed(rule, reason)
        if not keep_output:
            self._out = []
        self._buffer = bytearray()
        self._view = memoryview(b"")
        self._begin = 0
        self._end = 0
        self._initialization_due = None
        self._cleanup_due = None
        self._ack_wait_due = None
        self._ack_send_due = None
        self._window_due = None
        return [self.closed]
