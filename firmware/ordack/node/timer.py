"""A timer for code around a node."""

from ordack.node.clock import ticks_diff, ticks_ms


class Timer:
    """Reports its end once; wrapping ticks allow no more."""

    def __init__(self) -> None:
        self._began = ticks_ms()
        self._length = 0

    def start(self, length: int) -> None:
        """length: ms, at most six days."""
        self._began = ticks_ms()
        self._length = length

    def left(self) -> int:
        """ms until the end, 0 afterwards."""
        if self._length and ticks_diff(ticks_ms(), self._began) >= self._length:
            self._length = 0
        return self._length and self._length - ticks_diff(ticks_ms(), self._began)
