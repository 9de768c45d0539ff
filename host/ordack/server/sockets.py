"""Plain TCP connections that peers open, read and written in C: one descriptor in the event loop for all of them.

asyncio keeps the other connections: with TLS, of captures, to next hops, over serial lines, and all without the C core.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from mqqb import core

if core.implementation == "c":
    from _mqqb import ffi, lib

AVAILABLE = core.implementation == "c"
TAKEN_AT_ONCE = 32  # connections accepted per turn, so that a flood leaves time for existing connections
ACCEPT_RETRY_S = 1.0  # pause after an accept that failed, for example without a free file
HIGH_WATER = 64 << 10  # bytes kept for a peer, above which its protocol pauses


class SocketTransport(asyncio.Transport):
    """One connection, in place of asyncio's transport. number: of the connection in C; -1 after its end."""

    __slots__ = ("_is_closing", "_is_paused", "_peer", "_protocol", "_sockets", "number")

    def __init__(self, sockets: Sockets, number: int, peer: tuple[Any, ...], protocol: asyncio.Protocol) -> None:
        self._sockets = sockets
        self._peer = peer
        self._protocol = protocol
        self._is_closing = False
        self._is_paused = False
        self.number = number

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's: "peername", and "socket" for its descriptor."""
        if name == "peername":
            return self._peer
        return self if name == "socket" and self.number >= 0 else default

    def fileno(self) -> int:
        """The descriptor of the connection."""
        return self._sockets.descriptor_of(self.number)

    def is_closing(self) -> bool:
        """As asyncio's."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._sockets.kept(self.number) if self.number >= 0 else 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As asyncio's."""
        if self.number < 0 or self._is_closing:
            return
        kept = self._sockets.write(self.number, data)
        if kept < 0:
            self.abort()
        elif kept > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """As asyncio's: kept bytes still leave."""
        if not self._is_closing:
            self._is_closing = True
            if self.get_write_buffer_size():
                self._sockets.mute(self.number)
            else:
                self._sockets.end(self, None)

    def abort(self) -> None:
        """As asyncio's: kept bytes are dropped."""
        self._is_closing = True
        self._sockets.end(self, None)

    def came(self, data: bytes) -> None:
        """Pass bytes to the protocol."""
        if not self._is_closing:
            self._protocol.data_received(data)

    def written(self) -> None:
        """All kept bytes have left."""
        if self._is_closing:
            self._sockets.end(self, None)
        elif self._is_paused:
            self._is_paused = False
            self._protocol.resume_writing()

    def lost(self, error: Exception | None) -> None:
        """Tell the protocol that the connection has ended."""
        self._is_closing = True
        self._protocol.connection_lost(error)


class Accepting:
    """Accepts connections of a listening socket. add: takes each, with its address."""

    def __init__(self, listening: socket.socket, add: Callable[[socket.socket, tuple[Any, ...]], None]) -> None:
        self._listening = listening
        self._add = add
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._begin()

    def _begin(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(TAKEN_AT_ONCE):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.call_exception_handler({"message": "a connection is not accepted", "exception": error})
                self._loop.remove_reader(self._listening)
                self._retry = self._loop.call_later(ACCEPT_RETRY_S, self._begin)
                return
            self._add(accepted, peer)

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()


class Sockets:
    """All such connections. unwritten_max: bytes that the fast path may keep for one peer. fast: the fast path in C, or
    None. readable: called when a turn would find something."""

    def __init__(self, unwritten_max: int, fast: Any, readable: Callable[[], None]) -> None:
        self._sockets = lib.mqqb_sockets_new(ffi.NULL if fast is None else fast, unwritten_max)
        if not self._sockets:
            raise OSError("no memory or file for the connections of peers")
        self._fast = fast
        self._transports: dict[int, SocketTransport] = {}
        self._loop = asyncio.get_running_loop()
        self._readable = readable
        self._is_watched = False

    def listen(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> Accepting:
        """Accept connections; protocol: makes the protocol of each."""
        return Accepting(listening, lambda accepted, peer: self._add(accepted, peer, protocol()))

    def _add(self, accepted: socket.socket, peer: tuple[Any, ...], protocol: asyncio.Protocol) -> None:
        number = lib.mqqb_sockets_add(self._sockets, accepted.fileno())
        if number < 0:
            accepted.close()
            return
        accepted.detach()
        self._transports[number] = transport = SocketTransport(self, number, peer, protocol)
        protocol.connection_made(transport)

    def close(self) -> None:
        """Close all connections."""
        self.watch(False)
        if self._sockets:
            lib.mqqb_sockets_free(self._sockets)
            self._sockets = None
            self._transports.clear()

    # ---- all connections

    def watch(self, is_on: bool) -> None:
        """Call `readable` from now on, or not."""
        if is_on != self._is_watched and self._sockets:
            self._is_watched = is_on
            descriptor = lib.mqqb_sockets_descriptor(self._sockets)
            if is_on:
                self._loop.add_reader(descriptor, self._readable)
            else:
                self._loop.remove_reader(descriptor)

    def turn(self, wall: int) -> bool:
        """Read once from each connection with bytes; return whether any had some. Bytes go to the protocols at once,
        ends and room for writing in the loop's next round. wall: seconds since 1970."""
        if not self._sockets:
            return False
        count = lib.mqqb_sockets_turn(self._sockets, wall)
        items = lib.mqqb_sockets_items(self._sockets)
        data = lib.mqqb_sockets_bytes(self._sockets)
        for place in range(count):
            item = items[place]
            transport = self._transports.get(item.socket)
            if transport is None:  # ended by the bytes of another connection
                continue
            if item.kind == lib.MQQB_SOCKETS_BYTES:
                transport.came(ffi.buffer(data + item.offset, item.size)[:])
            elif item.kind == lib.MQQB_SOCKETS_WRITTEN:
                self._loop.call_soon(transport.written)
            else:
                error = OSError(item.size, "the connection broke") if item.size else None
                self._loop.call_soon(self.end, transport, error)
        return bool(count) or (self._fast is not None and lib.mqqb_fast_pending(self._fast) > 0)

    def acknowledge(self) -> None:
        """Write what the fast path acknowledges."""
        if self._fast is not None and self._sockets:
            lib.mqqb_sockets_acknowledge(self._sockets)

    @property
    def busy(self) -> int:
        """Connections that were heard within the last second."""
        return int(lib.mqqb_sockets_busy(self._sockets)) if self._sockets else 0

    # ---- one connection

    def descriptor_of(self, number: int) -> int:
        """The descriptor of a connection."""
        return int(lib.mqqb_sockets_file(self._sockets, number))

    def kept(self, number: int) -> int:
        """Bytes that the kernel has not taken."""
        return int(lib.mqqb_sockets_kept(self._sockets, number)) if self._sockets else 0

    def write(self, number: int, data: bytes | bytearray | memoryview) -> int:
        """Write; return the bytes kept, -1 without memory."""
        return int(lib.mqqb_sockets_write(self._sockets, number, ffi.from_buffer("uint8_t[]", data), len(data)))

    def mute(self, number: int) -> None:
        """Read no more from a connection."""
        lib.mqqb_sockets_mute(self._sockets, number)

    def end(self, transport: SocketTransport, error: Exception | None) -> None:
        """Close a connection; its protocol hears of it in the loop's next round. Kept bytes are dropped."""
        if transport.number >= 0 and self._sockets:
            del self._transports[transport.number]
            lib.mqqb_sockets_remove(self._sockets, transport.number)
            transport.number = -1
            self._loop.call_soon(transport.lost, error)
