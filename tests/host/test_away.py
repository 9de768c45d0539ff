"""Applications of other machines, that reach `ordack serve` at an address: what they ask for happens once, wherever the
connection breaks and whoever is killed, and nobody who connects there can harm anybody else."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ordack
import pytest
from mqqb import confirm
from ordack import away, service
from ordack.away import StoreUnreachable
from ordack.client import Client, Letter, Transaction
from ordack.commits import Commit, Request, Wanted
from ordack.store import StoreError, StoreUnknown

from tests.host.sockets import free_port
from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve, serve_applications
from tests.support.plant import Plant

PARTS = {"before it": 0.0, "half-way": 0.5, "behind it": 1.0}


@pytest.fixture
def served(store: Path) -> Iterator[tuple[Serve, str]]:
    """That store, served, and the address for applications."""
    serve, address = serve_applications(store)
    yield serve, address
    if serve.process.poll() is None:
        serve.stop()


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Plant:
    return Plant(tmp_path_factory.mktemp("plant"))


def _bodies(folder: Path, name: str) -> list[bytes]:
    with Client(folder) as client:
        return [message.body for message in client.queue(name).peek()]


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _frame(connection: socket.socket) -> bytes:
    """The next frame; b"" at the end."""
    data = b""
    size = service.LENGTH.size
    while len(data) < size:
        try:
            piece = connection.recv(size - len(data))
        except OSError:
            return b""
        if not piece:
            return b""
        data += piece
        if len(data) == service.LENGTH.size:
            size += service.LENGTH.unpack(data)[0]
    return data


class Proxy:
    """Stands between applications and a `serve`, knows questions and answers, and cuts connections at them.

    plan: at which exchange (question and answer, counted from 0 over all connections), at its question or its answer,
    behind which part of that. made: how many cuts. exchanges: how many there were.
    """

    def __init__(self, port: int) -> None:
        self.plan: dict[int, tuple[str, float]] = {}
        self.made = 0
        self.exchanges = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            with here, socket.create_connection(("127.0.0.1", self._port)) as there:
                self._talk(here, there)
                for end in (here, there):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _talk(self, here: socket.socket, there: socket.socket) -> None:
        while (question := _frame(here)) != service.frame(service.BYE) and question:
            what, part = self.plan.pop(self.exchanges, ("", 1.0))
            self.exchanges += 1
            if what == "question":
                there.sendall(question[: int(part * len(question))])
                self.made += 1
                return
            there.sendall(question)
            if not (answer := _frame(there)):
                return
            if what == "answer":
                here.sendall(answer[: int(part * len(answer))])
                self.made += 1
                return
            here.sendall(answer)

    def __enter__(self) -> Proxy:
        return self

    def close(self) -> None:
        """Take no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self.close()
        self._thread.join(DEADLINE_S)


# ---- exactly once


def _check_is_back(error: StoreError) -> None:
    assert "cannot be completed" in str(error), error


def _work(address: str, body: bytes) -> None:
    """Send a message, move it to another queue in a transaction, look at that; as long as it takes."""
    try:
        client = Client(address)
    except StoreUnreachable:
        client = Client(address)
    with client:
        client.send("line1", body)
        while True:
            try:
                with client.transaction() as transaction:
                    taken = transaction.receive("line1", DEADLINE_S)
                    transaction.send("plain", taken.body)
                break
            except StoreError as error:
                _check_is_back(error)
        assert [message.body for message in client.queue("plain").peek()][-1] == body


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("what", ["question", "answer"])
def test_a_connection_that_is_cut_at_any_frame_costs_nothing_and_repeats_nothing(
    store: Path, served: tuple[Serve, str], what: str, part: str
) -> None:
    with Proxy(_port(served[1])) as proxy:
        _work(proxy.address, b"uncut")
        assert proxy.exchanges == 8  # hello, commit; queue, take, commit; queue, look, look
        expected = [b"uncut"]
        for exchange in range(8):
            proxy.exchanges = 0
            proxy.plan = {exchange: (what, PARTS[part])}
            expected.append(b"cut at %d" % exchange)
            _work(proxy.address, expected[-1])
            assert proxy.made == exchange + 1
    assert _bodies(store, "plain") == expected
    assert _bodies(store, "line1") == []
    assert served[0].stop()[::2] == (0, "")


def test_whatever_is_cut_how_often_each_message_comes_once_in_order(store: Path, served: tuple[Serve, str]) -> None:
    seed = secrets.randbelow(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    with Proxy(_port(served[1])) as proxy:
        proxy.plan = {
            exchange: (dice.choice(["question", "answer"]), dice.choice(list(PARTS.values())))
            for exchange in range(2000)
            if dice.random() < 0.1
        }
        for number in range(60):
            _work(proxy.address, b"%d" % number) if number % 10 else _work_until_it_is_done(proxy.address, number)
        assert proxy.made > 20
    assert _bodies(store, "plain") == [b"%d" % number for number in range(60)]
    assert _bodies(store, "line1") == []


def _work_until_it_is_done(address: str, number: int) -> None:
    """The same with a client for each step."""
    for step in (lambda client: client.send("line1", b"%d" % number), _move):
        with _connected(address) as client:
            step(client)


def _connected(address: str) -> Client:
    while True:
        with suppress(StoreUnreachable):
            return Client(address)


def _move(client: Client) -> None:
    while True:
        try:
            with client.transaction() as transaction:
                transaction.send("plain", transaction.receive("line1", DEADLINE_S).body)
        except StoreError as error:
            _check_is_back(error)
        else:
            return


def _hello(connection: socket.socket, application: bytes) -> Any:
    return _told(connection, service.frame(service.HELLO, service.VERSION, application))


def _told(connection: socket.socket, question: bytes) -> Any:
    connection.sendall(question)
    (answer,) = service.frames(bytearray(_frame(connection)))
    return service.result_of(answer)


def test_what_is_still_on_its_way_on_an_older_connection_does_not_happen_behind_its_refusal(
    store: Path, served: tuple[Serve, str]
) -> None:
    place = ("127.0.0.1", _port(served[1]))
    application = secrets.token_bytes(16)
    with Client(store) as client:
        client.send("line1", b"1")
        queue = client.queue("line1").identifier
    with socket.create_connection(place) as older, socket.create_connection(place) as newer:
        _hello(older, application)
        ((_, key, *_),) = _told(older, service.take_question(Wanted(queue, 1), 0))
        commit = Commit((key,), confirm.ACK_RECEIVE, (Letter("plain", b"moved"),))
        late = service.commit_question(Request(application, 1, commit))
        _hello(newer, application)
        with pytest.raises(StoreError, match="cannot be completed"):
            _told(newer, late)
        with suppress(OSError):
            older.sendall(late)
        assert _frame(older) == b""
    assert _bodies(store, "line1") == [b"1"]
    assert _bodies(store, "plain") == []


def test_serve_is_killed_again_and_again_and_each_message_comes_once_in_order(store: Path) -> None:
    port = free_port(socket.SOCK_STREAM)
    serve, address = serve_applications(store, port=port)
    count = 120
    sent = threading.Semaphore(0)
    failed: list[BaseException] = []

    def send() -> None:
        try:
            with Client(address) as client:
                for number in range(count):
                    client.send("line1", b"%d" % number)
                    sent.release()
        except BaseException as error:  # noqa: BLE001 - the test tells it
            failed.append(error)
            sent.release(count)

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(3):
        for _ in range(count // 4):
            assert sent.acquire(timeout=DEADLINE_S)
        serve.stop(signal.SIGKILL)
        serve, _ = serve_applications(store, port=port)
    sender.join(DEADLINE_S)
    assert not failed
    assert _bodies(store, "line1") == [b"%d" % number for number in range(count)]
    serve.stop()


def test_what_was_taken_of_a_serve_that_was_killed_is_back_and_the_commit_says_so(store: Path) -> None:
    port = free_port(socket.SOCK_STREAM)
    serve, address = serve_applications(store, port=port)
    with Client(address) as client:
        client.send("line1", b"1")
        transaction = Transaction(client)
        assert transaction.receive("line1").body == b"1"
        transaction.send("plain", b"2")
        serve.stop(signal.SIGKILL)
        serve, _ = serve_applications(store, port=port)
        with pytest.raises(StoreError, match="cannot be completed"):
            transaction.commit()
        with client.queue("line1").receive() as message:
            assert message.body == b"1"
        assert not list(client.queue("plain").peek())
    serve.stop()


def test_an_application_that_is_killed_loses_nothing_that_it_had_taken(served: tuple[Serve, str]) -> None:
    with Client(served[1]) as client:
        client.send("line1", b"1")
        taker = (
            "import os, sys\nfrom ordack.client import Client\nclient = Client(sys.argv[1])\n"
            "with client.queue('line1').receive() as message:\n    os.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", taker, served[1]], env=ENVIRONMENT, check=False, timeout=DEADLINE_S
        )
        assert done.returncode == -signal.SIGKILL
        with client.queue("line1").receive(timeout=DEADLINE_S) as message:
            assert (message.body, message.abort_count) == (b"1", 1)


# ---- nobody is there


def test_a_client_that_cannot_reach_serve_any_more_says_what_is_known(
    store: Path, served: tuple[Serve, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, address = served
    monkeypatch.setattr(away, "RECONNECT_S", 0.1)
    with Proxy(_port(address)) as proxy, Client(proxy.address) as unsure, Client(address) as sure:
        queue = sure.queue("line1")
        proxy.plan = {proxy.exchanges: ("answer", 0.5)}
        proxy.close()
        with pytest.raises(StoreUnknown, match=r"message to line1 was sent, or not: tcp://.* cannot be reached"):
            unsure.send("line1", b"1")
        with pytest.raises(StoreUnreachable):  # nothing of this one was asked
            unsure.send("line1", b"2")
        assert serve.stop()[0] == 0
        for ask in (lambda: sure.send("line1", b"3"), lambda: list(queue.peek()), lambda: list(queue.receive())):
            with pytest.raises(StoreUnreachable, match=r"tcp://127.0.0.1:\d+ cannot be reached: Connection refused"):
                ask()
    with pytest.raises(StoreUnreachable, match=r"does `ordack serve` run there\?"):
        ordack.connect(address)
    assert _bodies(store, "line1") == [b"1"]


def test_another_queue_manager_at_the_address_is_not_taken_for_the_one_before(tmp_path: Path, store: Path) -> None:
    port = free_port(socket.SOCK_STREAM)
    serve, address = serve_applications(store, port=port)
    with Client(address) as client:
        client.send("line1", b"1")
        serve.stop(signal.SIGKILL)
        with Client(tmp_path / "other", create=True) as other:
            other.create_queue("line1", transactional=True)
        serve, _ = serve_applications(tmp_path / "other", port=port)
        with pytest.raises(StoreError, match=r"another queue manager answers at .* than before: open it again"):
            client.send("line1", b"2")
    assert _bodies(tmp_path / "other", "line1") == []
    serve.stop()


@pytest.mark.parametrize(
    ("place", "files", "words"),
    [
        ("tcp://plant", {}, r"tcp://plant: write tcp://HOST:PORT: 'plant' is not HOST:PORT"),
        ("tls://plant:x", {"certificate": "c", "key": "k", "authority": "a"}, "write tls://HOST:PORT"),
        ("tcp://pl ant:1", {}, "neither an IP address nor the name of a machine"),
        ("tls://plant:1804", {}, "needs certificate, key and authority: `ordack tls certificate` makes them"),
        ("tls://plant:1804", {"key": "k"}, "certificate, key and authority go together: give all three files"),
        ("tcp://plant:1804", {"certificate": "c", "key": "k", "authority": "a"}, "speaks no TLS: write tls://"),
        ("store", {"certificate": "c", "key": "k", "authority": "a"}, "certificates are for a tls:// address"),
        ("tls://plant:1804", {"certificate": "c", "key": "k", "authority": "none.pem"}, "c: it cannot be read"),
    ],
)
def test_an_address_that_cannot_be_one_is_said_with_what_to_write(
    place: str, files: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        ordack.connect(place, **files)

    async def enter() -> None:
        async with ordack.connect_async(place, **files):
            pass

    with pytest.raises(ValueError, match=words):
        asyncio.run(enter())


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.create_queue("more"),
        lambda client: client.purge_queue("line1"),
        lambda client: client.delete_queue("line1"),
        lambda client: client.store,
        lambda client: client.config(),
        lambda client: client.outcomes(),
    ],
)
def test_what_is_done_to_the_store_itself_is_not_done_from_elsewhere(
    served: tuple[Serve, str], ask: Callable[[Client], object]
) -> None:
    with Client(served[1]) as client:
        client.send("line1", b"1")
        with pytest.raises(StoreError, match="is done on its own machine, with the command `ordack`"):
            ask(client)
        assert repr(client) == f"<Client of {served[1]!r}>"
        assert [message.body for message in client.queue("line1").peek()] == [b"1"]
    with pytest.raises(ValueError, match="`create` and `look` are for the folder of a store"):
        Client(served[1], create=True)
    with pytest.raises(StoreError, match="is closed: open it again"):
        client.send("line1", b"2")


def test_a_poisonous_message_is_moved_away_as_the_queue_manager_has_it(store: Path) -> None:
    serve, address = serve_applications(store, "[settings]\nPoisonAfter = 2\n")
    with Client(address) as client:
        client.send("line1", b"1")
        for _ in range(2):
            for message in client.queue("line1").receive():
                assert message.body == b"1"
                break
        assert list(client.queue("line1").receive()) == []
        assert [message.body for message in client.queue("line1;poison").peek()] == [b"1"]
    serve.stop()


# ---- who connects


def _tls(plant: Plant, name: str = "press-3", authority: str = "ours", believed: str = "ours") -> dict[str, Path]:
    return plant.files(name, authority, believed)._asdict()


def test_applications_speak_tls_and_who_is_not_believed_hears_why(store: Path, plant: Plant) -> None:
    serve, address = serve_applications(store, f"tls = true\nallow-certificates = ['press-3']\n{plant.table('plant')}")
    place = address.replace("tcp", "tls")
    with ordack.connect(place, **_tls(plant)) as client:
        client.send("line1", bytes(3 << 20))
        with client.queue("line1").receive() as message:
            assert message.body == bytes(3 << 20)
        late = threading.Timer(0.1, lambda: _send(store))
        late.start()
        assert client.queue("line1").cursor().peek_next(DEADLINE_S).body == b"late"

    async def receive() -> bytes:
        async with ordack.connect_async(place, **_tls(plant)) as client, client.queue("line1").receive() as message:
            return message.body

    assert asyncio.run(receive()) == b"late"
    for files, kind, words in (
        (_tls(plant, "press-4"), StoreError, "the certificate of press-4 is not in allow-certificates"),
        (_tls(plant, authority="theirs"), StoreUnreachable, "tls://.* cannot be reached: "),
        (_tls(plant, believed="theirs"), StoreUnreachable, "its certificate is not accepted"),
    ):
        with pytest.raises(kind, match=words):
            ordack.connect(place, **files)
    with pytest.raises(StoreUnreachable):
        ordack.connect(address)
    _, _, said = serve.stop()
    assert "127.0.0.1: an application is disconnected: its certificate is not accepted" in said
    assert "the certificate of press-4 is not in allow-certificates" in said
    assert "Traceback" not in said


def _send(store: Path) -> None:
    with Client(store) as client:
        client.send("line1", b"late")


def test_a_serve_whose_certificate_is_for_another_address_is_not_believed(store: Path, plant: Plant) -> None:
    serve, address = serve_applications(store, f"tls = true\n{plant.table('press-4')}")
    with pytest.raises(StoreUnreachable, match=r"its certificate is not accepted: .*127.0.0.1"):
        ordack.connect(address.replace("tcp", "tls"), **_tls(plant))
    serve.stop()


def test_who_speaks_tls_where_none_is_spoken_hears_so(served: tuple[Serve, str], plant: Plant) -> None:
    with pytest.raises(StoreUnreachable, match=r"tls://127.0.0.1:.* cannot be reached: "):
        ordack.connect(served[1].replace("tcp", "tls"), **_tls(plant))
    _, _, said = served[0].stop()
    assert said.count("an application is disconnected: a frame of") == 1
