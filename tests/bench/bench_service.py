"""`ordack serve` beside its peers in the same run, as JSON lines. One command for each line:

    python -m tests.bench.bench_service all-in       programs through two queue managers, 64 messages a commit
    python -m tests.bench.bench_service alone        one message in flight through two queue managers
    python -m tests.bench.bench_service lone-board   a board on MicroPython that waits until each message is stored
    python -m tests.bench.bench_service consumer     a consumer that commits one message at a time
    python -m tests.bench.bench_service boards [--boards N] [--rate A_SECOND] [--seconds N] [--peers redis]
    python -m tests.bench.bench_service boards --boards N --highest      the highest rate with p99 below 1 s
    python -m tests.bench.bench_service storm [--boards N]               all of them reconnect within 1 s

Rounds take turns; figures are medians. `ratio` is more than 1 where ordack is better. Processor time is that of the
kernel's scheduler statistics. `syncs` are those of a message, `ordack_syncs` those of both `serve` for a commit of 64,
or for a message that is alone. Nothing is asserted: machines differ.
"""

import argparse
import contextlib
import statistics
import tempfile
import threading
import time
from pathlib import Path

from ordack.client import Client

from tests.bench import consumers, fleet
from tests.bench.consumers import ALONE, bare
from tests.bench.peers import DEADLINE_S, PEERS, Mosquitto, Ordack, Redis, program, report, throughput

AT_ONCE = 64
STALE_S = 1.0  # `serve` repeats an answer of /metrics for half as long
PEER_NAMES = [kind.kind for kind in PEERS if kind is not Ordack]

# Programs of tests.bench.peers.program
SENDER = """
from ordack.client import Client, Letter
letter = Letter("DIRECT=OS:plant\\\\private$\\\\line1", bytes(size))
with Client(where) as client:
    begin()
    for first in range(0, count, 64):
        client.send_many([letter] * min(64, count - first))
"""
RECEIVER = """
from ordack.client import Client
with Client(where) as client:
    queue = client.queue("line1")
    begin()
    for messages in queue.receive_batch(64, timeout=60):
        bodies = [message.body for message in messages]
        count -= len(messages)
        if not count:
            messages.end(None)
            break
"""
ADDER = """
import redis
peer = redis.Redis(port=int(where))
body = bytes(size)
begin()
for first in range(0, count, 64):
    pipe = peer.pipeline(transaction=False)
    for _ in range(min(64, count - first)):
        pipe.xadd("line1", {"body": body})
    pipe.execute()
"""
READER = """
import redis
peer = redis.Redis(port=int(where))
peer.xgroup_create("line1", "readers", id="0", mkstream=True)
begin()
found = peer.xreadgroup("readers", "one", {"line1": ">"}, count=64, block=60000)
while count:
    [[_, entries]] = found
    bodies = [entry[b"body"] for _, entry in entries]
    with peer.pipeline(transaction=False) as pipe:  # one round trip, as ordack's client does
        pipe.xack("line1", "readers", *[key for key, _ in entries])
        count -= len(entries)
        if count:
            pipe.xreadgroup("readers", "one", {"line1": ">"}, count=64, block=60000)
        found = pipe.execute()[-1]
"""


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
        time.sleep(STALE_S)
        return sum(one.syncs() for one in self._both)

    def run(self, count: int, size: int) -> tuple[float, list[float]]:
        servers = [process.pid for process in reversed(self.processes)]  # A, B
        with program(SENDER, self.a, count, size) as sender, program(RECEIVER, self.b, count, size) as receiver:
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
        with program(ADDER, self.port, count, size) as adder, program(READER, self.port, count, size) as reader:
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
    committing: list[float] = []
    peer: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
            system = Service(Path(name), stack)
            system.alone(20, size)  # the session is open then
            before = system.syncs()
            found += system.alone(ALONE, size)
            syncs.append((system.syncs() - before) / ALONE)
            floor += bare(Path(name), ALONE, size, 3)
            committing += bare(Path(name), ALONE, size, 3, True)
        with fleet.running(Broker) as broker:
            peer += broker.alone(ALONE, size)
    ours, least, sqlite, theirs = (statistics.median(values) * 1e6 for values in (found, floor, committing, peer))
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
        sqlite="three commits of a row and a round trip for each",
        sqlite_value=sqlite,
        sqlite_ratio=sqlite / ours,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--count", type=int, default=60_000, help="messages of all-in")
    parser.add_argument("--boards", type=int)
    parser.add_argument("--rate", type=float, help="messages a second of all boards; default: one of each board")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--size", type=int, default=64, help="bytes of a message of boards")
    parser.add_argument("--highest", action="store_true", help="raise the rate of boards until the p99 is 1 s")
    parser.add_argument("--peers", nargs="*", choices=PEER_NAMES, help="beside ordack; default: all")
    parser.add_argument("bench", choices=["all-in", "alone", "lone-board", "consumer", "boards", "storm"])
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
    elif options.bench == "lone-board":
        consumers.lone_board(options.rounds or 3)
    elif options.bench == "consumer":
        consumers.consume(kinds, options.rounds or 3, options.size)
    elif options.bench == "storm":
        fleet.storm(kinds, boards)
    elif options.highest:
        fleet.highest(kinds, boards, options.seconds or 3, options.size)
    else:
        fleet.connected(kinds, options.rounds or 1, boards, rate, options.seconds or 10, options.size)


if __name__ == "__main__":
    main()
