"""Which file system a folder is on: on some a store cannot keep what it promises."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")  # proc(5)
OF_ANOTHER_MACHINE = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "vboxsf", "davfs", "fuse.davfs2", "fuse.sshfs", "fuse.rclone")
)
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def file_system(folder: Path) -> str:
    """The kind of the file system on which a folder is, or will be made, as `mount` names it; empty if the kernel does
    not say."""
    device = 0
    for there in (folder.absolute(), *folder.absolute().parents):
        with contextlib.suppress(OSError):
            device = there.stat().st_dev
            break
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            return source.split()[0]
    return ""
