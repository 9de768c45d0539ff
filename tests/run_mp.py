"""Runs tests/mp/test_*.py on both MicroPython builds: with the C core, and with only its twin.

Each script prints `N passed, N failed` last, and exits with 1 if any failed. This program prints one line for each run
and the sum; the output of a script that fails is shown whole.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Build folder -> what core.implementation must say there; else the same core would be tested twice.
BUILDS = {"unix-c": "c-module", "unix-twin": "python"}
TIMEOUT = 120  # seconds for one script
WHICH_CORE = "from mqqb import core; print(core.implementation)"


class Outcome(NamedTuple):
    """What came of one script in one build."""

    passed: int
    failed: int
    output: str
    well: bool


def micropython(build: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs a build's interpreter in the checkout; its output and errors come back together."""
    command = [str(ROOT / "build" / "micropython" / build / "micropython"), *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={"MICROPYPATH": ".frozen:firmware:tests/mp"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def run(build: str, script: Path) -> Outcome:
    """Runs one script and reads its closing line."""
    try:
        result = micropython(build, str(script.relative_to(ROOT)))
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else str(expired.stdout)
        return Outcome(0, 1, f"{output}\nno end after {TIMEOUT} s", False)
    closing = re.search(r"(\d+) passed, (\d+) failed\s*\Z", result.stdout)
    passed, failed = (int(closing[1]), int(closing[2])) if closing else (0, 1)
    return Outcome(passed, failed, result.stdout, result.returncode == 0 and passed > 0 and failed == 0)


def main() -> int:
    """Runs everything; 0 if all passed."""
    for build, expected in BUILDS.items():
        found = micropython(build, "-c", WHICH_CORE).stdout.strip()
        if found != expected:
            print(f"{build}: the core is {found!r}, not {expected!r}")
            return 1
    runs = [(build, script) for script in sorted((ROOT / "tests" / "mp").glob("test_*.py")) for build in BUILDS]
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = list(pool.map(lambda pair: run(*pair), runs))
    for (build, script), outcome in zip(runs, outcomes):
        if not outcome.well:
            print(outcome.output)
        print(f"{build:10} {script.name:28} {outcome.passed} passed, {outcome.failed} failed")
    well = all(outcome.well for outcome in outcomes) and bool(outcomes)
    total = f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed"
    print(f"MicroPython: {total}{'' if well else ': FAILED'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
