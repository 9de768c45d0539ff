"""A board with little memory: what it accepts it can also start with, and what it finds it delivers, however much."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordack.client import Client

from tests.conformance import ROOT

MICROPYTHON = ROOT / "build" / "firmware" / "unix" / "micropython"  # with our modules frozen, as on a board
pytestmark = pytest.mark.skipif(not MICROPYTHON.exists(), reason="make firmware builds the MicroPython of this test")
FILL = """
from node import Node, OutboxFull
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
from node import Node
node = Node("outbox", segment_size=8192)
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
for _ in range(160):
    queue.put(b"%d" % (node.waiting + 1) + bytes(60))
"""
DELIVER = """
import sys
from node import Node, OutboxFull
node = Node("outbox", connect=("127.0.0.1", int(sys.argv[1])))
queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
print("found", node.waiting)
print("on the flash", queue.logged.deferred)
message = queue.put(b"last")
node.wait(message.is_stored, 60000)
print("left", node.waiting)
print("sent", node.stats.sent)
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    command = [sys.executable, "-m", "ordack", "serve", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        yield int(line.rpartition(":")[2])
        server.terminate()


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
    with Client(tmp_path / "store") as client, client.queue("line1").receive_batch(5000, 1) as messages:
        return [message.body.rstrip(b"\0") for message in messages]


@pytest.mark.parametrize("heap", [140, 190])
def test_what_is_accepted_can_be_started_with(tmp_path: Path, heap: int, port: int) -> None:
    found, accepted = board(tmp_path, heap, FILL)
    count = int(accepted.split()[1])
    assert (found, count > 1000) == ("found 0", True), accepted
    for _ in range(2):
        assert board(tmp_path, heap, FILL)[0] == f"found {count}"
    assert board(tmp_path, heap, DELIVER, port)[0] == f"found {count}"
    assert received(tmp_path) == [b"%d" % k for k in range(1, count + 1)] + [b"last"]


@pytest.mark.parametrize("heap", [140, 190])
@pytest.mark.rule("B-271", "B-093", "B-318")
def test_what_is_more_than_the_heap_can_hold_is_delivered_in_order(tmp_path: Path, heap: int, port: int) -> None:
    """Three starts on a machine with memory, so three sequences; some messages stand in copies behind newer ones."""
    for _ in range(3):
        subprocess.run(
            [sys.executable, "-c", MORE],
            cwd=tmp_path,
            check=True,
            timeout=60,
            env={"PYTHONPATH": str(ROOT / "firmware"), "PATH": os.defpath},
        )
    lines = board(tmp_path, heap, DELIVER, port)
    assert lines[0] == "found 480"
    assert int(lines[1].split()[-1]) > 400
    assert lines[2] == "left 0"
    assert received(tmp_path) == [b"%d" % k for k in range(1, 481)] + [b"last"]
