"""Power cuts of boards' outboxes and the host's stores, more than in `make test`: python -m tests.powercuts CUTS [SEED]

So many of each, with other seeds each time, two processes at a time: of the outbox at the writes of its flash, most of
them in the unix port, one in a hundred in each microcontroller in QEMU that is here; of the stores at the operations of
their disks (host/power_cuts.py). Prints the kinds of cuts and how many there were of each, and whole what a script
printed that failed; exits with 1 then.
"""

import random
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hil.dice import new_seed
from hil.emulated import CHIPS, Chip
from tests import on_mps2, run_mp

PROCESSES = 2
ON_BOARD = 100
CUTS_IN_PROCESS = 20000
SECONDS_FOR_CUT = 0.1
"""Far more than one takes, on a busy machine too."""


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


def board(chip: Chip, cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts in a microcontroller."""
    script = (
        f"import sys\nsys.path.insert(0, 'tests/mp')\nimport test_flash\nsys.exit(test_flash.main({cuts}, {seed}))\n"
    )
    return on_mps2.run(script, 120 + 10 * cuts * SECONDS_FOR_CUT, chip=chip)


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


def main(cuts: int, seed: int) -> int:
    """Runs about so many cuts of each kind; 0 if all were survived."""
    dice = random.Random(seed)
    print("seed", seed)
    pieces = [min(CUTS_IN_PROCESS, cuts - done) for done in range(0, cuts, CUTS_IN_PROCESS)]
    parts = {
        **{
            chip.processor: (partial(board, chip), [max(cuts // ON_BOARD, 100)])
            for chip in CHIPS
            if chip.firmware.exists()
        },
        "unix port": (unix, pieces),
        "stores of the host": (host, pieces),
    }
    with ThreadPoolExecutor(max_workers=PROCESSES) as pool:
        runs = {
            name: [pool.submit(share, count, dice.randrange(1, 1 << 30)) for count in counts]
            for name, (share, counts) in parts.items()
        }
        results = {name: [run.result() for run in some] for name, some in runs.items()}
    failed = [result for some in results.values() for result in some if result.returncode]
    for name, some in results.items():
        print(f"--- {name}", *totals(result.stdout for result in some), sep="\n")
    for result in failed:
        print(f"--- FAILED\n{result.stdout}", end="")
    return int(bool(failed))


if __name__ == "__main__":
    if not Path("tests").exists():
        sys.exit("run it in the checkout")
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else new_seed()))
