"""The queue manager over wires that only exist in memory: what it stores, what it answers, and that no cut of a wire
and no death of a manager at any statement of its store loses, repeats or reorders a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mqqb import connection, guids, headers
from mqqb.handshake import SessionAck
from mqqb.names import DirectQueueFormatName
from mqqb.streams import Entry, OutgoingStream
from ordack.broker import status
from ordack.config.config import Config

from tests.host.outcomes import run
from tests.support.host_peer import Peer, direct
from tests.support.host_world import Host, Wire, exchange, handshake, packets_in, peer_of, world_of


@pytest.fixture
def exact(tmp_path: Path) -> Iterator[Host]:
    """A queue manager whose OrderAcks go out when the specification asks for them, and not earlier."""
    made = Host(tmp_path, Config(early_order_ack=0))
    yield made
    made.store.close()


# ---- what a message is answered with --------------------------------------------------------------


@pytest.mark.rule("B-002", "B-008", "B-137", "B-153", "B-358", "B-361", "B-287")
def test_messages_are_stored_in_order_and_acked_after_500_ms(exact: Host) -> None:
    host = exact
    peer = peer_of(1)
    world = world_of([host], [peer])
    for number in range(5):
        peer.send(b"%d" % number, priority=number)
    exchange(world)
    assert host.content("line1") == [b"0", b"1", b"2", b"3", b"4"]
    world.pass_time(499)
    exchange(world)
    assert peer.acked == []
    world.pass_time(1)
    exchange(world)
    assert peer.acked == [1, 2, 3, 4, 5]
    assert peer.order_acks == 1
    with host.client() as client:
        sequence = {message.tx_sequence_id for message in client.queue("line1").peek()}
        assert sequence == {100 << 32 | 1}


@pytest.mark.rule("B-113", "B-114", "B-099", "A-29")
def test_busy_stream_gets_order_ack_within_10_5_seconds(exact: Host) -> None:
    peer = peer_of(1)
    world = world_of([exact], [peer])
    for _ in range(36):
        peer.send(b"")
        exchange(world)
        world.pass_time(300)
    assert peer.order_acks == 1
    assert len(peer.acked) in (34, 35)


@pytest.mark.rule("B-115", "B-270")
def test_message_stored_before_queue_deletion_is_not_rejected(exact: Host) -> None:
    host = exact
    peer = peer_of(1)
    world = world_of([host], [peer])
    peer.send(b"1")
    exchange(world)
    with host.client() as client:
        client.delete_queue("line1")
    world.pass_time(500)
    world.collect()
    world.wires[0].to_initiator.clear()  # the OrderAck is lost: it is sent again after 30 s
    for _ in range(30):
        world.pass_time(1000)
    peer.send(b"2")
    world.settle()
    assert host.store.memory.incoming()[0].record[3] == 1
    assert (peer.acked, peer.rejected) == ([1], {2: 0x8000})


@pytest.mark.rule("B-019", "B-154")
def test_the_duplicate_filter_has_a_size_and_an_age(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(history_size=3, history_lifetime=10))
    peer = peer_of(1, "plain")
    world = world_of([host], [peer])
    for _ in range(5):
        peer.send(b"", "express")
    exchange(world)
    assert sorted(message_id for _, message_id, _ in host.store.memory.history()) == [3, 4, 5]
    world.pass_time(21_000)
    assert host.store.memory.history() == []
    host.store.close()


@pytest.mark.rule("B-435")
def test_sessions_are_limited_per_address_per_guid_and_in_total(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_sessions_per_address=2, max_sessions=3, max_sessions_per_guid=1))
    manager = host.manager
    links = [manager.accept("10.0.0.1", 0), manager.accept("10.0.0.1", 0)]
    assert manager.accept("10.0.0.1", 0) is None
    links.append(manager.accept("10.0.0.2", 0))
    for _ in range(100):
        assert manager.accept("10.0.0.3", 0) is None
    assert len(host.log) == 1  # one burst, one line
    assert manager.accept("10.0.0.3", 10_000) is None
    assert "101 refused" in host.log[-1]
    for link in links:
        assert link is not None
        manager.lost(link)
    peers = [peer_of(1), peer_of(1)]
    world = world_of([host], peers)
    Wire(world, peers[0], host)
    exchange(world)
    assert len(manager.links) == 1
    assert manager.links[0] is world.wires[0].link
    host.store.close()


@pytest.mark.rule("A-30", "B-011")
def test_order_ack_without_session_is_sent_on_next_session(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    peer.send(b"x")
    exchange(world)
    world.wires[0].cut()
    world.pass_time(5000)
    peer.stream.next_to_send = lambda: None  # type: ignore[method-assign]  # it sends nothing that could ask for one
    exchange(world)
    assert peer.acked == [1]


@pytest.mark.rule("B-260", "B-011", "A-30")
def test_order_ack_uses_only_session_that_sent_final_acks(exact: Host) -> None:
    host = exact
    peer, other = peer_of(1, "nowhere"), peer_of(1, "nowhere")  # two sessions of one queue manager
    world = world_of([host], [peer])
    for _ in range(2):
        peer.send(b"x")
    handshake(world)
    world.peers = [peer, other]
    handshake(world)  # the messages have come on the first; the FinalAcks go out on the second, unacknowledged so far
    for wire in world.wires:
        wire.to_initiator.clear()
    world.pass_time(500)
    for host_link, data, _ in host.manager.output():
        host.wires[host_link].to_initiator += data
    on_first, on_second = (
        [packet for packet in packets_in(wire.to_initiator) if isinstance(packet, connection.OrderAck)]
        for wire in world.wires
    )
    assert (len(on_first), len(on_second)) == (0, 1)
    assert other.rejected == {1: 0x8000, 2: 0x8000}


@pytest.mark.rule("B-011", "B-053")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable", "express"])
def test_pending_messages_use_newest_session_of_peer(host: Host, delivery: str) -> None:
    """The older one may be a connection that the peer knows to be gone, for all that is known here."""
    peers = peer_of(1), peer_of(1)
    world = world_of([host], [peers[0]])
    exchange(world)
    with host.client() as client:
        for body in (b"0", b"1"):
            client.send(f"PRIVATE={guids.guid_text(peers[0].guid)[1:-1]}\\1", body, delivery=delivery)
    world.pass_time(50)
    world.collect()
    late = world.wires[0]  # they are on their way there
    world.wires.clear()
    world.peers[0] = peers[1]
    exchange(world)
    assert [bytes(message.properties.body) for message in peers[1].received] == [b"0", b"1"]
    world.wires.append(late)  # and it was not gone
    exchange(world)
    assert peers[0].session
    peers[0].session.send_session_ack(world.now)
    while any(wire.link.session.window.in_flight for wire in world.wires):
        world.pass_time(1000)
        exchange(world)
    assert len(peers[0].received) == len(peers[1].received) == 2
    assert len(host.manager.links) == 2
    waiting = 2 if delivery == "transactional" else 0  # for their OrderAck
    assert len(host.store.outgoing.messages()) == waiting


@pytest.mark.rule("B-115", "B-260", "A-15", "A-30")
def test_order_ack_after_restart_waits_for_final_acks(host: Host) -> None:
    source, router = peer_of(1), Peer(b"\2" * 16, direct("line1"))
    with host.client() as client:
        client.store.queues.set_quota("line1", 1)
    for _ in range(3):
        message_id = source.send(b"x")
        router.packets[message_id] = bytearray(source.packets[message_id])
        router.stream.append(Entry(message_id, message_id))  # it only passes them on
    world = world_of([host], [router])
    handshake(world)
    world.deliver(1 << 20)  # all are rejected
    world.wires[0].cut()
    host.restart(world.now, snapshot=True)
    world.peers = [source]  # which comes by itself now: its messages are known, and nothing says that they were refused
    for _ in range(10):
        world.pass_time(200)
        exchange(world)
    assert (source.acked, source.rejected) == ([], {})
    world.peers = [router]
    for _ in range(10):
        world.pass_time(200)
        exchange(world)
    assert router.rejected == {1: 0x8003, 2: 0x8003, 3: 0x8003}


@pytest.mark.rule("B-099", "A-21", "B-270")
def test_two_names_of_one_queue_are_two_streams(host: Host) -> None:
    names = [DirectQueueFormatName(f"{address}\\private$\\line1") for address in ("TCP:127.0.0.1", "OS:localhost")] + [
        headers.PrivateQueueFormatNameId(host.store.queues.named("line1").identifier)
    ]
    # one source, a sequence for each name; the one that comes first has the highest
    peers = [Peer(b"\1" * 16, name, time_stamp=300 - number) for number, name in enumerate(names)]
    world = world_of([host], peers)
    for turn in range(3):
        for number, peer in enumerate(peers):
            peer.send(b"%d.%d" % (number, turn))
            exchange(world)
    world.settle()
    assert host.content("line1") == [b"%d.%d" % (number, turn) for turn in range(3) for number in range(3)]
    same = Peer(b"\1" * 16, DirectQueueFormatName("tcp:127.0.0.1\\PRIVATE$\\Line1"), time_stamp=300)
    same.packets, same.stream = peers[0].packets, peers[0].stream
    assert len(host.store.memory.incoming()) == 3
    host.restart(world.now, snapshot=True)
    peers[0].destination = same.destination  # another way to write the first name: the same stream goes on
    peers[0].send(b"again")
    world.settle()
    assert len(host.store.memory.incoming()) == 3
    assert host.content("line1")[-1] == b"again"


@pytest.mark.rule("B-426")
def test_peer_restored_from_old_copy_is_logged_once(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(refusals_told=5, early_order_ack=0))
    new, old = Peer(b"\1" * 16, direct("line1"), time_stamp=200), Peer(b"\1" * 16, direct("line1"), time_stamp=100)
    world = world_of([host], [new, old])
    new.send(b"new")
    world.connect_all()
    exchange(world)
    world.wires[0].cut()
    for _ in range(20):
        new.send(b"again")
        exchange(world)  # what it repeats is no reason to worry
    assert host.log == []
    for _ in range(20):
        old.send(b"old")
        exchange(world)
    (line,) = host.log
    assert f"{100 << 32 | 1}/5 after 4" in line
    assert f"{200 << 32 | 1}/" in line
    assert guids.guid_text(b"\1" * 16) in line
    assert b"old" not in host.content("line1")
    host.store.close()


@pytest.mark.rule("B-426", "B-060", "B-081")
def test_rejecting_stream_is_problem_until_incoming_reset(tmp_path: Path) -> None:
    host = Host(tmp_path)
    last, peer = peer_of(1), peer_of(1)
    last.stream = OutgoingStream(OutgoingStream.new(0xFFFFFFFF, 0xFFFFFFFF))
    world = world_of([host], [last])
    last.send(b"last")
    world.settle()
    world.wires[0].cut()
    world.peers = [peer]
    for number in range(3):
        peer.send(b"%d" % number)

    def problems() -> list[str]:
        found: list[str] = status.glance(host.store, shown=host.manager.report())["problems"]
        return found

    run(world, 59_000)
    assert problems() == []
    run(world, 62_000)
    [problem] = problems()
    assert "01010101-0101-0101-0101-010101010101" in problem
    assert "ordack store reset-stream" in problem
    [stream] = status.incoming(host.store)
    assert (stream["sequence_id"], stream["sequence_number"]) == ((1 << 64) - 1, 1)
    assert stream["reject_count"] > 3
    world.now += 60_000
    host.restart(world.now, snapshot=True)
    assert problems() == []
    run(world, 200)
    assert len(problems()) == 1, "it has refused before the start, too"
    with host.client(world.wall) as client:
        client.order("reset_incoming", b"\1" * 16, stream["destination"])
    world.settle()
    assert host.content("line1") == [b"last", b"0", b"1", b"2"]
    assert problems() == []
    [stream] = status.incoming(host.store)
    assert (stream["sequence_id"], stream["sequence_number"], stream["reject_count"]) == (100 << 32 | 1, 3, 0)


def test_report_of_session_follows_its_changes(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    world.connect_all()
    [before] = host.manager.links.report(0)["sessions"]
    assert (before["guid"], before["state"]) == (guids.guid_text(bytes(16)), connection.WAITING_EC_MSG)
    exchange(world)
    [opened] = host.manager.links.report(0)["sessions"]
    assert (opened["guid"], opened["state"]) == (guids.guid_text(peer.guid), connection.OPEN)
    assert host.manager.links.report(0)["sessions"][0] is opened, "it takes no work while nothing changes"
    with host.client() as client:
        client.send(f"PRIVATE={guids.guid_text(peer.guid)[1:-1]}\\1", b"x")
    world.pass_time(50)
    assert host.manager.links.report(0)["sessions"] == [{**opened, "in_flight": 1}]


# ---- durable before acknowledged ------------------------------------------------------------------


@pytest.mark.rule("B-443", "A-17")
def test_session_ack_precedes_order_ack_on_other_session(host: Host) -> None:
    peer, other = peer_of(1, "nowhere"), peer_of(1, "nowhere")  # two sessions of one queue manager
    world = world_of([host], [peer])
    exchange(world)
    world.peers.append(other)
    exchange(world)
    peer.send(b"x")
    world.collect()
    world.deliver(1 << 22)
    world.pass_time(20)
    world.collect()
    on_first, on_second = ([type(packet) for packet in packets_in(wire.to_initiator)] for wire in world.wires)
    assert on_first == [SessionAck], "there the message came"
    assert on_second == [headers.FinalAck, connection.OrderAck]
