"""A board of a shared lab, all of it on this machine's loopback: labgrid's coordinator and exporter, a place, and a
Cortex-M3 in QEMU whose REPL is a TCP port, as ser2net makes one.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hil.boards import LOOPBACK, ROOT, Log, Process
from hil.emulated import HOST, M3, MPS2_PSRAM_SIZE, mps2_flash
from hil.held_port import hold_port
from hil.scenario import ORDACK

DEADLINE_S = 150.0
BIN = ROOT / ".venv" / "bin"
PLACE = "pico"


def run(*words: str | Path, folder: str = str(ROOT), **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command, to its end."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The file of a board that is a place, and the port of its REPL."""
    if not M3.firmware.exists() or not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} or {M3.firmware} is missing; `make setup-test` makes both")
    mps2_flash(tmp_path / "flash").create({}, MPS2_PSRAM_SIZE)
    with hold_port() as held:
        repl, pid = held.getsockname()[1], tmp_path / "pid"
        qemu = [*map(str, M3.command(tmp_path / "flash", "heap=64")), *M3.lan, "-daemonize", "-pidfile", str(pid)]
        qemu += ["-serial", f"tcp:{LOOPBACK}:{repl},server=on,wait=off"]
        off = f"sh -c 'test ! -e {pid} || kill -9 $(cat {pid}); rm -f {pid}'"
        drivers = {
            "MicroPythonDriver": {},
            "ExternalPowerDriver": {"cmd_on": shlex.join(qemu), "cmd_off": off},
            "NodeDriver": {"host": HOST, "listen": LOOPBACK, "lan": True},
        }
        place = {"resources": {"RemotePlace": {"name": PLACE}}, "drivers": drivers}
        path = tmp_path / "rig.yaml"
        path.write_text(yaml.safe_dump({"imports": ["hil.drivers"], "targets": {PLACE: place}}, sort_keys=False))
        yield path, repl
        subprocess.run(shlex.split(off), check=True, timeout=DEADLINE_S)


@pytest.fixture
def lab(board: tuple[Path, int], tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the environment says of a coordinator that knows the board, and of the file."""
    path, repl = board
    exported = {"lab": {"NetworkSerialPort": {"host": LOOPBACK, "port": repl, "protocol": "raw"}}}
    (tmp_path / "exporter.yaml").write_text(yaml.safe_dump(exported))
    with hold_port() as held:
        variables = {"LG_COORDINATOR": f"{LOOPBACK}:{held.getsockname()[1]}", "LG_ENV": str(path)}
        log = Log()
        coordinator = Process([BIN / "labgrid-coordinator", "-l", variables["LG_COORDINATOR"]], log, 1, tmp_path)
        words: list[str | Path] = [BIN / "labgrid-exporter", "-c", variables["LG_COORDINATOR"], "--name", "desk"]
        exporter = None
        end = time.monotonic() + DEADLINE_S
        try:
            while "desk/lab/NetworkSerialPort" not in (done := client("resources", **variables)).stdout:
                assert time.monotonic() < end, f"{done.stderr}\n{log.tail()}"
                if done.returncode == 0 and exporter is None:
                    exporter = Process([*words, "--hostname", LOOPBACK, "exporter.yaml"], log, 2, tmp_path)
            yield variables
        finally:
            if exporter is not None:
                exporter.kill()
            coordinator.kill()


def client(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """labgrid's client, as a user starts it in another folder."""
    return run(BIN / "labgrid-client", *words, folder="/", **variables)


@pytest.mark.timeout(300)
def test_campaign_runs_on_acquired_coordinator_place(lab: dict[str, str]) -> None:
    arguments = ["--board", PLACE, "--messages", "4", "--cuts", "0", "--kills", "1", "--seed", "1", "--json"]
    command = [sys.executable, "-m", "hil.campaign", *arguments]
    for words in (("create",), ("add-match", "desk/lab/NetworkSerialPort")):
        assert client("-p", PLACE, *words, **lab).returncode == 0
    without = run(*command, **lab)
    assert (without.returncode, "Traceback" in without.stderr) == (2, False)
    assert f"place {PLACE} is not acquired" in " ".join(without.stderr.split())
    acquired = client("-p", PLACE, "acquire", **lab)
    assert acquired.returncode == 0, acquired.stderr
    played = run(*command, **lab)
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["comparison"]["once"] == 4
