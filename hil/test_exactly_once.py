"""The guarantee, on every kind of board that is here: the short form of the campaign, with the real queue manager."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hil.conftest import Play
from hil.machines import EMULATED, WITHOUT_INBOX
from hil.progress import AHEAD
from hil.report import Figures
from hil.scenario import BEFALL, COPY, DEAD_DNS, DEPLOY, FLIP, FULL, OFFLINE, REFLASH, RESTORE, read

CORE = {"unix-twin": "python"}
FORM = {board: (40, 8, 2, 4) if board == "mps2-eth" else (20, 4, 1, 2) for board in WITHOUT_INBOX}


@pytest.mark.rule("B-056", "B-079", "B-426", "A-22")
@pytest.mark.parametrize(
    ("board", "mishap"),
    [
        ("mps2-eth@140", FLIP),
        *(("unix", mishap) for mishap in BEFALL if mishap != DEPLOY),  # which is for boards that have a REPL
    ],
)
def test_a_mishap_loses_what_it_took_away_and_nothing_else(board: str, mishap: str, play: Play) -> None:
    """Without a clock, too: no number comes again, nothing is called stored that is not there, nothing hangs."""
    # The first may come before there is an outbox; and a bit may be flipped where nobody reads any more.
    kills = 5 if mishap in (COPY, FLIP) else 3
    # No cuts: how much traffic there will be is not known. A sequence that is refused is given up when it is resent.
    # With 6 that wait at most, a small board would be there several times, for half a minute each.
    figures, found = play(board, messages=30, cuts=0, kills=kills, max_size=1024, mishap=mishap, ahead=30)
    assert figures.mishaps >= (2 if mishap == COPY else 1)
    assert found.once + len(found.erased) == 30
    if mishap == REFLASH:
        assert (found.once, figures.cores, figures.told) == (30, ["c-module", "python"], [])
    elif mishap == FLIP:
        assert found.once == 30
        assert figures.told
        assert all("a byte was changed" in line for line in figures.told)
    else:
        assert figures.told in ([], [AHEAD]), "of numbers that were given twice it says so, when it hears of them"


@pytest.mark.parametrize(
    ("board", "mishap", "messages"),
    [("mps2-eth", OFFLINE, 80), ("mps2-eth", DEAD_DNS, 40), ("mps2-eth", FULL, 120), ("unix", FULL, 300)],
)
def test_what_waited_while_nobody_could_be_reached_arrives(board: str, mishap: str, messages: int, play: Play) -> None:
    """The board is killed meanwhile, and once more when all waits on it. No watchdog bites: it would begin again."""
    figures, found = play(board, messages=messages, cuts=0, kills=1, max_size=200, mishap=mishap)
    assert (figures.mishaps, figures.told) == (1, [])
    assert found.line().startswith(f"{messages} sent, {messages} received once, in order, 0 lost")


@pytest.mark.rule("B-426", "B-056", "A-22")
def test_of_a_queue_manager_whose_backup_is_put_back_only_what_came_after_it_is_gone(play: Play) -> None:
    """What the board sends from then on arrives, once and in order; it executes no command twice, and every new one."""
    figures, found = play("unix", messages=60, cuts=4, kills=3, max_size=200, mishap=RESTORE, commands=6)
    assert (figures.mishaps, figures.told, figures.commands) == (2, [], 6)
    assert found.once + len(found.erased) == 60
    assert found.once > 0


OTHERS = """
campaign: {board: unix, messages: 160, max_size: 200, ahead: 1, patience_s: 60}
events:
- {board: clock, at: 5, step_s: -34560000}
- {board: power, at: 0, bytes: 4000, delay_s: 60}
- {board: clock, at: 50, step_s: 3600}
- {queue manager: clock, at: 10, step_s: 34560000}
- {queue manager: kill, at: 30}
- {queue manager: clock, at: 50, step_s: -34560000}
- {name server: dead, at: 3}
"""


def test_clocks_that_step_and_a_dead_name_server(tmp_path: Path, play: Play) -> None:
    """The board asks the name server after its start."""
    path = tmp_path / "scenario.yaml"
    path.write_text(OTHERS)
    figures, _ = play(**{**vars(read(path)), "artefacts": tmp_path})
    others = {"board: clock": 2, "queue manager: clock": 2, "name server: dead": 1}
    assert figures.others == figures.others_asked == others
    assert others.keys() <= {what for _, what, _ in figures.timeline.faults}
    assert figures.unanswered > 0


@pytest.mark.rule("B-098", "B-158", "B-271", "A-01", "A-08")
def test_every_accepted_reading_is_in_the_queue_once_and_in_order_and_every_command_is_executed_once(
    place: str, campaign_on: Callable[[str, tuple[int, int, int, int]], Figures]
) -> None:
    figures = campaign_on(place, FORM.get(place, (60, 12, 2, 6)))
    assert figures.shortcomings() == [], f"seed {figures.seed}"
    assert figures.comparison is not None
    sent, commands = figures.messages, figures.commands_asked
    line = f"{sent} sent, {sent} received once, in order, 0 lost, 0 duplicated"
    assert figures.comparison.line() == line + (f", {commands} commands executed once" if commands else "")
    if place in EMULATED and place != "cpython":
        assert figures.core == CORE.get(place, "c-module")
