"""What a store learns of an earlier life: of a backup that was restored, or of a copy of itself.

A destination knows a message of the backup by its number, however often the message is sent. But the destination may
have accepted later numbers or sequences that the restored store does not know. It then refuses older ones for ever
(B-275), and an OrderAck names what it has (B-269). There are two cases:

* The number was never given here, and is later than any in its sequence, or its sequence is later than any of this run.
  Then the clock is behind, or a twin is at work (B-413). The store begins a run above it (`Store.outrun`).
* The sequence is later than one that still waits here. The waiting sequence is over, because a sequence is sent only
  when the one before has drained (B-093). Its messages arrived, were refused, or were ended by an operator, and only
  the lost life was told. They are not sent again and are in doubt: exactly once forbids to number them again (A-08).

An OrderAck names no queue. Its time stamp tells which stream it is for, if that stream has or had one like it. If no
stream had, or its sequence is later than that stream's, the OrderAck proves nothing at first: it may have come late,
for a sequence that has drained, or be wrong. `Strangers` waits until it comes again after a resend, which causes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from mqqb import core
from mqqb.streams import Entry, OutgoingStream

REMEMBERED = 100
ROLLS = 1 << 20  # as often may a stream have drained since its TimeStamp was given

Stream = TypeVar("Stream", bound=OutgoingStream)


def has_sent(stream: OutgoingStream, time_stamp: int) -> bool:
    """Is something of an older sequence with this time stamp on its way?"""
    if stream.next_timeout() is not None:
        for entry in stream.table:
            if entry.tx_sequence_number and entry.tx_sequence_id >> 32 >= time_stamp:
                return entry.tx_sequence_id >> 32 == time_stamp
    return False


def is_given(stream: OutgoingStream, tx_sequence_id: int, number: int) -> bool:
    """Was this number given in the stream, as far as that knows?"""
    return (tx_sequence_id, number) < (stream.tx_sequence_id, stream.record[core.OUTGOING_NUMBER])


def has_drained(stream: OutgoingStream, tx_sequence_id: int) -> bool:
    """Has the stream drained this sequence in this life? An OrderAck for it came late, or again, and says nothing of
    others. Ordinals begin anywhere and rise by one (B-096): those of another life are far away."""
    return 0 < stream.tx_sequence_id - tx_sequence_id < ROLLS


def over(stream: OutgoingStream, tx_sequence_id: int, number: int = 0) -> list[Entry]:
    """What the destination refuses for ever, having passed on to this number. It is over, nobody knows how."""
    last = tx_sequence_id, number
    found = []
    for entry in stream.table:
        if entry.tx_sequence_number:
            if (entry.tx_sequence_id, entry.tx_sequence_number) > last:
                break  # they rise along the table
            found.append(entry)
    return found


class Strangers:
    """OrderAcks for sequences that no stream is known to have begun."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def refused(self, tx_sequence_id: int, likely: Stream | None, streams: Iterable[Stream], now: int) -> list[Stream]:
        """Those of the streams with that peer which it refuses: what they have sent is older, and they have heard
        nothing of their own since such an OrderAck came for the first time, before it was sent again. likely: the one
        with its time stamp; none of the others, while something waits there that it can be about. now: ms."""
        if likely is not None and over(likely, tx_sequence_id):
            streams = [likely]
        first = self._seen.setdefault(tx_sequence_id, now)
        if len(self._seen) > REMEMBERED:
            del self._seen[next(iter(self._seen))]
        found = []
        for stream in streams:
            due = stream.next_timeout()
            if (
                due is not None
                and first < due - stream.resend_interval
                and stream.time_of_last_ack <= first
                and over(stream, tx_sequence_id)
            ):
                found.append(stream)
        return found
