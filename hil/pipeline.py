"""Campaign over the whole pipeline, with kills: board, `serve`, `export`, `ingest`, table.

    python -m hil.pipeline --messages 2000 --kills 5 --seed 7 [--json]

The campaign observes only from outside, as campaign.py. A kill comes at a planned count of readings: accepted for the
board, stored for the queue manager, in segments for the export, in the Delta Lake table for the ingest. Kills of the
ingest alternate: Python and Java together, or Python alone, while Java lives on for a moment.

Exit status: 0 every reading is in the table once and in order, nothing is left elsewhere, and every kill was made; 1
not so; 2 wrong use; 3 the rig failed.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable
from ordack.pipeline import segments
from rich.console import Console

from hil import sensor
from hil.boards import POWER, RESET, ROOT, Board, BoardMissing
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.part import LISTENING_DEADLINE_S
from hil.progress import Progress
from hil.queue_manager import QUEUE, CampaignFailed, QueueManager, Service
from hil.quick_spark import INTERPRETED, QUICK_JVM
from hil.report import Received, Run, compare, read_ledger
from hil.scenario import ORDACK, plan_kills
from hil.targets import open_board
from hil.victims import TICK_S, Victim, elsewhere

ARTEFACTS = ROOT / "build" / "pipeline"
SEGMENTS, TABLE = "segments", "table"
KILLED = ("board", "queue manager", "export", "ingest")
PATIENCE_S = 300.0  # a Spark session starts slowly on a busy machine
STATUS_DEADLINE_S = 60.0
LOOK_S = 0.1  # between two looks at the table
QUICK_START = tuple(  # because each life is short
    f"{name}={value}" for name, value in ({"spark.driver.extraJavaOptions": QUICK_JVM} | INTERPRETED).items()
)
EXPORT = (
    "table",
    "export",
    QUEUE,
    "--store",
    "store",
    "--to",
    SEGMENTS,
    "--follow",
    "--json",
    "--rows",
    "25",
    "--age",
    "0.2",
)
INGEST = ("table", "ingest", SEGMENTS, "--to", TABLE, "--continuous", "--interval", "0.1", "--json")
SPARK = ("--master", "local[2]", *(word for one in QUICK_START for word in ("--conf", one)))


@dataclass(frozen=True)
class Settings:
    """The settings of a campaign. `kills`: for each of `KILLED`."""

    messages: int = 2000
    kills: int = 5
    seed: int = 1
    board: str = "unix"
    max_size: int = 2048
    deadline_s: float = 1800.0
    ordack: tuple[str, ...] = ORDACK
    artefacts: Path = ARTEFACTS


def rows_of(table: Path) -> int:
    """The number of the table's rows, read without Spark."""
    return DeltaTable(table).count() if DeltaTable.is_deltatable(str(table)) else 0


def messages_of(table: Path) -> list[Received]:
    """The messages in the table, in the order of their arrival in the queue."""
    columns = ["lookup_id", "label", "source_queue_manager", "message_id", "delivery", "message_class", "body"]
    columns += ["tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number"]
    whole = DeltaTable(table).to_pyarrow_table(columns=columns).sort_by("lookup_id")
    return [
        Received.with_body(
            row["label"],
            row["body"],
            source=row["source_queue_manager"],
            message_id=row["message_id"],
            delivery=row["delivery"],
            message_class=row["message_class"],
            tx=(row["tx_sequence_time_stamp"] << 32 | row["tx_sequence_ordinal"], row["tx_sequence_number"]),
        )
        for row in whole.to_pylist()
    ]


@dataclass
class Figures(Run):
    """The results of a campaign. left: messages still in queues."""

    kills: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    segments: int = 0
    left: int = 0

    def shortcomings(self) -> list[str]:
        """As Run.shortcomings."""
        reasons = super().shortcomings()
        if self.comparison is None:
            return [*reasons, "there is no verdict"]
        if self.comparison.faults or self.comparison.once != self.messages:
            reasons.append(f"{self.comparison.line()}: {self.comparison.faults}")
        if self.left:
            reasons.append(f"{self.left} messages are still in queues")
        for name, asked in self.asked.items():
            if self.kills.get(name, 0) != asked:
                reasons.append(f"{self.kills.get(name, 0)} of {asked} kills of the {name} were made")
        return reasons

    def line(self) -> str | None:
        """As Run.line."""
        killed = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        line = super().line()
        return line and f"{line}; {self.segments} segments; kills: {killed}; {self.seconds:.1f} s"


class PipelineCampaign:
    """One run: its parts while they live."""

    def __init__(self, settings: Settings, folder: Path, board: Board) -> None:
        self.settings = settings
        self.folder = folder
        self.board = board
        self.manager = QueueManager(settings.ordack, folder)
        self.export = Service([*settings.ordack, *EXPORT], folder)
        self.ingest = Service([*settings.ordack, *INGEST, *SPARK], folder)
        self.table = folder / TABLE
        self.rows = 0
        self.progress = Progress()
        self.victims = {}
        for name, end in zip(KILLED, (self.board, self.manager, self.export, self.ingest), strict=True):
            ways = (POWER, RESET) if end is self.ingest else (POWER,)
            plan = plan_kills(settings.seed, name, settings.kills, settings.messages, ways)
            self.victims[name] = Victim(name, end, plan)

    async def run(self, figures: Figures) -> None:
        """Run from the first reading to the last row. Raises CampaignFailed."""
        settings = self.settings
        await self.manager.command("init")
        await self.manager.command("queue", "create", QUEUE, "--transactional")
        self.manager.power_up()
        await self._until(self.manager.listening, "the queue manager does not say that it is listening")
        host, port = self.manager.address
        link = {"host": host, "port": port, "queue": f"DIRECT=TCP:{host}\\private$\\{QUEUE}", "outbox": "outbox"}
        sizes = {"seed": settings.seed, "count": settings.messages, "max_size": settings.max_size, "ahead": 64}
        await elsewhere(lambda: self.board.start({**link, **sizes, "campaign": self.progress.campaign}))
        self.export.power_up()
        await self._until((self.folder / SEGMENTS / segments.MARKER).exists, "the export does not make its folder")
        self.ingest.power_up()
        await self._keep_killing()
        await asyncio.to_thread(self._stop)
        ledger = read_ledger(await elsewhere(lambda: self.board.read_file(sensor.LEDGER)))
        figures.comparison = compare(settings.messages, ledger, messages_of(self.table))
        figures.segments = len(segments.segments(self.folder / SEGMENTS))
        listed = await self.manager.command("queue", "list", "--json")
        figures.left = sum(json.loads(line)["messages"] for line in listed.splitlines())

    def _stop(self) -> None:
        self.board.kill()
        self.ingest.stop()
        try:  # no earlier life has come to its end
            self.ingest.log.wait_for(lambda text: text.startswith('{"table"'), STATUS_DEADLINE_S)
        except TimeoutError:
            raise CampaignFailed("the ingest has not told, at its end, what it has put into the table") from None
        self.export.stop()
        self.manager.stop()

    async def _until(self, ready: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + LISTENING_DEADLINE_S * 4
        while not ready():
            if time.monotonic() > deadline:
                raise CampaignFailed(complaint)
            await asyncio.sleep(TICK_S)

    async def _keep_killing(self) -> None:
        begun = changed = looked = time.monotonic()
        before: tuple[int, ...] = ()
        counts = dict.fromkeys(self.victims, 0)
        while not self._complete():
            now = time.monotonic()
            self.progress.read(self.board.log)
            if failed := self.progress.error or self.progress.starts.wrong:
                raise CampaignFailed(f"the board gave up: {failed}")
            counts["board"], counts["queue manager"] = self.progress.accepted, self.progress.stored
            if now > looked + LOOK_S:
                looked = now
                found = segments.segments(self.folder / SEGMENTS)
                counts["export"] = max((segment.last_lookup_id for segment in found), default=0)
                counts["ingest"] = self.rows = rows_of(self.table)
            for name, victim in self.victims.items():
                victim.tick(counts[name], now)
            figures = (*counts.values(), sum(victim.kills for victim in self.victims.values()))
            if figures != before:
                before, changed = figures, now
            if now > changed + PATIENCE_S or now > begun + self.settings.deadline_s:
                raise CampaignFailed(f"no progress for {now - changed:.0f} s: {counts}")
            await asyncio.sleep(TICK_S)
        # The last lives must also go on: without work they must wait, not end.
        complaint = "a service does not begin again"
        await self._until(lambda: self.manager.listening() and self.export.alive, complaint)
        await self._until(self.ingest.has_children, complaint)

    def _complete(self) -> bool:
        counts = self.progress.accepted, self.progress.stored, self.rows
        return all(one.finished for one in self.victims.values()) and min(counts) >= self.settings.messages

    def close(self) -> None:
        """Kill every process. Raises OSError."""
        with ExitStack() as parts:
            for end in (self.manager.close, self.ingest.kill, self.export.kill, self.board.close):
                parts.callback(end)

    def logs(self) -> str:
        """The last lines of all logs."""
        logs = {"board": self.board.log, "queue manager": self.manager.log}
        logs |= {"export": self.export.log, "ingest": self.ingest.log}
        return "\n".join(f"--- the last lines of the {name}:\n{log.tail()}" for name, log in logs.items())


async def run_campaign(settings: Settings) -> Figures:
    """Run a campaign; returns its figures, even after a failure. A failed campaign keeps its folder below
    `settings.artefacts`. Raises BoardMissing, and OSError."""
    figures = Figures(settings.seed, settings.messages, asked=dict.fromkeys(KILLED, settings.kills))
    begun = time.monotonic()
    with new_folder(settings.artefacts, f"seed-{settings.seed}") as (folder, keep):
        board = await elsewhere(lambda: open_board(settings.board, folder / "board"))
        campaign = PipelineCampaign(settings, folder, board)
        try:
            await campaign.run(figures)
        except (CampaignFailed, ValueError, KeyError, OSError, BoardMissing) as error:
            figures.fail(error, campaign.logs())
        finally:
            try:
                campaign.close()
            except OSError as error:
                figures.fail(error, campaign.logs())
        figures.seconds = time.monotonic() - begun
        figures.kills = {name: victim.kills for name, victim in campaign.victims.items()}
        if not figures.ok:
            keep()
            figures.artefacts = str(folder)
            (folder / "figures.json").write_text(figures.to_json())
            (folder / "logs.txt").write_text(campaign.logs())
        return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m hil.pipeline", description="From a board to a table, exactly once, through kills of everything."
    )
    parser.add_argument("--messages", type=int, default=defaults.messages, help="readings (default %(default)s)")
    parser.add_argument("--kills", type=int, default=defaults.kills, help="kills of each process (default %(default)s)")
    parser.add_argument("--seed", type=int, help="the same seed makes the same plan (default: a new one)")
    parser.add_argument("--board", default=defaults.board, help="as hil.campaign takes it (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="write the figures to standard output as one JSON object")
    chosen = parser.parse_args(arguments)
    if min(chosen.messages, chosen.kills + 1) < 1:
        parser.error("messages are 1 or more, kills 0 or more")
    seed = new_seed() if chosen.seed is None else chosen.seed
    settings = Settings(chosen.messages, chosen.kills, seed, chosen.board)
    console = Console(stderr=chosen.json, highlight=False, soft_wrap=True)
    console.print(f"seed {seed}: {settings.messages} messages, {settings.kills} kills of each of four processes")
    return ending(console, lambda: _obey(settings, console, chosen.json))


def _obey(settings: Settings, console: Console, as_json: bool) -> int:
    with console.status("from the board to the table"):
        figures = to_the_end(run_campaign(settings))
    for reason in figures.shortcomings():
        console.print(f"FAILED: {reason}", markup=False)
    if figures.artefacts:
        console.print(f"everything is kept in {figures.artefacts}; the seed is {settings.seed}", markup=False)
    if figures.comparison:
        console.print(figures.line(), markup=False)
    if as_json:
        print(figures.to_json())
    return figures.status


if __name__ == "__main__":
    sys.exit(main())
