"""The victims of a campaign: killed and switched on again as planned."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hil.boards import MISHAP, RESET, Mortal
from hil.faults import CutSchedule
from hil.queue_manager import CampaignFailed
from hil.scenario import Kill

TICK_S = 0.01


T = TypeVar("T")
Work = Callable[[], None]


def at_once(work: Work) -> "Future[None]":
    """Run the work now."""
    future = Future[None]()
    work()
    future.set_result(None)
    return future


def beside(work: Work) -> "asyncio.Future[None]":
    """Run the work in a thread: a relay or a shell command is slow, and the proxy must go on."""
    return asyncio.get_running_loop().run_in_executor(None, work)


async def elsewhere(work: Callable[[], T]) -> T:
    """The result of the work, run in a thread. Waits for its end even when cancelled. labgrid also needs a thread
    without an event loop, to reserve a place at its coordinator."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


class Victim:
    """Killed and switched on again as planned while a count grows. schedule: counts the bytes of its link. do: runs
    slow work. ended: called with the way of each end, just before."""

    def __init__(
        self,
        name: str,
        end: Mortal,
        plan: list[Kill],
        mishap: Work = lambda: None,
        schedule: CutSchedule | None = None,
        do: Callable[[Work], "Future[None] | asyncio.Future[None]"] = at_once,
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.mishap = mishap
        self.end = end
        self.at_bytes = 0
        self.kills = 0
        self._plan = plan
        self._schedule = schedule or CutSchedule(())
        self._do = do
        self._tell = ended
        self._due: float | None = None
        self._off_until: float | None = None
        self._working: Future[None] | asyncio.Future[None] | None = None
        self._off_s: float | None = None
        self._rings = False

    @property
    def finished(self) -> bool:
        """All planned kills have been made, and it is on again."""
        return self.kills == len(self._plan) and self.idle

    @property
    def idle(self) -> bool:
        """It is on, and no work on it is in progress."""
        return self._off_until is None and self._working is None

    def tick(self, count: int, now: float) -> None:
        """Kill or switch on if it is time (`now`: monotonic seconds). Raises CampaignFailed if the victim died by
        itself, and the errors of `end`."""
        if self._working is not None and not self._worked(now):
            return
        if self._off_until is not None:
            if now >= self._off_until:
                self._off_until = None
                self.arm(count, now, is_on=False)
                self._begin(self.end.power_up, now)
            return
        if not self.end.alive:
            raise CampaignFailed(f"the {self.name} ended by itself")
        self.arm(count, now)
        if self._due is not None and now >= self._due:
            self._strike(self._plan[self.kills], now, at_byte=False)

    def arm(self, count: int, now: float, is_on: bool = True) -> None:
        """Arm the next kill if its turn has come. A kill that waits for bytes counts them from the first byte of a
        life, so it is armed before the life begins."""
        if self._due is not None or self.kills == len(self._plan):
            return
        kill = self._plan[self.kills]
        if count < kill.count or not (is_on or kill.bytes):
            return
        self._due = now + kill.delay_s
        if kill.bytes:
            self._schedule.ring(kill.bytes, lambda: self._strike(kill, time.monotonic(), at_byte=True))

    def _strike(self, kill: Kill, now: float, at_byte: bool) -> None:
        if self._due is None or kill is not self._plan[self.kills]:
            return  # the bell rang late: `silence` lets bytes pass again
        if self._working is not None:  # still being switched on: retry at the next tick; nothing passes until then
            self._due = now
            return
        self.kills += 1
        self._rings = bool(kill.bytes)
        self._due = None
        self._off_s = None if kill.way == RESET else kill.off_s
        self.at_bytes += at_byte
        self._tell(kill.way)

        def work() -> None:
            if kill.way == RESET:
                self.end.reset()
            else:
                self.end.kill()
            if kill.way == MISHAP:
                self.mishap()

        self._begin(work, now)

    def _begin(self, work: Work, now: float) -> None:
        self._working = self._do(work)
        self._worked(now)

    def _worked(self, now: float) -> bool:
        """Is the current work done? Then the off-time begins."""
        assert self._working is not None
        if self._working.done():
            if self._rings:
                self._schedule.silence()
                self._rings = False
            self._working.result()
            self._working = None
            if self._off_s is not None:
                self._off_until, self._off_s = now + self._off_s, None
        return self._working is None

    async def settle(self) -> None:
        """Wait for the end of the current work, ignoring its errors."""
        while self._working is not None and not self._working.done():
            await asyncio.sleep(TICK_S)
