"""Whole packets of the MSMQ binary protocol: parse, identify, build (wire.md sections 1 to 8).

Fixed-size parts go through core.unpack and core.pack; this file adds what has a variable length, the order of the
headers and the checks between them. Wire input is always checked (Malformed); a caller's mistake is a ValueError.
Texts for people and JSON are made elsewhere: boards need neither.

What a board neither makes nor looks into is in extras, and is reached through this module too where that file is: the
headers of other protocols, `build`, the words of errors, the names of most fixed fields. Without it a packet's
security items are not read, and the headers behind its body count as trailing bytes.
"""

from array import array
from struct import pack_into, unpack_from

from mqqb import const, core

TYPE_CHECKING = False
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

    class _Word:
        """What mypy is told that word returns; boards have properties, but no descriptors."""

        def __get__(self, instance: object, owner: object) -> int: ...

        def __set__(self, instance: object, value: int) -> None: ...


NULL_GUID: bytes = bytes(16)
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

# Of constants.py (a test compares them), so that a board needs neither the names nor the look-ups.
_NEED_MORE = const(1)
_BASE_IN = const(0x0008)
_BASE_SH = const(0x0010)
_BASE_DH = const(0x0020)
_BASE_TR = const(0x0100)
_INTERNAL_PT = const(0x000F)
_INTERNAL_CS = const(0x0010)
_PT_SESSION_ACK = const(1)
_PT_ESTABLISH_CONNECTION = const(2)
_PT_CONNECTION_PARAMETERS = const(3)
_USER_MP = const(0x00200000)
_USER_TH = const(0x00100000)
_USER_SH = const(0x00080000)
_USER_CQ = const(0x00400000)
_USER_MQ = const(0x00800000)
_USER_HH = const(0x10000000)
_TX_CG = const(0x00000001)
_TX_FM = const(0x00000004)
_TX_LM = const(0x00000008)
_VERSION_NUMBER = const(0x10)
_SIGNATURE = const(0x524F494C)
_PACKET_SIZE_MAX = const(0x00400000)
_BASE_HEADER = const(0)
_INTERNAL_HEADER = const(1)
_SESSION_HEADER = const(2)
_TRANSACTION_HEADER = const(3)
_CONNECTION_PARAMETERS = const(4)
_USER_HEADER = const(5)
_MESSAGE_PROPERTIES_HEADER = const(6)
_SECURITY_HEADER = const(7)
_ESTABLISH_CONNECTION = const(9)
_ORDER_ACK = const(10)
_FINAL_ACK = const(11)

_ACK_BODY_SIZE = const(0x24)
_PADDING_SIZE = const(512)  # behind the EstablishConnectionHeader
_ESTABLISH_CONNECTION_SIZE = const(572)
_CONNECTION_PARAMETERS_SIZE = const(32)
_SESSION_ACK_SIZE = const(36)
_BASE_HEADER_SIZE = const(16)
_TRANSACTIONAL = const(0x00100020)  # UserHeader.Flags: TH, DM 1

# Of extras.PROBLEMS and extras.PLACES: what is wrong, and where.
_NOT_TERMINATED = const(2)
_EMPTY_NAME = const(3)
_NO_SESSION_HEADER = const(4)
_SESSION_ACK_LENGTH = const(5)
_PARAMETERS_LENGTH = const(6)
_ESTABLISH_LENGTH = const(7)
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


def terminated(text: str) -> bytes:
    """A text's WCHARs and a NUL. ValueError if it has a NUL already."""
    if "\0" in text:
        raise ValueError("a text on the wire ends at its first NUL: " + repr(text))
    return utf16_encode(text) + b"\0\0"


def find_nul(raw: bytes, start: int) -> int:
    """Offset of the first WCHAR 0x0000 from start (even) on, or -1."""
    at = raw.find(b"\0\0", start)
    while at > 0 and at & 1:
        at = raw.find(b"\0\0", at + 1)
    return at


def check_text(raw: bytes, place: "int | str") -> None:
    """One NUL, and it is at the end (B-431)."""
    if len(raw) & 1 or find_nul(raw, 0) != len(raw) - 2:
        raise malformed(_NOT_TERMINATED, place)


def check_guid(guid: bytes) -> bytes:
    """The GUID. ValueError if it has not 16 bytes."""
    if len(guid) != 16:
        raise ValueError("a GUID has 16 bytes")
    return guid


# ---- queue names --------------------------------------------------------------------------------

# What the selectors DQ, AQ, RQ say about the bytes (wire.md 2.2).
_NONE = const(0)
_ID = const(1)
_PUBLIC = const(2)
_PRIVATE = const(3)
_DIRECT = const(4)
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
        super().__init__(check_guid(public_queue_identifier))

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
        super().__init__(check_guid(source_queue_manager) + _u32(private_queue_identifier))

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
        self.raw = terminated(direct_format_name) if raw is None else raw
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


def parse_format_name(text: str) -> "DirectQueueFormatName | PublicQueueFormatName | PrivateQueueFormatName":
    r"""A format name as applications write it: DIRECT=OS:host\private$\name, PUBLIC=guid, PRIVATE=guid\hex.

    ValueError with the reason if it is none. The last two need extras.
    """
    kind, equals, rest = text.partition("=")
    kind = kind.upper()
    if kind == "PUBLIC" or kind == "PRIVATE":
        return extras.parse_guid_name(kind, rest)
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


def order_queue(address: str) -> DirectQueueFormatName:
    """The order queue of the queue manager at an IP address (B-361)."""
    return DirectQueueFormatName("TCP:" + address + ORDER_QUEUE_PATH)


# ---- headers ------------------------------------------------------------------------------------

_SIZES = (24, 8, 28, 20, 16, 48, 64, 24, 8, 44, 36, 36, 28)  # of the words of each part, in bytes
_ZEROS = bytes(64)


def words(part: int) -> "array[int]":
    """The words of a part, all 0."""
    return array("I", _ZEROS[: _SIZES[part]])


def word(index: int) -> "_Word":
    """A property that stands for .fields[index]."""

    def read(self: "Header") -> int:
        return self.fields[index]

    def write(self: "Header", value: int) -> None:
        self.fields[index] = check_u32(value)

    return property(read, write)  # type: ignore[return-value]


_WORD = [word(index) for index in range(12)]  # shared by all headers: a board has little memory


class Header:
    """A header with a fixed part. fields: the words of its structure (mqqb.h), as every core function takes them.

    The words of GUIDs and other byte strings mean nothing: those are attributes of their own.
    """

    __slots__ = ("fields",)
    part = 0

    def __init__(self, fields: "array[int] | None" = None) -> None:
        self.fields = words(self.part) if fields is None else fields


class BaseHeader(Header):
    """wire.md 2.1. time_to_reach_queue: s."""

    __slots__ = ()
    part = _BASE_HEADER
    version_number: "_Word"
    reserved: "_Word"
    flags = _WORD[2]
    signature: "_Word"
    packet_size = _WORD[4]
    time_to_reach_queue = _WORD[5]


class SessionHeader(Header):
    """wire.md 2.9."""

    __slots__ = ()
    part = _SESSION_HEADER
    ack_sequence_number: "_Word"
    recoverable_msg_ack_seq_number: "_Word"
    recoverable_msg_ack_flags: "_Word"
    user_msg_sequence_number: "_Word"
    recoverable_msg_sequence_number: "_Word"
    window_size: "_Word"
    reserved: "_Word"


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
    part = _USER_HEADER
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
        first = 1 if self.part == _TRANSACTION_HEADER else 0
        return fields[first + 1] << 32 | fields[first]


class TransactionHeader(_Sequenced):
    """wire.md 2.3. connector_qm_guid: 16 bytes or None."""

    __slots__ = ("connector_qm_guid",)
    part = _TRANSACTION_HEADER
    flags: "_Word"
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
    part = _SECURITY_HEADER
    flags: "_Word"
    sender_id_size: "_Word"
    encryption_key_size: "_Word"
    signature_size: "_Word"
    sender_cert_size: "_Word"
    provider_info_size: "_Word"

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
    part = _MESSAGE_PROPERTIES_HEADER
    flags = _WORD[0]
    label_length: "_Word"
    message_class = _WORD[2]
    body_type = _WORD[8]
    application_tag = _WORD[9]
    message_size: "_Word"
    allocation_body_size: "_Word"
    privacy_level: "_Word"
    hash_algorithm: "_Word"
    encryption_algorithm: "_Word"
    extension_size: "_Word"

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


class OrderAckBody(_Sequenced):
    """wire.md section 6. The 20 reserved bytes are written as 0."""

    __slots__ = ()
    part = _ORDER_ACK
    tx_sequence_ordinal = _WORD[0]
    tx_sequence_time_stamp = _WORD[1]
    tx_sequence_number = _WORD[2]
    tx_previous_sequence_number: "_Word"


class FinalAckBody(_Sequenced):
    """wire.md section 6. source_guid and message_id name the message that is acknowledged."""

    __slots__ = ("source_guid",)
    part = _FINAL_ACK
    tx_sequence_ordinal: "_Word"
    tx_sequence_time_stamp: "_Word"
    tx_sequence_number = _WORD[2]
    previous_tx_sequence_number: "_Word"
    message_id = _WORD[8]

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
        self.debug: "DebugHeader | None" = None  # noqa: F405
        self.soap: "SoapHeader | None" = None  # noqa: F405
        self.multi_queue_format: "MultiQueueFormatHeader | None" = None  # noqa: F405
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

_ORDER_LABEL_RAW = terminated("QM Ordering Ack")


def malformed(problem: int, place: "int | str") -> Malformed:
    """problem: a status of the core, or of extras.PROBLEMS. place: of extras.PLACES, or its name; of some problems.

    Where extras is, its function of this name, which has the words, takes the place of this one.
    """
    return Malformed("wire.md", "place " + str(place), "problem " + str(problem), problem)


def unpack(part: int, data: "Buffer", at: int, limit: int) -> "array[int]":
    """The words of one part, in a new array. Malformed."""
    fields = words(part)
    status = core.unpack(part, fields, data, at, limit)
    if status:
        raise malformed(status, part)
    return fields


def parse(
    data: "Buffer", offset: int = 0, end: "int | None" = None
) -> "EstablishConnection | ConnectionParameters | SessionAck | UserMessage | OrderAck | FinalAck":  # noqa: F405
    """Read the packet that begins at data[offset] (B-174 to B-179, B-429 to B-433). Bytes behind it are left alone.

    Bodies, extensions, padding and trailing bytes are memoryviews of data, not copies. NeedMore if bytes are missing
    before end (default: all of data); Malformed if a rule is broken: core.frame tells where the next packet begins.
    Internal packets are read only where extras is; others use read_internal.
    """
    if end is None:
        end = len(data)
    fields = words(_BASE_HEADER)
    status = core.unpack(_BASE_HEADER, fields, data, offset, end)
    if status == _NEED_MORE:
        raise NeedMore(_BASE_HEADER_SIZE)
    if status:
        raise malformed(status, _BASE_HEADER)
    flags = fields[2]
    total = core.packet_total(flags, fields[4])
    if end - offset < total:
        raise NeedMore(total)
    if flags & _BASE_IN:
        return extras.parse_internal(BaseHeader(fields), data, offset, offset + total)
    return _parse_message(BaseHeader(fields), data, offset)


def read_internal(data: "Buffer", offset: int, limit: int, fields: "array[int]") -> int:
    """Check the internal packet that is data[offset:limit], and read its last header into fields, 11 words.

    Returns PT and CS of its InternalHeader. The BaseHeader is known to be right. Malformed.
    """
    part = _INTERNAL_HEADER
    status = core.unpack(part, fields, data, offset + 16, limit)
    if not status:
        flags = fields[1]
        kind = flags & _INTERNAL_PT
        size = limit - offset
        if kind == _PT_SESSION_ACK:
            part = _SESSION_HEADER
            if not data[offset + 2] & _BASE_SH:
                status = _NO_SESSION_HEADER
            elif size != _SESSION_ACK_SIZE:
                status = _SESSION_ACK_LENGTH
        elif kind == _PT_CONNECTION_PARAMETERS:
            part = _CONNECTION_PARAMETERS
            if size != _CONNECTION_PARAMETERS_SIZE:
                status = _PARAMETERS_LENGTH
        else:
            part = _ESTABLISH_CONNECTION
            if size != _ESTABLISH_CONNECTION_SIZE:
                status = _ESTABLISH_LENGTH
        if not status:
            status = core.unpack(part, fields, data, offset + 20, limit)
    if status:
        raise malformed(status, part)
    return flags & (_INTERNAL_PT | _INTERNAL_CS)


def take(data: "Buffer", at: int, size: int, limit: int, place: "int | str") -> bytes:
    """size bytes at data[at]. Malformed if they go beyond limit (B-429)."""
    if at + size > limit:
        raise malformed(_NEED_MORE, place)
    return bytes(data[at : at + size])


def _parse_name(kind: int, data: "Buffer", at: int, limit: int, place: int) -> "QueueName":
    if kind == _DIRECT:
        if at + 2 > limit:
            raise malformed(_NEED_MORE, place)
        size = data[at] | data[at + 1] << 8
        if size < 4:
            raise malformed(_EMPTY_NAME, place)
        raw = take(data, at + 2, size, limit, place)
        check_text(raw, place)
        return DirectQueueFormatName("", raw)
    raw = take(data, at, _KIND_SIZES[kind], limit, place)
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
    if base_flags & _BASE_TR and not base_flags & _BASE_DH:
        raise malformed(_TRACE_ALONE, 0)

    at = offset + 16
    user = UserHeader(unpack(_USER_HEADER, data, at, limit))
    user.source_queue_manager = bytes(data[at : at + 16])
    user.queue_manager_address = bytes(data[at + 16 : at + 32])
    flags = user.fields[11]
    at += 48
    kind = _KINDS[flags >> 10 & 7]
    if kind:
        user.destination_queue = name = _parse_name(kind, data, at, limit, _DESTINATION_QUEUE)
        at += _name_size(name)
    kind = _KINDS[flags >> 13 & 7]
    if kind:
        user.admin_queue = name = _parse_name(kind, data, at, limit, _ADMIN_QUEUE)
        at += _name_size(name)
    kind = _KINDS[flags >> 16 & 7]
    if kind:
        user.response_queue = name = _parse_name(kind, data, at, limit, _RESPONSE_QUEUE)
        at += _name_size(name)
    if flags & _USER_CQ:
        user.connector_type = take(data, at, 16, limit, _CONNECTOR_TYPE)
        at += 16

    transaction = None
    if flags & _USER_TH:
        transaction = TransactionHeader(unpack(_TRANSACTION_HEADER, data, at, limit))
        at += 20
        if transaction.fields[0] & _TX_CG:
            transaction.connector_qm_guid = take(data, at, 16, limit, _CONNECTOR_QM_GUID)
            at += 16
    security = None
    if flags & _USER_SH:
        security = SecurityHeader(unpack(_SECURITY_HEADER, data, at, limit))
        at = _parse_security(security, data, at + 16, limit)

    message = UserMessage(base, user, _parse_properties(data, at, limit))
    message.transaction = transaction
    message.security = security
    body_at = _finish(message, data, at, limit)

    if base_flags & _BASE_SH:
        if packet_size & 3:
            raise malformed(_NOT_ALIGNED, 0)
        message.session = SessionHeader(unpack(_SESSION_HEADER, data, limit, limit + 16))

    message_class = message.properties.fields[2]
    if (message_class == CLASS_ORDER_ACK or message_class >= CLASS_FINAL_ACK) and _to_order_queue(message):
        if message.properties.fields[10] != _ACK_BODY_SIZE:
            raise malformed(_ACK_LENGTH, 0)
        if message_class == CLASS_ORDER_ACK:
            return OrderAck(message, OrderAckBody(unpack(_ORDER_ACK, data, body_at, limit)))
        final = FinalAckBody(unpack(_FINAL_ACK, data, body_at, limit))
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


def _parse_security(security: SecurityHeader, data: "Buffer", at: int, limit: int) -> int:
    """SecurityData. Returns where it ends; what is in it is for extras."""
    end = at
    for index in range(1, 6):
        end += security.fields[index] + 3 & ~3
    if end > limit:
        raise malformed(_SECURITY_TOO_LONG, 0)
    if _has_extras:
        extras.parse_security(security, data, at)
    return end


def _parse_properties(data: "Buffer", at: int, limit: int) -> MessagePropertiesHeader:
    """The fixed part, label and extension; the body is for _finish."""
    properties = MessagePropertiesHeader(unpack(_MESSAGE_PROPERTIES_HEADER, data, at, limit))
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
        raise malformed(_NEED_MORE, _EXTENSION_DATA)
    if size:
        properties.extension = memoryview(data)[at : at + size]
        at += size
    if fields[11] > limit - at:  # MessageSize is not above it, says the core
        raise malformed(_BODY_TOO_LONG, 0)
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
        raise malformed(_NEED_MORE, _PADDING)
    if _has_extras and (message.base.fields[2] & _BASE_DH or message.user.fields[11] & (_USER_HH | _USER_MQ)):
        return extras.parse_tail(message, data, at, limit)
    return at


# ---- build --------------------------------------------------------------------------------------


def select(flags: int, shift: int, name: "QueueName | None", allowed: int) -> int:
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


def _internal(flags: int, kind: int, size: int, part: int, fields: "array[int]") -> bytearray:
    """An internal packet whose one header, at 20, has these words."""
    out = bytearray(size)
    base = array("I", (_VERSION_NUMBER, 0, flags | _BASE_IN | 3, _SIGNATURE, size, FOREVER))
    core.pack(_BASE_HEADER, base, out, 0)
    core.pack(_INTERNAL_HEADER, array("I", (0, kind)), out, 16)
    core.pack(part, fields, out, 20)
    return out


def establish_connection(
    client_guid: bytes, server_guid: bytes, time_stamp: int, operating_system: int = 0x0310, refused: bool = False
) -> bytearray:
    """Request or response (B-204, B-208; wire.md 5.2). time_stamp: ms. refused: CS, in a response."""
    fields = words(_ESTABLISH_CONNECTION)
    fields[8] = time_stamp
    fields[9] = operating_system
    kind = _PT_ESTABLISH_CONNECTION | (_INTERNAL_CS if refused else 0)
    out = _internal(0, kind, _ESTABLISH_CONNECTION_SIZE, _ESTABLISH_CONNECTION, fields)
    out[20:36] = check_guid(client_guid)
    out[36:52] = check_guid(server_guid)
    for at in range(_ESTABLISH_CONNECTION_SIZE - _PADDING_SIZE, _ESTABLISH_CONNECTION_SIZE):
        out[at] = 0x5A
    return out


def connection_parameters(recoverable_ack_timeout: int, ack_timeout: int, window_size: int) -> bytearray:
    """Request or response (wire.md 5.3). Time-outs: ms, 500 to 120000 and 20000 to 120000; window_size: packets."""
    fields = array("I", (recoverable_ack_timeout, ack_timeout, 0, window_size))
    return _internal(0, _PT_CONNECTION_PARAMETERS, _CONNECTION_PARAMETERS_SIZE, _CONNECTION_PARAMETERS, fields)


def session_ack(fields: "array[int]") -> bytearray:
    """A SessionAck with the SessionHeader that core.session_fill has made (wire.md 5.4)."""
    return _internal(_BASE_SH, _PT_SESSION_ACK, _SESSION_ACK_SIZE, _SESSION_HEADER, fields)


def check_u32(value: int) -> int:
    """The value. ValueError if it does not fit: MicroPython's arrays and structures would cut it off."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError("not a u32: " + str(value))
    return value


def compose(
    flags: int,
    ttrq: int,
    source: bytes,
    address: bytes,
    ttbr: int,
    sent_time: int,
    message_id: int,
    user_flags: int,
    destination: QueueName,
    admin: "QueueName | None",
    response: "QueueName | None",
    properties: "array[int]",
    correlation: bytes,
    label_raw: bytes,
    extension: "Buffer",
    body: "Buffer",
) -> bytearray:
    """A message without the headers of extras; with a TransactionHeader if user_flags has TH (wire.md section 3).

    flags: of the BaseHeader. Selectors and MP are added to user_flags, the sizes to properties.
    """
    user_flags = select(user_flags, 10, destination, 0xA9)
    user_flags = select(user_flags, 13, admin, 0xED)
    user_flags = select(user_flags, 16, response, 0xFF) | _USER_MP
    names = destination.wire()
    if admin is not None:
        names += admin.wire()
    if response is not None:
        names += response.wire()
    transaction_at = 64 + len(names)
    at = transaction_at + (20 if user_flags & _USER_TH else 0)
    label_at = at + 56
    body_at = label_at + len(label_raw) + len(extension)
    size = body_at + len(body) + 3 & ~3
    if size > _PACKET_SIZE_MAX:
        raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
    out = bytearray(size)
    base = array("I", (_VERSION_NUMBER, 0, flags, _SIGNATURE, size, check_u32(ttrq)))
    core.pack(_BASE_HEADER, base, out, 0)
    fields = words(_USER_HEADER)
    fields[8] = check_u32(ttbr)
    fields[9] = check_u32(sent_time)
    fields[10] = check_u32(message_id)
    fields[11] = user_flags
    core.pack(_USER_HEADER, fields, out, 16)
    out[16:32] = check_guid(source)
    out[32:48] = check_guid(address)
    out[64:transaction_at] = names
    if at != transaction_at:
        core.pack(_TRANSACTION_HEADER, array("I", (_TX_FM | _TX_LM, 0, 0, 1, 0)), out, transaction_at)
    properties[1] = len(label_raw) >> 1
    properties[10] = properties[11] = len(body)
    properties[13] = SHA_1
    properties[14] = RC4
    properties[15] = len(extension)
    core.pack(_MESSAGE_PROPERTIES_HEADER, properties, out, at)
    if len(correlation) != 20:
        raise ValueError("a correlation identifier has 20 bytes")
    out[at + 4 : at + 24] = correlation
    out[label_at : label_at + len(label_raw)] = label_raw
    out[body_at - len(extension) : body_at] = extension
    out[body_at : body_at + len(body)] = body
    return out


class Draft:
    """Makes the transactional messages of one queue, each as user_message would, but faster.

    transaction_at: where the TransactionHeader of each of them begins. It has TxSequenceNumber 1 until it is numbered.
    """

    def __init__(self, source: bytes, destination: QueueName) -> None:
        self._source = source
        self._destination = destination
        self._label = ""
        self._head = b""
        self._label_is("")
        self.transaction_at = 64 + len(destination.wire())

    def _label_is(self, label: str) -> None:
        raw = terminated(label) if label else b""
        properties = words(_MESSAGE_PROPERTIES_HEADER)
        packet = compose(
            0, FOREVER, self._source, NULL_GUID, FOREVER, 0, 0, _TRANSACTIONAL, self._destination, None, None,
            properties, bytes(20), raw, b"", b"",
        )  # fmt: skip
        self._flags = unpack_from("<I", packet, 60)[0]
        size = 64 + len(self._destination.wire()) + 20 + 56 + len(raw)
        self._sizes_at = size - len(raw) - 24
        self._head = bytes(packet[:size])
        self._label = label

    def size(self, body_size: int, label: str = "") -> int:
        """Bytes of a packet with such a body. ValueError for one that cannot be."""
        if label != self._label:
            self._label_is(label)
        size = len(self._head) + body_size + 3 & ~3
        if size > _PACKET_SIZE_MAX:
            raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
        return size

    def write(
        self,
        message_id: int,
        body: "Buffer",
        label: str = "",
        ttrq: int = FOREVER,
        ttbr: int = FOREVER,
        sent_time: int = 0,
        journal: int = 0,
    ) -> bytearray:
        """The packet. Arguments as those of user_message; journal is not checked."""
        packet = bytearray(self.size(len(body), label))
        self.write_into(packet, 0, message_id, body, label, ttrq, ttbr, sent_time, journal)
        return packet

    def write_into(
        self,
        buffer: "bytearray | memoryview",
        offset: int,
        message_id: int,
        body: "Buffer",
        label: str = "",
        ttrq: int = FOREVER,
        ttbr: int = FOREVER,
        sent_time: int = 0,
        journal: int = 0,
    ) -> int:
        """Put the packet at buffer[offset:] and tell how many bytes it has; -1: it does not fit, nothing is done."""
        size = self.size(len(body), label)
        if size > len(buffer) - offset:
            return -1
        head = self._head
        at = offset + len(head)
        end = at + len(body)
        buffer[offset:at] = head
        buffer[at:end] = body
        for at in range(end, offset + size):
            buffer[at] = 0
        count = len(body)
        pack_into("<II", buffer, offset + 8, size, check_u32(ttrq))
        flags = self._flags | journal
        pack_into("<IIII", buffer, offset + 48, check_u32(ttbr), check_u32(sent_time), check_u32(message_id), flags)
        pack_into("<II", buffer, offset + self._sizes_at, count, count)
        return size


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
    properties = words(_MESSAGE_PROPERTIES_HEADER)
    properties[2] = message_class
    packet = compose(
        0, FOREVER, source, address, FOREVER, sent_time, message_id, flags, destination, None, None,
        properties, bytes(20), _ORDER_LABEL_RAW, b"", bytes(_ACK_BODY_SIZE),
    )  # fmt: skip
    core.pack(part, fields, packet, len(packet) - _ACK_BODY_SIZE)  # TTBR: B-364
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
    fields = words(_ORDER_ACK)
    _sequence(fields, ordinal, time_stamp, number, number - 1)
    return _acknowledgment(destination, address, source, message_id, sent_time, CLASS_ORDER_ACK, 0, _ORDER_ACK, fields)


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
    fields = words(_FINAL_ACK)
    _sequence(fields, ordinal, time_stamp, number, previous)
    fields[8] = check_u32(acked_message_id)
    packet = _acknowledgment(
        destination, address, source, message_id, sent_time, message_class, 0x20, _FINAL_ACK, fields
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
        kind = _KINDS[flags >> shift & 7]
        at += 2 + (packet[at] | packet[at + 1] << 8) + 3 & ~3 if kind == _DIRECT else _KIND_SIZES[kind]
    return at + 16 if flags & _USER_CQ else at


def transaction_offset(packet: "Buffer") -> int:
    """Where the TransactionHeader of a serialised packet that parses begins; 0 if it has none."""
    flags = unpack_from("<I", packet, 60)[0]
    if packet[2] & _BASE_IN or not flags & _USER_TH:
        return 0
    return names_end(packet, flags)


try:
    from mqqb import extras
    from mqqb.extras import *  # noqa: F403 - they are reached as names of this module

    _has_extras = True
except ImportError:
    _has_extras = False
