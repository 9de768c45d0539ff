"""The HTTP port for those who watch a running queue manager: a web page, /metrics, /healthz, /livez and /status.

It has a thread and an event loop of its own, and reads the store on connections of its own: a client that is slow,
stuck or hostile keeps no message waiting. What clients may cost is bounded: so many connections, so many accepted a
second, so many bytes and pieces of a request, so many seconds in all. Each answer is made at most once at a time,
whoever asks how often, and takes at most a tenth of the time of a thread. A connection is for one request. What is
behind a token (guard.py) is made for each who asks, one after the other, at the same cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import h11

from ordack.broker.manager import Manager
from ordack.broker.serve_log import INFO, WARNING, Line
from ordack.config.config import format_address
from ordack.server import health, kept
from ordack.server.guard import Guard
from ordack.server.metrics import Metrics
from ordack.server.overview import SAMPLE_S, Overview
from ordack.store import StoreError
from ordack.store.look import StoreBeside
from ordack.store.queues import NoSuchQueue
from ordack.text import counted

CONNECTIONS_MAX = 16  # one too many ends the one that has come least far
FILES = CONNECTIONS_MAX + 26  # that all of this may have open: five stores, two loops' own, the listener, a connection
ACCEPT_APART_S = 0.01
NO_FILE_S = 1.0  # after which is accepted again
REQUEST_BYTES = 16 << 10
REQUEST_PIECES = 64
CONNECTION_S = 10.0  # from the first byte to the last
ANSWER_S = 8.0  # until this an answer is made, or it is said that it was not
FRESH_S = 0.5  # an answer stands so long, and ten times as long as it took to be made
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
KEPT = b"/dead-letters"
LIVE = b"/livez"
OPEN = (b"/metrics", b"/healthz", b"/status", LIVE)  # to programs, whatever they call this machine
ELSEWHERE = (
    b"this is no name of this machine, so that a page of somebody else might be asking: open the page by the machine's "
    b'address, or write the name into ordack.toml, as http-names = ["plant.example.com"]\n'
)
SAFE = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}  # what the page may do, and who may have a part in it
FILES_OF_PAGE = {
    b"/": ("page.html", "text/html; charset=utf-8"),
    b"/page.css": ("page.css", "text/css; charset=utf-8"),
    b"/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class Answer(NamedTuple):
    """What is sent back."""

    code: int
    body: bytes
    media_type: str = TEXT
    headers: Mapping[str, str] = {}


Make = Callable[[StoreBeside], Answer]


class _Reader:
    """A thread that makes answers, from the store on a connection of its own."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ordack-http")
        self._store: StoreBeside | None = None

    async def make(self, make: Make) -> Answer:
        """Have it made."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._make_now, make)

    def _make_now(self, make: Make) -> Answer:
        try:
            if self._store is None:
                self._store = StoreBeside(self._folder)
            return make(self._store)
        except NoSuchQueue as error:
            return _wrong(404, error)
        except StoreError as error:
            self._forget()
            return _unavailable(str(error))
        except ValueError as error:
            return _wrong(400, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time may be better
            self._tell("".join(traceback.format_exception(error)).rstrip())
            return Answer(500, b"a defect of ordack, see its log\n")

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


class _Page(_Reader):
    """What a path shows. show: gives it."""

    def __init__(self, folder: Path, show: Make, tell: Callable[[str], None]) -> None:
        super().__init__(folder, tell)
        self._show = show
        self._stale_at = 0.0
        self._made: asyncio.Future[Answer] | None = None

    async def answer(self) -> Answer:
        """It, as of a moment ago."""
        if self._made is None or (self._made.done() and time.monotonic() >= self._stale_at):
            self._made = asyncio.ensure_future(self.make(self._show_now))
        return await _in_time(self._made, f"the store was not read within {ANSWER_S:.0f} s")

    def _show_now(self, store: StoreBeside) -> Answer:
        began = time.monotonic()
        try:
            return self._show(store)
        finally:
            ended = time.monotonic()
            self._stale_at = ended + max(FRESH_S, 10 * (ended - began))


class _Desk(_Reader):
    """Makes what each one asks for, one after the other, and rests between them for nine times as long as it has
    worked; what others do for it meanwhile is not its work."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        super().__init__(folder, tell)
        self._turn = asyncio.Lock()
        self._free_at = 0.0

    async def answer(self, make: Make) -> Answer:
        """What this gives."""
        reason = f"there is no answer within {ANSWER_S:.0f} s; what was to be moved may be moved later, so look again"
        return await _in_time(asyncio.ensure_future(self._in_turn(make)), reason)

    async def _in_turn(self, make: Make) -> Answer:
        asked = time.monotonic()
        async with self._turn:
            await asyncio.sleep(self._free_at - time.monotonic())
            if time.monotonic() - asked >= ANSWER_S:
                return _unavailable("others were first")
            return await self.make(lambda store: self._work(make, store))

    def _work(self, make: Make, store: StoreBeside) -> Answer:
        began = time.thread_time()
        try:
            return make(store)
        finally:
            self._free_at = time.monotonic() + 9 * (time.thread_time() - began)


async def _in_time(made: asyncio.Future[Answer], reason: str) -> Answer:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.shield(made)
    except TimeoutError:
        return _unavailable(reason)


def _wrong(code: int, error: Exception) -> Answer:
    return Answer(code, f"{error}\n".encode())


def _unavailable(reason: str) -> Answer:
    return _of(reason)


def _of(*problems: str) -> Answer:
    """What is wrong, or that all is well."""
    found = [problem for problem in problems if problem]
    return _as_json(503 if found else 200, {"healthy": not found, "problems": found})


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
        self._request: h11.Request | None = None
        self._body = b""

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
            is_whole = self._read()
        except h11.RemoteProtocolError as error:
            self._asked()
            self.send(Answer(error.error_status_hint, f"no request of HTTP: {error}\n".encode()))
            return
        if is_whole and self._request:
            self._asked()
            self._monitor.ask(self, self._request, self._body)
        elif self._bytes >= REQUEST_BYTES or self._pieces >= REQUEST_PIECES:
            self._asked()
            self.send(Answer(431, b"the request is too long, or comes in too many pieces\n"))

    def _read(self) -> bool:
        """Read what has come; is the request whole? Only a POST has a body that is read."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._request = event
                if event.method != b"POST":
                    return True
            elif isinstance(event, h11.Data):
                self._body += event.data
            else:
                return isinstance(event, h11.EndOfMessage)

    @property
    def address(self) -> str:
        """Of the client."""
        return str((self.transport.get_extra_info("peername") or ("",))[0])

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
            **answer.headers,
        }
        sent = (
            self._http.send(
                h11.Response(
                    status_code=answer.code, headers=list(headers.items()), reason=HTTPStatus(answer.code).phrase
                )
            )
            or b""
        )
        if not self._request or self._request.method != b"HEAD":
            sent += self._http.send(h11.Data(data=answer.body)) or b""
        self.transport.write(sent + (self._http.send(h11.EndOfMessage()) or b""))
        self.transport.close()


def _moved(done: Mapping[str, Any], address: str, destination: str | None, number: int) -> Line:
    """What the log is to say of it: each time, so that the number makes it another fact."""
    keys = ", ".join(str(one["key"]) for one in done["moved"])
    stayed = f"; {len(done['stayed'])} stayed" if done["stayed"] else ""
    return Line(
        f"{address} has moved {counted(len(done['moved']), 'message')} of {done['queue']} over HTTP to "
        f"{destination or 'where each was sent'}{f' (lookup ids {keys})' if keys else ''}{stayed}",
        INFO,
        f"moved over HTTP {number}",
    )


class Monitor:
    """Answers on a listening socket, which it takes over, from `start` to `close`. tell: called, in another thread,
    with what an operator should know: of defects, and as Line of other things. guard: who may have what."""

    def __init__(
        self, manager: Manager, listener: socket.socket, tell: Callable[[str], None], guard: Guard | None = None
    ) -> None:
        self._manager = manager
        self._listener = listener
        self._tell = tell
        self._guard = guard = guard or Guard()
        self._moves = 0
        metrics = Metrics(manager)
        self._overview = overview = Overview(manager)
        make: dict[bytes, Callable[[StoreBeside], Answer]] = {
            b"/metrics": lambda store: Answer(200, *metrics.text(store)),
            b"/healthz": lambda store: _of(*health.glance(manager, store)["problems"]),
            b"/status": lambda store: _as_json(200, health.glance(manager, store)),
            b"/overview": lambda store: _as_json(200, overview.shown(store, guard.has_token)),
        }
        self._pages = {path: _Page(manager.store.folder, make[path], tell) for path in make}
        self._desk = _Desk(manager.store.folder, tell)
        folder = Path(__file__).parent
        self._files = {
            path: Answer(200, (folder / name).read_bytes(), media_type, SAFE)
            for path, (name, media_type) in FILES_OF_PAGE.items()
        }
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
        for reader in (*self._pages.values(), self._desk):
            reader.close()
        self._listener.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._answer_until_stopped())

    async def _answer_until_stopped(self) -> None:
        self._loop.set_exception_handler(lambda _loop, context: self._tell(f"the HTTP port: {context}"))
        self._listener.setblocking(False)
        self._listen()
        sampling = self._loop.create_task(self._sample())
        await self._stop.wait()
        sampling.cancel()
        self._loop.remove_reader(self._listener)
        for connection in list(self._connections):
            connection.transport.abort()

    async def _sample(self) -> None:
        def sample(store: StoreBeside) -> Answer:
            self._overview.sample(store)
            return Answer(200, b"")

        while True:
            began = time.monotonic()
            await self._pages[b"/overview"].make(sample)
            await asyncio.sleep(max(SAMPLE_S, 10 * (time.monotonic() - began)))

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

    def ask(self, connection: _Connection, request: h11.Request, body: bytes) -> None:
        """A client wants something."""
        self._do(self._answer(connection, request, body))

    async def _answer(self, connection: _Connection, request: h11.Request, body: bytes) -> None:
        path = request.target.partition(b"?")[0]
        methods = ("GET", "HEAD", "POST") if path == KEPT else ("GET", "HEAD")
        host = dict(request.headers).get(b"host", b"")
        if path not in self._pages and path not in self._files and path not in (KEPT, LIVE):
            answer = Answer(404, b"here are " + b", ".join((b"/", *self._pages, LIVE)) + b"\n")
        elif request.method.decode() not in methods:
            answer = Answer(405, b"this is only to be read\n", headers={"allow": ", ".join(methods)})
        elif path not in OPEN and host and not self._guard.is_here(host):
            answer = Answer(421, ELSEWHERE)
        elif path in self._files:
            answer = self._files[path]
        elif path == LIVE:
            answer = _of(health.restart_helps(self._manager, time.monotonic()))
        elif path in self._pages:
            answer = await self._pages[path].answer()
        else:
            answer = await self._of_kept(connection.address, request, body)
        connection.send(answer)

    # ---- what needs the token

    async def _of_kept(self, address: str, request: h11.Request, body: bytes) -> Answer:
        """Messages that were put aside are looked at, or moved."""
        headers = dict(request.headers)
        if not self._guard.is_from_here(headers.get(b"origin", b""), headers.get(b"host", b"")):
            return Answer(403, b"another web page than the one from here has asked for this\n")
        refusal = await self._guard.refusal(headers.get(b"authorization", b""), address)
        if refusal and refusal.is_guess:
            self._manager.links.counters.http_refused += 1
            self._tell(Line(f"{address}: a wrong token for the web page", WARNING, peer=address))
        if refusal:
            challenge = {"www-authenticate": "Bearer"} if refusal.code == 401 else {}
            return Answer(refusal.code, f"{refusal.reason}\n".encode(), headers=challenge)
        if request.method == b"POST":
            return await self._desk.answer(lambda store: self._move(store, address, body))
        query = request.target.partition(b"?")[2].decode("latin-1")
        return await self._desk.answer(lambda store: _as_json(200, kept.page(store, query, int(time.time()))))

    def _move(self, store: StoreBeside, address: str, body: bytes) -> Answer:
        done = kept.move(store, wanted := kept.wanted_in(body))
        self._moves += 1
        self._tell(_moved(done, address, wanted.destination, self._moves))
        return _as_json(200, done)
