"""`make powercuts` itself, which takes hours: what hangs has failed, and whoever stops it has what was cut by then."""

import subprocess
from subprocess import CompletedProcess

import pytest

from tests import powercuts

SURVIVED = CompletedProcess(["it"], 0, "seed 9\ncuts at write: 3\n")


@pytest.fixture(autouse=True)
def no_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powercuts, "board", lambda cuts, seed: SURVIVED)
    monkeypatch.setattr(powercuts, "CUTS_IN_PROCESS", 2)
    monkeypatch.setattr(powercuts, "unix", lambda cuts, seed: SURVIVED)


def test_power_cut_script_timeout_fails_and_others_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hangs(cuts: int, seed: int) -> CompletedProcess[str]:
        raise subprocess.TimeoutExpired(["a script"], 7, output=b"it was at cut 4\n")

    monkeypatch.setattr(powercuts, "host", hangs)
    assert powercuts.main(5, 71) == 1
    told = capsys.readouterr().out
    assert "--- unix port\ncuts at write: 9\n" in told  # of three shares
    assert told.count("it was at cut 4") == 3
    assert "timed out after 7 seconds, with 1 cuts of seed" in told


def test_a_share_that_fails_is_shown_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(powercuts, "host", lambda cuts, seed: CompletedProcess(["it"], 1, "seed 8\nlost: 1 message\n"))
    assert powercuts.main(1, 71) == 1
    told = capsys.readouterr()
    assert "--- FAILED\nseed 8\nlost: 1 message\n" in told.out
    assert "stores of the host: 1 more cuts; of all shares so far 1 failed" in told.err


def test_ctrl_c_ends_powercuts_and_prints_cuts_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(cuts: int, seed: int) -> CompletedProcess[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(powercuts, "as_completed", list)  # in their order: the unix port's are before it
    monkeypatch.setattr(powercuts, "host", stopped)
    assert powercuts.main(3, 71) == 130
    assert "cuts at write: 6" in capsys.readouterr().out
