"""The servers that the bench compares, each as a process with a store of its own, and what it measures of a process."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from ordack.client import Client

from tests.conformance import ROOT
from tests.support.command import own_port, write_settings

DEADLINE_S = 120
SESSIONS = 12_000
PATH = os.pathsep.join([str(ROOT / "build/bench/nats/usr/sbin"), os.environ["PATH"], "/usr/sbin"])

PROLOGUE = """
import sys
where, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def begin():
    print(flush=True)
    sys.stdin.readline()
"""
EPILOGUE = """
begin()
"""


def report(**values: object) -> None:
    """Print one result as a JSON line; four digits of a number are enough."""

    def short(value: object) -> object:
        if isinstance(value, dict):
            return {key: short(inner) for key, inner in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    print(json.dumps(short(values)), flush=True)


def cpu_s(pid: int) -> float:
    """Processor time of a process, by the kernel's scheduler statistics. Ended threads do not count."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def resident_kib(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@contextlib.contextmanager
def program(text: str, where: object, count: int, size: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A Python program that knows where, count and size. It writes a line in begin(), which returns when it may begin,
    and a line at its end."""
    command = [sys.executable, "-c", f"{PROLOGUE}{text}{EPILOGUE}", str(where), str(count), str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def step(process: subprocess.Popen[str]) -> None:
    """Wait for its line, or let it begin."""
    assert process.stdout
    process.stdout.readline()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def throughput(programs: list[subprocess.Popen[str]], servers: list[int], count: int) -> tuple[float, list[float]]:
    """Messages a second from the first sent to the last received, and each process's microseconds of processor time."""
    everybody = [*servers, *(process.pid for process in programs)]
    for process in programs:
        step(process)
    before = [cpu_s(pid) for pid in everybody]
    began = time.perf_counter()
    for process in programs:
        go(process)
    for process in programs:
        step(process)
    took = time.perf_counter() - began
    return count / took, [1e6 * (cpu_s(pid) - was) / count for pid, was in zip(everybody, before, strict=True)]


class Server:
    """A process that runs until the stack closes. kind: its name for tests/bench/boards.c."""

    name = kind = ""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.port = own_port()
        self.process: subprocess.Popen[str]
        self._stack = stack
        stack.callback(self.end)
        self.start()

    def command(self) -> list[str]:
        """The program with its arguments."""
        raise NotImplementedError

    def start(self, stdout: int = subprocess.DEVNULL) -> None:
        """Start the process with as many files as it may have, and wait until it listens."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        words = self.command()
        program = shutil.which(words[0], path=PATH)
        if not program:
            sys.exit(f"{words[0]} is missing: make setup-bench installs it")
        self.process = subprocess.Popen([program, *words[1:]], stdout=stdout, stderr=stdout, text=True)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)
        raise RuntimeError(f"{words[0]} does not start")

    def end(self, order: int = signal.SIGTERM) -> None:
        """Stop the process."""
        self.process.send_signal(order)
        self.process.wait(DEADLINE_S)
        if self.process.stdout:
            self.process.stdout.close()

    def syncs(self) -> int | None:
        """Syncs of the disk so far; None if the server does not count them."""
        return None


class Ordack(Server):
    """An `ordack serve`. more: further arguments."""

    name = "ordack"
    kind = "ordack"

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *more: str) -> None:
        self._more = more
        write_settings(folder, MaxInSessions=SESSIONS, MaxInSessionsPerAddress=SESSIONS)
        with Client(folder, create=True) as client:
            client.create_queue("line1", transactional=True)
        super().__init__(folder, stack)

    def command(self) -> list[str]:
        listen = f"127.0.0.1:{self.port}"
        return [sys.executable, "-m", "ordack", "serve", "--store", str(self.folder), "--listen", listen,
                "--http", "0", *self._more]  # fmt: skip

    def start(self, stdout: int = subprocess.PIPE) -> None:
        super().start(stdout)
        assert self.process.stdout
        while "http://" not in (line := self.process.stdout.readline()):
            if not line:
                raise RuntimeError("ordack serve does not start")
        self._watched = line[line.index("http://") :].split()[0].rstrip("/,")

    def syncs(self) -> int:
        with urllib.request.urlopen(f"{self._watched}/metrics", timeout=DEADLINE_S) as page:
            told = re.search(rb"^ordack_syncs_total (.*)$", page.read(), re.MULTILINE)
        assert told
        return int(float(told[1]))


class Redis(Server):
    """redis-server, which syncs each write to disk before it answers."""

    name = "Redis Streams, appendfsync always"
    kind = "redis"

    def command(self) -> list[str]:
        return ["redis-server", "--port", str(self.port), "--dir", str(self.folder), "--appendonly", "yes",
                "--appendfsync", "always", "--save", "", "--maxclients", str(SESSIONS)]  # fmt: skip


class Mosquitto(Server):
    """mosquitto with persistence. It writes its whole state from time to time, without a sync."""

    name = "mosquitto, QoS 2, persistence without a sync"
    kind = "mqtt"
    more = ""

    def command(self) -> list[str]:
        settings = self.folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {self.folder}/\nmax_inflight_messages 0\nmax_queued_messages 0\n{self.more}"
        )
        self.folder.chmod(0o777)  # as root, mosquitto becomes another user
        self.folder.parent.chmod(0o755)
        return ["mosquitto", "-c", str(settings)]

    def start(self, stdout: int = subprocess.DEVNULL) -> None:
        super().start(stdout)
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as link:  # keeps what nobody receives
            link.sendall(b"\x10\x10\0\4MQTT\4\0\0\0\0\4keep\x82\x08\0\1\0\3b/#\2")
            answer = b""
            while len(answer) < 4 + 5:  # CONNACK, SUBACK
                answer += link.recv(9) or sys.exit("mosquitto ended a subscription")


class Nats(Server):
    """nats-server with a JetStream on files, which syncs each write before it answers."""

    name = "NATS JetStream, sync_interval always"
    kind = "nats"

    def command(self) -> list[str]:
        settings = self.folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder}", sync_interval: always, max_file_store: 20G }}\n'
        )
        return ["nats-server", "-c", str(settings)]

    def start(self, stdout: int = subprocess.DEVNULL) -> None:
        super().start(stdout)
        stream = b'{"name":"boards","subjects":["b.>"],"storage":"file"}'
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as link:
            link.sendall(
                b'CONNECT {"verbose":false}\r\nSUB made 1\r\nPUB $JS.API.STREAM.CREATE.boards made %d\r\n%b\r\n'
                % (len(stream), stream)
            )
            answer = b""
            while b"did_create" not in answer:
                got = link.recv(1 << 16)
                answer += got
                if not got or b'"error"' in answer:
                    raise RuntimeError(f"no JetStream: {answer!r}")


PEERS: tuple[type[Server], ...] = (Ordack, Redis, Mosquitto, Nats)
