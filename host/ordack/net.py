"""The network side of a queue manager: TCP connections both ways, on an event loop that the caller owns.

    manager = Manager(store, now(), config)
    await serve(manager, "127.0.0.1", 1801, stop=event)

What arrives on all connections in one turn of the loop is handed to the manager as one batch, so that one commit serves
them all; while it is being written the next batch gathers in the sockets.
"""

from __future__ import annotations

import asyncio
import dataclasses
import resource
import socket
import time
from collections.abc import Callable

from ordack.config import Config, format_address
from ordack.manager import Hop, Link, Manager

POLL_INTERVAL_S = 0.05  # for timers, and for what other processes put in the store
MAX_BATCH_BYTES = 16 << 20
CONNECT_TIMEOUT_S = 10.0
SHUT_TIMEOUT_S = 5.0  # for the last bytes to a peer that does not read
SPARE_FILES = 24  # of the store, the event loop, the listener, connections that wait to be refused
BACKLOG = 100  # connections that are taken in one turn, before the first of them can be refused
SAME_AGAIN_S = 10.0  # an operator is told at most that often of one kind of excess
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0


def now() -> int:
    """Monotonic milliseconds."""
    return time.monotonic_ns() // 1_000_000


def wall() -> int:
    """Seconds since 1970."""
    return int(time.time())


class _Connection(asyncio.Protocol):
    """One transport and its link. A hop is given where this side has connected."""

    transport: asyncio.Transport

    def __init__(self, net: _Net, hop: Hop | None) -> None:
        self.net = net
        self.hop = hop
        self.link: Link | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")  # None: it has gone already
        manager = self.net.manager
        if peer:
            self.link = manager.connect(self.hop, peer[0], now()) if self.hop else manager.accept(peer[0], now())
        if self.link is None:
            transport.abort()
            if self.hop:
                self.net.retry_later(self.hop, first=False)
        else:
            self.net.connections[self.link] = self
            self.net.flush()

    def data_received(self, data: bytes) -> None:
        if self.link is not None:
            self.net.arrived(self.link, data)

    def pause_writing(self) -> None:
        if self.link is not None:
            self.link.writable = False

    def resume_writing(self) -> None:
        if self.link is not None:
            self.net.manager.resume(self.link, now(), wall())
            self.net.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        if self.link is not None:
            self.net.lost(self.link)


class _Net:
    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.connections: dict[Link, _Connection] = {}
        self._loop = asyncio.get_running_loop()
        self._arrivals: list[tuple[Link, bytes]] = []
        self._bytes = 0
        self._connecting: dict[Hop, asyncio.Task[None]] = {}
        self._retry: dict[Hop, tuple[float, float]] = {}  # not before this loop time; seconds waited for it

    def arrived(self, link: Link, data: bytes) -> None:
        if not self._arrivals:
            self._loop.call_soon(self.handle)  # after every connection that can be read in this turn
        self._arrivals.append((link, data))
        self._bytes += len(data)
        if self._bytes >= MAX_BATCH_BYTES:
            self.handle()

    def handle(self) -> None:
        if self._arrivals:
            arrivals, self._arrivals, self._bytes = self._arrivals, [], 0
            self.manager.receive(arrivals, now(), wall())
            self.flush()

    def flush(self) -> None:
        for link, data, shut in self.manager.output():
            connection = self.connections.get(link)
            if connection is None:
                continue
            if data:
                connection.transport.write(data)
            if connection.transport.get_write_buffer_size() > self.manager.config.max_unwritten:
                connection.transport.abort()  # B-435
            elif shut and not connection.transport.is_closing():
                connection.transport.close()
                self._loop.call_later(SHUT_TIMEOUT_S, connection.transport.abort)

    def lost(self, link: Link) -> None:
        self.handle()
        self.connections.pop(link, None)
        self.manager.lost(link)
        self.flush()
        if link.hop:
            self.retry_later(link.hop, first=link.was_open)

    def retry_later(self, hop: Hop, first: bool) -> None:
        waited = self._retry.get(hop, (0.0, 0.0))[1]
        wait = FIRST_RETRY_S if first or not waited else min(2 * waited, LAST_RETRY_S)
        self._retry[hop] = (self._loop.time() + wait, wait)

    async def poll(self) -> None:
        while True:
            self.manager.poll(now(), wall())
            self.flush()
            for hop in self.manager.wanted_hops():
                if hop not in self._connecting and self._retry.get(hop, (0.0, 0.0))[0] <= self._loop.time():
                    self._connecting[hop] = self._loop.create_task(self._connect(hop))
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _connect(self, hop: Hop) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(lambda: _Connection(self, hop), *hop)
        except Exception as error:  # noqa: BLE001 - whatever it has against a name, it is no connection
            if hop not in self._retry:
                self.manager.log(f"{format_address(*hop)}: no connection, {error or 'no answer'}; trying again")
            self.retry_later(hop, first=False)
        finally:
            del self._connecting[hop]

    async def close(self) -> None:
        """End every session and wait until the transports are shut."""
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        self.handle()
        self.manager.close()
        self.flush()
        deadline = self._loop.time() + SHUT_TIMEOUT_S
        while self.connections and self._loop.time() < deadline:
            await asyncio.sleep(0.01)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on the first address of host, an IPv4 one if there is one; raises OSError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:
        raise OSError(f"{host!r} is no name of a machine") from None
    family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def fit_to_files(config: Config) -> Config:
    """The limits of config, with no more sessions than this process may have files: as many as the hard limit allows.

    One session too many then is refused in order, instead of taking the last file from whatever needs one (B-435).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.max_sessions + SPARE_FILES + BACKLOG
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return dataclasses.replace(config, max_sessions=max(min(config.max_sessions, soft - SPARE_FILES), 1))
    return config


async def serve(manager: Manager, listener: socket.socket, stop: asyncio.Event,
                ready: Callable[[], None] = lambda: None) -> None:
    """Run the queue manager on a listening socket until `stop` is set, then end its sessions.

    `ready` is called when peers may come. Raises what went wrong inside, for example StoreError when the store cannot
    be read any more.
    """
    loop = asyncio.get_running_loop()
    failed: asyncio.Future[object] = loop.create_future()

    told = -SAME_AGAIN_S

    def fail(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        nonlocal told
        error = context.get("exception")
        if isinstance(error, OSError):  # no file left, or broken early: accepting goes on in a second
            if loop.time() - told >= SAME_AGAIN_S:
                told = loop.time()
                manager.log(f"a connection failed: {error}")
        elif not failed.done():
            failed.set_exception(error if isinstance(error, Exception) else RuntimeError(str(context["message"])))

    previous = loop.get_exception_handler()
    loop.set_exception_handler(fail)
    manager.config = fit_to_files(manager.config)
    net = _Net(manager)
    server = await loop.create_server(lambda: _Connection(net, None), sock=listener, backlog=BACKLOG)
    poll: asyncio.Task[object] = loop.create_task(net.poll())
    stopped: asyncio.Task[object] = loop.create_task(stop.wait())
    waits: set[asyncio.Future[object]] = {failed, poll, stopped}
    try:
        ready()
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    finally:
        server.close()
        poll.cancel()
        stopped.cancel()
        await asyncio.gather(poll, stopped, return_exceptions=True)
        await net.close()
        failed.cancel()
        loop.set_exception_handler(previous)
