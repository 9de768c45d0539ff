"""A Python program whose clock is ahead by what a file says, in seconds, whenever it is asked:

    python stepped.py FILE SCRIPT [ARGUMENT ...]

Only time.time and time.time_ns are: what a process waits for goes by another clock. (libfaketime, which would do that
for any program, breaks time.sleep.)
"""

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path


def step(file: Path, clock: Callable[[], float]) -> None:
    """Put both clocks ahead of `clock`, for all that are imported later."""

    def ahead() -> float:
        return clock() + float(file.read_text())

    time.time = ahead
    time.time_ns = lambda: int(ahead() * 1e6) * 1000  # as fine as a float of today is


if __name__ == "__main__":
    _, name, *sys.argv = sys.argv
    step(Path(name).absolute(), time.time)
    runpy.run_path(sys.argv[0], run_name="__main__")
