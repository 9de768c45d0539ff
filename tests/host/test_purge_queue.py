"""A queue is emptied through `ordack serve` while others use it: they have their turn between two pieces, and nothing
that somebody is told of is undone by a power cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqqb import confirm
from ordack.api.remote import ServeConnection
from ordack.broker import outcome, service
from ordack.broker.message import Commit, Emptying, Order, Request
from ordack.client import Client, Letter
from ordack.store import StoreError

from tests.host.applications import App, do
from tests.support.command import Serve, serve_applications
from tests.support.host_world import Host

COUNT = 10 * outcome.CHUNK + 5


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "host")
    with made.client() as client:
        client.create_queue("big", transactional=False)
    return made


def _fill(host: Host, count: int = COUNT, **properties: Any) -> int:
    """Put messages in the queue; the newest lookup id."""
    with host.client() as client:
        client.send_many([Letter("big", b"%d" % number, **properties) for number in range(count)])
        return client.store.messages.last_lookup_id()


@pytest.mark.rule("B-340")
def test_purge_yields_to_senders_and_keeps_new_messages(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "PIECE_S", 0.0)
    last = _fill(host)
    manager = host.manager
    purger, sender = App(manager), App(manager)
    removed = []
    is_all = False
    while not is_all:
        (count, is_all), (sent,) = do(
            manager, purger.empties("big", last), sender.commits(Letter("big", b"new %d" % len(removed)))
        )
        assert sent
        removed.append(count)
    assert sum(removed) == COUNT
    assert max(removed) <= outcome.CHUNK
    assert host.content("big") == [b"new %d" % number for number in range(len(removed))]


# ---- through the socket


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Client(tmp_path, create=True) as client:
        client.create_queue("big", transactional=True)
        client.send_many([Letter("big", b"x")] * COUNT)
    return tmp_path


@pytest.mark.rule("B-339", "B-340")
@pytest.mark.parametrize("deleted", [False, True])
def test_serve_empties_a_queue_for_an_application(store: Path, serve: Serve, deleted: bool) -> None:
    assert serve.process.poll() is None
    with Client(store) as client:
        before = client.store.work.commits.total
        if deleted:
            assert client.delete_queue("big") == COUNT
        else:
            assert client.purge_queue("big") == COUNT
            assert client.store.work.commits.total == before  # it has written nothing itself
            assert list(client.queue("big").peek()) == []
            client.send("big", b"more")
            with client.queue("big").receive() as message:
                assert message.body == b"more"


@pytest.mark.rule("B-340")
@pytest.mark.parametrize("answered", [0, 1])
def test_purge_survives_kill_of_serve(
    store: Path, serve: Serve, answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    ask = ServeConnection.ask

    def killed(connection: ServeConnection, question: bytes, patience: float | None = None) -> Any:
        nonlocal asked
        if service.EMPTY.encode() in question:
            asked += 1
            if asked == answered + 1:
                serve.process.kill()
                serve.process.wait()
        return ask(connection, question, patience)

    with Client(store) as client:
        client.create_queue("untold", transactional=False)
        client.send_many([Letter("untold", b"x")] * COUNT)
        monkeypatch.setattr(ServeConnection, "ask", killed)
        assert client.purge_queue("untold") == COUNT
        assert asked == answered + 1
        assert list(client.queue("untold").peek()) == []


def test_remote_client_cannot_purge_or_move(store: Path) -> None:
    serve, address = serve_applications(store)
    with Client(address) as client:
        queue = client.queue("big")
        with pytest.raises(StoreError, match="is done on its own machine"):
            client.purge_queue("big")
        emptying = Emptying(queue.identifier, confirm.NACK_Q_PURGED, 1 << 40, marks=True)
        with pytest.raises(StoreError, match="on its own machine"):
            client.access.empty(emptying)
        first = next(queue.peek()).lookup_id
        moving = Commit(order=Order("move", (queue.identifier, first, None, False)))
        note = service.frame(service.NOTE, "big", "forged")
        for question in (
            note,
            service.frame(service.EMPTY, *emptying),
            service.commit_question(Request(b"", 1, moving)),
        ):
            assert len(list(queue.peek())) == COUNT
            with pytest.raises(ValueError, match="does not take this"):
                client.access._connection.ask(question)  # type: ignore[attr-defined]
            client.access._connection.close()  # type: ignore[attr-defined]
            client.access._connection = None  # type: ignore[attr-defined]
        assert len(list(queue.peek())) == COUNT
    said = serve.stop()[2]
    assert "forged" not in said
    assert "of an operator comes from another machine" in said
