"""Names of this very machine: what is sent there ends in the queues here, whatever port `serve` listens on (B-416)."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from mqqb import guids, headers, names
from ordack.broker import status
from ordack.client import Client
from ordack.config import config as config_module
from ordack.config.config import PORT, Config
from ordack.config.names import is_own_address
from ordack.server import tcp

from tests.host.sockets import PEER_GUID, serving, until
from tests.support.beside import client_beside
from tests.support.command import DEADLINE_S, Serve
from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, peer_of, world_of

HOSTNAME = socket.gethostname()
HERE = ("TCP:127.0.0.1", "TCP:::1", "OS:localhost", f"OS:{HOSTNAME.upper()}", f"OS:{HOSTNAME.partition('.')[0]}")


def _asks(host: Host, address: str) -> None:
    """A peer's message arrives that asks for an acknowledgement to a queue at this address."""
    peer = peer_of(1)
    name = names.DirectQueueFormatName(f"{address}\\private$\\plain")
    peer.send(b"x", admin=name, acknowledge=headers.WANT_PA)
    world_of([host], [peer]).settle()


def _own_address() -> str:
    """One that other machines reach this one at; the loopback's if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect(("192.0.2.99", 9))
        except OSError:
            return "127.0.0.1"
        address: str = asker.getsockname()[0]
        return address


@pytest.mark.rule("B-416", "B-011")
@pytest.mark.parametrize("address", [*HERE, "TCP:" + _own_address()])
def test_admin_queue_at_own_address_is_a_local_queue(tmp_path: Path, address: str) -> None:
    if address == "TCP:::1" and not is_own_address("::1"):
        pytest.skip("this machine has no IPv6")
    host = Host(tmp_path)
    _asks(host, address)
    assert len(host.content("plain")) == 1
    assert host.store.outgoing.queues() == []
    host.store.close()


@pytest.mark.rule("B-416")
@pytest.mark.parametrize(
    "config", [Config(own_names=frozenset({"plant"})), Config(next_hops={"127.0.0.1": ("127.0.0.1", 1802)})]
)
def test_local_address_of_other_manager_uses_outgoing_queue(tmp_path: Path, config: Config) -> None:
    host = Host(tmp_path, config)
    host.manager.poll(0, 0)
    _asks_to_others = names.DirectQueueFormatName("TCP:127.0.0.1\\private$\\plain")
    peer = peer_of(1)
    peer.destination = names.DirectQueueFormatName("OS:plant\\private$\\line1")
    peer.send(b"x", admin=_asks_to_others, acknowledge=headers.WANT_PA)
    world_of([host], [peer]).settle()
    assert host.content("plain") == []
    assert [queue.format_name for queue in host.store.outgoing.queues()] == ["direct=tcp:127.0.0.1\\private$\\plain"]
    host.store.close()


def test_foreign_addresses_are_foreign() -> None:
    for address in (
        "192.0.2.99",
        "127.0.0.2",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "2001:db8::99",
        "plant",
        "",
        "127.0.0.1.example",
    ):
        assert not is_own_address(address), address


def test_an_address_that_comes_and_goes_is_asked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(listening=(("0.0.0.0", 1805),))
    assert config.way("10.1.2.3") == ("10.1.2.3", 1801)
    monkeypatch.setattr(config_module, "is_own_address", lambda address: address == "10.1.2.3")
    assert config.way("10.1.2.3") == ("10.1.2.3", 1805)
    assert config.way("127.0.0.1") == ("127.0.0.1", 1801)


def _arrives(store: Path, queue: str) -> bytes:
    with Client(store) as client, client.queue(queue).receive(timeout=DEADLINE_S) as message:
        return message.body


@pytest.mark.rule("B-416")
def test_message_to_own_address_arrives_here_on_any_port(tmp_path: Path) -> None:
    with Client(tmp_path / "one", create=True) as client:
        client.create_queue("line1", transactional=True)
        sent = client.send("DIRECT=TCP:127.0.0.1\\private$\\line1", b"here", dead_letter=True)
    one = Serve(tmp_path / "one")
    try:
        assert _arrives(tmp_path / "one", "line1") == b"here"
        with Client(tmp_path / "one") as client:
            deadline = time.monotonic() + DEADLINE_S
            while (state := client.state(sent.message_id)) is None or state.answer != "received":
                assert time.monotonic() < deadline, state and state.answer
    finally:
        one.stop()


@pytest.mark.rule("B-413", "B-011")
async def test_next_hop_to_itself_is_reported_once_without_session(tmp_path: Path) -> None:
    async with serving(tmp_path, Config(try_connect_interval=200)) as server:
        peer = guids.guid_text(PEER_GUID)[1:-1].lower()
        server.manager.config.next_hops = {peer: ("127.0.0.1", server.port)}
        with client_beside(server.store.folder) as client:
            lost = client.send(f"PRIVATE={peer}\\7", b"x", dead_letter=True)
        await until(lambda: server.way.get("tries", 0) >= 3)
        await until(lambda: len(server.manager.links) == 0)
        [waiting] = status.outgoing(server.store, server.manager.report(), time.time())
        assert "this queue manager itself" in waiting["why"]
        assert sum("this queue manager itself" in line for line in server.log) == len(server.log) == 1
        with client_beside(server.store.folder) as client:
            state = client.state(lost.message_id)
            assert state
            assert state.answer == "waiting"


@pytest.mark.rule("B-011")
async def test_no_connection_to_own_address_for_absent_local_board(tmp_path: Path) -> None:
    """At port 1801 of its address is this queue manager itself."""
    async with serving(tmp_path, Config(), port=PORT) as server:
        board = Peer(PEER_GUID, direct("nowhere"))
        board.send(b"x")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        board.connect(tcp.now())
        while not list(server.manager.outgoing.ack_queues):
            writer.write(board.output(tcp.now()))
            board.receive(await reader.read(1 << 16), tcp.now())
        writer.transport.abort()
        await until(lambda: len(server.manager.links) == 0)
        assert not server.manager.wanted_hops()
        await until(lambda: server.manager.shown.get("outgoing"))
        assert not server.way
