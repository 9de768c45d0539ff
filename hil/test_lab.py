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
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import pyudev
import serial
import serial.rfc2217
import typer
import yaml
from elftools.elf.elffile import ELFFile
from labgrid.driver.fake import FakePowerDriver
from labgrid.factory import target_factory
from labgrid.resource.udev import UdevManager, USBSerialPort
from ordack.boards import claim
from ordack.boards.claim import Claim
from ordack.boards.repl import NoBoard
from ordack.cli import command_line
from ordack.cli import rig as rig_of_ordack
from rich.console import Console
from typer.testing import CliRunner

from hil import campaign, drivers, lab, ports, real, sensor, wiring
from hil.boards import POWER, RESET, ROOT, SENSOR, Board, BoardMissing, RigFailed
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.emulated import HOST, ICOUNT, M3
from hil.kinds import KINDS
from hil.part import digest
from hil.real import LabBoard
from hil.report import RIG_FAILED, read_ledger
from hil.rig import main as rig_command
from hil.scenario import COPY, DEPLOY, FLIP, ORDACK, REFLASH, Kill, Settings, read
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
        ({"NodeDriver": {"host": 12}}, "'host' must be"),
        ({"NodeDriver": {"host": "a", "patience_s": "long"}}, "'patience_s' must be"),
        ({"NodeDriver": {"host": "a", "ahead": 0}}, "'ahead' must be >= 1"),
        ({"NodeDriver": {"host": "a", "off_s": -1}}, "'off_s' must be >= 0"),
        ({"NodeDriver": 17}, "drivers: NodeDriver has to be a table"),
        ({"resources": 17}, "resources has to be a table"),
        ({"resources": {"USBSerialPort": {"match": "a"}}}, "USBSerialPort: match has to be a table"),
        ({"resources": {"USBSerialPort": {"match": {"ID_SERIAL_SHORT": 12}}}}, "12 is no text: put it in quotes"),
        ({"resources": {"USBSerialPort": {}}}, "without a match any port fits"),
        ({"BoardStrategy": {"firmware": "new"}}, "firmware: 'new' is none of images: of the file: none"),
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
        assert ports.url(port, 0.0) == "/dev/null"
        (key, value) = match.popitem()
        assert ports.identity(port) == f"{key} {value}"


def test_two_ports_with_its_number_are_refused(plugged: list[Device]) -> None:
    plugged += [Device("/dev/null"), Device("/dev/zero")]
    port = usb(ID_SERIAL_SHORT=NUMBER)
    port.try_match(plugged[0])
    with pytest.raises(BoardMissing, match=f"2 ports have ID_SERIAL_SHORT {NUMBER}: /dev/null, /dev/zero"):
        ports.url(port, 600.0)


def test_a_board_that_does_not_come_is_named_and_one_that_comes_late_or_again_is_found(
    plugged: list[Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugged == []
    port = usb(ID_SERIAL_SHORT=NUMBER)
    with pytest.raises(BoardMissing, match=f"board bench: no port ID_SERIAL_SHORT {NUMBER} within 0.05 s"):
        ports.url(port, 0.05)
    events = iter([Device("/dev/x", "other"), Device("/dev/null")])
    monkeypatch.setattr(port, "poll", lambda: port.try_match(next(events)))
    assert ports.url(port, 600.0) == "/dev/null"
    gone, again = Device("/dev/null"), Device("/dev/zero")
    gone.action, again.action = "remove", "add"
    events = iter([gone, again])
    assert ports.url(port, 600.0) == "/dev/zero"


def test_one_user_at_a_time_and_the_other_is_told_who() -> None:
    first = Claim("a campaign on pico-1", NUMBER)
    with pytest.raises(NoBoard, match=r"in use: a campaign on pico-1, process \d+, since"):
        Claim("another", NUMBER)
    Claim("another", "other number").release()
    first.release()
    Claim("another", NUMBER).release()


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
def test_a_command_leaves_a_board_alone_that_a_campaign_has(bench: Bench, application: Path) -> None:
    """Other programs, too, while it is on: the port is opened exclusively."""
    board = bench.open(application)
    try:
        board.start({"outbox": "outbox"})
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S)
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
        with pytest.raises(serial.SerialException, match="exclusively lock"):
            serial.Serial(str(bench.tty), exclusive=True)
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S, board.log.mark())
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


def test_a_board_stays_off_for_the_time_that_it_needs(rig: Rig, tmp_path: Path) -> None:
    rig({"bench": described(tmp_path / "tty", host=HOST, off_s=1)})
    board = open_board("bench", tmp_path / "flash")
    board.kill()
    begun = time.monotonic()
    board.power_up()
    assert time.monotonic() >= begun + 0.9
    board.close()  # at once, though its port does not come
    assert time.monotonic() < begun + ports.PORT_DEADLINE_S


def test_a_line_and_a_button_are_found_or_the_board_is_let_go(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports.url, "__defaults__", (0.0, None))
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
    monkeypatch.setattr(real, "SWITCH_DEADLINE_S", 0.2)
    (tmp_path / "button").unlink()
    os.mkfifo(tmp_path / "button")  # whoever writes to it waits for a reader
    with pytest.raises(OSError, match=r"^board bench: its reset button has not answered for 0.2 s"):
        opened.reset()
    opened.close()


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
    monkeypatch.setattr(real, "REPL_DEADLINE_S", 1.0)
    monkeypatch.setattr(ports.url, "__defaults__", (0.0, None))
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
    found = [ports.identity(lab.target(environment, name).resources[0]) for name in lab.names(path)]
    assert found == [f"ID_SERIAL_SHORT {NUMBER}", "ID_PATH usb-2", "ID_PATH usb-3"]
    plugged.append(plugged[1])
    assert rig_command(["scan"]) == 2
    assert "/dev/zero, /dev/zero have the same serial number and place" in capsys.readouterr().err


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
    rig({"bench": described(bench.tty, bench.on, "true", host="10.0.2.2")})
    assert rig_command(["check"]) == 1
    assert "FAILED: this machine has no address 10.0.2.2: listen of its NodeDriver" in capsys.readouterr().out
    rig({"bench": described(bench.tty, bench.on, "true", host=HOST, listen="127.0.0.1", lan=True)})
    assert rig_command(["check"]) == 1
    assert "FAILED: it answers although its power is off" in capsys.readouterr().out


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
    assert figures.hashes["modules"] == digest(Path(real.compiled_modules().name))
    board = bench.open()
    assert isinstance(board, LabBoard)
    with board.asked() as repl:
        assert (
            repl.read("ordack/node/node.mpy")
            == Path(real.compiled_modules().name, "ordack", "node", "node.mpy").read_bytes()
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
@pytest.mark.parametrize(("mishap", "times"), [(COPY, 2), (FLIP, 1), (REFLASH, 2)])
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
    monkeypatch.setattr(real, "SWITCH_DEADLINE_S", 1.0)
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
    monkeypatch.setattr(ports.url, "__defaults__", (3.0, None))
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
