"""Packets built from the objects of their headers, and messages from what an application says."""

from struct import pack_into, unpack_from

from mqqb import compose, core, names, parse, reader
from mqqb.handshake import ConnectionParameters, EstablishConnection, InternalHeader, SessionAck
from mqqb.headers import BaseHeader, FinalAck, UserMessage, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array

    Buffer = bytes | bytearray | memoryview


def build(
    packet: "EstablishConnection | ConnectionParameters | SessionAck | UserMessage | reader.OrderAck | FinalAck",
) -> bytearray:
    """The packet's bytes. Sizes, counts, presence bits and selectors are made from the content; padding is 0.

    ValueError if a field is out of range or a name cannot stand where it is.
    """
    if isinstance(packet, UserMessage):
        return _build_message(packet)
    if isinstance(packet, (reader.OrderAck, FinalAck)):
        body = bytearray(core.ORDER_ACK_SIZE)
        core.pack(packet.body.part, packet.body.fields, body, 0)
        body[core.ACK_SOURCE_GUID_IN_PART :] = bytes(core.ORDER_ACK_SIZE - core.ACK_SOURCE_GUID_IN_PART)
        if isinstance(packet, FinalAck):
            body[core.ACK_SOURCE_GUID_IN_PART : core.ACK_MESSAGE_ID_IN_PART] = packet.body.source_guid
            pack_into("<I", body, core.ACK_MESSAGE_ID_IN_PART, packet.body.fields[core.ACK_MESSAGE_ID])
        packet.message.properties.body = body
        return _build_message(packet.message)
    if isinstance(packet, SessionAck):
        out = _internal(packet.base, packet.internal, core.PACKET_SIZE_SESSION_ACK)
        core.pack(core.SESSION_HEADER, packet.session.fields, out, core.INTERNAL_END)
        return out
    if isinstance(packet, ConnectionParameters):
        out = _internal(packet.base, packet.internal, core.PACKET_SIZE_CONNECTION_PARAMETERS)
        core.pack(core.CONNECTION_PARAMETERS, packet.header.fields, out, core.INTERNAL_END)
        return out
    out = _internal(packet.base, packet.internal, core.PACKET_SIZE_ESTABLISH_CONNECTION)
    if len(packet.padding) != compose.PADDING_SIZE:
        raise ValueError("an EstablishConnection packet has 512 bytes of padding")
    core.pack(core.ESTABLISH_CONNECTION, packet.header.fields, out, core.INTERNAL_END)
    out[core.ESTABLISH_CLIENT_GUID_AT : core.ESTABLISH_SERVER_GUID_AT] = names.check_guid(packet.header.client_guid)
    out[core.ESTABLISH_SERVER_GUID_AT : core.ESTABLISH_SERVER_GUID_AT + 16] = names.check_guid(
        packet.header.server_guid
    )
    out[core.ESTABLISH_END :] = packet.padding
    return out


def _internal(base: BaseHeader, internal: InternalHeader, size: int) -> bytearray:
    out = bytearray(size)
    base.fields[core.BASE_PACKET_SIZE] = size
    core.pack(core.BASE_HEADER, base.fields, out, 0)
    core.pack(core.INTERNAL_HEADER, internal.fields, out, core.BASE_HEADER_SIZE)
    return out


def _bit(flags: int, mask: int, present: bool) -> int:
    return flags | mask if present else flags & ~mask


def _set_flags(message: UserMessage) -> None:
    """Make the flags say which headers and names are there."""
    base, user, transaction = message.base, message.user, message.transaction
    flags = user.fields[core.USER_FLAGS] | core.USER_MP
    flags = compose.select(flags, compose.DESTINATION_SHIFT, user.destination_queue, compose.DESTINATION_SELECTORS)
    flags = compose.select(flags, compose.ADMIN_SHIFT, user.admin_queue, compose.ADMIN_SELECTORS)
    flags = compose.select(flags, compose.RESPONSE_SHIFT, user.response_queue, compose.RESPONSE_SELECTORS)
    flags = _bit(flags, core.USER_CQ, user.connector_type is not None)
    flags = _bit(flags, core.USER_TH, transaction is not None)
    flags = _bit(flags, core.USER_SH, message.security is not None)
    flags = _bit(flags, core.USER_HH, message.soap is not None)
    user.fields[core.USER_FLAGS] = _bit(flags, core.USER_MQ, message.multi_queue_format is not None)
    flags = _bit(base.fields[core.BASE_FLAGS] & ~core.BASE_IN, core.BASE_DH, message.debug is not None)
    base.fields[core.BASE_FLAGS] = _bit(flags, core.BASE_SH, message.session is not None)
    if transaction is not None:
        has_connector = transaction.connector_qm_guid is not None
        transaction.fields[core.TX_FLAGS] = _bit(transaction.fields[core.TX_FLAGS], core.TX_CG, has_connector)


def _add(out: bytearray, part: int, fields: "array[int]", size: int) -> None:
    """Put a header of so many bytes behind the others."""
    out += bytes(size)
    core.pack(part, fields, out, len(out) - size)


def _before_properties(message: UserMessage) -> bytearray:
    """All from the BaseHeader, which is still empty, up to the MessagePropertiesHeader."""
    user, transaction, security = message.user, message.transaction, message.security
    out = bytearray(core.USER_END)
    core.pack(core.USER_HEADER, user.fields, out, core.BASE_HEADER_SIZE)
    out[core.USER_SOURCE_QUEUE_MANAGER_AT : core.USER_QUEUE_MANAGER_ADDRESS_AT] = names.check_guid(
        user.source_queue_manager
    )
    out[core.USER_QUEUE_MANAGER_ADDRESS_AT : core.USER_TIME_TO_BE_RECEIVED_AT] = names.check_guid(
        user.queue_manager_address
    )
    for name in (user.destination_queue, user.admin_queue, user.response_queue):
        if name is not None:
            out += name.wire()
    if user.connector_type is not None:
        out += names.check_guid(user.connector_type)
    if transaction is not None:
        _add(out, core.TRANSACTION_HEADER, transaction.fields, core.TRANSACTION_HEADER_SIZE)
        if transaction.connector_qm_guid is not None:
            out += names.check_guid(transaction.connector_qm_guid)
    if security is not None:
        items = security.items()
        for place, item in enumerate(items, core.SECURITY_SENDER_ID_SIZE):
            security.fields[place] = len(item)
        _add(out, core.SECURITY_HEADER, security.fields, core.SECURITY_HEADER_SIZE)
        for item in items:
            out += item
            out += bytes(-len(item) & 3)
    return out


def _behind_body(message: UserMessage) -> bytearray:
    """All from the DebugHeader to the SessionHeader, which is not among them."""
    debug = message.debug
    out = bytearray()
    if debug is not None:
        guid = debug.queue_identifier
        debug.fields[core.DEBUG_FLAGS] = debug.fields[core.DEBUG_FLAGS] & ~3 | (guid is not None)
        _add(out, core.DEBUG_HEADER, debug.fields, 4)
        if guid is not None:
            out += names.check_guid(guid)
    if message.soap is not None:
        out += message.soap.wire()
    if message.multi_queue_format is not None:
        out += message.multi_queue_format.wire()
    out += message.trailing
    return out


def _build_message(message: UserMessage) -> bytearray:
    base, properties = message.base, message.properties
    _set_flags(message)
    head = _before_properties(message)
    tail = _behind_body(message)
    fields = properties.fields
    fields[core.PROPERTIES_LABEL_LENGTH] = len(properties.label_raw) >> 1
    fields[core.PROPERTIES_MESSAGE_SIZE] = len(properties.body)
    room = len(properties.body) + len(properties.surplus)
    fields[core.PROPERTIES_ALLOCATION_BODY_SIZE] = max(fields[core.PROPERTIES_ALLOCATION_BODY_SIZE], room)
    fields[core.PROPERTIES_EXTENSION_SIZE] = len(properties.extension)
    at = len(head) + core.MESSAGE_PROPERTIES_HEADER_SIZE
    tail_at = at + len(properties.label_raw) + len(properties.extension) + room + 3 & ~3
    base.fields[core.BASE_PACKET_SIZE] = size = tail_at + len(tail)
    if size > core.PACKET_SIZE_MAX:
        raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
    out = bytearray(core.packet_total(base.fields[core.BASE_FLAGS], size))
    out[: len(head)] = head
    core.pack(core.BASE_HEADER, base.fields, out, 0)
    core.pack(core.MESSAGE_PROPERTIES_HEADER, fields, out, len(head))
    if len(properties.correlation_id) != compose.CORRELATION_SIZE:
        raise ValueError("a correlation identifier has 20 bytes")
    correlation_at = len(head) + core.PROPERTIES_CORRELATION_ID_IN_PART
    out[correlation_at : correlation_at + compose.CORRELATION_SIZE] = properties.correlation_id
    for content in (properties.label_raw, properties.extension, properties.body, properties.surplus):
        out[at : at + len(content)] = content
        at += len(content)
    out[tail_at:size] = tail
    if message.session is not None:
        core.pack(core.SESSION_HEADER, message.session.fields, out, size)
    return out


def user_message(
    source: bytes,
    message_id: int,
    destination: names.QueueName,
    body: "Buffer",
    label: str = "",
    priority: int = 3,
    delivery: str = "express",
    ttrq: int = 345600,  # four days
    ttbr: int = compose.FOREVER,
    sent_time: int = 0,
    journal: int = 0,
    acknowledge: int = 0,
    admin: "names.QueueName | None" = None,
    response: "names.QueueName | None" = None,
    correlation: bytes = bytes(compose.CORRELATION_SIZE),
    message_class: int = 0,
    body_type: int = 0,
    application_tag: int = 0,
    extension: bytes = b"",
    address: bytes = names.NULL_GUID,
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
    properties = core.words(core.MESSAGE_PROPERTIES_HEADER)
    properties[core.PROPERTIES_FLAGS] = acknowledge
    properties[core.PROPERTIES_MESSAGE_CLASS] = message_class
    properties[core.PROPERTIES_BODY_TYPE] = compose.check_u32(body_type)
    properties[core.PROPERTIES_APPLICATION_TAG] = compose.check_u32(application_tag)
    return compose.message(
        priority, ttrq, source, address, ttbr, sent_time, message_id, flags, destination, admin, response,
        properties, correlation, names.terminated(label) if label else b"", extension, body,
    )  # fmt: skip


def set_message_class(packet: bytearray, message_class: int) -> None:
    """Give a serialised message that parses another class, as dead-lettering does (B-394)."""
    flags = unpack_from("<I", packet, core.USER_FLAGS_AT)[0]
    at = parse.names_end(packet, flags)
    if flags & core.USER_TH:
        at += core.TRANSACTION_HEADER_SIZE + (16 if packet[at] & core.TX_CG else 0)
    if flags & core.USER_SH:
        sizes = unpack(core.SECURITY_HEADER, packet, at, len(packet))
        at += core.SECURITY_HEADER_SIZE
        for index in range(core.SECURITY_SENDER_ID_SIZE, core.SECURITY_PROVIDER_INFO_SIZE + 1):
            at += sizes[index] + 3 & ~3
    pack_into("<H", packet, at + 2, message_class)


def set_hop_count(packet: bytearray, hop_count: int) -> None:
    """Give a serialised message another UserHeader.Flags.RC, 0 to core.HOP_COUNT_MAX (B-259)."""
    packet[core.USER_FLAGS_AT] = packet[core.USER_FLAGS_AT] & ~core.USER_RC & 0xFF | hop_count
