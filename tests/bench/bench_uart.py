"""How much of a UART's speed a board's readings use on the way to the store of `serve`.

    python -m tests.bench.bench_uart

A Cortex-M3 in QEMU sends readings of 1000 bytes over a line that carries no more bytes a second than a real one of that
many baud. The board's firmware is that of `make firmware`. One JSON object a line; `used` is the part of the line's
speed that readings had.
"""

import contextlib
import json
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from ordack.client import Client

from hil.emulated import M3, MPS2_PSRAM_SIZE, mps2_flash
from tests.support.command import Serve

BAUDS = (115200, 230400, 460800, 921600)
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


def main() -> None:
    """Measure, print."""
    for baud in BAUDS:
        with tempfile.TemporaryDirectory() as folder:
            whole_way(baud, Path(folder))


if __name__ == "__main__":
    main()
