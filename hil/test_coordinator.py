"""A board of a shared lab, all of it on this machine's loopback: labgrid's coordinator and exporter, a place, a
reservation, and a Cortex-M3 in QEMU whose REPL is a TCP port, as ser2net makes one.
"""

import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import IO

import pytest
import yaml

from hil.boards import LOOPBACK, ROOT, Log, Process
from hil.emulated import M3, MPS2_PSRAM_SIZE, mps2_flash
from hil.held_port import hold_port

DEADLINE_S = 120.0
BIN = ROOT / ".venv" / "bin"


class Lab:
    """The coordinator, which knows a REPL at `repl`, of one exporter; `say` is labgrid's client."""

    def __init__(self, folder: Path, repl: int) -> None:
        self._held = hold_port(LOOPBACK)
        self.address = f"{LOOPBACK}:{self._held.getsockname()[1]}"
        exported = {"lab": {"NetworkSerialPort": {"host": LOOPBACK, "port": repl, "protocol": "raw"}}}
        (folder / "exporter.yaml").write_text(yaml.safe_dump(exported))
        self.log = Log()
        self.coordinator = Process([BIN / "labgrid-coordinator", "-l", self.address], self.log, 1, folder)
        self._until("resources", "")
        words: list[str | Path] = [BIN / "labgrid-exporter", "-c", self.address, "--name", "desk"]
        words += ["--hostname", LOOPBACK, "exporter.yaml"]
        self.exporter = Process(words, self.log, 2, folder)
        self._until("resources", "desk/lab/NetworkSerialPort")

    def _until(self, word: str, wanted: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while (done := self.say(word)).returncode or wanted not in done.stdout:
            assert time.monotonic() < end, f"{done.stderr}\n{self.log.tail()}"

    def say(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return run("labgrid.remote.client", *words, LG_COORDINATOR=self.address)

    def check(self, path: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        return run("hil.rig", "check", "--lg-env", str(path), LG_COORDINATOR=self.address, **variables)

    def close(self) -> None:
        self.exporter.kill()
        self.coordinator.kill()
        self._held.close()


FORKS = multiprocessing.get_context("forkserver")  # of one process that has what each would import, for 0.7 s
FORKS.set_forkserver_preload(["labgrid.remote.client", "hil.rig", __name__])


def run(module: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command that is main() of this module, to its end."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        places = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)]
        process = FORKS.Process(target=_obey, args=(module, words, variables, places))
        process.start()
        process.join(DEADLINE_S)
        process.kill()
        process.join()
        texts = [_text(file) for file in (output, errors)]
        assert process.exitcode is not None
        return subprocess.CompletedProcess(words, process.exitcode, *texts)


def _obey(module: str, words: tuple[str, ...], variables: dict[str, str], places: list[str]) -> None:
    for number, place in enumerate(places, 1):
        os.dup2(os.open(place, os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(variables)
    sys.argv = [module, *words]
    sys.exit(import_module(module).main())


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """The file of a board that is a place, and the port of its REPL."""
    if not M3.firmware.exists():
        pytest.skip("`make firmware` builds the firmware of this board")
    mps2_flash(tmp_path / "flash").create({}, MPS2_PSRAM_SIZE)
    with hold_port() as held:
        repl = held.getsockname()[1]
        qemu = [*map(str, M3.command(tmp_path / "flash", "heap=64")), "-nic", "user,model=lan9118"]
        qemu += [
            "-serial",
            f"tcp:{LOOPBACK}:{repl},server=on,wait=off",
            "-daemonize",
            "-pidfile",
            str(tmp_path / "pid"),
        ]
        off = f"sh -c 'test ! -e {tmp_path}/pid || kill -9 $(cat {tmp_path}/pid); rm -f {tmp_path}/pid'"
        drivers = {
            "MicroPythonDriver": {},
            "ExternalPowerDriver": {"cmd_on": shlex.join(qemu), "cmd_off": off},
            "NodeDriver": {"host": "10.0.2.2", "listen": LOOPBACK, "lan": True},  # QEMU calls this machine so
            "BoardStrategy": {},
        }
        place = {"resources": {"RemotePlace": {"name": "pico"}}, "drivers": drivers}
        path = tmp_path / "rig.yaml"
        path.write_text(yaml.safe_dump({"imports": ["hil.drivers"], "targets": {"pico": place}}, sort_keys=False))
        yield path, repl
        subprocess.run(shlex.split(off), check=True, timeout=DEADLINE_S)


def by_itself(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """labgrid's client as a user starts it, in another folder."""
    if not list((ROOT / ".venv").glob("lib/python3*/site-packages/checkout.pth")):
        pytest.skip("`make setup-test` lets labgrid's client find hil")
    command = [str(BIN / "labgrid-client"), *words]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.timeout(300)
def test_a_board_is_reserved_acquired_and_driven_through_a_coordinator(board: tuple[Path, int], tmp_path: Path) -> None:
    path, repl = board
    lab = Lab(tmp_path, repl)
    try:
        for words in (("create",), ("add-match", "desk/lab/NetworkSerialPort"), ("set-tags", "board=pico")):
            assert lab.say("-p", "pico", *words).returncode == 0
        without = lab.check(path)
        assert (without.returncode, without.stderr) == (1, "")
        assert "board pico: place pico is not acquired" in without.stdout
        assert "LG_TOKEN" in lab.say("reserve", "--shell", "--wait", "board=pico").stdout
        assert lab.say("-p", "pico", "acquire").returncode == 0
        with_it = lab.check(path)
        assert with_it.returncode == 0, with_it.stdout + with_it.stderr
        assert f"pico: pico: {LOOPBACK}:{repl}, over a network" in with_it.stdout
        assert "pico: core c-module, frozen into the firmware" in with_it.stdout
        assert "pico: silent when its power is off" in with_it.stdout
        place = {"LG_ENV": str(path), "LG_COORDINATOR": lab.address}
        arguments = ["--board", "pico", "--messages", "4", "--cuts", "0", "--kills", "1", "--seed", "1", "--json"]
        played = run("hil.campaign", *arguments, **place)
        assert played.returncode == 0, played.stderr
        assert json.loads(played.stdout)["comparison"]["once"] == 4
        shown = by_itself("show", **place)
        assert shown.returncode == 0, shown.stderr
        assert "acquired: " in shown.stdout
        others = lab.check(path, LG_USERNAME="another")
        assert (others.returncode, others.stderr) == (1, "")
        assert "board pico: place pico is not acquired by your user, acquired by " in others.stdout
        lab.close()
        gone = lab.check(path)
        assert gone.returncode == 1
        assert "board pico: Could not connect to coordinator" in gone.stdout
        assert "Traceback" not in gone.stderr
    finally:
        lab.close()
