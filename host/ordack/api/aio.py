"""The API of `ordack.client` for asyncio. host/docs/reference/client.md introduces it.

    async with ordack.connect_async("/var/lib/ordack") as client:
        await client.send("line1", b"21.5")
        async with client.queue("line1").receive(timeout=5) as message:
            print(message.body)          # as with Client: removed when the block ends, put back if it raises

        async for message in client.queue("line1").receive():
            print(message.body)          # removed when the loop asks for the next, put back if the loop exits

Each operation has its own Client and thread, so tasks do not wait for one another. At most MOST receives and
transactions run at a time, and SHORT other operations: a task that holds a message can always answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar, Unpack

from mqqb import confirm

from ordack.api import Empty, Taken, Which
from ordack.broker.message import Letter, Message, Properties
from ordack.store import StoreError
from ordack.store.messages import FIRST, StoredMessage

if TYPE_CHECKING:
    from ordack.broker.sending import Sent
    from ordack.client import Client, Queue, Transaction

MOST = 16  # concurrent receives and transactions, including waiting ones
SHORT = 4  # other concurrent operations; none of them waits for messages

Body = bytes | bytearray | memoryview
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Worker:
    """A thread with a Client."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "ordack")
        self._later: Future[object] | None = None
        self.is_open = True
        self.client: Client

    async def open(self) -> None:
        """Open the store, or connect. Raises the errors of Client. If the task is cancelled, the store is closed."""
        made: list[Client] = []

        def let_go() -> None:
            for client in made:
                client.close()

        try:
            await self.call(lambda: made.append(self._make()))
        except BaseException:
            self.do_later(let_go)  # also if the wait for the opening was cancelled
            await self.call(self._thread.shutdown, wait=False)
            raise
        self.client = made[0]

    async def call(
        self, function: Callable[Parameters, Result], *values: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Call the function in the thread. A cancelled task waits for the end of the call: no call stays half done."""
        return await self._run(lambda: function(*values, **named), lambda: None)

    async def wait(self, take: Callable[[], Result]) -> Result:
        """Call `take`, which waits for messages, in the thread. If the task is cancelled, `take` ends early."""
        name = object()

        def run() -> Result:
            self.client.access.may_interrupt(name)
            return take()

        return await self._run(run, lambda: self.client.access.interrupt(name))

    async def _run(self, function: Callable[[], Result], cancelled: Callable[[], None]) -> Result:
        future = asyncio.get_running_loop().run_in_executor(self._thread, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled()
            await asyncio.wait([future])
            future.exception()
            raise

    def do_later(self, function: Callable[[], object]) -> None:
        """Call the function in the thread before all later calls. Its errors are ignored."""
        with contextlib.suppress(RuntimeError):  # the thread has ended and put its messages back
            self._later = self._thread.submit(function)

    async def settled(self) -> None:
        """Wait for the end of the last `do_later`."""
        if self._later is not None and not self._later.done():
            later = asyncio.wrap_future(self._later)
            await asyncio.wait([later])
            later.exception()  # ignored

    async def close(self) -> None:
        """Close the store."""
        self.is_open = False
        try:
            await self.call(self.client.close)
        finally:
            self._thread.shutdown(wait=False)


class AsyncTransaction:
    """The form of a Transaction for asyncio."""

    def __init__(self, worker: _Worker, inner: Transaction) -> None:
        self._worker = worker
        self._inner = inner

    @property
    def sent(self) -> list[Sent]:
        """As Transaction.sent."""
        return self._inner.sent

    def __repr__(self) -> str:
        return repr(self._inner).replace("<", "<Async", 1)

    async def receive(self, queue: AsyncQueue | str, timeout: float | None = 0.0, **which: Unpack[Which]) -> Message:
        """As Transaction.receive."""
        messages = await self.receive_batch(queue, 1, timeout, **which)
        if not messages:
            raise Empty(f"no message in {queue if isinstance(queue, str) else queue.name}")
        return messages[0]

    async def receive_batch(
        self, queue: AsyncQueue | str, limit: int, timeout: float | None = 0.0, **which: Unpack[Which]
    ) -> list[Message]:
        """As Transaction.receive_batch."""
        name = queue if isinstance(queue, str) else queue.name
        found: list[Message] = []

        def take() -> list[Message]:
            found[:] = self._inner.receive_batch(name, limit, timeout, **which)
            return found

        try:
            return await self._worker.wait(take)
        except BaseException:  # the task never sees them: a commit must not remove them
            self._worker.do_later(lambda: self._inner.release(found))
            raise

    def send(self, destination: str, body: Body, **properties: Unpack[Properties]) -> None:
        """As Transaction.send: when the block ends."""
        self._inner.send(destination, body, **properties)


class AsyncReceived(Message):
    """A message that an `AsyncReceiving` has received. `async with message:` ends it, as `with` does a Received."""

    def __init__(self, stored: StoredMessage, source: Queue, worker: _Worker) -> None:
        super().__init__(stored)
        self._taken = Taken(source, (stored.lookup_id,))
        self._worker = worker

    async def __aenter__(self) -> AsyncReceived:
        self._taken.check()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return await self.end(error)

    async def end(self, error: BaseException | None) -> bool:
        """As Taken.end."""
        return self._taken.is_open and await self._worker.call(self._taken.end, error)

    def put_back(self) -> None:
        """Put the message back, unless it has ended. Call it in the worker's thread."""
        if self._taken.is_open:
            self._taken.let_go()()

    def drop(self) -> None:
        """Put the message back later, unless it has ended."""
        if self._taken.is_open:
            self._worker.do_later(self._taken.let_go())


class _Loop:
    """An `async for` over messages, or an `async with` for one. It holds a worker until it ends. CPython destroys an
    abandoned loop at once; the loop then puts its message back."""

    def __init__(self, client: AsyncClient, name: str, timeout: float | None, which: Which) -> None:
        self._client = client
        self._timeout = timeout
        self._name = name
        self._which = which
        self._held: list[AsyncReceived] = []
        self._worker: _Worker | None = None
        self._is_over = False

    def __aiter__(self) -> _Loop:
        return self

    async def __anext__(self) -> AsyncReceived:
        found: list[AsyncReceived] = []
        if not self._is_over:
            try:
                found = await self._next()
            except BaseException as error:
                await self.leave(error)
                raise
        if not found:
            await self.leave(None)
            raise StopAsyncIteration
        return found[0]

    async def _next(self) -> list[AsyncReceived]:
        if self._worker is None:
            self._worker = await self._client.borrow()
        elif self._held:
            await self._held[0].end(None)
            if self._which.get("lookup_id") is not None:
                return []
        take = functools.partial(_take, self._worker, self._name, self._which, self._held, self._timeout)
        return await self._worker.wait(take)

    async def leave(self, error: BaseException | None) -> bool:
        """End the loop, and its message as Taken.end does."""
        self._is_over = True
        worker, self._worker = self._worker, None
        if worker is None:
            return False
        try:
            return await self._held[0].end(error) if self._held else False
        finally:
            worker.do_later(self._put_back)  # a task cancelled twice does not wait for its receive
            self._client.give_back(worker)

    def _put_back(self) -> None:
        """Put back a message that has not ended. Call it in the worker's thread."""
        for message in self._held:
            message.put_back()

    def __del__(self) -> None:
        if self._worker is not None:
            for message in self._held:
                message.drop()
            self._client.give_back_from_anywhere(self._worker)


def _take(
    worker: _Worker, name: str, which: Which, held: list[AsyncReceived], timeout: float | None
) -> list[AsyncReceived]:
    """The next message, in the worker's thread. Also stored in `held`, because a cancelled task gets no result."""
    queue = worker.client.queue(name)
    held[:] = [AsyncReceived(stored, queue, worker) for stored in queue.begin_receive(1, timeout, True, **which)]
    return held[:]


class AsyncReceiving:
    """The result of `AsyncQueue.receive`, for `async with` or `async for`, as Receiving. An abandoned loop or a
    cancelled task puts its message back; the next receive of this client finds the message there."""

    def __init__(self, client: AsyncClient, name: str, timeout: float | None, which: Which) -> None:
        self._loop = functools.partial(_Loop, client, name, timeout, which)
        self._name = name
        self._entered: list[_Loop] = []

    def __repr__(self) -> str:
        return f"<AsyncReceiving from {self._name!r}: use it in an `async with` or an `async for`>"

    def __aiter__(self) -> AsyncIterator[AsyncReceived]:
        return self._loop()

    async def __aenter__(self) -> AsyncReceived:
        loop = self._loop()
        try:
            message = await anext(loop)
        except StopAsyncIteration:
            raise Empty(f"no message in {self._name}") from None
        self._entered.append(loop)
        return message

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return await self._entered.pop().leave(error)


class AsyncQueue:
    """A local queue, to receive from and to send to. Each operation raises NoSuchQueue if the queue does not exist."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name!r}>"

    async def send(self, body: Body, **properties: Unpack[Properties]) -> Sent:
        """As Queue.send."""
        return await self._client.do(lambda client: client.queue(self.name).send(body, **properties))

    async def send_many(self, bodies: Iterable[Body], **properties: Unpack[Properties]) -> list[Sent]:
        """As Queue.send_many."""
        return await self._client.do(lambda client: client.queue(self.name).send_many(bodies, **properties))

    def receive(self, timeout: float | None = 0.0, **which: Unpack[Which]) -> AsyncReceiving:
        """As Queue.receive, for `async with` and `async for`."""
        return AsyncReceiving(self._client, self.name, timeout, which)

    @contextlib.asynccontextmanager
    async def receive_batch(self, limit: int, timeout: float | None = 0.0) -> AsyncIterator[list[Message]]:
        """As Queue.receive_batch."""
        async with self._client.transaction() as transaction:
            yield await transaction.receive_batch(self.name, limit, timeout)

    async def peek(self) -> AsyncIterator[Message]:
        """As Queue.peek, for `async for`."""
        place = FIRST

        def look(client: Client) -> list[StoredMessage]:
            return client.queue(self.name).look(place)

        while stored := await self._client.do(look):
            for message in stored:
                yield Message(message)
            place = (stored[-1].rank, stored[-1].lookup_id)


class AsyncClient:
    """An application's access to a store, for asyncio: an asynchronous context manager, for any number of tasks. make:
    makes a Client of the store. place: the store's folder or address. Entering raises the errors of `make`."""

    def __init__(self, place: str, make: Callable[[], Client]) -> None:
        self._place = place
        self._make = make
        self._long = asyncio.Semaphore(MOST)
        self._short = asyncio.Semaphore(SHORT)
        self._is_open = True
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._place!r}>"

    async def __aenter__(self) -> AsyncClient:
        self._is_open = True
        async with self.worker():
            return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the store after the end of all operations. Loops still held by the program put their messages back."""
        self._is_open = False
        async with contextlib.AsyncExitStack() as all_of_them:  # also if one fails, or the task is cancelled
            for worker in self._all:
                all_of_them.push_async_callback(worker.close)
            self._all, self._idle = [], []

    @contextlib.asynccontextmanager
    async def worker(self, long: bool = False) -> AsyncIterator[_Worker]:
        """A thread for one operation. long: a receive or a transaction."""
        worker = await self.borrow(long)
        try:
            yield worker
        finally:
            self.give_back(worker, long)

    async def borrow(self, long: bool = True) -> _Worker:
        """A thread until `give_back`. Raises StoreError."""
        if not self._is_open:
            raise StoreError(f"{self!r} is closed: use it inside of `async with`")
        self._loop = asyncio.get_running_loop()
        limit = self._long if long else self._short
        await limit.acquire()
        try:
            for other in self._all:  # messages that it puts back are there again then
                await other.settled()
            if self._idle:
                return self._idle.pop()
            worker = _Worker(self._make)
            await worker.open()
        except BaseException:
            limit.release()
            raise
        self._all.append(worker)
        return worker

    def give_back(self, worker: _Worker, long: bool = True) -> None:
        """The operation has ended."""
        (self._long if long else self._short).release()
        if worker.is_open:
            self._idle.append(worker)

    def give_back_from_anywhere(self, worker: _Worker) -> None:
        """As give_back, from any thread: the garbage collector runs in any thread."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            self.give_back(worker)
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self.give_back, worker)

    def queue(self, name: str) -> AsyncQueue:
        """A queue by its name."""
        return AsyncQueue(self, name)

    async def do(self, act: Callable[[Client], Result]) -> Result:
        """The result of `act`, called in a thread with that thread's Client."""
        async with self.worker() as worker:
            return await worker.call(act, worker.client)

    async def send(self, destination: str, body: Body, **properties: Unpack[Properties]) -> Sent:
        """As Client.send."""
        return await self.do(lambda client: client.send(destination, body, **properties))

    async def send_many(self, letters: Iterable[Letter]) -> list[Sent]:
        """As Client.send_many."""
        return await self.do(lambda client: client.send_many(letters))

    async def reply(self, message: Message, body: Body, **properties: Unpack[Properties]) -> Sent:
        """As Client.reply."""
        return await self.do(lambda client: client.reply(message, body, **properties))

    async def state(self, message_id: int) -> confirm.Conclusion | None:
        """As Client.state."""
        return await self.do(lambda client: client.state(message_id))

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """As Client.transaction. A cancelled task sends nothing and puts its messages back, unless its commit has
        begun. A begun commit completes first."""
        async with self.worker(long=True) as worker:
            block = worker.client.transaction()
            transaction = AsyncTransaction(worker, block.__enter__())
            try:
                yield transaction
            except BaseException as error:
                if not await worker.call(block.__exit__, type(error), error, error.__traceback__):
                    raise
            else:
                await worker.call(block.__exit__, None, None, None)
