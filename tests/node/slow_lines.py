"""A board and a queue manager in a world of memory, so many bytes a second between them, over TCP or a UART."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import power
from mqqb import guids, line
from ordack.broker.links import Link
from ordack.config.config import SERIAL_PORT, Config
from ordack.node import Node
from ordack.node.uart import UartLink

from tests.support.host_world import WALL, Host

GUID = bytes(range(16))
TO_HOST = "DIRECT=TCP:10.0.0.1\\private$\\line1"
TO_BOARD = f"PRIVATE={guids.guid_text(GUID)[1:-1]}\\7"
SEND_BUFFER = 16384  # of the board's TCP
UART_BUFFER = 4096
HIGH, LOW = 65536, 16384  # asyncio's marks


class Direction:
    """Bytes on their way, so many in a second. waiting: they have not left yet."""

    def __init__(self, speed: int) -> None:
        self.speed = speed
        self.waiting = bytearray()
        self.arrived = bytearray()
        self.total = 0

    def pass_time(self, milliseconds: int) -> None:
        count = self.speed * milliseconds // 1000
        self.arrived += self.waiting[:count]
        self.total += len(self.waiting[:count])
        del self.waiting[:count]

    def take(self, most: int = 1 << 30) -> bytes:
        taken = bytes(self.arrived[:most])
        del self.arrived[:most]
        return taken


class World:
    """A board with one connection to a queue manager, and the time of both."""

    step_ms = 250

    def __init__(self, folder: Path, speed: int, **config: Any) -> None:
        self.now = 0
        self.host = Host(folder, Config(**config))
        self.up, self.down = Direction(speed), Direction(speed)
        self.link: Link | None = None
        self.node = Node(
            "",
            connect=self.make_link(),
            files=power.Disk(),
            guid=GUID,
            random=lambda: 0.5,
            clock=lambda: WALL + self.now // 1000,
            capacity=32 << 20,
            inbox_quota=(16 << 20, 100),
        )
        self.node.clock.now = Clock(self).now  # type: ignore[method-assign]
        self.inbox = self.node.inbox("commands", 7)
        self.reasons: list[str] = []

    def make_link(self) -> Any:
        raise NotImplementedError

    def opened(self) -> None:
        self.link = self.host.manager.accept("board", self.now, ("board", SERIAL_PORT))

    def lost(self) -> None:
        if self.link in self.host.manager.links:
            self.host.manager.lost(self.link)
        self.link = None

    def arrive(self, data: bytes) -> None:
        if self.link and data:
            self.host.manager.receive([(self.link, data)], self.now, self.wall)

    def write(self, data: bytes) -> None:
        """The queue manager's transport is given this."""
        raise NotImplementedError

    def held(self) -> int:
        """How much of that has not left."""
        raise NotImplementedError

    def step(self) -> None:
        manager = self.host.manager
        link = self.link
        if link:
            held = self.held()
            link.pace.holds(held)
            if link.writable:
                link.writable = held <= HIGH
            elif held <= LOW:
                manager.resume(link, self.now, self.wall)
        manager.poll(self.now, self.wall)
        for of, data, shut in manager.output():
            if of is self.link:
                self.write(data)
                if shut:
                    self.reasons.append(str(of.session.closed and of.session.closed.reason))
                    self.end()
        for _ in range(10):
            if self.node.poll():
                break
        self.now += self.step_ms
        self.up.pass_time(self.step_ms)
        self.down.pass_time(self.step_ms)

    def end(self) -> None:
        """The queue manager ends the connection."""
        raise NotImplementedError

    @property
    def wall(self) -> int:
        return WALL + self.now // 1000

    def run(self, done: Any, most_s: int) -> None:
        while not done():
            assert self.now < 1000 * most_s, (self.reasons, self.node.peers.all[0].reason, self.host.log)
            self.step()

    def send(self, body: bytes) -> int:
        with self.host.client(self.wall) as client:
            return client.send(TO_BOARD, body).message_id


class Clock:
    def __init__(self, world: World) -> None:
        self.world = world

    def now(self) -> int:
        return self.world.now


class OverTcp(World):
    """What the queue manager writes is in its transport and in the kernel; the board's socket keeps a little."""

    stream: Any = None
    wants_write = False
    is_cut = False

    def make_link(self) -> Any:
        return self  # with the methods of link.Link that follow

    def open(self) -> None:
        self.up = Direction(self.up.speed)
        self.down = Direction(self.down.speed)
        self.is_cut = False
        self.opened()

    def is_open(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if self.is_cut:
            raise OSError(errno.ECONNRESET)
        data = self.down.take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> Any:
        if isinstance(data, bytes):
            self.down.waiting += data
            return None
        taken = data[: max(SEND_BUFFER - len(self.up.waiting), 0)]
        self.up.waiting += taken
        return len(taken)

    def close(self) -> None:
        self.lost()

    def end(self) -> None:
        self.is_cut = True

    def held(self) -> int:
        return len(self.down.waiting)

    def step(self) -> None:
        self.arrive(self.up.take())
        super().step()


class Uart:
    """machine.UART, as far as a link needs it."""

    def __init__(self, world: OverUart) -> None:
        self.world = world

    def any(self) -> int:
        return len(self.world.down.arrived)

    def readinto(self, buffer: memoryview) -> int | None:
        data = self.world.down.take(len(buffer))
        buffer[: len(data)] = data
        return len(data) or None

    def write(self, data: memoryview) -> int | None:
        waiting = self.world.up.waiting
        taken = data[: max(UART_BUFFER - len(waiting), 0)]
        waiting += taken
        return len(taken) or None


class OverUart(World):
    """Frames of the line protocol; the queue manager's end as ordack.server.serial has it."""

    def __init__(self, folder: Path, speed: int, **config: Any) -> None:
        self.line = line.Line(False, 16384, 0, 1 << 16)
        self.pending = bytearray()
        super().__init__(folder, speed, **config)

    def make_link(self) -> Any:
        link = UartLink(Uart(self), UART_BUFFER)
        link._clock = Clock(self)  # type: ignore[assignment]
        return link

    def write(self, data: bytes) -> None:
        self.pending += data

    def held(self) -> int:
        return len(self.pending)

    def end(self) -> None:
        self.line.close()
        self.lost()

    def step(self) -> None:
        buffer = bytearray(line.PAYLOAD_MAX)
        data = self.up.take()
        while data:
            room = self.line.room()
            part = data[: len(room)]
            room[: len(part)] = part
            self.line.received(len(part))
            data = data[len(part) :]
            while event := self.line.read(buffer, self.now):
                if event > 0:
                    self.arrive(bytes(buffer[:event]))
                    continue
                self.pending.clear()
                self.lost()
                if event == line.OPENED:
                    self.opened()
        super().step()
        while len(self.down.waiting) < UART_BUFFER:
            if data := self.line.output(self.now):
                self.down.waiting += data
                self.line.written(len(data))
            elif taken := self.line.write(bytes(self.pending[: line.PAYLOAD_MAX]), self.now):
                del self.pending[:taken]
            else:
                break
