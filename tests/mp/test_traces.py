"""The worked traces of the engine, on MicroPython (natively and with the twin) and on CPython. Prints `N passed, N
failed`.

Each function is one trace; tests/engine/test_engine.py runs the same ones under pytest, with their rule numbers.
"""

import sys

sys.path.insert(0, "tests/mp")

from engine_cases import TESTS, rule, run_tests
from engine_ends import (
    Receiver,
    Sender,
    exchange,
    final_ack_body,
    open_pair,
    order_ack_body,
    run,
    session_headers,
    transaction,
)
from mqqb import build, core, names, parse, streams
from mqqb.destination import IncomingStream


@rule("B-002", "B-096", "B-097", "B-112", "B-153", "B-217", "B-236", "B-317", "B-358", "A-17")
def happy_path():
    sender, receiver = open_pair()
    for k in range(3):
        sender.send(b"reading %d" % k)
    sender.pump(0)
    exchange(sender, receiver, 0)
    assert [body for _, _, body in receiver.queue] == [b"reading 0", b"reading 1", b"reading 2"]
    assert sender.settled == [], "nothing is settled before the OrderAck"
    run(sender, receiver, 0, 1000)
    assert sender.settled == [1, 2, 3]
    assert receiver.order_acks == [(500, 3)], receiver.order_acks
    assert sender.record[core.OUTGOING_ORDINAL] == 2, "a drained stream begins its next sequence"
    assert sender.record[core.OUTGOING_NUMBER] == 1


@rule("B-117", "B-237", "B-241", "B-244", "A-16", "A-19", "B-089", "B-055", "B-076", "B-096")
def happy_path_with_a_final_ack():
    """Trace 1: kept in the table, then until the FinalAck; one SessionAck covers both; the next sequence follows."""
    sender, receiver = open_pair()
    sender.send(b"x", journal=True)
    sender.pump(0)
    up = sender.session.data_to_send()
    receiver.receive(up, 0)
    assert receiver.incoming.record[core.INCOMING_NUMBER] == 1
    receiver.tick(499)
    assert receiver.order_acks == []
    receiver.tick(500)
    assert receiver.order_acks == [(500, 1)]
    sender.receive(receiver.session.data_to_send(), 500)
    assert sender.settled == []
    assert sender.stream.table == []
    (entry,) = sender.stream.awaiting_final_ack
    assert entry.received_order_ack
    receiver.final_ack(parse.parse(up), 0x4000, 1000)
    sender.receive(receiver.session.data_to_send(), 1000)
    assert sender.settled == [1]
    assert sender.rejected == [(1, 0x4000)]
    assert sender.stream.awaiting_final_ack == []
    sender.session.handle_timeout(1000 + 500)
    (header,) = session_headers(sender.session.data_to_send())
    assert (header[core.ACKS_SEQUENCE_NUMBER], header[core.ACKS_BASE]) == (2, 1)
    assert header[core.ACKS_FLAGS] == 1
    sender.send(b"y")
    assert sender.stream.table[0].tx_sequence_id == (7 << 32 | 2)
    assert sender.stream.table[0].tx_sequence_number == 1


@rule("B-110", "B-111", "B-113", "B-114", "B-046", "B-047", "A-29", "B-045")
def order_acks_coalesce():
    incoming = IncomingStream(now=-60000)
    sent = []
    now = 0
    arrivals = []
    k = 1
    t = 0
    while k <= 40:
        arrivals.append((t, k))
        t += 300
        k += 1
    for now in range(0, 12000, 100):
        due = incoming.next_timeout()
        if due is not None and now >= due:
            sent.append((now, incoming.tx_sequence_number))
            incoming.order_ack_sent(now)
        if arrivals and arrivals[0][0] == now:
            n = arrivals.pop(0)[1]
            assert incoming.accept(transaction(7 << 32 | 1, n, n - 1))
            incoming.schedule_order_ack(now)
    assert sent[:2] == [(500, 2), (10700, 36)], sent


@rule("B-136", "B-151", "B-152", "B-269", "B-272", "B-273", "A-01", "A-02")
def lost_order_ack():
    sender, receiver = open_pair()
    sender.send(b"1")
    sender.send(b"2")
    sender.pump(0)
    exchange(sender, receiver, 0)
    receiver.incoming.order_ack_sent(0)  # the OrderAck is lost
    now = run(sender, receiver, 0, 29900)
    assert len(receiver.queue) == 2
    assert sender.settled == []
    now = run(sender, receiver, now, 30000)
    assert receiver.incoming.record[core.INCOMING_REJECT_COUNT] == 2, "both came again and were refused"
    run(sender, receiver, now, 31000)
    assert sender.settled == [1, 2]
    assert len(receiver.queue) == 2
    assert receiver.order_acks == [(30500, 2)], receiver.order_acks


@rule("B-110", "B-270", "B-271", "A-01")
def hole_is_refused_and_filled_after_reconnect():
    """Trace 4: 2 was lost with the old connection; 3 is refused, and the OrderAck names 1."""
    sender, receiver = open_pair()
    for k in range(3):
        sender.send(b"%d" % k)
    sender.pump(0, 1)
    exchange(sender, receiver, 0)
    third = bytearray(sender.disk[3])
    sender.stream.prepare(sender.stream.table[2], third, parse.transaction_offset(third))
    receiver.receive(third, 100)
    assert [number[1] for _, number, _ in receiver.queue] == [1]
    assert receiver.incoming.record[core.INCOMING_REJECT_COUNT] == 1
    receiver.tick(600)
    assert receiver.order_acks == [(600, 1)]
    open_pair(600, sender, receiver)
    assert [number[1] for _, number, _ in receiver.queue] == [1, 2, 3]
    assert receiver.incoming.record[core.INCOMING_REJECT_COUNT] == 0


@rule("B-094", "B-316", "B-318", "B-319", "A-34")
def expiry_is_bridged():
    sender, receiver = open_pair()
    sender.send(b"1")
    sender.pump(0)
    exchange(sender, receiver, 0)
    run(sender, receiver, 0, 100)
    sender.send(b"2")
    sender.send(b"3")
    expired = sender.stream.table[1]
    sender.stream.remove([expired])
    sender.stream.remove([sender.stream.table[0]])
    sender.pump(100)
    exchange(sender, receiver, 100)
    assert [number[1] for _, number, _ in receiver.queue] == [1, 3]


@rule("B-230", "B-231", "B-233", "B-234", "A-04", "A-05", "B-093", "B-079")
def stale_order_ack_changes_nothing():
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0, 100))
    packet = build.user_message(
        bytes(16), 1, names.parse_format_name("DIRECT=OS:a\\private$\\q"), b"", delivery="transactional"
    )
    offset = parse.transaction_offset(packet)
    for k in range(8):
        stream.number(packet, offset, k, k + 1)
    assert len(stream.order_ack(order_ack_body(100, 8), 0)) == 8
    assert stream.tx_sequence_id == 101
    for k in range(3):
        stream.number(packet, offset, k, k + 11)
    assert stream.order_ack(order_ack_body(100, 8), 1) == []
    assert len(stream.table) == 3
    for tx_sequence_id, number in ((102, 1), (101, 4), (101, 0)):
        assert stream.order_ack(order_ack_body(tx_sequence_id, number), 1) == []
    assert stream.last_ack_count == 5
    assert [entry.message_id for entry in stream.order_ack(order_ack_body(101, 2), 1)] == [11, 12]
    assert stream.order_ack(order_ack_body(101, 2), 1) == []


@rule("B-039", "B-118", "B-157", "B-159", "B-160", "A-09", "A-10", "B-299", "B-038", "B-250", "B-086", "B-087", "A-14")
def reconnect_in_mid_stream():
    """Trace 7: 10 of 70 are acknowledged when the connection breaks; the receiver has 54 of the other 60 already."""
    sender, receiver = open_pair()
    for k in range(70):
        sender.send(b"%d" % k, "recoverable")
    sender.pump(0, 10)
    receiver.receive(sender.session.data_to_send(), 0)
    sender.pump(0)
    assert not sender.session.can_send(), "64 are on their way, the window"
    receiver.session.handle_timeout(500)
    sender.session.receive_data(receiver.session.data_to_send(), 500)
    sender.stream.remove(sender.stream.table[:10])
    assert sender.session.can_send()
    receiver.receive(sender.session.data_to_send(), 500)
    assert len(receiver.queue) == 64
    sender.session.transport_closed()
    sender.connect(1000)
    receiver.accept(1000)
    assert sender.stream.next_to_send() is sender.stream.table[0]
    for entry in sender.stream.table:
        assert (entry.sequence_number, entry.recoverable_sequence_number) == (0, 0)
        assert not entry.awaiting_ack
    while sender.session.state != "OPEN":
        receiver.receive(sender.session.data_to_send(), 1000)
        sender.session.receive_data(receiver.session.data_to_send(), 1000)
    assert sender.pump(1000) == 60
    numbers = [(entry.sequence_number, entry.recoverable_sequence_number) for entry in sender.stream.table]
    assert numbers == [(k, k) for k in range(1, 61)]
    exchange(sender, receiver, 1000)
    run(sender, receiver, 1000, 2000)
    assert sender.settled == list(range(11, 71))
    assert sender.stream.table == []
    assert receiver.duplicates == 54
    assert [message_id for message_id, _, _ in receiver.queue] == list(range(1, 71))


@rule("B-241", "B-244", "B-245", "A-16", "B-262", "A-15")
def rejection_settles_and_its_successor_is_taken_at_once():
    """Trace 8: 5 gets a FinalAck and counts as passed, so that 6 is next."""
    sender, receiver = open_pair()
    receiver.refuse = {5: 0x8003}
    for k in range(6):
        sender.send(b"%d" % k)
    rejected = sender.stream.table[4]
    sender.pump(0, 5)
    receiver.receive(sender.session.data_to_send(), 0)
    assert receiver.incoming.record[core.INCOMING_NUMBER] == 5
    assert [number[1] for _, number, _ in receiver.queue] == [1, 2, 3, 4]
    sender.receive(receiver.session.data_to_send(), 0)
    assert sender.rejected == [(5, 0x8003)]
    assert [entry.tx_sequence_number for entry in sender.stream.table] == [1, 2, 3, 4, 6]
    exchange(sender, receiver, 0)
    assert [number[1] for _, number, _ in receiver.queue] == [1, 2, 3, 4, 6]
    assert receiver.incoming.record[core.INCOMING_REJECT_COUNT] == 0
    run(sender, receiver, 0, 1000)
    assert sender.stream.table == []
    assert sender.stream.final_ack(final_ack_body(rejected), 0) is None, "a second FinalAck finds nothing"


@rule("B-014", "B-015", "B-016", "B-017", "B-018", "B-136", "B-152", "A-06", "A-07")
def back_off():
    stream = streams.OutgoingStream(streams.OutgoingStream.new(0))
    packet = build.user_message(
        bytes(16), 1, names.parse_format_name("DIRECT=OS:a\\private$\\q"), b"", delivery="transactional"
    )
    entry = stream.number(packet, parse.transaction_offset(packet), 1, 1)
    times = []
    now = 0
    stream.sent(entry, 0)
    while len(times) < 11:
        now = stream.next_timeout()
        stream.handle_timeout(now - 1)
        stream.handle_timeout(now)
        times.append(now // 1000)
        assert stream.next_to_send() is entry
        entry.awaiting_ack = True
        stream.sent(entry, now)
    assert times == [30, 60, 90, 390, 690, 990, 2790, 4590, 6390, 27990, 49590], times


@rule("B-072", "B-098", "B-158", "B-317", "A-08", "B-301")
def crash_of_the_sender_keeps_the_numbers():
    sender, receiver = open_pair()
    for k in range(5):
        sender.send(b"%d" % k)
    sender.pump(0, 3)
    exchange(sender, receiver, 0)
    sender.crash()
    open_pair(0, sender, receiver)
    sender.pump(0)
    exchange(sender, receiver, 0)
    run(sender, receiver, 0, 1000)
    assert [number[1] for _, number, _ in receiver.queue] == [1, 2, 3, 4, 5]
    assert sender.settled == [1, 2, 3, 4, 5]


@rule("B-098", "B-102", "B-103", "B-123", "B-281", "A-31", "A-32")
def nothing_is_acknowledged_before_it_is_stored():
    sender, receiver = open_pair()
    receiver.hold = True
    for k in range(40):
        sender.send(b"%d" % k)
    sender.pump(0)
    receiver.receive(sender.session.data_to_send(), 0)
    for now in (1000, 5000, 11000, 21000):
        receiver.session.handle_timeout(now)
        for event in session_headers(receiver.session.data_to_send()):
            assert event[core.ACKS_SEQUENCE_NUMBER] == 0
            assert event[core.ACKS_FLAGS] == 0
    receiver.store(21000)
    headers = session_headers(receiver.session.data_to_send())
    assert headers[-1][core.ACKS_SEQUENCE_NUMBER] >= 32
    assert headers[0][core.ACKS_BASE] == 1
    assert headers[0][core.ACKS_FLAGS] == 0xFFFFFFFF


@rule("B-429", "B-430")
def every_byte_boundary():
    """The same conversation, one byte at a time: nothing depends on how the stream is cut into reads."""
    whole = open_pair()
    single = (Sender(), Receiver())
    single[0].connect(0)
    single[1].accept(0)

    def dribble():
        moved = True
        while moved:
            up = single[0].session.data_to_send()
            for k in range(len(up)):
                single[1].receive(up[k : k + 1], 0)
            down = single[1].session.data_to_send()
            for k in range(len(down)):
                single[0].receive(down[k : k + 1], 0)
            moved = bool(up or down)

    dribble()
    for sender, _ in (whole, single):
        for k in range(4):
            sender.send(bytes(37 * k))
        sender.pump(0)
    exchange(whole[0], whole[1], 0)
    dribble()
    assert single[1].queue == whole[1].queue
    assert len(whole[1].queue) == 4


if __name__ == "__main__":
    run_tests(TESTS)
