"""The guarantee, on every kind of board that is here: the short form of the campaign, with the real queue manager."""

import asyncio
import random
from pathlib import Path

import pytest
from rich.console import Console

from hil.boards import BoardMissing
from hil.campaign import ORDACK, Settings, run_campaign
from hil.targets import KINDS

CORE = {"unix-twin": "python"}
FORM = {"pi-machine": (30, 6, 1), "mps2-eth": (40, 8, 2), "mps2-uart": (40, 8, 2)}  # machines that take their time


@pytest.mark.rule("B-056", "B-079", "B-426", "A-22")
@pytest.mark.parametrize("board", ["unix", "unix-twin", "mps2-eth"])
def test_an_erased_outbox_loses_what_it_held_and_nothing_else(board: str, tmp_path: Path) -> None:
    """Without a clock, too: no number comes again, nothing is called stored that is not there, nothing hangs."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    settings = Settings(40, 0, 4, seed, board, deadline_s=100.0, artefacts=tmp_path, erase=True)  # no traffic is sure
    try:
        figures = asyncio.run(run_campaign(settings, Console()))
    except BoardMissing as reason:
        pytest.skip(str(reason))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.comparison is not None
    assert figures.comparison.once + len(figures.comparison.erased) == 40


@pytest.mark.rule("B-098", "B-158", "B-271", "A-01", "A-08")
@pytest.mark.parametrize("board", KINDS)
def test_every_accepted_reading_is_in_the_queue_once_and_in_order(board: str, tmp_path: Path) -> None:
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    messages, cuts, kills = FORM.get(board, (60, 12, 2))
    settings = Settings(messages, cuts, kills, seed, board, deadline_s=250.0, artefacts=tmp_path)
    try:
        figures = asyncio.run(run_campaign(settings, Console()))
    except BoardMissing as reason:
        pytest.skip(str(reason))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.comparison is not None
    expected = f"{messages} sent, {messages} received once, in order, 0 lost, 0 duplicated"
    assert figures.comparison.line() == expected
    if board != "cpython":
        assert figures.core == CORE.get(board, "c-module")
