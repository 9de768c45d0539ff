"""Real boards on serial ports: which there are (boards.toml), where they are now, who uses them, how to drive them.

A board is found by the serial number of its USB port, wherever that is plugged in. If two ports have this number, or
none has it by a deadline, the board is refused, and the message names the ports that were seen.
"""

import fcntl
import json
import os
import shlex
import subprocess
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import IO, Any, Final, Protocol

import serial
from ordack.boards.repl import Board as Repl
from ordack.boards.repl import BoardError
from serial.tools import list_ports

from hil.boards import POWER, RESET, ROOT, SENSOR, BoardMissing, Limits, Line, Log
from hil.emulated import MAIN, compiled

INVENTORY: Final = Path(os.environ.get("HIL_BOARDS", ROOT / "hil" / "boards.toml"))
PORT_DEADLINE_S: Final = 15.0
COMMAND_DEADLINE_S: Final = 30.0
REPL_DEADLINE_S: Final = 30.0
FILES: Final = ("main.py", "application.mpy", "config.json", "ledger.txt", "ledger.txt.new")

_READ_TIMEOUT_S: Final = 0.1
_INTERRUPT: Final = b"\r\x03\x02"  # and out of a raw REPL
_PROMPT: Final = b">>> "
_CLEAN = """
import os
def clean(path):
    try:
        for name in os.listdir(path):
            clean(path + "/" + name)
        os.rmdir(path)
    except OSError:
        try:
            os.remove(path)
        except OSError:
            pass
for path in {0!r}:
    clean(path)
"""


class Port(Protocol):
    """What is known of a serial port of this machine."""

    @property
    def device(self) -> str: ...

    @property
    def serial_number(self) -> str | None: ...


@dataclass(frozen=True)
class Entry:
    """One board of the file, as boards.toml explains it."""

    name: str
    usb: str
    on: str
    off: str
    reset: str | None = None
    line: str | None = None
    uart: int = 1
    baud: int = 115200
    rxbuf: int = 1024
    host: str | None = None
    listen: str | None = None
    lan: bool = False
    max_size: int = 512
    ahead: int = 6
    patience_s: float = 60.0
    deadline_s: float = 1800.0


def load(path: Path = INVENTORY) -> dict[str, Entry]:
    """The boards of the file, by name. Raises BoardMissing, with the board and the key, for what is not one."""
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BoardMissing(f"{path}: {error}") from None
    return {name: _entry(f"{path}: board {name}", name, table) for name, table in tables.items()}


def _entry(where: str, name: str, table: Any) -> Entry:
    if not isinstance(table, dict):
        raise BoardMissing(f"{where}: not a table")
    values = dict(table)
    power = values.pop("power", None)
    if not isinstance(power, dict) or set(power) != {"on", "off"}:
        raise BoardMissing(f"{where}: power = {{ on = COMMAND, off = COMMAND }} is missing; without it no power is cut")
    values.update(power)
    known = {field.name: field for field in fields(Entry) if field.name != "name"}
    for key, value in values.items():
        if key not in known:
            raise BoardMissing(f"{where}: unknown key {key!r}")
        default = known[key].default
        kind = str if default in (None, MISSING) else type(default)
        if not isinstance(value, kind) and not (kind is float and isinstance(value, int)):
            raise BoardMissing(f"{where}: {key} is no {kind.__name__}")
    if "usb" not in values:
        raise BoardMissing(f"{where}: usb, the serial number of its USB port, is missing")
    if ("line" in values) == ("host" in values):
        raise BoardMissing(f"{where}: either line (a UART) or host (a network) says how it reaches the queue manager")
    return Entry(name=name, **values)


def find_port(
    number: str, deadline_s: float = PORT_DEADLINE_S, ports: Callable[[], Iterable[Port]] = list_ports.comports
) -> str:
    """The device of the port with this USB serial number, as soon as it is there. Raises BoardMissing if it is not by
    the deadline, or if two have that number.
    """
    end = time.monotonic() + deadline_s
    while True:
        seen = list(ports())
        found = [port.device for port in seen if port.serial_number == number]
        if len(found) == 1:
            return found[0]
        if found:
            raise BoardMissing(f"{len(found)} ports have the serial number {number}: {', '.join(sorted(found))}")
        if time.monotonic() >= end:
            others = ", ".join(f"{port.device} ({port.serial_number or 'no number'})" for port in seen)
            raise BoardMissing(
                f"no port with the serial number {number} within {deadline_s:g} s; seen: {others or 'none'}"
            )
        time.sleep(0.02)


class Lock:
    """One user at a time for a board of this machine; the file says who has it. The system lets go when the process
    ends, however that happens. Raises BoardMissing if somebody has it.
    """

    def __init__(self, number: str, reason: str, folder: Path | None = None) -> None:
        path = (folder or Path(tempfile.gettempdir())) / f"ordack-board-{number}.lock"
        self._file: IO[str] = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            raise BoardMissing(f"board {number} is in use: {holder or 'nobody says by whom'}") from None
        self._file.truncate(0)
        self._file.write(f"{reason}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


class SerialBoard:
    """A real board: MicroPython's REPL on a serial port, which is also its log, and a switch for its power."""

    def __init__(
        self,
        entry: Entry,
        application: Path = SENSOR,
        ports: Callable[[], Iterable[Port]] = list_ports.comports,
        locks: Path | None = None,
    ) -> None:
        self.target = entry.name
        self.host = entry.host or ""
        self.listen = entry.listen or self.host
        self.limits = Limits(entry.max_size, entry.ahead, entry.patience_s, entry.deadline_s)
        self.ways: tuple[str, ...] = (POWER,) if entry.reset is None else (POWER, RESET)
        self.log = Log()
        self._entry = entry
        self._application = application
        self._ports = ports
        self._life = 0
        self._reader: threading.Thread | None = None
        self._is_on = False
        self._lock = Lock(entry.usb, f"a campaign on {entry.name}", locks)
        try:
            self.line = None if entry.line is None else Path(find_port(entry.line, ports=ports))
        except BoardMissing:
            self._lock.release()
            raise

    @property
    def alive(self) -> bool:
        return self._is_on

    def describe(self) -> str:
        link = "a network" if self._entry.line is None else f"UART {self._entry.uart}, {self._entry.baud} baud"
        return f"{self.target}: serial number {self._entry.usb}, over {link}"

    def start(self, settings: dict[str, object]) -> None:
        entry = self._entry
        link: dict[str, object] = {"lan": entry.lan}
        if entry.line is not None:
            link = {"uart": entry.uart, "baud": entry.baud, "rxbuf": entry.rxbuf}
        config = {**settings, **link}
        program = compiled(self._application, self.target)
        self._switch(entry.off)
        self._switch(entry.on)
        with self._repl() as repl:
            repl.run(_CLEAN.format([*FILES, str(settings["outbox"])]))
            repl.write("application.mpy", program)
            repl.write("config.json", json.dumps(config).encode())
            repl.write("main.py", MAIN.encode())
            repl.close(restart=False)
        self._switch(entry.off)
        self.power_up()

    def kill(self) -> None:
        self._switch(self._entry.off)
        self._is_on = False
        if self._reader is not None:
            self._reader.join()
            self._reader = None

    def power_up(self) -> None:
        self._life += 1
        self._switch(self._entry.on)
        self._is_on = True
        self._reader = threading.Thread(target=self._read, args=(self._life,), daemon=True)
        self._reader.start()

    def reset(self) -> None:
        if self._entry.reset is None:
            raise OSError(f"board {self.target} has no reset command")
        self._switch(self._entry.reset)

    def erase(self, folder: str, to: Path) -> None:
        raise OSError(f"{folder} of board {self.target} cannot be erased into {to} by this rig")

    def put(self, folder: str, files: Path) -> None:
        raise OSError(f"{files} cannot be copied into {folder} of board {self.target} by this rig")

    def reflash(self) -> None:
        raise OSError(f"board {self.target} cannot be flashed by this rig")

    def read_file(self, name: str) -> bytes:
        self._switch(self._entry.on)
        try:
            with self._repl() as repl:
                try:
                    return repl.read(name)
                except FileNotFoundError:
                    return b""
                finally:
                    repl.close(restart=False)
        finally:
            self._switch(self._entry.off)

    def close(self) -> None:
        try:
            self.kill()
        finally:
            self._lock.release()

    def _repl(self) -> Repl:
        """The board's REPL, its application interrupted. What a board that has just been switched on does not hear is
        said again. Raises OSError.
        """
        end = time.monotonic() + REPL_DEADLINE_S
        while True:
            try:
                device = find_port(self._entry.usb, ports=self._ports)
                # Open until the other has it, so that a port that counts its users does not see the last one go.
                with serial.Serial(device, timeout=_READ_TIMEOUT_S, write_timeout=_READ_TIMEOUT_S) as port:
                    self._interrupt(port, end)
                    return Repl(device).look(reset=True)
            except (BoardError, BoardMissing, OSError) as error:  # OSError: of pyserial too
                if time.monotonic() >= end:
                    raise OSError(str(error)) from None
                self.log.append(Line(self._life, str(error)))

    def _interrupt(self, port: serial.Serial, end: float) -> None:
        """Stop what runs, and see the prompt: who asks for the raw REPL while a program prints may wait for ever.
        Raises OSError.
        """
        seen = b""
        while _PROMPT not in seen:
            if time.monotonic() >= end:
                raise OSError(f"board {self.target} shows no prompt; it says {seen[-60:]!r}")
            port.write(_INTERRUPT)
            seen = seen[-len(_PROMPT) :] + port.read(1024)

    def _switch(self, command: str) -> None:
        """Run a command of the file. Raises OSError if it fails."""
        try:
            subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=COMMAND_DEADLINE_S)
        except subprocess.SubprocessError as error:
            said = (
                (error.stderr or b"").decode(errors="replace").strip()
                if isinstance(error, subprocess.CalledProcessError)
                else ""
            )
            raise OSError(f"board {self.target}: {error} {said}".strip()) from None

    def _read(self, life: int) -> None:
        """Keep what the board says while it is on, over resets that take its port away for a while."""
        while self._is_on:
            try:
                device = find_port(self._entry.usb, ports=self._ports)
                with serial.Serial(device, timeout=_READ_TIMEOUT_S) as port:
                    self._keep(port, life)
            except BoardMissing as error:
                self.log.append(Line(life, str(error)))
                self._is_on = False
            except OSError:  # of pyserial too: the port has gone
                time.sleep(_READ_TIMEOUT_S)

    def _keep(self, port: serial.Serial, life: int) -> None:
        """Lines into the log, until the board is off. Raises OSError when the port goes."""
        line = b""
        try:
            while self._is_on:
                line += port.read(max(1, port.in_waiting))
                *whole, line = line.split(b"\n")
                for text in whole:
                    self.log.append(Line(life, text.decode(errors="replace").rstrip("\r")))
        finally:
            if line:
                self.log.append(Line(life, line.decode(errors="replace")))
