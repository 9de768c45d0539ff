"""What becomes of messages at the queue manager that sent them: the confirmation process with real queue managers at
both ends, expiry, journal and dead-letter queues, what an operator can do and see."""

from __future__ import annotations

import random
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import packet_build
import pytest
from mqqb import acks, confirm, core, guids, handshake, headers, parse, rare
from mqqb.session import Settings
from ordack.broker import sending
from ordack.broker.acceptance import Batch
from ordack.broker.manager import Dispatcher
from ordack.broker.message import Letter, Run, in_runs
from ordack.broker.outcome import Settlements
from ordack.broker.sending import Sending, Sent, each
from ordack.config.config import Config
from ordack.config.names import DEAD_LETTER, DEAD_XACT, JOURNAL
from ordack.store import Store, StoreError

from tests.support.host_peer import body_of
from tests.support.host_world import (
    HERE,
    WALL,
    Host,
    World,
    exchange,
    packets_in,
    peer_of,
    send_from,
    two_hosts,
    world_of,
)

LINE1 = "DIRECT=OS:plant\\private$\\line1"
PLAIN = "DIRECT=OS:plant\\private$\\plain"


def _hosts(tmp_path: Path, **config: Any) -> tuple[World, Host, Host]:
    receiver = Host(tmp_path / "receiver")
    sender = Host(tmp_path / "sender", Config(next_hops={"plant": HERE}, **config), "10.0.0.9")
    return world_of([receiver, sender], []), receiver, sender


def _configured(**values: int | None) -> confirm.Settings:
    return confirm.Settings(**values)  # type: ignore[arg-type]


def _send(world: World, sender: Host, destination: str = LINE1, body: bytes = b"x", **properties: Any) -> Sent:
    with sender.client(world.wall) as client:
        return client.send(destination, body, **properties)


def _order(host: Host, name: str, *arguments: object) -> Any:
    """An operator's command."""
    with host.client() as client:
        return client.order(name, *arguments)


def _seconds(world: World, count: int, up: bool = True) -> None:
    """So many seconds pass, with or without a connection."""
    for _ in range(count):
        if up:
            exchange(world)
        else:
            for wire in list(world.wires):
                wire.cut()
        world.pass_time(500)
        if up:
            exchange(world)
        world.pass_time(500)


def _receive(world: World, receiver: Host, queue: str = "line1") -> bytes:
    with receiver.client(world.wall) as client, client.queue(queue).receive() as message:
        return message.body


def _dead(host: Host, queue: str = DEAD_XACT) -> list[tuple[int, bool]]:
    """Class and doubt of each message in a dead-letter queue, or journal."""
    with host.client() as client:
        return [(message.message_class, message.in_doubt) for message in client.queue(queue).peek()]


def _state(host: Host, sent: Sent) -> tuple[str, int, bool] | None:
    with host.client() as client:
        found = client.state(sent.message_id)
    return found and (found.answer, found.message_class, found.in_doubt)


def _lose_final_acks(world: World) -> None:
    """Everything that is on the way to the sender is lost, and the connection with it."""
    world.collect()
    for wire in list(world.wires):
        wire.cut()


# ---- confirmation.md section 9 --------------------------------------------------------------------


@pytest.mark.rule("C-01", "C-10", "C-25", "C-81", "C-09", "B-338", "B-116", "B-242")
def test_1_received_in_time_leaves_nothing_behind(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    sent = _send(world, sender, dead_letter=True, ttbr=10)
    held = sender.store.usage()
    assert held > 0
    _seconds(world, 3)
    assert _state(sender, sent) == (confirm.STORED, 0, False)
    assert sender.store.usage() == held  # the copy counts
    assert _receive(world, receiver) == b"x"
    _seconds(world, 17)
    assert _dead(sender) == []
    assert sender.store.usage() == 0
    assert _state(sender, sent) == (confirm.RECEIVED, 0x4000, False)


@pytest.mark.rule("C-13", "C-17", "C-23", "C-34", "C-86", "B-394", "B-391", "B-408")
def test_2_final_ack_after_deadline_changes_nothing(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    sent = _send(world, sender, dead_letter=True, ttbr=10)
    _seconds(world, 3)
    _receive(world, receiver)
    world.pass_time(10)
    _lose_final_acks(world)
    _seconds(world, 16, up=False)
    assert _dead(sender) == []
    _seconds(world, 2, up=False)
    assert _dead(sender) == [(0xC002, True)]
    _send(world, sender)  # opens the session on which the FinalAck comes
    _seconds(world, 5)
    assert _dead(sender) == [(0xC002, True)]
    assert _state(sender, sent) == (confirm.DEAD_LETTERED, 0xC002, True)
    assert receiver.store.outgoing.messages() == []
    assert sum("its FinalAck came too late" in line for line in sender.log) == 1


@pytest.mark.rule("A-18", "B-241")
def test_final_ack_for_nontransactional_message_is_ignored(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    sent = _send(world, sender, PLAIN, delivery="recoverable")
    world.pass_time(50)
    world.connect_all()
    world.wires[0].to_initiator.clear()
    packet = acks.final_ack(
        acks.order_queue("10.0.0.9"),
        receiver.store.guid,
        99,
        WALL,
        1,
        1,
        1,
        0,
        sender.store.guid,
        sent.message_id,
        0xC000,
    )
    _send(world, sender)
    exchange(world)
    world.wires[0].to_initiator += packet
    world.wires[0].cut()
    world.settle(lambda: not sender.store.outgoing.messages())
    assert receiver.content("plain") == [b"x"]


# ---- without the process ---------------------------------------------------------------------------


@pytest.mark.rule("B-390", "B-311", "B-312", "B-313", "B-314", "B-403", "C-08", "C-41")
@pytest.mark.parametrize("delivery", ["express", "recoverable"])
def test_nontransactional_messages_expire_too(tmp_path: Path, delivery: str) -> None:
    world, receiver, sender = _hosts(tmp_path)
    asked = {"acknowledge": ["nack-reach-queue"], "administration_queue": "plain", "dead_letter": True}
    _send(world, sender, PLAIN, b"late", delivery=delivery, ttrq=60, ttbr=3, **asked)
    _send(world, sender, PLAIN, b"quiet", delivery=delivery, ttrq=3)
    _seconds(world, 5, up=False)
    assert _dead(sender, DEAD_LETTER) == [(0x8002, False)]
    with sender.client() as client:
        [nack] = client.queue("plain").peek()
        assert (nack.message_class, nack.body, nack.delivery) == (0x8002, b"late", delivery)
    _send(world, sender, PLAIN, b"good", delivery=delivery)
    _seconds(world, 1)
    assert receiver.content("plain") == [b"good"]


@pytest.mark.rule("B-226", "B-393")
def test_journal_holds_delivered_nontransactional_messages(tmp_path: Path) -> None:
    world, _, sender = _hosts(tmp_path)
    for delivery in ("express", "recoverable"):
        _send(world, sender, PLAIN, delivery.encode(), delivery=delivery, journal=True)
        _send(world, sender, PLAIN, b"not this", delivery=delivery, dead_letter=True)
    assert _dead(sender, JOURNAL) == []
    _seconds(world, 30)
    journal = sender.store.messages.peek(sender.store.queues.named(JOURNAL).identifier, 9)
    assert sorted(body_of(message.packet) for message in journal) == [b"express", b"recoverable"]
    assert _dead(sender, DEAD_LETTER) == []


# ---- dead-letter queues ----------------------------------------------------------------------------


@pytest.mark.rule("C-36", "B-396", "B-243")
def test_an_application_has_its_own_dead_letter_queue(tmp_path: Path) -> None:
    world, _, sender = _hosts(tmp_path)
    with sender.client() as client:
        client.create_queue("mine", transactional=True)
        client.create_queue("gone", transactional=True)
    for name in ("mine", "gone"):
        _send(world, sender, body=name.encode(), dead_letter=True, dead_letter_queue=name, ttrq=3)
    with sender.client() as client:
        client.delete_queue("gone")
        client.create_queue("gone", transactional=False)  # no transactional one any more
    _seconds(world, 5, up=False)
    assert sender.content("mine") == [b"mine"]
    assert [
        body_of(m.packet) for m in sender.store.messages.peek(sender.store.queues.named(DEAD_XACT).identifier, 9)
    ] == [b"gone"]


@pytest.mark.rule("B-395", "B-085")
def test_only_the_queue_manager_writes_to_its_queues(host: Host) -> None:
    with host.client() as client:
        for name in (DEAD_LETTER, DEAD_XACT, JOURNAL):
            with pytest.raises(StoreError, match="B-395"):
                client.send(name, b"x", delivery="recoverable")
            client.queue(name)  # to read from
        with pytest.raises(StoreError, match="not open"):
            client.queue("order_queue$")


# ---- what an operator can do and see ---------------------------------------------------------------


@pytest.mark.rule("B-345", "B-346", "B-347", "B-128")
def test_paused_outgoing_queue_sends_nothing_until_resumed(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    _send(world, sender, body=b"1")
    _seconds(world, 2)
    assert _order(sender, "set_on_hold", LINE1, True)
    world.collect()
    world.pass_time(100)
    [(link, data, _)] = [news for news in sender.manager.output() if news[1]]
    [ack] = packets_in(data)
    assert isinstance(ack, handshake.SessionAck)
    assert ack.session.window_size == 1
    sender.wires[link].to_host += data
    _send(world, sender, body=b"2")
    _send(world, sender, PLAIN, b"other", delivery="recoverable")
    _seconds(world, 2)
    assert receiver.content("line1") == [b"1"]
    assert receiver.content("plain") == [b"other"]  # only that queue
    assert [queue["state"] for queue in sender.manager.report()["outgoing"]] == ["OnHold", "Connected"]
    world.wires[0].cut()
    _seconds(world, 2)
    assert [queue["state"] for queue in sender.manager.report()["outgoing"]] == ["OnHold", "Inactive"]
    assert not world.wires  # nothing else waits
    assert _order(sender, "set_on_hold", LINE1, False)
    _seconds(world, 2)
    assert receiver.content("line1") == [b"1", b"2"]
    assert not _order(sender, "set_on_hold", "DIRECT=OS:plant\\private$\\none", True)


# ---- identity, restore, restart --------------------------------------------------------------------


@pytest.mark.rule("C-30", "B-382", "B-023")
def test_messages_of_former_identity_are_dead_lettered(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    waiting = _send(world, sender, dead_letter=True)
    sender.store.close()
    with sender.client() as client:
        old = client.store.guid
        assert client.store.renew_identity() != old
    sender._open(world.now)
    _seconds(world, 1)
    assert _dead(sender) == [(0x800C, False)]
    assert _state(sender, waiting) == (confirm.DEAD_LETTERED, 0x800C, False)
    assert receiver.content("line1") == []
    _send(world, sender, body=b"new")
    _seconds(world, 1)
    assert receiver.content("line1") == [b"new"]


# ---- bad input -------------------------------------------------------------------------------------


@pytest.mark.rule("C-21", "C-83", "C-84", "B-163")
@pytest.mark.parametrize("orderly", [True, False])
def test_expired_message_is_in_doubt_only_if_possibly_sent(tmp_path: Path, orderly: bool) -> None:
    world, _, sender = _hosts(tmp_path)
    _send(world, sender)
    _seconds(world, 1)  # the session stays open
    sent = _send(world, sender, ttrq=5, dead_letter=True)
    world.pass_time(10)  # transmitted, and not delivered
    for wire in list(world.wires):
        wire.to_host.clear()
    if orderly:
        sender.manager.close()
    sender.store.close()
    waiting = _send(world, sender, ttrq=5, dead_letter=True)
    world.now += 10_000
    sender._open(world.now)
    assert _state(sender, sent) == (confirm.DEAD_LETTERED, 0x8002, True)
    assert _state(sender, waiting) == (confirm.DEAD_LETTERED, 0x8002, not orderly)


@pytest.mark.rule("B-396")
@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"ttrq": -1}, "TimeToReachQueue is -1 s"),
        ({"ttbr": 1 << 32}, "TimeToBeReceived is 4294967296 s"),
        ({"acknowledge": ["receive"]}, "go together"),
        ({"administration_queue": "plain"}, "go together"),
        ({"acknowledge": ["all"], "administration_queue": "plain"}, "no acknowledgement 'all'"),
        ({"acknowledge": ["receive"], "administration_queue": "line1"}, "is transactional"),
        ({"dead_letter_queue": "plain", "dead_letter": True}, "no transactional private queue"),
        ({"dead_letter_queue": "line1"}, "asks for dead-lettering"),
        ({"dead_letter_queue": "line1", "dead_letter": True, "delivery": "recoverable"}, "for a transactional message"),
        ({"dead_letter_queue": DEAD_XACT, "dead_letter": True}, "no transactional private queue"),
    ],
)
def test_invalid_properties_are_refused_and_nothing_is_sent(
    host: Host, properties: dict[str, Any], reason: str
) -> None:
    with host.client() as client, pytest.raises(ValueError, match=reason):
        client.send("DIRECT=TCP:10.0.0.5\\private$\\q", b"x", **properties)
    assert host.store.usage() == 0


# ---- what holds from the start ---------------------------------------------------------------------


@pytest.mark.rule("B-015", "B-014", "B-156", "B-138", "B-154")
def test_timing_settings_hold_from_the_next_start(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    numbers = {"SeqResend13Time": 7, "RemoveDuplicateCleanup": 20_000}
    for host, hops in ((sender, {"plant": HERE}), (receiver, {})):
        host.config = Config.of(numbers, next_hops=hops)
        host.restart(world.now, snapshot=True)
    _send(world, sender)
    _send(world, sender, PLAIN, delivery="express")
    world.pass_time(50)
    world.connect_all()
    while not receiver.store.memory.history():
        world.deliver(1 << 22)
        world.collect()
    world.wires[0].to_initiator.clear()  # the OrderAck
    first = len(receiver.store.memory.history())
    assert first == 1
    _seconds(world, 6)
    assert [row.number for row in sender.store.outgoing.messages()].count(1) == 1
    _seconds(world, 4)  # the resend is at 7, not at 30
    assert sender.store.outgoing.messages() == []
    receiver.restart(world.now, snapshot=True)
    assert len(receiver.store.memory.history()) == 1  # not empty at the start: the timer runs
    _seconds(world, 41)
    assert receiver.store.memory.history() == []


@pytest.mark.rule("B-117", "B-239", "B-241", "B-245", "C-23")
def test_message_awaiting_final_ack_settles_once_after_restart(tmp_path: Path) -> None:
    world, receiver, sender = _hosts(tmp_path)
    received = _send(world, sender, dead_letter=True)
    lost = _send(world, sender, body=b"lost", dead_letter=True, ttbr=20)
    waits = _send(world, sender, body=b"waits", dead_letter=True)
    _seconds(world, 3)
    sender.restart(world.now, snapshot=True)
    _seconds(world, 1)
    [queue] = sender.manager.outgoing
    assert queue.stream.transfer_info().no_read_count == 3
    assert received.tx_sequence_id
    assert received.tx_sequence_number
    [wire] = world.wires
    wire.to_initiator += 2 * acks.final_ack(
        acks.order_queue("10.0.0.9"),
        receiver.store.guid,
        99,
        world.wall,
        received.tx_sequence_id & 0xFFFFFFFF,
        received.tx_sequence_id >> 32,
        received.tx_sequence_number,
        received.tx_sequence_number - 1,
        sender.store.guid,
        received.message_id,
        confirm.ACK_RECEIVE,
    )
    world.deliver(1 << 20)
    assert _state(sender, received) == (confirm.RECEIVED, 0x4000, False)
    assert queue.stream.transfer_info().no_read_count == 2
    _seconds(world, 50, up=False)
    [queue] = sender.manager.outgoing
    assert _state(sender, lost) == (confirm.DEAD_LETTERED, 0xC002, True)
    assert _state(sender, waits) == (confirm.STORED, 0, False)
    assert queue.stream.transfer_info().no_read_count == 1
    assert _receive(world, receiver) == b"x"
    _seconds(world, 20)
    assert _receive(world, receiver) == b"waits"
    _seconds(world, 20)
    assert (queue.is_needed, queue.stream.transfer_info().no_read_count) == (False, 0)


@pytest.mark.rule("B-053", "B-192", "B-302", "B-050")
def test_session_serves_only_outgoing_queues_of_its_hop(tmp_path: Path) -> None:
    here, there = Host(tmp_path / "here"), Host(tmp_path / "there", address="10.0.0.2")
    hops = {"plant": HERE, "store": ("10.0.0.2", 1801)}
    sender = Host(tmp_path / "sender", Config(next_hops=hops), "10.0.0.9")
    world = world_of([here, there, sender], [])
    for name in ("plant", "store"):
        for queue in ("line1", "plain"):
            delivery = "transactional" if queue == "line1" else "express"
            _send(world, sender, f"DIRECT=OS:{name}\\private$\\{queue}", name.encode(), delivery=delivery)
    sender.restart(world.now, snapshot=True)
    _seconds(world, 2)
    for host, body in ((here, b"plant"), (there, b"store")):
        assert (host.content("line1"), host.content("plain")) == ([body], [body])
        [link] = host.manager.links
        assert link.address == "10.0.0.9"  # as the socket said
    assert sender.store.outgoing.messages() == []


@pytest.mark.rule("B-420", "B-406")
def test_each_message_has_the_times_that_it_was_given(tmp_path: Path) -> None:
    world, _, sender = _hosts(tmp_path)
    _send(world, sender, dead_letter=True, ttrq=3)
    _send(world, sender, dead_letter=True, ttrq=30)
    _seconds(world, 5, up=False)
    assert len(_dead(sender)) == 1
    _seconds(world, 27, up=False)
    assert len(_dead(sender)) == 2


@pytest.mark.rule("B-359", "B-092")
def test_stream_without_accepted_message_sends_no_order_ack(host: Host) -> None:
    peer = peer_of(1)
    world = world_of([host], [peer])
    exchange(world)
    peer.send(b"1")
    peer.send(b"2")
    peer.stream.table[0].awaiting_ack = True  # the first is lost on the way
    exchange(world)
    for _ in range(3):
        world.pass_time(500)
        exchange(world)
    assert (peer.order_acks, host.content("line1")) == (0, [])
    peer.stream.table[0].awaiting_ack = False
    for _ in range(70):
        world.pass_time(500)
        exchange(world)
    assert (peer.acked, host.content("line1")) == ([1, 2], [b"1", b"2"])


@pytest.mark.rule("B-308", "B-311", "B-294", "B-295", "B-296")
def test_expired_message_is_not_sent_and_gets_no_report_message(tmp_path: Path) -> None:
    public = "8ad9c1a6-2b0c-4d3e-9f10-1234567890ab"
    names = {public: "PRIVATE=00000000-0000-0000-0000-000000000000\\00000011"}
    world, receiver, sender = _hosts(tmp_path, report_messages=True, public_queues=names)
    assert sender.store.queues.named("plain").identifier == 0x11
    for body, ttrq in ((b"late", 3), (b"good", 100)):
        good = _send(world, sender, PLAIN, body, delivery="express", ttrq=ttrq)
    for row in sender.store.outgoing.messages():  # as an application of another make would have it traced
        message = parse.parse(sender.store.outgoing.packet(row.key)[0])
        assert isinstance(message, headers.UserMessage)
        message.base.flags |= core.BASE_TR
        message.debug = rare.DebugHeader()
        message.debug.flags = 1
        message.debug.queue_identifier = guids.guid_bytes(public)
        sender.store._database.all(
            "UPDATE outgoing_messages SET packet = ? WHERE id = ?", (packet_build.build(message), row.key)
        )
    world.now += 4000
    _seconds(world, 2)
    assert receiver.content("plain") == [b"good"]
    with sender.client() as client:
        [report] = client.queue("plain").peek()
    assert (report.message_class, report.delivery) == (0x0001, "express")
    assert f":{good.message_id:08X}:00 received by" in report.label
    assert "<NEXT HOP>10.0.0.1</NEXT HOP>" in report.body.decode("utf-16-le")


# ---- a store that fails for a while ----------------------------------------------------------------


@pytest.mark.rule("B-235")
def test_order_ack_is_stored_with_next_commit(tmp_path: Path) -> None:
    world, receiver, sender = two_hosts(tmp_path)
    send_from(sender, b"1", b"2")
    world.pass_time(50)
    exchange(world)
    assert receiver.content("line1") == [b"1", b"2"]
    syncs = sender.store.work.syncs
    receiver.manager.acknowledge(world.now + 600, world.wall)
    exchange(world)
    assert [queue.messages for queue in sender.store.outgoing.counts()] == [2], "nobody waits for it"
    assert sender.store.work.syncs == syncs
    world.pass_time(50)
    assert [queue.messages for queue in sender.store.outgoing.counts()] == [0]


def _stored_by(folder: Path, runs: Iterable[Run], last: int) -> object:
    """All that letters become in a store, one of whose streams has `last` numbers left when they come."""
    with Store(folder, clock=lambda: WALL) as store:
        with store.transaction():
            first = Sending(Settlements(store, WALL, Config()))
            first.send(Letter(LINE1, b"first"))
            first.write()
        [queue] = store.outgoing.queues()
        ordinal, time_stamp, _, last_ack = queue.record
        store.outgoing.save([queue._replace(record=(ordinal, time_stamp, 0xFFFFFFFF - last, last_ack))])
        with store.transaction():
            further = Sending(Settlements(store, WALL, Config()), 100)
            sent = each(store.guid, further.send_all(runs))
            further.write()
        store.outgoing.waiting(range(1, store.outgoing.last_key() + 1))  # splits rows
        columns = "lookup_id, queue, rank, expires, wants, own, dead_letter, correlation, packet"
        tables = {"messages": columns} | dict.fromkeys(("queues", "outgoing", "outgoing_messages", "settings"), "*")
        rows = [list(store._database.all(f"SELECT {what} FROM {table}")) for table, what in tables.items()]
        return sent, rows


@pytest.mark.parametrize("seed", range(5))
def test_send_many_equals_single_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xab" * size)
    monkeypatch.setattr(secrets, "randbelow", lambda below: 77 % below)
    chance = random.Random(seed)
    with Store(tmp_path / "runs", create=True) as store, store.transaction():
        store.queues.create("line1", transactional=True)
        store.queues.create("plain", transactional=False)
    shutil.copytree(tmp_path / "runs", tmp_path / "single")
    shutil.copytree(tmp_path / "runs", tmp_path / "python")
    letter = Letter(LINE1)
    letters = []
    for _ in range(100):
        if chance.random() < 0.1:
            letter = Letter(
                chance.choice((LINE1, LINE1.upper(), "line1", "plain")),
                label=chance.choice(("", "label")),
                ttbr=chance.choice((None, 60)),
                journal=chance.random() < 0.5,
                dead_letter=chance.random() < 0.5,
            )
        letters.append(letter._replace(body=chance.randbytes(chance.choice((0, 9, 9, 9, 200)))))
    last = chance.choice((20, 1000))
    runs = in_runs(letters)
    assert [letter._replace(body=b"") for letter in letters] == [
        run.letter._replace(body=b"") for run in runs for _ in run.sizes
    ]
    assert [len(letter.body) for letter in letters] == [size for run in runs for size in run.sizes]
    assert len(runs) < 60
    monkeypatch.setattr(sending, "RUN_BYTES", chance.choice((1, 700, 1 << 20)))
    together = _stored_by(tmp_path / "runs", runs, last)
    assert together == _stored_by(tmp_path / "single", [Run.of(one, (one.body,)) for one in letters], last)
    monkeypatch.setattr(core, "implementation", "python")
    assert together == _stored_by(tmp_path / "python", runs, last)


def _played(folder: Path, seed: int) -> list[object]:
    """All that leaves on the wires, and what the stores hold, while messages of some commits are sent."""
    chance = random.Random(seed)
    world, _, sender = _hosts(folder, session=Settings(window_size=chance.choice((7, 64))))
    seen: list[object] = []
    for _ in range(40):
        act = chance.randrange(8)
        if act < 2:
            with sender.client(world.wall) as client:
                size = chance.choice((0, 900))
                client.send_many(Letter(LINE1, bytes(size)) for _ in range(chance.choice((2, 70, 150))))
        elif act == 2:
            world.pass_time(chance.choice((100, 3000, 31_000)))
        elif act == 3 and world.wires and chance.random() < 0.4:
            world.wires[0].cut()
        elif act == 4 and chance.random() < 0.3:
            sender.restart(world.now)
        for _ in range(4):
            world.pass_time(20)
            world.connect_all()
            world.collect()
            seen += [(bytes(wire.to_host), bytes(wire.to_initiator)) for wire in world.wires]
            world.deliver(chance.choice((20_000, 1 << 20)))
        if chance.random() < 0.1:
            sender.store.outgoing.waiting(range(1, sender.store.outgoing.last_key() + 1))  # splits rows
    world.settle(lambda: not sender.store.outgoing.total())
    for host in world.hosts:
        seen += [host.store.queues.named("line1").messages, host.manager.report()["outgoing"]]
        seen += [host.store.memory.outcome(message_id) for message_id in range(1, 3000)]
    return seen


@pytest.mark.parametrize("seed", range(4))
def test_runs_leave_and_end_like_single_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xab" * size)
    monkeypatch.setattr(secrets, "randbelow", lambda below: 77 % below)
    runs = []
    send_run = Dispatcher._send_run
    monkeypatch.setattr(Dispatcher, "_send_run", lambda *of: (runs.append(send_run(*of)), runs[-1])[1])
    together = _played(tmp_path / "runs", seed)
    assert sum(runs) > 10
    monkeypatch.setattr(Dispatcher, "_send_run", lambda *_: False)
    assert together == _played(tmp_path / "singles", seed)


def _settled_by(host: Host, answers: list[list[tuple[int, int]]]) -> object:
    """All that acknowledgements make of a store, those of each list in one batch."""
    [queue] = host.manager.outgoing
    for some in answers:
        with host.store.transaction():
            batch = Batch(Settlements(host.store, WALL, host.manager.config))
            batch.answers = some
            batch.queue_of = dict.fromkeys((key for key, _ in some), queue)
            host.manager._settling.write(batch)
    host.store.outgoing.waiting(range(1, host.store.outgoing.last_key() + 1))  # splits rows
    tables = {
        "outgoing_messages": "id, message_id, number, held, due, confirmation, packet",
        "messages": "queue, packet, in_doubt",
        "queues": "id, messages, bytes",
        "outgoing": "messages, bytes",
    }
    outcomes = [
        (message_id - back, *outcome)
        for message_id, messages, *outcome in host.store._database.all(
            "SELECT message_id, count, confirmation, destination FROM outcomes"
        )
        for back in range(messages)
    ]
    rows = [sorted(host.store._database.all(f"SELECT {what} FROM {table}")) for table, what in tables.items()]
    return sorted(outcomes), rows


@pytest.mark.parametrize("seed", range(10))
def test_batched_acks_settle_messages_like_single_acks(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    world, _, sender = _hosts(tmp_path, confirmation=_configured(xact_dead_letter_always=False))
    with sender.client() as client:
        client.send_many(
            Letter(
                LINE1,
                dead_letter=chance.random() < 0.3,
                journal=chance.random() < 0.3,
                ttbr=chance.choice((None, None, 60)),
            )
            for _ in range(40)
        )
    sender.manager.poll(world.now, world.wall)
    sender.back_up()
    keys = [key for key in range(1, 41) if chance.random() < 0.9]
    classes = (0, 0, 0, confirm.ACK_RECEIVE, 0x8003, 0xC001)
    answers = [(key, 0 if chance.random() < 0.8 else chance.choice(classes)) for key in keys]
    answers += [(key, chance.choice(classes)) for key in keys if chance.random() < 0.2]
    alone = [[answer for answer in answers if answer[0] == key] for key in keys]
    batches = [answers]
    if seed % 2:  # OrderAcks alone
        acks = [(key, 0) for key in range(1, chance.randrange(1, 41))]
        end = chance.randrange(len(acks) + 1)
        batches, alone = [acks[:end], acks[end:]], [[ack] for ack in acks]
    together = _settled_by(sender, batches)
    sender.put_back(world)
    sender.store.outgoing.waiting(range(1, 41))  # splits rows
    assert together == _settled_by(sender, alone)
