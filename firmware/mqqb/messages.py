"""Whole messages as objects: headers, parse, acknowledgments; a part of packets (wire.md sections 1 to 8).

Everything here is reached through packets: import that one, not this. A board loads this file when it needs one of its
names: for a FinalAck, for a message that it receives or reads back.
"""

from array import array
from struct import pack_into, unpack_from

from mqqb import const, core, packets
from mqqb.packets import (
    KINDS,
    NULL_GUID,
    ORDER_LABEL_RAW,
    ORDER_QUEUE_PATH,
    DirectQueueFormatName,
    Header,
    Malformed,
    OrderAck,
    OrderAckBody,
    QueueName,
    check_guid,
    check_u32,
    compose,
    is_order_queue,
    terminated,
    utf16_decode,
    words,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mqqb.extras import (
        ConnectionParameters,
        DebugHeader,
        EstablishConnection,
        MultiQueueFormatHeader,
        SessionAck,
        SoapHeader,
    )
    from mqqb.packets import Buffer, Word

CLASS_FINAL_ACK = 0x4000  # this one and every higher one
WANT_PA = 0x01  # MessagePropertiesHeader.Flags: acknowledge that the message reached the queue,
WANT_PR = 0x02  # that an application took it,
WANT_NA = 0x04  # that it did not reach the queue,
WANT_NR = 0x08  # that no application took it

_NOT_TERMINATED = const(2)
_EMPTY_NAME = const(3)
_TRACE_ALONE = const(8)
_NOT_ALIGNED = const(9)
_ACK_LENGTH = const(10)
_BODY_TOO_LONG = const(11)
_SECURITY_TOO_LONG = const(12)
_DESTINATION_QUEUE = const(13)
_ADMIN_QUEUE = const(14)
_RESPONSE_QUEUE = const(15)
_CONNECTOR_TYPE = const(16)
_CONNECTOR_QM_GUID = const(17)
_LABEL = const(18)
_EXTENSION_DATA = const(19)
_PADDING = const(20)
_KIND_SIZES = (0, 4, 16, 20)


class NeedMore(Exception):
    """The bytes so far are right but too few. total: how many to have before the next try (16 or all)."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


def find_nul(raw: bytes, start: int) -> int:
    """Offset of the first WCHAR 0x0000 from start (even) on, or -1."""
    at = raw.find(b"\0\0", start)
    while at > 0 and at & 1:
        at = raw.find(b"\0\0", at + 1)
    return at


def check_text(raw: bytes, place: "int | str") -> None:
    """One NUL, and it is at the end (B-431)."""
    if len(raw) & 1 or find_nul(raw, 0) != len(raw) - 2:
        raise packets.malformed(_NOT_TERMINATED, place)


# ---- queue names --------------------------------------------------------------------------------


def _u32(value: int) -> bytes:
    raw = bytearray(4)
    pack_into("<I", raw, 0, value)
    return bytes(raw)


class PrivateQueueFormatNameId(QueueName):
    """A private queue on a host that the selector names (wire.md 1.5)."""

    __slots__ = ()
    kind = packets.ID
    selector = 2

    def __init__(self, private_queue_identifier: int) -> None:
        super().__init__(_u32(private_queue_identifier))

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(unpack_from("<I", self.raw, 0)[0])


class PublicQueueFormatName(QueueName):
    """A queue by its directory GUID (wire.md 1.5)."""

    __slots__ = ()
    kind = packets.PUBLIC
    selector = 5

    def __init__(self, public_queue_identifier: bytes) -> None:
        super().__init__(check_guid(public_queue_identifier))

    @property
    def public_queue_identifier(self) -> bytes:
        """The queue's GUID."""
        return self.raw


class PrivateQueueFormatName(QueueName):
    """A private queue of a host given by its GUID (wire.md 1.5)."""

    __slots__ = ()
    kind = packets.PRIVATE
    selector = 6

    def __init__(self, source_queue_manager: bytes, private_queue_identifier: int) -> None:
        super().__init__(check_guid(source_queue_manager) + _u32(private_queue_identifier))

    @property
    def source_queue_manager(self) -> bytes:
        """GUID of the host."""
        return self.raw[:16]

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(unpack_from("<I", self.raw, 16)[0])


def order_queue(address: str) -> DirectQueueFormatName:
    """The order queue of the queue manager at an IP address (B-361)."""
    return DirectQueueFormatName("TCP:" + address + ORDER_QUEUE_PATH)


# ---- headers ------------------------------------------------------------------------------------


class BaseHeader(Header):
    """wire.md 2.1. time_to_reach_queue: s."""

    __slots__ = ()
    part = core.BASE_HEADER
    version_number: "Word"
    reserved: "Word"
    flags: "Word"
    signature: "Word"
    packet_size: "Word"
    time_to_reach_queue: "Word"


class SessionHeader(Header):
    """wire.md 2.9."""

    __slots__ = ()
    part = core.SESSION_HEADER
    ack_sequence_number: "Word"
    recoverable_msg_ack_seq_number: "Word"
    recoverable_msg_ack_flags: "Word"
    user_msg_sequence_number: "Word"
    recoverable_msg_sequence_number: "Word"
    window_size: "Word"
    reserved: "Word"


class UserHeader(Header):
    """wire.md 2.2. An absent queue name or connector_type (16 bytes) is None. Times: s, sent_time since 1970 UTC."""

    __slots__ = (
        "admin_queue",
        "connector_type",
        "destination_queue",
        "queue_manager_address",
        "response_queue",
        "source_queue_manager",
    )
    part = core.USER_HEADER
    time_to_be_received: "Word"
    sent_time: "Word"
    message_id: "Word"
    flags: "Word"

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.source_queue_manager = NULL_GUID
        self.queue_manager_address = NULL_GUID
        self.destination_queue: "QueueName | None" = None
        self.admin_queue: "QueueName | None" = None
        self.response_queue: "QueueName | None" = None
        self.connector_type: "bytes | None" = None


class _Sequenced(Header):
    __slots__ = ()

    @property
    def tx_sequence_id(self) -> int:
        """TxSequenceID as the 64-bit number that is compared: TimeStamp high, Ordinal low (wire.md 1.2)."""
        fields = self.fields
        first = 1 if self.part == core.TRANSACTION_HEADER else 0
        return fields[first + 1] << 32 | fields[first]


class TransactionHeader(_Sequenced):
    """wire.md 2.3. connector_qm_guid: 16 bytes or None."""

    __slots__ = ("connector_qm_guid",)
    part = core.TRANSACTION_HEADER
    flags: "Word"
    tx_sequence_ordinal: "Word"
    tx_sequence_time_stamp: "Word"
    tx_sequence_number: "Word"
    previous_tx_sequence_number: "Word"

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.connector_qm_guid: "bytes | None" = None


class SecurityHeader(Header):
    """wire.md 2.4. The five items of SecurityData are bytes, empty if absent; build makes the sizes from them."""

    __slots__ = ("encryption_key", "provider_info", "security_id", "sender_cert", "signature")
    part = core.SECURITY_HEADER
    flags: "Word"
    sender_id_size: "Word"
    encryption_key_size: "Word"
    signature_size: "Word"
    sender_cert_size: "Word"
    provider_info_size: "Word"

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.security_id = b""
        self.encryption_key = b""
        self.signature = b""
        self.sender_cert = b""
        self.provider_info = b""

    def items(self) -> "tuple[bytes, bytes, bytes, bytes, bytes]":
        """SecurityData in wire order."""
        return self.security_id, self.encryption_key, self.signature, self.sender_cert, self.provider_info


class MessagePropertiesHeader(Header):
    """wire.md 2.5. label_raw: WCHARs with the NUL, or empty. build makes LabelLength, MessageSize and ExtensionSize.

    surplus: bytes allocated behind the body that take room in the packet (OP-4).
    """

    __slots__ = ("body", "correlation_id", "extension", "label_raw", "surplus")
    part = core.MESSAGE_PROPERTIES_HEADER
    flags: "Word"
    label_length: "Word"
    message_class: "Word"
    body_type: "Word"
    application_tag: "Word"
    message_size: "Word"
    allocation_body_size: "Word"
    privacy_level: "Word"
    hash_algorithm: "Word"
    encryption_algorithm: "Word"
    extension_size: "Word"

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.correlation_id = bytes(20)
        self.label_raw = b""
        self.extension: "Buffer" = b""
        self.body: "Buffer" = b""
        self.surplus: "Buffer" = b""

    @property
    def label(self) -> str:
        """The label's text, without the NUL; decoded when asked for."""
        return utf16_decode(self.label_raw[:-2])

    @label.setter
    def label(self, text: str) -> None:
        self.label_raw = terminated(text) if text else b""


class FinalAckBody(_Sequenced):
    """wire.md section 6. source_guid and message_id name the message that is acknowledged."""

    __slots__ = ("source_guid",)
    part = core.FINAL_ACK
    tx_sequence_ordinal: "Word"
    tx_sequence_time_stamp: "Word"
    tx_sequence_number: "Word"
    previous_tx_sequence_number: "Word"
    message_id: "Word"

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.source_guid = NULL_GUID


# ---- packets ------------------------------------------------------------------------------------


class UserMessage:
    """The headers of wire.md section 3; absent ones are None. trailing: bytes behind the last known header (OP-2)."""

    __slots__ = (
        "base",
        "debug",
        "multi_queue_format",
        "properties",
        "security",
        "session",
        "soap",
        "trailing",
        "transaction",
        "user",
    )

    def __init__(self, base: BaseHeader, user: UserHeader, properties: MessagePropertiesHeader) -> None:
        self.base = base
        self.user = user
        self.transaction: "TransactionHeader | None" = None
        self.security: "SecurityHeader | None" = None
        self.properties = properties
        self.debug: "DebugHeader | None" = None
        self.soap: "SoapHeader | None" = None
        self.multi_queue_format: "MultiQueueFormatHeader | None" = None
        self.session: "SessionHeader | None" = None
        self.trailing: "Buffer" = b""


class FinalAck:
    """A message to the order queue (wire.md section 6). build puts body in the place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: UserMessage, body: FinalAckBody) -> None:
        self.message = message
        self.body = body


# ---- parse --------------------------------------------------------------------------------------


def unpack(part: int, data: "Buffer", at: int, limit: int) -> "array[int]":
    """The words of one part, in a new array. Malformed."""
    fields = words(part)
    status = core.unpack(part, fields, data, at, limit)
    if status:
        raise packets.malformed(status, part)
    return fields


def parse(
    data: "Buffer", offset: int = 0, end: "int | None" = None
) -> "EstablishConnection | ConnectionParameters | SessionAck | UserMessage | OrderAck | FinalAck":
    """Read the packet that begins at data[offset] (B-174 to B-179, B-429 to B-433). Bytes behind it are left alone.

    Bodies, extensions, padding and trailing bytes are memoryviews of data, not copies. NeedMore if bytes are missing
    before end (default: all of data); Malformed if a rule is broken: core.frame tells where the next packet begins.
    Internal packets are read only where extras is; others use read_internal.
    """
    if end is None:
        end = len(data)
    fields = words(core.BASE_HEADER)
    status = core.unpack(core.BASE_HEADER, fields, data, offset, end)
    if status == core.NEED_MORE:
        raise NeedMore(packets.BASE_HEADER_SIZE)
    if status:
        raise packets.malformed(status, core.BASE_HEADER)
    flags = fields[2]
    total = core.packet_total(flags, fields[4])
    if end - offset < total:
        raise NeedMore(total)
    if flags & core.BASE_IN:
        return extras.parse_internal(BaseHeader(fields), data, offset, offset + total)
    return _parse_message(BaseHeader(fields), data, offset)


def take(data: "Buffer", at: int, size: int, limit: int, place: "int | str") -> bytes:
    """size bytes at data[at]. Malformed if they go beyond limit (B-429)."""
    if at + size > limit:
        raise packets.malformed(core.NEED_MORE, place)
    return bytes(data[at : at + size])


def _parse_name(kind: int, data: "Buffer", at: int, limit: int, place: int) -> "QueueName":
    if kind == packets.DIRECT:
        if at + 2 > limit:
            raise packets.malformed(core.NEED_MORE, place)
        size = data[at] | data[at + 1] << 8
        if size < 4:
            raise packets.malformed(_EMPTY_NAME, place)
        raw = take(data, at + 2, size, limit, place)
        check_text(raw, place)
        return DirectQueueFormatName("", raw)
    raw = take(data, at, _KIND_SIZES[kind], limit, place)
    if kind == packets.ID:
        return PrivateQueueFormatNameId(unpack_from("<I", raw, 0)[0])
    if kind == packets.PUBLIC:
        return PublicQueueFormatName(raw)
    return PrivateQueueFormatName(raw[:16], unpack_from("<I", raw, 16)[0])


def _name_size(name: QueueName) -> int:
    return 2 + len(name.raw) + 3 & ~3 if name.kind == packets.DIRECT else len(name.raw)


def _parse_message(base: BaseHeader, data: "Buffer", offset: int) -> "UserMessage | OrderAck | FinalAck":
    base_flags = base.fields[2]
    packet_size = base.fields[4]
    limit = offset + packet_size  # the SessionHeader is behind it (OP-1, A-51)
    if base_flags & core.BASE_TR and not base_flags & core.BASE_DH:
        raise packets.malformed(_TRACE_ALONE, 0)

    at = offset + 16
    user = UserHeader(unpack(core.USER_HEADER, data, at, limit))
    user.source_queue_manager = bytes(data[at : at + 16])
    user.queue_manager_address = bytes(data[at + 16 : at + 32])
    flags = user.fields[11]
    at += 48
    kind = KINDS[flags >> 10 & 7]
    if kind:
        user.destination_queue = name = _parse_name(kind, data, at, limit, _DESTINATION_QUEUE)
        at += _name_size(name)
    kind = KINDS[flags >> 13 & 7]
    if kind:
        user.admin_queue = name = _parse_name(kind, data, at, limit, _ADMIN_QUEUE)
        at += _name_size(name)
    kind = KINDS[flags >> 16 & 7]
    if kind:
        user.response_queue = name = _parse_name(kind, data, at, limit, _RESPONSE_QUEUE)
        at += _name_size(name)
    if flags & core.USER_CQ:
        user.connector_type = take(data, at, 16, limit, _CONNECTOR_TYPE)
        at += 16

    transaction = None
    if flags & core.USER_TH:
        transaction = TransactionHeader(unpack(core.TRANSACTION_HEADER, data, at, limit))
        at += 20
        if transaction.fields[0] & core.TX_CG:
            transaction.connector_qm_guid = take(data, at, 16, limit, _CONNECTOR_QM_GUID)
            at += 16
    security = None
    if flags & core.USER_SH:
        security = SecurityHeader(unpack(core.SECURITY_HEADER, data, at, limit))
        at = _parse_security(security, data, at + 16, limit)

    message = UserMessage(base, user, _parse_properties(data, at, limit))
    message.transaction = transaction
    message.security = security
    body_at = _finish(message, data, at, limit)

    if base_flags & core.BASE_SH:
        if packet_size & 3:
            raise packets.malformed(_NOT_ALIGNED, 0)
        message.session = SessionHeader(unpack(core.SESSION_HEADER, data, limit, limit + 16))

    message_class = message.properties.fields[2]
    if (message_class == packets.CLASS_ORDER_ACK or message_class >= CLASS_FINAL_ACK) and _to_order_queue(message):
        if message.properties.fields[10] != packets.ACK_BODY_SIZE:
            raise packets.malformed(_ACK_LENGTH, 0)
        if message_class == packets.CLASS_ORDER_ACK:
            return OrderAck(message, OrderAckBody(unpack(core.ORDER_ACK, data, body_at, limit)))
        final = FinalAckBody(unpack(core.FINAL_ACK, data, body_at, limit))
        final.source_guid = bytes(data[body_at + 16 : body_at + 32])
        return FinalAck(message, final)
    return message


def _to_order_queue(message: UserMessage) -> bool:
    """Destination and label of order and final acknowledgments; flags are not looked at (B-178, A-36)."""
    name = message.user.destination_queue
    if message.properties.label_raw != ORDER_LABEL_RAW or name is None:
        return False
    if isinstance(name, DirectQueueFormatName):
        return is_order_queue(name.direct_format_name)
    return isinstance(name, PrivateQueueFormatNameId) and name.private_queue_identifier == packets.ORDER_QUEUE_ID


def _parse_security(security: SecurityHeader, data: "Buffer", at: int, limit: int) -> int:
    """SecurityData. Returns where it ends; what is in it is for extras."""
    end = at
    for index in range(1, 6):
        end += security.fields[index] + 3 & ~3
    if end > limit:
        raise packets.malformed(_SECURITY_TOO_LONG, 0)
    if _has_extras:
        extras.parse_security(security, data, at)
    return end


def _parse_properties(data: "Buffer", at: int, limit: int) -> MessagePropertiesHeader:
    """The fixed part, label and extension; the body is for _finish."""
    properties = MessagePropertiesHeader(unpack(core.MESSAGE_PROPERTIES_HEADER, data, at, limit))
    fields = properties.fields
    properties.correlation_id = bytes(data[at + 4 : at + 24])
    at += 56
    size = 2 * fields[1]
    if size:
        properties.label_raw = raw = take(data, at, size, limit, _LABEL)
        check_text(raw, _LABEL)
        at += size
    size = fields[15]
    if size > limit - at:
        raise packets.malformed(core.NEED_MORE, _EXTENSION_DATA)
    if size:
        properties.extension = memoryview(data)[at : at + size]
        at += size
    if fields[11] > limit - at:  # MessageSize is not above it, says the core
        raise packets.malformed(_BODY_TOO_LONG, 0)
    return properties


def _finish(message: UserMessage, data: "Buffer", at: int, limit: int) -> int:
    """Everything from the body on, of the MessagePropertiesHeader at at, to PacketSize. Returns where the body begins.

    If more is allocated than the body has, the surplus is in the packet if the headers then end at PacketSize, and they
    would not otherwise (OP-4).
    """
    properties = message.properties
    fields = properties.fields
    body_at = at + 56 + 2 * fields[1] + fields[15]
    size = fields[10]
    allocated = fields[11]
    if (
        allocated > size
        and not _ends_at_limit(message, data, at, body_at + size, limit)
        and _ends_at_limit(message, data, at, body_at + allocated, limit)
    ):
        properties.surplus = memoryview(data)[body_at + size : body_at + allocated]
        size = allocated
    end = _parse_tail(message, data, at, body_at + size, limit)
    if fields[10]:
        properties.body = memoryview(data)[body_at : body_at + fields[10]]
    if end < limit:
        message.trailing = memoryview(data)[end:limit]
    return body_at


def _ends_at_limit(message: UserMessage, data: "Buffer", at: int, end: int, limit: int) -> bool:
    try:
        return _parse_tail(message, data, at, end, limit) == limit
    except Malformed:
        return False


def _parse_tail(message: UserMessage, data: "Buffer", at: int, end: int, limit: int) -> int:
    """The headers behind the body, which ends at end. Returns where they end."""
    at += end - at + 3 & ~3
    if at > limit:
        raise packets.malformed(core.NEED_MORE, _PADDING)
    if _has_extras and (
        message.base.fields[2] & core.BASE_DH or message.user.fields[11] & (core.USER_HH | core.USER_MQ)
    ):
        return extras.parse_tail(message, data, at, limit)
    return at


# ---- build --------------------------------------------------------------------------------------


def _acknowledgment(
    destination: QueueName,
    address: bytes,
    source: bytes,
    message_id: int,
    sent_time: int,
    message_class: int,
    flags: int,
    part: int,
    fields: "array[int]",
) -> bytearray:
    properties = words(core.MESSAGE_PROPERTIES_HEADER)
    properties[2] = message_class
    packet = compose(
        0, packets.FOREVER, source, address, packets.FOREVER, sent_time, message_id, flags, destination, None, None,
        properties, bytes(20), ORDER_LABEL_RAW, b"", bytes(packets.ACK_BODY_SIZE),
    )  # fmt: skip
    core.pack(part, fields, packet, len(packet) - packets.ACK_BODY_SIZE)  # TTBR: B-364
    return packet


def order_ack(
    destination: QueueName,
    source: bytes,
    message_id: int,
    sent_time: int,
    ordinal: int,
    time_stamp: int,
    number: int,
    address: bytes = NULL_GUID,
) -> bytearray:
    """An OrderAck, express (B-356 to B-364, OP-6).

    destination: order_queue(ip), or PrivateQueueFormatNameId(ORDER_QUEUE_ID) with the remote queue manager's GUID as
    address. source, message_id, sent_time: of this packet itself. ordinal, time_stamp, number (not 0): what is
    acknowledged.
    """
    fields = words(core.ORDER_ACK)
    _sequence(fields, ordinal, time_stamp, number, number - 1)
    return _acknowledgment(
        destination, address, source, message_id, sent_time, packets.CLASS_ORDER_ACK, 0, core.ORDER_ACK, fields
    )


def final_ack(
    destination: QueueName,
    source: bytes,
    message_id: int,
    sent_time: int,
    ordinal: int,
    time_stamp: int,
    number: int,
    previous: int,
    acked_source: bytes,
    acked_message_id: int,
    message_class: int,
    address: bytes = NULL_GUID,
) -> bytearray:
    """A FinalAck, recoverable (B-356 to B-364). ordinal to acked_message_id: of the message that is acknowledged.

    message_class: 0x4000, or a negative one above. Otherwise as order_ack.
    """
    if message_class < CLASS_FINAL_ACK:
        raise ValueError("the class of a FinalAck is 0x4000 or above")
    fields = words(core.FINAL_ACK)
    _sequence(fields, ordinal, time_stamp, number, previous)
    fields[8] = check_u32(acked_message_id)
    packet = _acknowledgment(
        destination, address, source, message_id, sent_time, message_class, 0x20, core.FINAL_ACK, fields
    )
    at = len(packet) - 20
    packet[at : at + 16] = check_guid(acked_source)
    return packet


def _sequence(fields: "array[int]", ordinal: int, time_stamp: int, number: int, previous: int) -> None:
    fields[0] = check_u32(ordinal)
    fields[1] = check_u32(time_stamp)
    fields[2] = check_u32(number)
    fields[3] = check_u32(previous)


def names_end(packet: "Buffer", flags: int) -> int:
    """Where the queue names of a serialised message that parses end. flags: of its UserHeader."""
    at = 64
    for shift in (10, 13, 16):
        kind = KINDS[flags >> shift & 7]
        at += 2 + (packet[at] | packet[at + 1] << 8) + 3 & ~3 if kind == packets.DIRECT else _KIND_SIZES[kind]
    return at + 16 if flags & core.USER_CQ else at


def transaction_offset(packet: "Buffer") -> int:
    """Where the TransactionHeader of a serialised packet that parses begins; 0 if it has none."""
    flags = unpack_from("<I", packet, 60)[0]
    if packet[2] & core.BASE_IN or not flags & core.USER_TH:
        return 0
    return names_end(packet, flags)


try:
    from mqqb import extras

    _has_extras = True
except ImportError:
    _has_extras = False
