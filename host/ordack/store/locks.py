"""Who else is there: files that a process has locked as long as it lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ordack.store.database import StoreError

SERVE_LOCK = "serve.lock"


class Locks:
    """The locks in a store's folder, and those that this process has kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: list[int] = []  # descriptors
        self._names: set[str] = set()

    def keep(self, descriptor: int, name: str = "") -> None:
        """Have this file, and the lock of that name, until `close`."""
        self._kept.append(descriptor)
        self._names.add(name)

    def close(self) -> None:
        """Give all locks back."""
        for descriptor in self._kept:
            os.close(descriptor)
        self._kept.clear()
        self._names.clear()

    def take(self, name: str, flags: int) -> int | None:
        """A descriptor of this lock file with its lock, which the kernel frees when the process dies; None if another
        process has it, or without O_CREAT in flags if there is no such file."""
        descriptor = self._open(name, os.O_RDWR | flags)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_taken(self, name: str) -> bool:
        """Does a process hold this lock? Asked as a reader, so that it needs no permission to write, and of two who ask
        at once none takes the other for it."""
        descriptor = self._open(name, os.O_RDONLY)
        if descriptor is None:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def is_anothers(self, name: str) -> bool:
        """Does anybody hold this lock but this object?"""
        return name not in self._names and self.is_taken(name)

    def _open(self, name: str, flags: int) -> int | None:
        """A descriptor of this lock file; None if there is no such file."""
        path = self.folder / name
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
