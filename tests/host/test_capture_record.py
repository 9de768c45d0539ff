"""`ordack serve --capture`: what it sends and receives is what its capture says, whatever becomes of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import ipaddress
import json
import os
import platform
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dpkt
import packet_samples as samples  # type: ignore[import-not-found]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mqqb import build, headers, parse
from ordack.capture import columnar, reading
from ordack.config.config import PORT, Config
from ordack.server import record
from ordack.server.record import Recorder

from tests.host.serial_lines import Board, Place
from tests.host.sockets import serving, until
from tests.support.beside import client_beside
from tests.support.command import Serve, as_json, converse, ordack
from tests.support.host_peer import Peer, direct

ADDRESSES = [("10.0.0.7", "10.0.0.1"), ("fe80::7", "fe80::1"), ("fe80::7%eth0", "fe80::1%eth0"), ("press7", None)]


def files(file: Path) -> list[Path]:
    """In the order in which they were written."""
    return sorted(file.parent.glob(f"{file.stem}*{file.suffix}"), key=lambda path: (path != file, path.name))


class Segment(NamedTuple):
    """A TCP segment of a capture. connection: addresses and ports, as in dpkt."""

    connection: tuple[bytes, int, bytes, int]
    flags: int
    sequence: int
    data: bytes


def frames(path: Path) -> list[bytes]:
    """Whole frames, by dpkt."""
    with path.open("rb") as file:
        return [data for _, data in dpkt.pcapng.Reader(file)]


def segments(*paths: Path) -> Iterator[Segment]:
    """Of all the files, which are one capture."""
    for path in paths:
        for frame in frames(path):
            ip = dpkt.ethernet.Ethernet(frame).data
            tcp = ip.data
            yield Segment((ip.src, tcp.sport, ip.dst, tcp.dport), tcp.flags, tcp.seq, bytes(tcp.data))


def carried(paths: Iterable[Path]) -> list[bytes]:
    """The bytes of each direction that had any: nothing is missing, doubled or out of order."""
    found: list[bytes] = []
    place: dict[tuple[bytes, int, bytes, int], int] = {}
    following: dict[tuple[bytes, int, bytes, int], int] = {}
    for key, flags, sequence, data in segments(*paths):
        if flags & dpkt.tcp.TH_SYN or key not in place:
            place[key], following[key] = len(found), sequence + bool(flags & dpkt.tcp.TH_SYN) & 0xFFFFFFFF
            found.append(b"")
        assert sequence + bool(flags & dpkt.tcp.TH_SYN) & 0xFFFFFFFF == following[key] or not data
        found[place[key]] += data
        following[key] = following[key] + len(data) & 0xFFFFFFFF
    return [data for data in found if data]


def messages(path: Path) -> list[dict[str, Any]]:
    done = ordack("capture", "decode", "--json", path)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def bodies(paths: Iterable[Path]) -> list[bytes]:
    """Of the messages, in the order of the capture."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            packets = [parse.parse(cut.data) for cut in reading.packets(file) if not cut.problem]
        found += [bytes(packet.properties.body) for packet in packets if isinstance(packet, headers.UserMessage)]
    return found


@pytest.fixture
def serve() -> Iterator[Callable[..., Serve]]:
    """Starts queue managers, and ends them."""
    running: list[Serve] = []

    def start(*arguments: Any) -> Serve:
        running.append(Serve(*arguments))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()
        each.process.communicate()


# ---- the file -----------------------------------------------------------------------------------


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, str, Any]]:
    """(connection, what happens, its argument)."""
    events = st.tuples(
        st.integers(0, 3),
        st.sampled_from(["sent", "received", "closed", "flush"]),
        st.integers(0, 20) | st.sampled_from([1, 64_999, 65_000, 65_001, 200_001]),
    )
    return draw(st.lists(events, max_size=30))


@given(events=conversations(), ends=st.lists(st.booleans(), min_size=8, max_size=8), seed=st.integers(0, 1 << 32))
def test_capture_file_contains_all_sent_and_received_data(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, str, Any]], ends: list[bool], seed: int
) -> None:
    chance = random.Random(seed)
    file = tmp_path_factory.mktemp("capture") / "new" / "plant.pcapng"
    recorder = Recorder(file, 1 << 30, lambda _line: None)
    open_connections: dict[int, record.RecordedConnection] = {}
    expected: list[list[bytes]] = []
    place: dict[int, int] = {}
    for which, what, size in events:
        if which not in open_connections:
            peer, local = ADDRESSES[which]
            # the same port again: a new connection all the same
            open_connections[which] = recorder.connection(
                (peer, 50123 if local else 0), (local, 50123 if ends[which] else 1802) if local else None, ends[which]
            )
            place[which] = len(expected)
            expected.append([b"", b""])
        if what == "flush":
            recorder.flush()
        elif what == "closed":
            open_connections.pop(which).closed(ends[which], ends[which + 4])
        else:
            data = chance.randbytes(size)
            expected[place[which]][what == "received"] += data
            getattr(open_connections[which], what)(chance.choice([bytes, bytearray, memoryview])(data))
    recorder.close()
    assert sorted(carried([file])) == sorted(data for pair in expected for data in pair if data)
    for frame in frames(file):
        check(frame)


def check(frame: bytes) -> None:
    """dpkt makes the same checksums and lengths; one port is the protocol's."""
    ethernet = dpkt.ethernet.Ethernet(frame)
    ip = ethernet.data
    tcp = ip.data
    assert isinstance(tcp, dpkt.tcp.TCP)
    assert PORT in (tcp.sport, tcp.dport)
    sums = tcp.sum, getattr(ip, "sum", 0)
    tcp.sum = 0
    if isinstance(ip, dpkt.ip.IP):
        assert ip.len == len(frame) - 14
        ip.sum = 0
        again = dpkt.ethernet.Ethernet(bytes(ethernet))
        assert (again.data.data.sum, again.data.sum) == sums
    else:
        assert ip.plen == len(frame) - 54
        total = sum(int.from_bytes(part) for part in (ip.src, ip.dst)) + 6 + ip.plen
        data = frame[54:] + bytes(len(frame) & 1)
        assert (total + int.from_bytes(data)) % 0xFFFF == 0


def test_captured_connection_has_tcp_handshake_acks_and_end(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "x.pcapng", 1 << 30, lambda _line: None)
    connection = recorder.connection(("10.0.0.7", 50123), ("10.0.0.1", 4321), opened_here=False)
    connection.received(b"abc")
    connection.sent(b"defg")
    connection.closed(here=False, reset=False)
    reset = recorder.connection(("10.0.0.7", 4321), ("10.0.0.1", 50124), opened_here=True)
    reset.closed(here=True, reset=True)
    recorder.close()
    shown = [dpkt.ethernet.Ethernet(frame).data for frame in frames(tmp_path / "x.pcapng")]
    there, here = shown[0].data.seq, shown[1].data.seq
    told = [(ip.data.sport, ip.data.flags, ip.data.seq, ip.data.ack, ip.data.data) for ip in shown]
    assert told[:8] == [
        (50123, 2, there, 0, b""),
        (1801, 18, here, there + 1, b""),
        (50123, 16, there + 1, here + 1, b""),
        (50123, 24, there + 1, here + 1, b"abc"),
        (1801, 24, here + 1, there + 4, b"defg"),
        (50123, 17, there + 4, here + 5, b""),
        (1801, 17, here + 5, there + 5, b""),
        (50123, 16, there + 5, here + 6, b""),
    ]
    assert [(port, flags) for port, flags, *_ in told[8:]] == [(50124, 2), (1801, 18), (50124, 16), (50124, 20)]
    assert socket.inet_ntoa(shown[0].src) == "10.0.0.7"
    assert socket.inet_ntoa(shown[8].src) == "10.0.0.1"


def test_the_files_have_at_most_the_size_and_the_oldest_go(tmp_path: Path) -> None:
    size = 1 << 20
    file = tmp_path / "plant.pcapng"
    other = tmp_path / "plant-7.pcapng"
    other.write_bytes(b"not one of them")
    chance = random.Random(4)
    data = b""
    for start in range(2):  # the second start of serve goes on with the numbers
        recorder = Recorder(file, size, lambda _line: None)
        connection = recorder.connection(("10.0.0.7", 50123), ("10.0.0.1", 1801), opened_here=False)
        for _ in range(500):
            piece = chance.randbytes(chance.randrange(8000))
            data += piece
            connection.received(piece)
            if chance.random() < 0.3:
                recorder.flush()
            assert sum(path.stat().st_size for path in files(file) if path != other) <= size
        if not start:
            first = files(file)
            kept = {path: path.read_bytes() for path in first}
            data = b""
            recorder.close()
    recorder.close()
    there = [path for path in files(file) if path != other]
    assert file not in there
    assert len(there) >= record.PARTS - 1
    numbers = [int(path.stem.rpartition("-")[2]) for path in there]
    assert numbers == list(range(numbers[0], numbers[0] + len(there)))
    assert numbers[0] > len(first)
    assert all(path.read_bytes() == kept[path] for path in there if path in kept)
    assert other.read_bytes() == b"not one of them"
    found = b"".join(carried(there))
    assert data.endswith(found)
    assert len(found) > size // 2


def test_tshark_reads_capture_and_capture_names_its_writer(tmp_path: Path) -> None:
    file = tmp_path / "plant.pcapng"
    before = time.time_ns()
    recorder = Recorder(file, 1 << 20, lambda _line: None)
    recorder.connection(("10.0.0.7", 50123), ("10.0.0.1", 1801), opened_here=False).received(b"reading")
    recorder.connection(("press7", 0), None, opened_here=False)
    recorder.close()
    after = time.time_ns()
    assert b"sent and received by ordack serve on " + platform.node().encode() in file.read_bytes()
    said = subprocess.run(
        ["tshark", "-r", file, "-N", "n", "-T", "fields", "-e", "frame.time_epoch", "-e", "ip.src_host"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    assert {line.split("\t")[1] for line in said[4:]} == {"169.254.1.0", "169.254.0.1"}
    times = [int(line.split("\t")[0].replace(".", "")) for line in said]
    assert len(times) == 7
    assert before - 1000 <= times[0] <= times[-1] <= after + 1000


def message_ids(batches: Iterable[columnar.PacketColumns]) -> list[int]:
    """Of the user messages that were read as columns."""
    return [int(number) for batch in batches for number in batch["message_id"][batch["kind"] == 4]]


def cut_off(data: bytes) -> Iterator[bytes]:
    """What a power cut may leave of a file: all bytes up to some place, or zeros behind them."""
    for size in range(len(data) - 250, len(data)):
        yield data[:size]
        yield data[:size] + bytes(len(data) - size)
        yield data[:size] + bytes(4096)


def test_torn_capture_is_readable_up_to_last_whole_record(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "plant.pcapng", 1 << 20, lambda _line: None)
    connection = recorder.connection(("10.0.0.7", 50123), ("10.0.0.1", 1801), opened_here=False)
    recorder.connection(("press7", 0), None, opened_here=False)
    packets = [bytes(build.user_message(bytes(16), number, samples.DIRECT, b"12345")) for number in range(4)]
    sizes = []
    for raw in packets:
        connection.received(raw)
        recorder.flush()
        sizes.append((tmp_path / "plant.pcapng").stat().st_size)
    recorder.close()
    whole = (tmp_path / "plant.pcapng").read_bytes()
    cut = tmp_path / "cut.pcapng"
    for data in cut_off(whole):
        wanted = sum(size <= len(data) and data[:size] == whole[:size] for size in sizes)
        cut.write_bytes(data)
        found: list[bytes] = []
        with contextlib.suppress(reading.CaptureError), cut.open("rb") as opened:
            found.extend(item.data for item in reading.packets(opened))
        assert found == packets[:wanted]
        decoder = columnar.Decoder([str(cut)])
        assert message_ids(decoder.batches(64, ("kind", "message_id"))) == list(range(wanted))
        assert bool(decoder.damages) == (data not in (whole, whole[: sizes[2]]))


# ---- the queue manager --------------------------------------------------------------------------


def test_captures_of_both_ends_match_and_decode_to_sent_messages(tmp_path: Path, serve: Callable[..., Serve]) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    ordack("init", "--store", far)
    ordack("queue", "create", "--store", far, "line1", "--transactional")
    receiver = serve(far, "--capture", str(tmp_path / "far.pcapng"))
    sender = serve(near, "--next-hop", f"plant=127.0.0.1:{receiver.port}", "--capture", str(tmp_path / "near.pcapng"))
    sent = [b"one", b"two" * 40_000, b"three"]
    for body in sent:
        ordack("send", "--store", near, "DIRECT=OS:plant\\private$\\line1", stdin=body)
    received = as_json("receive", "--store", far, "line1", "--count", "3", "--follow")
    assert [base64.b64decode(message["body_base64"]) for message in received] == sent
    assert sender.stop()[0] == 0
    assert receiver.stop()[0] == 0
    there = carried([tmp_path / "far.pcapng"])
    for data in carried([tmp_path / "near.pcapng"]):  # the last acknowledgement may have met a closed socket
        assert any(other.startswith(data) or data.startswith(other) for other in there)
    assert not any(packet.get("problem") for packet in messages(tmp_path / "near.pcapng"))
    assert bodies([tmp_path / "near.pcapng"]) == sent
    assert bodies([tmp_path / "far.pcapng"])[:3] == sent


def test_serve_fails_at_start_if_capture_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    file = tmp_path / "no" / "x.pcapng"
    done = ordack("serve", "--create", "--store", tmp_path / "s", "--listen", "127.0.0.1:0", "--capture", file)
    assert done.returncode == 1
    assert "x.pcapng: File exists" in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_capture_after_kill_holds_all_traffic_with_peer(tmp_path: Path, serve: Callable[..., Serve]) -> None:
    store = tmp_path / "store"
    ordack("init", "--store", store)
    ordack("queue", "create", "--store", store, "line1", "--transactional")
    file = tmp_path / "plant.pcapng"
    sent = []
    for number in range(3):
        running = serve(store, "--capture", str(file))
        peer = Peer(bytes([number + 1]) * 16, direct("line1"))
        for _ in range(200):
            sent.append(b"%d" % len(sent) + bytes(500))
            peer.send(sent[-1])
        heard = bytearray()
        receive = peer.receive

        def listen(data: bytes, now: int, receive: Any = receive, heard: bytearray = heard) -> None:
            heard.extend(data)
            receive(data, now)

        peer.receive = listen  # type: ignore[method-assign]
        converse(peer, running.port)
        running.stop(signal.SIGKILL)
        latest = files(file)[-1]
        assert len(files(file)) == number + 1
        assert any(data.startswith(heard) for data in carried([latest]))
    assert bodies(files(file)) == sent


@pytest.mark.parametrize("room", [0, 40, 3000, 20_000])
async def test_a_full_disk_ends_the_capture_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    file = tmp_path / "plant.pcapng"
    log: list[str] = []
    recorder = Recorder(file, 1 << 20, log.append)
    real = os.write

    def write(descriptor: int, data: Any) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(descriptor, data[: min(room, 1000)])
        room -= count
        return count

    monkeypatch.setattr(record.os, "write", write)
    async with serving(tmp_path / "store", Config(), recorder=recorder) as server:
        peer = Peer(b"\1" * 16, direct("line1"))
        for number in range(100):
            peer.send(b"%d" % number + bytes(500))
        await asyncio.to_thread(converse, peer, server.port)
        assert len(peer.acked) == 100
        with client_beside(server.store.folder) as client:
            assert len(list(client.queue("line1").peek())) == 100
    assert len(log) == 1
    assert "No space left on device" in log[0]
    assert str(file) in log[0]
    list(segments(file))  # every frame is whole


async def test_capture_holds_serial_line_and_log_names_its_address(tmp_path: Path) -> None:
    file = tmp_path / "plant.pcapng"
    log: list[str] = []
    place = Place(tmp_path)
    async with place.serving(Recorder(file, 1 << 20, log.append)):
        board = Board(place.wire)
        place.send(b"start")
        for _ in range(2):
            board.peer.send(b"reading")
            await until(lambda: board.peer.is_settled)
        await until(lambda: board.peer.received)
        await board.close()
    place.unplug()
    assert sorted(bodies([file])) == [b"reading", b"reading", b"start"]
    assert log == ["in the capture, the serial line press7 has the address 169.254.1.0"]
    assert ipaddress.ip_address("169.254.1.0").packed in next(segments(file)).connection
