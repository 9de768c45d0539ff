"""What was exported of a store's queues: the last segments, and who exports."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ordack.store.database import Database, StoreBusy, StoreError

EXPORT_LOCK = "export.lock"


class Export(NamedTuple):
    """The last segment of a queue in a folder, as in the table."""

    queue: str
    folder: str
    path: str
    serial: int
    name: str
    messages: int
    size: int
    pending: int


class Exports:
    """The table `exports`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    @contextlib.contextmanager
    def lock(self, queues: Mapping[int, str]) -> Iterator[None]:
        """Be the only one who exports these queues, {identifier: name}; raises StoreBusy if another exporter does one.

        A byte of one file is locked for each: a file for each would be a descriptor for each.
        """
        path = self._db.folder / EXPORT_LOCK
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}") from None
        try:
            for queue, name in queues.items():
                whose = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, queue, 1, 0)  # a struct flock
                try:
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whose)
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise StoreError(f"cannot lock {path}: {error.strerror}") from None
                    raise StoreBusy(f"another `ordack export` is working on the queue {name}: only one can") from None
            yield
        finally:
            os.close(descriptor)

    def all(self, queue: str | None = None) -> list[Export]:
        """The last segments of a queue, or of all, one for each folder."""
        return [
            Export(*row)
            for row in self._db.all(
                "SELECT queue, folder, path, serial, name, messages, size, pending FROM exports "
                "WHERE ?1 IS NULL OR queue = ?1",
                (queue,),
            )
        ]

    def add(self, export: Export) -> None:
        """Record the segment that follows the last one, with the removal of its messages in the same transaction. One
        that waits to become visible must not be replaced: raises StoreError."""
        for last in self.all(export.queue):
            if last.folder == export.folder and (last.serial + 1, last.pending) != (export.serial, 0):
                raise StoreError(
                    f"the segment after {export.serial - 1} of the queue {export.queue} is recorded already: begin the "
                    "export again"
                )
        self.save(export)

    def save(self, export: Export) -> None:
        """Record the last segment of a queue in a folder."""
        self._db.many(
            "INSERT OR REPLACE INTO exports (queue, folder, path, serial, name, messages, size, pending) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [export],
        )
