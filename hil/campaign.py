"""The campaign: a board sends readings to a queue manager while the link between them is cut and both are killed.

    python -m hil.campaign --messages 1000 --cuts 50 --kills 5 --seed 7 [--board unix] [--json]

Everything is seen from outside: the queue manager through its command line, the board through its output and its
ledger file, the link through the fault proxy. Exit status: 0 every reading is in the queue once and in order and every
fault asked for was made; 1 not so; 2 wrong use; 3 the rig failed, a switch or a port of a board.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import create_subprocess_exec
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from mqqb import confirm
from rich.console import Console

from hil import sensor
from hil.boards import FIRMWARE, MISHAP, POWER, RESET, ROOT, SENSOR, Board, BoardMissing, Mortal
from hil.commands import GUID, Commands
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.faults import UP, CutSchedule, FaultProxy, TcpFaultProxy
from hil.kinds import KINDS, WITHOUT_INBOX
from hil.name_server import NameServer
from hil.progress import Progress, Starts
from hil.queue_manager import CampaignFailed, QueueManager
from hil.report import Erased, Figures, Received, Timeline, View, compare, read_ledger, read_received
from hil.scenario import (
    ACCESS_POINT,
    BOARD,
    CLOCK,
    COPY,
    DEAD_DNS,
    DEPLOY,
    DIP,
    ENDS,
    ERASE,
    ERASE_FIXED,
    FLIP,
    FULL,
    GONE,
    KILLS,
    MANAGER,
    MISHAPS,
    NAME_SERVER,
    OFFLINE,
    ORDACK,
    REFLASH,
    RESTORE,
    VICTIMS,
    WITHHELD,
    BadScenario,
    Kill,
    Settings,
    cuts_of,
    is_kill,
    kills_of,
    planned,
    read,
    write,
)
from hil.serial_faults import SerialFaultProxy
from hil.targets import open_board
from hil.traffic import CAPTURE, Tap, judge

HOST = ROOT / "host"
QUEUE = "line1"
TICK_S = 0.01
LISTENING_DEADLINE_S = 60.0
COUNT_INTERVAL_S = 1.0  # or so many times as long as it takes to count, which costs the processor of all campaigns:
COUNT_SHARE = 10
FULL_BYTES = 16384
"""Of an outbox that is to be full, and as much as four of the largest bodies besides."""
NAME = "gateway.example"
DOUBT_MS = 1000
WATCHDOG_MS = 5000
HEADER_BYTES = 16
"""Of what a file of an outbox begins with."""
QUESTIONS = 4
"""So many of one life mean that the board has given up to look the name up once, and 7 s have passed."""
NEEDED = {
    **dict.fromkeys((ERASE, ERASE_FIXED), ("erase",)),
    **dict.fromkeys((COPY, FLIP), ("erase", "put")),
    REFLASH: ("reflash",),
    DEPLOY: ("redeploy",),
}
"""What a board has to be able to do for a mishap."""
SCENARIO = "scenario.yaml"
"""Among the artefacts of a run that failed: what `--scenario` repeats."""


@dataclass(frozen=True)
class KillMade:
    """What became of a planned kill: ordered `at_s` seconds after the start, when `up` bytes had gone upstream, and
    done `took_s` later, when it were `up_off`; `at_byte`: ordered by its byte, not because that did not come.
    """

    planned: Kill
    at_s: float
    took_s: float
    up: int
    up_off: int
    at_byte: bool


T = TypeVar("T")
Work = Callable[[], None]


class AccessPoint(Mortal):
    """That of the board's radio, gone when it is killed, until the board associates anew."""

    alive = True

    def __init__(self, proxy: TcpFaultProxy, progress: "Progress") -> None:
        self._proxy = proxy
        self._progress = progress
        self._before = 0
        self._going: asyncio.Task[None] | None = None

    def kill(self) -> None:
        if self._going is None:
            self._before = self._progress.associations
            self._going = asyncio.create_task(self._proxy.vanish())

    async def look(self) -> None:
        """It is there again if the board has associated."""
        if self._going is not None and self._progress.associations > self._before:
            await self._going
            self._going = None
            await self._proxy.come_back()

    def power_up(self) -> None:
        raise NotImplementedError("the board brings it back")


def at_once(work: Work) -> "Future[None]":
    """Do it now."""
    future = Future[None]()
    work()
    future.set_result(None)
    return future


def beside(work: Work) -> "asyncio.Future[None]":
    """Do it in a thread: a relay, or a shell command, takes its time, and the proxy goes on meanwhile."""
    return asyncio.get_running_loop().run_in_executor(None, work)


async def elsewhere(work: Callable[[], T]) -> T:
    """What it gives. Done in a thread, as `beside`; its end is waited for also when this is cancelled. labgrid, too,
    wants a thread without a running event loop, for a place at its coordinator.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


class Victim:
    """Killed and switched on again as planned while a count grows. `schedule` counts the bytes of its link, `do` does
    what may take time. `ended` hears in which way a life ends, just before.
    """

    def __init__(
        self,
        name: str,
        end: Mortal,
        plan: list[Kill],
        mishap: Work = lambda: None,
        step: Callable[[float], None] = lambda _: None,
        schedule: CutSchedule | None = None,
        do: Callable[[Work], "Future[None] | asyncio.Future[None]"] = at_once,
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.mishap = mishap
        self._step = step
        self.end = end
        self.made: list[KillMade] = []
        self.kills = 0
        self._plan = [life for kill in plan for life in kill.lives()]
        self._schedule = schedule or CutSchedule(())
        self._do = do
        self._tell = ended
        self._begun = time.monotonic()
        self._due: float | None = None
        self._off_until: float | None = None
        self._working: Future[None] | asyncio.Future[None] | None = None
        self._off_s: float | None = None
        self._rings = False

    @property
    def ended(self) -> int:
        """How many lives of it were ended."""
        return sum(kill.way in KILLS for kill in self._plan[: self.kills])

    @property
    def finished(self) -> bool:
        """All planned kills have been made, and it is on again."""
        return self.kills == len(self._plan) and self.idle

    @property
    def idle(self) -> bool:
        """Nothing is being done to it, and it is on."""
        return self._off_until is None and self._working is None

    def tick(self, count: int, now: float) -> None:
        """Kill or switch on if it is time (`now`: monotonic seconds). Raises CampaignFailed if the victim died by
        itself, and what `end` raises.
        """
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
        """Let the next kill come if it is its turn. A kill that waits for bytes counts them from the first one of a
        life: it is armed before that begins.
        """
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
        if self._working is not None:  # it is just being switched on: at the next tick; nothing passes until then
            self._due = now
            return
        self.kills += 1
        self._rings = bool(kill.bytes)
        self._due = None
        self._off_s = None if kill.way in (RESET, CLOCK, GONE) else kill.off_s
        if kill.way not in (CLOCK, GONE):
            self._tell(kill.way)

        def work() -> None:
            began, up = time.monotonic(), self._schedule.forwarded[UP]
            if kill.way == CLOCK:
                self._step(kill.step_s)
            elif kill.way == RESET:
                self.end.reset()
            else:
                self.end.kill()
            took_s, up_off = time.monotonic() - began, self._schedule.forwarded[UP]
            self.made.append(KillMade(kill, began - self._begun, took_s, up, up_off, at_byte))
            if kill.way == MISHAP:
                self.mishap()

        self._begin(work, now)

    def _begin(self, work: Work, now: float) -> None:
        self._working = self._do(work)
        self._worked(now)

    def _worked(self, now: float) -> bool:
        """Whether what was begun is done; then its off-time begins."""
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
        """Wait for what was begun, whatever becomes of it."""
        while self._working is not None and not self._working.done():
            await asyncio.sleep(TICK_S)


@dataclass
class Campaign:
    """One run: the parts while they live. `run` does it all; `close` leaves nothing behind, whenever it is called.
    `fleet`: the campaigns of all boards that send to this queue manager, this one too.
    """

    settings: Settings
    board: Board
    manager: QueueManager
    schedule: CutSchedule
    proxy: FaultProxy
    folder: Path
    commands: Commands
    progress: Progress = field(default_factory=Progress)
    erased: list[Path] = field(default_factory=list)
    flipped: tuple[str, int] = ("", 0)
    mishaps: int = 0
    gone: set[int] = field(default_factory=set)
    in_queue: int = 0
    names: NameServer | None = None
    access_point: AccessPoint | None = None
    timeline: Timeline = field(default_factory=Timeline)
    noted: Counter[str] = field(default_factory=Counter)
    fleet: "list[Campaign]" = field(default_factory=list)
    guid: str = ""
    tls: dict[str, object] = field(default_factory=dict)
    tap: Tap | None = None
    description: str = ""
    hashes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet.append(self)

    def figures(self, victims: dict[str, Victim]) -> dict[str, int]:
        """The live figures, by the names of `totals`."""
        return {
            "sent": self.progress.accepted,
            "stored": self.in_queue,
            "acknowledged": self.progress.stored,
            "cuts": len(self.schedule.made),
            "restarts": sum(victim.ended for victim in victims.values()),
            **({"commands": self.progress.commanded} if self.commands.count else {}),
        }

    def totals(self) -> dict[str, int]:
        """What the live figures are to reach."""
        plan = self.settings.plan or ()
        counts = dict.fromkeys(("sent", "stored", "acknowledged"), self.settings.messages)
        of_commands = {"commands": self.commands.count} if self.commands.count else {}
        return {**counts, "cuts": len(cuts_of(plan)), "restarts": sum(map(is_kill, plan)), **of_commands}

    def befall(self) -> None:
        """The board is off, and its mishap happens. An outbox that is gone is kept here, for the verdict."""
        if self.settings.mishap == REFLASH:
            self.board.reflash()
        elif self.settings.mishap == DEPLOY:
            self.board.redeploy()
        else:
            with self.board.attended():
                try:
                    self.change_outbox(self.settings.mishap)
                except FileNotFoundError:  # it had not been made yet
                    return
        self.mishaps += 1

    def change_outbox(self, mishap: str) -> None:
        """What such a mishap does to it. Raises FileNotFoundError if there is none yet."""
        first, to = self.folder / "outbox-1", self.folder / f"outbox-{self.mishaps + 1}"
        self.board.erase("outbox", to)
        if mishap == FLIP:
            self.flip(to)
        if mishap in (FLIP, COPY):
            self.board.put("outbox", first if mishap == COPY else to)
        if mishap in (ERASE, ERASE_FIXED) or (mishap == COPY and to != first):
            self.erased.append(to)

    async def restore(self) -> None:
        """The queue manager is off, and its mishap happens. What it got after the backup is gone, and kept here. It is
        off for as many seconds as it has lived, each of which took one for its sequences: nobody is quicker who puts a
        backup back.
        """
        async with self.manager.using:
            if self.mishaps:
                had = await self.readings("--peek")
                (self.folder / "store").rename(self.folder / f"store-{self.mishaps}")
                await self.manager.command("restore", "backup")
                self.gone |= had - await self.readings("--peek")
                self.commands.store_put_back()
                await asyncio.sleep(self.manager.life)
            else:
                await self.manager.command("backup", "backup")
                self.commands.store_saved()
        self.mishaps += 1

    async def readings(self, *words: str) -> set[int]:
        """Those in the queue."""
        received = read_received(await self.manager.command("receive", QUEUE, "--json", *words))
        return {message.k for message in received if message.k}

    def flip(self, folder: Path) -> None:
        """One bit of one file, by the seed; that of before is as it was, for two of one record cannot be mended. What
        is in `*.tail` has a CRC of LittleFS: no such bit comes from there. The first one is in what each start reads.
        """
        rng = random.Random(f"flip/{self.mishaps}/{self.settings.seed}")
        files = [file for file in sorted(folder.glob("*.log")) if file.stat().st_size]
        if not files:  # it had been begun just now
            return
        is_first = self.flipped == ("", 0)
        file = files[-1] if is_first else rng.choice(files)
        now = file.name, rng.randrange(8 * min(file.stat().st_size, HEADER_BYTES if is_first else 1 << 30))
        for name, bit in (self.flipped, now):
            if (path := folder / name).is_file():
                content = bytearray(path.read_bytes())
                content[bit // 8] ^= 1 << bit % 8
                path.write_bytes(content)
        self.flipped = now

    async def held(self) -> frozenset[int]:
        """The readings that waited in the outboxes that were erased, or of which the board could not yet say that they
        have failed: the power went between the two.
        """
        gone = (confirm.WAITING, confirm.DEAD_LETTERED, confirm.DISCARDED)
        rescued = [await self.rescued(folder) for folder in self.erased]
        return frozenset(k for states in rescued for k, state in states.items() if state in gone)

    async def rescued(self, folder: Path) -> dict[int, str]:
        """The states of the readings in an outbox that is here."""
        process = await create_subprocess_exec(
            *self.settings.ordack, "board", "rescue", folder, "--json", stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        messages = [said for said in map(json.loads, output.decode().splitlines()) if "state" in said]
        return {int(said["label"].removeprefix("reading ")): said["state"] for said in messages}

    async def forgotten(self, accepted: Iterable[int]) -> list[int]:
        """Those of the accepted readings that were to stay in the outbox, and are not there."""
        keeps = self.settings.keeps
        if not keeps or self.board.lacks("erase"):
            return []
        folder = self.folder / "outbox"
        try:
            await elsewhere(lambda: self.board.erase("outbox", folder))
        except FileNotFoundError:  # it had not been made yet
            return []
        kept = await self.rescued(folder)
        return [k for k in accepted if k % keeps == 0 and k not in kept]

    async def count_queue(self) -> None:
        """Keep `in_queue` up to date through `ordack queue list`: of many boards, the mean."""
        while True:
            begun = time.monotonic()
            async with self.manager.using:
                listed = await self.manager.command("queue", "list", "--json")
            queues = {queue["name"]: queue for queue in map(json.loads, listed.splitlines())}
            for campaign in self.fleet:
                campaign.in_queue = queues[QUEUE]["messages"] // len(self.fleet)
            await asyncio.sleep(max(COUNT_INTERVAL_S, COUNT_SHARE * (time.monotonic() - begun)))

    async def start_manager(self) -> None:
        """Start the queue manager, for the boards of the whole fleet. Raises CampaignFailed."""
        await self.manager.command("init")
        await self.manager.command("queue", "create", QUEUE, "--transactional")
        self.manager.links = [word for campaign in self.fleet for word in campaign.proxy.serve_arguments()]
        if self.tap is None and is_captured(self.settings, self.board):
            self.manager.links += ["--capture", CAPTURE]
        if self.settings.tls:
            from hil.plant import secure  # cryptography is slow to import

            self.manager.listen, self.tls = [], secure(self.folder, self.manager.address)
        self.manager.power_up()
        start = time.monotonic()
        while not self.manager.listening():
            if not self.manager.alive or time.monotonic() > start + LISTENING_DEADLINE_S:
                raise CampaignFailed("the queue manager does not say that it is listening")
            await asyncio.sleep(TICK_S)

    async def run(self, victims: dict[str, Victim], view: View) -> None:
        """Start the board, keep killing as planned, and return once all is acknowledged and all faults are made.

        Also returns when all is acknowledged with cuts still missing: the verdict says so. Raises CampaignFailed.
        """
        settings = self.settings
        await self.proxy.open(self.manager.address)
        link = self.proxy.board_settings(self.board.host)
        if settings.mishap in (OFFLINE, FULL):
            self.manager.kill()
        if self.names is not None:
            await self.names.open(self.board.listen)
            link = {**link, "host": NAME, "dns": [self.board.host, self.names.port]}
        if settings.mishap in (DEAD_DNS, DEPLOY):
            link = {**link, "watchdog_ms": WATCHDOG_MS}
        if settings.mishap == FULL:
            link = {**link, "capacity": FULL_BYTES + 4 * (settings.max_size or 0)}
        steps = [(kill.count, kill.step_s) for kill in kills_of(settings.plan or (), BOARD) if kill.way == CLOCK]
        application = {
            "campaign": self.progress.campaign,
            "outbox": "outbox",
            "queue": f"DIRECT=TCP:{self.manager.address[0]}\\private$\\{QUEUE}",
            "seed": settings.seed,
            "count": settings.messages,
            "max_size": settings.max_size,
            "ahead": settings.ahead,
            "erasures": settings.mishap in (ERASE, ERASE_FIXED, COPY),
            "clockless": settings.mishap in (ERASE, ERASE_FIXED, COPY, FLIP),
            "guid": self.guid or (GUID if settings.mishap == ERASE_FIXED or settings.commands else ""),
            "commands": settings.commands > 0,
            "clock_steps": steps,
            "radio": 0 if self.access_point is None else DOUBT_MS,
        }
        application |= settings.of_outbox()
        await elsewhere(lambda: self.board.deploy({**application, **link, **self.tls}))
        await elsewhere(self._identify)
        victims[BOARD].arm(0, time.monotonic(), is_on=False)
        await elsewhere(self.board.power_up)
        giving = self.commands.give(self.manager, self.progress, settings.messages)
        beside_it = [asyncio.create_task(giving)]
        if self.fleet[0] is self:
            beside_it.append(asyncio.create_task(self.count_queue()))
        try:
            await self._keep_killing(victims, view, beside_it)
        finally:
            for task in beside_it:
                task.cancel()
            await asyncio.gather(*beside_it, return_exceptions=True)

    async def _keep_killing(
        self, victims: dict[str, Victim], view: View, beside_it: "list[asyncio.Task[None]]"
    ) -> None:
        patience_s, deadline_s = self.settings.patience_s, self.settings.deadline_s
        assert patience_s is not None
        assert deadline_s is not None
        begun = changed = time.monotonic()
        before: dict[str, int] = {}
        while not self._complete(victims):
            now = time.monotonic()
            self.progress.read(self.board.log)
            if self.progress.error is not None:
                raise CampaignFailed(f"the board gave up: {self.progress.error}")
            for task in beside_it:
                if task.done():
                    await task
            if self.progress.starts.wrong:
                raise CampaignFailed(self.progress.starts.wrong)
            for name, victim in victims.items():
                # Until the board has started again after a reset, nothing else ends its life: one start would show both
                is_resetting = name == BOARD and victim.idle and RESET in self.progress.starts.unseen
                if name != MANAGER and not is_resetting:
                    victim.tick(self._reached, now)
            if self.is_withheld:
                await self._relent(victims[BOARD])
            else:
                stored = sum(campaign.progress.stored for campaign in self.fleet)
                victims[MANAGER].tick(stored // len(self.fleet), now)
            if self.access_point is not None:
                await self.access_point.look()
            figures = self.figures(victims)
            counts = figures["sent"], figures["acknowledged"], figures["stored"]
            self.timeline.note(now - begun, counts, self._new_faults(victims))
            view.update(figures)
            if figures != before:
                before, changed = figures, now
            if now > changed + patience_s:
                raise CampaignFailed(f"no progress for {patience_s:g} s: {self._lacking(figures)}")
            if now > begun + deadline_s:
                raise CampaignFailed(f"not done within {deadline_s:g} s: {self._lacking(figures)}")
            await asyncio.sleep(TICK_S)

    @property
    def _reached(self) -> int:
        """How many readings have been accepted: all of them only when all commands have been executed, too."""
        accepted, messages = self.progress.accepted, self.settings.messages
        return accepted if self.commands.executed(self.progress.commanded) else min(accepted, messages - 1)

    def _identify(self) -> None:
        self.description, self.hashes = self.board.describe(), hashes(self.board, self.settings)

    def _new_faults(self, victims: dict[str, Victim]) -> Iterator[str]:
        """What was made since the last time."""
        made = {name: [one.planned.way for one in victim.made] for name, victim in victims.items()}
        made["link"] = [f"{one.kind} {one.direction}" for one in self.schedule.made]
        for name, found in made.items():
            yield from (f"{name}: {one}" for one in found[self.noted[name] :])
            self.noted[name] = len(found)

    @property
    def is_withheld(self) -> bool:
        """The board cannot reach the queue manager yet."""
        return self.settings.mishap in WITHHELD and not self.mishaps

    async def _relent(self, victim: Victim) -> None:
        """When all, or what there is room for, waits on the board: it starts once more, and what it lacks is there."""
        if self.names is not None and not victim.finished:
            self.names.asked = 0
        has_tried = self.names is None or self.names.asked >= QUESTIONS
        waits = self.progress.accepted == self.settings.messages and victim.finished
        if self.settings.mishap == FULL:
            waits = self.progress.full and victim.idle  # the other kills come later
        if waits and has_tried:
            self.progress.starts.end(self.board.life, POWER)
            await elsewhere(self.board.kill)
            await elsewhere(self.board.power_up)
            if self.names is None:
                self.manager.power_up()
            else:
                self.names.answers = True
            self.mishaps += 1

    def _complete(self, victims: dict[str, Victim]) -> bool:
        settled = self.progress.accepted == self.progress.stored == self.settings.messages
        starts = self.progress.starts
        ready = self.progress.started and starts.count > 0 and not starts.unseen and self.manager.listening()
        settled = settled and self.commands.executed(self.progress.commanded)
        return ready and settled and all(victim.finished for victim in victims.values())

    def _lacking(self, figures: dict[str, int]) -> str:
        totals = self.totals()
        lacking = [f"{name} {figure} of {totals[name]}" for name, figure in figures.items() if figure < totals[name]]
        if not self.progress.started:
            lacking.append("the board has not started")
        elif not self.progress.starts.count:
            lacking.append("the application does not say `starts`: how often it has started")
        lacking += [f"the board has not started again after a {way}" for way in self.progress.starts.unseen]
        if not self.manager.listening():
            lacking.append("the queue manager is not listening")
        return ", ".join(lacking)

    async def drain(self) -> list[Received]:
        """Switch everything off; what the queue holds."""
        for campaign in self.fleet:
            await elsewhere(campaign.board.kill)
        self.manager.stop()
        return read_received(await self.manager.command("receive", QUEUE, "--all", "--json"))

    async def judge(self, received: list[Received], figures: Figures) -> None:
        """Compare what the queue held of this board, which is off, with its ledger."""
        content = await elsewhere(lambda: self.board.read_file(sensor.LEDGER))
        (self.folder / sensor.LEDGER).write_bytes(content)
        ledger = read_ledger(content)
        self.progress.read(self.board.log)
        failed = {entry.k for entry in ledger if entry.message_id in self.progress.failed}
        held = frozenset(failed) | await self.held() | self.gone
        erased = Erased(held, frozenset(self.progress.bases), frozenset(self.progress.claimed - failed - self.gone))
        result = compare(self.settings.messages, ledger, received, erased)
        self.commands.judge(result, read_ledger(await elsewhere(lambda: self.board.read_file(sensor.COMMANDS))))
        result.forgotten = await self.forgotten(entry.k for entry in ledger)
        self.in_queue = result.received
        figures.comparison, figures.found_at_restart = result, sum(entry.found for entry in ledger)
        if figures.failure is not None:
            result.missing = [k for k in result.lost if k not in result.false]
            result.lost = result.false
        figures.wear = self.board.wear()
        figures.failure = figures.failure or self.progress.starts.wrong or None

    async def judge_traffic(self, figures: Figures) -> None:
        """Hold what went over the link against the specification. Raises CampaignFailed if it cannot be read."""
        if self.tap is not None:
            self.tap.close()
            if self.tap.failure:
                raise CampaignFailed(self.tap.failure)
        if not is_captured(self.settings, self.board) or len(self.fleet) > 1:
            return
        try:
            figures.traffic = await asyncio.to_thread(judge, ORDACK, self.folder)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CampaignFailed(f"the capture of the link cannot be judged: {error}") from None

    async def close(self) -> None:
        """Kill every process and drop every connection, also where one of them fails, as a relay that does not
        answer. Raises OSError."""
        async with AsyncExitStack() as parts:  # the last one is closed first
            parts.push_async_callback(self.proxy.close)
            if self.names is not None:
                parts.callback(self.names.close)
            parts.callback(self.manager.close)
            parts.push_async_callback(elsewhere, self.board.close)

    def keep(self, figures: Figures) -> None:
        """Write figures and logs beside ledger and store."""
        (self.folder / "figures.json").write_text(figures.to_json())
        (self.folder / "board.log").write_text(self.board.log.tail(sys.maxsize))
        (self.folder / "queue_manager.log").write_text(self.manager.log.tail(sys.maxsize))

    def logs(self) -> str:
        """The ends of both logs."""
        return "\n".join(
            f"--- the last lines of the {name}:\n{log.tail() or '(nothing)'}"
            for name, log in (("board", self.board.log), ("queue manager", self.manager.log))
        )


def is_captured(settings: Settings, board: Board) -> bool:
    """Whether the traffic is captured and judged. A folder that is erased or put back, of either end, repeats numbers
    in its new life. The queue manager captures a serial line, by its own clock: if that steps, an audit has no order.
    """
    is_put_back = settings.mishap in (ERASE, ERASE_FIXED, COPY, FLIP, RESTORE)
    steps = any(kill.way == CLOCK for kill in kills_of(settings.plan or (), MANAGER))
    is_ordered = board.line is None or not steps
    return settings.application == SENSOR and not settings.tls and not is_put_back and is_ordered


def proxy_of(board: Board, schedule: CutSchedule, seed: int, tap: Tap | None) -> FaultProxy:
    """The proxy for the board's kind of link. tap: what records a network's traffic."""
    if board.line is None:
        return TcpFaultProxy(schedule, board.listen, tap)
    return SerialFaultProxy(schedule, board.line, seed, board.find_line)


async def run_campaign(settings: Settings, console: Console) -> Figures:
    """Run a campaign, with live progress on `console`; its figures, whether it went well or not.

    Keeps logs, scenario, ledger and store in a folder below `settings.artefacts` if it did not, and says so, with the
    command that repeats it. Raises BoardMissing, and OSError.
    """
    with new_folder(settings.artefacts, f"seed-{settings.seed}") as (folder, keep):
        campaign, victims, figures = await prepare(settings, folder)
        await _play(campaign, victims, figures, console)
        if not figures.ok:
            keep()
            figures.artefacts = str(folder)
            campaign.keep(figures)
            (folder / SCENARIO).write_text(_scenario(campaign.settings, settings))
            for text in (
                f"logs, scenario, ledger and store are kept in {folder}",
                f"replay it: {replay(settings, folder / SCENARIO)}",
            ):
                console.print(text, markup=False, soft_wrap=True)
        return figures


def _scenario(planned_settings: Settings, asked: Settings) -> str:
    """The text that repeats a campaign, with times only where they were asked for: the kind of board has its own."""
    return write(replace(planned_settings, ahead=asked.ahead, patience_s=asked.patience_s, deadline_s=asked.deadline_s))


def command(module: str, *words: str | Path) -> str:
    """The line that runs a command of the rig as this one runs."""
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    shown = [os.path.relpath(word) if Path(word).is_relative_to(Path.cwd()) else str(word) for word in words]
    boards = [f"LG_ENV={shlex.quote(os.environ['LG_ENV'])}"] if os.environ.get("LG_ENV") else []
    return " ".join([*boards, shlex.join([python, "-m", f"hil.{module}", *shown])])


def replay(settings: Settings, scenario: Path) -> str:
    """The line that plays a scenario with these settings."""
    return command("fleet" if settings.boards else "campaign", "--scenario", scenario)


def hashes(board: Board, settings: Settings) -> dict[str, str]:
    """SHA-256 of what decides what the board does, and of the queue manager, by what it is. Raises OSError."""
    read = board.firmware()  # first: some boards are asked then what they have
    found = {name: digest(path) for name, path in board.files().items()} | ({"firmware": read} if read else {})
    if settings.ordack == ORDACK:
        found["queue manager"] = digest(HOST / "ordack", FIRMWARE / "mqqb", *sorted(HOST.glob("*.so")))
    return found


def digest(*paths: Path) -> str:
    """SHA-256 of files, and of the names and contents of folders' files."""
    made = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                made.update(f"{file.relative_to(path)}\0".encode() if path.is_dir() else b"")
                made.update(file.read_bytes())
    return made.hexdigest()


def _opened(settings: Settings, folder: Path) -> tuple[Settings, Board]:
    """The board, and the settings with what it determines, and with the plan. Raises BoardMissing."""
    if not Path(settings.ordack[0]).is_file():
        raise BoardMissing(f"{settings.ordack[0]} is missing; `make setup` installs it")
    board = open_board(settings.board, folder / "board", settings.application)
    try:
        settings = settings.for_board(board.limits)
        _refuse(settings, board)
        return planned(settings, board), board
    except BaseException:
        board.close()
        raise


def _refuse(settings: Settings, board: Board) -> None:
    """Raises BoardMissing for settings that ask for what such a board cannot do."""
    if (settings.mishap == DEAD_DNS or settings.tls) and board.line is not None:
        raise BoardMissing(f"board {settings.board} has no network: it asks no name server, and speaks no TLS")
    for name in NEEDED.get(settings.mishap, ()):
        if board.lacks(name):
            raise BoardMissing(f"the mishap {settings.mishap} cannot befall board {settings.board}: see hil/README.md")
    if settings.commands and settings.board in WITHOUT_INBOX:
        raise BoardMissing(f"board {settings.board} has no heap for commands: {settings.board}@72 has")


Prepared = tuple[Campaign, dict[str, Victim], Figures]


async def prepare(settings: Settings, folder: Path, first: Prepared | None = None) -> Prepared:
    """The parts of a campaign, what will happen to them, and its figures with that plan. It shares the queue manager,
    and what will happen to that, with the one that was prepared `first`. Raises BoardMissing."""
    settings, board = await elsewhere(lambda: _opened(settings, folder))
    if first is not None:
        kills = kills_of(settings.plan or (), MANAGER)
        own = [event for event in settings.plan or () if event not in kills]
        settings = replace(settings, plan=(*own, *kills_of(first[0].settings.plan or (), MANAGER)))
    plan = settings.plan or ()
    cuts, plans = cuts_of(plan), {name: kills_of(plan, name) for name in ENDS}
    schedule = CutSchedule(cuts)
    has_clock = any(kill.way == CLOCK for kill in plans[MANAGER])
    manager = first[0].manager if first else QueueManager(settings.ordack, folder, has_clock)
    tap = Tap(folder) if first is None and board.line is None and is_captured(settings, board) else None
    proxy = proxy_of(board, schedule, settings.seed, tap)
    fleet = first[0].fleet if first else []
    commands = Commands(settings.commands)
    campaign = Campaign(settings, board, manager, schedule, proxy, folder, commands, fleet=fleet, tap=tap)
    campaign.progress.starts = Starts(is_loose=settings.mishap in (REFLASH, DEPLOY))
    loop = asyncio.get_running_loop()

    def restore() -> None:  # in a thread
        asyncio.run_coroutine_threadsafe(campaign.restore(), loop).result()

    def ended(way: str) -> None:
        campaign.progress.starts.end(board.life, way)

    victims = {
        BOARD: Victim(BOARD, board, plans[BOARD], campaign.befall, schedule=schedule, do=beside, ended=ended),
        MANAGER: first[1][MANAGER]
        if first
        else Victim(MANAGER, manager, plans[MANAGER], restore, manager.step, schedule, beside),
    }
    if plans[NAME_SERVER] or settings.mishap == DEAD_DNS:
        campaign.names = NameServer(board.host, answers=settings.mishap != DEAD_DNS)
        victims[NAME_SERVER] = Victim(NAME_SERVER, campaign.names, plans[NAME_SERVER])
    if plans[ACCESS_POINT] and isinstance(proxy, TcpFaultProxy):
        campaign.access_point = AccessPoint(proxy, campaign.progress)
        victims[ACCESS_POINT] = Victim(ACCESS_POINT, campaign.access_point, plans[ACCESS_POINT], schedule=schedule)
    of_board, of_manager = (sum(map(is_kill, plans[name])) for name in VICTIMS)
    asked = len(cuts), of_board, of_manager
    figures = Figures(settings.seed, settings.board, board.describe(), settings.messages, *asked, settings.commands)
    figures.plan = {
        "cuts": [asdict(cut) for cut in cuts],
        **{name: [asdict(kill) for kill in plans[name]] for name in plans if plans[name] or name in VICTIMS},
    }
    figures.others_asked = dict(_others(life for name in ENDS for kill in plans[name] for life in kill.lives()))
    return campaign, victims, figures


def _others(kills: Iterable[Kill]) -> Counter[str]:
    """How often something else befalls an end than the end of a life, by end and way."""
    return Counter(f"{kill.victim}: {kill.way}" for kill in kills if kill.way not in KILLS)


async def _play(campaign: Campaign, victims: dict[str, Victim], figures: Figures, console: Console) -> None:
    """All that happens in a campaign, whatever fails; its figures are complete then."""
    begun = time.monotonic()
    try:
        with View(console, campaign.totals()) as view:
            await campaign.start_manager()
            try:
                await campaign.run(victims, view)
            except (CampaignFailed, OSError, BoardMissing) as error:
                figures.fail(error, campaign.logs())
                for victim in victims.values():
                    await victim.settle()
            await campaign.judge(await campaign.drain(), figures)
            await campaign.judge_traffic(figures)
            view.update(campaign.figures(victims))
    except (CampaignFailed, ValueError, KeyError, OSError, BoardMissing) as error:
        figures.fail(error, campaign.logs())
    finally:
        for victim in victims.values():
            await victim.settle()
        try:
            await campaign.close()
        except OSError as error:
            figures.fail(error, campaign.logs())
    figures.seconds = time.monotonic() - begun
    fill(campaign, victims, figures)


def fill(campaign: Campaign, victims: dict[str, Victim], figures: Figures) -> None:
    """What was made of the plan, and how much went over the link."""
    figures.timeline = campaign.timeline
    figures.description = campaign.description or figures.description
    figures.hashes = campaign.hashes
    figures.core = campaign.progress.core
    figures.cores, figures.told = (sorted(found) for found in (campaign.progress.cores, campaign.progress.told))
    figures.mishaps, figures.commands = campaign.mishaps, len(campaign.commands.given)
    figures.cuts = campaign.schedule.made
    made = {name: victim.made for name, victim in victims.items()}
    figures.power = [asdict(one) for one in made[BOARD] if one.planned.way in (*KILLS, DIP)]
    unseen = sum(way in KILLS for way in campaign.progress.starts.unseen)
    figures.board_kills, figures.manager_kills = victims[BOARD].ended - unseen, victims[MANAGER].ended
    figures.others = dict(_others(one.planned for of_end in made.values() for one in of_end))
    figures.unanswered = campaign.names.unanswered if campaign.names else 0
    figures.connections = campaign.schedule.connections
    figures.sessions = campaign.progress.sessions
    figures.refused = campaign.proxy.refused
    figures.bytes_up, figures.bytes_down = campaign.schedule.forwarded.values()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for: `scenario` or else `settings`, `write_plan`, `json`. Exits with 2 on wrong use."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m hil.campaign", description="Exactly once, in order, through cuts and kills."
    )
    for name, text in (
        ("messages", "readings that the board sends"),
        ("cuts", "cuts of the connection"),
        ("kills", "kills of the board, and as many of the queue manager"),
        ("commands", "commands that the queue manager sends to the board"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=getattr(defaults, name), help=f"{text} (default %(default)s)"
        )
    parser.add_argument("--seed", type=int, help="the same seed makes the same plan (default: a new one)")
    parser.add_argument(
        "--board", default=defaults.board, help=f"{', '.join(KINDS)} or exec:COMMAND (default %(default)s)"
    )
    parser.add_argument("--max-size", type=int, help="bytes of the largest body (default: what the board takes)")
    parser.add_argument("--patience", type=float, help="seconds without progress (default: by the kind of board)")
    parser.add_argument("--deadline", type=float, help="seconds in all (default: by the kind of board)")
    parser.add_argument(
        "--mishap",
        choices=MISHAPS,
        default="",
        help="what else happens (see hil/README.md)",
    )
    parser.add_argument(
        "--tls", action="store_true", help="over TLS, if the board's firmware has it: pi, pi-machine, raspi3b"
    )
    parser.add_argument("--scenario", type=Path, help="what to do stands in this file; only --json goes with it")
    parser.add_argument("--write-plan", type=Path, help="write what would be done to this file, and do nothing")
    parser.add_argument("--json", action="store_true", help="write the figures to standard output as one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.scenario is not None:
        others = {name for name, value in vars(chosen).items() if value != parser.get_default(name)}
        others -= {"scenario", "json"}
        if others:
            parser.error(f"the scenario says all but --json: write {', '.join(sorted(others))} into {chosen.scenario}")
        return chosen
    seed = new_seed() if chosen.seed is None else chosen.seed
    try:
        chosen.settings = Settings(
            chosen.messages,
            chosen.cuts,
            chosen.kills,
            seed,
            chosen.board,
            chosen.max_size,
            patience_s=chosen.patience,
            deadline_s=chosen.deadline,
            mishap=chosen.mishap,
            tls=chosen.tls,
            commands=chosen.commands,
        )
    except ValueError as error:
        parser.error(str(error))
    return chosen


def write_plan(settings: Settings, path: Path) -> None:
    """Write what a campaign would do as a scenario. Raises BoardMissing, BadScenario."""
    with tempfile.TemporaryDirectory() as folder:
        planned_settings, board = _opened(settings, Path(folder))
        board.close()
    try:
        path.write_text(_scenario(planned_settings, settings))
    except OSError as error:
        raise BadScenario(f"{path}: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    chosen = parse_arguments(arguments)
    console = Console(stderr=chosen.json, highlight=False, soft_wrap=True)
    return ending(console, lambda: _obey(chosen, console))


def _obey(chosen: argparse.Namespace, console: Console) -> int:
    settings = chosen.settings if chosen.scenario is None else read(chosen.scenario)
    if settings.boards:
        raise BadScenario(f"{chosen.scenario} has many boards: {replay(settings, chosen.scenario)}")
    if chosen.write_plan is not None:
        write_plan(settings, chosen.write_plan)
        console.print(f"run it: {replay(settings, chosen.write_plan)}", markup=False)
        return 0
    console.print(
        f"seed {settings.seed}: {settings.messages} messages, {settings.cuts} cuts, "
        f"{settings.kills} kills of either end, board {settings.board}"
        if chosen.scenario is None
        else f"{chosen.scenario}: {settings.messages} messages, {len(settings.plan or ())} events, "
        f"board {settings.board}",
        markup=False,
    )
    figures = to_the_end(run_campaign(settings, console))
    console.print(figures.table())
    for reason in figures.shortcomings():
        console.print(f"FAILED: {reason}", markup=False)
    if figures.comparison:
        console.print(figures.comparison.line(), markup=False)
    if chosen.json:
        print(figures.to_json())
    return figures.status


if __name__ == "__main__":
    sys.exit(main())
