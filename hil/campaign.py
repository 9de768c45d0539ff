"""The campaign: a board sends readings to a queue manager while faults cut the link and kill both ends.

    python -m hil.campaign --messages 1000 --cuts 50 --kills 5 --seed 7 [--board unix] [--board NAME ...] [--json]

Several boards send into one queue at once. Each has its own plan, from the seed and its position; the queue manager
follows the first board's plan, by the mean of the stored readings. The campaign observes only from outside: command
line, board output, ledger file, fault proxy. Exit status: 0 every reading is in the queue once and in order and every
fault was made; 1 not so; 2 wrong use; 3 the rig failed, a switch or a port of a board.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from hil.boards import Board, BoardMissing
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.faults import CutSchedule, FaultProxy, TcpFaultProxy
from hil.part import GUID, Mishaps, Part, is_captured
from hil.queue_manager import CampaignFailed, QueueManager
from hil.report import Figures, Received, View
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
    """`run_boards` with the settings' single board; returns its figures."""
    (figures,) = await run_boards(settings, (), console)
    return figures


async def run_boards(settings: Settings, boards: Sequence[str], console: Console) -> list[Figures]:
    """Run a campaign, with live progress on `console`; returns the figures of each board, even after a failure.

    boards: override the settings' board. A failed campaign keeps logs, plan, ledgers and store in a folder below
    `settings.artefacts`, and says so. Raises BoardMissing, and OSError.
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
        members = list(fleet)  # failed boards leave the fleet
        await _play(members, console)
        found = [one.result for one in members]
        if not all(figures.ok for figures in found):
            keep()
            for one in members:
                one.keep()
            console.print(f"logs, plan, ledger and store are kept in {folder}", markup=False, soft_wrap=True)
            console.print(f"replay it: --seed {settings.seed}, and the same boards and counts", markup=False)
        return found


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


async def prepare(settings: Settings, folder: Path, fleet: list[Part]) -> None:
    """Add a board's part to the campaign. All parts share the first part's queue manager and that manager's faults.
    Raises BoardMissing."""
    settings, board = await elsewhere(lambda: _opened(settings, folder))
    first = fleet[0] if fleet else None
    plan = settings.plan or ()
    if first is not None:
        plan = (*cuts_of(plan), *kills_of(plan, BOARD), *kills_of(first.settings.plan or (), MANAGER))
        settings = replace(settings, plan=plan)
    cuts, of_board, of_manager = cuts_of(plan), kills_of(plan, BOARD), kills_of(plan, MANAGER)
    schedule = CutSchedule(cuts)
    manager = first.manager if first else QueueManager(settings.ordack, folder)
    tap = Tap(folder) if first is None and board.line is None and is_captured(settings) else None
    proxy = proxy_of(board, schedule, settings.seed, tap)
    mishaps = Mishaps(settings, board, manager, folder)
    asked = len(cuts), len(of_board), len(of_manager)
    figures = Figures(settings.seed, settings.messages, settings.board, board.describe(), *asked)
    figures.plan = {"cuts": cuts, BOARD: of_board, MANAGER: of_manager}
    figures.plan = {name: [asdict(event) for event in events] for name, events in figures.plan.items()}
    part = Part(settings, board, manager, schedule, proxy, folder, mishaps, figures, tap, fleet)
    loop = asyncio.get_running_loop()

    def restore() -> None:  # in a thread
        asyncio.run_coroutine_threadsafe(mishaps.restore(), loop).result()

    def ended(way: str) -> None:
        part.progress.starts.end(board.life, way)

    part.victims = {
        BOARD: Victim(BOARD, board, of_board, mishaps.befall, schedule, beside, ended),
        MANAGER: first.victims[MANAGER] if first else Victim(MANAGER, manager, of_manager, restore, schedule, beside),
    }


async def _send(one: Part, view: View) -> None:
    """Run one board's part. A failed board delays no other, and no longer counts for the queue manager's faults."""
    try:
        await one.run(view)
    except (CampaignFailed, OSError, BoardMissing) as error:
        one.fail(error)
        for victim in one.victims.values():
            await victim.settle()
        if len(one.fleet) > 1:
            one.fleet.remove(one)
            with suppress(OSError):  # of a relay, which may be the failed part
                await elsewhere(one.board.kill)


async def _judge(members: list[Part]) -> None:
    """Compare each board's readings with its ledger. The first board answers for readings that belong to none."""
    received = await members[0].drain()
    if len(members) == 1:
        await members[0].judge(received)
        await members[0].judge_traffic()
        return
    own: dict[str, list[Received]] = {str(uuid.UUID(bytes_le=bytes.fromhex(one.guid))): [] for one in members}
    for message in received:
        own.get(str(uuid.UUID(message.source)), next(iter(own.values()))).append(message)
    for one, found in zip(members, own.values(), strict=True):
        if one.result.failure is None:  # readings on an abandoned board are not lost
            try:
                await one.judge(found)
            except OSError as error:  # the ledger is unreadable
                one.fail(error)


async def _play(members: list[Part], console: Console) -> None:
    """Run the whole campaign, despite any failure, and complete its figures."""
    begun, first = time.monotonic(), members[0]
    names = [f"{one.settings.board} {place}" if len(members) > 1 else "" for place, one in enumerate(members, 1)]
    try:
        shown = [View(console, one.totals(), name) for one, name in zip(members, names, strict=True)]
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
    """The arguments `settings`, `boards` if there are several, `json`. Exits with 2 on wrong use."""
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
    parser.add_argument("--mishap", choices=MISHAPS, default="", help="what else happens (see hil/README.md)")
    parser.add_argument("--tls", action="store_true", help="over TLS, if the board's firmware has it: unix")
    parser.add_argument("--json", action="store_true", help="write the figures to standard output as one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.seed is None:
        chosen.seed = new_seed()
    boards = chosen.board or [defaults.board]
    chosen.boards = boards if len(boards) > 1 else []
    if chosen.boards and (chosen.mishap or chosen.tls):
        parser.error("several boards at one queue manager take no mishap and no TLS")
    names = ("messages", "cuts", "kills", "seed", "max_size", "mishap", "tls", "patience_s")
    try:
        chosen.settings = Settings(board=boards[0], **{name: getattr(chosen, name) for name in names})
    except ValueError as error:
        parser.error(str(error))
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    chosen = parse_arguments(arguments)
    console = Console(stderr=chosen.json, highlight=False, soft_wrap=True)
    return ending(console, lambda: _obey(chosen, console))


def _obey(chosen: argparse.Namespace, console: Console) -> int:
    settings, boards = chosen.settings, chosen.boards
    console.print(
        f"seed {settings.seed}: {settings.messages} messages, {settings.cuts} cuts, "
        f"{settings.kills} kills of either end, board {', '.join(boards) or settings.board}",
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
            console.print(f"{name}{figures.line()}", markup=False)
        if chosen.json:
            print(figures.to_json())
    return min({figures.status for figures in found} - {0}, default=0)


if __name__ == "__main__":
    sys.exit(main())
