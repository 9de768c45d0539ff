"""`ordack serve` as a process that only its store or a signal to stop may end: not the end of its terminal, not a
defect that something on a connection meets, not a peer that drips.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mqqb import build
from mqqb.session import Session
from ordack.server import tcp

from hil.signals import heed
from tests.support.command import DEADLINE_S, ENVIRONMENT, converse, write_settings
from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, exchange, handshake, peer_of, world_of

pytestmark = pytest.mark.slow

# A queue manager with a defect that what is marked meets, wherever it is handled.
BROKEN = """
import sys
from ordack.server import tcp
from ordack.broker.manager import Manager

def fails(method, is_hit):
    def call(self, *arguments, **options):
        if is_hit(*arguments):
            raise RuntimeError("a defect in " + method.__name__)
        return method(self, *arguments, **options)
    return call

tcp.Net.arrived = fails(tcp.Net.arrived, lambda link, data: b"MARK-arrived" in data)
tcp.Net.lost = fails(tcp.Net.lost, lambda link, *_: link.session.remote_guid == bytes([99]) * 16)
Manager.receive = fails(Manager.receive, lambda arrivals, *_: any(b"MARK-receive" in data for _, data in arrivals))
if "report" in sys.argv.pop(1):
    Manager.report = fails(Manager.report, lambda: True)
from ordack.cli import main
main()
"""

IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Served:
    """The process; `port` is where it listens."""

    def __init__(self, store: Path, defect: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", BROKEN, defect, "serve", "--store", str(store), "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def stop(self) -> str:
        """What it has told of; it stops in order."""
        self.process.terminate()
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, errors
        return errors


@pytest.fixture
def served(store: Path) -> Iterator[Callable[[str], Served]]:
    started: list[Served] = []

    def start(defect: str) -> Served:
        started.append(Served(store, defect))
        return started[0]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def ends(connection: socket.socket) -> None:
    """The other end closes it."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if select.select([connection], [], [], 1)[0] and not connection.recv(1 << 16):
                return
        except ConnectionResetError:
            return
    raise AssertionError("the connection stands")


def open_session(connection: socket.socket, peer: Peer) -> Session:
    peer.connect(tcp.now())
    assert peer.session
    while peer.session.state != "OPEN":
        connection.sendall(peer.output(tcp.now()))
        data = connection.recv(1 << 16)
        assert data, "the connection has ended"
        peer.receive(data, tcp.now())
    return peer.session


@pytest.mark.rule("B-435")
@pytest.mark.parametrize("defect", ["arrived", "receive"])
def test_a_defect_ends_the_connection_that_met_it_and_no_other(served: Callable[[str], Served], defect: str) -> None:
    running = served(defect)
    other = Peer(bytes([1]) * 16, direct("line1"))
    with socket.create_connection(("127.0.0.1", running.port), DEADLINE_S) as bystander:
        open_session(bystander, other)
        with socket.create_connection(("127.0.0.1", running.port), DEADLINE_S) as unlucky:
            unlucky.sendall(b"MARK-" + defect.encode())
            ends(unlucky)
        other.send(b"x")
        deadline = time.monotonic() + DEADLINE_S
        while not other.is_settled:
            assert time.monotonic() < deadline
            bystander.sendall(other.output(tcp.now()))
            if select.select([bystander], [], [], 0.02)[0]:
                other.receive(bystander.recv(1 << 16), tcp.now())
    converse(peer_of(2), running.port)
    told = running.stop()
    assert told.count(f"RuntimeError: a defect in {defect}\n") == 1
    assert "127.0.0.1: session closed, defect in the queue manager" in told


def test_the_end_of_its_terminal_is_not_the_end_of_serve(store: Path) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, "-m", "ordack", "serve", "--store", str(store), "--listen", "127.0.0.1:0"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=heed,
    )
    os.close(slave)
    try:
        said = b""
        while not (listening := re.search(rb"listening on \S+:(\d+)\r\n", said)):
            said += os.read(master, 1000)
        port = int(listening[1])
        os.close(master)
        process.send_signal(signal.SIGHUP)  # and once more, by hand
        for number in (1, 2):
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as nonsense:
                nonsense.sendall(b"nonsense" * 10)  # something to be told, where nobody listens any more
                ends(nonsense)
            peer = peer_of(number)
            peer.send(b"x")
            converse(peer, port)
        assert process.poll() is None
        process.terminate()
        process.wait(DEADLINE_S)
    finally:
        process.kill()
        process.wait()


@pytest.mark.rule("B-435")
def test_a_packet_that_drips_ends_its_connection(store: Path, served: Callable[[str], Served]) -> None:
    write_settings(store, PacketTimeout=1000)
    running = served("none")
    peer = peer_of(1)
    peer.send(bytes(1 << 20))
    with socket.create_connection(("127.0.0.1", running.port), DEADLINE_S) as connection:
        open_session(connection, peer)
        connection.sendall(peer.output(tcp.now())[:100])  # which may take 3 s
        ends(connection)
    converse(peer, running.port)
    assert "a packet comes too slowly (B-435)" in running.stop()


@pytest.mark.rule("B-435")
def test_first_packet_gets_full_timeout_after_long_uptime(host: Host) -> None:
    """However long the machine has been on: a UART brings EstablishConnection in pieces."""
    peer = peer_of(1)
    world = world_of([host], [peer])
    world.connect_all()
    world.collect()
    first, world.wires[0].to_host = bytes(world.wires[0].to_host), bytearray()
    for at in range(0, len(first), 100):
        world.wires[0].to_host += first[at : at + 100]
        world.deliver(1 << 20)
        world.pass_time(100)
    assert world.wires, host.log
    exchange(world)
    assert [link.is_open for link in host.manager.links] == [True]


@pytest.mark.rule("B-435", "B-167")
@pytest.mark.parametrize(("rate", "stays"), [(960, True), (55, True), (45, False)])
def test_how_slowly_a_packet_may_come(host: Host, rate: int, stays: bool) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    handshake(world)
    world.wires[0].to_host.clear()
    packet = bytes(build.user_message(b"\1" * 16, 1, direct("line1"), bytes(100_000)))
    seconds = 0
    while world.wires and seconds < 1000 and len(packet) > rate:
        world.wires[0].to_host += packet[:rate]
        packet = packet[rate:]
        world.deliver(1 << 20)
        world.pass_time(1000)
        world.collect()
        seconds += 1
    assert bool(world.wires) == stays
    assert stays or 60 < seconds <= 660
    assert stays or any("a packet comes too slowly" in line for line in host.log)
