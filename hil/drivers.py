"""What labgrid lacks for boards that run a node: MicroPython's REPL, the node on it, and the way from off to running;
and the boards of a labgrid environment. A file of boards has `imports: [hil.drivers]`; hil/README.md shows one.
"""

import contextlib
import fcntl
import hashlib
import re
import shlex
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attr
import serial
from attr.validators import ge, instance_of, optional
from labgrid import Environment, Target
from labgrid.binding import BindingError
from labgrid.driver import Driver
from labgrid.exceptions import InvalidConfigError, NoConfigFoundError, NoSupplierFoundError, RegistrationError
from labgrid.factory import target_factory
from labgrid.protocol import BootstrapProtocol, PowerProtocol, ResetProtocol
from labgrid.resource import NetworkSerialPort
from labgrid.strategy import Strategy, StrategyError
from ordack.boards.claim import Claim, names_of
from ordack.boards.repl import Board as Repl
from ordack.boards.repl import BoardError, Silent, write_limit

from hil import real
from hil.boards import SENSOR, BoardMissing, Line, Log, Quarantined
from hil.real import AGAIN_S, LabBoard, aliases, bounded, claimed, identity, url

LOAD_DEADLINE_S: Final = 900.0  # 4 MiB at 115,200 baud take 6 minutes
_LOADED: Final[dict[str, str]] = {}
"""What this process has loaded into a board: the hash of its firmware."""
_READ_TIMEOUT_S: Final = 0.1
_INTERRUPT: Final = b"\r\x03\x02"  # and out of a raw REPL
_PROMPT: Final = b">>> "
WRONG: Final = (
    *(AttributeError, ImportError, KeyError, OSError, TypeError, UserWarning, ValueError),
    *(BindingError, InvalidConfigError, NoConfigFoundError, NoSupplierFoundError, RegistrationError),
)
"""What labgrid raises for a file that is wrong."""
CLIENT: Final = "labgrid.remote.client"
"""Where the errors of a place are, and what is loaded only for one."""
FILE: Final = ("imports", "targets", "options", "images", "tools", "paths", "features")
TARGET: Final = ("resources", "drivers", "options", "features")
QUARANTINE: Final = "quarantine"


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


@target_factory.reg_driver
@attr.s(eq=False)
class NodeDriver(Driver):  # type: ignore[misc]
    """A real board whose application is a node: what switches it, how it reaches the queue manager, what it can bear.

    `line` names the serial port at the other end of its UART `uart`, which may be there only while the board is on;
    without it the board has a network and finds this machine at `host`, where the fault proxy listens at `listen`.
    `lan`: the application brings its Ethernet up.
    `off_s`: seconds that it must at least be off. The others are those of `Limits`.
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
        """What tells it from others, wherever it is plugged in."""
        return identity(self.micropython.port)


@target_factory.reg_driver
@attr.s(eq=False)
class BoardStrategy(Strategy):  # type: ignore[misc]
    """Which firmware a board has. `firmware` names the image that is flashed, from `images` of the file;
    without it the firmware that a board has stays.
    """

    bindings: ClassVar[dict[str, Any]] = {"node": NodeDriver}
    firmware: str | None = attr.ib(default=None, validator=optional(instance_of(str)))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.board: LabBoard | None = None

    @property
    def image(self) -> Path | None:
        """The file of that firmware."""
        return None if self.firmware is None else Path(self.target.env.config.get_image_path(self.firmware))

    def open(self, application: Path = SENSOR) -> LabBoard:
        """The board as campaigns see it. Raises BoardMissing."""
        self.board = LabBoard(self.node, application)
        return self.board

    def load(self) -> None:
        """Load the firmware, if the file names one and a driver that loads it, unless this process has done that. The
        board is off before and after. Raises OSError.
        """
        if self.image is not None and self.node.loader is not None and _LOADED.get(self.target.name) != self._digest():
            self.flash()

    def _digest(self) -> str:
        return hashlib.sha256(self.image.read_bytes()).hexdigest() if self.image and self.image.is_file() else ""

    def flash(self) -> None:
        """Load the firmware; the board is off before and after. Raises StrategyError, OSError."""
        loader = self.node.loader
        if loader is None:
            raise StrategyError(f"board {self.target.name} has a firmware and no driver that loads it")
        assert self.board is not None
        self.board.switch.on()

        def load() -> None:
            self.target.activate(loader)
            loader.load(str(self.image))

        complaint = f"{type(loader).__name__} has not loaded its firmware within"
        bounded(self.target.name, complaint, load, LOAD_DEADLINE_S)
        self.target.deactivate(loader)
        self.board.switch.off()
        _LOADED[self.target.name] = self._digest()


# The file of boards, with its errors in a sentence


def table(found: Any, where: str, *keys: str) -> dict[str, Any]:
    """What stands there, which has to be a table; of these keys, if there are any. Raises BoardMissing."""
    if not isinstance(found, dict):
        raise BoardMissing(f"{where} has to be a table, such as {{name: value}}, not {found!r}")
    if unknown := [str(key) for key in found if keys and key not in keys]:
        raise BoardMissing(f"{where}: {', '.join(unknown)}: nobody reads that; there are {', '.join(keys)}")
    return found


def parts(described: dict[str, Any], where: str) -> None:
    """Raises BoardMissing for resources or drivers of a board of which labgrid would not say which is wrong."""
    for kind in ("resources", "drivers"):
        found = described.get(kind, {})
        for entry in found if isinstance(found, list) else [found]:
            for name, arguments in table(entry, f"{where}: {kind}").items():
                if "cls" in entry:  # labgrid's other form
                    continue
                match = table(arguments, f"{where}: {kind}: {name}").get("match", {})
                for key, value in table(match, f"{where}: {name}: match").items():
                    if not isinstance(value, str):
                        raise BoardMissing(f"{where}: {name}: match: {key}: {value!r} is no text: put it in quotes")
                if name == "USBSerialPort" and not match:
                    has = ", ".join(map(str, arguments)) or "nothing"
                    raise BoardMissing(f"{where}: {name} has {has}: without a match any port fits")


def reason(error: BaseException) -> str:
    """What labgrid says: its errors show their fields, at length, and hide what they come from."""
    said = f"no {error}" if isinstance(error, KeyError) else str(getattr(error, "msg", error)).removeprefix("Error: ")
    if cause := error.__cause__:  # attrs puts all that it knows of a field behind its sentence
        said = f"{said}: {cause.args[0] if isinstance(cause, TypeError) and cause.args else cause}"
    return re.sub(r"Target\(name='([^']*)', env=Environment\(config_file='[^']*'\)\)", r"\1", said)


def load(path: Path) -> Environment:
    """Raises BoardMissing for a file that is no labgrid environment."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a key that stands twice
            environment = Environment(str(path))
        targets = environment.config.get_targets()
    except WRONG as error:
        where = "imports: " if isinstance(error, (ImportError, TypeError)) else ""
        if twice := re.search("duplicate YAML dictionary key '(.*)'", str(error)):
            raise BoardMissing(f"{path}: {twice[1]} stands there twice: give one another name, or remove it") from None
        raise BoardMissing(f"{path}: {where}{reason(error)}") from None
    known = table(environment.config.data, str(path), *FILE)
    table(known.get("images", {}), f"{path}: images")
    if not isinstance(targets, dict) or not all(isinstance(target, dict) for target in targets.values()):
        raise BoardMissing(f"{path}: targets: must be a table of boards, each with resources: and drivers:")
    if not targets:
        raise BoardMissing(f"{path}: there are no boards: write them below targets:, as hil/README.md shows")
    seen: dict[str, str] = {}
    for name, board in targets.items():
        described = str([board.get("resources"), board.get("drivers")])
        if board.get("resources") and seen.setdefault(described, name) != name:
            raise BoardMissing(f"{path}: boards {seen[described]} and {name} are described alike: are they one board?")
    return environment


def names(path: Path) -> dict[str, str]:
    """Every board of a file, and why it is in quarantine; empty if it is not."""
    environment = load(path)
    return {name: quarantine(environment, name) for name in environment.config.get_targets()}


def quarantine(environment: Environment, name: str) -> str:
    """Why a board is not to be used: `options: {quarantine: REASON}` of its target."""
    return str(environment.config.get_target_option(name, QUARANTINE, "") or "")


def target_of(environment: Environment, name: str) -> Target:
    """One board of it with its drivers, of which none is active. Raises BoardMissing with the board, if it is described
    wrongly or in quarantine.
    """
    where = f"{environment.config_file}: board {name}"
    described = table(environment.config.get_targets()[name], where, *TARGET)
    table(described.get("options", {}), f"{where}: options", QUARANTINE)
    if why := quarantine(environment, name):
        raise Quarantined(f"{where} is in quarantine: {why}")
    parts(described, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a key that nobody reads
            return environment.get_target(name)
    except Exception as error:
        if not isinstance(error, WRONG) and type(error).__module__ != CLIENT:
            raise
        raise BoardMissing(f"{where}: {reason(error)}") from None


def open_board(environment: Environment, name: str, application: Path) -> LabBoard:
    """A board of this file, switched off. Raises BoardMissing."""
    made = target_of(environment, name)
    try:
        board = strategy(made).open(application)
    except BaseException:
        made.cleanup()
        raise
    return board


def strategy(made: Target) -> BoardStrategy:
    """Raises BoardMissing if the board has none, or one whose firmware the file does not have."""
    try:
        found: BoardStrategy = made.get_driver(BoardStrategy, activate=False)
    except NoSupplierFoundError as error:
        raise BoardMissing(f"board {made.name}: {reason(error)}") from None
    images = made.env.config.data.get("images", {})
    if found.firmware is not None and found.firmware not in images:
        there = ", ".join(images) or "none"
        raise BoardMissing(f"board {made.name}: firmware: {found.firmware!r} is none of images: of the file: {there}")
    return found
