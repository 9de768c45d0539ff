"""The shrinker finds what makes a scenario fail, keeps the best at any time, and says it when nothing fails."""

import asyncio
import io
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hil.boards import ProcessBoard
from hil.conftest import STANDIN
from hil.faults import UP, Cut
from hil.report import RIG_FAILED
from hil.scenario import Event, Kill, Settings, read
from hil.shrink import Shrinker, fewer_kinds, main, shrink

EVENTS: tuple[Event, ...] = (*(Cut(k, UP, 1, "rst", 1) for k in range(20)), *(Kill(k, 0.0, 0.0) for k in range(20)))


@given(st.sets(st.integers(0, 39), max_size=4), st.integers(1, 60), st.integers(0, 39))
def test_what_makes_it_fail_remains_and_nothing_else(needed: set[int], least: int, last: int) -> None:
    """Events are told by their lengths, which nothing changes."""
    events = tuple(
        replace(event, position=k + 1) if isinstance(event, Cut) else replace(event, bytes=k + 1)
        for k, event in enumerate(EVENTS[: last + 1])
    )
    needed = {k for k in needed if k <= last}

    def fails(scenario: Settings) -> bool:
        left = {event.position if isinstance(event, Cut) else event.bytes for event in scenario.plan or ()}
        return scenario.messages >= least and {k + 1 for k in needed} <= left

    found = shrink(Settings(60, plan=events), fails)
    assert fails(found)
    assert len(found.plan or ()) == len(needed)
    assert found.messages < 2 * max(least, len(needed)), "half of them would not do"


def test_a_kind_that_is_not_needed_is_tried_once_and_not_event_for_event() -> None:
    tried = []

    def fails(shorter: Settings) -> bool:
        tried.append(len(shorter.plan or ()))
        return EVENTS[25] in (shorter.plan or ())

    found = fewer_kinds(Settings(40, plan=EVENTS), fails)
    assert (found.plan, tried) == (EVENTS[20:], [20, 0])


def test_events_come_after_the_same_share_of_fewer_messages() -> None:
    found = shrink(Settings(40, plan=EVENTS[35:36]), lambda scenario: bool(scenario.plan) and scenario.messages >= 20)
    assert (found.messages, found.plan) == (20, (Kill(7, 0.0, 0.0),))


@pytest.mark.parametrize("must_wait", [False, True])
def test_a_kill_waits_only_if_it_has_to(must_wait: bool) -> None:
    """One that waits for a byte finds a fault more seldom than one that comes when the board has most to lose."""
    kill = Kill(9, 1.0, 0.1, bytes=700)

    def fails(shorter: Settings) -> bool:
        return kill in (shorter.plan or ()) if must_wait else bool(shorter.plan)

    assert shrink(Settings(1, plan=(kill,)), fails).plan == (kill if must_wait else Kill(9, 0.0, 0.1),)


@pytest.mark.parametrize("needed", [0, 2, 3])
def test_a_power_browns_out_no_longer_than_it_has_to(needed: int) -> None:
    def fails(shorter: Settings) -> bool:
        return any(isinstance(event, Kill) and event.dips >= needed for event in shorter.plan or ())

    found = shrink(Settings(2, plan=(Kill(1, 0.0, 0.1), Kill(1, 0.0, 0.1, dips=4, on_s=1.0))), fails)
    assert found.plan == (Kill(0, 0.0, 0.1, dips=needed, on_s=1.0 if needed else 0.0),)


def scenario(folder: Path, fault: str, messages: int = 30) -> Path:
    path = folder / "scenario.yaml"
    queue_manager = shlex.join([sys.executable, str(STANDIN), "--fault", fault])
    path.write_text(f"""\
campaign:
  {{board: cpython, seed: 5, messages: {messages}, max_size: 50, application: {STANDIN}, ordack: {queue_manager}}}
events:
- {{cut: rst, up: 700}}
- {{board: power, at: 9}}
- {{queue manager: kill, at: 20}}
""")
    return path


def test_a_lost_message_needs_no_event(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario(tmp_path, "lose:2", 4)
    path.write_text("\n".join(path.read_text().splitlines()[:-2]))
    assert main([str(path), "--runs", "1", "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert (said["ok"], said["symptoms"], said["failed"], said["runs"]) == (True, ["false", "lost"], 1, 1)
    assert (said["events"], said["messages"]) == (0, 2)
    assert said["to"] == str(tmp_path / "scenario.shortest.yaml")
    assert read(Path(said["to"])).messages == 2
    for part in ("run 1: 1 events, 4 messages: fails: false, lost", f"--scenario {said['to']}", "events: []"):
        assert part in captured.err


def test_a_scenario_that_does_not_fail_is_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scenario(tmp_path, "none:0", 5)
    path.write_text(path.read_text().replace("at: 9", "at: 2").replace("at: 20", "at: 3"))
    assert main([str(path), "--runs", "2"]) == 1
    assert "does not fail in 2 runs" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_leaves_the_best_so_far(
    tmp_path: Path, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, left = scenario(tmp_path, "none:0"), [{"lost"}, {"duplicated"}, {"lost", "reordered"}, {"lost"}]

    def symptoms(*_: object) -> set[str]:
        if not left:
            raise interrupt
        return left.pop(0)

    monkeypatch.setattr(Shrinker, "symptoms", symptoms)
    assert main([str(path), "--runs", "1", "--json", "--to", str(tmp_path / "best")]) == 130
    captured = capsys.readouterr()
    assert "the best so far" in captured.err
    assert json.loads(captured.out)["interrupted"]
    assert read(tmp_path / "best").plan == read(path).plan[1:]  # type: ignore[index]


@pytest.mark.parametrize(("failing", "counts"), [([1, 0, 0, 0], False), ([0, 1, 0, 1], True), ([1, 1], True)])
def test_what_fails_once_and_not_again_does_not_count(
    failing: list[int], counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shrinker, "symptoms", lambda *_: {"lost"} if failing.pop(0) else set())
    shrinker = Shrinker(Settings(), 3, tmp_path / "best", Console(file=io.StringIO()))
    shrinker.found.symptoms = ["lost"]
    shorter = Settings(1, plan=())
    assert shrinker.fails(shorter) == counts
    assert failing == []
    assert (shrinker.best == shorter) == (tmp_path / "best").exists() == counts
    if not counts:
        assert not shrinker.fails(shorter), "it is known, and not run again"


def test_every_way_in_which_the_first_runs_failed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fault leads to now and then, such as a board that gives up, may hide what it always does."""
    runs = [{"the board gave up"}, {"lost"}]
    monkeypatch.setattr(Shrinker, "symptoms", lambda *_: runs.pop(0) if runs else {"lost"})
    assert main([str(scenario(tmp_path, "none:0", 20)), "--runs", "2"]) == 0
    assert read(tmp_path / "scenario.shortest.yaml").plan == ()


def test_another_way_to_fail_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [{"lost"}, {"the board ended by itself"}]
    monkeypatch.setattr(Shrinker, "symptoms", lambda *_: runs.pop(0) if runs else {"duplicated"})
    assert main([str(scenario(tmp_path, "none:0", 20)), "--runs", "1"]) == 0
    assert len(read(tmp_path / "scenario.shortest.yaml").plan or ()) == 3


def test_a_switch_that_fails_is_no_failure_of_the_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_hub(*_: object) -> None:
        raise OSError("board cpython: no hub")

    monkeypatch.setattr(ProcessBoard, "power_up", no_hub)
    assert main([str(scenario(tmp_path, "none:0"))]) == RIG_FAILED
    assert "board cpython: no hub" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["scenario.yaml"]


def test_wrong_use_is_status_2_and_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.yaml").write_text("campaign: {board: unix}\nevents:\n- {cut: rst, up: 0}\n")
    for words, reason in (
        ([str(tmp_path / "none.yaml")], "none.yaml: No such file or directory"),
        ([str(tmp_path)], "Is a directory"),
        ([str(tmp_path / "wrong.yaml")], "wrong.yaml:3: up: 0 is not a whole number of 1 or more"),
    ):
        assert main(words) == 2
        assert reason in capsys.readouterr().out
    for wrong, reason in (
        (["--runs", "0"], "--runs 0: at least one run"),
        (["--to", str(tmp_path / "no" / "best.yaml")], f"no folder {tmp_path}/no"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path / "wrong.yaml"), *wrong])
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["wrong.yaml"]
