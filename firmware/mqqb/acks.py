"""OrderAcks and FinalAcks, written directly as bytes (wire.md section 6)."""

from mqqb import compose, connection, const, core, headers, names

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from array import array


def order_queue(address: str) -> names.DirectQueueFormatName:
    """The order queue of the queue manager at an IP address (B-361)."""
    return names.DirectQueueFormatName("TCP:" + address + names.ORDER_QUEUE_PATH)


def to_source(source: bytes, address: str) -> "tuple[names.QueueName, bytes]":
    """Destination and address of an acknowledgement for the queue manager with this GUID. address: the peer's IP
    address in the session if the acknowledgement is addressed by it (B-361), else "" (B-362)."""
    if address:
        return order_queue(address), names.NULL_GUID
    return headers.PrivateQueueFormatNameId(names.ORDER_QUEUE_ID), source


def _acknowledgment(
    destination: names.QueueName,
    address: bytes,
    source: bytes,
    message_id: int,
    sent_time: int,
    message_class: int,
    flags: int,
    part: int,
    fields: "array[int]",
) -> bytearray:
    properties = core.words(core.MESSAGE_PROPERTIES_HEADER)
    properties[core.PROPERTIES_MESSAGE_CLASS] = message_class
    packet = compose.message(
        0, compose.FOREVER, source, address, compose.FOREVER, sent_time, message_id, flags, destination, None, None,
        properties, bytes(compose.CORRELATION_SIZE), connection.ORDER_LABEL_RAW, b"", bytes(core.ORDER_ACK_SIZE),
    )  # fmt: skip
    core.pack(part, fields, packet, len(packet) - core.ORDER_ACK_SIZE)  # TTBR: B-364
    return packet


def order_ack(
    destination: names.QueueName,
    source: bytes,
    message_id: int,
    sent_time: int,
    ordinal: int,
    time_stamp: int,
    number: int,
    address: bytes = names.NULL_GUID,
) -> bytearray:
    """An OrderAck, express (B-356 to B-364, OP-6).

    destination, address: from `to_source`. source, message_id, sent_time: of the OrderAck itself. ordinal, time_stamp,
    number (not 0): the acknowledged number.
    """
    fields = core.words(core.ORDER_ACK)
    _sequence(fields, ordinal, time_stamp, number, number - 1)
    return _acknowledgment(
        destination, address, source, message_id, sent_time, compose.CLASS_ORDER_ACK, 0, core.ORDER_ACK, fields
    )


def final_ack(
    destination: names.QueueName,
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
    address: bytes = names.NULL_GUID,
) -> bytearray:
    """A FinalAck, recoverable (B-356 to B-364). ordinal to acked_message_id: of the acknowledged message.

    message_class: 0x4000, or a higher negative class. Other arguments: see order_ack. Raises ValueError.
    """
    if message_class < compose.CLASS_FINAL_ACK:
        raise ValueError("the class of a FinalAck is 0x4000 or above")
    fields = core.words(core.FINAL_ACK)
    _sequence(fields, ordinal, time_stamp, number, previous)
    fields[core.ACK_MESSAGE_ID] = compose.check_u32(acked_message_id)
    packet = _acknowledgment(
        destination, address, source, message_id, sent_time, message_class, 0x20, core.FINAL_ACK, fields
    )
    at = len(packet) - core.ORDER_ACK_SIZE + core.ACK_SOURCE_GUID_IN_PART
    packet[at : at + 16] = names.check_guid(acked_source)
    return packet


def _sequence(fields: "array[int]", ordinal: int, time_stamp: int, number: int, previous: int) -> None:
    fields[core.ACK_ORDINAL] = compose.check_u32(ordinal)
    fields[core.ACK_TIME_STAMP] = compose.check_u32(time_stamp)
    fields[core.ACK_NUMBER] = compose.check_u32(number)
    fields[core.ACK_PREVIOUS] = compose.check_u32(previous)
