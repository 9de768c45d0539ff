"""The campaign: a board sends readings to a queue manager while faults cut the link and kill both ends.

    python -m hil.campaign --messages 1000 --cuts 50 --kills 5 --seed 7 [--board unix] [--json]

The campaign observes only from outside: command line, board output, ledger file, fault proxy. Exit status: 0 every
reading is in the queue once and in order and every fault was made; 1 not so; 2 wrong use; 3 the rig failed, a switch or
a port of a board.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from hil.boards import Board, BoardMissing
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.faults import CutSchedule, FaultProxy, TcpFaultProxy
from hil.part import Mishaps, Part, is_captured
from hil.queue_manager import CampaignFailed, QueueManager
from hil.report import Figures, View
from hil.scenario import BOARD, MANAGER, MISHAPS, Settings, cuts_of, kills_of, planned
from hil.serial_faults import SerialFaultProxy
from hil.targets import EMULATED, open_board
from hil.traffic import Tap
from hil.victims import Victim, beside, elsewhere


def proxy_of(board: Board, schedule: CutSchedule, seed: int, tap: Tap | None) -> FaultProxy:
    """The proxy for the board's kind of link. tap: records a network's traffic."""
    if board.line is None:
        return TcpFaultProxy(schedule, board.listen, tap)
    return SerialFaultProxy(schedule, board.line, seed, board.find_line)


async def run_campaign(settings: Settings, console: Console) -> Figures:
    """Run a campaign, with live progress on `console`; returns its figures, even after a failure.

    A failed campaign keeps logs, plan, ledger and store in a folder below `settings.artefacts`, and says so. Raises
    BoardMissing, and OSError.
    """
    with new_folder(settings.artefacts, f"seed-{settings.seed}") as (folder, keep):
        part = await prepare(settings, folder)
        await _play(part, console)
        if not part.result.ok:
            keep()
            part.keep()
            console.print(f"logs, plan, ledger and store are kept in {folder}", markup=False, soft_wrap=True)
            console.print(f"replay it: --seed {settings.seed}, and the same board and counts", markup=False)
        return part.result


def _opened(settings: Settings, folder: Path) -> tuple[Settings, Board]:
    """The board, and the settings completed with its limits and the plan. Raises BoardMissing."""
    if not Path(settings.ordack[0]).is_file():
        raise BoardMissing(f"{settings.ordack[0]} is missing; `make setup` installs it")
    board = open_board(settings.board, folder / "board", settings.application)
    try:
        settings = settings.for_board(board.limits)
        if settings.tls and board.line is not None:
            raise BoardMissing(f"board {settings.board} has no network: it speaks no TLS")
        return planned(settings, board), board
    except BaseException:
        board.close()
        raise


async def prepare(settings: Settings, folder: Path) -> Part:
    """The campaign of these settings, with its plan. Raises BoardMissing."""
    settings, board = await elsewhere(lambda: _opened(settings, folder))
    plan = settings.plan or ()
    cuts, of_board, of_manager = cuts_of(plan), kills_of(plan, BOARD), kills_of(plan, MANAGER)
    schedule = CutSchedule(cuts)
    manager = QueueManager(settings.ordack, folder)
    tap = Tap(folder) if board.line is None and is_captured(settings) else None
    proxy = proxy_of(board, schedule, settings.seed, tap)
    mishaps = Mishaps(settings, board, manager, folder)
    asked = len(cuts), len(of_board), len(of_manager)
    figures = Figures(settings.seed, settings.messages, settings.board, board.describe(), *asked)
    figures.plan = {"cuts": cuts, BOARD: of_board, MANAGER: of_manager}
    figures.plan = {name: [asdict(event) for event in events] for name, events in figures.plan.items()}
    part = Part(settings, board, manager, schedule, proxy, folder, mishaps, figures, tap)
    loop = asyncio.get_running_loop()

    def restore() -> None:  # in a thread
        asyncio.run_coroutine_threadsafe(mishaps.restore(), loop).result()

    def ended(way: str) -> None:
        part.progress.starts.end(board.life, way)

    part.victims = {
        BOARD: Victim(BOARD, board, of_board, mishaps.befall, schedule, beside, ended),
        MANAGER: Victim(MANAGER, manager, of_manager, restore, schedule, beside),
    }
    return part


async def _play(part: Part, console: Console) -> None:
    """Run the whole campaign, despite any failure, and complete its figures."""
    begun = time.monotonic()
    try:
        view = View(console, part.totals())
        await part.start_manager()
        try:
            await part.run(view)
        except (CampaignFailed, OSError, BoardMissing) as error:
            part.fail(error)
            for victim in part.victims.values():
                await victim.settle()
        await part.judge(await part.drain())
        await part.judge_traffic()
        view.update(part.figures())
    except (CampaignFailed, ValueError, KeyError, OSError, BoardMissing) as error:
        part.fail(error)
    finally:
        for victim in part.victims.values():
            await victim.settle()
        try:
            await part.close()
        except OSError as error:
            part.fail(error)
        part.result.seconds = time.monotonic() - begun
        part.fill()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments `settings` and `json`. Exits with 2 on wrong use."""
    defaults = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m hil.campaign", description="Exactly once, in order, through cuts and kills."
    )
    for name, text in (
        ("messages", "readings that the board sends"),
        ("cuts", "cuts of the connection"),
        ("kills", "kills of the board, and as many of the queue manager"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=getattr(defaults, name), help=f"{text} (default %(default)s)"
        )
    parser.add_argument("--seed", type=int, help="the same seed makes the same plan (default: a new one)")
    parser.add_argument(
        "--board", default=defaults.board, help=f"{', '.join(EMULATED)} or exec:COMMAND (default %(default)s)"
    )
    parser.add_argument("--max-size", type=int, help="bytes of the largest body (default: what the board takes)")
    parser.add_argument(
        "--patience",
        dest="patience_s",
        type=float,
        metavar="S",
        help="seconds without progress (default: by the kind of board)",
    )
    parser.add_argument("--mishap", choices=MISHAPS, default="", help="what else happens (see hil/README.md)")
    parser.add_argument("--tls", action="store_true", help="over TLS, if the board's firmware has it: unix")
    parser.add_argument("--json", action="store_true", help="write the figures to standard output as one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.seed is None:
        chosen.seed = new_seed()
    names = ("board", "messages", "cuts", "kills", "seed", "max_size", "mishap", "tls", "patience_s")
    try:
        chosen.settings = Settings(**{name: getattr(chosen, name) for name in names})
    except ValueError as error:
        parser.error(str(error))
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    chosen = parse_arguments(arguments)
    console = Console(stderr=chosen.json, highlight=False, soft_wrap=True)
    return ending(console, lambda: _obey(chosen, console))


def _obey(chosen: argparse.Namespace, console: Console) -> int:
    settings = chosen.settings
    console.print(
        f"seed {settings.seed}: {settings.messages} messages, {settings.cuts} cuts, "
        f"{settings.kills} kills of either end, board {settings.board}",
        markup=False,
    )
    figures = to_the_end(run_campaign(settings, console))
    console.print(figures.table())
    for reason in figures.shortcomings():
        console.print(f"FAILED: {reason}", markup=False)
    if figures.comparison:
        console.print(figures.line(), markup=False)
    if chosen.json:
        print(figures.to_json())
    return figures.status


if __name__ == "__main__":
    sys.exit(main())
