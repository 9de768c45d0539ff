"""The boards of a lab from the command line: what is plugged in, and what works.

    hil.rig scan                      a first rig.yaml, from the serial ports that are here
    hil.rig check [BOARD ...]         firmware and power of every board
    hil.rig flash BOARD               load the firmware that the file names; the board is off then

The file is that of --lg-env, or LG_ENV, or rig.yaml. Exit status: 0 all is well; 1 a board is not; 2 wrong use.
"""

import argparse
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

try:
    import pyudev
    import yaml
    from labgrid import Environment
    from labgrid.strategy import StrategyError
except ModuleNotFoundError as error:
    sys.exit(f"python -m hil.rig needs {error.name}: `make setup-test` installs it")
from ordack.boards.repl import CORE, dotted
from ordack.cli.output import OutputError

from hil import drivers
from hil.boards import BoardMissing, Quarantined
from hil.targets import RIG, rig_file

OFF_S = 3.0
"""So long a board whose power is off must say nothing."""


def scan() -> dict[str, Any]:
    """A file of boards with every USB serial port of this machine. Raises BoardMissing if there is none, or if two
    cannot be told apart.
    """
    ports = []
    for device in pyudev.Context().list_devices(subsystem="tty"):
        has = device.properties
        if has.get("ID_BUS") == "usb":
            interface = {"ID_USB_INTERFACE_NUM": has["ID_USB_INTERFACE_NUM"]} if "ID_USB_INTERFACE_NUM" in has else {}
            number, path = has.get("ID_SERIAL_SHORT"), has.get("ID_PATH")
            ports.append((device.device_node, {"ID_SERIAL_SHORT": number, **interface}, {"ID_PATH": path, **interface}))
    if not ports:
        raise BoardMissing("udev knows no USB serial port here: is a board plugged in, and is this no container?")
    times = Counter(str(match) for _, *matches in ports for match in matches)
    boards: dict[str, Any] = {}
    for _, *matches in ports:
        match = next((one for one in matches if None not in one.values() and times[str(one)] == 1), None)
        if match is None:
            same = [other for other, *others in ports if others == matches]
            raise BoardMissing(f"{', '.join(same)} have the same serial number and place: unplug all but one of them")
        boards[f"board-{len(boards) + 1}"] = {
            "resources": {"USBSerialPort": {"match": match}},
            "drivers": {
                "MicroPythonDriver": {},
                "ManualPowerDriver": {},
                "NodeDriver": {"host": _own_address()},
                "BoardStrategy": {},
            },
        }
    return {"imports": ["hil.drivers"], "targets": boards}


def _own_address() -> str:
    """The address of this machine in the network of its default route; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def check(environment: Environment, name: str) -> Iterator[str]:
    """What is found of a board, a sentence each. Raises BoardMissing and OSError for what is not as it must be."""
    strategy = drivers.strategy(drivers.target_of(environment, name))
    board = strategy.open()
    try:
        yield board.describe()
        with board.asked() as repl:
            core, _, frozen = repl.run(CORE)
            yield f"{repl.info.machine}, MicroPython {dotted(repl.info.version)}, {repl.info.heap_free} bytes free"
        found = f"core {core}, {'frozen into the firmware' if frozen else 'in files'}"
        yield found if core else "it has no modules of ordack: a campaign brings them"
        if strategy.node.micropython.answers(OFF_S):
            raise OSError("it answers although its power is off: the switch is another board's, or USB feeds it")
        yield "silent when its power is off"
    finally:
        board.close()


def flash(environment: Environment, name: str) -> str:
    """Load the firmware that the file names; which. Raises BoardMissing and OSError."""
    strategy = drivers.strategy(drivers.target_of(environment, name))
    if strategy.image is None:
        raise BoardMissing("its BoardStrategy names no firmware, such as {firmware: pico}, of images: of the file")
    board = strategy.open()
    try:
        board.kill()
        strategy.flash()
    except StrategyError as error:
        raise OSError(error.msg) from None
    finally:
        board.close()
    return f"{strategy.image} is loaded"


def _each(environment: Environment, words: Any) -> bool:
    """The command for each board that is meant; whether all is well."""
    well = True
    for name in words.board or environment.config.get_targets():
        try:
            lines = check(environment, name) if words.command == "check" else [flash(environment, name)]
            for line in lines:
                _say(f"{name}: {line}\n")
        except (BoardMissing, OSError) as reason:
            is_expected = isinstance(reason, Quarantined) and words.command == "check"
            _say(f"{name}: {'' if is_expected else 'FAILED: '}{reason}\n")
            well &= is_expected
    return well


def _say(text: str) -> None:
    """At once, also into a pipe. Raises OutputError, and BrokenPipeError if its reader has gone."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="hil.rig", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("scan", "check", "flash"))
    parser.add_argument("board", nargs="*", help="boards of the file (default of check: all)")
    parser.add_argument("--lg-env", help="the file of boards")
    words = parser.parse_intermixed_args(arguments)
    if words.lg_env:
        os.environ["LG_ENV"] = words.lg_env
    try:
        if words.command == "scan":
            _say(yaml.safe_dump(scan(), sort_keys=False))
            return 0
        path = rig_file()
        if path is None:
            raise BoardMissing(f"there is no {RIG}: `python -m hil.rig scan` begins one, or give --lg-env FILE")
        environment = drivers.load(path)
        known = environment.config.get_targets()
        if unknown := [name for name in words.board if name not in known]:
            raise BoardMissing(f"{path}: no board {', '.join(unknown)}; there are: {', '.join(known)}")
        if words.command == "flash" and not words.board:
            raise BoardMissing(f"{words.command} which board? {path} has {', '.join(known)}")
    except BoardMissing as reason:
        print(reason, file=sys.stderr)
        return 2
    return 0 if _each(environment, words) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # its reader has seen enough
        sys.exit(1)
    except OutputError as error:
        sys.exit(f"rig: {error}")
