"""A board's services around the node: Wi-Fi (wifi.py), time, deep sleep, watchdog. Each part works alone.

No call waits longer than documented. Hardware comes from `machine` and `network`, or as arguments.
"""

import os
import struct
import time

try:
    import socket
except ImportError:  # a board without a network
    socket = None  # type: ignore[assignment]

from mqqb import const
from ordack.node.clock import CLOCK_SET, UNIX_EPOCH
from ordack.node.storage import log
from ordack.node.talk import link
from ordack.node.timer import Timer

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ordack.node.node import Node
    from ordack.node.talk.wifi import Wifi as Wifi

NTP_PORT = 123
_NTP_BYTES = const(48)
_NTP_EPOCH = const(2208988800)  # s from 1900, the NTP epoch, to 1970
_NTP_ERA = const(0x100000000)  # NTP seconds wrap after this, in 2036


def __getattr__(name: str) -> "Any":
    if name == "Wifi":
        from ordack.node.talk.wifi import Wifi  # not before a program uses it

        return Wifi
    raise AttributeError(name)


class NetworkTime:
    """Sets the board's clock by SNTP (RFC 4330) every interval_s. Call `poll` as often as the node's; it never waits.

    host: address or name of an NTP server. time: the last answer, s since 1970; 0: none. set_clock: takes that; None:
    sets the RTC. answer_ms: timeout of a request, which is repeated after retry_ms.
    """

    def __init__(
        self,
        host: str,
        port: int = NTP_PORT,
        interval_s: int = 43200,
        answer_ms: int = 2000,
        retry_ms: int = 10000,
        set_clock: "Callable[[int], None] | None" = None,
    ) -> None:
        self.time = 0
        self._host = host
        self._port = port
        self._interval_ms = 1000 * interval_s
        self._answer_ms = answer_ms
        self._retry_ms = retry_ms
        self._set_clock = set_clock or _set_rtc
        self._looking: "Any" = None  # a dns.Lookup
        self._socket: "Any" = None
        self._cookie = b""
        self._last = ""  # the last address asked,
        self._again = False  # without an answer
        self._timer = Timer()

    def poll(self) -> bool:
        """Do what can be done now. Return True if the clock was set."""
        left = self._timer.left()
        if self._socket is None:
            if not left:
                self._ask()
            return False
        try:
            answer = self._socket.recv(_NTP_BYTES)
        except OSError:
            answer = b""
        now = self._said(answer) if answer else 0
        if now:
            self.time = now
            self._again = False
            self._set_clock(now)
            self._end(self._interval_ms)
            return True
        if not left:
            self._end(self._retry_ms)
        return False

    def close(self) -> None:
        """Close the socket, if any."""
        self._end(self._retry_ms)

    def _ask(self) -> None:
        """Send a request once the host's address is known."""
        try:
            address: "Any" = self._host
            if not link.is_address(self._host):
                if self._looking is None:
                    from ordack.node.talk.dns import Lookup  # not before a program uses a name

                    self._looking = Lookup(self._host, self._last, self._again)
                address = self._looking.poll()
                if address is None:
                    return
                self._last = address
            self._timer.start(self._answer_ms)
            self._again = True
            entry = socket.getaddrinfo(address, self._port)[0]
            self._socket = socket.socket(entry[0], socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            self._cookie = os.urandom(8)
            request = b"\x23" + bytes(39) + self._cookie  # version 4, a client; the server repeats the cookie
            self._socket.sendto(request, entry[-1])
            self._looking = None
        except OSError:
            self._end(self._retry_ms)

    def _end(self, wait: int) -> None:
        for part in (self._looking, self._socket):
            if part is not None:
                part.close()
        self._looking = self._socket = None
        self._timer.start(wait)

    def _said(self, answer: bytes) -> int:
        """Return the time of an answer, s since 1970; 0: invalid, or the server does not know the time."""
        if len(answer) < _NTP_BYTES or answer[0] & 7 != 4 or answer[0] >> 6 == 3 or not 1 <= answer[1] <= 15:
            return 0
        if answer[24:32] != self._cookie or answer[40:48] == bytes(8):
            return 0
        seconds, fraction = struct.unpack_from(">II", answer, 40)
        if seconds < _NTP_EPOCH:
            seconds += _NTP_ERA
        now = int(seconds - _NTP_EPOCH + (fraction >> 31))
        return now if now >= CLOCK_SET else 0


def set_clock(host: str, timeout_ms: int = 5000, **options: "Any") -> bool:
    """Set the clock from the network once. False: no answer within timeout_ms.

    host, options: as in NetworkTime.
    """
    network_time = NetworkTime(host, **options)
    timer = Timer()
    timer.start(timeout_ms)
    try:
        while not network_time.poll():
            if not timer.left():
                return False
            time.sleep(0.01)
    finally:
        network_time.close()
    return True


def deep_sleep(node: "Node", sleep_ms: int, drain_ms: int = 0, machine: "Any" = None) -> None:
    """Make everything accepted durable, and put the board into deep sleep, from which it restarts.

    drain_ms: time for messages to be stored at their destinations, and for answers to arrive there. With asyncio, call
    it last, with drain_ms 0. Raises OutboxError, without sleeping, if the file system refuses.
    """
    if drain_ms:
        node.wait(lambda: not node.waiting and (node.inboxes is None or not node.inboxes.owed.final_acks), drain_ms)
    if not node.commit_now():
        raise log.OutboxError("not asleep: the file system refuses")
    node.close_now()
    if machine is None:
        import machine as hardware  # type: ignore[import-not-found,unused-ignore]

        machine = hardware
    machine.deepsleep(sleep_ms)


class Watchdog:
    """Feeds the hardware watchdog while the node is well: a failed node or a hanging program resets the board.
    timeout_ms: at most 8388 on RP2. wdt: instead of machine.WDT.

    Without asyncio, call `poll` instead of Node.poll, and `wait` instead of Node.wait. With asyncio, run `watch` in a
    task.
    """

    def __init__(self, node: "Node", timeout_ms: int = 8000, wdt: "Any" = None) -> None:
        if wdt is None:
            import machine  # type: ignore[import-not-found,unused-ignore]

            wdt = machine.WDT(timeout=timeout_ms)
        self._node = node
        self._timeout_ms = timeout_ms
        self._wdt = wdt

    def feed(self) -> None:
        """Feed unless the node has failed."""
        if self._node.error is None:
            self._wdt.feed()

    def poll(self) -> int:
        """Call `Node.poll` and feed."""
        wait = self._node.poll()
        self.feed()
        return wait

    def wait(self, condition: "Callable[[], Any]", timeout_ms: "int | None" = None) -> bool:
        """Call `Node.wait` and feed."""

        def is_met() -> "Any":
            self.feed()
            return condition()

        return self._node.wait(is_met, timeout_ms)

    async def watch(self) -> None:
        """Feed while the event loop runs and the node is well. Run it in a task."""
        import asyncio

        while self._node.error is None:
            self._wdt.feed()
            await asyncio.sleep(self._timeout_ms / 4000)


def _set_rtc(now: int) -> None:
    """Set the board's real-time clock to s since 1970, UTC."""
    import machine  # type: ignore[import-not-found,unused-ignore]

    moment = time.gmtime(now - UNIX_EPOCH)
    machine.RTC().datetime((moment[0], moment[1], moment[2], moment[6], moment[3], moment[4], moment[5], 0))
