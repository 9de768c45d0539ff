"""Real boards for campaigns: a microcontroller at a serial port, whose power a labgrid driver switches."""

import contextlib
import copy
import functools
import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyudev
from labgrid.driver import Driver, ManualPowerDriver
from labgrid.resource import NetworkSerialPort, Resource
from labgrid.resource.udev import USBResource
from ordack.boards.deploy import MPY_VERSION
from ordack.boards.deploy import deploy as deploy_modules
from ordack.boards.outbox import FILES as FILES_OF
from ordack.boards.repl import CORE, BoardError
from ordack.boards.repl import Board as Repl

from firmware.ports import modules
from firmware.ports.natmod.package import compile_all
from hil import sensor
from hil.boards import POWER, RESET, Board, BoardMissing, Limits, Line, Log, RigFailed
from hil.emulated import MAIN, MPY_CROSS, compiled

PORT_DEADLINE_S: Final = 15.0
REPL_DEADLINE_S: Final = 30.0
SWITCH_DEADLINE_S: Final = 60.0
AGAIN_S: Final = 0.2
_ENDED_WITHIN_S: Final = 5.0
FILES: Final = (
    *("main.py", "application.mpy", "config.json", sensor.BASE, sensor.STARTS, sensor.LEDGER, f"{sensor.LEDGER}.new"),
)

_CLEAN = """
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
# Serial ports: found by their description


def identity(port: Resource) -> str:
    """Identifies this port, wherever it is plugged in."""
    if isinstance(port, USBResource):
        match = {key: value for key, value in port.match.items() if not key.endswith("SUBSYSTEM")}
        return ", ".join(f"{key} {match[key]}" for key in sorted(match))
    return f"{port.host}:{port.port}" if isinstance(port, NetworkSerialPort) else str(port.port)


def devices(port: USBResource) -> list[str]:
    """Every local serial port that matches this resource, not only the first one."""
    probe, found = copy.copy(port), []
    for device in pyudev.Context().list_devices(subsystem="tty"):
        probe.device, probe.avail = None, False
        if probe.try_match(device):
            found.append(device.device_node)
    return found


def url(port: Resource, deadline_s: float = PORT_DEADLINE_S, stop: threading.Event | None = None) -> str:
    """The pyserial URL of a port, once the port exists; empty if `stop` is set first. Raises BoardMissing after the
    deadline, or if two local ports match the description."""
    if isinstance(port, NetworkSerialPort):
        kind, settings = ("rfc2217", "?ign_set_control") if port.protocol == "rfc2217" else ("socket", "")
        return f"{kind}://{port.host}:{port.port}{settings}"
    end = time.monotonic() + deadline_s
    while True:
        port.poll()
        if port.avail and port.port and Path(port.port).exists():
            break
        if stop is not None and stop.is_set():
            return ""
        if time.monotonic() >= end:
            raise BoardMissing(f"board {port.target.name}: no port {identity(port)} within {deadline_s:g} s")
        time.sleep(0.02)
    if isinstance(port, USBResource) and len(found := devices(port)) > 1:
        shown = ", ".join(sorted(found))
        raise BoardMissing(f"board {port.target.name}: {len(found)} ports have {identity(port)}: {shown}")
    return str(port.port)


@functools.cache
def compiled_modules() -> "tempfile.TemporaryDirectory[str]":
    """The modules of this checkout, compiled now for boards, with the native modules of the last build."""
    folder = tempfile.TemporaryDirectory(prefix="modules-")
    compile_all(MPY_CROSS, Path(folder.name))
    return folder


def digest(folder: Path) -> str:
    """SHA-256 of the files' names and contents, in hexadecimal."""
    made = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        made.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return made.hexdigest()


def failed(board: str, error: Exception) -> RigFailed:
    """An error with the text of a labgrid driver and the output of the command that it ran."""
    said = getattr(error, "output", b"") or b""
    text = f"{getattr(error, 'msg', error)} {said.decode(errors='replace')}".strip()
    return RigFailed(f"board {board}: {text.removeprefix(f'board {board}: ')}")


def bounded(board: str, complaint: str, what: Callable[[], None], seconds: float) -> None:
    """Run a labgrid driver's action in a thread; the deadline kills the thread's child processes and their descendants.
    Raises RigFailed."""
    errors: list[Exception] = []

    def work() -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001 - each kind of driver has its own errors
            errors.append(error)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(seconds)
    if working.is_alive():
        end = time.monotonic() + _ENDED_WITHIN_S
        while working.is_alive() and time.monotonic() < end:
            _kill_children(Path(f"/proc/self/task/{working.native_id}"))
            working.join(AGAIN_S)
        raise RigFailed(f"board {board}: {complaint} {seconds:g} s")
    for error in errors:
        raise failed(board, error) from None


def _kill_children(thread: Path) -> None:
    """Kill the children of this thread and their descendants. Stopping them first prevents new processes."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        for pid in (thread / "children").read_text().split():
            os.kill(int(pid), signal.SIGSTOP)
            for other in Path(f"/proc/{pid}/task").iterdir():
                _kill_children(other)
            os.kill(int(pid), signal.SIGKILL)


class Switch:
    """A board's power switch, any of labgrid's. Every failure raises OSError, also a missing answer: many labgrid
    drivers wait forever."""

    def __init__(self, power: Any, off_s: float, board: str) -> None:
        self._power = power
        self._off_s = off_s
        self._board = board
        self._off_at = 0.0
        self.times = 0

    def on(self) -> None:
        """Switch on after the minimum off-time; `times` counts the calls."""
        self.times += 1
        time.sleep(max(0.0, self._off_at + self._off_s - time.monotonic()))
        self.do("power switch", self._power.on)

    def off(self) -> None:
        self.do("power switch", self._power.off)
        self._off_at = time.monotonic()

    def do(self, name: str, what: Callable[[], None]) -> None:
        """Run a labgrid action with a deadline. Raises OSError."""
        bounded(self._board, f"its {name} has not answered for", what, SWITCH_DEADLINE_S)


class LabBoard(Board):
    """A real board at a serial port. Its switch may take seconds, so programs with an event loop call from a
    thread."""

    def __init__(self, node: Any, application: Path) -> None:
        self.target = node.target.name
        if isinstance(node.power, ManualPowerDriver) and not (sys.stdin and sys.stdin.isatty()):
            raise BoardMissing(
                f"board {self.target} is switched by hand (ManualPowerDriver), and nobody is at a terminal here to be "
                "asked: start this at one, pytest with -s, or name the driver of a switch in the file"
            )
        self.ways = (POWER,) if node.button is None else (POWER, RESET)
        self.host = node.host or ""
        self.listen = node.listen or self.host
        self.limits = Limits(node.max_size, node.ahead, node.patience_s, node.deadline_s)
        self.log = Log()
        self._node = node
        self._application = application
        self._stop = threading.Event()
        self._lost = ""
        self._reader: threading.Thread | None = None
        self._repl: Repl | None = None
        self._is_frozen = False
        self.switch = Switch(node.power, node.off_s, self.target)
        self._activate(node.power, node.button)
        self.line = self._found_line()

    def _activate(self, *drivers: Driver | None) -> None:
        for driver in filter(None, drivers):
            activate = functools.partial(self._node.target.activate, driver)
            try:
                bounded(self.target, f"{type(driver).__name__} does not begin within", activate, SWITCH_DEADLINE_S)
            except OSError as error:  # a requirement of the driver is missing
                raise BoardMissing(str(error)) from None

    def _found_line(self) -> Path | None:
        """The path of its serial link; None: the board has a network. Raises BoardMissing, RigFailed."""
        if self._node.line is None:
            return None
        port = self._node.target.get_resource("SerialPort", name=self._node.line, wait_avail=False)
        self.find_line = lambda: Path(url(port, 0.0))
        try:
            return self.find_line()
        except BoardMissing:  # the port may exist only while the board is on
            try:
                self.switch.on()
                return Path(url(port))
            finally:
                with contextlib.suppress(OSError):  # the next user of the switch gets the error
                    self.switch.off()

    @property
    def life(self) -> int:
        return self.switch.times

    @property
    def alive(self) -> bool:
        """Is the board on? Raises OSError: its port has gone."""
        is_alive = self._reader is not None and self._reader.is_alive()
        if self._lost and not is_alive:
            raise OSError(self._lost)
        return is_alive

    def describe(self) -> str:
        link = "a network" if self.line is None else f"UART {self._node.uart}, {self._node.baud} baud"
        found = ", with the modules of its firmware" if self._is_frozen else ""
        return f"{self.target}: {self._node.identity}, over {link}{found}"

    @contextlib.contextmanager
    def asked(self) -> Iterator[Repl]:
        """The REPL of a board that is off before and after, or the REPL in use already. Raises OSError."""
        if self._repl is not None:
            yield self._repl
            return
        self.switch.on()
        try:
            with self._node.micropython.repl(self.log, self.life) as self._repl:
                try:
                    yield self._repl
                finally:
                    self._repl.close(restart=False)
        except BoardError as error:
            raise OSError(f"board {self.target}: {error}") from None
        finally:
            self._repl = None
            self.switch.off()

    def attended(self) -> contextlib.AbstractContextManager[object]:
        return self.asked()

    def deploy(self, settings: dict[str, object]) -> None:
        node = self._node
        link: dict[str, object] = {"lan": node.lan}
        if node.line is not None:
            link = {"uart": node.uart, "baud": node.baud, "rxbuf": node.rxbuf}
        program = {
            "application.mpy": compiled(self._application, self.target),
            "config.json": json.dumps({**settings, **link}).encode(),
            "main.py": MAIN.encode(),
        }
        self.switch.off()
        with self.asked() as repl:
            self._refuse_what_others_have(repl)
            repl.run(_CLEAN.format([*FILES, str(settings["outbox"])]))
            self._deploy_modules(repl)
            for name, data in program.items():
                repl.write(name, data)

    def _deploy_modules(self, repl: Repl) -> None:
        """Copy the modules under test, unless the firmware has frozen modules. Raises OSError, BoardError."""
        _, _, self._is_frozen = repl.run(CORE)
        if self._is_frozen:
            return
        loads = repl.info.mpy & 0xFF == MPY_VERSION
        folder = Path(compiled_modules().name) if loads else modules.write()
        done = deploy_modules(repl, folder / "package.json")
        if done.problem:
            raise OSError(f"board {self.target}: a node cannot start there: {done.problem}")
        self.modules = digest(folder)

    def erase(self, folder: str, to: Path) -> None:
        with self.asked() as repl:
            found = repl.run(FILES_OF.format(folder))
            if found is None:
                raise FileNotFoundError(f"board {self.target}: {folder} is not there")
            to.mkdir()
            for name, _ in found:
                (to / name).write_bytes(repl.read(f"{folder}/{name}"))
            repl.run(_CLEAN.format([folder]))

    def put(self, folder: str, files: Path) -> None:
        with self.asked() as repl:
            repl.run(f"import os\nos.mkdir({folder!r})")
            for file in files.iterdir():
                repl.write(f"{folder}/{file.name}", file.read_bytes())

    def _refuse_what_others_have(self, repl: Repl) -> None:
        try:
            lines = repl.read("main.py").decode(errors="replace").split("\n")
        except FileNotFoundError:
            return
        if lines != MAIN.split("\n") and not all(line.startswith("#") or not line.strip() for line in lines):
            raise OSError(
                f"board {self.target} has a main.py that is not the rig's: save what it is to keep, its outbox too, "
                "and remove main.py; then the board belongs to the rig"
            )

    def kill(self) -> None:
        self.switch.off()
        self._silence()

    def _silence(self) -> None:
        """Stop reading, which frees the port."""
        self._stop.set()
        if self._reader is not None:
            self._reader.join()

    def power_up(self) -> None:
        self._stop.clear()
        self._lost = ""
        self.switch.on()
        self._reader = threading.Thread(target=self._read, args=(self.life,), daemon=True)
        self._reader.start()

    def _read(self, life: int) -> None:
        """Log the board's output while it is on."""
        try:
            for text in self._node.micropython.lines(self._stop):
                self.log.append(Line(life, text))
        except BoardMissing as error:
            self._lost = str(error)
            self.log.append(Line(life, self._lost))

    def reset(self) -> None:
        self.switch.do("reset button", self._node.button.reset)

    def read_file(self, name: str) -> bytes:
        with self.asked() as repl:
            try:
                content: bytes = repl.read(name)
                return content
            except FileNotFoundError:
                return b""

    def close(self) -> None:
        try:
            self.kill()
        finally:
            self._node.target.cleanup()
