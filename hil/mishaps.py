"""What befalls an outbox or a store beside kills, and what is known of the readings that went with them."""

import asyncio
import json
import random
import subprocess
from asyncio.subprocess import create_subprocess_exec
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mqqb import confirm

from hil.boards import Board
from hil.commands import Commands
from hil.queue_manager import QUEUE, QueueManager
from hil.report import read_received
from hil.scenario import COPY, DEPLOY, ERASE, ERASE_FIXED, FLIP, REFLASH, Settings
from hil.victims import elsewhere

HEADER_BYTES = 16
"""Of what a file of an outbox begins with."""
NEEDED = {
    **dict.fromkeys((ERASE, ERASE_FIXED), ("erase",)),
    **dict.fromkeys((COPY, FLIP), ("erase", "put")),
    REFLASH: ("reflash",),
    DEPLOY: ("redeploy",),
}
"""What a board has to be able to do for a mishap."""


@dataclass
class Mishaps:
    """The mishap of a campaign: how often it was `made`, and what it took away."""

    settings: Settings
    board: Board
    manager: QueueManager
    folder: Path
    commands: Commands
    made: int = 0
    erased: list[Path] = field(default_factory=list)
    flipped: tuple[str, int] = ("", 0)
    gone: set[int] = field(default_factory=set)

    def befall(self) -> None:
        """The board is off, and its mishap happens. An outbox that is gone is kept here, for the verdict."""
        if self.settings.mishap == REFLASH:
            self.board.reflash()
        elif self.settings.mishap == DEPLOY:
            self.board.redeploy()
        else:
            with self.board.attended():
                try:
                    self.change_outbox(self.settings.mishap)
                except FileNotFoundError:  # it had not been made yet
                    return
        self.made += 1

    def change_outbox(self, mishap: str) -> None:
        """What such a mishap does to it. Raises FileNotFoundError if there is none yet."""
        first, to = self.folder / "outbox-1", self.folder / f"outbox-{self.made + 1}"
        self.board.erase("outbox", to)
        if mishap == FLIP:
            self.flip(to)
        if mishap in (FLIP, COPY):
            self.board.put("outbox", first if mishap == COPY else to)
        if mishap in (ERASE, ERASE_FIXED) or (mishap == COPY and to != first):
            self.erased.append(to)

    async def restore(self) -> None:
        """The queue manager is off, and its mishap happens. What it got after the backup is gone, and kept here. It is
        off for as many seconds as it has lived, each of which took one for its sequences: nobody is quicker who puts a
        backup back.
        """
        async with self.manager.using:
            if self.made:
                had = await self.readings("--peek")
                (self.folder / "store").rename(self.folder / f"store-{self.made}")
                await self.manager.command("restore", "backup")
                self.gone |= had - await self.readings("--peek")
                self.commands.store_put_back()
                await asyncio.sleep(self.manager.life)
            else:
                await self.manager.command("backup", "backup")
                self.commands.store_saved()
        self.made += 1

    async def readings(self, *words: str) -> set[int]:
        """Those in the queue."""
        received = read_received(await self.manager.command("receive", QUEUE, "--json", *words))
        return {message.k for message in received if message.k}

    def flip(self, folder: Path) -> None:
        """One bit of one file, by the seed; that of before is as it was, for two of one record cannot be mended. The
        first one is in what each start reads.
        """
        rng = random.Random(f"flip/{self.made}/{self.settings.seed}")
        files = [file for file in sorted(folder.glob("*.log")) if file.stat().st_size]
        if not files:  # it had been begun just now
            return
        is_first = self.flipped == ("", 0)
        file = files[-1] if is_first else rng.choice(files)
        now = file.name, rng.randrange(8 * min(file.stat().st_size, HEADER_BYTES if is_first else 1 << 30))
        for name, bit in (self.flipped, now):
            if (path := folder / name).is_file():
                content = bytearray(path.read_bytes())
                content[bit // 8] ^= 1 << bit % 8
                path.write_bytes(content)
        self.flipped = now

    async def held(self) -> frozenset[int]:
        """The readings that waited in the outboxes that were erased, or of which the board could not yet say that they
        have failed: the power went between the two.
        """
        gone = (confirm.WAITING, confirm.DEAD_LETTERED, confirm.DISCARDED)
        rescued = [await self.rescued(folder) for folder in self.erased]
        return frozenset(k for states in rescued for k, state in states.items() if state in gone)

    async def rescued(self, folder: Path) -> dict[int, str]:
        """The states of the readings in an outbox that is here."""
        process = await create_subprocess_exec(
            *self.settings.ordack, "board", "rescue", folder, "--json", stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        messages = [said for said in map(json.loads, output.decode().splitlines()) if "state" in said]
        return {int(said["label"].removeprefix("reading ")): said["state"] for said in messages}

    async def forgotten(self, accepted: Iterable[int]) -> list[int]:
        """Those of the accepted readings that were to stay in the outbox, and are not there."""
        keeps = self.settings.keeps
        if not keeps or self.board.lacks("erase"):
            return []
        folder = self.folder / "outbox"
        try:
            await elsewhere(lambda: self.board.erase("outbox", folder))
        except FileNotFoundError:  # it had not been made yet
            return []
        kept = await self.rescued(folder)
        return [k for k in accepted if k % keeps == 0 and k not in kept]
