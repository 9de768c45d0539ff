"""What a board needs around the node: tests/mp/test_services.py, test_names.py and test_wifi.py, on CPython; and the
programs of firmware/examples that use it, on MicroPython."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import test_names
import test_services as boards
import test_wifi
import virtual
from ordack.client import Client

from firmware.ports.modules import BOARD
from tests.support.command import ROOT, Serve, ordack, own_port

NAMED = [(test.__name__, test) for test in boards.TESTS + test_names.TESTS] + test_wifi.TESTS


@pytest.mark.parametrize("test", [pytest.param(test, id=name) for name, test in NAMED])
def test_service(test: Callable[[], None]) -> None:
    virtual.run(test)


# ---- the programs of firmware/examples --------------------------------------------------------------

MICROPYTHON = ROOT / "build" / "micropython" / "unix-c" / "micropython"
STUBS = {
    "machine.py": """
import sys

def unique_id():
    return b"12345678"

class ADC:
    def __init__(self, pin):
        pass

    def read_u16(self):
        return 14022

class RTC:
    def datetime(self, moment):
        print("it is", moment[0])

def deepsleep(ms):
    print("asleep", ms)
    sys.exit(0)

def reset():
    print("reset")
    sys.exit(0)

class WDT:
    def __init__(self, timeout):
        self.fed = 0

    def feed(self):
        self.fed += 1
        if self.fed == 3:
            print("fed")

class Timer:  # what an interrupt does, in a task: between two steps of the program
    def __init__(self, number, period, callback):
        import asyncio

        async def call():
            while True:
                callback(self)
                await asyncio.sleep_ms(period)

        asyncio.create_task(call())
""",
    "network.py": """
STA_IF = 0

class WLAN:
    tries = 0

    def __init__(self, kind):
        pass

    PM_NONE = 0

    def isconnected(self):
        self.tries += 1
        return self.tries > 3

    def ifconfig(self):
        return ("10.0.0.9", "255.255.255.0", "10.0.0.1", "10.0.0.1")

    def config(self, pm):
        assert pm == self.PM_NONE

    def status(self):
        return 1

    def active(self, on):
        pass

    def connect(self, ssid, password):
        assert (ssid, password) == ("NETWORK", "PASSWORD")
""",
}


def _program(name: str, folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Writes an example as main.py, with some changes, and what a board has beside it; how to run it."""
    program = (ROOT / "firmware" / "examples" / name).read_text()
    for there, here in changes:
        assert there in program
        program = program.replace(there, here)
    for file, text in {**STUBS, "main.py": program}.items():
        (folder / file).write_text(text)
    return [str(MICROPYTHON), "main.py"]


def _environment(folder: Path) -> dict[str, str]:
    return {"MICROPYPATH": f"{folder}:.frozen:{BOARD}"}


@pytest.mark.skipif(not MICROPYTHON.exists(), reason="there is no MicroPython")
def test_a_board_on_batteries_sleeps_when_its_reading_is_in_the_queue(tmp_path: Path) -> None:
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    port = Serve(tmp_path / "store")
    try:
        for reachable in (False, True):
            place = f'connect=("127.0.0.1", {port.port if reachable else 9}), '
            command = _program(
                "batteries.py",
                tmp_path,
                ('"outbox", ', '"outbox", ' + place),
                ("192.168.1.1", "127.0.0.1"),
                ("2000)", "50)"),
                ("10000", "9000" if reachable else "300"),
            )
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=_environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.stdout == f"{0 if reachable else 1} to send\nasleep 300000\n", done.stdout + done.stderr
        typo = _program(
            "batteries.py",
            tmp_path,
            ('line1")', 'lime1")'),
            ('"outbox", ', '"outbox", ' + place),
            ("192.168.1.1", "127.0.0.1"),
            ("2000)", "50)"),
            ("10000", "9000"),
        )
        done = subprocess.run(
            typo, cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "not delivered, class 0x8000\n0 to send\nasleep 300000\n", done.stdout + done.stderr
        with Client(tmp_path / "store") as client, client.queue("line1").receive_batch(5, 10) as messages:
            assert [message.body for message in messages] == [b"14022"] * 2
    finally:
        port.stop()


@pytest.mark.skipif(not MICROPYTHON.exists(), reason="there is no MicroPython")
def test_a_command_reaches_the_board_of_the_example(tmp_path: Path) -> None:
    serve = Serve(tmp_path / "store")
    command = _program("commands.py", tmp_path, ('"192.168.1.20", 1801', f'"127.0.0.1", {serve.port}'))
    board = subprocess.Popen(command, cwd=tmp_path, env=_environment(tmp_path), stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (sessions := _sessions(tmp_path / "store")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        done = ordack(
            "send",
            "--store",
            tmp_path / "store",
            f"PRIVATE={sessions[0]['guid'][1:-1]}\\7",
            "--body",
            "on",
            "--label",
            "lamp",
            "--dead-letter",
        )
        assert done.returncode == 0, done.stderr
        assert board.stdout
        assert board.stdout.readline() == "b'on' lamp False\n"
        while not ordack("state", "--store", tmp_path / "store", done.stdout.split()[2]).stdout.startswith("received"):
            assert time.monotonic() < deadline
    finally:
        board.kill()
        board.communicate()
        serve.stop()


@pytest.mark.skipif(not MICROPYTHON.exists(), reason="there is no MicroPython")
def test_a_board_without_asyncio_sends_one_reading_and_a_batch(tmp_path: Path) -> None:
    serve = Serve(tmp_path / "store")
    with Client(tmp_path / "store") as client:
        client.create_queue("line1", transactional=True)
    try:
        command = _program("without_asyncio.py", tmp_path, ("1801", str(serve.port)))
        done = subprocess.run(
            command, cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "stored\nall stored\n", done.stdout + done.stderr
        with Client(tmp_path / "store") as client:
            assert [message.body for message in client.queue("line1").peek()] == [b"21.5", b"21.6", b"21.7"]
    finally:
        serve.stop()


NEEDS_MICROPYTHON = pytest.mark.skipif(not MICROPYTHON.exists(), reason="there is no MicroPython")


def _run(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@NEEDS_MICROPYTHON
@pytest.mark.parametrize(("name", "count"), [("interrupts.py", 120), ("fast.py", 200), ("watchdog.py", 1)])
def test_a_program_that_goes_on_for_ever_sends_its_readings_in_order(tmp_path: Path, name: str, count: int) -> None:
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    serve = Serve(store)
    board = _run(_program(name, tmp_path, ('"192.168.1.20", 1801', f'"127.0.0.1", {serve.port}')), tmp_path)
    try:
        assert _received(store, count) == ["14022"] * count
        if name == "watchdog.py":
            assert board.stdout
            assert board.stdout.readline() == "fed\n"
    finally:
        board.kill()
        output = board.communicate()[0]
        serve.stop()
    assert output == "", output


@NEEDS_MICROPYTHON
def test_one_board_sends_to_another(tmp_path: Path) -> None:
    port = own_port()
    boards = []
    try:
        for name, changes in (
            ("neighbour_receives.py", [('"0.0.0.0", 1801', f'"127.0.0.1", {port}')]),
            ("neighbour_sends.py", [('"outbox", ', f'"outbox", connect=("127.0.0.1", {port}), ')]),
        ):
            (tmp_path / name).mkdir()
            boards.append(_run(_program(name, tmp_path / name, *changes), tmp_path / name))
        receiver, sender = boards
        assert receiver.stdout
        assert receiver.stdout.readline() == "b'open'\n"
        assert sender.communicate(timeout=60)[0] == "received\n"
    finally:
        for board in boards:
            board.kill()
            board.communicate()


def _received(store: Path, count: int) -> list[str]:
    """The bodies of so many messages, in their order."""
    bodies: list[str] = []
    with Client(store) as client:
        while len(bodies) < count:
            with client.queue("line1").receive_batch(count - len(bodies), 60) as messages:
                assert messages, bodies
                bodies += [message.body.decode() for message in messages]
    return bodies


APP = """
def main(node, pause):
    node.queue("DIRECT=TCP:127.0.0.1\\private$\\line1").put_all([b"{0} first", b"{0} second"])
    while {1}:
        pause(20000)
"""


@NEEDS_MICROPYTHON
def test_an_application_is_updated_over_the_air_and_the_outbox_stays(tmp_path: Path) -> None:
    """Three programs: the second comes as a message while the readings of the first wait; the third fails at once."""
    store = tmp_path / "store"
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    serve = Serve(store)
    connect = '"192.168.1.20", 1801', f'"127.0.0.1", {serve.port}'
    command = _program("update.py", tmp_path, connect)
    (tmp_path / "app.py").write_text(APP.format(1, "True"))

    def life() -> str:
        """What a board prints from a start to a reset."""
        board = _run(command, tmp_path)
        try:
            return board.communicate(timeout=60)[0]
        finally:
            board.kill()

    def send(program: str) -> str:
        deadline = time.monotonic() + 60
        while not (sessions := _sessions(store)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (tmp_path / "sent.py").write_text(program)
        guid = sessions[0]["guid"][1:-1]
        done = ordack("send", "--store", store, f"PRIVATE={guid}\\9", "--file", tmp_path / "sent.py", "--dead-letter")
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[2]

    try:
        board = _run(command, tmp_path)
        second = send(APP.format(2, "True"))
        assert board.communicate(timeout=60)[0] == "reset\n"
        assert ordack("state", "--store", store, second).stdout.startswith("received")
        board = _run(command, tmp_path)
        send(APP.format(3, "None.nothing"))
        assert board.communicate(timeout=60)[0] == "reset\n"
        output = life()
        assert "AttributeError" in output
        assert output.endswith("reset\n")
        assert (tmp_path / "app.py").read_text() == APP.format(2, "True")
        board = _run(command, tmp_path)
        assert _received(store, 8) == [f"{number} {place}" for number in (1, 2, 3, 2) for place in ("first", "second")]
    finally:
        board.kill()
        board.communicate()
        serve.stop()


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


def _sessions(store: Path) -> list[dict[str, str]]:
    with Client(store) as client:
        status = client.store.status() or {}
    return [session for session in status.get("sessions", []) if session["state"] == "OPEN"]
