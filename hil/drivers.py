"""What labgrid lacks for boards that run a node: MicroPython's REPL, the node on it, emulated machines, and the way
from off to running. A file of boards has `imports: [hil.drivers]`; hil/README.md shows one.
"""

import abc
import contextlib
import copy
import enum
import fcntl
import functools
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attr
import pyudev
import serial
from attr.validators import ge, in_, instance_of, optional
from labgrid.driver import Driver, ManualPowerDriver
from labgrid.factory import target_factory
from labgrid.protocol import BootstrapProtocol, PowerProtocol, ResetProtocol
from labgrid.resource import NetworkSerialPort, Resource
from labgrid.resource.udev import USBResource
from labgrid.strategy import Strategy, StrategyError
from ordack.boards.claim import Claim, names_of
from ordack.boards.deploy import MPY_VERSION
from ordack.boards.deploy import deploy as deploy_modules
from ordack.boards.outbox import FILES as FILES_OF
from ordack.boards.repl import CORE, BoardError, NoBoard, Silent, attended, write_limit
from ordack.boards.repl import Board as Repl

from firmware.ports import modules
from firmware.ports.natmod.package import compile_all
from hil import kinds, sensor
from hil.boards import POWER, RESET, SENSOR, Board, BoardMissing, Limits, Line, Log, RigFailed
from hil.emulated import MAIN, MPY_CROSS, compiled

PORT_DEADLINE_S: Final = 15.0
REPL_DEADLINE_S: Final = 30.0
SWITCH_DEADLINE_S: Final = 60.0
LOAD_DEADLINE_S: Final = 900.0  # 4 MiB at 115,200 baud take 6 minutes
WATCHDOG_DEADLINE_S: Final = 60.0
FILES: Final = (
    *("main.py", "application.mpy", "config.json", sensor.BASE, sensor.STARTS),
    *(f"{ledger}{end}" for ledger in (sensor.LEDGER, sensor.COMMANDS) for end in ("", ".new")),
)

_LOADED: Final[dict[str, str]] = {}
"""What this process has loaded into a board: the hash of its firmware."""
_READ_TIMEOUT_S: Final = 0.1
_AGAIN_S: Final = 0.2
_ENDED_WITHIN_S: Final = 5.0
_INTERRUPT: Final = b"\r\x03\x02"  # and out of a raw REPL
_PROMPT: Final = b">>> "
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
# All blocks until the first that is erased; 0 is where the machines in QEMU have theirs. An STM32 has files among them.
_FIRMWARE = """
import binascii, hashlib, sys
def firmware():
    block = bytearray(4096)
    made = hashlib.sha256()
    if sys.platform == "esp32":
        import esp32
        read = esp32.Partition(esp32.Partition.RUNNING).readblocks
    else:
        import uctypes
        start = {"rp2": 0x10000000, "mps2": 0}[sys.platform]
        def read(number, block):
            block[:] = uctypes.bytearray_at(start + number * len(block), len(block))
    number = 0
    while True:
        read(number, block)
        if block == bytes(block[:1]) * len(block):
            return binascii.hexlify(made.digest()).decode()
        made.update(block)
        number += 1
try:
    print(repr(firmware()))
except (ImportError, KeyError, MemoryError, OSError):
    print(repr(""))
"""


def number(default: float) -> Any:
    """An attribute that is a number, 0 or more; whole numbers are taken, too."""
    return attr.ib(default=default, validator=[instance_of((int, float)), ge(0)])


def whole(default: int, least: int = 1) -> Any:
    """An attribute that is a whole number."""
    return attr.ib(default=default, validator=[instance_of(int), ge(least)])


def identity(port: Resource) -> str:
    """What tells this port from others, wherever it is plugged in."""
    if isinstance(port, USBResource):
        match = {key: value for key, value in port.match.items() if not key.endswith("SUBSYSTEM")}
        return ", ".join(f"{key} {match[key]}" for key in sorted(match))
    return f"{port.host}:{port.port}" if isinstance(port, NetworkSerialPort) else str(port.port)


def aliases(port: Resource) -> list[str]:
    """By what else a file of boards may describe a USB port that is there."""
    found = getattr(port, "device", None)
    properties = found.properties if found is not None else {}
    return [f"{key} {properties[key]}" for key in ("ID_SERIAL_SHORT", "ID_PATH") if properties.get(key)]


def claimed(claim: Claim, names: Iterable[str]) -> None:
    """Claim these names, too. Raises BoardMissing."""
    try:
        claim.add(names)
    except NoBoard as error:
        raise BoardMissing(str(error)) from None


def devices(port: USBResource) -> list[str]:
    """Every serial port of this machine that fits the match of this resource, not only the first one."""
    probe, found = copy.copy(port), []
    for device in pyudev.Context().list_devices(subsystem="tty"):
        probe.device, probe.avail = None, False
        if probe.try_match(device):
            found.append(device.device_node)
    return found


def url(port: Resource, deadline_s: float = PORT_DEADLINE_S, stop: threading.Event | None = None) -> str:
    """Where pyserial finds a port, as soon as it is there; empty if it is not there when `stop` is set. Raises
    BoardMissing if it is not by the deadline, or if two ports of this machine fit what describes it.
    """
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


@target_factory.reg_driver
@attr.s(eq=False)
class MicroPythonDriver(Driver):  # type: ignore[misc]
    """MicroPython's REPL at a serial port, local or in a network, which is also where the board says what it does. It
    is used without being activated: the port comes and goes with the power.
    """

    bindings: ClassVar[dict[str, Any]] = {"port": {"SerialPort", "NetworkSerialPort"}}
    claim: Claim | None = None

    def repl(self, log: Log, life: int) -> Repl:
        """The board's raw REPL, its application interrupted. What a board that has just been switched on does not hear
        is said again. Raises OSError.
        """
        end = time.monotonic() + REPL_DEADLINE_S
        while True:
            try:
                where = url(self.port)
                # Open until the other has it, so that a port that counts its users does not see the last one go; but
                # the other opens it exclusively. A port of a network has one user.
                with self._opened(where, _READ_TIMEOUT_S) as port:
                    self._interrupt(port, end, log, life)
                    if isinstance(self.port, NetworkSerialPort):
                        port.close()
                    else:
                        fcntl.flock(port.fileno(), fcntl.LOCK_UN)
                    return Repl(where, self.port.speed).look(reset=True)
            except (BoardError, BoardMissing, OSError) as error:  # OSError: of pyserial too
                if time.monotonic() >= end:
                    raise OSError(str(error)) from None
                log.append(Line(life, str(error)))

    def _opened(self, where: str, write_s: float) -> Any:
        """The port, for nobody else. Raises BoardMissing: somebody has this board by another name; OSError."""
        if self.claim is not None:
            claimed(self.claim, [*names_of(where), *aliases(self.port)])
        limit, alone = write_limit(where, write_s), None if "://" in where else True
        return serial.serial_for_url(
            where, self.port.speed, timeout=_READ_TIMEOUT_S, write_timeout=limit, exclusive=alone
        )

    def _interrupt(self, port: Any, end: float, log: Log, life: int) -> None:
        """Stop what runs, and see the prompt: who asks for the raw REPL while a program prints may wait for ever. What
        that has said is in the log. Raises OSError.
        """
        line = said = b""
        while _PROMPT not in line:
            if time.monotonic() >= end:
                raise OSError(f"board {self.target.name} shows no prompt; it says {said!r}")
            port.write(_INTERRUPT)
            new = port.read(1024)
            said = (said + new)[-60:]
            *lines, line = (line + new).split(b"\n")
            for text in lines:
                log.append(Line(life, text.decode(errors="replace").rstrip("\r")))

    def enter_bootloader(self) -> None:
        """The board leaves MicroPython for what its tools talk to. Raises OSError."""
        try:
            with self.repl(Log(), 0) as repl, contextlib.suppress(Silent):  # it has left
                repl.run("import machine\nmachine.bootloader()")
        except BoardError as error:
            raise OSError(f"board {self.target.name}: {error}") from None

    def answers(self, seconds: float) -> bool:
        """Whether the board says anything within so many seconds when it is asked to."""
        end = time.monotonic() + seconds
        try:
            with self._opened(url(self.port, 0.0), seconds) as port:
                while time.monotonic() < end:
                    port.write(_INTERRUPT)
                    if port.read(1):
                        return True
        except (BoardMissing, OSError):  # OSError: of pyserial too: there is no port
            pass
        return False

    def lines(self, stop: threading.Event) -> Iterator[str]:
        """What the board says until `stop`, over resets that take its port away for a while. Raises BoardMissing when
        the port does not come back.
        """
        while not stop.is_set():
            line = b""
            try:
                with self._opened(url(self.port, stop=stop) or "loop://", _READ_TIMEOUT_S) as port:
                    while not stop.is_set():
                        line += port.read(max(1, port.in_waiting))
                        *whole, line = line.split(b"\n")
                        for text in whole:
                            yield text.decode(errors="replace").rstrip("\r")
            except OSError:  # of pyserial too: the port has gone
                stop.wait(_READ_TIMEOUT_S)
            if line:
                yield line.decode(errors="replace")


@target_factory.reg_driver
@attr.s(eq=False)
class ExternalLoaderDriver(Driver, BootstrapProtocol):  # type: ignore[misc]
    """Loads a firmware with a command in which {image} is its file, as ExternalPowerDriver switches power. It is tried
    again for `within_s` seconds: a bootloader takes its time to appear. `bootloader`: MicroPython is told to enter that
    first, for tools that cannot do it.
    """

    cmd: str = attr.ib(validator=instance_of(str))
    bootloader: bool = attr.ib(default=False, validator=instance_of(bool))
    within_s: float = number(30.0)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if "{image}" not in self.cmd:
            raise ValueError(f"cmd: {self.cmd!r} does not say where {{image}} stands")

    def load(self, filename: str) -> None:
        """Raises OSError, with what the tool said last."""
        if not Path(filename).is_file():
            raise OSError(f"board {self.target.name}: there is no firmware {filename}")
        if self.bootloader:
            self.target.get_driver(MicroPythonDriver, activate=False).enter_bootloader()
        command = [word.replace("{image}", filename) for word in shlex.split(self.cmd)]
        end = time.monotonic() + self.within_s
        while True:
            try:
                done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            except FileNotFoundError:
                raise OSError(f"board {self.target.name}: {command[0]} is not installed") from None
            if done.returncode == 0:
                return
            if time.monotonic() >= end or done.returncode < 0:  # it was killed
                said = f"{done.stdout}{done.stderr}".strip()
                raise OSError(f"board {self.target.name}: {shlex.join(command)} ended with {done.returncode}: {said}")
            time.sleep(_AGAIN_S)


class NodeProtocol(abc.ABC):
    """What a driver of a board with a node can do."""

    @property
    @abc.abstractmethod
    def identity(self) -> str:
        """What tells it from others, wherever it is plugged in; empty if it needs no hardware."""

    @abc.abstractmethod
    def open(self, folder: Path, application: Path) -> Board:
        """The board, for one campaign; what needs no hardware has its flash in `folder`. Raises BoardMissing."""


@target_factory.reg_driver
@attr.s(eq=False)
class NodeDriver(Driver, NodeProtocol):  # type: ignore[misc]
    """A real board whose application is a node: what switches it, how it reaches the queue manager, what it can bear.

    `line` names the serial port at the other end of its UART `uart`, which may be there only while the board is on;
    without it the board has a network and finds this machine at `host`, where the fault proxy listens at `listen`.
    `lan`: the application brings its Ethernet up.
    `off_s`: seconds that it must at least be off. `dips_s`: as `Board` has it, for a switch that bears that. The others
    are those of `Limits`.
    """

    bindings: ClassVar[dict[str, Any]] = {
        "micropython": MicroPythonDriver,
        "power": PowerProtocol,
        "button": {ResetProtocol, None},
        "loader": {BootstrapProtocol, None},
    }
    button: Any
    line: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    uart: int = whole(1, least=0)
    baud: int = whole(115200)
    rxbuf: int = whole(1024)
    host: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    listen: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    lan: bool = attr.ib(default=False, validator=instance_of(bool))
    off_s: float = number(0.0)
    dips_s: float = number(0.0)
    max_size: int = whole(512, least=0)
    ahead: int = whole(6)
    patience_s: float = number(60.0)
    deadline_s: float = number(1800.0)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if (self.line is None) == (self.host is None):
            raise ValueError("either line (a UART) or host (a network) says how the board reaches the queue manager")
        if isinstance(self.button, PowerProtocol):  # labgrid takes a power switch for a reset button, too
            self.button = None

    @property
    def identity(self) -> str:
        return identity(self.micropython.port)

    def open(self, folder: Path, application: Path) -> Board:
        del folder
        return LabBoard(self, application)


@target_factory.reg_resource
@attr.s(eq=False)
class EmulatedMachine(Resource):  # type: ignore[misc]
    """A board that needs no hardware; `kind` as hil/kinds.py names it."""

    kind: str = attr.ib(validator=in_(kinds.KINDS))


@target_factory.reg_driver
@attr.s(eq=False)
class EmulatedNodeDriver(Driver, NodeProtocol):  # type: ignore[misc]
    """A node on an emulated machine, whose power and flash are this machine's processes and files."""

    bindings: ClassVar[dict[str, Any]] = {"machine": EmulatedMachine}
    identity: ClassVar[str] = ""

    def open(self, folder: Path, application: Path) -> Board:
        return kinds.open_kind(self.machine.kind, folder, application)


class Status(enum.Enum):
    """How far a board has come."""

    UNKNOWN = enum.auto()
    OFF = enum.auto()
    FLASHED = enum.auto()
    DEPLOYED = enum.auto()
    RUNNING = enum.auto()


@target_factory.reg_driver
@attr.s(eq=False)
class BoardStrategy(Strategy):  # type: ignore[misc]
    """off -> flashed -> deployed -> running. `firmware` names the image that is flashed, from `images` of the file;
    without it the firmware that a board has stays. `other` names another one, which takes turns with it in the mishap
    `reflash` of a campaign.
    """

    bindings: ClassVar[dict[str, Any]] = {"node": NodeProtocol}
    firmware: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    other: str | None = attr.ib(default=None, validator=optional(instance_of(str)))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.status = Status.UNKNOWN
        self.board: Board | None = None

    @property
    def image(self) -> Path | None:
        """The file of that firmware."""
        return None if self.firmware is None else Path(self.target.env.config.get_image_path(self.firmware))

    def open(self, folder: Path, application: Path = SENSOR) -> Board:
        """The board as campaigns see it. Raises BoardMissing."""
        self.board = self.node.open(folder, application)
        return self.board

    def transition(self, status: str | Status, settings: dict[str, object] | None = None) -> None:
        """Go there, by all states before it; `settings`: those of the application. Raises StrategyError, and what the
        board does.
        """
        wanted = status if isinstance(status, Status) else Status[status.upper()]
        if self.board is None or wanted is Status.UNKNOWN:
            raise StrategyError(f"board {self.target.name} cannot go to {wanted.name.lower()}: open it first")
        if wanted.value < self.status.value or self.status is Status.UNKNOWN:
            self.board.kill()
            self.status = Status.OFF
        while self.status is not wanted:
            following = Status(self.status.value + 1)
            if following is Status.FLASHED:
                self._flash()
            elif following is Status.DEPLOYED:
                self.board.deploy(settings or {})
            else:
                self.board.power_up()
            self.status = following

    def flash_other(self) -> None:
        """The other firmware, in turn with the first one; the board is off before and after. As `transition`."""
        self.firmware, self.other = self.other, self.firmware
        self._flash()

    def load(self) -> None:
        """Load the firmware, if the file names one and a driver that loads it, unless this process has done that. The
        board is off before and after. Raises OSError.
        """
        loads = self.image is not None and getattr(self.node, "loader", None) is not None
        if loads and _LOADED.get(self.target.name) != self._digest():
            self._flash()

    def _digest(self) -> str:
        return hashlib.sha256(self.image.read_bytes()).hexdigest() if self.image and self.image.is_file() else ""

    def _flash(self) -> None:
        if self.image is None:
            return
        loader = getattr(self.node, "loader", None)
        if loader is None:
            raise StrategyError(f"board {self.target.name} has a firmware and no driver that loads it")
        board: Any = self.board
        board.switch.on()

        def load() -> None:
            self.target.activate(loader)
            loader.load(str(self.image))

        complaint = f"{type(loader).__name__} has not loaded its firmware within"
        bounded(self.target.name, complaint, load, LOAD_DEADLINE_S)
        self.target.deactivate(loader)
        board.switch.off()
        _LOADED[self.target.name] = self._digest()


@functools.cache
def compiled_modules() -> "tempfile.TemporaryDirectory[str]":
    """The modules of this checkout as boards load them, compiled now, with the native modules of the last build."""
    folder = tempfile.TemporaryDirectory(prefix="modules-")
    compile_all(MPY_CROSS, Path(folder.name))
    return folder


def failed(board: str, error: Exception) -> RigFailed:
    """What a driver of labgrid's says, and what the command said that it has run."""
    said = getattr(error, "output", b"") or b""
    text = f"{getattr(error, 'msg', error)} {said.decode(errors='replace')}".strip()
    return RigFailed(f"board {board}: {text.removeprefix(f'board {board}: ')}")


def bounded(board: str, complaint: str, what: Callable[[], None], seconds: float) -> None:
    """Do what a driver of labgrid's does, in a thread; at the deadline the processes that it has started, and theirs,
    are killed. Raises RigFailed.
    """
    errors: list[Exception] = []

    def work() -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001 - each kind of driver has its own
            errors.append(error)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    working.join(seconds)
    if working.is_alive():
        end = time.monotonic() + _ENDED_WITHIN_S
        while working.is_alive() and time.monotonic() < end:
            _kill_children(Path(f"/proc/self/task/{working.native_id}"))
            working.join(_AGAIN_S)
        raise RigFailed(f"board {board}: {complaint} {seconds:g} s")
    for error in errors:
        raise failed(board, error) from None


def _kill_children(thread: Path) -> None:
    """Those of this thread, and theirs. One that is stopped starts no more."""
    with contextlib.suppress(OSError):  # one that has ended, or is another user's
        for pid in (thread / "children").read_text().split():
            os.kill(int(pid), signal.SIGSTOP)
            for other in Path(f"/proc/{pid}/task").iterdir():
                _kill_children(other)
            os.kill(int(pid), signal.SIGKILL)


class Switch:
    """Of the power of a board; any of labgrid's. It raises OSError if it fails, whatever kind it is, or does not
    answer: many of labgrid's wait for ever.
    """

    def __init__(self, power: Any, off_s: float, board: str) -> None:
        self._power = power
        self._off_s = off_s
        self._board = board
        self._off_at = 0.0
        self.times = 0

    def on(self) -> None:
        """After it was off for so long as it must be; `times` counts that."""
        self.times += 1
        time.sleep(max(0.0, self._off_at + self._off_s - time.monotonic()))
        self.do("power switch", self._power.on)

    def off(self) -> None:
        self.do("power switch", self._power.off)
        self._off_at = time.monotonic()

    def do(self, name: str, what: Callable[[], None]) -> None:
        """Whatever of labgrid's this is, it ends. Raises OSError."""
        bounded(self._board, f"its {name} has not answered for", what, SWITCH_DEADLINE_S)


class RealBoard(Board):
    """What is a board's, whatever reaches it: a lock, and perhaps a switch, of its driver `node`. The switch may take
    seconds: who has an event loop calls from a thread.
    """

    def __init__(self, node: Any, application: Path, *drivers: Driver | None) -> None:
        self.target = node.target.name
        if isinstance(node.power, ManualPowerDriver) and not (sys.stdin and sys.stdin.isatty()):
            raise BoardMissing(
                f"board {self.target} is switched by hand (ManualPowerDriver), and nobody is at a terminal here to be "
                "asked: start this at one, pytest with -s, or name the driver of a switch in the file"
            )
        self.host = node.host or ""
        self.listen = node.listen or self.host
        self.limits = Limits(node.max_size, node.ahead, node.patience_s, node.deadline_s)
        self.dips_s = node.dips_s
        self.log = Log()
        self._node = node
        self._application = application
        self.claim = Claim(f"a campaign on {self.target}")
        claimed(self.claim, [node.identity])
        try:
            self._activate(*drivers)
            self.line = self._found_line()
        except BaseException:
            self.claim.release()
            raise

    def _activate(self, *drivers: Driver | None) -> None:
        for driver in filter(None, drivers):
            activate = functools.partial(self._node.target.activate, driver)
            try:
                bounded(self.target, f"{type(driver).__name__} does not begin within", activate, SWITCH_DEADLINE_S)
            except OSError as error:  # what a driver needs is not there
                raise BoardMissing(str(error)) from None

    def _found_line(self) -> Path | None:
        """Where its serial link can be met; None: it has a network. Raises BoardMissing, RigFailed."""
        return None

    def close(self) -> None:
        try:
            self.kill()
        finally:
            self.claim.release()
            self._node.target.cleanup()


class LabBoard(RealBoard):
    """A real board at a serial port."""

    def __init__(self, node: NodeDriver, application: Path) -> None:
        self.ways = (POWER,) if node.button is None else (POWER, RESET)
        self._stop = threading.Event()
        self._lost = ""
        self._reader: threading.Thread | None = None
        self._repl: Repl | None = None
        self._program: dict[str, bytes] = {}
        self._firmware: str | None = None
        self._is_frozen = False
        self._modules: Path | None = None
        self.switch = Switch(node.power, node.off_s, node.target.name)
        super().__init__(node, application, node.power, node.button)
        node.micropython.claim = self.claim

    def _found_line(self) -> Path | None:
        if self._node.line is None:
            return None
        port = self._node.target.get_resource("SerialPort", name=self._node.line, wait_avail=False)
        self.find_line = lambda: Path(url(port, 0.0))
        try:
            return self.find_line()
        except BoardMissing:  # it may be there only while the board is on
            try:
                self.switch.on()
                return Path(url(port))
            finally:
                with contextlib.suppress(OSError):  # whatever uses it next is told
                    self.switch.off()

    @property
    def life(self) -> int:
        return self.switch.times

    @property
    def alive(self) -> bool:
        """Raises OSError: its port has gone."""
        is_alive = self._reader is not None and self._reader.is_alive()
        if self._lost and not is_alive:
            raise OSError(self._lost)
        return is_alive

    def describe(self) -> str:
        link = "a network" if self.line is None else f"UART {self._node.uart}, {self._node.baud} baud"
        is_old = self._is_frozen and self._strategy.image is None
        found = ", with the modules of a firmware that the rig has not loaded" if is_old else ""
        return f"{self.target}: {self._node.identity}, over {link}{found}"

    def files(self) -> dict[str, Path]:
        image = self._strategy.image
        named = {"firmware image": image} if image is not None and image.is_file() else {}
        copied = {} if self._modules is None else {"modules": self._modules}
        return {"application": self._application, **copied, **named}

    @contextlib.contextmanager
    def asked(self) -> Iterator[Repl]:
        """Its REPL, of a board that is off before and after, or that of who asks it already. Raises OSError."""
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

    def firmware(self) -> str:
        """As `Board` has it; as it was at the last deploy, for to ask it then would start its program."""
        if self._firmware is not None:
            return self._firmware
        with self.asked() as repl:
            self._choose_modules(repl)
            read: str = repl.run(_FIRMWARE, REPL_DEADLINE_S)
            return read

    def _choose_modules(self, repl: Repl) -> None:
        """Those of this checkout in the form that the board loads; none if they are frozen into its firmware."""
        _, _, self._is_frozen = repl.run(CORE)
        loads = repl.info.mpy & 0xFF == MPY_VERSION
        folder = Path(compiled_modules().name) if loads else modules.write()
        self._modules = None if self._is_frozen else folder

    def deploy(self, settings: dict[str, object]) -> None:
        node = self._node
        link: dict[str, object] = {"lan": node.lan}
        if node.line is not None:
            link = {"uart": node.uart, "baud": node.baud, "rxbuf": node.rxbuf}
        self._program = {
            "application.mpy": compiled(self._application, self.target),
            "config.json": json.dumps({**settings, **link}).encode(),
            "main.py": MAIN.encode(),
        }
        self.switch.off()
        self._strategy.load()
        with self.asked() as repl:
            self._refuse_what_others_have(repl)
            repl.run(_CLEAN.format([*FILES, str(settings["outbox"])]))
            self._deploy_modules(repl)
            self._firmware = repl.run(_FIRMWARE, REPL_DEADLINE_S)
            self._write_program(repl)

    def _deploy_modules(self, repl: Repl) -> None:
        """What is tested; a firmware with frozen modules is tested as it is. Raises OSError, BoardError."""
        self._choose_modules(repl)
        if self._modules is None:
            return
        done = deploy_modules(repl, self._modules / "package.json")
        if done.problem:
            raise OSError(f"board {self.target}: a node cannot start there: {done.problem}")

    def _write_program(self, repl: Repl) -> None:
        for name, data in self._program.items():
            repl.write(name, data)

    def lacks(self, work: str) -> bool:
        has_other = self._node.loader is not None and self._strategy.other is not None
        return super().lacks(work) or (work == "reflash" and not has_other)

    @property
    def _strategy(self) -> BoardStrategy:
        found: BoardStrategy = self._node.target.get_driver(BoardStrategy, activate=False)
        return found

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

    def reflash(self) -> None:
        try:
            self._strategy.flash_other()
        except StrategyError as error:
            raise OSError(error.msg) from None
        with self.asked() as repl:
            self._write_program(repl)

    def redeploy(self) -> None:
        mark = self.log.mark()
        self.power_up()
        self.log.wait_for(lambda text: '"started"' in text, REPL_DEADLINE_S, mark)
        self._silence()
        program, end = compiled(self._application, self.target), time.monotonic() + WATCHDOG_DEADLINE_S

        def copy(repl: Repl) -> None:
            repl.write("application.mpy", program)
            while not repl.watched:
                if time.monotonic() >= end:
                    raise BoardError(f"no watchdog has bitten within {WATCHDOG_DEADLINE_S:g} s")
                time.sleep(_AGAIN_S)
                repl.run("")

        try:
            attended(url(self._node.micropython.port), self._node.micropython.port.speed, copy, reset=True)
        except BoardError as error:
            raise OSError(f"board {self.target}: {error}") from None
        finally:
            self.switch.off()

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
        """Hear it no more: its port is free."""
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
        """Keep what the board says while it is on."""
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
