"""The queue manager of the rig's campaigns as tests/support/command.py starts it: forked, its modules there already.

What a campaign sees is the same: processes in groups of their own, their output, signals, exit status; and a clock that
steps, which needs a process that has it from its begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from hil.boards import ORPHANED
from hil.queue_manager import STEPPED
from hil.scenario import ORDACK
from tests.support import command

CLOCK = "FORKED_CLOCK"
# Every process of it has that clock, which goes as the true one does where the environment names no file.
WITH_CLOCK = f"""
import os, time
from pathlib import Path
from hil import stepped
class Ahead:
    def read_text(self):
        name = os.environ.get("{CLOCK}")
        return Path(name).read_text() if name else "0"
stepped.step(Ahead(), time.time)
"""


class Forked(command.Running):
    """As far as the rig uses it, what subprocess.Popen is to other programs; standard error goes where output goes."""

    def __init__(self, arguments: list[str], folder: Path, environment: dict[str, str], places: list[int]) -> None:
        self._lock = threading.Lock()
        read, write = os.pipe()
        environment = {**command.ENVIRONMENT, **environment}
        command.send(arguments, environment, folder, [*places, write], WITH_CLOCK)
        os.close(write)
        self._fate = os.fdopen(read, "rb")
        self.pid = int(self._fate.readline())
        self.returncode = None

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            return super().wait(timeout)


def _asked(words: list[str], folder: Path) -> tuple[list[str], Path, dict[str, str]] | None:
    """Arguments, folder and environment of a command of the queue manager; None if it is another program's."""
    environment = {}
    if words[:2] == [sys.executable, str(STEPPED)]:
        environment, words = {CLOCK: str(folder / words[2])}, words[3:]
    return (words[1:], folder, environment) if (words[0],) == ORDACK else None


def popen(words: list[str], cwd: Path, **settings: Any) -> Any:
    """In place of Popen, in hil.boards."""
    asked = _asked(words[len(ORPHANED) :], cwd)
    if asked is None:
        return subprocess.Popen(words, cwd=cwd, **settings)
    read, write = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        forked = Forked(*asked, [nothing.fileno(), write, write])
    os.close(write)
    forked.stdout = os.fdopen(read, "rb")  # type: ignore[assignment]
    return forked


class _Command:
    """What asyncio has for a command, as far as the rig uses it. What it says is read, and its end waited for, whether
    anybody asks or not."""

    def __init__(self, forked: Forked, output: IO[bytes] | None, errors: IO[bytes]) -> None:
        self._forked = forked
        self._texts = [b"", b""]
        self._readers = [threading.Thread(target=self._read, args=one) for one in enumerate((output, errors))]
        for reader in self._readers:
            reader.start()

    def _read(self, number: int, stream: IO[bytes] | None) -> None:
        if stream is not None:
            with stream:
                self._texts[number] = stream.read()
        self._forked.wait()

    def _join(self) -> None:
        for reader in self._readers:
            reader.join()

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._forked.pid, signal.SIGKILL)

    async def wait(self) -> None:
        await asyncio.to_thread(self._join)

    async def communicate(self) -> list[bytes]:
        await self.wait()
        return self._texts


async def create_subprocess_exec(
    *words: str | Path, cwd: Path = command.ROOT, stdout: Any = None, stderr: Any = None, **settings: Any
) -> Any:
    """In place of that of asyncio, in hil.campaign."""
    asked = _asked([str(word) for word in words], cwd)
    if asked is None:
        return await asyncio.create_subprocess_exec(*words, cwd=cwd, stdout=stdout, stderr=stderr, **settings)
    of_output = os.pipe() if stdout == subprocess.PIPE else None
    of_errors = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        places = [nothing.fileno(), of_output[1] if of_output else stdout.fileno(), of_errors[1]]
        forked = Forked(*asked, places)
    for ends in (of_output, of_errors):
        if ends:
            os.close(ends[1])
    return _Command(forked, os.fdopen(of_output[0], "rb") if of_output else None, os.fdopen(of_errors[0], "rb"))
