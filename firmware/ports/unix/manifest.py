# Frozen into the unix builds: MicroPython's own modules only. Our modules are read from firmware/ through MICROPYPATH,
# so that a change to them needs no build.
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821
