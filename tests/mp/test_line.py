"""The line protocol on MicroPython. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import line_cases
from engine_cases import run_calls

if __name__ == "__main__":
    names = sorted(name for name in dir(line_cases) if name.startswith("test_"))
    run_calls([(name, getattr(line_cases, name), (), {}) for name in names])
