"""A board with little memory: what it accepts it can also start with, and what it finds it delivers, however much."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ordack.client import Client
from ordack.node import Node, OutboxFull

from hil.emulated import M3, MPS2_PSRAM_SIZE, mps2_flash
from tests.conformance import ROOT
from tests.support.command import Serve
from tests.support.emulated import MPS2, Machine

CAPACITY = 500000
needs_mps2 = pytest.mark.skipif(not (MPS2 / "firmware.elf").exists(), reason="make firmware builds it")
MICROPYTHON = ROOT / "build" / "firmware" / "unix" / "micropython"  # with our modules frozen, as on a board
pytestmark = pytest.mark.skipif(not MICROPYTHON.exists(), reason="make firmware builds the MicroPython of this test")
FILL = """
from ordack.node import Node, OutboxFull
node = Node("outbox", capacity=400000)
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
print("found", node.waiting)
count = 0
try:
    while True:
        queue.put(b"%d" % (node.waiting + 1) + bytes(60))
        count += 1
except OutboxFull:
    print("accepted", count)
"""
MORE = """
from ordack.node import Node
node = Node("outbox", segment_size=8192)
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
for _ in range(160):
    queue.put(b"%d" % (node.waiting + 1) + bytes(60))
"""
DELIVER = """
import sys
from ordack.node import Node, OutboxFull
node = Node("outbox", connect=("127.0.0.1", int(sys.argv[1])))
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
print("found", node.waiting)
print("on the flash", queue.logged.deferred)
message = queue.put(b"last")
node.wait(message.is_stored, 60000)
print("left", node.waiting)
print("sent", node.stats.sent)
"""
STARTED = """
import asyncio, gc, mps2, network
from ordack.node import Node
async def main():
    lan = network.LAN()
    lan.active(True)
    while not lan.isconnected():
        await asyncio.sleep_ms(5)
    node = Node("/flash/outbox", connect=("10.0.2.2", {port}), capacity={capacity})
    print("found", node.waiting)
    node.start()
    gc.collect()
    taken = []
    try:
        for _ in range((gc.mem_free() - {leave}) // 272):
            taken.append(bytearray(256))
    except MemoryError:
        pass  # the rest is in smaller pieces
    peer = node.peers.all[0]
    while node.waiting and not node.error and not peer.reason:
        await asyncio.sleep_ms(100)
    print("at first", node.waiting, "left", "sessions", node.stats.connects, node.error, peer.reason)
    taken = None
    while node.waiting and not node.error:
        await asyncio.sleep_ms(100)
    print("then", node.waiting, "left")
    mps2.power_off(0)
asyncio.run(main())
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    serve = Serve(tmp_path / "store")
    yield serve.port
    serve.stop()


MANY = """
from ordack.node import Node
node = Node("outbox", capacity=1 << 27)
print("found", node.waiting)
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
bodies = [b"21.5"] * 100
while node.waiting < 40000:
    queue.put_all(bodies)
print("wait", node.waiting)
"""


def board(tmp_path: Path, heap: int, program: str, *arguments: object) -> list[str]:
    """Run a program with so many KiB of heap; the lines that it prints."""
    command = [str(MICROPYTHON), "-X", f"heapsize={heap}k", "-c", program]
    if arguments:
        (tmp_path / "main.py").write_text(program)
        command[3:] = ["main.py", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": os.defpath}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def received(tmp_path: Path) -> list[bytes]:
    with Client(tmp_path / "store") as client, client.queue("line1").receive_batch(6000, 1) as messages:
        return [message.body.rstrip(b"\0") for message in messages]


def test_320_kib_heap_holds_40000_messages_over_restart(tmp_path: Path) -> None:
    assert board(tmp_path, 320, MANY) == ["found 0", "wait 40000"]
    assert board(tmp_path, 320, MANY) == ["found 40000", "wait 40000"]


def test_small_heap_board_restarts_with_all_accepted_messages(tmp_path: Path, port: int) -> None:
    heap = 140
    found, accepted = board(tmp_path, heap, FILL)
    count = int(accepted.split()[1])
    assert (found, count > 1000) == ("found 0", True), accepted
    for _ in range(2):
        assert board(tmp_path, heap, FILL)[0] == f"found {count}"
    assert board(tmp_path, heap, DELIVER, port)[0] == f"found {count}"
    assert received(tmp_path) == [b"%d" % k for k in range(1, count + 1)] + [b"last"]


@pytest.mark.rule("B-271", "B-093", "B-318")
def test_outbox_larger_than_heap_is_delivered_in_order(tmp_path: Path, port: int) -> None:
    """Three starts on a machine with memory, so three sequences; some messages stand in copies behind newer ones."""
    for _ in range(3):
        subprocess.run(
            [sys.executable, "-c", MORE],
            cwd=tmp_path,
            check=True,
            timeout=60,
            env={"PYTHONPATH": str(ROOT / "firmware"), "PATH": os.defpath},
        )
    lines = board(tmp_path, 140, DELIVER, port)
    assert lines[0] == "found 480"
    assert int(lines[1].split()[-1]) > 400
    assert lines[2] == "left 0"
    assert received(tmp_path) == [b"%d" % k for k in range(1, 481)] + [b"last"]


def on_a_board(mps2: Callable[..., Machine], tmp_path: Path, count: int | None, **settings: object) -> tuple[int, str]:
    """A Cortex-M3 with 64 KiB of heap delivers so many messages that its flash holds; None: as many as can be. How many
    there were, and what it said.
    """
    node = Node(str(tmp_path / "outbox"), capacity=CAPACITY, hold=60)
    queue = node.queue("DIRECT=TCP:127.0.0.1\\private$\\line1")
    with contextlib.suppress(OutboxFull):
        while count is None or node.waiting < count:
            queue.put(b"%d" % (node.waiting + 1) + bytes(60))
    found = node.waiting
    node.close_now()
    main = STARTED.format(**{"capacity": CAPACITY, "leave": 65536, **settings})
    files = {f"outbox/{path.name}": path.read_bytes() for path in (tmp_path / "outbox").glob("*.log")}
    mps2_flash(tmp_path / "flash").create({**files, "main.py": main.encode()}, MPS2_PSRAM_SIZE)
    board = mps2(None, *M3.lan)
    board.until(f"found {found}")
    return found, board.until("then 0 left")


@needs_mps2
@pytest.mark.rule("B-271", "B-093")
def test_board_delivers_full_flash_with_64_kib_heap(tmp_path: Path, port: int, mps2: Callable[..., Machine]) -> None:
    """A heap in pieces, as where a queue manager is slow, may hold up the last of them: it says so and goes on."""
    found, said = on_a_board(mps2, tmp_path, None, port=port)
    print(said)
    assert "at first 0 left sessions 1 None" in said or "None not enough memory: it tries again" in said
    assert received(tmp_path) == [b"%d" % k for k in range(1, found + 1)]
    assert found > 1200


@needs_mps2
@pytest.mark.parametrize("leave", [8000, 4000])
def test_node_works_in_small_heap_or_reports_too_little_memory(
    leave: int, tmp_path: Path, port: int, mps2: Callable[..., Machine]
) -> None:
    """It has so many bytes; then the program lets go of what it took."""
    found, said = on_a_board(mps2, tmp_path, 200, port=port, leave=leave)
    print(said)
    assert "at first 0 left sessions 1 None" in said or "None not enough memory" in said
    assert leave == 8000 or "not enough" in said
    assert received(tmp_path) == [b"%d" % k for k in range(1, found + 1)]
