"""Real boards, driven. The one here is a Cortex-M3 in QEMU. Its REPL is on a pseudo-terminal that has a new name at
each power-up, as the port of a real board may have.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import serial
import serial.rfc2217
from labgrid.driver.fake import FakePowerDriver
from rich.console import Console

from hil import campaign, real, sensor
from hil.boards import POWER, RESET, SENSOR, Board, BoardMissing, RigFailed
from hil.campaign import run_campaign
from hil.dice import new_seed
from hil.emulated import HOST, M3, MPS2_PSRAM_SIZE, mps2_flash
from hil.real import LabBoard
from hil.report import RIG_FAILED, read_ledger
from hil.scenario import COPY, ORDACK, Kill, Settings
from hil.targets import open_board
from hil.test_lab import described

DEADLINE_S = 60.0

Rig = Callable[[dict[str, Any]], Path]


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
    """A board on a bench: a Cortex-M3 whose REPL is on a pseudo-terminal, with a switch for its power."""

    def __init__(self, folder: Path, rig: Rig) -> None:
        folder.mkdir()
        command = [str(word) for word in M3.command("flash", "heap=64")]
        command += ["-serial", "pty", "-nic", "user,model=lan9118"]
        (folder / "command").write_text(" ".join(command))
        (folder / "switch").write_text(SWITCH)
        self.tty = folder / "tty"
        self.off = f"sh {folder}/switch {folder} off"
        self.on = self.off.removesuffix("off") + "on"
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


@pytest.mark.timeout(240)
def test_a_board_is_given_its_application_cut_off_and_read(bench: Bench, application: Path) -> None:
    """While the rig has it, no other program gets it; a program that is not the rig's is left alone."""
    board = bench.open(application)
    assert isinstance(board, LabBoard)
    assert (board.ways, board.listen, board.line) == ((POWER,), "127.0.0.1", None)
    try:
        with board.asked() as repl:
            repl.write("main.py", b"# main.py -- put your code here!\r\n")  # as on a new STM32
        board.deploy({"outbox": "outbox"})
        for turn in (1, 2):
            board.power_up()
            mark = board.log.mark()
            assert board.log.wait_for(lambda text: text == "alive", DEADLINE_S, mark).life == board.life
            assert board.alive
            if turn == 1:
                _refuses_others(bench)
                board.log.wait_for(lambda text: text == "alive", DEADLINE_S, board.log.mark())
            board.kill()
            assert not bench.tty.exists()
        with board.asked() as repl:
            # one more life if it got so far before it was interrupted
            assert board.read_file("lives") in (b"xx", b"xxx")
            assert board.read_file("nothing") == b""
            assert b'"lan": true' in board.read_file("config.json")
        board.deploy({"outbox": "again"})
        with board.asked() as repl:
            repl.write("main.py", b"# press 3\nimport press\n")
        with pytest.raises(OSError, match=r"board bench has a main.py that is not the rig's: save what it is to keep"):
            board.deploy({"outbox": "elsewhere"})
        assert not bench.tty.exists()
        with board.asked():
            assert board.read_file("main.py") == b"# press 3\nimport press\n"
            assert board.read_file("config.json").startswith(b'{"outbox": "again"')
    finally:
        board.close()
    bench.open(application).close()


def _refuses_others(bench: Bench) -> None:
    """The command, and other programs: the port is opened exclusively."""
    done = subprocess.run(
        [sys.executable, "-m", "ordack", "board", "doctor", "--port", bench.tty],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 5
    assert "is in use by another program" in done.stderr
    with pytest.raises(serial.SerialException, match="exclusively lock"):
        serial.Serial(str(bench.tty), exclusive=True)


def test_manual_power_driver_prompts_only_at_a_terminal(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    board = described(tmp_path / "tty")
    del board["drivers"][FakePowerDriver.__name__]
    rig({"bench": {**board, "drivers": {"ManualPowerDriver": {}, **board["drivers"]}}})
    answers = StringIO("\n\n")
    monkeypatch.setattr(sys, "stdin", answers)
    reason = r"^board bench is switched by hand \(ManualPowerDriver\), and nobody is at a terminal here"
    with pytest.raises(BoardMissing, match=reason):
        open_board("bench", tmp_path / "flash")
    assert answers.tell() == 0
    monkeypatch.setattr(answers, "isatty", lambda: True)
    opened = open_board("bench", tmp_path / "flash")
    opened.kill()
    assert "Turn the target bench OFF and press enter" in capsys.readouterr().out
    opened.close()


def test_a_line_and_a_button_are_found_or_the_board_is_let_go(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real.url, "__defaults__", (0.0, None))
    board = described(tmp_path / "tty", line="uart")
    board["resources"].append({"RawSerialPort": {"name": "uart", "port": str(tmp_path / "uart")}})
    (tmp_path / "button").touch()
    board["drivers"] |= {
        "FileDigitalOutputDriver": {"filepath": str(tmp_path / "button")},
        "DigitalOutputResetDriver": {"delay": 0.0},
    }
    board["drivers"] = dict(sorted(board["drivers"].items(), key=lambda item: item[0] == "NodeDriver"))
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
    monkeypatch.setattr(real, "_ENDED_WITHIN_S", 0.2)
    (tmp_path / "button").unlink()
    os.mkfifo(tmp_path / "button")  # whoever writes to it waits for a reader
    with pytest.raises(OSError, match=r"^board bench: its reset button has not answered for 0.2 s"):
        opened.reset()
    opened.close()


STALE = b"raise ImportError('it is stale')"


@pytest.mark.timeout(240)
def test_a_campaign_deploys_the_modules_that_it_tests(bench: Bench, tmp_path: Path) -> None:
    """The board has a stock firmware, and modules of before in its files."""
    stock = M3.firmware.parents[1] / "mps2-an385-stock" / "firmware.elf"
    if not Path(ORDACK[0]).exists() or not stock.exists():
        pytest.skip(f"{ORDACK[0]} or {stock} is missing; `make setup-test` makes both")
    command = bench.tty.with_name("command")
    command.write_text(command.read_text().replace(str(M3.firmware), str(stock)).replace("heap=64", "heap=200"))
    folder = Path(real.compiled_modules().name)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.mpy")}
    stale = {"ordack/node/node.mpy", "mqqb/session.mpy", "mqqb/streams.mpy"}
    old = {name: data for name, data in files.items() if name not in stale and "/core_" not in name}
    old |= {"mqqb/session.py": STALE, "ordack/node/node.py": STALE, "mqqb/streams.mpy": files["mqqb/session.mpy"]}
    mps2_flash(bench.tty.with_name("flash")).create(old, MPS2_PSRAM_SIZE)
    seed = new_seed()
    print(f"seed {seed}")
    settings = Settings(10, 0, 1, seed, "bench", 200, deadline_s=120.0, artefacts=tmp_path / "campaign")
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.core == "native-module"
    assert figures.modules == real.digest(folder)
    flash = mps2_flash(bench.tty.with_name("flash"))
    assert {name: flash.read(name) for name in stale} == {name: files[name] for name in stale}


@pytest.mark.timeout(240)
def test_stuck_power_switch_fails_campaign_and_counts_no_cut(bench: Bench, rig: Rig, tmp_path: Path) -> None:
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
@pytest.mark.usefixtures("bench")
def test_campaign_with_repl_mishap_loses_only_erased_messages(tmp_path: Path) -> None:
    """A copy is made before one can be put back."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    seed = new_seed()
    print(f"seed {seed}")
    artefacts = tmp_path / "campaign"
    wanted = Settings(12, 0, 3, seed, "bench", 200, 180.0, 300.0, mishap=COPY, ahead=12, artefacts=artefacts)
    figures = asyncio.run(run_campaign(wanted, Console()))
    assert figures.shortcomings() == [], f"seed {seed}"
    assert figures.comparison is not None
    assert (figures.mishaps, figures.core) == (2, "c-module")
    assert figures.comparison.once + len(figures.comparison.erased) == 12


# What the rig itself does wrong


HANGING = """
echo $$ >> {pids}
sleep 600 &
echo $! >> {pids}
wait
touch {late}
"""


def test_hung_relay_ends_campaign_and_leaves_no_power_process(
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
    assert {"board.log", "figures.json", "queue_manager.log", "store"} <= kept
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) >= 2
    end = time.monotonic() + DEADLINE_S
    while any(Path(f"/proc/{pid}").exists() for pid in started):  # those of the shell are init's to bury
        assert time.monotonic() < end
    assert not (tmp_path / "late").exists()


@pytest.mark.timeout(240)
def test_lost_port_fails_campaign_and_keeps_readable_artefacts(
    bench: Bench, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its first kill the board is not there; when its ledger is read it is."""
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    (tmp_path / "on").write_text(f"echo on >> {tmp_path}/turns; test $(wc -l < {tmp_path}/turns) = 3 || {bench.on}")
    node = {"host": HOST, "listen": "127.0.0.1", "lan": True, "off_s": 0.1}
    rig({"bench": described(bench.tty, f"sh {tmp_path}/on", bench.off, **node)})
    monkeypatch.setattr(real.url, "__defaults__", (1.0, None))
    seed = new_seed()
    print(f"seed {seed}")
    plan = (Kill(4, 0.0, 0.0),)
    settings = Settings(10, 0, 1, seed, "bench", 200, deadline_s=120.0, artefacts=tmp_path / "campaign", plan=plan)
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.failure is not None
    assert figures.failure.startswith(f"board bench: no port {bench.tty} within 1 s")
    assert figures.status == RIG_FAILED
    assert figures.comparison is not None
    assert figures.comparison.sent >= 4
    assert figures.artefacts is not None
    assert len(read_ledger(Path(figures.artefacts, sensor.LEDGER).read_bytes())) == figures.comparison.sent
