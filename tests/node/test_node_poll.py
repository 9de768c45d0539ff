"""The node as a program drives it: without asyncio, over a link that takes a few bytes at a time, with sessions that
others open; and the layer of asyncio, which calls it when there is something to do and not before.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import power
import pytest
from mqqb import confirm, headers
from mqqb.session import Settings
from ordack.node import Node, OutboxDamaged, OutboxFull, OutboxMessage, OutboxWriteFailed
from ordack.node.talk.link import TICK_MS, TcpLink

from firmware.ports import modules
from tests.node.destination import LINE, Destination, elsewhere
from tests.support.command import own_port

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "build" / "micropython" / "unix-c" / "micropython"
LONG_MS = 240000


def reach(destination: Destination, **options: Any) -> Node:
    return Node("", files=power.Disk(), connect=("127.0.0.1", destination.port), random=lambda: 0.99, **options)


# ---- without asyncio ----------------------------------------------------------------------------------


def test_a_program_without_asyncio_puts_polls_and_waits() -> None:
    with elsewhere() as destination:
        node = reach(destination)
        queue = node.queue(LINE)
        first = queue.put(b"0", label="reading")
        rest = queue.put_all([b"1", b"2"])
        assert first.conclusion().answer == confirm.WAITING
        assert not first.is_settled()
        assert not first.is_stored()
        assert node.wait(rest[-1].is_settled, LONG_MS)
        assert first.conclusion().answer == confirm.STORED
        assert [message.is_stored() for message in (first, *rest)] == [True] * 3
        assert [message.is_ended() for message in (first, *rest)] == [True] * 3
        assert destination.bodies == [b"0", b"1", b"2"]
        assert destination.queue[0].label == "reading"
        assert not node.wait(lambda: False, 30), "it comes back when the time is over"
        node.close_now()


@pytest.mark.rule("B-098")
async def test_nothing_leaves_before_it_is_durable() -> None:
    """A session is open, and the program polls between a send() and the sync that it waits for."""
    disk = power.Disk()
    durable: list[power.Disk] = []

    def seen(_: headers.UserMessage) -> None:
        durable.append(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))

    with elsewhere(order_ack_timeout=LONG_MS * 10, seen=seen) as destination:
        node = Node("", files=disk, connect=("127.0.0.1", destination.port), random=lambda: 0.99)
        queue = node.queue(LINE)
        queue.put(b"1")  # not settled, or the next one began a sequence, for which there is a sync anyway
        assert node.wait(lambda: len(durable) == 1, LONG_MS)
        waiting = asyncio.create_task(queue.send(b"2"))
        await asyncio.sleep(0)  # it is in the log, and not durable
        assert len(node.commits.uncommitted) == 1
        assert node.wait(lambda: len(durable) == 2, LONG_MS)
        left = Node("", files=durable[1])
        assert [entry.message_id for entry in left.queue(LINE).stream.table] == [1, 2]
        assert (await waiting).message_id == 2
        assert node.stats.connects == 1
        node.close_now()


async def test_of_a_batch_that_does_not_fit_the_beginning_is_accepted() -> None:
    node = Node("", files=power.Disk(), capacity=1300)
    with pytest.raises(OutboxFull):
        node.queue(LINE).put_all([b"0", b"1", b"2", b"3"])
    assert node.next_message_id == 4
    assert (node.stats.accepted, node.waiting) == (3, 3)
    node = Node("", files=power.Disk(), capacity=1300)
    sent = await node.queue(LINE).send_all([b"0", b"1"])
    assert [message.message_id for message in sent] == [1, 2]
    with pytest.raises(OutboxFull):
        await node.queue(LINE).send_all([b"2", b"3"])
    assert node.stats.accepted == 3


def test_answers_without_asyncio() -> None:
    with elsewhere(refuse=lambda arrived: 0x8003 if arrived.body == b"no" else 0, receives=True) as destination:
        node = reach(destination)
        queue = node.queue(LINE)
        plain = queue.put(b"plain")
        refused = queue.put(b"no", dead_letter=True)
        received = queue.put(b"yes", journal=True)
        assert node.wait(lambda: all(message.is_ended() for message in (plain, refused, received)), LONG_MS)
        assert [plain.conclusion().answer, refused.conclusion().answer, received.conclusion().answer] == [
            confirm.STORED,
            confirm.DEAD_LETTERED,
            confirm.RECEIVED,
        ]
        assert [message.is_received() for message in (plain, refused, received)] == [False, False, True]
        assert [message.is_stored() for message in (plain, refused, received)] == [True, False, True]
        node.take(refused)
        assert node.dead_letters() == []
        with pytest.raises(ValueError, match="neither"):
            node.take(refused)
        node.close_now()


def test_a_message_is_given_up_without_asyncio() -> None:
    node = Node("", files=power.Disk())
    message = node.queue(LINE).put(b"", dead_letter=True)
    node.delete(message)
    assert message.conclusion().answer == confirm.DEAD_LETTERED
    with pytest.raises(ValueError, match="not on its way"):
        node.delete(message)


def test_fatal_delivery_error_is_raised_by_every_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    with elsewhere() as destination:
        node = reach(destination)
        message = node.queue(LINE).put(b"1")

        def broken(_: TcpLink, buffer: memoryview) -> int:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(TcpLink, "readinto", broken)
        with pytest.raises(RuntimeError, match="a mistake"):
            node.wait(message.is_settled, LONG_MS)
        with pytest.raises(RuntimeError, match="a mistake"):
            node.poll()
        with pytest.raises(RuntimeError, match="a mistake"):
            node.queue(LINE).put(b"2")
        node.close_now()


def test_poll_does_not_block_on_unanswered_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener whose backlog is full takes no connection and refuses none."""
    monkeypatch.setattr("ordack.node.talk.link.CONNECT_TIMEOUT_S", LONG_MS)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        others = []
        for _ in range(4):
            other = socket.socket()
            other.setblocking(False)
            other.connect_ex(silent.getsockname())
            others.append(other)
        node = Node("", files=power.Disk(), connect=silent.getsockname(), random=lambda: 0.99)
        queue = node.queue(LINE)
        queue.put(b"1")
        waiting = 0  # polls that came back while the connection was neither made nor refused
        while not queue.peer.reason:
            assert 0 <= node.poll() <= 100
            waiting += not queue.peer.reason
            if waiting >= 10:
                monkeypatch.setattr("ordack.node.talk.link.CONNECT_TIMEOUT_S", 0)
            select.select([], [], [], 0.005)
        assert str(errno.ETIMEDOUT) in queue.peer.reason
        assert waiting >= 10
        node.close_now()
        for other in others:
            other.close()


# ---- a link of another kind ---------------------------------------------------------------------------


# ---- sessions that others open ------------------------------------------------------------------------


def both(*nodes: Node) -> Callable[[Callable[[], bool]], None]:
    """Polls nodes of one program until something is so."""

    def go(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + LONG_MS / 1000
        while not condition():
            assert time.monotonic() < end
            if min([node.poll() for node in nodes]):
                select.select([], [], [], 0.001)

    return go


def test_node_limits_accepted_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordack.node.talk.peer.ACCEPTED_MAX", 2)
    port = own_port()
    board = Node("", files=power.Disk(), listen=("127.0.0.1", port))
    board.poll()
    others = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    end = time.monotonic() + LONG_MS / 1000
    while not select.select([others[2]], [], [], 0)[0]:
        board.poll()
        assert time.monotonic() < end
    assert others[2].recv(1) == b"", "one too many"
    assert select.select(others[:2], [], [], 0)[0] == []
    assert len(board.links) == 3
    others[0].close()
    while len(board.links) == 3:
        board.poll()
        assert time.monotonic() < end
    for other in others:
        other.close()
    board.close_now()


def test_node_retries_occupied_listen_port() -> None:
    port = own_port()
    with socket.create_server(("127.0.0.1", port)):
        board = Node("", files=power.Disk(), listen=("127.0.0.1", port), random=lambda: 0.99)
        board.poll()
        assert board.links[0].stream is None
    both(board)(lambda: board.links[0].stream is not None)
    board.close_now()


def test_node_with_inbox_reconnects_after_idle_close() -> None:
    with elsewhere() as destination:
        node = reach(destination, settings=Settings(cleanup_timeout=50))
        node.inbox("commands")
        assert node.wait(lambda: node.stats.connects == 3, LONG_MS), "no queue, no message, and yet"
        node.close_now()


# ---- in tasks of asyncio ------------------------------------------------------------------------------


async def test_cancelled_send_still_accepts_message() -> None:
    disk = power.Disk()
    node = Node("", files=disk)
    task = asyncio.create_task(node.queue(LINE).send(b"1"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert node.stats.accepted == 1
    left = Node("", files=disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
    assert left.waiting == 1, "next_message_id tells"


APPLICATION = """
import asyncio, sys
from ordack.node import node
from ordack.node.talk import peer
node.TICK_MS = peer.TICK_MS = 60000  # nothing may wait for it
from ordack.node import Node

def body(k):
    return b"%d " % k * (k * 7919 % 301)

def make(folder):
    return Node(folder, connect=("127.0.0.1", int(sys.argv[2])))

async def main(node, queue):
    polls = [0]
    poll = node.poll
    def counted():
        polls[0] += 1
        return poll()
    node.poll = counted
    node.start()
    for k in range(50):
        message = await queue.send(body(k))
        assert await message.stored()
    for message in await queue.send_all([body(k) for k in range(50, 100)]):
        assert await message.stored()
    before = -9
    while polls[0] - before > 1:  # for ever, if it is called where there is nothing to do
        before = polls[0]
        await asyncio.sleep(0.2)
    await node.close()

one = make(sys.argv[1] + "/one")
asyncio.run(main(one, one.queue(sys.argv[3])))
two = make(sys.argv[1] + "/two")
queue = two.queue(sys.argv[3])
for k in range(50):
    assert two.wait(queue.put(body(k)).is_stored, 60000)
assert two.wait(queue.put_all([body(k) for k in range(50, 100)])[-1].is_stored, 60000)
two.close_now()
print("done")
"""


def _body(k: int) -> bytes:
    return b"%d " % k * (k * 7919 % 301)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("interpreter", [sys.executable, str(BOARD)], ids=["cpython", "micropython"])
def test_both_forms_of_a_program_react_at_once(interpreter: str, tmp_path: Path) -> None:
    if not Path(interpreter).exists():
        pytest.skip(f"{interpreter} is missing; `make firmware` builds it")
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    with elsewhere(order_ack_timeout=0) as destination:
        paths = {"MICROPYPATH": f".frozen:{modules.BOARD}", "PYTHONPATH": str(ROOT / "firmware")}
        done = subprocess.run(
            [interpreter, str(application), str(tmp_path), str(destination.port), LINE],
            env={**os.environ, **paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout.split()[-1:] == ["done"], done.stdout
        assert destination.bodies == [_body(k) for k in range(100)] * 2


@pytest.mark.rule("B-020")
async def test_message_keeps_its_id_when_earlier_ones_are_discarded() -> None:
    time = [1_800_000_000]
    disk = power.Disk()
    node = Node("", files=disk, clock=lambda: time[0])
    queue = node.queue(LINE)
    queue.put(b"due", ttrq=5)
    waiting = asyncio.create_task(queue.send(b"1"))
    await asyncio.sleep(0)  # it is in the log, and not durable
    time[0] += 6

    def fail_once(_disk: power.Disk, step: str, _data: bytes) -> None:
        if step == "sync":
            disk.before = None
            raise OSError(errno.EIO)

    disk.before = fail_once
    message = await queue.send(b"2")
    with pytest.raises(OutboxWriteFailed):
        await waiting
    assert node.read(message).user.message_id == message.message_id == 2, "a FinalAck names it by that"
    node.close_now()


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("where", ["deadlines.check", "backlog.refill", "commits.log"])
def test_memory_error_stops_no_delivery_and_leaves_outbox_empty(where: str, is_done: bool) -> None:
    with elsewhere() as destination:
        node = reach(destination)
        sent = node.queue(LINE).put_all([b"0", b"1", b"2"])
        part, _, call = where.partition(".")
        part = getattr(node, part)
        does = getattr(part, call)
        failures = [1]

        def short_of_memory(*arguments: Any) -> None:
            if is_done or not failures[0]:
                does(*arguments)
            if failures[0]:
                failures[0] -= 1
                raise MemoryError("memory allocation failed")

        setattr(part, call, short_of_memory)
        assert node.wait(lambda: not node.outbox.live, LONG_MS)
        assert failures == [0]
        assert [message.is_stored() for message in sent] == [True] * 3
        assert (node.waiting, node.stats.stored, node.outbox.live) == (0, 3, 0)
        assert destination.bodies == [b"0", b"1", b"2"]
        node.close_now()


@pytest.mark.parametrize("room", [2, 0])
def test_node_short_of_memory_sends_fewer_at_once_or_reports_it(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many messages have room in memory, and later all of them. What waits is on the flash, as after a start."""
    count = 100 if room else 300
    with elsewhere() as destination:
        disk = power.Disk()
        node = Node("", files=disk)
        node.queue(LINE).put_all([b"%d" % k for k in range(count)])
        node.close_now()
        node = Node("", files=disk, connect=("127.0.0.1", destination.port), hold=2)
        backlog = node.backlog
        backlog._hold = backlog._hold_max = 40
        peer = node.peers.all[0]
        take = backlog._take
        most = [1]

        def short_of_memory(restored: Any) -> None:
            most[0] = max(most[0], node.commits.waiting + 1)
            if node.commits.waiting >= room:
                raise MemoryError("memory allocation failed")
            take(restored)

        monkeypatch.setattr(backlog, "_take", short_of_memory)
        if not room:
            assert node.wait(lambda: peer.reason, LONG_MS)
            assert "not enough memory" in peer.reason
            assert node.poll() > TICK_MS // 2, "it does not try again and again without a pause"
            assert node.error is None
            assert destination.bodies == [b"0"], "what was in memory has gone"
            room = count
        assert node.wait(lambda: not node.waiting, LONG_MS)
        assert destination.bodies == [b"%d" % k for k in range(count)]
        assert node.stats.connects == 1
        assert most[0] == (3 if room == 2 else 20), "with room for them there are as many as at first"
        node.close_now()


def test_a_packet_larger_than_the_buffer_goes_between_small_ones() -> None:
    with elsewhere() as destination:
        node = reach(destination)
        queue = node.queue(LINE)
        dice = random.Random(5)
        bodies = [dice.randbytes(size) for size in (10, 8000, 8200, 30, 40000, 0, 7900, 300, 300)]
        sent = queue.put_all(bodies)
        assert node.wait(sent[-1].is_stored, LONG_MS)
        assert destination.bodies == bodies
        sent = queue.put_all(bodies)  # on an open session
        assert node.wait(sent[-1].is_stored, LONG_MS)
        assert destination.bodies == 2 * bodies
        assert node.stats.connects == 1
        node.close_now()


@contextmanager
def half_sent(destination: Destination) -> Iterator[tuple[Node, OutboxMessage]]:
    """A node in the middle of a message that is larger than its buffer."""
    node = reach(destination)
    queue = node.queue(LINE)
    assert node.wait(queue.put(b"first").is_stored, LONG_MS)
    message = queue.put(bytes(50000))
    link = queue.peer.link
    write = link.write
    link.write = lambda data: write(data[:1000])  # type: ignore[method-assign]
    while queue.peer._large is None or queue.peer._large_at < 20000:
        node.poll()
    link.write = write  # type: ignore[method-assign]
    yield node, message
    node.close_now()


def test_deleting_half_sent_message_leaves_no_partial_delivery() -> None:
    with elsewhere() as destination, half_sent(destination) as (node, message):
        node.delete(message)
        after = node.queue(LINE).put(b"after")
        assert node.wait(after.is_stored, LONG_MS)
        assert destination.bodies == [b"first", b"after"]
        assert node.stats.connects == 2
        assert message.conclusion().answer == confirm.DISCARDED


def test_half_sent_message_resumes_from_its_copied_record() -> None:
    with elsewhere() as destination, half_sent(destination) as (node, message):
        box = node.outbox
        at = message.segment, message.offset
        box.begin()
        handles = list(box.log.segments[0].handles)
        places = [(handle, box.log.copy_message(handle), box.log.segments[-1]) for handle in handles]
        box.sync_tail()
        for handle, offset, segment in places:
            segment.keep(handle, offset)
        box.log.reclaim(False)
        assert (message.segment, message.offset) != at
        assert node.wait(message.is_stored, LONG_MS)
        assert destination.bodies == [b"first", bytes(50000)]
        assert node.stats.connects == 1


@pytest.mark.parametrize("place", [1, 30000, 49999])
def test_a_large_message_that_cannot_be_read_back_is_not_begun(place: int) -> None:
    disk = power.Disk()
    with elsewhere() as destination:
        node = Node("", files=disk, connect=("127.0.0.1", destination.port), random=lambda: 0.99)
        message = node.queue(LINE).put(bytes(50000))
        assert message.segment is not None
        disk.files[message.segment.name].data[message.offset + 48 + place] ^= 1
        with pytest.raises(OutboxDamaged, match="cannot be read back"):
            node.wait(message.is_stored, LONG_MS)
        node.close_now()
        assert destination.bodies == []
