"""Internal packets and pings as objects, for hosts and tests (wire.md sections 5 and 7)."""

from mqqb import compose, connection, core, names
from mqqb.compose import word
from mqqb.headers import BaseHeader, Header, SessionHeader, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

    Buffer = bytes | bytearray | memoryview


class InternalHeader(Header):
    """wire.md 5.1."""

    __slots__ = ()
    part = core.INTERNAL_HEADER
    reserved = word(core.INTERNAL_RESERVED)
    flags = word(core.INTERNAL_FLAGS)


class EstablishConnectionHeader(Header):
    """wire.md 5.2. time_stamp: ms since the initiator's operating system started."""

    __slots__ = ("client_guid", "server_guid")
    part = core.ESTABLISH_CONNECTION
    time_stamp = word(core.ESTABLISH_TIME_STAMP)
    operating_system = word(core.ESTABLISH_OPERATING_SYSTEM)
    reserved = word(core.ESTABLISH_RESERVED)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.client_guid = names.NULL_GUID
        self.server_guid = names.NULL_GUID


class ConnectionParametersHeader(Header):
    """wire.md 5.3. Timeouts: ms; window_size: packets."""

    __slots__ = ()
    part = core.CONNECTION_PARAMETERS
    recoverable_ack_timeout = word(core.PARAMETERS_RECOVERABLE_ACK_TIMEOUT)
    ack_timeout = word(core.PARAMETERS_ACK_TIMEOUT)
    reserved = word(core.PARAMETERS_RESERVED)
    window_size = word(core.PARAMETERS_WINDOW_SIZE)


class EstablishConnection:
    """base, internal, header, padding: 512 bytes (wire.md 5.2)."""

    __slots__ = ("base", "header", "internal", "padding")

    def __init__(
        self, base: BaseHeader, internal: InternalHeader, header: EstablishConnectionHeader, padding: "Buffer"
    ) -> None:
        self.base = base
        self.internal = internal
        self.header = header
        self.padding = padding


class ConnectionParameters:
    """base, internal, header (wire.md 5.3)."""

    __slots__ = ("base", "header", "internal")

    def __init__(self, base: BaseHeader, internal: InternalHeader, header: ConnectionParametersHeader) -> None:
        self.base = base
        self.internal = internal
        self.header = header


class SessionAck:
    """base, internal, session (wire.md 5.4)."""

    __slots__ = ("base", "internal", "session")

    def __init__(self, base: BaseHeader, internal: InternalHeader, session: SessionHeader) -> None:
        self.base = base
        self.internal = internal
        self.session = session


def read(
    base: BaseHeader, data: "Buffer", offset: int, limit: int
) -> "EstablishConnection | ConnectionParameters | SessionAck":
    """Read an internal packet after its BaseHeader."""
    fields = core.words(core.ESTABLISH_CONNECTION)
    kind = connection.read_internal(data, offset, limit, fields) & core.INTERNAL_PT
    internal = InternalHeader(unpack(core.INTERNAL_HEADER, data, offset + core.BASE_HEADER_SIZE, limit))
    if kind == core.PT_SESSION_ACK:
        return SessionAck(base, internal, SessionHeader(fields[: core.part_words(core.SESSION_HEADER)]))
    if kind == core.PT_CONNECTION_PARAMETERS:
        words = fields[: core.part_words(core.CONNECTION_PARAMETERS)]
        return ConnectionParameters(base, internal, ConnectionParametersHeader(words))
    header = EstablishConnectionHeader(fields)
    at = offset + core.ESTABLISH_SERVER_GUID_AT
    header.client_guid = bytes(data[offset + core.ESTABLISH_CLIENT_GUID_AT : at])
    header.server_guid = bytes(data[at : at + 16])
    return EstablishConnection(base, internal, header, memoryview(data)[limit - compose.PADDING_SIZE : limit])


class Ping(Header):
    """The 24-byte datagram (wire.md section 7)."""

    __slots__ = ("qm_guid",)
    part = core.PING
    flags = word(core.PING_FLAGS)
    signature = word(1)
    cookie = word(core.PING_COOKIE)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.qm_guid = names.NULL_GUID


def parse_ping(datagram: "Buffer") -> Ping:
    """Read a ping datagram. Raises Malformed: ignore the datagram, send no answer, close nothing (B-200, B-202)."""
    if len(datagram) != core.part_size(core.PING):
        raise core.Malformed("wire.md 7", "PingPacket", "a ping has 24 bytes")
    ping = Ping(unpack(core.PING, datagram, 0, len(datagram)))
    ping.qm_guid = bytes(datagram[8:24])
    return ping


def build_ping(ping: Ping) -> bytearray:
    """Build the datagram. Raises ValueError if a field is out of range."""
    out = bytearray(core.part_size(core.PING))
    core.pack(core.PING, ping.fields, out, 0)
    out[8:24] = names.check_guid(ping.qm_guid)
    return out
