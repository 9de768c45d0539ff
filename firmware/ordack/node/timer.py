"""A time that is to pass, for what is around a node."""

from ordack.node.clock import ticks_diff, ticks_ms


class Timer:
    """Says once when it is over; nothing else can be told of time that wraps."""

    def __init__(self) -> None:
        self._began = ticks_ms()
        self._length = 0

    def start(self, length: int) -> None:
        """length: ms, at most six days."""
        self._began = ticks_ms()
        self._length = length

    def left(self) -> int:
        """ms until it is over, 0 from then on."""
        if self._length and ticks_diff(ticks_ms(), self._began) >= self._length:
            self._length = 0
        return self._length and self._length - ticks_diff(ticks_ms(), self._began)
