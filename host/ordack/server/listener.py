"""Listening sockets: access control and TLS for incoming connections."""

from __future__ import annotations

import asyncio
import functools
import resource
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ordack.config.config import LOOPBACK, Networks, certificate_refusal, format_address
from ordack.config.names import is_own_address
from ordack.config.tls import words
from ordack.store import ALLOW_LIST, TLS

if TYPE_CHECKING:
    from ordack.config.tls import Tls
    from ordack.server.sockets import Accepting

BACKLOG = 1000  # connections that wait in the kernel, for example when all boards reconnect at once
TAKEN_AT_ONCE = 4  # connections accepted per turn, so that a flood leaves time for existing connections
SPARE_FILES = 24  # for the store, the event loop, the listener and connections about to be refused


class Listener:
    """A listening TCP socket on the first address of host, IPv4 preferred. An IPv6 socket takes IPv6 only, whatever the
    machine's default is. Raises OSError.

    place: the bound address and port. The arguments are the fields of `config_file.Listen`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        allow: Networks | None = None,
        tls: bool = False,
        certificates: frozenset[str] | None = None,
    ) -> None:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except UnicodeError:
            raise OSError(f"{host!r} is no name of a machine") from None
        family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
        self.tls = tls
        self._allow = allow
        self._certificates = certificates
        self.server: asyncio.Server | Accepting | None = None
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self.socket.bind(address)
            self.socket.listen(BACKLOG)
        except OSError:
            self.socket.close()
            raise
        name = self.socket.getsockname()
        self.place = name[0], int(name[1])

    def is_at(self, place: tuple[str, int]) -> bool:
        """Does a connection to this address and port end here?"""
        return self.place[1] == place[1] and (
            self.place[0] == place[0] or (self.place[0] in LOOPBACK and is_own_address(place[0]))
        )

    def admits(self, address: str) -> bool:
        """May a peer at this IP address connect?"""
        return self._allow is None or address in self._allow

    def refusal(self, address: str, certificate: str | None) -> str:
        """Why a peer at this IP address may not connect; "" if it may. certificate: the name in its certificate; None
        without TLS."""
        if not self.admits(address):
            return f"it is not in the allow-list of {self}: admit it with `allow` in ordack.toml, and restart `serve`"
        if self.tls != (certificate is not None):
            return f"{self} speaks TLS" if self.tls else f"{self} does not speak TLS"
        return certificate_refusal(self._certificates, certificate or "")

    def close(self) -> None:
        """Stop accepting. Existing connections continue."""
        if self.server:
            self.server.close()
        self.socket.close()

    def __str__(self) -> str:
        return format_address(*self.place)


class Listeners:
    """All listeners of a queue manager."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)
        self._handshakes: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Listener]:
        return iter(self._listeners)

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Address and port of each."""
        return tuple(listener.place for listener in self)

    async def start(self, acceptor: Acceptor, tls: Tls | None = None) -> None:
        """Start accepting. tls: for listeners with TLS."""

        def make(listener: Listener) -> asyncio.Protocol:
            if listener.tls:
                assert tls
                return TlsHandshake(listener, acceptor, tls, self._handshakes)
            return acceptor.protocol(listener)

        loop = asyncio.get_running_loop()
        for listener in self:
            listener.server = acceptor.listen(listener)
            if listener.server:
                continue
            listener.server = await loop.create_server(
                functools.partial(make, listener), sock=listener.socket, backlog=TAKEN_AT_ONCE
            )
            listener.socket.listen(BACKLOG)  # asyncio has set the backlog to TAKEN_AT_ONCE

    def close(self) -> None:
        """Stop accepting and cancel handshakes."""
        for listener in self:
            listener.close()
        for task in self._handshakes:
            task.cancel()


HANDSHAKE_TIMEOUT_S = 10.0
SHUT_TIMEOUT_S = 5.0  # to flush the last bytes to a peer that does not read, and for its close


class Acceptor(Protocol):
    """Takes the connections of listeners."""

    def protocol(self, listener: Listener) -> asyncio.Protocol:
        """The protocol of a connection to this listener."""

    def listen(self, listener: Listener) -> Accepting | None:
        """Accept connections of this listener without asyncio; None: asyncio shall."""

    def expect(self, address: str, listener: Listener) -> bool:
        """May a peer at this IP address begin a TLS handshake? After True, `expected` follows."""

    def expected(self, address: str) -> None:
        """The handshake has ended."""

    def shut_out(self, address: str, why: str, kind: str) -> None:
        """A peer at this IP address was disconnected. kind: ALLOW_LIST or TLS."""


class TlsHandshake(asyncio.Protocol):
    """A connection to a TLS listener during the handshake. The acceptor's protocol takes over afterwards."""

    def __init__(self, listener: Listener, acceptor: Acceptor, tls: Tls, tasks: set[asyncio.Task[None]]) -> None:
        self._listener = listener
        self._acceptor = acceptor
        self._tls = tls
        self._tasks = tasks
        self._early = bytearray()  # bytes that the peer sent right behind its last handshake message
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # the bytes are for TLS
        peer = transport.get_extra_info("peername")  # None: the peer has disconnected already
        if peer and not self._listener.admits(peer[0]):
            self._acceptor.shut_out(peer[0], self._listener.refusal(peer[0], None), ALLOW_LIST)
        elif peer and self._acceptor.expect(peer[0], self._listener):
            task = asyncio.get_running_loop().create_task(self._secure(transport, peer[0]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        transport.abort()

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_lost = True

    async def _secure(self, transport: asyncio.Transport, address: str) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._tls.renewed().server,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=SHUT_TIMEOUT_S,
            )
            if secured is None or self._is_lost:
                raise ConnectionResetError
        except OSError as error:
            self._acceptor.shut_out(address, words(error), TLS)
            transport.abort()
            return
        finally:
            self._acceptor.expected(address)
        protocol = self._acceptor.protocol(self._listener)
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(bytes(self._early))


def sessions_for_files(most: int, others: int = 0) -> int:
    """The session limit: `most`, or fewer if the process may not open enough files. others: files for other uses.

    Raises the soft limit up to the hard limit. A refused session leaves a file for the store (B-435).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = SPARE_FILES + others
    wanted = most + spare + BACKLOG
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(min(most, soft - spare), 1)
    return most
