# Frozen into a firmware as one downloads it: nothing of ours but its start.
freeze(".", "_boot.py", opt=3)  # noqa: F821
include("$(MPY_DIR)/extmod/asyncio")  # noqa: F821
