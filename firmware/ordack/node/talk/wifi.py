"""Keeps a board on its Wi-Fi, even if the driver reports wrong states (firmware/README.md lists them)."""

from mqqb import const
from ordack.node.timer import Timer

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ordack.node.node import Node

_POLL_MS = const(200)
_DOUBTS = const(32)  # limit of the doubled doubt_ms, as a factor
_GOT_REASON = const(200)  # from here to 999, the status of ESP32's WLAN is a reason for no connection
_NO_ADDRESS = "0.0.0.0"
_REASONS = {
    -3: "the key is wrong, or the signal weak",
    202: "the key is wrong, or the signal weak",
    -2: "there is no such network",
    201: "there is no such network",
}


class Wifi:
    """Keeps a station associated. Call `poll` at least every second, or run `keep` in a task; neither waits.

    more: further networks, (ssid, password) each; each attempt takes the next one. country: two letters, for the
    allowed channels. hostname: for DHCP. static: instead of DHCP, (address, netmask, gateway, name server).
    saves_power: the radio may sleep, which delays bytes and makes some chips lose them. wlan: instead of
    network.WLAN(network.STA_IF).

    attempt_ms: timeout of an attempt. The delay between attempts is first_ms, and doubles up to limit_ms after each
    round of all networks. A lost association is retried at once.

    node: give it. If no peer answers the node for doubt_ms, the association counts as failed. The next such verdict
    takes twice as long, since the peers may be down. After every restart_after failures without a success the radio
    restarts. After reset_after failures (0: never) the board is reset, once all messages accepted by the node are
    durable. reset: instead of machine.reset.

    reason: of the last failure. attempts, losses (of associations), restarts (of the radio): since the start.
    """

    def __init__(
        self,
        ssid: str,
        password: str,
        wlan: "Any" = None,
        attempt_ms: int = 15000,
        first_ms: int = 500,
        limit_ms: int = 60000,
        node: "Node | None" = None,
        more: "Sequence[tuple[str, str]]" = (),
        country: str = "",
        hostname: str = "",
        static: "tuple[str, str, str, str] | None" = None,
        saves_power: bool = False,
        doubt_ms: int = 60000,
        restart_after: int = 3,
        reset_after: int = 0,
        reset: "Callable[[], Any] | None" = None,
    ) -> None:
        if wlan is None or country or hostname:
            import network  # type: ignore[import-not-found,unused-ignore]

            if country:
                network.country(country)  # before the radio is on
            if hostname:
                network.hostname(hostname)
            wlan = wlan or network.WLAN(network.STA_IF)
        self.wlan = wlan
        self.losses = 0
        self.attempts = 0
        self.restarts = 0
        self.reason = ""
        self._networks = [(ssid, password)] + list(more)
        self._turn = 0  # network of the next or current attempt
        self._attempt_ms = attempt_ms
        self._first_ms = first_ms
        self._limit_ms = limit_ms
        self._wait_ms = first_ms
        self._node = node
        self._static = static
        self._saves_power = saves_power
        self._doubt_ms = self._patience_ms = doubt_ms
        self._restart_after = restart_after
        self._reset_after = reset_after
        self._reset = reset
        self._failures = 0  # since the last success
        self._status = 0  # at the start of this attempt: on ESP32 it may belong to the one before
        self._timer = Timer()
        self._is_trying = False
        self._was_connected = False

    def poll(self) -> bool:
        """Do what can be done now; return whether there is a connection."""
        is_associated = self.wlan.isconnected()
        if is_associated and self.wlan.ifconfig()[0] != _NO_ADDRESS:
            if not self._was_connected:
                self._is_trying, self._was_connected = False, True
                self._wait_ms = self._first_ms
                self._timer.start(self._patience_ms)
            return self._is_believed()
        if self._was_connected:
            self._was_connected = False
            self.losses += 1
            self.reason = "the association was lost"
            self._leave()
            self._timer.start(0)
        if self._is_trying:
            status = self.wlan.status()
            is_refused = (status < 0 or _GOT_REASON <= status < 1000) and status != self._status
            if is_refused or not self._timer.left():
                said = "no address came" if is_associated else "no association, status " + str(status)
                self._fail(_REASONS.get(status, said))
        elif not self._timer.left():
            self._try()
        return False

    async def keep(self) -> None:
        """Poll for ever, in an asyncio task."""
        import asyncio

        while True:
            self.poll()
            await asyncio.sleep(_POLL_MS / 1000)

    def _try(self) -> None:
        self._is_trying = True
        self.attempts += 1
        self._timer.start(self._attempt_ms)
        try:
            self.wlan.active(True)
            if self._static is not None:
                self.wlan.ifconfig(self._static)
            if not self._saves_power:
                self._stay_awake()
            self.wlan.connect(*self._networks[self._turn])
            self._status = self.wlan.status()
        except OSError as error:  # the driver is busy with its own attempt
            self._fail(str(error))

    def _stay_awake(self) -> None:
        """Disable power saving, which drivers enable with the radio; not every driver can."""
        try:
            self.wlan.config(pm=self.wlan.PM_NONE)
        except (AttributeError, OSError, TypeError, ValueError):
            pass

    def _is_believed(self) -> bool:
        """Does the connection work, as far as the node can tell?"""
        if self._node is None or not self._node.is_unheard:
            self._failures = 0
            self._patience_ms = self._doubt_ms
            self._timer.start(self._doubt_ms)
        elif not self._timer.left():
            self._patience_ms = min(2 * self._patience_ms, _DOUBTS * self._doubt_ms)
            self._was_connected = False
            self._fail("it seems to be connected, and nothing passes")
        return self._was_connected

    def _fail(self, reason: str) -> None:
        self.reason = reason
        self._is_trying = False
        self._failures += 1
        self._leave()
        if self._failures % self._restart_after == 0:
            self._restart()
        if self._reset_after and self._failures >= self._reset_after:
            self._reset_board()
        self._turn = (self._turn + 1) % len(self._networks)
        self._timer.start(self._wait_ms)
        if not self._turn:
            self._wait_ms = min(2 * self._wait_ms, self._limit_ms)

    def _leave(self) -> None:
        try:
            self.wlan.disconnect()
        except OSError:
            pass

    def _restart(self) -> None:
        """Switch the radio off; the next attempt switches it on."""
        self.restarts += 1
        try:
            self.wlan.active(False)
            if hasattr(self.wlan, "deinit"):
                self.wlan.deinit()  # CYW43: active(False) does not reset the chip
        except OSError:
            pass

    def _reset_board(self) -> None:
        """Reset the board if all accepted messages are durable; else after the next failure."""
        if self._node is not None and not self._node.commit_now():
            return
        if self._reset is None:
            import machine  # type: ignore[import-not-found,unused-ignore]

            self._reset = machine.reset
        self._reset()
