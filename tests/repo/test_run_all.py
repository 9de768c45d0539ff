"""`make test` itself: what fails fails it, and what passes alone is told."""

from pathlib import Path

import pytest

from tests import run_all

TESTS = """
import pathlib, random, os, pytest

HERE = pathlib.Path(__file__).parent

def first_time():
    before = (HERE / "ran").exists()
    (HERE / "ran").touch()
    return not before

def test_that_a_busy_machine_fails():
    assert not first_time()

@pytest.mark.parametrize("number", range(9))
def test_that_passes(number):
    with (HERE / "passed").open("a") as file:
        file.write(f"{number} {os.environ['SEED']}\\n")
"""
FAILS = """
def test_that_always_fails():
    assert False
"""
MANY = """
@pytest.mark.parametrize("number", range(9))
def test_that_all_fail_before(number):
    assert not first_time() and (HERE / "never").exists()
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGS", "CACHES"):
        monkeypatch.setattr(run_all, name, tmp_path / name)
    (tmp_path / "LOGS").mkdir()
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setenv("SEED", "71")


@pytest.mark.parametrize(
    ("tests", "passed", "by_chance"),
    [(TESTS, True, ["that_a_busy_machine_fails"]), (TESTS + FAILS, False, []), (TESTS + MANY, False, [])],
    ids=["one that passes alone", "one that always fails", "too many"],
)
def test_failed_tests_are_rerun_alone(tmp_path: Path, tests: str, passed: bool, by_chance: list[str]) -> None:
    (tmp_path / "test_sample.py").write_text(tests)
    at_a_time = run_all.TWO if passed else []
    part = ("a part, of it", [[run_all.PYTHON, *run_all.PYTEST, *at_a_time, str(tmp_path)]])
    verdict = run_all.run(part)
    assert not verdict.passed
    last = run_all.again(part, verdict)
    assert (last.passed, [line.split("::test_")[1].split(" ")[0] for line in last.by_chance]) == (passed, by_chance)
    assert sorted((tmp_path / "passed").read_text().splitlines()) == [f"{number} 71" for number in range(9)]
    assert run_all.again(part, verdict._replace(passed=True)).by_chance == []
