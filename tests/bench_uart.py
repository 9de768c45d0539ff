"""How much of a UART's speed the link leaves: bytes a second from a Cortex-M3 in QEMU, by a bare loop and a UartLink.

    python tests/bench_uart.py [--rounds N] [--bytes N]

Both write the same bytes from the same buffer to the same UART, in turns. QEMU's has no baud rate: it takes a byte in
about a microsecond, so that the board's processor is what limits both; a real line would be the limit of both.
One JSON line: medians in bytes a second and their ratio. The board's firmware is that of `make firmware`.
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

ROOT = Path(__file__).resolve().parent.parent
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


def take(uart: socket.socket, total: int, framed: bool) -> None:
    """Be the other end, until it has that many bytes."""
    end = line.Line(False, 16384, 0, 1 << 16)
    buffer = bytearray(line.PAYLOAD_MAX)
    while total > 0:
        if not framed:
            total -= len(uart.recv(1 << 16))
            continue
        now = time.monotonic_ns() // 1000000
        end.received(uart.recv_into(end.room()))
        while count := end.read(buffer, now):
            if count == line.ENDED:
                raise RuntimeError(end.reason)
            total -= max(count, 0)
        while count := end.output(now):
            uart.sendall(end.out[end.out_start : end.out_end])
            end.written(count)


def board_speed(board: SerialTransport, uart: socket.socket, total: int, framed: bool) -> int:
    """Bytes a second, by the board's clock."""
    reader = threading.Thread(target=take, args=(uart, total, framed), daemon=True)
    reader.start()
    if framed:
        board.exec("link.open()\nwhile not link.is_open(): pass")
    printed = board.exec(f"speed({total}, {'linked' if framed else 'uart.write'})")
    reader.join(DEADLINE_S)
    if framed:
        board.exec("link.line.state = 0")  # without a word to the other end, which has gone
    return int(printed)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bytes", type=int, default=200000)
    options = parser.parse_args()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    command = ["qemu-system-arm", "-machine", "mps2-an385,memory-backend=psram", "-display", "none", "-monitor", "none",
               "-semihosting", "-kernel", str(FIRMWARE), "-append", "heap=128", "-nic", "none"]
    for number, listener in enumerate(listeners):
        command += ["-chardev", f"socket,id=u{number},host=127.0.0.1,port={listener.getsockname()[1]},nodelay=on",
                    "-serial", f"chardev:u{number}"]
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
            bare, linked = [], []
            for _ in range(options.rounds):
                bare.append(board_speed(board, uart, options.bytes, framed=False))
                linked.append(board_speed(board, uart, options.bytes, framed=True))
        finally:
            qemu.kill()
            qemu.wait()
    ratio = statistics.median(linked) / statistics.median(bare)
    print(json.dumps({"bench": "UART of a Cortex-M3, board to host", "bare": statistics.median(bare),
                      "link": statistics.median(linked), "ratio": round(ratio, 2),
                      "best_ratio": round(max(linked) / max(bare), 2), "runs": {"bare": bare, "link": linked}}))


def _join(listener: socket.socket, terminal: socket.socket) -> None:
    near, _ = listener.accept()

    def carry(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(4096):
            sink.sendall(data)

    threading.Thread(target=carry, args=(near, terminal), daemon=True).start()
    carry(terminal, near)


if __name__ == "__main__":
    main()
