"""The core on MicroPython (natively and with the twin) and on CPython. Prints `N passed, N failed`.

Where there is a C core, each check runs on it and on the twin.
tests/core/test_core.py runs the same functions under pytest, with their rule numbers. Run it from the checkout.
"""

import gc
import json
import struct
import sys
from array import array

sys.path.insert(0, "tests/mp")

from engine_cases import run_calls, tests_of
from mqqb import core, core_py


def native():
    """The C core's binding, whichever of the two is selected, or None."""
    try:
        import _mqqb
    except ImportError:
        return None
    if hasattr(_mqqb, "lib"):
        from mqqb import core_cffi

        return core_cffi
    return _mqqb


NATIVE = native()
CORES = [core_py] if NATIVE is None else [NATIVE, core_py]


def words(n):
    return array("I", bytes(4 * n))


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except ValueError:
        return "ValueError"


def refused(function, *arguments):
    assert outcome(function, *arguments) == "ValueError", (function, arguments)


def of_hex(text):
    return bytes([int(text[i : i + 2], 16) for i in range(0, len(text), 2)])


# ---- the captured frames ----------------------------------------------------------------------

PLACES = {  # header: part, then each field's name in vectors.json and its word
    "PingPacket": (core.PING, (("Flags", 0), ("Signature", 1), ("Cookie", 2))),
    "BaseHeader": (
        core.BASE_HEADER,
        (
            ("VersionNumber", core.BASE_VERSION_NUMBER),
            ("Reserved", core.BASE_RESERVED),
            ("Flags", core.BASE_FLAGS),
            ("Signature", core.BASE_SIGNATURE),
            ("PacketSize", core.BASE_PACKET_SIZE),
            ("TimeToReachQueue", core.BASE_TIME_TO_REACH_QUEUE),
        ),
    ),
    "InternalHeader": (core.INTERNAL_HEADER, (("Flags", core.INTERNAL_FLAGS),)),
    "EstablishConnectionHeader": (
        core.ESTABLISH_CONNECTION,
        (("TimeStamp", core.ESTABLISH_TIME_STAMP), ("OperatingSystem", core.ESTABLISH_OPERATING_SYSTEM)),
    ),
    "ConnectionParametersHeader": (
        core.CONNECTION_PARAMETERS,
        (
            ("RecoverableAckTimeout", core.PARAMETERS_RECOVERABLE_ACK_TIMEOUT),
            ("AckTimeout", core.PARAMETERS_ACK_TIMEOUT),
            ("WindowSize", core.PARAMETERS_WINDOW_SIZE),
        ),
    ),
    "UserHeader": (
        core.USER_HEADER,
        (
            ("TimeToBeReceived", core.USER_TIME_TO_BE_RECEIVED),
            ("SentTime", core.USER_SENT_TIME),
            ("MessageID", core.USER_MESSAGE_ID),
            ("Flags", core.USER_FLAGS),
        ),
    ),
    "SecurityHeader": (
        core.SECURITY_HEADER,
        (("Flags", core.SECURITY_FLAGS), ("SenderIdSize", core.SECURITY_SENDER_ID_SIZE)),
    ),
    "MessagePropertiesHeader": (
        core.MESSAGE_PROPERTIES_HEADER,
        (
            ("Flags", core.PROPERTIES_FLAGS),
            ("LabelLength", core.PROPERTIES_LABEL_LENGTH),
            ("BodyType", core.PROPERTIES_BODY_TYPE),
            ("MessageSize", core.PROPERTIES_MESSAGE_SIZE),
            ("HashAlgorithm", core.PROPERTIES_HASH_ALGORITHM),
            ("EncryptionAlgorithm", core.PROPERTIES_ENCRYPTION_ALGORITHM),
            ("ExtensionSize", core.PROPERTIES_EXTENSION_SIZE),
        ),
    ),
    "SessionHeader": (
        core.SESSION_HEADER,
        (("AckSequenceNumber", core.ACKS_SEQUENCE_NUMBER), ("WindowSize", core.ACKS_WINDOW_SIZE)),
    ),
}
OFFSETS = {  # where the headers of a captured packet begin
    "InternalHeader": 16,
    "EstablishConnectionHeader": 20,
    "ConnectionParametersHeader": 20,
    "SessionHeader": 20,
    "UserHeader": 16,
    "SecurityHeader": 92,
    "MessagePropertiesHeader": 136,
}


def test_captured_frames(c):
    with open("tests/vectors.json") as file:
        frames = json.load(file)["frames"]
    total = words(1)
    for frame in frames:
        raw = of_hex(frame["raw_hex"])
        for header, expected in frame["fields"].items():
            part, places = PLACES[header]
            offset = OFFSETS.get(header, 0)
            fields = words(c.part_words(part))
            assert c.unpack(part, fields, raw, offset, len(raw)) == core.OK, header
            for name, place in places:
                value = expected[name]
                assert fields[place] == (value["raw"] if isinstance(value, dict) else value), (header, name)
            out = bytearray(c.part_size(part))
            c.pack(part, fields, out, 0)
            assert out == raw[offset : offset + len(out)], header
        if "BaseHeader" in frame["fields"]:
            whole = frame["fields"]["BaseHeader"]["PacketSize"]
            status = core.OK if len(raw) >= whole else core.NEED_MORE
            assert c.frame(raw, 0, len(raw), total) == status
            assert total[0] == whole


# ---- what the specification works out ---------------------------------------------------------


def test_bits_of_the_worked_example(c):
    """behaviour.md 5.2"""
    s = words(core.SESSION_WORDS)
    h = words(c.part_words(core.SESSION_HEADER))
    c.session_init(s, 64)
    for recoverable in (1, 1, 1, 1, 1, 0, 0, 0, 0):
        c.session_received(s, recoverable)
        assert c.session_stored(s, recoverable) == core.OK
    c.session_fill(s, h)
    for recoverable, flags in ((0, 0), (1, 1), (1, 3), (0, 3), (1, 7)):
        c.session_received(s, recoverable)
        assert c.session_stored(s, recoverable) == core.OK
        assert s[core.SESSION_ACK_FLAGS] == flags
    assert c.session_unacked_received(s) == 5
    c.session_fill(s, h)
    assert list(h) == [14, 6, 7, 0, 0, 64, 0], h
    assert c.session_unacked_received(s) == 0
    for number, acked in ((5, True), (6, True), (7, True), (8, True), (9, False)):
        assert c.is_acked(6, 7, number) == acked
    c.session_fill(s, h)
    assert list(h) == [14, 0, 0, 0, 0, 64, 0], "nothing recoverable since: B-102, B-107"


def test_nothing_is_acknowledged_before_it_is_stored(c):
    s = words(core.SESSION_WORDS)
    h = words(c.part_words(core.SESSION_HEADER))
    c.session_init(s, 64)
    c.session_received(s, True)
    c.session_received(s, False)
    c.session_fill(s, h)
    assert (h[core.ACKS_SEQUENCE_NUMBER], h[core.ACKS_BASE], h[core.ACKS_FLAGS]) == (0, 0, 0)
    assert c.session_unacked_received(s) == 2
    c.session_stored(s, True)
    c.session_fill(s, h)
    assert (h[core.ACKS_SEQUENCE_NUMBER], h[core.ACKS_BASE], h[core.ACKS_FLAGS]) == (1, 1, 1)


def test_a_full_bit_field_asks_for_an_acknowledgement(c):
    s = words(core.SESSION_WORDS)
    h = words(c.part_words(core.SESSION_HEADER))
    c.session_init(s, 64)
    for _ in range(33):
        c.session_received(s, True)
    for _ in range(32):
        assert c.session_stored(s, True) == core.OK
    before = list(s)
    assert c.session_stored(s, True) == core.ACK_FIRST
    assert list(s) == before
    c.session_fill(s, h)
    assert (h[core.ACKS_SEQUENCE_NUMBER], h[core.ACKS_BASE], h[core.ACKS_FLAGS]) == (32, 1, 0xFFFFFFFF)
    assert c.session_stored(s, True) == core.OK
    c.session_fill(s, h)
    assert (h[core.ACKS_SEQUENCE_NUMBER], h[core.ACKS_BASE], h[core.ACKS_FLAGS]) == (33, 33, 1)


def test_counters_wrap(c):
    """Two ends exchange more than 65536 messages: nothing is refused, every number is acknowledged (B-090, A-23)."""
    a = words(core.SESSION_WORDS)
    b = words(core.SESSION_WORDS)
    h = words(c.part_words(core.SESSION_HEADER))
    c.session_init(a, 64)
    c.session_init(b, 64)
    for counts, places in (
        (a, (core.SESSION_SENT, core.SESSION_RECOVERABLE_SENT, core.SESSION_PEER_ACKED)),
        (
            b,
            (
                core.SESSION_RECEIVED,
                core.SESSION_RECOVERABLE_RECEIVED,
                core.SESSION_STORED,
                core.SESSION_RECOVERABLE_STORED,
                core.SESSION_ACKED,
                core.SESSION_RECOVERABLE_ACKED,
            ),
        ),
    ):
        for place in places:
            counts[place] = 0xFFF0
    assert c.serial_after(0, 0xFFFF)
    assert c.serial_after(0x7FFF, 0)
    assert not c.serial_after(0x8000, 0)
    assert not c.serial_after(0xFFFF, 0)
    assert not c.serial_after(7, 7)
    for _ in range(4):
        for _ in range(8):
            assert c.session_can_send(a)
            c.session_sent(a, True)
            c.session_received(b, True)
            assert c.session_stored(b, True) == core.OK
        sent = a[core.SESSION_RECOVERABLE_SENT]
        c.session_fill(b, h)
        assert c.session_check(a, h, False) == core.OK
        assert c.session_unacked_sent(a) == 0
        for k in range(8):
            assert c.is_acked(h[core.ACKS_BASE], h[core.ACKS_FLAGS], (sent - k) & 0xFFFF)
        assert not c.is_acked(h[core.ACKS_BASE], h[core.ACKS_FLAGS], (sent + 1) & 0xFFFF)
    assert a[core.SESSION_SENT] == 16


def test_windows_close(c):
    s = words(core.SESSION_WORDS)
    h = words(c.part_words(core.SESSION_HEADER))
    c.session_init(s, 3)
    for _ in range(3):
        assert c.session_can_send(s)
        c.session_sent(s, False)
    assert not c.session_can_send(s)
    h[core.ACKS_SEQUENCE_NUMBER] = 1
    h[core.ACKS_WINDOW_SIZE] = 2  # a peer that is short of memory says less (B-129, B-130)
    assert c.session_check(s, h, False) == core.OK
    assert not c.session_can_send(s)
    h[core.ACKS_SEQUENCE_NUMBER] = 2
    assert c.session_check(s, h, False) == core.OK
    assert c.session_can_send(s)
    h[core.ACKS_WINDOW_SIZE] = 0xFFFF
    assert c.session_check(s, h, False) == core.OK
    c.session_sent(s, False)
    c.session_sent(s, False)
    assert not c.session_can_send(s), "the peer's larger window does not lift ours"
    c.session_init(s, 0xFFFF)
    for _ in range(0x7FFF):
        c.session_sent(s, False)
    assert not c.session_can_send(s), "older and newer numbers must stay apart"


def test_session_headers_are_checked(c):
    s = words(core.SESSION_WORDS)
    c.session_init(s, 64)
    for _ in range(6):
        c.session_sent(s, True)
        c.session_received(s, True)
    before = list(s)

    def check(carried, *header):
        s[:] = array("I", before)
        return c.session_check(s, array("I", header), carried)

    for header in (
        (7, 0, 0, 6, 6, 64, 0),  # acknowledges a message never sent
        (6, 7, 1, 6, 6, 64, 0),  # base never sent
        (6, 5, 4, 6, 6, 64, 0),  # bit 2 is number 7
        (6, 0, 0x80000000, 6, 6, 64, 0),
    ):
        assert check(False, *header) == core.BAD_ACK_COUNT
        assert list(s) == before, "nothing is adopted"
    assert check(False, 6, 5, 2, 6, 6, 9, 0) == core.OK
    assert s[core.SESSION_PEER_ACKED] == 6
    assert s[core.SESSION_RECEIVED_WINDOW_SIZE] == 9
    for carried, sent, recoverable, status in (
        (0, 6, 6, core.OK),
        (0, 5, 6, core.BAD_MESSAGE_COUNT),
        (0, 6, 5, core.BAD_MESSAGE_COUNT),
        (0, 7, 6, core.BAD_MESSAGE_COUNT),
        (0, 5, 5, core.BAD_MESSAGE_COUNT),
        (1, 6, 6, core.OK),
        (1, 5, 5, core.OK),  # the header leaves its own packet out of its counts: OP-14
        (1, 5, 6, core.OK),
        (1, 6, 5, core.BAD_MESSAGE_COUNT),
        (1, 4, 4, core.BAD_MESSAGE_COUNT),
        (1, 5, 4, core.BAD_MESSAGE_COUNT),
        (1, 7, 7, core.BAD_MESSAGE_COUNT),
    ):
        assert check(carried, 4, 0, 0, sent, recoverable, 8, 0) == status, (carried, sent, recoverable)
        assert s[core.SESSION_PEER_ACKED] == 4
        assert s[core.SESSION_RECEIVED_WINDOW_SIZE] == 8
    assert c.session_check(s, array("I", (2, 0, 0, 6, 6, 8, 0)), False) == core.OK
    assert s[core.SESSION_PEER_ACKED] == 4, "an older header lowers nothing"
    before[core.SESSION_SENT] = before[core.SESSION_RECOVERABLE_SENT] = 40
    for base in range(7, 11):  # bit 31 names 38 to 41
        expected = core.BAD_ACK_COUNT if base + 31 > 40 else core.OK
        assert check(False, 40, base, 0x80000000, 6, 6, 64, 0) == expected, base
    before[core.SESSION_RECEIVED] = before[core.SESSION_RECOVERABLE_RECEIVED] = 0  # 65536 of them
    assert check(True, 40, 0, 0, 0xFFFF, 0xFFFF, 64, 0) == core.OK
    assert check(False, 40, 0, 0, 0xFFFF, 0xFFFF, 64, 0) == core.BAD_MESSAGE_COUNT


def test_acceptance_table(c):
    """behaviour.md 15.6; the stream has accepted (id 100, number 5)."""
    for ordinal, number, previous, accepted in (
        (100, 6, 5, True),
        (100, 5, 4, False),
        (100, 7, 6, False),
        (100, 8, 5, True),
        (100, 8, 3, True),
        (100, 3, 0, False),
        (101, 1, 0, True),
        (101, 4, 0, True),
        (101, 2, 1, False),
        (99, 9, 0, False),
    ):
        incoming = array("I", (100, 7, 5, 2))
        h = array("I", (0, ordinal, 7, number, previous))
        assert c.accept(incoming, h) == accepted, (ordinal, number, previous)
        assert list(incoming) == ([ordinal, 7, number, 0] if accepted else [100, 7, 5, 3])
    incoming = array("I", (0, 0, 0, 0))
    assert not c.accept(incoming, array("I", (0, 1, 7, 2, 1)))
    assert c.accept(incoming, array("I", (0, 1, 7, 1, 0)))


def test_sequence_ids_compare_as_64_bits(c):
    top = 0xFFFFFFFF
    for a, b, order in (
        ((1, 1), (1, 1), 0),
        ((top, 0), (0, 1), -1),
        ((0, top), (top, top - 1), 1),
        ((2, 5), (1, 5), 1),
    ):
        assert c.tx_compare(*(a + b)) == order
        assert c.tx_compare(*(b + a)) == -order


def test_numbers_are_given_once_and_acknowledged_in_order(c):
    outgoing = array("I", (0xFFFFFFFF, 7, 1, 0))
    h = array("I", (core.TX_FM | core.TX_LM, 0, 0, 0, 0))
    ack = words(c.part_words(core.ORDER_ACK))
    c.roll(outgoing)
    assert list(outgoing) == [0xFFFFFFFF, 7, 1, 0], "nothing was numbered: the sequence stays"
    for number in (1, 2, 3):
        assert c.stamp(outgoing, number - 1, h) == core.OK
        assert list(h) == [core.TX_FM | core.TX_LM, 0xFFFFFFFF, 7, number, number - 1]
    for ordinal, time_stamp, number, status in (
        (0xFFFFFFFF, 7, 4, core.IGNORED),
        (0xFFFFFFFF, 7, 2, core.OK),
        (0xFFFFFFFF, 7, 2, core.IGNORED),
        (0xFFFFFFFF, 7, 1, core.IGNORED),
        (0xFFFFFFFE, 7, 3, core.IGNORED),
        (0xFFFFFFFF, 6, 3, core.IGNORED),
        (0xFFFFFFFF, 8, 3, core.IGNORED),
        (0xFFFFFFFF, 7, 0, core.IGNORED),
        (0xFFFFFFFF, 7, 3, core.OK),
    ):
        ack[core.ACK_ORDINAL] = ordinal
        ack[core.ACK_TIME_STAMP] = time_stamp
        ack[core.ACK_NUMBER] = number
        before = list(outgoing)
        assert c.order_ack_received(outgoing, ack) == status, (ordinal, time_stamp, number)
        assert list(outgoing) == (before[:3] + [number] if status == core.OK else before)
    c.roll(outgoing)
    assert list(outgoing) == [0, 8, 1, 0], "Ordinal carries into TimeStamp, as in a 64-bit number"


def test_a_stream_fills_up(c):
    outgoing = array("I", (1, 7, 0xFFFFFFFE, 0))
    h = words(5)
    assert c.stamp(outgoing, 5, h) == core.OK
    assert h[core.TX_NUMBER] == 0xFFFFFFFE
    before = list(outgoing), list(h)
    assert c.stamp(outgoing, 0xFFFFFFFE, h) == core.STREAM_FULL
    assert (list(outgoing), list(h)) == before
    c.roll(outgoing)
    assert list(outgoing) == [2, 7, 1, 0]


def test_mistakes_are_refused(c):
    data = bytearray(64)
    total = words(1)
    session = words(core.SESSION_WORDS)
    c.session_init(session, 1)
    header = words(c.part_words(core.SESSION_HEADER))
    stream = array("I", (1, 7, 1, 0))
    transaction = words(5)
    for part in (-1, core.PARTS, 1 << 32):
        refused(c.part_size, part)
        refused(c.part_words, part)
        refused(c.unpack, part, words(20), data, 0, 64)
        refused(c.pack, part, words(20), data, 0)
    for part in range(core.PARTS):
        n = c.part_words(part)
        refused(c.unpack, part, words(n - 1), data, 0, 64)
        refused(c.pack, part, words(n - 1), data, 0)
        refused(c.pack, part, words(n), data, 65 - c.part_size(part))
        for offset, end in ((-1, 4), (0, 65), (5, 4), (1 << 70, 1 << 71)):
            refused(c.unpack, part, words(n), data, offset, end)
        assert c.unpack(part, words(n), data, 64, 64) == core.NEED_MORE
    refused(c.frame, data, 0, 65, total)
    refused(c.frame, data, -1, 16, total)
    refused(c.frame, data, 0, 64, words(0))
    for number in (-1, 0x10000):
        refused(c.serial_after, number, 0)
        refused(c.serial_after, 0, number)
        refused(c.is_acked, number, 1, 0)
        refused(c.is_acked, 0, 1, number)
        refused(c.packet_total, number, 20)
    refused(c.packet_total, 0, core.PACKET_SIZE_MAX + 1)
    for number in (-1, 1 << 32, 1 << 70):
        refused(c.is_acked, 0, number, 0)
        for place in range(4):
            numbers = [0, 0, 0, 0]
            numbers[place] = number
            refused(c.tx_compare, *numbers)
    for window_size in (0, -1, 0x10000):
        refused(c.session_init, session, window_size)
    short = words(core.SESSION_WORDS - 1)
    refused(c.session_init, short, 1)
    for function in (c.session_can_send, c.session_unacked_received, c.session_unacked_sent):
        refused(function, short)
    for function in (c.session_sent, c.session_received, c.session_stored):
        refused(function, short, False)
    refused(c.session_fill, short, header)
    refused(c.session_fill, session, words(6))
    refused(c.session_check, short, header, False)
    refused(c.session_check, session, words(6), False)
    refused(c.session_stored, session, False)
    c.session_received(session, False)
    refused(c.session_stored, session, True)
    refused(c.accept, words(3), transaction)
    refused(c.accept, stream, words(4))
    refused(c.stamp, words(3), 0, transaction)
    refused(c.stamp, stream, 0, words(4))
    for previous in (1, -1, 1 << 32):
        refused(c.stamp, stream, previous, transaction)
    refused(c.stamp, array("I", (1, 7, 0, 0)), 0, transaction)
    refused(c.order_ack_received, words(3), words(9))
    refused(c.order_ack_received, stream, words(8))
    refused(c.roll, words(3))
    out = bytearray(b"it stays")
    for at, begin, end in ((0, 0, 5), (0, 3, 2), (-1, 0, 1), (7, 0, 2), (9, 0, 0), (1 << 40, 0, 1)):
        refused(c.copy, out, at, b"data", begin, end)
    for at, begin, end in ((5, 0, 1), (-1, 0, 1), (0, 0, 9), (0, 3, 2), (0, -1, 2)):
        refused(c.put_crc, out, at, begin, end, 0)
    assert out == b"it stays"
    for at, begin, end in ((0, 0, 5), (0, 2, 1), (1, 0, 2), (-1, 0, 1)):
        refused(c.put_words, bytearray(8), at, words(4), begin, end)
    refused(c.copy_words, words(3), words(4))
    for count in (-1, 3):
        refused(c.drop, [1, 2], count)
    for value in (-1, 1 << 32):
        refused(c.put_crc, bytearray(8), 0, 0, 4, value)


def test_memory_is_moved(c):
    for at, begin, end in ((0, 0, 4), (4, 0, 4), (3, 1, 3), (8, 4, 4)):
        for data in (b"data", bytearray(b"data"), memoryview(b"data")):
            out = bytearray(b"........")
            c.copy(out, at, data, begin, end)
            assert out == b"........"[:at] + b"data"[begin:end] + b"........"[at + end - begin :]
    part = memoryview(out)[2:5]
    c.copy(part, 1, b"xyz", 1, 3)
    assert out == b"...yz..."
    c.copy(out, 0, out, 3, 5)
    assert out == b"yz.yz..."
    numbers = array("I", (1, 0x80000002, 0xFFFFFFFF, 4))
    out = bytearray(14)
    c.put_words(out, 1, numbers, 0, 3)
    assert out[:13] == b"\0" + struct.pack("<III", 1, 0x80000002, 0xFFFFFFFF)
    c.put_words(out, 10, numbers, 3, 4)
    c.put_words(out, 14, numbers, 4, 4)
    assert out == b"\0" + struct.pack("<IIB", 1, 0x80000002, 0xFF) + struct.pack("<I", 4)
    longer = array("I", (5, 6, 7, 8, 9))
    c.copy_words(longer, numbers)
    assert longer == array("I", (1, 0x80000002, 0xFFFFFFFF, 4, 9))


def test_the_first_of_a_list_go(c):
    for size in range(6):
        for count in range(size + 1):
            items = list(range(size))
            c.drop(items, count)
            assert items == list(range(count, size))
            items.extend("ab")
            assert items == list(range(count, size)) + ["a", "b"]


def test_sums_are_those_of_zlib(c):
    data = bytearray(b"....123456789")
    c.put_crc(data, 0, 4, 13, 0)
    assert data == struct.pack("<I", 0xCBF43926) + b"123456789"  # the check value in every list of CRCs
    c.put_crc(data, 0, 4, 8, 0)
    first = struct.unpack_from("<I", data, 0)[0]
    c.put_crc(data, 0, 8, 13, first)
    assert struct.unpack_from("<I", data, 0)[0] == 0xCBF43926
    c.put_crc(data, 9, 0, 0, 0x89ABCDEF)
    assert data[4:] == b"12345" + struct.pack("<I", 0x89ABCDEF)


def nothing_is_allocated(c):
    """On a board a core in C allocates nothing, whatever the result."""
    fields = words(6)
    raw = of_hex("10C00B004C494F5224000000FFFFFFFF")
    out = bytearray(16)
    total = words(1)
    session = words(core.SESSION_WORDS)
    header = words(7)
    outgoing = array("I", (1, 7, 1, 0))
    transaction = words(5)
    incoming = words(4)
    ack = words(9)
    large = array("I", (0xFFFFFFFF, 0x80000000))
    items = [1, 2, 3]
    seed = 0x9ABCDEF0
    c.session_init(session, 64)
    gc.collect()
    gc.disable()
    before = gc.mem_alloc()
    c.unpack(0, fields, raw, 0, 16)
    c.unpack(0, fields, raw, 0, 15)
    c.pack(0, fields, out, 0)
    c.frame(raw, 0, 16, total)
    c.session_sent(session, True)
    c.session_received(session, True)
    c.session_stored(session, True)
    c.session_fill(session, header)
    c.session_check(session, header, False)
    c.session_can_send(session)
    c.is_acked(1, 3, 2)
    c.stamp(outgoing, 0, transaction)
    c.accept(incoming, transaction)
    c.order_ack_received(outgoing, ack)
    c.roll(outgoing)
    c.copy(out, 1, raw, 2, 5)
    c.copy_words(header, outgoing)
    c.drop(items, 2)
    c.put_words(out, 0, large, 0, 2)
    c.put_crc(out, 0, 4, 12, seed)
    used = gc.mem_alloc() - before
    gc.enable()
    assert used == 0, used


def free_memory_is_counted(c):
    """As the collector counts it; the call may take or give a few blocks in between."""
    if hasattr(c, "heap_free"):
        gc.collect()
        gc.disable()
        before, counted, after = gc.mem_free(), c.heap_free(), gc.mem_free()
        gc.enable()
        assert after <= counted <= before, (before, counted, after)


CHECKS = tests_of(globals())


def main():
    print("core:", core.implementation)
    runs = [(check, c) for check in CHECKS for c in CORES]
    if NATIVE is not None and sys.implementation.name == "micropython":
        runs += [(nothing_is_allocated, NATIVE), (free_memory_is_counted, NATIVE)]
    run_calls(("{} {}".format(check.__name__, c.__name__), check, (c,), {}) for check, c in runs)


if __name__ == "__main__":
    main()
