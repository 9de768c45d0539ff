"""Many boards at one queue manager: all send into one queue at once, while their links are cut and all ends are killed.

    python -m hil.fleet unix unix unix-twin pico-1 --messages 200 --cuts 10 --kills 3 [--seed 7] [--report PREFIX]
    python -m hil.fleet --scenario FILE [--json]

Each board has a plan of its own, by the seed and its place in the line; the queue manager has that of the first, by the
mean of what all have stored. Exit status: 0 every board's readings are in the queue once and in order; 1 not so; 2
wrong use; 3 the rig failed.
"""

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hil.boards import BoardMissing
from hil.campaign import SCENARIO, Prepared, command, elsewhere, fill, prepare, replay
from hil.commands import GUID
from hil.dice import new_seed
from hil.ending import ending, new_folder, to_the_end
from hil.matrix import Matrix, told
from hil.queue_manager import CampaignFailed
from hil.report import Figures, Received, View
from hil.scenario import BadScenario, Settings, is_shared, read, write

HEADINGS = ("board", "sent", "once", "wrong", "cuts", "kills", "worst, s", "a second", "")


@dataclass
class Fleet:
    """The figures of all boards, by name and place in the line."""

    seed: int
    boards: dict[str, Figures]

    @property
    def ok(self) -> bool:
        return all(figures.ok for figures in self.boards.values())

    @property
    def status(self) -> int:
        """The exit status: 0 all is well; 1 a board is not; RIG_FAILED, and no board is worse."""
        found = {figures.status for figures in self.boards.values()} - {0}
        return min(found, default=0)

    def table(self) -> Table:
        """A row a board; kills are those of the board and of the queue manager, the worst is the time from a fault
        until a reading was acknowledged again.
        """
        table = Table(*HEADINGS, title=f"Boards at one queue manager, seed {self.seed}", title_justify="left")
        for name, one in self.boards.items():
            counts = [""] * 3
            if (found := one.comparison) is not None:
                counts = [str(found.sent), str(found.once), str(sum(map(len, found.faults.values())))]
            kills = f"{one.board_kills} + {one.manager_kills}"
            speed = f"{one.timeline.worst_s:.2f}", f"{one.timeline.rate:.1f}"
            verdict = "well" if one.ok else "FAILED"
            table.add_row(escape(name), *counts, str(len(one.cuts)), kills, *speed, verdict)
        return table

    def matrix(self) -> Matrix:
        """The guarantees by board."""
        made = Matrix(self.seed)
        for name, figures in self.boards.items():
            made.add(told(name, figures))
        return made


async def prepared(wanted: Settings, folder: Path) -> list[Prepared]:
    """All boards, switched off, of one queue manager. Raises BoardMissing and OSError; then none is open."""
    members: list[Prepared] = []
    try:
        for place, board in enumerate(wanted.boards):
            own = folder / f"{place + 1}"
            own.mkdir()
            first = members[0] if members else None
            plan = wanted.plan and tuple(one for one in wanted.plan if is_shared(one) or one.of == place + 1)
            alone = replace(wanted, board=board, boards=(), seed=wanted.seed + place, plan=plan)
            members.append(await prepare(alone, own, first))
            members[-1][0].guid = f"{GUID[:-4]}{place:04x}"
    except BaseException:
        for one, _, _ in members:
            await one.close()
        raise
    return members


async def _send(member: Prepared, name: str, console: Console) -> None:
    """What one board does. One that fails holds up no other, and counts no more for what befalls the queue manager."""
    one, victims, figures = member
    try:
        await one.run(victims, View(console, one.totals(), name))
    except (CampaignFailed, OSError, BoardMissing) as error:
        figures.fail(error, one.logs())
        if len(one.fleet) > 1:
            one.fleet.remove(one)
        with suppress(OSError):  # of a relay, which may be what has failed
            await elsewhere(one.board.kill)


async def _judge(members: list[Prepared]) -> None:
    """Hold what came of each board against its ledger. What came of none of them is the first one's, which accuses."""
    own: dict[str, list[Received]] = {source_of(one.guid): [] for one, _, _ in members}
    for message in await members[0][0].drain():
        own.get(source_of(message.source), next(iter(own.values()))).append(message)
    for one, _, figures in members:
        if figures.failure is None:  # what waits on a board that was given up is not lost
            try:
                await one.judge(own[source_of(one.guid)], figures)
            except OSError as error:  # its ledger cannot be read
                figures.fail(error, one.logs())


def source_of(text: str) -> str:
    """The GUID, of a configuration's 32 digits on the wire or in the form that commands print."""
    return str(uuid.UUID(text) if "-" in text else uuid.UUID(bytes_le=bytes.fromhex(text)))


async def _play(members: list[Prepared], names: list[str], console: Console) -> None:
    """All that happens; the figures are complete then."""
    begun = time.monotonic()
    first, _, of_first = members[0]
    try:
        await first.start_manager()
        counting = asyncio.create_task(first.count_queue())
        try:
            await asyncio.gather(*(_send(*each, console) for each in zip(members, names, strict=True)))
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
        await _judge(members)
    except (CampaignFailed, ValueError, KeyError, OSError) as error:
        of_first.fail(error, first.logs())
    finally:
        for one, victims, figures in members:
            for victim in victims.values():
                await victim.settle()
            try:
                await one.close()
            except OSError as error:
                figures.fail(error)
            figures.seconds = time.monotonic() - begun
            fill(one, victims, figures)


def scenario(wanted: Settings, members: list[Prepared]) -> str:
    """The text that repeats it."""
    plan = [event for event in members[0][0].settings.plan or () if is_shared(event)]
    for place, (one, _, _) in enumerate(members, 1):
        plan += [replace(event, of=place) for event in one.settings.plan or () if not is_shared(event)]
    return write(replace(wanted, plan=tuple(plan)))


async def run_fleet(wanted: Settings, console: Console) -> Fleet:
    """Run it, with live progress on `console`. If a board fails, logs, scenario, ledgers and store are kept below
    `wanted.artefacts`. Raises BoardMissing, OSError.
    """
    with new_folder(wanted.artefacts, f"fleet-{wanted.seed}") as (folder, keep):
        members = await prepared(wanted, folder)
        names = [f"{board} {place}" for place, board in enumerate(wanted.boards, 1)]
        await _play(members, names, console)
        fleet = Fleet(wanted.seed, {name: figures for name, (_, _, figures) in zip(names, members, strict=True)})
        if not fleet.ok:
            keep()
            for one, _, figures in members:
                figures.artefacts = str(one.folder)
                one.keep(figures)
            (folder / SCENARIO).write_text(scenario(wanted, members))
            for text in (
                f"logs, scenario, ledgers and store are kept in {folder}",
                f"replay it: {replay(wanted, folder / SCENARIO)}",
            ):
                console.print(text, markup=False, soft_wrap=True)
        return fleet


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for: `scenario`, or `settings` and `again`, which repeats it. Exits with 2 on wrong use."""
    parser = argparse.ArgumentParser(prog="python -m hil.fleet", description="Many boards at one queue manager.")
    parser.add_argument("board", nargs="*", help="as of hil.campaign; a kind that needs no hardware may stand often")
    for name, count in (("messages", 200), ("cuts", 10), ("kills", 3)):
        parser.add_argument(f"--{name}", type=int, default=count, help="of each board (default %(default)s)")
    parser.add_argument("--seed", type=int, help="the same seed makes the same plans (default: a new one)")
    parser.add_argument("--max-size", type=int, help="bytes of the largest body (default: what the board takes)")
    parser.add_argument("--scenario", type=Path, help="what to do stands in this file; --json and --report go with it")
    parser.add_argument("--report", type=Path, help="write the guarantees by board to this file, as .md, .json, .html")
    parser.add_argument("--json", action="store_true", help="write them to standard output as one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.scenario is not None:
        others = {name for name, value in vars(chosen).items() if value and value != parser.get_default(name)}
        if others := others - {"scenario", "json", "report"}:
            parser.error(f"the scenario says what to do: write {', '.join(sorted(others))} into {chosen.scenario}")
        return chosen
    if not chosen.board:
        parser.error("which boards? Name them, or give --scenario FILE")
    seed = new_seed() if chosen.seed is None else chosen.seed
    try:
        chosen.settings = Settings(
            chosen.messages, chosen.cuts, chosen.kills, seed, max_size=chosen.max_size, boards=tuple(chosen.board)
        )
    except ValueError as error:
        parser.error(str(error))
    values = {name: vars(chosen)[name] for name in ("messages", "cuts", "kills", "max_size")} | {"seed": seed}
    words = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if value is not None]
    chosen.again = command("fleet", *chosen.board, *(word for pair in words for word in pair))
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    chosen = parse_arguments(arguments)
    console = Console(stderr=chosen.json, highlight=False, soft_wrap=True)
    return ending(console, lambda: _obey(chosen, console))


def _obey(chosen: argparse.Namespace, console: Console) -> int:
    if chosen.scenario is None:
        wanted = chosen.settings
        console.print(f"seed {wanted.seed}; again: {chosen.again}", markup=False)
    else:
        wanted = read(chosen.scenario)
        if not wanted.boards:
            raise BadScenario(f"{chosen.scenario} has one board: {replay(wanted, chosen.scenario)}")
    if chosen.report is not None:  # what cannot be written is told now
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
    fleet = to_the_end(run_fleet(wanted, console))
    console.print(fleet.table())
    for name, figures in fleet.boards.items():
        for reason in figures.shortcomings():
            console.print(f"FAILED: {name}: {reason}", markup=False)
    if chosen.report is not None:
        fleet.matrix().write(chosen.report)
    if chosen.json:
        print(fleet.matrix().to_json())
    return fleet.status


if __name__ == "__main__":
    sys.exit(main())
