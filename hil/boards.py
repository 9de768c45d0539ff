"""Boards: one interface for everything that runs the node, and the boards that are processes of this machine.

`emulated.py` has whole machines in QEMU, `real.py` real boards, `targets.py` the meaning of names.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Protocol

from firmware.ports import modules
from hil.unsynced import LIBRARY, Unsynced

ROOT = Path(__file__).resolve().parent.parent
FIRMWARE = ROOT / "firmware"
SENSOR = ROOT / "hil" / "sensor.py"

LOOPBACK = "127.0.0.1"
POWER = "power"
RESET = "reset"
MISHAP = "mishap"

_EXIT_DEADLINE_S = 60.0
ORPHANED = ("setpriv", "--pdeathsig", "KILL", "--")  # of util-linux: runs the command that follows
_STARTER = ThreadPoolExecutor(1, "starter")
"""Starts every process, for to the kernel a thread is the parent: a child of one that ends would die with it."""


class BoardMissing(Exception):
    """The target cannot be used here; the text gives the reason and the next step."""


class RigFailed(OSError):
    """A switch or port of the rig failed. The test subject is not at fault."""


@dataclass(frozen=True)
class Line:
    """One line of output, and the life of the board (from 1) that printed it."""

    life: int
    text: str


class Log:
    """All output of all lives. A test marks a position and reads the lines behind it. Thread-safe."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._changed = threading.Condition()

    def append(self, line: Line) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def mark(self) -> int:
        """The position behind the latest line."""
        return len(self._lines)

    def since(self, mark: int) -> list[Line]:
        """The lines from position `mark` on."""
        return self._lines[mark:]

    def wait_for(self, wanted: Callable[[str], bool], deadline_s: float, mark: int = 0) -> Line:
        """The first `wanted` line from `mark` on. Raises TimeoutError with the last lines after `deadline_s`."""
        end = time.monotonic() + deadline_s
        with self._changed:
            while True:
                for line in self._lines[mark:]:
                    mark += 1
                    if wanted(line.text):
                        return line
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"not seen within {deadline_s:g} s; the last lines are:\n{self.tail()}")
                self._changed.wait(left)

    def tail(self, count: int = 20) -> str:
        """The last `count` lines, each with its life as prefix."""
        return "\n".join(f"[{line.life}] {line.text}" for line in self._lines[-count:])


class Process:
    """A process in its own process group; a reader thread logs its output line by line. It dies with this process, even
    on SIGKILL."""

    def __init__(
        self, command: Sequence[str | Path], log: Log, life: int, cwd: Path, env: dict[str, str] | None = None
    ) -> None:
        self._log = log
        self._life = life
        self._popen = _STARTER.submit(
            Popen,
            [*ORPHANED, *(str(word) for word in command)],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ).result()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as output:
            for line in output:
                self._log.append(Line(self._life, line.decode(errors="replace").rstrip("\r\n")))

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status, or minus the number of the fatal signal; None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """Kill the whole group with SIGKILL; returns when the process is gone and its output is in the log."""
        self._end(signal.SIGKILL)

    def kill_alone(self) -> None:
        """Kill this process alone with SIGKILL; the rest of its group lives on and may print more."""
        self._popen.kill()
        self._popen.wait(_EXIT_DEADLINE_S)

    def terminate(self) -> None:
        """Send SIGTERM."""
        with suppress(ProcessLookupError):
            self._popen.terminate()

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if the process outlives the deadline."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_EXIT_DEADLINE_S)
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.alive:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)
        self._popen.wait(_EXIT_DEADLINE_S)
        self._reader.join(_EXIT_DEADLINE_S)


@dataclass(frozen=True)
class Limits:
    """The limits of a kind of board. max_size: largest body, bytes. ahead: accepted readings not stored yet.
    patience_s: seconds without progress before a failure. The deadline bounds the whole campaign, in seconds."""

    max_size: int = 65536
    ahead: int = 80
    patience_s: float = 30.0
    deadline_s: float = 300.0


class Mortal(Protocol):
    """Anything that can be killed and switched on again."""

    @property
    def alive(self) -> bool: ...

    def kill(self) -> None: ...

    def power_up(self) -> None: ...

    def reset(self) -> None:
        """Restart with the power on. Raises OSError, always without a reset button."""
        raise OSError(f"{type(self).__name__} has no reset button")


class Board(Mortal, Protocol):
    """A machine that runs an application on a node.

    line: the other end of its serial link to the queue manager; `find_line` finds it, and `SerialFaultProxy` takes
    both. None: the board has a network, and reaches listeners on `listen` at `host`. ways: how to end a life of the
    board, a cut of its `POWER`, perhaps a `RESET`. life: how often it was switched on. log: the output of all lives.
    modules: SHA-256 of the ordack modules that `deploy` copied, in hexadecimal; empty if it copies none.
    """

    target: str
    modules: str = ""
    line: Path | None
    find_line: Callable[[], Path] | None = None
    host: str
    listen: str
    limits: Limits
    ways: tuple[str, ...]
    log: Log

    @property
    def life(self) -> int: ...

    def describe(self) -> str:
        """One line for a report."""

    def deploy(self, settings: dict[str, object]) -> None:
        """Copy only the application and its configuration to the board, which is off before and after."""

    def start(self, settings: dict[str, object]) -> None:
        """Deploy, and switch the board on for the first time."""
        self.deploy(settings)
        self.power_up()

    def kill(self) -> None:
        """Cut the power at once, without any cleanup."""

    def power_up(self) -> None:
        """Switch on again, with the flash as the power cut left it."""

    def reset(self) -> None:
        """As Mortal.reset."""
        raise OSError(f"board {self.target} has no reset button")

    def read_file(self, name: str) -> bytes:
        """The content of a file in the board's flash, empty if it is missing. The board is off."""

    def attended(self) -> AbstractContextManager[object]:
        """Do several steps on the switched-off board in one session; its application does not run in between."""
        return nullcontext()

    def erase(self, folder: str, to: Path) -> None:
        """Remove a folder from the board's flash, and move its files to the new folder `to`. The board is off. Raises
        FileNotFoundError if the folder does not exist yet."""

    def put(self, folder: str, files: Path) -> None:
        """Copy the files of a local folder into a folder of the flash. The board is off."""

    def close(self) -> None:
        """Switch off and release the board."""


class ProcessBoard(Board):
    """A board that is a process: `command` + application + configuration file, with `folder` as its flash."""

    line: Path | None = None
    host = LOOPBACK
    listen = LOOPBACK
    ways: tuple[str, ...] = (POWER,)

    def __init__(self, target: str, command: Sequence[str | Path], folder: Path, application: Path = SENSOR) -> None:
        self.target = target
        self.limits = Limits()
        self.log = Log()
        self._command = [*command, application]
        self._folder = folder
        self._process: Process | None = None
        self._life = 0
        self._unsynced = Unsynced(folder, folder.with_name(f"{folder.name}.synced"))

    @property
    def life(self) -> int:
        return self._life

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def describe(self) -> str:
        kept = "" if LIBRARY.exists() else ", keeps unsynced data at a power cut: `make setup` builds build/unsynced.so"
        return f"{self.target}: {' '.join(str(word) for word in self._command)}{kept}"

    def deploy(self, settings: dict[str, object]) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / "config.json").write_text(json.dumps(settings))

    def kill(self) -> None:
        if self._process is not None:
            is_noted = self._unsynced.is_noted(self._process.pid)
            self._process.kill()
            if is_noted:
                self._unsynced.lose()

    def power_up(self) -> None:
        self._life += 1
        # Both interpreters find the firmware; the board gets no other environment of the caller.
        paths = {"MICROPYPATH": f".frozen:{modules.write()}", "PYTHONPATH": str(FIRMWARE)}
        quiet = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", **self._unsynced.power_up()}
        command = [*self._command, "config.json"]
        self._process = Process(command, self.log, self._life, self._folder, {**paths, **quiet, "PATH": os.defpath})

    def read_file(self, name: str) -> bytes:
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""

    def erase(self, folder: str, to: Path) -> None:
        (self._folder / folder).rename(to)

    def put(self, folder: str, files: Path) -> None:
        shutil.copytree(files, self._folder / folder)

    def close(self) -> None:
        self.kill()


def program(name: str, target: str, folders: str = "") -> str:
    """The path of a local program, in PATH or in `folders`. Raises BoardMissing if it is not installed."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), folders)))
    if path is None:
        raise BoardMissing(f"board {target}: {name} is not installed")
    return path


def built(path: Path, target: str) -> Path:
    """The build product `path`. Raises BoardMissing if it is missing."""
    if not path.exists():
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        raise BoardMissing(f"board {target}: {shown} is missing; `make firmware` builds it")
    return path
