"""The board as a destination: tests/mp/test_inbox*.py on CPython, and messages from a host to a board.

The host is the queue manager on its store, in memory, and dies at any statement; the board is a node over a disk that
loses power at any change.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inbox_world
import power
import pytest
import test_inbox
import test_inbox_streams
from mqqb import confirm, guids
from ordack.broker.links import PeerLink
from ordack.config.config import Config
from ordack.node import Node, OutboxFull

from tests.support.command import as_json, ordack
from tests.support.host_world import WALL, Crash, Host

GUID = bytes(range(16))
NAMES = {"private": f"PRIVATE={guids.guid_text(GUID)[1:-1]}\\7", "direct": "DIRECT=TCP:10.0.0.7\\private$\\commands"}
HOP = ("10.0.0.7", 1801)


@pytest.mark.parametrize("test", test_inbox.TESTS + test_inbox_streams.TESTS, ids=lambda test: str(test.__name__))
def test_inbox(test: Callable[[], None]) -> None:
    test()


class Wire:
    """A board's link to a host: opened by the board, or by the host."""

    def __init__(self, world: World, opened_by_host: bool = False) -> None:
        self.world = world
        self.host = "10.0.0.1"
        self.stream: Any = None
        self.wants_write = False
        self.to_host = bytearray()
        self.to_board = bytearray()
        self.link: PeerLink | None = None
        if opened_by_host:
            self.link = world.host.manager.connect(HOP, "10.0.0.7", world.now)
            world.wires.append(self)

    def open(self) -> None:
        if not self.world.reachable:
            raise OSError(errno.ECONNREFUSED)
        self.link = self.world.host.manager.accept("10.0.0.7", self.world.now)
        self.to_host.clear()
        self.to_board.clear()
        self.world.wires.append(self)

    def is_open(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        if self.link is None:
            raise OSError(errno.ECONNRESET)
        count = min(len(buffer), len(self.to_board))
        buffer[:count] = self.to_board[:count]
        del self.to_board[:count]
        return count

    def write(self, data: memoryview) -> int:
        if self.link is None:
            raise OSError(errno.ECONNRESET)
        self.to_host += data
        return len(data)

    def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        if self.link is not None:
            link, self.link = self.link, None
            self.world.wires.remove(self)
            if link in self.world.host.manager.links:
                self.world.host.manager.lost(link)


class Clock:
    def __init__(self, world: World) -> None:
        self.world = world

    def now(self) -> int:
        return self.world.now


class World:
    """A host, and a board that keeps a session with it, or waits for one. Both may die."""

    def __init__(self, tmp_path: Path, name: str = "private", **options: Any) -> None:
        self.now = 0
        self.name = NAMES[name]
        self.listens = name == "direct"
        self.options = options
        self.reachable = True
        self.wires: list[Wire] = []
        self.host = Host(tmp_path, Config(next_hops={}))
        self.start(power.Disk())

    def start(self, disk: Any) -> None:
        for wire in list(self.wires):
            wire.cut()
        self.disk = disk
        self.node = Node(
            "",
            connect=None if self.listens else Wire(self),
            files=disk,
            guid=GUID,
            clock=lambda: WALL + self.now // 1000,
            random=lambda: 0.9,
            **self.options,
        )
        self.node.clock.now = Clock(self).now  # type: ignore[method-assign]
        self.inbox = self.node.inbox("commands", 7)

    def send(self, *bodies: bytes, **properties: Any) -> list[int]:
        with self.host.client(WALL + self.now // 1000) as client:
            return [client.send(self.name, body, **properties).message_id for body in bodies]

    def conclusion(self, message_id: int) -> str:
        with self.host.client(WALL + self.now // 1000) as client:
            found = client.state(message_id)
            assert found is not None
            return found.answer

    def step(self, most: int = 1 << 22) -> None:
        """Everybody does what can be done; up to `most` bytes arrive in each direction."""
        try:
            self.host.manager.poll(self.now, WALL + self.now // 1000)
            for hop in self.host.manager.wanted_hops():
                if self.listens and hop == HOP and self.reachable:
                    self.accept()
            arrivals = []
            for wire in self.wires:
                assert wire.link is not None
                data, wire.to_host = bytes(wire.to_host[:most]), wire.to_host[most:]
                if data:
                    arrivals.append((wire.link, data))
            if arrivals:
                self.host.manager.receive(arrivals, self.now, WALL + self.now // 1000)
            for link, data, shut in self.host.manager.output():
                for wire in [wire for wire in self.wires if wire.link is link]:
                    wire.to_board += data
                    if shut:
                        wire.cut()
        except Crash:
            self.host.restart(self.now)
            for wire in list(self.wires):
                wire.cut()
        for _ in range(10):
            if self.node.poll():
                break

    def accept(self) -> None:
        self.node.peers.add(Wire(self, opened_by_host=True), None)

    def run(self, ms: int = 3000, handle: Callable[[Any], None] | None = None) -> None:
        end = self.now + ms
        while self.now < end:
            for _ in range(4):
                self.step()
                while handle is not None and (message := self.inbox.get()) is not None:
                    handle(message)
            self.now += 100


def test_rescue_shows_sender_of_each_incoming_message(tmp_path: Path) -> None:
    world = World(tmp_path / "host")
    world.send(b"on")
    world.run()
    folder = tmp_path / "outbox"
    folder.mkdir()
    for name, file in world.disk.files.items():
        (folder / name).write_bytes(file.data)
    source = guids.guid_text(world.host.store.guid)
    assert f"1 #7 '': 2 bytes, not handled, from {source}\n" in ordack("board", "rescue", folder).stdout
    message, _ = as_json("board", "rescue", folder)
    assert message["from"] == source


@pytest.mark.parametrize("name", list(NAMES))
def test_host_learns_outcome_of_message_to_board(tmp_path: Path, name: str) -> None:
    world = World(tmp_path, name, inbox_quota=(100000, 4))
    first, second, third = world.send(b"on", b"off", b"no", dead_letter=True)
    world.run()
    assert world.conclusion(first) == confirm.STORED
    message = world.inbox.get()
    assert message is not None
    assert (message.body, message.source) == (b"on", world.host.store.guid)
    world.inbox.take(message)
    world.run()
    assert [world.conclusion(sent) for sent in (first, second)] == [confirm.RECEIVED, confirm.STORED]
    for end in (world.inbox.take, world.inbox.reject):
        message = world.inbox.get()
        assert message is not None
        end(message)
    world.run()
    assert [world.conclusion(sent) for sent in (second, third)] == [confirm.RECEIVED, confirm.DEAD_LETTERED]
    many = world.send(*[b"x"] * 6)
    world.run()
    answers = [world.conclusion(sent) for sent in many]
    assert answers == [confirm.STORED] * 4 + [confirm.DISCARDED] * 2, "the inbox is full"


def test_board_sends_and_receives_over_session_it_opens(tmp_path: Path) -> None:
    world = World(tmp_path)
    queue = world.node.queue("DIRECT=TCP:10.0.0.1\\private$\\line1")
    readings = [queue.put(b"%d" % k, dead_letter=True) for k in range(3)]
    world.send(b"on")
    bodies = []

    def handle(message: Any) -> None:
        bodies.append(message.body)
        world.inbox.take(message)

    world.run(2000, handle)
    assert bodies == [b"on"]
    assert [message.is_stored() for message in readings] == [True] * 3
    assert len(world.host.manager.links) == 1, "one session for both directions"
    assert world.host.content("line1") == [b"0", b"1", b"2"]


def taking(world: World, bodies: list[bytes]) -> Callable[[Any], None]:
    def handle(message: Any) -> None:
        bodies.append(message.body)
        world.inbox.take(message)

    return handle


SMALL = {"capacity": 3000, "segment_size": 1000, "inbox_quota": (100000, 100)}


@pytest.mark.rule("B-110", "B-285")
@pytest.mark.parametrize("name", list(NAMES))
def test_full_inbox_message_is_resent_as_soon_as_there_is_room(tmp_path: Path, name: str) -> None:
    """Only the session says it, by its end: no acknowledgement, and no wait for the sender's own resend (505 s)."""
    world = World(tmp_path, name, **SMALL)
    bodies = [b"%d" % k + bytes(300) for k in range(12)]
    sent = world.send(*bodies, dead_letter=True)
    world.run(100000)  # the sender's three short intervals are over; the next would be of 300 s
    few = len(world.inbox)
    assert 2 < few < 12
    assert [world.conclusion(message_id) for message_id in sent] == [confirm.STORED] * few + [confirm.WAITING] * (
        12 - few
    )
    taken: list[bytes] = []
    world.run(30000, taking(world, taken))
    assert taken == bodies
    assert [world.conclusion(message_id) for message_id in sent] == [confirm.RECEIVED] * 12


@pytest.mark.rule("B-285")
def test_a_full_board_delivers_its_own_messages_which_makes_room(tmp_path: Path) -> None:
    """Its log is full of them, and at the beginning of each session there comes something that has no room."""
    world = World(tmp_path, **SMALL)
    queue = world.node.queue("DIRECT=TCP:10.0.0.1\\private$\\line1")
    world.reachable = False
    readings = []
    with contextlib.suppress(OutboxFull):
        while True:
            readings.append(queue.put(b"%d" % len(readings) + bytes(200)))
    assert len(readings) > 3
    sent = world.send(*[b"on %d" % k + bytes(300) for k in range(3)])
    world.reachable = True
    taken: list[bytes] = []
    world.run(30000, taking(world, taken))
    assert [message.is_stored() for message in readings] == [True] * len(readings)
    assert [world.conclusion(message_id) for message_id in sent] == [confirm.STORED] * 3
    assert len(taken) == 3


@pytest.mark.rule("B-285")
@pytest.mark.parametrize("size", [3000, 9000], ids=["in one buffer", "in parts"])
def test_full_inbox_does_not_interrupt_message_on_slow_line(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It travels for longer than the session of what finds no room lasts: in each it would begin again."""
    world = World(tmp_path, capacity=14000, segment_size=1000, inbox_quota=(100000, 100))
    reading = world.node.queue("DIRECT=TCP:10.0.0.1\\private$\\line1").put(bytes(size))
    world.send(*[bytes(300)] * 40)
    write = Wire.write
    monkeypatch.setattr(Wire, "write", lambda wire, data: write(wire, data[: size // 300]))
    left = []
    while not reading.is_stored() and world.now < 30000:
        world.run(100)
        assert world.node.inboxes is not None
        left.append(world.node.inboxes.left)
    assert reading.is_stored()
    assert left.count(1) > 60, "it has travelled for longer than 5 s"
    assert max(left) == 1


def test_one_board_sends_to_another_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    receiver = Node("", files=power.Disk(), guid=GUID, listen=("127.0.0.1", port))
    inbox = receiver.inbox("commands")
    sender = Node("", files=power.Disk(), guid=bytes([9]) * 16, connect=("127.0.0.1", port))
    queue = sender.queue(NAMES["direct"])

    async def receive() -> list[bytes]:
        bodies: list[bytes] = []
        async for message in inbox:
            bodies.append(message.body)
            if len(bodies) == 3:
                inbox.take(message)
                return bodies
        raise AssertionError("an inbox has no end")

    async def main() -> None:
        receiver.start()
        sender.start()
        receiving = asyncio.create_task(receive())
        messages = await queue.send_all([b"1", b"2", b"3"], dead_letter=True)
        assert [await message.received() for message in messages] == [True] * 3
        assert await receiving == [b"1", b"2", b"3"]
        await sender.close()
        await receiver.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_hold_on_board_messages_does_not_hold_acks(tmp_path: Path) -> None:
    """They are two outgoing queues: putting one on hold, or emptying it, does nothing to the other."""
    world = World(tmp_path)
    world.send(b"on")
    name = world.name.lower()[:-1] + "00000007"
    with world.host.client() as client:
        assert client.order("set_on_hold", name, True)
    refused = world.node.queue("DIRECT=TCP:10.0.0.1\\private$\\nowhere").put(b"x", dead_letter=True)
    world.run(2000)
    assert refused.is_ended()
    assert len(world.inbox) == 0
    with world.host.client() as client:
        assert client.order("set_on_hold", name, False)
    world.run(2000)
    assert len(world.inbox) == 1


@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "2"))))
def test_commands_are_handled_once_in_order_despite_kills(tmp_path: Path, name: str, seed: int) -> None:
    print("seed", seed)
    draw = random.Random(seed)
    dice = power.Dice(seed + 1)
    world = World(tmp_path, name, inbox_quota=(5000, 20), segment_size=1500)
    application = inbox_world.Application()
    sent: list[int] = []
    left = 0

    def count_down(_disk: Any, _step: str, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise power.PowerCut(bytes(data[: dice.below(len(data) + 1)]))

    cuts = 0
    for _ in range(200):
        world.disk.before = count_down
        if left <= 0:
            left = draw.randint(1, 40)
        try:
            what = draw.randrange(10)
            if what < 2:
                sent += world.send(*[b"%d" % k for k in range(draw.randint(1, 3))], dead_letter=draw.random() < 0.7)
            elif what == 2 and world.wires:
                world.wires[0].cut()
            elif what == 3:
                world.host.arm(draw.randint(1, 60))
            elif what < 6:
                application.look(world, dice)
            else:
                for _ in range(5):
                    world.step(draw.choice([100, 1000, 5000]))
                    world.now += draw.choice([0, 100, 600])
        except power.PowerCut as cut:
            cuts += 1
            world.disk.before = None
            world.start(world.disk.after_cut(power.WAYS[dice.below(4)], dice, cut.args[0]))
            application.restarted(world)
        except Crash:
            world.host.restart(world.now)
            for wire in list(world.wires):
                wire.cut()
    world.disk.before = None
    world.host.store._database.connection.exec_trace = None

    def handle(message: Any) -> None:
        what = (message.source, message.message_id)
        if what != application.open:
            assert what not in application.handled
            application.handled.append(what)
        application.open = None
        world.inbox.take(message)

    for _ in range(10):
        world.run(31000, handle)
    handled = [what[1] for what in application.handled]
    assert handled == [message_id for message_id in sent if message_id in handled], "once, and in order"
    assert cuts, "the power did not go"
    for message_id in sent:
        conclusion = world.conclusion(message_id)
        if message_id in handled:
            assert conclusion in (confirm.RECEIVED, confirm.STORED) or (
                conclusion in (confirm.DEAD_LETTERED, confirm.DISCARDED)
                and (world.host.store.guid, message_id) in application.rejected
            )
        else:
            assert conclusion in (confirm.DEAD_LETTERED, confirm.DISCARDED), "the inbox was full"
    assert len(handled) > len(sent) // 3, (len(handled), len(sent))
