"""Which process it is that somebody waits for, for people."""

from __future__ import annotations

import os
from pathlib import Path

WRITES_AT = 120  # the byte of SQLite's file `-shm` that who writes to the log has locked (wal.c, WAL_WRITE_LOCK)
COMMAND_MAX = 200  # characters of a command that are shown


def writer_of(database: Path) -> str:
    """Who writes to this database just now, by the kernel's list of locks: to open the file itself would free those
    that this process has on it."""
    try:
        file = database.with_name(database.name + "-shm").stat()
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    for line in locks:  # 12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120
        fields = line.split()
        is_it = len(fields) == 8 and fields[3] == "WRITE" and fields[5].rpartition(":")[2] == str(file.st_ino)
        if is_it and fields[6:] == [str(WRITES_AT)] * 2:
            return "this program itself" if int(fields[4]) == os.getpid() else process(int(fields[4]))
    return "another process"


def process(pid: int) -> str:
    """A process: its number, and its command if that is to be had."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        words = []
    command = b" ".join(words).decode(errors="replace")[:COMMAND_MAX]
    shown = "".join(sign if sign.isprintable() else "?" for sign in command)  # it moves no terminal
    return f"process {pid} ({shown})" if shown else f"process {pid}"
