"""Seeds of campaigns and tests: repeating a printed seed repeats the run."""

import os
import random


def new_seed() -> int:
    """The seed in SEED, which `make test` sets; otherwise a random one. Raises SystemExit with a message if SEED is no
    whole number."""
    named = os.environ.get("SEED", "")
    if not named:
        return random.SystemRandom().randrange(1, 1 << 30)
    if not named.isdecimal():
        raise SystemExit(f"SEED is {named!r}: the seed that a test or a campaign has printed is a whole number")
    return int(named)
