"""FinalAcks for peers that do not come back: they are bounded, block nobody, and those given up make no lie."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mqqb import confirm, core
from ordack.broker.streams import LongStream
from ordack.config.config import Config
from ordack.config.settings import NEVER

from tests.support.host_peer import Peer, direct
from tests.support.host_world import START, WALL, Host, Wire, World, exchange, handshake, peer_of, world_of


def _purge_outgoing(host: Host) -> None:
    """An operator purges every outgoing queue."""
    with host.client() as client:
        for queue in client.store.outgoing.queues():
            client.order("withdraw", queue.identifier, 0, NEVER, [])


def _quota(host: Host, quota: int | None) -> None:
    with host.client() as client:
        client.order("set_quota", "line1", quota)


def _visit(world: World, host: Host, *peers: Peer) -> None:
    """Peers bring what they have, and are gone before they are answered."""
    wires = [Wire(world, peer, host) for peer in peers]
    while not all(wire.link.is_open for wire in wires):
        world.collect()
        world.deliver(1 << 20)
    world.collect()
    for wire, peer in zip(wires, peers, strict=True):
        peer.receive(bytes(wire.to_initiator), world.now)
        wire.to_initiator.clear()
    world.collect()
    world.deliver(1 << 20)
    for wire in wires:
        wire.cut()


@pytest.mark.rule("B-435")
def test_unfetched_ack_expires(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(acknowledgement_lifetime=100))
    peer = peer_of(1, "nowhere")
    world = world_of([host], [])
    peer.send(b"x", sent_time=WALL)
    _visit(world, host, peer)
    world.pass_time(99_000)
    assert len(host.store.outgoing.messages()) == 1
    world.pass_time(2000)
    assert host.store.outgoing.queues() == []
    assert sum("nobody has fetched" in line for line in host.log) == 1


@pytest.mark.rule("B-435")
def test_all_final_acks_together_are_bounded_and_the_oldest_go(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_final_acks=10))
    peers = [peer_of(number, "nowhere") for number in range(1, 5)]
    world = world_of([host], [])
    for peer in peers:
        for _ in range(4):
            peer.send(b"x")
        _visit(world, host, peer)
    assert len(host.store.outgoing.messages()) == 16
    world.pass_time(1000)
    assert [(queue.peer, len(queue.stream.table)) for queue in host.manager.outgoing.ack_queues] == [
        (peers[1].guid, 2),
        (peers[2].guid, 4),
        (peers[3].guid, 4),
    ]
    assert len(host.store.outgoing.messages()) == 10


def _purged(world: World, host: Host, peer: Peer, count: int) -> None:
    """A peer sends so many messages and leaves; then its queue is purged."""
    for _ in range(count):
        peer.send(b"x", journal=core.USER_JN)
    Wire(world, peer, host)
    exchange(world)
    while not peer.is_settled:
        exchange(world)
        world.pass_time(600)
    world.wires[0].cut()
    assert len(host.content("line1")) == count
    with host.client() as client:
        assert client.purge_queue("line1") == count
    assert len(host.store.outgoing.messages()) == count
    world.pass_time(100)


@pytest.mark.rule("B-435", "B-340", "B-305")
def test_final_acks_for_absent_peer_wait_on_disk_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LongStream, "ahead", 40)
    monkeypatch.setattr(LongStream, "low", 20)
    host = Host(tmp_path)
    peer = peer_of(1)
    world = world_of([host], [])
    _purged(world, host, peer, 500)
    for _ in range(2):
        [queue] = host.manager.outgoing.ack_queues
        assert (len(queue.stream.table), queue.stream.waiting) == (40, 500)
        host.restart(world.now)
    most = 0
    told: list[int] = []
    world.peers = [peer]
    handshake(world)
    while host.manager.outgoing.ack_queues:
        most = max([most, *(len(queue.stream.table) for queue in host.manager.outgoing.ack_queues)])
        exchange(world)
        told += [message for message in peer.rejected if message not in told]
        world.pass_time(100)
    assert told == list(range(1, 501))
    assert set(peer.rejected.values()) == {confirm.NACK_Q_PURGED}
    assert most < 250, "what is under way, and what is sent next"
    assert host.store.outgoing.messages() == []


@pytest.mark.rule("B-435", "B-285", "B-151")
def test_unread_final_acks_block_only_rejected_messages_of_peer(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_peer_final_acks=5))
    deaf, good = peer_of(1, "nowhere"), Peer(b"\1" * 16, direct("line1"), time_stamp=200)
    world = world_of([host], [deaf])
    for _ in range(5):
        deaf.send(b"x")
    handshake(world)
    world.deliver(1 << 20)
    for _ in range(5):
        deaf.send(b"x")
    for _ in range(5):  # it does not read
        world.collect()
        world.wires[0].to_initiator.clear()
        world.deliver(1 << 20)
        world.pass_time(100)
    assert len(host.store.outgoing.messages()) == 5
    assert sum("too many FinalAcks wait for the peer" in line for line in host.log) == 1
    assert not any("session closed" in line for line in host.log)
    Wire(world, good, host)
    good.send(b"good")
    while not good.is_settled:
        world.collect()
        world.wires[0].to_initiator.clear()
        world.deliver(1 << 20)
        world.pass_time(100)
        assert world.now < START + 20_000
    assert host.content("line1") == [b"good"]
    world.wires[0].cut()  # and comes back
    world.settle()
    assert good.rejected | deaf.rejected == dict.fromkeys(range(1, 11), 0x8000)  # they are one queue manager


@pytest.mark.slow
@pytest.mark.rule("C-84", "B-115", "A-15", "B-151")
@pytest.mark.parametrize("seed", range(8))
def test_rejected_message_is_never_reported_stored(tmp_path: Path, seed: int) -> None:
    """Sessions break, FinalAcks are purged, the queue manager restarts, the queue has room and has none: in the end
    each message was told of, and what was told is true."""
    pick = random.Random(seed)
    host = Host(tmp_path)
    peer = peer_of(1, pick.choice(("line1", "line1", "nowhere")))
    world = World(seed, [host], [peer])
    for _ in range(pick.randint(5, 60)):
        action = pick.randrange(9)
        if action < 3:
            _quota(host, pick.choice((0, None)))
            peer.send(b"%d" % peer.next_message_id)
        elif action == 3:
            world.connect_all()
        elif action == 4 and world.wires:
            world.wires[0].cut()
        elif action == 5 and not world.wires:
            _visit(world, host, peer)
        elif action == 8:
            _purge_outgoing(host)
            world.pass_time(1000)
        elif action == 6 and pick.random() < 0.3:
            host.restart(world.now, snapshot=True)
        else:
            world.collect()
            world.deliver(pick.choice((50, 700, 1 << 20)))
            world.pass_time(pick.choice((1, 300, 700)))
    world.settle()
    there = [int(body) for body in host.content("line1")]
    told = set(peer.acked) | peer.rejected.keys()
    assert there == sorted(set(there))
    assert told == set(range(1, peer.next_message_id))
    for message_id in peer.acked:
        assert message_id in there or message_id in peer.rejected, f"{message_id} was called stored"
    for message_id, message_class in peer.rejected.items():  # 0x8002: nobody knows
        assert message_id not in there or message_class == 0x8002
    host.store.close()
