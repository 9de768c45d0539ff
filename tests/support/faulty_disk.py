"""A disk under SQLite that fails on demand: a VFS between it and the system's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
from ordack.store.schema import FILE_NAME


class FaultyDisk(apsw.VFS):
    """fail: the next "sync" or "write" of the write-ahead log fails, and with it all that follow; "sync-once" or
    "write-once" only that one. spare: so many go well before."""

    def __init__(self) -> None:
        self.fail = ""
        self.spare = 0
        self.failed = 0
        super().__init__("faulty", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - theirs
        return _File(self, name, flags)

    def check(self, what: str, path: str) -> None:
        """Raise if this is to fail."""
        if path.endswith("-wal") and self.fail.partition("-")[0] in (what, "all"):
            if self.spare:
                self.spare -= 1
                return
            self.failed += 1
            self.fail = "" if self.fail.endswith("-once") else "all"
            raise apsw.IOError(f"the {what} failed")

    @contextmanager
    def repaired(self) -> Iterator[None]:
        """Nothing fails meanwhile."""
        fail, self.fail = self.fail, ""
        yield
        self.fail = fail


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = (name.filename() if isinstance(name, apsw.URIFilename) else name) or ""
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - theirs
        self._disk.check("sync", self._path)
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - theirs
        self._disk.check("write", self._path)
        super().xWrite(data, offset)


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    """Every store that is opened meanwhile is on it."""
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.fail = ""
        disk.unregister()


def after_power_cut(store: Path, copy: Path) -> Path:
    """A copy of the store's folder as a power cut at this moment would leave it."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    (copy / f"{FILE_NAME}-shm").unlink()
    return copy
