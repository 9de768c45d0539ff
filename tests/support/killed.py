"""A program that a test kills at a chosen moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.command import DEADLINE_S, ENVIRONMENT

# Runs a program, and kills it before or after the nth call of a function.
KILLER = """
import importlib, os, runpy, signal, sys
module, owner, name, nth, side, *sys.argv = sys.argv[1:]
place = getattr(importlib.import_module(module), owner)
method, calls = getattr(place, name), 0
def dying(*arguments, **named):
    global calls
    calls += 1
    if (calls, side) == (int(nth), "before"):
        os.kill(os.getpid(), signal.SIGKILL)
    result = method(*arguments, **named)
    if calls == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(place, name, dying)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Program:
    """A Python program that runs. until: where it is killed: module, class, method, number of the call, and side."""

    def __init__(self, *script: object, until: str = "", folder: Path | None = None) -> None:
        killer = ["-c", KILLER, *until.split()] if until else []
        command = [sys.executable, *killer, *map(str, script)]
        self.process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)

    def end(self, status: int = -signal.SIGKILL) -> str:
        with self:
            _, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == status, errors
        return errors

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
