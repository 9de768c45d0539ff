"""Whether the boards of a lab work, or who uses them: `python -m hil.rig check|status [BOARD ...] [--lg-env FILE]`.

The file is that of --lg-env, or LG_ENV, or rig.yaml. Exit status: 0 all is well; 1 a board is not; 2 wrong use.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

try:
    from labgrid import Environment
except ModuleNotFoundError as error:
    sys.exit(f"python -m hil.rig needs {error.name}: `make setup-test` installs it")
from ordack.boards.claim import Claim
from ordack.boards.repl import CORE, NoBoard, dotted

from hil import drivers
from hil.boards import SENSOR, BoardMissing
from hil.real import LabBoard
from hil.targets import RIG, rig_file

OFF_S = 3.0
"""So long a board whose power is off must say nothing."""


class OutputError(Exception):
    """Standard output cannot be written."""


def _say(text: str) -> None:
    """Print at once, also into a pipe. Raises OutputError."""
    try:
        print(text, flush=True)
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {error.strerror}") from None


def check(environment: Environment, name: str) -> Iterator[str]:
    """Findings on a board, a sentence each. Raises BoardMissing and OSError for faults."""
    node = drivers.node_of(environment, name)
    board = LabBoard(node, SENSOR)
    try:
        yield board.describe()
        with board.asked() as repl:
            core, _, frozen = repl.run(CORE)
            yield f"{repl.info.machine}, MicroPython {dotted(repl.info.version)}, {repl.info.heap_free} bytes free"
        found = f"core {core}, {'frozen into the firmware' if frozen else 'in files'}"
        yield found if core else "it has no modules of ordack: a campaign brings them"
        if node.micropython.answers(OFF_S):
            raise OSError("it answers although its power is off: the switch is another board's, or USB feeds it")
        yield "silent when its power is off"
    finally:
        board.close()


def status(environment: Environment, name: str) -> Iterator[str]:
    """The holder of a board. Raises BoardMissing."""
    node = drivers.node_of(environment, name)
    try:
        Claim("somebody who looks", node.identity).release()
        yield "free"
    except NoBoard as in_use:
        yield str(in_use)
    finally:
        node.target.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="hil.rig", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("check", "status"))
    parser.add_argument("board", nargs="*", help="boards of the file (default: all)")
    parser.add_argument("--lg-env", help="the file of boards")
    words = parser.parse_intermixed_args(arguments)
    if words.lg_env:
        os.environ["LG_ENV"] = words.lg_env
    try:
        path = rig_file()
        if path is None:
            raise BoardMissing(f"there is no {RIG}: hil/README.md shows one, or give --lg-env FILE")
        environment = drivers.load(path)
        known = environment.config.get_targets()
        if unknown := [name for name in words.board if name not in known]:
            raise BoardMissing(f"{path}: no board {', '.join(unknown)}; there are: {', '.join(known)}")
    except BoardMissing as reason:
        print(reason, file=sys.stderr)
        return 2
    well = True
    for name in words.board or known:
        try:
            for line in (check if words.command == "check" else status)(environment, name):
                _say(f"{name}: {line}")
        except (BoardMissing, OSError) as reason:
            _say(f"{name}: FAILED: {reason}")
            well = False
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OutputError as error:
        sys.exit(f"rig: {error}")
