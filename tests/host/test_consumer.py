"""The README's consumer processes each message once, whatever kills it, and whatever became of the store."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path

import pytest
from ordack.client import Client
from ordack.store import Store

from tests.support.command import ROOT, as_json
from tests.support.killed import Program

pytestmark = pytest.mark.slow

CONSUMER = re.search(r"```python\n(import sqlite3\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
MESSAGES = 40

# Where a kill stops the consumer: before its table is committed, between that and the end of the receive, or behind it.
PLACES = {
    "before": "ordack.client Message __init__ {} after",
    "between": "ordack.client Queue end_receive {} before",
    "behind": "ordack.client Queue end_receive {} after",
}


def _run(folder: Path, place: str, nth: int) -> None:
    Program("consumer.py", until=PLACES[place].format(nth), folder=folder).end()


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
    with Program("consumer.py", folder=folder) as consumer, Store(folder / "plant") as opened:
        while opened.queues.named("line1").messages:
            assert consumer.process.poll() is None
            opened.wait(1)
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
