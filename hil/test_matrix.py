"""The matrix: a guarantee is shown only by a campaign that shows it, and one board does not spoil another's column."""

import dataclasses
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from rich.console import Console

from hil import conftest
from hil.boards import ROOT
from hil.faults import UP, Cut, CutMade
from hil.matrix import (
    ABSENT,
    BROKEN,
    COMMANDS,
    CONTENT,
    CUTS,
    GUARANTEES,
    KILLS,
    NOT_SHOWN,
    OTHERS,
    POWER,
    SHOWN,
    Matrix,
    column,
    told,
)
from hil.report import Comparison, Figures, Timeline
from hil.scenario import ORDACK

COUNT = 30
OF_BOARDS = "hil/test_exactly_once.py"  # which has all tests of boards: to collect all others takes 2 s of processor
CUT = CutMade(1, UP, 900, "rst", Cut(0, UP, 900, "rst", 900))


def figures(**changes: Any) -> Figures:
    """The figures of a campaign in which everything went well."""
    wanted = {"comparison": comparison(), "board_kills": 2, "manager_kills": 2, "cuts": [CUT] * 4}
    wanted |= {"commands_asked": 3, "commands": 3}
    wanted |= {"others_asked": {"board: clock": 1}, "others": {"board: clock": 1}}
    return Figures(7, "unix", "unix: a board", COUNT, 4, 2, 2, **{**wanted, **changes})


def comparison(**changes: Any) -> Comparison:
    return dataclasses.replace(Comparison(COUNT, COUNT, COUNT, commands=3), **changes)


def test_commands_are_shown_only_where_all_were_given() -> None:
    for changes, verdict in (({"commands": 2}, NOT_SHOWN), ({"commands_asked": 0, "commands": 0}, ABSENT), ({}, SHOWN)):
        assert column(figures(**changes))[COMMANDS].verdict == verdict


def verdicts(result: Figures | str) -> dict[str, str]:
    return {name: cell.verdict for name, cell in column(result).items()}


def test_everything_well_shows_everything() -> None:
    assert verdicts(figures()) == dict.fromkeys(GUARANTEES, SHOWN)
    assert str(column(figures())[CUTS]) == "shown: 4 of 4"


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        ({"lost": [3], "once": COUNT - 1}, "no accepted reading is lost"),
        ({"duplicated": [3], "once": COUNT - 1}, "none is there twice"),
        ({"reordered": [3]}, "they are in order"),
        ({"corrupt": ["reading 3: other"]}, "they are unaltered"),
        ({"unexpected": ["hello"]}, "nothing else is there"),
        ({"unrecorded": [3], "once": COUNT - 1}, "the board knows what it accepted"),
        ({"misrecorded": [3]}, "the board knows what it accepted"),
        ({"unexecuted": [3], "commands": 2}, COMMANDS),
        ({"misexecuted": ["command 3: 2 times"], "commands": 2}, COMMANDS),
    ],
)
def test_what_is_broken_is_named_and_no_fault_counts_as_survived(broken: dict[str, Any], name: str) -> None:
    cells = verdicts(figures(comparison=comparison(**broken)))
    assert [one for one in GUARANTEES if cells[one] == BROKEN] == [name]
    assert {cells[one] for one in (CUTS, POWER, KILLS, OTHERS)} == {NOT_SHOWN}
    whole = broken.get("once", COUNT) == COUNT
    assert {cells[one] for one in CONTENT if one != name} == {SHOWN if whole else NOT_SHOWN}


def test_a_campaign_that_failed_shows_nothing() -> None:
    cells = column(figures(comparison=None, failure="no progress for 9 s\nand the logs"))
    assert {cell.verdict for cell in cells.values()} == {NOT_SHOWN}
    assert str(cells["they are in order"]) == "not shown: no progress for 9 s"


def test_faults_that_were_not_made_are_not_survived() -> None:
    assert verdicts(figures(cuts=[CUT] * 3))[CUTS] == NOT_SHOWN
    assert verdicts(figures(board_kills=0))[POWER] == NOT_SHOWN
    assert verdicts(figures(others={}))[OTHERS] == NOT_SHOWN
    assert "0 of board: clock instead of 1" in figures(others={}).shortcomings()
    without = figures(cuts=[])
    without.cuts_asked = 0
    assert verdicts(without)[CUTS] == NOT_SHOWN


def matrix(**boards: Figures | str) -> Matrix:
    made = Matrix(7)
    for board, result in boards.items():
        made.add(told(board, result))
    return made


def test_absent_boards_show_nothing_and_spoil_nothing() -> None:
    assert matrix(unix=figures(), pi="board pi: qemu-aarch64 is not installed").ok
    assert not matrix(pi="absent").ok
    assert not matrix().ok
    assert not matrix(unix=figures(), pi=figures(cuts=[])).ok
    assert verdicts("not here") == dict.fromkeys(GUARANTEES, ABSENT)


def test_markdown_table_and_json_say_the_same(tmp_path: Path) -> None:
    timeline = Timeline([(0.0, 0, 0, 0), (4.0, 30, 30, 30)], [(1.0, "board", 0.25), (2.0, "cut", 1.5)])
    hashes = {"firmware": "0123456789abcdef", "application": "fedcba9876543210"}
    made = matrix(unix=figures(timeline=timeline, hashes=hashes), pi="not here")
    made.write(tmp_path / "hil")
    lines = (tmp_path / "hil.md").read_text().splitlines()
    assert lines[2:4] == ["| guarantee | unix | pi |", "|---|---|---|"]
    assert lines[4] == "| no accepted reading is lost | shown: 30 readings | absent: not here |"
    shown = "firmware 0123456789ab, application fedcba987654"
    assert lines[4 + len(GUARANTEES) :] == [
        "| worst recovery, s | 1.50 |  |",
        "| readings a second | 7.5 |  |",
        f"| SHA-256 | {shown} |  |",
    ]
    out = io.StringIO()
    Console(file=out, width=200).print(made.table())
    for name, value in (("worst recovery, s", "1.50"), ("readings a second", "7.5"), ("SHA-256", shown)):
        assert re.search(rf"{name} +│ {value} ", out.getvalue())
    assert out.getvalue().count("shown") == len(GUARANTEES)
    said = json.loads((tmp_path / "hil.json").read_text())
    assert (said["ok"], said["seed"], said["boards"]["pi"]["figures"]) == (True, 7, None)
    numbers = {"worst_recovery_s": 1.5, "mean_recovery_s": 0.875, "recoveries": 2, "readings_per_s": 7.5}
    assert said["boards"]["unix"]["measured"] == said["boards"]["unix"]["figures"]["measured"] == numbers
    assert said["boards"]["pi"]["measured"] is None
    assert json.loads(figures().to_json())["measured"] == {
        "worst_recovery_s": None,
        "mean_recovery_s": None,
        "recoveries": 0,
        "readings_per_s": None,
    }, "what was not measured is no 0"
    assert said["boards"]["unix"]["cells"][POWER] == {"verdict": SHOWN, "ground": "2 of 2"}


RIG = """
imports: [hil.drivers]
targets:
  broken:
    resources: {RawSerialPort: {port: /dev/null}}
    drivers:
      MicroPythonDriver: {}
      ExternalPowerDriver: {cmd_on: "false", cmd_off: "false"}
      NodeDriver: {host: 127.0.0.1}
      BoardStrategy: {}
  wrong: {drivers: {BoardStrategy: {}}}
  burnt: {options: {quarantine: its regulator is burnt}}
  good:
    resources: {EmulatedMachine: {machine: cpython}}
    drivers: {EmulatedNodeDriver: {}, BoardStrategy: {}}
"""


def run_pytest(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *words],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LG_"))},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_every_board_of_a_file_is_tried_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    """By what a runner beside a lab is told."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    texts = [(ROOT / "hil" / "ci" / name).read_text() for name in ("github.yml", "gitlab.yml")]
    assert all(yaml.safe_load(text) for text in texts)
    (line,) = {line for text in texts for line in re.findall(r".venv/bin/python -m pytest (.*)", text)}
    words = shlex.split(line.replace("$HOME", str(tmp_path)).replace("build/", f"{tmp_path}/build/"))
    assert words[:4] == ["-q", "-n", "2", "hil"]
    (tmp_path / "build").mkdir()
    (tmp_path / "silent").symlink_to("/dev/null")  # a port of this test's own: one at a time has a board
    (tmp_path / "rig.yaml").write_text(RIG.replace("/dev/null", str(tmp_path / "silent")))
    form = ("--messages", "15", "--cuts", "2", "--kills", "2", "--commands", "2")
    words = [OF_BOARDS, *words[4:], *form]
    done = run_pytest(*words, "-n", "1")
    assert done.returncode == 1, done.stdout
    assert "2 failed, 1 passed, 1 skipped" in done.stdout
    assert "board burnt is in quarantine: its regulator is burnt" in done.stdout
    assert sorted(one.suffix for one in (tmp_path / "build").glob("hil.*")) == [".json", ".md", ".xml"]
    said = json.loads((tmp_path / "build" / "hil.json").read_text())
    assert list(said["boards"]) == ["broken", "wrong", "burnt", "good"]
    cells = {board: one["cells"]["they are in order"] for board, one in said["boards"].items()}
    assert cells["good"] == {"verdict": SHOWN, "ground": "15 readings"}
    assert cells["broken"]["verdict"] == NOT_SHOWN
    assert "board broken: " in cells["broken"]["ground"]
    assert (cells["wrong"]["verdict"], cells["burnt"]["verdict"]) == (ABSENT, ABSENT)
    assert "they are in order" in done.stdout
    assert said["boards"]["good"]["figures"]["seed"] == said["seed"], "processes of xdist have that of the table"


def test_a_file_that_is_wrong_is_status_4_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LG_ENV", raising=False)
    (tmp_path / "rig.yaml").write_text("targets: [a]")
    (tmp_path / "empty.yaml").write_text("targets: {}")
    for name, reason in (("rig.yaml", "targets: must be a table"), ("empty.yaml", "empty.yaml: there are no boards")):
        config = SimpleNamespace(
            stash={},
            option=SimpleNamespace(),
            getoption=lambda *_, name=name: str(tmp_path / name),
            pluginmanager=SimpleNamespace(hasplugin=bool),
        )
        with pytest.raises(pytest.UsageError, match=reason):
            conftest.pytest_configure(cast(pytest.Config, config))
    done = run_pytest(OF_BOARDS, "--lg-env", str(tmp_path / "rig.yaml"))
    assert (done.returncode, "targets: must be a table" in done.stderr) == (pytest.ExitCode.USAGE_ERROR, True)
    assert "Traceback" not in done.stderr
