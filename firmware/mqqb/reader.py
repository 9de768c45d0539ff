"""What a session reads where it lies: the bytes that have come, internal packets, and OrderAcks like the one before."""

from array import array
from struct import unpack_from

from mqqb import compose, const, core, names, problems
from mqqb.fields import word

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from mqqb.headers import UserMessage

    Buffer = bytes | bytearray | memoryview

ORDER_LABEL_RAW = b"Q\0M\0 \0O\0r\0d\0e\0r\0i\0n\0g\0 \0A\0c\0k\0\0\0"
ORDER_LABEL_AT = const(-68)  # from the end of an OrderAck or a FinalAck: 32 bytes, and a body of 36
_NOT_OF_ORDER_ACKS = const(0x10DFE000)  # UserHeader.Flags: AQ, RQ, SH, TH, CQ, MQ, HH
_USER_TH_BYTE = const(0x10)  # of the third byte of UserHeader.Flags: it is transactional, no OrderAck
INTERNAL_PACKETS = ("", "SessionAck", "EstablishConnection", "ConnectionParameters")  # by PT
_ROOM = const(384)  # bytes, more than an OrderAck has; grows for as long as a longer packet is coming


def read_internal(data: "Buffer", offset: int, limit: int, fields: "array[int]") -> int:
    """Check the internal packet that is data[offset:limit], and read its last header into fields, 11 words.

    Returns PT and CS of its InternalHeader. The BaseHeader is known to be right. Malformed.
    """
    part = core.INTERNAL_HEADER
    status = core.unpack(part, fields, data, offset + core.BASE_HEADER_SIZE, limit)
    if not status:
        flags = fields[core.INTERNAL_FLAGS]
        kind = flags & core.INTERNAL_PT
        size = limit - offset
        if kind == core.PT_SESSION_ACK:
            part = core.SESSION_HEADER
            if not data[offset + core.BASE_FLAGS_AT] & core.BASE_SH:
                status = problems.NO_SESSION_HEADER
            elif size != core.PACKET_SIZE_SESSION_ACK:
                status = problems.SESSION_ACK_LENGTH
        elif kind == core.PT_CONNECTION_PARAMETERS:
            part = core.CONNECTION_PARAMETERS
            if size != core.PACKET_SIZE_CONNECTION_PARAMETERS:
                status = problems.PARAMETERS_LENGTH
        else:
            part = core.ESTABLISH_CONNECTION
            if size != core.PACKET_SIZE_ESTABLISH_CONNECTION:
                status = problems.ESTABLISH_LENGTH
        if not status:
            status = core.unpack(part, fields, data, offset + core.INTERNAL_END, limit)
    if status:
        raise core.malformed(status, part)
    return flags & (core.INTERNAL_PT | core.INTERNAL_CS)


class OrderAckBody:
    """wire.md section 6. The 20 reserved bytes are written as 0."""

    __slots__ = ("fields",)
    part = core.ORDER_ACK
    tx_sequence_ordinal = word(core.ACK_ORDINAL)
    tx_sequence_time_stamp = word(core.ACK_TIME_STAMP)
    tx_sequence_number = word(core.ACK_NUMBER)
    tx_previous_sequence_number = word(core.ACK_PREVIOUS)

    def __init__(self, fields: "array[int] | None" = None) -> None:
        self.fields = core.words(core.ORDER_ACK) if fields is None else fields

    @property
    def tx_sequence_id(self) -> int:
        """TxSequenceID as the 64-bit number that is compared: TimeStamp high, Ordinal low (wire.md 1.2)."""
        return self.fields[core.ACK_TIME_STAMP] << 32 | self.fields[core.ACK_ORDINAL]


class OrderAck:
    """A message to the order queue (wire.md section 6). build puts body in the place of the message's body."""

    __slots__ = ("body", "message")

    def __init__(self, message: "UserMessage", body: OrderAckBody) -> None:
        self.message = message
        self.body = body


def is_order_queue(name: str) -> bool:
    """Is this direct name, without DIRECT=, that of an order queue (B-178, A-36)?"""
    text = name.upper()
    path = names.ORDER_QUEUE_PATH.upper()
    return text[:4] in ("TCP:", "SPX:") and text.find("\\") == len(text) - len(path) > 4 and text.endswith(path)


def order_ack_body(raw: "Buffer") -> int:
    """Where the body of an OrderAck begins, if the message raw is one with no headers but those that it needs; its body
    and SessionHeader are not looked at. 0: `parse` tells what it is.
    """
    size = unpack_from("<I", raw, core.BASE_PACKET_SIZE_AT)[0]
    flags = unpack_from("<I", raw, core.USER_FLAGS_AT)[0]
    fields = core.words(core.MESSAGE_PROPERTIES_HEADER)
    if (
        raw[core.BASE_FLAGS_AT] & ~(core.BASE_SH | 7) & 0xFF
        or raw[core.BASE_FLAGS_AT + 1]
        or flags & _NOT_OF_ORDER_ACKS
        or core.unpack(core.USER_HEADER, fields, raw, core.BASE_HEADER_SIZE, size)
    ):
        return 0
    kind = names.KINDS[flags >> compose.DESTINATION_SHIFT & 7]
    at = core.USER_END + 4
    if kind == names.DIRECT:
        count = raw[core.USER_END] | raw[core.USER_END + 1] << 8
        at = core.USER_END + (2 + count + 3 & ~3)
        end = core.USER_END + count  # of the text, without its NUL
        name = bytes(raw[core.USER_END + 2 : end])
        if count & 1 or raw[end : end + 2] != b"\0\0" or not is_order_queue(names.utf16_decode(name)):
            return 0
    elif kind != names.ID or unpack_from("<I", raw, core.USER_END)[0] != names.ORDER_QUEUE_ID:
        return 0
    label_at = at + core.MESSAGE_PROPERTIES_HEADER_SIZE
    body_at = label_at + len(ORDER_LABEL_RAW)
    if (
        body_at + core.ORDER_ACK_SIZE != size
        or core.unpack(core.MESSAGE_PROPERTIES_HEADER, fields, raw, at, size)
        or raw[label_at:body_at] != ORDER_LABEL_RAW
        or fields[core.PROPERTIES_LABEL_LENGTH] != len(ORDER_LABEL_RAW) // 2
        or fields[core.PROPERTIES_MESSAGE_CLASS] != compose.CLASS_ORDER_ACK
        or fields[core.PROPERTIES_MESSAGE_SIZE] != core.ORDER_ACK_SIZE
        or fields[core.PROPERTIES_ALLOCATION_BODY_SIZE] != core.ORDER_ACK_SIZE
        or fields[core.PROPERTIES_EXTENSION_SIZE]  # an extension
    ):
        return 0
    return body_at


class Reader:
    """Holds the bytes that have come and are not read yet: data[begin:end]. total: one word, the size of the packet
    there.

    Reads OrderAcks that differ from an earlier one in what they acknowledge, and in nothing that matters, without
    taking memory. `body` is then that of the last one; user_flags: the low 16 bits of its message's UserHeader.Flags.
    """

    __slots__ = ("_flags", "_head", "_view", "begin", "body", "data", "end", "total", "user_flags")

    def __init__(self) -> None:
        self.total = array("I", (0,))
        self.body = OrderAckBody()
        self._head = b""  # between MessageID and body: what tells that it is an OrderAck; empty: there was none yet
        self.clear()

    def clear(self) -> None:
        """Drop all of them."""
        self.data = bytearray()
        self._view = memoryview(b"")  # of data, if `room` has made it
        self.begin = 0
        self.end = 0

    def add(self, data: "Buffer") -> None:
        """Put these behind the others."""
        if self.begin or self._view:
            self._view = memoryview(b"")
            self.data = self.data[self.begin : self.end]
            self.begin = 0
        self.data += data  # in place: a packet in small pieces is not copied for each of them
        self.end = len(self.data)

    def room(self) -> memoryview:
        """Where the next bytes are to be put; `took` tells how many there are then."""
        begin = self.begin
        end = self.end - begin
        least = max(self.total[0], _ROOM) if end else _ROOM
        if len(self._view) != least:
            data = bytearray(least)
            data[:end] = self.data[begin : begin + end]
            self.data = data
            self._view = memoryview(data)
        elif end and begin:
            self._view[:end] = bytes(self._view[begin : begin + end])
        self.begin = 0
        self.end = end
        return self._view[end:] if end else self._view

    def took(self, count: int) -> None:
        """So many bytes of the peer are now where `room` said."""
        self.end += count

    def read_order_ack(self, start: int, total: int, heard: "array[int]") -> bool:
        """Read the message data[start:start + total] if it is such an OrderAck, its SessionHeader into heard."""
        if self._is_alike(start, total, heard):
            return True
        if self.data[start + core.USER_FLAGS_AT + 2] & _USER_TH_BYTE:
            return False
        self._learn(bytes(self.data[start : start + total]))
        return self._is_alike(start, total, heard)

    def _is_alike(self, start: int, total: int, heard: "array[int]") -> bool:
        buffer = self.data
        head = self._head
        carries = buffer[start + core.BASE_FLAGS_AT] & core.BASE_SH
        at = start + core.USER_FLAGS_AT
        body = at + len(head)
        limit = body + core.ORDER_ACK_SIZE
        return (
            head != b""
            and start + total == limit + carries  # a SessionHeader has 16 bytes, SH is 0x10
            and buffer[start + core.BASE_FLAGS_AT] & ~core.BASE_SH == self._flags
            and buffer[start + core.BASE_FLAGS_AT + 1] == 0
            and buffer.startswith(head, at)
            and core.unpack(core.ORDER_ACK, self.body.fields, buffer, body, limit) == core.OK
            and (not carries or core.unpack(core.SESSION_HEADER, heard, buffer, limit, start + total) == core.OK)
        )

    def _learn(self, raw: bytes) -> None:
        """Take this one as the measure, if it is an OrderAck like all."""
        body_at = order_ack_body(raw)
        if body_at:
            self._head = head = raw[core.USER_FLAGS_AT : body_at]
            self._flags = raw[core.BASE_FLAGS_AT] & ~core.BASE_SH  # the low byte of BaseHeader.Flags
            self.user_flags = head[0] | head[1] << 8
