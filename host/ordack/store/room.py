"""How much more a store may take, and the reason in words. No files, no SQLite.

Two limits count: the quota of the queue manager (B-398), and the disk. A part of the disk is kept back, so that what is
stored can still be received and acknowledged (B-285).
"""

from __future__ import annotations

from typing import NamedTuple

RESERVE_BYTES = 16 << 20  # kept back of a disk, or an eighth of one that is small
AMPLE_BYTES = 1 << 30  # free: of such a disk
DISK_S = 0.1  # is looked at again after so long
LOG_BYTES = 4 << 20  # of the write-ahead log between two checkpoints,
SERVED_LOG_BYTES = 8 << 20  # and where they are made beside commits
LOG_SPARE_BYTES = 64 << 10  # for what else a transaction writes, and the small files beside the store


class Disk(NamedTuple):
    """What a store takes of its disk. All in bytes: size: of the file system. free: of it, for this process. file: the
    database's. planned: what that will have when the write-ahead log is in it. unused: of these, pages that messages
    have left. log: the write-ahead log's file."""

    size: int
    free: int
    file: int
    planned: int
    unused: int
    log: int


class Room(NamedTuple):
    """bytes: of packets that may still be stored; not above 0: none. reason: what sets that limit, for a person."""

    bytes: int
    reason: str


def reserve(size: int) -> int:
    """Bytes that are kept back of a disk of so many."""
    return min(RESERVE_BYTES, size // 8)


def room(quota: int, used: int, disk: Disk) -> Room:
    """What may still be stored. quota, used: bytes of packets.

    Pages that messages have left are room; some stay free for long before the file gets smaller. What is written to
    them goes to the log first, which needs the disk, and pages that are only in the log yet will make the file longer.
    What the log has it gives back, and needs it again: that is in what is kept back.
    """
    free = disk.free - max(disk.planned - disk.file, 0)
    in_the_end = free + disk.unused + disk.log
    kept_back = reserve(disk.size)
    by_disk = min(in_the_end - kept_back, free - LOG_SPARE_BYTES)
    if quota - used <= by_disk:
        return Room(
            quota - used,
            f"the quota is {quota} bytes, and {used} are kept, messages that wait for their "
            "receipt included; the setting Quota raises it",
        )
    shown, kept = (in_the_end, kept_back) if by_disk < free - LOG_SPARE_BYTES else (free, LOG_SPARE_BYTES)
    return Room(by_disk, f"disk nearly full: {megabytes(shown)} free, {megabytes(kept)} kept back")


def megabytes(count: int) -> str:
    """Bytes as MB, with a digit after the point below ten; as GB from 10,000 MB on."""
    number = max(count, 0) / 1e6
    if number >= 10_000:
        return f"{number / 1000:.0f} GB"
    return f"{number:.1f} MB" if number < 9.95 else f"{number:.0f} MB"
