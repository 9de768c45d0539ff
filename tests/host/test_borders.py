"""Limits and borders of which a change went unnoticed: who gives way, what is forgotten, what a purge leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mqqb import core, guid_names, headers, reader
from mqqb.streams import Entry
from ordack.client import Empty
from ordack.config.config import Config
from ordack.config.names import DEAD_LETTER, DEAD_XACT

from tests.support.host_peer import Peer, direct
from tests.support.host_world import START, WALL, Host, exchange, peer_of, send_from, two_hosts, world_of


@pytest.mark.rule("B-435")
def test_of_streams_that_lead_nowhere_the_oldest_are_forgotten(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_unknown_streams=4))
    world = world_of([host], [])
    for number in range(1, 6):
        peer = peer_of(number, "nowhere")
        peer.send(b"x", sent_time=WALL)
        world.peers = [peer]
        exchange(world)
        for wire in list(world.wires):
            wire.cut()
        world.pass_time(2000)
    assert sorted(row.source[0] for row in host.store.memory.incoming()) == [4, 5]
    host.store.close()


@pytest.mark.rule("B-346")
def test_a_session_stays_slow_while_another_queue_of_it_is_on_hold(tmp_path: Path) -> None:
    world, _, sender = two_hosts(tmp_path)
    names = [f"direct=os:plant\\private$\\{queue}" for queue in ("line1", "plain")]
    send_from(sender, b"1")
    send_from(sender, b"2", queue="plain")
    world.pass_time(100)
    exchange(world)
    with sender.client() as client:
        for name in names:
            assert client.store.outgoing.set_on_hold(name, True)
        world.pass_time(100)
        [link] = [link for link in sender.manager.links if link.is_open]
        assert link.session.window.is_paused
        client.store.outgoing.set_on_hold(names[0], False)
        world.pass_time(100)
        assert link.session.window.is_paused
        client.store.outgoing.set_on_hold(names[1], False)
        world.pass_time(100)
        assert not link.session.window.is_paused


@pytest.mark.rule("B-407", "B-340")
def test_a_purge_leaves_no_dead_letter_and_an_expiry_does(tmp_path: Path) -> None:
    host = Host(tmp_path)
    with host.client() as client:
        client.send("plain", b"purged", delivery="recoverable", dead_letter=True, ttbr=100)
        client.purge_queue("plain")
        assert host.content(DEAD_LETTER) == []
        client.send("plain", b"late", delivery="recoverable", dead_letter=True, ttbr=5)
    host.manager.poll(START + 4000, WALL + 4)
    assert host.content("plain") == [b"late"]  # B-402: not before its time
    host.manager.poll(START + 5000, WALL + 5)
    assert host.content(DEAD_LETTER) == [b"late"]
    host.store.close()


@pytest.mark.rule("B-402", "B-144")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable"])
@pytest.mark.parametrize(("ttbr", "late", "there"), [(5, 4, True), (5, 5, False), (0, 0, False)])
def test_the_last_second_of_a_message_is_the_one_before_its_time_is_over(
    tmp_path: Path, delivery: str, ttbr: int, late: int, there: bool
) -> None:
    """Also if nothing has removed it yet."""
    host = Host(tmp_path)
    queue = "line1" if delivery == "transactional" else "plain"
    with host.client() as client:
        client.send(queue, b"x", delivery=delivery, ttbr=ttbr)
    with host.client(WALL + late) as client:
        assert [message.body for message in client.queue(queue).peek()] == [b"x"] * there
        taken = client.queue(queue).receive()
        if there:
            with taken as message:
                assert message.body == b"x"
        else:
            with pytest.raises(Empty):
                taken.__enter__()
    host.store.close()


@pytest.mark.rule("B-265", "B-311", "B-401")
@pytest.mark.parametrize(("seconds", "arrives"), [(5, True), (6, False)])
@pytest.mark.parametrize("delivery", ["express", "recoverable"])
@pytest.mark.parametrize("polled", [True, False])
def test_the_last_second_in_which_a_message_leaves_is_the_last_in_which_it_is_accepted(
    tmp_path: Path, delivery: str, seconds: int, arrives: bool, polled: bool
) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    with sender.client() as client:
        client.send("DIRECT=OS:plant\\private$\\plain", b"x", delivery=delivery, ttrq=5, dead_letter=True)
    world.pass_time(1000 * seconds if polled else 0)
    world.now = START + 1000 * seconds
    exchange(world)
    assert (receiver.content("plain"), sender.content(DEAD_LETTER)) == (([b"x"], []) if arrives else ([], [b"x"]))


@pytest.mark.rule("B-284")
@pytest.mark.parametrize("missing", [0, 1])
def test_a_quota_takes_what_fits_to_the_byte(tmp_path: Path, missing: int) -> None:
    host = Host(tmp_path)
    peer = peer_of(1)
    peer.send(b"x", sent_time=WALL)
    size = len(peer.packets[1])
    with host.client() as client:
        client.store.queues.set_quota("line1", 2 * size - missing)
    for _ in range(2):
        peer.send(b"x", sent_time=WALL)
    world = world_of([host], [peer])
    world.settle()
    assert len(host.content("line1")) == 2 - missing
    assert peer.rejected == dict.fromkeys(range(3 - missing, 4), 0x8003)
    host.store.close()


@pytest.mark.rule("B-283", "B-285")
@pytest.mark.parametrize(("queue", "delivery"), [("line1", "transactional"), ("plain", "recoverable")])
@pytest.mark.parametrize("missing", [0, 1])
def test_the_quota_of_the_queue_manager_takes_what_fits_to_the_byte(
    tmp_path: Path, queue: str, delivery: str, missing: int
) -> None:
    peer = peer_of(1, queue)
    peer.send(b"x", delivery, sent_time=WALL)
    host = Host(tmp_path, Config(quota=len(peer.packets[1]) - missing))
    exchange(world_of([host], [peer]))
    assert host.content(queue) == [b"x"] * (1 - missing)
    assert ("B-285" in " ".join(host.log)) == bool(missing)
    host.store.close()


class Behind:
    """A source whose messages reach the host through a router, and what the router gets for it."""

    def __init__(self, host: Host, queue: str = "line1", **properties: Any) -> None:
        self.host = host
        self.source = peer_of(1, queue)
        self.router = Peer(b"\2" * 16, direct(queue))
        self.seen: list[headers.UserMessage | reader.OrderAck | headers.FinalAck] = []
        self.router._message = lambda packet, _now: self.seen.append(packet)  # type: ignore[method-assign]
        self.world = world_of([host], [self.router])
        message_id = self.source.send(b"x", sent_time=WALL, **properties)
        self.router.packets[message_id] = bytearray(self.source.packets[message_id])
        self.router.stream.append(Entry(message_id, message_id))
        self.run()

    def run(self) -> None:
        for _ in range(4):
            exchange(self.world)
            self.world.pass_time(600)

    def is_addressed(self, user: headers.UserHeader) -> bool:
        """By the source's GUID, not by the router's address."""
        return user.flags & core.USER_DQ != core.USER_DQ and bytes(user.queue_manager_address) == self.source.guid


@pytest.mark.rule("A-20", "B-361", "B-362", "B-351")
@pytest.mark.parametrize(("queue", "message_class"), [("line1", 0xC001), ("plain", 0x8009)])
def test_what_a_source_behind_a_router_is_told_of_a_message_goes_to_the_source_through_the_router(
    tmp_path: Path, queue: str, message_class: int
) -> None:
    """It is purged there after a restart, or refused at once."""
    host = Host(tmp_path)
    behind = Behind(
        host,
        queue,
        journal=core.USER_JN,
        acknowledge=headers.WANT_NA | headers.WANT_NR,
        admin=guid_names.PrivateQueueFormatName(b"\1" * 16, 9),
    )
    if queue == "line1":
        host.restart(behind.world.now, snapshot=True)
        with host.client() as client:
            client.purge_queue("line1")
        behind.run()
    told = [packet for packet in behind.seen if not isinstance(packet, reader.OrderAck)]
    found = {type(packet): packet if isinstance(packet, headers.UserMessage) else packet.message for packet in told}
    assert len(told) == 2
    assert found.keys() == {headers.FinalAck, headers.UserMessage}
    for message in found.values():
        assert message.properties.message_class == message_class
        assert behind.is_addressed(message.user)
    host.store.close()


@pytest.mark.rule("B-405", "B-265", "B-311")
@pytest.mark.parametrize(("queue", "delivery"), [("line1", "transactional"), ("plain", "recoverable")])
@pytest.mark.parametrize("seconds", [3, 11])
def test_a_time_to_reach_the_queue_of_nothing_is_as_long_as_connecting_may_take(
    tmp_path: Path, queue: str, delivery: str, seconds: int
) -> None:
    """The peer is reached after three seconds, or is off."""
    world, receiver, sender = two_hosts(tmp_path)
    with sender.client() as client:
        client.send(f"DIRECT=OS:plant\\private$\\{queue}", b"x", delivery=delivery, ttrq=0, dead_letter=True)
    for _ in range(seconds):
        world.pass_time(1000)
    for _ in range(4):
        exchange(world)
        world.pass_time(600)
    dead = sender.content(DEAD_LETTER) + sender.content(DEAD_XACT)
    assert (receiver.content(queue), dead) == (([b"x"], []) if seconds == 3 else ([], [b"x"]))
