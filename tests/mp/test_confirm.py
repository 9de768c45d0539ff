"""The test cases of the confirmation process, on MicroPython and CPython. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import confirm_cases
from engine_cases import run_calls

if __name__ == "__main__":
    calls = [(case[0], confirm_cases.check, (case,), {}) for case in confirm_cases.CASES]
    run_calls(calls + [(other.__name__, other, (), {}) for other in confirm_cases.OTHERS])
