"""Applications that have `ordack serve` do their work: what they ask for happens once, together with what comes from
the network, and nothing of it if it fails; whatever ends, the messages that somebody has in his hands are not lost."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import confirm, headers
from ordack.api import remote
from ordack.broker import service
from ordack.broker.applications import PutBack
from ordack.broker.commits import Direct, carry_out
from ordack.broker.manager import Manager
from ordack.broker.message import Commit, Request, Wanted, in_runs
from ordack.broker.outcome import Settlements
from ordack.broker.sending import each
from ordack.client import Client, Letter, Transaction
from ordack.config.config import Config
from ordack.config.names import BadName
from ordack.store import Store, StoreBusy, StoreError, StoreFull, StoreServed, StoreUnknown
from ordack.store.database import ServeLock
from ordack.store.messages import NotTaken
from ordack.store.queues import NoSuchQueue, QueueExists, QueueNotEmpty

from hil.dice import new_seed
from tests.host.applications import App, do, told_by
from tests.soak import soak
from tests.support.beside import unserved
from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, own_port, serve_applications
from tests.support.forked import said_in_fork
from tests.support.host_peer import body_of
from tests.support.host_world import START, WALL, Host, exchange, peer_of, two_hosts, world_of
from tests.support.watched import until

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


def test_a_commit_that_fails_changes_nothing_and_the_others_of_its_batch_stand(host: Host, manager: Manager) -> None:
    one, other = App(manager), App(manager)
    do(manager, one.commits(Letter("line1", b"1")))
    (found,) = do(manager, one.wants("line1"))
    asked = Letter("plain", b"told", acknowledge=headers.WANT_PA, administration_queue="plain")  # is written at once
    failed, stood = do(
        manager,
        one.commits(asked, Letter("line1", b"lost"), Letter("nowhere", b"x"), taken=_keys(found)),
        other.commits(Letter("line1", b"2")),
    )
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


def test_a_commit_takes_what_its_sender_wants_to_hear_of_and_sends_elsewhere(tmp_path: Path) -> None:
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


def test_what_another_application_has_taken_cannot_be_removed(host: Host, manager: Manager) -> None:
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


def test_who_waits_gets_a_message_in_the_transaction_that_brings_it(host: Host, manager: Manager) -> None:
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


def test_who_has_waited_long_enough_is_told_that_there_is_nothing(host: Host, manager: Manager) -> None:
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


def test_what_an_application_had_that_has_gone_is_for_the_next_one_in_its_old_place(manager: Manager) -> None:
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


def test_only_the_last_answer_of_an_application_that_may_ask_again_is_kept(manager: Manager) -> None:
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


def test_a_commit_to_another_queue_manager_leaves_at_once_on_the_session_that_is_there(tmp_path: Path) -> None:
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
def test_acknowledgements_and_commits_in_one_batch_keep_the_numbers_of_a_stream(tmp_path: Path) -> None:
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


def test_a_commit_that_the_store_refuses_in_the_end_was_never_sent_and_sessions_go_on(
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
def test_what_has_come_from_the_network_is_stored_although_a_commit_of_its_batch_fails(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_defect_that_an_application_has_met_is_told_and_costs_the_others_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = App(host.manager), App(host.manager)
    monkeypatch.setattr("ordack.broker.sending.delivery_to", _defect)
    failed, stood = do(host.manager, one.commits(Letter("plain", b"1")), other.commits())
    assert "defect" in str(failed)
    assert stood == []
    assert any("defect" in line for line in host.log)


# ---- through the socket


@pytest.fixture
def serve(store: Path) -> Iterator[Serve]:
    running = Serve(store)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(params=["alone", "served", "away"])
def place(request: pytest.FixtureRequest, store: Path) -> Iterator[Path | str]:
    """What a Client opens, for that store."""
    running, found = serve_applications(store) if request.param == "away" else (None, store)
    if request.param == "served":
        running = Serve(store)
    yield found
    if running:
        status, _, told = running.stop()
        assert (status, "disconnected" in told) == (0, False)


def _last_answer(client: Client) -> int:
    """The number of its last commit that `serve` has done; 0 if it has done none."""
    known = client.store.answers.find(client.access._application)
    return known.number if known else 0


def test_a_client_that_a_thread_is_using_says_so_to_another_and_the_first_goes_on(
    store: Path, place: Path | str
) -> None:
    """With the questions of two on one connection each could get the other's answer, or none."""
    with Client(place) as client, ThreadPoolExecutor(1) as other:
        queue = client.queue("line1")
        waiting = other.submit(queue.begin_receive, 1, DEADLINE_S)
        until(lambda: "<locked" in repr(client.turn.lock), "it waits")
        uses: list[Callable[[], object]] = [
            lambda: client.send("line1", b"1"),
            lambda: list(queue.peek()),
            lambda: client.state(1),
            client.close,
        ]
        for use in uses:
            with pytest.raises(RuntimeError, match=r"in use just now, by another thread .* nothing was done"):
                use()
        with Client(store) as sender:
            sender.send("line1", b"21.5")
        [taken] = waiting.result(DEADLINE_S)
        queue.end_receive([taken.lookup_id], confirm.ACK_RECEIVE)
        assert body_of(taken.packet) == b"21.5"
        assert not list(queue.peek())


def test_the_handler_of_a_signal_is_refused_the_client_that_it_interrupts_and_a_loop_dropped_there_ends_after(
    store: Path, place: Path | str
) -> None:
    """It took the answer to what it had interrupted for its own, or became part of that transaction."""
    with Client(place) as client, ThreadPoolExecutor(1) as other:
        queue = client.queue("line1")
        client.send("line1", b"20.5")
        loops = [iter(queue.receive())]
        assert next(loops[0]).body == b"20.5"

        def handle(_number: int, _frame: object) -> None:
            loops.clear()
            for use in (lambda: client.send("line1", b"1"), lambda: client.state(1), client.close):
                with pytest.raises(RuntimeError, match=r"the handler of a signal has interrupted; nothing was done"):
                    use()
            with Client(store) as its_own:
                its_own.send("line1", b"21.5")

        def interrupt() -> None:
            until(lambda: "<locked" in repr(client.turn.lock), "it waits")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            other.submit(interrupt)
            [taken] = queue.begin_receive(1, DEADLINE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert body_of(taken.packet) == b"21.5"
        assert [message.body for message in queue.peek()] == [b"20.5"], "it is back"
        queue.end_receive([taken.lookup_id], confirm.ACK_RECEIVE)


def test_a_forked_process_is_refused_the_client_of_its_parent_which_goes_on(store: Path, place: Path | str) -> None:
    """Several asked under the same numbers, and what the second one sent was taken for what the first one had sent."""
    with Client(place) as client:
        queue = client.queue("line1")
        client.send("line1", b"1")
        uses: list[Callable[[], object]] = [
            lambda: client.send("line1", b"lost"),
            lambda: list(queue.peek()),
            lambda: queue.receive().__enter__(),
        ]
        for _ in range(2):
            said = said_in_fork([*uses, client.close], RuntimeError)
            assert all(f"made in the process {os.getpid()}, and this one" in line for line in said[:3]), said
            assert said[3:] == ["done"]
        client.send("line1", b"2")
        assert [message.body for message in queue.peek()] == [b"1", b"2"]


def test_a_client_has_serve_do_its_work_and_without_serve_does_it_itself(store: Path) -> None:
    with Client(store) as client:
        client.send("line1", b"1")
        assert _last_answer(client) == 0
        serve = Serve(store)
        client.send("line1", b"2")
        assert _last_answer(client) == 1
        with client.queue("line1").receive_batch(5) as messages:
            assert [message.body for message in messages] == [b"1", b"2"]
        assert _last_answer(client) == 2
        assert serve.stop()[0] == 0
        client.send("line1", b"3")
        assert _last_answer(client) == 3  # it was asked for under a number, of nobody as it turned out
        with client.queue("line1").receive() as message:
            assert message.body == b"3"
        assert _last_answer(client) == 3
        assert not (store / service.SOCKET).exists()


def test_the_socket_is_its_owners_and_a_long_name_of_the_folder_does_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / ("plant" * 30)
    with Client(folder, create=True) as client:
        client.create_queue("plain", transactional=False)
        serve = Serve(folder)
        client.send("plain", b"1")
        assert _last_answer(client) == 1
        assert stat.S_IMODE((folder / service.SOCKET).stat().st_mode) == 0o600
        serve.stop(signal.SIGKILL)
        assert (folder / service.SOCKET).exists()
        client.send("plain", b"2")
        serve = Serve(folder)  # over the socket that is left
        client.send("plain", b"3")
        assert _last_answer(client) == 3
        serve.stop()


def test_a_receive_that_began_without_serve_is_back_when_serve_has_started_and_the_commit_says_so(store: Path) -> None:
    with Client(store) as client, Client(store) as other:
        client.send("line1", b"1")
        transaction = Transaction(client)
        assert transaction.receive("line1").body == b"1"
        transaction.send("plain", b"2")
        serve = Serve(store)
        assert not list(other.queue("line1").peek())
        with pytest.raises(NotTaken, match="back in their queue"):
            transaction.commit()
        with other.queue("line1").receive(timeout=DEADLINE_S) as message:
            assert message.body == b"1"
        assert list(client.queue("plain").peek()) == []
        serve.stop()


@pytest.mark.parametrize(("away", "again"), [(False, False), (False, True), (True, True)])
def test_what_was_taken_of_a_serve_that_was_killed_is_back_and_the_commit_says_so(
    store: Path, away: bool, again: bool
) -> None:
    port = own_port()

    def start() -> tuple[Serve, Path | str]:
        return serve_applications(store, port=port) if away else (Serve(store), store)

    serve, place = start()
    with Client(place) as client:
        client.send("line1", b"1")
        transaction = Transaction(client)
        assert transaction.receive("line1").body == b"1"
        transaction.send("plain", b"2")
        serve.stop(signal.SIGKILL)
        if again:
            serve, _ = start()
        with pytest.raises(StoreError, match="cannot be completed"):
            transaction.commit()
        with client.queue("line1").receive() as message:
            assert message.body == b"1"
        assert not list(client.queue("plain").peek())
    if again:
        serve.stop()


@pytest.mark.parametrize("away", [False, True])
def test_an_application_that_is_killed_loses_nothing_that_it_had_taken(store: Path, away: bool) -> None:
    serve, place = serve_applications(store) if away else (Serve(store), store)
    with Client(place) as client:
        client.send("line1", b"1")
        taker = (
            "import os, sys\nfrom ordack.client import Client\nclient = Client(sys.argv[1])\n"
            "with client.queue('line1').receive() as message:\n    os.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", taker, str(place)], env=ENVIRONMENT, check=False, timeout=DEADLINE_S
        )
        assert done.returncode == -signal.SIGKILL
        with client.queue("line1").receive(timeout=DEADLINE_S) as message:
            assert (message.body, message.abort_count) == (b"1", 1)
    assert serve.process.poll() is None
    serve.stop()


def test_nobody_writes_beside_serve(store: Path, serve: Serve) -> None:
    with Client(store) as client:
        before = client.store.work.commits.total
        for write in (
            lambda: client.store.queues.create("beside", transactional=False),
            lambda: client.store.queues.set_quota("line1", 1),
            lambda: client.store.outgoing.set_on_hold("nobody", True),
            lambda: client.store.messages.delete([1]),
        ):
            with pytest.raises(StoreServed, match="has to be asked"):
                write()
        with pytest.raises(StoreServed), client.store.transaction():
            client.send("line1", b"1")
        assert client.store.work.commits.total == before
        assert client.create_queue("asked", transactional=False).name == "asked"
        client.order("set_quota", "asked", 1 << 30)
        assert client.store.queues.named("asked").quota == 1 << 30
    assert serve.process.poll() is None


def test_an_order_happens_once_and_its_errors_are_the_same(store: Path) -> None:
    for served in (False, True):
        serve = Serve(store) if served else None
        with Client(store) as client:
            name = f"queue{served}"
            assert client.create_queue(name, transactional=True).transactional
            with pytest.raises(QueueExists):
                client.create_queue(name, transactional=False)
            with pytest.raises(BadName):
                client.create_queue("x" * 200, transactional=False)
            client.order("set_quota", name, 1000)
            assert client.store.queues.named(name).quota == 1000
            with pytest.raises(NoSuchQueue):
                client.order("set_quota", "nowhere", None)
            client.send(name, b"1")
            with pytest.raises(QueueNotEmpty):
                client.delete_queue(name, only_empty=True)
            assert client.delete_queue(name) == 1
            assert not client.order("set_on_hold", "DIRECT=OS:plant\\private$\\line1", True)
        if serve:
            serve.stop()


_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ttrq": 5.5}, "ttrq is 5.5; it has to be int or None"),
    ({"label": None}, "label is None; it has to be str"),
    ({"dead_letter": "no"}, "dead_letter is 'no'; it has to be bool"),
    ({"correlation_id": "x" * 20}, "correlation_id is 'x+'; it has to be bytes"),
]


def _receive_and_send(client: Client, properties: dict[str, Any]) -> None:
    with client.transaction() as transaction:
        assert transaction.receive("line1")
        transaction.send("plain", b"x", **properties)


@pytest.mark.parametrize("served", [False, True], ids=["alone", "served"])
def test_a_value_of_a_wrong_type_is_named_and_is_not_called_sent_or_not(store: Path, served: bool) -> None:
    serve = Serve(store) if served else None
    with Client(store) as client:
        client.send("line1", b"1")
        for properties, said in _WRONG:
            with pytest.raises(TypeError, match=said):
                client.send("plain", b"x", **properties)
            with pytest.raises(TypeError, match=said):
                _receive_and_send(client, properties)
        for letter, said in ((Letter(5), "destination is 5; it"), ("plain", "'plain' is str; it has to be a Letter")):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=said):
                client.send_many([Letter("plain", b"x"), letter])  # type: ignore[list-item]
        assert client.send("plain", b"x", acknowledge="receive", administration_queue="plain")
        with pytest.raises((TypeError, ValueError)):
            client.create_queue(5, transactional=False)  # type: ignore[arg-type]
        with pytest.raises((TypeError, ValueError)), client.queue("line1").receive_batch("many"):  # type: ignore[arg-type]
            pass
        with client.queue("line1").receive() as message:
            assert message.body == b"1"
        assert [message.body for message in client.queue("plain").peek()] == [b"x"]
    if serve:
        serve.stop()


def test_a_question_that_serve_does_not_take_is_answered_and_what_was_taken_is_back(
    store: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(store) as client:
        client.send("line1", b"1")
        monkeypatch.setattr("ordack.broker.message.KINDS", ((object,),) * len(Letter._fields))
        with pytest.raises(ValueError, match="does not take this: ttrq of a letter is float"):
            _receive_and_send(client, {"ttrq": 5.5})
        with client.queue("line1").receive(timeout=DEADLINE_S) as message:
            assert message.body == b"1"
        assert client.send("plain", b"y")
    assert serve.process.poll() is None


def _connected(folder: Path) -> socket.socket:
    connected = service.connect(folder)
    assert connected
    return connected


def test_a_commit_that_is_too_large_is_refused_and_what_was_taken_is_back(store: Path, serve: Serve) -> None:
    body = bytes(4_000_000)
    with Client(store) as client:
        client.send("line1", b"1")
        transaction = Transaction(client)
        transaction.receive("line1")
        for _ in range(17):
            transaction.send("plain", body)
        with pytest.raises(ValueError, match="in several"):
            transaction.commit()
        with client.queue("line1").receive() as message:
            assert message.body == b"1"
    assert serve.process.poll() is None


def test_who_asks_before_he_has_his_answer_is_disconnected_and_gets_nothing(store: Path, serve: Serve) -> None:
    with Client(store) as client, _connected(store) as connection:
        wanted = Wanted(client.queue("line1").identifier, 1)
        connection.settimeout(DEADLINE_S)
        connection.sendall(_HELLO + service.take_question(wanted, 60) * 2)
        while _received(connection):
            pass
        client.send("line1", b"1")
        with client.queue("line1").receive() as message:
            assert (message.body, message.abort_count) == (b"1", 0)
    assert serve.process.poll() is None


def test_messages_are_not_given_to_who_was_killed_while_he_waited(store: Path, serve: Serve) -> None:
    with Client(store) as client:
        wanted = Wanted(client.queue("line1").identifier, 1, counted=True)
        for _ in range(3):
            with _connected(store) as connection:
                connection.sendall(_HELLO + service.take_question(wanted, 60))
                connection.settimeout(DEADLINE_S)
                assert connection.recv(100)
        client.send("plain", b"x")  # when that is answered, it has seen those connections end
        client.send("line1", b"1")
        with client.queue("line1").receive(timeout=DEADLINE_S) as message:
            assert (message.body, message.abort_count) == (b"1", 0)
    assert serve.process.poll() is None


_HELLO = service.frame(service.HELLO, service.VERSION, bytes(16))
_SPOILED = [
    b"GET / HTTP/1.1\r\n\r\n",
    service.LENGTH.pack(service.FRAME_MAX + 1),
    service.LENGTH.pack(4) + b"\xff\xff\xff\xff",
    service.frame(1),
    service.frame("take"),
    service.frame(service.HELLO, service.VERSION, "no bytes"),
    *(
        _HELLO + service.frame(*question)
        for question in (
            ("nothing",),
            ("take",),
            ("take", 1 << 20000, 1, False, None, None, None, 0),
            ("take", 1, 1, False, None, None, "id", 0),
            ("commit", 1, [], 0, [["line1", "text"]], None),
            ("commit", 1, [], 0, [["line1", [b"1", "text"]]], None),
            ("commit", 1, [], 0, [["line1", [b""], 7]], None),
            ("put back", None),
            ("empty", 1, confirm.ACK_RECEIVE, 5, True),
            ("queue", "q" * 2000),
            ("look", 1, -2, -1, 1),
        )
    ),
]


def test_what_is_no_question_ends_its_connection_and_nothing_else(store: Path, serve: Serve) -> None:
    with Client(store) as client:
        for spoiled in _SPOILED:
            with _connected(store) as connection:
                connection.settimeout(DEADLINE_S)
                connection.sendall(spoiled)
                if spoiled.startswith(b"GET"):
                    connection.shutdown(socket.SHUT_WR)
                while _received(connection):
                    pass
            client.send("plain", b"x")
        assert _last_answer(client) == len(_SPOILED)
    status, _, said = serve.stop()
    assert status == 0
    assert "an application is disconnected: " in said
    assert "Traceback" not in said


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.binary(max_size=20) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=100)
@given(
    st.binary(max_size=200)
    | st.tuples(
        st.sampled_from([service.TAKE, service.COMMIT, service.EMPTY, service.LOOK, service.QUEUE]) | st.text(),
        st.lists(_VALUES, max_size=6),
    ).map(lambda parts: service.frame(parts[0], *parts[1]))
)
def test_whatever_bytes_come_are_a_question_or_malformed(data: bytes) -> None:
    buffer = bytearray(data)
    try:
        for question in service.frames(buffer):
            parts = service.parts_of(question)
            assert len(parts) == len(question) - 1
            if question[0] == service.TAKE:
                assert Wanted(*parts[:-1]).queue >= 0
                assert 0 <= parts[-1] <= service.WAIT_MAX_MS
            elif question[0] == service.COMMIT:
                assert all(isinstance(run.letter.destination, str) and run.bodies for run in parts[3])
    except service.MalformedFrame:
        pass


# ---- the connection ends before the answer


def _request(question: list[Any], application: bytes) -> Request:
    number, *parts = service.parts_of(question)
    return Request(application, number, Commit(*parts))


class Cutter:
    """Stands in `serve`'s place at its socket: takes questions, and ends each connection without an answer when
    `carry` has done with its commit what it wants. last: what it answers to the last one all the same."""

    def __init__(self, folder: Path, carry: Callable[[Request], None]) -> None:
        self.carry = carry
        self.requests: list[Request] = []
        self.lock = ServeLock(folder)
        self.lock.acquire()
        self.listener = service.listen(folder)
        self.folder = folder
        self.left = 1
        self.last = b""
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while self.left:
            connection, _ = self.listener.accept()
            with connection:
                self._talk(connection)
        (self.folder / service.SOCKET).unlink()
        self.listener.close()
        self.lock.close()

    def _talk(self, connection: socket.socket) -> None:
        buffer = bytearray()
        identifier = b""
        while data := connection.recv(1 << 20):
            buffer += data
            for question in service.frames(buffer):
                if question[0] == service.HELLO:
                    identifier = question[2]
                    connection.sendall(service.frame(service.DONE))
                else:
                    self.requests.append(_request(question, identifier))
                    self.left -= 1
                    if not self.left:
                        (self.folder / service.SOCKET).rename(self.folder / "gone")
                        (self.folder / "gone").rename(self.folder / service.SOCKET)
                    self.carry(self.requests[-1])
                    if not self.left:
                        connection.sendall(self.last)
                    return


def _carry_out(folder: Path, request: Request) -> Any:
    with unserved(Store(folder)) as opened, opened.transaction():
        return each(opened.guid, carry_out(Settlements(opened, WALL, Config()), request).sent)


@pytest.mark.parametrize("done", [False, True])
def test_a_commit_whose_answer_is_lost_happens_once(store: Path, done: bool) -> None:
    cutter = Cutter(store, (lambda request: _carry_out(store, request)) if done else (lambda _request: None))
    with Client(store) as client:
        sent = client.send_many([Letter("line1", b"1"), Letter("plain", b"2")])
        cutter.thread.join(DEADLINE_S)
        assert [message.body for message in client.queue("line1").peek()] == [b"1"]
        assert [message.message_id for message in client.queue("line1").peek()] == [sent[0].message_id]
        # whoever had the question, and comes back to it, finds that it has happened
        assert _carry_out(store, cutter.requests[0]) == sent
        assert [message.body for message in client.queue("plain").peek()] == [b"2"]


def test_a_serve_that_hangs_is_not_waited_for_without_end(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HELLO_S", 0.1)
    monkeypatch.setattr(remote, "BUSY_TIMEOUT_S", 0.3)
    with Client(store) as client:
        with Store(store) as hangs, service.listen(store):  # nobody takes the connection
            hangs.lock_manager()
            with pytest.raises(StoreBusy, match=f"process {os.getpid()} .*it does not answer"):
                client.send("line1", b"1")
            assert not list(client.queue("line1").peek())
        client.send("line1", b"2")
        assert [message.body for message in client.queue("line1").peek()] == [b"2"]


def test_if_nobody_can_do_it_nor_say_whether_it_was_done_that_is_said(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = Cutter(store, lambda _request: None)
    cutter.left = remote.ATTEMPTS
    with Client(store) as client, pytest.raises(StoreUnknown, match="was sent, or not"):
        client.send("line1", b"1")
    cutter.thread.join(DEADLINE_S)
    assert len({(request.application, request.number) for request in cutter.requests}) == 1


@pytest.mark.parametrize(
    "error", [StoreError("the sync failed"), StoreFull("the disk is full"), StoreBusy("it is busy")]
)
@pytest.mark.parametrize("through", ["serve", "the store"])
def test_what_was_done_before_the_answer_was_lost_is_not_called_undone(
    store: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError, through: str
) -> None:
    """Whoever is told that it has not happened sends it again."""

    def fails(_self: Direct, _request: Request) -> Any:
        raise error

    cutter = Cutter(store, lambda request: _carry_out(store, request))
    cutter.left = 2 if through == "serve" else 1
    cutter.last = service.failed(error) if through == "serve" else b""
    monkeypatch.setattr(Direct, "carry_out", fails)
    with Client(store) as client:
        with pytest.raises(StoreUnknown, match=f"the message to line1 was sent, or not: {error}.*before you make it"):
            client.send("line1", b"1")
        cutter.thread.join(DEADLINE_S)
        assert [message.body for message in client.queue("line1").peek()] == [b"1"]


@pytest.mark.parametrize("told", [None, NotTaken, NoSuchQueue, QueueExists, QueueNotEmpty])
def test_that_it_cannot_happen_any_more_is_said_though_an_answer_was_lost(
    store: Path, told: type[StoreError] | None
) -> None:
    """By serve, which is asked again, or by the store itself."""
    cutter = Cutter(store, lambda _request: None)
    cutter.left = 1 if told is None else 2
    cutter.last = service.failed(told("it cannot be")) if told else b""
    with Client(store) as client, pytest.raises(told or NotTaken):
        client.access.commit(Commit((17,)))
    cutter.thread.join(DEADLINE_S)


def test_errors_cross_the_socket_as_what_they_are() -> None:
    for error in (
        StoreError("a"), StoreFull("b"), StoreUnknown("c"), NoSuchQueue("d"), ValueError("e"), RuntimeError("f"),
    ):  # fmt: skip
        (answer,) = service.frames(bytearray(service.failed(error)))
        expected = StoreError if isinstance(error, RuntimeError) else type(error)
        with pytest.raises(expected, match=str(error)[:1]) as raised:
            service.result_of(answer)
        assert type(raised.value) is expected
    with pytest.raises(service.MalformedFrame):
        service.result_of(["what"])


@pytest.mark.slow
def test_whatever_is_killed_under_load_each_message_arrives_once_in_order(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed)
    found = soak(5, seed, tmp_path)
    assert found["messages"]


@pytest.mark.rule("B-345")
def test_what_is_sent_right_after_a_pause_waits(tmp_path: Path) -> None:
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
