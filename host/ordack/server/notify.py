"""`ordack serve` notifies systemd by sd_notify(3): ready, alive, stopping, and a status sentence. Without NOTIFY_SOCKET
it sends nothing.

A notification is one datagram of NAME=VALUE lines. The libraries sdnotify and systemd-watchdog do not fit: they block
the event loop while systemd is busy, or lose unsent datagrams.
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

STATUS_S = 60.0  # between two status sentences
PING_MIN_S = 0.02
AGAIN_S = 1.0  # until an unsent datagram is sent again
KEPT = 16  # unsent datagrams; the oldest are dropped first
NAMES = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class Notifier:
    """Notifies a service manager. address: the socket's path, or "@" and an abstract name; "" disables all methods.
    ping_s: seconds between two pings, None for no pings. tell: logs the first failure; failures have no other
    effect."""

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
        """Report that `serve` accepts connections."""
        self._status = status
        self._send("READY=1", _status(status))

    def stopping(self) -> None:
        """Report an orderly stop. Later calls send nothing."""
        self._send("STOPPING=1")
        self._is_stopping = True

    async def run(self, trouble: Callable[[], str], sentence: Callable[[], str]) -> None:
        """Ping while the event loop turns and there is no trouble, and report the status now and then.

        trouble: why a restart may help; "" for no reason. sentence: the status sentence.
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
        """Report the stop, unless reported before, and close the socket."""
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
    """The notifier for the service manager's environment variables. Removes them, so that child processes cannot
    notify. Pings come twice in WATCHDOG_USEC, unless WATCHDOG_PID is another process."""
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
