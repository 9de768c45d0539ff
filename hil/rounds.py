"""Many campaigns on one board, that count as one: rounds, each with a share of the messages, cuts and kills and a seed
of its own. What a round has said is kept in a file, so that a long run goes on where it was stopped.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hil.boards import Wear
from hil.faults import Cut, CutMade
from hil.report import Comparison, Figures, Timeline
from hil.scenario import Settings

_SUMS = (
    *("messages", "cuts_asked", "board_kills_asked", "manager_kills_asked", "mishaps", "cuts", "power", "board_kills"),
    *("manager_kills", "connections", "sessions", "refused", "bytes_up", "bytes_down", "found_at_restart", "seconds"),
    *("unanswered", "commands_asked", "commands"),
)
_COUNTS = ("others", "others_asked")
_DERIVED = ("ok", "line", "shortcomings", "measured")


def share(count: int, turn: int, rounds: int) -> int:
    """What round `turn`, from 0, has of so many."""
    return count * (turn + 1) // rounds - count * turn // rounds


def figures_of(said: dict[str, Any]) -> Figures:
    """What `Figures.to_json` was made of."""
    fields = {name: value for name, value in said.items() if name not in _DERIVED}
    cuts = [CutMade(**{**cut, "planned": Cut(**cut["planned"])}) for cut in said["cuts"]]
    fields |= {"cuts": cuts, "timeline": Timeline(**said["timeline"])}
    fields |= {"comparison": Comparison(**said["comparison"])} if said["comparison"] else {}
    fields |= {"wear": Wear(**said["wear"])} if said["wear"] else {}
    return Figures(**fields)


def together(first: Figures, then: Figures) -> Figures:
    """The figures of both: one failure is a failure of both, and one comparison that is missing leaves the counts of
    the other, which are too few then.
    """
    sums: dict[str, Any] = {name: getattr(first, name) + getattr(then, name) for name in _SUMS}
    comparisons = [one.comparison for one in (first, then) if one.comparison]
    comparison = comparisons[0] if comparisons else None
    if len(comparisons) > 1:
        pairs = zip(vars(comparisons[0]).items(), vars(comparisons[1]).values(), strict=True)
        comparison = Comparison(**{name: one + other for (name, one), other in pairs})
    sets = {name: sorted({*getattr(first, name), *getattr(then, name)}) for name in ("cores", "told")}
    counts = {name: dict(Counter(getattr(first, name)) + Counter(getattr(then, name))) for name in _COUNTS}
    worn = [one.wear for one in (first, then) if one.wear]
    wear = None
    if worn:  # each on a flash of its own
        programmed, erases = sum(one.programmed for one in worn), sum(one.erases for one in worn)
        wear = Wear(programmed, erases, max(one.worst for one in worn))
    return replace(
        first,
        **(sums | sets | counts),
        wear=wear,
        comparison=comparison,
        plan={},
        timeline=first.timeline.then(then.timeline),
        failure=first.failure or then.failure,
        rig_failed=first.rig_failed if first.failure else then.rig_failed,
        artefacts=first.artefacts or then.artefacts,
    )


class Kept:
    """The file of one round, in a folder that may not exist yet."""

    def __init__(self, folder: Path, board: str, turn: int) -> None:
        self.path = folder / f"{board.replace('/', '_')}-{turn}.json"

    def figures(self, settings: Settings, hashes: Callable[[Settings], dict[str, str]]) -> Figures | None:
        """What is kept of this round, if it was about the same: settings, and `hashes` of firmware, application and
        queue manager. Raises what that raises.
        """
        try:
            found = figures_of(json.loads(self.path.read_text()))
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):  # torn, or of another version
            return None
        wanted = settings.cuts, settings.kills, settings.kills
        asked = settings.board, settings.seed, settings.messages, settings.commands, *wanted
        of_ends = found.cuts_asked, found.board_kills_asked, found.manager_kills_asked
        kept = found.board, found.seed, found.messages, found.commands_asked, *of_ends
        return found if kept == asked and found.hashes == hashes(settings) else None

    def keep(self, figures: Figures) -> None:
        """From now on, also across a power cut of this machine: there is all of it or nothing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(figures.to_json())
        new.rename(self.path)


def progress(figures: Figures, done: int, rounds: int) -> str:
    """How far a board is after so many rounds, in a line."""
    found = figures.comparison or Comparison(0, 0, 0)
    kills = f"{figures.board_kills} power cuts and resets, {figures.manager_kills} kills of the queue manager"
    kills += f", {sum(figures.others.values())} other faults"
    wrong = f"{len(found.lost)} lost, {len(found.duplicated)} repeated, {len(found.reordered)} out of order"
    left_s = figures.seconds / done * (rounds - done)
    left = f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
    rate = found.once / figures.seconds if figures.seconds else 0.0
    once = f"{found.once:,} readings and {found.commands:,} commands once"
    return (
        f"{figures.board}: {done} of {rounds} rounds, {once}, {len(figures.cuts):,} cuts, "
        f"{kills}, {wrong}; {rate:.1f} readings a second, {left} left"
    )
