"""The progress of one connection's bytes: a long packet on a slow line is no silence, and a dripping one is given up.

A message of 4 MiB takes 73 minutes at 960 bytes a second. Until it has left, its session must not be closed because
nobody has acknowledged anything (B-148), and the message must not be sent again because no OrderAck has come (B-151).
Those times count from when the message has left.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from mqqb import hosts
from mqqb.session import Session
from mqqb.streams import OutgoingStream

AHEAD_BYTES = 1 << 20  # given to a transport at once, before it has said whether it takes more; and a packet


class Pace:
    """What was written to one connection, and how much of it has left."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._written = 0
        self._held = 0  # of them, when that was told last; then
        self._seen = 0  # so many had been written
        self._waiting = 0  # bytes of messages that are about to be written
        # When it is over, and what has to have left before.
        self._timers: WeakKeyDictionary[OutgoingStream, tuple[int, int]] = WeakKeyDictionary()
        self._come = 0
        self._packet = -1  # where in what has come the unfinished packet begins; it has
        self._half = 0  # so many bytes of it,
        self._began = 0  # the first of them since then

    @property
    def room(self) -> int:
        """Another message may be sent before what was sent has been written, if this is above 0; it counts down by the
        bytes of each."""
        return AHEAD_BYTES - self._waiting

    @property
    def is_under_way(self) -> bool:
        """Has not all left that was written, as far as `holds` was told?"""
        return self._held > 0 or self._seen < self._written

    def sends(self, count: int, stream: OutgoingStream | None = None) -> None:
        """Messages of so many bytes were given to the session. stream: of which they are the oldest that waits for its
        OrderAck. Its timer may run since something that is gone by now, and counts once these have left."""
        self._waiting += count
        if stream is not None:
            self._timers.pop(stream, None)

    def wrote(self, count: int) -> None:
        """So many bytes were given to the transport, all that the session had."""
        self._written += count
        self._waiting = 0

    def holds(self, count: int) -> None:
        """So many of the bytes that were written are still on this machine; as long as nothing is told, none."""
        if self._held and self._written - count > self._seen - self._held:
            self._session.progressed()
        self._held = count
        self._seen = self._written

    def run_timer(self, stream: OutgoingStream, now: int) -> None:
        """Run the timer of a stream that this connection serves; its time counts once what was written has left."""
        due = stream.next_timeout()
        if due is None:
            self._timers.pop(stream, None)
            return
        known, mark = self._timers.get(stream, (None, 0))
        if due != known:  # it has been started since
            mark = self._written
        if self._written - self._held < mark:
            stream.postpone(now)
            due = stream.next_timeout()
            assert due is not None
        self._timers[stream] = due, mark
        stream.handle_timeout(now)  # what is sent again because of it counts the next time

    def came(self, count: int, now: int) -> None:
        """So many bytes have come, and the session has taken them."""
        self._come += count
        self._half = hosts.half_received(self._session)
        if self._come - self._half != self._packet:
            self._packet = self._come - self._half
            self._began = now

    def too_slow_at(self, timeout: int, rate: int) -> int | None:
        """When the packet that is arriving will have taken more than `timeout` ms, and come at less than `rate` bytes a
        second, if nothing more of it comes; None if there is none."""
        return self._began + timeout + 1000 * self._half // rate + 1 if self._half else None
