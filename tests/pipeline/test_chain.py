"""From a board to a table with every process on the way killed by SIGKILL. `make pipeline` is the long form."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hil.dice import new_seed
from hil.pipeline import Settings, run_campaign
from hil.targets import MICROPYTHON


@pytest.mark.timeout(600)
@pytest.mark.rule("B-098", "B-158", "B-166", "B-301")
def test_readings_reach_table_once_in_order_despite_kills(tmp_path: Path) -> None:
    seed = new_seed()
    board = "unix" if MICROPYTHON["unix"].exists() else "cpython"
    print("seed", seed, "on", board)
    settings = Settings(messages=150, kills=1, seed=seed, board=board, artefacts=tmp_path)
    figures = asyncio.run(run_campaign(settings))
    assert figures.shortcomings() == []
    print(figures.line())
    assert figures.segments > 3
