"""A queue manager on a pseudo-terminal, and a board's link at its other end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tty
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from ordack.config.config import BAUD, SERIAL_PORT, Config, SerialSettings
from ordack.node.uart import UartLink
from ordack.server import serial, tcp
from ordack.server.listener import Listener, Listeners
from ordack.server.record import Recorder
from ordack.store import Store

from tests.support.beside import HearingManager, client_beside
from tests.support.host_peer import Peer, direct

DEADLINE_S = 60
GUID = b"\3" * 16
TO_BOARD = "DIRECT=OS:press7\\private$\\commands"


class Wire:
    """A board's UART on a file that does not block. fault: what becomes of bytes on their way."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
        self.fault: Callable[[bytes], bytes] = bytes
        self.most = 200

    def readinto(self, buffer: memoryview) -> int | None:
        count = self.file.readinto(buffer)
        if count:
            data = self.fault(bytes(buffer[:count]))[: len(buffer)]
            buffer[: len(data)] = data
            count = len(data) or None
        return count

    def write(self, data: memoryview) -> int | None:
        piece = bytes(data[: self.most])
        spoiled = self.fault(piece)
        if spoiled is piece:
            return self.file.write(piece)
        self.file.write(spoiled)
        return len(piece)


class Board:
    """What a board does with its link, in a task: a session whenever there can be one."""

    def __init__(self, wire: Wire, rxbuf: int = 1024) -> None:
        self.wire = wire
        self.link = UartLink(wire, rxbuf)
        self.peer = Peer(GUID, direct("line1"))
        self.connections = 0
        self.reads = True
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        buffer = memoryview(bytearray(2048))
        waiting = b""
        while True:
            try:
                if self.link.stream is None:
                    self.link.open()
                elif not self.peer.session:
                    if self.link.is_open():
                        self.connections += 1
                        waiting = b""
                        self.peer.connect(tcp.now())
                else:
                    while self.reads and (count := self.link.readinto(buffer)):
                        self.peer.receive(bytes(buffer[:count]), tcp.now())
                    waiting += self.peer.output(tcp.now())
                    waiting = waiting[self.link.write(memoryview(waiting)) :]
                    if self.peer.session.closed:
                        raise OSError
            except OSError:
                self.link.close()
                self.peer.disconnect()
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Place:
    """A queue manager with a line, whose port is a link to a pseudo-terminal that can be exchanged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = SerialSettings("press7", str(folder / "tty"), BAUD)
        self.log: list[str] = []
        self.wire = self.plug()

    def plug(self) -> Wire:
        master, slave = os.openpty()
        tty.setraw(slave)
        port = self.folder / "tty"
        port.unlink(missing_ok=True)
        port.symlink_to(os.ttyname(slave))
        self.slave = slave
        return Wire(master)

    def unplug(self) -> None:
        self.wire.file.close()
        os.close(self.slave)
        (self.folder / "tty").unlink()

    @contextlib.asynccontextmanager
    async def serving(self, recorder: Recorder | None = None, **settings: Any) -> AsyncIterator[Place]:
        stop, ready = asyncio.Event(), asyncio.Event()
        config = Config(next_hops={"press7": ("press7", SERIAL_PORT)}, **settings)
        with Store(self.folder / "store", create=True) as self.store:
            with contextlib.suppress(Exception):
                self.store.queues.create("line1", transactional=True)
            self.manager = HearingManager(self.store, tcp.now(), config, self.log.append)
            device = serial.open_device(self.settings)
            task = asyncio.create_task(
                tcp.serve(
                    self.manager,
                    Listeners([Listener("127.0.0.1", 0)]),
                    stop,
                    ready.set,
                    [(self.settings, device)],
                    recorder,
                )
            )
            await asyncio.wait({task, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
            try:
                yield self
            finally:
                stop.set()
                await task

    def way(self) -> dict[str, Any]:
        return self.manager.connections()["press7", SERIAL_PORT]

    def bodies(self) -> list[bytes]:
        with client_beside(self.store.folder) as client:
            return [message.body for message in client.queue("line1").peek()]

    def send(self, *bodies: bytes) -> None:
        with client_beside(self.store.folder) as client:
            for body in bodies:
                client.send(TO_BOARD, body)


def run(test: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(limited())
