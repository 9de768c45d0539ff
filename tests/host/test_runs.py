"""Header prediction: whatever comes, a queue manager that takes messages in runs decides, stores, answers and remembers
just what one does that takes each by itself.

Two of them get the same bytes in the same pieces at the same times: runs of several streams and queues on several
connections, with gaps, repetitions, changed bits, other headers, internal packets in between, quotas and disks that are
full, failing stores and connections that break. After each step all of the two is compared.
"""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack_into
from typing import Any

import pytest
from mqqb import build, parse

from hil.dice import new_seed
from tests.support.host_peer import direct
from tests.support.run_traffic import (
    ALL,
    CHANGES,
    DELIVER,
    DESTINATIONS,
    POLL,
    SEND,
    TAKE,
    TICK,
    Action,
    Play,
    random_actions,
    same_numbers,  # noqa: F401 - a fixture
)

DAYS = 4


def _play(folder: Path, number: int, actions: list[Action]) -> int:
    """How many messages were accepted in runs."""
    with Play(folder, number) as play:
        for action in actions:
            play.act(action)
        play.act((DELIVER, 1 << 30, 1 << 30, 1 << 30))
        play.act((TICK, 20_000))
        play.act((POLL,))
        return play.twins[0].at_once


# ---- one change at a time ------------------------------------------------------------------------


@pytest.mark.rule("B-098", "B-250", "B-262", "B-264", "B-265", "B-270", "B-272", "B-282", "B-284", "B-288")
@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES)
def test_each_change_in_a_run_is_decided_like_in_single_messages(tmp_path: Path, how: str) -> None:
    change = CHANGES.index(how)
    everywhere, forwarded = range(len(DESTINATIONS)), (0, 2, len(DESTINATIONS) - 1)
    at_once = 0
    for turn, (number, places, at, value) in enumerate(((0, everywhere, 1, 30), (7, forwarded, 10, 113))):
        actions: list[Action] = []
        for place in places:
            actions += [(SEND, 0, place, 20, change, at, value), ALL]
            actions += [(SEND, 0, place, 20, 0, 0, 0), ALL, (TICK, 20), (SEND, 1, place, 3, 0, 0, 0)]
            actions += [(SEND, 2, place, 5, change, at, value), ALL]
            actions += [(TAKE, 0, 1000), (TAKE, 1, 1000), (TAKE, 2, 1000), (TAKE, 3, 1000)]
        at_once += _play(tmp_path / str(turn), number, actions)
    print(f"{at_once} messages in runs")
    assert at_once > 60


# ---- generated -----------------------------------------------------------------------------------


@pytest.mark.rule("B-098", "B-250", "B-262", "B-270", "B-272", "B-282", "B-284", "B-285")
@pytest.mark.slow
def test_long_days_of_runs_are_decided_like_single_messages(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed)
    at_once = 0
    for day in range(DAYS):
        draw = random.Random(f"{seed}/{day}")
        actions = [action for action, _ in zip(random_actions(draw), range(100), strict=False)]
        at_once += _play(tmp_path / str(day), (seed + day) % 8, actions)
    print(f"{at_once} messages in runs")
    assert at_once > 150 * DAYS


# ---- what is predicted ---------------------------------------------------------------------------


def _messages(first: int, count: int, queue: str = "line1", **properties: Any) -> bytes:
    out = bytearray()
    for number in range(first, first + count):
        packet = build.user_message(b"\1" * 16, number, direct(queue), b"x", delivery="transactional", **properties)
        pack_into("<II", packet, parse.transaction_offset(packet) + 12, number, number - 1)
        out += packet
    return bytes(out)
