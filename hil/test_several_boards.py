"""A campaign with several boards: each has its own verdict, and one that fails holds up no other."""

import asyncio
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hil.boards import BoardMissing
from hil.campaign import main, run_boards
from hil.dice import new_seed
from hil.report import Figures
from hil.scenario import ORDACK, Settings

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


def run(boards: list[str], wanted: Settings) -> list[Figures]:
    try:
        return asyncio.run(run_boards(wanted, boards, Console()))
    except BoardMissing as reason:
        pytest.skip(str(reason))


@pytest.mark.rule("B-098", "B-158", "B-271", "A-01", "A-08")
@pytest.mark.timeout(300)
def test_several_boards_deliver_once_in_order(tmp_path: Path) -> None:
    wanted = settings(tmp_path, messages=40, cuts=5, kills=2)
    found = run(["unix", "unix", "unix-twin", "cpython"], wanted)
    assert [one.shortcomings() for one in found] == [[]] * 4
    assert [one.core for one in found][:3] == ["c-module", "c-module", "python"]
    for one in found:
        assert (len(one.cuts), one.board_kills, one.manager_kills) == (5, 2, 2)
        assert one.plan["queue manager"] == found[0].plan["queue manager"]
    assert len({str(one.plan["cuts"]) for one in found}) == 4, "each has a plan of its own"
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(300)
def test_each_board_is_accused_of_its_own_only(tmp_path: Path) -> None:
    """By a queue manager that hands out what it has not as it has it: what came of no board accuses the first."""
    bent = tmp_path / "bent.py"
    bent.write_text(BENT.replace("ORDACK", repr(ORDACK[0])))
    ordack = (sys.executable, str(bent))
    wanted = settings(tmp_path / "kept", messages=12, cuts=0, kills=0, max_size=200, ordack=ordack)
    faults = [one.comparison.faults if one.comparison else {} for one in run(["unix"] * 4, wanted)]
    assert [sorted(found) for found in faults] == [
        ["corrupt", "duplicated", "false", "lost", "reordered"],
        ["duplicated", "reordered"],
        ["reordered"],
        [],
    ]
    assert faults[0]["lost"] == [5]
    assert faults[1]["duplicated"] == [4]
    (kept,) = (tmp_path / "kept").iterdir()
    said = json.loads((kept / "2" / "figures.json").read_text())
    assert said["comparison"]["duplicated"] == [4]


@pytest.mark.timeout(300)
def test_failed_board_is_reported_and_other_boards_continue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LG_ENV", raising=False)
    form = ("--messages", "15", "--cuts", "2", "--kills", "1", "--max-size", "300", "--json")
    status = main(["--board", "exec:/bin/false", "--board", "cpython", *form])
    captured = capsys.readouterr()
    said = captured.err
    assert (status, "FAILED: exec:/bin/false 1: the board ended by itself" in said) == (1, True), said
    assert "FAILED: cpython" not in said
    assert [one["ok"] for one in map(json.loads, captured.out.splitlines())] == [False, True]
    (kept,) = re.findall(r"store are kept in (\S+)", said)
    shutil.rmtree(kept)


def test_missing_board_gives_status_2_and_releases_other_boards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LG_ENV", raising=False)
    closed = list[str]()
    monkeypatch.setattr("hil.boards.ProcessBoard.close", lambda board: closed.append(board.target))
    with pytest.raises(BoardMissing, match="pico-7"):
        asyncio.run(run_boards(settings(tmp_path), ["cpython", "cpython", "pico-7"], Console()))
    assert closed == ["cpython", "cpython"]
    with pytest.raises(SystemExit):
        main(["--board", "cpython", "--board", "cpython", "--tls"])
    assert "several boards at one queue manager take no mishap" in capsys.readouterr().err
