"""The engine: handshake and closing, acknowledgements, window, timers. On MicroPython (natively and with the twin) and
on CPython, where tests/engine/test_engine.py hands the same functions to pytest. Prints `N passed, N failed`.

Each test names the rules that it shows.
"""

import gc
import sys

sys.path.insert(0, "tests/mp")

from array import array

import engine_ends as ends
import packet_build
from engine_cases import TESTS, parametrize, rule, run_tests
from engine_ends import session_headers
from mqqb import (
    acks,
    build,
    compose,
    connection,
    core,
    headers,
    hosts,
    names,
    parse,
    session,
    streams,
    timers,
)
from mqqb.connection import Closed, MessageReceived, Noted, Opened
from mqqb.destination import IncomingStream
from mqqb.session import Settings
from mqqb.transfer import TransferInfo

INTERVALS = (10,) * 3 + (20,) * 3 + (30,) * 3 + (40,)  # short ones in place of streams.RESEND_INTERVALS, ms

# ---- handshake ------------------------------------------------------------------------------------


def _closed(events: list[object]) -> Closed:
    assert events
    assert isinstance(events[-1], Closed)
    assert isinstance(events[-1].reason, str), "an operator is told"
    return events[-1]


@rule("B-181", "B-204", "B-185", "B-205", "B-207", "B-208", "A-39", "OP-3", "B-049")
def test_a_request_without_server_guid_is_accepted_and_answered_with_the_own_one() -> None:
    initiator = session.Session(True, ends.SENDER, 5)
    initiator.connected(5)
    request = parse.parse(initiator.data_to_send())
    assert request.header.client_guid == ends.SENDER
    assert request.header.server_guid == bytes(16)
    assert request.header.fields[core.ESTABLISH_TIME_STAMP] == 5
    assert request.internal.fields[core.INTERNAL_FLAGS] == core.PT_ESTABLISH_CONNECTION
    acceptor = session.Session(False, ends.RECEIVER, 5)
    acceptor.connected(5)
    assert acceptor.data_to_send() == b""
    assert acceptor.receive_data(packet_build.build(request), 6) == []
    raw = acceptor.data_to_send()
    response = parse.parse(raw)
    assert response.header.client_guid == ends.SENDER
    assert response.header.server_guid == ends.RECEIVER
    assert response.header.fields[core.ESTABLISH_TIME_STAMP] == 5
    assert not response.internal.fields[core.INTERNAL_FLAGS] & core.INTERNAL_CS
    place = core.ESTABLISH_OPERATING_SYSTEM
    assert response.header.fields[place] == request.header.fields[place]
    assert raw[60:] == b"\x5a" * 512
    assert acceptor.remote_guid == ends.SENDER
    assert acceptor.state == connection.WAITING_CP_MSG
    initiator.receive_data(raw, 7)
    assert initiator.remote_guid == ends.RECEIVER
    assert initiator.state == connection.WAITING_CPR_MSG


@rule("B-207", "B-208", "B-209")
def test_a_request_for_another_queue_manager_is_refused_with_an_answer() -> None:
    initiator = session.Session(True, ends.SENDER, 0, remote_guid=b"\x01" * 16)
    initiator.connected(0)
    acceptor = session.Session(False, ends.RECEIVER, 0)
    closed = _closed(acceptor.receive_data(initiator.data_to_send(), 0))
    assert closed.rule == "B-207"
    answer = acceptor.data_to_send()
    assert parse.parse(answer).internal.fields[core.INTERNAL_FLAGS] & core.INTERNAL_CS
    assert _closed(initiator.receive_data(answer, 0)).rule == "B-209"


@rule("B-209")
@parametrize("wrong", ["client", "server", "null"])
def test_an_answer_with_wrong_guids_closes(wrong: str) -> None:
    initiator = session.Session(True, ends.SENDER, 0, remote_guid=ends.RECEIVER)
    initiator.connected(0)
    client = b"\x09" * 16 if wrong == "client" else ends.SENDER
    server = {"client": ends.RECEIVER, "server": b"\x09" * 16, "null": bytes(16)}[wrong]
    answer = compose.establish_connection(client, server, 0)
    assert _closed(initiator.receive_data(answer, 0)).rule == "B-209"


@rule("B-210", "B-212", "B-214", "B-215", "B-216", "B-043", "B-044", "B-039")
@parametrize(("round_trip", "timeout"), [(0, 500), (62, 500), (63, 504), (15000, 120000), (99999, 120000)])
def test_parameters_are_measured_clamped_and_adopted_by_both(round_trip: int, timeout: int) -> None:
    start = 0xFFFFFFFF - 20  # the clock field wraps in between
    initiator = session.Session(True, ends.SENDER, start, settings=Settings(ack_wait_timeout=25000))
    acceptor = session.Session(False, ends.RECEIVER, start, settings=Settings(window_size=9))
    initiator.connected(start)
    acceptor.receive_data(initiator.data_to_send(), start)
    initiator.receive_data(acceptor.data_to_send(), start + round_trip)
    request = parse.parse(initiator.data_to_send())
    assert request.header.fields[core.PARAMETERS_RECOVERABLE_ACK_TIMEOUT] == timeout
    assert request.header.fields[core.PARAMETERS_ACK_TIMEOUT] == 25000
    assert request.header.fields[core.PARAMETERS_WINDOW_SIZE] == 64
    events = acceptor.receive_data(packet_build.build(request), start + round_trip)
    assert isinstance(events[0], Opened)
    assert acceptor.ack_wait_timeout == 25000
    assert acceptor.recoverable_ack_send_timeout == timeout
    answer = parse.parse(acceptor.data_to_send())
    assert list(answer.header.fields) == [timeout, 25000, 0, 9]
    assert isinstance(initiator.receive_data(packet_build.build(answer), start)[0], Opened)


def _states() -> dict[str, session.Session]:
    made = {}
    initiator = session.Session(True, ends.SENDER, 0)
    initiator.connected(0)
    made[connection.WAITING_ECR_MSG] = initiator
    made[connection.WAITING_EC_MSG] = session.Session(False, ends.RECEIVER, 0)
    asked = session.Session(False, ends.RECEIVER, 0)
    asked.receive_data(compose.establish_connection(ends.SENDER, bytes(16), 0), 0)
    asked.data_to_send()
    made[connection.WAITING_CP_MSG] = asked
    asking = session.Session(True, ends.SENDER, 0)
    asking.connected(0)
    asking.receive_data(compose.establish_connection(ends.SENDER, ends.RECEIVER, 0), 0)
    asking.data_to_send()
    made[connection.WAITING_CPR_MSG] = asking
    made[connection.OPEN] = ends.open_pair()[1].session
    return made


def _samples() -> dict[str, bytes]:
    header = array("I", bytes(4 * core.part_words(core.SESSION_HEADER)))
    header[core.ACKS_WINDOW_SIZE] = 64
    order_queue = names.parse_format_name("DIRECT=TCP:127.0.0.1\\PRIVATE$\\order_queue$")
    return {
        "EstablishConnection": bytes(compose.establish_connection(ends.SENDER, ends.RECEIVER, 0)),
        "ConnectionParameters": bytes(compose.connection_parameters(500, 20000, 64)),
        "SessionAck": bytes(compose.session_ack(header)),
        "UserMessage": bytes(build.user_message(ends.SENDER, 1, ends.DESTINATION, b"x")),
        "OrderAck": bytes(acks.order_ack(order_queue, ends.SENDER, 1, 0, 1, 7, 1)),
        "FinalAck": bytes(acks.final_ack(order_queue, ends.SENDER, 1, 0, 1, 7, 1, 0, ends.SENDER, 1, 0x4000)),
    }


@rule("B-180", "B-182", "B-183", "B-184", "B-186", "B-187", "B-188", "B-434")
@parametrize(("state", "kind"), [(state, kind) for state in sorted(_states()) for kind in sorted(_samples())])
def test_every_packet_in_every_state_is_either_in_the_table_or_closes(state: str, kind: str) -> None:
    subject = _states()[state]
    events = subject.receive_data(_samples()[kind], 1)
    if (state, kind) in [row[:2] for row in session.TABLE]:
        assert subject.closed is None, (state, kind, subject.closed)
    else:
        assert _closed(events).rule in ("B-180", "B-434")
        assert kind in subject.closed.reason or subject.closed.rule == "B-434"
        assert subject.state == connection.CLOSED
        assert subject.receive_data(_samples()["EstablishConnection"], 1) == [], "a closed session takes nothing"
        assert subject.data_to_send() == b"", "closing sends no packet"
    assert subject.next_timeout() is None or subject.closed is None


@rule("B-434", "B-433")
def test_an_unestablished_session_does_not_wait_for_the_rest_of_a_message() -> None:
    acceptor = session.Session(False, ends.RECEIVER, 0)
    assert _closed(acceptor.receive_data(_samples()["UserMessage"][:16], 0)).rule == "B-434"
    acceptor = session.Session(False, ends.RECEIVER, 0)
    huge = bytearray(_samples()["EstablishConnection"][:16])
    huge[8:12] = (0x400000).to_bytes(4, "little")
    assert _closed(acceptor.receive_data(huge, 0)).rule == "B-433"


@rule("B-168", "B-169", "B-004")
@parametrize(("offset", "rule_number"), [(0, "B-168"), (4, "B-168"), (11, "B-429")])
def test_a_malformed_packet_closes_with_its_rule_and_changes_nothing_else(offset: int, rule_number: str) -> None:
    _, receiver = ends.open_pair()
    packet = bytearray(_samples()["UserMessage"])
    packet[offset] ^= 0xFF
    events = receiver.receive(bytes(packet), 0)
    assert _closed(events).rule == rule_number
    assert receiver.queue == []
    assert receiver.session.data_to_send() == b""


@rule("B-298", "B-297")
def test_transport_closed_once() -> None:
    sender, _ = ends.open_pair()
    assert _closed(sender.session.transport_closed()).rule == "B-298"
    assert sender.session.transport_closed() == []
    assert sender.session.close("B-163", "stop") == []
    other, _ = ends.open_pair()
    assert _closed(other.session.close("B-163", "stop")).reason == "stop"
    assert sender.session.closed is not None
    assert sender.session.closed.rule == "B-298"
    assert sender.session.next_timeout() is None
    assert sender.session.handle_timeout(10**9) == []
    assert not sender.session.can_send()
    sender.session.stored(True, 0)


# ---- acknowledgements, window, timers -----------------------------------------------------------------


@rule(
    "B-101",
    "B-102",
    "B-103",
    "B-107",
    "B-108",
    "B-122",
    "B-127",
    "B-150",
    "B-279",
    "B-280",
    "A-11",
    "A-26",
    "B-252",
    "B-278",
)
def test_session_ack_after_the_recoverable_timeout() -> None:
    sender, receiver = ends.open_pair()
    for delivery in ("express", "recoverable", "recoverable", "express", "transactional"):
        sender.send(b"x", delivery)
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.handle_timeout(499)
    assert receiver.session.data_to_send() == b""
    receiver.session.handle_timeout(500)
    (header,) = session_headers(receiver.session.data_to_send())
    assert header[core.ACKS_SEQUENCE_NUMBER] == 5
    assert (header[core.ACKS_BASE], header[core.ACKS_FLAGS]) == (1, 0b111)
    receiver.session.handle_timeout(30000)
    assert receiver.session.data_to_send() == b"", "nothing new, no SessionAck"


@rule("B-121", "B-255", "B-107", "B-135")
def test_session_ack_for_express_messages_waits_half_the_ack_timeout() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x", "express")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    assert receiver.session.next_timeout() == 10000
    receiver.session.handle_timeout(9999)
    assert receiver.session.data_to_send() == b""
    receiver.session.handle_timeout(10000)
    raw = receiver.session.data_to_send()
    (header,) = session_headers(raw)
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_BASE], header[core.ACKS_FLAGS]) == (
        1,
        0,
        0,
    )
    sender.receive(raw, 10000)
    assert sender.settled == [1]
    assert sender.stream.table == []


@rule("B-125", "B-126", "B-263", "B-100", "OP-1", "OP-14", "A-12", "A-51", "B-105", "B-322")
@parametrize("delivery", ["express", "recoverable", "transactional"])
def test_a_session_header_rides_on_a_message_once_three_quarters_are_over(delivery: str) -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    for now, rides in ((375, False), (376, True)):
        recoverable = delivery != "express"
        packet = build.user_message(ends.RECEIVER, now, ends.DESTINATION, b"back", delivery=delivery)
        if parse.transaction_offset(packet):
            streams.OutgoingStream(streams.OutgoingStream.new(1)).number(packet, parse.transaction_offset(packet), 1, 1)
        receiver.session.send(
            streams.Entry(1, now, recoverable, False, 1, int(delivery == "transactional")), packet, recoverable, now
        )
        raw = receiver.session.data_to_send()
        message = parse.parse(raw)
        assert (message.session is not None) == rides
        assert len(raw) == message.base.fields[core.BASE_PACKET_SIZE] + 16 * rides
        events = sender.session.receive_data(raw, now)
        assert type(events[0]) is MessageReceived
        assert len(events[0].raw) == message.base.fields[core.BASE_PACKET_SIZE]
        assert parse.parse(events[0].raw).session is None, "what is stored can be read again"
        assert sender.session.closed is None
    assert sender.stream.table[0].received_session_ack
    receiver.session.handle_timeout(500)
    assert receiver.session.data_to_send() == b"", "what rode along needs no SessionAck"


@rule("B-437", "B-443", "A-17")
@parametrize("now", [20, 499, 600])
def test_an_acknowledgement_carries_no_session_header_and_goes_behind_a_session_ack(now: int) -> None:
    order_ack = acks.order_ack(ends.ORDER_QUEUE, ends.RECEIVER, 1, 0, 1, 7, 1)
    final_ack = acks.final_ack(ends.ORDER_QUEUE, ends.RECEIVER, 2, 0, 1, 7, 1, 0, ends.SENDER, 1, 0x4000)
    for ack, recoverable in ((order_ack, False), (final_ack, True)):
        as_built = bytes(ack)
        sender, receiver = ends.open_pair()
        sender.send(b"x")
        sender.pump(0)
        receiver.receive(sender.session.data_to_send(), 0)
        receiver.session.send(streams.Entry(1, 1, recoverable), ack, recoverable, now)
        out = receiver.session.data_to_send()
        assert out[36:] == as_built
        assert [header[core.ACKS_SEQUENCE_NUMBER] for header in session_headers(out[:36])] == [1]
        receiver.session.send(streams.Entry(2, 2, recoverable), ack, recoverable, now)
        assert receiver.session.data_to_send() == as_built, "nothing is left to acknowledge"


@rule("B-227", "A-13")
@parametrize("close", [True, False])
def test_a_count_mismatch_delivers_then_closes_or_only_notes(close: bool) -> None:
    receiver = ends.Receiver()
    sender = ends.Sender()
    sender.connect(0)
    receiver.accept(0, Settings(close_on_mismatch=close))
    ends.exchange(sender, receiver, 0)
    sender.send(b"x", "express")
    sender.pump(0)
    header = array("I", (0, 0, 0, 7, 0, 64, 0))
    wrong = bytes(compose.session_ack(header))
    events = receiver.receive(sender.session.data_to_send() + wrong, 0)
    assert [body for _, _, body in receiver.queue] == [b"x"]
    if close:
        assert _closed(events).rule == "B-227"
    else:
        assert receiver.session.closed is None
        (note,) = [event for event in events if isinstance(event, Noted)]
        assert note.rule == "B-227"
        assert "counts" in note.reason
        assert receiver.receive(wrong, 1) == [], "told once"


@rule("B-227", "B-087", "OP-14")
@parametrize(("sent", "recoverable"), [(1, 1), (2, 0), (3, 1), (2, 2)])
def test_a_session_ack_has_to_count_exactly(sent, recoverable):
    sender, receiver = ends.open_pair()
    for delivery in ("express", "recoverable"):
        sender.send(b"x", delivery)
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    assert receiver.receive(bytes(compose.session_ack(array("I", (0, 0, 0, 2, 1, 64, 0)))), 0) == []
    events = receiver.receive(bytes(compose.session_ack(array("I", (0, 0, 0, sent, recoverable, 64, 0)))), 0)
    assert _closed(events).rule == "B-227"


@rule("B-229", "B-436")
def test_an_acknowledgement_of_what_was_never_sent_closes() -> None:
    for words in ((1, 0, 0, 0, 0, 64, 0), (0, 1, 1, 0, 0, 64, 0)):
        sender, _ = ends.open_pair()
        assert _closed(sender.receive(bytes(compose.session_ack(array("I", words))), 0)).rule == "B-229"


@rule("B-134", "B-148", "B-149", "B-167", "B-228", "A-27")
def test_a_silent_peer_is_noticed_after_one_to_two_periods_and_a_quiet_one_is_not() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    assert sender.session.handle_timeout(40000) == [], "the handshake was heard in this period"
    assert _closed(sender.session.handle_timeout(80000)).rule == "B-148"
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.handle_timeout(500)
    sender.receive(receiver.session.data_to_send(), 500)
    assert sender.session.handle_timeout(200000) == [], "session-acknowledged: nothing is awaited of the session"


@rule("B-148", "B-167", "B-147")
def test_a_packet_that_takes_long_is_no_silence() -> None:
    sender, receiver = ends.open_pair()
    sender.send(bytes(1000))
    sender.pump(0)
    packet = sender.session.data_to_send()
    assert sender.session.handle_timeout(40000) == []
    sender.session.progressed()  # more of it has left
    assert sender.session.handle_timeout(80000) == []
    assert _closed(sender.session.handle_timeout(120000)).rule == "B-148"
    sender, receiver = ends.open_pair()
    for end in (sender, receiver):
        assert end.session.handle_timeout(299999) == []
    sender.session.progressed()
    receiver.receive(packet[:100], 299999)
    for end in (sender, receiver):
        assert end.session.handle_timeout(300000) == [], "it is not idle"
        assert _closed(end.session.handle_timeout(600000)).rule == "B-147"
    sender, receiver = ends.open_pair()
    receiver.session.send(None, bytearray(packet), True, 0)
    assert receiver.session.handle_timeout(40000) == []
    receiver.receive(packet[:100], 50000)
    assert receiver.session.handle_timeout(80000) == [], "a part of a packet has come in this period"
    assert _closed(receiver.session.handle_timeout(120000)).rule == "B-148"


@rule("B-181", "B-147")
def test_a_part_of_a_handshake_does_not_keep_a_session_that_is_idle_then() -> None:
    acceptor = session.Session(False, ends.RECEIVER, 0)
    initiator = session.Session(True, ends.SENDER, 0)
    initiator.connected(0)
    request = initiator.data_to_send()
    acceptor.receive_data(request[:100], 0)
    acceptor.receive_data(request[100:], 0)
    initiator.receive_data(acceptor.data_to_send(), 0)
    acceptor.receive_data(initiator.data_to_send(), 0)
    assert acceptor.state == connection.OPEN
    assert _closed(acceptor.handle_timeout(300000)).rule == "B-147"


@rule("B-131", "B-155", "A-41")
def test_a_handshake_that_takes_too_long_is_given_up() -> None:
    for state, subject in _states().items():
        if state != connection.OPEN:
            assert subject.handle_timeout(59999) == []
            assert _closed(subject.handle_timeout(60000)).rule == "B-155"


def _read_in_place(at: session.Session, data: bytes) -> "list[object]":
    """As a board does, which has no memory for what came."""
    at.reader.room()[: len(data)] = data
    at.reader.took(len(data))
    events = []
    event = at.next_event(0)
    while event is not None:
        events.append(event)
        event = at.next_event(0)
    return events


@rule("B-253", "B-048")
def test_an_order_ack_that_is_read_in_place_makes_a_direct_session_too() -> None:
    for direct in (True, False):
        sender, _ = ends.open_pair()
        name = ends.ORDER_QUEUE if direct else headers.PrivateQueueFormatNameId(names.ORDER_QUEUE_ID)
        ack = acks.order_ack(name, ends.RECEIVER, 1, 0, 1, 7, 1, **({} if direct else {"address": ends.SENDER}))
        (event,) = _read_in_place(sender.session, bytes(ack))
        assert isinstance(event.packet.body, streams.OrderAckBody)
        assert sender.session.direct_format_session == direct


@rule("B-106")
def test_a_malformed_session_header_is_noticed_in_an_order_ack_that_is_read_in_place() -> None:
    ack = acks.order_ack(ends.ORDER_QUEUE, ends.RECEIVER, 1, 0, 1, 7, 1)
    sender, receiver = ends.open_pair()
    for now in (0, 1000):  # the second time it is like one before
        sender.send(b"x")
        sender.pump(now)
        receiver.receive(sender.session.data_to_send(), now)
        core.session_sent(receiver.session.window.counts, False)
        words = core.words(core.SESSION_HEADER)
        core.session_fill(receiver.session.window.counts, words)
        raw = ack + bytes(core.SESSION_HEADER_SIZE)
        raw[2] |= 0x10  # others may send one that carries a SessionHeader (B-178)
        core.pack(core.SESSION_HEADER, words, raw, len(ack))
        (event,) = _read_in_place(sender.session, bytes(raw))
        assert isinstance(event, MessageReceived)
    (event,) = _read_in_place(sender.session, bytes(raw))  # now it leaves itself out of what it counts (OP-14)
    assert isinstance(event, MessageReceived)
    raw[-4:-2] = b"\0\0"  # WindowSize
    assert _closed(_read_in_place(sender.session, bytes(raw))).rule == "B-106"


@rule("B-169")
def test_an_order_ack_that_says_it_has_a_header_more_is_not_like_one_before() -> None:
    ack = acks.order_ack(ends.ORDER_QUEUE, ends.RECEIVER, 1, 0, 1, 7, 1)
    wrong = bytearray(ack)
    wrong[2] |= 0x20  # DH: a DebugHeader, which is not there
    rules = []
    for known in (False, True):
        sender, _ = ends.open_pair()
        if known:
            (event,) = _read_in_place(sender.session, bytes(ack))
            assert isinstance(event, MessageReceived)
        rules.append(_closed(_read_in_place(sender.session, bytes(wrong))).rule)
    assert rules[0] == rules[1]


@rule("B-123", "B-277", "B-280", "A-11")
def test_a_full_bit_field_is_sent_before_the_next_message_is_recorded() -> None:
    sender, receiver = ends.Sender(), ends.Receiver()
    sender.connect(0, Settings(window_size=200))
    receiver.accept(0, Settings(window_size=200))
    ends.exchange(sender, receiver, 0)
    for _ in range(70):
        sender.send(b"x", "recoverable")
    assert sender.pump(0) == 70
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.handle_timeout(500)
    raw = receiver.session.data_to_send()
    headers = [(h[core.ACKS_SEQUENCE_NUMBER], h[core.ACKS_BASE], h[core.ACKS_FLAGS]) for h in session_headers(raw)]
    assert headers == [(32, 1, 0xFFFFFFFF), (64, 33, 0xFFFFFFFF), (70, 65, 0x3F)]
    sender.receive(raw, 500)
    assert sender.settled == list(range(1, 71))


@rule("B-232", "B-062", "B-064", "B-065", "A-06")
def test_progress_puts_the_back_off_to_its_first_interval() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0))
    packet = build.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    for k in (1, 2):
        entry = stream.number(packet, parse.transaction_offset(packet), k, k)
        assert entry is not None
        stream.sent(entry, 0)
    for now in (30000, 60000, 90000):
        stream.handle_timeout(now)
    assert stream.next_timeout() == 390000
    assert len(stream.order_ack(ends.order_ack_body(1, 1), 91000)) == 1
    assert stream.next_timeout() == 121000
    assert stream.resend_interval_index == 0


@rule("B-096", "B-317", "B-318")
def test_what_waits_elsewhere_keeps_its_number_and_its_sequence() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(7))
    packet = build.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    offset = parse.transaction_offset(packet)
    first, second, third = [stream.number(packet, offset, k, k) for k in (1, 2, 3)]
    assert first is not None
    assert second is not None
    assert third is not None
    stream.rolls = False
    stream.leave_out(third)
    stream.withdraw(third)
    assert stream.record[core.OUTGOING_NUMBER] == 3
    stream.leave_out(second)
    assert stream.order_ack(ends.order_ack_body(7 << 32 | 1, 1), 0) == [first]
    assert (stream.table, stream.record[core.OUTGOING_NUMBER]) == ([], 3), "no new sequence while one waits elsewhere"
    stream.append(second)
    stream.rolls = True
    assert stream.next_to_send() is second
    assert stream.order_ack(ends.order_ack_body(7 << 32 | 1, 2), 0) == [second]
    assert stream.record[core.OUTGOING_NUMBER] == 1
    assert stream.tx_sequence_id == 7 << 32 | 2


@rule("B-232", "B-318")
def test_an_order_ack_that_came_before_the_table_had_its_message_counts_when_it_comes_again() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(7), rolls=False)
    packet = build.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    entry = stream.number(packet, parse.transaction_offset(packet), 1, 1)
    assert entry is not None
    stream.leave_out(entry)
    body = ends.order_ack_body(7 << 32 | 1, 1)
    assert stream.order_ack(body, 0) == []
    assert not stream.is_progress(body)
    stream.append(entry)
    assert stream.is_progress(body)
    assert stream.order_ack(body, 0) == [entry]


@rule("B-131", "B-132", "B-134", "B-135", "B-148", "B-228")
def test_every_timer_is_due_when_the_specification_says() -> None:
    start = 1_000_003
    idle = session.Session(False, ends.RECEIVER, start)
    assert idle.next_timeout() == start + 60000
    sender, receiver = ends.open_pair(start)
    assert sender.session.next_timeout() == start + 300000, "open and quiet: only the clean-up"
    for _ in range(3):
        sender.send(b"x", "express")
    sender.pump(start + 1)
    assert sender.session.next_timeout() == start + 1 + 2 * 20000
    sender.receive(bytes(compose.session_ack(array("I", (2, 0, 0, 0, 0, 64, 0)))), start + 7)
    assert sender.session.next_timeout() == start + 7 + 2 * 20000, "restarted, one message is still awaited"
    sender.receive(bytes(compose.session_ack(array("I", (3, 0, 0, 0, 0, 64, 0)))), start + 9)
    assert sender.session.handle_timeout(start + 40007) == []
    assert sender.session.next_timeout() == start + 300000, "nothing is awaited: the timer has ended"
    sender.send(b"y")
    sender.pump(start + 50000)
    assert sender.session.handle_timeout(start + 90000)[-1].rule == "B-148", "not a word since the last period"
    receiver.receive(bytes(build.user_message(ends.SENDER, 9, ends.DESTINATION, b"")), start + 11)
    assert receiver.session.next_timeout() == start + 11 + 10000
    assert receiver.session.handle_timeout(start + 300001) == [], "active in this period"
    assert receiver.session.next_timeout() == start + 600001
    assert _closed(receiver.session.handle_timeout(start + 700000)).rule == "B-147"


@rule("B-148", "B-042", "B-149", "B-167")
def test_a_peer_that_says_something_in_each_period_is_kept() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    for now in range(40000, 400000, 40000):
        receiver.session.send(None, build.user_message(ends.RECEIVER, now, ends.DESTINATION, b""), False, now)
        sender.session.receive_data(receiver.session.data_to_send(), now - 1)
        assert sender.session.handle_timeout(now) == []
    assert _closed(sender.session.handle_timeout(400000)).rule == "B-148"


@rule("B-070", "B-071", "B-073", "B-320", "B-323", "A-27")
def test_an_entry_knows_its_numbers_on_this_connection() -> None:
    sender, _ = ends.open_pair()
    for delivery in ("express", "recoverable", "express", "transactional"):
        sender.send(b"x", delivery)
    sender.pump(0)
    assert [(entry.sequence_number, entry.recoverable_sequence_number) for entry in sender.stream.table] == [
        (1, 0),
        (2, 1),
        (3, 0),
        (4, 2),
    ]
    last = sender.stream.table[3]
    assert last.awaiting_ack
    sender.receive(bytes(compose.session_ack(array("I", (4, 0, 0, 0, 0, 64, 0)))), 0)
    assert last.received_session_ack
    assert not last.awaiting_ack
    assert [entry.message_id for entry in sender.stream.table] == [2, 4]


@rule("B-048", "B-253")
def test_a_private_name_does_not_make_a_direct_session() -> None:
    _, receiver = ends.open_pair()
    name = headers.PrivateQueueFormatNameId(5)
    receiver.receive(build.user_message(ends.SENDER, 1, name, b"", address=ends.RECEIVER), 0)
    assert receiver.queue
    assert not receiver.session.direct_format_session


@rule("B-345", "B-346", "B-128", "B-108", "B-130", "B-041")
def test_a_paused_queue_asks_for_one_message_at_a_time_until_it_is_resumed() -> None:
    sender, receiver = ends.open_pair()
    for _ in range(5):
        sender.send(b"x", "recoverable")
    sender.pump(0, 3)
    receiver.receive(sender.session.data_to_send(), 0)
    hosts.pause(receiver.session, 10)
    raw = receiver.session.data_to_send()
    (header,) = session_headers(raw)
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_BASE], header[core.ACKS_WINDOW_SIZE]) == (3, 1, 1)
    assert header[core.ACKS_FLAGS] == 0b111
    receiver.session.handle_timeout(20000)
    assert receiver.session.data_to_send() == b"", "its Session Ack Send Timer has stopped"
    assert not receiver.session.is_active
    sender.receive(raw, 10)  # sends what the window lets through
    assert sender.settled == [1, 2, 3]
    assert not sender.session.can_send(), "one message, and the next when it is acknowledged"
    receiver.receive(sender.session.data_to_send(), 20)
    raw = receiver.session.data_to_send()
    (header,) = session_headers(raw)
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_WINDOW_SIZE]) == (4, 1)
    sender.receive(raw, 20)
    assert not sender.session.can_send()
    hosts.resume(receiver.session, 30)
    hosts.resume(receiver.session, 30)
    raw = receiver.session.data_to_send()
    assert [header[core.ACKS_WINDOW_SIZE] for header in session_headers(raw)] == [64], "told once"
    sender.receive(raw, 30)
    assert sender.session.can_send()
    assert receiver.session.handle_timeout(300000) == [], "resuming counts as activity"
    assert _closed(receiver.session.handle_timeout(600000)).rule == "B-147"


@rule("B-345", "B-281", "B-121")
def test_what_is_not_yet_stored_when_a_queue_is_paused_is_acknowledged_later():
    sender, receiver = ends.open_pair(settings=Settings(ack_wait_timeout=20001))
    receiver.hold = True
    sender.send(b"x", "express")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    hosts.pause(receiver.session, 10)
    (header,) = session_headers(receiver.session.data_to_send())
    assert header[core.ACKS_SEQUENCE_NUMBER] == 0
    assert receiver.session.next_timeout() == 10010
    hosts.resume(receiver.session, 20)
    (header,) = session_headers(receiver.session.data_to_send())
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_WINDOW_SIZE]) == (0, 64)
    assert repr(receiver.session.next_timeout()) == "10020", "whole milliseconds"
    hosts.pause(receiver.session, 30)
    receiver.session.data_to_send()
    receiver.store(40)
    (header,) = session_headers(receiver.session.data_to_send())
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_WINDOW_SIZE]) == (1, 1)


@rule("B-125", "B-126", "B-121", "B-281")
def test_a_header_that_rides_along_leaves_the_timer_running_for_what_is_not_yet_stored():
    sender, receiver = ends.open_pair()
    receiver.hold = True
    sender.send(b"x", "express")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.send(None, build.user_message(ends.RECEIVER, 1, ends.DESTINATION, b""), False, 7600)
    raw = receiver.session.data_to_send()
    assert parse.parse(raw).session.fields[core.ACKS_SEQUENCE_NUMBER] == 0
    assert receiver.session.next_timeout() == 17600


@rule("B-430", "B-434")
def test_what_follows_an_answer_to_the_handshake_may_come_in_part():
    parameters = bytes(compose.connection_parameters(500, 20000, 64))
    for size in range(len(parameters)):
        acceptor = session.Session(False, ends.RECEIVER, 0)
        request = bytes(compose.establish_connection(ends.SENDER, bytes(16), 0))
        acceptor.receive_data(request + parameters[:size], 0)
        assert (acceptor.state, acceptor.reader.end - acceptor.reader.begin) == (connection.WAITING_CP_MSG, size)
        acceptor.receive_data(parameters[size:], 0)
        assert acceptor.state == connection.OPEN


@rule("B-345")
def test_there_is_nothing_to_pause_before_a_session_is_open_or_after_it() -> None:
    for state, subject in _states().items():
        subject.data_to_send()
        if state == connection.OPEN:
            subject.close("B-163", "stop")
        hosts.pause(subject, 0)
        hosts.resume(subject, 0)
        assert subject.data_to_send() == b""


# ---- the elements of a session, and that a new one begins with none of the old ---------------------------


@rule("B-030", "B-044", "B-161", "B-181", "B-185", "B-218")
def test_a_session_begins_in_waiting_ec_msg_and_with_a_full_initialization_time():
    for initiator in (True, False):
        subject = session.Session(initiator, ends.SENDER, 1000)
        assert subject.state == connection.WAITING_EC_MSG
        assert subject.next_timeout() == 61000
        subject.connected(5000)
        assert subject.state == (connection.WAITING_ECR_MSG if initiator else connection.WAITING_EC_MSG)
        assert subject.next_timeout() == (65000 if initiator else 61000)
        assert subject.recoverable_ack_send_timeout == 0xFFFFFFFF, "until it is negotiated (B-044)"
        assert subject.ack_wait_timeout == 20000
        assert not subject.can_send()


def _busy_pair():
    """Two ends with an open session on which much has happened, both ways, and is not finished."""
    sender, receiver = ends.open_pair()
    for delivery in ("express", "recoverable", "transactional", "recoverable", "express"):
        sender.send(b"x", delivery)
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.tick(500)
    receiver.session.send(None, build.user_message(ends.RECEIVER, 9, ends.DESTINATION, b""), False, 500)
    sender.receive(receiver.session.data_to_send(), 500)
    for delivery in ("express", "recoverable"):
        sender.send(b"y", delivery)
    sender.pump(600)
    receiver.receive(sender.session.data_to_send(), 600)
    return sender, receiver


@rule(
    "B-031", "B-032", "B-033", "B-034", "B-035", "B-036", "B-037", "B-086", "B-087", "B-088", "B-101", "B-104", "B-105"
)
def test_a_new_connection_counts_from_the_beginning():
    sender, receiver = _busy_pair()
    sender.session.transport_closed()
    receiver.session.transport_closed()
    sender.stream.remove(list(sender.stream.table))
    receiver.incoming.order_ack_sent(600)
    ends.open_pair(1000, sender, receiver)
    for delivery in ("express", "recoverable", "recoverable"):
        sender.send(b"z", delivery)
    sender.pump(1000)
    receiver.receive(sender.session.data_to_send(), 1000)
    receiver.session.handle_timeout(1500)
    raw = receiver.session.data_to_send()
    (header,) = session_headers(raw)
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_BASE]) == (3, 1)
    assert header[core.ACKS_FLAGS] == 0b11
    assert (header[core.ACKS_SENT], header[core.ACKS_RECOVERABLE_SENT]) == (0, 0)
    sender.receive(raw, 1500)
    assert sender.stream.table == []
    sender.receive(bytes(build.user_message(ends.RECEIVER, 10, ends.DESTINATION, b"")), 1500)
    sender.session.handle_timeout(11500)
    (header,) = session_headers(sender.session.data_to_send())
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_BASE]) == (1, 0)
    assert header[core.ACKS_FLAGS] == 0
    assert (header[core.ACKS_SENT], header[core.ACKS_RECOVERABLE_SENT]) == (3, 2)


@rule("B-040", "B-212", "B-213", "B-214", "B-215", "B-216", "A-25")
@parametrize(("own", "other", "room"), [(64, 64, 64), (5, 64, 5), (64, 5, 5), (64, 0, 1), (0xFFFF, 0xFFFF, 0x7FFF)])
def test_the_smaller_window_counts_on_both_sides(own, other, room):
    initiator = session.Session(True, ends.SENDER, 0, settings=Settings(window_size=own))
    initiator.connected(0)
    initiator.data_to_send()
    initiator.receive_data(compose.establish_connection(ends.SENDER, ends.RECEIVER, 0), 0)
    assert parse.parse(initiator.data_to_send()).header.fields[core.PARAMETERS_WINDOW_SIZE] == own
    initiator.receive_data(compose.connection_parameters(500, 20000, other), 0)
    acceptor = session.Session(False, ends.RECEIVER, 0, settings=Settings(window_size=own))
    acceptor.receive_data(compose.establish_connection(ends.SENDER, ends.RECEIVER, 0), 0)
    acceptor.data_to_send()
    acceptor.receive_data(compose.connection_parameters(500, 20000, other), 0)
    assert parse.parse(acceptor.data_to_send()).header.fields[core.PARAMETERS_WINDOW_SIZE] == own
    packet = build.user_message(ends.SENDER, 1, ends.DESTINATION, b"")
    for subject in (initiator, acceptor):
        sent = 0
        while subject.can_send():
            subject.send(None, packet, False, 0)
            sent += 1
            if sent % 1000 == 0:  # what waits to be written is not what is counted, and a board's heap is small
                subject.data_to_send()
                if sys.implementation.name == "micropython":  # of CPython's large heap it would take all the time
                    gc.collect()
        assert sent == room


@rule("B-129", "B-130", "B-106")
def test_a_window_that_the_peer_made_small_is_doubled_every_half_minute():
    sender, _ = ends.open_pair()
    for _ in range(200):
        sender.send(b"x")

    def room(now):
        """What may be sent once everything is acknowledged."""
        fields = array("I", (sender.session.window.counts[core.SESSION_SENT], 0, 0, 0, 0, window, 0))
        sender.session.receive_data(compose.session_ack(fields), now)
        assert sender.session.closed is None
        return sender.session.window.counts[core.SESSION_RECEIVED_WINDOW_SIZE]

    window = 3
    assert room(1000) == 3
    assert sender.pump(1000) == 3
    due = []
    while sender.session.next_timeout() <= 200000:
        now = sender.session.next_timeout()
        sender.session._received_ack = True
        sender.session.is_active = True
        before = sender.session.window.counts[core.SESSION_RECEIVED_WINDOW_SIZE]
        sender.session.handle_timeout(now - 1)
        assert sender.session.window.counts[core.SESSION_RECEIVED_WINDOW_SIZE] == before
        assert sender.session.handle_timeout(now) == []
        after = sender.session.window.counts[core.SESSION_RECEIVED_WINDOW_SIZE]
        if after != before:
            due.append((now, after))
            assert sender.pump(now) == after - before
    assert due == [(31000, 6), (61000, 12), (91000, 24), (121000, 48), (151000, 64)]
    window = 32
    assert room(300000) == 32
    window = 64
    assert room(301000) == 64, "what the header says, at once"
    window = 100
    assert room(302000) == 100
    assert sender.session.due[timers.WINDOW_GROWTH] is None


# ---- settings ---------------------------------------------------------------------------------------------


@rule("B-204", "A-52")
@parametrize(("arguments", "operating_system"), [((), 0x0310), ((False,), 0x0310), ((True,), 0x0210)])
def test_a_request_says_whether_a_ping_went_before(arguments, operating_system):
    initiator = session.Session(True, ends.SENDER, 0)
    initiator.connected(0, *arguments)
    assert parse.parse(initiator.data_to_send()).header.fields[core.ESTABLISH_OPERATING_SYSTEM] == operating_system


@rule("B-131", "B-043", "B-134")
def test_a_slow_line_gets_more_time():
    settings = Settings(round_trip_delay=3000, ack_wait_timeout=21000)
    subject = session.Session(True, ends.SENDER, 0, settings=settings)
    assert subject.next_timeout() == 66000
    subject.connected(100)
    assert subject.next_timeout() == 66100
    subject.data_to_send()
    subject.receive_data(compose.establish_connection(ends.SENDER, ends.RECEIVER, 100), 100)
    assert parse.parse(subject.data_to_send()).header.fields[core.PARAMETERS_ACK_TIMEOUT] == 24000
    most = session.Session(True, ends.SENDER, 0, settings=Settings(round_trip_delay=110000))
    assert most.ack_wait_timeout == 120000, "the field holds no more"


@rule("B-134")
def test_the_wait_for_a_session_ack_is_doubled_for_direct_format_names_only():
    for guid, received, period in (
        (bytes(16), None, 2),
        (ends.RECEIVER, None, 1),
        (ends.RECEIVER, ends.DESTINATION, 2),
    ):
        subject = session.Session(True, ends.SENDER, 0, guid)
        subject.connected(0)
        subject.receive_data(compose.establish_connection(ends.SENDER, ends.RECEIVER, 0), 0)
        subject.receive_data(compose.connection_parameters(500, 20000, 64), 0)
        if received is not None:
            subject.receive_data(build.user_message(ends.RECEIVER, 1, received, b""), 0)
            subject.stored(False, 0)
            hosts.pause(subject, 0)
        subject.send(streams.Entry(1, 1, False), build.user_message(ends.SENDER, 1, ends.DESTINATION, b""), False, 1)
        assert subject.next_timeout() == 1 + period * 20000
    settings = Settings(ack_wait_multiple=5, ack_wait_timeout=20001, cleanup_timeout=150000)
    sender, _ = ends.open_pair(settings=settings)
    sender.send(b"x")
    sender.pump(0)
    assert sender.session.next_timeout() == 100005
    assert sender.session.handle_timeout(100005) == []
    assert sender.session.next_timeout() == 150000, "the clean-up"


@rule("A-28", "B-132", "B-147", "B-041")
def test_a_session_is_not_closed_as_idle_while_its_owner_needs_it():
    _, receiver = ends.open_pair(settings=Settings(cleanup_timeout=100000))
    needed = [True]
    receiver.session.is_needed = lambda: needed[0]
    for now in range(100000, 500000, 100000):
        assert receiver.session.handle_timeout(now) == []
    needed[0] = False
    assert _closed(receiver.session.handle_timeout(500000)).rule == "B-147"


# ---- sending, and what an acknowledgement leads to ------------------------------------------------------------


@rule("B-300", "B-299", "B-157", "B-069")
def test_what_was_being_sent_when_the_connection_broke_goes_again_as_it_was():
    sender, receiver = ends.open_pair()
    for delivery in ("transactional", "express", "recoverable"):
        sender.send(b"body", delivery)
    sender.pump(0)
    first = sender.session.data_to_send()
    assert _closed(sender.session.transport_closed()).rule == "B-298"
    assert sender.pump(0) == 0
    assert [entry.key for entry in sender.stream.table] == [1, 2, 3]
    ends.Sender.connect(sender, 0)
    receiver.accept(0)
    while sender.session.state != connection.OPEN:
        receiver.receive(sender.session.data_to_send(), 0)
        sender.session.receive_data(receiver.session.data_to_send(), 0)
    sender.pump(0)
    assert sender.session.data_to_send() == first


@rule("B-220", "B-306", "B-310", "A-45")
def test_what_the_window_held_back_goes_out_in_table_order_when_it_opens():
    sender, receiver = ends.Sender(), ends.Receiver()
    sender.connect(0, Settings(window_size=4))
    receiver.accept(0)
    ends.exchange(sender, receiver, 0)
    for _ in range(10):
        sender.send(b"x")
    sender.pump(0)
    sent = []
    for _ in range(3):
        raw = sender.session.data_to_send()
        while raw:
            message = parse.parse(raw)
            sent.append(message.user.fields[core.USER_MESSAGE_ID])
            raw = raw[message.base.fields[core.BASE_PACKET_SIZE] :]
        fields = array("I", (sender.session.window.counts[core.SESSION_SENT], 0, 0, 0, 0, 64, 0))
        sender.receive(bytes(compose.session_ack(fields)), 0)
    assert sent == list(range(1, 11)), "each once"


@rule("B-224", "B-235", "B-236", "B-237", "B-074", "B-075", "B-225", "A-17")
@parametrize(
    ("journal", "order"), [(journal, order) for journal in (False, True) for order in ("SO", "OS", "OSO", "SOS", "OO")]
)
def test_both_orders_of_acknowledgement_end_alike(journal, order):
    """S: the session acknowledges, O: an OrderAck comes."""
    sender, receiver = ends.open_pair()
    sender.send(b"x", journal=journal)
    sender.pump(0)
    (entry,) = sender.stream.table
    receiver.receive(sender.session.data_to_send(), 0)
    for place, what in enumerate(order):
        if what == "S":
            hosts.pause(receiver.session, 0)
        else:
            receiver.incoming.schedule_order_ack(-500)
            receiver.tick(0)
        if "O" not in order[: place + 1]:
            sender.receive(receiver.session.data_to_send(), 0)
            assert entry.received_session_ack
            assert not entry.received_order_ack
            assert sender.stream.table == [entry]
        else:
            sender.receive(receiver.session.data_to_send(), 0)
    assert entry.received_order_ack
    assert sender.stream.table == []
    assert sender.stream.awaiting_final_ack == ([entry] if journal else [])
    assert sender.settled == ([] if journal else [1])
    assert sender.session.closed is None


@rule("B-012", "B-077", "B-222", "B-223", "B-290")
def test_a_forwarded_transactional_message_is_settled_by_its_bit_and_leaves_the_stream_alone():
    sender, receiver = ends.open_pair()
    packet = build.user_message(ends.RECEIVER, 77, ends.DESTINATION, b"", delivery="transactional")
    offset = parse.transaction_offset(packet)
    origin = streams.OutgoingStream(streams.OutgoingStream.new(50))
    for key in range(1, 4):
        origin.number(packet, offset, key, key)
    record = array("I", sender.stream.record)
    sender.disk[1] = bytes(packet)
    sender.stream.append(streams.Entry(1, 77, True))
    entry = sender.stream.table[0]
    sender.session.send(entry, bytearray(packet), True, 0)
    raw = sender.session.data_to_send()
    assert raw == bytes(packet), "the TransactionHeader is passed on untouched"
    assert sender.stream.next_timeout() is None, "no Transactional Ack Wait Timer"
    info = TransferInfo(sender.stream)
    assert (info.first_non_ack, info.no_ack_count, info.next_seq) == (None, 0, (7 << 32 | 1, 1, 0))
    sender.stream.resend(10)
    assert sender.stream.next_to_send() is None
    assert sender.stream.order_ack(ends.order_ack_body(50 << 32 | 1, 3), 20) == []
    receiver.receive(raw, 20)
    receiver.session.handle_timeout(520)
    (event,) = sender.session.receive_data(receiver.session.data_to_send(), 520)
    assert event.entries == [entry]
    sender.stream.remove(event.entries)
    assert sender.stream.record == record


@rule("B-321", "B-134", "B-228")
def test_the_wait_for_a_session_ack_runs_from_the_first_message_not_the_last():
    sender, _ = ends.open_pair()
    for now in (0, 15000, 30000):
        sender.send(b"x", "recoverable")
        sender.pump(now)
    assert sender.session.next_timeout() == 40000
    sender.session.receive_data(compose.session_ack(array("I", (3, 0, 0, 0, 0, 64, 0))), 31000)
    assert sender.session.next_timeout() == 71000, "the bits are still awaited"


@rule("B-088", "B-090", "B-219", "A-23")
@parametrize(
    ("start", "delivery"),
    [(start, kind) for start in (0xFFF0, 0x7FF0) for kind in ("express", "recoverable", "transactional")],
)
def test_counts_wrap_on_both_sides(start, delivery):
    sender, receiver = ends.open_pair()
    for subject in (sender.session, receiver.session):
        for index in range(core.SESSION_WORDS):
            if index not in (core.SESSION_WINDOW_SIZE, core.SESSION_RECEIVED_WINDOW_SIZE, core.SESSION_ACK_FLAGS):
                subject.window.counts[index] = start
    now = 0
    for k in range(12):
        for _ in range(9):
            sender.send(b"%d" % k, delivery)
        back = build.user_message(ends.RECEIVER, k, ends.DESTINATION, b"", delivery="recoverable")
        receiver.session.send(streams.Entry(k, k), back, True, now)
        now = ends.run(sender, receiver, now, now + 700)
        assert sender.session.closed is None
        assert receiver.session.closed is None
    ends.run(sender, receiver, now, now + 11000)
    assert sender.stream.table == []
    assert len(receiver.queue) == 108
    assert sender.session.window.counts[core.SESSION_SENT] == (start + 108) & 0xFFFF
    assert not receiver.session.window.in_flight


@rule("OP-14", "B-227", "B-263", "B-228", "A-12")
@parametrize("counts_itself", [True, False])
def test_a_header_that_rides_along_may_leave_its_own_message_out(counts_itself):
    sender, _ = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    packet = build.user_message(ends.RECEIVER, 1, ends.DESTINATION, b"back")
    packet[2] |= 0x10
    header = bytearray(16)
    fields = array("I", (0, 0, 0, int(counts_itself), 0, 64, 0))
    core.pack(core.SESSION_HEADER, fields, header, 0)
    events = sender.session.receive_data(packet + header, 1000)
    assert [type(event).__name__ for event in events] == ["MessageReceived"]
    assert sender.session.next_timeout() == 1000 + 10000
    sender.session.stored(False, 1000)
    assert sender.session.handle_timeout(40500) == []
    assert sender.session.next_timeout() == 41000, "the wait for an acknowledgement began again with the header"


@rule("B-121", "B-124")
def test_halves_are_rounded_down():
    sender, receiver = ends.open_pair(settings=Settings(window_size=5, ack_wait_timeout=20001))
    for _ in range(2):
        sender.send(b"x", "express")
    sender.pump(0, 1)
    receiver.receive(sender.session.data_to_send(), 0)
    assert receiver.session.next_timeout() == 10000
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    assert len(session_headers(receiver.session.data_to_send())) == 1


# ---- transactional order --------------------------------------------------------------------------------------


@rule("B-058", "B-059", "B-060", "B-271", "B-272")
def test_a_new_incoming_stream_takes_any_sequence_at_its_start():
    incoming = IncomingStream()
    assert incoming.tx_sequence_number == 0
    assert list(incoming.record) == [0, 0, 0, 0]
    for rejects in (1, 2):
        assert not incoming.accept(ends.transaction(1, 2, 1))
        assert incoming.record[core.INCOMING_REJECT_COUNT] == rejects
        assert incoming.tx_sequence_number == 0
    assert incoming.accept(ends.transaction(1, 2, 0))
    assert incoming.record[core.INCOMING_REJECT_COUNT] == 0
    assert incoming.tx_sequence_number == 2


@rule("B-061", "B-062", "B-063", "B-064", "B-066", "B-157")
def test_a_new_connection_begins_a_new_resend_state():
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0), now=5)
    assert (stream.time_of_last_ack, stream.last_ack_count, stream.resend_interval_index) == (5, 0, 0)
    packet = build.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    for key in (1, 2):
        entry = stream.number(packet, parse.transaction_offset(packet), key, key)
    stream.sent(entry, 0)
    stream.order_ack(ends.order_ack_body(1, 1), 100)
    stream.handle_timeout(30100)
    assert (stream.time_of_last_ack, stream.last_ack_count, stream.resend_interval_index) == (100, 1, 1)
    stream.restart(40000)
    assert (stream.time_of_last_ack, stream.last_ack_count, stream.resend_interval_index) == (40000, 0, 0)
    assert stream.next_timeout() is None


@rule("B-124", "B-210", "B-118", "B-128")
def test_half_of_the_window_and_the_round_trip_are_known():
    for mine, other, half in ((64, 64, 32), (64, 9, 4), (9, 64, 4), (64, 1, 1), (3, 3, 1)):
        _, receiver = ends.open_pair(settings=Settings(window_size=mine))
        receiver.receive(compose.session_ack(array("I", (0, 0, 0, 0, 0, other, 0))), 0)
        assert receiver.session.window.half == half
    hosts.pause(receiver.session, 0)
    assert receiver.session.window.half == 1
    subject = session.Session(False, ends.RECEIVER, 0)
    for timeout, round_trip in ((500, 0), (501, 62), (960, 120), (120000, 15000)):
        subject.recoverable_ack_send_timeout = timeout
        assert subject.round_trip == round_trip


# ---- what nobody should send ------------------------------------------------------------------------------------


@rule("B-428", "B-169", "B-436")
def test_one_wrong_byte_anywhere_is_taken_or_ends_the_session():
    sender, _ = ends.open_pair()
    for delivery in ("transactional", "express"):
        sender.send(b"body", delivery)
    sender.pump(0)
    good = sender.session.data_to_send() + _samples()["SessionAck"] + _samples()["FinalAck"]
    changes = (0x01, 0x80, 0xFF)
    for place in range(len(good)):
        for change in (changes[place % 3],) if sys.implementation.name == "micropython" else changes:
            _, receiver = ends.open_pair()
            bad = bytearray(good)
            bad[place] ^= change
            receiver.receive(bad, 0)
            subject = receiver.session
            if subject.closed is None:
                assert subject.state == connection.OPEN
                assert subject.reader.end - subject.reader.begin <= len(good)
            else:
                assert subject.closed.rule
                assert subject.closed.reason
                assert ends.BOARD or subject.reader.end == subject.reader.begin


if __name__ == "__main__":
    run_tests(TESTS)
