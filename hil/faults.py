"""Faults in a link: a seeded plan of cuts, and the TCP proxy that executes the plan.

There are three layers. The proxy for a serial line (serial_faults.py) replaces the third.

* `plan_cuts` makes the plan from a seed: the same seed and arguments give the same cuts.
* `CutSchedule` and `Passage` count bytes and decide when to cut a link. No sockets, no clock.
* `TcpFaultProxy` moves the bytes and cuts TCP connections.

Directions are seen from the board: `UP` is board to queue manager, `DOWN` is queue manager to board.
"""

import asyncio
import fcntl
import random
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from ordack.server.record import RecordedConnection

from hil.traffic import Tap

UP: Final = "up"
DOWN: Final = "down"
RST: Final = "rst"
FIN: Final = "fin"
HALF_OPEN: Final = "half-open"
LATE: Final = "late"
SLOW: Final = "slow"
ONE_WAY: Final = "one-way"
TCP_KINDS: Final = (RST, FIN, HALF_OPEN, LATE, SLOW, ONE_WAY)

LASTS_S: Final = {LATE: 0.3, SLOW: 0.3, ONE_WAY: 1.0}
"""Kinds after which the connection goes on, and how many seconds they last if the plan does not say it: what follows a
fault of kind `LATE` waits, a direction stays slow after one of kind `SLOW`, and passes nothing after a `ONE_WAY` until
the other one has been silent for so long.
"""
GOES_ON: Final = tuple(LASTS_S)

SLOW_BYTES: Final = 40
SLOW_STEP_S: Final = 0.005
"""A slow direction forwards so many bytes at a time: 64 kbit/s."""

OPENING_BYTES: Final = 620
"""About what either side sends to open a connection, before the first message or acknowledgement, in bytes."""

ACKNOWLEDGEMENT_BYTES: Final = 300
"""How far beyond the opening a planned downstream cut lies at most, in bytes: a handful of acknowledgements."""

SHARE_OF_CUTS: Final = 0.6
"""Share of the expected upstream bytes that all cuts, and what interrupts them, may use up."""

SHARE_OF_PAUSES: Final = 0.35
"""Share of the expected upstream bytes that pass undisturbed between the cuts."""

_IN_OPENING: Final = 0.2
_CHUNK: Final = 65536
_TCP_CLOSE: Final = 7  # of linux/tcp.h: neither end can send
_BACKLOG: Final = 16
_WAY_OPENS: Final = 10
_DELIVERY_DEADLINE_S: Final = 2.0
_FINISH_DEADLINE_S: Final = 5.0


@dataclass(frozen=True)
class Cut:
    """One planned cut. It applies to the connection that carries byte number `after`, counted over all upstream bytes.

    The cut falls after `position` bytes (1 or more) of `direction`, counted from that byte or from the connection's
    begin, whichever is later. kind: one that the link supports. up_limit: upstream bytes (1 or more) counted the same
    way; a downstream cut falls there if too few acknowledgements arrive. Equals `position` for an upstream cut. for_s:
    duration in seconds of a cut that ends by itself; else 0.
    """

    after: int
    direction: str
    position: int
    kind: str
    up_limit: int
    for_s: float = 0.0

    @property
    def lasts_s(self) -> float:
        return self.for_s or LASTS_S[self.kind]


@dataclass(frozen=True)
class CutMade:
    """An executed cut: its actual position in bytes from the connection's begin; all of those bytes were delivered."""

    connection: int
    direction: str
    position: int
    kind: str
    planned: Cut


def plan_cuts(
    seed: int, count: int, upstream_bytes: int, interruptions: int = 0, kinds: Sequence[str] = TCP_KINDS
) -> list[Cut]:
    """Plan `count` cuts for a campaign that expects `upstream_bytes` bytes of messages.

    interruptions: number of kills of either end, each of which uses up a connection without reaching its cut. kinds:
    those that the link supports. Each cut waits for the bytes of the previous one, and all fit into the expected
    traffic: so all cuts happen while messages flow. One cut in five falls in a connection's opening, right after the
    previous cut. Raises ValueError for negative arguments.
    """
    if min(count, upstream_bytes, interruptions) < 0:
        raise ValueError("cuts, traffic and interruptions are counts of 0 or more")
    rng = random.Random(f"cuts/{seed}")
    directions = [rng.choice((UP, DOWN)) for _ in range(count)]
    # Acknowledgements are few, so a downstream cut gets more traffic to wait for its position.
    shares = [rng.uniform(0.02, 1.0) if direction == UP else rng.uniform(1.0, 2.0) for direction in directions]
    budget = SHARE_OF_CUTS * upstream_bytes * count / max(1, count + interruptions)
    pauses = sorted(int(SHARE_OF_PAUSES * upstream_bytes * rng.random()) for _ in range(count))
    after = used = 0
    kind = kinds[0]
    cuts: list[Cut] = []
    for direction, share, pause in zip(directions, shares, pauses, strict=True):
        limit = int(budget * share / sum(shares))
        opening = 0 if kind in GOES_ON else OPENING_BYTES  # of the connection after the previous cut
        in_opening = opening > 0 and rng.random() < _IN_OPENING
        if not in_opening:
            after = used + pause
        used += limit
        up_limit = max(1, opening + limit)
        kind = rng.choice(kinds)
        if direction == UP:
            position = rng.randint(1, OPENING_BYTES) if in_opening else up_limit
            cuts.append(Cut(after, UP, position, kind, position))
        else:
            first, last = (1, OPENING_BYTES) if in_opening else (OPENING_BYTES, OPENING_BYTES + ACKNOWLEDGEMENT_BYTES)
            cuts.append(Cut(after, DOWN, rng.randint(first, last), kind, up_limit))
    return cuts


class CutSchedule:
    """Hands the planned cuts to connections, in order, and keeps the statistics. After the last cut links are clean."""

    def __init__(self, cuts: Iterable[Cut]) -> None:
        self._waiting = deque(cuts)
        self.made: list[CutMade] = []
        self.connections = 0
        self.forwarded = {UP: 0, DOWN: 0}
        self._alarm: tuple[int, Callable[[], None]] | None = None
        self._passes = asyncio.Event()
        self._passes.set()

    def ring(self, count: int, call: Callable[[], None]) -> None:
        """Call `call` once after `count` more upstream bytes; replaces an earlier request. Nothing passes from then
        until `silence`, so that no scheduler decides how many bytes a board exchanges before it is killed."""
        self._alarm = (self.forwarded[UP] + count, call)

    def silence(self) -> None:
        """End or cancel the request of `ring`."""
        self._alarm = None
        self._passes.set()

    async def passes(self) -> None:
        """Wait until bytes may pass."""
        await self._passes.wait()

    def until_ring(self, count: int) -> int:
        """How many of `count` upstream bytes may be forwarded at a time."""
        return count if self._alarm is None else min(count, max(1, self._alarm[0] - self.forwarded[UP]))

    def count(self, direction: str, count: int) -> None:
        """Count forwarded bytes."""
        self.forwarded[direction] += count
        if self._alarm is not None and self.forwarded[UP] >= self._alarm[0]:
            (_, call), self._alarm = self._alarm, None
            self._passes.clear()
            call()

    def open(self) -> "Passage":
        """A new connection, numbered from 1."""
        self.connections += 1
        return Passage(self, self.connections)

    def pause(self) -> int | None:
        """Upstream bytes until the turn of the next cut; None without a next cut."""
        return max(0, self._waiting[0].after - self.forwarded[UP]) if self._waiting else None

    def take(self) -> Cut | None:
        """The next cut, if its turn has come."""
        return self._waiting.popleft() if self.pause() == 0 else None

    def give_back(self, cut: Cut) -> None:
        """The connection ended before its cut: the next connection gets the cut."""
        self._waiting.appendleft(cut)


class Passage:
    """The bytes of one connection, counted per direction against the connection's cut, if any."""

    def __init__(self, schedule: CutSchedule, number: int) -> None:
        self.schedule = schedule
        self.number = number
        self.planned = schedule.take()
        self._base = {UP: 0, DOWN: 0}
        self._granted = {UP: 0, DOWN: 0}
        self.forwarded = {UP: 0, DOWN: 0}
        self.is_cut = False
        self.made: CutMade | None = None
        self.recorded: RecordedConnection | None = None
        self._closed = False

    def _limit(self, direction: str) -> int | None:
        if self.planned is None:
            return None
        if direction == self.planned.direction:
            return self._base[direction] + self.planned.position
        return self._base[direction] + self.planned.up_limit if direction == UP else None

    def allowed(self, direction: str, count: int) -> int:
        """How many of the next `count` bytes may be forwarded now: 0 once the connection is cut. The caller asks again
        for the rest."""
        if self.is_cut:
            return 0
        if self.planned is None and not self._closed:
            self.planned = self.schedule.take()
            self._base = dict(self._granted)
        limit = self._limit(direction)
        if limit is not None:
            count = min(count, limit - self._granted[direction])
        elif direction == UP and not self._closed:
            count = min(count, self.schedule.pause() or count)
        if direction == UP:
            count = self.schedule.until_ring(count)
        self._granted[direction] += count
        return count

    def passed(self, direction: str, count: int) -> bool:
        """Count `count` allowed bytes as forwarded. True once for each cut, when the caller must make it. Afterwards
        nothing is allowed; for a kind in `GOES_ON`, until the cut is made."""
        self.forwarded[direction] += count
        self.schedule.count(direction, count)
        reached = not self.is_cut and self.forwarded[direction] == self._limit(direction)
        self.is_cut = self.is_cut or reached
        return reached

    def cut_made(self, direction: str) -> None:
        """The cut that `passed` requested is made: the far end has every byte before it, and gets none behind it,
        except for a kind in `GOES_ON`."""
        assert self.planned is not None
        made = CutMade(self.number, direction, self.forwarded[direction], self.planned.kind, self.planned)
        self.schedule.made.append(made)
        if made.kind in GOES_ON:
            self.planned, self.is_cut = None, False
        else:
            self.made = made

    def close(self) -> None:
        """The connection is ending: a cut not made goes back to the schedule. Repeated calls are allowed."""
        self._closed = True
        if self.planned is not None and self.made is None:
            self.schedule.give_back(self.planned)
            self.planned = None


class Ways:
    """Directions of a link that pass nothing for a while, on any connection. A direction reopens when the other one has
    been silent for the given seconds, or after `_WAY_OPENS` times as many."""

    def __init__(self) -> None:
        self._closed_until = {UP: 0.0, DOWN: 0.0}
        self._seconds = {UP: 0.0, DOWN: 0.0}
        self._opens = {UP: 0.0, DOWN: 0.0}

    def close(self, direction: str, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._seconds[direction], self._opens[direction] = seconds, now + _WAY_OPENS * seconds
        self._closed_until[direction] = now + seconds

    def passed(self, direction: str) -> None:
        """Bytes have passed in this direction."""
        other, now = DOWN if direction == UP else UP, asyncio.get_running_loop().time()
        if now < self._closed_until[other]:
            self._closed_until[other] = min(now + self._seconds[other], self._opens[other])

    async def wait_open(self, direction: str) -> None:
        """Wait until this direction is open."""
        while (left_s := self._closed_until[direction] - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left_s)


class FaultProxy(Protocol):
    """The proxy in a board's link, as a campaign uses it for any kind of link."""

    refused: int

    def serve_arguments(self) -> list[str]:
        """Arguments that make `ordack serve` listen to this link."""

    async def open(self, target: tuple[str, int]) -> None:
        """Start the link; `target` is the queue manager's TCP address."""

    def board_settings(self, host: str) -> dict[str, object]:
        """Entries of the application's configuration that lead the board to this proxy. host: this machine's loopback
        as the board sees it."""

    async def close(self) -> None: ...


class TcpFaultProxy:
    """Listens on its own port on `host`, and forwards every connection to `target` through `schedule`.

    A cut is exact: the byte at its position is delivered, the byte behind it never is. `RST`: both ends see a reset.
    `FIN`: both see an orderly end, and their further bytes are discarded. `HALF_OPEN`: the board sees a reset, the
    queue manager nothing, as when an access point loses power. `LATE` and `SLOW` cut nothing: the following bytes wait,
    or trickle for a while. `ONE_WAY`: its direction passes nothing, also on new connections, until the other direction
    is silent. While the target is down, connections are reset at once and counted in `refused`. The port stays the same
    from `open` to `close`.
    """

    def __init__(self, schedule: CutSchedule, host: str = "127.0.0.1", tap: Tap | None = None) -> None:
        self.schedule = schedule
        self.tap = tap
        self.target = ("", 0)
        self.refused = 0
        self._ways = Ways()
        self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._tasks: set[asyncio.Task[None]] = set()

    def serve_arguments(self) -> list[str]:
        return []

    async def open(self, target: tuple[str, int]) -> None:
        """Start to accept connections."""
        self.target = target
        self._keep(asyncio.create_task(self._accept()))

    def board_settings(self, host: str) -> dict[str, object]:
        return {"host": host, "port": self.address[1]}

    async def close(self) -> None:
        """Stop accepting, and drop every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            await ready(self._listener.fileno())  # a task cancelled during an accept would lose the connection
            near, _ = self._listener.accept()
            near.setblocking(False)
            connection = asyncio.create_task(self._carry(near))
            connection.add_done_callback(partial(_close, near))
            self._keep(connection)

    async def _connect(self) -> socket.socket:
        far = socket.socket()
        far.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(far, self.target)
            # A connect to a local port without a listener can connect to itself.
            if far.getsockname() == far.getpeername():
                raise ConnectionRefusedError("connected to itself")
        except BaseException:
            far.close()
            raise
        return far

    async def _carry(self, near: socket.socket) -> None:
        """Carry one connection from the board to its end."""
        await self._ways.wait_open(UP)
        try:
            far = await self._connect()
        except OSError:
            self.refused += 1
            _linger_not(near)
            return
        with far:
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            passage = self.schedule.open()
            recorded = passage.recorded = self.tap.open(near.getpeername()[:2], self.target) if self.tap else None
            orderly = False
            try:
                orderly = await _forward(near, far, passage, self._ways)
            finally:
                passage.close()
                if recorded is not None:
                    recorded.closed(here=False, reset=not orderly)
            kind = passage.made.kind if passage.made else None
            if kind == FIN:
                await _finish(near, far)
            elif kind == HALF_OPEN:
                _linger_not(near)
                near.close()
                await _swallow(far)
            elif not orderly:
                _linger_not(near, far)


def _settle(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


async def ready(fd: int, *, for_writing: bool = False) -> None:
    """Wait until `fd` is readable or writable, or has an error."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if for_writing else (loop.add_reader, loop.remove_reader)
    add(fd, _settle, waiting)
    try:
        await waiting
    finally:
        remove(fd)


def _close(end: socket.socket, _: "asyncio.Task[None]") -> None:
    """Close a connection whose task has ended, even one cancelled before it began."""
    end.close()


async def _forward(near: socket.socket, far: socket.socket, passage: Passage, ways: Ways) -> bool:
    """Forward in both directions; True if both came to an orderly end, False after a cut or a reset."""
    pumps: set[asyncio.Task[bool]] = {
        asyncio.create_task(_pump(near, far, UP, passage, ways)),
        asyncio.create_task(_pump(far, near, DOWN, passage, ways)),
    }
    try:
        waiting = pumps
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() or task.result() for task in done):
                return False
        return True
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: socket.socket, sink: socket.socket, direction: str, passage: Passage, ways: Ways) -> bool:
    """Forward until the source's end, which is passed on, or a cut; True if this direction made the cut. Raises
    OSError."""
    loop = asyncio.get_running_loop()
    chunk = memoryview(bytearray(_CHUNK))
    slow_until = 0.0
    while count := await loop.sock_recv_into(source, chunk):
        start = 0
        while start < count:
            await ways.wait_open(direction)
            await passage.schedule.passes()
            is_slow = loop.time() < slow_until
            allowed = passage.allowed(direction, min(count - start, SLOW_BYTES) if is_slow else count - start)
            if not allowed:
                return False
            if passage.recorded is not None:
                record = passage.recorded.received if direction == UP else passage.recorded.sent
                record(chunk[start : start + allowed])
            await loop.sock_sendall(sink, chunk[start : start + allowed])
            ways.passed(direction)
            start += allowed
            if is_slow:
                await asyncio.sleep(SLOW_STEP_S)
            if not passage.passed(direction, allowed):
                continue
            assert passage.planned
            kind, planned_direction = passage.planned.kind, passage.planned.direction
            lasts_s = passage.planned.lasts_s if kind in GOES_ON else 0.0
            if kind not in GOES_ON and not await _delivered(sink):
                raise ConnectionAbortedError("the far end did not take the bytes before the cut")
            passage.cut_made(direction)
            if kind not in GOES_ON:
                return True
            if kind == SLOW:
                slow_until = loop.time() + lasts_s
            elif kind == ONE_WAY:
                ways.close(planned_direction, lasts_s)
            else:
                await asyncio.sleep(lasts_s)
    await ways.wait_open(direction)
    # Before the far end can notice: the next connection must get an unmade cut of this one.
    passage.close()
    sink.shutdown(socket.SHUT_WR)
    return False


async def _delivered(sink: socket.socket) -> bool:
    """Wait until the far end's system has every byte, because a reset would discard the rest. False on failure."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _DELIVERY_DEADLINE_S
    while struct.unpack("i", fcntl.ioctl(sink, termios.TIOCOUTQ, bytes(4)))[0]:
        is_closed = sink.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
        if is_closed or loop.time() >= deadline:
            return False
        await asyncio.sleep(0.001)
    return True


async def _finish(*ends: socket.socket) -> None:
    """End both connections in an orderly way, and discard their bytes until they end as well."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_WR)
    with suppress(TimeoutError):
        async with asyncio.timeout(_FINISH_DEADLINE_S):
            await asyncio.gather(*(_swallow(end) for end in ends))


async def _swallow(end: socket.socket) -> None:
    """Discard all bytes until the end."""
    with suppress(OSError):
        while await asyncio.get_running_loop().sock_recv(end, _CHUNK):
            pass


def _linger_not(*ends: socket.socket) -> None:
    """Make the following close a reset: nothing more is delivered."""
    for end in ends:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
