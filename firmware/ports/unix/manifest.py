# Frozen into the unix builds: only what MicroPython itself brings. Our modules are read from firmware/ through
# MICROPYPATH, so that a change to them needs no build.
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821
