"""Boards of a labgrid environment: described, found or refused."""

import os
import re
import tty
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import pyudev
from labgrid.driver.fake import FakePowerDriver
from labgrid.factory import target_factory
from labgrid.resource.udev import UdevManager, USBSerialPort

from hil import drivers, real
from hil.boards import ROOT, BoardMissing
from hil.emulated import HOST
from hil.targets import open_board

DEADLINE_S = 60.0
NUMBER = "E6616408432C5B2F"
README = (ROOT / "hil" / "README.md").read_text()

Rig = Callable[[dict[str, Any]], Path]


DRIVERS = "MicroPythonDriver: {}, ManualPowerDriver: {}, NodeDriver: {host: LAN}"
ONE = f"  one: {{resources: {{RawSerialPort: {{port: /dev/ttyS9}}}}, drivers: {{{DRIVERS}}}}}\n"


def described(port: Path, on: str = "", off: str = "", **node: Any) -> dict[str, Any]:
    """A board on a serial port, in labgrid's words; without commands its switch is one that does nothing."""
    switch = {"cmd_on": on or "true", "cmd_off": off or "true"}
    return {
        "resources": [{"RawSerialPort": {"name": "repl", "port": str(port)}}],
        "drivers": {
            "MicroPythonDriver": {"bindings": {"port": "repl"}},
            **({"ExternalPowerDriver": switch} if on or off else {FakePowerDriver.__name__: {}}),
            "NodeDriver": node or {"host": HOST},
        },
    }


# The file


def test_the_boards_that_the_readme_describes_are_some(rig: Rig) -> None:
    (example,) = re.findall("```yaml\n(imports.*?)```", README, re.DOTALL)
    path = rig({})
    path.write_text(example)
    assert drivers.names(path) == ["pico-1", "pico-2"]
    made = drivers.node_of(drivers.load(path), "pico-1")
    assert made.line == "line"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"drivers": {}}, "NodeDriver"),
        ({"resources": [{"SerialPort": {"port": "x"}}]}, "unknown resource class SerialPort"),
        ({"resources": [{"RawSerialPort": {"port": "x", "sped": 9600}}]}, "unsupported attribute 'sped'"),
        ({"resources": [{"RawSerialPort": {"name": "repl"}}]}, "RawSerialPort must be configured with a port"),
        ({"NodeDriver": {}}, "either line (a UART) or host (a network)"),
        ({"NodeDriver": {"host": 12}}, "'host' must be"),
        ({"NodeDriver": {"host": "a", "patience_s": "long"}}, "'patience_s' must be"),
        ({"NodeDriver": {"host": "a", "ahead": 0}}, "'ahead' must be >= 1"),
        ({"NodeDriver": {"host": "a", "off_s": -1}}, "'off_s' must be >= 0"),
        ({"ExternalPowerDriver": {"cmd_on": "x"}}, "failed to create ExternalPowerDriver"),
    ],
)
def test_invalid_board_description_is_reported_with_reason(
    rig: Rig, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    board = described(tmp_path / "tty")
    for key, value in change.items():
        (board if key in board else board["drivers"])[key] = value
    rig({"bench": board})
    warnings.simplefilter("ignore")  # as where no tests run; pytest restores it
    with pytest.raises(BoardMissing, match=rf"board bench: .*{re.escape(reason)}"):
        open_board("bench", tmp_path / "flash")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Configuration file is empty"),
        ("targets: [", "Error in configuration file"),
        ("targets: [a]", "targets: must be a table"),
        ("targets: {}", "there are no boards: write them below targets:"),
        ("target: {}", "target: nobody reads that; there are imports, targets"),
        ("imports: hil.drivers\n", "imports needs to be list"),
        (f"targets:\n{ONE}{ONE}", "one stands there twice: give one another name"),
        (f"targets:\n{ONE}{ONE.replace('one', 'two')}", "boards one and two are described alike"),
        ("imports: [no_such_module]\n", "No module named 'no_such_module'"),
        ("targets: {a: {drivers: {NodeDriver: !template $LG_NO}}}", "refers to unknown variable 'LG_NO'"),
    ],
)
def test_invalid_rig_file_is_refused_with_path(rig: Rig, text: str, reason: str) -> None:
    path = rig({})
    path.write_text(text)
    with pytest.raises(BoardMissing, match=rf"^{path}: .*{re.escape(reason)}"):
        open_board("unix", path.parent / "flash")


# Identity


class Device(SimpleNamespace):
    """A serial port as udev shows it."""

    def __init__(self, node: str, number: str = NUMBER, path: str = "") -> None:
        found = {"ID_SERIAL_SHORT": number, "ID_PATH": path}
        above = SimpleNamespace(properties={"SUBSYSTEM": "usb"}, attributes={}, subsystem="usb")
        properties = {"SUBSYSTEM": "tty", **found}
        super().__init__(device_node=node, properties=properties, attributes={}, ancestors=[above], action=None)
        self.sys_path = f"/sys{node}{path}"


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """The ports of this machine."""
    UdevManager.get()  # labgrid's own, of which there is one, keeps the real ones
    found: list[Device] = []

    class Context(SimpleNamespace):
        def list_devices(self, **_: str) -> "Context":
            return self

        def match_subsystem(self, _: str) -> None: ...

        def __iter__(self) -> Iterator[Device]:
            return iter(found)

    monkeypatch.setattr(pyudev, "Context", Context)
    return found


def usb(**match: str) -> USBSerialPort:
    """A port that a file describes."""
    described = {"resources": {"USBSerialPort": {"match": match}}}
    return target_factory.make_target("bench", described).resources[0]


def test_two_ports_with_its_number_are_refused(plugged: list[Device]) -> None:
    plugged += [Device("/dev/null"), Device("/dev/zero")]
    port = usb(ID_SERIAL_SHORT=NUMBER)
    port.try_match(plugged[0])
    with pytest.raises(BoardMissing, match=f"2 ports have ID_SERIAL_SHORT {NUMBER}: /dev/null, /dev/zero"):
        real.url(port, 600.0)


# The REPL, on pseudo-terminals


@contextmanager
def plugged_in(port: Path, says: bytes) -> Iterator[None]:
    """A serial port with this name, whose board says this again and again, as who opens a port throws away what came
    before. Behind it the port is gone, and what is plugged in next has another terminal.
    """
    board, terminal = os.openpty()
    tty.setraw(terminal)
    os.set_blocking(board, False)
    stop = Event()

    def talk() -> None:
        while not stop.wait(0.01):
            with suppress(BlockingIOError):  # nobody reads
                os.write(board, says)

    talking = Thread(target=talk)
    talking.start()
    port.symlink_to(os.ttyname(terminal))
    try:
        yield
    finally:
        port.unlink()
        stop.set()
        talking.join()
        os.close(terminal)
        os.close(board)


def test_replugged_board_is_read_under_new_port_name(rig: Rig, tmp_path: Path) -> None:
    stop, heard = Event(), Queue[str]()
    driver = drivers.node_of(drivers.load(rig({"bench": described(tmp_path / "tty")})), "bench").micropython

    def listen() -> None:
        for line in driver.lines(stop):
            heard.put(line)

    listening = Thread(target=listen, daemon=True)
    listening.start()
    for turn in range(3):
        with plugged_in(tmp_path / "tty", f"life {turn} \xb5\r\n".encode("latin-1")):
            while heard.get(timeout=DEADLINE_S) != f"life {turn} \ufffd":
                pass  # what is left of the life before, or the end of a line
    stop.set()
    listening.join(DEADLINE_S)
    assert not listening.is_alive(), "there is no port, and nobody waits for it"


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (None, "board bench: no port .*/tty within 0 s"),
        (b"", "board bench shows no prompt; it says b''"),
        (b"alive\r\n", r"board bench shows no prompt; it says b'.*alive.*'"),
    ],
)
def test_a_dead_board_is_a_sentence_and_is_switched_off(
    says: bytes | None, reason: str, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real, "REPL_DEADLINE_S", 1.0)
    monkeypatch.setattr(real.url, "__defaults__", (0.0, None))
    port, switch = tmp_path / "tty", tmp_path / "switch"
    rig({"bench": described(port, *(f"sh -c 'echo {word} >> {switch}'" for word in ("on", "off")))})
    board = open_board("bench", tmp_path / "flash")
    with nullcontext() if says is None else plugged_in(port, says):
        with pytest.raises(OSError, match=reason), board.attended():
            pass
    assert switch.read_text().split()[-1] == "off"
    board.close()
