"""What malformed packets come to, what is tolerated, and what a board reads."""

import importlib
import struct
import sys
import tracemalloc
from typing import Any

import mqqb
import packet_build
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import acks, build, core, headers, parse, rare
from mqqb.guids import format_name
from mqqb.handshake import parse_ping
from mqqb.headers import PrivateQueueFormatNameId, PublicQueueFormatName
from mqqb.names import DirectQueueFormatName

from tests.conformance import ROOT
from tests.support.layouts import u8, user_messages

HOSTS = ("build", "handshake", "problems", "rare")
FRAMES = samples.frames(str(ROOT / "tests/vectors.json"))
FULL = bytes(packet_build.build(samples.full_message()))
GUID = bytes(range(16))
DIRECT = samples.DIRECT

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
def test_packet_size_below_header_size_is_malformed() -> None:
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
def test_parse_and_build_of_accepted_packet_is_stable(
    message: headers.UserMessage, at: int, value: int, size: int
) -> None:
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
def test_shape_security_sizes_with_wrapping_sum(at: int, size: int) -> None:
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


def test_private_queue_in_a_list_of_names() -> None:
    raw = mqf_message(b"\2\0\0\0" + GUID + struct.pack("<I", 7), 1)
    assert names_of(raw) == [format_name(headers.PrivateQueueFormatName(GUID, 7))]


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
def test_parser_accepts_reserved_bits_padding_and_unknown_values() -> None:
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
def test_surplus_allocation_joins_packet_only_if_headers_fit() -> None:
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
def test_security_header_data_must_match_its_type() -> None:
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
def test_acks_are_identified_by_destination_label_and_class() -> None:
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


def test_board_parses_headers_after_body_as_trailing_bytes(board: Any) -> None:
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
