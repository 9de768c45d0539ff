"""Power cuts of boards' outboxes and the host's stores, more than in `make test`: python -m tests.powercuts CUTS [SEED]

So many of each, with other seeds each time, two processes at a time: of the outbox at the writes of its flash, most of
them in the unix port, one in a hundred in a Cortex-M3 in QEMU; of the stores at the operations of their disks
(host/cuts.py). Prints what the scripts print; exits with 1 if one of them failed.
"""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hil.emulated import M3
from tests import on_mps2, run_mp

PROCESSES = 2
ON_BOARD = 100
CUTS_IN_PROCESS = 20000
SECONDS_FOR_CUT = 0.1
"""Far more than one takes, on a busy machine too."""


def unix(cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts in the unix port."""
    return run_mp.micropython(
        "unix-c", "tests/mp/test_flash.py", str(cuts), str(seed), timeout=60 + cuts * SECONDS_FOR_CUT
    )


def board(cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts in the Cortex-M3."""
    script = (
        f"import sys\nsys.path.insert(0, 'tests/mp')\nimport test_flash\nsys.exit(test_flash.main({cuts}, {seed}))\n"
    )
    return on_mps2.run(script, 120 + 10 * cuts * SECONDS_FOR_CUT)


def host(cuts: int, seed: int) -> "subprocess.CompletedProcess[str]":
    """Some cuts of the stores of queue managers."""
    return subprocess.run(
        [sys.executable, "-m", "tests.host.cuts", "--cuts", str(cuts), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 + cuts * SECONDS_FOR_CUT,
        check=False,
    )


def main(cuts: int, seed: int) -> int:
    """Runs about so many cuts of each kind; 0 if all were survived."""
    dice = random.Random(seed)
    print("seed", seed)
    shares = [
        (share, min(CUTS_IN_PROCESS, cuts - done)) for done in range(0, cuts, CUTS_IN_PROCESS) for share in (unix, host)
    ]
    if M3.firmware.exists():
        shares.insert(0, (board, max(cuts // ON_BOARD, 100)))
    with ThreadPoolExecutor(max_workers=PROCESSES) as pool:
        runs = [pool.submit(share, count, dice.randrange(1, 1 << 30)) for share, count in shares]
        results = [run.result() for run in runs]
    for (share, _), result in zip(shares, results):
        print(f"--- {share.__name__}\n{result.stdout}", end="")
    return int(any(result.returncode for result in results))


if __name__ == "__main__":
    if not Path("tests").exists():
        sys.exit("run it in the checkout")
    sys.exit(
        main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 30))
    )
