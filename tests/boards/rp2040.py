"""The Pico's firmware in rp2040js: the C core is in, deploy and doctor work on it, and readings arrive over its UART.

Run by `python -m tests.boards.rp2040`, after firmware/ports/rp2/build.sh.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import serial
from ordack.boards.deploy import deploy
from ordack.boards.doctor import examine
from ordack.boards.repl import Board
from ordack.client import Client

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "rp2"
READINGS = 20
DEADLINE_S = 120

MAIN = """\
import asyncio
from machine import UART
from ordack.node import Node
from ordack.node.uart import UartLink

async def main():
    node = Node("outbox", capacity=131072, connect=UartLink(UART(1, 115200, rxbuf=1024), 1024))
    queue = node.queue("DIRECT=OS:gateway\\\\private$\\\\line1")
    node.start()
    for number in range(READINGS):
        message = await queue.send(b"%d" % number)
    assert await message.stored(), "refused"
    await node.close()  # what was settled is in the log
    print("all stored")

asyncio.run(main())
"""


def main() -> int:
    """0 if everything holds; says what it found."""
    # node finds rp2040js beside the script that it runs
    script = BUILD / "pico.mjs"
    script.write_text((ROOT / "firmware/ports/rp2/pico.mjs").read_text())
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            ["node", script, BUILD / "rom.bin", BUILD / "firmware.bin"], stdout=subprocess.PIPE, text=True
        ) as pico,
    ):
        try:
            return check(Path(folder), pico)
        finally:
            pico.kill()


def check(folder: Path, pico: "subprocess.Popen[str]") -> int:
    """The checks, one after another."""
    assert pico.stdout
    ports = json.loads(pico.stdout.readline())
    repl = f"socket://127.0.0.1:{ports['repl']}"
    store = folder / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    program = folder / "main.py"
    program.write_text(MAIN.replace("READINGS", str(READINGS)))
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ordack",
            "serve",
            "--store",
            store,
            "--listen",
            "127.0.0.1:0",
            "--serial",
            f"pico=socket://127.0.0.1:{ports['uart']}",
        ],
    ) as serve:
        try:
            with Board(repl).look(reset=True) as board:
                print(
                    f"  {board.info.machine}, MicroPython {'.'.join(map(str, board.info.version))}, "
                    f"{board.info.heap_free} bytes of heap free"
                )
                done = deploy(board, main=program)
                assert done.core == "c-module", done
                assert done.frozen, done
            began = time.monotonic()
            with Client(store) as client:
                queue = client.queue("line1")
                received: list[bytes] = []
                while len(received) < READINGS and time.monotonic() < began + DEADLINE_S:
                    with queue.receive_batch(READINGS, 5) as messages:
                        received += [message.body for message in messages]
            print(f"  {len(received)} readings over the UART in {time.monotonic() - began:.1f} s")
            assert received == [b"%d" % number for number in range(READINGS)], received
            with serial.serial_for_url(repl, timeout=DEADLINE_S) as terminal:
                assert terminal.read_until(b"all stored").endswith(b"all stored"), "the board is not told of it"
            with Board(repl).look(reset=False) as board:
                for line in examine(board):
                    print(f"  {line.name:10} {line.verdict:8} {line.text}")
                    assert line.verdict != "bad"
                    assert line.name != "waiting"
        finally:
            serve.terminate()
    print("rp2040: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
