"""Long work goes in pieces: others use the store in between, and what is broken off is half done, not half right."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ordack import pieces
from ordack.client import Client
from ordack.config import Config
from ordack.names import DEAD_LETTER
from ordack.pieces import in_pieces, purge_outgoing
from ordack.store import Store, StoreError

from tests.host_world import HERE, Host, world_of

COUNT = 3000
PLANT = "DIRECT=OS:plant\\private$\\plain"


class Killed(BaseException):
    """The process is dead."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Client(tmp_path, create=True) as client:
        client.create_queue("big")
        client.create_queue("admin")
        with client.store.transaction():
            for number in range(COUNT):
                client.send("big", b"%d" % number, acknowledge=["nack-receive"], administration_queue="admin")
    return tmp_path


def _in_between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Where the piecework pauses, another process has its turn."""
    monkeypatch.setattr(pieces.time, "sleep", lambda _seconds: act())


@pytest.mark.rule("B-340", "B-339")
@pytest.mark.parametrize("deleted", [False, True])
def test_others_write_while_a_queue_is_emptied_and_what_they_send_is_not_purged(
        store: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool) -> None:
    turns = 0
    with Client(store) as client, Client(store) as other:
        other.store._db.set_busy_timeout(0)  # the writer is free

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
                b"new %d" % number for number in range(1, turns + 1)]
        assert turns > 1
        assert len(list(client.queue("admin").peek())) == COUNT


@pytest.mark.rule("B-340")
def test_a_purge_that_is_killed_has_told_of_what_it_removed_and_can_be_done_again(
        store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_only_what_was_there_is_marked_where_it_is_being_received(
        store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert client.outcomes().remove_over() == 0
        assert [message.body for message in client.queue("big").peek()] == [b"new"]


def test_the_pieces_follow_the_time_that_they_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    sizes: list[int] = []

    def work(limit: int) -> int:
        nonlocal clock
        sizes.append(limit)
        clock += limit * (0.0001 if len(sizes) < 20 else 0.01)
        return limit if len(sizes) < 40 else 0

    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with Store(tmp_path, create=True) as opened:
        assert in_pieces(opened, work) == sum(sizes[:-1])
    assert 150 <= max(sizes) <= 250  # of 0.1 ms each
    assert sizes[-1] <= 2  # of 10 ms


@pytest.mark.rule("C-29", "B-311", "B-313")
@pytest.mark.parametrize("purged", [False, True])
def test_sessions_are_served_while_a_thousand_messages_end(tmp_path: Path, purged: bool) -> None:
    host = Host(tmp_path, Config(next_hops={"plant": HERE}), "10.0.0.9")
    with host.client() as client, client.store.transaction():
        for _ in range(1000):
            client.send(PLANT, b"x", delivery="express", dead_letter=True, ttrq=None if purged else 5)
    world = world_of([host], [])
    host.manager.poll(0, world.wall)
    if purged:
        with Store(host.store.folder) as opened:
            assert purge_outgoing(opened, opened.outgoing_queues()[0].identifier) == 1000
            assert purge_outgoing(opened, opened.outgoing_queues()[0].identifier) == 1000  # again: no less
    world.now = 10_000
    host.manager.poll(world.now, world.wall)
    left = [len(host.store.outgoing_messages())]
    assert 0 < left[0] < 1000
    while left[-1]:
        world.now += 50
        host.manager.poll(world.now, world.wall)
        left.append(len(host.store.outgoing_messages()))
        assert left[-1] < left[-2]
    assert len(left) > 2
    with host.client() as client:
        assert len(list(client.queue(DEAD_LETTER).peek())) == 1000
    host.store.close()


def test_a_purge_that_fails_says_so_and_leaves_the_rest(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(store) as client, Client(store) as other:
        client.store._db.set_busy_timeout(0)
        _in_between(monkeypatch, lambda: other.store._db.execute("BEGIN IMMEDIATE"))
        with pytest.raises(StoreError, match="locked"):
            client.purge_queue("big")
        other.store._db.execute("ROLLBACK")
        assert 0 < len(list(client.queue("big").peek())) < COUNT
