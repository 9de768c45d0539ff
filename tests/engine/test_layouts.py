"""Packets there and back, every layout of wire.md byte by byte, and what a caller may give."""

import struct
import tracemalloc
from array import array
from typing import Any

import packet_build
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqqb import acks, build, compose, connection, core, handshake, headers, names, parse, rare
from mqqb.guids import DistributionListFormatName, format_name, guid_bytes, guid_text, parse_format_name
from mqqb.handshake import build_ping, parse_ping
from mqqb.headers import PrivateQueueFormatName, PrivateQueueFormatNameId, PublicQueueFormatName
from mqqb.names import DirectQueueFormatName, utf16_decode, utf16_encode

from tests.conformance import ROOT
from tests.support.layouts import acknowledgments, guids, internal_packets, short_texts, u16, u32, user_messages

FRAMES = samples.frames(str(ROOT / "tests/vectors.json"))
FULL = bytes(packet_build.build(samples.full_message()))
GUID = bytes(range(16))
DIRECT = samples.DIRECT

# ---- the captured frames ------------------------------------------------------------------------


@pytest.mark.rule("A-47", "B-005", "B-168", "B-174", "B-177", "A-51", "OP-1", "OP-5", "OP-20", "OP-23")
@pytest.mark.parametrize("number", sorted(FRAMES))
def test_captured_frames_are_written_as_they_were_read(number: int) -> None:
    assert samples.reparse(FRAMES[number]) == FRAMES[number]


# ---- there and back -----------------------------------------------------------------------------


@pytest.mark.rule("B-430", "B-169", "B-177", "OP-2", "OP-21", "OP-22", "B-394", "B-259")
@settings(max_examples=60)
@given(
    message=user_messages(),
    offset=st.integers(0, 9),
    behind=st.binary(max_size=40),
    message_class=u16,
    hops=st.integers(0, core.HOP_COUNT_MAX),
)
def test_user_messages_come_back_as_the_same_bytes(
    message: headers.UserMessage, offset: int, behind: bytes, message_class: int, hops: int
) -> None:
    """From wherever they stand; and class and hop count change alone."""
    raw = bytes(packet_build.build(message))
    data = bytes(offset) + raw + behind
    assert packet_build.build(parse.parse(data, offset)) == raw
    again = parse.parse(memoryview(data), offset, offset + len(raw))
    assert packet_build.build(again) == raw
    assert isinstance(again, headers.UserMessage)
    assert again.properties.label == message.properties.label
    assert bytes(again.properties.body) == message.properties.body
    assert bytes(again.trailing) == message.trailing
    assert again.user.connector_type == message.user.connector_type
    if message.multi_queue_format and again.multi_queue_format:
        names = [name.raw for name in message.multi_queue_format.destination.elements()]
        assert [name.raw for name in again.multi_queue_format.destination.elements()] == names
    with pytest.raises(parse.NeedMore) as more:
        parse.parse(data, offset, offset + len(raw) - 1)
    assert more.value.total in (len(raw), 16)
    at = parse.transaction_offset(raw)
    assert bool(at) == (message.transaction is not None)
    if message.transaction is not None:
        fields = array("I", bytes(20))
        assert core.unpack(core.TRANSACTION_HEADER, fields, raw, at, len(raw)) == core.OK
        assert fields == message.transaction.fields
    changed = bytearray(raw)
    build.set_message_class(changed, message_class)
    build.set_hop_count(changed, hops)
    message.properties.message_class = message_class
    message.user.flags = message.user.flags & ~core.USER_RC | hops
    assert changed == packet_build.build(message)


@pytest.mark.rule("B-174", "B-433")
@given(packet=internal_packets())
def test_internal_packets_come_back_as_the_same_bytes(packet: Any) -> None:
    raw = packet_build.build(packet)
    again = parse.parse(raw)
    assert type(again) is type(packet)
    assert packet_build.build(again) == raw


@pytest.mark.rule("B-175", "B-176", "B-357", "A-37")
@given(raw=acknowledgments())
def test_acknowledgments_come_back_as_the_same_bytes(raw: bytearray) -> None:
    again = parse.parse(raw)
    assert isinstance(again, connection.OrderAck | headers.FinalAck)
    assert packet_build.build(again) == raw


@given(flags=u16, cookie=u32, guid=guids)
def test_pings_come_back_as_the_same_bytes(flags: int, cookie: int, guid: bytes) -> None:
    raw = struct.pack("<HHI", flags, 0x5548, cookie) + guid
    ping = parse_ping(raw)
    assert (ping.flags, ping.cookie, ping.qm_guid) == (flags, cookie, guid)
    assert build_ping(ping) == raw


def test_a_body_is_a_view_of_the_data_and_no_copy() -> None:
    raw = build.user_message(GUID, 1, DIRECT, bytes(3 << 20))
    tracemalloc.start()
    message = parse.parse(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(message, headers.UserMessage)
    assert len(message.properties.body) == 3 << 20
    assert peak < 16384


# ---- layouts, byte by byte, from wire.md --------------------------------------------------------


@pytest.mark.rule("OP-1", "A-51", "B-078", "B-005")
def test_a_transactional_message_byte_by_byte() -> None:
    expected = b"".join([
        struct.pack("<BBHIII", 0x10, 0, 0x0010, 0x524F494C, 176, 60),  # 176 is without the SessionHeader
        GUID, bytes(16), struct.pack("<IIII", 0xFFFFFFFF, 1700000000, 9, 0x00301C20),
        struct.pack("<H", 18), "OS:box\\q\0".encode("utf-16-le"),
        struct.pack("<IIIII", 0x000ABC0C, 3, 1600000000, 7, 6),
        struct.pack("<BBH", 4, 3, 0x8002), bytes(range(20)),
        struct.pack("<IIIIIIII", 8, 5, 7, 7, 0, 0x8004, 0x6801, 3), "hi\0".encode("utf-16-le"), b"EXT", b"content",
        struct.pack("<HHIHHHH", 1, 2, 3, 4, 5, 64, 0),
    ])  # fmt: skip
    assert len(expected) == 192
    message = parse.parse(expected)
    assert isinstance(message, headers.UserMessage)
    assert (message.base.packet_size, message.base.time_to_reach_queue) == (176, 60)
    user, transaction, properties, session = message.user, message.transaction, message.properties, message.session
    assert (user.source_queue_manager, user.queue_manager_address) == (GUID, bytes(16))
    assert (user.time_to_be_received, user.sent_time, user.message_id) == (0xFFFFFFFF, 1700000000, 9)
    assert user.destination_queue is not None
    assert format_name(user.destination_queue) == "DIRECT=OS:box\\q"
    assert transaction is not None
    assert (transaction.flags, transaction.tx_sequence_id) == (0xABC0C, 1600000000 << 32 | 3)
    assert (transaction.tx_sequence_number, transaction.previous_tx_sequence_number) == (7, 6)
    assert (properties.flags, properties.message_class, properties.correlation_id) == (4, 0x8002, bytes(range(20)))
    assert (properties.body_type, properties.application_tag, properties.label) == (8, 5, "hi")
    assert (bytes(properties.extension), bytes(properties.body)) == (b"EXT", b"content")
    assert session is not None
    assert list(session.fields) == [1, 2, 3, 4, 5, 64, 0]
    assert session.recoverable_msg_sequence_number == 5
    assert parse.transaction_offset(expected) == 84
    assert packet_build.build(message) == expected


@pytest.mark.rule("B-175", "B-356", "B-357", "B-358", "B-361", "B-364", "OP-6", "OP-26")
def test_an_order_ack_byte_by_byte() -> None:
    name = "TCP:10.0.0.1\\PRIVATE$\\order_queue$\0".encode("utf-16-le")
    label = "QM Ordering Ack\0".encode("utf-16-le")
    expected = b"".join([
        struct.pack("<BBHIII", 0x10, 0, 0, 0x524F494C, 260, 0xFFFFFFFF),
        GUID, bytes(16), struct.pack("<IIII", 0xFFFFFFFF, 1700000000, 9, 0x00201C00),
        struct.pack("<H", len(name)), name,
        struct.pack("<BBH", 0, 16, 0x00FF), bytes(20),
        struct.pack("<IIIIIIII", 0, 0, 36, 36, 0, 0x8004, 0x6801, 0), label,
        struct.pack("<IIII", 3, 4, 7, 6), bytes(20),
    ])  # fmt: skip
    made = acks.order_ack(acks.order_queue("10.0.0.1"), GUID, 9, 1700000000, 3, 4, 7)
    assert made == expected
    packet = parse.parse(made)
    assert isinstance(packet, connection.OrderAck)
    body = packet.body
    assert (body.tx_sequence_id, body.tx_sequence_number, body.tx_previous_sequence_number) == (4 << 32 | 3, 7, 6)


@pytest.mark.rule("B-176", "B-356", "B-357", "B-360", "B-362", "B-364", "A-37")
def test_a_final_ack_byte_by_byte() -> None:
    label = "QM Ordering Ack\0".encode("utf-16-le")
    expected = b"".join([
        struct.pack("<BBHIII", 0x10, 0, 0, 0x524F494C, 192, 0xFFFFFFFF),
        GUID, samples.RECEIVER, struct.pack("<IIII", 0xFFFFFFFF, 1700000000, 9, 0x00200C20), struct.pack("<I", 4),
        struct.pack("<BBH", 0, 16, 0x8005), bytes(20),
        struct.pack("<IIIIIIII", 0, 0, 36, 36, 0, 0x8004, 0x6801, 0), label,
        struct.pack("<IIII", 3, 4, 7, 5), samples.RECEIVER, struct.pack("<I", 99),
    ])  # fmt: skip
    name = PrivateQueueFormatNameId(4)
    made = acks.final_ack(name, GUID, 9, 1700000000, 3, 4, 7, 5, samples.RECEIVER, 99, 0x8005, address=samples.RECEIVER)
    assert made == expected
    packet = parse.parse(made)
    assert isinstance(packet, headers.FinalAck)
    body = packet.body
    assert (body.tx_sequence_id, body.tx_sequence_number, body.previous_tx_sequence_number) == (4 << 32 | 3, 7, 5)
    assert (body.source_guid, body.message_id) == (samples.RECEIVER, 99)


@pytest.mark.rule("B-204", "B-208", "B-213")
def test_handshake_packets_byte_by_byte() -> None:
    made = compose.establish_connection(GUID, samples.RECEIVER, 5, 0x0110, True)
    head = struct.pack("<BBHIIIHH", 0x10, 0, 0x000B, 0x524F494C, 572, 0xFFFFFFFF, 0, 0x0012)
    assert made == head + GUID + samples.RECEIVER + struct.pack("<IHH", 5, 0x0110, 0) + b"\x5a" * 512
    head = struct.pack("<BBHIIIHH", 0x10, 0, 0x000B, 0x524F494C, 32, 0xFFFFFFFF, 0, 3)
    assert compose.connection_parameters(500, 120000, 64) == head + struct.pack("<IIHH", 500, 120000, 0, 64)
    head = struct.pack("<BBHIIIHH", 0x10, 0, 0x001B, 0x524F494C, 36, 0xFFFFFFFF, 0, 1)
    fields = array("I", [1, 2, 3, 4, 5, 64, 0])
    assert compose.session_ack(fields) == head + struct.pack("<HHIHHHH", 1, 2, 3, 4, 5, 64, 0)


def test_a_debug_and_a_soap_header_byte_by_byte() -> None:
    message = samples.full_message()
    raw = bytes(packet_build.build(message))
    debug = struct.pack("<HH", 1, 0) + samples.RECEIVER
    soap = b"".join([
        struct.pack("<HHI", 0x0320, 0, 8), "<head/>\0".encode("utf-16-le"),
        struct.pack("<HHI", 0x0384, 0, 9), "<body/>!\0".encode("utf-16-le"), bytes(2),
    ])  # fmt: skip
    assert debug + soap in raw
    name = "TCP:10.0.0.5\\private$\\line1\0".encode("utf-16-le")
    elements = b"".join([
        b"\3\0", name,  # 58 bytes, so that the next FormatType ends on a 4-byte boundary
        b"\1\0", samples.RECEIVER,
        b"\2\0", bytes(2), GUID, struct.pack("<I", 9),
        b"\6\0", bytes(2), GUID,
    ])  # fmt: skip
    assert struct.pack("<IHHI", 12 + len(elements), 0x0064, 0, 4) + elements in raw
    assert struct.pack("<IHHI", 12, 0x00C8, 0, 0) + struct.pack("<IHHI", 14 + len(name), 0x012C, 0, 1) in raw
    assert struct.pack("<HHI", 0x015E, 0, 3) + b"sig\0" in raw


# ---- what a caller may not do -------------------------------------------------------------------


@pytest.mark.rule("OP-30")
@pytest.mark.parametrize(
    "values",
    [
        {"source": b"short"},
        {"message_id": 1 << 32},
        {"message_id": -1},
        {"body": bytes(4 << 20)},
        {"label": "x" * 250},
        {"label": "a\0b"},
        {"priority": 8},
        {"delivery": "fast"},
        {"ttrq": -1},
        {"journal": 1},
        {"acknowledge": 256},
        {"correlation": b"short"},
        {"destination": PrivateQueueFormatName(GUID, 1)},
        {"destination": DistributionListFormatName(GUID)},
    ],
)
def test_user_message_refuses(values: dict[str, Any]) -> None:
    arguments = {"source": GUID, "message_id": 1, "destination": DIRECT, "body": b""} | values
    with pytest.raises(ValueError):
        build.user_message(**arguments)


def test_other_builders_refuse() -> None:
    with pytest.raises(ValueError):
        acks.final_ack(DIRECT, GUID, 1, 1, 1, 1, 1, 0, GUID, 1, 0x00FF)
    with pytest.raises(ValueError):
        acks.order_ack(DIRECT, GUID, 1, 1, 1, 1, 0)
    packet = parse.parse(FRAMES[3])
    assert isinstance(packet, handshake.EstablishConnection)
    packet.padding = b"short"
    with pytest.raises(ValueError):
        packet_build.build(packet)
    with pytest.raises(ValueError):
        rare.MQFAddressHeader([PrivateQueueFormatNameId(1)])
    message = parse.parse(FULL)
    assert isinstance(message, headers.UserMessage)
    with pytest.raises(ValueError, match="not a u32"):
        message.user.message_id = 1 << 32
    message.properties.correlation_id = b"short"
    with pytest.raises(ValueError, match="20 bytes"):
        packet_build.build(message)
    message.trailing = bytes(core.PACKET_SIZE_MAX)
    with pytest.raises(ValueError, match="4194304"):
        packet_build.build(message)


@pytest.mark.rule("B-317")
def test_user_message_fills_given_fields() -> None:
    raw = build.user_message(
        GUID, 7, PublicQueueFormatName(GUID), b"body", "label", 5, "recoverable", 60, 70, 80,
        core.USER_JN | core.USER_JP, 0x0C, PrivateQueueFormatNameId(3), PrivateQueueFormatNameId(4),
        bytes(20), 2, 8, 9, b"ext", samples.RECEIVER,
    )  # fmt: skip
    message = parse.parse(raw)
    assert isinstance(message, headers.UserMessage)
    user, properties = message.user, message.properties
    assert (message.base.flags, message.base.time_to_reach_queue, user.time_to_be_received) == (5, 60, 70)
    assert user.flags == 0x00200000 | 5 << 10 | 2 << 13 | 2 << 16 | 0x300 | 0x20
    assert (user.sent_time, user.queue_manager_address) == (80, samples.RECEIVER)
    assert isinstance(user.destination_queue, PublicQueueFormatName)
    assert user.destination_queue.public_queue_identifier == GUID
    assert (properties.flags, properties.message_class, properties.body_type) == (0x0C, 2, 8)
    assert (properties.application_tag, bytes(properties.extension)) == (9, b"ext")
    assert (properties.hash_algorithm, properties.encryption_algorithm) == (0x8004, 0x6801)
    assert parse.transaction_offset(raw) == 0
    assert parse.transaction_offset(FRAMES[3]) == 0
    transactional = build.user_message(GUID, 7, DIRECT, b"", priority=5, delivery="transactional")
    assert transactional[2] & core.BASE_PR == 0


# ---- texts, GUIDs, names ------------------------------------------------------------------------


@example(text="\U0001f600\ud83d", raw="\U0001f600\ud83d".encode("utf-16-le", "surrogatepass"))
@given(text=st.text(st.characters(codec=None)), raw=st.binary(max_size=40))
def test_utf_16_by_hand_is_utf_16(text: str, raw: bytes) -> None:
    raw = raw[: len(raw) & ~1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "MICROPYTHON", True)
        encoded, decoded = utf16_encode(text), utf16_decode(raw)
        assert utf16_encode(decoded) == raw
    assert encoded == utf16_encode(text) == text.encode("utf-16-le", "surrogatepass")
    assert decoded == utf16_decode(raw) == raw.decode("utf-16-le", "surrogatepass")
    assert utf16_encode(decoded) == raw


@given(guid=guids)
def test_guid_texts(guid: bytes) -> None:
    text = guid_text(guid)
    assert guid_bytes(text) == guid
    assert guid_bytes(text[1:-1].lower()) == guid


def test_a_guid_text_is_that_of_the_document() -> None:
    assert guid_text(FRAMES[1][8:]) == "{557358D1-9150-9595-4997-B6E611EA26C6}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "557358D1-9150-9595-4997-B6E611EA26C",
        "{557358D1-9150-9595-4997-B6E611EA26CG}",
        "+57358D1-9150-9595-4997-B6E611EA26C6",
        "{557358D1-9150-9595-4997-B6E611EA26C6",
    ],
)
def test_invalid_guid_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        guid_bytes(text)


@pytest.mark.parametrize(
    "text",
    [
        "DIRECT=TCP:10.0.0.5\\private$\\line1",
        "DIRECT=OS:box\\queue",
        "DIRECT=OS:box\\queue;JOURNAL",
        "DIRECT=HTTP://box/msmq/private$/q",
        "DIRECT=IPX:1234:5678\\q",
        "PUBLIC=557358D1-9150-9595-4997-B6E611EA26C6",
        "PRIVATE=557358D1-9150-9595-4997-B6E611EA26C6\\0000001F",
    ],
)
def test_format_names_there_and_back(text: str) -> None:
    assert format_name(parse_format_name(text)) == text


def test_private_queue_by_number_is_named_with_host_guid() -> None:
    name = PrivateQueueFormatNameId(0x1F)
    assert format_name(name, GUID) == "PRIVATE=03020100-0504-0706-0809-0A0B0C0D0E0F\\0000001F"
    assert parse_format_name("direct=os:box\\q").raw == utf16_encode("os:box\\q\0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DIRECT",
        "DIRECT=",
        "DIRECT=TCP:",
        "DIRECT=TCP:1.2.3.4",
        "DIRECT=TCP:1.2.3.4\\",
        "DIRECT=TCP:\\q",
        "DIRECT=FTP:x\\q",
        "DIRECT=OS:x\\private$\\",
        "DIRECT=OS:x\\a\\b",
        "DIRECT=OS:x\\" + "q" * 125,
        "DIRECT=OS:x\\a\x00b",
        "PUBLIC=1",
        "queue",
        "PRIVATE=557358D1-9150-9595-4997-B6E611EA26C6",
        "PRIVATE=557358D1-9150-9595-4997-B6E611EA26C6\\123456789",
        "PRIVATE=557358D1-9150-9595-4997-B6E611EA26C6\\xyz",
    ],
)
def test_invalid_format_name_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        parse_format_name(text)
    with pytest.raises(ValueError):
        names.parse_format_name(text)


@pytest.mark.parametrize("text", ["", "x" * 32767])
def test_a_direct_name_has_to_fit_its_count(text: str) -> None:
    with pytest.raises(ValueError):
        DirectQueueFormatName(text)


def test_a_guid_has_16_bytes() -> None:
    with pytest.raises(ValueError):
        PublicQueueFormatName(b"short")


# ---- drafts -------------------------------------------------------------------------------------


def write(draft: compose.Draft, message_id: int, body: bytes | memoryview, label: str = "", *more: int) -> bytearray:
    packet = bytearray(draft.size(len(body), label))
    assert draft.write_into(packet, 0, message_id, body, label, *more) == len(packet)
    return packet


@settings(max_examples=50)
@given(
    names=st.lists(short_texts, min_size=1, max_size=3),
    body=st.binary(max_size=70),
    label=st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), max_size=20),
    numbers=st.tuples(u32, u32, u32, u32),
    journal=st.sampled_from((0, core.USER_JN, core.USER_JP, core.USER_JN | core.USER_JP)),
)
def test_draft_writes_same_packet_as_user_message(
    names: list[str], body: bytes, label: str, numbers: tuple[int, int, int, int], journal: int
) -> None:
    message_id, ttrq, ttbr, sent_time = numbers
    for name in names:
        queue = DirectQueueFormatName(name)
        draft = compose.Draft(GUID, queue)
        for text in (label, label, ""):
            packet = write(draft, message_id, body, text, ttrq, ttbr, sent_time, journal)
            assert packet == build.user_message(
                GUID, message_id, queue, body, label=text, delivery="transactional", ttrq=ttrq, ttbr=ttbr,
                sent_time=sent_time, journal=journal,
            )  # fmt: skip
            assert parse.transaction_offset(packet) == draft.transaction_at
            assert draft.size(len(body), text) == len(packet)
            buffer = bytearray(b"\xff" * (len(packet) + 9))
            arguments = (message_id, body, text, ttrq, ttbr, sent_time, journal)
            assert draft.write_into(buffer, 5, *arguments) == len(packet)
            assert buffer == b"\xff" * 5 + packet + b"\xff" * 4
            head = packet[: draft.head_size]
            buffer = bytearray(b"\xff" * (5 + len(head)))
            if body:
                assert draft.write_into(buffer, 5, *arguments) == len(packet)
                assert buffer == b"\xff" * 5 + head, "it does not fit"


def test_a_draft_refuses() -> None:
    draft = compose.Draft(GUID, DIRECT)
    for values in ({"ttrq": -1}, {"ttbr": 1 << 32}, {"sent_time": 1 << 32}, {"message_id": -1}):
        with pytest.raises(ValueError, match="not a u32"):
            draft.write_into(bytearray(500), 0, **({"message_id": 1, "body": b""} | values))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4194304"):
        write(draft, 1, memoryview(bytes(core.PACKET_SIZE_MAX)))
    largest = core.PACKET_SIZE_MAX - len(write(draft, 1, b""))
    assert len(write(draft, 1, bytes(largest))) == core.PACKET_SIZE_MAX
    with pytest.raises(ValueError, match="first NUL"):
        write(draft, 1, b"", label="a\0")
    with pytest.raises(ValueError, match="out of range"):
        write(draft, 1, b"", label="a" * 251)
