"""Long work goes in pieces: others use the store in between, and what is broken off is half done, not half right."""

from __future__ import annotations

from pathlib import Path

import pytest
from ordack.api.remote import purge_outgoing
from ordack.broker import outcome
from ordack.broker import outgoing as outgoing_queues
from ordack.broker.manager import Manager
from ordack.broker.streams import LongStream
from ordack.client import Client, Letter
from ordack.config.config import Config
from ordack.config.names import DEAD_LETTER

from tests.support.host_world import HERE, Host, two_hosts, world_of
from tests.support.steps import steps_of

pytestmark = pytest.mark.slow

COUNT = 600
PLANT = "DIRECT=OS:plant\\private$\\plain"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Client(tmp_path, create=True) as client:
        client.create_queue("big", transactional=False)
        client.create_queue("admin", transactional=False)
        with client.store.transaction():
            for number in range(COUNT):
                client.send("big", b"%d" % number, acknowledge=["nack-receive"], administration_queue="admin")
    return tmp_path


def _start_steps(folder: Path, count: int, after_a_crash: bool) -> int:
    """The steps of SQLite's machine in a start with so many messages to be sent."""
    host = Host(folder, Config(next_hops={"plant": HERE}), "10.0.0.9")
    world = world_of([host], [])
    with host.client() as client:
        client.send_many([Letter(PLANT, b"x")] * count)
    host.manager.poll(world.now, world.wall)
    if after_a_crash:
        host.store.outgoing.set_sent_to(host.store.outgoing.queues()[0].identifier, 10)
    with steps_of(host.store) as steps:
        host.manager = Manager(host.store, world.now, host.config)
        host.manager.poll(world.now, world.wall)
    [outgoing] = host.manager.outgoing
    assert outgoing.stream.numbered == count
    host.store.close()
    return steps[0]


@pytest.mark.parametrize("after_a_crash", [False, True])
def test_a_start_costs_the_same_however_much_there_is_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_a_crash: bool
) -> None:
    monkeypatch.setattr(LongStream, "ahead", 50)
    few = _start_steps(tmp_path / "few", 300, after_a_crash)
    assert _start_steps(tmp_path / "many", 3000, after_a_crash) <= 1.1 * few


def test_a_crash_puts_no_more_in_doubt_than_may_have_been_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is told of some messages at once that they are sent; those that follow were not."""
    monkeypatch.setattr(outgoing_queues, "SENT_AHEAD", 20)
    world, _, sender = two_hosts(tmp_path)
    with sender.client() as client, client.store.transaction():
        for number in range(500):
            client.send(PLANT, b"%d" % number)
    sender.manager.poll(world.now, world.wall)
    world.connect_all()
    [queue] = sender.manager.outgoing
    while not queue.transmitted:
        world.collect()
        world.deliver(1 << 22)
    sent = max(queue.transmitted)
    assert 40 < sent < 400
    sender.restart(world.now)
    doubtful = [
        waiting.key
        for waiting in sender.store.outgoing.waiting(range(1, 501))
        if waiting.confirmation and waiting.confirmation[0] != ord("Q")
    ]
    assert doubtful == list(range(1, len(doubtful) + 1))
    assert sent <= len(doubtful) <= sent + 20


@pytest.mark.rule("C-29", "B-311", "B-313")
@pytest.mark.parametrize("purged", [False, True])
def test_sessions_are_served_while_a_thousand_messages_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purged: bool
) -> None:
    monkeypatch.setattr(outcome, "PIECE_S", 0.0)
    host = Host(tmp_path, Config(next_hops={"plant": HERE}), "10.0.0.9")
    with host.client() as client, client.store.transaction():
        for _ in range(1000):
            client.send(PLANT, b"x", delivery="express", dead_letter=True, ttrq=None if purged else 5)
    world = world_of([host], [])
    host.manager.poll(world.now, world.wall)
    if purged:
        with host.client() as client:
            assert purge_outgoing(host.store, client.access, host.store.outgoing.queues()[0].identifier) == (1000, 0)
            assert purge_outgoing(host.store, client.access, host.store.outgoing.queues()[0].identifier) == (
                1000,
                0,
            )  # again: no less
    world.now += 10_000
    host.manager.poll(world.now, world.wall)
    left = [len(host.store.outgoing.messages())]
    assert 0 < left[0] < 1000
    while left[-1]:
        world.now += 50
        host.manager.poll(world.now, world.wall)
        left.append(len(host.store.outgoing.messages()))
        assert left[-1] < left[-2]
    assert len(left) > 2
    with host.client() as client:
        assert len(list(client.queue(DEAD_LETTER).peek())) == 1000
    host.store.close()
