"""The node against a destination built on the engine: delivery over broken links, refusals, failing disks, restarts."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path
from typing import Any

import power
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqqb import acks, build, confirm, core, headers
from mqqb.names import parse_format_name
from mqqb.session import Settings
from ordack.node import Node, OutboxError, OutboxFull, OutboxMessage, OutboxWriteFailed
from ordack.node.storage import outbox
from ordack.node.talk.link import TcpLink
from ordack.node.talk.peer import Peer
from virtual import Nowhere

from tests.node.destination import ALARMS, DEADLINE_S, GUID, LINE, Connection, Destination, make, run, turns, until


@pytest.mark.rule("B-002", "B-008", "B-098", "B-204", "B-217", "B-302", "A-38", "A-39")
async def test_a_message_is_accepted_then_stored(tmp_path: Path) -> None:
    destination = await Destination().start()
    node = make(destination, tmp_path)
    queue = node.queue(LINE)
    assert node.queue(LINE) is queue
    assert node.queue(LINE.upper()) is queue, "one name, one stream (B-099)"
    sent = [await queue.send(body, label="reading") for body in (b"", b"21.5", bytes(65536))]
    assert [message.message_id for message in sent] == [1, 2, 3]
    assert node.next_message_id == 4
    assert [await message.stored() for message in sent] == [True] * 3
    assert [message.conclusion().answer for message in sent] == [confirm.STORED] * 3
    assert node.waiting == 0
    assert destination.bodies == [b"", b"21.5", bytes(65536)]
    assert {arrived.source for arrived in destination.queue} == {node.guid}
    assert destination.queue[0].label == "reading"
    assert destination.queue[0].queue == LINE
    stats = node.stats
    assert (stats.accepted, stats.stored, stats.failed, stats.sent, stats.connects) == (3, 3, 0, 3, 1)
    assert queue.peer.remote_guid == GUID
    await node.close()
    await destination.stop()


@pytest.mark.rule("A-08", "A-45", "B-158", "B-217", "B-297", "B-299", "B-301", "B-317", "B-318")
@given(seed=st.integers(0, 2**32 - 1), hold=st.sampled_from((2, 8, 500)))
@settings(max_examples=2, deadline=None)
def test_breaking_link_delivers_each_message_once_in_order(seed: int, hold: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice((0, 20, 300, 5000)) for _ in range(40)]
    handshake = 1500  # bytes; not too many cuts in it, for each doubles the wait
    cuts = iter([dice.randrange(handshake) for _ in range(2)] + [handshake + dice.randrange(9000) for _ in range(5)])

    async def main() -> None:
        destination = await Destination(next_cut=lambda: next(cuts, None)).start()
        node = make(destination, files=power.Disk(), hold=hold)
        queue = node.queue(LINE)
        sent = [await queue.send(b"%d " % k + bytes(size)) for k, size in enumerate(sizes)]
        for message in sent:
            assert await message.stored()
        assert [arrived.message_id for arrived in destination.queue] == list(range(1, 41))
        assert destination.bodies == [b"%d " % k + bytes(size) for k, size in enumerate(sizes)]
        assert destination.cuts >= 4
        assert node.stats.connects >= 2
        await node.close()
        await destination.stop()

    run(main)


@pytest.mark.rule("B-054", "B-056", "B-057", "B-072", "B-098", "B-162", "B-301", "A-21", "A-34")
async def test_pending_messages_and_numbers_survive_restart(tmp_path: Path) -> None:
    destination = Destination()
    node = Node(str(tmp_path))
    for name in (LINE, ALARMS):
        for k in range(5):
            await node.queue(name).send(b"%d" % k)
    numbers = [(entry.tx_sequence_id, entry.tx_sequence_number) for entry in node.queue(LINE).stream.table]
    guid = node.guid
    await node.close()

    await destination.start()
    node = make(destination, tmp_path)
    assert node.guid == guid
    assert node.waiting == 10
    assert node.next_message_id == 11
    await until(lambda: node.waiting == 0)
    line = [arrived for arrived in destination.queue if arrived.queue == LINE]
    assert [arrived.sequence for arrived in line] == numbers
    assert [arrived.body for arrived in line] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(destination.queue) == 10
    assert len({arrived.sequence[0] for arrived in destination.queue}) == 2, "an id names one stream (B-079)"
    last = await node.queue(LINE).send(b"5")
    assert last.message_id == 11
    assert await last.stored()
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-011", "B-091", "B-230", "A-21")
async def test_one_session_carries_all_queues_of_an_address(tmp_path: Path) -> None:
    destination = await Destination().start()
    node = make(destination, tmp_path)
    names = (LINE, ALARMS, LINE + "2")
    sent = [await node.queue(names[k % 3]).send(b"%d" % k) for k in range(30)]
    assert all([await message.stored() for message in sent])
    for number, name in enumerate(names):
        bodies = [arrived.body for arrived in destination.queue if arrived.queue == name]
        assert bodies == [b"%d" % k for k in range(number, 30, 3)]
    assert node.stats.connects == 1
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-009", "B-115", "B-241", "B-244", "B-245", "A-16")
async def test_rejected_message_is_dead_lettered_and_others_stored(tmp_path: Path) -> None:
    destination = await Destination(refuse=lambda arrived: 0x8003 if arrived.body == b"1" else 0).start()
    node = make(destination, tmp_path)
    queue = node.queue(LINE)
    sent = [await queue.send(b"%d" % k) for k in range(3)]
    assert [await message.stored() for message in sent] == [True, False, True]
    assert await sent[1].dead_lettered() == 0x8003
    assert sent[1].conclusion().answer == confirm.DISCARDED
    assert destination.bodies == [b"0", b"2"]
    assert (node.stats.stored, node.stats.failed, node.waiting) == (2, 1, 0)
    await node.close()
    node = Node(str(tmp_path))
    assert node.waiting == 0, "what was refused does not come back"
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-009", "B-244")
async def test_on_failed_reports_refused_message_sent_before_restart(tmp_path: Path) -> None:
    destination = await Destination(refuse=lambda _: 0x8000).start()
    node = Node(str(tmp_path))
    await node.queue(LINE).send(b"1")
    await node.close()
    told: list[tuple[int, int]] = []
    node = make(
        destination,
        tmp_path,
        on_failed=lambda message: told.append((message.message_id, message.conclusion().message_class)),
    )
    await until(lambda: not node.waiting)
    assert told == [(1, 0x8000)]
    await node.close()
    await destination.stop()


async def test_on_connection_reports_connect_disconnect_and_reason(tmp_path: Path) -> None:
    """Attempts that fail for the same reason are told once."""
    destination = await Destination().start()
    told: list[str] = []

    def changed(peer: Peer, reason: str) -> None:
        assert peer.address == "127.0.0.1"
        told.append(reason)

    async with make(destination, tmp_path, on_connection=changed) as node:
        queue = node.queue(LINE)
        assert await (await queue.send(b"1")).stored()
        assert told == [""]
        attempts = 0
        opened = queue.peer.link.open

        def counted() -> None:
            nonlocal attempts
            attempts += 1
            opened()

        queue.peer.link.open = counted  # type: ignore[method-assign]
        await destination.stop()
        await queue.send(b"2")
        await until(lambda: attempts > 3)
        assert len(told) == len(set(told)) < 4, told
        assert any("refused" in reason for reason in told), told
        await destination.start(destination.port)
        await until(lambda: not node.waiting)
        assert told[-1] == ""
    assert destination.bodies == [b"1", b"2"]
    await destination.stop()


async def test_fatal_delivery_error_is_raised_to_every_waiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = await Destination().start()
    node = Node(str(tmp_path), connect=("127.0.0.1", destination.port))
    first, second = [await node.queue(LINE).send(body) for body in (b"1", b"2")]

    def broken(_: TcpLink, buffer: memoryview) -> int:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(TcpLink, "readinto", broken)
    waiting = asyncio.create_task(first.stored())
    await asyncio.sleep(0)
    node.start()
    for told in (waiting, second.stored(), node.run(), node.queue(LINE).send(b"3")):
        with pytest.raises(RuntimeError, match="a mistake"):
            await told
    assert node.waiting == 2, "they stay in the outbox"
    await until(lambda: bool(destination.connections))
    await node.close()
    await until(lambda: not destination.connections)
    await destination.stop()


async def test_close_wakes_waiters_with_an_error() -> None:
    node = Node("", files=power.Disk(), connect=Nowhere(), hold=4)  # type: ignore[arg-type]
    async with node:
        messages = [await node.queue(LINE).send(b"%d" % k) for k in range(12)]
        waits = [asyncio.create_task(message.stored()) for message in messages]
        await asyncio.sleep(0)
    for task in waits:
        with pytest.raises(OutboxError, match="closed"):
            await asyncio.wait_for(task, DEADLINE_S)
    with pytest.raises(OutboxError, match="closed"):
        await asyncio.wait_for(messages[0].stored(), DEADLINE_S)
    assert node.error is None


@pytest.mark.rule("B-098")
async def test_nothing_leaves_before_it_is_durable() -> None:
    disk = power.Disk()
    missing: list[int] = []

    def seen(message: headers.UserMessage) -> None:
        survives = outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1)))
        known = {restored.handle.message_id for restored in survives.restored}
        if message.user.message_id not in known and message.user.message_id >= survives.next_message_id:
            missing.append(message.user.message_id)

    destination = await Destination(seen=seen).start()
    node = make(destination, files=disk)
    queue = node.queue(LINE)
    await asyncio.gather(*[queue.send(b"%d" % k) for k in range(100)])
    await until(lambda: node.waiting == 0)
    assert len(destination.queue) == 100
    # One that is numbered, while the session is open and has reason to write, just before its sync.
    packet = build.user_message(node.guid, 101, queue.destination, b"100", delivery="transactional")
    node.backlog.accept(queue, packet, confirm.new(node.clock.time(), node.outcomes.settings))
    node.touch()
    await until(lambda: len(destination.queue) == 101)
    assert missing == []
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-136", "B-151", "B-273")
async def test_message_without_order_ack_is_resent_on_same_session() -> None:
    destination = await Destination(order_ack_timeout=1 << 30).start()
    node = make(destination, files=power.Disk())
    queue = node.queue(LINE)
    queue.stream._intervals = (50, 50)
    message = await queue.send(b"once")
    await until(lambda: destination.duplicates >= 2)
    assert destination.bodies == [b"once"]
    assert message.conclusion().answer == confirm.WAITING
    assert node.stats.connects == 1
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-241")
async def test_a_final_ack_for_another_board_settles_nothing() -> None:
    destination = await Destination(order_ack_timeout=1 << 30).start()
    node = make(destination, files=power.Disk())
    message = await node.queue(LINE).send(b"waits")
    await until(lambda: destination.bodies == [b"waits"])
    (entry,) = node.queue(LINE).stream.table
    ordinal, time_stamp = entry.tx_sequence_id & 0xFFFFFFFF, entry.tx_sequence_id >> 32
    for source, outcome in ((bytes(16), confirm.WAITING), (node.guid, confirm.DISCARDED)):
        name = acks.order_queue("127.0.0.1")
        packet = acks.final_ack(name, GUID, 1, 0, ordinal, time_stamp, 1, 0, source, message.message_id, 0xC001)
        acked = destination.connections[0]
        acked.send(packet, True)
        await until(lambda: not core.session_unacked_sent(acked.session.window.counts))  # noqa: B023 - it ends here
        assert message.conclusion().answer == outcome
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-098")
async def test_a_refusal_that_cannot_be_written_is_not_acknowledged() -> None:
    disk = power.Disk()

    def full(disk: Any, what: str, data: Any) -> None:
        if what in ("append", "sync"):
            raise OSError(errno.ENOSPC, "no space")

    def seen(message: headers.UserMessage) -> None:
        disk.before = full

    destination = await Destination(refuse=lambda _: 0x8003, seen=seen).start()
    node = make(destination, files=disk)
    queue = node.queue(LINE)
    message = await queue.send(b"unwanted")
    assert not await message.stored()
    await until(lambda: not destination.connections)
    assert queue.peer.reason.startswith("B-098")
    disk.before = None
    await node.close()
    assert Node("", files=disk.after_cut(power.KEEP_SYNCED, power.Dice(1))).waiting == 0
    await destination.stop()


async def test_the_last_answers_become_durable_without_another_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordack.node.node.LAZY_SYNC_MS", 1 << 30)
    disk = power.Disk()
    destination = await Destination().start()
    node = make(destination, files=disk)
    syncs: list[str] = []
    disk.before = lambda _, step, data: syncs.append(step) if step == "sync" else None
    assert await (await node.queue(LINE).send(b"last")).stored()
    await turns()
    assert len(syncs) == 2, "one for the message, one to note that something is sent; an answer costs none"
    monkeypatch.setattr("ordack.node.node.LAZY_SYNC_MS", 50)
    left = lambda: outbox.Outbox(disk.after_cut(power.KEEP_SYNCED, power.Dice(1))).restored  # noqa: E731
    await until(lambda: not left())
    await node.close()
    await destination.stop()


async def test_concurrent_sends_share_a_sync() -> None:
    disk = power.Disk()
    syncs: list[str] = []
    disk.before = lambda _, step, data: syncs.append(step) if step == "sync" else None
    node = Node("", files=disk)
    queue = node.queue(LINE)
    before = len(syncs)
    sent = await asyncio.gather(*[queue.send(b"%d" % k) for k in range(64)])
    assert [message.message_id for message in sent] == list(range(1, 65))
    assert len(syncs) - before <= 2
    await node.close()


@pytest.mark.parametrize("step", ["append", "sync"])
@pytest.mark.parametrize("together", [1, 5])
async def test_a_failing_disk_refuses_and_leaves_no_gap(step: str, together: int) -> None:
    disk = power.Disk()
    destination = await Destination().start()
    node = make(destination, files=disk)
    queue = node.queue(LINE)
    await queue.send(b"before")

    def fail(disk: Any, what: str, data: Any) -> None:
        if what == step:
            if step == "append":
                disk.tail.data += data[:3]
            disk.tail.unreliable = True
            raise OSError(errno.ENOSPC, "no space")

    disk.before = fail
    results = await asyncio.gather(*[queue.send(b"lost") for _ in range(together)], return_exceptions=True)
    assert all(isinstance(result, OutboxWriteFailed) for result in results), results
    assert "send again" in str(results[0])
    assert isinstance(results[0], OutboxWriteFailed)
    assert results[0].errno == errno.ENOSPC
    assert node.next_message_id == 2, "nothing was half accepted"
    disk.before = None
    after = await queue.send(b"after")
    assert after.message_id == 2
    assert await after.stored()
    assert destination.bodies == [b"before", b"after"]
    assert (node.stats.accepted, node.waiting) == (2, 0)
    await node.close()
    await destination.stop()


async def test_a_full_outbox_refuses_until_something_is_stored(tmp_path: Path) -> None:
    destination = Destination()
    node = Node(str(tmp_path), connect=("127.0.0.1", 9), capacity=20000, segment_size=4000)
    queue = node.queue(LINE)
    results = await asyncio.gather(*[queue.send(bytes(1000)) for _ in range(25)], return_exceptions=True)
    count = sum(isinstance(result, OutboxMessage) for result in results)
    assert all(isinstance(result, OutboxFull) for result in results[count:])
    assert "wait until messages are gone" in str(results[-1])
    assert 14 <= count <= 19
    assert node.next_message_id == count + 1
    await node.close()
    await destination.start()
    node = make(destination, tmp_path, capacity=20000, segment_size=4000)
    await until(lambda: node.waiting == 0)
    message = await node.queue(LINE).send(b"room again")
    assert await message.stored()
    assert message.message_id == count + 1
    with pytest.raises(OutboxFull, match="too large"):
        await node.queue(LINE).send(bytes(20000))
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-133", "B-189")
async def test_node_retries_until_destination_listens(tmp_path: Path) -> None:
    destination = await Destination().start()
    port = destination.port
    await destination.stop()
    node = make(destination, tmp_path)
    message = await node.queue(LINE).send(b"early")
    await until(lambda: bool(node.peers.all[0].reason))
    assert message.conclusion().answer == confirm.WAITING
    await destination.start(port)
    assert await message.stored()
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-147", "B-190")
async def test_idle_session_closes_and_reconnects_for_next_message(tmp_path: Path) -> None:
    destination = await Destination().start()
    node = make(destination, tmp_path, settings=Settings(cleanup_timeout=100))
    queue = node.queue(LINE)
    assert await (await queue.send(b"0")).stored()
    await until(lambda: not destination.connections)
    for _ in range(100):
        node.poll()
    assert node.stats.connects == 1, "no session without a message"
    assert await (await queue.send(b"1")).stored()
    assert node.stats.connects == 2
    await node.close()
    await destination.stop()


@pytest.mark.rule("B-168", "B-169")
async def test_a_peer_that_talks_nonsense_is_left(tmp_path: Path) -> None:
    greetings = [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3, b"\x10\x00", b""]
    destination = await Destination().start()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greetings.pop(0) if greetings else b"")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    node = make(destination, tmp_path)
    node_to_nonsense = Node(str(tmp_path / "other"), connect=("127.0.0.1", port), random=lambda: 0.99)
    node_to_nonsense.start()
    message = await node_to_nonsense.queue(LINE).send(b"patient")
    await until(lambda: not greetings)
    server.close()
    await server.wait_closed()
    destination_too = await Destination().start(port)
    assert await message.stored()
    await node_to_nonsense.close()
    await node.close()
    await destination_too.stop()
    await destination.stop()


async def test_node_drops_incoming_messages_without_order_ack(tmp_path: Path) -> None:
    destination = await Destination().start()
    node = make(destination, tmp_path)
    queue = node.queue(LINE)
    assert await (await queue.send(b"0")).stored()
    connection: Connection = destination.connections[0]
    name = parse_format_name("DIRECT=OS:board\\private$\\commands")
    for k in range(150):  # more than the window takes
        delivery = ("express", "recoverable", "transactional")[k % 3]
        packet = build.user_message(GUID, k + 1, name, b"go", delivery=delivery)
        connection.send(packet, delivery != "express")
    await until(lambda: node.stats.dropped == 150)
    assert await (await queue.send(b"1")).stored(), "the session goes on"
    assert node.stats.connects == 1
    await node.close()
    await destination.stop()
