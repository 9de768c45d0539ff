"""The guarantees on every board: one campaign on each, and a table with a row per guarantee and a column per board.

    python -m hil.matrix [--board unix --board mps2-uart ...] [--markdown FILE] [--json FILE]

Without --board it runs every kind that needs no hardware. The column of a board that
is missing or fails says so, and the others are run all the same. Exit status: 0 every guarantee is shown on every board
that was asked for by name, or else on every one that is here; 1 not so; 2 wrong use.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hil.boards import BoardMissing
from hil.campaign import Settings, run_campaign
from hil.kinds import KINDS
from hil.report import Comparison, Figures

SHOWN: Final = "shown"
BROKEN: Final = "BROKEN"
NOT_SHOWN: Final = "not shown"
ABSENT: Final = "absent"
_STYLES = {SHOWN: "green", BROKEN: "bold red", NOT_SHOWN: "yellow", ABSENT: "dim"}

Judge = Callable[[Comparison], tuple[bool, str]]


@dataclass(frozen=True)
class Cell:
    """What one board says to one guarantee: one of the four verdicts, and in a few words on what ground."""

    verdict: str
    ground: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.ground}" if self.ground else self.verdict


def _without(name: str) -> Judge:
    def judge(comparison: Comparison) -> tuple[bool, str]:
        found = getattr(comparison, name)
        return not found, f"{comparison.once} readings" if not found else f"{len(found)} {name}"

    return judge


def _ledger(comparison: Comparison) -> tuple[bool, str]:
    wrong = len(comparison.unrecorded) + len(comparison.misrecorded)
    return not wrong, f"{comparison.sent} readings" if not wrong else f"{wrong} not in the ledger, or out of turn"


CONTENT: Final[dict[str, Judge]] = {
    "no accepted reading is lost": _without("lost"),
    "none is there twice": _without("duplicated"),
    "they are in order": _without("reordered"),
    "they are unaltered": _without("corrupt"),
    "nothing else is there": _without("unexpected"),
    "the board knows what it accepted": _ledger,
}
CUTS: Final = "across cuts of the link"
POWER: Final = "across power cuts and resets of the board"
KILLS: Final = "across kills of the queue manager"
GUARANTEES: Final = (*CONTENT, CUTS, POWER, KILLS)


def column(figures: Figures | str) -> dict[str, Cell]:
    """The cells of one board, by guarantee; `figures` is a text if there is no such board here, and says why."""
    if isinstance(figures, str):
        return dict.fromkeys(GUARANTEES, Cell(ABSENT, figures))
    cells = {}
    for name, judge in CONTENT.items():
        if figures.comparison is None:
            cells[name] = Cell(NOT_SHOWN, (figures.failure or "").splitlines()[0] if figures.failure else "")
        else:
            holds, ground = judge(figures.comparison)
            # A queue with fewer readings than were asked for shows what it lacks, and nothing else.
            whole = figures.comparison.once == figures.messages
            cells[name] = Cell((SHOWN if whole else NOT_SHOWN) if holds else BROKEN, ground)
    whole = figures.ok
    for name, made, asked in (
        (CUTS, len(figures.cuts), figures.cuts_asked),
        (POWER, figures.board_kills, figures.kills_asked),
        (KILLS, figures.manager_kills, figures.kills_asked),
    ):
        cells[name] = Cell(SHOWN if whole and made else NOT_SHOWN, f"{made} of {asked}")
    return cells


@dataclass(frozen=True)
class Matrix:
    """The columns of all boards, by target."""

    seed: int
    boards: dict[str, Figures | str]
    wanted: frozenset[str] = frozenset()  # asked for by name: absence is no excuse

    def columns(self) -> dict[str, dict[str, Cell]]:
        return {target: column(figures) for target, figures in self.boards.items()}

    @property
    def ok(self) -> bool:
        """Everything is shown, but on boards that are absent without having been asked for; and on one at least."""
        verdicts = [
            cell.verdict
            for target, cells in self.columns().items()
            for cell in cells.values()
            if target in self.wanted or cell.verdict != ABSENT
        ]
        return bool(verdicts) and set(verdicts) == {SHOWN}

    def markdown(self) -> str:
        """The table in Markdown."""
        columns = self.columns()
        lines = [f"Guarantees by board, seed {self.seed}", ""]
        lines += ["| guarantee | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
        for name in GUARANTEES:
            lines.append(f"| {name} | " + " | ".join(str(cells[name]) for cells in columns.values()) + " |")
        return "\n".join(lines) + "\n"

    def table(self) -> Table:
        """The table for a terminal."""
        columns = self.columns()
        table = Table("guarantee", *columns, title=f"Guarantees by board, seed {self.seed}", title_justify="left")
        for name in GUARANTEES:
            cells = [cells[name] for cells in columns.values()]
            table.add_row(name, *(f"[{_STYLES[cell.verdict]}]{escape(str(cell))}[/]" for cell in cells))
        return table

    def to_json(self) -> str:
        """One JSON object: `ok`, `seed`, and for each board its cells and the figures of its campaign."""
        boards = {
            target: {
                "cells": {name: dataclasses.asdict(cell) for name, cell in column(figures).items()},
                "figures": None if isinstance(figures, str) else json.loads(figures.to_json()),
            }
            for target, figures in self.boards.items()
        }
        return json.dumps({"ok": self.ok, "seed": self.seed, "boards": boards})


async def run_all(wanted: Sequence[str], settings: Settings, console: Console) -> dict[str, Figures | str]:
    """A campaign on each board, one after the other; a text in place of figures for a board that is not here."""
    boards: dict[str, Figures | str] = {}
    for target in wanted:
        console.print(f"{target}: {settings.messages} messages, {settings.cuts} cuts, {settings.kills} kills")
        try:
            boards[target] = await run_campaign(dataclasses.replace(settings, board=target), console)
        except BoardMissing as reason:
            boards[target] = str(reason)
        except OSError as error:
            boards[target] = Figures(
                settings.seed, target, target, settings.messages, settings.cuts, settings.kills, failure=str(error)
            )
    return boards


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m hil.matrix", description="The guarantees on every board, in one table."
    )
    parser.add_argument("--board", action="append", help="a board (repeatable; default: all that are here)")
    for name, count in (("messages", 200), ("cuts", 20), ("kills", 3)):
        parser.add_argument(f"--{name}", type=int, default=count, help="on each board (default %(default)s)")
    parser.add_argument("--seed", type=int, help="the same seed makes the same plans (default: a new one)")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--json", type=Path, help="write table and figures to this file, as one JSON object")
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 31) if chosen.seed is None else chosen.seed
    try:
        settings = Settings(chosen.messages, chosen.cuts, chosen.kills, seed)
    except ValueError as error:
        parser.error(str(error))
    console = Console(highlight=False)
    console.print(f"seed {seed}")
    try:
        wanted = list(dict.fromkeys(chosen.board or KINDS))
        boards = asyncio.run(run_all(wanted, settings, console))
    except BoardMissing as error:  # of the file of boards
        console.print(str(error), markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    matrix = Matrix(seed, boards, frozenset(chosen.board or ()))
    console.print(matrix.table())
    for target, figures in boards.items():
        for reason in figures.shortcomings() if isinstance(figures, Figures) else ():
            console.print(f"FAILED: {target}: {reason}", markup=False)
    for path, text in ((chosen.markdown, matrix.markdown()), (chosen.json, matrix.to_json() + "\n")):
        if path is not None:
            path.write_text(text)
    return 0 if matrix.ok else 1


if __name__ == "__main__":
    sys.exit(main())
