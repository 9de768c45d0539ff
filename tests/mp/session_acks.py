"""What a session acknowledges, its window and its timers: tests of the engine. test_session.py runs them."""

from array import array

import engine_ends as ends
from engine_cases import parametrize, rule
from engine_ends import end_of, session_headers, states
from mqqb import acks, build, compose, connection, core, headers, hosts, names, parse, session, streams
from mqqb.connection import MessageReceived, Noted
from mqqb.session import Settings

INTERVALS = (10,) * 3 + (20,) * 3 + (30,) * 3 + (40,)  # short ones in place of streams.RESEND_INTERVALS, ms


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
def test_express_session_ack_waits_half_ack_timeout() -> None:
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
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_BASE], header[core.ACKS_FLAGS]) == (1, 0, 0)
    sender.receive(raw, 10000)
    assert sender.settled == [1]
    assert sender.stream.table == []


@rule("B-125", "B-126", "B-263", "B-100", "OP-1", "OP-14", "A-12", "A-51", "B-105", "B-322")
@parametrize("delivery", ["express", "recoverable", "transactional"])
def test_session_ack_piggybacks_after_three_quarters_of_delay(delivery: str) -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    for now, rides in ((375, False), (376, True)):
        recoverable = delivery != "express"
        packet = build.user_message(ends.RECEIVER, now, ends.DESTINATION, b"back", delivery=delivery)
        if parse.transaction_offset(packet):
            streams.OutgoingStream(streams.OutgoingStream.new(1)).number(packet, parse.transaction_offset(packet), 1, 1)
        as_built = bytes(packet)
        receiver.session.send(
            streams.Entry(1, now, recoverable, False, 1, int(delivery == "transactional")), packet, recoverable, now
        )
        raw = receiver.session.data_to_send()
        assert raw[core.BASE_FLAGS_AT] == as_built[core.BASE_FLAGS_AT] | core.BASE_SH * rides
        message = parse.parse(raw)
        assert (message.session is not None) == rides
        assert len(raw) == message.base.fields[core.BASE_PACKET_SIZE] + 16 * rides
        events = sender.session.receive_data(raw, now)
        assert type(events[0]) is MessageReceived
        assert events[0].raw == as_built, "it is stored as it was sent, without a SessionHeader"
        assert sender.session.closed is None
    assert sender.stream.table[0].received_session_ack
    receiver.session.handle_timeout(500)
    assert receiver.session.data_to_send() == b"", "what rode along needs no SessionAck"


@rule("B-122", "B-279")
def test_second_stored_message_does_not_restart_ack_send_timer():
    sender, receiver = ends.open_pair()
    for now in (0, 300):
        sender.send(b"x")
        sender.pump(now)
        receiver.receive(sender.session.data_to_send(), now)
    assert receiver.session.next_timeout() == 500


@rule("B-147", "A-28")
def test_session_that_sends_is_not_idle():
    sender, _ = ends.open_pair(settings=connection.Settings(cleanup_timeout=1000))
    sender.send(b"x")
    sender.pump(500)
    sender.session.handle_timeout(1000)
    assert sender.session.closed is None
    sender.session.handle_timeout(2000)
    assert sender.session.closed.rule == "B-147"


@rule("B-437", "B-443", "A-17")
@parametrize("now", [20, 499, 600])
def test_ack_has_no_session_header_and_follows_session_ack(now: int) -> None:
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
        assert end_of(events).rule == "B-227"
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
    assert end_of(events).rule == "B-227"


@rule("B-229", "B-436")
def test_ack_of_unsent_message_closes_session() -> None:
    for words in ((1, 0, 0, 0, 0, 64, 0), (0, 1, 1, 0, 0, 64, 0)):
        sender, _ = ends.open_pair()
        assert end_of(sender.receive(bytes(compose.session_ack(array("I", words))), 0)).rule == "B-229"


@rule("B-134", "B-148", "B-149", "B-167", "B-228", "A-27")
def test_silent_peer_times_out_but_idle_peer_does_not() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    assert sender.session.handle_timeout(40000) == [], "the handshake was heard in this period"
    assert end_of(sender.session.handle_timeout(80000)).rule == "B-148"
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
    assert end_of(sender.session.handle_timeout(120000)).rule == "B-148"
    sender, receiver = ends.open_pair()
    for end in (sender, receiver):
        assert end.session.handle_timeout(299999) == []
    sender.session.progressed()
    receiver.receive(packet[:100], 299999)
    for end in (sender, receiver):
        assert end.session.handle_timeout(300000) == [], "it is not idle"
        assert end_of(end.session.handle_timeout(600000)).rule == "B-147"
    sender, receiver = ends.open_pair()
    receiver.session.send(None, bytearray(packet), True, 0)
    assert receiver.session.handle_timeout(40000) == []
    receiver.receive(packet[:100], 50000)
    assert receiver.session.handle_timeout(80000) == [], "a part of a packet has come in this period"
    assert end_of(receiver.session.handle_timeout(120000)).rule == "B-148"


@rule("B-181", "B-147")
def test_split_handshake_does_not_delay_idle_timeout() -> None:
    acceptor = session.Session(False, ends.RECEIVER, 0)
    initiator = session.Session(True, ends.SENDER, 0)
    initiator.connected(0)
    request = initiator.data_to_send()
    acceptor.receive_data(request[:100], 0)
    acceptor.receive_data(request[100:], 0)
    initiator.receive_data(acceptor.data_to_send(), 0)
    acceptor.receive_data(initiator.data_to_send(), 0)
    assert acceptor.state == connection.OPEN
    assert end_of(acceptor.handle_timeout(300000)).rule == "B-147"


@rule("B-131", "B-155", "A-41")
def test_a_handshake_that_takes_too_long_is_given_up() -> None:
    for state, subject in states().items():
        if state != connection.OPEN:
            assert subject.handle_timeout(59999) == []
            assert end_of(subject.handle_timeout(60000)).rule == "B-155"


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
def test_order_ack_read_in_place_makes_session_direct() -> None:
    for direct in (True, False):
        sender, _ = ends.open_pair()
        name = ends.ORDER_QUEUE if direct else headers.PrivateQueueFormatNameId(names.ORDER_QUEUE_ID)
        ack = acks.order_ack(name, ends.RECEIVER, 1, 0, 1, 7, 1, **({} if direct else {"address": ends.SENDER}))
        (event,) = _read_in_place(sender.session, bytes(ack))
        assert isinstance(event.packet.body, streams.OrderAckBody)
        assert sender.session.direct_format_session == direct


@rule("B-106")
def test_malformed_session_header_in_order_ack_is_detected() -> None:
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
    assert end_of(_read_in_place(sender.session, bytes(raw))).rule == "B-106"


@rule("B-169")
def test_order_ack_with_false_header_flag_closes_session() -> None:
    ack = acks.order_ack(ends.ORDER_QUEUE, ends.RECEIVER, 1, 0, 1, 7, 1)
    wrong = bytearray(ack)
    wrong[2] |= 0x20  # DH: a DebugHeader, which is not there
    rules = []
    for known in (False, True):
        sender, _ = ends.open_pair()
        if known:
            (event,) = _read_in_place(sender.session, bytes(ack))
            assert isinstance(event, MessageReceived)
        rules.append(end_of(_read_in_place(sender.session, bytes(wrong))).rule)
    assert rules[0] == rules[1]


@rule("B-123", "B-277", "B-280", "A-11")
def test_full_ack_bit_field_is_sent_before_next_message() -> None:
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
def test_left_out_message_keeps_its_number_and_sequence() -> None:
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
def test_resent_order_ack_settles_message_added_meanwhile() -> None:
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
    assert end_of(receiver.session.handle_timeout(start + 700000)).rule == "B-147"


@rule("B-148", "B-042", "B-149", "B-167")
def test_a_peer_that_says_something_in_each_period_is_kept() -> None:
    sender, receiver = ends.open_pair()
    sender.send(b"x")
    sender.pump(0)
    for now in range(40000, 400000, 40000):
        receiver.session.send(None, build.user_message(ends.RECEIVER, now, ends.DESTINATION, b""), False, now)
        sender.session.receive_data(receiver.session.data_to_send(), now - 1)
        assert sender.session.handle_timeout(now) == []
    assert end_of(sender.session.handle_timeout(400000)).rule == "B-148"


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
def test_paused_receiver_keeps_window_at_one_until_resumed() -> None:
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
    assert end_of(receiver.session.handle_timeout(600000)).rule == "B-147"


@rule("B-345", "B-281", "B-121")
def test_unstored_message_is_acknowledged_after_pause_ends():
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
def test_piggybacked_ack_keeps_timer_for_unstored_message():
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
def test_packet_after_handshake_may_arrive_in_parts():
    parameters = bytes(compose.connection_parameters(500, 20000, 64))
    for size in range(len(parameters)):
        acceptor = session.Session(False, ends.RECEIVER, 0)
        request = bytes(compose.establish_connection(ends.SENDER, bytes(16), 0))
        acceptor.receive_data(request + parameters[:size], 0)
        assert (acceptor.state, acceptor.reader.end - acceptor.reader.begin) == (connection.WAITING_CP_MSG, size)
        acceptor.receive_data(parameters[size:], 0)
        assert acceptor.state == connection.OPEN


@rule("B-345")
def test_pause_and_resume_do_nothing_outside_open_session() -> None:
    for state, subject in states().items():
        subject.data_to_send()
        if state == connection.OPEN:
            subject.close("B-163", "stop")
        hosts.pause(subject, 0)
        hosts.resume(subject, 0)
        assert subject.data_to_send() == b""
