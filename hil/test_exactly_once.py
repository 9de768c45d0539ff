"""The guarantee, on every kind of board that is here: the short form of the campaign, with the real queue manager."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hil.conftest import Play
from hil.progress import AHEAD
from hil.report import Figures
from hil.scenario import BEFALL, COPY, FULL, OFFLINE, RESTORE
from hil.targets import EMULATED, MICROCONTROLLERS
from hil.test_planted import copied, on_unix, resend_soon

CORE = {"unix-twin": "python"}
FORM = dict.fromkeys(MICROCONTROLLERS, (20, 4, 1))


@pytest.mark.rule("B-056", "B-079", "B-426", "A-22")
@pytest.mark.parametrize("mishap", BEFALL)
def test_mishap_loses_only_erased_messages(mishap: str, play: Play, tmp_path: Path) -> None:
    """Without a clock, too: no number comes again, nothing is called stored that is not there, nothing hangs."""
    # No cuts: how much traffic there will be is not known. The first kill may come before there is an outbox.
    board, kills = "unix", 3
    if mishap == COPY:  # a sequence that is refused is given up when it is resent
        resend_soon(firmware := copied("firmware", tmp_path / "soon"))
        board, kills = on_unix(firmware), 5
    figures, found = play(board, messages=30, cuts=0, kills=kills, max_size=1024, mishap=mishap, ahead=30)
    assert figures.mishaps >= (2 if mishap == COPY else 1)
    assert found.once + len(found.erased) == 30
    assert figures.told in ([], [AHEAD]), "of numbers that were given twice it says so, when it hears of them"


@pytest.mark.parametrize(("board", "mishap", "messages"), [("unix", OFFLINE, 80), ("mps2-eth", FULL, 120)])
def test_messages_pending_during_outage_arrive_exactly_once(board: str, mishap: str, messages: int, play: Play) -> None:
    """The board is killed meanwhile, and once more when all waits on it."""
    figures, found = play(board, messages=messages, cuts=0, kills=1, max_size=200, mishap=mishap)
    assert (figures.mishaps, figures.told) == (1, [])
    assert found.line().startswith(f"{messages} sent, {messages} received once, in order, 0 lost")


@pytest.mark.rule("B-426", "B-056", "A-22")
def test_restored_queue_manager_loses_only_later_messages(play: Play) -> None:
    """What the board sends from then on arrives, once and in order."""
    figures, found = play("unix", messages=60, cuts=4, kills=3, max_size=200, mishap=RESTORE)
    assert (figures.mishaps, figures.told) == (2, [])
    assert found.once + len(found.erased) == 60
    assert found.once > 0


@pytest.mark.rule("B-098", "B-158", "B-271", "A-01", "A-08")
def test_accepted_readings_are_queued_once_in_order(
    place: str, campaign_on: Callable[[str, tuple[int, int, int]], Figures]
) -> None:
    figures = campaign_on(place, FORM.get(place, (40, 8, 2)))
    assert figures.shortcomings() == [], f"seed {figures.seed}"
    assert figures.comparison is not None
    sent = figures.messages
    assert figures.comparison.line() == f"{sent} sent, {sent} received once, in order, 0 lost, 0 duplicated"
    if place in EMULATED and place != "cpython":
        assert figures.core == CORE.get(place, "c-module")
