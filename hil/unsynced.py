"""The power cut of a board that is a process: SIGKILL leaves what the process wrote in this machine's page cache, where
a power cut would lose what was not synced.

unsynced.c, in the board's processes, notes the size of each file that they sync. After a SIGKILL each file is cut off
at the size that was noted last, or at the size that it had when the power came; a file that has neither is removed. As
on ext4, the first sync of a file makes its name durable. Files that are removed or renamed stay so, and bytes that are
written over stay written: the outbox writes over nothing on such a board. A program that is linked statically does not
load unsynced.c, and loses nothing.
"""

import os
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent.parent / "build" / "unsynced.so"


class Unsynced:
    """What the files in `folder` hold beyond their last sync. `journal`: a file outside of it."""

    def __init__(self, folder: Path, journal: Path) -> None:
        self._folder = folder
        self._journal = journal
        self._durable: dict[int, int] = {}

    def power_up(self) -> dict[str, str]:
        """All that is there is durable; what the process of the board has in its environment besides."""
        self._durable = {found.st_ino: found.st_size for found in map(os.stat, self._files())}
        self._journal.write_text("")
        return {"LD_PRELOAD": str(LIBRARY), "HIL_SYNCED": str(self._journal.absolute())} if LIBRARY.exists() else {}

    def is_noted(self, process: int) -> bool:
        """Whether the syncs of this process are noted."""
        try:
            return LIBRARY.name in Path(f"/proc/{process}/maps").read_text()
        except OSError:  # it has ended
            return False

    def lose(self) -> None:
        """The power was cut, and no process of the board is left."""
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
