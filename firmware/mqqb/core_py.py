"""The C core's twin in Python: same names, same results (c_core/mqqb.h says what they mean).

Words of byte strings hold their bytes in little-endian order, which is raw memory on every machine that runs this.
"""

import struct
from array import array

from mqqb.constants import (
    ACK_BITS,
    ACK_FIRST,
    ACK_NUMBER,
    ACK_ORDINAL,
    ACK_TIME_STAMP,
    ACKS_BASE,
    ACKS_FLAGS,
    ACKS_RECOVERABLE_SENT,
    ACKS_RESERVED,
    ACKS_SENT,
    ACKS_SEQUENCE_NUMBER,
    ACKS_WINDOW_SIZE,
    BAD_ACK_COUNT,
    BAD_ACK_NUMBER,
    BAD_ACK_TIMEOUT,
    BAD_ADMIN_TYPE,
    BAD_BODY_SIZE,
    BAD_DELIVERY_MODE,
    BAD_DESTINATION_TYPE,
    BAD_HOP_COUNT,
    BAD_HTTP_FLAG,
    BAD_LABEL_LENGTH,
    BAD_MESSAGE_COUNT,
    BAD_OPERATING_SYSTEM,
    BAD_PACKET_SIZE,
    BAD_PACKET_TYPE,
    BAD_PING_SIGNATURE,
    BAD_PREVIOUS_NUMBER,
    BAD_PROPERTIES_FLAG,
    BAD_QUEUE_TYPE,
    BAD_RECOVERABLE_ACK_TIMEOUT,
    BAD_REFUSED_FLAG,
    BAD_SECURITY_SIZE,
    BAD_SENDER_ID_TYPE,
    BAD_SIGNATURE,
    BAD_TRANSACTION_MODE,
    BAD_TX_SEQUENCE_NUMBER,
    BAD_VERSION_NUMBER,
    BAD_WINDOW_SIZE,
    BASE_FLAGS,
    BASE_HEADER,
    BASE_IN,
    BASE_PACKET_SIZE,
    BASE_SH,
    BASE_SIGNATURE,
    BASE_VERSION_NUMBER,
    DEBUG_FLAGS,
    ESTABLISH_OPERATING_SYSTEM,
    HOP_COUNT_MAX,
    IGNORED,
    INCOMING_NUMBER,
    INCOMING_ORDINAL,
    INCOMING_REJECT_COUNT,
    INCOMING_TIME_STAMP,
    INCOMING_WORDS,
    INTERNAL_CS,
    INTERNAL_FLAGS,
    INTERNAL_PT,
    NEED_MORE,
    OK,
    ORDER_ACK,
    OUTGOING_LAST_ACK,
    OUTGOING_NUMBER,
    OUTGOING_ORDINAL,
    OUTGOING_TIME_STAMP,
    OUTGOING_WORDS,
    PACKET_SIZE_MAX,
    PACKET_SIZE_MIN_INTERNAL,
    PACKET_SIZE_MIN_MESSAGE,
    PARAMETERS_ACK_TIMEOUT,
    PARAMETERS_RECOVERABLE_ACK_TIMEOUT,
    PARTS,
    PING_SIGNATURE,
    PROPERTIES_ALLOCATION_BODY_SIZE,
    PROPERTIES_LABEL_LENGTH,
    PROPERTIES_MESSAGE_SIZE,
    PT_CONNECTION_PARAMETERS,
    PT_SESSION_ACK,
    SECURITY_FLAGS,
    SECURITY_PROVIDER_INFO_SIZE,
    SECURITY_SENDER_CERT_SIZE,
    SECURITY_SENDER_ID_SIZE,
    SESSION_ACK_FLAGS,
    SESSION_ACKED,
    SESSION_HEADER,
    SESSION_PEER_ACKED,
    SESSION_RECEIVED,
    SESSION_RECEIVED_WINDOW_SIZE,
    SESSION_RECOVERABLE_ACKED,
    SESSION_RECOVERABLE_RECEIVED,
    SESSION_RECOVERABLE_SENT,
    SESSION_RECOVERABLE_STORED,
    SESSION_SENT,
    SESSION_STORED,
    SESSION_WINDOW_SIZE,
    SESSION_WORDS,
    SIGNATURE,
    STREAM_FULL,
    TRANSACTION_HEADER,
    TX_NUMBER,
    TX_ORDINAL,
    TX_PREVIOUS,
    TX_TIME_STAMP,
    USER_AH,
    USER_AQ,
    USER_DM,
    USER_DQ,
    USER_FLAGS,
    USER_MP,
    USER_RC,
    USER_TH,
    VERSION_NUMBER,
)

_M32 = 0xFFFFFFFF

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
    if v[BASE_VERSION_NUMBER] != VERSION_NUMBER:
        return BAD_VERSION_NUMBER  # B-168
    if v[BASE_SIGNATURE] != SIGNATURE:
        return BAD_SIGNATURE  # B-168
    least = PACKET_SIZE_MIN_INTERNAL if v[BASE_FLAGS] & BASE_IN else PACKET_SIZE_MIN_MESSAGE
    return OK if least <= v[BASE_PACKET_SIZE] <= PACKET_SIZE_MAX else BAD_PACKET_SIZE  # B-429


def _check_internal(v: "tuple[int, ...] | array[int]") -> int:
    packet_type = v[INTERNAL_FLAGS] & INTERNAL_PT
    if not PT_SESSION_ACK <= packet_type <= PT_CONNECTION_PARAMETERS:
        return BAD_PACKET_TYPE  # B-170
    return BAD_REFUSED_FLAG if packet_type == PT_SESSION_ACK and v[INTERNAL_FLAGS] & INTERNAL_CS else OK


def _check_session(v: "tuple[int, ...] | array[int]") -> int:
    return OK if v[ACKS_WINDOW_SIZE] else BAD_WINDOW_SIZE  # B-106


def _check_transaction(v: "tuple[int, ...] | array[int]") -> int:
    if v[TX_NUMBER] == 0:
        return BAD_TX_SEQUENCE_NUMBER
    return BAD_PREVIOUS_NUMBER if v[TX_PREVIOUS] == _M32 else OK


def _check_parameters(v: "tuple[int, ...] | array[int]") -> int:
    if not 500 <= v[PARAMETERS_RECOVERABLE_ACK_TIMEOUT] <= 120000:
        return BAD_RECOVERABLE_ACK_TIMEOUT  # B-213
    return OK if 20000 <= v[PARAMETERS_ACK_TIMEOUT] <= 120000 else BAD_ACK_TIMEOUT  # B-213


def _check_user(v: "tuple[int, ...] | array[int]") -> int:
    flags = v[USER_FLAGS]
    if flags & USER_RC > HOP_COUNT_MAX:
        return BAD_HOP_COUNT
    if flags & USER_DM > 0x20:
        return BAD_DELIVERY_MODE
    if flags & USER_DQ not in (0, 0x0C00, 0x1400, 0x1C00):  # 0, 3, 5, 7
        return BAD_DESTINATION_TYPE  # B-171
    if flags & USER_AQ in (0x2000, 0x8000):  # 1, 4
        return BAD_ADMIN_TYPE  # B-171
    if flags & USER_TH and not flags & USER_DM:
        return BAD_TRANSACTION_MODE  # B-173
    if not flags & USER_MP:
        return BAD_PROPERTIES_FLAG
    return BAD_HTTP_FLAG if flags & USER_AH else OK


def _check_properties(v: "tuple[int, ...] | array[int]") -> int:
    if v[PROPERTIES_LABEL_LENGTH] > 0xFA:
        return BAD_LABEL_LENGTH  # B-431
    return BAD_BODY_SIZE if v[PROPERTIES_MESSAGE_SIZE] > v[PROPERTIES_ALLOCATION_BODY_SIZE] else OK  # B-432


def _check_security(v: "tuple[int, ...] | array[int]") -> int:
    if v[SECURITY_FLAGS] & 0x000F > 2:
        return BAD_SENDER_ID_TYPE
    if v[SECURITY_SENDER_CERT_SIZE] > 0xFFFF:
        return BAD_SECURITY_SIZE
    for i in range(SECURITY_SENDER_ID_SIZE, SECURITY_PROVIDER_INFO_SIZE + 1):
        if v[i]:
            return OK
    return BAD_SECURITY_SIZE


def _check_debug(v: "tuple[int, ...] | array[int]") -> int:
    return BAD_QUEUE_TYPE if v[DEBUG_FLAGS] & 0x0003 > 1 else OK


def _check_establish(v: "tuple[int, ...] | array[int]") -> int:
    return OK if v[ESTABLISH_OPERATING_SYSTEM] & 0x00FF == 0x10 else BAD_OPERATING_SYSTEM


def _check_ack(v: "tuple[int, ...] | array[int]") -> int:
    return OK if v[ACK_NUMBER] else BAD_ACK_NUMBER


def _check_ping(v: "tuple[int, ...] | array[int]") -> int:
    return OK if v[1] == PING_SIGNATURE else BAD_PING_SIGNATURE


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
    if not 0 <= part < PARTS:
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
        return NEED_MORE
    values = struct.unpack_from(_FORMATS[part], data, offset)
    status = _CHECKS[part](values)
    if status == OK:
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
    if _CHECKS[part](fields) != OK:
        raise ValueError("field out of range")
    struct.pack_into(wire, data, offset, *fields[:words])


def packet_total(flags: int, packet_size: int) -> int:
    """Bytes of a packet on the stream: a SessionHeader behind a message is not in its PacketSize (OP-1, A-51)."""
    _check_number(flags, 0, 0xFFFF)
    _check_number(packet_size, 0, PACKET_SIZE_MAX)
    return packet_size + 16 if flags & (BASE_IN | BASE_SH) == BASE_SH else packet_size


def frame(data: "bytes | bytearray | memoryview", offset: int, end: int, total: "array[int]") -> int:
    """Set total[0] to the bytes of the packet at data[offset:end] (wire.md 4.2)."""
    _check_words(total, 1)
    _check_range(data, offset, end)
    if end - offset < _SIZES[BASE_HEADER]:
        total[0] = _SIZES[BASE_HEADER]
        return NEED_MORE
    values = struct.unpack_from(_FORMATS[BASE_HEADER], data, offset)
    status = _check_base(values)
    if status == OK:
        total[0] = packet_total(values[BASE_FLAGS], values[BASE_PACKET_SIZE])
        if end - offset < total[0]:
            return NEED_MORE
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
    return bit < ACK_BITS and bool(flags >> bit & 1)


def session_init(s: "array[int]", window_size: int) -> None:
    """Begin a connection; window_size is 1..0xFFFF messages."""
    _check_words(s, SESSION_WORDS)
    _check_number(window_size, 1, 0xFFFF)
    for i in range(SESSION_WINDOW_SIZE):
        s[i] = 0
    s[SESSION_WINDOW_SIZE] = s[SESSION_RECEIVED_WINDOW_SIZE] = window_size


def session_can_send(s: "array[int]") -> bool:
    """Is there room in the smaller of both windows (B-118, A-25), and in serial arithmetic (A-23)?"""
    return session_unacked_sent(s) < min(s[SESSION_WINDOW_SIZE], s[SESSION_RECEIVED_WINDOW_SIZE], 0x7FFF)


def _count(s: "array[int]", recoverable: bool, messages: int) -> None:
    s[messages] = (s[messages] + 1) & 0xFFFF
    if recoverable:
        s[messages + 1] = (s[messages + 1] + 1) & 0xFFFF


def session_sent(s: "array[int]", recoverable: bool) -> None:
    """Count a message as it goes out (B-320)."""
    _check_words(s, SESSION_WORDS)
    _count(s, recoverable, SESSION_SENT)


def session_received(s: "array[int]", recoverable: bool) -> None:
    """Count a message as it comes in (B-252, B-278)."""
    _check_words(s, SESSION_WORDS)
    _count(s, recoverable, SESSION_RECEIVED)


def session_stored(s: "array[int]", recoverable: bool) -> int:
    """Count the oldest message not yet stored as durable. ACK_FIRST: nothing done, send a SessionAck before (B-123)."""
    _check_words(s, SESSION_WORDS)
    if s[SESSION_STORED] == s[SESSION_RECEIVED]:
        raise ValueError("nothing left to store")
    if recoverable:
        if s[SESSION_RECOVERABLE_STORED] == s[SESSION_RECOVERABLE_RECEIVED]:
            raise ValueError("nothing recoverable left to store")
        bit = (s[SESSION_RECOVERABLE_STORED] - s[SESSION_RECOVERABLE_ACKED]) & 0xFFFF
        if bit >= ACK_BITS:
            return ACK_FIRST
        s[SESSION_ACK_FLAGS] |= 1 << bit  # B-280
    _count(s, recoverable, SESSION_STORED)
    return OK


def session_unacked_received(s: "array[int]") -> int:
    """Messages received and not covered by a SessionHeader of ours (B-037)."""
    _check_words(s, SESSION_WORDS)
    return (s[SESSION_RECEIVED] - s[SESSION_ACKED]) & 0xFFFF


def session_unacked_sent(s: "array[int]") -> int:
    """Messages sent and not acknowledged (B-038)."""
    _check_words(s, SESSION_WORDS)
    return (s[SESSION_SENT] - s[SESSION_PEER_ACKED]) & 0xFFFF


def session_fill(s: "array[int]", h: "array[int]") -> None:
    """Make the SessionHeader that is due now and count it as sent (B-101 to B-108)."""
    _check_words(s, SESSION_WORDS)
    _check_words(h, part_words(SESSION_HEADER))
    flags = s[SESSION_ACK_FLAGS]
    h[ACKS_SEQUENCE_NUMBER] = s[SESSION_STORED]  # not what was received: A-31
    h[ACKS_BASE] = (s[SESSION_RECOVERABLE_ACKED] + 1) & 0xFFFF if flags else 0
    h[ACKS_FLAGS] = flags
    h[ACKS_SENT] = s[SESSION_SENT]
    h[ACKS_RECOVERABLE_SENT] = s[SESSION_RECOVERABLE_SENT]
    h[ACKS_WINDOW_SIZE] = s[SESSION_WINDOW_SIZE]
    h[ACKS_RESERVED] = 0
    s[SESSION_ACK_FLAGS] = 0
    s[SESSION_ACKED] = s[SESSION_STORED]
    s[SESSION_RECOVERABLE_ACKED] = s[SESSION_RECOVERABLE_STORED]


def session_check(s: "array[int]", h: "array[int]", carried: bool) -> int:
    """Check a received SessionHeader and adopt its acknowledgement and window (B-130, B-219, B-227, B-229, OP-14)."""
    _check_words(s, SESSION_WORDS)
    _check_words(h, part_words(SESSION_HEADER))
    if _after(h[ACKS_SEQUENCE_NUMBER], s[SESSION_SENT]):
        return BAD_ACK_COUNT
    flags = h[ACKS_FLAGS]
    if flags:
        last = h[ACKS_BASE]
        sent = s[SESSION_RECOVERABLE_SENT]
        if _after(last, sent):
            return BAD_ACK_COUNT
        while flags > 1:
            flags >>= 1
            last += 1
        if _after(last, sent):
            return BAD_ACK_COUNT
    if _after(h[ACKS_SEQUENCE_NUMBER], s[SESSION_PEER_ACKED]):
        s[SESSION_PEER_ACKED] = h[ACKS_SEQUENCE_NUMBER]
    s[SESSION_RECEIVED_WINDOW_SIZE] = h[ACKS_WINDOW_SIZE]
    missing = (s[SESSION_RECEIVED] - h[ACKS_SENT]) & 0xFFFF
    recoverable_missing = (s[SESSION_RECOVERABLE_RECEIVED] - h[ACKS_RECOVERABLE_SENT]) & 0xFFFF
    if missing == 0 and recoverable_missing == 0:
        return OK
    return OK if carried and missing == 1 and recoverable_missing <= 1 else BAD_MESSAGE_COUNT


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
    _check_words(incoming, INCOMING_WORDS)
    _check_words(h, part_words(TRANSACTION_HEADER))
    order = tx_compare(h[TX_ORDINAL], h[TX_TIME_STAMP], incoming[INCOMING_ORDINAL], incoming[INCOMING_TIME_STAMP])
    last = incoming[INCOMING_NUMBER]
    if (order == 0 and h[TX_NUMBER] > last and h[TX_PREVIOUS] <= last) or (order > 0 and h[TX_PREVIOUS] == 0):
        incoming[INCOMING_ORDINAL] = h[TX_ORDINAL]
        incoming[INCOMING_TIME_STAMP] = h[TX_TIME_STAMP]
        incoming[INCOMING_NUMBER] = h[TX_NUMBER]
        incoming[INCOMING_REJECT_COUNT] = 0
        return True
    incoming[INCOMING_REJECT_COUNT] = (incoming[INCOMING_REJECT_COUNT] + 1) & _M32
    return False


def stamp(outgoing: "array[int]", previous: int, h: "array[int]") -> int:
    """Number a message for the first and only time (B-317, A-08). STREAM_FULL: nothing was done (A-24)."""
    _check_words(outgoing, OUTGOING_WORDS)
    _check_words(h, part_words(TRANSACTION_HEADER))
    number = outgoing[OUTGOING_NUMBER]
    _check_number(previous, 0, number - 1)
    if number == _M32:
        return STREAM_FULL
    h[TX_ORDINAL] = outgoing[OUTGOING_ORDINAL]
    h[TX_TIME_STAMP] = outgoing[OUTGOING_TIME_STAMP]
    h[TX_NUMBER] = number
    h[TX_PREVIOUS] = previous
    outgoing[OUTGOING_NUMBER] = number + 1
    return OK


def order_ack_received(outgoing: "array[int]", ack: "array[int]") -> int:
    """Raise last_ack. IGNORED: another sequence, a number never given, or no progress (B-230, B-233)."""
    _check_words(outgoing, OUTGOING_WORDS)
    _check_words(ack, part_words(ORDER_ACK))
    number = ack[ACK_NUMBER]
    if (
        ack[ACK_ORDINAL] != outgoing[OUTGOING_ORDINAL]
        or ack[ACK_TIME_STAMP] != outgoing[OUTGOING_TIME_STAMP]
        or not outgoing[OUTGOING_LAST_ACK] < number < outgoing[OUTGOING_NUMBER]
    ):
        return IGNORED
    outgoing[OUTGOING_LAST_ACK] = number
    return OK


def roll(outgoing: "array[int]") -> None:
    """Begin the next sequence, if a message was numbered in this one (B-096, A-05)."""
    _check_words(outgoing, OUTGOING_WORDS)
    if outgoing[OUTGOING_NUMBER] == 1:
        return
    outgoing[OUTGOING_ORDINAL] = (outgoing[OUTGOING_ORDINAL] + 1) & _M32
    if outgoing[OUTGOING_ORDINAL] == 0:
        outgoing[OUTGOING_TIME_STAMP] = (outgoing[OUTGOING_TIME_STAMP] + 1) & _M32
    outgoing[OUTGOING_NUMBER] = 1
    outgoing[OUTGOING_LAST_ACK] = 0
