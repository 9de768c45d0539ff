"""Links: how bytes reach the peer. A link has open, read, write and close as TcpLink has: a UART's can stand beside it.

All four are coroutines and raise OSError when the link is broken. After that, only close and then open are of use.
"""

import asyncio
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

READ_BYTES = 2048
CONNECT_TIMEOUT_S = 10
_ETIMEDOUT = 110
_IPPROTO_TCP = 6
_TCP_NODELAY = getattr(socket, "TCP_NODELAY", 1)  # lwIP has a number of its own


class Backoff:
    """How long to wait before the next attempt, in seconds: first, doubling to limit, less up to half of it by chance.

    random: gives a float from 0 up to 1.
    """

    def __init__(self, random: "Callable[[], float]", first: float = 0.1, limit: float = 5.0) -> None:
        self._random = random
        self._first = first
        self._limit = limit
        self._delay = first

    def next(self) -> float:
        """The next delay."""
        delay = self._delay
        self._delay = min(2 * delay, self._limit)
        return delay * (1 - self._random() / 2)

    def reset(self) -> None:
        """It worked: begin with the first delay again."""
        self._delay = self._first


class TcpLink:
    """A TCP connection to host and port (B-001)."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._reader: "Any" = None
        self._writer: "Any" = None

    async def open(self) -> None:
        """Connect. On MicroPython a refusal may show only with the first read or write."""
        connecting = asyncio.open_connection(self.host, self.port)
        try:
            self._reader, self._writer = await asyncio.wait_for(connecting, CONNECT_TIMEOUT_S)
        except asyncio.TimeoutError:
            raise OSError(_ETIMEDOUT)  # noqa: B904 - MicroPython has no `from`
        stream = self._writer
        if hasattr(stream, "s"):  # MicroPython; CPython's asyncio has done it
            stream.s.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)

    async def read(self) -> bytes:
        """Some bytes, as soon as there are any; none: the peer has closed."""
        return bytes(await self._reader.read(READ_BYTES))

    async def write(self, data: bytes) -> None:
        """Hand data over in one write; returns when there is room for more."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Let go of the connection, whatever its state; what was not written yet is dropped."""
        writer = self._writer
        self._reader = self._writer = None
        if writer is None:
            return
        if hasattr(writer, "transport"):
            writer.transport.abort()
        else:
            await writer.wait_closed()  # MicroPython closes the socket here
