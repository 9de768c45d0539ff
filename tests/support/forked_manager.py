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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from hil.campaign import STEPPED
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


def _forked(words: Sequence[str], folder: Path, places: list[int]) -> Forked | None:
    """The command, if it is one of the queue manager."""
    environment = {}
    if list(words[:2]) == [sys.executable, str(STEPPED)]:
        environment, words = {CLOCK: str(folder / words[2])}, words[3:]
    return Forked(list(words[1:]), folder, environment, places) if (words[0],) == ORDACK else None


def popen(orphaned: Sequence[str]) -> Callable[..., Any]:
    """In place of Popen, in hil.boards. orphaned: what stands in front of every command."""

    def start(words: Sequence[str], cwd: Path, **settings: Any) -> Any:
        with Path(os.devnull).open("rb") as nothing:
            read, write = os.pipe()
            forked = _forked(words[len(orphaned) :], cwd, [nothing.fileno(), write, write])
            os.close(write)
        output = os.fdopen(read, "rb")
        if forked is None:
            output.close()
            return subprocess.Popen(words, cwd=cwd, **settings)
        forked.stdout = output  # type: ignore[assignment]
        return forked

    return start


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
    if (str(words[0]),) != ORDACK:
        return await asyncio.create_subprocess_exec(*words, cwd=cwd, stdout=stdout, stderr=stderr, **settings)
    of_output = os.pipe() if stdout == subprocess.PIPE else None
    of_errors = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        places = [nothing.fileno(), of_output[1] if of_output else stdout.fileno(), of_errors[1]]
        forked = _forked([str(word) for word in words], cwd, places)
    assert forked is not None
    for ends in (of_output, of_errors):
        if ends:
            os.close(ends[1])
    return _Command(forked, os.fdopen(of_output[0], "rb") if of_output else None, os.fdopen(of_errors[0], "rb"))
