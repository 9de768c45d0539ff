"""Applications ask `ordack serve` through its sockets, or use the store themselves where none runs."""

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
from mqqb import confirm
from ordack.broker import service
from ordack.broker.message import Commit, Request, Wanted, in_runs
from ordack.client import Client, Letter, Transaction
from ordack.config.names import BadName
from ordack.store import StoreError, StoreServed
from ordack.store.messages import NotTaken
from ordack.store.queues import NoSuchQueue, QueueExists, QueueNotEmpty

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, own_port, serve_applications
from tests.support.forked import said_in_fork
from tests.support.host_peer import body_of
from tests.support.watched import until


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


def test_client_in_use_by_a_thread_refuses_other_threads(store: Path, place: Path | str) -> None:
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


def test_signal_handler_cannot_use_interrupted_client(store: Path, place: Path | str) -> None:
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


def test_forked_process_cannot_use_client_of_its_parent(store: Path, place: Path | str) -> None:
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


def test_client_uses_serve_if_running_and_store_otherwise(store: Path) -> None:
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


def test_application_socket_is_private_and_allows_long_path(tmp_path: Path) -> None:
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


def test_serve_start_rolls_back_receive_and_fails_commit(store: Path) -> None:
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
def test_killed_serve_rolls_back_receive_and_commit_fails(store: Path, away: bool, again: bool) -> None:
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
def test_killed_application_loses_no_taken_message(store: Path, away: bool) -> None:
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


def test_direct_store_write_fails_while_serve_runs(store: Path, serve: Serve) -> None:
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
def test_wrong_value_type_raises_type_error_with_name(store: Path, served: bool) -> None:
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


def test_request_refused_by_serve_returns_received_message(
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


def test_refused_oversized_commit_returns_received_message(store: Path, serve: Serve) -> None:
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


@pytest.mark.parametrize("away", [False, True])
def test_loop_of_receives_loses_nothing_when_serve_is_killed(store: Path, away: bool) -> None:
    port = own_port()

    def start() -> tuple[Serve, Path | str]:
        return serve_applications(store, port=port) if away else (Serve(store), store)

    serve, place = start()
    with Client(place) as client:
        for body in (b"1", b"2", b"3"):
            client.send("line1", body)
        loop = iter(client.queue("line1").receive())
        assert [next(loop).body, next(loop).body] == [b"1", b"2"]
        serve.stop(signal.SIGKILL)
        serve, _ = start()
        with pytest.raises(StoreError, match="cannot be completed"):
            next(loop)
        assert [message.body for message in client.queue("line1").receive(timeout=0)] == [b"2", b"3"]
        assert [message.body for message in client.queue("line1").peek()] == []
    serve.stop()


def test_receive_behind_commit_waits_and_gets_its_message(store: Path, serve: Serve) -> None:
    with Client(store) as client, _connected(store) as connection:
        wanted = Wanted(client.queue("line1").identifier, 1)
        connection.settimeout(DEADLINE_S)
        commit = service.commit_question(Request(bytes(16), 1, Commit((), letters=in_runs([Letter("plain", b"0")]))))
        connection.sendall(_HELLO + commit + service.take_question(wanted, 60))
        buffer = bytearray()
        answers: list[Any] = []
        while len(answers) < 3:
            buffer += _received(connection)
            while (frame := service.frame_in(buffer)) is not None:
                answers.append(service.result_of(service.content_of(frame)))
            if len(answers) == 2:  # the commit is answered first, and does not wait
                client.send("line1", b"1")
        (message,) = service.messages_in(answers[2])
        assert b"1" in message.packet
        connection.sendall(commit + service.frame(service.PUT_BACK, service.packed([message.lookup_id])))
        while _received(connection):
            pass
        with client.queue("line1").receive(timeout=DEADLINE_S) as again:
            assert again.body == b"1"
    assert serve.process.poll() is None


def test_second_request_before_answer_closes_connection(store: Path, serve: Serve) -> None:
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


def test_killed_waiter_gets_no_message(store: Path, serve: Serve) -> None:
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
            ("note", "line1", 7),
            ("look", 1, -2, -1, 1),
        )
    ),
]


def test_malformed_request_closes_only_its_own_connection(store: Path, serve: Serve) -> None:
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
def test_random_bytes_are_a_request_or_malformed(data: bytes) -> None:
    buffer = bytearray(data)
    try:
        while (frame := service.frame_in(buffer)) is not None:
            kind, parts = service.question_in(frame)
            assert len(parts) == len(service.content_of(frame)) - 1
            if kind == service.TAKE:
                assert Wanted(*parts[:-1]).queue >= 0
                assert 0 <= parts[-1] <= service.WAIT_MAX_MS
            elif kind == service.COMMIT:
                assert all(isinstance(run.letter.destination, str) and run.sizes for run in parts[3])
    except service.MalformedFrame:
        pass
