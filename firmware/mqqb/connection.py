"""A connection of a session: the byte stream, the handshake in which both ends say who they are and agree on window and
times, and the end (B-160 to B-217).
"""

from mqqb import compose, const, core, names, reader, timers, window
from mqqb.events import Closed, Opened

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


class Handshake:
    """One byte stream to a peer, from its beginning until it is OPEN, and its end; session.Session is what uses it.

    initiator: this side connected and begins. own_guid, remote_guid: 16 bytes; remote_guid is NULL_GUID where a
    direct format name leads to the peer, and the peer's answer is taken (A-39). After the end, `closed` is a Closed.
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
        self.reader = reader.Reader()
        self.window = window.Window(self.settings.window_size)
        # B-043; ConnectionParameters carries it, and can carry no more
        self.ack_wait_timeout = min(self.settings.ack_wait_timeout + self.settings.round_trip_delay, _ACK_WAIT_MAX)
        self.recoverable_ack_send_timeout = 0xFFFFFFFF  # B-044: until it is negotiated
        self.due: "list[int | None]" = [None] * timers.COUNT
        self._start_initialization(now)
        self._words = core.words(core.ESTABLISH_CONNECTION)  # of any header that is read or written just now
        self._out: "list[bytes | bytearray]" = []

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
        return self.close("B-298", "the peer closed the connection")

    def close(self, rule: str, reason: str, keep_output: bool = False) -> "list[object]":
        """End the session from this side: shut the transport afterwards. No packet says so (B-004).

        keep_output: what is to be written still goes. Returns a Closed event, unless the session was over already.
        """
        if self.closed is not None:
            return []
        self.state = CLOSED
        self.closed = Closed(rule, reason)
        if not keep_output:
            self._out = []
        self.reader.clear()
        for timer in range(timers.COUNT):
            self.due[timer] = None
        return [self.closed]

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

    @property
    def round_trip(self) -> int:
        """ms, as the initiator has measured it; 0: less than 63 (B-210), or not known."""
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
        self.due[timers.INITIALIZATION] = None
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
        self.due[timers.INITIALIZATION] = (
            now + settings.initialization_timeout + 2 * settings.round_trip_delay
        )  # B-131, A-41
