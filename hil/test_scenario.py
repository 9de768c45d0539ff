"""What a seed plans is what was asked for, and nothing befalls a long campaign before the window was full."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from hil.boards import MISHAP, POWER, RESET, Board, Limits
from hil.faults import DOWN, ONE_WAY
from hil.scenario import (
    BEFALL,
    BOARD,
    KILL_DELAY_MAX_S,
    MANAGER,
    MISHAPS,
    OFF_TIME_MAX_S,
    RESTORE,
    WINDOW,
    Settings,
    cuts_of,
    kills_of,
    plan_kills,
    planned,
)


def board(line: Path | None = None, *ways: str) -> Board:
    """What a plan wants to know of one."""
    return cast(Board, SimpleNamespace(ways=(POWER, *ways), line=line))


@settings(max_examples=30)
@given(
    *(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 9), st.integers(0, 7)),
    *(st.sampled_from(["", *MISHAPS]), st.sampled_from([None, Path("line")])),
)
def test_a_seed_plans_as_many_faults_as_asked_and_the_same_again(
    seed: int, messages: int, cuts: int, kills: int, mishap: str, line: Path | None
) -> None:
    wanted = Settings(messages, cuts, kills, seed, "mps2-uart", 512, mishap=mishap)
    made = planned(wanted, board(line, RESET))
    assert planned(wanted, board(line, RESET)) == made
    assert planned(made, board()) == made, "a plan of its own stays"
    plan = made.plan or ()
    assert (len(cuts_of(plan)), len(kills_of(plan, BOARD)), len(kills_of(plan, MANAGER))) == (cuts, kills, kills)
    for victim, kinds in ((BOARD, BEFALL), (MANAGER, (RESTORE,))):
        ways = Counter(kill.way for kill in kills_of(plan, victim))
        assert ways[MISHAP] == (-(-kills // 2) if mishap in kinds else 0)


@given(st.integers(0, 2**31), st.integers(0, 10), st.integers(0, 2000))
def test_kills_are_spread_and_early_enough(seed: int, kills: int, messages: int) -> None:
    plan = plan_kills(seed, "board", kills, messages)
    counts = [kill.count for kill in plan]
    assert counts == sorted(counts)
    assert all(0 <= count <= 0.9 * messages for count in counts)
    assert all(0 <= kill.delay_s <= KILL_DELAY_MAX_S and 0 <= kill.off_s <= OFF_TIME_MAX_S for kill in plan)


def test_ways_take_turns() -> None:
    plan = plan_kills(3, "board", 5, 1000, (POWER, RESET))
    assert [kill.way for kill in plan] == [POWER, RESET, POWER, RESET, POWER]
    counts = [plan_kills(seed, "board", 3, 5, (MISHAP, POWER))[0].count for seed in range(20)]
    assert min(counts) == 1, "who has accepted nothing may have no outbox"


def test_long_campaign_starts_faults_after_full_window() -> None:
    of_hil = Settings(200, 20, 3, 1, "unix").for_board(Limits())
    ahead = of_hil.ahead or 0
    assert ahead > WINDOW
    plan = planned(of_hil, board()).plan or ()
    first, *cuts = cuts_of(plan)
    assert (first.kind, first.direction, len(cuts)) == (ONE_WAY, DOWN, 19)
    assert min(cut.after for cut in cuts) >= of_hil.traffic(ahead)
    assert min(kill.count for kill in kills_of(plan, BOARD, MANAGER)) >= ahead
    for short in (replace(of_hil, messages=2 * ahead - 1), replace(of_hil, ahead=WINDOW), replace(of_hil, tls=True)):
        assert first not in (planned(short, board()).plan or ())
