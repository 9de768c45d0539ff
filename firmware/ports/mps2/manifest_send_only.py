# Frozen into a firmware for boards that only send, over a network: make FROZEN_MANIFEST=manifest_send_only.py
freeze(".", "_boot.py", opt=3)  # noqa: F821
include("../manifest.py", twin=False, tls=False, raw_flash=False, uart=False, send_only=True)  # noqa: F821
