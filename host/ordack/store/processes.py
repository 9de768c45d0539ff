"""Which process it is that somebody waits for, for people."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ordack.store.room import megabytes

WRITES_AT = 120  # the byte of SQLite's file `-shm` that who writes to the log has locked (wal.c, WAL_WRITE_LOCK)
READS_AT = range(123, 128)  # and of those one for who reads from the log (WAL_READ_LOCK)
LOOKS, MOST_LOOKS = 10, 8  # who reads only now and then has no lock in many of them
LOOK_S = 0.025
COMMAND_MAX = 200  # characters of a command that are shown


def writer_of(database: Path) -> str:
    """Who writes to this database just now."""
    for pid, kind, first, last in _locks(database):
        if (kind, first, last) == ("WRITE", WRITES_AT, WRITES_AT):
            return "this program itself" if pid == os.getpid() else process(pid)
    return "another process"


def readers_of(database: Path) -> list[str]:
    """The other processes that read from this database for long. The kernel's list may lack a lock that is there, when
    others come and go meanwhile."""
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(LOOKS):
        seen.update(_readers(database))
        if not seen:
            break
        time.sleep(LOOK_S)
    return [process(pid) for pid in sorted({pid for (pid, _), looks in seen.items() if looks >= MOST_LOOKS})]


def is_read(database: Path) -> bool:
    """Does another process read from this database just now?"""
    return bool(_readers(database))


def pinned_by(database: Path, log: int) -> str:
    """Which processes keep the write-ahead log, of so many bytes, from beginning anew, in a sentence; "": none."""
    readers = readers_of(database)
    if not readers:
        return ""
    return (
        f"the write-ahead log has {megabytes(log)} and cannot begin anew while {' and '.join(readers)} "
        f"{'reads' if len(readers) == 1 else 'read'} {database}: if that does not end by itself, end it"
    )


def _readers(database: Path) -> set[tuple[int, int]]:
    return {
        (pid, byte)
        for pid, kind, first, last in _locks(database)
        for byte in READS_AT
        if kind == "READ" and first <= byte <= last and pid != os.getpid()
    }


def _locks(database: Path) -> Iterator[tuple[int, str, int, int]]:
    """The locks on SQLite's file `-shm`: process, kind, first and last byte. They are of the kernel's list: to open the
    file itself would free those that this process has on it."""
    try:
        file = database.with_name(database.name + "-shm").stat()
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in locks:  # 12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120
        fields = line.split()
        if len(fields) == 8 and fields[5].rpartition(":")[2] == str(file.st_ino) and fields[7] != "EOF":
            yield int(fields[4]), fields[3], int(fields[6]), int(fields[7])


def process(pid: int) -> str:
    """A process: its number, and its command if that is to be had."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        words = []
    command = b" ".join(words).decode(errors="replace")[:COMMAND_MAX]
    shown = "".join(sign if sign.isprintable() else "?" for sign in command)  # it moves no terminal
    return f"process {pid} ({shown})" if shown else f"process {pid}"


MOUNTS = Path("/proc/self/mountinfo")  # proc(5)
OF_ANOTHER_MACHINE = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "vboxsf", "davfs", "fuse.davfs2", "fuse.sshfs", "fuse.rclone")
)
IN_MEMORY = frozenset(("tmpfs", "ramfs"))


def file_system(folder: Path) -> str:
    """The kind of the file system on which a folder is, or will be made, as `mount` names it; empty if the kernel does
    not say."""
    device = 0
    for there in (folder.absolute(), *folder.absolute().parents):
        with contextlib.suppress(OSError):
            device = there.stat().st_dev
            break
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == number:
            return source.split()[0]
    return ""
