"""Three queue managers in a line: what passes through the one in the middle, what comes back, and what ends there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import build, confirm, core, guids, headers
from mqqb.names import DirectQueueFormatName
from ordack.api.remote import purge_outgoing
from ordack.client import Reject
from ordack.config.config import Config
from ordack.config.names import DEAD_LETTER, DEAD_XACT

from tests.host.outcomes import ADMIN, JN, NA, Sender, application, copies, run
from tests.support.host_world import HERE, AtOnce, Host, World, exchange, world_of

ROUTER = ("10.0.0.5", 1801)
PLANT = DirectQueueFormatName("OS:plant\\private$\\line1")


class Line:
    """sender -> router -> receiver, whose name is plant; the sender knows only the router."""

    def __init__(self, folder: Path, seed: int | None = None, **settings: Any) -> None:
        self.receiver = Host(folder / "receiver", Config(send_insecure_nacks=True, early_order_ack=0))
        self.router = Host(
            folder / "router",
            Config(**{"route": True, "own_names": frozenset({"router"}), "next_hops": {"plant": HERE}, **settings}),
            ROUTER[0],
        )
        self.sender = Host(folder / "sender", Config(next_hops={"plant": ROUTER}), "10.0.0.9")
        self.hosts = [self.router, self.receiver, self.sender]
        self.world = World(seed or 0, self.hosts, [])
        if seed is None:
            self.world.random = AtOnce()

    def close(self) -> None:
        for host in self.hosts:
            host.store.close()

    def send(self, body: bytes, queue: str = "line1", **properties: Any) -> int:
        with application(self.world, self.sender) as client:
            return client.send(f"DIRECT=OS:plant\\private$\\{queue}", body, **properties).message_id

    def answer(self, message_id: int) -> tuple[str, int]:
        with application(self.world, self.sender) as client:
            found = client.state(message_id)
        assert found is not None
        return found.answer, found.message_class

    def part(self) -> None:
        """The receiver cannot be reached any more."""
        for wire in list(self.world.wires):
            if wire.host is self.receiver:
                wire.cut()
        self.receiver.address = "10.9.9.9"

    def waiting(self) -> list[int]:
        return [len(host.store.outgoing.messages()) for host in self.hosts]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    made = Line(tmp_path)
    yield made
    made.close()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Host]:
    """A router that reaches nobody."""
    made = Host(tmp_path, Config(route=True, own_names=frozenset({"router"})))
    yield made
    made.store.close()


def sender_through(router: Host, number: int = 1) -> tuple[World, Sender]:
    sender = Sender(bytes([number]) * 16, PLANT)
    return world_of([router], [sender]), sender


def set_hops(hops: int) -> Any:
    def change(message: headers.UserMessage) -> None:
        message.user.flags = message.user.flags & ~core.USER_RC | hops

    return change


# ---- what passes ----------------------------------------------------------------------------------


@pytest.mark.rule("B-012", "B-077", "B-259", "B-264", "B-290", "A-20", "B-362", "B-008")
def test_router_forwards_message_unchanged_and_returns_order_ack(line: Line) -> None:
    """Only the hop count is another; the router has no state of the stream, before and after."""
    sent = [line.send(b"%d" % number, label="l") for number in range(3)]
    before = [bytes(line.sender.store.outgoing.packet(row.key)[0]) for row in line.sender.store.outgoing.messages()]
    run(line.world, 400)
    stored = line.receiver.store.messages.peek(line.receiver.store.queues.named("line1").identifier, -1)
    assert len(stored) == 3
    for packet, message in zip(before, stored, strict=True):
        changed = bytearray(packet)
        assert changed[60] & core.USER_RC == 0
        build.set_hop_count(changed, 1)
        assert bytes(changed) == bytes(message.packet)
    (info,) = [queue for queue in line.router.manager.report()["outgoing"] if "plant" in queue["format_name"]]
    assert (info["first_non_ack"], info["last_non_ack"], info["no_ack_count"]) == (None, None, 0)
    record = next(row for row in line.router.store.outgoing.queues() if "plant" in row.format_name).record
    assert [line.answer(number)[0] for number in sent] == ["waiting"] * 3
    run(line.world, 1000)
    assert [line.answer(number)[0] for number in sent] == ["stored at destination"] * 3
    assert line.router.store.memory.incoming() == []
    assert record == next(row for row in line.router.store.outgoing.queues() if "plant" in row.format_name).record
    assert line.receiver.store.memory.incoming()[0].source == line.sender.store.guid
    run(line.world, 30_000)
    assert line.waiting() == [0, 0, 0]


@pytest.mark.rule("A-20", "B-009", "B-116", "B-260", "B-362", "C-50", "C-54", "C-57", "C-26", "C-25")
def test_final_acks_find_their_way_back(line: Line) -> None:
    with line.receiver.client() as client:
        client.create_queue("small", transactional=True)
        client.store.queues.set_quota("small", 100)
    taken, refused, lost = (line.send(b"x", dead_letter=True, queue=queue) for queue in ("line1", "line1", "small"))
    run(line.world, 2000)
    assert line.answer(taken)[0] == "stored at destination"
    with application(line.world, line.receiver) as client:
        with client.queue("line1").receive():
            pass
        with client.queue("line1").receive():
            raise Reject
    run(line.world, 2000)
    assert line.answer(taken) == ("received", 0x4000)
    assert line.answer(refused) == ("dead-lettered", 0xC004)
    assert line.answer(lost) == ("dead-lettered", 0x8003)
    assert sorted(copies(line.sender, DEAD_XACT)) == [(0x8003, b"x"), (0xC004, b"x")]
    assert copies(line.router, DEAD_XACT) == copies(line.receiver, DEAD_XACT) == []
    run(line.world, 30_000)
    assert line.waiting() == [0, 0, 0]


@pytest.mark.rule("B-248", "B-250", "B-254")
def test_resent_nontransactional_message_is_forwarded_once(router: Host) -> None:
    world, sender = sender_through(router)
    sender.send(b"e", "express")
    sender.send(b"r", "recoverable")
    exchange(world)
    world.wires[0].cut()  # before anything was acknowledged
    router.restart(world.now, snapshot=True)
    run(world, 15_000)
    assert sender.is_settled
    assert len(router.store.outgoing.messages()) == 2


@pytest.mark.rule("B-251", "B-285")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable"])
def test_message_stays_at_sender_while_router_is_full(tmp_path: Path, delivery: str) -> None:
    router = Host(tmp_path, Config(route=True, own_names=frozenset({"router"}), quota=1000))
    world, sender = sender_through(router)
    sender.send(bytes(2000), delivery, acknowledge=NA, admin=ADMIN)
    exchange(world)
    assert sender.session is None
    assert (sender.classes, sender.told, sender.is_settled, router.store.usage()) == ([], [], False, 0)
    router.store.close()


@pytest.mark.rule("B-363", "B-008", "A-20")
def test_order_ack_for_absent_source_is_dropped_and_resent(line: Line) -> None:
    peer = Sender(b"\1" * 16, PLANT)
    line.world.peers.append(peer)
    peer.send(b"x")
    exchange(line.world)
    exchange(line.world)
    assert line.receiver.content("line1") == [b"x"]
    line.world.peers.clear()
    for wire in list(line.world.wires):
        if wire.initiator is peer:
            wire.cut()
    run(line.world, 2000)
    assert line.waiting() == [0, 0, 0]
    line.world.peers.append(peer)
    line.world.settle()
    assert (peer.acked, line.receiver.content("line1")) == ([1], [b"x"])


@pytest.mark.rule("B-011", "B-344", "A-20")
def test_router_keeps_final_ack_for_absent_source_over_restart(line: Line) -> None:
    assert line.receiver.config
    line.receiver.config.next_hops = {guids.guid_text(line.router.store.guid)[1:-1].lower(): ROUTER}
    peer = Sender(b"\1" * 16, PLANT)
    line.world.peers.append(peer)
    peer.send(b"x", journal=JN)
    run(line.world, 2000)
    assert peer.acked == [1]
    line.world.peers.clear()
    for wire in list(line.world.wires):
        wire.cut()
    with application(line.world, line.receiver) as client, client.queue("line1").receive():
        pass
    run(line.world, 2000)  # the receiver connects to the router, from where the message came
    assert line.waiting() == [2, 0, 0]  # and the OrderAck: express ones are acknowledged after ten seconds
    line.router.restart(line.world.now, snapshot=True)
    line.receiver.restart(line.world.now, snapshot=True)
    assert peer.classes == []
    line.world.peers.append(peer)
    run(line.world, 15_000)
    assert peer.classes == [0x4000]
    assert line.waiting() == [0, 0, 0]


@pytest.mark.rule("B-260", "B-362", "C-29")
def test_purge_at_router_keeps_final_ack_of_refused_message(line: Line) -> None:
    peer = Sender(b"\1" * 16, PLANT)
    line.world.peers.append(peer)
    with line.receiver.client() as client:
        client.order("set_quota", "line1", 0)
    peer.send(b"refused")
    exchange(line.world)
    line.world.peers.clear()
    for wire in list(line.world.wires):
        if wire.initiator is peer:
            wire.cut()
    run(line.world, 2000)
    with line.router.client() as client:
        purged = [
            purge_outgoing(client.store, client.access, queue.identifier) for queue in client.store.outgoing.queues()
        ]
    assert sorted(purged) == [(0, 0), (0, 1)]
    run(line.world, 2000)
    assert line.waiting() == [1, 0, 0]
    with line.receiver.client() as client:
        client.order("set_quota", "line1", None)
    peer.send(b"taken")
    line.world.peers.append(peer)
    line.world.settle()
    assert (peer.rejected, line.receiver.content("line1")) == ({1: 0x8003}, [b"taken"])
    assert set(peer.acked) == {2}


@pytest.mark.rule("B-427", "B-248", "B-318", "B-020")
@pytest.mark.parametrize("acknowledged", [True, False])
def test_destination_restored_behind_router_resumes_after_resend(line: Line, acknowledged: bool) -> None:
    """The sender's session is with the router, and stays: only a resend tells the destination what it has lost. Its
    OrderAcks must not have the MessageIDs of those that the router has seen."""
    line.receiver.back_up()
    for body in (b"1", b"2"):
        line.send(body)
    run(line.world, 2000 if acknowledged else 200)
    assert line.receiver.content("line1") == [b"1", b"2"]
    line.receiver.put_back(line.world)
    later = [line.send(body) for body in (b"3", b"4")]
    run(line.world, 35_000)
    assert line.receiver.content("line1") == ([b"3", b"4"] if acknowledged else [b"1", b"2", b"3", b"4"])
    assert [line.answer(each)[0] for each in later] == [confirm.STORED] * 2
    assert line.waiting() == [0, 0, 0]


# ---- what ends at the router ----------------------------------------------------------------------


@pytest.mark.rule("B-259", "B-260", "B-261", "B-350", "B-375", "C-66", "A-40", "A-37")
@pytest.mark.parametrize("delivery", ["transactional", "recoverable"])
@pytest.mark.parametrize(
    ("limit", "hops", "passes"),
    [(None, 14, True), (None, 15, False), (1, 0, True), (1, 1, False), (29, 28, True), (29, 29, False)],
)
def test_the_hop_limit(tmp_path: Path, limit: int | None, hops: int, passes: bool, delivery: str) -> None:
    settings = {} if limit is None else {"hop_limit": limit}
    router = Host(tmp_path, Config(route=True, own_names=frozenset({"router"}), **settings))  # type: ignore[arg-type]
    world, sender = sender_through(router)
    sender.send(b"x", delivery, acknowledge=NA, admin=ADMIN, journal=JN)
    sender.edit(1, set_hops(hops))
    exchange(world)
    run(world, 2000)
    forwarded = [router.store.outgoing.packet(row.key)[0] for row in router.store.outgoing.messages()]
    assert [packet[60] & core.USER_RC for packet in forwarded] == ([hops + 1] if passes else [])
    assert sender.classes == ([] if passes or delivery != "transactional" else [0x8005])
    assert sender.told == ([] if passes else [0x8005])
    assert copies(router, DEAD_LETTER) == ([] if passes or delivery == "transactional" else [(0x8005, b"x")])
    router.store.close()
