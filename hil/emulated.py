"""Boards that are whole machines in QEMU: processor, flash, UARTs and network are the emulated machine's own.

A power cut is SIGKILL of QEMU, between any two instructions of the board; its flash is a file and stays as it was at
that instant. The rig writes and reads that file while the board is off.
"""

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from littlefs import LittleFS
from littlefs.context import UserContext

from hil.boards import ROOT, SENSOR, Limits, Log, Process, built, program

MPY_CROSS = ROOT / "build" / "micropython" / "mpy-cross" / "mpy-cross"
MPS2_FIRMWARE = ROOT / "build" / "firmware" / "mps2-an385" / "firmware.elf"
MPS2_PSRAM_SIZE = 16 << 20
MPS2_FLASH_SIZE = 2 << 20  # at the begin of the PSRAM
MPS2_BLOCK_SIZE = 4096
MPS2_OUTBOX = 65536
BAUD = 115200
RXBUF = 1024
LOOPBACK = "10.0.2.2"
"""Where QEMU's user network shows this machine's loopback."""

_COMPILE_DEADLINE_S = 30.0
_RESET_DEADLINE_S = 10.0
_MAIN = """\
import asyncio
import application

asyncio.run(application.main("config.json"))
"""


class Flash:
    """A LittleFS in the first `size` bytes of a file: the board's flash, for the host while the board is off."""

    def __init__(self, path: Path, size: int, block_size: int) -> None:
        self._path = path
        self._size = size
        self._block_size = block_size

    def _open(self, content: bytearray, mount: bool) -> LittleFS:
        return LittleFS(
            context=UserContext(buffer=content),
            mount=mount,
            block_size=self._block_size,
            block_count=self._size // self._block_size,
        )

    def create(self, files: dict[str, bytes], file_size: int) -> None:
        """Make the file, of `file_size` bytes, with a new file system that holds `files`."""
        content = bytearray(b"\xff" * self._size)
        system = self._open(content, mount=False)
        system.format()
        system.mount()
        for name, data in files.items():
            with system.open(name, "wb") as file:
                file.write(data)
        system.unmount()
        with self._path.open("wb") as image:
            image.write(content)
            image.truncate(file_size)

    def read(self, name: str) -> bytes:
        """A file's content, empty if it does not exist."""
        with self._path.open("rb") as image:
            content = bytearray(image.read(self._size))
        system = self._open(content, mount=True)
        try:
            with system.open(name, "rb") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return b""


def compiled(application: Path, target: str) -> bytes:
    """The application as a .mpy file: a small board has no memory to compile it. Raises BoardMissing."""
    built(MPY_CROSS, target)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "application.mpy"
        command: list[str | Path] = [MPY_CROSS, "-O3", "-s", application.name, "-o", output, application]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_DEADLINE_S)
        return output.read_bytes()


class Qemu:
    """A machine in QEMU, its power switch and its reset button. Its standard output goes to `log`."""

    def __init__(self, command: Sequence[str | Path], log: Log, folder: Path, control: Path) -> None:
        self._command = [*command, "-qmp", f"unix:{control},server=on,wait=off"]
        self._log = log
        self._folder = folder
        self._control = control
        self._life = 0
        self._process: Process | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def power_up(self) -> None:
        self._life += 1
        self._process = Process(self._command, self._log, self._life, self._folder)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def reset(self) -> None:
        """Press the reset button: the processor begins again, the power stays. Raises OSError if it is off."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(_RESET_DEADLINE_S)
            control.connect(str(self._control))
            with control.makefile("rw") as lines:
                for command in (None, "qmp_capabilities", "system_reset"):
                    if command is not None:
                        print(json.dumps({"execute": command}), file=lines, flush=True)
                    _answer(lines)


def _answer(lines: TextIO) -> None:
    """Read lines until one that is no event."""
    for line in lines:
        said = json.loads(line)
        if "error" in said:
            raise OSError(said["error"]["desc"])
        if "event" not in said:
            return
    raise OSError("QEMU ended")


class Mps2Board:
    """A Cortex-M3, ARM's MPS2 board with image AN385, in a heap of `heap` KiB; `folder` holds its flash.

    With `network` it reaches the queue manager over its Ethernet, else over its UART 1. UART 0 is its log.
    """

    def __init__(self, target: str, folder: Path, network: bool, application: Path = SENSOR, heap: int = 64) -> None:
        self.target = target
        self.host = LOOPBACK
        self.limits = Limits(max_size=512, ahead=4)
        self.log = Log()
        self._application = application
        self._heap = heap
        self._folder = folder
        built(MPS2_FIRMWARE, target)
        self._sockets = Path(tempfile.mkdtemp(prefix="mps2-"))  # the path of a Unix socket must be short
        self.line = None if network else self._sockets / "uart1"
        self._flash = Flash(folder / "flash", MPS2_FLASH_SIZE, MPS2_BLOCK_SIZE)
        self._qemu = Qemu(self._command(), self.log, folder, self._sockets / "control")

    def _command(self) -> list[str | Path]:
        flash = f"memory-backend-file,id=psram,size={MPS2_PSRAM_SIZE},mem-path=flash,share=on"
        command: list[str | Path] = [program("qemu-system-arm", self.target)]
        command += [
            "-machine",
            "mps2-an385,memory-backend=psram",
            "-object",
            flash,
            "-display",
            "none",
            "-monitor",
            "none",
            "-semihosting",
        ]
        command += ["-kernel", MPS2_FIRMWARE, "-append", f"heap={self._heap}"]
        command += ["-chardev", "stdio,id=uart0,signal=off", "-serial", "chardev:uart0"]
        if self.line is None:
            return [*command, "-nic", "user,model=lan9118"]
        return [*command, "-nic", "none", "-chardev", f"socket,id=uart1,path={self.line}", "-serial", "chardev:uart1"]

    @property
    def alive(self) -> bool:
        return self._qemu.alive

    def describe(self) -> str:
        link = "Ethernet" if self.line is None else "UART"
        return f"{self.target}: Cortex-M3 in {Path(self._command()[0]).name}, {self._heap} KiB of heap, over {link}"

    def start(self, settings: dict[str, object]) -> None:
        self._folder.mkdir(parents=True)
        link = {"lan": True} if self.line is None else {"uart": 1, "baud": BAUD, "rxbuf": RXBUF}
        config = {**settings, **link, "capacity": MPS2_OUTBOX, "waiting_max": 2 * self.limits.ahead}
        files = {
            "main.py": _MAIN.encode(),
            "application.mpy": compiled(self._application, self.target),
            "config.json": json.dumps(config).encode(),
        }
        self._flash.create(files, MPS2_PSRAM_SIZE)
        self.power_up()

    def kill(self) -> None:
        self._qemu.kill()

    def power_up(self) -> None:
        self._qemu.power_up()

    def reset(self) -> None:
        self._qemu.reset()

    def read_file(self, name: str) -> bytes:
        return self._flash.read(name)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._sockets)
