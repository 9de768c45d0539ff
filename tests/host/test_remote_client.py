"""Applications of other machines, that reach `ordack serve` at an address: what they ask for happens once, wherever the
connection breaks and whoever is killed, and nobody who connects there can harm anybody else."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ordack
import pytest
from mqqb import confirm
from ordack.api import remote
from ordack.api.reads import LocalReader
from ordack.api.remote import StoreUnreachable
from ordack.broker import service
from ordack.broker.message import Commit, Request, Wanted, in_runs
from ordack.client import Client, Letter
from ordack.config.config import Config
from ordack.server import applications
from ordack.server.listener import Listener
from ordack.store import StoreBusy, StoreError, StoreUnknown

from tests.host.sockets import Server, serving, until
from tests.support.beside import client_beside
from tests.support.command import DEADLINE_S, Serve, own_port, serve_applications
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
                self.made += 1  # before it can be seen
                there.sendall(question[: int(part * len(question))])
                return
            there.sendall(question)
            if not (answer := _frame(there)):
                return
            if what == "answer":
                self.made += 1  # before it can be seen
                here.sendall(answer[: int(part * len(answer))])
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
    with _connected(address) as client:
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
def test_connection_cut_at_any_frame_loses_and_repeats_nothing(
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


def test_message_is_returned_to_queue_although_connection_is_cut(served: tuple[Serve, str]) -> None:
    with Proxy(_port(served[1])) as proxy, Client(proxy.address) as client:
        client.send("line1", b"1")
        receiving = client.queue("line1").receive()
        receiving.__enter__()
        proxy.plan = {proxy.exchanges: ("question", 0.0)}
        assert not receiving.__exit__(KeyError, KeyError(), None)
        assert proxy.made == 1
        with client.queue("line1").receive(timeout=DEADLINE_S) as message:
            assert message.body == b"1"


def _connected(address: str) -> Client:
    while True:
        with suppress(StoreUnreachable):
            return Client(address)


def _hello(connection: socket.socket, application: bytes) -> Any:
    return _told(connection, service.frame(service.HELLO, service.VERSION, application))


def _told(connection: socket.socket, question: bytes) -> Any:
    connection.sendall(question)
    return service.result_of(service.content_of(_frame(connection)[service.LENGTH.size :]))


def test_commit_refused_on_new_connection_is_ignored_on_old_one(store: Path, served: tuple[Serve, str]) -> None:
    place = ("127.0.0.1", _port(served[1]))
    application = secrets.token_bytes(16)
    with Client(store) as client:
        client.send("line1", b"1")
        queue = client.queue("line1").identifier
    with socket.create_connection(place) as older, socket.create_connection(place) as newer:
        _hello(older, application)
        ((_, key, *_),) = service.messages_in(_told(older, service.take_question(Wanted(queue, 1), 0)))
        commit = Commit((key,), confirm.ACK_RECEIVE, in_runs([Letter("plain", b"moved")]))
        late = service.commit_question(Request(application, 1, commit))
        _hello(newer, application)
        with pytest.raises(StoreError, match="cannot be completed"):
            _told(newer, late)
        with suppress(OSError):
            older.sendall(late)
        assert _frame(older) == b""
    assert _bodies(store, "line1") == [b"1"]
    assert _bodies(store, "plain") == []


# ---- nobody is there


def test_client_that_loses_serve_reports_known_outcome(
    store: Path, served: tuple[Serve, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, address = served
    monkeypatch.setattr(remote, "RECONNECT_S", 0.1)
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


def test_client_refuses_other_queue_manager_at_same_address(tmp_path: Path, store: Path) -> None:
    port = own_port()
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
def test_connect_refuses_invalid_address_with_advice(place: str, files: dict[str, str], words: str) -> None:
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
        lambda client: client.create_queue("more", transactional=False),
        lambda client: client.purge_queue("line1"),
        lambda client: client.delete_queue("line1"),
        lambda client: client.store,
        lambda client: client.config(),
        lambda client: client.order("set_quota", "line1", 1),
    ],
)
def test_remote_client_cannot_administer_store(served: tuple[Serve, str], ask: Callable[[Client], object]) -> None:
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


def test_remote_client_poison_message_follows_server_setting(store: Path) -> None:
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


def test_application_uses_tls_and_refused_client_gets_reason(store: Path, plant: Plant) -> None:
    serve, address = serve_applications(store, f"tls = true\nallow-certificates = ['press-3']\n{plant.table('plant')}")
    place = address.replace("tcp", "tls")
    with ordack.connect(place, **_tls(plant)) as client:
        client.send("line1", bytes(3 << 20))
        with client.queue("line1").receive() as message:
            assert message.body == bytes(3 << 20)
        late = threading.Timer(0.1, lambda: _send(store))
        late.start()
        with client.queue("line1").receive(DEADLINE_S) as message:
            assert message.body == b"late"
    _send(store)

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


def test_client_rejects_certificate_for_other_address(store: Path, plant: Plant) -> None:
    serve, address = serve_applications(store, f"tls = true\n{plant.table('press-4')}")
    with pytest.raises(StoreUnreachable, match=r"its certificate is not accepted: .*127.0.0.1"):
        ordack.connect(address.replace("tcp", "tls"), **_tls(plant))
    serve.stop()


# ---- who means harm, or is broken


class Guest:
    """A connection to the gate of a server in this event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def come(cls, port: int, application: bytes | None = None) -> Guest:
        guest = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 30))
        if application:
            await guest.ask(service.frame(service.HELLO, service.VERSION, application))
        return guest

    async def ask(self, question: bytes) -> Any:
        self.writer.write(question)
        (size,) = service.LENGTH.unpack(await self.reader.readexactly(service.LENGTH.size))
        return service.result_of(service.content_of(await self.reader.readexactly(size)))

    async def is_shut_out(self) -> None:
        """Wait for the end of it."""
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionError):
                while await self.reader.read(1 << 16):
                    pass
        self.writer.close()


async def _silent(port: int) -> Guest:
    return await Guest.come(port)


async def _drips(port: int) -> Guest:
    guest = await Guest.come(port, bytes(16))
    guest.writer.write(service.LENGTH.pack(1000) + b"x")
    return guest


async def _too_large(port: int) -> Guest:
    guest = await Guest.come(port, bytes(16))
    guest.writer.write(service.LENGTH.pack(service.FRAME_MAX + 1))
    return guest


async def _large_before_hello(port: int) -> Guest:
    guest = await Guest.come(port)
    guest.writer.write(service.LENGTH.pack(service.HELLO_MAX + 1))
    return guest


async def _of_another_version(port: int) -> Guest:
    guest = await Guest.come(port)
    with pytest.raises(StoreBusy, match="of another version: install the same one at both ends"):
        await guest.ask(service.frame(service.HELLO, service.VERSION + 1, bytes(16)))
    return guest


async def _one_too_many(port: int) -> Guest:
    kept = [await Guest.come(port, bytes([number]) * 16) for number in range(1, 3)]
    guest = await Guest.come(port)
    with pytest.raises(StoreBusy, match="2 applications are connected to `ordack serve` this way"):
        await guest.ask(service.frame(service.HELLO, service.VERSION, bytes(16)))
    for one in kept:
        one.writer.close()
    return guest


async def _half_too_much(port: int) -> Guest:
    little, much = await Guest.come(port, bytes([1]) * 16), await Guest.come(port, bytes([2]) * 16)
    little.writer.write(service.LENGTH.pack(1000) + bytes(500))
    much.writer.write(service.LENGTH.pack(4 << 20) + bytes(2 << 20))
    await much.is_shut_out()
    little.writer.write(bytes(500))  # which is no question
    return little


async def _does_not_read(port: int) -> Guest:
    guest = await Guest.come(port, bytes(16))
    guest.writer.transport.pause_reading()  # type: ignore[attr-defined]
    guest.writer.write(service.frame(service.LOOK, _QUEUE, -1, -1, 256))
    return guest


async def _stops_and_does_not_read(port: int) -> Guest:
    guest = await _does_not_read(port)
    await asyncio.to_thread(_UNREAD.wait, DEADLINE_S)
    guest.writer.write(service.frame(service.STOP))
    return guest


async def _asks_before_it_has_read(port: int) -> Guest:
    guest = await _does_not_read(port)
    await asyncio.to_thread(_UNREAD.wait, DEADLINE_S)
    guest.writer.write(service.frame(service.LOOK, _QUEUE, -1, -1, 256))
    return guest


_QUEUE = 0
_UNREAD = threading.Event()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_silent, "it has not said who it is in time"),
        (_drips, "its question does not come to an end"),
        (_too_large, f"a frame of {service.FRAME_MAX + 1} bytes is announced"),
        (_large_before_hello, f"a frame of {service.HELLO_MAX + 1} bytes is announced"),
        (_of_another_version, "this `ordack serve` is of another version"),
        (_one_too_many, "2 applications are connected to `ordack serve` this way: no more are taken"),
        (_half_too_much, "bytes of a question that is not complete, and all have too many"),
        (_does_not_read, "it does not read its answer"),
        (_stops_and_does_not_read, "it does not read its answer"),
        (_asks_before_it_has_read, "it asks before it has read its answer"),
    ],
)
async def test_misbehaving_client_is_disconnected_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[int], Any], said: str
) -> None:
    monkeypatch.setattr(applications, "HELLO_S", 0.3)
    monkeypatch.setattr(applications, "PART_S", 60 if harm is _asks_before_it_has_read else 0.3)
    monkeypatch.setattr(applications, "RATE", 1 << 30)
    monkeypatch.setattr(applications, "APPLICATIONS_MAX", 2 if harm is _one_too_many else 256)
    pause = applications.Connection.pause_writing
    monkeypatch.setattr(applications.Connection, "pause_writing", lambda one: (pause(one), _UNREAD.set()))
    global _QUEUE
    listener = Listener("127.0.0.1", 0)
    async with serving(tmp_path, Config(max_half_received=1 << 20), applications=listener) as server:
        with client_beside(tmp_path) as client:
            _QUEUE = client.create_queue("large", transactional=False).identifier
            client.send_many([Letter("large", bytes(3 << 20))] * 3)
        _UNREAD.clear()
        guest = await harm(listener.place[1])
        if harm in (_does_not_read, _stops_and_does_not_read, _asks_before_it_has_read):
            await until(lambda: any(said in line for line in server.log))
            guest.writer.transport.abort()
        else:
            await guest.is_shut_out()
        told = [line for line in server.log if said in line]
        assert len(told) == 1
        assert told[0].startswith("127.0.0.1: an application is disconnected: ")
        await _works(listener.place[1], server)


async def _works(port: int, server: Server) -> None:
    """An honest application is served, and nobody is left."""

    def work() -> None:
        with Client(f"tcp://127.0.0.1:{port}") as client:
            client.send("line1", b"1")
            with client.queue("line1").receive() as message:
                assert message.body == b"1"

    async with asyncio.timeout(DEADLINE_S):
        await until(lambda: len(server.manager.applications) <= 1)
        await asyncio.to_thread(work)
        await until(lambda: not len(server.manager.applications))


async def test_slow_read_does_not_block_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, go_on = threading.Event(), threading.Event()
    look = LocalReader.look

    def slow(here: LocalReader, *arguments: Any) -> Any:
        looking.set()
        assert go_on.wait(DEADLINE_S)
        return look(here, *arguments)

    listener = Listener("127.0.0.1", 0)
    async with serving(tmp_path, Config(), applications=listener), asyncio.timeout(DEADLINE_S):
        slow_one = await Guest.come(listener.place[1], bytes([1]) * 16)
        quick_one = await Guest.come(listener.place[1], bytes([2]) * 16)
        queue = (await quick_one.ask(service.frame(service.QUEUE, "line1")))[0]
        monkeypatch.setattr(LocalReader, "look", slow)
        looked = asyncio.create_task(slow_one.ask(service.frame(service.LOOK, queue, -1, -1, 1)))
        await asyncio.to_thread(looking.wait, DEADLINE_S)
        for number in range(1, 4):
            commit = Request(bytes([2]) * 16, number, Commit(letters=in_runs([Letter("line1", b"%d" % number)])))
            await quick_one.ask(service.commit_question(commit))
        assert not looked.done()
        go_on.set()
        assert len(service.messages_in(await looked)) == 1
        for guest in (slow_one, quick_one):
            guest.writer.close()
