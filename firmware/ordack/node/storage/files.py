"""The files of a folder that a log is written to, and what goes wrong with them."""

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
    """The outbox cannot do what was asked; the text says what to do."""


class OutboxFull(OutboxError):
    """The capacity is used up and nothing was accepted. Wait until messages are gone, then send again."""


class OutboxWriteFailed(OutboxError):
    """The file system refused (`errno`): what was not durable yet is not accepted. The outbox itself stays in order."""

    def __init__(self, error: OSError) -> None:
        text = "the file system failed ({}): make room or repair it, then send again"
        super().__init__(text.format(error))
        self.errno = error.errno


class OutboxDamaged(OutboxError):
    """What was durable once cannot be read any more, or is missing: file `name`, byte `offset`. No file was changed."""

    def __init__(self, name: str, offset: int, what: str) -> None:
        super().__init__(
            "{} at byte {}: {}. Messages may be lost: keep a copy of the folder, then empty it".format(
                name, offset, what
            )
        )
        self.name = name
        self.offset = offset


class Files:
    """What the outbox needs of a file system: one file that is written, others that are read or removed.

    fixed: files do not grow. Each is filled with zeros when it is begun, and then written over, so that neither its
    size nor its place changes any more: on FAT a torn directory entry could lose both. None: where the folder is on
    FAT, as far as `vfs` tells. Everything here may raise OSError. Demanded: what was appended before a `sync` is
    durable after it, the file's name included; names appear and vanish in the order of the calls. Where there are other
    processes, a file `lock` keeps them out of the folder until this one ends.
    """

    place: "Any" = None  # where they are: the same of all objects that write there; None: nobody knows
    files_max = 0  # so many files the folder takes before it grows, which FAT cannot do safely; 0: no such bound
    bytes_max = 0  # so many bytes all files may have together; 0: nobody knows
    unit = 1  # a file takes a whole number of so many bytes
    blank = b"\0"  # what stands where nothing was written yet, in files that do not grow

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
        """The files of the folder, in any order."""
        try:
            return os.listdir(self.folder)
        except UnicodeError:  # MicroPython, and FAT's directory is broken
            raise OSError(EIO)  # noqa: B904

    def size(self, name: str) -> int:
        """Bytes of a file that does not grow just now."""
        self._open_reader(name)
        return self._reader_end

    def begin(self, name: str, size: int) -> None:
        """A new file becomes the one that is written, from its begin. size: its bytes, if files do not grow."""
        self._open(name, "wb")
        if self.fixed:
            zeros = bytes(_ZEROS_BYTES)
            for done in range(0, size, _ZEROS_BYTES):
                self.append(zeros, min(size - done, _ZEROS_BYTES))
            self.sync()
            assert self._tail is not None
            self._tail.seek(0)

    def resume(self, name: str, offset: int) -> None:
        """An existing file becomes the one that is written, from offset on; that is its end if files grow."""
        self._open(name, "r+b" if self.fixed else "ab")
        if self.fixed:
            assert self._tail is not None
            self._tail.seek(offset)

    def append(self, data: "Buffer", size: int) -> None:
        """Write data[:size] behind what was written last. After an OSError any part of it may be there."""
        assert self._tail is not None
        done = _write(self._tail, data, size)
        if done != size:
            view = memoryview(data)
            while done < size:
                done += self._tail.write(view[done:size])

    def sync(self) -> None:
        """Make the file that is written durable as it is, and its name."""
        assert self._tail is not None
        if self._reader_name == self._tail_name:
            self._close_reader()  # LittleFS gives the blocks that it still reads to others
        _sync(self._tail)
        if self._tail_is_new:
            _sync_folder(self.folder)
            self._tail_is_new = False

    def read_into(self, name: str, offset: int, buffer: memoryview) -> int:
        """Fill buffer from a file at offset (bytes); the number of bytes read, fewer only at its end."""
        if offset + len(buffer) > self._reader_end:
            self._close_reader()  # it may have grown
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
        """Let go of all files."""
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
            self._reader_end = reader.seek(0, 2)  # to look a name up costs more than this
        return reader

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._reader_end = 0


def absolute(folder: str) -> str:
    """`place` of the files of a folder."""
    return folder if folder.startswith("/") else os.getcwd().rstrip("/") + "/" + folder


def file_system(folder: str) -> str:
    """The name of MicroPython's class; "" on CPython."""
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
        return int(file.write(data, size))  # without a view of the part

    def _sync_folder(folder: str) -> None:
        try:
            entries = open(folder, "rb")  # noqa: SIM115
        except OSError:
            return  # LittleFS and FAT: a folder is no file there, and each call that changes it is durable by itself
        try:
            entries.flush()
        finally:
            entries.close()
