"""Faults on a serial line: bytes lost, changed and inserted, and lines unplugged for a while.

`Damage` decides the fate of each byte, on top of `CutSchedule`; it uses no files and no clock. `SerialFaultProxy`
stands between a board's UART and the pseudo-terminal that the queue manager opens as its serial port.

A serial line has no connections. The time between two faults, or two power cuts of the board, counts as one.
"""

import asyncio
import fcntl
import os
import random
import select
import socket
import stat
import termios
import tty
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from hil.boards import BoardMissing
from hil.faults import DOWN, LASTS_S, ONE_WAY, UP, CutSchedule, ready

UNPLUG: Final = "unplug"
LOSE: Final = "lose"
FLIP: Final = "flip"
GARBAGE: Final = "garbage"
SERIAL_KINDS: Final = (UNPLUG, LOSE, FLIP, GARBAGE, ONE_WAY)

UNPLUGGED_MAX_S: Final = 0.3
BYTES_MAX: Final = 64
"""So many bytes are lost, or made up, at most."""

NAME: Final = "board"
"""Under this name the queue manager knows the line."""

_CHUNK: Final = 4096
_FULL_DEADLINE_S: Final = 0.5
_HUNG_UP_POLL_S: Final = 0.01


class Damage:
    """The fate of a line's bytes, by the planned cuts of `schedule`; `seed` determines the details.

    An `UNPLUG` cut drops everything in both directions for a time, a `ONE_WAY` cut in its own direction. At their
    position, `LOSE` drops the following bytes, `FLIP` changes bits of the byte, and `GARBAGE` inserts bytes.
    """

    def __init__(self, schedule: CutSchedule, seed: int) -> None:
        self._schedule = schedule
        self._rng = random.Random(f"damage/{seed}")
        self._passage = schedule.open()
        self._broken_until = {UP: 0.0, DOWN: 0.0}
        self._lost = {UP: 0, DOWN: 0}
        self._mask = {UP: 0, DOWN: 0}

    def restart(self) -> None:
        """Begin a new line after the board was switched off. A cut that did not fall waits for its turn again."""
        self._passage.close()
        self._passage = self._schedule.open()
        self._lost = {UP: 0, DOWN: 0}
        self._mask = {UP: 0, DOWN: 0}

    def carry(self, direction: str, data: bytes, now: float) -> bytes:
        """The bytes that arrive when `data` is sent at `now`, in seconds."""
        arriving = bytearray()
        start = 0
        while start < len(data) and now >= self._broken_until[direction]:
            if self._lost[direction]:
                count = min(self._lost[direction], len(data) - start)
                self._lost[direction] -= count
            else:
                count = self._passage.allowed(direction, len(data) - start)
                arriving += data[start : start + count]
                if count and self._mask[direction]:
                    arriving[-count] ^= self._mask[direction]
                    self._mask[direction] = 0
                if self._passage.passed(direction, count):
                    self._fall(direction, arriving, now)
            start += count
        return bytes(arriving)

    def _fall(self, direction: str, arriving: bytearray, now: float) -> None:
        """Execute the pending cut here."""
        planned = self._passage.planned
        assert planned is not None
        kind, for_s = planned.kind, planned.for_s
        self._passage.cut_made(direction)
        count = self._rng.randint(1, BYTES_MAX)
        if kind == UNPLUG:
            self._broken_until = dict.fromkeys((UP, DOWN), now + (for_s or self._rng.uniform(0.0, UNPLUGGED_MAX_S)))
        elif kind == ONE_WAY:
            self._broken_until[planned.direction] = now + (for_s or self._rng.uniform(0.0, LASTS_S[ONE_WAY]))
        elif kind == LOSE:
            self._lost[direction] = count
        elif kind == FLIP:
            self._mask[direction] = self._rng.randint(1, 255)
        else:
            arriving += self._rng.randbytes(count)
        self._passage.close()
        self._passage = self._schedule.open()


class SerialFaultProxy:
    """Carries bytes between a board's UART and a pseudo-terminal, through `Damage`.

    line: the link to the board: a serial port, or the path of a Unix socket, which the proxy makes and an emulated
    board connects to while on. find: returns the path of a port that may exist only while the board is on; raises
    BoardMissing otherwise. As on any serial line, bytes are lost while the board is off or the pseudo-terminal is
    closed. While the other end is there, bytes wait: the proxy causes no buffer overrun that the ends could not avoid.
    """

    def __init__(self, schedule: CutSchedule, line: Path, seed: int, find: Callable[[], Path] | None = None) -> None:
        self.schedule = schedule
        self.refused = 0
        self._line = line
        self._find = find or (lambda: line)
        self._seed = seed
        self._tasks: list[asyncio.Task[None]] = []
        self._master, slave = os.openpty()
        self.port = os.ttyname(slave)
        os.close(slave)
        os.set_blocking(self._master, False)
        self._hung_up = select.poll()
        self._hung_up.register(self._master, 0)
        self._port: int | None = None
        self._listener: socket.socket | None = None
        if find is None and not (line.exists() and stat.S_ISCHR(line.stat().st_mode)):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.setblocking(False)
            self._listener.bind(str(line))
            self._listener.listen()

    def serve_arguments(self) -> list[str]:
        return ["--serial", f"{NAME}={self.port}"]

    async def open(self, target: tuple[str, int]) -> None:  # noqa: ARG002 - the queue manager opens the terminal
        """Start carrying bytes. Raises OSError, termios.error: `line` is no usable serial port."""
        damage = Damage(self.schedule, self._seed)
        if self._listener is None:
            with suppress(BoardMissing):
                self._port = _opened(self._find())
            carrying = self._carry_by_port(damage)
        else:
            carrying = self._carry(self._listener, damage)
        self._tasks.append(asyncio.create_task(carrying))

    def board_settings(self, host: str) -> dict[str, object]:  # noqa: ARG002 - a serial line reaches no host
        return {"serial": True}

    async def close(self) -> None:
        """Stop, and close the pseudo-terminal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        os.close(self._master)
        if self._port is not None:
            os.close(self._port)
        if self._listener is not None:
            self._listener.close()
            self._line.unlink(missing_ok=True)

    async def _carry_by_port(self, damage: Damage) -> None:
        """Carry bytes whenever the port exists."""
        while True:
            if self._port is None:
                await self._drain_until(self._port_is_there())
                damage.restart()
            assert self._port is not None
            await self._exchange(self._port, damage)
            os.close(self._port)
            self._port = None

    async def _port_is_there(self) -> None:
        while self._port is None:
            await asyncio.sleep(_HUNG_UP_POLL_S)
            with suppress(BoardMissing, OSError, termios.error):  # it is just appearing, or has gone again
                self._port = _opened(self._find())

    async def _carry(self, listener: socket.socket, damage: Damage) -> None:
        """Carry bytes for each life of the board."""
        while True:
            await self._drain_until(ready(listener.fileno()))
            connection, _ = listener.accept()
            connection.setblocking(False)
            with connection:
                damage.restart()
                await self._exchange(connection.fileno(), damage)

    async def _drain_until(self, there: Awaitable[None]) -> None:
        """Wait until the board is on; earlier bytes for it are lost."""
        draining = asyncio.create_task(self._pump(self._read_far, _nowhere, DOWN, None))
        try:
            await there
        finally:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)

    async def _exchange(self, near: int, damage: Damage) -> None:
        """Carry both directions until the board's end is closed."""

        async def read_near() -> bytes:
            return await _read(near)

        async def write_near(data: bytes) -> None:
            while data:
                try:
                    data = data[os.write(near, data) :]
                except BlockingIOError:
                    await ready(near, for_writing=True)

        pumps = [
            asyncio.create_task(self._pump(read_near, self._write_far, UP, damage)),
            asyncio.create_task(self._pump(self._read_far, write_near, DOWN, damage)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        read: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
        direction: str,
        damage: Damage | None,
    ) -> None:
        """Carry one direction until its source or its sink has ended."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await read():
                await self.schedule.passes()
                arriving = data if damage is None else damage.carry(direction, data, loop.time())
                if arriving:
                    await write(arriving)

    def _nobody_listens(self) -> bool:
        """Is the pseudo-terminal closed at the other end?"""
        return any(event & select.POLLHUP for _, event in self._hung_up.poll(0))

    async def _read_far(self) -> bytes:
        """Wait for bytes from the queue manager."""
        while True:
            if not self._nobody_listens():
                with suppress(OSError):  # EIO: closed since
                    return await _read(self._master)
            await asyncio.sleep(_HUNG_UP_POLL_S)

    async def _write_far(self, data: bytes) -> None:
        """Write bytes to the queue manager; they are lost if it is absent, or accepts none for a while."""
        while data and not self._nobody_listens():
            try:
                data = data[os.write(self._master, data) :]
            except BlockingIOError:
                try:
                    async with asyncio.timeout(_FULL_DEADLINE_S):
                        await ready(self._master, for_writing=True)
                except TimeoutError:
                    return
            except OSError:
                return


def _opened(port: Path) -> int:
    """Open this serial port exclusively. Raises OSError, termios.error."""
    opened = os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tty.setraw(opened, termios.TCSANOW)
    except BaseException:
        os.close(opened)
        raise
    return opened


async def _nowhere(_: bytes) -> None:
    """Discard bytes."""


async def _read(fd: int) -> bytes:
    """Read some bytes; none at the end. Raises OSError."""
    while True:
        try:
            return os.read(fd, _CHUNK)
        except BlockingIOError:
            await ready(fd)
