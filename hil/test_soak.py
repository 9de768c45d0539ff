"""The soak that a timer starts: systemd takes its files, and the command in them goes on where it was stopped."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hil.boards import ROOT
from hil.scenario import ORDACK
from hil.signals import heed

CI = ROOT / "hil" / "ci"
DEADLINE_S = 240.0
WEEK = "2026-W48"
ONE_BOARD = """
imports: [hil.drivers, broken]
targets:
  desk:
    resources: {EmulatedMachine: {kind: cpython}}
    drivers: {EmulatedNodeDriver: {}, BoardStrategy: {}}
"""
BROKEN = """
import attr
from labgrid.factory import target_factory

from hil.drivers import EmulatedNodeDriver


@target_factory.reg_driver
@attr.s(eq=False)
class BrokenNodeDriver(EmulatedNodeDriver):
    def open(self, folder, application):
        program = folder.parent / "full.py"
        said = "{**json.load(open('config.json')), 'reason': 'flash is full'}"
        program.write_text(f"import json, signal\\nprint(json.dumps({said}), flush=True)\\nsignal.pause()")
        return super().open(folder, program)
"""


def service() -> tuple[list[str], dict[str, str]]:
    """The command and the environment of the service, as systemd reads them."""
    text = (CI / "ordack-soak.service").read_text().replace("\\\n", " ")
    environment = [word for line in re.findall("^Environment=(.*)", text, re.MULTILINE) for word in shlex.split(line)]
    (line,) = re.findall("^ExecStart=(.*)", text, re.MULTILINE)
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)|(?<!%)(%%)*%(?!%)", line), "systemd would put something in its place"
    return shlex.split(line.replace("$$", "$").replace("%%", "%")), dict(word.split("=", 1) for word in environment)


def test_systemd_takes_the_service_and_its_timer() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for name in ("ordack-soak.service", "ordack-soak.timer"):
        done = subprocess.run(
            [analyze, "verify", CI / name], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), name


class Soak:
    """The command of the service in a small form, in a week of its own."""

    def __init__(self, folder: Path) -> None:
        command, environment = service()
        self.run = folder / "soaks" / WEEK
        self.rig = folder / "rig.yaml"
        self.rig.write_text(ONE_BOARD)
        (folder / "broken.py").write_text(BROKEN)
        (folder / "bin").mkdir()
        (folder / "bin" / "date").write_text(f'#!/bin/sh\ntest "$1" = +%G-W%V && echo {WEEK}\n')
        (folder / "bin" / "date").chmod(0o755)
        # To collect all tests of the rig takes seconds, and boards have this file.
        self._command = [command[0], command[1], command[2].replace(" hil -n", " hil/test_exactly_once.py -n")]
        small = {"MESSAGES": "20", "CUTS": "2", "KILLS": "2", "COMMANDS": "2", "ROUNDS": "2", "AT_ONCE": "0"}
        assert environment.keys() == {*small, "LG_ENV", "SOAKS", "FOR"}
        places = {"LG_ENV": str(folder / "rig.yaml"), "SOAKS": str(folder / "soaks"), "FOR": environment["FOR"]}
        found = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LG_"))}
        self._environment = {**found, **small, **places, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self._environment["PYTHONPATH"] = str(folder)

    def start(self, **changes: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**self._environment, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed,  # as systemd starts it, also where these tests run in the background
        )

    def kept(self) -> dict[str, int]:
        """The rounds that are done, and when each was."""
        return {file.name: file.stat().st_mtime_ns for file in self.run.glob("desk-*.json")}


@pytest.mark.timeout(600)
def test_a_soak_goes_on_where_it_was_killed_and_keeps_what_it_says(tmp_path: Path) -> None:
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    soak = Soak(tmp_path)
    first, end = soak.start(), time.monotonic() + DEADLINE_S
    while not soak.kept():
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)  # as a power cut of this machine
    first.communicate(timeout=DEADLINE_S)
    before = soak.kept()
    assert len(before) == 1
    second = soak.start()
    said, _ = second.communicate(timeout=DEADLINE_S)
    assert second.returncode == 0, said
    assert "desk: 2 of 2 rounds, 20 readings and 2 commands once, 2 cuts, 2 power cuts" in said
    after = soak.kept()
    assert len(after) == 2
    assert before.items() <= after.items(), "a round that is done is not played again"
    assert {"hil.html", "hil.json", "hil.md", "hil.xml"} <= {file.name for file in soak.run.iterdir()}
    report = json.loads((soak.run / "hil.json").read_text())
    assert report["ok"]
    assert str(report["seed"]) == (soak.run / "seed").read_text()


@pytest.mark.timeout(600)
def test_what_a_failed_round_leaves_is_in_the_folder_of_its_run_and_a_night_that_is_over_is_no_failure(
    tmp_path: Path,
) -> None:
    if not Path(ORDACK[0]).exists():
        pytest.skip(f"{ORDACK[0]} is missing; `make setup` installs it")
    soak = Soak(tmp_path)
    night = soak.start(FOR="0.1s")
    night.communicate(timeout=DEADLINE_S)
    (well,) = re.findall("^SuccessExitStatus=(.*)", (CI / "ordack-soak.service").read_text(), re.MULTILINE)
    assert night.returncode == 124
    assert "124" in well.split()
    assert soak.kept() == {}
    soak.rig.write_text(ONE_BOARD.replace("EmulatedNodeDriver", "BrokenNodeDriver"))
    week = soak.start(ROUNDS="1")
    said, _ = week.communicate(timeout=DEADLINE_S)
    assert week.returncode == 1, said
    (folder,) = soak.run.glob("campaign/seed-*")
    assert (folder / "scenario.yaml").exists()
    assert "the board gave up: flash is full" in said
    assert str(folder / "scenario.yaml") in said
