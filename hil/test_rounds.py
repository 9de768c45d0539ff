"""Rounds: what they say together is what each of them says, and one that is kept is not played again."""

import dataclasses
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly", reason="plotly is not installed")

from hil.boards import Wear
from hil.conftest import RunStandin
from hil.matrix import ABSENT, CUTS, SHOWN, Matrix, told
from hil.page import page
from hil.report import POINTS, Comparison, Figures, Timeline
from hil.rounds import Kept, figures_of, progress, share, together
from hil.scenario import Settings
from hil.test_matrix import CUT

HASHES = {"firmware": "ab" * 32}


def figures(**changes: Any) -> Figures:
    """Of a round of 10 readings, one cut and one kill of either end, in which everything went well."""
    timeline = Timeline([(1.0, 5, 4, 4), (2.0, 10, 10, 10)], [(1.5, "link: rst up", 0.5)])
    wanted = {
        "comparison": Comparison(10, 10, 10, commands=3),
        "commands": 3,
        "commands_asked": 3,
        "cuts": [CUT],
        "timeline": timeline,
        "hashes": HASHES,
    }
    kills: dict[str, Any] = {
        "board_kills": 1,
        "manager_kills": 1,
        "seconds": 4.0,
        "cores": ["c-module"],
        "power": [{"took_s": 0.1}],
    }
    kills |= {"wear": Wear(9000, 6, 2), "others_asked": {"board: clock": 1}, "others": {"board: clock": 1}}
    return Figures(7, "unix", "unix: a board", 10, 1, 1, 1, **{**wanted, **kills, **changes})


@pytest.mark.parametrize(("count", "rounds"), [(100_000, 100), (7, 3), (2, 5), (0, 4)])
def test_shares_are_alike_and_make_the_whole(count: int, rounds: int) -> None:
    shares = [share(count, turn, rounds) for turn in range(rounds)]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


def test_what_a_campaign_says_can_be_read_again(run_standin: RunStandin) -> None:
    made = run_standin()
    read = figures_of(json.loads(made.to_json()))
    assert read.to_json() == made.to_json()
    assert read.cuts == made.cuts
    assert together(read, read).shortcomings() == []


def test_rounds_that_went_well_are_one_campaign_that_did() -> None:
    both = together(figures(), figures(told=["damage"]))
    assert both.shortcomings() == []
    assert both.comparison == Comparison(20, 20, 20, commands=6)
    assert (both.messages, len(both.cuts), both.board_kills, both.seconds, both.told) == (20, 2, 2, 8.0, ["damage"])
    assert both.wear == Wear(18000, 12, 2)
    assert together(figures(wear=None), figures(wear=None)).wear is None
    assert both.others == both.others_asked == {"board: clock": 2}
    assert both.timeline.readings == [(1.0, 5, 4, 4), (2.0, 10, 10, 10), (3.0, 15, 14, 14), (4.0, 20, 20, 20)]
    assert both.timeline.faults == [(1.5, "link: rst up", 0.5), (3.5, "link: rst up", 0.5)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"comparison": Comparison(10, 9, 9, lost=[3])}, "1 lost: 3"),
        ({"comparison": None, "failure": "no progress for 9 s"}, "no progress for 9 s"),
        ({"cuts": []}, "1 cuts instead of 2"),
        ({"manager_kills": 0}, "the queue manager was killed 1 times instead of 2"),
    ],
)
def test_one_round_that_failed_is_seen_whichever_it_is(bad: dict[str, Any], reason: str) -> None:
    for pair in ((figures(), figures(**bad)), (figures(**bad), figures())):
        assert reason in together(*pair).shortcomings()


def test_a_timeline_of_many_rounds_is_thinned_out_and_keeps_its_end() -> None:
    whole = figures()
    for _ in range(POINTS):
        whole = together(whole, figures())
    assert POINTS // 3 < len(whole.timeline.readings) <= POINTS
    assert whole.timeline.readings[-1] == (2.0 * (POINTS + 1), *[10 * (POINTS + 1)] * 3)
    assert len(whole.timeline.faults) == POINTS + 1


def test_a_board_that_is_absent_in_one_round_only_has_failed() -> None:
    for rounds in ((figures(), "its port has gone"), ("its port has gone", figures())):
        matrix = Matrix(7, 2)
        for one in rounds:
            assert matrix.add(told("unix", one)) == "unix"
        assert not matrix.ok
        assert matrix.figures["unix"]["failure"] == "its port has gone"
    matrix = Matrix(7)
    matrix.add(told("unix", "no such port"))
    matrix.add(told("unix", "no such port"))
    assert matrix.columns["unix"][CUTS].verdict == ABSENT


def test_the_table_of_rounds_counts_all_of_them() -> None:
    matrix = Matrix(7, 3)
    for missing in (2, 1, 0):
        matrix.add(told("unix", figures()))
        assert (matrix.missing, matrix.ok) == (missing, not missing)
        assert ("stopped" in matrix.markdown().splitlines()[0]) == bool(missing)
        assert ("The run was stopped" in page(matrix)) == bool(missing)
    assert (matrix.columns["unix"][CUTS].verdict, matrix.columns["unix"][CUTS].ground) == (SHOWN, "3 of 3")
    line = progress(figures_of(matrix.figures["unix"]), 3, 9)
    assert line.startswith(
        "unix: 3 of 9 rounds, 30 readings and 9 commands once, 3 cuts, 3 power cuts and resets, 3 kills of"
    )
    assert line.endswith(", 3 other faults, 0 lost, 0 repeated, 0 out of order; 2.5 readings a second, 24 s left")


def test_what_is_kept_counts_for_the_same_only(tmp_path: Path) -> None:
    kept, asked = Kept(tmp_path / "keep", "lab/unix", 3), Settings(10, 1, 1, 7, commands=3)

    def found(settings: Settings = asked, hashes: dict[str, str] = HASHES) -> Figures | None:
        return kept.figures(settings, lambda _: hashes)

    assert found() is None
    kept.keep(figures())
    assert (again := found())
    assert again.to_json() == figures().to_json()
    assert found(hashes={"firmware": "cd" * 32}) is None
    for name in ("messages", "cuts", "kills", "commands", "seed"):
        assert found(dataclasses.replace(asked, **{name: getattr(asked, name) + 1})) is None
    assert found(dataclasses.replace(asked, board="unix-twin")) is None, "lab/unix and lab_unix have one file"
    (file,) = (tmp_path / "keep").iterdir()
    whole = file.read_text()
    for torn in ("", whole[:100], "[]", "{}", whole.replace('"cuts"', '"cut"')):
        file.write_text(torn)
        assert found() is None, torn


def test_a_round_that_a_full_disk_does_not_take_leaves_what_was_kept_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path / "keep", "unix", 0)
    kept.keep(figures())
    before, write = kept.path.read_text(), Path.write_text

    def half(path: Path, text: str) -> int:
        write(path, text[: len(text) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match=r"No space left on device: '.*unix-0\.new'"):
        kept.keep(figures(seconds=99.0))
    monkeypatch.undo()
    assert kept.path.read_text() == before
    assert kept.figures(Settings(10, 1, 1, 7, commands=3), lambda _: HASHES) is not None
    kept.keep(figures(seconds=99.0))
    assert [file.name for file in (tmp_path / "keep").iterdir()] == ["unix-0.json"], "nothing half remains"
    assert json.loads(kept.path.read_text())["seconds"] == 99.0
