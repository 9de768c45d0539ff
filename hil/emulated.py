"""Boards that are whole machines in QEMU: processor, flash, UARTs and network are emulated.

A power cut is SIGKILL of QEMU, between any two instructions of the board. Its flash is a file and keeps its content at
that instant. The rig reads and writes the file while the board is off.
"""

import json
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from littlefs import LittleFS
from littlefs.context import UserContext
from littlefs.errors import LittleFSError

from hil.boards import LOOPBACK, POWER, RESET, ROOT, SENSOR, Board, Limits, Log, Process, built, program

MPY_CROSS = ROOT / "build" / "micropython" / "mpy-cross" / "mpy-cross"
FIRMWARE = ROOT / "build" / "firmware"
MPS2_PSRAM_SIZE = 16 << 20
MPS2_FLASH_SIZE = 2 << 20  # at the start of the PSRAM
MPS2_BLOCK_SIZE = 4096
MPS2_OUTBOX = 262144
MPS2_WEAR = struct.Struct(f"<Q{MPS2_FLASH_SIZE // MPS2_BLOCK_SIZE}I")  # behind the flash; flash.c: wear_t
LITTLEFS_UNIT = 32
MPS2_HEAP_KIB = 64
BAUD = 115200
RXBUF = 1024
ERASE_MS = 45
"""What an RP2040 needs to erase 4 KiB; it runs from that flash, so its UART is deaf meanwhile."""
HOST = "10.0.2.2"
"""Where QEMU's user network shows this machine's loopback."""

_RESET_DEADLINE_S = 60.0
_RESET_RETRY_S = 0.001
MAIN = """\
import asyncio
import application

asyncio.run(application.main("config.json"))
"""


class M3:
    """A Cortex-M3 in QEMU with our firmware. `lan` gives it a network, `line` joins its UART 1 to the character device
    uart1."""

    processor = "Cortex-M3"
    firmware = FIRMWARE / "mps2-an385" / "firmware.elf"
    qemu = ("qemu-system-arm", "-machine", "mps2-an385,memory-backend=psram")
    lan = ("-nic", "user,model=lan9118")
    line = ("-serial", "chardev:uart1")

    @classmethod
    def command(cls, flash: str | Path, settings: str, firmware: Path | None = None) -> list[str | Path]:
        """QEMU with this file as its flash, and NAME=VALUE words for the firmware; without a terminal or links."""
        memory = f"memory-backend-file,id=psram,size={MPS2_PSRAM_SIZE},mem-path={flash},share=on"
        command: list[str | Path] = [*cls.qemu, "-object", memory, "-display", "none", "-monitor", "none"]
        return [*command, "-semihosting", "-kernel", firmware or cls.firmware, "-append", settings]


class Flash:
    """A LittleFS in the first `size` bytes of a file: the board's flash, for the host while the board is off.

    Its cache sizes are those of MicroPython's VfsLfs2. With larger caches, a small file would be stored inline in its
    folder's block, and LittleFS would corrupt it while the board has it open.
    """

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
            read_size=LITTLEFS_UNIT,
            prog_size=LITTLEFS_UNIT,
            cache_size=4 * LITTLEFS_UNIT,
        )

    @contextmanager
    def _mounted(self, changes: bool = False) -> Iterator[LittleFS]:
        """The file system. With `changes`, writes reach the file at the end."""
        with self._path.open("r+b" if changes else "rb") as image:
            content = bytearray(image.read(self._size))
            system = self._open(content, mount=True)
            yield system
            if changes:
                system.unmount()
                image.seek(0)
                image.write(content)

    def create(self, files: dict[str, bytes], file_size: int) -> None:
        """Make the file, of `file_size` bytes, with a new file system that holds `files`."""
        content = bytearray(b"\xff" * self._size)
        self._open(content, mount=False).format()
        with self._path.open("wb") as image:
            image.write(content)
            image.truncate(file_size)
        self.put(files)

    def read(self, name: str) -> bytes:
        """A file's content, empty if it is missing."""
        with self._mounted() as system, suppress(FileNotFoundError), system.open(name, "rb") as file:
            return bytes(file.read())
        return b""

    def put(self, files: dict[str, bytes]) -> None:
        """Write these files, replacing existing ones."""
        with self._mounted(changes=True) as system:
            for name, data in files.items():
                system.makedirs(str(Path(name).parent), exist_ok=True)
                with system.open(name, "wb") as file:
                    file.write(data)

    def take(self, folder: str, to: Path) -> None:
        """Move a folder with its files to the new local folder `to`. Raises FileNotFoundError."""
        with self._mounted(changes=True) as system:
            try:
                names = system.listdir(folder)
            except LittleFSError as error:
                if error.code != LittleFSError.Error.LFS_ERR_NOENT:
                    raise
                raise FileNotFoundError(folder) from error
            to.mkdir()
            for name in names:
                with system.open(f"{folder}/{name}", "rb") as file:
                    (to / name).write_bytes(file.read())
                system.remove(f"{folder}/{name}")
            system.remove(folder)


def mps2_flash(path: Path) -> Flash:
    """The flash of a Cortex-M3, in the file of its PSRAM."""
    return Flash(path, MPS2_FLASH_SIZE, MPS2_BLOCK_SIZE)


def compiled(application: Path, target: str) -> bytes:
    """The application as a .mpy file, because a small board lacks the memory to compile it. Raises BoardMissing."""
    built(MPY_CROSS, target)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "application.mpy"
        command: list[str | Path] = [MPY_CROSS, "-O3", "-s", application.name, "-o", output, application]
        subprocess.run(command, check=True, capture_output=True, timeout=_RESET_DEADLINE_S)
        return output.read_bytes()


class Qemu:
    """A machine in QEMU, its power switch and its reset button. Its standard output goes to `log`."""

    def __init__(self, command: Sequence[str | Path], log: Log, folder: Path, control: Path) -> None:
        self.command = [*command, "-qmp", f"unix:{control},server=on,wait=off"]
        self._log = log
        self._folder = folder
        self._control = control
        self.life = 0
        self._process: Process | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def power_up(self) -> None:
        self.life += 1
        self._process = Process(self.command, self._log, self.life, self._folder)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _connected(self) -> socket.socket:
        """Connect to QEMU's control socket, retrying while QEMU starts. Raises OSError."""
        end = time.monotonic() + _RESET_DEADLINE_S
        while True:
            control = socket.socket(socket.AF_UNIX)
            control.settimeout(_RESET_DEADLINE_S)
            try:
                control.connect(str(self._control))
            except (FileNotFoundError, ConnectionRefusedError):
                control.close()
                if not self.alive or time.monotonic() > end:
                    raise
                time.sleep(_RESET_RETRY_S)
            else:
                return control

    def reset(self) -> None:
        """Press the reset button: the processor restarts with the power on. Raises OSError if it is off."""
        with self._connected() as control:
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


class Mps2Board(Board):
    """A microcontroller in QEMU with a heap of 64 KiB. `folder` holds the flash.

    With `network` it reaches the queue manager over Ethernet, else over UART 1, which receives nothing during a flash
    erase. UART 0 is its log.
    """

    host = HOST
    listen = LOOPBACK
    line: Path | None = None
    ways: tuple[str, ...] = (POWER, RESET)

    def __init__(self, target: str, folder: Path, network: bool, application: Path = SENSOR) -> None:
        built(M3.firmware, target)
        self._network = network
        self._flash = mps2_flash(folder / "flash")
        self.target = target
        self.limits = Limits(max_size=1024, ahead=6, deadline_s=1800.0)
        self.log = Log()
        self.folder = folder
        self.application = application
        self.sockets = Path(tempfile.mkdtemp(prefix="board-"))  # a Unix socket's path must be short
        self.qemu = Qemu(self._command(), self.log, folder, self.sockets / "control")

    def _command(self) -> list[str | Path]:
        """QEMU and its arguments, but for the control socket."""
        program(M3.qemu[0], self.target)
        heap = f"heap={MPS2_HEAP_KIB}"
        command = M3.command("flash", heap if self._network else f"{heap} erase_ms={ERASE_MS}")
        command += ["-chardev", "stdio,id=uart0,signal=off", "-serial", "chardev:uart0"]
        if self._network:
            return [*command, *M3.lan]
        self.line = self.sockets / "uart1"
        return [*command, "-nic", "none", "-chardev", f"socket,id=uart1,path={self.line}", *M3.line]

    def describe(self) -> str:
        link = "Ethernet" if self._network else "UART"
        return f"{self.target}: {M3.processor} in {M3.qemu[0]}, {MPS2_HEAP_KIB} KiB of heap, over {link}"

    @property
    def life(self) -> int:
        return self.qemu.life

    @property
    def alive(self) -> bool:
        return self.qemu.alive

    def deploy(self, settings: dict[str, object]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        link = {"lan": True} if self._network else {"uart": 1, "baud": BAUD, "rxbuf": RXBUF}
        config = {"capacity": MPS2_OUTBOX, **settings, **link}
        program = {
            "main.py": MAIN.encode(),
            "application.mpy": compiled(self.application, self.target),
            "config.json": json.dumps(config).encode(),
        }
        self._flash.create(program, MPS2_PSRAM_SIZE)

    def kill(self) -> None:
        self.qemu.kill()

    def power_up(self) -> None:
        self.qemu.power_up()

    def reset(self) -> None:
        self.qemu.reset()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def read_file(self, name: str) -> bytes:
        return self._flash.read(name)

    def erase(self, folder: str, to: Path) -> None:
        self._flash.take(folder, to)

    def put(self, folder: str, files: Path) -> None:
        self._flash.put({f"{folder}/{file.name}": file.read_bytes() for file in files.iterdir()})
