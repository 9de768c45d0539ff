"""Who else is there: files that a process has locked as long as it lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable
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


# Messages in a receive: a lock of the kernel for each, on the byte of a file at its lookup id. It ends with its owner.


RECEIVE_LOCK = "receive.lock"
_LOCK = struct.Struct("hhqqi4x")  # a struct flock: kind, whence, start, length, process
_END = 1 << 62  # above all lookup ids


class ReceiveLocks:
    """What this store object has taken, and what all others have. database: the store's file, whose users may take."""

    def __init__(self, locks: Locks, database: Path) -> None:
        self.mine: set[int] = set()
        self._locks = locks
        self._database = database
        self._file: int | None = None

    def take(self, keys: Iterable[int]) -> None:
        """Have these. In a write transaction in which `all` did not name them: nobody else takes any meanwhile."""
        new = sorted(keys)
        if new:
            self._set(fcntl.F_WRLCK, new)
            self.mine.update(new)

    def adopt(self, keys: Iterable[int]) -> set[int]:
        """Have those of these, too, that somebody else has; which."""
        found = (self.all() - self.mine).intersection(keys)
        self.mine |= found
        return found

    def let_go(self, keys: Iterable[int]) -> None:
        """Have these no more; what is not ours stays as it is."""
        old = sorted(self.mine.intersection(keys))
        if old:
            self.mine.difference_update(old)
            self._set(fcntl.F_UNLCK, old)

    def all(self) -> set[int]:
        """What is in anybody's hands."""
        file = self._opened(os.O_RDONLY) if self._file is None else self._file
        if file is None:
            return self.mine
        found: set[int] = set()
        left = [(0, _END)]
        while left:
            start, end = left.pop()
            asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            kind, _, first, length, _ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                last = min(first + length, end)
                found.update(range(max(first, start), last))
                left += [part for part in ((start, first), (last, end)) if part[0] < part[1]]
        if self._file is None:
            os.close(file)
        return self.mine | found if found else self.mine

    def _set(self, kind: int, keys: list[int]) -> None:
        if self._file is None:
            self._file = self._opened(os.O_RDWR | os.O_CREAT)
            assert self._file is not None
            self._locks.keep(self._file)
        first = last = keys[0]
        if keys[-1] - first + 1 == len(keys):  # as a rule
            last, keys = keys[-1], keys[:1]
        for key in [*keys[1:], _END]:
            if key != last + 1:
                fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, first, last + 1 - first, 0))
                first = key
            last = key

    def _opened(self, flags: int) -> int | None:
        """The file; None if it is not there, and is not to be made."""
        path = self._locks.folder / RECEIVE_LOCK
        try:
            is_new = not path.exists()
            file = os.open(path, flags, 0o644)
            if is_new and flags & os.O_CREAT:
                of = self._database.stat()
                os.fchmod(file, of.st_mode & 0o666)
                with contextlib.suppress(OSError):  # unless it is root who makes it
                    os.fchown(file, of.st_uid, of.st_gid)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        return file
