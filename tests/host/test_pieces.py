"""Long work goes in pieces: others use the store in between, and what is broken off is half done, not half right."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mqqb.confirm import NACK_Q_PURGED
from ordack.api.remote import purge_outgoing
from ordack.broker import outcome
from ordack.broker import outgoing as outgoing_queues
from ordack.broker.manager import Manager
from ordack.broker.outcome import in_pieces
from ordack.broker.tables import LongStream
from ordack.client import Client, Letter
from ordack.config.config import Config
from ordack.config.names import DEAD_LETTER
from ordack.store import Store, StoreError

from tests.support.beside import outcomes_of
from tests.support.host_world import HERE, Host, two_hosts, world_of
from tests.support.steps import steps_of

pytestmark = pytest.mark.slow

COUNT = 600
PLANT = "DIRECT=OS:plant\\private$\\plain"
LINE1 = "DIRECT=OS:plant\\private$\\line1"


class Killed(BaseException):
    """The process is dead."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Client(tmp_path, create=True) as client:
        client.create_queue("big", transactional=False)
        client.create_queue("admin", transactional=False)
        with client.store.transaction():
            for number in range(COUNT):
                client.send("big", b"%d" % number, acknowledge=["nack-receive"], administration_queue="admin")
    return tmp_path


def _in_between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Where the piecework pauses, another process has its turn; however quick this one is, that is so each 100."""
    monkeypatch.setattr(outcome, "PIECE_S", 0)
    monkeypatch.setattr(outcome.time, "sleep", lambda _seconds: act())


@pytest.mark.rule("B-340", "B-339")
@pytest.mark.parametrize("deleted", [False, True])
def test_others_write_while_a_queue_is_emptied_and_what_they_send_is_not_purged(
    store: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    turns = 0
    with Client(store) as client, Client(store) as other:
        other.store._database.connection.set_busy_timeout(0)  # the writer is free

        def act() -> None:
            nonlocal turns
            turns += 1
            other.send("big", b"new %d" % turns)

        _in_between(monkeypatch, act)
        if deleted:
            assert client.delete_queue("big") == COUNT + turns
        else:
            assert client.purge_queue("big") == COUNT
            assert [message.body for message in client.queue("big").peek()] == [
                b"new %d" % number for number in range(1, turns + 1)
            ]
        assert turns > 1
        assert len(list(client.queue("admin").peek())) == COUNT


@pytest.mark.rule("B-340")
def test_a_purge_that_is_killed_has_told_of_what_it_removed_and_can_be_done_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0

    def act() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            raise Killed

    with Client(store) as client:
        with monkeypatch.context() as patch:
            _in_between(patch, act)
            with pytest.raises(Killed):
                client.purge_queue("big")
        left = [int(message.body) for message in client.queue("big").peek()]
        assert 0 < len(left) < COUNT
        told = [int(message.body) for message in client.queue("admin").peek()]  # they have the body (B-354)
        assert sorted(told + left) == list(range(COUNT))
        assert client.purge_queue("big") == len(left)
        assert len(list(client.queue("admin").peek())) == COUNT


@pytest.mark.rule("B-340")
def test_only_what_was_there_is_marked_where_it_is_being_received(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(store) as client, Client(store) as other:
        held: list[Any] = []

        def act() -> None:
            if not held:
                other.send("big", b"new", priority=7)
                held.append(other.queue("big").receive())
                assert held[0].__enter__().body == b"new"

        _in_between(monkeypatch, act)
        assert client.purge_queue("big") == COUNT
        held[0].__exit__(KeyError, KeyError(), None)
        assert outcomes_of(client).remove_over() == 0
        assert [message.body for message in client.queue("big").peek()] == [b"new"]


@pytest.mark.parametrize("cost_s", [0.00002, 0.0001, 0.001, 0.1])
def test_a_piece_ends_when_its_time_is_over_whatever_a_message_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost_s: float
) -> None:
    clock = 0.0
    left = 2000
    began = [0.0]

    def work(limit: int) -> int:
        nonlocal clock, left
        done = min(limit, left)
        left -= done
        clock += done * cost_s
        return done

    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(time, "sleep", lambda _seconds: began.append(clock))
    with Store(tmp_path, create=True) as opened:
        assert in_pieces(opened, work) == 2000
    spans = [end - begin for begin, end in itertools.pairwise(began)]
    assert all(outcome.PIECE_S <= span + 1e-9 <= outcome.PIECE_S + outcome.CHUNK * cost_s + 2e-9 for span in spans)
    assert len(spans) > 1


def _count_steps(folder: Path, count: int, newer: int) -> int:
    """The steps of SQLite's machine while a queue is purged, with messages of a higher priority that came later."""
    with Client(folder, create=True) as client:
        client.create_queue("big", transactional=False)
        client.send_many([Letter("big", b"x", priority=3)] * count)
        last = client.store.messages.last_lookup_id()
        client.send_many([Letter("big", b"new", priority=7)] * newer)
        with steps_of(client.store) as steps:
            queue = client.store.queues.named("big")
            removed = in_pieces(
                client.store, lambda limit: outcomes_of(client).empty(queue.identifier, NACK_Q_PURGED, limit, last)
            )
        assert removed == count
        assert client.store.queues.named("big").messages == newer
    return steps[0]


@pytest.mark.rule("B-340")
def test_a_purge_costs_as_much_for_each_message_whatever_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "PIECE_S", 0.0)
    monkeypatch.setattr(outcome.time, "sleep", lambda _seconds: None)
    few = _count_steps(tmp_path / "few", 500, 0)
    assert _count_steps(tmp_path / "many", 2000, 0) <= 5 * few
    assert _count_steps(tmp_path / "newer", 500, 2000) <= 1.5 * few


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


@pytest.mark.rule("C-80")
def test_old_outcomes_are_forgotten_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "PIECE_S", 0.0)
    host = Host(tmp_path, Config(outcomes_kept=10), "10.0.0.9")
    world = world_of([host], [])
    host.store.memory.add_outcomes([(number, b"x", 1000 - number, None) for number in range(1, 201)])
    world.now += 1000 * host.config.history_lifetime + 1
    left = [200]
    while left[-1] > 10:
        world.now += 1000
        host.manager.poll(world.now, world.wall)
        left.append(sum(host.store.memory.outcome(number) is not None for number in range(1, 201)))
        assert 0 <= left[-2] - left[-1] <= outcome.CHUNK
    assert all(host.store.memory.outcome(number) for number in range(1, 11)), "the youngest"
    world.now += 2000 * host.config.history_lifetime
    host.manager.poll(world.now, world.wall)
    assert host.store.memory.outcome(1)
    host.store.close()


@pytest.mark.rule("B-154")
def test_the_duplicate_filter_forgets_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "PIECE_S", 0.0)
    host = Host(tmp_path, Config(), "10.0.0.9")
    world = world_of([host], [])
    host.store.memory.save_history([(b"x" * 16, number, world.wall) for number in range(COUNT)])
    host.restart(world.now)
    host.manager.poll(world.now, world.wall)
    world.now += 2000 * host.config.history_lifetime
    left = [COUNT]
    while left[-1]:
        host.manager.poll(world.now, world.wall)
        left.append(len(host.store.memory.history()))
        assert 0 <= left[-2] - left[-1] <= outcome.CHUNK
        assert left[-1] == 0 or host.manager.is_behind
    host.store.close()


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


def test_a_purge_that_fails_says_so_and_leaves_the_rest(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(store) as client, Client(store) as other:
        client.store._database.connection.set_busy_timeout(0)
        _in_between(monkeypatch, lambda: other.store._database.connection.execute("BEGIN IMMEDIATE"))
        with pytest.raises(StoreError, match="is in use"):
            client.purge_queue("big")
        other.store._database.connection.execute("ROLLBACK")
        assert 0 < len(list(client.queue("big").peek())) < COUNT
