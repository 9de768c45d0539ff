"""Campaign over the whole way, with kills: board, `ordack serve`, `ordack export`, `ordack pipeline ingest`, table.

    python -m hil.pipeline --messages 2000 --kills 5 --seed 7 [--json]

Everything is seen from outside, as in campaign.py. A kill comes at a planned count: of readings accepted for the board,
stored for the queue manager, and in segments for the export. The ingest is killed after so many steps of its life. Each
file of rows, and each entry in the log of the table, a Delta Lake, is a step. So kills hit the start, and before and
between these. In turn Python and Java are killed together, or Python alone, when Java lives on for a moment.

Exit status: 0 every reading is in the table once and in order, nothing is left elsewhere, and every kill was made; 1
not so; 2 wrong use; 3 the rig failed.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from ordack.pipeline import segments
from rich.console import Console

from hil import sensor
from hil.boards import ROOT, Board, BoardMissing, Log, Mortal, Process
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.part import LISTENING_DEADLINE_S
from hil.progress import Progress
from hil.queue_manager import QUEUE, CampaignFailed, QueueManager
from hil.quick_spark import INTERPRETED, QUICK_JVM
from hil.report import RIG_FAILED, Comparison, Received, Run, compare, read_ledger
from hil.scenario import ORDACK, plan_kills
from hil.targets import open_board
from hil.victims import TICK_S, Victim, elsewhere

ARTEFACTS = ROOT / "build" / "pipeline"
SEGMENTS, TABLE = "segments", "table"
LOG = "_delta_log"
STEPS_MAX = 6  # in a life of the ingest until it is killed: about three batches
PATIENCE_S = 300.0  # a Spark session on a busy machine takes its time
STATUS_DEADLINE_S = 60.0
LOOK_S = 0.1  # between two looks at the table
QUICK_START = tuple(  # no life of it is long
    f"{name}={value}" for name, value in ({"spark.driver.extraJavaOptions": QUICK_JVM} | INTERPRETED).items()
)


@dataclass(frozen=True)
class Settings:
    """What a campaign is to do. `kills`: of the board, of the queue manager, and of the export; `ingest_kills`: of the
    ingest. `rows`: messages in a segment, `batch`: segments in a micro-batch, at most.
    """

    messages: int = 2000
    kills: int = 5
    ingest_kills: int = 5
    seed: int = 1
    board: str = "unix"
    max_size: int = 2048
    rows: int = 25
    batch: int = 4
    master: str = "local[2]"
    spark: tuple[str, ...] = QUICK_START
    deadline_s: float = 1800.0
    ordack: tuple[str, ...] = ORDACK
    artefacts: Path = ARTEFACTS


class Service(Mortal):
    """An `ordack` command that runs until it is killed, as a process group of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._process: Process | None = None
        self.life = 0
        self.log = Log()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def has_children(self) -> bool:
        """Whether it has started another process: an ingest, that heeds signals by then, has Java started."""
        if self._process is None or not self._process.alive:
            return False
        return bool(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text())

    def power_up(self) -> None:
        self.life += 1
        self._process = Process(self._command, self.log, self.life, self._folder)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        if self._process is not None:
            self._process.kill()

    def kill_first(self) -> None:
        """SIGKILL to the process that was started, and not to those that it has started: they notice."""
        if self._process is not None:
            self._process.kill_alone()

    def stop(self) -> None:
        """SIGTERM. Raises CampaignFailed if it does not end cleanly."""
        if self._process is not None:
            self._process.terminate()
            deadline = time.monotonic() + STATUS_DEADLINE_S
            while self._process.alive and time.monotonic() < deadline:
                time.sleep(TICK_S)
            status = self._process.status
            self._process.kill()
            if status != 0:
                raise CampaignFailed(f"`{' '.join(self._command)}` ended with status {status} after SIGTERM")


@dataclass
class Table:
    """What can be seen of the table and of its making, without Spark."""

    folder: Path
    rows: int = 0
    _opened: DeltaTable | None = None

    def steps(self) -> int:
        """Files of rows and entries of the log that were finished."""
        log = self.folder / LOG
        return len([*self.folder.glob("part-*")]) + sum(name.suffix == ".json" for name in log.glob("[0-9]*"))

    def count(self) -> int:
        """The rows that belong to the table."""
        if self._opened is not None:
            self._opened.update_incremental()
        elif DeltaTable.is_deltatable(str(self.folder)):
            self._opened = DeltaTable(self.folder)
        self.rows = 0 if self._opened is None else self._opened.count()
        return self.rows

    def read(self) -> list[Received]:
        """The messages, in the order of their arrival in the queue."""
        columns = ["lookup_id", "label", "source_queue_manager", "message_id", "delivery", "message_class", "body",
                   "tx_sequence_ordinal", "tx_sequence_time_stamp", "tx_sequence_number"]  # fmt: skip
        whole = DeltaTable(self.folder).to_pyarrow_table(columns=columns).sort_by("lookup_id")
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

    def files(self) -> set[str]:
        """Names of the files that belong to the table."""
        return {file.rpartition("/")[2] for file in DeltaTable(self.folder).file_uris()}

    def orphans(self) -> int:
        """Files of rows in the folder that do not belong to the table: of batches that were killed."""
        return len({path.name for path in self.folder.glob("part-*")} - self.files())


class IngestVictim:
    """The ingest, killed after planned numbers of steps in each life."""

    def __init__(self, end: Service, table: Table, seed: int, kills: int) -> None:
        rng = random.Random(f"kills/ingest/{seed}")
        self.end = end
        self.kills = 0
        self.alone = 0
        self.plan = [rng.randrange(STEPS_MAX + 1) for _ in range(kills)]
        self._alone = [(seed + turn) % 2 == 0 for turn in range(kills)]
        self._table = table
        self._begun = 0

    @property
    def finished(self) -> bool:
        return self.kills == len(self.plan)

    def start(self) -> None:
        self._begun = self._table.steps()
        self.end.power_up()

    def tick(self, complete: bool) -> None:
        """Kill if it is time, and start again. `complete`: nothing is left to be done, so no step will come. Raises
        CampaignFailed if it ended by itself.
        """
        if not self.end.alive:
            raise CampaignFailed("the ingest ended by itself")
        if not self.finished and (complete or self._table.steps() - self._begun >= self.plan[self.kills]):
            if self._alone[self.kills]:
                self.alone += 1
                self.end.kill_first()
            else:
                self.end.kill()
            self.kills += 1
            self.start()


@dataclass
class Figures(Run):
    """How a campaign went."""

    seed: int
    messages: int
    kills: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    segments: int = 0
    files: int = 0
    orphans: int = 0
    left: int = 0
    comparison: Comparison | None = None
    failure: str | None = None
    rig_failed: bool = False
    artefacts: str | None = None

    @property
    def ok(self) -> bool:
        return not self.shortcomings()

    def shortcomings(self) -> list[str]:
        """What is not as it should be; nothing if all is well."""
        reasons = [] if self.failure is None else [self.failure]
        if self.comparison is None:
            return [*reasons, "there is no verdict"]
        if self.comparison.faults or self.comparison.once != self.messages:
            reasons.append(f"{self.comparison.line()}: {self.comparison.faults}")
        if self.left:
            reasons.append(f"{self.left} messages are still in queues")
        reasons += [f"{self.kills.get(name, 0)} of {asked} kills of the {name} were made"
                    for name, asked in self.asked.items() if self.kills.get(name, 0) != asked]  # fmt: skip
        return reasons

    def to_json(self) -> str:
        values = {**vars(self), "ok": self.ok, "comparison": self.comparison and vars(self.comparison)}
        return json.dumps(values)

    def line(self) -> str:
        assert self.comparison is not None
        killed = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        text = f"{self.comparison.line()}; {self.segments} segments, {self.files} files of the table, {self.orphans} "
        return text + f"orphans beside it; kills: {killed}; {self.seconds:.1f} s"


class PipelineCampaign:
    """One run: the parts while they live."""

    def __init__(self, settings: Settings, folder: Path, board: Board) -> None:
        ordack = settings.ordack
        self.settings = settings
        self.folder = folder
        self.board = board
        self.manager = QueueManager(ordack, folder)
        self.export = Service([*ordack, "export", QUEUE, "--store", "store", "--to", SEGMENTS, "--follow", "--json",
                               "--rows", str(settings.rows), "--age", "0.2"], folder)  # fmt: skip
        self.ingest = Service(
            [*ordack, "pipeline", "ingest", SEGMENTS, "--to", TABLE, "--continuous", "--interval", "0.1", "--json",
             "--segments-max", str(settings.batch), "--master", settings.master,
             *(word for setting in settings.spark for word in ("--conf", setting))],
            folder,
        )  # fmt: skip
        self.table = Table(folder / TABLE)
        self.progress = Progress()
        self.victims = {
            name: Victim(name, end, plan_kills(settings.seed, name, settings.kills, settings.messages))
            for name, end in (("board", self.board), ("queue manager", self.manager), ("export", self.export))
        }
        self.ingest_victim = IngestVictim(self.ingest, self.table, settings.seed, settings.ingest_kills)

    def exported(self) -> int:
        """How many messages are in segments, by the last segment's name."""
        found = segments.segments(self.folder / SEGMENTS)
        return max((segment.last_lookup_id for segment in found), default=0)

    async def run(self, figures: Figures) -> None:
        """From the first reading to the last row. Raises CampaignFailed."""
        settings = self.settings
        await self.manager.command("init")
        await self.manager.command("queue", "create", QUEUE, "--transactional")
        self.manager.power_up()
        await self._until(self.manager.listening, "the queue manager does not say that it is listening")
        host, port = self.manager.address
        await elsewhere(lambda: self.board.start({
            "outbox": "outbox", "queue": f"DIRECT=TCP:{host}\\private$\\{QUEUE}", "seed": settings.seed,
            "count": settings.messages, "max_size": settings.max_size, "ahead": 64, "host": host, "port": port,
            "campaign": self.progress.campaign,
        }))  # fmt: skip
        self.export.power_up()
        marker = self.folder / SEGMENTS / segments.MARKER
        await self._until(marker.exists, "the export does not make its folder")
        self.ingest_victim.start()
        await self._keep_killing()
        await asyncio.to_thread(self._stop)
        ledger = read_ledger(await elsewhere(lambda: self.board.read_file(sensor.LEDGER)))
        figures.comparison = compare(settings.messages, ledger, self.table.read())
        figures.orphans, figures.files = self.table.orphans(), len(self.table.files())
        figures.segments = len(segments.segments(self.folder / SEGMENTS))
        listed = await self.manager.command("queue", "list", "--system", "--json")
        figures.left = sum(json.loads(line)["messages"] for line in listed.splitlines())

    def _stop(self) -> None:
        self.board.kill()
        self.ingest.stop()
        try:  # none of the lives before has come to its end
            self.ingest.log.wait_for(lambda text: text.startswith('{"table"'), STATUS_DEADLINE_S)
        except TimeoutError:
            raise CampaignFailed("the ingest has not told, at its end, what it has put into the table") from None
        self.export.stop()
        self.manager.stop()

    async def _until(self, ready: Any, complaint: str) -> None:
        deadline = time.monotonic() + LISTENING_DEADLINE_S * 4
        while not ready():
            if time.monotonic() > deadline:
                raise CampaignFailed(complaint)
            await asyncio.sleep(TICK_S)

    async def _keep_killing(self) -> None:
        begun = changed = looked = time.monotonic()
        before: tuple[int, ...] = ()
        exported = 0
        while True:
            now = time.monotonic()
            self.progress.read(self.board.log)
            if self.progress.error is not None:
                raise CampaignFailed(f"the board gave up: {self.progress.error}")
            if self.progress.starts.wrong:
                raise CampaignFailed(self.progress.starts.wrong)
            if now > looked + LOOK_S:
                looked = now
                exported = self.exported()
                self.table.count()
            counts = {"board": self.progress.accepted, "queue manager": self.progress.stored, "export": exported}
            for name, victim in self.victims.items():
                victim.tick(counts[name], now)
            complete = self.table.rows >= self.settings.messages
            self.ingest_victim.tick(complete)
            settled = self.progress.accepted == self.progress.stored == self.settings.messages
            if complete and settled and self.ingest_victim.finished and all(
                    victim.finished for victim in self.victims.values()):  # fmt: skip
                break
            figures = (*counts.values(), self.table.steps(), self.ingest_victim.kills)
            if figures != before:
                before, changed = figures, now
            if now > changed + PATIENCE_S or now > begun + self.settings.deadline_s:
                raise CampaignFailed(
                    f"no progress for {now - changed:.0f} s of {now - begun:.0f} s: {counts}, "
                    f"{self.table.rows} rows in the table"
                )
            await asyncio.sleep(TICK_S)
        # The last lives, too, have to show that they go on: with nothing to do they must wait, not end.
        await self._until(lambda: self.manager.listening() and self.export.alive and self.ingest.has_children(),
                          "a service does not begin again")  # fmt: skip

    def close(self) -> None:
        """Kill every process. Raises OSError."""
        with ExitStack() as parts:
            for end in (self.manager.close, self.ingest.kill, self.export.kill, self.board.close):
                parts.callback(end)

    def logs(self) -> str:
        """The ends of all logs."""
        ends = {"board": self.board.log, "queue manager": self.manager.log, "export": self.export.log,
                "ingest": self.ingest.log}  # fmt: skip
        return "\n".join(f"--- the last lines of the {name}:\n{log.tail()}" for name, log in ends.items())


async def run_campaign(settings: Settings) -> Figures:
    """Run a campaign; its figures, whether it went well or not. Keeps everything below `settings.artefacts` if it did
    not. Raises BoardMissing, and OSError.
    """
    figures = Figures(settings.seed, settings.messages)
    figures.asked = {**dict.fromkeys(("board", "queue manager", "export"), settings.kills),
                     "ingest": settings.ingest_kills}  # fmt: skip
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
        figures.kills = {**{name: victim.kills for name, victim in campaign.victims.items()},
                         "ingest": campaign.ingest_victim.kills}  # fmt: skip
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
    settings = Settings(chosen.messages, chosen.kills, chosen.kills, seed, chosen.board)
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
    return 0 if figures.ok else RIG_FAILED if figures.rig_failed else 1


if __name__ == "__main__":
    sys.exit(main())
