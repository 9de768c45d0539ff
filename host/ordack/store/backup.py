"""Backup, restore and check of a whole store.

A backup copies one snapshot while the store is in use. Writers do not wait, but the write-ahead log cannot restart
meanwhile. PIECE_PAGES and SQLite's cache bound the memory.

A backup gets its name when it is whole, checked and durable (files.py). A restore changes no contents: each process
begins new sequences (`Numbers.begin_run`), and unfinished receives have no living receiver.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from ordack.config.names import legible
from ordack.store import disk
from ordack.store.database import OPERATIONS, Database, ServeLock
from ordack.store.files import new_file, remove_dead, sync, writing
from ordack.store.look import ReadOnlyDatabase, open_to_look
from ordack.store.schema import FILE_NAME, PRIVATE, UPGRADES, upgrade

PIECE_PAGES = 256  # per step; signals are handled between steps
PROBLEMS_MAX = 20
SEAL = b"ordack backup 1\n"  # follows the database in a backup, where SQLite does not read; then the file's SHA-256
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size
_READ_FAILURES = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS)

Progress = Callable[[int, int], None]  # bytes copied, bytes in total


class Contents(NamedTuple):
    """The contents of a store's file. version: format version. size: of the database, in bytes. queues: private queues.
    messages: in local queues. outgoing: in outgoing queues. problems: damages, one sentence each."""

    version: int
    size: int
    queues: int
    messages: int
    outgoing: int
    problems: tuple[str, ...]


class _Copy(ReadOnlyDatabase):
    """An unchanging copy of a store's file under another name."""

    def __init__(self, path: Path) -> None:
        self.folder, self.path = path.parent, path
        with self.errors():
            self.connection = self._connect(0)
        try:
            self._prepare(0)
        except BaseException:
            self.connection.close()
            raise

    def _has_log(self) -> bool:
        return False


@contextlib.contextmanager
def _snapshot(folder: Path) -> Iterator[Database]:
    """One snapshot of the store in `folder`, which may be in use."""
    with open_to_look(folder) as store, store.snapshot():
        yield store._database  # noqa: SLF001 - of this package


def inspect_backup(folder: Path) -> Contents:
    """The contents and the damages of the store in `folder`, which may be in use. Raises StoreError."""
    with _snapshot(folder) as database:
        return _contents(database)


def _contents(database: Database) -> Contents:
    database.connection.set_progress_handler(lambda: _leave_room(database), OPERATIONS)
    return Contents(
        version=database.number("PRAGMA user_version"),
        size=database.number("PRAGMA page_count") * database.number("PRAGMA page_size"),
        queues=database.number("SELECT count(*) FROM queues WHERE kind = ?", (PRIVATE,)),
        messages=database.number("SELECT total(count) FROM messages"),
        outgoing=database.number("SELECT total(count) FROM outgoing_messages"),
        problems=tuple(_problems(database)),
    )


def _problems(database: Database) -> list[str]:
    found = [text for text in database.column(f"PRAGMA integrity_check({PROBLEMS_MAX})") if text != "ok"]
    for queues, name, messages, queue in (
        ("queues", "name", "messages", "queue"),
        ("outgoing", "format_name", "outgoing_messages", "outgoing"),
    ):
        counts = database.all(
            f"SELECT q.{name}, ifnull(q.messages, 0), ifnull(n, 0) FROM {queues} q FULL JOIN "
            f"(SELECT {queue} AS queue, sum(count) AS n FROM {messages} GROUP BY 1) ON queue = q.id "
            "WHERE ifnull(q.messages, 0) != ifnull(n, 0) LIMIT ?",
            (PROBLEMS_MAX,),
        )
        found += [
            f"{owner or 'a queue that is not there'}: {there} messages are there, {counted} are counted"
            for owner, counted, there in counts
        ]
    return found[:PROBLEMS_MAX]


def _leave_room(database: Database) -> bool:
    """Raise StoreFull if the growing write-ahead log takes the room that receives need. Return False: SQLite then
    continues."""
    try:
        (size, free), log = disk.disk_bytes(database.folder), disk.log_bytes(database.path)
    except OSError:
        return False
    if disk.is_pinned(disk.Disk(size, free, 0, 0, 0, log)):
        raise disk.StoreFull(
            f"{database.folder}: its disk is nearly full, and its write-ahead log, {disk.megabytes(log)}, cannot begin "
            "anew while all of the store is read: stopped, so that the store can go on. Free some room and try again"
        )
    return False


def make_backup(folder: Path, to: Path, progress: Progress) -> Contents:
    """Copy the store in `folder`, which may be in use, to the new file `to`. Return the contents of the copy.

    Raises StoreError, without a new file, if `to` exists or is in the store's folder, or if the store is damaged.
    Raises StoreFull if the disk has no room for the copy, or none for the store after it."""
    _refuse_target(folder, to)
    with _snapshot(folder) as source:
        size, page_bytes = source.number("PRAGMA page_count"), source.number("PRAGMA page_size")
        size *= page_bytes
        with writing(to):
            whole, free = disk.disk_bytes(to.parent)
            is_same = to.parent.stat().st_dev == folder.stat().st_dev
            mode = source.path.stat().st_mode
        need = size + (disk.reserve(whole) if is_same else 0)
        if free < need:
            why = ": the store on the same disk would be left without room" if is_same else ""
            raise disk.StoreFull(f"{to}: {disk.megabytes(need)} needed, {disk.megabytes(free)} free{why}")
        with new_file(to, mode) as partial:
            _copy(source, partial, to, lambda pages: progress(pages * page_bytes, size))
            with source.errors():  # StoreBusy after a change of a file that no process had open
                source.connection.execute("ROLLBACK")  # the write-ahead log can restart from here on
            contents = _checked(partial, f"the store in {folder} is damaged, and a backup would be", source.path)
            with writing(to), partial.open("r+b") as file:
                file.write(SEAL + hashlib.file_digest(file, "sha256").digest())
            return contents


def _refuse_target(folder: Path, to: Path) -> None:
    with writing(to):
        if to.is_dir():
            raise disk.StoreError(f"{to} is a folder: name a new file in it, such as {to / 'plant.ordack'}")
        if os.path.lexists(to):
            raise disk.StoreError(f"{to} is there already, and would be lost: name a new file")
        own, other = folder.resolve(), to.parent.resolve()
    if legible(str(to)) != str(to):
        raise disk.StoreError(f"the name {str(to)!r} is not UTF-8")
    if own == other or own in other.parents:
        raise disk.StoreError(f"{to} is in the store's own folder, and would be lost with it: name a file elsewhere")


def _copy(source: Database, partial: Path, to: Path, progress: Callable[[int], None]) -> None:
    target = apsw.Connection(
        f"file:{quote(str(partial.absolute()))}?nolock=1", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    )
    try:
        target.pragma("journal_mode", "off")  # an incomplete copy is deleted
        target.pragma("synchronous", "off")  # `new_file` syncs the whole file at the end
        with target.backup("main", source.connection, "main") as copying:
            while not copying.done:
                copying.step(PIECE_PAGES)
                progress(copying.page_count - copying.remaining)
                _leave_room(source)
    except apsw.Error as error:
        is_written = isinstance(error, (apsw.FullError, apsw.IOError))
        is_read = getattr(error, "extendedresult", 0) in _READ_FAILURES
        raise disk.explained(error, source.path if is_read or not is_written else to) from None
    finally:
        target.close()


def _checked(partial: Path, damaged: str, whose: Path) -> Contents:
    """The contents of a copy. Raises StoreError, with a text that begins with `damaged`, if the copy is not whole."""
    try:
        copy = _Copy(partial)
        try:
            contents = _contents(copy)
        finally:
            copy.connection.close()
    except disk.StoreError as error:
        raise disk.StoreError(f"{damaged}: {str(error).replace(str(partial), str(whose))}") from None
    if contents.problems:
        raise disk.StoreError(f"{damaged}: {contents.problems[0]}")
    return contents


def restore(backup: Path, folder: Path, progress: Progress) -> Contents:
    """Make a store from a backup in `folder`, which is empty or missing. Return the store's contents.

    Raises StoreError, and leaves the folder unchanged, if the folder is not empty, or if the file is not a backup, is
    damaged, or has a newer version. Raises StoreFull if there is no room."""
    size, digest = _seal(backup)
    is_made = _make_empty_folder(folder)
    path = folder / FILE_NAME
    try:
        with writing(path):
            free, mode = disk.disk_bytes(folder)[1], backup.stat().st_mode
        if free < size:
            raise disk.StoreFull(f"{path}: {disk.megabytes(size)} needed, {disk.megabytes(free)} free")
        with new_file(path, mode) as partial:
            with writing(path), backup.open("rb") as source, partial.open("r+b") as target:
                found = hashlib.sha256()
                while data := source.read(min(1 << 20, size - source.tell())):
                    target.write(data)
                    found.update(data)
                    progress(target.tell(), size)
            if digest != found.digest():
                raise disk.StoreError(
                    f"{backup} is damaged, and nothing was restored: it is not as `ordack store backup` wrote it"
                )
            _upgrade(partial, backup)
            contents = _checked(partial, f"nothing was restored from {backup}", backup)
        if is_made:
            with writing(folder):
                sync(folder.parent)
    except BaseException:
        if is_made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return contents


def _upgrade(partial: Path, backup: Path) -> None:
    """Upgrade the copy of a backup of an earlier format version."""
    try:
        connection = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            if connection.pragma("user_version") in UPGRADES:
                connection.pragma("synchronous", "off")  # `new_file` syncs the whole file at the end
                upgrade(connection, "off")
        finally:
            connection.close()
    except apsw.Error as error:
        raise disk.explained(error, backup) from None


def _seal(backup: Path) -> tuple[int, bytes]:
    """The size of the database in a backup, and its SHA-256. Raises StoreError."""
    try:
        with backup.open("rb") as file:
            size = max(file.seek(0, os.SEEK_END) - SEAL_BYTES, 0)
            file.seek(size)
            seal = file.read()
    except OSError as error:
        raise disk.StoreError(f"cannot read {backup}: {error.strerror}") from None
    if not seal.startswith(SEAL):
        raise disk.StoreError(f"{backup} is no whole backup: name a file that `ordack store backup` has made")
    return size, seal[len(SEAL) :]


def _make_empty_folder(folder: Path) -> bool:
    """Make the folder; False if an empty one exists. Raises StoreError if it is not empty."""
    try:
        folder.mkdir()
        return True
    except FileExistsError:
        if not folder.is_dir():
            raise disk.StoreError(f"{folder} is no folder: name one that is empty, or not there yet") from None
    except OSError as error:
        raise disk.StoreError(f"cannot make the folder {folder}: {error.strerror}") from None
    if ServeLock(folder).is_taken():
        raise disk.StoreBusy(
            f"a queue manager runs on {folder}: stop it, and move the folder away, to restore a backup"
        )
    with writing(folder):
        remove_dead(folder)
        if names := sorted(path.name for path in folder.iterdir()):
            raise disk.StoreError(
                f"{folder} is not empty ({names[0]} is in it): a backup is restored into an empty folder only. Stop "
                f"what uses the store, and move it away: mv {folder} {folder}.old"
            )
    return False
