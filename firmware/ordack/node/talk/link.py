"""Links carry bytes to the peer without waiting. TcpLink is here; uart.UartLink is another."""

import errno
import select
import sys

try:
    import socket
except ImportError:  # a board without a network uses a UART
    socket = None  # type: ignore[assignment]

from mqqb import MICROPYTHON, const
from ordack.node.clock import ticks_diff, ticks_ms

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Waitable(Protocol):
        """stream: object for select.poll while reading, always the same; None while closed or resolving a name.
        wants_write: poll for writing, too.
        """

        stream: Any
        wants_write: bool

    class Link(Waitable, Protocol):
        """Carries bytes to the peer without waiting. After an OSError the link is broken: close it, then open it.

        While it is opening or open, call is_open or readinto at least every TICK_MS: they run its timers. failed: the
        node clears it when there is a session.
        """

        failed: bool

        def open(self) -> None:
            """Start to open the link."""

        def is_open(self) -> bool:
            """Continue to open the link; return whether it is open. Raises OSError after a timeout, too."""

        def readinto(self, buffer: memoryview) -> int:
            """Read bytes; return their number, 0 for none. Raises OSError if the peer has closed, too."""

        def write(self, data: memoryview) -> int:
            """Write bytes; return the number taken, 0 if there is no room."""

        def close(self) -> None:
            """Close the link in any state; unsent bytes are dropped."""


TICK_MS = 100
CONNECT_TIMEOUT_S = const(10)
_IPPROTO_TCP = const(6)
# Linux buffers megabytes. On a slow line they would leave long afterwards, and the session, which sees progress only in
# writes, would be closed for silence.
_SEND_BYTES = const(16384)
_TCP_NODELAY = getattr(socket, "TCP_NODELAY", 1)  # lwIP has a number of its own


def is_address(host: str) -> bool:
    """Is the host an IP address, not a name?"""
    parts = host.split(".")
    return ":" in host or (len(parts) == 4 and all(part.isdigit() and int(part) < 256 for part in parts))


class Backoff:
    """Delays between attempts in ms: first, doubling up to limit, each reduced by up to half at random.

    random: gives a float from 0 up to 1.
    """

    def __init__(self, random: "Callable[[], float]", first: int = 100, limit: int = 5000) -> None:
        self._random = random
        self._first = first
        self._limit = limit
        self._delay = first

    def next(self) -> int:
        """Return the next delay."""
        delay = self._delay
        self._delay = min(2 * delay, self._limit)
        return int(delay * (1 - self._random() / 2))

    def reset(self) -> None:
        """Restart with the first delay, after a success."""
        self._delay = self._first


class TcpLink:
    """A TCP connection to host and port (B-001). `stream` is None while the name is resolved. After an attempt without
    a session, the name's next address is tried.

    accepted: an incoming connection, which cannot be reopened.
    """

    def __init__(self, host: str, port: int, accepted: "Any" = None) -> None:
        self.host = host
        self.port = port
        self.stream: "Any" = accepted
        self.wants_write = False
        self._looking: "Any" = None  # a dns.Lookup
        self._connecting: "Any" = None  # a poll object
        self.failed = False  # the last attempt; the node clears it when there is a session
        self._began: "Any" = 0  # ticks

    _last = ""  # address in use of the name

    def open(self) -> None:
        """Start to connect."""
        if is_address(self.host):
            self._connect(self.host)
            return
        from ordack.node.talk.dns import Lookup  # not before a program uses a name

        self._looking = Lookup(self.host, self._last, self.failed)
        self._look()

    def _look(self) -> None:
        """Connect once the host's address is known."""
        address = self._looking.poll()
        if address is not None:
            self._looking = None
            self._last = address
            self._connect(address)

    def _connect(self, host: str) -> None:
        family, kind, protocol, _, address = socket.getaddrinfo(host, self.port, 0, socket.SOCK_STREAM)[0]
        self.failed = True
        stream = socket.socket(family, kind, protocol)
        self.stream = stream
        set_up(stream)
        self._began = ticks_ms()
        self._connecting = select.poll()
        self._connecting.register(stream, select.POLLOUT)
        self.wants_write = True
        try:
            stream.connect(address)
        except OSError as error:
            if error.errno != errno.EINPROGRESS:
                raise

    def is_open(self) -> bool:
        """Is it connected? Raises OSError if refused, after CONNECT_TIMEOUT_S, or without an address."""
        if self._looking is not None:
            self._look()
        if self._connecting is None:
            return self.stream is not None
        ready = self._connecting.poll(0)
        if not ready:
            if ticks_diff(ticks_ms(), self._began) > CONNECT_TIMEOUT_S * 1000:
                raise OSError(errno.ETIMEDOUT)
            return False
        if ready[0][1] & (select.POLLERR | select.POLLHUP):
            self.readinto(memoryview(bytearray(1)))  # raises the cause
            raise OSError(errno.ECONNABORTED)
        self._connecting = None
        self.wants_write = False
        return True

    if MICROPYTHON:

        def readinto(self, buffer: memoryview) -> int:
            """See link.Link."""
            count = self.stream.readinto(buffer)
            if count == 0:
                raise OSError(errno.ECONNRESET)
            return count or 0

        def write(self, data: memoryview) -> int:
            """See link.Link."""
            count = self.stream.write(data) or 0
            self.wants_write = count < len(data)
            return int(count)

    else:

        def readinto(self, buffer: memoryview) -> int:
            """See link.Link."""
            try:
                count = int(self.stream.recv_into(buffer))
            except BlockingIOError:
                return 0
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
            return count

        def write(self, data: memoryview) -> int:
            """See link.Link."""
            try:
                count = int(self.stream.send(data))
            except BlockingIOError:
                count = 0
            self.wants_write = count < len(data)
            return count

    def close(self) -> None:
        """See link.Link."""
        stream = self.stream
        if self._looking is not None:
            self._looking.close()
        self.stream = self._connecting = self._looking = None
        self.wants_write = False
        if stream is not None:
            stream.close()


def set_up(stream: "Any") -> None:
    """Make a socket non-blocking."""
    stream.setblocking(False)
    stream.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
    if sys.platform == "linux":
        stream.setsockopt(1, 7, _SEND_BYTES)  # SOL_SOCKET, SO_SNDBUF
