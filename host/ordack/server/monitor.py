"""The HTTP port of a running queue manager: a web page, /metrics, /healthz, /livez, /status and /act.

The port has its own thread, event loop and store connections, so a slow or hostile client delays no message.
Connections, requests and their time are bounded. Each answer is built once at a time and takes at most a tenth of a
thread's time. A connection serves one request.

POST /act changes queues and shows messages (actions.py), for holders of the token. A page of another site cannot send
such a request: it does not know the token, which no browser adds by itself, and its Origin is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
import stat
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

import h11

from ordack.config.config import format_address
from ordack.config.config_file import is_loopback
from ordack.config.names import is_own_address
from ordack.server import actions, health
from ordack.server.health import SAMPLE_S, Overview
from ordack.server.metrics import Metrics
from ordack.store import StoreError
from ordack.store.look import StoreBeside, StoreReader

if TYPE_CHECKING:
    from ordack.broker.manager import Manager

CONNECTIONS_MAX = 16  # one more ends the connection with the least progress
FILES = CONNECTIONS_MAX + 32  # files: five stores, two event loops, the listener, two connections
ACCEPT_APART_S = 0.01
NO_FILE_S = 1.0  # pause before the next accept
REQUEST_BYTES = 16 << 10
REQUEST_PIECES = 64
CONNECTION_S = 10.0  # from the first byte to the last
ANSWER_S = 8.0  # deadline of an answer, then an error is sent
QUERY_APART_S = 0.02
FRESH_S = 0.5  # minimum lifetime of an answer; at least ten times its build time
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
LIVE = b"/livez"
OVERVIEW = b"/overview"
ACT = b"/act"
TOKEN_MIN, TOKEN_MAX = 16, 256  # characters
LOCKED = (
    b"Requests from other machines need a token. So do requests under a foreign host name. Enter the token from the "
    b"file that http-token-file in ordack.toml names.\n"
)
NO_TOKEN = (
    b"The token is missing or wrong. Enter the token that `ordack serve` prints at its start. If ordack.toml names an "
    b"http-token-file, enter the token from that file.\n"
)
FOREIGN = (
    b"The request comes from a page of another site: Origin and Host differ. Use the page that this server shows. A "
    b"reverse proxy must pass on the header Host.\n"
)
BUSY = b"Another request is still running. Wait until it ends, then try again.\n"
DEFECT = b"This is a defect of ordack: its log has the details.\n"
AT_WORK = "The request is still running. The figures on this page show its progress."
SAFE = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}  # bounds the page's rights and its embedding
FILES_OF_PAGE = {
    b"/": ("page.html", "text/html; charset=utf-8"),
    b"/page.css": ("page.css", "text/css; charset=utf-8"),
    b"/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class HttpAnswer(NamedTuple):
    """A response to a request."""

    code: int
    body: bytes
    media_type: str = TEXT
    headers: Mapping[str, str] = {}


Make = Callable[[StoreBeside, bytes], HttpAnswer]  # with the query of the request


class BadToken(ValueError):
    """The file holds no token. The text gives the reason and the next step."""


def read_token(path: Path | None) -> bytes:
    """The token in a file; b"" without one. Raises BadToken."""
    if path is None:
        return b""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise BadToken(f"{path}: not a file: name a file with the token in its only line")
        token = path.read_bytes().strip()
    except OSError as error:
        raise BadToken(f"{path}: cannot be read: {error.strerror or error}") from None
    if mode & 0o077:
        raise BadToken(
            f"{path}: other users may read the token (mode {stat.S_IMODE(mode):03o}): run `chmod 600` on the file, and "
            "write a new token"
        )
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX or not re.fullmatch(rb"[!-~]+", token):
        raise BadToken(
            f"{path}: write one line of {TOKEN_MIN} to {TOKEN_MAX} visible ASCII characters without spaces, that "
            "nobody can guess"
        )
    return token


def is_own(host: bytes) -> bool:
    """Does the header Host name this machine? A foreign page that reaches this machine by DNS rebinding has another
    name."""
    text = host.decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return is_own_address(name)
    return True


class _WebPage:
    """The answer for a path, built by `show` in a thread with its own store connection."""

    def __init__(self, folder: Path, show: Make, tell: Callable[[str], None]) -> None:
        self.reader = StoreReader(folder, "ordack-http")
        self._show = show
        self._tell = tell
        self._stale_at = 0.0
        self._made: asyncio.Future[HttpAnswer] | None = None
        self._query = b""  # of `_made`

    async def answer(self, query: bytes = b"") -> HttpAnswer:
        """The latest answer, rebuilt if stale. Another query waits until the latest answer is stale."""
        try:
            async with asyncio.timeout(ANSWER_S):
                while self._query != query and not self._is_stale:
                    await asyncio.sleep(QUERY_APART_S)
                if self._made is None or self._is_stale:
                    self._query = query
                    self._made = asyncio.ensure_future(self.make(lambda store: self._show_now(store, query)))
                return await asyncio.shield(self._made)
        except TimeoutError:
            return _of(f"reading the store took more than {ANSWER_S:.0f} s")

    @property
    def _is_stale(self) -> bool:
        return self._made is None or (self._made.done() and time.monotonic() >= self._stale_at)

    async def make(self, make: Callable[[StoreBeside], HttpAnswer]) -> HttpAnswer:
        """Build an answer in the thread."""
        try:
            return await asyncio.wrap_future(self.reader.read(make))
        except StoreError as error:
            return _of(str(error))
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            self._tell("".join(traceback.format_exception(error)).rstrip())
            return HttpAnswer(500, DEFECT)

    def _show_now(self, store: StoreBeside, query: bytes) -> HttpAnswer:
        began = time.monotonic()
        try:
            return self._show(store, query)
        finally:
            ended = time.monotonic()
            self._stale_at = ended + max(FRESH_S, 10 * (ended - began))


def _of(*problems: str) -> HttpAnswer:
    """Status 503 with problems, or 200 without any."""
    found = [problem for problem in problems if problem]
    return _as_json(503 if found else 200, {"healthy": not found, "problems": found})


def _as_json(code: int, values: object) -> HttpAnswer:
    return HttpAnswer(code, json.dumps(values).encode() + b"\n", JSON)


class _HttpConnection(asyncio.Protocol):
    """A connection with one request."""

    transport: asyncio.Transport

    def __init__(self, monitor: Monitor) -> None:
        self.has_asked = False
        self.is_answered = False
        self._monitor = monitor
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES)
        self._bytes = 0
        self._pieces = 0
        self._body = b""
        self._request: h11.Request | None = None

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
            while (event := self._http.next_event()) is not h11.NEED_DATA and not isinstance(event, h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    self._request = event
                elif isinstance(event, h11.Data):
                    self._body += event.data
        except h11.RemoteProtocolError as error:
            self._asked()
            self.send(HttpAnswer(error.error_status_hint, f"The request is not valid HTTP: {error}\n".encode()))
            return
        if self._request and (isinstance(event, h11.EndOfMessage) or self._request.target != ACT):
            self._asked()
            self._monitor.ask(self, self._request, self._body)
        elif self._bytes >= REQUEST_BYTES or self._pieces >= REQUEST_PIECES:
            self._asked()
            self.send(HttpAnswer(431, b"The request is too long, or arrives in too many pieces.\n"))

    @property
    def address(self) -> str:
        """The client's address."""
        return str((self.transport.get_extra_info("peername") or ("",))[0])

    def _asked(self) -> None:
        self.has_asked = True
        self.transport.pause_reading()

    def send(self, answer: HttpAnswer) -> None:
        """Send the answer, then end the connection."""
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
        is_head = self._request is not None and self._request.method == b"HEAD"
        events = (
            h11.Response(status_code=answer.code, headers=list(headers.items()), reason=HTTPStatus(answer.code).phrase),
            h11.Data(data=b"" if is_head else answer.body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self._http.send(event) or b"" for event in events))
        self.transport.close()


class Monitor:
    """Takes over a listening socket and answers requests from `start` to `close`. tell: called in another thread with
    defects and changes for the log. token: permits changes, and shows the page to clients on other machines. Without
    it, the generated `own_token` permits changes from this machine."""

    files = FILES

    def __init__(
        self, manager: Manager, listener: socket.socket, tell: Callable[[str], None], token: bytes = b""
    ) -> None:
        self._token = token
        self.own_token = b"" if token else secrets.token_urlsafe(TOKEN_MIN).encode()
        self._actor = ThreadPoolExecutor(1, thread_name_prefix="ordack-http-act")
        self._acting: asyncio.Future[HttpAnswer] | None = None
        self._manager = manager
        self._listener = listener
        self._tell = tell
        metrics = Metrics(manager, lambda store: health.glance(manager, store)["problems"])
        self._overview = overview = Overview(manager)
        make: dict[bytes, Make] = {
            b"/metrics": lambda store, _: HttpAnswer(200, *metrics.text(store)),
            b"/healthz": lambda store, _: _of(*health.glance(manager, store)["problems"]),
            b"/status": lambda store, _: _as_json(200, health.glance(manager, store)),
            OVERVIEW: lambda store, query: _as_json(
                200, overview.shown(store, dict(parse_qsl(query.decode("latin-1"))))
            ),
        }
        self._pages = {path: _WebPage(manager.store.folder, make[path], tell) for path in make}
        folder = Path(__file__).parent
        self._files = {
            path: HttpAnswer(200, (folder / name).read_bytes(), media_type, SAFE)
            for path, (name, media_type) in FILES_OF_PAGE.items()
        }
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._connections: dict[_HttpConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="ordack-http", daemon=True)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return format_address(*self._listener.getsockname()[:2])

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more requests."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._actor.shutdown(wait=False, cancel_futures=True)  # an action may wait for the caller's event loop
        for page in self._pages.values():
            page.reader.close()
        self._listener.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._answer_until_stopped())

    async def _answer_until_stopped(self) -> None:
        self._loop.set_exception_handler(lambda _loop, context: self._tell(f"the HTTP port: {context}"))
        self._listener.setblocking(False)
        self._do(self._accept())
        self._do(self._sample())
        await self._stop.wait()
        for connection in list(self._connections):
            connection.transport.abort()

    async def _sample(self) -> None:
        def sample(store: StoreBeside) -> HttpAnswer:
            self._overview.sample(store)
            return HttpAnswer(200, b"")

        while True:
            began = time.monotonic()
            await self._pages[OVERVIEW].make(sample)
            await asyncio.sleep(max(SAMPLE_S, 10 * (time.monotonic() - began)))

    # ---- connections

    async def _accept(self) -> None:
        """Accept one connection after another, with a pause in between."""
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listener)
            except OSError:
                await asyncio.sleep(NO_FILE_S)
                continue
            with contextlib.suppress(OSError):  # the client has disconnected
                await self._loop.connect_accepted_socket(lambda: _HttpConnection(self), accepted)
            await asyncio.sleep(ACCEPT_APART_S)

    def began(self, connection: _HttpConnection) -> None:
        """Count a connection. If there are too many, end the one with the least progress."""
        if len(self._connections) >= CONNECTIONS_MAX:
            worst = min(self._connections, key=lambda one: 2 * one.has_asked - one.is_answered)  # the oldest of equals
            worst.transport.abort()
            self.lost(worst)
        self._connections[connection] = None

    def lost(self, connection: _HttpConnection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection, None)

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- answers

    def ask(self, connection: _HttpConnection, request: h11.Request, body: bytes) -> None:
        """Answer a request."""
        self._do(self._answer(connection, request, body))

    async def _answer(self, connection: _HttpConnection, request: h11.Request, body: bytes) -> None:
        address, (path, _, query) = connection.address, request.target.partition(b"?")
        headers = dict(request.headers)
        if path not in self._pages and path not in self._files and path not in (LIVE, ACT):
            answer = HttpAnswer(
                404, b"There is no such page. Pages: " + b", ".join((b"/", *self._pages, LIVE, ACT)) + b"\n"
            )
        elif path == ACT:
            answer = self._refusal(address, request.method, headers) or await self._act(body, address)
        elif request.method not in (b"GET", b"HEAD"):
            answer = HttpAnswer(405, b"This page is read-only: send GET or HEAD.\n", headers={"allow": "GET, HEAD"})
        elif path in self._files:
            answer = self._files[path]
        elif path == LIVE:
            answer = _of(health.restart_helps(self._manager, time.monotonic()))
        elif path == OVERVIEW and not self._may_see(address, headers):
            answer = HttpAnswer(401, LOCKED, headers={"www-authenticate": "Bearer"})
        else:
            answer = await self._pages[path].answer(query if path == OVERVIEW else b"")
        connection.send(answer)

    def _may_see(self, address: str, headers: Mapping[bytes, bytes]) -> bool:
        return _has(self._token, headers) or (is_loopback(address) and is_own(headers.get(b"host", b"localhost")))

    def _refusal(self, address: str, method: bytes, headers: Mapping[bytes, bytes]) -> HttpAnswer | None:
        """The answer to a client that may not act; None: it may."""
        if method != b"POST":
            return HttpAnswer(405, b"Send this request by POST.\n", headers={"allow": "POST"})
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON.encode():
            return HttpAnswer(415, b"Send the request as application/json.\n")
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if origin is not None and origin not in (b"http://" + host, b"https://" + host):
            return HttpAnswer(403, FOREIGN)
        if not (_has(self._token, headers) or (self._may_see(address, headers) and _has(self.own_token, headers))):
            return HttpAnswer(401, NO_TOKEN, headers={"www-authenticate": "Bearer"})
        return None

    async def _act(self, body: bytes, address: str) -> HttpAnswer:
        """Run an action in its thread, one at a time."""
        if self._acting and not self._acting.done():
            return HttpAnswer(503, BUSY)
        self._acting = self._loop.run_in_executor(self._actor, self._acted, body, address)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(self._acting)
        except TimeoutError:
            return _as_json(202, {"done": AT_WORK})

    def _acted(self, body: bytes, address: str) -> HttpAnswer:
        try:
            return _as_json(200, actions.run(self._manager.store.folder, body, address))
        except (ValueError, StoreError) as error:
            return HttpAnswer(400, f"{error}\n".encode(errors="backslashreplace"))
        except Exception as error:  # noqa: BLE001 - the next request may succeed
            self._tell("".join(traceback.format_exception(error)).rstrip())
            return HttpAnswer(500, DEFECT)


def _has(token: bytes, headers: Mapping[bytes, bytes]) -> bool:
    """Do the headers hold this token? b"": no."""
    kind, _, given = headers.get(b"authorization", b"").partition(b" ")
    return bool(token) and kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), token)
