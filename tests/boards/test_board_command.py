"""`ordack board`: deploy and doctor, on a Cortex-M3 in QEMU at the pty of its UART. Its flash outlives a power cut."""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serial
from ordack import cli
from ordack.boards import deploy as deploying
from ordack.boards import repl
from ordack.boards.deploy import deploy
from ordack.boards.doctor import examine
from ordack.boards.repl import Board, BoardError, NoBoard
from ordack.client import Client
from ordack.node import Node

from firmware.ports.modules import BOARD
from tests.boards.m3_board import Machine, write_deployed
from tests.conformance import ROOT
from tests.support import command as commands

SMALL = {
    "mqqb/__init__.py": "",
    "mqqb/core.py": "implementation = 'python'\n",
    "ordack/node/__init__.py": "from mqqb import core\n",
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(*arguments: Any, **settings: Any) -> Machine:
        made.append(Machine(tmp_path, *arguments, **settings))
        return made[-1]

    yield make
    for running in made:
        running.cut()


def package(folder: Path, files: dict[str, str]) -> Path:
    """A package of these files."""
    for place, text in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    listing = folder / "package.json"
    listing.write_text(json.dumps({"urls": [[place, place] for place in files]}))
    return listing


def ordack(*arguments: object) -> subprocess.CompletedProcess[str]:
    return commands.ordack("board", *arguments, seconds=90)


# ---- the whole way ----------------------------------------------------------------------------------


def test_a_stock_board_becomes_a_node(machine: Callable[..., Machine], tmp_path: Path) -> None:
    lacking = ["mqqb/core.mpy", "mqqb/core_armv7m.mpy"]
    write_deployed(tmp_path, *lacking)
    port = machine().port
    before = ordack("doctor", "--port", port)
    assert before.returncode == 1
    assert "run ordack board deploy" in before.stdout
    done = ordack("deploy", "--port", port, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["core"], report["problem"], report["frozen"]) == ("native-module", "", False)
    assert (sorted(report["copied"]), report["removed"]) == ([f"/flash/{name}" for name in lacking], [])
    assert report["unchanged"] > 20
    # A message that no queue manager took.
    with Board(port).look(reset=True) as board:
        board.run(
            "from ordack.node import Node\nn = Node('outbox')\n"
            "q = n.queue('DIRECT=TCP:10.0.2.2\\\\private$\\\\line1')\nq.put(b'21.5')",
            30,
        )
    after = ordack("doctor", "--port", port, "--json")
    assert after.returncode == 0, after.stdout
    checks = {check["check"]: check for check in map(json.loads, after.stdout.splitlines())}
    assert checks["modules"]["verdict"] == checks["core"]["verdict"] == checks["heap"]["verdict"] == "ok"
    assert checks["core"]["core"] == "native-module"
    assert checks["clock"]["set"] is False
    assert checks["outbox"]["messages"] == checks["waiting"]["messages"] == checks["waiting"]["never_sent"] == 1
    assert checks["waiting"]["queue"] == "DIRECT=TCP:10.0.2.2\\private$\\line1"


def test_a_board_on_a_socket(machine: Callable[..., Machine]) -> None:
    assert machine(tcp=True).checks()["firmware"].verdict == "ok"


STUBS = {
    "machine.py": "def unique_id():\n    return b'12345678'\n"
    "class ADC:\n    def __init__(self, pin):\n        pass\n    def read_u16(self):\n        return 14022\n",
    "network.py": "STA_IF = 0\ndef hostname(name):\n    with open('hostname', 'w') as file:\n        file.write(name)\n"
    "class WLAN:\n    def __init__(self, kind):\n        pass\n    def isconnected(self):\n"
    "        return False\n    def status(self):\n        return 1\n    def active(self, on):\n        pass\n"
    "    def connect(self, ssid, password):\n        assert (ssid, password) == ('NETWORK', 'PASSWORD')\n",
}


@pytest.mark.parametrize("queue", ["line1", "lime1"])
def test_the_page_for_a_pico_w_leads_to_a_reading(queue: str, tmp_path: Path) -> None:
    """Its program on MicroPython, with a thermometer and a Wi-Fi that are not there; its commands exist. A typo in the
    queue's name is told.
    """
    example = ROOT / "firmware" / "examples" / "pico_w"
    program = (example / "main.py").read_text()
    page = (ROOT / "firmware" / "docs" / "tutorial.md").read_text()
    for command in re.findall(r"ordack board (\w+)", page):
        assert ordack(command, "--help").returncode == 0
    for name, text in STUBS.items():
        (tmp_path / name).write_text(text)
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    with _serving(tmp_path / "store") as port:
        format_name = f"DIRECT=TCP:127.0.0.1\\private$\\{queue}"
        wanted = {"name": "press-7", "queue": format_name, "host": "127.0.0.1", "port": port}  # as provision writes it
        wifi = {"ssid": "NETWORK", "password": "PASSWORD", "wifi": {"hostname": "press-7", "more": [["HALL", ""]]}}
        (tmp_path / "config.json").write_text(json.dumps({**wanted, **wifi}))
        (tmp_path / "main.py").write_text(program)
        board = subprocess.Popen(
            [ROOT / "build" / "micropython" / "unix-c" / "micropython", "main.py"],
            cwd=tmp_path,
            env={"MICROPYPATH": f"{tmp_path}:.frozen:{BOARD}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            if queue == "lime1":
                assert board.stdout
                assert board.stdout.readline() == "not delivered, no such queue (class 0x8000)\n"
                return
            with Client(tmp_path / "store") as client:
                with client.queue("line1").receive_batch(1, 30) as messages:
                    assert [(message.body, message.label) for message in messages] == [(b"27.0", "temperature")]
            assert (tmp_path / "hostname").read_text() == "press-7"
            assert board.poll() is None
        finally:
            board.kill()
            board.communicate()


# ---- deploy -----------------------------------------------------------------------------------------


def test_deploy_copies_only_changed_files_and_starts_program(machine: Callable[..., Machine], tmp_path: Path) -> None:
    board = machine()
    first = package(tmp_path / "first", {**SMALL, "ordack/node/old.py": "# old\n"})
    main, config = tmp_path / "program.py", tmp_path / "wifi.json"
    main.write_text("open('ran', 'a').write('x')\n")
    config.write_text("{}")
    with board.open() as opened:
        opened.run("import os\nos.mkdir('/flash/mqqb')")
        opened.write("/flash/mqqb/core.mpy", b"M\x06")  # would waste flash beside core.py
        done = deploy(opened, first, main, config)
    assert done.core == "python"
    assert set(done.copied) == {
        "/flash/main.py",
        "/flash/wifi.json",
        "/flash/ordack/node/old.py",
        *(f"/flash/{place}" for place in SMALL),
    }
    assert done.removed == ["/flash/mqqb/core.mpy"]
    second = package(tmp_path / "second", {**SMALL, "mqqb/__init__.py": "# new\n"})
    told: list[tuple[str, int, int]] = []
    with board.open(reset=False) as opened:  # it ran when it was let go
        assert opened.read("/flash/ran") == b"x"
        done = deploy(opened, second, main, config, lambda *step: told.append(step))
    assert (done.copied, done.removed) == (["/flash/mqqb/__init__.py"], ["/flash/ordack/node/old.py"])
    assert told[-1] == ("/flash/mqqb/__init__.py", 6, 6)
    with board.open() as opened:
        assert opened.read("/flash/mqqb/__init__.py") == b"# new\n"
        with pytest.raises(FileNotFoundError):
            opened.read("/flash/ordack/node/old.py")


class Cut(Exception):
    """The power failed."""


def test_interrupted_deploy_keeps_old_package_or_is_reported(
    machine: Callable[..., Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = machine()
    old = package(tmp_path / "old", SMALL)
    new = package(tmp_path / "new", {place: text + "# new\n" for place, text in SMALL.items()})
    with board.open() as opened:
        deploy(opened, old)

    def while_copying(_: str, done: int, __: int) -> None:
        if done > 10:
            board.cut()
            raise Cut

    with pytest.raises(Cut), board.open() as opened:
        deploy(opened, new, progress=while_copying)
    board.start()
    assert board.checks()["modules"].verdict == "ok"
    with board.open() as opened:
        assert opened.read("/flash/mqqb/core.py").decode() == SMALL["mqqb/core.py"]

    def at_the_end(self: Board, code: str, seconds: float = 10) -> Any:
        if "rename" in code and "mqqb/core.py" in code:
            run(self, "import os\nos.rename('/flash/mqqb/core.py.new', '/flash/mqqb/core.py')", seconds)
            board.cut()
            raise Cut
        return run(self, code, seconds)

    run = Board.run
    with monkeypatch.context() as patch:
        patch.setattr(Board, "run", at_the_end)
        with pytest.raises(Cut), board.open() as opened:
            deploy(opened, new)
    board.start()
    check = board.checks()["modules"]
    assert (check.verdict, check.advice) == ("bad", "run ordack board deploy")
    assert "interrupted" in check.text
    with board.open() as opened:
        deploy(opened, new)
        assert opened.read("/flash/mqqb/core.py").decode().endswith("# new\n")
    assert board.checks()["modules"].verdict == "ok"


def test_deploy_refuses_unusable_package_before_any_change(machine: Callable[..., Machine], tmp_path: Path) -> None:
    board = machine()
    large = package(tmp_path / "large", {**SMALL, "ordack/node/large.py": "#" * (3 << 20)})
    compiled = package(tmp_path / "compiled", {**SMALL, "ordack/node/future.mpy": "M\x07"})
    lacking = package(tmp_path / "lacking", SMALL)
    (tmp_path / "lacking" / "mqqb" / "core.py").unlink()
    with board.open() as opened:
        for listing, text in ((large, "bytes of flash"), (compiled, "version 7"), (lacking, "core.py")):
            with pytest.raises(BoardError, match=text):
                deploy(opened, listing)
        assert opened.run("import os\nprint(os.listdir('/flash'))") == []
    done = ordack("deploy", "--port", board.port, "--package", large)
    assert (done.returncode, done.stdout) == (1, "")
    assert "remove files" in done.stderr


def test_files_take_the_place_of_others_on_fat_too(tmp_path: Path) -> None:
    """FAT does not rename over a file, LittleFS does."""
    (tmp_path / "disk.py").write_text(
        "import os, vfs\n"
        "class Disk:\n"
        "    data = bytearray(512 * 200)\n"
        "    def readblocks(self, block, buffer):\n"
        "        buffer[:] = self.data[512 * block:512 * block + len(buffer)]\n"
        "    def writeblocks(self, block, buffer):\n"
        "        self.data[512 * block:512 * block + len(buffer)] = buffer\n"
        "    def ioctl(self, operation, argument):\n"
        "        return {4: 200, 5: 512}.get(operation, 0)\n"
        "disk = Disk()\nvfs.VfsFat.mkfs(disk)\nvfs.mount(vfs.VfsFat(disk), '/fat')\n"
        "for name in ('a', 'a.new', 'b.new', 'old'):\n"
        "    with open('/fat/' + name, 'w') as file:\n        file.write(name)\n"
        f"exec({deploying.RENAME.format(['/fat/a', '/fat/b'], ['/fat/old', '/fat/older'])!r})\n"
        "print(sorted(os.listdir('/fat')), open('/fat/a').read(), open('/fat/b').read())\n"
    )
    done = subprocess.run(
        [ROOT / "build" / "micropython" / "unix-c" / "micropython", tmp_path / "disk.py"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "['a', 'b'] a.new b.new\n", done.stderr


@pytest.mark.parametrize(
    ("mpy", "own_core", "native"),
    [
        (4 << 10 | 3 << 8 | 6, False, {"mqqb/core_armv6m.mpy"}),
        (6 << 10 | 3 << 8 | 6, False, {"mqqb/core_armv7m.mpy"}),
        (7 << 10 | 3 << 8 | 6, False, {"mqqb/core_armv7m.mpy"}),  # RP2350
        (10 << 10 | 3 << 8 | 6, False, set()),  # ESP32
        (6, False, set()),
        (4 << 10 | 3 << 8 | 6, True, set()),
    ],
)
def test_a_board_gets_the_native_module_for_its_processor_alone(mpy: int, own_core: bool, native: set[str]) -> None:
    info = repl.Info((1, 25, 0), "", mpy, 0, 0, ["", "/lib"], "/")
    package = deploying.default_package(info)
    assert package == ROOT / "build" / "mip" / "package.json"
    places = set(deploying.chosen_files(package, info, own_core=own_core))
    assert {place for place in places if place.startswith("mqqb/core_")} - {"mqqb/core_py.mpy"} == native
    assert {"mqqb/core.mpy", "mqqb/core_py.mpy", "ordack/node/node.mpy"} < places
    assert info.lib == "/lib"


def test_deploy_rejects_syntax_error_and_reports_startup_error(
    machine: Callable[..., Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    board, main = machine(), tmp_path / "program.py"
    words = ["--port", board.port, "--package", str(package(tmp_path / "small", SMALL)), "--main", str(main)]

    def said(command: str, *arguments: str) -> tuple[int, str]:
        """The command, in this process: START_S is another one."""
        monkeypatch.setattr(sys, "argv", ["ordack", "board", command, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), "".join(capfd.readouterr())

    def checked(verdict: str) -> str:
        status, text = said("doctor", "--port", board.port, "--json")
        (check,) = [one for one in map(json.loads, text.splitlines()) if one["check"] == "program"]
        assert (check["verdict"], status) == (verdict, int(verdict == "bad"))
        return str(check["found"])

    monkeypatch.setattr(repl, "START_S", 0.5)  # nothing is waited for
    main.write_text("import time\nwhile True:\n    time.sleep(1)\n")
    status, text = said("deploy", *words)
    assert status == 0, text
    assert checked("ok") == "main.py runs"
    monkeypatch.setattr(repl, "START_S", 60.0)
    first = main.read_bytes()
    main.write_text("import time\nwhile True print(1)\n")
    status, text = said("deploy", *words)
    assert status == 1
    assert "nothing was replaced" in text
    assert "main.py, line 2: SyntaxError: invalid syntax" in " ".join(text.split())
    with board.open() as opened:
        assert opened.sums(["/flash/main.py", "/flash/main.py.new"]) == [(len(first), binascii.crc32(first)), None]
    main.write_text("def begin():\n    import nothing_of_that_name\nbegin()\n")
    status, text = said("deploy", *words, "--json")
    assert status == 1
    assert json.loads(text)["error"].startswith("main.py, line 2: ImportError: ")
    assert "main.py, line 2: ImportError: " in checked("bad")
    main.write_text("print('once')\n")
    assert said("deploy", *words)[0] == 0
    assert checked("warning") == "main.py ends at once"


# ---- a watchdog ---------------------------------------------------------------------------------------

WATCHED = """
import machine, time
with open('starts', 'a') as file:
    file.write(str(machine.reset_cause()))
watchdog = machine.WDT(timeout=6000)
while True:
    watchdog.feed()
    print('alive')
    time.sleep_ms(20)
"""


def bitten(board: Machine) -> None:
    """Returns when the watchdog has reset the board, which nobody feeds."""
    before = board.resets
    deadline = time.monotonic() + 120
    while board.resets == before:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_deploy_completes_despite_watchdog_reset(machine: Callable[..., Machine], tmp_path: Path) -> None:
    """The watchdog cannot be stopped. The copy stands still until it bites, 3 times of 3 on an RP2 and an ESP32."""
    board = machine()
    main = tmp_path / "watched.py"
    main.write_text(WATCHED)
    with board.open() as opened:
        deploy(opened, package(tmp_path / "old", SMALL), main)
    has_stalled = False

    def stalled(path: str, done: int, total: int) -> None:
        nonlocal has_stalled
        if not has_stalled:
            has_stalled = True
            bitten(board)

    new = package(tmp_path / "new", {**SMALL, "mqqb/__init__.py": "# new\n"})
    done = repl.attended(board.port, lambda opened: deploy(opened, new, main, None, stalled), reset=True)
    assert "/flash/mqqb/__init__.py" in done.copied
    board.hear(b"alive")  # the program runs again
    with board.open() as opened:
        assert opened.read("/flash/mqqb/__init__.py") == b"# new\n"
        assert b"3" in opened.read("/flash/starts"), "by the watchdog"


# ---- doctor -----------------------------------------------------------------------------------------


def test_the_board_is_asked_whether_it_reaches_the_queue_manager(
    machine: Callable[..., Machine], tmp_path: Path
) -> None:
    board = machine()
    main = tmp_path / "main.py"
    main.write_text(
        "import machine, network, time\nmachine.RTC().datetime((2026, 11, 21, 5, 12, 0, 0, 0))\n"
        "lan = network.LAN()\nlan.active(True)\nwhile not lan.isconnected():\n    time.sleep_ms(10)\n"
        "while True:\n    print('up')\n    time.sleep_ms(10)\n"
    )
    with board.open() as opened:
        deploy(opened, package(tmp_path / "small", SMALL), main)
    nobody = commands.own_port()
    board.hear(b"up")
    with _serving(tmp_path / "store") as number, _greeting() as other, board.open(reset=False) as opened:
        looked = [
            {check.name: check for check in examine(opened, ("10.0.2.2", where))} for where in (number, nobody, other)
        ]
    found = [checks["queue manager"] for checks in looked]
    assert [check.verdict for check in found] == ["ok", "bad", "bad"], found
    assert "the firewall" in found[1].advice
    assert "no queue manager" in found[2].text
    clock = looked[0]["clock"]
    assert clock.values["set"] is True
    assert clock.verdict == "warning"  # it is not that day


def test_an_outbox_is_copied_off_a_board(machine: Callable[..., Machine], tmp_path: Path) -> None:
    board = machine()
    node = Node(str(tmp_path / "made"))
    node.queue("DIRECT=TCP:10.0.0.5\\private$\\line1").put(b"21.5", label="reading")
    node.close_now()
    data = (tmp_path / "made" / "00000001.log").read_bytes()
    with board.open() as opened:
        opened.run("import os\nos.mkdir('outbox')")
        opened.write(opened.info.root("outbox/00000001.log"), data)
    done = ordack("rescue", "--port", board.port, "--to", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert "1 DIRECT=TCP:10.0.0.5\\private$\\line1 'reading': 4 bytes, waiting" in done.stdout
    assert (tmp_path / "copy" / "00000001.log").read_bytes() == data
    none = ordack("rescue", "--port", board.port, "--to", tmp_path / "other", "--outbox", "nothing")
    assert none.returncode == 1
    assert "there is no outbox in" in none.stderr


@contextlib.contextmanager
def _serving(store: Path) -> Iterator[int]:
    serving = commands.Serve(store)
    try:
        yield serving.port
    finally:
        serving.stop()


@contextlib.contextmanager
def _greeting() -> Iterator[int]:
    """A server that is no queue manager."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        connection.sendall(b"220 mail.example ESMTP\r\n")
                        while connection.recv(1024):  # to close before all is read would be a reset
                            pass

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


# ---- what is no board -------------------------------------------------------------------------------


@pytest.fixture
def wire() -> Iterator[Callable[[Callable[[bytes], bytes]], str]]:
    """Makes a pty at whose other end a function answers what is written."""
    stopping = threading.Event()
    threads: list[threading.Thread] = []
    ends: list[int] = []

    def make(answer: Callable[[bytes], bytes]) -> str:
        here, there = os.openpty()
        ends.extend((here, there))

        def talk() -> None:
            with serial.Serial(os.ttyname(there), timeout=0.05), contextlib.suppress(OSError):
                os.set_blocking(here, False)
                while not stopping.wait(0.01):
                    with contextlib.suppress(BlockingIOError):
                        os.write(here, answer(os.read(here, 4096)))

        threads.append(threading.Thread(target=talk))
        threads[-1].start()
        return os.ttyname(there)

    yield make
    stopping.set()
    for thread in threads:
        thread.join()
    for end in ends:
        os.close(end)


def _repl(name: str, version: tuple[int, ...]) -> Callable[[bytes], bytes]:
    """A raw REPL that answers every program with who it is."""

    def answer(data: bytes) -> bytes:
        said = b""
        for part in re.findall(rb"\x01|\x05A\x01|\x04|[^\x01\x04\x05]+", data):
            if part in (b"\x01", b"\x05A\x01"):
                said += b"raw REPL; CTRL-B to exit\r\n>" if part == b"\x01" else b"R\x00"
            elif part == b"\x04":
                said += b"OK" + repr((name, version)).encode() + b"\r\n\x04\x04>"
        return said

    return answer


@pytest.mark.parametrize(
    ("answer", "enter_s", "text", "status"),
    [
        (lambda data: b"", 1, "does not answer: .* a bare `except:`", 5),
        (lambda data: b"\r\nlogin: " if data else b"", 4, "no MicroPython answers .*login", 5),
        (_repl("circuitpython", (9, 2, 1)), repl.ENTER_S, "runs circuitpython", 5),
        (_repl("micropython", (1, 19, 1)), repl.ENTER_S, r"has MicroPython 1\.19\.1: 1\.25", 1),
    ],
    ids=["silent", "login", "circuitpython", "old"],
)
def test_port_without_usable_board_is_reported(
    wire: Callable[[Callable[[bytes], bytes]], str],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[bytes], bytes],
    enter_s: int,
    text: str,
    status: int,
) -> None:
    monkeypatch.setattr(repl, "ENTER_S", enter_s)
    with pytest.raises(NoBoard if status == 5 else BoardError, match=text):
        repl.attended(wire(answer), lambda board: None, reset=False)


def test_missing_port_and_port_in_use_are_reported(wire: Callable[[Callable[[bytes], bytes]], str]) -> None:
    done = ordack("doctor", "--port", "/dev/tty-of-no-board")
    assert (done.returncode, done.stdout) == (5, "")
    assert "there is no port /dev/tty-of-no-board; there are: " in done.stderr
    port = wire(lambda data: b"")
    with serial.Serial(port, exclusive=True):
        done = ordack("deploy", "--port", port)
    assert done.returncode == 5
    assert "in use by another program" in done.stderr
