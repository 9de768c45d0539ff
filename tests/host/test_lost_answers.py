"""A connection between an application and `ordack serve` ends before the answer: the commit happens once, or the
application is told that nobody knows."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ordack.api import remote
from ordack.broker import service
from ordack.broker.commits import Direct, carry_out
from ordack.broker.message import Commit, Request
from ordack.broker.outcome import Settlements
from ordack.broker.sending import each
from ordack.client import Client, Letter
from ordack.config.config import Config
from ordack.store import Store, StoreBusy, StoreError, StoreFull, StoreUnknown
from ordack.store.database import ServeLock
from ordack.store.messages import NotTaken
from ordack.store.queues import NoSuchQueue, QueueExists, QueueNotEmpty

from tests.support.beside import unserved
from tests.support.command import DEADLINE_S
from tests.support.host_world import WALL


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
            while (frame := service.frame_in(buffer)) is not None:
                if not identifier:
                    identifier = service.content_of(frame)[2]
                    connection.sendall(service.frame(service.DONE))
                else:
                    number, *parts = service.question_in(frame)[1]
                    self.requests.append(Request(identifier, number, Commit(*parts)))
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
def test_commit_with_lost_answer_happens_once(store: Path, done: bool) -> None:
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


def test_lost_answers_after_all_retries_raise_store_unknown(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_commit_before_lost_answer_is_reported_as_unknown(
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
def test_refused_commit_raises_its_error_after_lost_answer(store: Path, told: type[StoreError] | None) -> None:
    """By serve, which is asked again, or by the store itself."""
    cutter = Cutter(store, lambda _request: None)
    cutter.left = 1 if told is None else 2
    cutter.last = service.failed(told("it cannot be")) if told else b""
    with Client(store) as client, pytest.raises(told or NotTaken):
        client.access.commit(Commit((17,)))
    cutter.thread.join(DEADLINE_S)


def test_errors_keep_their_type_across_socket() -> None:
    for error in (
        StoreError("a"), StoreFull("b"), StoreUnknown("c"), NoSuchQueue("d"), ValueError("e"), RuntimeError("f"),
    ):  # fmt: skip
        answer = service.content_of(service.failed(error)[service.LENGTH.size :])
        expected = StoreError if isinstance(error, RuntimeError) else type(error)
        with pytest.raises(expected, match=str(error)[:1]) as raised:
            service.result_of(answer)
        assert type(raised.value) is expected
    with pytest.raises(service.MalformedFrame):
        service.result_of(["what"])
