"""Whole packets of the MSMQ binary protocol: parse, identify, build (wire.md sections 1 to 8).

Fixed-size parts go through core.unpack and core.pack; this file adds what has a variable length, the order of the
headers and the checks between them. Wire input is always checked (Malformed); a caller's mistake is a ValueError.
Texts for people and JSON are made elsewhere: boards need neither.
"""

from array import array
from struct import pack_into, unpack_from

from mqqb import core

TYPE_CHECKING = False
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

    class _Word:
        """What mypy is told that _word returns; boards have properties, but no descriptors."""

        def __get__(self, instance: object, owner: object) -> int: ...

        def __set__(self, instance: object, value: int) -> None: ...


NULL_GUID = bytes(16)
FOREVER = 0xFFFFFFFF  # TimeToReachQueue, TimeToBeReceived
FOUR_DAYS = 0x54600  # default TimeToReachQueue, s
SHA_1 = 0x8004  # default HashAlgorithm
RC4 = 0x6801  # default EncryptionAlgorithm
CLASS_ORDER_ACK = 0x00FF
CLASS_FINAL_ACK = 0x4000  # this one and every higher one
WANT_PA = 0x01  # MessagePropertiesHeader.Flags: acknowledge that the message reached the queue,
WANT_PR = 0x02  # that an application took it,
WANT_NA = 0x04  # that it did not reach the queue,
WANT_NR = 0x08  # that no application took it
ORDER_QUEUE_ID = 4  # the order queue as a private queue of the destination host (wire.md 4.3)
ORDER_QUEUE_PATH = "\\PRIVATE$\\order_queue$"

_ACK_BODY_SIZE = 0x24
_PADDING_SIZE = 512  # behind the EstablishConnectionHeader
_ESTABLISH_CONNECTION_SIZE = 572
_CONNECTION_PARAMETERS_SIZE = 32
_SESSION_ACK_SIZE = 36
_SOAP_HEADER_ID = 0x0320
_SOAP_BODY_ID = 0x0384
_ADDRESS_IDS = (0x0064, 0x00C8, 0x012C)  # Destination, Administration, Response
_SIGNATURE_ID = 0x015E


class Malformed(Exception):
    """The peer's bytes break a rule: discard the packet, close the session (B-168, B-169).

    rule: "B-nnn" or a section of wire.md; field: "Header.Field"; reason: a sentence; status: the core's status or None.
    """

    def __init__(self, rule: str, field: str, reason: str, status: "int | None" = None) -> None:
        super().__init__(field + ": " + reason + " (" + rule + ")")
        self.rule = rule
        self.field = field
        self.reason = reason
        self.status = status


class NeedMore(Exception):
    """The bytes so far are right but too few. total: how many to have before the next try (16 or all)."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


STATUS = {
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
}


# ---- UTF-16 -------------------------------------------------------------------------------------

# MicroPython takes any codec's name for UTF-8.
_HAS_CODEC = b"a\0".decode("utf-16-le") == "a"


def utf16_decode(raw: bytes) -> str:
    """Text of little-endian WCHARs. A lone surrogate stays a character: utf16_encode gives back the same bytes."""
    if _HAS_CODEC:
        return raw.decode("utf-16-le", "surrogatepass")
    chars = []
    at = 0
    while at < len(raw):
        unit = raw[at] | raw[at + 1] << 8
        at += 2
        if unit & 0xFC00 == 0xD800 and at < len(raw):
            low = raw[at] | raw[at + 1] << 8
            if low & 0xFC00 == 0xDC00:
                unit = 0x10000 + ((unit & 0x3FF) << 10 | low & 0x3FF)
                at += 2
        chars.append(chr(unit))
    return "".join(chars)


def utf16_encode(text: str) -> bytes:
    """Little-endian WCHARs of a text, without a NUL."""
    if _HAS_CODEC:
        return text.encode("utf-16-le", "surrogatepass")
    raw = bytearray()
    for char in text:
        unit = ord(char)
        if unit >= 0x10000:
            unit -= 0x10000
            raw.append(unit >> 10 & 0xFF)
            raw.append(0xD8 | unit >> 18)
            unit = 0xDC00 | unit & 0x3FF
        raw.append(unit & 0xFF)
        raw.append(unit >> 8)
    return bytes(raw)


def _terminated(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("a text on the wire ends at its first NUL: " + repr(text))
    return utf16_encode(text) + b"\0\0"


def _find_nul(raw: bytes, start: int) -> int:
    """Offset of the first WCHAR 0x0000 from start (even) on, or -1."""
    at = raw.find(b"\0\0", start)
    while at > 0 and at & 1:
        at = raw.find(b"\0\0", at + 1)
    return at


def _check_text(raw: bytes, field: str) -> None:
    """One NUL, and it is at the end (B-431)."""
    if len(raw) & 1 or _find_nul(raw, 0) != len(raw) - 2:
        raise Malformed("B-431", field, "the text does not end at its one and only NUL")


# ---- GUIDs --------------------------------------------------------------------------------------


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


def _guid(guid: bytes) -> bytes:
    if len(guid) != 16:
        raise ValueError("a GUID has 16 bytes")
    return guid


# ---- queue names --------------------------------------------------------------------------------

# What the selectors DQ, AQ, RQ say about the bytes (wire.md 2.2).
_NONE = 0
_ID = 1
_PUBLIC = 2
_PRIVATE = 3
_DIRECT = 4
_KINDS = (_NONE, _NONE, _ID, _ID, _ID, _PUBLIC, _PRIVATE, _DIRECT)
_KIND_SIZES = (0, 4, 16, 20)


def _u32(value: int) -> bytes:
    raw = bytearray(4)
    pack_into("<I", raw, 0, value)
    return bytes(raw)


class QueueName:
    """What all queue names have in common. raw: the name's bytes without count and padding."""

    __slots__ = ("raw",)
    kind = _NONE
    selector = 0  # of DQ, AQ and RQ; what a name alone does not tell is told by UserHeader.Flags

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def wire(self) -> bytes:
        """The bytes in a UserHeader."""
        return self.raw


class PrivateQueueFormatNameId(QueueName):
    """A private queue on a host that the selector names (wire.md 1.5)."""

    __slots__ = ()
    kind = _ID
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
    kind = _PUBLIC
    selector = 5

    def __init__(self, public_queue_identifier: bytes) -> None:
        super().__init__(_guid(public_queue_identifier))

    @property
    def public_queue_identifier(self) -> bytes:
        """The queue's GUID."""
        return self.raw


class PrivateQueueFormatName(QueueName):
    """A private queue of a host given by its GUID (wire.md 1.5)."""

    __slots__ = ()
    kind = _PRIVATE
    selector = 6

    def __init__(self, source_queue_manager: bytes, private_queue_identifier: int) -> None:
        super().__init__(_guid(source_queue_manager) + _u32(private_queue_identifier))

    @property
    def source_queue_manager(self) -> bytes:
        """GUID of the host."""
        return self.raw[:16]

    @property
    def private_queue_identifier(self) -> int:
        """The queue's number on its host."""
        return int(unpack_from("<I", self.raw, 16)[0])


class DirectQueueFormatName(QueueName):
    """A queue by address and path, without the leading DIRECT= (wire.md 1.5). raw: its WCHARs with the NUL."""

    __slots__ = ()
    kind = _DIRECT
    selector = 7

    def __init__(self, direct_format_name: str, raw: "bytes | None" = None) -> None:
        self.raw = _terminated(direct_format_name) if raw is None else raw
        if not 4 <= len(self.raw) <= 0xFFFE:  # B-431
            raise ValueError("a direct name has 1 to 32766 characters")

    @property
    def direct_format_name(self) -> str:
        """The text."""
        return utf16_decode(self.raw[:-2])

    def wire(self) -> bytes:
        """Count, WCHARs, padding."""
        size = len(self.raw)
        return bytes((size & 0xFF, size >> 8)) + self.raw + bytes(-(2 + size) & 3)


class DistributionListFormatName(QueueName):
    """A distribution list by its GUID; only in a MultiQueueFormatHeader (wire.md 1.6)."""

    __slots__ = ()

    def __init__(self, distribution_list: bytes) -> None:
        super().__init__(_guid(distribution_list))


def parse_format_name(text: str) -> "DirectQueueFormatName | PublicQueueFormatName | PrivateQueueFormatName":
    r"""A format name as applications write it: DIRECT=OS:host\private$\name, PUBLIC=guid, PRIVATE=guid\hex.

    ValueError with the reason if it is none.
    """
    kind, equals, rest = text.partition("=")
    kind = kind.upper()
    if kind == "PUBLIC":
        return PublicQueueFormatName(guid_bytes(rest))
    if kind == "PRIVATE":
        guid, _, number = rest.partition("\\")
        if not 1 <= len(number) <= 8:
            raise ValueError("PRIVATE= needs a GUID, a backslash and a queue number of up to 8 hex digits: " + text)
        return PrivateQueueFormatName(guid_bytes(guid), int(number, 16))
    if kind != "DIRECT" or not equals:
        raise ValueError("a format name begins with DIRECT=, PUBLIC= or PRIVATE=: " + text)
    protocol, _, path = rest.partition(":")
    protocol = protocol.upper()
    if protocol in ("TCP", "OS", "IPX", "SPX"):
        address, _, queue = path.partition("\\")
        if queue[:9].lower() == "private$\\":
            queue = queue[9:]
        if not address or not 1 <= len(queue.partition(";")[0]) <= 124 or "\\" in queue:
            raise ValueError("a direct name is PROTOCOL:address\\[private$\\]queue: " + text)
    elif protocol not in ("HTTP", "HTTPS"):
        raise ValueError("a direct name begins with TCP:, OS:, HTTP:, HTTPS:, IPX: or SPX:: " + text)
    return DirectQueueFormatName(rest)


def format_name(name: QueueName, host: bytes = NULL_GUID) -> str:
    """The text of a queue name. host: GUID of the queue manager that a PrivateQueueFormatNameId is on."""
    if isinstance(name, DirectQueueFormatName):
        return "DIRECT=" + name.direct_format_name
    if isinstance(name, PrivateQueueFormatName):
        return "PRIVATE=%s\\%08X" % (guid_text(name.source_queue_manager)[1:-1], name.private_queue_identifier)
    if isinstance(name, PrivateQueueFormatNameId):
        return "PRIVATE=%s\\%08X" % (guid_text(host)[1:-1], name.private_queue_identifier)
    return ("PUBLIC=" if isinstance(name, PublicQueueFormatName) else "DL=") + guid_text(name.raw)[1:-1]


def order_queue(address: str) -> DirectQueueFormatName:
    """The order queue of the queue manager at an IP address (B-361)."""
    return DirectQueueFormatName("TCP:" + address + ORDER_QUEUE_PATH)


# ---- headers ------------------------------------------------------------------------------------

_ZEROS = [bytes(4 * core.part_words(part)) for part in range(core.PARTS)]


def _word(index: int) -> "_Word":
    """A property that stands for .fields[index]."""

    def read(self: "Header") -> int:
        return self.fields[index]

    def write(self: "Header", value: int) -> None:
        if not 0 <= value <= 0xFFFFFFFF:  # MicroPython's array would cut it off
            raise ValueError("not a u32: " + str(value))
        self.fields[index] = value

    return property(read, write)  # type: ignore[return-value]


_WORD = [_word(index) for index in range(16)]  # shared by all headers: a board has little memory


class Header:
    """A header with a fixed part. fields: the words of its structure (mqqb.h), as every core function takes them.

    The words of GUIDs and other byte strings mean nothing: those are attributes of their own.
    """

    __slots__ = ("fields",)
    part = 0

    def __init__(self, fields: "array[int] | None" = None) -> None:
        self.fields = array("I", _ZEROS[self.part]) if fields is None else fields


class BaseHeader(Header):
    """wire.md 2.1. time_to_reach_queue: s."""

    __slots__ = ()
    part = core.BASE_HEADER
    version_number = _WORD[0]
    reserved = _WORD[1]
    flags = _WORD[2]
    signature = _WORD[3]
    packet_size = _WORD[4]
    time_to_reach_queue = _WORD[5]


class InternalHeader(Header):
    """wire.md 5.1."""

    __slots__ = ()
    part = core.INTERNAL_HEADER
    reserved = _WORD[0]
    flags = _WORD[1]


class EstablishConnectionHeader(Header):
    """wire.md 5.2. time_stamp: ms since the initiator's operating system started."""

    __slots__ = ("client_guid", "server_guid")
    part = core.ESTABLISH_CONNECTION
    time_stamp = _WORD[8]
    operating_system = _WORD[9]
    reserved = _WORD[10]

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.client_guid = NULL_GUID
        self.server_guid = NULL_GUID


class ConnectionParametersHeader(Header):
    """wire.md 5.3. Time-outs: ms; window_size: packets."""

    __slots__ = ()
    part = core.CONNECTION_PARAMETERS
    recoverable_ack_timeout = _WORD[0]
    ack_timeout = _WORD[1]
    reserved = _WORD[2]
    window_size = _WORD[3]


class SessionHeader(Header):
    """wire.md 2.9."""

    __slots__ = ()
    part = core.SESSION_HEADER
    ack_sequence_number = _WORD[0]
    recoverable_msg_ack_seq_number = _WORD[1]
    recoverable_msg_ack_flags = _WORD[2]
    user_msg_sequence_number = _WORD[3]
    recoverable_msg_sequence_number = _WORD[4]
    window_size = _WORD[5]
    reserved = _WORD[6]


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
    time_to_be_received = _WORD[8]
    sent_time = _WORD[9]
    message_id = _WORD[10]
    flags = _WORD[11]

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
    flags = _WORD[0]
    tx_sequence_ordinal = _WORD[1]
    tx_sequence_time_stamp = _WORD[2]
    tx_sequence_number = _WORD[3]
    previous_tx_sequence_number = _WORD[4]

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.connector_qm_guid: "bytes | None" = None


class SecurityHeader(Header):
    """wire.md 2.4. The five items of SecurityData are bytes, empty if absent; build makes the sizes from them."""

    __slots__ = ("encryption_key", "provider_info", "security_id", "sender_cert", "signature")
    part = core.SECURITY_HEADER
    flags = _WORD[0]
    sender_id_size = _WORD[1]
    encryption_key_size = _WORD[2]
    signature_size = _WORD[3]
    sender_cert_size = _WORD[4]
    provider_info_size = _WORD[5]

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
    flags = _WORD[0]
    label_length = _WORD[1]
    message_class = _WORD[2]
    body_type = _WORD[8]
    application_tag = _WORD[9]
    message_size = _WORD[10]
    allocation_body_size = _WORD[11]
    privacy_level = _WORD[12]
    hash_algorithm = _WORD[13]
    encryption_algorithm = _WORD[14]
    extension_size = _WORD[15]

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
        self.label_raw = _terminated(text) if text else b""


class DebugHeader(Header):
    """wire.md 2.6. queue_identifier: 16 bytes or None."""

    __slots__ = ("queue_identifier",)
    part = core.DEBUG_HEADER
    flags = _WORD[0]
    reserved = _WORD[1]

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.queue_identifier: "bytes | None" = None


class OrderAckBody(_Sequenced):
    """wire.md section 6. The 20 reserved bytes are written as 0."""

    __slots__ = ()
    part = core.ORDER_ACK
    tx_sequence_ordinal = _WORD[0]
    tx_sequence_time_stamp = _WORD[1]
    tx_sequence_number = _WORD[2]
    tx_previous_sequence_number = _WORD[3]


class FinalAckBody(_Sequenced):
    """wire.md section 6. source_guid and message_id name the message that is acknowledged."""

    __slots__ = ("source_guid",)
    part = core.FINAL_ACK
    tx_sequence_ordinal = _WORD[0]
    tx_sequence_time_stamp = _WORD[1]
    tx_sequence_number = _WORD[2]
    previous_tx_sequence_number = _WORD[3]
    message_id = _WORD[8]

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.source_guid = NULL_GUID


class Ping(Header):
    """The 24-byte datagram (wire.md section 7)."""

    __slots__ = ("qm_guid",)
    part = core.PING
    flags = _WORD[0]
    signature = _WORD[1]
    cookie = _WORD[2]

    def __init__(self, fields: "array[int] | None" = None) -> None:
        super().__init__(fields)
        self.qm_guid = NULL_GUID


class SoapHeader:
    """wire.md 2.7. header_raw, body_raw: WCHARs with the NUL.

    aligned: the second part begins on a 4-byte boundary. That is not stated (OP-8): both are read, aligned is written.
    """

    __slots__ = ("aligned", "body_raw", "header_raw", "reserved", "reserved1")

    def __init__(self, header: str = "", body: str = "") -> None:
        self.header_raw = _terminated(header)
        self.body_raw = _terminated(body)
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


# ---- packets ------------------------------------------------------------------------------------


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


class OrderAck:
    """A message to the order queue (wire.md section 6). build puts body in the place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: UserMessage, body: OrderAckBody) -> None:
        self.message = message
        self.body = body


class FinalAck:
    """A message to the order queue (wire.md section 6). build puts body in the place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: UserMessage, body: FinalAckBody) -> None:
        self.message = message
        self.body = body


# ---- parse --------------------------------------------------------------------------------------

_PART_NAMES = (
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
)
_ORDER_LABEL = "QM Ordering Ack"
_ORDER_LABEL_RAW = _terminated(_ORDER_LABEL)


def _malformed(status: int, part: int) -> Malformed:
    if status == core.NEED_MORE:
        return _short(_PART_NAMES[part])
    rule, field, reason = STATUS[status]
    return Malformed(rule, field, reason, status)


def _short(field: str) -> Malformed:
    return Malformed("B-429", field, "PacketSize ends inside it")


def _unpack(part: int, data: "Buffer", at: int, limit: int) -> "array[int]":
    fields = array("I", _ZEROS[part])
    status = core.unpack(part, fields, data, at, limit)
    if status:
        raise _malformed(status, part)
    return fields


def parse(
    data: "Buffer", offset: int = 0, end: "int | None" = None
) -> "EstablishConnection | ConnectionParameters | SessionAck | UserMessage | OrderAck | FinalAck":
    """Read the packet that begins at data[offset] (B-174 to B-179, B-429 to B-433). Bytes behind it are left alone.

    Bodies, extensions, padding and trailing bytes are memoryviews of data, not copies. NeedMore if bytes are missing
    before end (default: all of data); Malformed if a rule is broken: core.frame tells where the next packet begins.
    """
    if end is None:
        end = len(data)
    fields = array("I", _ZEROS[core.BASE_HEADER])
    status = core.unpack(core.BASE_HEADER, fields, data, offset, end)
    if status == core.NEED_MORE:
        raise NeedMore(core.part_size(core.BASE_HEADER))
    if status:
        raise _malformed(status, core.BASE_HEADER)
    flags = fields[2]
    total = core.packet_total(flags, fields[4])
    if end - offset < total:
        raise NeedMore(total)
    if flags & core.BASE_IN:
        return _parse_internal(BaseHeader(fields), data, offset, offset + total)
    return _parse_message(BaseHeader(fields), data, offset)


def _parse_internal(
    base: BaseHeader, data: "Buffer", offset: int, limit: int
) -> "EstablishConnection | ConnectionParameters | SessionAck":
    internal = InternalHeader(_unpack(core.INTERNAL_HEADER, data, offset + 16, limit))
    kind = internal.flags & core.INTERNAL_PT
    size = limit - offset
    at = offset + 20
    if kind == core.PT_SESSION_ACK:
        if not base.flags & core.BASE_SH:
            raise Malformed("B-174", "BaseHeader.Flags", "SH is not set in a SessionAck")
        if size != _SESSION_ACK_SIZE:
            raise Malformed("B-433", "BaseHeader.PacketSize", "a SessionAck has 36 bytes")
        return SessionAck(base, internal, SessionHeader(_unpack(core.SESSION_HEADER, data, at, limit)))
    if kind == core.PT_CONNECTION_PARAMETERS:
        if size != _CONNECTION_PARAMETERS_SIZE:
            raise Malformed("B-433", "BaseHeader.PacketSize", "a ConnectionParameters packet has 32 bytes")
        fields = _unpack(core.CONNECTION_PARAMETERS, data, at, limit)
        return ConnectionParameters(base, internal, ConnectionParametersHeader(fields))
    if size != _ESTABLISH_CONNECTION_SIZE:
        raise Malformed("B-433", "BaseHeader.PacketSize", "an EstablishConnection packet has 572 bytes")
    header = EstablishConnectionHeader(_unpack(core.ESTABLISH_CONNECTION, data, at, limit))
    header.client_guid = bytes(data[at : at + 16])
    header.server_guid = bytes(data[at + 16 : at + 32])
    return EstablishConnection(base, internal, header, memoryview(data)[limit - _PADDING_SIZE : limit])


def _take(data: "Buffer", at: int, size: int, limit: int, field: str) -> bytes:
    if at + size > limit:
        raise _short(field)
    return bytes(data[at : at + size])


def _parse_name(kind: int, data: "Buffer", at: int, limit: int, field: str) -> "QueueName":
    if kind == _DIRECT:
        if at + 2 > limit:
            raise _short(field)
        size = data[at] | data[at + 1] << 8
        if size < 4:
            raise Malformed("B-431", field, "Count is below 4")
        raw = _take(data, at + 2, size, limit, field)
        _check_text(raw, field)
        return DirectQueueFormatName("", raw)
    raw = _take(data, at, _KIND_SIZES[kind], limit, field)
    if kind == _ID:
        return PrivateQueueFormatNameId(unpack_from("<I", raw, 0)[0])
    if kind == _PUBLIC:
        return PublicQueueFormatName(raw)
    return PrivateQueueFormatName(raw[:16], unpack_from("<I", raw, 16)[0])


def _name_size(name: QueueName) -> int:
    return 2 + len(name.raw) + 3 & ~3 if name.kind == _DIRECT else len(name.raw)


def _parse_message(base: BaseHeader, data: "Buffer", offset: int) -> "UserMessage | OrderAck | FinalAck":
    base_flags = base.fields[2]
    packet_size = base.fields[4]
    limit = offset + packet_size  # the SessionHeader is behind it (OP-1, A-51)
    if base_flags & core.BASE_TR and not base_flags & core.BASE_DH:
        raise Malformed("wire.md 2.1", "BaseHeader.Flags", "TR is set without DH")

    at = offset + 16
    user = UserHeader(_unpack(core.USER_HEADER, data, at, limit))
    user.source_queue_manager = bytes(data[at : at + 16])
    user.queue_manager_address = bytes(data[at + 16 : at + 32])
    flags = user.fields[11]
    at += 48
    kind = _KINDS[flags >> 10 & 7]
    if kind:
        user.destination_queue = name = _parse_name(kind, data, at, limit, "UserHeader.DestinationQueue")
        at += _name_size(name)
    kind = _KINDS[flags >> 13 & 7]
    if kind:
        user.admin_queue = name = _parse_name(kind, data, at, limit, "UserHeader.AdminQueue")
        at += _name_size(name)
    kind = _KINDS[flags >> 16 & 7]
    if kind:
        user.response_queue = name = _parse_name(kind, data, at, limit, "UserHeader.ResponseQueue")
        at += _name_size(name)
    if flags & core.USER_CQ:
        user.connector_type = _take(data, at, 16, limit, "UserHeader.ConnectorType")
        at += 16

    transaction = None
    if flags & core.USER_TH:
        transaction = TransactionHeader(_unpack(core.TRANSACTION_HEADER, data, at, limit))
        at += 20
        if transaction.fields[0] & core.TX_CG:
            transaction.connector_qm_guid = _take(data, at, 16, limit, "TransactionHeader.ConnectorQMGuid")
            at += 16
    security = None
    if flags & core.USER_SH:
        security, at = _parse_security(data, at, limit)

    message = UserMessage(base, user, _parse_properties(data, at, limit))
    message.transaction = transaction
    message.security = security
    body_at = _finish(message, data, at, limit)

    if base_flags & core.BASE_SH:
        if packet_size & 3:
            raise Malformed("B-430", "BaseHeader.PacketSize", "the SessionHeader does not begin on a 4-byte boundary")
        message.session = SessionHeader(_unpack(core.SESSION_HEADER, data, limit, limit + 16))

    message_class = message.properties.fields[2]
    if (message_class == CLASS_ORDER_ACK or message_class >= CLASS_FINAL_ACK) and _to_order_queue(message):
        if message.properties.fields[10] != _ACK_BODY_SIZE:
            raise Malformed("B-179", "MessagePropertiesHeader.MessageSize", "an acknowledgment's body has 36 bytes")
        if message_class == CLASS_ORDER_ACK:
            return OrderAck(message, OrderAckBody(_unpack(core.ORDER_ACK, data, body_at, limit)))
        final = FinalAckBody(_unpack(core.FINAL_ACK, data, body_at, limit))
        final.source_guid = bytes(data[body_at + 16 : body_at + 32])
        return FinalAck(message, final)
    return message


def _to_order_queue(message: UserMessage) -> bool:
    """Destination and label of order and final acknowledgments; flags are not looked at (B-178, A-36)."""
    name = message.user.destination_queue
    if message.properties.label_raw != _ORDER_LABEL_RAW or name is None:
        return False
    if isinstance(name, DirectQueueFormatName):
        text = name.direct_format_name.upper()
        path = ORDER_QUEUE_PATH.upper()
        return text[:4] in ("TCP:", "SPX:") and text.find("\\") == len(text) - len(path) > 4 and text.endswith(path)
    return isinstance(name, PrivateQueueFormatNameId) and name.private_queue_identifier == ORDER_QUEUE_ID


def _parse_security(data: "Buffer", at: int, limit: int) -> "tuple[SecurityHeader, int]":
    security = SecurityHeader(_unpack(core.SECURITY_HEADER, data, at, limit))
    fields = security.fields
    at += 16
    total = 0
    for index in range(1, 6):
        total += fields[index] + 3 & ~3
    if total > limit - at:
        raise Malformed("B-432", "SecurityHeader.SecurityData", "the five sizes go beyond PacketSize")
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
        _check_text(provider[4:], "SecurityHeader.ProviderInfo")
    return security, at


def _parse_properties(data: "Buffer", at: int, limit: int) -> MessagePropertiesHeader:
    """The fixed part, label and extension; the body is for _finish."""
    properties = MessagePropertiesHeader(_unpack(core.MESSAGE_PROPERTIES_HEADER, data, at, limit))
    fields = properties.fields
    properties.correlation_id = bytes(data[at + 4 : at + 24])
    at += 56
    size = 2 * fields[1]
    if size:
        properties.label_raw = raw = _take(data, at, size, limit, "MessagePropertiesHeader.Label")
        _check_text(raw, "MessagePropertiesHeader.Label")
        at += size
    size = fields[15]
    if size > limit - at:
        raise _short("MessagePropertiesHeader.ExtensionData")
    if size:
        properties.extension = memoryview(data)[at : at + size]
        at += size
    if fields[11] > limit - at:  # MessageSize is not above it, says the core
        raise Malformed("B-432", "MessagePropertiesHeader.AllocationBodySize", "goes beyond PacketSize")
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
        raise _short("MessagePropertiesHeader.Padding")
    flags = message.user.fields[11]
    if message.base.fields[2] & core.BASE_DH:
        message.debug = debug = DebugHeader(_unpack(core.DEBUG_HEADER, data, at, limit))
        at += 4
        if debug.fields[0] & 3:
            debug.queue_identifier = _take(data, at, 16, limit, "DebugHeader.QueueIdentifier")
            at += 16
    if flags & core.USER_HH:
        message.soap, at = _parse_soap(data, at, limit)
    if flags & core.USER_MQ:
        message.multi_queue_format, at = _parse_multi_queue_format(data, at, limit)
    return at


def _parse_section(data: "Buffer", at: int, limit: int, field: str) -> "tuple[int, bytes]":
    """(Reserved, text with NUL) of one half of a SoapHeader, whose ID is known to be right."""
    _, reserved, length = unpack_from("<HHI", _take(data, at, 8, limit, field), 0)
    raw = _take(data, at + 8, 2 * length, limit, field)
    _check_text(raw, field)
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
        end = _find_nul(raw, at) + 2
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
    size, found, reserved, count = unpack_from("<IHHI", _take(data, at, 12, limit, "MQFAddressHeader"), 0)
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
    found, reserved, size = unpack_from("<HHI", _take(data, at, 8, limit, "MQFSignatureHeader"), 0)
    if found != _SIGNATURE_ID:
        raise Malformed("wire.md 2.8", "MQFSignatureHeader.ID", "not 0x015E")
    signature = _take(data, at + 8, size, limit, "MQFSignatureHeader.Signature")
    header = MultiQueueFormatHeader(destination, administration, response, signature)
    header.signature_reserved = reserved
    return header, min(at + (8 + size + 3 & ~3), limit)  # OP-10: its padding may be missing


def parse_ping(datagram: "Buffer") -> Ping:
    """Read a ping datagram. Malformed: ignore it, answer nothing, close nothing (B-200, B-202)."""
    if len(datagram) != core.part_size(core.PING):
        raise Malformed("wire.md 7", "PingPacket", "a ping has 24 bytes")
    ping = Ping(_unpack(core.PING, datagram, 0, len(datagram)))
    ping.qm_guid = bytes(datagram[8:24])
    return ping


# ---- build --------------------------------------------------------------------------------------


def build(
    packet: "EstablishConnection | ConnectionParameters | SessionAck | UserMessage | OrderAck | FinalAck | Ping",
) -> bytearray:
    """The packet's bytes. Sizes, counts, presence bits and selectors are made from the content; padding is 0.

    ValueError if a field is out of range or a name cannot stand where it is.
    """
    if isinstance(packet, UserMessage):
        return _build_message(packet)
    if isinstance(packet, (OrderAck, FinalAck)):
        body = bytearray(_ACK_BODY_SIZE)
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
        out[8:24] = _guid(packet.qm_guid)
        return out
    if isinstance(packet, SessionAck):
        out = _internal(packet.base, packet.internal, _SESSION_ACK_SIZE)
        core.pack(core.SESSION_HEADER, packet.session.fields, out, 20)
        return out
    if isinstance(packet, ConnectionParameters):
        out = _internal(packet.base, packet.internal, _CONNECTION_PARAMETERS_SIZE)
        core.pack(core.CONNECTION_PARAMETERS, packet.header.fields, out, 20)
        return out
    out = _internal(packet.base, packet.internal, _ESTABLISH_CONNECTION_SIZE)
    if len(packet.padding) != _PADDING_SIZE:
        raise ValueError("an EstablishConnection packet has 512 bytes of padding")
    core.pack(core.ESTABLISH_CONNECTION, packet.header.fields, out, 20)
    out[20:36] = _guid(packet.header.client_guid)
    out[36:52] = _guid(packet.header.server_guid)
    out[60:572] = packet.padding
    return out


def _internal(base: BaseHeader, internal: InternalHeader, size: int) -> bytearray:
    out = bytearray(size)
    base.packet_size = size
    core.pack(core.BASE_HEADER, base.fields, out, 0)
    core.pack(core.INTERNAL_HEADER, internal.fields, out, 16)
    return out


def _select(flags: int, shift: int, name: "QueueName | None", allowed: int) -> int:
    """Put the selector for a name into flags; one that is there stays if it fits. allowed: bit n is selector n."""
    kind = _NONE if name is None else name.kind
    if name is not None and kind == _NONE:
        raise ValueError("a distribution list stands only in a MultiQueueFormatHeader")
    selector = flags >> shift & 7
    if _KINDS[selector] == kind and allowed >> selector & 1:
        return flags
    selector = 0
    while _KINDS[selector] != kind or not allowed >> selector & 1:
        selector += 1
        if selector == 8:
            raise ValueError("this kind of queue name cannot stand here")
    return flags & ~(7 << shift) | selector << shift


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
    flags = _select(flags, 10, user.destination_queue, 0xA9)
    flags = _select(flags, 13, user.admin_queue, 0xED)
    flags = _select(flags, 16, user.response_queue, 0xFF)
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
        head += _guid(user.connector_type)
    transaction_at = len(head)
    if transaction is not None:
        head += bytes(20)
        guid = transaction.connector_qm_guid
        transaction.flags = _bit(transaction.flags, core.TX_CG, guid is not None)
        if guid is not None:
            head += _guid(guid)
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
            tail += _guid(guid)
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
    out[16:32] = _guid(user.source_queue_manager)
    out[32:48] = _guid(user.queue_manager_address)
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


# ---- ready-made packets -------------------------------------------------------------------------


def _base(flags: int, time_to_reach_queue: int = FOREVER) -> BaseHeader:
    base = BaseHeader()
    base.version_number = core.VERSION_NUMBER
    base.signature = core.SIGNATURE
    base.flags = flags
    base.time_to_reach_queue = time_to_reach_queue
    return base


def _internal_header(flags: int) -> InternalHeader:
    internal = InternalHeader()
    internal.flags = flags
    return internal


def establish_connection(
    client_guid: bytes, server_guid: bytes, time_stamp: int, operating_system: int = 0x0310, refused: bool = False
) -> bytearray:
    """Request or response (B-204, B-208; wire.md 5.2). time_stamp: ms. refused: CS, in a response."""
    header = EstablishConnectionHeader()
    header.client_guid = client_guid
    header.server_guid = server_guid
    header.time_stamp = time_stamp
    header.operating_system = operating_system
    flags = core.PT_ESTABLISH_CONNECTION | (core.INTERNAL_CS if refused else 0)
    return build(EstablishConnection(_base(core.BASE_IN | 3), _internal_header(flags), header, b"\x5a" * _PADDING_SIZE))


def connection_parameters(recoverable_ack_timeout: int, ack_timeout: int, window_size: int) -> bytearray:
    """Request or response (wire.md 5.3). Time-outs: ms, 500 to 120000 and 20000 to 120000; window_size: packets."""
    header = ConnectionParametersHeader()
    header.recoverable_ack_timeout = recoverable_ack_timeout
    header.ack_timeout = ack_timeout
    header.window_size = window_size
    return build(ConnectionParameters(_base(core.BASE_IN | 3), _internal_header(core.PT_CONNECTION_PARAMETERS), header))


def session_ack(fields: "array[int]") -> bytearray:
    """A SessionAck with the SessionHeader that core.session_fill has made (wire.md 5.4)."""
    base = _base(core.BASE_IN | core.BASE_SH | 3)
    return build(SessionAck(base, _internal_header(core.PT_SESSION_ACK), SessionHeader(fields)))


def user_message(
    source: bytes,
    message_id: int,
    destination: QueueName,
    body: "Buffer",
    label: str = "",
    priority: int = 3,
    delivery: str = "express",
    ttrq: int = FOUR_DAYS,
    ttbr: int = FOREVER,
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
    user = UserHeader()
    user.source_queue_manager = source
    user.queue_manager_address = address
    user.time_to_be_received = ttbr
    user.sent_time = sent_time
    user.message_id = message_id
    user.destination_queue = destination
    user.admin_queue = admin
    user.response_queue = response
    user.flags = journal | (0 if delivery == "express" else 0x20)
    properties = MessagePropertiesHeader()
    properties.flags = acknowledge
    properties.label = label
    properties.message_class = message_class
    properties.correlation_id = correlation
    properties.body_type = body_type
    properties.application_tag = application_tag
    properties.hash_algorithm = SHA_1
    properties.encryption_algorithm = RC4
    properties.extension = extension
    properties.body = body
    message = UserMessage(_base(0 if delivery == "transactional" else priority, ttrq), user, properties)
    if delivery == "transactional":
        message.transaction = TransactionHeader()
        message.transaction.flags = core.TX_FM | core.TX_LM
        message.transaction.tx_sequence_number = 1
    return _build_message(message)


def _acknowledgment(
    destination: QueueName,
    address: bytes,
    source: bytes,
    message_id: int,
    sent_time: int,
    message_class: int,
    flags: int,
) -> UserMessage:
    user = UserHeader()
    user.source_queue_manager = source
    user.queue_manager_address = address
    user.time_to_be_received = FOREVER  # B-364
    user.sent_time = sent_time
    user.message_id = message_id
    user.destination_queue = destination
    user.flags = flags
    properties = MessagePropertiesHeader()
    properties.label_raw = _ORDER_LABEL_RAW
    properties.message_class = message_class
    properties.hash_algorithm = SHA_1
    properties.encryption_algorithm = RC4
    return UserMessage(_base(0), user, properties)


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
    body = OrderAckBody()
    body.tx_sequence_ordinal = ordinal
    body.tx_sequence_time_stamp = time_stamp
    body.tx_sequence_number = number
    body.tx_previous_sequence_number = number - 1
    message = _acknowledgment(destination, address, source, message_id, sent_time, CLASS_ORDER_ACK, 0)
    return build(OrderAck(message, body))


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
    body = FinalAckBody()
    body.tx_sequence_ordinal = ordinal
    body.tx_sequence_time_stamp = time_stamp
    body.tx_sequence_number = number
    body.previous_tx_sequence_number = previous
    body.source_guid = acked_source
    body.message_id = acked_message_id
    message = _acknowledgment(destination, address, source, message_id, sent_time, message_class, 0x20)
    return build(FinalAck(message, body))


def _names_end(packet: "Buffer", flags: int) -> int:
    at = 64
    for shift in (10, 13, 16):
        kind = _KINDS[flags >> shift & 7]
        at += 2 + (packet[at] | packet[at + 1] << 8) + 3 & ~3 if kind == _DIRECT else _KIND_SIZES[kind]
    return at + 16 if flags & core.USER_CQ else at


def transaction_offset(packet: "Buffer") -> int:
    """Where the TransactionHeader of a serialised packet that parses begins; 0 if it has none."""
    flags = unpack_from("<I", packet, 60)[0]
    if packet[2] & core.BASE_IN or not flags & core.USER_TH:
        return 0
    return _names_end(packet, flags)


def set_message_class(packet: bytearray, message_class: int) -> None:
    """Give a serialised message that parses another class, as dead-lettering does (B-394)."""
    flags = unpack_from("<I", packet, 60)[0]
    at = _names_end(packet, flags)
    if flags & core.USER_TH:
        at += 36 if packet[at] & core.TX_CG else 20
    if flags & core.USER_SH:
        at = _parse_security(packet, at, len(packet))[1]
    pack_into("<H", packet, at + 2, message_class)


def set_hop_count(packet: bytearray, hop_count: int) -> None:
    """Give a serialised message another UserHeader.Flags.RC, 0 to core.HOP_COUNT_MAX (B-259)."""
    packet[60] = packet[60] & ~core.USER_RC & 0xFF | hop_count
