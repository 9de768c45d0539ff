"""The C core's twin in Python: same names, same results (c_core/mqqb.h says what they mean).

Words of byte strings hold their bytes in little-endian order, which is raw memory on every machine that runs this.
"""

import struct
from array import array
from binascii import crc32

from mqqb import const

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

_M32 = const(0xFFFFFFFF)

# Of constants.py (a test compares them).
_ACK_BITS = const(32)
_ACK_FIRST = const(2)
_ACK_NUMBER = const(2)
_ACK_ORDINAL = const(0)
_ACK_TIME_STAMP = const(1)
_ACKS_BASE = const(1)
_ACKS_FLAGS = const(2)
_ACKS_RECOVERABLE_SENT = const(4)
_ACKS_RESERVED = const(6)
_ACKS_SENT = const(3)
_ACKS_SEQUENCE_NUMBER = const(0)
_ACKS_WINDOW_SIZE = const(5)
_BAD_ACK_COUNT = const(-26)
_BAD_ACK_NUMBER = const(-23)
_BAD_ACK_TIMEOUT = const(-20)
_BAD_ADMIN_TYPE = const(-9)
_BAD_BODY_SIZE = const(-18)
_BAD_DELIVERY_MODE = const(-7)
_BAD_DESTINATION_TYPE = const(-8)
_BAD_HOP_COUNT = const(-6)
_BAD_HTTP_FLAG = const(-12)
_BAD_LABEL_LENGTH = const(-17)
_BAD_MESSAGE_COUNT = const(-27)
_BAD_OPERATING_SYSTEM = const(-21)
_BAD_PACKET_SIZE = const(-3)
_BAD_PACKET_TYPE = const(-4)
_BAD_PING_SIGNATURE = const(-24)
_BAD_PREVIOUS_NUMBER = const(-14)
_BAD_PROPERTIES_FLAG = const(-11)
_BAD_QUEUE_TYPE = const(-25)
_BAD_RECOVERABLE_ACK_TIMEOUT = const(-19)
_BAD_REFUSED_FLAG = const(-5)
_BAD_SECURITY_SIZE = const(-16)
_BAD_SENDER_ID_TYPE = const(-15)
_BAD_SIGNATURE = const(-2)
_BAD_TRANSACTION_MODE = const(-10)
_BAD_TX_SEQUENCE_NUMBER = const(-13)
_BAD_VERSION_NUMBER = const(-1)
_BAD_WINDOW_SIZE = const(-22)
_BASE_FLAGS = const(2)
_BASE_HEADER = const(0)
_BASE_IN = const(0x0008)
_BASE_PACKET_SIZE = const(4)
_BASE_SH = const(0x0010)
_BASE_SIGNATURE = const(3)
_BASE_VERSION_NUMBER = const(0)
_DEBUG_FLAGS = const(0)
_ESTABLISH_OPERATING_SYSTEM = const(9)
_HOP_COUNT_MAX = const(0x1D)
_IGNORED = const(3)
_INCOMING_NUMBER = const(2)
_INCOMING_ORDINAL = const(0)
_INCOMING_REJECT_COUNT = const(3)
_INCOMING_TIME_STAMP = const(1)
_INCOMING_WORDS = const(4)
_INTERNAL_CS = const(0x0010)
_INTERNAL_FLAGS = const(1)
_INTERNAL_PT = const(0x000F)
_NEED_MORE = const(1)
_OK = const(0)
_ORDER_ACK = const(10)
_OUTGOING_LAST_ACK = const(3)
_OUTGOING_NUMBER = const(2)
_OUTGOING_ORDINAL = const(0)
_OUTGOING_TIME_STAMP = const(1)
_OUTGOING_WORDS = const(4)
_PACKET_SIZE_MAX = const(0x00400000)
_PACKET_SIZE_MIN_INTERNAL = const(20)
_PACKET_SIZE_MIN_MESSAGE = const(120)
_PARAMETERS_ACK_TIMEOUT = const(1)
_PARAMETERS_RECOVERABLE_ACK_TIMEOUT = const(0)
_PARTS = const(13)
_PING_SIGNATURE = const(0x5548)
_PROPERTIES_ALLOCATION_BODY_SIZE = const(11)
_PROPERTIES_LABEL_LENGTH = const(1)
_PROPERTIES_MESSAGE_SIZE = const(10)
_PT_CONNECTION_PARAMETERS = const(3)
_PT_SESSION_ACK = const(1)
_SECURITY_FLAGS = const(0)
_SECURITY_PROVIDER_INFO_SIZE = const(5)
_SECURITY_SENDER_CERT_SIZE = const(4)
_SECURITY_SENDER_ID_SIZE = const(1)
_SESSION_ACK_FLAGS = const(8)
_SESSION_ACKED = const(6)
_SESSION_HEADER = const(2)
_SESSION_PEER_ACKED = const(9)
_SESSION_RECEIVED = const(2)
_SESSION_RECEIVED_WINDOW_SIZE = const(11)
_SESSION_RECOVERABLE_ACKED = const(7)
_SESSION_RECOVERABLE_RECEIVED = const(3)
_SESSION_RECOVERABLE_SENT = const(1)
_SESSION_RECOVERABLE_STORED = const(5)
_SESSION_SENT = const(0)
_SESSION_STORED = const(4)
_SESSION_WINDOW_SIZE = const(10)
_SESSION_WORDS = const(12)
_SIGNATURE = const(0x524F494C)
_STREAM_FULL = const(4)
_TRANSACTION_HEADER = const(3)
_TX_NUMBER = const(3)
_TX_ORDINAL = const(1)
_TX_PREVIOUS = const(4)
_TX_TIME_STAMP = const(2)
_USER_AH = const(0x02000000)
_USER_AQ = const(0x0000E000)
_USER_DM = const(0x00000060)
_USER_DQ = const(0x00001C00)
_USER_FLAGS = const(11)
_USER_MP = const(0x00200000)
_USER_RC = const(0x0000001F)
_USER_TH = const(0x00100000)
_VERSION_NUMBER = const(0x10)

# One letter for each word, in wire order, indexed by part: how wide it is on the wire (wire.md sections 2, 5, 6, 7).
_FORMATS = (
    "<BBHIII",
    "<HH",
    "<HHIHHHH",
    "<IIIII",
    "<IIHH",
    "<IIIIIIIIIIII",
    "<BBHIIIIIIIIIIIII",
    "<HHHHII",
    "<HH",
    "<IIIIIIIIIHH",
    "<IIIIIIIII",
    "<IIIIIIIII",
    "<HHIIIII",
)
_SIZES = tuple([struct.calcsize(f) for f in _FORMATS])
_MAXIMUM = {"B": 0xFF, "H": 0xFFFF, "I": _M32}


# ---- what a part alone can show: each answers with a status, in the order of the statuses ---------


def _check_base(v: "tuple[int, ...] | array[int]") -> int:
    if v[_BASE_VERSION_NUMBER] != _VERSION_NUMBER:
        return _BAD_VERSION_NUMBER  # B-168
    if v[_BASE_SIGNATURE] != _SIGNATURE:
        return _BAD_SIGNATURE  # B-168
    least = _PACKET_SIZE_MIN_INTERNAL if v[_BASE_FLAGS] & _BASE_IN else _PACKET_SIZE_MIN_MESSAGE
    return _OK if least <= v[_BASE_PACKET_SIZE] <= _PACKET_SIZE_MAX else _BAD_PACKET_SIZE  # B-429


def _check_internal(v: "tuple[int, ...] | array[int]") -> int:
    packet_type = v[_INTERNAL_FLAGS] & _INTERNAL_PT
    if not _PT_SESSION_ACK <= packet_type <= _PT_CONNECTION_PARAMETERS:
        return _BAD_PACKET_TYPE  # B-170
    return _BAD_REFUSED_FLAG if packet_type == _PT_SESSION_ACK and v[_INTERNAL_FLAGS] & _INTERNAL_CS else _OK


def _check_session(v: "tuple[int, ...] | array[int]") -> int:
    return _OK if v[_ACKS_WINDOW_SIZE] else _BAD_WINDOW_SIZE  # B-106


def _check_transaction(v: "tuple[int, ...] | array[int]") -> int:
    if v[_TX_NUMBER] == 0:
        return _BAD_TX_SEQUENCE_NUMBER
    return _BAD_PREVIOUS_NUMBER if v[_TX_PREVIOUS] == _M32 else _OK


def _check_parameters(v: "tuple[int, ...] | array[int]") -> int:
    if not 500 <= v[_PARAMETERS_RECOVERABLE_ACK_TIMEOUT] <= 120000:
        return _BAD_RECOVERABLE_ACK_TIMEOUT  # B-213
    return _OK if 20000 <= v[_PARAMETERS_ACK_TIMEOUT] <= 120000 else _BAD_ACK_TIMEOUT  # B-213


def _check_user(v: "tuple[int, ...] | array[int]") -> int:
    flags = v[_USER_FLAGS]
    if flags & _USER_RC > _HOP_COUNT_MAX:
        return _BAD_HOP_COUNT
    if flags & _USER_DM > 0x20:
        return _BAD_DELIVERY_MODE
    if flags & _USER_DQ not in (0, 0x0C00, 0x1400, 0x1C00):  # 0, 3, 5, 7
        return _BAD_DESTINATION_TYPE  # B-171
    if flags & _USER_AQ in (0x2000, 0x8000):  # 1, 4
        return _BAD_ADMIN_TYPE  # B-171
    if flags & _USER_TH and not flags & _USER_DM:
        return _BAD_TRANSACTION_MODE  # B-173
    if not flags & _USER_MP:
        return _BAD_PROPERTIES_FLAG
    return _BAD_HTTP_FLAG if flags & _USER_AH else _OK


def _check_properties(v: "tuple[int, ...] | array[int]") -> int:
    if v[_PROPERTIES_LABEL_LENGTH] > 0xFA:
        return _BAD_LABEL_LENGTH  # B-431
    return _BAD_BODY_SIZE if v[_PROPERTIES_MESSAGE_SIZE] > v[_PROPERTIES_ALLOCATION_BODY_SIZE] else _OK  # B-432


def _check_security(v: "tuple[int, ...] | array[int]") -> int:
    if v[_SECURITY_FLAGS] & 0x000F > 2:
        return _BAD_SENDER_ID_TYPE
    if v[_SECURITY_SENDER_CERT_SIZE] > 0xFFFF:
        return _BAD_SECURITY_SIZE
    for i in range(_SECURITY_SENDER_ID_SIZE, _SECURITY_PROVIDER_INFO_SIZE + 1):
        if v[i]:
            return _OK
    return _BAD_SECURITY_SIZE


def _check_debug(v: "tuple[int, ...] | array[int]") -> int:
    return _BAD_QUEUE_TYPE if v[_DEBUG_FLAGS] & 0x0003 > 1 else _OK


def _check_establish(v: "tuple[int, ...] | array[int]") -> int:
    return _OK if v[_ESTABLISH_OPERATING_SYSTEM] & 0x00FF == 0x10 else _BAD_OPERATING_SYSTEM


def _check_ack(v: "tuple[int, ...] | array[int]") -> int:
    return _OK if v[_ACK_NUMBER] else _BAD_ACK_NUMBER


def _check_ping(v: "tuple[int, ...] | array[int]") -> int:
    return _OK if v[1] == _PING_SIGNATURE else _BAD_PING_SIGNATURE


_CHECKS = (
    _check_base,
    _check_internal,
    _check_session,
    _check_transaction,
    _check_parameters,
    _check_user,
    _check_properties,
    _check_security,
    _check_debug,
    _check_establish,
    _check_ack,
    _check_ack,
    _check_ping,
)


# ---- what the caller hands in -----------------------------------------------------------------


def _check_part(part: int) -> None:
    if not 0 <= part < _PARTS:
        raise ValueError("no such part")


def _check_words(words: "array[int]", least: int) -> None:
    if len(words) < least:
        raise ValueError("array too short")


def _check_range(data: "bytes | bytearray | memoryview", offset: int, end: int) -> None:
    if not 0 <= offset <= end <= len(data):
        raise ValueError("range outside the buffer")


def _check_number(number: int, least: int, greatest: int) -> None:
    if not least <= number <= greatest:
        raise ValueError("number out of range")


# ---- packing ----------------------------------------------------------------------------------


def part_size(part: int) -> int:
    """Bytes of a part on the wire."""
    _check_part(part)
    return _SIZES[part]


def part_words(part: int) -> int:
    """Words of a part's structure."""
    _check_part(part)
    return len(_FORMATS[part]) - 1


def unpack(part: int, fields: "array[int]", data: "bytes | bytearray | memoryview", offset: int, end: int) -> int:
    """Read one part from data[offset:end] and check it; fields is filled only if the status is OK."""
    _check_part(part)
    _check_words(fields, len(_FORMATS[part]) - 1)
    _check_range(data, offset, end)
    if end - offset < _SIZES[part]:
        return _NEED_MORE
    values = struct.unpack_from(_FORMATS[part], data, offset)
    status = _CHECKS[part](values)
    if status == _OK:
        i = 0
        for value in values:
            fields[i] = value
            i += 1  # noqa: SIM113 (enumerate allocates a tuple a step on a board)
    return status


def pack(part: int, fields: "array[int]", data: "bytearray | memoryview", offset: int) -> None:
    """Write one part to data[offset:]."""
    _check_part(part)
    wire = _FORMATS[part]
    words = len(wire) - 1
    _check_words(fields, words)
    _check_range(data, offset, offset + _SIZES[part])
    for i in range(words):
        _check_number(fields[i], 0, _MAXIMUM[wire[i + 1]])
    if _CHECKS[part](fields) != _OK:
        raise ValueError("field out of range")
    struct.pack_into(wire, data, offset, *fields[:words])


def packet_total(flags: int, packet_size: int) -> int:
    """Bytes of a packet on the stream: a SessionHeader behind a message is not in its PacketSize (OP-1, A-51)."""
    _check_number(flags, 0, 0xFFFF)
    _check_number(packet_size, 0, _PACKET_SIZE_MAX)
    return packet_size + 16 if flags & (_BASE_IN | _BASE_SH) == _BASE_SH else packet_size


def frame(data: "bytes | bytearray | memoryview", offset: int, end: int, total: "array[int]") -> int:
    """Set total[0] to the bytes of the packet at data[offset:end] (wire.md 4.2)."""
    _check_words(total, 1)
    _check_range(data, offset, end)
    if end - offset < _SIZES[_BASE_HEADER]:
        total[0] = _SIZES[_BASE_HEADER]
        return _NEED_MORE
    values = struct.unpack_from(_FORMATS[_BASE_HEADER], data, offset)
    status = _check_base(values)
    if status == _OK:
        total[0] = packet_total(values[_BASE_FLAGS], values[_BASE_PACKET_SIZE])
        if end - offset < total[0]:
            return _NEED_MORE
    return status


# ---- one connection ---------------------------------------------------------------------------


def serial_after(a: int, b: int) -> bool:
    """Is a after b, modulo 65536 (B-090)?"""
    _check_number(a, 0, 0xFFFF)
    _check_number(b, 0, 0xFFFF)
    return _after(a, b)


def _after(a: int, b: int) -> bool:
    return 0 < (a - b) & 0xFFFF < 0x8000


def is_acked(base: int, flags: int, seq: int) -> bool:
    """Is recoverable message seq acknowledged by (base, flags) (B-103, B-107, B-222, B-223)?"""
    _check_number(base, 0, 0xFFFF)
    _check_number(flags, 0, _M32)
    _check_number(seq, 0, 0xFFFF)
    if not flags:
        return False
    if not _after(seq, base):
        return True
    bit = (seq - base) & 0xFFFF
    return bit < _ACK_BITS and bool(flags >> bit & 1)


def session_init(s: "array[int]", window_size: int) -> None:
    """Begin a connection; window_size is 1..0xFFFF messages."""
    _check_words(s, _SESSION_WORDS)
    _check_number(window_size, 1, 0xFFFF)
    for i in range(_SESSION_WINDOW_SIZE):
        s[i] = 0
    s[_SESSION_WINDOW_SIZE] = s[_SESSION_RECEIVED_WINDOW_SIZE] = window_size


def session_can_send(s: "array[int]") -> bool:
    """Is there room in the smaller of both windows (B-118, A-25), and in serial arithmetic (A-23)?"""
    return session_unacked_sent(s) < min(s[_SESSION_WINDOW_SIZE], s[_SESSION_RECEIVED_WINDOW_SIZE], 0x7FFF)


def _count(s: "array[int]", recoverable: bool, messages: int) -> None:
    s[messages] = (s[messages] + 1) & 0xFFFF
    if recoverable:
        s[messages + 1] = (s[messages + 1] + 1) & 0xFFFF


def session_sent(s: "array[int]", recoverable: bool) -> None:
    """Count a message as it goes out (B-320)."""
    _check_words(s, _SESSION_WORDS)
    _count(s, recoverable, _SESSION_SENT)


def session_received(s: "array[int]", recoverable: bool) -> None:
    """Count a message as it comes in (B-252, B-278)."""
    _check_words(s, _SESSION_WORDS)
    _count(s, recoverable, _SESSION_RECEIVED)


def session_stored(s: "array[int]", recoverable: bool) -> int:
    """Count the oldest message not yet stored as durable. ACK_FIRST: nothing done, send a SessionAck before (B-123)."""
    _check_words(s, _SESSION_WORDS)
    if s[_SESSION_STORED] == s[_SESSION_RECEIVED]:
        raise ValueError("nothing left to store")
    if recoverable:
        if s[_SESSION_RECOVERABLE_STORED] == s[_SESSION_RECOVERABLE_RECEIVED]:
            raise ValueError("nothing recoverable left to store")
        bit = (s[_SESSION_RECOVERABLE_STORED] - s[_SESSION_RECOVERABLE_ACKED]) & 0xFFFF
        if bit >= _ACK_BITS:
            return _ACK_FIRST
        s[_SESSION_ACK_FLAGS] |= 1 << bit  # B-280
    _count(s, recoverable, _SESSION_STORED)
    return _OK


def session_unacked_received(s: "array[int]") -> int:
    """Messages received and not covered by a SessionHeader of ours (B-037)."""
    _check_words(s, _SESSION_WORDS)
    return (s[_SESSION_RECEIVED] - s[_SESSION_ACKED]) & 0xFFFF


def session_unacked_sent(s: "array[int]") -> int:
    """Messages sent and not acknowledged (B-038)."""
    _check_words(s, _SESSION_WORDS)
    return (s[_SESSION_SENT] - s[_SESSION_PEER_ACKED]) & 0xFFFF


def session_fill(s: "array[int]", h: "array[int]") -> None:
    """Make the SessionHeader that is due now and count it as sent (B-101 to B-108)."""
    _check_words(s, _SESSION_WORDS)
    _check_words(h, part_words(_SESSION_HEADER))
    flags = s[_SESSION_ACK_FLAGS]
    h[_ACKS_SEQUENCE_NUMBER] = s[_SESSION_STORED]  # not what was received: A-31
    h[_ACKS_BASE] = (s[_SESSION_RECOVERABLE_ACKED] + 1) & 0xFFFF if flags else 0
    h[_ACKS_FLAGS] = flags
    h[_ACKS_SENT] = s[_SESSION_SENT]
    h[_ACKS_RECOVERABLE_SENT] = s[_SESSION_RECOVERABLE_SENT]
    h[_ACKS_WINDOW_SIZE] = s[_SESSION_WINDOW_SIZE]
    h[_ACKS_RESERVED] = 0
    s[_SESSION_ACK_FLAGS] = 0
    s[_SESSION_ACKED] = s[_SESSION_STORED]
    s[_SESSION_RECOVERABLE_ACKED] = s[_SESSION_RECOVERABLE_STORED]


def session_check(s: "array[int]", h: "array[int]", carried: bool) -> int:
    """Check a received SessionHeader and adopt its acknowledgement and window (B-130, B-219, B-227, B-229, OP-14)."""
    _check_words(s, _SESSION_WORDS)
    _check_words(h, part_words(_SESSION_HEADER))
    if _after(h[_ACKS_SEQUENCE_NUMBER], s[_SESSION_SENT]):
        return _BAD_ACK_COUNT
    flags = h[_ACKS_FLAGS]
    if flags:
        last = h[_ACKS_BASE]
        sent = s[_SESSION_RECOVERABLE_SENT]
        if _after(last, sent):
            return _BAD_ACK_COUNT
        while flags > 1:
            flags >>= 1
            last += 1
        if _after(last, sent):
            return _BAD_ACK_COUNT
    if _after(h[_ACKS_SEQUENCE_NUMBER], s[_SESSION_PEER_ACKED]):
        s[_SESSION_PEER_ACKED] = h[_ACKS_SEQUENCE_NUMBER]
    s[_SESSION_RECEIVED_WINDOW_SIZE] = h[_ACKS_WINDOW_SIZE]
    missing = (s[_SESSION_RECEIVED] - h[_ACKS_SENT]) & 0xFFFF
    recoverable_missing = (s[_SESSION_RECOVERABLE_RECEIVED] - h[_ACKS_RECOVERABLE_SENT]) & 0xFFFF
    if missing == 0 and recoverable_missing == 0:
        return _OK
    return _OK if carried and missing == 1 and recoverable_missing <= 1 else _BAD_MESSAGE_COUNT


# ---- transactional order ----------------------------------------------------------------------


def tx_compare(ordinal_a: int, time_stamp_a: int, ordinal_b: int, time_stamp_b: int) -> int:
    """-1, 0 or 1: two TxSequenceIDs compared as 64-bit numbers, TimeStamp high (B-078)."""
    _check_number(ordinal_a, 0, _M32)
    _check_number(time_stamp_a, 0, _M32)
    _check_number(ordinal_b, 0, _M32)
    _check_number(time_stamp_b, 0, _M32)
    a = (time_stamp_a, ordinal_a)
    b = (time_stamp_b, ordinal_b)
    return (a > b) - (a < b)


def accept(incoming: "array[int]", h: "array[int]") -> bool:
    """Is the message next in its stream (B-270)? The stream advances if so (B-271), else it counts (B-272, A-01)."""
    _check_words(incoming, _INCOMING_WORDS)
    _check_words(h, part_words(_TRANSACTION_HEADER))
    order = tx_compare(h[_TX_ORDINAL], h[_TX_TIME_STAMP], incoming[_INCOMING_ORDINAL], incoming[_INCOMING_TIME_STAMP])
    last = incoming[_INCOMING_NUMBER]
    if (order == 0 and h[_TX_NUMBER] > last and h[_TX_PREVIOUS] <= last) or (order > 0 and h[_TX_PREVIOUS] == 0):
        incoming[_INCOMING_ORDINAL] = h[_TX_ORDINAL]
        incoming[_INCOMING_TIME_STAMP] = h[_TX_TIME_STAMP]
        incoming[_INCOMING_NUMBER] = h[_TX_NUMBER]
        incoming[_INCOMING_REJECT_COUNT] = 0
        return True
    incoming[_INCOMING_REJECT_COUNT] = (incoming[_INCOMING_REJECT_COUNT] + 1) & _M32
    return False


def stamp(outgoing: "array[int]", previous: int, h: "array[int]") -> int:
    """Number a message for the first and only time (B-317, A-08). STREAM_FULL: nothing was done (A-24)."""
    _check_words(outgoing, _OUTGOING_WORDS)
    _check_words(h, part_words(_TRANSACTION_HEADER))
    number = outgoing[_OUTGOING_NUMBER]
    _check_number(previous, 0, number - 1)
    if number == _M32:
        return _STREAM_FULL
    h[_TX_ORDINAL] = outgoing[_OUTGOING_ORDINAL]
    h[_TX_TIME_STAMP] = outgoing[_OUTGOING_TIME_STAMP]
    h[_TX_NUMBER] = number
    h[_TX_PREVIOUS] = previous
    outgoing[_OUTGOING_NUMBER] = number + 1
    return _OK


def order_ack_received(outgoing: "array[int]", ack: "array[int]") -> int:
    """Raise last_ack. IGNORED: another sequence, a number never given, or no progress (B-230, B-233)."""
    _check_words(outgoing, _OUTGOING_WORDS)
    _check_words(ack, part_words(_ORDER_ACK))
    number = ack[_ACK_NUMBER]
    if (
        ack[_ACK_ORDINAL] != outgoing[_OUTGOING_ORDINAL]
        or ack[_ACK_TIME_STAMP] != outgoing[_OUTGOING_TIME_STAMP]
        or not outgoing[_OUTGOING_LAST_ACK] < number < outgoing[_OUTGOING_NUMBER]
    ):
        return _IGNORED
    outgoing[_OUTGOING_LAST_ACK] = number
    return _OK


def roll(outgoing: "array[int]") -> None:
    """Begin the next sequence, if a message was numbered in this one (B-096, A-05)."""
    _check_words(outgoing, _OUTGOING_WORDS)
    if outgoing[_OUTGOING_NUMBER] == 1:
        return
    outgoing[_OUTGOING_ORDINAL] = (outgoing[_OUTGOING_ORDINAL] + 1) & _M32
    if outgoing[_OUTGOING_ORDINAL] == 0:
        outgoing[_OUTGOING_TIME_STAMP] = (outgoing[_OUTGOING_TIME_STAMP] + 1) & _M32
    outgoing[_OUTGOING_NUMBER] = 1
    outgoing[_OUTGOING_LAST_ACK] = 0


def copy(to: "bytearray | memoryview", at: int, data: "bytes | bytearray | memoryview", begin: int, end: int) -> None:
    """to[at:] becomes as data[begin:end] is."""
    _check_range(data, begin, end)
    _check_range(to, at, at + end - begin)
    to[at : at + end - begin] = memoryview(data)[begin:end]


def copy_words(to: "array[int]", words: "array[int]") -> None:
    """The beginning of one array becomes as all of the other is."""
    _check_words(to, len(words))
    to[: len(words)] = words


def put_words(to: "bytearray | memoryview", at: int, words: "array[int]", begin: int, end: int) -> None:
    """words[begin:end], little-endian, at to[at:]."""
    _check_words(words, end)
    _check_number(begin, 0, end)
    _check_range(to, at, at + 4 * (end - begin))
    for place in range(begin, end):
        struct.pack_into("<I", to, at, words[place])
        at += 4


def drop(items: "list[Any]", count: int) -> None:
    """The first items of a list go."""
    _check_number(count, 0, len(items))
    del items[:count]


def lock(name: str) -> None:
    """Nothing: there is one program on a board, or nobody who could lock a file for it."""


def put_crc(data: "bytearray | memoryview", at: int, begin: int, end: int, value: int) -> None:
    """The CRC-32 of data[begin:end], carried on from value, goes to data[at:], little-endian."""
    _check_range(data, begin, end)
    _check_range(data, at, at + 4)
    _check_number(value, 0, _M32)
    struct.pack_into("<I", data, at, crc32(memoryview(data)[begin:end], value))
