"""Connections cut on purpose, at any byte, and a side of them closed for a while: trials of other queue managers.

    cuts = Cuts(seed=7)
    await serve(manager, listeners, stop, between=cuts.between)
    cuts.plan(10, 500_000)       # from any thread: ten cuts within the next 500,000 bytes
    cuts.block(opened_here=True) # nothing that this side opens comes up, until `unblock`

What stands between a queue manager and its sockets has the addresses of both ends, as a relay beside it has not: where
acknowledgements go is decided by them (B-361).
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from typing import Any, NamedTuple

RST, FIN = "rst", "fin"
OPENING_BYTES = 1200  # about what both sides send before the first message
_IN_OPENING = 0.2  # share of the cuts that fall into what follows the one before


class Cut(NamedTuple):
    """A cut that was made. connection: counted from 1, of all. direction: `sent` or `received`, of the byte that was
    the last. kind: RST, at once, or FIN, in order."""

    connection: int
    opened_here: bool
    direction: str
    kind: str


class Cuts:
    """Where and when connections are cut. The same seed plans the same cuts.

    made: the cuts so far. opened: how many connections there were, by whether this side had opened them.
    """

    def __init__(self, seed: int) -> None:
        self.made: list[Cut] = []
        self.opened = {True: 0, False: 0}
        self._random = random.Random(f"cuts/{seed}")
        self._waiting: deque[tuple[int, str]] = deque()  # bytes until it is made, and its kind
        self._blocked: frozenset[bool] = frozenset()
        self._connections: set[_Between] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def plan(self, count: int, size: int) -> None:
        """Make so many cuts within the next `size` bytes, in both directions together."""
        share = max(1, size // max(1, count))
        gaps = [
            self._random.randint(1, min(share, OPENING_BYTES) if self._random.random() < _IN_OPENING else share)
            for _ in range(count)
        ]
        self._waiting = deque((gap, self._random.choice((RST, FIN))) for gap in gaps)

    def forget(self) -> None:
        """Make none of those that are still planned."""
        self._waiting = deque()

    def block(self, opened_here: bool) -> None:
        """End all connections that this side, or that peers have opened, and let none come up."""
        self._blocked |= {opened_here}
        if self._loop:
            self._loop.call_soon_threadsafe(self._end_blocked)

    def unblock(self) -> None:
        """Let connections come up again."""
        self._blocked = frozenset()

    def between(self, protocol: asyncio.Protocol, opened_here: bool) -> asyncio.Protocol:
        """What stands between this protocol and its transport."""
        self._loop = asyncio.get_running_loop()
        return _Between(self, protocol, opened_here)

    def is_blocked(self, opened_here: bool) -> bool:
        return opened_here in self._blocked

    def joined(self, connection: _Between) -> int:
        """A connection has come up; its number."""
        self._connections.add(connection)
        self.opened[connection.opened_here] += 1
        return sum(self.opened.values())

    def left(self, connection: _Between) -> None:
        self._connections.discard(connection)

    def passing(self, count: int) -> tuple[int, str]:
        """How many of the next `count` bytes may pass, and how the connection is to be cut behind them: "" not."""
        waiting = self._waiting
        if not waiting:
            return count, ""
        gap, kind = waiting[0]
        if count < gap:
            waiting[0] = gap - count, kind
            return count, ""
        waiting.popleft()
        return gap, kind

    def _end_blocked(self) -> None:
        for connection in list(self._connections):
            if connection.opened_here in self._blocked:
                connection.end(RST)


class _Between(asyncio.Protocol):
    """Stands between a protocol and its transport."""

    transport: asyncio.Transport

    def __init__(self, cuts: Cuts, inner: asyncio.Protocol, opened_here: bool) -> None:
        self.opened_here = opened_here
        self.ended = False
        self._cuts = cuts
        self._inner = inner
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._number = self._cuts.joined(self)
        if self._cuts.is_blocked(self.opened_here):
            self.end(RST)
        self._inner.connection_made(_Wire(self))

    def data_received(self, data: bytes) -> None:
        if not self.ended:
            passing, kind = self._cuts.passing(len(data))
            self._inner.data_received(data[:passing])
            self._cut("received", kind)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.ended:
            passing, kind = self._cuts.passing(len(data))
            self.transport.write(data[:passing])
            self._cut("sent", kind)

    def _cut(self, direction: str, kind: str) -> None:
        if kind and not self.ended:
            self._cuts.made.append(Cut(self._number, self.opened_here, direction, kind))
            self.end(kind)

    def end(self, kind: str) -> None:
        """Nothing passes from now on."""
        self.ended = True
        if kind == FIN:
            self.transport.close()
            return
        connected = self.transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._cuts.left(self)
        self._inner.connection_lost(ConnectionAbortedError("cut on purpose") if self.ended else error)


class _Wire(asyncio.Transport):
    """The transport that the protocol behind a _Between has."""

    def __init__(self, between: _Between) -> None:
        super().__init__()
        self._between = between
        self._real = between.transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._between.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._real.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._real.is_closing()

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()
