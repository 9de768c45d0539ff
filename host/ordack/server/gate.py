"""The TCP sockets on which applications of other machines ask `ordack serve`, as `[[applications]]` of the
configuration file has them.

What they may cost is bounded: so many connections, so many seconds for each part of one, so many bytes of questions
that are not complete, one answer that is not read. Whatever breaks a bound ends, with a sentence in the log, and
nothing else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any

from ordack.api.remote import keep_alive
from ordack.broker.service import LENGTH
from ordack.config.tls import Tls, name_in, words
from ordack.server.applications import Connection, Door
from ordack.server.listener import Handshake, Listener, Listeners
from ordack.store import StoreError

HELLO_S = 10.0  # until it is known who asks
PART_S = 60.0  # for a question that has begun, and for an answer that is not read; and one more for each
RATE = 100_000  # bytes of them
REFUSED_MAX = 16  # connections beyond those that are taken, to be told so


class Gate:
    """Takes the connections. tls: what those with TLS go by, needed where a listener asks for it."""

    def __init__(self, door: Door, listeners: Listeners, tls: Tls | None) -> None:
        self.door = door
        self.half = 0  # bytes of questions that are not complete
        self.visitors: set[Visitor] = set()
        self._listeners = listeners
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        listeners.changed = self._drop_not_admitted

    async def open(self) -> None:
        """Take connections from now on."""
        await self._listeners.start(self._protocol)

    async def close(self) -> None:
        """Take no connections any more, and end those that there are."""
        self._listeners.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for visitor in list(self.visitors):
            visitor.transport.close()

    def tell(self, address: str, why: str) -> None:
        """Tell the operator of an application that is shut out, or has broken a rule."""
        text = f"{address}: an application is disconnected: {why}"
        self.door.manager.operator.tell(text, peer=address)

    def has_room(self) -> bool:
        """May one more connect, if only to hear that it is one too many?"""
        return len(self.visitors) + len(self._tasks) < self.door.most + REFUSED_MAX

    def _protocol(self, listener: Listener) -> asyncio.Protocol:
        if listener.terms.tls:
            return Handshake(lambda handshake, transport: self._begin_tls(handshake, transport, listener))
        return Visitor(self, listener)

    def _begin_tls(self, handshake: Handshake, transport: asyncio.Transport, listener: Listener) -> None:
        peer = transport.get_extra_info("peername")
        if peer and not listener.admits(peer[0]):
            self.tell(peer[0], f"it is not in the allow-list of {listener}")
        elif peer and not self.has_room():
            self.tell(peer[0], "too many are connected")
        elif peer:
            self._run(self._secure(handshake, transport, listener, peer[0]))
            return
        transport.abort()

    def _run(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _secure(
        self, handshake: Handshake, transport: asyncio.Transport, listener: Listener, address: str
    ) -> None:
        assert self._tls
        try:
            secured = await handshake.secure(transport, self._tls.server)
        except OSError as error:
            self.tell(address, words(error))
            transport.abort()
            return
        handshake.hand_over(secured, Visitor(self, listener))

    def _drop_not_admitted(self) -> None:
        for visitor in list(self.visitors):
            if visitor.listener not in self._listeners or visitor.refusal():
                visitor.end(f"it may not connect to {visitor.listener} any more")

    def has_too_much(self) -> Visitor | None:
        """Who is to end, for questions that are not complete have too many bytes: the one with the most of them."""
        if self.half <= self.door.manager.config.max_half_received:
            return None
        return max(self.visitors, key=lambda visitor: visitor.half)


class Visitor(Connection):
    """An application's connection that has come over TCP. half: bytes of its question that is not complete."""

    is_here = False

    def __init__(self, gate: Gate, listener: Listener) -> None:
        super().__init__(gate.door)
        self.half = 0
        self.listener = listener
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._address = ""
        self._certificate: str | None = None  # the name in the peer's; None without TLS
        self._late: asyncio.TimerHandle | None = None
        self._began = 0.0  # when the question did that is not complete
        self._is_unread = False  # is an answer that it does not read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")  # None: it has gone already
        if transport.get_extra_info("sslcontext"):
            self._certificate = name_in(transport.get_extra_info("peercert"))
        self._address = peer[0] if peer else ""
        if not peer or not self._gate.has_room():
            self.end("too many are connected" if peer else "")
            return
        self._gate.visitors.add(self)
        connected: socket.socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it has gone
            keep_alive(connected)
        self._within(HELLO_S, "it has not said who it is in time")

    def refusal(self) -> str:
        """As Connection has it."""
        return self.listener.refusal(self._address, self._certificate)

    def refused(self, error: StoreError) -> None:
        """As Connection has it; the operator hears of it, too."""
        self.tell(str(error))
        super().refused(error)

    def tell(self, why: str) -> None:
        """As Connection has it."""
        self._gate.tell(self._address, why)

    def came(self, data: bytes) -> None:
        """As Connection has it."""
        if self._is_unread:
            self.end("it asks before it has read its answer")
            return
        is_known = self._application is not None
        super().came(data)
        size = 0 if self.is_over else len(self._buffer)
        self._gate.half += size - self.half
        self.half, before = size, self.half
        if self.is_over:
            return
        if is_known is not (self._application is not None):
            self._within(0, "")
        if self._application and size:
            if not before or size < before + len(data):
                self._began = self._loop.time()
            announced = LENGTH.unpack_from(self._buffer)[0] if size >= LENGTH.size else 0
            passed = self._loop.time() - self._began
            self._within(PART_S + announced / RATE - passed, "its question does not come to an end")
            if too_much := self._gate.has_too_much():
                too_much.end(f"{too_much.half} bytes of a question that is not complete, and all have too many")
        elif before:
            self._within(0, "")

    def pause_writing(self) -> None:
        """It does not read."""
        self._is_unread = True
        size = self.transport.get_write_buffer_size()
        self._within(PART_S + size / RATE, "it does not read its answer")

    def resume_writing(self) -> None:
        """It does."""
        self._is_unread = False
        self._within(0, "")

    def end(self, why: str = "") -> None:
        """As Connection has it."""
        self._within(0, "")
        self._gate.visitors.discard(self)
        self._gate.half -= self.half
        self.half = 0
        super().end(why)

    def _within(self, seconds: float, why: str) -> None:
        """It ends after so many seconds, for this reason; not at all without one."""
        if self._late:
            self._late.cancel()
        self._late = self._loop.call_later(max(seconds, 0.0), self.end, why) if why else None
