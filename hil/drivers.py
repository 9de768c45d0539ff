"""What labgrid lacks for boards that run a node: MicroPython's REPL, the node on it, and the way from off to running;
and the boards of a labgrid environment. A file of boards has `imports: [hil.drivers]`; hil/README.md shows one.
"""

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
from ordack.boards.claim import Claim, names_of
from ordack.boards.repl import Board as Repl
from ordack.boards.repl import BoardError, write_limit

from hil import real
from hil.boards import BoardMissing, Line, Log
from hil.real import LabBoard, aliases, claimed, identity, url

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


# The file of boards, with its errors in a sentence


def table(found: Any, where: str, *keys: str) -> dict[str, Any]:
    """What stands there, which has to be a table; of these keys, if there are any. Raises BoardMissing."""
    if not isinstance(found, dict):
        raise BoardMissing(f"{where} has to be a table, such as {{name: value}}, not {found!r}")
    if unknown := [str(key) for key in found if keys and key not in keys]:
        raise BoardMissing(f"{where}: {', '.join(unknown)}: nobody reads that; there are {', '.join(keys)}")
    return found


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
    """Every board of a file."""
    return list(load(path).config.get_targets())


def node_of(environment: Environment, name: str) -> NodeDriver:
    """The driver of one board, which is not active. Raises BoardMissing with the board, if it is described wrongly."""
    where = f"{environment.config_file}: board {name}"
    table(environment.config.get_targets()[name], where, *TARGET)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # a key that nobody reads
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
