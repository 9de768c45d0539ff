# The same for a firmware without the C core.
freeze(".", "_boot.py", opt=3)  # noqa: F821
include("../manifest.py", twin=True)  # noqa: F821
