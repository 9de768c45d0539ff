"""Fields of stored packets: the body, the destination, the times of outgoing messages.

Times are in seconds since 1970.
"""

from __future__ import annotations

from array import array
from struct import Struct, unpack_from

from mqqb import compose, confirm, connection, core, guids, headers, names
from mqqb.confirm import Confirmation
from mqqb.parse import names_end
from mqqb.parse import parse as parse_packet

from ordack.config.names import legible
from ordack.config.settings import NEVER
from ordack.store.schema import ORDER_QUEUE_ID

# The transaction identifier in TransactionHeader.Flags (wire.md 2.3)
TRANSACTION_ID_SHIFT = 4
TRANSACTION_ID_MAX = 0xFFFFF


def parse(packet: bytes | bytearray | memoryview) -> headers.UserMessage:
    """Parse a stored packet. A forwarded acknowledgement is a message, too."""
    found = parse_packet(packet)
    if isinstance(found, (connection.OrderAck, headers.FinalAck)):
        return found.message
    assert isinstance(found, headers.UserMessage)
    return found


def identifier(source: bytes, message_id: int) -> bytes:
    """Return MSMQ's message identifier, 20 bytes: the sending queue manager's GUID, and the MessageID."""
    return source + message_id.to_bytes(4, "little")


# Of a MessagePropertiesHeader: LabelLength, MessageSize, ExtensionSize
_sizes_at = Struct("<xB30xI16xI").unpack_from
_FLAGS_AT, _TH = core.USER_FLAGS_AT, core.USER_TH  # looked up for each message
# Of the message looked at last: its UserHeader.Flags and names as bytes, the flags, and the end of the names
_latest: tuple[bytes | tuple[()], int, int] = (), 0, 0


def body_in(packet: bytes) -> slice | None:
    """Find the body without parsing all headers. None: the size of a header is unknown (wire.md 3)."""
    global _latest
    flags_and_names, flags, at = _latest
    if not packet.startswith(flags_and_names, _FLAGS_AT):
        flags = unpack_from("<I", packet, _FLAGS_AT)[0]
        if flags & core.USER_SH:
            return None
        at = names_end(packet, flags)
        _latest = packet[_FLAGS_AT:at], flags, at
    if flags & _TH:
        if packet[at] & core.TX_CG:
            return None
        at += core.TRANSACTION_HEADER_SIZE
    label, size, extension = _sizes_at(packet, at)
    at += core.MESSAGE_PROPERTIES_HEADER_SIZE + 2 * label + extension
    return slice(at, at + size)


def send_until(message: headers.UserMessage) -> int:
    """Return a message's last second to travel: the shorter of TimeToReachQueue and TimeToBeReceived (B-311, B-403)."""
    life = min(message.base.time_to_reach_queue, message.user.time_to_be_received)
    return NEVER if life == compose.FOREVER else message.user.sent_time + life


def due(confirmation: Confirmation, until: int, held: bool) -> int | None:
    """Return when an outgoing message ends by itself: at its deadline, or when it may travel no longer."""
    deadline = confirmation.next_deadline()
    if held or confirmation.state not in (confirm.Q, confirm.S):
        return deadline
    return until + 1 if deadline is None else min(deadline, until + 1)


def of_local(packet: bytes, settings: confirm.Settings) -> tuple[int, array[int]]:
    """Return the MessageID and the confirmation record of a transactional message from this queue manager to itself."""
    (ttrq,) = unpack_from("<I", packet, core.BASE_TIME_TO_REACH_QUEUE_AT)
    ttbr, sent_time, message_id, flags = unpack_from("<4I", packet, core.USER_TIME_TO_BE_RECEIVED_AT)
    journal = flags & (core.USER_JN | core.USER_JP)
    return message_id, confirm.new(sent_time, settings, journal, ttrq, ttbr, local=True)


def destination(format_name: str) -> tuple[names.QueueName, bytes]:
    """Return a format name's DestinationQueue and QueueManagerAddress in a packet."""
    name = guids.parse_format_name(format_name)
    if isinstance(name, headers.PrivateQueueFormatName):
        return headers.PrivateQueueFormatNameId(name.private_queue_identifier), name.source_queue_manager
    return name, names.NULL_GUID


def format_name(user: headers.UserHeader) -> str:
    """Return the format name of a message's destination as legible text; "" if the destination is no queue."""
    if user.destination_queue is None:
        return ""
    return legible(guids.format_name(user.destination_queue, bytes(user.queue_manager_address)))


def is_return_queue(format_name: str) -> bool:
    """Is this the name of an outgoing queue of acknowledgements for a peer?"""
    kind, _, rest = format_name.partition("=")
    return kind.upper() == "PRIVATE" and int(rest.partition("\\")[2], 16) == ORDER_QUEUE_ID


def return_queue(peer: bytes) -> str:
    """Return the name of the outgoing queue of acknowledgements for a peer."""
    return guids.format_name(headers.PrivateQueueFormatName(peer, ORDER_QUEUE_ID))
