"""Accepts connections to this node. Loaded only by programs that listen."""

import select
import socket

from mqqb import const
from ordack.node.talk.link import TcpLink, is_address, set_up

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.talk.link import Backoff


class TcpListener:
    """A TCP port for incoming connections (B-001). host: an own address, 0.0.0.0 for all. backoff: between attempts to
    open it. Raises ValueError if the host is no address.
    """

    def __init__(self, host: str, port: int, backoff: "Backoff") -> None:
        if not is_address(host):
            raise ValueError("listen is an address of this board or 0.0.0.0, not " + host)
        self.host = host
        self.port = port
        self.stream: "Any" = None
        self.wants_write = False
        self._poll: "Any" = None
        self._backoff = backoff
        self._open_at = 0  # ms: the next attempt

    def poll(self, now: int, source: "Any") -> "TcpLink | None":
        """Return an incoming connection, if any. After an error the port is closed, and reopened later."""
        link = None
        try:
            if self.stream is not None:
                link = self.accept()
                if link is not None:
                    self._backoff.reset()
            elif now >= self._open_at:
                self.open()
        except OSError:
            source.leave(self)
            self.close()
            self._open_at = now + self._backoff.next()
        return link

    def open(self) -> None:
        """Start to listen. Raises OSError."""
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)[0]
        stream = socket.socket(family, kind, protocol)
        try:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            stream.bind(address)
            stream.listen(2)
            stream.setblocking(False)
        except OSError:
            stream.close()
            raise
        self.stream = stream
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)

    def accept(self) -> "TcpLink | None":
        """Return an incoming connection, if any. Raises OSError."""
        if not self._poll.poll(0):
            return None
        stream, address = self.stream.accept()
        try:
            set_up(stream)
        except OSError:
            stream.close()
            raise
        if not isinstance(address, tuple):  # MicroPython's unix port
            family, host = socket.sockaddr(address)[:2]  # type: ignore[attr-defined,unused-ignore]
            address = (socket.inet_ntop(family, host), 0)  # type: ignore[attr-defined,unused-ignore]
        return TcpLink(address[0], self.port, stream)

    def close(self) -> None:
        """Stop listening."""
        stream = self.stream
        self.stream = None
        if stream is not None:
            stream.close()
