"""Who may connect, who may write to a queue, how many sessions an address may have."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest
from mqqb import guids
from ordack.broker import status
from ordack.client import Client
from ordack.config.config import Access, Config, Networks, parse_network
from ordack.store import ALLOW_LIST, LIMIT, TLS

from tests.host.sockets import serving, until
from tests.support.command import Serve
from tests.support.host_peer import Peer
from tests.support.host_world import Host, exchange, peer_of, world_of

HERE = Networks((parse_network("10.0.0.0/28"), parse_network("fd00::/8")))
OFFICE = Networks((parse_network("192.168.0.0/16"),))
ONE, TWO = bytes([1]) * 16, bytes([2]) * 16
DENIED = 0x8004


# ---- addresses -----------------------------------------------------------------------------------------


def test_non_address_matches_no_network() -> None:
    assert "press7" not in Networks((parse_network("0.0.0.0/0"), parse_network("::/0")))
    assert "fe80::1%eth0" in Networks((parse_network("fe80::/10"),))
    assert "127.0.0.1" not in Networks()


# ---- queues --------------------------------------------------------------------------------------------


def test_access_refusal_names_the_unmet_condition() -> None:
    anybody = Access()
    assert anybody.refusal("192.0.2.1", ONE) == anybody.refusal("press7", ONE) == ""
    access = Access(HERE, frozenset({"press7"}), frozenset({ONE}))
    assert access.refusal("10.0.0.7", ONE) == access.refusal("press7", ONE) == access.refusal("fd00::1", ONE) == ""
    assert access.refusal("10.0.0.16", ONE) == "10.0.0.16 is not in allow-addresses"
    assert access.refusal("press8", ONE) == "press8 is not in allow-addresses"
    assert access.refusal("10.0.0.7", TWO) == f"{guids.guid_text(TWO)} is not in allow-sources"
    assert Access(sources=frozenset()).refusal("10.0.0.7", ONE)
    assert Access(Networks()).refusal("10.0.0.7", ONE)


@pytest.mark.rule("B-374", "C-58", "B-115", "B-262")
@pytest.mark.parametrize(
    "access", [Access(sources=frozenset({ONE})), Access(OFFICE), Access(HERE, sources=frozenset({ONE}))]
)
def test_write_without_access_right_is_rejected_and_reported(tmp_path: Path, access: Access) -> None:
    """Also where the stream has gone on to the refused messages when the right is given."""
    host = Host(tmp_path, Config(access={"line1": access}))
    friend, stranger = peer_of(1), peer_of(2)
    world = world_of([host], [friend, stranger])
    sent = [friend.send(b"friend"), stranger.send(b"stranger"), stranger.send(b"again")]
    exchange(world)
    is_known = access.refusal("10.0.0.9", ONE) == ""  # the address of all peers in this world
    assert host.content("line1") == ([b"friend"] if is_known else [])
    assert friend.rejected == ({} if is_known else {sent[0]: DENIED})
    assert stranger.rejected == {sent[1]: DENIED, sent[2]: DENIED}
    assert any("of line1 (class 0x8004 NACK_ACCESS_DENIED)" in line for line in host.log)
    told = host.manager.report()
    assert told["refused"] == {"connections": {}, "messages": {"0x8004 NACK_ACCESS_DENIED": 2 if is_known else 3}}
    refused_at = told["refused_at"]
    assert refused_at == {"0x8004 NACK_ACCESS_DENIED": world.wall}
    host.manager.config.access = {}
    stranger.send(b"later")
    world.pass_time(1000)
    exchange(world)
    assert host.content("line1")[-1] == b"later"
    assert host.manager.report()["refused_at"] == refused_at, "nothing was refused since"
    host.store.close()


@pytest.mark.rule("B-374")
def test_queue_access_right_overrides_the_general_one(tmp_path: Path) -> None:
    access = {"line1": Access(), "line2": Access(sources=frozenset({TWO}))}
    config = Config(access={**access, "*": Access(sources=frozenset())})
    host = Host(tmp_path, config)
    with host.client() as client:
        client.create_queue("Line2", transactional=True)
        client.create_queue("line3", transactional=True)
    ways = ((1, "LINE1"), (1, "line2"), (2, "line2"), (2, "line3"), (1, "nowhere"))
    peers = [peer_of(number, queue) for number, queue in ways]
    for stamp, peer in enumerate(peers, 100):
        peer.stream = Peer(peer.guid, peer.destination, time_stamp=stamp).stream
        world = world_of([host], [peer])
        peer.send(b"x")
        exchange(world)
        world.wires[0].cut()
    assert [list(peer.rejected.values()) for peer in peers] == [[], [DENIED], [], [DENIED], [0x8000]]
    assert (host.content("line1"), host.content("Line2")) == ([b"x"], [b"x"])
    host.store.close()


@pytest.mark.rule("B-374", "B-349")
@pytest.mark.parametrize("delivery", ["recoverable", "express"])
def test_messages_that_are_not_transactional_are_refused_too(tmp_path: Path, delivery: str) -> None:
    host = Host(tmp_path, Config(access={"plain": Access(sources=frozenset({TWO}))}))
    stranger, friend = peer_of(1, "plain"), peer_of(2, "plain")
    world = world_of([host], [stranger, friend])
    stranger.send(b"stranger", delivery)
    friend.send(b"friend", delivery)
    exchange(world)
    assert host.content("plain") == [b"friend"]
    assert not stranger.received
    host.store.close()


def test_applications_of_this_machine_may_always_write(tmp_path: Path) -> None:
    (tmp_path / "ordack.toml").write_text("[queues.'*']\nallow-sources = []\nallow-addresses = []\n")
    with Client(tmp_path, create=True) as client:
        client.create_queue("line1", transactional=True)
        running = Serve(tmp_path)
        client.send("line1", b"x")
        assert [message.body for message in client.queue("line1").peek()] == [b"x"]
    running.stop()


# ---- listeners -----------------------------------------------------------------------------------------


async def test_address_outside_allow_list_is_refused_and_counted(tmp_path: Path) -> None:
    began, allow = int(time.time()), Networks((parse_network("127.0.0.2"),))
    async with serving(tmp_path, Config(), allow=allow) as server:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
        await until(lambda: server.manager.links.counters.sessions_refused == {LIMIT: 0, ALLOW_LIST: 5, TLS: 0})
        told = server.manager.report()
        assert told["refused_at"][ALLOW_LIST] >= began
        assert "from 127.0.0.1: it is not in the allow-list" in status.refused_text(told)
        [line] = server.log
        assert line.startswith(f"127.0.0.1: refused, it is not in the allow-list of 127.0.0.1:{server.port}")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
        await until(lambda: server.manager.links)
        writer.close()


async def test_ping_from_disallowed_address_is_not_answered(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = Config(answer_pings=True, ping_port=port)
    loop = asyncio.get_running_loop()
    request = b"\xfc\xff\x48\x55" + bytes(4) + ONE
    allow = Networks((parse_network("127.0.0.2"),))
    async with serving(tmp_path, config, allow=allow):
        with contextlib.ExitStack() as stack:
            askers = []
            for address in ("127.0.0.1", "127.0.0.2"):
                asker = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                asker.setblocking(False)
                asker.bind((address, 0))
                await loop.sock_sendto(asker, request, ("127.0.0.1", port))
                askers.append(asker)
            async with asyncio.timeout(60):
                assert len(await loop.sock_recv(askers[1], 100)) == 24
            with pytest.raises(BlockingIOError):  # it was asked first
                askers[0].recv(100)
