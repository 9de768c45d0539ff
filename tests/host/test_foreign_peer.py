"""A peer that speaks by hand: bytes from struct, written after the specification alone, against the real command.

Nothing of mqqb is imported, and nothing of the inside is looked at: only bytes on the socket, and what the command
prints.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ROOT
from tests.support.command import as_json as ordack
from tests.support.foreign_peer import (
    ESTABLISH,
    FINAL_ACK,
    FOR_EVER,
    GUIDS,
    LINE1,
    MESSAGE,
    NOWHERE,
    NULL,
    NUMBERS,
    ORDER_ACK,
    PARAMETERS,
    PLAIN,
    QUIET_S,
    SESSION_ACK,
    Hop,
    Line,
    Seen,
    Server,
    Tx,
    acknowledgement,
    align,
    answer,
    base,
    direct,
    establish,
    message,
    numbered,
    parameters,
    properties,
    session_ack,
    session_header,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def server(running: Server) -> Server:
    """The server, with queues that are empty."""
    for one in ordack("queue", "list", "--store", running.store):
        if one["messages"]:
            running.received(one["name"])
    return running


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("foreign") / "store")
    yield running
    running.stop()


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
def test_a_request_for_another_queue_manager_is_refused_and_the_connection_closed(server: Server) -> None:
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


@pytest.mark.rule("B-002", "B-429")
def test_one_byte_at_a_time_and_everything_in_one_segment(server: Server) -> None:
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        stream = (
            establish(line.guid)
            + parameters()
            + b"".join(message(line.guid, LINE1, b"%d" % tx.number, tx) for tx in numbered(1, 3))
        )
        for byte in stream:
            line.write(bytes([byte]))
        line.sent = line.recoverable_sent = 3
        while line.until(ORDER_ACK).tx != Tx(100, 1, 3, 2):
            pass  # one of fewer messages, if the bytes went slowly
    with Line(socket.create_connection(("127.0.0.1", server.port))) as line:
        line.sent = line.recoverable_sent = 3
        line.write(
            establish(line.guid)
            + parameters()
            + b"".join(message(line.guid, LINE1, b"%d" % tx.number, tx) for tx in numbered(1, 3))
        )
        assert line.until(ORDER_ACK).tx == Tx(100, 1, 3, 2)
    assert server.received() == [b"1", b"2", b"3"] * 2


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


@pytest.mark.rule("B-429", "B-435")
def test_slow_and_half_open_connections_hold_nobody_up(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for sent in (b"", b"\x10", establish(NULL)[:571], base(0x400000, 3)):
            stack.enter_context(Line(socket.create_connection(("127.0.0.1", server.port)))).write(sent)
        half = [stack.enter_context(Line(socket.create_connection(("127.0.0.1", server.port)))) for _ in range(2)]
        for line in half:
            line.write(establish(line.guid))
            line.read()
        silent = stack.enter_context(server.connect())
        silent.send(message(silent.guid, PLAIN, b"and then", delivery=0))
        half_sent = stack.enter_context(server.connect())
        whole = message(half_sent.guid, PLAIN, b"slow")
        half_sent.write(whole[:100])
        with server.connect() as line:
            line.works()
        half_sent.write(whole[100:])
        half_sent.sent = half_sent.recoverable_sent = 1
        while half_sent.acked != {1}:
            half_sent.read()
    assert sorted(server.received("plain")) == [b"alive", b"and then", b"slow"]


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


@pytest.mark.rule(
    "B-078",
    "B-110",
    "B-111",
    "B-268",
    "B-269",
    "B-270",
    "B-271",
    "B-273",
    "B-275",
    "B-358",
    "A-01",
    "A-02",
    "A-03",
    "A-38",
)
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
def test_what_is_sent_again_on_a_new_connection_is_counted_and_delivered_once(server: Server) -> None:
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


@pytest.mark.rule(
    "B-356", "B-357", "B-358", "B-361", "B-364", "B-437", "B-438", "A-03", "A-19", "OP-6", "OP-7", "OP-26"
)
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


@pytest.mark.rule(
    "B-115",
    "B-256",
    "B-257",
    "B-260",
    "B-262",
    "B-356",
    "B-357",
    "B-360",
    "B-361",
    "B-437",
    "B-439",
    "C-55",
    "C-56",
    "A-15",
)
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
            assert (ack.flags, ack.user_flags, ack.address) == (0, 0x00201C20, NULL)
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
def test_a_message_that_is_not_transactional_is_dropped_without_a_word(server: Server) -> None:
    with server.connect() as line:
        line.send(
            message(line.guid, LINE1, b"no"), message(line.guid, NOWHERE, b"no"), message(line.guid, LINE1, delivery=0)
        )
        while line.acked != {1, 2}:
            line.read()
        line.silent(0.8)
        assert line.received == 0
    assert server.received() == []


@pytest.mark.rule("B-099", "B-264", "B-362", "B-440", "A-20", "A-21", "A-38")
def test_acknowledgements_for_private_format_names_go_to_the_source_by_guid(server: Server) -> None:
    with server.connect() as line:
        source = next(GUIDS)  # of a peer behind this one
        for address in (line.server, NULL):
            line.send(message(source, server.line1_id, b"by number", Tx(100, 1, 1, 0), address=address))
        line.send(message(source, 0x7FFFFFFF, b"to nowhere", Tx(200, 1, 1, 0), address=line.server))
        acks = [line.until(kind) for kind in (FINAL_ACK, ORDER_ACK, ORDER_ACK)]
        for ack in acks:
            assert (ack.destination, ack.address, ack.size) == (4, source, 192)
            assert ack.user_flags & ~0x20 == 0x00200C00
        assert {ack.tx for ack in acks} == {Tx(100, 1, 1, 0), Tx(200, 1, 1, 0)}
        # From now on it is a session of direct names, whose address is that of its peer, not of one behind it.
        line.send(
            message(line.guid, LINE1, b"by name", Tx(300, 1, 1, 0)), message(source, LINE1, b"too", Tx(400, 1, 1, 0))
        )
        where = {ack.tx: ack.destination for ack in (line.until(ORDER_ACK), line.until(ORDER_ACK))}
        assert where == {Tx(300, 1, 1, 0): "TCP:127.0.0.1\\PRIVATE$\\order_queue$", Tx(400, 1, 1, 0): 4}
    assert server.received() == [b"by number", b"by name", b"too"]


# ---- shapes that have ended queue managers --------------------------------------------------------


def soap(header_length: int, body_length: int, text: bytes = b"a\0\0\0") -> bytes:
    return struct.pack("<HHI", 0x0320, 0, header_length) + text + struct.pack("<HHI", 0x0384, 0, body_length) + text


def security(*sizes: int, flags: int = 1, data: bytes = b"") -> bytes:
    return struct.pack("<HHHHII", flags, *sizes) + data


def lists(count: int = 1, size: int | None = None, element: int = 3, header_id: int = 0x0064) -> bytes:
    name = struct.pack("<H", element) + "OS:a\\q\0".encode("utf-16-le")
    first = align(struct.pack("<IHHI", 12 + len(name) if size is None else size, header_id, 0, count) + name)
    empty = b"".join(struct.pack("<IHHI", 12, identifier, 0, 0) for identifier in (0x00C8, 0x012C))
    return first + empty + struct.pack("<HHI", 0x015E, 0, 0)


X = b"\x55" * 16
SID = bytes.fromhex("010100000000000501000000")
# What is wrong -> a message, or more than one, of which the last is the one that is wrong.
MALFORMED: dict[str, bytes] = {
    "a version": base(120, 3, version=0x11) + bytes(104),
    "a signature": base(120, 3, signature=0x4C494F52) + bytes(104),
    "PacketSize 0": message(X, PLAIN, size=0),
    "PacketSize 15": message(X, PLAIN, size=15),
    "PacketSize 119": message(X, PLAIN, size=119),
    "PacketSize beyond 4 MiB": message(X, PLAIN, size=0x400004),
    "PacketSize beyond all": message(X, PLAIN, size=FOR_EVER),
    "PacketSize below its headers": message(X, PLAIN, bytes(100), size=200),
    "AH": message(X, PLAIN, user_flags=0x02000000),
    "MP 0": message(X, PLAIN, clear=0x00200000),
    "DM 2": message(X, PLAIN, delivery=2),
    "DM 3": message(X, PLAIN, delivery=3),
    "TH with DM 0": message(X, LINE1, tx=Tx(1, 1, 1, 0), delivery=0),
    "TxSequenceNumber 0": message(X, LINE1, tx=Tx(1, 1, 0, 0)),
    "PT 1 without SessionHeader": base(36, 0x000B) + struct.pack("<HH", 0, 1) + bytes(16),
    "a SessionAck of 32": base(32, 0x001B) + struct.pack("<HH", 0, 1) + bytes(12),
    "a SessionAck of 40": base(40, 0x001B) + struct.pack("<HH", 0, 1) + session_header(0) + bytes(4),
    "QT 2": message(X, PLAIN, flags=0x0023, after=struct.pack("<HH", 2, 0) + bytes(16)),
    "no DebugHeader": message(X, PLAIN, flags=0x0023),
    "no SessionHeader's end": message(X, PLAIN, size=116, flags=0x0013),
    "LabelLength 251": message(X, PLAIN, props=properties(b"a\0" * 300, label_length=251)),
    "LabelLength beyond": message(X, PLAIN, props=properties(b"", label_length=249)),
    "a label without end": message(X, PLAIN, props=properties(b"a\0" * 4, label_length=4, size=0)),
    "a label that ends early": message(X, PLAIN, props=properties(b"a\0\0\0a\0\0\0", label_length=4, size=0)),
    "MessageSize one too large": message(X, PLAIN, props=properties(bytes(4), size=5)),
    "MessageSize beyond all": message(X, PLAIN, props=properties(b"", size=FOR_EVER)),
    "MessageSize and label wrap": message(X, PLAIN, props=properties(b"", "label", size=FOR_EVER - 11)),
    "AllocationBodySize less": message(X, PLAIN, props=properties(bytes(8), allocated=4)),
    "ExtensionSize beyond all": message(X, PLAIN, props=properties(b"", extension=FOR_EVER)),
    "ExtensionSize and MessageSize wrap": message(
        X, PLAIN, props=properties(bytes(16), size=16, extension=FOR_EVER - 15)
    ),
    "five sizes wrap": message(X, PLAIN, user_flags=0x00080000, between=security(12, 0, 0, 0, FOR_EVER - 11, data=SID)),
    "ProviderInfoSize": message(X, PLAIN, user_flags=0x00080000, between=security(12, 0, 0, 0, 0x80000000, data=SID)),
    "SenderCertSize": message(X, PLAIN, user_flags=0x00080000, between=security(12, 0, 0, 0x10000, 0, data=SID)),
    "five sizes 0": message(X, PLAIN, user_flags=0x00080000, between=security(0, 0, 0, 0, 0)),
    "a SID beyond": message(X, PLAIN, user_flags=0x00080000, between=security(0xFFFF, 0, 0, 0, 0, data=SID)),
    "SID of 15 in 12 bytes": message(
        X, PLAIN, user_flags=0x00080000, between=security(12, 0, 0, 0, 0, data=b"\1\x0f" + SID[2:])
    ),
    "a sender id of no kind": message(
        X, PLAIN, user_flags=0x00080000, between=security(12, 0, 0, 0, 0, flags=3, data=SID)
    ),
    "soap 0x80000002": message(X, PLAIN, user_flags=0x10000000, after=soap(0x80000002, 2)),
    "soap 0x7FFFFFFF": message(X, PLAIN, user_flags=0x10000000, after=soap(0x7FFFFFFF, 2)),
    "soap 0xFFFFFFFF": message(X, PLAIN, user_flags=0x10000000, after=soap(FOR_EVER, 2)),
    "soap body 0x80000002": message(X, PLAIN, user_flags=0x10000000, after=soap(2, 0x80000002)),
    "soap body 0xFFFFFFFF": message(X, PLAIN, user_flags=0x10000000, after=soap(2, FOR_EVER)),
    "no soap": message(X, PLAIN, user_flags=0x10000000),
    "ElementCount beyond all": message(X, PLAIN, user_flags=0x00800000, after=lists(FOR_EVER)),
    "ElementCount 2": message(X, PLAIN, user_flags=0x00800000, after=lists(2)),
    "HeaderSize 8": message(X, PLAIN, user_flags=0x00800000, after=lists(size=8)),
    "HeaderSize beyond all": message(X, PLAIN, user_flags=0x00800000, after=lists(size=FOR_EVER)),
    "HeaderSize one more": message(X, PLAIN, user_flags=0x00800000, after=lists(size=32)),
    "HeaderID": message(X, PLAIN, user_flags=0x00800000, after=lists(header_id=0x0065)),
    "FormatType 4": message(X, PLAIN, user_flags=0x00800000, after=lists(element=4)),
    "FormatType public over a direct name": message(X, PLAIN, user_flags=0x00800000, after=lists(element=1)),
    "an OrderAck of 32": acknowledgement(X, Tx(1, 1, 1, 0), size=32),
    "a FinalAck of 32": acknowledgement(X, Tx(1, 1, 1, 0), 0x8000, size=32),
}
for _pt in (0, *range(4, 16)):
    MALFORMED[f"PT {_pt}"] = base(572, 0x000B) + establish(X, pt=_pt)[16:]
for _kind in (1, 2, 4, 6):
    MALFORMED[f"DQ {_kind}"] = message(X, 1, clear=0x1C00, user_flags=_kind << 10)
for _kind in (1, 4):
    MALFORMED[f"AQ {_kind}"] = message(X, PLAIN, user_flags=_kind << 13, names=bytes(20))
for _kind, _count in {"odd": 2 * len(PLAIN) + 1, "0": 0, "2": 2, "short": 2 * len(PLAIN), "beyond": 0xFFFE}.items():
    MALFORMED[f"Count {_kind}"] = message(X, PLAIN).replace(
        direct(PLAIN), struct.pack("<H", _count) + direct(PLAIN)[2:]
    )


@pytest.mark.rule("B-168", "B-169", "B-170", "B-171", "B-173", "B-179", "B-429", "B-430", "B-431", "B-432", "B-433")
@pytest.mark.parametrize("shape", MALFORMED)
def test_a_malformed_packet_ends_its_session_and_no_other(server: Server, shape: str, good: Line) -> None:
    with server.connect() as line:
        with contextlib.suppress(ConnectionError):
            line.write(MALFORMED[shape])
        assert line.ends() == []
    good.works()
    assert (server.received(), server.received("plain")) == ([], [b"alive"])


@pytest.fixture(scope="module")
def good(running: Server) -> Iterator[Line]:
    """A session that is open the while, with a peer that expects an acknowledgement for every message at once."""
    with running.connect(window=2) as line:
        yield line


@pytest.mark.rule("B-172", "B-388", "B-430", "OP-2", "OP-22", "OP-23")
def test_what_a_receiver_is_to_ignore_is_ignored(server: Server, good: Line) -> None:
    shapes = [
        message(X, PLAIN, b"0", reserved=0xFF, flags=0xFEC7),
        message(X, PLAIN, b"1", user_flags=0xED000080),
        message(X, PLAIN, b"2", props=properties(b"2", ack=0xF0, body_type=0xFFFFFFFF)),
        message(X, PLAIN, b"3", props=properties(b"3", message_class=0x01FF)),
        message(X, PLAIN, b"4", after=bytes(range(100))),
        message(X, PLAIN, b"5", user_flags=0x00080000, between=security(12, 0, 0, 0, 0, flags=0xF001, data=SID)),
        message(X, PLAIN, b"6", user_flags=0x00800000, after=lists()),
        message(X, PLAIN, b"7", flags=0x0023, after=struct.pack("<HH", 0xFFFC, 0xFFFF)),
        message(X, PLAIN, b"8", props=properties(b"8", ack=0x0F)),  # acknowledgements, and no queue for them
    ]
    with server.connect(window=2) as line:
        line.send(*shapes)
        line.send(message(line.guid, LINE1, b"9", transaction=Tx(1, 1, 1, 0).header(0xFF00001C), flags=7))
        while line.acked != set(range(1, 11)):
            line.read()
    assert [body for body in server.received("plain") if body != b"alive"] == [b"%d" % number for number in range(9)]
    assert server.received() == [b"9"]


@pytest.mark.rule("B-298", "B-435")
def test_peers_that_go_at_every_step_leave_the_others_alone(server: Server, good: Line) -> None:
    guid = next(GUIDS)
    stream = establish(guid) + parameters() + b"".join(message(guid, NOWHERE, b"x", tx) for tx in numbered(1, 3))
    linger = struct.pack("ii", 1, 0)  # a reset instead of an orderly end
    for size in range(0, len(stream) + 1, 37):
        both = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]  # with the same GUID
        for connection in both:
            connection.sendall(stream[:size])
        if size % 2:
            both[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        for connection in both:
            connection.close()
    good.works()


# ---- the other end: what `ordack send` and serve do -----------------------------------------------


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Hop]]:
    machines = [Hop(number) for number in range(60)]
    options = [text for hop in machines for text in ("--next-hop", hop.option)]
    running = Server(tmp_path_factory.mktemp("near") / "store", *options)
    for hop in machines:
        hop.store = running.store
    yield iter(machines)
    running.stop()
    for hop in machines:
        hop.listener.close()


@pytest.fixture
def hop(hops: Iterator[Hop]) -> Hop:
    """A machine that no other test uses."""
    return next(hops)


@pytest.mark.rule("B-092", "B-204", "B-212", "B-217", "B-302", "B-304", "B-309", "B-317", "A-45")
def test_messages_are_numbered_in_the_order_of_sending(hop: Hop) -> None:
    sent = hop.order(b"one", b"two", b"three")
    line = hop.accept()
    with line:
        request = line.read()
        assert (request.flags & 0x18, request.internal, request.data[36:52]) == (8, 2, NULL)
        assert (request.data[56], request.data[57] & 1) == (0x10, 1)
        line.write(answer(request, hop.guid))
        parameters_ = line.read()
        recoverable, ack, _, window = struct.unpack_from("<IIHH", parameters_.data, 20)
        assert (ack, window) == (20000, 64)
        assert 500 <= recoverable <= 120000
        line.write(parameters(recoverable, ack))
        seen = line.messages(3)
        stream = seen[0].tx
        assert stream
        for at, (packet, told, body) in enumerate(zip(seen, sent, (b"one", b"two", b"three")), 1):
            assert (packet.body, packet.recoverable, packet.flags & 7) == (body, True, 0)
            assert (packet.source, packet.address) == (request.data[20:36], NULL)
            assert packet.destination == f"OS:{hop.name}\\private$\\q"
            assert packet.tx == stream._replace(number=at, previous=at - 1)
            assert packet.message_id == told["message_id"]
            assert abs(packet.sent_time - time.time()) < 60
        assert stream.ordinal >= 1
        assert len({packet.message_id for packet in seen}) == 3


def places(seen: list[Seen]) -> list[tuple[bytes, tuple[int, ...] | None]]:
    return [(packet.body, packet.tx and tuple(packet.tx)) for packet in seen]


@pytest.mark.rule("B-158", "B-241", "B-244", "B-299", "B-318", "A-08", "A-16", "A-34")
def test_after_a_cut_the_same_numbers_and_a_bridge_over_what_is_settled(hop: Hop) -> None:
    hop.order(*(b"%d" % number for number in range(1, 6)))
    with hop.open() as line:
        first = line.messages(5)
    with hop.open() as line:
        again = line.messages(5)
        assert [(seen.message_id, seen.body, seen.tx) for seen in again] == [
            (seen.message_id, seen.body, seen.tx) for seen in first
        ]
        stream = first[0].tx
        assert stream
        line.confirm(first=1, bits=0x1F)
        line.send(acknowledgement(hop.guid, stream._replace(number=1)))
        line.send(
            acknowledgement(
                hop.guid, stream._replace(number=3, previous=2), 0x8003, (line.server, first[2].message_id), delivery=1
            )
        )
        line.works()
    with hop.open() as line:
        assert places(line.messages(3)) == [
            (b"2", tuple(stream._replace(number=2, previous=0))),
            (b"4", tuple(stream._replace(number=4, previous=2))),
            (b"5", tuple(stream._replace(number=5, previous=4))),
        ]
        line.send(acknowledgement(hop.guid, stream._replace(number=4)))
        line.works()
    with hop.open() as line:
        assert places(line.messages(1)) == [(b"5", tuple(stream._replace(number=5, previous=0)))]
        hop.order(b"6")
        assert places(line.messages(1)) == [(b"6", tuple(stream._replace(number=6, previous=5)))]


@pytest.mark.rule("B-096", "B-178", "B-236", "A-17", "A-36", "OP-6", "OP-17")
@pytest.mark.parametrize("variant", ["plain", "SH", "priority 3", "SH, priority 7", "recoverable", "by number", "junk"])
def test_an_order_ack_of_any_make_settles(hop: Hop, variant: str) -> None:
    hop.order(b"one", b"two")
    with hop.open() as line:
        stream = line.messages(2)[1].tx
        assert stream
        recoverable = int(variant == "recoverable")
        header = line.header(first=1, bits=3, more=1) if "SH" in variant else b""
        flags = int(variant[-1]) if "priority" in variant else 0
        ack = acknowledgement(
            hop.guid,
            stream,
            header=header,
            flags=flags,
            delivery=recoverable,
            direct_name=variant != "by number",
            address=line.server if variant == "by number" else NULL,
        )
        if variant == "junk":
            assert bytes(20) in ack[-36:]
            ack = ack[:-20] + b"\xee" * 20
        line.send(ack)
        line.works()
        hop.order(b"three")  # the stream was drained: a new sequence begins
        assert places(line.messages(1)) == [(b"three", (stream.time_stamp, stream.ordinal + 1, 1, 0))]
    with hop.open() as line:
        assert [seen.body for seen in line.messages(1)] == [b"three"]
        line.silent()


@pytest.mark.rule("B-225", "B-230", "B-241", "A-04", "A-09")
@pytest.mark.parametrize(
    "wrong",
    [
        "older ordinal",
        "newer ordinal",
        "older time",
        "newer time",
        "number 0",
        "swapped",
        "another's FinalAck",
        "FinalAck of another message",
        "SessionAck",
    ],
)
def test_what_is_for_another_sequence_or_message_settles_nothing(hop: Hop, wrong: str) -> None:
    hop.order(b"one")
    with hop.open() as line:
        (seen,) = line.messages(1)
        assert seen.tx
        line.send(acknowledgement(hop.guid, seen.tx))
        line.works()
        hop.order(b"two", b"three")
        two, three = line.messages(2)
        stream = three.tx
        assert stream
        assert stream.ordinal == seen.tx.ordinal + 1
        refused, packet = False, b""
        if wrong == "SessionAck":
            line.confirm(first=1, bits=7)
            packet = acknowledgement(hop.guid, seen.tx)
        elif "FinalAck" in wrong:
            of = (line.server, three.message_id + 1000) if "another message" in wrong else (hop.guid, three.message_id)
            packet = acknowledgement(hop.guid, stream, 0x8003, of, delivery=1)
        else:
            changed = {
                "older ordinal": {"ordinal": stream.ordinal - 1},
                "newer ordinal": {"ordinal": stream.ordinal + 1},
                "older time": {"time_stamp": stream.time_stamp - 1},
                "number 0": {"number": 0, "previous": 0},
                "newer time": {"time_stamp": stream.time_stamp + 1},
                "swapped": {"time_stamp": stream.ordinal, "ordinal": stream.time_stamp},
            }[wrong]
            packet = acknowledgement(hop.guid, stream._replace(**changed))
            refused = wrong == "number 0"  # outside its range: malformed
        line.send(packet)
        if refused:
            line.ends()
        else:
            line.works()
    with hop.open() as line:
        assert [(again.message_id, again.body) for again in line.messages(2)] == [
            (two.message_id, b"two"),
            (three.message_id, b"three"),
        ]


@pytest.mark.rule("B-184", "B-209", "A-39", "OP-3")
@pytest.mark.parametrize(
    "response",
    [
        "refusal",
        "refusal with parameters",
        "another client",
        "no client",
        "nothing",
        "parameters first",
        "a message",
        "nonsense",
        "no server",
    ],
)
def test_a_peer_that_does_not_answer_as_it_should_is_left_and_tried_again(hop: Hop, response: str) -> None:
    hop.order(b"waits")
    with hop.accept() as line:
        request = line.read()
        data = {
            "refusal": answer(request, hop.guid, internal=0x12),
            "refusal with parameters": answer(request, hop.guid, internal=0x12) + parameters(),
            "another client": answer(request, hop.guid, client=b"\x66" * 16),
            "no client": answer(request, hop.guid, client=NULL),
            "no server": answer(request, NULL),
            "parameters first": parameters(),
            "a message": message(hop.guid, PLAIN, b"unasked"),
            "nonsense": b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "nothing": b"",
        }[response]
        if data:
            line.write(data)
            assert line.ends() == []
    with hop.open() as line:
        assert [seen.body for seen in line.messages(1)] == [b"waits"]


@pytest.mark.rule("B-118", "B-130", "B-216", "B-307", "B-310", "A-10", "A-25")
@pytest.mark.parametrize("window", [0, 1, 3])
def test_no_more_is_sent_than_the_window_of_the_peer_takes(hop: Hop, window: int) -> None:
    hop.order(*(b"%d" % number for number in range(1, 9)))
    with hop.open(window) as line:
        bodies: list[bytes] = []
        limit = max(window, 1)
        bodies += [seen.body for seen in line.messages(limit)]
        line.silent()
        line.confirm(first=1, bits=(1 << limit) - 1, window=2)  # the window of every header counts
        bodies += [seen.body for seen in line.messages(2)]
        line.silent()
        line.confirm(first=limit + 1, bits=3, window=64)
        bodies += [seen.body for seen in line.messages(8 - limit - 2)]
        assert bodies == [b"%d" % number for number in range(1, 9)]
        line.silent()


@pytest.mark.rule("B-109", "B-159", "B-221", "B-222", "B-223", "B-299", "A-09")
def test_what_a_session_acknowledgement_settles(hop: Hop) -> None:
    hop.order(b"e1", delivery="express")
    hop.order(b"r1", b"r2", b"r3", delivery="recoverable")
    hop.order(b"e2", delivery="express")
    with hop.open() as line:
        assert [seen.body for seen in line.messages(5)] == [b"e1", b"r1", b"r2", b"r3", b"e2"]
        line.confirm(ack=4, first=0, bits=0)  # received; nothing is said of the recoverable ones
        line.works()
    with hop.open() as line:
        assert [(seen.body, seen.recoverable) for seen in line.messages(4)] == [
            (b"r1", True),
            (b"r2", True),
            (b"r3", True),
            (b"e2", False),
        ]
        line.confirm(first=1, bits=0b101)
        line.works()
    with hop.open() as line:
        left = [seen.body for seen in line.messages(1)]
        line.silent()
        assert left == [b"r2"]


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


@pytest.mark.rule("B-209", "B-216", "B-221", "A-47", "A-51")
def test_the_captured_frames_of_the_acceptor(hop: Hop) -> None:
    hop.order(b"express", delivery="express")
    with hop.accept() as line:
        line.read()
        line.write(FRAMES[3])  # of another conversation
        assert line.ends() == []
    with hop.accept() as line:
        request = line.read().data
        line.write(FRAMES[3][:20] + request[20:36] + FRAMES[3][36:])
        assert line.read().kind == PARAMETERS
        line.write(FRAMES[5])
        assert [(seen.body, seen.recoverable) for seen in line.messages(1)] == [(b"express", False)]
        line.write(FRAMES[7])
        line.works()
    hop.order(b"next", delivery="express")
    with hop.open() as line:
        assert [seen.body for seen in line.messages(1)] == [b"next"]


# ---- what becomes of a message --------------------------------------------------------------------

JN, JP = 0x100, 0x200
PA, PR, NA, NR = 1, 2, 4, 8


def make(server: Server, name: str, *options: str) -> str:
    """A queue of the test's own; its direct format name."""
    ordack("queue", "create", "--store", server.store, name, *options)
    return f"OS:here\\private$\\{name}"


@pytest.mark.rule("B-116", "B-338", "C-50")
def test_a_receive_is_told_by_a_final_ack_to_those_who_asked(server: Server) -> None:
    queue_name = make(server, "taken")
    with server.connect() as line:
        flags = [{}, {"user_flags": JN}, {"user_flags": JP}, {"transaction": Tx(100, 1, 4, 3).header(2)}]
        ids = [next(NUMBERS) for _ in flags]
        line.send(
            *(
                message(line.guid, queue_name, b"x", tx, message_id=identifier, **extra)
                for tx, identifier, extra in zip(numbered(1, 4), ids, flags)
            )
        )
        assert line.until(ORDER_ACK).tx == Tx(100, 1, 4, 3)
        assert len(server.received("taken")) == 4
        for tx, identifier in list(zip(numbered(1, 4), ids))[1:]:
            ack = line.until(FINAL_ACK)
            assert (ack.message_class, ack.user_flags, ack.flags) == (0x4000, 0x00201C20, 0)
            assert ack.body == struct.pack("<IIII16sI", 1, 100, tx.number, tx.previous, line.guid, identifier)
        line.confirm(first=1, bits=7)
        line.works()
        assert line.recoverable_received == 3


@pytest.mark.rule("B-022", "B-291", "B-336", "B-348", "B-349", "B-351", "B-352", "B-353", "B-354", "C-55", "C-56")
def test_administration_acknowledgements(server: Server) -> None:
    stream, plain = make(server, "asked"), make(server, "asked-too", "--non-transactional")

    def asks(
        line: Line, destination: str, want: int, tx: Tx | None = None, delivery: int = 1, where: bool = True
    ) -> bytes:
        return message(
            line.guid,
            destination,
            b"",
            tx,
            props=properties(b"what it was", ack=want),
            delivery=delivery,
            user_flags=2 << 13 if where else 0,
            names=struct.pack("<I", 0x55) if where else b"",
        )

    with server.connect() as line:

        def told(original: bytes, message_class: int, body: bytes = b"") -> None:
            ack = line.until(MESSAGE)
            assert (ack.message_class, ack.body) == (message_class, body)
            assert (ack.destination, ack.address, ack.source) == (0x55, line.guid, line.server)
            assert ack.correlation == line.guid + original[56:60]
            assert ack.response in (stream, plain, NOWHERE)
            assert ack.response.encode("utf-16-le") in original
            assert (ack.ack, ack.user_flags & (JN | JP), ack.ttrq, ack.ttbr) == (0, 0, FOR_EVER, FOR_EVER)
            assert ack.recoverable == bool(original[60] & 0x20)

        for delivery in (0, 1):
            line.send(arrives := asks(line, plain, PA, delivery=delivery))
            told(arrives, 0x0002)
            line.send(arrives)  # a duplicate is told of no more
            line.send(arrives := asks(line, plain, PR, delivery=delivery))
            line.works()
            assert len(server.received("asked-too")) == 2
            told(arrives, 0x4000)
            line.send(wrong := asks(line, stream, NA, delivery=delivery))
            told(wrong, 0x800A, b"what it was")
        line.send(arrives := asks(line, stream, PA | NA, Tx(100, 1, 1, 0)))
        told(arrives, 0x0002)
        line.send(asks(line, stream, PA | NA, Tx(100, 1, 3, 2)))  # refused for its order: not a word
        line.send(asks(line, NOWHERE, 15), asks(line, plain, PR | NR), asks(line, plain, 15, where=False))
        line.send(wrong := asks(line, plain, NA, Tx(300, 1, 1, 0)))
        told(wrong, 0x8009, b"what it was")
        line.works()
        received = line.received
        line.works()
        assert line.received == received


# ---- for another queue manager --------------------------------------------------------------------


@pytest.mark.rule("B-011", "B-012", "B-259", "B-264", "B-437", "B-443", "C-66", "A-40")
def test_a_message_for_another_queue_manager_goes_on_untouched(router: Server, far: Hop) -> None:
    stamp = message(NULL, 9, b"on", Tx(100, 7, 3, 2), address=far.guid, user_flags=3)
    with router.connect() as line:
        original = stamp[:16] + line.guid + stamp[32:]
        too_far = message(line.guid, 9, b"too far", Tx(200, 1, 1, 0), address=far.guid, user_flags=15)
        line.send(original, too_far)
        rejected = line.until(FINAL_ACK)
        assert (rejected.message_class, rejected.tx) == (0x8005, Tx(200, 1, 1, 0))
        with far.open() as there:
            (seen,) = there.messages(1)
            passed = bytearray(original)
            passed[60] += 1  # RC
            assert seen.data[: seen.size] == bytes(passed)
            # its OrderAck, back to the source through the router, which has no stream of its own
            there.send(acknowledgement(far.guid, Tx(100, 7, 3, 2), direct_name=False, address=line.guid))
            back = line.until(ORDER_ACK)
            assert (back.tx, back.source, back.address) == (Tx(100, 7, 3, 2), far.guid, line.guid)
            assert (back.flags, line.ack) == (0, 2)
            there.confirm(first=1, bits=1)  # the hop has it: that settles it for the router
            there.works()
        line.send(message(line.guid, 9, b"next", Tx(100, 7, 4, 3), address=far.guid))
        with far.open() as there:
            assert [packet.body for packet in there.messages(1)] == [b"next"]


@pytest.fixture
def far() -> Iterator[Hop]:
    hop = Hop(0)
    yield hop
    hop.listener.close()


@pytest.fixture
def router(tmp_path: Path, far: Hop) -> Iterator[Server]:
    """A server that forwards, and knows where the queue manager `far` is."""
    data1, data2, data3 = struct.unpack_from("<IHH", far.guid)
    text = f"{data1:08x}-{data2:04x}-{data3:04x}-{far.guid[8:10].hex()}-{far.guid[10:].hex()}"
    hop = f"{text}={far.option.partition('=')[2]}"
    running = Server(tmp_path / "store", "--next-hop", hop, RouteMessages=True)
    yield running
    running.stop()
