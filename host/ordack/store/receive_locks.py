"""Locks of messages in unfinished receives, across processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ordack.store.disk import StoreError, ranges

# The kernel locks each message in a receive: one byte of a file, at the lookup id. The lock ends with its owner.

RECEIVE_LOCK = "receive.lock"
_LOCK = struct.Struct("hhqqi4x")  # a struct flock: kind, whence, start, length, process
_END = 1 << 62  # above all lookup ids


class ReceiveLocks:
    """Locks of messages in unfinished receives, of this store object and of others. database: the store's file; its
    users may lock."""

    def __init__(self, database: Path) -> None:
        self.mine: set[int] = set()
        self._database = database
        self._file: int | None = None

    def take(self, keys: Iterable[int]) -> None:
        """Lock keys that `all` has not returned in the same write transaction, which blocks other objects' locks."""
        new = sorted(keys)
        if new:
            self._set(fcntl.F_WRLCK, new)
            self.mine.update(new)

    def let_go(self, keys: Iterable[int]) -> None:
        """Release locks of this object; other locks stay."""
        old = sorted(self.mine.intersection(keys))
        if old:
            self.mine.difference_update(old)
            self._set(fcntl.F_UNLCK, old)

    def all(self) -> set[int]:
        """All locked messages, of this object and of others."""
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

    def close(self) -> None:
        """Release all locks."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self.mine.clear()

    def _set(self, kind: int, keys: list[int]) -> None:
        if self._file is None:
            self._file = self._opened(os.O_RDWR | os.O_CREAT)
            assert self._file is not None
        for first, last in ranges(keys):
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, first, last + 1 - first, 0))

    def _opened(self, flags: int) -> int | None:
        """The lock file; None if it is missing and the flags do not create it."""
        path = self._database.with_name(RECEIVE_LOCK)
        try:
            is_new = not path.exists()
            file = os.open(path, flags, 0o644)
            if is_new and flags & os.O_CREAT:
                of = self._database.stat()
                os.fchmod(file, of.st_mode & 0o666)
                with contextlib.suppress(OSError):  # only root can
                    os.fchown(file, of.st_uid, of.st_gid)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        return file
