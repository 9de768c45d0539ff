"""Real boards: found by serial number or refused, locked, and driven. The board here is a Cortex-M3 in QEMU: its REPL
is on a pseudo-terminal that has a new name at each power-up, as the port of a real board may have.
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from hil import inventory, targets
from hil.boards import POWER, RESET, ROOT, SENSOR, BoardMissing
from hil.campaign import ORDACK, Settings, run_campaign
from hil.emulated import HOST, M3
from hil.inventory import Entry, Lock, SerialBoard, find_port, load

DEADLINE_S = 60.0
NUMBER = "E6616408432C5B2F"


class FakePort(NamedTuple):
    device: str
    serial_number: str | None


# The file


GOOD = """
[pico-1]
usb = "E6616408432C5B2F"
power = { on = "switch on", off = "switch off" }
line = "A50285BI"
"""


def test_the_file_of_the_checkout_has_no_boards_and_explains_every_key() -> None:
    assert load(ROOT / "hil" / "boards.toml") == {}
    text = (ROOT / "hil" / "boards.toml").read_text()
    for key in Entry.__dataclass_fields__:
        assert re.search(rf"\b{key} = ", text) or key == "name"


def test_an_example_of_the_file_is_a_board(tmp_path: Path) -> None:
    path = tmp_path / "boards.toml"
    path.write_text(GOOD + 'reset = "press"\nbaud = 921600\npatience_s = 90\n')
    (entry,) = load(path).values()
    assert (entry.name, entry.usb, entry.line, entry.on, entry.off) == (
        "pico-1",
        NUMBER,
        "A50285BI",
        "switch on",
        "switch off",
    )
    assert (entry.reset, entry.baud, entry.patience_s, entry.host) == ("press", 921600, 90, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('usb = "E6616408432C5B2F"', ""), "board pico-1: usb, the serial number"),
        (('power = { on = "switch on", off = "switch off" }', ""), "board pico-1: power = "),
        (('off = "switch off"', 'of = "switch off"'), "board pico-1: power = "),
        (('line = "A50285BI"', ""), "board pico-1: either line"),
        (('line = "A50285BI"', 'line = "A50285BI"\nhost = "10.0.0.1"'), "board pico-1: either line"),
        (('line = "A50285BI"', 'port = "/dev/ttyACM0"'), "board pico-1: unknown key 'port'"),
        (('usb = "E6616408432C5B2F"', "usb = 12"), "board pico-1: usb is no str"),
        (('line = "A50285BI"', 'line = "A50285BI"\nbaud = "fast"'), "board pico-1: baud is no int"),
        (("[pico-1]", "[pico-1"), "boards.toml: "),
        (("[pico-1]", "x = 1\n[pico-1]"), "board x: not a table"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path: Path, change: tuple[str, str], reason: str) -> None:
    path = tmp_path / "boards.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(BoardMissing, match=re.escape(reason)):
        load(path)


# Identity


def test_a_board_is_found_wherever_it_is_plugged_in() -> None:
    ports = [FakePort("/dev/ttyACM1", "other"), FakePort("/dev/ttyACM7", NUMBER), FakePort("/dev/ttyS0", None)]
    assert find_port(NUMBER, ports=lambda: ports) == "/dev/ttyACM7"


def test_two_ports_with_its_number_are_refused_at_once() -> None:
    ports = [FakePort("/dev/ttyACM1", NUMBER), FakePort("/dev/ttyACM0", NUMBER)]
    with pytest.raises(BoardMissing, match=r"2 ports have the serial number E.*: /dev/ttyACM0, /dev/ttyACM1"):
        find_port(NUMBER, deadline_s=600.0, ports=lambda: ports)


def test_a_board_that_does_not_come_says_what_was_seen_instead() -> None:
    ports = [FakePort("/dev/ttyACM1", "other"), FakePort("/dev/ttyS0", None)]
    with pytest.raises(BoardMissing, match=r"seen: /dev/ttyACM1 \(other\), /dev/ttyS0 \(no number\)"):
        find_port(NUMBER, deadline_s=0.05, ports=lambda: ports)
    with pytest.raises(BoardMissing, match="seen: none"):
        find_port(NUMBER, deadline_s=0.0, ports=list)


def test_a_board_that_comes_late_is_found() -> None:
    turns = iter([[], [FakePort("/dev/ttyACM1", "other")], [FakePort("/dev/ttyACM0", NUMBER)]])
    assert find_port(NUMBER, deadline_s=600.0, ports=lambda: next(turns)) == "/dev/ttyACM0"


def test_one_user_at_a_time_and_the_other_is_told_who(tmp_path: Path) -> None:
    first = Lock(NUMBER, "a campaign on pico-1", tmp_path)
    with pytest.raises(BoardMissing, match=f"in use: a campaign on pico-1, process {os.getpid()}, since"):
        Lock(NUMBER, "another", tmp_path)
    Lock("other number", "another", tmp_path).release()
    first.release()
    Lock(NUMBER, "another", tmp_path).release()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib; from hil.inventory import Lock\n"
        f"lock = Lock({NUMBER!r}, 'a campaign', pathlib.Path({str(tmp_path)!r}))\n"
        "print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(BoardMissing, match="in use"):
            Lock(NUMBER, "another", tmp_path)
        process.kill()
        process.wait(DEADLINE_S)
    Lock(NUMBER, "another", tmp_path).release()


# A board


SWITCH = """
import json, os, pathlib, re, signal, subprocess, sys, time
folder, word = pathlib.Path(sys.argv[1]), sys.argv[2]
running = folder / "running"
if running.exists():
    pid, _ = json.loads(running.read_text())
    if word == "on":
        sys.exit()
    running.unlink()
    os.kill(pid, signal.SIGKILL)
if word == "on":
    out = open(folder / "out", "w")
    process = subprocess.Popen(json.loads((folder / "command").read_text()), stdin=subprocess.DEVNULL, stdout=out,
        stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    while not (match := re.search("redirected to (\\S+) ", (folder / "out").read_text())):
        assert process.poll() is None, (folder / "out").read_text()
        time.sleep(0.01)
    (folder / "new").write_text(json.dumps([process.pid, match[1]]))
    os.rename(folder / "new", running)
"""


class Bench:
    """A board on a bench: a Cortex-M3 whose REPL is on a pseudo-terminal, with a switch for its power."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        command = [str(word) for word in M3.command("flash", "heap=64")]
        command += ["-serial", "pty", "-nic", "user,model=lan9118"]
        (folder / "command").write_text(json.dumps(command))
        (folder / "switch.py").write_text(SWITCH)
        switch = f"{sys.executable} {folder}/switch.py {folder}"
        self.entry = Entry("bench", NUMBER, f"{switch} on", f"{switch} off", host=HOST, listen="127.0.0.1", lan=True)

    def ports(self) -> list[FakePort]:
        try:
            _, device = json.loads((self.folder / "running").read_text())
        except FileNotFoundError:
            return []
        return [FakePort(device, NUMBER)]

    def open(self, application: Path = SENSOR) -> SerialBoard:
        return SerialBoard(self.entry, application, self.ports, self.folder)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    if not M3.firmware.exists():
        pytest.skip("`make firmware` builds the firmware of this board")
    made = Bench(tmp_path / "bench")
    yield made
    subprocess.run([*made.entry.off.split()], check=True, timeout=DEADLINE_S)


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
def test_a_board_is_given_its_application_cut_off_and_read(bench: Bench, tmp_path: Path) -> None:
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    board = bench.open(application)
    assert (board.ways, board.listen, board.line) == ((POWER,), "127.0.0.1", None)
    with pytest.raises(BoardMissing, match="in use"):
        bench.open(application)
    try:
        for life in (1, 2):
            if life == 1:
                board.start({"outbox": "outbox"})
            else:
                board.power_up()
            mark = board.log.mark()
            assert board.log.wait_for(lambda text: text == "alive", DEADLINE_S, mark).life == life
            assert board.alive
            board.kill()
            assert bench.ports() == []
        assert board.read_file("lives") == b"xxx"  # one more life, until it was interrupted
        assert board.read_file("nothing") == b""
        assert b'"lan": true' in board.read_file("config.json")
        board.start({"outbox": "outbox"})
        board.kill()
    finally:
        board.close()
    bench.open(application).close()


@pytest.mark.timeout(180)
def test_a_board_that_disappears_is_noticed(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    board = bench.open(application)
    try:
        board.start({"outbox": "outbox"})
        board.log.wait_for(lambda text: text == "alive", DEADLINE_S)
        monkeypatch.setattr(inventory.find_port, "__defaults__", (0.2, bench.ports))
        subprocess.run([*bench.entry.off.split()], check=True, timeout=DEADLINE_S)
        end = time.monotonic() + DEADLINE_S
        while board.alive:
            assert time.monotonic() < end
        assert "no port with the serial number" in board.log.tail(1)
    finally:
        board.close()


def test_a_switch_that_fails_is_told(tmp_path: Path) -> None:
    entry = Entry("bench", NUMBER, "true", f"{sys.executable} -c 'import sys; sys.exit(\"no hub\")'", host=HOST)
    board = SerialBoard(entry, ports=list, locks=tmp_path)
    for _ in range(2):
        with pytest.raises(OSError, match=r"board bench: .*status 1.* no hub"):
            board.close()
    Lock(NUMBER, "another", tmp_path).release()


def test_a_board_whose_line_is_missing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory.find_port, "__defaults__", (0.0, list))
    entry = Entry("bench", NUMBER, "true", "true", reset="true", line="A50285BI")
    for _ in range(2):
        with pytest.raises(BoardMissing, match="no port with the serial number A50285BI"):
            SerialBoard(entry, ports=list, locks=tmp_path)
    ports = [FakePort("/dev/ttyUSB3", "A50285BI")]
    board = SerialBoard(entry, ports=lambda: ports, locks=tmp_path)
    assert (board.line, board.ways) == (Path("/dev/ttyUSB3"), (POWER, RESET))
    board.reset()
    board.close()


@pytest.mark.timeout(240)
def test_the_campaign_drives_it(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    monkeypatch.setattr(inventory, "load", lambda: {"bench": bench.entry})
    monkeypatch.setattr(inventory, "SerialBoard", lambda _, application: bench.open(application))
    assert targets.all_targets()[-1] == "bench"
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    settings = Settings(10, 2, 1, seed, "bench", deadline_s=120.0, artefacts=tmp_path / "campaign")
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.core == "c-module"
