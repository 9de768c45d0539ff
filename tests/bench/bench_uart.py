"""How much of a UART's speed the link leaves: bytes a second from a Cortex-M3 in QEMU, by a bare loop and a UartLink.

    python -m tests.bench.bench_uart [--rounds N] [--bytes N] [--baud BAUD]

Both write the same bytes from the same buffer to the same UART, in turns. QEMU's has no baud rate: it takes a byte in
about a microsecond, so that the board's processor is what limits both. So a second line is measured, whose other end
takes no more than BAUD / 10 bytes a second, as a real one. JSON lines: medians of what arrives in bytes a second, and
their ratio. The board's firmware is that of `make firmware`.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "firmware"))

from mpremote.transport_serial import SerialTransport  # noqa: E402
from mqqb import line  # noqa: E402

FIRMWARE = ROOT / "build" / "firmware" / "mps2-an385" / "firmware.elf"
DEADLINE_S = 60
START = """
import time
from machine import UART
from node.uart import UartLink
uart = UART(1, 115200, rxbuf=1024, txbuf=1024)
link = UartLink(uart, 1024)
into = memoryview(bytearray(512))
data = memoryview((bytes(range(1, 35)) + bytes(30)) * 32)
def speed(total, write):
    sent = 0
    began = time.ticks_us()
    while sent < total:
        sent += write(data[:min(len(data), total - sent)]) or 0
    while not uart.txdone():
        pass
    print(total * 1000000 // time.ticks_diff(time.ticks_us(), began))
def linked(piece):
    link.readinto(into)
    return link.write(piece)
"""


class Wire:
    """What comes from the board, at any speed or as fast as a line of that many baud lets it."""

    def __init__(self, uart: socket.socket, baud: int) -> None:
        self.uart = uart
        self.bytes_per_s = baud / 10
        self.began = 0.0
        self.taken = 0

    def recv_into(self, buffer: memoryview) -> int:
        """Some bytes, when their time has come."""
        count = self.uart.recv_into(buffer[: len(buffer) if not self.bytes_per_s else 256])
        self.began = self.began or time.monotonic()
        self.taken += count
        if self.bytes_per_s:
            time.sleep(max(0.0, self.began + self.taken / self.bytes_per_s - time.monotonic()))
        return count


def take(wire: Wire, total: int, framed: bool) -> None:
    """Be the other end, until it has that many bytes."""
    end = line.Line(False, 16384, 0, 1 << 16)
    buffer = memoryview(bytearray(1 << 16))
    while total > 0:
        if not framed:
            total -= wire.recv_into(buffer)
            continue
        now = time.monotonic_ns() // 1000000
        end.received(wire.recv_into(end.room()))
        while count := end.read(buffer, now):
            if count == line.ENDED:
                raise RuntimeError(end.reason)
            total -= max(count, 0)
        while data := end.output(now):
            wire.uart.sendall(data)
            end.written(len(data))


def board_speed(board: SerialTransport, uart: socket.socket, total: int, framed: bool, baud: int) -> int:
    """Bytes a second: by the board's clock, or if there is a baud rate by their arrival, for sockets hold some."""
    wire = Wire(uart, baud)
    reader = threading.Thread(target=take, args=(wire, total, framed), daemon=True)
    reader.start()
    if framed:
        board.exec("link.open()\nwhile not link.is_open(): pass")
    printed = board.exec(f"speed({total}, {'linked' if framed else 'uart.write'})")
    reader.join(DEADLINE_S)
    seconds = time.monotonic() - wire.began
    if framed:
        board.exec("link.line.state = 0")  # without a word to the other end, which has gone
    return round(total / seconds) if baud else int(printed)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bytes", type=int, default=200000)
    parser.add_argument("--baud", type=int, default=921600)
    options = parser.parse_args()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    command = [
        "qemu-system-arm",
        "-machine",
        "mps2-an385,memory-backend=psram",
        "-display",
        "none",
        "-monitor",
        "none",
        "-semihosting",
        "-kernel",
        str(FIRMWARE),
        "-append",
        "heap=128",
        "-nic",
        "none",
    ]
    for number, listener in enumerate(listeners):
        command += [
            "-chardev",
            f"socket,id=u{number},host=127.0.0.1,port={listener.getsockname()[1]},nodelay=on",
            "-serial",
            f"chardev:u{number}",
        ]
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as repl:
        flash = f"memory-backend-file,id=psram,size=16M,mem-path={folder}/flash,share=on"
        qemu = subprocess.Popen([*command, "-object", flash], stderr=subprocess.DEVNULL)
        try:
            terminal, uart = [listener.accept()[0] for listener in listeners]
            # mpremote connects by itself: hand it the terminal's bytes.
            threading.Thread(target=_join, args=(repl, terminal), daemon=True).start()
            board = SerialTransport(f"socket://127.0.0.1:{repl.getsockname()[1]}")
            board.enter_raw_repl(soft_reset=False)
            board.exec(START)
            for baud in (0, options.baud):
                compare(board, uart, options.rounds if not baud else 2, options.bytes, baud)
        finally:
            qemu.kill()
            qemu.wait()


def compare(board: SerialTransport, uart: socket.socket, rounds: int, total: int, baud: int) -> None:
    """Measure both in turns, print."""
    bare, linked = [], []
    for _ in range(rounds):
        bare.append(board_speed(board, uart, total, False, baud))
        linked.append(board_speed(board, uart, total, True, baud))
    ratio = statistics.median(linked) / statistics.median(bare)
    name = f"UART of a Cortex-M3, board to host, {baud or 'no'} baud{'' if baud else ' limit'}"
    print(
        json.dumps(
            {
                "bench": name,
                "bare": statistics.median(bare),
                "link": statistics.median(linked),
                "ratio": round(ratio, 2),
                "runs": {"bare": bare, "link": linked},
            }
        ),
        flush=True,
    )


def _join(listener: socket.socket, terminal: socket.socket) -> None:
    near, _ = listener.accept()

    def carry(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(4096):
            sink.sendall(data)

    threading.Thread(target=carry, args=(near, terminal), daemon=True).start()
    carry(terminal, near)


if __name__ == "__main__":
    main()
