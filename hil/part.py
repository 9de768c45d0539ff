"""One board's part of a campaign: it runs, is killed as planned, and its readings are judged."""

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hil import sensor
from hil.boards import FIRMWARE, POWER, RESET, ROOT, SENSOR, Board
from hil.commands import GUID, Commands
from hil.faults import CutSchedule, FaultProxy
from hil.mishaps import Mishaps
from hil.name_server import NameServer
from hil.progress import Progress
from hil.queue_manager import QUEUE, CampaignFailed, QueueManager
from hil.report import Erased, Figures, Received, Timeline, View, compare, read_ledger, read_received
from hil.scenario import (
    BOARD,
    CLOCK,
    COPY,
    DEAD_DNS,
    DEPLOY,
    DIP,
    ERASE,
    ERASE_FIXED,
    FLIP,
    FULL,
    KILLS,
    MANAGER,
    OFFLINE,
    ORDACK,
    RESTORE,
    WITHHELD,
    Kill,
    Settings,
    cuts_of,
    is_kill,
    kills_of,
)
from hil.traffic import CAPTURE, Tap, judge
from hil.victims import TICK_S, Victim, elsewhere

HOST = ROOT / "host"
LISTENING_DEADLINE_S = 60.0
COUNT_INTERVAL_S = 1.0  # or so many times as long as it takes to count, which costs the processor of all campaigns:
COUNT_SHARE = 10
FULL_BYTES = 16384
"""Of an outbox that is to be full, and as much as four of the largest bodies besides."""
NAME = "gateway.example"
WATCHDOG_MS = 5000
QUESTIONS = 4
"""So many of one life mean that the board has given up to look the name up once, and 7 s have passed."""


@dataclass
class Part:
    """One board's part of a campaign. `fleet`: the parts of all boards that send to this queue manager, this one too.
    `close` leaves nothing behind, whenever it is called.
    """

    settings: Settings
    board: Board
    manager: QueueManager
    schedule: CutSchedule
    proxy: FaultProxy
    folder: Path
    commands: Commands
    mishaps: Mishaps
    result: Figures
    tap: Tap | None
    fleet: "list[Part]"
    progress: Progress = field(default_factory=Progress)
    victims: dict[str, Victim] = field(default_factory=dict)
    in_queue: int = 0
    names: NameServer | None = None
    timeline: Timeline = field(default_factory=Timeline)
    noted: Counter[str] = field(default_factory=Counter)
    guid: str = ""
    tls: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet.append(self)

    def figures(self) -> dict[str, int]:
        """The live figures, by the names of `totals`."""
        return {
            "sent": self.progress.accepted,
            "stored": self.in_queue,
            "acknowledged": self.progress.stored,
            "cuts": len(self.schedule.made),
            "restarts": sum(victim.ended for victim in self.victims.values()),
            **({"commands": self.progress.commanded} if self.commands.count else {}),
        }

    def totals(self) -> dict[str, int]:
        """What the live figures are to reach."""
        plan = self.settings.plan or ()
        counts = dict.fromkeys(("sent", "stored", "acknowledged"), self.settings.messages)
        of_commands = {"commands": self.commands.count} if self.commands.count else {}
        return {**counts, "cuts": len(cuts_of(plan)), "restarts": sum(map(is_kill, plan)), **of_commands}

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

    async def run(self, view: View) -> None:
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
        }
        application |= settings.of_outbox()
        await elsewhere(lambda: self.board.deploy({**application, **link, **self.tls}))
        await elsewhere(self._identify)
        self.victims[BOARD].arm(0, time.monotonic(), is_on=False)
        await elsewhere(self.board.power_up)
        giving = self.commands.give(self.manager, self.progress, settings.messages)
        beside_it = [asyncio.create_task(giving)]
        if self.fleet[0] is self:
            beside_it.append(asyncio.create_task(self.count_queue()))
        try:
            await self._keep_killing(view, beside_it)
        finally:
            for task in beside_it:
                task.cancel()
            await asyncio.gather(*beside_it, return_exceptions=True)

    async def _keep_killing(self, view: View, beside_it: "list[asyncio.Task[None]]") -> None:
        patience_s, deadline_s = self.settings.patience_s, self.settings.deadline_s
        assert patience_s is not None
        assert deadline_s is not None
        begun = changed = time.monotonic()
        before: dict[str, int] = {}
        while not self._complete():
            now = time.monotonic()
            self.progress.read(self.board.log)
            if self.progress.error is not None:
                raise CampaignFailed(f"the board gave up: {self.progress.error}")
            for task in beside_it:
                if task.done():
                    await task
            if self.progress.starts.wrong:
                raise CampaignFailed(self.progress.starts.wrong)
            for name, victim in self.victims.items():
                # Until the board has started again after a reset, nothing else ends its life: one start would show both
                is_resetting = name == BOARD and victim.idle and RESET in self.progress.starts.unseen
                if name != MANAGER and not is_resetting:
                    victim.tick(self._reached, now)
            if self.is_withheld:
                await self._relent(self.victims[BOARD])
            else:
                stored = sum(campaign.progress.stored for campaign in self.fleet)
                self.victims[MANAGER].tick(stored // len(self.fleet), now)
            figures = self.figures()
            counts = figures["sent"], figures["acknowledged"], figures["stored"]
            self.timeline.note(now - begun, counts, self._new_faults())
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
        self.result.description, self.result.hashes = self.board.describe(), hashes(self.board, self.settings)

    def _new_faults(self) -> Iterator[str]:
        """What was made since the last time."""
        made = {name: [one.planned.way for one in victim.made] for name, victim in self.victims.items()}
        made["link"] = [f"{one.kind} {one.direction}" for one in self.schedule.made]
        for name, found in made.items():
            yield from (f"{name}: {one}" for one in found[self.noted[name] :])
            self.noted[name] = len(found)

    @property
    def is_withheld(self) -> bool:
        """The board cannot reach the queue manager yet."""
        return self.settings.mishap in WITHHELD and not self.mishaps.made

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
            self.mishaps.made += 1

    def _complete(self) -> bool:
        settled = self.progress.accepted == self.progress.stored == self.settings.messages
        starts = self.progress.starts
        ready = self.progress.started and starts.count > 0 and not starts.unseen and self.manager.listening()
        settled = settled and self.commands.executed(self.progress.commanded)
        return ready and settled and all(victim.finished for victim in self.victims.values())

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

    async def judge(self, received: list[Received]) -> None:
        """Compare what the queue held of this board, which is off, with its ledger."""
        figures = self.result
        content = await elsewhere(lambda: self.board.read_file(sensor.LEDGER))
        (self.folder / sensor.LEDGER).write_bytes(content)
        ledger = read_ledger(content)
        self.progress.read(self.board.log)
        failed = {entry.k for entry in ledger if entry.message_id in self.progress.failed}
        gone = self.mishaps.gone
        held = frozenset(failed) | await self.mishaps.held() | gone
        erased = Erased(held, frozenset(self.progress.bases), frozenset(self.progress.claimed - failed - gone))
        result = compare(self.settings.messages, ledger, received, erased)
        self.commands.judge(result, read_ledger(await elsewhere(lambda: self.board.read_file(sensor.COMMANDS))))
        result.forgotten = await self.mishaps.forgotten(entry.k for entry in ledger)
        self.in_queue = result.received
        figures.comparison, figures.found_at_restart = result, sum(entry.found for entry in ledger)
        if figures.failure is not None:
            result.missing = [k for k in result.lost if k not in result.false]
            result.lost = result.false
        figures.wear = self.board.wear()
        figures.failure = figures.failure or self.progress.starts.wrong or None

    async def judge_traffic(self) -> None:
        """Hold what went over the link against the specification. Raises CampaignFailed if it cannot be read."""
        if self.tap is not None:
            self.tap.close()
            if self.tap.failure:
                raise CampaignFailed(self.tap.failure)
        if not is_captured(self.settings, self.board) or len(self.fleet) > 1:
            return
        try:
            self.result.traffic = await asyncio.to_thread(judge, ORDACK, self.folder)
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

    def fail(self, error: Exception) -> None:
        """It has ended early, by this."""
        self.result.fail(error, self.logs())

    def keep(self) -> None:
        """Write figures and logs beside ledger and store."""
        self.result.artefacts = str(self.folder)
        (self.folder / "figures.json").write_text(self.result.to_json())
        (self.folder / "board.log").write_text(self.board.log.tail(sys.maxsize))
        (self.folder / "queue_manager.log").write_text(self.manager.log.tail(sys.maxsize))

    def fill(self) -> None:
        """What was made of the plan, and how much went over the link."""
        figures, progress, victims = self.result, self.progress, self.victims
        figures.timeline = self.timeline
        figures.core, figures.cores, figures.told = progress.core, sorted(progress.cores), sorted(progress.told)
        figures.mishaps, figures.commands = self.mishaps.made, len(self.commands.given)
        figures.cuts = self.schedule.made
        figures.power = [asdict(one) for one in victims[BOARD].made if one.planned.way in (*KILLS, DIP)]
        unseen = sum(way in KILLS for way in progress.starts.unseen)
        figures.board_kills, figures.manager_kills = victims[BOARD].ended - unseen, victims[MANAGER].ended
        figures.others = dict(others(one.planned for victim in victims.values() for one in victim.made))
        figures.unanswered = self.names.unanswered if self.names else 0
        figures.connections, figures.sessions = self.schedule.connections, progress.sessions
        figures.refused = self.proxy.refused
        figures.bytes_up, figures.bytes_down = self.schedule.forwarded.values()

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


def others(kills: Iterable[Kill]) -> Counter[str]:
    """How often something else befalls an end than the end of a life, by end and way."""
    return Counter(f"{kill.victim}: {kill.way}" for kill in kills if kill.way not in KILLS)
