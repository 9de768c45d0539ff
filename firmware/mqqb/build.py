"""Messages from an application's arguments, and changes of serialised messages. Only hosts have this file."""

from struct import pack_into, unpack_from

from mqqb import compose, core, headers, names, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview


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

    source: GUID of the accepting queue manager; address: the destination's GUID, NULL for a direct name. ttrq, ttbr:
    s; sent_time: s since 1970 UTC. delivery: "express", "recoverable", "transactional".
    journal: of core.USER_JN and USER_JP.
    acknowledge: MessagePropertiesHeader.Flags. admin, response: a bare number names a queue of the source host.
    A transactional message has priority 0 and a TransactionHeader with FM and LM, TxSequenceID 0 and TxSequenceNumber
    1. core.stamp numbers it later (transaction_offset gives the header's offset).
    Raises ValueError if an argument is out of range or the packet exceeds 4 MiB.
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


def _properties_offset(packet: "Buffer") -> int:
    """The offset of the MessagePropertiesHeader in a valid serialised message."""
    flags = unpack_from("<I", packet, core.USER_FLAGS_AT)[0]
    at = parse.names_end(packet, flags)
    if flags & core.USER_TH:
        at += core.TRANSACTION_HEADER_SIZE + (16 if packet[at] & core.TX_CG else 0)
    if flags & core.USER_SH:
        security = headers.SecurityHeader(headers.unpack(core.SECURITY_HEADER, packet, at, len(packet)))
        at = parse.security_end(security, at + core.SECURITY_HEADER_SIZE)
    return at


def set_message_class(packet: bytearray, message_class: int) -> None:
    """Change the class of a valid serialised message, for dead-lettering (B-394)."""
    pack_into("<H", packet, _properties_offset(packet) + core.PROPERTIES_MESSAGE_CLASS_IN_PART, message_class)


def set_hop_count(packet: bytearray, hop_count: int) -> None:
    """Change UserHeader.Flags.RC of a serialised message, 0 to core.HOP_COUNT_MAX (B-259)."""
    packet[core.USER_FLAGS_AT] = packet[core.USER_FLAGS_AT] & ~core.USER_RC & 0xFF | hop_count
