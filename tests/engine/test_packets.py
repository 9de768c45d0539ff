"""Packets: every layout of wire.md, both ways, and what malformed input comes to."""

import importlib
import struct
import sys
import tracemalloc
from array import array
from typing import Any

import mqqb
import packet_build
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mqqb import acks, build, compose, connection, core, handshake, headers, names, parse, rare
from mqqb.guids import DistributionListFormatName, format_name, guid_bytes, guid_text, parse_format_name
from mqqb.headers import PrivateQueueFormatName, PrivateQueueFormatNameId, PublicQueueFormatName
from mqqb.names import DirectQueueFormatName, utf16_decode, utf16_encode
from mqqb.ping import build as build_ping
from mqqb.ping import parse as parse_ping

from tests.conformance import ROOT
from tests.support.layouts import (
    acknowledgments,
    guids,
    internal_packets,
    short_texts,
    u8,
    u16,
    u32,
    user_messages,
)

HOSTS = ("build", "handshake", "ping", "problems", "rare")
FRAMES = samples.frames(str(ROOT / "tests/vectors.json"))
FULL = bytes(packet_build.build(samples.full_message()))
GUID = bytes(range(16))
DIRECT = samples.DIRECT

# ---- strategies ---------------------------------------------------------------------------------


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


# ---- what is malformed --------------------------------------------------------------------------


def malformed(raw: bytes | bytearray) -> core.Malformed:
    with pytest.raises(core.Malformed) as caught:
        parse.parse(raw)
    assert str(caught.value).startswith(caught.value.field)
    return caught.value


def patched(raw: bytes | bytearray, at: int, form: str, *values: int) -> bytearray:
    copy = bytearray(raw)
    struct.pack_into("<" + form, copy, at, *values)
    return copy


SMALL = bytes(build.user_message(GUID, 1, DIRECT, b"12345678", label="L"))
PROPERTIES_AT = 64 + len(DIRECT.wire())
TRANSACTIONAL = bytes(build.user_message(GUID, 1, DIRECT, b"12345678", delivery="transactional"))
ORDER_ACK = bytes(acks.order_ack(PrivateQueueFormatNameId(4), GUID, 1, 1, 1, 1, 1))
ACK_AT = 68
PARAMETERS = FRAMES[5]


@pytest.mark.rule("B-168", "B-169", "B-170", "B-171", "B-173", "B-213", "B-106", "B-429", "B-433", "A-51", "OP-30")
@pytest.mark.parametrize(
    ("raw", "rule", "field"),
    [
        (patched(SMALL, 0, "B", 0x11), "B-168", "BaseHeader.VersionNumber"),
        (patched(SMALL, 4, "I", 0x4C494F52), "B-168", "BaseHeader.Signature"),
        (patched(SMALL, 8, "I", 119), "B-429", "BaseHeader.PacketSize"),
        (patched(SMALL, 8, "I", 0x00400001), "B-429", "BaseHeader.PacketSize"),
        (patched(SMALL, 8, "I", 0xFFFFFFFF), "B-429", "BaseHeader.PacketSize"),
        (patched(SMALL, 8, "I", len(SMALL) - 4), "B-432", "MessagePropertiesHeader.AllocationBodySize"),
        (patched(SMALL, 2, "H", core.BASE_TR), "wire.md 2.1", "BaseHeader.Flags"),
        (patched(PARAMETERS, 18, "H", 0), "B-170", "InternalHeader.Flags"),
        (patched(PARAMETERS, 18, "H", 4), "B-170", "InternalHeader.Flags"),
        (patched(PARAMETERS, 18, "H", 2), "B-433", "BaseHeader.PacketSize"),
        (patched(PARAMETERS, 18, "H", 1), "B-174", "BaseHeader.Flags"),
        (patched(PARAMETERS + bytes(4), 8, "I", 36), "B-433", "BaseHeader.PacketSize"),
        (patched(PARAMETERS, 20, "I", 499), "B-213", "ConnectionParametersHeader.RecoverableAckTimeout"),
        (patched(PARAMETERS, 24, "I", 120001), "B-213", "ConnectionParametersHeader.AckTimeout"),
        (patched(FRAMES[3] + bytes(4), 8, "I", 576), "B-433", "BaseHeader.PacketSize"),
        (patched(FRAMES[3], 56, "H", 0x0311), "wire.md 5.2", "EstablishConnectionHeader.OperatingSystem"),
        (patched(FRAMES[8] + bytes(4), 8, "I", 40), "B-433", "BaseHeader.PacketSize"),
        (patched(FRAMES[8], 18, "H", 0x11), "wire.md 5.4", "InternalHeader.Flags"),
        (patched(FRAMES[8], 32, "H", 0), "B-106", "SessionHeader.WindowSize"),
        (patched(TRANSACTIONAL, 60, "I", 0x00301C00), "B-173", "UserHeader.Flags"),
        (patched(ORDER_ACK, ACK_AT + 32, "I", 35), "B-179", "MessagePropertiesHeader.MessageSize"),
    ],
)
def test_each_check_names_its_rule_and_field(raw: bytearray, rule: str, field: str) -> None:
    error = malformed(raw)
    assert (error.rule, error.field) == (rule, field)


@pytest.mark.rule("B-429", "B-430", "B-169")
@pytest.mark.parametrize("raw", [*FRAMES.values(), FULL, TRANSACTIONAL, ORDER_ACK])
def test_every_truncation_waits_for_the_rest(raw: bytes) -> None:
    if len(raw) == 24:
        for size in range(24):
            with pytest.raises(core.Malformed):
                parse_ping(raw[:size])
        return
    for size in range(len(raw)):
        assert samples.outcome(raw[:size]) == "more"


@pytest.mark.rule("B-429", "B-430", "B-436")
def test_a_packet_size_too_small_for_the_headers_is_malformed_at_every_byte() -> None:
    message = samples.full_message()
    message.session = None
    message.trailing = b""
    raw = bytes(packet_build.build(message))
    for size in range(120, len(raw) - 3):  # only the signature's padding can be missing (OP-10)
        malformed(patched(raw[:size], 8, "I", size))
    for size in range(16, 120):
        assert malformed(patched(raw[:size], 8, "I", size)).field == "BaseHeader.PacketSize"


# (offset, bytes) of the fixed fields of FULL and of the captured frames
@pytest.mark.untraced
@given(message=user_messages(), at=st.integers(0, 400), value=u8, size=st.integers(0, 400))
def test_what_is_accepted_keeps_its_meaning(message: headers.UserMessage, at: int, value: int, size: int) -> None:
    raw = packet_build.build(message)
    raw[at % len(raw)] = value
    del raw[len(raw) - size % 8 :]
    if samples.outcome(raw) == "packet":
        once = packet_build.build(parse.parse(raw))
        assert packet_build.build(parse.parse(once)) == once


# ---- the parser-test shapes of behaviour.md, section 26 -----------------------------------------


def soap_message(header: str = "ab", body: str = "abc") -> tuple[bytes, int]:
    message = parse.parse(SMALL)
    assert isinstance(message, headers.UserMessage)
    message.soap = rare.SoapHeader(header, body)
    raw = bytes(packet_build.build(message))
    return raw, len(raw) - len(packet_build.soap_wire(message.soap))


@pytest.mark.rule("B-430", "B-431", "OP-8")
@pytest.mark.parametrize("length", [0x80000000, 0x80000003, 0xFFFFFFFF, 0x7FFFFFFF, 0x40000000, 0, 2, 4])
def test_shape_text_length_that_wraps_when_doubled(length: int) -> None:
    raw, at = soap_message()
    assert malformed(patched(raw, at + 4, "I", length)).field.startswith("SoapHeader.")
    assert malformed(patched(raw, at + 20, "I", length + 1 & 0xFFFFFFFF)).field == "SoapHeader.Body"


@pytest.mark.rule("B-430", "B-432")
@pytest.mark.parametrize("at", [2, 4, 6, 8, 12])
@pytest.mark.parametrize("size", [0xFFFC, 0xFFFFFFFC, 0xFFFFFFFD, 0xFFFFFFFF])
def test_shape_security_sizes_whose_sum_wraps(at: int, size: int) -> None:
    security = next(
        start for start in range(64, len(FULL)) if FULL[start : start + 4] == bytes([1, 0, len(samples.SID), 0])
    )
    wide = at in (8, 12)
    error = malformed(patched(FULL, security + at, "I" if wide else "H", size if wide else size & 0xFFFF))
    assert error.field.startswith("SecurityHeader.")


@pytest.mark.rule("B-430", "B-431", "B-432")
@pytest.mark.parametrize(
    ("at", "form", "values", "field"),
    [
        (52, "I", [9, 0xFFFFFFFF, 0xFFFFFFF0, 0x80000000], "ExtensionData"),
        (36, "I", [9, 0xFFFFFFFF, 0x80000000], "AllocationBodySize"),
        (32, "I", [9, 0xFFFFFFFF], "MessageSize"),
        (1, "B", [1, 3, 6, 250, 251, 255], "Label"),
    ],
)
def test_shape_sizes_of_the_properties(at: int, form: str, values: list[int], field: str) -> None:
    for value in values:
        assert field in malformed(patched(SMALL, PROPERTIES_AT + at, form, value)).field


def mqf_message(raw_list: bytes, count: int, header_id: int = 0x64, size: int | None = None) -> bytearray:
    """A message with a MultiQueueFormatHeader whose destination list is given as bytes."""
    message = parse.parse(SMALL)
    assert isinstance(message, headers.UserMessage)
    empty = rare.MQFAddressHeader()
    header = rare.MultiQueueFormatHeader(rare.MQFAddressHeader((), raw_list, count), empty, empty)
    message.multi_queue_format = header
    raw = packet_build.build(message)
    at = len(raw) - len(packet_build.lists_wire(header))
    struct.pack_into("<IH", raw, at, 12 + len(raw_list) if size is None else size, header_id)
    return raw


def names_of(raw: bytearray) -> list[str]:
    message = parse.parse(raw)
    assert isinstance(message, headers.UserMessage)
    assert message.multi_queue_format is not None
    assert packet_build.build(message) == raw
    return [format_name(name) for name in message.multi_queue_format.destination.elements()]


@pytest.mark.rule("B-431", "B-436")
@pytest.mark.parametrize("count", [2, 3, 1000, 0x2AAAAAAB, 0x80000001, 0xFFFFFFFF])
def test_shape_more_elements_than_bytes(count: int) -> None:
    tracemalloc.start()
    error = malformed(mqf_message(b"\3\0a\0\0\0", count))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.field == "MQFAddressHeader.ElementCount"
    assert peak < 100_000


@pytest.mark.rule("B-431")
@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"\0\0a\0\0\0", "FormatType"),
        (b"\4\0a\0\0\0", "FormatType"),
        (b"\3\0a\0b\0", "FormatNameList"),
        (b"\3\0\0\0b\0", "FormatNameList"),
        (b"\1\0" + GUID[:15], "HeaderSize"),
        (b"\2\0\0\0" + GUID, "HeaderSize"),
        (b"\6\0" + GUID, "HeaderSize"),
        (b"\3\0a\0\0\0" + bytes(4), "HeaderSize"),
        (b"\3\0a\0\0\0" + bytes(3), "HeaderSize"),
        (b"", "ElementCount"),
    ],
)
def test_shape_format_type_that_disagrees_with_the_bytes(raw: bytes, field: str) -> None:
    assert malformed(mqf_message(raw, 1)).field == "MQFAddressHeader." + field


def test_shape_elements_that_run_out() -> None:
    two = b"\3\0" + "abcdef\0".encode("utf-16-le")  # room for two, but there is only one
    assert malformed(mqf_message(two, 2)).field == "MQFAddressHeader.ElementCount"


@pytest.mark.rule("B-431")
def test_shape_headers_of_the_lists() -> None:
    one = b"\3\0a\0\0\0"
    assert malformed(mqf_message(one, 1, header_id=0x65)).field == "MQFAddressHeader.HeaderID"
    assert malformed(mqf_message(one, 1, size=11)).field == "MQFAddressHeader.HeaderSize"
    assert malformed(mqf_message(one, 1, size=0xFFFFFFFF)).field == "MQFAddressHeader.HeaderSize"
    raw = mqf_message(one, 1)
    assert malformed(patched(raw, len(raw) - 8, "H", 0x15F)).field == "MQFSignatureHeader.ID"
    for size in (1, 0xFFFFFFFF):
        assert malformed(patched(raw, len(raw) - 4, "I", size)).field == "MQFSignatureHeader.Signature"


@pytest.mark.rule("B-431")
@pytest.mark.parametrize(
    "name",
    [
        b"\0\0",
        b"\2\0\0\0",
        b"\5\0a\0\0\0",
        b"\4\0a\0b\0",
        b"\6\0\0\0a\0\0\0",
        b"\6\0a\0\0\0\0\0",
        b"\xfe\xffa\0\0\0",
        b"\xff\xffa\0\0\0",
    ],
)
def test_shape_direct_names_that_are_none(name: bytes) -> None:
    size = -len(name) % 4
    raw = SMALL[:64] + name + bytes(size) + SMALL[PROPERTIES_AT:]
    assert malformed(patched(raw, 8, "I", len(raw))).field == "UserHeader.DestinationQueue"


def test_a_text_may_hold_zero_bytes_that_are_no_nul() -> None:
    raw = build.user_message(GUID, 1, DirectQueueFormatName("\u0100\u0100a\u0100"), b"", label="\u0100\u6100")
    assert packet_build.build(parse.parse(raw)) == raw


# ---- what is tolerated --------------------------------------------------------------------------


@pytest.mark.rule("B-430", "OP-2", "OP-20", "OP-23")
def test_reserved_bits_padding_and_unknown_values_are_let_through() -> None:
    assert samples.outcome(patched(SMALL, 1, "B", 0xFF)) == "packet"
    assert samples.outcome(patched(SMALL, 2, "H", 0xFEC0)) == "packet"
    assert samples.outcome(patched(SMALL, 60, "I", 0xED201C80)) == "packet"
    assert samples.outcome(patched(SMALL, PROPERTIES_AT, "B", 0xFF)) == "packet"
    for word in (24, 28, 40, 44, 48):
        assert samples.outcome(patched(SMALL, PROPERTIES_AT + word, "I", 0xFFFFFFFF)) == "packet"
    odd = bytes(build.user_message(GUID, 1, DIRECT, b"12345"))
    assert samples.outcome(odd[:-3] + b"\xaa\xbb\xcc") == "packet"
    assert malformed(patched(odd[:-1], 8, "I", len(odd) - 1)).field == "MessagePropertiesHeader.Padding"
    assert samples.outcome(patched(FRAMES[5], 28, "H", 0xFFFF)) == "packet"
    assert samples.outcome(patched(FRAMES[3], 60, "I", 0)) == "packet"


@pytest.mark.rule("OP-1", "A-51", "B-429", "B-430")
def test_the_session_header_is_at_packet_size() -> None:
    header = struct.pack("<HHIHHHH", 1, 2, 3, 4, 5, 6, 7)
    raw = patched(SMALL + b"more" + header, 8, "I", len(SMALL) + 4)
    raw[2] |= core.BASE_SH
    message = parse.parse(raw)
    assert isinstance(message, headers.UserMessage)
    assert message.session is not None
    assert list(message.session.fields) == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(parse.NeedMore) as more:
        parse.parse(raw[:-1])
    assert more.value.total == len(raw)
    odd = patched(SMALL + b"odd" + header, 8, "I", len(SMALL) + 3)
    odd[2] |= core.BASE_SH
    assert malformed(odd).rule == "B-430"


@pytest.mark.rule("OP-4", "B-432")
def test_surplus_allocation_is_part_of_the_packet_only_if_the_headers_then_fit() -> None:
    def variant(raw: bytes, allocated: int) -> headers.UserMessage:
        message = parse.parse(patched(raw, PROPERTIES_AT + 36, "I", allocated))
        assert isinstance(message, headers.UserMessage)
        assert packet_build.build(message) == patched(raw, PROPERTIES_AT + 36, "I", allocated)
        return message

    in_packet = bytearray(build.user_message(GUID, 1, DIRECT, b"12345678" + b"surplus."))
    struct.pack_into("<I", in_packet, PROPERTIES_AT + 32, 8)
    message = variant(bytes(in_packet), 16)
    assert (bytes(message.properties.body), bytes(message.properties.surplus)) == (b"12345678", b"surplus.")
    assert not message.trailing

    with_tail = parse.parse(build.user_message(GUID, 1, DIRECT, b"12345678"))
    assert isinstance(with_tail, headers.UserMessage)
    with_tail.soap = rare.SoapHeader("header", "body")
    raw = bytes(packet_build.build(with_tail))
    message = variant(raw, 16)  # 16 bytes are there, but as the SoapHeader
    assert message.soap is not None
    assert not message.properties.surplus

    trailing = patched(raw + b"what?", 8, "I", len(raw) + 5)
    message = variant(bytes(trailing), 12)  # neither ends at PacketSize
    assert bytes(message.trailing) == b"what?"
    assert malformed(patched(raw, PROPERTIES_AT + 36, "I", 4000)).rule == "B-432"

    padded = bytearray(build.user_message(GUID, 1, DIRECT, b"12345"))
    assert not variant(bytes(padded), 8).properties.surplus  # three bytes of padding, either way


@pytest.mark.rule("OP-8")
@pytest.mark.parametrize(("header", "body"), [("ab", "abc"), ("a", "ab"), ("", "")])
def test_both_alignments_of_a_soap_body_are_read(header: str, body: str) -> None:
    raw, at = soap_message(header, body)
    message = parse.parse(raw)
    assert isinstance(message, headers.UserMessage)
    assert message.soap is not None
    message.soap.aligned = False
    packed = packet_build.build(message)
    again = parse.parse(packed)
    assert isinstance(again, headers.UserMessage)
    assert again.soap is not None
    assert (again.soap.header, again.soap.body) == (header, body)
    assert packet_build.build(again) == packed
    assert malformed(patched(raw, at, "H", 0x321)).field == "SoapHeader.HeaderSectionID"
    assert malformed(patched(raw, at + 8 + (2 * len(header) + 5 & ~3), "H", 0x385)).field == "SoapHeader.BodySectionID"


@pytest.mark.rule("OP-9", "OP-10")
def test_both_alignments_and_sizes_of_lists_are_read() -> None:
    direct = b"\3\0a\0b\0\0\0"
    public = "PUBLIC=03020100-0504-0706-0809-0A0B0C0D0E0F"
    assert names_of(mqf_message(b"\1\0" + GUID, 1)) == [public]
    assert names_of(mqf_message(b"\1\0\0\0" + GUID, 1)) == [public]
    assert names_of(mqf_message(direct + b"\1\0" + GUID + direct, 3)) == ["DIRECT=ab", public, "DIRECT=ab"]
    assert names_of(mqf_message(direct + b"\1\0\xaa\xbb" + GUID + direct, 3)) == ["DIRECT=ab", public, "DIRECT=ab"]
    assert names_of(mqf_message(b"\3\0a\0\0\0\xaa\xbb", 1)) == ["DIRECT=a"]  # HeaderSize counts the padding
    assert names_of(mqf_message(b"\6\0\0\0" + GUID, 1)) == ["DL=" + public[7:]]


@pytest.mark.rule("OP-10")
def test_the_padding_of_the_last_signature_may_be_missing() -> None:
    message = parse.parse(SMALL)
    assert isinstance(message, headers.UserMessage)
    empty = rare.MQFAddressHeader()
    message.multi_queue_format = rare.MultiQueueFormatHeader(empty, empty, empty, b"x")
    raw = packet_build.build(message)
    short = parse.parse(patched(raw[:-3], 8, "I", len(raw) - 3))
    assert isinstance(short, headers.UserMessage)
    assert short.multi_queue_format is not None
    assert short.multi_queue_format.signature == b"x"


def security_message(flags: int, security_id: bytes, provider: bytes = b"") -> bytes:
    message = parse.parse(SMALL)
    assert isinstance(message, headers.UserMessage)
    message.security = headers.SecurityHeader()
    message.security.security_id = security_id
    message.security.provider_info = provider
    message.security.signature = b"s"
    raw = packet_build.build(message)
    return bytes(patched(raw, PROPERTIES_AT, "H", flags))


@pytest.mark.rule("B-432", "OP-5", "OP-11")
def test_security_data_has_to_be_what_its_type_says() -> None:
    for flags, security_id in ((0, b""), (1, samples.SID), (2, GUID), (0xFFF1, samples.SID), (1, b"\1\0" + bytes(6))):
        assert samples.outcome(security_message(flags, security_id)) == "packet"
    for flags, security_id in (
        (0, GUID),
        (1, b""),
        (1, samples.SID[:-1]),
        (1, samples.SID + b"x"),
        (1, b"\2" + samples.SID[1:]),
        (1, b"\1\x10" + bytes(6 + 64)),
        (1, b"\1\0"),
        (2, GUID[:-1]),
        (2, b""),
    ):
        assert malformed(security_message(flags, security_id)).field == "SecurityHeader.SecurityID"
    for provider in (b"\1", bytes(5), b"\1\0\0\0a\0", b"\1\0\0\0a\0\0\0\0\0", b"\1\0\0\0a\0\0"):
        assert malformed(security_message(0, b"", provider)).field == "SecurityHeader.ProviderInfo"
    assert samples.outcome(security_message(0, b"", b"\1\0\0\0a\0\0\0")) == "packet"
    no_sizes = patched(security_message(0, b""), PROPERTIES_AT + 6, "H", 0)
    assert malformed(no_sizes).status == core.BAD_SECURITY_SIZE


@pytest.mark.rule("B-177", "B-178", "A-36", "OP-17", "B-175", "B-176")
def test_acknowledgments_are_known_by_destination_label_and_class() -> None:
    def kind(raw: bytes | bytearray) -> str:
        return type(parse.parse(raw)).__name__

    with_flags = patched(ORDER_ACK + struct.pack("<HHIHHHH", 0, 0, 0, 1, 1, 64, 0), 2, "H", core.BASE_SH | 3)
    assert kind(with_flags) == "OrderAck"
    assert kind(patched(ORDER_ACK, 60, "I", 0x00200C20)) == "OrderAck"  # OP-6: recoverable
    spx = DirectQueueFormatName("SPX:00000001.000000000001\\private$\\ORDER_QUEUE$")
    assert kind(acks.order_ack(spx, GUID, 1, 1, 1, 1, 1)) == "OrderAck"
    for message_class, expected in (
        (0, "UserMessage"),
        (2, "UserMessage"),
        (0x3FFF, "UserMessage"),
        (0xFFFF, "FinalAck"),
    ):
        assert kind(patched(ORDER_ACK, ACK_AT + 2, "H", message_class)) == expected
    assert kind(patched(ORDER_ACK, 64, "I", 5)) == "UserMessage"
    assert kind(patched(ORDER_ACK, ACK_AT + 56, "H", 0x51)) == "OrderAck"
    assert kind(patched(ORDER_ACK, ACK_AT + 56, "H", 0x52)) == "UserMessage"
    others = (
        "OS:a\\private$\\order_queue$",
        "TCP:\\private$\\order_queue$",
        "TCP:a\\b\\private$\\order_queue$",
        "TCP:a\\private$",
    )
    for name in (DIRECT, PublicQueueFormatName(GUID), *map(DirectQueueFormatName, others)):
        assert kind(acks.order_ack(name, GUID, 1, 1, 1, 1, 1)) == "UserMessage"
    nowhere = parse.parse(build.user_message(GUID, 1, DIRECT, b"", label="QM Ordering Ack", message_class=0x4000))
    assert isinstance(nowhere, headers.UserMessage)
    nowhere.user.destination_queue = None
    assert kind(packet_build.build(nowhere)) == "UserMessage"
    final = acks.final_ack(acks.order_queue("::1"), GUID, 1, 1, 1, 1, 1, 0, GUID, 1, 0x4000)
    assert malformed(patched(final, len(final) - 28, "I", 0)).status == core.BAD_ACK_NUMBER


@pytest.mark.rule("B-202")
def test_a_ping_has_24_bytes_and_its_signature() -> None:
    with pytest.raises(core.Malformed) as caught:
        parse_ping(bytes(24))
    assert caught.value.status == core.BAD_PING_SIGNATURE
    with pytest.raises(core.Malformed):
        parse_ping(FRAMES[1] + b"x")


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
def test_user_message_fills_what_it_is_told() -> None:
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
def test_what_is_no_guid(text: str) -> None:
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


def test_a_private_queue_by_number_takes_its_host_from_elsewhere() -> None:
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
def test_what_is_no_format_name(text: str) -> None:
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


@pytest.mark.rule("B-430")
def test_a_second_name_that_begins_at_the_limit_is_cut_off() -> None:
    raw = bytearray(120)
    struct.pack_into("<BBHIII", raw, 0, 0x10, 0, 3, core.SIGNATURE, 120, 0)
    struct.pack_into("<I", raw, 60, core.USER_MP | core.USER_DQ | core.USER_AQ)
    struct.pack_into("<H", raw, 64, 54)
    raw[66:118] = "a".encode("utf-16-le") * 26
    assert malformed(raw).field == "UserHeader.AdminQueue"


# ---- boards -------------------------------------------------------------------------------------


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Any:
    """parse as it is where no module is that only hosts have."""
    for name in ("parse", *HOSTS):
        monkeypatch.delattr(mqqb, name)
        monkeypatch.delitem(sys.modules, "mqqb." + name)
    for name in ("handshake", "rare"):
        monkeypatch.setitem(sys.modules, "mqqb." + name, None)
    module = importlib.import_module("mqqb.parse")
    assert module.rare is module.handshake is None
    monkeypatch.setitem(sys.modules, "mqqb.problems", None)  # a board's form of parse does not name it
    monkeypatch.delattr(mqqb, "problems")
    yield module
    monkeypatch.delattr(mqqb, "parse")
    monkeypatch.delitem(sys.modules, "mqqb.parse")


def test_on_a_board_the_headers_behind_the_body_are_trailing_bytes(board: Any) -> None:
    message = board.parse(FULL)
    same = parse.parse(FULL)
    assert isinstance(same, headers.UserMessage)
    assert same.transaction is not None
    assert same.security is not None
    assert same.session is not None
    assert bytes(message.properties.body) == bytes(same.properties.body)
    assert message.properties.label == same.properties.label
    for name in ("base", "user", "transaction", "security", "properties", "session"):
        assert getattr(message, name).fields == getattr(same, name).fields, name
    assert (message.debug, message.soap, message.multi_queue_format, message.security.signature) == (
        None, None, None, b""
    )  # fmt: skip
    assert bytes(message.trailing).endswith(b"newer peers add headers.")
    assert samples.RECEIVER in bytes(message.trailing), "the debug header"


def test_on_a_board_an_error_tells_numbers(board: Any) -> None:
    for at, value, problem in ((0, 0x11, core.BAD_VERSION_NUMBER), (64, 2, 3), (65, 0xFF, core.NEED_MORE)):
        raw = bytearray(FULL)
        raw[at] = value
        with pytest.raises(core.Malformed) as caught:
            board.parse(raw)
        assert (caught.value.rule, caught.value.status) == ("wire.md", problem)
        assert caught.value.reason == f"problem {problem}"


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
def test_a_draft_makes_what_user_message_makes(
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
