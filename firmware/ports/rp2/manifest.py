# Frozen into the Pico's firmware: what its port needs, and what every board gets.
freeze("$(PORT_DIR)/modules")  # noqa: F821
include("../manifest.py")  # noqa: F821
