"""Runs tests/mp/test_*.py on MicroPython: with the C core, with only its twin, and some on boards in QEMU.

Each script prints `N passed, N failed` last, and exits with 1 if any failed. This program prints one line for each run
and the sum; the output of a script that fails is shown whole.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests import on_mps2

ROOT = Path(__file__).resolve().parent.parent
# Build folder -> what core.implementation must say there; else the same core would be tested twice.
BUILDS = {"unix-c": "c-module", "unix-twin": "python"}
# What shows the twin on MicroPython; in what stands above it, it does as the core does.
WITH_TWIN = ("test_confirm.py", "test_core.py", "test_packets.py", "test_session_of_board.py", "test_traces.py")
ON_HOSTS_ONLY = "test_session.py"  # how boards use a session, its other form has
ON_BOARDS_ONLY = "test_flash_of_board.py"  # a share of test_flash.py
# The board in QEMU (see firmware/ports), with the C core, and the tests that another processor could make fail.
BOARDS: dict[str, tuple[str, ...]] = {
    "mps2-an385": (
        "test_confirm.py",
        "test_core.py",
        ON_BOARDS_ONLY,
        "test_packets.py",
        "test_session_of_board.py",
        "test_traces.py",
    )
}
TIMEOUT = 900  # seconds for one script, which takes 40 on a machine that has nothing else to do
FLASH_HEAP = "-X", "heapsize=16M"  # of 2 MB no piece may be left for one more flash of 128 KB in RAM
WHICH_CORE = "from mqqb import core; print(core.implementation)"


class Outcome(NamedTuple):
    """What came of one script in one build."""

    passed: int
    failed: int
    output: str
    well: bool


def micropython(build: str, *arguments: str, timeout: float = TIMEOUT) -> "subprocess.CompletedProcess[str]":
    """Runs a build's interpreter in the board's form of the checkout; its output and errors come back together."""
    command = [str(ROOT / "build" / "micropython" / build / "micropython"), *arguments]
    return subprocess.run(
        command,
        cwd=on_mps2.board(),
        env={"MICROPYPATH": ".frozen:.:tests/mp", "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def which_core(build: str) -> str:
    """What the interpreter of a build says of its core."""
    if build in BOARDS:
        return on_mps2.run(WHICH_CORE, TIMEOUT).stdout.strip()
    return micropython(build, "-c", WHICH_CORE).stdout.strip()


def run(build: str, script: Path) -> Outcome:
    """Runs one script and reads its closing line."""
    try:
        if build in BOARDS:
            result = on_mps2.run(script.read_text(encoding="utf-8"), TIMEOUT)
        else:
            heap = FLASH_HEAP if script.name == "test_flash.py" else ()
            result = micropython(build, *heap, str(script.relative_to(ROOT)))
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else str(expired.stdout)
        return Outcome(0, 1, f"{output}\nno end after {TIMEOUT} s", False)
    closing = re.search(r"(\d+) passed, (\d+) failed\s*\Z", result.stdout)
    passed, failed = (int(closing[1]), int(closing[2])) if closing else (0, 1)
    return Outcome(passed, failed, result.stdout, result.returncode == 0 and passed > 0 and failed == 0)


def main() -> int:
    """Runs everything; 0 if all passed."""
    for build, expected in (BUILDS | dict.fromkeys(BOARDS, "c-module")).items():
        found = which_core(build)
        if found != expected:
            print(f"{build}: the core is {found!r}, not {expected!r}")
            return 1
    scripts = sorted((ROOT / "tests" / "mp").glob("test_*.py"))
    runs = [
        (build, script)
        for script in scripts
        for build in BUILDS
        if script.name not in (ON_BOARDS_ONLY, ON_HOSTS_ONLY) and (build == "unix-c" or script.name in WITH_TWIN)
    ]
    runs += [(build, script) for build, names in BOARDS.items() for script in scripts if script.name in names]
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = list(pool.map(lambda pair: run(*pair), runs))
    for (build, script), outcome in zip(runs, outcomes):
        if not outcome.well:
            print(outcome.output)
        print(f"{build:10} {script.name:25} {outcome.passed} passed, {outcome.failed} failed")
    well = all(outcome.well for outcome in outcomes) and bool(outcomes)
    total = f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed"
    print(f"MicroPython: {total}{'' if well else ': FAILED'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
