"""What `serve` tells systemd, by a socket of the test's; and the files that start it as a service."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ordack.broker.manager import Manager
from ordack.client import Client
from ordack.server import health, notify
from ordack.store import Store, StoreError, StoreFull

from tests.support.command import DEADLINE_S, ENVIRONMENT, Serve
from tests.support.watched import until

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "host" / "examples" / "systemd" / "ordack.service"
CONTAINERFILE = ROOT / "host" / "examples" / "Containerfile"
PR_SET_MDWE, PR_GET_MDWE = 65, 66
PERIOD_S = 0.4
START = "[[listen]]\nport = 0\n"


class Systemd:
    """The service manager's end. address: as NOTIFY_SOCKET has it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self.socket.settimeout(DEADLINE_S)

    def next(self) -> dict[str, str]:
        """The next that is told."""
        return dict(line.split("=", 1) for line in self.socket.recv(1 << 16).decode().split("\n"))

    def until(self, name: str) -> dict[str, str]:
        """The next with this in it; what comes before it is gone."""
        while name not in (told := self.next()):
            pass
        return told

    def quiet(self) -> bool:
        """Nothing more has come."""
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(DEADLINE_S)


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    is_abstract = getattr(request, "param", "path") == "abstract"
    return f"@ordack-test-{os.getpid()}-{time.monotonic_ns()}" if is_abstract else str(tmp_path / "notify")


@pytest.fixture
def systemd(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    made = Systemd(address)
    monkeypatch.setitem(ENVIRONMENT, "NOTIFY_SOCKET", address)
    yield made
    made.socket.close()


def in_file(store: Path, text: str) -> Path:
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
    (store / "ordack.toml").write_text(text)
    return store / "ordack.toml"


@pytest.mark.parametrize("address", ["path", "abstract"], indirect=True)
def test_ready_when_connections_are_taken_then_the_end(systemd: Systemd, tmp_path: Path) -> None:
    in_file(tmp_path / "store", START)
    serve = Serve(tmp_path / "store", listen=None)
    first = systemd.next()
    assert first == {"READY": "1", "STATUS": "1 queue with 0 messages; 0 peers connected; 0 to be sent or acknowledged"}
    socket.create_connection(("127.0.0.1", serve.port), timeout=DEADLINE_S).close()
    status, _, _ = serve.stop()
    assert status == 0
    assert systemd.next() == {"STOPPING": "1"}
    assert systemd.quiet()  # told once, and no ping was asked for


def test_failed_serve_start_does_not_notify_systemd(systemd: Systemd, tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ValueError):
        Serve(tmp_path / "store", listen=f"127.0.0.1:{taken.getsockname()[1]}")  # it prints no port
    assert systemd.quiet()


def test_pings_stop_while_the_loop_hangs(systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "WATCHDOG_USEC", str(int(PERIOD_S * 1e6)))
    serve = Serve(tmp_path)
    systemd.until("READY")
    for _ in range(3):
        systemd.until("WATCHDOG")
    os.kill(serve.process.pid, signal.SIGSTOP)
    state = Path(f"/proc/{serve.process.pid}/stat")
    until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    while not systemd.quiet():
        pass
    systemd.socket.settimeout(3 * PERIOD_S)
    with pytest.raises(TimeoutError):
        systemd.next()
    systemd.socket.settimeout(DEADLINE_S)
    os.kill(serve.process.pid, signal.SIGCONT)
    systemd.until("WATCHDOG")
    serve.stop()
    systemd.until("STOPPING")
    assert systemd.quiet()


@pytest.mark.parametrize("address", ["/no/such/socket", "@nobody"])
def test_invalid_notify_socket_is_reported_once(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "NOTIFY_SOCKET", address)
    monkeypatch.setitem(ENVIRONMENT, "WATCHDOG_USEC", "20000")
    serve = Serve(tmp_path)
    socket.create_connection(("127.0.0.1", serve.port), timeout=DEADLINE_S).close()
    status, _, errors = serve.stop()
    assert status == 0
    assert errors.count("the service manager is not told") == 1
    assert f"NOTIFY_SOCKET is '{address}'" in errors


# ---- the notifier alone


def notifier(told: list[str], **environment: str) -> notify.Notifier:
    return notify.from_environment(environment, told.append)


def run_for(made: notify.Notifier, seconds: float, trouble: Callable[[], str]) -> None:
    async def run() -> None:
        task = asyncio.create_task(made.run(trouble, lambda: "well"))
        await asyncio.sleep(seconds)
        task.cancel()

    asyncio.run(run())


def test_watchdog_pings_stop_and_status_gives_reason(systemd: Systemd) -> None:
    made = notifier([], NOTIFY_SOCKET=systemd.address, WATCHDOG_USEC="40000", WATCHDOG_PID=str(os.getpid()))
    run_for(made, 0.1, lambda: "the store cannot be read: gone\nfor good")
    assert systemd.next() == {"STATUS": "the store cannot be read: gone for good"}  # once
    assert systemd.quiet()
    run_for(made, 0, lambda: "")
    assert systemd.next() == {"WATCHDOG": "1"}
    made.close()


def test_restart_helps_stuck_loop_and_bad_store_not_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path, create=True) as store:
        manager = Manager(store, 0)
        manager.links.counters.turned = 5.0
        assert health.restart_helps(manager, 5.0 + health.STUCK_S) == ""
        assert "event loop has not run for 11 s" in health.restart_helps(manager, 6.0 + health.STUCK_S)
        for error, expected in (
            (StoreError("the disk has gone"), "the store cannot be read: the disk has gone"),
            (StoreFull("the disk is full"), ""),
        ):

            def fail(error: StoreError = error) -> None:
                raise error

            with monkeypatch.context() as broken:
                broken.setattr(manager.outgoing, "load", fail)
                broken.setattr(manager.links, "run_timers", lambda _now: fail())
                manager.poll(1, 1)
            assert health.restart_helps(manager, 5.0) == expected
            manager.poll(2, 1)
            assert health.restart_helps(manager, 5.0) == ""


# ---- the unit and the container


def unit() -> dict[str, list[str]]:
    """The unit's directives, each with its values in order; none stands under two sections."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def own(command: str, store: Path) -> list[str]:
    """A command of the unit, for the ordack of this checkout and another store."""
    here = command.replace("/opt/ordack/bin/ordack", f"{sys.executable} -m ordack")
    return shlex.split(here.replace("/var/lib/ordack", str(store)))


def no_new_code() -> None:
    """MemoryDenyWriteExecute for this process and its children, as Linux 6.3 has it for everybody."""
    if ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0):
        raise OSError("this is refused")


def test_systemd_unit_passes_systemd_analyze_verify(tmp_path: Path) -> None:
    """No directive is unknown, no value is refused; with a program that is there."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not on this machine")
    program = tmp_path / "ordack"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / "ordack.service"

    def verify(text: str) -> tuple[int, str]:
        copy.write_text(text.replace("/opt/ordack/bin/ordack", str(program)))
        done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
        lines = [line for line in done.stderr.splitlines() if "ordack.service" in line]  # others are the machine's own
        return done.returncode if lines else 0, "\n".join(lines)

    assert verify(UNIT.read_text()) == (0, "")
    assert "'WatchdogSecs'" in verify(UNIT.read_text().replace("WatchdogSec=", "WatchdogSecs="))[1]


@pytest.mark.slow
def test_serve_starts_with_write_execute_memory_denied(systemd: Systemd, tmp_path: Path) -> None:
    if ctypes.CDLL(None).prctl(PR_GET_MDWE, 0, 0, 0, 0) < 0:
        pytest.skip("this Linux is older than 6.3: it cannot be asked for outside systemd")
    store = tmp_path / "store"
    [command] = unit()["ExecStart"]
    words = [*own(command, store), "--listen", "127.0.0.1:0"]
    Client(store, create=True).close()
    with subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=no_new_code
    ) as process:
        assert systemd.next()["READY"] == "1"
        with Client(store) as client:
            client.create_queue("line1", transactional=True)
            client.send("line1", b"21.5")
        process.terminate()
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0


def test_containerfile_copies_existing_files_and_runs_ordack() -> None:
    """It is built by whoever has docker or podman."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and line[0] != "#"]
    instructions = [(name, rest) for line in lines for name, _, rest in [line.partition(" ")]]
    copied = [rest.split() for name, rest in instructions if name == "COPY" and not rest.startswith("--from")]
    assert [path for words in copied for path in words[:-1] if not (ROOT / path).exists()] == []
    said = dict(instructions)
    assert json.loads(said["ENTRYPOINT"]) == ["ordack"]
    command = [*json.loads(said["CMD"]), "--help"]
    done = subprocess.run([sys.executable, "-m", "ordack", *command], env=ENVIRONMENT, capture_output=True, check=False)
    assert done.returncode == 0
