"""How long a start of a Cortex-M3 lasts with 64 KiB of heap and a full flash, and how long a reading keeps it awake: by
the instructions that QEMU counts.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from mqqb import confirm
from node_board import Board
from ordack.client import Client
from ordack.node import Node
from ordack.node.storage import log

from hil.emulated import M3, MPS2_FLASH_SIZE, MPS2_PSRAM_SIZE, MPS2_WEAR, mps2_flash
from tests.support.command import Serve
from tests.support.emulated import MPS2, Machine

CAPACITY = 1500000
SEGMENT = 65536
INSTRUCTIONS_MAX = 600_000_000
"""6 s of a processor that executes 100 million instructions a second."""
STORED_MAX = 1_400_000_000
NS_PER_INSTRUCTION = 64  # QEMU's -icount shift=6
MAIN = f"""\
import time
from ordack.node import Node
begin = time.ticks_us()
node = Node("/flash/outbox", capacity={CAPACITY})
taken = time.ticks_diff(time.ticks_us(), begin)
kept = node.outbox.live
print("kept", kept, "taken", taken, "damage", len(node.damage))
import mps2
mps2.power_off(0)
"""
AWAKE_MAX = 8_000_000
ERASES_MAX = 32
STARTS = 8
AWAKE_MAIN = """\
import mps2, network, time
lan = network.LAN()
lan.active(True)
while not lan.isconnected():
    time.sleep_ms(10)
start = time.ticks_us()
from ordack.node import Node
from ordack.node import wait
Waiter = wait.Waiter

class Timed(Waiter):
    def sleep(self, links, most):
        global waited
        begin = time.ticks_us()
        Waiter.sleep(self, links, most)
        waited += time.ticks_diff(time.ticks_us(), begin)

wait.Waiter = Timed
waited = 0
imported = time.ticks_us()
node = Node("outbox", connect=("10.0.2.2", {0}))
queue = node.queue("DIRECT=TCP:10.0.2.2\\private$\\line1")
made = time.ticks_us()
message = queue.put(b"21.5")
durable = time.ticks_us()
node.wait(message.is_stored, 60000)
stored = time.ticks_us()
node.commit_now()
node.close_now()
end = time.ticks_us()
way = stored - durable - waited
print("awake", imported - start, made - imported, durable - made, way, end - stored, end - start - waited)
mps2.power_off(0)
"""


def fill(folder: Path) -> int:
    """So many messages wait, of a board with a hold of 60, in nearly all of its flash. The last file is nearly at its
    end, and since it began as many as can be have come from the flash, and are stored at their destination.
    """
    node = Node(str(folder), capacity=CAPACITY, hold=60)
    queue = node.queue("DIRECT=TCP:10.0.2.2\\private$\\line1")
    tail = 0
    while node.outbox.log.size < CAPACITY - 2 * SEGMENT or tail < SEGMENT - 300:
        queue.put(bytes(24))
        tail = node.outbox.log.segments[-1].size
    for _ in range(31):
        restored = node.outbox.flash_only.next(queue.logged)
        assert restored is not None
        restored.handle.record[confirm.STATE] = confirm.GONE
        node.outbox.change([restored.handle])
        node.outbox.sync()
    waiting = node.waiting
    node.close_now()
    return waiting


def started(board: Machine) -> tuple[int, int, int]:
    """How many messages a start has found, how much damage, and the instructions that it took."""
    assert board.ended() == 0, board.output
    found, microseconds, damage = map(int, re.findall(r"\d+", board.output))
    return found, damage, microseconds * 1000 // NS_PER_INSTRUCTION


def started_with(folder: Path, flash: Path, mps2: Callable[..., Machine]) -> tuple[int, int, int]:
    """The same, of a board on whose flash this outbox is."""
    files = {f"outbox/{path.name}": path.read_bytes() for path in folder.glob("*.log")}
    mps2_flash(flash).create({**files, "main.py": MAIN.encode()}, MPS2_PSRAM_SIZE)
    found, damage, taken = started(mps2(None, "-icount", "shift=6"))
    print(f"{found} messages in {len(files)} files: {taken} instructions")
    return found, damage, taken


@pytest.mark.skipif(not (MPS2 / "firmware.elf").exists(), reason="make firmware builds the MicroPython of this test")
def test_how_long_a_start_with_a_full_flash_takes(tmp_path: Path, mps2: Callable[..., Machine]) -> None:
    """All of it is read."""
    waiting = fill(tmp_path / "outbox")
    found, damage, taken = started_with(tmp_path / "outbox", tmp_path / "flash", mps2)
    assert (found, damage) == (waiting, 0)
    assert waiting > 4800
    assert taken < INSTRUCTIONS_MAX


def fill_stored(folder: Path) -> int:
    """So many messages with dead_letter are stored at their destination, and nobody knows whether they are received."""
    board = Board(disk=log.Files(str(folder)), capacity=CAPACITY, hold=60)
    count = 0
    while board.node.outbox.log.size < CAPACITY - 2 * SEGMENT:
        count += len(board.queue.put_all([bytes(24)] * 20, dead_letter=True))
        board.store()
        board.node.commit_now()
    board.node.close_now()
    return count


@pytest.mark.skipif(not (MPS2 / "firmware.elf").exists(), reason="make firmware builds the MicroPython of this test")
def test_start_with_full_flash_of_unreceived_messages_is_fast(tmp_path: Path, mps2: Callable[..., Machine]) -> None:
    """Each is looked for in its file only."""
    stored = fill_stored(tmp_path / "outbox")
    found, damage, taken = started_with(tmp_path / "outbox", tmp_path / "flash", mps2)
    assert (found, damage) == (stored, 0)
    assert stored > 4500
    assert taken < STORED_MAX


@pytest.mark.skipif(not (MPS2 / "firmware.elf").exists(), reason="make firmware builds the MicroPython of this test")
def test_how_long_a_reading_keeps_the_processor_busy(tmp_path: Path, mps2: Callable[..., Machine]) -> None:
    """Prints what the page of recipes shows: the first start with a new outbox, then those of a board that sleeps in
    between. The log does not make them longer. Waits are not counted. Each erases a few blocks, which take 45 ms each.
    """
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    serve = Serve(tmp_path / "store")
    try:
        for number in range(STARTS):
            main = None if number else AWAKE_MAIN.format(serve.port)
            board = mps2(main, "-icount", "shift=6", *M3.lan, settings="heap=140")
            assert board.ended() == 0, board.output
            found = [int(word) * 1000 // NS_PER_INSTRUCTION for word in board.output.split()[1:]]
            modules, outbox, put, way, close, total = found
            print(f"{total} instructions: modules {modules}, outbox {outbox}, put {put}, way {way}, close {close}")
            assert total < AWAKE_MAX
        _, *worn = MPS2_WEAR.unpack_from((tmp_path / "flash").read_bytes(), MPS2_FLASH_SIZE)
        erases = sum(worn)
        print(f"{erases} erases")
        assert erases <= ERASES_MAX
    finally:
        serve.stop()
