"""Applications that have `ordack serve` do their work: what they ask for happens once, together with what comes from
the network, and nothing of it if it fails; whatever ends, the messages that somebody has in his hands are not lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqqb import headers
from ordack.broker import service
from ordack.broker.applications import PutBack
from ordack.broker.manager import Manager
from ordack.broker.message import Commit, Order, Request, in_runs
from ordack.client import Letter
from ordack.store import Store, StoreError, StoreFull
from ordack.store.queues import NoSuchQueue

from hil.dice import new_seed
from tests.host.applications import App, do, told_by
from tests.soak import soak
from tests.support.host_peer import body_of
from tests.support.host_world import START, WALL, Host, exchange, peer_of, two_hosts, world_of

REMOTE = "DIRECT=OS:plant\\private$\\line1"


def _keys(rows: list[Any]) -> tuple[int, ...]:
    return tuple(message.lookup_id for message in service.messages_in(rows))


def _bodies(rows: list[Any]) -> list[bytes]:
    return [body_of(message.packet) for message in service.messages_in(rows)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


@pytest.fixture
def manager(host: Host) -> Manager:
    return host.manager


# ---- a commit


def test_a_commit_removes_and_sends_all_of_it(host: Host, manager: Manager) -> None:
    app = App(manager)
    do(manager, app.commits(Letter("line1", b"1")))
    (found,) = do(manager, app.wants("line1"))
    assert _bodies(found) == [b"1"]
    (sent,) = do(manager, app.commits(Letter("line1", b"2"), Letter("plain", b"3"), taken=_keys(found)))
    assert [run[1] for run in sent] == ["transactional", "recoverable"]
    assert host.content("line1") == [b"2"]
    assert host.content("plain") == [b"3"]


@pytest.mark.parametrize("together", [True, False])
def test_failed_commit_changes_nothing_and_others_happen(host: Host, manager: Manager, together: bool) -> None:
    one, other = App(manager), App(manager)
    do(manager, one.commits(Letter("line1", b"1")))
    (found,) = do(manager, one.wants("line1"))
    asked = Letter("plain", b"told", acknowledge=headers.WANT_PA, administration_queue="plain")  # is written at once
    lost = one.commits(asked, Letter("line1", b"lost"), Letter("nowhere", b"x"), taken=_keys(found))
    kept = other.commits(Letter("line1", b"2"))
    failed, stood = do(manager, lost, kept) if together else [*do(manager, lost), *do(manager, kept)]
    assert isinstance(failed, NoSuchQueue)
    assert len(stood) == 1
    assert host.content("plain") == []
    assert host.content("line1") == [b"1", b"2"]
    (again,) = do(manager, other.wants("line1", 5))
    assert _bodies(again) == [b"1", b"2"]


@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_happens_once_however_often_it_is_asked_for(host: Host, manager: Manager, times: int) -> None:
    app = App(manager)
    do(manager, app.commits(Letter("line1", b"0")))
    (found,) = do(manager, app.wants("line1"))
    question = app.commits(Letter("line1", b"1"), taken=_keys(found))
    (first,) = do(manager, question)
    manager.applications.ended(app.application, for_good=False)
    for _ in range(times):
        again = App(manager)
        (same,) = do(manager, (again.application, question[1]))
        assert same == first
    assert host.content("line1") == [b"1"]
    older = Request(app.application.identifier, app.number - 1, Commit(letters=in_runs([Letter("line1", b"0")])))
    (refused,) = do(manager, (again.application, older))
    assert "given up" in str(refused)
    assert host.content("line1") == [b"1"]


def test_commit_receives_sends_elsewhere_and_acks_the_sender(tmp_path: Path) -> None:
    """The answer to the sender opens an outgoing queue in the same transaction."""
    world, receiver, sender = two_hosts(tmp_path)
    with sender.client() as client:
        client.send(REMOTE, b"1", dead_letter=True)
    world.pass_time(100)
    exchange(world)
    app = App(receiver.manager)
    (found,) = do(receiver.manager, app.wants("line1"))
    (sent,) = do(receiver.manager, app.commits(Letter("DIRECT=OS:elsewhere\\private$\\a", b"2"), taken=_keys(found)))
    assert [one[1] for one in sent] == ["transactional"]
    exchange(world)
    world.settle(lambda: not sender.store.outgoing.messages())
    assert [one.number for one in receiver.store.outgoing.messages() if one.number] == [1]


def test_purge_comes_after_order_acks_that_wait_to_be_settled(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    app = App(sender.manager)
    for body in (b"1", b"2"):
        do(sender.manager, app.commits(Letter(REMOTE, body)))
        exchange(world)
    assert receiver.content("line1") == [b"1", b"2"]
    assert sender.store.outgoing.messages()
    (queue,) = sender.store.outgoing.queues()
    withdraw = Commit(order=Order("withdraw", (queue.identifier, 0, queue.identifier + 100, [])))
    do(sender.manager, (app.application, Request(app.application.identifier, 3, withdraw)))
    assert not sender.store.outgoing.messages()
    outcomes = [sender.store.memory.missed(message_id) for message_id in sender.store.memory.old_outcomes(0)]
    assert outcomes == ["", ""]


def test_message_held_by_other_application_cannot_be_removed(host: Host, manager: Manager) -> None:
    one, other = App(manager), App(manager)
    do(manager, one.commits(Letter("line1", b"1")))
    (found,) = do(manager, one.wants("line1"))
    (refused,) = do(manager, other.commits(taken=_keys(found)))
    assert "cannot be completed" in str(refused)
    (none,) = do(manager, (other.application, PutBack(_keys(found))))
    assert none is None
    (nothing,) = do(manager, other.wants("line1"))
    assert nothing == []
    (done,) = do(manager, one.commits(taken=_keys(found)))
    assert done == []


# ---- waiting


def test_waiting_receiver_gets_message_in_sending_transaction(host: Host, manager: Manager) -> None:
    first, second, sender = App(manager), App(manager), App(manager)
    assert do(manager, first.wants("line1", wait=5000), second.wants("line1", wait=5000)) == [None, None]
    manager.receive([], START, WALL, [sender.commits(Letter("line1", b"1"))])
    told = told_by(manager)
    assert _bodies(told[first.application][0]) == [b"1"]
    assert second.application not in told
    manager.receive([], START, WALL, [sender.commits(Letter("line1", b"2"))])
    told = told_by(manager)
    assert _bodies(told[second.application][0]) == [b"2"]
    assert first.application not in told  # it has what it asked for
    manager.receive([], START, WALL, [sender.commits(Letter("line1", b"3"))])
    assert set(told_by(manager)) == {sender.application}
    assert host.content("line1") == [b"3"]


def _send_directly(host: Host, body: bytes) -> None:
    with host.client() as client:
        client.send("line1", body)


def test_receive_timeout_returns_no_message(host: Host, manager: Manager) -> None:
    app = App(manager)
    assert do(manager, app.wants("line1", wait=5000)) == [None]
    manager.poll(START + 4999, WALL)
    assert not told_by(manager)
    manager.poll(START + 5000, WALL)
    assert told_by(manager) == {app.application: [[]]}
    _send_directly(host, b"1")
    manager.poll(START + 5050, WALL)
    assert not told_by(manager)
    assert host.content("line1") == [b"1"]


def test_messages_of_gone_application_return_to_their_place(manager: Manager) -> None:
    gone, waiting, other = App(manager), App(manager), App(manager)
    do(manager, gone.commits(*(Letter("line1", b"%d" % number) for number in range(4))))
    do(manager, gone.wants("line1", 2))
    assert do(manager, waiting.wants("plain", wait=5000)) == [None]
    manager.applications.ended(gone.application, for_good=True)
    manager.applications.ended(waiting.application, for_good=True)
    assert manager.applications.has_work
    manager.poll(START, WALL)
    assert not manager.applications.has_work
    (found,) = do(manager, other.wants("line1", 9))
    assert _bodies(found) == [b"0", b"1", b"2", b"3"]
    do(manager, other.commits(Letter("plain", b"x")))
    assert not told_by(manager)  # who has gone waits no more


def test_only_last_answer_of_live_application_is_kept(manager: Manager) -> None:
    app = App(manager)
    for number in range(3):
        do(manager, app.commits(Letter("plain", b"%d" % number)))
    kept = manager.store.answers.find(app.application.identifier)
    assert kept
    assert kept.number == 3
    manager.applications.ended(app.application, for_good=True)
    other = App(manager)
    do(manager, other.commits(Letter("plain", b"x")))
    assert manager.store.answers.find(app.application.identifier) is None
    later = START + 1000 * (manager.config.history_lifetime + 1)
    manager.poll(later, WALL + 86_000)
    assert manager.store.answers.find(other.application.identifier)
    manager.poll(2 * later, WALL + 87_000)
    assert manager.store.answers.find(other.application.identifier) is None


# ---- with the network in one transaction


def test_remote_commit_is_sent_at_once_on_open_session(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    app = App(sender.manager)
    do(sender.manager, app.commits(Letter(REMOTE, b"1")))
    world.settle(lambda: receiver.content("line1") == [b"1"])
    exchange(world)  # nothing is on its way any more
    do(sender.manager, app.commits(Letter(REMOTE, b"2")))
    world.collect()
    assert any(wire.to_host for wire in world.wires)  # without a poll, or anything that comes
    exchange(world)
    assert receiver.content("line1") == [b"1", b"2"]


@pytest.mark.rule("B-317", "B-318")
def test_acks_and_commits_in_one_batch_keep_stream_numbers(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    app = App(sender.manager)
    expected: list[bytes] = []
    take = sender.manager.receive

    def with_a_commit(arrivals: Any, now: int, wall: int, lazily: bool = False) -> None:
        asked = []
        if len(expected) < 40:  # one write has the SessionAck and the OrderAck: each batch has to bring a commit
            expected.append(b"%d" % len(expected))
            asked.append(app.commits(Letter(REMOTE, expected[-1])))
        take(arrivals, now, wall, asked, lazily)

    do(sender.manager, app.commits(Letter(REMOTE, b"first")))
    sender.manager.receive = with_a_commit  # type: ignore[method-assign]
    world.settle(lambda: len(expected) == 40 and len(receiver.content("line1")) == 41)
    assert receiver.content("line1") == [b"first", *expected]
    world.settle(lambda: not sender.store.outgoing.last_number(1, 0, 0) and not _waiting(sender))
    assert receiver.log == []


def _waiting(host: Host) -> int:
    return sum(len(queue.stream.table) for queue in host.manager.outgoing)


def test_commit_refused_by_store_is_not_sent_and_keeps_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    app = App(sender.manager)
    do(sender.manager, app.commits(Letter(REMOTE, b"1")))
    world.settle(lambda: receiver.content("line1") == [b"1"])
    session = sender.manager.outgoing
    links = list(sender.manager.links)
    _fail_once(monkeypatch, sender.store, StoreFull("the disk is full"))
    (refused,) = do(sender.manager, app.commits(Letter(REMOTE, b"lost")))
    assert isinstance(refused, StoreFull)
    exchange(world)
    (sent,) = do(sender.manager, app.commits(Letter(REMOTE, b"2")))
    assert len(sent) == 1
    world.settle(lambda: receiver.content("line1") == [b"1", b"2"] and not _waiting(sender))
    assert list(sender.manager.links) == links
    assert sender.manager.outgoing is session


def _fail_once(monkeypatch: pytest.MonkeyPatch, store: Store, error: StoreError) -> None:
    """The next transaction that does something does not become durable."""
    commit = store._database.commit
    left = [error]

    def failing() -> None:
        if left and store._database.connection.changes():
            raise left.pop()
        commit()

    monkeypatch.setattr(store._database, "commit", failing)


@pytest.mark.rule("B-285")
def test_network_message_is_stored_although_batch_commit_fails(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = peer_of(3)
    world = world_of([host], [peer])
    exchange(world)
    app = App(host.manager)
    do(host.manager, app.commits(Letter("plain", b"0")))
    (found,) = do(host.manager, app.wants("plain"))
    peer.send(b"1")
    take = host.manager.receive

    def together(arrivals: Any, now: int, wall: int, lazily: bool) -> None:
        host.manager.receive = take  # type: ignore[method-assign]
        _fail_once(monkeypatch, host.store, StoreFull("the disk is full"))
        take(arrivals, now, wall, [app.commits(Letter("plain", b"2"), taken=_keys(found))], lazily)

    host.manager.receive = together  # type: ignore[method-assign]
    exchange(world)
    assert host.content("line1") == [b"1"]
    (refused,) = told_by(host.manager)[app.application]
    assert isinstance(refused, StoreFull)
    assert len(list(host.manager.links)) == 1
    host.manager.poll(START, WALL)
    assert host.content("plain") == [b"0"]  # back in its place


def _defect(*_arguments: Any) -> str:
    raise RuntimeError("a defect")


def test_defect_in_one_commit_is_logged_and_others_succeed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = App(host.manager), App(host.manager)
    monkeypatch.setattr("ordack.broker.sending.delivery_to", _defect)
    failed, stood = do(host.manager, one.commits(Letter("plain", b"1")), other.commits())
    assert "defect" in str(failed)
    assert stood == []
    assert any("defect" in line for line in host.log)


@pytest.mark.slow
def test_kills_under_load_keep_exactly_once_in_order(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed)
    found = soak(5, seed, tmp_path)
    assert found["messages"]


@pytest.mark.rule("B-345")
def test_message_sent_after_pause_waits(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    app = App(sender.manager)
    do(sender.manager, app.commits(Letter(REMOTE, b"1")))
    world.settle(lambda: receiver.content("line1") == [b"1"])
    with sender.client() as operator:
        assert operator.store.outgoing.set_on_hold(REMOTE.lower(), True)
    do(sender.manager, app.commits(Letter(REMOTE, b"2")))  # before the next poll
    exchange(world)
    assert receiver.content("line1") == [b"1"]
    with sender.client() as operator:
        assert operator.store.outgoing.set_on_hold(REMOTE.lower(), False)
    world.settle(lambda: receiver.content("line1") == [b"1", b"2"])
