"""A node is killed by SIGKILL at fifty moments that a seed draws, and its link breaks too: every message once, in
order, and every confirmation in the end.

A moment is a step of the program or of the destination, never a time: a slow machine changes nothing. On MicroPython if
there is a build of it, else on CPython.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import select
import subprocess
import sys
from pathlib import Path

import pytest
from mqqb import headers
from ordack.node import Node
from ordack.node.storage import log

from firmware.ports import modules
from hil.dice import new_seed
from tests.node.destination import Destination
from tests.support.forked import said_in_fork
from tests.support.stands_still import STANDS_STILL

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "build" / "micropython" / "unix-c" / "micropython"
LINE = "DIRECT=TCP:127.0.0.1\\private$\\line1"
EACH = 10  # lives that end at each kind of moment
DEADLINE_S = 270  # all of it, on a machine that has other work

# Kinds of moments, and the highest count at which a life ends. At the first three the program stands still, and is then
# killed; at the others the destination kills it, and goes on when it is dead.
MOMENTS = {
    "step": 80,  # before or after each operation of the file system
    "accepted": 11,
    "stored": 8,
    "connected": 1,  # before the handshake
    "arrived": 8,  # a new message is there, and not acknowledged: it comes again
}

# The application: sends without end, and says on its output what was accepted. Message k has MessageID k. It wants to
# know of every second one whether it is received; it would say it if one is not.
APPLICATION = (
    STANDS_STILL
    + """
import asyncio
from ordack.node import Node
log.jump = bytes

def body(k):
    return b"%d " % k + bytes([k & 255]) * (k * k * 7919 % 3001)

async def main():
    node = Node(sys.argv[1], connect=("127.0.0.1", int(sys.argv[2])), segment_size=16384,
                on_failed=lambda message: print("failed", message.message_id),
                on_stored=lambda message: reach("stored"))
    queue = node.queue(sys.argv[3])
    node.start()
    print("started", node.next_message_id, node.waiting)
    last = int(sys.argv[4])
    while node.next_message_id <= last:
        while node.waiting >= 100:
            await asyncio.sleep(0.002)
        k = node.next_message_id
        message = await queue.send(body(k), dead_letter=k % 2 == 0, ttrq=3600, ttbr=3600)
        print("accepted", message.message_id)
        reach("accepted")
        await asyncio.sleep(0)
    while node.outbox.live:
        await asyncio.sleep(0.005)
    print("done")

asyncio.run(main())
"""
)


def body(k: int) -> bytes:
    return b"%d " % k + bytes([k & 255]) * (k * k * 7919 % 3001)


class Board:
    """One life of the node: a process, and what it said. It ends at the `left`-th moment of a kind."""

    def __init__(self, process: asyncio.subprocess.Process, moment: str, left: int) -> None:
        self.process = process
        self.moment = moment
        self.left = left
        self.accepted: list[int] = []
        self.started = -1
        self.done = False
        self.was_killed = False

    @staticmethod
    async def start(application: Path, folder: Path, port: int, last: int, moment: str, left: int) -> Board:
        interpreter = str(BOARD) if BOARD.exists() else sys.executable
        arguments = [interpreter, application, folder, port, LINE, last, moment, left]
        paths = {"MICROPYPATH": f".frozen:{modules.BOARD}", "PYTHONPATH": str(ROOT / "firmware")}
        process = await asyncio.create_subprocess_exec(
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **paths, "PYTHONUNBUFFERED": "1"},
        )
        return Board(process, moment, left)

    async def listen(self) -> None:
        """Take what it says until its output ends. Raises AssertionError if it says something else: a traceback."""
        assert self.process.stdout is not None
        other = b""
        async for line in self.process.stdout:
            words = line.split()
            if words[:1] == [b"accepted"] and line.endswith(b"\n"):
                self.accepted.append(int(words[1]))
            elif words[:1] == [b"started"] and line.endswith(b"\n"):
                self.started = int(words[1])
            elif words == [b"stands", b"still"]:
                self.kill()
            elif words == [b"done"]:
                self.done = True
            elif line.endswith(b"\n"):
                other += line
        await self.process.wait()
        assert not other, other.decode(errors="replace")

    def reach(self, moment: str) -> None:
        """The destination is at a moment: does the life end here?"""
        if moment == self.moment:
            self.left -= 1
            if not self.left:
                self.kill()

    def kill(self) -> None:
        """It does nothing any more when this returns."""
        dead = os.pidfd_open(self.process.pid)
        self.process.kill()
        select.select([dead], [], [])
        os.close(dead)
        self.was_killed = True


@pytest.mark.timeout(DEADLINE_S + 10)
@pytest.mark.rule(
    "B-054", "B-056", "B-057", "B-072", "B-098", "B-158", "B-162", "B-301", "B-317", "A-08", "C-25", "C-33"
)
def test_killed_node_neither_loses_nor_repeats_messages(tmp_path: Path) -> None:
    seed = new_seed()
    print("seed", seed, "on", BOARD if BOARD.exists() else sys.executable)
    dice, of_link = random.Random(seed), random.Random(seed + 1)
    application = tmp_path / "application.py"
    application.write_text(APPLICATION)
    lives = [(moment, dice.randint(1, most)) for moment, most in MOMENTS.items() for _ in range(EACH)]
    dice.shuffle(lives)

    async def main() -> None:
        board: Board | None = None
        newest = 0

        def connected() -> int | None:
            if board is not None:
                board.reach("connected")
            return of_link.randrange(2000, 40000) if of_link.random() < 0.3 else None

        def seen(message: headers.UserMessage) -> None:
            nonlocal newest
            if message.user.message_id > newest:
                newest = message.user.message_id
                assert board is not None
                board.reach("arrived")

        destination = await Destination(seen=seen, next_cut=connected, receives=True).start()
        accepted = 0  # the highest MessageID that an application has seen accepted
        for moment, count in lives:
            board = await Board.start(application, tmp_path / "outbox", destination.port, 1 << 30, moment, count)
            await board.listen()
            assert board.was_killed, "it ended by itself"
            if board.started >= 0:
                assert accepted <= board.started - 1 <= accepted + 1, "at most one is accepted without a word"
                accepted = board.started - 1
            if board.accepted:
                assert board.accepted == list(range(accepted + 1, accepted + 1 + len(board.accepted)))
                accepted = board.accepted[-1]
        board = await Board.start(application, tmp_path / "outbox", destination.port, accepted + 5, "never", 1)
        await board.listen()
        assert board.done
        assert board.process.returncode == 0
        assert accepted <= board.started - 1 <= accepted + 1
        last = accepted + 5
        assert [arrived.message_id for arrived in destination.queue] == list(range(1, last + 1))
        for arrived in destination.queue:
            assert _digest(arrived.body) == _digest(body(arrived.message_id)), arrived.message_id
        print(last, "messages,", len(lives), "kills,", destination.cuts, "cuts,", destination.duplicates, "duplicates")
        assert destination.duplicates >= EACH, "whoever dies between arrival and acknowledgement sends again"
        await destination.stop()

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


HOLDER = """
import sys
from ordack.node import Node

node = Node(sys.argv[1])
node.close()
node = Node(sys.argv[1])
sys.stdout.write("open\\n")
hasattr(sys.stdout, "flush") and sys.stdout.flush()
sys.stdin.readline()
"""


@pytest.mark.parametrize("interpreter", [BOARD, Path(sys.executable)], ids=["MicroPython", "CPython"])
def test_two_programs_never_have_one_folder(tmp_path: Path, interpreter: Path) -> None:
    if not interpreter.exists():
        pytest.skip("there is no build of MicroPython: make setup-test")
    program, folder = tmp_path / "main.py", tmp_path / "outbox"
    program.write_text(HOLDER)
    command = [str(interpreter), str(program), str(folder)]
    paths = {"MICROPYPATH": f".frozen:{modules.BOARD}", "PYTHONPATH": str(ROOT / "firmware")}

    def again() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=paths, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )

    first = subprocess.Popen(command, env=paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n", "and one program may open it again and again"
        refused = again()
        assert refused.returncode == 1
        expected = f"OSError: another program holds {folder}/lock: end it, or use another folder"
        assert (refused.stdout + refused.stderr).strip().splitlines()[-1] == expected
    finally:
        first.kill()
        first.communicate()
    assert again().stdout == "open\n", "a killed program holds nothing"


def test_forked_process_cannot_write_outbox_of_its_parent(tmp_path: Path) -> None:
    """Both wrote over each other, for a process has the files and locks of that which it was forked from."""
    node = Node(str(tmp_path / "outbox"))
    queue = node.queue(LINE)
    queue.put(b"1")
    uses = [lambda: queue.put(b"lost"), node.poll, lambda: Node(str(tmp_path / "outbox"))]
    said = said_in_fork(uses, OSError, log.OutboxError)
    assert said[:2] == ["another Node has this outbox now: use that one"] * 2
    assert said[2].startswith("another program holds ")
    queue.put(b"2")
    node.close_now()
    left = Node(str(tmp_path / "outbox"))
    assert [bytes(left.read(message).properties.body) for message in left.outbox.handles()] == [b"1", b"2"]
    left.close_now()
