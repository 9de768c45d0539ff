"""A Raspberry Pi, all of it on this machine's loopback: an SSH server and all that it starts are in a namespace of
processes of their own, so that one SIGKILL ends them all at once, as a cut of the power does.
"""

import asyncio
import errno
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import yaml
from ordack.boards import claim
from rich.console import Console

from hil.boards import LOOPBACK, Board, BoardMissing
from hil.campaign import run_campaign
from hil.computer import SSHBoard
from hil.dice import new_seed
from hil.held_port import hold_port
from hil.machines import MICROPYTHON
from hil.report import RIG_FAILED
from hil.rig import main as rig_command
from hil.scenario import ERASE, ORDACK, Settings
from hil.targets import open_board

DEADLINE_S = 60.0
SERVER = """
import asyncio, sys, asyncssh

async def copy(source, to):
    while data := await source.read(65536):
        to.write(data)
        await to.drain()

async def run(process):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    child = await asyncio.create_subprocess_shell(process.command, **pipes)
    given = asyncio.create_task(copy(process.stdin, child.stdin))
    given.add_done_callback(lambda _: child.stdin.close())
    await asyncio.gather(copy(child.stdout, process.stdout), copy(child.stderr, process.stderr))
    process.exit(await child.wait())

async def main(port, key, known):
    keys = {"server_host_keys": [key], "authorized_client_keys": known}
    server = await asyncssh.listen("127.0.0.1", port, process_factory=run, encoding=None, **keys)
    print("listening", flush=True)
    await server.wait_closed()

asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
"""

Make = Callable[..., Path]


class Pi:
    """The computer. `on` and `off`, commands: its switch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(folder / "key"))
        key.write_public_key(str(folder / "known"))
        (folder / "key").chmod(0o600)
        (folder / "server.py").write_text(SERVER)
        self.held = hold_port(LOOPBACK)
        self.port = self.held.getsockname()[1]
        server = shlex.join([sys.executable, "server.py", str(self.port), "key", "known"])
        boot = "/proc/sys/kernel/random/boot_id"  # of its own, a new one at each start
        server = f"cat /proc/sys/kernel/random/uuid > boot; mount --bind boot {boot}; exec {server}"
        space = "unshare --pid --mount --fork --kill-child"
        start = f"setsid {space} sh -c {shlex.quote(server)} > server.log 2>&1 & echo $! > pid"
        until = "until grep -q listening server.log; do sleep 0.05; done"
        (folder / "on").write_text(f"cd {folder}; test -e pid && exit; {start}; {until}")
        (folder / "off").write_text(f"cd {folder}; test ! -e pid || kill -9 $(cat pid); rm -f pid server.log")
        self.on, self.off = (f"sh {folder}/{name}" for name in ("on", "off"))

    @property
    def is_on(self) -> bool:
        return (self.folder / "pid").exists()

    def runs(self, word: str) -> int:
        """How many processes have it in their command, of those whose home is this computer's."""
        found = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                here = (process / "cwd").readlink().is_relative_to(self.folder / "home")
                found += here and word in (process / "cmdline").read_text()
        return found

    def switch(self, command: str) -> None:
        subprocess.run(shlex.split(command), check=True, timeout=DEADLINE_S)


@pytest.fixture
def pi(tmp_path: Path) -> Iterator[Pi]:
    if subprocess.run(["unshare", "--pid", "--mount", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make a namespace of processes")
    made = Pi(tmp_path)
    with made.held:
        yield made
        made.switch(made.off)


@pytest.fixture
def rig(pi: Pi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes the file of boards that is used, with the Pi in it; without a switch it is on from then on."""
    monkeypatch.setattr(claim, "FOLDER", tmp_path)

    def make(switch: bool, **node: Any) -> Path:
        service = {"address": LOOPBACK, "port": pi.port, "username": "pi"}
        drivers: dict[str, Any] = {
            "SSHDriver": {"keyfile": str(tmp_path / "key"), "connection_timeout": 60.0},
            **({"ExternalPowerDriver": {"cmd_on": pi.on, "cmd_off": pi.off}} if switch else {}),
            "SSHNodeDriver": {"host": LOOPBACK, "folder": str(tmp_path / "home"), **node},
            "BoardStrategy": {},
        }
        target = {"resources": {"NetworkService": service}, "drivers": drivers}
        path = tmp_path / "rig.yaml"
        path.write_text(yaml.safe_dump({"imports": ["hil.computer"], "targets": {"pi-1": target}}, sort_keys=False))
        monkeypatch.setenv("LG_ENV", str(path))
        if not switch:
            pi.switch(pi.on)
        return path

    return make


def unix() -> str:
    if not MICROPYTHON["unix"].exists():
        pytest.skip("`make setup-test` builds MicroPython's unix port")
    return str(MICROPYTHON["unix"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("switch", "mishap", "cuts"),
    [(True, "", 3), (False, ERASE, 0)],
    ids=["a switch cuts its power", "its process is killed, its outbox erased"],
)
def test_a_campaign_drives_it(rig: Make, tmp_path: Path, switch: bool, mishap: str, cuts: int) -> None:
    rig(switch, **({"interpreter": unix()} if switch else {"command": sys.executable}))
    seed = new_seed()
    print(f"seed {seed}")
    settings = Settings(40, cuts, 2, seed, "pi-1", 1024, 120.0, 240.0, mishap=mishap, others=False)
    settings = replace(settings, ordack=tuple(map(str, ORDACK)), artefacts=tmp_path / "campaign")
    figures = asyncio.run(run_campaign(settings, Console()))
    assert figures.shortcomings() == []
    assert figures.board_kills == 2


def test_a_switch_that_switches_nothing_ends_the_campaign(rig: Make, pi: Pi, tmp_path: Path) -> None:
    """Its process is started again all the same: the connection ends at each cut, and the process with it."""
    path = rig(True, command=sys.executable)
    pi.switch(pi.on)
    path.write_text(path.read_text().replace(pi.off, "sh -c true"))
    settings = Settings(40, 0, 2, new_seed(), "pi-1", 1024, 120.0, 240.0, others=False, artefacts=tmp_path / "campaign")
    figures = asyncio.run(run_campaign(replace(settings, ordack=tuple(map(str, ORDACK))), Console()))
    assert str(figures.failure).startswith("board pi-1 was switched off and on and did not boot")
    assert figures.status == RIG_FAILED


def test_check_says_what_it_is_and_finds_a_switch_that_switches_nothing(
    rig: Make, pi: Pi, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rig(True, command=sys.executable)
    assert rig_command(["check"]) == 0
    said = capsys.readouterr().out
    assert f"pi-1: pi-1: pi@{LOOPBACK}:{pi.port}, {sys.executable}, a switch cuts it off" in said
    assert f"pi-1: {sys.executable} is cpython 3" in said
    assert f"pi-1: reaches this machine at {LOOPBACK}" in said
    assert "pi-1: silent when its power is off" in said
    pi.switch(pi.on)
    path.write_text(path.read_text().replace(pi.off, "sh -c true"))
    assert rig_command(["check"]) == 1
    assert "pi-1: FAILED: it answers although its power is off" in capsys.readouterr().out


@pytest.mark.parametrize("interpreter", [False, True])
def test_check_lets_it_reach_this_machine_and_says_so_if_it_does_not(
    rig: Make, tmp_path: Path, interpreter: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with an interpreter that is here: it is brought there, and nothing of it stays."""
    node = {"interpreter": unix()} if interpreter else {"command": sys.executable}
    rig(False, **node)
    assert rig_command(["check"]) == 0
    assert f"pi-1: reaches this machine at {LOOPBACK}" in capsys.readouterr().out
    assert not (tmp_path / "home").exists()
    rig(False, **node, host="127.0.0.2", listen=LOOPBACK)
    assert rig_command(["check"]) == 1
    told = capsys.readouterr().out
    assert "pi-1: FAILED: it does not reach this machine at 127.0.0.2: " in told
    assert f"({errno.ECONNREFUSED}," in told or "ECONNREFUSED" in told, told


def test_one_that_does_not_answer_lets_nobody_in_or_has_no_interpreter_is_named(
    rig: Make, pi: Pi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rig(False, command="no-such-python")
    assert rig_command(["check"]) == 1
    assert "`no-such-python -c" in (said := capsys.readouterr().out)
    assert "not found" in said
    path.write_text(path.read_text().replace("connection_timeout: 60.0", "connection_timeout: 1.0"))
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(tmp_path / "key"))
    assert rig_command(["check"]) == 1
    assert f"pi-1: FAILED: board pi-1: pi@{LOOPBACK}:{pi.port}: Timeout while waiting" in capsys.readouterr().out
    pi.switch(pi.off)
    assert rig_command(["check"]) == 1
    assert f"pi-1: FAILED: board pi-1: pi@{LOOPBACK}:{pi.port}: Timeout while waiting" in capsys.readouterr().out


@pytest.mark.parametrize("switch", [True, False])
def test_a_folder_that_others_use_is_left_alone(rig: Make, tmp_path: Path, switch: bool) -> None:
    rig(switch, command=sys.executable)
    home = tmp_path / "home"
    home.mkdir()
    board = open_board("pi-1", tmp_path / "flash")
    try:
        board.deploy({})  # an empty one is taken
        board.deploy({})
        (home / ".ordack-rig").rename(home / "thesis")
        with pytest.raises(
            OSError, match=r"board pi-1: the folder .*/home is not the rig's, \S+ is in it: name another"
        ):
            board.deploy({})
        assert (home / "thesis").exists()
        (home / "thesis").rename(tmp_path / "thesis")
        subprocess.run(["rm", "-r", home], check=True)
        home.write_text("a file")
        with pytest.raises(OSError, match="/home is in it"):
            board.deploy({})
    finally:
        board.close()


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({}, "either command"),
        ({"command": "python3", "folder": "/"}, "folder: '/' is no folder of its own"),
        ({"command": "python3", "folder": ".."}, "folder: '..' is no folder of its own"),
        ({"command": "python3", "hots": "a"}, "hots"),
    ],
)
def test_one_that_is_described_wrongly_is_refused(rig: Make, tmp_path: Path, node: dict[str, str], reason: str) -> None:
    rig(True, **node)
    with pytest.raises(BoardMissing, match=reason):
        open_board("pi-1", tmp_path / "flash")


def opened(tmp_path: Path) -> SSHBoard:
    board = open_board("pi-1", tmp_path / "flash")
    assert isinstance(board, SSHBoard)
    return board


APPLICATION = """
import json, sys, time
with open("lives", "a") as file:
    file.write("x")
print("alive", json.load(open(sys.argv[1]))["name"], flush=True)
time.sleep(600)
"""


def lives(board: Board) -> bool:
    return board.alive
