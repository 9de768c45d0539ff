"""The API for asyncio does what that without it does, for many tasks at once, and loses nothing when tasks are
cancelled."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ordack
import pytest
from ordack.api import aio
from ordack.api.aio import MOST
from ordack.api.remote import Conversation
from ordack.client import Client, Empty, Letter, Message, Reject, Transaction
from ordack.config.names import DEAD_XACT
from ordack.store.messages import StoredMessage

from tests.host.sockets import until
from tests.support.command import DEADLINE_S, serve_applications


@pytest.fixture(params=["alone", "at an address"])
def place(request: pytest.FixtureRequest, store: Path) -> Iterator[Path | str]:
    serve, address = (None, "") if request.param == "alone" else serve_applications(store)
    yield address or store
    if serve:
        assert serve.stop()[0] == 0


def _bodies(folder: Path, name: str) -> list[bytes]:
    with Client(folder) as client:
        return [message.body for message in client.queue(name).peek()]


async def test_async_client_sends_receives_and_commits(place: Path | str, store: Path) -> None:
    async with ordack.connect_async(place) as client:
        sent = await client.send("line1", b"1", label="l")
        assert sent.tx_sequence_number == 1
        await client.send_many([Letter("line1", b"2"), Letter("plain", b"3")])
        conclusion = await client.state(sent.message_id)
        assert conclusion
        async with client.transaction() as transaction:
            first = await transaction.receive("line1")
            transaction.send("plain", first.body + b"!")
        assert len(transaction.sent) == 1
        async with client.queue("line1").receive_batch(5) as messages:
            assert [message.body for message in messages] == [b"2"]
        await client.queue("line1").send(b"4")
        with pytest.raises(Empty):
            await _receive(client, "line1", times=2)
        assert _bodies(store, "line1") == [b"4"]
    assert _bodies(store, "plain") == [b"3", b"1!"]


async def _receive(client: ordack.api.aio.AsyncClient, name: str, times: int, timeout: float | None = 0.0) -> None:
    async with client.transaction() as transaction:
        for _ in range(times):
            await transaction.receive(name, timeout)


async def test_exception_rolls_back_receive_and_reject_discards(place: Path | str, store: Path) -> None:
    async with ordack.connect_async(place) as client:
        await client.send("line1", b"1")
        with pytest.raises(RuntimeError):
            async with client.queue("line1").receive():
                raise RuntimeError
        assert _bodies(store, "line1") == [b"1"]
        async with client.queue("line1").receive() as message:
            assert message.abort_count == 1
            raise Reject
        with pytest.raises(ordack.NoSuchQueue):
            await client.send("nowhere", b"x")
    assert _bodies(store, "line1") == []


def test_waiting_async_tasks_do_not_block_others_or_mix_replies(place: Path | str, store: Path) -> None:
    async def ask(client: ordack.api.aio.AsyncClient, number: int) -> bytes:
        sent = await client.send("line1", b"%d" % number, response_queue="plain")
        with Client(store) as looker:
            identifier = looker.store.guid + sent.message_id.to_bytes(4, "little")
        async with client.queue("plain").receive(DEADLINE_S, correlation_id=identifier) as answer:
            return answer.body

    async def answer(client: ordack.api.aio.AsyncClient, count: int) -> None:
        for _ in range(count):
            async with client.queue("line1").receive(DEADLINE_S) as question:
                await client.reply(question, question.body + b"!")

    async def work() -> list[bytes]:
        async with ordack.connect_async(place) as client:
            count = MOST - 3
            *found, _ = await asyncio.gather(*(ask(client, number) for number in range(count)), answer(client, count))
            return [body for body in found if body]

    assert asyncio.run(work()) == [b"%d!" % number for number in range(MOST - 3)]


async def test_cancelled_task_leaves_messages_in_their_queues(place: Path | str, store: Path) -> None:
    async with ordack.connect_async(place) as client:
        waiting = asyncio.create_task(_receive(client, "line1", times=1, timeout=DEADLINE_S))
        holding = asyncio.Event()

        async def hold() -> None:
            async with client.transaction() as transaction:
                await transaction.receive("plain", DEADLINE_S)
                transaction.send("line1", b"never")
                holding.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold())
        await client.send("plain", b"1")
        await holding.wait()
        assert _bodies(store, "plain") == []
        for task in (waiting, holder):
            task.cancel()
        await asyncio.gather(waiting, holder, return_exceptions=True)
        await client.send("line1", b"2")
    assert _bodies(store, "plain") == [b"1"]
    assert _bodies(store, "line1") == [b"2"]


async def test_message_of_cancelled_receive_leaves_its_transaction(
    place: Path | str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task never saw the message, so the commit must not remove it."""
    taken, cancelled = threading.Event(), threading.Event()
    receive_batch = Transaction.receive_batch

    def slow(*arguments: Any, **which: Any) -> list[Message]:
        found = receive_batch(*arguments, **which)
        if found:
            taken.set()
            assert cancelled.wait(DEADLINE_S)
        return found

    async with ordack.connect_async(place) as client:
        await client.send("line1", b"1")
        async with client.transaction() as transaction:
            monkeypatch.setattr(Transaction, "receive_batch", slow)
            task = asyncio.create_task(transaction.receive("line1", DEADLINE_S))
            await asyncio.to_thread(taken.wait, DEADLINE_S)
            task.cancel()
            await asyncio.sleep(0)  # the cancellation reaches the waiting call
            cancelled.set()
            await asyncio.wait([task])
            monkeypatch.undo()
            transaction.send("plain", b"2")
    assert _bodies(store, "line1") == [b"1"]
    assert _bodies(store, "plain") == [b"2"]


async def test_receiver_asks_once_and_stops_when_cancelled(
    place: Path | str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    take = Conversation.take

    def counted(self: Conversation, wanted: Any, timeout: float) -> list[StoredMessage]:
        asked.append(timeout)
        return take(self, wanted, timeout)

    monkeypatch.setattr(Conversation, "take", counted)
    async with ordack.connect_async(place) as client, asyncio.timeout(DEADLINE_S):
        for count in range(1, 4):
            task = asyncio.create_task(_receive(client, "line1", times=1, timeout=None))
            while len(asked) < count:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        await client.send("line1", b"1")
        await _receive(client, "line1", times=1, timeout=None)
    assert asked == [math.inf] * 4
    assert _bodies(store, "line1") == []


@pytest.mark.parametrize("times", [1, 2])
async def test_task_cancelled_during_open_leaves_store_closed(
    store: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    opening, go_on = threading.Event(), threading.Event()
    opened: list[Client] = []

    class Slow(Client):
        def __init__(self, place: Path, tls: None) -> None:
            opening.set()
            assert go_on.wait(DEADLINE_S)
            super().__init__(place, tls=tls)
            opened.append(self)

    monkeypatch.setattr("ordack.client.Client", Slow)
    client = ordack.connect_async(store)
    task = asyncio.create_task(client.send("line1", b"never"))
    await asyncio.to_thread(opening.wait, DEADLINE_S)
    for _ in range(times):  # the second time it does not even wait for the store
        task.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: opened and not opened[0].is_open)
    await client.send("line1", b"1")
    await client.close()
    assert _bodies(store, "line1") == [b"1"]


def test_connect_to_missing_store_raises_store_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with ordack.connect_async(tmp_path / "none"):
            pass

    with pytest.raises(ordack.StoreError, match="no store"):
        asyncio.run(work())
    with pytest.raises(ordack.StoreError, match="no store"):
        ordack.connect(tmp_path / "none")


# ---- loops


async def test_async_loop_removes_messages_and_requeues_last_at_break(place: Path | str, store: Path) -> None:
    async with ordack.connect_async(place) as client:
        queue = client.queue("line1")
        await client.send_many([Letter("line1", b"%d" % number, dead_letter=True) for number in range(5)])
        async for message in queue.receive():
            if message.body == b"1":
                break
        async with queue.receive(DEADLINE_S) as message:  # what is received next finds it there
            assert (message.body, message.abort_count) == (b"1", 1)
        with pytest.raises(RuntimeError):
            await _raise_at(queue, b"2")
        async for message in queue.receive():
            async with message:
                if message.body == b"2":
                    raise Reject
                if message.body == b"3":
                    break
        with pytest.raises(ValueError, match="removed or back in its queue already"):
            await message.__aenter__()
        assert [message.body async for message in queue.peek()] == [b"4"]
        assert [message.body async for message in queue.receive(timeout=0.01)] == [b"4"]
    assert _bodies(store, "line1") == []
    assert _bodies(store, DEAD_XACT) == [b"2"]


async def _raise_at(queue: ordack.api.aio.AsyncQueue, body: bytes) -> None:
    async for message in queue.receive():
        if message.body == body:
            raise RuntimeError


async def test_cancelled_receive_loop_returns_its_message(store: Path) -> None:
    async with ordack.connect_async(store) as client:
        await client.send_many([Letter("plain", b"1"), Letter("plain", b"2")])
        holding = asyncio.Event()

        async def hold(name: str) -> None:
            async for _ in client.queue(name).receive(timeout=None):
                holding.set()
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(hold(name)) for name in ("plain", "line1")]  # one works, and one waits
        await holding.wait()
        assert _bodies(store, "plain") == [b"2"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [message.body async for message in client.queue("plain").receive()] == [b"1", b"2"]


async def test_receive_cancelled_twice_returns_its_message(
    place: Path | str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cancellation ends the wait for the receive, which takes a message after that."""
    began, cancelled = threading.Event(), threading.Event()
    take = aio._take

    def slow(*arguments: Any) -> Any:
        began.set()
        assert cancelled.wait(DEADLINE_S)
        return take(*arguments)

    async with ordack.connect_async(place) as client:
        await client.send("line1", b"1")
        monkeypatch.setattr(aio, "_take", slow)
        task = asyncio.create_task(client.queue("line1").receive().__aenter__())
        await asyncio.to_thread(began.wait, DEADLINE_S)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        cancelled.set()
        monkeypatch.undo()
        async with client.queue("line1").receive(DEADLINE_S) as message:
            assert message.body == b"1"
    assert not _bodies(store, "line1")


async def test_receive_loop_ends_with_client_or_garbage_collection(store: Path) -> None:
    async with ordack.connect_async(store) as client:
        await client.send("plain", b"1")
        kept = [aiter(client.queue("plain").receive())]
        await anext(kept[0])
        await asyncio.to_thread(kept.clear)  # as the garbage collector does
        kept = [aiter(client.queue("plain").receive(DEADLINE_S))]
        assert (await anext(kept[0])).abort_count == 1
    assert _bodies(store, "plain") == [b"1"]
    kept.clear()
    with pytest.raises(ordack.StoreError, match="is closed: use it inside of `async with`"):
        await client.send("plain", b"2")
    async with client:
        assert [message.body async for message in client.queue("plain").peek()] == [b"1"]
    assert _bodies(store, "plain") == [b"1"]


async def test_loops_can_be_left_as_often_as_one_likes(store: Path) -> None:
    async with ordack.connect_async(store) as client, asyncio.timeout(DEADLINE_S):
        await client.send("plain", b"1")
        for count in range(2 * MOST):
            async for message in client.queue("plain").receive(DEADLINE_S):
                assert message.abort_count == count
                break
    assert _bodies(store, "plain") == [b"1"]


async def test_as_many_as_can_receive_can_also_answer(store: Path) -> None:
    async def answer(client: ordack.api.aio.AsyncClient, together: asyncio.Barrier) -> None:
        async with client.queue("line1").receive(DEADLINE_S) as question:
            await together.wait()
            await client.reply(question, question.body)

    async with ordack.connect_async(store) as client:
        await client.send_many([Letter("line1", b"%d" % number, response_queue="plain") for number in range(MOST)])
        together = asyncio.Barrier(MOST)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(answer(client, together) for _ in range(MOST)))
    assert sorted(map(int, _bodies(store, "plain"))) == list(range(MOST))
