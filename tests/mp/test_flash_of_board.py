"""A share of the power cuts of test_flash, for a board in QEMU: another processor. Prints `N passed, N failed`."""

import sys

import mps2

sys.path.insert(0, "tests/mp")

import test_flash

CUTS = int(mps2.setting("cuts") or 400)

if __name__ == "__main__":
    sys.exit(test_flash.main(CUTS, 1001))
