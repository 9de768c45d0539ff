"""What becomes of messages that end at their destination: FinalAcks, administration acknowledgements, reports, copies
in dead-letter queues; and of those whose destination is on the machine that sent them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mqqb import core, packets
from ordack.client import Client, Empty, Reject

from tests.host_peer import Peer, direct
from tests.host_world import AtOnce, Crash, Host, World, exchange, world_of

JN, JP = core.USER_JN, core.USER_JP
PA, PR, NA, NR = packets.WANT_PA, packets.WANT_PR, packets.WANT_NA, packets.WANT_NR
ADMIN = packets.PrivateQueueFormatNameId(77)  # a queue of the sender, who takes whatever comes
UNSETTLED = 0  # class of no message: nothing came


class Sender(Peer):
    """A peer that notes every FinalAck, and whose packets can be changed before they leave."""

    def __init__(self, guid: bytes, destination: packets.QueueName, address: bytes = packets.NULL_GUID) -> None:
        super().__init__(guid, destination, address)
        self.final_acks: list[packets.FinalAck] = []

    def _message(self, packet: packets.UserMessage | packets.OrderAck | packets.FinalAck, now: int) -> None:
        if isinstance(packet, packets.FinalAck):
            self.final_acks.append(packet)
        super()._message(packet, now)

    def edit(self, message_id: int, change: Callable[[packets.UserMessage], None]) -> None:
        message = packets.parse(self.packets[message_id])
        assert isinstance(message, packets.UserMessage)
        change(message)
        self.packets[message_id] = packets.build(message)

    @property
    def classes(self) -> list[int]:
        return [ack.message.properties.message_class for ack in self.final_acks]

    @property
    def told(self) -> list[int]:
        return [message.properties.message_class for message in self.received]


def sender_to(queue: str = "line1", number: int = 1) -> Sender:
    return Sender(bytes([number]) * 16, direct(queue))


@contextlib.contextmanager
def application(world: World, host: Host) -> Iterator[Client]:
    """An application in another process, by the world's clock."""
    with Client(host._life, clock=lambda: world.wall) as client:
        yield client


def run(world: World, milliseconds: int) -> None:
    """Let time pass, in small steps."""
    for _ in range(milliseconds // 100):
        world.pass_time(100)
        exchange(world)


def copies(host: Host, queue: str) -> list[tuple[int, bytes]]:
    """Class and body of what is in a queue."""
    found = []
    for stored in host.store.peek(host.store.queue(queue).identifier, -1):
        message = packets.parse(stored.packet)
        assert isinstance(message, packets.UserMessage)
        found.append((message.properties.message_class, bytes(message.properties.body)))
    return found


# ---- a message leaves its queue -------------------------------------------------------------------


def received(world: World, host: Host) -> None:
    with application(world, host) as client, client.queue("line1").receive():
        pass


def given_back(world: World, host: Host) -> None:
    with application(world, host) as client, contextlib.suppress(KeyError), client.queue("line1").receive():
        raise KeyError


def rejected(world: World, host: Host) -> None:
    with application(world, host) as client, client.queue("line1").receive():
        raise Reject


def purged(world: World, host: Host) -> None:
    with application(world, host) as client:
        assert client.purge_queue("line1") == 1


def _purge_while_locked(world: World, host: Host, end: BaseException | None) -> None:
    with application(world, host) as client, contextlib.suppress(KeyError), client.queue("line1").receive():
        with application(world, host) as operator:
            assert operator.purge_queue("line1") == 1
        run(world, 2000)
        if end:
            raise end


def purged_and_given_back(world: World, host: Host) -> None:
    _purge_while_locked(world, host, KeyError())


def purged_and_received(world: World, host: Host) -> None:
    _purge_while_locked(world, host, None)


def deleted(world: World, host: Host) -> None:
    with application(world, host) as client:
        assert client.delete_queue("line1") == 1


def expired(world: World, _host: Host) -> None:
    run(world, 11_000)


def _expire_while_locked(world: World, host: Host, end: BaseException | None) -> None:
    with application(world, host) as client, contextlib.suppress(KeyError), client.queue("line1").receive():
        run(world, 15_000)
        assert len(host.store.queues("name = 'line1' AND messages = 1")) == 1
        if end:
            raise end


def expired_and_given_back(world: World, host: Host) -> None:
    _expire_while_locked(world, host, KeyError())


def expired_and_received(world: World, host: Host) -> None:
    _expire_while_locked(world, host, None)


REMOVALS = [
    pytest.param(received, 0x4000, marks=pytest.mark.rule("B-338", "B-369", "C-50"), id="received"),
    pytest.param(given_back, UNSETTLED, marks=pytest.mark.rule("B-343"), id="aborted"),
    pytest.param(rejected, 0xC004, marks=pytest.mark.rule("B-342", "B-387", "C-54"), id="rejected"),
    pytest.param(purged, 0xC001, marks=pytest.mark.rule("B-340", "B-384", "C-53"), id="purged"),
    pytest.param(purged_and_given_back, 0xC001, marks=pytest.mark.rule("B-340"), id="purged while locked, aborted"),
    pytest.param(purged_and_received, 0x4000, marks=pytest.mark.rule("B-340"), id="purged while locked, committed"),
    pytest.param(deleted, 0xC000, marks=pytest.mark.rule("B-339", "B-383", "C-52"), id="queue deleted"),
    pytest.param(expired, 0xC002, marks=pytest.mark.rule("B-288", "B-341", "B-385", "C-51", "A-50"), id="expired"),
    pytest.param(expired_and_given_back, 0xC002, marks=pytest.mark.rule("B-341", "B-407", "C-51"),
                 id="expired while locked, aborted"),
    pytest.param(expired_and_received, 0x4000, marks=pytest.mark.rule("B-407", "C-51"),
                 id="expired while locked, committed"),
]


def require_final_ack(message: packets.UserMessage) -> None:
    assert message.transaction is not None
    message.transaction.flags |= core.TX_FA


@pytest.mark.rule("B-116", "B-337", "B-343", "B-360")
@pytest.mark.parametrize(("journal", "change"), [(0, None), (JN, None), (JP, None), (0, require_final_ack)],
                         ids=["", "JN", "JP", "FA"])
@pytest.mark.parametrize(("remove", "message_class"), REMOVALS)
def test_a_removal_is_finally_acknowledged_where_jn_jp_or_fa_asks(
        host: Host, remove: Callable[[World, Host], None], message_class: int, journal: int,
        change: Callable[[packets.UserMessage], None] | None) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", journal=journal, ttbr=10, sent_time=world.wall)
    if change:
        sender.edit(1, change)
    run(world, 1000)
    assert (sender.acked, sender.classes) == ([1], [])  # stored, and not yet received
    remove(world, host)
    run(world, 2000)
    assert sender.classes == ([message_class] if (journal or change) and message_class else [])
    for ack in sender.final_acks:
        body = ack.body
        assert (body.tx_sequence_id, body.tx_sequence_number, body.previous_tx_sequence_number) == (
            100 << 32 | 1, 1, 0)
        assert (body.source_guid, body.message_id) == (sender.guid, 1)
        assert ack.message.user.flags & core.USER_DM
    assert sender.received == []
    left = sum(queue.messages for queue in host.store.queues())
    assert left == (remove is given_back)


@pytest.mark.rule("B-336")
@pytest.mark.parametrize("delivery", ["transactional", "express"])
@pytest.mark.parametrize("wanted", [PR, NR, PA | NA])
@pytest.mark.parametrize(("remove", "message_class"), REMOVALS)
def test_a_removal_is_told_to_the_administration_queue_if_that_is_asked_for(
        host: Host, remove: Callable[[World, Host], None], message_class: int, wanted: int, delivery: str) -> None:
    if delivery != "transactional":
        if remove is rejected:
            return  # only in a transaction
        with host.client() as client:
            client.delete_queue("line1")
            client.create_queue("line1")
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", delivery, acknowledge=wanted, admin=ADMIN, ttbr=10, sent_time=world.wall)
    run(world, 1000)
    sender.received.clear()  # of PA
    remove(world, host)
    run(world, 2000)
    answered = message_class and wanted & (PR if message_class == 0x4000 else NR)
    assert sender.told == ([message_class] if answered else [])
    assert all(bool(message.user.flags & core.USER_DM) == (delivery != "express") for message in sender.received)
    assert sender.final_acks == []


@pytest.mark.rule("B-341", "B-340", "B-407")
@pytest.mark.parametrize("purge", [False, True])
def test_the_lock_of_an_application_that_died_ends_by_itself(host: Host, purge: bool) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", journal=JN, ttbr=packets.FOREVER if purge else 10, sent_time=world.wall)
    run(world, 1000)
    with application(world, host) as client:
        assert client.store.begin_receive(client.queue("line1").identifier, 1, client.now())
        if purge:
            with application(world, host) as operator:
                operator.purge_queue("line1")
        else:
            run(world, 15_000)
        assert sender.classes == []
        die(client)
    run(world, 2000)
    assert sender.classes == [0xC001 if purge else 0xC002]


def die(client: Client) -> None:
    """The process ends: nothing is put back, and the kernel frees its locks."""
    for descriptor in client.store._locks:
        os.close(descriptor)
    client.store._locks.clear()
    client.store._receiver = 0


@pytest.mark.rule("B-344", "B-338", "B-339", "B-340", "B-342", "C-50", "C-52", "C-53", "C-54")
@pytest.mark.parametrize(("remove", "message_class"), [
    (received, 0x4000), (rejected, 0xC004), (purged, 0xC001), (deleted, 0xC000)])
def test_an_application_killed_at_any_statement_of_a_removal_has_done_all_of_it_or_nothing(
        tmp_path: Path, remove: Callable[[World, Host], None], message_class: int,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is in the queue, or its FinalAck and its administration acknowledgement are on their way."""
    host = Host(tmp_path)
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", journal=JN, acknowledge=PR | NR, admin=ADMIN)
    run(world, 1000)
    world.wires[0].cut()
    host.restart(world.now, snapshot=True)
    before = dict(host._left)
    outcomes = set()
    statements = 0
    while True:
        statements += 1
        host._left = dict(before)
        host.restart(world.now)
        opened = Client.__init__

        def armed(client: Client, *arguments: Any, opened: Any = opened, left: int = statements, **more: Any) -> None:
            opened(client, *arguments, **more)
            arm(host, client, left)

        with monkeypatch.context() as patch:
            patch.setattr(Client, "__init__", armed)
            crashes = host.crashes
            with contextlib.suppress(Crash):
                remove(world, host)
        finished = host.crashes == crashes
        host.restart(world.now, snapshot=finished)
        if host.store.find_queue("line1") is None:
            host.store.create_queue("line1", transactional=True)
        there = len(host.content("line1"))
        waiting = len(host.store.outgoing_messages())
        assert (there, waiting) in ((1, 0), (0, 2))
        outcomes.add(there)
        if finished:
            break
    assert outcomes == {0, 1}
    assert statements > 10
    run(world, 3000)
    assert (sender.classes, sender.told) == ([message_class], [message_class])
    assert not host.store.outgoing_messages()
    host.store.close()


def arm(host: Host, client: Client, left: int) -> None:
    """Let the process of an application die before so many more statements have been run."""
    def trace(_cursor: Any, _statement: str, _bindings: Any) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            host._snapshot()
            client.store._db.exec_trace = None
            raise Crash
        return True

    client.store._db.exec_trace = trace


@pytest.mark.rule("B-344")
@pytest.mark.parametrize("journal", [JN, JP])
def test_a_final_ack_waits_over_restarts_until_it_is_on_the_sources_disk(host: Host, journal: int) -> None:
    sender = sender_to()
    world = world_of([host], [sender])
    sender.send(b"x", journal=journal)
    run(world, 1000)
    world.wires[0].cut()
    received(world, host)
    host.restart(world.now, snapshot=True)
    world.connect_all()
    while not sender.classes:
        world.collect()
        world.deliver(1 << 20)
    world.wires[0].cut()  # its session acknowledgement is lost
    host.restart(world.now, snapshot=True)
    assert len(host.store.outgoing_messages()) == 1
    run(world, 5000)
    assert sender.classes == [0x4000, 0x4000]
    assert host.store.outgoing_messages() == []


@pytest.mark.rule("B-344", "B-341")
@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_statement_every_journaled_message_is_finally_acknowledged(tmp_path: Path, seed: int) -> None:
    """Received, expired and rejected ones alike; none is both in a queue and acknowledged."""
    host = Host(tmp_path)
    senders = [sender_to(number=1), sender_to(number=2), sender_to("plain", 3)]
    world = World(seed, [host], [*senders])
    for number in range(60):
        for sender in senders:
            if number % 3 == 0:
                sender.send(b"%d" % number, journal=JN, ttbr=world.random.choice((2, packets.FOREVER)),
                            sent_time=world.wall)
        host.arm(world.random.randint(1, 60))
        world.connect_all()
        for _ in range(world.random.randint(1, 6)):
            world.collect()
            world.deliver(1 << 16)
        if world.random.random() < 0.3:
            with contextlib.suppress(Empty):
                received(world, host)
        if world.wires and world.random.random() < 0.2:
            world.random.choice(world.wires).cut()
        world.pass_time(world.random.randint(0, 500))
    host.store._db.exec_trace = None
    world.random = AtOnce()
    run(world, 40_000)
    while host.content("line1"):
        received(world, host)
    world.settle(lambda: not host.store.outgoing_messages())
    for sender in senders:
        answers = {ack.body.message_id: set() for ack in sender.final_acks}
        for ack in sender.final_acks:
            answers[ack.body.message_id].add(ack.message.properties.message_class)
        assert sorted(answers) == list(range(1, 21))
        assert all(len(classes) == 1 for classes in answers.values())
        expected = {0x8009} if sender is senders[2] else {0x4000, 0xC002}
        assert {answer for classes in answers.values() for answer in classes} <= expected
    assert host.crashes > 10
    host.store.close()
