"""Connection attempts to one next hop: which address to try, when, and the outcome. No sockets, no clock.

    step = connector.next_step(now, wall, wanted, may_ping)     # repeatedly, at least every few tens of ms
    ... do it, and report: resolved, unresolved, ponged, unreachable, connected, answered, opened, closed

The connector's state is the State of the outgoing queues of its hop (B-082). OnHold belongs to a queue, not to a hop:
the queue manager adds it, and no step here ends it (B-347). No queue is ever Locked.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

import enum
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ordack.broker.serve_log import INFO, NEWS, WARNING, LogLine
from ordack.config.config import Config, format_address
from ordack.config.names import counted

FIRST_RETRY_MS = 100  # doubled after each failure, up to TryConnectInterval + RoundTripDelay (B-133)
HISTORY_SIZE = 20
OWN_ENDS = ("B-147", "B-163")  # idle, stopped: this side ended the session, and the peer is healthy
OWN_FAILURES = ("B-285", "B-435")  # a full disk, too many sessions: not the peer's fault
TLS_FAILED = "TLS"  # stands in place of a rule when TLS ended the transport

INACTIVE = "Inactive"
WAITING = "Waiting"
NEED_VALIDATION = "NeedValidation"
CONNECTED = "Connected"
DISCONNECTING = "Disconnecting"
DISCONNECTED = "Disconnected"

# The Error of a connection history entry is an HRESULT: Winsock's number, or "unspecified".
_WINSOCK = {
    errno.EACCES: 10013,
    errno.EMFILE: 10024,
    errno.ENFILE: 10024,
    errno.EADDRNOTAVAIL: 10049,
    errno.ENETUNREACH: 10051,
    errno.ECONNABORTED: 10053,
    errno.ECONNRESET: 10054,
    errno.ENOBUFS: 10055,
    errno.ETIMEDOUT: 10060,
    errno.ECONNREFUSED: 10061,
    errno.EHOSTUNREACH: 10065,
}
_NO_SOCKET = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_HRESULT_WIN32 = 0x80070000
_HOST_NOT_FOUND = _HRESULT_WIN32 | 11001
_TIMED_OUT = _HRESULT_WIN32 | 10060
_REFUSED = _HRESULT_WIN32 | 10061
_UNSPECIFIED = 0x80004005

# Why a transport ended before a queue manager answered; any other rule means that the answer was not MSMQ.
_HANDSHAKES = {
    "B-155": "it takes the connection and says nothing: is it a queue manager?",
    "B-298": "it closes the connection without a word: see its log, which names addresses that it does not allow",
}


class Step(enum.Enum):
    """The next action towards a session."""

    RESOLVE = enum.auto()  # find the addresses of `host`
    PING = enum.auto()  # ask `address` whether it would take a session
    CONNECT = enum.auto()  # connect to `address`, `port`


class Event(NamedTuple):
    """One entry of the connection history (B-083). time: s since 1970. error: HRESULT or 0. reason: for people."""

    status: str
    time: int
    error: int
    addresses: tuple[str, ...]
    reason: str


class _Stage(enum.Enum):
    IDLE = enum.auto()  # no attempt is under way
    RESOLVING = enum.auto()
    RESOLVED = enum.auto()
    PINGING = enum.auto()
    CONNECTING = enum.auto()
    HANDSHAKE = enum.auto()  # the transport is up
    ANSWERED = enum.auto()
    OPEN = enum.auto()


class Connector:
    """The connection attempts to one hop, and their history.

    state: B-082. addresses, index: NextHopCollection and NextHopIndexer (B-052); every entry has HostName `host` and
    QMGuid zero. next_hops: those of the outgoing queues (B-196, B-216). pinged: this attempt has sent a ping (SE of the
    request, B-204). history: the latest HISTORY_SIZE entries. log: called once per kind of failure until it is called
    for a session, each time with a new fact. tls: the caller sets it before each attempt.
    """

    def __init__(self, host: str, port: int, config: Config, log: Callable[[str], None] = lambda _line: None) -> None:
        self.host = host
        self.port = port
        self.addresses: tuple[str, ...] = ()
        self.index = 0
        self.next_hops: tuple[str, ...] = ()
        self.pinged = False
        self.history: deque[Event] = deque(maxlen=HISTORY_SIZE)
        self._send_pings = config.send_pings
        self._longest_wait = config.try_connect_interval + config.round_trip_delay
        self._log = log
        self.tls = False
        self.state = INACTIVE
        self._stage = _Stage.IDLE
        self._may_ping = False  # in this attempt
        self._retrying = False  # the retry timer starts the next attempt
        self._wait = 0  # ms waited after the last failure
        self._not_before: int | None = None
        self._opened = 0
        self._told: set[tuple[str, int]] = set()  # since the log was last told of a session
        self._ended_at_once = 0  # sessions in a row
        self.tries = 0  # failed attempts since a session held
        self.reason = ""  # of the last failure
        self.next_try = 0.0  # s since 1970

    @property
    def address(self) -> str:
        """The address in use or tried last (RemoteQMAddress); "" before and during a look-up."""
        return self.addresses[self.index] if self.addresses else ""

    @property
    def rests(self) -> bool:
        """No step is due until the session closes or a message waits for a session."""
        return (self._stage is _Stage.OPEN and not self._told) or (self._stage is _Stage.IDLE and not self._retrying)

    def report(self) -> dict[str, Any]:
        """State, next hops as `ADDRESS:PORT` and history, ready for JSON."""
        return {
            "host": self.host,
            "port": self.port,
            "state": self.state,
            "next_hops": [format_address(address, self.port) for address in self.next_hops],
            "tries": self.tries,
            "reason": self.reason,
            "next_try": self.next_try,
            "history": [event._asdict() for event in self.history],
        }

    def next_step(self, now: int, wall: int, wanted: bool, may_ping: bool = True) -> Step | None:
        """The next action, returned once; None until a later call.

        wanted: messages wait for a session. may_ping: False while another ping waits for its answer.
        """
        if self._stage is _Stage.IDLE and (self._not_before is None or now >= self._not_before):
            if not wanted:
                self._retrying = False  # the retry timer found no waiting message (B-145)
                return None
            self._may_ping = self._send_pings and not self._retrying  # B-198
            self.pinged = False
            if not self._retrying or self.index + 1 >= len(self.addresses):
                self._stage = _Stage.RESOLVING
                self.addresses = ()  # a failed look-up leads to another look-up, not to an old address
                self.index = 0
                return Step.RESOLVE
            self.index += 1  # B-145
            self._stage = _Stage.RESOLVED
        if self._stage is _Stage.OPEN and self._holds(now, wanted):
            self._tell_success()
        if self._stage is not _Stage.RESOLVED:
            return None
        if not wanted:
            self._stage = _Stage.IDLE
            return None
        if self._may_ping and may_ping:
            self._stage = _Stage.PINGING
            self.pinged = True
            return Step.PING
        self._stage = _Stage.CONNECTING
        self.state = WAITING  # B-204
        self._note("InProcess", wall)
        return Step.CONNECT

    def resolved(self, addresses: Sequence[str], now: int, wall: int) -> None:
        """RESOLVE found these addresses, in the order in which to try them (B-196). No address: a failure."""
        self.addresses = self.next_hops = tuple(dict.fromkeys(addresses))
        if not self.addresses:
            self.unresolved("the name has no address", now, wall)
        else:
            self._stage = _Stage.RESOLVED

    def unresolved(self, reason: str, now: int, wall: int) -> None:
        """RESOLVE has failed (B-194)."""
        self.state = NEED_VALIDATION
        self._fail("DnsFailure", _HOST_NOT_FOUND, reason, now, wall)

    def ponged(self, refused: bool | None, now: int, wall: int) -> None:
        """PING was answered; None: no answer in time (B-201)."""
        if refused is None:
            self._fail("PingFailure", _TIMED_OUT, "no answer to the ping", now, wall)
        elif refused:
            self._fail("PingFailure", _REFUSED, "it would refuse a session now", now, wall)
        else:
            self._may_ping = False
            self._stage = _Stage.RESOLVED

    def unreachable(self, error: Exception, now: int, wall: int) -> None:
        """CONNECT has failed."""
        if self._stage is not _Stage.CONNECTING:
            return  # the transport was up already, and its loss is about to be reported
        number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else getattr(error, "errno", 0) or 0
        code = _HRESULT_WIN32 | _WINSOCK[number] if number in _WINSOCK else _UNSPECIFIED
        status = "SocketCreateFailure" if number in _NO_SOCKET else "SocketConnectFailure"
        reason = os.strerror(number).lower() if number and number != errno.ETIMEDOUT else ""
        self._fail(status, code, reason or (not number and str(error)) or "no answer", now, wall)

    def connected(self) -> None:
        """CONNECT has succeeded; the EstablishConnection request is in flight."""
        self._stage = _Stage.HANDSHAKE

    def answered(self, wall: int) -> None:
        """A valid EstablishConnection response has arrived (B-211). Repeated calls are allowed."""
        if self._stage is _Stage.HANDSHAKE:
            self._stage = _Stage.ANSWERED
            self._note("EstablishPacketReceived", wall)

    def opened(self, now: int, wall: int) -> None:
        """The session is open (B-216). Repeated calls are allowed."""
        self.answered(wall)
        if self._stage is _Stage.ANSWERED:
            self._stage = _Stage.OPEN
            self.state = CONNECTED
            self._opened = now
            self.next_hops = (self.address,)
            self._note("Established", wall)
            if not self._ended_at_once:  # otherwise this session has to hold first
                self._tell_success()

    def closing(self) -> None:
        """The session has ended, and its transport is closing (B-297)."""
        self.state = DISCONNECTING

    def closed(self, rule: str, reason: str, now: int, wall: int, wanted: bool) -> None:
        """The transport and its session have ended for this reason (B-297). wanted: messages wait for a session.

        A session that ends soon after it opened, with messages left, counts as a failed attempt: the peer will end the
        next one too (B-421).
        """
        opened = self._stage is _Stage.OPEN
        ended_at_once = self._ended_at_once + 1 if opened else 0
        self.state = DISCONNECTED
        if rule in OWN_ENDS or (opened and self._holds(now, wanted)):
            if opened:
                self._tell_success()
                self.tries = 0
            self._wait = 0
            self._ended_at_once = 0
            self._retry(now, wanted)
        elif opened and rule != "B-413":
            again = ended_at_once > 1
            reason = f"the session ended{' at once again' if again else ''}, {reason} ({rule})"
            reason += ": quota or disk may be full there, see its log" if again else ""
            self._fail("UnknownFailure", _UNSPECIFIED, reason, now, wall, ended_at_once)
        elif rule == "B-209":
            self._fail("ConnectionRefused", _REFUSED, f"{reason} ({rule})", now, wall)
        else:
            if self._stage is _Stage.HANDSHAKE and rule not in (*OWN_FAILURES, TLS_FAILED):
                reason = _HANDSHAKES.get(rule, f"what answers at that address is not MSMQ: {reason}")
                if self.tls and rule == "B-298":
                    reason = f"{reason}, or does not accept this side's certificate"
            self._fail("UnknownFailure", _UNSPECIFIED, f"{reason} ({rule})", now, wall, min(ended_at_once, 1))

    def _note(self, status: str, wall: int, error: int = 0, reason: str = "") -> None:
        self.history.append(Event(status, wall, error, (self.address,) if self.addresses else (), reason))

    def _holds(self, now: int, wanted: bool) -> bool:
        return not wanted or now - self._opened >= self._longest_wait

    def _tell_success(self) -> None:
        if self._told:
            self._told.clear()
            self._tell(f"connected after {counted(self.tries, 'failed attempt')}", INFO)

    def _tell(self, text: str, level: str) -> None:
        where = format_address(self.host, self.port)
        self._log(LogLine(f"{where}: {text}", level, NEWS, peer=where))

    def _fail(self, status: str, error: int, reason: str, now: int, wall: int, ended_at_once: int = 0) -> None:
        self._note(status, wall, error, reason)  # B-191
        self.tries += 1
        self.reason = reason
        self._ended_at_once = ended_at_once
        kind = status, min(ended_at_once, 2)
        if kind not in self._told:
            self._told.add(kind)
            self._tell(f"no connection, {reason}; trying again", WARNING)
        self._retry(now, wanted=True)
        self.next_try = wall + self._wait / 1000

    def _retry(self, now: int, wanted: bool) -> None:
        self._stage = _Stage.IDLE
        self._wait = min(max(2 * self._wait, FIRST_RETRY_MS), self._longest_wait)
        self._not_before = now + self._wait
        self._retrying = wanted
