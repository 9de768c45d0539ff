"""A folder of segments in a bucket, as `ordack export` works on it: export.Folder, where there are no folders.

An object is there as a whole or not at all, and S3 cannot rename one: it is copied, and deleted then. So a segment's
final name still means that it is complete; a kill in between leaves its hidden copy, which the next export removes.
Nobody holds a folder open here. Instead the marker is read again before each segment: it says whose folder it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ordack.config.paths import RemoteError, RemotePath
from ordack.pipeline.segments import MARKER, FolderBusy, FolderError, Marker, names, read_marker, refused
from ordack.text import legible

MADE_S = 60.0  # after which a file that was not given its name is that of a process that was killed


class BucketFolder:
    """See export.Folder. Raises FolderError where the server refuses."""

    def __init__(self, path: RemotePath) -> None:
        self.path = path
        self.name = legible(str(path))
        self._marker: Marker | None = None
        with self._errors():
            path.require_bucket()

    def close(self) -> None:
        """Nothing is held."""

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except RemoteError as error:
            raise refused(error) from None

    def check_in_place(self) -> None:
        """Raises FolderError if the folder is another one than at first, or gone."""
        marker = read_marker(self.path)
        if marker is None or marker != (self._marker or marker):
            raise FolderError(
                f"{self.name} was moved, deleted or replaced while it was exported to: its {MARKER} is another one. "
                "Nothing more was taken from the queues; begin again with the folder where it is now"
            )

    def marker(self) -> Marker | None:
        """Whose folder it is."""
        self._marker = read_marker(self.path)
        return self._marker

    def names(self) -> list[str]:
        """All files, hidden ones too."""
        with self._errors():
            return names(self.path) if self.path.exists() else []

    def write(self, name: str, content: Any) -> None:
        """Write a file, in the place of one that may be there."""
        with self._errors():
            (self.path / name).write_bytes(content)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        with self._errors():
            (self.path / old).replace(self.path / new)

    def sync(self) -> None:
        """What a server has said to have, it has."""

    def link(self, old: str, new: str) -> None:
        """Give a file another name, unless that is taken, or another is on its way to it. Of two on their way one at
        least sees the other's, for each has put its own there before it looks, and gives way: a server has no lock, and
        pyarrow no request that would not replace what is there."""
        with self._errors():
            made = {entry.name: entry.stat().st_mtime for entry in self.path.iterdir()}
            others = [name for name in made if name.startswith(f".{new}.") and name != old]
            busy = any(made[old] - made[name] < MADE_S for name in others)
            if new not in made and not busy:
                (self.path / old).replace(self.path / new)
                return
            (self.path / old).unlink()
        if new not in made:
            raise FolderBusy(
                f"another export begins with {self.name}, or was killed in the last minute when it did: try again"
            )

    def remove(self, name: str) -> None:
        """Delete a file."""
        with self._errors():
            (self.path / name).unlink()

    def size(self, name: str) -> int | None:
        """Bytes of a file; None if there is none."""
        with self._errors():
            file = RemotePath(f"{self.path}/{name}")  # as it is now, whatever was listed before
            return file.stat().st_size if file.exists() else None

    def rows(self, name: str) -> int | None:
        """Rows of a segment's file; None if it is none."""
        try:
            with (self.path / name).open() as file:
                return int(pq.read_metadata(file).num_rows)
        except (OSError, pa.ArrowException):
            return None
