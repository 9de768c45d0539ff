"""What a session sends, and what an acknowledgement leads to: tests of the engine. test_session.py runs them."""

from array import array

import engine_ends as ends
from engine_cases import parametrize, rule
from engine_ends import end_of, session_headers
from mqqb import build, compose, connection, core, hosts, parse, session, streams
from mqqb.destination import IncomingStream
from mqqb.hosts import TransferInfo
from mqqb.session import Settings

INTERVALS = (10,) * 3 + (20,) * 3 + (30,) * 3 + (40,)  # short ones in place of streams.RESEND_INTERVALS, ms


@rule("B-300", "B-299", "B-157", "B-069")
def test_in_flight_messages_are_resent_unchanged_on_reconnect():
    sender, receiver = ends.open_pair()
    for delivery in ("transactional", "express", "recoverable"):
        sender.send(b"body", delivery)
    sender.pump(0)
    first = sender.session.data_to_send()
    assert end_of(sender.session.transport_closed()).rule == "B-298"
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
def test_window_releases_held_messages_in_table_order():
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
def test_session_ack_bit_settles_forwarded_transactional_message():
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
def test_session_ack_timeout_starts_at_first_message():
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
