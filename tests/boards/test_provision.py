"""`ordack board provision`: on the unix port and a Cortex-M3. A board is what it was, or what it is to be."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from mqqb import guids
from ordack.boards import provision as provisioning
from ordack.boards import repl
from ordack.boards.outbox import Check
from ordack.boards.provision import Wanted, provision
from ordack.boards.repl import Board, BoardError
from ordack.cli.board import PASSWORD_VARIABLE
from ordack.client import Client
from ordack.server import certificates

from hil.emulated import HOST
from tests.boards.m3_board import Machine, write_deployed
from tests.boards.unix_board import UnixBoard
from tests.support import command as commands
from tests.support.command import ENVIRONMENT, Serve, as_json, own_port

IMPATIENT = "from ordack.boards import provision; provision.JOIN_S = 1"


def queue_at(host: str) -> str:
    return f"DIRECT=TCP:{host}\\private$\\line1"


QUEUE = queue_at("127.0.0.1")
OLD = {"name": "press-3", "queue": "DIRECT=TCP:10.0.0.9\\private$\\old", "ssid": "hall", "password": "x" * 8, "pin": 7}
BOOT = b"""
import network, time
lan = network.LAN()
lan.active(True)
while not lan.isconnected():
    time.sleep_ms(10)
"""
NETWORK = """
import json
STA_IF = 0
with open('air.json') as file:
    air = json.load(file)
seen = {}
def country(code):
    if code == 'QQ':
        raise ValueError('no such country')
    seen['country'] = code
def hostname(name):
    seen['hostname'] = name
class WLAN:
    def __init__(self, kind):
        self.joined = 'hall before'
        self.said = 0
    def active(self, on):
        pass
    def isconnected(self):
        return self.joined == 'now'
    def status(self):
        return self.said
    def ifconfig(self, static=None):
        if static:
            seen['static'] = static
        return '127.0.0.1', '255.0.0.0', '127.0.0.1', '127.0.0.1'
    def disconnect(self):
        self.joined = ''
    def connect(self, ssid, password):
        self.said = 3 if air.get(ssid) == password else -3 if ssid in air else -2
        if self.said == 3:
            self.joined = 'now'
            with open('seen.json', 'w') as file:
                json.dump(seen, file)
"""


CLOCK = """
def unique_id():
    return b'12345678'
class RTC:
    def datetime(self, moment):
        with open('clock', 'w') as file:
            file.write(str(moment[0]))
"""


class TimeOfDay(socketserver.BaseRequestHandler):
    """Answers as an NTP server on 29 November 2026."""

    def handle(self) -> None:
        asked, there = self.request
        answer = b"\x24\x01" + bytes(22) + asked[40:48] + bytes(8) + struct.pack(">II", 4004899200, 0)
        there.sendto(answer, self.client_address)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[UnixBoard]:
    board = UnixBoard(tmp_path / "flash")
    yield board
    board.close()


def run(
    board: UnixBoard | Machine, port: int, *more: object, host: str = "127.0.0.1", **how: Any
) -> subprocess.CompletedProcess[str]:
    place = ("--queue", queue_at(host), "--queue-manager", f"{host}:{port}")
    given = ("--port", board.port, "--name", "press-3", *place)
    return commands.ordack("board", "provision", *given, *more, **{"seconds": 90, **how})


def config(board: UnixBoard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((board.folder / "config.json").read_text())
    return found


def files_of(board: UnixBoard) -> list[str]:
    return sorted(path.name for path in board.folder.iterdir())


def bodies(store: Path) -> list[tuple[bytes, str]]:
    with Client(store) as client:
        return [(message.body, message.label) for message in client.queue("line1").peek()]


# ---- it works ---------------------------------------------------------------------------------------


def test_a_stock_board_is_provisioned(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "board").mkdir()
    write_deployed(tmp_path / "board", "ordack/node/node.mpy", boot=BOOT)
    board = Machine(tmp_path / "board")
    try:
        done = run(board, serve.port, "--json", host=HOST)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["name"], report["queue"], report["before"], report["told"]) == (
            "press-3",
            queue_at(HOST),
            "",
            [],
        )
        assert report["copied"] == ["/flash/ordack/node/node.mpy"]
        [message] = as_json("receive", "--store", tmp_path / "store", "line1", "--peek")
        assert (message["source"], message["label"]) == (report["guid"], "press-3")
        with board.open() as opened:
            assert json.loads(opened.read("/flash/config.json")) == {
                "name": "press-3",
                "queue": queue_at(HOST),
                "host": HOST,
                "port": serve.port,
            }
        again = run(board, serve.port, host=HOST)
        assert again.returncode == 0, again.stderr
        assert again.stdout.startswith(
            f"press-3 is provisioned, its message is stored in {queue_at(HOST)}; GUID {report['guid']}"
        )
    finally:
        board.cut()
    assert [label for _, label in bodies(tmp_path / "store")] == ["press-3"] * 2


def test_the_name_of_a_board_is_shown_by_all_that_show_boards(tmp_path: Path, store: Path) -> None:
    """From `provision` to the audit, with a queue manager that records what it hears."""
    captured = "--capture", str(tmp_path / "plant.pcapng")
    there = Serve(store, *captured)
    names = "--names", store / "ordack.toml"
    (tmp_path / "board").mkdir()
    board = Machine(tmp_path / "board", "mps2-an385")
    try:
        with board.open() as opened:
            opened.write("/flash/boot.py", BOOT)
        done = run(board, there.port, host=HOST)
        assert done.returncode == 0, done.stderr
        [guid] = re.findall("GUID {(.*)}", done.stdout)
        (store / "ordack.toml").write_text(
            f"[names]\n'{guid}' = 'press-3'\n"
        )  # for captures, which show no announced one
        again = run(board, there.port, host=HOST)
        assert again.returncode == 0, again.stderr
    finally:
        board.cut()
        there.stop()
    there_are = [message["source_name"] for message in as_json("receive", "--store", store, "line1", "--peek")]
    assert there_are == ["press-3"] * 2
    captures = sorted(tmp_path.glob("plant*.pcapng"))
    packets = as_json("capture", "decode", *captures, *names)
    users = [packet["fields"]["UserHeader"] for packet in packets if packet["packet"] == "UserMessage"]
    assert [user["SourceQueueManager_name"] for user in users] == ["press-3"] * 2
    audit = commands.ordack("capture", "audit", *captures, *names, "--out", tmp_path / "audit")
    assert audit.returncode == 0, audit.stderr
    [stream] = pq.read_table(tmp_path / "audit" / "streams.parquet").to_pylist()
    assert (stream["source_queue_manager"], stream["messages"]) == (f"{{{guid}}}", 2)
    assert "press-3" in audit.stdout


def test_second_provision_keeps_unknown_settings_and_files(board: UnixBoard, serve: Serve, tmp_path: Path) -> None:
    (board.folder / "network.py").write_text(NETWORK)
    (board.folder / "air.json").write_text('{"hall": "xxxxxxxx"}')
    (board.folder / "config.json").write_text(json.dumps(OLD))
    done = run(board, serve.port)
    assert done.returncode == 0, done.stderr
    assert config(board) == {**OLD, "queue": QUEUE, "host": "127.0.0.1", "port": serve.port}
    assert bodies(tmp_path / "store") == [(b"provisioned", "press-3")]
    assert files_of(board) == ["air.json", "config.json", "network.py", "outbox", "seen.json"]


def test_another_name_needs_a_word(board: UnixBoard, serve: Serve, tmp_path: Path) -> None:
    (board.folder / "config.json").write_text('{"name": "press-2"}')
    done = run(board, serve.port)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the board has the name 'press-2', not 'press-3'" in done.stderr
    assert "--replace" in done.stderr
    assert config(board) == {"name": "press-2"}
    assert bodies(tmp_path / "store") == []
    done = run(board, serve.port, "--replace")
    assert done.returncode == 0, done.stderr
    assert "its old name was press-2" in done.stdout
    assert config(board)["name"] == "press-3"


def test_provision_changes_queue_manager_only_if_outbox_is_empty(
    board: UnixBoard, serve: Serve, tmp_path: Path
) -> None:
    assert run(board, serve.port).returncode == 0
    with Client(tmp_path / "other", create=True) as client:
        client.create_queue("line1", transactional=True)
    other = Serve(tmp_path / "other")
    try:
        done = run(board, other.port)
        assert done.returncode == 0, done.stderr
        assert config(board)["port"] == other.port
        assert bodies(tmp_path / "other") == [(b"provisioned", "press-3")]
        program = f"from ordack.node import Node\nNode({str(board.folder / 'outbox')!r}).queue({QUEUE!r}).put(b'waits')"
        subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=True)
        done = run(board, serve.port)
        assert done.returncode == 1
        assert "1 older messages are pending on the board" in done.stderr
        with Client(tmp_path / "store") as client:
            assert f"{guids.guid_text(client.store.guid)} is not the queue manager before" in done.stderr
        assert config(board)["port"] == other.port
        assert bodies(tmp_path / "store") == [(b"provisioned", "press-3")]
        for port, advice in ((serve.port, "for the previous queue manager"), (other.port, "the queue manager answers")):
            place = ("--port", board.port, "--queue-manager", f"127.0.0.1:{port}")
            done = commands.ordack("board", "doctor", *place, "--json", seconds=90)
            checks = {check["check"]: check for check in map(json.loads, done.stdout.splitlines())}
            assert advice in checks["waiting"]["advice"]
    finally:
        other.stop()


# ---- Wi-Fi ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ssid", "driver", "said"),
    [
        ("hall 2", NETWORK, "the Wi-Fi 'hall 2' refuses the password"),
        ("hall 3", NETWORK, "the board finds no Wi-Fi 'hall 3'"),
        ("hall 2", "", "this board has no Wi-Fi to join 'hall 2'"),
    ],
)
def test_a_wifi_that_cannot_be_joined(
    board: UnixBoard, serve: Serve, tmp_path: Path, ssid: str, driver: str, said: str
) -> None:
    (board.folder / "network.py").write_text(driver)
    (board.folder / "air.json").write_text('{"hall 2": "what else"}')
    (board.folder / "config.json").write_text(json.dumps(OLD))
    done = run(board, serve.port, "--wifi", ssid, stdin=b"mistyped\n", before=IMPATIENT)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "mistyped" not in done.stderr
    assert config(board) == OLD
    assert not (board.folder / "config.json.new").exists()
    assert bodies(tmp_path / "store") == []


@pytest.mark.parametrize("way", ["variable", "input"])
def test_board_joins_wifi_network_from_its_configuration(
    board: UnixBoard, serve: Serve, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (board.folder / "network.py").write_text(NETWORK)
    (board.folder / "air.json").write_text(json.dumps({"hall 2": "geheim ü 1"}))
    wifi = {"country": "DE", "hostname": "press-3", "more": [["hall 2", "geheim ü 1"]]}
    (board.folder / "config.json").write_text(json.dumps({"wifi": wifi}))
    password = "x of hall 1"
    if way == "variable":
        monkeypatch.setitem(ENVIRONMENT, PASSWORD_VARIABLE, password)
    done = run(board, serve.port, "--wifi", "hall 1", stdin=f"{password}\n".encode() if way == "input" else b"")
    assert done.returncode == 0, done.stderr
    assert password not in done.stdout + done.stderr
    assert (config(board)["ssid"], config(board)["password"], config(board)["wifi"]) == ("hall 1", password, wifi)
    assert json.loads((board.folder / "seen.json").read_text()) == {"country": "DE", "hostname": "press-3"}


def test_a_terminal_is_asked_for_the_password() -> None:
    child, terminal = pty.fork()
    if not child:
        words = ["--port", "/dev/none", "--name", "a", "--queue", QUEUE, "--wifi", "hall 2"]
        os.execve(sys.executable, [sys.executable, "-m", "ordack", "board", "provision", *words], ENVIRONMENT)
    said = b""
    with contextlib.suppress(OSError):  # it has ended
        while data := os.read(terminal, 1024):
            said += data
            if said.endswith(b"Password of hall 2: "):
                os.write(terminal, b"a secret\n")
            elif said.endswith(b"NTP server, empty to keep the board's: "):
                os.write(terminal, b"192.168.1.1\n")
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5, said
    assert b"there is no port /dev/none" in said
    assert b"a secret" not in said
    assert b"NTP server" in said


# ---- time -------------------------------------------------------------------------------------------


def test_provision_sets_the_clock_and_keeps_the_ntp_server(
    board: UnixBoard, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    (board.folder / "machine.py").write_text(CLOCK)
    wanted = Wanted("press-3", QUEUE, "127.0.0.1", serve.port, ntp="127.0.0.1")
    with socketserver.UDPServer(("127.0.0.1", 0), TimeOfDay) as server:
        place = f"clock(server, 3000, port={server.server_address[1]}"
        monkeypatch.setattr(provisioning, "_TIME", provisioning._TIME.replace("clock(server, 3000", place))
        monkeypatch.setattr(provisioning, "TIME_S", 1)
        with pytest.raises(BoardError, match=r"the NTP server 127\.0\.0\.1 did not tell the time within 1 s"):
            repl.attended(board.port, lambda there: provision(there, wanted), reset=True)  # nobody reads the port yet
        assert not (board.folder / "config.json").exists()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(provisioning, "TIME_S", 60)
        for one in (wanted, wanted._replace(ntp=None)):  # the second keeps the server of the first
            repl.attended(board.port, lambda there, one=one: provision(there, one), reset=True)  # type: ignore[misc]
            assert config(board)["ntp"] == "127.0.0.1"
        server.shutdown()
    assert (board.folder / "clock").read_text() == "2026"


# ---- TLS --------------------------------------------------------------------------------------------


def test_tls_is_spoken_from_the_moment_the_files_count(
    board: UnixBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tls"
    certificates.init(folder, "ordack", 1)
    certificates.issue(folder, "plant", [], 1)
    certificates.issue(folder, "press-3", [], 1, board=True)
    with Client(tmp_path / "store", create=True) as client:
        client.create_queue("line1", transactional=True)
    (tmp_path / "store" / "ordack.toml").write_text(
        "[tls]\ncertificate = '../tls/plant.pem'\nkey = '../tls/plant.key'\nauthority = '../tls/ca.pem'\n"
        "[[listen]]\nport = 0\ntls = true\nallow-certificates = ['press-3']\n"
    )
    running = Serve(tmp_path / "store", listen=None)
    try:
        files = provisioning.tls_files(folder, "press-3")
        wrong = Wanted("press-3", QUEUE, "127.0.0.1", running.port, tls=(files, "plant-2"))
        with monkeypatch.context() as patch:
            told = "        node.wait(lambda: _feed() or queue.peer.reason, 60000)\n"
            patch.setattr(
                provisioning, "_SEND", provisioning._SEND.replace("        in_time =", told + "        in_time =")
            )
            patch.setattr(
                provisioning, "STORE_S", 1
            )  # counts when the certificate was looked at, however long that takes
            with pytest.raises(BoardError, match="ertificate"):
                repl.attended(board.port, lambda there: provision(there, wrong), reset=True)
        assert files_of(board) == ["outbox"], "neither a file of TLS nor a configuration stays"
        done = run(board, running.port, "--tls", folder, "--tls-name", "plant")
        assert done.returncode == 0, done.stderr
        first = config(board)["tls"]
        assert Path(first["key"]).read_bytes() == (folder / "press-3.key.der").read_bytes()
        plain = run(board, running.port)
        assert plain.returncode == 1
        assert "the board uses TLS" in plain.stderr
        assert config(board)["tls"] == first
        certificates.issue(folder, "press-3", [], 1, board=True, renew=True)
        again = run(board, running.port, "--tls", folder, "--tls-name", "plant")
        assert again.returncode == 0, again.stderr
        second = config(board)["tls"]
        there = sorted(str(path) for path in board.folder.glob("*.der"))
        assert there == sorted({second["authority"], second["certificate"], second["key"]}), "the old ones are gone"
        assert second["key"] != first["key"]
        assert bodies(tmp_path / "store") == [(b"provisioned", "press-3")] * 2
    finally:
        running.stop()


# ---- what is wrong is said --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--name", "x" * 65, "is not valid"),
        ("--name", "press\n3", "use 1 to 64 letters"),
        ("--queue", "DIRECT=TCP:10.0.0.5private$line1", "has no backslash; a shell may have removed it"),
        ("--queue", "DIRECT=TCP:10.0.0.5\\private$\\a\\b", "is not allowed"),
        ("--queue", "DIRECT=OS:.\\private$\\line1", "the board itself"),
        ("--queue-manager", "10.0.0.5", "is not HOST:PORT"),
        ("--tls", "no-such", "ca.der: No such file"),
        ("--ntp", "the router", "is no address and no name"),
        ("--wifi", "x" * 33, "33 bytes"),
        ("--wifi", "hall", "has 5 bytes: it has 8 to 64"),
    ],
)
def test_provision_rejects_invalid_option_before_board_access(option: str, value: str, said: str) -> None:
    given = {"--port": "/dev/none", "--name": "press-3", "--queue": QUEUE, option: value}
    done = commands.ordack(
        "board", "provision", *(word for pair in given.items() for word in pair), stdin=b"short\n", seconds=90
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.replace("│", " ").split())
    assert "short" not in done.stderr


def test_a_wifi_needs_a_password() -> None:
    words = ["--port", "/dev/none", "--name", "press-3", "--queue", QUEUE, "--wifi", "hall"]
    assert commands.ordack("board", "provision", *words).returncode == 2


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("DIRECT=TCP:127.0.0.1\\private$\\lime1", "there is no queue lime1 at 127.0.0.1; make it there, or correct"),
        ("DIRECT=TCP:127.0.0.1\\line1", "public queue; a private queue is DIRECT=TCP:127.0.0.1\\private$\\line1"),
    ],
)
def test_provision_reports_missing_queue_and_leaves_nothing(
    board: UnixBoard, serve: Serve, tmp_path: Path, queue: str, said: str
) -> None:
    (board.folder / "config.json").write_text('{"pin": 7}')
    done = run(board, serve.port, "--queue", queue)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the queue {queue}: " in done.stderr
    assert said in done.stderr
    assert "0x8000" in done.stderr
    assert config(board) == {"pin": 7}
    waiting = json.loads(commands.ordack("board", "rescue", board.folder / "outbox", "--json").stdout.splitlines()[-1])
    assert waiting["messages"] == 0, "nothing is left to be sent"
    assert bodies(tmp_path / "store") == []


def test_a_queue_manager_that_does_not_answer(board: UnixBoard) -> None:
    number = own_port()  # nobody listens there
    done = run(board, number)
    assert done.returncode == 1
    assert f"does not reach the queue manager 127.0.0.1:{number}: no connection" in done.stderr
    assert "ordack serve" in done.stderr
    assert files_of(board) == []


def test_provision_discards_message_not_stored_in_time(
    board: UnixBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a port that takes connections, and says nothing."""
    monkeypatch.setattr(provisioning, "STORE_S", 1)
    monkeypatch.setattr(provisioning, "reach", lambda *_: Check("", "ok", ""))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wanted = Wanted("press-3", QUEUE, *silent.getsockname())
        with pytest.raises(BoardError, match="did not store the message within 1 s"):
            repl.attended(board.port, lambda there: provision(there, wanted), reset=True)
    assert files_of(board) == ["outbox"]
    done = commands.ordack("board", "rescue", board.folder / "outbox", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["messages"] == 0


def test_invalid_configuration_is_not_overwritten(board: UnixBoard, serve: Serve) -> None:
    (board.folder / "config.json").write_text("ssid = hall\n")
    done = run(board, serve.port)
    assert done.returncode == 1
    assert "config.json on the board is not a JSON object" in done.stderr
    assert (board.folder / "config.json").read_text() == "ssid = hall\n"


# ---- cut off ----------------------------------------------------------------------------------------


class Cut(Exception):
    """The power failed."""


def test_a_power_cut_at_any_step_leaves_the_old_or_the_new(
    board: UnixBoard, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted("press-3", QUEUE, "127.0.0.1", serve.port)
    new = {"pin": 7, "name": "press-3", "queue": QUEUE, "host": "127.0.0.1", "port": serve.port}
    work: Callable[[Board], Any] = lambda there: provision(there, wanted)  # noqa: E731
    seen, run_there = set(), Board.run
    for step in range(1, 60):
        (board.folder / "config.json").write_text('{"pin": 7}')
        left = step

        def cut(self: Board, code: str, seconds: float = 10) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                board.cut()
                raise Cut
            return run_there(self, code, seconds)

        with monkeypatch.context() as patch, contextlib.suppress(Cut):
            patch.setattr(Board, "run", cut)
            repl.attended(board.port, work, reset=True)
        found = config(board)
        assert found in ({"pin": 7}, new)
        seen.add("old" if found == {"pin": 7} else "new")
        if left > 0:
            break
        board.start()
    assert seen == {"old", "new"}
    (board.folder / "config.json").write_text('{"pin": 7}')
    (board.folder / "config.json").rename(board.folder / "config.json.new")  # a cut in FAT's renaming
    repl.attended(board.port, work, reset=True)
    assert config(board) == new
    assert {label for _, label in bodies(tmp_path / "store")} == {"press-3"}
