"""What labgrid lacks for boards that run a node: MicroPython's REPL, the node on it, emulated machines, and the way
from off to running. A file of boards has `imports: [hil.drivers]`; hil/README.md shows one.
"""

import abc
import contextlib
import fcntl
import hashlib
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attr
import serial
from attr.validators import ge, in_, instance_of, optional
from labgrid.driver import Driver
from labgrid.factory import target_factory
from labgrid.protocol import BootstrapProtocol, PowerProtocol, ResetProtocol
from labgrid.resource import NetworkSerialPort, Resource
from labgrid.strategy import Strategy, StrategyError
from ordack.boards.claim import Claim, names_of
from ordack.boards.repl import Board as Repl
from ordack.boards.repl import BoardError, Silent, write_limit

from hil import machines, real
from hil.boards import SENSOR, Board, BoardMissing, Line, Log
from hil.ports import aliases, claimed, identity, url
from hil.real import AGAIN_S, LabBoard, bounded

LOAD_DEADLINE_S: Final = 900.0  # 4 MiB at 115,200 baud take 6 minutes
_LOADED: Final[dict[str, str]] = {}
"""What this process has loaded into a board: the hash of its firmware."""
_READ_TIMEOUT_S: Final = 0.1
_INTERRUPT: Final = b"\r\x03\x02"  # and out of a raw REPL
_PROMPT: Final = b">>> "


def number(default: float) -> Any:
    """An attribute that is a number, 0 or more; whole numbers are taken, too."""
    return attr.ib(default=default, validator=[instance_of((int, float)), ge(0)])


def whole(default: int, least: int = 1) -> Any:
    """An attribute that is a whole number."""
    return attr.ib(default=default, validator=[instance_of(int), ge(least)])


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
        end = time.monotonic() + real.REPL_DEADLINE_S
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
            time.sleep(AGAIN_S)


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
    """A board that needs no hardware, on one of the machines of hil/machines.py; without a `network` it has a UART."""

    machine: str = attr.ib(validator=in_(machines.MACHINES))
    network: bool = attr.ib(default=True, validator=instance_of(bool))


@target_factory.reg_driver
@attr.s(eq=False)
class EmulatedNodeDriver(Driver, NodeProtocol):  # type: ignore[misc]
    """A node on an emulated machine, whose power and flash are this machine's processes and files."""

    bindings: ClassVar[dict[str, Any]] = {"machine": EmulatedMachine}
    identity: ClassVar[str] = ""

    def open(self, folder: Path, application: Path) -> Board:
        described = self.machine
        return machines.open_machine(self.target.name, described.machine, described.network, folder, application)


@target_factory.reg_driver
@attr.s(eq=False)
class BoardStrategy(Strategy):  # type: ignore[misc]
    """Which firmware a board has. `firmware` names the image that is flashed, from `images` of the file;
    without it the firmware that a board has stays. `other` names another one, which takes turns with it in the mishap
    `reflash` of a campaign.
    """

    bindings: ClassVar[dict[str, Any]] = {"node": NodeProtocol}
    firmware: str | None = attr.ib(default=None, validator=optional(instance_of(str)))
    other: str | None = attr.ib(default=None, validator=optional(instance_of(str)))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.board: Board | None = None

    @property
    def image(self) -> Path | None:
        """The file of that firmware."""
        return None if self.firmware is None else Path(self.target.env.config.get_image_path(self.firmware))

    def open(self, folder: Path, application: Path = SENSOR) -> Board:
        """The board as campaigns see it. Raises BoardMissing."""
        self.board = self.node.open(folder, application)
        return self.board

    def flash_other(self) -> None:
        """The other firmware, in turn with the first one; the board is off before and after. As `flash`."""
        self.firmware, self.other = self.other, self.firmware
        self.flash()

    def load(self) -> None:
        """Load the firmware, if the file names one and a driver that loads it, unless this process has done that. The
        board is off before and after. Raises OSError.
        """
        loads = self.image is not None and getattr(self.node, "loader", None) is not None
        if loads and _LOADED.get(self.target.name) != self._digest():
            self.flash()

    def _digest(self) -> str:
        return hashlib.sha256(self.image.read_bytes()).hexdigest() if self.image and self.image.is_file() else ""

    def flash(self) -> None:
        """Load the firmware; the board is off before and after. Raises StrategyError, OSError."""
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
