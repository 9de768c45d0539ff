"""The queue manager of a campaign: `ordack serve` as a process to kill, and commands on its store."""

import asyncio
import re
import subprocess
import tempfile
from asyncio.subprocess import create_subprocess_exec
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from hil.boards import Log, Mortal, Process
from hil.held_port import hold_port

COMMAND_DEADLINE_S = 60.0
QUEUE = "line1"


class CampaignFailed(Exception):
    """The campaign cannot be completed; the text names the missing part and shows the ends of the logs."""


class Service(Mortal):
    """An `ordack` command that runs until it is killed, in its own process group."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self.process: Process | None = None
        self.life = 0
        self.log = Log()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    def has_children(self) -> bool:
        """Has it started another process? An ingest that has started Java heeds signals."""
        if self.process is None or not self.process.alive:
            return False
        return bool(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def power_up(self) -> None:
        self.life += 1
        self.process = Process(self._command, self.log, self.life, self._folder)

    def kill(self) -> None:
        """Kill the whole group with SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def reset(self) -> None:
        """Kill the process alone with SIGKILL, and restart it."""
        if self.process is not None:
            self.process.kill_alone()
        self.power_up()

    def stop(self) -> None:
        """Send SIGTERM. Raises CampaignFailed on an unclean end."""
        if self.process is not None:
            self.process.stop()
            if self.process.status != 0:
                raise CampaignFailed(
                    f"`{' '.join(self._command)}` ended with status {self.process.status} after SIGTERM"
                )


class QueueManager(Service):
    """`ordack serve` as a process: a victim like a board, with commands that inspect its store from outside."""

    def __init__(self, ordack: Sequence[str], folder: Path) -> None:
        super().__init__((), folder)
        self._ordack = list(ordack)
        self._mark = 0
        self.using = asyncio.Lock()
        """Whoever has it may use the store beside `serve`, or move it."""
        self._held = hold_port()
        self.address: tuple[str, int] = self._held.getsockname()
        self.links: list[str] = []
        """What `serve` is given besides, of the links that are not TCP."""
        self.listen = ["--listen", f"{self.address[0]}:{self.address[1]}"]
        """Nothing, if its file says where and how it listens."""

    def power_up(self) -> None:
        """Start it on its reserved port. `listening` tells when it is ready."""
        self._mark = self.log.mark()
        self._command = [*self._ordack, "serve", "--store", "store", *self.listen, *self.links]
        super().power_up()

    def listening(self) -> bool:
        """Has this life reported that it listens? Raises CampaignFailed for another port."""
        for line in self.log.since(self._mark):
            if match := re.fullmatch(r"listening on (.+):(\d+)", line.text):
                if int(match[2]) != self.address[1]:
                    raise CampaignFailed(
                        f"the queue manager was to listen on port {self.address[1]}, but says: {line.text}"
                    )
                return True
        return False

    def close(self) -> None:
        """Kill it for good, and release its port."""
        self.kill()
        self._held.close()

    async def command(self, *words: str) -> str:
        """Run `ordack WORDS --store ...` and return what it prints. Raises CampaignFailed if it fails or hangs."""
        with tempfile.TemporaryFile() as output:  # with a file, not a pipe, `receive` removes many messages per commit
            return await self._run(words, output)

    async def _run(self, words: Sequence[str], output: BinaryIO) -> str:
        process = await create_subprocess_exec(
            *self._ordack,
            *words,
            "--store",
            "store",
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(COMMAND_DEADLINE_S):
                _, errors = await process.communicate()
        except TimeoutError:
            raise CampaignFailed(f"`ordack {' '.join(words)}` did not end within {COMMAND_DEADLINE_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            reason = errors.decode(errors="replace").strip()
            raise CampaignFailed(f"`ordack {' '.join(words)}` ended with status {process.returncode}: {reason}")
        output.seek(0)
        return output.read().decode()
