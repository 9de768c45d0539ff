"""The API for asyncio does what that without it does, for many tasks at once, and loses nothing when tasks are
cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import ordack
import pytest
from ordack.aio import MOST
from ordack.client import Client, Empty, Letter, Reject

from tests.support.command import DEADLINE_S, Serve


@pytest.fixture(params=["alone", "through serve"])
def folder(request: pytest.FixtureRequest, store: Path) -> Iterator[Path]:
    serve = Serve(store) if request.param == "through serve" else None
    yield store
    if serve:
        assert serve.stop()[0] == 0


def _bodies(folder: Path, name: str) -> list[bytes]:
    with Client(folder) as client:
        return [message.body for message in client.queue(name).peek()]


def test_it_sends_receives_and_commits_as_the_client_without_asyncio(folder: Path) -> None:
    async def work() -> None:
        async with ordack.connect_async(folder) as client:
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
            assert _bodies(folder, "line1") == [b"4"]

    asyncio.run(work())
    assert _bodies(folder, "plain") == [b"3", b"1!"]


async def _receive(client: ordack.aio.AsyncClient, name: str, times: int) -> None:
    async with client.transaction() as transaction:
        for _ in range(times):
            await transaction.receive(name)


def test_what_raises_puts_back_and_what_is_rejected_is_gone(folder: Path) -> None:
    async def work() -> None:
        async with ordack.connect_async(folder) as client:
            await client.send("line1", b"1")
            with pytest.raises(RuntimeError):
                async with client.queue("line1").receive():
                    raise RuntimeError
            assert _bodies(folder, "line1") == [b"1"]
            async with client.queue("line1").receive() as message:
                assert message.abort_count == 1
                raise Reject
            with pytest.raises(ordack.NoSuchQueue):
                await client.send("nowhere", b"x")

    asyncio.run(work())
    assert _bodies(folder, "line1") == []


def test_tasks_that_wait_do_not_hold_up_others_and_each_gets_its_own_answer(folder: Path) -> None:
    async def ask(client: ordack.aio.AsyncClient, number: int) -> bytes:
        sent = await client.send("line1", b"%d" % number, response_queue="plain")
        with Client(folder) as looker:
            identifier = looker.store.guid + sent.message_id.to_bytes(4, "little")
        async with client.queue("plain").receive(DEADLINE_S, correlation_id=identifier) as answer:
            return answer.body

    async def answer(client: ordack.aio.AsyncClient, count: int) -> None:
        for _ in range(count):
            async with client.queue("line1").receive(DEADLINE_S) as question:
                await client.reply(question, question.body + b"!")

    async def work() -> list[bytes]:
        async with ordack.connect_async(folder) as client:
            count = MOST - 3
            *found, _ = await asyncio.gather(*(ask(client, number) for number in range(count)), answer(client, count))
            return [body for body in found if body]

    assert asyncio.run(work()) == [b"%d!" % number for number in range(MOST - 3)]


def test_a_task_that_is_cancelled_leaves_every_message_in_its_place(folder: Path) -> None:
    async def work() -> None:
        async with ordack.connect_async(folder) as client:
            waiting = asyncio.create_task(_receive(client, "line1", times=1))
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
            assert _bodies(folder, "plain") == []
            for task in (waiting, holder):
                task.cancel()
            await asyncio.gather(waiting, holder, return_exceptions=True)
            await client.send("line1", b"2")

    asyncio.run(work())
    assert _bodies(folder, "plain") == [b"1"]
    assert _bodies(folder, "line1") == [b"2"]


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def work() -> None:
        async with ordack.connect_async(tmp_path / "none"):
            pass

    with pytest.raises(ordack.StoreError, match="no store"):
        asyncio.run(work())
    with pytest.raises(ordack.StoreError, match="no store"):
        ordack.connect(tmp_path / "none")
