"""Firmware in QEMU: a machine whose output can be waited for, and a Cortex-M3's flash."""

import select
import subprocess
import time
from pathlib import Path

from hil.emulated import MPS2_PSRAM_SIZE, mps2_flash
from tests.conformance import ROOT

FIRMWARE = ROOT / "build" / "firmware"
MPS2 = FIRMWARE / "mps2-an385"
DEADLINE_S = 240.0  # what an emulated machine has to do takes long on a machine that has other work


class Machine:
    """A program that is an emulated machine; what it prints can be waited for."""

    def __init__(self, *command: "str | Path") -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
        )
        self.output = ""

    def until(self, text: str) -> str:
        """All that was printed, up to the first `text` and the rest of its line."""
        end = time.monotonic() + DEADLINE_S
        while text not in self.output or "\n" not in self.output[self.output.index(text) :]:
            assert self._read(end), self.output
        return self.output[: self.output.index("\n", self.output.index(text))]

    def often(self, text: str, times: int) -> None:
        """Returns when it has printed this so many times."""
        end = time.monotonic() + DEADLINE_S
        while self.output.count(text) < times:
            assert self._read(end), self.output

    def ended(self) -> int:
        """Its exit status, when it has ended by itself."""
        while self._read(time.monotonic() + DEADLINE_S):
            pass
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        """The power cut. What it had said before is heard."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        while not self.process.stdout.closed:
            data = self.process.stdout.read(65536)
            if data:
                self.output += data.decode(errors="replace")
            else:
                self.process.stdout.close()

    def _read(self, end: float) -> bool:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
        assert ready, f"nothing more came: {self.output}"
        data = self.process.stdout.read(65536) or b""
        self.output += data.decode(errors="replace")
        return bool(data)


def write_flash(path: Path, main: str) -> None:
    """A new flash with this main.py."""
    mps2_flash(path).create({"main.py": main.encode()}, MPS2_PSRAM_SIZE)
