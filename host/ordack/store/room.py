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
LONG_LOG_BYTES = 12 * SERVED_LOG_BYTES  # more than the log of a loaded `serve` without readers
USUAL_LOG = 4  # where room is short the log is emptied when it has the reserve's part of this size


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


def pinned_bytes(disk: Disk) -> int:
    """Bytes by which the write-ahead log is longer than it gets where room is short."""
    return max(disk.log - reserve(disk.size) // USUAL_LOG, 0)


def is_pinned(disk: Disk) -> bool:
    """Has a long log brought the room below what is kept back for receives?"""
    return disk.free < reserve(disk.size) + pinned_bytes(disk) and pinned_bytes(disk) > 0


def room(quota: int, used: int, disk: Disk, is_kept: bool = True) -> Room:
    """What may still be stored. quota, used: bytes of packets. is_kept: a reader keeps the log from beginning anew, if
    it is long.

    Pages that messages have left are room; some stay free for long before the file gets smaller. What is written to
    them goes to the log first, which needs the disk, and pages that are only in the log yet will make the file longer.
    The log gives its usual size back, and needs that again: it is in the reserve.

    Each receive makes a log longer that is kept from beginning anew. So what it has above the usual, the pinned
    part needs as much room again, for receives of the messages in it, and a transaction leaves half of the reserve.
    """
    free = disk.free - max(disk.planned - disk.file, 0)
    pinned = pinned_bytes(disk) if is_kept else 0
    in_the_end = free + (disk.log - pinned) + (0 if is_kept and is_pinned(disk) else disk.unused)
    kept_back = reserve(disk.size) + pinned
    spare = reserve(disk.size) // 2
    by_disk = min(in_the_end - kept_back, free - spare)
    if quota - used <= by_disk:
        return Room(
            quota - used,
            f"the quota is {quota} bytes, and {used} are kept, messages that wait for their "
            "receipt included; the setting Quota raises it",
        )
    shown, kept = (in_the_end, kept_back) if by_disk < free - spare else (free, spare)
    reason = f"disk nearly full: {megabytes(shown)} free, {megabytes(kept)} kept back"
    if is_pinned(disk):
        reason += (
            f" while a process that reads keeps the write-ahead log, {megabytes(disk.log)}, from beginning anew: "
            "`ordack status` names it"
        )
    return Room(by_disk, reason)


def megabytes(count: int) -> str:
    """Bytes as MB, with a digit after the point below ten; as GB from 10,000 MB on."""
    number = max(count, 0) / 1e6
    if number >= 10_000:
        return f"{number / 1000:.0f} GB"
    return f"{number:.1f} MB" if number < 9.95 else f"{number:.0f} MB"
