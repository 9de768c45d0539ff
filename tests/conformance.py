"""The conformance table: every rule of the specification, with the tests that show it.

`python tests/conformance.py` prints the table and writes tests/CONFORMANCE.md; with `--check` it writes nothing and
fails when that file is not what it would write. tests/rules.txt lists the rules. A test names the rules it shows:
with `@pytest.mark.rule("B-271", "A-01")` in pytest, by their numbers in the text of the C and MicroPython tests.
`make test` collects every test once, to run it: there each process of pytest, with `-p tests.conformance`, notes what
its tests show in the folder that the environment variable NOTES names, and `--notes` reads that.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "tests" / "rules.txt"
KINDS = ("demand", "fact", "out", "reading")
NUMBER = re.compile(r"\b(?:B-\d{3}|C-\d{2}|A-\d{2}|OP-\d{1,2})\b")
NAMED_PER_RULE = 4


class Rule(NamedTuple):
    """One line of rules.txt."""

    number: str
    kind: str  # demand: to be shown; fact; out: of scope; reading: of ambiguous text
    level: str
    section: str
    text: str
    reason: str  # why a fact or a rule out of scope needs no test


class UnknownRule(Exception):
    """A test names a rule that rules.txt does not have."""


def load_rules(path: Path = RULES) -> dict[str, Rule]:
    """Reads rules.txt. Raises ValueError for a line that does not say all it must."""
    rules: dict[str, Rule] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" | ")]
        rule = Rule(*fields, *[""] * (6 - len(fields)))
        if rule.kind not in KINDS or not rule.text or (rule.kind in ("fact", "out")) != bool(rule.reason):
            raise ValueError(f"{path.name}: incomplete: {line}")
        if rule.number in rules:
            raise ValueError(f"{path.name}: twice: {rule.number}")
        rules[rule.number] = rule
    return rules


def cited_by(item: pytest.Item) -> list[str]:
    """The rules that a collected test says it shows."""
    return [str(number) for mark in item.iter_markers("rule") for number in mark.args]


def check_known(rules: Mapping[str, Rule], cited: Iterable[str], where: str) -> None:
    """Raises UnknownRule if `cited` names a rule that is not in `rules`."""
    unknown = [number for number in cited if number not in rules]
    if unknown:
        raise UnknownRule(f"{where} names {', '.join(unknown)}, not in {RULES.relative_to(ROOT)}")


def shown_by(items: Iterable[pytest.Item]) -> dict[str, list[str]]:
    """Rule number -> those of these tests that name it."""
    shown: dict[str, list[str]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        for number in cited_by(item):
            shown.setdefault(number, []).append(test)
    return shown


def pytest_collection_finish(session: pytest.Session) -> None:
    """As a plugin of `make test`."""
    note = Path(os.environ["NOTES"]) / f"{os.getpid()}.json"
    note.write_text(json.dumps(shown_by(session.items)), encoding="utf-8")


def noted(folder: Path) -> dict[str, list[str]]:
    """What the processes of `make test` have noted there."""
    shown: dict[str, list[str]] = {}
    for note in folder.glob("*.json"):
        for number, tests in json.loads(note.read_text(encoding="utf-8")).items():
            shown.setdefault(number, []).extend(tests)
    return shown


class Collector:
    """A pytest plugin that notes which rules the collected tests show, and what could not be collected."""

    def __init__(self) -> None:
        self.shown: dict[str, list[str]] = {}
        self.failures: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failures.append(f"{report.nodeid}: {report.longreprtext.splitlines()[-1]}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.shown = shown_by(session.items)


def collect(folders: list[Path]) -> dict[str, list[str]]:
    """Rule number -> the tests of pytest in `folders` that name it. Raises RuntimeError if pytest cannot collect."""
    collector = Collector()
    options = ["-c", str(ROOT / "pyproject.toml"), "--collect-only", "-p", "no:cacheprovider"]
    options += ["-p", "no:terminal", "-p", "no:labgrid"]  # labgrid wants a terminal
    status = pytest.main([*options, *(str(folder) for folder in folders)], plugins=[collector])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError("\n".join(["pytest could not collect the tests", *collector.failures]))
    return collector.shown


def with_texts(shown: Mapping[str, list[str]], texts: Iterable[Path]) -> dict[str, list[str]]:
    """The same with the files `texts` that name a rule; each test once."""
    shown = {number: list(tests) for number, tests in shown.items()}
    for source in sorted(texts):
        for number in NUMBER.findall(source.read_text(encoding="utf-8")):
            shown.setdefault(number, []).append(f"{source.parent.name}/{source.name}")
    return {number: sorted(set(tests)) for number, tests in shown.items()}


def verdict(rule: Rule, tests: list[str]) -> str:
    """What the table says of one rule."""
    if tests:
        more = len(tests) - NAMED_PER_RULE
        names = [test.removeprefix("tests/") for test in tests[:NAMED_PER_RULE]]
        shown = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        return f"out of scope: {rule.reason} (its name or table: {shown})" if rule.kind == "out" else shown
    return {
        "demand": "**not shown yet**",
        "fact": f"fact: {rule.reason}",
        "out": f"out of scope: {rule.reason}",
        "reading": "through the rules that name it",
    }[rule.kind]


def summary(rules: Mapping[str, Rule], shown: Mapping[str, list[str]]) -> list[str]:
    """The counts, one line each."""
    of = {kind: [rule for rule in rules.values() if rule.kind == kind] for kind in KINDS}
    done = sum(rule.number in shown for rule in of["demand"])
    must = [rule for rule in of["demand"] if rule.level == "MUST"]
    must_done = sum(rule.number in shown for rule in must)
    readings = sum(rule.number in shown for rule in of["reading"])
    return [
        f"demands shown: {done} of {len(of['demand'])} (MUST: {must_done} of {len(must)})",
        f"demands not shown yet: {len(of['demand']) - done}",
        f"facts, which need no test: {len(of['fact'])}",
        f"out of scope: {len(of['out'])}",
        f"readings of ambiguous text named by tests: {readings} of {len(of['reading'])}",
    ]


def table(rules: Mapping[str, Rule], shown: Mapping[str, list[str]]) -> str:
    """The text of CONFORMANCE.md."""
    lines = ["# Conformance", "", "Written by `make conformance`; do not edit. The rules are in rules.txt.", ""]
    lines += [f"* {line}" for line in summary(rules, shown)]
    lines += ["", "| Rule | Level | Section | What it says | Shown by |", "|---|---|---|---|---|"]
    for rule in rules.values():
        cells = (rule.number, rule.level, rule.section, rule.text, verdict(rule, shown.get(rule.number, [])))
        lines.append("| " + " | ".join(cell.replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Prints and writes the table, or checks it; 0 if all is well, 1 if not."""
    parser = argparse.ArgumentParser(description="the rules of the specification, with the tests that show them")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the table is not up to date")
    parser.add_argument("--notes", type=Path, help="do not collect; make test has noted there what it collected")
    parser.add_argument("--folders", nargs="+", type=Path, default=[ROOT / "tests", ROOT / "hil"])
    texts = [
        path for form in ("tests/c/*.[ch]", "host/native/tests/*.[ch]", "tests/mp/*.py") for path in ROOT.glob(form)
    ]
    parser.add_argument("--texts", nargs="*", type=Path, default=texts, help="tests that name rules in their text")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "CONFORMANCE.md")
    options = parser.parse_args(arguments)
    rules = load_rules()
    try:
        shown = with_texts(noted(options.notes) if options.notes else collect(options.folders), options.texts)
        for number, tests in shown.items():
            check_known(rules, [number], tests[0])
    except (RuntimeError, UnknownRule) as problem:
        print(f"conformance: {problem}", file=sys.stderr)
        return 1
    text = table(rules, shown)
    if not options.check:
        for rule in rules.values():
            print(f"{rule.number:6} {rule.text[:60]:60}  {verdict(rule, shown.get(rule.number, [])).replace('**', '')}")
        print()
        options.output.write_text(text, encoding="utf-8")
    for line in summary(rules, shown):
        print(line)
    if options.check and (not options.output.exists() or options.output.read_text(encoding="utf-8") != text):
        print(f"conformance: {options.output.name} is out of date: run make conformance", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
