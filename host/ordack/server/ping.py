"""Pings: ask a queue manager whether a session may be opened now, and answer. No sockets, no clock (wire.md 7).

Times: `now` monotonic milliseconds.
"""

from __future__ import annotations

from mqqb import core
from mqqb.ping import Ping, build
from mqqb.ping import parse as parse_ping

RESPONSE_TIME_MS = 1000  # B-139
REFUSED = 2  # RF
REPEATED = 1  # RC: 1 where the initiator is no server; we are one, as in EstablishConnection


class Pings:
    """The pings of one queue manager. `cookie` is PingCookie (B-021).

    Only the answer to the latest request counts (B-200), so one request waits at a time: who would ping while
    `waiting` does without (B-198).
    """

    def __init__(self, guid: bytes) -> None:
        self.guid = guid
        self.cookie = 0
        self._due: int | None = None

    @property
    def waiting(self) -> bool:
        """Is the answer to a request still to come?"""
        return self._due is not None

    def request(self, now: int) -> bytearray:
        """The datagram of a new request (B-199)."""
        self.cookie = (self.cookie + 1) & 0xFFFFFFFF
        self._due = now + RESPONSE_TIME_MS
        return self._build(0, self.cookie)

    def response(self, datagram: bytes) -> bool | None:
        """Take what came back: does the peer refuse? None: it is not the answer that is waited for (B-200)."""
        try:
            ping = parse_ping(datagram)
        except core.Malformed:
            return None
        if self._due is None or ping.cookie != self.cookie:
            return None
        self._due = None
        return bool(ping.flags & REFUSED)

    def timed_out(self, now: int) -> bool:
        """Is the time for the answer over? True once, and then no answer counts any more (B-139)."""
        if self._due is None or now < self._due:
            return False
        self._due = None
        return True

    def answer(self, datagram: bytes, refuse: bool) -> bytearray | None:
        """The datagram that answers a request; None: ignore it (B-202). refuse: a session would be refused now."""
        try:
            ping = parse_ping(datagram)
        except core.Malformed:
            return None
        return self._build(ping.flags & REPEATED | (REFUSED if refuse else 0), ping.cookie)

    def _build(self, flags: int, cookie: int) -> bytearray:
        ping = Ping()
        ping.flags = flags
        ping.signature = core.PING_SIGNATURE
        ping.cookie = cookie
        ping.qm_guid = self.guid
        return build(ping)
