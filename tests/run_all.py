"""`make test`: every part, four at a time, a line each, slowest tests, summary. `make test-fast`: one part of them.

The output of a part that fails is shown, and what a part has skipped, with the reason.
The full output of each part is in build/logs/test-NAME.log.

All dice are those of one seed, which is printed; SEED=N has them again. Where a few tests of a part fail they run once
more, alone and with the same dice. If they pass then, a machine that was too busy may be to blame: they are named last,
to be mended, and do not fail the run.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TextIO

from hil.dice import new_seed
from hil.quick_spark import QUICK_JVM

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
CACHES = ROOT / "build" / "pytest"  # of each part: what failed
NOTES = ROOT / "build" / "rules"  # which tests show them
PYTHON = sys.executable
ADOPT = "tests/adopt.py"  # what it runs is counted with all that it leaves to itself
MAKE = ["make", "--no-print-directory", "SETUP=:"]  # what called us has done the set-up
CHANCE = 3  # so many tests of a part may fail and pass alone
SLOWEST = 10  # tests that the summary names; the log of each part has more
# labgrid would take half a second of each process; whoever wants its options runs `pytest hil --lg-env FILE`.
# What a test has left is kept if it fails.
PYTEST = ["-m", "pytest", "-q", "-p", "no:labgrid", "-p", "tests.conformance", "--durations=60", "-rfEs"]
PYTEST += ["-o", "tmp_path_retention_policy=failed"]
TWO = ["-n", "2", "--dist", "worksteal"]  # tests at a time; who has none left takes them from the other
THREE = ["-n", "3", "--dist", "worksteal"]
SHOWN_OF_FAILURE = 80  # lines

# Those of these that are not marked slow or untraced reach every line of mqqb: only they are slowed by being traced.
ENGINE = ["tests/core", "tests/engine"]
HOST = "tests/host"  # a quarter of all the work
BOARDS = "tests/boards"  # emulated ones, and what runs on them: more waiting than work
PIPELINE = "tests/pipeline"
# One Spark session for all of these: it needs 30 s of processor until it is quick. The others do without it.
SESSION = "capture_source", "ingest", "reconcile"
SPARK = [f"{PIPELINE}/test_{name}.py" for name in SESSION]
OTHERS = ["tests", *[f"--ignore={name}" for name in (*ENGINE, HOST, BOARDS, PIPELINE)]]
DURATION = re.compile(r"([\d.]+)s (?:call|setup|teardown) +(.*)")  # as pytest prints it
FAILURE = re.compile(r"(?:FAILED|ERROR) (tests|hil)/")  # likewise
# For every JVM that a test starts, also through `ordack table`, and that of tests/conftest.py: of the 15 s of
# processor that a session takes for one small job, what QUICK_JVM leaves out takes 6. 4 more go into loading classes
# that are in a file already.
JVM = f"{QUICK_JVM} -XX:SharedArchiveFile={ROOT}/build/spark-classes.jsa -Xlog:cds=off -Xlog:cds+dynamic=off"
ENVIRONMENT = {"SPARK_SUBMIT_OPTS": JVM, "SPARK_LAUNCHER_OPTS": QUICK_JVM}
MEMORY = Path("/dev/shm")  # where tests have their files: SIGKILL takes nothing from there either, and a power that is
MEMORY_BYTES = 4 << 30  # cut is emulated; a real disk took half of the time of some. With so much of it free
# Name -> commands, run one after another. What takes long begins early, and the boards, which wait most, when the
# pipeline is almost done: beside them a worker of Spark may take 10 s to start, and is given up.
Part = tuple[str, list[list[str]]]
PARTS: list[Part] = [
    ("pipeline", [[PYTHON, *PYTEST, *SPARK]]),
    ("C core", [[*MAKE, "test-c"]]),
    ("host", [[PYTHON, *PYTEST, *THREE, HOST]]),
    ("lint", [[*MAKE, "lint"]]),
    ("rig", [[PYTHON, *PYTEST, *TWO, "hil"]]),
    ("MicroPython", [[PYTHON, "-m", "tests.run_mp"]]),
    ("boards", [[PYTHON, *PYTEST, *TWO, BOARDS]]),
    ("pipeline, other", [[PYTHON, *PYTEST, *TWO, PIPELINE, *[f"--ignore={name}" for name in SPARK]]]),
    ("others", [[PYTHON, *PYTEST, *TWO, *OTHERS]]),
    (
        "engine",
        [
            [PYTHON, "-m", "coverage", "erase"],
            [PYTHON, "-m", "coverage", "run", *PYTEST, "-m", "not slow and not untraced", *ENGINE],
            [PYTHON, "-m", "coverage", "combine", "-q"],
            [PYTHON, "-m", "coverage", "report", "--include=firmware/mqqb/*", "--fail-under=100"],
        ],
    ),
    ("engine, slow", [[PYTHON, *PYTEST, "-m", "slow or untraced", *ENGINE]]),
    ("mutants", [[*MAKE, "mutants", "SAMPLE=2", "SEED=1"]]),
]
AT_A_TIME = 4  # on two processors: most parts wait now and then
LAST: Part = ("conformance", [[PYTHON, "tests/conformance.py", "--check", "--notes", str(NOTES)]])
FAST: list[Part] = [("fast", [[PYTHON, *PYTEST, *THREE, "-m", "not slow", *ENGINE, HOST]])]


class Verdict(NamedTuple):
    """How a part ended. seconds: by the clock. work: processor seconds, which tell more on a busy machine; without the
    Python processes of Spark, a sixth of what it takes: nobody waits for them. closing: the last line it printed. slow:
    its slowest tests, (seconds, name). failures: a line for each test that failed. by_chance: those that passed alone.
    """

    name: str
    passed: bool
    seconds: float
    work: float
    closing: str
    slow: list[tuple[float, str]]
    failures: list[str]
    by_chance: list[str]


def words_of(name: str) -> str:
    """The name of a part in those of its files."""
    return re.sub("[ ,]+", "-", name)


def start(name: str, command: list[str], file: TextIO) -> tuple[bool, float]:
    """Runs a command of a part; whether it passed, and processor seconds."""
    environment = dict(os.environ)
    if "pytest" in command:
        command = [*command, f"--hypothesis-seed={environment['SEED']}", "-o", f"cache_dir={CACHES / words_of(name)}"]
    else:
        del environment["SEED"]  # the C core's tests have dice of their own
    process = subprocess.Popen(
        [PYTHON, ADOPT, *command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode == 0, usage.ru_utime + usage.ru_stime


def run(part: Part) -> Verdict:
    """Runs the commands of a part until one fails."""
    name, commands = part
    started = time.monotonic()
    log = LOGS / f"test-{words_of(name)}.log"
    print(f"  {name} ...", flush=True)
    passed = True
    work = 0.0
    with log.open("w", encoding="utf-8") as file:
        for command in commands:
            passed, took = start(name, command, file)
            work += took
            if not passed:
                break
    seconds = time.monotonic() - started
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if not passed:
        print("\n".join(lines[-SHOWN_OF_FAILURE:]))
    skipped = [f"\n    {line}" for line in lines if line.startswith("SKIPPED ")]
    print(f"  {name}: {'passed' if passed else 'FAILED'}, {seconds:.1f} s{''.join(skipped)}", flush=True)
    slow = [(float(found[1]), found[2]) for line in lines if (found := DURATION.match(line))]
    failures = [line for line in lines if FAILURE.match(line)]
    return Verdict(name, passed, seconds, work, lines[-1] if lines else "", slow, failures, [])


def again(part: Part, verdict: Verdict) -> Verdict:
    """The verdict when the tests that failed have run alone, one after another, with the same dice."""
    name, commands = part
    cache = CACHES / words_of(name) / "v" / "cache" / "lastfailed"
    if verdict.passed or len(commands) > 1 or not cache.exists():
        return verdict
    failed = json.loads(cache.read_text())
    if not 0 < len(failed) <= CHANCE:
        return verdict
    print(f"  {name}: what failed, alone ...", flush=True)
    command = [word for word in commands[0] if word not in {*TWO, *THREE, "--durations=60"}]
    with (LOGS / f"test-{words_of(name)}-alone.log").open("w", encoding="utf-8") as file:
        passed, took = start(name, [*command, "--last-failed", "--last-failed-no-failures=none"], file)
    verdict = verdict._replace(work=verdict.work + took)
    return verdict._replace(passed=True, by_chance=verdict.failures or list(failed)) if passed else verdict


def has_room(folder: Path) -> bool:
    """Can tests have their files there, and run them?"""
    if not os.access(folder, os.W_OK):
        return False
    of = os.statvfs(folder)
    return of.f_bavail * of.f_frsize >= MEMORY_BYTES and not of.f_flag & os.ST_NOEXEC


def main() -> int:
    """Runs all parts, whatever fails, and prints the summary; 0 if every part passed."""
    parser = argparse.ArgumentParser(description="run every part of the tests")
    parser.add_argument("--fast", action="store_true", help="core, engine and host, without what is marked slow")
    fast = parser.parse_args().fast
    parts = FAST if fast else PARTS
    LOGS.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(CACHES, ignore_errors=True)
    shutil.rmtree(NOTES, ignore_errors=True)
    NOTES.mkdir()
    os.environ["SEED"] = str(new_seed())
    print(f"seed {os.environ['SEED']}", flush=True)
    os.environ["PATH"] = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.update(ENVIRONMENT, NOTES=str(NOTES))
    if has_room(MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    started = time.monotonic()
    with ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
        verdicts = list(pool.map(run, parts))
    verdicts = [again(part, verdict) for part, verdict in zip(parts, verdicts, strict=True)]
    if not fast:
        verdicts.append(run(LAST))
    print(f"\nThe {SLOWEST} slowest tests:")
    for duration, name in sorted((test for verdict in verdicts for test in verdict.slow), reverse=True)[:SLOWEST]:
        print(f"  {duration:6.1f} s  {name}")
    print()
    for verdict in verdicts:
        word = "passed" if verdict.passed else "FAILED"
        print(f"{word:8} {verdict.name:18} {verdict.seconds:6.1f} s, work {verdict.work:6.1f} s  {verdict.closing}")
        print("".join(f"           {line}\n" for line in verdict.failures), end="")
    if by_chance := [line for verdict in verdicts for line in verdict.by_chance]:
        print(f"{len(by_chance)} of these passed alone, with the same dice: to be mended")
    failed = [verdict.name for verdict in verdicts if not verdict.passed]
    seed = f" (SEED={os.environ['SEED']} has the same dice)"
    print(f"{'FAILED: ' + ', '.join(failed) + seed if failed else 'all passed'}, {time.monotonic() - started:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
