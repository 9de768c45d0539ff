"""The bytes that the segments of a folder may take. A full folder keeps messages in their queues, which then fill up to
quotas of their own."""

from __future__ import annotations

from ordack.config.paths import AnyPath
from ordack.pipeline import segments
from ordack.pipeline.segments import FolderFull


class Quota:
    """limit: in bytes; None: none. The newest segment of each queue is not counted: `ordack pipeline prune` keeps it,
    and a folder that has only these would stay full for ever."""

    def __init__(self, folder: AnyPath, limit: int | None) -> None:
        self._folder = folder
        self._limit = limit
        self._sizes: dict[str, int] = {}  # of files that were there at the last look

    def check(self) -> None:
        """Raises FolderFull, and FolderError if the folder cannot be read."""
        if self._limit is None:
            return
        used = self._used()
        if used >= self._limit:
            raise FolderFull(
                f"{self._folder} is full: its segments take {used:,} bytes without the newest of each queue, and "
                f"--quota is {self._limit:,}. `ordack pipeline prune` deletes those that are in your tables"
            )

    def _used(self) -> int:
        sizes: dict[str, int] = {}
        newest: dict[str, tuple[int, int]] = {}
        for name in segments.names(self._folder):
            found = segments.parse_name(name)
            if found is None:
                continue
            size = self._sizes.get(name)
            if size is None:
                try:
                    size = (self._folder / name).stat().st_size
                except OSError:  # deleted meanwhile
                    continue
            sizes[name] = size
            newest[found[0]] = max(newest.get(found[0], (0, 0)), (found[1], size))
        self._sizes = sizes
        return sum(sizes.values()) - sum(size for _, size in newest.values())
