"""`ordack serve` tells systemd by sd_notify(3) that it is ready, alive or ending, and in a sentence how it is. Without
NOTIFY_SOCKET it tells nothing.

The protocol is one datagram of NAME=VALUE lines. The libraries sdnotify and systemd-watchdog block the event loop while
systemd is busy, or lose datagrams that they could not send.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, MutableMapping

from ordack.broker.serve_log import WARNING, LogLine
from ordack.config.names import printable

STATUS_S = 60.0  # between two looks for a new sentence
PING_MIN_S = 0.02
AGAIN_S = 1.0  # until what the service manager had no room for is sent again
KEPT = 16  # datagrams that wait for that; the oldest give way
NAMES = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class Notifier:
    """Tells a service manager. address: the socket's, a path or "@" and an abstract name; "" for none, and all does
    nothing. ping_s: seconds between two pings, None for no pings. tell: takes a line for the log. What fails is told
    there once, and hurts nothing."""

    def __init__(self, address: str, ping_s: float | None, tell: Callable[[str], None]) -> None:
        self._name = address
        self._address = os.fsencode("\0" + address[1:] if address.startswith("@") else address)
        self._ping_s = ping_s
        self._tell = tell
        self._status = ""
        self._failed = False
        self._is_stopping = False
        self._unsent: deque[bytes] = deque(maxlen=KEPT)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if address else None
        if self._socket:
            self._socket.setblocking(False)

    def ready(self, status: str) -> None:
        """`serve` takes connections."""
        self._status = status
        self._send("READY=1", _status(status))

    def stopping(self) -> None:
        """It ends, in order. Nothing is told after that."""
        self._send("STOPPING=1")
        self._is_stopping = True

    async def run(self, trouble: Callable[[], str], sentence: Callable[[], str]) -> None:
        """Ping as long as the event loop turns and there is no trouble, and say now and then how it is.

        trouble: says why a restart may help; "" for no reason. sentence: how it is.
        """
        if not self._socket:
            return
        looked = time.monotonic()
        while True:
            reason = trouble()
            if self._ping_s and not reason:
                self._send("WATCHDOG=1")
            due = time.monotonic() >= looked + STATUS_S
            if due or reason:
                looked = time.monotonic()
                self._say(reason or sentence())
            await asyncio.sleep(min(self._ping_s or STATUS_S, AGAIN_S if self._unsent else STATUS_S))
            self._flush()

    def close(self) -> None:
        """Tell that it ends, unless that was told, and close the socket."""
        if self._socket:
            self.stopping()
            self._socket.close()
            self._socket = None

    def _say(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._send(_status(status))

    def _send(self, *lines: str) -> None:
        if self._socket and not self._is_stopping:
            self._unsent.append("\n".join(lines).encode())
            self._flush()

    def _flush(self) -> None:
        while self._socket and self._unsent:
            try:
                self._socket.sendto(self._unsent[0], self._address)
            except BlockingIOError:
                return
            except OSError as error:
                if not self._failed:
                    self._failed = True
                    self._tell(
                        LogLine(
                            "the service manager is not told how `serve` is: NOTIFY_SOCKET is "
                            f"{self._name!r}, {error.strerror or error}; set it to systemd's socket, or to nothing",
                            WARNING,
                        )
                    )
            self._unsent.popleft()


def from_environment(environment: MutableMapping[str, str], tell: Callable[[str], None]) -> Notifier:
    """The notifier for what a service manager has put in the environment, from which it is taken: what this process
    starts is not to speak for it. Pings come twice in WATCHDOG_USEC, unless WATCHDOG_PID is another process."""
    address, period, process = (environment.pop(name, "") for name in NAMES)
    ping_s = None
    if address and period and process in ("", str(os.getpid())):
        if period.isascii() and period.isdigit() and int(period):
            ping_s = max(int(period) / 2e6, PING_MIN_S)
        else:
            tell(
                LogLine(
                    f"there are no pings for the watchdog: WATCHDOG_USEC is {period!r}, no number of microseconds",
                    WARNING,
                )
            )
    return Notifier(address, ping_s, tell)


def _status(text: str) -> str:
    return f"STATUS={printable(text, ' ')}"
