"""The files of a store beside its database: locks that a process has as long as it lives, and files that are made."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw

from ordack.store.database import StoreError, StoreFull, check_folder
from ordack.store.schema import (
    APPLICATION_ID,
    FILE_NAME,
    FIRST_PRIVATE_ID,
    FORMAT_VERSION,
    SCHEMA,
    SYSTEM,
    SYSTEM_QUEUES,
)

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


# Files that are whole as soon as they have their name: new stores, backups, and what is made of backups. Until a file
# is whole and durable, it has a hidden name and a lock. The next one that is made in the folder removes what a kill
# has left.

PARTIAL_START, PARTIAL_END = ".ordack-", ".partial"


def make_store(folder: Path) -> bool:
    """Make a store in `folder`; False if a file has its name already, whatever is in it. Raises StoreError: among
    others if a log is there that holds data."""
    check_folder(folder)
    path = folder / FILE_NAME
    if os.path.lexists(path):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from None
    try:
        with new_file(path) as partial:
            _fill(partial, path)
    except StoreError:
        if not os.path.lexists(path):
            raise
        return False  # another process was faster
    return True


def _fill(partial: Path, path: Path) -> None:
    connection = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.pragma("journal_mode", "off")  # of what is incomplete nothing stays
        connection.pragma("synchronous", "off")  # the whole file is, in the end
        with connection:
            connection.execute(SCHEMA)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", FORMAT_VERSION)
            connection.executemany(
                "INSERT INTO settings VALUES (?, ?)",
                [("guid", secrets.token_bytes(16)), ("message_id_ordinal", 0), ("tx_time_stamp", 0), ("receiver", 0)],
            )
            connection.executemany(
                "INSERT INTO queues (id, name, transactional, kind) VALUES (?, ?, ?, ?)",
                [(identifier, name, transactional, SYSTEM) for identifier, name, transactional in SYSTEM_QUEUES],
            )
            connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'queues'", (FIRST_PRIVATE_ID - 1,))
    except apsw.FullError:
        raise StoreFull(f"cannot make {path}: the disk is full") from None
    except apsw.Error as error:
        raise StoreError(f"cannot make {path}: {error}") from None
    finally:
        connection.close()


@contextlib.contextmanager
def new_file(path: Path, mode: int | None = None) -> Iterator[Path]:
    """A file to write under a hidden name beside `path`. When what is inside ends, the file becomes durable, and then
    gets the name `path`, which nothing else has; it goes if an exception comes instead. mode: its permissions; None:
    those of any new file. Raises StoreError."""
    with writing(path):
        remove_dead(path.parent)
        descriptor, partial = _open_partial(path.parent, mode)
    try:
        if mode is not None:
            with contextlib.suppress(PermissionError):  # not all file systems have modes
                os.fchmod(descriptor, _allowed(mode))
        yield partial
        with writing(path):
            os.fsync(descriptor)
            _give_name(partial, path)
            try:
                sync(path.parent)
            except BaseException:
                path.unlink()
                raise
    finally:
        partial.unlink(missing_ok=True)
        os.close(descriptor)


def _allowed(mode: int) -> int:
    return stat.S_IMODE(mode) & 0o666 | stat.S_IWUSR | stat.S_IRUSR


def _open_partial(folder: Path, mode: int | None) -> tuple[int, Path]:
    """A new file with its lock. Raises OSError."""
    while True:
        path = folder / f"{PARTIAL_START}{secrets.token_hex(8)}{PARTIAL_END}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else _allowed(mode))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)  # before it had its lock another one took it for dead


def remove_dead(folder: Path) -> None:
    """Remove what was to become a copy in this folder when its process was killed. Raises OSError."""
    for path in folder.glob(f"{PARTIAL_START}*{PARTIAL_END}"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # gone, or somebody else's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _give_name(partial: Path, path: Path) -> None:
    """Raises OSError, FileExistsError among others."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if os.path.lexists(path):  # a file system without links, as on a USB stick
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        partial.rename(path)


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise StoreError(f"{path} is there already, and would be lost: name a new file") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"cannot write {path}: {error.strerror}") from None
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
