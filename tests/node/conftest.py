"""What the tests of the node share."""

import power  # noqa: F401 - it ends the jumps of numbers at a start, for all tests here, whichever of them run
