"""The queue manager over wires that only exist in memory: what it stores, what it answers, and that no cut of a wire
and no death of a manager at any statement of its store loses, repeats or reorders a message."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import core, guid_names, guids, headers, reader
from mqqb.handshake import SessionAck
from mqqb.names import DirectQueueFormatName, QueueName
from mqqb.session import Session, Settings
from mqqb.streams import Entry, OutgoingStream
from ordack import status
from ordack.config import Config
from ordack.links import Link
from ordack.store import Store

from tests.host.outcomes import run
from tests.support.host_peer import Peer, direct
from tests.support.host_world import (
    HERE,
    START,
    WALL,
    Host,
    Wire,
    World,
    exchange,
    handshake,
    packets_in,
    peer_of,
    send_from,
    two_hosts,
    world_of,
)


@pytest.fixture
def exact(tmp_path: Path) -> Iterator[Host]:
    """A queue manager whose OrderAcks go out when the specification asks for them, and not earlier."""
    made = Host(tmp_path, Config(early_order_ack=0))
    yield made
    made.store.close()


# ---- what a message is answered with --------------------------------------------------------------


@pytest.mark.rule("B-002", "B-008", "B-137", "B-153", "B-358", "B-361", "B-287")
def test_messages_are_stored_and_acknowledged_in_order_after_half_a_second(exact: Host) -> None:
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
def test_an_order_ack_of_a_busy_stream_comes_within_ten_and_a_half_seconds(exact: Host) -> None:
    peer = peer_of(1)
    world = world_of([exact], [peer])
    for _ in range(36):
        peer.send(b"")
        exchange(world)
        world.pass_time(300)
    assert peer.order_acks == 1
    assert len(peer.acked) in (34, 35)


def test_an_order_ack_comes_as_soon_as_the_sender_pauses(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    for _ in range(5):
        peer.send(b"")
        exchange(world)
        world.pass_time(19)
    assert peer.acked == []
    assert host.manager.order_acks_due == world.now + 1
    world.now += 1
    host.manager.acknowledge(world.now, world.wall)
    exchange(world)
    assert (peer.acked, peer.order_acks) == ([1, 2, 3, 4, 5], 1)
    assert host.manager.order_acks_due is None


@pytest.mark.parametrize(("window", "most"), [(64, 32), (8, 4), (1, 1)])
def test_under_traffic_an_order_ack_comes_when_half_of_the_window_is_stored(host: Host, window: int, most: int) -> None:
    """A sender with 100 places for what is not acknowledged never fills them."""
    peer = peer_of(1)
    peer.settings = Settings(window_size=window)
    world = world_of([host], [peer])
    for _ in range(320):
        peer.send(b"")
        exchange(world)
        assert len(peer.stream.table) < most
        world.pass_time(10)
    assert peer.order_acks == 320 // most


def test_over_a_slow_line_there_is_no_more_than_one_order_ack_in_a_round_trip(host: Host) -> None:
    """So acknowledgements of 200 bytes take a fraction of the line on which 1,144 took that time."""
    peer = peer_of(1)
    world = world_of([host], [peer])
    world.connect_all()
    while not world.wires[0].link.is_open:
        world.collect()
        world.deliver(1 << 20)
        world.pass_time(120)
    exchange(world)
    assert world.wires[0].link.session.round_trip == 120
    peer.send(b"")
    exchange(world)
    world.pass_time(119)
    exchange(world)
    assert peer.acked == []
    world.pass_time(1)
    exchange(world)
    assert peer.acked == [1]


@pytest.mark.rule("B-230", "B-231", "B-234")
def test_senders_are_content_with_a_destination_that_waits_as_long_as_it_may(tmp_path: Path) -> None:
    """As Windows does: half a second after the last message, under traffic ten seconds."""
    receiver = Host(tmp_path / "receiver", Config(early_order_ack=0))
    sender = Host(tmp_path / "sender", Config(next_hops={"plant": HERE}), "10.0.0.9")
    world = world_of([receiver, sender], [])
    most = 0
    for number in range(120):
        send_from(sender, b"%d" % number)
        world.pass_time(100)
        exchange(world)
        most = max(most, len(sender.store.outgoing.messages()))
    assert most > 90, "the destination was quicker than it was meant to be"
    world.settle(lambda: not sender.store.outgoing.messages())
    assert receiver.content("line1") == [b"%d" % number for number in range(120)]
    for host in (receiver, sender):
        host.store.close()


@pytest.mark.rule("B-256", "B-257", "B-260", "B-115", "B-261", "B-262", "B-360", "B-344", "A-15", "A-37")
@pytest.mark.parametrize(
    ("queue", "rejection"),
    [("nowhere", 0x8000), ("plain", 0x8009), ("order_queue$", 0x8000), ("system$;deadxact", 0x8000)],
)
def test_a_transactional_message_that_no_queue_takes_gets_one_final_ack(host: Host, queue: str, rejection: int) -> None:
    peer = peer_of(1, queue)
    world = world_of([host], [peer])
    for _ in range(3):
        peer.send(b"x")
    exchange(world)
    assert peer.rejected == {1: rejection, 2: rejection, 3: rejection}
    assert peer.is_settled
    world.settle(lambda: not host.store.outgoing.messages())
    assert host.content("plain") == []


def test_a_queue_deleted_and_made_again_gets_nothing_twice(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    peer.send(b"1")
    peer.send(b"2")
    exchange(world)  # stored, the OrderAck has not been sent
    with host.client() as client:
        client.delete_queue("line1")
        client.create_queue("line1", transactional=True)
    world.wires[0].cut()
    peer.send(b"3")
    world.settle()
    assert host.content("line1") == [b"3"]
    assert peer.rejected == {}


@pytest.mark.rule("B-115", "B-270")
def test_what_was_stored_before_its_queue_was_deleted_is_not_called_rejected(exact: Host) -> None:
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


@pytest.mark.rule("B-416")
@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("TCP:10.0.0.1\\private$\\line1", True),
        ("tcp:10.0.0.1\\PRIVATE$\\LINE1", True),
        ("OS:Plant\\private$\\line1", True),
        ("TCP:10.0.0.2\\private$\\line1", False),
        ("OS:other\\private$\\line1", False),
        ("TCP:10.0.0.1\\line1", False),
        ("TCP:10.0.0.1\\private$\\line1;journal", False),
        ("HTTP://10.0.0.1/msmq/private$/line1", False),
    ],
)
def test_direct_names_are_compared_with_the_own_names(tmp_path: Path, name: str, taken: bool) -> None:
    host = Host(tmp_path, Config(own_names=frozenset({"10.0.0.1", "plant"})))
    peer = Peer(b"\1" * 16, DirectQueueFormatName(name))
    world = world_of([host], [peer])
    peer.send(b"x")
    exchange(world)
    assert host.content("line1") == ([b"x"] if taken else [])
    assert peer.rejected == ({} if taken else {1: 0x8000})
    host.store.close()


@pytest.mark.rule("B-264", "B-256")
@pytest.mark.parametrize(
    "name",
    [
        guid_names.PrivateQueueFormatNameId(999),
        guid_names.PrivateQueueFormatNameId(4),
        guid_names.PublicQueueFormatName(b"p" * 16),
    ],
)
def test_other_names_that_lead_nowhere_are_rejected(host: Host, name: QueueName) -> None:
    peers = [Peer(b"\1" * 16, name), Peer(b"\2" * 16, name, address=b"elsewhere 16 byt")]
    world = world_of([host], peers)
    for peer in peers:
        peer.send(b"x")
    exchange(world)
    for peer in peers:
        assert peer.rejected == {1: 0x8000}


@pytest.mark.rule("B-248", "B-249", "B-250", "B-254", "B-258", "A-14")
def test_messages_that_are_not_transactional_are_filtered_by_their_whole_identifier(host: Host) -> None:
    peers = [peer_of(1, "plain"), peer_of(2, "plain"), peer_of(3, "line1")]
    world = world_of([host], peers)
    for peer in peers:
        peer.send(b"r%d" % peer.guid[0], "recoverable", priority=1)
        peer.send(b"e%d" % peer.guid[0], "express", priority=6)
    exchange(world)
    assert host.content("line1") == []  # a transactional queue takes no others
    assert sorted(host.content("plain")[:2]) == [b"e1", b"e2"]
    assert sorted(host.content("plain")[2:]) == [b"r1", b"r2"]
    world.wires[0].cut()  # before anything was acknowledged
    host.restart(world.now, snapshot=True)
    world.settle()
    assert len(host.content("plain")) == 4


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


@pytest.mark.rule("B-248", "B-019", "B-254")
def test_a_duplicate_makes_its_identifier_the_youngest(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(history_size=3))
    peer = peer_of(1, "plain")
    world = world_of([host], [peer])
    for message_id in (1, 2, 3):
        peer.send(b"%d" % message_id, "recoverable")
        exchange(world)
        world.pass_time(1000)
    again = peer_of(1, "plain")
    for message_id in (1, 4, 5):
        again.next_message_id = message_id
        again.send(b"%d" % message_id, "recoverable")
    world.peers = [again]
    world.wires[0].cut()
    exchange(world)
    assert host.store.memory.history() == [(again.guid, message_id, WALL + 3) for message_id in (1, 4, 5)]
    assert host.content("plain") == [b"1", b"2", b"3", b"4", b"5"]
    host.store.close()


@pytest.mark.rule("B-435")
def test_sessions_are_limited_by_address_in_all_and_by_queue_manager(tmp_path: Path) -> None:
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
def test_an_order_ack_that_found_no_session_goes_out_at_once_on_the_next(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    peer.send(b"x")
    exchange(world)
    world.wires[0].cut()
    world.pass_time(5000)
    peer.stream.next_to_send = lambda: None  # type: ignore[method-assign]  # it sends nothing that could ask for one
    exchange(world)
    assert peer.acked == [1]


@pytest.mark.rule("B-168", "B-169")
def test_what_came_before_a_malformed_packet_counts(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    peer.send(b"x")
    handshake(world)
    world.wires[0].to_host += b"\x10 this is no packet of ours"
    world.deliver(1 << 20)
    assert host.content("line1") == [b"x"]
    assert "B-168" in host.log[0]
    world.settle()
    assert host.content("line1") == [b"x"]


@pytest.mark.rule("B-125", "B-263")
def test_a_session_header_that_came_with_a_message_is_not_stored_with_it(host: Host) -> None:
    peer = peer_of(1, "nowhere")
    world = world_of([host], [peer])
    peer.send(b"x")
    exchange(world)  # and the FinalAck waits to be acknowledged
    world.pass_time(400)
    peer.destination = direct("plain")
    peer.send(b"carrier", "recoverable")
    world.collect()
    assert world.wires[0].to_host[2] & core.BASE_SH
    exchange(world)
    assert host.content("plain") == [b"carrier"]
    assert host.store.outgoing.messages() == []
    assert world.wires[0].link.session.closed is None


@pytest.mark.rule("B-262", "B-435")
@pytest.mark.parametrize("name", ["TCP:1.2.3.4\\q\ud800", "OS:\udfff\\private$\\line2", "HTTP://\ud800/"])
def test_half_a_character_in_a_name_is_rejected_and_remembered_like_any_other(host: Host, name: str) -> None:
    peer = Peer(b"\1" * 16, DirectQueueFormatName(name))
    world = world_of([host], [peer])
    peer.send(b"x")
    exchange(world)
    assert peer.rejected == {1: 0x8000}
    host.restart(world.now, snapshot=True)
    peer.send(b"y")
    world.settle()
    assert peer.rejected == {1: 0x8000, 2: 0x8000}


@pytest.mark.rule("B-435")
@pytest.mark.parametrize("place", ["target", "_write"])
def test_a_defect_that_one_session_meets_is_not_the_others_end(
    host: Host, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bad, settled, nowhere = peers = [peer_of(1), peer_of(2), peer_of(3, "plain"), peer_of(4, "nowhere")]
    quiet = peer_of(5, "xact")
    with host.client() as client:
        client.create_queue("xact", transactional=True)
    world = world_of([host], [*peers, quiet])
    owner = host.manager if place == "_write" else host.manager._acceptance._routing
    real = getattr(owner, place)

    def poisoned(*arguments: Any) -> Any:
        outcome = real(*arguments)
        if place == "target" and len(bad.packets) == 7 and arguments[0].source_queue_manager == bad.guid:
            raise RuntimeError("poison \ud800")
        if place == "_write" and any(message.packet.endswith(b"poison\0\0") for message in arguments[0].messages):
            raise RuntimeError("poison \ud800")
        return outcome

    monkeypatch.setattr(owner, place, poisoned)
    for number in range(6):
        for peer in peers:
            peer.send(b"%d" % number, "recoverable" if peer is settled else "transactional")
    quiet.send(b"x")  # and nothing when the defect is met; its OrderAck is owed then
    exchange(world)
    world.pass_time(10)
    for peer in peers:
        peer.send(b"poison" if peer is bad else b"good", "recoverable" if peer is settled else "transactional")
    lives = {wire.initiator: wire.link for wire in world.wires}
    exchange(world)
    assert host.content("line1").count(b"good") == 1
    assert host.content("plain").count(b"good") == 1
    assert b"poison" not in host.content("line1")
    assert [peer for peer in peers if lives[peer] not in host.manager.links] == [bad]
    assert len(nowhere.rejected) == 7
    world.pass_time(500)
    exchange(world)
    assert quiet.acked == [1]
    assert any("Traceback" in line and "poison \\ud800" in line for line in host.log)
    monkeypatch.setattr(owner, place, real)
    world.settle()
    assert host.content("line1").count(b"poison") == 1
    assert len(host.content("line1")) == 14
    assert len(host.content("plain")) == 7


@pytest.mark.rule("B-260", "B-011", "A-30")
def test_an_order_ack_goes_only_where_the_final_acks_went_in_front(host: Host) -> None:
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
        [packet for packet in packets_in(wire.to_initiator) if isinstance(packet, reader.OrderAck)]
        for wire in world.wires
    )
    assert (len(on_first), len(on_second)) == (0, 1)
    assert other.rejected == {1: 0x8000, 2: 0x8000}


@pytest.mark.rule("B-443", "A-17")
def test_the_session_ack_precedes_an_order_ack_that_goes_another_way(host: Host) -> None:
    host.manager.config.become(Config(early_order_ack=20))
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
    assert on_second == [headers.FinalAck, reader.OrderAck]


@pytest.mark.rule("B-011", "B-053")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable", "express"])
def test_what_waits_for_a_peer_goes_on_its_newest_session(host: Host, delivery: str) -> None:
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
def test_after_a_restart_an_order_ack_still_waits_for_the_final_acks_of_its_source(host: Host) -> None:
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
        guid_names.PrivateQueueFormatNameId(host.store.queues.named("line1").identifier)
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
def test_a_source_that_was_restored_from_an_old_copy_is_named_once(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(refusals_told=5))
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
def test_a_stream_that_refuses_everything_is_a_problem_until_it_is_reset(tmp_path: Path) -> None:
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
    assert "ordack incoming reset" in problem
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


@pytest.mark.rule("B-011", "B-362", "B-413", "B-241")
def test_a_final_ack_goes_back_to_the_session_that_the_message_came_on(host: Host) -> None:
    forwarder = peer_of(9, "nowhere")
    origin = peer_of(1, "nowhere")
    world = world_of([host], [forwarder])
    origin.send(b"x")
    packet = origin.packets[1]
    forwarder.stream.append(Entry(1, 1, True))
    forwarder.packets[1] = packet
    seen = []
    forwarder._message = lambda packet, _now: seen.append(packet)  # type: ignore[method-assign]
    handshake(world)
    world.deliver(1 << 20)
    world.wires[0].cut()
    world.settle(lambda: not host.store.outgoing.messages())
    final_acks = [packet for packet in seen if isinstance(packet, headers.FinalAck)]
    assert {(packet.body.source_guid, packet.body.message_id) for packet in final_acks} == {(origin.guid, 1)}


@pytest.mark.rule("B-285", "B-398")
def test_final_acks_count_towards_the_quota(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(quota=2000))
    peer = peer_of(1, "nowhere")
    world = world_of([host], [peer])
    for _ in range(20):
        peer.send(b"x")
    handshake(world)
    world.deliver(1 << 20)
    assert 2 <= len(host.store.outgoing.messages()) < 8
    assert host.store.usage() <= 2000
    assert "quota" in host.log[-1]
    assert host.store.memory.incoming()[0].record[2] == len(host.store.outgoing.messages())
    host.store.close()


def test_a_stream_that_is_forgotten_and_comes_back_in_one_batch_is_kept(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_unknown_streams=2))
    peer = peer_of(1)
    world = world_of([host], [peer])
    for number, name in enumerate(("a", "b", "c", "d", "a"), 1):  # each in a sequence of its own
        stream = Peer(peer.guid, direct(name), time_stamp=100 + number)
        stream.next_message_id = number
        stream.send(b"x")
        peer.stream.append(Entry(number, number, True))
        peer.packets.update(stream.packets)
    handshake(world)
    world.deliver(1 << 20)
    known = {state.key for state in host.manager.incoming if state.stream.tx_sequence_number}
    assert "direct=tcp:127.0.0.1\\private$\\a" in known
    assert {row.destination for row in host.store.memory.incoming()} == known
    host.store.close()


@pytest.mark.rule("B-435")
def test_unfinished_packets_are_bounded_over_all_sessions(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_half_received=10_000))
    peers = [peer_of(1), peer_of(2), peer_of(3)]
    world = world_of([host], peers)
    for peer, size in zip(peers, (3000, 7000, 5000), strict=True):
        peer.send(bytes(size))
    handshake(world)
    for wire in world.wires:
        del wire.to_host[-100:]
    world.deliver(1 << 20)
    assert [wire.link in host.manager.links for wire in world.wires] == [True, False, True]
    assert "B-435" in host.log[0]
    for wire in list(world.wires):
        wire.cut()
    world.settle()
    assert sorted(map(len, host.content("line1"))) == [3000, 5000, 7000]
    host.store.close()


@pytest.mark.rule("B-318", "B-319", "B-427", "A-34")
def test_a_receiver_that_lost_its_store_takes_the_rest_of_a_sequence(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    send_from(sender, b"1")
    world.pass_time(50)
    exchange(world)
    world.pass_time(499)
    send_from(sender, b"2")
    world.pass_time(1)  # the OrderAck for 1 is on the way, 2 has not left
    world.collect()
    world.deliver(1 << 20)
    send_from(sender, b"3")
    world.wires[0].cut()
    receiver.store.close()
    world.hosts[0] = fresh = Host(tmp_path / "fresh")
    world.settle(lambda: not sender.store.outgoing.messages())
    assert fresh.content("line1") == [b"2", b"3"]
    fresh.store.close()
    sender.store.close()


def test_a_link_that_takes_no_more_gets_messages_when_it_does_again(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    send_from(sender, b"1")
    world.pass_time(50)
    exchange(world)
    link = world.wires[0].far
    link.writable = False
    send_from(sender, b"2")
    world.pass_time(50)
    exchange(world)
    assert receiver.content("line1") == [b"1"]
    sender.manager.resume(link, world.now, world.wall)
    exchange(world)
    assert receiver.content("line1") == [b"1", b"2"]
    receiver.store.close()
    sender.store.close()


# ---- durable before acknowledged ------------------------------------------------------------------


@pytest.mark.rule("B-098", "B-281", "A-31")
def test_nothing_is_acknowledged_before_another_process_could_read_it(host: Host) -> None:
    peers = [peer_of(1, window=8), peer_of(2, window=8)]
    world = World(7, [host], peers)
    other = Store(host._life)
    manager = host.manager

    def statement(_cursor: Any, text: str, _bindings: Any) -> bool:
        if not host.store._database.connection.get_autocommit() and "INSERT INTO messages" in text:
            for packet in [packet for link in manager.links for packet in link.session._out]:
                handshake = packet[2] & core.BASE_IN and packet[18] != core.PT_SESSION_ACK
                assert handshake, "queued before the commit"
        return True

    host.store._database.connection.exec_trace = statement
    for peer in peers:
        for number in range(100):
            peer.send(b"%d" % number)
    seen = 0
    real = manager.output

    def checked() -> list[tuple[Link, bytes, bool]]:
        nonlocal seen
        output = real()
        stored = {row.source: row.record[2] for row in other.memory.incoming()}
        for link, data, _ in output:
            for packet in packets_in(data):
                if isinstance(packet, reader.OrderAck):
                    assert packet.body.tx_sequence_number <= stored[link.session.remote_guid]
                    seen += 1
                elif isinstance(packet, SessionAck):
                    header = packet.session
                    acked = header.recoverable_msg_ack_seq_number + header.recoverable_msg_ack_flags.bit_length() - 1
                    assert acked <= stored[link.session.remote_guid]
                    assert acked == header.ack_sequence_number
                    seen += 1
        return output

    manager.output = checked  # type: ignore[method-assign]
    for _ in range(3000):
        world.connect_all()
        world.collect()
        world.deliver(700)
        world.pass_time(20)
        if all(peer.is_settled for peer in peers):
            break
    assert all(peer.acked == list(range(1, 101)) for peer in peers)
    assert seen > 20
    other.close()


@pytest.mark.rule("B-098", "B-285")
def test_a_store_that_fails_closes_the_sessions_and_nothing_is_lost(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    for number in range(20):
        peer.send(b"%d" % number * 30_000)
    db = host.store._database.connection
    db.pragma("max_page_count", 1)  # as many as the file has
    exchange(world)
    assert peer.acked == []
    assert host.content("line1") == []
    assert "the disk is full" in host.log[0]
    db.pragma("max_page_count", 1 << 30)
    world.settle()
    assert host.content("line1") == [b"%d" % number * 30_000 for number in range(20)]


@pytest.mark.slow
def test_a_session_with_nothing_to_do_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 idle sessions: until the first of their timers is due, polls look at each of them a few times, in all: for
    timers that were running in the handshake."""
    host = Host(tmp_path, Config(max_sessions_per_address=1000))
    peers = [peer_of(number) for number in range(1, 201)]
    world = world_of([host], peers)
    exchange(world)
    assert sum(link.is_open for link in host.manager.links) == len(peers)
    looked: list[Session] = []
    look = Session.handle_timeout

    def handle_timeout(session: Session, now: int) -> list[object]:
        looked.append(session)
        return look(session, now)

    monkeypatch.setattr(Session, "handle_timeout", handle_timeout)
    first = min(due for link in host.manager.links if (due := link.session.next_timeout()) is not None)
    assert first > world.now + 1000
    told = polls = 0
    while world.now + 50 < first:
        world.now += 50
        polls += 1
        host.manager.poll(world.now, world.wall)
        told += len(host.manager.output())
    assert polls > 20
    assert told <= len(looked) + len(peers) <= 4 * len(peers)
    looked.clear()
    world.now = first
    host.manager.poll(world.now, world.wall)
    assert looked
    host.store.close()


@pytest.mark.parametrize("left", ["served", "owed"])
def test_a_poll_costs_no_more_for_outgoing_queues_and_peers_that_have_nothing_to_do(tmp_path: Path, left: str) -> None:
    """Outgoing queues with nothing in them that sessions serve; OrderAcks that wait for peers that are gone."""
    calls: dict[int, int] = {}
    for count in (5, 50):
        host = Host(tmp_path / str(count), Config(max_sessions_per_address=1000))
        peers = [peer_of(number) for number in range(1, count + 1)]
        if left == "served":
            for peer in peers:
                guid = guids.guid_text(peer.guid)[1:-1]
                host.store.outgoing.queue(f"PRIVATE={guid}\\00000005", WALL)
            host.restart(START, snapshot=True)
        world = world_of([host], peers)
        if left == "owed":
            for peer in peers:
                peer.send(b"x")
        exchange(world)
        if left == "owed":
            for wire in list(world.wires):
                wire.cut()
        assert sum(queue.link is not None for queue in host.manager.outgoing) == (count if left == "served" else 0)
        assert len(host.manager.incoming.overdue_peers) == (0 if left == "served" else count)
        for _ in range(20):  # one second, with what is done in each
            world.pass_time(50)
            world.collect()
        called = [0]

        def note(_frame: object, event: str, _of: object, called: list[int] = called) -> None:
            called[0] += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            host.manager.poll(world.now + 1, world.wall)
        finally:
            sys.setprofile(None)
        calls[count] = called[0]
        host.store.close()
    assert calls[50] == calls[5]


def test_links_that_are_gone_leave_nothing_behind(host: Host) -> None:
    for _ in range(5000):
        link = host.manager.accept("10.0.0.9", 1000)
        assert link
        host.manager.output()
        host.manager.lost(link)
        host.manager.output()
    assert len(host.manager.links._alarms) <= 1001
    assert not host.manager.links._by_number
    assert not host.manager.links.leaving


def test_what_is_under_way_on_a_session_goes_the_new_way_once_and_in_order(tmp_path: Path) -> None:
    """The next hop of a destination changes while messages of it are in flight on the session with the old one."""
    world, receiver, sender = two_hosts(tmp_path)
    there = ("10.0.0.2", 1801)
    send_from(sender, b"1", b"2")
    world.pass_time(50)
    exchange(world)
    send_from(sender, b"3", b"4", b"5")
    world.pass_time(50)
    world.collect()  # they are on the wire,
    world.deliver(300)  # and some of their bytes have arrived
    [queue] = sender.manager.outgoing
    assert queue.link
    assert queue.stream.table[-1].awaiting_ack
    sender.manager.config.become(Config(next_hops={"plant": there}))
    sender.manager.outgoing.find_ways()
    assert sender.manager.wanted_hops() == {there}
    send_from(sender, b"6")
    world.pass_time(50)
    assert queue.link is None
    Wire(world, sender, receiver, there)
    world.settle(lambda: not queue.is_needed)
    assert receiver.content("line1") == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert sender.log == receiver.log == []
    sender.manager.config.become(Config())
    sender.manager.outgoing.find_ways()
    assert queue.hop == ("plant", 1801)


def test_what_goes_back_to_a_peer_follows_the_configuration(tmp_path: Path) -> None:
    host = Host(tmp_path, Config(max_sessions_per_address=1000))
    peer = peer_of(1)
    guid = guids.guid_text(peer.guid)[1:-1].lower()
    host.store.outgoing.queue(f"PRIVATE={guid}\\00000005", WALL)
    host.restart(START, snapshot=True)
    world = world_of([host], [peer])
    exchange(world)
    world.wires[0].cut()
    [queue] = host.manager.outgoing
    for hops in ({}, {guid: ("10.0.0.3", 5)}, {"10.0.0.9": ("10.0.0.4", 6)}, {}):
        host.manager.config.become(Config(next_hops=hops))
        host.manager.outgoing.find_ways()
        assert queue.hop == next(iter(hops.values()), None)
    host.store.close()
