"""Messages that take longer to travel than the protocol's timers last: a board and a queue manager, over TCP and over a
UART of 9,600 baud, in simulated time. Nothing of it depends on the speed of this machine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqqb import acks, build, parse
from mqqb.session import Session
from mqqb.streams import OutgoingStream
from ordack.broker.links import Pace
from ordack.node.link import TcpLink

from tests.node.slow_lines import GUID, TO_HOST, OverTcp, OverUart, World


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
    world.run(lambda: not world.host.store.outgoing.messages(), 6100)
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
