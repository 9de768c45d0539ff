"""Time on a board: monotonic milliseconds that do not wrap, and seconds since 1970 once the clock is set."""

import time

from mqqb import MICROPYTHON, const

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CLOCK_SET = 1700000000  # s since 1970; an earlier time means that the clock is not set
# Later times (2097) count as unset, too: their TimeStamps would leave none for newer ones.
CLOCK_END = const(0xF0000000)
UNIX_EPOCH = 946684800 if time.gmtime(0)[0] == 2000 else 0  # boards count from 2000

if not MICROPYTHON:

    def ticks_ms() -> int:
        """Milliseconds from an arbitrary start, for ticks_diff."""
        return time.monotonic_ns() // 1000000

    def ticks_diff(later: int, earlier: int) -> int:
        """Milliseconds between two ticks_ms."""
        return later - earlier

else:
    ticks_ms = time.ticks_ms  # type: ignore[attr-defined,unused-ignore]
    ticks_diff = time.ticks_diff  # type: ignore[attr-defined,unused-ignore]

_LOOK_MS = 100
_seen: "list[Any]" = [0, 0]  # ticks of the last reading, and its time; 0: never


def unix_time() -> int:
    """s since 1970 by the board's clock; up to 0.1 s late, because each reading allocates memory."""
    ticks = ticks_ms()
    if not _seen[1] or not 0 <= ticks_diff(ticks, _seen[0]) < _LOOK_MS:
        _seen[0] = ticks
        _seen[1] = int(time.time()) + UNIX_EPOCH
    return int(_seen[1])


class Clock:
    """Monotonic milliseconds without wrapping, if read at least once in six days; and the time of `unix`,
    else `unix_time`."""

    def __init__(self, unix: "Callable[[], int] | None" = None) -> None:
        self._last = ticks_ms()
        self._now = 0
        self._unix = unix or unix_time

    def now(self) -> int:
        """ms since this object was made."""
        ticks = ticks_ms()
        self._now += ticks_diff(ticks, self._last)
        self._last = ticks
        return self._now

    def time(self) -> int:
        """s since 1970, or 0 if the clock is not set."""
        now = int(self._unix())
        return now if CLOCK_SET <= now < CLOCK_END else 0
