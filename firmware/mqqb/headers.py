"""The headers of a message as objects, and functions to read them (wire.md section 2)."""

import struct

from mqqb import const, core, names, problems
from mqqb.compose import word
from mqqb.names import QueueName, check_guid

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from array import array
    from typing import Any

    Buffer = bytes | bytearray | memoryview

# MessagePropertiesHeader.Flags: requested reports:
WANT_PA = const(0x01)  # the message reached the queue
WANT_PR = const(0x02)  # an application received it
WANT_NA = const(0x04)  # it did not reach the queue
WANT_NR = const(0x08)  # no application received it


class Header:
    """A header with a fixed part. fields: the words of its structure (mqqb.h), as the core functions take them.

    GUIDs and other byte strings are separate attributes; their words have no meaning.
    """

    __slots__ = ("fields",)
    part = 0

    def __init__(self, fields: "array[int] | None" = None) -> None:
        self.fields = core.words(self.part) if fields is None else fields


class BaseHeader(Header):
    """wire.md 2.1. time_to_reach_queue: s."""

    __slots__ = ()
    part = core.BASE_HEADER
    version_number = word(core.BASE_VERSION_NUMBER)
    reserved = word(core.BASE_RESERVED)
    flags = word(core.BASE_FLAGS)
    signature = word(core.BASE_SIGNATURE)
    packet_size = word(core.BASE_PACKET_SIZE)
    time_to_reach_queue = word(core.BASE_TIME_TO_REACH_QUEUE)


class SessionHeader(Header):
    """wire.md 2.9."""

    __slots__ = ()
    part = core.SESSION_HEADER
    ack_sequence_number = word(core.ACKS_SEQUENCE_NUMBER)
    recoverable_msg_ack_seq_number = word(core.ACKS_BASE)
    recoverable_msg_ack_flags = word(core.ACKS_FLAGS)
    user_msg_sequence_number = word(core.ACKS_SENT)
    recoverable_msg_sequence_number = word(core.ACKS_RECOVERABLE_SENT)
    window_size = word(core.ACKS_WINDOW_SIZE)
    reserved = word(core.ACKS_RESERVED)


class UserHeader(Header):
    """wire.md 2.2. An absent queue name or connector_type (16 bytes) is None. Times: s, sent_time since 1970 UTC."""

    __slots__ = (
        "admin_queue", "connector_type", "destination_queue", "queue_manager_address", "response_queue",
        "source_queue_manager",
    )  # fmt: skip
    part = core.USER_HEADER
    time_to_be_received = word(core.USER_TIME_TO_BE_RECEIVED)
    sent_time = word(core.USER_SENT_TIME)
    message_id = word(core.USER_MESSAGE_ID)
    flags = word(core.USER_FLAGS)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.source_queue_manager = names.NULL_GUID
        self.queue_manager_address = names.NULL_GUID
        self.destination_queue: "names.QueueName | None" = None
        self.admin_queue: "names.QueueName | None" = None
        self.response_queue: "names.QueueName | None" = None
        self.connector_type: "bytes | None" = None


class _Sequenced(Header):
    __slots__ = ()

    @property
    def tx_sequence_id(self) -> int:
        """TxSequenceID as a comparable 64-bit number: TimeStamp high, Ordinal low (wire.md 1.2)."""
        fields = self.fields
        first = 1 if self.part == core.TRANSACTION_HEADER else 0
        return fields[first + 1] << 32 | fields[first]


class TransactionHeader(_Sequenced):
    """wire.md 2.3. connector_qm_guid: 16 bytes or None."""

    __slots__ = ("connector_qm_guid",)
    part = core.TRANSACTION_HEADER
    flags = word(core.TX_FLAGS)
    tx_sequence_ordinal = word(core.TX_ORDINAL)
    tx_sequence_time_stamp = word(core.TX_TIME_STAMP)
    tx_sequence_number = word(core.TX_NUMBER)
    previous_tx_sequence_number = word(core.TX_PREVIOUS)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.connector_qm_guid: "bytes | None" = None


class SecurityHeader(Header):
    """wire.md 2.4. The five items of SecurityData are bytes, empty if absent; build computes the sizes."""

    __slots__ = ("encryption_key", "provider_info", "security_id", "sender_cert", "signature")
    part = core.SECURITY_HEADER
    flags = word(core.SECURITY_FLAGS)
    sender_id_size = word(core.SECURITY_SENDER_ID_SIZE)
    encryption_key_size = word(core.SECURITY_ENCRYPTION_KEY_SIZE)
    signature_size = word(core.SECURITY_SIGNATURE_SIZE)
    sender_cert_size = word(core.SECURITY_SENDER_CERT_SIZE)
    provider_info_size = word(core.SECURITY_PROVIDER_INFO_SIZE)

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
    """wire.md 2.5. label_raw: WCHARs with the NUL, or empty. build sets LabelLength, MessageSize and ExtensionSize.

    surplus: allocated bytes behind the body that take room in the packet (OP-4).
    """

    __slots__ = ("body", "correlation_id", "extension", "label_raw", "surplus")
    part = core.MESSAGE_PROPERTIES_HEADER
    flags = word(core.PROPERTIES_FLAGS)
    label_length = word(core.PROPERTIES_LABEL_LENGTH)
    message_class = word(core.PROPERTIES_MESSAGE_CLASS)
    body_type = word(core.PROPERTIES_BODY_TYPE)
    application_tag = word(core.PROPERTIES_APPLICATION_TAG)
    message_size = word(core.PROPERTIES_MESSAGE_SIZE)
    allocation_body_size = word(core.PROPERTIES_ALLOCATION_BODY_SIZE)
    privacy_level = word(core.PROPERTIES_PRIVACY_LEVEL)
    hash_algorithm = word(core.PROPERTIES_HASH_ALGORITHM)
    encryption_algorithm = word(core.PROPERTIES_ENCRYPTION_ALGORITHM)
    extension_size = word(core.PROPERTIES_EXTENSION_SIZE)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.correlation_id = bytes(20)
        self.label_raw = b""
        self.extension: "Buffer" = b""
        self.body: "Buffer" = b""
        self.surplus: "Buffer" = b""

    @property
    def label(self) -> str:
        """The label's text, without the NUL; decoded on demand."""
        return names.utf16_decode(self.label_raw[:-2])

    @label.setter
    def label(self, text: str) -> None:
        self.label_raw = names.terminated(text) if text else b""


class FinalAckBody(_Sequenced):
    """wire.md section 6. source_guid and message_id name the acknowledged message."""

    __slots__ = ("source_guid",)
    part = core.FINAL_ACK
    tx_sequence_ordinal = word(core.ACK_ORDINAL)
    tx_sequence_time_stamp = word(core.ACK_TIME_STAMP)
    tx_sequence_number = word(core.ACK_NUMBER)
    previous_tx_sequence_number = word(core.ACK_PREVIOUS)
    message_id = word(core.ACK_MESSAGE_ID)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.source_guid = names.NULL_GUID


class UserMessage:
    """The headers of wire.md section 3; absent ones are None. trailing: bytes behind the last known header (OP-2)."""

    __slots__ = (
        "base", "debug", "multi_queue_format", "properties", "security", "session", "soap", "trailing", "transaction",
        "user",
    )  # fmt: skip

    def __init__(self, base: BaseHeader, user: UserHeader, properties: MessagePropertiesHeader) -> None:
        self.base = base
        self.user = user
        self.transaction: "TransactionHeader | None" = None
        self.security: "SecurityHeader | None" = None
        self.properties = properties
        self.debug: "Any" = None  # these three are headers of rare.py
        self.soap: "Any" = None
        self.multi_queue_format: "Any" = None
        self.session: "SessionHeader | None" = None
        self.trailing: "Buffer" = b""


class FinalAck:
    """A message to the order queue (wire.md section 6). build puts body in place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: UserMessage, body: FinalAckBody) -> None:
        self.message = message
        self.body = body


# ---- functions for reading ----------------------------------------------------------------------


def find_nul(raw: bytes, start: int) -> int:
    """Offset of the first WCHAR 0x0000 from start (even) on, or -1."""
    at = raw.find(b"\0\0", start)
    while at > 0 and at & 1:
        at = raw.find(b"\0\0", at + 1)
    return at


def check_text(raw: bytes, place: "int | str") -> None:
    """Check that the only NUL is at the end (B-431). Raises Malformed."""
    if len(raw) & 1 or find_nul(raw, 0) != len(raw) - 2:
        raise core.malformed(problems.NOT_TERMINATED, place)


def unpack(part: int, data: "Buffer", at: int, limit: int) -> "array[int]":
    """The words of one part, in a new array. Raises Malformed if the part or its padding exceeds limit (B-429)."""
    fields = core.words(part)
    status = core.unpack(part, fields, data, at, limit) if at <= limit else core.NEED_MORE
    if status:
        raise core.malformed(status, part)
    return fields


def take(data: "Buffer", at: int, size: int, limit: int, place: "int | str") -> bytes:
    """size bytes at data[at]. Raises Malformed beyond limit (B-429)."""
    if at + size > limit:
        raise core.malformed(core.NEED_MORE, place)
    return bytes(data[at : at + size])


# ---- names of queues by GUIDs and numbers -------------------------------------------------------


class PrivateQueueFormatNameId(QueueName):
    """A private queue on the host given by the selector (wire.md 1.5)."""

    __slots__ = ()
    kind = names.ID
    selector = 2

    def __init__(self, private_queue_identifier: int) -> None:
        super().__init__(struct.pack("<I", private_queue_identifier))

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(struct.unpack_from("<I", self.raw, 0)[0])


class PublicQueueFormatName(QueueName):
    """A queue by its directory GUID (wire.md 1.5)."""

    __slots__ = ()
    kind = names.PUBLIC
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
    kind = names.PRIVATE
    selector = 6

    def __init__(self, source_queue_manager: bytes, private_queue_identifier: int) -> None:
        super().__init__(check_guid(source_queue_manager) + struct.pack("<I", private_queue_identifier))

    @property
    def source_queue_manager(self) -> bytes:
        """GUID of the host."""
        return self.raw[:16]

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(struct.unpack_from("<I", self.raw, 16)[0])
