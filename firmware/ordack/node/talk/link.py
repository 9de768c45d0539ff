"""Links carry bytes to the peer without waiting. This module has TcpLink; uart.UartLink is another."""

import errno
import select
import sys

try:
    import socket
except ImportError:  # a board without a network: its link is a UART
    socket = None  # type: ignore[assignment]

from mqqb import MICROPYTHON, const
from ordack.node.clock import ticks_diff, ticks_ms

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class Waitable(Protocol):
        """stream: what select.poll waits on until there is something to read, always the same; None while closed, and
        while a name is looked up. wants_write: it also waits until `stream` can be written.
        """

        stream: Any
        wants_write: bool

    class Link(Waitable, Protocol):
        """How bytes reach the peer, without waiting. OSError: it is broken, and only close and then open are of use.

        While it is opening or open, is_open or readinto is called at least every TICK_MS: its timers run inside them.
        failed: the node sets it to False when there is a session.
        """

        failed: bool

        def open(self) -> None:
            """Begin to open it."""

        def is_open(self) -> bool:
            """Go on opening it: is it open? OSError too if nobody has answered for too long."""

        def readinto(self, buffer: memoryview) -> int:
            """Bytes that were read; 0: there are none now. OSError too if the peer has closed."""

        def write(self, data: memoryview) -> int:
            """So many of the bytes were taken; 0: there is no room now."""

        def close(self) -> None:
            """Let go of it, whatever its state; what was not sent yet is dropped."""


TICK_MS = 100
CONNECT_TIMEOUT_S = const(10)
_IPPROTO_TCP = const(6)
# Linux keeps megabytes of what was written. To a slow line they would leave long after, and the session, which hears of
# that from writes that take more, would be closed for silence.
_SEND_BYTES = const(16384)
_TCP_NODELAY = getattr(socket, "TCP_NODELAY", 1)  # lwIP has a number of its own


def is_address(host: str) -> bool:
    """Is it an IP address, which needs no look-up, and not a name?"""
    parts = host.split(".")
    return ":" in host or (len(parts) == 4 and all(part.isdigit() and int(part) < 256 for part in parts))


class Backoff:
    """How long to wait before the next attempt, in ms: first, doubling to limit, less up to half of it by chance.

    random: gives a float from 0 up to 1.
    """

    def __init__(self, random: "Callable[[], float]", first: int = 100, limit: int = 5000) -> None:
        self._random = random
        self._first = first
        self._limit = limit
        self._delay = first

    def next(self) -> int:
        """The next delay."""
        delay = self._delay
        self._delay = min(2 * delay, self._limit)
        return int(delay * (1 - self._random() / 2))

    def reset(self) -> None:
        """It worked: begin with the first delay again."""
        self._delay = self._first


class TcpLink:
    """A TCP connection to host and port (B-001). While the name of a host is looked up, `stream` is None. After an
    attempt without a session the next address of the name is tried.

    accepted: a connection that is there already; it cannot be opened again.
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

    _last = ""  # of the addresses of a name, the one in use

    def open(self) -> None:
        """Begin to connect."""
        if is_address(self.host):
            self._connect(self.host)
            return
        from ordack.node.talk.dns import Lookup  # not before a program uses a name

        self._looking = Lookup(self.host, self._last, self.failed)
        self._look()

    def _look(self) -> None:
        """Connect if the address of the host is known by now."""
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
        """Is it connected? Raises OSError if it was refused, or after CONNECT_TIMEOUT_S; if there is no address."""
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
            self.readinto(memoryview(bytearray(1)))  # raises what happened
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
    """Make a socket one that never waits."""
    stream.setblocking(False)
    stream.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
    if sys.platform == "linux":
        stream.setsockopt(1, 7, _SEND_BYTES)  # SOL_SOCKET, SO_SNDBUF
