"""The guarantees on every board, as a table with a row per guarantee and a column per board. `pytest hil --lg-env FILE`
makes one, with a campaign on each board of the file.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from hil.report import Comparison, Figures, Timeline

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


COMMANDS: Final = "commands to the board are executed once, in order"


def _without(name: str) -> Judge:
    def judge(comparison: Comparison) -> tuple[bool, str]:
        found = getattr(comparison, name)
        return not found, f"{comparison.once} readings" if not found else f"{len(found)} {name}"

    return judge


def _ledger(comparison: Comparison) -> tuple[bool, str]:
    wrong = len(comparison.unrecorded) + len(comparison.misrecorded)
    return not wrong, f"{comparison.sent} readings" if not wrong else f"{wrong} not in the ledger, or out of turn"


def _commands(comparison: Comparison) -> tuple[bool, str]:
    wrong = len(comparison.unexecuted) + len(comparison.misexecuted)
    return not wrong, f"{comparison.commands} commands" if not wrong else f"{wrong} were not"


CONTENT: Final[dict[str, Judge]] = {
    "no accepted reading is lost": _without("lost"),
    "none is there twice": _without("duplicated"),
    "they are in order": _without("reordered"),
    "they are unaltered": _without("corrupt"),
    "nothing else is there": _without("unexpected"),
    "the board knows what it accepted": _ledger,
    COMMANDS: _commands,
}
CUTS: Final = "across cuts of the link"
POWER: Final = "across power cuts and resets of the board"
KILLS: Final = "across kills of the queue manager"
OTHERS: Final = "across clocks that step, dead name servers"
GUARANTEES: Final = (*CONTENT, CUTS, POWER, KILLS, OTHERS)

MEASURED: Final = ("worst recovery, s", "readings a second", "SHA-256")
_HASH_DIGITS: Final = 12


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
    if not figures.commands_asked:
        cells[COMMANDS] = Cell(ABSENT, "none were asked for")
    elif figures.commands != figures.commands_asked:
        cells[COMMANDS] = Cell(NOT_SHOWN, f"{figures.commands} of {figures.commands_asked} given")
    whole = figures.ok
    for name, made, asked in (
        (CUTS, len(figures.cuts), figures.cuts_asked),
        (POWER, figures.board_kills, figures.board_kills_asked),
        (KILLS, figures.manager_kills, figures.manager_kills_asked),
        (OTHERS, sum(figures.others.values()), sum(figures.others_asked.values())),
    ):
        cells[name] = Cell(SHOWN if whole and made else NOT_SHOWN, f"{made} of {asked}")
    return cells


def measured(figures: dict[str, Any] | None) -> tuple[str, ...]:
    """What stands beside `MEASURED` for a board with these figures."""
    if figures is None:
        return ("",) * len(MEASURED)
    timeline = Timeline(**figures["timeline"])
    hashes = ", ".join(f"{name} {digest[:_HASH_DIGITS]}" for name, digest in figures["hashes"].items())
    return f"{timeline.worst_s:.2f}", f"{timeline.rate:.1f}", hashes


def _plain(text: str) -> str:
    """In a cell of Markdown."""
    return text.replace("|", "\\|")


def told(board: str, figures: Figures | str) -> str:
    """The column of one board, as `column` makes it, and its figures, for the process that has the table."""
    cells = {name: dataclasses.asdict(cell) for name, cell in column(figures).items()}
    return json.dumps((board, cells, None if isinstance(figures, str) else json.loads(figures.to_json())))


@dataclass
class Matrix:
    """The columns of all boards, by name, and the figures of their campaigns."""

    seed: int
    columns: dict[str, dict[str, Cell]] = dataclasses.field(default_factory=dict)
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, text: str) -> None:
        """The column of one board, as `told` gives it."""
        board, cells, self.figures[board] = json.loads(text)
        self.columns[board] = {name: Cell(**cell) for name, cell in cells.items()}

    @property
    def ok(self) -> bool:
        """Everything is shown on all boards that are not absent, and on one at least."""
        verdicts = {cell.verdict for cells in self.columns.values() for cell in cells.values()}
        return verdicts - {ABSENT} == {SHOWN}

    @property
    def title(self) -> str:
        return f"Guarantees by board, seed {self.seed}"

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.title, ""]
        lines += [
            "| guarantee | " + " | ".join(map(_plain, self.columns)) + " |",
            "|---" * (1 + len(self.columns)) + "|",
        ]
        for name in GUARANTEES:
            lines.append(
                f"| {name} | " + " | ".join(_plain(str(cells[name])) for cells in self.columns.values()) + " |"
            )
        lines += ["| " + " | ".join(map(_plain, row)) + " |" for row in self._measured()]
        return "\n".join(lines) + "\n"

    def _measured(self) -> list[tuple[str, ...]]:
        """A row for each of `MEASURED`."""
        return list(zip(MEASURED, *(measured(self.figures[board]) for board in self.columns), strict=True))

    def table(self) -> Table:
        """The table for a terminal."""
        table = Table("guarantee", *map(escape, self.columns), title=self.title, title_justify="left")
        for name in GUARANTEES:
            cells = [cells[name] for cells in self.columns.values()]
            table.add_row(name, *(f"[{_STYLES[cell.verdict]}]{escape(str(cell))}[/]" for cell in cells))
        for row in self._measured():
            table.add_row(*map(escape, row))
        return table

    def to_json(self) -> str:
        """One JSON object: `ok`, `seed`, and for each board its cells, what was `measured`, in numbers, and all of its
        figures.
        """
        boards = {
            board: {
                "cells": {name: dataclasses.asdict(cell) for name, cell in cells.items()},
                "measured": self.figures[board] and self.figures[board]["measured"],
                "figures": self.figures[board],
            }
            for board, cells in self.columns.items()
        }
        return json.dumps({"ok": self.ok, "seed": self.seed, "boards": boards})

    def write(self, path: Path) -> None:
        """Both forms, in files that end in .md and .json, in a folder that may be new."""
        path.parent.mkdir(parents=True, exist_ok=True)
        named(path, ".md").write_text(self.markdown())
        named(path, ".json").write_text(self.to_json() + "\n")


def named(path: Path, end: str) -> Path:
    """The file of a report that has this end; a point in `path` that begins none, as of a date, stays."""
    return path.with_suffix(end) if path.suffix in (".md", ".json") else path.with_name(path.name + end)
