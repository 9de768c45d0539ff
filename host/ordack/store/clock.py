"""Machines whose clock is not set yet, such as a gateway that boots in 1970 until it learns the time.

What was sent meanwhile bears a wrong time, and would expire at once when the clock is put forward. The store therefore
moves these times along, and until then no peer is told when such a message was sent.

Times: `now` monotonic milliseconds since the machine booted, as Linux has them; all others seconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from mqqb import core
from mqqb.compose import FOREVER

FIRST = 1_704_067_200  # in 2024: a clock that shows less is not set
STEP = 60  # s: smaller corrections are left to the limits themselves


class Clock:
    """Notices that the clock is put forward."""

    def __init__(self) -> None:
        self._booted: int | None = None  # when, as the clock has it

    def watch(
        self, now: int, wall: int, move: Callable[[int, int, int], object], move_early: Callable[[int], object]
    ) -> None:
        """Call move(first, last, step) if what was sent between first and last was sent `step` seconds later, and
        move_early(step) if what was sent before FIRST was. If that raises it is called again next time."""
        booted = wall - now // 1000
        before = self._booted
        if before is None and wall >= FIRST:
            move_early(booted)  # by commands, or before the last stop
        elif before is not None and booted - before > STEP:
            move(before, before + now // 1000, booted - before)
        self._booted = booted


def sent_time(packet: bytes | bytearray) -> int:
    """UserHeader.SentTime of a packet, or of its beginning."""
    found: int = struct.unpack_from("<I", packet, core.USER_SENT_TIME_AT)[0]
    return found


def hide_limits(packet: bytearray) -> None:
    """If a packet was sent before the clock was set, let it live as long as it may take (B-265)."""
    if sent_time(packet) < FIRST:
        struct.pack_into("<I", packet, core.BASE_TIME_TO_REACH_QUEUE_AT, FOREVER)
        struct.pack_into("<I", packet, core.USER_TIME_TO_BE_RECEIVED_AT, FOREVER)
