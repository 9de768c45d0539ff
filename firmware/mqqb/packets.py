"""Packets of the MSMQ binary protocol: what every board makes and reads (wire.md sections 1 to 8).

Fixed-size parts go through core.unpack and core.pack; this file adds what has a variable length, the order of the
headers and the checks between them. Wire input is always checked (Malformed); a caller's mistake is a ValueError.
Texts for people and JSON are made elsewhere: boards need neither.

Whole messages as objects are in messages, and are reached through this module too: a board loads that file when it
needs one of its names, for most of them never do. What a board neither makes nor looks into is in extras, and is
reached through this module where that file is: the headers of other protocols, `build`, the words of errors, the names
of fixed fields. Without it a packet's security items are not read, and the headers behind its body count as trailing
bytes.
"""

from array import array
from struct import pack_into, unpack_from

from mqqb import const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

    class Word:
        """What mypy is told of a property that stands for one word; boards have properties, but no descriptors."""

        def __get__(self, instance: object, owner: object) -> int: ...

        def __set__(self, instance: object, value: int) -> None: ...


NULL_GUID: bytes = b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"  # a literal takes no memory of a board
FOREVER = const(0xFFFFFFFF)  # TimeToReachQueue, TimeToBeReceived
CLASS_ORDER_ACK = const(0x00FF)
ORDER_QUEUE_ID = const(4)  # the order queue as a private queue of the destination host (wire.md 4.3)
ORDER_QUEUE_PATH = "\\PRIVATE$\\order_queue$"

# Places and sizes in a packet, bytes.
TTRQ_AT = const(12)
SOURCE_AT = const(16)
ADDRESS_AT = const(32)
TTBR_AT = const(48)
SENT_TIME_AT = const(52)
MESSAGE_ID_AT = const(56)
USER_FLAGS_AT = const(60)
BASE_HEADER_SIZE = const(16)
TRANSACTION_HEADER_SIZE = const(20)
SESSION_HEADER_SIZE = const(16)
ACK_BODY_SIZE = const(0x24)
PADDING_SIZE = const(512)  # behind the EstablishConnectionHeader
ESTABLISH_CONNECTION_SIZE = const(572)
CONNECTION_PARAMETERS_SIZE = const(32)
SESSION_ACK_SIZE = const(36)
_NOT_OF_ORDER_ACKS = const(0x10DFE000)  # UserHeader.Flags: AQ, RQ, SH, TH, CQ, MQ, HH
_TRANSACTIONAL = const(0x00100020)  # UserHeader.Flags: TH, DM 1
_SHA_1 = const(0x8004)  # default HashAlgorithm
_RC4 = const(0x6801)  # default EncryptionAlgorithm
_NO_SESSION_HEADER = const(4)
_SESSION_ACK_LENGTH = const(5)
_PARAMETERS_LENGTH = const(6)
_ESTABLISH_LENGTH = const(7)


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


# ---- UTF-16 -------------------------------------------------------------------------------------

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


def check_guid(guid: bytes) -> bytes:
    """The GUID. ValueError if it has not 16 bytes."""
    if len(guid) != 16:
        raise ValueError("a GUID has 16 bytes")
    return guid


# ---- queue names --------------------------------------------------------------------------------

# What the selectors DQ, AQ, RQ say about the bytes (wire.md 2.2).
NONE = const(0)
ID = const(1)
PUBLIC = const(2)
PRIVATE = const(3)
DIRECT = const(4)
KINDS = (NONE, NONE, ID, ID, ID, PUBLIC, PRIVATE, DIRECT)


class QueueName:
    """What all queue names have in common. raw: the name's bytes without count and padding."""

    __slots__ = ("raw",)
    kind = NONE
    selector = 0  # of DQ, AQ and RQ; what a name alone does not tell is told by UserHeader.Flags

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def wire(self) -> bytes:
        """The bytes in a UserHeader."""
        return self.raw


class DirectQueueFormatName(QueueName):
    """A queue by address and path, without the leading DIRECT= (wire.md 1.5). raw: its WCHARs with the NUL."""

    __slots__ = ()
    kind = DIRECT
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


def parse_format_name(text: str) -> "DirectQueueFormatName | PublicQueueFormatName | PrivateQueueFormatName":  # noqa: F405
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


# ---- headers ------------------------------------------------------------------------------------

_SIZES = (24, 8, 28, 20, 16, 48, 64, 24, 8, 44, 36, 36, 28)  # of the words of each part, in bytes


def words(part: int) -> "array[int]":
    """The words of a part, all 0."""
    return array("I", bytes(_SIZES[part]))


class Header:
    """A header with a fixed part. fields: the words of its structure (mqqb.h), as every core function takes them.

    The words of GUIDs and other byte strings mean nothing: those are attributes of their own.
    """

    __slots__ = ("fields",)
    part = 0

    def __init__(self, fields: "array[int] | None" = None) -> None:
        self.fields = words(self.part) if fields is None else fields


class OrderAckBody(Header):
    """wire.md section 6. The 20 reserved bytes are written as 0."""

    __slots__ = ()
    part = core.ORDER_ACK
    tx_sequence_ordinal: "Word"
    tx_sequence_time_stamp: "Word"
    tx_sequence_number: "Word"
    tx_previous_sequence_number: "Word"

    @property
    def tx_sequence_id(self) -> int:
        """TxSequenceID as the 64-bit number that is compared: TimeStamp high, Ordinal low (wire.md 1.2)."""
        return self.fields[1] << 32 | self.fields[0]


class OrderAck:
    """A message to the order queue (wire.md section 6). build puts body in the place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: "UserMessage", body: OrderAckBody) -> None:  # noqa: F405
        self.message = message
        self.body = body


# ---- read ---------------------------------------------------------------------------------------

ORDER_LABEL_RAW = b"Q\0M\0 \0O\0r\0d\0e\0r\0i\0n\0g\0 \0A\0c\0k\0\0\0"


def malformed(problem: int, place: "int | str") -> Malformed:
    """problem: a status of the core, or of extras.PROBLEMS. place: of extras.PLACES, or its name; of some problems.

    Where extras is, its function of this name, which has the words, takes the place of this one.
    """
    return Malformed("wire.md", "place " + str(place), "problem " + str(problem), problem)


def read_internal(data: "Buffer", offset: int, limit: int, fields: "array[int]") -> int:
    """Check the internal packet that is data[offset:limit], and read its last header into fields, 11 words.

    Returns PT and CS of its InternalHeader. The BaseHeader is known to be right. Malformed.
    """
    part = core.INTERNAL_HEADER
    status = core.unpack(part, fields, data, offset + 16, limit)
    if not status:
        flags = fields[1]
        kind = flags & core.INTERNAL_PT
        size = limit - offset
        if kind == core.PT_SESSION_ACK:
            part = core.SESSION_HEADER
            if not data[offset + 2] & core.BASE_SH:
                status = _NO_SESSION_HEADER
            elif size != SESSION_ACK_SIZE:
                status = _SESSION_ACK_LENGTH
        elif kind == core.PT_CONNECTION_PARAMETERS:
            part = core.CONNECTION_PARAMETERS
            if size != CONNECTION_PARAMETERS_SIZE:
                status = _PARAMETERS_LENGTH
        else:
            part = core.ESTABLISH_CONNECTION
            if size != ESTABLISH_CONNECTION_SIZE:
                status = _ESTABLISH_LENGTH
        if not status:
            status = core.unpack(part, fields, data, offset + 20, limit)
    if status:
        raise malformed(status, part)
    return flags & (core.INTERNAL_PT | core.INTERNAL_CS)


def is_order_queue(name: str) -> bool:
    """Is this direct name, without DIRECT=, that of an order queue (B-178, A-36)?"""
    text = name.upper()
    path = ORDER_QUEUE_PATH.upper()
    return text[:4] in ("TCP:", "SPX:") and text.find("\\") == len(text) - len(path) > 4 and text.endswith(path)


def order_ack_body(raw: "Buffer") -> int:
    """Where the body of an OrderAck begins, if the message raw is one with no headers but those that it needs; its body
    and SessionHeader are not looked at. 0: `parse` tells what it is.
    """
    size, flags = unpack_from("<I", raw, 8)[0], unpack_from("<I", raw, 60)[0]
    fields = words(core.MESSAGE_PROPERTIES_HEADER)
    if (
        raw[2] & ~(core.BASE_SH | 7) & 0xFF
        or raw[3]
        or flags & _NOT_OF_ORDER_ACKS
        or core.unpack(core.USER_HEADER, fields, raw, 16, size)
    ):
        return 0
    kind = KINDS[flags >> 10 & 7]
    at = 68
    if kind == DIRECT:
        count = raw[64] | raw[65] << 8
        at = 64 + (2 + count + 3 & ~3)
        name = bytes(raw[66 : 64 + count])
        if count & 1 or raw[64 + count : 66 + count] != b"\0\0" or not is_order_queue(utf16_decode(name)):
            return 0
    elif kind != ID or unpack_from("<I", raw, 64)[0] != ORDER_QUEUE_ID:
        return 0
    label_at = at + 56
    body_at = label_at + len(ORDER_LABEL_RAW)
    if (
        body_at + ACK_BODY_SIZE != size
        or core.unpack(core.MESSAGE_PROPERTIES_HEADER, fields, raw, at, size)
        or raw[label_at:body_at] != ORDER_LABEL_RAW
        or fields[1] != len(ORDER_LABEL_RAW) // 2
        or fields[2] != CLASS_ORDER_ACK
        or fields[10] != ACK_BODY_SIZE
        or fields[11] != ACK_BODY_SIZE
        or fields[15]  # an extension
    ):
        return 0
    return body_at


# ---- build --------------------------------------------------------------------------------------


def select(flags: int, shift: int, name: "QueueName | None", allowed: int) -> int:
    """Put the selector for a name into flags; one that is there stays if it fits. allowed: bit n is selector n."""
    kind = NONE if name is None else name.kind
    if name is not None and kind == NONE:
        raise ValueError("a distribution list stands only in a MultiQueueFormatHeader")
    selector = flags >> shift & 7
    if KINDS[selector] == kind and allowed >> selector & 1:
        return flags
    selector = 0
    while KINDS[selector] != kind or not allowed >> selector & 1:
        selector += 1
        if selector == 8:
            raise ValueError("this kind of queue name cannot stand here")
    return flags & ~(7 << shift) | selector << shift


def _internal(flags: int, kind: int, size: int, part: int, fields: "array[int]") -> bytearray:
    """An internal packet whose one header, at 20, has these words."""
    out = bytearray(size)
    base = array("I", (core.VERSION_NUMBER, 0, flags | core.BASE_IN | 3, core.SIGNATURE, size, FOREVER))
    core.pack(core.BASE_HEADER, base, out, 0)
    core.pack(core.INTERNAL_HEADER, array("I", (0, kind)), out, 16)
    core.pack(part, fields, out, 20)
    return out


def establish_connection(
    client_guid: bytes, server_guid: bytes, time_stamp: int, operating_system: int = 0x0310, refused: bool = False
) -> bytearray:
    """Request or response (B-204, B-208; wire.md 5.2). time_stamp: ms. refused: CS, in a response."""
    fields = words(core.ESTABLISH_CONNECTION)
    fields[8] = time_stamp
    fields[9] = operating_system
    kind = core.PT_ESTABLISH_CONNECTION | (core.INTERNAL_CS if refused else 0)
    out = _internal(0, kind, ESTABLISH_CONNECTION_SIZE, core.ESTABLISH_CONNECTION, fields)
    out[20:36] = check_guid(client_guid)
    out[36:52] = check_guid(server_guid)
    for at in range(ESTABLISH_CONNECTION_SIZE - PADDING_SIZE, ESTABLISH_CONNECTION_SIZE):
        out[at] = 0x5A
    return out


def connection_parameters(recoverable_ack_timeout: int, ack_timeout: int, window_size: int) -> bytearray:
    """Request or response (wire.md 5.3). Time-outs: ms, 500 to 120000 and 20000 to 120000; window_size: packets."""
    fields = array("I", (recoverable_ack_timeout, ack_timeout, 0, window_size))
    return _internal(0, core.PT_CONNECTION_PARAMETERS, CONNECTION_PARAMETERS_SIZE, core.CONNECTION_PARAMETERS, fields)


def session_ack(fields: "array[int]") -> bytearray:
    """A SessionAck with the SessionHeader that core.session_fill has made (wire.md 5.4)."""
    return _internal(core.BASE_SH, core.PT_SESSION_ACK, SESSION_ACK_SIZE, core.SESSION_HEADER, fields)


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
    user_flags = select(user_flags, 16, response, 0xFF) | core.USER_MP
    names = destination.wire()
    if admin is not None:
        names += admin.wire()
    if response is not None:
        names += response.wire()
    transaction_at = 64 + len(names)
    at = transaction_at + (20 if user_flags & core.USER_TH else 0)
    label_at = at + 56
    body_at = label_at + len(label_raw) + len(extension)
    size = body_at + len(body) + 3 & ~3
    if size > core.PACKET_SIZE_MAX:
        raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
    out = bytearray(size)
    base = array("I", (core.VERSION_NUMBER, 0, flags, core.SIGNATURE, size, check_u32(ttrq)))
    core.pack(core.BASE_HEADER, base, out, 0)
    fields = words(core.USER_HEADER)
    fields[8] = check_u32(ttbr)
    fields[9] = check_u32(sent_time)
    fields[10] = check_u32(message_id)
    fields[11] = user_flags
    core.pack(core.USER_HEADER, fields, out, 16)
    out[16:32] = check_guid(source)
    out[32:48] = check_guid(address)
    out[64:transaction_at] = names
    if at != transaction_at:
        core.pack(core.TRANSACTION_HEADER, array("I", (core.TX_FM | core.TX_LM, 0, 0, 1, 0)), out, transaction_at)
    properties[1] = len(label_raw) >> 1
    properties[10] = properties[11] = len(body)
    properties[13] = _SHA_1
    properties[14] = _RC4
    properties[15] = len(extension)
    core.pack(core.MESSAGE_PROPERTIES_HEADER, properties, out, at)
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
        properties = words(core.MESSAGE_PROPERTIES_HEADER)
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
        if size > core.PACKET_SIZE_MAX:
            raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
        return size

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
        """Put the packet at buffer[offset:] and tell how many bytes it has; -1: it does not fit, nothing is done.

        Arguments as those of user_message; journal is not checked.
        """
        size = self.size(len(body), label)
        if size > len(buffer) - offset:
            return -1
        head = self._head
        at = offset + len(head)
        end = at + len(body)
        count = len(body)
        core.copy(buffer, offset, head, 0, len(head))
        core.copy(buffer, at, body, 0, count)
        for at in range(end, offset + size):
            buffer[at] = 0
        pack_into("<II", buffer, offset + 8, size, check_u32(ttrq))
        flags = self._flags | journal
        pack_into("<IIII", buffer, offset + 48, check_u32(ttbr), check_u32(sent_time), check_u32(message_id), flags)
        pack_into("<II", buffer, offset + self._sizes_at, count, count)
        return size


try:
    from mqqb import extras

    _has_extras = True
except ImportError:
    _has_extras = False
if TYPE_CHECKING or _has_extras:
    from mqqb.extras import *  # noqa: F403 - they are reached as names of this module
    from mqqb.messages import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        """A name of messages, which takes 5 KB of a board's heap."""
        from mqqb import messages

        return getattr(messages, name)
