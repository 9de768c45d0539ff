"""How much of a UART's speed the link leaves: bytes a second of a Cortex-M3 in QEMU, by a bare loop and a UartLink.

    python -m tests.bench.bench_uart [--rounds N] [--bytes N]

Both carry the same bytes over the same UART, in turns, in either direction. QEMU's has no baud rate: it takes a byte in
about a microsecond, so that the board's processor is what limits both. So lines are measured whose other end takes and
gives no more than so many bytes a second, as real ones, with receive buffers of 1024 and 256 bytes. JSON lines: medians
of what arrives in bytes a second, and their ratio. The board's firmware is that of `make firmware`. From host to board
QEMU hands over one byte at a time, each with two switches of threads: a busy machine does 7,000 a second, whatever the
line; tests/core/test_line.py simulates that direction. With no limit the board waits for the host's answers: a machine
that has nothing else to do gives them in time.
"""

import argparse
import contextlib
import json
import select
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
from ordack.client import Client  # noqa: E402

from hil.emulated import M3, MPS2_PSRAM_SIZE, mps2_flash  # noqa: E402
from tests.support.command import Serve  # noqa: E402

FIRMWARE = ROOT / "build" / "firmware" / "mps2-an385" / "firmware.elf"
DEADLINE_S = 60
BAUDS = (115200, 230400, 460800, 921600)
START = """
import select, time
from machine import UART
from ordack.node.uart import UartLink
uart = UART(1, 115200, rxbuf=RXBUF, txbuf=1024)
link = UartLink(uart, RXBUF)
ready = select.poll()
ready.register(uart, select.POLLIN)
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
def hear(total):
    while total > 0:
        ready.poll(20)
        total -= link.readinto(into)
    link.close()
def linked(piece):
    link.readinto(into)
    count = link.write(piece)
    if not count:
        ready.poll(20)
    return count
"""


READINGS = 60
WHOLE_WAY = """
import asyncio
from machine import UART
from ordack.node import Node
from ordack.node.uart import UartLink
async def main():
    node = Node("outbox", capacity=300000, connect=UartLink(UART(1, BAUD, rxbuf=1024, txbuf=1024), 1024))
    queue = node.queue("DIRECT=OS:gateway\\\\private$\\\\line1")
    for number in range(READINGS):
        await queue.send(b"%05d" % number + b"x0\\0yz" * 199)
    node.start()
    while node.waiting:
        await asyncio.sleep_ms(5)
    print("all stored")
    await node.close()
asyncio.run(main())
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


class Pace:
    """Gives bytes to the board no faster than a line of that many baud."""

    def __init__(self, uart: socket.socket, baud: int) -> None:
        self.uart = uart
        self.bytes_per_s = baud / 10
        self.waiting = bytearray()
        self._credit, self._before = 0.0, time.monotonic()

    def pump(self) -> None:
        now = time.monotonic()
        self._credit += (now - self._before) * self.bytes_per_s
        self._before = now
        count = min(int(self._credit), len(self.waiting))
        self.uart.sendall(self.waiting[:count])
        del self.waiting[:count]
        self._credit = self._credit - count if self.waiting else 0.0  # a line does not make up for a pause


def give(uart: socket.socket, total: int, baud: int, seconds: list[float]) -> None:
    """Be the other end, until the board has that many bytes and has ended the connection; how long that took."""
    end = line.Line(False, 16384, 0, 1 << 16, 64)
    buffer = memoryview(bytearray(1 << 12))
    pace = Pace(uart, baud)
    began = 0.0
    while end.state == line.OPEN or not began:
        now = time.monotonic_ns() // 1000000
        if select.select([uart], [], [], 0.001)[0]:
            end.received(uart.recv_into(end.room()))
            while end.read(buffer, now):
                began = began or time.monotonic()
        while len(pace.waiting) < 1024:
            if data := end.output(now):
                pace.waiting += data
                end.written(len(data))
                continue
            count = end.write(bytes(range(1, 243))[: min(total, 242)], now)
            if not count:
                break
            total -= count
        pace.pump()
    seconds.append(time.monotonic() - began)


def carry_paced(source: socket.socket, sink: socket.socket, baud: int, moments: list[tuple[float, int]]) -> None:
    """Be one direction of a line of that many baud; moments: when so many bytes had been carried."""
    with contextlib.suppress(OSError):  # the bench is over
        began, done, total = 0.0, 0, 0
        while data := source.recv(64):
            now = time.monotonic()
            if now > began + done * 10 / baud:  # a line does not make up for a pause
                began, done = now, 0
            done += len(data)
            total += len(data)
            time.sleep(max(0.0, began + done * 10 / baud - now))
            sink.sendall(data)
            moments.append((time.monotonic(), total))


def whole_way(baud: int, folder: Path) -> None:
    """Measure, print: a board in QEMU, a line, `serve` and its store."""
    with Client(folder / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    program = WHOLE_WAY.replace("BAUD", str(baud)).replace("READINGS", str(READINGS))
    mps2_flash(folder / "flash").create({"main.py": program.encode()}, MPS2_PSRAM_SIZE)
    with socket.create_server(("127.0.0.1", 0)) as near, socket.create_server(("127.0.0.1", 0)) as far:
        ports = [listener.getsockname()[1] for listener in (near, far)]
        serial = f"board=socket://127.0.0.1:{ports[1]}"
        serve = Serve(folder / "store", "--serial", serial)
        uart = f"socket,id=uart1,host=127.0.0.1,port={ports[0]},nodelay=on"
        command = [
            *M3.command(folder / "flash", "heap=192"),
            "-nic",
            "none",
            "-serial",
            "stdio",
            "-chardev",
            uart,
            *M3.line,
        ]
        board = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert board.stdout
        try:
            ends = [listener.accept()[0] for listener in (near, far)]
            up: list[tuple[float, int]] = []
            for source, sink, moments in ((*ends, up), (*reversed(ends), [])):
                threading.Thread(target=carry_paced, args=(source, sink, baud, moments), daemon=True).start()
            assert "all stored\n" in iter(board.stdout.readline, "")
        finally:
            board.kill()
            board.wait()
            serve.stop()
    last = next(moment for moment in up if moment[1] >= up[-1][1] * 0.98)  # then come acknowledgements
    speed = last[1] / (last[0] - up[0][0])
    found = {
        "bench": f"{READINGS} readings of 1000 bytes over a UART of {baud} baud to serve",
        "bytes_per_s": round(speed),
    }
    print(json.dumps({**found, "used": round(speed * 10 / baud, 2)}), flush=True)


def run(board: SerialTransport, command: str) -> bytes:
    """What the command prints; on a busy machine it takes longer than mpremote waits."""
    output, errors = board.exec_raw(command, timeout=DEADLINE_S)
    if errors:
        raise RuntimeError(errors.decode())
    return bytes(output)


def from_board(board: SerialTransport, uart: socket.socket, total: int, framed: bool, baud: int) -> int:
    """Bytes a second: by the board's clock, or if there is a baud rate by their arrival, for sockets hold some."""
    wire = Wire(uart, baud)
    reader = threading.Thread(target=take, args=(wire, total, framed), daemon=True)
    reader.start()
    if framed:
        run(board, "link.open()\nwhile not link.is_open(): pass")
    printed = run(board, f"speed({total}, {'linked' if framed else 'uart.write'})")
    reader.join(DEADLINE_S)
    seconds = time.monotonic() - wire.began
    if framed:
        run(board, "link.close()")
    return round(total / seconds) if baud else int(printed)


def to_board(board: SerialTransport, uart: socket.socket, total: int, baud: int) -> int:
    """Bytes a second, from the board's OPEN to its CLOSE."""
    seconds: list[float] = []
    writer = threading.Thread(target=give, args=(uart, total, baud, seconds), daemon=True)
    writer.start()
    run(board, f"link.open()\nwhile not link.is_open(): pass\nhear({total})")
    writer.join(DEADLINE_S)
    return round(total / seconds[0])


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bytes", type=int, default=200000)
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
        "heap=192",
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
            for rxbuf in (1024, 256):
                run(board, f"RXBUF = {rxbuf}\n{START}")
                if rxbuf == 1024:
                    compare(board, uart, options.rounds, options.bytes, 0, rxbuf)
                for baud in BAUDS:
                    compare(board, uart, 2, min(options.bytes, baud // 5), baud, rxbuf)
        finally:
            qemu.kill()
            qemu.wait()
    for baud in BAUDS:
        with tempfile.TemporaryDirectory() as folder:
            whole_way(baud, Path(folder))


def compare(board: SerialTransport, uart: socket.socket, rounds: int, total: int, baud: int, rxbuf: int) -> None:
    """Measure a bare loop and the link in turns, print; the other way there is the line's own speed."""
    bare, linked, heard = [], [], []
    for _ in range(rounds):
        bare.append(from_board(board, uart, total, False, baud))
        linked.append(from_board(board, uart, total, True, baud))
        if baud:
            heard.append(to_board(board, uart, total, baud))
    told(f"rxbuf {rxbuf}, board to host, {baud or 'no'} baud{'' if baud else ' limit'}", bare, linked)
    if baud:
        told(f"rxbuf {rxbuf}, host to board, {baud} baud", [baud // 10], heard)


def told(name: str, bare: list[int], linked: list[int]) -> None:
    """Print a comparison."""
    line_speed, link_speed = statistics.median(bare), statistics.median(linked)
    found = {"bench": f"UART of a Cortex-M3, {name}", "bare": line_speed, "link": link_speed}
    runs = {"bare": bare, "link": linked}
    print(json.dumps({**found, "ratio": round(link_speed / line_speed, 2), "runs": runs}), flush=True)


def _join(listener: socket.socket, terminal: socket.socket) -> None:
    near, _ = listener.accept()

    def carry(source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(4096):
            sink.sendall(data)

    threading.Thread(target=carry, args=(near, terminal), daemon=True).start()
    carry(terminal, near)


if __name__ == "__main__":
    main()
