"""Writes the initrd of the emulated Pi: python3 initrd.py OUTPUT.gz INIT BUSYBOX MICROPYTHON MODULE...

A cpio archive in the kernel's "newc" format, all files root's, all times 0: the same files give the same bytes, and no
cpio, mknod or fakeroot is needed. The MODULEs are loaded in their order.
"""

import gzip
import stat
import sys
from pathlib import Path

FOLDERS = ("bin", "dev", "flash", "modules", "proc", "sys", "tmp")
CONSOLE = (5, 1)  # the device that /init writes to before it has mounted /dev


class Archive:
    """The bytes of a cpio archive, file by file."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._inode = 0

    def _pad(self) -> None:
        self.data += bytes(-len(self.data) % 4)

    def add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        """One file; mode holds its kind, too."""
        self._inode += 1
        path = name.encode() + b"\0"
        # inode, mode, user, group, links, time, size, device of the archive, device of a device file, name, checksum
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        self.data += b"070701" + b"".join(b"%08X" % field for field in fields) + path
        self._pad()
        self.data += content
        self._pad()

    def end(self) -> bytes:
        """The whole archive."""
        self.add("TRAILER!!!", 0)
        return bytes(self.data)


def main(output: str, init: str, busybox: str, micropython: str, *modules: str) -> None:
    """Writes the archive."""
    archive = Archive()
    for folder in FOLDERS:
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=CONSOLE)
    for name, path in (("init", init), ("bin/busybox", busybox), ("bin/micropython", micropython)):
        archive.add(name, stat.S_IFREG | 0o755, Path(path).read_bytes())
    for module in modules:
        archive.add(f"modules/{Path(module).name}", stat.S_IFREG | 0o644, Path(module).read_bytes())
    order = "".join(f"{Path(module).stem}\n" for module in modules)
    archive.add("modules/order", stat.S_IFREG | 0o644, order.encode())
    Path(output).write_bytes(gzip.compress(archive.end(), 6, mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
