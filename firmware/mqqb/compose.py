"""Packets written directly as bytes, without header objects: messages and internal packets."""

from array import array
from struct import pack_into, unpack_from

from mqqb import const, core, names

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

    class Fields:
        """An object with words: a header."""

        fields: "array[int]"

    class Word:
        """The type of a property for one word, for type checkers."""

        def __get__(self, instance: object, owner: object) -> int: ...

        def __set__(self, instance: object, value: int) -> None: ...


FOREVER = const(0xFFFFFFFF)  # TimeToReachQueue, TimeToBeReceived
CLASS_ORDER_ACK = const(0x00FF)
CLASS_FINAL_ACK = const(0x4000)  # and every higher class

CORRELATION_SIZE = const(20)  # bytes
PADDING_SIZE = const(512)

# UserHeader.Flags: shifts of the queue names' selectors, and masks of permitted selectors (bit n: selector n).
DESTINATION_SHIFT = const(10)
ADMIN_SHIFT = const(13)
RESPONSE_SHIFT = const(16)
DESTINATION_SELECTORS = const(0xA9)
ADMIN_SELECTORS = const(0xED)
RESPONSE_SELECTORS = const(0xFF)

_TRANSACTIONAL = const(0x00100020)  # UserHeader.Flags: TH, DM 1
_SHA_1 = const(0x8004)  # default HashAlgorithm
_RC4 = const(0x6801)  # default EncryptionAlgorithm


# ---- internal packets ---------------------------------------------------------------------------


def _internal(flags: int, kind: int, size: int, part: int, fields: "array[int]") -> bytearray:
    """An internal packet with these words in its last header."""
    out = bytearray(size)
    base = array("I", (core.VERSION_NUMBER, 0, flags | core.BASE_IN | 3, core.SIGNATURE, size, FOREVER))
    core.pack(core.BASE_HEADER, base, out, 0)
    core.pack(core.INTERNAL_HEADER, array("I", (0, kind)), out, core.BASE_HEADER_SIZE)
    core.pack(part, fields, out, core.INTERNAL_END)
    return out


def establish_connection(
    client_guid: bytes,
    server_guid: bytes,
    time_stamp: int,
    operating_system: int = 0x0310,
    refused: bool = False,
    name: bytes = b"",
) -> bytearray:
    """Request or response (B-204, B-208; wire.md 5.2). time_stamp: ms. refused: CS, in a response. name: begins the
    padding, which may hold anything in a request.
    """
    fields = core.words(core.ESTABLISH_CONNECTION)
    fields[core.ESTABLISH_TIME_STAMP] = time_stamp
    fields[core.ESTABLISH_OPERATING_SYSTEM] = operating_system
    kind = core.PT_ESTABLISH_CONNECTION | (core.INTERNAL_CS if refused else 0)
    out = _internal(0, kind, core.PACKET_SIZE_ESTABLISH_CONNECTION, core.ESTABLISH_CONNECTION, fields)
    out[core.ESTABLISH_CLIENT_GUID_AT : core.ESTABLISH_SERVER_GUID_AT] = names.check_guid(client_guid)
    out[core.ESTABLISH_SERVER_GUID_AT : core.ESTABLISH_SERVER_GUID_AT + 16] = names.check_guid(server_guid)
    out[core.ESTABLISH_END :] = name + b"\x5a" * (PADDING_SIZE - len(name))
    return out


def connection_parameters(recoverable_ack_timeout: int, ack_timeout: int, window_size: int) -> bytearray:
    """Request or response (wire.md 5.3). Timeouts: ms, 500 to 120000 and 20000 to 120000. window_size: packets."""
    fields = array("I", (recoverable_ack_timeout, ack_timeout, 0, window_size))
    return _internal(
        0, core.PT_CONNECTION_PARAMETERS, core.PACKET_SIZE_CONNECTION_PARAMETERS, core.CONNECTION_PARAMETERS, fields
    )


def session_ack(fields: "array[int]") -> bytearray:
    """A SessionAck with a SessionHeader from core.session_fill (wire.md 5.4)."""
    return _internal(core.BASE_SH, core.PT_SESSION_ACK, core.PACKET_SIZE_SESSION_ACK, core.SESSION_HEADER, fields)


# ---- messages -----------------------------------------------------------------------------------


def check_u32(value: int) -> int:
    """The value. Raises ValueError if it does not fit: MicroPython's arrays and structures would truncate it."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError("not a u32: " + str(value))
    return value


def word(place: int) -> "Word":
    """A property for .fields[place]. Boards have neither properties nor this function."""

    def read(self: "Fields") -> int:
        return self.fields[place]

    def write(self: "Fields", value: int) -> None:
        self.fields[place] = check_u32(value)

    return property(read, write)  # type: ignore[return-value]


def select(flags: int, shift: int, name: "names.QueueName | None", allowed: int) -> int:
    """Put the selector of a name into flags; a fitting selector stays. allowed: bit n permits selector n."""
    kind = names.NONE if name is None else name.kind
    if name is not None and kind == names.NONE:
        raise ValueError("a distribution list stands only in a MultiQueueFormatHeader")
    selector = flags >> shift & 7
    if names.KINDS[selector] == kind and allowed >> selector & 1:
        return flags
    selector = 0
    while names.KINDS[selector] != kind or not allowed >> selector & 1:
        selector += 1
        if selector == 8:
            raise ValueError("this kind of queue name cannot stand here")
    return flags & ~(7 << shift) | selector << shift


def message(
    flags: int,
    ttrq: int,
    source: bytes,
    address: bytes,
    ttbr: int,
    sent_time: int,
    message_id: int,
    user_flags: int,
    destination: "names.QueueName",
    admin: "names.QueueName | None",
    response: "names.QueueName | None",
    properties: "array[int]",
    correlation: bytes,
    label_raw: bytes,
    extension: "Buffer",
    body: "Buffer",
) -> bytearray:
    """A message without the headers of rare.py, with a TransactionHeader if user_flags has TH (wire.md section 3).
    flags: of the BaseHeader. The function adds selectors and MP to user_flags, and the sizes to properties."""
    user_flags = select(user_flags, DESTINATION_SHIFT, destination, DESTINATION_SELECTORS) | core.USER_MP
    user_flags = select(user_flags, ADMIN_SHIFT, admin, ADMIN_SELECTORS)
    user_flags = select(user_flags, RESPONSE_SHIFT, response, RESPONSE_SELECTORS)
    wire = destination.wire()
    for name in (admin, response):
        if name is not None:
            wire += name.wire()
    transaction_at = core.USER_END + len(wire)
    at = transaction_at + (core.TRANSACTION_HEADER_SIZE if user_flags & core.USER_TH else 0)
    label_at = at + core.MESSAGE_PROPERTIES_HEADER_SIZE
    body_at = label_at + len(label_raw) + len(extension)
    size = body_at + len(body) + 3 & ~3
    if size > core.PACKET_SIZE_MAX:
        raise ValueError("a packet has at most 4194304 bytes, this one " + str(size))
    out = bytearray(size)
    words = core.VERSION_NUMBER, 0, flags, core.SIGNATURE, size, check_u32(ttrq)
    core.pack(core.BASE_HEADER, array("I", words), out, 0)
    fields = core.words(core.USER_HEADER)
    fields[core.USER_TIME_TO_BE_RECEIVED] = check_u32(ttbr)
    fields[core.USER_SENT_TIME] = check_u32(sent_time)
    fields[core.USER_MESSAGE_ID] = check_u32(message_id)
    fields[core.USER_FLAGS] = user_flags
    core.pack(core.USER_HEADER, fields, out, core.BASE_HEADER_SIZE)
    out[core.BASE_END : core.USER_TIME_TO_BE_RECEIVED_AT] = names.check_guid(source) + names.check_guid(address)
    out[core.USER_END : transaction_at] = wire
    if at != transaction_at:
        core.pack(core.TRANSACTION_HEADER, array("I", (_alone(message_id), 0, 0, 1, 0)), out, transaction_at)
    properties[core.PROPERTIES_LABEL_LENGTH] = len(label_raw) >> 1
    properties[core.PROPERTIES_MESSAGE_SIZE] = properties[core.PROPERTIES_ALLOCATION_BODY_SIZE] = len(body)
    properties[core.PROPERTIES_HASH_ALGORITHM] = _SHA_1
    properties[core.PROPERTIES_ENCRYPTION_ALGORITHM] = _RC4
    properties[core.PROPERTIES_EXTENSION_SIZE] = len(extension)
    core.pack(core.MESSAGE_PROPERTIES_HEADER, properties, out, at)
    if len(correlation) != CORRELATION_SIZE:
        raise ValueError("a correlation identifier has 20 bytes")
    out[at + core.PROPERTIES_CORRELATION_ID_IN_PART : at + core.PROPERTIES_BODY_TYPE_IN_PART] = correlation
    out[label_at : label_at + len(label_raw)] = label_raw
    out[body_at - len(extension) : body_at] = extension
    out[body_at : body_at + len(body)] = body
    return out


def _alone(message_id: int) -> int:
    """The flags of a message in a transaction of its own, with an index as unique as its MessageID."""
    return (message_id & 0xFFFFF) << 4 | core.TX_FM | core.TX_LM


class Draft:
    """Makes the transactional messages of one queue like user_message, but faster.

    transaction_at: offset of the TransactionHeader, which has TxSequenceNumber 1 until the message is numbered.
    head_size: bytes before the body, with the label of the last call of `size`.
    """

    def __init__(self, source: bytes, destination: names.QueueName) -> None:
        self._source = source
        self._destination = destination
        self._label = ""
        self._head = b""
        self.head_size = 0
        self.transaction_at = core.USER_END + len(destination.wire())
        self._label_is("")

    def _label_is(self, label: str) -> None:
        raw = names.terminated(label) if label else b""
        properties = core.words(core.MESSAGE_PROPERTIES_HEADER)
        packet = message(
            0, FOREVER, self._source, names.NULL_GUID, FOREVER, 0, 0, _TRANSACTIONAL, self._destination, None, None,
            properties, bytes(CORRELATION_SIZE), raw, b"", b"",
        )  # fmt: skip
        self._flags = unpack_from("<I", packet, core.USER_FLAGS_AT)[0]
        properties_at = self.transaction_at + core.TRANSACTION_HEADER_SIZE
        size = properties_at + core.MESSAGE_PROPERTIES_HEADER_SIZE + len(raw)
        self._sizes_at = properties_at + core.PROPERTIES_MESSAGE_SIZE_IN_PART
        self._head = bytes(packet[:size])
        self.head_size = size
        self._label = label

    def size(self, body_size: int, label: str = "") -> int:
        """The packet's size in bytes with such a body. Raises ValueError above 4 MiB."""
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
        """Write the packet to buffer[offset:], with zeros up to a whole word, and return its size in bytes. A packet
        that does not fit is written up to its body.

        Arguments as of user_message; journal is not checked.
        """
        count = len(body)
        size = self.size(count, label)
        core.copy(buffer, offset, self._head, 0, self.head_size)
        if size <= len(buffer) - offset:
            end = offset + self.head_size + count
            core.copy(buffer, end - count, body, 0, count)
            for at in range(end, offset + size):
                buffer[at] = 0
        pack_into("<II", buffer, offset + core.BASE_PACKET_SIZE_AT, size, check_u32(ttrq))
        flags = self._flags | journal
        pack_into(
            "<IIII", buffer, offset + core.USER_TIME_TO_BE_RECEIVED_AT, check_u32(ttbr), check_u32(sent_time),
            check_u32(message_id), flags,
        )  # fmt: skip
        pack_into("<I", buffer, offset + self.transaction_at, _alone(message_id))
        pack_into("<II", buffer, offset + self._sizes_at, count, count)
        return size
