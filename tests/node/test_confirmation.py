"""Board and queue manager together, as real processes: the board hears what became of each message at the very end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ordack.client import Client, Reject

from firmware.ports import modules
from tests.conformance import ROOT
from tests.support.command import INTERPRETERS

BOARD = """
import asyncio
from ordack.node import Node

async def main():
    node = Node("outbox", connect=("127.0.0.1", {port}))
    node.start()
    queue = node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\line1")
    taken = await queue.send(b"taken", dead_letter=True)
    rejected = await queue.send(b"rejected", dead_letter=True)
    purged = await queue.send(b"purged", dead_letter=True)
    lost = await node.queue("DIRECT=TCP:127.0.0.1\\\\private$\\\\nowhere").send(b"lost", dead_letter=True)
    print(await lost.dead_lettered())
    await purged.stored()
    print("stored")
    print(await taken.received(), await rejected.dead_lettered(), await purged.dead_lettered())
    for message in node.dead_letters():
        conclusion = message.conclusion()
        print(conclusion.answer, conclusion.message_class, conclusion.in_doubt)
        node.take(message)
    await node.close()

asyncio.run(main())
"""


@pytest.mark.rule("C-25", "C-26", "C-50", "C-53", "C-54", "C-55", "B-338", "B-342", "B-340", "B-414", "B-011")
@pytest.mark.parametrize("interpreter", sorted(INTERPRETERS))
def test_a_board_hears_the_end_of_each_message(interpreter: str, tmp_path: Path) -> None:
    program = INTERPRETERS[interpreter]
    if not program.exists():
        pytest.skip(f"{program} is missing: make firmware builds it")
    environment = dict(
        os.environ,
        PYTHONPATH=f"{ROOT / 'firmware'}:{ROOT / 'host'}",
        PYTHONUNBUFFERED="1",
        MICROPYPATH=f".frozen:{modules.BOARD}",
    )
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    serve = [sys.executable, "-m", "ordack", "serve", "--store", str(store), "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["listening"].rpartition(":")[2]
            (tmp_path / "main.py").write_text(BOARD.format(port=port), encoding="utf-8")
            with subprocess.Popen(
                [program, "main.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
            ) as board:
                assert board.stdout is not None
                lines = [board.stdout.readline() for _ in range(2)]
                assert lines == ["32768\n", "stored\n"]
                with Client(store) as client:
                    queue = client.queue("line1")
                    with queue.receive(timeout=60) as message:
                        assert message.body == b"taken"
                    with queue.receive(timeout=60):
                        raise Reject
                    client.purge_queue("line1")
                assert board.stdout.read().splitlines() == [
                    "True 49156 49153",
                    "dead-lettered 49156 False",
                    "dead-lettered 49153 False",
                    "dead-lettered 32768 False",
                ]
                assert board.wait(60) == 0
        finally:
            server.terminate()
