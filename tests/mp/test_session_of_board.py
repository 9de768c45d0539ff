"""The engine's tests with the session as a board uses it: in place, without copies. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import engine_cases
import engine_ends
import test_session

engine_ends.BOARD = True
assert test_session, "imported, so that its tests are known"

if __name__ == "__main__":
    engine_cases.run_tests(engine_cases.TESTS)
