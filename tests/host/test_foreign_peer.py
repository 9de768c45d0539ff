"""A peer that speaks by hand: bytes from struct, written after the specification alone, against the real command.

Nothing of mqqb is imported, and nothing of the inside is looked at: only bytes on the socket, and what the command
prints.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from typing import Any

import pytest

from tests.support.command import ROOT
from tests.support.foreign_peer import (
    ESTABLISH,
    FINAL_ACK,
    FOR_EVER,
    GUIDS,
    LINE1,
    NOWHERE,
    NULL,
    ORDER_ACK,
    PLAIN,
    QUIET_S,
    SESSION_ACK,
    Line,
    Server,
    Tx,
    acknowledgement,
    establish,
    message,
    numbered,
    parameters,
    session_ack,
    session_header,
)

pytestmark = pytest.mark.slow


# ---- handshake ------------------------------------------------------------------------------------


@pytest.mark.rule("B-005", "B-207", "B-208", "B-215", "A-39", "OP-3", "OP-18")
@pytest.mark.parametrize(
    "variant",
    [
        {"reserved": 0x5A},
        {"system": 0x0110},
        {"system": 0x0010},
        {"system": 0xFF10},
        {"padding": bytes(512)},
        {"padding": bytes(range(256)) * 2},
        {"time_stamp": 0},
        {"time_stamp": FOR_EVER},
    ],
)
def test_a_request_as_scanners_and_windows_send_it_is_answered(server: Server, variant: dict[str, Any]) -> None:
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        request = establish(line.guid, **variant)
        line.write(request)
        answer = line.read()
        assert (answer.kind, answer.internal) == (ESTABLISH, 2)
        assert answer.data[20:36] == line.guid
        assert answer.data[36:52] != NULL
        assert answer.data[52:56] == request[52:56]
        assert answer.data[57] & 1 == request[57] & 1  # SE
        assert answer.data[60:] == b"\x5a" * 512
        line.write(parameters(1496, 120000, 32, reserved=0x5A))
        answer = line.read()
        assert struct.unpack("<HHIIHH", answer.data[16:]) == (0, 3, 1496, 120000, 0, 64)


@pytest.mark.rule("B-169", "B-433")
@pytest.mark.parametrize(
    "request_",
    [
        establish(NULL, system=0x0000),
        establish(NULL, system=0x0300),  # RE zero: outside its range, so by the default rule
        establish(NULL, padding=b"\x5a" * 508),
        establish(NULL, padding=b"\x5a" * 516),
    ],
)
def test_a_request_that_does_not_fit_is_not_answered(server: Server, request_: bytes) -> None:
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        line.write(request_[:8] + struct.pack("<I", len(request_)) + request_[12:])
        assert line.ends() == []


@pytest.mark.rule("B-207", "B-208")
def test_server_refuses_foreign_server_guid_and_disconnects(server: Server) -> None:
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        line.write(establish(line.guid, b"\x77" * 16))
        (answer,) = line.ends()
        assert answer.internal == 0x12
        assert answer.data[20:36] == line.guid
    with server.connect() as line:
        own = line.server
    with server.connect(server=own) as line:
        assert line.server == own
        line.works()


@pytest.mark.rule("B-180", "B-184", "B-186", "B-434")
def test_before_the_session_is_open_nothing_else_is_taken(server: Server) -> None:
    early = message(b"\x55" * 16, PLAIN, b"early")
    ack = session_ack(session_header(0))
    order_ack = acknowledgement(b"\x55" * 16, Tx(1, 1, 1, 0))
    for packets in ([early], [parameters()], [ack], [order_ack]):
        with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
            line.write(b"".join(packets) + early)
            assert line.ends() == []
    for packet in (early, establish(b"\x55" * 16), ack, order_ack):
        with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
            line.write(establish(line.guid))
            line.read()
            line.write(packet + early)
            assert line.ends() == []
    for packet in (establish(b"\x55" * 16), parameters()):
        with server.connect() as line:
            line.write(packet + early)
            assert line.ends() == []
    assert server.received("plain") == []


@pytest.mark.rule("B-213")
@pytest.mark.parametrize(
    ("recoverable", "ack", "good"),
    [
        (500, 20000, True),
        (120000, 120000, True),
        (499, 20000, False),
        (120001, 20000, False),
        (500, 19999, False),
        (500, 120001, False),
        (0, 0, False),
        (FOR_EVER, FOR_EVER, False),
    ],
)
def test_the_range_of_the_connection_parameters(server: Server, recoverable: int, ack: int, good: bool) -> None:
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        line.write(establish(line.guid))
        line.read()
        line.write(parameters(recoverable, ack))
        if good:
            assert struct.unpack_from("<II", line.read().data, 20) == (recoverable, ack)
        else:
            assert line.ends() == []


@pytest.mark.rule("B-089", "B-118", "B-213", "B-307", "A-25")
@pytest.mark.parametrize("window", [0, 1])
def test_a_peer_with_a_window_of_one_gets_one_packet_at_a_time(server: Server, window: int) -> None:
    with server.connect(window=window) as line:
        line.send(*(message(line.guid, NOWHERE, b"", tx) for tx in numbered(1, 3)))
        kinds = []
        for count in range(1, 5):
            kinds.append(line.until(FINAL_ACK if count < 4 else ORDER_ACK).kind)
            if count < 4:
                line.silent(0.7 if count == 1 else QUIET_S)  # the OrderAck is due by now
            assert line.received == count
            line.confirm(first=min(count, 3), bits=int(count < 4), window=1)
        assert kinds == [FINAL_ACK, FINAL_ACK, FINAL_ACK, ORDER_ACK]


# ---- framing --------------------------------------------------------------------------------------


@pytest.mark.rule("B-429", "OP-30")
@pytest.mark.timeout(180)
def test_four_mebibytes_are_taken_and_not_a_byte_more(server: Server) -> None:
    room = 0x400000 - len(message(NULL, PLAIN, b"", label="x" * 249))
    with server.connect(window=2) as line:
        line.send(message(line.guid, PLAIN, bytes(room), label="x" * 249))
        while line.acked != {1}:
            line.read()
        with contextlib.suppress(ConnectionError):
            line.write(message(line.guid, PLAIN, bytes(room + 4), label="x" * 249))
        line.ends()
    assert [len(body) for body in server.received("plain")] == [room]


# ---- session acknowledgements ---------------------------------------------------------------------


@pytest.mark.rule("B-087", "B-088", "B-101", "B-102", "B-103", "B-108", "B-280", "A-11")
def test_the_bits_name_exactly_the_recoverable_messages(server: Server) -> None:
    """The worked example of behaviour.md 5.2, on a socket."""
    with server.connect() as line:

        def send(pattern: str) -> tuple[int, ...]:
            line.send(*(message(line.guid, PLAIN, b"", delivery=int(letter == "r")) for letter in pattern))
            return line.until(SESSION_ACK).header[:3]

        assert send("eeeerrrrr") == (9, 1, 0x1F)
        assert send("errer") == (14, 6, 0x7)
        assert send("r") == (15, 9, 1)
        assert send("e" * 32) == (47, 0, 0)
        assert send("r" * 32) == (79, 10, 0xFFFFFFFF)
        assert send("e" + "r" * 31) == (111, 42, 0x7FFFFFFF)
        assert send("er") == (113, 73, 1)
    assert len(server.received("plain")) == 113


@pytest.mark.rule("B-100", "B-219", "B-227", "B-263", "A-12", "A-13", "A-51", "OP-1", "OP-14")
@pytest.mark.parametrize("delivery", [0, 1])
def test_a_session_header_is_taken_alone_and_in_a_message(server: Server, delivery: int) -> None:
    with server.connect() as line:
        line.confirm()
        for _ in range(3):
            line.send(
                message(
                    line.guid,
                    PLAIN,
                    b"carries",
                    delivery=delivery,
                    header=line.header(more=1, more_recoverable=delivery),
                )
            )
            line.confirm()
        line.works()
        for offset in (8, 10):  # UserMsgSequenceNumber, RecoverableMsgSeqNumber
            with server.connect() as other:
                header = bytearray(other.header(more=1, more_recoverable=delivery))
                header[offset] += 2
                other.write(
                    message(other.guid, PLAIN, b"wrong count", delivery=delivery, header=bytes(header))
                    + message(other.guid, PLAIN, b"after that")
                )
                other.ends()
        line.works()
    assert server.received("plain") == [b"carries"] * 3 + [b"alive"] + [b"wrong count"] * 2 + [b"alive"]


@pytest.mark.rule("B-227", "B-229", "B-436")
@pytest.mark.parametrize(
    "values",
    [
        {"ack": 1},
        {"ack": 0x7FFF},
        {"more": 1},
        {"more": -1},
        {"more_recoverable": 1},
        {"more_recoverable": -1},
        {"first": 1, "bits": 1},
        {"first": 0x7FFF, "bits": FOR_EVER},
    ],
)
def test_a_session_ack_that_cannot_be_true_ends_the_session(server: Server, values: dict[str, int]) -> None:
    with server.connect(window=2) as line:
        line.send(message(line.guid, PLAIN, b"before"))
        while line.ack != 1:
            line.read()
        line.write(session_ack(line.header(**values)) + message(line.guid, PLAIN, b"after that"))
        line.ends()
    assert server.received("plain") == [b"before"]


# ---- order, duplicates ----------------------------------------------------------------------------


@pytest.mark.rule("B-078", "B-110", "B-111", "B-268", "B-269", "B-270", "B-271", "B-273", "B-275", "B-358", "A-01")
@pytest.mark.rule("A-02", "A-03", "A-38")
def test_the_acceptance_table(server: Server) -> None:
    """behaviour.md 15.6. One source and one TxSequenceID for each row, so that the OrderAcks can be told apart."""
    rows = [  # TxSequenceID older, the same, newer; number, previous; accepted
        (0, 6, 5, True),
        (0, 5, 4, False),
        (0, 7, 6, False),
        (0, 8, 5, True),
        (0, 8, 3, True),
        (0, 3, 0, False),
        (1, 1, 0, True),
        (1, 4, 0, True),
        (1, 2, 1, False),
        (-1, 9, 0, False),
    ]
    bodies = []
    for by_time in (False, True):  # newer by TimeStamp, or by Ordinal
        expected = {}
        with server.connect() as line:
            for row, (step, number, previous, accepted) in enumerate(rows):
                source, start = next(GUIDS), (10 * row + 500, 7)
                place = (start[0] + step, 7 - 2 * step) if by_time else (start[0], 7 + step)
                line.send(
                    *(message(source, LINE1, b"", Tx(*start, n, n - 1)) for n in range(1, 6)),
                    message(source, LINE1, b"%d" % row, Tx(*place, number, previous)),
                )
                last = number if accepted else 5
                expected[row] = Tx(*(place if accepted else start), last, last - 1)
                bodies += [b""] * 5 + [b"%d" % row] * accepted
            got = {}
            while len(got) < len(rows):
                order_ack = line.until(ORDER_ACK)
                assert order_ack.tx
                got[(order_ack.tx.time_stamp - 500) // 10] = order_ack.tx
            assert got == expected
    assert server.received() == bodies


@pytest.mark.rule("B-248", "B-249", "B-250", "B-299", "A-14", "OP-32")
def test_resent_messages_on_new_connection_are_delivered_once(server: Server) -> None:
    source, other = next(GUIDS), next(GUIDS)
    stream = [message(source, LINE1, b"%d" % tx.number, tx) for tx in numbered(1, 3)]
    singles = [
        message(source, PLAIN, b"single", message_id=7),
        message(source, PLAIN, b"express", delivery=0, message_id=8),
        message(other, PLAIN, b"of another", message_id=7),
    ]
    for connection in range(3):
        with server.connect() as line:
            line.send(*stream, *singles)
            order_ack = line.until(ORDER_ACK)
            assert order_ack.tx == Tx(100, 1, 3, 2)
            while line.acked != {1, 2, 3, 4, 5}:
                line.read()
            assert line.ack == 6
            if connection == 2:
                line.send(*stream, *singles)  # and on the same one
                assert line.until(ORDER_ACK).tx == Tx(100, 1, 3, 2)
                while line.ack != 12:
                    line.read()
    assert server.received() == [b"1", b"2", b"3"]
    assert server.received("plain") == [b"single", b"express", b"of another"]


# ---- order and final acknowledgements -------------------------------------------------------------


@pytest.mark.rule("B-356", "B-357", "B-358", "B-361", "B-364", "B-437", "B-438", "B-441", "B-442", "A-03", "A-19")
@pytest.mark.rule("OP-6", "OP-7", "OP-26")
def test_the_bytes_of_an_order_ack(server: Server) -> None:
    with server.connect() as line:
        line.send(*(message(line.guid, LINE1, b"", tx) for tx in numbered(1, 2)))
        ack = line.until(ORDER_ACK)
        assert (ack.flags, ack.ttrq, ack.ttbr) == (0, FOR_EVER, FOR_EVER)
        assert (ack.source, ack.address, ack.user_flags) == (line.server, NULL, 0x00201C00)
        assert ack.destination == "TCP:127.0.0.1\\PRIVATE$\\order_queue$"
        assert (ack.label, ack.body_type, ack.ack) == ("QM Ordering Ack", 0, 0)
        assert ack.body == struct.pack("<IIII", 1, 100, 2, 1) + bytes(20)
    assert server.received() == [b"", b""]


@pytest.mark.rule("B-115", "B-256", "B-257", "B-260", "B-262", "B-356", "B-357", "B-360", "B-361", "B-437", "B-439")
@pytest.mark.rule("B-441", "B-442", "C-55", "C-56", "A-15")
@pytest.mark.parametrize(("destination", "message_class"), [(NOWHERE, 0x8000), (PLAIN, 0x8009)])
def test_a_rejected_transactional_message(server: Server, destination: str, message_class: int) -> None:
    with server.connect() as line:
        line.send(
            message(line.guid, destination, b"x", Tx(100, 1, 1, 0), message_id=77),
            message(line.guid, destination, b"y", Tx(100, 1, 4, 1), message_id=78),
        )
        final = [line.until(FINAL_ACK) for _ in range(2)]
        for ack, number, previous, identifier in zip(final, (1, 4), (0, 1), (77, 78)):
            assert (ack.kind, ack.message_class) == (FINAL_ACK, message_class)
            assert (ack.flags, ack.user_flags, ack.address, ack.label) == (0, 0x00201C20, NULL, "QM Ordering Ack")
            assert ack.destination == "TCP:127.0.0.1\\PRIVATE$\\order_queue$"
            assert (ack.ttrq, ack.ttbr, ack.source, ack.body_type) == (FOR_EVER, FOR_EVER, line.server, 0)
            assert ack.body == struct.pack("<IIII16sI", 1, 100, number, previous, line.guid, identifier)
        assert line.until(ORDER_ACK).tx == Tx(100, 1, 4, 3)
        while line.acked != {1, 2}:  # counted, and flagged like stored ones
            line.read()
        line.confirm(first=1, bits=3)
        line.works()
    assert server.received("plain") == [b"alive"]


@pytest.mark.rule("B-256", "B-258", "B-260")
def test_nontransactional_message_is_dropped_silently(server: Server) -> None:
    with server.connect() as line:
        line.send(
            message(line.guid, LINE1, b"no"), message(line.guid, NOWHERE, b"no"), message(line.guid, LINE1, delivery=0)
        )
        while line.acked != {1, 2}:
            line.read()
        line.silent(0.8)
        assert line.received == 0
    assert server.received() == []


# ---- the captured frames --------------------------------------------------------------------------

FRAMES = [bytes.fromhex(frame["raw_hex"]) for frame in json.loads((ROOT / "tests/vectors.json").read_text())["frames"]]


@pytest.mark.rule("B-207", "B-215", "A-47", "A-51", "OP-5", "OP-20", "OP-23")
def test_the_captured_frames_of_the_initiator(server: Server) -> None:
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        line.write(FRAMES[2])  # for another queue manager
        assert [seen.internal for seen in line.ends()] == [0x12]
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        line.write(FRAMES[2][:36] + NULL + FRAMES[2][52:])
        accepted = line.read().data
        assert accepted[:1] + accepted[2:36] == FRAMES[2][:1] + FRAMES[2][2:36]
        assert accepted[52:] == FRAMES[3][52:]
        line.write(FRAMES[4][:30] + struct.pack("<H", 2))  # a window of 2: an acknowledgement for every message
        agreed = line.read().data
        assert agreed[:1] + agreed[2:] == FRAMES[5][:1] + FRAMES[5][2:]
        # Frame 7 ends early: 572 bytes of body and 2 of padding are not from the document.
        line.write(FRAMES[6] + b"a\0" * 286 + bytes(2))
        line.sent = 1
        ack = line.read().data
        assert ack[:1] + ack[2:] == FRAMES[7][:1] + FRAMES[7][2:]


# ---- what becomes of a message --------------------------------------------------------------------
