"""Serial lines: the queue manager on a pseudo-terminal, with the board's link at its other end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import line
from ordack.cli import status
from ordack.config.config import parse_serial
from ordack.config.names import BadName
from ordack.server import serial, tcp

from tests.host.serial_lines import Board, Place
from tests.host.sockets import until
from tests.support.command import Serve, ordack, own_port

pytestmark = pytest.mark.slow

DEADLINE_S = 60


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    with contextlib.suppress(OSError):
        made.unplug()


async def test_board_sends_over_serial_line_and_link_has_line_name(place: Place) -> None:
    async with place.serving():
        assert place.way()["state"] == "Waiting"
        board = Board(place.wire)
        bodies = [b"reading %d" % number + bytes(number) for number in range(300)]
        for body in bodies:
            board.peer.send(body)
        await until(lambda: board.peer.is_settled)
        assert place.bodies() == bodies
        assert board.connections == 1
        assert [link.address for link in place.manager.links] == ["press7"]
        assert place.way()["state"] == "Connected"
        await board.close()


async def test_messages_to_serial_line_name_use_only_the_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async with place.serving():

        async def called(*_arguments: Any, **_options: Any) -> Any:
            raise AssertionError("nobody to call")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", called)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", called)
        place.send(b"start", b"stop" + bytes(5000))
        await until(lambda: bool(place.manager.report()["outgoing"]))
        assert not place.manager.wanted_hops()
        assert place.manager.report()["outgoing"][0]["state"] == "Waiting"
        board = Board(place.wire)
        await until(lambda: len(board.peer.received) == 2)
        assert [bytes(packet.properties.body) for packet in board.peer.received] == [b"start", b"stop" + bytes(5000)]
        assert place.manager.report()["outgoing"][0]["state"] == "Connected"
        assert not place.log
        await board.close()


async def test_replugged_serial_port_is_used_again(place: Place) -> None:
    async with place.serving():
        board = Board(place.wire)
        board.peer.send(b"one")
        await until(lambda: board.peer.is_settled)
        await board.close()
        peer = board.peer
        place.unplug()
        await until(lambda: place.way()["state"] == "Disconnected")
        assert place.way()["last_end"].startswith("the port is gone, ")
        assert not place.manager.links
        assert [line for line in place.log if "is gone" in line] == place.log
        place.wire = place.plug()
        await until(lambda: place.way()["state"] == "Waiting")
        assert len(place.log) == 2
        assert place.log[1].endswith("is there")
        board = Board(place.wire)
        board.peer = peer
        peer.disconnect()
        peer.send(b"two")
        await until(lambda: peer.is_settled)
        assert place.bodies() == [b"one", b"two"]
        await board.close()


async def test_a_board_that_starts_anew_ends_the_connection_that_stood(place: Place) -> None:
    async with place.serving():
        board = Board(place.wire)
        await until(lambda: place.manager.links and place.manager.links[0].is_open)
        await board.close()  # without a word: its power was cut
        again = Board(place.wire)
        again.peer.send(b"one")
        await until(lambda: again.peer.is_settled)
        assert len(place.manager.links) == 1
        assert (place.way()["connections"], place.way()["faults"]) == (2, 0)
        await again.close()


async def test_messages_cross_noisy_serial_line_unchanged(place: Place) -> None:
    numbers = random.Random(7)

    def spoil(data: bytes) -> bytes:
        at = numbers.randrange(len(data))
        kind = numbers.randrange(15)
        if kind == 0:
            return data[:at] + data[at + 1 :]
        if kind == 1:
            return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]
        if kind == 2:
            return data[:at] + b"noise\0" + data[at:]
        return data

    async with place.serving():
        board = Board(place.wire)
        await until(lambda: board.connections == 1)  # an OPEN that is lost is another
        place.wire.fault = spoil
        bodies = [b"reading %d" % number + bytes(300) for number in range(30)]
        place.send(*bodies)
        sent: list[bytes] = []

        def was_bad() -> bool:
            resent, damaged = place.way()["resent"] + board.link.line.resent, place.way()["damaged"]
            return resent > 5 and damaged > 1

        while not was_bad():
            sent += bodies
            for body in bodies:
                board.peer.send(body)
            await until(lambda: board.peer.is_settled)
        place.wire.fault = bytes
        await until(lambda: board.peer.is_settled)
        assert place.bodies() == sent
        await until(lambda: {bytes(p.properties.body) for p in board.peer.received} >= set(bodies))
        way = place.way()
        table = status.sessions({"sessions": [], "serial": [way]})[1]
        lines = table.splitlines()
        row = lines[next(number for number, line in enumerate(lines) if line.startswith("┡")) + 1]
        cells = [cell.strip() for cell in row.split("│")]
        assert cells[-4:-1] == [str(way["faults"]), str(way["resent"]), str(way["damaged"])]
        await board.close()


async def test_a_board_that_falls_silent_loses_its_session(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[line.Line] = []

    def kept(*arguments: Any) -> line.Line:
        lines.append(line.Line(*arguments))
        return lines[-1]

    monkeypatch.setattr(serial, "Line", kept)
    async with place.serving():
        board = Board(place.wire)
        await until(lambda: place.manager.links and place.manager.links[0].is_open)
        await board.close()
        lines[0].silence = 400  # ms
        await until(lambda: not place.manager.links)
        assert place.way()["last_end"] == "nothing heard"
        assert place.way()["state"] == "Waiting"


async def test_board_that_does_not_read_blocks_only_its_own_messages(place: Place) -> None:
    async with place.serving():
        board = Board(place.wire)
        await until(lambda: place.manager.links and place.manager.links[0].is_open)
        board.reads = False
        place.send(*[bytes(20000) for _ in range(40)])
        await until(lambda: not place.manager.links[0].writable)
        waiting = place.manager.outgoing.served_by(place.manager.links[0])[0].stream.table
        assert len(waiting) == 40
        board.reads = True
        await until(lambda: len(board.peer.received) == 40)
        assert board.connections == 1
        await until(lambda: place.manager.links[0].writable)
        await board.close()


async def test_one_session_too_many_is_refused_and_asked_for_again(place: Place) -> None:
    async with place.serving(max_sessions=1) as server:
        other = server.manager.accept("10.0.0.1", tcp.now())
        board = Board(place.wire)
        board.peer.send(b"one")
        await until(lambda: place.way()["connections"] > 1)
        assert other
        server.manager.lost(other)
        await until(lambda: board.peer.is_settled)
        await board.close()


async def test_when_the_queue_manager_stops_the_board_hears_it(place: Place) -> None:
    async with place.serving():
        board = Board(place.wire)
        await until(lambda: place.manager.links and place.manager.links[0].is_open)
    await until(lambda: board.link.line.reason == "closed by the other end")
    await board.close()


# ---- the command line -----------------------------------------------------------------------------


def test_serial_option_is_parsed() -> None:
    assert parse_serial("/dev/ttyUSB0") == ("ttyusb0", "/dev/ttyUSB0", 115200)
    assert parse_serial("Press7=/dev/serial/by-id/usb-1@921600") == ("press7", "/dev/serial/by-id/usb-1", 921600)
    assert parse_serial("a=socket://127.0.0.1:7777") == ("a", "socket://127.0.0.1:7777", 115200)
    assert parse_serial("a=spy:///dev/ttyUSB0?file=x=y@9600") == ("a", "spy:///dev/ttyUSB0?file=x=y", 9600)
    for text, error in (
        ("socket://127.0.0.1:7777", "write NAME="),
        ("/dev/ttyS0@fast", "baud"),
        ("x@0", "baud"),
        ("x@", "baud"),
        ("", "has a name"),
    ):
        with pytest.raises(ValueError, match=error):
            parse_serial(text)
    with pytest.raises(BadName):
        parse_serial("..=x")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (
            ["--serial", "/dev/null"],
            1,
            "cannot open serial port /dev/null: Could not configure port: (25, 'Inappropriate ioctl for device')",
        ),
        (["--serial", "a=loop://"], 1, "cannot be waited for"),
        (["--serial", "a=nonsense://"], 1, "invalid URL"),
        (["--serial", "/dev/null@x"], 2, "baud rate"),
        (["--serial", "a=/dev/null", "--serial", "A=/dev/zero"], 2, "two ways"),
        (["--serial", "a=/dev/null", "--next-hop", "a=b:1"], 2, "two ways"),
        (["--next-hop", "a=b:0"], 2, "port 0"),
    ],
)
def test_ports_that_cannot_be_used_are_named(tmp_path: Path, arguments: list[str], status: int, text: str) -> None:
    done = ordack("serve", "--store", tmp_path / "store", "--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == status
    assert text in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "store").exists()


def line_with(text: str, serve: Serve) -> str:
    """The next line of its standard error in which that is."""
    return next(line for line in serve.process.stderr if text in line)


@pytest.mark.parametrize("kind", ["device", "socket"])
def test_serve_starts_without_missing_serial_port(tmp_path: Path, kind: str) -> None:
    """As after a power cut, when an adapter is not plugged in: the network is served, and the port when it comes. The
    log says each time that it goes and comes."""
    with contextlib.ExitStack() as stack:
        port = own_port()
        device = tmp_path / "ttyUSB0"
        there = Serve(
            tmp_path / "store", "--serial", f"press7={device if kind == 'device' else f'socket://127.0.0.1:{port}'}"
        )
        stack.callback(there.process.kill)
        assert there.line.startswith("listening on 127.0.0.1:")
        socket.create_connection(("127.0.0.1", there.port), DEADLINE_S).close()
        absent = line_with("cannot open", there)
        assert "No such file" in absent if kind == "device" else "refused" in absent
        assert "press7" in absent
        assert "trying again" in absent
        if kind == "device":
            for _ in range(2):
                ends = os.openpty()
                device.symlink_to(os.ttyname(ends[1]))
                assert " more from " not in line_with("is there", there), "it is no repetition"
                device.unlink()
                for end in ends:
                    os.close(end)
                assert " more from " not in line_with("is gone", there)
        else:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
            assert line_with("is there", there)


def test_a_port_that_another_has_is_refused(place: Place) -> None:
    device = serial.open_device(place.settings)
    with pytest.raises(OSError, match=r"Resource temporarily unavailable|lock"):
        serial.open_device(place.settings)
    device.close()
