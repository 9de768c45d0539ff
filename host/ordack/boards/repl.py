"""A board's raw REPL: interrupts its program, runs code, reads and writes files, restarts the program.

Interrupting a program also stops it from feeding a watchdog, and most watchdogs cannot be stopped. After a watchdog
reset, `attended` repeats the work and feeds the watchdog.
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

MINIMUM = (1, 25)  # MicroPython version
BAUD = 115200  # of a serial line; USB ports ignore it
ENTER_S = 10  # without an answer by then, the port has no MicroPython
ANSWER_S = 20  # without an answer by then, the board was reset or is dead
BOOT_S = 20  # boot.py may join a network
RETURN_S = 10  # a USB port is missing while its board starts
START_S = 5  # a program still running by then has started
QUIET_S = 0.3
CHUNK_BYTES = 1024
PROMPT = b"\n>>> "

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in total
Result = TypeVar("Result")


class BoardError(Exception):
    """The board cannot do the work. The text gives the next step."""


class NoBoard(BoardError):
    """No board to talk to: no port, a port in use, no answer, no MicroPython."""


class Info(NamedTuple):
    """A board's own description. heap_free: bytes, after a collection. mpy: sys.implementation._mpy, or 0."""

    version: tuple[int, ...]
    machine: str
    mpy: int
    heap_free: int
    heap: int
    path: list[str]
    folder: str

    @property
    def arch(self) -> str:
        """The architecture of native modules that the board loads; empty if none."""
        return core.NATIVE[self.mpy >> 10 & 15]

    @property
    def lib(self) -> str:
        """The folder for modules: mip's target folder, else the board's start folder."""
        found = [path for path in self.path if path.endswith("/lib") and not path.startswith("/rom")]
        return found[0] if found else self.folder.rstrip("/")

    def root(self, name: str) -> str:
        """The path of a file in the board's start folder."""
        return f"{self.folder.rstrip('/')}/{name}"


_WHO = "import sys\ni=sys.implementation\nprint((i.name,tuple(i.version)[:3]))"
_INFO = """
import gc, os, sys
gc.collect()
i = sys.implementation
m = getattr(i, '_machine', sys.platform)
print((m, getattr(i, '_mpy', 0), gc.mem_free(), gc.mem_alloc(), list(sys.path), os.getcwd()))
"""
# Every command begins with _feed(). A reset removes the definition.
_UNWATCHED = "_feed = int"
# A second WDT overrides the first with a longer timeout: 30 s is about an STM32's limit, 8.388 s is an RP2's.
_WATCHED = """
import machine
try:
    _feed = machine.WDT(timeout=30000).feed
except ValueError:
    _feed = machine.WDT(timeout=8388).feed
"""
# Was the board reset since _feed was defined, other than by its power?
_BITTEN = """
try:
    import machine
    print('_feed' not in globals() and hasattr(machine, 'WDT') and machine.reset_cause() != machine.PWRON_RESET)
except (ImportError, AttributeError):
    print(False)
"""
# Size and CRC of files; None for a missing file.
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
# The core that a node would use, and whether its modules are frozen into the firmware.
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
    """mpremote's transport with a deadline for each wait: mpremote checks the time only while the board is silent, so a
    board that prints endlessly would block the command forever."""

    limit = float(ANSWER_S)  # s

    def read_until(self, _: int, ending: bytes, *__: Any, timeout_overall: Any = None, **___: Any) -> bytes:
        """The board's output up to `ending`, or up to the deadline."""
        until = time.monotonic() + (timeout_overall or self.limit)
        data = b""
        while not data.endswith(ending) and time.monotonic() < until:
            if self.is_pty:  # select notices that the other end has gone; in_waiting does not
                if select.select([self.serial], [], [], max(0.0, until - time.monotonic()))[0]:
                    data += self.serial.read(1)
            elif self.serial.in_waiting:
                data += self.serial.read(1)
            else:
                time.sleep(0.01)
        return data


class Board:
    """A board's raw REPL; opening it interrupts the program. Call `look` first. Raises NoBoard, BoardError.

    again: the previous attempt was cut off. watched: a watchdog did that; each command feeds it now.
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
        """Read the board's version and `info`. reset: first do a soft reset, which frees the heap. Closes the port on
        errors."""
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(restart=True)

    def _enter(self, *, reset: bool) -> None:
        said = io.StringIO()
        self._line.serial.write_timeout = write_limit(self.port, ENTER_S)
        until = time.monotonic() + (BOOT_S if reset else ENTER_S)
        patience = BOOT_S if reset else ENTER_S / 8
        while True:  # a program may catch the first interrupt
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
            raise NoBoard(f"no MicroPython answers at {self.port}, but {data[-60:]!r}: name another port")
        raise NoBoard(
            f"the board at {self.port} does not answer: check the port and the firmware. A program that "
            "catches Ctrl-C, as a bare `except:` does, blocks the board: reset the board and try again"
        )

    def _calm(self) -> None:
        """Interrupt again, and discard the output of the previous attempt: a slow board may obey only now."""
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
        """Soft reset: unloads all modules and frees the heap; main.py does not run."""
        self._enter(reset=True)
        self._feed()

    def _feed(self) -> None:
        self._exec(_WATCHED if self.watched else _UNWATCHED)

    def run(self, code: str, seconds: float = 0) -> Any:
        """Run code on the board; returns its output as a Python value, None without output. seconds: its time limit."""
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
            raise BoardError(
                f"the board at {self.port} gives an unexpected answer: {text[:60]!r}; reset the board and try again"
            ) from None

    def sums(self, paths: Sequence[str]) -> list[tuple[int, int] | None]:
        """Size and CRC-32 of each file; None for a missing file."""
        self.run(_SUMS)
        return [self.run(f"print(_sum({path!r}))", 30) for path in paths]

    def read(self, path: str, told: Callable[[int, int], None] = lambda *_: None) -> bytes:
        """The content of a file. Raises FileNotFoundError. told: called with bytes so far, bytes in total."""
        size = self.run(_OPEN.format(path))
        if size is None:
            raise FileNotFoundError(path)
        data = b""
        while len(data) < size:
            part = binascii.a2b_base64(self.run(f"print(binascii.b2a_base64(f.read({CHUNK_BYTES})))"))
            if not part:
                raise BoardError(f"{path} became shorter during the copy: try again")
            data += part
            told(len(data), size)
        self.run("f.close()")
        return data

    def write(self, path: str, data: bytes, told: Callable[[int, int], None] = lambda *_: None) -> None:
        """Write a file, replacing any content. told: as in `read`."""
        self.run(f"import binascii\nf=open({path!r},'wb')")
        for start in range(0, len(data), CHUNK_BYTES):
            part = data[start : start + CHUNK_BYTES]
            self.run(f"f.write(binascii.a2b_base64({binascii.b2a_base64(part, newline=False)!r}))")
            told(start + len(part), len(data))
        self.run("f.close()")

    def start(self) -> str | None:
        """Start main.py; further commands are impossible. Returns the error of a program that ends within START_S,
        empty without an error; None: it runs, or `close` must stop a watchdog first."""
        if self.watched:
            return None
        self._is_started = True
        with contextlib.suppress(OSError, TransportError):  # the program may reset the board
            self._line.exit_raw_repl()
            self._line.read_until(1, PROMPT, timeout_overall=ANSWER_S)
            self._line.serial.write(b"\x04")
            said = self._line.read_until(1, PROMPT, timeout_overall=START_S)
            if said.endswith(PROMPT):
                return error_in(said.decode(errors="replace"))
        return None

    def close(self, *, restart: bool) -> None:
        """Release the port. restart: do a soft reset, after which the board runs main.py; a watched board gets a hard
        reset, which stops the watchdog."""
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
    """The result of `work` for the board at a port. Interrupts the board's program, and restarts it afterwards.

    If a watchdog resets the board meanwhile, `work` runs once more and the watchdog is fed. reset: as in `Board.look`.
    Raises NoBoard, BoardError, and the errors of `work`.
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
    """The board after a possible reset. Raises `failure` if it does not return."""
    until = time.monotonic() + RETURN_S
    while True:
        try:
            return Board(port, again=True)
        except NoBoard:
            if time.monotonic() > until:
                raise failure from None
            time.sleep(0.1)


def error_in(said: str) -> str:
    """The last error in MicroPython's output, as `main.py, line 3: SyntaxError: invalid syntax`; or empty."""
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
            return f"this user may not open {port}: join the group that owns the port (often dialout)"
        if "No such file" in text:
            return f"there is no port {port}; there are: {', '.join(_ports()) or 'none'}"
        return f"{port} cannot be opened: {text}"
    except (ValueError, OSError) as error:
        return f"{port} cannot be opened: {error}"
    return f"{port} could not be opened a moment ago: try again"


def write_limit(port: str, seconds: float) -> float | None:
    """The write timeout of a port; None over RFC 2217, where pyserial allows only its own 5 s."""
    return None if port.lower().startswith("rfc2217:") else seconds


def _ports() -> list[str]:
    from serial.tools import list_ports

    return sorted(found.device for found in list_ports.comports())


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def part_of(progress: Progress, what: str, start: int, total: int) -> Callable[[int, int], None]:
    """Report progress of one of several files: `start` bytes of `total` precede it."""
    return lambda done, _: progress(what, start + done, total)
