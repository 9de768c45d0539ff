"""Many boards at one queue manager: each has its own verdict, and one that fails holds up no other."""

import asyncio
import io
import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hil.boards import BoardMissing, ProcessBoard
from hil.campaign import main as campaign_command
from hil.conftest import STANDIN
from hil.dice import new_seed
from hil.fleet import Fleet, main, prepared, run_fleet
from hil.report import RIG_FAILED
from hil.scenario import BOARD, MANAGER, ORDACK, Settings, cuts_of, is_kill, kills_of, read
from hil.shrink import main as shrink_command

BENT = """
import json, os, subprocess, sys
ordack = ORDACK
if sys.argv[1] != "receive":
    os.execv(ordack, [ordack, *sys.argv[1:]])
lines = subprocess.run([ordack, *sys.argv[1:]], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
boards = {}
for line in lines:
    boards.setdefault(json.loads(line)["source"], []).append(line)
first, second, third, fourth = (boards[source] for source in sorted(boards))
del first[4]
second.insert(9, second[3])
third[2], third[5] = third[5], third[2]
fourth.append(fourth[-1].replace(json.loads(fourth[-1])["source"], "11111111-2222-3333-4444-555555555555"))
print("\\n".join([*fourth, *third, *second, *first]))
"""


def settings(tmp_path: Path, **changes: object) -> Settings:
    seed = new_seed()
    print(f"seed {seed}")
    wanted: dict[str, object] = {"seed": seed, "artefacts": tmp_path, "patience_s": 180.0, "deadline_s": 280.0}
    return Settings(**{**wanted, **changes})  # type: ignore[arg-type]


def run(boards: list[str], wanted: Settings) -> Fleet:
    try:
        return asyncio.run(run_fleet(replace(wanted, boards=tuple(boards)), Console()))
    except BoardMissing as reason:
        pytest.skip(str(reason))


@pytest.mark.rule("B-271", "A-01")
@pytest.mark.timeout(300)
def test_many_boards_at_one_queue_manager_are_each_there_once_and_in_order(tmp_path: Path) -> None:
    wanted = settings(tmp_path, messages=40, cuts=5, kills=2)
    fleet = run(["unix", "unix", "unix-twin", "cpython"], wanted)
    assert list(fleet.boards) == ["unix 1", "unix 2", "unix-twin 3", "cpython 4"]
    assert [one.shortcomings() for one in fleet.boards.values()] == [[]] * 4
    for one in fleet.boards.values():
        assert (len(one.cuts), one.board_kills, one.manager_kills) == (5, 2, 2)
        assert one.plan["queue manager"] == fleet.boards["unix 1"].plan["queue manager"]
    assert len({str(one.plan["cuts"]) for one in fleet.boards.values()}) == 4, "each has a plan of its own"
    assert fleet.matrix().ok
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(300)
def test_each_board_is_accused_of_its_own_only(tmp_path: Path) -> None:
    """By a queue manager that hands out what it has not as it has it: what came of no board accuses the first."""
    bent = tmp_path / "bent.py"
    bent.write_text(BENT.replace("ORDACK", repr(ORDACK[0])))
    ordack = (sys.executable, str(bent))
    wanted = settings(tmp_path / "kept", messages=12, cuts=0, kills=0, max_size=200, ordack=ordack)
    fleet = run(["unix"] * 4, wanted)
    found = [one.comparison.faults if one.comparison else {} for one in fleet.boards.values()]
    assert [sorted(faults) for faults in found] == [
        ["corrupt", "duplicated", "false", "lost", "reordered"],
        ["duplicated", "reordered"],
        ["reordered"],
        [],
    ]
    assert found[0]["lost"] == [5]
    assert found[1]["duplicated"] == [4]
    out = io.StringIO()
    Console(file=out, width=80).print(fleet.table())
    assert [line.split("│")[-2].strip() for line in out.getvalue().splitlines() if line.startswith("│")] == [
        *["FAILED"] * 3,
        "well",
    ]
    (kept,) = (tmp_path / "kept").iterdir()
    said = json.loads((kept / "2" / "figures.json").read_text())
    assert said["comparison"]["duplicated"] == [4]
    assert read(kept / "scenario.yaml").boards == ("unix",) * 4


FLEET = """\
campaign: {boards: cpython exec:/bin/false cpython, seed: 5, messages: 8, max_size: 99}
events:
- {cut: rst, up: 700, of: 3}
- {board: power, at: 2, dips: 2, of: 3}
- {board: power, at: 4}
- {queue manager: kill, at: 3}
"""


@pytest.mark.timeout(300)
def test_a_fleet_that_fails_is_a_scenario_that_shrinks_to_the_board_and_the_events_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LG_ENV", raising=False)
    path = tmp_path / "mine.yaml"
    path.write_text(FLEET)
    assert main(["--scenario", str(path), "--json"]) == 1
    told = capsys.readouterr()
    figures = {name: one["figures"] for name, one in json.loads(told.out)["boards"].items()}
    assert [one["ok"] for one in figures.values()] == [True, False, True]
    assert list(figures) == ["cpython 1", "exec:/bin/false 2", "cpython 3"]
    assert [len(one["cuts"]) + one["board_kills"] for one in figures.values()] == [1, 0, 2]
    assert [one["others"] for one in figures.values()] == [{}, {}, {"board: dip": 1}]
    (kept,) = re.findall(r"python -m hil.fleet --scenario (\S+)", told.err)
    again, mine = read(Path(kept)), read(path)
    assert sorted(map(str, again.plan or ())) == sorted(map(str, mine.plan or ()))
    assert replace(again, plan=()) == replace(mine, plan=())
    assert shrink_command([kept, "--runs", "1", "--to", str(tmp_path / "best.yaml")]) == 0
    best = read(tmp_path / "best.yaml")
    assert (best.boards, best.plan) == (("exec:/bin/false",), ())
    assert f"python -m hil.fleet --scenario {tmp_path}/best.yaml" in capsys.readouterr().out
    shutil.rmtree(Path(kept).parent)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("campaign: {boards: unix, board: unix}", ":1: boards: has to name those of a fleet"),
        ("campaign: {boards: ''}", ":1: boards: has to name those of a fleet"),
        ('campaign: {boards: "unix \'a"}', ":1: boards: No closing quotation"),
        ("campaign: {boards: unix unix, tls: true}", ":1: many boards at one queue manager take no commands, no mish"),
        ("campaign: {boards: unix unix}\nevents: [{board: power, at: 1, of: 3}]", ":2: of: 3 is none of the 2 boards"),
        ("campaign: {boards: unix unix}\nevents: [{cut: rst, up: 9, of: 0}]", ":2: of: 0 is not a whole number of 1"),
        (
            "campaign: {boards: unix}\nevents: [{queue manager: kill, at: 1, of: 1}]",
            ":2: 'of' is not known here: queue",
        ),
        ("campaign: {board: unix}\nevents: [{cut: rst, up: 9, of: 1}]", ":2: 'of' is not known here: cut, up"),
        ("campaign: {board: unix}", " has one board: .*python -m hil.campaign --scenario"),
    ],
)
def test_a_scenario_that_is_none_of_a_fleet_is_refused_with_its_line(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert main(["--scenario", str(path)]) == 2
    assert re.search(f"^{path}{reason}", capsys.readouterr().out)


def test_one_of_a_fleet_is_for_no_other_command_and_none_of_its_settings_are_overruled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("campaign: {boards: unix unix}")
    assert campaign_command(["--scenario", str(tmp_path / "mine.yaml")]) == 2
    assert "mine.yaml has many boards: " in (said := capsys.readouterr().out)
    assert "python -m hil.fleet --scenario" in said
    for words, reason in (
        (["--scenario", "mine.yaml", "unix", "--seed", "4"], "write board, seed into mine.yaml"),
        ([], "which boards?"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_a_board_that_fails_is_a_row_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LG_ENV", raising=False)
    form = ("--messages", "15", "--cuts", "2", "--kills", "1", "--max-size", "300")
    status = main(["exec:/bin/false", "cpython", *form, "--report", str(tmp_path / "new" / "report")])
    said = capsys.readouterr().out
    assert (status, "FAILED: exec:/bin/false 1: the board ended by itself" in said) == (1, True), said
    assert "FAILED: cpython" not in said
    assert "python -m hil.fleet exec:/bin/false cpython --messages 15 --cuts 2 --kills 1 --max-size 300 --seed" in said
    boards = json.loads((tmp_path / "new" / "report.json").read_text())["boards"]
    verdicts = {name: {cell["verdict"] for cell in one["cells"].values()} for name, one in boards.items()}
    assert verdicts == {"exec:/bin/false 1": {"not shown", "absent"}, "cpython 2": {"shown", "absent"}}
    assert boards["cpython 2"]["figures"]["manager_kills"] == 1
    (kept,) = re.findall(r"python -m hil.fleet --scenario (\S+)", said)
    plan = read(Path(kept)).plan or ()
    assert Counter(cut.of for cut in cuts_of(plan)) == {1: 2, 2: 2}, "each has its own, of those that the seed planned"
    assert Counter(kill.of for kill in kills_of(plan, BOARD) if is_kill(kill)) == {1: 1, 2: 1}
    assert len([kill for kill in kills_of(plan, MANAGER) if is_kill(kill)]) == 1, "that they share"
    shutil.rmtree(Path(kept).parent)


def test_a_board_that_is_not_here_is_status_2_and_the_others_are_let_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LG_ENV", raising=False)
    assert main(["cpython", "pico-7"]) == 2
    assert "no board 'pico-7'" in capsys.readouterr().out
    closed = list[str]()
    monkeypatch.setattr("hil.boards.ProcessBoard.close", lambda board: closed.append(board.target))
    with pytest.raises(BoardMissing, match="pico-7"):
        asyncio.run(prepared(settings(tmp_path, boards=("cpython", "cpython", "pico-7")), tmp_path))
    assert closed == ["cpython", "cpython"]
    with pytest.raises(SystemExit):
        main(["cpython", "--messages", "-1"])
    (tmp_path / "file").touch()
    capsys.readouterr()
    assert main(["pico-7", "--report", str(tmp_path / "file" / "report")]) == 2
    assert "File exists" in (said := capsys.readouterr().out)
    assert "pico-7'" not in said, "it is told before a board is opened"


def standin(fault: str) -> tuple[str, ...]:
    return (sys.executable, str(STANDIN), "--fault", fault)


@pytest.mark.parametrize(
    ("boards", "fault", "reason"),
    [
        (2, "port:1", "the queue manager was to listen on port"),
        (2, "crash:3", "the queue manager ended "),  # by itself, or with status 1 by then
        (1, "dirty:1", "the queue manager ended with status 3 after SIGTERM"),  # the stand-in has one stream
    ],
)
def test_a_queue_manager_that_fails_ends_the_run_and_is_told_and_nothing_lives_on(
    boards: int, fault: str, reason: str, tmp_path: Path
) -> None:
    wanted = settings(tmp_path, messages=9, cuts=0, kills=0, max_size=99, ordack=standin(fault), application=STANDIN)
    fleet = run(["cpython"] * boards, replace(wanted, patience_s=60.0))
    failures = [one.failure or "" for one in fleet.boards.values()]
    assert failures[0].startswith(reason), failures
    assert not fleet.ok
    (kept,) = tmp_path.iterdir()
    assert {"1", "scenario.yaml"} <= {path.name for path in kept.iterdir()}
    assert "--- the last lines of the queue manager:" in failures[0]
    assert [path for path in Path("/proc").glob("[0-9]*") if works_in(path, kept)] == []


def works_in(process: Path, folder: Path) -> bool:
    """Whether a process that has not ended has its working folder there."""
    try:
        return (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def test_a_switch_that_fails_at_the_end_is_that_boards_failure_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, closed = ProcessBoard.close, list[ProcessBoard]()

    def failing(board: ProcessBoard) -> None:
        close(board)
        closed.append(board)
        if len(closed) == 1:
            raise OSError("board cpython: its power switch has not answered for 60 s")

    monkeypatch.setattr(ProcessBoard, "close", failing)
    fleet = run(["cpython", "cpython"], settings(tmp_path, messages=4, cuts=0, kills=0, max_size=99))
    assert len(closed) == 2
    assert [one.failure for one in fleet.boards.values()] == [
        "board cpython: its power switch has not answered for 60 s",
        None,
    ]
    assert fleet.status == RIG_FAILED
