"""`ordack serve` beside its peers in the same run, as JSON lines. One command for each line:

    python -m tests.bench.bench_service all-in       programs through two queue managers, 64 messages a commit
    python -m tests.bench.bench_service alone        one message in flight through two queue managers
    python -m tests.bench.bench_service boards [--boards N] [--rate A_SECOND] [--seconds N] [--peers redis]
    python -m tests.bench.bench_service boards --boards N --highest      the highest rate with p99 below 1 s
    python -m tests.bench.bench_service storm [--boards N]               all of them reconnect within 1 s

Rounds take turns; figures are medians. `ratio` is more than 1 where ordack is better. Processor time is that of the
kernel's scheduler statistics. `syncs` are those of a message, `ordack_syncs` those of both `serve` for a commit of 64,
or for a message that is alone. Nothing is asserted: machines differ.
"""

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ordack.client import Client

from tests.bench import fleet
from tests.bench.peers import DEADLINE_S, PEERS, Mosquitto, Ordack, Redis, cpu_s, report

AT_ONCE = 64
PEER_NAMES = [kind.kind for kind in PEERS if kind is not Ordack]
ALONE = 300  # messages sent one at a time

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


class Service:
    """Two `ordack serve`, of which A sends to B."""

    name = "ordack"

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.a, self.b = folder / "a", folder / "b"
        b = Ordack(self.b, stack)
        self._both = b, Ordack(self.a, stack, "--next-hop", f"plant=127.0.0.1:{b.port}")
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


class Streams(Redis):
    """Redis with a program that adds and one that reads."""

    def run(self, count: int, size: int) -> tuple[float, list[float]]:
        arguments = self.port, "line1", count, size
        with program(ADDER, *arguments) as adder, program(READER, *arguments) as reader:
            return throughput([adder, reader], [self.process.pid], count)


class Broker(Mosquitto):
    """mosquitto with a publisher and a subscriber."""

    name = "mosquitto, QoS 2, autosave on every change"
    more = "autosave_on_changes true\nautosave_interval 1\n"

    def alone(self, count: int, size: int) -> list[float]:
        """Seconds from a publish until the subscriber has the message, again and again."""
        import paho.mqtt.client as mqtt  # the other benches do without it
        from paho.mqtt.enums import CallbackAPIVersion

        received, ready = threading.Semaphore(0), threading.Event()
        clients = [mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False) for name in ("from", "to")]
        publisher, subscriber = clients
        subscriber.on_message = lambda *_: received.release()
        subscriber.on_subscribe = lambda *_: ready.set()
        for client in clients:
            client.connect("127.0.0.1", self.port)
            client.loop_start()
        subscriber.subscribe("line1", qos=2)
        assert ready.wait(DEADLINE_S)
        took = []
        for _ in range(count):
            began = time.perf_counter()
            publisher.publish("line1", bytes(size), qos=2)
            assert received.acquire(timeout=DEADLINE_S)
            took.append(time.perf_counter() - began)
        for client in clients:
            client.disconnect()
            client.loop_stop()
        return took


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
    kinds: tuple[type[Service | Streams], ...] = Service, Streams
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
        bar="ratio >= 2, ordack_cpu_us in all <= 25",
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
        with fleet.running(Broker) as broker:
            peer += broker.alone(ALONE, size)
    ours, least, theirs = (statistics.median(values) * 1e6 for values in (found, floor, peer))
    report(
        bench=f"one in flight, {size} bytes, send to received and removed",
        unit="microseconds, median",
        bar="ratio > 1, least_ratio >= 0.67",
        ordack_value=ours,
        ordack_syncs=statistics.median(syncs),
        peer=Broker.name,
        peer_value=theirs,
        ratio=theirs / ours,
        least="three syncs and a round trip",
        least_value=least,
        least_ratio=least / ours,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--count", type=int, default=20_000, help="messages of all-in")
    parser.add_argument("--boards", type=int)
    parser.add_argument("--rate", type=float, help="messages a second of all boards; default: one of each board")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--size", type=int, default=64, help="bytes of a message of boards")
    parser.add_argument("--highest", action="store_true", help="raise the rate of boards until the p99 is 1 s")
    parser.add_argument("--peers", nargs="*", choices=PEER_NAMES, help="beside ordack; default: all")
    parser.add_argument("bench", choices=["all-in", "alone", "boards", "storm"])
    options = parser.parse_args()
    boards = options.boards or (10_000 if options.bench == "storm" else 1_000)
    rate = options.rate or boards
    wanted = options.peers if options.peers is not None else ["redis"] if options.bench == "storm" else PEER_NAMES
    kinds = [kind for kind in PEERS if kind is Ordack or kind.kind in wanted]
    if options.bench == "all-in":
        for size in (1024, 64):
            all_in(options.rounds or 3, options.count, size)
    elif options.bench == "alone":
        one_at_a_time(options.rounds or 3, 1024)
    elif options.bench == "storm":
        fleet.storm(kinds, boards)
    elif options.highest:
        fleet.highest(kinds, boards, options.seconds or 3, options.size)
    else:
        fleet.connected(kinds, options.rounds or 1, boards, rate, options.seconds or 10, options.size)


if __name__ == "__main__":
    main()
