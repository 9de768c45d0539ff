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
from ordack.boards.check import Check
from ordack.boards.doctor import examine
from ordack.boards.repl import Board

from tests.support.command import own_port
from tests.support.emulated import FIRMWARE

STOCK = "mps2-an385-stock"  # nothing of ours is frozen in


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
            file.truncate(16 << 20)
        uart = "pty"
        if self._tcp:
            number = own_port()
            uart, self.port = f"tcp:127.0.0.1:{number},server=on,wait=off", f"socket://127.0.0.1:{number}"
        self.process = subprocess.Popen(
            [
                "qemu-system-arm",
                "-machine",
                "mps2-an385,memory-backend=psram",
                "-object",
                f"memory-backend-file,id=psram,size=16M,mem-path={flash},share=on",
                "-display",
                "none",
                "-monitor",
                "none",
                "-semihosting",
                "-append",
                f"heap={self._heap}",
                "-kernel",
                str(self._firmware),
                "-serial",
                uart,
                "-nic",
                "user,model=lan9118",
                "-d",
                "cpu_reset",
                "-D",
                str(self._folder / "resets"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout
        if self._tcp:
            deadline = time.monotonic() + 30
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
