"""The queue manager of the rig's campaigns as tests/support/command.py starts it: forked, its modules there already.

What a campaign sees is the same: processes in groups of their own, their output, signals, exit status.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from hil.boards import ORPHANED
from hil.scenario import ORDACK
from tests.support import command


class Forked(command.Running):
    """As far as the rig uses it, what subprocess.Popen is to other programs; standard error goes where output goes."""

    def __init__(self, arguments: list[str], folder: Path, places: list[int]) -> None:
        self._lock = threading.Lock()
        read, write = os.pipe()
        command.send(arguments, command.ENVIRONMENT, folder, [*places, write])
        os.close(write)
        self._fate = os.fdopen(read, "rb")
        self.pid = int(self._fate.readline())
        self.returncode = None

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            return super().wait(timeout)


def popen(words: list[str], cwd: Path, **settings: Any) -> Any:
    """In place of Popen, in hil.boards."""
    program, *arguments = words[len(ORPHANED) :]
    if (program,) != ORDACK:
        return subprocess.Popen(words, cwd=cwd, **settings)
    read, write = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        forked = Forked(arguments, cwd, [nothing.fileno(), write, write])
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
    program, *arguments = map(str, words)
    if (program,) != ORDACK:
        return await asyncio.create_subprocess_exec(*words, cwd=cwd, stdout=stdout, stderr=stderr, **settings)
    of_output = os.pipe() if stdout == subprocess.PIPE else None
    of_errors = os.pipe()
    with Path(os.devnull).open("rb") as nothing:
        places = [nothing.fileno(), of_output[1] if of_output else stdout.fileno(), of_errors[1]]
        forked = Forked(arguments, cwd, places)
    for ends in (of_output, of_errors):
        if ends:
            os.close(ends[1])
    return _Command(forked, os.fdopen(of_output[0], "rb") if of_output else None, os.fdopen(of_errors[0], "rb"))
