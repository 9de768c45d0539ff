"""The engine: handshake, closing, settings; session_acks.py and session_sending.py have more. On MicroPython (natively
and with the twin) and on CPython, where tests/engine/test_engine.py hands the same functions to pytest. Prints `N
passed, N failed`.

Each test names the rules that it shows.
"""

import gc
import sys

sys.path.insert(0, "tests/mp")

from array import array

import engine_ends as ends
import packet_build
import session_acks
import session_sending
from engine_cases import TESTS, parametrize, rule, run_tests
from engine_ends import end_of, session_headers, states
from mqqb import acks, build, compose, connection, core, hosts, names, parse, session, streams
from mqqb.connection import Opened
from mqqb.session import Settings

INTERVALS = (10,) * 3 + (20,) * 3 + (30,) * 3 + (40,)  # short ones in place of streams.RESEND_INTERVALS, ms

assert {session_acks, session_sending}, "imported, so that their tests are known"

# ---- handshake ------------------------------------------------------------------------------------


@rule("B-181", "B-204", "B-185", "B-205", "B-207", "B-208", "A-39", "OP-3", "B-049")
def test_request_without_server_guid_is_answered_with_own_guid() -> None:
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
def test_session_answers_and_refuses_foreign_server_guid() -> None:
    initiator = session.Session(True, ends.SENDER, 0, remote_guid=b"\x01" * 16)
    initiator.connected(0)
    acceptor = session.Session(False, ends.RECEIVER, 0)
    closed = end_of(acceptor.receive_data(initiator.data_to_send(), 0))
    assert closed.rule == "B-207"
    answer = acceptor.data_to_send()
    assert parse.parse(answer).internal.fields[core.INTERNAL_FLAGS] & core.INTERNAL_CS
    assert end_of(initiator.receive_data(answer, 0)).rule == "B-209"


@rule("B-209")
@parametrize("wrong", ["client", "server", "null"])
def test_an_answer_with_wrong_guids_closes(wrong: str) -> None:
    initiator = session.Session(True, ends.SENDER, 0, remote_guid=ends.RECEIVER)
    initiator.connected(0)
    client = b"\x09" * 16 if wrong == "client" else ends.SENDER
    server = {"client": ends.RECEIVER, "server": b"\x09" * 16, "null": bytes(16)}[wrong]
    answer = compose.establish_connection(client, server, 0)
    assert end_of(initiator.receive_data(answer, 0)).rule == "B-209"


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
@parametrize(("state", "kind"), [(state, kind) for state in sorted(states()) for kind in sorted(_samples())])
def test_packet_outside_state_table_closes_session(state: str, kind: str) -> None:
    subject = states()[state]
    events = subject.receive_data(_samples()[kind], 1)
    if (state, kind) in [row[:2] for row in session.TABLE]:
        assert subject.closed is None, (state, kind, subject.closed)
    else:
        assert end_of(events).rule in ("B-180", "B-434")
        assert kind in subject.closed.reason or subject.closed.rule == "B-434"
        assert subject.state == connection.CLOSED
        assert subject.receive_data(_samples()["EstablishConnection"], 1) == [], "a closed session takes nothing"
        assert subject.data_to_send() == b"", "closing sends no packet"
    assert subject.next_timeout() is None or subject.closed is None


@rule("B-434", "B-433")
def test_unestablished_session_refuses_partial_message() -> None:
    acceptor = session.Session(False, ends.RECEIVER, 0)
    assert end_of(acceptor.receive_data(_samples()["UserMessage"][:16], 0)).rule == "B-434"
    acceptor = session.Session(False, ends.RECEIVER, 0)
    huge = bytearray(_samples()["EstablishConnection"][:16])
    huge[8:12] = (0x400000).to_bytes(4, "little")
    assert end_of(acceptor.receive_data(huge, 0)).rule == "B-433"


@rule("B-168", "B-169", "B-004")
@parametrize(("offset", "rule_number"), [(0, "B-168"), (4, "B-168"), (11, "B-429")])
def test_malformed_packet_closes_session_with_its_rule(offset: int, rule_number: str) -> None:
    _, receiver = ends.open_pair()
    packet = bytearray(_samples()["UserMessage"])
    packet[offset] ^= 0xFF
    events = receiver.receive(bytes(packet), 0)
    assert end_of(events).rule == rule_number
    assert receiver.queue == []
    assert receiver.session.data_to_send() == b""


@rule("B-298", "B-297")
def test_transport_closed_once() -> None:
    sender, _ = ends.open_pair()
    assert end_of(sender.session.transport_closed()).rule == "B-298"
    assert sender.session.transport_closed() == []
    assert sender.session.close("B-163", "stop") == []
    other, _ = ends.open_pair()
    assert end_of(other.session.close("B-163", "stop")).reason == "stop"
    assert sender.session.closed is not None
    assert sender.session.closed.rule == "B-298"
    assert sender.session.next_timeout() is None
    assert sender.session.handle_timeout(10**9) == []
    assert not sender.session.can_send()
    sender.session.stored(True, 0)


# ---- the elements of a session, and that a new one begins with none of the old ---------------------------


@rule("B-030", "B-044", "B-161", "B-181", "B-185", "B-218")
def test_session_starts_waiting_for_ec_with_full_init_timeout():
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
def test_small_peer_window_doubles_every_30_seconds():
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
    assert sender.session.due[connection.WINDOW_GROWTH] is None


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
def test_session_ack_timeout_doubles_for_direct_names_only():
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
def test_idle_session_stays_open_while_owner_needs_it():
    _, receiver = ends.open_pair(settings=Settings(cleanup_timeout=100000))
    needed = [True]
    receiver.session.is_needed = lambda: needed[0]
    for now in range(100000, 500000, 100000):
        assert receiver.session.handle_timeout(now) == []
    needed[0] = False
    assert end_of(receiver.session.handle_timeout(500000)).rule == "B-147"


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
