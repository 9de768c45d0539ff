"""The API of `ordack.client` for asyncio. host/docs/api.md introduces it.

    async with ordack.connect_async("/var/lib/ordack") as client:
        await client.send("line1", b"21.5")
        async with client.queue("line1").receive(timeout=5) as message:
            print(message.body)          # as with Client: removed when the block ends, put back if it raises

Each operation runs with a Client of its own, in a thread of its own, so that tasks do not wait for one another. There
are as many as were needed at one time, MOST at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from mqqb import confirm

from ordack.client import Client, Empty, Message, Reject, Transaction
from ordack.sending import Letter, Sent

MOST = 16  # operations at a time, waiting receives and open transactions among them
SLICE_S = 0.5  # after which a wait notices that its task was cancelled

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Worker:
    """A thread with a Client."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "ordack")
        self.client: Client

    async def open(self) -> None:
        """Open the store. Raises StoreError."""
        try:
            self.client = await self.call(Client, self._folder)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def call(
        self, function: Callable[Parameters, Result], *values: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Call it in the thread. If the task is cancelled, it ends first: nothing is left half done."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: function(*values, **named))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            future.exception()
            raise

    async def close(self) -> None:
        """Close the store."""
        await self.call(self.client.close)
        self._thread.shutdown(wait=False)


class AsyncTransaction:
    """As Transaction, of which it is the other form."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self.inner = Transaction(worker.client)

    @property
    def sent(self) -> list[Sent]:
        """When it has ended, what became of each message that was sent, in their order."""
        return self.inner.sent

    async def receive(self, queue: str, timeout: float = 0.0, *, correlation_id: bytes | None = None) -> Message:
        """As Transaction.receive."""
        messages = await self._receive(queue, 1, timeout, correlation_id)
        if not messages:
            raise Empty(f"no message in {queue}")
        return messages[0]

    async def receive_batch(self, queue: str, limit: int, timeout: float = 0.0) -> list[Message]:
        """As Transaction.receive_batch."""
        return await self._receive(queue, limit, timeout, None)

    async def _receive(self, queue: str, limit: int, timeout: float, correlation_id: bytes | None) -> list[Message]:
        deadline = time.monotonic() + timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            found = await self._worker.call(
                self.inner.receive_batch, queue, limit, min(left, SLICE_S), correlation_id=correlation_id
            )
            if found or left <= SLICE_S:
                return found

    def send(self, destination: str, body: bytes | bytearray | memoryview, **properties: Any) -> None:
        """As Transaction.send: when the block ends."""
        self.inner.send(destination, body, **properties)


class AsyncQueue:
    """A local queue, to receive from and to send to. Whether it is there, each operation says."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def send(self, body: bytes | bytearray | memoryview, **properties: Any) -> Sent:
        """As Client.send, to this queue."""
        return await self._client.send(self.name, body, **properties)

    @contextlib.asynccontextmanager
    async def receive(self, timeout: float = 0.0, *, correlation_id: bytes | None = None) -> AsyncIterator[Message]:
        """As Queue.receive."""
        async with self._client.transaction() as transaction:
            yield await transaction.receive(self.name, timeout, correlation_id=correlation_id)

    @contextlib.asynccontextmanager
    async def receive_batch(self, limit: int, timeout: float = 0.0) -> AsyncIterator[list[Message]]:
        """As Queue.receive_batch."""
        async with self._client.transaction() as transaction:
            yield await transaction.receive_batch(self.name, limit, timeout)


class AsyncClient:
    """An application's access to the store in `folder`, for asyncio: an asynchronous context manager, for any number of
    tasks. Entering it raises StoreError and its kinds."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = folder
        self._free = asyncio.Semaphore(MOST)
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []

    async def __aenter__(self) -> AsyncClient:
        async with self._worker():
            return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the store. All operations are to have ended."""
        for worker in self._all:
            await worker.close()
        self._all, self._idle = [], []

    @contextlib.asynccontextmanager
    async def _worker(self) -> AsyncIterator[_Worker]:
        async with self._free:
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _Worker(self._folder)
                await worker.open()
                self._all.append(worker)
            try:
                yield worker
            finally:
                self._idle.append(worker)

    def queue(self, name: str) -> AsyncQueue:
        """A queue by its name."""
        return AsyncQueue(self, name)

    async def send(self, destination: str, body: bytes | bytearray | memoryview, **properties: Any) -> Sent:
        """As Client.send."""
        async with self._worker() as worker:
            return await worker.call(worker.client.send, destination, body, **properties)

    async def send_many(self, letters: Iterable[Letter]) -> list[Sent]:
        """As Client.send_many."""
        async with self._worker() as worker:
            return await worker.call(worker.client.send_many, letters)

    async def reply(self, message: Message, body: bytes | bytearray | memoryview, **properties: Any) -> Sent:
        """As Client.reply."""
        async with self._worker() as worker:
            return await worker.call(worker.client.reply, message, body, **properties)

    async def state(self, message_id: int) -> confirm.Conclusion | None:
        """As Client.state."""
        async with self._worker() as worker:
            return await worker.call(worker.client.state, message_id)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """As Client.transaction. If the task is cancelled, nothing is sent and what was received is put back, unless
        the commit was under way: that ends first."""
        async with self._worker() as worker:
            transaction = AsyncTransaction(worker)
            try:
                yield transaction
            except Reject:
                await worker.call(transaction.inner.reject)
            except BaseException:
                await worker.call(transaction.inner.put_back)
                raise
            else:
                await worker.call(transaction.inner.commit)
