"""Where a campaign's or a test's dice come from: who names the seed that one printed has the same again."""

import os
import random


def new_seed() -> int:
    """SEED of the environment, which `make test` sets for all that it runs; without it one that nobody knows before.
    Raises SystemExit, in words, if SEED is no whole number."""
    named = os.environ.get("SEED", "")
    if not named:
        return random.SystemRandom().randrange(1, 1 << 30)
    if not named.isdecimal():
        raise SystemExit(f"SEED is {named!r}: the seed that a test or a campaign has printed is a whole number")
    return int(named)
