"""What a board needs around the node: tests/mp/test_services.py, test_names.py and test_wifi.py, on CPython; and for
how long a reading keeps it awake."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import test_names
import test_services as boards
import test_wifi
import virtual
from ordack.client import Client

from tests.support.command import ROOT, Serve

NAMED = [(test.__name__, test) for test in boards.TESTS + test_names.TESTS] + test_wifi.TESTS


@pytest.mark.parametrize("test", [pytest.param(test, id=name) for name, test in NAMED])
def test_service(test: Callable[[], None]) -> None:
    virtual.run(test)


FROZEN = ROOT / "build" / "firmware" / "unix" / "micropython"  # with our modules in it, as on a board
AWAKE = """
import time
start = time.ticks_ms()
from ordack.node import Node

node = Node("outbox", connect=("127.0.0.1", {0}))
queue = node.queue("DIRECT=TCP:127.0.0.1\\private$\\line1")
made = time.ticks_ms()
message = queue.put(b"21.5")
durable = time.ticks_ms()
assert node.wait(message.is_stored, 60000)
stored = time.ticks_ms()
assert node.commit_now()
node.close_now()
end = time.ticks_ms()
print(made - start, durable - made, stored - durable, end - stored, end - start)
"""


@pytest.mark.skipif(not FROZEN.exists(), reason="there is no MicroPython with our modules")
def test_how_long_a_board_is_awake_for_a_reading(tmp_path: Path) -> None:
    """Prints what the page of recipes shows. The destination says after 20 ms of quiet that it has the reading."""
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    serve = Serve(store)
    (tmp_path / "main.py").write_text(AWAKE.format(serve.port))
    try:
        for _ in range(3):
            done = subprocess.run(
                [str(FROZEN), "main.py"],
                cwd=tmp_path,
                env={"MICROPYPATH": ".frozen"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            start, put, way, close, total = map(int, done.stdout.split())
            print(f"awake {total} ms: start {start}, put {put}, until it is stored {way}, close {close}")
    finally:
        serve.stop()
