"""The model of one transactional stream, stream.pml, checked with spin: a line for each property and each broken rule.

    python tests/engine/spin/check.py            # some seconds
    python tests/engine/spin/check.py --full     # 3 messages in flight, 2 failures, and all else at once; minutes
    python tests/engine/spin/check.py --json     # the same as JSON lines

Needs the Debian package spin, and gcc. Exit status 1 if a property fails, or if a broken rule is not noticed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).with_name("stream.pml")

# What spin says of a search that found something -> the property that failed.
SAFETY = {
    "!(stored[pending])": "once",
    "(pending>last_stored)": "in_order",
    "(received==durable)": "durable_first",
    "final_ack[m]": "order_ack_durable",
    "stored[m]": "settled_is_stored",
    "sent+": "window",
    "invalid end state": "no_deadlock",
}
ENDS = {"acceptance cycle": "ends"}


class Check(NamedTuple):
    """One search. Bounds and broken rules are names that stream.pml knows; see there."""

    defines: str  # NAME=VALUE or NAME, with spaces between
    fails: str = ""  # the property that must fail; none: all hold
    liveness: bool = False


class Outcome(NamedTuple):
    """What a search found; `failed` is the property that failed first, or the words of spin, or nothing."""

    failed: str
    states: int
    depth: int
    seconds: float


QUIET = "EXPIRE=0 REJECT=0 EARLY=0"
SHORT = [
    Check(f"MSGS=3 WINDOW=3 FAILS=2 {QUIET}"),
    Check("MSGS=2 WINDOW=2 FAILS=1 EXPIRE=1 REJECT=1 EARLY=1"),
    Check(f"MSGS=2 WINDOW=2 FAILS=2 {QUIET}", liveness=True),
    Check("MSGS=2 WINDOW=2 FAILS=0 EXPIRE=1 REJECT=1 EARLY=0", liveness=True),
]
FULL = [
    Check("MSGS=3 WINDOW=3 FAILS=2 EXPIRE=1 REJECT=1 EARLY=1"),
    Check("MSGS=3 WINDOW=3 FAILS=2 EXPIRE=1 REJECT=1 EARLY=0", liveness=True),
    Check("MSGS=4 WINDOW=2 FAILS=1 EXPIRE=1 REJECT=1 EARLY=1"),
    Check("MSGS=3 WINDOW=3 FAILS=3 EXPIRE=1 REJECT=0 EARLY=0"),
    # readings that behaviour.md allows: delete on the OrderAck alone, reject before ordering
    Check("MSGS=3 WINDOW=3 FAILS=1 ALONE"),
    Check("MSGS=3 WINDOW=3 FAILS=1 A15"),
    Check("MSGS=3 WINDOW=2 FAILS=1 A15 EARLY=0", liveness=True),
]
# By the letter of the text, or without one rule: one for each property, and the others.
BROKEN = [
    Check(f"A08 MSGS=2 WINDOW=2 FAILS=1 {QUIET}", "once"),
    Check(f"A09 MSGS=2 WINDOW=1 FAILS=0 {QUIET}", "no_deadlock"),
    Check(f"A09 MSGS=2 WINDOW=1 FAILS=0 {QUIET}", "ends", liveness=True),
    Check("A04 MSGS=2 WINDOW=2 FAILS=0 EXPIRE=0 REJECT=1 EARLY=1", "settled_is_stored"),
    Check(f"ACK_EARLY MSGS=2 WINDOW=2 FAILS=0 {QUIET}", "durable_first"),
    Check(f"TORN=2 MSGS=2 WINDOW=2 FAILS=1 {QUIET}", "order_ack_durable"),
    Check(f"BACKWARDS MSGS=2 WINDOW=2 FAILS=0 {QUIET}", "in_order"),
    Check(f"NO_WINDOW MSGS=3 WINDOW=2 FAILS=0 {QUIET}", "window"),
]
FULL_BROKEN = [
    Check("A01 MSGS=3 WINDOW=2 FAILS=0 EXPIRE=0 REJECT=0 EARLY=1", "once"),
    Check("A04 A15 MSGS=3 WINDOW=2 FAILS=0 EXPIRE=0 REJECT=1 EARLY=1", "settled_is_stored"),
    Check("ZERO MSGS=2 WINDOW=2 FAILS=0 EXPIRE=0 REJECT=1 EARLY=0", "settled_is_stored"),
    Check(f"TORN=1 MSGS=2 WINDOW=2 FAILS=1 {QUIET}", "once"),
    Check(f"NUMBER_LATE MSGS=3 WINDOW=2 FAILS=1 {QUIET}", "once"),
    Check("OVERTAKE MSGS=2 WINDOW=2 FAILS=0 EXPIRE=0 REJECT=1 EARLY=0", "settled_is_stored"),
    Check("NO_BRIDGE MSGS=3 WINDOW=2 FAILS=1 EXPIRE=1 REJECT=0 EARLY=0", "ends", liveness=True),
    Check(f"NO_ACK_OF_DUPLICATES MSGS=2 WINDOW=2 FAILS=1 {QUIET}", "ends", liveness=True),
]


def search(check: Check) -> Outcome:
    """Make the verifier and run it. Raises RuntimeError, with what it printed, if there is no result."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spin-") as folder:

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{command[0]} fails:\n{done.stdout}{done.stderr}")
            return done.stdout

        run("spin", "-a", *(f"-D{name}" for name in check.defines.split()), str(MODEL))
        kind = ["-DNFAIR=3"] if check.liveness else ["-DSAFETY", "-DNOCLAIM"]
        run("gcc", "-w", "-O2" if check in FULL else "-O0", *kind, "-DCOLLAPSE", "-DMEMLIM=12000", "-o", "pan", "pan.c")
        text = run("./pan", "-m1000000", *(["-a", "-f"] if check.liveness else []))
    errors = re.search(r"depth reached (\d+), errors: (\d+)", text)
    states = re.search(r"(\d+) states, stored", text)
    if not errors or not states or "max search depth too small" in text or "out of memory" in text:
        raise RuntimeError(f"no result for {check.defines}:\n{text}")
    failed = ""
    if errors[2] != "0":
        said = re.search(r"^pan:\d+: (.*) \(at depth", text, re.MULTILINE)
        failed = said[1] if said else text
        for words, name in {**SAFETY, **ENDS}.items():
            if words in failed:
                failed = name
                break
    return Outcome(failed, int(states[1]), int(errors[1]), round(time.monotonic() - began, 1))


def main() -> int:
    """Run the checks, two at a time; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all bounds and broken rules; minutes, and some GB")
    parser.add_argument("--json", action="store_true", help="JSON, one object a line")
    options = parser.parse_args()
    for program in ("spin", "gcc"):
        if not shutil.which(program):
            print(f"{program} is not installed", file=sys.stderr)
            return 1
    checks = [*SHORT, *BROKEN, *([*FULL, *FULL_BROKEN] if options.full else [])]
    good = True
    with ThreadPoolExecutor(2) as pool:
        for check, outcome in zip(checks, pool.map(search, checks), strict=True):
            good &= outcome.failed == check.fails
            properties = ENDS if check.liveness else SAFETY
            for name in [check.fails] if check.fails else properties.values():
                values = {
                    "property": name,
                    "bounds": check.defines,
                    "expected": "fails" if check.fails else "holds",
                    "failed": outcome.failed,
                    "ok": outcome.failed == check.fails,
                    "states": outcome.states,
                    "depth": outcome.depth,
                    "seconds": outcome.seconds,
                }
                print(json.dumps(values) if options.json else as_text(values), flush=True)
    return 0 if good else 1


def as_text(values: Mapping[str, object]) -> str:
    """One line of the report."""
    verdict = "ok  " if values["ok"] else f"BAD, found {values['failed'] or 'nothing'}:"
    return (
        f"{verdict} {values['property']:<17} {values['expected']}  {values['states']:>10} states "
        f"depth {values['depth']:>4} {values['seconds']:>6} s  {values['bounds']}"
    )


if __name__ == "__main__":
    sys.exit(main())
