"""How soon a queue manager takes sessions that has a million messages to send, after a stop and after kill -9.

    python -m tests.bench.bench_start [--rounds N] [--count N]

The store is filled once by a program, 1,000 messages of 64 bytes in a commit; nobody answers where they are to go. It
is killed while a program sends through it. A start is over when a session is open; that of Redis, with as many entries
of a stream, when it answers. Rounds take turns; figures are medians. What they read is in memory: the machine has not
been down. Nothing is asserted: machines differ.
"""

import argparse
import contextlib
import socket
import statistics
import tempfile
import time
from pathlib import Path

import redis
from ordack.client import Client, Letter

from tests.bench.bench import report
from tests.bench.bench_service import DEADLINE_S, SENDER, Redis, Serve, go, open_session, program, resident_kib, step
from tests.support.command import own_port

DESTINATION = "DIRECT=OS:plant\\private$\\line1"
AT_ONCE = 1000
SIZE = 64
LOAD_S = 1.0  # of sends before the kill


class Started:
    """A start, in ms until a session is open, and the waits for the disk in it."""

    def __init__(self, stack: contextlib.ExitStack, store: Path, hop: int) -> None:
        began = time.perf_counter()
        self.serve = Serve(stack, store, "--next-hop", f"plant=127.0.0.1:{hop}")
        stack.enter_context(open_session(1, self.serve.port))
        self.ms = 1e3 * (time.perf_counter() - began)
        self.syncs = self.serve.syncs()
        self.mib = resident_kib(self.serve.process.pid) / 1024

    def stop(self) -> None:
        self.serve.process.terminate()
        self.serve.process.wait(DEADLINE_S)

    def kill(self, store: Path) -> None:
        """While a program sends through it."""
        with program(SENDER, store, DESTINATION, 1 << 30, SIZE) as sender:
            step(sender)
            go(sender)
            time.sleep(LOAD_S)
            self.serve.process.kill()
            sender.kill()
        self.serve.process.wait(DEADLINE_S)


def fill(store: Path, count: int) -> None:
    with Client(store, create=True) as client:
        client.create_queue("line1", transactional=True)
        for first in range(0, count, AT_ONCE):
            client.send_many([Letter(DESTINATION, bytes(SIZE))] * min(AT_ONCE, count - first))


def fill_redis(port: int, count: int) -> None:
    with redis.Redis(port=port) as peer:
        for first in range(0, count, AT_ONCE):
            pipe = peer.pipeline(transaction=False)
            for _ in range(min(AT_ONCE, count - first)):
                pipe.xadd("line1", {"body": bytes(SIZE)})
            pipe.execute()


def redis_ms(folder: Path, stack: contextlib.ExitStack) -> float:
    """Until it answers, after what was before; it is killed then."""
    began = time.perf_counter()
    started = Redis(folder, stack)
    with socket.create_connection(("127.0.0.1", started.port), DEADLINE_S) as asking:
        answer = b""
        while answer != b"+PONG\r\n":  # it says that it is loading until then
            asking.sendall(b"PING\r\n")
            answer = asking.recv(1 << 16)
    took = 1e3 * (time.perf_counter() - began)
    started.process.kill()
    started.process.wait(DEADLINE_S)
    return took


def start(rounds: int, count: int) -> None:
    clean: list[Started] = []
    crashed: list[Started] = []
    empty: list[float] = []
    peer: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ordack-bench-") as name, contextlib.ExitStack() as stack:
        hop = own_port()  # nobody listens there
        full, bare, data = (Path(name) / one for one in ("full", "bare", "data"))
        fill(full, count)
        fill(bare, 0)
        there = Redis(data, stack)
        fill_redis(there.port, count)
        there.process.kill()
        there.process.wait(DEADLINE_S)
        for _ in range(rounds):
            nothing = Started(stack, bare, hop)
            nothing.stop()
            empty.append(nothing.ms)
            clean.append(Started(stack, full, hop))
            clean[-1].kill(full)
            crashed.append(Started(stack, full, hop))
            crashed[-1].stop()
            peer.append(redis_ms(data, stack))
    ours, theirs = statistics.median(one.ms for one in crashed), statistics.median(peer)
    report(
        bench=f"start with {count} outgoing messages, after kill -9",
        unit="ms until a session is open",
        bar="ordack_value < 2000, ordack_after_stop < 2000",
        ordack_value=ours,
        ordack_after_stop=statistics.median(one.ms for one in clean),
        ordack_empty=statistics.median(empty),
        ordack_syncs=statistics.median(one.syncs for one in crashed),
        ordack_mib=statistics.median(one.mib for one in crashed),
        peer=Redis.name,
        peer_value=theirs,
        ratio=theirs / ours,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1_000_000)
    options = parser.parse_args()
    start(options.rounds, options.count)


if __name__ == "__main__":
    main()
