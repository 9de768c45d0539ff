"""The power cut of a board that is a process. SIGKILL keeps the page cache; a power cut loses unsynced bytes.

unsynced.c, loaded into the board's processes, notes the size of each synced file. After a SIGKILL each file is
truncated to the last noted size, or to its size at power-up; a file with neither is removed. As on ext4, the first sync
of a file makes its name durable. Removals, renames and overwritten bytes persist; the outbox overwrites nothing on such
a board. A statically linked program does not load unsynced.c, and loses nothing.
"""

import os
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent.parent / "build" / "unsynced.so"


class Unsynced:
    """The unsynced content of the files in `folder`. `journal`: a file outside of it."""

    def __init__(self, folder: Path, journal: Path) -> None:
        self._folder = folder
        self._journal = journal
        self._durable: dict[int, int] = {}

    def power_up(self) -> dict[str, str]:
        """Treat all current content as durable; returns extra environment variables for the board's process."""
        self._durable = {found.st_ino: found.st_size for found in map(os.stat, self._files())}
        self._journal.write_text("")
        return {"LD_PRELOAD": str(LIBRARY), "HIL_SYNCED": str(self._journal.absolute())} if LIBRARY.exists() else {}

    def is_noted(self, process: int) -> bool:
        """Are the syncs of this process noted?"""
        try:
            return LIBRARY.name in Path(f"/proc/{process}/maps").read_text()
        except OSError:  # it has ended
            return False

    def lose(self) -> None:
        """Apply the power cut, after every process of the board has ended."""
        sizes = (line.split() for line in self._journal.read_text().splitlines())
        durable = self._durable | {int(inode): int(size) for inode, size in sizes}
        for path in self._files():
            found = path.stat()
            if found.st_ino not in durable:
                path.unlink()
            elif found.st_size > durable[found.st_ino]:
                os.truncate(path, durable[found.st_ino])

    def _files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file()]
