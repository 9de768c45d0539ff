"""The engine: handshake and closing, acknowledgements, window, timers. On MicroPython (natively and with the twin) and
on CPython, where tests/test_engine.py hands the same functions to pytest. Prints `N passed, N failed`.

Each test names the rules that it shows.
"""

import sys

sys.path.insert(0, "tests/mp")

from array import array

import engine_ends as ends
from engine_cases import TESTS, parametrize, rule, run_tests
from engine_ends import session_headers
from mqqb import core, packets, session, streams

# ---- handshake ------------------------------------------------------------------------------------


def _closed(events: list[object]) -> session.Closed:
    assert events
    assert isinstance(events[-1], session.Closed)
    return events[-1]


@rule("B-181", "B-204", "B-185", "B-205", "B-207", "B-208", "A-39", "OP-3")
def test_a_request_without_server_guid_is_accepted_and_answered_with_the_own_one() -> None:
    initiator = session.Session(True, ends.SENDER, 5)
    initiator.connected(5)
    request = packets.parse(initiator.data_to_send())
    assert request.header.client_guid == ends.SENDER
    assert request.header.server_guid == bytes(16)
    assert request.header.time_stamp == 5
    assert request.internal.flags == core.PT_ESTABLISH_CONNECTION
    acceptor = session.Session(False, ends.RECEIVER, 5)
    acceptor.connected(5)
    assert acceptor.data_to_send() == b""
    assert acceptor.receive_data(packets.build(request), 6) == []
    raw = acceptor.data_to_send()
    response = packets.parse(raw)
    assert response.header.client_guid == ends.SENDER
    assert response.header.server_guid == ends.RECEIVER
    assert response.header.time_stamp == 5
    assert not response.internal.flags & core.INTERNAL_CS
    assert response.header.operating_system == request.header.operating_system
    assert raw[60:] == b"\x5a" * 512
    assert acceptor.remote_guid == ends.SENDER
    assert acceptor.state == session.WAITING_CP_MSG
    initiator.receive_data(raw, 7)
    assert initiator.remote_guid == ends.RECEIVER
    assert initiator.state == session.WAITING_CPR_MSG


@rule("B-207", "B-208", "B-209")
def test_a_request_for_another_queue_manager_is_refused_with_an_answer() -> None:
    initiator = session.Session(True, ends.SENDER, 0, remote_guid=b"\x01" * 16)
    initiator.connected(0)
    acceptor = session.Session(False, ends.RECEIVER, 0)
    closed = _closed(acceptor.receive_data(initiator.data_to_send(), 0))
    assert closed.rule == "B-207"
    answer = acceptor.data_to_send()
    assert packets.parse(answer).internal.flags & core.INTERNAL_CS
    assert _closed(initiator.receive_data(answer, 0)).rule == "B-209"


@rule("B-209")
@parametrize("wrong", ["client", "server", "null"])
def test_an_answer_with_wrong_guids_closes(wrong: str) -> None:
    initiator = session.Session(True, ends.SENDER, 0, remote_guid=ends.RECEIVER)
    initiator.connected(0)
    client = b"\x09" * 16 if wrong == "client" else ends.SENDER
    server = {"client": ends.RECEIVER, "server": b"\x09" * 16, "null": bytes(16)}[wrong]
    answer = packets.establish_connection(client, server, 0)
    assert _closed(initiator.receive_data(answer, 0)).rule == "B-209"


@rule("B-210", "B-212", "B-214", "B-215", "B-216", "B-043", "B-044")
@parametrize(("round_trip", "timeout"), [(0, 500), (62, 500), (63, 504), (15000, 120000), (99999, 120000)])
def test_parameters_are_measured_clamped_and_adopted_by_both(round_trip: int, timeout: int) -> None:
    start = 0xFFFFFFFF - 20  # the clock field wraps in between
    initiator = session.Session(True, ends.SENDER, start, settings=session.Settings(ack_wait_timeout=25000))
    acceptor = session.Session(False, ends.RECEIVER, start, settings=session.Settings(window_size=9))
    initiator.connected(start)
    acceptor.receive_data(initiator.data_to_send(), start)
    initiator.receive_data(acceptor.data_to_send(), start + round_trip)
    request = packets.parse(initiator.data_to_send())
    assert request.header.recoverable_ack_timeout == timeout
    assert request.header.ack_timeout == 25000
    assert request.header.window_size == 64
    events = acceptor.receive_data(packets.build(request), start + round_trip)
    assert isinstance(events[0], session.Opened)
    assert acceptor.ack_wait_timeout == 25000
    assert acceptor.recoverable_ack_send_timeout == timeout
    answer = packets.parse(acceptor.data_to_send())
    assert (answer.header.recoverable_ack_timeout, answer.header.ack_timeout) == (timeout, 25000)
    assert answer.header.window_size == 9
    assert isinstance(initiator.receive_data(packets.build(answer), start)[0], session.Opened)


def _states() -> dict[str, session.Session]:
    made = {}
    initiator = session.Session(True, ends.SENDER, 0)
    initiator.connected(0)
    made[session.WAITING_ECR_MSG] = initiator
    made[session.WAITING_EC_MSG] = session.Session(False, ends.RECEIVER, 0)
    asked = session.Session(False, ends.RECEIVER, 0)
    asked.receive_data(packets.establish_connection(ends.SENDER, bytes(16), 0), 0)
    asked.data_to_send()
    made[session.WAITING_CP_MSG] = asked
    asking = session.Session(True, ends.SENDER, 0)
    asking.connected(0)
    asking.receive_data(packets.establish_connection(ends.SENDER, ends.RECEIVER, 0), 0)
    asking.data_to_send()
    made[session.WAITING_CPR_MSG] = asking
    made[session.OPEN] = ends.open_pair()[1].session
    return made


def _samples() -> dict[str, bytes]:
    header = array("I", bytes(4 * core.part_words(core.SESSION_HEADER)))
    header[core.ACKS_WINDOW_SIZE] = 64
    order_queue = packets.parse_format_name("DIRECT=TCP:127.0.0.1\\PRIVATE$\\order_queue$")
    return {
        "EstablishConnection": bytes(packets.establish_connection(ends.SENDER, ends.RECEIVER, 0)),
        "ConnectionParameters": bytes(packets.connection_parameters(500, 20000, 64)),
        "SessionAck": bytes(packets.session_ack(header)),
        "UserMessage": bytes(packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"x")),
        "OrderAck": bytes(packets.order_ack(order_queue, ends.SENDER, 1, 0, 1, 7, 1)),
        "FinalAck": bytes(packets.final_ack(order_queue, ends.SENDER, 1, 0, 1, 7, 1, 0, ends.SENDER, 1, 0x4000)),
    }


@rule("B-180", "B-182", "B-183", "B-184", "B-186", "B-187", "B-188", "B-434")
@parametrize(("state", "kind"), [(state, kind) for state in sorted(_states()) for kind in sorted(_samples())])
def test_every_packet_in_every_state_is_either_in_the_table_or_closes(state: str, kind: str) -> None:
    subject = _states()[state]
    events = subject.receive_data(_samples()[kind], 1)
    if (state, kind) in session.TABLE:
        assert subject.closed is None, (state, kind, subject.closed)
    else:
        assert _closed(events).rule in ("B-180", "B-434")
        assert subject.state == session.CLOSED
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


@rule("B-435")
def test_what_is_held_of_half_a_packet_can_be_known() -> None:
    _, receiver = ends.open_pair()
    packet = _samples()["UserMessage"]
    receiver.receive(packet + packet[:100], 0)
    assert receiver.session.half_received == 100
    receiver.receive(packet[100:] + bytes(packet[:4]) + b"?", 0)
    assert receiver.session.half_received == 5
    receiver.receive(bytes(200), 0)
    assert receiver.session.closed is not None
    assert receiver.session.half_received == 0


@rule("B-169")
def test_what_came_before_a_malformed_packet_is_delivered() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"good")
    sender.pump(0)
    bad = bytearray(_samples()["UserMessage"])
    bad[60:64] = b"\xff\xff\xff\xff"
    events = receiver.receive(sender.session.data_to_send() + bytes(bad), 0)
    assert [type(event).__name__ for event in events] == ["MessageReceived", "Closed"]
    assert [body for _, _, body in receiver.queue] == [b"good"]


@rule("B-298", "B-297")
def test_transport_closed_once() -> None:
    sender, _ = ends.open_pair()
    assert _closed(sender.session.transport_closed()).rule == "B-298"
    assert sender.session.transport_closed() == []
    assert sender.session.close("B-163", "stop") == []
    assert sender.session.closed is not None
    assert sender.session.closed.rule == "B-298"
    assert sender.session.next_timeout() is None
    assert sender.session.handle_timeout(10**9) == []
    assert not sender.session.can_send()
    sender.session.stored(True, 0)


# ---- acknowledgements, window, timers -----------------------------------------------------------------


def _headers(data: bytes) -> list[packets.SessionHeader]:
    return session_headers(data)


@rule("B-101", "B-102", "B-103", "B-107", "B-108", "B-122", "B-127", "B-150", "B-279", "B-280", "A-11")
def test_session_ack_after_the_recoverable_timeout() -> None:
    sender, receiver = ends.open_pair()
    for delivery in ("express", "recoverable", "recoverable", "express", "transactional"):
        sender.send(b"x", delivery)
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.handle_timeout(499)
    assert receiver.session.data_to_send() == b""
    receiver.session.handle_timeout(500)
    (header,) = _headers(receiver.session.data_to_send())
    assert header.ack_sequence_number == 5
    assert (header.recoverable_msg_ack_seq_number, header.recoverable_msg_ack_flags) == (1, 0b111)
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
    (header,) = _headers(raw)
    assert (header.ack_sequence_number, header.recoverable_msg_ack_seq_number, header.recoverable_msg_ack_flags) == (
        1,
        0,
        0,
    )
    sender.receive(raw, 10000)
    assert sender.settled == [1]
    assert sender.stream.table == []


@rule("B-124", "B-118", "B-119", "B-120", "A-25", "B-130", "B-128")
def test_a_small_window_is_kept_and_acknowledged_at_its_half() -> None:
    sender, receiver = ends.Sender(), ends.Receiver()
    sender.connect(0)
    receiver.accept(0, session.Settings(window_size=4))
    ends.exchange(sender, receiver, 0)
    for _ in range(10):
        sender.send(b"x")
    assert sender.pump(0) == 4
    assert not sender.session.can_send()
    receiver.receive(sender.session.data_to_send(), 0)
    assert [header.ack_sequence_number for header in _headers(receiver.session.data_to_send())] == [2, 4]


@rule("B-125", "B-126", "B-263", "B-100", "OP-1", "OP-14", "A-12", "A-51", "B-105")
@parametrize("delivery", ["express", "recoverable", "transactional"])
def test_a_session_header_rides_on_a_message_once_three_quarters_are_over(delivery: str) -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    for now, rides in ((375, False), (376, True)):
        recoverable = delivery != "express"
        packet = packets.user_message(ends.RECEIVER, now, ends.DESTINATION, b"back", delivery=delivery)
        if packets.transaction_offset(packet):
            streams.OutgoingStream(streams.OutgoingStream.new(1)).number(
                packet, packets.transaction_offset(packet), 1, 1
            )
        receiver.session.send(
            streams.Entry(1, now, recoverable, False, 1, int(delivery == "transactional")), packet, recoverable, now
        )
        raw = receiver.session.data_to_send()
        message = packets.parse(raw)
        assert (message.session is not None) == rides
        assert len(raw) == message.base.packet_size + 16 * rides
        events = sender.session.receive_data(raw, now)
        assert type(events[0]) is session.MessageReceived
        assert len(events[0].raw) == message.base.packet_size
        assert packets.parse(events[0].raw).session is None, "what is stored can be read again"
        assert sender.session.closed is None
    assert sender.stream.table[0].received_session_ack
    receiver.session.handle_timeout(500)
    assert receiver.session.data_to_send() == b"", "what rode along needs no SessionAck"


@rule("B-227", "A-13")
@parametrize("close", [True, False])
def test_a_count_mismatch_delivers_then_closes_or_only_notes(close: bool) -> None:
    receiver = ends.Receiver()
    sender = ends.Sender()
    sender.connect(0)
    receiver.accept(0, session.Settings(close_on_mismatch=close))
    ends.exchange(sender, receiver, 0)
    sender.send(b"x", "express")
    sender.pump(0)
    header = array("I", (0, 0, 0, 7, 0, 64, 0))
    wrong = bytes(packets.session_ack(header))
    events = receiver.receive(sender.session.data_to_send() + wrong, 0)
    assert [body for _, _, body in receiver.queue] == [b"x"]
    if close:
        assert _closed(events).rule == "B-227"
    else:
        assert receiver.session.closed is None
        (note,) = [event for event in events if isinstance(event, session.Noted)]
        assert note.rule == "B-227"
        assert receiver.receive(wrong, 1) == [], "told once"


@rule("B-229", "B-436")
def test_an_acknowledgement_of_what_was_never_sent_closes() -> None:
    for words in ((1, 0, 0, 0, 0, 64, 0), (0, 1, 1, 0, 0, 64, 0)):
        sender, _ = ends.open_pair()
        assert _closed(sender.receive(bytes(packets.session_ack(array("I", words))), 0)).rule == "B-229"


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


@rule("B-131", "B-155", "A-41")
def test_a_handshake_that_takes_too_long_is_given_up() -> None:
    for state, subject in _states().items():
        if state != session.OPEN:
            assert subject.handle_timeout(59999) == []
            assert _closed(subject.handle_timeout(60001)).rule == "B-155"


@rule("B-132", "B-147", "B-041")
def test_an_idle_session_is_closed_after_the_clean_up_time() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(1)
    assert sender.session.handle_timeout(300000) == []
    assert _closed(receiver.session.handle_timeout(300000)).rule == "B-147"


@rule("B-222", "B-223", "B-225", "B-109", "A-09")
def test_recoverable_messages_go_by_their_bit_and_transactional_ones_stay() -> None:
    sender, _ = ends.open_pair()
    for delivery in ("recoverable", "recoverable", "recoverable", "transactional"):
        sender.send(b"x", delivery)
    sender.pump(0)
    sender.receive(bytes(packets.session_ack(array("I", (4, 1, 0b1101, 0, 0, 64, 0)))), 0)
    assert sender.settled == [1, 3]
    assert [entry.message_id for entry in sender.stream.table] == [2, 4]
    sender.receive(bytes(packets.session_ack(array("I", (4, 2, 0b1, 0, 0, 64, 0)))), 0)
    assert sender.settled == [1, 3, 2]


@rule("B-253", "B-048")
def test_direct_format_session_is_remembered() -> None:
    sender, receiver = ends.open_pair()
    assert not receiver.session.direct_format_session
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    assert receiver.session.direct_format_session


@rule("A-24", "B-057")
def test_a_used_up_sequence_waits_until_it_is_drained() -> None:
    stream = streams.OutgoingStream(array("I", (1, 7, 0xFFFFFFFE, 0)))
    packet = packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    offset = packets.transaction_offset(packet)
    first = stream.number(packet, offset, 1, 1)
    assert first is not None
    assert first.tx_sequence_number == 0xFFFFFFFE
    assert stream.number(packet, offset, 2, 2) is None
    assert len(stream.table) == 1
    stream.remove([first])
    second = stream.number(packet, offset, 2, 2)
    assert second is not None
    assert (second.tx_sequence_id, second.tx_sequence_number) == (7 << 32 | 2, 1)


@rule("B-088", "B-090", "A-23")
def test_counters_wrap_in_a_long_session() -> None:
    sender, receiver = ends.open_pair()
    for subject in (sender.session, receiver.session):
        for index in range(core.SESSION_WORDS):
            if index not in (core.SESSION_WINDOW_SIZE, core.SESSION_RECEIVED_WINDOW_SIZE, core.SESSION_ACK_FLAGS):
                subject._counts[index] = 0xFFF0
    for k in range(200):
        sender.send(b"%d" % k, "recoverable")
    now = ends.run(sender, receiver, 0, 2000)
    assert sender.stream.table == []
    assert len(receiver.queue) == 200
    assert sender.session._counts[core.SESSION_SENT] == (0xFFF0 + 200) & 0xFFFF
    assert now == 2000


@rule("B-310", "A-45")
def test_the_table_is_skipped_where_it_is_in_flight_and_removal_keeps_the_place() -> None:
    sender, _receiver = ends.open_pair()
    for k in range(6):
        sender.send(b"%d" % k)
    sender.pump(0, 4)
    stream = sender.stream
    stream.remove([stream.table[1], stream.table[5]])
    assert stream.next_to_send() is stream.table[3]
    stream.remove([])
    stream.prepare(stream.table[0], bytearray(sender.disk[1]), packets.transaction_offset(sender.disk[1]))
    sender.pump(0)
    assert stream.next_to_send() is None
    assert stream.final_ack(99, 0) is None


@rule("B-097", "B-157", "B-225")
def test_a_session_acknowledgement_alone_keeps_a_transactional_message_for_the_next_connection() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.handle_timeout(500)
    sender.receive(receiver.session.data_to_send(), 500)
    assert sender.stream.table[0].received_session_ack
    assert sender.stream.next_to_send() is None
    receiver.incoming.order_ack_sent(500)  # the OrderAck is lost
    ends.open_pair(600, sender, receiver)
    assert sender.stream.table[0].awaiting_ack, "it went out again"


@rule("B-219", "B-221", "B-120")
def test_a_session_acknowledgement_covers_only_what_it_names() -> None:
    sender, _ = ends.open_pair()
    for _ in range(4):
        sender.send(b"x", "express")
    sender.pump(0)
    for acked, settled in ((2, [1, 2]), (1, [1, 2]), (4, [1, 2, 3, 4])):
        sender.receive(bytes(packets.session_ack(array("I", (acked, 0, 0, 0, 0, 64, 0)))), 0)
        assert sender.settled == settled


@rule("B-123", "B-277", "B-280", "A-11")
def test_a_full_bit_field_is_sent_before_the_next_message_is_recorded() -> None:
    sender, receiver = ends.Sender(), ends.Receiver()
    sender.connect(0, session.Settings(window_size=200))
    receiver.accept(0, session.Settings(window_size=200))
    ends.exchange(sender, receiver, 0)
    for _ in range(70):
        sender.send(b"x", "recoverable")
    assert sender.pump(0) == 70
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.handle_timeout(500)
    raw = receiver.session.data_to_send()
    headers = [
        (h.ack_sequence_number, h.recoverable_msg_ack_seq_number, h.recoverable_msg_ack_flags) for h in _headers(raw)
    ]
    assert headers == [(32, 1, 0xFFFFFFFF), (64, 33, 0xFFFFFFFF), (70, 65, 0x3F)]
    sender.receive(raw, 500)
    assert sender.settled == list(range(1, 71))


@rule("B-232", "B-062", "B-064", "B-065", "A-06")
def test_progress_puts_the_back_off_to_its_first_interval() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0))
    packet = packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    for k in (1, 2):
        entry = stream.number(packet, packets.transaction_offset(packet), k, k)
        assert entry is not None
        stream.sent(entry, 0)
    for now in (30000, 60000, 90000):
        stream.handle_timeout(now)
    assert stream.next_timeout() == 390000
    assert len(stream.order_ack(ends.order_ack_body(1, 1), 91000)) == 1
    assert stream.next_timeout() == 121000
    assert stream.resend_interval_index == 0


@rule("B-064", "B-157")
def test_a_new_connection_begins_the_back_off_anew() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0))
    packet = packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    entry = stream.number(packet, packets.transaction_offset(packet), 1, 1)
    assert entry is not None
    stream.sent(entry, 0)
    for now in (30000, 60000, 90000):
        stream.handle_timeout(now)
    stream.restart()
    assert stream.next_timeout() is None
    stream.sent(entry, 100000)
    assert stream.next_timeout() == 130000


@rule("B-317")
def test_a_number_that_nobody_saw_is_taken_back() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0))
    packet = packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    entries = [stream.number(packet, packets.transaction_offset(packet), k, k) for k in (1, 2, 3)]
    for entry in reversed(entries):
        assert entry is not None
        stream.withdraw(entry)
        assert stream.record[core.OUTGOING_NUMBER] == entry.tx_sequence_number
    assert stream.table == []
    assert stream.tx_sequence_id == 1
    again = stream.number(packet, packets.transaction_offset(packet), 4, 4)
    assert again is not None
    assert again.tx_sequence_number == 1


@rule("B-056", "B-230", "B-318", "B-426", "A-04", "A-22")
def test_entries_of_an_older_sequence_are_kept_apart() -> None:
    """A table restored under a new time stamp: bridging and acknowledgement never cross from one sequence to the
    other.
    """
    stream = streams.OutgoingStream(array("I", (1, 9, 3, 0)))
    for message_id, tx_sequence_id, number in ((1, 7 << 32 | 1, 5), (2, 9 << 32 | 1, 1), (3, 9 << 32 | 1, 2)):
        stream.append(streams.Entry(message_id, message_id, tx_sequence_id=tx_sequence_id, tx_sequence_number=number))
    packet = packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    offset = packets.transaction_offset(packet)
    previous = []
    for entry in stream.table:
        stream.prepare(entry, packet, offset)
        previous.append(packets.parse(packet).transaction.previous_tx_sequence_number)
    assert previous == [0, 0, 1]
    assert [entry.message_id for entry in stream.order_ack(ends.order_ack_body(9 << 32 | 1, 2), 0)] == [2, 3]
    assert [entry.message_id for entry in stream.table] == [1]


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
    sender.receive(bytes(packets.session_ack(array("I", (2, 0, 0, 0, 0, 64, 0)))), start + 7)
    assert sender.session.next_timeout() == start + 7 + 2 * 20000, "restarted, one message is still awaited"
    sender.receive(bytes(packets.session_ack(array("I", (3, 0, 0, 0, 0, 64, 0)))), start + 9)
    assert sender.session.handle_timeout(start + 40007) == []
    assert sender.session.next_timeout() == start + 300000, "nothing is awaited: the timer has ended"
    sender.send(b"y")
    sender.pump(start + 50000)
    assert sender.session.handle_timeout(start + 90000)[-1].rule == "B-148", "not a word since the last period"
    receiver.receive(bytes(packets.user_message(ends.SENDER, 9, ends.DESTINATION, b"")), start + 11)
    assert receiver.session.next_timeout() == start + 11 + 10000
    assert receiver.session.handle_timeout(start + 300001) == [], "active in this period"
    assert receiver.session.next_timeout() == start + 600001
    assert _closed(receiver.session.handle_timeout(start + 700000)).rule == "B-147"


@rule("B-148")
def test_a_peer_that_says_something_in_each_period_is_kept() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    for now in range(40000, 400000, 40000):
        receiver.session.send(None, packets.user_message(ends.RECEIVER, now, ends.DESTINATION, b""), False, now)
        sender.session.receive_data(receiver.session.data_to_send(), now - 1)
        assert sender.session.handle_timeout(now) == []
    assert _closed(sender.session.handle_timeout(400000)).rule == "B-148"


@rule("B-070", "B-071", "B-073", "B-320", "A-27")
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
    sender.receive(bytes(packets.session_ack(array("I", (4, 0, 0, 0, 0, 64, 0)))), 0)
    assert last.received_session_ack
    assert not last.awaiting_ack
    assert [entry.message_id for entry in sender.stream.table] == [2, 4]


@rule("B-100", "B-125")
def test_a_session_header_changes_no_other_flag_and_leaves_no_trace() -> None:
    sender, receiver = ends.open_pair()
    packet = packets.user_message(ends.RECEIVER, 1, ends.DESTINATION, b"back", priority=5)
    as_built = bytes(packet)
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.send(None, packet, False, 499)
    raw = receiver.session.data_to_send()
    assert raw[2] == as_built[2] | 0x10
    assert raw[: len(as_built)][:2] + raw[3 : len(as_built)] == as_built[:2] + as_built[3:]
    (event,) = [event for event in sender.session.receive_data(raw, 499) if isinstance(event, session.MessageReceived)]
    assert event.raw == as_built
    receiver.session.send(None, packet, False, 500)
    assert receiver.session.data_to_send() == as_built, "nothing to acknowledge, the flag is gone again"


@rule("B-096", "B-241")
def test_an_owner_that_numbers_elsewhere_rolls_the_sequence_itself() -> None:
    stream = streams.OutgoingStream(streams.OutgoingStream.new(7), rolls=False)
    packet = packets.user_message(ends.SENDER, 1, ends.DESTINATION, b"", delivery="transactional")
    for message_id in (1, 2, 3, 4):
        stream.number(packet, packets.transaction_offset(packet), message_id, message_id, journal=message_id < 3)
    assert len(stream.order_ack(ends.order_ack_body(7 << 32 | 1, 2), 0)) == 2
    for message_id in (2, 1, 4, 3):
        entry = stream.final_ack(message_id, 0)
        assert entry is not None
        assert entry.message_id == message_id
    assert stream.table == []
    assert stream.awaiting_final_ack == []
    assert stream.tx_sequence_id == 7 << 32 | 1
    assert stream.record[core.OUTGOING_NUMBER] == 5


@rule("B-151")
def test_the_transactional_timer_leaves_other_messages_in_flight() -> None:
    sender, _ = ends.open_pair()
    sender.send(b"r", "recoverable")
    sender.send(b"t")
    sender.pump(0)
    sender.stream.handle_timeout(30000)
    assert sender.stream.table[0].awaiting_ack
    assert sender.stream.next_to_send() is sender.stream.table[1]


@rule("B-048", "B-253")
def test_a_private_name_does_not_make_a_direct_session() -> None:
    _, receiver = ends.open_pair()
    name = packets.PrivateQueueFormatNameId(5)
    receiver.receive(packets.user_message(ends.SENDER, 1, name, b"", address=ends.RECEIVER), 0)
    assert receiver.queue
    assert not receiver.session.direct_format_session


@rule("B-345", "B-346", "B-128", "B-108", "B-130", "B-041")
def test_a_paused_queue_asks_for_one_message_at_a_time_until_it_is_resumed() -> None:
    sender, receiver = ends.open_pair()
    for _ in range(5):
        sender.send(b"x", "recoverable")
    sender.pump(0, 3)
    receiver.receive(sender.session.data_to_send(), 0)
    receiver.session.pause(10)
    raw = receiver.session.data_to_send()
    (header,) = _headers(raw)
    assert (header.ack_sequence_number, header.recoverable_msg_ack_seq_number, header.window_size) == (3, 1, 1)
    assert header.recoverable_msg_ack_flags == 0b111
    receiver.session.handle_timeout(20000)
    assert receiver.session.data_to_send() == b"", "its Session Ack Send Timer has stopped"
    assert not receiver.session._session_active
    sender.receive(raw, 10)  # sends what the window lets through
    assert sender.settled == [1, 2, 3]
    assert not sender.session.can_send(), "one message, and the next when it is acknowledged"
    receiver.receive(sender.session.data_to_send(), 20)
    raw = receiver.session.data_to_send()
    assert [(header.ack_sequence_number, header.window_size) for header in _headers(raw)] == [(4, 1)]
    sender.receive(raw, 20)
    assert not sender.session.can_send()
    receiver.session.resume(30)
    receiver.session.resume(30)
    sender.receive(receiver.session.data_to_send(), 30)
    assert sender.session.can_send()
    assert receiver.session.handle_timeout(300000) == [], "resuming counts as activity"
    assert _closed(receiver.session.handle_timeout(600000)).rule == "B-147"


@rule("B-345")
def test_there_is_nothing_to_pause_before_a_session_is_open_or_after_it() -> None:
    for state, subject in _states().items():
        subject.data_to_send()
        if state == session.OPEN:
            subject.close("B-163", "stop")
        subject.pause(0)
        subject.resume(0)
        assert subject.data_to_send() == b""


if __name__ == "__main__":
    run_tests(TESTS)
