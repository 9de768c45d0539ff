"""The campaign: a board sends readings to a queue manager while the link between them is cut and both are killed.

    python -m hil.campaign --messages 1000 --cuts 50 --kills 5 --seed 7 [--board unix] [--board NAME ...] [--json]

With several boards all send into one queue at once. Each has a plan of its own, by the seed and its place in the line;
the queue manager has that of the first, by the mean of what all have stored.
Everything is seen from outside: the queue manager through its command line, the board through its output and its
ledger file, the link through the fault proxy. Exit status: 0 every reading is in the queue once and in order and every
fault asked for was made; 1 not so; 2 wrong use; 3 the rig failed, a switch or a port of a board.
"""

import argparse
import asyncio
import os
import shlex
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from hil.boards import Board, BoardMissing
from hil.commands import GUID, Commands
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.faults import CutSchedule, FaultProxy, TcpFaultProxy
from hil.machines import EMULATED, WITHOUT_INBOX
from hil.mishaps import NEEDED, Mishaps
from hil.name_server import NameServer
from hil.part import Part, is_captured, others
from hil.progress import Starts
from hil.queue_manager import CampaignFailed, QueueManager
from hil.report import Figures, Received, View
from hil.scenario import (
    BOARD,
    CLOCK,
    DEAD_DNS,
    DEPLOY,
    ENDS,
    MANAGER,
    MISHAPS,
    NAME_SERVER,
    REFLASH,
    VICTIMS,
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
from hil.traffic import Tap
from hil.victims import Victim, beside, elsewhere

SCENARIO = "scenario.yaml"
"""Among the artefacts of a run that failed: what `--scenario` repeats."""


def proxy_of(board: Board, schedule: CutSchedule, seed: int, tap: Tap | None) -> FaultProxy:
    """The proxy for the board's kind of link. tap: what records a network's traffic."""
    if board.line is None:
        return TcpFaultProxy(schedule, board.listen, tap)
    return SerialFaultProxy(schedule, board.line, seed, board.find_line)


async def run_campaign(settings: Settings, console: Console) -> Figures:
    """`run_boards` with the one board of the settings; its figures."""
    (figures,) = await run_boards(settings, (), console)
    return figures


async def run_boards(settings: Settings, boards: Sequence[str], console: Console) -> list[Figures]:
    """Run a campaign, with live progress on `console`; the figures of each board, whether it went well or not. boards:
    in place of that of the settings.

    Keeps logs, scenario, ledgers and store in a folder below `settings.artefacts` if it did not, and says so, with the
    command that repeats it. Raises BoardMissing, and OSError.
    """
    with new_folder(settings.artefacts, f"seed-{settings.seed}") as (folder, keep):
        fleet: list[Part] = []
        try:
            for place, board in enumerate(boards):
                (own := folder / f"{place + 1}").mkdir()
                await prepare(replace(settings, board=board, seed=settings.seed + place), own, fleet)
                fleet[-1].guid = f"{GUID[:-4]}{place:04x}"
            if not boards:
                await prepare(settings, folder, fleet)
        except BaseException:
            for one in fleet:
                await one.close()
            raise
        members = list(fleet)  # one that fails leaves the fleet
        await _play(members, console)
        found = [one.result for one in members]
        if not all(figures.ok for figures in found):
            keep()
            for one in members:
                one.keep()
            again = f"--seed {settings.seed}, and the same boards and counts"
            if not boards:
                (folder / SCENARIO).write_text(_scenario(members[0].settings, settings))
                again = replay(folder / SCENARIO)
            for text in (f"logs, scenario, ledger and store are kept in {folder}", f"replay it: {again}"):
                console.print(text, markup=False, soft_wrap=True)
        return found


def _scenario(planned_settings: Settings, asked: Settings) -> str:
    """The text that repeats a campaign, with times only where they were asked for: the kind of board has its own."""
    return write(replace(planned_settings, ahead=asked.ahead, patience_s=asked.patience_s, deadline_s=asked.deadline_s))


def replay(scenario: Path) -> str:
    """The line that plays a scenario as this one runs."""
    python, file = (
        os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else str(path)
        for path in (sys.executable, scenario)
    )
    boards = [f"LG_ENV={shlex.quote(os.environ['LG_ENV'])}"] if os.environ.get("LG_ENV") else []
    return " ".join([*boards, shlex.join([python, "-m", "hil.campaign", "--scenario", file])])


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


async def prepare(settings: Settings, folder: Path, fleet: list[Part]) -> None:
    """Add a board's part to the campaign. All share the queue manager of the first, and what will happen to that.
    Raises BoardMissing.
    """
    settings, board = await elsewhere(lambda: _opened(settings, folder))
    first = fleet[0] if fleet else None
    if first is not None:
        own = [event for event in settings.plan or () if not (isinstance(event, Kill) and event.victim == MANAGER)]
        settings = replace(settings, plan=(*own, *kills_of(first.settings.plan or (), MANAGER)))
    plan = settings.plan or ()
    cuts, plans = cuts_of(plan), {name: kills_of(plan, name) for name in ENDS}
    schedule = CutSchedule(cuts)
    has_clock = any(kill.way == CLOCK for kill in plans[MANAGER])
    manager = first.manager if first else QueueManager(settings.ordack, folder, has_clock)
    tap = Tap(folder) if first is None and board.line is None and is_captured(settings, board) else None
    proxy = proxy_of(board, schedule, settings.seed, tap)
    commands = Commands(settings.commands)
    mishaps = Mishaps(settings, board, manager, folder, commands)
    of_board, of_manager = (sum(map(is_kill, plans[name])) for name in VICTIMS)
    asked = len(cuts), of_board, of_manager
    figures = Figures(settings.seed, settings.board, board.describe(), settings.messages, *asked, settings.commands)
    figures.plan = {
        "cuts": [asdict(cut) for cut in cuts],
        **{name: [asdict(kill) for kill in plans[name]] for name in plans if plans[name] or name in VICTIMS},
    }
    figures.others_asked = dict(others(life for name in ENDS for kill in plans[name] for life in kill.lives()))
    part = Part(settings, board, manager, schedule, proxy, folder, commands, mishaps, figures, tap, fleet)
    part.progress.starts = Starts(is_loose=settings.mishap in (REFLASH, DEPLOY))
    loop = asyncio.get_running_loop()

    def restore() -> None:  # in a thread
        asyncio.run_coroutine_threadsafe(mishaps.restore(), loop).result()

    def ended(way: str) -> None:
        part.progress.starts.end(board.life, way)

    part.victims = {
        BOARD: Victim(BOARD, board, plans[BOARD], mishaps.befall, schedule=schedule, do=beside, ended=ended),
        MANAGER: first.victims[MANAGER]
        if first
        else Victim(MANAGER, manager, plans[MANAGER], restore, manager.step, schedule, beside),
    }
    if plans[NAME_SERVER] or settings.mishap == DEAD_DNS:
        part.names = NameServer(board.host, answers=settings.mishap != DEAD_DNS)
        part.victims[NAME_SERVER] = Victim(NAME_SERVER, part.names, plans[NAME_SERVER])


async def _send(one: Part, view: View) -> None:
    """What one board does. One that fails holds up no other, and counts no more for what befalls the queue manager."""
    try:
        await one.run(view)
    except (CampaignFailed, OSError, BoardMissing) as error:
        one.fail(error)
        for victim in one.victims.values():
            await victim.settle()
        if len(one.fleet) > 1:
            one.fleet.remove(one)
            with suppress(OSError):  # of a relay, which may be what has failed
                await elsewhere(one.board.kill)


async def _judge(members: list[Part]) -> None:
    """Hold what came of each board against its ledger. What came of none of them is the first one's, which accuses."""
    received = await members[0].drain()
    if len(members) == 1:
        await members[0].judge(received)
        await members[0].judge_traffic()
        return
    own: dict[str, list[Received]] = {str(uuid.UUID(bytes_le=bytes.fromhex(one.guid))): [] for one in members}
    for message in received:
        own.get(str(uuid.UUID(message.source)), next(iter(own.values()))).append(message)
    for one, found in zip(members, own.values(), strict=True):
        if one.result.failure is None:  # what waits on a board that was given up is not lost
            try:
                await one.judge(found)
            except OSError as error:  # its ledger cannot be read
                one.fail(error)


async def _play(members: list[Part], console: Console) -> None:
    """All that happens in a campaign, whatever fails; its figures are complete then."""
    begun, first = time.monotonic(), members[0]
    names = [f"{one.settings.board} {place}" if len(members) > 1 else "" for place, one in enumerate(members, 1)]
    try:
        with ExitStack() as views:
            shown = [
                views.enter_context(View(console, one.totals(), name)) for one, name in zip(members, names, strict=True)
            ]
            await first.start_manager()
            await asyncio.gather(*map(_send, members, shown))
            await _judge(members)
            for one, view in zip(members, shown, strict=True):
                view.update(one.figures())
    except (CampaignFailed, ValueError, KeyError, OSError, BoardMissing) as error:
        first.fail(error)
    finally:
        for one in members:
            for victim in one.victims.values():
                await victim.settle()
            try:
                await one.close()
            except OSError as error:
                one.fail(error)
            one.result.seconds = time.monotonic() - begun
            one.fill()


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
        "--board",
        action="append",
        help=f"{', '.join(EMULATED)} or exec:COMMAND (default {defaults.board}); several send to one queue manager",
    )
    parser.add_argument("--max-size", type=int, help="bytes of the largest body (default: what the board takes)")
    parser.add_argument(
        "--patience",
        dest="patience_s",
        type=float,
        metavar="S",
        help="seconds without progress (default: by the kind of board)",
    )
    parser.add_argument(
        "--deadline", dest="deadline_s", type=float, metavar="S", help="seconds in all (default: by the kind of board)"
    )
    parser.add_argument("--mishap", choices=MISHAPS, default="", help="what else happens (see hil/README.md)")
    parser.add_argument("--tls", action="store_true", help="over TLS, if the board's firmware has it: unix")
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
    if chosen.seed is None:
        chosen.seed = new_seed()
    boards = chosen.board or [defaults.board]
    chosen.boards = boards if len(boards) > 1 else []
    if chosen.boards and (chosen.commands or chosen.mishap or chosen.tls or chosen.write_plan):
        parser.error("several boards at one queue manager take no commands, no mishap, no TLS and no --write-plan")
    names = ("messages", "cuts", "kills", "seed", "max_size", "mishap", "tls", "commands", "patience_s", "deadline_s")
    try:
        chosen.settings = Settings(board=boards[0], **{name: getattr(chosen, name) for name in names})
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
    if chosen.write_plan is not None:
        write_plan(settings, chosen.write_plan)
        console.print(f"run it: {replay(chosen.write_plan)}", markup=False)
        return 0
    boards = [] if chosen.scenario is not None else chosen.boards
    console.print(
        f"seed {settings.seed}: {settings.messages} messages, {settings.cuts} cuts, "
        f"{settings.kills} kills of either end, board {', '.join(boards) or settings.board}"
        if chosen.scenario is None
        else f"{chosen.scenario}: {settings.messages} messages, {len(settings.plan or ())} events, "
        f"board {settings.board}",
        markup=False,
    )
    found = to_the_end(run_boards(settings, boards, console))
    for figures in found:
        console.print(figures.table())
    for place, figures in enumerate(found, 1):
        name = f"{figures.board} {place}: " if boards else ""
        for reason in figures.shortcomings():
            console.print(f"FAILED: {name}{reason}", markup=False)
        if figures.comparison:
            console.print(f"{name}{figures.comparison.line()}", markup=False)
        if chosen.json:
            print(figures.to_json())
    return min({figures.status for figures in found} - {0}, default=0)


if __name__ == "__main__":
    sys.exit(main())
