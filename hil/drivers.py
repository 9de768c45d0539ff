"""What labgrid lacks for boards that run a node: MicroPython's REPL, the node, power control, and the boards of an
environment. A file of boards has `imports: [hil.drivers]`; hil/README.md shows one."""

import fcntl
import re
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attr
import serial
from attr.validators import ge, instance_of, optional
from labgrid import Environment
from labgrid.binding import BindingError
from labgrid.driver import Driver
from labgrid.exceptions import InvalidConfigError, NoConfigFoundError, NoSupplierFoundError, RegistrationError
from labgrid.factory import target_factory
from labgrid.protocol import PowerProtocol, ResetProtocol
from labgrid.resource import NetworkSerialPort
from ordack.boards.repl import Board as Repl
from ordack.boards.repl import BoardError, write_limit

from hil import real
from hil.boards import BoardMissing, Line, Log
from hil.real import LabBoard, identity, url

_READ_TIMEOUT_S: Final = 0.1
_INTERRUPT: Final = b"\r\x03\x02"  # also leaves a raw REPL
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


def number(default: float) -> Any:
    """An attribute for a number, 0 or more; whole numbers are allowed."""
    return attr.ib(default=default, validator=[instance_of((int, float)), ge(0)])


def whole(default: int, least: int = 1) -> Any:
    """An attribute for a whole number."""
    return attr.ib(default=default, validator=[instance_of(int), ge(least)])


@target_factory.reg_driver
@attr.s(eq=False)
class MicroPythonDriver(Driver):  # type: ignore[misc]
    """MicroPython's REPL at a local or network serial port, which also carries the board's output. It is used without
    activation: the port comes and goes with the power."""

    bindings: ClassVar[dict[str, Any]] = {"port": {"SerialPort", "NetworkSerialPort"}}

    def repl(self, log: Log, life: int) -> Repl:
        """The board's raw REPL, after interrupting the application. Repeats input that a booting board missed. Raises
        OSError."""
        end = time.monotonic() + real.REPL_DEADLINE_S
        while True:
            try:
                where = url(self.port)
                # Open until the other user opens it, so that a port that counts its users does not see the last one
                # leave. That open is exclusive. A network port has one user.
                with self._opened(where, _READ_TIMEOUT_S) as port:
                    self._interrupt(port, end, log, life)
                    if isinstance(self.port, NetworkSerialPort):
                        port.close()
                    else:
                        fcntl.flock(port.fileno(), fcntl.LOCK_UN)
                    return Repl(where, self.port.speed).look(reset=True)
            except (BoardError, BoardMissing, OSError) as error:  # OSError: also from pyserial
                if time.monotonic() >= end:
                    raise OSError(str(error)) from None
                log.append(Line(life, str(error)))

    def _opened(self, where: str, write_s: float) -> Any:
        """Open the port exclusively. Raises OSError."""
        limit, alone = write_limit(where, write_s), None if "://" in where else True
        return serial.serial_for_url(
            where, self.port.speed, timeout=_READ_TIMEOUT_S, write_timeout=limit, exclusive=alone
        )

    def _interrupt(self, port: Any, end: float, log: Log, life: int) -> None:
        """Stop the program and wait for the prompt: entering the raw REPL while a program prints may block forever. The
        log gets the program's output. Raises OSError."""
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

    def lines(self, stop: threading.Event) -> Iterator[str]:
        """The board's output lines until `stop`, across resets that remove its port for a while. Raises BoardMissing
        when the port does not return."""
        while not stop.is_set():
            line = b""
            try:
                with self._opened(url(self.port, stop=stop) or "loop://", _READ_TIMEOUT_S) as port:
                    while not stop.is_set():
                        line += port.read(max(1, port.in_waiting))
                        *whole, line = line.split(b"\n")
                        for text in whole:
                            yield text.decode(errors="replace").rstrip("\r")
            except OSError:  # also from pyserial: the port has gone
                stop.wait(_READ_TIMEOUT_S)
            if line:
                yield line.decode(errors="replace")


@target_factory.reg_driver
@attr.s(eq=False)
class NodeDriver(Driver):  # type: ignore[misc]
    """A real board whose application is a node: its power switch, its link to the queue manager, its limits.

    line: name of the serial port at the other end of its UART `uart`; the port may exist only while the board is on.
    Without it, the board has a network and reaches this machine at `host`; the fault proxy listens at `listen`. lan:
    the application starts its Ethernet. off_s: minimum off-time, seconds. Other fields: those of `Limits`.
    """

    bindings: ClassVar[dict[str, Any]] = {
        "micropython": MicroPythonDriver,
        "power": PowerProtocol,
        "button": {ResetProtocol, None},
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
        if isinstance(self.button, PowerProtocol):  # labgrid also accepts a power switch as a reset button
            self.button = None

    @property
    def identity(self) -> str:
        """Identifies the board, wherever it is plugged in."""
        return identity(self.micropython.port)


# The file of boards, with error messages for people


def table(found: Any, where: str, *keys: str) -> dict[str, Any]:
    """The value, which must be a table, with only `keys` if given. Raises BoardMissing."""
    if not isinstance(found, dict):
        raise BoardMissing(f"{where} has to be a table, such as {{name: value}}, not {found!r}")
    if unknown := [str(key) for key in found if keys and key not in keys]:
        raise BoardMissing(f"{where}: {', '.join(unknown)}: nobody reads that; there are {', '.join(keys)}")
    return found


def reason(error: BaseException) -> str:
    """A short text for a labgrid error: labgrid prints its fields at length and hides the cause."""
    said = f"no {error}" if isinstance(error, KeyError) else str(getattr(error, "msg", error)).removeprefix("Error: ")
    if cause := error.__cause__:  # attrs appends details of the field to its message
        said = f"{said}: {cause.args[0] if isinstance(cause, TypeError) and cause.args else cause}"
    return re.sub(r"Target\(name='([^']*)', env=Environment\(config_file='[^']*'\)\)", r"\1", said)


def load(path: Path) -> Environment:
    """Raises BoardMissing for a file that is no labgrid environment."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # duplicate keys
            environment = Environment(str(path))
        targets = environment.config.get_targets()
    except WRONG as error:
        where = "imports: " if isinstance(error, (ImportError, TypeError)) else ""
        if twice := re.search("duplicate YAML dictionary key '(.*)'", str(error)):
            raise BoardMissing(f"{path}: {twice[1]} stands there twice: give one another name, or remove it") from None
        raise BoardMissing(f"{path}: {where}{reason(error)}") from None
    table(environment.config.data, str(path), *FILE)
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


def names(path: Path) -> list[str]:
    """The names of all boards in a file."""
    return list(load(path).config.get_targets())


def node_of(environment: Environment, name: str) -> NodeDriver:
    """The driver of one board, inactive. Raises BoardMissing, naming the board, for a wrong description."""
    where = f"{environment.config_file}: board {name}"
    table(environment.config.get_targets()[name], where, *TARGET)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # unknown keys
            found: NodeDriver = environment.get_target(name).get_driver(NodeDriver, activate=False)
            return found
    except Exception as error:
        if not isinstance(error, WRONG) and type(error).__module__ != CLIENT:
            raise
        raise BoardMissing(f"{where}: {reason(error)}") from None


def open_board(environment: Environment, name: str, application: Path) -> LabBoard:
    """A board of this file, switched off. Raises BoardMissing."""
    node = node_of(environment, name)
    try:
        return LabBoard(node, application)
    except BaseException:
        node.target.cleanup()
        raise
