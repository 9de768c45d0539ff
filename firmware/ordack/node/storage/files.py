"""The files of a log's folder, and their errors."""

import os

from mqqb import MICROPYTHON, const, core

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from io import FileIO
    from typing import Any

    Buffer = bytes | bytearray | memoryview

EIO = const(5)
_ENOSPC = const(28)
_ZEROS_BYTES = const(512)


class OutboxError(Exception):
    """The outbox cannot do the request; the text gives the remedy."""


class OutboxFull(OutboxError):
    """The capacity is used up, and nothing was accepted. Send again once messages are gone."""


class OutboxWriteFailed(OutboxError):
    """The file system failed (`errno`): messages not durable yet are not accepted. The outbox itself stays intact."""

    def __init__(self, error: OSError) -> None:
        text = "the file system failed ({}): make room or repair it, then send again"
        super().__init__(text.format(error))
        self.errno = error.errno


class OutboxDamaged(OutboxError):
    """Durable data is unreadable or missing: file `name`, byte `offset`. No file was changed."""

    def __init__(self, name: str, offset: int, what: str) -> None:
        super().__init__(
            "{} at byte {}: {}. Messages may be lost: keep a copy of the folder, then empty it".format(
                name, offset, what
            )
        )
        self.name = name
        self.offset = offset


class Files:
    """The outbox's file system access: one file being written; others are read or removed.

    fixed: files do not grow. Each new file is filled with zeros and then overwritten, so that its size and place never
    change: on FAT, a torn directory entry could lose both. None: fixed if `vfs` reports FAT. Every method may raise
    OSError. Required: data appended before a `sync` is durable after it, with the file's name; names appear and vanish
    in the order of the calls. On systems with processes, a file `lock` excludes other processes until this one ends.
    """

    place: "Any" = None  # identity of the storage, equal for all objects that write there; None: unknown
    files_max = 0  # files that fit into the folder before it grows, which is unsafe on FAT; 0: no limit
    bytes_max = 0  # bytes of all files together; 0: unknown
    unit = 1  # file sizes are multiples of this many bytes
    blank = b"\0"  # content of unwritten bytes in fixed files

    def __init__(self, folder: str, fixed: "bool | None" = None) -> None:
        self.folder = folder
        self.place = absolute(folder)
        self.fixed = file_system(folder) == "VfsFat" if fixed is None else fixed
        self._tail: "FileIO | None" = None
        self._tail_is_new = False
        self._tail_name = ""
        self._reader: "FileIO | None" = None
        self._reader_name = ""
        self._reader_end = 0
        try:
            os.stat(folder)
        except OSError:
            try:
                os.mkdir(folder)
            except OSError as error:
                if error.errno == _ENOSPC:
                    raise OutboxWriteFailed(error)  # noqa: B904
                raise
        core.lock(self._path("lock"))
        if self.fixed and hasattr(os, "statvfs"):
            cluster, _, clusters = os.statvfs(folder)[:3]
            self.bytes_max = cluster * clusters
            self.files_max = cluster // 32 - 2  # names in a cluster, without "." and ".."

    def names(self) -> "list[str]":
        """Return the files of the folder, in any order."""
        try:
            return os.listdir(self.folder)
        except UnicodeError:  # MicroPython with a broken FAT directory
            raise OSError(EIO)  # noqa: B904

    def size(self, name: str) -> int:
        """Return the bytes of a file that is not growing."""
        self._open_reader(name)
        return self._reader_end

    def begin(self, name: str, size: int) -> None:
        """Start to write a new file. size: its bytes if files are fixed."""
        self._open(name, "wb")
        if self.fixed:
            zeros = bytes(_ZEROS_BYTES)
            for done in range(0, size, _ZEROS_BYTES):
                self.append(zeros, min(size - done, _ZEROS_BYTES))
            self.sync()
            assert self._tail is not None
            self._tail.seek(0)

    def resume(self, name: str, offset: int) -> None:
        """Continue an existing file at offset; if files grow, that is its end."""
        self._open(name, "r+b" if self.fixed else "ab")
        if self.fixed:
            assert self._tail is not None
            self._tail.seek(offset)

    def append(self, data: "Buffer", size: int) -> None:
        """Append data[:size] to the file being written. After an OSError any part of it may be there."""
        assert self._tail is not None
        done = _write(self._tail, data, size)
        if done != size:
            view = memoryview(data)
            while done < size:
                done += self._tail.write(view[done:size])

    def sync(self) -> None:
        """Make the file being written durable, with its name."""
        assert self._tail is not None
        if self._reader_name == self._tail_name:
            self._close_reader()  # LittleFS reuses blocks that the reader still has
        _sync(self._tail)
        if self._tail_is_new:
            _sync_folder(self.folder)
            self._tail_is_new = False

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """Fill buffer from a file at offset (bytes); return the bytes read, fewer only at the file's end."""
        if offset + len(buffer) > self._reader_end:
            self._close_reader()  # the file may have grown
        reader = self._open_reader(name)
        reader.seek(offset)
        done = 0
        while done < len(buffer):
            count = reader.readinto(buffer[done:])
            if not count:
                break
            done += count
        return done

    def remove(self, name: str) -> None:
        """Delete a file."""
        if self._reader_name == name:
            self._close_reader()
        os.remove(self._path(name))

    def close(self) -> None:
        """Close all files."""
        self._close_reader()
        self._close_tail()

    def _path(self, name: str) -> str:
        return self.folder + "/" + name

    def _open(self, name: str, mode: str) -> None:
        self._close_tail()
        self._tail_name = name
        self._tail = open(self._path(name), mode, 0)  # type: ignore[assignment]  # noqa: SIM115 - stays open
        self._tail_is_new = True

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _open_reader(self, name: str) -> "FileIO":
        reader = self._reader
        if reader is None or self._reader_name != name:
            self._close_reader()
            reader = self._reader = open(self._path(name), "rb", 0)  # noqa: SIM115 - stays open
            self._reader_name = name
            self._reader_end = reader.seek(0, 2)  # cheaper than looking up the name
        return reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._reader_end = 0


def absolute(folder: str) -> str:
    """Return `place` of the files of a folder."""
    return folder if folder.startswith("/") else os.getcwd().rstrip("/") + "/" + folder


def file_system(folder: str) -> str:
    """Return the name of MicroPython's file system class; "" on CPython."""
    best = name = ""
    if MICROPYTHON:
        import vfs  # type: ignore[import-not-found]

        path = absolute(folder)
        for system, place in vfs.mount():
            place = place.rstrip("/") + "/"
            if (path + "/").startswith(place) and len(place) > len(best):
                best = place
                name = type(system).__name__
    return name


if not MICROPYTHON:

    def _sync(file: "FileIO") -> None:
        os.fsync(file.fileno())

    def _write(file: "Any", data: "Buffer", size: int) -> int:
        return int(file.write(memoryview(data)[:size]))

    def _sync_folder(folder: str) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

else:  # flush() is fsync(), or the sync of the board's file system

    def _sync(file: "FileIO") -> None:
        file.flush()

    def _write(file: "Any", data: "Buffer", size: int) -> int:
        return int(file.write(data, size))  # without a memoryview, which allocates

    def _sync_folder(folder: str) -> None:
        try:
            entries = open(folder, "rb")  # noqa: SIM115
        except OSError:
            return  # on LittleFS and FAT a folder cannot be opened, and its changes are durable at once
        try:
            entries.flush()
        finally:
            entries.close()
