"""The C core's Python twin: same names, same results (documented in c_core/mqqb.h).

Words of byte strings hold their bytes in little-endian order, the memory order of all supported machines.
"""

import struct
from array import array
from binascii import crc32

from mqqb import const
from mqqb import constants as c

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

_M32 = const(0xFFFFFFFF)

# One letter for each word, in wire order, indexed by part: how wide it is on the wire. made by c_core/layout.py
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
# end of what was made
_SIZES = tuple([struct.calcsize(f) for f in _FORMATS])
_MAXIMUM = {"B": 0xFF, "H": 0xFFFF, "I": _M32}


# ---- checks within one part; the order of problems is that of the statuses --------------------------


def _check_base(v: "tuple[int, ...] | array[int]") -> int:
    if v[c.BASE_VERSION_NUMBER] != c.VERSION_NUMBER:
        return c.BAD_VERSION_NUMBER  # B-168
    if v[c.BASE_SIGNATURE] != c.SIGNATURE:
        return c.BAD_SIGNATURE  # B-168
    least = c.PACKET_SIZE_MIN_INTERNAL if v[c.BASE_FLAGS] & c.BASE_IN else c.PACKET_SIZE_MIN_MESSAGE
    return c.OK if least <= v[c.BASE_PACKET_SIZE] <= c.PACKET_SIZE_MAX else c.BAD_PACKET_SIZE  # B-429


def _check_internal(v: "tuple[int, ...] | array[int]") -> int:
    packet_type = v[c.INTERNAL_FLAGS] & c.INTERNAL_PT
    if not c.PT_SESSION_ACK <= packet_type <= c.PT_CONNECTION_PARAMETERS:
        return c.BAD_PACKET_TYPE  # B-170
    return c.BAD_REFUSED_FLAG if packet_type == c.PT_SESSION_ACK and v[c.INTERNAL_FLAGS] & c.INTERNAL_CS else c.OK


def _check_session(v: "tuple[int, ...] | array[int]") -> int:
    return c.OK if v[c.ACKS_WINDOW_SIZE] else c.BAD_WINDOW_SIZE  # B-106


def _check_transaction(v: "tuple[int, ...] | array[int]") -> int:
    if v[c.TX_NUMBER] == 0:
        return c.BAD_TX_SEQUENCE_NUMBER
    return c.BAD_PREVIOUS_NUMBER if v[c.TX_PREVIOUS] == _M32 else c.OK


def _check_parameters(v: "tuple[int, ...] | array[int]") -> int:
    if not 500 <= v[c.PARAMETERS_RECOVERABLE_ACK_TIMEOUT] <= 120000:
        return c.BAD_RECOVERABLE_ACK_TIMEOUT  # B-213
    return c.OK if 20000 <= v[c.PARAMETERS_ACK_TIMEOUT] <= 120000 else c.BAD_ACK_TIMEOUT  # B-213


def _check_user(v: "tuple[int, ...] | array[int]") -> int:
    flags = v[c.USER_FLAGS]
    if flags & c.USER_RC > c.HOP_COUNT_MAX:
        return c.BAD_HOP_COUNT
    if flags & c.USER_DM > 0x20:
        return c.BAD_DELIVERY_MODE
    if flags & c.USER_DQ not in (0, 0x0C00, 0x1400, 0x1C00):  # 0, 3, 5, 7
        return c.BAD_DESTINATION_TYPE  # B-171
    if flags & c.USER_AQ in (0x2000, 0x8000):  # 1, 4
        return c.BAD_ADMIN_TYPE  # B-171
    if flags & c.USER_TH and not flags & c.USER_DM:
        return c.BAD_TRANSACTION_MODE  # B-173
    if not flags & c.USER_MP:
        return c.BAD_PROPERTIES_FLAG
    return c.BAD_HTTP_FLAG if flags & c.USER_AH else c.OK


def _check_properties(v: "tuple[int, ...] | array[int]") -> int:
    if v[c.PROPERTIES_LABEL_LENGTH] > 0xFA:
        return c.BAD_LABEL_LENGTH  # B-431
    return c.BAD_BODY_SIZE if v[c.PROPERTIES_MESSAGE_SIZE] > v[c.PROPERTIES_ALLOCATION_BODY_SIZE] else c.OK  # B-432


def _check_security(v: "tuple[int, ...] | array[int]") -> int:
    if v[c.SECURITY_FLAGS] & 0x000F > 2:
        return c.BAD_SENDER_ID_TYPE
    if v[c.SECURITY_SENDER_CERT_SIZE] > 0xFFFF:
        return c.BAD_SECURITY_SIZE
    for i in range(c.SECURITY_SENDER_ID_SIZE, c.SECURITY_PROVIDER_INFO_SIZE + 1):
        if v[i]:
            return c.OK
    return c.BAD_SECURITY_SIZE


def _check_debug(v: "tuple[int, ...] | array[int]") -> int:
    return c.BAD_QUEUE_TYPE if v[c.DEBUG_FLAGS] & 0x0003 > 1 else c.OK


def _check_establish(v: "tuple[int, ...] | array[int]") -> int:
    return c.OK if v[c.ESTABLISH_OPERATING_SYSTEM] & 0x00FF == 0x10 else c.BAD_OPERATING_SYSTEM


def _check_ack(v: "tuple[int, ...] | array[int]") -> int:
    return c.OK if v[c.ACK_NUMBER] else c.BAD_ACK_NUMBER


def _check_ping(v: "tuple[int, ...] | array[int]") -> int:
    return c.OK if v[c.PING_SIGNATURE_WORD] == c.PING_SIGNATURE else c.BAD_PING_SIGNATURE


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


# ---- checks of arguments ----------------------------------------------------------------------


def _check_part(part: int) -> None:
    if not 0 <= part < c.PARTS:
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
        return c.NEED_MORE
    values = struct.unpack_from(_FORMATS[part], data, offset)
    status = _CHECKS[part](values)
    if status == c.OK:
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
    if _CHECKS[part](fields) != c.OK:
        raise ValueError("field out of range")
    struct.pack_into(wire, data, offset, *fields[:words])


def packet_total(flags: int, packet_size: int) -> int:
    """Bytes of a packet on the stream: PacketSize does not count a message's SessionHeader (OP-1, A-51)."""
    _check_number(flags, 0, 0xFFFF)
    _check_number(packet_size, 0, c.PACKET_SIZE_MAX)
    return packet_size + 16 if flags & (c.BASE_IN | c.BASE_SH) == c.BASE_SH else packet_size


def frame(data: "bytes | bytearray | memoryview", offset: int, end: int, total: "array[int]") -> int:
    """Set total[0] to the size of the packet at data[offset:end] (wire.md 4.2)."""
    _check_words(total, 1)
    _check_range(data, offset, end)
    if end - offset < _SIZES[c.BASE_HEADER]:
        total[0] = _SIZES[c.BASE_HEADER]
        return c.NEED_MORE
    values = struct.unpack_from(_FORMATS[c.BASE_HEADER], data, offset)
    status = _check_base(values)
    if status == c.OK:
        total[0] = packet_total(values[c.BASE_FLAGS], values[c.BASE_PACKET_SIZE])
        if end - offset < total[0]:
            return c.NEED_MORE
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
    return bit < c.ACK_BITS and bool(flags >> bit & 1)


def session_init(s: "array[int]", window_size: int) -> None:
    """Begin a connection; window_size is 1..0xFFFF messages."""
    _check_words(s, c.SESSION_WORDS)
    _check_number(window_size, 1, 0xFFFF)
    for i in range(c.SESSION_WINDOW_SIZE):
        s[i] = 0
    s[c.SESSION_WINDOW_SIZE] = s[c.SESSION_RECEIVED_WINDOW_SIZE] = window_size


def session_can_send(s: "array[int]") -> bool:
    """Does the smaller of both windows have room (B-118, A-25), within serial arithmetic (A-23)?"""
    return session_unacked_sent(s) < min(s[c.SESSION_WINDOW_SIZE], s[c.SESSION_RECEIVED_WINDOW_SIZE], 0x7FFF)


def _count(s: "array[int]", recoverable: bool, messages: int) -> None:
    s[messages] = (s[messages] + 1) & 0xFFFF
    if recoverable:
        s[messages + 1] = (s[messages + 1] + 1) & 0xFFFF


def session_sent(s: "array[int]", recoverable: bool) -> None:
    """Count a sent message (B-320)."""
    _check_words(s, c.SESSION_WORDS)
    _count(s, recoverable, c.SESSION_SENT)


def session_received(s: "array[int]", recoverable: bool) -> None:
    """Count a received message (B-252, B-278)."""
    _check_words(s, c.SESSION_WORDS)
    _count(s, recoverable, c.SESSION_RECEIVED)


def session_stored(s: "array[int]", recoverable: bool) -> int:
    """Count the oldest unstored message as durable. ACK_FIRST: nothing changed, send a SessionAck first (B-123)."""
    _check_words(s, c.SESSION_WORDS)
    if s[c.SESSION_STORED] == s[c.SESSION_RECEIVED]:
        raise ValueError("nothing left to store")
    if recoverable:
        if s[c.SESSION_RECOVERABLE_STORED] == s[c.SESSION_RECOVERABLE_RECEIVED]:
            raise ValueError("nothing recoverable left to store")
        bit = (s[c.SESSION_RECOVERABLE_STORED] - s[c.SESSION_RECOVERABLE_ACKED]) & 0xFFFF
        if bit >= c.ACK_BITS:
            return c.ACK_FIRST
        s[c.SESSION_ACK_FLAGS] |= 1 << bit  # B-280
    _count(s, recoverable, c.SESSION_STORED)
    return c.OK


def session_unacked_received(s: "array[int]") -> int:
    """Received messages that no sent SessionHeader covers (B-037)."""
    _check_words(s, c.SESSION_WORDS)
    return (s[c.SESSION_RECEIVED] - s[c.SESSION_ACKED]) & 0xFFFF


def session_unacked_sent(s: "array[int]") -> int:
    """Sent messages without an acknowledgement (B-038)."""
    _check_words(s, c.SESSION_WORDS)
    return (s[c.SESSION_SENT] - s[c.SESSION_PEER_ACKED]) & 0xFFFF


def session_fill(s: "array[int]", h: "array[int]") -> None:
    """Fill the next SessionHeader and count it as sent (B-101 to B-108)."""
    _check_words(s, c.SESSION_WORDS)
    _check_words(h, part_words(c.SESSION_HEADER))
    flags = s[c.SESSION_ACK_FLAGS]
    h[c.ACKS_SEQUENCE_NUMBER] = s[c.SESSION_STORED]  # not the received count: A-31
    h[c.ACKS_BASE] = (s[c.SESSION_RECOVERABLE_ACKED] + 1) & 0xFFFF if flags else 0
    h[c.ACKS_FLAGS] = flags
    h[c.ACKS_SENT] = s[c.SESSION_SENT]
    h[c.ACKS_RECOVERABLE_SENT] = s[c.SESSION_RECOVERABLE_SENT]
    h[c.ACKS_WINDOW_SIZE] = s[c.SESSION_WINDOW_SIZE]
    h[c.ACKS_RESERVED] = 0
    s[c.SESSION_ACK_FLAGS] = 0
    s[c.SESSION_ACKED] = s[c.SESSION_STORED]
    s[c.SESSION_RECOVERABLE_ACKED] = s[c.SESSION_RECOVERABLE_STORED]


def session_check(s: "array[int]", h: "array[int]", carried: bool) -> int:
    """Check a received SessionHeader, and apply its acknowledgement and window (B-130, B-219, B-227, B-229, OP-14)."""
    _check_words(s, c.SESSION_WORDS)
    _check_words(h, part_words(c.SESSION_HEADER))
    if _after(h[c.ACKS_SEQUENCE_NUMBER], s[c.SESSION_SENT]):
        return c.BAD_ACK_COUNT
    flags = h[c.ACKS_FLAGS]
    if flags:
        last = h[c.ACKS_BASE]
        sent = s[c.SESSION_RECOVERABLE_SENT]
        if _after(last, sent):
            return c.BAD_ACK_COUNT
        while flags > 1:
            flags >>= 1
            last += 1
        if _after(last, sent):
            return c.BAD_ACK_COUNT
    if _after(h[c.ACKS_SEQUENCE_NUMBER], s[c.SESSION_PEER_ACKED]):
        s[c.SESSION_PEER_ACKED] = h[c.ACKS_SEQUENCE_NUMBER]
    s[c.SESSION_RECEIVED_WINDOW_SIZE] = h[c.ACKS_WINDOW_SIZE]
    missing = (s[c.SESSION_RECEIVED] - h[c.ACKS_SENT]) & 0xFFFF
    recoverable_missing = (s[c.SESSION_RECOVERABLE_RECEIVED] - h[c.ACKS_RECOVERABLE_SENT]) & 0xFFFF
    if missing == 0 and recoverable_missing == 0:
        return c.OK
    return c.OK if carried and missing == 1 and recoverable_missing <= 1 else c.BAD_MESSAGE_COUNT


# ---- transactional order ----------------------------------------------------------------------


def tx_compare(ordinal_a: int, time_stamp_a: int, ordinal_b: int, time_stamp_b: int) -> int:
    """Compare two TxSequenceIDs as 64-bit numbers, TimeStamp high: -1, 0 or 1 (B-078)."""
    _check_number(ordinal_a, 0, _M32)
    _check_number(time_stamp_a, 0, _M32)
    _check_number(ordinal_b, 0, _M32)
    _check_number(time_stamp_b, 0, _M32)
    a = (time_stamp_a, ordinal_a)
    b = (time_stamp_b, ordinal_b)
    return (a > b) - (a < b)


def accept(incoming: "array[int]", h: "array[int]") -> bool:
    """Is the message next in its stream (B-270)? If so, the stream advances (B-271); else it counts (B-272, A-01)."""
    _check_words(incoming, c.INCOMING_WORDS)
    _check_words(h, part_words(c.TRANSACTION_HEADER))
    order = tx_compare(
        h[c.TX_ORDINAL], h[c.TX_TIME_STAMP], incoming[c.INCOMING_ORDINAL], incoming[c.INCOMING_TIME_STAMP]
    )
    last = incoming[c.INCOMING_NUMBER]
    if (order == 0 and h[c.TX_NUMBER] > last and h[c.TX_PREVIOUS] <= last) or (order > 0 and h[c.TX_PREVIOUS] == 0):
        incoming[c.INCOMING_ORDINAL] = h[c.TX_ORDINAL]
        incoming[c.INCOMING_TIME_STAMP] = h[c.TX_TIME_STAMP]
        incoming[c.INCOMING_NUMBER] = h[c.TX_NUMBER]
        incoming[c.INCOMING_REJECT_COUNT] = 0
        return True
    incoming[c.INCOMING_REJECT_COUNT] = (incoming[c.INCOMING_REJECT_COUNT] + 1) & _M32
    return False


def stamp(outgoing: "array[int]", previous: int, h: "array[int]") -> int:
    """Number a message for the first and only time (B-317, A-08). STREAM_FULL: nothing changed (A-24)."""
    _check_words(outgoing, c.OUTGOING_WORDS)
    _check_words(h, part_words(c.TRANSACTION_HEADER))
    number = outgoing[c.OUTGOING_NUMBER]
    _check_number(previous, 0, number - 1)
    if number == _M32:
        return c.STREAM_FULL
    h[c.TX_ORDINAL] = outgoing[c.OUTGOING_ORDINAL]
    h[c.TX_TIME_STAMP] = outgoing[c.OUTGOING_TIME_STAMP]
    h[c.TX_NUMBER] = number
    h[c.TX_PREVIOUS] = previous
    outgoing[c.OUTGOING_NUMBER] = number + 1
    return c.OK


def order_ack_received(outgoing: "array[int]", ack: "array[int]") -> int:
    """Raise last_ack. IGNORED: another sequence, an unassigned number, or no progress (B-230, B-233)."""
    _check_words(outgoing, c.OUTGOING_WORDS)
    _check_words(ack, part_words(c.ORDER_ACK))
    number = ack[c.ACK_NUMBER]
    if (
        ack[c.ACK_ORDINAL] != outgoing[c.OUTGOING_ORDINAL]
        or ack[c.ACK_TIME_STAMP] != outgoing[c.OUTGOING_TIME_STAMP]
        or not outgoing[c.OUTGOING_LAST_ACK] < number < outgoing[c.OUTGOING_NUMBER]
    ):
        return c.IGNORED
    outgoing[c.OUTGOING_LAST_ACK] = number
    return c.OK


def roll(outgoing: "array[int]") -> None:
    """Begin the next sequence, unless the present one is empty (B-096, A-05)."""
    _check_words(outgoing, c.OUTGOING_WORDS)
    if outgoing[c.OUTGOING_NUMBER] == 1:
        return
    outgoing[c.OUTGOING_ORDINAL] = (outgoing[c.OUTGOING_ORDINAL] + 1) & _M32
    if outgoing[c.OUTGOING_ORDINAL] == 0:
        outgoing[c.OUTGOING_TIME_STAMP] = (outgoing[c.OUTGOING_TIME_STAMP] + 1) & _M32
    outgoing[c.OUTGOING_NUMBER] = 1
    outgoing[c.OUTGOING_LAST_ACK] = 0


def copy(to: "bytearray | memoryview", at: int, data: "bytes | bytearray | memoryview", begin: int, end: int) -> None:
    """Copy data[begin:end] to to[at:]."""
    _check_range(data, begin, end)
    _check_range(to, at, at + end - begin)
    to[at : at + end - begin] = memoryview(data)[begin:end]


def copy_words(to: "array[int]", words: "array[int]") -> None:
    """Copy an array to the beginning of another."""
    _check_words(to, len(words))
    to[: len(words)] = words


def put_words(to: "bytearray | memoryview", at: int, words: "array[int]", begin: int, end: int) -> None:
    """Write words[begin:end], little-endian, to to[at:]."""
    _check_words(words, end)
    _check_number(begin, 0, end)
    _check_range(to, at, at + 4 * (end - begin))
    for place in range(begin, end):
        struct.pack_into("<I", to, at, words[place])
        at += 4


def drop(items: "list[Any]", count: int) -> None:
    """Remove the first items of a list."""
    _check_number(count, 0, len(items))
    del items[:count]


def lock(name: str) -> None:
    """Do nothing: a board runs one program, and stock firmware has no file locks."""


def put_crc(data: "bytearray | memoryview", at: int, begin: int, end: int, value: int) -> None:
    """Write the CRC-32 of data[begin:end], continued from value, to data[at:], little-endian."""
    _check_range(data, begin, end)
    _check_range(data, at, at + 4)
    _check_number(value, 0, _M32)
    struct.pack_into("<I", data, at, crc32(memoryview(data)[begin:end], value))
