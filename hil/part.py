"""One board's part of a campaign: running it, planned kills, judging its readings; and mishaps of its outbox or of the
store."""

import asyncio
import json
import subprocess
import sys
import time
from asyncio.subprocess import create_subprocess_exec
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from mqqb import confirm

from hil import scenario, sensor
from hil.boards import POWER, RESET, SENSOR, Board
from hil.faults import CutSchedule, FaultProxy
from hil.progress import Progress
from hil.queue_manager import QUEUE, CampaignFailed, QueueManager
from hil.report import Erased, Figures, Received, View, compare, read_ledger, read_received
from hil.traffic import CAPTURE, Tap, judge
from hil.victims import TICK_S, Victim, elsewhere

GUID = "6f726461636b2d63616d706169676e21"
"""Of a board whose GUID the program fixes."""
LISTENING_DEADLINE_S = 60.0
COUNT_INTERVAL_S = 1.0  # or COUNT_SHARE times the duration of a count, which costs processor time:
COUNT_SHARE = 10
FULL_BYTES = 16384
"""Of an outbox that is to be full, and as much as four of the largest bodies besides."""


@dataclass
class Mishaps:
    """The mishap of a campaign. made: how often it happened."""

    settings: scenario.Settings
    board: Board
    manager: QueueManager
    folder: Path
    made: int = 0
    erased: list[Path] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    def befall(self) -> None:
        """Apply the mishap to the switched-off board. A removed outbox is kept here for the verdict."""
        first, to = self.folder / "outbox-1", self.folder / f"outbox-{self.made + 1}"
        is_copied = self.settings.mishap == scenario.COPY
        with self.board.attended():
            try:
                self.board.erase("outbox", to)
            except FileNotFoundError:  # not made yet
                return
            if is_copied:
                self.board.put("outbox", first)
        if not is_copied or to != first:
            self.erased.append(to)
        self.made += 1

    async def restore(self) -> None:
        """Apply the mishap to the stopped queue manager. The messages since the backup are removed and kept here. The
        queue manager stays off as long as it has lived, in seconds, because each second took one of its sequences.
        Nobody restores a backup faster."""
        async with self.manager.using:
            if self.made:
                had = await self.readings("--peek")
                (self.folder / "store").rename(self.folder / f"store-{self.made}")
                await self.manager.command("store", "restore", "backup")
                self.gone |= had - await self.readings("--peek")
                await asyncio.sleep(self.manager.life)
            else:
                await self.manager.command("store", "backup", "backup")
        self.made += 1

    async def readings(self, *words: str) -> set[int]:
        """The readings in the queue."""
        received = read_received(await self.manager.command("receive", QUEUE, "--json", *words))
        return {message.k for message in received if message.k}

    async def held(self) -> frozenset[int]:
        """The readings that waited in erased outboxes. Includes failed readings that the board could not yet report
        before the power cut."""
        gone = (confirm.WAITING, confirm.DEAD_LETTERED, confirm.DISCARDED)
        rescued = [await self.rescued(folder) for folder in self.erased]
        return frozenset(k for states in rescued for k, state in states.items() if state in gone)

    async def rescued(self, folder: Path) -> dict[int, str]:
        """The states of the readings in a local outbox."""
        process = await create_subprocess_exec(
            *self.settings.ordack, "board", "rescue", folder, "--json", stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        messages = [said for said in map(json.loads, output.decode().splitlines()) if "state" in said]
        return {int(said["label"].removeprefix("reading ")): said["state"] for said in messages}

    async def forgotten(self, accepted: Iterable[int]) -> list[int]:
        """The accepted readings that were to stay in the outbox, but are missing."""
        keeps = self.settings.keeps
        if not keeps:
            return []
        folder = self.folder / "outbox"
        try:
            await elsewhere(lambda: self.board.erase("outbox", folder))
        except FileNotFoundError:  # not made yet
            return []
        kept = await self.rescued(folder)
        return [k for k in accepted if k % keeps == 0 and k not in kept]


@dataclass
class Part:
    """One board's part of a campaign. fleet: the parts of all boards of this queue manager, including this one. `close`
    leaves nothing behind, at any time."""

    settings: scenario.Settings
    board: Board
    manager: QueueManager
    schedule: CutSchedule
    proxy: FaultProxy
    folder: Path
    mishaps: Mishaps
    result: Figures
    tap: Tap | None
    fleet: "list[Part]"
    progress: Progress = field(default_factory=Progress)
    victims: dict[str, Victim] = field(default_factory=dict)
    in_queue: int = 0
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
            "restarts": sum(victim.kills for victim in self.victims.values()),
        }

    def totals(self) -> dict[str, int]:
        """The targets of the live figures."""
        plan = self.settings.plan or ()
        counts = dict.fromkeys(("sent", "stored", "acknowledged"), self.settings.messages)
        return {
            **counts,
            "cuts": len(scenario.cuts_of(plan)),
            "restarts": len(scenario.kills_of(plan, scenario.BOARD, scenario.MANAGER)),
        }

    async def count_queue(self) -> None:
        """Keep `in_queue` up to date through `ordack queue list`; the mean of several boards."""
        while True:
            begun = time.monotonic()
            async with self.manager.using:
                listed = await self.manager.command("queue", "list", "--json")
            queues = {queue["name"]: queue for queue in map(json.loads, listed.splitlines())}
            for campaign in self.fleet:
                campaign.in_queue = queues[QUEUE]["messages"] // len(self.fleet)
            await asyncio.sleep(max(COUNT_INTERVAL_S, COUNT_SHARE * (time.monotonic() - begun)))

    async def start_manager(self) -> None:
        """Start the queue manager for the whole fleet. Raises CampaignFailed."""
        await self.manager.command("init")
        await self.manager.command("queue", "create", QUEUE, "--transactional")
        self.manager.links = [word for campaign in self.fleet for word in campaign.proxy.serve_arguments()]
        if self.tap is None and is_captured(self.settings):
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
        """Start the board, keep killing as planned, and return once everything is acknowledged and all faults are made.

        Also returns when all is acknowledged with cuts still missing; the verdict then says so. Raises CampaignFailed.
        """
        settings = self.settings
        await self.proxy.open(self.manager.address)
        link = self.proxy.board_settings(self.board.host)
        if settings.mishap in (scenario.OFFLINE, scenario.FULL):
            self.manager.kill()
        if settings.mishap == scenario.FULL:
            link = {**link, "capacity": FULL_BYTES + 4 * (settings.max_size or 0)}
        application = {
            "campaign": self.progress.campaign,
            "outbox": "outbox",
            "queue": f"DIRECT=TCP:{self.manager.address[0]}\\private$\\{QUEUE}",
            "seed": settings.seed,
            "count": settings.messages,
            "max_size": settings.max_size,
            "ahead": settings.ahead,
            "erasures": settings.mishap in scenario.BEFALL,
            "guid": self.guid or (GUID if settings.mishap == scenario.ERASE_FIXED else ""),
        }
        application |= settings.of_outbox()
        await elsewhere(lambda: self.board.deploy({**application, **link, **self.tls}))
        self.result.description, self.result.modules = self.board.describe(), self.board.modules
        self.victims[scenario.BOARD].arm(0, time.monotonic(), is_on=False)
        await elsewhere(self.board.power_up)
        counting = asyncio.create_task(self.count_queue()) if self.fleet[0] is self else None
        try:
            await self._keep_killing(view, counting)
        finally:
            if counting is not None:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)

    async def _keep_killing(self, view: View, counting: "asyncio.Task[None] | None") -> None:
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
            if counting is not None and counting.done():
                await counting
            if self.progress.starts.wrong:
                raise CampaignFailed(self.progress.starts.wrong)
            victim = self.victims[scenario.BOARD]
            # After a reset, wait for the board to start before the next kill: one start would confirm both.
            if not (victim.idle and RESET in self.progress.starts.unseen):
                victim.tick(self.progress.accepted, now)
            if self.is_withheld:
                await self._relent(victim)
            else:
                stored = sum(campaign.progress.stored for campaign in self.fleet)
                self.victims[scenario.MANAGER].tick(stored // len(self.fleet), now)
            figures = self.figures()
            view.update(figures)
            if figures != before:
                before, changed = figures, now
            if now > changed + patience_s:
                raise CampaignFailed(f"no progress for {patience_s:g} s: {self._lacking(figures)}")
            if now > begun + deadline_s:
                raise CampaignFailed(f"not done within {deadline_s:g} s: {self._lacking(figures)}")
            await asyncio.sleep(TICK_S)

    @property
    def is_withheld(self) -> bool:
        """Is the board still kept from the queue manager?"""
        return self.settings.mishap in scenario.WITHHELD and not self.mishaps.made

    async def _relent(self, victim: Victim) -> None:
        """When the board holds all readings, or as many as fit: restart it once more, and lift the restriction."""
        waits = self.progress.accepted == self.settings.messages and victim.finished
        if self.settings.mishap == scenario.FULL:
            waits = self.progress.full and victim.idle  # the other kills come later
        if waits:
            self.progress.starts.end(self.board.life, POWER)
            await elsewhere(self.board.kill)
            await elsewhere(self.board.power_up)
            self.manager.power_up()
            self.mishaps.made += 1

    def _complete(self) -> bool:
        settled = self.progress.accepted == self.progress.stored == self.settings.messages
        starts = self.progress.starts
        ready = self.progress.started and starts.count > 0 and not starts.unseen and self.manager.listening()
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
        """Switch everything off; returns the queue's messages."""
        for campaign in self.fleet:
            await elsewhere(campaign.board.kill)
        self.manager.stop()
        return read_received(await self.manager.command("receive", QUEUE, "--all", "--json"))

    async def judge(self, received: list[Received]) -> None:
        """Compare this board's messages in the queue with its ledger. The board is off."""
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
        result.forgotten = await self.mishaps.forgotten(entry.k for entry in ledger)
        self.in_queue = result.received
        figures.comparison, figures.found_at_restart = result, sum(entry.found for entry in ledger)
        if figures.failure is not None:
            result.missing = [k for k in result.lost if k not in result.false]
            result.lost = result.false
        figures.failure = figures.failure or self.progress.starts.wrong or None

    async def judge_traffic(self) -> None:
        """Check the captured traffic against the specification. Raises CampaignFailed if it is unreadable."""
        if self.tap is not None:
            self.tap.close()
            if self.tap.failure:
                raise CampaignFailed(self.tap.failure)
        if not is_captured(self.settings) or len(self.fleet) > 1:
            return
        try:
            self.result.traffic = await asyncio.to_thread(judge, scenario.ORDACK, self.folder)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise CampaignFailed(f"the capture of the link cannot be judged: {error}") from None

    async def close(self) -> None:
        """Kill every process and drop every connection, even if one of them fails, such as a silent relay. Raises
        OSError."""
        async with AsyncExitStack() as parts:  # closed in reverse order
            parts.push_async_callback(self.proxy.close)
            parts.callback(self.manager.close)
            parts.push_async_callback(elsewhere, self.board.close)

    def fail(self, error: Exception) -> None:
        """End the part early with this error."""
        self.result.fail(error, self.logs())

    def keep(self) -> None:
        """Write figures and logs beside ledger and store."""
        self.result.artefacts = str(self.folder)
        (self.folder / "figures.json").write_text(self.result.to_json())
        (self.folder / "board.log").write_text(self.board.log.tail(sys.maxsize))
        (self.folder / "queue_manager.log").write_text(self.manager.log.tail(sys.maxsize))

    def fill(self) -> None:
        """Record the executed faults and the traffic."""
        figures, progress, victims = self.result, self.progress, self.victims
        figures.cuts, figures.accepted, figures.acknowledged = self.schedule.made, progress.accepted, progress.stored
        figures.core, figures.told, figures.mishaps = progress.core, sorted(progress.told), self.mishaps.made
        figures.at_bytes = victims[scenario.BOARD].at_bytes
        figures.board_kills = victims[scenario.BOARD].kills - len(progress.starts.unseen)
        figures.manager_kills = victims[scenario.MANAGER].kills
        figures.connections, figures.sessions = self.schedule.connections, progress.sessions
        figures.refused = self.proxy.refused
        figures.bytes_up, figures.bytes_down = self.schedule.forwarded.values()

    def logs(self) -> str:
        """The last lines of both logs."""
        return "\n".join(
            f"--- the last lines of the {name}:\n{log.tail() or '(nothing)'}"
            for name, log in (("board", self.board.log), ("queue manager", self.manager.log))
        )


def is_captured(settings: scenario.Settings) -> bool:
    """Is the traffic captured and judged? Not if an erased or restored folder of either end repeats numbers in its new
    life."""
    return (
        settings.application == SENSOR
        and not settings.tls
        and settings.mishap not in (*scenario.BEFALL, scenario.RESTORE)
    )
