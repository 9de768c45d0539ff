"""A Cortex-M3 in QEMU at the pty of its UART. Its flash outlives a power cut."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import serial
from ordack.boards import deploy, repl
from ordack.boards.doctor import examine
from ordack.boards.outbox import Check
from ordack.boards.repl import Board

from hil.emulated import M3, MPS2_PSRAM_SIZE, mps2_flash
from tests.conformance import ROOT
from tests.support.command import own_port
from tests.support.emulated import FIRMWARE

STOCK = "mps2-an385-stock"  # nothing of ours is frozen in
CORTEX_M3 = repl.Info((1, 25, 0), "", 5 << 10 | 6, 0, 0, [], "/flash")  # armv7m


def write_deployed(folder: Path, *without: str, **more: bytes) -> None:
    """The flash of a board that lacks these of what is deployed: a whole copy takes 9 s of processor."""
    files = deploy.chosen_files(ROOT / "build" / "mip" / "package.json", CORTEX_M3, own_core=False)
    for name in without:
        del files[name]
    mps2_flash(folder / "flash").create(
        {**files, **{f"{name}.py": text for name, text in more.items()}}, MPS2_PSRAM_SIZE
    )


class Machine:
    """A board in QEMU. port: what `--port` takes. With `tcp`, its UART is a socket."""

    def __init__(self, folder: Path, firmware: str = STOCK, heap: int = 192, *, tcp: bool = False) -> None:
        self._folder = folder
        self._firmware = FIRMWARE / firmware / "firmware.elf"
        self._heap = heap
        self._tcp = tcp
        self.port = ""
        self.start()

    def start(self) -> None:
        """Power on, with what the flash held."""
        flash = self._folder / "flash"
        with flash.open("ab") as file:
            file.truncate(MPS2_PSRAM_SIZE)
        uart = "pty"
        if self._tcp:
            number = own_port()
            uart, self.port = f"tcp:127.0.0.1:{number},server=on,wait=off", f"socket://127.0.0.1:{number}"
        self.process = subprocess.Popen(
            [
                *M3.command(flash, f"heap={self._heap}", self._firmware),
                *("-serial", uart, *M3.lan, "-d", "cpu_reset", "-D", self._folder / "resets"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout
        if self._tcp:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", number)):
                    break
                assert time.monotonic() < deadline
        else:
            found = re.search(r"(/dev/\S+)", self.process.stdout.readline())
            assert found
            self.port = found[1]

    @property
    def resets(self) -> int:
        """How often the processor was reset, by whatever."""
        return (self._folder / "resets").read_text().count("CPU Reset")

    def cut(self) -> None:
        """The power fails."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.communicate()

    def hear(self, text: bytes) -> None:
        """Wait until the board prints this."""
        with serial.Serial(self.port, timeout=60) as line:
            assert line.read_until(text).endswith(text)

    def open(self, *, reset: bool = True) -> Board:
        return Board(self.port).look(reset=reset)

    def checks(self, **arguments: Any) -> dict[str, Check]:
        with self.open(reset=False) as board:
            return {check.name: check for check in examine(board, **arguments)}
