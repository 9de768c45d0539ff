"""A queue manager and a peer that it calls, on real sockets, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from mqqb import handshake, parse
from mqqb.connection import MessageReceived
from mqqb.session import Session, Settings
from ordack.broker.manager import Manager
from ordack.config.config import Config, Networks
from ordack.config.tls import Tls
from ordack.server import tcp
from ordack.server.listener import Listener, Listeners
from ordack.server.record import Recorder
from ordack.store import Store

from tests.support.beside import HearingManager, client_beside
from tests.support.host_peer import body_of

DEADLINE_S = 60
reads_in_c = True  # plain connections; False: asyncio reads them
NAME = "DIRECT=OS:plant\\private$\\q"
PEER_GUID = b"\2" * 16


class Server:
    """A queue manager that runs in this event loop."""

    def __init__(self, store: Store, manager: Manager, port: int, log: list[str]) -> None:
        self.store = store
        self.manager = manager
        self.port = port
        self.log = log

    @property
    def way(self) -> dict[str, Any]:
        """What is told of the only hop, or nothing."""
        return next(iter(self.manager.connections().values()), {})

    def statuses(self) -> list[str]:
        return [event["status"] for event in self.way.get("history", ())]

    def send(self, *bodies: bytes) -> None:
        with client_beside(self.store.folder) as client:
            for body in bodies:
                client.send(NAME, body)


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    config: Config,
    host: str = "127.0.0.1",
    recorder: Recorder | None = None,
    allow: Networks | None = None,
    tls: Tls | None = None,
    certificates: frozenset[str] | None = None,
    applications: Listener | None = None,
    port: int = 0,
) -> AsyncIterator[Server]:
    log: list[str] = []
    stop, ready = asyncio.Event(), asyncio.Event()
    with Store(folder, create=True) as store:
        store.queues.create("line1", transactional=True)
        store.lock_manager()
        manager = HearingManager(store, tcp.now(), config, log.append)
        listener = Listener(host, port, allow, tls is not None, certificates)
        serving = tcp.serve(
            manager,
            Listeners([listener]),
            stop,
            ready.set,
            recorder=recorder,
            tls=tls,
            applications=Listeners([applications] if applications else []),
            reads_in_c=reads_in_c,
        )
        task = asyncio.create_task(serving)
        await asyncio.wait({task, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield Server(store, manager, listener.place[1], log)
        finally:
            stop.set()
            await task


class Destination:
    """A peer that is called: plays each connection with a session, and keeps what came on it.

    end: closes the connection when this says so, asked after each piece that came.
    """

    def __init__(self, end: Callable[[Session, list[bytes]], bool] = lambda _session, _bodies: False) -> None:
        self.end = end
        self.requests: list[handshake.EstablishConnection] = []
        self.times: list[float] = []
        self.bodies: list[list[bytes]] = []
        self.settings = Settings()
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(False, PEER_GUID, tcp.now(), settings=self.settings)
        bodies: list[bytes] = []
        self.bodies.append(bodies)
        self.times.append(asyncio.get_running_loop().time())
        self.writer = writer
        first = b""
        while data := await reader.read(1 << 16):
            if len(first) < 572:
                first += data
                if len(first) >= 572:
                    request = parse.parse(first[:572])
                    assert isinstance(request, handshake.EstablishConnection)
                    self.requests.append(request)
            for event in session.receive_data(data, tcp.now()):
                if isinstance(event, MessageReceived):
                    bodies.append(body_of(event.raw))
                    session.stored(event.recoverable, tcp.now())
            writer.write(session.data_to_send())
            if self.end(session, bodies):
                writer.transport.abort()
                return
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Destination]:
        server = await asyncio.start_server(self, host, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


_held: list[socket.socket] = []


def ping_port() -> int:
    """A UDP port that is for this test alone: below those that the system gives to who wants any. What holds it is the
    TCP port of its number, so who sends to it hears that nobody listens."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        number = random.SystemRandom().randrange(lowest // 2, lowest)
        held = socket.socket()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service:
            try:
                held.bind(("127.0.0.1", number))
                service.bind(("0.0.0.0", number))
            except OSError:
                held.close()
            else:
                _held.append(held)
                return number
