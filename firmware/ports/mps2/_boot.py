# Runs first: mounts the flash at /flash, formats a new one, and sets the current directory.


def _mount():
    import os

    import mps2
    import vfs

    flash = mps2.Flash()
    blank = True
    data = bytearray(512)
    for block in range(2):  # LittleFS has its root in these two
        flash.readblocks(block, data, 0)
        blank = blank and data in (bytes(512), b"\xff" * 512)
    # A corrupt file system is never formatted: the user sees the error.
    if blank:
        vfs.VfsLfs2.mkfs(flash)
    vfs.mount(flash, "/flash")
    os.chdir("/flash")


_mount()
del _mount
