"""The queue manager of a campaign: `ordack serve` as a process that dies as planned, and the commands beside it."""

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
    """The campaign cannot come to its end; the text says what is missing and shows the ends of the logs."""


class Service(Mortal):
    """An `ordack` command that runs until it is killed, as a process group of its own."""

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
        """Whether it has started another process: an ingest, that heeds signals by then, has Java started."""
        if self.process is None or not self.process.alive:
            return False
        return bool(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def power_up(self) -> None:
        self.life += 1
        self.process = Process(self._command, self.log, self.life, self._folder)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        if self.process is not None:
            self.process.kill()

    def reset(self) -> None:
        """SIGKILL to the process alone, and begin again."""
        if self.process is not None:
            self.process.kill_alone()
        self.power_up()

    def stop(self) -> None:
        """SIGTERM. Raises CampaignFailed if it does not end cleanly."""
        if self.process is not None:
            self.process.stop()
            if self.process.status != 0:
                raise CampaignFailed(
                    f"`{' '.join(self._command)}` ended with status {self.process.status} after SIGTERM"
                )


class QueueManager(Service):
    """`ordack serve` as a process of its own: a victim like a board, and the commands that look at its store from
    outside.
    """

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
        """Start it, on the port that is its own, also while it is off. `listening` tells when it is ready."""
        self._mark = self.log.mark()
        self._command = [*self._ordack, "serve", "--store", "store", *self.listen, *self.links]
        super().power_up()

    def listening(self) -> bool:
        """Whether this life has said that it listens. Raises CampaignFailed if it does so on another port."""
        for line in self.log.since(self._mark):
            if match := re.fullmatch(r"listening on (.+):(\d+)", line.text):
                if int(match[2]) != self.address[1]:
                    raise CampaignFailed(
                        f"the queue manager was to listen on port {self.address[1]}, but says: {line.text}"
                    )
                return True
        return False

    def close(self) -> None:
        """Kill it for good: others may have its port."""
        self.kill()
        self._held.close()

    async def command(self, *words: str) -> str:
        """Run `ordack WORDS --store ...` and return what it prints. Raises CampaignFailed if it fails or hangs."""
        with tempfile.TemporaryFile() as output:  # a file, not a pipe: `receive` then removes many with one commit
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
