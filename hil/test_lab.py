"""Boards of a labgrid environment: described, found or refused, locked, and driven. The real board here is a Cortex-M3
in QEMU: its REPL is on a pseudo-terminal that has a new name at each power-up, as the port of a real board may have.
"""

import ast
import asyncio
import hashlib
import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import time
import tty
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import attr
import pytest
import pyudev
import serial
import serial.rfc2217
import typer
import yaml
from elftools.elf.elffile import ELFFile
from labgrid.driver import Driver
from labgrid.driver.fake import FakePowerDriver
from labgrid.factory import target_factory
from labgrid.protocol import BootstrapProtocol
from labgrid.resource.udev import UdevManager, USBSerialPort
from labgrid.strategy import StrategyError
from ordack.boards import claim
from ordack.boards.claim import Claim
from ordack.boards.repl import NoBoard, Silent
from ordack.cli import command_line
from ordack.cli import rig as rig_of_ordack
from rich.console import Console
from typer.testing import CliRunner

from hil import campaign, drivers, lab, sensor, targets, wiring
from hil.boards import POWER, RESET, ROOT, SENSOR, Board, BoardMissing, RigFailed
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.drivers import LabBoard
from hil.emulated import HOST, ICOUNT, M3
from hil.kinds import KINDS
from hil.part import digest
from hil.report import RIG_FAILED, read_ledger
from hil.rig import main as rig_command
from hil.scenario import BOARD, COPY, DEPLOY, ERASE, FLIP, ORDACK, REFLASH, Kill, Settings, kills_of, planned, read
from hil.targets import open_board

DEADLINE_S = 60.0
NUMBER = "E6616408432C5B2F"
README = (ROOT / "hil" / "README.md").read_text()

Rig = Callable[[dict[str, Any]], Path]


@pytest.fixture(autouse=True)
def folder_of_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test meets a board that is in use here, or that another one has loaded a firmware into."""
    monkeypatch.setattr(drivers, "_LOADED", {})
    monkeypatch.setattr(claim, "FOLDER", tmp_path)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Makes the file of boards that is used."""

    def make(described: dict[str, Any]) -> Path:
        path = tmp_path / "rig.yaml"
        path.write_text(yaml.safe_dump({"imports": ["hil.drivers"], "targets": described}, sort_keys=False))
        monkeypatch.setenv("LG_ENV", str(path))
        return path

    return make


def described(port: Path, on: str = "", off: str = "", **node: Any) -> dict[str, Any]:
    """A board on a serial port, in labgrid's words; without commands its switch is one that does nothing."""
    switch = {"cmd_on": on or "true", "cmd_off": off or "true"}
    return {
        "resources": [{"RawSerialPort": {"name": "repl", "port": str(port)}}],
        "drivers": {
            "MicroPythonDriver": {"bindings": {"port": "repl"}},
            **({"ExternalPowerDriver": switch} if on or off else {FakePowerDriver.__name__: {}}),
            "NodeDriver": node or {"host": HOST},
            "BoardStrategy": {},
        },
    }


# The file


def test_the_emulated_boards_are_targets_of_a_file_each() -> None:
    assert lab.names(ROOT / "hil" / "emulated.yaml") == dict.fromkeys(KINDS, "")
    environment = lab.load(ROOT / "hil" / "emulated.yaml")
    for name in KINDS:
        assert lab.target(environment, name).get_resource("EmulatedMachine").kind == name


def test_the_boards_that_the_readme_describes_are_some(rig: Rig) -> None:
    example, computer = re.findall("```yaml\n(imports.*?)```", README, re.DOTALL)
    path = rig({})
    path.write_text(example)
    assert lab.names(path) == {"pico-1": "", "pico-2": "its regulator is burnt, ask Ada"}
    made = lab.target(lab.load(path), "pico-1")
    assert lab.strategy(made).node.line == "line"
    with pytest.raises(BoardMissing, match="board pico-2 is in quarantine: its regulator is burnt, ask Ada"):
        open_board("pico-2", path.parent / "flash")
    path.write_text(computer)
    assert lab.strategy(lab.target(lab.load(path), "pi-1")).node.identity == "pi@192.168.1.30:22"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"drivers": {}}, "no BoardStrategy driver"),
        ({"drivers": {"BoardStrategy": {}}}, "binding BoardStrategy failed"),
        ({"resources": [{"SerialPort": {"port": "x"}}]}, "unknown resource class SerialPort"),
        ({"resources": [{"RawSerialPort": {"port": "x", "sped": 9600}}]}, "unsupported attribute 'sped'"),
        ({"resources": [{"RawSerialPort": {"name": "repl"}}]}, "RawSerialPort must be configured with a port"),
        ({"NodeDriver": {}}, "either line (a UART) or host (a network)"),
        ({"NodeDriver": {"host": "a", "line": "b"}}, "either line (a UART) or host (a network)"),
        ({"NodeDriver": {"host": 12}}, "'host' must be"),
        ({"NodeDriver": {"host": "a", "patience_s": "long"}}, "'patience_s' must be"),
        ({"NodeDriver": {"host": "a", "ahead": 0}}, "'ahead' must be >= 1"),
        ({"NodeDriver": {"host": "a", "off_s": -1}}, "'off_s' must be >= 0"),
        ({"NodeDriver": {"host": "a", "dips_s": "long"}}, "'dips_s' must be"),
        ({"NodeDriver": 17}, "drivers: NodeDriver has to be a table"),
        ({"resources": 17}, "resources has to be a table"),
        ({"resources": ["a"]}, "resources has to be a table"),
        ({"resources": {"USBSerialPort": {"match": "a"}}}, "USBSerialPort: match has to be a table"),
        ({"resources": {"USBSerialPort": {"match": {"ID_SERIAL_SHORT": 12}}}}, "12 is no text: put it in quotes"),
        ({"resources": {"USBSerialPort": {}}}, "without a match any port fits"),
        ({"BoardStrategy": {"firmware": "new"}}, "firmware: 'new' is none of images: of the file: none"),
        ({"BoardStrategy": {"other": "new"}}, "other: 'new' is none of images: of the file: none"),
        ({"ExternalPowerDriver": {"cmd_on": "x"}}, "failed to create ExternalPowerDriver"),
    ],
)
def test_a_board_that_is_described_wrongly_is_named_with_the_reason(
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
        ("targets: {a: 1}", "targets: must be a table"),
        ("targets: {}", "there are no boards: write them below targets:"),
        ("target: {}", "target: nobody reads that; there are imports, targets"),
        ("targets: {a: {}}\nimages: 17", "images has to be a table"),
        ("imports: hil.drivers\n", "imports needs to be list"),
        ("imports: [no_such_module]\n", "No module named 'no_such_module'"),
        ("targets: {a: {drivers: {BoardStrategy: !template $LG_NO}}}", "refers to unknown variable 'LG_NO'"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(rig: Rig, text: str, reason: str) -> None:
    path = rig({})
    path.write_text(text)
    with pytest.raises(BoardMissing, match=rf"^{path}: .*{re.escape(reason)}"):
        open_board("unix", path.parent / "flash")


def mistakes(described: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key that is one of ours or labgrid's, with an x at its end, and the table with it; and each that has a
    value, with the table in which that is a table. Of bindings labgrid says what is not found in their place.
    """
    for key, value in described.items():
        if not key.startswith(("pico", "pi-", "ID_")):
            yield f"{key}x", {(f"{key}x" if name == key else name): one for name, one in described.items()}
        parts = value if isinstance(value, list) else [value]
        for turn, part in enumerate(parts if key != "bindings" else ()):
            for wrong, other in mistakes(part) if isinstance(part, dict) else [(key, {"a": 1})]:
                yield wrong, {**described, key: [*parts[:turn], other, *parts[turn + 1 :]] if parts is value else other}


def test_every_key_of_the_readme_that_is_misspelt_or_has_another_kind_of_value_is_named(rig: Rig) -> None:
    path, tried = rig({}), set()
    for text in re.findall("```yaml\n(imports.*?)```", README, re.DOTALL):
        whole = yaml.safe_load(text)
        for name, board in whole["targets"].items():
            board.pop("options", None)  # a board in quarantine is looked at no further
            for wrong, changed in mistakes({**whole, "targets": {name: board}}):
                path.write_text(yaml.safe_dump(changed, sort_keys=False))
                with pytest.raises(BoardMissing, match=rf"^(board {name}|{path}).*\b{wrong}\b"):
                    lab.strategy(lab.target(lab.load(path), name))
                tried.add(wrong)
    assert {"targetsx", "driversx", "matchx", "NodeDriverx", "off_sx", "connection_timeoutx"} <= tried
    assert {"imports", "ID_PATH", "cmd_on", "off_s", "host", "index", "interpreter", "connection_timeout"} <= tried


def test_a_board_whose_quarantine_is_misspelt_is_not_used(rig: Rig, tmp_path: Path) -> None:
    """Else its power would be switched, which it was to be kept from."""
    for options in ({"quarantin": "it is burnt"}, "it is burnt"):
        path = rig({"bench": {**described(tmp_path / "tty"), "options": options}})
        assert lab.names(path) == {"bench": ""}
        reason = "options(: quarantin: nobody reads that| has to be a table)"
        with pytest.raises(BoardMissing, match=f"^{path}: board bench: {reason}"):
            open_board("bench", tmp_path / "flash")


def test_a_file_that_is_not_there_and_a_board_that_is_not_in_it_are_named(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig({"bench": described(tmp_path / "tty")})
    with pytest.raises(BoardMissing, match="no board 'pico'"):
        open_board("pico", tmp_path / "flash")
    assert open_board("cpython", tmp_path / "flash").describe().startswith("cpython: ")
    monkeypatch.setenv("LG_ENV", str(tmp_path / "no.yaml"))
    with pytest.raises(BoardMissing, match=r"no\.yaml' could not be found"):
        open_board("unix", tmp_path / "flash")


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


def test_a_board_is_found_by_its_number_or_by_where_it_is_plugged_in(plugged: list[Device]) -> None:
    plugged += [Device("/dev/ttyACM1", "other", "pci-usb-0:1"), Device("/dev/null", NUMBER, "pci-usb-0:2")]
    for match in ({"ID_SERIAL_SHORT": NUMBER}, {"ID_PATH": "pci-usb-0:2"}):
        port = usb(**match)
        for device in plugged:
            port.try_match(device)
        assert drivers.url(port, 0.0) == "/dev/null"
        (key, value) = match.popitem()
        assert drivers.identity(port) == f"{key} {value}"


def test_two_ports_with_its_number_are_refused(plugged: list[Device]) -> None:
    plugged += [Device("/dev/null"), Device("/dev/zero")]
    port = usb(ID_SERIAL_SHORT=NUMBER)
    port.try_match(plugged[0])
    with pytest.raises(BoardMissing, match=f"2 ports have ID_SERIAL_SHORT {NUMBER}: /dev/null, /dev/zero"):
        drivers.url(port, 600.0)


def test_a_board_that_does_not_come_is_named_and_one_that_comes_late_or_again_is_found(
    plugged: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugged == []
    port = usb(ID_SERIAL_SHORT=NUMBER)
    with pytest.raises(BoardMissing, match=f"board bench: no port ID_SERIAL_SHORT {NUMBER} within 0.05 s"):
        drivers.url(port, 0.05)
    events = iter([Device("/dev/x", "other"), Device("/dev/null")])
    monkeypatch.setattr(port, "poll", lambda: port.try_match(next(events)))
    assert drivers.url(port, 600.0) == "/dev/null"
    gone, again = Device("/dev/null"), Device("/dev/zero")
    gone.action, again.action = "remove", "add"
    events = iter([gone, again])
    assert drivers.url(port, 600.0) == "/dev/zero"


def test_ports_of_a_network_are_those_of_ser2net() -> None:
    for protocol, expected in (("rfc2217", "rfc2217://lab:4001?ign_set_control"), ("raw", "socket://lab:4001")):
        port = {"NetworkSerialPort": {"host": "lab", "port": 4001, "protocol": protocol}}
        made = target_factory.make_target("bench", {"resources": port}).resources[0]
        assert (drivers.url(made), drivers.identity(made)) == (expected, "lab:4001")


def test_one_user_at_a_time_and_the_other_is_told_who() -> None:
    first = Claim("a campaign on pico-1", NUMBER)
    with pytest.raises(NoBoard, match=r"in use: a campaign on pico-1, process \d+, since"):
        Claim("another", NUMBER)
    Claim("another", "other number").release()
    first.release()
    Claim("another", NUMBER).release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_another_user_of_this_machine_is_told_who_has_it_and_can_have_it_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(dir="/tmp") as folder:  # as /tmp is
        Path(folder).chmod(0o1777)
        monkeypatch.setattr(claim, "FOLDER", Path(folder))

        def lock(user: int, reason: str) -> Claim:
            os.seteuid(user)
            try:
                return Claim(reason, NUMBER)
            finally:
                os.seteuid(0)

        first = lock(1001, "a campaign of ada")
        with pytest.raises(NoBoard, match="in use: a campaign of ada, process"):
            lock(1002, "a campaign of bob")
        first.release()
        second = lock(1002, "a campaign of bob")
        with pytest.raises(NoBoard, match="in use: a campaign of bob, process"):
            lock(1001, "another")
        second.release()


def test_one_usb_device_is_one_board_however_it_is_described(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as somebody has it, also while its power is off."""
    where = SimpleNamespace(location="1-3:1.0")
    monkeypatch.setattr(
        claim, "SysFS", lambda path: where if path == "/dev/ttyACM7" else SimpleNamespace(location=None)
    )
    board = described(tmp_path / "tty")
    for name, match in (("serial", {"ID_SERIAL_SHORT": NUMBER}), ("path", {"ID_PATH": "pci-usb-0:3:1.0"})):
        resources = [{"USBSerialPort": {"name": "repl", "match": match}}]
        rig(
            {"serial": {**board, "resources": resources}}
            if name == "serial"
            else {"path": {**board, "resources": resources}}
        )
        if name == "serial":
            first = open_board("serial", tmp_path / "flash")
            assert isinstance(first, LabBoard)
            port = first._node.micropython.port  # noqa: SLF001 - as udev fills it in
            port.device = Device("/dev/ttyACM7", NUMBER, "pci-usb-0:3:1.0")
            with pytest.raises(OSError, match="ttyACM7"):
                first._node.micropython._opened("/dev/ttyACM7", 1.0)  # noqa: SLF001 - it is seen
        else:
            with pytest.raises(BoardMissing, match="in use: a campaign on serial"):
                open_board("path", tmp_path / "flash")
    with pytest.raises(NoBoard, match="in use: a campaign on serial"):
        Claim("ordack board", *claim.names_of("/dev/ttyACM7"))
    first.close()
    Claim("ordack board", *claim.names_of("/dev/ttyACM7")).release()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time; from ordack.boards import claim; claim.FOLDER = pathlib.Path(sys.argv[1])\n"
        f"lock = claim.Claim('a campaign', {NUMBER!r})\n"
        "print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(NoBoard, match="in use"):
            Claim("another", NUMBER)
        process.kill()
        process.wait(DEADLINE_S)
    Claim("another", NUMBER).release()


def test_a_file_of_boards_where_labgrid_is_not_installed_says_what_installs_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that has only run `make run` has the emulated boards, and no labgrid."""
    path = rig({"bench": described(tmp_path / "tty")})
    for name in ("hil.lab", "labgrid"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("hil.lab")
    with pytest.raises(BoardMissing, match=rf"^{path} needs \S+: `make setup-test` installs it$"):
        open_board("bench", tmp_path / "flash")
    monkeypatch.delenv("LG_ENV")
    monkeypatch.setattr(targets, "RIG", tmp_path / "none.yaml")
    assert open_board("cpython", tmp_path / "flash").target == "cpython"


# A board


SWITCH = """
cd "$1"
if test -e running; then
    test "$2" = off || exit 0
    rm tty
    kill -9 "$(cat running)"
    rm running
fi
test "$2" = on || exit 0
: >out
setsid $(cat command) </dev/null >out 2>&1 &
until read -r said <out; do
    kill -0 $! || { cat out >&2; exit 1; }
    sleep 0.02
done
echo $! >running
said=${said#*redirected to }
ln -s "${said% (*}" tty
"""


class Bench:
    """A board on a bench: a Cortex-M3 whose REPL is on a pseudo-terminal, with a switch for its power, and what loads
    its firmware.
    """

    def __init__(self, folder: Path, rig: Rig) -> None:
        folder.mkdir()
        command = [str(word) for word in M3.command("flash", "heap=64")]
        command += ["-serial", "pty", "-nic", "user,model=lan9118"]
        (folder / "command").write_text(" ".join(command))
        (folder / "switch").write_text(SWITCH)
        self.tty = folder / "tty"
        self.off = f"sh {folder}/switch {folder} off"
        self.on = self.off.removesuffix("off") + "on"
        self.loader = {"cmd": f"sed -i 's|-kernel [^ ]*|-kernel {{image}}|' {folder}/command"}
        self.described = described(self.tty, self.on, self.off, host=HOST, listen="127.0.0.1", lan=True, off_s=0.1)
        rig({"bench": self.described})

    def open(self, application: Path = SENSOR) -> Board:
        return open_board("bench", self.tty.parent, application)


@pytest.fixture
def bench(tmp_path: Path, rig: Rig) -> Iterator[Bench]:
    if not M3.firmware.exists():
        pytest.skip("`make firmware` builds the firmware of this board")
    made = Bench(tmp_path / "bench", rig)
    yield made
    subprocess.run([*made.off.split()], check=True, timeout=DEADLINE_S)


APPLICATION = """
import time


async def main(path):
    with open("lives", "a") as file:
        file.write("x")
    while True:
        print("alive")
        time.sleep(0.1)
"""


@pytest.mark.timeout(180)
def test_a_board_is_given_its_application_cut_off_and_read(bench: Bench, application: Path) -> None:
    board = bench.open(application)
    assert (board.ways, board.listen, board.line) == ((POWER,), "127.0.0.1", None)
    with pytest.raises(BoardMissing, match="in use: a campaign on bench"):
        bench.open(application)
    try:
        for life in (1, 2):
            if life == 1:
                board.start({"outbox": "outbox"})
            else:
                board.power_up()
            mark = board.log.mark()
            assert board.log.wait_for(lambda text: text == "alive", DEADLINE_S, mark).life == board.life
            assert board.alive
            board.kill()
            assert not bench.tty.exists()
        assert board.read_file("lives") in (b"xx", b"xxx")  # one more life, if it got so far before it was interrupted
        assert board.read_file("nothing") == b""
        assert b'"lan": true' in board.read_file("config.json")
        board.start({"outbox": "outbox"})
        board.kill()
    finally:
        board.close()
    bench.open(application).close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_on", [True, False])
def test_a_command_leaves_a_board_alone_that_a_campaign_has(bench: Bench, application: Path, is_on: bool) -> None:
    """Other programs, too, while it is on: the port is opened exclusively."""
    board = bench.open(application)
    try:
        board.start({"outbox": "outbox"})
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S)
        if not is_on:
            board.kill()
        done = subprocess.run(
            [sys.executable, "-m", "ordack", "board", "doctor", "--port", bench.tty],
            env={**os.environ, "TMPDIR": str(claim.FOLDER)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 5
        assert "in use: a campaign on bench, process" in done.stderr
        if is_on:
            with pytest.raises(serial.SerialException, match="exclusively lock"):
                serial.Serial(str(bench.tty), exclusive=True)
            board.log.wait_for(lambda text: text == "alive", DEADLINE_S, board.log.mark())
    finally:
        board.close()


@pytest.mark.timeout(180)
def test_what_a_board_says_before_it_is_interrupted_is_in_its_log_and_what_is_done_at_one_go_switches_it_once(
    bench: Bench, application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = bench.open(application)
    assert isinstance(board, LabBoard)
    try:
        board.start({"outbox": "outbox"})
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S)
        board.kill()
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "1.log").write_bytes(b"reading")
        (tmp_path / "files" / "2.log").write_bytes(bytes(range(256)) * 9)
        mark, switched = board.log.mark(), list[str]()
        on = board.switch.on

        def counted() -> None:
            switched.append("on")
            on()

        monkeypatch.setattr(board.switch, "on", counted)
        with board.attended():
            with pytest.raises(FileNotFoundError, match="board bench: outbox is not there"):
                board.erase("outbox", tmp_path / "taken")
            board.put("outbox", tmp_path / "files")
            board.erase("outbox", tmp_path / "taken")
            board.put("outbox", tmp_path / "taken")
        assert switched == ["on"]
        assert any("KeyboardInterrupt" in line.text for line in board.log.since(mark))
        assert board.read_file("outbox/2.log") == bytes(range(256)) * 9
        assert sorted(file.name for file in (tmp_path / "taken").iterdir()) == ["1.log", "2.log"]
    finally:
        board.close()


@pytest.mark.timeout(180)
def test_a_deploy_to_a_board_whose_watchdog_does_not_bite_is_told_and_the_board_is_off(
    bench: Bench, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.write_text(application.read_text().replace('print("alive")', "print('\"started\"')"))
    board = bench.open(application)
    try:
        board.start({"outbox": "outbox"})
        board.kill()
        monkeypatch.setattr(drivers, "WATCHDOG_DEADLINE_S", 0.5)
        with pytest.raises(OSError, match=r"^board bench: no watchdog has bitten within 0.5 s$"):
            board.redeploy()
        assert not bench.tty.exists()
        assert board.read_file("lives").startswith(b"xx")
    finally:
        board.close()


@pytest.mark.timeout(180)
def test_a_board_with_a_program_of_its_own_is_left_alone(bench: Bench, application: Path) -> None:
    board = bench.open(application)
    assert isinstance(board, LabBoard)
    try:
        with board.asked() as repl:
            repl.write("main.py", b"# main.py -- put your code here!\r\n")  # as on a new STM32
        board.deploy({"outbox": "outbox"})
        board.deploy({"outbox": "outbox"})
        with board.asked() as repl:
            repl.write("main.py", b"# press 3\nimport press\n")
        with pytest.raises(OSError, match=r"board bench has a main.py that is not the rig's: save what it is to keep"):
            board.deploy({"outbox": "elsewhere"})
        assert not bench.tty.exists()
        assert board.read_file("main.py") == b"# press 3\nimport press\n"
        assert board.read_file("config.json").startswith(b'{"outbox": "outbox"')
    finally:
        board.close()


def read_by_the_board(firmware: Path) -> str:
    """SHA-256 of what a Cortex-M3 in QEMU has at 0, up to the first 4 KiB that are all alike."""
    with firmware.open("rb") as file:
        segments = [(part["p_paddr"], part.data()) for part in ELFFile(file).iter_segments("PT_LOAD") if part.data()]
    code = bytearray(max(start + len(data) for start, data in segments) + 8192)
    for start, data in segments:
        code[start : start + len(data)] = data
    blocks = [bytes(code[start : start + 4096]) for start in range(0, len(code) - 4096, 4096)]
    alike = next(number for number, block in enumerate(blocks) if len(set(block)) == 1)
    return hashlib.sha256(b"".join(blocks[:alike])).hexdigest()


@pytest.mark.timeout(180)
def test_a_board_says_which_firmware_it_has(bench: Bench, application: Path) -> None:
    board = bench.open(application)
    try:
        assert board.firmware() == read_by_the_board(M3.firmware)
        assert not bench.tty.exists()
        command = bench.tty.parent / "command"
        command.write_text(command.read_text().replace(str(M3.firmware), str(M3.twin)))
        assert board.firmware() == read_by_the_board(M3.twin)
    finally:
        board.close()


@pytest.mark.timeout(180)
def test_a_board_that_disappears_is_noticed(bench: Bench, application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = bench.open(application)
    try:
        board.start({"outbox": "outbox"})
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S)
        monkeypatch.setattr(drivers.url, "__defaults__", (0.2, None))
        subprocess.run([*bench.off.split()], check=True, timeout=DEADLINE_S)
        end = time.monotonic() + DEADLINE_S

        def wait() -> None:
            while board.alive:
                assert time.monotonic() < end

        with pytest.raises(OSError, match=f"^board bench: no port {bench.tty} within"):
            wait()
        assert f"board bench: no port {bench.tty} within" in board.log.tail(1)
    finally:
        board.close()


def test_a_switch_that_fails_is_told(rig: Rig, tmp_path: Path) -> None:
    rig({"bench": described(tmp_path / "tty", off=f"{sys.executable} -c 'import sys; sys.exit(\"no hub\")'")})
    board = open_board("bench", tmp_path / "flash")
    for _ in range(2):
        with pytest.raises(OSError, match=r"board bench: .*status 1.* no hub"):
            board.kill()
    with pytest.raises(OSError, match="no hub"):
        board.close()
    Claim("another", str(tmp_path / "tty")).release()


def test_a_board_that_is_switched_by_hand_asks_at_a_terminal_and_elsewhere_says_so(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    board = described(tmp_path / "tty")
    del board["drivers"][FakePowerDriver.__name__]
    rig({"bench": {**board, "drivers": {"ManualPowerDriver": {}, **board["drivers"]}}})
    answers = StringIO("\n\n")
    monkeypatch.setattr(sys, "stdin", answers)
    assert rig_command(["check"]) == 1
    reason = r"board bench is switched by hand \(ManualPowerDriver\), and nobody is at a terminal here"
    assert re.search(f"^bench: FAILED: {reason}", capsys.readouterr().out, re.MULTILINE)
    assert answers.tell() == 0
    monkeypatch.setattr(answers, "isatty", lambda: True)
    opened = open_board("bench", tmp_path / "flash")
    opened.kill()
    assert "Turn the target bench OFF and press enter" in capsys.readouterr().out
    opened.close()


@contextmanager
def relay(*commands: str) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """A Shelly of the second generation on loopback, which runs one of two commands to switch off and on, or fails; its
    port in labgrid's words, and what it was asked.
    """
    asked: list[Any] = []

    class Relay(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            on = asked[-1][1]["params"]["on"]
            failed = bool(commands) and subprocess.run(shlex.split(commands[on]), timeout=DEADLINE_S).returncode
            self.send_response(500 if failed else 200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Relay) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield {"model": "shelly_gen2", "host": f"http://127.0.0.1:{server.server_port}", "index": 0}, asked
        server.shutdown()


def switched_by(port: dict[str, Any], board: dict[str, Any]) -> dict[str, Any]:
    """This board with its power at a relay in a network."""
    board["resources"].append({"NetworkPowerPort": port})
    board["drivers"] = {"NetworkPowerDriver": {}, **board["drivers"]}
    for other in ("ExternalPowerDriver", FakePowerDriver.__name__):
        board["drivers"].pop(other, None)
    return board


def test_a_relay_in_a_network_is_asked_by_http_and_one_that_fails_or_is_gone_is_told(rig: Rig, tmp_path: Path) -> None:
    with relay("true", "false") as (port, asked):
        rig({"bench": switched_by(port, described(tmp_path / "tty"))})
        board = open_board("bench", tmp_path / "flash")
        board.kill()
        with pytest.raises(OSError, match=r"board bench: 500 Server Error"):
            board.power_up()
        said = [(path, one["method"], int(one["params"]["id"]), one["params"]["on"]) for path, one in asked]
        assert said == [("/rpc", "Switch.Set", 0, on) for on in (False, True)]
    with pytest.raises(OSError, match=r"board bench: .*Connection refused"):
        board.close()


def test_a_relay_that_takes_what_it_is_told_and_does_not_answer_holds_nobody_up(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "SWITCH_DEADLINE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = {"model": "shelly_gen2", "host": f"http://127.0.0.1:{silent.getsockname()[1]}", "index": 0}
        rig({"bench": switched_by(port, described(tmp_path / "tty"))})
        board = open_board("bench", tmp_path / "flash")
        for what in (board.power_up, board.kill, board.close):
            with pytest.raises(OSError, match=r"^board bench: its power switch has not answered for 0.2 s"):
                what()
    Claim("another", str(tmp_path / "tty")).release()


def test_a_board_stays_off_for_the_time_that_it_needs(rig: Rig, tmp_path: Path) -> None:
    rig({"bench": described(tmp_path / "tty", host=HOST, off_s=1)})
    board = open_board("bench", tmp_path / "flash")
    board.kill()
    begun = time.monotonic()
    board.power_up()
    assert time.monotonic() >= begun + 0.9
    board.close()  # at once, though its port does not come
    assert time.monotonic() < begun + drivers.PORT_DEADLINE_S


@pytest.mark.parametrize(("node", "on_s"), [({"host": HOST}, 0.0), ({"host": HOST, "dips_s": 2}, 2.0)])
def test_a_real_board_browns_out_only_if_its_file_says_that_it_bears_it(
    rig: Rig, tmp_path: Path, node: dict[str, Any], on_s: float
) -> None:
    """A relay wears, and a person who throws a switch tires."""
    rig({"bench": described(tmp_path / "tty", **node)})
    board = open_board("bench", tmp_path / "flash")
    plan = planned(Settings(90, 0, 40, new_seed(), "bench", 99), board).plan or ()
    longest = max(kill.on_s for kill in kills_of(plan, BOARD))
    assert (0.0 < longest <= on_s) == any(kill.dips for kill in kills_of(plan, BOARD)) == (on_s > 0)
    board.close()


def test_a_line_and_a_button_are_found_or_the_board_is_let_go(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers.url, "__defaults__", (0.0, None))
    board = described(tmp_path / "tty", line="uart")
    board["resources"].append({"RawSerialPort": {"name": "uart", "port": str(tmp_path / "uart")}})
    (tmp_path / "button").touch()
    board["drivers"] |= {
        "FileDigitalOutputDriver": {"filepath": str(tmp_path / "button")},
        "DigitalOutputResetDriver": {"delay": 0.0},
    }
    board["drivers"] = dict(
        sorted(board["drivers"].items(), key=lambda item: item[0] in ("NodeDriver", "BoardStrategy"))
    )
    board["drivers"]["BoardStrategy"] = board["drivers"].pop("BoardStrategy")
    rig({"bench": board})
    for _ in range(2):
        with pytest.raises(BoardMissing, match=f"board bench: no port {tmp_path}/uart"):
            open_board("bench", tmp_path / "flash")
    del board["drivers"][FakePowerDriver.__name__]
    switch = {"cmd_on": f"touch {tmp_path}/uart", "cmd_off": f"rm {tmp_path}/uart"}
    rig({"bench": {**board, "drivers": {"ExternalPowerDriver": switch, **board["drivers"]}}})
    opened = open_board("bench", tmp_path / "flash")
    assert opened.line == tmp_path / "uart"
    assert opened.find_line is not None
    with pytest.raises(BoardMissing, match=f"board bench: no port {tmp_path}/uart"):
        opened.find_line()
    opened.power_up()
    assert opened.find_line() == tmp_path / "uart"
    opened.close()
    switch["cmd_on"] = "sh -c 'echo no hub; exit 1'"
    rig({"bench": {**board, "drivers": {"ExternalPowerDriver": switch, **board["drivers"]}}})
    with pytest.raises(RigFailed, match="no hub"):
        open_board("bench", tmp_path / "flash")
    rig({"bench": {**board, "drivers": {FakePowerDriver.__name__: {}, **board["drivers"]}}})
    (tmp_path / "uart").touch()
    opened = open_board("bench", tmp_path / "flash")
    assert (opened.line, opened.ways) == (tmp_path / "uart", (POWER, RESET))
    opened.reset()
    assert (tmp_path / "button").read_text() == "0\n"
    monkeypatch.setattr(drivers, "SWITCH_DEADLINE_S", 0.2)
    (tmp_path / "button").unlink()
    os.mkfifo(tmp_path / "button")  # whoever writes to it waits for a reader
    with pytest.raises(OSError, match=r"^board bench: its reset button has not answered for 0.2 s"):
        opened.reset()
    opened.close()


class Terminal(serial.Serial):  # type: ignore[misc]
    """A pseudo-terminal as what has wires for modems, which it has not."""

    cts = dsr = ri = cd = False

    def _update_dtr_state(self) -> None: ...

    _update_rts_state = _update_dtr_state


def carry(port: Any, link: socket.socket, manager: Any) -> None:
    """Between a serial port and a connection, until one of them ends; by RFC 2217 if there is a manager."""
    with suppress(OSError):  # of pyserial too
        while True:
            for end in select.select([port, link], [], [])[0]:
                if end is port:
                    data = port.read(max(1, port.in_waiting))
                    link.sendall(b"".join(manager.escape(data)) if manager else data)
                elif data := link.recv(4096):
                    port.write(b"".join(manager.filter(data)) if manager else data)
                else:
                    return


@contextmanager
def shared(tty: Path, protocol: str) -> Iterator[tuple[dict[str, Any], set[int]]]:
    """A serial port in a network, as ser2net shares it, one user at a time, in labgrid's words; and the speeds that it
    had. Who comes while there is none is sent away.
    """
    speeds: set[int] = set()

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, _ = server.accept()
                with link, suppress(OSError), Terminal(str(tty)) as port:
                    connection = SimpleNamespace(write=link.sendall)
                    carry(port, link, serial.rfc2217.PortManager(port, connection) if protocol == "rfc2217" else None)
                    speeds.add(port.baudrate)

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = Thread(target=serve, daemon=True)
        serving.start()
        yield {"host": "127.0.0.1", "port": server.getsockname()[1], "protocol": protocol, "speed": 57600}, speeds
        server.shutdown(socket.SHUT_RDWR)
        serving.join(DEADLINE_S)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:set(Daemon|Name):DeprecationWarning", "ignore::ResourceWarning")  # of pyserial's
@pytest.mark.parametrize("protocol", ["rfc2217", "raw"])
def test_a_board_whose_repl_is_shared_in_a_network_is_asked_and_heard(
    bench: Bench, rig: Rig, application: Path, protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared(bench.tty, protocol) as (port, speeds):
        board = {**bench.described, "resources": {"NetworkSerialPort": port}}
        board["drivers"] = {**board["drivers"], "MicroPythonDriver": {}}
        rig({"bench": board})
        assert rig_command(["check"]) == 0
        assert "bench: core c-module, frozen into the firmware" in capsys.readouterr().out
        opened = bench.open(application)
        try:
            opened.start({"outbox": "outbox"})
            opened.log.wait_for(lambda text: text == "alive", DEADLINE_S)
            opened.kill()
            assert opened.read_file("lives").startswith(b"x")
        finally:
            opened.close()
    assert speeds == {57600 if protocol == "rfc2217" else Terminal().baudrate}


def lives(board: Board) -> bool:
    return board.alive


def test_a_strategy_leads_a_board_from_off_to_running_and_back(tmp_path: Path) -> None:
    application = tmp_path / "application.py"
    application.write_text("import signal\n\nsignal.pause()\n")  # it runs until it is killed
    environment = lab.load(ROOT / "hil" / "emulated.yaml")
    strategy = lab.strategy(lab.target(environment, "cpython"))
    with pytest.raises(StrategyError, match="board cpython cannot go to running: open it first"):
        strategy.transition("running")
    board = strategy.open(tmp_path / "flash", application)
    for name, states in (("first", ("deployed", "running", "off")), ("second", ("running", "deployed", "off"))):
        for state in states:
            strategy.transition(state, {"name": name})
            assert lives(board) == (state == "running")
            assert json.loads((tmp_path / "flash" / "config.json").read_text()) == {"name": name}
    board.close()


@target_factory.reg_driver
@attr.s(eq=False)
class RecordingLoader(Driver, BootstrapProtocol):  # type: ignore[misc]
    """A flashing tool that only says what it was to load."""

    def load(self, filename: str) -> None:
        self.target.env.loaded = filename


def test_a_strategy_flashes_what_the_file_names_as_the_firmware(rig: Rig, tmp_path: Path) -> None:
    board = described(tmp_path / "tty", f"touch {tmp_path}/on", f"touch {tmp_path}/off")
    board["drivers"]["BoardStrategy"] = {"firmware": "pico"}

    def strategy() -> Any:
        path = rig({"bench": board})
        with path.open("a") as file:
            file.write("images: {pico: firmware.uf2}\n")
        return lab.strategy(lab.target(lab.load(path), "bench"))

    without = strategy()
    opened = without.open(tmp_path / "flash")
    with pytest.raises(StrategyError, match="board bench has a firmware and no driver that loads it"):
        without.transition("flashed")
    opened.close()
    assert not (tmp_path / "on").exists()
    board["drivers"] = {"RecordingLoader": {}, **board["drivers"]}
    with_loader = strategy()
    opened = with_loader.open(tmp_path / "flash")
    assert opened.files() == {"application": SENSOR}
    (tmp_path / "firmware.uf2").write_bytes(b"firmware")
    assert opened.files() == {"application": SENSOR, "firmware image": tmp_path / "firmware.uf2"}
    with_loader.transition("flashed")
    assert with_loader.target.env.loaded == str(tmp_path / "firmware.uf2")
    assert (tmp_path / "on").exists()
    opened.close()


@pytest.mark.timeout(180)
def test_a_strategy_flashes_deploys_to_and_starts_a_board_on_its_way_to_running(
    bench: Bench, rig: Rig, tmp_path: Path, application: Path
) -> None:
    drivers = {"ExternalLoaderDriver": bench.loader, **bench.described["drivers"], "BoardStrategy": {"firmware": "new"}}
    path = rig({"bench": {**bench.described, "drivers": drivers}})
    with path.open("a") as file:
        file.write(f"images: {{new: {M3.twin}}}\n")
    strategy = lab.strategy(lab.target(lab.load(path), "bench"))
    board = strategy.open(tmp_path / "flash", application)
    try:
        strategy.transition("running", {"outbox": "outbox"})
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S)
        strategy.transition("off")
        assert not lives(board)
        assert board.firmware() == read_by_the_board(M3.twin)
    finally:
        board.close()


@target_factory.reg_driver
@attr.s(eq=False)
class FailingLoader(RecordingLoader):
    """One that ends as labgrid's OpenOCDDriver does when there is no chip."""

    def load(self, filename: str) -> None:
        raise subprocess.CalledProcessError(1, ["openocd", filename], b"Error: unable to find a matching CMSIS-DAP")


@pytest.mark.parametrize(
    ("loader", "reason"),
    [("FailingLoader", "returned non-zero exit status 1. Error: unable to find"), ("OpenOCDDriver", "USBDebugger")],
)
def test_a_driver_of_labgrid_that_cannot_flash_is_a_sentence_and_the_board_is_off(
    rig: Rig, tmp_path: Path, loader: str, reason: str, capsys: pytest.CaptureFixture[str], plugged: list[Device]
) -> None:
    assert plugged == [], "nor is its debugger there"
    board = described(tmp_path / "tty", f"rm -f {tmp_path}/off", f"touch {tmp_path}/off")
    board["resources"].append({"USBDebugger": {"match": {"ID_SERIAL_SHORT": NUMBER}}})
    board["drivers"] = {loader: {}, **board["drivers"], "BoardStrategy": {"firmware": "new"}}
    with rig({"bench": board}).open("a") as file:
        file.write("images: {new: new.uf2}\n")
    assert rig_command(["flash", "bench"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("bench: FAILED: board bench: ")
    assert reason in told
    assert (tmp_path / "off").exists()


def recorded(folder: Path, name: str, fails: int = 0) -> Path:
    """A flashing tool that writes down what it is asked, and that finds nothing the first times; the file."""
    (folder / "bin").mkdir(exist_ok=True)
    said, tool = folder / f"{name}.said", folder / "bin" / name
    tool.write_text(
        f"#!{sys.executable}\nimport pathlib, sys\nsaid = pathlib.Path({str(said)!r})\n"
        "with said.open('a') as file: print(*sys.argv[1:], sep='|', file=file)\n"
        f"if len(said.read_text().splitlines()) <= {fails}: sys.exit('no device in BOOTSEL mode')\n"
    )
    tool.chmod(0o755)
    return said


COMMANDS = re.findall(r"^\| .* \| `((?:picotool|sh|esptool|dfu-util) .*)` \|$", README, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_the_flashing_tools_are_asked_for_what_the_readme_says(
    rig: Rig, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They find the bootloader at the third attempt."""
    image = tmp_path / "a firmware.bin"
    image.write_bytes(b"firmware")
    name, *words = shlex.split(command)
    tools = ("udisksctl", "cp") if name == "sh" else (name,)
    said = [recorded(tmp_path, tool, 2 if tool != "udisksctl" else 0) for tool in tools]
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("USER", "ada")
    board = described(tmp_path / "tty")
    loader = {"cmd": command.replace("/media/", f"{tmp_path}/")}
    board["drivers"] = {"ExternalLoaderDriver": loader, **board["drivers"], "BoardStrategy": {"firmware": "new"}}
    with rig({"bench": board}).open("a") as file:
        file.write(f"images: {{new: {image}}}\n")
    assert rig_command(["flash", "bench"]) == 0
    assert (
        f"bench: {image}, SHA-256 {hashlib.sha256(b'firmware').hexdigest()[:16]}, is loaded" in capsys.readouterr().out
    )
    asked = said[-1].read_text().splitlines()
    if name == "sh":
        assert said[0].read_text().splitlines() == ["mount|-b|/dev/disk/by-label/RPI-RP2"] * 3
        words = ["{image}", f"{tmp_path}/ada/RPI-RP2/"]
    assert asked == ["|".join(words).replace("{image}", str(image))] * 3


@pytest.mark.timeout(180)
def test_a_board_is_sent_into_its_bootloader_and_one_without_says_so(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = lab.target(lab.load(tmp_path / "rig.yaml"), "bench").get_driver("MicroPythonDriver", activate=False)
    subprocess.run([*bench.on.split()], check=True, timeout=DEADLINE_S)
    with pytest.raises(OSError, match=r"board bench: .*bootloader"):
        driver.enter_bootloader()
    ran = []

    def run(code: str) -> None:
        ran.append(code)
        raise Silent("it has left")

    monkeypatch.setattr(driver, "repl", lambda *_: nullcontext(SimpleNamespace(run=run)))
    driver.enter_bootloader()
    assert ran == ["import machine\nmachine.bootloader()"]


def test_a_tool_that_fails_or_is_missing_is_told_with_what_it_said(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, "loader", 99)
    image = tmp_path / "new.uf2"
    board = described(tmp_path / "tty")
    for command, there, reason in (
        (f"{tmp_path}/bin/loader {{image}}", False, f"there is no firmware {image}"),
        (f"{tmp_path}/bin/loader {{image}}", True, "new.uf2 ended with 1: no device in BOOTSEL mode"),
        ("no-such-tool {image}", True, "no-such-tool is not installed"),
        ("loader", True, "cmd: 'loader' does not say where {image} stands"),
    ):
        if there:
            image.touch()
        loader = {"ExternalLoaderDriver": {"cmd": command, "within_s": 0}}
        described_so = {**board, "drivers": {**loader, **board["drivers"], "BoardStrategy": {"firmware": "new"}}}
        with rig({"bench": described_so}).open("a") as file:
            file.write(f"images: {{new: {image}}}\n")
        assert rig_command(["flash", "bench"]) == 1
        assert reason in capsys.readouterr().out
    rig({"bench": board})
    assert rig_command(["flash", "bench"]) == 1
    assert "its BoardStrategy names no firmware" in capsys.readouterr().out


def test_a_tool_that_does_not_end_is_ended(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drivers, "LOAD_DEADLINE_S", 0.2)
    (tmp_path / "new.uf2").touch()
    board = described(tmp_path / "tty", off=f"touch {tmp_path}/off")
    loader = {"ExternalLoaderDriver": {"cmd": "sh -c 'exec sleep 600' {image}"}}
    board = {**board, "drivers": {**loader, **board["drivers"], "BoardStrategy": {"firmware": "new"}}}
    with rig({"bench": board}).open("a") as file:
        file.write("images: {new: new.uf2}\n")
    assert rig_command(["flash", "bench"]) == 1
    assert (
        "bench: FAILED: board bench: ExternalLoaderDriver has not loaded its firmware within 0.2 s"
        in capsys.readouterr().out
    )
    assert (tmp_path / "off").exists()


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


def test_a_board_that_is_plugged_in_again_under_another_name_is_heard_on(rig: Rig, tmp_path: Path) -> None:
    stop, heard = Event(), Queue[str]()
    driver = lab.target(lab.load(rig({"bench": described(tmp_path / "tty")})), "bench").get_driver(
        "MicroPythonDriver", activate=False
    )

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
    says: bytes | None,
    reason: str,
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(drivers, "REPL_DEADLINE_S", 1.0)
    monkeypatch.setattr(drivers.url, "__defaults__", (0.0, None))
    port, switch = tmp_path / "tty", tmp_path / "switch"
    rig({"bench": described(port, *(f"sh -c 'echo {word} >> {switch}'" for word in ("on", "off")))})
    with nullcontext() if says is None else plugged_in(port, says):
        assert rig_command(["check"]) == 1
    assert re.search(f"bench: FAILED: {reason}$", capsys.readouterr().out, re.MULTILINE)
    assert switch.read_text().split()[-1] == "off"
    Claim("another", str(port)).release()


# The command


def test_scan_begins_a_file_with_every_port_by_number_or_by_place(
    plugged: list[Device], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for device in (
        Device("/dev/null", NUMBER, "usb-1"),
        Device("/dev/zero", "", "usb-2"),
        Device("/dev/full", "", "usb-3"),
    ):
        device.properties["ID_BUS"] = "usb"
        if not device.properties["ID_SERIAL_SHORT"]:
            del device.properties["ID_SERIAL_SHORT"]
        plugged.append(device)
    plugged.append(Device("/dev/ttyS0"))
    assert rig_command(["scan"]) == 0
    path = tmp_path / "rig.yaml"
    path.write_text(capsys.readouterr().out)
    environment = lab.load(path)
    found = [drivers.identity(lab.target(environment, name).resources[0]) for name in lab.names(path)]
    assert found == [f"ID_SERIAL_SHORT {NUMBER}", "ID_PATH usb-2", "ID_PATH usb-3"]
    plugged.append(plugged[1])
    assert rig_command(["scan"]) == 2
    assert "/dev/zero, /dev/zero have the same serial number and place" in capsys.readouterr().err


def test_a_scan_that_found_nothing_leaves_a_file_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugged: list[Device], capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell has made it by then, and every campaign looks for its board there."""
    monkeypatch.delenv("LG_ENV", raising=False)
    monkeypatch.setattr(targets, "RIG", tmp_path / "rig.yaml")
    assert plugged == []
    assert rig_command(["scan"]) == 2
    (tmp_path / "rig.yaml").write_text(capsys.readouterr().out)
    assert open_board("cpython", tmp_path / "flash").describe().startswith("cpython: ")
    assert rig_command(["status"]) == 2
    assert f"there is no {tmp_path}/rig.yaml: `ordack rig scan` begins one" in capsys.readouterr().err


def test_status_says_who_has_a_board_and_that_is_no_failure(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emulated = {"resources": {"EmulatedMachine": {"kind": "cpython"}}}
    emulated["drivers"] = {"EmulatedNodeDriver": {}, "BoardStrategy": {}}
    burnt = {**described(tmp_path / "burnt"), "options": {"quarantine": "it is burnt"}}
    rig({"bench": described(tmp_path / "tty"), "cpython": emulated, "burnt": burnt})

    def said(*words: str, status: int = 0) -> str:
        assert rig_command(list(words)) == status
        return capsys.readouterr().out

    assert said("status").splitlines()[:2] == ["bench: free", "cpython: free"]
    opened = open_board("bench", tmp_path / "flash")
    told = said("status", "bench")
    assert "in use: a campaign on bench" in told
    assert "FAILED" not in told
    opened.close()
    assert said("status", "bench") == "bench: free\n"
    assert "burnt: FAILED: " in said("flash", "burnt", status=1)
    assert "burnt: " in (told := said("check", "cpython", "burnt"))
    assert "is in quarantine: it is burnt" in told
    assert "cpython: cpython: " in told


def test_ordack_has_the_rig_in_any_folder_and_an_installed_one_says_where_it_is(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = rig({"bench": described(tmp_path / "tty", off="true")})

    def said(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "ordack", "rig", *words, "--lg-env", path],
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    opened = open_board("bench", tmp_path / "flash")
    status, text = said("status", "bench")
    assert (status, "in use: a campaign on bench" in text) == (0, True)
    opened.close()
    assert said("status", "bnech") == (2, f"{path}: no board bnech; there are: bench\n")
    assert CliRunner().invoke(command_line("rig"), ["rig", "--help"]).output.startswith("usage: ordack rig [-h]")
    monkeypatch.setattr(rig_of_ordack, "CHECKOUT", tmp_path)
    with pytest.raises(typer.Exit) as ended:
        rig_of_ordack.rig(["status"])
    assert ended.value.exit_code == 2
    assert "the rig is no part of an installed ordack: in a checkout, `make setup-test`" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["flash"], "flash which board? "),
        (["check", "bnech"], "no board bnech; there are: bench"),
        (["status", "--lg-env", "/no.yaml", "bench"], "/no.yaml: configuration file"),
        (["scan"], "udev knows no USB serial port here"),
    ],
)
def test_wrong_use_is_status_2_and_a_sentence(
    rig: Rig, tmp_path: Path, words: list[str], reason: str, capsys: pytest.CaptureFixture[str], plugged: list[Device]
) -> None:
    assert plugged == []
    rig({"bench": described(tmp_path / "tty")})
    assert rig_command(words) == 2
    assert reason in capsys.readouterr().err


STRAY = {"host": "10.0.2.99", "listen": "127.0.0.1", "lan": True}


class Wired:
    """The REPL of a board that runs what it is given, with a UART of which these wires are connected."""

    def __init__(self, end: int, tx: bool, rx: bool) -> None:
        def uart(*_: int, **__: int) -> SimpleNamespace:
            return SimpleNamespace(read=lambda: os.read(end, 100) if rx and self.waits(end) else None, write=write)

        def write(data: bytes) -> None:
            os.write(end, data if tx else b"")

        self.names: dict[str, Any] = {}
        self.machine = SimpleNamespace(UART=uart)

    @staticmethod
    def waits(end: int) -> bool:
        return bool(select.select([end], [], [], 0)[0])

    def run(self, code: str, _: float = 0.0) -> Any:
        out = StringIO()
        clock = SimpleNamespace(ticks_ms=lambda: int(1000 * time.monotonic()), sleep_ms=lambda ms: time.sleep(ms / 1e3))
        clock.ticks_diff = lambda now, then: now - then
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
            patch.setitem(sys.modules, "machine", self.machine)
            patch.setitem(sys.modules, "time", clock)
            exec(code, self.names)
        return ast.literal_eval(out.getvalue()) if out.getvalue() else None


@pytest.mark.parametrize(
    ("tx", "rx", "said"),
    [
        (True, True, ""),
        (False, True, "what it sends at UART 1 does not come to .*"),
        (True, False, "what .* sends does not come to its UART 1"),
        (False, False, "nothing passes between its UART 1 and .*: .* swapped"),
    ],
)
def test_a_byte_has_to_cross_the_line_both_ways(tx: bool, rx: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if said:
        monkeypatch.setattr(wiring, "CROSSES_WITHIN_S", 0.2)
    end, terminal = os.openpty()
    tty.setraw(terminal)
    try:
        line = Path(os.ttyname(terminal))
        if said:
            with pytest.raises(OSError, match=said):
                wiring.cross(Wired(end, tx, rx), line, 1, 115200)
        else:
            assert wiring.cross(Wired(end, tx, rx), line, 1, 115200) == f"UART 1 and {line}: a word came both ways"
    finally:
        os.close(terminal)
        os.close(end)


@pytest.mark.timeout(180)
def test_check_finds_what_a_board_has_and_a_switch_that_switches_nothing(
    bench: Bench, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rig_command(["check"]) == 0
    told = capsys.readouterr().out
    for line in (
        "MicroPython 1.2",
        "bench: core c-module, frozen into the firmware",
        f"bench: reaches this machine at {HOST}",
        "bench: silent when its power is",
    ):
        assert line in told
    rig({"bench": {**bench.described, "drivers": {**bench.described["drivers"], "NodeDriver": STRAY}}})
    assert rig_command(["check"]) == 1
    assert "FAILED: it does not reach this machine at 10.0.2.99" in capsys.readouterr().out
    rig({"bench": described(bench.tty, bench.on, "true", host="10.0.2.2")})
    assert rig_command(["check"]) == 1
    assert "FAILED: this machine has no address 10.0.2.2: listen of its NodeDriver" in capsys.readouterr().out
    rig({"bench": described(bench.tty, bench.on, "true", host=HOST, listen="127.0.0.1", lan=True)})
    assert rig_command(["check"]) == 1
    assert "FAILED: it answers although its power is off" in capsys.readouterr().out


def test_a_hub_that_is_not_plugged_in_is_a_sentence_and_the_board_is_let_go(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str], plugged: list[Device]
) -> None:
    assert plugged == []
    board = described(tmp_path / "tty")
    board["resources"].append({"USBPowerPort": {"match": {"ID_PATH": "pci-usb-0:1"}, "index": 1}})
    board["drivers"] = {"USBPowerDriver" if name == FakePowerDriver.__name__ else name: {} for name in board["drivers"]}
    board["drivers"]["NodeDriver"] = {"host": HOST}
    rig({"bench": board})
    assert rig_command(["check"]) == 1
    assert re.match(
        r"bench: FAILED: board bench: Not all resources are available: .*USBPowerPort", capsys.readouterr().out
    )
    Claim("another", str(tmp_path / "tty")).release()


@pytest.mark.parametrize("command", ["check", "flash"])
def test_a_switch_that_fails_is_a_sentence_and_the_next_board_is_looked_at(
    rig: Rig, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    boards = {name: described(tmp_path / name, on="sh -c 'echo no hub; exit 3'") for name in ("first", "second")}
    for board in boards.values():
        board["drivers"] = {"RecordingLoader": {}, **board["drivers"], "BoardStrategy": {"firmware": "pico"}}
    with rig(boards).open("a") as file:
        file.write("images: {pico: firmware.uf2}\n")
    assert rig_command([command, *boards]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert len(told) == 2
    for name, line in zip(boards, told, strict=True):
        assert re.fullmatch(f"{name}: FAILED: board {name}: Command .* returned non-zero exit status 3. no hub", line)


@pytest.mark.timeout(240)
def test_the_campaign_drives_it_and_switches_its_power_by_a_relay_in_the_network(
    bench: Bench, rig: Rig, tmp_path: Path
) -> None:
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    seed = new_seed()
    print(f"seed {seed}")
    settings = Settings(10, 2, 1, seed, "bench", deadline_s=120.0, artefacts=tmp_path / "campaign")
    with relay(bench.off, bench.on) as (port, asked):
        rig({"bench": switched_by(port, bench.described)})
        figures = asyncio.run(run_campaign(settings, Console()))
        assert isinstance(bench.open(), LabBoard)
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.core == "c-module"
    assert [one["params"]["on"] for _, one in asked].count(True) >= 3, "its firmware is read, it starts, and once more"


STALE = """
import os
for name in ("mqqb", "ordack", "ordack/node"):
    os.mkdir(name)
for name in ("mqqb/session", "ordack/node/node"):
    with open(name + ".py", "w") as file:
        file.write("raise ImportError('it is stale')")
"""


@pytest.mark.timeout(240)
def test_a_campaign_deploys_the_modules_that_it_tests_and_reports_their_hash(bench: Bench, tmp_path: Path) -> None:
    """The board has a stock firmware, and modules of before in its files."""
    stock = M3.firmware.parents[1] / "mps2-an385-stock" / "firmware.elf"
    if not Path(ORDACK[0]).exists() or not stock.exists():
        pytest.skip(f"{ORDACK[0]} or {stock} is missing; `make setup-test` makes both")
    command = bench.tty.with_name("command")
    command.write_text(command.read_text().replace(str(M3.firmware), str(stock)).replace("heap=64", "heap=200"))
    board = bench.open()
    assert isinstance(board, LabBoard)
    with board.asked() as repl:
        repl.run(STALE)
    board.close()
    seed = new_seed()
    print(f"seed {seed}")
    settings = Settings(10, 0, 1, seed, "bench", 200, deadline_s=120.0, artefacts=tmp_path / "campaign")
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.core == "native-module"
    assert figures.hashes["modules"] == digest(Path(drivers.compiled_modules().name))
    board = bench.open()
    assert isinstance(board, LabBoard)
    with board.asked() as repl:
        assert (
            repl.read("ordack/node/node.mpy")
            == Path(drivers.compiled_modules().name, "ordack", "node", "node.mpy").read_bytes()
        )
    board.close()


@pytest.mark.timeout(240)
def test_a_run_loads_the_firmware_that_the_file_names_once(
    bench: Bench, rig: Rig, tmp_path: Path, application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules that are frozen into it are tested."""
    monkeypatch.setattr("hil.drivers._LOADED", {})  # other tests have boards of this name
    loaded = tmp_path / "loaded"
    cmd = f"sh -c 'echo {{image}} >> {loaded}; {bench.loader['cmd']}'".replace("'s|", '"s|').replace("|' ", '|" ')
    board = {**bench.described, "drivers": {"ExternalLoaderDriver": {"cmd": cmd}, **bench.described["drivers"]}}
    board["drivers"]["BoardStrategy"] = {"firmware": "new"}
    with rig({"bench": board}).open("a") as file:
        file.write(f"images: {{new: {M3.twin}}}\n")
    for _ in range(2):
        opened = bench.open(application)
        opened.deploy({"outbox": "outbox"})
        assert opened.firmware() == read_by_the_board(M3.twin)
        assert "that the rig has not loaded" not in opened.describe()
        opened.close()
    assert loaded.read_text().split() == [str(M3.twin)]


EARLIER = """
import json, time

for _ in range(10):
    print(json.dumps({"event": "started", "accepted": 10, "stored": 10, "core": "earlier", "campaign": "earlier"}))
    time.sleep_ms(50)
"""


@pytest.mark.timeout(240)
def test_lines_of_an_earlier_campaign_are_no_progress(bench: Bench, tmp_path: Path) -> None:
    """The board prints them at each start, as the program of the campaign before does until it is interrupted."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    board = bench.open()
    assert isinstance(board, LabBoard)
    with board.asked() as repl:
        for name in (sensor.LEDGER, sensor.COMMANDS, sensor.BASE):
            repl.write(name, b"10 7 00000000 10\n")
        repl.write("boot.py", EARLIER.encode())
    board.close()
    seed = new_seed()
    print(f"seed {seed}")
    plan = (Kill(8, 0.0, 0.0),)
    settings = Settings(10, 0, 1, seed, "bench", 200, deadline_s=120.0, artefacts=tmp_path / "campaign", plan=plan)
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.cores == ["c-module"]
    assert figures.timeline.readings[0][1:3] == (0, 0)
    [killed] = [at for at, what, _ in figures.timeline.faults if what.startswith("board")]
    assert [accepted for at, accepted, *_ in figures.timeline.readings if at <= killed][-1] >= 8


@pytest.mark.timeout(240)
def test_a_switch_that_gets_stuck_fails_the_campaign_and_none_of_its_cuts_counts(
    bench: Bench, rig: Rig, tmp_path: Path
) -> None:
    """It says that all is done. Its first two turns are those of the deploy."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    turns = tmp_path / "turns"
    off = f"sh -c 'echo off >> {turns}; test $(wc -l < {turns}) -gt 2 || exec {bench.off}'"
    rig({"bench": described(bench.tty, bench.on, off, host=HOST, listen="127.0.0.1", lan=True, off_s=0.1)})
    seed = new_seed()
    print(f"seed {seed}")
    plan = tuple(Kill(count, 0.0, 0.0) for count in (2, 4, 6, 8))
    settings = Settings(20, 0, 4, seed, "bench", 200, deadline_s=120.0, artefacts=tmp_path / "campaign", plan=plan)
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.failure is not None
    assert figures.failure.startswith("the board was switched off and on and did not start again, it says start 1 ")
    assert "the board was killed 0 times instead of 4" in figures.shortcomings()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("mishap", "times"), [(ERASE, 1), (COPY, 2), (FLIP, 1), (REFLASH, 2)])
def test_a_mishap_befalls_it_over_its_repl_and_loses_what_it_took_away_and_nothing_else(
    bench: Bench, rig: Rig, tmp_path: Path, mishap: str, times: int
) -> None:
    """A copy is made before one can be put back, and the first firmware comes again."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    board = {**bench.described, "drivers": {"ExternalLoaderDriver": bench.loader, **bench.described["drivers"]}}
    board["drivers"]["BoardStrategy"] = {"firmware": "first", "other": "second"}
    with rig({"bench": board}).open("a") as file:
        file.write(f"images: {{first: {M3.firmware}, second: {M3.twin}}}\n")
    seed = new_seed()
    print(f"seed {seed}")
    wanted = Settings(12, 0, 2 * times - 1, seed, "bench", 200, 180.0, 300.0, mishap=mishap, ahead=12)
    figures = asyncio.run(run_campaign(replace(wanted, artefacts=tmp_path / "campaign"), Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.comparison is not None
    assert figures.mishaps == times
    assert figures.comparison.once + len(figures.comparison.erased) == 12
    if mishap == REFLASH:
        assert (figures.comparison.once, figures.cores) == (12, ["c-module", "python"])
    elif mishap == FLIP:
        assert figures.comparison.once == 12


def test_one_without_another_firmware_or_what_loads_it_is_not_reflashed(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "new.uf2").touch()
    plain = described(tmp_path / "tty")
    loader = {"ExternalLoaderDriver": {"cmd": "true {image}"}}
    for before, named in (({}, {"other": "new"}), (loader, {"firmware": "new"})):
        board = {**plain, "drivers": {**before, **plain["drivers"], "BoardStrategy": named}}
        with rig({"bench": board}).open("a") as file:
            file.write("images: {new: new.uf2}\n")
        settings = Settings(3, 0, 1, 1, "bench", artefacts=tmp_path / "campaign", mishap=REFLASH)
        with pytest.raises(BoardMissing, match="the mishap reflash cannot befall board bench: see"):
            asyncio.run(run_campaign(settings, Console()))


@pytest.mark.timeout(400)
def test_a_deploy_to_a_board_at_work_outlasts_its_watchdog_and_every_reading_arrives(
    bench: Bench, tmp_path: Path
) -> None:
    """Its seconds are those of its instructions: none is waited for, and its watchdog bites no board that gets none."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    seed = new_seed()
    print(f"seed {seed}")
    command = bench.tty.with_name("command")
    command.write_text(" ".join([command.read_text(), *ICOUNT]))
    settings = Settings(10, 0, 1, seed, "bench", None, 180.0, 300.0, artefacts=tmp_path / "campaign", mishap=DEPLOY)
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.mishaps == 1


# What the rig itself does wrong


HANGING = """
echo $$ >> {pids}
sleep 600 &
echo $! >> {pids}
wait
touch {late}
"""


def test_a_hung_relay_ends_a_campaign_with_a_status_of_its_own_and_no_process_cuts_the_power_later(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    pids, script = tmp_path / "pids", tmp_path / "hanging"
    script.write_text(HANGING.format(pids=pids, late=tmp_path / "late"))
    monkeypatch.setattr(drivers, "SWITCH_DEADLINE_S", 1.0)
    monkeypatch.setattr(campaign, "Settings", partial(Settings, artefacts=tmp_path / "campaign"))
    rig({"bench": described(tmp_path / "tty", off=f"sh {script}", host=HOST, listen="127.0.0.1")})
    arguments = ["--board", "bench", "--messages", "3", "--cuts", "0", "--kills", "0", "--seed", "1", "--json"]
    assert campaign.main(arguments) == RIG_FAILED
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["rig_failed"]) == (False, True)
    assert said["failure"].startswith("board bench: its power switch has not answered for 1 s")
    kept = {path.name for path in Path(said["artefacts"]).iterdir()}
    assert {"board.log", "figures.json", "queue_manager.log", "scenario.yaml", "store"} <= kept
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) >= 2
    end = time.monotonic() + DEADLINE_S
    while any(Path(f"/proc/{pid}").exists() for pid in started):  # those of the shell are init's to bury
        assert time.monotonic() < end
    assert not (tmp_path / "late").exists()
    Claim("another", str(tmp_path / "tty")).release()


@pytest.mark.timeout(240)
def test_a_port_that_is_lost_ends_a_campaign_with_that_status_and_all_that_it_can_still_read(
    bench: Bench, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its first kill the board is not there; when its ledger is read it is."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    (tmp_path / "on").write_text(f"echo on >> {tmp_path}/turns; test $(wc -l < {tmp_path}/turns) = 3 || {bench.on}")
    node = {"host": HOST, "listen": "127.0.0.1", "lan": True, "off_s": 0.1}
    rig({"bench": described(bench.tty, f"sh {tmp_path}/on", bench.off, **node)})
    monkeypatch.setattr(drivers.url, "__defaults__", (3.0, None))
    seed = new_seed()
    print(f"seed {seed}")
    plan = (Kill(4, 0.0, 0.0),)
    settings = Settings(10, 0, 1, seed, "bench", 200, deadline_s=120.0, artefacts=tmp_path / "campaign", plan=plan)
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.failure is not None
    assert figures.failure.startswith(f"board bench: no port {bench.tty} within 3 s")
    assert figures.status == RIG_FAILED
    assert figures.comparison is not None
    assert figures.comparison.sent >= 4
    assert figures.artefacts is not None
    assert len(read_ledger(Path(figures.artefacts, sensor.LEDGER).read_bytes())) == figures.comparison.sent
    assert read(Path(figures.artefacts, "scenario.yaml")).messages == 10
