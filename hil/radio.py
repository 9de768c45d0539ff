"""A radio for boards that have none, as network.WLAN: it says that it is connected, whatever its access point does.

The fault proxy lets nothing pass while the access point is gone, until the radio associates anew and says so.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Radio:
    """What ordack.node.wifi.Wifi uses of network.WLAN(STA_IF)."""

    PM_NONE = 0

    def __init__(self, say: "Callable[..., None]") -> None:
        self._say = say
        self._connected = False

    def active(self, on: bool) -> None:
        """Switch it on or off."""
        self._connected = self._connected and on

    def config(self, pm: int) -> None:
        """Set its power saving, which it has not."""

    def connect(self, ssid: str, password: str) -> None:  # noqa: ARG002 - network.WLAN's
        """Associate; that works at once."""
        self._connected = True
        self._say(associated=ssid)

    def disconnect(self) -> None:
        """Leave."""
        self._connected = False

    def isconnected(self) -> bool:
        """Whether it has associated, and not left."""
        return self._connected

    def ifconfig(self) -> "tuple[str, str, str, str]":
        """The address that it has as long as it has one."""
        return ("127.0.0.1" if self._connected else "0.0.0.0", "255.0.0.0", "127.0.0.1", "127.0.0.1")

    def status(self) -> int:
        """STAT_IDLE, or STAT_GOT_IP of a CYW43."""
        return 3 if self._connected else 0
