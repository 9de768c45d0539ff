"""A session's connection (B-160 to B-217): received bytes, the window, the handshake, the end, and the session's
events.
"""

from array import array
from collections import deque
from struct import unpack_from

from mqqb import compose, const, core, names, problems
from mqqb.streams import OrderAckBody

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from mqqb.headers import FinalAck, UserMessage
    from mqqb.streams import Entry

    Buffer = bytes | bytearray | memoryview

# Timers. Timers that expire together are handled in this order.
ACK_SEND = const(0)  # Session Ack Send Timer: acknowledge received messages (B-127)
ACK_WAIT = const(1)  # Session Ack Wait Timer: the peer owes an acknowledgement (B-148)
WINDOW_GROWTH = const(2)  # double the window after the peer has made it small (B-129)
CLEANUP = const(3)  # Session Cleanup Timer: the session is idle (B-147)
INITIALIZATION = const(4)  # Session Initialization Timer: the handshake (B-155)
TIMERS = const(5)

WAITING_EC_MSG = const("WAITING_EC_MSG")
WAITING_ECR_MSG = const("WAITING_ECR_MSG")
WAITING_CP_MSG = const("WAITING_CP_MSG")
WAITING_CPR_MSG = const("WAITING_CPR_MSG")
OPEN = const("OPEN")
CLOSED = const("CLOSED")

_RECOVERABLE_ACK_MIN = const(500)
_RECOVERABLE_ACK_MAX = const(120000)
_ACK_WAIT_MAX = const(120000)
_OPERATING_SYSTEM = const(0x0210)  # RE, and OS: a server (wire.md 5.2)
_SESSION_REQUESTED = const(0x0100)  # OperatingSystem.SE (B-204, A-52)

IN_FLIGHT_MAX = const(0x7FFF)
_ONE_MESSAGE = const(1)  # the window that asks the peer to wait

ORDER_LABEL_RAW = b"Q\0M\0 \0O\0r\0d\0e\0r\0i\0n\0g\0 \0A\0c\0k\0\0\0"
ORDER_LABEL_AT = const(-68)  # from the end of an OrderAck or a FinalAck: 32 bytes, and a body of 36
_NOT_OF_ORDER_ACKS = const(0x10DFE000)  # UserHeader.Flags: AQ, RQ, SH, TH, CQ, MQ, HH
_USER_TH_BYTE = const(0x10)  # in the third byte of UserHeader.Flags: transactional, so no OrderAck
INTERNAL_PACKETS = ("", "SessionAck", "EstablishConnection", "ConnectionParameters")  # by PT
_ROOM = const(384)  # bytes, more than an OrderAck; grows while a longer packet arrives


# ---- events of a session --------------------------------------------------------------------------


class Opened:
    """The handshake is complete: both sides may send (B-003)."""

    __slots__ = ()


class MessageReceived:
    """A UserMessage, OrderAck or FinalAck (`packet`) has arrived; `raw` is the packet without its SessionHeader.

    The owner calls Session.stored once for each packet, in order, when its outcome is durable.
    """

    __slots__ = ("packet", "raw", "recoverable")

    def __init__(self, packet: "UserMessage | OrderAck | FinalAck", raw: bytes, recoverable: bool) -> None:
        self.packet = packet
        self.raw = raw
        self.recoverable = recoverable


class Acknowledged:
    """The session has settled these entries: express ones received, recoverable ones on the peer's disk (B-221 to
    B-223).
    """

    __slots__ = ("entries",)

    def __init__(self, entries: "list[Entry]") -> None:
        self.entries = entries


class Noted:
    """The peer broke `rule`, and the session tolerates it; reported once in a session (A-13)."""

    __slots__ = ("reason", "rule")

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        self.reason = reason


class Closed:
    """The session has ended: close the transport. `rule` and `reason` give the cause (B-004, B-297)."""

    __slots__ = ("reason", "rule")

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        self.reason = reason


# ---- received bytes -------------------------------------------------------------------------------


def read_internal(data: "Buffer", offset: int, limit: int, fields: "array[int]") -> int:
    """Check the internal packet data[offset:limit], and read its last header into fields, 11 words.

    Returns PT and CS of its InternalHeader. The BaseHeader is already checked. Raises Malformed.
    """
    part = core.INTERNAL_HEADER
    status = core.unpack(part, fields, data, offset + core.BASE_HEADER_SIZE, limit)
    if not status:
        flags = fields[core.INTERNAL_FLAGS]
        kind = flags & core.INTERNAL_PT
        size = limit - offset
        if kind == core.PT_SESSION_ACK:
            part = core.SESSION_HEADER
            if not data[offset + core.BASE_FLAGS_AT] & core.BASE_SH:
                status = problems.NO_SESSION_HEADER
            elif size != core.PACKET_SIZE_SESSION_ACK:
                status = problems.SESSION_ACK_LENGTH
        elif kind == core.PT_CONNECTION_PARAMETERS:
            part = core.CONNECTION_PARAMETERS
            if size != core.PACKET_SIZE_CONNECTION_PARAMETERS:
                status = problems.PARAMETERS_LENGTH
        else:
            part = core.ESTABLISH_CONNECTION
            if size != core.PACKET_SIZE_ESTABLISH_CONNECTION:
                status = problems.ESTABLISH_LENGTH
        if not status:
            status = core.unpack(part, fields, data, offset + core.INTERNAL_END, limit)
    if status:
        raise core.malformed(status, part)
    return flags & (core.INTERNAL_PT | core.INTERNAL_CS)


class OrderAck:
    """A message to the order queue (wire.md section 6). build puts body in place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: "UserMessage", body: OrderAckBody) -> None:
        self.message = message
        self.body = body


def is_order_queue(name: str) -> bool:
    """Does this direct name, without DIRECT=, name an order queue (B-178, A-36)?"""
    text = name.upper()
    path = names.ORDER_QUEUE_PATH.upper()
    return text[:4] in ("TCP:", "SPX:") and text.find("\\") == len(text) - len(path) > 4 and text.endswith(path)


def order_ack_body(raw: "Buffer") -> int:
    """The offset of an OrderAck's body, if the message has only an OrderAck's headers. Body and SessionHeader are not
    checked. 0: ask `parse`.
    """
    size = unpack_from("<I", raw, core.BASE_PACKET_SIZE_AT)[0]
    flags = unpack_from("<I", raw, core.USER_FLAGS_AT)[0]
    fields = core.words(core.MESSAGE_PROPERTIES_HEADER)
    if (
        raw[core.BASE_FLAGS_AT] & ~(core.BASE_SH | 7) & 0xFF
        or raw[core.BASE_FLAGS_AT + 1]
        or flags & _NOT_OF_ORDER_ACKS
        or core.unpack(core.USER_HEADER, fields, raw, core.BASE_HEADER_SIZE, size)
    ):
        return 0
    kind = names.KINDS[flags >> compose.DESTINATION_SHIFT & 7]
    at = core.USER_END + 4
    if kind == names.DIRECT:
        count = raw[core.USER_END] | raw[core.USER_END + 1] << 8
        at = core.USER_END + (2 + count + 3 & ~3)
        end = core.USER_END + count  # of the text, without its NUL
        name = bytes(raw[core.USER_END + 2 : end])
        if count & 1 or raw[end : end + 2] != b"\0\0" or not is_order_queue(names.utf16_decode(name)):
            return 0
    elif kind != names.ID or unpack_from("<I", raw, core.USER_END)[0] != names.ORDER_QUEUE_ID:
        return 0
    label_at = at + core.MESSAGE_PROPERTIES_HEADER_SIZE
    body_at = label_at + len(ORDER_LABEL_RAW)
    if (
        body_at + core.ORDER_ACK_SIZE != size
        or core.unpack(core.MESSAGE_PROPERTIES_HEADER, fields, raw, at, size)
        or raw[label_at:body_at] != ORDER_LABEL_RAW
        or fields[core.PROPERTIES_LABEL_LENGTH] != len(ORDER_LABEL_RAW) // 2
        or fields[core.PROPERTIES_MESSAGE_CLASS] != compose.CLASS_ORDER_ACK
        or fields[core.PROPERTIES_MESSAGE_SIZE] != core.ORDER_ACK_SIZE
        or fields[core.PROPERTIES_ALLOCATION_BODY_SIZE] != core.ORDER_ACK_SIZE
        or fields[core.PROPERTIES_EXTENSION_SIZE]
    ):
        return 0
    return body_at


_NO_VIEW = memoryview(b"")


class Reader:
    """Holds the received bytes not read yet: data[begin:end]. total: one word, the size of the packet there.

    Reads OrderAcks without taking memory if they differ from an earlier one only in the acknowledged number and in
    irrelevant fields. body: of the last OrderAck. user_flags: low 16 bits of its UserHeader.Flags.
    """

    __slots__ = ("_flags", "_head", "_view", "begin", "body", "data", "end", "total", "user_flags")

    def __init__(self) -> None:
        self.total = array("I", (0,))
        self.body = OrderAckBody()
        self._head = b""  # bytes from MessageID to body, which identify an OrderAck; empty before the first one
        self.clear()

    def clear(self) -> None:
        """Drop all bytes."""
        self.data = bytearray()
        self._view = _NO_VIEW  # of data, if made by `room`
        self.begin = 0
        self.end = 0

    def add(self, data: "Buffer") -> None:
        """Append bytes."""
        if self.begin or self._view:
            self._view = _NO_VIEW
            self.data = self.data[self.begin : self.end]
            self.begin = 0
        self.data += data  # in place: a packet in small pieces is not copied for each piece
        self.end = len(self.data)

    def room(self) -> memoryview:
        """The buffer for the next bytes; call `took` afterwards."""
        begin = self.begin
        end = self.end - begin
        least = max(self.total[0], _ROOM) if end else _ROOM
        if len(self._view) != least:
            data = bytearray(least)
            data[:end] = self.data[begin : begin + end]
            self.data = data
            self._view = memoryview(data)
        elif end and begin:
            self._view[:end] = bytes(self._view[begin : begin + end])
        self.begin = 0
        self.end = end
        return self._view[end:] if end else self._view

    def took(self, count: int) -> None:
        """The caller has put this number of bytes into `room`."""
        self.end += count

    def read_order_ack(self, start: int, total: int, heard: "array[int]") -> bool:
        """Read the message data[start:start + total] if it is such an OrderAck; its SessionHeader goes into heard."""
        if self._is_alike(start, total, heard):
            return True
        if self.data[start + core.USER_FLAGS_AT + 2] & _USER_TH_BYTE:
            return False
        self._learn(bytes(self.data[start : start + total]))
        return self._is_alike(start, total, heard)

    def _is_alike(self, start: int, total: int, heard: "array[int]") -> bool:
        buffer = self.data
        head = self._head
        carries = buffer[start + core.BASE_FLAGS_AT] & core.BASE_SH
        at = start + core.USER_FLAGS_AT
        body = at + len(head)
        limit = body + core.ORDER_ACK_SIZE
        return (
            head != b""
            and start + total == limit + carries  # a SessionHeader has 16 bytes, SH is 0x10
            and buffer[start + core.BASE_FLAGS_AT] & ~core.BASE_SH == self._flags
            and buffer[start + core.BASE_FLAGS_AT + 1] == 0
            and buffer.startswith(head, at)
            and core.unpack(core.ORDER_ACK, self.body.fields, buffer, body, limit) == core.OK
            and (not carries or core.unpack(core.SESSION_HEADER, heard, buffer, limit, start + total) == core.OK)
        )

    def _learn(self, raw: bytes) -> None:
        """Take this message as the template, if it is a usual OrderAck."""
        body_at = order_ack_body(raw)
        if body_at:
            self._head = head = raw[core.USER_FLAGS_AT : body_at]
            self._flags = raw[core.BASE_FLAGS_AT] & ~core.BASE_SH  # the low byte of BaseHeader.Flags
            self.user_flags = head[0] | head[1] << 8


# ---- sent and received messages -------------------------------------------------------------------


class Window:
    """Both message sequences of one connection.

    counts: the words of core.session_*. in_flight: sent messages that no AckSequenceNumber covers yet, oldest first;
    None for a message without an entry. awaiting_bits: recoverable, non-transactional entries, until a bit covers
    them. is_paused: the peer is asked for one message at a time.
    """

    __slots__ = ("_full", "awaiting_bits", "counts", "in_flight", "is_paused")

    def __init__(self, size: int) -> None:
        self.counts = array("I", bytes(4 * core.SESSION_WORDS))
        core.session_init(self.counts, size)
        self.in_flight: "deque[Entry | None]" = deque((), min(size, IN_FLIGHT_MAX))  # noqa: RUF037
        self.awaiting_bits: "list[Entry]" = []
        self.is_paused = False
        self._full = 0  # the peer's window, as negotiated

    def open(self, size: int) -> None:
        """Set the peer's window from the handshake (B-213)."""
        self._full = max(size, 1)
        self.counts[core.SESSION_RECEIVED_WINDOW_SIZE] = self._full

    def is_small(self) -> bool:
        """Is the peer's window smaller than negotiated (B-129)?"""
        return self.counts[core.SESSION_RECEIVED_WINDOW_SIZE] < self._full

    def grow(self) -> None:
        """Double a window that the peer has made small (B-129)."""
        counts = self.counts
        counts[core.SESSION_RECEIVED_WINDOW_SIZE] = min(2 * counts[core.SESSION_RECEIVED_WINDOW_SIZE], self._full)

    @property
    def half(self) -> int:
        """Number of the peer's messages after which an acknowledgement is sent (B-124)."""
        counts = self.counts
        window = _ONE_MESSAGE if self.is_paused else counts[core.SESSION_WINDOW_SIZE]
        return max(min(window, counts[core.SESSION_RECEIVED_WINDOW_SIZE]) // 2, 1)

    def sent(self, entry: "Entry | None", recoverable: bool, now: int) -> None:
        """Give the entry the numbers of the last counted message on this connection (B-320)."""
        if entry is not None:
            entry.sequence_number = self.counts[core.SESSION_SENT]
            entry.recoverable_sequence_number = self.counts[core.SESSION_RECOVERABLE_SENT] if recoverable else 0
            entry.awaiting_ack = True
            if entry.stream is not None:
                entry.stream.sent(entry, now)
            if recoverable and not entry.tx_sequence_number:
                self.awaiting_bits.append(entry)
        self.in_flight.append(entry)

    def fill(self, header: "array[int]") -> bool:
        """Fill a SessionHeader to send now. True: it does not acknowledge all received messages."""
        core.session_fill(self.counts, header)
        if self.is_paused:
            header[core.ACKS_WINDOW_SIZE] = _ONE_MESSAGE
        return core.session_unacked_received(self.counts) != 0

    def acknowledge(self, heard: "array[int]") -> "list[Entry] | None":
        """Apply a checked SessionHeader: in-flight entries first, then the bits (B-219 to B-225). Return the settled
        entries, or None.
        """
        settled: "list[Entry] | None" = None
        in_flight = self.in_flight
        acked = self.counts[core.SESSION_PEER_ACKED]
        left = core.session_unacked_sent(self.counts)
        while len(in_flight) > left:
            entry = in_flight.popleft()
            # skip entries to resend, or resent behind the acknowledged number (B-151)
            if entry is not None and entry.awaiting_ack and not core.serial_after(entry.sequence_number, acked):
                entry.awaiting_ack = False
                entry.received_session_ack = True
                if not entry.recoverable:
                    if settled is None:
                        settled = []
                    settled.append(entry)
        if self.awaiting_bits:
            base = heard[core.ACKS_BASE]
            flags = heard[core.ACKS_FLAGS]
            waiting: "list[Entry]" = []
            settled = settled or []
            for entry in self.awaiting_bits:
                (settled if core.is_acked(base, flags, entry.recoverable_sequence_number) else waiting).append(entry)
            self.awaiting_bits = waiting
        return settled


# ---- handshake and end ----------------------------------------------------------------------------


class Settings:
    """Durations in milliseconds under the specification's names, with its defaults; B-039, B-043, B-129, B-131 to
    B-134, A-13.

    round_trip_delay: of a slow line, added to the other times. ack_wait_multiple: for sessions with direct format
    names, 1 for others. cleanup_timeout: 120000 on a routing server. window_growth_interval: until a small window is
    doubled. close_on_mismatch: False reports wrong counts in a SessionHeader as Noted only. Timers of transactional
    streams are arguments of streams.py.
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


class Handshake:
    """One byte stream to a peer, from its beginning to OPEN, and its end; session.Session uses it.

    initiator: this side connects and begins. own_guid, remote_guid: 16 bytes; remote_guid is NULL_GUID for a direct
    format name, and the peer's answer sets it (A-39). After the end, `closed` is a Closed.
    """

    def __init__(
        self, initiator: bool, own_guid: bytes, now: int, remote_guid: bytes, settings: "Settings | None"
    ) -> None:
        self.initiator = initiator
        self.own_guid = own_guid
        self.remote_guid = remote_guid
        self.settings = settings or Settings()
        self.state = WAITING_EC_MSG  # B-161
        self.closed: "Closed | None" = None
        self.reader = Reader()
        self.window = Window(self.settings.window_size)
        # B-043; the limit of ConnectionParameters
        self.ack_wait_timeout = min(self.settings.ack_wait_timeout + self.settings.round_trip_delay, _ACK_WAIT_MAX)
        self.recoverable_ack_send_timeout = 0xFFFFFFFF  # B-044: until the negotiation
        self.due: "list[int | None]" = [None] * TIMERS
        self._start_initialization(now)
        self._words = core.words(core.ESTABLISH_CONNECTION)  # scratch words for any header
        self._out: "list[bytes | bytearray]" = []

    def connected(self, now: int, pinged: bool = False, name: bytes = b"") -> None:
        """The transport is connected. An initiator requests the session (B-204); an acceptor waits. pinged: the peer
        has agreed to a ping before. name: begins the request's padding, which may hold anything.
        """
        if self.initiator:
            self._start_initialization(now)
            operating_system = _OPERATING_SYSTEM | (0 if pinged else _SESSION_REQUESTED)
            self._out.append(
                compose.establish_connection(
                    self.own_guid, self.remote_guid, now & 0xFFFFFFFF, operating_system, False, name
                )
            )
            self.state = WAITING_ECR_MSG  # B-181

    def transport_closed(self) -> "list[object]":
        """The transport is closed (B-298): a Closed event, unless the session has ended before."""
        return self.close("B-298", "the peer closed the connection")

    def close(self, rule: str, reason: str, keep_output: bool = False) -> "list[object]":
        """End the session from this side: close the transport afterwards. No packet announces it (B-004).

        keep_output: still send pending output. Returns a Closed event, unless the session has ended before.
        """
        if self.closed is not None:
            return []
        self.state = CLOSED
        self.closed = Closed(rule, reason)
        if not keep_output:
            self._out = []
        self.reader.clear()
        for timer in range(TIMERS):
            self.due[timer] = None
        return [self.closed]

    def data_to_send(self) -> bytes:
        """Take all pending output; write it in one go."""
        data = b"".join(self._out)
        self._out = []
        return data

    def take_output(self, buffer: bytearray, offset: int) -> int:
        """Move pending output to buffer[offset:], as many whole packets as fit. Returns the number of bytes."""
        out = self._out
        at = offset
        while out and at + len(out[0]) <= len(buffer):
            packet = out.pop(0)
            buffer[at : at + len(packet)] = packet
            at += len(packet)
        return at - offset

    @property
    def round_trip(self) -> int:
        """ms, as the initiator has measured it; 0: less than 63 (B-210), or unknown."""
        timeout = self.recoverable_ack_send_timeout
        return timeout // 8 if timeout > _RECOVERABLE_ACK_MIN else 0

    # ---- the handshake ------------------------------------------------------------------------

    def _establish_request(self, buffer: bytearray, start: int, now: int, events: "list[object]") -> None:
        asked = bytes(buffer[start + core.ESTABLISH_SERVER_GUID_AT : start + core.ESTABLISH_SERVER_GUID_AT + 16])
        self.remote_guid = bytes(
            buffer[start + core.ESTABLISH_CLIENT_GUID_AT : start + core.ESTABLISH_SERVER_GUID_AT]
        )  # B-205
        refused = asked != names.NULL_GUID and asked != self.own_guid  # B-207, A-39
        self._out.append(
            compose.establish_connection(
                self.remote_guid,
                self.own_guid,
                self._words[core.ESTABLISH_TIME_STAMP],
                self._words[core.ESTABLISH_OPERATING_SYSTEM],
                refused,
            )
        )
        if refused:
            events += self.close("B-207", "the session was asked of another queue manager", keep_output=True)
            return
        self.state = WAITING_CP_MSG  # B-185
        self._start_initialization(now)

    def _establish_response(self, buffer: bytearray, start: int, now: int, events: "list[object]") -> None:
        client = buffer[start + core.ESTABLISH_CLIENT_GUID_AT : start + core.ESTABLISH_SERVER_GUID_AT]
        server = bytes(buffer[start + core.ESTABLISH_SERVER_GUID_AT : start + core.ESTABLISH_SERVER_GUID_AT + 16])
        if buffer[start + core.INTERNAL_FLAGS_AT] & core.INTERNAL_CS:
            events += self.close("B-209", "the peer refused the session")
        elif client != self.own_guid:
            events += self.close("B-209", "the answer is for another queue manager")
        elif server == names.NULL_GUID or self.remote_guid not in (names.NULL_GUID, server):
            events += self.close("B-209", "another queue manager answered")
        else:
            self.remote_guid = server
            elapsed = (now - self._words[core.ESTABLISH_TIME_STAMP]) & 0xFFFFFFFF
            timeout = min(max(8 * elapsed, _RECOVERABLE_ACK_MIN), _RECOVERABLE_ACK_MAX)  # B-210
            self.recoverable_ack_send_timeout = timeout
            self._send_parameters()  # B-212
            self.state = WAITING_CPR_MSG  # B-182

    def _parameters(self, _buffer: bytearray, _start: int, _now: int, events: "list[object]") -> None:
        fields = self._words
        if not self.initiator:
            self.ack_wait_timeout = fields[core.PARAMETERS_ACK_TIMEOUT]  # B-214
            self.recoverable_ack_send_timeout = fields[core.PARAMETERS_RECOVERABLE_ACK_TIMEOUT]
            self._send_parameters()  # B-215
        self.window.open(fields[core.PARAMETERS_WINDOW_SIZE])  # B-216
        self.due[INITIALIZATION] = None
        self.state = OPEN  # B-183, B-187
        events.append(Opened())

    def _send_parameters(self) -> None:
        self._out.append(
            compose.connection_parameters(
                self.recoverable_ack_send_timeout, self.ack_wait_timeout, self.settings.window_size
            )
        )

    def _handshake_is_late(self, _now: int) -> "list[object]":
        return self.close("B-155", "the handshake took too long")

    def _start_initialization(self, now: int) -> None:
        settings = self.settings
        self.due[INITIALIZATION] = now + settings.initialization_timeout + 2 * settings.round_trip_delay  # B-131, A-41
