"""Reading packets: a message with header objects, or an acknowledgement (wire.md sections 3 and 6)."""

from struct import unpack_from

from mqqb import compose, connection, const, core, headers, names, problems, streams
from mqqb.headers import (
    BaseHeader,
    FinalAck,
    FinalAckBody,
    MessagePropertiesHeader,
    SecurityHeader,
    SessionHeader,
    TransactionHeader,
    UserHeader,
    UserMessage,
    check_text,
    take,
    unpack,
)

try:
    from mqqb import handshake, rare
except ImportError:  # boards read neither
    handshake = rare = None  # type: ignore[assignment]

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview
    Message = UserMessage | connection.OrderAck | FinalAck
    Packet = Message | handshake.EstablishConnection | handshake.ConnectionParameters | handshake.SessionAck

_KIND_SIZES = (0, 4, 16, 20)


class NeedMore(Exception):
    """The bytes are right so far, but incomplete. total: bytes needed before the next try (16 or all)."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


def parse(data: "Buffer", offset: int = 0, end: "int | None" = None) -> "Packet":
    """Read the packet at data[offset] (B-174 to B-179, B-429 to B-433). Bytes behind it are ignored.

    Bodies, extensions, padding and trailing bytes are memoryviews of data, not copies. Raises NeedMore if bytes are
    missing before end (default: all of data), and Malformed for a broken rule; core.frame then finds the next packet.
    Internal packets are for hosts; a session reads them with read_internal.
    """
    if end is None:
        end = len(data)
    fields = core.words(core.BASE_HEADER)
    status = core.unpack(core.BASE_HEADER, fields, data, offset, end)
    if status == core.NEED_MORE:
        raise NeedMore(core.BASE_HEADER_SIZE)
    if status:
        raise core.malformed(status, core.BASE_HEADER)
    flags = fields[core.BASE_FLAGS]
    total = core.packet_total(flags, fields[core.BASE_PACKET_SIZE])
    if end - offset < total:
        raise NeedMore(total)
    if flags & core.BASE_IN:
        return handshake.read(BaseHeader(fields), data, offset, offset + total)
    return _parse_message(BaseHeader(fields), data, offset)


def _parse_name(kind: int, data: "Buffer", at: int, limit: int, place: int) -> "names.QueueName":
    if kind == names.DIRECT:
        if at + 2 > limit:
            raise core.malformed(core.NEED_MORE, place)
        size = data[at] | data[at + 1] << 8
        if size < 4:
            raise core.malformed(problems.EMPTY_NAME, place)
        raw = take(data, at + 2, size, limit, place)
        check_text(raw, place)
        return names.DirectQueueFormatName("", raw)
    raw = take(data, at, _KIND_SIZES[kind], limit, place)
    if kind == names.ID:
        return headers.PrivateQueueFormatNameId(unpack_from("<I", raw, 0)[0])
    if kind == names.PUBLIC:
        return headers.PublicQueueFormatName(raw)
    return headers.PrivateQueueFormatName(raw[:16], unpack_from("<I", raw, 16)[0])


def _name_size(name: names.QueueName) -> int:
    return 2 + len(name.raw) + 3 & ~3 if name.kind == names.DIRECT else len(name.raw)


def _parse_message(base: BaseHeader, data: "Buffer", offset: int) -> "Message":
    base_flags = base.fields[core.BASE_FLAGS]
    packet_size = base.fields[core.BASE_PACKET_SIZE]
    limit = offset + packet_size  # the SessionHeader follows (OP-1, A-51)
    if base_flags & core.BASE_TR and not base_flags & core.BASE_DH:
        raise core.malformed(problems.TRACE_ALONE, 0)

    at = offset + core.BASE_HEADER_SIZE
    user = UserHeader(unpack(core.USER_HEADER, data, at, limit))
    user.source_queue_manager = bytes(
        data[offset + core.USER_SOURCE_QUEUE_MANAGER_AT : offset + core.USER_QUEUE_MANAGER_ADDRESS_AT]
    )
    user.queue_manager_address = bytes(
        data[offset + core.USER_QUEUE_MANAGER_ADDRESS_AT : offset + core.USER_TIME_TO_BE_RECEIVED_AT]
    )
    flags = user.fields[core.USER_FLAGS]
    at = offset + core.USER_END
    kind = names.KINDS[flags >> compose.DESTINATION_SHIFT & 7]
    if kind:
        user.destination_queue = name = _parse_name(kind, data, at, limit, problems.DESTINATION_QUEUE)
        at += _name_size(name)
    kind = names.KINDS[flags >> compose.ADMIN_SHIFT & 7]
    if kind:
        user.admin_queue = name = _parse_name(kind, data, at, limit, problems.ADMIN_QUEUE)
        at += _name_size(name)
    kind = names.KINDS[flags >> compose.RESPONSE_SHIFT & 7]
    if kind:
        user.response_queue = name = _parse_name(kind, data, at, limit, problems.RESPONSE_QUEUE)
        at += _name_size(name)
    if flags & core.USER_CQ:
        user.connector_type = take(data, at, 16, limit, problems.CONNECTOR_TYPE)
        at += 16

    transaction = None
    if flags & core.USER_TH:
        transaction = TransactionHeader(unpack(core.TRANSACTION_HEADER, data, at, limit))
        at += core.TRANSACTION_HEADER_SIZE
        if transaction.fields[core.TX_FLAGS] & core.TX_CG:
            transaction.connector_qm_guid = take(data, at, 16, limit, problems.CONNECTOR_QM_GUID)
            at += 16
    security = None
    if flags & core.USER_SH:
        security = SecurityHeader(unpack(core.SECURITY_HEADER, data, at, limit))
        at = _parse_security(security, data, at + core.SECURITY_HEADER_SIZE, limit)

    message = UserMessage(base, user, _parse_properties(data, at, limit))
    message.transaction = transaction
    message.security = security
    body_at = _finish(message, data, at, limit)

    if base_flags & core.BASE_SH:
        if packet_size & 3:
            raise core.malformed(problems.NOT_ALIGNED, 0)
        message.session = SessionHeader(unpack(core.SESSION_HEADER, data, limit, limit + core.SESSION_HEADER_SIZE))

    message_class = message.properties.fields[core.PROPERTIES_MESSAGE_CLASS]
    is_acknowledgment = message_class == compose.CLASS_ORDER_ACK or message_class >= compose.CLASS_FINAL_ACK
    if is_acknowledgment and _to_order_queue(message):
        return _acknowledgment(message, message_class, data, body_at, limit)
    return message


def _acknowledgment(message: UserMessage, message_class: int, data: "Buffer", at: int, limit: int) -> "Message":
    """Read the message to the order queue with its body at `at` (wire.md section 6)."""
    if message.properties.fields[core.PROPERTIES_MESSAGE_SIZE] != core.ORDER_ACK_SIZE:
        raise core.malformed(problems.ACK_LENGTH, 0)
    if message_class == compose.CLASS_ORDER_ACK:
        return connection.OrderAck(message, streams.OrderAckBody(unpack(core.ORDER_ACK, data, at, limit)))
    final = FinalAckBody(unpack(core.FINAL_ACK, data, at, limit))
    final.source_guid = bytes(data[at + core.ACK_SOURCE_GUID_IN_PART : at + core.ACK_SOURCE_GUID_IN_PART + 16])
    return FinalAck(message, final)


def _to_order_queue(message: UserMessage) -> bool:
    """Check destination and label of order and final acknowledgments; flags are ignored (B-178, A-36)."""
    name = message.user.destination_queue
    if message.properties.label_raw != connection.ORDER_LABEL_RAW or name is None:
        return False
    if isinstance(name, names.DirectQueueFormatName):
        return connection.is_order_queue(name.direct_format_name)
    return isinstance(name, headers.PrivateQueueFormatNameId) and name.private_queue_identifier == names.ORDER_QUEUE_ID


def _parse_security(security: SecurityHeader, data: "Buffer", at: int, limit: int) -> int:
    """Skip SecurityData and return its end. Only hosts read its items."""
    end = security_end(security, at)
    if end > limit:
        raise core.malformed(problems.SECURITY_TOO_LONG, 0)
    if rare is not None:
        rare.read_security(security, data, at)
    return end


def _parse_properties(data: "Buffer", at: int, limit: int) -> MessagePropertiesHeader:
    """Read the fixed part, label and extension; _finish reads the body."""
    properties = MessagePropertiesHeader(unpack(core.MESSAGE_PROPERTIES_HEADER, data, at, limit))
    fields = properties.fields
    correlation_at = at + core.PROPERTIES_CORRELATION_ID_IN_PART
    properties.correlation_id = bytes(data[correlation_at : correlation_at + compose.CORRELATION_SIZE])
    at += core.MESSAGE_PROPERTIES_HEADER_SIZE
    size = 2 * fields[core.PROPERTIES_LABEL_LENGTH]
    if size:
        properties.label_raw = raw = take(data, at, size, limit, problems.LABEL)
        check_text(raw, problems.LABEL)
        at += size
    size = fields[core.PROPERTIES_EXTENSION_SIZE]
    if size > limit - at:
        raise core.malformed(core.NEED_MORE, problems.EXTENSION_DATA)
    if size:
        properties.extension = memoryview(data)[at : at + size]
        at += size
    if fields[core.PROPERTIES_ALLOCATION_BODY_SIZE] > limit - at:  # the core has checked MessageSize against it
        raise core.malformed(problems.BODY_TOO_LONG, 0)
    return properties


def _finish(message: UserMessage, data: "Buffer", at: int, limit: int) -> int:
    """Read from the body to PacketSize; the MessagePropertiesHeader is at `at`. Returns the offset of the body.

    If the allocation exceeds the body, the surplus is in the packet if the headers end at PacketSize only with it
    (OP-4).
    """
    properties = message.properties
    fields = properties.fields
    body_at = (
        at
        + core.MESSAGE_PROPERTIES_HEADER_SIZE
        + 2 * fields[core.PROPERTIES_LABEL_LENGTH]
        + fields[core.PROPERTIES_EXTENSION_SIZE]
    )
    size = fields[core.PROPERTIES_MESSAGE_SIZE]
    allocated = fields[core.PROPERTIES_ALLOCATION_BODY_SIZE]
    if (
        allocated > size
        and not _ends_at_limit(message, data, at, body_at + size, limit)
        and _ends_at_limit(message, data, at, body_at + allocated, limit)
    ):
        properties.surplus = memoryview(data)[body_at + size : body_at + allocated]
        size = allocated
    end = _parse_tail(message, data, at, body_at + size, limit)
    if fields[core.PROPERTIES_MESSAGE_SIZE]:
        properties.body = memoryview(data)[body_at : body_at + fields[core.PROPERTIES_MESSAGE_SIZE]]
    if end < limit:
        message.trailing = memoryview(data)[end:limit]
    return body_at


def _ends_at_limit(message: UserMessage, data: "Buffer", at: int, end: int, limit: int) -> bool:
    try:
        return _parse_tail(message, data, at, end, limit) == limit
    except core.Malformed:
        return False


def _parse_tail(message: UserMessage, data: "Buffer", at: int, end: int, limit: int) -> int:
    """Read the headers behind the body, which ends at `end`. Returns their end."""
    at += end - at + 3 & ~3
    if at > limit:
        raise core.malformed(core.NEED_MORE, problems.PADDING)
    if rare is not None and (
        message.base.fields[core.BASE_FLAGS] & core.BASE_DH
        or message.user.fields[core.USER_FLAGS] & (core.USER_HH | core.USER_MQ)
    ):
        return rare.read_tail(message, data, at, limit)
    return at


def names_end(packet: "Buffer", flags: int) -> int:
    """The end of the queue names in a valid serialised message. flags: of its UserHeader."""
    at = core.USER_END
    for shift in (compose.DESTINATION_SHIFT, compose.ADMIN_SHIFT, compose.RESPONSE_SHIFT):
        kind = names.KINDS[flags >> shift & 7]
        at += 2 + (packet[at] | packet[at + 1] << 8) + 3 & ~3 if kind == names.DIRECT else _KIND_SIZES[kind]
    return at + 16 if flags & core.USER_CQ else at


def transaction_offset(packet: "Buffer") -> int:
    """The offset of the TransactionHeader in a valid serialised packet; 0 if it has none."""
    flags = unpack_from("<I", packet, core.USER_FLAGS_AT)[0]
    if packet[core.BASE_FLAGS_AT] & core.BASE_IN or not flags & core.USER_TH:
        return 0
    return names_end(packet, flags)


def security_end(security: SecurityHeader, at: int) -> int:
    """The end of the SecurityData at `at`."""
    for index in range(core.SECURITY_SENDER_ID_SIZE, core.SECURITY_PROVIDER_INFO_SIZE + 1):
        at += security.fields[index] + 3 & ~3
    return at
