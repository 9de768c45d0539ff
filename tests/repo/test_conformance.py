"""The conformance table tells the truth: what is shown, what is not, what is unknown, and whether it is up to date."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import ROOT, Rule, load_rules, summary, verdict

SHOWING = """
import pytest

@pytest.mark.rule("B-271", "A-01")
@pytest.mark.parametrize("n", [1, 2])
def test_accepts(n):
    pass

@pytest.mark.rule("B-271")
class TestMore:
    def test_again(self):
        pass
"""


def run(*command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def conformance(tests: Path, output: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    texts = [str(path) for path in tests.glob("*.c")]
    return run("tests/conformance.py", "--folders", str(tests), "--output", str(output), *options, "--texts", *texts)


def row(text: str, number: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {number} "))


def test_conformance_table_lists_tests_and_unproved_rules(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(SHOWING)
    (tmp_path / "test_core.c").write_text("/* B-103: bit k */")
    output = tmp_path / "table.md"
    result = conformance(tmp_path, output)
    assert result.returncode == 0, result.stderr
    table = output.read_text()
    # A parametrised test is named once.
    assert row(table, "B-271").count("test_some.py::test_accepts") == 1
    assert row(table, "B-271").count("test_some.py::TestMore::test_again") == 1
    assert row(table, "A-01").endswith("test_some.py::test_accepts |")
    assert row(table, "B-103").endswith("/test_core.c |")
    assert row(table, "C-81").endswith("| **not shown yet** |")
    assert "| fact: " in row(table, "B-003")
    assert "| out of scope: " in row(table, "B-195")
    assert "B-271" in result.stdout
    notes = tmp_path / "notes"
    notes.mkdir()
    pytest_ = ("-m", "pytest", "-c", "pyproject.toml", "-p", "no:cacheprovider", "-p", "tests.conformance", "-q")
    for one in ("test_accepts", "TestMore"):
        assert run(*pytest_, str(tmp_path), "-k", one, NOTES=str(notes)).returncode == 0
        found = conformance(tmp_path, output, "--check", "--notes", str(notes))
        assert found.returncode == (one == "test_accepts"), found.stderr
    tests.write_text(SHOWING.replace('"A-01"', '"A-02"'))
    stale = conformance(tmp_path, output, "--check")
    assert stale.returncode == 1
    assert "out of date" in stale.stderr
    assert output.read_text() == table


def test_unknown_rule_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SHOWING.replace("A-01", "B-999"))
    result = conformance(tmp_path, tmp_path / "table.md")
    assert result.returncode == 1
    assert "B-999" in result.stderr
    assert not (tmp_path / "table.md").exists()


def test_unknown_rule_stops_an_ordinary_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(SHOWING.replace("A-01", "B-999"))
    result = run("-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", str(tmp_path))
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "names B-999" in result.stderr


def test_tests_that_cannot_be_collected_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("import no_such_module")
    result = conformance(tmp_path, tmp_path / "table.md")
    assert result.returncode == 1
    assert "no_such_module" in result.stderr


def test_rules_are_all_there() -> None:
    rules = load_rules()
    # behaviour.md runs to B-436 and A-52, wire.md to OP-32, without holes; from B-437 on they are of wire.md 6.
    for prefix, count, digits in (("B", 443, 3), ("A", 52, 2), ("OP", 32, 1)):
        listed = [number for number in rules if number.startswith(prefix + "-")]
        assert listed == [f"{prefix}-{n:0{digits}}" for n in range(1, count + 1)]
    assert sum(number.startswith("C-") for number in rules) == 71
    for rule in rules.values():
        assert rule.level in ("MUST", "SHOULD", "MAY") or rule.kind != "demand", rule


@pytest.mark.parametrize(
    "line", ["B-001 | demand | MUST | 1", "B-001 | fact | FACT | 1 | text", "B-001 | what | MUST | 1 | text"]
)
def test_incomplete_line_of_the_list_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rules.txt"
    path.write_text(f"# comment\n{line}\n")
    with pytest.raises(ValueError, match="incomplete"):
        load_rules(path)


def test_rule_listed_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("B-001 | demand | MUST | 1 | text\n" * 2)
    with pytest.raises(ValueError, match="twice"):
        load_rules(path)


def test_long_list_of_tests_is_counted_and_summary_adds_up() -> None:
    rule = Rule("B-001", "demand", "MUST", "1", "text", "")
    assert verdict(rule, [f"tests/test_a.py::test_{n}" for n in range(6)]).endswith(" test_a.py::test_3 and 2 more")
    unreached = rule._replace(kind="out", reason="why")
    assert verdict(unreached, ["tests/test_a.py::test_0"]) == "out of scope: why (its name or table: test_a.py::test_0)"
    rules = {"B-001": rule, "B-002": rule._replace(number="B-002", level="MAY"), "B-003": rule._replace(number="B-003")}
    assert summary(rules, {"B-001": ["t"]})[:2] == ["demands shown: 1 of 3 (MUST: 1 of 2)", "demands not shown yet: 2"]
