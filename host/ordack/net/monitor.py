"""The HTTP port for those who watch a running queue manager: /metrics, /healthz and /status.

It has a thread and an event loop of its own, and reads the store on connections of its own: a client that is slow,
stuck or hostile keeps no message waiting. What clients may cost is bounded: so many connections, so many accepted a
second, so many bytes and pieces of a request, so many seconds in all. Each answer is made at most once at a time,
whoever asks how often, and takes at most a tenth of the time of a thread. A connection is for one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import h11

from ordack import health, status
from ordack.config import format_address
from ordack.manager import Manager
from ordack.metrics import Metrics
from ordack.store import StoreError
from ordack.store.look import StoreBeside

CONNECTIONS_MAX = 16  # one too many ends the one that has come least far
FILES = CONNECTIONS_MAX + 16  # that all of this may have open: three stores, two loops' own, the listener
ACCEPT_APART_S = 0.01
NO_FILE_S = 1.0  # after which is accepted again
REQUEST_BYTES = 16 << 10
REQUEST_PIECES = 64
CONNECTION_S = 10.0  # from the first byte to the last
ANSWER_S = 8.0  # until this an answer is made, or it is said that it was not
FRESH_S = 0.5  # an answer stands so long, and ten times as long as it took to be made
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """What is sent back."""

    code: int
    body: bytes
    media_type: str = TEXT
    allow: str = ""


class _Page:
    """What a path shows, and a thread that makes it. make: gives it, from the store on a connection of that thread."""

    def __init__(self, folder: Path, make: Callable[[StoreBeside], Answer], tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._make = make
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ordack-http")
        self._store: StoreBeside | None = None
        self._stale_at = 0.0
        self._made: asyncio.Future[Answer] | None = None

    async def answer(self) -> Answer:
        """It, as of a moment ago."""
        if self._made is None or (self._made.done() and time.monotonic() >= self._stale_at):
            self._made = asyncio.get_running_loop().run_in_executor(self._thread, self._make_now)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._made)
        except TimeoutError:
            return _unavailable(f"the store was not read within {ANSWER_S:.0f} s")

    def _make_now(self) -> Answer:
        began = time.monotonic()
        try:
            if self._store is None:
                self._store = StoreBeside(self._folder)
            return self._make(self._store)
        except StoreError as error:
            self._forget()
            return _unavailable(str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time may be better
            self._tell("".join(traceback.format_exception(error)).rstrip())
            return Answer(500, b"a defect of ordack, see its log\n")
        finally:
            ended = time.monotonic()
            self._stale_at = ended + max(FRESH_S, 10 * (ended - began))

    def _forget(self) -> None:
        if self._store:
            self._store.close()
            self._store = None

    def close(self) -> None:
        """End what is under way."""
        end = self._thread.submit(self._forget)
        while not end.done():
            if store := self._store:
                store.interrupt()
            wait([end], 0.02)
        self._thread.shutdown()


def _unavailable(reason: str) -> Answer:
    return _as_json(503, {"healthy": False, "problems": [reason]})


def _as_json(code: int, values: object) -> Answer:
    return Answer(code, json.dumps(values).encode() + b"\n", JSON)


class _Connection(asyncio.Protocol):
    """One client, and its one request."""

    transport: asyncio.Transport

    def __init__(self, monitor: Monitor) -> None:
        self.has_asked = False
        self.is_answered = False
        self._monitor = monitor
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES)
        self._bytes = 0
        self._pieces = 0
        self._method = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._end = asyncio.get_running_loop().call_later(CONNECTION_S, transport.abort)
        self._monitor.began(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end.cancel()
        self._monitor.lost(self)

    def data_received(self, data: bytes) -> None:
        if self.has_asked:
            return
        self._bytes += len(data)
        self._pieces += 1
        try:
            self._http.receive_data(data[:REQUEST_BYTES])
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._asked()
            self.send(Answer(error.error_status_hint, f"no request of HTTP: {error}\n".encode()))
            return
        if isinstance(event, h11.Request):
            self._asked()
            self._method = event.method
            self._monitor.ask(self, event)
        elif self._bytes >= REQUEST_BYTES or self._pieces >= REQUEST_PIECES:
            self._asked()
            self.send(Answer(431, b"the request is too long, or comes in too many pieces\n"))

    def _asked(self) -> None:
        self.has_asked = True
        self.transport.pause_reading()

    def send(self, answer: Answer) -> None:
        """Answer, and end the connection when all of it has left."""
        if self.transport.is_closing():
            return
        self.is_answered = True
        headers = {
            "content-type": answer.media_type,
            "content-length": str(len(answer.body)),
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "connection": "close",
            **({"allow": answer.allow} if answer.allow else {}),
        }
        sent = (
            self._http.send(
                h11.Response(
                    status_code=answer.code, headers=list(headers.items()), reason=HTTPStatus(answer.code).phrase
                )
            )
            or b""
        )
        if self._method != b"HEAD":
            sent += self._http.send(h11.Data(data=answer.body)) or b""
        self.transport.write(sent + (self._http.send(h11.EndOfMessage()) or b""))
        self.transport.close()


class Monitor:
    """Answers on a listening socket, which it takes over, from `start` to `close`. tell: called, in another thread,
    with what an operator should know of defects."""

    def __init__(self, manager: Manager, listener: socket.socket, tell: Callable[[str], None]) -> None:
        self._manager = manager
        self._listener = listener
        self._tell = tell
        metrics = Metrics(manager)
        make: dict[bytes, Callable[[StoreBeside], Answer]] = {
            b"/metrics": lambda store: Answer(200, *metrics.text(store)),
            b"/healthz": self._health,
            b"/status": lambda store: _as_json(200, status.glance(store)),
        }
        self._pages = {path: _Page(manager.store.folder, make[path], tell) for path in make}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._connections: dict[_Connection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="ordack-http", daemon=True)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return format_address(*self._listener.getsockname()[:2])

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        for page in self._pages.values():
            page.close()
        self._listener.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._answer_until_stopped())

    async def _answer_until_stopped(self) -> None:
        self._loop.set_exception_handler(lambda _loop, context: self._tell(f"the HTTP port: {context}"))
        self._listener.setblocking(False)
        self._listen()
        await self._stop.wait()
        self._loop.remove_reader(self._listener)
        for connection in list(self._connections):
            connection.transport.abort()

    # ---- connections

    def _listen(self) -> None:
        if not self._stop.is_set():
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take one connection, and no other for a moment."""
        self._loop.remove_reader(self._listener)
        apart = ACCEPT_APART_S
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            pass  # it has gone again
        except OSError:
            apart = NO_FILE_S
        else:
            accepted.setblocking(False)
            self._do(self._begin(accepted))
        self._loop.call_later(apart, self._listen)

    async def _begin(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            await self._loop.connect_accepted_socket(lambda: _Connection(self), accepted)

    def began(self, connection: _Connection) -> None:
        """One more is there."""
        if len(self._connections) >= CONNECTIONS_MAX:
            worst = min(self._connections, key=lambda one: 2 * one.has_asked - one.is_answered)  # of equals the oldest
            worst.transport.abort()
            self.lost(worst)
        self._connections[connection] = None

    def lost(self, connection: _Connection) -> None:
        """It is over."""
        self._connections.pop(connection, None)

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- answers

    def ask(self, connection: _Connection, request: h11.Request) -> None:
        """A client wants something."""
        self._do(self._answer(connection, request))

    async def _answer(self, connection: _Connection, request: h11.Request) -> None:
        page = self._pages.get(request.target.partition(b"?")[0])
        if page is None:
            connection.send(Answer(404, b"here are " + b", ".join(self._pages) + b"\n"))
        elif request.method not in (b"GET", b"HEAD"):
            connection.send(Answer(405, b"this is only to be read\n", allow="GET, HEAD"))
        else:
            connection.send(await page.answer())

    def _health(self, store: StoreBeside) -> Answer:
        problems = health.problems(self._manager, store, time.monotonic())
        return _as_json(503 if problems else 200, {"healthy": not problems, "problems": problems})
