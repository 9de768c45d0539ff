"""The matrix: a guarantee is shown only by a campaign that shows it, and one board does not spoil another's column."""

import asyncio
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hil import matrix
from hil.boards import BoardMissing
from hil.campaign import Settings
from hil.matrix import (
    ABSENT,
    BROKEN,
    CONTENT,
    CUTS,
    GUARANTEES,
    KILLS,
    NOT_SHOWN,
    POWER,
    SHOWN,
    Matrix,
    column,
    main,
    run_all,
)
from hil.report import Comparison, Figures

COUNT = 30


def figures(**changes: Any) -> Figures:
    """The figures of a campaign in which everything went well."""
    wanted = {"comparison": Comparison(COUNT, COUNT, COUNT), "board_kills": 2, "manager_kills": 2, "cuts": [None] * 4}
    return Figures(7, "unix", "unix: a board", COUNT, 4, 2, **{**wanted, **changes})


def comparison(**changes: Any) -> Comparison:
    return dataclasses.replace(Comparison(COUNT, COUNT, COUNT), **changes)


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
    ],
)
def test_what_is_broken_is_named_and_no_fault_counts_as_survived(broken: dict[str, Any], name: str) -> None:
    cells = verdicts(figures(comparison=comparison(**broken)))
    assert [one for one in GUARANTEES if cells[one] == BROKEN] == [name]
    assert {cells[one] for one in (CUTS, POWER, KILLS)} == {NOT_SHOWN}
    whole = broken.get("once", COUNT) == COUNT
    assert {cells[one] for one in CONTENT if one != name} == {SHOWN if whole else NOT_SHOWN}


def test_a_campaign_that_failed_shows_nothing() -> None:
    cells = column(figures(comparison=None, failure="no progress for 9 s\nand the logs"))
    assert {cell.verdict for cell in cells.values()} == {NOT_SHOWN}
    assert str(cells["they are in order"]) == "not shown: no progress for 9 s"


def test_faults_that_were_not_made_are_not_survived() -> None:
    assert verdicts(figures(cuts=[None] * 3))[CUTS] == NOT_SHOWN
    assert verdicts(figures(board_kills=0))[POWER] == NOT_SHOWN
    without = figures(cuts=[])
    without.cuts_asked = 0
    assert verdicts(without)[CUTS] == NOT_SHOWN


def test_an_absent_board_is_an_excuse_only_if_nobody_asked_for_it() -> None:
    boards: dict[str, Figures | str] = {"unix": figures(), "pi": "board pi: qemu-aarch64 is not installed"}
    assert Matrix(7, boards).ok
    assert not Matrix(7, boards, frozenset(["pi"])).ok
    assert not Matrix(7, {"pi": "absent"}).ok
    assert not Matrix(7, {"unix": figures(), "pi": figures(cuts=[])}).ok
    assert verdicts("not here") == dict.fromkeys(GUARANTEES, ABSENT)


def test_markdown_table_and_json_say_the_same() -> None:
    made = Matrix(7, {"unix": figures(), "pi": "not here"})
    lines = made.markdown().splitlines()
    assert lines[2:4] == ["| guarantee | unix | pi |", "|---|---|---|"]
    assert lines[4] == "| no accepted reading is lost | shown: 30 readings | absent: not here |"
    assert len(lines) == 4 + len(GUARANTEES)
    out = io.StringIO()
    Console(file=out, width=200).print(made.table())
    assert out.getvalue().count("shown") == len(GUARANTEES)
    said = json.loads(made.to_json())
    assert (said["ok"], said["seed"], said["boards"]["pi"]["figures"]) == (True, 7, None)
    assert said["boards"]["unix"]["cells"][POWER] == {"verdict": SHOWN, "ground": "2 of 2"}


def campaigns(monkeypatch: pytest.MonkeyPatch, results: dict[str, Figures | Exception]) -> None:
    async def run(settings: Settings, _: Console) -> Figures:
        result = results[settings.board]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(matrix, "run_campaign", run)


def test_a_board_that_is_absent_or_fails_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    campaigns(monkeypatch, {"a": BoardMissing("gone"), "b": OSError("broken"), "c": figures()})
    boards = asyncio.run(run_all(["a", "b", "c"], Settings(COUNT, 4, 2), Console(file=io.StringIO())))
    assert boards["a"] == "gone"
    assert verdicts(boards["b"]) == dict.fromkeys(GUARANTEES, NOT_SHOWN)
    assert str(column(boards["b"])["they are in order"]) == "not shown: broken"
    assert verdicts(boards["c"]) == dict.fromkeys(GUARANTEES, SHOWN)


def test_main_writes_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaigns(monkeypatch, {"unix": figures(), "pi": figures(comparison=comparison(lost=[1], once=COUNT - 1))})
    words = ["--board", "unix", "--seed", "7", "--markdown", str(tmp_path / "m"), "--json", str(tmp_path / "j")]
    assert main(words) == 0
    assert "| they are in order | shown: 30 readings |" in (tmp_path / "m").read_text()
    assert json.loads((tmp_path / "j").read_text())["ok"] is True
    assert main([*words, "--board", "pi"]) == 1
    assert "FAILED: pi: 1 lost: 1" in capsys.readouterr().out


def test_without_a_board_all_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def run(settings: Settings, _: Console) -> Figures:
        asked.append(settings.board)
        raise BoardMissing("not here")

    monkeypatch.setattr(matrix, "run_campaign", run)
    assert main([]) == 1
    assert set(asked) >= {"unix", "unix-twin", "cpython", "pi", "mps2-eth", "mps2-uart"}


def test_wrong_use_is_status_2() -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--messages", "-1"])
    assert raised.value.code == 2
