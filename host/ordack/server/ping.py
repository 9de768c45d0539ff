"""Pings: ask a queue manager whether a session may be opened now, and answer (wire.md 7). `Pings` has no sockets.

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from mqqb import core
from mqqb.ping import Ping, build
from mqqb.ping import parse as parse_ping

from ordack.broker.links import Hop
from ordack.broker.manager import Manager
from ordack.server.listener import Listeners

RESPONSE_TIME_MS = 1000  # B-139
REFUSED = 2  # RF
PINGS_PER_POLL = 50  # answered at most: a request that pretends to come from another ping port would go round for ever
REPEATED = 1  # RC: 1 where the initiator is no server; we are one, as in EstablishConnection


class Pings:
    """The pings of one queue manager. `cookie` is PingCookie (B-021).

    Only the answer to the latest request counts (B-200), so one request waits at a time: who would ping while
    `waiting` does without (B-198).
    """

    def __init__(self, guid: bytes) -> None:
        self.guid = guid
        self.cookie = 0
        self._due: int | None = None

    @property
    def waiting(self) -> bool:
        """Is the answer to a request still to come?"""
        return self._due is not None

    def request(self, now: int) -> bytearray:
        """The datagram of a new request (B-199)."""
        self.cookie = (self.cookie + 1) & 0xFFFFFFFF
        self._due = now + RESPONSE_TIME_MS
        return self._build(0, self.cookie)

    def response(self, datagram: bytes) -> bool | None:
        """Take what came back: does the peer refuse? None: it is not the answer that is waited for (B-200)."""
        try:
            ping = parse_ping(datagram)
        except core.Malformed:
            return None
        if self._due is None or ping.cookie != self.cookie:
            return None
        self._due = None
        return bool(ping.flags & REFUSED)

    def timed_out(self, now: int) -> bool:
        """Is the time for the answer over? True once, and then no answer counts any more (B-139)."""
        if self._due is None or now < self._due:
            return False
        self._due = None
        return True

    def answer(self, datagram: bytes, refuse: bool) -> bytearray | None:
        """The datagram that answers a request; None: ignore it (B-202). refuse: a session would be refused now."""
        try:
            ping = parse_ping(datagram)
        except core.Malformed:
            return None
        return self._build(ping.flags & REPEATED | (REFUSED if refuse else 0), ping.cookie)

    def _build(self, flags: int, cookie: int) -> bytearray:
        ping = Ping()
        ping.flags = flags
        ping.signature = core.PING_SIGNATURE
        ping.cookie = cookie
        ping.qm_guid = self.guid
        return build(ping)


class PingSockets:
    """The pings of a queue manager on UDP sockets of the running event loop. ponged: called with a hop that was asked,
    and whether it refuses; None: no answer came."""

    def __init__(
        self, manager: Manager, listeners: Listeners, now: Callable[[], int], ponged: Callable[[Hop, bool | None], None]
    ) -> None:
        self._manager = manager
        self._listeners = listeners
        self._now = now
        self._ponged = ponged
        self._loop = asyncio.get_running_loop()
        self._pings = Pings(manager.store.guid)
        self._asked: tuple[Hop, socket.socket] | None = None
        self._services: list[socket.socket] = []
        self._answered = 0

    @property
    def waiting(self) -> bool:
        """Is the answer to a request still to come?"""
        return self._pings.waiting

    def tick(self) -> None:
        """To be called at each poll."""
        self._answered = 0
        if self._pings.timed_out(self._now()):
            self._end(None)

    def ask(self, hop: Hop, address: str) -> None:
        """Send a request to the hop's address, from a port of its own: what comes back to it can be no request."""
        try:
            asker = _datagram_socket(address)
        except OSError:
            self._ponged(hop, None)
            return
        request = self._pings.request(self._now())
        self._asked = hop, asker
        self._loop.add_reader(asker, self._response, asker)
        with contextlib.suppress(OSError):  # no way there: nobody will answer
            asker.connect((address, self._manager.config.ping_port))
            asker.send(request)

    def _response(self, asker: socket.socket) -> None:
        with contextlib.suppress(OSError):  # nobody listens: told by the time that passes
            refused = self._pings.response(asker.recv(core.PING_SIZE + 1))
            if refused is not None:
                self._end(refused)

    def _end(self, refused: bool | None) -> None:
        assert self._asked
        hop, asker = self._asked
        self._asked = None
        self._close(asker)
        self._ponged(hop, refused)

    def answer_at(self, address: str) -> None:
        """Answer the requests that come to this address, from now on (B-202), or tell why not."""
        service = _datagram_socket(address)
        port = self._manager.config.ping_port
        try:
            service.bind((address, port))
        except OSError as error:
            service.close()
            self._manager.operator.tell(
                f"pings to {address} are not answered: UDP port {port}, {error.strerror or error}"
            )
            return
        self._services.append(service)
        self._loop.add_reader(service, self._request, service)

    def _request(self, service: socket.socket) -> None:
        with contextlib.suppress(OSError):  # nowhere to answer to, or no room: it is a datagram
            datagram, source = service.recvfrom(core.PING_SIZE + 1)
            if not any(listener.admits(source[0]) for listener in self._listeners):
                return
            response = self._pings.answer(datagram, self._manager.links.would_refuse(source[0]))
            if response and self._answered < PINGS_PER_POLL:
                self._answered += 1
                service.sendto(response, source)  # B-006

    def _close(self, used: socket.socket) -> None:
        self._loop.remove_reader(used)
        used.close()

    def close(self) -> None:
        """Neither ask nor answer any more."""
        for service in self._services:
            self._close(service)
        if self._asked:
            self._close(self._asked[1])


def _datagram_socket(address: str) -> socket.socket:
    datagrams = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    if datagrams.family == socket.AF_INET6:
        datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return datagrams
