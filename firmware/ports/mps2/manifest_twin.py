# The same for a firmware without the C core.
freeze(".", "_boot.py", opt=3)  # noqa: F821
include("../manifest.py", twin=True, tls=False)  # noqa: F821
