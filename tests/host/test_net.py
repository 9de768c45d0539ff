"""The queue manager on real sockets of the loopback network: whom it calls, how, when again, and what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import struct
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from mqqb.connection import OPEN
from mqqb.session import Session, Settings
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.config.config import Config
from ordack.server import ping, tcp
from ordack.server.listener import TAKEN_AT_ONCE, Listener, Listeners
from ordack.store import Store

from tests.host import sockets
from tests.host.sockets import DEADLINE_S, NAME, PEER_GUID, Destination, ping_port, serving, until
from tests.support.beside import client_beside
from tests.support.host_peer import Peer, direct


@pytest.fixture(autouse=True, params=[True, False], ids=["read in C", "read by asyncio"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "reads_in_c", request.param)


def udp(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    datagrams.bind((host, port))
    return datagrams


async def ask(asker: socket.socket, port: int, cookie: int = 7) -> tuple[int, int, int, bytes]:
    """Flags, signature, cookie and GUID of the answer to a ping."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendto(asker, struct.pack("<HHI", 0xFFFC, 0x5548, cookie) + PEER_GUID, ("127.0.0.1", port))
    async with asyncio.timeout(DEADLINE_S):
        answer, source = await loop.sock_recvfrom(asker, 100)
    assert source == ("127.0.0.1", port)
    return struct.unpack("<HHI16s", answer)


def names(monkeypatch: pytest.MonkeyPatch, *found: list[str] | Exception) -> list[str]:
    """What the name service answers, one time after the other, the last for ever. The names that were asked for."""
    answers = list(found)
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "plant.test":
            return real(host, port, *arguments, **options)
        asked.append(host)
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


# ---- listening ----------------------------------------------------------------------------------


async def test_bytes_that_a_peer_does_not_read_follow_later(tmp_path: Path) -> None:
    """More than the kernel keeps: they leave when the peer reads, and the end waits for them."""
    async with serving(tmp_path, Config()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 26)
        await until(lambda: server.manager.links)
        link = server.manager.links[0]
        data = bytes(range(256)) * (1 << 16)
        link.session._out.append(data)
        link.session.close("B-163", "test", keep_output=True)
        server.manager.links.end(link)
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == data
        writer.close()


@pytest.mark.parametrize("busy", [4, 40])
async def test_every_board_of_a_busy_fleet_is_served(tmp_path: Path, busy: int) -> None:
    async with serving(tmp_path, Config()) as server, asyncio.timeout(DEADLINE_S):
        peers = [Peer(bytes([place + 1]) * 16, direct("line1")) for place in range(busy)]

        async def play(peer: Peer) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            peer.connect(tcp.now())
            while len(peer.acked) < 5:
                writer.write(peer.output(tcp.now()))
                peer.receive(await reader.read(1 << 16), tcp.now())
                if peer.session and peer.session.state == OPEN and peer.is_settled and len(peer.acked) < 5:
                    peer.send(b"reading")
            writer.close()

        await asyncio.gather(*map(play, peers))
        assert server.store.queues.find("line1").messages == 5 * busy


@pytest.mark.rule("B-218", "B-155")
async def test_accepted_connection_without_request_times_out(tmp_path: Path) -> None:
    async with serving(tmp_path, Config(session=Settings(initialization_timeout=300))) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server.manager.links)
        assert server.manager.links[0].session.state == "WAITING_EC_MSG"
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        assert not server.manager.links
        assert any("B-155" in line for line in server.log)
        writer.close()


@pytest.mark.rule("B-206", "B-202", "B-006")
async def test_ping_reports_session_limit_and_connection_is_refused(tmp_path: Path) -> None:
    config = Config(max_sessions=1, answer_pings=True, ping_port=ping_port())
    async with serving(tmp_path, config) as server:
        with udp() as one, udp() as other:
            for asker, cookie in ((one, 1), (other, 2), (one, 3)):
                assert await ask(asker, config.ping_port, cookie) == (0, 0x5548, cookie, server.store.guid)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await until(lambda: server.manager.links)
            assert (await ask(one, config.ping_port))[0] == 2
            second, its_writer = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(second.read(), DEADLINE_S) == b""
            its_writer.close()
            peer = Peer(PEER_GUID, direct("line1"))
            peer.connect(tcp.now())
            peer.send(b"x")
            while not peer.is_settled:  # the first is as well as before
                writer.write(peer.output(tcp.now()))
                with contextlib.suppress(TimeoutError):
                    peer.receive(await asyncio.wait_for(reader.read(1 << 16), 0.05), tcp.now())
            writer.close()
            await until(lambda: not server.manager.links)
            assert (await ask(one, config.ping_port))[0] == 0


@pytest.mark.rule("B-006")
async def test_ping_answers_need_setting_and_listening_address(tmp_path: Path) -> None:
    port = ping_port()
    for answers in (False, True):
        async with serving(tmp_path / str(answers), Config(answer_pings=answers, ping_port=port)):
            with udp("127.0.0.1") as asker:
                asker.connect(("127.0.0.2" if answers else "127.0.0.1", port))
                asker.send(bytes(24))
                with pytest.raises(ConnectionRefusedError):
                    asker.recv(24)


async def test_occupied_ping_port_is_logged_and_serve_continues(tmp_path: Path) -> None:
    with udp() as taken:
        port = taken.getsockname()[1]
        async with serving(tmp_path, Config(answer_pings=True, ping_port=port)) as server:
            assert server.log == [
                f"pings to 127.0.0.1 are not answered: UDP port {port}, {os.strerror(errno.EADDRINUSE)}"
            ]
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.close()


@pytest.mark.rule("B-435")
async def test_ping_answer_limit_stops_ping_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ping, "ANSWERS_S", 3600.0)
    monkeypatch.setattr(ping, "ANSWERS_MAX", 3)
    port = ping_port()
    async with serving(tmp_path, Config(answer_pings=True, ping_port=port)):
        with udp() as asker:
            for cookie in range(3):
                await ask(asker, port, cookie)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await ask(asker, port)


# ---- calling ------------------------------------------------------------------------------------


@pytest.mark.rule("B-193", "B-204", "B-211", "B-216", "B-298")
async def test_direct_name_connects_by_host_and_reports_each_step(tmp_path: Path) -> None:
    with Store(tmp_path / "default", create=True) as store, Client(store.folder) as client:
        client.send(NAME, b"x")
        assert Manager(store, tcp.now()).wanted_hops() == {("plant", 1801)}
    async with Destination().listening() as peer:
        async with serving(tmp_path / "it", Config(next_hops={"plant": ("127.0.0.1", peer.port)})) as server:
            assert not server.way
            server.send(b"one")
            await until(lambda: peer.bodies == [[b"one"]])
            assert peer.requests[0].header.server_guid == bytes(16)
            assert peer.requests[0].header.client_guid == server.store.guid
            assert server.statuses() == ["InProcess", "EstablishPacketReceived", "Established"]
            assert server.way["state"] == "Connected"
            assert server.way["next_hops"] == [f"127.0.0.1:{peer.port}"]
            peer.writer.close()
            again = ["UnknownFailure", "InProcess", "EstablishPacketReceived", "Established"]
            await until(lambda: server.statuses()[3:] == again)


async def test_the_first_message_to_a_destination_waits_for_no_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "POLL_INTERVAL_S", 3600.0)

    def send() -> None:
        with Client(tmp_path / "it") as client:
            client.send(NAME, b"one")

    async with Destination().listening() as peer:
        async with serving(tmp_path / "it", Config(next_hops={"plant": ("127.0.0.1", peer.port)})):
            await asyncio.to_thread(send)
            await until(lambda: peer.bodies == [[b"one"]])


@pytest.mark.rule("B-145", "B-196", "B-216", "B-191")
async def test_the_addresses_of_a_name_are_tried_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = names(monkeypatch, ["127.0.0.3", "127.0.0.4", "127.0.0.2"])
    async with Destination().listening("127.0.0.2") as peer:
        async with serving(tmp_path, Config(next_hops={"plant": ("plant.test", peer.port)})) as server:
            server.send(b"one")
            await until(lambda: peer.bodies == [[b"one"]])
            assert server.way["next_hops"] == [f"127.0.0.2:{peer.port}"]
            tried = [event["addresses"][0] for event in server.way["history"] if event["status"] == "InProcess"]
            failed = [event["addresses"][0] for event in server.way["history"] if event["error"] == 0x8007274D]
            assert (tried, failed) == (["127.0.0.3", "127.0.0.4", "127.0.0.2"], ["127.0.0.3", "127.0.0.4"])
            assert len(asked) == 1
            assert [line.partition(": ")[2].partition(",")[0] for line in server.log] == [
                "no connection",
                "connected after 2 failed attempts",
            ]


@pytest.mark.rule("B-300", "B-299")
async def test_broken_connection_resends_all_in_flight_in_order(tmp_path: Path) -> None:
    peer = Destination(end=lambda _session, bodies: bool(bodies) and len(peer.bodies) == 1)
    async with peer.listening():
        async with serving(tmp_path, Config(next_hops={"plant": ("127.0.0.1", peer.port)})) as server:
            bodies = [b"%d" % number + bytes(9000) for number in range(200)]  # more than buffers and window take
            server.send(*bodies)
            await until(lambda: len(peer.bodies) == 2 and len(peer.bodies[1]) == 200)
            assert 0 < len(peer.bodies[0]) < 200
            assert peer.bodies[1] == bodies
            assert len(server.manager.links) == 1


# ---- asking before ------------------------------------------------------------------------------


@pytest.mark.rule("B-006", "B-139", "B-198", "B-199", "B-201", "B-204")
@pytest.mark.parametrize("answer", ["accept", "refuse", "nobody", "stale, then accept"])
async def test_a_ping_goes_before_the_first_attempt_only(tmp_path: Path, answer: str) -> None:
    peer = Destination()
    port = ping_port()
    loop = asyncio.get_running_loop()
    with udp("127.0.0.2", port) as service:
        async with peer.listening("127.0.0.2"):
            config = Config(send_pings=True, ping_port=port, next_hops={"plant": ("127.0.0.2", peer.port)})
            async with serving(tmp_path, config) as server:
                server.send(b"one")
                async with asyncio.timeout(DEADLINE_S):
                    request, source = await loop.sock_recvfrom(service, 100)
                assert request == struct.pack("<HHI", 0, 0x5548, 1) + server.store.guid
                assert not peer.times
                asked = loop.time()
                if answer == "stale, then accept":
                    for wrong in (struct.pack("<HHI", 0, 0x5548, 0), struct.pack("<HHI", 0, 0x5547, 1)):
                        await loop.sock_sendto(service, wrong + PEER_GUID, source)
                if answer != "nobody":
                    flags = 2 if answer == "refuse" else 0
                    await loop.sock_sendto(service, struct.pack("<HHI", flags, 0x5548, 1) + PEER_GUID, source)
                await until(lambda: peer.bodies == [[b"one"]])
                failed = answer in ("refuse", "nobody")
                se = peer.requests[0].header.operating_system & 0x0100
                assert (se == 0) == (not failed)  # the attempt that came through was pinged for, or was a retry
                assert server.statuses() == ["PingFailure"] * failed + [
                    "InProcess",
                    "EstablishPacketReceived",
                    "Established",
                ]
                if answer == "nobody":
                    assert peer.times[0] - asked >= 0.9  # B-139, but for the clock's grain
                with pytest.raises(BlockingIOError):
                    service.recv(100)


@pytest.mark.rule("B-192", "B-200")
async def test_while_one_ping_waits_for_its_answer_others_do_without(tmp_path: Path) -> None:
    port = ping_port()
    with udp("127.0.0.2", port) as silent:
        async with Destination().listening("127.0.0.2") as slow, Destination().listening() as quick:
            hops = {"plant": ("127.0.0.2", slow.port), "other": ("127.0.0.1", quick.port)}
            config = Config(send_pings=True, ping_port=port, next_hops=hops)
            async with serving(tmp_path, config) as server:
                server.send(b"one")
                async with asyncio.timeout(DEADLINE_S):
                    await asyncio.get_running_loop().sock_recvfrom(silent, 100)
                with client_beside(server.store.folder) as client:
                    client.send("DIRECT=OS:other\\private$\\q", b"two")
                await until(lambda: quick.bodies == [[b"two"]])
                await until(lambda: slow.bodies == [[b"one"]])
                history = {hop[0]: way["history"][0]["status"] for hop, way in server.manager.connections().items()}
                assert history == {"127.0.0.2": "PingFailure", "127.0.0.1": "InProcess"}


# ---- slow peers ---------------------------------------------------------------------------------


def _narrow() -> socket.socket:
    """Where a test listens that reads by itself: little of what is sent waits there."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    listener.setblocking(False)
    return listener


@pytest.mark.rule("B-435")
async def test_peer_that_never_reads_is_dropped_at_unwritten_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the kernel takes no more, the next message stays here. No clock runs that could end the session, too."""
    monkeypatch.setattr(tcp, "now", lambda: 0)
    monkeypatch.setattr(tcp, "POLL_INTERVAL_S", 0.001)
    loop = asyncio.get_running_loop()
    with _narrow() as listener:
        hops = {"plant": listener.getsockname()}
        async with serving(tmp_path, Config(next_hops=hops, max_unwritten=1 << 16)) as server:
            server.send(*([bytes(4_000_000)] * 8))
            async with asyncio.timeout(DEADLINE_S):
                reader, _ = await loop.sock_accept(listener)
                session = Session(False, PEER_GUID, 0)
                await until(lambda: server.manager.links)
                [link] = server.manager.links
                with reader:
                    reader.setblocking(False)
                    while session.state != OPEN:
                        session.receive_data(await loop.sock_recv(reader, 1 << 9), 0)
                        await loop.sock_sendall(reader, session.data_to_send())
                    await until(lambda: not link.writable)
                    await asyncio.sleep(0)  # the end of a transport is told in the next turn
                    assert link not in server.manager.links


def test_connection_flood_leaves_time_for_open_connections() -> None:
    turns = [0]  # connections that are taken in each

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            turns[-1] += 1
            transport.close()

    async def flood(listeners: Listeners) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.create_connection(listeners.places[0], DEADLINE_S))
            await listeners.start(mock.Mock(protocol=lambda _listener: Taken(), listen=lambda _listener: None))
            async with asyncio.timeout(DEADLINE_S):
                while sum(turns) < 200:
                    turns.append(0)
                    await asyncio.sleep(0)

    with Listeners([Listener("127.0.0.1", 0)]) as listeners:
        asyncio.run(flood(listeners))
    assert max(turns) <= 3 * TAKEN_AT_ONCE
