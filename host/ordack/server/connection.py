"""One connection of a queue manager: its transport, and its link in the manager. And the two clocks of the network."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ordack.config.tls import name_in, words
from ordack.server.sockets import SocketTransport
from ordack.store import StoreError

if TYPE_CHECKING:
    from ordack.broker.links import Hop, PeerLink
    from ordack.broker.manager import Manager
    from ordack.server.connect import Connector
    from ordack.server.listener import Listener
    from ordack.server.record import RecordedConnection, Recorder


def now() -> int:
    """Monotonic milliseconds."""
    return time.monotonic_ns() // 1_000_000


def wall() -> int:
    """Seconds since 1970."""
    return int(time.time())


_Method = TypeVar("_Method", bound=Callable[..., None])


def _alone(method: _Method) -> _Method:
    """An error in the method ends its connection only, unless the store has failed."""

    @functools.wraps(method)
    def call(self: TcpConnection, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect must not end other connections
            self.fail(error)

    return cast(_Method, call)


class Network(Protocol):
    """What a connection needs of the network it belongs to (tcp.Net)."""

    manager: Manager
    connectors: dict[Hop, Connector]
    connections: dict[PeerLink, TcpConnection]
    recorder: Recorder | None
    handled_at: float

    def arrived(self, link: PeerLink, data: bytes) -> None: ...
    def count_busy(self, second: int) -> None: ...
    def flush(self) -> None: ...
    def lost(self, link: PeerLink, why: str = "") -> None: ...
    def defect(self, of: str, error: Exception) -> None: ...


class TcpConnection(asyncio.Protocol):
    """One transport and its link. hop: of an outgoing connection or a serial line. listener: of an incoming
    connection."""

    __slots__ = ("certificate", "ended_here", "heard", "hop", "link", "listener", "net", "recorded", "transport")

    transport: asyncio.Transport

    def __init__(self, net: Network, hop: Hop | None, listener: Listener | None = None) -> None:
        self.net = net
        self.hop = hop
        self.listener = listener
        self.link: PeerLink | None = None
        self.certificate: str | None = None  # the name in the peer's certificate; None without TLS
        self.recorded: RecordedConnection | None = None
        self.ended_here = False
        self.heard = 0  # second of the last bytes

    @_alone
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")  # None: the peer has disconnected already
        manager = self.net.manager
        if transport.get_extra_info("sslcontext"):
            self.certificate = name_in(transport.get_extra_info("peercert"))
        connector = self.net.connectors.get(self.hop) if self.hop else None
        if peer and self.net.recorder:
            self.recorded = self.net.recorder.connection(
                peer, transport.get_extra_info("sockname"), connector is not None
            )
        if peer and self.hop and connector:
            self.link = manager.connect(self.hop, peer[0], now(), connector.pinged)
        elif peer and self.listener and (refusal := self.listener.refusal(peer[0], self.certificate)):
            manager.links.not_admitted(peer[0], now(), refusal)
        elif peer:
            self.link = manager.accept(peer[0], now(), self.hop)
        if self.link is None:
            self.ended_here = True
            transport.abort()
            if connector:
                connector.unreachable(ConnectionResetError("the peer closed the connection"), now(), wall())
        else:
            self.link.certificate = self.certificate or ""
            if isinstance(transport, SocketTransport):
                self.link.owner = transport.number
            if connector:
                connector.connected()
            self.net.connections[self.link] = self
            self.net.flush()

    @_alone
    def data_received(self, data: bytes) -> None:
        if self.recorded:
            self.recorded.received(data)
        if self.link is not None:
            self.net.arrived(self.link, data)
            if self.heard != (second := int(self.net.handled_at)):
                self.heard = second
                self.net.count_busy(second)

    @_alone
    def pause_writing(self) -> None:
        if self.link is not None:
            self.link.writable = False

    @_alone
    def resume_writing(self) -> None:
        if self.link is not None:
            self.net.manager.resume(self.link, now(), wall())
            self.net.flush()

    @_alone
    def connection_lost(self, error: Exception | None) -> None:
        if self.recorded:
            self.recorded.closed(self.ended_here, error is not None)
        if self.link is not None:
            self.net.lost(self.link, words(error) if isinstance(error, ssl.SSLError) else "")

    def fail(self, error: Exception) -> None:
        """End the connection after a defect."""
        if self.link is not None:
            self.net.manager.links.defect(self.link, error)
        else:
            self.net.defect(f"a connection with {self.transport.get_extra_info('peername')}", error)
        self.ended_here = True
        self.transport.abort()
