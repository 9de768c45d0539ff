"""The README's consumer processes each message once, whatever kills it, and whatever became of the store."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from ordack.client import Client
from ordack.store import Store

from tests.support.command import DEADLINE_S, ENVIRONMENT, ROOT, as_json

pytestmark = pytest.mark.slow

CONSUMER = re.search(r"```python\n(import sqlite3\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
MESSAGES = 40

# Kills the consumer at the `nth` time that it is at this place: before its table is committed, between that and the end
# of the receive, or behind it.
KILLER = """
import os, signal, sys
from ordack import client, store
place, nth = sys.argv[1], int(sys.argv[2])
def dying(method, after):
    count = 0
    def called(*arguments):
        nonlocal count
        count += 1
        if not after and count == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments)
        if after and count == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return called
if place == "before":
    client.Message.__init__ = dying(client.Message.__init__, True)
else:
    client.Queue.end_receive = dying(client.Queue.end_receive, place == "behind")
exec(compile(open("consumer.py").read(), "consumer.py", "exec"))
"""


def _run(folder: Path, place: str, nth: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, place, str(nth)],
        cwd=folder,
        env=ENVIRONMENT,
        check=False,
        timeout=DEADLINE_S,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def _send(store: Path, first: int, count: int) -> None:
    with Client(store) as client, client.store.transaction():
        for number in range(first, first + count):
            client.send("line1", b"%d" % number)


def _processed(folder: Path) -> list[int]:
    """The bodies in the table, in the order in which they came there."""
    with sqlite3.connect(folder / "readings.sqlite") as table:
        return [int(body) for (body,) in table.execute("SELECT body FROM readings ORDER BY rowid")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert CONSUMER
    (tmp_path / "consumer.py").write_text(CONSUMER[1])
    assert len(CONSUMER[1].strip().splitlines()) <= 12
    with Client(tmp_path / "plant", create=True) as client:
        client.create_queue("line1", transactional=True)
    return tmp_path


def test_readme_consumer_killed_repeatedly_handles_messages_once(folder: Path) -> None:
    _send(folder / "plant", 0, MESSAGES)
    for kill, place in enumerate(("between", "before", "behind", "between", "before", "between", "behind")):
        _run(folder, place, 1 + kill % 3)
    process = subprocess.Popen([sys.executable, "consumer.py"], cwd=folder, env=ENVIRONMENT)
    with Store(folder / "plant") as opened:
        while opened.queues.named("line1").messages:
            assert process.poll() is None
            opened.wait(1)
    process.kill()
    process.wait()
    assert _processed(folder) == list(range(MESSAGES))


def test_restored_store_repeats_messages_but_no_message_key(folder: Path) -> None:
    """What was processed since the backup comes again, and is known; what is sent afterwards is new, although its
    lookup ids were given before."""
    plant = folder / "plant"
    _send(plant, 0, 3)
    shutil.copytree(plant, folder / "backup")
    _send(plant, 3, 3)
    before = {line["lookup_id"] for line in as_json("receive", "--store", plant, "line1", "--peek")}
    _run(folder, "behind", 6)
    shutil.rmtree(plant)
    shutil.copytree(folder / "backup", plant)
    _send(plant, 6, 3)
    again = as_json("receive", "--store", plant, "line1", "--peek")
    assert {line["lookup_id"] for line in again} == before, "lookup ids are given again"
    _run(folder, "behind", 6)
    assert _processed(folder) == list(range(9))
    with sqlite3.connect(folder / "readings.sqlite") as table:
        assert len(set(table.execute("SELECT message_key FROM readings"))) == 9
