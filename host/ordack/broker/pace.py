"""How fast the written and the received bytes of a connection move.

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Set
from weakref import WeakKeyDictionary, WeakSet

from mqqb.session import Session
from mqqb.streams import OutgoingStream

AHEAD_BYTES = 1 << 20  # handed to a transport before it says whether it takes more; plus one packet


_NO_STREAMS: frozenset[OutgoingStream] = frozenset()


class _Streams:
    """The outgoing streams of a connection. unwritten: with messages about to be written. ends: bytes written up to the
    last message. timers: deadline, and bytes that must have left before it counts. overdue: to resend once their bytes
    have left."""

    __slots__ = ("ends", "overdue", "timers", "unwritten")

    def __init__(self) -> None:
        self.unwritten: set[OutgoingStream] = set()
        self.ends: WeakKeyDictionary[OutgoingStream, int] = WeakKeyDictionary()
        self.timers: WeakKeyDictionary[OutgoingStream, tuple[int, int]] = WeakKeyDictionary()
        self.overdue: WeakSet[OutgoingStream] = WeakSet()


class Pace:
    """Tracks how much of the written data has left one connection. A long packet on a slow line is no silence: the
    times of B-148 and B-151 start when the message has left."""

    __slots__ = [
        "_began", "_come", "_half", "_held", "_packet", "_seen", "_session", "_streams", "_waiting", "_written",
    ]  # fmt: skip

    def __init__(self, session: Session) -> None:
        self._session = session
        self._written = 0
        self._held = 0  # bytes still here, as last reported
        self._seen = 0  # bytes written at that report
        self._waiting = 0  # bytes of messages about to be written
        self._streams: _Streams | None = None  # most connections have no outgoing stream
        self._come = 0
        self._packet = -1  # offset of the unfinished packet in the received bytes
        self._half = 0  # bytes received
        self._began = 0  # arrival of its first bytes, ms

    @property
    def overdue(self) -> Set[OutgoingStream]:
        """The streams to resend once their bytes have left."""
        return self._streams.overdue if self._streams else _NO_STREAMS

    @property
    def room(self) -> int:
        """Bytes that may be sent before the sent ones are written; each message reduces it. No message leaves at 0 or
        less."""
        return AHEAD_BYTES - self._waiting

    @property
    def is_under_way(self) -> bool:
        """Is written data still on this machine, as last reported by `holds`?"""
        return self._held > 0 or self._seen < self._written

    def sends(self, count: int, stream: OutgoingStream | None = None, is_oldest: bool = False) -> None:
        """Count a message of `count` bytes given to the session. stream: of a transactional message. is_oldest: it is
        the oldest without an OrderAck. The timer may still count for an older message, so it restarts once these bytes
        have left."""
        self._waiting += count
        if stream is not None:
            self._streams = self._streams or _Streams()
            self._streams.unwritten.add(stream)
            if is_oldest:
                self._streams.timers.pop(stream, None)

    def wrote(self, count: int) -> None:
        """Count bytes given to the transport: all that the session had."""
        self._written += count
        self._waiting = 0
        streams = self._streams
        if streams and streams.unwritten:
            streams.ends.update(dict.fromkeys(streams.unwritten, self._written))
            streams.unwritten.clear()

    def holds(self, count: int) -> None:
        """Report how many written bytes are still on this machine. Without a report: none."""
        if self._held and self._written - count > self._seen - self._held:
            self._session.progressed()
        self._held = count
        self._seen = self._written

    def run_timer(self, stream: OutgoingStream, now: int) -> None:
        """Run the timer of a stream on this connection. The timer counts once the oldest message has left. After it
        expires, the stream sends no new message until all its bytes have left; then it resends. Otherwise steady
        traffic would postpone the resend for ever."""
        streams = self._streams = self._streams or _Streams()
        streams.overdue.discard(stream)
        due = stream.next_timeout()
        if due is None:
            streams.timers.pop(stream, None)
            return
        known, mark = streams.timers.get(stream, (None, 0))
        if due != known:  # restarted since
            mark = self._written
        left = self._written - self._held
        if left < mark:
            stream.postpone(now)
            due = stream.next_timeout()
            assert due is not None
        streams.timers[stream] = due, mark
        if now >= due and left < streams.ends.get(stream, 0):  # a resend would repeat bytes that still leave
            streams.overdue.add(stream)
            return
        stream.handle_timeout(now)  # a resend counts from the next call on

    def came(self, count: int, now: int) -> None:
        """Count received bytes that the session has taken."""
        was_between, self._half = not self._half, self._session.reader.end - self._session.reader.begin
        self._come += count
        if was_between or self._come - self._half != self._packet:  # the fast path takes packets in between
            self._packet = self._come - self._half
            self._began = now

    def too_slow_at(self, timeout: int, rate: int) -> int | None:
        """Return when the arriving packet breaks `timeout` ms and `rate` bytes per second unless more of it arrives;
        None if no packet is unfinished."""
        return self._began + timeout + 1000 * self._half // rate + 1 if self._half else None
