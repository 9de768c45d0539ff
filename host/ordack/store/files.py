"""Files that appear under their names only when they are whole: new stores, backups and restored stores.

An incomplete file has a hidden name and a lock. The next process that makes a file in the folder removes the files of
killed processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw

from ordack.config.names import DEAD_LETTER, DEAD_XACT, JOURNAL
from ordack.store import schema
from ordack.store.disk import StoreError, StoreFull, check_folder, explained

SYSTEM_QUEUES = (  # B-085; the protocol fixes the order queue's identifier only
    (1, DEAD_LETTER, False),
    (2, DEAD_XACT, True),
    (3, JOURNAL, False),
    (schema.ORDER_QUEUE_ID, "order_queue$", False),
    (5, "notify_queue$", False),
)
PARTIAL_START, PARTIAL_END = ".ordack-", ".partial"


def make_store(folder: Path) -> bool:
    """Make a store in `folder`; False if its file exists. Raises StoreError, for instance if the folder has a log with
    data."""
    check_folder(folder)
    path = folder / schema.FILE_NAME
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
        connection.pragma("journal_mode", "off")  # an incomplete store is deleted
        connection.pragma("synchronous", "off")  # `new_file` syncs the whole file at the end
        with connection:
            connection.execute(schema.SCHEMA)
            connection.pragma("application_id", schema.APPLICATION_ID)
            connection.pragma("user_version", schema.FORMAT_VERSION)
            connection.executemany(
                "INSERT INTO settings VALUES (?, ?)",
                [("guid", secrets.token_bytes(16)), ("message_id_ordinal", 0), ("tx_time_stamp", 0), ("receiver", 0)],
            )
            connection.executemany(
                "INSERT INTO queues (id, name, transactional, kind) VALUES (?, ?, ?, ?)",
                [(identifier, name, transactional, schema.SYSTEM) for identifier, name, transactional in SYSTEM_QUEUES],
            )
            connection.execute(
                "UPDATE sqlite_sequence SET seq = ? WHERE name = 'queues'", (schema.FIRST_PRIVATE_ID - 1,)
            )
    except apsw.Error as error:
        raise explained(error, path) from None
    finally:
        connection.close()


@contextlib.contextmanager
def new_file(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a hidden file beside `path` to write to. The end of the block makes the file durable and names it `path`,
    which must be free; an exception removes it. mode: permissions; None: the default of new files. Raises StoreError.
    """
    with writing(path):
        remove_dead(path.parent)
        descriptor, partial = _open_partial(path.parent, mode)
    try:
        if mode is not None:
            with contextlib.suppress(PermissionError):  # some file systems have no modes
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
    """A new locked file. Raises OSError."""
    while True:
        path = folder / f"{PARTIAL_START}{secrets.token_hex(8)}{PARTIAL_END}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644 if mode is None else _allowed(mode))
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)  # `remove_dead` of another process was faster than the lock


def remove_dead(folder: Path) -> None:
    """Remove hidden files of killed processes from the folder. Raises OSError."""
    for path in folder.glob(f"{PARTIAL_START}*{PARTIAL_END}"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # removed meanwhile, or another user's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _give_name(partial: Path, path: Path) -> None:
    """Raise FileExistsError if the name is taken, or another OSError."""
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
