# Frozen into the MPS2 firmware with the C core: its start, and the modules of every board.
freeze(".", "_boot.py", opt=3)  # noqa: F821
include("../manifest.py", twin=False, tls=False)  # noqa: F821
