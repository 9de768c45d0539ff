"""The boards of a labgrid environment, each with its errors in a sentence."""

import re
import warnings
from pathlib import Path
from typing import Any, Final

from labgrid import Environment, Target
from labgrid.binding import BindingError
from labgrid.exceptions import InvalidConfigError, NoConfigFoundError, NoSupplierFoundError, RegistrationError

from hil.boards import Board, BoardMissing, Quarantined
from hil.drivers import BoardStrategy

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
        if board.get("resources") and "EmulatedMachine" not in described and seen.setdefault(described, name) != name:
            raise BoardMissing(f"{path}: boards {seen[described]} and {name} are described alike: are they one board?")
    return environment


def names(path: Path) -> dict[str, str]:
    """Every board of a file, and why it is in quarantine; empty if it is not."""
    environment = load(path)
    return {name: quarantine(environment, name) for name in environment.config.get_targets()}


def quarantine(environment: Environment, name: str) -> str:
    """Why a board is not to be used: `options: {quarantine: REASON}` of its target."""
    return str(environment.config.get_target_option(name, QUARANTINE, "") or "")


def target(environment: Environment, name: str) -> Target:
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


def open_board(environment: Environment, name: str, folder: Path, application: Path) -> Board:
    """As targets.open_board, for a board of this file. Raises BoardMissing."""
    made = target(environment, name)
    try:
        board: Board = strategy(made).open(folder, application)
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
    for key, name in (("firmware", found.firmware), ("other", found.other)):
        if name is not None and name not in images:
            there = ", ".join(images) or "none"
            raise BoardMissing(f"board {made.name}: {key}: {name!r} is none of images: of the file: {there}")
    return found
