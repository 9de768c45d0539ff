"""The engine as a board uses it: what comes is in the session's room, what is sent in a buffer of the board's."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import engine_cases
import engine_ends as ends
import packet_build
import pytest
import test_session
from mqqb import acks, build, connection, core, headers, names, parse, rare, session
from mqqb.connection import Closed, MessageReceived

assert test_session, "imported, so that its tests are known"
CALLS = {
    name + repr(arguments): (function, arguments)
    for test in engine_cases.TESTS
    for name, function, _, arguments in engine_cases._calls(test[0], test[2], test[3])
}


@pytest.fixture
def board() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ends, "BOARD", True)
        yield


@pytest.mark.usefixtures("board")
@pytest.mark.parametrize("call", CALLS)
def test_the_engine_does_the_same_in_place(call: str) -> None:
    function, arguments = CALLS[call]
    function(**arguments)


# ---- OrderAcks that are known --------------------------------------------------------------------


def order_ack(number: int, message_id: int = 9, sent_time: int = 0, time_stamp: int = 7) -> bytearray:
    return acks.order_ack(ends.ORDER_QUEUE, ends.RECEIVER, message_id, sent_time, 1, time_stamp, number)


def carrying(raw: bytearray, words: tuple[int, ...]) -> bytes:
    header = bytearray(16)
    core.pack(core.SESSION_HEADER, array("I", words), header, 0)
    raw[2] |= core.BASE_SH
    return bytes(raw) + bytes(header)


@pytest.mark.rule("B-230")
def test_reader_reads_order_ack_but_no_message_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    whole = connection.order_ack_body
    monkeypatch.setattr(connection, "order_ack_body", lambda raw: copied.append(raw) or whole(raw))
    subject = connection.Reader()
    heard = core.words(core.SESSION_HEADER)
    transactional = build.user_message(ends.SENDER, 1, ends.ORDER_QUEUE, bytes(36), delivery="transactional")
    for number in (3, 4):
        for raw in (order_ack(number), transactional):
            subject.clear()
            subject.add(raw)
            assert subject.read_order_ack(0, len(raw), heard) == (raw is not transactional)
        assert subject.body.tx_sequence_number == number
    assert copied == [order_ack(3)], "a board has no room for copies of messages that are none"
    urgent = order_ack(5)
    urgent[core.BASE_FLAGS_AT] |= core.BASE_PR
    subject.clear()
    subject.add(urgent)
    assert subject.read_order_ack(0, len(urgent), heard)


def told(subject: session.Session, raw: bytes) -> list[Any]:
    """What the session makes of the bytes, in words that can be compared."""
    result = []
    for event in ends.events_of(subject, raw, 1):
        if isinstance(event, MessageReceived):
            packet = event.packet
            fields = list(packet.user.fields) if isinstance(packet, headers.UserMessage) else list(packet.body.fields)
            result.append((type(packet).__name__, fields[:8], event.recoverable))
        elif isinstance(event, Closed):
            result.append((event.rule, event.reason))
        else:
            result.append(type(event).__name__)
    return result


def pair_of_sessions(first: bytes) -> tuple[session.Session, session.Session]:
    """Two senders that have heard this; the second one is used as a board's."""
    result = []
    for is_board in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ends, "BOARD", is_board)
            sender, _ = ends.open_pair()
            for body in (b"1", b"2"):
                sender.send(body)
            sender.pump(0)
            sender.session.data_to_send()
            assert told(sender.session, first)[0][0] == "OrderAck"
            result.append(sender.session)
    return result[0], result[1]


WHOLE = bytes(order_ack(2, 11, 1700000000)), carrying(order_ack(2, 12), (1, 0, 0, 2, 0, 64, 0))


def variants() -> Iterator[bytes]:
    for raw in WHOLE:
        yield raw
        for place in range(len(raw)):
            bad = bytearray(raw)
            bad[place] ^= 1 << (place * 5 & 7)
            yield bytes(bad)
        bad = bytearray(raw)
        bad[core.BASE_FLAGS_AT + 1] |= core.BASE_TR >> 8  # without DH: malformed
        yield bytes(bad)


@pytest.mark.untraced
@pytest.mark.parametrize("first", [bytes(order_ack(1)), carrying(order_ack(1), (1, 0, 0, 1, 0, 64, 0))])
def test_order_ack_fast_path_gives_same_events_as_parser(first: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr(session, "_parse", lambda raw: parsed.append(raw) or parse.parse(raw))
    short = []
    for raw in variants():
        plain, board = pair_of_sessions(first)
        expected = told(plain, raw)
        parsed.clear()
        monkeypatch.setattr(ends, "BOARD", True)
        assert told(board, raw) == expected
        monkeypatch.setattr(ends, "BOARD", False)
        short += [] if parsed else [raw]
        for name in ("state", "due", "_received_ack"):
            assert getattr(board, name) == getattr(plain, name), name
        assert board.reader.end - board.reader.begin == plain.reader.end - plain.reader.begin
        assert board.window.counts == plain.window.counts
    assert len(short) > 200, "the short way is taken"
    assert {*WHOLE} <= {*short}


def test_order_acks_that_are_handed_out_together_are_each_whole() -> None:
    """A host stores a batch of them; a board uses the objects of one again for the next."""
    sender, _ = ends.open_pair()
    raws = [bytes(order_ack(1)), bytes(order_ack(2, 10))]
    events = sender.session.receive_data(b"".join(raws), 1)
    received = [event for event in events if isinstance(event, MessageReceived)]
    acks = [event.packet for event in received if isinstance(event.packet, connection.OrderAck)]
    assert [(ack.body.tx_sequence_number, ack.message.user.message_id) for ack in acks] == [(1, 9), (2, 10)]
    assert [event.raw for event in received] == raws


def test_board_reuses_one_object_for_order_acks() -> None:
    sender, _ = ends.open_pair()
    subject = sender.session
    subject.receive_data(order_ack(1), 1)  # its form is known from here on
    taken = []
    for number, recoverable in ((2, False), (3, True)):
        raw = order_ack(number, 9 + number)
        raw[core.USER_FLAGS_AT] |= 0x20 * recoverable  # of USER_DM
        before = subject.window.counts[core.SESSION_RECOVERABLE_RECEIVED]
        room = subject.reader.room()
        room[: len(raw)] = raw
        subject.reader.took(len(raw))
        event = subject.next_event(1)
        assert isinstance(event, MessageReceived)
        assert isinstance(event.packet, connection.OrderAck)
        assert (event.packet.message, event.raw, event.packet.body.fields[core.ACK_NUMBER]) == (None, b"", number)
        assert event.recoverable is recoverable
        assert subject.window.counts[core.SESSION_RECOVERABLE_RECEIVED] == before + recoverable
        taken.append(event)
    assert taken[0] is taken[1]


def test_an_order_ack_with_more_behind_its_body_is_no_measure() -> None:
    assert connection.order_ack_body(bytes(order_ack(1)))
    for change in ("debug", "soap", "multi_queue_format", "trailing", "surplus", "odd"):
        packet = parse.parse(order_ack(1))
        assert isinstance(packet, connection.OrderAck)
        message = packet.message
        if change == "debug":
            message.debug = rare.DebugHeader()
        elif change == "soap":
            message.soap = rare.SoapHeader("a", "b")
        elif change == "multi_queue_format":
            lists = [rare.MQFAddressHeader() for _ in range(3)]
            message.multi_queue_format = rare.MultiQueueFormatHeader(lists[0], lists[1], lists[2])
        elif change == "trailing":
            message.trailing = b"more"
        raw = packet_build.build(packet)
        if change == "surplus":
            raw += bytes(4)
            raw[8] += 4
            raw[len(raw) - 92] += 4  # AllocationBodySize; behind it are 16 bytes of fixed fields, label and body
        elif change == "odd":
            raw += bytes(1)
            raw[8] += 1
        odd = parse.parse(bytes(raw))
        assert isinstance(odd, connection.OrderAck), change
        assert connection.order_ack_body(bytes(raw)) == 0, change


@pytest.mark.untraced
def test_first_order_ack_is_handled_alike_by_board_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong in one byte: with the short way, which takes the place of `parse`, and without."""
    parsed = []
    monkeypatch.setattr(session, "_parse", lambda raw: parsed.append(raw) or parse.parse(raw))
    local = headers.PrivateQueueFormatNameId(names.ORDER_QUEUE_ID)
    elsewhere = headers.PrivateQueueFormatNameId(names.ORDER_QUEUE_ID + 1)
    short = 0
    other = names.DirectQueueFormatName("TCP:h\\private$\\x")
    for destination, is_changed in ((ends.ORDER_QUEUE, True), (local, True), (elsewhere, False), (other, False)):
        good = bytes(acks.order_ack(destination, ends.RECEIVER, 9, 0, 1, 7, 1))
        for place in range(-1, len(good) if is_changed else 0):
            raw = bytearray(good)
            if place >= 0:
                raw[place] ^= 1 << (place & 7)
            outcomes = []
            for is_board in (False, True):
                monkeypatch.setattr(ends, "BOARD", is_board)
                sender, _ = ends.open_pair()
                sender.send(b"1")
                sender.pump(0)
                sender.session.data_to_send()
                parsed.clear()
                outcomes.append(told(sender.session, bytes(raw)))
            assert outcomes[0] == outcomes[1], (destination.raw, place)
            short += not parsed
    assert short > 100, "the short way is taken"


# ---- the buffers ---------------------------------------------------------------------------------


def test_output_is_moved_packet_by_packet() -> None:
    subject = session.Session(True, ends.SENDER, 0)
    assert subject.take_output(bytearray(10), 0) == 0
    subject.connected(0)
    request = subject.data_to_send()
    subject._out = [request, b"second", b"third"]
    buffer = bytearray(600)
    assert subject.take_output(buffer, 590) == 0
    assert subject.take_output(buffer, 20) == len(request) + 6
    assert buffer[20 : 20 + len(request) + 6] == request + b"second"
    assert subject.take_output(buffer, 0) == 5
    assert subject.data_to_send() == b""
    subject._out = [b"what just fits"]
    assert subject.take_output(bytearray(14), 0) == 14


def test_session_reports_no_event_after_close() -> None:
    subject = session.Session(False, ends.RECEIVER, 0)
    room = subject.reader.room()
    room[:32] = bytes(32)
    subject.reader.took(32)
    event = subject.next_event(0)
    assert isinstance(event, Closed)
    assert subject.next_event(0) is None


def test_reader_takes_bytes_appended_after_bytes_in_place() -> None:
    reader = connection.Reader()
    reader.room()[:3] = b"abc"
    reader.took(3)
    reader.add(b"def")
    assert bytes(reader.data[reader.begin : reader.end]) == b"abcdef"
