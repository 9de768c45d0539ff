"""Messages that take longer to travel than the protocol's timers last: a board and a queue manager, over TCP and over a
UART of 9,600 baud, in simulated time. Nothing of it depends on the speed of this machine.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import acks, build, guids, line, parse
from mqqb.session import Session
from mqqb.streams import OutgoingStream
from node import Node
from node.link import TcpLink
from node.uart import UartLink
from ordack.config import SERIAL_PORT, Config
from ordack.links import Link
from ordack.pace import Pace

from tests.node.test_inbox import power
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
        self.node._clock = Clock(self)  # type: ignore[assignment]
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
            assert self.now < 1000 * most_s, (self.reasons, self.node._peers[0].reason, self.host.log)
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
        return self  # with the methods of interfaces.Link that follow

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
    """Frames of the line protocol; the queue manager's end as ordack.net.serial has it."""

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
            if count := self.line.output(self.now):
                self.down.waiting += self.line.out[self.line.out_start : self.line.out_end]
                self.line.written(count)
            elif taken := self.line.write(bytes(self.pending[: line.PAYLOAD_MAX]), self.now):
                del self.pending[:taken]
            else:
                break


@pytest.fixture(params=[OverTcp, OverUart])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """At 960 bytes a second each way."""
    made: World = request.param(tmp_path, 960)
    yield made
    made.host.store.close()


LARGE = bytes(range(256)) * (4 * 4096 - 4)  # 4 MiB with its headers


@pytest.mark.rule("B-148", "B-151", "B-147", "B-167")
def test_a_board_s_message_that_travels_for_more_than_an_hour_arrives_by_one_session(world: World) -> None:
    queue = world.node.queue(TO_HOST)
    large = queue.put(LARGE)
    small = queue.put(b"and then a small one")
    world.run(lambda: large.is_settled() and small.is_settled(), 6000)
    assert world.now > 4_300_000
    assert world.node.stats.connects == 1
    assert world.node.stats.sent == 2, "it was sent once more while it was leaving"
    assert world.host.content("line1") == [LARGE, b"and then a small one"]


@pytest.mark.rule("B-148", "B-151", "B-147", "B-167")
def test_a_queue_manager_s_message_that_travels_for_more_than_an_hour_arrives_by_one_session(world: World) -> None:
    world.run(lambda: world.node.stats.connects, 10)
    sent = [world.send(LARGE), world.send(b"and then a small one")]
    world.run(lambda: len(world.inbox) == 2, 6000)
    assert world.now > 4_300_000
    for body in (LARGE, b"and then a small one"):
        message = world.inbox.get()
        assert message is not None
        assert message.body == body
        world.inbox.take(message)
    world.run(lambda: not world.host.store.outgoing_messages(), 6100)
    with world.host.client(world.wall) as client:
        assert [client.state(message_id).answer for message_id in sent] == ["stored at destination"] * 2  # type: ignore[union-attr]
    assert world.node.stats.connects == 1
    assert world.down.total < 1.1 * len(LARGE), "it was sent once more while it was leaving"


@pytest.mark.rule("B-151")
def test_what_is_sent_again_over_a_slow_line_is_not_sent_once_more_while_it_is_leaving() -> None:
    stream = OutgoingStream(OutgoingStream.new(9))
    pace = Pace(Session(True, GUID, 0))
    packet = build.user_message(GUID, 1, acks.order_queue("h"), b"", delivery="transactional")
    entry = stream.number(packet, parse.transaction_offset(packet), 1, 1)
    assert entry

    def is_offered_at(now: int, held: int) -> bool:
        pace.holds(held)
        pace.run_timer(stream, now)
        return stream.next_to_send() is entry

    def send(now: int, size: int) -> None:
        entry.awaiting_ack = True
        stream.sent(entry, now)
        pace.wrote(size)

    send(0, 500)
    assert not is_offered_at(50, 0)
    assert is_offered_at(30_050, 0)
    send(30_050, 60_000)
    for now in range(30_100, 90_000, 50):
        assert not is_offered_at(now, 90_000 - now)
    assert not is_offered_at(119_000, 0)
    assert is_offered_at(121_000, 0)


def test_little_is_in_the_kernel_of_a_board_that_runs_linux() -> None:
    """The board sees that a line takes bytes by what it takes of them, so nobody else may collect megabytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link = TcpLink(*listener.getsockname())
        link.open()
        deadline = time.monotonic() + 30
        while not link.is_open():
            assert time.monotonic() < deadline
        taken = 0
        while count := link.write(memoryview(bytes(8192))):
            taken += count
        link.close()
    assert 0 < taken < 200_000
