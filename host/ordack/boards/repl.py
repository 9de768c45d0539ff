"""A board's raw REPL: interrupts its program, runs code there, reads and writes its files, starts the program again.

A program that feeds a watchdog is interrupted, too, and most watchdogs cannot be stopped. When the watchdog has reset
the board, `attended` repeats the work and feeds it.
"""

from __future__ import annotations

import ast
import binascii
import contextlib
import io
import re
import select
import struct
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import serial
from mpremote.transport import TransportError
from mpremote.transport_serial import SerialTransport
from mqqb import core

MINIMUM = (1, 25)  # of MicroPython
BAUD = 115200  # of a serial line; USB ports ignore it
ENTER_S = 10  # until a port that does not answer has no MicroPython
ANSWER_S = 20  # until a board that does not answer was reset or is dead
BOOT_S = 20  # boot.py may join a network
RETURN_S = 10  # a USB port is away while its board starts
START_S = 5  # after which a program that has not ended is taken to run
QUIET_S = 0.3
CHUNK_BYTES = 1024
PROMPT = b"\n>>> "

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all
Result = TypeVar("Result")


class BoardError(Exception):
    """The board does not do what was asked. The text says what to do."""


class NoBoard(BoardError):
    """There is nothing to talk to: no port, a port in use, no answer, no MicroPython."""


class Info(NamedTuple):
    """What a board says of itself. heap_free: bytes, after a collection. mpy: sys.implementation._mpy, 0 without."""

    version: tuple[int, ...]
    machine: str
    mpy: int
    heap_free: int
    heap: int
    path: list[str]
    folder: str

    @property
    def arch(self) -> str:
        """The native modules that it loads; empty if it takes none."""
        return core.NATIVE[self.mpy >> 10 & 15]

    @property
    def lib(self) -> str:
        """Where modules go: the folder that mip takes, else the one in which the board starts."""
        found = [path for path in self.path if path.endswith("/lib") and not path.startswith("/rom")]
        return found[0] if found else self.folder.rstrip("/")

    def root(self, name: str) -> str:
        """A file in the folder in which the board starts."""
        return f"{self.folder.rstrip('/')}/{name}"


_WHO = "import sys\ni=sys.implementation\nprint((i.name,tuple(i.version)[:3]))"
_INFO = """
import gc, os, sys
gc.collect()
i = sys.implementation
m = getattr(i, '_machine', sys.platform)
print((m, getattr(i, '_mpy', 0), gc.mem_free(), gc.mem_alloc(), list(sys.path), os.getcwd()))
"""
# Every command begins with _feed(). What holds it is gone after a reset.
_UNWATCHED = "_feed = int"
# A second WDT takes over the first with a longer time: 30 s is about an STM32's limit, 8.388 s is an RP2's.
_WATCHED = """
import machine
try:
    _feed = machine.WDT(timeout=30000).feed
except ValueError:
    _feed = machine.WDT(timeout=8388).feed
"""
# Was the board reset since it was told _feed, and not by its power?
_BITTEN = """
try:
    import machine
    print('_feed' not in globals() and hasattr(machine, 'WDT') and machine.reset_cause() != machine.PWRON_RESET)
except (ImportError, AttributeError):
    print(False)
"""
# Size and CRC of files; None: not there.
_SUMS = """
import binascii
def _sum(path):
    n = crc = 0
    b = memoryview(bytearray(512))
    try:
        f = open(path, 'rb')
    except OSError:
        return None
    with f:
        while True:
            k = f.readinto(b)
            if not k:
                return (n, crc & 0xFFFFFFFF)
            crc = binascii.crc32(b[:k], crc)
            n += k
"""
_OPEN = """
import binascii, os
try:
    f = open({0!r}, 'rb')
    print(os.stat({0!r})[6])
except OSError:
    print(None)
"""
FREE = "import os\ns=os.statvfs({!r})\nprint((s[0],s[0]*s[3],s[0]*s[2]))"
# Which core a node would use, and whether its modules are frozen into the firmware.
CORE = """
import gc, os
def _core():
    try:
        import mqqb
    except ImportError:
        return (None, '', False)
    file = getattr(mqqb, '__file__', None)
    if not file:
        return (None, '', False) # an empty folder
    try:
        os.stat(file)
        frozen = False
    except OSError:
        frozen = True
    try:
        from mqqb import core
        return (core.implementation, '', frozen)
    except Exception as e:
        return ('', repr(e), frozen)
print(_core())
"""


class _Line(SerialTransport):  # type: ignore[misc]
    """mpremote's transport with a deadline for each wait: mpremote checks the time only while the board is silent, and
    a board that prints without end would hold the command for ever.
    """

    limit = float(ANSWER_S)  # s

    def read_until(self, _: int, ending: bytes, *__: Any, timeout_overall: Any = None, **___: Any) -> bytes:
        """The board's output up to `ending`, or up to the deadline."""
        until = time.monotonic() + (timeout_overall or self.limit)
        data = b""
        while not data.endswith(ending) and time.monotonic() < until:
            if self.is_pty:  # select notices that the other end has gone, in_waiting does not
                if select.select([self.serial], [], [], max(0.0, until - time.monotonic()))[0]:
                    data += self.serial.read(1)
            elif self.serial.in_waiting:
                data += self.serial.read(1)
            else:
                time.sleep(0.01)
        return data


class Board:
    """A board's raw REPL; the program there is interrupted. `look` comes first. Raises NoBoard, BoardError.

    again: the attempt before was cut off. `watched`: a watchdog has done that; each command feeds it now.
    """

    def __init__(self, port: str, baud: int = BAUD, *, again: bool = False) -> None:
        self.port = port
        self.watched = False
        self._is_started = False
        try:
            self._line = _Line(port, baudrate=baud, timeout=ANSWER_S)
        except (TransportError, OSError, ValueError):
            raise NoBoard(_why_not_opened(port, baud)) from None
        try:
            self._enter(reset=False)
            self.watched = again and self._exec(_BITTEN) is True
            self._feed()
        except BaseException:
            self.close(restart=False)
            raise

    def look(self, *, reset: bool) -> Board:
        """Read the board's version and `info`. reset: do a soft reset first, which frees the heap. Closes the port if
        it raises."""
        try:
            if reset:
                self.reset()
            name, version = self.run(_WHO)
            if name != "micropython":
                raise NoBoard(
                    f"the board at {self.port} runs {name}, not MicroPython: install MicroPython 1.25 or newer"
                )
            self.version: tuple[int, ...] = version
            if version < MINIMUM:
                raise BoardError(f"the board at {self.port} has MicroPython {dotted(version)}: 1.25 or newer is needed")
            machine, mpy, free, used, path, folder = self.run(_INFO)
            self.info = Info(version, machine, mpy, free, free + used, path, folder)
        except BaseException:
            self.close(restart=False)
            raise
        return self

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(restart=True)

    def _enter(self, *, reset: bool) -> None:
        said = io.StringIO()
        self._line.serial.write_timeout = write_limit(self.port, ENTER_S)
        until = time.monotonic() + (BOOT_S if reset else ENTER_S)
        patience = BOOT_S if reset else ENTER_S / 8
        while True:  # a program may have caught the first interrupt
            try:
                with contextlib.redirect_stdout(said):
                    self._line.enter_raw_repl(soft_reset=reset, timeout_overall=patience)
                return
            except TransportError:
                if time.monotonic() > until:
                    break
                patience *= 2  # or the board is slow
                self._calm()
            except OSError as error:
                raise NoBoard(f"the board at {self.port} went away: {error}") from None
        heard = said.getvalue().splitlines()
        data = ast.literal_eval(heard[-1]) if heard and heard[-1].startswith("b") else b""
        if data.strip():
            raise NoBoard(f"what answers at {self.port} is not MicroPython: {data[-60:]!r}")
        raise NoBoard(
            f"the board at {self.port} does not answer: is it the right port, and does it have MicroPython? A program "
            "that catches Ctrl-C, as a bare `except:` does, holds it: reset the board, and try again"
        )

    def _calm(self) -> None:
        """Interrupt again, and read what the attempt before has caused: the board may obey its bytes only now."""
        with contextlib.suppress(OSError):
            for key in (b"\x03\x03", b"\x02"):
                self._line.serial.write(key)
                until = time.monotonic() + QUIET_S
                end = until + QUIET_S
                while time.monotonic() < min(until, end):
                    if waiting := self._line.serial.in_waiting:
                        self._line.serial.read(waiting)
                        until = time.monotonic() + QUIET_S
                    time.sleep(0.01)

    def reset(self) -> None:
        """A soft reset: nothing is imported any more, the heap is free, main.py does not run."""
        self._enter(reset=True)
        self._feed()

    def _feed(self) -> None:
        self._exec(_WATCHED if self.watched else _UNWATCHED)

    def run(self, code: str, seconds: float = 0) -> Any:
        """Run code there; what it prints, as a Python value, None if nothing. seconds: it may need so many."""
        return self._exec("_feed()\n" + code, seconds)

    def _exec(self, code: str, seconds: float = 0) -> Any:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._line.limit = ANSWER_S
                self._line.exec_raw_no_follow(code)
                self._line.limit = max(seconds, ANSWER_S)
                output, errors = self._line.follow(None)
        except (TransportError, OSError, struct.error) as error:  # struct.error: mpremote takes silence for a number
            raise NoBoard(f"the board at {self.port} stopped answering: {error}") from None
        if errors:
            raise BoardError(f"the board at {self.port}: {errors.decode(errors='replace').splitlines()[-1]}")
        text = output.decode(errors="replace").strip()
        try:
            return ast.literal_eval(text) if text else None
        except (SyntaxError, ValueError):
            raise BoardError(f"the board at {self.port} prints what is not asked: {text[:60]!r}") from None

    def sums(self, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """Size and CRC-32 of each file; None: it is not there."""
        self.run(_SUMS)
        return [self.run(f"print(_sum({path!r}))", 30) for path in paths]

    def read(self, path: str, told: Callable[[int, int], None] = lambda *_: None) -> bytes:
        """All of a file. Raises FileNotFoundError. told: bytes so far, bytes in all."""
        size = self.run(_OPEN.format(path))
        if size is None:
            raise FileNotFoundError(path)
        data = b""
        while len(data) < size:
            part = binascii.a2b_base64(self.run(f"print(binascii.b2a_base64(f.read({CHUNK_BYTES})))"))
            if not part:
                raise BoardError(f"{path} became shorter while it was read")
            data += part
            told(len(data), size)
        self.run("f.close()")
        return data

    def write(self, path: str, data: bytes, told: Callable[[int, int], None] = lambda *_: None) -> None:
        """Make a file, or take away what was in it. told: as in `read`."""
        self.run(f"import binascii\nf=open({path!r},'wb')")
        for start in range(0, len(data), CHUNK_BYTES):
            part = data[start : start + CHUNK_BYTES]
            self.run(f"f.write(binascii.a2b_base64({binascii.b2a_base64(part, newline=False)!r}))")
            told(start + len(part), len(data))
        self.run("f.close()")

    def start(self) -> str | None:
        """Start main.py; there is nothing to ask any more. How it has ended within START_S: empty if without an error;
        None: it runs, or a watchdog has to be stopped first, when the board is let go.
        """
        if self.watched:
            return None
        self._is_started = True
        with contextlib.suppress(OSError, TransportError):  # it may reset the board
            self._line.exit_raw_repl()
            self._line.read_until(1, PROMPT, timeout_overall=ANSWER_S)
            self._line.serial.write(b"\x04")
            said = self._line.read_until(1, PROMPT, timeout_overall=START_S)
            if said.endswith(PROMPT):
                return error_in(said.decode(errors="replace"))
        return None

    def close(self, *, restart: bool) -> None:
        """Let go of the port. restart: with a soft reset, after which the board runs its main.py; a watched one with a
        hard reset, which stops the watchdog.
        """
        restart = restart and not self._is_started
        with contextlib.suppress(OSError, TransportError):
            if restart and self.watched:
                self._line.exec_raw_no_follow("import machine\nmachine.reset()")
                self._line.serial.flush()
                restart = False
            elif self._line.in_raw_repl:
                self._line.exit_raw_repl()
            if restart:
                self._line.serial.write(b"\x04")
                self._line.serial.flush()
        with contextlib.suppress(OSError):
            self._line.close()


def attended(port: str, work: Callable[[Board], Result], *, reset: bool) -> Result:
    """What `work` gives for the board at a port, whose program is interrupted, and started again after it.

    If a watchdog resets the board meanwhile, `work` is done once more, and the watchdog fed. reset: as in `Board.look`.
    Raises NoBoard, BoardError, and what `work` raises.
    """
    board = None
    try:
        try:
            board = Board(port)
            return work(board.look(reset=reset))
        except BoardError as error:
            if board is None:
                raise
            board.close(restart=False)
            board = _returned(port, error)
            if not board.watched:
                raise
        return work(board.look(reset=reset))
    finally:
        if board is not None:
            board.close(restart=True)


def _returned(port: str, failure: BoardError) -> Board:
    """The board that may have been reset just now. Raises `failure` if it does not come back."""
    until = time.monotonic() + RETURN_S
    while True:
        try:
            return Board(port, again=True)
        except NoBoard:
            if time.monotonic() > until:
                raise failure from None
            time.sleep(0.1)


def error_in(said: str) -> str:
    """The last error that MicroPython shows there, as `main.py, line 3: SyntaxError: invalid syntax`; or nothing."""
    found = re.findall(r'  File "(.*)", line (\d+).*\n(?! )(.*)', said.replace("\r", ""))
    return "{}, line {}: {}".format(*found[-1]) if found else ""


def _why_not_opened(port: str, baud: int) -> str:
    try:
        serial.serial_for_url(port, baud, exclusive=True).close()
    except serial.SerialException as error:
        text = str(error)
        if "lock" in text or "busy" in text:
            return f"{port} is in use by another program: end it (a terminal, `ordack serve`, mpremote)"
        if "ermission" in text:
            return f"{port} may not be opened by this user: join the group that owns it (often dialout)"
        if "No such file" in text:
            return f"there is no port {port}; there are: {', '.join(_ports()) or 'none'}"
        return f"{port} cannot be opened: {text}"
    except (ValueError, OSError) as error:
        return f"{port} cannot be opened: {error}"
    return f"{port} could not be opened a moment ago: try again"


def write_limit(port: str, seconds: float) -> float | None:
    """How long a write to a port may wait; None over RFC 2217, where pyserial takes no limit but its own, 5 s."""
    return None if port.lower().startswith("rfc2217:") else seconds


def _ports() -> list[str]:
    from serial.tools import list_ports

    return sorted(found.device for found in list_ports.comports())


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def part_of(progress: Progress, what: str, start: int, total: int) -> Callable[[int, int], None]:
    """Tells of one file of several: `start` bytes of `total` were before it."""
    return lambda done, _: progress(what, start + done, total)
