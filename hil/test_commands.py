"""Commands to a board: given as planned, and judged by the board's own record."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from hil import sensor
from hil.commands import Commands
from hil.queue_manager import CampaignFailed, QueueManager
from hil.report import Comparison, read_ledger


class Taker:
    """A queue manager that refuses the sends of these turns, from 1, and was killed so often."""

    def __init__(self, refuses: set[int], kills: int) -> None:
        self.using = asyncio.Lock()
        self.asked: list[tuple[int, int]] = []
        self.kills = kills
        self._refuses = refuses
        self.progress = SimpleNamespace(accepted=0)

    async def command(self, *words: str) -> str:
        assert self.using.locked(), "a store that is put back is used by nobody meanwhile"
        assert words[:2] == ("send", "PRIVATE=6164726F-6B63-632D-616D-706169676E21\\1F")
        self.asked.append((int(words[3]), self.progress.accepted))
        if len(self.asked) in self._refuses:
            raise CampaignFailed("ended with status 1: in doubt")
        return ""


def give(commands: Commands, taker: Taker, messages: int) -> None:
    async def test() -> None:
        task = asyncio.create_task(commands.give(cast(QueueManager, taker), taker.progress, messages))
        while not task.done():
            taker.progress.accepted += 1
            seen = len(taker.asked)
            await asyncio.sleep(0.02)
            assert len(taker.asked) <= seen + 2
        await task

    asyncio.run(test())


def test_commands_are_spread_over_the_readings_and_one_that_a_kill_met_is_in_doubt() -> None:
    commands, taker = Commands(3), Taker({2}, kills=1)
    give(commands, taker, 8)
    assert (commands.given, commands.perhaps) == ([1, 3, 4], {2})
    assert [number for number, _ in taker.asked] == [1, 2, 3, 4]
    assert all(accepted >= at for (_, accepted), at in zip(taker.asked, (2, 4, 4, 6), strict=True))


def test_a_command_that_is_refused_without_a_kill_ends_the_campaign() -> None:
    with pytest.raises(CampaignFailed, match="in doubt"):
        give(Commands(3), Taker({1, 3}, kills=1), 8)


def test_what_was_given_after_the_backup_that_is_put_back_may_be_missing_and_nothing_else() -> None:
    commands = Commands(4, given=[1, 2])
    commands.store_saved()
    commands.given.append(3)
    commands.store_put_back()
    commands.given.append(4)
    assert commands.perhaps == {3}
    assert not commands.executed(3)
    assert commands.executed(4)
    for executed, missing in (([1, 2, 4], []), ([1, 2, 3, 4], []), ([1, 4], [2]), ([1, 2, 3], [4])):
        assert judged(commands, *((k, str(k)) for k in executed)).unexecuted == missing


def judged(commands: Commands, *executed: tuple[int, str]) -> Comparison:
    """The verdict on a board that says that it has executed these, with these bodies."""
    record = b"".join(sensor.line_of(k, body.encode(), 7) for k, body in executed)
    result = Comparison(0, 0, 0)
    commands.judge(result, read_ledger(record))
    return result


@pytest.mark.parametrize(
    ("executed", "wrong"),
    [
        ([(1, "1"), (1, "1"), (2, "2"), (3, "3")], ["command 1: 2 times"]),
        ([(1, "1"), (3, "3"), (2, "2")], ["command 2: after command 3"]),
        ([(1, "1"), (2, "3"), (3, "3")], ["command 2: another body"]),
        ([(1, "1"), (2, "2"), (3, "3"), (9, "9")], ["command 9: nobody gave it"]),
        ([(1, "1"), (2, "2"), (3, "3"), (4, "4")], []),
    ],
)
def test_a_board_that_executes_otherwise_is_found_out(executed: list[tuple[int, str]], wrong: list[str]) -> None:
    result = judged(Commands(3, given=[1, 2, 3], perhaps={4}), *executed)
    assert result.misexecuted == wrong
    assert result.faults == ({"misexecuted": wrong} if wrong else {})


def test_the_board_executes_what_was_handed_out_before_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def inbox(*numbers: int, again: bool) -> None:
        async def comes() -> AsyncIterator[SimpleNamespace]:
            for turn, number in enumerate(numbers):
                yield SimpleNamespace(body=b"%d" % number, message_id=number, again=again and turn == 0)

        await sensor.Sensor({"max_size": 0}, None, "stand-in").obey(comes())

    for numbers, again in (((1, 2), False), ((2, 3), True), ((4, 5), True)):
        asyncio.run(inbox(*numbers, again=again))
    assert [entry.k for entry in read_ledger((tmp_path / sensor.COMMANDS).read_bytes())] == [1, 2, 3, 4, 5]
