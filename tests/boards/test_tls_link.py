"""TlsLink: boards that speak TLS with `ordack serve`, on MicroPython's unix port and on CPython."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ordack.client import Client, Letter
from ordack.server import certificates

from hil.signals import heed
from tests.support.command import ENVIRONMENT, Serve
from tests.support.emulated import DEADLINE_S, FIRMWARE
from tests.support.watched import until

INTERPRETERS = {"micropython": FIRMWARE / "unix" / "micropython", "python3": Path(sys.executable)}
COUNT = 100
PROGRAM = r"""
import json, sys
from ordack.node import Node
from ordack.node.tls import TlsLink

with open("given.json") as file:
    given = json.load(file)
link = TlsLink("127.0.0.1", given["port"], given["authority"], given["certificate"], given["key"], given["name"])
node = Node("outbox", connect=link)
commands = node.inbox("commands", 7)
line1 = node.queue("DIRECT=OS:plant\\private$\\line1")
count = given["count"]

def put(numbers):
    for number in numbers:
        line1.put(b"%d" % number)

if given.get("stands"):
    put(range(count // 2))
    node.wait(lambda: node.waiting == 0, given["ms"])
    put(range(count // 2, count))
    node.wait(lambda: node.stats.sent > count // 2, given["ms"])  # under way, and not acknowledged
    print("stands still")
    sys.stdin.readline()
if node.waiting == 0:
    put(range(count))

def ends():
    return node.waiting == 0 or (given.get("refused") and line1.peer.reason)

is_settled = node.wait(ends, given["ms"]) and not node.waiting
print("settled" if is_settled else "not settled: " + line1.peer.reason)
for _ in range(given.get("commands", 0)):
    node.wait(lambda: commands.get() is not None, given["ms"])
    message = commands.get()
    print(str(message.body, "utf-8"))
    commands.take(message)
if "commands" in given:
    node.wait(lambda: False, given["ms"])  # who has sent them is told
"""


def _paths(folder: Path, name: str, interpreter: str) -> dict[str, str]:
    der = interpreter == "micropython"
    return {
        "authority": str(folder / ("ca.der" if der else "ca.pem")),
        "certificate": str(folder / (f"{name}.der" if der else f"{name}.pem")),
        "key": str(folder / (f"{name}.key.der" if der else f"{name}.key")),
    }


class Board:
    """A program in a folder of its own."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        self.folder = folder
        self.interpreter = interpreter
        folder.mkdir(exist_ok=True)
        (folder / "program.py").write_text(PROGRAM)

    def start(self, **given: object) -> subprocess.Popen[str]:
        paths = "/nowhere:.frozen" if self.interpreter == "micropython" else ENVIRONMENT["PYTHONPATH"]
        (self.folder / "given.json").write_text(json.dumps(given))
        return subprocess.Popen(
            [INTERPRETERS[self.interpreter], "program.py"],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "MICROPYPATH": paths, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed,
        )

    def run(self, **given: object) -> str:
        return self.start(**given).communicate(timeout=DEADLINE_S)[0]


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    """A store with a file for TLS, and certificates."""
    folder = tmp_path / "tls"
    for authority in (folder, tmp_path / "other"):
        certificates.init(authority, "ordack", 1)
        certificates.issue(authority, "plant", [], 1, board=True)
        certificates.issue(authority, "press-3", [], 1, board=True)
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    (tmp_path / "store" / "ordack.toml").write_text(
        "[tls]\ncertificate = '../tls/plant.pem'\nkey = '../tls/plant.key'\nauthority = '../tls/ca.pem'\n"
        "[[listen]]\nport = 0\ntls = true\nallow-certificates = ['press-3']\n"
    )
    return tmp_path


def _content(plant: Path) -> list[bytes]:
    with Client(plant / "store") as client:
        return [message.body for message in client.queue("line1").peek()]


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_killed_board_resumes_over_tls_exactly_once_in_order(plant: Path, interpreter: str) -> None:
    board, serve = Board(plant / "board", interpreter), Serve(plant / "store", listen=None)
    given = {"port": serve.port, "name": "plant", "count": COUNT, **_paths(plant / "tls", "press-3", interpreter)}
    first = board.start(ms=1000 * DEADLINE_S, stands=True, **given)
    assert first.stdout is not None
    assert first.stdout.readline() == "stands still\n"
    first.kill()
    first.communicate()
    assert len(_content(plant)) >= COUNT // 2
    assert board.run(ms=1000 * DEADLINE_S, **given) == "settled\n"
    assert _content(plant) == [b"%d" % number for number in range(COUNT)]
    assert serve.stop()[0] == 0


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_board_gets_commands_once_in_order_over_tls(plant: Path, interpreter: str) -> None:
    board, serve = Board(plant / "board", interpreter), Serve(plant / "store", listen=None)
    given = {"port": serve.port, "name": "plant", "count": 1, **_paths(plant / "tls", "press-3", interpreter)}
    process = board.start(ms=1000 * DEADLINE_S, commands=COUNT, **given)
    try:
        with Client(plant / "store") as client:
            with client.queue("line1").receive(timeout=DEADLINE_S) as reading:
                name = f"PRIVATE={reading.source.strip('{}')}\\7"
            letters = [
                Letter(name, b"%d" % number, delivery="transactional", dead_letter=True) for number in range(COUNT)
            ]
            last = client.send_many(letters)[-1]
            until(
                lambda: (state := client.state(last.message_id)) and state.answer == "received",
                "the board has handled all",
            )
    finally:
        process.kill()
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert output.split() == ["settled", *map(str, range(COUNT))]
    assert serve.stop()[0] == 0


@pytest.mark.parametrize(
    ("interpreter", "name", "authority", "certificate", "said"),
    [
        ("python3", "other", "tls", "tls", "ertificate"),  # the queue manager is another than was asked for
        ("micropython", "other", "tls", "tls", "ertificate"),
        ("micropython", "plant", "other", "tls", "ertificate"),  # or is believed by others
        ("micropython", "plant", "tls", "other", ""),  # it does not believe this board
    ],
)
def test_board_sends_nothing_after_failed_tls_authentication(
    plant: Path, interpreter: str, name: str, authority: str, certificate: str, said: str
) -> None:
    board, serve = Board(plant / "board", interpreter), Serve(plant / "store", listen=None)
    given = {"port": serve.port, "name": name, "count": 1, **_paths(plant / certificate, "press-3", interpreter)}
    given["authority"] = _paths(plant / authority, "press-3", interpreter)["authority"]
    output = board.run(ms=1000 * DEADLINE_S, refused=True, **given)
    assert output.startswith("not settled: ")
    assert said in output
    assert _content(plant) == []
    given |= _paths(plant / "tls", "press-3", interpreter) | {"name": "plant"}
    assert board.run(ms=1000 * DEADLINE_S, **given) == "settled\n"
    assert _content(plant) == [b"0"]
    assert serve.stop()[0] == 0
