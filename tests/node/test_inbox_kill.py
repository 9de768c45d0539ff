"""Commands from `ordack` to a board that is killed by SIGKILL at moments that a seed draws, also between receipt and
handling, by each way in which a host can address a board, also by its name while it connects from other addresses: each
is handled once and in order, and the host learns it.

A moment is a step of the program, never a time: a slow machine changes nothing. On MicroPython if there is a build of
it, else on CPython.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest
from mqqb import confirm, guids
from ordack.client import Client

from firmware.ports import modules
from hil.dice import new_seed
from tests.support.command import ROOT, Serve, ordack, own_port, write_settings
from tests.support.stands_still import STANDS_STILL

BOARD = ROOT / "build" / "micropython" / "unix-c" / "micropython"
GUID = bytes(range(16))
EACH = 2  # lives that end at each kind of moment
DEADLINE_S = 270  # all of it, on a machine that has other work

# Kinds of moments, and the highest count at which a life ends. There the program stands still, and is then killed.
MOMENTS = {
    "step": 8,  # before or after each operation of the file system, of which each command has at least two
    "received": 3,
    "handled": 3,  # and not taken: it comes again
    "taken": 3,
}

# The application notes what it has handled, as a real one leaves its mark in the world: between that and take() it can
# die too. Then the same message comes again, and is marked as such.
APPLICATION = (
    STANDS_STILL
    + """
import time
from ordack.node import Node
from ordack.node.storage import log
from ordack.node.uart import UartLink
from tty_uart import Uart

folder, how, place, guid = sys.argv[1:5]
options = {"guid": bytes([int(guid[k : k + 2], 16) for k in range(0, 32, 2)]), "segment_size": 4096, "name": "press 7"}
if how == "listen":
    options["listen"] = ("127.0.0.1", int(place))
elif how == "connect":
    options["connect"] = ("127.0.0.1", int(place))
else:
    options["connect"] = UartLink(Uart(place), 1024)
node = Node(folder + "/outbox", **options)
inbox = node.inbox("commands", 0x1F)
print("started")
with open(folder + "/handled", "ab", 0) as notes:
    while True:
        if how == "serial":  # a terminal that is a Python object cannot be waited for
            node.poll()
            time.sleep(0.001)
        else:
            node.wait(lambda: len(inbox), 1000)
        message = inbox.get()
        if message is not None:
            reach("received")
            notes.write(b"%s %d\\n" % (message.body, message.again))
            reach("handled")
            inbox.take(message)
            reach("taken")
"""
)


class Application:
    """The board's program, as often as it is killed. arguments: how it is reached, and where."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.program = folder / "main.py"
        self.program.write_text(APPLICATION)
        self.modules = ROOT / "firmware"
        if BOARD.exists():  # what a board has: not what is for hosts
            self.modules = folder / "modules"
            for name in modules.of_boards(twin=False):
                (self.modules / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(modules.BOARD / name, self.modules / name)
        self.arguments = arguments
        self.process: subprocess.Popen[str] | None = None

    def start(self, moment: str = "never", left: int = 1) -> None:
        interpreter = str(BOARD) if BOARD.exists() else sys.executable
        both = f"{self.modules}:{ROOT / 'tests' / 'mp'}"
        paths = {"MICROPYPATH": f".frozen:{self.modules}:{modules.BOARD / 'tests' / 'mp'}", "PYTHONPATH": both}
        self.process = subprocess.Popen(
            [interpreter, str(self.program), str(self.folder), *self.arguments, GUID.hex(), moment, str(left)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **paths, "PYTHONUNBUFFERED": "1"},
        )

    def kill(self, *, at_moment: bool) -> None:
        """at_moment: when it stands still."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        said = []
        while at_moment and said[-1:] not in (["stands still\n"], [""]):
            said.append(process.stdout.readline())
        alive = process.poll() is None
        process.kill()
        output, _ = process.communicate(timeout=DEADLINE_S)
        self.process = None
        assert alive, [*said, output]
        assert set(said + output.splitlines(keepends=True)) <= {"started\n", "stands still\n"}, [*said, output]

    def handled(self) -> list[tuple[bytes, bool]]:
        try:
            notes = (self.folder / "handled").read_bytes()
        except FileNotFoundError:
            return []
        return [(line.split()[0], line.split()[1] == b"1") for line in notes.splitlines()]


class Terminal:
    """A serial line: two pseudo-terminals, and a process that copies between them."""

    def __init__(self, folder: Path) -> None:
        masters = []
        self.ends = []
        for _ in range(2):
            master, slave = os.openpty()
            tty.setraw(slave)
            attributes = termios.tcgetattr(slave)
            attributes[6][termios.VMIN] = attributes[6][termios.VTIME] = 0
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
            masters.append(master)
            self.ends.append(slave)
        self.ports = [os.ttyname(slave) for slave in self.ends]
        copy = (
            "import os,select,sys\na,b=map(int,sys.argv[1:])\nwhile True:\n"
            "  for one in select.select([a,b],[],[])[0]: os.write(b if one==a else a, os.read(one,4096))"
        )
        self.process = subprocess.Popen([sys.executable, "-c", copy, *map(str, masters)], pass_fds=masters)
        for master in masters:
            os.close(master)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in self.ends:
            os.close(end)


class Relay(threading.Thread):
    """Passes connections on to a port, each from another address of this machine."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.addresses: list[str] = []
        self._to = port

    def run(self) -> None:
        with contextlib.suppress(OSError):  # it is closed
            while True:
                board = self.listener.accept()[0]
                self.addresses.append(f"127.0.1.{len(self.addresses) + 1}")
                host = socket.create_connection(("127.0.0.1", self._to), source_address=(self.addresses[-1], 0))
                for ends in ((board, host), (host, board)):
                    threading.Thread(target=self._copy, args=ends, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, to: socket.socket) -> None:
        with source, contextlib.suppress(OSError):
            while data := source.recv(4096):
                to.sendall(data)
            to.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(DEADLINE_S + 20)
@pytest.mark.parametrize("way", ["direct", "private", "named", "serial"])
def test_a_board_killed_at_any_step_handles_each_command_once(
    tmp_path: Path, way: str, request: pytest.FixtureRequest
) -> None:
    seed = new_seed()
    print("seed", seed, "on", BOARD if BOARD.exists() else sys.executable)
    draw = random.Random(seed)
    store = tmp_path / "store"
    with Client(store, create=True):
        pass
    write_settings(store, TryConnectInterval=50)
    if way == "direct":
        port = own_port()
        name = "DIRECT=TCP:10.77.0.7\\private$\\commands"
        serve = Serve(store, "--next-hop", f"10.77.0.7=127.0.0.1:{port}")
        application = Application(tmp_path, "listen", str(port))
    elif way in ("private", "named"):
        name = f"PRIVATE={guids.guid_text(GUID)[1:-1]}\\1F" if way == "private" else "press 7/commands"
        serve = Serve(store)
        relay = Relay(serve.port)
        relay.start()
        application = Application(tmp_path, "connect", str(relay.port))
    else:
        terminal = request.getfixturevalue("terminal")
        name = "DIRECT=OS:press7\\private$\\commands"
        serve = Serve(store, "--serial", f"press7={terminal.ports[0]}@115200")
        application = Application(tmp_path, "serial", terminal.ports[1])
    sent: list[int] = []
    lives = [(moment, draw.randint(1, most)) for moment, most in MOMENTS.items() for _ in range(EACH)]
    draw.shuffle(lives)
    try:
        with Client(store) as client:
            if way == "named":  # the queue manager learns the name from the first session
                application.start()
                while not client.store.claims.guid_of("press 7"):
                    assert application.process is not None
                    assert application.process.poll() is None
                    time.sleep(0.05)
                application.kill(at_moment=False)
            for moment, count in lives:
                for _ in range(count + draw.randrange(3)):
                    sent.append(client.send(name, b"%d" % len(sent), dead_letter=True).message_id)
                application.start(moment, count)
                application.kill(at_moment=True)
            application.start()
            command = ordack("send", name, "--body", str(len(sent)), "--dead-letter", "--store", store)
            assert command.returncode == 0, command.stderr
            sent.append(int(command.stdout.split()[2]))
            deadline = time.monotonic() + DEADLINE_S
            while any(_answer(client, message_id) != confirm.RECEIVED for message_id in sent):
                assert time.monotonic() < deadline, [_answer(client, message_id) for message_id in sent]
                time.sleep(0.05)
            application.kill(at_moment=False)
        if way == "named":
            assert len(relay.addresses) > EACH
        handled = application.handled()
        # one that was handled before it could be taken comes once more, next, and says so
        once = [body for k, (body, again) in enumerate(handled) if not (again and k and handled[k - 1][0] == body)]
        again = len(handled) - len(once)
        print(len(sent), "commands,", len(lives), "kills,", again, "twice")
        assert once == [b"%d" % k for k in range(len(sent))]
        assert again >= EACH, "whoever dies between handling and taking is given it again"
    finally:
        for process in (application.process, serve.process):
            if process is not None:
                process.kill()
                process.communicate(timeout=DEADLINE_S)
        if way in ("private", "named"):
            relay.listener.close()


def _answer(client: Client, message_id: int) -> str:
    conclusion = client.state(message_id)
    assert conclusion is not None
    return conclusion.answer
