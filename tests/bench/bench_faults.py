"""Kills under load and power cuts of stores, as rows of `make bench`: what is wrong after them is 0.

    python -m tests.bench.bench_faults [--kills N] [--cuts N] [--seed N]

`make soak` does 1,000 kills, `make powercuts` any number of cuts. Each says on standard error what was wrong.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.bench import report

ROOT = Path(__file__).resolve().parents[2]


def faults(bench: str, unit: str, module: str, *arguments: str) -> None:
    """Run it: `ordack_value` is 0 if nothing was wrong, else 1, for it ends at once."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    shown = json.loads(done.stdout) if done.returncode == 0 else {}
    report(bench=bench, unit=unit, bar="ordack_value == 0", ordack_value=int(done.returncode != 0), **shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--cuts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    seed = "--seed", str(options.seed)
    kills = f"{options.kills} kills -9 under load of 8 senders and 4 consumers"
    faults(kills, "lost, twice or out of order", "tests.soak", "--kills", str(options.kills), *seed)
    cuts = f"{options.cuts} power cuts and disks that fail, under stores at work"
    faults(cuts, "bad", "tests.host.power_cuts", "--json", "--cuts", str(options.cuts), *seed)


if __name__ == "__main__":
    main()
