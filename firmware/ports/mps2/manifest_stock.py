# Frozen into a stock firmware: no module of ours except its start.
freeze(".", "_boot.py", opt=3)  # noqa: F821
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821
