"""A peer that speaks by hand (test_foreign_peer.py): malformed packets that it sends, and what it gets as the receiver.

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

import pytest

from tests.support.command import ROOT
from tests.support.foreign_peer import (
    FINAL_ACK,
    FOR_EVER,
    GUIDS,
    LINE1,
    NOWHERE,
    NULL,
    ORDER_ACK,
    PARAMETERS,
    PLAIN,
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
    session_header,
)

pytestmark = pytest.mark.slow


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
def test_receiver_ignores_irrelevant_header_fields(server: Server, good: Line) -> None:
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
def test_resend_keeps_numbers_and_skips_settled_messages(hop: Hop) -> None:
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
def test_ack_for_other_sequence_or_message_settles_nothing(hop: Hop, wrong: str) -> None:
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
def test_peer_with_invalid_handshake_is_dropped_and_retried(hop: Hop, response: str) -> None:
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
def test_session_ack_settles_only_acknowledged_messages(hop: Hop) -> None:
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


# ---- for another queue manager --------------------------------------------------------------------


@pytest.mark.rule("B-011", "B-012", "B-259", "B-264", "B-437", "B-443", "C-66", "A-40")
def test_router_forwards_message_unchanged(router: Server, far: Hop) -> None:
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
