"""The whole way of a message through the service, in four processes, and Redis Streams in the same run.

    python -m tests.bench.bench_service [all-in] [alone] [boards] [--rounds N] [--count N] ...

all-in: a program sends to `ordack serve` A, 64 in a commit; A sends to B; a program receives from B, 64 in a commit.
Redis has `appendfsync always`, a program that adds 64 in a pipeline, and one that reads and acknowledges 64 at a time.
alone: one message at a time, beside mosquitto, and beside three syncs and a round trip over the loopback.
boards: boards that send a message a second each, beside clients of Redis.
Rounds take turns; figures are medians. `ratio` is more than 1 where ordack is faster. `ordack_syncs` are those of both
`serve` for a commit of 64, or for a message that is alone. Nothing is asserted: machines differ.
"""

import argparse
import contextlib
import os
import re
import resource
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from mqqb.connection import OPEN
from ordack.client import Client
from ordack.server import tcp

from tests.bench.bench import Mosquitto, report, running
from tests.support.command import own_port, write_settings
from tests.support.host_peer import Peer, direct

AT_ONCE = 64
DEADLINE_S = 120
ALONE = 300  # messages sent one at a time
HTTP = "--http", "0"  # it tells its syncs there
IDLE_S = 20
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

SENDER = """
import sys
from ordack.client import Client, Letter
store, destination, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
letter = Letter(destination, bytes(size))
with Client(store) as client:
    print(flush=True)
    sys.stdin.readline()
    for first in range(0, count, 64):
        client.send_many([letter] * min(64, count - first))
    print(flush=True)
    sys.stdin.readline()
"""
RECEIVER = """
import sys
from ordack.client import Client
store, _, count, _ = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Client(store) as client:
    queue = client.queue("line1")
    print(flush=True)
    sys.stdin.readline()
    while count:
        with queue.receive_batch(min(64, count), timeout=60) as messages:
            bodies = [message.body for message in messages]
        count -= len(messages)
    print(flush=True)
    sys.stdin.readline()
"""
ADDER = """
import sys
import redis
port, _, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
peer = redis.Redis(port=int(port))
body = bytes(size)
print(flush=True)
sys.stdin.readline()
for first in range(0, count, 64):
    pipe = peer.pipeline(transaction=False)
    for _ in range(min(64, count - first)):
        pipe.xadd("line1", {"body": body})
    pipe.execute()
print(flush=True)
sys.stdin.readline()
"""
READER = """
import sys
import redis
port, _, count, _ = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
peer = redis.Redis(port=int(port))
peer.xgroup_create("line1", "readers", id="0", mkstream=True)
print(flush=True)
sys.stdin.readline()
while count:
    for _, entries in peer.xreadgroup("readers", "one", {"line1": ">"}, count=64, block=60000):
        bodies = [entry[b"body"] for _, entry in entries]
        peer.xack("line1", "readers", *[key for key, _ in entries])
        count -= len(entries)
print(flush=True)
sys.stdin.readline()
"""


def cpu_s(pid: int) -> float:
    """Processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


@contextlib.contextmanager
def program(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python program that runs; it writes a line when it is ready, and begins with a line that it reads."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
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


class Serve:
    """An `ordack serve`, from when it listens."""

    def __init__(self, stack: contextlib.ExitStack, store: Path, *more: str) -> None:
        command = [sys.executable, "-m", "ordack", "serve", "--store", str(store), "--listen", "127.0.0.1:0"]
        self.process = stack.enter_context(
            subprocess.Popen([*command, *HTTP, *more], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self.process.terminate)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().rstrip().rpartition(":")[2])
        self._watched = self.process.stdout.readline().split()[3].rstrip("/,")  # web page on http://HOST:PORT/, ...

    def syncs(self) -> int:
        """Waits for the disk until now."""
        with urllib.request.urlopen(f"{self._watched}/metrics", timeout=DEADLINE_S) as page:
            told = re.search(rb"^ordack_syncs_total (.*)$", page.read(), re.MULTILINE)
        assert told
        return int(float(told[1]))


class Service:
    """Two `ordack serve`, of which A sends to B."""

    name = "ordack"

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.a, self.b = folder / "a", folder / "b"
        for store in (self.a, self.b):
            with Client(store, create=True) as client:
                client.create_queue("line1", transactional=True)
        b = Serve(stack, self.b)
        self.port = b.port
        self._both = b, Serve(stack, self.a, "--next-hop", f"plant=127.0.0.1:{b.port}")
        self.processes = [one.process for one in self._both]

    def syncs(self) -> int:
        """Waits for the disk until now, of both."""
        return sum(one.syncs() for one in self._both)

    def run(self, count: int, size: int) -> tuple[float, list[float]]:
        arguments = "DIRECT=OS:plant\\private$\\line1", count, size
        servers = [process.pid for process in reversed(self.processes)]  # A, B
        with program(SENDER, self.a, *arguments) as sender, program(RECEIVER, self.b, *arguments) as receiver:
            return throughput([sender, receiver], servers, count)

    def alone(self, count: int, size: int) -> list[float]:
        """Seconds from before the send to after the receive of one message, again and again."""
        took = []
        with Client(self.a) as sender, Client(self.b) as receiver:
            queue = receiver.queue("line1")
            for _ in range(count):
                began = time.perf_counter()
                sender.send("DIRECT=OS:plant\\private$\\line1", bytes(size))
                with queue.receive(timeout=DEADLINE_S):
                    pass
                took.append(time.perf_counter() - began)
        return took


class Redis:
    """redis-server that syncs each write to disk before it answers."""

    name = "Redis Streams, appendfsync always"

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        folder.mkdir(exist_ok=True)
        self.port = own_port()
        self.process = stack.enter_context(
            subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--dir", str(folder), "--appendonly", "yes",
                 "--appendfsync", "always", "--save", ""],
                stdout=subprocess.DEVNULL,
            )
        )  # fmt: skip
        stack.callback(self.process.terminate)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)
        raise RuntimeError("redis-server does not start")

    def run(self, count: int, size: int) -> tuple[float, list[float]]:
        arguments = self.port, "line1", count, size
        with program(ADDER, *arguments) as adder, program(READER, *arguments) as reader:
            return throughput([adder, reader], [self.process.pid], count)


def bare(folder: Path, count: int, size: int) -> list[float]:
    """Seconds for three syncs of so many bytes, each appended to a file, and one round trip over the loopback."""
    took = []
    with (folder / "bare").open("wb", buffering=0) as file, socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        echo = threading.Thread(target=lambda: [far.sendall(far.recv(1 << 16)) for _ in range(count)])
        echo.start()
        for _ in range(count):
            began = time.perf_counter()
            for _ in range(3):
                file.write(bytes(size))
                os.fdatasync(file.fileno())
            near.sendall(bytes(size))
            left = size
            while left > 0:
                left -= len(near.recv(1 << 16))
            took.append(time.perf_counter() - began)
        echo.join()
        near.close()
        far.close()
    return took


def all_in(rounds: int, count: int, size: int) -> None:
    """64 in a commit, on the whole way."""
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[list[float]]] = {}
    syncs: list[float] = []
    kinds: tuple[Callable[[Path, contextlib.ExitStack], Service | Redis], ...] = Service, Redis
    for _ in range(rounds):
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
                system = kind(Path(name) if kind is Service else Path(name) / "data", stack)
                before = system.syncs() if isinstance(system, Service) else 0
                rate, cost = system.run(count, size)
                if isinstance(system, Service):
                    syncs.append((system.syncs() - before) * AT_ONCE / count)
                rates.setdefault(system.name, []).append(rate)
                costs.setdefault(system.name, []).append(cost)
    ours, peer = (statistics.median(rates[kind.name]) for kind in (Service, Redis))
    medians = {
        name: [statistics.median(column) for column in zip(*table, strict=True)] for name, table in costs.items()
    }
    report(
        bench=f"all-in, {size} bytes, {AT_ONCE} in a commit",
        unit="messages per second",
        bar="ratio >= 1.5, ordack_syncs <= 4, ordack_cpu_us in all <= 40, serve_b 10, sender 12",
        ordack_value=ours,
        ordack_syncs=statistics.median(syncs),
        peer=Redis.name,
        peer_value=peer,
        ratio=ours / peer,
        ordack_cpu_us=dict(
            zip(("serve_a", "serve_b", "sender", "receiver"), map(round, medians["ordack"]), strict=True)
        ),
        peer_cpu_us=dict(zip(("server", "sender", "receiver"), map(round, medians[Redis.name]), strict=True)),
    )


def one_at_a_time(rounds: int, size: int) -> None:
    """One message on its way, store to store."""
    found: list[float] = []
    syncs: list[float] = []
    floor: list[float] = []
    peer: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
            system = Service(Path(name), stack)
            system.alone(20, size)  # the session is open then
            before = system.syncs()
            found += system.alone(ALONE, size)
            syncs.append((system.syncs() - before) / ALONE)
            floor += bare(Path(name), ALONE, size)
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name:
            Path(name).chmod(0o755)  # as root, mosquitto becomes another user
            with running(Mosquitto, Path(name) / "broker") as broker:
                peer += broker.measure(ALONE, one_in_flight=True).latencies
    ours, least, theirs = (statistics.median(values) * 1e6 for values in (found, floor, peer))
    report(
        bench=f"one in flight, {size} bytes, send to received and removed",
        unit="microseconds, median",
        bar="ratio > 1, least_ratio >= 0.67, ordack_syncs <= 3",
        ordack_value=ours,
        ordack_syncs=statistics.median(syncs),
        peer=Mosquitto.name,
        peer_value=theirs,
        ratio=theirs / ours,
        least="three syncs and a round trip",
        least_value=least,
        least_ratio=least / ours,
    )


def resident_kib(pid: int) -> int:
    """Memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def roomy(store: Path, sessions: int) -> None:
    """A store that lets so many sessions come from one address, and files for them in this process."""
    files = max(2 * sessions + 1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    write_settings(store, MaxInSessions=sessions, MaxInSessionsPerAddress=sessions)


class Fleet:
    """So many connections, each of which sends a message a second."""

    def __init__(self, count: int, port: int, stack: contextlib.ExitStack) -> None:
        self.sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S)) for _ in range(count)
        ]
        self.slowest = 0.0  # what the one with the fewest answers has of the median, when all were sent
        self._sent: list[deque[float]] = [deque() for _ in range(count)]
        self._selector = stack.enter_context(selectors.DefaultSelector())
        for place, connection in enumerate(self.sockets):
            self._selector.register(connection, selectors.EVENT_READ, place)

    def give(self, place: int, body: bytes) -> None:
        """Send one message."""
        raise NotImplementedError

    def take(self, place: int, data: bytes) -> int:
        """How many messages count as stored by what has come."""
        raise NotImplementedError

    def hear(self, timeout: float, heard: list[int]) -> list[float]:
        """How long messages took that count as stored now, in seconds. heard: how many of each, is counted on."""
        took = []
        for key, _ in self._selector.select(timeout):
            place = key.data
            count = self.take(place, self.sockets[place].recv(1 << 16))
            heard[place] += count
            took += [time.monotonic() - self._sent[place].popleft() for _ in range(count)]
        return took

    def run(self, seconds: int, body: bytes) -> list[float]:
        """Seconds from a send to its answer, of all messages of so many seconds."""
        took = []
        count = len(self.sockets)
        heard = [0] * count
        began = time.monotonic()
        for number in range(seconds * count):
            while (wait := began + number / count - time.monotonic()) > 0:
                took += self.hear(wait, heard)
            place = number % count
            self._sent[place].append(time.monotonic())
            self.give(place, body)
        self.slowest = min(heard) / max(statistics.median(heard), 1)
        while any(self._sent):
            took += self.hear(DEADLINE_S, heard)
        return sorted(took)


class Boards(Fleet):
    """Each has a session and a stream; a message is stored when its OrderAck comes."""

    def __init__(self, count: int, port: int, stack: contextlib.ExitStack) -> None:
        super().__init__(count, port, stack)
        self._peers = [Peer(number.to_bytes(16, "little"), direct("line1")) for number in range(1, count + 1)]
        for place, peer in enumerate(self._peers):
            peer.connect(tcp.now())
            self._write(place)
        while not all(peer.session and peer.session.state == OPEN for peer in self._peers):
            self.hear(1.0, [0] * count)

    def _write(self, place: int) -> None:
        self.sockets[place].sendall(self._peers[place].output(tcp.now()))

    def give(self, place: int, body: bytes) -> None:
        self._peers[place].send(body)
        self._write(place)

    def take(self, place: int, data: bytes) -> int:
        peer = self._peers[place]
        known = len(peer.acked)
        peer.receive(data, tcp.now())
        self._write(place)
        return len(peer.acked) - known


class Appenders(Fleet):
    """Each adds to a stream of its own; an entry is stored when Redis tells its key."""

    def give(self, place: int, body: bytes) -> None:
        words = b"XADD", b"board%d" % place, b"*", b"body", body
        self.sockets[place].sendall(b"*5\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))

    def take(self, place: int, data: bytes) -> int:
        return data.count(b"$")  # there is one before each key


def connected_boards(rounds: int, count: int, size: int) -> None:
    """Boards that all send at their own pace: how soon a message counts as stored, and whether one waits for others."""
    took: dict[str, list[list[float]]] = {Service.name: [], Redis.name: []}
    slowest: dict[str, list[float]] = {Service.name: [], Redis.name: []}
    cpu: dict[str, list[float]] = {Service.name: [], Redis.name: []}
    syncs: list[float] = []
    kib: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
            roomy(Path(name) / "b", count)
            service, redis = Service(Path(name), stack), Redis(Path(name) / "data", stack)
            pid = service.processes[0].pid
            least = resident_kib(pid)
            boards = Boards(count, service.port, stack)
            kib.append((resident_kib(pid) - least) / count)
            boards.run(5, bytes(size))
            known = service.syncs()
            for system, number, fleet in (
                (service.name, pid, boards),
                (redis.name, redis.process.pid, Appenders(count, redis.port, stack)),
            ):
                before = cpu_s(number)
                took[system].append(fleet.run(IDLE_S, bytes(size)))
                cpu[system].append(1e6 * (cpu_s(number) - before) / len(took[system][-1]))
                slowest[system].append(fleet.slowest)
                if system == service.name:
                    syncs.append((service.syncs() - known) / len(took[system][-1]))

    def at(system: str, hundredths: int) -> float:
        return 1e3 * statistics.median(times[(len(times) - 1) * hundredths // 100] for times in took[system])

    report(
        bench=f"{count} connected boards, a message of {size} bytes a second each",
        unit="ms until 99 of 100 count as stored",
        bar="ordack_value < 1000, ordack_slowest_of_median >= 0.5, ordack_kib_a_session <= 20",
        ordack_value=at(Service.name, 99),
        ordack_p50=at(Service.name, 50),
        ordack_most=at(Service.name, 100),
        ordack_slowest_of_median=statistics.median(slowest[Service.name]),
        ordack_messages=sum(map(len, took[Service.name])),
        ordack_cpu_us=statistics.median(cpu[Service.name]),
        ordack_syncs=statistics.median(syncs),
        ordack_kib_a_session=statistics.median(kib),
        peer=Redis.name,
        peer_value=at(Redis.name, 99),
        peer_p50=at(Redis.name, 50),
        peer_slowest_of_median=statistics.median(slowest[Redis.name]),
        peer_cpu_us=statistics.median(cpu[Redis.name]),
        ratio=at(Redis.name, 99) / at(Service.name, 99),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--boards", type=int, default=1_000)
    parser.add_argument("benches", nargs="*", metavar="bench", help="all-in, alone, boards; all by default")
    options = parser.parse_args()
    if not shutil.which("redis-server"):
        sys.exit("redis-server is missing: make setup-bench installs it")
    benches: dict[str, Callable[[], None]] = {
        "all-in": lambda: [all_in(options.rounds, options.count, size) for size in (1024, 64)],
        "alone": lambda: one_at_a_time(options.rounds, 1024),
        "boards": lambda: connected_boards(options.rounds, options.boards, 64),
    }
    for name in options.benches or benches:
        if name not in benches:
            parser.error(f"no bench {name}")
        benches[name]()


if __name__ == "__main__":
    main()
