"""Real processes, killed with SIGKILL: the queue manager on its sockets, and applications that receive."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import select
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.server import tcp
from ordack.server.listener import Listener, Listeners
from ordack.store import Store

from hil.dice import new_seed
from tests.support.host_peer import Peer, body_of, direct

pytestmark = pytest.mark.slow

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])  # else each process imports pytest, too: 200 of them took half a minute
DEADLINE_S = 270  # all of it, on a machine that has other work


def _serve(folder: Path, port: int, ready: Connection) -> None:
    async def run() -> None:
        with Store(folder) as store:
            store.lock_manager()
            listener = Listener("127.0.0.1", port)
            number = listener.place[1]
            await tcp.serve(
                Manager(store, tcp.now()), Listeners([listener]), asyncio.Event(), lambda: ready.send(number)
            )

    asyncio.run(run())


class _Server:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.start()

    def start(self) -> None:
        ours, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_serve, args=(self.folder, self.port, theirs))
        self.process.start()
        theirs.close()
        self.port = ours.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class _Line:
    """A peer on a real socket, which it opens again whenever it is gone."""

    def __init__(self, peer: Peer, server: _Server) -> None:
        self.peer = peer
        self.server = server
        self.socket: socket.socket | None = None
        self.bytes = 0

    def turn(self) -> None:
        """Send what is to be sent, take what has come."""
        try:
            if self.socket is None:
                self.socket = socket.create_connection(("127.0.0.1", self.server.port), timeout=DEADLINE_S)
                self.peer.connect(tcp.now())
            data = self.peer.output(tcp.now())
            if data:
                self.socket.sendall(data)
                self.bytes += len(data)
            if select.select([self.socket], [], [], 0.002)[0]:
                data = self.socket.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                self.bytes += len(data)
                self.peer.receive(data, tcp.now())
        except OSError:
            self.close()

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.peer.disconnect()


@pytest.mark.rule("B-007", "B-098", "B-158", "B-299", "B-301", "A-01", "A-08", "A-31")
def test_100_kills_of_queue_manager_keep_exactly_once_in_order(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed)
    draw = random.Random(seed)
    kills = 100
    with Store(tmp_path, create=True) as store:
        store.queues.create("line1", transactional=True)
    server = _Server(tmp_path)
    lines = [_Line(Peer(bytes([number]) * 16, direct("line1")), server) for number in (1, 2)]
    expected: dict[int, list[bytes]] = {1: [], 2: []}
    try:
        for _ in range(kills):
            for line in lines:
                for _ in range(draw.randint(0, 6)):
                    number = line.peer.guid[0]
                    body = b"%d:%d:" % (number, len(expected[number])) + bytes(draw.choice([0, 100, 20000]))
                    line.peer.send(body)
                    expected[number].append(body)
            # The handshake is some 1200 bytes each way: many die in it, others while messages travel, or later, idle.
            before, progress, turns = sum(line.bytes for line in lines), draw.choice([100, 2500, 30000]), 0
            while sum(line.bytes for line in lines) - before < draw.randint(1, progress) and turns < 50:
                for line in lines:
                    line.turn()
                turns += 1
            server.kill()
            server.start()
        deadline = time.monotonic() + DEADLINE_S
        while not all(line.peer.is_settled for line in lines):
            assert time.monotonic() < deadline, "the streams do not settle"
            for line in lines:
                line.turn()
    finally:
        server.kill()
        for line in lines:
            line.close()
    with Store(tmp_path) as store:
        content = [
            body_of(message.packet) for message in store.messages.peek(store.queues.named("line1").identifier, 1 << 20)
        ]
    for number, bodies in expected.items():
        assert [body for body in content if body.startswith(b"%d:" % number)] == bodies
    assert len(content) == sum(map(len, expected.values()))


def _receive(folder: Path, output: Connection) -> None:
    with Client(folder) as client:
        while True:
            with client.queue("q").receive_batch(3) as messages:
                for message in messages:
                    output.send_bytes(message.body)
            if not messages:
                output.send_bytes(b"end")
                return


@pytest.mark.rule("B-343", "B-166")
def test_killed_receiver_gets_message_again_and_loses_none(tmp_path: Path) -> None:
    draw = random.Random(3)
    with Client(tmp_path, create=True) as client:
        queue = client.create_queue("q", transactional=False)
        with client.store.transaction():
            for number in range(200):
                queue.send(b"%-4000d" % number)  # so that a pipe has few of them, and nobody is far ahead of the kill
    shown: list[int] = []
    kills = 0
    deadline = time.monotonic() + DEADLINE_S
    while not shown or shown[-1] != -1:
        assert time.monotonic() < deadline
        ours, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=_receive, args=(tmp_path, theirs))
        process.start()
        theirs.close()
        for _ in range(draw.randint(1, 12)):
            try:
                body = ours.recv_bytes()
            except EOFError:
                break
            shown.append(-1 if body == b"end" else int(body))
            if body == b"end":
                break
        process.kill()
        process.join()
        kills += 1
        try:
            while True:  # what it had written before it died counts as shown
                body = ours.recv_bytes()
                shown.append(-1 if body == b"end" else int(body))
        except (EOFError, OSError):
            ours.close()
    shown = [number for number in shown if number >= 0]
    assert kills > 3
    first_time = [number for at, number in enumerate(shown) if number not in shown[:at]]
    assert first_time == list(range(200))
    assert len(shown) - 200 <= 3 * kills  # again: at most the batch that was not finished
    assert len(list(tmp_path.glob("*.lock"))) == 1  # however many have died
