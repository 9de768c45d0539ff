"""Where connections are taken: any number of listening sockets, each with who may connect. They can change while others
go on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ordack.access import Networks
from ordack.config import format_address

BACKLOG = 100  # connections that are taken in one turn, before the first of them can be refused


class BadPlace(ValueError):
    """It cannot listen there; the text says where and why."""


class Listener:
    """A listening TCP socket on the first address of host, an IPv4 one if there is one; on an IPv6 address, for IPv6
    alone, whatever the machine's default is. Raises OSError.

    asked: the host and port that were asked for. place: the address and port that it has. allow: who may connect; None:
    everybody.
    """

    def __init__(self, host: str, port: int, allow: Networks | None = None) -> None:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except UnicodeError:
            raise OSError(f"{host!r} is no name of a machine") from None
        family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
        self._family: int = family
        self.asked = host, port
        self.allow = allow
        self.server: asyncio.Server | None = None
        self.socket = self._bound(address)
        self._address = self.socket.getsockname()
        self.place = self._address[0], int(self._address[1])

    def _bound(self, address: Any) -> socket.socket:
        made = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if self._family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(address)
            made.listen(BACKLOG)
        except OSError:
            made.close()
            raise
        return made

    def reopen(self) -> None:
        """Listen again, at the same place, after `close`. Raises OSError."""
        self.socket = self._bound(self._address)

    def admits(self, address: str) -> bool:
        """May a peer at this IP address connect?"""
        return self.allow is None or address in self.allow

    def close(self) -> None:
        """Take no more connections. Those that are there go on."""
        if self.server:
            self.server.close()
        self.socket.close()

    def __str__(self) -> str:
        return format_address(*self.place)


class Listeners:
    """All that a queue manager listens on. changed: called when who may connect has become another."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)
        self._make: Callable[[Listener], asyncio.BaseProtocol] | None = None
        self.changed: Callable[[], None] = lambda: None

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

    async def start(self, make: Callable[[Listener], asyncio.BaseProtocol]) -> None:
        """Take connections from now on; make: the protocol of each, by the listener that it has come on."""
        self._make = make
        for listener in self:
            await self._start(listener)

    async def _start(self, listener: Listener) -> None:
        make = self._make
        assert make
        listener.server = await asyncio.get_running_loop().create_server(
            lambda: make(listener), sock=listener.socket, backlog=BACKLOG
        )

    async def change(self, places: Sequence[tuple[str, int, Networks | None]]) -> None:
        """Listen at these hosts and ports from now on, for whom each says; where it listens already, it goes on.

        Raises BadPlace, and is as before then.
        """
        left, kept = list(self), []
        missing = []
        for host, port, allow in places:
            known = next((one for one in left if one.asked == (host, port)), None)
            if known:
                left.remove(known)
            else:
                missing.append((host, port, allow))
            kept.append((known, allow))
        for listener in left:  # first, for what comes may take its port
            listener.close()
        made: list[Listener] = []
        try:
            for host, port, allow in missing:
                made.append(self._open(host, port, allow))
                await self._start(made[-1])
        except BadPlace:
            for listener in made:
                listener.close()
            await self._put_back(left)
            raise
        new = iter(made)
        for known, allow in kept:
            if known:
                known.allow = allow
        self._listeners = [known or next(new) for known, _ in kept]
        self.changed()

    def _open(self, host: str, port: int, allow: Networks | None) -> Listener:
        try:
            return Listener(host, port, allow)
        except OSError as error:
            raise BadPlace(f"cannot listen on {format_address(host, port)}: {error.strerror or error}") from None

    async def _put_back(self, closed: Sequence[Listener]) -> None:
        for listener in closed:
            try:
                listener.reopen()
            except OSError as error:
                raise BadPlace(f"cannot listen on {listener} any more: {error.strerror or error}") from None
            await self._start(listener)

    def close(self) -> None:
        """Take no more connections."""
        for listener in self:
            listener.close()
