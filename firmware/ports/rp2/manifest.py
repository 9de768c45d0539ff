# Frozen into the Pico's firmware: its port's modules, and those of every board.
freeze("$(PORT_DIR)/modules")  # noqa: F821
include("../manifest.py")  # noqa: F821
