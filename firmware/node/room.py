"""Sees that a message has room in the log: what is kept for long is copied to its end, so that old files may go."""

from mqqb import const

from node import log

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Protocol

    class Owner(Protocol):
        """Whose log it is."""

        copied: "list[tuple[log.Stored, int, log.Segment]]"

        @property
        def live(self) -> int:
            """Messages that are kept."""

        @property
        def arrivals(self) -> int:
            """Arrivals that are."""

        def begin(self, need: int = 0) -> None:
            """Begin the next segment, with room for so many bytes at least."""

        def sync_tail(self) -> None:
            """Make durable what was logged; what was `copied` is kept in its new place then."""


def make(opened: log.Log, owner: "Owner", need: int) -> None:
    """See that need bytes have room in the current segment; drop what is gone before refusing. Raises OutboxFull."""
    size = opened.segments[-1].size + need
    # With so much of the capacity free, no need to look closer.
    margin = opened.segment_size << opened.files.fixed
    if not opened.is_ended and size <= opened.segment_size and opened.size + need + margin <= opened.capacity:
        return
    _compact(opened, owner, need, margin)
    full = opened.size + opened.growth(need) > opened.capacity
    if full:
        opened.reclaim()  # a file that could not be removed before may go now
        full = opened.size + opened.growth(need) > opened.capacity
    if full and owner.live + owner.arrivals:
        raise log.OutboxFull(
            "not accepted, {} of {} bytes are in use: wait until messages are gone, then send again".format(
                opened.size, opened.capacity
            )
        )
    segment = opened.segments[-1]
    overflows = segment.size + need > opened.segment_size or full
    if (opened.is_ended or (overflows and segment.size > segment.base)) and segment.base + need <= opened.capacity:
        owner.begin(need)
    if opened.size + opened.growth(need) > opened.capacity:
        raise log.OutboxFull("not accepted, the message is too large for an outbox of {} bytes".format(opened.capacity))


def _compact(opened: log.Log, owner: "Owner", need: int, margin: int) -> None:
    """While there is hardly room for another segment, and a quarter of all is waste: give up the oldest segments.

    So what is kept for long costs at most three bytes copied for each that it would hold back. While the copy of a
    large message stands beside it, the capacity may be exceeded by that much.
    """
    for _ in range(len(opened.segments) - 1):
        size = opened.size
        if (
            opened.segments[0].deferred
            or len(opened.segments) < 2
            or size + opened.growth(need) + margin <= opened.capacity
            or 4 * sum([segment.live for segment in opened.segments]) > 3 * size
        ):
            return
        for handle in list(opened.segments[0].handles):
            size = log.HEAD_BYTES + handle.size
            if opened.segments[-1].size + size > opened.segment_size or opened.is_ended:
                owner.begin(size)
            owner.copied.append((handle, opened.copy_message(handle), opened.segments[-1]))
        owner.sync_tail()
        opened.reclaim()
