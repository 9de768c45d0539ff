"""Packets on MicroPython, with the C core and with its twin. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import packet_build
from engine_cases import run_calls, tests_of
from mqqb import build, compose, core, guids, parse
from mqqb.names import utf16_decode, utf16_encode
from packet_samples import DIRECT, SENDER, frames, full_message, outcome, reparse


def test_captured_frames_are_written_as_they_were():
    for number, raw in frames().items():
        assert reparse(raw) == raw, number


def test_a_message_with_everything_round_trips():  # B-430
    raw = packet_build.build(full_message())
    assert packet_build.build(parse.parse(raw)) == raw
    message = parse.parse(raw)
    assert bytes(message.properties.body) == b"reading 12.5"
    assert message.properties.label == "Tank 3"
    assert message.transaction.tx_sequence_id == 1700000000 << 32 | 3
    assert guids.format_name(message.user.destination_queue) == "DIRECT=TCP:10.0.0.5\\private$\\line1"
    names = [guids.format_name(name) for name in message.multi_queue_format.destination.elements()]
    assert names[1] == "PUBLIC=67666564-6968-6B6A-6C6D-6E6F70717273", names


def test_every_truncation_is_answered():  # B-429, B-430
    raw = packet_build.build(full_message())
    for size in range(len(raw)):
        assert outcome(raw[:size]) == "more", size
        if size < 16:
            continue
        short = bytearray(raw[:size])
        short[8:12] = size.to_bytes(4, "little")
        short[2] &= 0xEF  # no SessionHeader
        assert outcome(short) in ("malformed", "packet"), size


def test_every_byte_can_be_wrong():  # B-169
    raw = packet_build.build(full_message())
    for at in range(len(raw)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            wrong = bytearray(raw)
            wrong[at] = value
            assert outcome(wrong) in ("packet", "malformed", "more"), (at, value)


def test_the_transaction_header_is_found():  # B-317
    raw = build.user_message(SENDER, 1, DIRECT, b"x" * 100, delivery="transactional")
    at = parse.transaction_offset(raw)
    assert raw[at] & (core.TX_FM | core.TX_LM) == core.TX_FM | core.TX_LM
    message_id = 0xABC12345
    raw = build.user_message(SENDER, message_id, DIRECT, b"", delivery="transactional")
    assert raw[at : at + 4] == b"\x5c\x34\x12\x00", "a transaction of its own, with an index of its own"
    draft = compose.Draft(SENDER, DIRECT)
    packet = bytearray(draft.size(0))
    draft.write_into(packet, 0, message_id, b"")
    assert packet[at : at + 4] == raw[at : at + 4]
    assert parse.transaction_offset(build.user_message(SENDER, 1, DIRECT, b"")) == 0


def test_texts_keep_their_bytes():
    for text in ("", "plain", "\u00e9\u4e2d", "\U0001f600", "a\U0010ffffb"):
        assert utf16_decode(utf16_encode(text)) == text
    for raw in (b"\x3d\xd8", b"\x00\xdc\x3d\xd8", b"\x3d\xd8a\0", b"\x3d\xd8\x00\xde"):
        assert utf16_encode(utf16_decode(raw)) == raw


TESTS = tests_of(globals())

if __name__ == "__main__":
    run_calls([(test.__name__, test, (), {}) for test in TESTS])
