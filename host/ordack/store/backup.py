"""A store as a whole: copied to one file while it is used, put back, checked.

A copy is of one moment: it is read in one snapshot. Nobody waits for that, but as long as it lasts the write-ahead log
cannot begin anew. Memory is bounded by PIECE_PAGES and SQLite's cache.

A copy gets its name when it is whole, checked and durable (files.py). What is restored is not changed: each process
begins new sequences (`Numbers.begin_run`), and what was in unfinished receives has no receiver that lives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from ordack.store.database import OPERATIONS, SERVE_LOCK, Database, Locks
from ordack.store.disk import (
    Disk,
    StoreBusy,
    StoreError,
    StoreFull,
    disk_bytes,
    is_pinned,
    log_bytes,
    megabytes,
    patience,
    reserve,
)
from ordack.store.files import new_file, remove_dead, sync, writing
from ordack.store.look import ReadOnlyDatabase, is_writable
from ordack.store.schema import FILE_NAME, PRIVATE
from ordack.text import legible

PIECE_PAGES = 256  # copied at once, between two looks at signals
PROBLEMS = 20  # that are named of one file
SEAL = b"ordack backup 1\n"  # behind the database in a backup, which SQLite does not read: this, and the SHA-256 of it
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size
SECTOR = 512  # a database has a multiple of it
_READ_FAILURES = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS)

Progress = Callable[[int, int], None]  # bytes copied, of so many


class Contents(NamedTuple):
    """What is in a store's file. version: of its format. size: of the database, in bytes. queues: private ones.
    messages: in queues here. outgoing: messages that wait for other queue managers, or for what became of them.
    problems: what is damaged, a sentence each."""

    version: int
    size: int
    queues: int
    messages: int
    outgoing: int
    problems: tuple[str, ...]


class _Any(ReadOnlyDatabase):
    """A store of any version that this ordack knows, which is only read."""

    def _prepare(self, busy_timeout: float) -> None:
        with self.errors():
            self.connection.set_busy_handler(patience(busy_timeout))
        self._check_program()
        self._check_version()

    def contents(self) -> Contents:
        """All of it is read and checked."""
        self.connection.set_progress_handler(self.leave_room, OPERATIONS)  # a signal need not wait for the end
        with self.snapshot():
            return Contents(
                version=self.one("PRAGMA user_version"),
                size=self.one("PRAGMA page_count") * self.one("PRAGMA page_size"),
                queues=self.one("SELECT count(*) FROM queues WHERE kind = ?", (PRIVATE,)),
                messages=self.one("SELECT count(*) FROM messages"),
                outgoing=self.one("SELECT count(*) FROM outgoing_messages"),
                problems=tuple(self._problems()),
            )

    def leave_room(self) -> bool:
        """See that the store has room for receives while this reads it: the write-ahead log gets longer. False."""
        try:
            (size, free), log = disk_bytes(self.folder), log_bytes(self.path)
        except OSError:
            return False
        if is_pinned(Disk(size, free, 0, 0, 0, log)):
            raise StoreFull(
                f"{self.folder}: its disk is nearly full, and its write-ahead log, {megabytes(log)}, cannot begin anew "
                "while all of the store is read: stopped, so that the store can go on. Free some room and try again"
            )
        return False

    def _problems(self) -> list[str]:
        found = [text for text in self.column(f"PRAGMA integrity_check({PROBLEMS})") if text != "ok"]
        for table, parent, name in (("messages", "queues", "name"), ("outgoing_messages", "outgoing", "format_name")):
            child = "queue" if parent == "queues" else "outgoing"
            found += [
                f"{owner or 'a queue that is not there'}: {has} messages are there, {says} are counted"
                for owner, says, has in self.all(
                    f"SELECT p.{name}, ifnull(p.messages, 0), ifnull(n, 0) FROM {parent} p FULL JOIN "
                    f"(SELECT {child} AS parent, count(*) AS n FROM {table} GROUP BY 1) ON parent = p.id "
                    "WHERE ifnull(p.messages, 0) != ifnull(n, 0) LIMIT ?",
                    (PROBLEMS,),
                )
            ]
        return found[:PROBLEMS]


class _Source(_Any):
    """A store that is copied. Whoever may write it reads it as writers do: it may change meanwhile."""

    def _connect(self, flags: int) -> apsw.Connection:
        if not is_writable(self.path):
            return super()._connect(flags)
        self._still = None
        return apsw.Connection(str(self.path), flags=flags)


class _File(_Any):
    """A store's file under any name, which nobody changes meanwhile."""

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
def _closing(database: Database) -> Iterator[None]:
    try:
        yield
    finally:
        database.connection.close()


def make_backup(folder: Path, to: Path, progress: Progress) -> Contents:
    """Copy the store in `folder`, which may be in use, to the new file `to`: what is in the copy.

    Raises StoreError, with nothing under that name: it is there already, or in the store's own folder; the store is
    damaged; StoreFull: there is no room for it, or it would leave the store none."""
    _refuse_target(folder, to)
    source = _open_source(folder)
    with _closing(source), source.snapshot():
        pages, page_bytes = source.one("PRAGMA page_count"), source.one("PRAGMA page_size")
        with writing(to):
            size, free = disk_bytes(to.parent)
            same = to.parent.stat().st_dev == folder.stat().st_dev
            need = pages * page_bytes + (reserve(size) if same else 0)
            mode = source.path.stat().st_mode
        if free < need:
            raise StoreFull(
                f"{to}: {megabytes(need)} needed, {megabytes(free)} free"
                + (": the store on the same disk would be left without room" if same else "")
            )
        with new_file(to, mode) as partial:
            _copy(source, partial, to, lambda done: progress(done * page_bytes, pages * page_bytes))
            with source.errors():  # StoreBusy if it was read as a file that nobody changes, and was changed
                source.connection.execute("ROLLBACK")  # from here on the write-ahead log can begin anew
            contents = _checked(partial, f"the store in {folder} is damaged, and a backup would be", source.path)
            with writing(to), partial.open("r+b") as file:
                file.write(SEAL + hashlib.file_digest(file, "sha256").digest())
            return contents


def _refuse_target(folder: Path, to: Path) -> None:
    with writing(to):
        if to.is_dir():
            raise StoreError(f"{to} is a folder: name a new file in it, such as {to / 'plant.ordack'}")
        if os.path.lexists(to):
            raise StoreError(f"{to} is there already, and would be lost: name a new file")
        own, other = folder.resolve(), to.parent.resolve()
    if legible(str(to)) != str(to):
        raise StoreError(f"the name {str(to)!r} is not UTF-8")
    if own == other or own in other.parents:
        raise StoreError(f"{to} is in the store's own folder, and would be lost with it: name a file elsewhere")


def _open_source(folder: Path) -> _Source | _Any:
    try:
        return _Source(folder)
    except StoreFull:  # no room for what writers have beside the file
        return _Any(folder)


def _copy(source: _Any, partial: Path, to: Path, progress: Callable[[int], None]) -> None:
    target = apsw.Connection(
        f"file:{quote(str(partial.absolute()))}?nolock=1", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    )
    try:
        target.pragma("journal_mode", "off")  # of what is incomplete nothing stays
        target.pragma("synchronous", "off")  # the whole file is, in the end
        with target.backup("main", source.connection, "main") as copying:
            while not copying.done:
                copying.step(PIECE_PAGES)
                progress(copying.page_count - copying.remaining)
                source.leave_room()
    except apsw.FullError:
        raise StoreFull(f"cannot write {to}: the disk is full") from None
    except apsw.IOError as error:
        if getattr(error, "extendedresult", 0) in _READ_FAILURES:
            raise StoreError(f"cannot read {source.path}: {error}") from None
        raise StoreError(f"cannot write {to}: {error}") from None
    except apsw.Error as error:
        with source.errors():
            raise error
    finally:
        target.close()


def _checked(partial: Path, damaged: str, whose: Path) -> Contents:
    """What is in a copy. Raises StoreError, which begins with `damaged`, if that is not whole."""
    try:
        copy = _File(partial)
        with _closing(copy):
            contents = copy.contents()
    except StoreError as error:
        raise StoreError(f"{damaged}: {str(error).replace(str(partial), str(whose))}") from None
    if contents.problems:
        raise StoreError(f"{damaged}: {contents.problems[0]}")
    return contents


def restore(backup: Path, folder: Path, progress: Progress) -> Contents:
    """Make the store in `folder`, which is empty or not there, of a backup: what is in it.

    Raises StoreError, with the folder as it was: something is in it; the backup is none, of a newer version, or
    damaged; StoreFull: there is no room for it."""
    _refuse_backup(backup)
    made = _empty_folder(folder)
    path = folder / FILE_NAME
    try:
        with writing(path):
            (size, digest), (_, free) = _sealed(backup), disk_bytes(folder)
            mode = backup.stat().st_mode
        if free < size:
            raise StoreFull(f"{path}: {megabytes(size)} needed, {megabytes(free)} free")
        with new_file(path, mode) as partial:
            with writing(path), backup.open("rb") as source, partial.open("r+b") as target:
                found = hashlib.sha256()
                while data := source.read(min(1 << 20, size - source.tell())):
                    target.write(data)
                    found.update(data)
                    progress(target.tell(), size)
            damaged = f"{backup} is damaged, and nothing was restored"
            contents = _checked(partial, damaged, backup)
            if digest and digest != found.digest():
                raise StoreError(f"{damaged}: it is not as `ordack backup` has written it")
        if made:
            with writing(folder):
                sync(folder.parent)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    return contents


def _sealed(backup: Path) -> tuple[int, bytes]:
    """How long the database in a backup is, and its checksum; b"" of a store's own file. Raises OSError, StoreError."""
    with backup.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - SEAL_BYTES, 0))
        seal = file.read()
    if seal.startswith(SEAL):
        return size - SEAL_BYTES, seal[len(SEAL) :]
    if size % SECTOR:
        raise StoreError(f"{backup} is damaged, and nothing was restored: it is not complete")
    return size, b""


def _refuse_backup(backup: Path) -> None:
    """Raises StoreError if this is no backup that can be restored, as far as its first page tells."""
    try:
        is_file = stat.S_ISREG(backup.stat().st_mode)
        log = log_bytes(backup)
    except OSError as error:
        raise StoreError(f"cannot read {backup}: {error.strerror}") from None
    if not is_file:
        raise StoreError(f"{backup} is no file: name the file that `ordack backup` has made")
    if log:
        raise StoreError(
            f"{backup} is of a store that is or was in use: part of it is in the file {backup.name}-wal. "
            f"Copy it with `ordack backup --store {shlex.quote(str(backup.parent))}`, and restore that copy"
        )
    with _closing(_File(backup)):
        pass


def _empty_folder(folder: Path) -> bool:
    """Make the folder; True if it was not there. Raises StoreError if something is in it."""
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise StoreError(f"{folder} is no folder: name one that is empty, or not there yet") from None
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}") from None
    else:
        return True
    if Locks(folder).is_taken(SERVE_LOCK):
        raise StoreBusy(f"a queue manager runs on {folder}: stop it, and move the folder away, to restore a backup")
    with writing(folder):
        remove_dead(folder)
        if names := sorted(path.name for path in folder.iterdir()):
            raise StoreError(
                f"{folder} is not empty ({names[0]} is in it): a backup is restored into an empty folder only. Stop "
                f"what uses the store, and move it away: mv {folder} {folder}.old"
            )
    return False


def look_through(folder: Path) -> Contents:
    """What is in the store in `folder`, which may be in use, and what is damaged. Raises StoreError."""
    opened = _open_source(folder)
    with _closing(opened):
        return opened.contents()
