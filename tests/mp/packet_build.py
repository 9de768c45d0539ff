"""Packets built from the objects of their headers: what `parse` gives, as bytes again. Boards and hosts write bytes at
once, by mqqb.compose and mqqb.acks.
"""

from struct import pack_into

from mqqb import compose, connection, core, names, rare
from mqqb.handshake import ConnectionParameters, SessionAck
from mqqb.headers import FinalAck, UserMessage


def build(packet):
    """The packet's bytes. Sizes, counts, presence bits and selectors are made from the content; padding is 0.

    ValueError if a field is out of range or a name cannot stand where it is.
    """
    if isinstance(packet, UserMessage):
        return _build_message(packet)
    if isinstance(packet, (connection.OrderAck, FinalAck)):
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


def _internal(base, internal, size):
    out = bytearray(size)
    base.fields[core.BASE_PACKET_SIZE] = size
    core.pack(core.BASE_HEADER, base.fields, out, 0)
    core.pack(core.INTERNAL_HEADER, internal.fields, out, core.BASE_HEADER_SIZE)
    return out


def _bit(flags, mask, present):
    return flags | mask if present else flags & ~mask


def _set_flags(message):
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


def _add(out, part, fields, size):
    """Put a header of so many bytes behind the others."""
    out += bytes(size)
    core.pack(part, fields, out, len(out) - size)


def _before_properties(message):
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


def _behind_body(message):
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
        out += soap_wire(message.soap)
    if message.multi_queue_format is not None:
        out += lists_wire(message.multi_queue_format)
    out += message.trailing
    return out


def _build_message(message):
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


def soap_wire(soap):
    """The header's bytes, padded."""
    first = bytearray(8)
    pack_into("<HHI", first, 0, rare._SOAP_HEADER_ID, soap.reserved, len(soap.header_raw) >> 1)
    second = bytearray(8)
    pack_into("<HHI", second, 0, rare._SOAP_BODY_ID, soap.reserved1, len(soap.body_raw) >> 1)
    gap = -len(soap.header_raw) & 3 if soap.aligned else 0
    wire = bytes(first) + soap.header_raw + bytes(gap) + bytes(second) + soap.body_raw
    return wire + bytes(-len(wire) & 3)


def _list(names_list, header_id):
    """The list's bytes, padded."""
    wire = bytearray(12)
    size = 12 + len(names_list.raw)
    pack_into("<IHHI", wire, 0, size, header_id, names_list.reserved, names_list.element_count)
    return bytes(wire) + names_list.raw + bytes(-size & 3)


def lists_wire(header):
    """The header's bytes, padded."""
    lists = (header.destination, header.administration, header.response)
    wire = b"".join([_list(part, header_id) for part, header_id in zip(lists, rare._ADDRESS_IDS)])
    last = bytearray(8)
    pack_into("<HHI", last, 0, rare._SIGNATURE_ID, header.signature_reserved, len(header.signature))
    return wire + last + header.signature + bytes(-len(header.signature) & 3)
