"""Pings over UDP: ask a queue manager whether it accepts a session now, and answer such requests (wire.md 7)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mqqb import core
from mqqb.handshake import Ping, build_ping, parse_ping

if TYPE_CHECKING:
    from ordack.broker.links import Hop

RESPONSE_TIME_S = 1.0  # B-139
REFUSED = 2  # RF
ANSWERS_MAX = 50  # in ANSWERS_S: a request forged from another ping port would circle forever
ANSWERS_S = 0.05
REPEATED = 1  # RC: 1 if the initiator is no server; this side is one, as in EstablishConnection


class Pings:
    """The pings of one queue manager. `cookie` is PingCookie (B-021).

    Only the answer to the latest request counts (B-200). So one request is pending at a time, and meanwhile other hops
    are connected without a ping (B-198).

    port: UDP port of all queue managers. refuses: whether a session from this address would be refused; None sends no
    answer. ponged: called with each hop asked and whether it refuses; None: no answer.
    """

    def __init__(
        self,
        guid: bytes,
        port: int,
        refuses: Callable[[str], bool | None],
        tell: Callable[[str], None],
        ponged: Callable[[Hop, bool | None], None],
    ) -> None:
        self.cookie = 0
        self._guid = guid
        self._port = port
        self._refuses = refuses
        self._tell = tell
        self._ponged = ponged
        self._asked: tuple[Hop, socket.socket, asyncio.TimerHandle] | None = None
        self._services: list[socket.socket] = []
        self._counted_from = 0.0
        self._answered = 0

    # ---- datagrams

    def request(self) -> bytearray:
        """The datagram of a new request (B-199)."""
        self.cookie = (self.cookie + 1) & 0xFFFFFFFF
        return self._build(0, self.cookie)

    def response(self, datagram: bytes) -> bool | None:
        """Does the peer refuse? None: the datagram does not answer the latest request (B-200)."""
        try:
            ping = parse_ping(datagram)
        except core.Malformed:
            return None
        return bool(ping.flags & REFUSED) if ping.cookie == self.cookie else None

    def answer(self, datagram: bytes, refuse: bool) -> bytearray | None:
        """The answer to a request; None: ignore the datagram (B-202). refuse: a session would be refused now."""
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
        ping.qm_guid = self._guid
        return build_ping(ping)

    # ---- sockets

    @property
    def waiting(self) -> bool:
        """Does a request wait for its answer?"""
        return self._asked is not None

    def ask(self, hop: Hop, address: str) -> None:
        """Send a request to the hop's address, from a port that receives only the answer."""
        try:
            asker = _datagram_socket(address)
        except OSError:
            self._ponged(hop, None)
            return
        loop = asyncio.get_running_loop()
        self._asked = hop, asker, loop.call_later(RESPONSE_TIME_S, self._end, None)
        loop.add_reader(asker, self._response, asker)
        with contextlib.suppress(OSError):  # no route: the timeout ends the request
            asker.connect((address, self._port))
            asker.send(self.request())

    def _response(self, asker: socket.socket) -> None:
        with contextlib.suppress(OSError):  # port closed: the timeout ends the request
            refused = self.response(asker.recv(core.PING_SIZE + 1))
            if refused is not None:
                self._end(refused)

    def _end(self, refused: bool | None) -> None:
        assert self._asked
        hop, asker, timeout = self._asked
        self._asked = None
        timeout.cancel()
        _close(asker)
        self._ponged(hop, refused)

    def answer_at(self, address: str) -> None:
        """Start answering requests to this address (B-202), or log why not."""
        service = _datagram_socket(address)
        try:
            service.bind((address, self._port))
        except OSError as error:
            service.close()
            self._tell(f"pings to {address} are not answered: UDP port {self._port}, {error.strerror or error}")
            return
        self._services.append(service)
        asyncio.get_running_loop().add_reader(service, self._request, service)

    def _request(self, service: socket.socket) -> None:
        with contextlib.suppress(OSError):  # no route or a full buffer: losing a datagram is harmless
            datagram, source = service.recvfrom(core.PING_SIZE + 1)
            refuse = self._refuses(source[0])
            response = None if refuse is None else self.answer(datagram, refuse)
            if response and self._may_answer():
                service.sendto(response, source)  # B-006

    def _may_answer(self) -> bool:
        now = time.monotonic()
        if now - self._counted_from >= ANSWERS_S:
            self._counted_from, self._answered = now, 0
        self._answered += 1
        return self._answered <= ANSWERS_MAX

    def close(self) -> None:
        """Stop asking and answering."""
        for service in self._services:
            _close(service)
        if self._asked:
            _, asker, timeout = self._asked
            timeout.cancel()
            _close(asker)


def _close(used: socket.socket) -> None:
    asyncio.get_running_loop().remove_reader(used)
    used.close()


def _datagram_socket(address: str) -> socket.socket:
    datagrams = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.setblocking(False)
    if datagrams.family == socket.AF_INET6:
        datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return datagrams
