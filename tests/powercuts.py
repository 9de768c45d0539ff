"""Power cuts of boards' outboxes and the host's stores, more than in `make test`: python -m tests.powercuts CUTS [SEED]

So many of each, with other seeds each time, two processes at a time: of the outbox at the writes of its flash, most of
them in the unix port, one in a thousand in each microcontroller in QEMU that is here, which takes fifty times as long,
and at least a hundred; of the stores at the operations of their disks (host/power_cuts.py). Shows how far it is. Prints
the kinds of cuts and how many there were of each, and whole what a script printed that failed; exits with 1 then.
Ctrl-C ends it with what has been cut by then.
"""

import random
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from hil.dice import new_seed
from hil.emulated import M3
from tests import on_mps2, run_mp

PROCESSES = 2
ON_BOARD = 1000
CUTS_IN_PROCESS = 2000
CUTS_ON_BOARD = 100
SECONDS_FOR_CUT = 1.0
"""A hundred times what one takes, for a busy machine; in a microcontroller ten times as much."""


Share = Callable[[int, int], "subprocess.CompletedProcess[str]"]


def unix(cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts in the unix port."""
    return run_mp.micropython(
        "unix-c",
        *run_mp.FLASH_HEAP,
        "tests/mp/test_flash.py",
        str(cuts),
        str(seed),
        timeout=60 + cuts * SECONDS_FOR_CUT,
    )


def board(cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts in a microcontroller."""
    script = (
        f"import sys\nsys.path.insert(0, 'tests/mp')\nimport test_flash\nsys.exit(test_flash.main({cuts}, {seed}))\n"
    )
    return on_mps2.run(script, 120 + 10 * cuts * SECONDS_FOR_CUT)


def host(cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts of the stores of queue managers."""
    return subprocess.run(
        [sys.executable, "-m", "tests.host.power_cuts", "--cuts", str(cuts), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 + cuts * SECONDS_FOR_CUT,
        check=False,
    )


def totals(outputs: Iterable[str]) -> list[str]:
    """The lines of several outputs, each once: of those that differ only in numbers behind the colon, the sums."""
    sums: dict[tuple[str, str], list[int]] = {}
    for line in "\n".join(outputs).splitlines():
        kind, colon, rest = line.partition(":") if ":" in line else re.sub(r"  +", ": ", line.strip()).partition(":")
        numbers = [int(number) for number in re.findall(r"\d+", rest)]
        if colon and kind not in ("seed", "seconds", "cuts_per_s") and numbers:
            form = re.sub(r"\d+", "{}", rest)
            before = sums.get((kind, form), [0] * len(numbers))
            sums[kind, form] = [one + other for one, other in zip(before, numbers)]
    return [f"{kind}:{form.format(*numbers)}" for (kind, form), numbers in sums.items()]


def shares(cuts: int, at_once: int) -> list[int]:
    """So many cuts in shares of at most `at_once`."""
    return [min(at_once, cuts - done) for done in range(0, cuts, at_once)]


def finished(
    share: "Share", cuts: int, seed: int, stopped: threading.Event
) -> "subprocess.CompletedProcess[str] | None":
    """A share's result, which has failed if it took far too long; None: not begun, as all has been stopped."""
    if stopped.is_set():
        return None
    try:
        return share(cuts, seed)
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return subprocess.CompletedProcess(late.cmd, 1, f"{said}\n{late}, with {cuts} cuts of seed {seed}\n")


def main(cuts: int, seed: int) -> int:
    """Runs about so many cuts of each kind; 0 if all were survived."""
    dice = random.Random(seed)
    print("seed", seed)
    parts: dict[str, tuple[Share, list[int]]] = {
        M3.processor: (board, shares(max(cuts // ON_BOARD, CUTS_ON_BOARD), CUTS_ON_BOARD)),
        "unix port": (unix, shares(cuts, CUTS_IN_PROCESS)),
        "stores of the host": (host, shares(cuts, CUTS_IN_PROCESS)),
    }
    results: dict[str, list[subprocess.CompletedProcess[str]]] = defaultdict(list)
    stopped = threading.Event()
    with ThreadPoolExecutor(max_workers=PROCESSES) as pool, Progress(console=Console(stderr=True)) as progress:
        bars = {name: progress.add_task(name, total=sum(counts)) for name, (_, counts) in parts.items()}
        runs = {
            pool.submit(finished, share, count, dice.randrange(1, 1 << 30), stopped): (name, count)
            for name, (share, counts) in parts.items()
            for count in counts
        }
        try:
            for run in as_completed(runs):
                name, count = runs[run]
                if result := run.result():
                    results[name].append(result)
                    progress.advance(bars[name], count)
                    if not progress.console.is_terminal:  # a log has no bars
                        failures = sum(result.returncode != 0 for some in results.values() for result in some)
                        progress.console.print(f"{name}: {count} more cuts; of all shares so far {failures} failed")
        except KeyboardInterrupt:
            stopped.set()
    for name in parts:
        print(f"--- {name}", *totals(result.stdout for result in results[name]), sep="\n")
    failed = [result for some in results.values() for result in some if result.returncode]
    for result in failed:
        print(f"--- FAILED\n{result.stdout}", end="")
    return 1 if failed else 130 if stopped.is_set() else 0


if __name__ == "__main__":
    if not Path("tests").exists():
        sys.exit("run it in the checkout")
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else new_seed()))
