"""The boards of a labgrid environment, each with its errors in a sentence."""

import warnings
from pathlib import Path
from typing import Final

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


def reason(error: BaseException) -> str:
    """What labgrid says: its errors show their fields, and hide what they come from."""
    said = f"no {error}" if isinstance(error, KeyError) else str(getattr(error, "msg", error)).removeprefix("Error: ")
    return f"{said}: {error.__cause__}" if error.__cause__ else said


def load(path: Path) -> Environment:
    """Raises BoardMissing for a file that is no labgrid environment."""
    try:
        environment = Environment(str(path))
        targets = environment.config.get_targets()
    except WRONG as error:
        raise BoardMissing(f"{path}: {reason(error)}") from None
    if not isinstance(targets, dict) or not all(isinstance(target, dict) for target in targets.values()):
        raise BoardMissing(f"{path}: targets: must be a table of boards, each with resources: and drivers:")
    return environment


def names(path: Path) -> dict[str, str]:
    """Every board of a file, and why it is in quarantine; empty if it is not."""
    environment = load(path)
    return {name: quarantine(environment, name) for name in environment.config.get_targets()}


def quarantine(environment: Environment, name: str) -> str:
    """Why a board is not to be used: `options: {quarantine: REASON}` of its target."""
    return str(environment.config.get_target_option(name, "quarantine", "") or "")


def target(environment: Environment, name: str) -> Target:
    """One board of it with its drivers, of which none is active. Raises BoardMissing with the board, if it is described
    wrongly or in quarantine.
    """
    where = f"{environment.config_file}: board {name}"
    if why := quarantine(environment, name):
        raise Quarantined(f"{where} is in quarantine: {why}")
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
    """Raises BoardMissing if the board has none."""
    try:
        found: BoardStrategy = made.get_driver(BoardStrategy, activate=False)
    except NoSupplierFoundError as error:
        raise BoardMissing(f"board {made.name}: {reason(error)}") from None
    return found
