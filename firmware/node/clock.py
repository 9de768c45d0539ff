"""Time on a board: monotonic milliseconds that do not wrap, and seconds since 1970 where somebody has set the clock."""

import time

CLOCK_SET = 1700000000  # an earlier time, s since 1970: this board's clock has not been set
UNIX_EPOCH = 946684800 if time.gmtime(0)[0] == 2000 else 0  # boards count from 2000

if hasattr(time, "ticks_ms") and hasattr(time, "ticks_diff"):  # MicroPython
    ticks_ms = time.ticks_ms
    ticks_diff = time.ticks_diff  # type: ignore[attr-defined,unused-ignore]
else:

    def ticks_ms() -> int:  # type: ignore[misc,unused-ignore]
        """Milliseconds from any start; what is between two of them tells ticks_diff."""
        return time.monotonic_ns() // 1000000  # type: ignore[attr-defined,no-any-return,unused-ignore]

    def ticks_diff(later: int, earlier: int) -> int:  # type: ignore[misc,unused-ignore]
        """Milliseconds between two ticks_ms, at most six days."""
        return later - earlier


def unix_time() -> int:
    """s since 1970, as far as the board knows."""
    return int(time.time()) + UNIX_EPOCH


class Clock:
    """Monotonic milliseconds that do not wrap; asked at least once in six days."""

    def __init__(self) -> None:
        self._last = ticks_ms()
        self._now = 0

    def now(self) -> int:
        """ms since this object was made."""
        ticks = ticks_ms()
        self._now += ticks_diff(ticks, self._last)
        self._last = ticks
        return self._now
