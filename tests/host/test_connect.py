"""The way to a hop, against a model made of the rules' words; and the numbers of Windows for what fails."""

from __future__ import annotations

import errno
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordack.broker.serve_log import ServeLog
from ordack.config.config import Config
from ordack.server.connect import HISTORY_SIZE, Connector, Step

WALL = 1_800_000_000
ADDRESSES = ["10.0.0.1", "10.0.0.2", "fe80::1"]
DEAD = ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")


class Model:
    """`doing`: what was told to be done and is not yet done, or how far the session is.

    left: the addresses behind the one in use. due: when the retry timer expires. timer: it runs.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.pings = draw.random() < 0.7
        interval, delay = draw.choice([50, 1000, 5000]), draw.choice([0, 700])
        config = Config(send_pings=self.pings, try_connect_interval=interval, round_trip_delay=delay)
        self.log: list[str] = []
        self.connector = Connector("plant", 1801, config, self.log.append)
        self.interval = interval + delay
        self.now = 1000
        self.doing = "nothing"
        self.state = "Inactive"
        self.address = ""
        self.left: list[str] = []
        self.next_hops: list[str] = []
        self.due = 0
        self.timer = False
        self.failures = 0
        self.kinds: set[tuple[str, int]] = set()
        self.ended_at_once = 0
        self.lines = 0
        self.history: list[tuple[str, int, bool, tuple[str, ...]]] = []

    def turn(self) -> None:
        """Something that can happen now happens, and everything is as the rules say."""
        if self.doing in ("nothing", "resolved", "pinged") or self.draw.random() < 0.3:
            self.asks(self.draw.random() < 0.9, self.draw.random() < 0.8)
        else:
            self.happens()
        self.check()

    @property
    def wall(self) -> int:
        return WALL + self.now // 1000

    def note(self, status: str, failed: bool = False) -> None:
        self.history.append((status, self.wall, failed, (self.address,) if self.address else ()))

    def failed(self, status: str, ended_at_once: int = 0) -> None:
        self.note(status, True)
        self.ended_at_once = ended_at_once
        kind = status, min(ended_at_once, 2)
        if kind not in self.kinds:
            self.kinds.add(kind)
            self.lines += 1
        self.failures += 1
        self.due = self.now + min(100 * 2 ** (self.failures - 1), self.interval)
        self.timer = True
        self.doing = "nothing"

    def asks(self, wanted: bool, may_ping: bool) -> None:
        self.now += self.draw.choice([0, 50, 99, 100, 101, 200, 1000, 5700, 6000])
        expected = None
        if self.doing == "open" and (not wanted or self.now - self.opened >= self.interval):
            self.kinds.clear()
        ready = self.doing == "resolved" or self.doing == "pinged"
        if self.doing == "nothing" and self.now >= self.due:
            if not wanted:
                self.timer = False
            elif self.timer and self.left:
                self.address = self.left.pop(0)
                self.doing, ready = "pinged", True
            else:
                self.doing = "first" if not self.timer else "again"
                self.address, self.left = "", []
                expected = Step.RESOLVE
        if ready:
            if not wanted:
                self.doing = "nothing"
            elif self.doing == "resolved" and self.pings and may_ping:
                self.doing = "ping"
                expected = Step.PING
            else:
                self.doing = "connect"
                self.state = "Waiting"
                self.note("InProcess")
                expected = Step.CONNECT
        assert self.connector.next_step(self.now, self.wall, wanted, may_ping) is expected
        if expected is Step.PING:
            assert self.connector.pinged

    def happens(self) -> None:
        """What was told to be done comes to its end, or the session goes on."""
        draw = self.draw
        if self.doing in ("first", "again"):
            self.resolves(draw.sample(ADDRESSES, draw.choice([0, 1, 2, 2, 3])))
        elif self.doing == "ping":
            self.pong(draw.choice([False, True, None]))
        elif self.doing == "connect":
            self.connects(draw.random() < 0.7)
        elif draw.random() < 0.5:
            self.ends(draw.choice(["B-298", "B-298", "B-209", "B-147", "B-163"]), draw.random() < 0.7)
        elif self.doing == "handshake" and draw.random() < 0.5:
            self.answers()
        else:
            self.opens()

    def resolves(self, addresses: list[str]) -> None:
        if addresses or self.draw.random() < 0.5:
            self.next_hops = addresses
            self.connector.resolved(addresses * 2, self.now, self.wall)  # a name service may give one twice
        else:
            self.connector.unresolved("no such name", self.now, self.wall)
        if addresses:
            self.address, *self.left = addresses
            self.doing = "resolved" if self.doing == "first" else "pinged"
        else:
            self.state = "NeedValidation"
            self.failed("DnsFailure")

    def pong(self, refused: bool | None) -> None:
        self.connector.ponged(refused, self.now, self.wall)
        if refused is False:
            self.doing = "pinged"
        else:
            self.failed("PingFailure")

    def connects(self, succeeds: bool) -> None:
        if succeeds:
            self.connector.connected()
            self.connector.unreachable(TimeoutError(), self.now, self.wall)  # too late: changes nothing
            self.doing = "handshake"
        else:
            self.connector.unreachable(DEAD, self.now, self.wall)
            self.failed("SocketConnectFailure")

    def answers(self) -> None:
        self.connector.answered(self.wall)
        if self.doing == "handshake":
            self.note("EstablishPacketReceived")
        self.doing = "answered"

    def opens(self) -> None:
        self.connector.opened(self.now, self.wall)
        if self.doing == "handshake":
            self.note("EstablishPacketReceived")
        if self.doing != "open":
            self.note("Established")
            self.opened = self.now
            self.state = "Connected"
            self.next_hops = [self.address]
            if not self.ended_at_once:
                self.kinds.clear()
        self.doing = "open"

    def ends(self, end: str, wanted: bool) -> None:
        self.connector.closing()
        assert self.connector.state == "Disconnecting"
        self.connector.closed(end, "why", self.now, self.wall, wanted)
        self.state = "Disconnected"
        held_out = self.doing == "open" and (self.now - self.opened >= self.interval or not wanted)
        if held_out or end in ("B-147", "B-163"):
            self.failures = self.ended_at_once = 0
            if self.doing == "open":
                self.kinds.clear()
            self.due = self.now + min(100, self.interval)
            self.timer = wanted
            self.failures = 1
            self.doing = "nothing"
        else:
            refused = end == "B-209" and self.doing != "open"
            at_once = self.ended_at_once + 1 if self.doing == "open" else 0
            self.failed("ConnectionRefused" if refused else "UnknownFailure", at_once)

    def check(self) -> None:
        connector = self.connector
        assert connector.state == self.state
        assert connector.address == self.address
        assert list(connector.next_hops) == self.next_hops
        told = [(event.status, event.time, event.error != 0, event.addresses) for event in connector.history]
        assert told == self.history[-HISTORY_SIZE:]
        failures = ["no connection" in line for line in self.log]
        assert sum(failures) == self.lines
        assert any(failures[-1:]) == bool(self.kinds), "the last line is true"
        assert json.loads(json.dumps(connector.report()))["state"] == connector.state


@pytest.mark.rule("B-052", "B-133", "B-145", "B-191", "B-194", "B-196", "B-198", "B-201", "B-204", "B-211", "B-216")
@pytest.mark.rule("B-297", "B-421")
@settings(max_examples=30)
@given(seed=st.integers(0, 1 << 32))
def test_connector_follows_rules_in_random_runs(seed: int) -> None:
    model = Model(random.Random(seed))
    for _ in range(300):
        model.turn()


def _open(connector: Connector, now: int, fails: bool = False) -> None:
    assert connector.next_step(now, WALL, True) is Step.RESOLVE
    connector.resolved(["10.0.0.1"], now, WALL)
    assert connector.next_step(now, WALL, True) is Step.CONNECT
    if fails:
        connector.unreachable(DEAD, now, WALL)
    else:
        connector.connected()
        connector.opened(now, WALL)


def _attempt(connector: Connector, now: int, ends: bool = False) -> None:
    """An attempt that fails, or a session, which ends after a second with messages left if `ends`."""
    _open(connector, now, fails=not ends)
    if ends:
        connector.closed("B-298", "the peer closed the connection", now + 1000, WALL, True)


def test_last_log_line_tells_whether_the_hop_is_connected() -> None:
    lines: list[str] = []
    log = ServeLog(lines.append, lambda: WALL)  # all within a minute
    connector = Connector("plant", 1801, Config(send_pings=False), log)
    for now in range(0, 100_000, 20_000):
        _attempt(connector, now)
        _attempt(connector, now + 7000, ends=True)  # the peer is restarted
    assert ["no connection" in line for line in lines] == [True, False, True] * 5
    assert not any("quota" in line for line in lines)
    for now in range(100_000, 200_000, 20_000):
        _attempt(connector, now, ends=True)
    assert "quota" in lines[-1]
    assert sum("quota" in line for line in lines) == 1
    count = len(lines)
    _open(connector, 200_000)
    assert len(lines) == count, "this session may end at once, too"
    assert not connector.rests
    connector.next_step(200_100, WALL, wanted=False)
    assert "no connection" not in lines[-1]
    assert connector.rests
    log.close()
    assert len(lines) == count + 1, "no failure is told after its end"


@pytest.mark.rule("B-191")
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "SocketConnectFailure", 0x8007274D),  # WSAECONNREFUSED
        (OSError(errno.EHOSTUNREACH, "x"), "SocketConnectFailure", 0x80072751),
        (TimeoutError(), "SocketConnectFailure", 0x8007274C),  # WSAETIMEDOUT
        (OSError(errno.EMFILE, "x"), "SocketCreateFailure", 0x80072728),
        (OSError("several"), "SocketConnectFailure", 0x80004005),  # E_FAIL
        (RuntimeError("no thread"), "SocketConnectFailure", 0x80004005),
    ],
)
def test_connect_failure_reports_address_and_windows_error(error: Exception, status: str, code: int) -> None:
    connector = Connector("plant", 1801, Config())
    assert connector.next_step(0, WALL, True) is Step.RESOLVE
    connector.resolved(["10.0.0.1"], 0, WALL)
    assert connector.next_step(0, WALL, True) is Step.CONNECT
    connector.unreachable(error, 0, WALL + 9)
    assert connector.history[-1]._replace(reason="") == (status, WALL + 9, code, ("10.0.0.1",), "")
    assert connector.next_step(100, WALL, True) is Step.RESOLVE
    connector.unresolved("no such name", 100, WALL)
    assert connector.history[-1][:4] == ("DnsFailure", WALL, 0x80072AF9, ())  # WSAHOST_NOT_FOUND
