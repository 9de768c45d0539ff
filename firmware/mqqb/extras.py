"""What a board neither makes nor looks into: a part of packets, which hosts reach through that module.

The headers of SOAP, of lists of queues and of tracing; pings; packets built from all their headers; names and GUIDs as
texts; the words for what is wrong with a packet. packets imports this file if it is there: import that one, not this.
"""

from array import array
from struct import pack_into, unpack_from

from mqqb import core, packets
from mqqb.messages import (
    BaseHeader,
    FinalAck,
    FinalAckBody,
    MessagePropertiesHeader,
    PrivateQueueFormatName,
    PrivateQueueFormatNameId,
    PublicQueueFormatName,
    SecurityHeader,
    SessionHeader,
    TransactionHeader,
    UserHeader,
    UserMessage,
    check_text,
    find_nul,
    names_end,
    take,
    unpack,
)
from mqqb.packets import (
    NULL_GUID,
    DirectQueueFormatName,
    Header,
    Malformed,
    OrderAck,
    OrderAckBody,
    QueueName,
    check_guid,
    check_u32,
    compose,
    read_internal,
    select,
    terminated,
    utf16_decode,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mqqb.packets import Buffer, Word

_SOAP_HEADER_ID = 0x0320
_SOAP_BODY_ID = 0x0384
_ADDRESS_IDS = (0x0064, 0x00C8, 0x012C)  # Destination, Administration, Response
_SIGNATURE_ID = 0x015E

# ---- what can be wrong --------------------------------------------------------------------------

# A status of the core, or a number of packets -> (rule, field, reason). Without a field it is wrong in one of PLACES:
# the parts by their numbers, then those of packets.
PROBLEMS = {
    core.BAD_VERSION_NUMBER: ("B-168", "BaseHeader.VersionNumber", "not 0x10"),
    core.BAD_SIGNATURE: ("B-168", "BaseHeader.Signature", "not LIOR"),
    core.BAD_PACKET_SIZE: ("B-429", "BaseHeader.PacketSize", "too small for the kind of packet, or above 4 MiB"),
    core.BAD_PACKET_TYPE: ("B-170", "InternalHeader.Flags", "PT is not 1, 2 or 3"),
    core.BAD_REFUSED_FLAG: ("wire.md 5.4", "InternalHeader.Flags", "CS is set in a SessionAck"),
    core.BAD_HOP_COUNT: ("wire.md 2.2", "UserHeader.Flags", "RC is above 0x1D"),
    core.BAD_DELIVERY_MODE: ("wire.md 2.2", "UserHeader.Flags", "DM is neither 0 nor 1"),
    core.BAD_DESTINATION_TYPE: ("B-171", "UserHeader.Flags", "DQ is not 0, 3, 5 or 7"),
    core.BAD_ADMIN_TYPE: ("B-171", "UserHeader.Flags", "AQ is 1 or 4"),
    core.BAD_TRANSACTION_MODE: ("B-173", "UserHeader.Flags", "TH is set in an express message"),
    core.BAD_PROPERTIES_FLAG: ("wire.md 2.5", "UserHeader.Flags", "MP is 0"),
    core.BAD_HTTP_FLAG: ("behaviour.md 26", "UserHeader.Flags", "AH is set: it never is on the wire"),
    core.BAD_TX_SEQUENCE_NUMBER: ("wire.md 2.3", "TransactionHeader.TxSequenceNumber", "0 is not a number"),
    core.BAD_PREVIOUS_NUMBER: (
        "wire.md 2.3",
        "TransactionHeader.PreviousTxSequenceNumber",
        "nothing can follow 0xFFFFFFFF",
    ),
    core.BAD_SENDER_ID_TYPE: ("wire.md 2.4", "SecurityHeader.Flags", "ST is not 0, 1 or 2"),
    core.BAD_SECURITY_SIZE: ("wire.md 2.4", "SecurityHeader.SenderCertSize", "above 0xFFFF, or all five sizes are 0"),
    core.BAD_LABEL_LENGTH: ("B-431", "MessagePropertiesHeader.LabelLength", "above 250"),
    core.BAD_BODY_SIZE: ("B-432", "MessagePropertiesHeader.MessageSize", "above AllocationBodySize"),
    core.BAD_RECOVERABLE_ACK_TIMEOUT: (
        "B-213",
        "ConnectionParametersHeader.RecoverableAckTimeout",
        "outside 500 to 120000 ms",
    ),
    core.BAD_ACK_TIMEOUT: ("B-213", "ConnectionParametersHeader.AckTimeout", "outside 20000 to 120000 ms"),
    core.BAD_OPERATING_SYSTEM: ("wire.md 5.2", "EstablishConnectionHeader.OperatingSystem", "RE is not 0x10"),
    core.BAD_WINDOW_SIZE: ("B-106", "SessionHeader.WindowSize", "0 lets nothing through"),
    core.BAD_ACK_NUMBER: ("wire.md 6", "OrderAckBody.TxSequenceNumber", "0 is not a number"),
    core.BAD_PING_SIGNATURE: ("B-202", "PingPacket.Signature", "not 0x5548"),
    core.BAD_QUEUE_TYPE: ("wire.md 2.6", "DebugHeader.Flags", "QT is neither 0 nor 1"),
    core.BAD_ACK_COUNT: ("B-229", "SessionHeader.AckSequenceNumber", "acknowledges what was never sent"),
    core.BAD_MESSAGE_COUNT: ("B-227", "SessionHeader.UserMsgSequenceNumber", "differs from what was received"),
    core.NEED_MORE: ("B-429", "", "PacketSize ends inside it"),
    2: ("B-431", "", "the text does not end at its one and only NUL"),
    3: ("B-431", "", "Count is below 4"),
    4: ("B-174", "BaseHeader.Flags", "SH is not set in a SessionAck"),
    5: ("B-433", "BaseHeader.PacketSize", "a SessionAck has 36 bytes"),
    6: ("B-433", "BaseHeader.PacketSize", "a ConnectionParameters packet has 32 bytes"),
    7: ("B-433", "BaseHeader.PacketSize", "an EstablishConnection packet has 572 bytes"),
    8: ("wire.md 2.1", "BaseHeader.Flags", "TR is set without DH"),
    9: ("B-430", "BaseHeader.PacketSize", "the SessionHeader does not begin on a 4-byte boundary"),
    10: ("B-179", "MessagePropertiesHeader.MessageSize", "an acknowledgment's body has 36 bytes"),
    11: ("B-432", "MessagePropertiesHeader.AllocationBodySize", "goes beyond PacketSize"),
    12: ("B-432", "SecurityHeader.SecurityData", "the five sizes go beyond PacketSize"),
}

PLACES = (
    "BaseHeader",
    "InternalHeader",
    "SessionHeader",
    "TransactionHeader",
    "ConnectionParametersHeader",
    "UserHeader",
    "MessagePropertiesHeader",
    "SecurityHeader",
    "DebugHeader",
    "EstablishConnectionHeader",
    "OrderAckBody",
    "FinalAckBody",
    "PingPacket",
    "UserHeader.DestinationQueue",
    "UserHeader.AdminQueue",
    "UserHeader.ResponseQueue",
    "UserHeader.ConnectorType",
    "TransactionHeader.ConnectorQMGuid",
    "MessagePropertiesHeader.Label",
    "MessagePropertiesHeader.ExtensionData",
    "MessagePropertiesHeader.Padding",
)


def malformed(problem: int, place: "int | str") -> Malformed:
    """The error for a problem."""
    rule, field, reason = PROBLEMS[problem]
    if not field:
        field = place if isinstance(place, str) else PLACES[place]
    return Malformed(rule, field, reason, problem if problem < 0 else None)


# ---- internal packets --------------------------------------------------------------------------


def word(index: int) -> "Word":
    """A property that stands for .fields[index]."""

    def read(self: "Header") -> int:
        return self.fields[index]

    def write(self: "Header", value: int) -> None:
        self.fields[index] = check_u32(value)

    return property(read, write)  # type: ignore[return-value]


class InternalHeader(Header):
    """wire.md 5.1."""

    __slots__ = ()
    part = core.INTERNAL_HEADER
    reserved = word(0)
    flags = word(1)


class EstablishConnectionHeader(Header):
    """wire.md 5.2. time_stamp: ms since the initiator's operating system started."""

    __slots__ = ("client_guid", "server_guid")
    part = core.ESTABLISH_CONNECTION
    time_stamp = word(8)
    operating_system = word(9)
    reserved = word(10)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.client_guid = NULL_GUID
        self.server_guid = NULL_GUID


class ConnectionParametersHeader(Header):
    """wire.md 5.3. Time-outs: ms; window_size: packets."""

    __slots__ = ()
    part = core.CONNECTION_PARAMETERS
    recoverable_ack_timeout = word(0)
    ack_timeout = word(1)
    reserved = word(2)
    window_size = word(3)


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


def parse_internal(
    base: BaseHeader, data: "Buffer", offset: int, limit: int
) -> "EstablishConnection | ConnectionParameters | SessionAck":
    """Read an internal packet whose BaseHeader has been read."""
    fields = array("I", bytes(4 * core.part_words(core.ESTABLISH_CONNECTION)))
    kind = read_internal(data, offset, limit, fields) & core.INTERNAL_PT
    internal = InternalHeader(unpack(core.INTERNAL_HEADER, data, offset + 16, limit))
    at = offset + 20
    if kind == core.PT_SESSION_ACK:
        return SessionAck(base, internal, SessionHeader(fields[: core.part_words(core.SESSION_HEADER)]))
    if kind == core.PT_CONNECTION_PARAMETERS:
        words = fields[: core.part_words(core.CONNECTION_PARAMETERS)]
        return ConnectionParameters(base, internal, ConnectionParametersHeader(words))
    header = EstablishConnectionHeader(fields)
    header.client_guid = bytes(data[at : at + 16])
    header.server_guid = bytes(data[at + 16 : at + 32])
    return EstablishConnection(base, internal, header, memoryview(data)[limit - packets.PADDING_SIZE : limit])


# ---- names --------------------------------------------------------------------------------------

# The fixed fields whose names boards do without: attributes like the others.
_WORDS: "dict[type[Header], tuple[tuple[str, int], ...]]" = {
    BaseHeader: (
        ("version_number", 0),
        ("reserved", 1),
        ("flags", 2),
        ("signature", 3),
        ("packet_size", 4),
        ("time_to_reach_queue", 5),
    ),
    UserHeader: (("time_to_be_received", 8), ("sent_time", 9), ("message_id", 10), ("flags", 11)),
    SessionHeader: (
        ("ack_sequence_number", 0),
        ("recoverable_msg_ack_seq_number", 1),
        ("recoverable_msg_ack_flags", 2),
        ("user_msg_sequence_number", 3),
        ("recoverable_msg_sequence_number", 4),
        ("window_size", 5),
        ("reserved", 6),
    ),
    TransactionHeader: (
        ("flags", 0),
        ("tx_sequence_ordinal", 1),
        ("tx_sequence_time_stamp", 2),
        ("tx_sequence_number", 3),
        ("previous_tx_sequence_number", 4),
    ),
    SecurityHeader: (
        ("flags", 0),
        ("sender_id_size", 1),
        ("encryption_key_size", 2),
        ("signature_size", 3),
        ("sender_cert_size", 4),
        ("provider_info_size", 5),
    ),
    MessagePropertiesHeader: (
        ("flags", 0),
        ("label_length", 1),
        ("message_class", 2),
        ("body_type", 8),
        ("application_tag", 9),
        ("message_size", 10),
        ("allocation_body_size", 11),
        ("privacy_level", 12),
        ("hash_algorithm", 13),
        ("encryption_algorithm", 14),
        ("extension_size", 15),
    ),
    OrderAckBody: (
        ("tx_sequence_ordinal", 0),
        ("tx_sequence_time_stamp", 1),
        ("tx_sequence_number", 2),
        ("tx_previous_sequence_number", 3),
    ),
    FinalAckBody: (
        ("tx_sequence_ordinal", 0),
        ("tx_sequence_time_stamp", 1),
        ("tx_sequence_number", 2),
        ("previous_tx_sequence_number", 3),
        ("message_id", 8),
    ),
}
for _header, _words in _WORDS.items():
    for _name, _index in _words:
        setattr(_header, _name, word(_index))


def guid_text(guid: bytes) -> str:
    """16 wire bytes as {D1-D2-D3-D4}, upper case (wire.md 1.1)."""
    one, two, three = unpack_from("<IHH", guid, 0)
    tail = "".join(["%02X" % byte for byte in guid[8:16]])
    return "{%08X-%04X-%04X-%s-%s}" % (one, two, three, tail[:4], tail[4:])


def guid_bytes(text: str) -> bytes:
    """The 16 wire bytes of a GUID's text, with or without braces. ValueError if it is none."""
    parts = text[1:-1].split("-") if text[:1] == "{" and text[-1:] == "}" else text.split("-")
    if [len(part) for part in parts] != [8, 4, 4, 4, 12]:
        raise ValueError("not a GUID: " + text)
    digits = "".join(parts)
    for char in digits:
        if char not in "0123456789abcdefABCDEF":
            raise ValueError("not a GUID: " + text)
    guid = bytearray(16)
    pack_into("<IHH", guid, 0, int(parts[0], 16), int(parts[1], 16), int(parts[2], 16))
    for index in range(8):
        guid[8 + index] = int(digits[16 + 2 * index : 18 + 2 * index], 16)
    return bytes(guid)


def parse_guid_name(kind: str, rest: str) -> "PublicQueueFormatName | PrivateQueueFormatName":
    """What stands behind PUBLIC= or PRIVATE= of a format name. ValueError."""
    if kind == "PUBLIC":
        return PublicQueueFormatName(guid_bytes(rest))
    guid, _, number = rest.partition("\\")
    if not 1 <= len(number) <= 8:
        raise ValueError("PRIVATE= needs a GUID, a backslash and a queue number of up to 8 hex digits: " + rest)
    return PrivateQueueFormatName(guid_bytes(guid), int(number, 16))


class DistributionListFormatName(QueueName):
    """A distribution list by its GUID; only in a MultiQueueFormatHeader (wire.md 1.6)."""

    __slots__ = ()

    def __init__(self, distribution_list: bytes) -> None:
        super().__init__(check_guid(distribution_list))


def format_name(name: QueueName, host: bytes = NULL_GUID) -> str:
    """The text of a queue name. host: GUID of the queue manager that a PrivateQueueFormatNameId is on."""
    if isinstance(name, DirectQueueFormatName):
        return "DIRECT=" + name.direct_format_name
    if isinstance(name, PrivateQueueFormatName):
        return "PRIVATE=%s\\%08X" % (guid_text(name.source_queue_manager)[1:-1], name.private_queue_identifier)
    if isinstance(name, PrivateQueueFormatNameId):
        return "PRIVATE=%s\\%08X" % (guid_text(host)[1:-1], name.private_queue_identifier)
    return ("PUBLIC=" if isinstance(name, PublicQueueFormatName) else "DL=") + guid_text(name.raw)[1:-1]


class DebugHeader(Header):
    """wire.md 2.6. queue_identifier: 16 bytes or None."""

    __slots__ = ("queue_identifier",)
    part = core.DEBUG_HEADER
    flags = word(0)
    reserved = word(1)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.queue_identifier: "bytes | None" = None


class Ping(Header):
    """The 24-byte datagram (wire.md section 7)."""

    __slots__ = ("qm_guid",)
    part = core.PING
    flags = word(0)
    signature = word(1)
    cookie = word(2)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.qm_guid = NULL_GUID


class SoapHeader:
    """wire.md 2.7. header_raw, body_raw: WCHARs with the NUL.

    aligned: the second part begins on a 4-byte boundary. That is not stated (OP-8): both are read, aligned is written.
    """

    __slots__ = ("aligned", "body_raw", "header_raw", "reserved", "reserved1")

    def __init__(self, header: str = "", body: str = "") -> None:
        self.header_raw = terminated(header)
        self.body_raw = terminated(body)
        self.reserved = 0
        self.reserved1 = 0
        self.aligned = True

    @property
    def header(self) -> str:
        """The first text."""
        return utf16_decode(self.header_raw[:-2])

    @property
    def body(self) -> str:
        """The second text."""
        return utf16_decode(self.body_raw[:-2])

    def wire(self) -> bytes:
        """The header's bytes, padded."""
        first = bytearray(8)
        pack_into("<HHI", first, 0, _SOAP_HEADER_ID, self.reserved, len(self.header_raw) >> 1)
        second = bytearray(8)
        pack_into("<HHI", second, 0, _SOAP_BODY_ID, self.reserved1, len(self.body_raw) >> 1)
        gap = -len(self.header_raw) & 3 if self.aligned else 0
        wire = bytes(first) + self.header_raw + bytes(gap) + bytes(second) + self.body_raw
        return wire + bytes(-len(wire) & 3)


class MQFAddressHeader:
    """One list of a MultiQueueFormatHeader (wire.md 2.8). raw: FormatNameList as on the wire; elements() makes objects.

    aligned: a public name's GUID begins on a 4-byte boundary like the other GUIDs. That is not stated (OP-9): both are
    read, aligned is written. HeaderSize may count the final padding or not (OP-10): both are read; it is not counted.
    """

    __slots__ = ("aligned", "element_count", "raw", "reserved")

    def __init__(
        self, names: "list[QueueName] | tuple[QueueName, ...]" = (), raw: bytes = b"", element_count: int = 0
    ) -> None:
        self.reserved = 0
        self.aligned = True
        self.element_count = element_count or len(names)
        self.raw = raw
        for name in names:
            self.raw += self._element(name)

    def _element(self, name: QueueName) -> bytes:
        if isinstance(name, DirectQueueFormatName):
            return b"\3\0" + name.raw
        gap = bytes(-(len(self.raw) + 2) & 3)
        if isinstance(name, PublicQueueFormatName):
            return b"\1\0" + gap + name.raw
        if isinstance(name, PrivateQueueFormatName):
            return b"\2\0" + gap + name.raw
        if isinstance(name, DistributionListFormatName):
            return b"\6\0" + gap + name.raw
        raise ValueError("a name in a list has to name its host")

    def elements(self) -> "list[QueueName]":
        """The names."""
        raw = self.raw
        names: "list[QueueName]" = []
        end = 0
        for _ in range(self.element_count):
            kind, at, end = _element(raw, end, self.aligned)
            if kind == 1:
                names.append(PublicQueueFormatName(raw[at:end]))
            elif kind == 2:
                names.append(PrivateQueueFormatName(raw[at : at + 16], unpack_from("<I", raw, at + 16)[0]))
            elif kind == 3:
                names.append(DirectQueueFormatName("", raw[at:end]))
            else:
                names.append(DistributionListFormatName(raw[at:end]))
        return names

    def wire(self, header_id: int) -> bytes:
        """The list's bytes, padded."""
        wire = bytearray(12)
        size = 12 + len(self.raw)
        pack_into("<IHHI", wire, 0, size, header_id, self.reserved, self.element_count)
        return bytes(wire) + self.raw + bytes(-size & 3)


class MultiQueueFormatHeader:
    """wire.md 2.8. signature: bytes, made as MSMQ 3.0 makes them."""

    __slots__ = ("administration", "destination", "response", "signature", "signature_reserved")

    def __init__(
        self,
        destination: MQFAddressHeader,
        administration: MQFAddressHeader,
        response: MQFAddressHeader,
        signature: bytes = b"",
    ) -> None:
        self.destination = destination
        self.administration = administration
        self.response = response
        self.signature = signature
        self.signature_reserved = 0

    def wire(self) -> bytes:
        """The header's bytes, padded."""
        lists = (self.destination, self.administration, self.response)
        wire = b"".join([part.wire(header_id) for part, header_id in zip(lists, _ADDRESS_IDS)])
        last = bytearray(8)
        pack_into("<HHI", last, 0, _SIGNATURE_ID, self.signature_reserved, len(self.signature))
        return wire + last + self.signature + bytes(-len(self.signature) & 3)


def parse_security(security: SecurityHeader, data: "Buffer", at: int) -> None:
    """Read the items of SecurityData, which are known to be there."""
    fields = security.fields
    items = []
    for index in range(1, 6):
        items.append(bytes(data[at : at + fields[index]]))
        at += fields[index] + 3 & ~3
    identifier, key, signature, certificate, provider = items
    security.security_id = identifier
    security.encryption_key = key
    security.signature = signature
    security.sender_cert = certificate
    security.provider_info = provider
    kind = fields[0] & 0xF
    if kind == 0:
        fits = not identifier
    elif kind == 1:
        fits = len(identifier) >= 8 and identifier[0] == 1 and identifier[1] <= 15
        fits = fits and len(identifier) == 8 + 4 * identifier[1]
    else:
        fits = len(identifier) == 16
    if not fits:
        raise Malformed("wire.md 2.4", "SecurityHeader.SecurityID", "not what ST announces")
    if provider:
        if len(provider) < 6:
            raise Malformed("wire.md 2.4", "SecurityHeader.ProviderInfo", "too short for a type and a name")
        check_text(provider[4:], "SecurityHeader.ProviderInfo")


def parse_tail(message: UserMessage, data: "Buffer", at: int, limit: int) -> int:
    """The headers behind the body and its padding. Returns where they end."""
    flags = message.user.fields[core.USER_FLAGS]
    if message.base.fields[core.BASE_FLAGS] & core.BASE_DH:
        message.debug = debug = DebugHeader(unpack(core.DEBUG_HEADER, data, at, limit))
        at += 4
        if debug.fields[0] & 3:
            debug.queue_identifier = take(data, at, 16, limit, "DebugHeader.QueueIdentifier")
            at += 16
    if flags & core.USER_HH:
        message.soap, at = _parse_soap(data, at, limit)
    if flags & core.USER_MQ:
        message.multi_queue_format, at = _parse_multi_queue_format(data, at, limit)
    return at


def _parse_section(data: "Buffer", at: int, limit: int, field: str) -> "tuple[int, bytes]":
    """(Reserved, text with NUL) of one half of a SoapHeader, whose ID is known to be right."""
    _, reserved, length = unpack_from("<HHI", take(data, at, 8, limit, field), 0)
    raw = take(data, at + 8, 2 * length, limit, field)
    check_text(raw, field)
    return reserved, raw


def _is_section(data: "Buffer", at: int, limit: int, section: int) -> bool:
    return at + 2 <= limit and data[at] | data[at + 1] << 8 == section


def _parse_soap(data: "Buffer", at: int, limit: int) -> "tuple[SoapHeader, int]":
    soap = SoapHeader()
    if not _is_section(data, at, limit, _SOAP_HEADER_ID):
        raise Malformed("wire.md 2.7", "SoapHeader.HeaderSectionID", "not 0x0320")
    soap.reserved, soap.header_raw = _parse_section(data, at, limit, "SoapHeader.Header")
    first = 8 + len(soap.header_raw)
    second = at + (first + 3 & ~3)
    if not _is_section(data, second, limit, _SOAP_BODY_ID):
        second = at + first
        soap.aligned = False
        if not _is_section(data, second, limit, _SOAP_BODY_ID):
            raise Malformed("wire.md 2.7", "SoapHeader.BodySectionID", "not 0x0384")
    soap.reserved1, soap.body_raw = _parse_section(data, second, limit, "SoapHeader.Body")
    return soap, min(at + (second - at + 8 + len(soap.body_raw) + 3 & ~3), limit)


def _element(raw: bytes, at: int, aligned: bool) -> "tuple[int, int, int]":
    """(FormatType, begin, end) of the element at raw[at] (wire.md 1.6). A FormatNameList is 4-aligned in its header."""
    if at + 2 > len(raw):
        raise Malformed("B-431", "MQFAddressHeader.ElementCount", "more elements than HeaderSize has room for")
    kind = raw[at] | raw[at + 1] << 8
    at += 2
    if kind == 3:
        end = find_nul(raw, at) + 2
        if end < at + 4:
            raise Malformed("B-431", "MQFAddressHeader.FormatNameList", "a direct name is empty or has no NUL")
        return kind, at, end
    if kind not in (1, 2, 6):
        raise Malformed("wire.md 1.6", "MQFAddressHeader.FormatType", "not 1, 2, 3 or 6")
    if aligned or kind != 1:
        at += -at & 3
    end = at + (20 if kind == 2 else 16)
    if end > len(raw):
        raise Malformed("B-431", "MQFAddressHeader.HeaderSize", "ends inside an element")
    return kind, at, end


def _aligned(raw: bytes, count: int) -> bool:
    """Which reading of OP-9 makes the elements end at HeaderSize, with or without its padding (OP-10, B-431)?"""
    error = Malformed("B-431", "MQFAddressHeader.HeaderSize", "not what the elements take")
    for aligned in (True, False):
        end = 0
        try:
            for _ in range(count):
                _, _, end = _element(raw, end, aligned)
        except Malformed as reason:
            error = reason
            continue
        if end <= len(raw) <= end + (-end & 3):
            return aligned
    raise error


def _parse_address(data: "Buffer", at: int, limit: int, header_id: int) -> "tuple[MQFAddressHeader, int]":
    size, found, reserved, count = unpack_from("<IHHI", take(data, at, 12, limit, "MQFAddressHeader"), 0)
    if found != header_id:
        raise Malformed("wire.md 2.8", "MQFAddressHeader.HeaderID", "not 0x%04X" % header_id)
    if size < 12 or size > limit - at:
        raise Malformed("B-431", "MQFAddressHeader.HeaderSize", "below 12 or beyond PacketSize")
    if count > (size - 12) // 6:  # FormatType, one character, NUL
        raise Malformed("B-431", "MQFAddressHeader.ElementCount", "more elements than HeaderSize has room for")
    raw = bytes(data[at + 12 : at + size])
    address = MQFAddressHeader((), raw, count)
    address.reserved = reserved
    address.aligned = _aligned(raw, count)
    return address, min(at + (size + 3 & ~3), limit)


def _parse_multi_queue_format(data: "Buffer", at: int, limit: int) -> "tuple[MultiQueueFormatHeader, int]":
    destination, at = _parse_address(data, at, limit, _ADDRESS_IDS[0])
    administration, at = _parse_address(data, at, limit, _ADDRESS_IDS[1])
    response, at = _parse_address(data, at, limit, _ADDRESS_IDS[2])
    found, reserved, size = unpack_from("<HHI", take(data, at, 8, limit, "MQFSignatureHeader"), 0)
    if found != _SIGNATURE_ID:
        raise Malformed("wire.md 2.8", "MQFSignatureHeader.ID", "not 0x015E")
    signature = take(data, at + 8, size, limit, "MQFSignatureHeader.Signature")
    header = MultiQueueFormatHeader(destination, administration, response, signature)
    header.signature_reserved = reserved
    return header, min(at + (8 + size + 3 & ~3), limit)  # OP-10: its padding may be missing


def parse_ping(datagram: "Buffer") -> Ping:
    """Read a ping datagram. Malformed: ignore it, answer nothing, close nothing (B-200, B-202)."""
    if len(datagram) != core.part_size(core.PING):
        raise Malformed("wire.md 7", "PingPacket", "a ping has 24 bytes")
    ping = Ping(unpack(core.PING, datagram, 0, len(datagram)))
    ping.qm_guid = bytes(datagram[8:24])
    return ping


def build(
    packet: "EstablishConnection | ConnectionParameters | SessionAck | UserMessage | OrderAck | FinalAck | Ping",
) -> bytearray:
    """The packet's bytes. Sizes, counts, presence bits and selectors are made from the content; padding is 0.

    ValueError if a field is out of range or a name cannot stand where it is.
    """
    if isinstance(packet, UserMessage):
        return _build_message(packet)
    if isinstance(packet, (OrderAck, FinalAck)):
        body = bytearray(packets.ACK_BODY_SIZE)
        core.pack(packet.body.part, packet.body.fields, body, 0)
        body[16:36] = bytes(20)
        if isinstance(packet, FinalAck):
            body[16:32] = packet.body.source_guid
            pack_into("<I", body, 32, packet.body.message_id)
        packet.message.properties.body = body
        return _build_message(packet.message)
    if isinstance(packet, Ping):
        out = bytearray(24)
        core.pack(core.PING, packet.fields, out, 0)
        out[8:24] = check_guid(packet.qm_guid)
        return out
    if isinstance(packet, SessionAck):
        out = _internal(packet.base, packet.internal, packets.SESSION_ACK_SIZE)
        core.pack(core.SESSION_HEADER, packet.session.fields, out, 20)
        return out
    if isinstance(packet, ConnectionParameters):
        out = _internal(packet.base, packet.internal, packets.CONNECTION_PARAMETERS_SIZE)
        core.pack(core.CONNECTION_PARAMETERS, packet.header.fields, out, 20)
        return out
    out = _internal(packet.base, packet.internal, packets.ESTABLISH_CONNECTION_SIZE)
    if len(packet.padding) != packets.PADDING_SIZE:
        raise ValueError("an EstablishConnection packet has 512 bytes of padding")
    core.pack(core.ESTABLISH_CONNECTION, packet.header.fields, out, 20)
    out[20:36] = check_guid(packet.header.client_guid)
    out[36:52] = check_guid(packet.header.server_guid)
    out[60:572] = packet.padding
    return out


def _internal(base: BaseHeader, internal: InternalHeader, size: int) -> bytearray:
    out = bytearray(size)
    base.packet_size = size
    core.pack(core.BASE_HEADER, base.fields, out, 0)
    core.pack(core.INTERNAL_HEADER, internal.fields, out, 16)
    return out


def _bit(flags: int, mask: int, present: bool) -> int:
    return flags | mask if present else flags & ~mask


def _build_message(message: UserMessage) -> bytearray:
    base = message.base
    user = message.user
    transaction = message.transaction
    security = message.security
    properties = message.properties
    debug = message.debug
    session = message.session

    flags = user.flags | core.USER_MP
    flags = select(flags, 10, user.destination_queue, 0xA9)
    flags = select(flags, 13, user.admin_queue, 0xED)
    flags = select(flags, 16, user.response_queue, 0xFF)
    flags = _bit(flags, core.USER_CQ, user.connector_type is not None)
    flags = _bit(flags, core.USER_TH, transaction is not None)
    flags = _bit(flags, core.USER_SH, security is not None)
    flags = _bit(flags, core.USER_HH, message.soap is not None)
    flags = _bit(flags, core.USER_MQ, message.multi_queue_format is not None)
    user.flags = flags
    base.flags = _bit(
        _bit(base.flags & ~core.BASE_IN, core.BASE_DH, debug is not None), core.BASE_SH, session is not None
    )

    head = bytearray(64)
    for name in (user.destination_queue, user.admin_queue, user.response_queue):
        if name is not None:
            head += name.wire()
    if user.connector_type is not None:
        head += check_guid(user.connector_type)
    transaction_at = len(head)
    if transaction is not None:
        head += bytes(20)
        guid = transaction.connector_qm_guid
        transaction.flags = _bit(transaction.flags, core.TX_CG, guid is not None)
        if guid is not None:
            head += check_guid(guid)
    security_at = len(head)
    if security is not None:
        head += bytes(16)
        index = 1
        for item in security.items():
            security.fields[index] = len(item)
            index += 1
            head += item
            head += bytes(-len(item) & 3)
    properties_at = len(head)
    fields = properties.fields
    fields[1] = len(properties.label_raw) >> 1
    fields[10] = len(properties.body)
    fields[11] = max(fields[11], fields[10] + len(properties.surplus))
    fields[15] = len(properties.extension)
    body_at = properties_at + 56 + len(properties.label_raw) + len(properties.extension)
    tail_at = body_at + fields[10] + len(properties.surplus) + 3 & ~3

    tail = bytearray()
    if debug is not None:
        guid = debug.queue_identifier
        debug.flags = debug.flags & ~3 | (guid is not None)
        tail += bytes(4)
        core.pack(core.DEBUG_HEADER, debug.fields, tail, 0)
        if guid is not None:
            tail += check_guid(guid)
    if message.soap is not None:
        tail += message.soap.wire()
    if message.multi_queue_format is not None:
        tail += message.multi_queue_format.wire()
    tail += message.trailing

    base.packet_size = size = tail_at + len(tail)
    if size > core.PACKET_SIZE_MAX:
        raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
    out = bytearray(core.packet_total(base.flags, size))
    out[64:properties_at] = memoryview(head)[64:]
    core.pack(core.BASE_HEADER, base.fields, out, 0)
    core.pack(core.USER_HEADER, user.fields, out, 16)
    out[16:32] = check_guid(user.source_queue_manager)
    out[32:48] = check_guid(user.queue_manager_address)
    if transaction is not None:
        core.pack(core.TRANSACTION_HEADER, transaction.fields, out, transaction_at)
    if security is not None:
        core.pack(core.SECURITY_HEADER, security.fields, out, security_at)
    core.pack(core.MESSAGE_PROPERTIES_HEADER, fields, out, properties_at)
    if len(properties.correlation_id) != 20:
        raise ValueError("a correlation identifier has 20 bytes")
    out[properties_at + 4 : properties_at + 24] = properties.correlation_id
    at = properties_at + 56
    for content in (properties.label_raw, properties.extension, properties.body, properties.surplus):
        out[at : at + len(content)] = content
        at += len(content)
    out[tail_at:size] = tail
    if session is not None:
        core.pack(core.SESSION_HEADER, session.fields, out, size)
    return out


def user_message(
    source: bytes,
    message_id: int,
    destination: QueueName,
    body: "Buffer",
    label: str = "",
    priority: int = 3,
    delivery: str = "express",
    ttrq: int = 345600,  # four days
    ttbr: int = packets.FOREVER,
    sent_time: int = 0,
    journal: int = 0,
    acknowledge: int = 0,
    admin: "QueueName | None" = None,
    response: "QueueName | None" = None,
    correlation: bytes = bytes(20),
    message_class: int = 0,
    body_type: int = 0,
    application_tag: int = 0,
    extension: bytes = b"",
    address: bytes = NULL_GUID,
) -> bytearray:
    """A UserMessage as an application's send makes it (wire.md section 3).

    source: GUID of the queue manager that takes it; address: GUID of the destination's, NULL for a direct name. ttrq,
    ttbr: s; sent_time: s since 1970 UTC. delivery: "express", "recoverable", "transactional".
    journal: of core.USER_JN and USER_JP.
    acknowledge: MessagePropertiesHeader.Flags. admin and response by number alone are queues of the source host.
    A transactional message has priority 0 and a TransactionHeader with FM and LM, in which TxSequenceID is 0 and
    TxSequenceNumber 1 until core.stamp has numbered it (transaction_offset tells where it is).
    ValueError if something is out of range or the packet would be above 4 MiB.
    """
    if delivery not in ("express", "recoverable", "transactional"):
        raise ValueError("delivery is express, recoverable or transactional, not " + delivery)
    if not 0 <= priority <= 7:
        raise ValueError("priority is 0 to 7")
    if journal & ~(core.USER_JN | core.USER_JP):
        raise ValueError("journal holds other bits than JN and JP")
    if not (0 <= acknowledge <= 0xFF and 0 <= message_class <= 0xFFFF):
        raise ValueError("acknowledge or message_class is out of range")
    flags = journal
    if delivery != "express":
        flags |= 0x20
    if delivery == "transactional":
        flags |= core.USER_TH
        priority = 0
    properties = array("I", bytes(4 * core.part_words(core.MESSAGE_PROPERTIES_HEADER)))
    properties[core.PROPERTIES_FLAGS] = acknowledge
    properties[core.PROPERTIES_MESSAGE_CLASS] = message_class
    properties[core.PROPERTIES_BODY_TYPE] = check_u32(body_type)
    properties[core.PROPERTIES_APPLICATION_TAG] = check_u32(application_tag)
    return compose(
        priority, ttrq, source, address, ttbr, sent_time, message_id, flags, destination, admin, response,
        properties, correlation, terminated(label) if label else b"", extension, body,
    )  # fmt: skip


def set_message_class(packet: bytearray, message_class: int) -> None:
    """Give a serialised message that parses another class, as dead-lettering does (B-394)."""
    flags = unpack_from("<I", packet, 60)[0]
    at = names_end(packet, flags)
    if flags & core.USER_TH:
        at += 36 if packet[at] & core.TX_CG else 20
    if flags & core.USER_SH:
        sizes = unpack(core.SECURITY_HEADER, packet, at, len(packet))
        at += 16
        for index in range(1, 6):
            at += sizes[index] + 3 & ~3
    pack_into("<H", packet, at + 2, message_class)


def set_hop_count(packet: bytearray, hop_count: int) -> None:
    """Give a serialised message another UserHeader.Flags.RC, 0 to core.HOP_COUNT_MAX (B-259)."""
    packet[60] = packet[60] & ~core.USER_RC & 0xFF | hop_count
