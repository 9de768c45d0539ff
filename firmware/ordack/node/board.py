"""What a real board needs around the node: Wi-Fi (wifi.py), the time, deep sleep, a watchdog. Each part works alone.

Nothing here waits longer than it says. The hardware's interfaces come from `machine` and `network`, or are arguments.
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
_NTP_EPOCH = const(2208988800)  # s from 1900, where NTP counts from, to 1970
_NTP_ERA = const(0x100000000)  # its seconds begin anew after so many, in 2036


def __getattr__(name: str) -> "Any":
    if name == "Wifi":
        from ordack.node.talk.wifi import Wifi  # not before a program uses it

        return Wifi
    raise AttributeError(name)


class NetworkTime:
    """Sets the clock of a board by SNTP (RFC 4330), again every interval_s. `poll` it as the node; it never waits.

    host: the address or the name of an NTP server. `time`: what it said last, s since 1970; 0: nothing yet. set_clock:
    takes that; None: the board's RTC. answer_ms: after that a request is lost, and repeated after retry_ms.
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
        self._last = ""  # the address that was asked,
        self._again = False  # and gave no answer
        self._timer = Timer()

    def poll(self) -> bool:
        """Do what can be done now; was the clock set just now? A network that is down is no error, only no answer."""
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
        """Let go of the socket, if there is one."""
        self._end(self._retry_ms)

    def _ask(self) -> None:
        """Send a request, when the address of the host is known."""
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
        """s since 1970 of an answer that is one; 0: it is not, or its server does not know the time."""
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
    """Set the clock from the network, once, within timeout_ms. False: nobody answered.

    host, options: as NetworkTime has them.
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


def deep_sleep(
    node: "Node",
    sleep_ms: int,
    drain_ms: int = 0,
    machine: "Any" = None,
) -> None:
    """Send the board to sleep, with all that it has accepted on flash; after that it starts anew, and goes on.

    drain_ms: so long it waits for messages to be stored at their destinations, and answers to arrive there. In a
    program with asyncio call it last, with drain_ms 0. Raises OutboxError, and does not sleep: the file system refuses.
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
    """Feeds the hardware's watchdog while the node is well: a node that has failed for good, or a program that hangs,
    resets the board. timeout_ms: at most 8388 on RP2. wdt: in place of machine.WDT.

    In a program without asyncio call `poll` in place of Node.poll, and `wait` in place of Node.wait. With asyncio run
    `watch` in a task.
    """

    def __init__(self, node: "Node", timeout_ms: int = 8000, wdt: "Any" = None) -> None:
        if wdt is None:
            import machine  # type: ignore[import-not-found,unused-ignore]

            wdt = machine.WDT(timeout=timeout_ms)
        self._node = node
        self._timeout_ms = timeout_ms
        self._wdt = wdt

    def feed(self) -> None:
        """Feed it, unless the node has failed."""
        if self._node.error is None:
            self._wdt.feed()

    def poll(self) -> int:
        """As Node.poll."""
        wait = self._node.poll()
        self.feed()
        return wait

    def wait(self, condition: "Callable[[], Any]", timeout_ms: "int | None" = None) -> bool:
        """As Node.wait."""

        def is_met() -> "Any":
            self.feed()
            return condition()

        return self._node.wait(is_met, timeout_ms)

    async def watch(self) -> None:
        """Feed it for ever, several times in timeout_ms, as long as the event loop runs and the node is well."""
        import asyncio

        while self._node.error is None:
            self._wdt.feed()
            await asyncio.sleep(self._timeout_ms / 4000)


def _set_rtc(now: int) -> None:
    """Set the board's real-time clock to s since 1970, UTC."""
    import machine  # type: ignore[import-not-found,unused-ignore]

    moment = time.gmtime(now - UNIX_EPOCH)
    machine.RTC().datetime((moment[0], moment[1], moment[2], moment[6], moment[3], moment[4], moment[5], 0))
